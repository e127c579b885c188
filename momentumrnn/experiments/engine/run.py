"""One seed while it is trained: how far it is, what it has found, what its checkpoint holds."""

import math
from collections.abc import Mapping
from typing import Any

from ...constraints import count_parameters
from ..models import Model
from ..runs.neighbours import check_data
from ..runs.read import RunRecord, read, selected
from ..runs.store import HINT, Folder, RunError

# What a checkpoint holds of a run under its own name; "stopped" and "data" came later.
_PROGRESS = ("step", "losses", "norms", "frozen", "best", "state")
_RECORDS = ("seconds", "training_seconds", "trained", "sessions")
_SAVED: tuple[str, ...] = (*_PROGRESS, *_RECORDS)


class Run:
    """One seed in training.

    seed, config, folder; done: whether it had its result before this call; step: the steps taken; epochs: the
    lines of metrics.jsonl for epochs, the last one last; losses, norms: of the steps of this epoch; frozen,
    stopped: why it ended early, if it did; threads: of the CPU, for its steps and evaluations.
    """

    def __init__(self, folder: Folder, model: Model, samples: int, data: Mapping[str, str]) -> None:
        self.folder, self.seed, self.config = folder, folder.seed, folder.config
        self.model, self.steps_per_epoch = model, -(-samples // folder.config.batch_size)
        self.parameters = count_parameters(model)
        self.done = False  # as the result says that is there already
        self.step = 0
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.epochs: list[dict[str, Any]] = []
        self.frozen: dict[str, Any] | None = None
        self.stopped: dict[str, Any] | None = None
        self.reason_to_stop: str | None = None  # what `stop` was told, until training comes to it
        self.stuck = False  # where all gradients are too large to be clipped
        self.best: dict[str, Any] | None = None
        self.state: dict[str, Any] | None = None  # the weights and the optimiser's state
        self.seconds = self.training_seconds = 0.0
        self.trained = 0  # samples that training_seconds stand for
        self.samples = samples
        self.data = dict(data)
        self.threads = 1
        self.sessions: list[dict[str, Any]] = []

    def stop(self, reason: str) -> None:
        """End this run early, with a checkpoint, weights, and a result that says why; for a `Watcher`.

        An epoch that was trained is evaluated first. At its last step a run is done, not stopped.
        """
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(f"reason should be a text that says why the run is stopped, got {reason!r}")
        self.reason_to_stop = reason

    @property
    def last(self) -> int:
        """The step that ends it."""
        return self.config.epochs * self.steps_per_epoch

    @property
    def halted(self) -> bool:
        """Whether it ended before its last step."""
        return self.frozen is not None or self.stopped is not None

    @property
    def over(self) -> bool:
        """Whether nothing is left to do: no step, and no epoch to evaluate."""
        return self.done or self.halted or (self.step >= self.last and not self.due)

    @property
    def due(self) -> bool:
        """Whether it has come to the end of an epoch and was not evaluated there."""
        at_end = self.step % self.steps_per_epoch == 0
        return at_end and not self.halted and len(self.epochs) < self.step // self.steps_per_epoch

    @property
    def epochs_without_gain(self) -> int:
        """Epochs since the one that is best on the validation set."""
        best = selected(self.epochs, self.config.task.metric, "validation")
        return len(self.epochs) - (best["epoch"] if best else 0)

    def load(self) -> None:
        """Take over what its folder has."""
        written = self._written()
        result = written.result if written else None
        trained = int(result["epochs"]) if result else 0
        ended = bool(result and (result["frozen"] or result.get("stopped")))
        self.done = trained >= self.config.epochs or ended
        state = self.folder.load()
        for hashes in (
            written.data if written else None,
            result.get("data") if result else None,
            state.get("data") if state else None,
        ):
            check_data(self.folder.path, hashes, self.data)
        if state is not None:
            self._take_over(state)
        elif trained and not self.done:
            raise RunError(
                f"{self.folder.path} has a result of {trained} epochs and no checkpoint to go on from: "
                f"take as many --epochs, or {HINT}"
            )
        elif not self.done:
            self.folder.rewind({"size": 0})

    def _written(self) -> RunRecord | None:
        """What the folder says of this run; None if nothing is there yet."""
        path = self.folder.path
        if not (path / "config.json").exists():
            return None
        own = [type(value) for value in self.config.descriptions.values() if value is not None]
        record = read(path, own, locked=True)
        if record.state in ("damaged", "foreign"):
            raise RunError(f"{path}: {record.reason}; {HINT}")
        return record

    def _take_over(self, state: Mapping[str, Any]) -> None:
        try:
            for name in _SAVED:
                setattr(self, name, state[name])
            self.stopped = state.get("stopped")
            self.model.load_state_dict(state["state"]["weights"])
        except (KeyError, TypeError, RuntimeError):
            raise self.foreign_checkpoint() from None
        if self.step > self.last and not self.done:
            raise RunError(
                f"{self.folder.path} is at step {self.step}, and {self.config.epochs} epochs end at "
                f"{self.last}: take more --epochs, or {HINT}"
            )
        self.epochs = [line for line in self.folder.rewind(state["metrics"]) if "epoch" in line]

    def foreign_checkpoint(self) -> RunError:
        """The error that says that the checkpoint is of another network."""
        path = self.folder.path / "resume.pt"
        return RunError(
            f"{path} is of another network or lacks something: move its folder away to train afresh"
        )

    def save(self) -> None:
        """Write the checkpoint."""
        values = {name: getattr(self, name) for name in _SAVED}
        size = self.folder.metrics.record["size"]
        self.folder.save({**values, "stopped": self.stopped, "data": self.data, "size": size})

    def log(self, *lines: dict[str, Any]) -> None:
        """Add lines to metrics.jsonl."""
        self.folder.append(lines)


def mean(values: list[float]) -> float:
    """The mean, which does not overflow."""
    return math.fsum(value / len(values) for value in values)


def finite(value: float) -> float | None:
    """The value as JSON has it: None if it is not finite."""
    return value if math.isfinite(value) else None
