"""Whether a contender is right: its errors against the definition in float64, and how large they may be."""

import copy
import math
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from ..layers import Recurrent
from ..momentum import Nesterov
from .cases import MODES, Case, Contender, tf32
from .rivals import Replicas, inner_part

# The largest allowed error of outputs and of gradients, relative to the largest entry of the float64 result.
# Comments give the largest errors seen on SHAPES. Gradients jump where W x + b_ih (Adam, RMSProp) or
# |y| + b_hh (modrelu) crosses 0, and rounding decides on which side. Nesterov's drive outgrows 16 bits.
TOLERANCE = {
    "float64": (1e-9, 1e-9),  # 7e-14, 4e-14
    "float32": (2e-4, 2e-4),  # 3e-5, 2e-5; torch's own layers have the same
    "float32, Adam": (1e-2, 2e-1),  # 2e-3, 1e-1; the loop has the same
    "float32, modrelu": (2e-3, 2e-1),  # 2e-5, 6e-2; the loop has the same
    "TF32": (2e-2, 2e-2),
    "bfloat16": (1e-1, 1e-1),  # 7e-2, 6e-2; with Nesterov 5e-1
    "float16": (5e-2, 5e-2),  # 7e-3, 1e-2; with Nesterov 1e-1
}

# The same for the norm of the error relative to the norm of the result. It is used where single entries jump,
# or where float32 is multiplied in 16 bits.
NORM_TOLERANCE = {
    "cuda": (1e-3, 1e-3),  # 7e-5, 4e-4
    "cuda, Nesterov": (1e-3, 2e-2),  # 2.1e-4, 7.5e-3; cuDNN in TF32 with the same drive 6e-4, 1e-2
    "cuda, fp32": (2e-4, 2e-4),
    "cuda, Adam": (1e-2, 2e-1),
    "16 bits, Adam": (5e-2, 5e-1),  # on a CPU 1.3e-2, 2.8e-1, single entries 0.9; the loop has the same
}

# Relative norms of the errors that we aim at in a mode. A layer that misses its goal is timed nevertheless.
GOALS = {"fp32": (1e-5, 1e-5)}

Errors = dict[str, float | None]
# Outputs with final states, and gradients.
Results = tuple[list[Tensor | None], list[Tensor | None]]


def compare(contender: Contender, expected: Results | None = None) -> Errors:
    """The errors of a contender, by default against the same layer in float64.

    Replicas are compared with each of their layers on its own.
    """
    if isinstance(contender.module, Replicas):
        return largest_errors(*_evaluate_replicas(contender, contender.module))
    expected = expected or evaluate_exactly(contender.unpadded or contender)
    results = evaluate(contender)
    if contender.unpadded is not None:
        cropped = (list(map(_crop, *pair)) for pair in zip(results, expected, strict=True))
        results = cast(Results, tuple(cropped))
    return largest_errors(results, expected)


def _crop(padded: Tensor | None, like: Tensor | None) -> Tensor | None:
    if padded is None or like is None:
        return padded
    return inner_part(padded, like.shape).reshape(like.shape)


def _evaluate_replicas(contender: Contender, module: Replicas) -> tuple[Results, Results]:
    """Outputs and gradients of all replicas, run at once and run one by one."""
    stacked = contender.training()
    at_once = [[t if t is None else t[i] for t in stacked] for i in range(len(module.layers))]
    one_by_one = [
        replace(contender, run=layer, module=layer, loss_weights=loss_weights).training()
        for layer, loss_weights in zip(module.layers, contender.loss_weights, strict=True)
    ]
    for layer in (module, *module.layers):
        layer.zero_grad()

    def split(replicas: list[list[Tensor | None]]) -> Results:
        return [out for out, *_ in replicas], [g for _, *gradients in replicas for g in gradients]

    return split(at_once), split(one_by_one)


def evaluate_exactly(contender: Contender) -> Results:
    """What `evaluate` gives for the definition of the contender's layer in float64."""
    module = copy.deepcopy(contender.module).double()
    if isinstance(module, Recurrent):
        module.backend = "reference"
    x, loss_weights = contender.x.double(), contender.loss_weights.double()
    exact = Contender("exact", module, module, x, loss_weights, batch_sizes=contender.batch_sizes)
    return evaluate(exact, sequences_at_once=32)


