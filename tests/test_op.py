"""The operators of `kernels.op` on a CPU: values, derivatives, and torch's transforms of them."""

import itertools
import re

import pytest
import torch
from conftest import assert_same, gradients
from torch.func import grad, jacrev, vmap
from torch.library import opcheck
from torch.nn.functional import linear
from torch.utils._python_dispatch import TorchDispatchMode

from momentumrnn.kernels.op import OUTPUTS, REPLICATED, TENSORS, Inputs, lstm

T, B, D, H = 3, 2, 3, 2
G = 4 * H
NAMES = Inputs._fields[:TENSORS]
SIZES = (3, 2, 2, 1)  # of packed rows: sequences of 4, 3 and 1 steps
ALL, OVER_X = (0, 1, 2, 3, 4, 5, 6), (0,) + (None,) * 6
EVERY = tuple(range(TENSORS))
FORWARD, BACKWARD = torch.ops.momentumrnn.lstm.default, torch.ops.momentumrnn.lstm_backward.default
# Where the inputs begin among the arguments of the backward: after six gradients, y and three buffers.
AFTER = OUTPUTS + 4


def shapes(sizes=()):
    rows, lead = (sizes[0], (sum(sizes),)) if sizes else (B, (T, B))
    state, gates = (rows, H), (rows, G)
    return (*lead, D), (G, D), (G, H), (G,), (G,), state, state, gates, (G,), (G,), gates, gates


def draw(*leading, grad=True, sizes=()):
    """The first inputs with these leading axes; None: it isn't there. From mu on all are positive."""
    found = []
    for name, n, shape in zip(NAMES, leading, shapes(sizes), strict=False):
        t = n and torch.randn(n, *shape, dtype=torch.float64)
        if n and name in ("mu", "gain", "v0", "n0"):
            t = t.sigmoid() + (name == "n0")
        found.append(n and t.requires_grad_(grad))
    return found


def given_drive(*leading, grad=True, sizes=(), z0=None):
    """The same, x being the drive."""
    x, _, *rest = draw(leading[0], None, *leading[1:2], None, *leading[2:], z0, grad=grad, sizes=sizes)
    return [torch.randn(*x.shape[:-1], G, dtype=torch.float64, requires_grad=grad), None, *rest]


def stacked(rows):
    """Many tuples of tensors as one tuple."""
    return tuple(map(torch.stack, zip(*rows, strict=True)))


def decays(rows=B, steps=T):
    return torch.linspace(0.2, 0.9, steps * rows, dtype=torch.float64).view(steps, rows)


def j0(rows=B, lead=1):
    """A j of its own for each row of each replica."""
    return torch.arange(lead * rows, dtype=torch.float64).view(lead, rows) * 4


# Those of a layer that has everything.
FULL = {"beta": 0.8, "eps": 0.3, "j0": j0(), "every": 5}
PACKED = {"sizes": SIZES}
ROWS = decays(3, 4)

