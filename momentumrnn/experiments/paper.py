"""The rows of the paper as data: what was run, and what was printed. Knows nothing of how a run is done.

A recipe is named by table or figure, model, task and hidden size: "table1/MomentumLSTM/PMNIST/256". A row in
two tables has two names and one Config, so its runs are shared. Variants, such as the controls that the paper
lacks, are named by what follows: "table1/MomentumLSTM/PMNIST/256/same-gain".

Reference: Nguyen, Baraniuk, Bertozzi, Osher, Wang, MomentumRNN: Integrating Momentum into Recurrent Neural
Networks, NeurIPS 2020.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from ..cells import LSTM, ExtrapolatedLSTM
from ..init import Paper
from ..momentum import Adam, HeavyBall, Momentum, RMSProp, ScheduledRestart
from ..repr_parser import nearest
from .config import Config, configure
from .tasks import MNIST, PMNIST, Adding, Copying, Task

T = TypeVar("T")

SOURCES = {
    "paper": "the authors' own runs",
    "helfrich2018": "Helfrich, Willmott, Ye, Orthogonal Recurrent Neural Networks with Scaled Cayley "
    "Transform, ICML 2018",
    "vorontsov2017": "Vorontsov, Trabelsi, Kadoury, Pal, On orthogonality and learning recurrent networks "
    "with long term dependencies, ICML 2017",
    "wisdom2016": "Wisdom, Powers, Hershey, Le Roux, Atlas, Full-Capacity Unitary Recurrent Neural "
    "Networks, NIPS 2016",
    "casado2019trivializations": "Lezcano-Casado, Trivializations for Gradient-Based Optimization on "
    "Manifolds, NeurIPS 2019",
    "helfrich2018+lezcano2019cheap": "Helfrich et al. 2018, and Lezcano-Casado, Martínez-Rubio, Cheap "
    "Orthogonal Constraints in Neural Networks, ICML 2019",
    "merity2018": "Merity, Keskar, Socher, Regularizing and Optimizing LSTM Language Models, ICLR 2018",
}


@dataclass(frozen=True)
class Published:
    """A number that the paper prints.

    std: the sample standard deviation over seeds, where given; source: a key of SOURCES; rounding: how far
    from the value that which was printed may have been, where that matters; seeds: behind a std.
    """

    value: float
    std: float | None = None
    source: str = "paper"
    rounding: float = 0.0
    seeds: int = 5

    @property
    def quoted(self) -> bool:
        """Whether it is taken from another work, and so from other training."""
        return self.source != "paper"


@dataclass(frozen=True)
class Recipe:
    """A row of the paper, or a variant of one: its run, and the numbers to stand beside it.

    >>> found = recipe("table1/MomentumLSTM/PMNIST/256")
    >>> found.config.momentum, found.published
    (HeavyBall(mu=0.6, step=1.0), (Published(value=94.72, std=0.16, source='paper', rounding=0.0, seeds=5),))
    >>> found.variants
    ('as-released', 'same-step', 'same-gain', 'same-input-gain', 'same-forget-bias')
    """

    name: str
    config: Config
    published: tuple[Published, ...]
    """Empty where the paper has a curve or nothing."""
    metric: str
    """What is published, in words."""
    note: str = ""
    """What a comparison must know."""

    @property
    def variants(self) -> tuple[str, ...]:
        """What may follow its name, a key of VARIANTS each."""
        return tuple(key for key in VARIANTS if _varied(self, key) is not None)


@dataclass(frozen=True)
class Variant:
    """What may follow a recipe's name. words: what it is; config: that of a recipe's, None if it has none."""

    words: str
    config: Callable[[Recipe], Config | None]


def recipe(name: str) -> Recipe:
    """The recipe of that name: one of RECIPES, or a variant.

    A control may follow "as-released": "table11/AdamLSTM/MNIST/128/as-released/same-step".

    >>> recipe("table1/MomentumLSTM/MNIST/256/same-gain").config.momentum
    HeavyBall(mu=0.0, step=1.5)
    """
    parts = name.split("/")
    base = "/".join(parts[:4])
    if base not in RECIPES:
        hint = nearest(base, RECIPES) or "; momentumrnn recipes lists them"
        raise ValueError(f"there is no recipe {name!r}{hint}")
    found = RECIPES[base]
    for key in parts[4:]:
        config = _varied(found, key)
        if config is None:
            known = found.variants
            expected = f"one of {', '.join(map(repr, known))}" if known else "nothing"
            raise ValueError(
                f"after {found.name!r} expected {expected}, got {key!r}{nearest(key, list(known))}"
            )
        name, words = f"{found.name}/{key}", [VARIANTS[key].words]
        if key == "as-released":
            published, words = found.published, [found.note, *words]
        else:
            row = _key(name).replace("/as-released", "")
            published, words = _PUBLISHED.get(row, ()), [*words, _NOTES.get(row, "")]
        found = replace(
            found, name=name, config=config, published=published, note="; ".join(filter(None, words))
        )
    return found


def released_loss(name: str) -> Published | None:
    """The lowest test loss of a recipe's runs by the authors, from the curves that they released.

    >>> released_loss("table1/LSTM/PMNIST/256")
    Published(value=0.2752, std=0.018, source='paper', rounding=0.0, seeds=4)
    """
    key = _key(name)
    return _LOSSES.get(key) or _LOSSES.get(key.removesuffix("/as-released"))


def matched_step(momentum: Momentum, x: Tensor, weight_ih: Tensor, bias_ih: Tensor | None = None) -> float:
    """The step c at which the drive without momentum, `c a`, has the rms of the drive with it.

        c² = mean(momentum(a)²) / mean(a²),   a = W x + b_ih,   means over time, samples and gate rows

    In float64. x: (T, B, D); weight_ih: (G, D), as many of a layer's rows as are to count; bias_ih: (G,).

    >>> import torch
    >>> matched_step(HeavyBall(mu=0.0, step=3.0), torch.ones(5, 2, 1), torch.ones(4, 1))
    3.0
    """
    with_it = without = 0.0
    bias = None if bias_ih is None else bias_ih.detach().double()
    # A few samples at a time: a drive is G / D times as large as what it comes from.
    for part in torch.split(x.double(), 8, dim=1):
        a = functional.linear(part, weight_ih.detach().double(), bias)
        with_it += momentum(a)[0].square().sum().item()
        without += a.square().sum().item()
    return math.sqrt(with_it / without)


_TASKS: dict[str, Task] = {
    "MNIST": MNIST(),
    "PMNIST": PMNIST(),
    "Copying1K": Copying(length=1000),
    "Copying2K": Copying(length=2000),
    "Adding": Adding(),
}
# Tables 7 to 10. What holds for one size only has the size in its key.
_MOMENTA: dict[str, Momentum] = {
    "MomentumLSTM/MNIST": HeavyBall(mu=0.6, step=0.6),
    "MomentumLSTM/PMNIST": HeavyBall(mu=0.6, step=1.0),
    "MomentumLSTM/Copying1K": HeavyBall(mu=0.6, step=0.9),
    "MomentumLSTM/Copying2K": HeavyBall(mu=0.9, step=2.0),
    "MomentumLSTM/Adding": HeavyBall(mu=0.9, step=2.0),
    "MomentumDTRIV/PMNIST/170": HeavyBall(mu=0.6, step=0.9),
    "MomentumDTRIV/PMNIST/360": HeavyBall(mu=0.3, step=0.3),
    "MomentumDTRIV/PMNIST/512": HeavyBall(mu=0.3, step=0.3),
    "AdamLSTM/MNIST": Adam(mu=0.6, step=0.6, beta=0.1),
    "AdamLSTM/PMNIST": Adam(mu=0.6, step=1.0, beta=0.01),
    "AdamLSTM/Copying1K": Adam(mu=0.6, step=2.0, beta=0.999),
    "AdamLSTM/Copying2K": Adam(mu=0.6, step=2.0, beta=0.999),
    "AdamLSTM/Adding": Adam(mu=0.6, step=2.0, beta=0.999),
    "AdamDTRIV/PMNIST/512": Adam(mu=0.3, step=0.3, beta=0.8),
    "RMSPropLSTM/MNIST/128": RMSProp(step=0.6, beta=0.99),
    "RMSPropLSTM/MNIST/256": RMSProp(step=0.6, beta=0.9),
    "RMSPropLSTM/PMNIST": RMSProp(step=1.0, beta=0.01),
    "RMSPropLSTM/Copying1K": RMSProp(step=2.0, beta=0.999),
    "RMSPropLSTM/Copying2K": RMSProp(step=2.0, beta=0.999),
    "RMSPropLSTM/Adding": RMSProp(step=2.0, beta=0.999),
    "RMSPropDTRIV/PMNIST/512": RMSProp(step=0.3, beta=0.9),
    "SRLSTM/MNIST": ScheduledRestart(every=2, step=1.0),
    "SRLSTM/PMNIST/128": ScheduledRestart(every=6, step=0.01),
    "SRLSTM/PMNIST/256": ScheduledRestart(every=40, step=0.9),
    "SRLSTM/Copying1K": ScheduledRestart(every=100, step=0.9),
    "SRLSTM/Copying2K": ScheduledRestart(every=100, step=0.9),
    "SRLSTM/Adding": ScheduledRestart(every=100, step=0.9),
    "SRDTRIV/PMNIST/512": ScheduledRestart(every=2, step=0.3),
}
# What SRLSTM was in the released code.
_CELLS = {
    "SRLSTM-released/MNIST": ExtrapolatedLSTM(every=2, step_size=1.0),
    "SRLSTM-released/PMNIST/128": ExtrapolatedLSTM(every=6, step_size=0.01),
    "SRLSTM-released/PMNIST/256": ExtrapolatedLSTM(every=40, step_size=0.9),
}
# Table 6 for orthogonal U; K = infinity is 0 here. The other tables repeat it.
_DTRIV = {
    "MNIST/170": {"lr": 1e-3, "orthogonal_lr": 1e-4, "rebase_every": 1},
    "MNIST/360": {"lr": 5e-4, "orthogonal_lr": 1e-4, "rebase_every": 0},
    "MNIST/512": {"lr": 5e-4, "orthogonal_lr": 1e-4, "rebase_every": 100},
    "PMNIST/170": {"lr": 7e-4, "orthogonal_lr": 2e-4, "rebase_every": 1},
    "PMNIST/360": {"lr": 7e-4, "orthogonal_lr": 5e-5, "rebase_every": 0},
    "PMNIST/512": {"lr": 3e-4, "orthogonal_lr": 7e-5, "rebase_every": 0},
}
# What released runs had in place of the tables' values, by their names and curves.
_RELEASED: dict[str, dict[str, Any]] = {
    "AdamLSTM/MNIST/128": {"momentum": Adam(mu=0.6, step=0.6, beta=0.8)},
    "SRLSTM-released/MNIST/128": {"cell": ExtrapolatedLSTM(every=8, step_size=1.0)},
}
_PUBLISHED: dict[str, tuple[Published, ...]] = {
    "LSTM/MNIST/128": (Published(98.70, source="helfrich2018"), Published(97.30, source="vorontsov2017")),
    "LSTM/PMNIST/128": (Published(92.00, source="helfrich2018"), Published(92.62, source="vorontsov2017")),
    "LSTM/MNIST/256": (Published(98.90, source="helfrich2018"), Published(98.50, source="wisdom2016")),
    "LSTM/PMNIST/256": (Published(92.29, source="helfrich2018"), Published(92.10, source="wisdom2016")),
    "LSTM/Copying2K/190": (Published(0.01, rounding=0.005),),
    "LSTM/Adding/128": (Published(0.162, rounding=0.0005),),
    "MomentumLSTM/MNIST/128": (Published(99.04, 0.04),),
    "MomentumLSTM/PMNIST/128": (Published(93.40, 0.25),),
    "MomentumLSTM/MNIST/256": (Published(99.08, 0.05),),
    "MomentumLSTM/MNIST/256/same-step": (Published(83.49),),
    "MomentumLSTM/PMNIST/256": (Published(94.72, 0.16),),
    "MomentumLSTM/Copying2K/190": (Published(0.009, rounding=0.0005),),
    "MomentumLSTM/Adding/128": (Published(0.162, rounding=0.0005),),
    "AdamLSTM/MNIST/128": (Published(98.98, 0.08),),
    "AdamLSTM/PMNIST/128": (Published(93.75, 0.25),),
    "AdamLSTM/MNIST/256": (Published(99.09, 0.03),),
    "AdamLSTM/PMNIST/256": (Published(95.05, 0.37),),
    "RMSPropLSTM/MNIST/128": (Published(99.09, 0.05),),
    "RMSPropLSTM/PMNIST/128": (Published(94.32, 0.43),),
    "RMSPropLSTM/MNIST/256": (Published(99.15, 0.06),),
    "RMSPropLSTM/PMNIST/256": (Published(95.38, 0.19),),
    "SRLSTM/MNIST/128": (Published(98.89, 0.08),),
    "SRLSTM/PMNIST/128": (Published(93.65, 0.56),),
    "SRLSTM/MNIST/256": (Published(99.01, 0.07),),
    "SRLSTM/PMNIST/256": (Published(93.82, 1.85),),
    "DTRIV/PMNIST/170": (Published(95.21, 0.10), Published(95.20, source="casado2019trivializations")),
    "DTRIV/PMNIST/360": (Published(96.45, 0.10), Published(96.50, source="casado2019trivializations")),
    "DTRIV/PMNIST/512": (Published(96.62, 0.12), Published(96.80, source="casado2019trivializations")),
    "MomentumDTRIV/PMNIST/170": (Published(95.37, 0.09),),
    "MomentumDTRIV/PMNIST/360": (Published(96.73, 0.08),),
    "MomentumDTRIV/PMNIST/512": (Published(96.89, 0.08),),
    "AdamDTRIV/PMNIST/512": (Published(96.77, 0.21),),
    "RMSPropDTRIV/PMNIST/512": (Published(96.75, 0.12),),
    "SRDTRIV/PMNIST/512": (Published(97.02, 0.09),),
}
# The lowest test loss of all epochs, of the curves that the authors released, where these are of the recipe;
# there is none of PMNIST with n = 128.
_LOSSES = {
    "LSTM/MNIST/256": Published(0.0375, 0.0033),
    "LSTM/PMNIST/256": Published(0.2752, 0.0180, seeds=4),
    "MomentumLSTM/MNIST/256": Published(0.0438, 0.0017),
    "MomentumLSTM/PMNIST/256": Published(0.2360, 0.0138),
    "AdamLSTM/MNIST/256": Published(0.0404, 0.0016),
    "AdamLSTM/PMNIST/256": Published(0.2123, 0.0082),
    "RMSPropLSTM/MNIST/256": Published(0.0382, 0.0028),
    "RMSPropLSTM/PMNIST/256": Published(0.1994, 0.0078),
    "SRLSTM-released/MNIST/256": Published(0.0424, 0.0024),
    "SRLSTM-released/PMNIST/256": Published(0.2855, 0.0768),
    "LSTM/MNIST/128": Published(0.0425, 0.0027),
    "MomentumLSTM/MNIST/128": Published(0.0429, 0.0016),
    "AdamLSTM/MNIST/128/as-released": Published(0.0448, 0.0027),
    "RMSPropLSTM/MNIST/128": Published(0.0402, 0.0017),
    "SRLSTM-released/MNIST/128/as-released": Published(0.0522),
}
_QUOTED = "quoted from works with other training; the authors released only loss curves of their own runs"
_STEPS = "the paper's epochs are taken as steps"
_EXPRNN = f"the paper does not state symbols, alphabet and alpha, so they are those of expRNN; {_STEPS}"
# By task, by model and task, or by all; those that fit are joined.
_NOTES = {
    "Copying1K": _EXPRNN,
    "Copying2K": _EXPRNN,
    "Adding": _STEPS,
    "LSTM/MNIST": _QUOTED,
    "LSTM/PMNIST": _QUOTED,
    "LSTM/PMNIST/256": "the authors released four seeds",
    "SRLSTM/MNIST": "the paper's equations; the published number is of SRLSTM-released, another cell",
    "SRLSTM/PMNIST": "the paper's equations; the published number is of SRLSTM-released, another cell",
    "SRLSTM-released/MNIST": "the cell that the released code ran as SRLSTM, not the paper's equations",
    "SRLSTM-released/PMNIST": "the cell that the released code ran as SRLSTM, not the paper's equations",
    "AdamLSTM/MNIST/128": "the released runs had beta = 0.8",
    "SRLSTM-released/MNIST/128": "the released run, one seed, had F = 8",
    "MomentumLSTM/MNIST/256/same-step": "published in figure 7, at mu = 0; number from the released notebook",
}
# The steps of "same-rms": what `matched_step` gives for new weights and training data, the mean over seeds.
# At 200 images a seed their standard deviation is 4 % at most, and permutations matter no more.
# "as-released" has its own where the momentum is another.
_RMS = {
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
# Over the gates without a bias alone: over all, the rms of W x + b_ih is that of the forget bias, nearly.
# Where mu² > beta, so for AdamLSTM on both MNISTs, the drive's rms is that of its peaks over black pixels.
_INPUT_RMS = {
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


def _key(name: str) -> str:
    """A recipe's name without its table."""
    return name.partition("/")[2]


