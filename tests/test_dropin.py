"""What a user of torch.nn relies on: its results to the bit, its names, and all that wraps a module."""

import copy
import inspect
import io
import pickle
from dataclasses import dataclass

import pytest
import torch
from conftest import MOMENTA, assert_same, difference, gradients, layer, leaves
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal, weight_norm
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils import _pytree as pytree

import momentumrnn as mr

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16

# Our layer and torch's, and the options that choose the cell.
KINDS = {
    "lstm": (mr.LSTM, nn.LSTM, {}),
    "gru": (mr.GRU, nn.GRU, {}),
    "tanh": (mr.RNN, nn.RNN, {}),
    "relu": (mr.RNN, nn.RNN, {"nonlinearity": "relu"}),
}
OPTIONS = {
    "plain": {},
    "layers": {"num_layers": 3},
    "batch_first": {"batch_first": True},
    "bidirectional": {"bidirectional": True},
    "proj_size": {"proj_size": 2, "num_layers": 2},
    "no-bias": {"bias": False},
    "dropout": {"num_layers": 2, "dropout": 0.5},
    "all": {"num_layers": 2, "bias": False, "batch_first": True, "dropout": 0.3, "bidirectional": True},
    "all-proj": {"num_layers": 2, "batch_first": True, "dropout": 0.3, "bidirectional": True, "proj_size": 2},
}
GRID = [
    pytest.param(kind, options, id=f"{kind}-{name}")
    for kind in KINDS
    for name, options in OPTIONS.items()
    if kind == "lstm" or "proj_size" not in options
]
CELL_KINDS = {
    "lstm": (mr.LSTMCell, nn.LSTMCell, {}),
    "gru": (mr.GRUCell, nn.GRUCell, {}),
    "tanh": (mr.RNNCell, nn.RNNCell, {}),
    "relu": (mr.RNNCell, nn.RNNCell, {"nonlinearity": "relu"}),
}
PREFIXES = {
    "Momentum": mr.HeavyBall,
    "NAG": mr.Nesterov,
    "SR": mr.ScheduledRestart,
    "Adam": mr.Adam,
    "RMSProp": mr.RMSProp,
}
SPELLINGS = [
    pytest.param(prefix + kind, getattr(mr, kind), momentum, id=prefix + kind)
    for prefix, momentum in PREFIXES.items()
    for kind in ("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell")
]
SOME = ["None", "HeavyBall", "Adam"]  # plain, filtered, and driven in gate space
# For low precision: with a small eps the sign of W x + b decides alone, and near 0 rounding decides the sign.
GENTLE = {
    "None": None,
    "HeavyBall": mr.HeavyBall(mu=0.6, step=0.7),
    "ScheduledRestart": mr.ScheduledRestart(every=3, step=0.9),
    "Adam": mr.Adam(mu=0.5, step=0.7, beta=0.9, eps=0.1),
    "RMSProp": mr.RMSProp(step=0.7, beta=0.9, eps=0.1),
}


def pair(kinds, name, *args, **options):
    """Our module and torch's, from the same seed."""
    ours, theirs, chosen = kinds[name]
    torch.manual_seed(1)
    net = ours(*args, **chosen, **options)
    torch.manual_seed(1)
    return net, theirs(*args, **chosen, **options)


def gentle(kind, momentum, *args, **options):
    net = layer(kind, None, *args, **options)
    net.momentum = GENTLE[momentum]
    return net


def given(form, batch_first, dtype):
    """A leaf, and the input of that form made of it."""
    x = torch.randn(6, 4, 3, dtype=dtype, requires_grad=True)
    if form == "unbatched":
        return x, x[:, 0]
    if form == "batched":
        return x, x.transpose(0, 1) if batch_first else x
    if form == "contiguous":
        return x, x.transpose(0, 1).contiguous() if batch_first else x
    if form == "expanded":  # one sequence for all rows
        wide = x[:, :1].expand(6, 4, 3)
        return x, wide.transpose(0, 1) if batch_first else wide
    lengths = torch.tensor([6, 5, 5, 1] if form == "sorted" else [2, 6, 1, 4])
    return x, pack_padded_sequence(x, lengths, enforce_sorted=form == "sorted")


def assert_equal(got, want):
    """Two structures, to the bit."""
    got, want = leaves(got), leaves(want)
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        assert torch.equal(g, w)


def run(net, x, *hx, seed=2):
    """The output and the final states, as one list of tensors."""
    torch.manual_seed(seed)
    return leaves(net(x, *hx))


