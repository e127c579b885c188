"""Replicas: together what they are alone, a step what a plain loop does, frozen ones as they were."""

import copy
import math

import pytest
import torch
from conftest import difference
from small_replicas import (
    ADDING,
    CONFIGS,
    COPYING,
    SEEDS,
    SMALL,
    STEPS,
    assert_close,
    assert_equal,
    assert_unchanged,
    begin,
    flat,
    go,
    make,
    plain,
    rows,
    spoil,
)
from torch import nn

from momentumrnn import cells
from momentumrnn.experiments import configure
from momentumrnn.experiments.engine import replicas as replicas_module
from momentumrnn.experiments.models import Model, build
from momentumrnn.experiments.tasks import PMNIST, Data

every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@every_config
def test_a_step_is_that_of_a_plain_loop(config):
    replicas = make(config)
    losses, norms = go(replicas)
    assert (losses > 0).all()
    for r, seed in enumerate(SEEDS):
        weights, expected, sizes = plain(config, seed)
        assert_close(replicas.state(r)["weights"], weights)
        assert difference(losses[:, r], expected) < 1e-12
        assert difference(norms[:, r], sizes) < 1e-12
        # So that none of this holds because nothing moved.
        first_weights = build(config, seed).state_dict()
        moved = [name for name, w in weights.items() if difference(w, first_weights[name]) > 1e-4]
        assert "head.weight" in moved
        assert len(moved) > len(weights) // 2
    assert config.clip == 0 or (norms > config.clip).any()


def test_a_plain_layer_is_torchs():
    """No code of ours is in this loop but the task's."""
    config = CONFIGS["lstm"]
    first_model, (x, target) = build(config, 5), ADDING.batch((), (), rows(config, 5, 0))
    lstm, head = nn.LSTM(2, 5).double(), nn.Linear(5, 1).double()
    lstm.load_state_dict(first_model.rnn.state_dict())
    head.load_state_dict(first_model.head.state_dict())
    optimizer = torch.optim.Adam([*lstm.parameters(), *head.parameters()], lr=config.lr)
    for i in range(STEPS):
        now = slice(10 * i, 10 * i + 10)
        out = head(lstm(x[:, now].double())[0][-1]).squeeze(1)
        optimizer.zero_grad()
        (out - target[now]).square().mean().backward()
        optimizer.step()
    replicas = make(config, [5])
    go(replicas, [5], last=STEPS)
    expected = {f"rnn.{k}": v for k, v in lstm.state_dict().items()} | {
        f"head.{k}": v for k, v in head.state_dict().items()
    }
    assert_close(replicas.state(0)["weights"], expected)


@every_config
def test_together_they_are_what_they_are_alone(config):
    """One by one, as on a CPU."""
    replicas = make(config)
    losses, norms = go(replicas)
    for r, seed in enumerate(SEEDS):
        alone = make(config, [seed])
        loss, norm = go(alone, [seed])
        assert difference(losses[:, r], loss[:, 0]) < 1e-12
        assert difference(norms[:, r], norm[:, 0]) < 1e-12
        assert_close(flat(replicas.state(r)), flat(alone.state(0)))


@pytest.mark.parametrize("name", ["lstm", "momentum", "adam-lstm", "gru", "sgd"])
def test_one_call_for_all_is_a_call_for_each(name):
    """By torch.vmap, as the fused kernels have it on a GPU; here the reference runs under it."""
    config = CONFIGS[name]
    fast, slow = make(config), make(config)
    actual, expected = go(fast, together=True), go(slow)
    assert fast.together
    assert not slow.together
    for got, reference in zip(actual, expected, strict=True):
        assert difference(got, reference) < 1e-12
    for r in range(len(SEEDS)):
        assert_close(flat(fast.state(r)), flat(slow.state(r)))
    held_out = config.task.held_out(None, "test")
    for got, reference in zip(fast.evaluate(held_out), slow.evaluate(held_out), strict=True):
        assert got == pytest.approx(reference, rel=1e-12)


