"""Layers in plain PyTorch with a backward written by hand: LSTM, GRU and Elman, also under Adam and RMSProp.

Time is split into chunks that are small enough for a processor's cache. In each chunk the input is projected,
and v and n are computed, for all steps at once. Only the steps of the cell go one by one. The backward
recomputes v and n of a chunk from those before its first step.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..cells import Weights
from ..momentum import MomentumState
from ..packing import lengths
from ..precision import autocast_enabled, moments_dtype
from ..torch_internals import may_be_batched
from . import double_backward, reference
from .chunked_moments import Rates, drive_, drive_backward
from .chunked_steps import Piece, Steps, steps_of
from .stack import Network, Result
from .time_chunks import Scratch, Track, chunks, last_rows, rows_of

# Under a momentum, the forward of a training step saves W x + b_ih if x has at least so many features. With
# fewer the backward computes it again.
MIN_FEATURES_TO_SAVE_GATE_INPUTS = 64


class Spec(NamedTuple):
    """What a layer computes, apart from its tensors.

    net: without weights; rates: of its momentum, or None if it has none.
    """

    net: Network
    steps: Steps
    sizes: Sequence[int]
    rates: Rates | None


class Inputs(NamedTuple):
    """The tensors that a layer computes from.

    x: (N, D), or the gate inputs a, (N, G), if w is None. w, b: W and b_ih. u, b_hh: U and its bias. v, n, k:
    the state of the momentum, or None. hidden: (B, H) each.
    """

    x: Tensor
    w: Tensor | None
    b: Tensor | None
    u: Tensor
    b_hh: Tensor | None
    v: Tensor | None
    n: Tensor | None
    k: Tensor | None
    hidden: tuple[Tensor, ...]

    @classmethod
    def unflatten(cls, tensors: Any) -> "Inputs":
        x, w, b, u, b_hh, v, n, k, *hidden = tensors
        return cls(x, w, b, u, b_hh, v, n, k, tuple(hidden))

    def flatten(self) -> list[Any]:
        return [*self[:8], *self.hidden]


class Saved(NamedTuple):
    """What the forward keeps for the backward.

    states: after each step, (N, H) each; activations: see `Steps.saved_widths`; gate_inputs: a, (N, G), if it
    is kept; starts: v and n before each chunk, as v, n, v, n, ...
    """

    inputs: Inputs
    states: Sequence[Tensor]
    activations: Sequence[Tensor]
    gate_inputs: Tensor | None
    starts: Sequence[Tensor]

    @classmethod
    def unflatten(cls, spec: Spec, tensors: Any) -> "Saved":
        states = 8 + spec.net.cell.states
        activations = states + spec.net.cell.states
        gate_inputs = activations + len(spec.steps.saved_widths)
        return cls(
            Inputs.unflatten(tensors[:states]),
            tensors[states:activations],
            tensors[activations:gate_inputs],
            tensors[gate_inputs],
            tensors[gate_inputs + 1 :],
        )

    def flatten(self) -> list[Any]:
        return [
            *self.inputs.flatten(),
            *self.states,
            *self.activations,
            self.gate_inputs,
            *self.starts,
        ]


def layer(
    x: Tensor,
    sizes: Sequence[int],
    w: Weights,
    net: Network,
    hidden: Sequence[Tensor],
    moments: MomentumState | None,
    decays: Sequence[Tensor] = (),
) -> Result:
    """One layer, see `stack.Layer`; w.hr must be None.

    The momentum is None, or has a second moment and numbers for mu and step. decays: its decay at each step.
    """
    momentum, rates = net.momentum, None
    if momentum is not None:
        step, beta = cast(float, momentum.step), cast(float, momentum.beta)
        rates = Rates(step, beta, momentum.eps, momentum.eps_in_sqrt, decays)
    v, n, k = moments or (None, None, None)
    inputs = Inputs(x, w.ih, w.b_ih, w.hh, w.b_hh, v, n, k, tuple(hidden))
    y, *rest = _apply(net, sizes, rates, inputs)
    final, after = tuple(rest[: net.cell.states]), None
    if moments is not None:
        v, n = rest[net.cell.states :]
        after = MomentumState(v, n, moments.k + lengths(sizes, x.device))
    return y, final, after


def recur(
    a: Tensor, sizes: Sequence[int], w: Weights, net: Network, hidden: Sequence[Tensor], moments: None
) -> Result:
    """`layer` without momentum, from its gate inputs a, (N, G), on."""
    inputs = Inputs(a, None, None, w.hh, w.b_hh, None, None, None, tuple(hidden))
    y, *final = _apply(net, sizes, None, inputs)
    return y, tuple(final), None


def _apply(net: Network, sizes: Sequence[int], rates: Rates | None, inputs: Inputs) -> tuple[Tensor, ...]:
    """y, the final state, and with rates v and n."""
    steps = steps_of(net.cell)
    assert steps is not None
    device_type = inputs.x.device.type
    casts = inputs.x.dtype != torch.float64 and autocast_enabled(inputs.x.device)
    if casts:
        inputs = _cast(inputs, torch.get_autocast_dtype(device_type))
    tensors = inputs.flatten()
    training = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    spec = Spec(net._replace(weights=()), steps, sizes, rates)
    with torch.autocast(device_type, enabled=False) if casts else nullcontext():
        return _ChunkedLayer.apply(spec, training, *tensors)  # type: ignore[no-any-return, no-untyped-call]


def _cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """All but the state of the momentum in that dtype."""
    x, w, b, u, b_hh, v, n, k, hidden = inputs
    w, b, b_hh = (None if t is None else t.to(dtype) for t in (w, b, b_hh))
    return Inputs(x.to(dtype), w, b, u.to(dtype), b_hh, v, n, k, tuple(h.to(dtype) for h in hidden))


def recompute_by_reference(spec: Spec, tensors: Sequence[Any]) -> list[Tensor]:
    """What `_ChunkedLayer` returns, by the reference, so that autograd can follow."""
    x, w, b, u, b_hh, v, n, k, hidden = Inputs.unflatten(tensors)
    evaluate = reference.recur if w is None else reference.layer
    weights = Weights(cast(Tensor, w), u, b, b_hh)
    moments = None if k is None else MomentumState(cast(Tensor, v), cast(Tensor, n), k)
    y, final, after = evaluate(x, spec.sizes, weights, spec.net, hidden, moments)
    return [y, *final, *(after[:2] if after else ())]


class _ChunkedLayer(torch.autograd.Function):
    """Returns y, the final state, and with a momentum v and n of each row's last step."""

    @staticmethod
    def forward(ctx: Any, spec: Spec, training: bool, *tensors: Any) -> tuple[Tensor, ...]:
        inputs = Inputs.unflatten(tensors)
        outputs, saved = _forward(spec, inputs, training)
        ctx.spec = spec
        ctx.save_for_backward(*saved.flatten())
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        saved, needed = Saved.unflatten(ctx.spec, ctx.saved_tensors), ctx.needs_input_grad[2:]
        # Operations in place give neither a graph of gradients nor many gradients at once.
        if torch.is_grad_enabled() or may_be_batched(grads):
            recompute = partial(recompute_by_reference, ctx.spec)
            return None, None, *double_backward.gradients(recompute, saved.inputs.flatten(), needed, grads)
        return None, None, *_backward(ctx.spec, saved, needed, grads)


