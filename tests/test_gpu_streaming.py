"""Stream on a GPU: its kernel against the definition in float64, and the layer as a CUDA graph."""

import copy

import pytest
import torch
from conftest import CELLS, MOMENTA, TOLERANCE, difference

import momentumrnn as mr
from momentumrnn import stream_engines

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and there is none"),
]

KERNELS = "one kernel launch for each layer, in float32"


def built(momentum="HeavyBall", cell="lstm", D=3, H=20, **options):
    options.setdefault("device", "cuda")
    return mr.Recurrent(CELLS[cell], D, H, momentum=MOMENTA[momentum][0], **options)


def near(got, want, tolerance=TOLERANCE[torch.float32]):
    """Tensors, or States."""
    flat = [list(t) if isinstance(t, mr.State) else [t] for t in (got, want)]
    for ours, theirs in zip(*flat, strict=True):
        assert difference(ours, theirs.to(ours.device)) <= tolerance


def exact(net, xs, state=None):
    """The definition in float64, step by step."""
    double = copy.deepcopy(net).double()
    double.backend = "reference"
    state = double.initial_state(xs.shape[1]) if state is None else state.to(torch.float64)
    with torch.no_grad():
        return double(xs.double(), state)


def check(net, stream, xs, state=None, tolerance=None):
    """Of what torch runs in TF32, or under a drive that leaps where W x + b_ih crosses 0, less is asked."""
    if tolerance is None:
        leaps = net.momentum is not None and not net.momentum.linear
        tolerance = TOLERANCE["cuDNN, Adam" if leaps else torch.float32]
        tolerance = tolerance if stream.description == KERNELS else TOLERANCE["TF32"]
    want, after = exact(net, xs, state)
    near(torch.stack([stream(x) for x in xs]), want, tolerance)
    near(stream.state, after, tolerance)


# ---- the kernel


@pytest.mark.parametrize("bias", [True, False, "hh"])
@pytest.mark.parametrize("momentum", MOMENTA)
def test_momenta(momentum, bias):
    net = built(momentum, D=3, H=32, bias=bias)
    stream = mr.Stream(net, 2)
    assert stream.description == KERNELS
    check(net, stream, torch.randn(12, 2, 3, device="cuda"))


@pytest.mark.parametrize("B", [1, 2, 5, 8, 33])
@pytest.mark.parametrize("H", [1, 7, 32, 158, 256, 300, 1100])
@pytest.mark.parametrize("D", [1, 3, 129])
def test_sizes(D, H, B):
    net = built(["HeavyBall", "Adam", "None", "ScheduledRestart"][(D + H + B) % 4], D=D, H=H)
    stream = mr.Stream(net, B)
    assert stream.description == KERNELS
    check(net, stream, torch.randn(4, B, D, device="cuda"))


def test_many_steps_and_layers():
    net = built("Nesterov", D=10, H=64, num_layers=3)
    check(net, mr.Stream(net, 4), torch.randn(200, 4, 10, device="cuda"), tolerance=1e-3)


def test_one_sequence_and_views():
    net = built(D=8, H=12)
    alone, rows = mr.Stream(net), mr.Stream(net, 1)
    for x in torch.randn(5, 8, device="cuda"):
        assert torch.equal(alone(x), rows(x[None])[0])
    memory = torch.randn(2 * 8 + 1, device="cuda")
    x = memory[1:].view(2, 8)
    first = mr.Stream(net, 2)(x)
    near(first, exact(net, x[None])[0][0])
    assert torch.equal(mr.Stream(net, 2)(x.T.contiguous().T), mr.Stream(net, 2)(x.clone()))


def test_it_is_as_the_layer_computes_in_float32(monkeypatch):
    """Whatever torch's switches for TF32 say, the kernel has none."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    net = built(D=10, H=190)
    xs, state = torch.randn(20, 3, 10, device="cuda"), net.initial_state(3)
    stream = mr.Stream(net, 3)
    with torch.no_grad():
        want, after = net(xs, state)
    near(torch.stack([stream(x) for x in xs]), want, 1e-4)
    near(stream.state, after, 1e-4)


# ---- graphs


@pytest.mark.parametrize("momentum", ["None", "HeavyBall", "Nesterov", "Adam", "Warmup"])
@pytest.mark.parametrize("cell", ["gru", "tanh", "modrelu", "extrapolated"])
def test_graphs_of_other_cells(cell, momentum):
    net = built(momentum, cell, num_layers=2)
    stream = mr.Stream(net, 3)
    assert "as a CUDA graph" in stream.description
    xs = torch.randn(8, 3, 3, device="cuda")
    eager = stream_engines.EagerEngine(stream_engines.one_step(net)[0], net.initial_state(3), (3,))
    for x in xs:
        near(stream(x), eager(x), TOLERANCE["cuDNN, Adam"])
    near(stream.state, eager.state(), TOLERANCE["cuDNN, Adam"])


@pytest.mark.parametrize(
    "options", [{"proj_size": 5}, {"dtype": torch.float64}, {"dtype": torch.bfloat16}, {"backend": "native"}]
)
def test_graphs_of_lstms(options):
    net = built("HeavyBall", **options)
    stream = mr.Stream(net, 2)
    assert "as a CUDA graph" in stream.description
    eager = stream_engines.EagerEngine(stream_engines.one_step(net)[0], net.initial_state(2), (2,))
    for x in torch.randn(5, 2, 3, device="cuda", dtype=options.get("dtype")):
        near(stream(x), eager(x).float(), 1e-2 if options.get("dtype") == torch.bfloat16 else 1e-4)


def test_a_learned_momentum():
    """The kernel has no factors for each channel; a graph reads them where they are."""
    mu = torch.nn.Parameter(torch.rand(4, device="cuda"))
    net = mr.LSTM(3, 20, device="cuda", momentum=mr.HeavyBall(mu=mu))
    stream, xs = mr.Stream(net, 2), torch.randn(5, 2, 3, device="cuda")
    assert "as a CUDA graph" in stream.description
    check(net, stream, xs)
    with torch.no_grad():
        mu.mul_(0.1)
    check(net, stream, xs, stream.state)


def test_what_waits_runs_eagerly():
    """An orthogonal matrix is an exponential, which reads values back; the GPU's generator is left whole."""
    net = mr.orthogonal(mr.RNN(3, 6, nonlinearity="modrelu", bias="hh")).cuda()
    stream = mr.Stream(net, 2)
    assert "no CUDA graph could be made" in stream.description
    torch.randn(2, device="cuda")
    check(net, stream, torch.randn(5, 2, 3, device="cuda"))


