"""What goes wrong elsewhere and must not here: poisoned rows, 16-bit overflow, transforms, odd users."""

import io
from dataclasses import dataclass

import pytest
import torch
from conftest import CELLS, MOMENTA, as_tuple, assert_same, gradients, layer, leaf, serves
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import pack_padded_sequence

import momentumrnn as mr
from momentumrnn.backends import native
from momentumrnn.torch_internals import onednn_has

LINEAR = ["HeavyBall", "ScheduledRestart", "Warmup"]


@pytest.mark.parametrize("momentum", sorted(set(MOMENTA) - {"None"}))
@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("rows", [4, 25], ids=["few rows", "many rows"])
def test_a_spoilt_row_spoils_no_other(momentum, backend, rows):
    """Also in the next piece, where the momentum of all rows meets in one product."""
    net = layer("lstm", momentum, 3, 5, backend=backend)
    x = torch.randn(6, rows, 3, dtype=torch.float64)
    x[2, 1, 0] = torch.nan
    out, state = net(x, net.initial_state(rows))
    again, _ = net(torch.randn(2, rows, 3, dtype=torch.float64), state)
    others = torch.arange(rows) != 1
    assert again[:, others].isfinite().all()
    assert out[:, others].isfinite().all()
    assert out[2:, 1].isnan().all()


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_float16_range(backend):
    """A momentum beyond float16 saturates gates, and its row alone; a drive beyond it has a gradient."""
    net = mr.LSTM(2, 3, momentum=mr.HeavyBall(1.0), backend=backend).half()
    x = torch.zeros(300, 3, 2)
    x[:, 1] = 1000
    _, state = net(x.half(), net.initial_state(3))
    assert state.v.abs().max() > 65504
    assert net(torch.zeros(2, 3, 2).half(), state)[0].isfinite().all()
    adam = mr.LSTM(2, 3, bias=False, momentum=mr.Adam(0.6, 1.0, 0.01), backend=backend).half()
    out, _ = adam(torch.cat([torch.full((5, 1, 2), 0.5), torch.zeros(20, 1, 2)]).half())
    out.sum().backward()
    assert all(p.grad.isfinite().all() for p in adam.parameters())


def test_float16_step_goes_into_the_filter():
    """mu = 0.99, step = 0.01 passes a constant with gain 1, and never holds a hundred times that."""
    net = mr.LSTM(2, 3, momentum=mr.HeavyBall(0.99, 0.01))
    with torch.no_grad():
        net.weight_ih_l0.mul_(0.01)
    x = torch.full((800, 1, 2), 1000.0)
    want = net(x)[0]
    assert (net.half()(x.half())[0] - want).abs().max() < 5e-2


# What torch itself does and warns of when it traces a Function.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("momentum", ["None", *LINEAR, "Adam"])
@pytest.mark.parametrize("strict", [False, True])
def test_export(momentum, strict):
    """A model with layers inside is exported, and the program differentiates."""
    model = nn.Sequential(nn.Linear(3, 3), layer("lstm", momentum, 3, 5, 2, dtype=torch.float32))
    x = torch.randn(9, 2, 3)
    program = torch.export.export(model, (x,), strict=strict).module()
    out, final = program(x)
    assert_same((out, final), model(x), torch.float32)
    out.sum().backward()


@pytest.mark.parametrize("momentum", ["None", *LINEAR, "Adam"])
def test_batched_gradients(momentum):
    net = layer("lstm", momentum, 3, 5)
    x = torch.randn(10, 1, 3, dtype=torch.float64)

    def loss(x):
        return net(x)[0].sum((0, 1))

    jacobian = torch.autograd.functional.jacobian
    assert_same(jacobian(loss, x, vectorize=True), jacobian(loss, x))


