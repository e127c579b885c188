"""Means, intervals and verdicts: against scipy called in another way, and at their borders."""

import math
import re
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from momentumrnn.experiments.paper.published import Published
from momentumrnn.experiments.paper.recipes import RECIPES
from momentumrnn.experiments.paper.tables import EXHIBITS
from momentumrnn.report.statistics import (
    Interval,
    against_paper,
    against_seeds,
    between_published,
    compared,
    detectable,
    geometric_ratio,
    proportion,
    same_proportion,
    verdict,
)

stats = pytest.importorskip("scipy.stats", reason="the report needs the extra momentumrnn[all]")

for_all = settings(derandomize=True, deadline=None, max_examples=60, database=None)
close = partial(pytest.approx, rel=1e-6, abs=1e-9)
# To four digits, as accuracies in per cent are: differences are large beside rounding, or none.
accuracies = st.integers(0, 10_000).map(lambda k: k / 100)
sets = st.lists(accuracies, min_size=2, max_size=7)
by_seed = st.dictionaries(st.integers(0, 9), accuracies, min_size=2, max_size=7)
printed = st.builds(Published, accuracies, st.integers(1, 200).map(lambda k: k / 100))
NO_SD = Published(2.0)
PRINTED_CURVES = [p for row in RECIPES.values() for p in row.published]
PUBLISHED = [p for exhibit in EXHIBITS.values() for line in exhibit.lines for p in line.published]
PRINTED = [p for p in dict.fromkeys(PUBLISHED) if p.std is not None]


def of_five(paper):
    """Five values with the printed mean and the printed sample deviation."""
    z = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    return paper.value + paper.std * z / z.std(ddof=1)


def ends(result):
    interval = result.confidence_interval(confidence_level=0.95)
    return interval.low, interval.high


@for_all
@given(sets, printed)
def test_against_the_paper(values, paper):
    """Welch's interval, as if the paper's five values were there."""
    assume(len(set(values)) > 1)
    theirs = of_five(paper)
    assert (theirs.mean(), theirs.std(ddof=1)) == close((paper.value, paper.std))
    interval = against_paper(values, paper)
    assert interval.value == close(np.mean(values) - paper.value)
    assert (interval.low, interval.high) == close(ends(stats.ttest_ind(values, theirs, equal_var=False)))


@for_all
@given(sets, accuracies)
def test_against_a_number_without_deviation(values, value):
    """It is exact: the interval is that of our mean alone."""
    assume(len(set(values)) > 1)
    interval = against_paper(values, Published(value))
    low, high = ends(stats.ttest_1samp(values, value))
    assert (interval.low, interval.high) == close((low - value, high - value))


def test_against_a_mean_without_spread():
    """Ours are all the same: what varies is the paper's."""
    interval = against_paper([93.0] * 3, Published(93.4, 0.25))
    low, high = ends(stats.ttest_1samp(of_five(Published(93.4, 0.25)), 0))
    assert (interval.low, interval.high) == close((93.0 - high, 93.0 - low))
    assert against_paper([93.0] * 3, Published(93.5)) == Interval(-0.5, -0.5, -0.5)


@for_all
@example({0: 1.0, 1: 2.5, 2: 1.5}, {2: 3.0, 6: 7.0, 7: 4.5})
@given(by_seed, by_seed)
def test_seed_by_seed(values, others):
    """Paired over the seeds that both have; without two of these, Welch's of two sets."""
    common = sorted(values.keys() & others.keys())
    if len(common) > 1:
        first, second = ([side[seed] for seed in common] for side in (values, others))
        test, varying = stats.ttest_rel, [np.subtract(first, second)]
    else:
        first, second = list(values.values()), list(others.values())
        test, varying = partial(stats.ttest_ind, equal_var=False), [first, second]
    interval = against_seeds(values, others)
    assert interval.value == close(np.mean(first) - np.mean(second))
    # scipy minds what does not vary.
    assume(all(np.std(values) > 1e-9 for values in varying))
    assert (interval.low, interval.high) == close(ends(test(first, second)))


