"""The fused LSTM kernels on a GPU, against the definition in float64. Memory is nan before, see conftest."""

import copy
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from conftest import call, gradients, leaves
from torch import nn

import momentumrnn as mr
from momentumrnn import cells
from momentumrnn.kernels import launch, lstm_backward, lstm_by_reference, lstm_forward, nvrtc, op
from momentumrnn.kernels.constants import MAX_HIDDEN
from momentumrnn.kernels.operands import ROWS_OF_PRODUCT
from momentumrnn.kernels.sizes import sizes_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and there is none"),
]

# The relative norm of a difference, at most; beside it the largest seen.
NEAR = 1e-3  # 4e-4
TINY = 5e-3  # 1.7e-3: of tensors of a few numbers, in which errors don't average
FADED = 3e-3  # 1.7e-3: of what a gradient leaves after 60 steps, each with the errors of a half
FINE = 1e-5


def inputs(
    T, B, D, H, *, R=1, shared=(), bias=True, momentum="HeavyBall", learned=False, moments=False, beta=None,
    eps=0.5, printed=False, extrapolated=False, lengths=None, fine=False, seed=0,
):  # fmt: skip
    """As torch draws weights; `shared`: the names of inputs that all replicas have in common.

    With a second moment W x + b_ih stays away from 0, where the drive leaps: its bias is large. So is eps:
    where it is tiny, gradients of the first steps cancel, in float32 too.
    """
    torch.manual_seed(seed)

    def draw(name, *shape, scale=H**-0.5, normal=False, low=None):
        lead = 1 if name in shared else R
        x = torch.randn(lead, *shape) if normal else torch.rand(lead, *shape) * 2 - 1
        x = x * scale if low is None else low + x.abs() * scale
        return x.cuda()

    k = torch.arange(T).float().view(T, 1)
    decay = {
        "None": None,
        "RMSProp": torch.zeros(T, 1),
        "HeavyBall": torch.full((T, 1), 0.6),
        "Nesterov": k / (k + 3),
        "rows": torch.rand(T, B) * 0.9,
    }[momentum]
    found = {
        "x": draw("x", T, B, D, scale=1, normal=True),
        "w_ih": draw("w_ih", 4 * H, D),
        "w_hh": draw("w_hh", 4 * H, H),
        "b_ih": draw("b_ih", 4 * H) if bias is True else None,
        "b_hh": draw("b_hh", 4 * H) if bias else None,
        "h0": draw("h0", B, H, scale=0.5, normal=True),
        "c0": draw("c0", B, H, scale=1, normal=True),
        "decay": None if decay is None else decay.cuda(),
        "step": 1.0 if decay is None else 0.7,
        "fine": fine,
    }
    if learned:
        found |= {"decay": None, "step": 1.0, "mu": draw("mu", 4 * H, low=0.2, scale=0.7)}
        found |= {"gain": draw("gain", 4 * H, low=0.5, scale=1)}
    if beta is not None:
        found |= {"beta": beta, "eps": eps, "eps_in_sqrt": not printed}
        found["w_ih"] *= 0.3 * min(1, (H / D) ** 0.5)
        found["b_ih"] = found["b_ih"].sign() * (1 + draw("b_ih", 4 * H).abs())
    if moments:
        found["v0"] = draw("v0", B, 4 * H, scale=1, normal=True)
        found["n0"] = None if beta is None else draw("n0", B, 4 * H, low=0.5, scale=1)
    if extrapolated:
        j0 = torch.arange(B).float().view(1, B).cuda() % 7
        found |= {"z0": draw("z0", B, 4 * H, scale=1, normal=True), "j0": j0, "every": 7}
    if lengths is not None:
        sizes = [sum(n > t for n in lengths) for t in range(max(lengths))]
        x = found["x"]
        found |= {"sizes": sizes, "x": torch.cat([x[:, t, :rows] for t, rows in enumerate(sizes)], 1)}
    return op.Inputs(**found)


