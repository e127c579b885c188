"""The backward pass of a momentum in gate space: from dz to x, W, b_ih and the momentum itself."""

from collections.abc import Sequence

import torch
from torch import Tensor

from . import launch
from .constants import (
    COLUMNS,
    FINE_COLUMNS,
    FINE_PARTS_OF_W,
    FINE_PARTS_OF_X,
    MOMENTUM_THREADS,
    PARTS_OF_W,
    PARTS_OF_X,
)
from .inputs import Inputs
from .launch import Launcher, is_own
from .operands import (
    input_weights,
    product,
    product_in_groups,
    projected_input,
    sum_of_parts,
    wide_input,
)
from .sizes import MAX_FEATURES_OF_MOMENTUM_BACKWARD, Sizes


def _columns_of_parts(columns: int, parts: int) -> tuple[int, tuple[int, ...]]:
    """The number of columns of a feature, and for each part the first column that holds it.

    parts: a hexadecimal digit for each column, as PARTS_OF_X of common.cu.
    """
    part_of = [parts >> 4 * column & 15 for column in range(columns)]
    return columns, tuple(part_of.index(part) for part in range(max(part_of) + 1))


# By `fine`: which columns of a feature hold the parts of W, for dx = da W, and those of x, for dW = daᵀ x.
PARTS_FOR_DX = {
    True: _columns_of_parts(FINE_COLUMNS, FINE_PARTS_OF_W),
    False: _columns_of_parts(COLUMNS, PARTS_OF_W),
}
PARTS_FOR_DW = {
    True: _columns_of_parts(FINE_COLUMNS, FINE_PARTS_OF_X),
    False: _columns_of_parts(COLUMNS, PARTS_OF_X),
}