# Torch's layer, to the bit


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(("kind", "options"), GRID)
@pytest.mark.parametrize("form", ["batched", "contiguous", "expanded", "unbatched", "sorted", "unsorted"])
@pytest.mark.parametrize("dtype", [F32, F64, BF16], ids=["f32", "f64", "bf16"])
def test_plain_to_the_bit(kind, options, form, dtype):
    """Without a momentum: outputs, final states and every gradient, in training, eval and no_grad."""
    net, ref = pair(KINDS, kind, 3, 5, dtype=dtype, **options)
    net.backend = "native"
    leaf, x = given(form, net.batch_first, dtype)
    hx = ref(x)[1]
    hx = [torch.randn_like(h, requires_grad=True) for h in (hx if kind == "lstm" else [hx])]
    for train in (True, False):
        for with_hx in (False, True):
            states = [tuple(hx) if kind == "lstm" else hx[0]] if with_hx else []
            inputs = [leaf, *hx] if with_hx else [leaf]
            got, want = run(net.train(train), x, *states), run(ref.train(train), x, *states)
            assert_equal(got, want)
            assert_equal(
                gradients(got, [*inputs, *net.parameters()]), gradients(want, [*inputs, *ref.parameters()])
            )
    with torch.no_grad():
        got = run(net, x)
        assert_equal(got, run(ref, x))
    assert not any(t.requires_grad for t in got)


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_is_not_idle(kind):
    """Guard of the above: under another seed dropout gives other outputs, so equality meant something."""
    net, _ = pair(KINDS, kind, 3, 5, num_layers=2, dropout=0.5)
    x = torch.randn(6, 4, 3)
    assert not torch.equal(run(net, x, seed=2)[0], run(net, x, seed=3)[0])


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("momentum", SOME)
def test_empty_batch(momentum, backend):
    """A batch of no rows gives outputs of no rows, as in torch."""
    options, x = {"num_layers": 2, "bidirectional": True, "dtype": F64}, torch.randn(4, 0, 3, dtype=F64)
    got = leaves(layer("lstm", momentum, 3, 5, backend=backend, **options)(x))
    assert [t.shape for t in got] == [t.shape for t in leaves(nn.LSTM(3, 5, **options)(x))]


def test_packing_is_kept():
    """The packed output has the input's lengths and order."""
    _, x = given("unsorted", False, F32)
    out, _ = mr.GRU(3, 5, momentum=mr.HeavyBall())(x)
    assert isinstance(out, PackedSequence)
    for got, want in zip(out[1:], x[1:], strict=True):
        assert torch.equal(got, want)


# Names, shapes, signatures


@pytest.mark.parametrize(("kind", "options"), GRID)
@pytest.mark.parametrize("momentum", ["None", "Adam"])
def test_state_dict(kind, options, momentum):
    """Torch's names, order, shapes and initial values; strict loading both ways; the same attributes."""
    ours, theirs, chosen = KINDS[kind]
    torch.manual_seed(1)
    net = ours(3, 5, **chosen, **options, momentum=MOMENTA[momentum][0])
    torch.manual_seed(1)
    ref = theirs(3, 5, **chosen, **options)
    names = {name: p.shape for name, p in ref.state_dict().items()}
    assert list(net.state_dict()) == list(names)
    assert {name: p.shape for name, p in net.state_dict().items()} == names
    assert [[w.shape for w in ws] for ws in net.all_weights] == [
        [w.shape for w in ws] for ws in ref.all_weights
    ]
    assert [id(w) for ws in net.all_weights for w in ws] == [id(p) for p in net.parameters()]
    assert_equal([*net.parameters()], [*ref.parameters()])
    for name in ("input_size", "hidden_size", "batch_first", "bidirectional", "proj_size", "bias"):
        assert getattr(net, name) == getattr(ref, name)

    first, last = theirs(3, 5, **chosen, **options), theirs(3, 5, **chosen, **options)
    net.load_state_dict(first.state_dict(), strict=True)
    last.load_state_dict(net.state_dict(), strict=True)
    assert_equal([*net.parameters()], [*first.parameters()])
    assert_equal([*last.parameters()], [*first.parameters()])


