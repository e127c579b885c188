"""The command line of the trainer: options to Configs, what is printed, what is refused, how it stops."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import fields

import pytest
import torch

import momentumrnn as mr

pytest.importorskip("tyro", reason="the command line needs the extra momentumrnn[all]")
pytest.importorskip("rich", reason="the command line needs the extra momentumrnn[all]")
pytest.importorskip("safetensors", reason="the command line needs the extra momentumrnn[all]")

from tyro.extras import subcommand_cli_from_dict

from momentumrnn.__main__ import COMMANDS, Run, main
from momentumrnn.cli import display, run
from momentumrnn.cli.options import read_seeds, recorded_command, seed_ranges
from momentumrnn.experiments import PMNIST, Adding, Config, configure, load
from momentumrnn.experiments.paper.recipes import RECIPES, recipe
from momentumrnn.experiments.tasks import TASKS

TINY = ["--task", "Adding(length=6, samples=100, evaluation=20)", "--hidden-size", "4", "--device", "cpu"]


def go(tmp_path, *args):
    return main(["run", *TINY, "--root", str(tmp_path), *args])


def folders(path):
    return sorted(p.name for p in path.iterdir())


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3", [3]), ("0-4", [0, 1, 2, 3, 4]), ("0,2,7", [0, 2, 7]), ("0-1, 5", [0, 1, 5]), ("7-7", [7])],
)
def test_seeds_are_spelt(text, expected):
    assert read_seeds(text) == expected
    assert read_seeds(seed_ranges(expected)) == expected


@pytest.mark.parametrize(
    "text",
    ["", "a", "1-", "-1", "0-4-5", "2,2", "0-2,1", "4-0", "1.5", "0..4", "0-99999999999", "9999999999"],
)
def test_other_seeds_are_refused(text, capsys):
    with pytest.raises(ValueError, match="--seeds"):
        read_seeds(text)


def test_a_run_from_beginning_to_end(tmp_path, capsys, monkeypatch):
    assert go(tmp_path, "--seeds", "0-1", "--epochs", "2", "--momentum", "HeavyBall(mu=0.9, step=2.0)") == 0
    out = capsys.readouterr().out
    assert len(folders(tmp_path)) == 2
    for folder in tmp_path.iterdir():
        expected = {"config.json", "metrics.jsonl", "result.json", "model.safetensors", "resume.pt", "lock"}
        assert set(folders(folder)) == expected
        result = json.loads((folder / "result.json").read_text())
        line = result["selected"]["by_validation"]
        assert f"{line['test_loss']:.5f}" in out
        assert result["command"].startswith("momentumrnn run --task 'Adding(length=6")
        assert str(tmp_path) not in (folder / "result.json").read_text()
    assert "mean ± sd" in out
    assert "without memory: loss 0.16667" in out
    assert re.search(r"epoch 2/2 .*samples/s", out)

    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert go(tmp_path, "--seeds", "0-1", "--epochs", "2", "--momentum", "HeavyBall(mu=0.9, step=2.0)") == 0
    again = capsys.readouterr().out
    assert "nothing was trained" in again
    assert f"{line['test_loss']:.5f}" in again
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before

    assert main(["runs", "--root", str(tmp_path)]) == 0
    listed = capsys.readouterr().out
    assert "0-1" in listed
    assert "done, epochs: 2" in listed
    # Of one folder alone, and from inside it.
    monkeypatch.chdir(folder)
    assert main(["runs", "--root", "."]) == 0
    alone = capsys.readouterr().out
    assert "0-1" not in alone
    assert folder.name.rpartition("-s")[0] in alone


def test_more_epochs_go_on(tmp_path, capsys):
    assert go(tmp_path, "--epochs", "1") == 0
    assert go(tmp_path, "--epochs", "2") == 0
    assert "goes on at step 2" in capsys.readouterr().out
    assert len(folders(tmp_path)) == 1
    (folder,) = tmp_path.iterdir()
    assert json.loads((folder / "result.json").read_text())["epochs"] == 2


def test_the_network_is_loaded_from_its_folder(tmp_path, capsys):
    assert go(tmp_path, "--epochs", "2", "--momentum", "Nesterov()") == 0
    (folder,) = tmp_path.iterdir()
    model, task = load(folder), Adding(length=6, samples=100, evaluation=20)
    assert model.rnn.momentum == mr.Nesterov()
    x, target = task.batch((), (), task.held_out(task.load(None), "test"))
    with torch.no_grad():
        loss = float(task.loss(model(x), target).double().mean())
    result = json.loads((folder / "result.json").read_text())
    assert loss == pytest.approx(result["selected"]["by_validation"]["test_loss"], rel=1e-5)


def test_every_flag_reaches_the_config():
    options = Run(
        task="Adding(length=9)",
        cell="Elman(nonlinearity='modrelu')",
        momentum="Adam(mu=0.5)",
        hidden_size=7,
        bias="hh",
        init="Dtriv(angles='henaff')",
        orthogonal=True,
        optimizer="sgd",
        lr=0.5,
        alpha=0.25,
        orthogonal_lr=0.125,
        rebase_every=3,
        clip=2.0,
        batch_size=11,
        epochs=5,
        precision="float64",
        deterministic=False,
        log_every=13,
        patience=3,
    )
    request = run.read_request(options)
    assert request.recipe is None
    others = {*run._OTHER_OPTIONS, "bias"}
    given = {name: value for name, value in vars(options).items() if name not in others}
    written = request.config.to_json()
    assert {name: written[name] for name in given} == {
        **given,
        "momentum": repr(mr.Adam(mu=0.5)),
    }
    assert request.config.bias == "hh"
    assert request.config.task == Adding(length=9)
    # All that a Config has is a flag, and the flags are as their help says.
    assert set(written) <= set(vars(options))


def test_defaults_are_the_papers():
    assert run.read_request(Run(task="Adding()")).config == configure(Adding())
    assert run.read_request(Run(task="PMNIST()")).config == configure(PMNIST())
    name = "table1/MomentumLSTM/PMNIST/256"
    request = run.read_request(Run(recipe=name, lr=0.5))
    assert request.recipe == recipe(name)
    assert request.config == run.replace(RECIPES[name].config, lr=0.5)
    assert run.read_request(Run(recipe=name, momentum="None")).config.momentum is None


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--task", "Ading()"], ["--task", "Ading()", "did you mean 'Adding'"]),
        (["--task", "Adding(lenght=3)"], ["--task", "lenght", "did you mean 'length'"]),
        (["--task", "Adding(length=1)"], ["--task", "length", "got 1"]),
        (["--momentum", "HeavyBall(mu=2)"], ["--momentum", "mu", "[0, 1]"]),
        (["--momentum", "__import__('os')"], ["--momentum", "expected"]),
        (["--cell", "LSTMM()"], ["--cell", "did you mean 'LSTM'"]),
        (["--init", "Papr()"], ["--init", "did you mean 'Paper'"]),
        (["--recipe", "table1/MomentumLSTM/PMNIST/255"], ["table1/MomentumLSTM/PMNIST/256"]),
        (["--recipe", "table1/LSTM/PMNIST/256", "--task", "Adding()"], ["--task", "--recipe"]),
        (["--hidden-size", "0"], ["hidden_size", "at least 1", "got 0"]),
        (["--lr", "-1"], ["lr", "got -1"]),
        (["--epochs", "0"], ["epochs", "got 0"]),
        (["--seeds", "x"], ["--seeds", "'x'"]),
        (["--threads", "0"], ["--threads", "got 0"]),
        (["--orthogonal", "True", "--cell", "LSTM()"], ["orthogonal", "LSTM()"]),
        (["--rebase-every", "3"], ["rebase_every", "orthogonal"]),
    ],
)
def test_bad_options_are_refused_in_one_line(tmp_path, monkeypatch, capsys, args, expected):
    monkeypatch.chdir(tmp_path)
    task = [] if {"--task", "--recipe"} & set(args) else ["--task", "Adding()"]
    assert main(["run", "--device", "cpu", *task, *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert all(part in err for part in expected), err
    assert folders(tmp_path) == []


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["run", "--hiden-size", "3"], "--hidden-size"),
        (["run", "--momentm", "None"], "--momentum"),
        (["runs", "--rot", "x"], "--root"),
        (["rn"], "run"),
        (["data", "get", "minst"], "mnist"),
    ],
)
def test_unknown_flags_name_the_nearest(args, expected, capsys):
    with pytest.raises(SystemExit) as refusal:
        main(args)
    assert refusal.value.code == 2
    assert expected in "".join(capsys.readouterr())


@pytest.mark.parametrize("args", [[], ["--momentum", "HeavyBall()", "--seeds", "0-2"]])
def test_a_task_or_a_recipe_is_needed(args, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("momentumrnn: run: expected --task or --recipe, got neither")
    assert "momentumrnn recipes lists" in err
    assert folders(tmp_path) == []
    # Its examples are commands that the parser takes, one of each kind.
    examples = [shlex.split(line)[1:] for line in err.splitlines() if line.startswith("  ")]
    requests = [run.read_request(subcommand_cli_from_dict(COMMANDS, args=example)) for example in examples]
    assert [request.recipe is None for request in requests] == [True, False]


@pytest.fixture
def help_of(capsys, monkeypatch):
    """A function from a command to its help: a line for each option by its name, the rest under ""."""
    # On a narrow terminal the lines would be broken.
    monkeypatch.setenv("COLUMNS", "1000")

    def read(command):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        named, name = {}, ""
        for line in (line.strip("│ ") for line in capsys.readouterr().out.splitlines()):
            name = line.split()[0].strip(",") if re.match("--?[a-z]", line) else name
            named[name] = f"{named.get(name, '')} {line}".strip()
        return {name: re.sub(r"[ ─-]*╯?$", "", text) for name, text in named.items()}

    return read


@pytest.mark.parametrize("command", ["run", "reproduce"])
def test_the_help_says_how_many_threads_there_are(command, help_of):
    words = "default: 1 for each seed of a small network, else all cores that this process may use"
    assert words in help_of(command)["--threads"]


def default_of(name):
    """The default of a field of a Config in words, from the code that configures a task."""

    def spell(config):
        value = getattr(config, name)
        return f"{value:g}" if isinstance(value, float) else str(value)

    tasks = {}
    for task in TASKS:
        tasks.setdefault(spell(configure(task())), []).append(task.__name__)
    listed = {value: " and ".join(", ".join(names).rsplit(", ", 1)) for value, names in tasks.items()}
    words = "; ".join(listed if len(listed) == 1 else (f"{value} for {n}" for value, n in listed.items()))
    plain, dtriv = (spell(configure(Adding(), orthogonal=orthogonal)) for orthogonal in (False, True))
    return words if name == "orthogonal" or dtriv == plain else f"{words}; with --orthogonal True: {dtriv}"


def test_the_help_of_run_has_the_defaults_of_a_config(help_of):
    """The help imports no torch, and so it can't ask the code."""
    shown = help_of("run")
    names = [field.name for field in fields(Config) if field.name != "task"]
    assert {"hidden_size", "lr", "epochs", "cell", "momentum"} <= set(names)
    for name in names:
        assert shown[f"--{name.replace('_', '-')}"].endswith(f" (default: {default_of(name)})"), name
    for name, other in (("task", "recipe"), ("recipe", "task")):
        assert shown[f"--{name}"].endswith(f"(this or --{other} is required)")
    assert help_of("reproduce")["--log-every"].endswith(f" (default: {default_of('log_every')})")


