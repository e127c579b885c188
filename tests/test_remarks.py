"""E7, the paper's remarks 1 and 4 and its eq. 14; and its eq. 2: literal loops in float64 against layers."""

import pytest
import torch
from conftest import (
    MOMENTA,
    assert_oracle,
    assert_same,
    assert_single_steps,
    begun,
    call,
    difference,
    expected,
    gradients,
    layer,
    leaf,
)
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call

import momentumrnn as mr

F64 = torch.float64
ELMAN = ["tanh", "relu", "sigmoid", "modrelu"]
LINEAR = [name for name, (m, _) in MOMENTA.items() if m is None or m.linear]
SECOND = [name for name in MOMENTA if name not in LINEAR]
SIGMA = {"tanh": torch.tanh, "relu": torch.relu, "sigmoid": torch.sigmoid}

every_backend = pytest.mark.parametrize("backend", ["native", "reference"])
both_forms = pytest.mark.parametrize("factored", [True, "printed"], ids=["derived", "printed"])


def through(net, name="weight_hh_l0"):
    """U, made far from singular."""
    with torch.no_grad():
        u = getattr(net, name)
        u.copy_(nn.init.orthogonal_(torch.empty_like(u)) + 0.2 * torch.randn_like(u))
    return getattr(net, name)


def folded(net):
    """The weights of the plain network: W = U Ŵ, b = U b̂."""
    given = dict(net.named_parameters())
    u, w, b = (given[name + "_l0"] for name in ("weight_hh", "weight_ih", "bias_ih"))
    return given | {"weight_ih_l0": u @ w, "bias_ih_l0": u @ b}


@every_backend
@both_forms
@pytest.mark.parametrize("momentum", LINEAR)
@pytest.mark.parametrize("cell", ELMAN)
def test_remark_1(cell, momentum, factored, backend):
    """Under a linear momentum v = U v̂: the plain layer of U Ŵ, which has the inverse for its factor."""
    net = layer(cell, momentum, 3, 4, factored=factored, backend=backend)
    u, x = through(net), leaf(6, 4, 3)
    hat, lengths = begun(net, [0, 5, 1, 17]), [4, 6, 1, 5]
    state = hat._replace(v=hat.v @ u.T if hat.v.numel() else hat.v)
    got, after = call(net, x, state, lengths)

    out, hidden, (v, _, k) = expected(net, x, lengths, hat.hidden, (hat.v, None, hat.k[0].tolist()))
    want = out, hidden, hat.v if v is None else v @ u.T
    assert_same((got, after.hidden, after.v), want)
    assert after.k.tolist() == [k]
    inputs = [x, *hat.hidden, *net.parameters(), *([] if v is None else [hat.v])]
    assert_same(gradients((got, after.hidden, after.v), inputs), gradients(want, inputs))

    # So it has the outputs of a plain layer with Ŵ = U⁻¹ W, and not with Ŵ = W.
    plain = layer(cell, momentum, 3, 4, backend=backend)
    given = dict(plain.named_parameters()) | {"weight_hh_l0": u}
    hats = {name: torch.linalg.solve(u, p) if "_ih" in name else p for name, p in given.items()}
    want = functional_call(plain, given, (x,))
    assert_same(functional_call(net, hats, (x,)), want)
    assert difference(functional_call(net, given, (x,))[0], want[0]) > 0.05


def equation_14(cell, x, h, w, u, b, mu, s, beta, eps, printed):
    """p_t = mu p - (1 - mu) u_t with the sign of eq. 8; printed: the equation after it, v = -U p."""
    sigma, outs = SIGMA[cell], []
    p = v = m = torch.zeros_like(h)
    for x_t in x:
        wx = x_t @ w.T + b
        u_t = torch.linalg.solve(u, wx.T).T
        m = beta * m + (1 - beta) * u_t * u_t
        if printed:
            v = mu * v + (1 - mu) * wx
            h = sigma(h @ u.T + s * v / (m.sqrt() + eps))
        else:
            p = mu * p - (1 - mu) * u_t
            h = sigma((h - s * p / (m.sqrt() + eps)) @ u.T)
        outs.append(h)
    return torch.stack(outs)


