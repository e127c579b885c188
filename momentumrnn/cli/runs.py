"""The command `momentumrnn runs`: what is in the run folders, as the one reader of them says it."""

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..experiments.config import in_words
from ..experiments.paper.recipes import own_name
from ..experiments.runs.gather import gather
from ..experiments.runs.read import COUNTED, RunRecord, read
from .options import command_line, refuse, seed_ranges
from .torch_options import own_classes


def run(options: Any, args: Sequence[str]) -> int:
    """Carry out the command; returns its exit code."""
    try:
        own = own_classes(options.imports)
    except ValueError as error:
        return refuse(f"runs: {error}")
    if not options.root.is_dir():
        return refuse(
            f"runs: --root: expected a folder of runs, but there is no folder {str(options.root)!r}", 1
        )
    console = Console(width=None if sys.stdout.isatty() else 150)
    records = _records(options.root, own)
    counted = [record for record in records if record.state in COUNTED]
    if counted:
        console.print(_table(counted, console.width))
    else:
        deeper = sorted({path.parent.parent for path in options.root.glob("*/*/config.json")})
        commands = [(path, command_line(["runs", "--root", str(path)])) for path in deeper]
        hint = "".join(f"\nThere are some in {path}: {command}" for path, command in commands)
        _say(console, f"No runs in {options.root}.{hint}")
    for record in records:
        if record.state not in COUNTED:
            _say(console, f"{record.state}: {record.path}: {record.reason}")
    unverified = sum(not record.verified for record in counted if record.state != "running")
    if unverified:
        folders = f"{unverified} of {len(counted)} folders"
        _say(console, f"{folders} were begun before files carried checksums, so they can't be verified")
    return 1 if any(record.state == "damaged" for record in records) else 0


def _records(root: Path, own: Sequence[type]) -> list[RunRecord]:
    """What the run folders in a folder say, or what it says itself if it is one."""
    # Resolved, since a run's folder is known by its name, and root may be ".".
    itself = read(root.resolve(), own)
    if itself.state != "foreign":
        return [itself]
    # Only what lies in the folder itself is listed. A tree without a run there may be large.
    if not any(root.glob("*/config.json")):
        return []
    return [record for record in gather([root], own).folders if record.path.parent == root]


def _table(records: Sequence[RunRecord], width: int) -> Table:
    """A line for each run, of all its seeds."""
    by_id: dict[str, list[RunRecord]] = {}
    for record in records:
        by_id.setdefault(record.id, []).append(record)
    table = Table(box=box.SIMPLE_HEAD)
    titles = ["run", "seeds", "state", "test, selected\nby validation", "best on\nthe test set"]
    # Where there is little room, what matters least is left out.
    wide = width >= 110
    for title in [*titles, *["device"] * wide]:
        table.add_column(title, overflow="fold", justify="left" if title in titles[:3] else "right")
    for run_id, seeds in by_id.items():
        values = seeds[0].given
        names = sorted({own_name(record.name, record.id) for record in seeds} - {""})
        alike = _trained_alike(seeds)
        table.add_row(
            escape("\n".join([run_id, *names, str(values["task"]), in_words(values)])),
            seed_ranges([record.seed for record in seeds]),
            escape("\n".join(_states(seeds))),
            *(_mean(alike, rule, len(seeds)) for rule in ("by_validation", "by_test")),
            *["\n".join(sorted({record.origin("device") or "-" for record in seeds}))] * wide,
        )
    return table


def _trained_alike(seeds: Sequence[RunRecord]) -> list[RunRecord]:
    """The seeds of which a mean is shown: those that were trained longest, and those that patience ended."""
    early = [record for record in seeds if record.stopped_by_patience]
    others = [record for record in seeds if record not in early and record.state != "frozen"]
    most = max((_epochs(record) for record in others), default=0)
    return early + [record for record in others if _epochs(record) == most > 0]


def _states(seeds: Sequence[RunRecord]) -> list[str]:
    """The state of all seeds or, if they differ, each state with its seeds."""
    by_state: dict[str, list[int]] = {}
    for record in seeds:
        by_state.setdefault(_state(record), []).append(record.seed)
    if len(by_state) == 1:
        return list(by_state)
    return [f"{seed_ranges(numbers)}: {state}" for state, numbers in by_state.items()]


def _state(record: RunRecord) -> str:
    """The state of a run in words."""
    epochs = record.given["epochs"]
    if record.state == "running" or (record.state == "short" and record.result is None):
        steps = [lines[-1]["step"] for lines in (record.steps, record.epochs) if lines]
        progress = f", step {max(steps)}, epochs: {epochs}" if steps else ""
        return f"{'running' if record.state == 'running' else 'interrupted'}{progress}"
    if record.state in ("frozen", "stopped"):
        return f"{record.state} {record.reason}"
    # It may have more epochs than its result, if the process ended in between.
    if _epochs(record) < epochs:
        return f"interrupted after epoch {_epochs(record)} of {epochs}"
    return f"done, epochs: {_epochs(record)}"


def _epochs(record: RunRecord) -> int:
    """The epochs of its result; 0 without one."""
    return int(record.result["epochs"]) if record.result else 0


def _mean(records: Sequence[RunRecord], rule: str, seeds: int) -> str:
    """The mean of a value of their results and its deviation, under the name of the metric.

    seeds: how many there are. Where only some have a value, it says which.
    """
    lines = [(record.result or {"selected": {}})["selected"].get(rule) for record in records]
    metric = (records[0].result or {}).get("metric", records[0].metric) if records else ""
    values = [line[f"test_{metric}"] for line in lines if line and line.get(f"test_{metric}") is not None]
    if not values:
        return "-"
    scale, form, unit = (100, ".2f", " %") if metric == "accuracy" else (1, ".5f", "")
    values = [scale * value for value in values]
    spread = f" ± {stdev(values):{form}}" if len(values) > 1 else ""
    some = f"\nseeds {seed_ranges([record.seed for record in records])}" if len(records) < seeds else ""
    return f"{metric}\n{mean(values):{form}}{spread}{unit}{some}"


def _say(console: Console, text: str) -> None:
    console.print(escape(text), highlight=False, soft_wrap=True)
