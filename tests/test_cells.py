"""The SRLSTM of the released code: a cell of its own, whose state is (h, c, y, j)."""

import pytest
import torch
from conftest import (
    CELLS,
    MOMENTA,
    assert_oracle,
    assert_same,
    begun,
    call,
    difference,
    gradients,
    layer,
    leaf,
)
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call

import momentumrnn as mr
from momentumrnn.cells import ExtrapolatedLSTM
from momentumrnn.step_cells import RecurrentCell

F64 = torch.float64
every_momentum = pytest.mark.parametrize("momentum", MOMENTA)


def make(every, step_size, *args, **options):
    return mr.Recurrent(ExtrapolatedLSTM(every, step_size), *args, dtype=F64, **options)


def counted(net, counts):
    """As `begun`, with j of each row as it is after so many steps."""
    state = begun(net, counts)
    j = (state.k % net.cell.every).to(F64).unsqueeze(-1)
    return state._replace(hidden=(*state.hidden[:3], j.clone().requires_grad_()))


@every_momentum
@pytest.mark.parametrize("bias", [True, "hh", False], ids=["bias", "hh", "none"])
def test_packed_stack(momentum, bias):
    """Two layers on unsorted sequences, from a State whose rows have their own momentum and count."""
    net = layer("extrapolated", momentum, 3, 4, 2, bias=bias)
    assert_oracle(net, leaf(7, 4, 3), counted(net, [0, 5, 1, 17]), [4, 7, 1, 5])


@every_momentum
def test_projection_and_two_directions(momentum):
    net = layer("extrapolated", momentum, 3, 4, 2, proj_size=2, bidirectional=True)
    assert_oracle(net, leaf(7, 3, 3), None, [5, 7, 4])


@every_momentum
def test_pieces_are_the_whole(momentum):
    net, x = layer("extrapolated", momentum, 3, 4, 2, proj_size=3), leaf(11, 2, 3)
    whole, after = net(x, net.initial_state(2))
    state, outs = net.initial_state(2), []
    for piece in x.split([1, 4, 2, 4]):
        out, state = net(piece, state)
        outs.append(out)
    assert_same((torch.cat(outs), state), (whole, after))
    inputs = [x, *net.parameters()]
    assert_same(gradients((torch.cat(outs), state), inputs), gradients((whole, after), inputs))


@pytest.mark.parametrize("momentum", ["None", "HeavyBall", "Adam"])
def test_single_steps(momentum):
    net, x = layer("extrapolated", momentum, 3, 4), leaf(7, 2, 3)
    one = RecurrentCell(net.cell, 3, 4, dtype=F64, momentum=net.momentum)
    one.load_state_dict({name.removesuffix("_l0"): p for name, p in net.state_dict().items()})
    state, outs = one.initial_state(2), []
    for x_t in x:
        state = one(x_t, state)
        outs.append(state.hidden[0])
    out, after = net(x, net.initial_state(2))
    assert_same(torch.stack(outs), out)
    assert_same(state, [t[0] for t in after])


def test_gradcheck():
    net = layer("extrapolated", "None", 2, 2)
    names = [name for name, _ in net.named_parameters()]

    def function(x, y, *weights):
        state = net.initial_state(2)
        state = state._replace(hidden=(*state.hidden[:2], y, state.hidden[3] + 1))
        out, after = functional_call(net, dict(zip(names, weights, strict=True)), (x, state))
        return out, *after.hidden[:3]

    inputs = [leaf(4, 2, 2), leaf(1, 2, 8), *net.parameters()]
    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


def released(x, net):
    """A literal loop: k from 1, mu = (k - 1) / (k + 2), k set back after a step at which every divides it."""
    w = {name.removesuffix("_l0"): p for name, p in net.named_parameters()}
    h = c = x.new_zeros(x.shape[1], net.hidden_size)
    y, k, outs = x.new_zeros(x.shape[1], 4 * net.hidden_size), 1, []
    for x_t in x:
        old, mu = y, (k - 1) / (k + 2)
        z = x_t @ w["weight_ih"].T + w["bias_ih"]
        y = h @ w["weight_hh"].T + w["bias_hh"] - net.cell.step_size * z
        i, f, g, o = (y + mu * (y - old)).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        k = 1 if k % net.cell.every == 0 else k + 1
        outs.append(h)
    return torch.stack(outs)


