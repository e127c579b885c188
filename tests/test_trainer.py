"""The trainer: killed or stopped it goes on to the same bits, seeds don't disturb each other, it learns."""

import contextlib
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_folders import bits, contents

import momentumrnn as mr
from momentumrnn.experiments import Adding, Copying, configure, load, train, trainer
from momentumrnn.experiments.folders import Folder, RunError
from momentumrnn.experiments.models import build
from momentumrnn.experiments.replicas import Replicas
from momentumrnn.experiments.trainer import Interrupted, selected
from momentumrnn.installation import install_command

safetensors = pytest.importorskip(
    "safetensors.torch", reason="weights are written by the extra momentumrnn[all]"
)

ROOT = Path(__file__).parent.parent
TASK = Adding(length=6, samples=45, evaluation=20)  # 5 steps of 10, the last of 5
CONFIG = configure(
    TASK, momentum=mr.HeavyBall(), hidden_size=4, batch_size=10, lr=0.01, epochs=3, log_every=2
)
COPYING = configure(
    Copying(length=3, symbols=2, alphabet=3, samples=45, evaluation=20),
    hidden_size=4,
    batch_size=10,
    epochs=3,
    log_every=3,
)
DTRIV = replace(
    configure(TASK, orthogonal=True, hidden_size=4, batch_size=10, epochs=3, log_every=2),
    rebase_every=4,
    orthogonal_lr=0.01,
    lr=0.01,
    optimizer="rmsprop",
)
CONFIGS = {"adding": CONFIG, "copying": COPYING, "orthogonal": DTRIV}
STEPS = 5


class Watcher:
    """Remembers what it is told."""

    def __init__(self, progress=lambda runs: None):
        self.notes, self.begun, self.seen, self.epochs = [], [], [], []
        self.react = progress

    def begin(self, config, runs, device):
        self.begun.append((config, [run.seed for run in runs], device))

    def progress(self, runs):
        self.seen.append([(run.seed, run.step) for run in runs])
        self.react(runs)

    def epoch(self, run):
        self.epochs.append((run.seed, dict(run.epochs[-1])))

    def note(self, text):
        self.notes.append(text)


def fit(config, root, seeds=(0,), **options):
    return train(config, seeds, root=root, **{"device": "cpu", "threads": 1, **options})