@pytest.mark.parametrize("command", COMMANDS)
def test_no_default_is_empty(command, help_of):
    shown = help_of(command)
    assert any("(default: " in text for text in shown.values())
    for name, text in shown.items():
        assert "{None" not in text
        # Only a momentum may be None.
        assert ("(default: None)" in text) == (command == "run" and name == "--momentum")
        assert not re.search(r"\(default: (''|\"\")?\)", text), name


@pytest.mark.skipif(sys.platform == "win32", reason="Windows reports a closed pipe in another way")
@pytest.mark.parametrize("args", [["--version"], ["bench", "--help"], ["recipes"], ["runs", "--root", "."]])
def test_a_closed_pipe_is_no_error(args, tmp_path):
    """As of `momentumrnn recipes | head -1`, at the moment at which head has ended."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "momentumrnn", *args]
        done = subprocess.run(command, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writer)
    assert done.stderr == ""
    assert done.returncode in (1, 141)  # rich says 1


def test_places_that_cannot_be_used_are_named(tmp_path, monkeypatch, capsys):
    file = tmp_path / "file"
    file.write_text("")
    assert go(file) == 1
    assert str(file) in capsys.readouterr().err
    monkeypatch.setenv("MOMENTUMRNN_DATA", str(tmp_path / "none"))
    assert main(["run", "--task", "MNIST()", "--device", "cpu", "--root", str(tmp_path / "runs")]) == 1
    err = capsys.readouterr().err
    assert "train-images-idx3-ubyte.gz" in err
    assert "momentumrnn data get mnist" in err
    assert not (tmp_path / "runs").exists()
    assert main(["runs", "--root", str(tmp_path / "none")]) == 1
    assert "none" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "PMNIST", "adding"])
def test_recipes_are_listed_with_their_numbers(name, capsys):
    assert main(["recipes", *([name] if name else [])]) == 0
    out = capsys.readouterr().out
    rows = {key: row for key, row in RECIPES.items() if name.lower() in key.lower()}
    assert rows
    for key, row in RECIPES.items():
        (line,) = [each for each in out.splitlines() if key in each.split()] or [""]
        assert bool(line) == (key in rows)
        assert not line or all(f"{p.value:g}" in line for p in row.published)


def test_a_recipe_is_shown_whole(capsys):
    assert main(["recipes", "table1/MomentumLSTM/PMNIST/256/same-gain"]) == 0
    out = capsys.readouterr().out
    assert "HeavyBall(mu=0.0, step=2.5)" in out
    assert "momentumrnn run --recipe table1/MomentumLSTM/PMNIST/256/same-gain" in out
    assert main(["recipes", "tabel1/MomentumLSTM/PMNIST/256"]) == 2
    assert "table1/MomentumLSTM/PMNIST/256" in capsys.readouterr().err


def test_the_record_names_no_folders():
    args = ["run", "--recipe", "table1/LSTM/MNIST/128", "--root", "/home/me/runs", "--data=/home/me/data"]
    expected = "momentumrnn run --recipe table1/LSTM/MNIST/128 --root runs --data=data"
    assert recorded_command(args) == expected


def wait_for(path, process):
    for _ in range(600):
        if path.exists() and list(path.glob("*/metrics.jsonl")):
            return
        assert process.poll() is None
        time.sleep(0.1)
    raise AssertionError("training did not begin")


def test_control_c_saves_and_says_how_to_go_on(tmp_path):
    args = [*TINY, "--epochs", "100000", "--log-every", "1", "--root", str(tmp_path / "runs")]
    command = [sys.executable, "-m", "momentumrnn", "run", *args]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(tmp_path / "runs", process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "all is saved" in out
    assert "momentumrnn run --task 'Adding(length=6" in out
    (folder,) = (tmp_path / "runs").iterdir()
    assert torch.load(folder / "resume.pt", weights_only=True)["step"] > 0


def test_a_terminal_sees_a_line_for_each_seed(tmp_path):
    """In a real pseudo-terminal."""
    pty = pytest.importorskip("pty", reason="Windows has none")
    args = [*TINY, "--epochs", "2", "--seeds", "0,3", "--root", str(tmp_path)]
    process, terminal = pty.fork()
    if process == 0:
        os.environ.update(COLUMNS="120", LINES="40", TERM="xterm")
        os.execv(sys.executable, [sys.executable, "-m", "momentumrnn", "run", *args])
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
    for seed in (0, 3):
        assert re.search(rf"^\s+{seed}\s+2/2\s+4\s+\d\.\d{{4}}\s+\d\.\d{{4}}", text, re.MULTILINE), text
    assert "samples/s" in text


def test_a_long_epoch_is_not_silent(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(display, "SILENCE", -1.0)
    monkeypatch.setattr(display, "FIRST", -1.0)
    assert go(tmp_path, "--epochs", "1", "--batch-size", "10", "--log-every", "2") == 0
    assert "step 1 of 10" in capsys.readouterr().out


def test_flags_may_take_back_what_a_recipe_has():
    name = "table4/DTRIV/PMNIST/170"
    assert run.read_request(Run(recipe=name)).config.orthogonal
    off = Run(recipe=name, orthogonal=False, rebase_every=0, deterministic=False)
    assert not run.read_request(off).config.orthogonal
    assert not run.read_request(off).config.deterministic


def test_a_mean_is_of_seeds_trained_alike(tmp_path, capsys):
    assert go(tmp_path, "--epochs", "3", "--seeds", "0") == 0
    capsys.readouterr()
    assert go(tmp_path, "--epochs", "1", "--seeds", "0-2") == 0
    out = capsys.readouterr().out
    assert "0 (3 epochs)" in out
    assert "mean ± sd of 2" in out


def test_seeds_that_are_frozen_are_no_success(tmp_path, capsys):
    args = ["--optimizer", "sgd", "--lr", "1e38", "--seeds", "0-1", "--epochs", "1", "--batch-size", "10"]
    assert go(tmp_path, *args) == 1
    out, err = capsys.readouterr()
    assert "seeds 0-1" in err
    assert "frozen at step" in out
    assert "mean" not in out
    assert main(["runs", "--root", str(tmp_path)]) == 0
    assert "frozen at step" in capsys.readouterr().out


def test_results_without_checkpoints_are_not_trained_over(tmp_path, capsys):
    """As those that are published here."""
    assert go(tmp_path, "--epochs", "2") == 0
    (folder,) = tmp_path.iterdir()
    (folder / "resume.pt").unlink()
    before = {p: p.read_bytes() for p in folder.iterdir()}
    for epochs in ("1", "2"):
        assert go(tmp_path, "--epochs", epochs) == 0
        assert "nothing was trained" in capsys.readouterr().out
    assert go(tmp_path, "--epochs", "3") == 1
    assert "no checkpoint" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in folder.iterdir()} == before


def test_a_failing_step_loses_nothing(tmp_path, monkeypatch):
    """Of what all seeds had done until then."""
    from momentumrnn.experiments.engine.replicas import Replicas
    from momentumrnn.experiments.engine.train import train

    step = Replicas.step

    def fails(self, index):
        if self.constants == () and index == 3 and self.config.epochs == 2:
            raise RuntimeError("no more")
        step(self, index)

    monkeypatch.setattr(Replicas, "step", fails)
    config = configure(Adding(length=6, samples=100, evaluation=20), hidden_size=4, batch_size=10, epochs=2)
    with pytest.raises(RuntimeError, match="no more"):
        train(config, [0, 1], root=tmp_path, device="cpu", threads=2)
    steps = [torch.load(p / "resume.pt", weights_only=True)["step"] for p in tmp_path.iterdir()]
    assert len(steps) == 2
    assert max(steps) == 3
