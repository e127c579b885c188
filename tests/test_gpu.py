"""Layers on a GPU, on cuDNN and on the fused kernels: parity with float64 on the CPU, no warnings."""

import copy
import warnings

import pytest
import torch
from conftest import CELLS, MOMENTA, NATIVE, TOLERANCE, as_tuple, difference, gradients, layer
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import momentumrnn as mr

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and there is none"),
]


@pytest.fixture(autouse=True, params=[False, True], ids=["float32", "tf32"])
def tf32(request):
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = request.param
    yield request.param
    torch.backends.cudnn.allow_tf32 = before


def tolerance(net, tf32, order=1):
    """Relative to float64 on the CPU."""
    if tf32:
        # Adam without b_ih, whose drive leaps where W x is near 0, was off by 1.15e-2 in a second derivative.
        return (1 if order == 1 else 2) * TOLERANCE["TF32"]
    if net.momentum is None or net.momentum.linear:
        return TOLERANCE["cuDNN"]
    return TOLERANCE["cuDNN, Adam" if order == 1 else "cuDNN, Adam, second derivative"]


# A cell, and a backend that runs it on a GPU.
SERVED = [(cell, "native") for cell in sorted(NATIVE)] + [("lstm", "cuda"), ("extrapolated", "cuda")]
over_served = pytest.mark.parametrize(("cell", "backend"), SERVED)
over_backends = pytest.mark.parametrize("backend", ["native", "cuda"])


def pair(net, backend="auto"):
    """The same layer in float64 on the CPU and in float32 on the GPU.

    On the kernels, whose products are a little shorter, W x + b_ih is away from 0, where Adam's drive leaps.
    """
    if backend == "cuda" and net.momentum is not None and not net.momentum.linear:
        with torch.no_grad():
            for name, p in net.named_parameters():
                if name.startswith("bias_ih"):
                    p.copy_(p.sign() * (2 + p.abs()))
    fast = copy.deepcopy(net).to("cuda", torch.float32)
    fast.backend = backend
    return net, fast


@pytest.mark.parametrize("momentum", MOMENTA)
@over_served
@pytest.mark.parametrize("shape", ["stack", "packed", "state"])
def test_against_float64(momentum, cell, backend, shape, tf32):
    """Outputs, final states and gradients; cuDNN finds its weights in one piece and says nothing."""
    slow, fast = pair(layer(cell, momentum, 5, 37, 2, bidirectional=shape != "state"), backend)
    x = torch.randn(33, 6, 5, dtype=torch.float64)
    results = []
    for net in (slow, fast):
        w = net.weight_ih_l0
        input = x.to(w).requires_grad_()
        sequence, hx = input, None
        if shape == "packed":
            lengths = torch.tensor([33, 4, 17, 1, 33, 8])
            sequence = pack_padded_sequence(input, lengths, enforce_sorted=False)
        if shape == "state":
            hx = net.initial_state(6)
            hx = hx._replace(v=hx.v + 0.5, n=hx.n + 0.5, k=hx.k + torch.arange(6).to(w.device))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            out, final = net(sequence, hx)
        tensors = [out.data if shape == "packed" else out]
        tensors += as_tuple(final) if hx is None else [t for t in final[:-1] if t.numel()]
        grads = gradients([t.cpu() for t in tensors], [input, *net.parameters()])
        results.append([*tensors, *grads])
    # In TF32 a relu near 0 switches sides, and its gradient leaps: there outputs alone are compared.
    count = len(tensors) if tf32 and cell == "relu" else None
    for want, got in zip(results[0][:count], results[1][:count], strict=True):
        assert difference(got.cpu(), want) < tolerance(slow, tf32)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("options", [{}, {"num_layers": 3}, {"bidirectional": True}, {"bias": False}])
