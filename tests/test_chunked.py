"""`chunked`, whose backward is written by hand: across its chunks, and in every way autograd can ask."""

import copy
from contextlib import nullcontext

import pytest
import torch
from conftest import (
    CELLS,
    TOLERANCE,
    assert_oracle,
    assert_same,
    begun,
    call,
    expected,
    gradients,
    layer,
    leaf,
    leaves,
)
from torch import nn
from torch.autograd import gradgradcheck
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

import momentumrnn as mr
from momentumrnn.backends import chunked

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
# Every cell with a second moment, and, where torch's layer doesn't run, without and with a linear one.
VARIANTS = [
    ("Adam", "lstm"),
    ("Warmdam", "lstm"),
    ("Adam-printed", "lstm"),
    ("Adam", "gru"),
    ("Adam-printed", "gru"),
    ("HeavyBall", "gru"),
    ("Warmdam", "tanh"),
    ("HeavyBall", "tanh"),
    ("RMSProp", "relu"),
    ("Nesterov", "relu"),
    ("Adam", "sigmoid"),
    ("None", "sigmoid"),
    ("Adam-growing", "modrelu"),
    ("HeavyBall", "modrelu"),
    ("None", "modrelu"),
]
FEW = [
    ("Adam", "lstm"),
    ("Warmdam", "gru"),
    ("HeavyBall", "gru"),
    ("Adam-printed", "tanh"),
    ("None", "modrelu"),
]
over_variants = pytest.mark.parametrize(("momentum", "cell"), VARIANTS)
over_few = pytest.mark.parametrize(("momentum", "cell"), FEW)


def over_parts(*names):
    """The few variants, with each of these tensors that a variant has."""
    without = {"None": {"v", "n"}, "HeavyBall": {"n"}}
    return pytest.mark.parametrize(
        ("momentum", "cell", "name"),
        [(*few, name) for few in FEW for name in names if name not in without.get(few[0], ())],
    )


def by_hand(cell, momentum, *args, **options):
    """A layer that `chunked` runs, with biases that matter: gate inputs and thresholds away from 0."""
    net = layer(cell, momentum, *args, backend="native", **options)
    for name, p in net.named_parameters():
        if name.startswith("bias"):
            nn.init.normal_(p, 0.5 if "ih" in name else 0.2)
    return net


def reference(net):
    twin = copy.deepcopy(net)
    twin.backend = "reference"
    return twin


def inputs_of(net, x, state):
    """By name, everything that can have a gradient."""
    tensors = {"x": x, **{f"hidden[{i}]": h for i, h in enumerate(state.hidden)}, "v": state.v, "n": state.n}
    tensors |= dict(net.named_parameters())
    return {name: t for name, t in tensors.items() if t.numel()}


def outputs_of(out, after):
    tensors = {
        "y": out,
        **{f"hidden[{i}]": h for i, h in enumerate(after.hidden)},
        "v": after.v,
        "n": after.n,
    }
    return {name: t for name, t in tensors.items() if t.numel()}


@over_variants
def test_runs(momentum, cell):
    """The tests below run `chunked`."""
    net, x = by_hand(cell, momentum, 2, 3), leaf(4, 2, 2)
    assert "written by hand" in net.explain(x)
    functions, seen = [net(x)[0].grad_fn], set()
    while functions:
        function = functions.pop()
        if function is not None and function not in seen:
            seen.add(function)
            functions += [f for f, _ in function.next_functions]
    assert "_ChunkedLayerBackward" in {function.name() for function in seen}


@over_variants
@pytest.mark.parametrize("steps", [1, 15, 16, 17, 33, 50])
def test_lengths(momentum, cell, steps):
    """Whole chunks of 16 steps, and what is left over; from a State whose rows have their own counts."""
    net = by_hand(cell, momentum, 2, 3)
    assert_oracle(net, leaf(steps, 2, 2), begun(net, [3, 0]))


