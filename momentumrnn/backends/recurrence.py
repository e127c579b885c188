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

import numpy as np
import torch
from torch import Tensor

from ..cells import GRU, LSTM, Cell, Elman, Weights
from ..momentum import Momentum, MomentumState, count, narrow, wide
from ..packing import lengths
from . import reference
from .stack import Network, Result

_aten = torch.ops.aten


class Span(NamedTuple):
    """The rows of one step among all packed rows, and where those of the step before begin, -1 for none."""

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
    for rows in sizes:
        spans.append(Span(begin, begin + rows, before))
        begin, before = begin + rows, begin
    return [spans[i : i + steps] for i in range(0, len(spans), steps)]


def split(rows: Tensor, chunk: Chunk) -> tuple[Tensor, ...]:
    """The rows of a chunk, step by step."""
    return torch.split_with_sizes(rows, [span.rows for span in chunk])


def backwards(chunk: Chunk, *rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The rows of a chunk, step by step, from the last to the first."""
    return zip(*(reversed(split(r, chunk)) for r in rows), strict=True)


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

    saved: widths, in hidden units, of the tensors that are kept for the backward besides the state.
    """

    saved: ClassVar[tuple[int, ...]]

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

    def forward(self, piece: Piece, drive: Tensor) -> None:
        chunk, u, b, (h, c), saved, _ = piece
        size = len(u)
        if b is not None:
            drive.add_(b)
        now = [split(t, chunk) for t in (drive, *saved, h.here(chunk), c.here(chunk))]
        for span, gates, ifo, g, tanh, new_h, new_c in zip(chunk, *now, strict=True):
            gates.addmm_(h.before(span), u)
            torch.sigmoid(gates[:, : 2 * size], out=ifo[:, : 2 * size])
            torch.sigmoid(gates[:, 3 * size :], out=ifo[:, 2 * size :])
            g.copy_(gates[:, 2 * size : 3 * size]).tanh_()
            i, f, o = ifo.chunk(3, 1)
            torch.mul(f, c.before(span), out=new_c).addcmul_(i, g)
            torch.mul(o, torch.tanh(new_c, out=tanh), out=new_h)

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
            dh, dc = (d[: len(dy)] for d in carried)
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
        now = [split(t, chunk) for t in (drive, *saved, h.here(chunk))]
        for span, v, products, n, new in zip(chunk, *now, strict=True):
            old = h.before(span)
            torch.mm(old, u, out=products) if b is None else torch.addmm(b, old, u, out=products)
            r, z, u_n = products.chunk(3, 1)
            products[:, : 2 * size].add_(v[:, : 2 * size]).sigmoid_()
            torch.addcmul(v[:, 2 * size :], r, u_n, out=n).tanh_()
            torch.lerp(n, old, z, out=new)

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
            run = carried[0][: len(dy)]
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
        for span, v, new in zip(chunk, split(drive, chunk), split(h.here(chunk), chunk), strict=True):
            torch.addmm(v, h.before(span), u, out=new)
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
            dh = carried[0][: len(dy)]
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

    net: its momentum is None or has a second moment; decays: one for each step, (B, 1) or (1, 1); given:
    whether the gate inputs come ready-made.
    """

    net: Network
    sizes: Sequence[int]
    decays: Sequence[Tensor]
    given: bool = False

    @property
    def steps(self) -> Steps:
        steps = steps_of(self.net.cell)
        assert steps is not None
        return steps

    @property
    def momentum(self) -> Momentum | None:
        return self.net.momentum


def _factors(spec: Spec, first: int, chunk: Chunk) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """The factors on v and n before each step of a chunk, the first of which has the number `first`."""
    decays = spec.decays[first : first + len(chunk)]
    assert spec.momentum is not None
    return decays, [torch.full_like(decays[0][:1], spec.momentum.beta or 0.0)] * len(chunk)


def _scan(chunk: Chunk, x: Tensor, before: Tensor, factors: Sequence[Tensor]) -> None:
    """`x_t += factor_t x_{t-1}` over a chunk, in place; before: what comes before its first step."""
    for now, factor in zip(split(x, chunk), factors, strict=True):
        before = now.addcmul_(factor[: len(now)], before[: len(now)])


def _adjoint(chunk: Chunk, grad: Tensor, carried: Tensor, factors: Sequence[Tensor]) -> None:
    """`grad_t += factor_{t+1} grad_{t+1}` over a chunk, in place; carried, (B, G): see `Steps.backward`."""
    later = grad[:0]
    for now, factor in zip(reversed(split(grad, chunk)), [*factors[1:], factors[0]][::-1], strict=True):
        going = len(later)
        if going < len(now):
            now[going:].add_(carried[going : len(now)])
        if going > 0:
            now[:going].addcmul_(factor[:going], later)
        later = now
    torch.mul(later, factors[0][: len(later)], out=carried[: len(later)])


def _moments(
    spec: Spec, first: int, chunk: Chunk, a: Tensor, v: Tensor, n: Tensor, scratch: Scratch
) -> tuple[Tensor, Tensor, Tensor]:
    """v, n and 1 / denominator after each step of a chunk, the first of number `first`; v, n: before it."""
    m = spec.momentum
    assert m is not None
    decays, betas = _factors(spec, first, chunk)
    all_v = torch.mul(a, m.step, out=scratch("v", *a.shape))
    all_n = torch.mul(a, a, out=scratch("n", *a.shape)).mul_(1 - (m.beta or 0.0))
    _scan(chunk, all_v, v, decays)
    _scan(chunk, all_n, n, betas)
    r = scratch("r", *a.shape)
    if m.eps_in_sqrt:
        torch.add(all_n, m.eps**2, out=r).rsqrt_()
    else:
        torch.sqrt(all_n, out=r).add_(m.eps).reciprocal_()
    return all_v, all_n, r


def _moments_backward(
    spec: Spec,
    first: int,
    chunk: Chunk,
    a: Tensor,
    v: Tensor,
    n: Tensor,
    grad: Tensor,
    carried: Sequence[Tensor],
    scratch: Scratch,
) -> Tensor:
    """From the gradient of a chunk's drive that of a; carried: those of v and n, as for the state."""
    m = spec.momentum
    assert m is not None
    v, n, r = _moments(spec, first, chunk, a, v, n, scratch)
    v.mul_(r)
    to_v = torch.mul(grad, r, out=scratch("to_v", *a.shape))
    if grad.dtype != a.dtype:  # where the drive was held at the largest number, nothing moves it
        to_v.mul_(v.abs() <= torch.finfo(grad.dtype).max)
    # v / denominator by n: -1/2 v r³, or -1/2 v r² / sqrt(n) where eps is outside the root.
    to_n = v.mul_(to_v).mul_(-0.5).mul_(r if m.eps_in_sqrt else n.rsqrt_())
    for part in zip((to_v, to_n), carried, _factors(spec, first, chunk), strict=True):
        _adjoint(chunk, *part)
    return to_v.mul_(m.step).addcmul_(a, to_n, value=2 * (1 - (m.beta or 0.0)))


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
) -> Result:
    """See `stack.Layer`. The momentum is None or has a second moment; there is no projection of h."""
    m = net.momentum
    decays: Sequence[Tensor] = ()
    if m is not None:
        like = torch.empty(0, dtype=wide(x.dtype), device=x.device)
        decays = m.decays(count(moments and moments.k, len(sizes), x.device), like).detach().unbind()
    y, *rest = _run(Spec(net, sizes, decays), x, w, hidden, moments)
    final, after = tuple(rest[: net.cell.states]), None
    if moments is not None:
        v, n = rest[net.cell.states :]
        after = MomentumState(v, n, moments.k + lengths(sizes, x.device))
    return y, final, after


