"""Tasks: batches are what a plain loop makes of the rows, draws depend on seed and epoch, parts are apart."""

import gzip
import hashlib
import math
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from momentumrnn.experiments import data
from momentumrnn.experiments.tasks import MNIST, PMNIST, TASKS, Adding, Copying, Data
from momentumrnn.repr_parser import parse

ADDING = Adding(length=9, samples=40, evaluation=30)
COPYING = Copying(length=6, symbols=3, alphabet=4, samples=40, evaluation=30)
DRAWN = [ADDING, COPYING]
NOTHING = Data((), {})


def idx(array):
    """The bytes of an array as the files have it."""
    head = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
    return gzip.compress(head + array.astype(np.uint8).tobytes(), mtime=0)


def put(folder, monkeypatch, contents):
    """Files of these contents as the data set mnist, hashes and sizes theirs."""
    folder.mkdir(exist_ok=True)
    known = []
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        known.append(data.File(name, len(content), hashlib.sha256(content).hexdigest()))
    monkeypatch.setitem(data.DATASETS, "mnist", data.Dataset(tuple(known)))


def arrays(training=20, test=7):
    """Images and labels by the names of their files."""
    random = np.random.RandomState(0)
    made = {}
    for part, count in (("train", training), ("t10k", test)):
        made[f"{part}-images-idx3-ubyte.gz"] = random.randint(0, 256, (count, 28, 28))
        made[f"{part}-labels-idx1-ubyte.gz"] = random.randint(0, 10, count)
    return made


@pytest.fixture
def digits(tmp_path, monkeypatch):
    """A folder with 20 images to train on and 7 to test with."""
    put(tmp_path / "mnist", monkeypatch, {name: idx(array) for name, array in arrays().items()})
    return tmp_path


def first(rows, count):
    return tuple(row[:count] for row in rows)


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def replicas(task, loaded, seeds, count):
    """Constants and rows of several seeds, stacked."""
    constants = [task.constants(seed) for seed in seeds]
    rows = [first(task.rows(loaded, seed, 0), count) for seed in seeds]
    stack = [tuple(map(torch.stack, zip(*parts, strict=True))) for parts in (constants, rows)]
    return constants, rows, stack[0], stack[1]


def assert_batches(task, loaded):
    """One batch of all replicas by vmap is the batch of each."""
    constants, rows, all_constants, all_rows = replicas(task, loaded, [3, 4, 5], 6)
    x, target = torch.vmap(task.batch, in_dims=(None, 0 if constants[0] else None, 0))(
        loaded.tensors, all_constants, all_rows
    )
    assert len(x) == 3
    for r in range(3):
        x_r, target_r = task.batch(loaded.tensors, constants[r], rows[r])
        assert torch.equal(x[r], x_r)
        assert torch.equal(target[r], target_r)
        assert x_r.dtype == torch.float32
        assert x_r.is_contiguous()


def assert_losses(task, loaded):
    """Loss, its gradient and accuracy of all replicas by vmap are those of each."""
    constants, rows, *_ = replicas(task, loaded, [3, 4], 6)
    both = [task.batch(loaded.tensors, c, r) for c, r in zip(constants, rows, strict=True)]
    target = torch.stack([target for _, target in both])
    steps = [len(both[0][0])] * task.every_step
    out = torch.randn(2, *steps, 6, task.outputs, dtype=torch.float64, requires_grad=True)
    losses = torch.vmap(task.loss)(out, target)
    (gradient,) = torch.autograd.grad(losses.sum(), out)
    for r in range(2):
        loss = task.loss(out[r], target[r])
        assert loss.shape == (6,)
        torch.testing.assert_close(losses[r], loss)
        torch.testing.assert_close(gradient[r], torch.autograd.grad(loss.sum(), out)[0][r])
    if task.accuracy(out[0], target[0]) is not None:
        right = torch.vmap(task.accuracy)(out, target)
        assert torch.equal(right, torch.stack([task.accuracy(out[r], target[r]) for r in range(2)]))


@pytest.mark.parametrize("length", [2, 3, 9, 10])
def test_adding_is_its_formula(length):
    task = Adding(length=length, samples=25)
    numbers, marked = rows = task.rows(NOTHING, 0, 0)
    x, target = task.batch((), (), rows)
    assert x.shape == (length, 25, 2)
    assert target.shape == (25,)
    for b in range(25):
        p, q = marked[b].tolist()
        assert 0 <= p < length // 2 <= q < length
        for t in range(length):
            assert x[t, b, 0] == numbers[b, t]
            assert x[t, b, 1] == (1.0 if t in (p, q) else 0.0)
        assert target[b] == numbers[b, p] + numbers[b, q]