@for_all
@given(by_seed, by_seed, accuracies)
def test_seed_by_seed_has_symmetries(values, others, shift):
    interval, turned = against_seeds(values, others), against_seeds(others, values)
    assert (-interval.high, -interval.value, -interval.low) == close((turned.low, turned.value, turned.high))
    moved = against_seeds({k: v + shift for k, v in values.items()}, others)
    assert (moved.low, moved.high) == close((interval.low + shift, interval.high + shift))


def test_seeds_that_one_side_lacks_do_not_count():
    values, others = {0: 2.0, 1: 3.5, 2: 4.0}, {0: 1.0, 1: 2.0, 2: 1.0}
    assert against_seeds(values | {7: 1e6}, others | {8: -1e6}) == against_seeds(values, others)


@pytest.mark.parametrize(
    ("values", "others"),
    [({0: 3.0}, {0: 1.0}), ({0: 3.0}, {0: 1.0, 1: 1.5}), ({0: 3.0, 1: 2.0}, {1: 1.0}), ({5: 3.0}, {0: 1.0})],
)
def test_one_seed_on_a_side_has_no_interval(values, others):
    difference = np.mean(list(values.values())) - np.mean(list(others.values()))
    assert against_seeds(values, others) == Interval(difference)
    assert compared(against_seeds(values, others), 1) == "one seed: no verdict"


def test_one_seed_against_the_paper():
    assert against_paper([93.5], Published(93.0, 0.25)) == Interval(0.5)
    assert against_paper([93.5], Published(93.0)) == Interval(0.5)


def test_the_interval_covers_what_it_should():
    """In 95 of 100 experiments with the same truth on both sides the difference of 0 is in it."""
    draw, covered = np.random.default_rng(0), 0
    for _ in range(2000):
        theirs = draw.normal(90, 2, 5)
        interval = against_paper(draw.normal(90, 1, 4).tolist(), Published(theirs.mean(), theirs.std(ddof=1)))
        covered += interval.low <= 0 <= interval.high
    assert 0.935 < covered / 2000 < 0.97


@for_all
@given(st.lists(st.floats(2**-149, 2**127, width=32), min_size=2, max_size=6), st.sampled_from([None, 0.25]))
def test_any_loss_has_an_interval(values, std):
    """However small or large float32 has it."""
    interval = against_paper(values, Published(0.162, std))
    assert interval.low <= interval.value <= interval.high
    assert all(map(math.isfinite, (interval.low, interval.value, interval.high)))
    words = r"(within (one|two) sd(, )?)?(higher|lower)?|no difference seen|undecided: seeds differ too much"
    assert re.fullmatch(words, verdict(values, Published(0.162, std)))


@pytest.mark.parametrize("paper", PRINTED, ids=lambda p: f"{p.value}±{p.std}")
def test_verdicts_at_their_borders(paper):
    """A difference of exactly one or two deviations is within them; where the interval has no 0, it is said.

    Ours are equal here, so that the interval is that of the paper's five seeds: 1.24 deviations.
    """
    reach = stats.t.ppf(0.975, 4) / 5**0.5
    assert 1.24 < reach < 1.25
    for sign, side in ((1, "higher"), (-1, "lower")):
        for count, words in (
            (0.001, "within one sd"),
            (1, "within one sd"),
            (1.001, "within two sd"),
            (reach - 0.001, "within two sd"),
            (reach + 0.001, f"within two sd, {side}"),
            (2, f"within two sd, {side}"),
            (2.001, side),
            (100, side),
        ):
            assert verdict([paper.value + sign * count * paper.std] * 3, paper) == words, (count, sign)


