"""Refuses a user's task whose rows, batches, losses or accuracies have the wrong shape or dtype."""

from typing import Any

import torch
from torch import Tensor

from ..config import Config
from ..models import build
from ..runs.store import RunError
from ..tasks import Data, Part, Rows

_SAMPLES = 3  # few, and a number that no other axis is likely to have
_PARTS: tuple[Part, ...] = ("validation", "test")


@torch.no_grad()
def check_task(config: Config, data: Data, seed: int) -> None:
    """Run a few samples through the network, and check what the task makes of them."""
    task, name = config.task, type(config.task).__name__
    rows = _check_rows(f"{name}.rows", task.rows(data, seed, 0))
    for part in _PARTS:
        held_out = task.held_out(data, part)
        if held_out is not None:
            _check_rows(f"{name}.held_out(..., {part!r})", held_out)
    rows = tuple(tensor[:_SAMPLES] for tensor in rows)
    count = len(rows[0])
    x, target = _check_batch(f"{name}.batch", task.batch(data.tensors, task.constants(seed), rows))
    _check_inputs(f"{name}.batch", x, count, task.features)
    out = build(config, seed)(x)
    loss, accuracy = task.loss(out, target), task.accuracy(out, target)
    _check_scores(f"{name}.loss", loss, count, ', with reduction="none"')
    if not loss.is_floating_point():
        raise RunError(f"{name}.loss should give losses of a floating-point dtype, got {loss.dtype}")
    if accuracy is not None or task.metric == "accuracy":
        _check_scores(f"{name}.accuracy", accuracy, count, "")


def _check_rows(name: str, rows: Any) -> Rows:
    """Refuse what is no tuple of tensors with an entry for each sample."""
    tensors: Rows = tuple(rows) if isinstance(rows, tuple | list) else ()
    whole = all(isinstance(tensor, Tensor) and tensor.dim() > 0 for tensor in tensors)
    if not tensors or not whole or len({len(tensor) for tensor in tensors}) > 1 or len(tensors[0]) == 0:
        raise RunError(
            f"{name} should give a tuple of tensors with an entry for each sample, and one sample at least, "
            f"got {_in_words(rows)}"
        )
    return tensors


def _check_batch(name: str, batch: Any) -> tuple[Tensor, Any]:
    """Refuse what is no pair of inputs and targets."""
    if not isinstance(batch, tuple | list) or len(batch) != 2 or not isinstance(batch[0], Tensor):
        raise RunError(f"{name} should give a tuple of inputs and targets, got {_in_words(batch)}")
    return batch[0], batch[1]


def _check_inputs(name: str, x: Tensor, count: int, features: int) -> None:
    """Refuse inputs that the network can't read."""
    if not x.is_floating_point():
        raise RunError(
            f"{name} should give inputs of a floating-point dtype, got {x.dtype}: integers such as tokens "
            "need an encoding, for example one-hot"
        )
    if x.dim() != 3 or len(x) == 0 or x.shape[1:] != (count, features):
        raise RunError(
            f"{name} should give inputs of shape (T, B, features) = (T, {count}, {features}) for {count} "
            f"samples, got {tuple(x.shape)}"
        )


def _check_scores(name: str, scores: Any, count: int, how: str) -> None:
    """Refuse what is no number for each sample."""
    if not isinstance(scores, Tensor) or scores.shape != (count,):
        raise RunError(
            f"{name} should give a number for each sample, of shape ({count},) for {count} samples{how}, got "
            f"{_in_words(scores)}"
        )


def _in_words(value: Any) -> str:
    """What came, in short: of tensors dtype and shape."""
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of [{', '.join(map(_in_words, value))}]"
    return f"{value!r}"[:80]
