"""Variants of recipes: as the released code ran them, and the controls that the paper lacks.

A control is the network without its momentum, and matches the network with it in one respect. Each variant is
a function of a recipe's name and config.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ...cells import LSTM, ExtrapolatedLSTM
from ...init import Paper
from ...momentum import Adam, HeavyBall, Momentum, ScheduledRestart
from ..config import Config
from .rows import closest, row_of


@dataclass(frozen=True)
class Variant:
    """What may follow a recipe's name.

    words: what the variant is.
    config: its config, from the recipe's name and config; None for a recipe that has no such variant.
    """

    words: str
    config: Callable[[str, Config], Config | None]


def variant_config(name: str, config: Config, variant: str) -> Config | None:
    """The config of a recipe's variant; None if the recipe has no such variant.

    A control comes last in a name. Only "as-released" may stand before it.
    """
    before = name.split("/")[4:]
    allowed = CONTROLS if before == ["as-released"] else () if before else tuple(VARIANTS)
    return VARIANTS[variant].config(name, config) if variant in allowed else None


def matched_step(momentum: Momentum, x: Tensor, weight_ih: Tensor, bias_ih: Tensor | None = None) -> float:
    """The step c at which the drive without momentum, `c a`, has the rms of the drive with it.

        c² = mean(momentum(a)²) / mean(a²),   a = W x + b_ih,   means over time, samples and gate rows

    In float64. x: (T, B, D); weight_ih: (G, D), those of a layer's rows that count; bias_ih: (G,).

    >>> import torch
    >>> matched_step(HeavyBall(mu=0.0, step=3.0), torch.ones(5, 2, 1), torch.ones(4, 1))
    3.0
    """
    squares_with = squares_without = 0.0
    bias = None if bias_ih is None else bias_ih.detach().double()
    # A few samples at a time: a drive is G / D times as large as what it comes from.
    for part in torch.split(x.double(), 8, dim=1):
        a = functional.linear(part, weight_ih.detach().double(), bias)
        squares_with += momentum(a)[0].square().sum().item()
        squares_without += a.square().sum().item()
    return math.sqrt(squares_with / squares_without)


# By row: what the released runs had instead of the tables' values, as their names and curves show.
_RELEASED_CHANGES: dict[str, dict[str, Any]] = {
    "AdamLSTM/MNIST/128": {"momentum": Adam(mu=0.6, step=0.6, beta=0.8)},
    "SRLSTM-released/MNIST/128": {"cell": ExtrapolatedLSTM(every=8, step_size=1.0)},
}
# The steps of "same-rms": what `matched_step` gives for new weights and training data, the mean over seeds.
# With 200 images a seed, their standard deviation over seeds is 4 % at most. Permutations matter no more.
# "as-released" has its own step where its momentum is another.
_RMS_STEPS = {
    "AdamLSTM/MNIST/128": 1660.0,
    "AdamLSTM/MNIST/128/as-released": 1.90,
    "AdamLSTM/MNIST/256": 1380.0,
    "AdamLSTM/PMNIST/128": 48800.0,
    "AdamLSTM/PMNIST/256": 37700.0,
    "AdamLSTM/Copying1K/190": 22.6,
    "AdamLSTM/Copying2K/190": 17.8,
    "AdamLSTM/Adding/128": 26.4,
    "AdamDTRIV/PMNIST/512": 0.501,
    "RMSPropLSTM/MNIST/128": 1.40,
    "RMSPropLSTM/MNIST/256": 0.974,
    "RMSPropLSTM/PMNIST/128": 1.25,
    "RMSPropLSTM/PMNIST/256": 1.25,
    "RMSPropLSTM/Copying1K/190": 10.7,
    "RMSPropLSTM/Copying2K/190": 8.24,
    "RMSPropLSTM/Adding/128": 12.7,
    "RMSPropDTRIV/PMNIST/512": 0.527,
}
# The steps of "same-input-rms": the same over the gates without a bias. Over all gates, the rms of W x + b_ih
# is nearly that of the forget bias. For AdamLSTM on MNIST and PMNIST mu² > beta, and the rms of the drive is
# that of its peaks over black pixels.
_INPUT_RMS_STEPS = {
    "AdamLSTM/MNIST/128": 65000.0,
    "AdamLSTM/MNIST/128/as-released": 45.4,
    "AdamLSTM/MNIST/256": 76900.0,
    "AdamLSTM/PMNIST/128": 1.91e6,
    "AdamLSTM/PMNIST/256": 2.10e6,
    "AdamLSTM/Copying1K/190": 298.0,
    "AdamLSTM/Copying2K/190": 237.0,
    "AdamLSTM/Adding/128": 500.0,
    "RMSPropLSTM/MNIST/128": 45.8,
    "RMSPropLSTM/MNIST/256": 42.2,
    "RMSPropLSTM/PMNIST/128": 29.5,
    "RMSPropLSTM/PMNIST/256": 41.9,
    "RMSPropLSTM/Copying1K/190": 146.0,
    "RMSPropLSTM/Copying2K/190": 112.0,
    "RMSPropLSTM/Adding/128": 248.0,
}


def _rounded(value: float) -> float:
    """To 10 digits: 1.5, not 1.4999999999999998, in the config and so in the run's id."""
    return float(f"{value:.10g}")


