"""The command reproduce, at a tiny scale: the page is that of the folders, and it stops as told.

Knows the commands alone: how folders are read and how numbers become verdicts is tested elsewhere.
"""

import contextlib
import csv
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from reproduction import (
    NAMES,
    ROOT,
    ROWS,
    TORN,
    _tiny,  # noqa: F401  (a fixture that all tests here use)
    assert_refused,
    assert_whole,
    changed,
    figure4,
    go,
    kept,
    lines_of,
    losses,
    measured,
    recomputed,
    run_demo,
    runs_in,
    table,
    tree,
)

from momentumrnn.__main__ import main
from momentumrnn.cli import reproduce
from momentumrnn.experiments import demo, schedule
from momentumrnn.experiments.demo import NETWORKS
from momentumrnn.experiments.engine.signals import Interrupted
from momentumrnn.experiments.paper.recipes import RECIPES
from momentumrnn.experiments.runs import store
from momentumrnn.experiments.runs.store import Folder, LockedError, RunError


def test_the_demo_from_nothing_to_the_page_and_again(tmp_path, capsys):
    assert run_demo() == 0
    out, err = capsys.readouterr()
    assert err == ""
    root, report = tmp_path / "runs", tmp_path / "report"
    assert len(runs_in(root)) == 2 * len(NETWORKS)
    rows = table(out)
    written = (report / "results.md").read_text()
    with open(report / "tables/demo.csv") as file:
        data = {row["network"]: row for row in csv.DictReader(file)}
    for network in NETWORKS:
        words, _, half, end = rows[network.name]
        if network.control_of:
            assert words == f"control of {network.control_of}: {network.matched}"
        else:
            assert words == "no momentum" or repr(network.momentum).startswith(words.rstrip(")"))
        assert data[network.name]["momentum"] == repr(network.momentum)
        assert half == recomputed(root, network, 1)
        assert end == f"{recomputed(root, network, 3)} (2)"
        assert f"| {half} | {end} |" in written
        for seed, loss in losses(root, network, 3).items():
            assert float(data[network.name][f"seed_{seed}"]) == loss
    assert "after 5 steps" in written
    assert "after 15 steps (seeds)" in written
    assert "A network that always answers 1 has a loss of 0.1667." in out
    assert "The control of each network, a plain LSTM with a larger input, learned" in out
    assert "A control has no momentum." in out
    assert f"The page: {Path('report/report.html')}" in out
    assert (report / "report.html").read_text().startswith("<!")
    assert_whole(root, report)

    before = tree(tmp_path)
    assert run_demo() == 0
    again = capsys.readouterr().out
    assert again.count("done already") == len(NETWORKS)
    assert "epoch 1/" not in again
    assert table(again) == rows
    assert tree(tmp_path) == before


def test_fewer_epochs_train_nothing_and_more_go_on(tmp_path, capsys):
    assert run_demo() == 0
    trained = tree(tmp_path / "runs")
    rows = table(capsys.readouterr().out)
    assert run_demo("--epochs", "2") == 0
    out = capsys.readouterr().out
    assert out.count("done already") == len(NETWORKS)
    assert table(out) == rows
    assert tree(tmp_path / "runs") == trained
    assert run_demo("--epochs", "4") == 0
    out = capsys.readouterr().out
    assert out.count("goes on at step 15") == len(NETWORKS)
    for network in NETWORKS:
        half, end = (recomputed(tmp_path / "runs", network, epoch) for epoch in (2, 4))
        assert table(out)[network.name][2:] == [half, f"{end} (2)"]


def test_one_seed_and_one_epoch(capsys):
    assert run_demo("--seeds", "3", "--epochs", "1") == 0
    out = capsys.readouterr().out
    assert "seeds 3 on cpu" in out
    assert all("±" not in cell for row in table(out).values() for cell in row)


def test_the_default_seeds_are_as_the_help_says(capsys, monkeypatch):
    monkeypatch.setattr(schedule, "epoch_seconds", lambda *_: 1.0)
    assert go("demo", "--plan") == 0
    assert capsys.readouterr().out.count("seeds 0-2") == len(NETWORKS)
    assert go("figure4", "--plan", "--device", "cpu", "--rows", *ROWS) == 0
    assert capsys.readouterr().out.count("seeds 0-4") == len(ROWS)