def _find(table: Mapping[str, T], key: str) -> T | None:
    """What the table has for the key, else for its beginning."""
    while key and key not in table:
        key = key.rpartition("/")[0]
    return table.get(key)


def _tidy(value: float) -> float:
    """To 10 digits: 1.5, not 1.4999999999999998, in the config and so in the run's id."""
    return float(f"{value:.10g}")


def _gain(config: Config) -> float:
    """The mean drive of a gate for which W x + b_ih is always 1, in the long run.

    HeavyBall and Adam: step / (1 - mu), Adam's second moment being 1. ScheduledRestart: k steps after a
    restart it is step (k + 4) / 4, so step (1 + (every - 1) / 8) in the mean over a period. ExtrapolatedLSTM:
    minus its step, since where nothing changes it extrapolates nothing.
    """
    cell, momentum = config.cell, config.momentum
    if isinstance(cell, ExtrapolatedLSTM):
        return -cell.step_size
    if isinstance(momentum, ScheduledRestart):
        return _tidy(float(momentum.step) * (1 + (momentum.every - 1) / 8))
    if isinstance(momentum, HeavyBall | Adam):
        return _tidy(float(momentum.step) / (1 - float(momentum.mu)))
    return 1.0 if momentum is None else float(momentum.step)


def _plain(config: Config, step: float) -> Config:
    # A step of 1 is no step: the run is then that of the baseline.
    return replace(config, momentum=None if step == 1 else HeavyBall(mu=0.0, step=step))