def remark_4(cell, x, h, w, u, b, mu, s, beta, eps):
    """As printed: v_t = mu v + s Ŵ x, m of Ŵ x, h = σ(U h + U v / (√m + ε))."""
    outs, v, m = [], torch.zeros_like(h), torch.zeros_like(h)
    for x_t in x:
        wx = x_t @ w.T + b
        v, m = mu * v + s * wx, beta * m + (1 - beta) * wx * wx
        h = SIGMA[cell](h @ u.T + v @ u.T / (m.sqrt() + eps))
        outs.append(h)
    return torch.stack(outs)


@every_backend
@both_forms
@pytest.mark.parametrize("cell", SIGMA)
@pytest.mark.parametrize("mu", [0.6, 0.0], ids=["Adam", "RMSProp"])
def test_equation_14(cell, mu, factored, backend):
    """Derived, eq. 14; printed, the equation after it, which is remark 4; not the other, nor eq. 15."""
    s, beta, eps = 0.7, 0.9, 1e-3
    about = {"step": s * (1 - mu), "beta": beta, "eps": eps, "eps_in_sqrt": False}
    momentum = mr.Adam(mu=mu, **about) if mu else mr.RMSProp(**about)
    options = {"nonlinearity": cell, "momentum": momentum, "dtype": F64, "backend": backend}
    net, x, h = mr.RNN(3, 4, factored=factored, **options), leaf(9, 2, 3), leaf(2, 4)
    u, w, b = through(net), net.weight_ih_l0, net.bias_ih_l0
    nn.init.zeros_(net.bias_hh_l0)  # which eq. 14 does not have
    inputs = [x, h, u, w, b]
    got = net(x, h[None])[0]
    want = equation_14(cell, x, h, u @ w, u, u @ b, mu, s, beta, eps, factored == "printed")
    assert_same(got, want)
    assert_same(gradients(got, inputs), gradients(want, inputs))
    if factored == "printed":
        assert_same(got, remark_4(cell, x, h, w, u, b, mu, s * (1 - mu), beta, eps))
    given = dict(net.named_parameters())
    for other in {True, "printed", False} - {factored}:
        another = functional_call(mr.RNN(3, 4, factored=other, **options), given, (x, h[None]))[0]
        assert difference(another, got) > 0.05
    relaxed = functional_call(mr.RNN(3, 4, **options), folded(net), (x, h[None]))[0]
    assert difference(relaxed, got) > 0.05


@every_backend
@both_forms
@pytest.mark.parametrize("momentum", SECOND)
@pytest.mark.parametrize("cell", ELMAN)
def test_factored_stack(cell, momentum, factored, backend):
    """Two layers, packed, from a State; and two directions."""
    net = layer(cell, momentum, 3, 4, 2, factored=factored, backend=backend)
    assert_oracle(net, leaf(6, 4, 3), begun(net, [0, 5, 1, 17]), [4, 6, 1, 5])
    both = layer(cell, momentum, 3, 4, bidirectional=True, factored=factored, backend=backend)
    assert_oracle(both, leaf(6, 2, 3))


@both_forms
@pytest.mark.parametrize("momentum", MOMENTA)
def test_factored_single_steps(momentum, factored):
    net, x = layer("modrelu", momentum, 3, 4, bias="hh", factored=factored), leaf(5, 2, 3)
    one = mr.RNNCell(3, 4, "hh", nonlinearity="modrelu", momentum=net.momentum, factored=factored, dtype=F64)
    assert f"factored={factored!r}" in repr(one)
    assert f"factored={factored!r}" in repr(net)
    assert_single_steps(one, net, x)


@every_backend
@both_forms
@pytest.mark.parametrize("momentum", ["HeavyBall", "Adam"])
def test_factored_gradcheck(momentum, factored, backend):
    """First and second derivatives, U's among them, which the drive passes through."""
    net = layer("tanh", momentum, 2, 2, factored=factored, backend=backend)
    names = [name for name, _ in net.named_parameters()]

    def function(x, *weights):
        return functional_call(net, dict(zip(names, weights, strict=True)), (x,))

    inputs = [leaf(3, 2, 2), *net.parameters()]
    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


