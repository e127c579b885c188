"""Patience: a run ends so many epochs after its best on the validation set, however often it was stopped."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
from run_folders import Sign, bits, epochs_of, lines_of
from training_runs import (
    ROOT,
    STEPS,
    TASK,
    Diary,
    as_lists,
    assert_stays,
    checkpoint,
    fit,
    path,
    stop_at,
    weights_of,
    without_seconds,
)

from momentumrnn.experiments import configure, load
from momentumrnn.experiments.engine.signals import Interrupted
from momentumrnn.experiments.runs.read import read
from momentumrnn.experiments.runs.store import Folder, RunError

pytest.importorskip("safetensors.torch", reason="weights are written by the extra momentumrnn[all]")
# Its loss goes up and down.
WOBBLY = configure(TASK, hidden_size=4, batch_size=10, lr=0.3, optimizer="adam", epochs=12, log_every=5)
PATIENT = replace(WOBBLY, patience=2)
SEEDS = [0, 1, 2, 3]


def end_by_patience(losses, patience):
    """After which epoch patience ends; None if it does not."""
    for epoch in range(1, len(losses) + 1):
        best = losses.index(min(losses[:epoch])) + 1
        if epoch - best >= patience:
            return epoch
    return None


@pytest.fixture(scope="module")
def patient(tmp_path_factory):
    """The root of patient runs, and the epochs after which they should end; one at least before the last."""
    root = tmp_path_factory.mktemp("patient")
    fit(WOBBLY, root, SEEDS)
    losses = [[line["validation_loss"] for line in epochs_of(path(root, WOBBLY, seed))] for seed in SEEDS]
    ends = [end_by_patience(values, PATIENT.patience) for values in losses]
    assert any(end is not None and 3 < end < WOBBLY.epochs for end in ends)
    fit(PATIENT, root, SEEDS)
    return root, ends


def test_patience_ends_a_run_after_its_best_epoch(patient):
    root, ends = patient
    for seed, end in zip(SEEDS, ends, strict=True):
        folder = path(root, PATIENT, seed)
        result = Folder(root, PATIENT, seed).read("result.json")
        lines, free = without_seconds(lines_of(folder)), without_seconds(lines_of(path(root, WOBBLY, seed)))
        assert lines == free[: len(lines)]
        if end is None or end == WOBBLY.epochs:
            assert (result["status"], result["epochs"]) == ("done", WOBBLY.epochs)
            continue
        best = result["selected"]["by_validation"]["epoch"]
        assert best == end - PATIENT.patience
        assert (result["status"], result["epochs"], result["steps"]) == ("stopped", end, end * STEPS)
        reason = f"nothing better on the validation set since epoch {best}"
        assert result["stopped"] == {"step": end * STEPS, "epoch": end, "by": "patience", "reason": reason}
        record = read(folder)
        assert (record.state, record.stopped_by_patience) == ("stopped", True)
        assert as_lists(load(folder).state_dict()) == weights_of(folder)


def test_patience_asked_again_trains_nothing(patient):
    root, _ = patient
    assert_stays(root, PATIENT, SEEDS, [Folder(root, PATIENT, seed).read("result.json") for seed in SEEDS])


def stopped_seed(patient):
    """A seed that patience ends, and the epoch after which."""
    _, ends = patient
    return next((seed, end) for seed, end in enumerate(ends) if end is not None and 3 < end < WOBBLY.epochs)


def test_interrupted_again_and_again_patience_ends_at_the_same_epoch(patient, tmp_path):
    root, _ = patient
    seed, end = stopped_seed(patient)
    for step in (2 * STEPS, (end - 1) * STEPS, end * STEPS):
        with pytest.raises(Interrupted):
            fit(PATIENT, tmp_path, [seed], watcher=stop_at(step))
    (result,) = fit(PATIENT, tmp_path, [seed])
    assert (result["status"], result["epochs"]) == ("stopped", end)
    assert bits(path(tmp_path, PATIENT, seed)) == bits(path(root, PATIENT, seed))


def test_a_checkpoint_at_which_patience_has_ended_takes_no_further_step(patient, tmp_path):
    """The watcher fails when it hears of that epoch, so that it is saved and the stop is not."""

    class Failing(Diary):
        def epoch(self, run):
            if len(run.epochs) == end:
                raise KeyError("of the watcher")

    root, _ = patient
    seed, end = stopped_seed(patient)
    with pytest.raises(KeyError):
        fit(PATIENT, tmp_path, [seed], watcher=Failing())
    state = checkpoint(tmp_path, PATIENT, seed)
    assert (state["step"], state["stopped"]) == (end * STEPS, None)
    diary = Diary()
    fit(PATIENT, tmp_path, [seed], watcher=diary)
    assert {step for group in diary.seen for _, step in group} == {end * STEPS}
    assert diary.epochs == []
    assert bits(path(tmp_path, PATIENT, seed)) == bits(path(root, PATIENT, seed))


# Kills itself when it hears of an epoch, with a checkpoint of the round before.
VICTIM = """
import os, signal, sys
from momentumrnn.experiments import Watcher, train
from momentumrnn.experiments.engine import loop
sys.path.insert(0, "tests")
from test_patience import PATIENT
class Victim(Watcher):
    def epoch(self, run):
        if len(run.epochs) == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