def path(root, config, seed=0):
    return Folder(Path(root), config, seed).path


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def checkpoint(root, config, seed=0):
    return torch.load(path(root, config, seed) / "resume.pt", weights_only=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Runs that were never stopped."""
    root = tmp_path_factory.mktemp("whole")
    for config in CONFIGS.values():
        fit(config, root, [0, 1, 2])
    return root


CHILD = """
import json, sys
from momentumrnn.experiments import Config, train, trainer
trainer.SAVE_SECONDS = 0.0
class Watcher:
    def begin(self, config, runs, device):
        print("begun", flush=True)
    def progress(self, runs):
        pass
    def epoch(self, run):
        pass
    def note(self, text):
        pass
config = Config.from_json(json.loads(sys.argv[2]))
try:
    train(config, [0, 1], root=sys.argv[1], device="cpu", threads=2, watcher=Watcher())
except trainer.Interrupted:
    print("interrupted", flush=True)
else:
    print("done", flush=True)
"""


def child(root, config, code=CHILD, *args):
    return subprocess.Popen(
        [sys.executable, "-c", code, str(root), json.dumps(config.to_json()), *map(str, args)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


# A child that kills itself at a moment which is counted, not timed. A moment is before or after a training
# step, before or after a file is on the disk, or in the middle of a file. The count begins at once, or with
# the progress at step `after`. By then both seeds have a checkpoint of that step.
VICTIM = """
import io, itertools, json, os, signal, sys
from momentumrnn.experiments import Config, folders, replicas, trainer
after, last = int(sys.argv[3]), int(sys.argv[4])
counter, counts = itertools.count(1), after == 0
def moment():
    if counts and next(counter) == last:
        os.kill(os.getpid(), signal.SIGKILL)
def between_moments(function):
    def call(*args):
        moment()
        result = function(*args)
        moment()
        return result
    return call
class File(io.FileIO):
    def write(self, content):
        half = len(content) // 2
        super().write(content[:half])
        moment()
        super().write(content[half:])
class Watcher(trainer.Watcher):
    def progress(self, runs):
        global counts
        counts = counts or min(run.step for run in runs) >= after
os.fsync, os.replace = between_moments(os.fsync), between_moments(os.replace)
folders.open = lambda path, mode: File(path, mode) if mode in ("wb", "ab") else open(path, mode)
replicas.Replicas.step = between_moments(replicas.Replicas.step)
trainer.SAVE_SECONDS = -1.0  # a checkpoint before each progress, even if no time has passed
config = Config.from_json(json.loads(sys.argv[2]))
trainer.train(config, [0, 1], root=sys.argv[1], device="cpu", threads=2, watcher=Watcher())
"""


def test_killed_at_any_moment_it_goes_on_to_the_same_bits(tmp_path):
    """Twenty times, each child from what the one before it left.

    Every second child is killed at a moment after its beginning, the others at a moment after a step that no
    child before them had reached.
    """
    endless, reached, steps = replace(CONFIG, epochs=10**6), 0, []
    for i in range(20):
        moment = (0, 1 + 3 * (i // 2)) if i % 2 == 0 else (reached + 1, 1 + 5 * (i // 2))
        victim = child(tmp_path / "killed", endless, VICTIM, *moment)
        try:
            assert victim.wait(timeout=600) == -signal.SIGKILL
        finally:
            victim.kill()
            victim.communicate()
        there = [seed for seed in (0, 1) if (path(tmp_path / "killed", CONFIG, seed) / "resume.pt").exists()]
        saved = [checkpoint(tmp_path / "killed", CONFIG, seed)["step"] for seed in there]
        # Both had saved the step from which the moments count, and no seed lost what it had.
        assert i % 2 == 0 or min(saved) > reached
        reached = max([reached, *saved])
        steps.append(saved)
    for seed in (0, 1):
        known = [saved[seed] for saved in steps if len(saved) == 2]
        assert known == sorted(known)
        assert len(set(known)) >= 10
    config = replace(CONFIG, epochs=reached // STEPS + 2)
    for root in ("killed", "whole"):
        last = child(tmp_path / root, config)
        assert last.communicate(timeout=600)[0].splitlines() == ["begun", "done"]
    for seed in (0, 1):
        killed, never = (path(tmp_path / root, config, seed) for root in ("killed", "whole"))
        assert bits(killed) == bits(never)
        results = [json.loads((folder / "result.json").read_text()) for folder in (killed, never)]
        chosen = [{k: {**line, "seconds": 0} for k, line in result["selected"].items()} for result in results]
        assert chosen[0] == chosen[1]
        # The ten that were killed after a new step, and the last.
        assert len(results[0]["sessions"]) >= 11
        assert len(results[1]["sessions"]) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_from_outside(tmp_path, number):
    victim = child(tmp_path, replace(CONFIG, epochs=10**6))
    try:
        assert victim.stdout.readline() == "begun\n"
        metrics = [path(tmp_path, CONFIG, seed) / "metrics.jsonl" for seed in (0, 1)]
        for _ in range(600):
            if all(file.exists() and file.stat().st_size for file in metrics):
                break
            time.sleep(0.1)
        victim.send_signal(number)
        assert victim.communicate(timeout=60)[0] == "interrupted\n"
    finally:
        victim.kill()
        victim.communicate()
    assert victim.returncode == 0
    states = [checkpoint(tmp_path, CONFIG, seed) for seed in (0, 1)]
    for seed, state in enumerate(states):
        found = [line for line in lines(path(tmp_path, CONFIG, seed)) if "epoch" not in line]
        assert state["step"] - CONFIG.log_every - STEPS < found[-1]["step"] <= state["step"]


def stop_at(step, number=signal.SIGINT):
    """A watcher that stops training when it hears of this step."""

    def react(runs):
        if runs[0].step == step:
            signal.raise_signal(number)

    return Watcher(react)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_goes_on_to_the_same_bits(config, number, whole, tmp_path):
    """In an epoch, at its end, at the end of the last."""
    before = signal.getsignal(number)
    for step in (3 if config is COPYING else 2, STEPS, 2 * STEPS, 3 * STEPS):
        with pytest.raises(Interrupted):
            fit(config, tmp_path, [0, 1], watcher=stop_at(step, number))
        assert signal.getsignal(number) is before
        for seed in (0, 1):
            assert checkpoint(tmp_path, config, seed)["step"] == step
            assert not (path(tmp_path, config, seed) / "result.json").exists()
            found = [line["epoch"] for line in lines(path(tmp_path, config, seed)) if "epoch" in line]
            # The epoch that ends here is evaluated by whoever goes on.
            assert found == list(range(1, -(-step // STEPS)))
    results = fit(config, tmp_path, [0, 1])
    assert [result["status"] for result in results] == ["done", "done"]
    assert [len(result["sessions"]) for result in results] == [5, 5]
    for seed in (0, 1):
        assert bits(path(tmp_path, config, seed)) == bits(path(whole, config, seed))


def test_half_a_step_is_not_kept(tmp_path, monkeypatch):
    """An error after the weights moved: that seed goes on from its checkpoint, the other from where it is."""
    step = torch.optim.Adam.step
    calls = []

    def fails(self, closure=None):
        step(self, closure)
        calls.append(self)
        if len(calls) == 7:
            raise RuntimeError("no more")

    with monkeypatch.context() as broken:
        broken.setattr(torch.optim.Adam, "step", fails)
        with pytest.raises(RuntimeError, match="no more"):
            fit(CONFIG, tmp_path, [0, 1], threads=2)
    kept = [(path(tmp_path, CONFIG, seed) / "resume.pt").exists() for seed in (0, 1)]
    assert sorted(kept) == [False, True]
    fit(CONFIG, tmp_path, [0, 1], threads=2)
    fit(CONFIG, tmp_path / "whole", [0, 1], threads=2)
    for seed in (0, 1):
        assert bits(path(tmp_path, CONFIG, seed)) == bits(path(tmp_path / "whole", CONFIG, seed))


def test_a_result_stays_while_its_run_goes_on(tmp_path):
    """Asked for fewer epochs again, after more were begun and stopped in the middle of one."""
    fit(replace(CONFIG, epochs=1), tmp_path)
    folder = path(tmp_path, CONFIG)
    names = ("result.json", "model.safetensors")
    before = [(folder / name).read_bytes() for name in names]
    with pytest.raises(Interrupted):
        fit(CONFIG, tmp_path, watcher=stop_at(STEPS + 2))
    (result,) = fit(replace(CONFIG, epochs=1), tmp_path)
    assert result["epochs"] == 1
    assert [(folder / name).read_bytes() for name in names] == before
    (folder / "result.json").unlink()
    with pytest.raises(RunError, match="take more --epochs"):
        fit(replace(CONFIG, epochs=1), tmp_path)
    assert fit(CONFIG, tmp_path)[0]["epochs"] == 3


@pytest.mark.parametrize("threads", [1, 2])
def test_seeds_that_stopped_apart_join_again(threads, whole, tmp_path, monkeypatch):
    """A stop in the middle of a round leaves them at different steps."""
    step, count = Replicas.step, []

    def stops(self, index):
        step(self, index)
        count.append(index)
        if len(count) == 4:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Replicas, "step", stops)
    monkeypatch.setattr(trainer, "_ROUND_SECONDS", 1e9)
    with pytest.raises(Interrupted):
        fit(CONFIG, tmp_path, [0, 1, 2], threads=threads)
    monkeypatch.undo()
    steps = [checkpoint(tmp_path, CONFIG, seed)["step"] for seed in (0, 1, 2)]
    if threads == 1:
        assert steps == [2, 1, 1]
    watcher = Watcher()
    fit(CONFIG, tmp_path, [0, 1, 2], threads=threads, watcher=watcher)
    assert len(watcher.seen[0]) == steps.count(min(steps))
    assert len(watcher.seen[-1]) == 3
    for group in watcher.seen:
        assert len({step for _, step in group}) == 1
    for seed in (0, 1, 2):
        found, want = (bits(path(root, CONFIG, seed)) for root in (tmp_path, whole))
        if threads == 1:
            assert found == want
        assert found["losses"] == pytest.approx(want["losses"], rel=1e-5)


def test_a_seed_that_is_behind_catches_up(whole, tmp_path):
    fit(replace(CONFIG, epochs=2), tmp_path, [1])
    fit(replace(CONFIG, epochs=1), tmp_path, [2])
    watcher = Watcher()
    fit(CONFIG, tmp_path, [0, 1, 2], watcher=watcher)
    assert {seed for seed, _ in watcher.seen[0]} == {0}
    groups = [tuple(seed for seed, _ in group) for group in watcher.seen]
    assert list(dict.fromkeys(groups)) == [(0,), (0, 2), (0, 1, 2)]
    for seed in (0, 1, 2):
        assert bits(path(tmp_path, CONFIG, seed)) == bits(path(whole, CONFIG, seed))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_seeds_together_are_what_they_are_alone(config, whole, tmp_path):
    for seed in (2, 0):
        fit(config, tmp_path, [seed])
        assert bits(path(tmp_path, config, seed)) == bits(path(whole, config, seed))
    fit(config, tmp_path / "threads", [0, 1, 2], threads=2)
    for seed in (0, 1, 2):
        found, want = (bits(path(root, config, seed)) for root in (tmp_path / "threads", whole))
        assert found["losses"] == pytest.approx(want["losses"], rel=1e-5)
        assert found["step"] == want["step"]
        assert len(found["metrics"]) == len(want["metrics"])


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_more_epochs_go_on(config, whole, tmp_path):
    for epochs in (1, 2):
        (result,) = fit(replace(config, epochs=epochs), tmp_path)
        assert (result["epochs"], result["steps"], result["status"]) == (epochs, epochs * STEPS, "done")
        assert json.loads((path(tmp_path, config) / "config.json").read_text())["config"]["epochs"] == epochs
    (result,) = fit(config, tmp_path)
    assert result["config"]["epochs"] == 3
    assert bits(path(tmp_path, config)) == bits(path(whole, config))


def test_fewer_epochs_change_nothing(tmp_path):
    (result,) = fit(CONFIG, tmp_path)
    before = contents(tmp_path)
    watcher = Watcher()
    (again,) = fit(replace(CONFIG, epochs=1), tmp_path, watcher=watcher)
    assert again == result
    assert again["status"] == "done"
    assert contents(tmp_path) == before
    assert watcher.begun == watcher.seen == watcher.epochs == []


@pytest.mark.parametrize("tensorboard", [False, True])
def test_the_same_again_trains_nothing(tmp_path, tensorboard):
    if tensorboard:
        pytest.importorskip("tensorboard")
    results = fit(CONFIG, tmp_path, [0, 1], tensorboard=tensorboard)
    before, watcher = contents(tmp_path), Watcher()
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    assert fit(CONFIG, tmp_path, [0, 1], watcher=watcher, tensorboard=tensorboard) == results
    assert contents(tmp_path) == before
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()} == stamps
    assert watcher.begun == watcher.seen == watcher.epochs == watcher.notes == []


@pytest.mark.parametrize("lost", ["result.json", "model.safetensors", "both"])
def test_a_result_that_is_gone_is_written_again(tmp_path, lost):
    """As after a kill between the last checkpoint and the result."""
    (result,) = fit(CONFIG, tmp_path)
    folder = path(tmp_path, CONFIG)
    weights = safetensors.load_file(folder / "model.safetensors")
    for name in ("result.json", "model.safetensors") if lost == "both" else (lost,):
        (folder / name).unlink()
    watcher = Watcher()
    (again,) = fit(CONFIG, tmp_path, watcher=watcher)
    assert watcher.seen == []
    assert again["selected"] == result["selected"]
    found = safetensors.load_file(folder / "model.safetensors")
    assert {k: v.tolist() for k, v in found.items()} == {k: v.tolist() for k, v in weights.items()}


def test_what_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("MOMENTUMRNN_COMMIT", "abc")
    watcher = Watcher()
    (result,) = fit(CONFIG, tmp_path, [4], watcher=watcher, command="momentumrnn run")
    folder = path(tmp_path, CONFIG, 4)
    assert result == json.loads((folder / "result.json").read_text())
    assert {p.name for p in folder.iterdir()} == {
        *("config.json", "metrics.jsonl", "resume.pt", "result.json", "model.safetensors", "lock")
    }
    assert json.loads((folder / "config.json").read_text()) == {"config": CONFIG.to_json(), "seed": 4}
    expected = {
        "command": "momentumrnn run",
        "commit": "abc",
        "config": CONFIG.to_json(),
        "id": CONFIG.id,
        "seed": 4,
        "status": "done",
        "epochs": 3,
        "steps": 3 * STEPS,
        "metric": "loss",
        "frozen": None,
        "data": TASK.load(None).hashes,
        "parameters": 2 * 16 + 4 * 16 + 16 + 16 + 4 + 1,
        "threads": 1,
    }
    assert {name: result[name] for name in expected} == expected
    assert result["versions"]["torch"] == torch.__version__
    assert result["versions"]["momentumrnn"] == mr.__version__
    assert result["device"]
    assert result["date"]
    assert 0 < result["seconds"] < 600
    assert result["samples_per_second"] > 0
    assert result["peak_memory_mb"] > 0
    assert set(result["selected"]) == {"by_validation", "by_test", "last"}
    assert len(result["sessions"]) == 1
    assert watcher.begun == [(CONFIG, [4], "cpu")]
    assert watcher.notes == []
    assert watcher.seen[-1] == [(4, 3 * STEPS)]
    epochs = [line for line in lines(folder) if "epoch" in line]
    assert [line for _, line in watcher.epochs] == epochs
    assert [(line["epoch"], line["step"]) for line in epochs] == [(e, e * STEPS) for e in (1, 2, 3)]
    assert set(epochs[0]) == {"epoch", "step", "train_loss", "validation_loss", "test_loss", "seconds"}
    # Every second step, anew in each epoch; the last of an epoch stands alone, and is in its mean.
    steps = [line["step"] for line in lines(folder) if "epoch" not in line]
    assert steps == [2, 4, 5, 7, 9, 10, 12, 14, 15]


def test_samples_are_counted_as_they_are(tmp_path):
    """The last batch of an epoch is smaller."""
    (result,) = fit(CONFIG, tmp_path)
    seconds = checkpoint(tmp_path, CONFIG)["training_seconds"]
    assert result["samples_per_second"] * seconds == pytest.approx(3 * TASK.samples, rel=0.01)


def test_losses_are_those_of_the_steps(tmp_path):
    """Each line is the mean of its steps, an epoch's that of them all."""
    fine, coarse = replace(CONFIG, log_every=1), CONFIG
    fit(fine, tmp_path / "fine")
    fit(coarse, tmp_path / "coarse")
    each = {line["step"]: line for line in lines(path(tmp_path / "fine", fine)) if "epoch" not in line}
    assert list(each) == list(range(1, 3 * STEPS + 1))
    for line in lines(path(tmp_path / "coarse", coarse)):
        if "epoch" in line:
            steps = range(line["step"] - STEPS + 1, line["step"] + 1)
            assert line["train_loss"] == pytest.approx(sum(each[s]["loss"] for s in steps) / STEPS, rel=1e-12)
        else:
            for name in ("loss", "norm"):
                # The last of an epoch has what was left.
                first = line["step"] - (0 if line["step"] % STEPS == 0 else 1)
                steps = range(first, line["step"] + 1)
                mean = sum(each[s][name] for s in steps) / len(steps)
                assert line[name] == pytest.approx(mean, rel=1e-12)


def wobbly(task):
    """One whose loss goes up and down."""
    return configure(task, hidden_size=4, batch_size=10, lr=0.3, optimizer="adam", epochs=6, log_every=5)


@pytest.mark.parametrize("task", [TASK, COPYING.task], ids=["adding", "copying"])
def test_what_is_selected(task, tmp_path):
    config = wobbly(task)
    results = fit(config, tmp_path, [0, 1, 2])
    places = []
    for seed, result in enumerate(results):
        epochs = [line for line in lines(path(tmp_path, config, seed)) if "epoch" in line]
        assert len(epochs) == 6
        for part in ("validation", "test"):
            values = [line[f"{part}_loss"] for line in epochs]
            best = values.index(min(values))
            assert result["selected"][f"by_{part}"] == epochs[best]
            places.append(best)
        assert result["selected"]["last"] == epochs[-1]
        # The weights are those of that epoch, as a run that ends there has them.
        chosen = result["selected"]["by_validation"]["epoch"]
        short = replace(config, epochs=chosen)
        fit(short, tmp_path / f"{seed}", [seed])
        weights = safetensors.load_file(path(tmp_path, config, seed) / "model.safetensors")
        want = checkpoint(tmp_path / f"{seed}", short, seed)["state"]["weights"]
        assert {k: v.tolist() for k, v in weights.items()} == {k: v.tolist() for k, v in want.items()}
        # And they give the loss that was written down.
        model = load(path(tmp_path, config, seed))
        assert {k: v.tolist() for k, v in model.state_dict().items()} == {
            k: v.tolist() for k, v in want.items()
        }
        x, target = task.batch((), (), task.held_out(None, "validation"))
        with torch.no_grad():
            loss = task.loss(model(x), target).mean().item()
        assert loss == pytest.approx(result["selected"]["by_validation"]["validation_loss"], rel=1e-5)
    assert min(places) < 5


def test_selection():
    epochs = [{"epoch": e, "test_accuracy": a} for e, a in enumerate([0.5, None, 0.7, 0.7, 0.6])]
    assert selected(epochs, "accuracy", "test")["epoch"] == 2
    assert selected(epochs, "accuracy", "validation") is None
    assert selected([], "accuracy", "test") is None
    losses = [{"epoch": e, "test_loss": a} for e, a in enumerate([0.5, None, 0.3, 0.3, 0.6])]
    assert selected(losses, "loss", "test")["epoch"] == 2


def test_the_weights_say_what_they_are(tmp_path):
    from safetensors import safe_open

    fit(CONFIG, tmp_path, [3])
    with safe_open(path(tmp_path, CONFIG, 3) / "model.safetensors", "pt") as file:
        note = json.loads(file.metadata()["run"])
        names = set(file.keys())
    assert note["config"] == CONFIG.to_json()
    assert note["seed"] == 3
    assert note["epoch"] in (1, 2, 3)
    assert names == set(build(CONFIG, 0).state_dict())


def spoiling(monkeypatch, config, seeds, at, value=1e30):
    """Makes the loss of these seeds infinite at that step of the first epoch; their weights stay finite."""
    step = Replicas.step
    begun = {seed: build(config, seed).head.weight for seed in seeds}
    marked = {}
    make = trainer.build

    def mark(config, seed):
        model = make(config, seed)
        marked[id(model)] = seed
        return model

    def spoils(self, index):
        for model in self.models:
            if index == at and marked[id(model)] in begun:
                with torch.no_grad():
                    model.head.weight.fill_(value)
        step(self, index)

    monkeypatch.setattr(trainer, "build", mark)
    monkeypatch.setattr(Replicas, "step", spoils)


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_seed_that_is_not_finite_is_frozen(at, threads, whole, tmp_path, monkeypatch):
    spoiling(monkeypatch, CONFIG, [1], at)
    watcher = Watcher()
    results = fit(CONFIG, tmp_path, [0, 1, 2], watcher=watcher, threads=threads)
    monkeypatch.undo()
    assert [result["status"] for result in results] == ["done", "frozen", "done"]
    frozen = results[1]["frozen"]
    assert results[1]["steps"] == frozen["step"] == at
    assert frozen["loss"] == "inf"
    assert not math.isfinite(float(frozen["gradient_norm"]))
    assert frozen["weight_norm"] == pytest.approx(2e30, rel=0.01)
    assert (frozen["last_gradient_norm"] is None) == (at == 0)
    assert results[1]["epochs"] == 0
    assert results[1]["selected"] == {"by_validation": None, "by_test": None, "last": None}
    assert [result["frozen"] for result in (results[0], results[2])] == [None, None]
    (note,) = watcher.notes
    assert "seed 1" in note
    assert f"step {at}" in note
    for seed in (0, 2):
        if threads == 1:
            assert bits(path(tmp_path, CONFIG, seed)) == bits(path(whole, CONFIG, seed))
    # It is over for good: neither the same call nor more epochs wake it.
    folder = path(tmp_path, CONFIG, 1)
    before = contents(folder)
    again = fit(replace(CONFIG, epochs=5), tmp_path, [0, 1])
    assert [result["status"] for result in again] == ["done", "frozen"]
    assert contents(folder) == before


def test_a_seed_whose_gradients_are_all_clipped_to_nothing_is_named(tmp_path, monkeypatch):
    """Once. It goes on: the next epoch may be another."""
    config = replace(CONFIG, clip=1.0, optimizer="sgd")
    spoiling(monkeypatch, config, [1], 0, 1e16)
    watcher = Watcher()
    results = fit(config, tmp_path, [0, 1], watcher=watcher)
    assert [result["status"] for result in results] == ["done", "done"]
    (note,) = watcher.notes
    assert note.startswith("seed 1: the norm of the gradient was ")
    assert "epoch 1," in note


def test_what_a_frozen_run_leaves_is_what_it_was_before(tmp_path, monkeypatch):
    """Not more steps of a round, nor a re-basing in it."""
    spoiling(monkeypatch, DTRIV, [0], 3)
    for root, every in (("fine", 1), ("coarse", 100)):
        fit(replace(DTRIV, log_every=every), tmp_path / root)
    fine, coarse = (checkpoint(tmp_path / root, DTRIV) for root in ("fine", "coarse"))
    assert fine["step"] == coarse["step"] == 3
    for name, weight in fine["state"]["weights"].items():
        assert torch.equal(weight, coarse["state"]["weights"][name]), name
    assert fine["state"]["weights"]["rnn.parametrizations.weight_hh_l0.0.rebasings"] == 0


def test_when_all_are_frozen_it_ends(tmp_path):
    wild = replace(CONFIG, optimizer="sgd", lr=1e30)
    watcher = Watcher()
    results = fit(wild, tmp_path, [0, 1], watcher=watcher)
    assert [result["status"] for result in results] == ["frozen", "frozen"]
    assert [result["steps"] for result in results] == [1, 1]
    assert len(watcher.notes) == 2
    assert watcher.epochs == []
    assert fit(wild, tmp_path, [0, 1]) == results
    folder = path(tmp_path, wild, 1)
    assert all(w.isfinite().all() for w in safetensors.load_file(folder / "model.safetensors").values())


@pytest.mark.parametrize(
    ("optimizer", "lr", "precision"),
    [("rmsprop", 3e37, "tf32"), ("sgd", 3e38, "tf32"), ("sgd", 1e300, "float64"), ("adam", 1e200, "float64")],
)
def test_weights_that_overflow_are_an_end_too(optimizer, lr, precision, tmp_path):
    """Their norm is no number that JSON has."""
    wild = replace(CONFIG, optimizer=optimizer, lr=lr, precision=precision, log_every=1)
    results = fit(wild, tmp_path, [0, 1])
    assert [result["status"] for result in results] == ["frozen", "frozen"]
    json.dumps(results, allow_nan=False)
    assert fit(wild, tmp_path, [0, 1]) == results


def test_nan_in_the_weights_is_an_end_too(tmp_path, monkeypatch):
    spoiling(monkeypatch, CONFIG, [1], 2, math.nan)
    results = fit(CONFIG, tmp_path, [0, 1])
    assert [result["status"] for result in results] == ["done", "frozen"]
    json.dumps(results, allow_nan=False)


def test_large_losses_have_a_mean(tmp_path):
    assert trainer._mean([1.7e308, 1.7e308]) == pytest.approx(1.7e308)
    assert trainer._mean([0.1] * 10) == 0.1


def settings():
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.backends.cudnn.rnn.fp32_precision,
        torch.backends.cuda.matmul.fp32_precision,
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        signal.getsignal(signal.SIGINT),
        signal.getsignal(signal.SIGTERM),
        dict(os.environ) | {"PYTEST_CURRENT_TEST": ""},
    )


