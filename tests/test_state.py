"""A State as a value: a flat tuple, its methods, old forms; and layers that always return one."""

import copy
import inspect
import io
import pickle
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import CELLS, assert_same, begun, layer
from torch.utils import _pytree as pytree

import momentumrnn as mr

F64 = torch.float64
OLD = Path(__file__).with_name("golden") / "state-0.1.0.pt"
BALL = mr.HeavyBall(mu=0.9, step=0.5)
STEP_CELLS = {"lstm": mr.LSTMCell, "gru": mr.GRUCell, "tanh": mr.RNNCell}


@pytest.fixture
def state():
    """The State of a two-layer LSTM with three rows, which have taken unequal numbers of steps."""
    return begun(mr.LSTM(3, 5, 2, momentum=mr.Adam(beta=0.9), dtype=F64), [4, 0, 7])


def assert_equal(got, want):
    assert isinstance(got, mr.State)
    assert [t.dtype for t in got] == [t.dtype for t in want]
    assert all(map(torch.equal, got, want))


# A flat tuple


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("momentum", ["None", "HeavyBall", "Adam"])
def test_entries(cell, momentum):
    """The tensors of the cell, then v, n and k, with the batch on axis 1 of each."""
    net = layer(cell, momentum, 3, 5, 2)
    state, G = net.initial_state(4), 5 * net.cell.gates
    first, second = {"None": (0, 0), "HeavyBall": (G, 0), "Adam": (G, G)}[momentum]
    widths = [*net.cell.widths(5), first, second]
    assert [t.shape for t in state] == [*((2, 4, width) for width in widths), (2, 4)]
    assert [t.shape for t in net.initial_state()] == [*((2, width) for width in widths), (2,)]
    assert state.hidden == tuple(state[:-3])
    assert (state.v is state[-3], state.n is state[-2], state.k is state[-1]) == (True, True, True)


def test_constructors(state):
    for made in (mr.State(*state), mr.State(state), mr.State(t for t in state), mr.State(list(state))):
        assert all(new is old for new, old in zip(made, state, strict=True))
    with pytest.raises(TypeError, match=r"State should get the tensors h, \.\.\., v, n and k, got 3 values"):
        mr.State(*state[:3])
    assert repr(state.detach().select([1])).startswith("State(tensor([[[")


def test_copies(state):
    state = state.detach()
    for made in (copy.copy(state), copy.deepcopy(state), pickle.loads(pickle.dumps(state)), state.clone()):
        assert_equal(made, state)
    assert pytree.tree_map(lambda t: t.shape, state)[0] == (2, 3, 5)
    assert isinstance(pytree.tree_map(lambda t: t.shape, state), mr.State)


def test_old_constructor(state):
    """Nested, with one count for all layers. It is taken for one version."""
    with pytest.warns(DeprecationWarning, match=r"State\(\(h, c\), v, n, k\) is now") as seen:
        made = mr.State(state.hidden, state.v, state.n, state.k[0])
    assert seen[0].filename == __file__
    assert_equal(made, state)
    with pytest.warns(DeprecationWarning, match="is now State"):
        assert_equal(mr.State(hidden=state.hidden, v=state.v, n=state.n, k=state.k[0]), state)
    cell = mr.LSTMCell(3, 5, momentum=BALL).initial_state(2)
    with pytest.warns(DeprecationWarning, match="is now State"):
        assert_equal(mr.State(cell.hidden, cell.v, cell.n, cell.k), cell)


def test_old_files():
    """Of version 0.1.0, whose State was nested; each tensor counts from its own place."""
    with pytest.warns(DeprecationWarning, match="is now State") as seen:
        old = torch.load(OLD)
    assert seen[0].filename == __file__
    shapes = {name: [tuple(t.shape) for t in state] for name, state in old.items()}
    assert shapes == {
        "lstm": [(2, 3, 2), (2, 3, 2), (2, 3, 8), (2, 3, 0), (2, 3)],
        "gru": [(1, 1), (1, 3), (1, 3), (1,)],
        "cell": [(2, 1), (2, 1), (2, 4), (2, 0), (2,)],
    }
    assert {name: state.k.tolist() for name, state in old.items()} == {
        "lstm": [[5, 6, 7], [5, 6, 7]],
        "gru": [4],
        "cell": [5, 6],
    }
    assert [t.flatten()[0].item() for t in old["lstm"][:3]] == [1, 2, 3]
    mr.LSTM(1, 2, 2, momentum=BALL)(torch.zeros(4, 3, 1), old["lstm"])


