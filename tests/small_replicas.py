"""Small replicas that the tests share: made, trained step by step, spoilt, and the same as a plain loop."""

import math

import torch
from conftest import difference
from torch import nn

import momentumrnn as mr
from momentumrnn import cells, constraints
from momentumrnn.experiments import Adding, Copying, configure
from momentumrnn.experiments.engine.replicas import Replicas
from momentumrnn.experiments.models import build

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

STEPS = 3  # in an epoch, the last of 3 samples


def make(config, seeds=SEEDS, device=CPU, models=None, data=None):
    data = data or config.task.load(None)
    models = models or [build(config, seed) for seed in seeds]
    return Replicas(config, models, seeds, data, device)


def rows(config, seed, epoch, data=None):
    return config.task.rows(data, seed, epoch)


def begin(replicas, seeds, step, data=None):
    """Set out at this step, counted from the first epoch."""
    epoch_rows = [rows(replicas.config, seed, step // STEPS, data) for seed in seeds]
    replicas.begin(epoch_rows, step % STEPS)


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


def assert_close(got, expected, tolerance=1e-12):
    assert set(got) == set(expected)
    for name in expected:
        assert difference(got[name], expected[name]) <= tolerance, name


def assert_equal(got, expected):
    assert set(got) == set(expected)
    assert [name for name in expected if not torch.equal(got[name], expected[name])] == []


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
        epoch_rows = task.rows(data, seed, len(losses) // STEPS)
        for part in zip(*(r.split(config.batch_size) for r in epoch_rows), strict=True):
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


def spoil(replicas, r, value=math.nan):
    """Makes the next loss of one replica no number."""
    with torch.no_grad():
        replicas.models[r].head.weight.view(-1)[1] = value


def assert_unchanged(actual, frozen_state):
    """The same, nan where there was nan; but for the optimisers' counts of steps."""
    assert set(actual) == set(frozen_state)
    same = {k: torch.equal(actual[k].nan_to_num(), frozen_state[k].nan_to_num()) for k in frozen_state}
    assert [k for k in frozen_state if not same[k] and not k.endswith(".step")] == []
