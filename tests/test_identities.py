"""The laws of momentum recurrent networks, in float64, each beside the mistake that must not pass.

E2 ... E9, A4, A8: the laws of docs/maths.md, section 7.
"""

import math

import numpy as np
import oracle
import pytest
import torch
from conftest import (
    CELLS,
    MOMENTA,
    as_torch,
    as_tuple,
    assert_same,
    difference,
    expected,
    gradients,
    grid,
    layer,
    leaf,
)
from torch import nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import momentumrnn as mr
from momentumrnn.momentum import scan

F64 = torch.float64
BACKENDS = ["native", "reference"]
TORCH = {"lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN}
# Linear momenta, each with its decay.
LINEAR = {name: MOMENTA[name] for name in ("HeavyBall", "HeavyBall-0", "HeavyBall-1", "Nesterov", "Warmup")}
for F in (1, 2, 40):
    LINEAR[f"Restart-{F}"] = mr.ScheduledRestart(every=F, step=0.7), lambda k, F=F: (k % F) / (k % F + 3)

every_variant = pytest.mark.parametrize(("momentum", "cell", "backend"), grid())
every_cell = pytest.mark.parametrize("cell", TORCH)
every_linear = pytest.mark.parametrize("name", LINEAR)
every_backend = pytest.mark.parametrize("backend", BACKENDS)


def make(cell, momentum, *args, **options):
    """A float64 layer of any momentum, with biases that matter."""
    net = mr.Recurrent(CELLS[cell], *args, momentum=momentum, dtype=F64, **options)
    for name, p in net.named_parameters():
        if name.startswith("bias"):
            nn.init.normal_(p)
    return net


def weights(net, scale=1.0):
    """The weights of a single layer by torch's names, those of the input scaled."""
    return {name: p * scale if "_ih" in name else p for name, p in net.named_parameters()}


def plain(cell, x, given, hx=None):
    """torch.nn's layer with the given weights."""
    net = TORCH[cell](x.shape[-1], given["weight_hh_l0"].shape[1], bias="bias_hh_l0" in given, dtype=F64)
    return functional_call(net, given, (x, hx))


def moving(net, rows, k=0):
    """A State in mid-sequence: everything in it is a leaf with a gradient, and not zero."""
    start = net.initial_state(rows)
    hidden = tuple(torch.randn_like(h).requires_grad_() for h in start.hidden)
    v, n = torch.randn_like(start.v).requires_grad_(), torch.rand_like(start.n).requires_grad_()
    return mr.State(*hidden, v, n, start.k + k)


def assert_differs(got, want, least=0.05):
    """The guard of a law: what must not hold is wrong by far."""
    assert difference(got, want) > least


# E2: a linear momentum commutes with W.


def filtered(x, momentum, mu, v_0=None, late=False):
    """x̄_t, a_t and, for v_0, its remainder at t, by a plain loop; late: a_t at its limit."""
    mean, a, fade, rows = torch.zeros_like(x[0]), 0.0, 1.0, []
    for k, x_t in enumerate(x):
        mean, a, fade = mu(k) * mean + momentum.step * x_t, mu(k) * a + momentum.step, mu(k) * fade
        bias = momentum.step / (1 - mu(k)) if late else a
        rest = [] if v_0 is None else [fade * v_0]
        rows.append(torch.cat([mean, torch.full_like(x_t[:, :1], bias), *rest], -1))
    return torch.stack(rows)


def widened(given, *further):
    """The weights [W, b_ih, ...] of the filtered input, and no b_ih."""
    b = given["bias_ih_l0"]
    return given | {
        "weight_ih_l0": torch.cat([given["weight_ih_l0"], b[:, None], *further], 1),
        "bias_ih_l0": torch.zeros_like(b),
    }


@every_backend
@every_linear
@every_cell
def test_filter_the_input(cell, name, backend):
    """E2: the layer is torch.nn's on [x̄_t, a_t] with weights [W, b_ih]: outputs and all gradients."""
    momentum, mu = LINEAR[name]
    net, x = make(cell, momentum, 3, 4, backend=backend), leaf(45, 2, 3)
    inputs = [x, *net.parameters()]
    got, want = net(x), plain(cell, filtered(x, momentum, mu), widened(weights(net)))
    assert_same(got, want)
    assert_same(gradients(got, inputs), gradients(want, inputs))


@every_backend
@every_linear
@every_cell
def test_filter_the_input_from_a_state(cell, name, backend):
    """E2: a momentum v_0 enters through an identity block."""
    momentum, mu = LINEAR[name]
    net, x = make(cell, momentum, 3, 4, backend=backend), leaf(45, 2, 3)
    state = moving(net, 2)
    out, after = net(x, state)
    one = torch.eye(state.v.shape[-1], dtype=F64)
    columns = filtered(x, momentum, mu, state.v[0])
    got = out, as_torch(after.hidden)
    want = plain(cell, columns, widened(weights(net), one), as_torch(state.hidden))
    inputs = [x, *state.hidden, state.v, *net.parameters()]
    assert_same(got, want)
    assert_same(after.v[0], columns[-1] @ torch.cat([net.weight_ih_l0, net.bias_ih_l0[:, None], one], 1).T)
    assert_same(gradients(got, inputs), gradients(want, inputs))


@every_cell
def test_filter_the_input_guards(cell):
    """E2 must fail with the steady-state bias s/(1-mu) b_ih, and with b_hh through the filter."""
    momentum, mu = LINEAR["HeavyBall"]
    net, x = make(cell, momentum, 3, 4), leaf(20, 2, 3)
    out, w = net(x)[0], weights(net)
    assert_differs(plain(cell, filtered(x, momentum, mu, late=True), widened(w))[0], out)
    b = {"bias_ih_l0": w["bias_ih_l0"] + w["bias_hh_l0"], "bias_hh_l0": torch.zeros_like(w["bias_hh_l0"])}
    assert_differs(plain(cell, filtered(x, momentum, mu), widened(w | b))[0], out)


# E3: reductions.


@every_backend
@every_cell
def test_without_memory(cell, backend):
    """E3: mu = 0, step = 1 is torch.nn's layer whatever v_0; mu = 0, step = s is its layer of sW, sb."""
    x = leaf(9, 2, 3)
    for s in (1.0, 0.3):
        net = make(cell, mr.HeavyBall(mu=0.0, step=s), 3, 4, backend=backend)
        state = moving(net, 2)
        out, after = net(x, state)
        want = plain(cell, x, weights(net, s), as_torch(state.hidden))
        assert_same((out, as_torch(after.hidden)), want)
        assert gradients(out, [state.v])[0].count_nonzero() == 0


@every_backend
@every_linear
@every_cell
def test_step_is_absorbed(cell, name, backend):
    """E3: (mu, s; W, b) is (mu, 1; sW, sb)."""
    momentum, _ = LINEAR[name]
    net, x = make(cell, momentum, 3, 4, backend=backend), leaf(9, 2, 3)
    unit = make(cell, momentum.__class__(**{**vars(momentum), "step": 1.0}), 3, 4, backend=backend)
    assert_same(net(x), functional_call(unit, weights(net, momentum.step), (x,)))


@pytest.mark.parametrize(
    ("mu", "s", "gain"), [(0.6, 0.6, 1.5), (0.6, 1.0, 2.5), (0.3, 0.1, 1 / 7), (0.9, 2.0, 20), (0.8, 0.2, 1)]
)
def test_gain(mu, s, gain):
    """E3: on a constant the drive tends to s/(1-mu) a, and is s(1-mu^t)/(1-mu) a on the way."""
    a = leaf(2, 3)
    drive, _ = mr.HeavyBall(mu=mu, step=s)(a.expand(400, 2, 3))
    assert_same(drive[-1], gain * a)
    t = torch.arange(1, 401, dtype=F64)[:, None, None]
    assert_same(drive, s * (1 - mu**t) / (1 - mu) * a)


@every_backend
@every_linear
@every_cell
def test_one_step(cell, name, backend):
    """E3: for T = 1 and v_0 = 0 every linear momentum is torch.nn's layer of sW, sb."""
    momentum, _ = LINEAR[name]
    net, x = make(cell, momentum, 3, 4, backend=backend), leaf(1, 2, 3)
    assert_same(net(x), plain(cell, x, weights(net, momentum.step)))


@every_backend
@every_linear
def test_impulse(name, backend):
    """E3: an impulse x at step 0 leaves v_t = s mu_1 ... mu_t W x; for heavy ball, s mu^t W x."""
    momentum, mu = LINEAR[name]
    net, x = make("lstm", momentum, 3, 4, bias=False, backend=backend), torch.zeros(9, 2, 3, dtype=F64)
    x[0] = torch.randn(2, 3)
    state, v = net.initial_state(2), []
    for x_t in x.split(1):
        _, state = net(x_t, state)
        v.append(state.v[0])
    fades = [momentum.step * math.prod(mu(k) for k in range(1, t + 1)) for t in range(9)]
    assert_same(torch.stack(v), torch.stack([fade * x[0] @ net.weight_ih_l0.T for fade in fades]))
    if name == "HeavyBall":
        assert fades == pytest.approx([0.7 * 0.6**t for t in range(9)])


# E4: schedules.


def test_schedules():
    """E4: mu_k = k/(k+3); a restart every F steps begins it anew; F = 1 has no memory."""
    k = torch.arange(100, dtype=F64)
    assert mr.Nesterov().decay(k).tolist() == [i / (i + 3) for i in range(100)]
    assert mr.ScheduledRestart(every=2).decay(k[:6]).tolist() == [0, 0.25, 0, 0.25, 0, 0.25]
    for F in (1, 7, 40):
        assert mr.ScheduledRestart(every=F).decay(k).tolist() == [i % F / (i % F + 3) for i in range(100)]
    a = leaf(6, 2, 3)
    assert torch.equal(mr.ScheduledRestart(every=1, step=0.5)(a)[0], 0.5 * a)


@every_backend
@every_cell
def test_restarts(cell, backend):
    """E4: a restart after the end is Nesterov; within T it is not."""
    x = leaf(12, 2, 3)
    net = make(cell, mr.Nesterov(step=0.8), 3, 4, backend=backend)
    for F, same in ((13, True), (12, True), (5, False)):
        restarted = make(cell, mr.ScheduledRestart(every=F, step=0.8), 3, 4, backend=backend)
        out = functional_call(restarted, dict(net.named_parameters()), (x,))[0]
        if same:
            assert_same(out, net(x)[0])
        else:
            assert_differs(out, net(x)[0], 0.01)


@every_backend
@every_cell
@pytest.mark.parametrize("momentum", [mr.Nesterov(), mr.ScheduledRestart(every=4)], ids=["NAG", "SR"])
def test_first_decay_is_zero(cell, momentum, backend):
    """E4: v_0 is irrelevant at k = 0 and at a restart; elsewhere it is not."""
    net, x = make(cell, momentum, 3, 4, backend=backend), leaf(7, 2, 3)
    for k, same in ((0, True), (4, isinstance(momentum, mr.ScheduledRestart)), (1, False)):
        state = moving(net, 2, k)
        out, still = net(x, state)[0], net(x, state._replace(v=torch.zeros_like(state.v)))[0]
        assert torch.equal(out, still) if same else difference(out, still) > 0.01
        assert (gradients(out, [state.v])[0].count_nonzero() == 0) == same


@every_backend
@every_cell
@pytest.mark.parametrize("momentum", [mr.Nesterov(), mr.ScheduledRestart(every=5)], ids=["NAG", "SR"])
def test_the_count_is_carried(cell, momentum, backend):
    """E4: chunks are the whole if k is carried, and are not if k restarts with each (PTB as released)."""
    net, x = make(cell, momentum, 3, 4, backend=backend), leaf(14, 2, 3)

    def chunks(change):
        state, outs = net.initial_state(2), []
        for chunk in x.split(4):
            out, state = net(chunk, change(state))
            outs.append(out)
        return torch.cat(outs)

    whole = net(x)[0]
    assert_same(chunks(lambda state: state), whole)
    forgetful = chunks(lambda state: state._replace(k=0 * state.k))
    assert_differs(forgetful, whole)
    dead = chunks(lambda state: state._replace(k=0 * state.k, v=0 * state.v))
    assert torch.equal(dead, forgetful)


# E5: Adam and RMSProp.

SECOND = ["Adam", "Adam-growing", "RMSProp", "Warmdam"]


@every_backend
@every_cell
def test_rmsprop_is_adam_without_mu(cell, backend):
    """E5: RMSProp is Adam with mu = 0."""
    x = leaf(9, 2, 3)
    net = make(cell, mr.RMSProp(step=0.7, beta=0.8), 3, 4, backend=backend)
    adam = make(cell, mr.Adam(mu=0.0, step=0.7, beta=0.8), 3, 4, backend=backend)
    adam.load_state_dict(dict(net.state_dict()))  # without the name of its momentum
    assert_same(adam(x), net(x))
    assert_same(gradients(adam(x), list(adam.parameters())), gradients(net(x), list(net.parameters())))


@every_backend
@every_cell
@pytest.mark.parametrize("momentum", [mr.Adam(beta=0.9, eps=1e-12), mr.RMSProp(eps=1e-12)], ids=repr)
def test_scale_invariance(cell, momentum, backend):
    """E5: (W, b) -> c(W, b), c > 0, leaves Adam and RMSProp as they are; not so c < 0, nor heavy ball."""
    net, x = make(cell, momentum, 3, 4, backend=backend), leaf(9, 2, 3)
    out = net(x)[0]
    for c in (1e-3, 3.0, 1e4):
        assert_same(functional_call(net, weights(net, c), (x,))[0], out)
    assert_differs(functional_call(net, weights(net, -1.0), (x,))[0], out)
    heavy = make(cell, mr.HeavyBall(), 3, 4, backend=backend)
    assert_differs(functional_call(heavy, weights(heavy, 3.0), (x,))[0], heavy(x)[0])


@pytest.mark.parametrize(("mu", "s", "beta"), [(0.6, 1.0, 0.999), (0.9, 2.0, 0.999), (0.0, 0.7, 0.3)])
def test_adam_closed_forms(mu, s, beta):
    """E5: the first drive is s sign(a)/√(1-β); on a constant s(1-μ^t)/((1-μ)√(1-β^t)) sign(a)."""
    a, adam = leaf(2, 3), mr.Adam(mu=mu, step=s, beta=beta, eps=1e-12)
    drive, _ = adam(a.expand(50, 2, 3))
    assert_same(drive[0], s * a.sign() / math.sqrt(1 - beta))
    t = torch.arange(1, 51, dtype=F64)[:, None, None]
    assert_same(drive, s * (1 - mu**t) / ((1 - mu) * (1 - beta**t).sqrt()) * a.sign())
    rms, _ = mr.RMSProp(step=s, beta=beta, eps=1e-12)(a.expand(50, 2, 3))
    assert_same(rms, s / (1 - beta**t).sqrt() * a.sign())


def test_sign():
    """E5: beta = 0 and mu = 0 leave s sign(a)."""
    a = leaf(9, 2, 3)
    for momentum in (mr.Adam(mu=0.0, step=0.7, beta=0.0, eps=1e-12), mr.RMSProp(0.7, 0.0, 1e-12)):
        assert_same(momentum(a)[0], 0.7 * a.sign())


@pytest.mark.parametrize(("mu", "beta"), [(0.6, 0.9), (0.9, 0.95), (0.3, 0.1), (0.0, 0.5)])
def test_adam_bound(mu, beta):
    """E5: where μ² < β, |drive| ≤ s/√((1-β)(1-μ²/β)), which a_t = (β/μ)^t attains."""
    adam, bound = mr.Adam(mu=mu, step=0.7, beta=beta), 0.7 / math.sqrt((1 - beta) * (1 - mu**2 / beta))
    worst = (beta / (mu or 1e-4)) ** torch.arange(-149, 1, dtype=F64)[:, None, None]
    for a in (leaf(150, 4, 50), leaf(150, 4, 50).exp(), worst):
        assert adam(a)[0].abs().max() <= bound * (1 + 1e-12)
    assert adam(worst)[0][-1].item() == pytest.approx(bound, rel=1e-6)


def black(rows=4):
    """Inputs with zeros throughout, at the start, at the end, and scattered."""
    x = torch.randn(8, rows, 3, dtype=F64)
    x[:, 0], x[:3, 1], x[4:, 2], x[::2, 3] = 0, 0, 0, 0
    return x.requires_grad_()


@every_backend
@every_cell
@pytest.mark.parametrize("momentum", SECOND)
@pytest.mark.parametrize("bias", [True, "hh"], ids=["zero", "hh"])
def test_gradient_at_zero(cell, momentum, backend, bias):
    """E5: where W x + b_ih is exactly 0 every gradient is finite, and the oracle's; packed or not."""
    net, x, lengths = layer(cell, momentum, 3, 4, 2, bias=bias, backend=backend), black(), [8, 6, 5, 3]
    if bias is True:
        nn.init.zeros_(net.bias_ih_l0)
    inputs = [x, *net.parameters()]
    for given in (None, lengths):
        out, final = net(x if given is None else pack_padded_sequence(x, given))
        out = out if given is None else pad_packed_sequence(out)[0]
        want, hidden, _ = expected(net, x, given)
        got, want = (out, final), (want, as_torch(hidden))
        assert_same(got, want)
        found = gradients(got, inputs)
        assert all(g.isfinite().all() for g in found)
        assert_same(found, gradients(want, inputs))


@every_backend
@every_cell
def test_gradient_at_zero_guard(cell, backend):
    """E5 must fail for the printed v/(√n + eps), and in float32 the default holds too."""
    for momentum, finite in ((mr.Adam(beta=0.9, eps_in_sqrt=False), False), (mr.Adam(beta=0.9), True)):
        net = make(cell, momentum, 3, 4, bias="hh", backend=backend).float()
        out, _ = net(black().float())
        assert out.isfinite().all()
        assert all(g.isfinite().all() for g in gradients(out, list(net.parameters()))) == finite


@pytest.mark.parametrize(("beta", "peak"), [(0.1, 2.9e4), (0.01, 1.7e6)])
def test_growth(beta, peak):
    """A4: where μ² > β the drive grows as (μ/√β)^k over k zeros until eps stops it."""
    a = torch.zeros(60, 1, 1, dtype=F64)
    a[:5] = 0.5
    adam = mr.Adam(mu=0.6, step=1.0, beta=beta)
    drive = adam(a)[0].flatten()
    assert drive.max().item() == pytest.approx(peak, rel=0.02)
    ratios = drive[5:7] / drive[4:6]
    assert_same(ratios, torch.full_like(ratios, 0.6 / math.sqrt(beta)))
    v = n = torch.zeros(1, dtype=F64)
    about, want = {"decay": lambda k: 0.6, "step": 1.0, "beta": beta, "eps": 1e-8}, []
    for k, a_k in enumerate(a[:, 0]):
        one, v, n = oracle.momentum_step(a_k, v, n, k, about)
        want.append(one)
    assert_same(drive, torch.cat(want))
    assert_same(adam(a.float())[0].flatten(), drive, torch.float32)


@every_backend
@every_cell
def test_growth_in_a_layer(cell, backend):
    """A4: there the layer and its gradients are the oracle's in float64, and finite in float32."""
    net = layer(cell, "Adam-growing", 3, 4, bias="hh", backend=backend)
    x = torch.zeros(30, 2, 3, dtype=F64)
    x[:5, 0], x[3:8, 1] = 0.5, torch.randn(5, 3, dtype=F64)
    x.requires_grad_()
    inputs = [x, *net.parameters()]
    got, want = net(x)[0], expected(net, x)[0]
    assert_same(got, want)
    found = gradients(got, inputs)
    assert all(g.isfinite().all() for g in found)
    assert_same(found, gradients(want, inputs))
    narrow = net.float()(x.float())[0]
    assert narrow.isfinite().all()
    assert all(g.isfinite().all() for g in gradients(narrow, list(net.parameters())))


# E6: the one-equation form, and gradients through time. A tanh layer without bias, mu = 0.6, step = 0.7.


def simple(steps=12):
    """A tanh layer, its input for one row, and h_t after every step, h_0 = 0 first."""
    net = make("tanh", mr.HeavyBall(mu=0.6, step=0.7), 3, 4, bias=False)
    x = torch.randn(steps, 1, 3, dtype=F64)
    h = torch.cat([torch.zeros(1, 4, dtype=F64), net(x)[0].squeeze(1).detach()])
    return net, x, h


def test_one_equation():
    """E6a: h_t = σ(U(h_{t-1} - μh_{t-2}) + μσ⁻¹(h_{t-1}) + sWx_t) from the second step on."""
    net, x, h = simple()
    W, U = net.weight_ih_l0, net.weight_hh_l0
    want = (h[1:-1] - 0.6 * h[:-2]) @ U.T + 0.6 * h[1:-1].atanh() + 0.7 * x[1:, 0] @ W.T
    assert_same(h[2:], want.tanh())
    assert_differs(h[2:], (want + 0.6 * h[:-2] @ U.T).tanh(), 0.01)


def jacobian(net, x, h, t, reinfer):
    """∂h_T/∂h_t; reinfer: with h_{t-1} held and v_t inferred from h_t, as if there were no v."""
    U, v = net.weight_hh_l0.detach(), net(x[:t], net.initial_state(1))[1].v

    def rest(h_t):
        v_t = (h_t.atanh() - U @ h[t - 1]).view(1, 1, 4) if reinfer else v
        return net(x[t:], mr.State(h_t.view(1, 1, 4), v_t, v[..., :0], torch.tensor([[t]])))[0][-1, 0]

    return torch.autograd.functional.jacobian(rest, h[t])


def product(factors):
    """... F_3 F_2 F_1."""
    result = factors[0]
    for factor in factors[1:]:
        result = factor @ result
    return result


@pytest.mark.parametrize("t", [3, 4, 8, 11])
def test_no_momentum_in_the_recurrent_gradient(t):
    """E6b: ∂h_T/∂h_t is ∏ D U, without μ. c: in the two-lag form it is a companion product, with μ.

    d: the paper's ∏ D(U + μΣ), eq. 13, is exact for T = t + 1 only, and never is ∂h_T/∂h_t.
    """
    net, x, h = simple()
    U, T, mu = net.weight_hh_l0.detach(), len(x), 0.6
    D = [torch.diag(1 - h_k**2) for h_k in h]
    autograd, lags = jacobian(net, x, h, t, False), jacobian(net, x, h, t, True)
    assert_same(autograd, product([D[k + 1] @ U for k in range(t, T)]))

    inner = [D[k + 1] @ (U + mu * D[k].inverse()) for k in range(t, T)]
    zero, one = torch.zeros(4, 4, dtype=F64), torch.eye(4, dtype=F64)
    companions = [
        torch.cat([torch.cat([F, -mu * D[k + 1] @ U], 1), torch.cat([one, zero], 1)])
        for k, F in zip(range(t, T), inner, strict=True)
    ]
    assert_same(lags, product(companions)[:4, :4])
    assert_differs(autograd, lags)
    if t + 1 == T:
        assert_same(product(inner), lags)
    else:
        assert_differs(product(inner), lags)


@every_backend
@every_cell
def test_gradient_smear(cell, backend):
    """E6e: ∂L/∂v_t = δ_t + μ ∂L/∂v_{t+1}, ∂L/∂x_t = s Wᵀ Σ_{k≥t} μ^{k-t} δ_k, δ = ∂L/∂(pre-activation)."""
    net, x, mu, s = make(cell, mr.HeavyBall(mu=0.6, step=0.7), 3, 4, backend=backend), leaf(8, 2, 3), 0.6, 0.7
    a = x @ net.weight_ih_l0.T + net.bias_ih_l0
    v = []
    for a_t in a.detach():
        v.append(s * a_t + (mu * v[-1] if v else 0))
    v, G = torch.stack(v).requires_grad_(), a.shape[-1]
    w = weights(net) | {"weight_ih_l0": torch.eye(G, dtype=F64), "bias_ih_l0": torch.zeros(G, dtype=F64)}
    out = plain(cell, v, w)[0]
    assert_same(net(x)[0], out)
    (delta,) = gradients(out, [v])
    to_v = [sum(mu ** (k - t) * delta[k] for k in range(t, 8)) for t in range(8)]
    assert_same(gradients(net(x)[0], [x])[0], torch.stack([s * g @ net.weight_ih_l0 for g in to_v]))

    # The v that a State brings to step t: ∂L/∂v_{t-1} less δ_{t-1}.
    for t in (1, 5):
        begun, state = net(x[:t], net.initial_state(2))
        state = state.detach()._replace(v=state.v.detach().requires_grad_())
        whole = torch.cat([begun.detach(), net(x[t:], state)[0]])
        assert_same(gradients(whole, [state.v])[0][0], mu * to_v[t])


# E9: invariances.


@every_variant
def test_rows(momentum, cell, backend):
    """E9: rows are independent: permuted with the batch, the same alone, unbatched, and in each gradient."""
    net, x = layer(cell, momentum, 3, 4, 2, bidirectional=True, backend=backend), leaf(6, 4, 3)
    out, final = net(x)
    order = [2, 0, 3, 1]
    out_p, final_p = net(x[:, order])
    assert_same((out_p, final_p), (out[:, order], [h[:, order] for h in as_tuple(final)]))
    for row in range(4):
        alone, _ = net(x[:, row : row + 1])
        assert_same((alone[:, 0], net(x[:, row])[0]), (out[:, row], out[:, row]))
    (g,) = gradients(out[:, 2], [x])
    assert g[:, [0, 1, 3]].count_nonzero() == 0
    assert g[:, 2].count_nonzero() > 0


@every_variant
def test_lengths(momentum, cell, backend):
    """E9: packed sequences are each sequence run alone, and ahead of their ends the padded batch."""
    net, x, lengths = layer(cell, momentum, 3, 4, 2, backend=backend), leaf(7, 4, 3), [4, 7, 1, 5]
    packed, final = net(pack_padded_sequence(x, lengths, enforce_sorted=False))
    out, padded = pad_packed_sequence(packed)[0], net(x)[0]
    for row, length in enumerate(lengths):
        alone, end = net(x[:length, row])
        assert_same(out[:length, row], alone)
        assert_same(padded[:length, row], alone)
        assert_same([h[:, row] for h in as_tuple(final)], as_tuple(end))
        assert out[length:, row].count_nonzero() == 0


@every_variant
def test_two_directions(momentum, cell, backend):
    """E9: bidirectional is one run ahead and one from each sequence's own end, side by side."""
    net, x, lengths = (
        layer(cell, momentum, 3, 4, bidirectional=True, backend=backend),
        leaf(6, 3, 3),
        [6, 4, 1],
    )
    single = layer(cell, momentum, 3, 4, backend=backend)
    params = dict(net.named_parameters())
    ahead = {name: p for name, p in params.items() if not name.endswith("_reverse")}
    back = {name: params[name + "_reverse"] for name in ahead}
    out = pad_packed_sequence(net(pack_padded_sequence(x, lengths))[0])[0]
    for row, length in enumerate(lengths):
        one = functional_call(single, ahead, (x[:length, row],))[0]
        two = functional_call(single, back, (x[:length, row].flip(0),))[0].flip(0)
        assert_same(out[:length, row], torch.cat([one, two], -1))


@every_variant
def test_missing_biases(momentum, cell, backend):
    """E9: without biases is with biases of zero; "hh" is with a zero b_ih."""
    x, full = leaf(6, 2, 3), layer(cell, momentum, 3, 4, 2, backend=backend)
    for bias, kept in ((False, "weight"), ("hh", ("weight", "bias_hh"))):
        less = layer(cell, momentum, 3, 4, 2, bias=bias, backend=backend)
        given = {n: p if n.startswith(kept) else 0 * p for n, p in full.named_parameters()}
        less.load_state_dict({n: p for n, p in given.items() if n.startswith(kept)})
        assert_same(less(x), functional_call(full, given, (x,)))


@every_variant
def test_causality(momentum, cell, backend):
    """E9: no output before step t depends on x_t."""
    net, x = layer(cell, momentum, 3, 4, 2, backend=backend), leaf(9, 2, 3)
    out, _ = net(x)
    for t in (0, 4, 8):
        (g,) = gradients(out[: t + 1], [x])
        assert g[t + 1 :].count_nonzero() == 0
    assert g.count_nonzero() > 0
    changed = torch.cat([x[:5], torch.randn_like(x[5:])])
    assert_same(net(changed)[0][:5], out[:5])


@every_backend
@every_cell
@pytest.mark.parametrize("momentum", ["HeavyBall", "HeavyBall-0", "Adam", "RMSProp"])
def test_state_across_an_update(cell, momentum, backend):
    """A8: a State carries v (and n), made by the old weights, not what new weights would make of the past."""
    net, x = layer(cell, momentum, 3, 4, backend=backend), leaf(10, 2, 3)
    out, state = net(x[:5], net.initial_state(2))
    out.square().sum().backward()
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.5 * p.grad
    state = state.detach()
    moments = state.v, state.n if state.n.numel() else None, state.k[0].tolist()
    out, after = net(x[5:], state)
    want, hidden, (v, n, _) = expected(net, x[5:], None, state.hidden, moments)
    assert_same((out, after[:-1]), (want, (hidden, v, state.n if n is None else n)))
    again = net(x[:5], net.initial_state(2))[1]
    refiltered = net(x[5:], state._replace(v=again.v, n=again.n))[0]
    if momentum == "HeavyBall-0":
        assert_same(refiltered, out)
    else:
        assert_differs(refiltered, out, 1e-3)


# The scan.


def loop(decay, x, initial=None):
    v, out = torch.zeros_like(x[0]) if initial is None else initial, []
    for d, x_t in zip(decay, x, strict=True):
        v = d * v + x_t
        out.append(v)
    return torch.stack(out)


DECAYS = {
    "zero": lambda T: torch.zeros(T, 1, 1, dtype=F64),
    "one": lambda T: torch.ones(T, 1, 1, dtype=F64),
    "0.9": lambda T: torch.full((T, 1, 1), 0.9, dtype=F64),
    "with-zeros": lambda T: torch.rand(T, 1, 1, dtype=F64) * (torch.arange(T) % 3 > 0)[:, None, None],
    "rows": lambda T: torch.rand(T, 3, 1, dtype=F64) * (torch.rand(T, 3, 1) > 0.2),
    "elements": lambda T: torch.rand(T, 3, 2, dtype=F64) * 1.1,
}


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8, 9, 31, 64, 1000])
@pytest.mark.parametrize("decays", DECAYS)
@pytest.mark.parametrize("begun", [False, True], ids=["fresh", "begun"])
def test_scan(steps, decays, begun):
    """v_t = decay_t v_{t-1} + x_t, and its gradients, by a plain loop."""
    decay, x = DECAYS[decays](steps).requires_grad_(), leaf(steps, 3, 2)
    initial = leaf(3, 2) if begun else None
    inputs = [decay, x, *([initial] if begun else [])]
    got, want = scan(decay, x, initial), loop(decay, x, initial)
    assert_same(got, want)
    to_decay, *rest = gradients(want, inputs)
    # Without an initial v, nothing comes from before the first step.
    to_decay = torch.zeros_like(decay) if to_decay is None else to_decay
    assert_same(gradients(got, inputs), [to_decay, *rest])


