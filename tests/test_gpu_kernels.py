"""The fused LSTM kernels on a GPU, against the definition in float64. Memory is nan before, see conftest."""

import copy
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from conftest import gradients
from torch import nn

import momentumrnn as mr
from momentumrnn.kernels import fused, op

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and there is none"),
]

# The relative norm of a difference, at most; beside it the largest seen.
NEAR = 1e-3  # 4e-4
TINY = 5e-3  # 1.7e-3: of tensors of a few numbers, in which errors don't average
FADED = 3e-3  # 1.7e-3: of what a gradient leaves after 60 steps, each with the errors of a half


def inputs(T, B, D, H, *, R=1, shared=(), bias=True, momentum="HeavyBall", seed=0):
    """As torch draws weights; `shared`: the names of inputs that all replicas have in common."""
    torch.manual_seed(seed)

    def draw(name, *shape, scale=H**-0.5, normal=False):
        lead = 1 if name in shared else R
        x = torch.randn(lead, *shape) if normal else torch.rand(lead, *shape) * 2 - 1
        return (x * scale).cuda()

    k = torch.arange(T).float().view(T, 1)
    decay = {
        "None": None,
        "HeavyBall": torch.full((T, 1), 0.6),
        "Nesterov": k / (k + 3),
        "rows": torch.rand(T, B) * 0.9,
    }[momentum]
    return [
        draw("x", T, B, D, scale=1, normal=True),
        draw("w_ih", 4 * H, D),
        draw("w_hh", 4 * H, H),
        draw("b_ih", 4 * H) if bias is True else None,
        draw("b_hh", 4 * H) if bias else None,
        draw("h0", B, H, scale=0.5, normal=True),
        draw("c0", B, H, scale=1, normal=True),
        None if decay is None else decay.cuda(),
        1.0 if decay is None else 0.7,
    ]


def exact(args, wants, grads):
    """Outputs and gradients by the definition in float64."""
    leaves = [
        None if t is None else t.double().requires_grad_(w) for t, w in zip(args[:7], wants, strict=True)
    ]
    _, hs, cs = op._run(*leaves, None if args[7] is None else args[7].double(), args[8])
    outputs = torch.stack(hs[1:], 1), hs[-1], cs[-1]
    return outputs, differentiate(outputs, leaves, grads)


def fast(args, wants, grads):
    leaves = [
        None if t is None else t.detach().requires_grad_(w) for t, w in zip(args[:7], wants, strict=True)
    ]
    outputs = op.lstm(*leaves, *args[7:])
    return outputs, differentiate(outputs, leaves, grads)


def differentiate(outputs, leaves, grads):
    given = [(o, g.to(o)) for o, g in zip(outputs, grads, strict=True) if g is not None]
    asked = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
    return torch.autograd.grad([o for o, _ in given], asked, [g for _, g in given])


def error(got, want):
    return ((got.double() - want).norm() / want.norm().clamp_min(1e-30)).item()


def check(args, wants=(True,) * 7, which=(True,) * 3, limit=NEAR, grads=None):
    """Everything the kernels return for these inputs, and gradients of the outputs that are asked for."""
    R = max(len(t) for t in args[:7] if t is not None)
    (T, B), H = args[0].shape[1:3], args[5].shape[2]
    if grads is None:
        shapes = (R, T, B, H), (R, B, H), (R, B, H)
        grads = [torch.randn(s).cuda() if use else None for s, use in zip(shapes, which, strict=True)]
    got, want = fast(args, wants, grads), exact(args, wants, grads)
    for ours, theirs in zip((*got[0], *got[1]), (*want[0], *want[1]), strict=True):
        assert ours.shape == theirs.shape
        assert error(ours, theirs) < limit


