"""Layers in plain PyTorch with a backward written by hand: LSTM, GRU and Elman, also under Adam and RMSProp.

Time goes by in chunks small enough for a processor's cache. Within one the input is projected and the moments
and coefficients are computed for all steps at once; step by step there remain a matrix product and a few
operations in place. The backward recomputes the moments of a chunk from those at its start.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..cells import GRU, LSTM, Cell, Elman, Weights
from ..momentum import MomentumState, narrow, wide
from ..packing import lengths
from . import reference
from .stack import Network, Result

_aten = torch.ops.aten


class Span(NamedTuple):
    """Step t: its rows among all packed rows, and where those of the step before begin, -1 for none."""

    t: int
    begin: int
    end: int
    before: int

    @property
    def rows(self) -> int:
        return self.end - self.begin


Chunk = list[Span]


def chunks(sizes: Sequence[int], width: int, device: torch.device) -> list[Chunk]:
    """All steps, in runs of up to 16 and about a million numbers; longer on a GPU, where launches count."""
    most, numbers = (16, 1 << 20) if device.type == "cpu" else (256, 1 << 25)
    steps = max(1, min(most, numbers // max(1, sizes[0] * width)))
    spans, begin, before = [], 0, -1
    for t, rows in enumerate(sizes):
        spans.append(Span(t, begin, begin + rows, before))
        begin, before = begin + rows, begin
    return [spans[i : i + steps] for i in range(0, len(spans), steps)]


def split(rows: Tensor, chunk: Chunk) -> tuple[Tensor, ...]:
    """The rows of a chunk, step by step."""
    return torch.split_with_sizes(rows, [span.rows for span in chunk])


def forwards(chunk: Chunk, *rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The rows of a chunk, step by step."""
    return zip(*(split(r, chunk) for r in rows), strict=True)


