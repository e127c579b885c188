"""Devices, threads and torch's settings: chosen by name, set for the time of training, and set back."""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from run_folders import bits
from training_runs import CONFIG, ROOT, STEPS, Diary, fit, path, stop_at

from momentumrnn.experiments import Config
from momentumrnn.experiments.engine.devices import choose_device
from momentumrnn.experiments.engine.replicas import Replicas
from momentumrnn.experiments.engine.signals import Interrupted
from momentumrnn.experiments.runs.store import Folder, RunError, read_json

pytest.importorskip("safetensors.torch", reason="weights are written by the extra momentumrnn[all]")


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
            options, expected = {"watcher": Diary(fails)}, pytest.raises(KeyError)
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

    fit(CONFIG, tmp_path / "a", threads=2, watcher=Diary(look))
    assert set(seen) == {(True, False, False, "tf32", torch.backends.cuda.matmul.fp32_precision, 2)}
    seen.clear()
    torch.use_deterministic_algorithms(False)
    try:
        loose = replace(CONFIG, deterministic=False, precision="float32")
        fit(loose, tmp_path / "b", threads=1, watcher=Diary(look))
    finally:
        torch.use_deterministic_algorithms(True)
    assert {(told[0], told[3], told[5]) for told in seen} == {(False, "ieee", 1)}


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
    before = signal.getsignal(signal.SIGINT)

    def twice(runs):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fit(CONFIG, tmp_path, watcher=Diary(twice))
    assert signal.getsignal(signal.SIGINT) is before


def test_threads_that_were_started_end(tmp_path):
    before = threading.active_count()
    fit(CONFIG, tmp_path, [0, 1], threads=2)
    with pytest.raises(Interrupted):
        fit(replace(CONFIG, epochs=9), tmp_path, [0, 1], threads=2, watcher=stop_at(20))
    assert threading.active_count() == before


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True], ids=repr)
def test_threads_that_are_none_are_refused(threads, tmp_path):
    with pytest.raises((TypeError, ValueError), match="threads should be"):
        fit(CONFIG, tmp_path, threads=threads)
    assert list(tmp_path.iterdir()) == []


NO_DEVICES = (
    "gpu",
    "",
    "cuda:",
    "cuda:-1",
    "cuda:01",
    "cuda:1.0",
    "cuda:١",
    "cuda:0\n",
    "CUDA",
    "cpu:0",
    3,
    True,
)


@pytest.mark.parametrize("device", NO_DEVICES, ids=repr)
def test_devices_that_are_none_are_refused(device, tmp_path):
    expected = f"device should be 'cpu', 'cuda' or a GPU such as 'cuda:1', got {device!r}"
    with pytest.raises(ValueError, match=re.escape(expected)):
        fit(CONFIG, tmp_path, device=device)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:1"])
def test_without_a_gpu_its_name_is_refused(device, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RunError, match=f"device should be 'cpu', .* sees no GPU, got '{device}'"):
        fit(CONFIG, tmp_path, device=device)
    assert list(tmp_path.iterdir()) == []
    assert fit(CONFIG, tmp_path, device=None)[0]["status"] == "done"


def test_the_second_gpu_is_chosen_where_there_are_two(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RunError, match=r"the GPUs that torch sees \('cuda:0'\), got 'cuda:1'"):
        fit(CONFIG, tmp_path, device="cuda:1")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    assert choose_device("cuda:0") == torch.device("cuda", 0)
    with pytest.raises(RunError, match=r"\('cuda:0', 'cuda:1'\), got 'cuda:2'"):
        choose_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert choose_device("cuda") == choose_device(None) == torch.device("cuda", 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and there is none")
def test_a_gpu_by_its_number_is_the_same(tmp_path):
    config = replace(CONFIG, hidden_size=32)
    diaries = {device: Diary() for device in ("cuda", "cuda:0")}
    for device, diary in diaries.items():
        results = fit(config, tmp_path / device, [0, 1], device=device, watcher=diary)
        assert [result["status"] for result in results] == ["done", "done"]
        assert {result["device"] for result in results} == {torch.cuda.get_device_name(0)}
        assert diary.begun == [(config, [0, 1], "cuda:0")]
    for seed in (0, 1):
        named, numbered = (bits(path(tmp_path / device, config, seed)) for device in diaries)
        assert named == numbered


@pytest.fixture
def threads_in_steps(monkeypatch):
    """The numbers of threads that torch has in steps."""
    step, seen = Replicas.step, set()

    def record(self, index):
        seen.add(torch.get_num_threads())
        step(self, index)

    monkeypatch.setattr(Replicas, "step", record)
    return seen


def threads_of(result):
    return [session["threads"] for session in result["sessions"]]


def test_a_run_goes_on_with_the_threads_that_it_had(tmp_path, threads_in_steps):
    """Bits hang on them. Those that are given win, and a new seed has those of a small network."""
    with pytest.raises(Interrupted):
        fit(CONFIG, tmp_path, threads=2, watcher=stop_at(2))
    threads_in_steps.clear()
    with pytest.raises(Interrupted):
        fit(CONFIG, tmp_path, threads=None, watcher=stop_at(STEPS))
    assert threads_in_steps == {2}
    with pytest.raises(Interrupted):
        fit(CONFIG, tmp_path, threads=3, watcher=stop_at(2 * STEPS))
    assert threads_in_steps == {2, 3}
    threads_in_steps.clear()
    results = fit(CONFIG, tmp_path, [0, 1], threads=None)
    assert [threads_of(result) for result in results] == [[2, 2, 3, 3], [1]]
    assert threads_in_steps == {1, 3}


def test_a_run_of_version_0_2_0_goes_on_with_its_threads(tmp_path, threads_in_steps):
    """Its two seeds had a thread each."""
    shutil.copytree(ROOT / "tests/golden/run-0.2.0/stopped", tmp_path / "runs")
    (folder,) = (tmp_path / "runs").glob("*-s0")
    record = read_json(folder / "config.json")
    config = Config.from_json(record["config"], schema=1)
    (result,) = fit(config, tmp_path / "runs", threads=None)
    assert threads_of(result) == [1, 1]
    assert threads_in_steps == {1}
    shutil.rmtree(tmp_path / "runs")
    shutil.copytree(ROOT / "tests/golden/run-0.2.0/stopped", tmp_path / "runs")
    (result,) = fit(config, tmp_path / "runs", threads=2)
    assert threads_of(result) == [1, 2]


def test_the_threads_of_a_session_on_a_gpu_are_not_taken(tmp_path):
    """There they say nothing of bits."""
    with pytest.raises(Interrupted):
        fit(CONFIG, tmp_path, threads=3, watcher=stop_at(2))
    folder = Folder(tmp_path, CONFIG, 0)
    state = folder.load()
    folder.rewind(state.pop("metrics"))
    state["sessions"][0]["versions"]["cuda"] = "13.0"
    folder.save(state)
    (result,) = fit(CONFIG, tmp_path, threads=None)
    assert threads_of(result) == [3, 1]


def test_more_seeds_than_threads_have_one_each(tmp_path, threads_in_steps):
    results = fit(CONFIG, tmp_path, [0, 1, 2], threads=2)
    assert [threads_of(result) for result in results] == [[1], [1], [1]]
    assert threads_in_steps == {1}
