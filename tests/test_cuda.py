"""The backend "cuda" on a CPU, where its operator runs the definition; what it serves and refuses."""

from dataclasses import dataclass

import pytest
import torch
from conftest import MOMENTA, Warmup, assert_oracle, assert_same, begun, call, gradients, layer, leaf
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._python_dispatch import TorchDispatchMode

import momentumrnn as mr
from momentumrnn import cells
from momentumrnn.backends import cuda
from momentumrnn.kernels import nvrtc, op
from momentumrnn.kernels.sizes import row_tables
from momentumrnn.torch_internals import constant_when_compiled

F64 = torch.float64
LENGTHS = [3, 5, 1, 5]
GPU = torch.device("cuda", 7)


@pytest.fixture(autouse=True)
def tables():
    cuda._decay_tables.clear()
    return cuda._decay_tables


@pytest.fixture(autouse=True)
def tf32():
    """As torch has it, whatever a test does."""
    yield
    torch.backends.cudnn.allow_tf32 = True


@pytest.fixture
def served(monkeypatch):
    """As if the CPU were a GPU with kernels for all dtypes."""

    @constant_when_compiled
    def no_refusal(device, dtype):
        return ""

    monkeypatch.setattr(cuda, "_device_refusal", no_refusal)


def fused(momentum="HeavyBall", *args, **options):
    return layer("lstm", momentum, *(args or (3, 4)), backend="cuda", **options)


@dataclass(frozen=True)
class Learned(mr.Momentum):
    """A decay with a gradient."""

    p: torch.Tensor
    step: float = 0.7

    def decay(self, k):
        return self.p.sigmoid() * k / (k + 1)


# Against the oracle and the reference

over_momenta = pytest.mark.parametrize("momentum", MOMENTA)
STACKS = [{}, {"num_layers": 2, "bidirectional": True}, {"num_layers": 2, "dropout": 0.5}]
over_stacks = pytest.mark.parametrize("options", STACKS, ids=["one", "both ways", "two"])


def both(net, *args):
    """Of the backends cuda and reference the results, and the gradients of all that has one."""
    x, state, lengths = (*args, None, None)[:3]
    hidden = getattr(state, "hidden", state) or ()
    moments = (state.v, state.n) if isinstance(state, mr.State) else ()
    inputs = [t for t in (x, *net.parameters(), *hidden, *moments) if t.requires_grad]
    results = []
    for net.backend in ("cuda", "reference"):
        outputs = call(net, x, state, lengths)
        grads = gradients(outputs, inputs)
        results.append(
            (outputs, [torch.zeros_like(i) if g is None else g for g, i in zip(grads, inputs, strict=True)])
        )
    return results


@over_momenta
@pytest.mark.parametrize("bias", [True, False, "hh"])
@over_stacks
def test_oracle(served, momentum, bias, options):
    net = fused(momentum, bias=bias, **options).eval()
    assert_oracle(net, leaf(5, 3, 3))
    if not net.bidirectional:
        assert_oracle(net, leaf(5, 3, 3), begun(net, [0, 4, 9]))


@over_momenta
@over_stacks
def test_packed(served, momentum, options):
    """Sequences of several lengths; with a State each from a step of its own."""
    net = fused(momentum, **options).eval()
    assert_oracle(net, leaf(5, 4, 3), lengths=LENGTHS)
    if not net.bidirectional:
        assert_oracle(net, leaf(5, 4, 3), begun(net, [7, 0, 4, 2]), LENGTHS)


@over_momenta
def test_layouts(served, momentum):
    """batch_first, unbatched and equally long packed input, torch's hx: as the reference."""
    x, hx = leaf(2, 5, 3), (leaf(1, 2, 4), leaf(1, 2, 4))
    results = []
    for backend in ("cuda", "reference"):
        torch.manual_seed(1)
        net = layer("lstm", momentum, 3, 4, batch_first=True, backend=backend)
        packed, final = net(pack_padded_sequence(x, [5, 5], batch_first=True))
        outputs = net(x, hx), net(x[0]), packed.data, final
        results.append((outputs, gradients(outputs, [x, *hx, *net.parameters()])))
    assert_same(*results)