def test_stopped_it_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    real, calls = reproduce.train, []

    def stops(*args, **options):
        calls.append(args)
        if len(calls) == 3:
            raise Interrupted(signal.SIGTERM)
        return real(*args, **options)

    monkeypatch.setattr(reproduce, "train", stops)
    assert run_demo() == 143
    out = capsys.readouterr().out
    assert "Stopped; all is saved. To go on: " in out
    assert "momentumrnn reproduce demo --seeds 0-1 --epochs 3" in out
    assert "±" not in out
    assert len(runs_in(tmp_path / "runs")) == 4
    assert not (tmp_path / "report").exists()
    monkeypatch.setattr(reproduce, "train", real)
    assert run_demo() == 0
    assert len(runs_in(tmp_path / "runs")) == 2 * len(NETWORKS)


def test_stopped_while_the_report_is_written(tmp_path, capsys, monkeypatch):
    """At every twentieth file: what is there is whole, and the next time all is."""
    assert run_demo("--rows", "gain") == 0
    whole, real = tree(tmp_path / "report"), os.replace
    for count in range(0, len(whole), 20):
        left = iter(range(count))

        def stops(source, target, left=left):
            if next(left, None) is None:
                raise KeyboardInterrupt
            real(source, target)

        monkeypatch.setattr(store.os, "replace", stops)
        assert main(["report", "--out", "other"]) == 130
        assert_refused(capsys, "stopped")
        monkeypatch.setattr(store.os, "replace", real)
        assert tree(tmp_path / "other").items() <= whole.items()
        assert not (tmp_path / "other/report.html").exists()
    assert main(["report", "--out", "other"]) == 0
    assert tree(tmp_path / "other") == whole


QUICK = ("--seeds", "0-1", "--epochs", "2", "--rows", "MomentumLSTM")
HANG = 900
"""Seconds after which a process hangs, however busy the machine is."""


def started(folder):
    """The command itself, as large as it is, on two networks."""
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "momentumrnn", "reproduce", "demo", *QUICK],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"},
    )


def stopped(folder, number, begins, later=0.0):
    """Send it a signal so many seconds after a line that begins so; returns its exit code and the rest."""
    child = started(folder)
    try:
        for line in child.stdout:
            if line.startswith(begins):
                break
        time.sleep(later)
        child.send_signal(number)
        rest = child.communicate(timeout=HANG)[0]
    finally:
        child.kill()
        child.wait()
    return child.returncode, rest


def numbers(folder):
    """What a run has found, without the time that it took."""
    result = json.loads((folder / "result.json").read_text())
    kept = {key: result[key] for key in ("id", "seed", "status", "epochs", "steps", "parameters", "frozen")}
    chosen = {rule: timeless(line) for rule, line in result["selected"].items()}
    return [timeless(line) for line in lines_of(folder)], kept, chosen


