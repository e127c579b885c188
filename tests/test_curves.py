"""The lines of figures, from run folders whose numbers are known and from small real runs."""

from dataclasses import replace

import pytest
from run_folders import TINY, epochs_of, make

from momentumrnn.experiments import Watcher, train
from momentumrnn.experiments.paper.recipes import RECIPES, recipe, variants
from momentumrnn.experiments.paper.tables import exhibit
from momentumrnn.experiments.runs.gather import gather
from momentumrnn.report import curves, figures

for needed in ("safetensors", "matplotlib", "scipy"):
    pytest.importorskip(needed, reason="runs and reports need the extra momentumrnn[all]")


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
    assert [[line.name for line in plot.series] for plot in (ours, released)] == [
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
    names += [variant for name in names for variant in variants(name)]
    for config in {recipe(name).config.id: recipe(name).config for name in names}.values():
        make(tmp_path, config, 0, [0.9, 0.91])
    for table in ("table1", "table11"):
        lines = [line for plot in curves.plots(exhibit(table), gather([tmp_path])) for line in plot.series]
        looks = {line.name: (line.colour, line.dash) for line in lines}
        assert len(looks) > 15
        assert len(set(looks.values())) == len(looks)
        assert all(looks[line.name] == (line.colour, line.dash) for line in lines)
        assert set(curves.DASHES.values()) <= set(figures._DASHES)


class StopAfterTwoEpochs(Watcher):
    """Stops the first seed."""

    def epoch(self, run):
        if run.seed == 0 and len(run.epochs) == 2:
            run.stop("enough")


def test_a_seed_that_was_stopped_stays_where_it_was(tmp_path):
    """It is over, so that the median of the others alone would be that of another set of seeds."""
    config = replace(TINY, epochs=4)
    train(config, [0, 1], root=tmp_path, device="cpu", threads=1, watcher=StopAfterTwoEpochs())
    runs = gather([tmp_path])
    assert [record.state for record in runs.of(config).values()] == ["stopped", "done"]
    losses = [[line["test_loss"] for line in epochs_of(tmp_path / f"{config.id}-s{seed}")] for seed in (0, 1)]
    assert [len(curve) for curve in losses] == [2, 4]
    losses[0] += 2 * losses[0][-1:]
    for epochs in (0, 4):
        line = curves.drawn("a name", runs.of(config), curves.loss("test"), "#000000", "solid", epochs)
        assert line.cut == "seed 0 was stopped after 2 epochs"
        assert line.epochs == (1, 2, 3, 4)
        assert line.low == tuple(map(min, *losses))
        assert line.high == tuple(map(max, *losses))
        assert line.middle == pytest.approx([sum(pair) / 2 for pair in zip(*losses, strict=True)])
    # Where only its first epochs are asked for, nothing is missing.
    line = curves.drawn("a name", runs.of(config), curves.loss("test"), "#000000", "solid", 2)
    assert (line.cut, line.epochs) == ("", (1, 2))
