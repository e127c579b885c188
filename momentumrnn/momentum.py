"""What drives a cell: the momenta, and the scan over time that evaluates them. Knows nothing of h.

With `a_t = W x_t + b_ih`, row by row of the batch, k = 0, 1, ... counting the steps of a sequence:

    v_t = decay(k) v_{t-1} + step a_t
    n_t = beta n_{t-1} + (1 - beta) a_t^2          only if beta is set
    drive_t = v_t   or   v_t / sqrt(n_t + eps^2)
"""

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter


class MomentumState(NamedTuple):
    """What a momentum carries from one step to the next.

    v: (B, G), first moment; n: (B, G), second moment, or (B, 0) where there is none; k: (B,), the steps
    that each row has taken. None of them depends on h.
    """

    v: Tensor
    n: Tensor
    k: Tensor


# The fields that may be tensors.
RATES = ("mu", "step")


class Momentum(ABC):
    """A causal map over time from `a = W x + b_ih` to the drive of a cell.

    A new momentum is a frozen dataclass that writes `decay`; it may set `step`, and `beta` and `eps` if
    it divides by a second moment.

    The fields `mu` and `step` may be floating-point tensors, such as an `nn.Parameter`, so that they can be
    learned: of one entry for all gate rows, of one for each gate, n = 4 for an LSTM, or of one for each of
    the G gate rows. Their values are not checked, since training moves them.

    >>> @dataclass(frozen=True)
    ... class Warmup(Momentum):
    ...     mu: float = 0.9
    ...
    ...     def decay(self, k):
    ...         return self.mu * (1 - 0.5**k)
    >>> drive, state = Warmup()(torch.ones(3, 1, 1))
    >>> drive.flatten()
    tensor([1.0000, 1.4500, 1.9787])
    """

    step: float | Tensor = 1.0
    beta: float | None = None
    eps: float = 1e-8
    eps_in_sqrt: bool = True

    @abstractmethod
    def decay(self, k: Tensor) -> Tensor | float:
        """The factor on v before step k, from 0 on.

        k: float64, (..., 1); returns a number, a tensor of that shape, or one that has, in place of the last
        axis, n factors for the gate rows: (..., n), or (n,) if all steps have the same. A linear momentum
        whose factors differ from row to row, and not through `mu`, sets `commutes = False`.
        """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # Backends evaluate these in their own way: an override would be heard by some of them only.
        fixed = {"update", "moments", "readout", "decays", "scaled", "__call__"} & set(vars(cls))
        if fixed:
            raise TypeError(
                f"{cls.__name__}: a momentum writes decay, got its own {', '.join(sorted(fixed))}"
            )

    def __post_init__(self) -> None:
        tensors = learned(self)
        for name, tensor in tensors.items():
            _check_tensor(self, name, tensor)
        if "step" not in tensors:
            _check(self, "step", self.step, lambda s: s > 0, "a positive number")
        if self.beta is not None:
            _check(self, "beta", self.beta, lambda b: 0 <= b < 1, "a number in [0, 1)")
            # The square of a smaller eps is 0 in float32.
            _check(self, "eps", self.eps, lambda e: e >= 1e-18, "a number of at least 1e-18")
            if not isinstance(self.eps_in_sqrt, bool):
                raise TypeError(_message(self, "eps_in_sqrt", self.eps_in_sqrt, "True or False"))

    @property
    def linear(self) -> bool:
        """Whether the drive is linear in a: it has no second moment."""
        return self.beta is None

    @property
    def commutes(self) -> bool:
        """Whether the drive commutes with W: it is linear, and all gate rows have one decay and one step."""
        return self.linear and all(tensor.numel() == 1 for tensor in learned(self).values())

    def start(self, rows: int, width: int, like: Tensor) -> MomentumState:
        """The state before a sequence's first step, on the device of `like`, in float32 at least."""
        v = torch.zeros(rows, width, dtype=wide(like.dtype), device=like.device)
        k = torch.zeros(rows, dtype=torch.int64, device=like.device)
        return MomentumState(v, torch.zeros_like(v[:, : 0 if self.linear else width]), k)

    def update(self, a: Tensor, state: MomentumState) -> tuple[Tensor, MomentumState]:
        """One time step, the definition. a: (B, G)."""
        v, n, k = state
        z = a.to(wide(a.dtype))
        v = self.decays(k, z) * v + self.scaled(z)
        if self.beta is not None:
            n = self.beta * n + (1 - self.beta) * z * z
        return narrow(self.readout(v, n), a.dtype), MomentumState(v, n, k + 1)

    def __call__(self, a: Tensor, state: MomentumState | None = None) -> tuple[Tensor, MomentumState]:
        """All time steps at once. a: (T, B, G); returns the drive (T, B, G) and the state after T."""
        if a.dim() != 3 or len(a) == 0:
            raise ValueError(f"a should have shape (T, B, G), T at least 1, got {tuple(a.shape)}")
        v, n = self.moments(a, state)
        k = torch.zeros(a.shape[1], dtype=torch.int64, device=a.device) if state is None else state.k
        last = MomentumState(v[-1], n[-1], k + len(a))
        return narrow(self.readout(v, n), a.dtype), last

    def moments(self, a: Tensor, state: MomentumState | None = None) -> tuple[Tensor, Tensor]:
        """v and n after every step, (T, B, G), in float32 at least."""
        v, n, k = (None, None, None) if state is None else state
        z = a.to(wide(a.dtype))
        v = scan(self.decays(count(k, len(z), z.device), z), self.scaled(z), v)
        if self.beta is None:
            return v, v[..., :0]
        return v, scan(z.new_full((len(z), 1, 1), self.beta), (1 - self.beta) * z * z, n)

    def readout(self, v: Tensor, n: Tensor) -> Tensor:
        """The drive, from the moments."""
        if self.linear:
            return v
        return v / ((n + self.eps**2).sqrt() if self.eps_in_sqrt else n.sqrt() + self.eps)

    def scaled(self, z: Tensor) -> Tensor:
        """step z, each column with its own step. z: (..., G)."""
        if not isinstance(self.step, Tensor):
            return self.step * z
        step = self.step.to(z.dtype).reshape(-1)
        if z.shape[-1] % len(step):
            expected = f"a tensor whose size divides the {z.shape[-1]} gate rows"
            raise ValueError(_message(self, "step", self.step, expected))
        return _spread(step, z.shape[-1]) * z

    def decays(self, k: Tensor, like: Tensor) -> Tensor:
        """`decay` at each k as factors for rows of `like`, (..., G): (..., 1) or (..., G). k: any shape."""
        # A schedule is a ratio of counts: in float64 it is right for every dtype of the layer.
        exact = torch.float32 if k.device.type == "mps" else torch.float64
        mu = self.decay(k.to(exact).unsqueeze(-1))
        if not isinstance(mu, Tensor):
            _check(self, "what decay(k) returns", mu, lambda m: True, "a number or a tensor like k")
            mu = torch.full((), mu, dtype=exact, device=k.device)
        n, rows = mu.shape[-1] if mu.dim() else 1, like.shape[-1]
        fits = n == 1 or (not self.commutes and 0 < n <= rows and rows % n == 0)
        if not fits or mu.shape not in ((), (n,), (*k.shape, n)) or mu.device != k.device:
            more = "commutes = False" if self.commutes else f"a last axis that divides {rows}"
            raise ValueError(
                f"{type(self).__name__}.decay returned shape {tuple(mu.shape)} on {mu.device} for steps "
                f"{tuple(k.shape)} on {k.device}; expected a number or shape {(*k.shape, 1)}; a momentum "
                f"whose gate rows differ has {more}"
            )
        return _spread(mu.to(like.dtype).expand(*k.shape, n), rows)

    def __repr__(self) -> str:
        named = getattr(self, "__dataclass_fields__", {}).items()
        inside = (f"{name}={_shown(getattr(self, name))}" for name, field in named if field.repr)
        return f"{type(self).__qualname__}({', '.join(inside)})"