def recur(
    a: Tensor,
    sizes: Sequence[int],
    w: Weights,
    net: Network,
    hidden: Sequence[Tensor],
    moments: None,
) -> Result:
    """`layer` without momentum, from its gate inputs a, (N, G), on."""
    y, *final = _run(Spec(net, sizes, (), given=True), a, w, hidden, moments)
    return y, tuple(final), None


def _run(
    spec: Spec, x: Tensor, w: Weights, hidden: Sequence[Tensor], moments: MomentumState | None
) -> tuple[Tensor, ...]:
    """y, the final state, and v and n if there is a momentum."""
    ih, b_ih = (None, None) if spec.given else (w.ih, w.b_ih)
    tensors: list[Tensor | None] = [x, ih, b_ih, w.hh, w.b_hh, *hidden]
    kind = x.device.type
    casts = kind != "meta" and torch.is_autocast_enabled(kind)
    if casts:
        tensors = [None if t is None else t.to(torch.get_autocast_dtype(kind)) for t in tensors]
    tensors[5:5] = (None, None) if moments is None else (moments.v, moments.n)
    k = None if moments is None else moments.k
    training = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    with torch.autocast(kind, enabled=False) if casts else nullcontext():
        return _Layer.apply(spec, k, training, *tensors)  # type: ignore[no-any-return, no-untyped-call]