# Which inputs there are and which are shared, in words; the rest of the inputs.
CASES = {
    "one replica": lambda: (draw(1, 1, 1, 1, 1, 1, 1), {"decay": decays(), "step": 0.7}),
    "three replicas": lambda: (draw(3, 3, 3, 3, 3, 3, 3), {"decay": decays(), "step": 0.7}),
    "one decay for all rows": lambda: (draw(3, 3, 3, 3, 3, 3, 3), {"decay": decays(1), "step": 0.7}),
    "no momentum": lambda: (draw(3, 3, 3, 3, 3, 3, 3), {}),
    "shared weights": lambda: (draw(3, 1, 1, 1, 1, 3, 3), {"decay": decays(), "step": 0.7}),
    "shared input": lambda: (draw(1, 3, 3, 3, 3, 1, 1), {"decay": decays(), "step": 0.7}),
    "only c0 of its own": lambda: (draw(1, 1, 1, 1, 1, 1, 3), {"decay": decays(), "step": 0.7}),
    "no biases": lambda: (draw(1, 3, 1, None, None, 3, 1), {"decay": decays(), "step": 0.7}),
    "one bias": lambda: (draw(1, 3, 1, None, 1, 3, 1), {"decay": decays(), "step": 0.7}),
    "a given drive": lambda: (given_drive(3, 1, 3, 1, 3), {}),
    "a shared drive": lambda: (given_drive(1, 3, None, 1, 1), {}),
    "fine": lambda: (draw(1, 3, 3, 3, 3, 1, 1), {"decay": decays(), "step": 0.7, "fine": True}),
    "mu": lambda: (draw(1, 2, 1, 1, 1, 1, 1, None, 2), {"step": 0.7}),
    "only mu of its own": lambda: (draw(1, 1, 1, 1, 1, 1, 1, None, 3), {}),
    "gain": lambda: (draw(2, 1, 1, 1, 1, 1, 1, None, None, 1), {"decay": decays()}),
    "mu and gain": lambda: (draw(2, 1, 2, None, 1, 1, 2, None, 2, 1), {}),
    "v0": lambda: (draw(2, 1, 1, 1, 1, 1, 1, None, None, None, 1), {"decay": decays(), "step": 0.7}),
    "only v0 of its own": lambda: (draw(1, 1, 1, 1, None, 1, 1, None, 1, None, 3), {}),
    "second moment": lambda: (draw(2, 1, 1, 1, 1, 2, 1), {"decay": decays(1), "beta": 0.9, "eps": 0.1}),
    "no first moment": lambda: (
        draw(1, 1, 1, 1, 1, 1, 1),
        {"decay": torch.zeros_like(decays(1)), "beta": 0.0, "eps": 0.1, "step": 0.7},
    ),
    "printed": lambda: (
        draw(1, 2, 1, None, 1, 1, 1),
        {"decay": decays(), "beta": 0.5, "eps": 0.3, "eps_in_sqrt": False},
    ),
    "n0": lambda: (
        draw(2, 1, 1, 1, 1, 1, 1, None, None, None, 2, 1),
        {"decay": decays(), "step": 0.7, "beta": 0.9, "eps": 0.1},
    ),
    "extrapolated": lambda: (draw(2, 1, 1, 1, 1, 1, 1, 2), {"j0": j0(), "every": 5}),
    "only z0 of its own": lambda: (draw(1, 1, 1, 1, 1, 1, 1, 3), {"j0": j0(), "every": 2}),
    "j0 too": lambda: (draw(2, 1, 1, 1, 1, 1, 1, 1), {"j0": j0(B, 2), "every": 7}),
    "only j0 of its own": lambda: (draw(1, 1, 1, 1, 1, 1, 1, 1), {"j0": j0(B, 2), "every": 7}),
    "extrapolated drive": lambda: (given_drive(1, 2, 1, 1, 1, z0=1), {"j0": j0(), "every": 5}),
    "extrapolated momentum": lambda: (
        draw(1, 1, 1, 1, 1, 1, 1, 1),
        {"j0": j0(), "every": 5, "decay": decays(), "step": -0.7},
    ),
    "everything": lambda: (draw(2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1), FULL),
    "packed": lambda: (draw(2, 1, 1, 1, 1, 1, 1, sizes=SIZES), PACKED),
    "packed, decays": lambda: (
        draw(1, 2, 1, 1, 1, 1, 1, sizes=SIZES),
        {"decay": ROWS, "step": 0.7, "fine": True} | PACKED,
    ),
    "packed, v0": lambda: (
        draw(1, 2, 1, 1, 1, 1, 1, None, None, None, 1, sizes=SIZES),
        {"decay": ROWS[:, :1]} | PACKED,
    ),
    "packed drive": lambda: (given_drive(3, 1, 3, 1, 3, sizes=SIZES), PACKED),
    "packed, one row": lambda: (draw(1, 1, 1, 1, 1, 1, 1, sizes=(1, 1)), {"sizes": (1, 1)}),
    "packed, everything": lambda: (
        draw(2, 1, 1, 1, 1, 2, 1, 2, 1, 2, 1, 1, sizes=SIZES),
        FULL | PACKED | {"j0": j0(3, 2)},
    ),
}
over_cases = pytest.mark.parametrize("case", CASES)