LAYER = "input_size hidden_size num_layers bias batch_first dropout bidirectional"
SIGNATURES = {
    "LSTM": (f"{LAYER} proj_size device dtype", "momentum init backend carry_momentum"),
    "GRU": (f"{LAYER} device dtype", "momentum init backend carry_momentum"),
    "RNN": (
        f"{LAYER} device dtype".replace("bias", "nonlinearity bias"),
        "momentum init factored backend carry_momentum",
    ),
    "LSTMCell": ("input_size hidden_size bias device dtype", "momentum init carry_momentum"),
    "GRUCell": ("input_size hidden_size bias device dtype", "momentum init carry_momentum"),
    "RNNCell": (
        "input_size hidden_size bias nonlinearity device dtype",
        "momentum init factored carry_momentum",
    ),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name):
    """Torch's documented positional order; what is ours is by keyword alone."""
    parameters = inspect.signature(getattr(mr, name)).parameters.values()
    by_place, by_name = SIGNATURES[name]
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == by_place.split()
    assert [p.name for p in parameters if p.kind is p.KEYWORD_ONLY] == by_name.split()
    assert list(inspect.signature(getattr(mr, name).forward).parameters) == ["self", "input", "hx"]


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("LSTM", (3, 5, 2, False, True, 0.5, True, 2, "cpu", F64)),
        ("GRU", (3, 5, 2, False, True, 0.5, True)),
        ("RNN", (3, 5, 2, "tanh", False, True, 0.5, True)),
        ("LSTMCell", (3, 5, False, "cpu", F64)),
        ("GRUCell", (3, 5, False, "cpu", F64)),
        ("RNNCell", (3, 5, False, "tanh", "cpu", F64)),
        ("LSTM", (3, 5)),
        ("GRU", (3, 5)),
        ("RNN", (3, 5)),
        ("RNNCell", (3, 5)),
    ],
)
def test_positional_arguments_and_repr(name, args):
    """The same positional call makes the same module, with torch's repr."""
    net, ref = getattr(mr, name)(*args), getattr(nn, name)(*args)
    assert repr(net) == repr(ref)
    assert {n: (p.shape, p.dtype) for n, p in net.named_parameters()} == {
        n: (p.shape, p.dtype) for n, p in ref.named_parameters()
    }


def test_repr_shows_what_is_ours():
    net = mr.LSTM(3, 5, bias="hh", batch_first=True, momentum=mr.Nesterov(step=0.5), backend="reference")
    assert (
        repr(net)
        == "LSTM(3, 5, bias='hh', batch_first=True, momentum=Nesterov(step=0.5), backend='reference')"
    )
    assert "nonlinearity='modrelu'" in repr(mr.RNN(3, 5, nonlinearity="modrelu"))
    assert "Recurrent(GRU(), 3, 5" in repr(mr.Recurrent(mr.cells.GRU(), 3, 5))
    assert "Mine(GRU(), 3, 5" in repr(type("Mine", (mr.Recurrent,), {})(mr.cells.GRU(), 3, 5))
    assert "Mine(3, 5" in repr(type("Mine", (mr.GRU,), {})(3, 5))
    assert net.extra_repr() in repr(nn.Sequential(net))
    assert (
        repr(mr.RNNCell(3, 5, momentum=mr.HeavyBall()))
        == "RNNCell(3, 5, momentum=HeavyBall(mu=0.6, step=1.0))"
    )


def test_dropout_of_one_layer_warns():
    with pytest.warns(UserWarning, match=r"dropout=0\.5.*num_layers=1") as seen:
        mr.GRU(3, 5, dropout=0.5)
    assert seen[0].filename == __file__


# Cells


@pytest.mark.parametrize("kind", CELL_KINDS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(4, 3), (1, 3), (3,)], ids=str)
def test_cells(kind, bias, shape):
    """Cells without a momentum are torch's cells, in results, gradients, names and initial values."""
    net, ref = pair(CELL_KINDS, kind, 3, 5, bias=bias, dtype=F64)
    assert list(net.state_dict()) == list(ref.state_dict())
    assert_equal([*net.parameters()], [*ref.parameters()])
    x = torch.randn(shape, dtype=F64, requires_grad=True)
    hx = [torch.randn(*shape[:-1], 5, dtype=F64, requires_grad=True) for _ in range(net.cell.states)]
    for states in ([], [tuple(hx) if kind == "lstm" else hx[0]]):
        got, want = net(x, *states), ref(x, *states)
        assert type(got) is type(want)
        assert_same(got, want)
        inputs = [x, *(hx if states else [])]
        assert_same(
            gradients(got, [*inputs, *net.parameters()]), gradients(want, [*inputs, *ref.parameters()])
        )


@pytest.mark.parametrize("kind", CELL_KINDS)
def test_cell_with_momentum_warns_of_torchs_hx(kind):
    """Torch's hx can't carry a momentum, and the cell says so; None and a State pass in silence."""
    ours, _, chosen = CELL_KINDS[kind]
    cell, x = ours(3, 5, **chosen, momentum=mr.HeavyBall(mu=0.9)), torch.randn(2, 3)
    hx = cell(x)
    cell(x, cell.initial_state(2))
    with pytest.warns(UserWarning, match=f"{ours.__name__} was given torch's hx, .*carry_momentum=True"):
        cell(x, hx)


# The paper's names


def test_public_names():
    """All layers, momenta and the thirty names of the paper are public, and every public name exists."""
    layers = {"LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell", "Recurrent", "State", "Cell"}
    momenta = {"Momentum", "HeavyBall", "Nesterov", "ScheduledRestart", "Adam", "RMSProp"}
    spelled = [case.values[0] for case in SPELLINGS]
    assert len(set(spelled)) == 30
    assert layers | momenta | {*spelled} <= set(mr.__all__)
    assert all(hasattr(mr, name) for name in mr.__all__)


