"""The initial weights of a layer. Knows the gates of a cell, but not what the cell does with them.

A layer takes a name, `init="torch"`, `"paper"` or `"dtriv"`, or an object: `init.Paper(forget_bias=-4)`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .cells import Cell
from .value_checks import check_number, convert_numpy_fields


class Init(ABC):
    """An initialisation: it is called for each weight of a layer, in torch's order."""

    @abstractmethod
    def __call__(self, name: str, weight: Tensor, cell: Cell, hidden_size: int) -> None:
        """Fill one weight in place.

        name: "weight_ih", "weight_hh", "bias_ih", "bias_hh" or "weight_hr", without layer and direction
        weight: the tensor to fill, in torch's shape
        cell: the cell of the layer, which knows its gates and which of them forgets
        hidden_size: H
        """


@dataclass(frozen=True)
class Torch(Init):
    """The initialisation of torch's layers: all weights are uniform within ±1 / sqrt(hidden_size)."""

    def __call__(self, name: str, weight: Tensor, cell: Cell, hidden_size: int) -> None:
        bound = 1 / math.sqrt(hidden_size)
        nn.init.uniform_(weight, -bound, bound)


@dataclass(frozen=True)
class Paper(Init):
    """The initialisation of the paper's LSTMs: W orthogonal, U the identity, forget bias 1.

    forget_bias: entries of the forget gate in b_ih *and* in b_hh. The paper has 1, on TIMIT -4. Default: 1
    identity: where U has the identity. "first": in the rows of the first gate alone, as in the released
        code. "every": in the rows of every gate, as in the paper. Default: "first"

    Without momentum the forget gate has the bias `2 forget_bias` in total. With a heavy ball it has
    `forget_bias (1 + step (1 - mu^t) / (1 - mu))` at step t.

    >>> from momentumrnn import LSTM
    >>> lstm = LSTM(3, 2, init=Paper(forget_bias=-4.0))
    >>> lstm.bias_hh_l0
    Parameter containing:
    tensor([ 0.,  0., -4., -4.,  0.,  0.,  0.,  0.], requires_grad=True)
    """

    forget_bias: float = 1.0
    identity: str = "first"

    def __post_init__(self) -> None:
        check_number("Paper: forget_bias", self.forget_bias, "a number", expected_range="finite")
        if self.identity not in ("first", "every"):
            raise ValueError(f"Paper: identity should be 'first' or 'every', got {self.identity!r}")
        convert_numpy_fields(self, ("forget_bias",))

    def __call__(self, name: str, weight: Tensor, cell: Cell, hidden_size: int) -> None:
        if name == "weight_ih":
            # A QR decomposition needs 32 bits.
            exact = torch.promote_types(weight.dtype, torch.float32)
            with torch.no_grad():
                weight.copy_(nn.init.orthogonal_(torch.empty_like(weight, dtype=exact)))
        elif name == "weight_hh" and self.identity == "first":
            nn.init.eye_(weight)
        elif name == "weight_hh":
            for block in weight.detach().split(hidden_size):  # type: ignore[no-untyped-call]
                nn.init.eye_(block)
        elif name == "weight_hr":
            Torch()(name, weight, cell, hidden_size)
        else:
            nn.init.zeros_(weight)
            if cell.forget is not None:
                rows = weight.detach()[cell.forget * hidden_size : (cell.forget + 1) * hidden_size]
                nn.init.constant_(rows, self.forget_bias)


