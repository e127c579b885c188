"""Means, intervals and verdicts. Knows no runs and no files."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from ..paper import Published

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A difference and its interval of confidence; no ends where one value is all there is."""

    value: float
    low: float | None = None
    high: float | None = None


def against_paper(values: Sequence[float], paper: Published) -> Interval:
    """The mean of ours less what is printed.

        m - p ± t(ν) sqrt(s² / n + s_p² / n_p),    ν after Welch

    Where no deviation is printed p is taken as exact.

    >>> found = against_paper([93.0, 93.2, 93.1], Published(93.4, 0.25))
    >>> round(found.value, 2), round(found.low, 2), round(found.high, 2)
    (-0.3, -0.61, 0.01)
    """
    own = _variance(values)
    theirs = None if paper.std is None else (paper.std**2 / paper.seeds, paper.seeds - 1)
    return _around(mean(values) - paper.value, own, theirs)


def against_seeds(values: Mapping[int, float], others: Mapping[int, float]) -> Interval:
    """The mean of `values` less that of `others`, by seed: over the differences of seeds that both have.

    A seed fixes weights and data at the beginning, so differences of a seed vary less than the values do.
    With fewer than two seeds in common, Welch's interval of two independent sets.

    >>> against_seeds({0: 2.0, 1: 3.0}, {0: 1.0, 1: 2.0})
    Interval(value=1.0, low=1.0, high=1.0)
    """
    common = sorted(values.keys() & others.keys())
    if len(common) > 1:
        differences = [values[seed] - others[seed] for seed in common]
        return _around(mean(differences), _variance(differences), None)
    first, second = list(values.values()), list(others.values())
    own, theirs = _variance(first), _variance(second)
    return _around(mean(first) - mean(second), own if theirs else None, theirs)


def verdict(values: Sequence[float], paper: Published) -> str:
    """How ours stand to what is printed: by its deviations or, where it prints none, by the interval.

    What is printed with few digits may have been anything that is rounded so.

    >>> paper = Published(93.4, 0.25)
    >>> verdict([93.0, 93.2, 93.1], paper), verdict([90.0, 90.1], paper), verdict([91.0, 95.0], paper)
    ('within two sd', 'lower', 'undecided: seeds differ too much')
    """
    interval = against_paper(values, paper)
    if interval.low is None or interval.high is None:
        return "one seed: no verdict"
    # A hair more, for what is on a border but for the rounding of numbers here.
    far, hair = abs(interval.value), 1 + 1e-9
    if paper.rounding and far <= paper.rounding * hair:
        return "the same, as printed"
    side = "higher" if interval.value > 0 else "lower"
    seen = not interval.low - paper.rounding <= 0 <= interval.high + paper.rounding
    if paper.std is None:
        return side if seen else "no difference seen"
    wide = interval.high - interval.low > 8 * paper.std
    if far > 2 * paper.std * hair or wide:
        return side if seen else "undecided: seeds differ too much"
    within = "within one sd" if far <= paper.std * hair else "within two sd"
    return f"{within}, {side}" if seen else within


def compared(interval: Interval, better: int) -> str:
    """What an interval of (with momentum - control) says; better: the sign of what is better."""
    if interval.low is None or interval.high is None:
        return "one seed: no verdict"
    if interval.low <= 0 <= interval.high:
        return "no difference seen"
    return "momentum better" if interval.value * better > 0 else "control better"


def _variance(values: Sequence[float]) -> tuple[float, int] | None:
    """The variance of the mean, and its degrees of freedom."""
    return (stdev(values) ** 2 / len(values), len(values) - 1) if len(values) > 1 else None


def _around(value: float, first: tuple[float, int] | None, second: tuple[float, int] | None) -> Interval:
    from scipy.stats import t

    if first is None:
        return Interval(value)
    parts = [first] if second is None else [first, second]
    total = math.fsum(variance for variance, _ in parts)
    if not total:
        return Interval(value, value, value)
    freedom = total**2 / math.fsum(variance**2 / count for variance, count in parts)
    reach = float(t.ppf((1 + LEVEL) / 2, freedom)) * math.sqrt(total)
    return Interval(value, value - reach, value + reach)
