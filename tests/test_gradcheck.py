"""First and second derivatives of every variant against finite differences, in float64."""

import pytest
import torch
from conftest import MOMENTA, grid, layer, leaf
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils._pytree import tree_flatten, tree_unflatten

from momentumrnn.momentum import scan

F64 = torch.float64


def check(function, inputs, every=True):
    """First derivatives, entry by entry or in a random projection, and second ones in a projection."""
    close = {"atol": 1e-7, "rtol": 1e-5, "nondet_tol": 0.0}
    assert gradcheck(function, inputs, **close, fast_mode=not every)
    assert gradgradcheck(function, inputs, **close, fast_mode=True)


def check_layer(net, x, counts, every=True):
    """In x, hidden states, v and n where the momentum has them, and all weights, at random values."""
    state, packed = net.initial_state(len(counts)), isinstance(x, PackedSequence)
    state = state._replace(
        hidden=tuple(map(torch.randn_like, state.hidden)),
        v=torch.randn_like(state.v),
        n=torch.rand_like(state.n) + 0.5,  # away from 0, where a root has no derivative
        k=torch.tensor(counts).expand(state.k.shape),
    )
    flat, spec = tree_flatten((x.data, state, dict(net.named_parameters())))
    flat = [t.detach().requires_grad_(t.is_floating_point() and t.numel() > 0) for t in flat]
    places = [i for i, t in enumerate(flat) if t.requires_grad]

    def function(*tensors):
        now = list(flat)
        for i, t in zip(places, tensors, strict=True):
            now[i] = t
        data, state, weights = tree_unflatten(now, spec)
        given = PackedSequence(data, *x[1:]) if packed else data
        out, after = functional_call(net, weights, (given, state))
        return tuple(t for t in (out.data if packed else out, *after.hidden, after.v, after.n) if t.numel())

    check(function, [flat[i] for i in places], every)


@pytest.mark.parametrize(("momentum", "cell", "backend"), grid())
def test_layer(momentum, cell, backend):
    """Every momentum x cell x backend, from a State whose rows have taken unequal numbers of steps."""
    check_layer(layer(cell, momentum, 2, 2, backend=backend), leaf(3, 3, 2), [0, 4, 1])


@pytest.mark.parametrize("momentum", MOMENTA)
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_packed_stack(momentum, backend):
    """Two projected layers on packed sequences of unequal length."""
    net = layer("lstm", momentum, 2, 2, 2, proj_size=1, backend=backend)
    check_layer(net, pack_padded_sequence(leaf(3, 2, 2), [2, 3], enforce_sorted=False), [1, 0], every=False)


@pytest.mark.parametrize("steps", [1, 2, 7, 8, 11])
@pytest.mark.parametrize("decay", [(1, 1), (2, 1), (2, 3)], ids=["steps", "rows", "elements"])
@pytest.mark.parametrize("begun", [False, True], ids=["fresh", "begun"])
def test_scan(steps, decay, begun):
    """The scan in decay, x and initial, some decays being 0 and 1."""
    mu = torch.rand(steps, *decay, dtype=F64)
    mu[steps // 3], mu[steps // 2] = 0, 1
    check(scan, [mu.requires_grad_(), leaf(steps, 2, 3), *([leaf(2, 3)] if begun else [])])


def test_wide_scan():
    """The scan one step after another, as wide steps take it."""
    wide = 1 << 14
    check(
        scan, [torch.rand(9, 1, 1, dtype=F64).requires_grad_(), leaf(9, 1, wide), leaf(1, wide)], every=False
    )
