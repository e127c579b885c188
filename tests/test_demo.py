"""The demo at a tiny scale: its table is that of the folders, its plots can be read, and it stops as told."""

import json
import math
import os
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, stdev
from xml.etree import ElementTree

import pytest

pytest.importorskip("tyro", reason="the command line needs the extra momentumrnn[all]")
pytest.importorskip("rich", reason="the command line needs the extra momentumrnn[all]")
pytest.importorskip("safetensors", reason="the command line needs the extra momentumrnn[all]")

from momentumrnn.__main__ import Demo, main
from momentumrnn.cli import demo
from momentumrnn.cli.demo import NETWORKS, Found, between, lessons, spread
from momentumrnn.experiments import Adding
from momentumrnn.experiments.folders import RunError
from momentumrnn.experiments.paper import RECIPES
from momentumrnn.experiments.trainer import Interrupted
from momentumrnn.momentum import HeavyBall

ROOT = Path(__file__).parent.parent
SPREAD = r"\d\.\d{4} ± \d\.\d{4}"


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    """A task and networks that take no time: 5 steps in an epoch."""
    monkeypatch.setattr(demo, "TASK", Adding(length=5, samples=50, evaluation=20))
    monkeypatch.setattr(demo, "SETTINGS", {**demo.SETTINGS, "hidden_size": 4, "batch_size": 10})


@pytest.fixture
def plots():
    return pytest.importorskip("matplotlib", reason="plots need the extra momentumrnn[all]")


def go(root, *args):
    return main(["demo", "--root", str(root), "--seeds", "0-1", "--epochs", "3", *args])


def table(out):
    """The lines of the table by the name of the network, each as a list of its cells."""
    names = [network.name for network in NETWORKS]
    rows = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines() if " ± " in line]
    rows = [row for row in rows if row[0] in names]
    assert [row[0] for row in rows] == names
    return {row[0]: row[1:] for row in rows}


def folders(root):
    return sorted(p for p in root.iterdir() if p.is_dir())


def recomputed(root, momentum, epoch):
    """Mean ± sd of the validation loss after an epoch, over the seeds that are in the folders."""
    values = []
    for path in folders(root):
        if json.loads((path / "config.json").read_text())["config"]["momentum"] == repr(momentum):
            lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
            values += [line["validation_loss"] for line in lines if line.get("epoch") == epoch]
    assert len(values) == 2
    return f"{mean(values):.4f} ± {stdev(values):.4f}"


def assert_plots(root):
    svg = ElementTree.parse(root / "demo.svg").getroot()
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    content = (root / "demo.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    assert width > height > 500


def test_from_beginning_to_end_and_again(tmp_path, capsys, plots):
    assert go(tmp_path) == 0
    out = capsys.readouterr().out
    assert len(folders(tmp_path)) == 2 * len(NETWORKS)
    rows = table(out)
    for network in NETWORKS:
        half, end, _, speed = rows[network.name]
        assert half == recomputed(tmp_path, network.momentum, 1)
        assert end == recomputed(tmp_path, network.momentum, 3)
        assert float(speed) > 0
    assert "after 5 steps" in out
    assert "after 15 steps" in out
    assert "mean ± sd over seeds 0-1; always answering 1: 0.1667" in out
    assert "is a control: no momentum" in out
    assert f"The plot: {tmp_path / 'demo.svg'} and {tmp_path / 'demo.png'}" in out
    assert_plots(tmp_path)

    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert go(tmp_path) == 0
    again = capsys.readouterr().out
    assert "nothing was trained" in again
    assert table(again) == rows
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_fewer_epochs_are_the_beginning_and_more_go_on(tmp_path, capsys):
    assert go(tmp_path) == 0
    capsys.readouterr()
    assert go(tmp_path, "--epochs", "2") == 0
    out = capsys.readouterr().out
    assert "nothing was trained" in out
    for network in NETWORKS:
        assert table(out)[network.name][1] == recomputed(tmp_path, network.momentum, 2)
    assert go(tmp_path, "--epochs", "4") == 0
    out = capsys.readouterr().out
    assert out.count("goes on at step 15") == len(NETWORKS)
    for network in NETWORKS:
        assert table(out)[network.name][:2] == [recomputed(tmp_path, network.momentum, e) for e in (2, 4)]


def test_one_seed_and_one_epoch(tmp_path, capsys, plots):
    assert go(tmp_path, "--seeds", "3", "--epochs", "1") == 0
    out = capsys.readouterr().out
    assert "seed 3; always answering 1" in out
    assert "±" not in out
    assert_plots(tmp_path)


def test_without_matplotlib_the_table_is_there(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert go(tmp_path, "--epochs", "1") == 0
    out = capsys.readouterr().out
    assert len(table(out)) == len(NETWORKS)
    assert "matplotlib should be installed: pip install 'momentumrnn[all]'" in out
    assert "The plot:" not in out
    assert not list(tmp_path.glob("demo.*"))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            ["--seeds", "a"],
            "demo: --seeds: expected such as 3, 0-4 or 0,2,7, each once, up to 1000 below 2**32, got 'a'",
        ),
        (["--seeds", "1,1"], "demo: --seeds: expected such as 3, 0-4"),
        (["--epochs", "0"], "demo: --epochs: expected at least 1, got 0"),
        (["--epochs", "-3"], "demo: --epochs: expected at least 1, got -3"),
    ],
)
def test_bad_options_are_refused(tmp_path, capsys, args, words):
    assert go(tmp_path, *args) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_root_that_is_no_folder_is_refused(tmp_path, capsys):
    root = tmp_path / "file"
    root.write_text("mine")
    assert go(root) == 1
    assert "momentumrnn: demo: " in capsys.readouterr().err
    assert root.read_text() == "mine"


