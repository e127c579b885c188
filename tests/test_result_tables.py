"""Tables of results, findings and costs, from run folders whose numbers are known."""

from statistics import mean, stdev

import pytest
from report_output import row, said
from run_folders import ADDING, PMNIST, ROW, STEPS, edit, lines_of, make, make_done, rising, write_lines

from momentumrnn.experiments.paper.controls import CONTROLS
from momentumrnn.experiments.paper.recipes import RECIPES, recipe, variants
from momentumrnn.experiments.paper.tables import exhibit
from momentumrnn.experiments.runs.gather import gather, outcome
from momentumrnn.experiments.runs.read import read
from momentumrnn.report import controls, cost_tables, curves, result_tables
from momentumrnn.report.findings import findings

stats = pytest.importorskip("scipy.stats", reason="reports need the extra momentumrnn[all]")

ALL_CONTROLS = {name for base in RECIPES for name in variants(base) if name.rpartition("/")[2] in CONTROLS}


def test_five_seeds_to_the_end(tmp_path):
    best = [0.93, 0.931, 0.935, 0.928, 0.933]
    for seed, value in enumerate(best):
        make(tmp_path, PMNIST, seed, rising(value, 140), rising(0.94, 120))
    table_row = row(gather([tmp_path]))
    values = [100 * value for value in best]
    assert table_row.data["n"] == 5
    assert [table_row.data[f"seed_{seed}"] for seed in range(5)] == pytest.approx(values)
    assert table_row.data["mean"] == pytest.approx(mean(values))
    assert table_row.data["sd"] == pytest.approx(stdev(values))
    # Validation is best at epoch 120, 20 before the best on the test set.
    assert table_row.data["mean_by_validation"] == pytest.approx(mean(values) - 2)
    assert (table_row.data["paper"], table_row.data["paper_sd"]) == (93.40, 0.25)
    assert table_row.cells[4:7] == ("93.40 ± 0.25", "93.14 ± 0.27 (5)", "91.14 ± 0.27")
    assert table_row.cells[7].startswith("-0.26 [")
    assert table_row.cells[8] == ""
    assert table_row.cells[9] == table_row.data["verdict"] == "within two sd (on other terms)"
    assert table_row.data["ours_minus_paper"] == pytest.approx(mean(values) - 93.40)
    assert not any("control" in key for key in table_row.data)
    assert table_row.data["missing"] == ""