@pytest.mark.parametrize("momentum", sorted(set(MOMENTA) - {"None"}))
def test_a_momentum_under_transforms(momentum):
    m, _ = MOMENTA[momentum]
    a = torch.randn(4, 9, 2, 3, dtype=torch.float64)
    assert_same(torch.vmap(lambda a: m(a)[0])(a), torch.stack([m(one)[0] for one in a]))
    one = a[0].clone().requires_grad_()
    (want,) = torch.autograd.grad(m(one)[0].square().sum(), one)
    assert_same(torch.func.grad(lambda a: m(a)[0].square().sum())(a[0]), want)


@pytest.mark.parametrize("momentum", ["None", "HeavyBall"])
def test_packed_under_a_default_device(momentum):
    net = layer("lstm", momentum, 3, 5)
    packed = pack_padded_sequence(torch.randn(6, 4, 3, dtype=torch.float64), torch.tensor([6, 3, 2, 1]))
    want = net(packed)[0].data
    with torch.device("meta"):
        assert torch.equal(net(packed)[0].data, want)


def test_a_broken_parametrisation_is_heard():
    class Typo(nn.Module):
        def forward(self, w):
            return w.doubled

    net = mr.LSTM(3, 5, momentum=mr.HeavyBall())
    parametrize.register_parametrization(net, "bias_ih_l0", Typo(), unsafe=True)
    with pytest.raises(AttributeError, match=r"bias_ih_l0|doubled"):
        net(torch.randn(4, 2, 3))


def test_a_cell_with_parameters_keeps_them():
    class Scaled(nn.Module, mr.Cell):
        gates = 1
        states = 1

        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(7.0))

        def step(self, v, r, b, state):
            return (self.scale * (v + r + b).tanh(),)

    net = mr.Recurrent(Scaled(), 3, 5, momentum=mr.HeavyBall())
    assert net.cell.scale.item() == 7
    net(torch.randn(4, 2, 3))[0].sum().backward()
    assert net.cell.scale.grad is not None


