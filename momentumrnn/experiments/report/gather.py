"""Reads run folders and tells whole, short, failed, doubled, damaged and foreign apart. Guesses nothing.

Numbers come from metrics.jsonl alone; result.json must agree with it.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..config import Config, identity
from ..folders import RunError, read_json, running
from ..trainer import selected

COUNTED = ("done", "short", "running", "frozen")
"""The states of folders that count."""
STATES = {
    "done": "trained to its end",
    "short": "not yet trained to its end",
    "running": "being trained by a process now",
    "frozen": "failed: a step was not finite",
    "doubled": "a copy of another run with the same numbers; counted once",
    "conflict": "the same run and seed as another, with other numbers; not counted",
    "damaged": "its files contradict themselves or can't be read; not counted",
    "foreign": "not a run of this library; not counted",
}


@dataclass(frozen=True)
class Seed:
    """What the folder of a run says. config: None where classes of a user's describe it, or nothing does."""

    path: Path
    state: str
    reason: str = ""
    config: Config | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    """The config as it is written."""
    seed: int = -1
    epochs: Sequence[Mapping[str, Any]] = ()
    """The lines of metrics.jsonl for epochs."""
    steps: Sequence[Mapping[str, Any]] = ()
    """Those for steps."""
    result: Mapping[str, Any] | None = None

    @property
    def id(self) -> str:
        return identity(self.given)

    def made(self, key: str) -> str:
        """What its result says of its making: "device", "commit" or "command"; "" if nothing."""
        value = (self.result or {}).get(key)
        return plain(value) if isinstance(value, str) else ""

    @property
    def metric(self) -> str:
        """ "accuracy" or "loss"."""
        if self.config is not None:
            return self.config.task.metric
        return "accuracy" if any("test_accuracy" in line for line in self.epochs) else "loss"


@dataclass(frozen=True)
class Outcome:
    """What seeds of one run came to after some epochs: a value for each that came so far, by seed.

    best: on the test set, the best of all epochs; valid: on the test set, at the epoch that validation
    selects; lowest: the lowest loss there; trained: the loss on the training data in the last epoch. short:
    how many epochs others have; frozen: the step at which they failed.
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

    by_id: Mapping[str, Mapping[int, Seed]]
    folders: Sequence[Seed]

    def of(self, config: Config) -> Mapping[int, Seed]:
        return self.by_id.get(config.id, {})

    def outcome(self, config: Config) -> "Outcome":
        """What its seeds came to after as many epochs as it has."""
        return outcome(self.of(config), config.epochs)


def gather(roots: Sequence[Path]) -> Runs:
    """What lies in these folders; the same files give the same answer."""
    found: list[Seed] = []
    by_id: dict[str, dict[int, Seed]] = {}
    paths: dict[Path, Path] = {}
    for path in (path for root in roots for path in _candidates(root)):
        paths.setdefault(path.resolve(), path)
    for each in map(read, paths.values()):
        if each.state in ("damaged", "foreign"):
            found.append(each)
            continue
        held = by_id.setdefault(each.id, {})
        other = held.get(each.seed)
        if other is None:
            held[each.seed] = each
        else:
            # Of two the longer one counts, of these the one that is over, of equals the first.
            kept, rest = (each, other) if _rank(each) > _rank(other) else (other, each)
            held[each.seed] = kept
            same = _numbers(rest) == _numbers(kept)[: len(rest.epochs)]
            state = "doubled" if same else "conflict"
            odd = replace(
                rest, state=state, reason=f"{rest.state}; beside {kept.path.parent.name}/{kept.path.name}"
            )
            found = [odd if seed is rest else seed for seed in found]
            each = odd if each is rest else each
        found.append(each)
    return Runs(by_id, found)


def outcome(seeds: Mapping[int, Seed], epochs: int) -> Outcome:
    """What these seeds came to after so many epochs; of longer ones the beginning."""
    best, valid, trained, lowest = (dict[int, float]() for _ in range(4))
    short, frozen = dict[int, int](), dict[int, int]()
    for number, seed in sorted(seeds.items()):
        if len(seed.epochs) < epochs:
            if seed.state == "frozen":
                frozen[number] = int((seed.result or {})["frozen"]["step"])
            else:
                short[number] = len(seed.epochs)
            continue
        lines = [dict(line) for line in seed.epochs[:epochs]]
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


def read(path: Path) -> Seed:
    """What one folder says."""
    try:
        return _read(path)
    except (RunError, _OddError) as error:
        return Seed(path, "damaged", str(error).replace(f"{path}{os.sep}", ""))


def plain(text: str) -> str:
    """Text that can be written in every encoding of Unicode."""
    return text.encode(errors="replace").decode()


class _OddError(ValueError):
    """Something in a folder that can't be."""


def _candidates(root: Path) -> Iterator[Path]:
    """Folders that may be runs: those with a config.json, and those beside them that are no report."""
    runs = {path.parent for path in root.rglob("config.json")} - {root}
    parents = {path.parent for path in runs} | {root}
    beside = {path for parent in parents for path in parent.iterdir() if path.is_dir()}
    holding = {parent for path in runs for parent in path.parents}
    others = {path for path in beside - holding - runs if not path.name.startswith(".")}
    yield from sorted(runs | {path for path in others if not (path / "results.md").exists()})