def by_torch(inputs, options):
    """Replica by replica, row by row and step by step, its cell torch's own."""
    i = Inputs(*inputs, **options)
    sizes = i.sizes or (B,) * T
    replicas = max(len(t) for t in i[:REPLICATED] if t is not None)
    results = []
    for r in range(replicas):
        own = [None if t is None else t[r % len(t)] for t in i[:TENSORS]]
        if not i.sizes:
            own[0] = own[0].flatten(0, 1)
        j = None if i.j0 is None else i.j0[r % len(i.j0)]
        rows = [one_sequence(own, j, i, b, sizes) for b in range(sizes[0])]
        y = torch.stack([rows[b][0][t] for t, size in enumerate(sizes) for b in range(size)])
        last = map(torch.stack, zip(*(row[1:] for row in rows), strict=True))
        results.append((y if i.sizes else y.unflatten(0, (T, B)), *last))
    outputs = list(stacked(results))
    return [
        *outputs[:3],
        *(
            o if t is not None else o.new_empty(0)
            for o, t in zip(outputs[3:], (i.z0, i.v0, i.n0), strict=True)
        ),
    ]


def one_sequence(own, j0, i, b, sizes):
    """h of each step, and the last h, c, z, v and n, of row b."""
    x, w_ih, w_hh, b_ih, b_hh, h, c, z, mu, gain, v, n = own
    zero = torch.zeros(G, dtype=torch.float64)
    h, c, z, v, n = h[b], c[b], *(zero if t is None else t[b] for t in (z, v, n))
    ys, place = [], b
    for t, size in enumerate(sizes):
        if b >= size:
            break
        a = x[place] if w_ih is None else linear(x[place], w_ih, b_ih)
        place += size
        if mu is None and i.decay is None:
            v = a
        else:
            factor = i.decay[t, b if i.decay.shape[1] > 1 else 0] if mu is None else mu
            v = factor * v + (i.step if gain is None else gain) * a
        drive = v
        if i.beta is not None:
            n = i.beta * n + (1 - i.beta) * a.square()
            drive = v / ((n + i.eps**2).sqrt() if i.eps_in_sqrt else n.sqrt() + i.eps)
        before, z = z, drive + linear(h, w_hh, b_hh)
        gates = z
        if j0 is not None:
            j = (j0[b].item() + t) % i.every
            gates = z + j / (j + 3) * (z - before)
        eye, none = torch.eye(G, dtype=torch.float64), torch.zeros(G, H, dtype=torch.float64)
        h, c = (s[0] for s in torch.lstm_cell(gates[None], (h[None], c[None]), eye, none, zero, zero))
        ys.append(h)
    return torch.stack(ys), h, c, z, v, n


def layer(*inputs):
    return lstm(*inputs, decay=decays(), step=0.7)[:3]


def full(*inputs):
    """All twelve tensors at work."""
    return lstm(*inputs, **FULL)


def number(outputs):
    """A number of all outputs."""
    y, h, c, *rest = outputs
    return (y * y.cos()).sum() + h.sin().sum() + (c * c).sum() + sum(t.sin().sum() for t in rest)


def loss(*inputs):
    return number(layer(*inputs))


def full_loss(*inputs):
    return number(full(*inputs))


@over_cases
def test_it_is_torchs_cell_with_a_drive(case):
    inputs, options = CASES[case]()
    given = [t for t in inputs if t is not None]
    got, want = lstm(*inputs, **options), by_torch(inputs, options)
    assert_same(got, want)
    assert_same(gradients(got, given), gradients(want, given))


def test_rows_that_end_keep_their_state():
    """Packed rows are the padded ones, each up to its own end."""
    inputs, options = CASES["packed, everything"]()
    y, *last = lstm(*inputs, **options)
    begins = list(itertools.accumulate(SIZES, initial=0))
    for b, steps in enumerate((4, 3, 1)):
        x, rest = inputs[0][:, [begins[t] + b for t in range(steps)]].unsqueeze(2), list(inputs[1:])
        for i in (5, 6, 7, 10, 11):
            rest[i - 1] = inputs[i][:, b : b + 1]
        alone = lstm(x, *rest, **FULL | {"j0": options["j0"][:, b : b + 1]})
        assert_same([y[:, begins[t] + b] for t in range(steps)], list(alone[0][:, :, 0].unbind(1)))
        assert_same([t[:, b : b + 1] for t in last], alone[1:])


def test_a_sequence_in_two_parts():
    """What comes out as z, v and n goes in again."""
    inputs, _ = CASES["everything"]()
    whole = lstm(*inputs, **FULL)
    x, w_ih, w_hh, b_ih, b_hh, *_, mu, gain, _, _ = inputs
    y, h, c, z, v, n = lstm(x[:, :1], *inputs[1:], **FULL)
    later = FULL | {"j0": FULL["j0"] + 1}
    rest = lstm(x[:, 1:], w_ih, w_hh, b_ih, b_hh, h, c, z, mu, gain, v, n, **later)
    got = torch.cat([y, rest[0]], 1), *rest[1:]
    assert_same(got, whole)
    assert_same(gradients(got, inputs), gradients(whole, inputs))