def test_adding_draws_uniformly():
    task = Adding(length=8, samples=20000)
    numbers, marked = task.rows(NOTHING, 0, 0)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(numbers.mean() - 1 / 2) < 0.005
    assert abs(numbers.var() - 1 / 12) < 0.002
    shares = torch.stack([torch.bincount(marked[:, 0], minlength=8), torch.bincount(marked[:, 1])]) / 20000
    expected = torch.tensor([[1 / 4] * 4 + [0] * 4, [0] * 4 + [1 / 4] * 4])
    assert (shares - expected).abs().max() < 0.015
    # The two places are drawn apart.
    both = torch.bincount(marked[:, 0] * 4 + marked[:, 1] - 4, minlength=16) / 20000
    assert (both - 1 / 16).abs().max() < 0.01


def test_answering_one_has_the_loss_of_the_baseline():
    task = Adding(length=4, samples=50000)
    _, target = task.batch((), (), task.rows(NOTHING, 0, 0))
    assert task.baseline == 1 / 6
    assert abs(task.loss(torch.ones(50000, 1), target).mean() - task.baseline) < 0.003


def test_the_loss_of_adding():
    out, target = torch.tensor([[1.0], [0.25]]), torch.tensor([0.5, 2.25])
    assert ADDING.loss(out, target).tolist() == [0.25, 4.0]
    assert ADDING.accuracy(out, target) is None


@pytest.mark.parametrize(("length", "symbols", "alphabet"), [(6, 3, 4), (0, 2, 2), (1, 1, 1), (20, 5, 255)])
def test_copying_is_its_formula(length, symbols, alphabet):
    task = Copying(length=length, symbols=symbols, alphabet=alphabet, samples=9)
    rows = task.rows(NOTHING, 0, 0)
    x, target = task.batch((), (), rows)
    total = length + 2 * symbols
    assert x.shape == (total, 9, alphabet + 2)
    assert (task.features, task.outputs) == (alphabet + 2, alphabet + 1)
    assert target.dtype == torch.int64
    for b in range(9):
        said = rows[0][b].tolist()
        assert all(1 <= s <= alphabet for s in said)
        shown = said + [0] * length + [alphabet + 1] + [0] * (symbols - 1)
        for t in range(total):
            assert x[t, b].tolist() == [float(f == shown[t]) for f in range(alphabet + 2)]
        assert target[b].tolist() == said


def test_copying_draws_uniformly():
    (symbols,) = Copying(length=3, symbols=4, alphabet=5, samples=20000).rows(NOTHING, 0, 0)
    assert symbols.dtype == torch.uint8
    for k in range(4):
        shares = torch.bincount(symbols[:, k].long(), minlength=6) / 20000
        assert shares[0] == 0
        assert (shares[1:] - 1 / 5).abs().max() < 0.015
    pairs = torch.bincount(symbols[:, 0].long() * 6 + symbols[:, 1]) / 20000
    assert (pairs[pairs > 0] - 1 / 25).abs().max() < 0.01


def test_the_loss_of_copying_is_over_all_steps():
    """Against torch's cross-entropy on the whole target: K + L blanks, then the symbols."""
    (symbols,) = rows = first(COPYING.rows(NOTHING, 0, 0), 7)
    _, target = COPYING.batch((), (), rows)
    out = (5 * torch.randn(12, 7, 5, dtype=torch.float64)).requires_grad_()
    whole = torch.tensor([[0] * 9 + s.tolist() for s in symbols]).T
    plain = cross_entropy(out.reshape(-1, 5), whole.reshape(-1), reduction="none").reshape(12, 7).mean(0)
    loss = COPYING.loss(out, target)
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(*(torch.autograd.grad(value.sum(), out)[0] for value in (loss, plain)))


def test_the_accuracy_of_copying_is_over_the_symbols():
    target = torch.tensor([[1, 2, 3], [4, 4, 4]])
    out = torch.zeros(12, 2, 5)
    out[:9, :, 1] = 9.0  # wrong answers before the symbols don't count
    for t, (one, other) in enumerate([(1, 4), (2, 0), (1, 4)]):
        out[9 + t, 0, one] = out[9 + t, 1, other] = 1.0
    torch.testing.assert_close(COPYING.accuracy(out, target), torch.tensor([2 / 3, 2 / 3]))
    out[11, 0] = torch.eye(5)[3]
    torch.testing.assert_close(COPYING.accuracy(out, target), torch.tensor([1.0, 2 / 3]))


