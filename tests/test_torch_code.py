"""Code that was written for torch's recurrent modules: its inputs, its errors, its tools."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import assert_same, gradients
from torch import fx, nn
from torch.nn.utils import prune, remove_weight_norm, weight_norm
from torch.nn.utils.rnn import pack_padded_sequence

import momentumrnn as mr

LAYERS, CELLS = ("LSTM", "GRU", "RNN"), ("LSTMCell", "GRUCell", "RNNCell")
MOMENTA = pytest.mark.parametrize("momentum", [None, mr.HeavyBall(mu=0.6), mr.Adam()], ids=repr)

# Torch's tables give "tanh" and "relu" as the bias of these cells. Torch takes any value that is true; ours
# has a third choice, "hh", and refuses other strings by name.
STRINGS_AS_BIAS = {
    f"{cell}(10, 20, '{name}')" for cell in ("GRUCell", "RNNCell") for name in ("tanh", "relu")
}


def test_torchs_own_inputs_and_errors():
    program = Path(__file__).parent / "torch_module_inputs.py"
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["modules"] == 6
    assert report["inputs"] >= 500
    assert report["errors"] >= 50
    assert {found.partition("{")[0] for found in report["differ"]} == STRINGS_AS_BIAS


@pytest.mark.parametrize("name", LAYERS)
def test_numbers_of_numpy(name):
    sizes = {"input_size": 3, "hidden_size": 5, "num_layers": 2}
    flags = {"bias": False, "batch_first": True, "bidirectional": True}
    torch.manual_seed(0)
    plain = getattr(mr, name)(**sizes, **flags, dropout=0.5)
    torch.manual_seed(0)
    net = getattr(mr, name)(
        **{key: np.int64(value) for key, value in sizes.items()},
        **{key: np.bool_(value) for key, value in flags.items()},
        dropout=np.float32(0.5),
    )
    for key in (*sizes, *flags, "dropout"):
        assert type(getattr(net, key)) is type(getattr(plain, key))
    assert repr(net) == repr(plain)
    x = torch.randn(2, 4, 3)
    assert torch.equal(net.eval()(x)[0], plain.eval()(x)[0])


@pytest.mark.parametrize("name", CELLS)
def test_cells_take_numbers_of_numpy_and_a_bias_of_1(name):
    for theirs, ours in ((True, 1), (False, 0), (True, np.bool_(True)), (False, np.bool_(False))):
        cell = getattr(mr, name)(np.int32(3), np.int64(5), ours)
        assert repr(cell) == repr(getattr(mr, name)(3, 5, theirs))
        assert set(cell.state_dict()) == set(getattr(nn, name)(3, 5, theirs).state_dict())


def test_numpys_numbers_elsewhere():
    net = mr.LSTM(3, 5, momentum=mr.ScheduledRestart(every=np.int64(4), step=np.float32(0.5)))
    assert repr(net.momentum) == "ScheduledRestart(every=4, step=0.5)"
    assert mr.cells.ExtrapolatedLSTM(np.int64(8), np.float64(0.5)) == mr.cells.ExtrapolatedLSTM(8, 0.5)
    state = net.initial_state(np.int64(3))
    _, state = net(torch.randn(2, 3, 3), state)
    assert state.reset(np.array([True, False, True])).k.tolist() == [[0, 2, 0]]
    assert state.select(np.array([2, 0])).k.tolist() == [[2, 2]]
    assert state.repeat(np.int64(2)).k.shape == (1, 6)


@MOMENTA
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_lie_as_their_inputs(name, batch_first, momentum):
    """Code that views a gradient needs it contiguous where torch's is."""
    theirs = getattr(nn, name)(3, 5, batch_first=batch_first)
    ours = getattr(mr, name)(3, 5, batch_first=batch_first, momentum=momentum)
    for net in (theirs, ours):
        x = torch.randn(4, 2, 3, requires_grad=True)
        net(x)[0].sum().backward()
        assert x.grad.is_contiguous()
        assert all(p.grad.is_contiguous() for p in net.parameters())


