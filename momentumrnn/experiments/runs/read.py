"""Reads the folder of a run, and tells done, short, failed, damaged and foreign apart. Guesses nothing.

This is the one reader: training, the lists of runs and the report all take what it says. Numbers come from
metrics.jsonl alone; result.json must agree with it. What carries a checksum is verified.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...momentum import MOMENTA
from ..config import CELLS, INITS, Config, SchemaError, identity, migrate
from ..config import read as read_field
from ..tasks import TASKS
from .checksums import ChecksumError, RunningHash, check_metrics, read_trailer
from .store import HINT, NO_CHECKSUM, RunError, begun_with, check_schema, read_verified, running, same_data

COUNTED = ("done", "short", "running", "stopped", "frozen")
"""The states of folders that count."""
STATES = {
    "done": "trained to its end",
    "short": "not yet trained to its end",
    "running": "being trained by a process now",
    "stopped": "stopped early, by patience or by a watcher",
    "frozen": "failed: a step was not finite",
    "doubled": "a copy of another run with the same numbers; counted once",
    "conflict": "the same run as another, with other numbers or data; not counted",
    "damaged": "its files contradict themselves or can't be read; not counted",
    "foreign": "not a run of this library; not counted",
}


@dataclass(frozen=True)
class RunRecord:
    """What the folder of a run says. config: None where classes of a user's describe it, or nothing does."""

    path: Path
    state: str
    reason: str = ""
    config: Config | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    """The config as it is written, with the fields of today."""
    seed: int = -1
    epochs: Sequence[Mapping[str, Any]] = ()
    """The lines of metrics.jsonl for epochs."""
    steps: Sequence[Mapping[str, Any]] = ()
    """Those for steps."""
    result: Mapping[str, Any] | None = None
    name: str = ""
    """What it is called beside its id, such as a recipe with some fields changed; often nothing."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The hashes of the user's own classes that describe it."""
    data: Mapping[str, str] | None = None
    """The hashes of its data; None where that was not written down."""
    verified: bool = False
    """Whether all that was read has been vouched for by checksums since the run began, and they are right.

    Not so of a run that an older version began, also where this one went on with it.
    """

    @property
    def id(self) -> str:
        return identity(self.given, self.sources)

    @property
    def known_data(self) -> Mapping[str, str]:
        """The hashes of its data, of an older run those in its result; {} if nothing is known."""
        data = (self.result or {}).get("data") if self.data is None else self.data
        return data if isinstance(data, dict) else {}

    def origin(self, key: str) -> str:
        """What its result says of its making: "device", "commit" or "command"; "" if nothing."""
        value = (self.result or {}).get(key)
        return plain(value) if isinstance(value, str) else ""

    @property
    def stopped_by_patience(self) -> bool:
        """Whether it ended because nothing became better, so that nothing is left to train."""
        return self.state == "stopped" and ((self.result or {})["stopped"] or {}).get("by") == "patience"

    @property
    def metric(self) -> str:
        """ "accuracy" or "loss"."""
        if self.config is not None:
            return self.config.task.metric
        written = self.origin("metric")
        if written in ("accuracy", "loss"):
            return written
        return "accuracy" if any("test_accuracy" in line for line in self.epochs) else "loss"


def read(path: Path, own: Sequence[type] = (), locked: bool = False) -> RunRecord:
    """What one folder says. own: the user's own classes, by which a run may be described.

    locked: whether the caller has locked the folder, so that no other process trains there.
    """
    try:
        return _read(path, own, locked)
    except (RunError, _DamageError) as error:
        reason = str(error).replace(f"{path}{os.sep}", "").removesuffix(f": {HINT}")
        return RunRecord(path, "damaged", reason)


def selected(epochs: Sequence[dict[str, Any]], metric: str, part: str) -> dict[str, Any] | None:
    """The line of the best epoch on a part of the data, the first of equals; None without such a part."""
    sign = 1 if metric == "accuracy" else -1
    known = [line for line in epochs if line.get(f"{part}_{metric}") is not None]
    return max(known, key=lambda line: sign * line[f"{part}_{metric}"], default=None)


def plain(text: str) -> str:
    """Text that can be written in every encoding of Unicode."""
    return text.encode(errors="replace").decode()


class _DamageError(ValueError):
    """Something in a folder that can't be."""