def learned(momentum: Momentum | None) -> dict[str, Tensor]:
    """Those of the fields `mu` and `step` that are tensors.

    >>> list(learned(HeavyBall(mu=torch.tensor(0.9))))
    ['mu']
    """
    named = getattr(momentum, "__dataclass_fields__", {})
    values = {name: getattr(momentum, name) for name in RATES if name in named}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def spelt(momentum: Momentum | None) -> str:
    """Its repr, on one line even where a user's own class would print all of a tensor."""
    return Momentum.__repr__(momentum) if momentum is not None and learned(momentum) else repr(momentum)


@dataclass(frozen=True, repr=False)
class HeavyBall(Momentum):
    """`v_t = mu v_{t-1} + step a_t`: the paper's MomentumRNN (eq. 9).

    >>> HeavyBall(mu=0.5)(torch.ones(3, 1, 1))[0].flatten()
    tensor([1.0000, 1.5000, 1.7500])
    >>> HeavyBall(mu=torch.tensor([0.0, 0.5]))(torch.ones(3, 1, 4))[0][-1]
    tensor([[1.0000, 1.0000, 1.7500, 1.7500]])
    """

    mu: float | Tensor = 0.6
    step: float | Tensor = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.mu, Tensor):
            _check(self, "mu", self.mu, lambda m: 0 <= m <= 1, "a number in [0, 1]")
        super().__post_init__()

    def decay(self, k: Tensor) -> Tensor | float:
        return self.mu


