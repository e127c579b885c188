"""`momentumrnn::lstm` and its backward on a GPU: which kernels run, on what, in which order.

The kernels are in the .cu files beside this one; docs/kernels.md tells how they work.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from . import nvrtc

WIDEST = 256  # hidden units
TILE = 8  # rows of a cluster, and units of a warp
WARPS = 4  # of a CTA
FURTHER = 3  # slices of 16 columns, at most, by which the input rides on the product with U
INPUTS = 144  # bytes of shared memory of a thread of the backward pass, for inputs on their way
# Bytes of the gates' gradients that are in memory at a time, as long as that takes at most so many chunks.
CHUNK, CHUNKS = 72 << 20, 8


def ctas(hidden_size: int) -> int:
    """CTAs of a cluster."""
    return -(-hidden_size // (TILE * WARPS))


def kept(replicas: int, steps: int, rows: int, hidden_size: int) -> tuple[int, int]:
    """Lengths of the buffers, of int32, that the forward pass leaves: gates and cells."""
    threads = replicas * -(-rows // TILE) * -(-hidden_size // TILE) * 32
    return 4 * steps * threads, (steps + 1) * threads


def further(features: int) -> int:
    """Slices of columns of so many input features, 3 a feature and 2 of ones; 0 if those are too many."""
    slices = -(-(3 * features + 2) // 16)
    return slices if slices <= FURTHER else 0


class Sizes(NamedTuple):
    """Of a call: replicas, steps, rows, units, input features without and with the filtered 1."""

    R: int
    T: int
    B: int
    H: int
    D: int
    F: int


def forward(
    x: Tensor,
    w_ih: Tensor | None,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    h0: Tensor,
    c0: Tensor,
    decay: Tensor | None,
    step: float,
    keep: bool,
) -> tuple[Tensor, ...]:
    """See `op`; all in float32."""
    inputs = [x, w_ih, w_hh, b_ih, b_hh, h0, c0]
    x, w_ih, w_hh, b_ih, b_hh, h0, c0 = map(_dense, inputs)  # type: ignore[assignment]
    decay = _dense(decay)
    size = _sizes(x, w_ih, w_hh, b_ih, b_hh, h0, c0, decay)
    R, T, B, H, D, F = size
    run = _Launcher(x)
    drive = extra = None
    slices = further(F) if w_ih is not None else 0
    if w_ih is None:
        drive = x.view(len(x), T, B, 4, H).mT.contiguous()
    elif slices:
        extra = _spread(run, x, size, decay, step, slices)
    else:
        drive = _projected(run, x, w_ih, b_ih, b_hh, size, decay, step)
    n = ctas(H)
    weights = [w_hh, w_ih, b_ih, b_hh]
    each = [_each(t, R) for t in weights]
    replicas = R if any(each) else 1
    packed = run.new(replicas * n * WARPS * (2 * n + slices) * 64 * 4)
    run("pack_forward", len(packed) // replicas // 4, replicas, *weights, packed, n, slices, H, D,
        decay is not None, *each)  # fmt: skip
    y = x.new_empty(R, T, B, H)
    h, c = x.new_empty(R, B, H), x.new_empty(R, B, H)
    gates, cells = (run.new(length if keep else 0) for length in kept(R, T, B, H))
    bias = b_hh if w_ih is None else None
    h0, c0 = _alike(h0, c0)
    _ready(x.device.index, n, slices)
    kernel = _kernel("lstm_forward", x.device.index, CTAS=n, EXTRA=slices, KEEP=keep)
    grid = n * -(-B // TILE), R, 1
    shared = int(replicas > 1), _each(x if drive is None else drive, R), _each(bias, R), _each(h0, R)
    kernel(grid, 32 * WARPS,
           [packed, extra, drive, bias, h0, c0, y, h, c, gates, cells, T, B, H, *shared])  # fmt: skip
    return y, h, c, gates, cells


def backward(
    dy: Tensor | None,
    dh: Tensor | None,
    dc: Tensor | None,
    y: Tensor,
    gates: Tensor,
    cells: Tensor,
    x: Tensor,
    w_ih: Tensor | None,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    h0: Tensor,
    c0: Tensor,
    decay: Tensor | None,
    step: float,
    needs: Sequence[bool],
) -> tuple[Tensor, ...]:
    """See `op`. Time in chunks: of each the gradients of its gates, then what they give to the weights."""
    inputs = [x, w_ih, w_hh, b_ih, b_hh, h0, c0]
    x, w_ih, w_hh, b_ih, b_hh, h0, c0 = map(_dense, inputs)  # type: ignore[assignment]
    dy, dh, dc, decay = map(_dense, (dy, dh, dc, decay))
    y, gates, cells = y.contiguous(), gates.contiguous(), cells.contiguous()  # hooks may have moved them
    size = _sizes(x, w_ih, w_hh, b_ih, b_hh, h0, c0, decay)
    R, T, B, H, D, F = size
    n, run, each_x = ctas(H), _Launcher(x), _each(x, R)
    to_x, to_weights = needs[0], any(needs[1:5])

    packed = run.new(len(w_hh) * n * WARPS * -(-n // 2) * 8 * 32 * 4)
    run("pack_backward", len(packed) // len(w_hh) // 4, len(w_hh), w_hh, packed, n, H)
    length = _chunk(size)
    begins = range((T - 1) // length * length, -1, -length)
    scale_tops = torch.zeros(len(begins), R, dtype=torch.int32, device=x.device)
    v = x_tops = x  # of a drive that was given neither is read
    if to_weights and w_ih is not None:
        v, x_tops = _filtered(run, x, size, decay, step)
    columns = -(-(H + F + 1) // 8) * 8
    woven, power = _woven(run, w_ih, size) if to_x and w_ih is not None else (None, None)
    dx = x.new_empty(R, *x.shape[1:]) if to_x else x
    products, dxs, scales = [], [], []
    # All chunks use the same memory, the first one, which is the last in time, maybe not all of it.
    all_dz = torch.empty(R * length * B * 4 * H, dtype=torch.float16, device=x.device)
    all_right = torch.empty(R * length * B * columns * to_weights, dtype=torch.float16, device=x.device)
    kernel = _kernel("lstm_backward", x.device.index, CTAS=n)
    for i, first in enumerate(begins):
        steps = min(length, T - first)
        rows = steps * B
        dz = all_dz[: R * rows * 4 * H].view(R, rows, 4 * H)
        scale = x.new_empty(R, rows)
        before = x.new_empty(R, B, H), x.new_empty(R, B, H)
        kernel((n * -(-B // TILE), R, 1), 32 * WARPS,
               [packed, gates, cells, dy, dh, dc, dz, scale, scale_tops[i], *before,
                T, first, first + steps, B, H, _each(w_hh, R)], INPUTS * 32 * WARPS)  # fmt: skip
        dh, dc = before
        if to_weights:
            right = all_right[: R * rows * columns].view(R, rows, columns)
            run("operand", rows * columns // 8, R, y, h0, v, scale, scale_tops[i], x_tops, right,
                first, rows, T, B, H, F, columns, _each(h0, R), each_x)  # fmt: skip
            products.append(_product(dz.mT, right))
        if to_x and w_ih is None:
            run("unweave", rows * H, R, dz, scale, dx, first, rows, T, B, H)
        elif woven is not None:
            dxs.append(_product(dz, woven))
            scales.append(scale)

    found: list[Tensor | None] = [None] * 5
    if to_weights:
        shapes = (4 * H, D), (4 * H, H), (4 * H,), (4 * H,)
        found[1:] = [x.new_empty(R, *s) if need else None for s, need in zip(shapes, needs[1:5], strict=True)]
        _, dw_ih, dw_hh, db_ih, db_hh = found
        parts = products[0] if len(products) == 1 else torch.stack(products)
        run("finish", 4 * H * (H + F + 1), R, parts, scale_tops, x_tops, dw_hh, dw_ih, db_ih, db_hh,
            len(products), R, H, D, F, columns, each_x)  # fmt: skip
    if power is not None:
        parts, factors = (p[0] if len(p) == 1 else torch.cat(p[::-1], 1) for p in (dxs, scales))
        run.filter(parts, decay, size._replace(F=D), step, v=dx, factors=factors * power, backwards=True)
    found[0] = dx if to_x else None
    both = [*found, dh if needs[5] else None, dc if needs[6] else None]
    return tuple(
        x.new_empty(0) if d is None or t is None else d.sum(0, keepdim=True) if len(t) < R else d
        for t, d in zip(inputs, both, strict=True)
    )


def _sizes(x: Tensor, w_ih: Tensor | None, w_hh: Tensor, b_ih: Tensor | None, *rest: Tensor | None) -> Sizes:
    *others, decay = rest
    given = [t for t in (x, w_ih, w_hh, b_ih, *others) if t is not None]
    for t in given:
        if t.device != x.device or (t.is_cuda and t.dtype != torch.float32):
            raise TypeError(f"expected float32 on {x.device}, got {t.dtype} on {t.device}")
    R = max(t.shape[0] for t in given)
    if R > 65535:
        raise ValueError(f"expected at most 65535 replicas, got {R}")
    D = 0 if w_ih is None else x.shape[3]
    return Sizes(R, x.shape[1], x.shape[2], w_hh.shape[2], D, D + (decay is not None and b_ih is not None))


def _chunk(size: Sizes) -> int:
    """Steps of which the gates' gradients are in memory at a time."""
    total = size.R * size.T * size.B * size.H * 8
    return -(-size.T // min(CHUNKS, -(-total // CHUNK)))


def _filtered(
    run: "_Launcher", x: Tensor, size: Sizes, decay: Tensor | None, step: float
) -> tuple[Tensor, Tensor]:
    """The momentum's drive of x, and the largest entry of each feature."""
    _, T, B, _, _, F = size
    v = x if decay is None else x.new_empty(len(x), T, B, F)
    tops = torch.zeros(len(x), F, dtype=torch.int32, device=x.device)
    run.filter(x, decay, size, step, v=None if v is x else v, largest=tops)
    return v, tops


def _spread(
    run: "_Launcher", x: Tensor, size: Sizes, decay: Tensor | None, step: float, slices: int
) -> Tensor:
    """The drive of a narrow input as further columns of the product with U."""
    _, T, B, _, _, F = size
    v = x
    if decay is not None:
        v = x.new_empty(len(x), T, B, F)
        run.filter(x, decay, size, step, v=v)
    tiles = -(-B // TILE)
    extra = run.new(len(x) * T * tiles * slices * 64)
    run("spread", T * tiles * TILE * slices, len(x), v, extra, T, B, F, slices)
    return extra


def _projected(
    run: "_Launcher",
    x: Tensor,
    w_ih: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    size: Sizes,
    decay: Tensor | None,
    step: float,
) -> Tensor:
    """The drive of a wide input with all biases, (R, T, B, H, 4), by a product of its own."""
    R, T, B, H, D, F = size
    width = -(-(3 * F + 2) // 8) * 8
    left = torch.empty(len(x), T * B, width, dtype=torch.bfloat16, device=x.device)
    if decay is None:
        run("split_input", T * B * width // 2, len(x), x, left, T * B, F, width)
    else:
        run.filter(x, decay, size, step, packed=left, width=width)
    weights = [w_ih, b_ih, b_hh]
    each = [_each(t, R) for t in weights]
    replicas = R if any(each) else 1
    right = torch.empty(replicas, 4 * H, width, dtype=torch.bfloat16, device=x.device)
    driven = decay is not None
    run("split_weights", 4 * H * width // 2, replicas, *weights, right, H, D, driven, width, *each)
    return _product(*_broadcast(left, right.mT))


def _woven(run: "_Launcher", w_ih: Tensor, size: Sizes) -> tuple[Tensor, Tensor]:
    """W in halves for dz W, over a power of two, and that power, (R, 1); columns are padded in memory."""
    R, _, _, H, D, _ = size
    columns = -(-D // 8) * 8
    woven = torch.empty(len(w_ih), 4 * H, columns, dtype=torch.float16, device=w_ih.device)
    largest = torch.linalg.vector_norm(w_ih, float("inf"), (1, 2))
    power = torch.empty_like(largest)
    run("weave", 4 * H * columns, len(w_ih), w_ih, largest, woven, power, H, D, columns)
    return woven[..., :D].expand(R, -1, -1), power.view(-1, 1)


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
    """Launches the kernels of around.cu on the device of a tensor."""

    def __init__(self, like: Tensor) -> None:
        self.device = like.device

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
        _, T, B, _, D, F = size
        columns = 8 if B * F <= 2048 else 32
        decays = 1 if decay is None else decay.shape[1]
        sizes = T, B, D, F, decays, backwards, columns, width
        grid = -(-B * F // columns), len(x), 1
        _kernel("filter", self.device.index)(grid, 512, [x, decay, factors, v, packed, largest, *sizes, step])


def check(device: int) -> None:
    """Compiles and loads the smaller kernels, or raises why they can't be."""
    _kernel("filter", device)


@functools.cache
def _ready(device: int, n: int, slices: int) -> None:
    """Loads all kernels of a layer, before each is needed: while a CUDA graph is captured none can be."""
    for keep in (False, True):
        _kernel("lstm_forward", device, CTAS=n, EXTRA=slices, KEEP=keep)
    _kernel("lstm_backward", device, CTAS=n)


@functools.cache
def source(name: str) -> str:
    """The source of a kernel's file, complete."""
    folder = Path(__file__).parent
    return "\n".join((folder / file).read_text(encoding="utf-8") for file in ("ptx.cu", f"{name}.cu"))


@functools.cache
def _kernel(name: str, device: int, **defines: int) -> nvrtc.Kernel:
    file = name if name.startswith("lstm") else "around"
    return nvrtc.load(source(file), name, tuple(sorted(defines.items())), device)
