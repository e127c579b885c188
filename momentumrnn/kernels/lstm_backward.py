"""`momentumrnn::lstm_backward` on a GPU: time in chunks, from the last to the first.

A chunk begins with the gradients dz of its gates. From dz come those of the weights, x and the momentum.
"""

import functools
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import cast

import torch
from torch import Tensor

from . import launch
from .constants import INPUT_BYTES, SPACING, TILE, WARPS
from .inputs import Inputs
from .launch import Launcher, is_own
from .momentum_backward import MomentumBackward
from .operands import (
    ROWS_OF_PRODUCT,
    dense,
    filtered_input,
    prepared,
    product_over_gates,
    product_over_rows,
    weights_for_dx,
)
from .overlap import Overlap
from .sizes import Sizes, backward_low_bytes, cluster_size, sizes_of

# Chunks are cut so that dz takes at most CHUNK_BYTES, but never into more than MAX_CHUNKS.
CHUNK_BYTES, MAX_CHUNKS = 104 << 20, 8
# With Overlap there are at least OVERLAPPED_CHUNKS, if each has OVERLAPPED_STEPS or more.
OVERLAPPED_CHUNKS, OVERLAPPED_STEPS = 3, 150
# A recurrence whose CTAs fill at most this share of the multiprocessors shares none with another kernel.
SHARE_TO_RUN_ALONE = 0.75


def backward(
    grads: Sequence[Tensor | None], saved: Sequence[Tensor], inputs: Inputs, needs: Sequence[bool]
) -> tuple[Tensor, ...]:
    """See `op`."""
    shape_of_x, inputs = inputs.x.shape, prepared(inputs)
    size = sizes_of(inputs)
    if not inputs.x.is_cuda or size.T < 2 * OVERLAPPED_STEPS:
        return _backward(grads, saved, shape_of_x, inputs, size, needs, None)
    overlap = Overlap(inputs.x.device)
    try:
        return _backward(grads, saved, shape_of_x, inputs, size, needs, overlap)
    finally:
        overlap.close()


def _backward(
    grads: Sequence[Tensor | None],
    saved: Sequence[Tensor],
    shape_of_x: Sequence[int],
    inputs: Inputs,
    size: Sizes,
    needs: Sequence[bool],
    overlap: Overlap | None,
) -> tuple[Tensor, ...]:
    given = (dense(None if g is None or g.numel() == 0 else g) for g in grads)
    dy, last_dh, last_dc, last_dz, last_dv, last_dn = given
    y, gates, cells, moments = (cast(Tensor, dense(t)) for t in saved)  # hooks may have moved them
    launcher, in_gate_space, overlapped = Launcher(inputs), inputs.in_gate_space, overlap is not None
    chunks = Chunks(inputs, size, overlapped)
    last = last_dh, last_dc, last_dz
    recurrence = Recurrence(launcher, inputs, size, chunks, (gates, cells), dy, last, overlapped)
    if overlap is not None:
        for k in range(min(2, len(chunks))):
            overlap.begin(k, recurrence)
    # The momentum in gate space has the gradients of w_ih and b_ih.
    need_weights = [
        need and not (in_gate_space and name in ("w_ih", "b_ih"))
        for name, need in zip(Inputs._fields[1:5], needs[1:5], strict=True)
    ]
    weight_gradients = momentum_backward = input_gradient = None
    if any(need_weights):
        weight_gradients = WeightGradients(recurrence, y)
    dx = inputs.x.new_empty(size.R, size.N, inputs.x.shape[2]) if needs[0] else None
    if in_gate_space:
        last_moments = last_dv, last_dn
        momentum_backward = MomentumBackward(
            launcher, inputs, size, moments, last_moments, needs[0], chunks.room
        )
    elif dx is not None:
        input_gradient = InputGradient(recurrence, dx)
    for k in _finished_chunks(chunks, recurrence, overlap):
        if weight_gradients is not None:
            weight_gradients.add(k)
        if momentum_backward is not None:
            momentum_backward.add(
                *recurrence.dz(k), recurrence.scales[k], chunks.steps(k), chunks.rows(k), dx
            )
        if input_gradient is not None:
            input_gradient.add(k)

    dw: list[Tensor | None] = [None] * 4  # of w_ih, w_hh, b_ih and b_hh
    if weight_gradients is not None:
        dw = weight_gradients.gradients(need_weights)
    if input_gradient is not None:
        input_gradient.finish()
    of_momentum: Sequence[Tensor | None] = (None,) * 4  # of mu, gain, v0 and n0
    if momentum_backward is not None:
        (dw[0], dw[2]), of_momentum = momentum_backward.gradients()
    shaped_dx = None if dx is None else dx.view(size.R, *shape_of_x[1:])
    all_gradients = [shaped_dx, *dw, *recurrence.state_gradients[-1], *of_momentum]
    return tuple(
        inputs.x.new_empty(0) if d is None or t is None or not need else _summed_if_shared(t, d)
        for t, d, need in zip(inputs.tensors, all_gradients, needs, strict=True)
    )


