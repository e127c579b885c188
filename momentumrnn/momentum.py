"""The momenta, which drive a cell, and the scan over time that evaluates them. Knows nothing of h.

With `a_t = W x_t + b_ih`, for each sequence of the batch, where k = 0, 1, ... counts its steps:

    v_t = decay(k) v_{t-1} + step a_t
    n_t = beta n_{t-1} + (1 - beta) a_t^2          only if beta is set
    drive_t = v_t   or   v_t / sqrt(n_t + eps^2)
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .precision import cast_in_range, in_moments_dtype, moments_dtype
from .value_checks import check_integer, check_number, convert_numpy_fields, describe, fields_equal


class MomentumState(NamedTuple):
    """What a momentum carries from one step to the next.

    v: (B, G), the first moment; n: (B, G), the second moment, or (B, 0) if there is none; k: (B,), the
    number of steps that each sequence has taken. None of them depends on h.
    """

    v: Tensor
    n: Tensor
    k: Tensor


# The fields of a momentum that may be tensors.
MAYBE_TENSORS = ("mu", "step")


class Momentum(ABC):
    """A causal map over time from `a = W x + b_ih` to the drive of a cell; the base class of all momenta.

    To write a momentum, derive a frozen dataclass and define `decay`. It may also set these fields:

        step: factor on a, a number or a tensor. Default: 1
        beta: decay of the second moment n, or None for a drive that is linear in a. Default: None
        eps: the divisor is sqrt(n + eps²); at least 1e-18, whose square float32 can hold. Default: 1e-8
        eps_in_sqrt: False makes the divisor sqrt(n) + eps. Default: True

    The fields `mu` and `step` may be floating-point tensors, such as an `nn.Parameter` to be learned. They
    have 1 entry for all gate rows, 1 for each gate (4 for an LSTM), or 1 for each of the G gate rows. Their
    values are not checked here, since training moves them. A layer keeps the mu of `HeavyBall` and `Adam` in
    [0, 1]. Moments are in float32 at least, also under autocast.

    `torch.load(..., weights_only=True)` reads our momenta; allow a class of your own once, by
    `torch.serialization.add_safe_globals([MyMomentum])`.

    A call `momentum(a, state=None)` takes a (T, B, G) and returns the drive (T, B, G) and a `MomentumState`.
    It computes the same as this loop:

    >>> @dataclass(frozen=True)
    ... class Warmup(Momentum):
    ...     mu: float = 0.9
    ...
    ...     def decay(self, k):
    ...         return self.mu * (1 - 0.5**k)
    >>> a, v = torch.randn(7, 2, 20), torch.zeros(2, 20)
    >>> drive, state = Warmup()(a)
    >>> for k in range(7):
    ...     v = 0.9 * (1 - 0.5**k) * v + a[k]
    ...     assert torch.allclose(drive[k], v, atol=1e-6)
    """

    step: float | Tensor = 1.0
    beta: float | None = None
    eps: float = 1e-8
    eps_in_sqrt: bool = True

    @abstractmethod
    def decay(self, k: Tensor) -> Tensor | float:
        """The factor on v in step k, which counts from 0.

        k: (..., 1), floating-point. Returns a number or a tensor of shape (..., 1); or (..., n) for factors
        that differ between gate rows, or (n,) if these are the same in all steps. If the factors of a linear
        momentum differ between gate rows, and not through a tensor `mu`, it sets `commutes = False`.
        """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # Backends evaluate these in their own ways, so that only some of them would call an override.
        overridden = {"update", "moments", "readout", "decays", "scaled", "__call__"} & set(vars(cls))
        if overridden:
            names = ", ".join(sorted(overridden))
            raise TypeError(f"{cls.__name__}: a momentum writes decay, got its own {names}")
        if "__eq__" not in vars(cls):
            setattr(cls, "__eq__", fields_equal)  # noqa: B010  (dataclass then writes none)

    def __post_init__(self) -> None:
        convert_numpy_fields(self, ("mu", "step", "beta", "eps", "eps_in_sqrt", "every"))
        tensors, owner = tensor_fields(self), type(self).__name__
        for name, tensor in tensors.items():
            _check_tensor(f"{owner}: {name}", tensor)
        if not isinstance(self.step, Tensor):
            check_number(f"{owner}: step", self.step, "a positive number", lambda s: s > 0)
        if self.beta is not None:
            check_number(f"{owner}: beta", self.beta, "a number in [0, 1)", lambda b: 0 <= b < 1)
            check_number(f"{owner}: eps", self.eps, "a number of at least 1e-18", lambda e: e >= 1e-18)
            if not isinstance(self.eps_in_sqrt, bool):
                message = f"{owner}: eps_in_sqrt should be True or False"
                raise TypeError(f"{message}, got {describe(self.eps_in_sqrt)}")

    @property
    def linear(self) -> bool:
        """Whether the drive is linear in a, that is without a second moment."""
        return self.beta is None

    @property
    def commutes(self) -> bool:
        """Whether the drive commutes with W: it is linear, and all gate rows have one decay and one step."""
        return self.linear and all(tensor.numel() == 1 for tensor in tensor_fields(self).values())

    def start(self, rows: int, width: int, like: Tensor) -> MomentumState:
        """The state before the first step of a sequence, on the device of `like`, in float32 at least."""
        v = torch.zeros(rows, width, dtype=moments_dtype(like.dtype), device=like.device)
        k = torch.zeros(rows, dtype=torch.int64, device=like.device)
        return MomentumState(v, torch.zeros_like(v[:, : 0 if self.linear else width]), k)

    def update(
        self, a: Tensor, state: MomentumState, decay: Tensor | None = None
    ) -> tuple[Tensor, MomentumState]:
        """One time step, the definition. a: (B, G); decay: the factor on v, if the caller counts steps."""
        v, n, k = state
        dtype, a = a.dtype, in_moments_dtype(a)
        factor: Tensor | float | None = decay
        if factor is None:
            factor, k = self._decay_of_step(k, a), k + 1
        v = factor * v + self.scaled(a)
        if self.beta is not None:
            n = self.beta * n + (1 - self.beta) * a * a
        return cast_in_range(self.readout(v, n), dtype), MomentumState(v, n, k)

    def __call__(self, a: Tensor, state: MomentumState | None = None) -> tuple[Tensor, MomentumState]:
        """All time steps at once. a: (T, B, G); returns the drive (T, B, G) and the state after T."""
        if not isinstance(a, Tensor):
            raise TypeError(f"a should be a Tensor, got {type(a).__name__}")
        if a.dim() != 3 or len(a) == 0:
            raise ValueError(f"a should have shape (T, B, G), T at least 1, got {tuple(a.shape)}")
        if state is not None and not (isinstance(state, tuple) and len(state) == 3):
            raise TypeError(f"state should be a MomentumState or None, got {type(state).__name__}")
        v, n = self.moments(a, state)
        k = torch.zeros(a.shape[1], dtype=torch.int64, device=a.device) if state is None else state.k
        return cast_in_range(self.readout(v, n), a.dtype), MomentumState(v[-1], n[-1], k + len(a))

    def moments(self, a: Tensor, state: MomentumState | None = None) -> tuple[Tensor, Tensor]:
        """v and n after every step, (T, B, G), in float32 at least."""
        v, n, k = (None, None, None) if state is None else state
        a = in_moments_dtype(a)
        v = scan(self.decays(step_indices(k, len(a), a.device), a), self.scaled(a), v)
        if self.beta is None:
            return v, v[..., :0]
        return v, scan(a.new_full((len(a), 1, 1), self.beta), (1 - self.beta) * a * a, n)

    def readout(self, v: Tensor, n: Tensor) -> Tensor:
        """The drive, from the moments."""
        if self.linear:
            return v
        return v / ((n + self.eps**2).sqrt() if self.eps_in_sqrt else n.sqrt() + self.eps)

    def scaled(self, a: Tensor) -> Tensor:
        """`step a`, where each column has its own step if step is a tensor. a: (..., G)."""
        if not isinstance(self.step, Tensor):
            return a if self.step == 1 else self.step * a
        step = self.step.to(a.dtype).reshape(-1)
        if a.shape[-1] % len(step):
            raise ValueError(
                f"{type(self).__name__}: step should be a tensor whose size divides the {a.shape[-1]} gate "
                f"rows, got {describe(self.step)}"
            )
        return _repeat_columns(step, a.shape[-1]) * a

    def decays(self, k: Tensor, like: Tensor) -> Tensor:
        """The decay of each step k, (*k.shape, 1) or (*k.shape, G), in the dtype of `like`, (..., G)."""
        mu = self._decay_of_step(k, like)
        return mu if isinstance(mu, Tensor) else like.new_full((), mu, device=k.device).expand(*k.shape, 1)

    def _decay_of_step(self, k: Tensor, like: Tensor) -> Tensor | float:
        """`decays`, but a number where `decay` returns one."""
        if type(self).decay in _CONSTANT_DECAYS:
            mu = self.decay(k)
            if not isinstance(mu, Tensor):
                return mu
        else:
            # A schedule is a ratio of counts. In float64 it is exact enough for every dtype of a layer.
            exact = torch.float32 if k.device.type == "mps" else torch.float64
            mu = self.decay(k.to(exact).unsqueeze(-1))
        if not isinstance(mu, Tensor):
            name = f"{type(self).__name__}: what decay(k) returns"
            check_number(name, mu, "a number or a tensor of shape (..., 1)")
            return mu
        n, rows = mu.shape[-1] if mu.dim() else 1, like.shape[-1]
        fits = n == 1 or (not self.commutes and 0 < n <= rows and rows % n == 0)
        if not fits or mu.shape not in ((), (n,), (*k.shape, n)) or mu.device != k.device:
            more = "commutes = False" if self.commutes else f"a last axis that divides {rows}"
            raise ValueError(
                f"{type(self).__name__}.decay returned shape {tuple(mu.shape)} on {mu.device} for steps "
                f"{tuple(k.shape)} on {k.device}; expected a number or shape {(*k.shape, 1)}; a momentum "
                f"whose gate rows differ needs {more}"
            )
        return _repeat_columns(mu.to(like.dtype).expand(*k.shape, n), rows)

    def __repr__(self) -> str:
        fields = getattr(self, "__dataclass_fields__", {}).items()
        arguments = (f"{name}={describe(getattr(self, name))}" for name, field in fields if field.repr)
        return f"{type(self).__qualname__}({', '.join(arguments)})"


def tensor_fields(momentum: Momentum | None) -> dict[str, Tensor]:
    """The fields among `mu` and `step` that are tensors.

    >>> list(tensor_fields(HeavyBall(mu=torch.tensor(0.9))))
    ['mu']
    """
    fields = getattr(momentum, "__dataclass_fields__", {})
    values = ((name, getattr(momentum, name)) for name in MAYBE_TENSORS if name in fields)
    return {name: value for name, value in values if isinstance(value, Tensor)}


def one_line_repr(momentum: Momentum | None) -> str:
    """The repr of a momentum on one line, also if the repr of a user's class would print a whole tensor."""
    return Momentum.__repr__(momentum) if momentum is not None and tensor_fields(momentum) else repr(momentum)


