"""A momentum whose mu and step are tensors: values, gradients, and what a module owes its parameters."""

import copy
import io
import pickle
from dataclasses import dataclass, replace

import oracle
import pytest
import torch
from conftest import (
    CELLS,
    TOLERANCE,
    Warmup,
    as_torch,
    assert_same,
    assert_single_steps,
    begun,
    call,
    difference,
    gradients,
    leaf,
    leaves,
    serves,
)
from test_gradcheck import check_layer
from torch import nn
from torch.func import functional_call, stack_module_state
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import pack_padded_sequence

import momentumrnn as mr
from momentumrnn.momentum import tensor_fields
from momentumrnn.repr_parser import parse
from momentumrnn.unit_range import bounded

F64 = torch.float64
H = 4
A = torch.ones(2, 1, 4)

# How to make each from mu and step, and what it is to the oracle: its decay, and the rest.
KINDS = {
    "HeavyBall": (mr.HeavyBall, lambda mu, k: mu, {}),
    "Nesterov": (lambda mu, step: mr.Nesterov(step), lambda mu, k: k / (k + 3), {}),
    "ScheduledRestart": (
        lambda mu, step: mr.ScheduledRestart(3, step),
        lambda mu, k: (k % 3) / (k % 3 + 3),
        {},
    ),
    "Adam": (lambda mu, step: mr.Adam(mu, step, beta=0.9), lambda mu, k: mu, {"beta": 0.9}),
    "Adam-printed": (
        lambda mu, step: mr.Adam(mu, step, beta=0.9, eps=0.1, eps_in_sqrt=False),
        lambda mu, k: mu,
        {"beta": 0.9, "eps": 0.1, "printed": True},
    ),
    "RMSProp": (lambda mu, step: mr.RMSProp(step, beta=0.3), lambda mu, k: 0.0, {"beta": 0.3}),
    "Warmup": (Warmup, lambda mu, k: mu * (1 - 0.5**k), {}),
    "ema": (lambda mu, step: mr.HeavyBall.ema(mu), lambda mu, k: mu, {}),
}
# What a tensor has an entry for, and so how many entries, of a cell with so many gates.
ENTRIES = {"one": lambda gates: (), "gate": lambda gates: (gates,), "row": lambda gates: (gates * H,)}


def draw(entries, cell="lstm", low=0.2, high=0.9):
    shape = ENTRIES[entries](CELLS[cell].gates)
    return nn.Parameter(low + (high - low) * torch.rand(shape, dtype=F64))


def make(kind, entries, cell="lstm", *args, **options):
    momentum = KINDS[kind][0](draw(entries, cell), draw(entries, cell, 0.5, 1.5))
    return mr.Recurrent(CELLS[cell], *(args or (3, H)), momentum=momentum, dtype=F64, **options)