class MomentumBackward:
    """Goes back through the momentum, one chunk of time at a time, and adds up the gradients."""

    def __init__(
        self,
        launcher: Launcher,
        inputs: Inputs,
        size: Sizes,
        moments: Tensor,
        last: tuple[Tensor | None, Tensor | None],
        need_dx: bool,
        room: int,
    ) -> None:
        """moments: saved by the forward pass; last: dv and dn of the last step.

        room: rows for which a chunk has memory.
        """
        self.launcher, self.inputs, self.size, self.moments, self.room = launcher, inputs, size, moments, room
        R, B, H, D = size.R, size.B, size.H, size.D
        self.features = D if D <= MAX_FEATURES_OF_MOMENTUM_BACKWARD else 0
        self.parts = 3 if inputs.fine else 2  # bfloat16 parts of da
        self.dv, self.dn = (inputs.x.new_zeros(R, B, 4 * H) if d is None else d.clone() for d in last)
        self.learned = inputs.mu is not None or inputs.gain is not None
        # For each row and channel: dW of an input that this kernel projects, db_ih and, if they are learned,
        # dmu and dgain.
        self.sums = inputs.x.new_zeros(R, B, H, 4, self.features + (3 if self.learned else 1))
        self.x_or_a, self.packed_input, self.weights = inputs.x, None, None
        self.dw: Tensor | None = None  # of a wide input: the products of the parts of da and of x
        if need_dx:
            self.weights = input_weights(
                launcher, inputs.w_ih, None, None, size, filtered=False, fine=inputs.fine
            )
        if not self.features:
            projection_inputs = inputs.for_projection()
            self.packed_input = wide_input(launcher, projection_inputs, size)
            self.x_or_a = projected_input(launcher, projection_inputs, size, self.packed_input)

    def add(
        self,
        dz: Tensor,
        dz_low: Tensor | None,
        scales: Tensor,
        steps: tuple[int, int],
        rows: slice,
        dx: Tensor | None,
    ) -> None:
        """Go back through steps (first, last). rows: their rows among all N; dx: filled if given."""
        inputs, R, H = self.inputs, self.size.R, self.size.H
        needs_da = dx is not None or self.packed_input is not None
        # Rows beyond those of this chunk are zeros, for products over whole groups.
        new = torch.zeros if inputs.fine else torch.empty
        shape = R, self.room, self.parts, 4 * H
        da = new(shape, dtype=torch.bfloat16, device=inputs.x.device) if needs_da else None
        self._go_back(dz, dz_low, scales, steps, da)
        if da is None:
            return
        count = rows.stop - rows.start
        if self.packed_input is not None:
            self._add_to_dw(da, self.packed_input[:, rows].expand(R, -1, -1), count)
        if dx is not None:
            assert self.weights is not None
            # Here each part of a row of da is a row of its own.
            products = product(da[:, :count].flatten(1, 2), self.weights.expand(R, -1, -1))
            of_parts = products.view(R, count, self.parts, -1).unbind(2)
            dx[:, rows] = sum_of_parts(of_parts, *PARTS_FOR_DX[inputs.fine], self.size.D)

    def _go_back(
        self, dz: Tensor, dz_low: Tensor | None, scales: Tensor, steps: tuple[int, int], da: Tensor | None
    ) -> None:
        inputs, launcher = self.inputs, self.launcher
        R, T, B, N, H, _, _, _ = self.size
        defines = launch.backward_momentum_defines(inputs, self.size, da is not None)
        kernel = launch.kernel("momentum_backward", inputs.x.device.index, **defines)
        kernel(
            (-(-B * 4 * H // defines["CHANNELS"] // MOMENTUM_THREADS), R, 1),
            MOMENTUM_THREADS,
            {
                "x": self.x_or_a,
                # The projection of a wide input has W and b_ih in it.
                "w_ih": inputs.w_ih if self.features else None,
                "b_ih": inputs.b_ih if self.features else None,
                "decay": inputs.decay, "mu": inputs.mu, "gain": inputs.gain, "saved": self.moments,
                "begins": launcher.rows.begins, "lengths": launcher.rows.lengths,
                "dz": dz, "dz_low": dz_low, "scales": scales,
                "dv": self.dv, "dn": self.dn if inputs.beta is not None else None,
                "sums": self.sums, "da": da,
                "first": steps[0], "last": steps[1], "room": self.room,
                "T": T, "B": B, "H": H, "N": N, "decay_columns": launch.decay_columns(inputs.decay),
                "own_x": is_own(self.x_or_a, R),
                "own_w": is_own(inputs.w_ih, R), "own_bias": is_own(inputs.b_ih, R),
                "own_mu": is_own(inputs.mu, R), "own_gain": is_own(inputs.gain, R),
                **launch.momentum_numbers(inputs),
            },
        )  # fmt: skip

    def _add_to_dw(self, da: Tensor, packed_input: Tensor, count: int) -> None:
        # Here the parts of a row of da are beside each other.
        if self.inputs.fine:
            padded = torch.nn.functional.pad(packed_input, (0, 0, 0, self.room - count))
            products = torch.cat([product_in_groups(part, padded) for part in da.unbind(2)], 1)
        else:
            products = product(da.flatten(2)[:, :count].mT, packed_input)
        self.dw = products if self.dw is None else self.dw.add_(products)

    def gradients(self) -> tuple[Sequence[Tensor | None], Sequence[Tensor | None]]:
        """Of w_ih and b_ih; and of mu, gain, v0 and n0."""
        R, H, D = self.size.R, self.size.H, self.size.D
        sums = self.sums.sum(1).transpose(1, 2).reshape(R, 4 * H, -1)
        if self.dw is None:
            dw = sums[..., : self.features].contiguous()
        else:
            of_parts = self.dw.view(R, self.parts, 4 * H, -1).unbind(1)
            interleaved = sum_of_parts(of_parts, *PARTS_FOR_DW[self.inputs.fine], D)
            dw = interleaved.view(R, H, 4, D).transpose(1, 2).reshape(R, 4 * H, D)
        db, *rates = (column.contiguous() for column in sums[..., self.features :].unbind(-1))
        dmu, dgain = rates if self.learned else (None, None)
        return (dw, db), (dmu, dgain, self.dv, self.dn)