def _mean_gain(config: Config) -> float:
    """The mean drive of a gate in the long run, where W x + b_ih is always 1.

    HeavyBall and Adam: step / (1 - mu), since Adam's second moment is 1. ScheduledRestart: k steps after a
    restart it is step (k + 4) / 4. Its mean over a period is step (1 + (every - 1) / 8). ExtrapolatedLSTM:
    minus its step, since where nothing changes it extrapolates nothing.
    """
    cell, momentum = config.cell, config.momentum
    if isinstance(cell, ExtrapolatedLSTM):
        return -cell.step_size
    if isinstance(momentum, ScheduledRestart):
        return _rounded(float(momentum.step) * (1 + (momentum.every - 1) / 8))
    if isinstance(momentum, HeavyBall | Adam):
        return _rounded(float(momentum.step) / (1 - float(momentum.mu)))
    return 1.0 if momentum is None else float(momentum.step)


def _with_step_alone(config: Config, step: float) -> Config:
    """With a step and no momentum."""
    # A step of 1 is no step: the run is then that of the baseline.
    return replace(config, momentum=None if step == 1 else HeavyBall(mu=0.0, step=step))


def _with_forget_bias(config: Config, factor: float) -> Config:
    """With a multiple of its forget bias.

    The initial value is given to both biases, b_ih and b_hh. Momentum filters b_ih alone.
    """
    assert isinstance(config.init, Paper)
    forget_bias = _rounded(factor * config.init.forget_bias)
    return replace(config, init=replace(config.init, forget_bias=forget_bias))


def _as_released(name: str, config: Config) -> Config | None:
    _, model, task, *_ = name.split("/")
    if model == "SRLSTM" or task not in ("MNIST", "PMNIST"):
        return None
    permutation = {"permutation": "seed"} if task == "PMNIST" else {}
    released_task: Any = replace(config.task, validation=0, **permutation)  # type: ignore[type-var]
    return replace(config, task=released_task, **_RELEASED_CHANGES.get(row_of(name), {}))


def _same_step(name: str, config: Config) -> Config | None:
    if isinstance(config.cell, ExtrapolatedLSTM):
        return replace(config, cell=replace(config.cell, every=1))
    return _with_step_alone(config, float(config.momentum.step)) if config.momentum else None


def _same_gain(name: str, config: Config) -> Config | None:
    linear = config.momentum is not None and config.momentum.linear
    return _with_step_alone(config, _mean_gain(config)) if linear else None


def _same_input_gain(name: str, config: Config) -> Config | None:
    same_gain = _same_gain(name, config)
    if same_gain is None or config.orthogonal:
        return None
    return _with_forget_bias(same_gain, 2 / (1 + _mean_gain(config)))


def _same_forget_bias(name: str, config: Config) -> Config | None:
    is_baseline = config.momentum is None and isinstance(config.cell, LSTM)
    if is_baseline or config.orthogonal:
        return None
    baseline = replace(config, cell=LSTM(), momentum=None)
    return _with_forget_bias(baseline, (1 + _mean_gain(config)) / 2)


def _same_rms(name: str, config: Config) -> Config | None:
    step = closest(_RMS_STEPS, row_of(name))
    return None if step is None else _with_step_alone(config, step)


def _same_input_rms(name: str, config: Config) -> Config | None:
    step = closest(_INPUT_RMS_STEPS, row_of(name))
    if step is None:
        return None
    return _with_forget_bias(_with_step_alone(config, step), (1 + _mean_gain(config)) / (1 + step))


VARIANTS = {
    "as-released": Variant(
        "as the released code ran it: no validation split, on PMNIST a permutation for each seed, its own "
        "hyper-parameters where they differ from the tables",
        _as_released,
    ),
    "same-step": Variant("control: momentum off, the same step", _same_step),
    "same-gain": Variant(
        "control: momentum off, the step that gives a constant input the same mean drive", _same_gain
    ),
    "same-input-gain": Variant(
        "control: momentum off, the step of same-gain, the forget bias of the network without momentum",
        _same_input_gain,
    ),
    "same-forget-bias": Variant(
        "control: no momentum and no step, the forget bias that momentum makes of the initial one in the "
        "long run",
        _same_forget_bias,
    ),
    "same-rms": Variant(
        "control: momentum off, the step at which the initial drive has the same rms over all gates",
        _same_rms,
    ),
    "same-input-rms": Variant(
        "control: momentum off, the step at which the initial drive has the same rms over the gates without "
        "a bias, and the same forget bias in the long run",
        _same_input_rms,
    ),
}
CONTROLS = tuple(variant for variant in VARIANTS if variant != "as-released")