def test_constants_are_each_seeds_own():
    """Every seed reads the pixels in its own order, trained and evaluated, one by one and by vmap."""
    task = PMNIST(permutation="seed", validation=2)
    images = torch.randint(0, 256, (12, 784), dtype=torch.uint8)
    data = Data((images, torch.arange(12) % 10, torch.tensor(10)), {})
    config = configure(task, cell=cells.Elman(), hidden_size=3, batch_size=4, precision="float64", lr=0.01)
    seeds, held_out = (1, 2), task.held_out(data, "test")
    losses_and_scores = []
    for group in ([1, 2], [1], [2]):
        for together in (False, True):
            replicas = make(config, group, data=data)
            replicas.begin([task.rows(data, seed, 0) for seed in group], 0)
            replicas.together = together
            for i in range(2):
                replicas.step(i)
            losses_and_scores.append((replicas.losses.clone(), replicas.evaluate(held_out)))
    for losses, scores in losses_and_scores[:2]:
        for r in range(len(seeds)):
            for loss, score in losses_and_scores[2 + 2 * r : 4 + 2 * r]:
                assert difference(losses[:, r], loss[:, 0]) < 1e-12
                assert scores[r] == pytest.approx(score[0], rel=1e-12)
    assert not torch.equal(task.constants(1)[0], task.constants(2)[0])
    model = build(config, 2)
    x, target = task.batch(data.tensors, task.constants(2), tuple(r[:4] for r in task.rows(data, 2, 0)))
    assert losses_and_scores[0][0][0, 1].item() == pytest.approx(
        nn.functional.cross_entropy(model(x), target).item(), rel=1e-12
    )


@every_config
@pytest.mark.parametrize("size", [7, 100])
def test_evaluation_is_over_the_whole_set(config, size, monkeypatch):
    monkeypatch.setitem(replicas_module.EVALUATED, "cpu", size)
    replicas, task = make(config), config.task
    go(replicas, last=2)
    before = [flat(replicas.state(r)) for r in range(len(SEEDS))]
    for part in ("validation", "test"):
        held_out = task.held_out(None, part)
        actual = replicas.evaluate(held_out)
        assert len(actual) == len(SEEDS)
        for r, scores in enumerate(actual):
            model = Model(config).double()
            model.load_state_dict(replicas.state(r)["weights"])
            x, target = task.batch((), (), held_out)
            with torch.no_grad():
                out = model(x)
            if task is ADDING:
                expected = {"loss": nn.functional.mse_loss(out.squeeze(1), target.double()).item()}
            else:
                blank = torch.zeros(len(x) - target.shape[1], target.shape[0], dtype=torch.int64)
                says = torch.cat([blank, target.T])
                loss = nn.functional.cross_entropy(out.flatten(0, 1), says.flatten())
                right = (out.argmax(-1) == says)[-target.shape[1] :].double().mean()
                expected = {"loss": loss.item(), "accuracy": right.item()}
            assert scores == pytest.approx(expected, rel=1e-6 if task is COPYING else 1e-12)
    after = [flat(replicas.state(r)) for r in range(len(SEEDS))]
    for one, two in zip(before, after, strict=True):
        assert_equal(two, one)


@every_config
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
def test_a_replica_that_is_not_finite_stays_as_it_was(config, value, together):
    """Weights and what the optimiser knows, of this step and of all later ones; others don't notice."""
    if together and config.orthogonal:
        pytest.skip("orthogonal replicas run one by one")
    bad, good = make(config), make(config)
    go(good, together=together)
    frozen_state = {}

    def after(step):
        if step == 0:
            spoil(bad, 1, value)
            frozen_state.update(flat(bad.state(1)))

    losses, norms = go(bad, together=together, after=after)
    assert bad.alive.tolist() == [True, False, True]
    assert not (losses[1:, 1].isfinite() & norms[1:, 1].isfinite()).any()
    assert (losses[:, [0, 2]].isfinite() & norms[:, [0, 2]].isfinite()).all()
    for r in (0, 2):
        assert_equal(flat(bad.state(r)), flat(good.state(r)))
    assert_unchanged(flat(bad.state(1)), frozen_state)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_a_replica_that_is_not_finite_counts_no_more_steps(name):
    """Else what a checkpoint has of it depends on when it was written."""
    config = CONFIGS[name]
    replicas = make(config)
    go(replicas, last=4, after=lambda step: spoil(replicas, 1) if step == 1 else None)
    counts = [replicas.state(r)["optimizer"][0]["step"].item() for r in range(len(SEEDS))]
    assert counts == [4, 2, 4]


