"""The definition of a layer: project, then for each step drive and recur. Any dtype, cell and momentum."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..cells import Weights
from ..momentum import MomentumState
from ..precision import cast_in_range
from .stack import Network, Result, stack


def refusal(net: Network, sizes: Sequence[int]) -> str:
    return ""


def describe(net: Network, sizes: Sequence[int]) -> str:
    return "the definition, a loop over time"


def run(
    net: Network,
    x: Tensor,
    sizes: Sequence[int],
    hidden: Sequence[Tensor],
    moments: MomentumState | None,
) -> Result:
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
    return recur(linear(x, w.ih, w.b_ih), sizes, w, net, hidden, moments)


def recur(
    a: Tensor,
    sizes: Sequence[int],
    w: Weights,
    net: Network,
    hidden: Sequence[Tensor],
    moments: MomentumState | None,
) -> Result:
    """`layer` from its gate inputs a, (N, G), on."""
    w, state, moments = _begin(a, sizes[0], w, net, hidden, moments)
    outputs = []
    for a_t, rows in zip(torch.split_with_sizes(a, list(sizes)), sizes, strict=True):
        if rows == sizes[0]:
            state, moments = _step(a_t, w, net, state, moments)
            outputs.append(state[0])
            continue
        begun = moments and MomentumState(*_first_rows(moments, rows))
        following, updated = _step(a_t, w, net, _first_rows(state, rows), begun)
        outputs.append(following[0])
        state = tuple(map(_with_ended_rows, following, state))
        moments = moments and updated and MomentumState(*map(_with_ended_rows, updated, moments))
    return torch.cat(outputs), state, moments


def one_step(
    x: Tensor, w: Weights, net: Network, hidden: Sequence[Tensor], moments: MomentumState | None
) -> tuple[tuple[Tensor, ...], MomentumState | None]:
    """`layer` for a single step. x: (B, D). Its h is the first tensor of the state that is returned."""
    a = linear(x, w.ih, w.b_ih)
    w, state, moments = _begin(a, len(a), w, net, hidden, moments)
    return _step(a, w, net, state, moments)


def _begin(
    a: Tensor, rows: int, w: Weights, net: Network, hidden: Sequence[Tensor], moments: MomentumState | None
) -> tuple[Weights, tuple[Tensor, ...], MomentumState | None]:
    """The weights, state and moments of the first step, in the dtype of its gate inputs a."""
    if net.momentum is not None and moments is None:
        moments = net.momentum.start(rows, a.shape[-1], a)
    # Under autocast a has fewer bits than the states and biases that came with it.
    if w.b_hh is not None and w.b_hh.dtype != a.dtype:
        w = w._replace(b_hh=w.b_hh.to(a.dtype))
    return w, tuple(h if h.dtype == a.dtype else h.to(a.dtype) for h in hidden), moments


def _step(
    a: Tensor, w: Weights, net: Network, state: tuple[Tensor, ...], moments: MomentumState | None
) -> tuple[tuple[Tensor, ...], MomentumState | None]:
    """The state and the moments after one time step. a: its gate inputs, (B, G)."""
    drive = a
    if net.momentum is not None and moments is not None:
        drive, moments = net.momentum.update(a, moments)
        if net.factored:
            drive = through_u(net, drive, moments.v, moments.n, w.hh)
    following = net.cell.step(drive, linear(state[0], w.hh), w.b_hh, state)
    if w.hr is not None:
        following = (linear(following[0], w.hr), *following[1:])
    if not isinstance(following, tuple) or [s.shape for s in following] != [s.shape for s in state]:
        expected = f"a tuple of tensors like its state, {_shapes(state)}"
        name, got = type(net.cell).__name__, _shapes(following)
        raise TypeError(f"{name}.step should return {expected}, got {got}")
    return following, moments


def through_u(net: Network, drive: Tensor, v: Tensor, n: Tensor, u: Tensor) -> Tensor:
    """The drive of a factored network: U M(a) as derived, or U on the numerator alone as printed."""
    if net.factored == "derived":
        return linear(drive, u)
    assert net.momentum is not None
    return cast_in_range(net.momentum.readout(linear(v, u.to(v.dtype)), n), drive.dtype)


def fold_u(w: Weights) -> Weights:
    """U W and U b_ih in place of W and b_ih: for a factored layer whose momentum commutes with W."""
    return w._replace(ih=w.hh @ w.ih, b_ih=None if w.b_ih is None else w.hh @ w.b_ih)


def _shapes(state: object) -> object:
    """The shapes of a tuple of tensors; of anything else its type, for an error message."""
    return tuple(tuple(s.shape) for s in state) if isinstance(state, tuple) else type(state).__name__


def _first_rows(state: Sequence[Tensor], rows: int) -> tuple[Tensor, ...]:
    """The rows whose sequences have not ended."""
    return tuple(s[:rows] for s in state)


def _with_ended_rows(new: Tensor, old: Tensor) -> Tensor:
    """The new state. Rows whose sequences have ended keep their last one."""
    return torch.cat([new, old[len(new) :]])
