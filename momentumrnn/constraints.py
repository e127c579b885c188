"""Constraints on U: orthogonal recurrent matrices, their re-basing, and dropout of recurrent weights.

    U = base exp(S),   S = tril(X) - tril(X)ᵀ            orthogonal: base is fixed, the tangent X is trained
    U <- U m / (1 - p),   m_ij ~ Bernoulli(1 - p)        dropout: one mask for each call of a layer

Both are torch parametrisations of `weight_hh`. The layers know of neither.
"""

import math
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized, register_parametrization

from .init import ANGLES
from .precision import moments_dtype
from .recurrent_layer import Recurrent
from .step_cells import RecurrentCell
from .value_checks import check_number

R = TypeVar("R", bound=Recurrent | RecurrentCell)
# Rounding errors add up in products of orthogonal matrices: each 100th re-basing repairs the base.
_REPAIR_EVERY = 100


def orthogonal(rnn: R, init: str | None = "cayley") -> R:
    """Keep every recurrent matrix of a layer or cell orthogonal, in place; returns rnn.

        U = base exp(tril(X) - tril(X)ᵀ)       U, base, X: (n, n)

    rnn: a layer or step cell whose U is square
    init: how base is drawn, "cayley" or "henaff" (`init.cayley_`, `init.henaff_`). None makes the present
        matrix orthogonal. Default: "cayley"

    X is trained; it starts at 0 and has n (n - 1) / 2 effective entries. Layers that share a matrix, as in
    `rnn.weight_hh_l1 = rnn.weight_hh_l0`, still share it afterwards.
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
            kinds = ", ".join(type(m).__name__ for m in _parametrizations_of(rnn, name))
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
        _parametrizations_of(rnn, first)[0].register_buffer("rebasings", rebasings)
        _share(rnn, first, others)
    return rnn


def rebase_(model: nn.Module) -> None:
    """Set the base of every weight that `orthogonal` made to the present weight; call it every K steps.

        base <- U,   X <- 0                            no output changes
        base <- argmin ‖Q - base‖, Q orthogonal        each 100th time, against rounding

    model: a module with such weights, itself or in its submodules

    Call it after `optimizer.step()`. The state of the optimiser is not transported to the new base.

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
        # Parametrisations after the first, such as weight_drop, do not belong to U.
        X, first = weight.original, weight[0]
        base, rebasings = first.get_buffer("base"), first.get_buffer("rebasings")
        with torch.no_grad(), torch.autocast(X.device.type, enabled=False):
            U = first(X)
            rebasings += 1
            if rebasings % _REPAIR_EVERY == 0:
                # torch has no svd for 16 bits
                left, _, right = torch.linalg.svd(U.to(moments_dtype(U.dtype)))
                U = left @ right
            base.copy_(U)
            X.zero_()


def weight_drop(rnn: R, p: float) -> R:
    """Apply dropout to the entries of every recurrent matrix of a layer or cell (DropConnect); returns rnn.

        U m / (1 - p),   m_ij ~ Bernoulli(1 - p)           while training; else U

    rnn: a layer or step cell, changed in place
    p: the probability to drop an entry, in [0, 1)

    A layer draws one mask at each call. All time steps and all sequences of the batch share it. Layers that
    share a matrix share its mask. A step cell draws one at each step. To keep one mask for a sequence, put
    the loop into `torch.nn.utils.parametrize.cached()`.
    Reference: Merity, Keskar, Socher, Regularizing and Optimizing LSTM Language Models, ICLR 2018.

    >>> from momentumrnn import LSTM
    >>> lstm = weight_drop(LSTM(3, 5, num_layers=2), p=0.5)
    >>> out, _ = lstm(torch.randn(7, 2, 3))
    >>> bool((lstm.eval().weight_hh_l0 != 0).all())
    True
    """
    matrices = _matrices("weight_drop", rnn)
    _check_rate("weight_drop: p", p, below=1)
    for name, *_ in matrices:
        if any(isinstance(m, _Drop) for m in _parametrizations_of(rnn, name)):
            raise ValueError(
                f"weight_drop: rnn.{name} should have no drop yet, got {_parametrizations_of(rnn, name)[-1]}"
            )
    for first, *others in matrices:
        # unsafe=True omits a check that would draw a mask.
        register_parametrization(rnn, first, _Drop(float(p)), unsafe=True)
        _share(rnn, first, others)
    return rnn


def optimizer_groups(model: nn.Module, *, lr: float, orthogonal_lr: float) -> list[dict[str, Any]]:
    """All parameters in groups for a torch optimiser; the tangents X of `orthogonal` have their own rate.

    model: any module
    lr: learning rate of the first group, which has all other parameters
    orthogonal_lr: learning rate of the second group, the tangents; it is missing if there are none

    >>> from momentumrnn import RNN
    >>> model = nn.Sequential(orthogonal(RNN(3, 8, nonlinearity="modrelu", bias="hh")))
    >>> optimizer = torch.optim.RMSprop(optimizer_groups(model, lr=1e-3, orthogonal_lr=1e-4))
    >>> [(len(group["params"]), group["lr"]) for group in optimizer.param_groups]
    [(2, 0.001), (1, 0.0001)]
    """
    tangents = [weight.original for weight in _orthogonal_weights("optimizer_groups", model)]
    _check_rate("optimizer_groups: lr", lr)
    _check_rate("optimizer_groups: orthogonal_lr", orthogonal_lr)
    tangent_ids = set(map(id, tangents))
    others = [parameter for parameter in model.parameters() if id(parameter) not in tangent_ids]
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
    """The parametrisation of `weight_drop`."""

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
    """The names of all recurrent matrices, grouped: names of a shared matrix are in one list."""
    if not isinstance(rnn, Recurrent | RecurrentCell):
        kind = type(rnn).__name__
        raise TypeError(f"{function}: rnn should be a layer or cell such as momentumrnn.RNN, got {kind}")
    groups: dict[int, list[str]] = {}
    for suffix in rnn._suffixes() if isinstance(rnn, Recurrent) else [""]:
        name = "weight_hh" + suffix
        owner = _parametrizations(rnn)[name] if is_parametrized(rnn, name) else getattr(rnn, name)
        groups.setdefault(id(owner), []).append(name)
    return list(groups.values())


def _parametrizations(rnn: nn.Module) -> nn.ModuleDict:
    by_name = rnn.get_submodule("parametrizations")
    assert isinstance(by_name, nn.ModuleDict)
    return by_name


def _parametrizations_of(rnn: nn.Module, name: str) -> list[nn.Module]:
    """The parametrisations of a tensor, in the order in which they are applied."""
    return list(_parametrizations(rnn)[name].children()) if is_parametrized(rnn, name) else []


def _share(rnn: nn.Module, first: str, others: list[str]) -> None:
    """Give the other names of a shared matrix the parametrisation of the first."""
    for name in others:
        if not is_parametrized(rnn, name):
            register_parametrization(rnn, name, nn.Identity())
            _parametrizations(rnn)[name] = _parametrizations(rnn)[first]


def _orthogonal_weights(function: str, model: object) -> list[ParametrizationList]:
    """The weights of a module and its submodules that `orthogonal` made, each once."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{function}: model should be a torch.nn.Module, got {type(model).__name__}")
    parametrized = [m for m in model.modules() if isinstance(m, ParametrizationList)]
    return [weight for weight in parametrized if "rebasings" in dict(weight[0].named_buffers())]


def _check_rate(name: str, value: float, below: float = math.inf) -> None:
    check_number(name, value, f"a number in [0, {below})", lambda rate: 0 <= rate < below)