@over_momenta
@pytest.mark.parametrize("cell", ["lstm", "extrapolated"])
def test_pieces_are_the_whole(served, momentum, cell):
    net, x = layer(cell, momentum, 3, 4, backend="cuda"), leaf(7, 2, 3)
    whole = net(x, net.initial_state(2))
    state, outs = net.initial_state(2), []
    for piece in x.split([1, 4, 2]):
        y, state = net(piece, state)
        outs.append(y)
    assert_same((torch.cat(outs), state), whole)
    assert_same(gradients((torch.cat(outs), state), [x]), gradients(whole, [x]))
    assert_same(net(x)[0], whole[0])


@over_momenta
def test_packed_pieces_are_the_whole(served, momentum):
    """Rows that end stay where they are, and go on from there."""
    net, x = fused(momentum), leaf(8, 4, 3)
    first, state = call(net, x, net.initial_state(4), LENGTHS)
    assert state.k.tolist() == [LENGTHS] * len(state.k)
    rest = torch.stack([x[n : n + 3, b] for b, n in enumerate(LENGTHS)], 1)
    second, after = net(rest, state)
    for b, n in enumerate(LENGTHS):
        y, end = net(x[: n + 3, b : b + 1], net.initial_state(1))
        assert_same((first[:n, b], second[:, b]), (y[:n, 0], y[n:, 0]))
        assert_same(
            [t[:, b] for t in (*after.hidden, after.v, after.n)],
            [t[:, 0] for t in (*end.hidden, end.v, end.n)],
        )


# Extrapolated layers


@over_momenta
@over_stacks
def test_extrapolated(served, momentum, options):
    net = layer("extrapolated", momentum, 3, 4, backend="cuda", **options).eval()
    assert_oracle(net, leaf(5, 4, 3))
    assert_oracle(net, leaf(5, 4, 3), lengths=LENGTHS)


@pytest.mark.parametrize("momentum", ["None", "HeavyBall", "Nesterov", "Adam", "Warmdam"])
@pytest.mark.parametrize("bias", [True, False, "hh"])
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["even", "packed"])
def test_extrapolated_states(served, momentum, bias, lengths):
    """From h, c, z and v in mid-sequence, j and k of each row its own; all come back with their gradients."""
    net, x = layer("extrapolated", momentum, 3, 4, 2, bias=bias), leaf(5, 4, 3)
    state = begun(net, [0, 4, 9, 2])
    j = torch.tensor([0.0, 2.0, 1.0, 2.0], dtype=F64).view(4, 1).expand(2, 4, 1)
    got, want = both(net, x, state._replace(hidden=(*state.hidden[:3], j)), lengths)
    assert_same(got, want)
    ends = [(j + n) % 3 for j, n in zip((0, 2, 1, 2), lengths or [5] * 4, strict=True)]
    assert got[0][1].hidden[3][0, :, 0].tolist() == ends
    got, want = both(net, x, (*state.hidden[:3], j), lengths)
    assert_same(got, want)


# Rates that are learned

ENTRIES = {"one": (), "gate": (4,), "channel": (16,)}
LEARNED = {
    "HeavyBall": lambda mu, step: mr.HeavyBall(mu, step),
    "mu": lambda mu, step: mr.HeavyBall(mu, 0.7),
    "step": lambda mu, step: mr.HeavyBall(0.6, step),
    "ema": lambda mu, step: mr.HeavyBall.ema(mu),
    "Nesterov": lambda mu, step: mr.Nesterov(step),
    "ScheduledRestart": lambda mu, step: mr.ScheduledRestart(3, step),
    "Adam": lambda mu, step: mr.Adam(mu, step, 0.9),
    "Adam-printed": lambda mu, step: mr.Adam(mu, step, 0.9, 0.1, eps_in_sqrt=False),
    "RMSProp": lambda mu, step: mr.RMSProp(step, 0.3),
    "Warmup": lambda mu, step: Warmup(mu, step),
}


def rates(kind, entries):
    """mu from 0.2 to 0.9 and step from 0.5 to 1.5."""
    low, high = (torch.rand(ENTRIES[entries], dtype=F64) for _ in range(2))
    return LEARNED[kind](nn.Parameter(0.2 + 0.7 * low), nn.Parameter(0.5 + high))


