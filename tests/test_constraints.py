"""Orthogonal recurrent matrices stay so, re-basing moves nothing but the base, and drops last a sequence."""

import copy
import math

import pytest
import torch
from conftest import CELLS, MOMENTA, assert_same, gradients, serves
from torch import nn
from torch.autograd import gradcheck
from torch.func import functional_call
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import pack_padded_sequence

import momentumrnn as mr
from momentumrnn import count_parameters, optimizer_groups, orthogonal, rebase_, weight_drop
from momentumrnn.init import cayley_, henaff_

F32, F64 = torch.float32, torch.float64


def dtriv(*sizes, momentum=None, dtype=F64, **options):
    return mr.RNN(*sizes, nonlinearity="modrelu", bias="hh", momentum=momentum, dtype=dtype, **options)


def moved(rnn):
    """The same layer, all tangents at random."""
    for name, parameter in rnn.named_parameters():
        if name.endswith("original"):
            nn.init.normal_(parameter, std=0.3)
    return rnn


def plain(rnn):
    """A layer without parametrisations that has the weights of rnn in evaluation mode."""
    options = ("num_layers", "bias", "batch_first", "bidirectional", "momentum", "backend")
    options = {name: getattr(rnn, name) for name in options}
    twin = mr.Recurrent(rnn.cell, rnn.input_size, rnn.hidden_size, dtype=rnn.weight_ih_l0.dtype, **options)
    training = rnn.training
    with torch.no_grad():
        for name, weight in twin.named_parameters():
            weight.copy_(getattr(rnn.eval(), name))
    rnn.train(training)
    return twin


def error(U):
    return (U.mT @ U - torch.eye(len(U), dtype=U.dtype)).abs().max().item()


def tangent(rnn, name="weight_hh_l0"):
    return rnn.parametrizations[name].original


def test_the_formula_and_its_gradient():
    """U = base exp(tril(X) - tril(X)ᵀ), and what reaches X is what autograd makes of that."""
    rnn = moved(orthogonal(dtriv(2, 7)))
    base, X = rnn.parametrizations.weight_hh_l0[0].base, tangent(rnn)
    explicit = base @ torch.linalg.matrix_exp(X.tril(-1) - X.tril(-1).mT)
    assert_same(rnn.weight_hh_l0, explicit)
    assert_same(gradients(rnn.weight_hh_l0, X), gradients(explicit, X))