@pytest.mark.parametrize("mu", [0.999, 1.0])
def test_long_scan(mu):
    """100 000 steps, to 1e-12 of a loop in extended precision, in values and gradients."""
    T = 100_000
    x = torch.rand(T, 1, 2, dtype=F64, requires_grad=True)

    def exact(rows):
        v, out = np.zeros(2, dtype=np.longdouble), np.empty((T, 2), dtype=np.longdouble)
        for t, row in enumerate(rows.astype(np.longdouble)):
            v = np.longdouble(mu) * v + row
            out[t] = v
        return torch.from_numpy(out.astype(np.float64))

    v = scan(torch.full((T, 1, 1), mu, dtype=F64), x)
    want = exact(x.detach().numpy()[:, 0])
    assert ((v[:, 0] - want) / want).abs().max() < 1e-12
    weight = torch.rand_like(v)
    (g,) = torch.autograd.grad((v * weight).sum(), x)
    want = exact(weight.numpy()[::-1, 0]).flip(0)
    assert ((g[:, 0] - want) / want).abs().max() < 1e-12


@pytest.mark.parametrize("width", [1 << 14, (1 << 14) + 1])
def test_wide_scan(width):
    """Steps wide enough to go one after another are the narrow ones side by side."""
    x, decay = leaf(19, 1, width), torch.rand(19, 1, 1, dtype=F64, requires_grad=True)
    initial, inputs = leaf(1, width), [x, decay]
    got = scan(decay, x, initial)
    parts = zip(x.split(1000, -1), initial.split(1000, -1), strict=True)
    want = torch.cat([scan(decay, *part) for part in parts], -1)
    assert_same(got, want)
    assert_same(gradients(got, inputs), gradients(want, inputs))


