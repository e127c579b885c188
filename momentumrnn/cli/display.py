"""How training shows itself: a table that moves on a terminal, else a line for each epoch."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from ..experiments import Config
from ..experiments.config import in_words
from ..experiments.engine.run import Run
from ..experiments.engine.watcher import Watcher
from ..experiments.runs.read import plain, selected
from ..experiments.settings import effective
from .options import seed_ranges

SILENCE, FIRST = 60.0, 10.0  # seconds without a word, at most; at the beginning


@contextmanager
def display(console: Console, title: str = "", places: Mapping[str, str] | None = None) -> Iterator["Lines"]:
    """A watcher for `train`: the one for this console.

    title: in place of a description of the Config. places: options that no watcher is told of, such as root;
    if they are given, all settings are shown before training.
    """
    if not console.is_terminal:
        yield Lines(console, title, places)
        return
    screen = Screen(console, title, places)
    try:
        yield screen
    finally:
        screen.live.stop()


class Lines(Watcher):
    """Where there is no terminal: a line at the beginning, one for each epoch, and notes."""

    def __init__(self, console: Console, title: str, places: Mapping[str, str] | None) -> None:
        self.console, self.title, self.places = console, title, places
        self.trained = False
        self.runs: Sequence[Run] = ()
        self.just_evaluated: list[Run] = []

    def begin(self, config: Config, runs: Sequence[Run], device: str) -> None:
        self.trained, self.config, self.runs = True, config, runs
        self.started, self.steps_before = time.monotonic(), self._steps()
        seeds = seed_ranges([run.seed for run in runs])
        title = self.title or describe(config)
        self._say(f"{title}: seeds {seeds} on {device}, {runs[0].parameters} parameters")
        if self.places is not None:
            self._say("\n".join(["settings (change one by --set):", *self._settings(device)]))
        self.last_words -= SILENCE - FIRST
        done = [run.seed for run in runs if run.over]
        begun = {run.step for run in runs if run.step and not run.over}
        if done:
            self._say(f"done already: seeds {seed_ranges(done)}")
        if begun:
            self._say(f"goes on at step {', '.join(map(str, sorted(begun)))}")

    def progress(self, runs: Sequence[Run]) -> None:
        if not self.just_evaluated and time.monotonic() - self.last_words > SILENCE:
            step = max(run.step for run in runs)
            self._say(f"step {step} of {runs[0].last}, {self.pace()}")
        self._say_epoch()

    def epoch(self, run: Run) -> None:
        self.just_evaluated.append(run)

    def note(self, text: str) -> None:
        self._say_epoch()  # a note may be about it
        self._say(text)

    def pace(self) -> str:
        """The rate, and the time that is left at it."""
        seconds, steps = time.monotonic() - self.started, self._steps() - self.steps_before
        if not steps:
            return ""
        left = sum(max(0, run.last - run.step) for run in self.runs if not run.halted)
        rate = steps / seconds
        return f"{rate * self.config.batch_size:.0f} samples/s of all, {duration(left / rate)} left"

    def _settings(self, device: str) -> list[str]:
        """All that decides what is trained, a line for each setting."""
        threads = ", ".join(map(str, sorted({run.threads for run in self.runs})))
        options = {
            "seeds": seed_ranges([run.seed for run in self.runs]),
            **(self.places or {}),
            "device": device,
            "threads": f"{threads} for each seed" if device == "cpu" else threads,
        }
        lines = [*effective(self.config), *(f"{name}: {value}" for name, value in options.items())]
        return [f"  {line}" for line in lines]

    def _say_epoch(self) -> None:
        """Say what the runs came to that have just ended an epoch."""
        if not self.just_evaluated:
            return
        last_lines = {run.seed: run.epochs[-1] for run in self.just_evaluated}
        line = self.just_evaluated[-1].epochs[-1]
        metric = self.config.task.metric
        part = "validation" if f"validation_{metric}" in line else "test"
        values = [f"{seed}:{_number(last, f'{part}_{metric}'):.4f}" for seed, last in last_lines.items()]
        losses = [f"{seed}:{last['train_loss']:.4f}" for seed, last in last_lines.items()]
        results = f"loss {' '.join(losses)}  {part} {metric} {' '.join(values)}"
        self._say(f"epoch {line['epoch']}/{self.config.epochs}  {results}  {self.pace()}")
        self.just_evaluated = []

    def _say(self, text: str) -> None:
        self.console.print(escape(text), highlight=False, soft_wrap=True)
        self.last_words = time.monotonic()

    def _steps(self) -> int:
        return sum(run.step for run in self.runs)


class Screen(Lines):
    """On a terminal: one line for each seed, and a bar for all."""

    def __init__(self, console: Console, title: str, places: Mapping[str, str] | None) -> None:
        super().__init__(console, title, places)
        self.live = Live(console=console, refresh_per_second=4)

    def begin(self, config: Config, runs: Sequence[Run], device: str) -> None:
        super().begin(config, runs, device)
        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), auto_refresh=False
        )
        self.task = self.bar.add_task("", total=self._steps_in_all(), completed=self._steps())
        self.live.start()
        self._draw()

    def epoch(self, run: Run) -> None:
        """The table has a line for it."""

    def progress(self, runs: Sequence[Run]) -> None:
        self.bar.update(
            self.task, total=self._steps_in_all(), completed=self._steps(), description=self.pace()
        )
        self._draw()

    def _steps_in_all(self) -> int:
        """Those that all runs come to, as far as that is known."""
        return sum(run.step if run.halted else run.last for run in self.runs)

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
            values = [last.get(f"{part}_{metric}"), best.get(f"{part}_{metric}"), best.get(f"test_{metric}")]
            recent = run.losses[-self.config.log_every :]
            table.add_row(
                f"{run.seed}{early_end(run.frozen, run.stopped)}",
                f"{run.step // run.steps_per_epoch}/{self.config.epochs}",
                str(run.step),
                f"{sum(recent) / len(recent):.4f}" if recent else "-",
                *("-" if value is None else f"{value:.4f}" for value in values),
            )
        self.live.update(Group(table, self.bar))


def describe(config: Config) -> str:
    """A Config in a line."""
    return f"{config.task!r}, {in_words(config.to_json())}"


def early_end(frozen: Mapping[str, Any] | None, stopped: Mapping[str, Any] | None) -> str:
    """What follows the number of a seed that ended before its last epoch: why; "" for another.

    >>> early_end(None, {"epoch": 3, "reason": "enough"})
    ' (stopped after epoch 3: enough)'
    """
    if frozen:
        return f" (frozen at step {frozen['step']})"
    return f" (stopped after epoch {stopped['epoch']}: {plain(stopped['reason'])})" if stopped else ""


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


def _number(line: Mapping[str, Any], key: str) -> float:
    """A value of a line of metrics.jsonl; nan where it was not finite."""
    value = line.get(key)
    return float("nan") if value is None else float(value)