@pytest.mark.parametrize("kind", LEARNED)
@pytest.mark.parametrize("entries", ENTRIES)
@pytest.mark.parametrize("cell", ["lstm", "extrapolated"])
def test_learned_rates(served, kind, entries, cell):
    """Even and packed, in a stack and from a State: values, and gradients of the rates too."""
    net = layer(cell, None, 3, 4, 2)
    net.momentum = rates(kind, entries)
    assert {"momentum_mu", "momentum_step"} & dict(net.named_parameters()).keys()
    state = begun(net, [0, 4, 9, 2])
    if cell == "extrapolated":
        state = state._replace(hidden=(*state.hidden[:3], torch.full((2, 4, 1), 2.0, dtype=F64)))
    for lengths in (None, LENGTHS):
        for hx in (None, state):
            got, want = both(net, leaf(5, 4, 3), hx, lengths)
            assert_same(got, want)


@pytest.mark.parametrize("kind", ["HeavyBall", "ema", "Nesterov", "Adam"])
@pytest.mark.parametrize("entries", ENTRIES)
def test_learned_rates_reach_the_operator(served, kind, entries):
    """As its inputs, whose gradients come from one backward, and not as a drive from outside."""
    net, x = fused("None"), leaf(5, 2, 3)
    net.momentum = rates(kind, entries)
    with Calls() as calls:
        net(x)[0].sum().backward()
    assert [name for name, _ in calls.seen] == ["momentumrnn::lstm", "momentumrnn::lstm_backward"]
    inputs = calls.seen[0][1]
    assert (inputs.w_ih, inputs.gain) == (1, 1)
    assert (inputs.mu is None) == (kind == "Nesterov")


def assert_derivatives(net, x):
    """First and second ones, in x and all parameters."""
    names, weights = zip(*net.named_parameters(), strict=True)

    def function(x, *weights):
        out, final = functional_call(net, dict(zip(names, weights, strict=True)), x)
        return out, *final

    assert gradcheck(function, (x, *weights))
    assert gradgradcheck(function, (x, *weights), fast_mode=True)


def test_derivatives_of_learned_rates(served):
    net, x = fused("None", 2, 2), leaf(3, 2, 2)
    step = nn.Parameter(torch.rand(8, dtype=F64) + 0.5)
    net.momentum = mr.Adam(nn.Parameter(torch.rand(4, dtype=F64)), step, 0.8, 0.3)
    assert_derivatives(net, x)
    net.momentum = mr.HeavyBall.ema(nn.Parameter(torch.rand(8, dtype=F64)))
    assert_derivatives(net, x)


def test_a_learned_decay(served):
    x, results = leaf(6, 2, 3), []
    for backend in ("cuda", "reference"):
        torch.manual_seed(1)
        p = torch.tensor(0.5, dtype=F64, requires_grad=True)
        net = mr.LSTM(3, 4, momentum=Learned(p), dtype=F64, backend=backend)
        results.append(torch.autograd.grad(net(x)[0].square().sum(), [p, x, *net.parameters()]))

        def loss(p, net=net):
            net.momentum = Learned(p)
            return net(x.detach())[0].square().sum()

        ps = torch.linspace(-1, 1, 3, dtype=F64)
        results[-1] += torch.func.grad(loss)(p.detach()), vmap(torch.func.grad(loss))(ps), vmap(loss)(ps)
    assert_same(*results)


def test_derivatives(served):
    net, x = fused("Nesterov", 2, 2), leaf(3, 2, 2)
    assert_derivatives(net, x)


def test_a_final_state_may_be_overwritten(served):
    net = fused()
    out, (h, c) = net(leaf(4, 2, 3))
    with torch.no_grad():
        h.zero_(), c.zero_()
    out.sum().backward()


@pytest.mark.parametrize("kind", ["None", "HeavyBall", "Adam"])
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["even", "packed"])
def test_the_output_may_be_overwritten(served, kind, lengths):
    """A backward that needs what was there says so, as with torch's layer."""
    x = leaf(5, 4, 3)
    input = x if lengths is None else pack_padded_sequence(x, lengths, enforce_sorted=False)
    out = fused(kind)(input)[0]
    out = out if lengths is None else out.data
    out.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


# torch's transforms and modes


class Calls(TorchDispatchMode):
    """Remembers of the calls of our operators the leading axes of their inputs."""

    seen = ()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "momentumrnn":
            inputs = op.Inputs(*args[-len(op.Inputs._fields) - 1 : -1])
            leading = [len(t) if isinstance(t, torch.Tensor) else t for t in inputs]
            self.seen += ((function.name(), op.Inputs(*leading)),)
        return function(*args, **(kwargs or {}))


