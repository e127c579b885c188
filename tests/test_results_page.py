"""docs/results.md: its tables, computed here again from the runs."""

import re
import statistics
from dataclasses import replace

import pytest
from run_tables import (
    ROOT,
    assert_costs_are_those_measured,
    cells,
    outcomes,
    runs,
    script,
    signed,
    spread,
)

from momentumrnn.experiments.paper.published import released_loss
from momentumrnn.experiments.paper.recipes import recipe
from momentumrnn.experiments.runs.gather import gather
from momentumrnn.report.statistics import Interval, against_paper, against_seeds

pytest.importorskip("jinja2", reason="the page needs the extra momentumrnn[all]")
stats = pytest.importorskip("scipy.stats", reason="intervals need the extra momentumrnn[all]")

results_page = script("results_page")
TEXT = (ROOT / "docs/results.md").read_text(encoding="utf-8")
FLAT = " ".join(TEXT.split())


def with_failures(outcome, seeds, epochs):
    """Best on test of all seeds, those that stopped included, and the seeds that failed."""
    best = {n: 100 * max(x["test_accuracy"] for x in s.epochs[:epochs]) for n, s in seeds.items()}
    assert {n: best[n] for n in outcome.best} == pytest.approx(outcome.best)
    return best, {n for n in best if best[n] < 50 or n in outcome.frozen}


def accuracies():
    """The rows of both tables, of the default terms and as released."""
    head = "| recipe | by validation"
    return cells(TEXT, head) + cells(TEXT[TEXT.index(head) + 1 :], head)


def test_the_table_of_the_readme():
    """Five rows between marks, which the README shows too."""
    (table,) = re.findall(r"<!-- finding -->\n(.*)\n<!-- /finding -->", TEXT, re.DOTALL)
    head, line, *rows = table.split("\n")
    assert (head, line) == ("| network | n = 128 | n = 256 |", "|---|---|---|")
    recipes = {"LSTM, forget bias 3.5 in place of 2": "MomentumLSTM"}
    rows, of = [row.strip("| ").split(" | ") for row in rows], outcomes()
    assert [row[0] for row in rows] == ["LSTM", "MomentumLSTM", "RMSPropLSTM", "SRLSTM", *recipes]
    for name, *shown in rows:
        end = "/same-forget-bias" if name in recipes else ""
        for size, cell in zip((128, 256), shown, strict=True):
            table = 11 if size == 128 else 1
            outcome, _ = of(f"table{table}/{recipes.get(name, name)}/PMNIST/{size}{end}")
            assert cell == spread(outcome.valid)
    assert 2 * recipe("table1/MomentumLSTM/PMNIST/256/same-forget-bias").config.init.forget_bias == 3.5


def test_the_accuracies_are_those_of_the_runs():
    """Accuracies, minutes, and when 92.29 % was there. Every seed counts."""
    of, rows, failures = outcomes(), accuracies(), 0
    assert len(rows) == 27
    for name, *shown in rows:
        outcome, seeds = of(name.strip("`"))
        at = [next((x for x in s.epochs if x["test_accuracy"] >= 0.9229), None) for s in seeds.values()]
        minutes = max(seed.epochs[-1]["seconds"] for seed in seeds.values()) / 60
        late = sum(line is None for line in at)
        epochs, seconds = (
            between([round(line[key]) for line in at if line is not None]) for key in ("epoch", "seconds")
        )
        if late:
            epochs = f"{epochs}, {late} never" if late < 5 else "never"
        best, failed = with_failures(outcome, seeds, 150)
        failures += len(failed)
        expected = [spread(outcome.valid), spread(best)]
        for i, values in enumerate((outcome.valid, best)):
            if failed and values:
                learn = {n: value for n, value in values.items() if n not in failed}
                expected[i] += f"; {len(learn)} learn: {spread(learn)}".partition(" (")[0]
        assert shown == [*expected, shown[2], f"{minutes:.1f}", epochs, seconds]
        for p in recipe(name.strip("`")).published:
            assert f"{p.value:g}" + (" q" if p.quoted else f" ± {p.std:g}") in shown[2]
    assert failures == 6


