"""`momentumrnn::lstm` and its backward on a GPU: which kernels run, on what, in which order.

The kernels are in the .cu files beside this one; docs/kernels.md tells how they work.
"""

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from . import nvrtc
from .inputs import Inputs

WIDEST = 256  # hidden units
TILE = 8  # rows of a cluster, and units of a warp
WARPS = 4  # of a CTA
FURTHER = 3  # slices of 16 columns, at most, by which the input rides on the product with U
NARROW = 15  # features, at most, that `drive_backward` projects itself
SPACING = 8  # steps from one set of kept moments to the next
MANY = 24_000  # units of all rows, from which on a thread of `drive_backward` has two channels
INPUTS = 144  # bytes of shared memory of a thread of the backward pass, for inputs on their way
# Bytes of the gates' gradients that are in memory at a time, as long as that takes at most so many chunks.
CHUNK, CHUNKS = 104 << 20, 8
# The rest of the backward pass runs beside the recurrence, in so many chunks, of at least so many steps; and
# not on the same multiprocessors, if this takes at most this share of them.
CHUNKS_BESIDE, STEPS_BESIDE, ALONE = 3, 150, 0.75
# Rows that one product adds up, if fine: tensor cores cut sums off, always towards 0.
GROUP = 1024
LOW = 1 / 2048  # the weight of low parts