@pytest.mark.parametrize("momentum", ["None", "HeavyBall", "Adam"])
@pytest.mark.parametrize("cell", sorted(CELLS))
def test_autocast_dtype(momentum, cell):
    """Where torch's function runs, the output has the dtype that it gives; our own loops give autocast's."""
    theirs = {"lstm": nn.LSTM, "gru": nn.GRU}.get(cell, nn.RNN)(3, 5)
    # Torch's LSTM raises where oneDNN has no bfloat16; ours gives the dtype that torch gives elsewhere.
    runs = cell != "lstm" or onednn_has(torch.bfloat16)
    for backend in serves(cell):
        net = layer(cell, momentum, 3, 5, dtype=torch.float32, backend=backend)
        with torch.autocast("cpu", torch.bfloat16):
            # Torch's GRU stays in float32 on a CPU, its LSTM and RNN don't.
            torchs = theirs(torch.randn(4, 2, 3))[0].dtype if runs else torch.bfloat16
            out = net(torch.randn(4, 2, 3))[0]
        fused = "native     runs: torch." in net.explain(torch.randn(4, 2, 3))
        assert out.dtype == (torchs if fused else torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("momentum", ["None", "HeavyBall"])
def test_autocast_where_onednn_has_no_16_bits(monkeypatch, dtype, momentum):
    """There torch's LSTM raises. Ours computes in autocast's dtype, with gradients in the weights' own."""
    monkeypatch.setattr(native, "onednn_has", lambda dtype: False)
    net, x = layer("lstm", momentum, 3, 5, num_layers=2, dtype=torch.float32), torch.randn(4, 2, 3)
    want = net(x)[0]
    with torch.autocast("cpu", dtype):
        out, (h, c) = net(x)
    assert out.dtype == h.dtype == c.dtype == dtype
    assert_same(out, want, torch.bfloat16)
    out.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # by flags()
def test_what_torch_computes_without_onednn_is_torchs(monkeypatch):
    """Where torch would not have asked oneDNN, dtype and bits stay those that torch gives."""
    monkeypatch.setattr(native, "onednn_has", lambda dtype: False)
    net, x = layer("lstm", "None", 3, 5, dtype=torch.float32, backend="native"), torch.randn(4, 2, 3)
    theirs = nn.LSTM(3, 5)
    theirs.load_state_dict(net.state_dict())
    with torch.backends.mkldnn.flags(enabled=False), torch.autocast("cpu", torch.bfloat16):
        assert_same_bits(net(x)[0], theirs(x)[0])
    with torch.autocast("cpu", torch.bfloat16):
        assert_same_bits(net(x[:, :0])[0], theirs(x[:, :0])[0])


def assert_same_bits(got, want):
    assert got.dtype == want.dtype
    assert torch.equal(got, want)


@pytest.mark.parametrize("strict", [False, True])
def test_export_under_autocast(strict):
    """The program asks nothing of oneDNN."""
    net, x = mr.LSTM(3, 5).eval(), torch.randn(4, 2, 3)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        program = torch.export.export(net, (x,), strict=strict)
    assert "mkldnn" not in program.graph_module.code


def test_a_state_moves_with_its_layer():
    net = mr.LSTM(3, 5, momentum=mr.Adam())
    _, state = net(torch.randn(4, 2, 3), net.initial_state(2))
    out, state = net.bfloat16()(torch.randn(4, 2, 3).bfloat16(), state.detach().to(torch.bfloat16))
    assert out.dtype == torch.bfloat16
    assert (state.v.dtype, state.n.dtype, state.k.tolist()) == (torch.float32, torch.float32, [[8, 8]])


def test_a_state_is_saved_and_loaded():
    state = mr.LSTM(3, 5, momentum=mr.Adam()).initial_state(2)
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    again = torch.load(file)
    assert isinstance(again, mr.State)
    assert_same(again, state)


# What the backward written by hand must not lose: each of these once went wrong.

BY_HAND = [
    ("gru", "HeavyBall"),
    ("tanh", "Nesterov"),
    ("modrelu", "None"),
    ("lstm", "Adam"),
    ("gru", "RMSProp"),
]
by_hand = pytest.mark.parametrize(("cell", "momentum"), BY_HAND)


def both(cell, momentum, **options):
    """The same layer on native and on the reference."""
    nets = [layer(cell, momentum, 4, 4, backend=backend, **options) for backend in ("native", "reference")]
    nets[1].load_state_dict(nets[0].state_dict())
    return nets


@by_hand
@pytest.mark.parametrize("graph", [False, True])
def test_inputs_made_from_one_another(cell, momentum, graph):
    """Pieces of a sequence, a state made from the input and tied biases: each way counts once."""
    x, found = torch.randn(6, 2, 4, dtype=torch.float64, requires_grad=True), []
    for net in both(cell, momentum):
        net.bias_hh_l0 = net.bias_ih_l0
        start = net.initial_state(2)
        first, state = net(x[:3], start._replace(hidden=tuple(h + x.mean(0) for h in start.hidden)))
        second, _ = net(x[3:], state)
        loss = first.sum() + second.square().sum()
        found.append(torch.autograd.grad(loss, [x, *net.parameters()], create_graph=graph))
    assert_same(*found)


@pytest.mark.parametrize("momentum", ["HeavyBall", "Adam"])
@pytest.mark.parametrize("graph", [False, True])
def test_gradients_through_a_factored_layer(momentum, graph):
    x, found = torch.randn(6, 2, 4, dtype=torch.float64), []
    for net in both("tanh", momentum, factored=True):
        loss = net(x)[0].square().sum()
        found.append(torch.autograd.grad(loss, list(net.parameters()), create_graph=graph))
    assert_same(*found)


@by_hand
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(cell, momentum, reentrant):
    net, x = layer(cell, momentum, 4, 4), leaf(6, 2, 4)
    out = torch.utils.checkpoint.checkpoint(lambda x: net(x)[0], x, use_reentrant=reentrant)
    inputs = [x, *net.parameters()]
    want = torch.autograd.grad(net(x)[0].square().sum(), inputs)
    for p in inputs:
        p.grad = None
    out.square().sum().backward()
    assert_same([p.grad for p in inputs], list(want))


@by_hand
def test_second_derivatives_with_frozen_weights(cell, momentum):
    x, found = torch.randn(6, 2, 4, dtype=torch.float64), []
    for net in both(cell, momentum):
        net.weight_ih_l0.requires_grad_(False)
        net.bias_ih_l0.requires_grad_(False)
        (first,) = torch.autograd.grad(net(x)[0].square().sum(), net.weight_hh_l0, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), [net.weight_hh_l0, net.bias_hh_l0]))
    assert_same(*found)