@pytest.mark.parametrize("T", [1, 2, 63, 784])
@pytest.mark.parametrize("B", [1, 3, 13, 129])
@pytest.mark.parametrize("H", [1, 7, 84, 127, 190, 255])
def test_odd_sizes(H, B, T):
    """Each size with another input width, momentum and bias."""
    i = H + B + T
    momentum = ["None", "HeavyBall", "rows"][i % 3]
    args = inputs(T, B, [1, 2, 5, 10, 29][i % 5], H, momentum=momentum, bias=[True, "hh"][i % 2], seed=i)
    check(args, limit=NEAR if H > 1 else TINY)


@pytest.mark.parametrize("H", [32, 33, 64, 96, 128, 158, 160, 192, 224, 256])
@pytest.mark.parametrize("D", [1, 3, 8, 13, 129])
def test_widths(D, H):
    """All cluster sizes, inputs projected in the kernel and before it."""
    check(inputs(40, 20, D, H, momentum="Nesterov"))


@pytest.mark.parametrize("bias", [True, False, "hh"])
@pytest.mark.parametrize("momentum", ["None", "HeavyBall", "Nesterov", "rows"])
@pytest.mark.parametrize("D", [2, 40])
def test_biases(D, momentum, bias):
    check(inputs(50, 11, D, 70, momentum=momentum, bias=bias))


@pytest.mark.parametrize("which", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)])
@pytest.mark.parametrize("wanted", range(7))
def test_one_gradient_at_a_time(wanted, which):
    check(inputs(20, 9, 3, 50), wants=[i == wanted for i in range(7)], which=which)


def test_a_given_drive():
    x, _, w_hh, _, b_hh, h0, c0, _, _ = inputs(30, 13, 4 * 100, 100, R=2)
    check([x, None, w_hh, None, b_hh, h0, c0, None, 1.0])


@pytest.mark.parametrize(
    "shared", [(), ("x",), ("x", "h0", "c0"), ("w_hh",), ("w_ih", "b_ih", "b_hh"), ("c0",)]
)
@pytest.mark.parametrize("D", [2, 40])
def test_replicas(D, shared):
    check(inputs(30, 13, D, 100, R=3, shared=shared))


def test_replicas_have_the_bits_of_one():
    """Replicas do not see each other."""
    args = inputs(30, 13, 2, 128, R=3, shared=("x",))
    y, h, c = op.lstm(*args)
    for r in range(3):
        one = [t if t is None or len(t) == 1 else t[r : r + 1] for t in args[:7]]
        for all_, alone in zip((y, h, c), op.lstm(*one, *args[7:]), strict=True):
            assert torch.equal(all_[r : r + 1], alone)


@pytest.mark.parametrize("H", [84, 256])
def test_a_gradient_at_one_unit_of_the_last_step(H):
    """It fades by many powers of two on its way to the first step, and stays right."""
    args = inputs(60, 24, 1, H)
    dy = torch.zeros(1, 60, 24, H)
    dy[:, -1, :, 0] = torch.randn(24)
    check(args, limit=FADED, grads=[dy.cuda(), None, None])


def test_rows_of_very_different_size():
    """Each row has its own scale: a tiny gradient beside a huge one is as exact as alone."""
    args, sizes = inputs(40, 8, 2, 64), torch.logspace(-12, 12, 8).view(8, 1)
    grads = [(torch.randn(1, 40, 8, 64) * sizes).cuda(), None, None]
    (_, got), (_, want) = (f(args, [True, *[False] * 4, True, True], grads) for f in (fast, exact))
    for ours, theirs in zip(got, want, strict=True):
        for b in range(8):
            row = (slice(None), slice(None), b) if ours.dim() == 4 else (slice(None), b)
            assert error(ours[row], theirs[row]) < NEAR


def test_gradients_that_come_in_bursts():
    dy = torch.randn(1, 200, 16, 64) * (torch.rand(1, 200, 1, 1) < 0.05)
    dy = dy * 10.0 ** torch.randint(-8, 4, (1, 200, 1, 1))
    check(inputs(200, 16, 1, 64, momentum="Nesterov"), limit=FADED, grads=[dy.cuda(), None, None])


