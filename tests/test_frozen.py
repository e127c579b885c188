"""A seed that is no longer finite ends, as it was before that step, and the others don't notice."""

import json
import math
from dataclasses import replace

import pytest
import torch
from run_folders import bits, contents
from training_runs import CONFIG, DTRIV, Diary, checkpoint, fit, path, train_whole

from momentumrnn.experiments.engine import train as train_module
from momentumrnn.experiments.engine.replicas import Replicas
from momentumrnn.experiments.models import build

safetensors = pytest.importorskip(
    "safetensors.torch", reason="weights are written by the extra momentumrnn[all]"
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Runs that were never stopped."""
    return train_whole(tmp_path_factory.mktemp("whole"))


def spoil(monkeypatch, seeds, at, value=1e30):
    """Makes the loss of these seeds infinite at that step of the first epoch; their weights stay finite."""
    step = Replicas.step
    seed_of = {}

    def mark(config, seed):
        model = build(config, seed)
        seed_of[id(model)] = seed
        return model

    def spoils(self, index):
        for model in self.models:
            if index == at and seed_of[id(model)] in seeds:
                with torch.no_grad():
                    model.head.weight.fill_(value)
        step(self, index)

    monkeypatch.setattr(train_module, "build", mark)
    monkeypatch.setattr(Replicas, "step", spoils)


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_seed_that_is_not_finite_is_frozen(at, threads, whole, tmp_path, monkeypatch):
    spoil(monkeypatch, [1], at)
    watcher = Diary()
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
    spoil(monkeypatch, [1], 0, 1e16)
    watcher = Diary()
    results = fit(config, tmp_path, [0, 1], watcher=watcher)
    assert [result["status"] for result in results] == ["done", "done"]
    (note,) = watcher.notes
    assert note.startswith("seed 1: the norm of the gradient was ")
    assert "epoch 1," in note


def test_what_a_frozen_run_leaves_is_what_it_was_before(tmp_path, monkeypatch):
    """Not more steps of a round, nor a re-basing in it."""
    spoil(monkeypatch, [0], 3)
    for root, every in (("fine", 1), ("coarse", 100)):
        fit(replace(DTRIV, log_every=every), tmp_path / root)
    fine, coarse = (checkpoint(tmp_path / root, DTRIV) for root in ("fine", "coarse"))
    assert fine["step"] == coarse["step"] == 3
    for name, weight in fine["state"]["weights"].items():
        assert torch.equal(weight, coarse["state"]["weights"][name]), name
    assert fine["state"]["weights"]["rnn.parametrizations.weight_hh_l0.0.rebasings"] == 0


def test_when_all_are_frozen_it_ends(tmp_path):
    wild = replace(CONFIG, optimizer="sgd", lr=1e30)
    watcher = Diary()
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
    spoil(monkeypatch, [1], 2, math.nan)
    results = fit(CONFIG, tmp_path, [0, 1])
    assert [result["status"] for result in results] == ["done", "frozen"]
    json.dumps(results, allow_nan=False)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and there is none")
def test_a_seed_that_is_frozen_on_a_gpu(tmp_path, monkeypatch):
    config = replace(CONFIG, hidden_size=32)
    fit(config, tmp_path / "whole", [0, 1, 2], device="cuda")
    spoil(monkeypatch, [1], 3)
    watcher = Diary()
    results = fit(config, tmp_path / "frozen", [0, 1, 2], device="cuda", watcher=watcher)
    assert [result["status"] for result in results] == ["done", "frozen", "done"]
    assert results[1]["frozen"]["step"] == 3
    assert len(watcher.notes) == 1
    for seed in (0, 2):
        frozen, whole = (bits(path(tmp_path / root, config, seed)) for root in ("frozen", "whole"))
        assert frozen == whole