@dataclass(frozen=True)
class Dtriv(Init):
    """The initialisation of networks with an orthogonal U: W ~ N(0, 2 / input_size), b_hh ~ U(-0.01, 0.01).

    angles: how U is drawn, "cayley" or "henaff", see `cayley_` and `henaff_`. Default: "cayley"

    Use it with `orthogonal(rnn)`. Those networks have no b_ih; where a layer has one, it is 0.

    >>> from momentumrnn import RNN
    >>> rnn = RNN(3, 8, nonlinearity="modrelu", bias="hh", init=Dtriv(angles="henaff"))
    >>> torch.allclose(rnn.weight_hh_l0.T @ rnn.weight_hh_l0, torch.eye(8), atol=1e-6)
    True
    """

    angles: str = "cayley"

    def __post_init__(self) -> None:
        if self.angles not in list(ANGLES):
            raise ValueError(f"Dtriv: angles should be 'cayley' or 'henaff', got {self.angles!r}")

    def __call__(self, name: str, weight: Tensor, cell: Cell, hidden_size: int) -> None:
        if name == "weight_ih":
            nn.init.kaiming_normal_(weight, nonlinearity="relu")
        elif name == "weight_hh":
            if len(weight) != weight.shape[1]:
                shape = tuple(weight.shape)
                raise ValueError(f"init={self!r} needs a square weight_hh, got {shape} for {cell!r}")
            ANGLES[self.angles](weight)
        elif name == "bias_hh":
            nn.init.uniform_(weight, -0.01, 0.01)
        else:
            nn.init.zeros_(weight)


def henaff_(matrix: Tensor) -> Tensor:
    """Fill an (n, n) matrix with rotations of n // 2 planes by angles θ ~ U(-π, π), in place; returns it.

        matrix = exp(S),   S[2i, 2i+1] = θ_i = -S[2i+1, 2i],   else 0

    Reference: Henaff, Szlam, LeCun, Recurrent Orthogonal Networks and Long-Memory Tasks, ICML 2016.

    >>> U = henaff_(torch.empty(5, 5))
    >>> torch.allclose(U.T @ U, torch.eye(5), atol=1e-6)
    True
    """
    return _rotate_(matrix, lambda angles: angles.uniform_(-math.pi, math.pi))


def cayley_(matrix: Tensor) -> Tensor:
    """Fill an (n, n) matrix with rotations of n // 2 planes by angles in (-1, 0), in place; returns it.

        matrix = exp(S),   S[2i, 2i+1] = θ_i = -S[2i+1, 2i],   θ = -tan(u / 2),   u ~ U(0, π/2)

    The released code of DTRIV draws the same angles. They were meant for the Cayley map, which would turn θ
    into rotations by u; exp rotates by θ itself.
    Reference: Helfrich, Willmott, Ye, Orthogonal Recurrent Neural Networks with Scaled Cayley Transform,
    ICML 2018.

    >>> U = cayley_(torch.empty(5, 5))
    >>> torch.allclose(U.T @ U, torch.eye(5), atol=1e-6)
    True
    """
    return _rotate_(matrix, lambda angles: angles.uniform_(0, math.pi / 2).div_(2).tan_().neg_())


ANGLES: dict[str, Callable[[Tensor], Tensor]] = {"cayley": cayley_, "henaff": henaff_}


def _rotate_(matrix: Tensor, draw: Callable[[Tensor], Tensor]) -> Tensor:
    """Fill a square matrix with exp(S): blocks [[cos θ, sin θ], [-sin θ, cos θ]], and for odd n a last 1."""
    if not isinstance(matrix, Tensor):
        raise TypeError(f"matrix should be a Tensor, got {type(matrix).__name__}")
    if matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.is_floating_point():
        shape = tuple(matrix.shape)
        raise ValueError(f"matrix should be square and of floating point, got shape {shape}, {matrix.dtype}")
    with torch.no_grad():
        angles = draw(matrix.new_empty(len(matrix) // 2))
        i = 2 * torch.arange(len(angles), device=matrix.device)
        nn.init.eye_(matrix)
        matrix[i, i] = matrix[i + 1, i + 1] = angles.cos()
        matrix[i, i + 1] = angles.sin()
        matrix[i + 1, i] = -angles.sin()
    return matrix


BY_NAME: dict[str, Init] = {"torch": Torch(), "paper": Paper(), "dtriv": Dtriv()}
torch.serialization.add_safe_globals([Torch, Paper, Dtriv])