def test_large_weights():
    """U three times torch's: what rounding does to the forward pass grows, to some 5e-4 of the gradients."""
    args = inputs(60, 16, 1, 128)
    args[2] *= 3
    check(args, limit=FADED)


@pytest.mark.parametrize("spoilt", ["x", "dy"])
def test_a_nan_stays_in_its_row(spoilt):
    args, dy = inputs(20, 16, 2, 64), torch.randn(1, 20, 16, 64).cuda()
    (args[0] if spoilt == "x" else dy)[0, 5, 3] = float("nan")
    (y, *_), (dx, *_) = fast(args, (True,) * 7, [dy, None, None])
    others = [b for b in range(16) if b != 3]
    assert dx[:, :, 3].isnan().any()
    assert y[:, :, others].isfinite().all()
    assert dx[:, :, others].isfinite().all()
    assert y[:, 5:, 3].isnan().all() if spoilt == "x" else y.isfinite().all()


@pytest.mark.parametrize("D", [2, 40])
def test_infinite_inputs(D):
    """They saturate gates, as in the definition."""
    args = inputs(20, 8, D, 64)
    args[0][0, 5, 3, 0], args[0][0, 6, 2, 1] = float("inf"), 3.4e38
    _, hs, cs = op._run(*(t.double() for t in args[:8]), args[8])
    want = torch.stack(hs[1:], 1), hs[-1], cs[-1]
    assert all(error(got, w) < NEAR for got, w in zip(op.lstm(*args), want, strict=True))


def test_writing_to_the_output():
    """It may be written to, and a backward that needs what was there says so, as with torch's layer."""
    net, x = layer(), torch.randn(5, 3, 2).cuda()
    out = net(x)[0]
    out.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_large_and_small_inputs():
    """The range of the input is that of float32, not that of a half."""
    for size in (1e-7, 1e7):
        args = inputs(20, 8, 2, 64)
        args[0] *= size
        args[1] /= size
        check(args)


def test_the_same_inputs_give_the_same_bits():
    args = inputs(100, 40, 2, 190)
    grads = [torch.randn(1, 100, 40, 190).cuda(), None, None]
    first, second = (fast(args, (True,) * 7, grads) for _ in range(2))
    for a, b in zip((*first[0], *first[1]), (*second[0], *second[1]), strict=True):
        assert torch.equal(a, b)


def test_backward_twice():
    """A graph that is retained gives the same gradients again."""
    args = inputs(20, 9, 2, 40)
    leaves = [t.requires_grad_() for t in args[:7]]
    y = op.lstm(*leaves, *args[7:])[0]
    first = torch.autograd.grad(y.sum(), leaves, retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(y.sum(), leaves)))


def test_time_in_chunks(monkeypatch):
    args = inputs(50, 16, 2, 64, R=2)
    monkeypatch.setattr(fused, "CHUNK", 1 << 16)
    assert fused._chunk(fused.Sizes(2, 50, 16, 64, 2, 3)) < 10
    check(args)


@pytest.mark.parametrize("D", [0, 2])
def test_memory_at_odd_places(D):
    """Contiguous, but not from a multiple of 16 bytes on. D = 0: the drive is given."""
    args = inputs(5, 4, D or 4, 8 if D else 1)
    args = [None if t is None else torch.cat([t.new_zeros(1), t.flatten()])[1:].view_as(t) for t in args[:7]]
    if not D:
        args[1] = args[3] = None
    check([*args, None, 1.0], limit=NEAR if D else TINY)


@pytest.mark.parametrize("R", [1, 2])
def test_opcheck(R):
    args = [
        t if not isinstance(t, torch.Tensor) else t.requires_grad_(i < 7)
        for i, t in enumerate(inputs(5, 3, 2, 9, R=R))
    ]
    torch.library.opcheck(op._lstm, (*args, False))


def layer(**options):
    options.setdefault("momentum", mr.HeavyBall(mu=0.6))
    return mr.LSTM(2, 40, backend="cuda", **options).cuda()


