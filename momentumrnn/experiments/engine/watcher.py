"""Whoever wants to know how training goes, such as a display or a tracker of experiments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..config import Config
    from .run import Run


class Watcher:
    """Told of the progress of training; this one does nothing. Derive from it, and give it to `train`.

    Its methods are called from the thread that trains, so training waits for them. `run.stop(reason)` stops a
    run early.

    If a method raises, all that was trained is saved first; the same call of `train` continues. The call that
    raised is not made again, nor are those that were due beside it: `epoch` of the other seeds at the same
    step, and other notes. `end` of the other seeds is called then, after `begin`.
    """

    def begin(self, config: Config, runs: Sequence[Run], device: str) -> None:
        """Something is about to be done: steps, or results that are left to write.

        runs: all seeds of the call. One with `done` had its result before, and `end` is not called for it.
        """

    def progress(self, runs: Sequence[Run]) -> None:
        """Some steps were taken."""

    def epoch(self, run: Run) -> None:
        """A run has finished another epoch, the last line in `run.epochs`."""

    def end(self, run: Run, result: dict[str, Any]) -> None:
        """A run is over, and its result is written."""

    def note(self, text: str) -> None:
        """Something that a user should read."""
