"""Times layers against torch.nn, side by side in one run, and only after they agree with the definition.

Knows nothing of the command line, and prints nothing.
"""

import ast
import copy
import gc
import math
import multiprocessing
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from . import backends, cells
from .constraints import orthogonal
from .modules import GRU, LSTM, RNN, Recurrent
from .momentum import Adam, HeavyBall, Momentum, Nesterov, RMSProp, ScheduledRestart
from .provenance import provenance


@dataclass(frozen=True)
class Shape:
    """A layer and its input (T, B, D); cell: lstm, gru, rnn, or dtriv: modrelu with an orthogonal U."""

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
}

MOMENTA = {m.__name__: m for m in (HeavyBall, Nesterov, ScheduledRestart, Adam, RMSProp)}

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

SECONDS = 0.05  # that a contender is timed for in a round, at least
PROCESSES = 3  # that memory is measured in
LOOP_ROUNDS = 3


class BadOption(ValueError):
    """An option that can't be used; the message names it, what came and what was expected."""


@dataclass(frozen=True)
class Case:
    """One layer on one input."""

    name: str
    shape: Shape
    momentum: Momentum | None
    backend: str
    device: str
    dtype: torch.dtype


@dataclass(frozen=True)
class Contender:
    """A way to evaluate a layer, and what on.

    run: x -> outputs, final state; module: whose parameters it uses; x: (T, B, D); weights: of the outputs
    in the loss, (T, B, H).
    """

    about: str
    run: Callable[[Tensor], tuple[Tensor, Any]]
    module: nn.Module
    x: Tensor
    weights: Tensor

    def forward(self) -> None:
        with torch.no_grad():
            self.run(self.x)

    def training(self) -> None:
        (self.run(self.x)[0] * self.weights).sum().backward()  # type: ignore[no-untyped-call]


