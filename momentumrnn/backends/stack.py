"""A network from the `layer` of any backend: layers, both directions of each, dropout in between."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import dropout

from ..cells import Cell, Weights
from ..momentum import Momentum, MomentumState
from ..packing import packed_rows, reverse

# h of every step, the final hidden state, and the final moments, or None if none came in.
Result = tuple[Tensor, tuple[Tensor, ...], MomentumState | None]


class Network(NamedTuple):
    """What a backend is asked to run.

    weights: one entry for each layer and direction; packed: whether the input came as a PackedSequence;
    factored: "derived" or "printed" if the drive goes through U, see `reference.through_u`, else "".
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
    of a sequence. Returns h of every step, (N, H), and of each row the final state and, unless `moments` is
    None, the final moments.
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


def stack(
    layer: Layer,
    net: Network,
    x: Tensor,
    sizes: Sequence[int],
    hidden: Sequence[Tensor],
    moments: MomentumState | None,
) -> Result:
    """The whole network. Tensors of the state have a leading axis, an entry for each layer and direction."""
    x = packed_rows(x)
    finals, after = [], []
    directions = 2 if net.bidirectional else 1
    for first in range(0, len(net.weights), directions):
        if first > 0 and net.dropout > 0:
            x = dropout(x, net.dropout)
        outputs = []
        for i in range(first, first + directions):
            reversed_in_time = i > first
            y, final, moments_of_layer = layer(
                reverse(x, sizes) if reversed_in_time else x,
                sizes,
                net.weights[i],
                net,
                [h[i] for h in hidden],
                moments and MomentumState(moments.v[i], moments.n[i], moments.k[i]),
            )
            outputs.append(reverse(y, sizes) if reversed_in_time else y)
            finals.append(final)
            after.append(moments_of_layer)
        x = torch.cat(outputs, -1) if net.bidirectional else outputs[0]
    final_hidden = tuple(map(torch.stack, zip(*finals, strict=True)))
    if moments is None:
        return x, final_hidden, None
    v, n, k = map(torch.stack, zip(*(m for m in after if m is not None), strict=True))
    return x, final_hidden, MomentumState(v, n, k)
