"""What must hold for all shapes, layouts, lengths and chunk boundaries, by Hypothesis."""

from functools import partial

import pytest
import torch
from conftest import (
    CELLS,
    MOMENTA,
    NATIVE,
    as_torch,
    as_tuple,
    assert_same,
    expected,
    gradients,
    layer,
    leaf,
    serves,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, unpack_sequence

import momentumrnn as mr

TORCH = {"lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN, "relu": partial(nn.RNN, nonlinearity="relu")}
LAYOUTS = ["time first", "batch first", "unbatched", "sorted", "unsorted"]

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
for_all = settings(derandomize=True, deadline=None, max_examples=100, database=None)
sizes = partial(st.integers, 1)


@st.composite
def shapes(draw, cell, momentum=None, **fixed):
    """The arguments of a layer of the cell."""
    options = {
        "input_size": draw(sizes(4)),
        "hidden_size": draw(sizes(6)),
        "num_layers": draw(sizes(3)),
        "bias": draw(st.sampled_from([True, False, "hh"])),
        "bidirectional": draw(st.booleans()),
    } | fixed
    if momentum == "Adam-printed":
        # Without a bias, a layer above relu has W x + b_ih = 0, where the printed form has no gradient.
        options["bias"] = True
    if cell in ("lstm", "extrapolated") and options["hidden_size"] > 1 and draw(st.booleans()):
        options["proj_size"] = draw(sizes(options["hidden_size"] - 1))
    return options


def hidden_states(net, rows, dtype=torch.float64):
    """(h,) or (h, c), random."""
    count = net.num_layers * (2 if net.bidirectional else 1)
    _, *widths = net.cell.widths(net.hidden_size)
    widths = net.proj_size or net.hidden_size, *widths
    return tuple(leaf(count, rows, width, dtype=dtype) for width in widths)


def call(net, layout, x, lengths, hidden):
    """`net` on the time-first x in the given layout; the output time first and padded, and (h, ...)."""
    if layout == "unbatched":
        hx = tuple(h.squeeze(1) for h in hidden)
        out, final = net(x.squeeze(1), as_torch(hx))
        return out.unsqueeze(1), tuple(h.unsqueeze(1) for h in as_tuple(final))
    hx = as_torch(hidden)
    if layout in ("sorted", "unsorted"):
        out, final = net(pack_padded_sequence(x, lengths, enforce_sorted=layout == "sorted"), hx)
        out, _ = pad_packed_sequence(out, total_length=len(x))
    else:
        turn = layout == "batch first"
        out, final = net(x.transpose(0, 1) if turn else x, hx)
        out = out.transpose(0, 1) if turn else out
    return out, as_tuple(final)


@st.composite
def batches(draw, layout):
    """T, B and the lengths of the rows, as the layout has them."""
    steps, rows = draw(sizes(12)), 1 if layout == "unbatched" else draw(sizes(5))
    lengths = [steps] * rows
    if layout in ("sorted", "unsorted"):
        lengths = draw(st.lists(sizes(steps), min_size=rows, max_size=rows))
        lengths = sorted(lengths, reverse=True) if layout == "sorted" else lengths
    return steps, rows, lengths


def gradient(outputs, inputs):
    """All gradients as one vector: a part that should be 0 is held to the size of the others."""
    found = zip(gradients(outputs, inputs), inputs, strict=True)
    return torch.cat([(torch.zeros_like(i) if g is None else g).flatten() for g, i in found])


@for_all
@given(st.data())
def test_plain_is_torch(data):
    """momentum=None on native is torch.nn's layer, to the bit, in float32 and float64."""
    cell, layout = data.draw(st.sampled_from(sorted(TORCH))), data.draw(st.sampled_from(LAYOUTS))
    options = data.draw(shapes(cell, bias=data.draw(st.booleans()))) | {
        "batch_first": layout == "batch first"
    }
    steps, rows, lengths = data.draw(batches(layout))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    torch.manual_seed(data.draw(sizes(1000)))
    theirs = TORCH[cell](**options, dtype=dtype)
    ours = layer(cell, None, **options, dtype=dtype, backend="native")
    ours.load_state_dict(theirs.state_dict())
    x, hidden = leaf(steps, rows, ours.input_size, dtype=dtype), hidden_states(ours, rows, dtype)

    got, want = (call(net, layout, x, lengths, hidden) for net in (ours, theirs))
    found, sought = (
        gradients(result, [x, *hidden, *net.parameters()]) for result, net in ((got, ours), (want, theirs))
    )
    for g, w in zip([got[0], *got[1], *found], [want[0], *want[1], *sought], strict=True):
        assert torch.equal(g, w)


@st.composite
def cases(draw, cells, dtype=torch.float64):
    """A layer of any momentum and one of the cells, a layout, and the input, lengths and hidden states."""
    momentum, cell = draw(st.sampled_from(sorted(MOMENTA))), draw(st.sampled_from(sorted(cells)))
    layout = draw(st.sampled_from(LAYOUTS))
    options = draw(shapes(cell, momentum)) | {"batch_first": layout == "batch first"}
    steps, rows, lengths = draw(batches(layout))
    torch.manual_seed(draw(sizes(1000)))
    net = layer(cell, momentum, **options, dtype=dtype)
    x, hidden = leaf(steps, rows, net.input_size, dtype=dtype), hidden_states(net, rows, dtype)
    return momentum, cell, net, layout, x, lengths, hidden


@for_all
@given(cases(CELLS))
def test_oracle(case):
    """Any momentum, on every backend that serves the cell: outputs, final states and every gradient."""
    _, cell, net, layout, x, lengths, hidden = case
    inputs = [x, *hidden, *net.parameters()]

    want = expected(net, x, lengths, hidden)[:2]
    sought = gradient(want, inputs)
    for net.backend in serves(cell):
        got = call(net, layout, x, lengths, hidden)
        assert_same(got, want)
        assert_same(gradient(got, inputs), sought)


def spread(state, rows, piece):
    """`state` with that of some rows replaced by `piece`."""

    return mr.State(old.index_copy(1, rows, new) for old, new in zip(state, piece, strict=True))


def pieces(net, x, state, cuts):
    """Runs x in pieces, `cuts` holding how long each is in each row; rows with 0 sit it out."""
    outs, done = [[] for _ in range(x.shape[1])], [0] * x.shape[1]
    for cut in cuts:
        rows = [row for row, length in enumerate(cut) if length]
        if not rows:
            continue
        parts = [x[done[row] : done[row] + cut[row], row] for row in rows]
        index = torch.tensor(rows)
        if len(set(cut)) == 1:
            part, after = net(torch.stack(parts, 1), state.select(index))
            ends = part.unbind(1)
        else:
            part, after = net(nn.utils.rnn.pack_sequence(parts, enforce_sorted=False), state.select(index))
            ends = unpack_sequence(part)
        state = spread(state, index, after)
        for row, end in zip(rows, ends, strict=True):
            outs[row].append(end)
            done[row] += cut[row]
    return [torch.cat(out) for out in outs], state


@for_all
@given(st.data())
def test_streaming(data):
    """A sequence in any pieces, of unequal lengths too: outputs, final State and gradients of the whole."""
    momentum, cell = data.draw(st.sampled_from(sorted(MOMENTA))), data.draw(st.sampled_from(sorted(CELLS)))
    options = data.draw(shapes(cell, momentum, bidirectional=False))
    rows, count = data.draw(sizes(5)), data.draw(sizes(4))
    if data.draw(st.booleans()):
        cuts = [[data.draw(sizes(4))] * rows for _ in range(count)]
    else:
        cuts = [[data.draw(st.integers(0, 4)) for _ in range(rows)] for _ in range(count)]
        cuts[-1] = [max(length, 1) for length in cuts[-1]]
    lengths = [sum(cut) for cut in zip(*cuts, strict=True)]
    counts = data.draw(st.lists(st.integers(0, 9), min_size=rows, max_size=rows))
    torch.manual_seed(data.draw(sizes(1000)))

    net = layer(cell, momentum, **options)
    x, zero = leaf(max(lengths), rows, net.input_size), net.initial_state(rows)
    v, n = torch.randn_like(zero.v).requires_grad_(), torch.rand_like(zero.n).requires_grad_()
    start = mr.State(*hidden_states(net, rows), v, n, torch.tensor(counts).expand(zero.k.shape))
    inputs = [x, *start.hidden, *net.parameters(), *([v, n] if momentum != "None" else [])]

    net.backend = "reference"
    want = pieces(net, x, start, [lengths])
    ends = [k + length for k, length in zip(counts, lengths, strict=True)]
    assert want[1].k.tolist() == [ends] * net.num_layers
    sought = gradient(want, inputs)
    for net.backend in serves(cell):
        got = pieces(net, x, start, cuts)
        assert_same(got, want)
        assert_same(gradient(got, inputs), sought)


# Where W x + b_ih is near 0, the gradient of v / sqrt(n + eps²) is a difference of numbers up to 1 / eps.
STEEP = {name for name, (m, _) in MOMENTA.items() if m is not None and not m.linear and m.eps < 0.1}


def assert_narrow(net, layout, x, lengths, hidden, inputs):
    results = []
    for net.backend in ("native", "reference"):
        got = call(net, layout, x, lengths, hidden)
        results.append((got, gradient(got, inputs) if inputs else None))
    assert_same(*results, torch.float32)


@for_all
@given(cases(NATIVE, torch.float32))
def test_narrow(case):
    """In float32 native is the reference: outputs, final states and, but for the steep, gradients."""
    momentum, _, net, layout, x, lengths, hidden = case
    inputs = [] if momentum in STEEP else [x, *hidden, *net.parameters()]
    assert_narrow(net, layout, x, lengths, hidden, inputs)


@pytest.mark.parametrize("cell", sorted(NATIVE))
@pytest.mark.parametrize("momentum", sorted(STEEP))
def test_narrow_and_steep(momentum, cell):
    """The gradients of the steep, away from 0."""
    net = layer(cell, momentum, 3, 4, dtype=torch.float32)
    nn.init.constant_(net.bias_ih_l0, 3.0)
    x, hidden = leaf(6, 3, 3, dtype=torch.float32), hidden_states(net, 3, torch.float32)
    assert_narrow(net, "time first", x, None, hidden, [x, *hidden, *net.parameters()])
