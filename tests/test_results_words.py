"""docs/results.md: its prose says what the intervals say, and states no number that nothing computes."""

import re
import statistics
import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from run_tables import ROOT, SEEDS, runs, script, signed

from momentumrnn.experiments.paper.recipes import RECIPES, recipe, variants
from momentumrnn.experiments.runs.read import RunRecord
from momentumrnn.report.statistics import Interval, against_paper

pytest.importorskip("jinja2", reason="the page needs the extra momentumrnn[all]")
stats = pytest.importorskip("scipy.stats", reason="intervals need the extra momentumrnn[all]")

results_page = script("results_page")
TEXT = (ROOT / "docs/results.md").read_text(encoding="utf-8")
FLAT = " ".join(TEXT.split())
TEMPLATE = "\n".join(
    path.read_text(encoding="utf-8") for path in sorted((ROOT / "benchmarks").glob("results_page*.jinja"))
)


@cache
def row(name, **changes):
    return results_page.read_row(runs(), name, **changes)


def test_the_page_is_what_the_script_writes():
    assert results_page.render(ROOT / "results") == TEXT


def test_the_script_checks_the_page(tmp_path, monkeypatch, capsys):
    page = tmp_path / "results.md"
    monkeypatch.setattr(results_page, "PAGE", page)
    monkeypatch.setattr(results_page, "render", lambda results: "as it should be\n")
    monkeypatch.setattr(sys, "argv", ["results_page.py"])
    results_page.main()
    assert page.read_text() == "as it should be\n"
    monkeypatch.setattr(sys, "argv", ["results_page.py", "--check"])
    results_page.main()
    page.write_text("another\n")
    with pytest.raises(SystemExit, match=r"run benchmarks/results_page\.py"):
        results_page.main()
    assert page.read_text() == "another\n"


NAMES = [
    r"n = (128|256|158)\b",
    r"L = [12]000\b",
    r"[Tt]ables? \d+( and \d+)?",
    "H200",
    "(TF|tf|float)32",
    "16(-bit| bits)",
    "60 000 training images",
    "95 % intervals",
    r"\b(0 )?of 5\b",
    "its 5 seeds",
    "Seed 0",
    "makes the gradient 0",
    "contains 0",
    "answering 1",
    "mu = 0",
    "Batches have 500 sequences",
]
"""What the template may say with digits: names, sizes, and counts of seeds that `read_row` checks."""


