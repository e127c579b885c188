"""What the report says, section by section, before it is a page or a file. Knows no file format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from ..experiments.demo import NETWORKS, entry
from ..experiments.paper.printed import GRID_MU, GRID_STEP, GRIDS
from ..experiments.paper.recipes import RECIPES, recipe, variants
from ..experiments.paper.rows import row_of
from ..experiments.paper.tables import EXHIBITS, RELEASED, Exhibit
from ..experiments.runs.gather import Runs
from ..experiments.runs.read import COUNTED, STATES
from . import cost_tables, curves, demo_tables, result_tables, speed, tables
from .bars import Bars, cost
from .findings import findings
from .plots import Plot
from .settings_tables import hyperparameters
from .table import Row, Table
from .wording import counted

Kind = Literal["run", "background", "absent"]
Named = TypeVar("Named", Table, Bars)
TERMS = (
    "Paper: the published mean ± standard deviation, over five seeds unless a note says otherwise. A name in "
    "brackets is that of another work, which the paper quotes.",
    "Ours: the mean ± sample standard deviation over the seeds that finished. Their number is in brackets. "
    "Seeds that failed are counted beside it, and are not in the mean.",
    "Best on test: the best test value of all epochs, as the paper selects. Selected by validation: the test "
    "value at the epoch with the best validation value.",
    "Ours - paper: the difference of the means, with a 95 % confidence interval after Welch. Where the paper "
    "has no standard deviation, its number counts as exact.",
    "Network - control: the mean over seeds of the network minus its control, selected by validation, with a "
    "95 % confidence interval. Without a validation set: best on test.",
    "Control: a network without momentum that shares something else with the network above it, such as the "
    "gain. Input x 2.5: its input is multiplied by 2.5. Forget bias 3.5: the sum of its two forget biases.",
    "Verdict: the difference from the paper in the paper's standard deviations; where it has none, by the "
    "interval. Only for as many epochs as in the paper, and not finer than its digits. Numbers of other "
    "networks and of other works get no verdict.",
    "On other terms: our training differs from that of the released code. As released: it does not.",
    "One 95 % interval in twenty misses the true value by chance.",
)
SPEED = "momentumrnn bench --json runs/bench-NAME.json"


@dataclass(frozen=True)
class Section:
    """A heading with everything under it.

    kind: "run" if it shows runs or measurements of ours, "background" if it needs none, "absent" if none is
    there yet. introduction: what was trained, in one sentence; lesson: what the section teaches, in one or
    two. link: the place and the name of a page with more.
    """

    name: str
    heading: str
    title: str
    status: str
    kind: Kind
    introduction: str = ""
    lesson: str = ""
    notes: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    bars: tuple[Bars, ...] = ()
    picture: str = ""
    command: str = ""
    link: tuple[str, str] | None = None


@dataclass(frozen=True)
class Content:
    """The whole report."""

    summary: tuple[str, ...]
    sections: tuple[Section, ...]

    def of(self, kind: Kind) -> list[Section]:
        """The sections of one kind."""
        return [section for section in self.sections if section.kind == kind]


def content(
    runs: Runs,
    costs: Sequence[Mapping[str, Any]] = (),
    bench: Sequence[Path] = (),
    speed_page: str = "",
) -> Content:
    """All sections: those with runs first, then those that need none, then those that have none.

    costs: the content of the files for tables 14 to 16; bench: files of the benchmark; speed_page: the place
    of docs/speed.md as seen from the page, if it is known.
    """
    of_paper = [_section(exhibit, runs, costs) for exhibit in EXHIBITS.values()]
    sections = [*_demo(runs), *of_paper, _speed(bench, speed_page), *_others(runs), _folders(runs)]
    kinds = ("run", "background", "absent")
    return Content(_summary(runs), tuple(sorted(sections, key=lambda section: kinds.index(section.kind))))


def _summary(runs: Runs) -> tuple[str, ...]:
    counts = {state: sum(record.state == state for record in runs.folders) for state in STATES}
    that_count = [f"{counts[state]} {state}" for state in COUNTED if counts[state]]
    others = [
        f"{counts[state]} {state} ({words})"
        for state, words in STATES.items()
        if state not in COUNTED and counts[state]
    ]
    devices = sorted({record.origin("device") for record in runs.folders} - {""})
    total = sum(counts[state] for state in COUNTED)
    lines = [f"{total} runs of one seed each: {', '.join(that_count) or 'none'}."]
    if devices:
        lines.append(f"Trained on {', '.join(devices)}.")
    if others:
        lines.append(f"Folders that do not count: {', '.join(others)}. The section All runs lists them.")
    return tuple(lines)


def _section(exhibit: Exhibit, runs: Runs, costs: Sequence[Mapping[str, Any]]) -> Section:
    common: dict[str, Any] = {"name": exhibit.name, "heading": exhibit.label, "title": exhibit.title}
    if exhibit.kind in ("results", "curves"):
        return _results(exhibit, runs, common)
    if exhibit.kind == "settings":
        status, values = "made from the recipes", (hyperparameters(exhibit.name),)
        return Section(**common, status=status, kind="background", tables=values)
    if exhibit.kind == "cost":
        return _cost(exhibit, runs, costs, common)
    if exhibit.kind == "drawing":
        return Section(**common, status="a drawing", kind="background", picture=exhibit.name)
    absent: dict[str, Any] = {**common, "status": f"not run: {exhibit.later}", "kind": "absent"}
    if exhibit.name == "figure7":
        words = "The published numbers, from the released notebook. Rows are mu, columns are step."
        grids = tuple(_grid(i, title) for i, title in enumerate(GRIDS, 1))
        return Section(**absent, notes=(words,), tables=grids, picture="figure7")
    return Section(**absent, notes=_notes(exhibit))


def _results(exhibit: Exhibit, runs: Runs, common: Mapping[str, Any]) -> Section:
    """A table of results, or a figure of curves."""
    status, any_run = _status(exhibit, runs)
    both_tables = result_tables.results(exhibit, runs), result_tables.losses(exhibit, runs)
    lesson, *notes = [*findings(exhibit, runs), ""]
    return Section(
        **common,
        status=status,
        kind="run" if any_run else "absent",
        lesson=lesson,
        notes=(*filter(None, notes), *_notes(exhibit)),
        tables=tuple(table for table in both_tables if table.rows),
        plots=tuple(curves.plots(exhibit, runs)),
        command=_command(exhibit) if exhibit.recipes else "",
    )


def _cost(
    exhibit: Exhibit, runs: Runs, costs: Sequence[Mapping[str, Any]], common: Mapping[str, Any]
) -> Section:
    """Table 14, 15 or 16."""
    bars = [cost(exhibit, measured) for measured in costs] if exhibit.name != "table16" else []
    nothing = {"device": "no device", "rows": {}}
    tables_of_devices = [cost_tables.costs(exhibit, measured, runs) for measured in costs or [nothing]]
    devices = ", ".join(str(measured["device"]) for measured in costs)
    status, any_run = f"measured on {devices}" if costs else "not run", bool(costs)
    if exhibit.recipes:
        # Times alone don't say how many epochs are needed.
        status, any_run = _status(exhibit, runs)
    return Section(
        **common,
        status=status,
        kind="run" if any_run else "absent",
        notes=_notes(exhibit),
        tables=_numbered(tables_of_devices),
        bars=_numbered(bars),
        command=_command(exhibit),
    )


def _command(exhibit: Exhibit) -> str:
    return f"momentumrnn reproduce {exhibit.name} --seeds 0-4"


def _notes(exhibit: Exhibit) -> tuple[str, ...]:
    """What a reader must know to compare the rows."""
    note_of_exhibit = (exhibit.note,) if exhibit.note else ()
    # These notes say it for all rows.
    if exhibit.note == RELEASED or exhibit.kind == "cost":
        return note_of_exhibit
    rows: dict[str, list[str]] = {}
    recipes = [line.recipe for line in result_tables.lines(exhibit) if line.recipe]
    for name in recipes:
        if recipe(name).note:
            rows.setdefault(recipe(name).note, []).append(row_of(name))
    notes_of_rows = []
    for note, names in rows.items():
        tasks = {name.split("/")[1] for name in names}
        whole_tasks = sum(name.split("/")[2] in tasks for name in recipes) == len(names)
        notes_of_rows.append(f"{', '.join(sorted(tasks) if whole_tasks else names)}: {note}.")
    return (*note_of_exhibit, *notes_of_rows)


def _status(exhibit: Exhibit, runs: Runs) -> tuple[str, bool]:
    """How much of it was run, and whether any was."""
    names = exhibit.recipes
    if not names:
        return f"not run: {exhibit.later or exhibit.panels[0].later}", False
    outcomes = [runs.outcome(recipe(name).config) for name in names]
    whole = sum(bool(outcome.trained) for outcome in outcomes)
    short = sum(bool(outcome.short) and not outcome.trained for outcome in outcomes)
    failed = sum(bool(outcome.frozen) for outcome in outcomes)
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


def _demo(runs: Runs) -> list[Section]:
    count = sum(bool(seeds) for _, seeds in demo_tables.demo_runs(runs))
    if not count:
        return []
    return [
        Section(
            "demo",
            "Demo",
            "LSTMs with momentum beside their controls",
            f"{count} of {len(NETWORKS)} networks trained",
            "run",
            demo_tables.trained(runs),
            demo_tables.lesson(runs),
            tuple(demo_tables.notes()),
            (demo_tables.demo(runs),),
            (curves.demo(runs),),
            command="momentumrnn reproduce demo",
        )
    ]


def _speed(bench: Sequence[Path], page: str) -> Section:
    timings = speed.timings(bench)
    common: dict[str, Any] = {"name": "speed", "heading": "Speed", "command": SPEED}
    common |= {"title": "A training step of one layer beside torch.nn's"}
    common["link"] = (page, "Measurements that come with the library: docs/speed.md in the repository")
    if not timings:
        return Section(**common, status="not measured on this machine", kind="absent")
    note = (
        "torch.nn: the plain layer, by cuDNN on a GPU and by oneDNN on a CPU. The benchmark checks each "
        "layer against the definition before it takes its time."
    )
    return Section(
        **common,
        status=f"{counted(len(timings), 'layer')} measured",
        kind="run",
        notes=(note,),
        tables=tuple(speed.tables(timings)),
        bars=tuple(speed.bars(timings)),
    )


def _others(runs: Runs) -> list[Section]:
    ids_with_a_table = {entry(network).id for network in NETWORKS}
    for name in RECIPES:
        ids_with_a_table |= {recipe(variant).config.id for variant in variants(name)}
    table = tables.others(runs, ids_with_a_table)
    if not table.rows:
        return []
    status = f"{len(table.rows)} networks"
    title = "Runs that are in no table of the paper"
    return [Section("others", "Other runs", title, status, "run", tables=(table,))]


def _folders(runs: Runs) -> Section:
    words = " ".join(f"{state}: {text}." for state, text in STATES.items())
    status = f"{len(runs.folders)} folders"
    kind: Kind = "run" if runs.folders else "absent"
    table = tables.folders(runs)
    return Section("runs", "All runs", "Each with its command", status, kind, notes=(words,), tables=(table,))


def _numbered(of_devices: Sequence[Named]) -> tuple[Named, ...]:
    """Tables or bars, one for each device, with names that differ."""
    return tuple(
        replace(shown, name=f"{shown.name}-{i}") if i > 1 else shown for i, shown in enumerate(of_devices, 1)
    )
