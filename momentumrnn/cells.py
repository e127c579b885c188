"""One step of a recurrence: the cells. Knows nothing of x, of momentum or of time."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
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

    gates: gate rows for each hidden unit; states: tensors of size (B, H) in the state, h first;
    projects: whether h enters through U alone, so that `proj_size` makes sense.

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

    def step(self, v: Tensor, r: Tensor, b: Tensor | None, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        i, f, g, o = (v + _plus(r, b)).chunk(4, -1)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


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