def test_hooks_run():
    net, calls = built(), []
    net.register_forward_hook(lambda *_: calls.append(1))
    stream = mr.Stream(net, 2)
    assert "hooks" in stream.description
    stream(torch.randn(2, 3, device="cuda"))
    assert calls == [1]


# ---- both ways


@pytest.fixture(params=["lstm", "gru"])
def way(request):
    """A layer that kernels run, or a graph."""
    return built("Nesterov", request.param, num_layers=2)


def test_changes_in_place(way):
    xs = torch.randn(4, 2, 3, device="cuda")
    stream = mr.Stream(way, 2)
    for x in xs:
        stream(x)
    chosen = stream._engine
    with torch.no_grad():
        for p in way.parameters():
            p.mul_(1.5)
    check(way, stream, xs, stream.state)
    way.load_state_dict({k: 0.5 * p for k, p in way.state_dict().items()})
    check(way, stream, xs, stream.state)
    assert stream._engine is chosen
    way.load_state_dict({k: 2 * p for k, p in way.state_dict().items()}, assign=True)
    check(way, stream, xs, stream.state)
    assert stream._engine is not chosen


def test_a_layer_that_moved(way):
    stream = mr.Stream(way, 2)
    way.cpu()
    with pytest.raises(RuntimeError, match=r"state\[0\] should be on cpu, got cuda:0"):
        stream(torch.randn(2, 3))


@pytest.mark.parametrize("rows", [[0, 3], slice(0, 4, 3), "mask", "tensor"], ids=str)
def test_rows_begin_anew(way, rows):
    known = {
        "mask": torch.tensor([True, False, False, True]).cuda(),
        "tensor": torch.tensor([3, 0]).cuda(),
    }
    rows = known[rows] if isinstance(rows, str) else rows
    stream = mr.Stream(way, 4)
    for x in torch.randn(5, 4, 3, device="cuda"):
        stream(x)
    before = stream.state
    stream.reset(rows)
    assert stream.state.k.tolist() == [[0, 5, 5, 0]] * len(before.k)
    assert stream.state.hidden[0][:, [0, 3]].eq(0).all()
    near(stream.state.select([1, 2]), before.select([1, 2]), 0)
    check(way, stream, torch.randn(3, 4, 3, device="cuda"), stream.state)


def test_outputs_stay(way):
    stream, xs = mr.Stream(way, 2), torch.randn(6, 2, 3, device="cuda")
    got, kept = [], []
    for x in xs:
        got.append(stream(x))
        kept.append(got[-1].clone())
    assert torch.equal(torch.stack(got), torch.stack(kept))
    again = mr.Stream(way, 2)
    for x, y in zip(xs, kept, strict=True):
        assert torch.equal(again(x).mul_(0), 0 * y)  # nor does the state hang on it
    near(again.state, stream.state, 0)


def test_two_streams_of_one_layer(way):
    xs = torch.randn(2, 5, 2, 3, device="cuda")
    first, second = mr.Stream(way, 2), mr.Stream(way, 2)
    got = [(first(a), second(b)) for a, b in zip(*xs, strict=True)]
    for i, x in enumerate(xs):
        near(torch.stack([pair[i] for pair in got]), exact(way, x)[0], TOLERANCE["TF32"])


def test_another_cuda_stream(way):
    """Steps on several CUDA streams, by turns, follow one another."""
    xs = torch.randn(40, 2, 3, device="cuda")
    stream, sides, got = mr.Stream(way, 2), [torch.cuda.Stream() for _ in range(2)], []
    torch.cuda.synchronize()
    for i, x in enumerate(xs):
        with torch.cuda.stream([torch.cuda.default_stream(), *sides][i % 3]):
            got.append(stream(x))
    torch.cuda.synchronize()
    near(torch.stack(got), exact(way, xs)[0], TOLERANCE["TF32"])


def test_it_is_not_captured(way):
    stream, x = mr.Stream(way, 2), torch.randn(2, 3, device="cuda")
    stream(x)
    graph, before = torch.cuda.CUDAGraph(), stream.state
    with torch.cuda.graph(graph):
        with pytest.raises(RuntimeError, match="can't be part of a CUDA graph"):
            stream(x)
        x += 1  # of an empty graph torch warns
    near(stream.state, before, 0)


def test_it_does_not_wait(way):
    """A step never waits for the GPU."""
    stream, x = mr.Stream(way, 2), torch.randn(2, 3, device="cuda")
    mask = torch.tensor([True, False]).cuda()
    with stream_engines._synchronisation_raises():
        stream(x)
        stream.reset(mask)
        stream(x)
