"""What all tests share: the grid of momenta and cells, tolerances, and memory that is never zero by luck."""

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import oracle
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import momentumrnn as mr
from momentumrnn import cells
from momentumrnn.backends import native
from momentumrnn.provenance import provenance

torch.set_num_threads(1)
# So that the small inputs of the tests take the way of large ones, and few steps that of many.
native.SMALL_INPUT = 0
SHIPPED_FEW_STEPS, native.FEW_STEPS = native.FEW_STEPS, 0
# Fills what torch.empty returns with nan, so that an element nobody wrote can't pass.
torch.use_deterministic_algorithms(True)

# Largest allowed difference to float64, relative to the largest entry; beside it the largest seen here.
TOLERANCE = {
    torch.float64: 1e-10,  # 2e-12 where the drive of Adam is 1e6, else 3e-14
    torch.float32: 2e-5,  # 2e-6
    torch.bfloat16: 5e-2,  # 3.3e-2; float16 too
    "cuDNN": 1e-4,  # 2e-5
    "cuDNN, Adam": 1e-3,  # 6e-4: its drive leaps where W x + b_ih crosses 0, and so do errors
    "cuDNN, Adam, second derivative": 1e-2,  # 1.2e-3
    "TF32": 1e-2,  # 2.8e-3
}


@dataclass(frozen=True)
class Warmup(mr.Momentum):
    """A user's own linear momentum."""

    mu: float = 0.8
    step: float = 0.9

    def decay(self, k):
        return self.mu * (1 - 0.5**k)


@dataclass(frozen=True)
class Warmdam(mr.Momentum):
    """A user's own momentum with a second moment."""

    step: float = 0.9
    beta: float = 0.7
    eps: float = 1e-3

    def decay(self, k):
        return 0.5 / (k + 1)


# A momentum, and its decay for the oracle. A new momentum is one more row.
MOMENTA = {
    "None": (None, None),
    "HeavyBall": (mr.HeavyBall(mu=0.6, step=0.7), lambda k: 0.6),
    "HeavyBall-0": (mr.HeavyBall(mu=0.0, step=2.0), lambda k: 0.0),
    "HeavyBall-1": (mr.HeavyBall(mu=1.0, step=0.1), lambda k: 1.0),
    "Nesterov": (mr.Nesterov(step=0.8), lambda k: k / (k + 3)),
    "ScheduledRestart": (mr.ScheduledRestart(every=3, step=0.9), lambda k: (k % 3) / (k % 3 + 3)),
    "Adam": (mr.Adam(mu=0.5, step=0.7, beta=0.9), lambda k: 0.5),
    "Adam-growing": (mr.Adam(mu=0.6, step=1.0, beta=0.1), lambda k: 0.6),  # mu² > beta
    "Adam-printed": (mr.Adam(mu=0.5, step=0.7, beta=0.9, eps=0.1, eps_in_sqrt=False), lambda k: 0.5),
    "RMSProp": (mr.RMSProp(step=0.7, beta=0.3), lambda k: 0.0),
    "Warmup": (Warmup(), lambda k: 0.8 * (1 - 0.5**k)),
    "Warmdam": (Warmdam(), lambda k: 0.5 / (k + 1)),
}

# A cell by the oracle's name. A new cell is one more row.
CELLS = {
    "lstm": cells.LSTM(),
    "gru": cells.GRU(),
    "tanh": cells.Elman("tanh"),
    "relu": cells.Elman("relu"),
    "sigmoid": cells.Elman("sigmoid"),
    "modrelu": cells.Elman("modrelu"),
    "extrapolated": cells.ExtrapolatedLSTM(every=3, step_size=0.7),
}
NATIVE = set(CELLS) - {"extrapolated"}


def serves(cell):
    """The backends that run a cell."""
    return ["native", "reference"] if cell in NATIVE else ["reference"]


def grid():
    """Every momentum with every cell on every backend that serves it."""
    return [
        pytest.param(momentum, cell, backend, id=f"{momentum}-{cell}-{backend}")
        for momentum in MOMENTA
        for cell in CELLS
        for backend in serves(cell)
    ]


