"""Every momentum x cell x backend against the oracle: outputs, final states, every gradient, in float64."""

import pytest
import torch
from conftest import (
    CELLS,
    MOMENTA,
    as_torch,
    as_tuple,
    assert_same,
    assert_single_steps,
    expected,
    gradients,
    grid,
    layer,
    leaf,
)
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import momentumrnn as mr
from momentumrnn.step_cells import RecurrentCell


@pytest.mark.parametrize(("momentum", "cell", "backend"), grid())
@pytest.mark.parametrize("bidirectional", [False, True], ids=["ahead", "both"])
def test_packed_stack(momentum, cell, backend, bidirectional):
    """Two layers on unsorted sequences of unequal length, from given hidden states."""
    net = layer(cell, momentum, 3, 5, 2, bidirectional=bidirectional, backend=backend)
    x, lengths = leaf(7, 4, 3), [4, 7, 1, 5]
    count = 4 if bidirectional else 2
    hidden = tuple(leaf(count, 4, width) for width in net.cell.widths(5))
    inputs = [x, *hidden, *net.parameters()]

    packed = pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
    out, final = net(packed, as_torch(hidden))
    out, _ = pad_packed_sequence(out)
    final = as_tuple(final)
    want_out, want_final, _ = expected(net, x, lengths, hidden)
    assert_same((out, final), (want_out, want_final))
    # One gradient through outputs and final states, another through the final states alone.
    for i, (got, want) in enumerate([((out, final), (want_out, want_final)), (final, want_final)]):
        assert_same(gradients(got, inputs, i), gradients(want, inputs, i))


@pytest.mark.parametrize(("momentum", "cell", "backend"), grid())
@pytest.mark.parametrize("bias", [True, "hh", False], ids=["bias", "hh", "none"])
def test_continued(momentum, cell, backend, bias):
    """One layer from a State in which every row has its own momentum and its own count of steps."""
    net = layer(cell, momentum, 2, 3, bias=bias, backend=backend)
    x, rows = leaf(6, 4, 2), 4
    start = net.initial_state(rows)
    hidden = tuple(torch.randn_like(h).requires_grad_() for h in start.hidden)
    v = torch.randn_like(start.v).requires_grad_()
    n = torch.rand_like(start.n).requires_grad_()
    k = torch.tensor([0, 5, 1, 17])
    inputs = [x, *hidden, v, n, *net.parameters()]

    out, after = net(x, mr.State(*hidden, v, n, k.unsqueeze(0)))
    want_out, want_hidden, moments = expected(net, x, None, hidden, (v, n if n.numel() else None, k.tolist()))
    want = mr.State(
        *want_hidden,
        v if moments[0] is None else moments[0],
        n if moments[1] is None else moments[1],
        torch.tensor([moments[2]]),
    )
    assert_same((out, after), (want_out, want))
    got = gradients((out, after), inputs)
    assert_same(
        [torch.zeros_like(i) if g is None else g for g, i in zip(got, inputs, strict=True)],
        [
            torch.zeros_like(i) if g is None else g
            for g, i in zip(gradients((want_out, want), inputs), inputs, strict=True)
        ],
    )


@pytest.mark.parametrize("momentum", MOMENTA)
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_projection(momentum, backend):
    net = layer("lstm", momentum, 3, 5, 2, proj_size=2, bidirectional=True, backend=backend)
    x = leaf(4, 3, 3)
    out, final = net(x)
    want_out, want_final, _ = expected(net, x)
    assert_same((out, final), (want_out, want_final))
    inputs = [x, *net.parameters()]
    assert_same(gradients((out, final), inputs), gradients((want_out, want_final), inputs))


@pytest.mark.parametrize(
    ("steps", "rows", "features", "hidden"),
    [(1, 1, 1, 1), (1, 3, 2, 7), (13, 1, 1, 7), (8, 2, 5, 1), (33, 31, 1, 3), (17, 9, 2, 2)],
)
@pytest.mark.parametrize("momentum", ["HeavyBall", "ScheduledRestart", "Adam"])
@pytest.mark.parametrize("cell", ["lstm", "gru", "tanh"])
def test_odd_sizes(steps, rows, features, hidden, momentum, cell):
    """Also more rows than gate rows, where the incoming momentum takes the other form."""
    net = layer(cell, momentum, features, hidden)
    x = leaf(steps, rows, features)
    start = net.initial_state(rows)
    v, n = torch.randn_like(start.v).requires_grad_(), torch.rand_like(start.n)
    inputs = [x, v, *net.parameters()]
    out, after = net(x, start._replace(v=v, n=n))
    want_out, want_hidden, (want_v, _, _) = expected(
        net, x, None, start.hidden, (v, n if n.numel() else None, [0] * rows)
    )
    got, want = (out, after.hidden, after.v), (want_out, want_hidden, want_v)
    assert_same(got, want)
    assert_same(gradients(got, inputs), gradients(want, inputs))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("momentum", ["HeavyBall", "Adam", "RMSProp"])
def test_single_steps(momentum, cell):
    """The cell modules, one step at a time, against the layer."""
    net = layer(cell, momentum, 3, 4)
    one = RecurrentCell(net.cell, 3, 4, dtype=torch.float64, momentum=net.momentum)
    assert_single_steps(one, net, leaf(5, 2, 3))
