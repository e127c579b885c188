"""The estimate: its arithmetic, what it measures with, and that it leaves nothing behind. Never speed."""

import os
import threading
from dataclasses import replace

import pytest
import torch

from momentumrnn.experiments import MNIST, PMNIST, Adding, configure, estimate
from momentumrnn.experiments.engine.replicas import Replicas
from momentumrnn.experiments.estimate import Sizes, epoch_seconds, scaled

CPU = torch.device("cpu")
ADDING = Adding(length=5, samples=23, evaluation=31)
CONFIG = configure(ADDING, hidden_size=3, batch_size=10)
ORTHOGONAL = configure(ADDING, orthogonal=True, rebase_every=4, hidden_size=3, batch_size=10)


@pytest.fixture
def measured(monkeypatch):
    """Steps take 2 seconds, re-basings 8, evaluations 31; all are carried out once."""
    seconds = {"_step": 2.0, "rebase": 8.0, "_evaluate": 31.0}

    def timed(call, device):
        call()
        function = call.args[1]
        return seconds[getattr(function, "func", function).__name__]

    monkeypatch.setattr(estimate, "_timed", timed)


@pytest.fixture
def stepped(monkeypatch):
    """Of each step its thread, how many threads that has, and whether new memory is filled."""
    step, steps = Replicas.step, []

    def record(self, index):
        filled = torch.utils.deterministic.fill_uninitialized_memory
        steps.append((threading.current_thread(), torch.get_num_threads(), filled))
        step(self, index)

    monkeypatch.setattr(Replicas, "step", record)
    return steps


@pytest.mark.parametrize(
    ("trained", "evaluated", "expected"),
    [(30, 0, 6.0), (31, 0, 8.0), (29, 0, 6.0), (1, 0, 2.0), (10, 8, 4.0)],
    ids=["whole", "one-more", "one-less", "one", "evaluated"],
)
def test_an_epoch_is_its_steps_and_its_evaluations(trained, evaluated, expected):
    assert scaled(CONFIG, Sizes(trained, evaluated), 2.0, 0.25) == expected


@pytest.mark.parametrize(
    ("seeds", "threads", "expected"),
    [
        (1, 1, 3 * 2 + 62),
        (1, 2, 3 * 2 + 62),
        (2, 2, 3 * 2 + 62),
        (3, 1, 3 * (3 * 2 + 62)),
        # Two at a time: five steps are two and a half rounds, five evaluations three.
        (5, 2, 2.5 * 3 * 2 + 3 * 62),
    ],
)
@pytest.mark.usefixtures("measured")
def test_seeds_share_the_workers(seeds, threads, expected):
    """23 samples are 3 steps; validation and test, 31 each, are two evaluations."""
    assert epoch_seconds(CONFIG, seeds, CPU, threads) == pytest.approx(expected)


@pytest.mark.usefixtures("measured")
def test_a_re_basing_is_shared_by_its_steps():
    assert epoch_seconds(ORTHOGONAL, 1, CPU, 1) == pytest.approx(3 * (2 + 8 / 4) + 62)


@pytest.mark.usefixtures("measured")
def test_without_validation_the_test_part_alone_is_counted():
    task = PMNIST(validation=0, limit=31)
    config = configure(task, hidden_size=4, batch_size=10)
    assert epoch_seconds(config, 1, CPU, 1) == pytest.approx(4 * 2 + 31)


def test_seeds_run_as_in_training(stepped):
    """As many at a time as there are threads, each with its share of them, and torch's switches."""
    assert torch.utils.deterministic.fill_uninitialized_memory
    epoch_seconds(CONFIG, 1, CPU, 3)
    assert set(stepped) == {(threading.current_thread(), 3, False)}
    stepped.clear()
    epoch_seconds(CONFIG, 5, CPU, 2)
    assert {count for _, count, _ in stepped} == {1}
    assert threading.current_thread() not in {thread for thread, _, _ in stepped}
    # Two seeds, each a step to warm up and at most three more.
    assert 4 <= len(stepped) <= 8


def test_a_slow_step_is_taken_twice(monkeypatch, stepped):
    """Once to warm up, once to be timed, if that is as long as timing may take."""
    monkeypatch.setitem(estimate._SECONDS, "cpu", 0.0)
    epoch_seconds(CONFIG, 1, CPU, 1)
    assert len(stepped) == 2


def test_the_first_call_is_not_timed(monkeypatch):
    """By a clock of its own: 100 seconds for the first call, 1 for each other."""
    now, calls = [0.0], []

    def call():
        now[0] += 1 if calls else 100
        calls.append(now[0])

    monkeypatch.setattr(estimate.time, "perf_counter", lambda: now[0])
    assert estimate._timed(call, CPU) == 1
    assert len(calls) == 4


@pytest.mark.parametrize("task", [MNIST(validation=7, limit=6), PMNIST(limit=6)], ids=repr)
def test_no_files_are_needed(task, tmp_path, monkeypatch):
    monkeypatch.setenv("MOMENTUMRNN_DATA", str(tmp_path))
    assert epoch_seconds(configure(task, hidden_size=4), 1, CPU, 1) > 0
    assert list(tmp_path.iterdir()) == []


def test_stand_ins_have_the_sizes_of_mnist():
    task = PMNIST()
    data = estimate._data(task)
    images, labels, training = data.tensors
    assert (images.shape, images.dtype) == ((70000, 784), torch.uint8)
    assert (labels.shape, int(labels.max()), int(training)) == ((70000,), 9, 60000)
    assert len(task.rows(data, 0, 0)[0]) == 55000
    assert [len(task.held_out(data, part)[0]) for part in ("validation", "test")] == [5000, 10000]


@pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
def test_torch_is_left_as_it_was(fails, monkeypatch):
    def settings():
        return (
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
            torch.backends.cudnn.rnn.fp32_precision,
            torch.is_grad_enabled(),
            os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
            torch.random.get_rng_state().tolist(),
        )

    before, started = settings(), threading.active_count()
    config = replace(CONFIG, precision="float32")
    if fails:
        monkeypatch.setattr(Replicas, "step", lambda self, index: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            epoch_seconds(config, 2, CPU, 5)
    else:
        epoch_seconds(config, 2, CPU, 5)
    assert settings() == before
    assert threading.active_count() == started


@pytest.mark.parametrize("seeds", [0, -1, True, 2.0, "2"])
def test_a_wrong_number_of_seeds_is_refused(seeds):
    with pytest.raises(ValueError, match="seeds should be an integer of at least 1, got"):
        epoch_seconds(CONFIG, seeds, CPU)


def test_a_wrong_number_of_threads_is_refused():
    with pytest.raises(ValueError, match="threads should be an integer of at least 1, got 0"):
        epoch_seconds(CONFIG, 1, CPU, 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and there is none")
def test_on_a_gpu_all_seeds_are_one_graph(monkeypatch):
    begin, sets = estimate._begin, []

    def record(*args):
        sets.append(begin(*args))
        return sets[-1]

    monkeypatch.setattr(estimate, "_begin", record)
    task = Adding(length=40, samples=230, evaluation=31)
    config = configure(task, hidden_size=64, batch_size=10)
    assert epoch_seconds(config, 3, torch.device("cuda", 0)) > 0
    (replicas,) = sets
    assert len(replicas.models) == 3
    assert (replicas.reason, sorted(replicas.graphs)) == ("", [10])