def bench(
    *,
    command: str,
    shapes: Sequence[str],
    cells: Sequence[str],
    momentum: Sequence[str],
    backend: str,
    rivals: Sequence[str],
    device: str | None,
    dtype: str,
    threads: int | None,
    repeats: int,
    memory: bool,
    report: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Every shape with every cell and momentum: parity, times and peak memory, as JSON has them.

    `report` is given each case when it is done. Ctrl-C ends the run: what is done is returned, with
    "complete" false.
    """
    for name in shapes or [""]:
        _check("shapes", name, name in SHAPES, f"one of {', '.join(SHAPES)}")
    _check("backend", backend, backend in backends.NAMES, f"one of {', '.join(backends.NAMES)}")
    _check("repeats", repeats, repeats >= 1, "an integer of at least 1")
    _check("threads", threads, threads is None or 1 <= threads <= 4096, "an integer from 1 to 4096")
    gpu = torch.cuda.is_available()
    _check("device", device, device != "cuda" or gpu, "cpu, since torch finds no CUDA GPU")
    place = device or ("cuda" if gpu else "cpu")
    momenta = [parse(text) for text in momentum or [""]]
    cases = [
        Case(name, replace(SHAPES[name], cell=cell), m, backend, place, getattr(torch, dtype))
        for name in shapes
        for cell in cells or [SHAPES[name].cell]
        for m in momenta
    ]
    if threads is not None:
        torch.set_num_threads(threads)
    result = {
        **provenance(command, place),
        "threads": torch.get_num_threads(),
        "settings": {
            "device": place,
            "dtype": dtype,
            "repeats": repeats,
            "matmul_tf32": torch.backends.cuda.matmul.allow_tf32,
            "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        },
        "complete": False,
        "cases": [],
    }
    try:
        for case in cases:
            result["cases"].append(measure(case, rivals, repeats, memory))
            report(result["cases"][-1])
        result["complete"] = True
    except KeyboardInterrupt:
        pass
    return result


def parse(text: str) -> Momentum | None:
    """The momentum that is spelt so.

    >>> parse("HeavyBall(mu=0.9)")
    HeavyBall(mu=0.9, step=1.0)
    """
    known = ", ".join([*(repr(m()) for m in MOMENTA.values()), "None"])
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if isinstance(tree, ast.Constant) and tree.value is None:
            return None
        call = tree if isinstance(tree, ast.Call) else ast.Call(tree, [], [])
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        _check("momentum", text, name in MOMENTA, f"one of {known}")
        given = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
        _check("momentum", text, len(given) == len(call.keywords), "each keyword once")
        return MOMENTA[name](*map(ast.literal_eval, call.args), **given)
    except BadOption:
        raise
    except (SyntaxError, TypeError, ValueError) as error:
        raise BadOption(f"--momentum: expected one of {known}, got {text!r}: {error}") from None


def _check(option: str, value: object, holds: bool, expected: str) -> None:
    if not holds:
        raise BadOption(f"--{option}: expected {expected}, got {value!r}")


def measure(case: Case, rivals: Sequence[str], repeats: int, memory: bool) -> dict[str, Any]:
    """Parity, then, if ours is right, times and peak memory; the status is ok, wrong or failed."""
    shape = case.shape
    found: dict[str, Any] = {
        "shape": case.name,
        "cell": shape.cell,
        "momentum": repr(case.momentum),
        "sizes": {"T": shape.T, "B": shape.B, "D": shape.D, "H": shape.H},
        "backend": case.backend,
        "status": "failed",
    }
    try:
        contenders = build(case, rivals)
        found["parity"] = _parity(case, contenders)
        found["backend"], found["how"] = _backend(contenders["ours"])
        errors, allowed = found["parity"]["ours"], found["parity"]["tolerance"]
        if any(error is None or error > allowed[what] for what, error in errors.items()):
            return {**found, "status": "wrong"}
        times = {
            "forward": _rounds(contenders, Contender.forward, repeats),
            "training": _rounds(contenders, Contender.training, repeats),
        }
        found["rows"] = {
            name: {
                "layer": contender.about,
                **{f"{what}_ms": 1e3 * statistics.median(t[name]) for what, t in times.items()},
                "peak_mb": _peak(case, name, contender) if memory and name != "loop" else None,
            }
            for name, contender in contenders.items()
        }
        found["ratios"] = {
            what: {rival: _ratio(t["ours"], t[rival]) for rival in t if rival != "ours"}
            for what, t in times.items()
        }
    # What torch says where a backend refuses, a dtype is missing or memory runs out.
    except RuntimeError as error:
        return {**found, "reason": str(error).splitlines()[0]}
    return {**found, "status": "ok"}


def _backend(ours: Contender) -> list[str]:
    """The backend that runs this, and how, as `explain` has them."""
    assert isinstance(ours.module, Recurrent)
    lines = (line.split(" runs: ") for line in ours.module.explain(ours.x).splitlines())
    return next([part.strip() for part in parts] for parts in lines if len(parts) == 2)


def build(case: Case, rivals: Sequence[str]) -> dict[str, Contender]:
    """Ours and its rivals, with the same weights, on the same input."""
    torch.manual_seed(0)
    shape, place = case.shape, {"device": case.device, "dtype": case.dtype}
    our_layer, torch_layer = LAYERS[shape.cell]
    dtriv = {"nonlinearity": "modrelu", "bias": "hh"} if shape.cell == "dtriv" else {}
    options = {**dtriv, **place, "momentum": case.momentum, "backend": case.backend}
    ours, theirs = our_layer(shape.D, shape.H, **options), torch_layer(shape.D, shape.H, **place)
    about = [f"momentumrnn.{type(ours).__name__}", f"torch.nn.{type(theirs).__name__}"]
    if dtriv:
        orthogonal(ours, init="cayley")
        about[1] += " (tanh, free U)"
    with torch.no_grad():
        if dtriv:
            # A positive threshold makes modrelu leap at 0, where rounding decides on the side.
            ours.get_parameter("bias_hh_l0").abs_().neg_()
        for name, weight in theirs.named_parameters():
            weight.copy_(getattr(ours, name, torch.zeros(())))
    x = torch.randn(shape.T, shape.B, shape.D, **place)  # type: ignore[call-overload]
    weights = torch.randn(shape.T, shape.B, shape.H, **place)  # type: ignore[call-overload]
    known = {
        "ours": Contender(about[0], ours, ours, x, weights),
        "torch": Contender(about[1], theirs, theirs, x, weights),
        "loop": Contender("loop, the paper's listing", partial(loop, ours), ours, x, weights),
    }
    return {name: known[name] for name in ("ours", *rivals)}


def loop(layer: Recurrent, x: Tensor) -> tuple[Tensor, Any]:
    """The paper's listing (appendix): project x_t, update v, step the cell, one step after another.

    layer: where weights and momentum come from, of one layer and direction; x: (T, B, D). Results as torch's.
    """
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    w, u, b, b_hh = (cast(Any, getattr(layer, name, None)) for name in names)
    m, cell = layer.momentum, _STEPS[layer.cell]
    k = torch.arange(len(x), dtype=torch.float64)
    decay = [] if m is None else (m.decay(k) + torch.zeros_like(k)).tolist()
    h = c = x.new_zeros(x.shape[1], layer.hidden_size)
    v = n = x.new_zeros(x.shape[1], layer.cell.gates * layer.hidden_size)
    ys = []
    for t, x_t in enumerate(x.unbind(0)):
        drive = a = linear(x_t, w, b)
        if m is not None:
            drive = v = decay[t] * v + m.step * a
            if m.beta is not None:
                n = m.beta * n + (1 - m.beta) * a * a
                drive = v / ((n + m.eps**2).sqrt() if m.eps_in_sqrt else n.sqrt() + m.eps)
        h, c = cell(drive, u, b_hh, h, c)
        ys.append(h)
    final = h.unsqueeze(0), c.unsqueeze(0)
    return torch.stack(ys), final if layer.cell.states == 2 else final[0]


_Step = Callable[[Tensor, Tensor, Tensor | None, Tensor, Tensor], tuple[Tensor, Tensor]]


def _lstm(v: Tensor, u: Tensor, b: Tensor | None, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = (v + linear(h, u, b)).chunk(4, 1)
    c = c * f.sigmoid() + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru(v: Tensor, u: Tensor, b: Tensor | None, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    v_r, v_z, v_n = v.chunk(3, 1)
    u_r, u_z, u_n = linear(h, u, b).chunk(3, 1)
    z = (v_z + u_z).sigmoid()
    n = (v_n + (v_r + u_r).sigmoid() * u_n).tanh()
    return (1 - z) * n + z * h, c


def _tanh(v: Tensor, u: Tensor, b: Tensor | None, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    return (v + linear(h, u, b)).tanh(), c


def _modrelu(v: Tensor, u: Tensor, b: Tensor | None, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    y = v + linear(h, u)
    return y.sign() * (y.abs() if b is None else y.abs() + b).relu(), c


_STEPS: dict[cells.Cell, _Step] = {
    cells.LSTM(): _lstm,
    cells.GRU(): _gru,
    cells.Elman("tanh"): _tanh,
    cells.Elman("modrelu"): _modrelu,
}


def _parity(case: Case, contenders: dict[str, Contender]) -> dict[str, Any]:
    """The errors against float64: of ours and the loop against our reference, of torch against itself."""
    truth = _evaluate(_exact(contenders["ours"]), rows=32)
    found = {"tolerance": _pair(*TOLERANCE[_precision(case)])}
    for name, contender in contenders.items():
        want = truth if name != "torch" else _evaluate(_exact(contender))
        worst = [max(map(difference, *pair)) for pair in zip(_evaluate(contender), want, strict=True)]
        found[name] = _pair(*(error if math.isfinite(error) else None for error in worst))
    return found


def _pair(outputs: float | None, gradients: float | None) -> dict[str, float | None]:
    return {"outputs": outputs, "gradients": gradients}


def _exact(contender: Contender) -> Contender:
    module = copy.deepcopy(contender.module).double()
    if isinstance(module, Recurrent):
        module.backend = "reference"
    return Contender("exact", module, module, contender.x.double(), contender.weights.double())


def _precision(case: Case) -> str:
    dtype = str(case.dtype).removeprefix("torch.")
    if dtype != "float32":
        return dtype
    if case.shape.cell == "dtriv":
        return "float32, modrelu"
    if case.momentum is not None and not case.momentum.linear:
        return "float32, Adam"
    return "TF32" if case.device == "cuda" and torch.backends.cudnn.allow_tf32 else "float32"


def _evaluate(
    contender: Contender, rows: int | None = None
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Outputs with final states, and the gradients to x and all parameters.

    Rows of the batch are independent: fewer at a time keep the graph of a long loop small.
    """
    x, found = contender.x.detach().requires_grad_(), []
    size = rows or x.shape[1]
    for piece, w in zip(torch.split(x, size, 1), torch.split(contender.weights, size, 1), strict=True):
        out, final = contender.run(piece)
        states = final if isinstance(final, tuple) else (final,)
        loss = (out * w).sum() + sum(state.sum() for state in states)
        loss.backward()
        found.append([out.detach(), *(state.detach() for state in states)])
    gradients = [x.grad, *(p.grad for p in contender.module.parameters())]
    contender.module.zero_grad()
    return [torch.cat(parts, 1) for parts in zip(*found, strict=True)], gradients


def difference(got: Tensor | None, want: Tensor | None) -> float:
    """The largest difference, relative to the largest entry expected (at least 1e-3); nan is infinite."""
    if got is None or want is None:
        return 0.0 if got is want else math.inf
    scale = max(want.abs().max().item(), 1e-3)
    worst = (got.double() - want).abs().max().item() / scale
    return math.inf if math.isnan(worst) else worst


def _rounds(
    contenders: dict[str, Contender], action: Callable[[Contender], None], repeats: int
) -> dict[str, list[float]]:
    """Seconds a call, of each contender in each round; rounds begin with one after another."""
    names = list(contenders)
    times: dict[str, list[float]] = {name: [] for name in names}
    for contender in contenders.values():
        # Torch's layers leave out what only a backward pass needs when told so; ours see it by themselves.
        contender.module.train(action is Contender.training)
        _seconds(contender, action, 0.0)  # to warm up
    for i in range(repeats):
        turn = i % len(names)
        for name in names[turn:] + names[:turn]:
            if name != "loop":
                times[name].append(_seconds(contenders[name], action, SECONDS))
            elif i < LOOP_ROUNDS:
                times[name].append(_seconds(contenders[name], action, 0.0))
    return times


def _seconds(contender: Contender, action: Callable[[Contender], None], least: float) -> float:
    """Seconds a call, over as many calls as take `least` seconds."""
    spent, calls = 0.0, 0
    while calls == 0 or spent < least:
        contender.module.zero_grad()
        _wait(contender.x)
        begin = time.perf_counter()
        action(contender)
        _wait(contender.x)
        spent += time.perf_counter() - begin
        calls += 1
    contender.module.zero_grad()
    return spent / calls


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def _ratio(ours: Sequence[float], rival: Sequence[float]) -> dict[str, float]:
    # The loop has fewer rounds; each ratio is of one round, whose noise both had.
    each = [a / b for a, b in zip(ours, rival, strict=False)]
    return {"median": statistics.median(each), "lowest": min(each), "highest": max(each)}


def _peak(case: Case, name: str, contender: Contender) -> float | None:
    """Megabytes at the peak of forward and backward, above input and weights; None where not measured."""
    if case.device == "cpu":
        peaks = [_in_a_fresh_process(case, name) for _ in range(PROCESSES if sys.platform == "linux" else 0)]
        known = [peak for peak in peaks if peak is not None]
        return statistics.median(known) if known else None
    contender.module.zero_grad()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    contender.training()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


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
    contender = build(case, [name])[name]
    replace(contender, x=contender.x[:2], weights=contender.weights[:2]).training()
    contender.module.zero_grad()
    gc.collect()
    try:
        before = _status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to what is there now
        contender.training()
        there.send((_status("VmHWM") - before) * 1024 / 1e6)
    except (OSError, KeyError):  # a kernel without these
        there.send(None)


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)[field].split()[0])