@pytest.mark.parametrize("every", [1, 2, 5, 40])
def test_released_loop(every):
    """E4e: what the released code runs on MNIST and TIMIT, which is not the SRLSTM of the paper."""
    net, x = make(every, 0.7, 3, 4), leaf(13, 2, 3)
    inputs = [x, *net.parameters()]
    got, want = net(x)[0], released(x, net)
    assert_same(got, want)
    assert_same(gradients(got, inputs), gradients(want, inputs))
    paper = mr.LSTM(3, 4, momentum=mr.ScheduledRestart(every=every, step=0.7), dtype=F64)
    weights = dict(net.named_parameters())
    assert difference(functional_call(paper, weights, (x,))[0], want) > 0.3
    # Nor with the sign taken into W: it is U h that is extrapolated too, but for every=1, where nothing is.
    turned = {name: -p if "_ih" in name else p for name, p in weights.items()}
    assert (difference(functional_call(paper, turned, (x,))[0], want) > 0.01) == (every > 1)


def test_without_memory():
    """every=1 is torch's LSTM with W and b_ih times -step_size, and not times step_size."""
    net, x = make(1, 0.7, 3, 4, 2, bidirectional=True), leaf(9, 2, 3)
    theirs = nn.LSTM(3, 4, 2, bidirectional=True, dtype=F64)
    for sign in (-1, 1):
        given = {name: sign * 0.7 * p if "_ih" in name else p for name, p in net.named_parameters()}
        out = functional_call(theirs, given, (x,))[0]
        assert (difference(net(x)[0], out) < 1e-10) == (sign == -1)


def test_a_restart_forgets_y():
    """After `every` steps the carried y changes nothing and has no gradient; a step later it does."""
    net, x = make(4, 0.7, 3, 4), leaf(6, 2, 3)
    for count, forgets in ((0, True), (4, True), (8, True), (1, False), (5, False)):
        _, state = net(torch.randn(max(count, 1), 2, 3, dtype=F64), net.initial_state(2))
        if count == 0:
            state = net.initial_state(2)
        assert state.hidden[3].unique().item() == count % 4
        h, c, y, j = (t.detach() for t in state.hidden)
        y.requires_grad_()
        out = net(x, (h, c, y, j))[0]
        assert torch.equal(out, net(x, (h, c, y + 1, j))[0]) == forgets
        assert (gradients(out, [y])[0].count_nonzero() == 0) == forgets


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_j_is_counted_exactly(dtype):
    """Up to the largest `every`, in 16 bits too."""
    net = mr.Recurrent(ExtrapolatedLSTM(every=256), 1, 1, dtype=dtype)
    with torch.no_grad():
        _, (_, _, _, j) = net(torch.zeros(511, 1, 1, dtype=dtype))
        assert j.item() == 255
        _, (_, _, _, j) = net(torch.zeros(512, 1, 1, dtype=dtype))
    assert j.item() == 0


@pytest.mark.parametrize(("bias", "step", "want"), [(1, 1.0, 0), (1, 0.9, 0.1), (-4, 0.1, -3.6)])
def test_initial_forget_bias(bias, step, want):
    """A3: fb (1 - s) on black pixels, at the first step and at each restart."""
    init = mr.init.Paper(forget_bias=bias)
    net = make(2, step, 1, 3, init=init)
    start = net.initial_state(1)
    state = start._replace(hidden=(start.hidden[0], start.hidden[1] + 1, *start.hidden[2:]))
    _, after = net(torch.zeros(1, 1, 1, dtype=F64), state)
    # Nothing enters c, since g is 0: what is left of it is the forget gate.
    assert_same(after.hidden[1].logit(), torch.full((1, 1, 3), want, dtype=F64))


def test_backends():
    net, x = layer("extrapolated", "HeavyBall", 3, 4), torch.randn(5, 2, 3, dtype=F64)
    assert "reference  runs" in net.explain(x)
    assert "ExtrapolatedLSTM(every=3, step_size=0.7)" in repr(net)
    assert torch.equal(call(net, x)[0], layer_like(net, "reference")(x)[0])
    with pytest.raises(RuntimeError, match="backend='native' can't run this: ExtrapolatedLSTM"):
        layer_like(net, "native")(x)


def layer_like(net, backend):
    other = mr.Recurrent(CELLS["extrapolated"], 3, 4, momentum=net.momentum, dtype=F64, backend=backend)
    other.load_state_dict(net.state_dict())
    return other