def of_given(inputs, options):
    """The layer as a function of those inputs that are there, and those."""

    def function(*tensors):
        rest = iter(tensors)
        outputs = lstm(*(None if t is None else next(rest) for t in inputs), **options)
        return tuple(o for o in outputs if o.numel())

    return function, [t for t in inputs if t is not None]


@pytest.mark.parametrize(
    "case", ["one replica", "shared weights", "shared input", "a given drive", "mu and gain", "n0", "packed"]
)
def test_first_and_second_derivatives(case):
    function, given = of_given(*CASES[case]())
    assert torch.autograd.gradcheck(function, given, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, given, fast_mode=case in ("mu and gain", "n0", "packed"))


@pytest.mark.parametrize("case", ["printed", "extrapolated", "everything", "packed, everything"])
def test_derivatives_by_projection(case):
    """Those of many inputs, along random directions."""
    function, given = of_given(*CASES[case]())
    assert torch.autograd.gradcheck(function, given, fast_mode=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, given, fast_mode=True)


@over_cases
def test_opcheck(case):
    inputs, options = CASES[case]()
    inputs = Inputs(*inputs, **options)
    plain = inputs._replace(
        **{name: None if t is None else t.detach() for name, t in zip(NAMES, inputs, strict=False)}
    )
    outputs = FORWARD(*plain, True)
    kept, grads = (outputs[0], *outputs[OUTPUTS:]), [o.cos() for o in outputs[:OUTPUTS]]
    needs = [t is not None for t in inputs[:TENSORS]]
    # All that is quick for all: tracing for AOTAutograd takes seconds.
    quick = "test_schema", "test_autograd_registration", "test_faketensor"
    traced = case in ("shared weights", "everything", "packed, everything")
    opcheck(FORWARD, (*inputs, True), test_utils=(*quick, "test_aot_dispatch_dynamic") if traced else quick)
    opcheck(FORWARD, (*plain, False), test_utils=quick)
    opcheck(BACKWARD, (*grads, *kept, *inputs, needs), test_utils=quick)
    needs[1:5] = [False] * 4
    grads[0] = grads[2] = None
    opcheck(BACKWARD, (*grads, *kept, *inputs, needs), test_utils=quick)


class Calls(TorchDispatchMode):
    """Remembers the arguments and results of our operators."""

    seen = ()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function in (FORWARD, BACKWARD):
            self.seen += ((args, result),)
        return result


@pytest.mark.parametrize("case", ["shared weights", "mu and gain", "everything", "packed, everything"])
def test_no_more_than_asked_for(case):
    """Nothing is kept without a gradient, and nothing computed for what nobody uses or needs."""
    inputs, options = CASES[case]()
    plain = [None if t is None else t.detach() for t in inputs]
    inputs = [plain[i] if i in (0, 3, 6) else t for i, t in enumerate(inputs)]
    with Calls() as calls:
        lstm(*plain, **options)
        with torch.no_grad():
            lstm(*inputs, **options)
        _, h, *_ = lstm(*inputs, **options)
        h.sum().backward()
    *before, (args, found) = calls.seen
    kept = [[len(t) > 0 for t in result[OUTPUTS:]] for _, result in before]
    assert kept == [[False] * 3, [False] * 3, [True, True, case != "shared weights"]]
    # What is empty has a gradient that is empty too, or none.
    assert [g is None or g.numel() == 0 for g in args[:OUTPUTS]] == [i != 1 for i in range(OUTPUTS)]
    needs = [t is not None and t.requires_grad for t in args[AFTER : AFTER + TENSORS]]
    assert list(args[-1]) == needs
    assert needs[:7] == [False, True, True, False, True, True, False]
    shapes = [t.shape if n else (0,) for t, n in zip(args[AFTER:], needs, strict=False)]
    assert [g.shape for g in found] == shapes


