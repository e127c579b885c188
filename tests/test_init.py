"""How weights begin: what is drawn, what is 0, and that a layer draws it again when asked."""

import math

import pytest
import torch
from conftest import TOLERANCE, assert_same, difference
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal, weight_norm

import momentumrnn as mr
from momentumrnn.init import Dtriv, Init, Paper

F64 = torch.float64


def seeded(make, *args, **options):
    torch.manual_seed(7)
    return make(*args, **options)


def eye(n, dtype=F64):
    return torch.eye(n, dtype=dtype)


@pytest.mark.parametrize(
    ("name", "args", "options"),
    [
        ("LSTM", (3, 5), {}),
        ("LSTM", (3, 5, 2), {"bidirectional": True, "proj_size": 2}),
        ("LSTM", (3, 5, 3), {"bias": False}),
        ("GRU", (3, 5, 2), {"bidirectional": True}),
        ("RNN", (3, 5, 2), {"nonlinearity": "relu", "dtype": F64}),
        ("LSTMCell", (3, 5), {}),
        ("GRUCell", (3, 5), {"bias": False}),
        ("RNNCell", (3, 5), {}),
    ],
)
def test_torchs_numbers(name, args, options):
    """init="torch", the default, draws what torch.nn draws, in its order."""
    want = seeded(getattr(nn, name), *args, **options)
    for given in ({}, {"init": "torch"}, {"init": mr.init.Torch()}, {"momentum": mr.Adam()}):
        net = seeded(getattr(mr, name), *args, **options, **given)
        assert list(net.state_dict()) == list(want.state_dict())
        for ours, theirs in zip(net.parameters(), want.parameters(), strict=True):
            assert torch.equal(ours, theirs)
    other = seeded(getattr(mr, name), *args, **options, init="paper")
    assert not torch.equal(next(other.parameters()), next(want.parameters()))


