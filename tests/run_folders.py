"""Folders of runs for tests, as version 0.2.0 left them; and what is in one, read, changed and compared."""

import json
from dataclasses import dataclass, fields, replace

import torch
from torch.nn.functional import cross_entropy

from momentumrnn.experiments import Adding, Config, Task, Watcher, configure, demo, train
from momentumrnn.experiments.paper.recipes import recipe
from momentumrnn.experiments.runs.checksums import open_json, open_weights, seal_json
from momentumrnn.experiments.runs.gather import gather
from momentumrnn.experiments.runs.store import read_json
from momentumrnn.experiments.tasks import Data, generator

FILES = ("config.json", "metrics.jsonl", "resume.pt", "result.json", "model.safetensors")
TINY = configure(
    Adding(length=5, samples=50, evaluation=20), hidden_size=4, batch_size=10, epochs=3, log_every=2
)
ROW = "table11/MomentumLSTM/PMNIST/128"
PMNIST = recipe(ROW).config
ADDING = recipe("figure4/LSTM/Adding/128").config
DEMO = demo.entry(demo.NETWORKS[0])
STEPS = 430  # an epoch of 55 000 images in batches of 128


@dataclass(frozen=True)
class Sign(Task):
    """A user's own: is the number positive?"""

    count: int = 50
    features = 1
    outputs = 2
    every_step = False
    metric = "accuracy"

    def load(self, folder):
        return Data((), {})

    def rows(self, data, seed, epoch):
        return (torch.randn(self.count, generator=generator(seed, epoch)),)

    def held_out(self, data, part):
        return (torch.randn(20, generator=generator(part)),)

    def batch(self, tensors, constants, rows):
        return rows[0].reshape(1, -1, 1), (rows[0] > 0).long()

    def loss(self, out, target):
        return cross_entropy(out, target, reduction="none")

    def accuracy(self, out, target):
        return (out.argmax(-1) == target).float()


class StopAt(Watcher):
    """Raises at a step, as somebody's own watcher may: all is saved first."""

    def __init__(self, step):
        self.step = step

    def progress(self, runs):
        if runs[0].step >= self.step:
            raise KeyboardInterrupt


OWN = configure(Sign(), hidden_size=4, batch_size=10, epochs=2)


def contents(path):
    """All files below, by name."""
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def write(folder, name, value):
    (folder / name).write_text(json.dumps(value))


def write_lines(folder, lines):
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def epochs_of(folder):
    return [line for line in lines_of(folder) if "epoch" in line]


def bits(path):
    """What a run has found, without the seconds that it took."""
    state = torch.load(path / "resume.pt", weights_only=True)
    return {
        "metrics": [{k: v for k, v in line.items() if k != "seconds"} for line in lines_of(path)],
        "result": {k: v for k, v in read_json(path / "result.json").items() if k in ("steps", "epochs")},
        "weights": {k: v.tolist() for k, v in open_weights(path / "model.safetensors")[0].items()},
        "best": state["best"] and {k: v.tolist() for k, v in state["best"].items()},
        "last": {k: v.tolist() for k, v in state["state"]["weights"].items()},
        "optimizer": [{k: v.tolist() for k, v in tensors.items()} for tensors in state["state"]["optimizer"]],
        **{name: state[name] for name in ("step", "losses", "norms", "frozen")},
    }


def edit(name, **values):
    """Puts values into a JSON file; "a__b": b in a; ...: takes the key away. A checksum stays right."""

    def change(folder):
        content, sealed = open_json((folder / name).read_bytes())
        for key, value in values.items():
            *path, last = key.split("__")
            place = content
            for step in path:
                place = place[step]
            place.pop(last, None)
            if value is not ...:
                place[last] = value
        (folder / name).write_bytes(seal_json(content) if sealed else json.dumps(content).encode())

    return change


def as_first_schema(config):
    """The fields of a Config as version 0.2.0 wrote them."""
    values = config.to_json()
    for field in (field for field in fields(Config) if "since" in field.metadata):
        assert values.pop(field.name) == field.default
    return values


def make(root, config, seed, test, validation=None, *, wanted=None, frozen=None, result=True, name=""):
    """A folder as version 0.2.0 left it.

    test, validation: the measure after each epoch, a fraction or a loss; wanted: the epochs that were asked
    for; frozen: the step that was not finite; result: whether it came to its end.
    """
    folder = root / (name or f"{config.id}-s{seed}")
    folder.mkdir(parents=True)
    config, metric = replace(config, epochs=wanted or config.epochs), config.task.metric
    write(folder, "config.json", {"config": as_first_schema(config), "seed": seed})
    length = STEPS if metric == "accuracy" else 100
    lines, epochs = [], []
    for i, value in enumerate(test, 1):
        lines.append({"step": i * length, "loss": 1 / i, "norm": 0.5})
        epochs.append({"epoch": i, "step": i * length, "train_loss": 1 / i + seed / 1000})
        if validation:
            epochs[-1] |= {f"validation_{metric}": validation[i - 1]}
        epochs[-1] |= {f"test_{metric}": value, "test_loss": 0.5 if metric == "accuracy" else value}
        epochs[-1] |= {"seconds": i / 8}
        lines.append(epochs[-1])
    write_lines(folder, lines)
    if result or frozen is not None:
        best = max if metric == "accuracy" else min
        chosen = {
            "by_validation": epochs[validation.index(best(validation))] if validation else None,
            "by_test": epochs[test.index(best(test))] if test else None,
            "last": epochs[-1] if epochs else None,
        }
        origin = {"device": "a device", "commit": "c0ffee", "command": "momentumrnn run", "metric": metric}
        failed = None if frozen is None else {"step": frozen, "loss": "nan"}
        numbers = {"id": config.id, "seed": seed, "epochs": len(test), "selected": chosen, "frozen": failed}
        write(folder, "result.json", origin | numbers)
    return folder


def rising(best, at, count=150):
    """As many accuracies, the best after epoch `at`."""
    return [best if i == at else round(best - abs(i - at) / 1000, 4) for i in range(1, count + 1)]


def make_done(root):
    """A run of a recipe to its end; what validation selects is not the best on the test set."""
    return make(root, PMNIST, 0, rising(0.93, 140), rising(0.94, 120))


def train_all(root):
    """Two seeds of a real run, and two of one that a user's class describes."""
    for config in (TINY, OWN):
        train(config, [0, 1], root=root, device="cpu", threads=1, command="momentumrnn run")
    return root


def states(roots):
    return [(seed.path.name, seed.state) for seed in gather(roots).folders]
