"""Tables 14 to 16, from files of measurements: time, memory and minutes. Knows no file format."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Any

from ..experiments.paper.printed import GOAL
from ..experiments.paper.recipes import Recipe, recipe, variants
from ..experiments.paper.tables import Exhibit, Line
from ..experiments.runs.gather import Runs
from ..experiments.runs.read import RunRecord
from .table import Row, Table
from .wording import NOT_RUN, rounded

KINDS = ("listing", "torch.nn", "ours")
"""The implementations that are measured, by the names in the files."""


def costs(exhibit: Exhibit, measured: Mapping[str, Any], runs: Runs) -> Table:
    """Table 14, 15 or 16 from one file of measurements."""
    if exhibit.name == "table16":
        return _minutes(exhibit, measured, runs)
    keys = {"table14": ("train_ms", "eval_ms"), "table15": ("train_mb", "eval_mb")}[exhibit.name]
    columns = (
        "network",
        "part",
        "paper",
        "the paper's listing, here",
        "torch.nn",
        "ours",
        "listing / ours",
        "torch.nn / ours",
    )
    rows = []
    for line in exhibit.lines:
        key = keys[("training", "evaluation").index(line.column)]
        listing, torch, ours = (measured["rows"].get(f"{kind}/{line.model}", {}).get(key) for kind in KINDS)
        ratios = [None if None in (other, ours) else other / ours for other in (listing, torch)]
        cells = (
            line.model,
            line.column,
            f"{line.published[0].value:g}",
            _amount(listing),
            "" if torch is None and line.model != "LSTM" else _amount(torch),
            _amount(ours),
            *("" if ratio is None else rounded(ratio) for ratio in ratios),
        )
        data = {"network": line.model, "part": line.column, "paper": line.published[0].value}
        data |= {"listing": listing, "torch_nn": torch, "ours": ours, "device": measured["device"]}
        rows.append(Row(cells, data, "absent" if ours is None else ""))
    unit = f"{exhibit.metric[0].upper()}{exhibit.metric[1:]}"
    return Table(exhibit.name, columns, tuple(rows), f"{unit}. {_method(measured)}")


def _method(measured: Mapping[str, Any]) -> str:
    """How costs were measured."""
    versions = measured.get("versions")
    torch = f", torch {versions.get('torch')}" if isinstance(versions, dict) else ""
    names = {"ours": "ours/LSTM", "torch.nn": "torch.nn/LSTM", "the listing": "listing/LSTM"}
    rows = measured["rows"]
    ways = [f"{kind}: {rows[name]['how']}" for kind, name in names.items() if name in rows]
    words = "Training batches have 128 samples, evaluation batches 500 on a GPU and 100 on a CPU."
    sentences = [f"Measured on {measured['device']}{torch}. {words}"]
    return " ".join([*sentences, *[f"{'; '.join(ways)}."] * bool(ways)])


@dataclass(frozen=True)
class _Reached:
    """When the seeds of a run reached the accuracy of table 16."""

    epochs: tuple[int, ...]
    seconds: tuple[float, ...]
    """The clock of the run at these epochs, of those seeds that have it."""
    never: tuple[int, ...]
    """Seeds that ended without it."""
    not_yet: tuple[int, ...]
    """Seeds that go on."""

    @property
    def by_all(self) -> bool:
        """Whether all seeds reached it. A mean of only some seeds would be too short."""
        return bool(self.epochs) and not self.never and not self.not_yet

    @property
    def seeds(self) -> int:
        return len(self.epochs) + len(self.never) + len(self.not_yet)

    def __str__(self) -> str:
        if not self.seeds:
            return NOT_RUN
        parts = [f"{mean(self.epochs):.1f} ({len(self.epochs)})"] if self.epochs else []
        for words, seeds in (("not yet", self.not_yet), ("not reached", self.never)):
            parts += [f"{words}: seed {', '.join(map(str, seeds))}"] if seeds else []
        return "; ".join(parts)


def _reached(row: Recipe, runs: Runs) -> _Reached:
    records = runs.of(row.config)
    lines = {seed: first_at(record, GOAL, row.config.epochs) for seed, record in records.items()}
    lines_there = [line for line in lines.values() if line is not None]
    outcome = runs.outcome(row.config)
    stopped = {seed for seed, record in records.items() if record.state == "stopped"}
    ended = {*outcome.seeds, *outcome.frozen, *stopped}
    without = [seed for seed, line in lines.items() if line is None]
    return _Reached(
        tuple(line["epoch"] for line in lines_there),
        tuple(line["seconds"] for line in lines_there if line.get("seconds")),
        tuple(seed for seed in without if seed in ended),
        tuple(seed for seed in without if seed not in ended),
    )


def _minutes(exhibit: Exhibit, measured: Mapping[str, Any], runs: Runs) -> Table:
    columns = (
        "network",
        "trained",
        "paper",
        "epochs needed (seeds)",
        "ours",
        "ours, as run (seeds together)",
        "the paper's listing, here",
        "torch.nn",
    )
    rows = []
    for line in exhibit.lines:
        for name in variants(line.recipe):
            if name == line.recipe or name.rpartition("/")[2] == "as-released":
                reached = _reached(recipe(name), runs)
                if name == line.recipe or reached.seeds:
                    rows.append(_minutes_row(line, recipe(name), reached, measured))
    return Table(exhibit.name, columns, tuple(rows), f"Minutes. {_method(measured)}")


def _minutes_row(line: Line, row: Recipe, reached: _Reached, measured: Mapping[str, Any]) -> Row:
    of_an_epoch = (_epoch_minutes(measured, f"{kind}/{line.model}", row) for kind in KINDS)
    listing, torch, ours = (
        mean(reached.epochs) * minutes if minutes is not None and reached.by_all else None
        for minutes in of_an_epoch
    )
    timed = reached.by_all and len(reached.seconds) == len(reached.epochs)
    as_run = mean(reached.seconds) / 60 if timed else None
    unknown = "-" if reached.seeds else NOT_RUN
    cells = (
        line.model,
        "default" if row.name == line.recipe else "as released",
        f"{line.published[0].value:g}",
        str(reached),
        *(_amount(minutes) if reached.by_all else unknown for minutes in (ours, as_run)),
        *("" if minutes is None else _amount(minutes) for minutes in (listing, torch)),
    )
    data = {"network": line.model, "recipe": row.name, "paper": line.published[0].value}
    data |= {"epochs": mean(reached.epochs) if reached.epochs else None, "seeds": len(reached.epochs)}
    data |= {"not_reached": len(reached.never)}
    data |= {"ours": ours, "as_run": as_run, "listing": listing, "torch_nn": torch}
    return Row(cells, data, "" if reached.seeds else "absent")


def _epoch_minutes(measured: Mapping[str, Any], name: str, row: Recipe) -> float | None:
    """One epoch of one seed: its training images, and the test images, as in the released code."""
    cost = measured["rows"].get(name)
    if cost is None:
        return None
    training = 60_000 - getattr(row.config.task, "validation", 0)
    return float(training * cost["train_ms"] + 10_000 * cost["eval_ms"]) / 60e3


def first_at(record: RunRecord, goal: float, epochs: int) -> Mapping[str, Any] | None:
    """The line of the first epoch with that test accuracy. None if none of so many epochs has it."""
    lines = record.epochs[:epochs]
    return next((line for line in lines if (line.get("test_accuracy") or 0) >= goal), None)


def _amount(value: float | None) -> str:
    return "not measured" if value is None else rounded(value)
