"""Tables of results, findings, curves and costs, from run folders whose numbers are known."""

from statistics import mean, stdev

import pytest
from test_gather import ADDING, PMNIST, ROW, STEPS, done, lines_of, make, rising, row, said, write_lines

from momentumrnn.experiments.exhibits import exhibit
from momentumrnn.experiments.paper import CONTROLS, RECIPES, recipe, variants
from momentumrnn.experiments.report import cost_tables, curves, figures, result_tables
from momentumrnn.experiments.report.findings import findings
from momentumrnn.experiments.report.gather import gather, outcome, read

stats = pytest.importorskip("scipy.stats", reason="reports need the extra momentumrnn[all]")

__all__ = ["done"]  # a fixture
EVERY = {name for base in RECIPES for name in variants(base) if name.rpartition("/")[2] in CONTROLS}


def test_five_seeds_to_the_end(tmp_path):
    best = [0.93, 0.931, 0.935, 0.928, 0.933]
    for seed, value in enumerate(best):
        make(tmp_path, PMNIST, seed, rising(value, 140), rising(0.94, 120))
    found = row(gather([tmp_path]))
    values = [100 * value for value in best]
    assert found.data["n"] == 5
    assert [found.data[f"seed_{seed}"] for seed in range(5)] == pytest.approx(values)
    assert found.data["mean"] == pytest.approx(mean(values))
    assert found.data["sd"] == pytest.approx(stdev(values))
    # Validation is best at epoch 120, 20 before the best on the test set.
    assert found.data["mean_by_validation"] == pytest.approx(mean(values) - 2)
    assert (found.data["paper"], found.data["paper_sd"]) == (93.40, 0.25)
    assert found.cells[4:7] == ("93.40 ± 0.25", "93.14 ± 0.27 (5)", "91.14 ± 0.27")
    assert found.cells[7].startswith("-0.26 [")
    assert found.cells[8] == ""
    assert found.cells[9] == found.data["verdict"] == "within two sd (on other terms)"
    assert found.data["ours_minus_paper"] == pytest.approx(mean(values) - 93.40)
    assert not any("control" in key for key in found.data)
    assert found.data["missing"] == ""


def test_a_control_beside_its_network(tmp_path):
    """The network with momentum less the control, seed by seed; a control by itself says nothing."""
    control, plain = f"{ROW}/same-gain", "table11/LSTM/PMNIST/128"
    for seed, value in enumerate((0.92, 0.93)):
        make(tmp_path, recipe(control).config, seed, rising(value, 140))
    shown = result_tables.results(exhibit("table11"), gather([tmp_path])).rows
    assert control not in [each.data["recipe"] for each in shown]
    for seed, value in enumerate((0.94, 0.945, 0.90)):
        make(tmp_path, PMNIST, seed, rising(value, 140))
    found = row(gather([tmp_path]), control)
    assert found.kind == "control"
    assert found.data["network_minus_control"] == pytest.approx(1.75)
    low, high = stats.ttest_1samp([2.0, 1.5], 0).confidence_interval()
    ends = (found.data["network_minus_control_low"], found.data["network_minus_control_high"])
    assert ends == pytest.approx((low, high))
    assert not any("minus_paper" in key for key in found.data)
    assert found.cells[0] == "LSTM, input x 2.5 (control of MomentumLSTM: same gain)"
    about = {"network": "LSTM, input x 2.5", "control_of": "MomentumLSTM", "control": "same gain"}
    assert about.items() <= found.data.items()
    assert found.cells[3:7] == ("default", "", "92.50 ± 0.71 (2)", "-")
    assert found.cells[7:] == ("", "+1.75 [-1.43, +4.93]", "no difference seen")
    # With the step that is 1 the control is the baseline: one run, two rows.
    for seed in (0, 1):
        make(tmp_path, recipe(plain).config, seed, rising(0.9, 140))
    runs = gather([tmp_path])
    assert row(runs, f"{ROW}/same-step").data["mean"] == pytest.approx(90.0)
    # Without momentum and with a gain of 1 two of RMSProp's are that run as well: one row.
    name = "table11/RMSPropLSTM/PMNIST/128"
    make(tmp_path, recipe(name).config, 0, rising(0.95, 140))
    rows = result_tables.results(exhibit("table11"), gather([tmp_path])).rows
    assert [each.cells[0] for each in rows if name in each.data["recipe"]] == [
        "RMSPropLSTM",
        "LSTM (control of RMSPropLSTM: same step, same forget bias)",
    ]
    assert row(runs, plain).cells[9] == "quoted: no verdict"


