"""The backward pass of a momentum in gate space: from dz to x, W, b_ih and the momentum itself."""

from collections.abc import Sequence

import torch
from torch import Tensor

from . import launch
from .constants import MOMENTUM_THREADS
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
from .sizes import NARROW, Sizes

# Columns of a feature, and which of them hold its parts, for the products that give dx and dW: see `Columns`.
PARTS_FOR_DX = {True: (6, (0, 1, 3)), False: (3, (0, 2))}
PARTS_FOR_DW = {True: (6, (0, 2, 4)), False: (3, (0, 1))}


class MomentumBackward:
    """Goes back through the momentum, one chunk of time at a time, and adds up the gradients."""

    def __init__(
        self,
        run: Launcher,
        i: Inputs,
        size: Sizes,
        moments: Tensor,
        last: tuple[Tensor | None, Tensor | None],
        need_dx: bool,
        room: int,
    ) -> None:
        """moments: saved by the forward pass; last: dv and dn of the last step; room: rows of a chunk."""
        self.run, self.i, self.size, self.moments, self.room = run, i, size, moments, room
        R, B, H, D = size.R, size.B, size.H, size.D
        self.features = D if D <= NARROW else 0
        self.parts = 3 if i.fine else 2  # bfloat16 parts of da
        self.dv, self.dn = (i.x.new_zeros(R, B, 4 * H) if d is None else d.clone() for d in last)
        self.learned = i.mu is not None or i.gain is not None
        # Of each row and gate row: dW of a narrow input, db_ih and, if they are learned, dmu and dgain.
        self.sums = i.x.new_zeros(R, B, H, 4, self.features + (3 if self.learned else 1))
        self.source, self.columns, self.weights = i.x, None, None
        self.dw: Tensor | None = None  # of a wide input: the products of the parts of da and of x
        if need_dx:
            self.weights = input_weights(run, i.w_ih, None, None, size, driven=False, fine=i.fine)
        if not self.features:
            of_input = i._replace(b_hh=None, decay=None, step=1.0)
            self.columns = wide_input(run, of_input, size)
            self.source = projected_input(run, of_input, size, self.columns)

    def add(
        self,
        dz: Tensor,
        dz_low: Tensor | None,
        scales: Tensor,
        steps: tuple[int, int],
        rows: slice,
        dx: Tensor | None,
    ) -> None:
        """Go back through the time steps first to last; rows: theirs among all N; dx: written if given."""
        i, R, H = self.i, self.size.R, self.size.H
        needed = dx is not None or self.columns is not None
        # Rows beyond those of this chunk are zeros, for products over whole groups.
        new = torch.zeros if i.fine else torch.empty
        shape = R, self.room, self.parts, 4 * H
        da = new(shape, dtype=torch.bfloat16, device=i.x.device) if needed else None
        self._go_back(dz, dz_low, scales, steps, da)
        if da is None:
            return
        count = rows.stop - rows.start
        if self.columns is not None:
            self._add_to_dw(da, self.columns[:, rows].expand(R, -1, -1), count)
        if dx is not None:
            assert self.weights is not None
            # Here each part of a row of da is a row of its own.
            products = product(da[:, :count].flatten(1, 2), self.weights.expand(R, -1, -1))
            of_parts = products.view(R, count, self.parts, -1).unbind(2)
            dx[:, rows] = sum_of_parts(of_parts, *PARTS_FOR_DX[i.fine], self.size.D)

    def _go_back(
        self, dz: Tensor, dz_low: Tensor | None, scales: Tensor, steps: tuple[int, int], da: Tensor | None
    ) -> None:
        i, run = self.i, self.run
        R, T, B, N, H, _, _, _ = self.size
        defines = launch.backward_momentum_defines(i, self.size, da is not None)
        kernel = launch.kernel("momentum_backward", i.x.device.index, **defines)
        kernel(
            (-(-B * 4 * H // defines["CHANNELS"] // MOMENTUM_THREADS), R, 1),
            MOMENTUM_THREADS,
            {
                "x": self.source,
                # The projection of a wide input has W and b_ih in it.
                "w_ih": i.w_ih if self.features else None, "b_ih": i.b_ih if self.features else None,
                "decay": i.decay, "mu": i.mu, "gain": i.gain, "saved": self.moments,
                "begins": run.rows.begins, "lengths": run.rows.lengths,
                "dz": dz, "dz_low": dz_low, "scales": scales,
                "dv": self.dv, "dn": self.dn if i.beta is not None else None, "sums": self.sums, "da": da,
                "first": steps[0], "last": steps[1], "room": self.room,
                "T": T, "B": B, "H": H, "N": N, "decays": launch.decay_columns(i),
                "own_x": is_own(self.source, R), "own_w": is_own(i.w_ih, R), "own_bias": is_own(i.b_ih, R),
                "own_mu": is_own(i.mu, R), "own_gain": is_own(i.gain, R),
                **launch.momentum_numbers(i),
            },
        )  # fmt: skip

    def _add_to_dw(self, da: Tensor, columns: Tensor, count: int) -> None:
        # Here the parts of a row of da are beside each other.
        if self.i.fine:
            padded = torch.nn.functional.pad(columns, (0, 0, 0, self.room - count))
            products = torch.cat([product_in_groups(part, padded) for part in da.unbind(2)], 1)
        else:
            products = product(da.flatten(2)[:, :count].mT, columns)
        self.dw = products if self.dw is None else self.dw.add_(products)

    def gradients(self) -> tuple[Sequence[Tensor | None], Sequence[Tensor | None]]:
        """Of w_ih and b_ih; and of mu, gain, v0 and n0."""
        R, H, D = self.size.R, self.size.H, self.size.D
        sums = self.sums.sum(1).transpose(1, 2).reshape(R, 4 * H, -1)
        if self.dw is None:
            dw = sums[..., : self.features].contiguous()
        else:
            of_parts = self.dw.view(R, self.parts, 4 * H, -1).unbind(1)
            interleaved = sum_of_parts(of_parts, *PARTS_FOR_DW[self.i.fine], D)
            dw = interleaved.view(R, H, 4, D).transpose(1, 2).reshape(R, 4 * H, D)
        db, *rates = (column.contiguous() for column in sums[..., self.features :].unbind(-1))
        dmu, dgain = rates if self.learned else (None, None)
        return (dw, db), (dmu, dgain, self.dv, self.dn)
