"""A run that a watcher stops is over, with its weights; a watcher that fails changes no bit of any run."""

import signal
from dataclasses import replace

import pytest
import torch
from run_folders import bits, epochs_of, lines_of
from training_runs import (
    CONFIG,
    CONFIGS,
    STEPS,
    TASK,
    Diary,
    Stopper,
    as_lists,
    assert_stays,
    checkpoint,
    fit,
    path,
    stop_at,
    train_whole,
    weights_of,
    without_seconds,
)

from momentumrnn.experiments import load
from momentumrnn.experiments.engine import loop
from momentumrnn.experiments.engine.run import Run
from momentumrnn.experiments.engine.signals import Interrupted
from momentumrnn.experiments.models import build
from momentumrnn.experiments.runs.read import read
from momentumrnn.experiments.runs.store import Folder, RunError

pytest.importorskip("safetensors.torch", reason="weights are written by the extra momentumrnn[all]")
EVERY_FILE = {"config.json", "metrics.jsonl", "resume.pt", "result.json", "model.safetensors", "lock"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Runs that were never stopped."""
    return train_whole(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_watcher_stops_one_of_two_seeds_after_an_epoch(name, threads, whole, tmp_path):
    config = CONFIGS[name]
    diary = Stopper(1, epoch=2)
    results = fit(config, tmp_path / "runs", [0, 1], watcher=diary, threads=threads)
    assert [result["status"] for result in results] == ["done", "stopped"]
    assert [result["steps"] for result in results] == [3 * STEPS, 2 * STEPS]
    assert [result["epochs"] for result in results] == [3, 2]
    assert results[0]["stopped"] is None
    stopped = {"step": 2 * STEPS, "epoch": 2, "by": "watcher", "reason": "it is enough"}
    assert results[1]["stopped"] == stopped
    assert results[1]["frozen"] is None
    assert diary.notes == ["seed 1: stopped after epoch 2: it is enough"]
    assert sorted(diary.ended, key=lambda end: end[0]) == list(enumerate(results))
    folders = [path(tmp_path / "runs", config, seed) for seed in (0, 1)]
    assert {file.name for file in folders[1].iterdir()} == EVERY_FILE
    assert checkpoint(tmp_path / "runs", config, 1)["stopped"] == stopped
    # The other seed is as without the stop; the stopped one as if it had been asked for two epochs.
    short = replace(config, epochs=2)
    fit(short, tmp_path / "short", [1])
    if threads == 1:
        assert bits(folders[0]) == bits(path(whole, config, 0))
        assert bits(folders[1]) == bits(path(tmp_path / "short", short, 1))
    model = load(folders[1])
    assert as_lists(model.state_dict()) == weights_of(folders[1])
    record = read(folders[1])
    assert (record.state, record.reason) == ("stopped", "after epoch 2 of 3: it is enough")
    assert record.verified
    assert_stays(tmp_path / "runs", config, [0, 1], results)


@pytest.mark.parametrize("step", [2, STEPS + 2])
def test_a_watcher_stops_one_of_two_seeds_in_an_epoch(step, whole, tmp_path):
    """Before the first evaluation its weights are the present ones."""
    diary = Stopper(1, step=step)
    results = fit(CONFIG, tmp_path / "runs", [0, 1], watcher=diary)
    assert [result["status"] for result in results] == ["done", "stopped"]
    epochs = step // STEPS
    assert results[1]["stopped"] == {"step": step, "epoch": epochs, "by": "watcher", "reason": "it is enough"}
    assert (results[1]["steps"], results[1]["epochs"]) == (step, epochs)
    assert diary.notes == [f"seed 1: stopped after epoch {epochs}: it is enough"]
    assert bits(path(tmp_path / "runs", CONFIG, 0)) == bits(path(whole, CONFIG, 0))
    # The same as a run that a signal stopped there.
    with pytest.raises(Interrupted):
        fit(CONFIG, tmp_path / "interrupted", [1], watcher=stop_at(step))
    state, expected = (checkpoint(tmp_path / root, CONFIG, 1) for root in ("runs", "interrupted"))
    assert as_lists(state["state"]["weights"]) == as_lists(expected["state"]["weights"])
    folder = path(tmp_path / "runs", CONFIG, 1)
    lines = without_seconds(lines_of(folder))
    assert lines == without_seconds(lines_of(path(tmp_path / "interrupted", CONFIG, 1)))
    assert lines == without_seconds(lines_of(path(whole, CONFIG, 1)))[: len(lines)]
    if epochs:
        short = replace(CONFIG, epochs=1)
        fit(short, tmp_path / "short", [1])
        assert weights_of(folder) == weights_of(path(tmp_path / "short", short, 1))
        assert results[1]["selected"]["by_validation"]["epoch"] == 1
    else:
        assert weights_of(folder) == as_lists(state["state"]["weights"])
        assert results[1]["selected"] == {"by_validation": None, "by_test": None, "last": None}
    assert read(folder).state == "stopped"
    assert as_lists(load(folder).state_dict()) == weights_of(folder)
    assert_stays(tmp_path / "runs", CONFIG, [0, 1], results)


def test_an_epoch_that_was_trained_is_evaluated_before_the_stop(tmp_path):
    """Also where it is asked for in `progress`, at the last step of the epoch."""
    diary = Stopper(0, step=STEPS)
    (result,) = fit(CONFIG, tmp_path, watcher=diary)
    assert (result["status"], result["epochs"], result["steps"]) == ("stopped", 1, STEPS)
    assert [epoch["epoch"] for _, epoch in diary.epochs] == [1]


def test_an_epoch_that_could_not_be_evaluated_is_not_lost_to_a_stop(whole, tmp_path):
    """A signal comes with the wish to stop: the run is whole, and whoever goes on evaluates it."""

    def react(runs):
        if runs[0].step == STEPS:
            runs[0].stop("it is enough")
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted):
        fit(CONFIG, tmp_path, watcher=Diary(react))
    assert checkpoint(tmp_path, CONFIG)["stopped"] is None
    fit(CONFIG, tmp_path)
    assert bits(path(tmp_path, CONFIG)) == bits(path(whole, CONFIG))


@pytest.mark.parametrize("where", [{"epoch": 3}, {"step": 3 * STEPS}], ids=["epoch", "progress"])
def test_stopped_at_its_end_it_is_done(where, whole, tmp_path):
    (result,) = fit(CONFIG, tmp_path, watcher=Stopper(0, **where))
    assert (result["status"], result["stopped"], result["epochs"]) == ("done", None, 3)
    assert bits(path(tmp_path, CONFIG)) == bits(path(whole, CONFIG))


def test_stopped_before_its_first_step(tmp_path):
    class Early(Diary):
        def begin(self, config, runs, device):
            runs[0].stop("not this one")

    diary = Early()
    (result,) = fit(CONFIG, tmp_path, watcher=diary)
    assert (result["status"], result["epochs"], result["steps"]) == ("stopped", 0, 0)
    assert diary.notes == ["seed 0: stopped after epoch 0: not this one"]
    folder = path(tmp_path, CONFIG)
    assert weights_of(folder) == as_lists(build(CONFIG, 0).state_dict())
    assert read(folder).state == "stopped"
    assert_stays(tmp_path, CONFIG, [0], [result])


def test_a_seed_that_is_stopped_while_it_waits_for_others(tmp_path, whole):
    """Seed 1 has an epoch already. It is stopped before seed 0 has come as far."""
    fit(replace(CONFIG, epochs=1), tmp_path, [1])

    class Waiting(Diary):
        def begin(self, config, runs, device):
            runs[1].stop("it is enough")

    results = fit(CONFIG, tmp_path, [0, 1], watcher=Waiting())
    assert [(result["status"], result["steps"]) for result in results] == [
        *(("done", 3 * STEPS), ("stopped", STEPS))
    ]
    assert bits(path(tmp_path, CONFIG, 0)) == bits(path(whole, CONFIG, 0))


def test_the_seconds_of_a_stopped_run_end_with_it(tmp_path):
    """Those of the other seed go on."""
    results = fit(CONFIG, tmp_path, [0, 1], watcher=Stopper(1, step=2))
    for result in results:
        assert result["seconds"] == result["sessions"][-1]["seconds"]


@pytest.mark.parametrize("reason", ["", " ", None, 3, b"enough"], ids=repr)
def test_a_stop_has_a_reason(reason, tmp_path):
    run = Run(Folder(tmp_path, CONFIG, 0), build(CONFIG, 0), TASK.samples, {})
    with pytest.raises(ValueError, match="reason should be a text that says why the run is stopped, got"):
        run.stop(reason)
    assert run.reason_to_stop is None


def test_who_is_no_watcher_is_refused(tmp_path):
    """One without `end` would fail after hours."""

    class Lookalike:
        def begin(self, config, runs, device): ...
        def progress(self, runs): ...
        def epoch(self, run): ...
        def note(self, text): ...

    for watcher in (Lookalike(), Diary, print):
        with pytest.raises(
            TypeError, match=r"watcher should derive from momentumrnn\.experiments\.Watcher, got"
        ):
            fit(CONFIG, tmp_path, watcher=watcher)
    assert list(tmp_path.iterdir()) == []


class Broken(Diary):
    """Raises in one of its methods, the first time that this is called for a seed, or for any."""

    def __init__(self, method, seed=None):
        super().__init__()

        def fail(*arguments):
            if seed is None or arguments[0].seed == seed:
                raise KeyError(f"{method} of the watcher")

        setattr(self, method, fail)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("method", ["begin", "progress", "epoch", "end"])
def test_after_an_error_of_the_watcher_training_goes_on_to_the_same_bits(method, threads, whole, tmp_path):
    for _ in range(2):
        with pytest.raises(KeyError, match=f"{method} of the watcher"):
            fit(CONFIG, tmp_path, [0, 1], threads=threads, watcher=Broken(method))
    diary = Diary()
    results = fit(CONFIG, tmp_path, [0, 1], threads=threads, watcher=diary)
    assert [result["status"] for result in results] == ["done", "done"]
    # Both seeds have raised at their end, and had their results.
    assert (diary.begun == []) == (method == "end")
    if threads == 1:
        for seed in (0, 1):
            assert bits(path(tmp_path, CONFIG, seed)) == bits(path(whole, CONFIG, seed))


def test_who_is_told_of_an_end_was_told_of_a_beginning(tmp_path):
    """Where one seed raised at its end, only the result of the other is left to write."""

    class Orderly(Diary):
        def begin(self, config, runs, device):
            super().begin(config, runs, device)
            self.open = {run.seed for run in runs if not run.done}

        def end(self, run, result):
            self.open.remove(run.seed)
            super().end(run, result)

    with pytest.raises(KeyError, match="end of the watcher"):
        fit(CONFIG, tmp_path, [0, 1], watcher=Broken("end"))
    for left in ([1], []):
        diary = Orderly()
        fit(CONFIG, tmp_path, [0, 1], watcher=diary)
        assert [seed for seed, _ in diary.ended] == left
        assert len(diary.begun) == len(left)
        assert diary.seen == []
        assert not left or diary.open == set()
    # The result alone is gone.
    (path(tmp_path, CONFIG, 0) / "result.json").unlink()
    diary = Orderly()
    fit(CONFIG, tmp_path, [0, 1], watcher=diary)
    assert ([seed for seed, _ in diary.ended], diary.open) == ([0], set())


@pytest.mark.parametrize("seed", [0, 1])
def test_an_error_about_one_seed_loses_nothing_of_the_other(seed, whole, tmp_path):
    """All that both have trained is saved, with the epoch that was evaluated."""
    with pytest.raises(KeyError, match="epoch of the watcher"):
        fit(CONFIG, tmp_path, [0, 1], watcher=Broken("epoch", seed))
    for other in (0, 1):
        assert checkpoint(tmp_path, CONFIG, other)["step"] == STEPS
        assert [line["epoch"] for line in epochs_of(path(tmp_path, CONFIG, other))] == [1]
    diary = Diary()
    fit(CONFIG, tmp_path, [0, 1], watcher=diary)
    assert [line["epoch"] for _, line in diary.epochs] == [2, 2, 3, 3]
    for other in (0, 1):
        assert bits(path(tmp_path, CONFIG, other)) == bits(path(whole, CONFIG, other))


def test_an_error_in_a_note_loses_nothing(whole, tmp_path):
    """The note says that seed 1 is stopped; it is, and the other seed goes on."""

    class Mute(Stopper):
        def note(self, text):
            raise KeyError("note of the watcher")

    with pytest.raises(KeyError, match="note of the watcher"):
        fit(CONFIG, tmp_path, [0, 1], watcher=Mute(1, step=STEPS + 2))
    assert checkpoint(tmp_path, CONFIG, 0)["step"] == STEPS + 2
    assert checkpoint(tmp_path, CONFIG, 1)["stopped"]["step"] == STEPS + 2
    results = fit(CONFIG, tmp_path, [0, 1])
    assert [(result["status"], result["steps"]) for result in results] == [
        *(("done", 3 * STEPS), ("stopped", STEPS + 2))
    ]
    assert bits(path(tmp_path, CONFIG, 0)) == bits(path(whole, CONFIG, 0))


def test_the_watchers_error_is_the_one_to_show(tmp_path, monkeypatch):
    """Even where nothing can be saved any more, which it says."""
    save = loop.Run.save

    def full(run):
        if run.step:
            raise RunError("no space is left")
        save(run)

    monkeypatch.setattr(loop.Run, "save", full)
    with pytest.raises(KeyError, match="epoch of the watcher") as error:
        fit(CONFIG, tmp_path, watcher=Broken("epoch"))
    (note,) = error.value.__notes__
    assert note == "What was trained since the last checkpoint could not be saved: no space is left"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and there is none")
def test_a_seed_that_is_stopped_on_a_gpu(tmp_path):
    """All seeds are one graph there."""
    config = replace(CONFIG, hidden_size=32)
    fit(config, tmp_path / "whole", [0, 1, 2], device="cuda")
    results = fit(config, tmp_path / "stopped", [0, 1, 2], device="cuda", watcher=Stopper(1, step=STEPS + 2))
    assert [result["status"] for result in results] == ["done", "stopped", "done"]
    assert results[1]["steps"] == STEPS + 2
    for seed in (0, 2):
        stopped, never = (bits(path(tmp_path / root, config, seed)) for root in ("stopped", "whole"))
        assert stopped == never
    assert_stays(tmp_path / "stopped", config, [0, 1, 2], results)