def test_the_accuracies_on_mnist_are_those_of_the_runs():
    of, rows = outcomes(), cells(TEXT, "| recipe | test accuracy, by validation")
    assert len(rows) >= 3
    for name, *shown in rows:
        name = name.strip("`")
        outcome, seeds = of(name)
        paper = recipe(name).published
        published = "; ".join(f"{p.value:g}" + (" q" if p.quoted else f" ± {p.std:g}") for p in paper)
        minutes = max(seed.epochs[-1]["seconds"] for seed in seeds.values()) / 60
        plain = of(f"table1/LSTM/MNIST/{name.split('/')[3]}")[0]
        same_cell = not paper[0].quoted and "/SRLSTM/" not in name
        assert not with_failures(outcome, seeds, 150)[1]
        assert shown == [
            spread(outcome.valid),
            spread(outcome.best),
            published,
            f"{minutes:.1f}",
            "-" if outcome.valid == plain.valid else signed(against_seeds(outcome.valid, plain.valid)),
            signed(against_paper(list(outcome.best.values()), paper[0])) if same_cell else "-",
        ]
        if outcome.valid != plain.valid:
            gain = against_seeds(outcome.valid, plain.valid)
            assert gain.low < 0 < gain.high, "the page says that no network differs"
        else:
            assert statistics.mean(outcome.best.values()) > max(p.value for p in paper)


def between(values):
    if not values:
        return "-"
    return " to ".join(map(str, sorted({min(values), max(values)})))


def test_the_gains_are_those_of_the_runs():
    """Over LSTM of the same size and training, and beside the published number."""
    of, rows = outcomes(), cells(TEXT, "| recipe | by validation | best on test | published gain")
    assert len(rows) == 23
    for name, *shown in rows:
        name = name.strip("`")
        table, model, _, size, *ends = name.split("/")
        plain = f"{table}/LSTM/PMNIST/{size}"
        (outcome, seeds), (base, _) = of(name), of("/".join([plain, *ends[: ends[:1] == ["as-released"]]]))
        best, failed = with_failures(outcome, seeds, 150)
        pairs = ((outcome.valid, base.valid, shown[0]), (best, base.best, shown[1]))
        for a, b, cell in pairs:
            learn = {n: value for n, value in a.items() if n not in failed}
            more = f"; {len(learn)} learn: {signed(against_seeds(learn, b))}" if failed and a else ""
            assert cell == (signed(against_seeds(a, b)) + more if a else "-")
        own = recipe(name).published if model != "SRLSTM" else ()
        gains = sorted(own[0].value - p.value for p in recipe(plain).published) if own else []
        assert shown[2] == (" to ".join(f"{gain:+.2f}" for gain in gains) or "-")
        learn = [value for n, value in best.items() if n not in failed]
        more = f"; {len(learn)} learn: {signed(against_paper(learn, own[0]))}" if failed else ""
        assert shown[3] == (signed(against_paper(list(best.values()), own[0])) + more if own else "-")


def test_the_losses_beside_the_released_ones():
    rows = cells(TEXT, "| recipe | theirs | ours")
    assert len(rows) == 8
    for name, theirs, ours, unpaired, paired in rows:
        name = name.strip("`")
        released, model = released_loss(name), name.split("/")[1]
        seeds = runs().of(recipe(name).config)
        lowest = {n: min(line["test_loss"] for line in s.epochs) for n, s in sorted(seeds.items())}
        assert theirs == f"{released.value:.4f} ± {released.std:.4f}"
        assert ours == f"{statistics.mean(lowest.values()):.4f} ± {statistics.stdev(lowest.values()):.4f}"
        if "as-released" not in name:
            assert [unpaired, paired] == [signed(against_paper(list(lowest.values()), released), 4), "-"]
            continue
        by_seed = results_page.RELEASED[model]
        same = [lowest[number] for number in by_seed]
        interval = stats.ttest_rel(same, list(by_seed.values())).confidence_interval(0.95)
        middle = statistics.mean(lowest[n] - value for n, value in by_seed.items())
        assert unpaired == "-"
        assert paired.startswith(signed(Interval(middle, interval.low, interval.high), 4))


def test_the_released_losses_of_each_seed_give_the_released_means():
    for model, by_seed in results_page.RELEASED.items():
        released = released_loss(f"table1/{model}/PMNIST/256")
        assert len(by_seed) == released.seeds
        assert statistics.mean(by_seed.values()) == pytest.approx(released.value, abs=6e-5)
        assert statistics.stdev(by_seed.values()) == pytest.approx(released.std, abs=6e-5)


