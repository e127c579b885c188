"""What each figure plots: lines with a band over seeds, as numbers. Knows no plotting library."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from ..demo import TASK
from ..exhibits import Exhibit
from ..paper import CONTROLS, recipe, variants
from .demo_tables import demo_runs
from .gather import Runs, Seed
from .result_tables import control_name, lines

MOST = 400
"""Points of a line. Where there are more, some are left out."""
INK = "#000000"
"""The colour of text. A page in dark mode draws such a line in its own colour of text."""
# The colour says which network, or whose control. Four are from Okabe and Ito, and all six can be told apart
# by the colour-blind, on white and on black.
COLOURS = {
    "LSTM": INK,
    "Momentum": "#0072b2",
    "Adam": "#009e73",
    "RMSProp": "#d55e00",
    "SR": "#cc79a7",
    "released": "#8a3ffc",
}
RELEASED = "14px 4px"
# The dash says which control. No network has two controls with the same one.
DASHES = {
    "same-gain": "dash",
    "same-rms": "dash",
    "same-step": "dot",
    "same-input-gain": "dashdot",
    "same-input-rms": "dashdot",
    "same-forget-bias": "12px 3px 2px 3px 2px 3px",
}

Values = Callable[[Seed], Mapping[int, float]]
"""What is drawn of a seed, by step."""


@dataclass(frozen=True)
class Series:
    """A line: the median over seeds, with the lowest and the highest. One seed that fails moves it little."""

    name: str
    colour: str
    dash: str
    seeds: tuple[int, ...]
    steps: tuple[int, ...]
    epochs: tuple[float, ...]
    middle: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    cut: str = ""
    """The seeds that stop before the end, in words."""
    control: bool = False
    label: str = ""
    """A shorter name, for the end of the line."""

    @property
    def late(self) -> float:
        """The median of its second half."""
        return median(self.middle[len(self.middle) // 2 :])


@dataclass(frozen=True)
class Plot:
    """Lines over the same axes.

    absent: the names of the networks that were not run; later: why they can't be run yet.
    """

    name: str
    title: str
    quantity: str
    series: tuple[Series, ...]
    absent: tuple[str, ...] = ()
    later: str = ""
    log: bool = True
    level: float | None = None
    """The value of a network without memory."""
    controls: bool = True
    """Whether controls are shown when the page opens, and in still pictures."""

    @property
    def shown(self) -> tuple[Series, ...]:
        """The lines that are shown when the page opens."""
        return tuple(each for each in self.series if self.controls or not each.control)

    @property
    def window(self) -> tuple[float, float] | None:
        """The range of a linear axis. It leaves out the first steps, in which all lines rise alike."""
        high = max((value for each in self.series for value in each.high), default=0.0)
        # Every line that comes near the highest is in it for most of its second half. A line that falls for
        # a while leaves the picture, so that it does not flatten the others.
        near = [each for each in self.series if each.late > high / 2]
        values = sorted(value for each in near for value in each.middle)
        if self.log or len(values) < 50:
            return None
        low = min(values[len(values) // 10], *(each.late for each in near))
        return low - (high - low) / 10, high + (high - low) / 10

    @property
    def below(self) -> str:
        """The names of the lines below the window: they never come near the others."""
        low = self.window[0] if self.window else -math.inf
        return ", ".join(each.name for each in self.series if each.late < low)

    @property
    def alt(self) -> str:
        """The plot in words, for readers who can't see it."""
        if not self.series:
            return f"{self.title}, {self.quantity}: {self.later or 'not run'}."
        ends = [
            f"{each.name} {each.middle[-1]:.4g} after {each.steps[-1]} steps (seeds: {len(each.seeds)})"
            for each in self.series
        ]
        return f"{self.title}: {self.quantity} by training steps. Last values: {'; '.join(ends)}."


def plots(exhibit: Exhibit, runs: Runs) -> list[Plot]:
    """The plots of a figure, or those of the runs of a table of results."""
    if exhibit.kind == "results":
        return _of_table(exhibit, runs)
    found = []
    for i, panel in enumerate(exhibit.panels, 1):
        quantity = "training loss" if panel.part == "train" else "test loss"
        series = _series(_with_variants(panel.recipes), runs, _loss(panel.part))
        absent = tuple(name.split("/")[1] for name in panel.recipes if not runs.of(recipe(name).config))
        task: Any = recipe(panel.recipes[0]).config.task if panel.recipes else None
        level = getattr(task, "baseline", None)
        name = f"{exhibit.name}-{i}"
        # The paper's figures have no controls.
        found.append(
            Plot(name, panel.title, quantity, series, absent, panel.later, level=level, controls=False)
        )
    return found


def demo(runs: Runs) -> Plot:
    """The validation losses of the demo. A network and its control have one colour."""
    found = []
    for network, seeds in demo_runs(runs):
        colour = COLOURS[_family(network.control_of or network.name)]
        dash = "dash" if network.control_of else "solid"
        line = drawn(network.name, seeds, _loss("validation"), colour, dash, 0)
        if line is not None:
            found.append(replace(line, control=bool(network.control_of)))
    title = f"Adding two marked numbers among {TASK.length}"
    return Plot("demo", title, "validation loss", tuple(found), level=TASK.baseline)


