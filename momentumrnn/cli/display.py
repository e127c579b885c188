"""How training shows itself: a table that moves on a terminal, else a line for each epoch."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from ..experiments import Config
from ..experiments.config import in_words
from ..experiments.trainer import Run, Watcher, selected
from .words import several

SILENCE, FIRST = 60.0, 10.0  # seconds without a word, at most; at the beginning


@contextmanager
def display(console: Console, title: str = "") -> Iterator["Lines"]:
    """A watcher for `train`: the one for this console. title: in place of a description of the Config."""
    if not console.is_terminal:
        yield Lines(console, title)
        return
    screen = Screen(console, title)
    try:
        yield screen
    finally:
        screen.live.stop()


class Lines(Watcher):
    """Where there is no terminal: a line at the beginning, one for each epoch, and notes."""

    def __init__(self, console: Console, title: str) -> None:
        self.console, self.title = console, title
        self.trained = False
        self.runs: Sequence[Run] = ()
        self.fresh: list[Run] = []

    def begin(self, config: Config, runs: Sequence[Run], device: str) -> None:
        self.trained, self.config, self.runs = True, config, runs
        self.started, self.before = time.monotonic(), self._steps()
        seeds = several([run.seed for run in runs])
        self._say(
            f"{self.title or label(config)}: seeds {seeds} on {device}, {runs[0].parameters} parameters"
        )
        self.said -= SILENCE - FIRST
        done = [run for run in runs if run.over]
        ahead = {run.step for run in runs if run.step and not run.over}
        if done:
            self._say(f"done already: seeds {several([run.seed for run in done])}")
        if ahead:
            self._say(f"goes on at step {', '.join(map(str, sorted(ahead)))}")

    def progress(self, runs: Sequence[Run]) -> None:
        if not self.fresh and time.monotonic() - self.said > SILENCE:
            step = max(run.step for run in runs)
            self._say(f"step {step} of {runs[0].last}, {self.pace()}")
        if self.fresh:
            run = self.fresh[-1]
            epoch, of = run.epochs[-1]["epoch"], self.config.epochs
            metric = self.config.task.metric
            part = "validation" if f"validation_{metric}" in run.epochs[-1] else "test"
            values = [f"{each.seed}:{self._value(each, part):.4f}" for each in self.fresh]
            losses = [f"{each.seed}:{each.epochs[-1]['train_loss']:.4f}" for each in self.fresh]
            found = f"loss {' '.join(losses)}  {part} {metric} {' '.join(values)}"
            self._say(f"epoch {epoch}/{of}  {found}  {self.pace()}")
            self.fresh = []

    def epoch(self, run: Run) -> None:
        self.fresh.append(run)

    def note(self, text: str) -> None:
        self._say(text)

    def _say(self, text: str) -> None:
        self.console.print(escape(text), highlight=False, soft_wrap=True)
        self.said = time.monotonic()

    def pace(self) -> str:
        """The rate, and the time that is left at it."""
        seconds, steps = time.monotonic() - self.started, self._steps() - self.before
        if not steps:
            return ""
        left = sum(max(0, run.last - run.step) for run in self.runs if run.frozen is None)
        rate = steps / seconds
        return f"{rate * self.config.batch_size:.0f} samples/s of all, {duration(left / rate)} left"

    def _steps(self) -> int:
        return sum(run.step for run in self.runs)

    def _value(self, run: Run, part: str) -> float:
        value = run.epochs[-1].get(f"{part}_{self.config.task.metric}")
        return float("nan") if value is None else float(value)


class Screen(Lines):
    """On a terminal: one line for each seed, and a bar for all."""

    def __init__(self, console: Console, title: str) -> None:
        super().__init__(console, title)
        self.live = Live(console=console, refresh_per_second=4)

    def begin(self, config: Config, runs: Sequence[Run], device: str) -> None:
        super().begin(config, runs, device)
        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), auto_refresh=False
        )
        self.task = self.bar.add_task("", total=sum(run.last for run in runs), completed=self._steps())
        self.live.start()
        self._draw()

    def progress(self, runs: Sequence[Run]) -> None:
        self.fresh = []
        self.bar.update(self.task, completed=self._steps(), description=self.pace())
        self._draw()

    def _draw(self) -> None:
        metric = self.config.task.metric
        table = Table(box=box.SIMPLE_HEAD)
        lines = [line for run in self.runs for line in run.epochs]
        part = "test" if lines and f"validation_{metric}" not in lines[-1] else "validation"
        for title in ("seed", "epoch", "step", "loss", f"{part} {metric}", "best", "test there"):
            table.add_column(title, justify="right")
        for run in self.runs:
            last = run.epochs[-1] if run.epochs else {}
            best = selected(run.epochs, metric, part) or {}
            known = [last.get(f"{part}_{metric}"), best.get(f"{part}_{metric}"), best.get(f"test_{metric}")]
            recent = run.losses[-self.config.log_every :]
            frozen = " frozen" if run.frozen else ""
            table.add_row(
                f"{run.seed}{frozen}",
                f"{run.step // run.steps_per_epoch}/{self.config.epochs}",
                str(run.step),
                f"{sum(recent) / len(recent):.4f}" if recent else "-",
                *("-" if value is None else f"{value:.4f}" for value in known),
            )
        self.live.update(Group(table, self.bar))


def label(config: Config) -> str:
    """A Config in a line."""
    return f"{config.task!r}, {in_words(config.to_json())}"


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(75), duration(600), duration(9000), duration(216_000)
    ('75 s', '10 min', '2.5 h', '2.5 days')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"