def test_the_failure_rates():
    rows = cells(TEXT, "| recipe | failed | rate")
    assert [row[1] for row in rows[:6]] == ["0 of 5", "1 of 5", "2 of 5", "3 of 5", "1 of 10", "5 of 10"]
    for _, count, rate, _ in rows:
        failed, total = map(int, count.split(" of "))
        interval = stats.binomtest(failed, total).proportion_ci(0.95, method="exact")
        ends = [f"{100 * end:.0f}" for end in (interval.low, interval.high)]
        assert rate == f"{100 * failed / total:.0f} % [{', '.join(ends)}]"
    others = [name for name, *_ in accuracies() + cells(TEXT, "| recipe | test accuracy")]
    others = [name for name in others if "SRLSTM-released/PMNIST" not in name]
    assert rows[6][1] == f"0 of {5 * len(others)}"


def test_the_precisions_are_those_of_the_runs():
    of, rows = outcomes(), iter(cells(TEXT, "| | by validation"))
    differences = []
    for name in ("table11/MomentumLSTM/PMNIST/128", "table1/SRLSTM-released/PMNIST/256"):
        late = {}
        for precision in ("tf32", "float32"):
            outcome, seeds = of(name, 40, precision=precision)
            words, *shown = next(rows)
            _, model, _, size = name.split("/")
            assert words.startswith(f"{model}, n = {size}, {precision}")
            assert shown == [spread(outcome.valid), spread(outcome.best)]
            late[precision] = [
                statistics.mean(100 * line["test_accuracy"] for line in seed.epochs[20:40])
                for _, seed in sorted(seeds.items())
            ]
        interval = stats.ttest_rel(late["float32"], late["tf32"]).confidence_interval(0.95)
        apart = statistics.mean(b - a for a, b in zip(late["tf32"], late["float32"], strict=True))
        differences.append(signed(Interval(apart, interval.low, interval.high)))
        assert interval.low < 0 < interval.high
    assert not list(rows)
    first, second = differences
    assert f"differs by {first} for MomentumLSTM and by {second} for SRLSTM-released" in FLAT


def test_the_norms_are_those_of_the_runs():
    """Of SRLSTM-released with n = 128: in float32 on a CPU, and of the same seed in TF32."""

    def norms(seed):
        """Their means over the first four epochs."""
        of, begun = [0.0] * 4, 0
        for line in seed.steps:
            if line["step"] <= 4 * 430:
                of[(line["step"] - 1) // 430] += line["norm"] * (line["step"] - begun) / 430
            begun = line["step"]
        return of

    def shown(seed):
        words = (f"{norm:.2g}" if norm < 1e3 else f"{norm:.0e}" for norm in norms(seed))
        return ", ".join(word.replace("e+0", "e").replace("e+", "e") for word in words)

    config = recipe("table11/SRLSTM-released/PMNIST/128").config
    (seed,) = gather([ROOT / "results/alone"]).of(replace(config, precision="float32")).values()
    same = runs().of(config)[seed.seed]
    assert (seed.seed, len(seed.epochs)) == (0, 4)
    assert f"gradient norms there are {shown(seed)}. The same seed in TF32 has {shown(same)}." in FLAT
    assert all(b > 100 * a for a, b in zip(norms(seed)[1:], norms(same)[1:], strict=True))


def test_the_time_of_a_seed_alone_is_that_of_its_run():
    config = recipe("table1/RMSPropLSTM/PMNIST/256").config
    (seed,) = gather([ROOT / "results/alone"]).of(config).values()
    at = next(line for line in seed.epochs if line["test_accuracy"] >= 0.9229)
    assert f"has 92.29 % after {at['epoch']} epochs and {at['seconds']:.0f} seconds" in FLAT


def test_the_losses_are_those_of_the_runs():
    """Of the table of adding and copying."""
    of, rows = outcomes(), cells(TEXT, "| recipe | training loss")
    assert len(rows) == 17
    for name, trained, published, test in rows:
        outcome, _ = of(name.strip("`"), recipe(name.strip("`")).config.epochs)
        for shown, values in ((trained, outcome.trained.values()), (test, outcome.valid.values())):
            assert shown == f"{statistics.mean(values):.5f} ± {statistics.stdev(values):.5f}"
        assert published == (" ".join(f"{p.value:g}" for p in recipe(name.strip("`")).published) or "-")


def test_the_costs_are_those_measured():
    assert_costs_are_those_measured("docs/results.md", "| evaluation of a sample", "evaluation")
