"""The operators of `kernels.op` on a CPU: values, derivatives, and torch's transforms of them."""

import re

import pytest
import torch
from conftest import assert_same, gradients
from torch.func import grad, jacrev, vmap
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode

from momentumrnn.kernels.op import lstm

T, B, D, H = 3, 2, 3, 2
SHAPES = (T, B, D), (4 * H, D), (4 * H, H), (4 * H,), (4 * H,), (B, H), (B, H)
ALL, OVER_X = (0, 1, 2, 3, 4, 5, 6), (0,) + (None,) * 6
FORWARD, BACKWARD = torch.ops.momentumrnn.lstm.default, torch.ops.momentumrnn.lstm_backward.default


def draw(*leading, grad=True):
    """The inputs with these leading axes; None for one that isn't there."""
    return [
        n and torch.randn(n, *shape, dtype=torch.float64, requires_grad=grad)
        for n, shape in zip(leading, SHAPES, strict=True)
    ]


def given_drive(*leading, grad=True):
    """The same, x being the drive."""
    _, _, *rest = draw(1, None, *leading[1:2], None, *leading[2:], grad=grad)
    return [torch.randn(leading[0], T, B, 4 * H, dtype=torch.float64, requires_grad=grad), None, *rest]


def stacked(rows):
    """Many tuples of tensors as one tuple."""
    return tuple(map(torch.stack, zip(*rows, strict=True)))


def decays(rows=B):
    return torch.linspace(0.2, 0.9, T * rows, dtype=torch.float64).view(T, rows)


# Which inputs there are and which are shared, in words; their decay; their step.
CASES = {
    "one replica": lambda: (draw(1, 1, 1, 1, 1, 1, 1), decays(), 0.7),
    "three replicas": lambda: (draw(3, 3, 3, 3, 3, 3, 3), decays(), 0.7),
    "one decay for all rows": lambda: (draw(3, 3, 3, 3, 3, 3, 3), decays(1), 0.7),
    "no momentum": lambda: (draw(3, 3, 3, 3, 3, 3, 3), None, 1.0),
    "shared weights": lambda: (draw(3, 1, 1, 1, 1, 3, 3), decays(), 0.7),
    "shared input": lambda: (draw(1, 3, 3, 3, 3, 1, 1), decays(), 0.7),
    "only c0 of its own": lambda: (draw(1, 1, 1, 1, 1, 1, 3), decays(), 0.7),
    "no biases": lambda: (draw(1, 3, 1, None, None, 3, 1), decays(), 0.7),
    "one bias": lambda: (draw(1, 3, 1, None, 1, 3, 1), decays(), 0.7),
    "a given drive": lambda: (given_drive(3, 1, 3, 1, 3), None, 1.0),
    "a shared drive": lambda: (given_drive(1, 3, None, 1, 1), None, 1.0),
}
over_cases = pytest.mark.parametrize("case", CASES)


def by_torch(inputs, decay, step):
    """Replica by replica and step by step, by torch's own cell."""
    replicas = max(len(t) for t in inputs if t is not None)
    eye, zero = torch.eye(4 * H, dtype=torch.float64), torch.zeros(4 * H, dtype=torch.float64)
    results = []
    for r in range(replicas):
        x, w_ih, w_hh, b_ih, b_hh, h, c = (None if t is None else t[r % len(t)] for t in inputs)
        v, ys = torch.zeros(B, 4 * H, dtype=torch.float64), []
        for t in range(T):
            a = x[t] if w_ih is None else torch.nn.functional.linear(x[t], w_ih, b_ih)
            v = a if decay is None else decay[t].unsqueeze(-1) * v + step * a
            h, c = torch.lstm_cell(v, (h, c), eye, w_hh, zero, zero if b_hh is None else b_hh)
            ys.append(h)
        results.append((torch.stack(ys), h, c))
    return stacked(results)


def layer(*inputs):
    return lstm(*inputs, decays(), 0.7)