def backwards(chunk: Chunk, *rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The rows of a chunk, step by step, from the last to the first."""
    return zip(*(reversed(split(r, chunk)) for r in rows), strict=True)


def first(x: Tensor, rows: int) -> Tensor:
    """At most so many rows."""
    return x if x.size(0) <= rows else x[:rows]


class Track(NamedTuple):
    """One tensor of the state through time: before the first step (B, H), and after each (N, H)."""

    initial: Tensor
    after: Tensor

    def before(self, span: Span) -> Tensor:
        """What the rows of a step come from."""
        if span.before < 0:
            return self.initial
        return self.after[span.before : span.before + span.rows]

    def here(self, chunk: Chunk) -> Tensor:
        """After each step of a chunk."""
        return self.after[chunk[0].begin : chunk[-1].end]

    def all_before(self, chunk: Chunk) -> Tensor:
        """Before each step of a chunk."""
        first, last = chunk[0], chunk[-1]
        if first.before >= 0 and last.end - first.begin == last.before + last.rows - first.before:
            return self.after[first.before : last.before + last.rows]
        return torch.cat([self.before(span) for span in chunk])


def ends(packed: Tensor, sizes: Sequence[int]) -> Tensor:
    """The last row of each sequence, (B, H)."""
    if sizes[0] == sizes[-1]:
        return packed[-sizes[0] :].clone()
    begins = torch.tensor([0, *sizes[:-1]]).cumsum(0).to(packed.device)
    taken = lengths(sizes, packed.device)
    return packed[begins[taken - 1] + torch.arange(len(taken), device=packed.device)]


class Scratch:
    """Buffers by name, made once and used by chunk after chunk."""

    def __init__(self, rows: int, like: Tensor) -> None:
        self.rows, self.like = rows, like
        self.buffers: dict[str, Tensor] = {}

    def __call__(self, name: str, rows: int, *shape: int) -> Tensor:
        if name not in self.buffers:
            self.buffers[name] = self.like.new_empty(self.rows, *shape)
        return self.buffers[name][:rows]


class Piece(NamedTuple):
    """A chunk of time, and all of a layer that its steps need.

    u: Uᵀ, (H, G), in a forward pass, U in a backward pass; b: b_hh; saved: of this chunk, see `Steps`.
    """

    chunk: Chunk
    u: Tensor
    b: Tensor | None
    tracks: Sequence[Track]
    saved: Sequence[Tensor]
    scratch: Scratch


Gradients = tuple[Tensor, Tensor, Tensor]


class Steps(ABC):
    """The steps of a cell, without autograd. Knows neither x nor momentum.

    saved: widths, in hidden units, of the tensors that are kept for the backward besides the state; writable:
    whether the user may write into the outputs before it, as torch's layer of this cell lets them.
    """

    saved: ClassVar[tuple[int, ...]]
    writable: ClassVar[bool] = True

    @abstractmethod
    def forward(self, piece: Piece, drive: Tensor) -> None:
        """Fill `tracks` and `saved`. drive: (L, G), is spoilt."""

    @abstractmethod
    def backward(self, piece: Piece, grad: Tensor, carried: Sequence[Tensor]) -> Gradients:
        """From the gradient of a chunk's outputs those of its drive, of U h + b_hh, and, row by row, of b_hh.

        carried: the gradient of the state, (B, H) each, brought from the chunk after to the one before.
        """


# Below, slices of columns are copied before tanh, which torch would hand to MKL row by row; views are made
# for all steps of a chunk at once, since at small sizes slicing costs as much as computing.


class LSTMSteps(Steps):
    saved = (3, 1, 1)  # i f o, g, tanh(c)
    writable = False

    def forward(self, piece: Piece, drive: Tensor) -> None:
        chunk, u, b, (h, c), saved, _ = piece
        if b is not None:
            drive.add_(b)
        (ifo, g, tanh), size = saved, len(u)
        i, f, o = ifo.chunk(3, 1)
        inputs = (drive, drive[:, : 2 * size], drive[:, 2 * size : 3 * size], drive[:, 3 * size :])
        parts = (*inputs, ifo[:, : 2 * size], i, f, o, g, tanh, h.here(chunk), c.here(chunk))
        old_h, old_c = h.before(chunk[0]), c.before(chunk[0])
        for gates, in_if, in_g, in_o, i_f, i, f, o, g, tanh, new_h, new_c in forwards(chunk, *parts):
            rows = gates.size(0)
            gates.addmm_(first(old_h, rows), u)
            torch.sigmoid(in_if, out=i_f)
            torch.sigmoid(in_o, out=o)
            g.copy_(in_g).tanh_()
            torch.mul(f, first(old_c, rows), out=new_c).addcmul_(i, g)
            torch.mul(o, torch.tanh(new_c, out=tanh), out=new_h)
            old_h, old_c = new_h, new_c

    def backward(self, piece: Piece, grad: Tensor, carried: Sequence[Tensor]) -> Gradients:
        chunk, u, _, (_, c), (ifo, g, tanh), scratch = piece
        rows, size = g.shape
        i, f, o = ifo.chunk(3, 1)
        # ∂c/∂h, and the factors from dc to the inputs of i, f, g and from dh to that of o.
        to_c = _aten.tanh_backward.grad_input(o, tanh, grad_input=scratch("to_c", rows, size))
        to, gates = scratch("to", rows, 4, size), scratch("gates", rows, 4, size)
        _aten.sigmoid_backward.grad_input(g, i, grad_input=to[:, 0])
        _aten.sigmoid_backward.grad_input(c.all_before(chunk), f, grad_input=to[:, 1])
        _aten.tanh_backward.grad_input(i, g, grad_input=to[:, 2])
        _aten.sigmoid_backward.grad_input(tanh, o, grad_input=to[:, 3])
        flat = gates.flatten(1)
        parts = (grad, to_c, f, to[:, :3], gates[:, :3], to[:, 3], gates[:, 3], flat)
        for dy, by_c, keep, by_ifg, ifg, by_o, d_o, every in backwards(chunk, *parts):
            dh, dc = (first(d, dy.size(0)) for d in carried)
            dh.add_(dy)
            dc.addcmul_(dh, by_c)
            torch.mul(dc.unsqueeze(1), by_ifg, out=ifg)
            torch.mul(dh, by_o, out=d_o)
            dc.mul_(keep)
            torch.mm(every, u, out=dh)
        return flat, flat, flat


class GRUSteps(Steps):
    saved = (3, 1)  # r z and U_n h + b_hn, n

    def forward(self, piece: Piece, drive: Tensor) -> None:
        chunk, u, b, (h,), saved, _ = piece
        size = len(u)
        (products, n), old = saved, h.before(chunk[0])
        inputs = (drive[:, : 2 * size], drive[:, 2 * size :])
        parts = (*inputs, products, products[:, : 2 * size], *products.chunk(3, 1), n, h.here(chunk))
        for in_rz, in_n, products, rz, r, z, u_n, n, new in forwards(chunk, *parts):
            old = first(old, new.size(0))
            torch.mm(old, u, out=products) if b is None else torch.addmm(b, old, u, out=products)
            rz.add_(in_rz).sigmoid_()
            torch.addcmul(in_n, r, u_n, out=n).tanh_()
            old = torch.lerp(n, old, z, out=new)

    def backward(self, piece: Piece, grad: Tensor, carried: Sequence[Tensor]) -> Gradients:
        chunk, u, _, (h,), (products, n), scratch = piece
        rows, size = n.shape
        r, z, u_n = products.chunk(3, 1)
        # The factors from dh to the inputs of r, z and to U_n h + b_hn; and to the input of n.
        to, to_n = scratch("to", rows, 3, size), scratch("to_n", rows, size)
        _aten.tanh_backward.grad_input(torch.rsub(z, 1), n, grad_input=to_n)
        _aten.sigmoid_backward.grad_input(u_n, r, grad_input=to[:, 0])
        to[:, 0].mul_(to_n)
        _aten.sigmoid_backward.grad_input(h.all_before(chunk) - n, z, grad_input=to[:, 1])
        torch.mul(to_n, r, out=to[:, 2])
        gates, kept = scratch("gates", rows, 3, size), scratch("dh", rows, size)
        flat = gates.flatten(1)
        for dy, keep, by, gate, every, dh in backwards(chunk, grad, z, to, gates, flat, kept):
            run = first(carried[0], dy.size(0))
            torch.add(run, dy, out=dh)
            torch.mul(dh.unsqueeze(1), by, out=gate)
            torch.mul(dh, keep, out=run).addmm_(every, u)
        drive = scratch("drive", rows, 3 * size).copy_(flat)
        torch.mul(kept, to_n, out=drive[:, 2 * size :])
        return drive, flat, flat


class ElmanSteps(Steps):
    saved = ()

    def __init__(self, nonlinearity: str) -> None:
        self.nonlinearity = nonlinearity

    def forward(self, piece: Piece, drive: Tensor) -> None:
        chunk, u, b, (h,), _, _ = piece
        modrelu = self.nonlinearity == "modrelu"
        if b is not None and not modrelu:
            drive.add_(b)
        new = h.before(chunk[0])
        for v, now in forwards(chunk, drive, h.here(chunk)):
            new = torch.addmm(v, first(new, v.size(0)), u, out=now)
            if modrelu:
                size = torch.abs(new, out=v)
                new.sign_().mul_((size if b is None else size.add_(b)).relu_())
            else:
                getattr(new, self.nonlinearity + "_")()

    def backward(self, piece: Piece, grad: Tensor, carried: Sequence[Tensor]) -> Gradients:
        chunk, u, _, tracks, _, scratch = piece
        h = tracks[0].here(chunk)
        to, inputs = scratch("to", *h.shape), scratch("inputs", *h.shape)
        match self.nonlinearity:
            case "tanh":
                torch.mul(h, h, out=to).neg_().add_(1)
            case "sigmoid":
                torch.addcmul(h, h, h, value=-1, out=to)
            case _:  # relu and modrelu pass a gradient on where they are not 0
                to.copy_(h != 0)
        for dy, by, gate in backwards(chunk, grad, to, inputs):
            dh = first(carried[0], dy.size(0))
            torch.mul(dh.add_(dy), by, out=gate)
            torch.mm(gate, u, out=dh)
        return inputs, inputs, inputs * h.sign() if self.nonlinearity == "modrelu" else inputs


def steps_of(cell: Cell) -> Steps | None:
    """The hand-written steps of a cell, if there are any."""
    if cell == LSTM():
        return LSTMSteps()
    if cell == GRU():
        return GRUSteps()
    return ElmanSteps(cell.nonlinearity) if type(cell) is Elman else None


class Spec(NamedTuple):
    """What is to be run, its tensors aside.

    net: without weights; its momentum is None or has a second moment and a number for its step; decays: for
    each step, (B or 1, G or 1), without a gradient; given: whether the gate inputs come ready-made.
    """

    net: Network
    steps: Steps
    sizes: Sequence[int]
    decays: Sequence[Tensor]
    given: bool = False


def _with_beta(spec: Spec) -> Any:
    """The momentum; it has a second moment."""
    return spec.net.momentum


def _factors(spec: Spec, chunk: Chunk) -> tuple[list[Tensor], list[Tensor]]:
    """The factors on v and on n before each step of a chunk."""
    decays = [spec.decays[span.t] for span in chunk]
    return decays, [torch.full_like(decays[0][:1], _with_beta(spec).beta)] * len(chunk)


def _scan(chunk: Chunk, x: Tensor, before: Tensor, factors: Sequence[Tensor]) -> None:
    """`x_t += factor_t x_{t-1}` over a chunk, in place; before: what comes before its first step."""
    for now, factor in zip(split(x, chunk), factors, strict=True):
        before = now.addcmul_(first(factor, now.size(0)), first(before, now.size(0)))


def _adjoint(chunk: Chunk, grad: Tensor, carried: Tensor, factors: Sequence[Tensor]) -> None:
    """`grad_t += factor_{t+1} grad_{t+1}` over a chunk, in place; carried, (B, G): see `Steps.backward`."""
    later = grad[:0]
    for now, factor in zip(reversed(split(grad, chunk)), [*factors[1:], factors[0]][::-1], strict=True):
        going, rows = later.size(0), now.size(0)
        if going < rows:
            now[going:].add_(carried[going:rows])
        if going > 0:
            first(now, going).addcmul_(first(factor, going), later)
        later = now
    torch.mul(later, first(factors[0], rows), out=carried[:rows])


def _moments(
    spec: Spec, chunk: Chunk, a: Tensor, before: Sequence[Tensor], v: Tensor, scratch: Scratch
) -> tuple[Tensor, Tensor, Tensor]:
    """v, n and 1 / denominator after each step of a chunk; before: v and n before it; v may be a itself."""
    m = _with_beta(spec)
    n = torch.mul(a, a, out=scratch("n", *a.shape)).mul_(1 - m.beta)
    torch.mul(a, m.step, out=v)
    for part in zip((v, n), before, _factors(spec, chunk), strict=True):
        _scan(chunk, *part)
    r = scratch("r", *a.shape)
    if m.eps_in_sqrt:
        torch.add(n, m.eps**2, out=r).rsqrt_()
    else:
        torch.sqrt(n, out=r).add_(m.eps).reciprocal_()
    return v, n, r


def _moments_backward(
    spec: Spec,
    chunk: Chunk,
    a: Tensor,
    before: Sequence[Tensor],
    grad: Tensor,
    carried: Sequence[Tensor],
    scratch: Scratch,
) -> Tensor:
    """From the gradient of a chunk's drive that of a; carried: those of v and n, as for the state."""
    m = _with_beta(spec)
    v, n, r = _moments(spec, chunk, a, before, scratch("v", *a.shape), scratch)
    drive, to_v = v.mul_(r), torch.mul(grad, r, out=scratch("to_v", *a.shape))
    if grad.dtype != a.dtype:  # where the drive was held at the largest number, nothing moves it
        to_v.mul_(drive.abs() <= torch.finfo(grad.dtype).max)
    # v / denominator by n: -1/2 v r³, or -1/2 v r² / sqrt(n) where eps is outside the root.
    to_n = drive.mul_(to_v).mul_(-0.5).mul_(r if m.eps_in_sqrt else n.rsqrt_())
    for part in zip((to_v, to_n), carried, _factors(spec, chunk), strict=True):
        _adjoint(chunk, *part)
    return to_v.mul_(m.step).addcmul_(a, to_n, value=2 * (1 - m.beta))


def _carry(chunk: Chunk, after: Tensor, running: Tensor) -> None:
    """Bring `running`, (B, G), to the end of a chunk: each row to its own last step."""
    start, going = chunk[0].begin, 0
    for span in reversed(chunk):
        if span.rows > going:
            running[going : span.rows] = after[span.begin - start + going : span.end - start]
            going = span.rows


def layer(
    x: Tensor,
    sizes: Sequence[int],
    w: Weights,
    net: Network,
    hidden: Sequence[Tensor],
    moments: MomentumState | None,
    decays: Sequence[Tensor] = (),
) -> Result:
    """See `stack.Layer`. The momentum is None, or has a second moment and these decays; no w.hr."""
    y, *rest = _run(net, sizes, decays, x, w, hidden, moments)
    final, after = tuple(rest[: net.cell.states]), None
    if moments is not None:
        v, n = rest[net.cell.states :]
        after = MomentumState(v, n, moments.k + lengths(sizes, x.device))
    return y, final, after


def recur(
    a: Tensor, sizes: Sequence[int], w: Weights, net: Network, hidden: Sequence[Tensor], moments: None
) -> Result:
    """`layer` without momentum, from its gate inputs a, (N, G), on."""
    y, *final = _run(net, sizes, (), a, w, hidden, moments, given=True)
    return y, tuple(final), None


def _run(
    net: Network,
    sizes: Sequence[int],
    decays: Sequence[Tensor],
    x: Tensor,
    w: Weights,
    hidden: Sequence[Tensor],
    moments: MomentumState | None,
    given: bool = False,
) -> tuple[Tensor, ...]:
    """y, the final state, and v and n if there is a momentum."""
    steps = steps_of(net.cell)
    assert steps is not None
    ih, b_ih = (None, None) if given else (w.ih, w.b_ih)
    tensors: list[Tensor | None] = [x, ih, b_ih, w.hh, w.b_hh, *hidden]
    kind = x.device.type
    casts = kind != "meta" and x.dtype != torch.float64 and torch.is_autocast_enabled(kind)
    if casts:
        tensors = [None if t is None else t.to(torch.get_autocast_dtype(kind)) for t in tensors]
    tensors[5:5] = (None, None, None) if moments is None else moments
    training = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    spec = Spec(net._replace(weights=()), steps, sizes, decays, given)
    with torch.autocast(kind, enabled=False) if casts else nullcontext():
        return _Layer.apply(spec, training, *tensors)  # type: ignore[no-any-return, no-untyped-call]


def _again(spec: Spec, inputs: Sequence[Tensor]) -> list[Tensor]:
    """What `_Layer` returns, by the reference, so that autograd can follow."""
    x, ih, b_ih, hh, b_hh, v, n, k, *hidden = inputs
    w, moments = Weights(ih, hh, b_ih, b_hh), None if k is None else MomentumState(v, n, k)
    run = reference.recur if spec.given else reference.layer
    y, final, after = run(x, spec.sizes, w, spec.net, hidden, moments)
    return [y, *final, *(after[:2] if after else ())]


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        spec: Spec,
        training: bool,
        x: Tensor,
        w: Tensor | None,
        b: Tensor | None,
        u: Tensor,
        b_hh: Tensor | None,
        v_0: Tensor | None,
        n_0: Tensor | None,
        k: Tensor | None,
        *hidden: Tensor,
    ) -> tuple[Tensor, ...]:
        every = chunks(spec.sizes, len(u), x.device)
        most, (gates, size), squares = every[0][-1].end, u.shape, spec.net.momentum is not None
        tracks = [Track(h, _room(h, len(x), h.shape[1])) for h in hidden]
        saved = [_room(x, len(x) if training else most, width * size) for width in spec.steps.saved]
        y = _room(x, len(x), size) if training and spec.steps.writable else tracks[0].after
        scratch, u_t = Scratch(most, x), u.t().contiguous()
        moments: list[Tensor] = []
        starts: list[Tensor] = []
        if squares:
            zeros = u.new_zeros(spec.sizes[0], gates, dtype=wide(x.dtype))
            moments = [zeros.clone() if m is None else m.clone() for m in (v_0, n_0)]
            precise = Scratch(most, zeros)
        # W x of many features is better kept for the backward than computed again.
        keep = squares and training and x.shape[1] >= 64
        projected = _room(x, len(x), gates) if keep else None
        for chunk in every:
            rows = slice(chunk[0].begin, chunk[-1].end)
            drive = _project(x[rows], w, b, scratch("drive", rows.stop - rows.start, gates))
            if squares:
                if training:
                    starts += [m[: chunk[0].rows].clone() for m in moments]
                if projected is not None:
                    projected[rows] = drive
                a = drive.to(zeros.dtype)
                v, n, r = _moments(spec, chunk, a, moments, a, precise)
                for after, running in zip((v, n), moments, strict=True):
                    _carry(chunk, after, running)
                held = narrow(v.mul_(r), x.dtype)
                if held is not drive:
                    drive.copy_(held)
            local = [s[rows] if training else s[: len(drive)] for s in saved]
            spec.steps.forward(Piece(chunk, u_t, b_hh, tracks, local, scratch), drive)
            if y is not tracks[0].after:
                y[rows] = tracks[0].here(chunk)
        afters = [track.after for track in tracks]
        ctx.spec = spec
        ctx.save_for_backward(x, w, b, u, b_hh, v_0, n_0, k, *hidden, *afters, *saved, projected, *starts)
        return y, *(ends(after, spec.sizes) for after in afters), *moments

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        spec, kept, needs = ctx.spec, list(ctx.saved_tensors), ctx.needs_input_grad[2:]
        states = spec.net.cell.states
        inputs, kept = kept[: 8 + states], kept[8 + states :]
        # Asked for a graph of gradients, or for many gradients at once: operations in place can't give them.
        if torch.is_grad_enabled() or batched(grads):
            return None, None, *gradients(partial(_again, spec), inputs, needs, grads)
        x, w, b, u, b_hh, v_0, _, _, *hidden = inputs
        tracks = [Track(h, kept.pop(0)) for h in hidden]
        saved, projected, starts = [kept.pop(0) for _ in spec.steps.saved], kept.pop(0), kept
        every = chunks(spec.sizes, len(u), x.device)
        most, squares = every[0][-1].end, spec.net.momentum is not None
        carried, carried_moments = (
            [g.clone() for g in gs] for gs in (grads[1 : 1 + states], grads[1 + states :])
        )
        d_x = torch.empty_like(x) if needs[0] else None
        # Sums over all of time, which 16 bits would stop counting.
        d_w, d_b, d_u, d_b_hh = sums = [
            torch.zeros_like(p, dtype=wide(x.dtype)) if need else None
            for p, need in zip((w, b, u, b_hh), needs[1:5], strict=True)
        ]
        scratch = Scratch(most, x)
        precise = Scratch(most, carried_moments[0]) if squares else scratch
        for chunk in reversed(every):
            rows = slice(chunk[0].begin, chunk[-1].end)
            piece = Piece(chunk, u, b_hh, tracks, [s[rows] for s in saved], scratch)
            drive, products, biases = spec.steps.backward(piece, grads[0][rows], carried)
            if d_u is not None:
                _add_product(d_u, products, tracks[0].all_before(chunk))
            if d_b_hh is not None:
                d_b_hh += biases.sum(0, dtype=d_b_hh.dtype)
            if squares:
                before = [starts.pop() for _ in range(2)][::-1]
                now = (
                    _project(x[rows], w, b, scratch("a", *drive.shape))
                    if projected is None
                    else projected[rows]
                )
                now = now.to(before[0].dtype)
                drive = _moments_backward(spec, chunk, now, before, drive, carried_moments, precise)
                drive = drive.to(x.dtype)
            if d_w is not None:
                _add_product(d_w, drive, x[rows])
            if d_b is not None:
                d_b += drive.sum(0, dtype=d_b.dtype)
            if d_x is not None:
                d_x[rows] = drive if w is None else torch.mm(drive, w)
        d_moments = (None, None) if v_0 is None else carried_moments
        d_weights = (None if d is None else d.to(x.dtype) for d in sums)
        return None, None, d_x, *d_weights, *d_moments, None, *carried


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += aᵀ b."""
    if total.dtype == a.dtype:
        total.addmm_(a.t(), b)
    else:
        total += a.t() @ b


def batched(grads: Sequence[Tensor]) -> bool:
    """Whether these stand for many gradients at once: under vmap, or autograd's is_grads_batched."""
    legacy = torch._C._functorch.is_legacy_batchedtensor
    return torch._C._are_functorch_transforms_active() or any(map(legacy, grads))


