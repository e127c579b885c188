"""Small runs that the tests of training share: what is trained, who watches, and where it lies."""

import signal
from dataclasses import replace
from pathlib import Path

import torch
from run_folders import contents

import momentumrnn as mr
from momentumrnn.experiments import Adding, Copying, Watcher, configure, train
from momentumrnn.experiments.runs.checksums import open_weights
from momentumrnn.experiments.runs.store import Folder

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


class Diary(Watcher):
    """Remembers what it is told; react: what it does at progress."""

    def __init__(self, react=lambda runs: None):
        self.notes, self.begun, self.seen, self.epochs, self.ended = [], [], [], [], []
        self.react = react

    def begin(self, config, runs, device):
        self.begun.append((config, [run.seed for run in runs], device))

    def progress(self, runs):
        self.seen.append([(run.seed, run.step) for run in runs])
        self.react(runs)

    def epoch(self, run):
        self.epochs.append((run.seed, dict(run.epochs[-1])))

    def end(self, run, result):
        self.ended.append((run.seed, result))

    def note(self, text):
        self.notes.append(text)


class Stopper(Diary):
    """Stops a seed: in `epoch` once it has so many epochs, or in `progress` once it is at a step."""

    def __init__(self, seed, *, epoch=None, step=None):
        super().__init__(self.look)
        self.seed, self.last_epoch, self.last_step = seed, epoch, step

    def look(self, runs):
        for run in runs:
            if run.seed == self.seed and run.step == self.last_step:
                run.stop("it is enough")

    def epoch(self, run):
        super().epoch(run)
        if run.seed == self.seed and len(run.epochs) == self.last_epoch:
            run.stop("it is enough")


def stop_at(step, number=signal.SIGINT):
    """A watcher that interrupts training when it hears of this step."""

    def react(runs):
        if runs[0].step == step:
            signal.raise_signal(number)

    return Diary(react)


def fit(config, root, seeds=(0,), **options):
    return train(config, seeds, root=root, **{"device": "cpu", "threads": 1, **options})


def path(root, config, seed=0):
    return Folder(Path(root), config, seed).path


def checkpoint(root, config, seed=0):
    return torch.load(path(root, config, seed) / "resume.pt", weights_only=True)


def train_whole(root):
    """Three seeds of each configuration, never stopped; returns their root."""
    for config in CONFIGS.values():
        fit(config, root, [0, 1, 2])
    return root


def as_lists(weights):
    return {name: tensor.tolist() for name, tensor in weights.items()}


def weights_of(folder):
    return as_lists(open_weights(folder / "model.safetensors")[0])


def without_seconds(lines):
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def assert_stays(root, config, seeds, results):
    """Asked again, also for more epochs, what is over trains nothing and changes nothing."""
    before, diary = contents(root), Diary()
    assert fit(config, root, seeds, watcher=diary) == results
    stopped = [seed for seed, result in zip(seeds, results, strict=True) if result["status"] == "stopped"]
    again = fit(replace(config, epochs=config.epochs + 5), root, stopped, watcher=diary)
    assert [result["status"] for result in again] == ["stopped"] * len(stopped)
    assert contents(root) == before
    assert diary.begun == diary.seen == diary.epochs == diary.ended == diary.notes == []
