"""What reproduce would train and how long it takes, its variants, and the costs that it measures."""

import csv
import json
import re
import sys

import pytest
from reproduction import (
    ROWS,
    TORN,
    _tiny,  # noqa: F401  (a fixture that all tests here use)
    changed,
    figure4,
    go,
    measured,
    shown,
    tree,
)

from momentumrnn.cli import reproduce
from momentumrnn.experiments import Watcher, schedule, train
from momentumrnn.experiments.paper.controls import VARIANTS
from momentumrnn.experiments.paper.recipes import RECIPES
from momentumrnn.experiments.paper.tables import EXHIBITS
from momentumrnn.experiments.runs.store import RunError


@pytest.fixture
def timed(monkeypatch):
    """Of each timing what was asked; an epoch takes 10 seconds a seed."""
    asked = []

    def seconds(config, seeds, device, threads=None):
        asked.append((config, seeds, device.type, threads))
        return 10.0 * seeds

    monkeypatch.setattr(schedule, "epoch_seconds", seconds)
    return asked


def test_a_plan_runs_and_writes_nothing(tmp_path, capsys, timed):
    assert figure4("--plan", "--threads", "1") == 0
    out = capsys.readouterr().out
    rows = shown(out, ROWS)
    assert all(row == ["2", "-", "seeds 0-1", "40 s"] for row in rows.values())
    # LSTM, a linear momentum, and another are timed, each once.
    assert [(seeds, *rest) for _, seeds, *rest in timed] == [(2, "cpu", 1)] * 3
    assert re.findall(r"^timing (\S+), row \d+ of \d+$", out, re.MULTILINE) == ROWS
    assert "several times too high or too low" in out
    assert list(tmp_path.iterdir()) == []


def test_a_plan_tells_what_is_there(tmp_path, capsys, monkeypatch, timed):
    changed(monkeypatch, ROWS[2], **TORN)
    assert figure4("--seeds", "0") == 1
    assert figure4("--epochs", "1", "--seeds", "1") == 1
    capsys.readouterr()
    before = tree(tmp_path)
    assert figure4("--plan", "--seeds", "0-3") == 0
    out = capsys.readouterr().out
    rows = shown(out, ROWS)
    assert rows[ROWS[0]] == rows[ROWS[1]]
    epochs, done, todo, seconds = rows[ROWS[0]]
    assert (epochs, done, seconds) == ("2", "seeds 0", "60 s")
    assert re.fullmatch(r"seeds 2-3; seeds 1: 1 epochs to go", todo)
    assert rows[ROWS[2]] == ["2", "-, failed: 0-1", "seeds 2-3", "40 s"]
    assert "3 of 3 rows to run: 3 min in all" in out
    assert figure4("--plan", "--seeds", "0") == 0
    out = capsys.readouterr().out
    assert shown(out, ROWS)[ROWS[1]] == ["2", "seeds 0", "-", "-"]
    assert "0 of 3 rows to run: 0 s in all" in out
    assert "too high" not in out
    assert tree(tmp_path) == before


class Stops(Watcher):
    def epoch(self, run):
        run.stop("enough")


def test_a_plan_has_nothing_to_do_for_what_was_stopped(tmp_path, capsys, timed):
    """The same command trains nothing of it, either."""
    train(RECIPES[ROWS[0]].config, [0], root=tmp_path / "runs", device="cpu", watcher=Stops())
    before = tree(tmp_path)
    assert figure4("--plan", "--seeds", "0") == 0
    out = capsys.readouterr().out
    assert shown(out, ROWS)[ROWS[0]] == ["2", "-, stopped: 0", "-", "-"]
    assert "2 of 3 rows to run" in out
    assert tree(tmp_path) == before
    assert figure4("--rows", ROWS[0], "--seeds", "0") == 0
    assert f"1/1 {ROWS[0]}: done already" in capsys.readouterr().out
    assert tree(tmp_path).items() >= before.items()


def test_a_plan_needs_neither_data_nor_packages(tmp_path, capsys, monkeypatch, timed):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert go("table16", "--plan", "--device", "cpu", "--root", "there") == 0
    out = capsys.readouterr().out
    assert "table1/SRLSTM-released/PMNIST/256" in out
    assert "GPU" not in out
    assert re.search(r"costs of a sample.*on a CPU.*there/cost-\S+\.json$", out, re.MULTILINE)
    assert "is there" not in out
    assert list(tmp_path.iterdir()) == []