@dataclass(frozen=True, repr=False)
class HeavyBall(Momentum):
    """`v_t = mu v_{t-1} + step a_t`: the MomentumRNN of the paper (eq. 9). The drive is v.

    mu: decay of v, a number in [0, 1] or a tensor. Default: 0.6
    step: factor on a, a positive number or a tensor; see `Momentum` for tensors. Default: 1

    Inputs, outputs, shapes: see `Momentum`. A constant input has gain `step / (1 - mu)` in the limit.
    `HeavyBall.ema(mu)` keeps that gain at 1.

    A layer computes with a mu in [0, 1]. At each call, and when `momentum` or `state_dict` is read, it moves
    a Parameter that is trained to the nearest value there. In `torch.compile` and `torch.func` it computes
    with that value and leaves the Parameter; read `momentum` after an optimiser's step to move it. A layer
    refuses another tensor with values outside [0, 1]. It warns of a Parameter or a checkpoint with such
    values.

    >>> HeavyBall(mu=0.5)(torch.ones(3, 1, 1))[0].flatten()
    tensor([1.0000, 1.5000, 1.7500])
    >>> HeavyBall(mu=torch.tensor([0.0, 0.5]))(torch.ones(3, 1, 4))[0][-1]
    tensor([[1.0000, 1.0000, 1.7500, 1.7500]])
    """

    mu: float | Tensor = 0.6
    step: float | Tensor = 1.0

    def __post_init__(self) -> None:
        _check_mu(self, self.mu)
        super().__post_init__()

    def decay(self, k: Tensor) -> Tensor | float:
        return self.mu

    @staticmethod
    def ema(mu: float | Tensor) -> "HeavyBall | ExponentialAverage":
        """A heavy ball with `step = 1 - mu`, so that a constant input has gain 1 in the limit.

        mu: a number in [0, 1), which gives `HeavyBall(mu, 1 - mu)`; or a tensor, which gives an
            `ExponentialAverage`: its step follows mu while mu is learned.

        >>> HeavyBall.ema(0.5)(torch.ones(3, 1, 1))[0].flatten()
        tensor([0.5000, 0.7500, 0.8750])
        """
        average = ExponentialAverage(mu)
        return average if isinstance(mu, Tensor) else HeavyBall(mu, 1 - mu)