def mixed(T, B):
    """Lengths of B sequences, falling from T to 1, some alike."""
    return sorted((1 + (T - 1) * (b * b % B) // max(B - 1, 1) if b else T for b in range(B)), reverse=True)


def evaluate(function, args, wants, grads, dtype):
    """Outputs of a function of the inputs, those that are there, and gradients in this dtype."""
    names = op.Inputs._fields
    given = {
        name: None if t is None else t.detach().to(dtype)
        for name, t in zip(names, args.tensors, strict=False)
    }
    for t, want in zip(given.values(), wants, strict=True):
        if t is not None:
            t.requires_grad_(want)
    constants = {name: getattr(args, name) for name in ("decay", "j0")}
    constants = {name: None if t is None else t.to(dtype) for name, t in constants.items()}
    outputs = function(args._replace(**given, **constants))
    pairs = [(o, g.to(o)) for o, g in zip(outputs, grads, strict=True) if g is not None and o.numel()]
    asked = [t for t in given.values() if t is not None and t.requires_grad]
    found = torch.autograd.grad([o for o, _ in pairs], asked, [g for _, g in pairs])
    return [o.detach() for o in outputs if o.numel()], found


def exact(args, wants, grads):
    """Outputs and gradients by the definition in float64."""
    return evaluate(lstm_by_reference.outputs, args, wants, grads, torch.float64)


def fast(args, wants, grads):
    return evaluate(lambda i: op.lstm(*i), args, wants, grads, torch.float32)


def error(got, want):
    return ((got.double() - want.double()).norm() / want.double().norm().clamp_min(1e-30)).item()


ALL = (True,) * op.TENSORS


def random_grads(args, which=(True,) * op.OUTPUTS):
    """Gradients of the outputs that are asked for."""
    with torch.no_grad():
        outputs = op.lstm(*args)
    return [torch.randn(o.shape).cuda() if use else None for o, use in zip(outputs, which, strict=True)]


def check(args, wants=ALL, which=(True,) * op.OUTPUTS, limit=None, grads=None):
    """Everything the kernels return for these inputs, and gradients of the outputs that are asked for."""
    limit = limit or (FINE if args.fine else NEAR)
    grads = random_grads(args, which) if grads is None else grads
    got, want = fast(args, wants, grads), exact(args, wants, grads)
    for i, (ours, theirs) in enumerate(zip((*got[0], *got[1]), (*want[0], *want[1]), strict=True)):
        assert ours.shape == theirs.shape
        assert error(ours, theirs) < limit, f"{i} of {len(got[0])} outputs, then gradients"


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
    wants = [i == wanted for i in range(op.TENSORS)]
    check(inputs(20, 9, 3, 50), wants=wants, which=(*which, 0, 0, 0))


# Of each output the inputs that it hangs on.
PAIRS = [(o, i) for o in range(4) for i in range(op.TENSORS)]
PAIRS += [(4, i) for i in (0, 1, 3, 8, 9, 10)] + [(5, i) for i in (0, 1, 3, 11)]


@pytest.mark.parametrize(("output", "wanted"), PAIRS)
@pytest.mark.parametrize("D", [3, 40])
def test_one_gradient_of_everything(output, wanted, D):
    args = inputs(20, 9, D, 50, learned=True, moments=True, beta=0.9, extrapolated=True)
    wants, which = [i == wanted for i in range(op.TENSORS)], [i == output for i in range(op.OUTPUTS)]
    check(args, wants=wants, which=which, limit=FADED)


def test_a_given_drive():
    args = inputs(30, 13, 4 * 100, 100, R=2, momentum="None")
    check(args._replace(w_ih=None, b_ih=None))


@pytest.mark.parametrize(
    "shared", [(), ("x",), ("x", "h0", "c0"), ("w_hh",), ("w_ih", "b_ih", "b_hh"), ("c0",)]
)
@pytest.mark.parametrize("D", [2, 40])
def test_replicas(D, shared):
    check(inputs(30, 13, D, 100, R=3, shared=shared))


def replica(args, r):
    """The inputs of one alone."""
    of_all = zip(op.Inputs._fields, args[: op.REPLICATED], strict=False)
    return args._replace(**{name: t[r : r + 1] for name, t in of_all if t is not None and len(t) > 1})


def assert_bits(got, want):
    got, want = ([t for t in leaves(list(tree)) if t is not None and t.numel()] for tree in (got, want))
    assert len(got) == len(want)
    assert all(map(torch.equal, got, want))


def test_replicas_have_the_bits_of_one():
    """Replicas do not see each other."""
    args = inputs(30, 13, 2, 128, R=3, shared=("x",))
    together = op.lstm(*args)
    for r in range(3):
        assert_bits([o[r : r + 1] for o in together if o.numel()], op.lstm(*replica(args, r)))


@pytest.mark.parametrize("H", [84, 256])
def test_a_gradient_at_one_unit_of_the_last_step(H):
    """It fades by many powers of two on its way to the first step, and stays right."""
    args = inputs(60, 24, 1, H)
    dy = torch.zeros(1, 60, 24, H)
    dy[:, -1, :, 0] = torch.randn(24)
    check(args, limit=FADED, grads=[dy.cuda(), *[None] * 5])


def test_rows_of_very_different_size():
    """Each row has its own scale: a tiny gradient beside a huge one is as exact as alone."""
    args, sizes = inputs(40, 8, 2, 64), torch.logspace(-12, 12, 8).view(8, 1)
    grads = [(torch.randn(1, 40, 8, 64) * sizes).cuda(), *[None] * 5]
    wants = [True, *[False] * 4, True, True, *[False] * 5]
    (_, got), (_, want) = (f(args, wants, grads) for f in (fast, exact))
    for ours, theirs in zip(got, want, strict=True):
        for b in range(8):
            row = (slice(None), slice(None), b) if ours.dim() == 4 else (slice(None), b)
            assert error(ours[row], theirs[row]) < NEAR


def test_gradients_that_come_in_bursts():
    dy = torch.randn(1, 200, 16, 64) * (torch.rand(1, 200, 1, 1) < 0.05)
    dy = dy * 10.0 ** torch.randint(-8, 4, (1, 200, 1, 1))
    check(inputs(200, 16, 1, 64, momentum="Nesterov"), limit=FADED, grads=[dy.cuda(), *[None] * 5])


def test_large_weights():
    """U three times torch's: what rounding does to the forward pass grows, to some 5e-4 of the gradients."""
    args = inputs(60, 16, 1, 128)
    args.w_hh.mul_(3)
    check(args, limit=FADED)


@pytest.mark.parametrize("spoilt", ["x", "dy"])
def test_a_nan_stays_in_its_row(spoilt):
    args, dy = inputs(20, 16, 2, 64), torch.randn(1, 20, 16, 64).cuda()
    (args.x if spoilt == "x" else dy)[0, 5, 3] = float("nan")
    (y, *_), (dx, *_) = fast(args, ALL, [dy, *[None] * 5])
    others = [b for b in range(16) if b != 3]
    assert dx[:, :, 3].isnan().any()
    assert y[:, :, others].isfinite().all()
    assert dx[:, :, others].isfinite().all()
    assert y[:, 5:, 3].isnan().all() if spoilt == "x" else y.isfinite().all()


@pytest.mark.parametrize("D", [2, 40])
def test_infinite_inputs(D):
    """They saturate gates, as in the definition."""
    args = inputs(20, 8, D, 64)
    args.x[0, 5, 3, 0], args.x[0, 6, 2, 1] = float("inf"), 3.4e38
    want = lstm_by_reference.outputs(
        op.Inputs(*(t.double() if isinstance(t, torch.Tensor) else t for t in args))
    )
    assert all(error(got, w) < NEAR for got, w in zip(op.lstm(*args)[:3], want[:3], strict=True))


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
        args.x.mul_(size)
        args.w_ih.div_(size)
        check(args)


# Each way of a layer, beside that of a linear momentum on evenly long rows.
KINDS = {
    "linear": {},
    "fine": {"fine": True},
    "fine, none": {"fine": True, "momentum": "None"},
    "packed": {"lengths": "mixed"},
    "packed, rows": {"lengths": "mixed", "momentum": "rows"},
    "packed, none": {"lengths": "mixed", "momentum": "None"},
    "packed, fine": {"lengths": "mixed", "fine": True},
    "extrapolated": {"extrapolated": True, "momentum": "None"},
    "extrapolated, linear": {"extrapolated": True, "momentum": "Nesterov"},
    "extrapolated, fine": {"extrapolated": True, "fine": True},
    "Adam": {"beta": 0.9},
    "Adam-printed": {"beta": 0.9, "printed": True},
    "Adam, fine": {"beta": 0.9, "fine": True},
    "RMSProp": {"beta": 0.9, "momentum": "RMSProp"},
    "RMSProp-printed": {"beta": 0.9, "momentum": "RMSProp", "printed": True},
    "learned": {"learned": True},
    "learned, fine": {"learned": True, "fine": True},
    "learned Adam": {"learned": True, "beta": 0.9},
    "moments": {"moments": True, "momentum": "rows"},
    "moments of Adam": {"moments": True, "momentum": "rows", "beta": 0.9},
    "packed Adam": {"lengths": "mixed", "beta": 0.9, "moments": True, "momentum": "rows"},
    "packed extrapolated": {"lengths": "mixed", "extrapolated": True},
    "everything": {"lengths": "mixed", "extrapolated": True, "learned": True, "moments": True, "beta": 0.9},
}
KINDS["everything, fine"] = KINDS["everything"] | {"fine": True}
over_kinds = pytest.mark.parametrize("kind", KINDS)


def of_kind(kind, T, B, D, H, **options):
    options = KINDS[kind] | options
    if options.get("lengths") == "mixed":
        options["lengths"] = mixed(T, B)
    return inputs(T, B, D, H, **options)


@over_kinds
@pytest.mark.parametrize("D", [2, 15, 16, 40])
def test_kinds(kind, D):
    """Inputs projected in a kernel and before it."""
    check(of_kind(kind, 40, 21, D, 70))


@over_kinds
@pytest.mark.parametrize("H", [1, 7, 32, 33, 128, 158, 256])
def test_kinds_in_all_widths(kind, H):
    fine = KINDS[kind].get("fine")
    check(of_kind(kind, 33, 10, 3, H), limit=FINE if fine else TINY if H < 8 else NEAR)


@over_kinds
@pytest.mark.parametrize(("T", "B"), [(1, 1), (1, 9), (2, 8), (15, 1), (16, 17), (17, 3), (100, 33)])
def test_kinds_in_all_lengths(kind, T, B):
    """From one segment of kept moments to the next, and tiles of rows that are full or not."""
    check(of_kind(kind, T, B, 5, 40), limit=FINE if KINDS[kind].get("fine") else TINY if B == 1 else NEAR)


@over_kinds
@pytest.mark.parametrize(
    "shared", [(), ("x", "h0", "c0"), ("w_ih", "w_hh", "b_ih", "b_hh", "mu", "gain")], ids=len
)
@pytest.mark.parametrize("D", [3, 40])
def test_kinds_of_replicas(kind, shared, D):
    check(of_kind(kind, 30, 11, D, 50, R=3, shared=shared))


@over_kinds
def test_replicas_of_a_kind_have_the_bits_of_one(kind):
    args = of_kind(kind, 30, 13, 2, 128, R=3, shared=("x",))
    together = op.lstm(*args)
    for r in range(3):
        assert_bits([o[r : r + 1] for o in together if o.numel()], op.lstm(*replica(args, r)))


@pytest.mark.parametrize("H", [1, 7, 32, 33, 64, 128, 158, 190, 224, 256])
@pytest.mark.parametrize("D", [1, 7, 8, 40, 129])
@pytest.mark.parametrize("momentum", ["None", "HeavyBall", "rows"])
def test_fine(H, D, momentum):
    """Each width with another length."""
    T = [1, 2, 17, 100, 300][(H + D) % 5]
    check(inputs(T, [1, 8, 20][H % 3], D, H, momentum=momentum, fine=True))


@pytest.mark.parametrize("T", [1, 2, 3, 16, 63, 150, 300])
@pytest.mark.parametrize("B", [1, 9, 64])
def test_fine_over_time(T, B):
    check(inputs(T, B, 3, 96, momentum="Nesterov", fine=True))


def test_fine_over_many_rows():
    """More of them than one product adds up."""
    check(inputs(100, 4 * ROWS_OF_PRODUCT // 100 + 3, 40, 64, fine=True))
    check(inputs(100, 4 * ROWS_OF_PRODUCT // 100 + 3, 40, 64, beta=0.9, fine=True))


@pytest.mark.parametrize("bias", [True, False, "hh"])
@pytest.mark.parametrize("D", [2, 40])
def test_fine_biases(D, bias):
    check(inputs(50, 11, D, 70, bias=bias, fine=True))


@pytest.mark.parametrize("bias", [False, "hh"])
@pytest.mark.parametrize("D", [2, 40])
@pytest.mark.parametrize("fine", [False, True])
def test_learned_biases(D, bias, fine):
    check(inputs(50, 11, D, 70, bias=bias, learned=True, extrapolated=True, fine=fine))


@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize("only", ["mu", "gain"])
def test_one_rate_for_each_channel(only, fine):
    args = inputs(40, 12, 3, 50, learned=True, fine=fine)
    if only == "mu":
        check(args._replace(gain=None, step=0.7))
    else:
        check(args._replace(mu=None, decay=torch.linspace(0.1, 0.9, 40).view(40, 1).cuda()))


LENGTHS = {
    "alike": [30] * 12,
    "one": [30],
    "steep": [60, 2, 1, 1, 1, 1, 1, 1, 1, 1],
    "last tile short": [40] * 8 + [1],
    "falling": list(range(33, 0, -1)),
    "two kinds": [50] * 9 + [17] * 9,
}


@pytest.mark.parametrize("case", LENGTHS)
@pytest.mark.parametrize("momentum", ["None", "HeavyBall", "rows"])
@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize("D", [3, 40])
def test_packed(case, momentum, fine, D):
    lengths = LENGTHS[case]
    limit = FINE if fine else FADED if len(lengths) == 1 else None
    check(
        inputs(max(lengths), len(lengths), D, 70, momentum=momentum, lengths=lengths, fine=fine), limit=limit
    )


@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize("D", [3, 40])
def test_packed_drive(fine, D):
    args = inputs(30, 13, 400, 100, momentum="None", lengths=mixed(30, 13), fine=fine, extrapolated=D > 3)
    check(args._replace(w_ih=None, b_ih=None))


def test_packed_rows_of_one_length_are_the_even_ones():
    args = inputs(20, 9, 3, 50)
    packed = args._replace(x=args.x.flatten(1, 2), sizes=[9] * 20)
    y, *rest = op.lstm(*packed)
    even, *others = op.lstm(*args)
    assert_bits([y.view_as(even), *rest], [even, *others])


@pytest.mark.parametrize(("fine", "limit"), [(False, FADED), (True, 1e-4)])
@pytest.mark.parametrize("D", [3, 40])
@pytest.mark.parametrize("momentum", ["HeavyBall", "RMSProp"])
def test_a_tiny_eps(momentum, D, fine, limit):
    """Float32 itself has errors of 3e-5 here."""
    check(inputs(40, 21, D, 70, momentum=momentum, beta=0.9, eps=1e-8, fine=fine), limit=limit)


@pytest.mark.parametrize("every", [1, 2, 40])
def test_counts_of_rows(every):
    """j of each row and replica its own, up to the last before it begins anew."""
    args = inputs(45, 20, 3, 40, R=2, extrapolated=True)
    j0 = (torch.arange(40).float().view(2, 20) % every).cuda()
    check(args._replace(j0=j0, every=every))
    check(args._replace(j0=j0[:1].contiguous(), every=every, fine=True))


def test_a_drive_that_is_divided_by_nothing():
    """W x + b_ih = 0 at the first steps: the drive is 0 and its gradient finite."""
    args = inputs(10, 8, 3, 40, bias="hh", momentum="HeavyBall")._replace(beta=0.9, eps=1e-3)
    args.x[:, :3] = 0
    y, *_ = op.lstm(*args)
    assert y.isfinite().all()
    outputs, grads = fast(args, ALL, random_grads(args))
    assert all(t.isfinite().all() for t in (*outputs, *grads))


@over_kinds
@pytest.mark.parametrize("D", [2, 40])
def test_the_same_inputs_give_the_same_bits(kind, D):
    args = of_kind(kind, 100, 40, D, 190)
    grads = random_grads(args)
    first, second = (fast(args, ALL, grads) for _ in range(2))
    assert_bits(first, second)


@over_kinds
def test_backward_twice(kind):
    """A graph that is retained gives the same gradients again."""
    args = of_kind(kind, 20, 9, 2, 40)
    given = [t.requires_grad_() for t in args.tensors if t is not None]
    y = op.lstm(*args)[0]
    first = torch.autograd.grad(y.sum(), given, retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(y.sum(), given)))


@over_kinds
@pytest.mark.parametrize("D", [2, 40])
@pytest.mark.parametrize("beside", [False, True], ids=["", "beside"])
def test_time_in_chunks(kind, D, beside, monkeypatch):
    """One chunk after the other, and with the rest of the backward pass beside the recurrence."""
    args = of_kind(kind, 50, 16, D, 64, R=2)
    monkeypatch.setattr(lstm_backward, "CHUNK_BYTES", 1 << 16)
    if beside:
        monkeypatch.setattr(lstm_backward, "OVERLAPPED_STEPS", 8)
    length = lstm_backward.chunk_length(sizes_of(args), args.in_gate_space, args.fine, beside)
    assert length <= 16
    check(args)


@pytest.mark.parametrize("kind", ["linear", "Adam", "everything, fine"])
@pytest.mark.parametrize("alone", [-1, 1])
def test_the_rest_beside_the_recurrence(kind, alone, monkeypatch):
    """Whatever runs at the same time, the same bits, while other streams are at work, too."""
    monkeypatch.setattr(lstm_backward, "SHARE_TO_RUN_ALONE", alone)
    monkeypatch.setattr(lstm_backward, "OVERLAPPED_CHUNKS", 1)
    args = of_kind(kind, 400, 16, 40, 64)
    given = [t.requires_grad_() for t in args.tensors if t is not None]

    def gradients():
        return torch.autograd.grad(op.lstm(*args)[0].square().sum(), given)

    monkeypatch.setattr(lstm_backward, "OVERLAPPED_STEPS", 100_000)
    monkeypatch.setattr(lstm_backward, "CHUNK_BYTES", 1 << 20)  # as many chunks as beside
    other = torch.cuda.Stream()
    work = torch.randn(4096, 4096, device="cuda")
    first = gradients()
    monkeypatch.setattr(lstm_backward, "OVERLAPPED_STEPS", 50)
    monkeypatch.setattr(lstm_backward, "CHUNK_BYTES", 1 << 21)
    for _ in range(5):
        with torch.cuda.stream(other):
            work @ work
        assert all(map(torch.equal, first, gradients()))


@pytest.mark.parametrize("fine", [False, True], ids=["", "fine"])
def test_rows_that_turn_nan_behind_their_end(fine):
    """A momentum that grows takes rows to inf after they have ended, and z - z to nan: nobody sees that."""
    lengths = 40, 6, 6, 5, 3
    options = {"extrapolated": True, "learned": True, "fine": fine}
    args = inputs(40, 5, 2, 40, lengths=lengths, **options)
    args = args._replace(mu=torch.full_like(args.mu, 300.0), gain=args.gain * 1e-14)
    # The same without the first row.
    every = [row for size in args.sizes for row in range(size)]
    rows = [i for i, row in enumerate(every) if row > 0]
    of_rows = {name: getattr(args, name)[:, 1:].contiguous() for name in ("h0", "c0", "z0", "j0")}
    sizes = [size - 1 for size in args.sizes if size > 1]
    short = args._replace(x=args.x[:, rows].contiguous(), sizes=sizes, **of_rows)

    def gradients(args, rows):
        given = [args.h0.requires_grad_(), args.c0.requires_grad_()]
        y, h, c = op.lstm(*args)[:3]
        return torch.autograd.grad(y[:, rows].sum() + h[:, -4:].sum() + c[:, -4:].sum(), given)

    found, want = gradients(args, rows), gradients(short, range(len(rows)))
    for a, b in zip(found, want, strict=True):
        assert b.isfinite().all()
        assert b.abs().amax() > 0
        assert error(a[:, 1:], b) <= (FINE if fine else NEAR)


@pytest.mark.parametrize("D", [0, 2])
def test_memory_at_odd_places(D):
    """Contiguous, but not from a multiple of 16 bytes on. D = 0: the drive is given."""
    args = inputs(5, 4, D or 4, 8 if D else 1, momentum="None")
    if not D:
        args = args._replace(w_ih=None, b_ih=None)
    check(at_odd_places(args), limit=NEAR if D else TINY)


def at_odd_places(args):
    moved = {
        name: torch.cat([t.new_zeros(1), t.flatten()])[1:].view_as(t)
        for name, t in args._asdict().items()
        if isinstance(t, torch.Tensor)
    }
    return args._replace(**moved)


@over_kinds
def test_kinds_at_odd_places(kind):
    args = of_kind(kind, 9, 5, 3, 21)
    assert_bits(op.lstm(*at_odd_places(args)), op.lstm(*args))


@over_kinds
@pytest.mark.parametrize("R", [1, 2])
def test_opcheck(kind, R):
    args = of_kind(kind, 5, 3, 2, 9, R=R)
    for t in args.tensors:
        if t is not None:
            t.requires_grad_()
    # Tracing takes seconds.
    quick = "test_schema", "test_autograd_registration", "test_faketensor"
    every = (*quick, "test_aot_dispatch_dynamic")
    torch.library.opcheck(op._lstm, (*args, False), test_utils=every if kind == "linear" else quick)
    outputs = op._lstm(*args, True)
    needs = [t is not None for t in args.tensors]
    grads = [o.detach().cos() for o in outputs[: op.OUTPUTS]]
    kept = [outputs[0].detach(), *outputs[op.OUTPUTS :]]
    torch.library.opcheck(op._lstm_backward, (*grads, *kept, *args, needs), test_utils=quick)


def layer(cell=None, **options):
    options.setdefault("momentum", mr.HeavyBall(mu=0.6))
    net = mr.Recurrent(cell or cells.LSTM(), 2, 40, backend="cuda", **options)
    if net.momentum is not None and net.momentum.beta is not None:
        # W x + b_ih away from 0, where the drive leaps.
        with torch.no_grad():
            for name, p in net.named_parameters():
                if name.startswith("bias_ih"):
                    p.copy_(p.sign() * (2 + p.abs()))
                elif name.startswith("weight_ih"):
                    p.mul_(0.5)
    return net.cuda()


def rates(*shape):
    """A mu and a step to be learned."""
    return nn.Parameter(0.2 + 0.7 * torch.rand(shape)), nn.Parameter(0.5 + torch.rand(shape))


# Made anew for each test: parameters belong to one layer.
MOMENTA = {
    "None": lambda: None,
    "HeavyBall": lambda: mr.HeavyBall(),
    "Nesterov": lambda: mr.Nesterov(),
    "ScheduledRestart": lambda: mr.ScheduledRestart(every=7),
    "Adam": lambda: mr.Adam(mu=0.6, step=0.7, beta=0.9, eps=0.5),
    "Adam-printed": lambda: mr.Adam(mu=0.6, step=0.7, beta=0.9, eps=0.5, eps_in_sqrt=False),
    "RMSProp": lambda: mr.RMSProp(step=0.7, beta=0.9, eps=0.5),
    "learned": lambda: mr.HeavyBall(*rates()),
    "learned, gates": lambda: mr.HeavyBall(*rates(4)),
    "learned, channels": lambda: mr.HeavyBall(*rates(160)),
    "learned step": lambda: mr.Nesterov(rates(160)[1]),
    "learned Adam": lambda: mr.Adam(*rates(160), beta=0.9, eps=0.5),
}
over_momenta = pytest.mark.parametrize("momentum", MOMENTA)


@pytest.fixture(params=[False, True], ids=["fast", "fine"])
def limit(request):
    """The tolerance, with TF32 on or off."""
    torch.backends.cudnn.allow_tf32 = not request.param
    yield FINE if request.param else NEAR
    torch.backends.cudnn.allow_tf32 = True


@pytest.fixture
def fine():
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = True


def assert_near(net, x, state=None, lengths=None, limit=NEAR):
    """Outputs, state and all gradients are those of the reference in float64."""
    assert "cuda       runs" in net.explain(x)
    twin = copy.deepcopy(net).double()
    twin.backend = "reference"
    results = []
    for module, dtype in ((net, net.weight_hh_l0.dtype), (twin, torch.float64)):
        # Moments stay in float32 beside 16 bits; counts have no gradient.
        wide = torch.float32 if dtype.itemsize == 2 else dtype
        sequence, hx, given = x.detach().to(dtype).requires_grad_(), None, []
        if state is not None:
            hidden = state.hidden if isinstance(state, mr.State) else state
            hidden = [h.to(dtype).requires_grad_(i < 3) for i, h in enumerate(h.detach() for h in hidden)]
            hx, given = tuple(hidden), hidden[:3]
        if isinstance(state, mr.State):
            v, n = (t.detach().to(wide).requires_grad_() for t in (state.v, state.n))
            hx, given = mr.State(*hx, v, n, state.k), [*given, v, n]
        out = call(module, sequence, hx, lengths)
        found = gradients(out, [sequence, *given, *module.parameters()])
        results.append([*leaves(list(out)), *found])
    for i, (got, want) in enumerate(zip(*results, strict=True)):
        assert (got is None) == (want is None)
        if got is not None and got.is_floating_point() and got.numel():
            # One number has no norm in which errors average.
            at_most = limit if got.numel() > 1 else 10 * limit
            assert error(got, want) < at_most, f"tensor {i} of {len(results[0])}"
        elif got is not None:
            assert torch.equal(got, want.to(got.dtype))


@over_momenta
@pytest.mark.parametrize(
    "options",
    [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True}],
    ids=["one", "both ways", "batch"],
)
def test_a_module(momentum, options, limit):
    """With torch's hx."""
    net = layer(momentum=MOMENTA[momentum](), **options)
    lead = net.num_layers * (2 if net.bidirectional else 1)
    x, hx = torch.randn(30, 30, 2).cuda(), [torch.randn(lead, 30, 40).cuda() for _ in range(2)]
    assert_near(net, x, hx, limit=limit)


@pytest.mark.parametrize("momentum", ["None", "HeavyBall", "Nesterov", "learned"])
def test_one_bias(momentum, limit):
    assert_near(layer(momentum=MOMENTA[momentum](), bias="hh"), torch.randn(30, 30, 2).cuda(), limit=limit)


@over_momenta
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=["one", "both ways"])
def test_packed_modules(momentum, options, limit):
    net, lengths = layer(momentum=MOMENTA[momentum](), **options), mixed(40, 13)
    assert_near(net, torch.randn(40, 13, 2).cuda(), lengths=[*lengths[5:], *lengths[:5]], limit=limit)


def begun(net, counts):
    """A State in mid-sequence, row i after counts[i] steps; n as large as it would be."""
    start = net.initial_state(len(counts))
    hidden = [torch.randn_like(h) * 0.5 for h in start.hidden[:3]]
    if len(start.hidden) > 3:
        hidden.append(
            (torch.tensor(counts).float() % net.cell.every)
            .view(1, -1, 1)
            .expand(start.hidden[3].shape)
            .cuda()
        )
    k = torch.tensor(counts).cuda().expand(start.k.shape)
    return mr.State(*hidden, torch.randn_like(start.v), 1 + torch.rand_like(start.n), k)


@over_momenta
@pytest.mark.parametrize("lengths", [None, [20, 3, 11, 1, 20, 7]], ids=["even", "packed"])
@pytest.mark.parametrize(
    "cell", [cells.LSTM(), cells.ExtrapolatedLSTM(every=6)], ids=["lstm", "extrapolated"]
)
def test_a_state_with_a_count_for_each_row(momentum, lengths, cell, limit):
    net = layer(cell, momentum=MOMENTA[momentum](), num_layers=2)
    assert_near(net, torch.randn(20, 6, 2).cuda(), begun(net, [0, 4, 9, 2, 100, 7]), lengths, limit)


@over_momenta
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=["one", "both ways"])
def test_extrapolated_modules(momentum, options, limit):
    net = layer(cells.ExtrapolatedLSTM(every=5, step_size=0.7), momentum=MOMENTA[momentum](), **options)
    x = torch.randn(23, 9, 2).cuda()
    assert_near(net, x, limit=limit)
    assert_near(net, x, lengths=mixed(23, 9)[::-1], limit=limit)


@pytest.mark.parametrize("momentum", ["HeavyBall", "Nesterov", "Adam", "learned Adam"])
def test_streaming(momentum, limit):
    """Pieces of a sequence with a State are the whole, forward and backward."""
    net, x = layer(momentum=MOMENTA[momentum]()), torch.randn(40, 6, 2).cuda()
    whole, end = net(x, net.initial_state(6))
    state, outs = net.initial_state(6), []
    for piece in x.split([1, 13, 26]):
        out, state = net(piece, state)
        outs.append(out)
    assert error(torch.cat(outs), whole) < limit
    assert torch.equal(state.k, end.k)
    assert error(state.v, end.v) < limit
    assert error(state.n, end.n) < limit
    sums = torch.cat(outs).sum(), whole.sum()
    got, want = (torch.autograd.grad(s, list(net.parameters())) for s in sums)
    assert all(error(g, w) < limit for g, w in zip(got, want, strict=True))


def test_explain(fine):
    net, x = layer(), torch.randn(5, 3, 2).cuda()
    net.backend = "auto"
    assert "cuda       runs: fused kernels, operands in two 16-bit parts" in net.explain(x)
    torch.backends.cudnn.allow_tf32 = True
    assert "cuda       runs: fused kernels, 16-bit operands" in net.explain(x)
    assert "native     could" in net.explain(x)
    big = mr.LSTM(2, MAX_HIDDEN + 1).cuda()
    assert "can't" in big.explain(x).splitlines()[1]
    assert "can't" in net.double().explain(x.double()).splitlines()[1]


SIXTEEN = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


@SIXTEEN
@pytest.mark.parametrize("momentum", ["None", "HeavyBall", "Adam", "learned, channels"])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=["one", "both ways"])
def test_autocast(dtype, momentum, options):
    """Results in the dtypes of torch's own layer, and near those in float32; gradients in float32."""
    net, x = layer(momentum=MOMENTA[momentum](), **options), torch.randn(30, 9, 2).cuda()
    want = net(x)
    theirs = nn.LSTM(2, 40, **options).cuda()
    with torch.autocast("cuda", dtype):
        got, like = net(x), theirs(x)
        assert "cuda       runs: fused kernels, 16-bit operands" in net.explain(x)
        narrow = net(x.to(dtype))
    assert [t.dtype for t in leaves(list(got))] == [t.dtype for t in leaves(list(like))]
    assert [t.dtype for t in leaves(list(narrow))] == [t.dtype for t in leaves(list(like))]
    assert all(error(g, w) < TINY for g, w in zip(leaves(list(got)), leaves(list(want)), strict=True))
    weights = list(net.parameters())
    found, sought = gradients(got, weights), gradients(want, weights)
    assert {g.dtype for g in found} == {torch.float32}
    assert all(error(g, w) < TINY for g, w in zip(found, sought, strict=True))


@SIXTEEN
def test_autocast_of_a_state(dtype):
    """Moments stay in float32, and a second piece goes on from the first."""
    net, x = layer(momentum=MOMENTA["Adam"]()), torch.randn(30, 9, 2).cuda()
    want, after = net(x, net.initial_state(9))
    with torch.autocast("cuda", dtype):
        first, state = net(x[:11], net.initial_state(9))
        second, state = net(x[11:], state)
    assert state.v.dtype == state.n.dtype == torch.float32
    assert error(torch.cat([first, second]), want) < TINY
    assert error(state.v, after.v) < TINY


@SIXTEEN
@pytest.mark.parametrize("momentum", ["None", "HeavyBall", "Adam", "learned, channels"])
@pytest.mark.parametrize("lengths", [None, [20, 3, 11, 1, 20, 7]], ids=["even", "packed"])
def test_parameters_of_16_bits(dtype, momentum, lengths):
    """Against float64 from the same weights: what is rounded are inputs, results and gradients alone."""
    net, x = layer(momentum=MOMENTA[momentum]()).to(dtype), torch.randn(20, 6, 2).cuda().to(dtype)
    assert_near(net, x, lengths=lengths, limit=2 * TINY)
    assert_near(net, x, begun(net, [0, 4, 9, 2, 100, 7]), lengths, limit=2 * TINY)
    out, final = call(net, x, lengths=lengths)
    assert {t.dtype for t in (out, *final)} == {dtype}
    net.zero_grad()
    out.float().square().sum().backward()
    assert {p.grad.dtype for p in net.parameters()} == {dtype}


@pytest.mark.parametrize("momentum", ["HeavyBall", "Adam", "RMSProp", "learned, channels", "learned Adam"])
def test_vmap_reaches_one_launch(momentum, limit, monkeypatch):
    """Stacked parameters: R replicas in one call of the op, outputs and gradients those of each alone."""
    nets = [layer(momentum=MOMENTA[momentum]()) for _ in range(3)]
    params = {k: torch.stack([dict(n.named_parameters())[k] for n in nets]).detach().requires_grad_()
              for k, _ in nets[0].named_parameters()}  # fmt: skip
    calls, real = [], lstm_forward.forward
    monkeypatch.setattr(lstm_forward, "forward", lambda *a: calls.append(a[0].w_hh.shape[0]) or real(*a))
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
        assert all(error(g[r], w) < limit for g, w in zip(grads, want, strict=True))


@pytest.mark.parametrize("momentum", MOMENTA)
def test_modules_give_the_same_bits(momentum, limit):
    """Forward and backward, even and packed."""
    net, x = layer(momentum=MOMENTA[momentum](), num_layers=2), torch.randn(60, 20, 2).cuda()
    for lengths in (None, mixed(60, 20)):
        runs = [call(net, x, lengths=lengths) for _ in range(2)]
        assert_bits(*([*run, *gradients(run, list(net.parameters()))] for run in runs))


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


@pytest.mark.parametrize("momentum", ["HeavyBall", "Adam", "learned, channels"])
def test_second_derivative(momentum):
    """Of the squared gradient, against the reference in float64."""
    net, x = layer(momentum=MOMENTA[momentum]()), torch.randn(6, 3, 2).cuda()
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
@pytest.mark.parametrize("momentum", ["None", "HeavyBall", "Adam", "learned, channels"])
def test_compiles_in_one_graph(momentum):
    torch.compiler.reset()
    net, x = layer(momentum=MOMENTA[momentum]()), torch.randn(20, 8, 2).cuda()
    model = nn.Sequential(nn.Linear(2, 2).cuda(), net)
    compiled = torch.compile(lambda x: model(x)[0].sum(), fullgraph=True)
    want, got = (
        torch.autograd.grad(f(x), list(model.parameters())) for f in (lambda x: model(x)[0].sum(), compiled)
    )
    assert all(error(g, w.double()) < NEAR for g, w in zip(got, want, strict=True))


@pytest.mark.parametrize("momentum", ["HeavyBall", "Adam", "RMSProp", "learned, channels"])
@pytest.mark.parametrize("cell", [cells.LSTM(), cells.ExtrapolatedLSTM()], ids=["lstm", "extrapolated"])
@pytest.mark.parametrize("steps", [40, 400])
def test_a_cuda_graph_of_a_training_step(momentum, cell, steps, limit):
    """Captured once, replayed on new data: nothing waits for the GPU, and no memory is left over.

    After a forward pass alone, too: all that a capture can't do has been done by then.
    """
    for cached in (nvrtc._kernels, nvrtc._module, launch.kernel, launch._load_all):
        cached.clear() if isinstance(cached, dict) else cached.cache_clear()
    net, x = layer(cell, momentum=MOMENTA[momentum]()), torch.randn(steps, 16, 2).cuda()
    twin = copy.deepcopy(net)

    def step(net):
        net.zero_grad()
        out = net(x)[0]
        out.square().sum().backward()
        return out.detach(), [p.grad for p in net.parameters()]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(net) if steps == 40 else net(x)
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


@pytest.mark.parametrize("momentum", ["HeavyBall", "Adam", "learned, channels"])
def test_no_hidden_synchronisation(momentum, limit):
    net, x = layer(momentum=MOMENTA[momentum]()), torch.randn(40, 16, 2).cuda()
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


STUCK = """
import torch
from momentumrnn.kernels import launch, nvrtc, op
bytes = "expect(received + 8, TILE * WIDTH * 2 * PARTS"
source = launch.source("lstm_forward").replace(bytes, bytes + " + 16")
assert source != launch.source("lstm_forward")
real, launch.source = launch.source, lambda name: source if name == "lstm_forward" else real(name)
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
