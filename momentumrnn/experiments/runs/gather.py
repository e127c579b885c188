"""All runs below some folders: which count, which are copies, and what their seeds came to."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..config import Config
from .read import RunRecord, read, selected
from .store import same_data


@dataclass(frozen=True)
class Outcome:
    """What seeds of one run came to after some epochs: a value for each that came so far, by seed.

    best: on the test set, the best of all epochs; valid: on the test set, at the epoch that validation
    selects; lowest: the lowest loss there; trained: the loss on the training data in the last epoch. short:
    how many epochs others have; frozen: the step at which they failed. What patience stopped counts as
    trained to its end; what a watcher stopped is short.
    """

    epochs: int
    best: Mapping[int, float]
    valid: Mapping[int, float]
    trained: Mapping[int, float]
    lowest: Mapping[int, float]
    short: Mapping[int, int]
    frozen: Mapping[int, int]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted(self.trained))

    def __bool__(self) -> bool:
        return bool(self.trained or self.short or self.frozen)


@dataclass(frozen=True)
class Runs:
    """All runs that count, by id and seed, and all folders, whatever they are, in order."""

    by_id: Mapping[str, Mapping[int, RunRecord]]
    folders: Sequence[RunRecord]

    def of(self, config: Config) -> Mapping[int, RunRecord]:
        return self.by_id.get(config.id, {})

    def outcome(self, config: Config) -> "Outcome":
        """What its seeds came to after as many epochs as it has."""
        return outcome(self.of(config), config.epochs)


def gather(roots: Sequence[Path], own: Sequence[type] = ()) -> Runs:
    """What lies in these folders; the same files give the same answer. own: the user's own classes."""
    records: list[RunRecord] = []
    by_id: dict[str, dict[int, RunRecord]] = {}
    first_with_data: dict[str, RunRecord] = {}
    paths: dict[Path, Path] = {}
    for path in (path for root in roots for path in _candidates(root)):
        paths.setdefault(path.resolve(), path)
    for path in paths.values():
        record = read(path, own)
        if record.state in ("damaged", "foreign"):
            records.append(record)
            continue
        if record.known_data:
            # All seeds of one run stand for the same data: those of the first one.
            reference = first_with_data.setdefault(record.id, record)
            if not same_data(reference.known_data, record.known_data):
                reason = f"{record.state}; other data than {_place(reference)}"
                records.append(replace(record, state="conflict", reason=reason))
                continue
        seeds = by_id.setdefault(record.id, {})
        other = seeds.get(record.seed)
        if other is None:
            seeds[record.seed] = record
        else:
            # Of two the longer one counts, of these the one that is over, of equals the first.
            counted, rest = (record, other) if _rank(record) > _rank(other) else (other, record)
            seeds[record.seed] = counted
            copy = _beside(rest, counted)
            records = [copy if known is rest else known for known in records]
            record = copy if record is rest else record
        records.append(record)
    return Runs(by_id, records)


def _beside(rest: RunRecord, counted: RunRecord) -> RunRecord:
    """What does not count, since another folder has the same run."""
    same = _numbers(rest) == _numbers(counted)[: len(rest.epochs)]
    state = "doubled" if same else "conflict"
    return replace(rest, state=state, reason=f"{rest.state}; beside {_place(counted)}")


def _place(record: RunRecord) -> str:
    return f"{record.path.parent.name}/{record.path.name}"


def outcome(seeds: Mapping[int, RunRecord], epochs: int) -> Outcome:
    """What these seeds came to after so many epochs; of longer ones the beginning."""
    best, valid, trained, lowest = (dict[int, float]() for _ in range(4))
    short, frozen = dict[int, int](), dict[int, int]()
    for number, seed in sorted(seeds.items()):
        lines = [dict(line) for line in seed.epochs[:epochs]]
        if len(lines) < epochs and not (seed.stopped_by_patience and lines):
            if seed.state == "frozen":
                frozen[number] = int((seed.result or {})["frozen"]["step"])
            else:
                short[number] = len(lines)
            continue
        metric = seed.metric
        for part, values in (("test", best), ("validation", valid)):
            line = selected(lines, metric, part)
            if line is not None and line.get(f"test_{metric}") is not None:
                values[number] = line[f"test_{metric}"] * (100 if metric == "accuracy" else 1)
        trained[number] = lines[-1]["train_loss"]
        losses = [line["test_loss"] for line in lines if line.get("test_loss") is not None]
        if losses:
            lowest[number] = min(losses)
    return Outcome(epochs, best, valid, trained, lowest, short, frozen)


def _candidates(root: Path) -> Iterator[Path]:
    """Folders that may be runs: those with a config.json, and those beside them that are no report."""
    runs = {path.parent for path in root.rglob("config.json")} - {root}
    parents = {path.parent for path in runs} | {root}
    beside = {path for parent in parents for path in parent.iterdir() if path.is_dir()}
    holding = {parent for path in runs for parent in path.parents}
    others = {path for path in beside - holding - runs if not path.name.startswith(".")}
    yield from sorted(runs | {path for path in others if not (path / "results.md").exists()})


def _rank(seed: RunRecord) -> tuple[int, int]:
    return len(seed.epochs), ("short", "running", "stopped", "frozen", "done").index(seed.state)


def _numbers(seed: RunRecord) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in seed.epochs]