def _read(path: Path, own: Sequence[type], locked: bool) -> RunRecord:
    try:
        record, verified = read_verified(path / "config.json")
    except RunError:
        if _has_other_json(path / "config.json"):
            return RunRecord(path, "foreign", _FOREIGN)
        raise
    if record is None:
        return RunRecord(path, "foreign", "it has no config.json")
    run = _described(path, record, own)
    if run.state == "foreign":
        return run
    _check_sealed("config.json", verified, "schema" in record)
    sealed = begun_with(record) > 1
    name = f"{run.id}-s{run.seed}"
    # Copies may have names of their own.
    if path.name != name and _NAME.fullmatch(path.name):
        raise _DamageError(f"its config.json is that of {name}")
    # A run may end meanwhile: first its result, of which the metrics have all.
    alive = not locked and running(path)
    result, result_verified = read_verified(path / "result.json")
    if result is not None:
        _check_sealed("result.json", result_verified, sealed or "metrics_file" in result)
    content, content_verified = _content(path, record, result, alive)
    lines = _lines(content)
    epochs = [line for line in lines if "epoch" in line]
    if result is not None:
        _check(result, epochs, run)
    state, reason = _state(run, result, len(epochs), alive)
    steps = [line for line in lines if "epoch" not in line]
    run = replace(run, state=state, reason=reason, epochs=epochs, steps=steps, result=result)
    return replace(run, verified=sealed and verified and result_verified and content_verified)


_FOREIGN = "its config.json is of another kind"


def _has_other_json(path: Path) -> bool:
    """Whether a file is whole, and of somebody else: JSON, but no object."""
    try:
        return not isinstance(json.loads(path.read_bytes()), dict)
    except (OSError, ValueError, RecursionError):
        return False


def _check_sealed(name: str, verified: bool, recent: bool) -> None:
    """Refuse a file of a version that writes a checksum, if it has none."""
    if recent and not verified:
        raise _DamageError(f"{name} {NO_CHECKSUM}")


def _described(path: Path, record: Mapping[str, Any], own: Sequence[type]) -> RunRecord:
    """What config.json says; "foreign" if it says something else."""
    foreign = RunRecord(path, "foreign", _FOREIGN)
    values, seed = record.get("config"), record.get("seed")
    if not isinstance(values, dict) or type(values.get("epochs")) is not int:
        return foreign
    if type(seed) is not int or not 0 <= seed < 2**32:
        return foreign
    sources, data = record.get("sources", {}), record.get("data")
    if not isinstance(sources, dict) or not isinstance(data, dict | None):
        return foreign
    try:
        begun_with(record)
        given = migrate(values, check_schema(record))
        config: Config | None = Config.from_json(given, own)
    except SchemaError as error:
        return replace(foreign, reason=f"its config.json {error}")
    except (ValueError, TypeError) as error:
        unknown = _unknown_description(given, sources) if _of_description(error) else str(error)
        if unknown:
            return replace(foreign, reason=f"{_FOREIGN} or version: {unknown}")
        config = None  # described by classes of the user's
    if config is not None and sources and sources != config.sources:
        config = None  # by classes that have changed since
    name = plain(str(record.get("name", "")))
    return RunRecord(path, "", "", config, given, seed, name=name, sources=sources, data=data)


_CLASSES: tuple[type, ...] = (*TASKS, *CELLS, *MOMENTA, *INITS)
_OURS = {kind.__name__ for kind in _CLASSES}
_DESCRIBED = ("task", "cell", "momentum", "init")


def _of_description(error: Exception) -> bool:
    """Whether an error is of a description, which may be that of a user's class."""
    return str(error).startswith(tuple(f"{name}:" for name in _DESCRIBED))


def _unknown_description(values: Mapping[str, Any], sources: Mapping[str, str]) -> str:
    """What is wrong with a description by a class of ours, such as a newer version's; "" if nothing is."""
    for name in _DESCRIBED:
        text = str(values[name])
        if text.partition("(")[0] in _OURS and not any(own in text for own in sources):
            try:
                read_field(name, text)
            except ValueError as error:
                return str(error)
    return ""


def _state(run: RunRecord, result: Any, epochs: int, alive: bool) -> tuple[str, str]:
    """The state of a run that is no damaged one, and the reason for it."""
    wanted = run.given["epochs"]
    if alive:
        return "running", f"epoch {epochs} of {wanted}"
    if result is not None and result["frozen"]:
        return "frozen", f"at step {result['frozen']['step']}"
    if result is not None and result.get("stopped"):
        return "stopped", f"after epoch {epochs} of {wanted}: {plain(str(result['stopped'].get('reason')))}"
    if result is None or epochs < wanted:
        return "short", f"epoch {epochs} of {wanted}"
    return "done", f"epochs: {epochs}"


_NAME = re.compile(r"[a-z0-9_-]+-\d+-[0-9a-f]{10}-s\d+")