def _finished_chunks(chunks: "Chunks", recurrence: "Recurrence", overlap: Overlap | None) -> Iterator[int]:
    """Each chunk, once its recurrence is done. With overlap, that of the next one runs meanwhile."""
    for k in range(len(chunks)):
        if overlap is None:
            recurrence(k)
        else:
            overlap.wait_for(k)
        yield k
        if overlap is not None and k + 2 < len(chunks):
            overlap.begin(k + 2, recurrence)


def _summed_if_shared(tensor: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of a tensor, from those of R replicas: their sum, (1, ...), if they share the tensor."""
    return gradient.sum(0, keepdim=True) if tensor.size(0) < gradient.size(0) else gradient


class Chunks:
    """Time in pieces: chunk k has the steps `steps(k)` and the rows `rows(k)`. Chunk 0 is the last one."""

    def __init__(self, inputs: Inputs, size: Sizes, overlapped: bool) -> None:
        length = chunk_length(size, inputs.in_gate_space, inputs.fine, overlapped)
        self._steps = [(first, min(first + length, size.T)) for first in range(0, size.T, length)][::-1]
        self._begins = [0, *accumulate(inputs.sizes)] if inputs.sizes else range(0, size.N + 1, size.B)
        room = max(rows.stop - rows.start for rows in map(self.rows, range(len(self))))
        # Rows for which a chunk has memory: whole groups, if fine.
        self.room = -(-room // ROWS_OF_PRODUCT) * ROWS_OF_PRODUCT if inputs.fine else room

    def __len__(self) -> int:
        return len(self._steps)

    def steps(self, k: int) -> tuple[int, int]:
        return self._steps[k]

    def rows(self, k: int) -> slice:
        first, last = self._steps[k]
        return slice(self._begins[first], self._begins[last])


def chunk_length(size: Sizes, in_gate_space: bool, fine: bool, overlapped: bool) -> int:
    """Time steps of a chunk; overlapped: two chunks are in memory at a time."""
    bytes_of_dz = size.R * size.N * size.H * (16 if fine else 8) * (1 + overlapped)
    fewest = min(OVERLAPPED_CHUNKS, size.T // OVERLAPPED_STEPS) if overlapped else 1
    length = -(-size.T // min(MAX_CHUNKS, max(fewest, -(-bytes_of_dz // CHUNK_BYTES))))
    return -(-length // SPACING) * SPACING if in_gate_space else length


class Recurrence:
    """The gradients dz of the gates: `recurrence(k)` launches chunk k, which fills `dz(k)` and `scales[k]`.

    state_gradients: those of the state at the end, then of the state before each chunk.
    """

    def __init__(
        self,
        launcher: Launcher,
        inputs: Inputs,
        size: Sizes,
        chunks: Chunks,
        saved: tuple[Tensor, Tensor],
        dy: Tensor | None,
        last: tuple[Tensor | None, Tensor | None, Tensor | None],
        overlapped: bool,
    ) -> None:
        self.launcher, self.inputs, self.size, self.chunks = launcher, inputs, size, chunks
        self.saved, self.dy = saved, dy
        R, B, H, count = size.R, size.B, size.H, len(chunks)
        self._pack_weights()
        # All chunks share one buffer, or two in turn. With fine, product_in_groups also reads the rows that a
        # chunk does not fill. They are 0 and stay 0, because no chunk has fewer rows than the one before it.
        new = functools.partial(
            torch.zeros if inputs.fine else torch.empty, dtype=torch.float16, device=inputs.x.device
        )
        memories = 2 if overlapped else 1
        self._high = new((memories, R, chunks.room, 4 * H)).unbind()
        self._low: Sequence[Tensor | None] = (None,) * memories
        if inputs.fine:
            self._low = new((memories, R, chunks.room, 4 * H)).unbind()
        self.scales = inputs.x.new_empty(count, R, chunks.room).unbind()
        self.all_largest = torch.zeros(count, R, dtype=torch.int32, device=inputs.x.device)
        self.largest = self.all_largest.unbind()  # of the scales of each chunk
        self.state_gradients: list[tuple[Tensor | None, Tensor | None, Tensor | None]] = [last]
        for _ in range(count):
            dz = inputs.x.new_empty(R, B, 4 * H) if inputs.z0 is not None else None
            self.state_gradients.append((inputs.x.new_empty(R, B, H), inputs.x.new_empty(R, B, H), dz))
        C = cluster_size(H)
        defines = launch.lstm_defines(inputs)
        self.kernel = launch.kernel("lstm_backward", inputs.x.device.index, CTAS=C, **defines)
        self.shared = INPUT_BYTES * 32 * WARPS + (backward_low_bytes(C) if inputs.fine else 0)
        ctas = C * R * -(-B // TILE)
        if overlapped and ctas <= SHARE_TO_RUN_ALONE * launch.multiprocessors(inputs.x.device.index):
            self.shared = self.kernel.shared_memory_for_one_cta

    def _pack_weights(self) -> None:
        """Uᵀ in the order of the kernel's registers, and its low parts, if fine."""
        launcher, C, replicas = self.launcher, cluster_size(self.size.H), len(self.inputs.w_hh)
        threads = C * WARPS * -(-C // 2) * 8 * 32
        self.packed = launcher.words(replicas * threads * 4)
        self.packed_low = launcher.words(replicas * threads * 4) if self.inputs.fine else None
        launcher(
            "pack_backward", threads, replicas,
            w_hh=self.inputs.w_hh, packed=self.packed, low=self.packed_low, ctas=C, H=self.size.H,
        )  # fmt: skip

    def dz(self, k: int) -> tuple[Tensor, Tensor | None]:
        """dz of chunk k, (R, room, 4 H interleaved), and its low part, if fine."""
        memory = k % len(self._high)
        return self._high[memory], self._low[memory]

    def __call__(self, k: int) -> None:
        inputs, launcher = self.inputs, self.launcher
        R, T, B, N, H, _, _, tile_steps = self.size
        first, last = self.chunks.steps(k)
        high, low = self.dz(k)
        (last_dh, last_dc, last_dz), (first_dh, first_dc, first_dz) = self.state_gradients[k : k + 2]
        begins, lengths, starts = launcher.rows
        self.kernel(
            (cluster_size(H) * -(-B // TILE), R, 1),
            32 * WARPS,
            {
                "weights": self.packed, "low": self.packed_low,
                "saved_gates": self.saved[0], "saved_cells": self.saved[1], "dy": self.dy,
                "last_dh": last_dh, "last_dc": last_dc, "last_dz": last_dz, "j0": inputs.j0,
                "dz": high, "dz_low": low, "scales": self.scales[k], "largest": self.largest[k],
                "first_dh": first_dh, "first_dc": first_dc, "first_dz": first_dz,
                "begins": begins, "lengths": lengths, "starts": starts,
                "T": T, "first": first, "last": last, "B": B, "H": H, "N": N, "tile_steps": tile_steps,
                "room": self.chunks.room, "every": inputs.every,
                "own_weight": is_own(inputs.w_hh, R), "own_j": is_own(inputs.j0, R),
            },
            self.shared,
        )  # fmt: skip


class WeightGradients:
    """The gradients of U, W and the biases: for each chunk one product of dzᵀ with [h | x | 1]."""

    def __init__(self, recurrence: Recurrence, y: Tensor) -> None:
        self.recurrence, self.y = recurrence, y
        self.launcher, self.inputs = recurrence.launcher, recurrence.inputs
        self.size, self.chunks = recurrence.size, recurrence.chunks
        inputs, size = self.inputs, self.size
        reads_x = inputs.w_ih is not None and not inputs.in_gate_space
        self.features = 0 if inputs.in_gate_space else size.F
        # Without features the kernel reads neither: the drive was given, or the momentum is in gate space.
        self.x, self.largest_x = (
            filtered_input(self.launcher, inputs, size) if reads_x else (inputs.x, inputs.x)
        )
        self.columns = _padded(size.H + self.features + 1)
        zeros_or_empty = torch.zeros if inputs.fine else torch.empty
        shape = size.R, self.chunks.room, self.columns * (1 + inputs.fine)
        self.right = zeros_or_empty(shape, dtype=torch.float16, device=inputs.x.device)
        self.products: list[Tensor] = []

    def add(self, k: int) -> None:
        """The product of chunk k."""
        inputs, recurrence, R, rows = self.inputs, self.recurrence, self.size.R, self.chunks.rows(k)
        count = rows.stop - rows.start
        self.launcher(
            "pack_gradient_operand", count * self.columns // 8, R,
            y=self.y, h0=inputs.h0, x=self.x,
            scales=recurrence.scales[k], largest_scale=recurrence.largest[k], largest_x=self.largest_x,
            packed=self.right, begins=self.launcher.rows.begins,
            before=rows.start, rows=count, room=self.chunks.room,
            T=self.size.T, B=self.size.B, N=self.size.N, H=self.size.H, F=self.features,
            columns=self.columns, fine=inputs.fine,
            own_state=is_own(inputs.h0, R), own_input=is_own(inputs.x, R),
        )  # fmt: skip
        self.products.append(product_over_rows(*recurrence.dz(k), self.right, count, self.columns))

    def gradients(self, needs: Sequence[bool]) -> list[Tensor | None]:
        """Of w_ih, w_hh, b_ih and b_hh, in float32 and in torch's order; those that are needed."""
        inputs, R, H, D = self.inputs, self.size.R, self.size.H, self.size.D
        shapes = (4 * H, D), (4 * H, H), (4 * H,), (4 * H,)
        found = [inputs.x.new_empty(R, *s) if need else None for s, need in zip(shapes, needs, strict=True)]
        dw_ih, dw_hh, db_ih, db_hh = found
        products = self.products[0] if len(self.products) == 1 else torch.stack(self.products)
        self.launcher(
            "finish_weight_gradients", 4 * H * (H + self.features + 1), R,
            products=products, largest_scales=self.recurrence.all_largest, largest_x=self.largest_x,
            dw_hh=dw_hh, dw_ih=dw_ih, db_ih=db_ih, db_hh=db_hh, chunks=len(self.products), R=R, H=H,
            D=0 if inputs.in_gate_space else D, F=self.features,
            columns=self.columns, own_input=is_own(inputs.x, R),
        )  # fmt: skip
        return found


class InputGradient:
    """Fills dx, the gradient of x or of a drive that was given; not for a momentum in gate space."""

    def __init__(self, recurrence: Recurrence, dx: Tensor) -> None:
        self.recurrence, self.dx, self.weights = recurrence, dx, None
        self.launcher, self.inputs = recurrence.launcher, recurrence.inputs
        self.size, self.chunks = recurrence.size, recurrence.chunks
        inputs, size = self.inputs, self.size
        if inputs.w_ih is not None:
            self.weights = weights_for_dx(self.launcher, inputs.w_ih, size, inputs.fine)
        self.products: list[Tensor] = []  # of dz with W, for each chunk, before the filter

    def add(self, k: int) -> None:
        """The part of chunk k."""
        (high, low), size, rows = self.recurrence.dz(k), self.size, self.chunks.rows(k)
        count = rows.stop - rows.start
        if self.weights is not None:
            low_rows = None if low is None else low[:, :count]
            self.products.append(product_over_gates(high[:, :count], low_rows, self.weights[0], size.D))
            return
        self.launcher(
            "unpack_drive_gradient", count * size.H, size.R,
            dz=high, dz_low=low, scales=self.recurrence.scales[k], dx=self.dx,
            before=rows.start, rows=count, room=self.chunks.room, N=size.N, H=size.H,
        )  # fmt: skip

    def finish(self) -> None:
        """Join the products of all chunks, of which the first is the last in time; filter them backwards."""
        if self.weights is None:
            return
        parts = zip(self.recurrence.scales, self.products, strict=True)
        scales = [scale[:, : product.shape[1]] for scale, product in parts]
        whole, factors = (p[0] if len(p) == 1 else torch.cat(p[::-1], 1) for p in (self.products, scales))
        factors, size = factors * self.weights[1], self.size._replace(F=self.size.D)
        decay, step = self.inputs.decay, self.inputs.step
        self.launcher.filter(whole, decay, size, step, v=self.dx, factors=factors, backwards=True)


def _padded(columns: int) -> int:
    """A number of columns for which cuBLAS is quickest: docs/kernels.md has the figures."""
    multiple = 32 if columns <= 288 else 96
    return -(-columns // multiple) * multiple