def test_gains_in_sentences(tmp_path):
    """Over the plain network of the same training, the paper's over what it quotes; and what controls do."""
    base, table = "table11/LSTM/PMNIST/128", exhibit("table11")
    assert findings(table, gather([tmp_path])) == []
    for seed, value in enumerate((0.920, 0.921, 0.922)):
        make(tmp_path, recipe(base).config, seed, rising(value, 140), rising(0.94, 140))
    assert findings(table, gather([tmp_path])) == []
    for seed, value in enumerate((0.925, 0.928, 0.928)):
        make(tmp_path, PMNIST, seed, rising(value, 140), rising(0.94, 140))
    gains, published, controls = findings(table, gather([tmp_path]))
    low, high = stats.ttest_1samp([0.5, 0.7, 0.6], 0).confidence_interval()
    gain = f"+0.60 [+{low:.2f}, +{high:.2f}]"
    assert gains == (
        "PMNIST, n = 128: our LSTM reaches 92.10 %, best on test. Gain over it in points, selected by "
        f"validation [95 %]: MomentumLSTM {gain}. Gain over it in points, best on test [95 %]: MomentumLSTM "
        f"{gain}."
    )
    assert published == (
        "PMNIST, n = 128, in the paper: MomentumLSTM +1.40, above the LSTM at 92.00 % that it quotes from "
        "Helfrich (or at 92.62 %, from Vorontsov)."
    )
    assert controls == "PMNIST, n = 128, controls: no control was run for MomentumLSTM."
    # SRLSTM's published number is of another cell.
    make(tmp_path, recipe("table11/SRLSTM/PMNIST/128").config, 0, rising(0.9, 140), rising(0.94, 140))
    for key, above in (("same-gain", 0.02), ("same-forget-bias", 0.0)):
        for seed, value in enumerate((0.924, 0.930, 0.927)):
            config = recipe(f"{ROW}/{key}").config
            make(tmp_path, config, seed, rising(value + above, 140), rising(0.94, 140))
    found = findings(table, gather([tmp_path]))
    assert found[0].count("; SRLSTM -2.10 (1 seed; LSTM: 3 seeds).") == 2
    assert found[1] == published
    assert found[2] == (
        "PMNIST, n = 128, controls: MomentumLSTM is worse than its control with the same gain, and shows no "
        "difference from its control with the same forget bias; no control was run for SRLSTM."
    )
    # A network that goes on is in no sentence.
    make(tmp_path, recipe("table11/AdamLSTM/PMNIST/128").config, 0, rising(0.95, 20, 20), result=False)
    assert findings(table, gather([tmp_path])) == found


def test_gains_of_few_seeds(tmp_path):
    """Seeds that failed, a control that goes on, and one seed: nothing of it is hidden."""
    for seed in range(3):
        make(tmp_path, recipe("table11/LSTM/PMNIST/128").config, seed, rising(0.92 + seed / 1000, 140))
    make(tmp_path, PMNIST, 0, rising(0.93, 140))
    make(tmp_path, PMNIST, 1, rising(0.95, 20, 20), frozen=20 * STEPS + 7)
    for seed in range(3):
        make(tmp_path, recipe(f"{ROW}/same-gain").config, seed, rising(0.9, 20, 20), result=False)
    make(tmp_path, recipe(f"{ROW}/same-forget-bias").config, 0, rising(0.92, 140))
    gains, _, controls = findings(exhibit("table11"), gather([tmp_path]))
    assert gains.endswith("best on test [95 %]: MomentumLSTM +0.90 (1 seed, 1 failed; LSTM: 3 seeds).")
    assert controls.endswith(
        "MomentumLSTM can't be compared yet with its control with the same gain, and has too few seeds to be "
        "compared with its control with the same forget bias."
    )


