"""A user's task that can't be trained on is refused before anything is written, and its method is named."""

import importlib.util
import re
import sys
from dataclasses import dataclass

import pytest
import torch
from torch.nn.functional import cross_entropy
from training_runs import CONFIG, ROOT, fit

from momentumrnn.experiments import Adding, Task, configure
from momentumrnn.experiments.models import build
from momentumrnn.experiments.runs.store import RunError
from momentumrnn.experiments.tasks import Data, generator

pytest.importorskip("safetensors.torch", reason="weights are written by the extra momentumrnn[all]")


DATA = torch.randn(100, 4, generator=generator("numbers"))


@dataclass(frozen=True)
class Signs(Task):
    """Of how many numbers is the sum positive? A good task."""

    count: int = 20
    features = 1
    outputs = 2
    every_step = False
    metric = "accuracy"

    def load(self, folder):
        return Data((DATA,), {})

    def rows(self, data, seed, epoch):
        return (torch.randperm(100, generator=generator(seed, epoch))[: self.count],)

    def held_out(self, data, part):
        return (torch.arange(10),)

    def batch(self, tensors, constants, rows):
        x = tensors[0][rows[0]]
        return x.T.unsqueeze(-1), (x.sum(1) > 0).long()

    def loss(self, out, target):
        return cross_entropy(out, target, reduction="none")

    def accuracy(self, out, target):
        return (out.argmax(-1) == target).float()


def changed(**attributes):
    """That task with other methods or attributes."""
    return dataclass(frozen=True)(type("Changed", (Signs,), attributes))()


def train(task, root, **settings):
    return fit(configure(task, **{"hidden_size": 4, "batch_size": 10, "epochs": 1, **settings}), root)


def inputs(make):
    """A `batch` whose inputs are made of the right ones, (T, B, 1)."""

    def batch(self, tensors, constants, rows):
        x, target = Signs.batch(self, tensors, constants, rows)
        return make(x), target

    return {"batch": batch}


def rows(make):
    """A `rows` that is made of the right ones."""
    return {"rows": lambda self, data, seed, epoch: make(Signs.rows(self, data, seed, epoch))}


def no_parts(part):
    """A `held_out` without samples in one part."""

    def held_out(self, data, asked):
        return (torch.arange(0 if asked == part else 10),)

    return {"held_out": held_out}