def timeless(line):
    return {key: value for key, value in line.items() if key != "seconds"}


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
def test_stopped_and_killed_anywhere_it_ends_as_if_it_had_not_been(tmp_path):
    """By Ctrl-C, by SIGTERM, by SIGKILL at some moments of training and in the report; real sizes."""
    child = started(tmp_path / "unbroken")
    said = child.communicate(timeout=HANG)[0]
    assert child.returncode == 0, said
    drawn = ElementTree.parse(tmp_path / "unbroken/report/figures/demo.svg")
    assert drawn.getroot().tag.endswith("}svg")
    broken = tmp_path / "broken"
    code, rest = stopped(broken, signal.SIGINT, "1/2 demo", 0.2)
    assert code == 130, rest
    assert re.search(r"Stopped; all is saved. To go on: \S*momentumrnn reproduce demo --seeds 0-1", rest)
    assert len(list((broken / "runs").glob("*/resume.pt"))) == 2
    code, rest = stopped(broken, signal.SIGTERM, "2/2 demo")
    assert code == 143, rest
    assert "Stopped; all is saved." in rest
    moments = random.Random(7)
    for _ in range(2):
        code, rest = stopped(broken, signal.SIGKILL, "2/2 demo", moments.uniform(0, 1.0))
        assert code == -signal.SIGKILL, rest
    child = started(broken)
    try:
        while not (broken / "report/figures").exists():
            assert child.poll() is None
            time.sleep(0.01)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    child = started(broken)
    said = child.communicate(timeout=HANG)[0]
    assert child.returncode == 0, said
    one, other = (runs_in(tmp_path / each / "runs") for each in ("unbroken", "broken"))
    assert [path.name for path in one] == [path.name for path in other]
    for left, right in zip(one, other, strict=True):
        assert numbers(left) == numbers(right)
        weights = (path / "model.safetensors" for path in (left, right))
        assert next(weights).read_bytes() == next(weights).read_bytes()
    assert tree(tmp_path / "unbroken/report") == tree(broken / "report")
    assert_whole(broken)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["tabel1"], ["there is no 'tabel1' to reproduce", "did you mean 'table1'"]),
        (["Table1"], ["there is no 'Table1' to reproduce; did you mean 'table1'?"]),
        (["figure12"], ["there is no 'figure12' to reproduce", "did you mean ", "'figure1'"]),
        ([""], ["there is no '' to reproduce; expected demo, all, or one of table1"]),
        (["demo", "--seeds", "a"], ["--seeds", "expected such as 3, 0-4 or 0,2,7", "got 'a'"]),
        (["demo", "--seeds", "1,1"], ["--seeds", "each once", "got '1,1'"]),
        (["demo", "--epochs", "0"], ["--epochs", "expected at least 1", "got 0"]),
        (["figure4", "--epochs", "-3"], ["--epochs", "expected at least 1", "got -3"]),
        (["demo", "--log-every", "0"], ["--log-every", "expected at least 1", "got 0"]),
        (["demo", "--threads", "0"], ["--threads", "expected at least 1", "got 0"]),
        (["demo", "--device", "gpu"], ["--device", "'cuda:1'", "got 'gpu'"]),
        (["demo", "--rows", "nonsense"], ["--rows", "demo/LSTM", "nonsense"]),
        (["table1", "--rows", "momentumlstm"], ["--rows", "; did you mean 'MomentumLSTM'?"]),
        (["table1", "--rows", "PMNIST/265"], ["--rows", "; did you mean 'PMNIST/256'"]),
        (["figure4", "--rows", "PMNIST"], ["--rows", "figure4/LSTM", "PMNIST"]),
        (["figure4", "--also", "contrls"], ["--also", "as-released", "'contrls'", "did you mean 'controls'"]),
        (["demo", "--also", "nonsense"], ["--also", "expected some of as-released", "'nonsense'"]),
    ],
)
def test_bad_options_are_refused_in_one_line(tmp_path, capsys, args, words):
    assert go(*args) == 2
    assert_refused(capsys, "reproduce: ", *words)
    assert list(tmp_path.iterdir()) == []


def test_of_several_rows_each_is_one(tmp_path, capsys):
    """A word with a slip in it is no wish for less."""
    assert go("demo", "--rows", "MomentumLSTM", "nonsense", "--seeds", "0", "--epochs", "1") == 2
    assert_refused(capsys, "--rows", "nonsense")
    assert list(tmp_path.iterdir()) == []


def test_the_demo_has_no_variants(tmp_path, capsys):
    assert go("demo", "--also", "same-gain", "--seeds", "0", "--epochs", "1") == 2
    assert_refused(capsys, "--also", "demo", "same-gain")
    assert list(tmp_path.iterdir()) == []


def test_what_has_no_rows_says_so(tmp_path, capsys, monkeypatch):
    """Nothing is measured, either."""
    monkeypatch.setattr(reproduce, "costs", measured())
    assert go("table14", "--device", "cpu", "--rows", "LSTM") == 2
    assert_refused(capsys, "--rows: expected none for table14", "'LSTM'")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(tmp_path, capsys):
    """As `run` refuses it."""
    assert go("demo", "--device", "cuda") == 2
    assert_refused(capsys, "reproduce: --device should be 'cpu'", "got 'cuda'")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((name, "TIMIT") for name in ("table2", "table5", "table12")),
        *((name, "Penn Treebank") for name in ("table3", "figure5")),
        ("figure2", "norms of gradients"),
        ("figure7", "grid"),
    ],
)
@pytest.mark.parametrize("args", [[], ["--plan"]], ids=["run", "plan"])
def test_what_cannot_be_run_yet_is_told(tmp_path, capsys, name, reason, args):
    assert go(name, *args) == 1
    assert_refused(capsys, f"reproduce: {name} can't be run: ", reason)
    assert list(tmp_path.iterdir()) == []