def leaf(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def as_torch(hidden):
    """(h,) or (h, c) as torch's layers take them."""
    return tuple(hidden) if len(hidden) > 1 else hidden[0]


def as_tuple(final):
    """What torch's layers return, as (h,) or (h, c)."""
    return final if isinstance(final, tuple) else (final,)


def layer(cell, momentum=None, *args, **options):
    """A float64 layer by the names above."""
    options.setdefault("dtype", torch.float64)
    return mr.Recurrent(CELLS[cell], *args, momentum=MOMENTA[momentum or "None"][0], **options)


def expected(net, x, lengths=None, hidden=None, moments=None):
    """What the oracle makes of `net` on the padded, time-major x."""
    name = next(name for name, cell in CELLS.items() if cell == net.cell)
    m = net.momentum
    about = None
    if m is not None:
        decay = next(decay for momentum, decay in MOMENTA.values() if momentum == m)
        about = {"decay": decay, "step": m.step, "beta": m.beta, "eps": m.eps, "printed": not m.eps_in_sqrt}
    return oracle.run(
        x,
        dict(net.named_parameters()),
        cell=name,
        settings=vars(net.cell),
        momentum=about,
        factored=net.factored,
        num_layers=net.num_layers,
        bidirectional=net.bidirectional,
        lengths=lengths,
        hidden=hidden,
        moments=moments,
    )


def begun(net, counts):
    """A State in mid-sequence, row i after counts[i] steps: all of it leaves with a gradient, none zero."""
    start = net.initial_state(len(counts))
    hidden = tuple(torch.randn_like(h).requires_grad_() for h in start.hidden)
    v, n = torch.randn_like(start.v).requires_grad_(), torch.rand_like(start.n).requires_grad_()
    return mr.State(*hidden, v, n, torch.tensor(counts).expand(start.k.shape))


def call(net, x, state=None, lengths=None):
    """`net` on the time-major x, packed if there are lengths; the output padded, and the final state."""
    out, final = net(x if lengths is None else pack_padded_sequence(x, lengths, enforce_sorted=False), state)
    return (out if lengths is None else pad_packed_sequence(out)[0]), final


def assert_oracle(net, x, state=None, lengths=None):
    """Outputs, final state, of a State all of it, and every gradient are the oracle's."""
    got = call(net, x, state, lengths)
    moments = None if state is None else (state.v, state.n if state.n.numel() else None, state.k[0].tolist())
    out, hidden, (v, n, k) = expected(net, x, lengths, None if state is None else state.hidden, moments)
    want = out, as_torch(hidden)
    if state is not None:
        # Without a moment of that order the State's is empty, and returned as it came.
        k = torch.tensor(k).expand(state.k.shape)
        want = out, hidden, state.v if v is None else v, state.n if n is None else n, k
    assert_same(got, want)
    inputs = [x, *net.parameters(), *([] if state is None else [*state.hidden, state.v, state.n])]
    found, sought = (
        [torch.zeros_like(i) if g is None else g for g, i in zip(gradients(r, inputs), inputs, strict=True)]
        for r in (got, want)
    )
    assert_same(found, sought)


def difference(got, want):
    """The largest difference, relative to the largest entry expected (at least 1e-3); nan is infinite."""
    if got is None or want is None:
        return 0.0 if got is want else math.inf
    if got.shape != want.shape:
        return math.inf
    if want.numel() == 0:
        return 0.0
    scale = max(want.detach().abs().max().item(), 1e-3)
    worst = (got.detach().double() - want.detach().double()).abs().max().item() / scale
    return math.inf if math.isnan(worst) else worst


def assert_same(got, want, dtype=torch.float64):
    """All tensors of two equal structures within the dtype's tolerance."""
    got, want = leaves(got), leaves(want)
    assert len(got) == len(want)
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        assert difference(g, w) <= TOLERANCE[dtype], f"tensor {i} of {len(got)}: {difference(g, w)}"


def assert_single_steps(one, net, x):
    """The cell module `one`, with the weights of `net`, step by step from a State is the layer `net`."""
    one.load_state_dict({name.removesuffix("_l0"): p for name, p in net.state_dict().items()})
    out, after = net(x, net.initial_state(2))
    state, outs = one.initial_state(2), []
    for x_t in x:
        state = one(x_t, state)
        outs.append(state.hidden[0])
    assert_same(torch.stack(outs), out)
    assert_same(state, [t[0] for t in after])


def leaves(tree):
    """The tensors (and Nones) of nested tuples, lists and packed sequences."""
    if isinstance(tree, nn.utils.rnn.PackedSequence):
        return [tree.data]
    if isinstance(tree, tuple | list):
        return [leaf for part in tree for leaf in leaves(part)]
    return [tree]


def gradients(outputs, inputs, seed=0):
    """The gradients of a fixed random combination of all outputs."""
    outputs = [o for o in leaves(outputs) if o is not None and o.requires_grad]
    generator = torch.Generator().manual_seed(seed)
    draws = [torch.randn(o.shape, generator=generator, dtype=torch.float64) for o in outputs]
    loss = sum((o * d.to(o)).sum() for o, d in zip(outputs, draws, strict=True))
    return torch.autograd.grad(loss, inputs, allow_unused=True, retain_graph=True)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def few_steps_as_shipped(monkeypatch):
    """Single steps take the way that they take for users."""
    monkeypatch.setattr(native, "FEW_STEPS", SHIPPED_FEW_STEPS)


BEGUN = pytest.StashKey[float]()


def pytest_addoption(parser):
    parser.addoption("--summary", help="write what was run, where and with what result to this JSON file")


def pytest_sessionstart(session):
    session.config.stash[BEGUN] = time.time()


def pytest_terminal_summary(terminalreporter, config):
    if not config.getoption("--summary") or hasattr(config, "workerinput"):
        return
    outcomes = ("passed", "failed", "error", "skipped")
    summary = provenance(" ".join(["pytest", *config.invocation_params.args])) | {
        "tests": {name: len(terminalreporter.stats.get(name, [])) for name in outcomes},
        "seconds": round(time.time() - config.stash[BEGUN], 1),
    }
    Path(config.getoption("--summary")).write_text(json.dumps(summary, indent=2) + "\n")
