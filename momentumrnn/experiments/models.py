"""The network of an experiment: one recurrent layer and a linear output. Knows nothing of training."""

import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..constraints import orthogonal
from ..installation import install_command
from ..layers import Recurrent
from .config import Config, SchemaError
from .runs.checksums import ChecksumError, open_weights
from .runs.read import RunRecord, read
from .runs.store import HINT, RunError, check_schema, record_name
from .tasks import generator

WEIGHTS = "model.safetensors"
_RECORDS = ("config.json", "metrics.jsonl", "result.json", "resume.pt")
"""The other files of a run. Beside none of them, weights stand for themselves."""


class Model(nn.Module):
    """Reads sequences (T, B, D); answers at the last step, (B, outputs), or at each, (T, B, outputs)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        task, size = config.task, config.hidden_size
        self.every_step = task.every_step
        self.rnn = Recurrent(
            config.cell,
            task.features,
            size,
            bias=config.bias,
            momentum=config.momentum,
            init=config.init,
            dtype=torch.float32,
        )
        if config.orthogonal:
            orthogonal(self.rnn, init=None)
        self.head = nn.Linear(size, task.outputs, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            raise TypeError(f"x should have a floating-point dtype, got {x.dtype}: indices need an encoding")
        y, final = self.rnn(x.to(self.head.weight.dtype))
        if not self.every_step:
            y = (final if isinstance(final, Tensor) else final[0])[-1]
        out: Tensor = self.head(y)
        return out


def build(config: Config, seed: int) -> Model:
    """The network as a seed begins with it, on the CPU; the same on every machine, whatever ran before."""
    with torch.random.fork_rng([]):
        # torch.manual_seed would seed GPUs too.
        torch.default_generator.manual_seed(generator("init", seed).initial_seed())
        model = Model(config)
    # Drawn in float32, so that a seed begins with the same weights in every precision.
    return model.double() if config.precision == "float64" else model


def load(folder: str | Path, *own: type) -> Model:
    """The network of a run that is over, on the CPU, with the weights that validation selected.

    own: classes of yours that the run was described by, such as a task. The weights should be those that the
    run has written. A folder with model.safetensors alone is loaded by what that file says of itself.
    """
    folder = Path(folder)
    path, record = folder / WEIGHTS, _read_record(folder, own)
    name, result = (f"{record.id}-s{record.seed}", record.result) if record else (None, None)
    try:
        weights, note = read_weights(folder, name, result)
    except ImportError:
        raise RunError(f"safetensors should be installed: {install_command('all')}") from None
    except WeightsError as error:
        raise RunError(f"{path} {error}: {_advice(folder, record)}") from None
    try:
        config = Config.from_json(note["config"], own, check_schema(note))
    except SchemaError as error:
        raise RunError(f"{path} {error}") from None
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise RunError(
            f"{path} can't be loaded ({_in_a_line(error)}): give load the classes of yours that describe the "
            "run, or take the version of momentumrnn that wrote it"
        ) from None
    try:
        model = build(config, 0)
        model.load_state_dict(weights)
    except (RuntimeError, TypeError, ValueError) as error:
        raise RunError(
            f"{path} should have the weights of a run, got something else ({_in_a_line(error)}): "
            f"{_advice(folder, record)}"
        ) from None
    sources = note.get("sources", {})
    changed = sorted(name for name, digest in config.sources.items() if sources.get(name) != digest)
    if changed:
        names = ", ".join(changed)
        warnings.warn(
            f"{names} changed since {folder} was trained, or its source was not written down", stacklevel=2
        )
    return model


class WeightsError(ValueError):
    """Weights that are not those of a run; the text is the end of a sentence that begins with the file."""


def read_weights(
    folder: Path, name: str | None = None, result: Mapping[str, Any] | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights in a folder, and their note on the run that they are of.

    name: of that run, `<id>-s<seed>`, where it is known; result: the run's, if it has one. Weights that are
    damaged, or are those of another run or epoch, are refused by a WeightsError.
    """
    path = folder / WEIGHTS
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        weights, metadata, _ = open_weights(path)
    except FileNotFoundError:
        raise WeightsError("is not there") from None
    except OSError as error:
        raise WeightsError(f"can't be read: {error.strerror}") from None
    except ChecksumError as error:
        raise WeightsError(str(error)) from None
    note = _note(metadata)
    if name is not None and record_name(note) != name:
        raise WeightsError(f"has the weights of {record_name(note)}, and its folder is that of {name}")
    epoch = None if result is None else selected_epoch(result)
    if epoch is not None and note.get("epoch") != epoch:
        raise WeightsError(
            f"has the weights of epoch {note.get('epoch')}, and result.json is of those of {epoch}"
        )
    if result is not None and result.get("weights_file", digest) != digest:
        raise WeightsError("does not have the hash in result.json: it was changed after it was written")
    return weights, note


def selected_epoch(result: Mapping[str, Any]) -> int:
    """The epoch of the weights beside a result: without validation the last."""
    best = result["selected"].get("by_validation")
    return int(best["epoch"] if best else result["epochs"])


def _note(metadata: Mapping[str, str]) -> dict[str, Any]:
    """What weights say of the run that they are of."""
    try:
        note = json.loads(metadata["run"])
    except (KeyError, RecursionError, ValueError):
        note = None
    if not isinstance(note, dict) or not isinstance(note.get("sources", {}), dict) or not record_name(note):
        raise WeightsError("should have the weights of a run, got something else (it does not say of which)")
    return note


def _read_record(folder: Path, own: tuple[type, ...]) -> RunRecord | None:
    """What a folder says of its run; None where it has weights alone, or nothing."""
    if not any((folder / name).exists() for name in _RECORDS):
        return None
    record = read(folder, own)
    if record.state in ("damaged", "foreign"):
        raise RunError(
            f"{folder} can't be loaded, since it is {record.state} ({record.reason}): put back a copy of it, "
            f"or {HINT}"
        )
    return record


def _advice(folder: Path, record: RunRecord | None) -> str:
    """What can be done about weights that are missing or wrong."""
    is_over, is_there = record is not None and record.result is not None, (folder / WEIGHTS).exists()
    if not is_over and not is_there:
        return "load takes the folder of a run that is over"
    if (folder / "resume.pt").exists():
        return "give the command of the run again, which writes it again from the checkpoint"
    return f"without resume.pt it can't be written again; put back a copy of it, or {HINT}"


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split())