class Meter(TorchDispatchMode):
    """The elements of the largest tensor made, and of all."""

    largest = total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for t in tree_leaves(made):
            if isinstance(t, torch.Tensor):
                self.largest, self.total = max(self.largest, t.numel()), self.total + t.numel()
        return made


def test_scan_is_linear_in_time():
    """No tensor larger than the input, forward or backward, and O(T) elements in all."""

    def cost(steps):
        x, decay = leaf(steps, 1, 2), torch.rand(steps, 1, 1, dtype=F64, requires_grad=True)
        with Meter() as meter:
            scan(decay, x, torch.ones(1, 2, dtype=F64)).sum().backward()
        assert meter.largest == x.numel()
        return meter.total

    assert cost(100_000) < 10.5 * cost(10_000)


@every_backend
@pytest.mark.parametrize("cell", ["gru", "lstm", "tanh"])
def test_long_layer(cell, backend):
    """1000 steps of mu = 1: v is a plain sum, and the layer the plain one of that sum."""
    net, x = make(cell, mr.HeavyBall(mu=1.0, step=0.01), 2, 3, backend=backend), leaf(1000, 1, 2)
    out, after = net(x, net.initial_state(1))
    sums = 0.01 * torch.cat([x, torch.ones_like(x[..., :1])], -1).cumsum(0)
    assert_same(out, plain(cell, sums, widened(weights(net)))[0])
    assert_same(after.v[0], sums[-1] @ torch.cat([net.weight_ih_l0, net.bias_ih_l0[:, None]], 1).T)
