"""What the tests of reproduce and report share: a demo and rows of figure 4 that take no time."""

import json
import re
import webbrowser
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import pytest

pytest.importorskip("tyro", reason="the command line needs the extra momentumrnn[all]")
pytest.importorskip("rich", reason="the command line needs the extra momentumrnn[all]")
pytest.importorskip("safetensors", reason="the command line needs the extra momentumrnn[all]")
pytest.importorskip("jinja2", reason="the report needs the extra momentumrnn[all]")
pytest.importorskip("matplotlib", reason="the report needs the extra momentumrnn[all]")
pytest.importorskip("plotly", reason="the report needs the extra momentumrnn[all]")
pytest.importorskip("scipy", reason="the report needs the extra momentumrnn[all]")

from momentumrnn.__main__ import main
from momentumrnn.experiments import Adding, demo
from momentumrnn.experiments.cost import CONTENDERS
from momentumrnn.experiments.demo import NETWORKS
from momentumrnn.experiments.paper.recipes import RECIPES
from momentumrnn.report import figures

ROOT = Path(__file__).parent.parent
TINY = Adding(length=5, samples=50, evaluation=20)
NAMES = [f"demo/{network.row}" for network in NETWORKS]
ROWS = [f"figure4/{model}/Adding/128" for model in ("LSTM", "MomentumLSTM", "AdamLSTM")]
TORN = {"optimizer": "sgd", "lr": 1e38}


@pytest.fixture(autouse=True)
def _tiny(tmp_path, monkeypatch):
    """A demo and rows of figure 4 that take no time, 5 steps in an epoch, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOMENTUMRNN_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("MOMENTUMRNN_COMMIT", "0" * 40)
    monkeypatch.setattr(demo, "TASK", TINY)
    monkeypatch.setattr(demo, "SETTINGS", {**demo.SETTINGS, "hidden_size": 4, "batch_size": 10})
    for name in RECIPES:
        if name.startswith("figure4/") and "/Adding/" in name:
            changed(monkeypatch, name, task=TINY, hidden_size=4, batch_size=10, epochs=2)
    # Whoever opens a page unasked fails.
    monkeypatch.setattr(webbrowser, "open", None)
    # Pictures take seconds; whoever runs as a process of its own has them whole.
    monkeypatch.setattr(figures, "saved", lambda figure, kind: f"<{kind}/>".encode())


def changed(monkeypatch, name, **fields):
    row = RECIPES[name]
    monkeypatch.setitem(RECIPES, name, replace(row, config=replace(row.config, **fields)))


def go(*args):
    return main(["reproduce", *args])


def run_demo(*args):
    return go("demo", "--seeds", "0-1", "--epochs", "3", *args)


def figure4(*args):
    """Three rows of it."""
    return go("figure4", "--device", "cpu", "--seeds", "0-1", "--rows", *ROWS, *args)


def tree(path):
    """The content of every file, by its place."""
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def runs_in(root):
    return sorted(p for p in root.iterdir() if p.is_dir())


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def shown(out, names):
    """The lines of a printed table by their first cell, each as a list of the others."""
    rows = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines()]
    found = {row[0]: row[1:] for row in rows if row[0] in names}
    assert list(found) == list(names)
    return found


def table(out):
    return shown(out, [network.name for network in NETWORKS])


def losses(root, network, epoch):
    """The validation losses after an epoch, by seed, as the folders have them."""
    found = {}
    for folder in runs_in(root):
        given = json.loads((folder / "config.json").read_text())
        if given["config"]["momentum"] == repr(network.momentum):
            (line,) = [line for line in lines_of(folder) if line.get("epoch") == epoch]
            found[given["seed"]] = line["validation_loss"]
    return found


def recomputed(root, network, epoch):
    values = losses(root, network, epoch).values()
    assert len(values) == 2
    return f"{mean(values):.4f} ± {stdev(values):.4f}"


def assert_whole(*places):
    """No file is half-written or left over."""
    found = [path for place in places for path in place.rglob(".*")]
    assert found == []


def assert_refused(capsys, *words):
    """One line on standard error."""
    err = capsys.readouterr().err
    assert err.startswith("momentumrnn: ")
    assert err.count("\n") == 1
    assert all(word in err for word in words), err


def measured(device="Abacus 9000", date="2026-01-01T00:00:00+00:00"):
    """A stand-in for `costs`, which writes what it would have measured there."""

    def costs(path, kind, command, note):
        row = {"eval_ms": 0.25, "train_mb": 8.0, "eval_mb": 4.0, "how": "", "loss": 2.3, "errors": {}}
        rows = {name: {"train_ms": 0.5 if name.startswith("ours") else 2.0, **row} for name in CONTENDERS}
        path.parent.mkdir(parents=True, exist_ok=True)
        about = {"task": "PMNIST", "hidden_size": 256, "device": device, "date": date, "command": command}
        path.write_text(json.dumps({**about, "rows": rows}))
        note("ours/LSTM: measured")

    return costs


def kept(root):
    """A root that a report can be made of, in no time."""
    measured()(root / "cost-abacus.json", "cpu", "", str)