# Its methods


def test_from_hidden():
    """The hidden state goes on, the momentum begins; the same for layers, cells, and without a batch."""
    lstm, x = mr.LSTM(3, 5, 2, momentum=BALL, dtype=F64), torch.randn(4, 2, 3, dtype=F64)
    hx = torch.randn(2, 2, 2, 5, dtype=F64).unbind()
    out, state = lstm(x, mr.State.from_hidden(hx, lstm))
    want, hidden = lstm(x, hx)
    assert_same((out, state.hidden), (want, hidden))
    assert state.k.tolist() == [[4, 4], [4, 4]]
    assert_same(lstm(x[:, 0], mr.State.from_hidden([h[:, 0] for h in hx], lstm))[0], want[:, 0])
    gru = mr.GRUCell(3, 5, momentum=BALL, dtype=F64)
    for h in torch.randn(2, 5, dtype=F64), torch.randn(5, dtype=F64):
        assert_same(
            gru(x[0, : len(h)] if h.dim() > 1 else x[0, 0], mr.State.from_hidden(h, gru))[0],
            gru(x[0, : len(h)] if h.dim() > 1 else x[0, 0], h),
        )


def test_where(state):
    other = state.clone().detach()._replace(v=state.v.detach() + 1, k=state.k + 1)
    mask = torch.tensor([True, False, True])
    got = state.where(mask, other)
    assert_equal(
        got,
        mr.State(
            torch.where(mask.view(1, 3, *[1] * (t.dim() - 2)), t, o)
            for t, o in zip(state, other, strict=True)
        ),
    )
    assert got.v.requires_grad
    assert_equal(state.where(mask.numpy(), list(other)), got)


@pytest.mark.parametrize(
    "rows",
    [
        [0, 2],
        [-3, np.int64(2)],
        [True, False, True],
        list(np.array([True, False, True])),
        np.array([0, 2]),
        np.array([True, False, True]),
        torch.tensor([0, 2]),
        torch.tensor([0, -1], dtype=torch.int32),
        torch.tensor([True, False, True]),
        slice(0, 3, 2),
    ],
    ids=str,
)
def test_rows(state, rows):
    """Each way to name rows, for each method that takes them."""
    assert_equal(state.select(rows), mr.State(t[:, [0, 2]] for t in state))
    got = state.reset(rows)
    assert isinstance(got, mr.State)
    assert not any(t[:, [0, 2]].any() for t in got)
    assert all(torch.equal(new[:, 1], old[:, 1]) for new, old in zip(got, state, strict=True))
    assert got.v.requires_grad
    assert not any(t.any() for t in state.reset())


def test_no_rows(state):
    """Batches may be empty: States of no sequence go to and fro like others."""
    net = mr.LSTM(3, 5, 2, momentum=mr.Adam(beta=0.9), dtype=F64)
    none = state.select([])
    assert_equal(net.initial_state(0), none)
    assert_equal(mr.State.from_tensor(none.as_tensor(), net), none)
    assert_equal(mr.State.from_hidden(none.hidden, net), none)
    assert_equal(net(torch.zeros(4, 0, 3, dtype=F64), none)[1], none)
    assert_equal(mr.State.cat([none, state]), state)


def test_to_makes_copies_where_told(state):
    copied = state.to("cpu", copy=True)
    assert_equal(copied, state)
    assert not any(new is old for new, old in zip(copied, state, strict=True))
    assert all(new is old for new, old in zip(state.to("cpu"), state, strict=True))


def test_counts_are_rounded():
    """A replay buffer may have computed with the one tensor."""
    gru = mr.GRU(3, 5, momentum=BALL)
    tensor = gru.initial_state(1).as_tensor()
    tensor[..., -1] = 6.9999995
    assert mr.State.from_tensor(tensor, gru).k.tolist() == [[7]]


