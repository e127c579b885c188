"""The rows of docs/results.md: five seeds of a recipe, and what the authors released beside them.

`results_page.py` writes the page.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean
from typing import Any

import torch

from momentumrnn import ScheduledRestart
from momentumrnn.experiments.config import Config
from momentumrnn.experiments.paper.printed import GOAL
from momentumrnn.experiments.paper.recipes import Recipe, recipe
from momentumrnn.experiments.runs.gather import Runs, outcome
from momentumrnn.experiments.runs.read import RunRecord
from momentumrnn.init import Paper

SEEDS = (0, 1, 2, 3, 4)
FAILED_BELOW = 50.0
"""A seed failed if its best test accuracy is below this, or if a value that is not finite stopped it."""
CLIPPED_UP_TO = math.sqrt(torch.finfo(torch.float32).max)
"""The largest gradient norm whose square float32 holds. Beyond it `clip_grad_norm_` makes the gradient 0."""
RELEASED = {
    "LSTM": {0: 0.260227919, 1: 0.259004951, 2: 0.289235085, 4: 0.292288572},
    "MomentumLSTM": {0: 0.214894891, 1: 0.241787538, 2: 0.229982361, 3: 0.243286446, 4: 0.250039130},
    "SRLSTM-released": {0: 0.220632046, 1: 0.246607050, 2: 0.312401593, 3: 0.239886567, 4: 0.408213168},
}
"""The lowest test loss of each seed on permuted MNIST with n = 256, from the authors' released curves.

Source: the repository minhtannguyen/MomentumRNN at commit 56e57e5, folder result4plot_final, the files
run-{lstm,mlstm,nlstm}-pmnist-*-seed-*_test_loss_*.json. Seed 3 of LSTM is not there.
"""


@dataclass(frozen=True)
class Row:
    """The five seeds of a recipe. Every seed counts: one that stopped counts with the epochs that it has.

    best, valid: test accuracies in %, or test losses, of the best epoch and of the epoch that validation
    selects; lowest: the lowest test loss; trained: the training loss in the last epoch.
    """

    recipe: Recipe
    config: Config
    seeds: Mapping[int, RunRecord]
    best: Mapping[int, float]
    valid: Mapping[int, float]
    lowest: Mapping[int, float]
    trained: Mapping[int, float]

    @property
    def model(self) -> str:
        return self.recipe.name.split("/")[1]

    @property
    def task(self) -> str:
        return self.recipe.name.split("/")[2]

    @property
    def seconds(self) -> float:
        """Of the five seeds together."""
        return float(max(seed.epochs[-1]["seconds"] for seed in self.seeds.values()))

    @property
    def minutes(self) -> float:
        return self.seconds / 60

    @cached_property
    def failed(self) -> tuple[int, ...]:
        stopped = {number for number, seed in self.seeds.items() if seed.state == "frozen"}
        if self.config.task.metric == "accuracy":
            stopped |= {number for number, value in self.best.items() if value < FAILED_BELOW}
        return tuple(sorted(stopped))

    @property
    def failures(self) -> int:
        return len(self.failed)

    @property
    def learning(self) -> tuple[int, ...]:
        return tuple(number for number in SEEDS if number not in self.failed)

    @property
    def failed_seeds(self) -> list[RunRecord]:
        return [self.seeds[number] for number in self.failed]

    @property
    def learning_seeds(self) -> list[RunRecord]:
        return [self.seeds[number] for number in self.learning]

    def of_learning(self, values: Mapping[int, float]) -> dict[int, float]:
        return {number: values[number] for number in self.learning}

    def at(self, key: str, epochs: tuple[int, int], scale: float = 1.0) -> dict[int, float]:
        """The mean of a metric over some epochs, the last included, for each seed."""
        part = slice(epochs[0] - 1, epochs[1])
        return {
            number: scale * mean(line[key] for line in seed.epochs[part])
            for number, seed in self.seeds.items()
        }

    def goal_lines(self) -> list[Mapping[str, Any] | None]:
        """For each seed the first epoch with the accuracy to which the paper counts its times."""
        curves = (seed.epochs[: self.config.epochs] for seed in self.seeds.values())
        return [next((line for line in curve if line["test_accuracy"] >= GOAL), None) for curve in curves]

    @property
    def goal_epochs(self) -> list[int]:
        return [line["epoch"] for line in self.goal_lines() if line is not None]

    def at_the_end_below(self, bound: float) -> list[float]:
        """The test accuracies in the last epoch that are below this."""
        last = (100 * seed.epochs[-1]["test_accuracy"] for seed in self.seeds.values())
        return [value for value in last if value < bound]

    @property
    def forget_bias(self) -> float:
        """The initial one, of both sides together."""
        if not isinstance(self.config.init, Paper):
            raise ValueError(f"{self.recipe.name}: expected init.Paper, got {self.config.init}")
        return 2 * self.config.init.forget_bias

    @property
    def gains(self) -> list[float]:
        """By what a constant input is multiplied in each step between two restarts."""
        momentum = self.config.momentum
        if not isinstance(momentum, ScheduledRestart):
            raise ValueError(f"{self.recipe.name}: expected ScheduledRestart, got {momentum}")
        drive, drives = 0.0, []
        for k in range(momentum.every):
            drive = k / (k + 3) * drive + float(momentum.step)
            drives.append(drive)
        return drives


def read_row(runs: Runs, name: str, **changes: Any) -> Row:
    """The row of a recipe, or of the same recipe with some fields of its Config changed."""
    base = recipe(name)
    config = replace(base.config, **changes)
    seeds = dict(sorted(runs.of(config).items()))
    if tuple(seeds) != SEEDS:
        raise ValueError(f"{name}: expected the seeds {SEEDS} in results/runs, got {tuple(seeds)}")
    short = [
        number
        for number, seed in seeds.items()
        if seed.state != "frozen" and len(seed.epochs) < config.epochs
    ]
    if short:
        raise ValueError(f"{name}: expected {config.epochs} epochs, but the seeds {short} have fewer")
    outcomes = [
        outcome({number: seed}, min(config.epochs, len(seed.epochs))) for number, seed in seeds.items()
    ]
    values = [
        {number: value for of_seed in outcomes for number, value in getattr(of_seed, key).items()}
        for key in ("best", "valid", "lowest", "trained")
    ]
    return Row(base, config, seeds, *values)


def norms(seed: RunRecord, epochs: int = 4) -> list[str]:
    """The mean gradient norm in each of the first epochs."""
    steps, begun = seed.epochs[0]["step"], 0
    norms_of_epochs = [0.0] * epochs
    for line in seed.steps:
        if line["step"] <= epochs * steps:
            norms_of_epochs[(line["step"] - 1) // steps] += line["norm"] * (line["step"] - begun) / steps
        begun = line["step"]
    return [f"{norm:.2g}" if norm < 1e3 else re.sub(r"e\+0*", "e", f"{norm:.0e}") for norm in norms_of_epochs]


def largest_norm(seed: RunRecord) -> float:
    return float(max(line["norm"] for line in seed.steps))


def still_from(seed: RunRecord) -> int:
    """The first epoch after which the test loss stays what it is."""
    losses = [line["test_loss"] for line in seed.epochs]
    return next(i + 1 for i in range(len(losses)) if len(set(losses[i:])) == 1)