def gradients(
    again: Callable[[Sequence[Any]], Sequence[Tensor]],
    inputs: Sequence[Any],
    needed: Sequence[bool],
    grads: Sequence[Tensor],
) -> list[Tensor | None]:
    """The gradients of `again(inputs)` to the inputs that need one, differentiable as any other."""
    graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Aliases: an input may have been made from another one, and only the direct way counts here.
        inputs = [t.view_as(t) if need else t for t, need in zip(inputs, needed, strict=True)]
        outputs = again(inputs)
    asked = [t for t, need in zip(inputs, needed, strict=True) if need]
    moved = [(o, g) for o, g in zip(outputs, grads, strict=True) if o.requires_grad]
    moving, their = zip(*moved, strict=True)
    found = iter(torch.autograd.grad(moving, asked, their, create_graph=graph, allow_unused=True))
    return [next(found) if need else None for need in needed]


def _room(like: Tensor, rows: int, width: int) -> Tensor:
    """An empty tensor. On a CPU all threads fill it, since the first to touch fresh memory waits for it."""
    room = like.new_empty(rows, width)
    # Else empty memory is nan, by which tests find what nobody wrote.
    if like.device.type == "cpu" and not torch.are_deterministic_algorithms_enabled():
        room.zero_()
    return room


def _project(x: Tensor, w: Tensor | None, b: Tensor | None, out: Tensor) -> Tensor:
    if w is None:
        return out.copy_(x)
    return torch.mm(x, w.t(), out=out) if b is None else torch.addmm(b, x, w.t(), out=out)
