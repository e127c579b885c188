"""The cells: one step of a recurrence. Knows nothing of x, of momentum or of time."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from torch.serialization import add_safe_globals

from .value_checks import check_integer, check_number, convert_numpy_fields


class Weights(NamedTuple):
    """The weights of one direction of one layer, in torch's shapes and gate order.

    ih: (G, D), the input weight W, for D features and G = cell.gates * hidden_size gate rows
    hh: (G, H), the recurrent weight U, for H hidden units; (G, P) with a projection to P features
    b_ih, b_hh: (G,), the input bias and the recurrent bias, or None
    hr: (P, H), the projection of h, or None
    """

    ih: Tensor
    hh: Tensor
    b_ih: Tensor | None = None
    b_hh: Tensor | None = None
    hr: Tensor | None = None


class Cell(ABC):
    """One step of a recurrence, `state_t = step(v_t, U h_{t-1}, b_hh, state_{t-1})`; the base of all cells.

    To write a cell, derive a frozen dataclass, set `gates` and `states`, and define `step`. It then runs with
    every momentum and every option of the layers: `Recurrent(MyCell(), input_size, hidden_size)`.

        gates: gate rows for each hidden unit
        states: tensors in the state, h first; each is (B, H) unless `widths` says otherwise
        projects: whether h enters through U alone, so that `proj_size` makes sense. Default: False
        forget: the index of the gate that forgets, for the initialisation of its bias. Default: None

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
        """The number of columns of each tensor in the state, h first."""
        return (hidden_size,) * self.states

    @abstractmethod
    def step(self, v: Tensor, r: Tensor, b: Tensor | None, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The next state, in tensors of the same shapes as those of `state`.

        v: (B, G), the drive; r = h Uᵀ: (B, G); b: (G,), the recurrent bias, or None; state: (h, ...).
        """


def _add_bias(r: Tensor, b: Tensor | None) -> Tensor:
    return r if b is None else r + b


@dataclass(frozen=True)
class Elman(Cell):
    """`h_t = f(v_t + U h_{t-1} + b_hh)`, f = tanh, relu or sigmoid.

    nonlinearity: "tanh", "relu", "sigmoid" or "modrelu". Default: "tanh"

    For "modrelu" b_hh is a threshold: `h_t = sign(y) max(|y| + b_hh, 0)`, `y = v_t + U h_{t-1}`.
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
    return y.sign() * _add_bias(y.abs(), b).relu()


_NONLINEARITIES: dict[str, Callable[[Tensor, Tensor, Tensor | None], Tensor]] = {
    "tanh": lambda v, r, b: (v + _add_bias(r, b)).tanh(),
    "relu": lambda v, r, b: (v + _add_bias(r, b)).relu(),
    "sigmoid": lambda v, r, b: (v + _add_bias(r, b)).sigmoid(),
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
        return _lstm_step(v + _add_bias(r, b), state[1])


def _lstm_step(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = gates.chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


@dataclass(frozen=True)
class ExtrapolatedLSTM(Cell):
    """The cell that the released code runs on MNIST and TIMIT as SRLSTM. It is not the SRLSTM of the paper.

        y_t = U h_{t-1} + b_hh - step_size (W x_t + b_ih)
        gates = y_t + mu (y_t - y_{t-1}),   mu = j / (j + 3),  j = (t - 1) mod every,  t = 1, 2, ...

    every: steps from one restart to the next, 1 to 256, since j is in the dtype of the layer. Default: 40
    step_size: factor on the input, a positive number. Default: 1

    It extrapolates the whole gate input, U h included, and has a minus sign before W x. Its velocity depends
    on h. Therefore it is a cell, not a momentum. Its state is `(h, c, y, j)`: (B, H), (B, H), (B, 4H) and
    (B, 1). Whether the initial count j gets a gradient depends on the backend. For the equations of the
    paper use `LSTM(momentum=ScheduledRestart(...))`.

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
        every, step_size = "ExtrapolatedLSTM: every", "ExtrapolatedLSTM: step_size"
        check_integer(every, self.every, 1, 256, "an integer from 1 to 256")
        check_number(step_size, self.step_size, "a positive number", lambda s: s > 0)
        convert_numpy_fields(self, ("every", "step_size"))

    def widths(self, hidden_size: int) -> tuple[int, ...]:
        return hidden_size, hidden_size, 4 * hidden_size, 1

    def step(self, v: Tensor, r: Tensor, b: Tensor | None, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        _, c, previous_y, j = state
        y = _add_bias(r, b) - self.step_size * v
        return *_lstm_step(y + j / (j + 3) * (y - previous_y), c), y, (j + 1) % self.every


@dataclass(frozen=True)
class GRU(Cell):
    """`h_t = (1 - z) n + z h_{t-1}`, `n = tanh(v_n + σ(r) (U_n h_{t-1} + b_hn))`, r and z as in torch."""

    gates = 3
    states = 1

    def step(self, v: Tensor, r: Tensor, b: Tensor | None, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        v_r, v_z, v_n = v.chunk(3, -1)
        u_r, u_z, u_n = _add_bias(r, b).chunk(3, -1)
        z = (v_z + u_z).sigmoid()
        n = (v_n + (v_r + u_r).sigmoid() * u_n).tanh()
        return (n + z * (state[0] - n),)


add_safe_globals([Elman, LSTM, ExtrapolatedLSTM, GRU])