@dataclass(frozen=True, repr=False)
class ExponentialAverage(Momentum):
    """`v_t = mu v_{t-1} + (1 - mu) a_t`: `HeavyBall.ema(mu)` returns it for a tensor mu. The drive is v.

    mu: decay of v, a tensor or a number in [0, 1). It is bounded as in `HeavyBall`.

    The step is no field of its own: a layer has `momentum_mu` and no `momentum_step`.

    >>> ExponentialAverage(mu=torch.tensor([0.0, 0.5]))(torch.ones(3, 1, 4))[0][-1]
    tensor([[1.0000, 1.0000, 0.8750, 0.8750]])
    """

    mu: float | Tensor
    decay = HeavyBall.decay

    def __post_init__(self) -> None:
        if not isinstance(self.mu, Tensor):  # step = 1 - mu must be positive
            check_number("HeavyBall.ema: mu", self.mu, "a number in [0, 1)", lambda m: 0 <= m < 1)
        super().__post_init__()

    @property
    def step(self) -> float | Tensor:  # type: ignore[override]
        if not isinstance(self.mu, Tensor):
            return 1 - self.mu
        return 1 - self.mu.to(moments_dtype(self.mu.dtype))


@dataclass(frozen=True, repr=False)
class Nesterov(Momentum):
    """`v_t = k / (k + 3) v_{t-1} + step a_t`: the NAG of the paper (section 2.4). The drive is v.

    step: factor on a, a positive number or a tensor; see `Momentum` for tensors. Default: 1

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
    """`v_t = j / (j + 3) v_{t-1} + step a_t`, j = k mod every: the SR of the paper (section 2.4).

    The drive is v.

    every: steps from one restart of Nesterov's schedule to the next, the paper's F. Default: 40
    step: factor on a, a positive number or a tensor; see `Momentum` for tensors. Default: 1

    >>> ScheduledRestart(every=2)(torch.ones(4, 1, 1))[0].flatten()
    tensor([1.0000, 1.2500, 1.0000, 1.2500])
    """

    every: int = 40
    step: float | Tensor = 1.0

    def __post_init__(self) -> None:
        check_integer(f"{type(self).__name__}: every", self.every, expected="an integer of at least 1")
        super().__post_init__()

    def decay(self, k: Tensor) -> Tensor:
        j = k % self.every
        return j / (j + 3)


@dataclass(frozen=True, repr=False)
class Adam(Momentum):
    """`v_t / sqrt(n_t + eps²)`, a heavy ball over the root of a running mean of a²: AdamRNN (eq. 15).

        v_t = mu v_{t-1} + step a_t,   n_t = beta n_{t-1} + (1 - beta) a_t²

    mu, step: as in `HeavyBall`, also where mu is learned. Default: 0.6 and 1
    beta: decay of n, a number in [0, 1). Default: 0.999
    eps: at least 1e-18; it bounds the gradient where a is 0. Default: 1e-8
    eps_in_sqrt: False divides by `sqrt(n) + eps`, as printed. Its gradient is infinite while all inputs so
        far gave `W x + b_ih = 0`, and turns to nan in training. Default: True

    Shapes: see `Momentum`. It computes the same as this loop:

    >>> a, v, n = torch.randn(7, 2, 20), torch.zeros(2, 20), torch.zeros(2, 20)
    >>> drive, state = Adam(mu=0.6, step=1.0, beta=0.999)(a)
    >>> for t in range(7):
    ...     v, n = 0.6 * v + 1.0 * a[t], 0.999 * n + 0.001 * a[t] ** 2
    ...     assert torch.allclose(drive[t], v / (n + 1e-8**2).sqrt(), rtol=1e-4)

    There is no bias correction: the first drive is `±step / sqrt(1 - beta)`, which saturates gates if beta
    and step are near 1. If `mu² > beta` the drive grows over inputs of 0, until eps stops it.

    >>> Adam(mu=0.0, step=1.0, beta=0.75)(torch.tensor([4.0, -4.0]).view(2, 1, 1))[0].flatten()
    tensor([ 2.0000, -1.5119])
    """

    mu: float | Tensor = 0.6
    step: float | Tensor = 1.0
    beta: float = 0.999
    eps: float = 1e-8
    eps_in_sqrt: bool = True

    def __post_init__(self) -> None:
        _check_mu(self, self.mu)
        super().__post_init__()

    def decay(self, k: Tensor) -> Tensor | float:
        return self.mu


@dataclass(frozen=True, repr=False)
class RMSProp(Momentum):
    """`step a_t / sqrt(n_t + eps²)`, n as in `Adam`: the RMSPropRNN of the paper, which is Adam with mu = 0.

    step, eps, eps_in_sqrt: as in `Adam`. Default: 1, 1e-8 and True
    beta: decay of n, a number in [0, 1). Default: 0.9

    >>> RMSProp(beta=0.0)(torch.tensor([4.0, -4.0]).view(2, 1, 1))[0].flatten()
    tensor([ 1., -1.])
    """

    step: float | Tensor = 1.0
    beta: float = 0.9
    eps: float = 1e-8
    eps_in_sqrt: bool = True

    def decay(self, k: Tensor) -> float:
        return 0.0


# The decays of these depend on their fields and on k alone. Those of a user's class may depend on anything.
MOMENTA = (HeavyBall, Nesterov, ScheduledRestart, Adam, RMSProp)
# The methods `decay` that return the momentum's mu, the same at every step.
_CONSTANT_DECAYS = (HeavyBall.decay, Adam.decay)
torch.serialization.add_safe_globals([*MOMENTA, ExponentialAverage, MomentumState])


def decays_by_tensor_mu(momentum: Momentum | None) -> bool:
    """Whether the decay of each step is the momentum's mu, and mu is a tensor."""
    return getattr(type(momentum), "decay", None) in _CONSTANT_DECAYS and "mu" in tensor_fields(momentum)


