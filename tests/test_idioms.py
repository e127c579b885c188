"""What users' code does with the state of a recurrent layer between two calls: ours takes back the result."""

import copy
import io
import pickle

import pytest
import torch
from conftest import assert_same, gradients
from torch import nn
from torch.func import functional_call, stack_module_state
from torch.nn.parallel import scatter_gather
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

import momentumrnn as mr
from momentumrnn import cells

pytestmark = pytest.mark.usefixtures("few_steps_as_shipped")
F64 = torch.float64
ROWS, FEATURES, HIDDEN = 4, 3, 5
MOMENTA = {"None": None, "HeavyBall": mr.HeavyBall(mu=0.6), "Adam": mr.Adam(mu=0.6, beta=0.9, eps=0.1)}
EXTRAPOLATED = cells.ExtrapolatedLSTM(every=3, step_size=0.7)
LAYERS = {
    "LSTM": mr.LSTM,
    "GRU": mr.GRU,
    "RNN": mr.RNN,
    "Recurrent": lambda *args, **options: mr.Recurrent(EXTRAPOLATED, *args, **options),
}
STEP_CELLS = {
    "LSTMCell": mr.LSTMCell,
    "GRUCell": mr.GRUCell,
    "RNNCell": mr.RNNCell,
    "RecurrentCell": lambda *args, **options: mr.RecurrentCell(EXTRAPOLATED, *args, **options),
}
MODULES = [*((name, layers) for name in LAYERS for layers in (1, 2)), *((name, 0) for name in STEP_CELLS)]


@pytest.fixture(params=[(*module, momentum) for module in MODULES for momentum in MOMENTA], ids=str)
def module(request):
    """A layer or step cell that carries its momentum."""
    name, layers, momentum = request.param
    options = {"momentum": MOMENTA[momentum], "carry_momentum": True, "dtype": F64}
    if layers:
        return LAYERS[name](FEATURES, HIDDEN, num_layers=layers, **options)
    return STEP_CELLS[name](FEATURES, HIDDEN, **options)


def inputs(rows=ROWS, steps=8):
    return torch.randn(steps, rows, FEATURES, dtype=F64)


def called(module, x, state=None):
    """The outputs of all steps, and the state after them: of a cell in a loop, as its users write it."""
    if isinstance(module, mr.Recurrent):
        return module(x, state)
    outs = []
    for x_t in x:
        state = module(x_t, state)
        outs.append(state[0])
    return torch.stack(outs), state


def axis(module):
    """The axis of the batch in each entry of a state."""
    return 1 if isinstance(module, mr.Recurrent) else 0


def taken(module, state, rows):
    """Some rows of a state, by an index, as beam searches and learners take them."""
    if isinstance(module, mr.Recurrent):
        return [t[:, rows] for t in state]
    return [t[rows] for t in state]


# ---- ways to hand a state on, after which it has the same values


def repackage_hidden(hidden):
    return hidden.detach() if isinstance(hidden, torch.Tensor) else tuple(map(repackage_hidden, hidden))