@pytest.mark.parametrize(("name", "kind", "momentum"), SPELLINGS)
def test_names_are_layers_with_momentum(name, kind, momentum):
    """A paper's name is its layer with its momentum; s spells step; positions and options pass through."""
    make = getattr(mr, name)
    rates = {f: 0.25 for f in inspect.signature(momentum).parameters if f in ("mu", "step", "beta")}
    torch.manual_seed(1)
    net = make(3, 5, **rates, bias=False)
    torch.manual_seed(1)
    want = kind(3, 5, momentum=momentum(**rates), bias=False)
    assert type(net) is kind
    assert repr(net) == repr(want)
    x = torch.randn(2, 3) if name.endswith("Cell") else torch.randn(4, 2, 3)
    assert_equal(net(x), want(x))
    assert make(3, 5, s=0.5).momentum == make(3, 5, step=0.5).momentum == momentum(step=0.5)
    assert make(3, 5).momentum == momentum()

    parameters = inspect.signature(make).parameters
    fields = list(inspect.signature(momentum).parameters)
    assert [*parameters][:2] == ["input_size", "hidden_size"]
    assert all(parameters[f].kind is inspect.Parameter.KEYWORD_ONLY for f in fields)
    assert "momentum" not in parameters
    assert make.__name__ == name


def test_name_of_the_readme():
    net = mr.MomentumLSTM(10, 20, mu=0.6, step=1.0)
    torch.manual_seed(0)
    same = mr.LSTM(10, 20, momentum=mr.HeavyBall(mu=0.6, step=1.0))
    x = torch.randn(7, 2, 10)
    torch.manual_seed(0)
    assert_equal(mr.MomentumLSTM(10, 20, mu=0.6, s=1.0)(x), same(x))
    assert repr(net) == repr(same)
    assert "mu" in inspect.signature(mr.MomentumLSTM).parameters
    assert mr.SRLSTM(3, 5, F=7, s=2.0).momentum == mr.ScheduledRestart(every=7, step=2.0)


# Copies, dtypes, devices


def saved(net):
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net)), saved])
@pytest.mark.parametrize("make", [mr.MomentumLSTM, mr.SRGRU, mr.AdamRNN, mr.NAGLSTMCell, mr.GRU])
def test_copies(clone, make):
    """A copy is equal, streams alike, and shares nothing."""
    net = make(3, 5)
    other = clone(net)
    x = torch.randn(2, 3) if isinstance(net, mr.LSTMCell) else torch.randn(4, 2, 3)
    want = net(x, net.initial_state(2))
    assert repr(other) == repr(net)
    assert_equal(other(x, other.initial_state(2)), want)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    assert_equal(net(x, net.initial_state(2)), want)


@pytest.mark.parametrize("momentum", SOME)
def test_to_dtype(momentum):
    """`.to` moves weights, states and results alike, there and back."""
    net = layer("lstm", momentum, 3, 5, dtype=F32)
    x = torch.randn(4, 2, 3)
    want = leaves(net(x, net.initial_state(2)))
    net.to(F64)
    got = leaves(net(x.double(), net.initial_state(2)))
    assert {t.dtype for t in got[:-1]} == {F64}
    assert_same(want, got, F32)
    net.float()
    assert_equal(net(x, net.initial_state(2)), want)


@pytest.mark.parametrize("momentum", SOME)
def test_meta_device(momentum):
    """Built without memory, given memory, then weights; shapes come out without either."""
    options = {"num_layers": 2, "dtype": F32}
    net = layer("gru", momentum, 3, 5, device="meta", **options)
    assert all(p.is_meta for p in net.parameters())
    assert net(torch.randn(4, 2, 3, device="meta"))[0].shape == (4, 2, 5)
    ref = layer("gru", momentum, 3, 5, **options)
    net.to_empty(device="cpu").load_state_dict(ref.state_dict())
    x = torch.randn(4, 2, 3)
    assert_equal(net(x), ref(x))
    other = layer("gru", momentum, 3, 5, device="meta", **options)
    other.load_state_dict(ref.state_dict(), assign=True)
    assert_equal(other(x), ref(x))
    torch.manual_seed(3)
    net.to_empty(device="cpu").reset_parameters()
    torch.manual_seed(3)
    assert_equal([*net.parameters()], [*layer("gru", momentum, 3, 5, **options).parameters()])