@dataclass(frozen=True, repr=False)
class Nesterov(Momentum):
    """Heavy ball with the schedule `mu_k = k / (k + 3)`: the paper's NAG (section 2.4).

    The decay tends to 1: at step k a constant input has gain `step (k + 4) / 4`. For long sequences
    `ScheduledRestart` bounds it.

    >>> Nesterov()(torch.ones(3, 1, 1))[0].flatten()
    tensor([1.0000, 1.2500, 1.5000])
    """

    step: float | Tensor = 1.0

    def decay(self, k: Tensor) -> Tensor:
        return k / (k + 3)


@dataclass(frozen=True, repr=False)
class ScheduledRestart(Momentum):
    """Nesterov's schedule begun anew every `every` steps: the paper's SR, F = every.

    >>> ScheduledRestart(every=2)(torch.ones(4, 1, 1))[0].flatten()
    tensor([1.0000, 1.2500, 1.0000, 1.2500])
    """

    every: int = 40
    step: float | Tensor = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.every, bool) or not isinstance(self.every, int):
            raise TypeError(_message(self, "every", self.every, "an integer of at least 1"))
        if self.every < 1:
            raise ValueError(_message(self, "every", self.every, "an integer of at least 1"))
        super().__post_init__()

    def decay(self, k: Tensor) -> Tensor:
        j = k % self.every
        return j / (j + 3)


@dataclass(frozen=True, repr=False)
class Adam(Momentum):
    """Heavy ball divided by the root of a running mean of a²: the paper's AdamRNN (eq. 15).

    The drive is `v / sqrt(n + eps²)`, whose gradient is finite where `W x + b_ih` is exactly 0.
    `eps_in_sqrt=False` gives the printed `v / (sqrt(n) + eps)`: its gradient is infinite where n = 0, that
    is until the first step at which `W x + b_ih` is not 0, and turns to nan in training. There is no bias
    correction: the first drive is `±step / sqrt(1 - beta)`, which saturates gates where beta is near 1 and
    step near 1. Where `mu² > beta` the drive grows over inputs of 0, until eps stops it.

    >>> Adam(mu=0.0, step=1.0, beta=0.75)(torch.tensor([4.0, -4.0]).view(2, 1, 1))[0].flatten()
    tensor([ 2.0000, -1.5119])
    """

    mu: float | Tensor = 0.6
    step: float | Tensor = 1.0
    beta: float = 0.999
    eps: float = 1e-8
    eps_in_sqrt: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.mu, Tensor):
            _check(self, "mu", self.mu, lambda m: 0 <= m <= 1, "a number in [0, 1]")
        super().__post_init__()

    def decay(self, k: Tensor) -> Tensor | float:
        return self.mu


@dataclass(frozen=True, repr=False)
class RMSProp(Momentum):
    """Adam with mu = 0: each `step a_t` divided by the root of a running mean of a².

    >>> RMSProp(beta=0.0)(torch.tensor([4.0, -4.0]).view(2, 1, 1))[0].flatten()
    tensor([ 1., -1.])
    """

    step: float | Tensor = 1.0
    beta: float = 0.9
    eps: float = 1e-8
    eps_in_sqrt: bool = True

    def decay(self, k: Tensor) -> float:
        return 0.0


# Ours: their decays depend on nothing but their fields and k, while a user's may read what it likes.
MOMENTA = (HeavyBall, Nesterov, ScheduledRestart, Adam, RMSProp)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype moments are kept in: sums over time and eps² need more than 16 bits."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def narrow(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in that dtype, where too large for it at its largest: a gate so driven is saturated, not nan."""
    if torch.finfo(dtype).max < torch.finfo(x.dtype).max:
        x = x.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max)
    return x.to(dtype)