def saved(state, _):
    file = io.BytesIO()
    torch.save(repackage_hidden(state), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def saved_state(state, _):
    file = io.BytesIO()
    torch.save(state.detach(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def collated(state, module):
    """Each sequence is an item of a data set, and a loader makes a batch of the items."""
    items = [tuple(t.detach().select(axis(module), row) for t in state) for row in range(ROWS)]
    (batch,) = DataLoader(items, batch_size=ROWS)
    return [t.transpose(0, 1) for t in batch] if axis(module) else batch


def in_numpy(state, _):
    return [torch.from_numpy(t.detach().numpy().copy()) for t in state]


DETACHING = {
    "detach": lambda state, _: tuple(t.detach() for t in state),
    "data": lambda state, _: [t.data for t in state],
    "State.detach": lambda state, _: state.detach(),
    "repackage_hidden": lambda state, _: repackage_hidden(state),
    "deepcopy": lambda state, _: copy.deepcopy(state.detach()),
    "pickle": lambda state, _: pickle.loads(pickle.dumps(state.detach())),
    "save": saved,
    "save State": saved_state,
    "DataLoader": collated,
    "numpy": in_numpy,
}
KEEPING_THE_GRAPH = {
    "State": lambda state, _: state,
    "tuple": lambda state, _: tuple(state),
    "list": lambda state, _: list(state),
    "unpacked": lambda state, _: (*state.hidden, state.v, state.n, state.k),
    "State of tuple": lambda state, _: mr.State(*tuple(state)),
    "copy": lambda state, _: copy.copy(state),
    "clone": lambda state, _: tuple(t.clone() for t in state),
    "tree_map": lambda state, _: tree_map(lambda t: t.clone(), state),
    "to": lambda state, _: [t.to("cpu") for t in state],
    "contiguous": lambda state, _: tuple(t.contiguous() for t in state),
    "slices": lambda state, module: [
        torch.cat(parts, axis(module))
        for parts in zip(*(taken(module, state, rows) for rows in ([0], slice(1, None))), strict=True)
    ],
    "unbind": lambda state, module: [torch.stack(t.unbind(axis(module)), axis(module)) for t in state],
}


@pytest.mark.parametrize("idiom", DETACHING | KEEPING_THE_GRAPH)
def test_pieces_are_the_whole(module, idiom):
    x = inputs()
    whole = called(module, x)
    first, state = called(module, x[:3])
    second, after = called(module, x[3:], (DETACHING | KEEPING_THE_GRAPH)[idiom](state, module))
    assert type(state) is type(after) is mr.State
    assert len(after) == module.cell.states + 3
    assert_same([torch.cat([first, second]), *after], [whole[0], *whole[1]])
    if idiom in KEEPING_THE_GRAPH:
        weights = list(module.parameters())
        pieces = torch.cat([first, second]), after
        assert_same(gradients(pieces, weights), gradients(whole, weights))
    else:
        assert not any(t.requires_grad for t in DETACHING[idiom](state, module))


def test_every_entry_has_the_batch_on_the_same_axis(module):
    _, state = called(module, inputs())
    assert {t.shape[axis(module)] for t in state} == {ROWS}
    assert len({t.shape[: axis(module) + 1] for t in state}) == 1


def test_the_first_entry_is_the_output(module):
    out, state = called(module, inputs())
    h, *_ = state
    assert_same(h[-1] if axis(module) else h, out[-1])
    assert isinstance(state, tuple)


def test_without_the_option_a_plain_tuple_is_a_state_too(module):
    module.carry_momentum = False
    x = inputs()
    whole = called(module, x, module.initial_state(ROWS))
    _, state = called(module, x[:3], tuple(module.initial_state(ROWS)))
    assert type(state) is mr.State
    assert_same(called(module, x[3:], repackage_hidden(state))[1], whole[1])


@pytest.mark.parametrize(
    "rows", [[2, 0, 0, 3, 1], slice(1, 3), torch.tensor([True, False, True, False])], ids=str
)
def test_rows_go_on_alone(module, rows):
    x = inputs()
    _, state = called(module, x[:3])
    out, after = called(module, x[3:, rows], taken(module, state, rows))
    whole, final = called(module, x)
    assert_same([out, *after], [whole[3:, rows], *taken(module, final, rows)])
    assert_same([*state.select(rows)], taken(module, state, rows))


def test_beams(module):
    """Each row three times, and then the best of them."""
    x, best = inputs(), torch.tensor([1, 1, 5, 3, 9, 11, 6])
    _, state = called(module, x[:3])
    wide = tuple(t.repeat_interleave(3, axis(module)) for t in state)
    assert_same(list(state.repeat_interleave(3)), list(wide))
    chosen = tuple(t.index_select(axis(module), best) for t in wide)
    out, _ = called(module, x[3:, best // 3], chosen)
    assert_same(out, called(module, x)[0][3:, best // 3])


def test_episodes_that_end(module):
    """A new sequence begins in the rows of a mask, in the three ways that policies have."""
    x, done = inputs(), torch.tensor([True, False, False, True])
    _, state = called(module, x[:3])
    want = called(module, x)[0][3:]
    want[:, done] = called(module, x[3:, done])[0]
    fresh = module.initial_state(ROWS)
    column = done.view(*[1] * axis(module), -1)
    by_hand = [t.where(~column.view(*column.shape, *[1] * (t.dim() - column.dim())), 0) for t in state]
    stored = mr.State.from_tensor(state.as_tensor() * ~done.unsqueeze(-1), module)
    for begun in (state.reset(done), state.where(~done, fresh), fresh.where(done, state), by_hand, stored):
        assert_same(called(module, x[3:], begun)[0], want)


def test_data_parallel_splits_and_joins(module, monkeypatch):
    """The structure that DataParallel makes of a State, with copies to GPUs replaced by parts on the CPU."""

    class Scatter:
        @staticmethod
        def apply(devices, sizes, dim, tensor):
            return tensor.chunk(len(devices), dim)

    class Gather:
        @staticmethod
        def apply(device, dim, *tensors):
            return torch.cat(tensors, dim)

    monkeypatch.setattr(scatter_gather, "Scatter", Scatter)
    monkeypatch.setattr(scatter_gather, "Gather", Gather)
    x = inputs()
    _, state = called(module, x[:3])
    states = scatter_gather.scatter(state, [0, 1], dim=axis(module))
    parts = [called(module, part, of_part) for part, of_part in zip(x[3:].chunk(2, 1), states, strict=True)]
    joined = scatter_gather.gather([after for _, after in parts], 0, dim=axis(module))
    whole, final = called(module, x)
    assert_same(torch.cat([out for out, _ in parts], 1), whole[3:])
    assert_same(list(joined), list(final))
    assert_same(called(module, x, joined)[0], called(module, x, final)[0])


def test_vmap_over_the_sequences(module):
    """Each sequence without a batch axis."""
    x = inputs()
    _, state = called(module, x[:3])

    def alone(x, state):
        return called(module, x, state)

    out, after = torch.vmap(alone, in_dims=(1, axis(module)), out_dims=(1, axis(module)))(x[3:], state)
    whole, final = called(module, x)
    assert type(after) is mr.State
    assert_same([out, *after], [whole[3:], *final])


def test_vmap_over_weights(module):
    """An ensemble by functional_call, each member with its own state."""
    members = [module, copy.deepcopy(module)]
    members[1].reset_parameters()
    weights, buffers = stack_module_state(members)
    x = inputs()
    states = [called(member, x[:3])[1] for member in members]
    stacked = tree_map(lambda *t: torch.stack(t), *states)

    def alone(weights, state):
        if isinstance(module, mr.Recurrent):
            return functional_call(module, (weights, buffers), (x[3:], state))
        return functional_call(module, (weights, buffers), (x[3], state))

    got = torch.vmap(alone)(weights, stacked)
    for i, (member, state) in enumerate(zip(members, states, strict=True)):
        want = member(x[3:] if isinstance(module, mr.Recurrent) else x[3], state)
        assert_same(tree_map(lambda t, i=i: t[i], got), want)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(module, reentrant):
    """Activations of the second piece are computed again; a reentrant one takes and gives tensors alone."""
    x = inputs()
    whole = called(module, x)
    first, state = called(module, x[:3])

    def piece(x, *tensors):
        out, after = called(module, x, tensors)
        return out, *after

    second, *after = checkpoint(piece, x[3:].requires_grad_(), *state, use_reentrant=reentrant)
    assert_same([torch.cat([first, second]), *after], [whole[0], *whole[1]])
    weights = list(module.parameters())
    if reentrant:  # it has only .backward()
        (second.square().sum() + sum(t.square().sum() for t in after[:-1])).backward()
        got = [w.grad for w in weights]
        loss = whole[0][3:].square().sum() + sum(t.square().sum() for t in whole[1][:-1])
        assert_same(got, torch.autograd.grad(loss, weights))
    else:
        got = gradients((torch.cat([first, second]), after), weights)
        assert_same(got, gradients(whole, weights))


def test_functional_call(module):
    x = inputs()
    _, state = called(module, x[:3])
    x = x[3:] if isinstance(module, mr.Recurrent) else x[3]
    weights = {name: 2 * w for name, w in module.named_parameters()}
    got = functional_call(module, weights, (x, tuple(state)))
    with torch.no_grad():
        for w in module.parameters():
            w.mul_(2)
    assert_same(got, module(x, state))


def test_a_module_around_it(module):
    """A state in a dict, through a module's hooks."""

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, batch):
            out, state = called(self.inner, batch["x"], batch.get("state"))
            return {"out": out, "state": tree_map(torch.Tensor.detach, state)}

    around, x = Around(), inputs()
    before = around({"x": x[:3]})
    assert_same(around({"x": x[3:], "state": before["state"]})["out"], called(module, x)[0][3:])