def _of_table(exhibit: Exhibit, runs: Runs) -> list[Plot]:
    """The test accuracy of every run of a table, a plot for each task, number of units and terms."""
    places: dict[str, list[str]] = {}
    for line in lines(exhibit):
        if line.recipe:
            places.setdefault(f"{line.column}, n = {line.size}", []).append(line.recipe)
    found = []
    for i, (place, names) in enumerate(places.items(), 1):
        every = _with_variants(names)
        released = [name for name in every if "as-released" in name.split("/")]
        ours = [name for name in every if name not in released]
        for end, wanted in (("", ours), ("as released", released)):
            series = _series(wanted, runs, _accuracy, omit="as-released")
            if series:
                name, title = f"{exhibit.name}-{i}{end[:2]}", f"{place}, {end}".removesuffix(", ")
                found.append(Plot(name, title, "test accuracy, %", series, log=False))
    return found


def _with_variants(names: Sequence[str]) -> list[str]:
    return [*names, *(variant for each in names for variant in variants(each))]


def _series(names: Sequence[str], runs: Runs, values: Values, omit: str = "") -> tuple[Series, ...]:
    """The lines of recipes, each run once. omit: a variant of all of them, which no name repeats."""
    found: dict[str, Series] = {}
    for name in names:
        row, model = recipe(name), name.split("/")[1]
        keys = [key for key in name.split("/")[4:] if key != omit]
        control = next((key for key in keys if key in CONTROLS), "")
        colour, released = COLOURS[_family(model)], "as-released" in keys
        label, shown, dash = model, model, RELEASED if released else "solid"
        if control:
            label, dash = control_name(row), DASHES[control]
            shown = f"{label} (control of {model})"
            colour = _darker(colour) if released else colour
        ends = ", as released" * released
        line = drawn(f"{shown}{ends}", runs.of(row.config), values, colour, dash, row.config.epochs)
        # A control is drawn beside its network only.
        if line is not None and (not control or runs.of(recipe(name.rpartition("/")[0]).config)):
            line = replace(line, control=bool(control), label=f"{label}{ends}")
            found.setdefault(row.config.id, line)
    return tuple(found.values())


def drawn(
    name: str,
    seeds: Mapping[int, Seed],
    values: Values,
    colour: str,
    dash: str,
    epochs: int,
) -> Series | None:
    """The line of a run. None if there is nothing to draw. epochs: where the line ends; 0 for the last."""
    known = {number: found for number, seed in sorted(seeds.items()) if (found := values(seed))}
    sizes = [line["step"] // line["epoch"] for seed in seeds.values() for line in seed.epochs[:1]]
    if not known or not sizes:
        return None
    n = sizes[0]
    last = epochs * n if epochs else math.inf
    every = sorted({step for found in known.values() for step in found if step <= last})
    every = thinned(every)
    cut, short = [], []
    for number, found in known.items():
        trained = len(seeds[number].epochs)
        if seeds[number].state == "frozen":
            # A seed that failed stays where it was. Without it the median would look better than it is.
            end, value = max(found.items())
            known[number] = {**found, **{step: value for step in every if step > end}}
            cut.append(f"seed {number} stopped after {trained} epochs")
        elif trained < epochs:
            short.append(trained)
    at = [[found[step] for found in known.values() if step in found] for step in every]
    if short:
        cut.append(f"{min(short)} of {epochs} epochs")
    return Series(
        name,
        colour,
        dash,
        tuple(known),
        tuple(every),
        tuple(round(step / n, 4) for step in every),
        tuple(map(median, at)),
        tuple(map(min, at)),
        tuple(map(max, at)),
        ", ".join(cut),
        label=name,
    )


def thinned(steps: Sequence[int]) -> list[int]:
    """At most MOST of the steps, evenly spread, with the first and the last.

    >>> thinned(range(10)) == list(range(10)), len(thinned(range(5000))), thinned(range(5000))[-1]
    (True, 400, 4999)
    """
    if len(steps) <= MOST:
        return list(steps)
    return [steps[round(i * (len(steps) - 1) / (MOST - 1))] for i in range(MOST)]


def _loss(part: str) -> Values:
    def train(seed: Seed) -> Mapping[int, float]:
        return {line["step"]: line["loss"] for line in seed.steps}

    def other(seed: Seed) -> Mapping[int, float]:
        key = f"{part}_loss"
        return {line["step"]: line[key] for line in seed.epochs if line.get(key) is not None}

    return train if part == "train" else other


def _accuracy(seed: Seed) -> Mapping[int, float]:
    key = "test_accuracy"
    return {line["step"]: 100 * line[key] for line in seed.epochs if line.get(key) is not None}


def _family(model: str) -> str:
    if model.endswith("-released"):
        return "released"
    return model.removesuffix("LSTM").removesuffix("DTRIV") or "LSTM"


def _darker(colour: str) -> str:
    return "#" + "".join(f"{int(colour[i : i + 2], 16) * 5 // 8:02x}" for i in (1, 3, 5))
