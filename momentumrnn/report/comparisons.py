"""Ours beside the paper's numbers, and networks beside their controls: differences, and verdicts in words."""

import math
from collections.abc import Mapping
from statistics import mean
from typing import Any

from ..experiments.paper.recipes import Recipe
from ..experiments.paper.tables import Line
from ..experiments.runs.gather import Outcome
from .statistics import Interval, against_paper, against_seeds, compared, verdict
from .wording import NOT_RUN

SHORT = "a curve, no verdict"


def compared_values(row: Recipe, outcome: Outcome) -> tuple[Mapping[int, float], int]:
    """The values by seed that are compared with the paper, and the digits that they are shown with."""
    accuracy = row.config.task.metric == "accuracy"
    return (outcome.best, 2) if accuracy else (outcome.trained, 5)


def with_paper(line: Line, row: Recipe, outcome: Outcome) -> tuple[Interval | None, str]:
    """Ours minus the paper's number, and the verdict."""
    values, _ = compared_values(row, outcome)
    if not values:
        return None, _without_value(outcome)
    if not line.published:
        return None, "no published number"
    paper = line.published[0]
    if paper.quoted:
        return None, "quoted: no verdict"
    interval = against_paper(list(values.values()), paper)
    accuracy = row.config.task.metric == "accuracy"
    if line.model == "SRLSTM" and accuracy:
        return interval, "of another cell: no verdict"
    terms = " (on other terms)" if accuracy and row.name == line.recipe else ""
    return interval, verdict(list(values.values()), paper) + _of_finished_seeds(outcome) + terms


def with_network(line: Line, row: Recipe, outcome: Outcome, network: Outcome) -> tuple[Interval | None, str]:
    """The network minus its control, and which is better. row, outcome: of the control."""
    values, _ = compared_values(row, outcome)
    if not values:
        return None, _without_value(outcome)
    network_values, control_values = _comparable_values(network, outcome)
    if not network_values:
        return None, f"{line.model} is not at its end"
    interval = against_seeds(network_values, control_values)
    task: Any = row.config.task
    lower = min(mean(network_values.values()), mean(control_values.values()))
    if lower > 0.95 * getattr(task, "baseline", math.inf):
        return interval, f"neither learns{_of_finished_seeds(outcome)}"
    words = compared(interval, 1 if task.metric == "accuracy" else -1, line.model)
    return interval, words + _of_finished_seeds(outcome)


def paired(first: Outcome, second: Outcome) -> Interval:
    """By how much the first is above the second, seed by seed."""
    return against_seeds(*_comparable_values(first, second))


def _comparable_values(first: Outcome, second: Outcome) -> tuple[Mapping[int, float], Mapping[int, float]]:
    """The values by which two runs are compared: test, selected by validation; without it, best on test."""
    pairs = ((first.valid, second.valid), (first.best, second.best))
    return next((pair for pair in pairs if all(pair)), ({}, {}))


def _without_value(outcome: Outcome) -> str:
    """The verdict where no seed has come to the end."""
    if outcome.frozen:
        return "failed"
    return SHORT if any(outcome.short.values()) else "begun" if outcome else NOT_RUN


def _of_finished_seeds(outcome: Outcome) -> str:
    """A reminder that not all seeds are in the numbers."""
    return f"; of the {len(outcome.seeds)} seeds that finished" if outcome.short or outcome.frozen else ""