def states():
    name, keys, *rest = np.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), (name, keys.tolist(), *rest)


def fails(runs):
    raise KeyError("of the watcher")


@pytest.mark.parametrize("how", ["done", "stopped", "watcher", "disk", "locked", "frozen"])
@pytest.mark.parametrize("given", [(True, False, True), (False, True, False)], ids=["strict", "free"])
def test_what_torch_was_told_is_as_before(how, given, tmp_path, monkeypatch):
    deterministic, tf32, fill = given
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", fill)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    torch.use_deterministic_algorithms(deterministic)
    try:
        torch.rand(3), random.random(), np.random.rand()
        before = settings(), states()
        options, config, expected = {}, CONFIG, contextlib.nullcontext()
        if how == "stopped":
            options, expected = {"watcher": stop_at(2)}, pytest.raises(Interrupted)
        if how == "watcher":
            options, expected = {"watcher": Watcher(fails)}, pytest.raises(KeyError)
        if how == "frozen":
            config = replace(CONFIG, optimizer="sgd", lr=1e30)
        if how == "disk":
            path(tmp_path, CONFIG, 1).mkdir(parents=True)
            (path(tmp_path, CONFIG, 1) / "result.json").mkdir()
            expected = pytest.raises(RunError)
        with contextlib.ExitStack() as stack:
            if how == "locked":
                stack.enter_context(Folder(tmp_path, CONFIG, 1).locked())
                expected = pytest.raises(RunError)
            with expected:
                fit(config, tmp_path, [0, 1], threads=2, **options)
        assert (settings(), states()) == before
    finally:
        torch.use_deterministic_algorithms(True)
    # Nobody holds it.
    for seed in (0, 1):
        with Folder(tmp_path, config, seed).locked():
            pass


