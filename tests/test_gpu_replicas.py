"""Replicas on a GPU: a step and its graph give the same bits, and what a plain loop and one seed alone do."""

import gc
import math

import pytest
import torch
from conftest import difference
from small_replicas import (
    ADDING,
    CONFIGS,
    SEEDS,
    SMALL,
    STEPS,
    assert_close,
    assert_equal,
    assert_unchanged,
    flat,
    go,
    make,
    plain,
    spoil,
)

import momentumrnn as mr
from momentumrnn import cells
from momentumrnn.experiments import Adding, Copying, configure
from momentumrnn.experiments.engine.replicas import Replicas
from momentumrnn.experiments.models import build

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and there is none"),
]
CUDA = torch.device("cuda", 0)
FUSED = {
    f"{name}-{type(task).__name__}": configure(
        task, momentum=momentum, hidden_size=64, batch_size=10, lr=1e-3, precision="tf32"
    )
    for name, momentum in {"None": None, "HeavyBall": mr.HeavyBall(0.9, 0.6)}.items()
    for task in (
        Adding(length=40, samples=23, evaluation=31),
        Copying(length=20, symbols=3, alphabet=4, samples=23, evaluation=31),
    )
}
fused = pytest.mark.parametrize("config", FUSED.values(), ids=FUSED)