@by_hand
def test_many_gradients_at_once(cell, momentum):
    """For the output and for the final state alone, by autograd's own batching and by vmap."""
    net, x = layer(cell, momentum, 4, 4), leaf(6, 2, 4)
    out, final = net(x)
    for y in (out, as_tuple(final)[0]):
        rows = torch.eye(y.numel(), dtype=torch.float64).view(-1, *y.shape)[:5]
        want = torch.stack([torch.autograd.grad(y, x, row, retain_graph=True)[0] for row in rows])
        (got,) = torch.autograd.grad(y, x, rows, is_grads_batched=True, retain_graph=True)
        assert_same(got, want)
        by_vmap = torch.vmap(lambda row, y=y: torch.autograd.grad(y, x, row, retain_graph=True)[0])
        assert_same(by_vmap(rows), want)


@pytest.mark.parametrize(("cell", "momentum"), [pair for pair in BY_HAND if pair[0] != "lstm"])
def test_outputs_may_be_written_to(cell, momentum):
    """As those of torch's GRU and RNN; its LSTM refuses that, and so does ours."""
    net, x = layer(cell, momentum, 4, 4), leaf(6, 2, 4)
    want = gradients(net(x)[0] * 2, [x, *net.parameters()])
    assert_same(gradients(net(x)[0].mul_(2), [x, *net.parameters()]), want)


@pytest.mark.parametrize("momentum", ["None", "HeavyBall", "Adam"])
@pytest.mark.parametrize("cell", sorted(set(CELLS) - {"extrapolated"}))
def test_export_at_fixed_shapes(cell, momentum):
    net, x = layer(cell, momentum, 3, 4).eval(), torch.randn(5, 2, 3, dtype=torch.float64)
    exported = torch.export.export(net, (x,)).module()
    assert_same(exported(x)[0], net(x)[0])


@by_hand
def test_autocast_leaves_float64_alone(cell, momentum):
    net, x = layer(cell, momentum, 4, 4), torch.randn(6, 2, 4, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        assert net(x)[0].dtype == torch.float64


@dataclass(frozen=True)
class Late(mr.Momentum):
    """A decay that is learned, but not at the first step."""

    p: torch.Tensor
    beta: float = 0.9

    def decay(self, k):
        return 0.0 if (k == 0).all() else self.p * (k > 0)


def test_a_decay_learned_late():
    x, found = torch.randn(6, 2, 3, dtype=torch.float64), []
    for backend in ("native", "reference"):
        torch.manual_seed(1)
        p = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        net = mr.GRU(3, 4, momentum=Late(p), dtype=torch.float64, backend=backend)
        found.append(torch.autograd.grad(net(x)[0].square().sum(), p))
    assert_same(*found)


def test_small_inputs_go_to_torch(monkeypatch):
    """Where its loop beats ours; the value is the same."""
    net, x = layer("gru", "HeavyBall", 3, 4), torch.randn(5, 2, 3, dtype=torch.float64)
    ours = net(x)
    monkeypatch.setattr(native, "SMALL_INPUT", 1 << 15)
    assert "native     runs: torch.gru, on the filtered input" in net.explain(x)
    assert_same(net(x), ours)


def test_explaining_draws_nothing():
    net, x = mr.weight_drop(mr.LSTM(3, 4), 0.5), torch.randn(5, 2, 3)
    before = torch.get_rng_state()
    net.explain(x)
    assert torch.equal(torch.get_rng_state(), before)