@over_variants
@pytest.mark.parametrize(
    "lengths", [[33, 17, 16, 15, 1], [16, 32, 32], [34, 31, 33, 32, 2], [17, 1, 1]], ids=repr
)
def test_packed(momentum, cell, lengths):
    """Sequences that end inside chunks, at their borders and around them; two layers."""
    net = by_hand(cell, momentum, 2, 2, 2)
    x, state = leaf(max(lengths), len(lengths), 2), begun(net, [5, 0, 1, 9, 2][: len(lengths)])
    results = []
    for one in (net, reference(net)):
        result = call(one, x, state, lengths)
        results.append((result, gradients(result, list(inputs_of(one, x, state).values()))))
    assert_same(*results)


@pytest.mark.parametrize("steps", [1, 2, 5])
@over_variants
def test_small_chunks(momentum, cell, steps, monkeypatch):
    """Chunks of a step or a few, as large batches have them: results are those of chunks of 16, to 1e-10."""
    smaller_chunks = []

    def smaller(*args):
        spans = [span for chunk in original(*args) for span in chunk]
        smaller_chunks.append([spans[i : i + steps] for i in range(0, len(spans), steps)])
        return smaller_chunks[-1]

    original = chunked.chunks
    net = by_hand(cell, momentum, 2, 3)
    x, state, lengths = leaf(7, 3, 2), begun(net, [3, 0, 1]), [7, 5, 2]
    inputs = list(inputs_of(net, x, state).values())
    want = call(net, x, state, lengths)
    want_gradients = gradients(want, inputs)
    monkeypatch.setattr(chunked, "chunks", smaller)
    got = call(net, x, state, lengths)
    assert_same(got, want)
    assert_same(gradients(got, inputs), want_gradients)
    assert smaller_chunks
    assert all(len(chunk) <= steps for chunk in smaller_chunks[0])


@pytest.mark.parametrize(
    ("rows", "steps"), [(1, 16), (1 << 12, 16), (1 << 14, 5), (1 << 18, 1), (1 << 19, 1)]
)
def test_chunks(rows, steps):
    """All rows once, in order; up to 16 steps and 2^20 numbers, and always one step."""
    sizes = [rows] * 9 + [1] * 9
    all_chunks = chunked.chunks(sizes, 12, torch.device("cpu"))
    assert max(map(len, all_chunks)) == steps
    spans = [span for chunk in all_chunks for span in chunk]
    assert [span.rows for span in spans] == sizes
    assert [span.begin for span in spans] == [sum(sizes[:t]) for t in range(18)]
    assert [span.previous for span in spans] == [-1, *(span.begin for span in spans[:-1])]


@pytest.fixture
def undetermined():
    """Deterministic algorithms off: memory then is not filled with nan."""
    torch.use_deterministic_algorithms(False)
    yield
    torch.use_deterministic_algorithms(True)


@pytest.mark.parametrize(
    ("momentum", "cell", "dtype"),
    [("Adam", "lstm", F64), ("HeavyBall", "gru", F32), ("Warmdam", "tanh", F64)],
    ids=["lstm", "gru", "tanh"],
)
@pytest.mark.usefixtures("undetermined")
def test_large(momentum, cell, dtype):
    """States of more than 4 MB and steps of 2^20 numbers; the memory of a call is not the next one's."""
    net, x = by_hand(cell, momentum, 2, 300, dtype=dtype), leaf(6, 700, 2, dtype=dtype)
    assert 6 * 700 * 300 * x.element_size() > 1 << 22
    results = []
    for one in (net, reference(net)):
        got = one(x)
        results.append((got, gradients(got, [x, *one.parameters()])))
    assert_same(*results, dtype)
    out = results[0][0][0]
    kept = out.detach().clone()
    net(torch.randn_like(x))
    assert torch.equal(out, kept)
    with torch.no_grad():
        assert torch.equal(net(x)[0], kept)