@every_backend
@both_forms
@pytest.mark.parametrize("momentum", [mr.HeavyBall(), mr.Adam(beta=0.9, eps=0.1)], ids=["HeavyBall", "Adam"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_factored_in_16_bits(dtype, momentum, factored, backend):
    net = mr.RNN(3, 4, momentum=momentum, factored=factored, backend=backend, dtype=dtype)
    x = torch.randn(9, 2, 3, dtype=dtype)
    out, state = net(x, net.initial_state(2))
    assert out.dtype == dtype
    assert state.v.dtype == torch.float32
    want, _ = net.double()(x.double())
    assert_same(out, want, torch.bfloat16)
    net.float()
    with torch.autocast("cpu", dtype):
        assert_same(net(x.float())[0], want, torch.bfloat16)


def equation_2(x, h, c, w, u, b, momentum=None):
    """The paper's LSTM, which has no forget gate; momentum: (mu, s) of a heavy ball on W x + b."""
    (wi, wg, wo), (ui, ug, uo), outs, v = w, u, [], 0.0
    b_ih, b_hh = b
    for x_t in x:
        a = [x_t @ m.T + b for m, b in zip((wi, wg, wo), b_ih, strict=True)]
        if momentum is not None:
            v = [momentum[1] * a_k + (momentum[0] * v[k] if v else 0) for k, a_k in enumerate(a)]
            a = v
        i, g, o = (a_k + h @ m.T + b for a_k, m, b in zip(a, (ui, ug, uo), b_hh, strict=True))
        c = c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outs.append(h)
    return torch.stack(outs), h, c


@every_backend
@pytest.mark.parametrize("momentum", ["None", "HeavyBall"])
def test_without_a_forget_gate(momentum, backend):
    """Eq. 2 is our LSTM with 40 in the forget rows of b_hh; their gradients are 0, so training keeps it."""
    net, x = layer("lstm", momentum, 3, 4, backend=backend), leaf(9, 2, 3)
    h, c = leaf(2, 4), leaf(2, 4)
    nn.init.constant_(net.bias_hh_l0[4:8], 40)
    m = net.momentum and (net.momentum.mu, net.momentum.step)

    def run():
        weights = [[p.split(4)[k] for k in (0, 2, 3)] for p in net.parameters()]
        want = equation_2(x, h, c, *weights[:2], weights[2:], m)
        out, (h_n, c_n) = net(x, (h[None], c[None]))
        return (out, h_n[0], c_n[0]), want

    got, want = run()
    assert_same(got, want)
    inputs = [x, h, c, *net.parameters()]
    found = gradients(got, inputs)
    assert_same(found, gradients(want, inputs))
    assert all(g.split(4)[1].count_nonzero() == 0 for g in found[3:])

    before = [p.detach().split(4)[1].clone() for p in net.parameters()]
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        net(x)[0].sum().backward()
        optimizer.step()
    for p, old in zip(net.parameters(), before, strict=True):
        assert torch.equal(p.detach().split(4)[1], old)
        assert not torch.equal(p.detach()[4:8], p.detach()[:4])
    # A gate that is merely wide open is another network, and learns to close.
    nn.init.constant_(net.bias_hh_l0[4:8], 4)
    got, want = run()
    assert difference(got[0], want[0]) > 1e-3
    assert gradients(got, [net.bias_hh_l0])[0][4:8].abs().min() > 0


@every_backend
def test_without_a_forget_gate_under_adam(backend):
    """Its drive can be larger than 40, here ±63 at the first step: an open gate needs more."""
    net = mr.LSTM(3, 4, momentum=mr.Adam(mu=0.9, step=2.0, beta=0.999), dtype=F64, backend=backend)
    x = leaf(9, 2, 3)
    for bias, stays_open in ((40, False), (1000, True)):
        nn.init.constant_(net.bias_hh_l0[4:8], bias)
        found = gradients(net(x), list(net.parameters()))
        assert all(g.split(4)[1].count_nonzero() == 0 for g in found) == stays_open


def test_an_own_cell_factored():
    """Any cell of one gate row a unit has a square U."""

    class Leaky(mr.Cell):
        gates = 1
        states = 1

        def step(self, v, r, b, state):
            return (0.5 * state[0] + 0.5 * (v + r + b).tanh(),)

    net = mr.Recurrent(Leaky(), 3, 4, momentum=mr.HeavyBall(), factored=True, dtype=F64)
    plain, x = mr.Recurrent(Leaky(), 3, 4, momentum=mr.HeavyBall(), dtype=F64), leaf(5, 2, 3)
    assert_same(net(x), functional_call(plain, folded(net), (x,)))
