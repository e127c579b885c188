"""Means, intervals, tests and verdicts. Knows no runs and no files."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from ..experiments.paper.published import Published

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

    >>> interval = against_paper([93.0, 93.2, 93.1], Published(93.4, 0.25))
    >>> round(interval.value, 2), round(interval.low, 2), round(interval.high, 2)
    (-0.3, -0.61, 0.01)
    """
    paper_variance = None if paper.std is None else (paper.std**2 / paper.seeds, paper.seeds - 1)
    return _interval(mean(values) - paper.value, _variance(values), paper_variance)


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
        return _interval(mean(differences), _variance(differences), None)
    first, second = list(values.values()), list(others.values())
    variance, other_variance = _variance(first), _variance(second)
    return _interval(mean(first) - mean(second), variance if other_variance else None, other_variance)


def between_published(first: Published, second: Published) -> Interval:
    """The first published mean minus the second, with Welch's interval. Both need a standard deviation.

    >>> interval = between_published(Published(0.0438, 0.0017), Published(0.0375, 0.0033))
    >>> round(interval.value, 4), round(interval.low, 4), round(interval.high, 4)
    (0.0063, 0.0022, 0.0104)
    """
    if first.std is None or second.std is None:
        raise ValueError(f"expected two published standard deviations, got {first.std} and {second.std}")
    parts = [(p.std**2 / p.seeds, p.seeds - 1) for p in (first, second) if p.std is not None]
    return _interval(first.value - second.value, parts[0], parts[1])


def geometric_ratio(values: Mapping[int, float], others: Mapping[int, float]) -> Interval:
    """The geometric mean of `values` divided by that of `others`, by seed. All must be positive.

    >>> geometric_ratio({0: 2.0, 1: 8.0}, {0: 1.0, 1: 4.0})
    Interval(value=2.0, low=2.0, high=2.0)
    """
    smallest = min([*values.values(), *others.values()])
    if smallest <= 0:
        raise ValueError(f"geometric means need positive values, got {smallest}")
    logs = [{seed: math.log2(value) for seed, value in side.items()} for side in (values, others)]
    difference = against_seeds(*logs)
    ends = (None if end is None else 2.0**end for end in (difference.low, difference.high))
    return Interval(2.0**difference.value, *ends)


def proportion(count: int, total: int) -> Interval:
    """A proportion with its exact interval (Clopper and Pearson).

    >>> interval = proportion(5, 10)
    >>> interval.value, round(interval.low, 3), round(interval.high, 3)
    (0.5, 0.187, 0.813)
    """
    from scipy.stats import binomtest

    if not 0 <= count <= total or total < 1:
        raise ValueError(f"count should be between 0 and total, and total at least 1, got {count} of {total}")
    interval = binomtest(count, total).proportion_ci(LEVEL, method="exact")
    return Interval(count / total, float(interval.low), float(interval.high))


def same_proportion(count: int, total: int, other_count: int, other_total: int) -> float:
    """The two-sided p value of Fisher's exact test: do both counts come from the same proportion?

    >>> round(same_proportion(5, 10, 0, 5), 3)
    0.101
    """
    from scipy.stats import fisher_exact

    for part, whole in ((count, total), (other_count, other_total)):
        if not 0 <= part <= whole:
            raise ValueError(f"a count should be between 0 and its total, got {part} of {whole}")
    table = [[count, total - count], [other_count, other_total - other_count]]
    return float(fisher_exact(table).pvalue)


def detectable(deviation: float, seeds: int, power: float = 0.8) -> float:
    """The difference that a paired test on so many seeds finds with this probability.

    deviation: the standard deviation of the differences, seed by seed; the test is two-sided, at 5 %.

    >>> round(detectable(1.0, 5), 2)
    1.68
    """
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    if seeds < 2 or not 0.5 <= power <= 0.99:
        raise ValueError(f"expected at least 2 seeds and a power in [0.5, 0.99], got {seeds} and {power}")
    critical = float(t.ppf((1 + LEVEL) / 2, seeds - 1))

    def excess_power(noncentrality: float) -> float:
        return float(nct.sf(critical, seeds - 1, noncentrality)) - power

    return deviation * float(brentq(excess_power, 0.0, 4 * critical)) / math.sqrt(seeds)


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
    # A little more, for what is on a border but for the rounding of numbers here.
    distance, slack = abs(interval.value), 1 + 1e-9
    if paper.rounding and distance <= paper.rounding * slack:
        return "the same, as printed"
    side = "higher" if interval.value > 0 else "lower"
    differs = not interval.low - paper.rounding <= 0 <= interval.high + paper.rounding
    if paper.std is None:
        return side if differs else "no difference seen"
    wide = interval.high - interval.low > 8 * paper.std
    if distance > 2 * paper.std * slack or wide:
        return side if differs else "undecided: seeds differ too much"
    within = "within one sd" if distance <= paper.std * slack else "within two sd"
    return f"{within}, {side}" if differs else within


def compared(interval: Interval, better: int, network: str = "momentum") -> str:
    """What an interval of (network - control) says.

    better: the sign of what is better; network: what the network is called
    """
    if interval.low is None or interval.high is None:
        return "one seed: no verdict"
    if interval.low <= 0 <= interval.high:
        return "no difference seen"
    return f"{network} better" if interval.value * better > 0 else "control better"


def _variance(values: Sequence[float]) -> tuple[float, int] | None:
    """The variance of the mean, and its degrees of freedom."""
    return (stdev(values) ** 2 / len(values), len(values) - 1) if len(values) > 1 else None


def _interval(value: float, first: tuple[float, int] | None, second: tuple[float, int] | None) -> Interval:
    """The interval around a value. first, second: variances of means; without the first there is none."""
    from scipy.stats import t

    if first is None:
        return Interval(value)
    parts = [first] if second is None else [first, second]
    total = math.fsum(variance for variance, _ in parts)
    if not total:
        return Interval(value, value, value)
    freedom = total**2 / math.fsum(variance**2 / count for variance, count in parts)
    half_width = float(t.ppf((1 + LEVEL) / 2, freedom)) * math.sqrt(total)
    return Interval(value, value - half_width, value + half_width)