def _again(spec: Spec, k: Tensor | None, inputs: Sequence[Tensor]) -> list[Tensor]:
    """What `_Layer` returns, by the reference, so that autograd can follow."""
    x, ih, b_ih, hh, b_hh, v, n, *hidden = inputs
    w, moments = Weights(ih, hh, b_ih, b_hh), None if k is None else MomentumState(v, n, k)
    run = reference.recur if spec.given else reference.layer
    y, final, after = run(x, spec.sizes, w, spec.net, hidden, moments)
    return [y, *final, *(after[:2] if after else ())]


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        spec: Spec,
        k: Tensor | None,
        training: bool,
        x: Tensor,
        w: Tensor | None,
        b: Tensor | None,
        u: Tensor,
        b_hh: Tensor | None,
        v_0: Tensor | None,
        n_0: Tensor | None,
        *hidden: Tensor,
    ) -> tuple[Tensor, ...]:
        every = chunks(spec.sizes, len(u), x.device)
        most, (gates, size) = every[0][-1].end, u.shape
        tracks = [Track(h, _room(h, len(x), h.shape[1])) for h in hidden]
        saved = [_room(x, len(x) if training else most, width * size) for width in spec.steps.saved]
        scratch, u_t = Scratch(most, x), u.t().contiguous()
        moments, starts, first = [], [], 0
        if spec.momentum:
            zeros = u.new_zeros(spec.sizes[0], gates, dtype=wide(x.dtype))
            moments = [zeros.clone() if m is None else m.clone() for m in (v_0, n_0)]
            precise = Scratch(most, zeros)
        for chunk in every:
            rows = slice(chunk[0].begin, chunk[-1].end)
            drive = _project(x[rows], w, b, scratch("drive", rows.stop - rows.start, gates))
            if spec.momentum:
                if training:
                    starts += [m[: chunk[0].rows].clone() for m in moments]
                a, (v, n) = drive.to(zeros.dtype), moments
                v, n, r = _moments(spec, first, chunk, a, v, n, precise)
                for after, running in zip((v, n), moments, strict=True):
                    _carry(chunk, after, running)
                drive.copy_(narrow(v.mul_(r), x.dtype))
            local = [s[rows] if training else s[: len(drive)] for s in saved]
            spec.steps.forward(Piece(chunk, u_t, b_hh, tracks, local, scratch), drive)
            first += len(chunk)
        afters = [track.after for track in tracks]
        ctx.spec, ctx.k = spec, k
        ctx.save_for_backward(x, w, b, u, b_hh, v_0, n_0, *hidden, *afters, *saved, *starts)
        return afters[0], *(ends(after, spec.sizes) for after in afters), *moments

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        spec, states = ctx.spec, len(grads) - 1 - (2 if ctx.spec.momentum else 0)
        inputs, rest = ctx.saved_tensors[: 7 + states], list(ctx.saved_tensors[7 + states :])
        # Asked for a graph of gradients, or for many gradients at once: operations in place can't give them.
        if torch.is_grad_enabled() or torch._C._functorch.is_legacy_batchedtensor(grads[0]):
            again = partial(_again, spec, ctx.k)
            return None, None, None, *gradients(again, inputs, ctx.needs_input_grad[3:], grads)
        x, w, b, u, b_hh, v_0, _, *hidden = inputs
        tracks = [Track(h, rest.pop(0)) for h in hidden]
        saved, starts = [rest.pop(0) for _ in spec.steps.saved], rest
        every = chunks(spec.sizes, len(u), x.device)
        most, first = every[0][-1].end, len(spec.sizes)
        carried, carried_moments = (
            [g.clone() for g in gs] for gs in (grads[1 : 1 + states], grads[1 + states :])
        )
        d_x = torch.empty_like(x) if ctx.needs_input_grad[3] else None
        d_w, d_b, d_b_hh = (None if p is None else torch.zeros_like(p) for p in (w, b, b_hh))
        d_u = torch.zeros_like(u)
        scratch = Scratch(most, x)
        precise = Scratch(most, carried_moments[0]) if spec.momentum else scratch
        for chunk in reversed(every):
            first -= len(chunk)
            rows = slice(chunk[0].begin, chunk[-1].end)
            piece = Piece(chunk, u, b_hh, tracks, [s[rows] for s in saved], scratch)
            drive, products, biases = spec.steps.backward(piece, grads[0][rows], carried)
            d_u.addmm_(products.t(), tracks[0].all_before(chunk))
            if d_b_hh is not None:
                d_b_hh.add_(biases.sum(0))
            if spec.momentum:
                n, v = starts.pop(), starts.pop()
                a = _project(x[rows], w, b, scratch("a", *drive.shape)).to(v.dtype)
                drive = _moments_backward(spec, first, chunk, a, v, n, drive, carried_moments, precise).to(
                    x.dtype
                )
            if d_w is not None:
                d_w.addmm_(drive.t(), x[rows])
                if d_b is not None:
                    d_b.add_(drive.sum(0))
            if d_x is not None:
                d_x[rows] = drive if w is None else torch.mm(drive, w)
        d_moments = (None, None) if v_0 is None else carried_moments
        return None, None, None, d_x, d_w, d_b, d_u, d_b_hh, *d_moments, *carried