def learned_adam():
    net = fused("None")
    net.momentum = rates("Adam", "channel")
    return net


MANY = {name: lambda name=name: fused(name) for name in ("None", "HeavyBall", "Warmup", "Adam", "RMSProp")}
MANY["learned"] = learned_adam
MANY["extrapolated"] = lambda: layer("extrapolated", "HeavyBall", 3, 4, backend="cuda")


@pytest.mark.parametrize("kind", MANY)
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["even", "packed"])
def test_many_networks_in_one_call(served, kind, lengths):
    """vmap over stacked parameters is one call of replicas, which share the input, forward and backward."""
    nets, x = [MANY[kind]() for _ in range(3)], leaf(5, 4, 3).detach()
    stacked, _ = stack_module_state(nets)
    stacked = {name: p.detach() for name, p in stacked.items()}
    input = x if lengths is None else pack_padded_sequence(x, lengths, enforce_sorted=False)

    def loss(weights):
        out, (h, c, *_) = functional_call(nets[0], weights, (input,))
        out = out if lengths is None else out.data
        return out.square().sum() + h.sum() + c.sin().sum()

    with Calls() as calls:
        got = vmap(torch.func.grad_and_value(loss))(stacked)
    alone = [torch.func.grad_and_value(loss)(dict(net.named_parameters())) for net in nets]
    assert_same(got[1], torch.stack([value for _, value in alone]))
    for name, g in got[0].items():
        assert_same(g, torch.stack([grads[name] for grads, _ in alone]))
    assert [name for name, _ in calls.seen] == ["momentumrnn::lstm", "momentumrnn::lstm_backward"]
    # Under torch.func a user's decay may be a variable of it, so its drive comes from outside.
    x_and_w = [3, None, 3, None] if kind == "Warmup" else [1, 3, 3, 3]
    inputs = calls.seen[0][1]
    assert list(inputs[:7]) == [*x_and_w, 3, 1, 1]
    assert (inputs.mu, inputs.gain) == ((3, 3) if kind == "learned" else (None, None))


@over_momenta
@pytest.mark.parametrize("cell", ["lstm", "extrapolated"])
def test_many_states(served, momentum, cell):
    """vmap over States, each at steps of its own, as the reference."""
    results, x = [], leaf(5, 2, 3)
    for backend in ("cuda", "reference"):
        torch.manual_seed(1)
        net = layer(cell, momentum, 3, 4, backend=backend)
        states = [begun(net, [0, 4]), begun(net, [3, 7])]
        states = [
            s._replace(hidden=(*s.hidden[:2], *(h.detach().abs() % 3 for h in s.hidden[2:]))) for s in states
        ]
        stacked = [torch.stack(parts) for parts in zip(*states, strict=True)]

        def run(*parts, net=net):
            out, after = net(x, mr.State(parts))
            return out, *after[:-1]

        outputs = vmap(run)(*stacked)
        results.append((outputs, gradients(outputs, [x, *net.parameters()])))
        assert_same([f[1] for f in outputs], run(*(part[1] for part in stacked)))
    assert_same(*results)


@pytest.mark.parametrize(
    "mode", [torch.inference_mode, torch.no_grad, FakeTensorMode, Calls, lambda: torch.device("meta")]
)
def test_decays_are_remembered_as_plain_tensors(served, tables, mode):
    """Whatever torch was doing when they were first needed."""
    net, x = fused("Nesterov"), torch.randn(5, 2, 3, dtype=F64)
    with mode():
        if mode is FakeTensorMode:
            net, x = fused("Nesterov"), torch.empty(5, 2, 3, dtype=F64)
        net(x)
    net = fused("Nesterov")
    assert_oracle(net, leaf(5, 2, 3))
    assert all(type(t) is torch.Tensor and t.device.type == "cpu" for t in tables.values())
    # Kernels know no strides.
    assert cuda._decays_from_table(mr.HeavyBall(), 5, x).is_contiguous()