def test_what_needs_no_run_has_its_page(tmp_path, capsys):
    """Hyper-parameters and drawings."""
    assert go("table6", "--device", "cpu") == 0
    assert "The page: " in capsys.readouterr().out
    assert (tmp_path / "report/tables/table6.csv").exists()


def test_missing_files_of_a_data_set_are_named(tmp_path, capsys):
    assert go("table1", "--device", "cpu", "--seeds", "0") == 1
    err = capsys.readouterr().err
    assert "train-images-idx3-ubyte.gz is missing" in err
    assert "momentumrnn data get mnist" in err
    assert list(tmp_path.iterdir()) == []


def test_a_row_that_is_not_finite_does_not_keep_the_others(tmp_path, capsys, monkeypatch):
    changed(monkeypatch, ROWS[0], **TORN)
    assert figure4() == 1
    out, err = capsys.readouterr()
    assert err == f"momentumrnn: reproduce: {ROWS[0]}: not finite: seeds 0-1\n"
    assert len(runs_in(tmp_path / "runs")) == 2 * len(ROWS)
    assert out.count("epoch 2/2") == len(ROWS) - 1
    written = (tmp_path / "report/results.md").read_text()
    assert "2 of 2 seeds failed (not finite: seed 0 at step" in written
    assert f"momentumrnn reproduce figure4 --device cpu --seeds 0-1 --rows {' '.join(ROWS)}" in written


def test_a_row_that_cannot_go_on_does_not_keep_the_others(tmp_path, capsys):
    """A result without a checkpoint, as those that are published."""
    assert figure4("--epochs", "1", "--rows", "/MomentumLSTM/Adding") == 0
    for path in (tmp_path / "runs").glob("*/resume.pt"):
        path.unlink()
    before = tree(tmp_path / "runs")
    capsys.readouterr()
    assert figure4() == 1
    out, err = capsys.readouterr()
    assert err == f"momentumrnn: reproduce: {ROWS[1]} failed\n"
    assert re.search(rf"^2/3 {ROWS[1]}: \S+ has a result of 1 epochs and no checkpoint", out, re.MULTILINE)
    after = tree(tmp_path / "runs")
    assert before.items() <= after.items()
    assert len(runs_in(tmp_path / "runs")) == 2 * len(ROWS)
    assert (tmp_path / "report/report.html").exists()


def test_rows_that_another_process_trains_are_no_failures(tmp_path, capsys, monkeypatch):
    changed(monkeypatch, ROWS[2], **TORN)
    other = Folder(tmp_path / "runs", RECIPES[ROWS[1]].config, 1)
    with other.locked():
        assert figure4() == 1
    out, err = capsys.readouterr()
    assert f"2/3 {ROWS[1]}: another process trains it" in out
    assert out.count("another process trains it") == 2  # again at the end, when it may be over
    busy = f"another process trains {ROWS[1]}: run this again when it has ended"
    assert err == f"momentumrnn: reproduce: {ROWS[2]}: not finite: seeds 0-1; {busy}\n"
    assert (tmp_path / "report/report.html").exists()


def test_a_row_that_another_process_has_ended_meanwhile(tmp_path, capsys, monkeypatch):
    held, real = contextlib.ExitStack(), reproduce.train
    held.enter_context(Folder(tmp_path / "runs", RECIPES[ROWS[0]].config, 1).locked())

    def train(config, *args, **kwargs):
        if config.id == RECIPES[ROWS[2]].config.id:
            held.close()
        return real(config, *args, **kwargs)

    monkeypatch.setattr(reproduce, "train", train)
    assert figure4() == 0
    out = capsys.readouterr().out
    assert out.count("another process trains it") == 1
    assert len(runs_in(tmp_path / "runs")) == 2 * len(ROWS)