@pytest.mark.parametrize("K", [1, 100, None])
@pytest.mark.parametrize("init", ["cayley", "henaff"])
def test_stays_orthogonal(K, init, record_property):
    """Over 1000 steps in float32, wherever the base is."""
    rnn = orthogonal(dtriv(2, 32, momentum=mr.HeavyBall(), dtype=F32), init)
    optimizer = torch.optim.RMSprop(optimizer_groups(rnn, lr=1e-3, orthogonal_lr=1e-3))
    x, want = torch.randn(3, 4, 2), torch.randn(4, 32)
    start, worst, losses = rnn.weight_hh_l0.detach(), 0.0, []
    for i in range(1, 1001):
        with parametrize.cached():
            loss = (rnn(x)[1][0] - want).square().mean()
            worst = max(worst, error(rnn.weight_hh_l0.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if K and i % K == 0:
            rebase_(rnn)
    record_property("largest_error", worst)
    print(f"K={K}, {init}: largest |UᵀU - I| {worst:.1e}, loss {losses[0]:.3f} to {losses[-1]:.3f}")
    assert worst < 1e-5  # 5.1e-6
    assert losses[-1] < 0.5 * losses[0]
    assert torch.dist(start, rnn.weight_hh_l0) > 1
    assert rnn.parametrizations.weight_hh_l0[0].rebasings == (1000 // K if K else 0)


@pytest.mark.parametrize("dtype", [F64, F32])
def test_rebasing_moves_no_output(dtype):
    rnn = moved(orthogonal(dtriv(3, 6, 2, bidirectional=True, dtype=dtype)))
    model, x = nn.ModuleDict({"encoder": rnn}), torch.randn(5, 2, 3, dtype=dtype)
    before, names = rnn(x), list(rnn.parametrizations)
    held = [(rnn.parametrizations[name][0].base, tangent(rnn, name)) for name in names]
    rebase_(model)
    for name, (base, X) in zip(names, held, strict=True):
        assert not X.any()
        assert torch.equal(base, getattr(rnn, name))
        assert tangent(rnn, name) is X  # what an optimiser holds
        assert rnn.parametrizations[name][0].base is base
    assert_same(rnn(x), before, dtype)
    if dtype == F64:
        assert (rnn(x)[0] - before[0]).abs().max() < 1e-12


def test_rebasing_before_backward_is_refused():
    """The graph of U needs the base that it was made with."""
    rnn = orthogonal(dtriv(3, 6))
    loss = rnn(torch.randn(5, 2, 3, dtype=F64))[0].sum()
    rebase_(rnn)
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


@pytest.mark.parametrize("dtype", [F64, F32, torch.bfloat16])
def test_each_hundredth_rebasing_repairs(dtype):
    """A spoilt base becomes its closest orthogonal matrix, and not one re-basing sooner."""
    rnn = orthogonal(dtriv(3, 6, dtype=dtype))
    U = rnn.parametrizations.weight_hh_l0[0]
    for _ in range(98):
        rebase_(rnn)
    U.base += 1e-3 * torch.randn(6, 6, dtype=dtype)
    spoilt = U.base.to(F64, copy=True)
    rebase_(rnn)
    assert_same(U.base, spoilt, dtype)
    assert error(U.base.double()) > 1e-4
    rebase_(rnn)
    assert U.rebasings == 100
    values, vectors = torch.linalg.eigh(spoilt.mT @ spoilt)
    assert_same(U.base, spoilt @ vectors @ (values**-0.5).diag() @ vectors.mT, dtype)
    assert error(U.base) < {F64: 1e-14, F32: 5e-6, torch.bfloat16: 2e-2}[dtype]  # 2e-15, 1.4e-6, 8e-3


def test_rebasing_keeps_its_precision_under_autocast():
    rnn = orthogonal(dtriv(3, 32, dtype=F32), "henaff")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rebase_(rnn)
    assert error(rnn.weight_hh_l0) < 1e-5


@pytest.mark.parametrize("name", MOMENTA)
def test_official_form(name):
    """The released cell, once more: B = base exp(S), S = T - Tᵀ, T the upper triangle of A; U = Bᵀ."""
    momentum, decay = MOMENTA[name]
    n, rnn = 7, orthogonal(dtriv(3, 7, momentum=momentum))
    A = torch.randn(n, n, dtype=F64, requires_grad=True)
    base = henaff_(torch.empty(n, n, dtype=F64))
    x = torch.randn(9, 4, 3, dtype=F64, requires_grad=True)
    W, b = rnn.weight_ih_l0, rnn.bias_hh_l0

    def official(base):
        B = base @ torch.matrix_exp(A.triu(1) - A.triu(1).T)
        h, v, m, out = torch.zeros(4, n, dtype=F64), 0.0, 0.0, []
        for k, z in enumerate(x @ W.T):
            drive = z
            if momentum is not None:
                drive = v = decay(k) * v + momentum.step * z
            if momentum is not None and momentum.beta is not None:
                m = momentum.beta * m + (1 - momentum.beta) * z * z
                root = (m + momentum.eps**2).sqrt() if momentum.eps_in_sqrt else m.sqrt() + momentum.eps
                drive = v / root
            y = drive + h @ B
            h = torch.sign(y) * torch.relu(torch.abs(y) + b)
            out.append(h)
        return torch.stack(out), B

    want, B = official(base)
    rnn.weight_hh_l0 = B.detach().T
    assert_same(rnn(x)[0], want)
    assert_same(gradients(rnn(x)[0], [x, W, b]), gradients(want, [x, W, b]))
    # From the same base the released triangle is ours, transposed, and so is its gradient.
    want, _ = official(torch.eye(n, dtype=F64))
    rnn.weight_hh_l0 = torch.eye(n, dtype=F64)
    with torch.no_grad():
        tangent(rnn).copy_(A.T)
    assert_same(rnn(x)[0], want)
    assert_same(gradients(rnn(x)[0], tangent(rnn))[0].T, gradients(want, A)[0])


@pytest.mark.parametrize("n", [1, 2, 8, 9])
@pytest.mark.parametrize("init", [henaff_, cayley_])
def test_angles_are_those_drawn(init, n):
    """exp(S) of 2x2 blocks: its eigenvalues are exp(±iθ), and 1 for the odd row."""
    matrix = torch.empty(n, n, dtype=F64, requires_grad=True)
    torch.manual_seed(3)
    assert init(matrix) is matrix
    assert matrix.grad_fn is None
    torch.manual_seed(3)
    theta = torch.empty(n // 2, dtype=F64)
    if init is henaff_:
        theta.uniform_(-math.pi, math.pi)
    else:
        u = theta.uniform_(0, math.pi / 2)
        theta = -((1 - u.cos()) / (1 + u.cos())).sqrt()
    S = torch.zeros(n, n, dtype=F64)
    for i, angle in enumerate(theta):
        S[2 * i, 2 * i + 1], S[2 * i + 1, 2 * i] = angle, -angle
    assert_same(matrix, torch.matrix_exp(S))
    found = torch.linalg.eigvals(matrix.detach()).angle().sort().values
    assert_same(found, torch.cat([theta, -theta, torch.zeros(n % 2)]).sort().values)


def test_reach_of_the_inits():
    """Cayley's angles stay within 1 rad, of one sense; Henaff's fill the circle."""
    U, V = cayley_(torch.empty(1000, 1000)), henaff_(torch.empty(1000, 1000))
    cayley, henaff = (torch.atan2(m.diag(1)[::2], m.diag()[::2]) for m in (U, V))
    assert -1 < cayley.min() < -0.98
    assert -0.02 < cayley.max() < 0
    assert (2 * (-cayley).atan()).mean().item() == pytest.approx(math.pi / 4, abs=0.1)  # 5 sigma
    assert henaff.abs().max() > 3.1
    assert henaff.mean().abs() < 0.41  # 5 sigma
    assert henaff.square().mean().item() == pytest.approx(math.pi**2 / 3, abs=0.66)  # 5 sigma


def test_without_an_init_the_weight_is_kept():
    rnn = dtriv(3, 6)
    nn.init.orthogonal_(rnn.weight_hh_l0)
    rnn.weight_hh_l0.data.neg_()
    before = rnn.weight_hh_l0.detach().clone()
    assert_same(orthogonal(rnn, init=None).weight_hh_l0, before)
    assert error(orthogonal(dtriv(3, 6), init=None).weight_hh_l0) < 1e-14


@pytest.mark.parametrize("name", MOMENTA)
@pytest.mark.parametrize("cell", ["tanh", "modrelu"])
def test_every_momentum_and_option(name, cell):
    """A constrained layer is a plain one with the matrix U: outputs, states, packed, in pieces."""
    rnn = mr.Recurrent(
        CELLS[cell], 3, 5, 2, batch_first=True, bias="hh", momentum=MOMENTA[name][0], dtype=F64
    )
    rnn = weight_drop(moved(orthogonal(rnn, "henaff")), 0.5).eval()
    twin, x = plain(rnn), torch.randn(4, 6, 3, dtype=F64)
    assert_same(rnn(x), twin(x))
    packed = pack_padded_sequence(x, [6, 5, 2, 1], batch_first=True)
    assert_same(rnn(packed)[0].data, twin(packed)[0].data)
    pieces, state = [], rnn.initial_state(4)
    for chunk in x.split([1, 3, 2], dim=1):
        out, state = rnn(chunk, state)
        pieces.append(out)
    assert_same(torch.cat(pieces, dim=1), twin(x, twin.initial_state(4))[0])


@pytest.mark.parametrize("name", MOMENTA)
def test_gradcheck(name):
    rnn = moved(orthogonal(dtriv(2, 3, 2, momentum=MOMENTA[name][0])))
    names = [name for name, _ in rnn.named_parameters()]
    inputs = [torch.randn(3, 2, 2, dtype=F64), *(p.detach() for p in rnn.parameters())]

    def function(x, *weights):
        return functional_call(rnn, dict(zip(names, weights, strict=True)), (x,))

    assert gradcheck(function, [t.requires_grad_() for t in inputs], atol=1e-7, rtol=1e-5)


def test_cell_is_one_step_of_the_layer():
    rnn = moved(orthogonal(dtriv(3, 5, momentum=mr.Adam())))
    cell = orthogonal(
        mr.RNNCell(3, 5, nonlinearity="modrelu", bias="hh", momentum=mr.Adam(), dtype=F64), init=None
    )
    cell.load_state_dict({name.replace("_l0", ""): t for name, t in rnn.state_dict().items()})
    x, state, out = torch.randn(6, 2, 3, dtype=F64), cell.initial_state(2), []
    for piece in x:
        state = cell(piece, state)
        out.append(state.hidden[0])
    assert_same(torch.stack(out), rnn(x)[0])
    rebase_(cell)
    assert not tangent(cell, "weight_hh").any()
    assert_same(cell.weight_hh, rnn.weight_hh_l0)


@pytest.fixture
def exponentials(monkeypatch):
    """A list that grows by one with each matrix exponential."""
    calls, exp = [], torch.matrix_exp
    monkeypatch.setattr(torch, "matrix_exp", lambda A: calls.append(A.shape) or exp(A))
    return calls


def tie(rnn, *names):
    for name in names[1:]:
        setattr(rnn, name, getattr(rnn, names[0]))
    return rnn


L0, L1, R0, R1 = "weight_hh_l0", "weight_hh_l1", "weight_hh_l0_reverse", "weight_hh_l1_reverse"


@pytest.mark.parametrize(
    ("tied", "distinct"),
    [([], 4), ([[L0, L1]], 3), ([[L0, L1], [R0, R1]], 2), ([[L0, R0, L1, R1]], 1), ([[L1, R0]], 3)],
    ids=["free", "layers", "layers-each-way", "all", "across"],
)
@pytest.mark.parametrize("first", ["orthogonal", "then-dropped"])
def test_one_exponential_for_each_matrix(tied, distinct, first, exponentials):
    """A forward evaluates each distinct U once; tied layers stay tied, their gradients add up."""
    rnn = dtriv(3, 5, 2, bidirectional=True)
    for names in tied:
        tie(rnn, *names)
    moved(orthogonal(rnn, "henaff"))
    if first == "then-dropped":
        weight_drop(rnn, 0.5).eval()
    x = torch.randn(4, 2, 3, dtype=F64)
    exponentials.clear()
    out = rnn(x)
    assert len(exponentials) == distinct
    exponentials.clear()
    with parametrize.cached():
        for _ in range(3):
            rnn(x)
    assert len(exponentials) == distinct
    assert len([name for name, _ in rnn.named_parameters() if name.endswith("original")]) == distinct
    for names in tied:
        lists = {id(rnn.parametrizations[name]) for name in names}
        assert len(lists) == 1

    free = moved(orthogonal(dtriv(3, 5, 2, bidirectional=True)))
    if first == "then-dropped":
        weight_drop(free, 0.5).eval()
    free.load_state_dict(rnn.state_dict())
    assert_same(out, free(x))
    every = [L0, R0, L1, R1]
    apart = dict(zip(every, gradients(free(x), [tangent(free, name) for name in every]), strict=True))
    alone = [[name] for name in every if not any(name in names for names in tied)]
    for names in [*tied, *alone]:
        assert_same(gradients(out, tangent(rnn, names[0]))[0], sum(apart[name] for name in names))
    rebase_(rnn)
    assert_same(rnn(x), out)
    assert {int(rnn.parametrizations[name][0].rebasings) for name in every} == {1}


def test_one_exponential_for_a_loop_of_cells(exponentials):
    cell = orthogonal(mr.RNNCell(3, 5, nonlinearity="modrelu", momentum=mr.HeavyBall()))
    with parametrize.cached():
        state = cell.initial_state(2)
        for piece in torch.randn(6, 2, 3):
            state = cell(piece, state)
    assert len(exponentials) == 1


def trained(rnn, steps):
    """Some steps of training with a re-basing after each; deterministic."""
    optimizer = torch.optim.SGD(optimizer_groups(rnn, lr=0.1, orthogonal_lr=0.1))
    for i in range(steps):
        torch.manual_seed(i)
        loss = rnn(torch.randn(3, 2, 3, dtype=rnn.weight_ih_l0.dtype))[0].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rebase_(rnn)
    return rnn


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_a_resumed_run_is_exact(p):
    """A state_dict holds base, tangent and count: the 100th re-basing comes when it is due."""

    def fresh():
        return weight_drop(orthogonal(tie(dtriv(3, 5, 2, dtype=F32), L0, L1)), p)

    whole = trained(fresh(), 95)
    resumed = fresh()
    resumed.load_state_dict(whole.state_dict())
    assert resumed.parametrizations[L1] is resumed.parametrizations[L0]
    assert resumed.parametrizations[L0][0].rebasings == 95
    trained(whole, 10)
    trained(resumed, 10)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name])


def test_copies_and_dtypes():
    rnn = moved(weight_drop(orthogonal(tie(dtriv(3, 5, 2), L0, L1)), 0.5)).eval()
    x = torch.randn(4, 2, 3, dtype=F64)
    twin, before = copy.deepcopy(rnn), rnn(x)
    assert_same(twin(x), before)
    assert twin.parametrizations[L0] is twin.parametrizations[L1]
    moved(twin)
    rebase_(twin)
    assert torch.equal(rnn(x)[0], before[0])
    assert rnn.parametrizations[L0][0].rebasings == 0
    rnn.to(F32)
    assert_same(rnn(x.float()), before, F32)
    rebase_(rnn)
    assert rnn.parametrizations[L0][0].rebasings.dtype == torch.int64
    assert_same(rnn.double()(x), before, F32)


def dropped(cell, backend="auto", p=0.4, **options):
    rnn = mr.Recurrent(CELLS[cell], 3, 16, momentum=mr.HeavyBall(), dtype=F64, backend=backend, **options)
    return weight_drop(rnn, p)


@pytest.mark.parametrize(("cell", "backend"), [(cell, backend) for cell in CELLS for backend in serves(cell)])
def test_a_mask_lasts_a_sequence(cell, backend):
    """A training call is one of a plain layer with some of U zeroed and the rest scaled."""
    rnn, x = dropped(cell, backend), torch.randn(12, 2, 3, dtype=F64)
    twin = plain(rnn)
    U = twin.weight_hh_l0.detach().clone()
    with parametrize.cached():
        out, now = rnn(x), rnn.weight_hh_l0.detach()
    kept = now != 0
    assert_same(now[kept], U[kept] / 0.6)
    assert 0.5 < kept.double().mean() < 0.7  # 4 sigma at 256 entries
    with torch.no_grad():
        twin.weight_hh_l0.copy_(now)
    assert_same(out, twin(x))
    assert_same(gradients(out, tangent(rnn))[0], gradients(twin(x), twin.weight_hh_l0)[0] * kept / 0.6)


def test_each_call_has_its_own_mask():
    rnn, x = dropped("lstm"), torch.randn(12, 2, 3, dtype=F64)
    assert not torch.equal(rnn(x)[0], rnn(x)[0])
    rnn.eval()
    assert torch.equal(rnn(x)[0], plain(rnn)(x)[0])
    assert torch.equal(rnn.weight_hh_l0, tangent(rnn))


def test_expectation_of_a_drop():
    """U on average; each entry is zero with probability p."""
    rnn, draws = dropped("tanh"), 4000
    U = tangent(rnn).detach()
    with torch.no_grad():
        seen = torch.stack([rnn.weight_hh_l0 for _ in range(draws)])
    sigma = (0.4 / 0.6 / draws) ** 0.5
    assert (seen.mean(0) / U - 1).abs().max() < 5 * sigma
    assert ((seen == 0).double().mean(0) - 0.4).abs().max() < 5 * (0.24 / draws) ** 0.5


def test_tied_layers_share_a_mask():
    rnn = weight_drop(tie(mr.LSTM(5, 5, 2), L0, L1), 0.5)
    net = rnn._network(torch.zeros(1, 1, 5))
    assert torch.equal(net.weights[0].hh, net.weights[1].hh)
    assert len(rnn.parametrizations[L0]) == 1


def test_a_cell_keeps_its_mask_while_cached():
    cell = weight_drop(mr.LSTMCell(3, 16), 0.5)
    assert not torch.equal(cell.weight_hh, cell.weight_hh)
    with parametrize.cached():
        assert torch.equal(cell.weight_hh, cell.weight_hh)


def test_a_drop_on_top_of_an_orthogonal_matrix():
    """Dropping comes last: U below stays orthogonal, and re-basing in training mode takes it undropped."""
    rnn = moved(weight_drop(orthogonal(dtriv(3, 8)), 0.5))
    U = rnn.eval().weight_hh_l0.detach()
    assert error(U) < 1e-13
    rnn.train()
    now = rnn.weight_hh_l0.detach()
    assert 0 < (now == 0).sum() < 64
    assert_same(now[now != 0], 2 * U[now != 0])
    rebase_(rnn)
    assert rnn.training
    assert not tangent(rnn).any()
    assert_same(rnn.eval().weight_hh_l0, U)


def test_a_drop_leaves_the_rest_alone():
    """To add one draws nothing; a weight can still be assigned, and the drop taken off."""
    rnn = orthogonal(dtriv(3, 8))
    before = torch.get_rng_state()
    weight_drop(rnn, 0.5)
    assert torch.equal(torch.get_rng_state(), before)
    Q = henaff_(torch.empty(8, 8, dtype=F64))
    rnn.weight_hh_l0 = Q
    assert torch.equal(rnn.parametrizations.weight_hh_l0[0].base, Q)
    assert_same(rnn.eval().weight_hh_l0, Q)
    lstm = weight_drop(mr.LSTM(3, 5), 0.5)
    lstm.weight_hh_l0 = torch.ones(20, 5)
    parametrize.remove_parametrizations(lstm.eval(), L0)
    assert type(lstm) is mr.LSTM
    assert torch.equal(lstm.weight_hh_l0, torch.ones(20, 5))


@pytest.mark.parametrize(
    ("inputs", "n", "outputs", "want"),
    [
        (1, 170, 10, 16415),
        (1, 360, 10, 68950),
        (1, 512, 10, 136970),
        (129, 224, 129, 83121),
        (129, 322, 129, 135208),
    ],
)
def test_counts_of_the_paper(inputs, n, outputs, want):
    model = nn.ModuleList([orthogonal(dtriv(inputs, n, dtype=F32)), nn.Linear(n, outputs)])
    assert count_parameters(model) == want


def test_counts():
    """Without constraints all that is trained; what is shared once; what is frozen not at all."""
    lstm = mr.LSTM(3, 5)
    assert count_parameters(lstm) == sum(p.numel() for p in lstm.parameters())
    rnn = orthogonal(tie(dtriv(6, 6, 2), L0, L1))
    assert count_parameters(nn.ModuleList([rnn, rnn])) == 2 * (36 + 6) + 15
    tangent(rnn).requires_grad_(False)
    rnn.bias_hh_l0.requires_grad_(False)
    assert count_parameters(rnn) == 2 * 36 + 6


def test_groups_hold_each_parameter_once():
    rnn = weight_drop(orthogonal(tie(dtriv(6, 6, 3, bidirectional=True), L0, L1)), 0.1)
    model = nn.ModuleList([rnn, nn.Linear(12, 2), mr.LSTM(2, 2), rnn])
    first, second = optimizer_groups(model, lr=1e-3, orthogonal_lr=1e-4)
    assert (first["lr"], second["lr"]) == (1e-3, 1e-4)
    held = [id(p) for p in first["params"] + second["params"]]
    assert sorted(held) == sorted(map(id, model.parameters()))
    names = {id(p): name for name, p in model.named_parameters()}
    assert len(second["params"]) == 5
    assert all(names[id(p)].endswith("original") for p in second["params"])
    assert len(optimizer_groups(mr.LSTM(2, 2), lr=1.0, orthogonal_lr=0.1)) == 1


def test_two_optimisers():
    """As released for TIMIT: Adam for all but the tangents, RMSprop for those."""
    rnn = orthogonal(dtriv(3, 8))
    groups = optimizer_groups(rnn, lr=1e-2, orthogonal_lr=1e-3)
    optimizers = torch.optim.Adam(groups[:1]), torch.optim.RMSprop(groups[1:])
    before = {name: p.detach().clone() for name, p in rnn.named_parameters()}
    x, want, losses = torch.randn(5, 4, 3, dtype=F64), torch.randn(4, 8, dtype=F64), []
    for _ in range(50):
        loss = (rnn(x)[1][0] - want).square().mean()
        losses.append(loss.item())
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        rebase_(rnn)
    assert losses[-1] < 0.7 * losses[0]
    assert all(not torch.equal(p, before[name]) for name, p in rnn.named_parameters())
    assert error(rnn.weight_hh_l0) < 1e-13


def test_refusals_change_nothing():
    rnn = tie(dtriv(3, 6, 2), L0, L1)
    before = {name: t.clone() for name, t in rnn.state_dict().items()}
    for call in (lambda: orthogonal(rnn, "id"), lambda: weight_drop(rnn, 1), lambda: rebase_(rnn)):
        with pytest.raises(ValueError, match="should"):
            call()
    assert type(rnn) is mr.RNN
    assert all(torch.equal(t, before[name]) for name, t in rnn.state_dict().items())


NAN = math.nan


@pytest.mark.parametrize(
    ("error", "parts", "call"),
    [
        (TypeError, ("matrix", "a Tensor", "list"), lambda: henaff_([[0.0]])),
        (ValueError, ("matrix", "square", "(2, 3)"), lambda: cayley_(torch.empty(2, 3))),
        (ValueError, ("matrix", "square", "(4,)"), lambda: henaff_(torch.empty(4))),
        (ValueError, ("floating point", "int64"), lambda: henaff_(torch.ones(2, 2).long())),
        (TypeError, ("orthogonal", "rnn", "momentumrnn.RNN", "Linear"), lambda: orthogonal(nn.Linear(3, 3))),
        (TypeError, ("orthogonal", "rnn", "momentumrnn.RNN", "RNN"), lambda: orthogonal(nn.RNN(3, 3))),
        (ValueError, ("orthogonal", "weight_hh_l0", "square", "(20, 5)"), lambda: orthogonal(mr.LSTM(3, 5))),
        (ValueError, ("orthogonal", "weight_hh_l0", "square", "(15, 5)"), lambda: orthogonal(mr.GRU(3, 5))),
        (ValueError, ("weight_hh", "square", "(20, 5)"), lambda: orthogonal(mr.LSTMCell(3, 5))),
        (ValueError, ("square", "(20, 2)"), lambda: orthogonal(mr.LSTM(3, 5, proj_size=2))),
        (ValueError, ("init", "'cayley', 'henaff', None", "'id'"), lambda: orthogonal(mr.RNN(3, 5), "id")),
        (ValueError, ("init", "'cayley', 'henaff', None", "True"), lambda: orthogonal(mr.RNN(3, 5), True)),
        (
            ValueError,
            ("orthogonal", "weight_hh_l0", "plain parameter", "_Orthogonal", "once"),
            lambda: orthogonal(orthogonal(mr.RNN(3, 5))),
        ),
        (
            ValueError,
            ("orthogonal", "weight_hh_l0", "plain parameter", "_Drop", "weight_drop after"),
            lambda: orthogonal(weight_drop(mr.RNN(3, 5), 0.5)),
        ),
        (TypeError, ("rebase_", "model", "Module", "str"), lambda: rebase_("rnn")),
        (ValueError, ("rebase_", "model", "orthogonal()", "LSTM"), lambda: rebase_(mr.LSTM(3, 5))),
        (ValueError, ("rebase_", "orthogonal()"), lambda: rebase_(weight_drop(mr.LSTM(3, 5), 0.5))),
        (
            TypeError,
            ("weight_drop", "rnn", "momentumrnn.RNN", "LSTM"),
            lambda: weight_drop(nn.LSTM(3, 5), 0.1),
        ),
        (ValueError, ("weight_drop", "p ", "[0, 1)", "got 1"), lambda: weight_drop(mr.LSTM(3, 5), 1)),
        (ValueError, ("weight_drop", "p ", "[0, 1)", "-0.1"), lambda: weight_drop(mr.LSTM(3, 5), -0.1)),
        (ValueError, ("weight_drop", "p ", "[0, 1)", "nan"), lambda: weight_drop(mr.LSTM(3, 5), NAN)),
        (TypeError, ("weight_drop", "p ", "[0, 1)", "'a'"), lambda: weight_drop(mr.LSTM(3, 5), "a")),
        (TypeError, ("weight_drop", "p ", "[0, 1)", "False"), lambda: weight_drop(mr.LSTM(3, 5), False)),
        (
            ValueError,
            ("weight_drop", "weight_hh_l0", "no drop yet", "p=0.5"),
            lambda: weight_drop(weight_drop(orthogonal(mr.RNN(3, 5)), 0.5), 0.1),
        ),
        (
            TypeError,
            ("optimizer_groups", "model", "Module", "list"),
            lambda: optimizer_groups([], lr=1.0, orthogonal_lr=1.0),
        ),
        (
            ValueError,
            ("optimizer_groups", "lr", "[0, inf)", "-1"),
            lambda: optimizer_groups(mr.RNN(3, 5), lr=-1, orthogonal_lr=1.0),
        ),
        (
            TypeError,
            ("optimizer_groups", "orthogonal_lr", "[0, inf)", "None"),
            lambda: optimizer_groups(mr.RNN(3, 5), lr=1.0, orthogonal_lr=None),
        ),
        (TypeError, ("count_parameters", "model", "Module", "int"), lambda: count_parameters(3)),
    ],
)
def test_refused(error, parts, call):
    """Each message names the function, the argument, what was expected and what came."""
    with pytest.raises(error) as refusal:
        call()
    missing = [part for part in parts if part not in str(refusal.value)]
    assert not missing, f"{missing} not in {refusal.value!s}"
