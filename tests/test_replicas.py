"""Replicas: together what they are alone, a step what a plain loop does, frozen ones as they were."""

import copy
import gc
import math

import pytest
import torch
from conftest import difference
from torch import nn

import momentumrnn as mr
from momentumrnn import cells, constraints
from momentumrnn.experiments import Adding, Copying, configure
from momentumrnn.experiments import replicas as replicas_module
from momentumrnn.experiments.models import Model, build
from momentumrnn.experiments.replicas import Replicas
from momentumrnn.experiments.tasks import PMNIST, Data

CPU = torch.device("cpu")
ADDING = Adding(length=7, samples=23, evaluation=31)
COPYING = Copying(length=4, symbols=2, alphabet=3, samples=23, evaluation=31)
SMALL = {"hidden_size": 5, "batch_size": 10, "precision": "float64", "lr": 0.02}
SEEDS = (3, 0, 7)
CONFIGS = {
    "lstm": configure(ADDING, **SMALL),
    "momentum": configure(ADDING, momentum=mr.HeavyBall(0.9, 0.7), clip=0.3, **SMALL),
    "adam-lstm": configure(COPYING, momentum=mr.Adam(beta=0.9), optimizer="adam", **SMALL),
    "gru": configure(COPYING, cell=cells.GRU(), optimizer="rmsprop", alpha=0.7, **SMALL),
    "sgd": configure(COPYING, momentum=mr.Nesterov(), optimizer="sgd", clip=0.1, **SMALL),
    "orthogonal": configure(ADDING, orthogonal=True, optimizer="rmsprop", rebase_every=2, **SMALL),
    "orthogonal-adam": configure(
        ADDING, orthogonal=True, momentum=mr.HeavyBall(), rebase_every=3, clip=0.5, **SMALL
    ),
}
each = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
STEPS = 3  # in an epoch, the last of 3 samples


def make(config, seeds=SEEDS, device=CPU, models=None, data=None):
    data = data or config.task.load(None)
    models = models or [build(config, seed) for seed in seeds]
    return Replicas(config, models, seeds, data, device)


def rows(config, seed, epoch, data=None):
    return config.task.rows(data, seed, epoch)


def begin(replicas, seeds, step, data=None):
    """Set out at this step, counted from the first epoch."""
    drawn = [rows(replicas.config, seed, step // STEPS, data) for seed in seeds]
    replicas.begin(drawn, step % STEPS)


def go(replicas, seeds=SEEDS, first=0, last=2 * STEPS, together=False, after=lambda step: None):
    """Steps first to last; returns losses and norms, (steps, R)."""
    losses, norms = [], []
    for step in range(first, last):
        if step == first or step % STEPS == 0:
            begin(replicas, seeds, step)
            replicas.together = together or replicas.together
        replicas.step(step % STEPS)
        every = replicas.config.rebase_every
        if every and (step + 1) % every == 0:
            replicas.rebase()
        losses.append(replicas.losses[step % STEPS].clone())
        norms.append(replicas.norms[step % STEPS].clone())
        after(step)
    return torch.stack(losses), torch.stack(norms)


def flat(state):
    """A state's tensors by name."""
    moments = {f"{i}.{k}": t for i, held in enumerate(state["optimizer"]) for k, t in held.items()}
    return {**state["weights"], **moments}


def assert_close(got, want, tolerance=1e-12):
    assert set(got) == set(want)
    for name in want:
        assert difference(got[name], want[name]) <= tolerance, name


def assert_equal(got, want):
    assert set(got) == set(want)
    assert [name for name in want if not torch.equal(got[name], want[name])] == []


def plain(config, seed, steps=2 * STEPS, device=CPU):
    """The same training as anyone would write it; returns weights, losses, norms."""
    task, model = config.task, build(config, seed).to(device)
    data = task.load(None)
    constants = tuple(c.to(device) for c in task.constants(seed))
    tangents = [p for name, p in model.named_parameters() if name.endswith("weight_hh_l0.original")]
    others = [p for p in model.parameters() if all(p is not t for t in tangents)]
    kinds = {
        "adam": lambda ps: torch.optim.Adam(ps, lr=config.lr),
        "rmsprop": lambda ps: torch.optim.RMSprop(ps, lr=config.lr, alpha=config.alpha),
        "sgd": lambda ps: torch.optim.SGD(ps, lr=config.lr),
    }
    optimizers = [kinds[config.optimizer](others)]
    if config.orthogonal:
        assert len(tangents) == 1
        optimizers.append(torch.optim.RMSprop(tangents, lr=config.orthogonal_lr))
    losses, norms = [], []
    while len(losses) < steps:
        drawn = task.rows(data, seed, len(losses) // STEPS)
        for part in zip(*(r.split(config.batch_size) for r in drawn), strict=True):
            x, target = task.batch(data.tensors, constants, tuple(p.to(device) for p in part))
            model.zero_grad()
            loss = task.loss(model(x), target).mean()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), config.clip or math.inf)
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.item())
            norms.append(norm.item())
            if config.rebase_every and len(losses) % config.rebase_every == 0:
                constraints.rebase_(model)
    return model.state_dict(), *torch.tensor([losses, norms], dtype=torch.float64)