def test_the_template_states_no_number_of_its_own():
    text = re.sub(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}|<!--.*?-->|`[^`]*`|\]\([^)]*\)", "", TEMPLATE, flags=re.S)
    text = " ".join(text.split())
    for name in NAMES:
        text, count = re.subn(name, "", text)
        assert count, f"the template does not say {name!r} any more"
    assert re.findall(r".{0,40}\d.{0,20}", text) == []


def test_every_row_that_was_run_is_on_the_page():
    """A row of another table with the same runs counts."""
    shown = {recipe(name).config.id for name in re.findall(r'"((?:table|figure)\d+/[^"]+)"', TEMPLATE)}
    ran = {
        recipe(name).config.id
        for base in RECIPES
        for name in variants(base)
        if sorted(runs().of(recipe(name).config)) == SEEDS
    }
    assert ran - shown == set()
    assert len(ran) >= 50


def test_the_lines_fit():
    prose = [line for line in TEXT.split("\n") if not line.startswith(("|", "!["))]
    assert max(map(len, prose)) <= 100
    assert not re.search(r"[ \t]$|\n{3}", TEXT, re.MULTILINE)


def test_gradients_of_failed_seeds_alone_pass_what_float32_can_square():
    """A logged norm is a mean over steps, so no step of the others passed the limit either."""
    names = ("table11/SRLSTM-released/PMNIST/128", "table1/SRLSTM-released/PMNIST/256")
    for name in (*names, *(f"{name}/as-released" for name in names)):
        of_recipe = row(name)
        for number, seed in of_recipe.seeds.items():
            steps = [0, *(line["step"] for line in seed.steps)]
            longest = max(b - a for a, b in pairwise(steps))
            largest = max(line["norm"] for line in seed.steps)
            if number in of_recipe.failed:
                assert largest > 1.8446743e19
            else:
                assert largest * longest < 1.8446743e19


M128, M256 = "table11/MomentumLSTM/PMNIST/128", "table1/MomentumLSTM/PMNIST/256"
L128, L256 = "table11/LSTM/PMNIST/128", "table1/LSTM/PMNIST/256"
R128, R256 = "table11/RMSPropLSTM/PMNIST/128", "table1/RMSPropLSTM/PMNIST/256"
A128, A256 = "table11/AdamLSTM/PMNIST/128", "table1/AdamLSTM/PMNIST/256"
S128, S256 = "table11/SRLSTM/PMNIST/128", "table1/SRLSTM/PMNIST/256"
BIAS, FREE = "/same-forget-bias", "/as-released"
WORDS = {
    # What the page says in words: (first, second, by what): the side that the interval is on, 0 if on both.
    (M128, f"{M128}/same-gain", "valid"): -1,
    (M128, f"{M128}/same-gain", "best"): -1,
    (M128, L128, "valid"): 0,
    (M256, L256, "valid"): 1,
    (M256 + FREE, L256 + FREE, "best"): 0,
    (M128 + FREE, L128 + FREE, "lowest"): -1,
    (M256 + FREE, L256 + FREE, "lowest"): -1,
    (M128 + BIAS, M128, "valid"): 1,
    (M256 + BIAS, M256, "valid"): 1,
    (M128 + FREE + BIAS, M128 + FREE, "best"): 1,
    (S256 + BIAS, M256 + BIAS, "valid"): -1,
    (A128, L128, "valid"): 1,
    (A256, L256, "valid"): 1,
    (R128, L128, "valid"): 1,
    (R256, L256, "valid"): 1,
    (R256, f"{R256}/same-input-rms", "valid"): 1,
    (S256, L256, "valid"): 1,
    (S256, R256, "valid"): 1,
    (S256, M256 + BIAS, "valid"): 1,
    (S256, f"{S256}/same-gain", "valid"): 1,
    (S256, f"{S256}/same-input-gain", "valid"): 1,
    (S256, S256 + BIAS, "valid"): 1,
    (S128, L128, "valid"): -1,
    (S128, f"{S128}/same-gain", "best"): 0,
    (L128, f"{S128}/same-gain", "best"): 0,
    ("table1/SRLSTM-released/PMNIST/256", L256, "best"): -1,
    ("figure4/MomentumLSTM/Copying2K/190", "figure4/LSTM/Copying2K/190", "valid"): 0,
}


@pytest.mark.parametrize(("first", "second", "key"), WORDS)
def test_the_words_follow_from_the_intervals(first, second, key):
    """By scipy, from the curves; and the difference is on the page."""

    def values(name):
        seeds = runs().of(recipe(name).config)
        metric = recipe(name).config.task.metric
        of_seeds = []
        for number in SEEDS:
            lines = seeds[number].epochs
            if key == "lowest":
                of_seeds.append(min(line["test_loss"] for line in lines))
                continue
            part = "validation" if key == "valid" else "test"
            sign = 1 if metric == "accuracy" else -1
            chosen = max(lines, key=lambda line: sign * line[f"{part}_{metric}"])
            of_seeds.append(chosen[f"test_{metric}"] * (100 if metric == "accuracy" else 1))
        return of_seeds

    a, b = values(first), values(second)
    interval = stats.ttest_rel(a, b).confidence_interval(0.95)
    side = int(interval.low > 0) - int(interval.high < 0)
    assert side == WORDS[first, second, key]
    middle = statistics.mean(a) - statistics.mean(b)
    digits = 5 if "Copying" in first else 4 if key == "lowest" else 2
    turned = Interval(-middle, -interval.high, -interval.low)
    shown = {signed(Interval(middle, interval.low, interval.high), digits), signed(turned, digits)}
    shown |= {text.replace("+", "") for text in shown}
    assert any(text in FLAT for text in shown)


def test_the_words_about_the_published_numbers():
    """Which intervals beside the paper contain 0."""
    for name, side in {
        M128 + FREE: 0,
        M256 + FREE: 0,
        M128: -1,
        M256: -1,
        A256: -1,
        A128: 0,
        R128: 0,
        R256: 0,
    }.items():
        interval = against_paper(list(row(name).best.values()), recipe(name).published[0])
        assert (interval.low > 0) - (interval.high < 0) == side, name
        if FREE in name:
            assert 0.35 < interval.high < 0.6, "the page says: about half a point"
            assert -0.6 < interval.low < -0.35, "the page says: about half a point"
    released = results_page.RELEASED
    failed = row("table1/SRLSTM-released/PMNIST/256/as-released").failed
    assert failed == (max(released["SRLSTM-released"], key=released["SRLSTM-released"].get),)
    both = sorted(released["LSTM"])
    test = stats.ttest_rel(
        [released["MomentumLSTM"][seed] for seed in both], [released["LSTM"][seed] for seed in both]
    )
    interval = test.confidence_interval(0.95)
    middle = statistics.mean(released["MomentumLSTM"][seed] - released["LSTM"][seed] for seed in both)
    assert signed(Interval(middle, interval.low, interval.high), 4) in FLAT
    assert interval.high < 0


def test_the_factors_on_adding_and_copying():
    """Ratios of geometric means, over the logarithms of each seed's training loss."""
    for name in (
        "figure4/RMSPropLSTM/Adding/128",
        "figure4/AdamLSTM/Adding/128",
        "figure10/RMSPropLSTM/Copying1K/190",
    ):
        ours, control = row(name).trained, row(f"{name}/same-input-rms").trained
        assert all(ours[seed] > control[seed] for seed in SEEDS)
        ratio = stats.gmean(list(ours.values())) / stats.gmean(list(control.values()))
        assert f"by a factor of {ratio:.2g} [" in FLAT
    assert FLAT.count("in 5 of 5") == 4


def test_the_other_controls_of_adding_do_not_learn():
    names = re.findall(r'"(figure4/\w+/Adding/128/same-(?:step|gain|forget-bias))"', TEMPLATE)
    assert len(names) == 8
    for name in names:
        control = row(name)
        assert min(control.valid.values()) > 0.95 * control.config.task.baseline


def test_what_five_permutations_detect():
    """By draws: a gain of the stated size is found in four of five experiments."""
    shown = re.search(r"detect a gain of (\S+) points \(n = 128\) or (\S+) \(n = 256\)", FLAT).groups()
    for text, (with_it, without) in zip(shown, ((M128, L128), (M256, L256)), strict=True):
        ours, plain = row(with_it + FREE).best, row(without + FREE).best
        deviation = statistics.stdev(ours[seed] - plain[seed] for seed in SEEDS)
        draws = stats.norm.rvs(float(text), deviation, size=(20_000, 5), random_state=0)
        assert (stats.ttest_1samp(draws, 0, axis=1).pvalue < 0.05).mean() == pytest.approx(0.8, abs=0.015)


def test_a_seed_that_failed_counts():
    failing = row("table11/SRLSTM-released/PMNIST/128/as-released")
    assert failing.failed == (1, 2, 4)
    assert failing.learning == (0, 3)
    stopped = failing.seeds[1]
    assert stopped.state == "frozen"
    assert failing.best[1] == pytest.approx(100 * max(line["test_accuracy"] for line in stopped.epochs))
    assert set(failing.lowest) == set(failing.trained) == set(SEEDS)


def without_a_seed(seeds):
    return {number: seed for number, seed in seeds.items() if number != 3}


def cut_off(seeds):
    return seeds | {2: replace(seeds[2], epochs=seeds[2].epochs[:9], state="short")}


@pytest.mark.parametrize(
    ("change", "words"),
    [(without_a_seed, r"expected the seeds \(0, 1, 2, 3, 4\)"), (cut_off, r"\[2\] have fewer")],
)
def test_a_row_without_all_its_epochs_is_refused(change, words, monkeypatch):
    config = recipe(L128).config
    known_runs = runs()
    monkeypatch.setitem(known_runs.by_id, config.id, change(dict(known_runs.of(config))))
    with pytest.raises(ValueError, match=words):
        results_page.read_row(known_runs, L128)


def test_a_low_accuracy_and_a_stop_are_failures():
    whole = row(L128)
    for best, state, expected in ((49.9, "done", (2,)), (50.0, "done", ()), (92.0, "frozen", (2,))):
        seeds = dict(whole.seeds) | {2: replace(whole.seeds[2], state=state)}
        changed = replace(whole, best=dict(whole.best) | {2: best}, seeds=seeds)
        assert changed.failed == expected


def test_numbers_as_text():
    assert results_page.signed(Interval(-0.001, -0.2, 0.0)) == "+0.00 [-0.20, +0.00]"
    assert results_page.unsigned(Interval(-0.5, -0.75, 0.25)) == "0.50 [-0.25, 0.75]"
    assert results_page.unsigned(Interval(0.5)) == "0.50"
    assert results_page.times(Interval(14.07, 5.86, 33.8)) == "14 [5.9, 34]"
    assert results_page.percent(Interval(0.5, 0.187, 0.813)) == "50 % [19, 81]"
    assert results_page.between([3.0, 6.0]) == "3 to 6"
    assert results_page.between([4, 4]) == "4"
    assert results_page.spread({0: 1.0}) == "1.00"
    assert results_page.spread({}) == "-"


def test_lines_are_broken_where_nothing_changes():
    first = "word " * 19 + "+0.10 [-0.17, +0.38] more"
    text = f"{first}\n- item {'word ' * 30}\n\n| a {'b' * 120} |\n"
    broken = results_page.wrapped(text)
    assert " ".join(broken.split()) == " ".join(text.split())
    assert "\n+0.10 [-0.17, +0.38] more\n- item" in broken
    assert [line[:2] for line in broken.split("\n")[2:4]] == ["- ", "  "]
    assert "| a " + "b" * 120 + " |" in broken
    # A dash or a number with a dot at the beginning of a line would begin a list.
    assert "\n- b" not in results_page.wrapped("a" * 99 + " - b")
    assert "\n256. b" not in results_page.wrapped("a" * 98 + " 256. b")


def test_still_from_is_the_first_epoch_without_change():
    seed = RunRecord(ROOT, "done", epochs=[{"test_loss": x} for x in (3.0, 2.0, 2.5, 2.5, 2.5)])
    assert results_page.still_from(seed) == 3


def test_the_grid_of_the_ablation():
    """The step alone on speech; the numbers are those of the released notebook."""
    (ratio,) = re.findall(r"the step alone gives (\d+) % of the gain", FLAT)
    assert int(ratio) == round(100 * (9.33 - 6.00) / (9.33 - 5.86))
    assert "has mu = 0 and step 0.6" in FLAT
