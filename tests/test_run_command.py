"""The command run: settings by --set, names of what differs from a recipe, early ends, one's own classes."""

import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys

import pytest
import torch
from test_cli import TINY, folders, go

from momentumrnn.__main__ import Run, main
from momentumrnn.cli import run
from momentumrnn.experiments import Adding, Config, Watcher, change, configure, train
from momentumrnn.experiments.engine.replicas import Replicas
from momentumrnn.experiments.paper.recipes import RECIPES

TASK = Adding(length=6, samples=100, evaluation=20)
RECIPE = "figure4/LSTM/Adding/128"
SMALL = ["--set", f"task={TASK!r}", "hidden_size=4"]
NAME = f"{RECIPE} with task.length=6, task.samples=100, task.evaluation=20, hidden_size=4"


def small_recipe(root, *args):
    return main(["run", "--recipe", RECIPE, *SMALL, "--device", "cpu", "--root", str(root), *args])


def record(root):
    """What config.json of the only run folder says."""
    (folder,) = root.iterdir()
    return json.loads((folder / "config.json").read_text())


def request(**options):
    return run.read_request(Run(**options))


def test_settings_change_a_recipe_and_a_task():
    config = RECIPES["table11/LSTM/PMNIST/128"].config
    settings = (("task.permutation=seed", "init.forget_bias=3.5"), ("momentum=HeavyBall(mu=0.3)",))
    changed = request(recipe="table11/LSTM/PMNIST/128", settings=settings).config
    assert changed == change(config, [text for group in settings for text in group])
    assert changed.task.permutation == "seed"
    base = configure(Adding(), lr=0.5)
    assert request(task="Adding()", lr=0.5, settings=(("clip=2",),)).config == change(base, ["clip=2"])


def test_settings_apply_after_the_other_options():
    options = {
        "task": "Adding()",
        "momentum": "Adam()",
        "lr": 0.5,
        "settings": (("lr=0.25", "momentum.mu=0.3"),),
    }
    config = request(**options).config
    assert (config.lr, config.momentum.mu) == (0.25, 0.3)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"recipe": "table11/LSTM/PMNIST/128"}, "table11/LSTM/PMNIST/128"),
        (
            {
                "recipe": "table11/LSTM/PMNIST/128",
                "settings": (("task.permutation=seed", "init.forget_bias=3.5"),),
            },
            "table11/LSTM/PMNIST/128 with task.permutation='seed', init.forget_bias=3.5",
        ),
        ({"recipe": RECIPE, "lr": 0.5}, f"{RECIPE} with lr=0.5"),
        ({"recipe": RECIPE, "patience": 4}, f"{RECIPE} with patience=4"),
        ({"recipe": RECIPE, "epochs": 3, "log_every": 7}, RECIPE),
        (
            {"recipe": RECIPE, "epochs": 3, "clip": 2.0, "settings": (("log_every=7",),)},
            f"{RECIPE} with clip=2.0",
        ),
        (
            {"recipe": f"{RECIPE.replace('LSTM', 'MomentumLSTM')}/same-gain"},
            "figure4/MomentumLSTM/Adding/128/same-gain",
        ),
        ({"task": "Adding()", "lr": 0.5}, ""),
    ],
)
def test_a_run_is_named_by_what_differs_from_its_recipe(options, name):
    assert request(**options).name == name


def test_all_stands_under_the_name_and_the_published_number_under_the_recipes(tmp_path, capsys):
    assert small_recipe(tmp_path, "--epochs", "1", "--log-every", "7") == 0
    out = capsys.readouterr().out
    assert record(tmp_path)["name"] == NAME
    lines = out.splitlines()
    assert lines[0] == f"{NAME}: seeds 0 on cpu, 133 parameters"
    assert lines.count(NAME) == 1
    assert [line for line in lines if "0.162" in line] == [
        f"published for {RECIPE}: training loss at the end: 0.162"
    ]
    assert "not as in the recipe: epochs=1, log_every=7" in lines
    # More epochs are no other run.
    assert small_recipe(tmp_path, "--epochs", "2") == 0
    assert "not as in the recipe: epochs=2" in capsys.readouterr().out.splitlines()
    assert record(tmp_path)["name"] == NAME


def test_a_run_of_a_task_has_no_name(tmp_path, capsys):
    assert go(tmp_path, "--epochs", "1") == 0
    assert record(tmp_path)["name"] == ""
    out = capsys.readouterr().out
    assert "published" not in out
    assert "not as in the recipe" not in out