def test_an_input_that_nothing_hangs_on():
    """z0 where its first factor is 0, and v0 where mu is: gradients of 0, not none."""
    inputs, options = CASES["everything"]()
    with torch.no_grad():
        inputs[8].zero_()
    y = lstm(*inputs, **options | {"j0": torch.zeros_like(j0())})[0]
    dz, dv = torch.autograd.grad(y.sum(), [inputs[7], inputs[10]])
    assert torch.equal(dz, torch.zeros_like(dz))
    assert torch.equal(dv, torch.zeros_like(dv))


# The layer and a number of it; its inputs' leading axes, for two replicas.
LAYERS = {
    "decays": (layer, loss, (2, 1, 2, 1, 2, 1, 2)),
    "everything": (full, full_loss, (2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1)),
}
over_layers = pytest.mark.parametrize(("function", "value", "leading"), LAYERS.values(), ids=LAYERS)


@over_layers
@pytest.mark.parametrize("how", ["grad", "jacrev"])
def test_the_backward_gets_what_the_same_replicas_kept(function, value, leading, how):
    x, *rest = draw(*leading, grad=False)
    every = tuple(range(len(leading)))
    each = grad(value, every) if how == "grad" else jacrev(function, every)
    with Calls() as calls:
        each(x, *rest)
        vmap(each, (0,) + (None,) * len(rest))(torch.stack([x, x.cos(), -x]), *rest)
    seen = [args for args, _ in calls.seen if len(args) == AFTER + len(Inputs._fields) + 1]
    assert max(len(args[OUTPUTS]) for args in seen) >= 6
    for args in seen:
        y, *others = FORWARD(*args[AFTER:-1], True)
        assert_same(args[OUTPUTS], y)
        assert [len(k) for k in args[OUTPUTS + 1 : AFTER]] == [len(k) for k in others[OUTPUTS - 1 :]]


def check_vmap(function, value, leading, mask):
    """Against a loop; vmap's axis lies before, within and behind the others."""
    inputs, dims = draw(*leading), [None] * len(leading)
    for i in range(len(leading)):
        if mask >> i & 1:
            dims[i] = (0, 1, -1)[(i + mask) % 3]
            t = inputs[i].detach()
            # All positive, for n0.
            inputs[i] = torch.stack([t, t.abs() + 0.5, t.abs().sqrt()], dims[i]).requires_grad_()
    pairs = list(zip(inputs, dims, strict=True))
    each = [[t if d is None else t.select(d, k) for t, d in pairs] for k in range(3)]
    got, want = vmap(function, tuple(dims))(*inputs), stacked([function(*a) for a in each])
    assert_same(got, want)
    assert_same(gradients(got, inputs), gradients(want, inputs))
    # Of a shared input too, one gradient each.
    got = vmap(grad(value, tuple(range(len(leading)))), tuple(dims))(*(t.detach() for t in inputs))
    assert_same(got, stacked([torch.autograd.grad(value(*a), a) for a in each]))


@pytest.mark.parametrize("leading", [(1, 1, 1, 1, 1, 1, 1), (2, 1, 2, 1, 1, 2, 1), (1, 2, 2, 2, 2, 1, 2)])
def test_vmap_over_any_inputs(leading):
    for mask in range(1, 128):
        check_vmap(layer, loss, leading, mask)


@pytest.mark.parametrize(
    "leading", [(1,) * 12, (2, 1, 2, 1, 1, 2, 1, 1, 2, 1, 2, 1), (1, 1, 1, 1, 1, 1, 1, 2, 1, 2, 1, 2)]
)
def test_vmap_over_the_state_and_the_rates(leading):
    """One by one, all of them, and those from z0 on in all ways."""
    for mask in sorted({1 << i for i in EVERY} | {(1 << TENSORS) - 1} | {m << 7 for m in range(1, 32)}):
        check_vmap(full, full_loss, leading, mask)


@pytest.mark.parametrize("leading", [(1,) * 12, (2, 1, 2, 1, 1, 2, 1, 1, 2, 1, 2, 1)])
def test_vmap_over_j0(leading):
    """Alone, and with z0."""
    inputs = draw(*leading, grad=False)
    js = torch.stack([j0(), j0() + 1, j0() + 2], 1)

    def value(j, z, *inputs):
        *before, _, mu, gain, v, n = inputs
        return number(lstm(*before, z, mu, gain, v, n, **FULL | {"j0": j}))

    for zs, over in ((inputs[7], None), (torch.stack([inputs[7]] * 3), 0)):
        each = grad(value, tuple(range(1, 14)))
        got = vmap(each, (1, over) + (None,) * 12)(js, zs, *inputs)
        want = [
            each(j, zs if over is None else z, *inputs)
            for j, z in zip(js.unbind(1), zs if over == 0 else [None] * 3, strict=True)
        ]
        assert_same(got, stacked(want))