def test_what_was_frozen_stays_so_though_its_loss_is_finite_again():
    config = CONFIGS["momentum"]
    replicas = make(config)

    def after(step):
        if step == 0:
            spoil(replicas, 1)
        if step == 1:
            spoil(replicas, 1, 0.5)
            frozen_state.update(replicas.state(1)["weights"])

    frozen_state = {}
    losses, _ = go(replicas, after=after)
    assert losses[2:, 1].isfinite().all()
    assert replicas.alive.tolist() == [True, False, True]
    assert_equal(replicas.state(1)["weights"], frozen_state)


def test_a_step_that_would_end_in_infinity_is_not_taken():
    """The gradient is finite, and the weights after it would not be: it stays as it was before that step."""
    options = {**SMALL, "precision": "tf32", "lr": 3e38}
    replicas = make(configure(ADDING, optimizer="rmsprop", **options))
    go(replicas)
    assert not replicas.alive.any()
    for r in range(len(SEEDS)):
        assert [name for name, w in replicas.state(r)["weights"].items() if not w.isfinite().all()] == []


def make_steep(clip, optimizer="adam", weight=1e16):
    """The gradient of one replica is large: its norm is 0.4 times the square of the weight, 4e31."""
    replicas = make(configure(ADDING, optimizer=optimizer, **{**SMALL, "precision": "tf32", "clip": clip}))
    spoil(replicas, 1, weight)
    return replicas


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop", "sgd"])
@pytest.mark.parametrize("weight", [1.0, 5e9, 1e10, 1e16])
def test_gradients_of_any_size_are_clipped_as_by_torch(weight, optimizer):
    """Which makes them 0 where float32 can't hold the square of their norm, and the seed goes on."""
    replicas, free = make_steep(1.0, optimizer, weight), make_steep(0.0, "sgd", weight)
    before = replicas.theta[0].detach().clone()
    _, norms = go(replicas, last=1)
    go(free, last=1)
    expected = torch.nn.Parameter(torch.zeros_like(free.theta[0][1]))
    expected.grad = free.theta[0].grad[1].clone()
    torch.nn.utils.clip_grad_norm_([expected], 1.0)
    assert replicas.alive.all()
    raw = float(free.theta[0].grad[1].double().norm())
    assert norms[0, 1].item() == pytest.approx(raw, rel=1e-6)
    assert raw > 1e18 or weight == 1
    assert bool(expected.grad.any()) == (weight < 1e10)
    torch.testing.assert_close(replicas.theta[0].grad[1], expected.grad)
    moved = (replicas.theta[0][1] - before[1]).abs().max()
    assert (0 < moved < 1e10) if weight < 1e10 else moved == 0


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_step_after_which_the_optimizer_would_be_at_infinity_is_not_taken(optimizer):
    """Unclipped, the square in its moments is infinite: it would divide by that, and never move again."""
    replicas = make_steep(0.0, optimizer)
    frozen_state = flat(replicas.state(1))
    go(replicas, last=2)
    assert replicas.alive.tolist() == [True, False, True]
    assert_unchanged(flat(replicas.state(1)), frozen_state)


