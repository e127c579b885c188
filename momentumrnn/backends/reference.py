"""The definition of a layer: project, then for each step drive and recur. Any dtype, cell and momentum."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..cells import Weights
from ..momentum import MomentumState, cast_in_range
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
    if net.momentum is not None and moments is None:
        moments = net.momentum.start(sizes[0], a.shape[-1], a)
    # Under autocast a has fewer bits than the states and biases that came with it.
    state, outputs = tuple(h.to(a.dtype) for h in hidden), []
    b_hh = None if w.b_hh is None else w.b_hh.to(a.dtype)
    steps = torch.split_with_sizes(a, list(sizes)) if len(sizes) > 1 else (a,)
    for a_t, rows in zip(steps, sizes, strict=True):
        drive, all_rows = a_t, rows == sizes[0]
        if net.momentum is not None and moments is not None:
            begun = moments if all_rows else MomentumState(*_first_rows(moments, rows))
            drive, updated = net.momentum.update(a_t, begun)
            if net.factored:
                drive = through_u(net, drive, updated.v, updated.n, w.hh)
            moments = updated if all_rows else MomentumState(*map(_with_ended_rows, updated, moments))
        previous = state if all_rows else _first_rows(state, rows)
        following = net.cell.step(drive, linear(previous[0], w.hh), b_hh, previous)
        if w.hr is not None:
            following = (linear(following[0], w.hr), *following[1:])
        if not isinstance(following, tuple) or [s.shape for s in following] != [s.shape for s in previous]:
            expected = f"a tuple of tensors like its state, {_shapes(previous)}"
            name, got = type(net.cell).__name__, _shapes(following)
            raise TypeError(f"{name}.step should return {expected}, got {got}")
        outputs.append(following[0])
        state = following if all_rows else tuple(map(_with_ended_rows, following, state))
    return torch.cat(outputs), state, moments


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