@pytest.mark.parametrize("make", [mr.MomentumLSTM, mr.MomentumRNNCell])
def test_reset_parameters(make):
    """New draws, uniform within ±1/sqrt(hidden_size)."""
    net = make(3, 64)
    before = [p.clone() for p in net.parameters()]
    net.reset_parameters()
    for old, new in zip(before, net.parameters(), strict=True):
        assert not torch.equal(old, new)
        assert 0.9 / 8 < new.abs().max() <= 1 / 8


def test_flatten_parameters():
    """There to be called, and changes nothing."""
    net, x = mr.LSTM(3, 5, 2, momentum=mr.HeavyBall()), torch.randn(4, 2, 3)
    want = net(x)
    assert net.flatten_parameters() is None
    assert_equal(net(x), want)


# Weights from elsewhere


class Doubled(nn.Module):
    """A parametrisation that counts its evaluations."""

    calls = 0

    def forward(self, w):
        self.calls += 1
        return 2 * w


@pytest.mark.parametrize("momentum", SOME)
@pytest.mark.parametrize("cell", ["lstm", "modrelu"])
@pytest.mark.parametrize(
    ("apply", "name"),
    [
        (orthogonal, "weight_hh_l0"),
        (weight_norm, "weight_hh_l1"),
        (weight_norm, "weight_ih_l0"),
        (lambda net, name: parametrize.register_parametrization(net, name, Doubled()), "bias_ih_l0"),
    ],
    ids=["orthogonal", "norm-hh", "norm-ih", "bias"],
)
def test_parametrised(cell, momentum, apply, name):
    """Results and gradients follow the parametrised weight, not the one beneath it."""
    net = layer(cell, momentum, 3, 5, 2)
    plain = copy.deepcopy(net)
    apply(net, name)
    with torch.no_grad():
        for p in net.parametrizations[name].parameters():
            p.mul_(1.5)
    weights = {n: getattr(net, n) for n in plain.state_dict()}
    x = torch.randn(4, 2, 3, dtype=F64)
    got, want = net(x), functional_call(plain, weights, (x,))
    assert_same(got, want)
    inputs = list(net.parameters())
    assert_same(gradients(got, inputs), gradients(want, inputs))
    # orthogonal ignores the scale of what is beneath it; the others must not be the plain layer.
    assert apply is orthogonal or difference(got[0], plain(x)[0]) > 1e-3
    if apply is orthogonal:
        w = net.weight_hh_l0
        assert_same(w.T @ w, torch.eye(5, dtype=F64))


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("momentum", SOME)
def test_parametrisation_runs_once_a_forward(backend, momentum):
    net, count = layer("gru", momentum, 3, 5, backend=backend), Doubled()
    parametrize.register_parametrization(net, "weight_hh_l0", count)
    x = torch.randn(4, 2, 3, dtype=F64)
    state = net.initial_state(2)
    count.calls = 0
    net(x)
    net(x, state)
    assert count.calls == 2


@pytest.mark.parametrize("momentum", MOMENTA)
def test_functional_call(momentum):
    """Given weights are used in place of the module's, and receive the gradient."""
    net, other = layer("gru", momentum, 3, 5), layer("gru", momentum, 3, 5)
    x, weights = torch.randn(4, 2, 3, dtype=F64), dict(other.named_parameters())
    got, want = functional_call(net, weights, (x,)), other(x)
    assert_equal(got, want)
    assert_equal(gradients(got, [*weights.values()]), gradients(want, [*other.parameters()]))


@pytest.mark.parametrize("momentum", SOME)
@pytest.mark.parametrize("cell", ["lstm", "gru", "relu"])
def test_vmap_over_models(cell, momentum):
    """An ensemble under vmap, results and gradients, equals the loop over its models."""
    models = [layer(cell, momentum, 3, 5, 2, bidirectional=True) for _ in range(3)]
    weights, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")
    x = torch.randn(4, 2, 3, dtype=F64)

    def out(weights, buffers):
        return functional_call(base, (weights, buffers), (x,))[0]

    assert_same(vmap(out)(weights, buffers), torch.stack([net(x)[0] for net in models]))
    got = vmap(grad(lambda *weights: out(*weights).square().sum()))(weights, buffers)
    for i, net in enumerate(models):
        want = torch.autograd.grad(net(x)[0].square().sum(), [*net.parameters()])
        assert_same([g[i] for g in got.values()], want)


@pytest.mark.parametrize("momentum", MOMENTA)
def test_vmap_over_inputs(momentum):
    """vmap over a further axis of the input is the loop over it."""
    net, x = layer("lstm", momentum, 3, 5), torch.randn(3, 4, 2, 3, dtype=F64)
    assert_same(vmap(lambda x: net(x)[0])(x), torch.stack([net(part)[0] for part in x]))