def test_guessing_has_the_loss_of_the_baseline():
    """Sure of the blanks, equally unsure of all symbols."""
    rows = COPYING.rows(NOTHING, 0, 0)
    out = torch.zeros(12, 40, 5, dtype=torch.float64)
    out[:9, :, 0], out[9:, :, 0] = 100.0, -100.0
    loss = COPYING.loss(out, COPYING.batch((), (), rows)[1])
    torch.testing.assert_close(loss, torch.full((40,), COPYING.baseline, dtype=torch.float64))
    assert Copying(length=2000).baseline == pytest.approx(10 * math.log(8) / 2020)


@pytest.mark.parametrize("task", DRAWN)
def test_a_draw_depends_on_seed_and_epoch(task):
    again = parse(repr(task), TASKS)
    drawn = {(seed, epoch): task.rows(NOTHING, seed, epoch) for seed in range(3) for epoch in range(3)}
    torch.rand(10)  # nobody else's random numbers matter
    for key, rows in drawn.items():
        assert same(rows, again.rows(NOTHING, *key))
        assert all(len(row) == task.samples for row in rows)
    parts = [task.held_out(NOTHING, "validation"), task.held_out(NOTHING, "test")]
    assert all(len(row) == task.evaluation for rows in parts for row in rows)
    everything = [first(rows, 30) for rows in [*drawn.values(), *parts]]
    for i, rows in enumerate(everything):
        assert not any(same(rows, other) for other in everything[:i])
        # Nor do the samples within come twice: numbers never, symbols rarely.
        assert len(rows[0].unique(dim=0)) > (29 if task is ADDING else 15)


@pytest.mark.parametrize("task", DRAWN)
def test_the_hash_is_of_the_test_samples(task):
    loaded = task.load(None)
    assert loaded.tensors == ()
    content = b"".join(row.numpy().tobytes() for row in task.held_out(loaded, "test"))
    assert loaded.hashes == {"test": hashlib.sha256(content).hexdigest()}


@pytest.mark.parametrize("task", DRAWN)
def test_drawn_tasks_by_vmap(task):
    assert_batches(task, NOTHING)
    assert_losses(task, NOTHING)


@pytest.mark.parametrize("task", [MNIST(validation=5), PMNIST("fixed", 5), PMNIST("seed", 5)], ids=repr)
def test_digits_by_vmap(task, digits):
    assert_batches(task, task.load(digits))
    assert_losses(task, task.load(digits))


@pytest.mark.parametrize(
    "task", [*(kind() for kind in TASKS), *DRAWN, MNIST(0, 9), PMNIST("seed", 1, 2)], ids=repr
)
def test_repr_is_the_spelling(task):
    assert parse(repr(task), TASKS) == task
    assert hash(parse(repr(task), TASKS)) == hash(task)


@pytest.mark.parametrize(
    ("kind", "field", "value", "error"),
    [
        (Adding, "length", 1, ValueError),
        (Adding, "length", 750.0, TypeError),
        (Adding, "samples", 0, ValueError),
        (Adding, "samples", True, TypeError),
        (Adding, "evaluation", 0, ValueError),
        (Copying, "length", -1, ValueError),
        (Copying, "symbols", 0, ValueError),
        (Copying, "symbols", "10", TypeError),
        (Copying, "alphabet", 0, ValueError),
        (Copying, "alphabet", 256, ValueError),
        (Copying, "samples", None, TypeError),
        (Copying, "evaluation", 0, ValueError),
        (MNIST, "validation", -1, ValueError),
        (MNIST, "validation", 60000, ValueError),
        (MNIST, "validation", 0.1, TypeError),
        (MNIST, "limit", -1, ValueError),
        (MNIST, "limit", False, TypeError),
        (PMNIST, "validation", 60000, ValueError),
        (PMNIST, "limit", "all", TypeError),
        (PMNIST, "permutation", "random", ValueError),
        (PMNIST, "permutation", 92916, ValueError),
    ],
)
def test_bad_fields_are_refused(kind, field, value, error):
    with pytest.raises(error, match=rf"{kind.__name__}: {field} should be .*, got {value!r}"):
        kind(**{field: value})