def test_changes_in_place():
    """What torch's users do with the final state: detach it, or write to it. At each number of steps."""
    for name, steps, momentum in product(("LSTM", "GRU", "RNN"), (1, 2, 6), (None, BALL, mr.Adam())):
        net = getattr(mr, name)(3, 5, momentum=momentum, carry_momentum=True)
        out, state = net(torch.randn(steps, 2, 3))
        for t in state[:-1]:
            t.mul_(0.5)
        (out.sum() + state[0].sum()).backward()
        _, state = net(torch.randn(steps, 2, 3))
        for t in state:
            t.detach_()
        net(torch.randn(steps, 2, 3), state)[0].sum().backward()


def test_a_mask_with_a_last_axis_is_refused_by_name():
    """What programs do with (h, c) where episodes end."""
    lstm, x = mr.LSTM(3, 5, momentum=BALL, carry_momentum=True), torch.randn(1, 3, 3)
    kept, state = torch.tensor([1, 0, 1]).view(1, -1, 1), lstm(x)[1]
    with pytest.raises(RuntimeError, match=r"hx.k should have shape \(1, 3\).* use state.reset\(mask\)"):
        lstm(x, tuple(kept * t for t in state))
    with pytest.raises(RuntimeError, match=r"hx.k should have shape \(1, 3\), got \(1, 2\); the input has 3"):
        lstm(x, state._replace(k=state.k[:, :2]))


def test_a_reset_row_begins_anew():
    net, x = (
        mr.GRU(3, 5, 2, momentum=mr.ScheduledRestart(every=3), dtype=F64),
        torch.randn(6, 2, 3, dtype=F64),
    )
    _, state = net(x[:4], net.initial_state(2))
    out, _ = net(x[4:], state.reset([1]))
    assert_same(out[:, 0], net(x)[0][4:, 0])
    assert_same(out[:, 1], net(x[4:])[0][:, 1])


def test_rows_several_times(state):
    tiled, interleaved = state.repeat(2), state.repeat_interleave(2)
    assert_equal(tiled, state.select([0, 1, 2, 0, 1, 2]))
    assert_equal(interleaved, state.select([0, 0, 1, 1, 2, 2]))
    assert_equal(mr.State.cat([state.select([1]), tuple(state)]), state.select([1, 0, 1, 2]))
    cell = mr.LSTMCell(3, 5, momentum=BALL).initial_state(2)
    assert [len(t) for t in cell.repeat(3)] == [6] * 5


@pytest.mark.parametrize("dtype", [torch.float32, F64, torch.bfloat16])
@pytest.mark.parametrize("momentum", ["None", "HeavyBall", "Adam"])
@pytest.mark.parametrize("rows", [3, None])
def test_one_tensor(momentum, dtype, rows):
    """And back, to the bit; zeros are the first State; gradients pass."""
    for net in (
        layer("lstm", momentum, 3, 5, 2, dtype=dtype),
        layer("extrapolated", momentum, 3, 5, dtype=dtype),
    ):
        start = net.initial_state(rows)
        state = mr.State(torch.rand_like(t) if t.is_floating_point() else t + 7 for t in start)
        tensor = state.as_tensor()
        assert tensor.shape[:-1] == start.k.shape
        assert_equal(mr.State.from_tensor(tensor, net), state)
        assert_equal(mr.State.from_tensor(torch.zeros_like(tensor), net), start)
        tensor.requires_grad_()
        assert all(t.requires_grad for t in mr.State.from_tensor(tensor, net)[:-1])
    cell = mr.GRUCell(3, 5, momentum=BALL)
    assert_equal(mr.State.from_tensor(cell.initial_state(2).as_tensor(), cell), cell.initial_state(2))


LSTM = mr.LSTM(3, 5, momentum=BALL)