@pytest.mark.parametrize("momentum", GENTLE)
@pytest.mark.parametrize("kind", KINDS)
def test_double_backward_in_float32(kind, momentum):
    """The gradient of a gradient penalty, though torch's fast paths are for float32."""
    net = gentle(kind, momentum, 3, 5, bidirectional=True, dtype=F32)
    ref = copy.deepcopy(net).double()
    x = torch.randn(4, 2, 3)

    def penalty(net, x):
        x = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(net(x)[0].square().sum(), x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), [*net.parameters()])

    assert_same(penalty(net, x), penalty(ref, x.double()), F32)


# What torch itself warns of when it compiles, and pytest would turn into errors.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("momentum", SOME)
def test_compile(momentum):
    """A compiled model with a layer inside gives the eager results and gradients."""
    torch.compiler.reset()
    model = nn.ModuleList([nn.Linear(3, 3), layer("lstm", momentum, 3, 5, dtype=F32), nn.Linear(5, 1)])

    def forward(x):
        into, rnn, out = model
        y, (h, c) = rnn(into(x).relu())
        return out(y), h, c

    x = torch.randn(4, 2, 3)
    got, want = torch.compile(forward, backend="eager")(x), forward(x)
    assert_same(got, want, F32)
    assert_same(gradients(got, [*model.parameters()]), gradients(want, [*model.parameters()]), F32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("momentum", GENTLE)
def test_autocast(kind, momentum):
    """Under bfloat16 autocast a float32 layer runs and streams, near its float32 results."""
    net, x = gentle(kind, momentum, 3, 5, 2, dtype=F32), torch.randn(6, 2, 3)
    want, final = net(x, net.initial_state(2))
    with torch.autocast("cpu", BF16):
        out, _ = net(x)
        state, outs = net.initial_state(2), []
        for part in x.split(3):
            y, state = net(part, state)
            outs.append(y)
    assert_same(out, want, BF16)
    assert_same(torch.cat(outs), want, BF16)
    assert_same(state.v, final.v, BF16)
    assert state.v.dtype == F32
    loss = out.float().square().sum()
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, [*net.parameters()]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("momentum", GENTLE)
def test_half_precision(kind, momentum):
    """A bfloat16 layer is near the float32 layer of the same weights; its moments are float32."""
    net = gentle(kind, momentum, 3, 5, dtype=BF16)
    ref = copy.deepcopy(net).float()
    x = torch.randn(20, 2, 3, dtype=BF16)
    out, state = net(x, net.initial_state(2))
    want, after = ref(x.float(), ref.initial_state(2))
    assert out.dtype == state.hidden[0].dtype == BF16
    assert state.v.dtype == state.n.dtype == F32
    assert_same(out, want, BF16)
    assert_same((state.v, state.n), (after.v, after.n), BF16)
    assert_same(net(x)[0], want, BF16)


# Training and eval


@pytest.mark.parametrize("momentum", [m for m in SOME if m != "None"])
@pytest.mark.parametrize("cell", ["lstm", "modrelu"])
def test_dropout(cell, momentum):
    """Dropout acts between layers, in training alone, and is repeated by its seed."""
    net = layer(cell, momentum, 3, 5, 2, dropout=0.5)
    bare = layer(cell, momentum, 3, 5, 2)
    bare.load_state_dict(net.state_dict())
    x = torch.randn(6, 2, 3, dtype=F64)
    one, again, other = run(net, x), run(net, x), run(net, x, seed=3)
    assert_equal(one, again)
    assert not torch.equal(one[0], other[0])
    # The first layer's final state comes before any dropout.
    assert torch.equal(one[1][0], other[1][0])
    assert_equal(run(net.eval(), x), run(bare, x))
    assert not torch.equal(run(net.train(), x)[0], run(bare, x)[0])


@pytest.mark.parametrize("momentum", SOME)
def test_backward_in_eval(momentum):
    """Without dropout, eval changes neither results nor gradients."""
    net, x = layer("lstm", momentum, 3, 5, 2), torch.randn(4, 2, 3, dtype=F64)
    want = net(x)
    before = gradients(want, [*net.parameters()])
    got = net.eval()(x)
    assert_equal(got, want)
    assert_equal(gradients(got, [*net.parameters()]), before)


# State


@pytest.fixture
def state():
    """The State of a two-layer LSTM after sequences of 6, 5, 3 and 1 steps."""
    net = mr.LSTM(3, 5, 2, momentum=mr.Adam(beta=0.9))
    x = pack_padded_sequence(torch.randn(6, 4, 3), torch.tensor([6, 5, 3, 1]))
    return net(x, net.initial_state(4))[1]


def test_state_counts_each_row(state):
    assert state.k.tolist() == [[6, 5, 3, 1]] * 2
    assert [t.shape for t in leaves(state)] == [(2, 4, 5), (2, 4, 5), (2, 4, 20), (2, 4, 20), (2, 4)]


def test_state_detach(state):
    """Cut off from the graph, the same in value."""
    assert state.hidden[0].requires_grad
    assert state.v.requires_grad
    assert isinstance(state.detach(), mr.State)
    assert not any(t.requires_grad for t in leaves(state.detach()))
    assert_equal(state.detach(), state)


def test_state_to(state):
    """`to` takes what Tensor.to does; k stays an integer."""
    for moved in (
        state.to(F64),
        state.to("cpu", F64),
        state.to(dtype=F64),
        state.to(torch.zeros(1, dtype=F64)),
    ):
        assert isinstance(moved, mr.State)
        assert [t.dtype for t in leaves(moved)] == [F64] * 4 + [torch.int64]
        assert_same(moved, state, F32)
    assert {t.device.type for t in leaves(state.to("meta"))} == {"meta"}


@pytest.mark.parametrize(
    ("rows", "indices"),
    [
        ([2, 0], [2, 0]),
        ((2, 0), [2, 0]),
        (range(1, 3), [1, 2]),
        (torch.tensor([3, 3, 1]), [3, 3, 1]),
        (torch.tensor([True, False, False, True]), [0, 3]),
        ([True, False, False, True], [0, 3]),
        (slice(1, None), [1, 2, 3]),
        (slice(None, None, 2), [0, 2]),
    ],
    ids=["list", "tuple", "range", "tensor", "mask", "list-mask", "slice", "strided"],
)
def test_state_select(state, rows, indices):
    """The chosen rows of every tensor, k among them."""
    chosen = state.select(rows)
    assert isinstance(chosen, mr.State)
    assert_equal(chosen, [t[:, indices] for t in state])


def test_state_is_a_pytree(state):
    """tree_map gives a State, of every tensor; flatten and unflatten are inverses."""
    doubled = pytree.tree_map(lambda t: 2 * t, state)
    assert isinstance(doubled, mr.State)
    assert_equal(doubled, [2 * t for t in leaves(state)])
    flat, shape = pytree.tree_flatten(state)
    assert len(flat) == 5
    assert isinstance(pytree.tree_unflatten(flat, shape), mr.State)


# Backends


def test_explain():
    """The chosen backend, how it evaluates, and of the others why not."""
    x = torch.randn(4, 2, 3)
    filtered = mr.LSTM(3, 5, momentum=mr.HeavyBall(mu=0.6)).explain(x)
    first = "LSTM(3, 5, momentum=HeavyBall(mu=0.6, step=1.0)), torch.float32 on cpu"
    assert filtered.splitlines()[0] == first
    deep = mr.LSTM(3, 5, num_layers=2, bidirectional=True).explain(x)
    assert deep.startswith("LSTM(3, 5, num_layers=2, bidirectional=True), torch.float32 on cpu\n")
    assert "native     runs: torch.lstm, on the filtered input" in filtered
    assert "reference  could:" in filtered
    assert "native     runs: torch.gru" in mr.GRU(3, 5).explain(x)
    assert "written by hand, on the filtered input" in mr.GRU(3, 5, momentum=mr.Nesterov()).explain(x)
    assert "runs: the drive and a recurrence in chunks" in mr.GRU(3, 5, momentum=mr.Adam()).explain(x)
    factored = mr.RNN(3, 5, momentum=mr.Adam(), factored=True).explain(x)
    assert "runs: the drive of all steps, then a recurrence in chunks" in factored
    assert "runs: a recurrence with a backward" in mr.RNN(3, 5, nonlinearity="modrelu").explain(x)
    forced = mr.GRU(3, 5, backend="reference").explain(x)
    assert "native     could: torch.gru" in forced
    assert "reference  runs: the definition" in forced
    refused = mr.Recurrent(Leaky(), 3, 5).explain(x)
    assert refused.startswith("Recurrent(Leaky(leak=0.9), 3, 5), torch.float32 on cpu\n")
    assert "native     can't: Leaky(leak=0.9) has no fused layer in torch" in refused
    assert "reference  runs" in refused
    _, packed = given("unsorted", False, F32)
    assert "native     runs" in mr.GRU(3, 5).explain(packed)


def test_explain_under_vmap():
    net, seen = mr.GRU(3, 5), []
    vmap(lambda x: (seen.append(net.explain(x)), x)[1])(torch.randn(3, 4, 2, 3))
    assert "native     can't: " in seen[0]
    assert "vmap" in seen[0]
    assert "reference  runs" in seen[0]
    strict = mr.GRU(3, 5, backend="native")
    with pytest.raises(RuntimeError, match=r"backend='native' can't run this: .*vmap"):
        vmap(lambda x: strict(x)[0])(torch.randn(3, 4, 2, 3))


# A user's own cell, with a user's own momentum


@dataclass(frozen=True)
class Leaky(mr.Cell):
    """A gated memory m, of which h is a view: two gates, two states."""

    leak: float = 0.9
    gates = 2
    states = 2

    def step(self, v, r, b, state):
        y = v + r if b is None else v + r + b
        g, u = y.chunk(2, -1)
        m = self.leak * g.sigmoid() * state[1] + u.tanh()
        return m.tanh(), m


@pytest.fixture(params=["None", "HeavyBall", "Warmup", "Warmdam"])
def own(request):
    """Makes layers of the user's own cell."""

    def make(*args, **options):
        return mr.Recurrent(Leaky(), *args, momentum=MOMENTA[request.param][0], dtype=F64, **options)

    make.momentum, make.decay = MOMENTA[request.param]
    return make


def data(*shape):
    return torch.randn(*shape, dtype=F64)


@pytest.mark.parametrize("bias", [True, False, "hh"])
def test_own_cell_is_its_loop(own, bias):
    """One layer against a plain loop, from given hidden states."""
    net, x = own(3, 5, bias=bias), data(7, 2, 3)
    h, m = h0, m0 = data(2, 5), data(2, 5)
    W, U = net.weight_ih_l0, net.weight_hh_l0
    b_ih = net.bias_ih_l0 if bias is True else 0
    b_hh = net.bias_hh_l0 if bias else 0
    v = n = torch.zeros(2, 10, dtype=F64)
    outs = []
    for k, x_t in enumerate(x):
        drive = a = x_t @ W.T + b_ih
        if own.momentum is not None:
            drive = v = own.decay(k) * v + own.momentum.step * a
            if own.momentum.beta is not None:
                n = own.momentum.beta * n + (1 - own.momentum.beta) * a**2
                drive = v / (n + own.momentum.eps**2).sqrt()
        g, u = (drive + h @ U.T + b_hh).chunk(2, -1)
        m = 0.9 * g.sigmoid() * m + u.tanh()
        h = m.tanh()
        outs.append(h)
    got, want = net(x, (h0[None], m0[None])), (torch.stack(outs), (h[None], m[None]))
    assert_same(got, want)
    assert_same(gradients(got, [*net.parameters()]), gradients(want, [*net.parameters()]))


def test_own_cell_layouts(own):
    """batch_first, unbatched and packed input give what each sequence gives by itself."""
    net, x, lengths = own(3, 5, 2, bidirectional=True), data(6, 4, 3), [2, 6, 1, 4]
    out, final = net(x)
    first = own(3, 5, 2, bidirectional=True, batch_first=True)
    first.load_state_dict(net.state_dict())
    assert_same(first(x.transpose(0, 1)), (out.transpose(0, 1), final))
    packed, (h, m) = net(pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False))
    padded, _ = pad_packed_sequence(packed)
    for i, steps in enumerate(lengths):
        alone, (h_i, m_i) = net(x[:steps, i])
        assert alone.shape == (steps, 10)
        assert_same((padded[:steps, i], h[:, i], m[:, i]), (alone, h_i, m_i))