def test_while_it_trains_torch_is_told(tmp_path):
    seen = []

    def look(runs):
        seen.append(settings()[:6])

    fit(CONFIG, tmp_path / "a", threads=2, watcher=Watcher(look))
    assert set(seen) == {(True, False, False, "tf32", torch.backends.cuda.matmul.fp32_precision, 2)}
    seen.clear()
    torch.use_deterministic_algorithms(False)
    try:
        loose = replace(CONFIG, deterministic=False, precision="float32")
        fit(loose, tmp_path / "b", threads=1, watcher=Watcher(look))
    finally:
        torch.use_deterministic_algorithms(True)
    assert {(each[0], each[3], each[5]) for each in seen} == {(False, "ieee", 1)}


def test_torchs_newer_way_to_allow_tf32_is_no_crash():
    """In a process of its own: torch minds if both ways are taken."""
    code = """
import tempfile, torch
from momentumrnn.experiments import Adding, configure, train
torch.backends.cudnn.rnn.fp32_precision = "ieee"
config = configure(Adding(length=6, samples=10, evaluation=10), hidden_size=4, epochs=1)
with tempfile.TemporaryDirectory() as root:
    print(train(config, root=root, device="cpu")[0]["status"])
print(torch.backends.cudnn.rnn.fp32_precision)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout == "done\nieee\n", done.stderr


def test_a_second_ctrl_c_is_as_ever(tmp_path):
    def twice(runs):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fit(CONFIG, tmp_path, watcher=Watcher(twice))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_trains_in_any_thread(whole, tmp_path):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(fit, CONFIG, tmp_path).result()
    assert bits(path(tmp_path, CONFIG)) == bits(path(whole, CONFIG))


def test_threads_that_were_started_end(tmp_path):
    before = threading.active_count()
    fit(CONFIG, tmp_path, [0, 1], threads=2)
    with pytest.raises(Interrupted):
        fit(replace(CONFIG, epochs=9), tmp_path, [0, 1], threads=2, watcher=stop_at(20))
    assert threading.active_count() == before


@pytest.mark.parametrize(
    "seeds", [(), (0, 0), (-1,), (2**32,), (True,), (1.0,), ("0",), (None,), 5, None], ids=repr
)
def test_seeds_that_are_none_are_refused(seeds, tmp_path):
    with pytest.raises((TypeError, ValueError), match="seeds should be"):
        fit(CONFIG, tmp_path, seeds)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True], ids=repr)
def test_threads_that_are_none_are_refused(threads, tmp_path):
    with pytest.raises((TypeError, ValueError), match="threads should be"):
        fit(CONFIG, tmp_path, threads=threads)
    assert list(tmp_path.iterdir()) == []


def test_devices_that_are_none_are_refused(tmp_path, monkeypatch):
    for device in ("gpu", "cuda:0", ""):
        with pytest.raises(ValueError, match=f"'cpu' or 'cuda', got {device!r}"):
            fit(CONFIG, tmp_path, device=device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RunError, match="no GPU"):
        fit(CONFIG, tmp_path, device="cuda")
    assert list(tmp_path.iterdir()) == []
    assert fit(CONFIG, tmp_path, device=None)[0]["status"] == "done"


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with pytest.raises(Interrupted):
        fit(CONFIG, tmp_path, [0, 1], tensorboard=True, watcher=stop_at(STEPS))
    fit(CONFIG, tmp_path, [0, 1], tensorboard=True)
    for seed in (0, 1):
        folder = path(tmp_path, CONFIG, seed)
        events = EventAccumulator(str(folder / "tensorboard"))
        events.Reload()
        assert set(events.Tags()["scalars"]) == {
            *("loss", "norm", "train_loss", "validation_loss", "test_loss")
        }
        for name in ("loss", "test_loss"):
            want = [(line["step"], line[name]) for line in lines(folder) if name in line]
            found = [(event.step, event.value) for event in events.Scalars(name)]
            assert [step for step, _ in found] == [step for step, _ in want]
            assert [value for _, value in found] == pytest.approx([value for _, value in want], rel=1e-6)
    whole = tmp_path / "whole"
    fit(CONFIG, whole)
    assert bits(path(whole, CONFIG)) == bits(path(tmp_path, CONFIG))
    assert not (path(whole, CONFIG) / "tensorboard").exists()


def test_what_is_not_installed_is_named(tmp_path, monkeypatch):
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "torch.utils.tensorboard", None)
        with pytest.raises(RunError, match=re.escape(install_command("track"))):
            fit(CONFIG, tmp_path / "a", tensorboard=True)
    assert not (path(tmp_path / "a", CONFIG) / "resume.pt").exists()
    watcher = Watcher()
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "safetensors", None)
        without.setitem(sys.modules, "safetensors.torch", None)
        with pytest.raises(RunError, match=re.escape(install_command("all"))) as refusal:
            fit(CONFIG, tmp_path / "b", watcher=watcher)
        assert "safetensors" in str(refusal.value)
    # Nobody should hear of it after hours.
    assert watcher.seen == []
    assert fit(CONFIG, tmp_path / "b")[0]["status"] == "done"


def test_orthogonal_networks_are_rebased(whole):
    for seed in (0, 1):
        state = checkpoint(whole, DTRIV, seed)
        model = build(DTRIV, 99)
        model.load_state_dict(state["state"]["weights"])
        U = model.rnn.weight_hh_l0
        assert torch.allclose(U.T @ U, torch.eye(4), atol=1e-5)
        assert model.rnn.parametrizations["weight_hh_l0"][0].rebasings == 3 * STEPS // 4
        assert not torch.allclose(U, build(DTRIV, seed).rnn.weight_hh_l0, atol=1e-3)
        result = json.loads((path(whole, DTRIV, seed) / "result.json").read_text())
        assert result["parameters"] == 2 * 4 + 4 * 3 // 2 + 4 + 4 + 1


LEARNT = {
    "adding": configure(
        Adding(length=5, samples=4000, evaluation=200),
        momentum=mr.HeavyBall(0.6, 0.6),
        hidden_size=24,
        lr=0.02,
        epochs=8,
    ),
    "copying": configure(
        Copying(length=3, symbols=2, alphabet=3, samples=6400, evaluation=200),
        hidden_size=32,
        lr=0.01,
        batch_size=64,
        epochs=4,
    ),
    "orthogonal": configure(
        Adding(length=5, samples=4000, evaluation=200),
        orthogonal=True,
        hidden_size=32,
        lr=0.005,
        orthogonal_lr=0.002,
        rebase_every=50,
        epochs=8,
    ),
}


# Of what a network loses that remembers nothing; seen here: 0.003, 0.002, 0.4.
@pytest.mark.parametrize(("name", "share"), [("adding", 0.1), ("copying", 0.1), ("orthogonal", 0.7)])
def test_it_learns(name, share, tmp_path):
    config = LEARNT[name]
    (result,) = fit(config, tmp_path)
    assert result["status"] == "done"
    first = lines(path(tmp_path, config))[0]["loss"]
    for rule in ("by_validation", "by_test"):
        found = result["selected"][rule]
        assert found["test_loss"] < share * config.task.baseline
        assert found["validation_loss"] < share * config.task.baseline
        assert found["train_loss"] < first
    if config.task.every_step:
        assert result["selected"]["last"]["test_accuracy"] > 0.9


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and there is none")
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_stopped_on_a_gpu_it_goes_on_to_the_same_bits(config, tmp_path):
    """Seeds in one graph, one of them stopped elsewhere: never to other numbers."""
    config = replace(config, hidden_size=32)
    torch.cuda.manual_seed(5)
    generator = torch.cuda.get_rng_state()
    fit(config, tmp_path / "whole", [0, 1], device="cuda")
    assert torch.equal(torch.cuda.get_rng_state(), generator)
    for step in (STEPS, 2 * STEPS, 3 * STEPS):
        with pytest.raises(Interrupted):
            fit(config, tmp_path / "stopped", [0, 1], device="cuda", watcher=stop_at(step))
    results = fit(config, tmp_path / "stopped", [0, 1], device="cuda")
    for seed, result in enumerate(results):
        assert result["status"] == "done"
        assert result["device"] == torch.cuda.get_device_name()
        assert "cuda" in result["versions"]
        stopped, whole = (bits(path(tmp_path / root, config, seed)) for root in ("stopped", "whole"))
        assert stopped == whole


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and there is none")
def test_a_seed_that_is_frozen_on_a_gpu(tmp_path, monkeypatch):
    config = replace(CONFIG, hidden_size=32)
    fit(config, tmp_path / "whole", [0, 1, 2], device="cuda")
    spoiling(monkeypatch, config, [1], 3)
    watcher = Watcher()
    results = fit(config, tmp_path / "frozen", [0, 1, 2], device="cuda", watcher=watcher)
    assert [result["status"] for result in results] == ["done", "frozen", "done"]
    assert results[1]["frozen"]["step"] == 3
    assert len(watcher.notes) == 1
    for seed in (0, 2):
        frozen, whole = (bits(path(tmp_path / root, config, seed)) for root in ("frozen", "whole"))
        assert frozen == whole