def test_a_recipe_stands_beside_what_is_published(tmp_path, capsys):
    args = ["--recipe", RECIPE, "--epochs", "1", "--hidden-size", "2", "--batch-size", "5000"]
    assert main(["run", *args, "--device", "cpu", "--root", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert f"published for {RECIPE}: " in out
    assert f"{RECIPE} with hidden_size=2, batch_size=5000\n" in out
    assert "not as in the recipe: epochs=1\n" in out
    assert "ours, the mean of the last epoch: " in out


def settings_in(out):
    """The lines under the head of the settings."""
    lines = out.partition("settings (change one by --set):\n")[2].splitlines()
    return [line.strip() for line in itertools.takewhile(lambda line: line.startswith("  "), lines)]


def test_all_settings_are_shown_and_give_the_same_run(tmp_path, capsys):
    args = ["--epochs", "1", "--momentum", "Adam(mu=0.5)", "--seeds", "0-1", "--threads", "2"]
    assert go(tmp_path / "one", *args, "--data", str(tmp_path / "data")) == 0
    out = capsys.readouterr().out
    shown = settings_in(out)
    values, options = shown[:-5], shown[-5:]
    assert [line.partition("=")[0] for line in values] == [*Config.__dataclass_fields__]
    assert options == [
        "seeds: 0-1",
        f"root: {tmp_path / 'one'}",
        f"data: {tmp_path / 'data'}",
        "device: cpu",
        "threads: 1 for each seed",
    ]
    assert out.index("settings (change") < out.index("epoch 1/1")
    other = ["--task", "Copying()", "--device", "cpu", "--root", str(tmp_path / "two")]
    assert main(["run", *other, "--set", *values]) == 0
    one, two = (folders(tmp_path / name) for name in ("one", "two"))
    assert two == one[:1]


def test_the_settings_come_before_the_first_step(tmp_path, capsys, monkeypatch):
    def fails(self, index):
        raise RuntimeError("a step")

    monkeypatch.setattr(Replicas, "step", fails)
    with pytest.raises(RuntimeError, match="a step"):
        go(tmp_path, "--epochs", "1")
    assert f"task={TASK!r}" in settings_in(capsys.readouterr().out)


def test_what_is_done_shows_no_settings(tmp_path, capsys):
    assert small_recipe(tmp_path, "--epochs", "1") == 0
    capsys.readouterr()
    assert small_recipe(tmp_path, "--epochs", "1") == 0
    out = capsys.readouterr().out
    assert "nothing was trained" in out
    assert NAME in out.splitlines()
    assert "settings" not in out


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--set"], ["--set: expected PATH=VALUE", "got ''"]),
        (["--set", ""], ["--set: expected PATH=VALUE", "got ''"]),
        (["--set", "lr=1", "--set"], ["--set: expected PATH=VALUE", "got ''"]),
        (["--set", "lr"], ["--set: expected PATH=VALUE", "got 'lr'"]),
        (["--set", "hidden_sise=3"], ["--set: expected a field", "did you mean 'hidden_size'"]),
        (["--set", "momentum.mu=0.3"], ["--set: expected momentum=", "momentum is None"]),
        (["--set", "lr=1", "--set", "lr=2"], ["--set: expected lr once", "'lr=1' and 'lr=2'"]),
        (["--set", "lr=-1"], ["--set: expected", "lr should be", "'lr=-1'"]),
        (["--set", "task.length=1"], ["--set: expected", "length should be", "'task.length=1'"]),
        (["--patience", "-1"], ["patience", "at least 0", "got -1"]),
        (["--device", "gpu"], ["--device", "'cuda:1'", "got 'gpu'"]),
        (["--device", ""], ["--device", "got ''"]),
        (["--task", "Mine()"], ["--task: expected one of", "got 'Mine()'", "--import"]),
        (["--import"], ["--import: expected", "got ''"]),
        (["--import", "nothing.py"], ["--import: expected", "nothing.py"]),
        (["--import", "no_such_module"], ["--import: expected", "no_such_module"]),
    ],
)
def test_bad_options_are_refused_in_one_line(tmp_path, monkeypatch, capsys, args, expected):
    monkeypatch.chdir(tmp_path)
    device = [] if "--device" in args else ["--device", "cpu"]
    task = [] if "--task" in args else ["--task", "Adding()"]
    assert main(["run", *device, *task, *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("momentumrnn: run: ")
    assert err.count("\n") == 1
    assert all(part in err for part in expected), err
    assert folders(tmp_path) == []


@pytest.mark.parametrize("command", [["runs"], ["report"]])
def test_an_import_that_fails_is_refused_by_all(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    assert main([*command, "--import", "nothing.py"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"momentumrnn: {command[0]}: --import: expected ")
    assert err.count("\n") == 1
    assert folders(tmp_path) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["cuda", "cuda:7"])
def test_a_gpu_that_is_not_there(tmp_path, capsys, name):
    assert go(tmp_path, "--device", name) == 2
    err = capsys.readouterr().err
    assert "--device should be 'cpu'" in err
    assert f"got {name!r}" in err
    assert folders(tmp_path) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_one_gpu_of_several(tmp_path, capsys):
    count = torch.cuda.device_count()
    assert go(tmp_path, "--epochs", "1", "--device", f"cuda:{count - 1}") == 0
    assert f"device: cuda:{count - 1}" in settings_in(capsys.readouterr().out)
    assert go(tmp_path, "--epochs", "1", "--device", f"cuda:{count}") == 2
    assert f"got 'cuda:{count}'" in capsys.readouterr().err


# With a learning rate of 0 nothing becomes better after the first epoch.
IDLE = ["--lr", "0", "--epochs", "10", "--patience", "2", "--seeds", "0-1"]
LOST = "stopped after epoch 3: nothing better on the validation set since epoch 1"


def test_lost_patience_is_said_and_is_no_failure(tmp_path, capsys):
    assert go(tmp_path, *IDLE) == 0
    out = capsys.readouterr().out
    assert f"seed 0: {LOST}" in out
    for seed in (0, 1):
        assert re.search(rf"^ *{seed} \({LOST}\) +1 ", out, re.MULTILINE), out
    assert out.index("epoch 3/10") < out.index(f"seed 0: {LOST}")
    assert "epoch 4/10" not in out
    # Both came as far as they were to come.
    assert "mean ± sd " in out
    assert "mean ± sd of" not in out
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert go(tmp_path, *IDLE) == 0
    out = capsys.readouterr().out
    assert "nothing was trained" in out
    assert f"({LOST})" in out
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


class StopsOne(Watcher):
    """Stops seed 1 after its first epoch."""

    def epoch(self, run):
        if run.seed == 1:
            run.stop("enough")


def test_what_a_watcher_stopped_is_in_no_mean(tmp_path, capsys):
    config = configure(TASK, hidden_size=4, epochs=2)
    train(config, [0, 1, 2], root=tmp_path, device="cpu", watcher=StopsOne())
    assert go(tmp_path, "--epochs", "2", "--seeds", "0-2") == 0
    out = capsys.readouterr().out
    assert "nothing was trained" in out
    assert re.search(r"^ *1 \(stopped after epoch 1: enough\)", out, re.MULTILINE)
    assert "mean ± sd of 2" in out


def test_a_terminal_shows_an_early_end(tmp_path):
    """In a real pseudo-terminal."""
    pty = pytest.importorskip("pty", reason="Windows has none")
    process, terminal = pty.fork()
    if process == 0:
        os.environ.update(COLUMNS="200", LINES="60", TERM="xterm")
        command = [sys.executable, "-m", "momentumrnn", "run", *TINY, *IDLE, "--root", str(tmp_path)]
        os.execv(sys.executable, command)
    shown = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(terminal)
    assert os.waitpid(process, 0)[1] == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert "settings (change one by --set):" in text
    # In the table that moves, and in that of the results.
    assert re.search(rf"^ *0 \({LOST}\) +3/10 ", text, re.MULTILINE), text
    assert re.search(rf"^ *0 \({LOST}\) +1 ", text, re.MULTILINE), text
    assert "100%" in text


def own_task(path, constant=1.0):
    """A file with a task that is learnt by nobody, at once."""
    path.write_text(
        f"""
from dataclasses import dataclass

import torch

from momentumrnn.experiments import Task
from momentumrnn.experiments.tasks import Data, generator


@dataclass(frozen=True)
class Mine(Task):
    length: int = 4
    features = 1
    outputs = 1
    every_step = False
    metric = "loss"

    def load(self, folder):
        return Data((), {{}})

    def rows(self, data, seed, epoch):
        return (torch.rand(40, generator=generator("mine", seed, epoch)),)

    def held_out(self, data, part):
        return (torch.rand(20, generator=generator("mine", part)),)

    def batch(self, tensors, constants, rows):
        (number,) = rows
        return number.expand(self.length, -1).unsqueeze(-1).contiguous(), number * {constant}

    def loss(self, out, target):
        return (out.squeeze(-1) - target).square()

    def accuracy(self, out, target):
        return None
"""
    )
    return path


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A function that gives a command in a folder that has a task of the user's own."""
    monkeypatch.chdir(tmp_path)
    own_task(tmp_path / "mine.py")

    def command(*args, epochs="1"):
        options = ["--task", "Mine(length=3)", "--hidden-size", "3", "--batch-size", "20", "--epochs", epochs]
        return main(["run", *options, "--device", "cpu", *args])

    return command


def test_a_task_of_ones_own_is_trained_and_listed(tmp_path, capsys, mine):
    assert mine() == 2
    assert "--task: expected one of" in capsys.readouterr().err
    path = tmp_path / "mine.py"
    assert mine("--import", str(path), "--set", "task.length=5") == 0
    out = capsys.readouterr().out
    assert "task=Mine(length=5)" in out
    assert "epoch 1/1" in out
    (folder,) = (tmp_path / "runs").iterdir()
    record = json.loads((folder / "config.json").read_text())
    assert record["config"]["task"] == "Mine(length=5)"
    assert [*record["sources"]] == ["Mine"]
    result = json.loads((folder / "result.json").read_text())
    assert "--import mine.py" in result["command"]
    assert str(tmp_path) not in (folder / "result.json").read_text()
    assert mine("--import", "mine.py", "--set", "task.length=5") == 0
    assert "nothing was trained" in capsys.readouterr().out
    for imports in ([], ["--import", "mine.py"]):
        assert main(["runs", *imports]) == 0
        out = capsys.readouterr().out
        assert "Mine(length=5)" in out
        assert f"{result['selected']['by_validation']['test_loss']:.5f}" in out


def test_a_changed_source_is_refused_unless_a_new_run_is_meant(tmp_path, capsys, mine):
    """In processes of their own, as a user changes a file between two commands."""

    def command(*args):
        options = [*TINY[2:], "--task", "Mine()", "--import", "mine.py", "--epochs", "1", *args]
        return subprocess.run(
            [sys.executable, "-m", "momentumrnn", "run", *options],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )

    assert command().returncode == 0
    own_task(tmp_path / "mine.py", constant=2.0)
    refused = command()
    assert refused.returncode == 1
    assert refused.stderr.startswith("momentumrnn: run: Mine changed since ")
    assert "--changed-source new" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert len(folders(tmp_path / "runs")) == 1
    begun = command("--changed-source", "new")
    assert begun.returncode == 0, begun.stderr
    assert len(folders(tmp_path / "runs")) == 2
    assert "nothing was trained" in command().stdout
    own_task(tmp_path / "mine.py")
    assert "nothing was trained" in command().stdout
    assert len(folders(tmp_path / "runs")) == 2


def test_a_recipe_with_a_class_of_ones_own(tmp_path, capsys, mine):
    args = ["--recipe", RECIPE, "--import", "mine.py", "--set", "task=Mine()", "hidden_size=3", "epochs=1"]
    assert main(["run", *args, "--device", "cpu"]) == 0
    name = f"{RECIPE} with task=Mine(length=4), hidden_size=3"
    assert record(tmp_path / "runs")["name"] == name
    assert name in capsys.readouterr().out.splitlines()


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
def test_the_command_to_go_on_is_one_that_goes_on(tmp_path, capsys, monkeypatch):
    """With settings that a shell would take apart."""
    step = Replicas.step

    def steps_and_stops(self, index):
        step(self, index)
        os.kill(os.getpid(), signal.SIGINT)

    settings = ["--set", "momentum=HeavyBall(mu=0.3, step=2.0)", "lr=0.1"]
    given = ["run", *TINY, *settings, "--epochs", "1", "--root", str(tmp_path)]
    monkeypatch.setattr(Replicas, "step", steps_and_stops)
    assert main(given) == 130
    command = shlex.split(capsys.readouterr().out.partition("To go on: ")[2])
    assert command[1:] == given
    monkeypatch.setattr(Replicas, "step", step)
    assert main(command[1:]) == 0
    out = capsys.readouterr().out
    assert "goes on at step 1" in out
    assert "momentum=HeavyBall(mu=0.3, step=2.0)" in settings_in(out)
