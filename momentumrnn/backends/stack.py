"""Layers on layers, directions side by side, dropout in between: for the `layer` of any backend."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import dropout, linear

from ..cells import Cell, Weights
from ..momentum import Momentum, MomentumState, narrow
from ..packing import reverse

Result = tuple[Tensor, tuple[Tensor, ...], MomentumState | None]


class Network(NamedTuple):
    """What a backend is asked to run.

    weights: one entry for each layer and direction; packed: whether the input came as a PackedSequence;
    factored: "derived" or "printed" if the drive goes through U, see `through_u`, else "".
    """

    cell: Cell
    momentum: Momentum | None
    weights: Sequence[Weights]
    bidirectional: bool = False
    dropout: float = 0.0
    packed: bool = False
    factored: str = ""


class Layer(Protocol):
    """One direction of one layer of `net`, with the weights w.

    x: (N, D), packed; sizes: rows in each step; hidden: (h, ...), (B, H) each; moments: None at the start
    of a sequence. Returns h of every step (N, H), the final state of each row and, if moments were given,
    its moments.
    """

    def __call__(
        self,
        x: Tensor,
        sizes: Sequence[int],
        w: Weights,
        net: Network,
        hidden: Sequence[Tensor],
        moments: MomentumState | None,
    ) -> Result: ...


def exporting() -> bool:
    """Whether torch.export is at work. Its own flag, since torch 2.11 says so whenever it compiles."""
    return bool(getattr(torch.compiler, "_is_exporting_flag", False))


def through_u(net: Network, drive: Tensor, v: Tensor, n: Tensor, u: Tensor) -> Tensor:
    """The drive of a factored network: U M(a) as derived, or as printed with U on the numerator alone."""
    if net.factored == "derived":
        return linear(drive, u)
    assert net.momentum is not None
    return narrow(net.momentum.readout(linear(v, u.to(v.dtype)), n), drive.dtype)


def stack(
    layer: Layer,
    net: Network,
    x: Tensor,
    sizes: Sequence[int],
    hidden: Sequence[Tensor],
    moments: MomentumState | None,
) -> Result:
    """The whole network. hidden, v and n have a leading axis: one entry for each layer and direction."""
    finals, after = [], []
    directions = 2 if net.bidirectional else 1
    for first in range(0, len(net.weights), directions):
        if first > 0 and net.dropout > 0:
            x = dropout(x, net.dropout)
        ys = []
        for i in range(first, first + directions):
            turn = i > first
            y, final, m = layer(
                reverse(x, sizes) if turn else x,
                sizes,
                net.weights[i],
                net,
                [h[i] for h in hidden],
                moments and MomentumState(moments.v[i], moments.n[i], moments.k),
            )
            ys.append(reverse(y, sizes) if turn else y)
            finals.append(final)
            after.append(m)
        x = torch.cat(ys, -1) if net.bidirectional else ys[0]
    ends = tuple(map(torch.stack, zip(*finals, strict=True)))
    if moments is None:
        return x, ends, None
    v, n, k = zip(*(m for m in after if m is not None), strict=True)
    return x, ends, MomentumState(torch.stack(v), torch.stack(n), k[0])