def test_noise_of_ours_buys_no_agreement():
    paper = Published(93.4, 0.25)
    assert verdict([90.0, 97.0], paper) == "undecided: seeds differ too much"
    assert verdict([80.0, 81.0, 99.0], paper) == "undecided: seeds differ too much"
    assert verdict([93.2, 93.7, 93.4, 93.1, 93.8], paper) == "within one sd"
    # Far, but too noisy to tell on which side.
    assert verdict([93.0, 96.0], paper) == "undecided: seeds differ too much"


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 3.5],
        [2.0, 4.0, 3.0],
        [3.0, 5.0, 4.0],
        [3.1, 5.1, 4.1, 4.2],
        [-1.1, 0.9, -0.1, 0.3],
        [5.0, 5.1, 5.2],
    ],
)
def test_verdicts_without_a_printed_deviation(values):
    """By the interval of ours alone."""
    low, high = stats.ttest_1samp(values, NO_SD.value).confidence_interval(0.95)
    side = "higher" if low > NO_SD.value else "lower" if high < NO_SD.value else "no difference seen"
    assert verdict(values, NO_SD) == side


def test_equal_values_are_exact():
    assert verdict([NO_SD.value + 0.5] * 2, NO_SD) == "higher"
    assert verdict([NO_SD.value - 0.5] * 2, NO_SD) == "lower"


@pytest.mark.parametrize("paper", [p for p in dict.fromkeys(PRINTED_CURVES) if p.rounding], ids=repr)
def test_verdicts_are_no_finer_than_the_digits(paper):
    """What may have been rounded to the printed number is the same; beyond that, by the interval."""
    assert 2 * paper.rounding == pytest.approx(10.0 ** -len(str(paper.value).partition(".")[2]))
    unit = 1e-4
    reach = unit * stats.t.ppf(0.975, 2) / 3**0.5
    for sign, side in ((1, "higher"), (-1, "lower")):
        for difference, words in (
            (0, "the same, as printed"),
            (0.999 * paper.rounding, "the same, as printed"),
            (paper.rounding, "the same, as printed"),
            (paper.rounding + 0.999 * reach, "no difference seen"),
            (paper.rounding + 1.001 * reach, side),
        ):
            value = paper.value + sign * difference
            assert verdict([value - unit, value, value + unit], paper) == words, (difference, sign)


@pytest.mark.parametrize("paper", [Published(93.4, 0.25), NO_SD])
def test_one_seed_has_no_verdict(paper):
    for value in (paper.value, 0.0, 1e6):
        assert verdict([value], paper) == "one seed: no verdict"


@pytest.mark.parametrize(
    ("interval", "more", "less"),
    [
        (Interval(1.0, 0.5, 1.5), "momentum better", "control better"),
        (Interval(-1.0, -1.5, -0.5), "control better", "momentum better"),
        (Interval(1.0, 0.0, 2.0), "no difference seen", "no difference seen"),
        (Interval(-1.0, -2.0, 0.0), "no difference seen", "no difference seen"),
        (Interval(0.0, 0.0, 0.0), "no difference seen", "no difference seen"),
        (Interval(1.0, 1.0, 1.0), "momentum better", "control better"),
        (Interval(1.0), "one seed: no verdict", "one seed: no verdict"),
    ],
)
def test_compared(interval, more, less):
    """Where more is better, and where less is."""
    assert compared(interval, 1) == more
    assert compared(interval, -1) == less


@for_all
@given(printed, printed)
def test_between_two_published_means(first, second):
    interval = between_published(first, second)
    summary = ((p.value, p.std, p.seeds) for p in (first, second))
    result = stats.ttest_ind_from_stats(*next(summary), *next(summary), equal_var=False)
    assert interval.value == close(first.value - second.value)
    # The interval excludes 0 where the p value is below 5 %.
    assume(abs(result.pvalue - 0.05) > 1e-6)
    assert (interval.low > 0 or interval.high < 0) == (result.pvalue < 0.05)
    theirs = stats.ttest_ind(of_five(first), of_five(second), equal_var=False)
    assert (interval.low, interval.high) == close(ends(theirs))


