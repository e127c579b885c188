"""TensorBoard's files in the run folders, for those who ask for them."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...installation import install_command
from ..runs.store import RunError
from .run import Run


class Traces:
    """Writes the numbers of some runs for TensorBoard; of no runs, nothing."""

    def __init__(self, runs: Sequence[Run] = ()) -> None:
        self.writers: dict[int, Any] = {}
        if not runs:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise RunError(f"tensorboard should be installed: {install_command('track')}") from None
        for run in (run for run in runs if not run.over):
            self.writers[run.seed] = SummaryWriter(
                str(run.folder.path / "tensorboard"), purge_step=run.step + 1 if run.step else None
            )

    def write(self, run: Run, line: Mapping[str, Any]) -> None:
        """Add a line of metrics.jsonl."""
        for name in line.keys() - {"step", "epoch", "seconds"} if run.seed in self.writers else ():
            if line[name] is not None:
                self.writers[run.seed].add_scalar(name, line[name], line["step"])

    def close(self) -> None:
        """Write what is still in memory."""
        for writer in self.writers.values():
            writer.close()