def _forgetful(config: Config, times: float) -> Config:
    """With so many times its forget bias. That is set on both sides, and only the input's is filtered."""
    assert isinstance(config.init, Paper)
    each = _tidy(times * config.init.forget_bias)
    return replace(config, init=replace(config.init, forget_bias=each))


def _as_released(base: Recipe) -> Config | None:
    _, model, task, *_ = base.name.split("/")
    if model == "SRLSTM" or task not in ("MNIST", "PMNIST"):
        return None
    order = {"permutation": "seed"} if task == "PMNIST" else {}
    released: Any = replace(base.config.task, validation=0, **order)  # type: ignore[type-var]
    return replace(base.config, task=released, **_RELEASED.get(_key(base.name), {}))


def _same_step(base: Recipe) -> Config | None:
    config = base.config
    if isinstance(config.cell, ExtrapolatedLSTM):
        return replace(config, cell=replace(config.cell, every=1))
    return _plain(config, float(config.momentum.step)) if config.momentum else None


def _same_gain(base: Recipe) -> Config | None:
    linear = base.config.momentum is not None and base.config.momentum.linear
    return _plain(base.config, _gain(base.config)) if linear else None


def _same_input_gain(base: Recipe) -> Config | None:
    config = _same_gain(base)
    if config is None or config.orthogonal:
        return None
    return _forgetful(config, 2 / (1 + _gain(base.config)))