LAYERS = "layer should be a layer or step cell of momentumrnn, got LSTM"


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        *(
            (
                lambda s, method=method, rows=rows: getattr(s, method)(rows),
                kind,
                f"rows should be .*{message}",
            )
            for method in ("select", "reset")
            for rows, kind, message in [
                ("01", TypeError, "got '01'"),
                (1, TypeError, "got 1"),
                ([0.9], TypeError, r"got \[0.9\]"),
                ([True, 5, False], TypeError, r"got \[True, 5, False\]"),
                ([3], IndexError, "indices from 0 to 2.*got 3"),
                ([True, False], ValueError, r"a mask of shape \(3,\).*got a tensor of shape \(2,\)"),
                (torch.ones(3), TypeError, "got a tensor of torch.float32"),
                (torch.zeros(3, dtype=torch.uint8), TypeError, "got a tensor of torch.uint8"),
                (torch.zeros(2, 2, dtype=torch.int64), ValueError, r"got a tensor of shape \(2, 2\)"),
            ]
        ),
        *(
            (
                lambda s, rows=rows: s.reset(rows),
                ValueError,
                r"rows should be indices that differ, got \[0, 0, 1\]",
            )
            for rows in ([0, 0, 1], torch.tensor([0, 0, 1]), np.array([0, 0, 1]))
        ),
        (
            lambda s: s.where([True] * 3, s),
            TypeError,
            r"where: mask should be a tensor of shape \(3,\) and dtype",
        ),
        (lambda s: s.where(torch.ones(2) > 0, s), TypeError, r"mask should be a tensor of shape \(3,\)"),
        *(
            (lambda s, other=other: s.where(torch.ones(3) > 0, other(s)), kind, f"where: other.*{message}")
            for other, kind, message in [
                (lambda s: None, TypeError, "should be a State of 5 tensors, got NoneType"),
                (lambda s: [*s, s.k], TypeError, "should be a State of 5 tensors, got 6"),
                (lambda s: s.hidden, TypeError, "should be a State of 5 tensors, got 2"),
                (
                    lambda s: s.select([0]),
                    ValueError,
                    r"\[0\] should have shape \(2, 3, 5\) .*got \(2, 1, 5\)",
                ),
                (lambda s: [1, *s[1:]], TypeError, r"\[0\] should be a Tensor, got int"),
            ]
        ),
        (lambda s: s.repeat(0), ValueError, "repeat: times should be at least 1, got 0"),
        (lambda s: mr.State.cat([]), ValueError, "states should hold at least one State, got none"),
        (lambda s: mr.State.from_hidden(s[0], LSTM), ValueError, "hidden should hold 2 tensors, got 1"),
        (
            lambda s: mr.State.from_hidden(s[:2], LSTM),
            ValueError,
            r"hidden\[0\] should have shape \(1, 3, 5\)",
        ),
        (lambda s: mr.State.from_hidden(s[:2], torch.nn.LSTM(3, 5)), TypeError, LAYERS),
        (lambda s: mr.State.from_hidden(None, LSTM), TypeError, "hidden should be a tensor .* got None"),
        (lambda s: mr.State.from_hidden((), LSTM), TypeError, "hidden should be a tensor .* got ()"),
        (
            lambda s: mr.State.from_hidden((torch.zeros(1, 3, 5), None), LSTM),
            TypeError,
            r"hidden\[1\] should be a Tensor, got NoneType",
        ),
        (
            lambda s: mr.State.from_tensor(np.zeros(3), LSTM),
            TypeError,
            "tensor should be a Tensor, got ndarray",
        ),
        (lambda s: mr.State.cat(None), TypeError, "states should be a list of States, got NoneType"),
        (lambda s: mr.State.cat([s, s[1:]]), ValueError, r"same number of tensors, got \[5, 4\]"),
        (lambda s: mr.State.cat(s), TypeError, "states should be a list of States, got State"),
        (lambda s: mr.State(s.hidden), TypeError, r"got 2 values; State.from_hidden\(hx, layer\) makes one"),
        (lambda s: mr.State(None), TypeError, "got 1 values"),
        (lambda s: mr.State(s.v), TypeError, "State should get the tensors h, .*, got 1 values"),
        (
            lambda s: mr.State.from_tensor(s.as_tensor(), LSTM),
            ValueError,
            r"tensor should have shape \(1, 3, 31\)",
        ),
        (
            lambda s: mr.GRUCell(3, 5).initial_state().reset(),
            ValueError,
            "reset: the State should have a batch",
        ),
    ],
)
def test_refusals(state, call, kind, message):
    with pytest.raises(kind, match=message):
        call(state)


