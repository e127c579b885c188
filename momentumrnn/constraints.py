"""What acts on U: orthogonal recurrent matrices, their re-basing, and dropped recurrent weights.

    U = base exp(S),   S = tril(X) - tril(X)ᵀ            orthogonal: base is kept, the tangent X is trained
    U <- U m / (1 - p),   m_ij ~ Bernoulli(1 - p)        dropped: one mask for each call of a layer

Both are torch parametrisations of `weight_hh`; the layers know of neither.
"""

import math
from numbers import Real
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized, register_parametrization

from .init import ANGLES
from .modules import Recurrent, RecurrentCell
from .momentum import wide

R = TypeVar("R", bound=Recurrent | RecurrentCell)
# Products of orthogonal matrices drift: after so many re-basings the base is made orthogonal again.
_REPAIR_EVERY = 100


def orthogonal(rnn: R, init: str | None = "cayley") -> R:
    """Keep every recurrent matrix of a layer or cell orthogonal, in place; returns rnn.

        U = base exp(tril(X) - tril(X)ᵀ)       U, base, X: (n, n)

    X is trained, starts at a zero tangent and has n (n - 1) / 2 effective entries; base starts as `init`:
    "cayley" or "henaff" (`init.cayley_`, `init.henaff_`), or None, the matrix that there is, made orthogonal.
    Matrices that were one before, `rnn.weight_hh_l1 = rnn.weight_hh_l0`, stay one.
    With `rebase_` every K steps this is DTRIV-K, without it DTRIV-∞.
    Reference: Lezcano-Casado, Trivializations for Gradient-Based Optimization on Manifolds, NeurIPS 2019.

    >>> from momentumrnn import RNN, HeavyBall
    >>> rnn = orthogonal(RNN(3, 8, nonlinearity="modrelu", bias="hh", momentum=HeavyBall(mu=0.6)))
    >>> out, h = rnn(torch.randn(7, 2, 3))
    >>> torch.allclose(rnn.weight_hh_l0.T @ rnn.weight_hh_l0, torch.eye(8), atol=1e-6)
    True
    """
    matrices = _matrices("orthogonal", rnn)
    if init is not None and init not in list(ANGLES):
        names = ", ".join(map(repr, ANGLES))
        raise ValueError(f"orthogonal: init should be one of {names}, None, got {init!r}")
    for name, *_ in matrices:
        if is_parametrized(rnn, name):
            kinds = ", ".join(type(m).__name__ for m in _steps(rnn, name))
            raise ValueError(
                f"orthogonal: rnn.{name} should be a plain parameter, got one parametrised by {kinds}; "
                "call orthogonal once, and weight_drop after it"
            )
        if getattr(rnn, name).is_meta:
            raise ValueError(f"orthogonal: rnn.{name} should have memory, got one on the meta device")
        shape = tuple(getattr(rnn, name).shape)
        if shape[0] != shape[1]:
            raise ValueError(f"orthogonal: rnn.{name} should be square, got shape {shape} for {rnn.cell!r}")
    for first, *others in matrices:
        U = getattr(rnn, first)
        if init is not None:
            ANGLES[init](U)
        parametrizations.orthogonal(rnn, first, orthogonal_map="matrix_exp", use_trivialization=True)
        rebasings = torch.zeros((), dtype=torch.int64, device=U.device)
        _steps(rnn, first)[0].register_buffer("rebasings", rebasings)
        _share(rnn, first, others)
    return rnn


def rebase_(model: nn.Module) -> None:
    """Move the base of every weight made by `orthogonal` to where the weight is now; call it every K steps.

        base <- U,   X <- 0                            no output changes
        base <- argmin ‖Q - base‖, Q orthogonal        each 100th time, against rounding

    Call it after `optimizer.step()`. The optimiser's own state is not transported to the new base.

    >>> from momentumrnn import RNN
    >>> rnn = orthogonal(RNN(3, 8, nonlinearity="modrelu", bias="hh"))
    >>> rebase_(nn.Sequential(rnn))
    >>> rnn.parametrizations.weight_hh_l0[0].rebasings
    tensor(1)
    """
    weights = _orthogonal_weights("rebase_", model)
    if not weights:
        raise ValueError(
            f"rebase_: model should have a weight made by orthogonal(), got {type(model).__name__} with none"
        )
    for weight in weights:
        # Parametrisations above the first, such as weight_drop, are no part of U.
        X, first = weight.original, weight[0]
        base, rebasings = first.get_buffer("base"), first.get_buffer("rebasings")
        with torch.no_grad(), torch.autocast(X.device.type, enabled=False):
            U = first(X)
            rebasings += 1
            if rebasings % _REPAIR_EVERY == 0:
                left, _, right = torch.linalg.svd(U.to(wide(U.dtype)))  # there is none in 16 bits
                U = left @ right
            base.copy_(U)
            X.zero_()