@pytest.mark.parametrize(("momentum", "cell"), [("Adam", "lstm"), ("HeavyBall", "gru"), ("None", "modrelu")])
def test_threads(momentum, cell):
    net, x = by_hand(cell, momentum, 2, 64), leaf(3, 64, 2)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            got = net(x)
            results.append((got, gradients(got, [x, *net.parameters()])))
    finally:
        torch.set_num_threads(threads)
    assert_same(*results)


def weighed(outputs):
    """A sum over all entries, each with a weight of its own, whichever outputs have a gradient."""
    return sum((o * torch.arange(1, o.numel() + 1).view(o.shape).sin()).sum() for o in outputs)


@over_variants
def test_each_input_alone(momentum, cell):
    """A gradient is the same whichever other inputs have one."""
    net = by_hand(cell, momentum, 2, 3)
    x, state, lengths = leaf(18, 2, 2), begun(net, [3, 0]), [18, 5]
    inputs = inputs_of(net, x, state)

    def loss():
        return weighed(outputs_of(*call(net, x, state, lengths)).values())

    whole = dict(zip(inputs, torch.autograd.grad(loss(), list(inputs.values())), strict=True))
    for name, tensor in inputs.items():
        for other in inputs.values():
            other.requires_grad_(other is tensor)
        assert_same(torch.autograd.grad(loss(), tensor), [whole[name]])


@over_variants
def test_each_output_alone(momentum, cell):
    """The gradients of each output by itself, and of all at once, are the reference's."""
    net = by_hand(cell, momentum, 2, 3)
    x, state, lengths = leaf(18, 2, 2), begun(net, [3, 0]), [18, 5]
    results = []
    for one in (net, reference(net)):
        inputs = inputs_of(one, x, state)
        outputs = outputs_of(*call(one, x, state, lengths))
        alone = [
            [torch.zeros_like(i) if g is None else g for g, i in zip(gs, inputs.values(), strict=True)]
            for gs in (gradients(outputs[name], list(inputs.values())) for name in outputs)
        ]
        results.append(alone)
    assert_same(*results)


@over_variants
def test_repeated_backward(momentum, cell):
    """A second backward pass gives the same gradients, to the bit; so does another call."""
    net = by_hand(cell, momentum, 2, 3)
    x, state = leaf(18, 2, 2), begun(net, [3, 0])
    inputs = list(inputs_of(net, x, state).values())
    once = call(net, x, state)
    want = gradients(once, inputs)
    for result in (once, call(net, x, state)):
        assert all(map(torch.equal, gradients(result, inputs), want))


def unless_refused(function):
    """What it returns, or None where autograd refuses because of a change in place."""
    try:
        return function()
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return None


@over_parts("y", "hidden[0]", "v", "x", "state", "weight_hh_l0", "k")
@pytest.mark.parametrize("graph", [False, True], ids=["once", "twice"])
def test_changed_in_place(momentum, cell, name, graph):
    """What changes between forward and backward is refused by autograd, or changes no gradient."""
    net = by_hand(cell, momentum, 2, 3)
    x, state = leaf(18, 2, 2), begun(net, [3, 0])
    inputs = list(inputs_of(net, x, state).values())

    def run(changed):
        out, after = call(net, x, state)
        loss = (out * out.detach()).sum() + sum(h.sum() for h in after.hidden)
        results = outputs_of(out, after) if name in ("y", "hidden[0]", "v") else {}
        tensors = {"state": state.hidden[0], "k": state.k, "x": x} | dict(net.named_parameters()) | results
        if changed:
            with torch.no_grad():
                tensors[name].add_(1)
        return torch.autograd.grad(loss, inputs, allow_unused=True, create_graph=graph)

    want = run(False)
    got = unless_refused(lambda: run(True))
    if got is not None:
        assert_same(got, want)


