"""The backend "cuda" on a CPU, where its operator runs the definition; what it serves and refuses."""

from dataclasses import dataclass

import pytest
import torch
from conftest import MOMENTA, assert_oracle, assert_same, begun, gradients, layer, leaf
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._python_dispatch import TorchDispatchMode

import momentumrnn as mr
from momentumrnn.backends import cuda
from momentumrnn.kernels import nvrtc

F64 = torch.float64
LINEAR = [name for name, (m, _) in MOMENTA.items() if m is None or m.linear]
GPU = torch.device("cuda", 7)


@pytest.fixture(autouse=True)
def tables():
    cuda._tables.clear()
    return cuda._tables


@pytest.fixture
def served(monkeypatch):
    """As if the CPU were a GPU with kernels for all dtypes."""

    def machine(device, dtype):
        return ""

    machine._dynamo_marked_constant = cuda._machine._dynamo_marked_constant
    monkeypatch.setattr(cuda, "_machine", machine)


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


@pytest.mark.parametrize("momentum", LINEAR)
@pytest.mark.parametrize("bias", [True, False, "hh"])
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True}, {"num_layers": 2, "dropout": 0.5}]
)
def test_oracle(served, momentum, bias, options):
    net = fused(momentum, bias=bias, **options).eval()
    assert_oracle(net, leaf(5, 3, 3))
    if not net.bidirectional:
        assert_oracle(net, leaf(5, 3, 3), begun(net, [0, 4, 9]))


@pytest.mark.parametrize("momentum", LINEAR)
def test_layouts(served, momentum):
    """batch_first, unbatched and equally long packed input, torch's hx: as the reference."""
    x, hx = leaf(2, 5, 3), (leaf(1, 2, 4), leaf(1, 2, 4))
    results = []
    for backend in ("cuda", "reference"):
        torch.manual_seed(1)
        net = layer("lstm", momentum, 3, 4, batch_first=True, backend=backend)
        packed, final = net(pack_padded_sequence(x, [5, 5], batch_first=True))
        found = net(x, hx), net(x[0]), packed.data, final
        results.append((found, gradients(found, [x, *hx, *net.parameters()])))
    assert_same(*results)


@pytest.mark.parametrize("momentum", LINEAR)
def test_pieces_are_the_whole(served, momentum):
    net, x = fused(momentum), leaf(7, 2, 3)
    whole = net(x, net.initial_state(2))
    state, outs = net.initial_state(2), []
    for piece in x.split([1, 4, 2]):
        y, state = net(piece, state)
        outs.append(y)
    assert_same((torch.cat(outs), state), whole)
    assert_same(gradients((torch.cat(outs), state), [x]), gradients(whole, [x]))
    assert_same(net(x)[0], whole[0])


def test_a_learned_decay(served):
    x, found = leaf(6, 2, 3), []
    for backend in ("cuda", "reference"):
        torch.manual_seed(1)
        p = torch.tensor(0.5, dtype=F64, requires_grad=True)
        net = mr.LSTM(3, 4, momentum=Learned(p), dtype=F64, backend=backend)
        found.append(torch.autograd.grad(net(x)[0].square().sum(), [p, x, *net.parameters()]))

        def loss(p, net=net):
            net.momentum = Learned(p)
            return net(x.detach())[0].square().sum()

        ps = torch.linspace(-1, 1, 3, dtype=F64)
        found[-1] += torch.func.grad(loss)(p.detach()), vmap(torch.func.grad(loss))(ps), vmap(loss)(ps)
    assert_same(*found)


def test_derivatives(served):
    net, x = fused("Nesterov", 2, 2), leaf(3, 2, 2)
    names, weights = zip(*net.named_parameters(), strict=True)

    def function(x, *weights):
        out, final = functional_call(net, dict(zip(names, weights, strict=True)), x)
        return out, *final

    assert gradcheck(function, (x, *weights))
    assert gradgradcheck(function, (x, *weights), fast_mode=True)


def test_a_final_state_may_be_overwritten(served):
    net = fused()
    out, (h, c) = net(leaf(4, 2, 3))
    with torch.no_grad():
        h.zero_(), c.zero_()
    out.sum().backward()


# torch's transforms and modes


class Calls(TorchDispatchMode):
    """Remembers the arguments of our operators."""

    seen = ()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "momentumrnn":
            self.seen += ((function.name(), [t if t is None else len(t) for t in args[-10:-3]]),)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("momentum", ["None", "HeavyBall", "Warmup"])
def test_many_networks_in_one_call(served, momentum):
    """vmap over stacked parameters is one call of replicas, which share the input, forward and backward."""
    nets, x = [fused(momentum) for _ in range(3)], leaf(5, 2, 3).detach()
    stacked, _ = stack_module_state(nets)
    stacked = {name: p.detach() for name, p in stacked.items()}

    def loss(weights):
        out, (h, c) = functional_call(nets[0], weights, (x,))
        return out.square().sum() + h.sum() + c.sin().sum()

    with Calls() as calls:
        got = vmap(torch.func.grad_and_value(loss))(stacked)
    each = [torch.func.grad_and_value(loss)(dict(net.named_parameters())) for net in nets]
    assert_same(got[1], torch.stack([value for _, value in each]))
    for name, g in got[0].items():
        assert_same(g, torch.stack([grads[name] for grads, _ in each]))
    assert [name for name, _ in calls.seen] == ["momentumrnn::lstm", "momentumrnn::lstm_backward"]
    # Under torch.func a user's decay may be a variable of it, so its drive comes from outside.
    x_and_w = [3, None, 3, None] if momentum == "Warmup" else [1, 3, 3, 3]
    assert calls.seen[0][1] == [*x_and_w, 3, 1, 1]


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
    assert cuda._table(mr.HeavyBall(), x).is_contiguous()


