"""Numbers in words: means, differences, published numbers, and how many of them there are."""

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev

from ..experiments.paper.published import SOURCES, Published
from ..experiments.runs.gather import Outcome
from .statistics import Interval

NOT_RUN = "not run"
QUOTED = {
    "helfrich2018": "Helfrich",
    "vorontsov2017": "Vorontsov",
    "wisdom2016": "Wisdom",
    "casado2019trivializations": "Lezcano-Casado",
    "helfrich2018+lezcano2019cheap": "Helfrich, Lezcano-Casado",
    "merity2018": "Merity",
}
"""The authors of each work that the paper quotes, in short."""


def sources() -> list[str]:
    """The works that the paper quotes, with their short names."""
    return [f"{QUOTED[key]}: {words}" for key, words in SOURCES.items() if key != "paper"]


def published_numbers(published: Sequence[Published], digits: int) -> str:
    """The published numbers. A quoted number is followed by the authors it comes from."""
    parts = []
    for number in published:
        value = f"{number.value:.{digits}f}" if digits == 2 else f"{number.value:g}"
        deviation = "" if number.std is None else f" ± {number.std:.2f}"
        authors = f" ({QUOTED[number.source]})" if number.quoted else ""
        parts.append(f"{value}{deviation}{authors}")
    return "; ".join(parts) or "-"


def spread(values: Mapping[int, float], digits: int, count: bool = False) -> str:
    """Mean ± sample standard deviation; count: with the number of values after them.

    >>> spread({0: 1.0, 1: 2.0}, 2, count=True)
    '1.50 ± 0.71 (2)'
    """
    finite = [value for value in values.values() if math.isfinite(value)]
    if not finite:
        return ""
    deviation = f" ± {stdev(finite):.{digits}f}" if len(finite) > 1 else ""
    number = f" ({len(finite)})" if count else ""
    return f"{mean(finite):.{digits}f}{deviation}{number}"


def deviation(values: Mapping[int, float]) -> float | None:
    """The sample standard deviation. None for fewer than two values."""
    return stdev(values.values()) if len(values) > 1 else None


def signed(interval: Interval | None, digits: int) -> str:
    """A difference and its interval as text, such as "+0.14 [-0.05, +0.34]"."""
    if interval is None:
        return ""
    value, *ends = (
        # No -0.00.
        f"{round(number, digits) + 0.0:+.{digits}f}"
        for number in (interval.value, interval.low, interval.high)
        if number is not None
    )
    return f"{value} [{', '.join(ends)}]" if ends else value


def rounded(value: float, digits: int = 3) -> str:
    """A number with so many digits that count.

    >>> rounded(0.010888), rounded(1131.7), rounded(12.0375, 4)
    ('0.0109', '1130', '12.04')
    """
    return f"{float(f'{value:.{digits}g}'):.10g}"


def counted(count: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "seed"), counted(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{count} {noun}{'s' * (count != 1)}"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> listed(["LSTM"]), listed(["LSTM", "GRU", "RNN"])
    ('LSTM', 'LSTM, GRU and RNN')
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def unfinished(outcome: Outcome) -> str:
    """The seeds that did not come to the end, in words: those that are short, and those that failed."""
    parts = [f"seed {seed}: epoch {epoch} of {outcome.epochs}" for seed, epoch in outcome.short.items()]
    if len(parts) > 2 and len({*outcome.short.values()}) == 1:
        parts = [f"{len(parts)} seeds: epoch {next(iter(outcome.short.values()))} of {outcome.epochs}"]
    if outcome.frozen:
        count = len(outcome.seeds) + len(outcome.short) + len(outcome.frozen)
        steps = ", ".join(f"seed {seed} at step {step}" for seed, step in outcome.frozen.items())
        parts.append(f"{len(outcome.frozen)} of {count} seeds failed (not finite: {steps})")
    return ", ".join(parts)
