"""Tables 14 to 16, from files of measurements: time, memory and minutes. Knows no file format."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Any

from ..exhibits import GOAL, Exhibit, Line
from ..paper import Recipe, recipe, variants
from .gather import Runs, Seed
from .tables import NOT_RUN, Row, Table, rounded

KINDS = ("listing", "torch.nn", "ours")
"""The implementations that are measured, by the names in the files."""


def costs(exhibit: Exhibit, found: Mapping[str, Any], runs: Runs) -> Table:
    """Table 14, 15 or 16 from one file of measurements."""
    if exhibit.name == "table16":
        return _minutes(exhibit, found, runs)
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
        listing, torch, ours = (found["rows"].get(f"{kind}/{line.model}", {}).get(key) for kind in KINDS)
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
        data |= {"listing": listing, "torch_nn": torch, "ours": ours, "device": found["device"]}
        rows.append(Row(cells, data, "absent" if ours is None else ""))
    return Table(
        exhibit.name, columns, tuple(rows), f"{exhibit.metric[0].upper()}{exhibit.metric[1:]}. {_how(found)}"
    )


def _how(found: Mapping[str, Any]) -> str:
    """How costs were measured."""
    versions = found.get("versions")
    torch = f", torch {versions.get('torch')}" if isinstance(versions, dict) else ""
    kinds = {"ours": "ours/LSTM", "torch.nn": "torch.nn/LSTM", "the listing": "listing/LSTM"}
    ways = [f"{kind}: {found['rows'][name]['how']}" for kind, name in kinds.items() if name in found["rows"]]
    words = "Training batches have 128 samples, evaluation batches 500 on a GPU and 100 on a CPU."
    return " ".join([f"Measured on {found['device']}{torch}. {words}", *[f"{'; '.join(ways)}."] * bool(ways)])


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
    def known(self) -> bool:
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
    lines = {n: first_at(seed, GOAL, row.config.epochs) for n, seed in runs.of(row.config).items()}
    there = [line for line in lines.values() if line is not None]
    came = runs.outcome(row.config)
    ended = {*came.seeds, *came.frozen}
    without = [number for number, line in lines.items() if line is None]
    return _Reached(
        tuple(line["epoch"] for line in there),
        tuple(line["seconds"] for line in there if line.get("seconds")),
        tuple(number for number in without if number in ended),
        tuple(number for number in without if number not in ended),
    )


def _minutes(exhibit: Exhibit, found: Mapping[str, Any], runs: Runs) -> Table:
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
                    rows.append(_minutes_row(line, recipe(name), reached, found))
    return Table(exhibit.name, columns, tuple(rows), f"Minutes. {_how(found)}")


def _minutes_row(line: Line, row: Recipe, reached: _Reached, found: Mapping[str, Any]) -> Row:
    epoch = {kind: _epoch_minutes(found, f"{kind}/{line.model}", row) for kind in KINDS}
    listing, torch, ours = (
        mean(reached.epochs) * each if each is not None and reached.known else None for each in epoch.values()
    )
    timed = reached.known and len(reached.seconds) == len(reached.epochs)
    as_run = mean(reached.seconds) / 60 if timed else None
    not_known = "-" if reached.seeds else NOT_RUN
    cells = (
        line.model,
        "default" if row.name == line.recipe else "as released",
        f"{line.published[0].value:g}",
        str(reached),
        *(_amount(each) if reached.known else not_known for each in (ours, as_run)),
        *("" if each is None else _amount(each) for each in (listing, torch)),
    )
    data = {"network": line.model, "recipe": row.name, "paper": line.published[0].value}
    data |= {"epochs": mean(reached.epochs) if reached.epochs else None, "seeds": len(reached.epochs)}
    data |= {"not_reached": len(reached.never)}
    data |= {"ours": ours, "as_run": as_run, "listing": listing, "torch_nn": torch}
    return Row(cells, data, "" if reached.seeds else "absent")


def _epoch_minutes(found: Mapping[str, Any], name: str, row: Recipe) -> float | None:
    """One epoch of one seed: its training images, and the test images, as in the released code."""
    costs = found["rows"].get(name)
    if costs is None:
        return None
    training = 60_000 - getattr(row.config.task, "validation", 0)
    return float(training * costs["train_ms"] + 10_000 * costs["eval_ms"]) / 60e3


def first_at(seed: Seed, goal: float, epochs: int) -> Mapping[str, Any] | None:
    """The line of the first epoch with that test accuracy. None if none of so many epochs has it."""
    lines = seed.epochs[:epochs]
    return next((line for line in lines if (line.get("test_accuracy") or 0) >= goal), None)


def _amount(value: float | None) -> str:
    return "not measured" if value is None else rounded(value)