@over_few
def test_output_changed_in_place(momentum, cell):
    """Relu on the output, in place: right, or refused, never another gradient."""
    net, x = by_hand(cell, momentum, 2, 3), leaf(18, 2, 2)
    inputs = [x, *net.parameters()]
    got = unless_refused(lambda: gradients(net(x)[0].relu_(), inputs))
    if got is not None:
        assert_same(got, gradients(net(x)[0].relu(), inputs))


@over_variants
def test_second_derivatives(momentum, cell):
    net = by_hand(cell, momentum, 2, 2)
    x, state = leaf(3, 2, 2), begun(net, [3, 0])
    state = state._replace(n=(state.n.detach() + 0.5).requires_grad_())
    inputs = inputs_of(net, x, state)

    def function(*tensors):
        named = dict(zip(inputs, tensors, strict=True))
        hidden = tuple(named.pop(f"hidden[{i}]") for i in range(len(state.hidden)))
        now = state._replace(hidden=hidden, v=named.pop("v", state.v), n=named.pop("n", state.n))
        out, after = functional_call(net, {k: w for k, w in named.items() if k != "x"}, (named["x"], now))
        return tuple(outputs_of(out, after).values())

    assert gradgradcheck(function, list(inputs.values()), fast_mode=True, atol=1e-7, rtol=1e-5)


@over_parts("x", "hidden[0]", "v", "n", "weight_ih_l0", "weight_hh_l0", "bias_hh_l0")
def test_second_derivatives_of_one_input(momentum, cell, name):
    """Where only one input has a gradient, some outputs have none."""
    net = by_hand(cell, momentum, 2, 3).requires_grad_(False)
    x, state = torch.randn(4, 2, 2, dtype=F64), begun(net, [3, 0]).detach()
    results = []
    for one in (net, reference(net)):
        tensor = inputs_of(one, x, state)[name].requires_grad_()
        (grad,) = torch.autograd.grad(call(one, x, state)[0].square().sum(), tensor, create_graph=True)
        results.append((grad, *torch.autograd.grad(grad.square().sum(), tensor)))
    assert_same(*results)


@over_parts("y", "hidden[0]", "v", "n")
def test_batched_gradients(momentum, cell, name):
    """Many gradients of one output at once."""
    net = by_hand(cell, momentum, 2, 2)
    x, state = leaf(3, 2, 2), begun(net, [3, 0])
    results = []
    for one in (net, reference(net)):
        output = outputs_of(*call(one, x, state))[name]
        unit = torch.eye(output.numel(), dtype=F64).view(-1, *output.shape)
        inputs = [x, one.weight_ih_l0] if name in "vn" else [x, *state.hidden, *one.parameters()]
        results.append(torch.autograd.grad(output, inputs, unit, is_grads_batched=True))
    assert_same(*results)


@over_variants
def test_without_gradients(momentum, cell):
    """no_grad and inference_mode give the same numbers, to the bit, and so do frozen weights."""
    net = by_hand(cell, momentum, 2, 3, 2)
    x, state, lengths = leaf(18, 3, 2), begun(net, [3, 0, 1]), [18, 16, 5]
    want = [t.detach() for t in leaves(call(net, x, state, lengths))]
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            got = leaves(call(net, x, state, lengths))
        assert all(map(torch.equal, got, want))
        assert not any(t.requires_grad for t in got)
    got = leaves(call(net.requires_grad_(False), x.detach(), state.detach(), lengths))
    assert all(map(torch.equal, got, want))
    assert not any(t.requires_grad for t in got)


def moments(state):
    return state.v, state.n if state.n.numel() else None, state.k[0].tolist()