def test_a_row_that_another_process_left_damaged(capsys, monkeypatch):
    """It failed; nobody trains it any more."""
    errors = iter([LockedError("held"), RunError("damaged")])

    def train(config, *args, **kwargs):
        raise next(errors)

    monkeypatch.setattr(reproduce, "train", train)
    assert figure4("--rows", ROWS[0]) == 1
    assert capsys.readouterr().err == f"momentumrnn: reproduce: {ROWS[0]} failed\n"


def test_a_demo_of_which_no_epoch_was_finite(tmp_path, capsys, monkeypatch):
    """It is told, network by network."""
    monkeypatch.setattr(demo, "SETTINGS", {**demo.SETTINGS, **TORN})
    assert run_demo() == 1
    out, err = capsys.readouterr()
    assert all(f"{name}: not finite: seeds 0-1" in err for name in NAMES)
    assert all("2 of 2 seeds failed" in " ".join(row) for row in table(out).values())
    assert (tmp_path / "report/report.html").exists()


def test_a_report_of_a_demo_that_was_stopped_in_its_first_epoch(tmp_path, capsys, monkeypatch):
    def stops(config, chosen, *, root, **options):
        for seed in chosen:
            folder = Folder(root, config, seed)
            with folder.locked():
                folder.begin(data={})
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr(reproduce, "train", stops)
    assert run_demo() == 130
    assert main(["report"]) == 0
    assert "epoch 0 of 3" in (tmp_path / "report/results.md").read_text()


def test_what_a_user_put_beside_the_report_stays(tmp_path):
    assert run_demo("--rows", "gain") == 0
    mine = {
        f"{folder}/mine.{end}" for folder in ("figures", "tables") for end in ("svg", "pdf", "csv", "tex")
    }
    for name in mine:
        (tmp_path / "report" / name).write_text("mine")
    (tmp_path / "report/tables/demo.csv").write_text("stale")
    assert main(["report"]) == 0
    assert mine <= tree(tmp_path / "report").keys()
    assert (tmp_path / "report/tables/demo.csv").read_text() != "stale"


def test_what_an_older_report_left_is_taken_away(tmp_path):
    assert run_demo("--rows", "gain") == 0
    assert (tmp_path / "report/tables/demo.csv").exists()
    assert go("table6", "--device", "cpu", "--root", "none") == 0
    assert not (tmp_path / "report/tables/demo.csv").exists()
    assert not (tmp_path / "report/figures/demo.svg").exists()


def test_a_root_that_is_a_file_is_refused_once(tmp_path, capsys):
    (tmp_path / "runs").write_text("mine")
    assert run_demo() == 1
    out, err = capsys.readouterr()
    assert out.count("runs") + err.count("runs") <= 2
    assert "--root" in err
    assert "Errno" not in err
    assert tree(tmp_path) == {"runs": b"mine"}


def test_an_out_that_is_a_file_is_told_and_left(tmp_path, capsys):
    (tmp_path / "report").write_text("mine")
    assert run_demo("--rows", "gain") == 1
    expected = "--out: expected a new folder or that of a report, got 'report'"
    assert_refused(capsys, f"reproduce: {expected}")
    assert list(tmp_path.iterdir()) == [tmp_path / "report"]
    kept(tmp_path / "runs")
    assert main(["report"]) == 1
    assert_refused(capsys, f"report: {expected}")
    assert (tmp_path / "report").read_text() == "mine"


@pytest.mark.parametrize("content", [None, "[]", "mine", '{"cases": []}'])
def test_files_of_benchmarks_are_looked_for_before_anything_runs(tmp_path, capsys, content):
    """One that is not there, or of another kind, is named."""
    path = tmp_path / "some.json"
    if content is not None:
        path.write_text(content)
    before = tree(tmp_path)
    for given in ("some.json", ".") if content else ("some.json",):
        assert run_demo("--bench", given) == 1
        assert_refused(
            capsys, "--bench: expected files of momentumrnn bench --json", f"got {given!r}, which is "
        )
    assert tree(tmp_path) == before
