"""Times layers against torch.nn, side by side in one run, and only after they agree with the definition.

Knows nothing of the command line, and prints nothing.
"""

import copy
import gc
import math
import multiprocessing
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import linear
from torch.nn.utils.rnn import PackedSequence

from . import backends, cells, spelling
from .constraints import orthogonal
from .modules import GRU, LSTM, RNN, Recurrent
from .momentum import MOMENTA, Momentum, Nesterov
from .provenance import provenance


@dataclass(frozen=True)
class Shape:
    """A layer and its input (T, B, D).

    cell: lstm, gru, rnn, dtriv: modrelu with an orthogonal U, or extrapolated: `cells.ExtrapolatedLSTM`.
    """

    cell: str
    T: int
    B: int
    D: int
    H: int


# By the paper's tables; the number is H.
SHAPES = {
    "pmnist128": Shape("lstm", 784, 128, 1, 128),
    "pmnist256": Shape("lstm", 784, 128, 1, 256),
    "lstm512": Shape("lstm", 784, 128, 1, 512),
    "mnist-gru256": Shape("gru", 784, 128, 1, 256),
    "timit84": Shape("lstm", 300, 32, 129, 84),
    "timit120": Shape("lstm", 300, 32, 129, 120),
    "timit158": Shape("lstm", 300, 32, 129, 158),
    "copy190-1k": Shape("lstm", 1020, 128, 10, 190),
    "copy190-2k": Shape("lstm", 2020, 128, 10, 190),
    "adding128": Shape("lstm", 750, 50, 2, 128),
    "ptb1150": Shape("lstm", 70, 20, 400, 1150),
    "ptb400": Shape("lstm", 70, 20, 1150, 400),
    "srlstm128": Shape("extrapolated", 784, 128, 1, 128),
    "srlstm256": Shape("extrapolated", 784, 128, 1, 256),
    "dtriv170": Shape("dtriv", 784, 128, 1, 170),
    "dtriv360": Shape("dtriv", 784, 128, 1, 360),
    "dtriv512": Shape("dtriv", 784, 128, 1, 512),
    "dtriv224": Shape("dtriv", 300, 128, 129, 224),
    "dtriv322": Shape("dtriv", 300, 128, 129, 322),
}

# Our layer and torch's of each cell.
LAYERS: dict[str, tuple[Callable[..., Recurrent], Callable[..., nn.Module]]] = {
    "lstm": (LSTM, nn.LSTM),
    "gru": (GRU, nn.GRU),
    "rnn": (RNN, nn.RNN),
    "dtriv": (RNN, nn.RNN),
    # As the paper's code runs SRLSTM on permuted MNIST at H = 256.
    "extrapolated": (partial(Recurrent, cells.ExtrapolatedLSTM(every=40, step_size=0.9)), nn.LSTM),
}


@dataclass(frozen=True)
class Mode:
    """How float32 is computed with: whether TF32 may be used, and the dtype of autocast, if any."""

    tf32: bool = True
    autocast: torch.dtype | None = None


MODES = {
    "tf32": Mode(),
    "fp32": Mode(tf32=False),
    "autocast-fp16": Mode(autocast=torch.float16),
    "autocast-bf16": Mode(autocast=torch.bfloat16),
}

# Rivals that are torch's layer in a dtype of their own, whatever the mode.
DTYPES = {
    "torch-fp32": torch.float32,
    "torch-bf16": torch.bfloat16,
    "torch-fp16": torch.float16,
    "torch-padded": torch.float16,
}

# Largest allowed difference to float64, relative to the largest entry, of outputs and of gradients; beside it
# the largest seen on the shapes above. Gradients leap where W x + b_ih (Adam, RMSProp) or
# |y| + b_hh (modrelu) crosses 0, and rounding decides on which side. Nesterov's drive outgrows 16 bits.
TOLERANCE = {
    "float64": (1e-9, 1e-9),  # 7e-14, 4e-14
    "float32": (2e-4, 2e-4),  # 3e-5, 2e-5; torch's own layers the same
    "float32, Adam": (1e-2, 2e-1),  # 2e-3, 1e-1; the loop the same
    "float32, modrelu": (2e-3, 2e-1),  # 2e-5, 6e-2; the loop the same
    "TF32": (2e-2, 2e-2),
    "bfloat16": (1e-1, 1e-1),  # 7e-2, 6e-2; with Nesterov 5e-1
    "float16": (5e-2, 5e-2),  # 7e-3, 1e-2; with Nesterov 1e-1
}

# The same in relative norms, where single entries leap or 16-bit operands stand for float32.
BY_NORM = {
    "cuda": (1e-3, 1e-3),  # 7e-5, 4e-4
    "cuda, Nesterov": (1e-3, 2e-2),  # 2.1e-4, 7.5e-3; cuDNN in TF32 on the same drive 6e-4, 1e-2
    "cuda, fp32": (2e-4, 2e-4),
    "cuda, Adam": (1e-2, 2e-1),
    "16 bits, Adam": (5e-2, 5e-1),  # on a CPU 1.3e-2, 2.8e-1, single entries 0.9; the loop the same
}