@pytest.mark.parametrize("momentum", [None, mr.HeavyBall(), mr.Nesterov(), mr.ScheduledRestart(every=7)])
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True, "bias": "hh"}], ids=str
)
def test_a_module(momentum, options):
    """Against the reference in float64, with torch's hx, all gradients."""
    net = layer(momentum=momentum, **options)
    twin = copy.deepcopy(net).double()
    twin.backend = "reference"
    lead = net.num_layers * (2 if net.bidirectional else 1)
    x, hx = torch.randn(30, 30, 2).cuda(), [torch.randn(lead, 30, 40).cuda() for _ in range(2)]
    results = []
    for module, dtype in ((net, torch.float32), (twin, torch.float64)):
        leaves = [t.to(dtype).requires_grad_() for t in (x, *hx)]
        out = module(leaves[0], tuple(leaves[1:]))
        results.append([out[0], *out[1], *gradients(out, [*leaves, *module.parameters()])])
    for got, want in zip(*results, strict=True):
        assert error(got, want) < NEAR


def test_streaming():
    """Pieces of a sequence with a State are the whole, forward and backward."""
    net, x = layer(), torch.randn(40, 6, 2).cuda()
    whole, end = net(x, net.initial_state(6))
    state, outs = net.initial_state(6), []
    for piece in x.split([1, 13, 26]):
        out, state = net(piece, state)
        outs.append(out)
    assert error(torch.cat(outs), whole.double()) < NEAR
    assert torch.equal(state.k, end.k)
    assert error(state.v, end.v.double()) < NEAR
    sums = torch.cat(outs).sum(), whole.sum()
    got, want = (torch.autograd.grad(s, list(net.parameters())) for s in sums)
    assert all(error(g, w.double()) < NEAR for g, w in zip(got, want, strict=True))


def test_explain():
    net, x = layer(), torch.randn(5, 3, 2).cuda()
    assert "cuda       runs" in net.explain(x)
    torch.backends.cudnn.allow_tf32 = False
    try:
        net.backend = "auto"
        lines = net.explain(x).splitlines()
        assert "TF32" in lines[1] or "tf32" in lines[1]
        assert "native     runs" in lines[2]
    finally:
        torch.backends.cudnn.allow_tf32 = True
    big = mr.LSTM(2, fused.WIDEST + 1).cuda()
    assert "can't" in big.explain(x).splitlines()[1]


def test_vmap_reaches_one_launch(monkeypatch):
    """Stacked parameters: R replicas in one call of the op, outputs and gradients those of each alone."""
    nets = [layer() for _ in range(3)]
    params = {k: torch.stack([dict(n.named_parameters())[k] for n in nets]).detach().requires_grad_()
              for k, _ in nets[0].named_parameters()}  # fmt: skip
    calls, real = [], fused.forward
    monkeypatch.setattr(fused, "forward", lambda *a: calls.append(a[2].shape[0]) or real(*a))
    x = torch.randn(20, 8, 2).cuda()
    out, _ = torch.vmap(lambda p, x: torch.func.functional_call(nets[0], p, (x,)), in_dims=(0, None))(
        params, x
    )
    assert calls == [3]
    grads = torch.autograd.grad(out.square().sum(), list(params.values()))
    for r, net in enumerate(nets):
        alone = net(x)[0]
        assert torch.equal(out[r], alone)
        want = torch.autograd.grad(alone.square().sum(), list(net.parameters()))
        assert all(error(g[r], w.double()) < NEAR for g, w in zip(grads, want, strict=True))


def test_func_grad_under_vmap():
    """Gradients of each replica, as one takes them with torch.func."""
    net, x = layer(), torch.randn(4, 10, 3, 2).cuda()
    params = dict(net.named_parameters())

    def loss(p, x):
        return torch.func.functional_call(net, p, (x,))[0].square().sum()

    each = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(params, x)
    for i in range(4):
        want = torch.autograd.grad(loss(params, x[i]), list(params.values()))
        assert all(error(g[i], w.double()) < NEAR for g, w in zip(each.values(), want, strict=True))


