"""What a table of the report is, and the tables of settings, folders and other runs. Knows no file format."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from ..config import in_words
from ..exhibits import settings
from ..paper import SOURCES, Published
from .gather import COUNTED, Outcome, Runs, Seed, outcome, plain
from .numbers import Interval

NOT_RUN = "not run"
QUOTED = {
    "helfrich2018": "Helfrich",
    "vorontsov2017": "Vorontsov",
    "wisdom2016": "Wisdom",
    "casado2019trivializations": "Lezcano-Casado",
    "helfrich2018+lezcano2019cheap": "Helfrich, Lezcano-Casado",
    "merity2018": "Merity",
}
"""The authors of each work that the paper quotes, in short."""


@dataclass(frozen=True)
class Row:
    """One row of a table.

    cells: the text that is shown; data: the same for programs; kind: "", "control", or "absent" if it was
    not run.
    """

    cells: tuple[str, ...]
    data: Mapping[str, Any]
    kind: str = ""


@dataclass(frozen=True)
class Table:
    """A table of the report. Its files have its name."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""


def hyper(name: str) -> Table:
    """A table of hyper-parameters."""
    titles = {
        "dataset": "task",
        "n": "units",
        "K": "K",
        "optimizer": "optimizer",
        "lr": "learning rate",
        "orth_optimizer": "optimizer of U",
        "orth_lr": "learning rate of U",
        "batch_size": "batch",
        "epochs": "epochs",
        "mu": "mu",
        "s": "step",
        "beta": "beta",
        "F": "F",
    }
    found = settings(name)
    used = [key for key in titles if any(key in row for rows in found.values() for row in rows)]
    rows = []
    for model, each in found.items():
        for row in each:
            cells = (model, *(_setting(row.get(key)) for key in used))
            rows.append(Row(cells, {"network": model, **{key: row.get(key) for key in used}}))
    note = (
        "These values come from the recipes. TIMIT and PTB have no recipe yet: their values are those of the "
        "paper. K: steps from one re-basing of U to the next."
    )
    return Table(name, ("network", *(titles[key] for key in used)), tuple(rows), note)


def _setting(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{_setting(v)} (n = {size})" for size, v in value.items())
    if value is None:
        return ""
    if value == "infty":
        return "∞"
    return f"{value:g}" if isinstance(value, float) else str(value)


def folders(runs: Runs) -> Table:
    """Every run with its exact command, and every folder that does not count."""
    columns = ("run", "seeds", "state", "device", "commit", "command")
    rows = []
    groups: dict[tuple[str, ...], list[Seed]] = {}
    for seed in runs.folders:
        name = seed.id if seed.state in COUNTED else plain(seed.path.name)
        state = seed.state if seed.state == "done" and not seed.reason else f"{seed.state}: {seed.reason}"
        key = (name, state, *(seed.made(what) for what in ("device", "commit", "command")))
        groups.setdefault(key, []).append(seed)
    for (name, state, device, commit, command), seeds in groups.items():
        numbers = sorted(seed.seed for seed in seeds if seed.seed >= 0)
        shown = (name, _numbers(numbers), state, *(text or "-" for text in (device, commit[:10], command)))
        data = {"run": name, "seeds": " ".join(map(str, numbers)), "state": state, "device": device}
        kind = "" if seeds[0].state == "done" else "absent"
        rows.append(Row(shown, {**data, "commit": commit, "command": command}, kind))
    return Table("runs", columns, tuple(rows))


def others(runs: Runs, known: set[str]) -> Table:
    """The runs that belong to no table of the paper and not to the demo. known: the ids of those that do."""
    columns = ("task", "network", "epochs", "best on test (seeds)", "selected by validation")
    rows = []
    for name, seeds in runs.by_id.items():
        if name in known:
            continue
        first = next(iter(seeds.values()))
        most = max(len(seed.epochs) for seed in seeds.values())
        found = outcome(seeds, most) if most else None
        digits = 2 if first.metric == "accuracy" else 5
        cells = (
            str(first.given.get("task")),
            in_words(first.given),
            str(most),
            (spread(found.best, digits, count=True) if found else "") or "-",
            (spread(found.valid, digits) if found else "") or "-",
        )
        data: dict[str, Any] = {"run": name, "epochs": most}
        for kind, values in (("best", found.best), ("by_validation", found.valid)) if found else ():
            data |= {f"{kind}_seed_{seed}": value for seed, value in values.items()}
        rows.append(Row(cells, data))
    return Table("others", columns, tuple(rows))


def sources() -> list[str]:
    """The works that the paper quotes, with their short names."""
    return [f"{QUOTED[key]}: {words}" for key, words in SOURCES.items() if key != "paper"]


def printed(published: Sequence[Published], digits: int) -> str:
    """The published numbers. A quoted number is followed by the authors it comes from."""
    parts = []
    for p in published:
        value = f"{p.value:.{digits}f}" if digits == 2 else f"{p.value:g}"
        deviation = "" if p.std is None else f" ± {p.std:.2f}"
        parts.append(f"{value}{deviation}{f' ({QUOTED[p.source]})' if p.quoted else ''}")
    return "; ".join(parts) or "-"


def spread(values: Mapping[int, float], digits: int, count: bool = False) -> str:
    """Mean ± sample standard deviation; count: with the number of values after them."""
    known = [value for value in values.values() if math.isfinite(value)]
    if not known:
        return ""
    deviation = f" ± {stdev(known):.{digits}f}" if len(known) > 1 else ""
    return f"{mean(known):.{digits}f}{deviation}{f' ({len(known)})' if count else ''}"


def deviation(values: Mapping[int, float]) -> float | None:
    """The sample standard deviation. None for fewer than two values."""
    return stdev(values.values()) if len(values) > 1 else None


def signed(interval: Interval | None, digits: int) -> str:
    """A difference and its interval as text, such as "+0.14 [-0.05, +0.34]"."""
    if interval is None:
        return ""
    value, *ends = (
        # No -0.00.
        f"{round(number, digits) + 0.0:+.{digits}f}"
        for number in (interval.value, interval.low, interval.high)
        if number is not None
    )
    return f"{value} [{', '.join(ends)}]" if ends else value


def rounded(value: float, digits: int = 3) -> str:
    """A number with so many digits that count.

    >>> rounded(0.010888), rounded(1131.7), rounded(12.0375, 4)
    ('0.0109', '1130', '12.04')
    """
    return f"{float(f'{value:.{digits}g}'):.10g}"


def unfinished(found: Outcome) -> str:
    """The seeds that did not come to the end, in words: those that go on, and those that failed."""
    parts = [f"seed {seed}: epoch {epoch} of {found.epochs}" for seed, epoch in found.short.items()]
    if len(parts) > 2 and len({*found.short.values()}) == 1:
        parts = [f"{len(parts)} seeds: epoch {next(iter(found.short.values()))} of {found.epochs}"]
    if found.frozen:
        count = len(found.seeds) + len(found.short) + len(found.frozen)
        steps = ", ".join(f"seed {seed} at step {step}" for seed, step in found.frozen.items())
        parts.append(f"{len(found.frozen)} of {count} seeds failed (not finite: {steps})")
    return ", ".join(parts)


def _numbers(seeds: Sequence[int]) -> str:
    if len(seeds) < 3 or seeds[-1] - seeds[0] >= len(seeds):
        return ", ".join(map(str, seeds))
    return f"{seeds[0]}-{seeds[-1]}"
