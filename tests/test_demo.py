"""The demo: its networks, their controls, and what its table and its lesson say of known losses."""

import math
from pathlib import Path

import pytest
import torch

import momentumrnn as mr
from momentumrnn.experiments import demo
from momentumrnn.experiments.demo import NETWORKS, entry, pairs
from momentumrnn.experiments.models import build
from momentumrnn.experiments.paper.controls import matched_step
from momentumrnn.experiments.runs.gather import Runs
from momentumrnn.experiments.runs.read import RunRecord
from momentumrnn.report import curves, demo_tables

BY_NAME = {network.name: network for network in NETWORKS}
STEPS = demo.steps()


def test_the_networks_are_those_of_the_paper_with_their_controls():
    """All networks with a mu, a step or a beta have the same."""
    networks = [network.name for network in NETWORKS if not network.control_of]
    assert networks == ["LSTM", "MomentumLSTM", "AdamLSTM", "RMSPropLSTM", "SRLSTM"]
    momenta = [BY_NAME[name].momentum for name in networks]
    assert momenta[0] is None
    assert {momentum.step for momentum in momenta[1:]} == {demo.STEP}
    assert BY_NAME["AdamLSTM"].momentum.mu == BY_NAME["MomentumLSTM"].momentum.mu
    assert BY_NAME["AdamLSTM"].momentum.beta == BY_NAME["RMSPropLSTM"].momentum.beta
    assert BY_NAME["SRLSTM"].momentum.every < demo.TASK.length
    assert demo.steps() == 50
    assert [network.name for network, _ in pairs()] == networks[1:]
    for network, control in pairs():
        assert control.momentum == mr.HeavyBall(mu=0.0, step=control.momentum.step)
        assert control.name == f"LSTM, input x {control.momentum.step:g}"
        assert NETWORKS.index(control) == NETWORKS.index(network) + 1


def test_each_run_and_each_name_is_there_once():
    assert len({entry(network).id for network in NETWORKS}) == len(NETWORKS)
    assert len(BY_NAME) == len({network.row for network in NETWORKS}) == len(NETWORKS)
    assert BY_NAME["LSTM, input x 2.5"].row == "MomentumLSTM/same-gain"


@pytest.mark.parametrize("name", ["MomentumLSTM", "SRLSTM"])
def test_controls_of_the_same_gain(name):
    """The mean drive of a constant input, over the period of a restart or in the long run."""
    ((network, control),) = [pair for pair in pairs() if pair[0].name == name]
    assert control.matched == "same gain"
    ones = torch.ones(500, 1, 1, dtype=torch.float64)
    tail = network.momentum(ones)[0][-10 * demo.EVERY :]
    assert tail.mean().item() == pytest.approx(control.momentum.step)


@pytest.mark.parametrize("name", ["AdamLSTM", "RMSPropLSTM"])
def test_controls_of_the_same_rms(name):
    """The stored steps are what new weights and training data give, within what seeds differ by."""
    ((network, control),) = [pair for pair in pairs() if pair[0].name == name]
    assert control.matched == "same rms"
    config, task = entry(network), demo.TASK
    steps = []
    for seed in range(100, 104):
        rows = tuple(row[:200] for row in task.rows(task.load(None), seed, 0))
        x, _ = task.batch((), (), rows)
        layer = build(config, seed).rnn
        steps.append(matched_step(config.momentum, x, layer.weight_ih_l0, layer.bias_ih_l0))
    assert sum(steps) / 4 == pytest.approx(control.momentum.step, rel=0.08)


def fabricated(losses, state="done", result=None):
    """Runs of the demo with these validation losses: by network, then by seed; None: not finite."""
    by_id = {}
    for name, seeds in losses.items():
        records = {}
        for number, values in enumerate(seeds):
            epochs = [
                {"epoch": e, "step": STEPS * e, "train_loss": 0.1, "validation_loss": v, "test_loss": 0.1}
                for e, v in enumerate(values, 1)
            ]
            records[number] = RunRecord(Path("a"), state, seed=number, epochs=epochs, result=result)
        by_id[entry(BY_NAME[name]).id] = records
    return Runs(by_id, [])


def learned(**epochs):
    """Runs of one seed that learn after so many of four epochs; infinite: never. By names without signs."""
    names = {name.replace(", input x ", "_").replace(".", "_"): name for name in BY_NAME}
    losses = {names[key]: [[0.2 if e < at else 0.01 for e in range(1, 5)]] for key, at in epochs.items()}
    return fabricated(losses)


