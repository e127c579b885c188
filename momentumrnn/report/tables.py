"""The tables of runs: all folders, and the runs that no table of the paper has. Knows no file format."""

from collections.abc import Mapping, Sequence, Set
from typing import Any

from ..experiments.config import in_words
from ..experiments.paper.recipes import own_name
from ..experiments.runs.gather import Runs, outcome
from ..experiments.runs.read import COUNTED, RunRecord, plain
from .table import Row, Table
from .wording import spread


def folders(runs: Runs) -> Table:
    """Every run with its exact command, and every folder that does not count."""
    columns = ("run", "seeds", "state", "device", "commit", "command")
    groups: dict[tuple[str, ...], list[RunRecord]] = {}
    for record in runs.folders:
        counts = record.state in COUNTED
        run = record.id if counts else plain(record.path.name)
        name = own_name(record.name, record.id) if counts else ""
        state = f"{record.state}: {record.reason}"
        if record.state == "done" and not record.reason:
            state = record.state
        origin = (record.origin(key) for key in ("device", "commit", "command"))
        groups.setdefault((run, name, state, *origin), []).append(record)
    rows = []
    for (run, name, state, device, commit, command), records in groups.items():
        seeds = sorted(record.seed for record in records if record.seed >= 0)
        cells = (
            _title(run, name),
            _seeds(seeds),
            state,
            *(text or "-" for text in (device, commit[:10], command)),
        )
        data = {"run": run, "seeds": " ".join(map(str, seeds)), "state": state, "device": device}
        data |= {"commit": commit, "command": command} | _name_as_data(name)
        whole = records[0].state == "done" or records[0].stopped_by_patience
        rows.append(Row(cells, data, "" if whole else "absent"))
    return Table("runs", columns, tuple(rows), _unverified(runs.folders))


def others(runs: Runs, ids_with_a_table: Set[str]) -> Table:
    """The runs that belong to no table of the paper and not to the demo.

    The first column has their names and ids, if any of them has a name, or if two look alike without.
    """
    columns: tuple[str, ...] = ("task", "network", "epochs", "best on test (seeds)", "selected by validation")
    records = {id: seeds for id, seeds in runs.by_id.items() if id not in ids_with_a_table}
    names = {id: _own_names(seeds) for id, seeds in records.items()}
    rows = [_other(id, names[id], seeds) for id, seeds in records.items()]
    # They may differ in what no column has, such as lr, or the source of a user's class.
    alike = len({row.cells[:2] for row in rows}) < len(rows)
    if alike or any(names.values()):
        columns = ("run", *columns)
        titles = [_title(id, names[id]) for id in records]
        rows = [Row((title, *row.cells), row.data) for title, row in zip(titles, rows, strict=True)]
    return Table("others", columns, tuple(rows))


def _other(id: str, name: str, seeds: Mapping[int, RunRecord]) -> Row:
    """The row of a run, without its name in the cells."""
    first = next(iter(seeds.values()))
    epochs = max(len(record.epochs) for record in seeds.values())
    digits = 2 if first.metric == "accuracy" else 5
    best: Mapping[int, float] = {}
    by_validation: Mapping[int, float] = {}
    if epochs:
        ended = outcome(seeds, epochs)
        best, by_validation = ended.best, ended.valid
    cells = (
        str(first.given.get("task")),
        in_words(first.given),
        str(epochs),
        spread(best, digits, count=True) or "-",
        spread(by_validation, digits) or "-",
    )
    data: dict[str, Any] = {"run": id, "epochs": epochs} | _name_as_data(name)
    for key, values in (("best", best), ("by_validation", by_validation)):
        data |= {f"{key}_seed_{seed}": value for seed, value in values.items()}
    return Row(cells, data)


def _own_names(seeds: Mapping[int, RunRecord]) -> str:
    """All names of the seeds of a run; most have one or none."""
    names = (own_name(record.name, record.id) for record in seeds.values())
    return "; ".join(dict.fromkeys(filter(None, names)))


def _title(id: str, name: str) -> str:
    return f"{name} ({id})" if name else id


def _name_as_data(name: str) -> dict[str, str]:
    return {"name": name} if name else {}


def _unverified(records: Sequence[RunRecord]) -> str:
    """How many folders are too old to be verified, in a sentence. "" if there is none."""
    count = sum(not record.verified for record in records if record.state not in ("damaged", "foreign"))
    if not count:
        return ""
    were, they = ("was", "it") if count == 1 else ("were", "they")
    return (
        f"{count} of {len(records)} folders {were} begun before files carried checksums, so {they} can't "
        "be verified."
    )


def _seeds(numbers: Sequence[int]) -> str:
    """Numbers of seeds as text: "0-4", or one by one where some are missing."""
    if len(numbers) < 3 or numbers[-1] - numbers[0] >= len(numbers):
        return ", ".join(map(str, numbers))
    return f"{numbers[0]}-{numbers[-1]}"