def test_a_published_mean_without_a_deviation_has_no_interval():
    with pytest.raises(ValueError, match=r"two published standard deviations, got 0.1 and None"):
        between_published(Published(1.0, 0.1), NO_SD)


losses = st.dictionaries(st.integers(0, 4), st.integers(1, 10_000).map(lambda k: k / 1e4), min_size=5)


@for_all
@given(losses, losses)
def test_the_ratio_of_geometric_means(values, others):
    """The exponential of the mean difference of the logarithms, with the ends of its interval."""
    differences = [math.log(values[seed] / others[seed]) for seed in sorted(values)]
    interval = geometric_ratio(values, others)
    assert interval.value == close(stats.gmean(list(values.values())) / stats.gmean(list(others.values())))
    assume(np.std(differences) > 1e-9)
    low, high = ends(stats.ttest_1samp(differences, 0))
    assert (math.log(interval.low), math.log(interval.high)) == close((low, high))


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_the_ratio_needs_positive_values(value):
    with pytest.raises(ValueError, match=f"positive values, got {value}"):
        geometric_ratio({0: 1.0, 1: 2.0}, {0: 1.0, 1: value})


def test_the_ratio_for_one_seed_has_no_interval():
    assert geometric_ratio({0: 6.0}, {0: 2.0}) == Interval(close(3.0))


@pytest.mark.parametrize("total", [1, 5, 10, 47])
def test_the_exact_interval_of_a_proportion(total):
    """At its ends the count, or a more extreme one, has a probability of 2.5 %."""
    for count in range(total + 1):
        interval = proportion(count, total)
        assert interval.value == count / total
        assert stats.binom.sf(count - 1, total, interval.low) == close(0.025 if count else 1)
        assert stats.binom.cdf(count, total, interval.high) == close(0.025 if count < total else 1)


@pytest.mark.parametrize(("count", "total"), [(-1, 5), (6, 5), (0, 0)])
def test_a_proportion_needs_a_count_within_its_total(count, total):
    with pytest.raises(ValueError, match=f"got {count} of {total}"):
        proportion(count, total)


@for_all
@given(st.integers(0, 10), st.integers(1, 10), st.integers(0, 10), st.integers(1, 10))
def test_the_same_proportion(count, total, other_count, other_total):
    """All tables with the same margins that are at most as probable as this one."""
    assume(count <= total and other_count <= other_total)
    counts = stats.hypergeom(total + other_total, count + other_count, total)
    probabilities = [counts.pmf(k) for k in range(total + 1)]
    expected = sum(p for p in probabilities if p <= probabilities[count] * (1 + 1e-9))
    assert same_proportion(count, total, other_count, other_total) == close(min(expected, 1.0))


def test_a_count_beyond_its_total_has_no_proportion():
    with pytest.raises(ValueError, match="got 4 of 3"):
        same_proportion(1, 2, 4, 3)


@pytest.mark.parametrize(("seeds", "power"), [(5, 0.8), (5, 0.5), (3, 0.9), (10, 0.8)])
def test_what_is_detectable_is_detected_as_often(seeds, power):
    difference = detectable(2.0, seeds, power)
    draws = np.random.default_rng(0).normal(difference, 2.0, (20_000, seeds))
    tests = stats.ttest_1samp(draws, 0, axis=1)
    assert np.mean((tests.pvalue < 0.05) & (tests.statistic > 0)) == pytest.approx(power, abs=0.012)


@pytest.mark.parametrize(("seeds", "power"), [(1, 0.8), (5, 0.4), (5, 1.0)])
def test_what_is_detectable_needs_seeds_and_a_power(seeds, power):
    with pytest.raises(ValueError, match=f"got {seeds} and {power}"):
        detectable(1.0, seeds, power)
