"""The commands reproduce and report, at a tiny scale: the page is that of the folders, and it stops as told.

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
import webbrowser
from dataclasses import fields, replace
from pathlib import Path
from statistics import mean, stdev
from xml.etree import ElementTree

import pytest
import torch

pytest.importorskip("tyro", reason="the command line needs the extra momentumrnn[all]")
pytest.importorskip("rich", reason="the command line needs the extra momentumrnn[all]")
pytest.importorskip("safetensors", reason="the command line needs the extra momentumrnn[all]")
pytest.importorskip("jinja2", reason="the report needs the extra momentumrnn[all]")
pytest.importorskip("matplotlib", reason="the report needs the extra momentumrnn[all]")
pytest.importorskip("plotly", reason="the report needs the extra momentumrnn[all]")
pytest.importorskip("scipy", reason="the report needs the extra momentumrnn[all]")

from momentumrnn.__main__ import Report, Reproduce, main
from momentumrnn.cli import reproduce
from momentumrnn.cli.words import recorded
from momentumrnn.experiments import Adding, demo, folders, plan
from momentumrnn.experiments.cost import CONTENDERS
from momentumrnn.experiments.demo import NETWORKS
from momentumrnn.experiments.exhibits import EXHIBITS
from momentumrnn.experiments.folders import RunError
from momentumrnn.experiments.paper import RECIPES, VARIANTS
from momentumrnn.experiments.report import figures
from momentumrnn.experiments.trainer import Interrupted
from momentumrnn.installation import install_command

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
    monkeypatch.setattr(plan, "epoch_seconds", lambda *_: 1.0)
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

        monkeypatch.setattr(folders.os, "replace", stops)
        assert main(["report", "--out", "other"]) == 130
        assert_refused(capsys, "stopped")
        monkeypatch.setattr(folders.os, "replace", real)
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
    assert go("demo", "--device", "cuda") == 1
    assert_refused(capsys, "reproduce: device should be 'cpu'", "got 'cuda'")
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
    other = folders.Folder(tmp_path / "runs", RECIPES[ROWS[1]].config, 1)
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
    held.enter_context(folders.Folder(tmp_path / "runs", RECIPES[ROWS[0]].config, 1).locked())

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
    errors = iter([folders.LockedError("held"), RunError("damaged")])

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
            folder = folders.Folder(root, config, seed)
            with folder.locked():
                folder.begin()
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


@pytest.fixture
def timed(monkeypatch):
    """Of each timing what was asked; an epoch takes 10 seconds a seed."""
    asked = []

    def seconds(config, seeds, device, threads=None):
        asked.append((config, seeds, device.type, threads))
        return 10.0 * seeds

    monkeypatch.setattr(plan, "epoch_seconds", seconds)
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

    monkeypatch.setattr(plan, "epoch_seconds", lambda *_: 1.0)
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


def test_a_file_of_costs_that_is_none_is_named(tmp_path, capsys):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/cost-abacus.json").write_text("[]")
    assert main(["report"]) == 1
    assert_refused(capsys, "cost-abacus.json", "momentumrnn reproduce table14", "move it away")


def test_a_report_of_several_roots(tmp_path, capsys):
    assert run_demo("--root", "one", "--rows", "demo/MomentumLSTM") == 0
    assert run_demo("--root", "two", "--rows", "gain") == 0
    capsys.readouterr()
    assert main(["report", "--root", "one", "two", "--out", "both"]) == 0
    assert capsys.readouterr().out.startswith(f"The page: {Path('both/report.html')}")
    written = (tmp_path / "both/results.md").read_text()
    assert "6 runs of one seed each: 6 done." in written
    assert f"3 of {len(NETWORKS)} networks trained" in written


def test_a_folder_named_twice_is_one(tmp_path):
    assert run_demo("--rows", "gain") == 0
    assert main(["report", "--root", "runs", "./runs", "--out", "twice"]) == 0
    assert "doubled (" not in (tmp_path / "twice/results.md").read_text()


def test_a_root_that_is_missing_is_named(tmp_path, capsys):
    kept(tmp_path / "one")
    assert main(["report", "--root", "one", "two"]) == 1
    assert_refused(capsys, "report: ", "--root", "expected a folder of runs", "'two'")
    assert not (tmp_path / "report").exists()


def test_a_root_of_no_runs_is_refused_and_one_that_is_a_run_says_so(tmp_path, capsys):
    kept(tmp_path / "one")
    (tmp_path / "two/something").mkdir(parents=True)
    for empty in ("two", "two/something"):
        assert main(["report", "--root", "one", empty]) == 1
        assert_refused(capsys, "--root: expected a folder of run folders", repr(empty), "which has none")
    assert run_demo("--rows", "gain", "--out", "demo") == 0
    folder, *_ = runs_in(tmp_path / "runs")
    capsys.readouterr()
    assert main(["report", "--root", str(folder)]) == 1
    assert_refused(capsys, "--root", repr(str(folder)), f"a run folder: take {str(tmp_path / 'runs')!r}")
    assert not (tmp_path / "report").exists()


def bench(path, shape):
    case = {"shape": shape, "cell": "lstm", "momentum": "None", "status": "ok", "sizes": {"T": 2, "B": 3}}
    case["rows"] = {"ours": {"training_ms": 1.5}, "torch": {"training_ms": 3.0}}
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"device": "Abacus 9000", "date": "2026-01-01", "settings": {"repeats": 3}}
    path.write_text(json.dumps({**about, "cases": [case]}))


def test_benchmarks_of_files_and_folders(tmp_path, capsys):
    kept(tmp_path / "runs")
    # Those beside the runs by default; no others that lie somewhere, such as ours.
    bench(tmp_path / "runs/bench-usual.json", "usual128")
    bench(tmp_path / "runs/other.json", "other128")
    bench(tmp_path / "results/bench/ours.json", "ours128")
    bench(tmp_path / "some/first.json", "first128")
    bench(tmp_path / "some/second.json", "second128")
    for args, names in (
        ([], {"usual128"}),
        (["--bench", "some/first.json"], {"first128"}),
        (["--bench", "some"], {"first128", "second128"}),
        (["--bench", "some", "runs/bench-usual.json"], {"first128", "second128", "usual128"}),
    ):
        assert main(["report", *args]) == 0
        page = (tmp_path / "report/report.html").read_text()
        every = ("usual128", "other128", "ours128", "first128", "second128")
        assert {name for name in every if name in page} == names
    capsys.readouterr()
    (tmp_path / "report/report.html").unlink()
    assert main(["report", "--bench", "some", "nowhere"]) == 1
    assert_refused(capsys, "report: --bench: ", "'nowhere'")
    assert not (tmp_path / "report/report.html").exists()
    # Of a folder those of the benchmark are taken; a file is to be one.
    (tmp_path / "some/other.json").write_text("{}")
    assert main(["report", "--bench", "some", "some/other.json"]) == 1
    assert_refused(capsys, "report: --bench: ", "'some/other.json'")
    assert main(["report", "--bench", "some"]) == 0


@pytest.mark.parametrize("names", [["jinja2"], ["matplotlib"], ["plotly"], ["scipy"], ["plotly", "scipy"]])
def test_packages_that_are_missing_are_named(tmp_path, capsys, monkeypatch, names):
    kept(tmp_path / "runs")
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["report"]) == 1
    expected = f"{' and '.join(names)} should be installed: {install_command('all')}"
    assert_refused(capsys, f"report: {expected}")
    assert figure4("--rows", ROWS[0], "--seeds", "0") == 0
    out = capsys.readouterr().out
    assert out.index(expected) < out.index("epoch 1/2")
    assert "The page: " not in out
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("name", ["tyro", "rich", "safetensors"])
@pytest.mark.parametrize("command", [["reproduce", "demo"], ["report"]], ids=["reproduce", "report"])
def test_without_what_every_command_needs(tmp_path, capsys, monkeypatch, name, command):
    monkeypatch.setitem(sys.modules, name, None)
    assert main(command) == 1
    assert_refused(capsys, f"{name} should be installed: {install_command('all')}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", [True, False], ids=["browser", "none"])
@pytest.mark.parametrize("command", ["reproduce", "report"])
def test_the_page_is_opened_if_that_is_wished(tmp_path, capsys, monkeypatch, command, there):
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or there)
    kept(tmp_path / "runs")
    args = [command, *(["table6", "--device", "cpu"] if command == "reproduce" else [])]
    assert main([*args, "--open"]) == 0
    assert opened == [(tmp_path / "report/report.html").as_uri()]
    assert ("No browser could be opened" in capsys.readouterr().out) is not there


def test_the_record_names_no_folders():
    """However a place is spelt, and however many follow an option."""
    assert recorded(["reproduce", "demo", "--out", "/home/me/report", "--root=/home/me/runs"]) == (
        "momentumrnn reproduce demo --out report --root=runs"
    )
    several = ["--bench", "/home/me/one.json", "/home/me/two.json", "--plan"]
    assert recorded(["reproduce", "demo", *several]) == (
        "momentumrnn reproduce demo --bench one.json two.json --plan"
    )
    rows = ["reproduce", "table1", "--rows", "LSTM/PMNIST", "MNIST/256", "--also", "as-released"]
    assert recorded(rows) == f"momentumrnn {' '.join(rows)}"


def test_no_file_names_a_folder_of_the_machine(tmp_path, capsys):
    """Neither in run folders nor in the report, also where one is damaged."""
    bench(tmp_path / "hermitage/one.json", "first128")
    places = [f"--{name}={tmp_path / 'hermitage' / name}" for name in ("root", "out")]
    bench_file = ["--bench", str(tmp_path / "hermitage/one.json")]
    assert run_demo("--rows", "MomentumLSTM", "gain", *places, *bench_file) == 0
    folder, *_ = runs_in(tmp_path / "hermitage/root")
    (folder / "config.json").write_text("{")
    args = [f"--root={tmp_path / 'hermitage/root'}", f"--out={tmp_path / 'hermitage/out'}", *bench_file]
    assert main(["report", *args]) == 0
    found = tree(tmp_path)
    assert any(name.endswith("report.html") for name in found)
    assert [name for name, content in found.items() if b"hermitage" in content] == []
    results = (tmp_path / "hermitage/out/results.md").read_text()
    assert "1 damaged" in results
    assert "momentumrnn reproduce demo" in results


@pytest.mark.parametrize("kind", [Reproduce, Report])
def test_the_help_has_a_sentence_for_every_option(capsys, kind):
    with pytest.raises(SystemExit) as done:
        main([kind.__name__.lower(), "--help"])
    assert done.value.code == 0
    # In a box or not, as the terminal is.
    parts = re.split(r"^[^\w\n]*--(?=[a-z])", capsys.readouterr().out, flags=re.MULTILINE)[1:]
    names = [re.match(r"[a-z-]+", part)[0].replace("-", "_") for part in parts]
    assert names == [field.name for field in fields(kind) if field.name != "what"]
    assert all(re.search(r"\w\.\s", part) for part in parts), parts
