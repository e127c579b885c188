"""The definition of a layer: project, then for each step drive and recur. Any dtype, cell and momentum."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..cells import Weights
from ..momentum import MomentumState
from .stack import Network, Result, stack, through_u


def supports(net: Network, sizes: Sequence[int]) -> str:
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
    if net.momentum is not None and moments is None:
        moments = net.momentum.start(sizes[0], len(w.ih), x)
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
    # Under autocast a is narrower than the states and biases that came with it.
    state, ys = tuple(h.to(a.dtype) for h in hidden), []
    b_hh = None if w.b_hh is None else w.b_hh.to(a.dtype)
    for v in torch.split_with_sizes(a, list(sizes)):
        if net.momentum is not None and moments is not None:
            v, now = net.momentum.update(v, MomentumState(*_first_rows(moments, len(v))))
            if net.factored:
                v = through_u(net, v, now.v, now.n, w.hh)
            moments = MomentumState(*map(_with_ended_rows, now, moments))
        old = _first_rows(state, len(v))
        h = net.cell.step(v, linear(old[0], w.hh), b_hh, old)
        if w.hr is not None:
            h = (linear(h[0], w.hr), *h[1:])
        if not isinstance(h, tuple) or [s.shape for s in h] != [s.shape for s in old]:
            expected = f"a tuple of tensors like its state, {_shapes(old)}"
            raise TypeError(f"{type(net.cell).__name__}.step should return {expected}, got {_shapes(h)}")
        ys.append(h[0])
        state = tuple(map(_with_ended_rows, h, state))
    return torch.cat(ys), state, moments


def _shapes(h: object) -> object:
    return tuple(tuple(s.shape) for s in h) if isinstance(h, tuple) else type(h).__name__


def _first_rows(state: Sequence[Tensor], rows: int) -> tuple[Tensor, ...]:
    """The rows whose sequences have not ended."""
    return tuple(s if len(s) == rows else s[:rows] for s in state)


def _with_ended_rows(new: Tensor, old: Tensor) -> Tensor:
    """The new state. Rows whose sequences have ended keep their last one."""
    return new if len(new) == len(old) else torch.cat([new, old[len(new) :]])