def test_a_plot_that_cannot_be_written_is_told(tmp_path, capsys, plots):
    (tmp_path / "demo.svg").mkdir()
    assert go(tmp_path, "--epochs", "1") == 1
    said = capsys.readouterr()
    assert len(table(said.out)) == len(NETWORKS)
    assert "demo: the plot could not be written" in said.err


def test_what_training_refuses_is_told(tmp_path, capsys, monkeypatch):
    def fails(*args, **options):
        raise RunError("no room")

    monkeypatch.setattr(demo, "train", fails)
    assert go(tmp_path) == 1
    assert capsys.readouterr().err == "momentumrnn: demo: no room\n"


def test_stopped_it_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    real, calls = demo.train, []

    def stops(*args, **options):
        calls.append(args)
        if len(calls) == 3:
            raise Interrupted(2)
        return real(*args, **options)

    monkeypatch.setattr(demo, "train", stops)
    assert go(tmp_path) == 130
    out = capsys.readouterr().out
    assert "To go on: " in out
    assert f"momentumrnn demo --root {tmp_path} --seeds 0-1 --epochs 3" in out
    assert "±" not in out
    assert len(folders(tmp_path)) == 4
    monkeypatch.setattr(demo, "train", real)
    assert go(tmp_path) == 0
    assert len(folders(tmp_path)) == 2 * len(NETWORKS)


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
def test_ctrl_c_saves_and_stops(tmp_path):
    """The command itself, as large as it is."""
    child = subprocess.Popen(
        [sys.executable, "-m", "momentumrnn", "demo", "--root", str(tmp_path), "--seeds", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
    )
    try:
        for line in child.stdout:
            if line.startswith("epoch 1/"):
                break
        time.sleep(0.2)
        child.send_signal(signal.SIGINT)
        rest = child.communicate(timeout=60)[0]
    finally:
        child.kill()
    assert child.returncode == 130
    assert re.search(r"Stopped; all is saved. To go on: \S*momentumrnn demo --root", rest)
    assert [p for p in folders(tmp_path) if (p / "resume.pt").exists()]


def test_the_networks_are_those_of_the_paper_and_the_control():
    """All with one mu, one step and one beta."""
    named = {network.name: network.momentum for network in NETWORKS}
    assert list(named)[:5] == ["LSTM", "MomentumLSTM", "AdamLSTM", "RMSPropLSTM", "SRLSTM"]
    given = named["MomentumLSTM"]
    assert named["LSTM"] is None
    assert named["LSTM gain 2.5"] == HeavyBall(mu=0.0, step=given.step / (1 - given.mu))
    assert {m.step for name, m in named.items() if m and "gain" not in name} == {given.step}
    assert named["AdamLSTM"].mu == given.mu
    assert named["AdamLSTM"].beta == named["RMSPropLSTM"].beta
    assert len({network.colour for network in NETWORKS}) == len({n.marker for n in NETWORKS}) == len(NETWORKS)


def test_restarts_happen(monkeypatch):
    monkeypatch.undo()
    sr = next(network.momentum for network in NETWORKS if network.name == "SRLSTM")
    assert sr.every < demo.TASK.length
    # As the options say.
    assert demo.steps() == 50
    assert Demo().seeds == "0-2"


def test_what_comes_next_can_be_run():
    assert demo.NEXT in RECIPES


def test_seeds_that_stop_or_never_learn():
    nan = math.nan
    found = Found(NETWORKS[0], [[0.1, 0.05, 0.01], [0.1, nan, 0.03], [0.1, 0.02]], 1.0)
    assert found.at(2) == [0.05, 0.02]
    assert found.at(3) == [0.01, 0.03]
    assert found.below(0.06) == [2, 3, 2]
    assert found.below(0.015) == [3, math.inf, math.inf]
    assert demo.last(found) == pytest.approx(0.02)
    assert between(found.below(0.015)) == "3 to never"
    assert between([math.inf]) == "never"
    assert spread([]) == "-"
    assert spread([0.25]) == "0.2500"


def test_lessons_follow_the_numbers():
    """The order is that of the numbers: ties together, and those that don't learn apart."""
    curves = {0: [[0.1, 0.1]], 1: [[0.1, 0.01]], 2: [[0.01, 0.01]], 3: [[0.02, 0.1]]}
    found = [Found(NETWORKS[i], each, 1.0) for i, each in curves.items()]
    first = lessons(found, 0.05)[0]
    assert "in this order: AdamLSTM and RMSPropLSTM, then MomentumLSTM." in first
    assert first.endswith("stayed above 0.0500: LSTM.")
    assert "in this order" not in lessons(found[:1], 0.05)[0]


def test_a_network_without_a_loss_is_not_drawn(tmp_path, capsys, plots):
    """Frozen in the first epoch."""
    found = [Found(NETWORKS[0], [[], []], 0.0), Found(NETWORKS[1], [[0.1, 0.01], [0.2]], 1.0)]
    demo.plot(tmp_path, found, 2, [0, 1])
    assert_plots(tmp_path)
    text = (tmp_path / "demo.svg").read_text()
    assert "MomentumLSTM" in text
    assert NETWORKS[0].colour not in text

    from rich.console import Console

    demo.report(Console(width=110), found, 2, [0, 1])
    out = capsys.readouterr().out
    assert re.search(r"LSTM \(2 frozen\) +- +- +never +0", out)
    assert re.search(rf"MomentumLSTM \(1 frozen\) +{SPREAD} +0.0100", out)