def _same_forget_bias(base: Recipe) -> Config | None:
    config = base.config
    plain = config.momentum is None and isinstance(config.cell, LSTM)
    if plain or config.orthogonal:
        return None
    return _forgetful(replace(config, cell=LSTM(), momentum=None), (1 + _gain(config)) / 2)


def _same_rms(base: Recipe) -> Config | None:
    step = _find(_RMS, _key(base.name))
    return None if step is None else _plain(base.config, step)


def _same_input_rms(base: Recipe) -> Config | None:
    step = _find(_INPUT_RMS, _key(base.name))
    if step is None:
        return None
    return _forgetful(_plain(base.config, step), (1 + _gain(base.config)) / (1 + step))


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


CONTROLS = tuple(key for key in VARIANTS if key != "as-released")


def variants(name: str) -> list[str]:
    """The names of a recipe and of all its variants, each control after what it is a control of."""
    released = [f"{name}/as-released"] if "as-released" in recipe(name).variants else []
    return [
        each
        for base in (name, *released)
        for each in (base, *(f"{base}/{key}" for key in recipe(base).variants if key in CONTROLS))
    ]


def _varied(base: Recipe, key: str) -> Config | None:
    """The config of a variant, None if there is no such: a control comes last, "as-released" before it."""
    given = base.name.split("/")[4:]
    known = VARIANTS.keys() - {"as-released"} if given == ["as-released"] else VARIANTS.keys()
    return VARIANTS[key].config(base) if key in known and given in ([], ["as-released"]) else None