def test_own_cell_layers_and_directions(own):
    """A stack is one layer after another; the reverse direction is the layer on the reversed sequence."""
    net, x = own(3, 5, 2, bidirectional=True), data(6, 2, 3)
    want, finals = x, []
    for i in range(2):
        sides = []
        for turn in ("", "_reverse"):
            one = own(want.shape[-1], 5)
            suffix = f"_l{i}{turn}"
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            one.load_state_dict({f"{name}_l0": getattr(net, name + suffix) for name in names})
            y, final = one(want.flip(0) if turn else want)
            sides.append(y.flip(0) if turn else y)
            finals.append(final)
        want = torch.cat(sides, -1)
    assert_same(net(x), (want, tuple(torch.cat(s) for s in zip(*finals, strict=True))))


def test_own_cell_streams(own):
    """A sequence in pieces gives the outputs, states and gradients of the whole; unbatched too."""
    net, batch = own(3, 5, 2), data(7, 2, 3)
    for x, start in ((batch, net.initial_state(2)), (batch[:, 0], net.initial_state())):
        whole = net(x, start)
        state, outs = start, []
        for piece in x.split([1, 4, 2]):
            y, state = net(piece, state)
            outs.append(y)
        got = (torch.cat(outs), state)
        assert_same(got, whole)
        assert_same(gradients(got, [*net.parameters()]), gradients(whole, [*net.parameters()]))
        assert_same(whole[0], net(x)[0])


def test_own_cell_on_native_is_refused(own):
    """By name and reason, at the call; explain says the same."""
    net, x = own(3, 5, backend="native"), data(4, 2, 3)
    with pytest.raises(RuntimeError, match=r"backend='native' can't run this: .*Leaky\(leak=0\.9\)"):
        net(x)
    assert "Leaky(leak=0.9)" in net.explain(x)
