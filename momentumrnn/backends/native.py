"""Layers in whole-sequence operations: torch's fused layers where it has them, else `recurrence`.

A linear drive commutes with W, because it acts on time and W on features. So the layer is a plain layer on
a filtered input, with a further column for each further thing that is driven:

    v_t = W x̄_t + b_ih g_t + v_0 f_t,     x̄ = M(x),  g = M(1),  f_t = decay_1 ... decay_t

The bias b_ih is the weight of the column g. The momentum v_0 that a state brings differs from row to row of
the batch, so row i has f_t in column i of a block whose weight is v_0ᵀ.
Adam and RMSProp square W x + b_ih, and a decay or step that differs between gate rows does not commute with
W: such drives live in gate space.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..cells import GRU, LSTM, Cell, Elman, Weights
from ..momentum import Momentum, MomentumState, count, learned, narrow, scan, wide
from ..packing import at_ends, lengths, pack, pad, rectangular
from . import recurrence, reference
from .stack import Network, Result, exporting, stack, through_u

_FUNCTIONS: tuple[tuple[Cell, Callable[..., tuple[Tensor, ...]]], ...] = (
    (LSTM(), torch.lstm),
    (GRU(), torch.gru),
    (Elman("tanh"), torch.rnn_tanh),
    (Elman("relu"), torch.rnn_relu),
)

# Gate inputs, in numbers, up to which torch's GRU and RNN beat ours on a CPU.
SMALL = 1 << 15


def _function(cell: Cell) -> Callable[..., tuple[Tensor, ...]] | None:
    return next((function for known, function in _FUNCTIONS if known == cell), None)


def supports(net: Network, sizes: Sequence[int]) -> str:
    if recurrence.steps_of(net.cell) is None:
        return f"{net.cell!r} has no fused layer in torch and no backward written by hand"
    if torch._C._are_functorch_transforms_active():
        return "its layers don't run under torch.func transforms such as vmap"
    return ""


def about(net: Network, sizes: Sequence[int]) -> str:
    w, m = net.weights[0], net.momentum
    if m is not None and not m.commutes:
        if w.hr is not None:
            return "the drive of all steps, then a loop"
        together = "the drive of all steps, then" if m.linear or learned(m) else "the drive and"
        return f"{together} a recurrence in chunks of time, with a backward written by hand"
    name = "a recurrence with a backward written by hand"
    if _fused(net.cell, w, sizes) or (m is None and _function(net.cell)):
        name = f"torch.{getattr(_function(net.cell), '__name__', '')}"
    return name if m is None else f"{name}, on the filtered input"


def run(
    net: Network,
    x: Tensor,
    sizes: Sequence[int],
    hidden: Sequence[Tensor],
    moments: MomentumState | None,
) -> Result:
    if net.momentum is None and _function(net.cell) is not None:
        return *_plain(net, x, sizes, hidden), None
    return stack(layer, net, x, sizes, hidden, moments)


def layer(
    x: Tensor,
    sizes: Sequence[int],
    w: Weights,
    net: Network,
    hidden: Sequence[Tensor],
    moments: MomentumState | None,
) -> Result:
    """See `stack.Layer`."""
    m = net.momentum
    if m is not None and not m.commutes:
        return _driven(x, sizes, w, net, m, hidden, moments)
    after = None
    if m is not None:
        x, w, after = _filter(x, sizes, w, m, moments)
    if _fused(net.cell, w, sizes) or (exporting() and _function(net.cell)):
        return *_by_torch(x, sizes, w, net, hidden), after
    plain = reference.layer if exporting() else recurrence.layer
    y, final, _ = plain(x, sizes, w, Network(net.cell, None, [w]), hidden, None)
    return y, final, after


def _by_torch(
    x: Tensor, sizes: Sequence[int], w: Weights, net: Network, hidden: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One direction of one layer without momentum."""
    y, final = _plain(Network(net.cell, None, [w]), x, sizes, [h.unsqueeze(0) for h in hidden])
    return y, tuple(h.squeeze(0) for h in final)