def test_gains_of_orthogonal_networks(tmp_path):
    """Without a validation the best counts; the paper has a plain network of its own."""
    for name, value in (("DTRIV", 0.95), ("MomentumDTRIV", 0.949)):
        config = recipe(f"table4/{name}/PMNIST/170/as-released").config
        for seed in (0, 1):
            make(tmp_path, config, seed, rising(value, 140, config.epochs))
    place = "PMNIST, n = 170, as released"
    assert findings(exhibit("table4"), gather([tmp_path])) == [
        f"{place}: our DTRIV reaches 95.00 %, best on test. Gain over it in points, best on test [95 %]: "
        "MomentumDTRIV -0.10 [-0.10, -0.10].",
        f"{place}, in the paper: MomentumDTRIV +0.16, above its own DTRIV at 95.21 %.",
        f"{place}, controls: no control was run for MomentumDTRIV.",
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("table1/MomentumLSTM/PMNIST/256/same-step", "LSTM"),
        ("table1/MomentumLSTM/PMNIST/256/same-gain", "LSTM, input x 2.5"),
        ("table1/MomentumLSTM/PMNIST/256/same-input-gain", "LSTM, input x 2.5, forget bias 2"),
        ("table1/MomentumLSTM/PMNIST/256/same-forget-bias", "LSTM, forget bias 3.5"),
        ("table1/AdamLSTM/PMNIST/256/same-rms", "LSTM, input x 37700"),
        ("table1/AdamLSTM/PMNIST/256/same-input-rms", "LSTM, input x 2100000, forget bias 3.5"),
        ("table1/RMSPropLSTM/MNIST/256/as-released/same-forget-bias", "LSTM, forget bias 1.6"),
        ("table1/SRLSTM-released/PMNIST/256/same-step", "LSTM, input x -0.9"),
        ("table1/SRLSTM-released/PMNIST/256/same-forget-bias", "LSTM, forget bias 0.1"),
        ("table4/MomentumDTRIV/PMNIST/170/same-gain", "DTRIV, input x 2.25"),
    ],
)
def test_a_control_is_named_by_what_it_is(name, expected):
    assert result_tables.control_name(recipe(name)) == expected


def test_no_two_controls_of_a_network_have_one_name():
    """Unless they are one run."""
    for base in RECIPES:
        for terms in ("", "/as-released"):
            controls = [n for n in variants(base) if n.rpartition("/")[0] == f"{base}{terms}" and n in EVERY]
            named = {result_tables.control_name(recipe(n)): recipe(n).config.id for n in controls}
            assert len(named) == len({recipe(n).config.id for n in controls})


def test_a_verdict_names_the_network(tmp_path):
    """RMSPropLSTM has no momentum that could be better: its mu is 0."""
    name = "table11/RMSPropLSTM/PMNIST/128"
    for seed in range(3):
        make(tmp_path, recipe(name).config, seed, rising(0.95 + seed / 1000, 140))
        make(tmp_path, recipe(f"{name}/same-rms").config, seed, rising(0.92 + seed / 1000, 140))
    runs = gather([tmp_path])
    assert row(runs, f"{name}/same-rms").cells[9] == "RMSPropLSTM better"
    assert "RMSPropLSTM is better than" not in "".join(findings(exhibit("table11"), runs))
    make(tmp_path, recipe("table11/LSTM/PMNIST/128").config, 0, rising(0.9, 140))
    assert findings(exhibit("table11"), gather([tmp_path]))[2] == (
        "PMNIST, n = 128, controls: RMSPropLSTM is better than its control with the same rms."
    )