_LSTMS = "LSTM MomentumLSTM AdamLSTM RMSPropLSTM SRLSTM"
# What each table and figure holds: models, and tasks with hidden sizes.
_TABLES = {
    "table1": (
        ("LSTM MomentumLSTM", "MNIST/128 PMNIST/128 MNIST/256 PMNIST/256"),
        ("AdamLSTM RMSPropLSTM SRLSTM SRLSTM-released", "MNIST/256 PMNIST/256"),
    ),
    "figure4": ((_LSTMS, "Copying2K/190 Adding/128"),),
    "table4": (("DTRIV MomentumDTRIV", "PMNIST/170 PMNIST/360 PMNIST/512"),),
    # Its other rows are those of tables with results.
    "table6": (("DTRIV", "MNIST/170 MNIST/360 MNIST/512"),),
    "table11": ((f"{_LSTMS} SRLSTM-released", "MNIST/128 PMNIST/128"),),
    "figure10": ((_LSTMS, "Copying1K/190 Copying2K/190"),),
    "table13": (
        ("DTRIV MomentumDTRIV", "PMNIST/170 PMNIST/360 PMNIST/512"),
        ("AdamDTRIV RMSPropDTRIV SRDTRIV", "PMNIST/512"),
    ),
}


def _recipe(name: str) -> Recipe:
    table, model, task, size = name.split("/")
    key = _key(name)
    given: dict[str, Any] = {"hidden_size": int(size), "momentum": _find(_MOMENTA, key)}
    if model.endswith("DTRIV"):
        given |= {"orthogonal": True, "alpha": 0.99, **_DTRIV[f"{task}/{size}"]}
    if cell := _find(_CELLS, key):
        given["cell"] = cell
    metric = (
        "best test accuracy of all epochs, %" if table.startswith("table") else "training loss at the end"
    )
    published = _PUBLISHED.get(key.replace("-released", ""), ())
    note = "; ".join(_NOTES[k] for k in (task, f"{model}/{task}", key) if k in _NOTES)
    return Recipe(name, configure(_TASKS[task], **given), published, metric, note)


def _names() -> Iterator[str]:
    for table, blocks in _TABLES.items():
        for models, tasks in blocks:
            yield from (f"{table}/{model}/{task}" for model in models.split() for task in tasks.split())


RECIPES: dict[str, Recipe] = {name: _recipe(name) for name in _names()}