@pytest.mark.parametrize("task", [kind() for kind in TASKS], ids=repr)
def test_what_a_task_says_of_itself(task):
    assert task.metric == ("accuracy" if isinstance(task, MNIST | PMNIST) else "loss")
    assert task.every_step == isinstance(task, Copying)
    steps = {Adding: 12, Copying: 70}.get(type(task))
    if steps is not None:  # epochs of 100 steps
        assert task.samples / task.defaults["batch_size"] == 100
        assert task.defaults["epochs"] == steps
        assert task.defaults["lr"] == 2e-4


def test_images_are_read_row_by_row(digits):
    """Each pixel of each image, and its label, as the files have them."""
    made, task = arrays(), MNIST(validation=5)
    loaded = task.load(digits)
    images = [*made["train-images-idx3-ubyte.gz"], *made["t10k-images-idx3-ubyte.gz"]]
    labels = [*made["train-labels-idx1-ubyte.gz"], *made["t10k-labels-idx1-ubyte.gz"]]
    chosen = [26, 0, 19, 20, 0]
    x, target = task.batch(loaded.tensors, (), (torch.tensor(chosen),))
    assert x.shape == (784, 5, 1)
    assert loaded.tensors[0].dtype == torch.uint8
    for b, i in enumerate(chosen):
        assert target[b] == labels[i]
        pixels = [images[i][row][column] for row in range(28) for column in range(28)]
        torch.testing.assert_close(x[:, b, 0], torch.tensor(pixels) / 255, rtol=1e-6, atol=0)
    expected = {n: hashlib.sha256((digits / "mnist" / n).read_bytes()).hexdigest() for n in made}
    assert loaded.hashes == expected


def test_pixels_are_permuted_for_all_images_alike(digits):
    rows = (torch.tensor([3, 22]),)
    loaded = MNIST(5).load(digits)
    plain, target = MNIST(5).batch(loaded.tensors, (), rows)
    fixed, by_seed = PMNIST("fixed", 5), PMNIST("seed", 5)
    for task, seed, source in ((fixed, 1, 92916), (fixed, 2, 92916), (by_seed, 1, 1), (by_seed, 2, 2)):
        order = np.random.RandomState(source).permutation(784)
        assert sorted(order) == list(range(784))
        x, permuted_target = task.batch(loaded.tensors, task.constants(seed), rows)
        assert torch.equal(permuted_target, target)
        for t in range(784):
            assert torch.equal(x[t], plain[order[t]])
    assert MNIST().constants(1) == ()


@pytest.mark.parametrize("kind", [MNIST, PMNIST])
def test_parts_of_the_images_are_apart(kind, digits):
    task = kind(validation=6)
    loaded = task.load(digits)
    (training,), (validation,), (test,) = (
        task.rows(loaded, 0, 0),
        task.held_out(loaded, "validation"),
        task.held_out(loaded, "test"),
    )
    assert sorted(training.tolist()) == list(range(14))
    assert validation.tolist() == list(range(14, 20))
    assert test.tolist() == list(range(20, 27))
    orders = [tuple(task.rows(loaded, seed, epoch)[0].tolist()) for seed in range(3) for epoch in range(3)]
    assert len(set(orders)) == 9
    assert orders[4] == tuple(kind(validation=6).rows(loaded, 1, 1)[0].tolist())
    with pytest.raises(KeyError):
        task.held_out(loaded, "training")


def test_the_paper_has_no_validation_images(digits):
    task = MNIST(validation=0)
    loaded = task.load(digits)
    assert task.held_out(loaded, "validation") is None
    assert sorted(task.rows(loaded, 0, 0)[0].tolist()) == list(range(20))


def test_a_limit_holds_for_each_part(digits):
    task = MNIST(validation=6, limit=4)
    loaded = task.load(digits)
    assert sorted(task.rows(loaded, 0, 0)[0].tolist()) == [0, 1, 2, 3]
    assert task.held_out(loaded, "validation")[0].tolist() == [14, 15, 16, 17]
    assert task.held_out(loaded, "test")[0].tolist() == [20, 21, 22, 23]
    many = MNIST(validation=6, limit=10)
    assert len(many.rows(loaded, 0, 0)[0]) == 10
    assert many.held_out(loaded, "validation")[0].tolist() == list(range(14, 20))
    assert many.held_out(loaded, "test")[0].tolist() == list(range(20, 27))