@each
def test_a_step_is_that_of_a_plain_loop(config):
    replicas = make(config)
    losses, norms = go(replicas)
    assert (losses > 0).all()
    for r, seed in enumerate(SEEDS):
        weights, want, sizes = plain(config, seed)
        assert_close(replicas.state(r)["weights"], weights)
        assert difference(losses[:, r], want) < 1e-12
        assert difference(norms[:, r], sizes) < 1e-12
        # So that none of this holds because nothing moved.
        begun = build(config, seed).state_dict()
        moved = [name for name, w in weights.items() if difference(w, begun[name]) > 1e-4]
        assert "head.weight" in moved
        assert len(moved) > len(weights) // 2
    assert config.clip == 0 or (norms > config.clip).any()


def test_a_plain_layer_is_torchs():
    """No code of ours is in this loop but the task's."""
    config = CONFIGS["lstm"]
    begun, (x, target) = build(config, 5), ADDING.batch((), (), rows(config, 5, 0))
    lstm, head = nn.LSTM(2, 5).double(), nn.Linear(5, 1).double()
    lstm.load_state_dict(begun.rnn.state_dict())
    head.load_state_dict(begun.head.state_dict())
    optimizer = torch.optim.Adam([*lstm.parameters(), *head.parameters()], lr=config.lr)
    for i in range(STEPS):
        now = slice(10 * i, 10 * i + 10)
        out = head(lstm(x[:, now].double())[0][-1]).squeeze(1)
        optimizer.zero_grad()
        (out - target[now]).square().mean().backward()
        optimizer.step()
    replicas = make(config, [5])
    go(replicas, [5], last=STEPS)
    want = {f"rnn.{k}": v for k, v in lstm.state_dict().items()} | {
        f"head.{k}": v for k, v in head.state_dict().items()
    }
    assert_close(replicas.state(0)["weights"], want)


@each
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
    found, want = go(fast, together=True), go(slow)
    assert fast.together
    assert not slow.together
    for got, sought in zip(found, want, strict=True):
        assert difference(got, sought) < 1e-12
    for r in range(len(SEEDS)):
        assert_close(flat(fast.state(r)), flat(slow.state(r)))
    held_out = config.task.held_out(None, "test")
    for got, sought in zip(fast.evaluate(held_out), slow.evaluate(held_out), strict=True):
        assert got == pytest.approx(sought, rel=1e-12)


def test_constants_are_each_seeds_own():
    """Every seed reads the pixels in its own order, trained and evaluated, one by one and by vmap."""
    task = PMNIST(permutation="seed", validation=2)
    images = torch.randint(0, 256, (12, 784), dtype=torch.uint8)
    data = Data((images, torch.arange(12) % 10, torch.tensor(10)), {})
    config = configure(task, cell=cells.Elman(), hidden_size=3, batch_size=4, precision="float64", lr=0.01)
    seeds, held_out = (1, 2), task.held_out(data, "test")
    found = []
    for group in ([1, 2], [1], [2]):
        for together in (False, True):
            replicas = make(config, group, data=data)
            replicas.begin([task.rows(data, seed, 0) for seed in group], 0)
            replicas.together = together
            for i in range(2):
                replicas.step(i)
            found.append((replicas.losses.clone(), replicas.evaluate(held_out)))
    for losses, scores in found[:2]:
        for r in range(len(seeds)):
            for loss, score in found[2 + 2 * r : 4 + 2 * r]:
                assert difference(losses[:, r], loss[:, 0]) < 1e-12
                assert scores[r] == pytest.approx(score[0], rel=1e-12)
    assert not torch.equal(task.constants(1)[0], task.constants(2)[0])
    model = build(config, 2)
    x, target = task.batch(data.tensors, task.constants(2), tuple(r[:4] for r in task.rows(data, 2, 0)))
    assert found[0][0][0, 1].item() == pytest.approx(
        nn.functional.cross_entropy(model(x), target).item(), rel=1e-12
    )