def test_seeds_that_stop_or_never_learn():
    losses = {"LSTM": [[0.1, 0.05, 0.01], [0.1, None, 0.03], [0.1, 0.02]], "MomentumLSTM": [[0.2] * 3]}
    table = demo_tables.demo(fabricated(losses))
    half, end = (f"validation loss after {STEPS * e} steps" for e in (1, 3))
    assert table.columns == ("network", "what it is", "steps to a loss below 0.0833", half, f"{end} (seeds)")
    lstm, momentum, control, *_ = (row.cells for row in table.rows)
    ends = "0.0200 ± 0.0141 (2); seed 2: epoch 2 of 3"
    assert lstm == ("LSTM", "no momentum", f"{2 * STEPS} to {3 * STEPS}", "0.1000 ± 0.0000", ends)
    assert momentum[1:] == ("HeavyBall(mu=0.6, step=1.0)", "not yet", "0.2000", "0.2000 (1)")
    assert control[1:] == ("control of MomentumLSTM: same gain", *["not run"] * 3)
    assert [row.kind for row in table.rows] == ["", "", *["absent"] * (len(NETWORKS) - 2)]


def test_a_seed_that_fails_is_counted():
    runs = fabricated({"LSTM": [[0.1, 0.05]]})
    failed = fabricated({"LSTM": [[0.1]]}, "frozen", {"frozen": {"step": 70}})
    key = entry(BY_NAME["LSTM"]).id
    both = Runs({key: {0: runs.by_id[key][0], 1: failed.by_id[key][0]}}, [])
    assert demo_tables.demo(both).rows[0].cells[4] == (
        "0.0500 (1); 1 of 2 seeds failed (not finite: seed 1 at step 70)"
    )


START = "The control of each network, a plain LSTM with a larger input, learned sooner in "
HELPS = " So a larger input helps here, and momentum does not."


@pytest.mark.parametrize(
    ("runs", "lesson"),
    [
        ({"LSTM": 1, "MomentumLSTM": 2}, ""),
        ({"MomentumLSTM": 3, "LSTM_2_5": 2}, "1 of 1 pair."),
        (
            {"LSTM": 4, "MomentumLSTM": 3, "LSTM_2_5": 3, "AdamLSTM": 2, "LSTM_31_7": 1},
            f"1 of 2 pairs and as soon in 1.{HELPS}",
        ),
        (
            {"LSTM": 3, "MomentumLSTM": 4, "LSTM_2_5": 2, "AdamLSTM": 2, "LSTM_31_7": 1},
            f"2 of 2 pairs. MomentumLSTM learned later than the plain LSTM.{HELPS}",
        ),
        (
            {"LSTM": 2, "MomentumLSTM": 3, "LSTM_2_5": 3, "AdamLSTM": 2, "LSTM_31_7": 1},
            "1 of 2 pairs and as soon in 1. MomentumLSTM learned later than the plain LSTM.",
        ),
        (
            {"LSTM": 4, "MomentumLSTM": 2, "LSTM_2_5": 3, "AdamLSTM": 2, "LSTM_31_7": 2},
            "0 of 2 pairs and as soon in 1; MomentumLSTM learned sooner than its control.",
        ),
        (
            {"MomentumLSTM": 2, "LSTM_2_5": math.inf, "AdamLSTM": 2, "LSTM_31_7": 3},
            "0 of 2 pairs; MomentumLSTM and AdamLSTM learned sooner than theirs.",
        ),
        (
            {"MomentumLSTM": math.inf, "LSTM_2_5": math.inf, "AdamLSTM": math.inf, "LSTM_31_7": 3},
            "1 of 2 pairs; beside MomentumLSTM neither learned.",
        ),
    ],
)
def test_the_lesson_follows_the_numbers(runs, lesson):
    assert demo_tables.lesson(learned(**runs)) == (START + lesson if lesson else "")


def test_the_lesson_is_by_the_median_of_the_seeds():
    """One seed that learns early, or one that never does, changes nothing."""
    early, late, never = [0.01, 0.01], [0.2, 0.01], [0.2, 0.2]
    for seeds, words in (
        ([early, late, late], "; MomentumLSTM"),
        ([early, early, never], " and as soon in 1."),
    ):
        runs = fabricated({"MomentumLSTM": [early] * 3, "LSTM, input x 2.5": seeds})
        assert f"{START}0 of 1 pair{words}" in demo_tables.lesson(runs)


def test_what_was_trained():
    assert demo_tables.trained(learned(LSTM=2, MomentumLSTM=2)) == (
        "2 small networks were trained to add two marked numbers among 25: 64 units, 1 seed each, 200 "
        "training steps."
    )


def test_a_network_and_its_control_have_one_colour():
    """A line by itself is solid, a control is broken; no two lines look alike."""
    plot = curves.demo(fabricated({name: [[0.1, 0.01]] for name in BY_NAME}))
    looks = {line.name: (line.colour, line.dash) for line in plot.series}
    assert list(looks) == list(BY_NAME)
    assert len(set(looks.values())) == len(looks)
    for network, control in pairs():
        assert looks[network.name][0] == looks[control.name][0]
    assert {looks[network.name][1] for network, _ in pairs()} == {"solid"} == {looks["LSTM"][1]}
    assert {looks[control.name][1] for _, control in pairs()} == {"dash"}
    assert plot.shown == plot.series