def test_losses_beside_those_released(tmp_path):
    """The authors' own LSTM has no accuracy in the paper, but a curve of its loss."""
    name = "table1/LSTM/PMNIST/256"
    values = [0.27, 0.275, 0.283]
    for seed, value in enumerate(values):
        folder = make(tmp_path, recipe(name).config, seed, rising(0.93, 140), result=False)
        lines = [{**line, "test_loss": 0.5} if "epoch" in line else line for line in lines_of(folder)]
        lines[99]["test_loss"] = value
        write_lines(folder, lines)
    (found,) = result_tables.losses(exhibit("table1"), gather([tmp_path])).rows
    assert found.data["mean"] == pytest.approx(mean(values))
    assert found.data["ours_minus_released"] == pytest.approx(mean(values) - 0.2752)
    want = stats.ttest_ind_from_stats(mean(values), stdev(values), 3, 0.2752, 0.018, 4, equal_var=False)
    reach = stats.t.ppf(0.975, want_freedom(stdev(values) ** 2 / 3, 2, 0.018**2 / 4, 3))
    scale = (mean(values) - 0.2752) / want.statistic
    above = found.data["ours_minus_released_high"] - found.data["ours_minus_released"]
    assert above == pytest.approx(reach * scale)
    assert found.cells[3:6] == ("default", "0.2752 ± 0.0180 (4)", "0.2760 ± 0.0066 (3)")
    assert found.cells[-1] == "within one sd (on other terms)"
    make(tmp_path, recipe(name).config, 3, rising(0.9, 20, 20), frozen=9000)
    (found,) = result_tables.losses(exhibit("table1"), gather([tmp_path])).rows
    assert found.cells[5].endswith("(3); 1 of 4 seeds failed (not finite: seed 3 at step 9000)")
    assert found.data["failed"] == 1
    assert not result_tables.losses(exhibit("table11"), gather([tmp_path])).rows


def want_freedom(first, m, second, n):
    """Welch's, of two variances of means."""
    return (first + second) ** 2 / (first**2 / m + second**2 / n)


def test_minutes_of_runs_as_they_were(tmp_path):
    """By the clock in their metrics, beside those made of costs; none where a seed is not there yet."""
    config = recipe("table1/LSTM/PMNIST/256").config
    for seed, at in enumerate((20, 30)):
        make(tmp_path, config, seed, [0.5] * (at - 1) + [0.93] * (151 - at))
    found = {"device": "a device", "rows": {"ours/LSTM": {"train_ms": 0.01, "eval_ms": 0.002, "how": ""}}}
    row = cost_tables.costs(exhibit("table16"), found, gather([tmp_path])).rows[0]
    ours, as_run = 25 * (55_000 * 0.01 + 10_000 * 0.002) / 60e3, 25 / 8 / 60
    assert (row.data["ours"], row.data["as_run"]) == pytest.approx((ours, as_run))
    assert row.cells[3:6] == ("25.0 (2)", f"{ours:.3g}", f"{as_run:.3g}")
    make(tmp_path, config, 2, [0.5] * 150)
    make(tmp_path, config, 3, [0.5] * 20, frozen=20 * STEPS + 7)
    row = cost_tables.costs(exhibit("table16"), found, gather([tmp_path])).rows[0]
    assert row.cells[3:6] == ("25.0 (2); not reached: seed 2, 3", "-", "-")
    assert row.kind == ""


def test_a_control_of_a_network_that_goes_on(tmp_path):
    """It was begun: nobody may say that it was not run."""
    make(tmp_path, PMNIST, 0, rising(0.93, 20, 20), result=False)
    make(tmp_path, recipe(f"{ROW}/same-gain").config, 0, rising(0.92, 140))
    found = row(gather([tmp_path]), f"{ROW}/same-gain")
    assert not any("minus" in key for key in found.data)
    assert found.cells[8:] == ("", "MomentumLSTM is not at its end")


def test_a_number_of_another_cell_is_no_measure(tmp_path):
    """The paper prints SRLSTM's number of a cell that its equations don't describe."""
    for seed in range(3):
        make(tmp_path, recipe("table11/SRLSTM/PMNIST/128").config, seed, rising(0.93, 140))
    assert row(gather([tmp_path]), "table11/SRLSTM/PMNIST/128").cells[9] == "of another cell: no verdict"


def test_who_learns_nothing_wins_nothing(tmp_path):
    """Two that always answer 1 differ by chance alone."""
    name = "figure4/MomentumLSTM/Adding/128"
    for seed in range(3):
        make(tmp_path, recipe(name).config, seed, [0.168] * 12, [0.168] * 12)
        make(tmp_path, recipe(f"{name}/same-gain").config, seed, [0.1675] * 12, [0.1675] * 12)
    runs = gather([tmp_path])
    assert row(runs, f"{name}/same-gain", "figure4").cells[9] == "neither learns"
    # The control is in the figure, and not shown at first.
    plot = next(each for each in curves.plots(exhibit("figure4"), runs) if each.series)
    control = "LSTM, input x 20 (control of MomentumLSTM)"
    assert [each.name for each in plot.series] == ["MomentumLSTM", control]
    assert [each.label for each in plot.series] == ["MomentumLSTM", "LSTM, input x 20"]
    assert len({each.colour for each in plot.series}) == 1
    assert [each.name for each in plot.shown] == ["MomentumLSTM"]