@every_config
def test_a_state_is_all_there_is(config):
    """Saved after some steps in the middle of an epoch, and taken over: the same bits after more."""
    whole = make(config)
    go(whole, last=4)
    states = [whole.state(r) for r in range(len(SEEDS))]
    copies = copy.deepcopy(states)
    losses, norms = go(whole, first=4, last=8)
    for got, expected in zip(states, copies, strict=True):
        assert_equal(flat(got), flat(expected))
    # As the trainer does: in a new process a new network, whose weights the state replaces.
    again = make(config, models=[build(config, 99) for _ in SEEDS])
    for r, state in enumerate(states):
        again.restore(r, state)
        assert_equal(flat(again.state(r)), flat(state))
    actual = go(again, first=4, last=8)
    assert torch.equal(actual[0], losses)
    assert torch.equal(actual[1], norms)
    for r in range(len(SEEDS)):
        assert_equal(flat(again.state(r)), flat(whole.state(r)))


def test_a_state_shares_no_memory():
    replicas = make(CONFIGS["momentum"])
    go(replicas, last=1)
    state = flat(replicas.state(0))
    for tensor in state.values():
        tensor.fill_(7)
    assert not any((t == 7).any() for t in flat(replicas.state(0)).values())


@every_config
def test_the_first_step_is_as_with_new_optimisers(config):
    """What makes the optimisers' state leaves weights and moments as they begin."""
    replicas = make(config)
    for r, seed in enumerate(SEEDS):
        state = replicas.state(r)
        assert_equal(state["weights"], build(config, seed).state_dict())
        for moments in state["optimizer"]:
            assert not any(t.any() for t in moments.values())


def test_an_epoch_is_begun_at_any_step():
    config = CONFIGS["sgd"]
    replicas = make(config)
    begin(replicas, SEEDS, 2)
    assert int(replicas.index) == 2
    assert replicas.losses.shape == replicas.norms.shape == (STEPS, len(SEEDS))
    replicas.step(2)
    assert (replicas.losses[2] > 0).all()
    assert not replicas.losses[:2].any()
    assert not replicas.norms[:2].any()
    x, target = config.task.batch((), (), tuple(r[20:] for r in rows(config, SEEDS[0], 0)))
    assert x.shape[1] == 3
    expected = config.task.loss(build(config, SEEDS[0])(x), target).mean().item()
    assert replicas.losses[2, 0].item() == pytest.approx(expected, rel=1e-12)


def test_losses_of_an_epoch_are_its_own():
    replicas = make(CONFIGS["sgd"])
    go(replicas, last=STEPS)
    begin(replicas, SEEDS, STEPS)
    assert not replicas.losses.any()
    assert not replicas.norms.any()


def test_orthogonal_matrices_stay_so():
    config = CONFIGS["orthogonal"]
    replicas = make(config)
    go(replicas)
    for model in replicas.models:
        U = model.rnn.weight_hh_l0
        assert difference(U.T @ U, torch.eye(len(U)).double()) < 1e-6
        weight = model.rnn.parametrizations["weight_hh_l0"]
        assert weight[0].rebasings == 2 * STEPS // config.rebase_every
        assert not weight.original.any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_network_is_its_seeds_alone(dtype):
    """Whatever ran before, and whatever torch was told."""
    config, before = configure(ADDING, hidden_size=5), torch.get_rng_state()
    expected = build(config, 4).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    torch.rand(3)
    assert_equal(build(config, 4).state_dict(), expected)
    assert not torch.equal(build(config, 5).rnn.weight_ih_l0, expected["rnn.weight_ih_l0"])
    torch.set_default_dtype(dtype)
    try:
        assert_equal(build(config, 4).state_dict(), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_generators_of_gpus_are_left_alone(monkeypatch):
    """torch.manual_seed seeds them too, and fork_rng([]) does not bring them back."""
    called = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", called.append)
    build(configure(ADDING, hidden_size=5), 4)
    assert called == []


def test_precisions():
    for precision, dtype in {
        "tf32": torch.float32,
        "float32": torch.float32,
        "float64": torch.float64,
    }.items():
        config = configure(ADDING, **{**SMALL, "precision": precision})
        replicas = make(config)
        assert replicas.theta[0].dtype == dtype
        go(replicas, last=2)
        assert {p.dtype for p in replicas.models[0].parameters()} == {dtype}
        assert replicas.losses.dtype == torch.float64