@pytest.mark.parametrize("identity", ["first", "every"])
@pytest.mark.parametrize("inputs", [1, 3, 20, 33], ids=lambda d: f"D={d}")
@pytest.mark.parametrize("kind", [mr.LSTM, mr.GRU, mr.RNN], ids=lambda kind: kind.__name__)
def test_paper(kind, inputs, identity):
    """W has orthonormal columns, or rows where it is wide; U is the identity in one block or in all."""
    net = kind(inputs, 5, 2, init=Paper(identity=identity), dtype=F64)
    forget = 1 if kind is mr.LSTM else None
    for suffix in ("_l0", "_l1"):
        w, u, b_ih, b_hh = (
            getattr(net, n + suffix) for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        product = w.T @ w if len(w) >= w.shape[1] else w @ w.T
        assert_same(product, eye(len(product)))
        for k, block in enumerate(u.split(5)):
            assert torch.equal(block, eye(5) * (k == 0 or identity == "every"))
        for b in (b_ih, b_hh):
            assert all((part == (k == forget)).all() for k, part in enumerate(b.split(5)))


def test_paper_elsewhere():
    """With a projection, two directions, one bias or none, and in the cell modules."""
    net = mr.LSTM(3, 5, proj_size=2, bidirectional=True, init="paper")
    bound = 1 / math.sqrt(5)
    for suffix in ("_l0", "_l0_reverse"):
        assert torch.equal(getattr(net, "weight_hh" + suffix), torch.eye(20, 2))
        hr = getattr(net, "weight_hr" + suffix)
        assert hr.unique().numel() == hr.numel()
        assert hr.abs().max() <= bound
    assert not torch.equal(net.weight_ih_l0, net.weight_ih_l0_reverse)
    hh = mr.LSTM(3, 5, bias="hh", init=Paper(forget_bias=-4))
    assert hh.bias_hh_l0.tolist() == [0] * 5 + [-4] * 5 + [0] * 10
    assert len(list(mr.LSTM(3, 5, bias=False, init="paper").parameters())) == 2
    cell = mr.LSTMCell(3, 5, init="paper")
    assert cell.bias_ih.tolist() == cell.bias_hh.tolist() == [0] * 5 + [1] * 5 + [0] * 10
    released = mr.Recurrent(mr.cells.ExtrapolatedLSTM(), 3, 5, init="paper")
    assert released.bias_ih_l0.tolist() == cell.bias_ih.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("init", ["paper", Paper(identity="every"), "dtriv"], ids=repr)
def test_narrow(dtype, init):
    """A QR decomposition needs 32 bits, a layer of 16 gets its result, rounded."""
    net = seeded(mr.RNN, 3, 6, init=init, dtype=dtype)
    assert all(p.dtype == dtype and p.isfinite().all() for p in net.parameters())
    w, u = net.weight_ih_l0.detach(), net.weight_hh_l0.detach()
    if init != "dtriv":
        assert torch.equal(w, seeded(mr.RNN, 3, 6, init=init).weight_ih_l0.to(dtype))
        assert difference(w.double().T @ w.double(), eye(3)) <= TOLERANCE[torch.bfloat16]
    assert difference(u.double().T @ u.double(), eye(6)) <= TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize(
    ("fb", "mu", "step", "want"),
    [
        (1, 0.6, 0.6, 2.5),
        (1, 0.6, 1.0, 3.5),
        (-4, 0.3, 0.1, -4 - 4 / 7),
        (1, 0.0, 0.6, 1.6),
        (1, 0.9, 2.0, 21),
    ],
    ids=["MNIST", "PMNIST", "TIMIT", "PTB", "adding"],
)
def test_effective_forget_bias(fb, mu, step, want):
    """A7: on black pixels the forget gate gets fb + fb step (1 - mu^t) / (1 - mu), without momentum 2 fb."""
    steps = 300
    x = torch.zeros(steps, 1, 2, dtype=F64)
    t = torch.arange(1, steps + 1, dtype=F64)
    for momentum, law in (
        (mr.HeavyBall(mu=mu, step=step), fb + fb * step * (1 - mu**t) / (1 - mu)),
        (None, torch.full_like(t, 2 * fb)),
    ):
        net = mr.LSTM(2, 3, init=Paper(forget_bias=fb), momentum=momentum, dtype=F64)
        state, kept = net.initial_state(1), []
        one = torch.ones_like(state.hidden[1])
        for x_t in x.split(1):
            # g is 0, so nothing enters c: of a c of 1 there remains what the forget gate lets through.
            _, state = net(x_t, state._replace(hidden=(torch.zeros_like(one), one)))
            kept.append(state.hidden[1][0, 0])
        assert_same(torch.stack(kept), law.sigmoid()[:, None].expand(-1, 3))
        if momentum is not None:
            assert_same(state.v[0, 0, 3:6] + net.bias_hh_l0[3:6], torch.full((3,), want, dtype=F64))


@pytest.mark.parametrize("angles", ["cayley", "henaff"])
def test_dtriv(angles):
    """W ~ N(0, 2 / D), U orthogonal, thresholds within ±0.01, and no b_ih."""
    net = mr.RNN(50, 400, 2, nonlinearity="modrelu", init=Dtriv(angles=angles), dtype=F64)
    for suffix, inputs in (("_l0", 50), ("_l1", 400)):
        w, u, b_ih, b_hh = (
            getattr(net, n + suffix) for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        # Of n draws the deviation is right to 1 / sqrt(2 n), the mean to 1 / sqrt(n): 5 sigma of both.
        want, error = math.sqrt(2 / inputs), 1 / math.sqrt(w.numel())
        assert w.std().item() == pytest.approx(want, rel=5 * error)
        assert abs(w.mean().item()) < 5 * want * error
        assert 2.5 < (w.abs().max() / want).item() < 7  # not uniform: those end at sqrt(3)
        assert_same(u.T @ u, eye(400))
        assert difference(u, eye(400)) > 0.1
        assert b_ih.count_nonzero() == 0
        assert 0.009 < b_hh.abs().max() <= 0.01
        assert b_hh.min() < 0 < b_hh.max()
    assert not torch.equal(net.weight_hh_l0, net.weight_hh_l1)


@pytest.mark.parametrize("init", ["dtriv", Dtriv(angles="henaff")], ids=repr)
@pytest.mark.parametrize("make", [mr.LSTM, mr.GRU, mr.LSTMCell], ids=lambda make: make.__name__)
def test_dtriv_needs_a_square_matrix(make, init):
    with pytest.raises(ValueError, match=r"Dtriv\(.*square weight_hh, got \((20|15), 5\) for (LSTM|GRU)\(\)"):
        make(3, 5, init=init)


class Recorded(Init):
    """A user's own: fills each weight with its number, and keeps what it was told."""

    def __init__(self):
        self.told = []

    def __call__(self, name, weight, cell, hidden_size):
        self.told.append((name, tuple(weight.shape), cell, hidden_size))
        nn.init.constant_(weight, len(self.told))


def test_own():
    """Is called once for each weight, in torch's order."""
    init = Recorded()
    net = mr.LSTM(3, 5, 2, proj_size=2, init=init)
    names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr"]
    assert [name for name, *_ in init.told] == 2 * names
    assert [shape for _, shape, *_ in init.told] == [tuple(p.shape) for p in net.parameters()]
    assert all(rest == [net.cell, 5] for _, _, *rest in init.told)
    assert [p.unique().item() for p in net.parameters()] == list(range(1, 11))
    net.reset_parameters()
    assert [p.unique().item() for p in net.parameters()] == list(range(11, 21))


DRAWS = {"torch": "torch", "paper": "paper", "every": Paper(identity="every"), "dtriv": "dtriv"}


@pytest.mark.parametrize("init", DRAWS)
def test_reset(init):
    """Draws again what a new layer would."""
    net = mr.RNN(3, 5, 2, nonlinearity="modrelu", init=DRAWS[init])
    before = net.weight_ih_l0.detach().clone()
    seeded(net.reset_parameters)
    assert not torch.equal(before, net.weight_ih_l0)
    want = seeded(mr.RNN, 3, 5, 2, nonlinearity="modrelu", init=DRAWS[init])
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), want.parameters(), strict=True))