def test_losses_of_a_figure(tmp_path):
    """What the paper has is the loss in training, at the end; it has no deviation, so ours is the measure."""
    for seed in (0, 1, 2):
        make(tmp_path, ADDING, seed, [0.2 - i / 100 for i in range(12)], [0.2] * 12)
    found = row(gather([tmp_path]), "figure4/LSTM/Adding/128", "figure4")
    last = [1 / 12, 1 / 12 + 0.001, 1 / 12 + 0.002]
    assert [found.data[f"seed_{seed}"] for seed in range(3)] == pytest.approx(last)
    assert found.data["ours_minus_paper"] == pytest.approx(mean(last) - 0.162)
    # Validation selects the first epoch of equals.
    assert found.data["mean_by_validation"] == 0.2
    assert found.cells[4] == "0.162"
    assert found.cells[5].startswith("0.0843")
    assert found.cells[9] == "lower"


def test_longer_than_the_paper(done, tmp_path):
    """The first 150 epochs count, whatever comes later."""
    test = [*rising(0.93, 140), *[0.99] * 50]
    validation = [*rising(0.94, 120), *[0.99] * 50]
    other = make(tmp_path / "longer", PMNIST, 0, test, validation, wanted=200)
    assert read(other).reason == "epochs: 200"
    for root in (done.parent, other.parent):
        came = outcome(gather([root]).of(PMNIST), 150)
        assert (came.best, came.valid) == (
            {0: pytest.approx(93.0)},
            {0: pytest.approx(100 * (0.93 - 20 / 1000))},
        )
        assert came.trained == {0: 1 / 150}


@pytest.mark.parametrize("result", [True, False], ids=["asked for 20", "stopped"])
def test_shorter_than_the_paper(tmp_path, result):
    make(tmp_path, PMNIST, 0, rising(0.93, 20, 20), wanted=20 if result else 150, result=result)
    runs = gather([tmp_path])
    assert runs.folders[0].state == ("done" if result else "short")
    assert runs.folders[0].reason == ("epochs: 20" if result else "epoch 20 of 150")
    found = row(runs)
    assert not {"n", "mean", "sd", "ours_minus_paper"} & set(found.data)
    assert found.data["missing"] == found.cells[5] == "seed 0: epoch 20 of 150"
    assert found.cells[9] == "a curve, no verdict"
    (plot,) = [plot for plot in curves.plots(exhibit("table11"), runs) if plot.series]
    (line,) = plot.series
    assert (line.epochs[-1], line.cut) == (20, "20 of 150 epochs")
    assert line.middle[-1] == pytest.approx(93.0)


def test_lines_that_fall_do_not_press_the_others_together(tmp_path):
    """Shown is where all lines are most of the time: not their first steps, nor the fall of one."""
    for model, best, last in (("LSTM", 0.88, 0.88), ("MomentumLSTM", 0.93, 0.93), ("AdamLSTM", 0.92, 0.4)):
        config = recipe(f"table11/{model}/PMNIST/128").config
        make(tmp_path, config, 0, [0.1] * 5 + [best] * 130 + [last] * 15)
    (plot,) = [plot for plot in curves.plots(exhibit("table11"), gather([tmp_path])) if plot.series]
    low, high = plot.window
    assert 85 < low < 88
    assert 93 < high < 95
    assert not plot.below