# Tools that assign weights


@MOMENTA
@pytest.mark.parametrize("name", LAYERS)
def test_flat_weights(name, momentum):
    theirs = getattr(nn, name)(3, 5, num_layers=2, bidirectional=True)
    net = getattr(mr, name)(3, 5, num_layers=2, bidirectional=True, momentum=momentum)
    net.load_state_dict(theirs.state_dict())
    assert net._flat_weights_names == theirs._flat_weights_names
    assert all(map(torch.equal, net._flat_weights, theirs._flat_weights))
    assert [id(w) for w in net._flat_weights] == [id(p) for p in net.parameters()]
    x = torch.randn(4, 2, 3)
    want = net(x)[0]
    # What wrappers do with the weights that they dropped or normalised.
    net._flat_weights = [getattr(net, name) for name in net._flat_weights_names]
    assert torch.equal(net(x)[0], want)
    doubled = [nn.Parameter(2 * w.detach()) for w in net._flat_weights]
    assert isinstance(net._flat_weights, tuple)  # a list would not keep what is written into it
    net._flat_weights = doubled
    assert all(a is b for a, b in zip(net.parameters(), doubled, strict=True))
    assert not torch.equal(net(x)[0], want)
    with pytest.raises(ValueError, match="_flat_weights should have 16 tensors, got 1"):
        net._flat_weights = doubled[:1]


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@MOMENTA
@pytest.mark.parametrize("name", LAYERS)
def test_old_weight_norm(name, momentum):
    net, x = getattr(mr, name)(3, 5, momentum=momentum), torch.randn(4, 2, 3)
    want = net(x)[0]
    weight_norm(net, "weight_hh_l0")
    assert_same(net(x)[0], want, torch.float32)
    grads = gradients(net(x)[0], [net.weight_hh_l0_g, net.weight_hh_l0_v])
    assert all(g.any() for g in grads)
    with torch.no_grad():
        net.weight_hh_l0_g.mul_(2)
    assert not torch.allclose(net(x)[0], want, atol=1e-3)
    remove_weight_norm(net, "weight_hh_l0")
    assert "weight_hh_l0" in dict(net.named_parameters())
    assert net(x)[0].shape == want.shape


@MOMENTA
@pytest.mark.parametrize("name", LAYERS)
def test_pruning(name, momentum):
    net, x = getattr(mr, name)(3, 5, momentum=momentum), torch.randn(4, 2, 3)
    prune.random_unstructured(net, "weight_hh_l0", amount=0.5)
    assert net.weight_hh_l0_orig.shape == net.weight_hh_l0.shape
    out = net(x)[0]
    gradient = gradients(out, [net.weight_hh_l0_orig])[0]
    assert not gradient[net.weight_hh_l0_mask == 0].any()
    want = net.state_dict()["weight_hh_l0_orig"] * net.weight_hh_l0_mask
    plain = getattr(mr, name)(3, 5, momentum=momentum)
    with torch.no_grad():
        for weight, other in zip(plain._flat_weights, net._flat_weights, strict=True):
            weight.copy_(other)
    assert torch.equal(plain.weight_hh_l0, want)
    assert_same(plain(x)[0], out, torch.float32)
    prune.remove(net, "weight_hh_l0")
    assert_same(net(x)[0], out, torch.float32)


# What only stands for a tensor


class Model(nn.Module):
    def __init__(self, momentum):
        super().__init__()
        self.rnn = mr.GRU(3, 5, momentum=momentum, carry_momentum=momentum is not None)
        self.step = mr.LSTMCell(5, 4, momentum=momentum)
        self.out = nn.Linear(4, 2)

    def forward(self, x, state=None):
        y, state = self.rnn(x, state)
        h, c = self.step(y[-1])
        return self.out(h + c), state[0]