@pytest.mark.parametrize("init", DRAWS)
@pytest.mark.parametrize("apply", [weight_norm, orthogonal], ids=["weight_norm", "orthogonal"])
@pytest.mark.parametrize("name", ["weight_ih_l0", "weight_hh_l0"])
def test_reset_of_parametrised_weights(apply, name, init):
    """What is drawn reaches the parameters beneath; an orthogonal weight stays so."""
    net = mr.RNN(5, 5, nonlinearity="modrelu", init=DRAWS[init], dtype=F64)
    apply(net, name)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn_like(p))
    parameters, before = list(net.parameters()), getattr(net, name).detach().clone()
    seeded(net.reset_parameters)
    now = getattr(net, name)
    want = seeded(mr.RNN, 5, 5, nonlinearity="modrelu", init=DRAWS[init], dtype=F64)
    assert difference(before, now) > 1e-3
    assert [id(p) for p in net.parameters()] == [id(p) for p in parameters]
    if apply is weight_norm or (init, name) not in [
        ("torch", "weight_ih_l0"),
        ("torch", "weight_hh_l0"),
        ("dtriv", "weight_ih_l0"),
    ]:
        assert_same(now, getattr(want, name))
    if apply is orthogonal:
        assert_same(now.T @ now, eye(5))
    others = [n for n in want.state_dict() if n != name]
    assert all(torch.equal(getattr(net, n), getattr(want, n)) for n in others)
    net(torch.randn(4, 2, 5, dtype=F64))[0].sum().backward()
    assert all(p.grad is not None for p in net.parametrizations[name].parameters())


def test_reset_under_our_own_constraints():
    """`orthogonal(rnn)` and `weight_drop(rnn)`: a mask is no part of what is drawn."""
    rnn = mr.orthogonal(mr.RNN(3, 6, nonlinearity="modrelu", bias="hh", init="dtriv", dtype=F64))
    seeded(rnn.reset_parameters)
    want = seeded(mr.RNN, 3, 6, nonlinearity="modrelu", bias="hh", init="dtriv", dtype=F64)
    assert_same(rnn.weight_hh_l0, want.weight_hh_l0)
    dropped = mr.weight_drop(mr.LSTM(3, 6, init="paper", dtype=F64), 0.5)
    seeded(dropped.reset_parameters)
    assert_same(dropped.eval().weight_hh_l0, torch.eye(24, 6, dtype=F64))


def test_reset_of_what_can_not_be_set():
    """Without a right_inverse torch says so."""

    class Doubled(nn.Module):
        def forward(self, w):
            return 2 * w

    net = mr.GRU(3, 5)
    parametrize.register_parametrization(net, "weight_hh_l0", Doubled())
    with pytest.raises((NotImplementedError, RuntimeError), match="right_inverse"):
        net.reset_parameters()


def test_repr():
    assert "init" not in repr(mr.LSTM(3, 5))
    assert "init='paper'" in repr(mr.LSTM(3, 5, init="paper"))
    assert "init=Paper(forget_bias=-4.0, identity='first')" in repr(mr.GRUCell(3, 5, init=Paper(-4.0)))
    assert "init=Dtriv(angles='cayley')" in repr(mr.RNN(3, 5, init=Dtriv()))


def test_names_of_the_paper_take_it():
    assert mr.MomentumLSTM(3, 5, init="paper").bias_hh_l0.sum() == 5
    assert mr.AdamRNNCell(3, 5, init="dtriv").bias_ih.count_nonzero() == 0