def test_all_is_every_row_once(capsys, timed):
    assert go("all", "--plan", "--device", "cpu", "--seeds", "0") == 0
    out = capsys.readouterr().out
    named = re.findall(r"^ *((?:table|figure)\d+/\S+)", out, re.MULTILINE)
    assert len(named) == len(set(named))
    needed = {RECIPES[name].config.id for each in EXHIBITS.values() for name in each.recipes}
    assert {RECIPES[name].config.id for name in named} == needed
    absent = sum("MNIST" in name for name in named)
    assert 0 < absent < len(named)
    assert f"{len(named) - absent} of {len(named)} rows to run" in out
    assert f"with their data {absent} more: " in out
    assert out.count("; no data ") == absent


def test_variants_stand_beside_their_rows(capsys, timed):
    """As released, controls, and controls as released; a run once."""
    args = ("--plan", "--device", "cpu", "--rows", "MomentumLSTM/PMNIST/128", "--also")
    base = "table11/MomentumLSTM/PMNIST/128"

    def named(*also):
        assert go("table11", *args, *also) == 0
        rows = re.findall(rf"^ *{base}(\S*)", capsys.readouterr().out, re.MULTILINE)
        return [row.removeprefix("/") for row in rows]

    assert named("as-released") == ["", "as-released"]
    assert named("same-gain") == ["", "same-gain"]
    controls = ["same-step", "same-gain", "same-input-gain", "same-forget-bias"]
    assert {*controls, "as-released"} == {*RECIPES[base].variants} < {*VARIANTS}
    assert named("controls") == ["", *controls]
    released = ["as-released", *(f"as-released/{name}" for name in controls)]
    assert named("controls", "as-released") == ["", *controls, *released]


def test_controls_are_run_and_shown(tmp_path, capsys):
    assert figure4("--rows", "/MomentumLSTM/Adding", "--also", "controls") == 0
    out = capsys.readouterr().out
    variants = [key for key in RECIPES[ROWS[1]].variants if key != "as-released"]
    assert len(variants) > 1
    assert all(f"{ROWS[1]}/{key}: seeds 0-1" in out for key in variants)
    written = (tmp_path / "report/results.md").read_text()
    for key in variants:
        assert f" (control of MomentumLSTM: {key.replace('-', ' ')}) |" in written


def test_costs_are_measured_and_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(reproduce, "costs", measured())
    assert go("table14", "--device", "cpu", "--root", "here") == 0
    assert "ours/LSTM: measured" in capsys.readouterr().out
    (path,) = (tmp_path / "here").iterdir()
    assert re.fullmatch(r"cost-[a-z0-9-]+\.json", path.name)
    assert json.loads(path.read_text())["command"] == "momentumrnn reproduce table14 --device cpu --root here"
    written = (tmp_path / "report/results.md").read_text()
    assert "Measured on Abacus 9000." in written
    assert "| MomentumLSTM | training | 7.43 | 2 |  | 0.5 | 4 |  |" in written
    assert "| LSTM | training | 15.93 | 8 | 8 | 8 | 1 | 1 |" in written
    with open(tmp_path / "report/tables/table14.csv") as file:
        first = next(csv.DictReader(file))
    assert (first["ours"], first["torch_nn"], first["device"]) == ("0.5", "2.0", "Abacus 9000")
    assert (tmp_path / "report/figures/table14.svg").exists()

    monkeypatch.setattr(schedule, "epoch_seconds", lambda *_: 1.0)
    capsys.readouterr()
    assert go("table15", "--plan", "--device", "cpu", "--root", "here") == 0
    assert "is there" in capsys.readouterr().out


def test_stopped_while_costs_are_measured_it_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    def stops(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduce, "costs", stops)
    assert go("table14", "--device", "cpu") == 130
    out = capsys.readouterr().out
    assert re.search(r"Stopped; .* To go on: \S*momentumrnn reproduce table14 --device cpu\n", out)
    assert not (tmp_path / "report").exists()


def test_costs_that_cannot_be_measured_keep_nobody_from_the_page(tmp_path, capsys, monkeypatch):
    def fails(*_):
        raise RunError("cost-abacus.json should have other rows")

    monkeypatch.setattr(reproduce, "costs", fails)
    assert go("table14", "--device", "cpu") == 1
    out, err = capsys.readouterr()
    assert err == "momentumrnn: reproduce: the costs were not measured\n"
    assert "cost-abacus.json should have other rows" in out
    assert (tmp_path / "report/report.html").exists()