EACH = "a number for each sample, of shape (3,) for 3 samples"
REFUSED = {
    "mean": (
        {"loss": lambda self, out, target: cross_entropy(out, target)},
        f'Changed.loss should give {EACH}, with reduction="none", got torch.float32 of shape ()',
    ),
    "broadcast": (
        {"loss": lambda self, out, target: (out[:, :1] - target).square()},
        f'Changed.loss should give {EACH}, with reduction="none", got torch.float32 of shape (3, 3)',
    ),
    "of each output": (
        {"loss": lambda self, out, target: out.square()},
        f'Changed.loss should give {EACH}, with reduction="none", got torch.float32 of shape (3, 2)',
    ),
    "no tensor": (
        {"loss": lambda self, out, target: 0.25},
        f'Changed.loss should give {EACH}, with reduction="none", got 0.25',
    ),
    "right or wrong": (
        {"loss": lambda self, out, target: out.argmax(-1) != target},
        "Changed.loss should give losses of a floating-point dtype, got torch.bool",
    ),
    "one accuracy": (
        {"accuracy": lambda self, out, target: (out.argmax(-1) == target).float().mean()},
        f"Changed.accuracy should give {EACH}, got torch.float32 of shape ()",
    ),
    "accuracy of each output": (
        {"accuracy": lambda self, out, target: out},
        f"Changed.accuracy should give {EACH}, got torch.float32 of shape (3, 2)",
    ),
    "no accuracy": (
        {"accuracy": lambda self, out, target: None},
        f"Changed.accuracy should give {EACH}, got None",
    ),
    "tokens": (
        inputs(lambda x: (x > 0).long()),
        "Changed.batch should give inputs of a floating-point dtype, got torch.int64: integers such as "
        "tokens need an encoding, for example one-hot",
    ),
    "tokens without features": (
        inputs(lambda x: (x[..., 0] > 0).int()),
        "Changed.batch should give inputs of a floating-point dtype, got torch.int32: integers such as",
    ),
    "two features": (
        inputs(lambda x: x.expand(-1, -1, 2)),
        "Changed.batch should give inputs of shape (T, B, features) = (T, 3, 1) for 3 samples, got (4, 3, 2)",
    ),
    "features that are not there": (
        {"features": 5},
        "Changed.batch should give inputs of shape (T, B, features) = (T, 3, 5) for 3 samples, got (4, 3, 1)",
    ),
    "batch first": (
        inputs(lambda x: x.transpose(0, 1)),
        "Changed.batch should give inputs of shape (T, B, features) = (T, 3, 1) for 3 samples, got (3, 4, 1)",
    ),
    "no axis of features": (
        inputs(lambda x: x[..., 0]),
        "Changed.batch should give inputs of shape (T, B, features) = (T, 3, 1) for 3 samples, got (4, 3)",
    ),
    "no steps": (
        inputs(lambda x: x[:0]),
        "Changed.batch should give inputs of shape (T, B, features) = (T, 3, 1) for 3 samples, got (0, 3, 1)",
    ),
    "inputs alone": (
        {"batch": lambda self, *given: Signs.batch(self, *given)[0]},
        "Changed.batch should give a tuple of inputs and targets, got torch.float32 of shape (4, 3, 1)",
    ),
    "three things": (
        {"batch": lambda self, *given: (*Signs.batch(self, *given), None)},
        "Changed.batch should give a tuple of inputs and targets, got a tuple of [torch.float32 of shape "
        "(4, 3, 1), torch.int64 of shape (3,), None]",
    ),
    "no rows": (rows(lambda right: ()), "one sample at least, got a tuple of []"),
    "empty rows": (
        rows(lambda right: (right[0][:0],)),
        "Changed.rows should give a tuple of tensors with an entry for each sample, and one sample at least, "
        "got a tuple of [torch.int64 of shape (0,)]",
    ),
    "rows without a tuple": (rows(lambda right: right[0]), "got torch.int64 of shape (20,)"),
    "rows of a list": (
        rows(lambda right: (right[0].tolist()[:2],)),
        "Changed.rows should give a tuple of tensors",
    ),
    "a number as rows": (rows(lambda right: (right[0][0],)), "got a tuple of [torch.int64 of shape ()]"),
    "unequal rows": (
        rows(lambda right: (right[0], right[0][1:])),
        "got a tuple of [torch.int64 of shape (20,), torch.int64 of shape (19,)]",
    ),
    "nothing to validate on": (
        no_parts("validation"),
        "Changed.held_out(..., 'validation') should give a tuple of tensors with an entry for each sample",
    ),
    "nothing to test on": (no_parts("test"), "Changed.held_out(..., 'test') should give a tuple of tensors"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_task_that_can_not_be_trained_on_is_refused(name, tmp_path):
    attributes, expected = REFUSED[name]
    with pytest.raises(RunError, match=re.escape(expected)):
        train(changed(**attributes), tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []


ACCEPTED = {
    "as it is": {},
    "lists": rows(list),
    "float64": inputs(lambda x: x.double()),
    "float16": inputs(lambda x: x.half()),
    "accuracies of bool": {"accuracy": lambda self, out, target: out.argmax(-1) == target},
    "bfloat16, not in order": {"load": lambda self, folder: Data((DATA.T.bfloat16().T,), {})},
    "nothing held out": {"held_out": lambda self, data, part: None},
    "loss alone": {"metric": "loss", "accuracy": lambda self, out, target: None},
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_good_task_is_trained(name, tmp_path):
    (result,) = train(changed(**ACCEPTED[name]), tmp_path)
    assert (result["status"], result["steps"]) == ("done", 2)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("batch_size", [1, 2, 10])
def test_few_samples_are_enough(count, batch_size, tmp_path):
    (result,) = train(Signs(count=count), tmp_path, batch_size=batch_size)
    assert (result["status"], result["steps"]) == ("done", -(-count // batch_size))


@pytest.mark.parametrize("count", [1, 2])
def test_few_samples_are_checked_too(count, tmp_path):
    task = changed(loss=REFUSED["mean"][0]["loss"], rows=lambda self, *given: (torch.arange(count),))
    with pytest.raises(RunError, match=rf"of shape \({count},\) for {count} samples, .* of shape \(\)"):
        train(task, tmp_path)


def test_the_check_leaves_torchs_own_generator_as_it_was(tmp_path):
    """Though the task draws from it."""
    noisy = inputs(lambda x: x + torch.randn_like(x))
    before = torch.get_rng_state()
    with pytest.raises(RunError, match=r"Changed\.loss"):
        train(changed(**noisy, loss=REFUSED["mean"][0]["loss"]), tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_task_of_the_examples_passes(tmp_path):
    """Importing it trains nothing."""
    source = (ROOT / "examples/new_task.py").read_text()
    file = tmp_path / "new_task_of_the_examples.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        assert train(module.First(length=5), tmp_path / "runs", batch_size=500)[0]["status"] == "done"
    finally:
        del sys.modules[file.stem]


SAME_BYTES = {
    "as they are": (torch.arange(8, dtype=torch.int32),),
    "another dtype": (torch.arange(8, dtype=torch.int32).view(torch.float32),),
    "another shape": (torch.arange(8, dtype=torch.int32).reshape(2, 4),),
    "split": torch.arange(8, dtype=torch.int32).split(4),
    "split elsewhere": torch.arange(8, dtype=torch.int32).split([3, 5]),
    "one that is empty": (torch.arange(8, dtype=torch.int32), torch.empty(0)),
    "one that is empty, of another dtype": (torch.arange(8, dtype=torch.int32), torch.empty(0).bool()),
    "another number": (torch.arange(8, dtype=torch.int32).clone().index_fill_(0, torch.tensor([7]), 9),),
    "nothing": (),
}


def hashes(tmp_path, tensors, own):
    """What a run of a user's task writes down of its data. own: the hashes that the task gives."""

    def batch(self, tensors, constants, rows):
        return Signs.batch(self, (DATA,), constants, rows)

    return train(changed(load=lambda self, folder: Data(tensors, own), batch=batch), tmp_path)[0]["data"]


def test_data_that_differ_have_another_hash(tmp_path):
    """In values, dtype, shape or number, though the bytes may be the same."""
    digests = {}
    for name, tensors in SAME_BYTES.items():
        data = hashes(tmp_path / name, tensors, {})
        assert list(data) == ["tensors"]
        digests[name] = data["tensors"]
    assert len(set(digests.values())) == len(SAME_BYTES)
    transposed = torch.arange(8, dtype=torch.int32).reshape(4, 2).T.contiguous().T
    assert hashes(tmp_path / "a", (transposed,), {}) == hashes(tmp_path / "b", (transposed.contiguous(),), {})


def test_the_hashes_of_a_user_stay(tmp_path):
    """And what is trained on is hashed beside them, whatever they are called."""
    tensors, own = SAME_BYTES["as they are"], {"a file": "c0ffee", "tensors": "c0ffee"}
    ours = hashes(tmp_path / "alone", tensors, {})["tensors"]
    assert hashes(tmp_path / "beside", tensors, {"a file": "c0ffee"}) == {"a file": "c0ffee", "tensors": ours}
    assert hashes(tmp_path / "same name", tensors, own) == {**own, "loaded tensors": ours}


def test_the_hashes_of_our_tasks_are_their_own(tmp_path):
    task = Adding(length=4, samples=10, evaluation=5)
    assert train(task, tmp_path)[0]["data"] == task.load(None).hashes


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_a_network_refuses_integers(dtype):
    with pytest.raises(TypeError, match=f"x should have a floating-point dtype, got {dtype}: .* an encoding"):
        build(CONFIG, 0)(torch.zeros(6, 2, 2, dtype=dtype))