def loss(*inputs):
    """A number of all outputs."""
    y, h, c = layer(*inputs)
    return (y * y.cos()).sum() + h.sin().sum() + (c * c).sum()


@over_cases
def test_it_is_torchs_cell_with_a_drive(case):
    inputs, *momentum = CASES[case]()
    given = [t for t in inputs if t is not None]
    got, want = lstm(*inputs, *momentum), by_torch(inputs, *momentum)
    assert_same(got, want)
    assert_same(gradients(got, given), gradients(want, given))


@pytest.mark.parametrize("case", ["one replica", "shared weights", "shared input", "a given drive"])
def test_first_and_second_derivatives(case):
    inputs, *momentum = CASES[case]()
    given = [t for t in inputs if t is not None]

    def function(*tensors):
        rest = iter(tensors)
        return lstm(*(None if t is None else next(rest) for t in inputs), *momentum)

    assert torch.autograd.gradcheck(function, given, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, given)


@over_cases
def test_opcheck(case):
    inputs, *momentum = CASES[case]()
    plain = [None if t is None else t.detach() for t in inputs]
    y, h, c, *kept = FORWARD(*plain, *momentum, True)
    needs = [t is not None for t in inputs]
    # All that is quick for all: tracing for AOTAutograd takes seconds.
    quick = "test_schema", "test_autograd_registration", "test_faketensor"
    every = (*quick, "test_aot_dispatch_dynamic")
    opcheck(FORWARD, (*inputs, *momentum, True), test_utils=every if case == "shared weights" else quick)
    opcheck(FORWARD, (*plain, *momentum, False), test_utils=quick)
    opcheck(BACKWARD, (y.cos(), h.cos(), c.cos(), y, *kept, *inputs, *momentum, needs), test_utils=quick)
    needs[1:5] = [False] * 4
    opcheck(BACKWARD, (None, h.cos(), None, y, *kept, *inputs, *momentum, needs), test_utils=quick)


class Calls(TorchDispatchMode):
    """Remembers the arguments and results of our operators."""

    seen = ()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function in (FORWARD, BACKWARD):
            self.seen += ((args, result),)
        return result


def test_no_more_than_asked_for():
    """Nothing is kept without a gradient, and nothing computed for what nobody uses or needs."""
    inputs = draw(2, 1, 1, 1, 1, 1, 1)
    plain = [t.detach() for t in inputs]
    inputs = [plain[i] if i in (0, 3, 6) else t for i, t in enumerate(inputs)]
    with Calls() as calls:
        lstm(*plain)
        with torch.no_grad():
            lstm(*inputs)
        _, h, _ = lstm(*inputs)
        h.sum().backward()
    *before, (args, found) = calls.seen
    assert [min(map(len, result[3:])) > 0 for _, result in before] == [False, False, True]
    assert [g is None for g in args[:3]] == [True, False, True]
    needs = [False, True, True, False, True, True, False]
    assert list(args[-1]) == needs
    assert [g.shape for g in found] == [t.shape if n else (0,) for t, n in zip(inputs, needs, strict=True)]


@pytest.mark.parametrize("function", [grad(loss, ALL), jacrev(layer, ALL)])
def test_the_backward_gets_what_the_same_replicas_kept(function):
    x, *rest = draw(2, 1, 2, 1, 2, 1, 2, grad=False)
    with Calls() as calls:
        function(x, *rest)
        vmap(function, OVER_X)(torch.stack([x, x.cos(), -x]), *rest)
    seen = [args for args, _ in calls.seen if len(args) == 16]
    assert max(len(args[3]) for args in seen) >= 6
    for args in seen:
        y, _, _, *kept = FORWARD(*args[6:15], True)
        assert_same(args[3], y)
        assert [len(k) for k in args[4:6]] == list(map(len, kept))


