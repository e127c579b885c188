"""Training: seeds don't disturb each other, what is written and selected is right, and networks learn."""

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from run_folders import bits, lines_of
from training_runs import (
    CONFIG,
    CONFIGS,
    COPYING,
    DTRIV,
    STEPS,
    TASK,
    Diary,
    checkpoint,
    fit,
    path,
    stop_at,
    train_whole,
)

import momentumrnn as mr
from momentumrnn.experiments import Adding, Copying, configure, load
from momentumrnn.experiments.config import SCHEMA
from momentumrnn.experiments.engine.run import mean
from momentumrnn.experiments.engine.signals import Interrupted
from momentumrnn.experiments.models import build
from momentumrnn.experiments.runs.read import selected
from momentumrnn.experiments.runs.store import RunError, read_json
from momentumrnn.installation import install_command

safetensors = pytest.importorskip(
    "safetensors.torch", reason="weights are written by the extra momentumrnn[all]"
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Runs that were never stopped."""
    return train_whole(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_seeds_together_are_what_they_are_alone(config, whole, tmp_path):
    for seed in (2, 0):
        fit(config, tmp_path, [seed])
        assert bits(path(tmp_path, config, seed)) == bits(path(whole, config, seed))
    fit(config, tmp_path / "threads", [0, 1, 2], threads=2)
    for seed in (0, 1, 2):
        actual, expected = (bits(path(root, config, seed)) for root in (tmp_path / "threads", whole))
        assert actual["losses"] == pytest.approx(expected["losses"], rel=1e-5)
        assert actual["step"] == expected["step"]
        assert len(actual["metrics"]) == len(expected["metrics"])


def test_what_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("MOMENTUMRNN_COMMIT", "abc")
    watcher = Diary()
    (result,) = fit(CONFIG, tmp_path, [4], watcher=watcher, command="momentumrnn run", name="a name")
    folder = path(tmp_path, CONFIG, 4)
    assert result == read_json(folder / "result.json")
    assert {p.name for p in folder.iterdir()} == {
        *("config.json", "metrics.jsonl", "resume.pt", "result.json", "model.safetensors", "lock")
    }
    assert read_json(folder / "config.json") == {
        "schema": SCHEMA,
        "begun_with_schema": SCHEMA,
        "name": "a name",
        "config": CONFIG.to_json(),
        "seed": 4,
        "sources": {},
        "data": TASK.load(None).hashes,
    }
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
        "stopped": None,
        "sources": {},
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
    assert watcher.ended == [(4, result)]
    assert watcher.seen[-1] == [(4, 3 * STEPS)]
    epochs = [line for line in lines_of(folder) if "epoch" in line]
    assert [line for _, line in watcher.epochs] == epochs
    assert [(line["epoch"], line["step"]) for line in epochs] == [(e, e * STEPS) for e in (1, 2, 3)]
    assert set(epochs[0]) == {"epoch", "step", "train_loss", "validation_loss", "test_loss", "seconds"}
    # Every second step, anew in each epoch; the last of an epoch stands alone, and is in its mean.
    steps = [line["step"] for line in lines_of(folder) if "epoch" not in line]
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
    by_step = {line["step"]: line for line in lines_of(path(tmp_path / "fine", fine)) if "epoch" not in line}
    assert list(by_step) == list(range(1, 3 * STEPS + 1))
    for line in lines_of(path(tmp_path / "coarse", coarse)):
        if "epoch" in line:
            steps = range(line["step"] - STEPS + 1, line["step"] + 1)
            assert line["train_loss"] == pytest.approx(
                sum(by_step[s]["loss"] for s in steps) / STEPS, rel=1e-12
            )
        else:
            for name in ("loss", "norm"):
                # The last of an epoch has what was left.
                first = line["step"] - (0 if line["step"] % STEPS == 0 else 1)
                steps = range(first, line["step"] + 1)
                mean = sum(by_step[s][name] for s in steps) / len(steps)
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
        epochs = [line for line in lines_of(path(tmp_path, config, seed)) if "epoch" in line]
        assert len(epochs) == 6
        for part in ("validation", "test"):
            values = [line[f"{part}_loss"] for line in epochs]
            best = values.index(min(values))
            assert result["selected"][f"by_{part}"] == epochs[best]
            places.append(best)
        assert result["selected"]["last"] == epochs[-1]
        # The weights are those of that epoch, as a run that ends there has them.
        best_epoch = result["selected"]["by_validation"]["epoch"]
        short = replace(config, epochs=best_epoch)
        fit(short, tmp_path / f"{seed}", [seed])
        weights = safetensors.load_file(path(tmp_path, config, seed) / "model.safetensors")
        expected = checkpoint(tmp_path / f"{seed}", short, seed)["state"]["weights"]
        assert {k: v.tolist() for k, v in weights.items()} == {k: v.tolist() for k, v in expected.items()}
        # And they give the loss that was written down.
        model = load(path(tmp_path, config, seed))
        assert {k: v.tolist() for k, v in model.state_dict().items()} == {
            k: v.tolist() for k, v in expected.items()
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


def test_large_losses_have_a_mean(tmp_path):
    assert mean([1.7e308, 1.7e308]) == pytest.approx(1.7e308)
    assert mean([0.1] * 10) == 0.1


def test_it_trains_in_any_thread(whole, tmp_path):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(fit, CONFIG, tmp_path).result()
    assert bits(path(tmp_path, CONFIG)) == bits(path(whole, CONFIG))


@pytest.mark.parametrize(
    "seeds", [(), (0, 0), (-1,), (2**32,), (True,), (1.0,), ("0",), (None,), 5, None], ids=repr
)
def test_seeds_that_are_none_are_refused(seeds, tmp_path):
    with pytest.raises((TypeError, ValueError), match="seeds should be"):
        fit(CONFIG, tmp_path, seeds)
    assert list(tmp_path.iterdir()) == []


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
            expected = [(line["step"], line[name]) for line in lines_of(folder) if name in line]
            actual = [(event.step, event.value) for event in events.Scalars(name)]
            assert [step for step, _ in actual] == [step for step, _ in expected]
            values = [value for _, value in expected]
            assert [value for _, value in actual] == pytest.approx(values, rel=1e-6)
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
    watcher = Diary()
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
    first = lines_of(path(tmp_path, config))[0]["loss"]
    for rule in ("by_validation", "by_test"):
        line = result["selected"][rule]
        assert line["test_loss"] < share * config.task.baseline
        assert line["validation_loss"] < share * config.task.baseline
        assert line["train_loss"] < first
    if config.task.every_step:
        assert result["selected"]["last"]["test_accuracy"] > 0.9