def evaluate(contender: Contender, sequences_at_once: int | None = None) -> Results:
    """Outputs with final states, and the gradients of x and all parameters.

    The sequences of a batch are independent. A few at once keep the autograd graph of a long loop small. A
    packed batch is never split.
    """
    x = contender.x.detach().requires_grad_()
    size = sequences_at_once if contender.batch_sizes is None else None
    pieces = [torch.split(t, size, 1) if size else (t,) for t in (x, contender.loss_weights)]
    outputs = []
    with tf32(contender.mode.tf32):
        for x_piece, loss_weights in zip(*pieces, strict=True):
            out, final = contender.call(x_piece)
            states = final if isinstance(final, tuple) else (final,)
            loss = (out * loss_weights).sum() + sum(state.sum() for state in states)
            loss.backward()
            outputs.append([out.detach(), *(state.detach() for state in states)])
    gradients = [x.grad, *(p.grad for p in contender.module.parameters())]
    contender.module.zero_grad()
    joined = [torch.cat(parts, 1) for parts in zip(*outputs, strict=True)] if size else outputs[0]
    return joined, gradients


def largest_errors(results: Results, expected: Results) -> Errors:
    """The largest errors of the outputs and of the gradients, by entry and by norm; None if not finite."""
    entries, norms = {}, {}
    for kind, ours, theirs in zip(("outputs", "gradients"), results, expected, strict=True):
        errors = [difference(a, b) for a, b in zip(ours, theirs, strict=True)]
        entries[kind] = max(entry for entry, _ in errors)
        norms[f"{kind}_norm"] = max(norm for _, norm in errors)
    return {kind: error if math.isfinite(error) else None for kind, error in (entries | norms).items()}


def difference(got: Tensor | None, want: Tensor | None) -> tuple[float, float]:
    """The largest difference relative to the largest entry of `want`, and ‖got - want‖ / ‖want‖.

    A denominator is at least 1e-3. A result that is nan counts as infinite.
    """
    if got is None or want is None:
        return (0.0, 0.0) if got is want else (math.inf, math.inf)
    want = want.double()
    error = got.double() - want
    pairs = (error.abs().max(), want.abs().max()), (error.norm(), want.norm())
    entry, norm = (size.item() / max(scale.item(), 1e-3) for size, scale in pairs)
    return math.inf if math.isnan(entry) else entry, math.inf if math.isnan(norm) else norm


def exceeded(errors: Errors, limits: dict[str, float]) -> list[str]:
    """The names of the errors that are above their limits."""
    return [name for name, limit in limits.items() if (error := errors[name]) is None or error > limit]


def goal(mode: str, errors: Errors) -> dict[str, Any]:
    """The record of a mode's goal: the errors aimed at, and which of ours are above; empty without a goal."""
    if mode not in GOALS:
        return {}
    limits = _norm_limits(GOALS[mode])
    return {"goal": {"errors": limits, "missed": exceeded(errors, limits)}}


def tolerance(case: Case, backend: str) -> dict[str, float]:
    """The limit of each error that the case is judged by."""
    name = _tolerance_name(case, backend)
    if name in NORM_TOLERANCE:
        return _norm_limits(NORM_TOLERANCE[name])
    return dict(zip(("outputs", "gradients"), TOLERANCE[name], strict=True))


def _norm_limits(pair: tuple[float, float]) -> dict[str, float]:
    return dict(zip(("outputs_norm", "gradients_norm"), pair, strict=True))


def _tolerance_name(case: Case, backend: str) -> str:
    momentum, mode = case.momentum, MODES[case.mode]
    jumps = momentum is not None and not momentum.linear
    dtype = str(mode.autocast or case.dtype).removeprefix("torch.")
    if dtype != "float32":
        return "16 bits, Adam" if jumps and dtype != "float64" else dtype
    if backend == "cuda":
        if jumps:
            return "cuda, Adam"
        if not mode.tf32:
            return "cuda, fp32"
        return "cuda, Nesterov" if isinstance(momentum, Nesterov) else "cuda"
    if case.shape.cell == "dtriv":
        return "float32, modrelu"
    if jumps:
        return "float32, Adam"
    uses_tf32 = case.device == "cuda" and mode.tf32 and torch.backends.cudnn.allow_tf32
    return "TF32" if uses_tf32 else "float32"