def test_the_loss_of_digits_is_torch_s():
    out, target = 5 * torch.randn(50, 10, dtype=torch.float64), torch.randint(0, 10, (50,))
    out.requires_grad_()
    plain, loss = cross_entropy(out, target, reduction="none"), MNIST().loss(out, target)
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(*(torch.autograd.grad(value.sum(), out)[0] for value in (loss, plain)))
    right = [float(o.tolist().index(max(o.tolist())) == t) for o, t in zip(out, target, strict=True)]
    assert PMNIST().accuracy(out, target).tolist() == right
    assert 0 < sum(right) < 50


@pytest.mark.parametrize(("task", "shape"), [(MNIST(), (1, 10)), (COPYING, (12, 1, 5))], ids=repr)
def test_a_sure_answer_has_a_loss_and_a_gradient(task, shape):
    """Where another class is ruled out the loss is a number still."""
    out = torch.zeros(shape)
    out[..., 1] = -math.inf
    out.requires_grad_()
    loss = task.loss(out, torch.tensor([[2, 2, 2]] if task.every_step else [2]))
    assert loss.item() == pytest.approx(math.log(shape[-1] - 1))
    assert torch.autograd.grad(loss.sum(), out)[0].isfinite().all()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("train-images-idx3-ubyte.gz", b"plain text", "should be a gzip file"),
        ("train-images-idx3-ubyte.gz", idx(np.zeros((20, 28, 28)))[:-30], "should be a gzip file"),
        ("train-images-idx3-ubyte.gz", gzip.compress(b"", mtime=0), "got 0"),
        ("train-images-idx3-ubyte.gz", idx(np.zeros((20, 28, 27))), r"got 2051, \(20, 28, 27\)"),
        ("train-images-idx3-ubyte.gz", idx(np.zeros(20)), "got 2049"),
        (
            "t10k-images-idx3-ubyte.gz",
            gzip.compress(gzip.decompress(idx(np.zeros((7, 28, 28))))[:-1], mtime=0),
            "5487 bytes",
        ),
        ("t10k-labels-idx1-ubyte.gz", idx(np.zeros((7, 1))), "magic number 2049, .* got 2050"),
        ("t10k-labels-idx1-ubyte.gz", idx(np.zeros(0)), "got 2049"),
        ("t10k-labels-idx1-ubyte.gz", idx(np.zeros(6)), "each of 7 images, got 6"),
        ("train-labels-idx1-ubyte.gz", idx(np.full(20, 10)), "below 10 .* up to 10"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,
)
def test_files_that_are_no_images_are_refused(name, content, says, tmp_path, monkeypatch):
    """Even with the right hash."""
    contents = {key: idx(array) for key, array in arrays().items()}
    put(tmp_path / "mnist", monkeypatch, contents | {name: content})
    with pytest.raises(data.DataError, match=says) as caught:
        MNIST(validation=5).load(tmp_path)
    assert name in str(caught.value)


def test_damaged_files_are_refused(digits):
    path = digits / "mnist" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(data.DataError, match=f"{path.name} is corrupted"):
        MNIST(validation=5).load(digits)


def test_the_folder_of_the_environment_is_used(digits, monkeypatch):
    monkeypatch.setenv("MOMENTUMRNN_DATA", str(digits))
    assert len(MNIST(validation=5).load(None).tensors[0]) == 27


def test_the_real_images():
    given = os.environ.get("MOMENTUMRNN_DATA")
    if not given:
        pytest.skip("MOMENTUMRNN_DATA is not set: no folder with MNIST")
    task = MNIST()
    loaded = task.load(Path(given))
    images, labels, training = loaded.tensors
    assert images.shape == (70000, 784)
    assert training == 60000
    # The first labels, and the counts of the classes, as published.
    assert labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert labels[60000:60005].tolist() == [7, 2, 1, 0, 4]
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert torch.bincount(labels[:60000]).tolist() == counts
    assert len(task.rows(loaded, 0, 0)[0]) == 55000
    assert len(task.held_out(loaded, "validation")[0]) == 5000
    assert len(task.held_out(loaded, "test")[0]) == 10000
    # The mean pixel that everybody normalises by. Of all images: even and odd ones are by other writers.
    assert round(images[:60000].sum().item() / (60000 * 784 * 255), 4) == 0.1307