def test_plain_is_torch_to_the_bit(kind, options):
    torch.manual_seed(1)
    theirs = getattr(nn, kind)(5, 64, **options).cuda()
    torch.manual_seed(1)
    ours = getattr(mr, kind)(5, 64, **options, backend="native").cuda()
    x = torch.randn(50, 16, 5, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got, want = ours(x), theirs(x)
    assert torch.equal(got[0], want[0])
    for g, w in zip(
        torch.autograd.grad(got[0].sum(), list(ours.parameters())),
        torch.autograd.grad(want[0].sum(), list(theirs.parameters())),
        strict=True,
    ):
        assert torch.equal(g, w)


@pytest.mark.parametrize("momentum", ["None", "HeavyBall", "ScheduledRestart", "Adam"])
@over_served
@pytest.mark.parametrize("bias", [True, "hh"])
def test_gradients_of_gradients(momentum, cell, backend, bias, tf32):
    """cuDNN's own backward can't be differentiated; ours can."""
    slow, fast = pair(layer(cell, momentum, 3, 8, 2, bias=bias, bidirectional=True), backend)
    x = torch.randn(7, 4, 3, dtype=torch.float64)
    results = []
    for net in (slow, fast):
        input = x.to(net.weight_ih_l0).requires_grad_()
        out, _ = net(input)
        (first,) = torch.autograd.grad(out.square().sum(), input, create_graph=True)
        results.append(
            torch.autograd.grad(first.square().sum(), [input, *net.parameters()], allow_unused=True)
        )
    for want, got in zip(*results, strict=True):
        assert (got is None) == (want is None)
        if got is not None:
            assert difference(got.cpu(), want) < tolerance(slow, tf32, order=2)


@over_backends
def test_eval_mode_has_a_backward(backend):
    net = mr.LSTM(3, 16, momentum=mr.HeavyBall(), backend=backend).cuda().eval()
    net(torch.randn(9, 2, 3, device="cuda"))[0].sum().backward()
    assert all(p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("momentum", MOMENTA)
@pytest.mark.parametrize("cell", sorted(CELLS))
def test_auto_takes_the_kernels_where_it_can(cell, momentum):
    net = layer(cell, momentum, 3, 8, dtype=torch.float32).cuda()
    runs = next(line for line in net.explain(torch.zeros(5, 2, 3).cuda()).splitlines() if " runs: " in line)
    assert runs.startswith("cuda ") == (cell in ("lstm", "extrapolated"))


# Without modrelu, which leaps at 0, as rounding will have it.
HALVES = [served for served in SERVED if served[0] != "modrelu"] + [("extrapolated", "reference")]


@pytest.mark.parametrize(("cell", "backend"), HALVES)
@pytest.mark.parametrize("momentum", ["HeavyBall", "Adam"])
def test_half_precision(cell, backend, momentum):
    slow, _ = pair(layer(cell, momentum, 5, 32), backend)
    x = torch.randn(7, 4, 5, dtype=torch.float64)
    want = slow(x)[0]
    for dtype in (torch.float16, torch.bfloat16):
        fast = copy.deepcopy(slow).to("cuda", dtype)
        fast.backend = backend
        assert difference(fast(x.to("cuda", dtype))[0].cpu(), want) < TOLERANCE[torch.bfloat16]
        mixed = copy.deepcopy(slow).to("cuda", torch.float32)
        mixed.backend = backend
        with torch.autocast("cuda", dtype):
            out, _ = mixed(x.to("cuda", torch.float32))
        assert difference(out.cpu(), want) < TOLERANCE[torch.bfloat16]
        out.float().sum().backward()


@pytest.mark.parametrize("momentum", ["None", "HeavyBall", "ScheduledRestart"])
@over_backends
def test_cuda_graph(momentum, backend):
    """A forward and backward pass is captured, so nothing in it waits for the GPU."""
    net = layer("lstm", momentum, 3, 32, dtype=torch.float32, backend=backend).cuda()
    x = torch.randn(20, 4, 3, device="cuda")

    def step():
        for p in net.parameters():
            p.grad = None
        out, _ = net(x)
        out.sum().backward()
        return out, [p.grad for p in net.parameters()]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, grads = step()
    x.copy_(torch.randn_like(x))
    graph.replay()
    eager = copy.deepcopy(net)
    want = eager(x)[0]
    assert difference(out, want) < TOLERANCE["TF32"]
    for got, expected in zip(grads, torch.autograd.grad(want.sum(), list(eager.parameters())), strict=True):
        assert difference(got, expected) < TOLERANCE["TF32"]


@over_backends
def test_memory_is_given_back(backend):
    """Holding a loss after its backward holds no more memory than with torch's layer."""

    def held(net):
        x = torch.randn(200, 32, 8, device="cuda")
        net(x)[0].sum().backward()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        loss = net(x)[0].sum()
        loss.backward()
        return torch.cuda.memory_allocated() - before

    assert (
        held(mr.LSTM(8, 64, momentum=mr.HeavyBall(), backend=backend).cuda())
        <= held(nn.LSTM(8, 64).cuda()) + 2**20
    )