@over_variants
def test_layouts(momentum, cell):
    """Inputs, states and weights that are expanded, transposed or strided, and gradients that are."""
    net = by_hand(cell, momentum, 2, 3)
    state = begun(net, [3, 3])
    weights = {name: p.T.contiguous().T if p.dim() == 2 else p for name, p in net.named_parameters()}
    rows = mr.State(*(t[..., :1, :].expand(*t.shape) for t in state[:-1]), state.k)
    strided, short, few, turned = (
        torch.randn(18, 4, 4, dtype=F64),
        leaf(1, 2, 2),
        leaf(18, 2, 1),
        leaf(2, 18, 2),
    )
    strided.requires_grad_()
    for base, x, start in (
        (strided, strided[:, ::2, 1::2], state),
        (short, short.expand(18, 2, 2), rows),
        (few, few.expand(18, 2, 2), rows),
        (turned, turned.transpose(0, 1), state),
    ):
        inputs = [base, *net.parameters(), *state.hidden, *(t for t in (state.v, state.n) if t.numel())]
        got, want = (
            functional_call(net, weights, (x, start)),
            expected(net, x, None, start.hidden, moments(start)),
        )
        assert_same((got[0], got[1].hidden), want[:2])
        got_outputs, want_outputs = (
            (r[0], r[1].hidden) if isinstance(r[1], mr.State) else r[:2] for r in (got, want)
        )
        assert_same(gradients(got_outputs, inputs), gradients(want_outputs, inputs))


@over_variants
def test_expanded_gradients(momentum, cell):
    net = by_hand(cell, momentum, 2, 3, batch_first=True)
    x, results = leaf(2, 18, 2), []
    for one in (net, reference(net)):
        out, final = one(x)
        loss = out.sum() + sum(h.sum() for h in leaves(final))
        results.append(torch.autograd.grad(loss, [x, *one.parameters()]))
    assert_same(*results)


class Products(TorchDispatchMode):
    """The columns of all matrix products."""

    def __init__(self):
        super().__init__()
        self.columns = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_):
            self.columns.append(tuple(result.shape))
        return result


@pytest.mark.parametrize(("momentum", "cell"), [("Adam", "lstm"), ("RMSProp", "gru"), ("None", "modrelu")])
def test_an_input_without_gradient_costs_none(momentum, cell):
    """No product has its shape, (steps * rows, 7)."""
    net = by_hand(cell, momentum, 7, 3)
    for needed in (True, False):
        out = net(torch.randn(5, 2, 7, dtype=F64, requires_grad=needed))[0]
        with Products() as products:
            out.sum().backward()
        assert ((10, 7) in products.columns) == needed


STEADY = [
    ("lstm", mr.Adam(beta=0.9, eps=1.0)),
    ("lstm", mr.RMSProp(beta=0.9, eps=1.0, eps_in_sqrt=False)),
    ("gru", mr.Adam(beta=0.9, eps=1.0)),
    ("gru", mr.HeavyBall(mu=0.6, step=0.4)),
    ("tanh", mr.Adam(beta=0.9, eps=1.0)),
    ("relu", mr.RMSProp(beta=0.9, eps=1.0)),
    ("sigmoid", mr.HeavyBall(mu=0.6, step=0.4)),
    ("modrelu", mr.RMSProp(beta=0.9, eps=1.0)),
]


def steady(cell, momentum, dtype):
    """A layer whose gradient does not leap: relu and modrelu stay on one side of their corners."""
    net = mr.Recurrent(CELLS[cell], 3, 4, momentum=momentum, dtype=dtype, backend="native")
    if "relu" in cell:
        nn.init.constant_(net.bias_ih_l0, 2)
        nn.init.constant_(net.weight_hh_l0, 0.1)
    return net


steadily = pytest.mark.parametrize(
    ("cell", "momentum"), STEADY, ids=[f"{cell}-{type(m).__name__}" for cell, m in STEADY]
)


@steadily
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=["float32", "bfloat16", "float16"])
def test_narrow(cell, momentum, dtype):
    """Outputs, final State and gradients are those of float64 with the same weights, to the tolerance."""
    net = steady(cell, momentum, dtype)
    exact, x, results = reference(net).double(), torch.randn(20, 3, 3, dtype=dtype), []
    for one in (net, exact):
        inputs = x.to(one.weight_ih_l0.dtype, copy=True).requires_grad_()
        got = one(inputs, one.initial_state(3))
        results.append((got, gradients(got, [inputs, *one.parameters()])))
    assert results[0][0][0].dtype == dtype
    assert results[0][0][1].v.dtype == F32
    assert all(g.dtype == dtype for g in results[0][1])
    assert_same(*results, dtype if dtype in TOLERANCE else BF16)


