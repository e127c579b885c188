"""One step of a recurrence: the cells. Knows nothing of x, of momentum or of time."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from numbers import Real
from typing import NamedTuple

from torch import Tensor


class Weights(NamedTuple):
    """The weights of one direction of one layer, in torch's shapes and gate order.

    ih: (G, D); hh: (G, H); b_ih, b_hh: (G,) or None; hr: (P, H) projects h to P features, or None. G is the
    number of gate rows, `cell.gates * hidden_size`; with hr, hh is (G, P).
    """

    ih: Tensor
    hh: Tensor
    b_ih: Tensor | None = None
    b_hh: Tensor | None = None
    hr: Tensor | None = None


class Cell(ABC):
    """One step `state -> state` of a recurrence, given its drive.

    A new cell is a frozen dataclass that sets `gates` and `states` and writes `step`. It runs at once
    with every momentum and every option of the layers: `Recurrent(MyCell(), input_size, hidden_size)`.

    gates: gate rows for each hidden unit; states: tensors in the state, h first, (B, H) each unless `widths`
    says otherwise; projects: whether h enters through U alone, so that `proj_size` makes sense; forget: which
    gate forgets, if any, for the initialisation of its bias.

    >>> @dataclass(frozen=True)
    ... class Leaky(Cell):
    ...     gates = 1
    ...     states = 1
    ...
    ...     def step(self, v, r, b, state):
    ...         return (0.9 * state[0] + 0.1 * (v + r if b is None else v + r + b).tanh(),)
    >>> from momentumrnn import Nesterov, Recurrent
    >>> out, h = Recurrent(Leaky(), 3, 5, bidirectional=True, momentum=Nesterov())(torch.randn(7, 2, 3))
    >>> out.shape
    torch.Size([7, 2, 10])
    """

    gates: int
    states: int
    projects: bool = False
    forget: int | None = None

    def widths(self, hidden_size: int) -> tuple[int, ...]:
        """The number of columns of each tensor in the state."""
        return (hidden_size,) * self.states

    @abstractmethod
    def step(self, v: Tensor, r: Tensor, b: Tensor | None, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """v: the drive (B, G); r = h Uᵀ (B, G); b: the recurrent bias (G,) or None; state: (h, ...)."""


def _plus(r: Tensor, b: Tensor | None) -> Tensor:
    return r if b is None else r + b


@dataclass(frozen=True)
class Elman(Cell):
    """`h_t = f(v_t + U h_{t-1} + b_hh)`, f = tanh, relu or sigmoid.

    With f = modrelu, b_hh is its threshold: `h_t = sign(y) max(|y| + b_hh, 0)`, `y = v_t + U h_{t-1}`.
    """

    nonlinearity: str = "tanh"
    gates = 1
    states = 1

    def __post_init__(self) -> None:
        if self.nonlinearity not in list(_NONLINEARITIES):
            names = ", ".join(map(repr, _NONLINEARITIES))
            raise ValueError(f"nonlinearity should be one of {names}, got {self.nonlinearity!r}")

    def step(self, v: Tensor, r: Tensor, b: Tensor | None, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (_NONLINEARITIES[self.nonlinearity](v, r, b),)


def _modrelu(v: Tensor, r: Tensor, b: Tensor | None) -> Tensor:
    y = v + r
    return y.sign() * _plus(y.abs(), b).relu()


_NONLINEARITIES: dict[str, Callable[[Tensor, Tensor, Tensor | None], Tensor]] = {
    "tanh": lambda v, r, b: (v + _plus(r, b)).tanh(),
    "relu": lambda v, r, b: (v + _plus(r, b)).relu(),
    "sigmoid": lambda v, r, b: (v + _plus(r, b)).sigmoid(),
    "modrelu": _modrelu,
}


@dataclass(frozen=True)
class LSTM(Cell):
    """`c_t = σ(f) c_{t-1} + σ(i) tanh(g)`, `h_t = σ(o) tanh(c_t)`, gates `v_t + U h_{t-1} + b_hh`."""

    gates = 4
    states = 2
    projects = True
    forget = 1

    def step(self, v: Tensor, r: Tensor, b: Tensor | None, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return _lstm(v + _plus(r, b), state[1])


def _lstm(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = gates.chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


@dataclass(frozen=True)
class ExtrapolatedLSTM(Cell):
    """What the paper's released code runs on MNIST and TIMIT under the name SRLSTM: not the paper's SRLSTM.

        y_t = U h_{t-1} + b_hh - step_size (W x_t + b_ih)
        gates = y_t + mu (y_t - y_{t-1}),   mu = j / (j + 3),  j = (t - 1) mod every,  t = 1, 2, ...

    It extrapolates the whole gate input, U h included, and has a minus sign before W x. Its velocity depends
    on h, so it is a cell with more state, `(h, c, y, j)`, (B, H), (B, H), (B, 4H) and (B, 1), and not a
    momentum. For the paper's equations use `LSTM(momentum=ScheduledRestart(...))`.

    every: from 1 to 256, since j is counted in the dtype of the layer. j is a count from 0 to every - 1; some
    backends have a gradient for it, some none.

    >>> import torch
    >>> from momentumrnn import Recurrent
    >>> net = Recurrent(ExtrapolatedLSTM(every=40, step_size=0.9), 3, 5)
    >>> out, (h, c, y, j) = net(torch.randn(7, 2, 3))
    >>> h.shape, y.shape, j.shape
    (torch.Size([1, 2, 5]), torch.Size([1, 2, 20]), torch.Size([1, 2, 1]))
    """

    every: int = 40
    step_size: float = 1.0
    gates = 4
    states = 4
    projects = True
    forget = 1

    def __post_init__(self) -> None:
        expected = "ExtrapolatedLSTM: {} should be {}, got {!r}"
        if isinstance(self.every, bool) or not isinstance(self.every, int):
            raise TypeError(expected.format("every", "an integer from 1 to 256", self.every))
        if not 1 <= self.every <= 256:
            raise ValueError(expected.format("every", "an integer from 1 to 256", self.every))
        if isinstance(self.step_size, bool) or not isinstance(self.step_size, int | float | Real):
            raise TypeError(expected.format("step_size", "a positive number", self.step_size))
        if not 0 < self.step_size < inf:
            raise ValueError(expected.format("step_size", "a positive number", self.step_size))

    def widths(self, hidden_size: int) -> tuple[int, ...]:
        return hidden_size, hidden_size, 4 * hidden_size, 1

    def step(self, v: Tensor, r: Tensor, b: Tensor | None, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        _, c, old, j = state
        y = _plus(r, b) - self.step_size * v
        return *_lstm(y + j / (j + 3) * (y - old), c), y, (j + 1) % self.every


@dataclass(frozen=True)
class GRU(Cell):
    """`h_t = (1 - z) n + z h_{t-1}`, `n = tanh(v_n + σ(r) (U_n h_{t-1} + b_hn))`, r and z as in torch."""

    gates = 3
    states = 1

    def step(self, v: Tensor, r: Tensor, b: Tensor | None, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        v_r, v_z, v_n = v.chunk(3, -1)
        u_r, u_z, u_n = _plus(r, b).chunk(3, -1)
        z = (v_z + u_z).sigmoid()
        n = (v_n + (v_r + u_r).sigmoid() * u_n).tanh()
        return (n + z * (state[0] - n),)