@each
@pytest.mark.parametrize("size", [7, 100])
def test_evaluation_is_over_the_whole_set(config, size, monkeypatch):
    monkeypatch.setitem(replicas_module.EVALUATED, "cpu", size)
    replicas, task = make(config), config.task
    go(replicas, last=2)
    before = [flat(replicas.state(r)) for r in range(len(SEEDS))]
    for part in ("validation", "test"):
        held_out = task.held_out(None, part)
        found = replicas.evaluate(held_out)
        assert len(found) == len(SEEDS)
        for r, scores in enumerate(found):
            model = Model(config).double()
            model.load_state_dict(replicas.state(r)["weights"])
            x, target = task.batch((), (), held_out)
            with torch.no_grad():
                out = model(x)
            if task is ADDING:
                want = {"loss": nn.functional.mse_loss(out.squeeze(1), target.double()).item()}
            else:
                blank = torch.zeros(len(x) - target.shape[1], target.shape[0], dtype=torch.int64)
                says = torch.cat([blank, target.T])
                loss = nn.functional.cross_entropy(out.flatten(0, 1), says.flatten())
                right = (out.argmax(-1) == says)[-target.shape[1] :].double().mean()
                want = {"loss": loss.item(), "accuracy": right.item()}
            assert scores == pytest.approx(want, rel=1e-6 if task is COPYING else 1e-12)
    after = [flat(replicas.state(r)) for r in range(len(SEEDS))]
    for one, two in zip(before, after, strict=True):
        assert_equal(two, one)


def spoil(replicas, r, value=math.nan):
    """Makes the next loss of one replica no number."""
    with torch.no_grad():
        replicas.models[r].head.weight.view(-1)[1] = value


def assert_kept(found, kept):
    """The same, nan where there was nan; but for the optimisers' counts of steps."""
    assert set(found) == set(kept)
    same = {k: torch.equal(found[k].nan_to_num(), kept[k].nan_to_num()) for k in kept}
    assert [k for k in kept if not same[k] and not k.endswith(".step")] == []


@each
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
def test_a_replica_that_is_not_finite_stays_as_it_was(config, value, together):
    """Weights and what the optimiser knows, of this step and of all later ones; others don't notice."""
    if together and config.orthogonal:
        pytest.skip("orthogonal replicas run one by one")
    bad, good = make(config), make(config)
    go(good, together=together)
    kept = {}

    def after(step):
        if step == 0:
            spoil(bad, 1, value)
            kept.update(flat(bad.state(1)))

    losses, norms = go(bad, together=together, after=after)
    assert bad.alive.tolist() == [True, False, True]
    assert not (losses[1:, 1].isfinite() & norms[1:, 1].isfinite()).any()
    assert (losses[:, [0, 2]].isfinite() & norms[:, [0, 2]].isfinite()).all()
    for r in (0, 2):
        assert_equal(flat(bad.state(r)), flat(good.state(r)))
    assert_kept(flat(bad.state(1)), kept)


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
            kept.update(replicas.state(1)["weights"])

    kept = {}
    losses, _ = go(replicas, after=after)
    assert losses[2:, 1].isfinite().all()
    assert replicas.alive.tolist() == [True, False, True]
    assert_equal(replicas.state(1)["weights"], kept)


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
    want = torch.nn.Parameter(torch.zeros_like(free.theta[0][1]))
    want.grad = free.theta[0].grad[1].clone()
    torch.nn.utils.clip_grad_norm_([want], 1.0)
    assert replicas.alive.all()
    raw = float(free.theta[0].grad[1].double().norm())
    assert norms[0, 1].item() == pytest.approx(raw, rel=1e-6)
    assert raw > 1e18 or weight == 1
    assert bool(want.grad.any()) == (weight < 1e10)
    torch.testing.assert_close(replicas.theta[0].grad[1], want.grad)
    moved = (replicas.theta[0][1] - before[1]).abs().max()
    assert (0 < moved < 1e10) if weight < 1e10 else moved == 0


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_step_after_which_the_optimizer_would_be_at_infinity_is_not_taken(optimizer):
    """Unclipped, the square in its moments is infinite: it would divide by that, and never move again."""
    replicas = make_steep(0.0, optimizer)
    kept = flat(replicas.state(1))
    go(replicas, last=2)
    assert replicas.alive.tolist() == [True, False, True]
    assert_kept(flat(replicas.state(1)), kept)


@each
def test_a_state_is_all_there_is(config):
    """Saved after some steps in the middle of an epoch, and taken over: the same bits after more."""
    whole = make(config)
    go(whole, last=4)
    states = [whole.state(r) for r in range(len(SEEDS))]
    kept = copy.deepcopy(states)
    losses, norms = go(whole, first=4, last=8)
    for got, want in zip(states, kept, strict=True):
        assert_equal(flat(got), flat(want))
    # As the trainer does: in a new process a new network, whose weights the state replaces.
    again = make(config, models=[build(config, 99) for _ in SEEDS])
    for r, state in enumerate(states):
        again.restore(r, state)
        assert_equal(flat(again.state(r)), flat(state))
    found = go(again, first=4, last=8)
    assert torch.equal(found[0], losses)
    assert torch.equal(found[1], norms)
    for r in range(len(SEEDS)):
        assert_equal(flat(again.state(r)), flat(whole.state(r)))