def _forward(spec: Spec, inputs: Inputs, training: bool) -> tuple[tuple[Tensor, ...], Saved]:
    """The outputs, and what the backward needs if there is to be one."""
    x, w, b, u, b_hh, v_0, n_0, _, hidden = inputs
    (gates, size), rates, steps = u.shape, spec.rates, spec.steps
    all_chunks = chunks(spec.sizes, gates, x.device)
    most_rows = all_chunks[0][-1].end
    tracks = [Track(h, _allocate(h, len(x), h.shape[1])) for h in hidden]
    saved_rows = len(x) if training else most_rows
    activations = [_allocate(x, saved_rows, width * size) for width in steps.saved_widths]
    y = _allocate(x, len(x), size) if training and steps.output_is_writable else tracks[0].after
    scratch, u_t = Scratch(most_rows, x), u.t().contiguous()
    running: list[Tensor] = []
    starts: list[Tensor] = []
    gate_inputs = None
    if rates is not None:
        zeros = u.new_zeros(spec.sizes[0], gates, dtype=moments_dtype(x.dtype))
        running = [zeros.clone() if m is None else m.clone() for m in (v_0, n_0)]
        wide_scratch = Scratch(most_rows, zeros)
        if training and x.shape[1] >= MIN_FEATURES_TO_SAVE_GATE_INPUTS:
            gate_inputs = _allocate(x, len(x), gates)
    for chunk in all_chunks:
        rows = rows_of(chunk)
        drive = _project(x[rows], w, b, scratch("drive", rows.stop - rows.start, gates))
        if rates is not None:
            if training:
                starts += [moment[: chunk[0].rows].clone() for moment in running]
            if gate_inputs is not None:
                gate_inputs[rows] = drive
            drive_(rates, chunk, drive, running, wide_scratch)
        local = [a[rows] if training else a[: len(drive)] for a in activations]
        steps.forward(Piece(chunk, u_t, b_hh, tracks, local, scratch), drive)
        if y is not tracks[0].after:
            y[rows] = tracks[0].after_steps(chunk)
    states = [track.after for track in tracks]
    final = (last_rows(state, spec.sizes) for state in states)
    return (y, *final, *running), Saved(inputs, states, activations, gate_inputs, starts)