def gradients(
    again: Callable[[Sequence[Any]], Sequence[Tensor]],
    inputs: Sequence[Any],
    needed: Sequence[bool],
    grads: Sequence[Tensor],
) -> list[Tensor | None]:
    """The gradients of `again(inputs)` to the inputs that need one, differentiable as any other."""
    asked = [t for t, need in zip(inputs, needed, strict=True) if need]
    graph = torch.is_grad_enabled()
    with torch.enable_grad():
        outputs = again(inputs)
    found = iter(torch.autograd.grad(outputs, asked, grads, create_graph=graph, allow_unused=True))
    return [next(found) if need else None for need in needed]


def _room(like: Tensor, rows: int, width: int) -> Tensor:
    """An empty tensor. Large ones come from numpy, which asks the system for huge pages: the first touch of
    hundreds of megabytes in small ones would cost a tenth of the time."""
    size = rows * width * like.element_size()
    if like.device.type != "cpu" or size < 1 << 22 or torch.are_deterministic_algorithms_enabled():
        return like.new_empty(rows, width)
    return torch.from_numpy(np.empty(size, np.uint8)).view(like.dtype).view(rows, width)


def _project(x: Tensor, w: Tensor | None, b: Tensor | None, out: Tensor) -> Tensor:
    if w is None:
        return out.copy_(x)
    return torch.mm(x, w.t(), out=out) if b is None else torch.addmm(b, x, w.t(), out=out)