def test_a_state_shares_no_memory():
    replicas = make(CONFIGS["momentum"])
    go(replicas, last=1)
    state = flat(replicas.state(0))
    for tensor in state.values():
        tensor.fill_(7)
    assert not any((t == 7).any() for t in flat(replicas.state(0)).values())


@each
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
    want = config.task.loss(build(config, SEEDS[0])(x), target).mean().item()
    assert replicas.losses[2, 0].item() == pytest.approx(want, rel=1e-12)


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
    want = build(config, 4).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    torch.rand(3)
    assert_equal(build(config, 4).state_dict(), want)
    assert not torch.equal(build(config, 5).rnn.weight_ih_l0, want["rnn.weight_ih_l0"])
    torch.set_default_dtype(dtype)
    try:
        assert_equal(build(config, 4).state_dict(), want)
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


GPU = [
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


def gpu(function):
    for mark in GPU:
        function = mark(function)
    return function


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


@gpu
@fused
def test_a_graph_is_what_it_was_made_of(config):
    """Both sizes of a batch, over epochs; a step and its graph give the same bits."""
    graphed, eager = on_gpu(config), on_gpu(config, eager=True)
    found, want = go(graphed, last=3 * STEPS), go(eager, last=3 * STEPS)
    assert graphed.reason == ""
    assert sorted(graphed.graphs) == [3, 10]
    assert eager.graphs == {}
    for got, sought in zip(found, want, strict=True):
        assert torch.equal(got, sought)
    for r in range(len(SEEDS)):
        assert_equal(flat(graphed.state(r)), flat(eager.state(r)))


@gpu
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


@gpu
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
        weights, want, sizes = plain(config, seed)
        assert_close(replicas.state(r)["weights"], weights, tolerance)
        assert difference(losses[:, r].cpu(), want) < tolerance
        assert difference(norms[:, r].cpu(), sizes) < tolerance


@gpu
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
        _, want, _ = plain(configure(ADDING, cell=cell, momentum=mr.HeavyBall(), **SMALL), seed)
        assert difference(losses[:, r].cpu(), want) < tolerance
        assert math.isfinite(held_out[r]["loss"])


@gpu
@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("cell", [cells.LSTM(), cells.GRU()], ids=repr)
def test_a_frozen_replica_in_a_graph(cell, eager):
    config = configure(ADDING, cell=cell, hidden_size=32, batch_size=10, lr=0.01, clip=1.0)
    bad, good = on_gpu(config, eager=eager), on_gpu(config, eager=eager)
    go(good)
    kept = {}

    def after(step):
        if step == 1:
            spoil(bad, 1)
            kept.update(flat(bad.state(1)))

    losses, _ = go(bad, after=after)
    assert bad.reason == ("told so" if eager else "")
    assert bad.alive.tolist() == [True, False, True]
    assert losses[:, [0, 2]].isfinite().all()
    for r in (0, 2):
        assert_equal(flat(bad.state(r)), flat(good.state(r)))
    assert_kept(flat(bad.state(1)), kept)


@gpu
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
    found = go(again, first=4, last=8)
    assert torch.equal(found[0], losses)
    assert torch.equal(found[1], norms)
    for r in range(len(SEEDS)):
        assert_equal(flat(again.state(r)), flat(whole.state(r)))


@gpu
@fused
def test_the_same_bits_twice(config):
    first, second = on_gpu(config), on_gpu(config)
    for got, want in zip(go(first), go(second), strict=True):
        assert torch.equal(got, want)
    for r in range(len(SEEDS)):
        assert_equal(flat(first.state(r)), flat(second.state(r)))


@gpu
def test_a_step_that_makes_no_graph_is_taken_without(monkeypatch):
    config = FUSED["HeavyBall-Adding"]
    want = on_gpu(config, eager=True)
    losses, _ = go(want)
    step = Replicas._step

    def reads_back(self, size):
        step(self, size)
        self.losses.sum().item()

    monkeypatch.setattr(Replicas, "_step", reads_back)
    replicas = on_gpu(config)
    found, _ = go(replicas)
    assert replicas.reason
    assert "\n" not in replicas.reason
    assert torch.equal(found, losses)


@gpu
def test_the_generator_of_the_gpu_is_left_alone():
    torch.cuda.manual_seed(5)
    before = torch.cuda.get_rng_state()
    build(CONFIGS["momentum"], 0)
    assert torch.equal(torch.cuda.get_rng_state(), before)