def weight_drop(rnn: R, p: float) -> R:
    """DropConnect on every recurrent matrix of a layer or cell, in place; returns rnn.

        U m / (1 - p),   m_ij ~ Bernoulli(1 - p)           while training; else U

    A layer draws one mask for each call, so for each sequence, and one for matrices that are one. A cell
    is called at each step: for one mask put the loop into `torch.nn.utils.parametrize.cached()`.
    Reference: Merity, Keskar, Socher, Regularizing and Optimizing LSTM Language Models, ICLR 2018.

    >>> from momentumrnn import LSTM
    >>> lstm = weight_drop(LSTM(3, 5, num_layers=2), p=0.5)
    >>> out, _ = lstm(torch.randn(7, 2, 3))
    >>> bool((lstm.eval().weight_hh_l0 != 0).all())
    True
    """
    matrices = _matrices("weight_drop", rnn)
    _check_number("weight_drop: p", p, below=1)
    for name, *_ in matrices:
        if any(isinstance(m, _Drop) for m in _steps(rnn, name)):
            raise ValueError(f"weight_drop: rnn.{name} should have no drop yet, got {_steps(rnn, name)[-1]}")
    for first, *others in matrices:
        # Unsafe leaves out a check that would draw a mask.
        register_parametrization(rnn, first, _Drop(float(p)), unsafe=True)
        _share(rnn, first, others)
    return rnn


def optimizer_groups(model: nn.Module, *, lr: float, orthogonal_lr: float) -> list[dict[str, Any]]:
    """All parameters in groups for a torch optimiser, the tangents X of `orthogonal` with their own rate.

    First all others, with lr; then, if there are any, the tangents, with orthogonal_lr.

    >>> from momentumrnn import RNN
    >>> model = nn.Sequential(orthogonal(RNN(3, 8, nonlinearity="modrelu", bias="hh")))
    >>> optimizer = torch.optim.RMSprop(optimizer_groups(model, lr=1e-3, orthogonal_lr=1e-4))
    >>> [(len(group["params"]), group["lr"]) for group in optimizer.param_groups]
    [(2, 0.001), (1, 0.0001)]
    """
    tangents = [weight.original for weight in _orthogonal_weights("optimizer_groups", model)]
    _check_number("optimizer_groups: lr", lr)
    _check_number("optimizer_groups: orthogonal_lr", orthogonal_lr)
    known = set(map(id, tangents))
    others = [parameter for parameter in model.parameters() if id(parameter) not in known]
    groups = [{"params": others, "lr": lr}, {"params": tangents, "lr": orthogonal_lr}]
    return groups if tangents else groups[:1]


def count_parameters(model: nn.Module) -> int:
    """The effective number of trainable parameters: n (n - 1) / 2 for an orthogonal (n, n) weight.

    A parameter that is shared counts once.

    >>> from momentumrnn import RNN
    >>> count_parameters(orthogonal(RNN(3, 8, nonlinearity="modrelu", bias="hh")))     # 3 * 8 + 8 * 7 / 2 + 8
    60
    """
    tangents = {id(weight.original) for weight in _orthogonal_weights("count_parameters", model)}
    trained = [p for p in model.parameters() if p.requires_grad]
    return sum(len(p) * (len(p) - 1) // 2 if id(p) in tangents else p.numel() for p in trained)


class _Drop(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, U: Tensor) -> Tensor:
        return functional.dropout(U, self.p, self.training)

    def right_inverse(self, U: Tensor) -> Tensor:
        return U

    def extra_repr(self) -> str:
        return f"p={self.p}"


def _matrices(function: str, rnn: object) -> list[list[str]]:
    """The names of all recurrent matrices; names of the same matrix in one list."""
    if not isinstance(rnn, Recurrent | RecurrentCell):
        kind = type(rnn).__name__
        raise TypeError(f"{function}: rnn should be a layer or cell such as momentumrnn.RNN, got {kind}")
    groups: dict[int, list[str]] = {}
    for suffix in rnn._suffixes() if isinstance(rnn, Recurrent) else [""]:
        name = "weight_hh" + suffix
        held = _lists(rnn)[name] if is_parametrized(rnn, name) else getattr(rnn, name)
        groups.setdefault(id(held), []).append(name)
    return list(groups.values())


def _lists(rnn: nn.Module) -> nn.ModuleDict:
    lists = rnn.get_submodule("parametrizations")
    assert isinstance(lists, nn.ModuleDict)
    return lists


def _steps(rnn: nn.Module, name: str) -> list[nn.Module]:
    """The parametrisations of a tensor, in the order in which they are applied."""
    return list(_lists(rnn)[name].children()) if is_parametrized(rnn, name) else []


def _share(rnn: nn.Module, first: str, others: list[str]) -> None:
    """Give matrices that are one with the first its parametrisation."""
    for name in others:
        if not is_parametrized(rnn, name):
            register_parametrization(rnn, name, nn.Identity())
            _lists(rnn)[name] = _lists(rnn)[first]


def _orthogonal_weights(function: str, model: object) -> list[ParametrizationList]:
    """The weights below a module that `orthogonal` made, each once."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{function}: model should be a torch.nn.Module, got {type(model).__name__}")
    found = [m for m in model.modules() if isinstance(m, ParametrizationList)]
    return [weight for weight in found if "rebasings" in dict(weight[0].named_buffers())]


def _check_number(name: str, value: float, below: float = math.inf) -> None:
    expected = f"{name} should be a number in [0, {below})"
    if isinstance(value, bool) or not isinstance(value, int | float | Real):
        raise TypeError(f"{expected}, got {value!r}")
    if not 0 <= value < below:
        raise ValueError(f"{expected}, got {value!r}")