def step_indices(k: Tensor | None, steps: int, device: torch.device) -> Tensor:
    """The index k of each of T steps: (T, B) for sequences that have taken k steps, (T, 1) for new ones."""
    t = torch.arange(steps, device=device).unsqueeze(-1)
    return t if k is None else t + k


def scan(decay: Tensor, x: Tensor, initial: Tensor | None = None) -> Tensor:
    """`v_t = decay_t v_{t-1} + x_t` over the first axis, in O(T) work and without division.

    decay: (T, B, 1), or a shape that broadcasts to that of x; x: (T, B, F); initial: v before the first step,
    (B, F), or None for 0. Returns v, (T, B, F), which has derivatives of every order in all three.

    >>> scan(torch.full((3, 1, 1), 0.5), torch.ones(3, 1, 1)).flatten()
    tensor([1.0000, 1.5000, 1.7500])
    """
    if initial is not None:
        x = torch.cat([(x[0] + decay[0] * initial).unsqueeze(0), x[1:]])
    return _Scan.apply(decay, x)  # type: ignore[no-any-return, no-untyped-call]


class _Scan(torch.autograd.Function):
    """`scan`, with its adjoint as the backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(decay: Tensor, x: Tensor) -> Tensor:
        return _scan_by_pairs(decay, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output if ctx.needs_input_grad[0] else None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor]:
        decay, v = ctx.saved_tensors
        # The adjoint is the same recurrence backwards: g_t = grad_t + decay_{t+1} g_{t+1}.
        following = torch.cat([decay[1:], torch.zeros_like(decay[:1])])
        g = _Scan.apply(following.flip(0), grad.flip(0)).flip(0)  # type: ignore[no-untyped-call]
        if v is None:
            return None, g
        previous = torch.cat([torch.zeros_like(v[:1]), v[:-1]])
        return (g * previous).sum_to_size(decay.shape), g


def _scan_by_pairs(decay: Tensor, x: Tensor) -> Tensor:
    """The scan in pairs of steps: log T passes over whole tensors replace T passes over one step."""
    steps = len(x)
    # Large steps are cheaper one after another: each keeps the device busy, and each element moves once.
    if steps < 8 or x[0].numel() >= (1 << 14 if x.device.type == "cpu" else 1 << 21):
        steps_of_v = [x[0]]
        for d, x_t in zip(decay[1:].unbind(), x[1:].unbind(), strict=True):
            steps_of_v.append(torch.addcmul(x_t, d, steps_of_v[-1]))
        return torch.stack(steps_of_v)
    first, second = slice(0, steps // 2 * 2, 2), slice(1, None, 2)
    pairs = torch.addcmul(x[second], decay[second], x[first])
    v_odd = _scan_by_pairs(decay[second] * decay[first], pairs)
    x_even = x[2::2]
    v_even = torch.cat([x[:1], torch.addcmul(x_even, decay[2::2], v_odd[: len(x_even)])])
    v = torch.stack([v_even[: len(v_odd)], v_odd], 1).reshape(2 * len(v_odd), *x.shape[1:])
    return v if len(v_even) == len(v_odd) else torch.cat([v, v_even[-1:]])


def _repeat_columns(x: Tensor, width: int) -> Tensor:
    """(..., n) -> (..., width): repeats each entry for width / n adjacent columns; (..., 1) stays."""
    n = x.shape[-1]
    return x if n in (1, width) else x.unsqueeze(-1).expand(*x.shape, width // n).flatten(-2)


def _check_mu(momentum: Momentum, mu: float | Tensor) -> None:
    if not isinstance(mu, Tensor):
        name = f"{type(momentum).__name__}: mu"
        check_number(name, mu, "a number in [0, 1]", lambda m: 0 <= m <= 1)


def _check_tensor(name: str, value: Tensor) -> None:
    if not value.is_floating_point():
        raise TypeError(f"{name} should be a floating-point tensor, got {describe(value)} of {value.dtype}")
    if value.dim() > 1 or value.numel() == 0:
        expected = "a number or a tensor of shape (), (1,) or (n,)"
        raise ValueError(f"{name} should be {expected}, got {describe(value)}")
