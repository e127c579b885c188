"""What a plot of the report is: lines with a band over seeds, as numbers. Knows no plotting library."""

import math
from dataclasses import dataclass
from statistics import median

INK = "#000000"
"""The colour of text. A page in dark mode draws such a line in its own colour of text."""


@dataclass(frozen=True)
class Series:
    """A line: the median over seeds, with the lowest and the highest. One seed that fails moves it little."""

    name: str
    colour: str
    dash: str
    seeds: tuple[int, ...]
    steps: tuple[int, ...]
    epochs: tuple[float, ...]
    middle: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    cut: str = ""
    """The seeds that stop before the end, in words."""
    control: bool = False
    label: str = ""
    """A shorter name, for the end of the line."""

    @property
    def late(self) -> float:
        """The median of its second half."""
        return median(self.middle[len(self.middle) // 2 :])


@dataclass(frozen=True)
class Plot:
    """Lines over the same axes.

    absent: the names of the networks that were not run; later: why they can't be run yet.
    """

    name: str
    title: str
    quantity: str
    series: tuple[Series, ...]
    absent: tuple[str, ...] = ()
    later: str = ""
    log: bool = True
    level: float | None = None
    """The value of a network without memory."""
    controls: bool = True
    """Whether controls are shown when the page opens, and in still pictures."""

    @property
    def shown(self) -> tuple[Series, ...]:
        """The lines that are shown when the page opens."""
        return tuple(line for line in self.series if self.controls or not line.control)

    @property
    def window(self) -> tuple[float, float] | None:
        """The range of a linear axis. It leaves out the first steps, in which all lines rise alike."""
        high = max((value for line in self.series for value in line.high), default=0.0)
        # Every line that comes near the highest is in it for most of its second half. A line that falls for
        # a while leaves the picture, so that it does not flatten the others.
        near = [line for line in self.series if line.late > high / 2]
        values = sorted(value for line in near for value in line.middle)
        if self.log or len(values) < 50:
            return None
        low = min(values[len(values) // 10], *(line.late for line in near))
        return low - (high - low) / 10, high + (high - low) / 10

    @property
    def below(self) -> str:
        """The names of the lines below the window: they never come near the others."""
        low = self.window[0] if self.window else -math.inf
        return ", ".join(line.name for line in self.series if line.late < low)

    @property
    def alt(self) -> str:
        """The plot in words, for readers who can't see it."""
        if not self.series:
            return f"{self.title}, {self.quantity}: {self.later or 'not run'}."
        ends = [
            f"{line.name} {line.middle[-1]:.4g} after {line.steps[-1]} steps (seeds: {len(line.seeds)})"
            for line in self.series
        ]
        return f"{self.title}: {self.quantity} by training steps. Last values: {'; '.join(ends)}."
