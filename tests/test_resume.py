"""Killed, stopped or asked again, training goes on to the same bits, and loses nothing that was there."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from run_folders import bits, contents, lines_of
from training_runs import (
    CONFIG,
    CONFIGS,
    COPYING,
    DTRIV,
    ROOT,
    STEPS,
    Diary,
    checkpoint,
    fit,
    path,
    stop_at,
    train_whole,
)

from momentumrnn.experiments.engine import loop
from momentumrnn.experiments.engine.replicas import Replicas
from momentumrnn.experiments.engine.signals import Interrupted
from momentumrnn.experiments.runs.read import read
from momentumrnn.experiments.runs.store import Folder, RunError, read_json

safetensors = pytest.importorskip(
    "safetensors.torch", reason="weights are written by the extra momentumrnn[all]"
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Runs that were never stopped."""
    return train_whole(tmp_path_factory.mktemp("whole"))


CHILD = """
import json, sys
from momentumrnn.experiments import Config, Watcher, train
from momentumrnn.experiments.engine import loop
from momentumrnn.experiments.engine.signals import Interrupted
loop.SAVE_SECONDS = 0.0
class Printer(Watcher):
    def begin(self, config, runs, device):
        print("begun", flush=True)
config = Config.from_json(json.loads(sys.argv[2]))
try:
    train(config, [0, 1], root=sys.argv[1], device="cpu", threads=2, watcher=Printer())
except Interrupted:
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
from momentumrnn.experiments import Config, Watcher, train
from momentumrnn.experiments.engine import loop, replicas
from momentumrnn.experiments.runs import store
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
class Counting(Watcher):
    def progress(self, runs):
        global counts
        counts = counts or min(run.step for run in runs) >= after
os.fsync, os.replace = between_moments(os.fsync), between_moments(os.replace)
store.open = lambda path, mode: File(path, mode) if mode in ("wb", "ab") else open(path, mode)
replicas.Replicas.step = between_moments(replicas.Replicas.step)
loop.SAVE_SECONDS = -1.0  # a checkpoint before each progress, even if no time has passed
config = Config.from_json(json.loads(sys.argv[2]))
train(config, [0, 1], root=sys.argv[1], device="cpu", threads=2, watcher=Counting())
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
        results = [read_json(folder / "result.json") for folder in (killed, never)]
        selections = [
            {k: {**line, "seconds": 0} for k, line in result["selected"].items()} for result in results
        ]
        assert selections[0] == selections[1]
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
        steps = [line["step"] for line in lines_of(path(tmp_path, CONFIG, seed)) if "epoch" not in line]
        assert state["step"] - CONFIG.log_every - STEPS < steps[-1] <= state["step"]


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
            epochs = [line["epoch"] for line in lines_of(path(tmp_path, config, seed)) if "epoch" in line]
            # The epoch that ends here is evaluated by whoever goes on.
            assert epochs == list(range(1, -(-step // STEPS)))
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
    steps = sorted(checkpoint(tmp_path, CONFIG, seed)["step"] for seed in (0, 1))
    assert steps[0] == 0 < steps[1]
    fit(CONFIG, tmp_path, [0, 1], threads=2)
    fit(CONFIG, tmp_path / "whole", [0, 1], threads=2)
    for seed in (0, 1):
        assert bits(path(tmp_path, CONFIG, seed)) == bits(path(tmp_path / "whole", CONFIG, seed))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_step_without_its_rebasing_is_not_kept(when, threads, count, whole, tmp_path, monkeypatch):
    """It would be taken twice. The error comes before the bases move, or after they did."""
    rebase, calls = Replicas.rebase, []

    def fails(self):
        calls.append(self)
        if when == "after":
            rebase(self)
        if len(calls) >= count:  # two threads may count at once
            raise RuntimeError("no more")
        if when == "before":
            rebase(self)

    with monkeypatch.context() as broken:
        broken.setattr(Replicas, "rebase", fails)
        with pytest.raises(RuntimeError, match="no more"):
            fit(DTRIV, tmp_path, [0, 1], threads=threads)
    fit(DTRIV, tmp_path, [0, 1], threads=threads)
    fit(DTRIV, tmp_path / "whole", [0, 1], threads=threads)
    for seed in (0, 1):
        assert bits(path(tmp_path, DTRIV, seed)) == bits(path(tmp_path / "whole", DTRIV, seed))


def test_where_there_are_metrics_there_is_a_checkpoint(whole, tmp_path, monkeypatch):
    """Of no step yet, and training goes on from it to the same bits."""
    append, seen = Folder.append, []

    def killed(self, lines):
        append(self, lines)
        if lines:
            seen.append((self.path / "resume.pt").exists())
            raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(Folder, "append", killed)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                fit(CONFIG, tmp_path)
            assert lines_of(path(tmp_path, CONFIG))
            assert checkpoint(tmp_path, CONFIG)["step"] == 0
            record = read(path(tmp_path, CONFIG))
            assert (record.state, record.steps, record.verified) == ("short", [], True)
    assert seen == [True, True]
    fit(CONFIG, tmp_path)
    assert bits(path(tmp_path, CONFIG)) == bits(path(whole, CONFIG))


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
    monkeypatch.setattr(loop, "_ROUND_SECONDS", 1e9)
    with pytest.raises(Interrupted):
        fit(CONFIG, tmp_path, [0, 1, 2], threads=threads)
    monkeypatch.undo()
    steps = [checkpoint(tmp_path, CONFIG, seed)["step"] for seed in (0, 1, 2)]
    if threads == 1:
        assert steps == [2, 1, 1]
    watcher = Diary()
    fit(CONFIG, tmp_path, [0, 1, 2], threads=threads, watcher=watcher)
    assert len(watcher.seen[0]) == steps.count(min(steps))
    assert len(watcher.seen[-1]) == 3
    for group in watcher.seen:
        assert len({step for _, step in group}) == 1
    for seed in (0, 1, 2):
        actual, expected = (bits(path(root, CONFIG, seed)) for root in (tmp_path, whole))
        if threads == 1:
            assert actual == expected
        assert actual["losses"] == pytest.approx(expected["losses"], rel=1e-5)


def test_a_seed_that_is_behind_catches_up(whole, tmp_path):
    fit(replace(CONFIG, epochs=2), tmp_path, [1])
    fit(replace(CONFIG, epochs=1), tmp_path, [2])
    watcher = Diary()
    fit(CONFIG, tmp_path, [0, 1, 2], watcher=watcher)
    assert {seed for seed, _ in watcher.seen[0]} == {0}
    groups = [tuple(seed for seed, _ in group) for group in watcher.seen]
    assert list(dict.fromkeys(groups)) == [(0,), (0, 2), (0, 1, 2)]
    for seed in (0, 1, 2):
        assert bits(path(tmp_path, CONFIG, seed)) == bits(path(whole, CONFIG, seed))


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
    watcher = Diary()
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
    before, watcher = contents(tmp_path), Diary()
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
    watcher = Diary()
    (again,) = fit(CONFIG, tmp_path, watcher=watcher)
    assert watcher.seen == []
    assert again["selected"] == result["selected"]
    written = safetensors.load_file(folder / "model.safetensors")
    assert {k: v.tolist() for k, v in written.items()} == {k: v.tolist() for k, v in weights.items()}


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