@MOMENTA
def test_fx_traces_a_model(momentum):
    model, x = Model(momentum), torch.randn(4, 2, 3)
    traced = fx.symbolic_trace(model)
    called = [node.target for node in traced.graph.nodes if node.op == "call_module"]
    assert called == ["rnn", "step", "out"]
    assert traced.rnn is model.rnn
    for got, want in zip(traced(x), model(x), strict=True):
        assert torch.equal(got, want)


class Twice(mr.LSTM):
    """A user's subclass."""

    def forward(self, x, hx=None):
        return super().forward(2 * x, hx)


class Scaled(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, hx):
        out, state = self.layer(x, hx=hx)
        return out, state[0], state[2]


@pytest.mark.parametrize("make", [mr.LSTM, Twice])
def test_fx_runs_hooks_and_subclasses_once(make):
    """And the state goes through."""
    layer, x = make(3, 5, momentum=mr.HeavyBall(mu=0.6)), torch.randn(4, 2, 3)
    layer.register_forward_pre_hook(lambda module, args: (3 * args[0], *args[1:]))
    layer.register_forward_hook(lambda module, args, result: (5 * result[0], result[1]))
    model, state = Scaled(layer), layer(x, layer.initial_state(2))[1]
    want = model(x, state)
    assert not torch.equal(want[0], model(x, layer.initial_state(2))[0])
    assert all(map(torch.equal, fx.symbolic_trace(model)(x, state), want))


def test_fx_needs_a_module_around_the_layer():
    with pytest.raises(TypeError, match=r"input should be a Tensor, got a Proxy; .* has this GRU"):
        fx.symbolic_trace(mr.GRU(3, 5))
    with pytest.raises(TypeError, match="input should be a Tensor, got a Proxy"):
        mr.GRU(3, 5)(fx.Proxy(fx.Graph().placeholder("x")))  # of no Tracer


class Named:
    """A tensor-like object, as libraries of named or physical quantities have it."""

    def __init__(self, values):
        self.values = values

    def __rmul__(self, factor):
        return Named(factor * self.values)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        plain = [arg.values if isinstance(arg, Named) else arg for arg in args]
        out, state = function(*plain, **(kwargs or {}))
        return cls(out), state


@MOMENTA
@pytest.mark.parametrize("name", LAYERS)
def test_torch_function(name, momentum):
    net, x = getattr(mr, name)(3, 5, momentum=momentum), torch.randn(4, 2, 3)
    for state in (None, net(x, net.initial_state(2))[1]):
        out, _ = net(Named(x), state)
        assert type(out) is Named
        assert torch.equal(out.values, net(x, state)[0])


def test_torch_function_of_a_subclass():
    net, x = Twice(3, 5, momentum=mr.HeavyBall(mu=0.6)), torch.randn(4, 2, 3)
    out, _ = net(Named(x))
    assert torch.equal(out.values, net(x)[0])


class Tagged(torch.Tensor):
    """A subclass of Tensor, which torch's layers return as such."""


@MOMENTA
@pytest.mark.parametrize("name", LAYERS)
def test_subclasses_of_tensor(name, momentum):
    net, x = getattr(mr, name)(3, 5, momentum=momentum), torch.randn(4, 2, 3)
    out, _ = net(x.as_subclass(Tagged))
    assert type(out) is Tagged
    assert torch.equal(out.as_subclass(torch.Tensor), net(x)[0])


def test_a_packed_sequence_in_any_strides():
    x, lengths = torch.randn(2, 4, 6).transpose(1, 2)[..., :3], torch.tensor([6, 3])
    theirs, ours = nn.LSTM(3, 5, batch_first=True), mr.LSTM(3, 5, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    packed = pack_padded_sequence(x, lengths, batch_first=True)
    assert torch.equal(ours(packed)[0].data, theirs(packed)[0].data)