# Relative norms, of outputs and of gradients, that should not be passed in a mode. What passes them is timed
# all the same, and said to miss them.
GOALS = {"fp32": (1e-5, 1e-5)}

REPLAY = 1e-2  # largest relative norm between what a CUDA graph gives and what its calls give without one
SECONDS = 0.05  # that a contender is timed for in a round, at least
PROCESSES = 3  # that memory is measured in
LOOP_ROUNDS = 3


class BadOption(ValueError):
    """An option that can't be used; the message names it, what came and what was expected."""


@dataclass(frozen=True)
class Case:
    """One layer on one input; mode: one of MODES; lengths: of the sequences, full or uniform."""

    name: str
    shape: Shape
    momentum: Momentum | None
    backend: str
    device: str
    dtype: torch.dtype
    mode: str = "tf32"
    lengths: str = "full"


@dataclass(frozen=True)
class Contender:
    """A way to evaluate a layer, and what on.

    run: x -> outputs, final state; module: whose parameters it uses; x: (T, B, D); weights: of the outputs
    in the loss, (T, B, H); plain: what it should equal, where it is padded; sizes: where sequences are of
    several lengths, how many are in each step, (T,): x is then packed, (N, D), and weights (N, H).
    """

    about: str
    run: Callable[[Any], tuple[Any, Any]]
    module: nn.Module
    x: Tensor
    weights: Tensor
    mode: Mode = Mode()
    plain: "Contender | None" = None
    sizes: Tensor | None = None

    def forward(self) -> list[Tensor | None]:
        """The outputs."""
        with torch.no_grad(), _tf32(self.mode.tf32):
            return [self.call(self.x)[0]]

    def training(self) -> list[Tensor | None]:
        """The outputs, and the gradients of all parameters; a loss would send `weights` back."""
        with _tf32(self.mode.tf32):
            out = self.call(self.x)[0]
            torch.autograd.backward(out, self.weights)
        return [out.detach(), *(p.grad for p in self.module.parameters())]

    def call(self, x: Tensor) -> tuple[Tensor, Any]:
        """Outputs, packed as x is, and final state. Autocast ends before a backward pass, as torch asks."""
        with self.autocast():
            out, final = self.run(self.packed(x))
        return out if self.sizes is None else out.data, final

    def packed(self, x: Tensor) -> Tensor | PackedSequence:
        return x if self.sizes is None else PackedSequence(x, self.sizes)

    def autocast(self) -> Any:
        dtype = self.mode.autocast
        return nullcontext() if dtype is None else torch.autocast(self.x.device.type, dtype)


ACTIONS = {"forward": Contender.forward, "training": Contender.training}


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """cuDNN without TF32, unless allowed."""
    before = torch.backends.cudnn.allow_tf32
    if not allowed:
        torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        if not allowed:
            torch.backends.cudnn.allow_tf32 = before


