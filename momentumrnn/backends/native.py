"""Layers evaluated for all steps at once: by torch's fused layers where there are any, else by `chunked`.

A linear drive commutes with W, because it acts on time and W on features. So the layer is a plain layer on
a filtered input, with one more column for the bias and one more block of columns for v_0:

    v_t = W x̄_t + b_ih g_t + v_0 f_t,     x̄ = M(x),  g = M(1),  f_t = decay_1 ... decay_t

The bias b_ih is the weight of the column g. The momentum v_0 that a state brings differs from row to row of
the batch, so row i has f_t in column i of a block whose weight is v_0ᵀ.
Adam and RMSProp square W x + b_ih. A decay or step that differs between gate rows does not commute with W.
Such drives are computed in gate space, from W x + b_ih.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.nn.functional import pad as constant_pad

from ..cells import GRU, LSTM, Cell, Elman, Weights
from ..momentum import Momentum, MomentumState, scan, step_indices, tensor_fields
from ..packing import all_equal, at_last_steps, lengths, pack, pad
from ..precision import autocast_enabled, cast_in_range, moments_dtype
from ..torch_internals import exporting, onednn_has, transforms_active
from . import chunked, double_backward, reference
from .chunked_steps import steps_of
from .stack import Network, Result, stack

_TORCH_FUNCTIONS: tuple[tuple[Cell, Callable[..., tuple[Tensor, ...]]], ...] = (
    (LSTM(), torch.lstm),
    (GRU(), torch.gru),
    (Elman("tanh"), torch.rnn_tanh),
    (Elman("relu"), torch.rnn_relu),
)

# Up to this many gate inputs, N G in all, torch's GRU and RNN are faster on a CPU than `chunked`.
SMALL_INPUT = 1 << 15
# Up to so many steps under a momentum the definition is faster on a CPU than all that prepares for many.
FEW_STEPS = 2


def _torch_function(cell: Cell) -> Callable[..., tuple[Tensor, ...]] | None:
    return next((function for known, function in _TORCH_FUNCTIONS if known == cell), None)


def refusal(net: Network, sizes: Sequence[int]) -> str:
    if steps_of(net.cell) is None:
        return f"{net.cell!r} has no fused layer in torch and no backward written by hand"
    if transforms_active():
        return "its layers don't run under torch.func transforms such as vmap"
    return ""


def describe(net: Network, sizes: Sequence[int]) -> str:
    w, momentum = net.weights[0], net.momentum
    if _few_steps(net, sizes):
        return f"{reference.describe(net, sizes)}, for so few steps"
    if momentum is not None and not momentum.commutes:
        if w.hr is not None:
            return "the drive of all steps, then a loop"
        drive = "the drive and" if _drive_in_chunks(net, w, momentum) else "the drive of all steps, then"
        return f"{drive} a recurrence in chunks of time, with a backward written by hand"
    name = "a recurrence with a backward written by hand"
    if _torch_is_fastest(net.cell, w, sizes) or (momentum is None and _torch_function(net.cell)):
        name = f"torch.{getattr(_torch_function(net.cell), '__name__', '')}"
    return name if momentum is None else f"{name}, on the filtered input"


def run(
    net: Network,
    x: Tensor,
    sizes: Sequence[int],
    hidden: Sequence[Tensor],
    moments: MomentumState | None,
) -> Result:
    if net.momentum is None and _torch_function(net.cell) is not None:
        return *_torch_layers(net, x, sizes, hidden), None
    return stack(reference.layer if _few_steps(net, sizes) else layer, net, x, sizes, hidden, moments)


def _few_steps(net: Network, sizes: Sequence[int]) -> bool:
    """Whether the definition is faster on a CPU, since there are so few steps under a momentum."""
    device = net.weights[0].ih.device
    few = net.momentum is not None and len(sizes) <= FEW_STEPS and device.type == "cpu"
    return few and not exporting() and not autocast_enabled(device)  # which would make another dtype of it


def layer(
    x: Tensor,
    sizes: Sequence[int],
    w: Weights,
    net: Network,
    hidden: Sequence[Tensor],
    moments: MomentumState | None,
) -> Result:
    """See `stack.Layer`."""
    momentum = net.momentum
    if momentum is not None and not momentum.commutes:
        return _layer_in_gate_space(x, sizes, w, net, momentum, hidden, moments)
    after = None
    if momentum is not None:
        x, w, after = _filter(x, sizes, w, momentum, moments)
    plain_net = Network(net.cell, None, [w])
    if _torch_is_fastest(net.cell, w, sizes) or (exporting() and _torch_function(net.cell)):
        y, states = _torch_layers(plain_net, x, sizes, [h.unsqueeze(0) for h in hidden])
        return y, tuple(h.squeeze(0) for h in states), after
    plain_layer = reference.layer if exporting() else chunked.layer
    y, final, _ = plain_layer(x, sizes, w, plain_net, hidden, None)
    return y, final, after


def _torch_is_fastest(cell: Cell, w: Weights, sizes: Sequence[int]) -> bool:
    """Whether torch has a layer of this cell that is faster than `chunked`.

    On a CPU its GRU and RNN are loops under autograd, which are faster for small inputs only.
    """
    if _torch_function(cell) is None:
        return False
    return cell == LSTM() or w.ih.device.type != "cpu" or sum(sizes) * len(w.hh) < SMALL_INPUT


def _layer_in_gate_space(
    x: Tensor,
    sizes: Sequence[int],
    w: Weights,
    net: Network,
    momentum: Momentum,
    hidden: Sequence[Tensor],
    moments: MomentumState | None,
) -> Result:
    """A layer whose momentum does not commute with W."""
    if _drive_in_chunks(net, w, momentum):
        like = torch.empty(0, len(w.ih), dtype=moments_dtype(x.dtype), device=x.device)
        decays = momentum.decays(step_indices(moments and moments.k, len(sizes), x.device), like)
        if not decays.requires_grad:
            return chunked.layer(x, sizes, w, net, hidden, moments, decays.unbind())
    a = linear(x, w.ih, w.b_ih)
    v, n = momentum.moments(pad(a, sizes), moments)
    # Packed before the readout: in the padding n may be 0, where the printed readout has no gradient.
    packed_v, packed_n = pack(v, sizes), pack(n, sizes)
    drive = cast_in_range(momentum.readout(packed_v, packed_n), a.dtype)
    if net.factored:
        drive = reference.through_u(net, drive, packed_v, packed_n, w.hh)
    recur = reference.recur if w.hr is not None or exporting() else chunked.recur
    y, final, _ = recur(drive, sizes, w, Network(net.cell, None, [w]), hidden, None)
    if moments is None:
        return y, final, None
    k = moments.k + lengths(sizes, x.device)
    return y, final, MomentumState(at_last_steps(v, sizes), at_last_steps(n, sizes), k)


def _drive_in_chunks(net: Network, w: Weights, momentum: Momentum) -> bool:
    """Whether `chunked` can compute the drive, chunk by chunk. On a GPU a scan over all steps is faster."""
    by_numbers = not momentum.linear and not tensor_fields(momentum)
    on_cpu = w.ih.device.type == "cpu"
    return by_numbers and on_cpu and w.hr is None and not net.factored and not exporting()


def _filter(
    x: Tensor, sizes: Sequence[int], w: Weights, momentum: Momentum, moments: MomentumState | None
) -> tuple[Tensor, Weights, MomentumState | None]:
    """The filtered input, the weights that go with it, and the moments at the end."""
    padded, weight = pad(x, sizes).to(moments_dtype(x.dtype)), w.ih
    if w.b_ih is not None:
        # The gradient of cat would be a slice. That of constant_pad is contiguous, as torch's is.
        padded = constant_pad(padded, (0, 1), value=1.0)
        weight = torch.cat([weight, w.b_ih.unsqueeze(-1)], -1)
    decay = momentum.decays(step_indices(moments and moments.k, len(padded), x.device), padded)
    columns, after = scan(decay, momentum.scaled(padded)), None
    if moments is not None:
        v_0, f = moments.v, decay.cumprod(0)  # f: what is left of v_0, see docs/maths.md, section 2
        last, last_f = at_last_steps(columns, sizes), at_last_steps(f, sizes)
        last_v = linear(last, weight.to(last.dtype)) + last_f * v_0
        after = MomentumState(last_v, moments.n, moments.k + lengths(sizes, x.device))
        blocks = _columns_of_v_0(f, cast_in_range(v_0, x.dtype))
        columns = torch.cat([columns, *(block for block, _ in blocks)], -1)
        weight = torch.cat([weight, *(w_0.to(weight.dtype) for _, w_0 in blocks)], -1)
    return cast_in_range(pack(columns, sizes), x.dtype), w._replace(ih=weight, b_ih=None), after


def _columns_of_v_0(f: Tensor, v_0: Tensor) -> list[tuple[Tensor, Tensor]]:
    """f v_0, (T, B, G), as columns and their weights: G columns if B > G, else B and one more."""
    rows, gates = v_0.shape
    identity = torch.eye(min(rows, gates), dtype=v_0.dtype, device=v_0.device)
    if gates < rows:
        return [(f * v_0, identity)]
    # v_0 of row i is the weight of column i, which is 0 in all other rows. But 0 times nan is nan. So entries
    # that are not finite become 0 here, and one more column makes their own row nan.
    finite = v_0.isfinite()
    nan_rows = (v_0 - v_0).sum(-1, keepdim=True).detach().expand(len(f), -1, 1)
    return [(f * identity, v_0.where(finite, 0).T), (nan_rows, v_0.new_ones(gates, 1))]


def _torch_layers(
    net: Network, x: Tensor, sizes: Sequence[int], hidden: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """All layers of a network without momentum, by one call of torch's function.

    x: packed, (N, D), or (T, B, D). Torch's results depend on the strides of its input, in the last bits.
    """
    function = _torch_function(net.cell)
    assert function is not None
    biased = x.is_cuda or net.weights[0].b_hh is not None  # cuDNN's own layout always has biases
    weights = [p for w in net.weights for p in _in_torch_order(w, biased)]
    if x.is_cuda:
        weights = _in_one_block(weights)
    # Torch has another path for packed sequences, whose last bits differ, even where all are of one length.
    packed = net.packed or not all_equal(sizes)
    if not packed and _onednn_would_raise(net, x, hidden):
        return _torch_layers_cast_to(torch.get_autocast_dtype("cpu"), net, x, sizes, hidden)
    if packed:
        sequence, batch_first = [x, torch.tensor(sizes, device="cpu")], []
    else:
        sequence, batch_first = [x if x.dim() == 3 else pad(x, sizes)], [False]
    y, *final = function(
        *sequence,
        hidden if len(hidden) > 1 else hidden[0],
        weights,
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
    y, *final = _differentiable_twice(net, x, sizes, hidden, [y, *final])
    return y, tuple(final)


def _onednn_would_raise(net: Network, x: Tensor, hidden: Sequence[Tensor]) -> bool:
    """Whether torch, under autocast, hands an LSTM to oneDNN where oneDNN has no LSTM in 16 bits."""
    if x.device.type != "cpu" or not torch.is_autocast_enabled("cpu") or exporting():
        return False
    if net.cell != LSTM() or net.weights[0].hr is not None:
        return False
    dtype = torch.get_autocast_dtype("cpu")
    if not torch.backends.mkldnn.enabled or x.numel() == 0 or onednn_has(dtype):
        return False
    if x.dtype in (torch.bfloat16, torch.float16):
        # x may come from a layer below that was computed in this way, while its state is still in float32.
        from_below = x.dtype == dtype and any(h.dtype != dtype for h in hidden)
        return from_below or onednn_has(x.dtype)
    return x.dtype == torch.float32


def _torch_layers_cast_to(
    dtype: torch.dtype, net: Network, x: Tensor, sizes: Sequence[int], hidden: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """`_torch_layers` on tensors cast to `dtype`, with autocast off."""
    weights = [Weights(*(None if p is None else p.to(dtype) for p in w)) for w in net.weights]  # type: ignore[arg-type]
    with torch.autocast("cpu", enabled=False):
        return _torch_layers(net._replace(weights=weights), x.to(dtype), sizes, [h.to(dtype) for h in hidden])


def _in_torch_order(w: Weights, biased: bool) -> list[Tensor]:
    """The weights of a layer as torch's functions take them: with both biases or none."""
    zero = w.hh.new_zeros(len(w.hh)) if biased else None
    b_ih, b_hh = (zero if b is None else b for b in (w.b_ih, w.b_hh))
    return [p for p in (w.ih, w.hh, b_ih, b_hh, w.hr) if p is not None]