def test_long_sums_in_16_bits(monkeypatch):
    """The gradients of weights are sums over 1600 chunks: all that they add up must count."""
    whole = chunked.chunks
    monkeypatch.setattr(chunked, "chunks", lambda *args: [[s] for chunk in whole(*args) for s in chunk])
    net = mr.GRU(3, 4, momentum=mr.HeavyBall(mu=0.6, step=0.4), dtype=BF16, backend="native")
    x, exact = torch.randn(1600, 4, 3, dtype=BF16), copy.deepcopy(net).double()
    net(x)[0].sum().backward()
    exact(x.double())[0].sum().backward()
    assert_same([p.grad for p in net.parameters()], [p.grad for p in exact.parameters()], BF16)


@pytest.mark.parametrize("cell", ["relu", "modrelu", "tanh", "gru", "lstm"])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_drive_too_large_for_float16(cell, sign):
    """Is held at the largest number, and there has no gradient; in the next row it has."""
    momentum = mr.Adam(mu=0.5, step=1.0, beta=0.9)
    results = []
    for backend in ("native", "reference"):
        net = mr.Recurrent(CELLS[cell], 2, 2, momentum=momentum, dtype=F16, backend=backend)
        with torch.no_grad():
            for name, p in net.named_parameters():
                p.fill_(0 if "hh" in name else 0.5)
        start = net.initial_state(2)
        v = torch.full_like(start.v, 0.3)
        v[:, 0] = sign * 1e6
        v.requires_grad_()
        x = torch.tensor([[0.3, 0.2], [0.3, 0.2]], dtype=F16).expand(2, 2, 2).clone().requires_grad_()
        out, after = net(x, start._replace(v=v))
        grads = torch.autograd.grad(out.float().sum() / 64, [x, v], retain_graph=True)
        assert out.isfinite().all()
        assert grads[0][:, 0].count_nonzero() == 0
        assert grads[1][:, 0].count_nonzero() == 0
        assert grads[0][:, 1].count_nonzero() > 0
        # It is the drive that is held, and not v, which streams on.
        assert after.v[0, 0, 0].item() == pytest.approx(sign * 0.25e6, rel=1e-3)
        results.append(((out, after), grads))
    assert_same(*results, BF16)


@steadily
@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
def test_autocast(cell, momentum, dtype):
    """Dtypes are the reference's, results near those without it, gradients in the weights' dtype."""
    net = steady(cell, momentum, dtype)
    x, results, kinds = leaf(9, 2, 3, dtype=dtype), [], []
    for one, mode in (
        (net, torch.autocast("cpu", BF16)),
        (reference(net), torch.autocast("cpu", BF16)),
        (reference(net), nullcontext()),
    ):
        with mode:
            got = one(x, one.initial_state(2))
        grads = gradients(got, [x, *one.parameters()])
        assert all(g.dtype == dtype for g in grads)
        results.append((got, grads))
        kinds.append([t.dtype for t in leaves(got)])
    assert kinds[0] == kinds[1]
    assert_same(results[0], results[2], BF16)


def test_printed_adam_at_zero():
    """Where n is 0 the printed form has no gradient, on either backend; elsewhere it has."""
    net = layer("gru", "Adam-printed", 2, 3, bias="hh", backend="native")
    for one in (net, reference(net)):
        x = torch.zeros(4, 1, 2, dtype=F64, requires_grad=True)
        out, _ = one(x)
        assert not all(g.isfinite().all() for g in gradients(out, list(one.parameters())))
    x = leaf(4, 1, 2)
    assert all(g.isfinite().all() for g in gradients(net(x)[0], list(net.parameters())))
