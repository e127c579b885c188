"""What the report says, section by section, before it is a page or a file. Knows no file format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from ..demo import NETWORKS, entry
from ..exhibits import EXHIBITS, GRID_MU, GRID_STEP, GRIDS, RELEASED, Exhibit
from ..paper import RECIPES, recipe, variants
from . import cost_tables, curves, demo_tables, result_tables, speed, tables
from .bars import Bars, cost
from .curves import Plot
from .findings import findings
from .gather import COUNTED, STATES, Runs
from .tables import Row, Table

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
    there yet. lead: what was trained, in one sentence; lesson: what the section teaches, in one or two.
    link: the place and the name of a page with more.
    """

    name: str
    heading: str
    title: str
    status: str
    kind: Kind
    lead: str = ""
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
    found = [_section(exhibit, runs, costs) for exhibit in EXHIBITS.values()]
    every = [*_demo(runs), *found, _speed(bench, speed_page), *_others(runs), _folders(runs)]
    kinds = ("run", "background", "absent")
    return Content(_summary(runs), tuple(sorted(every, key=lambda section: kinds.index(section.kind))))


def _summary(runs: Runs) -> tuple[str, ...]:
    counts = {state: sum(seed.state == state for seed in runs.folders) for state in STATES}
    counted = [f"{counts[state]} {state}" for state in COUNTED if counts[state]]
    rest = [
        f"{counts[state]} {state} ({words})"
        for state, words in STATES.items()
        if state not in COUNTED and counts[state]
    ]
    devices = sorted({seed.made("device") for seed in runs.folders} - {""})
    total = sum(counts[state] for state in COUNTED)
    lines = [f"{total} runs of one seed each: {', '.join(counted) or 'none'}."]
    if devices:
        lines.append(f"Trained on {', '.join(devices)}.")
    if rest:
        lines.append(f"Folders that do not count: {', '.join(rest)}. The section All runs lists them.")
    return tuple(lines)


def _section(exhibit: Exhibit, runs: Runs, costs: Sequence[Mapping[str, Any]]) -> Section:
    common: dict[str, Any] = {"name": exhibit.name, "heading": exhibit.label, "title": exhibit.title}
    if exhibit.kind in ("results", "curves"):
        return _results(exhibit, runs, common)
    if exhibit.kind == "settings":
        status, found = "made from the recipes", (tables.hyper(exhibit.name),)
        return Section(**common, status=status, kind="background", tables=found)
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
    status, some = _status(exhibit, runs)
    found = result_tables.results(exhibit, runs), result_tables.losses(exhibit, runs)
    lesson, *rest = [*findings(exhibit, runs), ""]
    return Section(
        **common,
        status=status,
        kind="run" if some else "absent",
        lesson=lesson,
        notes=(*filter(None, rest), *_notes(exhibit)),
        tables=tuple(table for table in found if table.rows),
        plots=tuple(curves.plots(exhibit, runs)),
        command=_command(exhibit) if exhibit.recipes else "",
    )


def _cost(
    exhibit: Exhibit, runs: Runs, costs: Sequence[Mapping[str, Any]], common: Mapping[str, Any]
) -> Section:
    """Table 14, 15 or 16."""
    bars = [cost(exhibit, each) for each in costs] if exhibit.name != "table16" else []
    nothing = {"device": "no device", "rows": {}}
    own_tables = [cost_tables.costs(exhibit, each, runs) for each in costs or [nothing]]
    devices = ", ".join(str(each["device"]) for each in costs)
    status, some = f"measured on {devices}" if costs else "not run", bool(costs)
    if exhibit.recipes:
        # Times alone don't say how many epochs are needed.
        status, some = _status(exhibit, runs)
    return Section(
        **common,
        status=status,
        kind="run" if some else "absent",
        notes=_notes(exhibit),
        tables=_numbered(own_tables),
        bars=_numbered(bars),
        command=_command(exhibit),
    )


def _command(exhibit: Exhibit) -> str:
    return f"momentumrnn reproduce {exhibit.name} --seeds 0-4"


def _notes(exhibit: Exhibit) -> tuple[str, ...]:
    """What a reader must know to compare the rows."""
    own = (exhibit.note,) if exhibit.note else ()
    # These notes say it for all rows.
    if exhibit.note == RELEASED or exhibit.kind == "cost":
        return own
    rows: dict[str, list[str]] = {}
    every = [line.recipe for line in result_tables.lines(exhibit) if line.recipe]
    for name in every:
        if recipe(name).note:
            rows.setdefault(recipe(name).note, []).append(name.partition("/")[2])
    found = []
    for note, names in rows.items():
        tasks = {name.split("/")[1] for name in names}
        whole = sum(name.split("/")[2] in tasks for name in every) == len(names)
        found.append(f"{', '.join(sorted(tasks) if whole else names)}: {note}.")
    return (*own, *found)


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


def _demo(runs: Runs) -> list[Section]:
    there = sum(bool(seeds) for _, seeds in demo_tables.demo_runs(runs))
    if not there:
        return []
    return [
        Section(
            "demo",
            "Demo",
            "LSTMs with momentum beside their controls",
            f"{there} of {len(NETWORKS)} networks trained",
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
    found = speed.timings(bench)
    common: dict[str, Any] = {"name": "speed", "heading": "Speed", "command": SPEED}
    common |= {"title": "A training step of one layer beside torch.nn's"}
    common["link"] = (page, "Measurements that come with the library: docs/speed.md in the repository")
    if not found:
        return Section(**common, status="not measured on this machine", kind="absent")
    note = (
        "torch.nn: the plain layer, by cuDNN on a GPU and by oneDNN on a CPU. The benchmark checks each "
        "layer against the definition before it takes its time."
    )
    return Section(
        **common,
        status=f"{len(found)} layer{'s' * (len(found) > 1)} measured",
        kind="run",
        notes=(note,),
        tables=tuple(speed.tables(found)),
        bars=tuple(speed.bars(found)),
    )


def _others(runs: Runs) -> list[Section]:
    known = {entry(network).id for network in NETWORKS}
    for name in RECIPES:
        known |= {recipe(each).config.id for each in variants(name)}
    table = tables.others(runs, known)
    if not table.rows:
        return []
    status = f"{len(table.rows)} networks"
    title = "Runs that are in no table of the paper"
    return [Section("others", "Other runs", title, status, "run", tables=(table,))]


def _folders(runs: Runs) -> Section:
    words = " ".join(f"{state}: {text}." for state, text in STATES.items())
    status = f"{len(runs.folders)} folders"
    kind: Kind = "run" if runs.folders else "absent"
    found = (tables.folders(runs),)
    return Section("runs", "All runs", "Each with its command", status, kind, notes=(words,), tables=found)


def _numbered(found: Sequence[Named]) -> tuple[Named, ...]:
    """Those of several devices, each under a name of its own."""
    return tuple(replace(each, name=f"{each.name}-{i}") if i > 1 else each for i, each in enumerate(found, 1))