def test_second_derivative():
    """Of the squared gradient, against the reference in float64."""
    net, x = layer(), torch.randn(6, 3, 2).cuda()
    twin = copy.deepcopy(net).double()
    twin.backend = "reference"
    results = []
    for module, dtype in ((net, torch.float32), (twin, torch.float64)):
        z = x.to(dtype).requires_grad_()
        (first,) = torch.autograd.grad(module(z)[0].square().sum(), z, create_graph=True)
        results.append(torch.autograd.grad(first.square().sum(), [z, *module.parameters()]))
    assert all(error(g, w) < 1e-2 for g, w in zip(*results, strict=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own compiler has some
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("momentum", [None, mr.HeavyBall()])
def test_compiles_in_one_graph(momentum):
    net, x = layer(momentum=momentum), torch.randn(20, 8, 2).cuda()
    model = nn.Sequential(nn.Linear(2, 2).cuda(), net)
    compiled = torch.compile(lambda x: model(x)[0].sum(), fullgraph=True)
    want, got = (
        torch.autograd.grad(f(x), list(model.parameters())) for f in (lambda x: model(x)[0].sum(), compiled)
    )
    assert all(error(g, w.double()) < NEAR for g, w in zip(got, want, strict=True))


def test_a_cuda_graph_of_a_training_step():
    """Captured once, replayed on new data: nothing waits for the GPU, and no memory is left over."""
    net, x = layer(), torch.randn(40, 16, 2).cuda()
    twin = copy.deepcopy(net)

    def step(net):
        net.zero_grad()
        out = net(x)[0]
        out.square().sum().backward()
        return out.detach(), [p.grad for p in net.parameters()]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(net)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, grads = step(net)
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        graph.replay()
        want, expected = step(twin)
        assert torch.equal(out, want)
        assert all(map(torch.equal, grads, expected))


def test_no_hidden_synchronisation():
    net, x = layer(), torch.randn(40, 16, 2).cuda()
    net(x)[0].sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is new, and says so
        try:
            torch.cuda.set_sync_debug_mode("error")
            net(x)[0].sum().backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_other_streams_and_threads():
    net, x = layer(), torch.randn(40, 16, 2).cuda()
    with torch.no_grad():
        want = net(x)[0]
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        got = net(x)[0]
        torch.autograd.grad(got.sum(), net.weight_hh_l0)
    torch.cuda.synchronize()
    assert torch.equal(got, want)
    with ThreadPoolExecutor(1) as thread:
        assert torch.equal(thread.submit(net, x).result()[0], want)


def test_autocast_and_16_bits_go_elsewhere():
    net, x = mr.LSTM(2, 40).cuda(), torch.randn(5, 3, 2).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        assert "cuda       can't" in net.explain(x)
        net(x)
    assert "cuda       can't" in net.half().explain(x.half())


STUCK = """
import torch
from momentumrnn.kernels import fused, nvrtc, op
bytes = "expect(received + 8, 8 * WIDTH * 2"
source = fused.source("lstm_forward").replace(bytes, bytes + " + 16")
assert source != fused.source("lstm_forward")
real, fused.source = fused.source, lambda name: source if name == "lstm_forward" else real(name)
x = torch.randn(1, 9, 8, 1).cuda(); H = 64
args = [x, torch.randn(1, 4 * H, 1).cuda(), torch.randn(1, 4 * H, H).cuda(), None, None]
op.lstm(*args, torch.zeros(1, 8, H).cuda(), torch.zeros(1, 8, H).cuda())
torch.cuda.synchronize()
"""


def test_a_stuck_kernel_ends_in_an_error():
    """A barrier that waits for bytes that nobody sends: an error within seconds, not a GPU that hangs."""
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "launch failure" in done.stderr