def test_seeds_that_fail_are_drawn_and_do_not_move_the_others(tmp_path):
    """A line is where most seeds are; one that stopped stays where it was; what is far below is named."""
    for model, seeds in (("LSTM", [0.92, 0.93] * 2), ("SRLSTM-released", [0.91, 0.1, 0.9, 0.2, 0.91])):
        for terms in ("", "/as-released"):
            config = recipe(f"table11/{model}/PMNIST/128{terms}").config
            for seed, value in enumerate(seeds):
                if terms and value == 0.9:
                    value = 0.3
                stopped = 5 if value == 0.1 else None
                make(tmp_path, config, seed, [value] * (stopped or 150), frozen=stopped)
    ours, released = curves.plots(exhibit("table11"), gather([tmp_path]))
    assert (ours.title, released.title) == ("PMNIST, n = 128", "PMNIST, n = 128, as released")
    assert [[each.name for each in plot.series] for plot in (ours, released)] == [
        ["LSTM", "SRLSTM-released"]
    ] * 2
    line = ours.series[1]
    assert (line.low[-1], line.middle[-1], line.high[-1]) == pytest.approx((10, 90, 91))
    assert len(line.seeds) == 5
    assert line.cut == "seed 1 stopped after 5 epochs"
    assert released.series[1].middle[-1] == pytest.approx(30)
    assert (ours.below, released.below) == ("", "SRLSTM-released")
    assert ours.window[0] < 90
    assert 92 < released.window[0] < 92.5
    assert b"below: SRLSTM-released" in figures.saved(figures.lines([ours, released], "a title"), "svg")


def test_no_two_lines_look_alike(tmp_path):
    """Nor do lines of two plots that share their legend, unless they have the same name."""
    names = [name for name in RECIPES if name.startswith("table1") and "/PMNIST/" in name]
    every = [*names, *(variant for name in names for variant in variants(name))]
    for config in {recipe(name).config.id: recipe(name).config for name in every}.values():
        make(tmp_path, config, 0, [0.9, 0.91])
    for table in ("table1", "table11"):
        drawn = [each for plot in curves.plots(exhibit(table), gather([tmp_path])) for each in plot.series]
        looks = {each.name: (each.colour, each.dash) for each in drawn}
        assert len(looks) > 15
        assert len(set(looks.values())) == len(looks)
        assert all(looks[each.name] == (each.colour, each.dash) for each in drawn)
        assert set(curves.DASHES.values()) <= set(figures._DASHES)


def test_no_rate_of_learning_is_said_of_a_run_that_goes_on(tmp_path):
    """Table 16 asks when an accuracy was reached: of 20 epochs nobody knows."""
    make(tmp_path, recipe("table1/LSTM/PMNIST/256").config, 0, [0.5] * 20, result=False)
    table = cost_tables.costs(exhibit("table16"), {"device": "no device", "rows": {}}, gather([tmp_path]))
    assert "not reached" not in table.rows[0].cells[3]
    assert not table.rows[0].data["not_reached"]


def test_a_seed_that_failed(tmp_path):
    for seed in range(3):
        make(tmp_path, PMNIST, seed, rising(0.93, 140))
    make(tmp_path, PMNIST, 3, rising(0.95, 20, 20), frozen=20 * STEPS + 7)
    make(tmp_path, PMNIST, 4, [], frozen=3)
    runs = gather([tmp_path])
    assert [seed.state for seed in runs.folders] == ["done"] * 3 + ["frozen"] * 2
    assert [seed.reason for seed in runs.folders][3:] == ["at step 8607", "at step 3"]
    came = outcome(runs.of(PMNIST), 150)
    assert (came.seeds, came.frozen, came.short) == ((0, 1, 2), {3: 8607, 4: 3}, {})
    found = row(runs)
    assert found.data["n"] == 3
    failed = "2 of 5 seeds failed (not finite: seed 3 at step 8607, seed 4 at step 3)"
    assert found.data["missing"] == failed
    assert found.data["failed"] == 2
    assert found.cells[5] == f"93.00 ± 0.00 (3); {failed}"
    assert found.cells[9].endswith("; of the 3 seeds that finished (on other terms)")
    assert "1 of 12 networks trained to the end, 1 with seeds that failed" in said(runs)
    # What counts comes before it failed.
    assert outcome(runs.of(PMNIST), 20).best == {
        **dict.fromkeys(range(3), pytest.approx(81.0)),
        3: pytest.approx(95.0),
    }


@pytest.mark.parametrize("count", [20, 0], ids=["after 20 epochs", "in the first epoch"])
def test_all_seeds_failed(tmp_path, count):
    """A failure is told as one: it is not merely short."""
    make(tmp_path, PMNIST, 0, rising(0.95, 20, count), frozen=count * STEPS + 3)
    found = row(gather([tmp_path]))
    assert found.cells[5] == f"1 of 1 seeds failed (not finite: seed 0 at step {count * STEPS + 3})"
    assert "mean" not in found.data
    said(gather([tmp_path]))
    assert found.cells[9] == "failed"