@pytest.mark.parametrize("leading", [(1, 1, 1, 1, 1, 1, 1), (2, 1, 2, 1, 1, 2, 1), (1, 2, 2, 2, 2, 1, 2)])
def test_vmap_over_any_inputs(leading):
    """Against a loop; vmap's axis lies before, within and behind the others."""
    for mask in range(1, 128):
        inputs, dims = draw(*leading), [None] * 7
        for i in ALL:
            if mask >> i & 1:
                dims[i] = (0, 1, -1)[(i + mask) % 3]
                t = inputs[i].detach()
                inputs[i] = torch.stack([t, 2 - t, t.cos()], dims[i]).requires_grad_()
        pairs = list(zip(inputs, dims, strict=True))
        each = [[t if d is None else t.select(d, k) for t, d in pairs] for k in range(3)]
        got, want = vmap(layer, tuple(dims))(*inputs), stacked([layer(*a) for a in each])
        assert_same(got, want)
        assert_same(gradients(got, inputs), gradients(want, inputs))
        # Of a shared input too, one gradient each.
        got = vmap(grad(loss, ALL), tuple(dims))(*(t.detach() for t in inputs))
        assert_same(got, stacked([torch.autograd.grad(loss(*a), a) for a in each]))


def test_under_vmap_what_is_shared_stays_so():
    x, *rest = inputs = draw(2, 1, 1, 1, 1, 2, 1, grad=False)
    with Calls() as calls:
        vmap(layer, OVER_X)(x.expand(4, -1, -1, -1, -1), *rest)
    ((args, _),) = calls.seen
    assert list(map(len, args[:7])) == [8, 1, 1, 1, 1, 8, 1]
    y, h, c, *kept = FORWARD(*inputs, decays(), 0.7, True)
    rest = h, c, y, *kept, *inputs, decays(), 0.7, [True] * 7
    found = vmap(lambda dy: BACKWARD(dy, *rest))(torch.stack([y, -y]))
    assert [g.shape[1:] for g in found] == [t.shape for t in inputs]


@pytest.mark.parametrize("function", [layer, grad(loss, ALL), jacrev(loss, ALL)])
def test_nested_vmap(function):
    x, w_ih, w_hh, b_ih, b_hh, h0, c0 = draw(2, 1, 2, 1, 1, 2, 1, grad=False)
    xs, bs = torch.stack([x, -x]), torch.stack([b_hh, b_hh + 1, -b_hh], 1)

    def one(x, b):
        return function(x, w_ih, w_hh, b_ih, b, h0, c0)

    got = vmap(vmap(one, (None, 1)), (0, None))(xs, bs)
    want = stacked([one(x, b) for x in xs for b in bs.unbind(1)])
    assert_same([g.flatten(0, 1) for g in got], want)


def test_gradients_by_torch_func():
    inputs = draw(2, 1, 2, 1, 2, 1, 2)
    plain = [t.detach() for t in inputs]
    assert_same(grad(loss, ALL)(*plain), torch.autograd.grad(loss(*inputs), inputs))
    xs = torch.stack([plain[0], plain[0].cos()])
    got = grad(lambda *a: vmap(loss, OVER_X)(*a).sum(), ALL)(xs, *plain[1:])
    each = stacked([grad(loss, ALL)(x, *plain[1:]) for x in xs])
    assert_same(got, (each[0], *(g.sum(0) for g in each[1:])))


def test_jacobians():
    inputs = draw(2, 1, 2, 1, 2, 1, 2)
    plain = [t.detach() for t in inputs]
    for o, got in zip(layer(*inputs), jacrev(layer, ALL)(*plain), strict=True):
        want = stacked([torch.autograd.grad(e, inputs, retain_graph=True) for e in o.flatten()])
        assert_same([j.flatten(0, o.dim() - 1) for j in got], want)
    xs = torch.stack([plain[0], plain[0].cos()])
    got = vmap(jacrev(layer, (0, 2)), OVER_X)(xs, *plain[1:])
    for k, x in enumerate(xs):
        assert_same([[j[k] for j in js] for js in got], jacrev(layer, (0, 2))(x, *plain[1:]))