@pytest.mark.parametrize("case", ["packed", "packed, decays", "packed, v0", "packed, everything"])
def test_vmap_of_packed_rows(case):
    """Their outputs that are empty stay so."""
    inputs, options = CASES[case]()
    function, given = of_given([None if t is None else t.detach() for t in inputs], options)
    x, *rest = given
    xs = torch.stack([x, x.cos(), -x], 1)
    over = (1,) + (None,) * len(rest)
    assert_same(vmap(function, over)(xs, *rest), stacked([function(x, *rest) for x in xs.unbind(1)]))

    def value(*given):
        return number(function(*given))

    every = tuple(range(len(given)))
    got = vmap(grad(value, every), over)(xs, *rest)
    assert_same(got, stacked([grad(value, every)(x, *rest) for x in xs.unbind(1)]))


def test_under_vmap_what_is_shared_stays_so():
    x, *rest = inputs = draw(2, 1, 1, 1, 1, 2, 1, grad=False)
    with Calls() as calls:
        vmap(layer, OVER_X)(x.expand(4, -1, -1, -1, -1), *rest)
    ((args, _),) = calls.seen
    assert list(map(len, args[:7])) == [8, 1, 1, 1, 1, 8, 1]
    given = Inputs(*inputs, decay=decays(), step=0.7)
    y, h, c, *others = FORWARD(*given, True)
    rest = h, c, None, None, None, y, *others[3:], *given, [t is not None for t in given[:TENSORS]]
    found = vmap(lambda dy: BACKWARD(dy, *rest)[:7])(torch.stack([y, -y]))
    assert [g.shape[1:] for g in found] == [t.shape for t in inputs]


def test_under_vmap_shared_rates_stay_so():
    inputs = draw(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, grad=False)
    for i in EVERY:
        over = tuple(0 if k == i else None for k in EVERY)
        given = [t.expand(4, *t.shape) if k == i else t for k, t in enumerate(inputs)]
        with Calls() as calls:
            vmap(full, over)(*given)
        ((args, _),) = calls.seen
        assert list(map(len, args[:TENSORS])) == [4 if k == i else 1 for k in EVERY]


@over_layers
@pytest.mark.parametrize("how", ["values", "grad", "jacrev"])
def test_nested_vmap(function, value, leading, how):
    x, w_ih, w_hh, b_ih, b_hh, *rest = draw(*leading, grad=False)
    xs, bs = torch.stack([x, -x]), torch.stack([b_hh, b_hh + 1, -b_hh], 1)
    every = tuple(range(len(leading)))
    apply = {"values": function, "grad": grad(value, every), "jacrev": jacrev(value, every)}[how]

    def one(x, b):
        return apply(x, w_ih, w_hh, b_ih, b, *rest)

    got = vmap(vmap(one, (None, 1)), (0, None))(xs, bs)
    want = stacked([one(x, b) for x in xs for b in bs.unbind(1)])
    assert_same([g.flatten(0, 1) for g in got], want)


@over_layers
def test_gradients_by_torch_func(function, value, leading):
    inputs = draw(*leading)
    plain, every = [t.detach() for t in inputs], tuple(range(len(leading)))
    assert_same(grad(value, every)(*plain), torch.autograd.grad(value(*inputs), inputs))
    xs, over = torch.stack([plain[0], plain[0].cos()]), (0,) + (None,) * len(plain[1:])
    got = grad(lambda *a: vmap(value, over)(*a).sum(), every)(xs, *plain[1:])
    each = stacked([grad(value, every)(x, *plain[1:]) for x in xs])
    assert_same(got, (each[0], *(g.sum(0) for g in each[1:])))


@over_layers
def test_jacobians(function, value, leading):
    inputs = draw(*leading)
    plain, every = [t.detach() for t in inputs], tuple(range(len(leading)))
    for o, got in zip(function(*inputs), jacrev(function, every)(*plain), strict=True):
        rows = [
            torch.autograd.grad(e, inputs, retain_graph=True, materialize_grads=True) for e in o.flatten()
        ]
        assert_same([j.flatten(0, o.dim() - 1) for j in got], stacked(rows))
    xs, over = torch.stack([plain[0], plain[0].cos()]), (0,) + (None,) * len(plain[1:])
    some = (0, 2) if len(leading) == 7 else (0, 7, 8, 10)
    got = vmap(jacrev(function, some), over)(xs, *plain[1:])
    for k, x in enumerate(xs):
        assert_same([[j[k] for j in js] for js in got], jacrev(function, some)(x, *plain[1:]))


