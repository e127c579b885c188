"""What the report says, section by section, before it is a page or a file. Knows no file format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ..demo import NETWORKS, entry
from ..exhibits import EXHIBITS, GRID_MU, GRID_STEP, GRIDS, RELEASED, Exhibit
from ..paper import RECIPES, recipe, variants
from . import curves, tables
from .bars import Bars, cost, speed
from .curves import Plot
from .findings import findings
from .gather import COUNTED, STATES, Runs
from .tables import Row, Table

Named = TypeVar("Named", Table, Bars)
TERMS = (
    "Paper: what is printed, mean ± standard deviation, of five seeds unless a note says otherwise; a name "
    "in brackets: quoted from that work. Ours: mean ± sample standard deviation over (so many) seeds. "
    "Difference: ours less the paper's, with a 95 % interval after Welch; where the paper has no deviation, "
    "as if its number were exact. For a control: the network with momentum less the control, seed by seed, "
    "on the test set at the epoch that validation selects; without a validation, at the best there. "
    "Verdict: in deviations of the paper, where it prints none by the interval; only for as many epochs as "
    "the paper has, no finer than its digits, and none for numbers of other networks or other works. On "
    "other terms: ours was not trained as the released code does it. One interval in twenty misses by chance."
)


@dataclass(frozen=True)
class Section:
    """A heading with what stands under it; shown: whether there is anything of ours to see."""

    name: str
    heading: str
    title: str
    status: str
    shown: bool
    notes: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    bars: tuple[Bars, ...] = ()
    picture: str = ""
    command: str = ""


@dataclass(frozen=True)
class Content:
    """The whole report."""

    summary: tuple[str, ...]
    sections: tuple[Section, ...]


def content(runs: Runs, costs: Sequence[Mapping[str, Any]] = (), bench: Sequence[Path] = ()) -> Content:
    """All sections; costs: the files of measurements for tables 14 to 16; bench: files of the benchmark."""
    found = [_section(exhibit, runs, costs) for exhibit in EXHIBITS.values()]
    return Content(_summary(runs), (*_demo(runs), *found, *_speed(bench), *_others(runs), _folders(runs)))


def _summary(runs: Runs) -> tuple[str, ...]:
    counts = {state: sum(seed.state == state for seed in runs.folders) for state in STATES}
    counted = [f"{counts[state]} {state}" for state in COUNTED if counts[state]]
    odd = [
        f"{counts[state]} {state} ({words})"
        for state, words in STATES.items()
        if state not in COUNTED and counts[state]
    ]
    devices = sorted({seed.made("device") for seed in runs.folders} - {""})
    lines = [
        f"{sum(counts[state] for state in COUNTED)} runs of one seed each: {', '.join(counted) or 'none'}."
    ]
    if devices:
        lines.append(f"Trained on {', '.join(devices)}.")
    if odd:
        lines.append(f"Folders that don't count: {', '.join(odd)}; all are listed at the end.")
    return tuple(lines)


def _section(exhibit: Exhibit, runs: Runs, costs: Sequence[Mapping[str, Any]]) -> Section:
    command = f"momentumrnn reproduce {exhibit.name} --seeds 0-4"
    notes = (*findings(exhibit, runs), *filter(None, (exhibit.note,)), *_notes(exhibit))
    common: dict[str, Any] = {"name": exhibit.name, "heading": exhibit.label, "title": exhibit.title}
    if exhibit.kind in ("results", "curves"):
        plots = tuple(curves.plots(exhibit, runs))
        found = tables.results(exhibit, runs), tables.losses(exhibit, runs)
        status, some = _status(exhibit, runs)
        return Section(
            **common,
            status=status,
            shown=some,
            notes=notes,
            tables=tuple(table for table in found if table.rows),
            plots=plots,
            command="" if not exhibit.recipes else command,
        )
    if exhibit.kind == "settings":
        return Section(
            **common, status="generated from the recipes", shown=True, tables=(tables.hyper(exhibit.name),)
        )
    if exhibit.kind == "cost":
        own_tables = [tables.costs(exhibit, each, runs) for each in costs]
        bars = [cost(exhibit, each) for each in costs] if exhibit.name != "table16" else []
        if not costs:
            own_tables = [tables.costs(exhibit, {"device": "no device", "rows": {}}, runs)]
        words = f"measured on {', '.join(str(each['device']) for each in costs)}" if costs else "not run"
        some = bool(costs)
        if exhibit.recipes:
            # Times alone say nothing of how many epochs are needed.
            words, some = _status(exhibit, runs)
        return Section(
            **common,
            status=words,
            shown=some,
            notes=notes,
            tables=_numbered(own_tables),
            bars=_numbered(bars),
            command=command,
        )
    if exhibit.kind == "drawing":
        return Section(**common, status="drawn", shown=True, picture=exhibit.name)
    if exhibit.name == "figure7":
        grids = tuple(_grid(i, title) for i, title in enumerate(GRIDS, 1))
        words = "The paper's numbers, from its released notebook; rows are mu, columns step."
        return Section(
            **common,
            status=f"not run: {exhibit.later}",
            shown=False,
            notes=(words,),
            tables=grids,
            picture="figure7",
        )
    return Section(**common, status=f"not run: {exhibit.later}", shown=False, notes=notes)


def _notes(exhibit: Exhibit) -> list[str]:
    """What a comparison must know, row by row, where the note of the exhibit does not say it for all."""
    if exhibit.note == RELEASED or exhibit.kind == "cost":
        return []
    rows: dict[str, list[str]] = {}
    every = [line.recipe for line in tables.lines(exhibit) if line.recipe]
    for name in every:
        if recipe(name).note:
            rows.setdefault(recipe(name).note, []).append(name.partition("/")[2])
    found = []
    for note, names in rows.items():
        tasks = {name.split("/")[1] for name in names}
        whole = sum(name.split("/")[2] in tasks for name in every) == len(names)
        found.append(f"{', '.join(sorted(tasks) if whole else names)}: {note}.")
    return found


def _status(exhibit: Exhibit, runs: Runs) -> tuple[str, bool]:
    """How much of it was run, and whether any was."""
    names = exhibit.recipes
    if not names:
        return f"not run: {exhibit.later or exhibit.panels[0].later}", False
    found = [runs.outcome(recipe(name).config) for name in names]
    whole = sum(bool(each.trained) for each in found)
    short = sum(bool(each.short) and not each.trained for each in found)
    failed = sum(bool(each.frozen) for each in found)
    parts = [f"{whole} of {len(names)} networks trained to the end"] if whole else []
    parts += [f"{short} for fewer epochs than the paper's"] if short else []
    parts += [f"{failed} with seeds that failed"] if failed else []
    return ", ".join(parts) or "not run", bool(parts)


def _grid(number: int, title: str) -> Table:
    rows = []
    for mu, values in zip(GRID_MU, GRIDS[title], strict=True):
        data = {"mu": mu, **{f"step_{step:g}": value for step, value in zip(GRID_STEP, values, strict=True)}}
        rows.append(Row((f"mu = {mu:g}", *(f"{value:g}" for value in values)), data))
    columns = (title, *(f"step {step:g}" for step in GRID_STEP))
    return Table(f"figure7-{number}", columns, tuple(rows), "Ours: not run.")


def _demo(runs: Runs) -> tuple[Section, ...]:
    if not any(seeds for _, seeds in tables.demo_runs(runs)):
        return ()
    status = (
        f"{sum(bool(runs.of(entry(network))) for network in NETWORKS)} of {len(NETWORKS)} networks trained"
    )
    return (
        Section(
            "demo",
            "Demo",
            "The paper's LSTMs and a control on a small task",
            status,
            True,
            tuple(tables.lessons(runs)),
            (tables.demo(runs),),
            (curves.demo(runs),),
            command="momentumrnn reproduce demo",
        ),
    )


def _speed(bench: Sequence[Path]) -> tuple[Section, ...]:
    found = tuple(speed(bench))
    title = "A training step of one layer against torch.nn's"
    words = "momentumrnn bench --json results/bench/NAME.json"
    if not found:
        return (Section("speed", "Speed", title, "not run", False, command=words),)
    note = "torch.nn: the plain layer, cuDNN's on a GPU and oneDNN's on a CPU. Layers are checked before."
    status = f"{sum(len(bars.labels) for bars in found)} cases"
    return (Section("speed", "Speed", title, status, True, (note,), bars=found, command=words),)


def _others(runs: Runs) -> tuple[Section, ...]:
    known = {entry(network).id for network in NETWORKS}
    for name in RECIPES:
        known |= {recipe(each).config.id for each in variants(name)}
    table = tables.others(runs, known)
    if not table.rows:
        return ()
    status = f"{len(table.rows)} networks"
    return (Section("others", "Other runs", "No rows of the paper", status, True, tables=(table,)),)


def _folders(runs: Runs) -> Section:
    table = tables.folders(runs)
    words = [f"{state}: {text}." for state, text in STATES.items()]
    return Section(
        "runs",
        "All runs",
        "Each with its command",
        f"{len(runs.folders)} folders",
        True,
        (" ".join(words),),
        (table,),
    )


def _numbered(found: Sequence[Named]) -> tuple[Named, ...]:
    """Of several devices, each under a name of its own."""
    return tuple(replace(each, name=f"{each.name}-{i}") if i > 1 else each for i, each in enumerate(found, 1))