def test_a_control_beside_its_network(tmp_path):
    """The network with momentum less the control, seed by seed; a control by itself says nothing."""
    control, plain = f"{ROW}/same-gain", "table11/LSTM/PMNIST/128"
    for seed, value in enumerate((0.92, 0.93)):
        make(tmp_path, recipe(control).config, seed, rising(value, 140))
    rows = result_tables.results(exhibit("table11"), gather([tmp_path])).rows
    assert control not in [line.data["recipe"] for line in rows]
    for seed, value in enumerate((0.94, 0.945, 0.90)):
        make(tmp_path, PMNIST, seed, rising(value, 140))
    table_row = row(gather([tmp_path]), control)
    assert table_row.kind == "control"
    assert table_row.data["network_minus_control"] == pytest.approx(1.75)
    low, high = stats.ttest_1samp([2.0, 1.5], 0).confidence_interval()
    ends = (table_row.data["network_minus_control_low"], table_row.data["network_minus_control_high"])
    assert ends == pytest.approx((low, high))
    assert not any("minus_paper" in key for key in table_row.data)
    assert table_row.cells[0] == "LSTM, input x 2.5 (control of MomentumLSTM: same gain)"
    names = {"network": "LSTM, input x 2.5", "control_of": "MomentumLSTM", "control": "same gain"}
    assert names.items() <= table_row.data.items()
    assert table_row.cells[3:7] == ("default", "", "92.50 ± 0.71 (2)", "-")
    assert table_row.cells[7:] == ("", "+1.75 [-1.43, +4.93]", "no difference seen")
    # With the step that is 1 the control is the baseline: one run, two rows.
    for seed in (0, 1):
        make(tmp_path, recipe(plain).config, seed, rising(0.9, 140))
    runs = gather([tmp_path])
    assert row(runs, f"{ROW}/same-step").data["mean"] == pytest.approx(90.0)
    # Without momentum and with a gain of 1 two of RMSProp's are that run as well: one row.
    name = "table11/RMSPropLSTM/PMNIST/128"
    make(tmp_path, recipe(name).config, 0, rising(0.95, 140))
    rows = result_tables.results(exhibit("table11"), gather([tmp_path])).rows
    assert [line.cells[0] for line in rows if name in line.data["recipe"]] == [
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
    sentences = findings(table, gather([tmp_path]))
    assert sentences[0].count("; SRLSTM -2.10 (1 seed; LSTM: 3 seeds).") == 2
    assert sentences[1] == published
    assert sentences[2] == (
        "PMNIST, n = 128, controls: MomentumLSTM is worse than its control with the same gain, and shows no "
        "difference from its control with the same forget bias; no control was run for SRLSTM."
    )
    # A network that goes on is in no sentence.
    make(tmp_path, recipe("table11/AdamLSTM/PMNIST/128").config, 0, rising(0.95, 20, 20), result=False)
    assert findings(table, gather([tmp_path])) == sentences


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
    assert controls.control_name(recipe(name)) == expected


def test_no_two_controls_of_a_network_have_one_name():
    """Unless they are one run."""
    for base in RECIPES:
        for terms in ("", "/as-released"):
            names = [name for name in variants(base) if name.rpartition("/")[0] == f"{base}{terms}"]
            ids = [recipe(name).config.id for name in names if name in ALL_CONTROLS]
            control_names = {controls.control_name(recipe(name)) for name in names if name in ALL_CONTROLS}
            assert len(control_names) == len(set(ids))


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
    (table_row,) = result_tables.losses(exhibit("table1"), gather([tmp_path])).rows
    assert table_row.data["mean"] == pytest.approx(mean(values))
    assert table_row.data["ours_minus_released"] == pytest.approx(mean(values) - 0.2752)
    welch = stats.ttest_ind_from_stats(mean(values), stdev(values), 3, 0.2752, 0.018, 4, equal_var=False)
    reach = stats.t.ppf(0.975, freedom(stdev(values) ** 2 / 3, 2, 0.018**2 / 4, 3))
    scale = (mean(values) - 0.2752) / welch.statistic
    above = table_row.data["ours_minus_released_high"] - table_row.data["ours_minus_released"]
    assert above == pytest.approx(reach * scale)
    assert table_row.cells[3:6] == ("default", "0.2752 ± 0.0180 (4)", "0.2760 ± 0.0066 (3)")
    assert table_row.cells[-1] == "within one sd (on other terms)"
    make(tmp_path, recipe(name).config, 3, rising(0.9, 20, 20), frozen=9000)
    (table_row,) = result_tables.losses(exhibit("table1"), gather([tmp_path])).rows
    assert table_row.cells[5].endswith("(3); 1 of 4 seeds failed (not finite: seed 3 at step 9000)")
    assert table_row.data["failed"] == 1
    assert not result_tables.losses(exhibit("table11"), gather([tmp_path])).rows


def freedom(first, m, second, n):
    """Degrees of freedom after Welch, of two variances of means."""
    return (first + second) ** 2 / (first**2 / m + second**2 / n)


def test_minutes_of_runs_as_they_were(tmp_path):
    """By the clock in their metrics, beside those made of costs; none where a seed is not there yet."""
    config = recipe("table1/LSTM/PMNIST/256").config
    for seed, at in enumerate((20, 30)):
        make(tmp_path, config, seed, [0.5] * (at - 1) + [0.93] * (151 - at))
    measured = {"device": "a device", "rows": {"ours/LSTM": {"train_ms": 0.01, "eval_ms": 0.002, "how": ""}}}
    row = cost_tables.costs(exhibit("table16"), measured, gather([tmp_path])).rows[0]
    ours, as_run = 25 * (55_000 * 0.01 + 10_000 * 0.002) / 60e3, 25 / 8 / 60
    assert (row.data["ours"], row.data["as_run"]) == pytest.approx((ours, as_run))
    assert row.cells[3:6] == ("25.0 (2)", f"{ours:.3g}", f"{as_run:.3g}")
    make(tmp_path, config, 2, [0.5] * 150)
    make(tmp_path, config, 3, [0.5] * 20, frozen=20 * STEPS + 7)
    row = cost_tables.costs(exhibit("table16"), measured, gather([tmp_path])).rows[0]
    assert row.cells[3:6] == ("25.0 (2); not reached: seed 2, 3", "-", "-")
    assert row.kind == ""


def test_a_seed_that_was_stopped_will_not_reach_it(tmp_path):
    """Table 16 asks when an accuracy was reached: a run that is over without it never does."""
    config = recipe("table1/LSTM/PMNIST/256").config
    make(tmp_path, config, 0, [0.5] * 19 + [0.93] * 131)
    folder = make(tmp_path, config, 1, [0.5] * 20, wanted=150)
    stop = {"step": 20 * STEPS, "epoch": 20, "by": "watcher", "reason": "enough"}
    edit("result.json", stopped=stop)(folder)
    runs = gather([tmp_path])
    assert [record.state for record in runs.folders] == ["done", "stopped"]
    table = cost_tables.costs(exhibit("table16"), {"device": "no device", "rows": {}}, runs)
    assert table.rows[0].cells[3] == "20.0 (1); not reached: seed 1"
    assert table.rows[0].data["not_reached"] == 1


def test_a_control_of_a_network_that_goes_on(tmp_path):
    """It was begun: nobody may say that it was not run."""
    make(tmp_path, PMNIST, 0, rising(0.93, 20, 20), result=False)
    make(tmp_path, recipe(f"{ROW}/same-gain").config, 0, rising(0.92, 140))
    table_row = row(gather([tmp_path]), f"{ROW}/same-gain")
    assert not any("minus" in key for key in table_row.data)
    assert table_row.cells[8:] == ("", "MomentumLSTM is not at its end")


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
    plot = next(plot for plot in curves.plots(exhibit("figure4"), runs) if plot.series)
    control = "LSTM, input x 20 (control of MomentumLSTM)"
    assert [line.name for line in plot.series] == ["MomentumLSTM", control]
    assert [line.label for line in plot.series] == ["MomentumLSTM", "LSTM, input x 20"]
    assert len({line.colour for line in plot.series}) == 1
    assert [line.name for line in plot.shown] == ["MomentumLSTM"]


def test_losses_of_a_figure(tmp_path):
    """What the paper has is the loss in training, at the end; it has no deviation, so ours is the measure."""
    for seed in (0, 1, 2):
        make(tmp_path, ADDING, seed, [0.2 - i / 100 for i in range(12)], [0.2] * 12)
    table_row = row(gather([tmp_path]), "figure4/LSTM/Adding/128", "figure4")
    last = [1 / 12, 1 / 12 + 0.001, 1 / 12 + 0.002]
    assert [table_row.data[f"seed_{seed}"] for seed in range(3)] == pytest.approx(last)
    assert table_row.data["ours_minus_paper"] == pytest.approx(mean(last) - 0.162)
    # Validation selects the first epoch of equals.
    assert table_row.data["mean_by_validation"] == 0.2
    assert table_row.cells[4] == "0.162"
    assert table_row.cells[5].startswith("0.0843")
    assert table_row.cells[9] == "lower"


def test_longer_than_the_paper(tmp_path):
    """The first 150 epochs count, whatever comes later."""
    whole = make_done(tmp_path / "whole")
    test = [*rising(0.93, 140), *[0.99] * 50]
    validation = [*rising(0.94, 120), *[0.99] * 50]
    other = make(tmp_path / "longer", PMNIST, 0, test, validation, wanted=200)
    assert read(other).reason == "epochs: 200"
    for root in (whole.parent, other.parent):
        result = outcome(gather([root]).of(PMNIST), 150)
        assert (result.best, result.valid) == (
            {0: pytest.approx(93.0)},
            {0: pytest.approx(100 * (0.93 - 20 / 1000))},
        )
        assert result.trained == {0: 1 / 150}


@pytest.mark.parametrize("result", [True, False], ids=["asked for 20", "stopped"])
def test_shorter_than_the_paper(tmp_path, result):
    make(tmp_path, PMNIST, 0, rising(0.93, 20, 20), wanted=20 if result else 150, result=result)
    runs = gather([tmp_path])
    assert runs.folders[0].state == ("done" if result else "short")
    assert runs.folders[0].reason == ("epochs: 20" if result else "epoch 20 of 150")
    table_row = row(runs)
    assert not {"n", "mean", "sd", "ours_minus_paper"} & set(table_row.data)
    assert table_row.data["missing"] == table_row.cells[5] == "seed 0: epoch 20 of 150"
    assert table_row.cells[9] == "a curve, no verdict"
    (plot,) = [plot for plot in curves.plots(exhibit("table11"), runs) if plot.series]
    (line,) = plot.series
    assert (line.epochs[-1], line.cut) == (20, "20 of 150 epochs")
    assert line.middle[-1] == pytest.approx(93.0)


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
    result = outcome(runs.of(PMNIST), 150)
    assert (result.seeds, result.frozen, result.short) == ((0, 1, 2), {3: 8607, 4: 3}, {})
    table_row = row(runs)
    assert table_row.data["n"] == 3
    failed = "2 of 5 seeds failed (not finite: seed 3 at step 8607, seed 4 at step 3)"
    assert table_row.data["missing"] == failed
    assert table_row.data["failed"] == 2
    assert table_row.cells[5] == f"93.00 ± 0.00 (3); {failed}"
    assert table_row.cells[9].endswith("; of the 3 seeds that finished (on other terms)")
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
    table_row = row(gather([tmp_path]))
    assert table_row.cells[5] == f"1 of 1 seeds failed (not finite: seed 0 at step {count * STEPS + 3})"
    assert "mean" not in table_row.data
    said(gather([tmp_path]))
    assert table_row.cells[9] == "failed"