@pytest.mark.parametrize("by", [2, 8])
@over_layers
def test_second_derivatives_under_torch_func(function, value, leading, by):
    by = min(by, len(leading) - 1)
    inputs = draw(*(1 for _ in leading))
    plain, every = tuple(t.detach() for t in inputs), tuple(range(len(leading)))

    def slope(*inputs):
        return grad(value, by)(*inputs).sin().sum()

    (first,) = torch.autograd.grad(value(*inputs), inputs[by], create_graph=True)
    want = torch.autograd.grad(first.sin().sum(), inputs)
    assert_same(grad(slope, every)(*plain), want)
    several = [torch.stack([t, t.abs().sqrt()]) for t in plain]
    got = vmap(grad(slope, every))(*several)
    assert_same(got, stacked([grad(slope, every)(*(t[k] for t in several)) for k in range(2)]))


@pytest.mark.parametrize("dynamic", [False, True])
@over_layers
def test_compiled_in_one_graph(function, value, leading, dynamic):
    torch.compiler.reset()
    inputs = draw(*leading)
    plain = tuple(t.detach() for t in inputs)
    run = torch.compile(value, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    want = torch.autograd.grad(value(*inputs), inputs)
    assert_same(torch.autograd.grad(run(*inputs), inputs), want)
    assert_same(run(*plain), value(*plain))
    each = vmap(grad(value, (0, 2)), (0,) + (None,) * len(plain[1:]))
    run = torch.compile(each, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    xs = torch.stack([plain[0], plain[0].cos()])
    assert_same(run(xs, *plain[1:]), each(xs, *plain[1:]))


@pytest.mark.parametrize("case", ["packed, decays", "packed, everything", "extrapolated drive", "n0"])
def test_compiled_cases(case):
    torch.compiler.reset()
    function, given = of_given(*CASES[case]())
    got, want = torch.compile(function, fullgraph=True, backend="aot_eager")(*given), function(*given)
    assert_same(got, want)
    assert_same(gradients(got, given), gradients(want, given))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": (T, B, D)}, "x should have shape (R, T, B, D), T at least 1, got (3, 2, 3)"),
        ({"x": (1, 0, B, D)}, "x should have shape (R, T, B, D), T at least 1, got (1, 0, 2, 3)"),
        ({"w_ih": None}, "b_ih should be None where w_ih is None"),
        ({"w_ih": None, "b_ih": None}, "decay should be None where w_ih is None"),
        (
            {"w_ih": None, "b_ih": None, "decay": None, "beta": 0.5},
            "beta should be None where w_ih is None",
        ),
        ({"w_ih": None, "b_ih": None, "decay": None, "mu": (1, 8)}, "mu should be None where w_ih is None"),
        ({"w_ih": None, "b_ih": None, "decay": None, "step": 1.0}, "x should have shape (R, 3, 2, 8), got"),
        ({"w_ih": (1, 8, D + 1)}, "w_ih should have shape (R, 8, 3), got (1, 8, 4)"),
        ({"w_hh": (8, H)}, "w_hh should have shape (R, 4H, H), got (8, 2)"),
        ({"w_hh": (1, 6, H)}, "w_hh should have shape (R, 8, 2), got (1, 6, 2)"),
        ({"b_hh": (8,)}, "b_hh should have shape (R, 8), got (8,)"),
        ({"h0": (3, B, H)}, "x should have a leading axis of 3 or 1, got shape (2, 3, 2, 3)"),
        ({"c0": (1, B + 1, H)}, "c0 should have shape (R, 2, 2), got (1, 3, 2)"),
        ({"decay": (T + 1, 1)}, "decay should have shape (3, 2 or 1), got (4, 1)"),
        ({"decay": (T, B + 1)}, "decay should have shape (3, 2 or 1), got (3, 3)"),
        ({"decay": None}, "a momentum should have one of decay and mu, got none"),
        ({"decay": None, "step": 1.0, "gain": (1, 8)}, "one of decay and mu, got none"),
        ({"decay": None, "step": 1.0, "beta": 0.5}, "one of decay and mu, got none"),
        ({"mu": (1, 8)}, "one of decay and mu, got both"),
        ({"mu": (1, 2), "decay": None}, "mu should have shape (R, 8), got (1, 2)"),
        ({"mu": (3, 8), "decay": None}, "x should have a leading axis of 3 or 1, got shape (2, 3, 2, 3)"),
        ({"gain": (1, 8)}, "step should be 1 where gain is given, got 0.7"),
        ({"gain": (8,), "step": 1.0}, "gain should have shape (R, 8), got (8,)"),
        ({"v0": (1, B, H)}, "v0 should have shape (R, 2, 8), got (1, 2, 2)"),
        ({"n0": (1, B, 8)}, "n0 should be given where v0 and beta are, and only there"),
        ({"v0": (1, B, 8), "n0": (1, B, 8)}, "n0 should be given where v0 and beta are, and only there"),
        ({"v0": (1, B, 8), "beta": 0.5}, "n0 should be given where v0 and beta are, and only there"),
        ({"n0": (1, 8), "v0": (1, B, 8), "beta": 0.5}, "n0 should have shape (R, 2, 8), got (1, 8)"),
        ({"z0": (1, B, 8)}, "z0 and j0 should be given both or not at all"),
        ({"j0": (1, B)}, "z0 and j0 should be given both or not at all"),
        ({"z0": (1, B, H), "j0": (1, B)}, "z0 should have shape (R, 2, 8), got (1, 2, 2)"),
        ({"z0": (1, B, 8), "j0": (B,)}, "j0 should have shape (R, 2), got (2,)"),
        ({"z0": (1, B, 8), "j0": (3, B)}, "x should have a leading axis of 3 or 1, got shape (2, "),
        ({"sizes": [2, 1]}, "x should have shape (R, 3, D) with these sizes, got (2, 3, 2, 3)"),
        ({"sizes": [2, 2], "x": (2, 5, D)}, "x should have shape (R, 4, D) with these sizes, got (2, 5, 3)"),
        ({"sizes": [1, 2], "x": (2, 3, D)}, "sizes should fall from step to step, to 1 at least, got [1, 2]"),
        ({"sizes": [2, 1, 0], "x": (2, 3, D)}, "to 1 at least, got [2, 1, 0]"),
        ({"sizes": [3, 1, 1], "x": (2, 5, D)}, "h0 should have shape (R, 3, 2), got (1, 2, 2)"),
        ({"sizes": [2, 1], "x": (2, 3, D)}, "decay should have shape (2, 2 or 1), got (3, 1)"),
        (
            {"sizes": [2, 1, 1], "x": (2, 4, D), "z0": (1, 1, 8), "j0": (1, B)},
            "z0 should have shape (R, 2, 8)",
        ),
    ],
)
def test_errors(change, message):
    some = dict(zip(NAMES, [(2, T, B, D), *((1, *s) for s in shapes()[1:7])], strict=False))
    given = some | {"decay": (T, 1), "step": 0.7} | change
    with pytest.raises(ValueError, match=re.escape(message)):
        lstm(**{name: torch.zeros(s) if isinstance(s, tuple) else s for name, s in given.items()})


def test_counts_are_constants():
    """decay and j0 have no gradient, and decay no axis of vmap's."""
    inputs = draw(1, 1, 1, 1, 1, 1, 1)
    with pytest.raises(ValueError, match="decay should not require a gradient"):
        lstm(*inputs, decay=decays().requires_grad_())
    with pytest.raises(ValueError, match="decay should be the same for all"):
        vmap(lambda d: lstm(*inputs, decay=d)[0])(decays().expand(2, T, B))
    inputs = draw(1, 1, 1, 1, 1, 1, 1, 1)
    with pytest.raises(ValueError, match="j0 should not require a gradient"):
        lstm(*inputs, j0=j0().requires_grad_(), every=5)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch's own
@over_layers
def test_no_derivatives_in_forward_mode(function, value, leading):
    inputs = tuple(draw(*leading, grad=False))
    with pytest.raises(NotImplementedError, match="forward mode"):
        torch.func.jvp(value, inputs, inputs)
    with pytest.raises(NotImplementedError, match="forward mode"):
        torch.func.hessian(value)(*inputs)