def test_one_table_for_many_lengths(served, tables):
    net = fused("ScheduledRestart")
    torch.func.grad(lambda x: net(x)[0].sum())(torch.randn(7, 2, 3, dtype=F64))
    for steps in (5, 6, 7, 8):
        assert_oracle(net, leaf(steps, 2, 3))
        assert cuda._decays_from_table(net.momentum, steps, leaf(steps, 2, 3)).shape == (steps, 1)
    ((key, table),) = tables.items()
    assert key[1] == len(table) == 8
    assert_oracle(fused("ScheduledRestart"), leaf(1, 2, 3))
    assert len(tables) == 2


def test_a_users_decay_is_asked_each_time(served):
    current = [0.5]

    class Anneal(mr.Momentum):
        def decay(self, k):
            return current[0]

    net, x = fused(), torch.randn(4, 2, 3, dtype=F64)
    for current[0] in (0.5, 0.25):
        net.momentum = Anneal()
        got, net.momentum = net(x), mr.HeavyBall(mu=current[0])
        assert_same(got, net(x))


# What torch itself warns of when it compiles, and pytest would turn into errors.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    "momentum", ["None", "HeavyBall", "ScheduledRestart", "Adam", "RMSProp", "Warmup", "learned", "ema"]
)
@pytest.mark.parametrize("streams", [False, True], ids=["hx", "state"])
@pytest.mark.parametrize("cell", ["lstm", "extrapolated"])
def test_compiled_in_one_graph(served, momentum, streams, cell):
    torch.compiler.reset()
    learned = {"learned": "Adam", "ema": "ema"}.get(momentum)
    net, into = layer(cell, "None" if learned else momentum, 3, 4), nn.Linear(3, 3, dtype=F64)
    if learned:
        net.momentum = rates(learned, "gate")
    x, state = leaf(5, 2, 3), net.initial_state(2) if streams else None

    def forward(x, state):
        out, final = net(into(x), state)
        return out.square(), final

    got, want = torch.compile(forward, fullgraph=True, backend="aot_eager")(x, state), forward(x, state)
    assert type(got[1]) is type(want[1])
    assert_same(got, want)
    inputs = [x, *into.parameters(), *net.parameters()]
    assert_same(gradients(got, inputs), gradients(want, inputs))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_carrying_is_compiled_in_one_graph(served):
    """From None on, through the methods of a State, and from torch's hx."""
    torch.compiler.reset()
    net, x, ends = (
        layer("lstm", "HeavyBall", 3, 4, carry_momentum=True),
        leaf(5, 2, 3),
        torch.tensor([True, False]),
    )

    def forward(x):
        out, state = net(x)
        more, state = net(x, state.reset(ends))
        last, state = net(x, state.hidden)
        return out + more + last, state.detach()

    got, want = torch.compile(forward, fullgraph=True, backend="aot_eager")(x), forward(x)
    assert type(got[1]) is mr.State
    assert_same(got, want)


# Refusals


def line(net, x):
    """What `explain` says of this backend."""
    return net.explain(x).splitlines()[1]


def changed(name, value):
    net = layer("lstm", "HeavyBall", 3, 4)
    setattr(net, name, nn.Parameter(value))
    return net


@dataclass(frozen=True)
class Own(cells.LSTM):
    """A user's, which may have a step of its own."""