def bench(
    *,
    command: str,
    shapes: Sequence[str],
    cells: Sequence[str],
    momentum: Sequence[str],
    backend: str,
    rivals: Sequence[str],
    replicas: Sequence[int],
    modes: Sequence[str],
    lengths: str,
    device: str | None,
    dtype: str,
    threads: int | None,
    repeats: int,
    memory: bool,
    report: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Every shape with every cell, momentum and mode: parity, times and peak memory, as JSON has them.

    `report` is given all that is known after each case. Ctrl-C ends the run: what is done is returned, with
    "complete" false.
    """
    for name in shapes or [""]:
        _check("shapes", name, name in SHAPES, f"one of {', '.join(SHAPES)}")
    _check("backend", backend, backend in backends.NAMES, f"one of {', '.join(backends.NAMES)}")
    for n in replicas:
        _check("replicas", n, n >= 1, "integers of at least 1")
    _check("repeats", repeats, repeats >= 1, "an integer of at least 1")
    _check("threads", threads, threads is None or 1 <= threads <= 4096, "an integer from 1 to 4096")
    gpu = torch.cuda.is_available()
    _check("device", device, device != "cuda" or gpu, "cpu, since torch finds no CUDA GPU")
    place = device or ("cuda" if gpu else "cpu")
    for mode in modes or [""]:
        _check("modes", mode, mode in MODES, f"one of {', '.join(MODES)}")
        _check("modes", mode, mode == "tf32" or dtype == "float32", f"tf32 for --dtype {dtype}")
        _check("modes", mode, mode != "fp32" or place == "cuda", "tf32 on a CPU: there it is float32 itself")
    _check("lengths", lengths, lengths in ("full", "uniform"), "full or uniform")
    # Without a momentum first, so that the others can be compared with it.
    momenta = sorted((parse(text) for text in momentum or [""]), key=lambda m: m is not None)
    cases = [
        Case(name, replace(SHAPES[name], cell=cell), m, backend, place, getattr(torch, dtype), mode, lengths)
        for name in shapes
        for cell in cells or [SHAPES[name].cell]
        for mode in modes
        for m in momenta
    ]
    for case in cases:
        own = case.shape.cell == "extrapolated"
        _check("momentum", repr(case.momentum), not own or case.momentum is None, f"None at {case.name}")
    if threads is not None:
        torch.set_num_threads(threads)
    result = {
        **provenance(command, place),
        "threads": torch.get_num_threads(),
        "settings": {
            "device": place,
            "dtype": dtype,
            "lengths": lengths,
            "repeats": repeats,
            "matmul_tf32": torch.backends.cuda.matmul.allow_tf32,
            "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        },
        "complete": False,
        "cases": [],
    }
    plain: dict[tuple[str, str, str], dict[str, Any]] = {}
    try:
        with warnings.catch_warnings():
            # Torch can't join the weights of a layer in bfloat16, and says so at each call.
            warnings.filterwarnings("ignore", "RNN module weights are not part")
            for case in cases:
                key = case.name, case.shape.cell, case.mode
                found = measure(case, rivals, replicas, repeats, memory)
                if case.momentum is None:
                    plain[key] = found
                elif key in plain and found["status"] == plain[key]["status"] == "ok":
                    found["against_plain"] = _against(found["rows"]["ours"], plain[key]["rows"]["ours"])
                result["cases"].append(found)
                report(result)
        result["complete"] = True
    except KeyboardInterrupt:
        pass
    return result


def parse(text: str) -> Momentum | None:
    """The momentum that is spelt so.

    >>> parse("HeavyBall(mu=0.9)")
    HeavyBall(mu=0.9, step=1.0)
    """
    try:
        return cast(Momentum | None, spelling.parse(text, MOMENTA, none=True))
    except ValueError as error:
        raise BadOption(f"--momentum: {error}") from None


def _check(option: str, value: object, holds: bool, expected: str) -> None:
    if not holds:
        raise BadOption(f"--{option}: expected {expected}, got {value!r}")


def _against(row: dict[str, Any], other: dict[str, Any]) -> dict[str, float | None]:
    """The training time of one row over that of another."""
    fields = {"eager": "training_ms", "graph": "training_graph_ms"}
    pairs = {kind: (row.get(field), other.get(field)) for kind, field in fields.items()}
    return {kind: a / b if a and b else None for kind, (a, b) in pairs.items()}


def measure(
    case: Case, rivals: Sequence[str], replicas: Sequence[int], repeats: int, memory: bool
) -> dict[str, Any]:
    """Parity, then, if ours is right, times and peak memory; the status is ok, wrong or failed.

    A rival that can't run has the reason in its row.
    """
    shape = case.shape
    found: dict[str, Any] = {
        "shape": case.name,
        "cell": shape.cell,
        "momentum": repr(case.momentum),
        "mode": case.mode,
        "sizes": {"T": shape.T, "B": shape.B, "D": shape.D, "H": shape.H},
        "steps": shape.T * shape.B,
        "backend": case.backend,
        "status": "failed",
    }
    names = ("ours", *rivals, *(f"replicas-{n}" for n in replicas))
    notes: dict[str, dict[str, str]] = {"reason": {}, "graph_reason": {}}
    times: dict[str, dict[str, list[float]]] = {}
    peaks: dict[str, float | None] = {}
    try:
        ours = build(case)
        found["steps"] = ours.weights.shape[:-1].numel()  # of all sequences
        truth = _evaluate(_exact(ours), rows=32)
        contenders, errors = {"ours": ours}, {"ours": _errors(_evaluate(ours), truth)}
        found["backend"], found["how"] = _backend(ours.module, ours)
        allowed = _tolerance(case, found["backend"])
        for name in names[1:]:
            with _noting(notes["reason"], name):
                contender = rival(name, ours, case)
                same = contender.module is ours.module or name == "native"
                errors[name] = _parity(contender, truth if same else None)
                if name.startswith("replicas-") and _over(errors[name], allowed):
                    raise RuntimeError("they differ from each one alone by more than the tolerance")
                contenders[name] = contender
        found["parity"] = {"tolerance": allowed, **errors}
        if case.mode in GOALS:
            goal = _by_norms(GOALS[case.mode])
            found["goal"] = {"errors": goal, "missed": _over(errors["ours"], goal)}
        if _over(errors["ours"], allowed):
            return {**found, "status": "wrong"}
        layers = {name: contender.about for name, contender in contenders.items()}
        for what, action in ACTIONS.items():
            ready = _warm(contenders, action, notes["reason"])
            times[what] = _rounds({name: partial(_seconds, c, action) for name, c in ready.items()}, repeats)
        # What is known is kept, should the rest fail.
        found |= _table(case, names, layers, times, peaks, notes)
        for what, action in ACTIONS.items() if case.device == "cuda" else ():
            ready = _warm(contenders, action, notes["reason"])
            times[f"{what}_graph"] = _replays(ready, action, repeats, notes["graph_reason"])
            found |= _table(case, names, layers, times, peaks, notes)
        for name in ready if memory else ():
            with _noting(notes["reason"], name):
                peaks[name] = _peak(case, name, contenders[name])
        found |= _table(case, names, layers, times, peaks, notes)
    # What torch says where a backend refuses, a dtype is missing or memory runs out, and what a compiler of
    # kernels says: the cases that follow may do better.
    except Exception as error:
        return {**found, "reason": _reason(error)}
    return {**found, "status": "ok"}


def _table(
    case: Case,
    names: Sequence[str],
    layers: dict[str, str],
    times: dict[str, dict[str, list[float]]],
    peaks: dict[str, float | None],
    notes: dict[str, dict[str, str]],
) -> dict[str, Any]:
    """A row for each name, with None for what isn't known, and ratios of ours to its rivals."""
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        peak = peaks.get(name)
        rows[name] = {
            "layer": layers.get(name, name),
            **{
                f"{what}_ms": 1e3 * statistics.median(t[name]) if name in t else None
                for what, t in times.items()
            },
            "peak_mb": peak,
            "peak_mb_per_sample": None if peak is None else peak / case.shape.B,
            **{kind: texts[name] for kind, texts in notes.items() if name in texts},
        }
        if name.startswith("replicas-"):
            rows[name]["against_single"] = _against(rows[name], rows["ours"])
    ratios = {
        what: {
            name: _ratio(t["ours"], t[name])
            for name in t
            if "ours" in t and name != "ours" and not name.startswith("replicas-")
        }
        for what, t in times.items()
    }
    return {"rows": rows, "ratios": ratios}


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


@contextmanager
def _noting(reasons: dict[str, str], name: str) -> Iterator[None]:
    """Notes why a rival can't do this, and goes on; ours has to."""
    try:
        yield
    except Exception as error:
        if name == "ours":
            raise
        reasons[name] = _reason(error)


def _backend(layer: nn.Module, on: Contender) -> list[str]:
    """The backend that runs this layer on that input in that mode, and how, as `explain` has them."""
    assert isinstance(layer, Recurrent)
    with _tf32(on.mode.tf32), on.autocast():
        lines = [line.split(" runs: ") for line in layer.explain(on.packed(on.x)).splitlines()]
    return next(([part.strip() for part in parts] for parts in lines if len(parts) == 2), ["none", ""])


def build(case: Case) -> Contender:
    """Ours."""
    torch.manual_seed(0)
    shape = case.shape
    dtriv = {"nonlinearity": "modrelu", "bias": "hh"} if shape.cell == "dtriv" else {}
    options = {**dtriv, "dtype": case.dtype, "momentum": case.momentum, "backend": case.backend}
    # All is drawn on the CPU: a capture that failed leaves CUDA's random numbers unusable.
    layer = LAYERS[shape.cell][0](shape.D, shape.H, **options).to(case.device)
    if dtriv:
        orthogonal(layer, init="cayley")
        with torch.no_grad():
            # A positive threshold makes modrelu leap at 0, where rounding decides on the side.
            layer.get_parameter("bias_hh_l0").abs_().neg_()
    sizes = None if case.lengths == "full" else _sizes(shape)
    lead = (shape.T, shape.B) if sizes is None else (int(sizes.sum()),)
    x, weights = (torch.randn(*lead, size, dtype=case.dtype).to(case.device) for size in (shape.D, shape.H))
    mode = MODES[case.mode]
    weights = weights.to(mode.autocast or case.dtype)
    return Contender(f"momentumrnn.{type(layer).__name__}", layer, layer, x, weights, mode, sizes=sizes)


def _sizes(shape: Shape) -> Tensor:
    """How many sequences are in each step, (T,): lengths from 1 to T, each as likely, and one of T."""
    lengths = torch.randint(1, shape.T + 1, (shape.B,), generator=torch.Generator().manual_seed(0))
    lengths[0] = shape.T
    return (lengths > torch.arange(shape.T)[:, None]).sum(1)


def rival(name: str, ours: Contender, case: Case) -> Contender:
    """The contender of that name, with the weights of ours, on the same input."""
    layer = ours.module
    assert isinstance(layer, Recurrent)
    if ours.sizes is not None and (name in ("loop", "torch-padded") or name.startswith("replicas-")):
        raise RuntimeError("not for sequences of several lengths")
    if name == "loop":
        return replace(ours, about="loop, the paper's listing", run=partial(loop, layer))
    if name == "plain":
        if case.momentum is None:
            raise RuntimeError("ours has no momentum itself")
        twin = copy.deepcopy(layer)
        twin.momentum = None
        return replace(ours, about=f"{ours.about}, plain", run=twin, module=twin)
    if name.startswith("replicas-"):
        return _replicas(ours, int(name.removeprefix("replicas-")))
    if name == "native":
        twin = copy.deepcopy(layer)
        twin.backend = name
        return replace(ours, about=f"{ours.about}, native", run=twin, module=twin)
    dtype = DTYPES.get(name, case.dtype)
    # Made there, for cuDNN wants all weights in one piece.
    theirs = LAYERS[case.shape.cell][1](case.shape.D, case.shape.H, device=case.device, dtype=dtype)
    with torch.no_grad():
        for weight_name, weight in theirs.named_parameters():
            weight.copy_(getattr(layer, weight_name, torch.zeros(())))
    about = f"torch.nn.{type(theirs).__name__}{name.removeprefix('torch').replace('-', ' ')}"
    if case.shape.cell == "dtriv":
        about += " (tanh, free U)"
    if case.shape.cell == "extrapolated":
        about += " (plain cell)"
    mode = ours.mode if name == "torch" else Mode(tf32=name != "torch-fp32")
    x, weights = ours.x.to(dtype), ours.weights.to(mode.autocast or dtype)
    found = Contender(about, theirs, theirs, x, weights, mode, sizes=ours.sizes)
    return pad(found) if name == "torch-padded" else found


def pad(plain: Contender) -> Contender:
    """The same LSTM at sizes for which cuDNN keeps U on the chip: D and H multiples of 128, B one of 8.

    Further units have weights of 0, so they are 0 at all times; further rows have no part in the loss.
    """
    layer = plain.module
    if not isinstance(layer, nn.LSTM):
        raise RuntimeError("padding is for an LSTM alone")
    (_, rows, columns), units = plain.x.shape, layer.hidden_size
    place = {"device": plain.x.device, "dtype": plain.x.dtype}
    wide = nn.LSTM(_up(columns, 128), _up(units, 128), **place)
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            part = _part(wide.get_parameter(name).zero_(), weight.shape)
            part.copy_(weight.view_as(part))

    def larger(t: Tensor, size: int) -> Tensor:
        whole = t.new_zeros(len(t), _up(rows, 8), size)
        _part(whole, t.shape).copy_(t)
        return whole

    def run(x: Tensor) -> tuple[Tensor, Any]:
        out, final = wide(x)
        return out, tuple(state[:, :rows, :units] for state in final)

    x, weights = larger(plain.x, wide.input_size), larger(plain.weights, wide.hidden_size)
    return replace(plain, run=run, module=wide, x=x, weights=weights, plain=plain)


def _up(size: int, to: int) -> int:
    return -(-size // to) * to


def _part(whole: Tensor, shape: Sequence[int]) -> Tensor:
    """The part of a padded tensor that holds one of that shape; weights, of 1 or 2 axes, by gates."""
    if whole.dim() < 3:
        whole, shape = whole.view(4, -1, *whole.shape[1:]), (4, shape[0] // 4, *shape[1:])
    return whole[tuple(map(slice, shape))]


class Replicas(nn.Module):
    """A layer many times over, each with weights of its own, in one run: (T, B, D) -> (R, T, B, H)."""

    def __init__(self, layer: nn.Module, count: int) -> None:
        super().__init__()
        self.alone = [copy.deepcopy(layer) for _ in range(count)]
        with torch.no_grad():
            for i, one in enumerate(self.alone):
                for p in one.parameters():
                    p.mul_(1 - i / (2 * count))
        stacked, _ = torch.func.stack_module_state(self.alone)
        self.names = list(stacked)
        self.weights = nn.ParameterList(stacked.values())

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        def one(weights: Sequence[Tensor], x: Tensor) -> Tensor:
            named = dict(zip(self.names, weights, strict=True))
            return cast(Tensor, functional_call(self.alone[0], named, (x,))[0])

        return torch.vmap(one, in_dims=(0, None))(tuple(self.weights), x), None


def _replicas(ours: Contender, count: int) -> Contender:
    module, seen = Replicas(ours.module, count), []

    def look(weight: Tensor) -> Tensor:
        seen.extend(_backend(module.alone[0], ours))
        return weight

    torch.vmap(look)(module.weights[0])
    about, weights = f"{count} replicas, {seen[0]}", ours.weights.expand(count, -1, -1, -1).contiguous()
    return Contender(about, module, module, ours.x, weights, ours.mode)


def loop(layer: Recurrent, x: Tensor) -> tuple[Tensor, Any]:
    """The paper's listing (appendix): project x_t, update v, step the cell, one step after another.

    layer: where weights and momentum come from, of one layer and direction; x: (T, B, D). Results as torch's.
    """
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    w, u, b, b_hh = (cast(Any, getattr(layer, name, None)) for name in names)
    m, cell = layer.momentum, layer.cell
    step = partial(_extrapolated, cell) if isinstance(cell, cells.ExtrapolatedLSTM) else _STEPS[cell]
    k = torch.arange(len(x), dtype=torch.float64)
    decay = [] if m is None else (m.decay(k) + torch.zeros_like(k)).tolist()
    state = tuple(x.new_zeros(x.shape[1], width) for width in cell.widths(layer.hidden_size))
    v = n = x.new_zeros(x.shape[1], layer.cell.gates * layer.hidden_size)
    ys = []
    for t, x_t in enumerate(x.unbind(0)):
        drive = a = linear(x_t, w, b)
        if m is not None:
            drive = v = decay[t] * v + m.step * a
            if m.beta is not None:
                n = m.beta * n + (1 - m.beta) * a * a
                drive = v / ((n + m.eps**2).sqrt() if m.eps_in_sqrt else n.sqrt() + m.eps)
        state = step(drive, u, b_hh, *state)
        ys.append(state[0])
    final = tuple(part.unsqueeze(0) for part in state)
    return torch.stack(ys), final if len(final) > 1 else final[0]


# Of v_t, U, b_hh and the state, h first: the next state.
_Step = Callable[..., tuple[Tensor, ...]]


def _lstm(v: Tensor, u: Tensor, b: Tensor | None, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    return _gates(v + linear(h, u, b), c)


def _gates(gates: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    i, f, g, o = gates.chunk(4, 1)
    c = c * f.sigmoid() + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _extrapolated(
    cell: cells.ExtrapolatedLSTM,
    v: Tensor,
    u: Tensor,
    b: Tensor | None,
    h: Tensor,
    c: Tensor,
    y: Tensor,
    j: Tensor,
) -> tuple[Tensor, ...]:
    old, y = y, linear(h, u, b) - cell.step_size * v
    return *_gates(y + j / (j + 3) * (y - old), c), y, (j + 1) % cell.every


def _gru(v: Tensor, u: Tensor, b: Tensor | None, h: Tensor) -> tuple[Tensor, ...]:
    v_r, v_z, v_n = v.chunk(3, 1)
    u_r, u_z, u_n = linear(h, u, b).chunk(3, 1)
    z = (v_z + u_z).sigmoid()
    n = (v_n + (v_r + u_r).sigmoid() * u_n).tanh()
    return ((1 - z) * n + z * h,)


def _tanh(v: Tensor, u: Tensor, b: Tensor | None, h: Tensor) -> tuple[Tensor, ...]:
    return ((v + linear(h, u, b)).tanh(),)


def _modrelu(v: Tensor, u: Tensor, b: Tensor | None, h: Tensor) -> tuple[Tensor, ...]:
    y = v + linear(h, u)
    return (y.sign() * (y.abs() if b is None else y.abs() + b).relu(),)


_STEPS: dict[cells.Cell, _Step] = {
    cells.LSTM(): _lstm,
    cells.GRU(): _gru,
    cells.Elman("tanh"): _tanh,
    cells.Elman("modrelu"): _modrelu,
}


_Results = tuple[list[Tensor | None], list[Tensor | None]]


def _parity(contender: Contender, truth: _Results | None) -> dict[str, float | None]:
    """The errors against the truth, by default its own in float64; of replicas, against each by itself."""
    if isinstance(contender.module, Replicas):
        return _errors(*_together_and_alone(contender, contender.module))
    want = truth or _evaluate(_exact(contender.plain or contender), rows=32)
    got = _evaluate(contender)
    if contender.plain is not None:
        got = cast(_Results, tuple(list(map(_cut, *pair)) for pair in zip(got, want, strict=True)))
    return _errors(got, want)


def _cut(whole: Tensor | None, like: Tensor | None) -> Tensor | None:
    return whole if whole is None or like is None else _part(whole, like.shape).reshape(like.shape)


def _together_and_alone(contender: Contender, module: Replicas) -> tuple[_Results, _Results]:
    """Outputs and gradients of all replicas, in one run and one by one."""
    results = contender.training()
    together = [[t if t is None else t[i] for t in results] for i in range(len(module.alone))]
    alone = [
        replace(contender, run=one, module=one, weights=w).training()
        for one, w in zip(module.alone, contender.weights, strict=True)
    ]
    for one in (module, *module.alone):
        one.zero_grad()
    by_kind = [([out for out, *_ in each], [g for _, *gs in each for g in gs]) for each in (together, alone)]
    return by_kind[0], by_kind[1]


def _errors(got: _Results, want: _Results) -> dict[str, float | None]:
    """The largest of each kind, for outputs with final states and for gradients; None if not finite."""
    entries, norms = {}, {}
    for what, ours, theirs in zip(("outputs", "gradients"), got, want, strict=True):
        each = list(map(difference, ours, theirs))
        entries[what], norms[f"{what}_norm"] = (max(kind) for kind in zip(*each, strict=True))
    return {what: error if math.isfinite(error) else None for what, error in (entries | norms).items()}


def _exact(contender: Contender) -> Contender:
    module = copy.deepcopy(contender.module).double()
    if isinstance(module, Recurrent):
        module.backend = "reference"
    x, weights = contender.x.double(), contender.weights.double()
    return Contender("exact", module, module, x, weights, sizes=contender.sizes)


def _over(errors: dict[str, float | None], allowed: dict[str, float]) -> list[str]:
    """The errors that are larger than allowed."""
    return [name for name, most in allowed.items() if (error := errors[name]) is None or error > most]


def _tolerance(case: Case, backend: str) -> dict[str, float]:
    """By the name of the error that it is for."""
    name = _precision(case, backend)
    if name in BY_NORM:
        return _by_norms(BY_NORM[name])
    return dict(zip(("outputs", "gradients"), TOLERANCE[name], strict=True))


def _by_norms(pair: tuple[float, float]) -> dict[str, float]:
    return dict(zip(("outputs_norm", "gradients_norm"), pair, strict=True))


def _precision(case: Case, backend: str) -> str:
    m, mode = case.momentum, MODES[case.mode]
    dtype, leaps = str(mode.autocast or case.dtype).removeprefix("torch."), m is not None and not m.linear
    if dtype != "float32":
        return "16 bits, Adam" if leaps and dtype != "float64" else dtype
    if backend == "cuda":
        fast = "cuda, Nesterov" if isinstance(m, Nesterov) else "cuda"
        return "cuda, Adam" if leaps else fast if mode.tf32 else "cuda, fp32"
    if case.shape.cell == "dtriv":
        return "float32, modrelu"
    if leaps:
        return "float32, Adam"
    tf32 = case.device == "cuda" and mode.tf32 and torch.backends.cudnn.allow_tf32
    return "TF32" if tf32 else "float32"


def _evaluate(contender: Contender, rows: int | None = None) -> _Results:
    """Outputs with final states, and the gradients to x and all parameters.

    Rows of the batch are independent: fewer at a time keep the graph of a long loop small. A packed batch
    is not taken apart.
    """
    x, found = contender.x.detach().requires_grad_(), []
    rows = rows if contender.sizes is None else None
    pieces = [torch.split(t, rows, 1) if rows else (t,) for t in (x, contender.weights)]
    with _tf32(contender.mode.tf32):
        for piece, w in zip(*pieces, strict=True):
            out, final = contender.call(piece)
            states = final if isinstance(final, tuple) else (final,)
            loss = (out * w).sum() + sum(state.sum() for state in states)
            loss.backward()
            found.append([out.detach(), *(state.detach() for state in states)])
    gradients = [x.grad, *(p.grad for p in contender.module.parameters())]
    contender.module.zero_grad()
    outputs = [torch.cat(parts, 1) for parts in zip(*found, strict=True)] if rows else found[0]
    return outputs, gradients


def difference(got: Tensor | None, want: Tensor | None) -> tuple[float, float]:
    """The largest difference relative to the largest entry expected, and ‖got - want‖ / ‖want‖.

    What they are relative to is at least 1e-3; nan is infinite.
    """
    if got is None or want is None:
        return (0.0, 0.0) if got is want else (math.inf, math.inf)
    want = want.double()
    apart = got.double() - want
    pairs = (apart.abs().max(), want.abs().max()), (apart.norm(), want.norm())
    entry, norm = (error.item() / max(scale.item(), 1e-3) for error, scale in pairs)
    return math.inf if math.isnan(entry) else entry, math.inf if math.isnan(norm) else norm


def _warm(
    contenders: dict[str, Contender], action: Callable[[Contender], object], reasons: dict[str, str]
) -> dict[str, Contender]:
    """Those that could do it once."""
    for name, contender in contenders.items():
        if name in reasons:
            continue
        # Torch's layers leave out what only a backward pass needs when told so; ours see it by themselves.
        contender.module.train(action is Contender.training)
        with _noting(reasons, name):
            _seconds(contender, action, 0.0)
    return {name: contender for name, contender in contenders.items() if name not in reasons}


def _rounds(timers: dict[str, Callable[[float], float]], repeats: int) -> dict[str, list[float]]:
    """Seconds a call, of each contender in each round; rounds begin with one after another.

    timers: from the seconds to measure for, at least, to the seconds a call.
    """
    names = list(timers)
    times: dict[str, list[float]] = {name: [] for name in names}
    for i in range(repeats if names else 0):
        turn = i % len(names)
        for name in names[turn:] + names[:turn]:
            if name != "loop":
                times[name].append(timers[name](SECONDS))
            elif i < LOOP_ROUNDS:
                times[name].append(timers[name](0.0))
    return times


def _seconds(contender: Contender, action: Callable[[Contender], object], least: float) -> float:
    """Seconds a call, over as many calls as take `least` seconds: their mean, on a GPU their median."""
    clear, spent, calls = contender.module.zero_grad, 0.0, 0
    if contender.x.is_cuda:
        return _by_events(partial(action, contender), least, clear)
    while calls == 0 or spent < least:
        clear()
        begin = time.perf_counter()
        action(contender)
        spent += time.perf_counter() - begin
        calls += 1
    clear()
    return spent / calls


def _by_events(call: Callable[[], object], least: float, clear: Callable[[], None] = lambda: None) -> float:
    """The median of the GPU's seconds a call, over calls that take `least` seconds.

    Calls are queued, as in training: the time to launch them counts only where the GPU waits for it.
    """
    times: list[float] = []
    while not times or sum(times) < least:
        events = []
        for _ in range(10 if times else 1):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            clear()
            begin.record()
            call()
            end.record()
            events.append((begin, end))
        torch.cuda.synchronize()
        times += [begin.elapsed_time(end) / 1e3 for begin, end in events]
    clear()
    return statistics.median(times)


def _replays(
    contenders: dict[str, Contender],
    action: Callable[[Contender], list[Tensor | None]],
    repeats: int,
    reasons: dict[str, str],
) -> dict[str, list[float]]:
    """As `_rounds`, of CUDA graphs."""
    graphs = {}
    for name, contender in contenders.items():
        if name == "loop":
            reasons[name] = "not captured: a step is many launches"
            continue
        try:
            graphs[name] = _capture(contender, action)
        except Exception as error:
            reasons[name] = _reason(error)
            contender.module.zero_grad()
    return _rounds({name: partial(_by_events, graph.replay) for name, graph in graphs.items()}, repeats)


def _capture(
    contender: Contender, action: Callable[[Contender], list[Tensor | None]]
) -> torch.cuda.CUDAGraph:
    """The action as a graph, whose replay gives what the action gives."""
    clear, graph = contender.module.zero_grad, torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    # Around all of it, because a capture that fails leaves its stream the current one.
    with torch.cuda.stream(side):
        for _ in range(3):
            clear()
            want = action(contender)
        clear()
        with torch.cuda.graph(graph, stream=side):
            got = action(contender)
        clear()
        # Twice: what a first replay leaves behind should not spoil a second.
        for _ in range(2):
            graph.replay()
        torch.cuda.synchronize()
        _, worst = map(max, zip(*map(difference, got, want), strict=True))
    if worst > REPLAY:
        raise RuntimeError(f"replayed, it is {worst:.0e} away from what it gives without a graph")
    return graph


def _ratio(ours: Sequence[float], rival: Sequence[float]) -> dict[str, float]:
    # The loop has fewer rounds; each ratio is of one round, whose noise both had.
    each = [a / b for a, b in zip(ours, rival, strict=False)]
    return {"median": statistics.median(each), "lowest": min(each), "highest": max(each)}


def _peak(case: Case, name: str, contender: Contender) -> float | None:
    """Megabytes at the peak of forward and backward, above input and weights; None where not measured."""
    if name == "loop":
        return None
    if case.device == "cpu":
        peaks = [_in_a_fresh_process(case, name) for _ in range(PROCESSES if sys.platform == "linux" else 0)]
        known = [peak for peak in peaks if peak is not None]
        return statistics.median(known) if known else None
    peak = 0
    for _ in range(2):  # the first for what stays, such as workspaces
        contender.module.zero_grad()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        contender.training()
        peak = torch.cuda.max_memory_allocated() - before
    contender.module.zero_grad()
    return peak / 1e6


def _in_a_fresh_process(case: Case, name: str) -> float | None:
    """The resident peak of a process that has done nothing else, so that no freed memory hides it."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_resident, args=(there, case, name, torch.get_num_threads()))
    process.start()
    there.close()
    try:
        return here.recv()  # type: ignore[no-any-return]
    except EOFError:  # it died, of too little memory as a rule
        return None
    finally:
        process.kill()
        process.join()
        here.close()


def _resident(there: Connection, case: Case, name: str, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent ends it
    torch.set_num_threads(threads)
    ours = build(case)
    contender = ours if name == "ours" else rival(name, ours, case)
    _beginning(contender).training()
    contender.module.zero_grad()
    gc.collect()
    try:
        before = _status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to what is there now
        contender.training()
        there.send((_status("VmHWM") - before) * 1024 / 1e6)
    except (OSError, KeyError):  # a kernel without these
        there.send(None)


def _beginning(contender: Contender) -> Contender:
    """The same on two steps."""
    x, weights, sizes = contender.x, contender.weights, contender.sizes
    if sizes is None:
        return replace(contender, x=x[:2], weights=weights[..., :2, :, :])
    rows = int(sizes[:2].sum())
    return replace(contender, x=x[:rows], weights=weights[:rows], sizes=sizes[:2])


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)[field].split()[0])