def _content(path: Path, record: Mapping[str, Any], result: Any, alive: bool) -> tuple[bytes, bool]:
    """What metrics.jsonl has, and whether it is what checkpoint and result know of it.

    What a killed process wrote after its last checkpoint is left out, since nothing vouches for it. record:
    what config.json says.
    """
    checkpoint, known = path / "resume.pt", (result or {}).get("metrics_file")
    size, sealed = known.get("size") if isinstance(known, dict) else None, begun_with(record) > 1
    needed = known is not None or (sealed and result is not None)
    if needed and (type(size) is not int or size < 0):
        raise _DamageError("result.json should say the size of metrics.jsonl, and its SHA-256")
    # A checkpoint is written before the first line.
    begun_only = "schema" in record and result is None and not checkpoint.exists()
    records = [_of_checkpoint(checkpoint, sealed), known]
    if begun_only:
        records = [RunningHash().record]
    try:
        content = (path / "metrics.jsonl").read_bytes()
    except FileNotFoundError:
        content = b""
    except OSError as error:
        raise RunError(f"metrics.jsonl can't be read: {error.strerror}") from None
    if begun_only and content:
        if checkpoint.exists():  # written meanwhile
            return _content(path, record, result, alive)
        raise _DamageError("resume.pt is missing, and nothing else vouches for metrics.jsonl")
    try:
        parts = [check_metrics(content, record) for record in records if record is not None]
    except ChecksumError as error:
        raise _DamageError(f"metrics.jsonl {error}") from None
    if not parts:
        return content, False
    return content if alive else max(parts, key=len), True


def _of_checkpoint(path: Path, sealed: bool) -> dict[str, Any] | None:
    """What the checkpoint knows of metrics.jsonl; None where there is none, or one of an older version.

    sealed: whether it can't be of an older version.
    """
    try:
        record = read_trailer(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{path.name} can't be read: {error.strerror}") from None
    except ChecksumError as error:
        raise _DamageError(f"{path.name} {error}") from None
    _check_sealed(path.name, record is not None, sealed)
    return record


def _lines(content: bytes) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; refuses those that contradict each other."""
    # A process that was killed may have left half a line.
    *whole, _ = content.split(b"\n")
    try:
        lines = [json.loads(line) for line in whole]
    except (ValueError, RecursionError):
        lines = [None]
    if not all(isinstance(line, dict) and type(line.get("step")) is int for line in lines):
        raise _DamageError("metrics.jsonl should have a JSON object with a step in each line")
    epochs = [line for line in lines if "epoch" in line]
    if [line["epoch"] for line in epochs] != list(range(1, len(epochs) + 1)):
        raise _DamageError("metrics.jsonl does not count its epochs from 1 by 1")
    for kind in ([line for line in lines if "epoch" not in line], epochs):
        steps = [0, *(line["step"] for line in kind)]
        if any(later <= former for former, later in pairwise(steps)):
            raise _DamageError("metrics.jsonl has steps that don't rise")
    if any(line["step"] != line["epoch"] * epochs[0]["step"] for line in epochs):
        raise _DamageError("metrics.jsonl has epochs of several lengths")
    for line in lines:
        needed = line.get("train_loss" if "epoch" in line else "loss")
        if needed is None or not all(_is_number(key, value) for key, value in line.items()):
            raise _DamageError(f"metrics.jsonl has something odd at step {line['step']}")
    return lines


def _is_number(key: str, value: Any) -> bool:
    """Whether a value can be; null stands for one that was not finite."""
    if value is None:
        return True
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        return False
    return 0 <= value <= 1 if key.endswith("_accuracy") else True


def _check(result: Any, epochs: list[dict[str, Any]], run: RunRecord) -> None:
    """Refuse a result that is of another run, or says what the metrics don't."""
    if not isinstance(result, dict) or not {"id", "seed", "epochs", "frozen", "selected"} <= set(result):
        raise _DamageError("result.json is of another kind")
    frozen, count, lines = result["frozen"], result["epochs"], result["selected"]
    if frozen is not None and not (isinstance(frozen, dict) and type(frozen.get("step")) is int):
        raise _DamageError("result.json should say at which step it was frozen")
    if not isinstance(result.get("stopped"), dict | None):
        raise _DamageError("result.json should say why it was stopped")
    if result["seed"] != run.seed or result["id"] != run.id:
        raise _DamageError(f"result.json is that of {result['id']}-s{result['seed']}")
    data = result.get("data")
    if run.data is not None and not (isinstance(data, dict) and same_data(run.data, data)):
        raise _DamageError("result.json is of other data than config.json")
    if type(count) is not int or not 0 <= count <= len(epochs):
        raise _DamageError(f"result.json has {count} epochs, metrics.jsonl {len(epochs)}")
    if not isinstance(lines, dict) or any(line not in [None, *epochs] for line in lines.values()):
        raise _DamageError("result.json has a line for an epoch that metrics.jsonl has not")
    if lines.get("last") != (epochs[count - 1] if count else None):
        raise _DamageError("result.json has another last epoch than metrics.jsonl")
    if run.config is None:
        return  # how it selects is the user's
    for part, rule in (("validation", "by_validation"), ("test", "by_test")):
        if lines.get(rule) != selected(epochs[:count], run.config.task.metric, part):
            raise _DamageError(f"result.json has another best epoch ({rule}) than metrics.jsonl")