def test_second_derivatives_under_torch_func():
    inputs = draw(1, 1, 1, 1, 1, 1, 1)
    plain = tuple(t.detach() for t in inputs)

    def slope(*inputs):
        return grad(loss, 2)(*inputs).sin().sum()

    (first,) = torch.autograd.grad(loss(*inputs), inputs[2], create_graph=True)
    want = torch.autograd.grad(first.sin().sum(), inputs)
    assert_same(grad(slope, ALL)(*plain), want)
    several = [torch.stack([t, t.cos()]) for t in plain]
    got = vmap(grad(slope, ALL))(*several)
    assert_same(got, stacked([grad(slope, ALL)(*(t[k] for t in several)) for k in range(2)]))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_in_one_graph(dynamic):
    inputs = draw(2, 1, 2, 1, 2, 1, 2)
    plain = tuple(t.detach() for t in inputs)
    run = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    want = torch.autograd.grad(loss(*inputs), inputs)
    assert_same(torch.autograd.grad(run(*inputs), inputs), want)
    assert_same(run(*plain), loss(*plain))
    each = vmap(grad(loss, (0, 2)), OVER_X)
    run = torch.compile(each, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    xs = torch.stack([plain[0], plain[0].cos()])
    assert_same(run(xs, *plain[1:]), each(xs, *plain[1:]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": (T, B, D)}, "x should have shape (R, T, B, D), T at least 1, got (3, 2, 3)"),
        ({"w_ih": None}, "b_ih and decay should be None where w_ih is None, got a tensor"),
        ({"w_ih": None, "b_ih": None, "decay": None, "step": 1.0}, "x should have shape (R, 3, 2, 8), got"),
        ({"w_ih": (1, 8, D + 1)}, "w_ih should have shape (R, 8, 3), got (1, 8, 4)"),
        ({"w_hh": (8, H)}, "w_hh should have shape (R, 4H, H), got (8, 2)"),
        ({"w_hh": (1, 6, H)}, "w_hh should have shape (R, 8, 2), got (1, 6, 2)"),
        ({"b_hh": (8,)}, "b_hh should have shape (R, 8), got (8,)"),
        ({"h0": (3, B, H)}, "x should have a leading axis of 3 or 1, got shape (2, 3, 2, 3)"),
        ({"decay": (T + 1, 1)}, "decay should have shape (3, 2 or 1), got (4, 1)"),
        ({"decay": None}, "step should be 1 where decay is None, got 0.7"),
    ],
)
def test_errors(change, message):
    names = "x", "w_ih", "w_hh", "b_ih", "b_hh", "h0", "c0", "decay"
    shapes = [(2, *SHAPES[0]), *((1, *s) for s in SHAPES[1:]), (T, 1)]
    given = dict(zip(names, shapes, strict=True)) | {"step": 0.7} | change
    with pytest.raises(ValueError, match=re.escape(message)):
        lstm(**{name: torch.zeros(s) if isinstance(s, tuple) else s for name, s in given.items()})


def test_decay_is_a_constant():
    inputs = draw(1, 1, 1, 1, 1, 1, 1)
    with pytest.raises(ValueError, match="decay should not require a gradient"):
        lstm(*inputs, decays().requires_grad_())
    with pytest.raises(ValueError, match="decay should be the same for all"):
        vmap(lambda d: lstm(*inputs, d)[0])(decays().expand(2, T, B))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch's own
def test_no_derivatives_in_forward_mode():
    inputs = tuple(draw(1, 1, 1, 1, 1, 1, 1, grad=False))
    with pytest.raises(NotImplementedError, match="forward mode"):
        torch.func.jvp(loss, inputs, inputs)
    with pytest.raises(NotImplementedError, match="forward mode"):
        torch.func.hessian(loss)(*inputs)