def test_one_table_for_many_lengths(served, tables):
    net = fused("ScheduledRestart")
    torch.func.grad(lambda x: net(x)[0].sum())(torch.randn(7, 2, 3, dtype=F64))
    for steps in (5, 6, 7, 8):
        assert_oracle(net, leaf(steps, 2, 3))
        assert cuda._table(net.momentum, leaf(steps, 2, 3)).shape == (steps, 1)
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
@pytest.mark.parametrize("momentum", ["None", "HeavyBall", "ScheduledRestart", "Warmup"])
@pytest.mark.parametrize("streams", [False, True], ids=["hx", "state"])
def test_compiled_in_one_graph(served, momentum, streams):
    torch.compiler.reset()
    net, into = layer("lstm", momentum, 3, 4), nn.Linear(3, 3, dtype=F64)
    x, state = leaf(5, 2, 3), net.initial_state(2) if streams else None

    def forward(x, state):
        out, final = net(into(x), state)
        return out.square(), final

    got, want = torch.compile(forward, fullgraph=True, backend="aot_eager")(x, state), forward(x, state)
    assert type(got[1]) is type(want[1])
    assert_same(got, want)
    inputs = [x, *into.parameters(), *net.parameters()]
    assert_same(gradients(got, inputs), gradients(want, inputs))


# Refusals


def line(net, x):
    """What `explain` says of this backend."""
    return net.explain(x).splitlines()[1]


def changed(name, value):
    net = layer("lstm", "HeavyBall", 3, 4)
    setattr(net, name, nn.Parameter(value))
    return net


X = torch.zeros(5, 2, 3, dtype=F64)
REFUSED = {
    "cell": (lambda: layer("gru", None, 3, 4), X, "GRU has no fused kernels"),
    "like LSTM": (lambda: layer("extrapolated", None, 3, 4), X, "ExtrapolatedLSTM has no fused kernels"),
    "momentum": (lambda: layer("lstm", "Adam", 3, 4), X, "the drive of Adam is not linear"),
    "projection": (lambda: layer("lstm", None, 3, 4, proj_size=2), X, "no projection, proj_size"),
    "packed": (lambda: fused(), pack_padded_sequence(X, [5, 3]), "take sequences of one length"),
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


@pytest.mark.parametrize(("features", "size", "rows"), [(1, 256, 2097151), (1000, 1, 713212)])
def test_the_largest_that_it_serves(served, features, size, rows):
    net = fused("None", features, size, 2)._asked(X)
    assert cuda.supports(net, [rows]) == ""
    assert cuda.supports(net, [rows + 1]) == "the input is too large for indices of 32 bits"


@pytest.mark.parametrize(("features", "size"), [(2, 4), (3, 5)])
def test_weights_of_another_layer(served, features, size):
    weights = dict(fused("None", features, size).named_parameters())
    with pytest.raises(RuntimeError, match=f"3 features and 4 hidden units, got some for {features} and"):
        functional_call(fused("None"), weights, (X,))


def test_what_it_says(served):
    runs = "cuda       runs: fused kernels, 16-bit operands, sums in float32"
    assert line(fused("HeavyBall", 14, 4), X.new_zeros(5, 2, 14)) == runs
    assert (
        line(fused("HeavyBall", 15, 4), X.new_zeros(5, 2, 15))
        == f"{runs}; W x of a wide input by a product of its own"
    )


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
    cuda._lacking.cache_clear()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    monkeypatch.setattr(nvrtc, "missing", lambda: "")
    monkeypatch.setattr(cuda.fused, "check", lambda device: None)
    yield
    cuda._lacking.cache_clear()


def test_a_gpu_that_can(gpu):
    assert cuda._machine(GPU, torch.float32) == ""
    assert cuda._machine(GPU, torch.bfloat16).startswith("the layer is in torch.bfloat16")


@pytest.mark.parametrize(
    ("owner", "name", "value", "reason"),
    [
        (torch.cuda, "get_device_capability", lambda device: (8, 9), "Some GPU is no NVIDIA GPU"),
        (torch.version, "cuda", None, "Some GPU is no NVIDIA GPU"),
        (nvrtc, "missing", lambda: "NVRTC was not found", "NVRTC was not found"),
        (torch, "is_autocast_enabled", lambda kind: kind == "cuda", "autocast is on"),
    ],
)
def test_a_gpu_that_cannot(gpu, monkeypatch, owner, name, value, reason):
    monkeypatch.setattr(owner, name, value)
    assert cuda._machine(GPU, torch.float32).startswith(reason)


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [(False, None, False), (True, "ieee", False), (False, "tf32", True), (True, None, True)],
)
def test_tf32_by_both_of_torchs_ways(gpu, old, new, allowed):
    cudnn = torch.backends.cudnn
    try:
        cudnn.allow_tf32 = old
        if new is not None:
            cudnn.rnn.fp32_precision = new
        off = "torch.backends.cudnn.allow_tf32 is off, and its products have 16-bit operands"
        assert cuda._machine(GPU, torch.float32) == ("" if allowed else off)
    finally:
        cudnn.allow_tf32 = True


def test_a_compiler_that_does_not_know_the_gpu(gpu, monkeypatch):
    """A reason, not a crash in the middle of a forward pass."""

    def unknown(device):
        raise RuntimeError("NVRTC could not compile for sm_999:\nand more")

    monkeypatch.setattr(cuda.fused, "check", unknown)
    assert cuda._machine(GPU, torch.float32) == "NVRTC could not compile for sm_999:"


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