def _read(path: Path) -> Seed:
    given = read_json(path / "config.json")
    if given is None:
        return Seed(path, "foreign", "it has no config.json")
    known = isinstance(given, dict) and isinstance(given.get("config"), dict)
    seed = given.get("seed") if known else None
    if type(seed) is not int or not 0 <= seed < 2**32 or type(given["config"].get("epochs")) is not int:
        return Seed(path, "foreign", "its config.json is of another kind")
    try:
        config: Config | None = Config.from_json(given["config"])
    except (ValueError, TypeError) as error:
        if not str(error).startswith(("task:", "cell:", "momentum:", "init:")):
            return Seed(path, "foreign", f"its config.json is of another kind or version: {error}")
        config = None  # described by classes of the user's
    name = f"{identity(given['config'])}-s{seed}"
    # Copies may have names of their own.
    if path.name != name and _NAME.fullmatch(path.name):
        raise _OddError(f"its config.json is that of {name}")
    # A run may end meanwhile: first its result, of which the metrics have all.
    alive, result = running(path), read_json(path / "result.json")
    lines = _lines(path)
    epochs = [line for line in lines if "epoch" in line]
    if result is not None:
        _check(result, epochs, config, seed)
    wanted = given["config"]["epochs"]
    if alive:
        state, reason = "running", f"epoch {len(epochs)} of {wanted}"
    elif result is not None and result["frozen"]:
        state, reason = "frozen", f"at step {result['frozen']['step']}"
    elif result is None or len(epochs) < wanted:
        state, reason = "short", f"epoch {len(epochs)} of {wanted}"
    else:
        state, reason = "done", f"epochs: {len(epochs)}"
    steps = [line for line in lines if "epoch" not in line]
    return Seed(path, state, reason, config, given["config"], seed, epochs, steps, result)


_NAME = re.compile(r"[a-z0-9_-]+-\d+-[0-9a-f]{10}-s\d+")


def _rank(seed: Seed) -> tuple[int, int]:
    return len(seed.epochs), ("short", "running", "frozen", "done").index(seed.state)


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        content = (path / "metrics.jsonl").read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"metrics.jsonl can't be read: {error.strerror}") from None
    # A process that was killed may have left half a line.
    *whole, _ = content.split(b"\n")
    try:
        found = [json.loads(line) for line in whole]
    except (ValueError, RecursionError):
        found = [None]
    if not all(isinstance(line, dict) and type(line.get("step")) is int for line in found):
        raise _OddError("metrics.jsonl should have a JSON object with a step in each line")
    epochs = [line for line in found if "epoch" in line]
    if [line["epoch"] for line in epochs] != list(range(1, len(epochs) + 1)):
        raise _OddError("metrics.jsonl does not count its epochs from 1 by 1")
    for lines in ([line for line in found if "epoch" not in line], epochs):
        steps = [0, *(line["step"] for line in lines)]
        if any(later <= former for former, later in pairwise(steps)):
            raise _OddError("metrics.jsonl has steps that don't rise")
    if any(line["step"] != line["epoch"] * epochs[0]["step"] for line in epochs):
        raise _OddError("metrics.jsonl has epochs of several lengths")
    for line in found:
        needed = line.get("train_loss" if "epoch" in line else "loss")
        if needed is None or not all(_is_number(key, value) for key, value in line.items()):
            raise _OddError(f"metrics.jsonl has something odd at step {line['step']}")
    return found


def _is_number(key: str, value: Any) -> bool:
    """Whether a value can be; null stands for one that was not finite."""
    if value is None:
        return True
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        return False
    return 0 <= value <= 1 if key.endswith("_accuracy") else True


def _check(result: Any, epochs: list[dict[str, Any]], config: Config | None, seed: int) -> None:
    """Refuse a result that is of another run, or says what the metrics don't."""
    if not isinstance(result, dict) or not {"id", "seed", "epochs", "frozen", "selected"} <= set(result):
        raise _OddError("result.json is of another kind")
    frozen, count, lines = result["frozen"], result["epochs"], result["selected"]
    if frozen is not None and not (isinstance(frozen, dict) and type(frozen.get("step")) is int):
        raise _OddError("result.json should say at which step it was frozen")
    if result["seed"] != seed or (config is not None and result["id"] != config.id):
        raise _OddError(f"result.json is that of {result['id']}-s{result['seed']}")
    if type(count) is not int or not 0 <= count <= len(epochs):
        raise _OddError(f"result.json has {count} epochs, metrics.jsonl {len(epochs)}")
    if not isinstance(lines, dict) or any(line not in [None, *epochs] for line in lines.values()):
        raise _OddError("result.json has a line for an epoch that metrics.jsonl has not")
    if lines.get("last") != (epochs[count - 1] if count else None):
        raise _OddError("result.json has another last epoch than metrics.jsonl")
    if config is None:
        return  # how it selects is the user's
    for part, rule in (("validation", "by_validation"), ("test", "by_test")):
        if lines.get(rule) != selected(epochs[:count], config.task.metric, part):
            raise _OddError(f"result.json has another best epoch ({rule}) than metrics.jsonl")


def _numbers(seed: Seed) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in seed.epochs]