def _in_one_block(weights: Sequence[Tensor]) -> list[Tensor]:
    """The same weights side by side in one block of memory, matrices first, as cuDNN wants them."""
    order = sorted(range(len(weights)), key=lambda i: weights[i].dim() == 1)
    block = torch.cat([weights[i].flatten() for i in order])
    pieces = torch.split_with_sizes(block, [weights[i].numel() for i in order])
    placed = dict(zip(order, pieces, strict=True))
    return [placed[i].view_as(p) for i, p in enumerate(weights)]


def _differentiable_twice(
    net: Network,
    x: Tensor,
    sizes: Sequence[int],
    hidden: Sequence[Tensor],
    outputs: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """The outputs of cuDNN, whose backward can't be differentiated, with a backward that can."""
    present = [[p is not None for p in w] for w in net.weights]

    def recompute(inputs: Sequence[Tensor]) -> list[Tensor]:
        x, *rest = inputs
        states, params = rest[: len(hidden)], iter(rest[len(hidden) :])
        weights = [Weights(*(next(params) if p else None for p in ps)) for ps in present]  # type: ignore[arg-type]
        y, final, _ = reference.run(net._replace(weights=weights), x, sizes, states, None)
        return [y, *final]

    inputs = [x, *hidden, *(p for w in net.weights for p in w if p is not None)]
    return double_backward.differentiable_twice(recompute, outputs, inputs)
