"""The lines of each figure from the curves of runs. Knows no plotting library."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from ..experiments.demo import TASK
from ..experiments.paper.controls import CONTROLS
from ..experiments.paper.recipes import recipe, variants
from ..experiments.paper.tables import Exhibit
from ..experiments.runs.gather import Runs
from ..experiments.runs.read import RunRecord
from .controls import control_name
from .demo_tables import demo_runs
from .plots import INK, Plot, Series
from .result_tables import lines
from .wording import counted

MOST = 400
"""Points of a line. Where there are more, some are left out."""
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

Values = Callable[[RunRecord], Mapping[int, float]]
"""What is drawn of a seed, by step."""


def plots(exhibit: Exhibit, runs: Runs) -> list[Plot]:
    """The plots of a figure, or those of the runs of a table of results."""
    if exhibit.kind == "results":
        return _plots_of_table(exhibit, runs)
    panels = []
    for i, panel in enumerate(exhibit.panels, 1):
        quantity = "training loss" if panel.part == "train" else "test loss"
        series = _series(_with_variants(panel.recipes), runs, loss(panel.part))
        absent = tuple(name.split("/")[1] for name in panel.recipes if not runs.of(recipe(name).config))
        task: Any = recipe(panel.recipes[0]).config.task if panel.recipes else None
        level = getattr(task, "baseline", None)
        name = f"{exhibit.name}-{i}"
        # The paper's figures have no controls.
        panels.append(
            Plot(name, panel.title, quantity, series, absent, panel.later, level=level, controls=False)
        )
    return panels


def demo(runs: Runs) -> Plot:
    """The validation losses of the demo. A network and its control have one colour."""
    series = []
    for network, seeds in demo_runs(runs):
        colour = COLOURS[_family(network.control_of or network.name)]
        dash = "dash" if network.control_of else "solid"
        line = drawn(network.name, seeds, loss("validation"), colour, dash, 0)
        if line is not None:
            series.append(replace(line, control=bool(network.control_of)))
    title = f"Adding two marked numbers among {TASK.length}"
    return Plot("demo", title, "validation loss", tuple(series), level=TASK.baseline)


def _plots_of_table(exhibit: Exhibit, runs: Runs) -> list[Plot]:
    """The test accuracy of every run of a table, a plot for each task, number of units and terms."""
    places: dict[str, list[str]] = {}
    for line in lines(exhibit):
        if line.recipe:
            places.setdefault(f"{line.column}, n = {line.size}", []).append(line.recipe)
    plots_of_places = []
    for i, (place, base_names) in enumerate(places.items(), 1):
        names = _with_variants(base_names)
        released = [name for name in names if "as-released" in name.split("/")]
        default = [name for name in names if name not in released]
        for terms, names_of_terms in (("", default), ("as released", released)):
            series = _series(names_of_terms, runs, _accuracy, omit="as-released")
            if series:
                name, title = f"{exhibit.name}-{i}{terms[:2]}", f"{place}, {terms}".removesuffix(", ")
                plots_of_places.append(Plot(name, title, "test accuracy, %", series, log=False))
    return plots_of_places


def _with_variants(names: Sequence[str]) -> list[str]:
    return [*names, *(variant for name in names for variant in variants(name))]


def _series(names: Sequence[str], runs: Runs, values: Values, omit: str = "") -> tuple[Series, ...]:
    """The lines of recipes, each run once. omit: a variant of all of them, which no name repeats."""
    lines_of_runs: dict[str, Series] = {}
    for name in names:
        row, model = recipe(name), name.split("/")[1]
        keys = [key for key in name.split("/")[4:] if key != omit]
        control = next((key for key in keys if key in CONTROLS), "")
        colour, released = COLOURS[_family(model)], "as-released" in keys
        label, full_name, dash = model, model, RELEASED if released else "solid"
        if control:
            label, dash = control_name(row), DASHES[control]
            full_name = f"{label} (control of {model})"
            colour = _darker(colour) if released else colour
        terms = ", as released" * released
        line = drawn(f"{full_name}{terms}", runs.of(row.config), values, colour, dash, row.config.epochs)
        # A control is drawn beside its network only.
        if line is not None and (not control or runs.of(recipe(name.rpartition("/")[0]).config)):
            line = replace(line, control=bool(control), label=f"{label}{terms}")
            lines_of_runs.setdefault(row.config.id, line)
    return tuple(lines_of_runs.values())


def drawn(
    name: str,
    seeds: Mapping[int, RunRecord],
    values: Values,
    colour: str,
    dash: str,
    epochs: int,
) -> Series | None:
    """The line of a run. None if there is nothing to draw. epochs: where the line ends; 0 for the last."""
    curves = {seed: curve for seed, record in sorted(seeds.items()) if (curve := values(record))}
    sizes = [line["step"] // line["epoch"] for record in seeds.values() for line in record.epochs[:1]]
    if not curves or not sizes:
        return None
    steps_per_epoch = sizes[0]
    last = epochs * steps_per_epoch if epochs else math.inf
    steps = thinned(sorted({step for curve in curves.values() for step in curve if step <= last}))
    for seed, curve in curves.items():
        if _is_cut_short(seeds[seed], epochs):
            # A seed that ended early stays where it was. Without it the median would look better than it is.
            end, value = max(curve.items())
            curves[seed] = {**curve, **{step: value for step in steps if step > end}}
    at_steps = [[curve[step] for curve in curves.values() if step in curve] for step in steps]
    return Series(
        name,
        colour,
        dash,
        tuple(curves),
        tuple(steps),
        tuple(round(step / steps_per_epoch, 4) for step in steps),
        tuple(map(median, at_steps)),
        tuple(map(min, at_steps)),
        tuple(map(max, at_steps)),
        _cut({seed: seeds[seed] for seed in curves}, epochs),
        label=name,
    )


def _is_cut_short(record: RunRecord, epochs: int) -> bool:
    """Whether a run is over before so many epochs, or at all if that is 0: it failed or was stopped."""
    if record.state == "stopped":
        return not epochs or len(record.epochs) < epochs
    return record.state == "frozen"


def _cut(seeds: Mapping[int, RunRecord], epochs: int) -> str:
    """The seeds that stop before so many epochs, in words."""
    words, short = [], []
    for seed, record in seeds.items():
        trained = len(record.epochs)
        if _is_cut_short(record, epochs):
            was = "was " if record.state == "stopped" else ""
            words.append(f"seed {seed} {was}stopped after {counted(trained, 'epoch')}")
        elif trained < epochs:
            short.append(trained)
    return ", ".join([*words, *([f"{min(short)} of {epochs} epochs"] if short else [])])


def thinned(steps: Sequence[int]) -> list[int]:
    """At most MOST of the steps, evenly spread, with the first and the last.

    >>> thinned(range(10)) == list(range(10)), len(thinned(range(5000))), thinned(range(5000))[-1]
    (True, 400, 4999)
    """
    if len(steps) <= MOST:
        return list(steps)
    return [steps[round(i * (len(steps) - 1) / (MOST - 1))] for i in range(MOST)]


def loss(part: str) -> Values:
    """What is drawn: the training loss by step for "train", else the loss on a part after each epoch."""

    def of_steps(record: RunRecord) -> Mapping[int, float]:
        return {line["step"]: line["loss"] for line in record.steps}

    def of_epochs(record: RunRecord) -> Mapping[int, float]:
        key = f"{part}_loss"
        return {line["step"]: line[key] for line in record.epochs if line.get(key) is not None}

    return of_steps if part == "train" else of_epochs


def _accuracy(record: RunRecord) -> Mapping[int, float]:
    key = "test_accuracy"
    return {line["step"]: 100 * line[key] for line in record.epochs if line.get(key) is not None}


def _family(model: str) -> str:
    if model.endswith("-released"):
        return "released"
    return model.removesuffix("LSTM").removesuffix("DTRIV") or "LSTM"


def _darker(colour: str) -> str:
    return "#" + "".join(f"{int(colour[i : i + 2], 16) * 5 // 8:02x}" for i in (1, 3, 5))