@pytest.fixture
def precise():
    """No shortened factors, as the trainer has it unless the precision is tf32."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before
    gc.collect()


def on_gpu(config, seeds=SEEDS, eager=False):
    replicas = make(config, seeds, CUDA)
    if eager:
        replicas.reason = "told so"
    return replicas


@fused
def test_a_graph_is_what_it_was_made_of(config):
    """Both sizes of a batch, over epochs; a step and its graph give the same bits."""
    graphed, eager = on_gpu(config), on_gpu(config, eager=True)
    actual, expected = go(graphed, last=3 * STEPS), go(eager, last=3 * STEPS)
    assert graphed.reason == ""
    assert sorted(graphed.graphs) == [3, 10]
    assert eager.graphs == {}
    for got, reference in zip(actual, expected, strict=True):
        assert torch.equal(got, reference)
    for r in range(len(SEEDS)):
        assert_equal(flat(graphed.state(r)), flat(eager.state(r)))


@fused
def test_five_seeds_in_one_launch_are_what_they_are_alone(config):
    seeds = (0, 1, 2, 3, 4)
    together = on_gpu(config, seeds)
    losses, norms = go(together, seeds, last=10)
    assert together.together
    assert together.reason == ""
    for r, seed in enumerate(seeds):
        alone = on_gpu(config, [seed])
        loss, norm = go(alone, [seed], last=10)
        assert not alone.together
        assert alone.reason == ""
        assert ((losses[:, r] - loss[:, 0]).abs() <= 2e-3 * loss[:, 0].abs()).all()
        assert ((norms[:, r] - norm[:, 0]).abs() <= 2e-2 * norm[:, 0].abs()).all()
        held_out = config.task.held_out(None, "test")
        assert together.evaluate(held_out)[r]["loss"] == pytest.approx(
            alone.evaluate(held_out)[0]["loss"], rel=2e-3
        )


@pytest.mark.parametrize("name", CONFIGS)
def test_a_gpu_does_what_a_plain_loop_does(name, precise):
    """In float64: every cell and optimiser, in a graph or, orthogonal ones, without."""
    config = CONFIGS[name]
    replicas = on_gpu(config)
    losses, norms = go(replicas)
    assert bool(replicas.reason) == config.orthogonal
    # Torch's Adam for graphs has its bias corrections in float32: 3.4e-5 where the network's drive is Adam's.
    tolerance = 1e-4 if config.optimizer == "adam" else 1e-9
    for r, seed in enumerate(SEEDS):
        weights, expected, sizes = plain(config, seed)
        assert_close(replicas.state(r)["weights"], weights, tolerance)
        assert difference(losses[:, r].cpu(), expected) < tolerance
        assert difference(norms[:, r].cpu(), sizes) < tolerance


@pytest.mark.parametrize("precision", ["tf32", "float32", "float64"])
@pytest.mark.parametrize("cell", [cells.LSTM(), cells.GRU()], ids=repr)
def test_every_precision_runs_in_a_graph(cell, precision):
    config = configure(ADDING, cell=cell, momentum=mr.HeavyBall(), **{**SMALL, "precision": precision})
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        replicas = on_gpu(config)
        losses, _ = go(replicas)
        held_out = replicas.evaluate(ADDING.held_out(None, "test"))
    finally:
        torch.backends.cudnn.allow_tf32 = before
    assert replicas.reason == ""
    assert replicas.theta[0].dtype == (torch.float64 if precision == "float64" else torch.float32)
    tolerance = {"tf32": 1e-2, "float32": 1e-4, "float64": 1e-5}[precision]  # Adam's: see above
    for r, seed in enumerate(SEEDS):
        _, expected, _ = plain(configure(ADDING, cell=cell, momentum=mr.HeavyBall(), **SMALL), seed)
        assert difference(losses[:, r].cpu(), expected) < tolerance
        assert math.isfinite(held_out[r]["loss"])


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("cell", [cells.LSTM(), cells.GRU()], ids=repr)
def test_a_frozen_replica_in_a_graph(cell, eager):
    config = configure(ADDING, cell=cell, hidden_size=32, batch_size=10, lr=0.01, clip=1.0)
    bad, good = on_gpu(config, eager=eager), on_gpu(config, eager=eager)
    go(good)
    frozen_state = {}

    def after(step):
        if step == 1:
            spoil(bad, 1)
            frozen_state.update(flat(bad.state(1)))

    losses, _ = go(bad, after=after)
    assert bad.reason == ("told so" if eager else "")
    assert bad.alive.tolist() == [True, False, True]
    assert losses[:, [0, 2]].isfinite().all()
    for r in (0, 2):
        assert_equal(flat(bad.state(r)), flat(good.state(r)))
    assert_unchanged(flat(bad.state(1)), frozen_state)


@pytest.mark.parametrize("name", ["momentum", "gru", "orthogonal"])
def test_a_state_goes_on_from_a_gpu_with_the_same_bits(name):
    config = CONFIGS[name]
    whole = on_gpu(config)
    go(whole, last=4)
    states = [whole.state(r) for r in range(len(SEEDS))]
    assert {t.device.type for state in states for t in flat(state).values()} == {"cpu"}
    losses, norms = go(whole, first=4, last=8)
    again = on_gpu(config)
    for r, state in enumerate(states):
        again.restore(r, state)
    actual = go(again, first=4, last=8)
    assert torch.equal(actual[0], losses)
    assert torch.equal(actual[1], norms)
    for r in range(len(SEEDS)):
        assert_equal(flat(again.state(r)), flat(whole.state(r)))


@fused
def test_the_same_bits_twice(config):
    first, second = on_gpu(config), on_gpu(config)
    for got, expected in zip(go(first), go(second), strict=True):
        assert torch.equal(got, expected)
    for r in range(len(SEEDS)):
        assert_equal(flat(first.state(r)), flat(second.state(r)))


def test_a_step_that_makes_no_graph_is_taken_without(monkeypatch):
    config = FUSED["HeavyBall-Adding"]
    expected = on_gpu(config, eager=True)
    losses, _ = go(expected)
    step = Replicas._step

    def reads_back(self, size):
        step(self, size)
        self.losses.sum().item()

    monkeypatch.setattr(Replicas, "_step", reads_back)
    replicas = on_gpu(config)
    actual, _ = go(replicas)
    assert replicas.reason
    assert "\n" not in replicas.reason
    assert torch.equal(actual, losses)


def test_the_generator_of_the_gpu_is_left_alone():
    torch.cuda.manual_seed(5)
    before = torch.cuda.get_rng_state()
    build(CONFIGS["momentum"], 0)
    assert torch.equal(torch.cuda.get_rng_state(), before)