def _backward(
    spec: Spec, saved: Saved, needed: Sequence[bool], grads: Sequence[Tensor]
) -> list[Tensor | None]:
    """The gradients of `Inputs`, those that are needed, from the gradients of the outputs."""
    x, w, b, u, b_hh, v_0, _, _, hidden = saved.inputs
    rates, states, starts = spec.rates, spec.net.cell.states, list(saved.starts)
    tracks = [Track(h, after) for h, after in zip(hidden, saved.states, strict=True)]
    all_chunks = chunks(spec.sizes, len(u), x.device)
    most_rows = all_chunks[0][-1].end
    d_hidden = [g.clone() for g in grads[1 : 1 + states]]
    d_moments = [g.clone() for g in grads[1 + states :]]
    d_x = torch.empty_like(x) if needed[0] else None
    # Sums over all of time: in 16 bits a long sum would stop growing.
    d_w, d_b, d_u, d_b_hh = sums = [
        torch.zeros_like(cast(Tensor, p), dtype=moments_dtype(x.dtype)) if need else None
        for p, need in zip((w, b, u, b_hh), needed[1:5], strict=True)
    ]
    scratch = Scratch(most_rows, x)
    wide_scratch = scratch if rates is None else Scratch(most_rows, d_moments[0])
    for chunk in reversed(all_chunks):
        rows = rows_of(chunk)
        piece = Piece(chunk, u, b_hh, tracks, [a[rows] for a in saved.activations], scratch)
        d_a, d_products, d_biases = spec.steps.backward(piece, grads[0][rows], d_hidden)
        if d_u is not None:
            _add_product(d_u, d_products, tracks[0].before_steps(chunk))
        if d_b_hh is not None:
            d_b_hh += d_biases.sum(0, dtype=d_b_hh.dtype)
        if rates is not None:
            n, v = starts.pop(), starts.pop()
            if saved.gate_inputs is None:
                a = _project(x[rows], w, b, scratch("a", *d_a.shape))
            else:
                a = saved.gate_inputs[rows]
            d_a = drive_backward(rates, chunk, a, (v, n), d_a, d_moments, wide_scratch)
        if d_w is not None:
            _add_product(d_w, d_a, x[rows])
        if d_b is not None:
            d_b += d_a.sum(0, dtype=d_b.dtype)
        if d_x is not None:
            d_x[rows] = d_a if w is None else torch.mm(d_a, w)
    d_weights = (None if d is None else d.to(x.dtype) for d in sums)
    d_state = (None, None) if v_0 is None else d_moments
    return [d_x, *d_weights, *d_state, None, *d_hidden]


def _allocate(like: Tensor, rows: int, width: int) -> Tensor:
    """Memory to be filled. On a CPU all threads write zeros first, because fresh memory is slow at first."""
    empty = like.new_empty(rows, width)
    # Under deterministic algorithms it is full of nan, by which tests find what nobody wrote.
    if like.device.type == "cpu" and not torch.are_deterministic_algorithms_enabled():
        empty.zero_()
    return empty


def _project(x: Tensor, w: Tensor | None, b: Tensor | None, out: Tensor) -> Tensor:
    """a = W x + b_ih, or x if it is a already."""
    if w is None:
        return out.copy_(x)
    return torch.mm(x, w.t(), out=out) if b is None else torch.addmm(b, x, w.t(), out=out)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += aᵀ b."""
    if total.dtype == a.dtype:
        total.addmm_(a.t(), b)
    else:
        total += a.t() @ b