def count(k: Tensor | None, steps: int, device: torch.device) -> Tensor:
    """The index of each of `steps` steps, (T, B) for rows that have taken k steps, (T, 1) for new ones."""
    t = torch.arange(steps, device=device).unsqueeze(-1)
    return t if k is None else t + k


def scan(decay: Tensor, x: Tensor, initial: Tensor | None = None) -> Tensor:
    """`v_t = decay_t v_{t-1} + x_t` over the first axis, in O(T) work and without division.

    decay: (T, B, 1), or anything that broadcasts to x; x: (T, B, F); initial: v before the first step,
    (B, F), else 0. Returns v, (T, B, F); differentiable in all three as often as one likes.

    >>> scan(torch.full((3, 1, 1), 0.5), torch.ones(3, 1, 1)).flatten()
    tensor([1.0000, 1.5000, 1.7500])
    """
    if initial is not None:
        x = torch.cat([(x[0] + decay[0] * initial).unsqueeze(0), x[1:]])
    return _Scan.apply(decay, x)  # type: ignore[no-any-return, no-untyped-call]


class _Scan(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(decay: Tensor, x: Tensor) -> Tensor:
        return _evaluate(decay, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output if ctx.needs_input_grad[0] else None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor]:
        decay, v = ctx.saved_tensors
        # The adjoint is the same recurrence, backwards: g_t = grad_t + decay_{t+1} g_{t+1}.
        following = torch.cat([decay[1:], torch.zeros_like(decay[:1])])
        g = _Scan.apply(following.flip(0), grad.flip(0)).flip(0)  # type: ignore[no-untyped-call]
        if v is None:
            return None, g
        previous = torch.cat([torch.zeros_like(v[:1]), v[:-1]])
        return (g * previous).sum_to_size(decay.shape), g


def _evaluate(decay: Tensor, x: Tensor) -> Tensor:
    """The scan: in pairs of steps, so that log T passes over whole tensors replace T small ones."""
    steps = len(x)
    # A step that keeps the device busy by itself is cheapest one after another: each element moves once.
    if steps < 8 or x[0].numel() >= (1 << 14 if x.device.type == "cpu" else 1 << 21):
        v = [x[0]]
        for d, x_t in zip(decay[1:].unbind(), x[1:].unbind(), strict=True):
            v.append(torch.addcmul(x_t, d, v[-1]))
        return torch.stack(v)
    first, second = slice(0, steps // 2 * 2, 2), slice(1, None, 2)
    pairs = torch.addcmul(x[second], decay[second], x[first])
    odd = _evaluate(decay[second] * decay[first], pairs)
    later = x[2::2]
    even = torch.cat([x[:1], torch.addcmul(later, decay[2::2], odd[: len(later)])])
    both = torch.stack([even[: len(odd)], odd], 1).reshape(2 * len(odd), *x.shape[1:])
    return both if len(even) == len(odd) else torch.cat([both, even[-1:]])


def _spread(x: Tensor, width: int) -> Tensor:
    """(..., n) -> (..., width): each entry for width / n columns side by side; (..., 1) stays as it is."""
    n = x.shape[-1]
    return x if n in (1, width) else x.unsqueeze(-1).expand(*x.shape, width // n).flatten(-2)


def _shown(value: object) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    kind = "Parameter" if isinstance(value, Parameter) else "Tensor"
    return f"<{kind} {tuple(value.shape)}>"


def _message(owner: object, name: str, value: object, expected: str) -> str:
    return f"{type(owner).__name__}: {name} should be {expected}, got {_shown(value)}"


def _check_tensor(owner: object, name: str, value: Tensor) -> None:
    if not value.is_floating_point():
        raise TypeError(f"{_message(owner, name, value, 'a floating-point tensor')} of {value.dtype}")
    if value.dim() > 1 or value.numel() == 0:
        raise ValueError(_message(owner, name, value, "a number or a tensor of shape (), (1,) or (n,)"))


def _check(owner: object, name: str, value: Any, holds: Callable[[float], bool], expected: str) -> None:
    """Refuses anything but a finite number for which `holds`."""
    number = isinstance(value, int | float | Real) and not isinstance(value, bool)
    if not number:
        raise TypeError(_message(owner, name, value, expected))
    top = sys.float_info.max if isinstance(value, int) else math.inf
    if not (abs(value) <= top and abs(value) < math.inf and holds(value)):
        raise ValueError(_message(owner, name, value, expected))