# carry_momentum


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("momentum", ["None", "HeavyBall", "Adam"])
def test_a_layer_that_carries(cell, momentum):
    """It returns a State for None, for torch's hx and for a State; pieces give the whole."""
    net, x = layer(cell, momentum, 3, 5, 2, carry_momentum=True), torch.randn(6, 2, 3, dtype=F64)
    whole, end = net(x)
    assert isinstance(end, mr.State)
    state, outs = None, []
    for piece in x.split([1, 3, 2]):
        out, state = net(piece, state)
        outs.append(out)
        state = [t.detach() for t in state]
    assert_same((torch.cat(outs), state), (whole, end))
    net.carry_momentum = False
    assert not isinstance(net(x)[1], mr.State)
    assert isinstance(net(x, state)[1], mr.State)


@pytest.mark.parametrize("name", STEP_CELLS)
def test_a_cell_that_carries(name):
    cell, x = (
        STEP_CELLS[name](3, 5, momentum=BALL, carry_momentum=True, dtype=F64),
        torch.randn(4, 2, 3, dtype=F64),
    )
    net = layer(name, None, 3, 5)
    net.momentum = BALL
    net.load_state_dict({f"{key}_l0": w for key, w in cell.state_dict().items()})
    state = None
    for x_t in x:
        state = cell(x_t, state)
        state = tuple(t.detach() for t in state)
    assert_same(state[0], net(x)[0][-1])
    assert state[-1].tolist() == [4, 4]


def test_a_bidirectional_layer_can_not_carry():
    with pytest.raises(ValueError, match="carry_momentum should be False, since a bidirectional layer can't"):
        mr.LSTM(3, 5, bidirectional=True, carry_momentum=True)
    with pytest.raises(TypeError, match="carry_momentum should be one of True, False, got 2"):
        mr.LSTM(3, 5, carry_momentum=2)
    assert "carry_momentum=True" in repr(mr.MomentumGRU(3, 5, carry_momentum=True))


@pytest.mark.parametrize("carries", [False, True])
def test_torchs_hx_is_warned_of_once(carries):
    """At the line of the caller, for each layer; not for None, a State, or without a momentum."""
    net, x = mr.LSTM(3, 5, momentum=BALL, carry_momentum=carries), torch.randn(4, 2, 3)
    plain = mr.LSTM(3, 5, carry_momentum=carries)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        state = mr.State(net(x)[1] if carries else net(x, net.initial_state(2))[1])
        plain(x, state.hidden)
        net(x, mr.State.from_hidden(state.hidden, net))
        assert seen == []
        line = inspect.currentframe().f_lineno + 1
        net(x, state.hidden)
        net(x, state.hidden)
        copy.deepcopy(net)(x, state.hidden)
    assert [(w.filename, w.lineno) for w in seen] == [(__file__, line)]
    assert "LSTM was given torch's hx, so its momentum starts at zero in this call" in str(seen[0].message)
    assert ("make it with carry_momentum=True" in str(seen[0].message)) is not carries


@pytest.mark.parametrize("make", [mr.LSTM, mr.GRU, mr.LSTMCell, mr.GRUCell])
@pytest.mark.parametrize("rows", [2, None])
def test_every_module_warns_of_torchs_hx(make, rows):
    net = make(3, 5, momentum=BALL)
    x = torch.randn(*((1,) if isinstance(net, mr.Recurrent) else ()), *((rows,) if rows else ()), 3)
    state = net.initial_state(rows)
    zeros, ones = (h if len(h) > 1 else h[0] for h in (state.hidden, [h + 1 for h in state.hidden]))
    hx = tuple(ones) if len(state.hidden) > 1 else ones
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net(x, state)
        net(x, zeros)  # as programs for torch's layers begin a sequence
        for _ in range(2):  # a warning that is an error is raised each time
            with pytest.raises(UserWarning, match=f"{make.__name__} was given torch's hx"):
                net(x, hx)
    with pytest.warns(UserWarning, match=f"{make.__name__} was given torch's hx"):
        net(x, hx)


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch 2.11, of its own file
@pytest.mark.parametrize("momentum", ["HeavyBall", "Adam"])
def test_export(momentum):
    """torch.export takes and returns a State; its file, too."""
    net, x = layer("lstm", momentum, 3, 4, carry_momentum=True), torch.randn(5, 2, 3, dtype=F64)
    state, file = net.initial_state(2), io.BytesIO()
    torch.export.save(torch.export.export(net, (x, state)), file)
    file.seek(0)
    got = torch.export.load(file).module()(x, state)
    assert isinstance(got[1], mr.State)
    assert_same(got, net(x, state))