X = torch.zeros(5, 2, 3, dtype=F64)
REFUSED = {
    "cell": (lambda: layer("gru", None, 3, 4), X, "GRU has no fused kernels"),
    "like LSTM": (lambda: mr.Recurrent(Own(), 3, 4, dtype=F64), X, "Own has no fused kernels"),
    "projection": (lambda: layer("lstm", None, 3, 4, proj_size=2), X, "no projection, proj_size"),
    "empty": (lambda: fused(), X[:, :0], "the batch is empty"),
    "hidden_size": (
        lambda: fused("None", 1, 257),
        X[..., :1],
        "hidden_size is 257, and its kernels hold 256",
    ),
    "dtype": (lambda: changed("bias_hh_l0", torch.zeros(16)), X, "its weights are not of one dtype"),
    "shape": (lambda: changed("weight_hh_l0", torch.zeros(12, 4, dtype=F64)), X, "in torch's shapes"),
    "device": (
        lambda: changed("weight_hh_l0", torch.zeros(16, 4, dtype=F64, device="meta")),
        X,
        "one device",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(served, case):
    make, x, reason = REFUSED[case]
    net = make()
    assert line(net, x).startswith("cuda       can't: ")
    assert reason in line(net, x)
    net.backend = "cuda"
    with pytest.raises(RuntimeError, match="backend='cuda' can't run this: "):
        net(x)


@pytest.mark.parametrize(("features", "size", "rows"), [(1, 256, 1382796), (1000, 1, 356902)])
def test_the_largest_that_it_serves(served, features, size, rows):
    net = fused("None", features, size, 2)._network_for(X)
    assert cuda.refusal(net, [rows]) == ""
    assert cuda.refusal(net, [rows + 1]) == "the input is too large for indices of 32 bits"


@pytest.mark.parametrize(("features", "size"), [(2, 4), (3, 5)])
def test_weights_of_another_layer(served, features, size):
    weights = dict(fused("None", features, size).named_parameters())
    with pytest.raises(RuntimeError, match=f"3 features and 4 hidden units, got some for {features} and"):
        functional_call(fused("None"), weights, (X,))


RUNS = "cuda       runs: fused kernels, 16-bit operands, sums in float32"
FINE = "cuda       runs: fused kernels, operands in two 16-bit parts, sums in float32"
WIDE = "; W x of a wide input by a product of its own"
GATES = "; the momentum in gate space"


@pytest.mark.parametrize(
    ("momentum", "bias", "fine", "features", "said"),
    [
        (mr.HeavyBall(), True, False, 14, RUNS),
        (mr.HeavyBall(), True, False, 15, RUNS + WIDE),
        (mr.HeavyBall(), "hh", False, 15, RUNS),
        (None, True, False, 15, RUNS),
        (None, True, False, 16, RUNS + WIDE),
        (mr.HeavyBall(), True, True, 6, FINE),
        (mr.HeavyBall(), True, True, 7, FINE + WIDE),
        (None, True, True, 7, FINE),
        (mr.Adam(), True, False, 3, RUNS + GATES),
        (mr.RMSProp(), True, True, 30, FINE + WIDE + GATES),
        (mr.Adam(), True, False, 15, RUNS + GATES),
        (mr.Adam(), True, False, 16, RUNS + WIDE + GATES),
        (Learned(torch.tensor(0.5, requires_grad=True)), True, False, 3, RUNS + "; the drive by torch first"),
        (Learned(torch.tensor(0.5)), True, False, 3, RUNS),
        (mr.HeavyBall(mu=nn.Parameter(torch.tensor(0.5))), True, False, 3, RUNS + GATES),
        (mr.Nesterov(step=nn.Parameter(torch.ones(16))), True, False, 3, RUNS + GATES),
    ],
    ids=str,
)
def test_what_it_says(served, momentum, bias, fine, features, said):
    torch.backends.cudnn.allow_tf32 = not fine
    net = mr.LSTM(features, 4, momentum=momentum, bias=bias, backend="cuda")
    assert line(net, torch.zeros(5, 2, features)) == said
    packed = pack_padded_sequence(torch.zeros(5, 2, features), [5, 2])
    assert line(net, packed) == said
    # In other dtypes there is nothing finer to ask for.
    half = net.half()
    assert line(half, torch.zeros(5, 2, features).half()).startswith(RUNS)


def test_what_it_says_of_other_layers(served):
    assert line(layer("extrapolated", None, 3, 4), X) == RUNS
    assert line(layer("extrapolated", "Adam", 3, 4), X) == RUNS + GATES
    net = fused("None", 3, 8, 2)
    assert line(net, X) == RUNS
    assert line(fused("None", 3, 16, 2), X) == RUNS + WIDE  # the second layer's


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch's own
def test_refused_where_others_can(served, monkeypatch):
    net, seen = layer("lstm", "HeavyBall", 3, 4), []
    torch.func.jvp(lambda x: (seen.append(line(net, x)), net(x)[0])[1], (X,), (X,))
    assert "no derivatives in forward mode" in seen[0]
    monkeypatch.setattr(torch.compiler, "_is_exporting_flag", True)
    assert "torch.export would write an operator" in line(net, X)


def test_no_gpu():
    """Here: then native runs, and says the same as ever."""
    net = mr.LSTM(3, 4, momentum=mr.HeavyBall())
    assert line(net, torch.zeros(5, 2, 3)) == "cuda       can't: the layer is on cpu, not on a CUDA GPU"
    assert "native     runs: " in net.explain(torch.zeros(5, 2, 3))


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that can, as far as torch tells."""
    cuda._gpu_refusal.cache_clear()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    monkeypatch.setattr(nvrtc, "missing", lambda: "")
    monkeypatch.setattr(cuda.launch, "check", lambda device: None)
    yield
    cuda._gpu_refusal.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_gpu_that_can(gpu, dtype):
    assert cuda._device_refusal(GPU, dtype) == ""
    torch.backends.cudnn.allow_tf32 = False
    assert cuda._device_refusal(GPU, dtype) == ""


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_dtypes_without_kernels(gpu, dtype):
    expected = f"the layer is in {dtype}, and its kernels take torch.float32 and 16 bits"
    assert cuda._device_refusal(GPU, dtype) == expected


@pytest.mark.parametrize(
    ("owner", "name", "value", "reason"),
    [
        (torch.cuda, "get_device_capability", lambda device: (8, 9), "Some GPU is no NVIDIA GPU"),
        (torch.version, "cuda", None, "Some GPU is no NVIDIA GPU"),
        (nvrtc, "missing", lambda: "NVRTC was not found", "NVRTC was not found"),
    ],
)
def test_a_gpu_that_cannot(gpu, monkeypatch, owner, name, value, reason):
    monkeypatch.setattr(owner, name, value)
    assert cuda._device_refusal(GPU, torch.float32).startswith(reason)


# float32 that is finer, and 16 bits


class Seen(TorchDispatchMode):
    """Remembers the inputs of our operators, and whether autocast was on."""

    inputs, casts = (), ()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.momentumrnn.lstm.default:
            self.inputs += (op.Inputs(*args[:-1]),)
            self.casts += (torch.is_autocast_enabled("cuda"),)
        return function(*args, **(kwargs or {}))


def operator_inputs(net, x, state=None):
    """The inputs of the operator, of each layer."""
    with Seen() as seen:
        net(x, state)
    assert not any(seen.casts)
    return seen.inputs


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [(False, None, False), (True, "ieee", False), (False, "tf32", True), (True, None, True)],
)
def test_tf32_by_both_of_torchs_ways(served, old, new, allowed):
    """Where it is off, products of float32 are fine; a layer of another dtype has none."""
    cudnn = torch.backends.cudnn
    cudnn.allow_tf32 = old
    if new is not None:
        cudnn.rnn.fp32_precision = new
    for momentum in (None, mr.HeavyBall(), mr.Adam()):
        net = mr.LSTM(3, 4, 2, momentum=momentum, backend="cuda")
        assert [i.fine for i in operator_inputs(net, torch.zeros(5, 2, 3))] == [not allowed] * 2
        assert not any(i.fine for i in operator_inputs(net.half(), torch.zeros(5, 2, 3).half()))


@pytest.fixture
def autocast():
    """What torch.autocast sets on a GPU; on a CPU alone it warns instead."""
    before = torch.get_autocast_dtype("cuda")

    def turn_on(dtype):
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", dtype)

    yield turn_on
    torch.set_autocast_enabled("cuda", False)
    torch.set_autocast_dtype("cuda", before)


SIXTEEN = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
ignore_no_gpu = pytest.mark.filterwarnings("ignore:User provided device_type of .cuda.:UserWarning")


@ignore_no_gpu
@SIXTEEN
@pytest.mark.parametrize("cell", ["lstm", "extrapolated"])
@pytest.mark.parametrize("momentum", ["None", "HeavyBall", "Adam"])
def test_autocast(served, autocast, dtype, cell, momentum):
    """In float32 within; halves come out, as of torch's layer in either dtype, but moments in float32."""
    torch.backends.cudnn.allow_tf32 = False
    net = layer(cell, momentum, 3, 4, dtype=torch.float32, backend="cuda")
    x, state = leaf(5, 2, 3, dtype=torch.float32), net.initial_state(2)
    want = net(x), net(x, state)
    autocast(dtype)
    got = net(x), net(x, state)
    assert torch.is_autocast_enabled("cuda")
    for out, final in got:
        assert {t.dtype for t in (out, *getattr(final, "hidden", final))} == {torch.float16}
    assert got[1][1].v.dtype == got[1][1].n.dtype == torch.float32
    assert_same(got, want, torch.bfloat16)
    assert torch.equal(got[0][0], want[0][0].half())
    inputs = [x, *net.parameters()]
    grads = gradients(got, inputs)
    assert {g.dtype for g in grads} == {torch.float32}
    assert_same(grads, gradients(want, inputs), torch.bfloat16)
    assert [i.fine for i in operator_inputs(net, x)] == [False]
    assert "16-bit operands" in line(net, x)


@ignore_no_gpu
@SIXTEEN
def test_autocast_of_narrow_inputs(served, autocast, dtype):
    """As they come from a layer before this one."""
    net = mr.LSTM(3, 4, 2, momentum=mr.HeavyBall(), bidirectional=True)
    x, hidden = torch.randn(10, 3), [torch.randn(4, 2, 4) for _ in range(2)]
    network = net._network_for(x.view(5, 2, 3))
    autocast(dtype)
    y, final, _ = cuda.run(network, x.to(dtype), [2] * 5, [h.to(dtype) for h in hidden], None)
    assert {t.dtype for t in (y, *final)} == {torch.float16}
    torch.set_autocast_enabled("cuda", False)
    want, want_final, _ = cuda.run(network, x, [2] * 5, hidden, None)
    assert_same((y, final), (want, want_final), torch.bfloat16)


@SIXTEEN
@pytest.mark.parametrize("cell", ["lstm", "extrapolated"])
@pytest.mark.parametrize("momentum", ["None", "HeavyBall", "Adam"])
def test_parameters_of_16_bits(served, dtype, cell, momentum):
    """In float32 from the first to the last step, and rounded once; gradients in the parameters' dtype."""
    net = layer(cell, momentum, 3, 4, dtype=dtype, backend="cuda")
    twin = layer(cell, momentum, 3, 4, dtype=torch.float32, backend="cuda")
    twin.load_state_dict(net.state_dict())
    x = leaf(5, 2, 3, dtype=dtype)
    wide = x.detach().float().requires_grad_()
    for lengths in (None, [5, 3]):
        state, begin = net.initial_state(2), twin.initial_state(2)
        got = call(net, x, lengths=lengths), call(net, x, state, lengths)
        want = call(twin, wide, lengths=lengths), call(twin, wide, begin, lengths)
        assert torch.equal(got[0][0], want[0][0].to(dtype))
        assert torch.equal(got[1][0], want[1][0].to(dtype))
        assert {t.dtype for t in (*got[0][1], *got[1][1].hidden)} == {dtype}
        assert torch.equal(got[1][1].v, want[1][1].v)
        assert torch.equal(got[1][1].n, want[1][1].n)
        inputs = [x, *net.parameters()]
        grads = gradients(got, inputs)
        assert {g.dtype for g in grads} == {dtype}
        assert_same(grads, gradients(want, [wide, *twin.parameters()]), torch.bfloat16)


def test_a_compiler_that_does_not_know_the_gpu(gpu, monkeypatch):
    """A reason, not a crash in the middle of a forward pass."""

    def unknown(device):
        raise RuntimeError("NVRTC could not compile for sm_999:\nand more")

    monkeypatch.setattr(cuda.launch, "check", unknown)
    assert cuda._device_refusal(GPU, torch.float32) == "NVRTC could not compile for sm_999:"


@pytest.mark.parametrize("options", [{"momentum": mr.HeavyBall()}, {"num_layers": 2, "bidirectional": True}])
def test_one_graph_for_all_lengths(served, options):
    """The first length has its own, as torch has it; then the number of steps is a symbol."""
    torch.compiler.reset()
    net, graphs = mr.LSTM(3, 4, **options), []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: net(x)[0], fullgraph=True, backend=count)
    for steps in range(3, 15):
        x = torch.randn(steps, 2, 3)
        assert torch.equal(compiled(x), net(x)[0])
    assert len(graphs) == 2


def test_packed_rows_are_not_captured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="packed sequences can't be captured in a CUDA graph"):
        row_tables([2, 1], GPU)


@pytest.mark.parametrize("size", [3, 7, 32])
def test_rates_of_another_size(served, size):
    """Set past the layer's own check: kernels would read beyond them."""
    net = mr.LSTM(3, 4, momentum=mr.HeavyBall(mu=nn.Parameter(torch.ones(4))), backend="cuda")
    net.momentum_mu = nn.Parameter(torch.ones(size))
    with pytest.raises(ValueError, match=rf"mu should have 1 entry, 4 .* or 16 .*\({size},\)"):
        net(torch.zeros(5, 2, 3))