def rows(tensor, of):
    """One number for each of `of` gate rows."""
    return tensor.reshape(-1).repeat_interleave(of // tensor.numel())


def assert_oracle(kind, cell, net, x, state=None, lengths=None):
    """Outputs, states, and all gradients, those of mu and step too, are the oracle's."""
    got, (_, decay, rest) = call(net, x, state, lengths), KINDS[kind]
    tensors, wide = tensor_fields(net.momentum), net.cell.gates * net.hidden_size
    mu, step = (rows(tensors[name], wide) if name in tensors else None for name in ("mu", "step"))
    if kind == "ema":
        step = 1 - mu
    out, hidden, (v, n, k) = oracle.run(
        x,
        dict(net.named_parameters()),
        cell=cell,
        settings=vars(net.cell),
        momentum={"decay": lambda k: decay(mu, k), "step": step, **rest},
        factored=net.factored,
        num_layers=net.num_layers,
        bidirectional=net.bidirectional,
        lengths=lengths,
        hidden=None if state is None else state.hidden,
        moments=None
        if state is None
        else (state.v, state.n if state.n.numel() else None, state.k[0].tolist()),
    )
    want = out, as_torch(hidden)
    if state is not None:
        want = out, hidden, v, state.n if n is None else n, torch.tensor(k).expand(state.k.shape)
    assert_same(got, want)
    inputs = [x, *net.parameters(), *([] if state is None else [*state.hidden, state.v])]
    assert_same(gradients(got, inputs), gradients(want, inputs))


@pytest.mark.parametrize("entries", ENTRIES)
@pytest.mark.parametrize(("cell", "backend"), [(cell, b) for cell in CELLS for b in serves(cell)])
@pytest.mark.parametrize("kind", KINDS)
def test_against_the_oracle(kind, cell, backend, entries):
    """From a State whose rows have taken unequal numbers of steps."""
    net = make(kind, entries, cell, backend=backend)
    assert_oracle(kind, cell, net, leaf(9, 3, 3), begun(net, [0, 4, 1]))


@pytest.mark.parametrize("entries", ENTRIES)
@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("kind", ["HeavyBall", "Nesterov", "Adam", "ema"])
@pytest.mark.parametrize(
    ("cell", "options", "lengths"),
    [
        ("lstm", {"num_layers": 2, "bidirectional": True}, [3, 7, 5]),
        ("gru", {"bidirectional": True, "bias": False}, None),
        ("lstm", {"num_layers": 2, "proj_size": 2}, [7, 7, 2]),
        ("modrelu", {"factored": True, "bias": "hh"}, [7, 1, 4]),
        ("tanh", {"factored": "printed"}, None),
    ],
)
def test_options_against_the_oracle(kind, entries, backend, cell, options, lengths):
    net = make(kind, entries, cell, **{"backend": backend, **options})
    assert_oracle(kind, cell, net, leaf(7, 3, 3), lengths=lengths)


def test_against_a_loop():
    """HeavyBall for each row, and Adam for each gate, as one would write them down."""
    x, w = leaf(6, 2, 3), nn.LSTM(3, H, dtype=F64)
    for kind, entries in (("HeavyBall", "row"), ("Adam", "gate")):
        net = make(kind, entries)
        net.load_state_dict(w.state_dict(), strict=False)
        mu, step = (rows(p, 4 * H) for p in (net.momentum_mu, net.momentum_step))
        h = c = v = n = torch.zeros(2, 1, dtype=F64)
        outs = []
        for x_t in x:
            a = x_t @ net.weight_ih_l0.T + net.bias_ih_l0
            v, n = mu * v + step * a, 0.9 * n + 0.1 * a**2
            drive = v if kind == "HeavyBall" else v / (n + 1e-16).sqrt()
            h = h.expand(2, H)
            i, f, g, o = (drive + h @ net.weight_hh_l0.T + net.bias_hh_l0).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outs.append(h)
        inputs, want = [x, *net.parameters()], torch.stack(outs)
        assert_same(net(x)[0], want)
        assert_same(gradients(net(x)[0], inputs), gradients(want, inputs))


@pytest.mark.parametrize("entries", ENTRIES)
@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize(
    ("kind", "cell"), [("HeavyBall", "lstm"), ("Adam", "gru"), ("Warmup", "tanh"), ("ema", "lstm")]
)
def test_derivatives(kind, cell, backend, entries):
    """First and second, against finite differences, in mu and step too."""
    shape, gates = ENTRIES[entries], CELLS[cell].gates
    size = shape(gates) if entries != "row" else (2 * gates,)
    mu, step = (nn.Parameter(0.3 + 0.5 * torch.rand(size, dtype=F64)) for _ in range(2))
    net = mr.Recurrent(CELLS[cell], 2, 2, momentum=KINDS[kind][0](mu, step), dtype=F64, backend=backend)
    check_layer(net, leaf(3, 3, 2), [0, 4, 1])


@pytest.mark.parametrize("entries", ENTRIES)
@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("kind", KINDS)
def test_pieces_are_the_whole(kind, backend, entries):
    net, x = make(kind, entries, "gru", 3, H, 2, backend=backend), leaf(9, 2, 3)
    whole = net(x, net.initial_state(2))
    state, outs = net.initial_state(2), []
    for piece in x.split([1, 5, 3]):
        y, state = net(piece, state)
        outs.append(y)
    pieces, inputs = (torch.cat(outs), state), [x, *net.parameters()]
    assert_same(pieces, whole)
    assert_same(gradients(pieces, inputs), gradients(whole, inputs))


@pytest.mark.parametrize("entries", ENTRIES)
@pytest.mark.parametrize("kind", ["HeavyBall", "Adam", "Warmup"])
def test_a_number_is_the_same_for_all(kind, entries):
    """A tensor of one number everywhere is that number."""
    build, x = KINDS[kind][0], leaf(9, 2, 3)
    for cell in ("lstm", "modrelu"):
        net = make(kind, entries, cell)
        with torch.no_grad():
            net.momentum_mu.fill_(0.6)
            net.momentum_step.fill_(0.7)
        weights = {name: p for name, p in net.named_parameters() if not name.startswith("momentum")}
        plain = mr.Recurrent(CELLS[cell], 3, H, momentum=build(0.6, 0.7), dtype=F64)
        assert_same(net(x), functional_call(plain, weights, (x,)))


@pytest.mark.parametrize("cell", ["lstm", "gru", "modrelu"])
@pytest.mark.parametrize("kind", ["HeavyBall", "Adam"])
def test_single_steps(kind, cell):
    net = make(kind, "row", cell)
    one = mr.RecurrentCell(net.cell, 3, H, momentum=copy.deepcopy(net.momentum), dtype=F64)
    with torch.no_grad():
        one.momentum_mu.zero_()
    assert_single_steps(one, net, leaf(5, 2, 3))
    assert torch.equal(one.momentum_mu, net.momentum_mu)


def test_the_fast_way_stays():
    """One learned decay commutes with W; several don't."""
    x = leaf(5, 2, 3)
    for entries, commutes in (("one", True), ("gate", False), ("row", False)):
        net = make("HeavyBall", entries)
        assert net.momentum.commutes is commutes
        assert ("torch.lstm, on the filtered input" in net.explain(x)) is commutes
        assert net.momentum.linear
        assert not make("Adam", entries).momentum.commutes
    assert make("Nesterov", "one").momentum.commutes
    assert not make("Nesterov", "gate").momentum.commutes


@pytest.mark.parametrize("kind", ["HeavyBall", "Adam"])
@pytest.mark.parametrize("entries", ENTRIES)
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_16_bits(kind, entries, backend):
    """Moments in float32, a gradient in the dtype of the parameter; also under autocast."""
    net, x = make(kind, entries, backend=backend), torch.randn(9, 2, 3).bfloat16().double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(p.bfloat16())
    want = net(x)[0]
    half = copy.deepcopy(net).bfloat16()
    got, state = half(x.bfloat16(), half.initial_state(2))
    assert state.v.dtype == torch.float32
    assert_same(got, want, torch.bfloat16)
    got.sum().backward()
    assert half.momentum_mu.grad.dtype == torch.bfloat16
    assert half.momentum_mu.grad.isfinite().all()
    mixed = copy.deepcopy(net).float()
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(mixed(x.float())[0], want, torch.bfloat16)


# What a module owes its parameters


def test_registered():
    mu, step = nn.Parameter(torch.full((4,), 0.6)), torch.ones(())
    net = mr.LSTM(3, H, 2, bidirectional=True, momentum=mr.HeavyBall(mu=mu, step=step))
    assert net.momentum_mu is mu
    assert dict(net.named_parameters())["momentum_mu"] is mu
    assert net.momentum_step is step
    assert "momentum_step" in dict(net.named_buffers())
    assert "momentum_step" not in dict(net.named_parameters())
    assert {"momentum_mu", "momentum_step"} < set(net.state_dict())
    assert not [n for n in mr.LSTM(3, H, momentum=mr.HeavyBall()).state_dict() if "momentum" in n]
    assert net.momentum == replace(net.momentum, mu=mu)
    net.double()
    assert net.momentum.mu.dtype == net.momentum.step.dtype == F64
    assert net.momentum.step is net.momentum_step
    assert net(leaf(4, 2, 3))[0].dtype == F64
    assert mr.count_parameters(net) == sum(p.numel() for p in net.parameters())
    net.reset_parameters()
    assert torch.equal(mu, torch.full((4,), 0.6).double())


def test_the_papers_names():
    mu, s = nn.Parameter(torch.tensor(0.6)), nn.Parameter(torch.ones(3 * H))
    net = mr.MomentumGRU(3, H, mu=mu, s=s)
    assert net.momentum_mu is mu
    assert net.momentum_step is s
    assert mr.NAGGRUCell(3, H, s=s).momentum_step is s


def test_state_dict():
    x = leaf(6, 2, 3)
    net, other = make("HeavyBall", "row"), make("HeavyBall", "row")
    assert difference(other(x)[0], net(x)[0]) > 1e-3
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    assert_same(other(x), net(x))
    with pytest.raises(RuntimeError, match="momentum_mu"):
        other.load_state_dict(nn.LSTM(3, H).state_dict())
    other.load_state_dict({n: p.clone() * 0.5 for n, p in net.state_dict().items()}, assign=True)
    assert torch.equal(other.momentum.mu, net.momentum_mu * 0.5)
    assert tensor_fields(other.momentum)["mu"] is other.momentum_mu


@pytest.mark.parametrize("way", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
@pytest.mark.parametrize("entries", ENTRIES)
def test_copies(way, entries):
    """A copy has tensors of its own, and listens to these."""
    net, x = make("Adam", entries), leaf(6, 2, 3)
    other = way(net)
    assert other.momentum_mu is not net.momentum_mu
    assert other.momentum.mu is other.momentum_mu
    before = net(x)
    assert_same(other(x), before)
    with torch.no_grad():
        other.momentum_mu.zero_()
    assert_same(net(x), before)
    assert difference(other(x)[0], before[0]) > 1e-3


@pytest.mark.parametrize("kind", ["HeavyBall", "Adam"])
@pytest.mark.parametrize("entries", ENTRIES)
def test_functional_call_and_vmap(kind, entries):
    """Stacked layers, each with its own mu, are these layers; and so are their gradients."""
    nets, x = [make(kind, entries) for _ in range(3)], torch.randn(6, 2, 3, dtype=F64)
    stacked, buffers = stack_module_state(nets)

    def loss(params, buffers):
        return functional_call(nets[0], (params, buffers), (x,))[0].square().sum()

    found = torch.vmap(torch.func.grad(loss))(stacked, buffers)
    assert {"momentum_mu", "momentum_step"} < set(found)
    for i, net in enumerate(nets):
        grads = torch.autograd.grad(net(x)[0].square().sum(), list(net.parameters()))
        names = [name for name, _ in net.named_parameters()]
        assert_same([found[name][i] for name in names], grads)


class Sigmoid(nn.Module):
    def forward(self, x):
        return x.sigmoid()

    def right_inverse(self, y):
        return y.logit()


@pytest.mark.parametrize("kind", ["HeavyBall", "Adam"])
@pytest.mark.parametrize("entries", ENTRIES)
def test_parametrised(kind, entries):
    net, x = make(kind, entries, "gru"), leaf(6, 2, 3)
    want, inner = net(x), net.momentum_mu
    (by_mu,) = gradients(want, [inner])
    factor = by_mu * inner.detach() * (1 - inner.detach())
    parametrize.register_parametrization(net, "momentum_mu", Sigmoid())
    assert_same(net(x), want)
    original = net.parametrizations.momentum_mu.original
    assert original in set(net.parameters())
    assert_same(gradients(net(x), [original]), [factor])
    with torch.no_grad():
        original += 5
    assert (net.momentum.mu < 1).all()
    assert difference(net(x)[0], want[0]) > 1e-3
    twin = copy.deepcopy(net)
    assert_same(twin(x), net(x))


def test_set_later():
    """The new momentum's tensors take the place of the old one's; one that does not fit changes nothing."""
    net, x = make("HeavyBall", "row"), leaf(5, 2, 3)
    with pytest.raises(ValueError, match=r"16 \(for each gate row"):
        net.momentum = mr.HeavyBall(mu=nn.Parameter(torch.ones(3)))
    assert net.momentum_mu.shape == (16,)
    parametrize.register_parametrization(net, "momentum_mu", Sigmoid())
    net.momentum = mr.HeavyBall(mu=0.5)
    assert not [name for name in net.state_dict() if "momentum" in name]
    assert not hasattr(net, "momentum_mu")
    plain = mr.LSTM(3, H, momentum=mr.HeavyBall(mu=0.5), dtype=F64)
    plain.load_state_dict(net.state_dict())
    assert_same(net(x), plain(x))
    step = nn.Parameter(torch.ones(4, dtype=F64))
    net.momentum = mr.Nesterov(step)
    assert net.momentum_step is step
    net.momentum = replace(net.momentum, step=0.5)
    assert net.momentum == mr.Nesterov(0.5)
    net.momentum = None
    assert net.momentum is None


@pytest.mark.parametrize("entries", ENTRIES)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_export(entries, strict):
    """The program has them as parameters: it follows when they move."""
    for kind in ("HeavyBall", "Adam"):
        net, x = make(kind, entries), torch.randn(6, 2, 3, dtype=F64)
        program = torch.export.export(net, (x,), strict=strict).module()
        assert_same(program(x), net(x))
        with torch.no_grad():
            for p in (net.momentum_mu, dict(program.named_parameters())["momentum_mu"]):
                p.fill_(0.1)
        assert_same(program(x), net(x))


# What torch itself warns of when it compiles an autograd function; the second in torch 2.11 alone.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled():
    net, x = make("HeavyBall", "row"), leaf(6, 2, 3)
    fast = torch.compile(net, backend="eager")
    for _ in range(2):
        assert_same(gradients(fast(x), list(net.parameters())), gradients(net(x), list(net.parameters())))
        with torch.no_grad():
            net.momentum_mu.mul_(0.5)


def test_shown_on_one_line():
    net = make("HeavyBall", "row")
    momentum = "HeavyBall(mu=<Parameter (16,)>, step=<Parameter (16,)>)"
    assert repr(net) == f"Recurrent(LSTM(), 3, 4, momentum={momentum})"
    own = make("Warmup", "row")
    assert "Warmup(mu=<Parameter (16,)>, step=<Parameter (16,)>)" in repr(own)
    assert "\n" not in repr(own)
    assert "mu=<Parameter (16,)>" in own.explain(leaf(4, 2, 3)).splitlines()[0]
    assert repr(mr.Nesterov(torch.ones(1))) == "Nesterov(step=<Tensor (1,)>)"
    assert repr(mr.Adam(beta=0.5)) == "Adam(mu=0.6, step=1.0, beta=0.5, eps=1e-08, eps_in_sqrt=True)"


# A user's own


@dataclass(frozen=True)
class Ladder(mr.Momentum):
    """A decay for each gate row that comes from no field."""

    rows: int
    step: float = 0.8
    commutes = False

    def decay(self, k):
        return torch.linspace(0.1, 0.9, self.rows, dtype=F64) * (1 - 0.5 ** (k + 1))


@dataclass(frozen=True)
class Rungs(Ladder):
    """With a second moment, and the same for all steps."""

    beta: float = 0.7
    eps: float = 1e-3

    def decay(self, k):
        return torch.linspace(0.1, 0.9, self.rows, dtype=F64)


@dataclass(frozen=True)
class Undeclared(Ladder):
    commutes = True


@pytest.mark.parametrize("cell", ["lstm", "gru", "modrelu"])
@pytest.mark.parametrize("kind", [Ladder, Rungs])
@pytest.mark.parametrize("per", ["gate", "row"])
def test_a_decay_of_ones_own(cell, kind, per):
    gates = CELLS[cell].gates
    n = gates if per == "gate" else gates * H
    x, found = leaf(9, 3, 3), []
    for backend in ("native", "reference"):
        torch.manual_seed(1)
        net = mr.Recurrent(CELLS[cell], 3, H, momentum=kind(n), dtype=F64, backend=backend)
        result = call(net, x, begun(net, [0, 3, 1]), None)
        found.append([*leaves(result), *gradients(result, [x, *net.parameters()])])
    assert_same(*found)
    packed = pack_padded_sequence(x.detach(), [4, 9, 2], enforce_sorted=False)
    slow = copy.deepcopy(net)
    net.backend = "native"
    assert_same(net(packed), slow(packed))


@pytest.mark.parametrize(
    ("error", "parts", "build"),
    [
        (TypeError, ("mu should be a floating-point", "int64"), lambda: mr.HeavyBall(A[0, 0].long())),
        (TypeError, ("step should be", "complex64"), lambda: mr.Nesterov(torch.ones(4) * 1j)),
        (ValueError, ("Adam: mu should be", "(2, 2)", "(n,)"), lambda: mr.Adam(mu=torch.ones(2, 2))),
        (ValueError, ("step should be", "(0,)"), lambda: mr.RMSProp(step=torch.ones(0))),
        (ValueError, ("Warmup: mu", "(1, 1)"), lambda: Warmup(mu=torch.ones(1, 1))),
        (TypeError, ("beta should be a number", "(3,)"), lambda: mr.Adam(beta=torch.ones(3))),
        (ValueError, ("mu", "(3,)", "4 (for each gate) or 16"), lambda: make_with(torch.ones(3))),
        (ValueError, ("mu", "(2,)", "4 (for each gate) or 16"), lambda: make_with(torch.ones(2))),
        (ValueError, ("mu", "(32,)", "1 entry, 4"), lambda: make_with(torch.ones(32))),
        (ValueError, ("step", "(5,)", "1 entry, 1"), lambda: mr.NAGRNNCell(3, 4, s=torch.ones(5))),
        (ValueError, ("mu", "of its own", "momentum_mu"), lambda: make_with(2 * nn.Parameter(torch.ones(4)))),
        (ValueError, ("Undeclared.decay", "(4, 1, 16)", "commutes = False"), lambda: called(Undeclared(16))),
        (ValueError, ("Ladder.decay", "(4, 1, 7)", "divides 16"), lambda: called(Ladder(7))),
        (ValueError, ("HeavyBall.decay", "(3,)", "divides 4"), lambda: mr.HeavyBall(torch.ones(3))(A)),
        (ValueError, ("Nesterov: step", "(3,)", "the 4"), lambda: mr.Nesterov(torch.ones(3))(A)),
        (RuntimeError, ("momentum_mu", "meta", "cpu"), lambda: called(mr.HeavyBall(A[0, 0].to("meta")))),
        (ValueError, ("mu", "(16, 1)"), lambda: swapped(torch.ones(16, 1, dtype=F64))),
    ],
)  # fmt: skip
def test_errors(error, parts, build):
    with pytest.raises(error) as caught:
        build()
    for part in parts:
        assert part in str(caught.value)


def make_with(mu):
    return mr.LSTM(3, H, momentum=mr.HeavyBall(mu=mu), dtype=F64)


def called(momentum):
    return mr.LSTM(3, H, momentum=momentum, dtype=F64)(leaf(4, 2, 3))


def swapped(mu):
    return functional_call(make_with(torch.ones(16)), {"momentum_mu": mu}, (leaf(4, 2, 3),))


# Learning


@pytest.mark.parametrize("cell", ["lstm", "tanh"])
def test_a_teachers_mu_is_found(cell):
    """Trained on the outputs of a network with other decays, mu comes to these."""
    n = 4
    teacher = mr.Recurrent(CELLS[cell], 3, H, momentum=mr.HeavyBall(torch.tensor([0.9, 0.1, 0.7, 0.3])))
    student = copy.deepcopy(teacher)
    student.requires_grad_(False)
    student.momentum = mr.HeavyBall(nn.Parameter(torch.full((n,), 0.5)))
    optimizer = torch.optim.Adam([student.momentum_mu], lr=0.03)
    x = torch.randn(30, 16, 3)
    with torch.no_grad():
        target = teacher(x)[0]
    for _ in range(150):
        optimizer.zero_grad()
        (student(x)[0] - target).square().mean().backward()
        optimizer.step()
    assert (student.momentum_mu - teacher.momentum_mu).abs().max() < 0.02


# The range of mu

OUTSIDE = torch.tensor([-0.3, 1.2, 0.6, 1.0], dtype=F64)
INSIDE = OUTSIDE.clamp(0, 1)
BOUNDED = {"HeavyBall": mr.HeavyBall, "Adam": mr.Adam, "ema": mr.HeavyBall.ema}


def moved_out(kind, make=mr.LSTM, **options):
    """A layer whose mu an optimiser has moved out of [0, 1], and one whose mu is at the nearest values."""
    nets = []
    for mu in (OUTSIDE, INSIDE):
        torch.manual_seed(1)
        net = make(
            3, H, momentum=BOUNDED[kind](nn.Parameter(torch.full((4,), 0.5, dtype=F64))), dtype=F64, **options
        )
        with torch.no_grad():
            net.momentum_mu.copy_(mu)
        nets.append(net)
    return nets


@pytest.mark.parametrize("kind", BOUNDED)
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_mu_outside_counts_as_the_nearest_value_inside(kind, backend):
    """A Parameter that is trained moves there itself, at once; one that is not stays."""
    net, want = moved_out(kind, backend=backend)
    x = leaf(5, 2, 3)
    net.requires_grad_(False)
    with torch.no_grad():
        assert_same(net(x), want(x))
        stream, expected = mr.Stream(net, 2), want(x)[0]
        assert_same(torch.stack([stream(x_t) for x_t in x]), expected)
    assert torch.equal(net.momentum_mu, OUTSIDE)
    net.requires_grad_()
    version, parameter = net.momentum_mu._version, net.momentum_mu
    assert_same(net(x), want(x))
    assert net.momentum_mu is parameter
    assert torch.equal(net.momentum_mu, INSIDE)
    assert net.momentum_mu._version == version
    # At a bound the gradient is the whole one: what is outside is the optimiser's step alone.
    assert_same(*(gradients(n(x), list(n.parameters())) for n in (net, want)))


@pytest.mark.parametrize("kind", BOUNDED)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_what_is_read_is_inside(kind, mode):
    for read in (
        lambda net: net.momentum.mu,
        lambda net: net.state_dict()["momentum_mu"],
        lambda net: net(torch.ones(1, 1, 3, dtype=F64)) and net.momentum_mu,
        lambda net: mr.Stream(net) and net.momentum_mu,
    ):
        net, _ = moved_out(kind)
        with mode():
            assert torch.equal(read(net), INSIDE)
        assert net.momentum.mu is net.momentum_mu


@pytest.mark.parametrize("kind", BOUNDED)
def test_step_cells_bound_mu_too(kind):
    cell, want = moved_out(kind, mr.LSTMCell)
    x = leaf(2, 3)
    state = want.initial_state(2)
    with torch.no_grad():
        assert_same(cell(x, state), want(x, state))
    assert_same(cell(x, state), want(x, state))
    assert torch.equal(cell.momentum_mu, INSIDE)


def test_two_calls_before_one_backward():
    """The second call writes to a tensor that the graph of the first has saved, and changes nothing there."""
    net, x = moved_out("HeavyBall")[0], leaf(5, 2, 3)
    first, second = net(x)[0], net(x)[0]
    (first + second).sum().backward()
    assert net.momentum_mu.grad.isfinite().all()


@pytest.mark.parametrize("kind", BOUNDED)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize(("start", "bound", "beyond"), [(0.05, 0.0, -1.0), (0.95, 1.0, 2.0)])
def test_an_optimiser_leaves_mu_outside_for_one_step_at_most(kind, optimizer, start, bound, beyond):
    """It neither drifts away nor gets stuck: when the loss turns, mu comes back."""
    mu = nn.Parameter(torch.tensor(start, dtype=F64))
    net = mr.RNN(1, 1, momentum=BOUNDED[kind](mu), dtype=F64)
    optimizer, x = optimizer([mu], lr=0.1), torch.ones(9, 1, 1, dtype=F64)

    def descend(to):
        optimizer.zero_grad()
        used = net._network().momentum.mu  # what a call computes with
        (used - to).abs().sum().backward()
        optimizer.step()
        assert net(x)[0].isfinite().all()
        assert 0 <= mu.item() <= 1  # after a call

    for _ in range(30):
        descend(beyond)
    assert mu.item() == bound
    for _ in range(30):
        descend(0.5)
    assert abs(mu.item() - 0.5) < 0.2


@pytest.mark.parametrize("kind", BOUNDED)
def test_functional_calls_bound_mu_and_write_to_nothing(kind):
    """Under vmap a gradient that leads further out is 0, and one that leads back is whole."""
    net, want = moved_out(kind)
    x = torch.randn(5, 2, 3, dtype=F64)

    def loss(params, sign):
        return sign * functional_call(net, params, (x,))[0].square().sum()

    for sign in (1.0, -1.0):
        inside = {name: p.detach() for name, p in want.named_parameters()}
        stacked = {name: torch.stack([p.detach(), inside[name]]) for name, p in net.named_parameters()}
        found = torch.vmap(torch.func.grad(lambda params, sign=sign: loss(params, sign)))(stacked)
        grad = torch.func.grad(loss)(inside, sign)["momentum_mu"]
        outward = ((OUTSIDE < 0) & (grad > 0)) | ((OUTSIDE > 1) & (grad < 0))
        assert_same(found["momentum_mu"], torch.stack([grad.masked_fill(outward, 0), grad]))
        assert torch.equal(stacked["momentum_mu"][0], OUTSIDE)
        assert torch.equal(net.momentum_mu, OUTSIDE)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled_and_exported_layers_bound_mu():
    for kind in BOUNDED:
        net, want = moved_out(kind)
        x = torch.randn(5, 2, 3, dtype=F64)
        compiled = torch.compile(net, backend="eager")
        assert_same(compiled(x), want(x))
        assert_same(torch.export.export(net, (x,)).module()(x), want(x))


def test_derivatives_of_bounded():
    """First and second; outside, those of functions whose gradient leads back."""
    mu = torch.tensor([0.3, 0.8, 1.3, -0.2], dtype=F64, requires_grad=True)
    weight = torch.tensor([2.0, -3.0, 4.0, -5.0], dtype=F64, requires_grad=True)
    inside = bounded(mu)
    (grad,) = torch.autograd.grad((inside**2 * weight / 2).sum(), mu, create_graph=True)
    assert torch.equal(grad, inside * weight)
    (again,) = torch.autograd.grad(grad.sum(), weight)
    assert torch.equal(again, inside)
    assert torch.equal(bounded(torch.tensor([float("nan")])).isnan(), torch.tensor([True]))


@pytest.mark.parametrize("kind", BOUNDED)
def test_mu_outside_is_named_when_it_is_loaded(kind):
    """An older version may have saved it. Its layer computes with the nearest value."""
    for mu in (INSIDE.clone(), nn.Parameter(INSIDE.clone())):
        net = nn.Sequential(mr.LSTM(3, H, momentum=BOUNDED[kind](mu)))
        state_dict = net.state_dict()
        net.load_state_dict(state_dict)
        state_dict["0.momentum_mu"] = OUTSIDE.clone()
        message = rf"^0\.momentum_mu should have values in \[0, 1\], got {OUTSIDE[0]:.6g}; the layer computes"
        with pytest.warns(UserWarning, match=message) as caught:
            net.load_state_dict(state_dict)
        assert caught[0].filename == __file__
        assert torch.equal(net[0].momentum.mu, INSIDE)


@pytest.mark.parametrize("kind", BOUNDED)
def test_mu_outside_is_named_when_it_is_assigned(kind):
    for value in (1.5, -0.1, float("nan")):
        mu = torch.tensor([0.5, value, 0.5, 0.5])
        with pytest.raises(ValueError, match=rf"momentum: mu should have values in \[0, 1\], got {value}$"):
            mr.LSTM(3, H, momentum=BOUNDED[kind](mu))
        nearest = (
            "$" if value != value else "; the layer computes with the nearest value there"
        )  # nan has none
        with pytest.warns(UserWarning, match=rf"got {value}{nearest}") as caught:
            mr.LSTM(3, H, momentum=BOUNDED[kind](nn.Parameter(mu)))
        assert caught[0].filename == __file__
    for ends in (torch.tensor([0.0, 1.0, 1.0, 0.0]), torch.full((), 2.0, device="meta")):
        mr.LSTM(3, H, momentum=BOUNDED[kind](ends))
    mr.LSTM(3, H, momentum=Warmup(torch.tensor(1.5), 1.0))  # whose decay is not mu


# step = 1 - mu


def test_ema_of_a_number():
    momentum = mr.HeavyBall.ema(0.9)
    assert momentum == mr.HeavyBall(mu=0.9, step=1 - 0.9)
    assert parse(repr(momentum), [mr.HeavyBall]) == momentum
    drive, _ = momentum(torch.ones(400, 1, 1, dtype=F64))
    assert abs(drive[-1].item() - 1) < 1e-12
    for wrong in (1.0, -0.1, 2):
        with pytest.raises(
            ValueError, match=rf"HeavyBall.ema: mu should be a number in \[0, 1\), got {wrong}"
        ):
            mr.HeavyBall.ema(wrong)


@pytest.mark.parametrize("entries", ENTRIES)
def test_ema_of_a_parameter(entries):
    """The step follows mu; there is no tensor for it."""
    mu = draw(entries)
    net = mr.LSTM(3, H, momentum=mr.HeavyBall.ema(mu), dtype=F64)
    assert net.momentum.mu is net.momentum_mu is mu
    assert [name for name in net.state_dict() if "momentum" in name] == ["momentum_mu"]
    two, x = copy.deepcopy(net), leaf(6, 2, 3)
    for value in (0.5, 0.25):
        with torch.no_grad():
            mu.fill_(value)
        two.momentum = mr.HeavyBall(mu=value, step=1 - value)
        assert_same(net(x), two(x))
    drive, _ = net.momentum(torch.ones(99, 1, 4 * H, dtype=F64))
    assert torch.allclose(drive[-1], torch.ones_like(drive[-1]))
    net.momentum = replace(net.momentum, mu=0.5)
    assert net.momentum.step == 0.5
    two.momentum = mr.HeavyBall.ema(0.5)
    assert_same(net(x), two(x))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and there is none")
@pytest.mark.parametrize("entries", ENTRIES)
@pytest.mark.parametrize("backend", ["auto", "native", "reference"])
@pytest.mark.parametrize(("kind", "cell"), [("HeavyBall", "lstm"), ("Adam", "lstm"), ("HeavyBall", "gru")])
def test_on_a_gpu(kind, cell, backend, entries):
    """Outputs and gradients are those of float64 on the CPU.

    Where cuDNN runs it in TF32, the gradient of a single rate was off by 2.6e-2.
    """
    slow = make(kind, entries, cell)
    fast = copy.deepcopy(slow).to("cuda", torch.float32)
    fast.backend = backend
    assert fast.momentum.mu.is_cuda
    x, found = torch.randn(33, 6, 3, dtype=F64), []
    for net in (slow, fast):
        y = net(x.to(net.weight_ih_l0))
        found.append([*leaves(y), *gradients(y, list(net.parameters()))])
    for got, want in zip(found[1], found[0], strict=True):
        assert difference(got.cpu(), want) <= (
            5e-2 if cell == "gru" and got.numel() == 1 else TOLERANCE["TF32"]
        )


def test_equal_momenta():
    """All entries of equal tensors are equal; Python 3.13 alone would refuse to compare them."""
    mu = torch.full((4,), 0.6)
    assert mr.HeavyBall(mu=mu) == mr.HeavyBall(mu=mu) == mr.HeavyBall(mu=mu.clone())
    assert mr.HeavyBall(mu=mu) != mr.HeavyBall(mu=mu + 0.1)
    assert mr.HeavyBall(mu=mu) != mr.HeavyBall(mu=mu[:1])
    assert mr.HeavyBall(mu=mu) != mr.HeavyBall(mu=0.6, step=0.5)
    assert mr.HeavyBall(mu=0.6) == mr.HeavyBall(mu=0.6) != mr.HeavyBall(mu=0.5)
    assert hash(mr.HeavyBall(mu=0.6)) == hash(mr.HeavyBall(mu=0.6))
    assert mr.Nesterov(step=0.6) != mr.RMSProp(step=0.6)

    class Plain(mr.Momentum):
        def decay(self, k):
            return 0.5

    assert (plain := Plain()) == plain != Plain()