def _fused(cell: Cell, w: Weights, sizes: Sequence[int]) -> bool:
    """Whether torch's own layer is the fastest.

    On a CPU its GRU and RNN are loops under autograd, which only small inputs are better off with.
    """
    if _function(cell) is None:
        return False
    return cell == LSTM() or w.ih.device.type != "cpu" or sum(sizes) * len(w.hh) < SMALL


def _driven(
    x: Tensor,
    sizes: Sequence[int],
    w: Weights,
    net: Network,
    m: Momentum,
    hidden: Sequence[Tensor],
    moments: MomentumState | None,
) -> Result:
    """A layer whose momentum does not commute with W."""
    fixed = not m.linear and not learned(m)
    # On a GPU a scan in log T passes over whole tensors beats T steps.
    if fixed and x.device.type == "cpu" and w.hr is None and not net.factored and not exporting():
        like = torch.empty(0, len(w.ih), dtype=wide(x.dtype), device=x.device)
        decays = m.decays(count(moments and moments.k, len(sizes), x.device), like)
        if not decays.requires_grad:
            return recurrence.layer(x, sizes, w, net, hidden, moments, decays.unbind())
    a = linear(x, w.ih, w.b_ih)
    v, n = m.moments(pad(a, sizes), moments)
    # Packed first: where n is 0, in the padding too, the printed readout has no gradient.
    first, second = pack(v, sizes), pack(n, sizes)
    drive = narrow(m.readout(first, second), a.dtype)
    if net.factored:
        drive = through_u(net, drive, first, second, w.hh)
    recur = reference.recur if w.hr is not None or exporting() else recurrence.recur
    y, final, _ = recur(drive, sizes, w, Network(net.cell, None, [w]), hidden, None)
    return y, final, moments and _at_end(v, n, moments.k, sizes)


def _at_end(v: Tensor, n: Tensor, k: Tensor, sizes: Sequence[int]) -> MomentumState:
    """The state of each row after its own last step, from v and n after every step, (T, B, G)."""
    return MomentumState(at_ends(v, sizes), at_ends(n, sizes), k + lengths(sizes, v.device))


def _filter(
    x: Tensor, sizes: Sequence[int], w: Weights, momentum: Momentum, moments: MomentumState | None
) -> tuple[Tensor, Weights, MomentumState | None]:
    """The filtered input, the weights that go with it, and the moments at the end."""
    z, weight = pad(x, sizes).to(wide(x.dtype)), w.ih
    if w.b_ih is not None:
        z = torch.cat([z, z.new_ones(*z.shape[:2], 1)], -1)
        weight = torch.cat([weight, w.b_ih.unsqueeze(-1)], -1)
    decay = momentum.decays(count(moments and moments.k, len(z), z.device), z)
    columns, after = scan(decay, momentum.scaled(z)), None
    if moments is not None:
        v_0, fade = moments.v, decay.cumprod(0)
        ends, faded, taken = _at_end(columns, fade, moments.k, sizes)
        after = MomentumState(linear(ends, weight.to(ends.dtype)) + faded * v_0, moments.n, taken)
        blocks = _as_columns(fade, narrow(v_0, x.dtype))
        columns = torch.cat([columns, *(column for column, _ in blocks)], -1)
        weight = torch.cat([weight, *(w_0.to(weight.dtype) for _, w_0 in blocks)], -1)
    return narrow(pack(columns, sizes), x.dtype), w._replace(ih=weight, b_ih=None), after


def _as_columns(fade: Tensor, v_0: Tensor) -> list[tuple[Tensor, Tensor]]:
    """fade v_0, (T, B, G), as columns and their weights: B or G columns, whichever are fewer."""
    rows, gates = v_0.shape
    one = torch.eye(min(rows, gates), dtype=v_0.dtype, device=v_0.device)
    if gates < rows:
        return [(fade * v_0, one)]
    # As a weight v_0 meets all rows, with factors of 0: a nan in it would not stay in its row. So it enters
    # as 0, and a last column spoils that row alone.
    finite = v_0.isfinite()
    spoilt = (v_0 - v_0).sum(-1, keepdim=True).detach().expand(len(fade), -1, 1)
    return [(fade * one, v_0.where(finite, 0).T), (spoilt, v_0.new_ones(gates, 1))]