loop.SAVE_SECONDS = -1.0
train(PATIENT, [int(sys.argv[2])], root=sys.argv[1], device="cpu", threads=1, watcher=Victim())
"""


def test_killed_when_patience_ends_it_ends_at_the_same_epoch(patient, tmp_path):
    root, _ = patient
    seed, end = stopped_seed(patient)
    command = [sys.executable, "-c", VICTIM, str(tmp_path), str(seed), str(end)]
    victim = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert victim.returncode == -signal.SIGKILL
    assert checkpoint(tmp_path, PATIENT, seed)["step"] == end * STEPS
    assert not (path(tmp_path, PATIENT, seed) / "result.json").exists()
    (result,) = fit(PATIENT, tmp_path, [seed])
    assert (result["status"], result["epochs"]) == ("stopped", end)
    assert bits(path(tmp_path, PATIENT, seed)) == bits(path(root, PATIENT, seed))


def test_patience_that_ends_with_the_last_epoch_is_done(patient, tmp_path):
    """Asked for more epochs, it is stopped there."""
    root, _ = patient
    seed, end = stopped_seed(patient)
    (result,) = fit(replace(PATIENT, epochs=end), tmp_path, [seed])
    assert (result["status"], result["stopped"], result["epochs"]) == ("done", None, end)
    diary = Diary()
    (result,) = fit(PATIENT, tmp_path, [seed], watcher=diary)
    assert (result["status"], result["epochs"]) == ("stopped", end)
    assert diary.epochs == []
    assert bits(path(tmp_path, PATIENT, seed)) == bits(path(root, PATIENT, seed))


@dataclass(frozen=True)
class Unvalidated(Sign):
    """A task without a validation set."""

    def held_out(self, data, part):
        return None if part == "validation" else super().held_out(data, part)


def test_patience_without_a_validation_set_is_refused(tmp_path):
    config = configure(Unvalidated(), hidden_size=4, batch_size=10, epochs=2, patience=2)
    with pytest.raises(
        RunError, match=r"patience should be 0, since Unvalidated\(.*\) has no validation set, got 2"
    ):
        fit(config, tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []
    assert fit(replace(config, patience=0), tmp_path / "runs")[0]["status"] == "done"


def test_patience_makes_another_run_unless_it_is_0():
    assert replace(WOBBLY, patience=0).id == WOBBLY.id
    assert len({WOBBLY.id, PATIENT.id, replace(WOBBLY, patience=3).id}) == 3


@pytest.mark.parametrize("patience", [-1, 1.5, True, "2", None], ids=repr)
def test_patience_that_is_none_is_refused(patience):
    with pytest.raises(ValueError, match="patience should be an integer of at least 0, got"):
        replace(WOBBLY, patience=patience)