def ctas(hidden_size: int) -> int:
    """CTAs of a cluster."""
    return -(-hidden_size // (TILE * WARPS))


def kept(inputs: Inputs) -> tuple[int, int, int]:
    """Lengths of the buffers, of 32 bits, that the forward pass leaves: gates, cells and moments."""
    size = _sizes(inputs)
    threads = size.R * ctas(size.H) * WARPS * 32 * (2 if inputs.fine else 1)
    moments = size.R * -(-size.T // SPACING) * size.B * 4 * size.H * (1 if inputs.beta is None else 2)
    tiles = -(-size.B // TILE)
    cells = (size.total + tiles) * threads
    return 4 * size.total * threads, cells, moments if inputs.in_gate_space else 0


def further(features: int, fine: bool = False) -> int:
    """Slices of the columns of so many input features and of ones; 0 if those are too many."""
    slices = -(-_width(features, fine) // 16)
    return slices if slices <= FURTHER else 0


def _width(features: int, fine: bool) -> int:
    """Columns of so many features and of ones, see `Columns` in around.cu."""
    return 6 * features + 3 if fine else 3 * features + 2


def _eights(n: int) -> int:
    """The next multiple of 8."""
    return -(-n // 8) * 8


class Sizes(NamedTuple):
    """Of a call: replicas, steps, rows of the first step and of all, units, input features without and with
    the filtered 1, steps of all tiles."""

    R: int
    T: int
    B: int
    N: int
    H: int
    D: int
    F: int
    total: int


class Rows(NamedTuple):
    """Of packed rows: where a step's begin (T + 1), the steps of a row (B), of all tiles before one."""

    begins: Tensor | None = None
    lengths: Tensor | None = None
    starts: Tensor | None = None


def forward(inputs: Inputs, keep: bool) -> tuple[Tensor, ...]:
    """See `op`; all in float32."""
    i = _prepared(inputs)
    size, fine, driven = _sizes(i), i.fine, i.in_gate_space
    R, T, B, N, H, D, F, total = size
    run = _Launcher(i)
    gates, cells, moments = (run.new(length if keep else 0) for length in kept(i))
    z, v, n = (i.x.new_empty(0 if t is None else (R, B, 4 * H)) for t in (i.z0, i.v0, i.n0))
    drive = extra = None
    # What comes to a momentum in gate space is W x + b_ih alone.
    bias = i.b_hh if driven or i.w_ih is None else None
    given = i._replace(b_hh=None, decay=None, step=1.0) if driven else i
    slices = further(F, fine) if i.w_ih is not None else 0
    if i.w_ih is None:
        drive = i.x.view(len(i.x), N, 4, H).mT.contiguous()
    elif slices:
        extra = _spread(run, given, size, slices)
    else:
        drive = _projected(run, given, size)
    C = ctas(H)
    weights = [given.w_hh, given.w_ih, given.b_ih, given.b_hh]
    each = [_each(t, R) for t in weights]
    replicas = R if any(each) else 1
    threads = C * WARPS * (2 * C + slices) * 64
    packed = run.new(replicas * threads * 4)
    low = run.new(replicas * C * WARPS * 2 * C * 64 * 4) if fine else None
    sizes = C, slices, H, D, given.decay is not None, driven
    run("pack_forward", threads, replicas, *weights, packed, low, *sizes, *each)
    y = i.x.new_empty(R, *inputs.x.shape[1:-1], H)  # no view, so that it may be written to
    h, c = i.x.new_empty(R, B, H), i.x.new_empty(R, B, H)
    h0, c0 = _alike(i.h0, i.c0)
    v0, n0 = i.v0, i.n0
    if v0 is not None and n0 is not None:
        v0, n0 = _alike(v0, n0)
    kind = _kind(i)
    passed = (False, True) if D <= NARROW else (True,)
    drives = tuple(tuple(_drive_kind(i, size, p).items()) for p in passed) if driven else ()
    _ready(i.x.device.index, C, slices, tuple(_moment(i).items()), drives, **kind)
    if i.x.is_cuda:
        _stream(i.x.device.index)  # for the backward pass, which may be captured
    kernel = _kernel("lstm_forward", i.x.device.index, CTAS=C, EXTRA=slices, KEEP=keep, **_moment(i), **kind)
    momentum = [i.decay, i.mu, i.gain, v0, n0, *(t if len(t) else None for t in (v, n)), moments]
    own = i.x if drive is None else drive, bias, h0, i.z0, i.j0, i.mu, i.gain, v0
    kernel(
        (C * -(-B // TILE), R, 1), 32 * WARPS,
        [packed, low, extra, drive, bias, h0, c0, i.z0, i.j0, y, h, c, z, *momentum, gates, cells, *run.rows,
         T, B, H, N, total, i.every, _decays(i), int(replicas > 1), *(_each(t, R) for t in own),
         *_numbers(i)],
        8192 * C if fine else 0,
    )  # fmt: skip
    return y, h, c, z, v, n, gates, cells, moments


def backward(
    grads: Sequence[Tensor | None], saved: Sequence[Tensor], inputs: Inputs, needs: Sequence[bool]
) -> tuple[Tensor, ...]:
    """See `op`. Time in chunks: of each the gradients of its gates, then what they give to the weights."""
    i = _prepared(inputs)
    if not i.x.is_cuda or _sizes(i).T < 2 * STEPS_BESIDE:
        return _backward(grads, saved, inputs, i, needs, None)
    beside = _Beside(i.x.device)
    try:
        return _backward(grads, saved, inputs, i, needs, beside)
    finally:
        beside.close()


def _backward(
    grads: Sequence[Tensor | None],
    saved: Sequence[Tensor],
    inputs: Inputs,
    i: Inputs,
    needs: Sequence[bool],
    beside: "_Beside | None",
) -> tuple[Tensor, ...]:
    dy, dh, dc, d_z, dv, dn = map(_dense, (None if g is None or g.numel() == 0 else g for g in grads))
    y, gates, cells, moments = (cast(Tensor, _dense(t)) for t in saved)  # hooks may have moved them
    size, fine, extrapolated, driven = _sizes(i), i.fine, i.z0 is not None, i.in_gate_space
    R, T, B, N, H, D, _, total = size
    F = 0 if driven else size.F  # features of the product for the weights
    C, run, each_x = ctas(H), _Launcher(i), _each(i.x, R)
    to_x, to_weights = needs[0], any(needs[2:5:2] if driven else needs[1:5])

    tiles, replicas = -(-C // 2), len(i.w_hh)
    threads = C * WARPS * tiles * 8 * 32
    packed, low = run.new(replicas * threads * 4), run.new(replicas * threads * 4) if fine else None
    run("pack_backward", threads, replicas, i.w_hh, packed, low, C, H)
    clusters = R * -(-B // TILE)
    length = _chunk(size, driven, fine, beside is not None)
    firsts = range((T - 1) // length * length, -1, -length)
    begins = [0, *accumulate(i.sizes)] if i.sizes else range(0, N + 1, B)
    room = max(begins[min(t + length, T)] - begins[t] for t in firsts)
    room = -(-room // GROUP) * GROUP if fine else room
    # All chunks use the same memory, or every second one. If fine, what a chunk does not fill should be
    # zeros, see `_grouped`: the first one has the fewest rows.
    halves = functools.partial(torch.zeros if fine else torch.empty, dtype=torch.float16, device=i.x.device)
    memories = 1 if beside is None else 2
    dz = halves(memories, R, room, 4 * H).unbind()
    dz_low = halves(memories, R, room, 4 * H).unbind() if fine else (None,) * memories
    scales = i.x.new_empty(len(firsts), R, room).unbind()
    scale_tops = torch.zeros(len(firsts), R, dtype=torch.int32, device=i.x.device)
    tops = scale_tops.unbind()
    states = [(dh, dc, d_z)]
    for _ in firsts:
        z = i.x.new_empty(R, B, 4 * H) if extrapolated else None
        states.append((i.x.new_empty(R, B, H), i.x.new_empty(R, B, H), z))
    kernel = _kernel("lstm_backward", i.x.device.index, CTAS=C, **_kind(i))
    shared = INPUTS * 32 * WARPS + (16384 * tiles if fine else 0)
    if beside is not None and C * clusters <= ALONE * _multiprocessors(i.x.device.index):
        shared = kernel.alone

    def recur(k: int) -> None:
        """The recurrence of a chunk."""
        first, memory = firsts[k], k % memories
        kernel(
            (C * clusters // R, R, 1), 32 * WARPS,
            [packed, low, gates, cells, dy, *states[k], i.j0, dz[memory], dz_low[memory], scales[k], tops[k],
             *states[k + 1], *run.rows, T, first, min(first + length, T), B, H, N, total, room, i.every,
             _each(i.w_hh, R), _each(i.j0, R)],
            shared,
        )  # fmt: skip

    if beside is not None:
        for k in range(min(2, len(firsts))):
            beside.begin(k, recur)
    v = x_tops = i.x  # of a drive that was given neither is read
    if to_weights and i.w_ih is not None and not driven:
        v, x_tops = _filtered(run, i, size)
    columns = _padded(H + F + 1)
    woven = power = None
    if to_x and i.w_ih is not None and not driven:
        woven, power = _woven(run, i.w_ih, size, fine)
    dx = i.x.new_empty(R, N, i.x.shape[2]) if to_x else i.x
    behind = _Behind(run, i, size, moments, (dv, dn), needs, room) if driven else None
    products, dxs = [], []
    right = halves(R, room, columns * (1 + fine)) if to_weights else None
    for k, first in enumerate(firsts):
        if beside is None:
            recur(k)
        else:
            beside.join(k)
        last = min(first + length, T)
        before, rows = begins[first], begins[last] - begins[first]
        high, rest = dz[k % memories], dz_low[k % memories]
        if right is not None:
            run("operand", rows * columns // 8, R, y, i.h0, v, scales[k], tops[k], x_tops, right,
                run.rows.begins, before, rows, room, T, B, N, H, F, columns, fine, _each(i.h0, R),
                each_x)  # fmt: skip
            products.append(_over_rows(high, rest, right, rows, columns))
        if behind is not None:
            behind.add(high, rest, scales[k], first, last, before, rows, dx if to_x else None)
        elif to_x and i.w_ih is None:
            run("unweave", rows * H, R, high, rest, scales[k], dx, before, rows, room, N, H)
        elif woven is not None:
            dxs.append(_by_columns(high[:, :rows], None if rest is None else rest[:, :rows], woven, D))
        if beside is not None and k + 2 < len(firsts):
            beside.begin(k + 2, recur)
    dh, dc, d_z = states[-1]

    found: list[Tensor | None] = [None] * 5
    if to_weights:
        shapes = (4 * H, D), (4 * H, H), (4 * H,), (4 * H,)
        made = [need and not (driven and n % 2 == 0) for n, need in enumerate(needs[1:5])]
        found[1:] = [i.x.new_empty(R, *s) if m else None for s, m in zip(shapes, made, strict=True)]
        _, dw_ih, dw_hh, db_ih, db_hh = found
        parts = products[0] if len(products) == 1 else torch.stack(products)
        run("finish", 4 * H * (H + F + 1), R, parts, scale_tops, x_tops, dw_hh, dw_ih, db_ih, db_hh,
            len(products), R, H, 0 if driven else D, F, columns, each_x)  # fmt: skip
    if power is not None:
        of_rows = [scale[:, : part.shape[1]] for scale, part in zip(scales, dxs, strict=True)]
        parts, factors = (p[0] if len(p) == 1 else torch.cat(p[::-1], 1) for p in (dxs, of_rows))
        run.filter(parts, i.decay, size._replace(F=D), i.step, v=dx, factors=factors * power, backwards=True)
    found[0] = dx.view(R, *inputs.x.shape[1:]) if to_x else None
    more: Sequence[Tensor | None] = (None,) * 4
    if behind is not None:
        found[1], found[3], *more = behind.found()
    every = [*found, dh, dc, d_z, *more]
    return tuple(
        i.x.new_empty(0)
        if d is None or t is None or not need
        else d.sum(0, keepdim=True)
        if len(t) < R
        else d
        for t, d, need in zip(i.tensors, every, needs, strict=True)
    )


class _Beside:
    """A second stream, for the recurrences of chunks, while the rest goes on in the current one.

    Memory that a recurrence reads or writes must be there when the first begins, and stay until the end. All
    calls on a device share the stream: while one is captured in a CUDA graph, no other thread can run one.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream, self.here = _stream(device.index), torch.cuda.current_stream(device)
        self.events: list[torch.cuda.Event] = []

    def begin(self, k: int, recur: Callable[[int], None]) -> None:
        """A recurrence, when those before are done; but for the second one, all that goes on here, too."""
        if k != 1:
            self.stream.wait_stream(self.here)
        with torch.cuda.stream(self.stream):
            recur(k)
        self.events.append(self.stream.record_event())

    def join(self, k: int) -> None:
        """What comes next here waits for a recurrence."""
        self.here.wait_event(self.events[k])

    def close(self) -> None:
        """Waits for all that has begun, so that memory can be given back."""
        if self.events:
            self.here.wait_event(self.events[-1])


@functools.cache
def _stream(device: int) -> torch.cuda.Stream:
    """Of high priority: there the recurrences run, for which all else waits."""
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


class _Behind:
    """The backward of a momentum in gate space, chunk by chunk: what dz gives to x, W, b_ih and itself."""

    def __init__(
        self,
        run: "_Launcher",
        i: Inputs,
        size: Sizes,
        moments: Tensor,
        last: tuple[Tensor | None, Tensor | None],
        needs: Sequence[bool],
        room: int,
    ) -> None:
        R, _, B, _, H, D, _, _ = self.size = size
        self.run, self.i, self.moments, self.room = run, i, moments, room
        self.features = D if D <= NARROW else 0
        self.parts = 3 if i.fine else 2
        self.carried = [i.x.new_zeros(R, B, 4 * H) if d is None else d.clone() for d in last]
        self.learned = i.mu is not None or i.gain is not None
        self.sums = i.x.new_zeros(R, B, H, 4, self.features + (3 if self.learned else 1))
        self.source, self.left, self.right = i.x, None, None
        self.dw: Tensor | None = None  # of parts by columns
        if needs[0]:
            self.right = _split_weights(run, i.w_ih, None, None, size, False, i.fine)
        if not self.features:
            given = i._replace(b_hh=None, decay=None, step=1.0)
            self.left = _columns(run, given, size)
            self.source = _projected(run, given, size, self.left)

    def add(
        self, dz: Tensor, dz_low: Tensor | None, scale: Tensor, first: int, last: int, before: int, rows: int,
        dx: Tensor | None,
    ) -> None:  # fmt: skip
        R, T, B, N, H, D, _, _ = self.size
        i, run, room, fine = self.i, self.run, self.room, self.i.fine
        needed = dx is not None or self.left is not None
        # Rows beyond those of this chunk are zeros, for products over whole groups.
        new = torch.zeros if fine else torch.empty
        shape = R, room, self.parts, 4 * H
        da = new(shape, dtype=torch.bfloat16, device=i.x.device) if needed else None
        kind = _drive_kind(i, self.size, da is not None)
        kernel = _kernel("drive_backward", i.x.device.index, **kind)
        dv, dn = self.carried
        # a that was projected has its bias in it.
        weights = [i.w_ih, i.b_ih] if self.features else [None, None]
        own = (_each(t, R) for t in (self.source, i.w_ih, i.b_ih, i.mu, i.gain))
        kernel(
            (-(-B * 4 * H // kind["CHANNELS"] // 128), R, 1), 128,
            [self.source, *weights, i.decay, i.mu, i.gain, self.moments, *run.rows[:2], dz, dz_low, scale,
             dv, dn if i.beta is not None else None, self.sums, da, first, last, room,
             T, B, H, N, _decays(i), *own, *_numbers(i)],
        )  # fmt: skip
        if da is None:
            return
        # Parts are beside each other for products over rows, and rows of their own for those over channels.
        if self.left is not None:
            left = self.left[:, before : before + rows].expand(R, -1, -1)
            if fine:
                left = torch.nn.functional.pad(left, (0, 0, 0, room - rows))
                found = torch.cat([_grouped(part, left) for part in da.unbind(2)], 1)
            else:
                found = _product(da.flatten(2)[:, :rows].mT, left)
            self.dw = found if self.dw is None else self.dw.add_(found)
        if dx is not None:
            assert self.right is not None
            found = _product(da[:, :rows].flatten(1, 2), self.right.expand(R, -1, -1))
            each, columns = (6, (0, 1, 3)) if fine else (3, (0, 2))
            found = found.view(R, rows, self.parts, -1)
            dx[:, before : before + rows] = _parts(found.unbind(2), each, columns, D)

    def found(self) -> tuple[Tensor | None, ...]:
        """The gradients of w_ih, b_ih, mu, gain, v0 and n0."""
        R, _, _, _, H, D, _, _ = self.size
        sums = self.sums.sum(1).transpose(1, 2).reshape(R, 4 * H, -1)
        if self.dw is None:
            dw = sums[..., : self.features].contiguous()
        else:
            each, columns = (6, (0, 2, 4)) if self.i.fine else (3, (0, 1))
            woven = _parts(self.dw.view(R, self.parts, 4 * H, -1).unbind(1), each, columns, D)
            dw = woven.view(R, H, 4, D).transpose(1, 2).reshape(R, 4 * H, D)
        db, *rates = (one.contiguous() for one in sums[..., self.features :].unbind(-1))
        dmu, dgain = rates if self.learned else (None, None)
        return dw, db, dmu, dgain, *self.carried


def _moment(i: Inputs) -> dict[str, int]:
    """Which momentum in gate space, as the kernels number them, 0 for none; whether it has a table."""
    number = 0 if not i.in_gate_space else 1 if i.beta is None else 2 if i.eps_in_sqrt else 3
    return {"MOMENT": number, "TABLE": i.decay is not None and number > 0}


def _kind(i: Inputs) -> dict[str, int]:
    return {"FINE": i.fine, "PACKED": bool(i.sizes), "EXTRAPOLATED": i.z0 is not None}


def _drive_kind(i: Inputs, size: Sizes, passed: bool) -> dict[str, int]:
    return {
        "FEATURES": size.D if size.D <= NARROW else 0,
        **_moment(i),
        "PACKED": bool(i.sizes),
        "LEARNED": i.mu is not None or i.gain is not None,
        "PASSED": passed,
        "FINE": i.fine,
        "CHANNELS": 2 if size.R * size.B * size.H >= MANY else 1,
    }


def _decays(i: Inputs) -> int:
    return 1 if i.decay is None else i.decay.shape[1]


def _numbers(i: Inputs) -> list[float]:
    """Of a momentum in gate space."""
    beta = i.beta or 0.0
    return [i.step, beta, 1 - beta, i.eps]


def _sizes(i: Inputs) -> Sizes:
    if i.sizes:
        T, B, N = len(i.sizes), i.sizes[0], sum(i.sizes)
        total = sum(-(-rows // TILE) for rows in i.sizes)
    else:
        B = i.h0.shape[1]
        T = i.x.shape[1] if i.x.dim() == 4 else i.x.shape[1] // B  # before and after `_prepared`
        N, total = T * B, T * -(-B // TILE)
    D = 0 if i.w_ih is None else i.x.shape[-1]
    filtered = i.decay is not None and i.b_ih is not None and not i.in_gate_space
    return Sizes(i.replicas, T, B, N, i.w_hh.shape[2], D, D + int(filtered), total)


def _prepared(i: Inputs) -> Inputs:
    """The inputs, checked, dense, and x as (R, N, D)."""
    tensors = *i.tensors, i.j0, i.decay
    for t in tensors:
        if t is not None and (t.device != i.x.device or (t.is_cuda and t.dtype != torch.float32)):
            raise TypeError(f"expected float32 on {i.x.device}, got {t.dtype} on {t.device}")
    if i.replicas > 65535:
        raise ValueError(f"expected at most 65535 replicas, got {i.replicas}")
    dense = Inputs(*map(_dense, tensors), *i[len(tensors) :])  # type: ignore[arg-type]
    return dense if i.sizes else dense._replace(x=dense.x.flatten(1, 2))


def _chunk(size: Sizes, driven: bool, fine: bool, beside: bool) -> int:
    """Steps of which the gates' gradients are in memory at a time; beside: two such chunks are."""
    total = size.R * size.N * size.H * (16 if fine else 8) * (1 + beside)
    least = min(CHUNKS_BESIDE, size.T // STEPS_BESIDE) if beside else 1
    length = -(-size.T // min(CHUNKS, max(least, -(-total // CHUNK))))
    return -(-length // SPACING) * SPACING if driven else length


def _padded(columns: int) -> int:
    """For which cuBLAS is quickest, docs/kernels.md has the figures."""
    multiple = 32 if columns <= 288 else 96
    return -(-columns // multiple) * multiple


def _filtered(run: "_Launcher", i: Inputs, size: Sizes) -> tuple[Tensor, Tensor]:
    """The momentum's drive of x, and the largest entry of each feature."""
    v = i.x if i.decay is None else i.x.new_empty(len(i.x), size.N, size.F)
    tops = torch.zeros(len(i.x), size.F, dtype=torch.int32, device=i.x.device)
    run.filter(i.x, i.decay, size, i.step, v=None if v is i.x else v, largest=tops)
    return v, tops


def _spread(run: "_Launcher", i: Inputs, size: Sizes, slices: int) -> Tensor:
    """The drive of a narrow input as further columns of the product with U."""
    _, T, B, N, _, _, F, total = size
    v = i.x
    if i.decay is not None:
        v = i.x.new_empty(len(i.x), N, F)
        run.filter(i.x, i.decay, size, i.step, v=v)
    extra = run.new(len(i.x) * total * slices * 64)
    threads = T * -(-B // TILE) * TILE * slices
    run("spread", threads, len(i.x), v, extra, *run.rows, T, B, N, total, F, slices, i.fine)
    return extra


def _columns(run: "_Launcher", i: Inputs, size: Sizes) -> Tensor:
    """A wide input in bfloat16 columns, (R or 1, N, width)."""
    width = _eights(_width(size.F, i.fine))
    left = torch.empty(len(i.x), size.N, width, dtype=torch.bfloat16, device=i.x.device)
    run.filter(i.x, i.decay, size, i.step, packed=left, width=width)
    return left


def _projected(run: "_Launcher", i: Inputs, size: Sizes, left: Tensor | None = None) -> Tensor:
    """The drive of a wide input with all biases, (R, N, H, 4), by a product of its own; left: its columns."""
    left = _columns(run, i, size) if left is None else left
    right = _split_weights(run, i.w_ih, i.b_ih, i.b_hh, size, i.decay is not None, i.fine)
    return _product(*_broadcast(left, right.mT))


def _split_weights(
    run: "_Launcher",
    w_ih: Tensor | None,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    size: Sizes,
    driven: bool,
    fine: bool,
) -> Tensor:
    """W and biases in bfloat16 columns, (R or 1, 4 H woven, width)."""
    weights, width = [w_ih, b_ih, b_hh], _eights(_width(size.F, fine))
    each = [_each(t, size.R) for t in weights]
    replicas = size.R if any(each) else 1
    right = torch.empty(replicas, 4 * size.H, width, dtype=torch.bfloat16, device=run.device)
    sizes = size.H, size.D, driven, width, fine
    run("split_weights", 4 * size.H * width // 2, replicas, *weights, right, *sizes, *each)
    return right


def _woven(run: "_Launcher", w_ih: Tensor, size: Sizes, fine: bool) -> tuple[Tensor, Tensor]:
    """W in halves for dz W, over a power of two, and that power, (R, 1); columns are padded in memory."""
    columns = _eights(size.D)
    shape = len(w_ih), 4 * size.H, columns * (1 + fine)
    woven = torch.empty(shape, dtype=torch.float16, device=w_ih.device)
    largest = torch.linalg.vector_norm(w_ih, float("inf"), (1, 2))
    power = torch.empty_like(largest)
    run("weave", 4 * size.H * columns, len(w_ih), w_ih, largest, woven, power, size.H, size.D, columns, fine)
    return woven.expand(size.R, -1, -1), power.view(-1, 1)


def _over_rows(dz: Tensor, dz_low: Tensor | None, right: Tensor, rows: int, columns: int) -> Tensor:
    """dzᵀ right in float32; with low parts, beside the high ones in `right`, from three products."""
    if dz_low is None:
        return _product(dz[:, :rows].mT, right[:, :rows])
    both, other = _grouped(dz, right), _grouped(dz_low, right[..., :columns])
    return torch.add(both[..., :columns], both[..., columns:] + other, alpha=LOW)


def _by_columns(dz: Tensor, dz_low: Tensor | None, woven: Tensor, features: int) -> Tensor:
    """dz W in float32; with low parts, beside the high ones in `woven`, from three products."""
    if dz_low is None:
        return _product(dz, woven[..., :features])
    half = woven.shape[2] // 2
    both, other = _product(dz, woven), _product(dz_low, woven[..., :features])
    return torch.add(both[..., :features], both[..., half : half + features] + other, alpha=LOW)


def _grouped(a: Tensor, b: Tensor) -> Tensor:
    """aᵀ b over all rows, (R, room, ...), group by group."""
    groups = a.shape[1] // GROUP
    if groups == 1:
        return _product(a.mT, b)
    a, b = (t.reshape(-1, GROUP, t.shape[2]) for t in (a, b))
    product = _product(a.mT, b)
    return product.view(-1, groups, *product.shape[1:]).sum(1)


def _parts(products: Sequence[Tensor], each: int, columns: Sequence[int], features: int) -> Tensor:
    """Of products of parts by columns in parts those that count, added up."""
    found = [
        product[..., column::each][..., :features]
        for p, product in enumerate(products)
        for column in columns[: len(columns) - p]
    ]
    return functools.reduce(torch.add, found[::-1])


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a b in float32, of 16-bit operands."""
    if len(a) == 1:
        return torch.mm(a[0], b[0], out_dtype=torch.float32).unsqueeze(0)
    return torch.bmm(a, b, out_dtype=torch.float32)


def _broadcast(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    R = max(len(a), len(b))
    return a.expand(R, -1, -1), b.expand(R, -1, -1)


def _dense(t: Tensor | None) -> Tensor | None:
    """Contiguous, and from a multiple of 16 bytes on: kernels read up to four numbers at a time."""
    if t is None:
        return None
    t = t.contiguous()
    return t if t.data_ptr() % 16 == 0 else t.clone()


def _alike(h0: Tensor, c0: Tensor) -> tuple[Tensor, Tensor]:
    """Both shared or neither."""
    if h0.shape[0] == c0.shape[0]:
        return h0, c0
    R = max(len(h0), len(c0))
    return h0.expand(R, -1, -1).contiguous(), c0.expand(R, -1, -1).contiguous()


def _each(t: Tensor | None, R: int) -> int:
    return int(R > 1 and t is not None and t.shape[0] == R)


class _Launcher:
    """Launches the kernels of around.cu on the device of a tensor, for the rows of a call."""

    def __init__(self, i: Inputs) -> None:
        self.device, self.fine = i.x.device, i.fine
        self.rows = _rows(i.sizes, self.device) if i.sizes else Rows()

    def new(self, length: int) -> Tensor:
        return torch.empty(length, dtype=torch.int32, device=self.device)

    def __call__(self, name: str, threads: int, replicas: int, *args: nvrtc.Argument) -> None:
        """A thread for each of so many elements of each replica."""
        _kernel(name, self.device.index)((-(-threads // 256), replicas, 1), 256, args)

    def filter(
        self,
        x: Tensor,
        decay: Tensor | None,
        size: Sizes,
        step: float,
        *,
        v: Tensor | None = None,
        packed: Tensor | None = None,
        largest: Tensor | None = None,
        factors: Tensor | None = None,
        backwards: bool = False,
        width: int = 0,
    ) -> None:
        _, T, B, N, _, D, F, _ = size
        columns = 8 if B * F <= 2048 else 32
        decays = 1 if decay is None else decay.shape[1]
        sizes = T, B, N, D, F, decays, backwards, columns, width, self.fine
        grid = -(-B * F // columns), len(x), 1
        args = [x, decay, factors, v, packed, largest, *self.rows[:2], *sizes, step]
        _kernel("filter", self.device.index)(grid, 512, args)


@functools.cache
def _multiprocessors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _rows(sizes: Sequence[int], device: torch.device) -> Rows:
    """Packed rows as the kernels know them."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "packed sequences can't be captured in a CUDA graph: their lengths are read on the CPU"
        )
    falling = np.asarray(sizes)
    begins = np.concatenate([[0], falling.cumsum()])
    lengths = np.searchsorted(-falling, -np.arange(falling[0]), side="left")
    of_tiles = lengths[::TILE]
    starts = of_tiles.cumsum() - of_tiles
    table = torch.from_numpy(np.concatenate([begins, lengths, starts]).astype(np.int32))
    if device.type == "cuda":
        table = table.pin_memory().to(device, non_blocking=True)  # the CPU should not wait for the GPU
    return Rows(*torch.split_with_sizes(table, [len(begins), len(lengths), len(starts)]))


def check(device: int) -> None:
    """Compiles and loads the smaller kernels, or raises why they can't be."""
    _kernel("filter", device)


@functools.cache
def _ready(
    device: int, n: int, slices: int, moment: nvrtc.Defines, drives: tuple[nvrtc.Defines, ...], **kind: int
) -> None:
    """Loads all kernels of a layer, before each is needed: while a CUDA graph is captured none can be."""
    for keep in (False, True):
        _kernel("lstm_forward", device, CTAS=n, EXTRA=slices, KEEP=keep, **dict(moment), **kind)
    _kernel("lstm_backward", device, CTAS=n, **kind)
    for drive in drives:
        _kernel("drive_backward", device, **dict(drive))


@functools.cache
def source(name: str) -> str:
    """The source of a kernel's file, complete."""
    folder = Path(__file__).parent
    return "\n".join((folder / file).read_text(encoding="utf-8") for file in ("ptx.cu", f"{name}.cu"))


@functools.cache
def _kernel(name: str, device: int, **defines: int) -> nvrtc.Kernel:
    file = name if name.startswith("lstm") else "drive" if name.startswith("drive") else "around"
    return nvrtc.load(source(file), name, tuple(sorted(defines.items())), device)