def _plain(
    net: Network, x: Tensor, sizes: Sequence[int], hidden: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Torch's own layers, all at once."""
    function = _function(net.cell)
    assert function is not None
    biased = x.is_cuda or net.weights[0].b_hh is not None  # cuDNN's own layout always has biases
    params = [p for w in net.weights for p in _params(w, biased)]
    if x.is_cuda:
        params = _one_chunk(params)
    # Torch has another path for packed sequences, with other bits, even where all are of one length.
    packed = net.packed or not rectangular(sizes)
    sequence, batch_first = (
        ([x, torch.tensor(sizes, device="cpu")], []) if packed else ([pad(x, sizes)], [False])
    )
    y, *final = function(
        *sequence,
        hidden if len(hidden) > 1 else hidden[0],
        params,
        biased,
        len(net.weights) // (2 if net.bidirectional else 1),
        net.dropout,
        net.dropout > 0 or torch.is_grad_enabled(),  # training, without which cuDNN has no backward
        net.bidirectional,
        *batch_first,
    )
    y = y if packed else y.flatten(0, 1)
    if not x.is_cuda or net.dropout > 0:
        return y, tuple(final)
    y, *final = _twice_differentiable(net, x, sizes, hidden, [y, *final])
    return y, tuple(final)


def _params(w: Weights, biased: bool) -> list[Tensor]:
    """In torch's order; torch has both biases or none."""
    zero = w.hh.new_zeros(len(w.hh)) if biased else None
    b_ih, b_hh = (zero if b is None else b for b in (w.b_ih, w.b_hh))
    return [p for p in (w.ih, w.hh, b_ih, b_hh, w.hr) if p is not None]


def _one_chunk(params: Sequence[Tensor]) -> list[Tensor]:
    """The same weights side by side in one piece of memory, matrices first, as cuDNN wants them."""
    order = sorted(range(len(params)), key=lambda i: params[i].dim() == 1)
    flat = torch.cat([params[i].flatten() for i in order])
    pieces = torch.split_with_sizes(flat, [params[i].numel() for i in order])
    placed = dict(zip(order, pieces, strict=True))
    return [placed[i].view_as(p) for i, p in enumerate(params)]


def _twice_differentiable(
    net: Network,
    x: Tensor,
    sizes: Sequence[int],
    hidden: Sequence[Tensor],
    outputs: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """The outputs of cuDNN, whose backward can't be differentiated, with one that can."""
    present = [[p is not None for p in w] for w in net.weights]

    def again(inputs: Sequence[Tensor]) -> list[Tensor]:
        x, *rest = inputs
        given = iter(rest)
        hs = [next(given) for _ in hidden]
        weights = [Weights(*(next(given) if p else None for p in ps)) for ps in present]  # type: ignore[arg-type]
        y, final, _ = reference.run(net._replace(weights=weights), x, sizes, hs, None)
        return [y, *final]

    inputs = [x, *hidden, *(p for w in net.weights for p in w if p is not None)]
    return _Twice.apply(again, len(outputs), *outputs, *inputs)  # type: ignore[no-any-return, no-untyped-call]


class _Twice(torch.autograd.Function):
    """Passes gradients on to the graph of `outputs`; asked for a graph of gradients, recomputes instead."""

    @staticmethod
    def forward(ctx: Any, again: Callable[..., Any], count: int, *tensors: Tensor) -> Any:
        ctx.again, ctx.count = again, count
        ctx.save_for_backward(*tensors[count:])
        return tuple(t.view_as(t) for t in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        inputs = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return None, None, *grads, *(None for _ in inputs)
        to_inputs = recurrence.gradients(ctx.again, inputs, ctx.needs_input_grad[2 + ctx.count :], grads)
        return None, None, *(None for _ in grads), *to_inputs
