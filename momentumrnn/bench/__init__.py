"""Times layers against torch.nn, side by side in one run, and only after they agree with the definition.

Knows nothing of the command line, and prints nothing.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..provenance import provenance
from .cases import (
    ACTIONS,
    LAYERS,
    MODES,
    SHAPES,
    Case,
    Contender,
    Mode,
    Shape,
    build,
    explain_backend,
)
from .failures import note_failure, summarize
from .memory import peak_memory
from .options import BadOption, check_numbers, choose_device, list_cases, parse
from .parity import (
    compare,
    difference,
    evaluate,
    evaluate_exactly,
    exceeded,
    goal,
    largest_errors,
    tolerance,
)
from .rivals import Replicas, loop, pad, rival
from .table import Table
from .timing import time_calls, time_graphs, training_ratio, warm_up

__all__ = [
    "ACTIONS",
    "LAYERS",
    "MODES",
    "SHAPES",
    "BadOption",
    "Case",
    "Contender",
    "Mode",
    "Replicas",
    "Shape",
    "bench",
    "build",
    "difference",
    "loop",
    "measure",
    "pad",
    "parse",
    "rival",
]


def bench(
    *,
    command: str,
    shapes: Sequence[str],
    shape: Sequence[str],
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
    """Measure every shape with every cell, momentum and mode: errors, times and peak memory, as in JSON.

    command: the command line, for the record; shapes: names of SHAPES; shape: sizes such as "311,37,5,97".
    For all else see `momentumrnn bench --help`.

    `report` receives the whole result so far after each case. Ctrl-C ends the run; the result then has the
    cases that were finished, and "complete" is false.
    """
    check_numbers(replicas, repeats, threads)
    device = choose_device(device)
    cases = list_cases(
        shapes, shape, cells, modes, momentum, backend=backend, device=device, dtype=dtype, lengths=lengths
    )
    if threads is not None:
        torch.set_num_threads(threads)
    result = {
        **provenance(command, device),
        "threads": torch.get_num_threads(),
        "settings": {
            "device": device,
            "dtype": dtype,
            "lengths": lengths,
            "repeats": repeats,
            "matmul_tf32": torch.backends.cuda.matmul.allow_tf32,
            "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        },
        "complete": False,
        "cases": [],
    }
    try:
        for case in cases:
            record = measure(case, rivals, replicas, repeats, memory)
            result["cases"].append(record | _ratio_to_plain(record, result["cases"]))
            report(result)
        result["complete"] = True
    except KeyboardInterrupt:
        pass
    return result


def _ratio_to_plain(record: dict[str, Any], earlier: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The training time with a momentum over that without, if an earlier record has it."""
    same = ("shape", "cell", "mode")
    plain = [r for r in earlier if r["momentum"] == "None" and all(r[key] == record[key] for key in same)]
    if record["momentum"] == "None" or not plain or not record["status"] == plain[-1]["status"] == "ok":
        return {}
    return {"against_plain": training_ratio(record["rows"]["ours"], plain[-1]["rows"]["ours"])}


def measure(
    case: Case, rivals: Sequence[str], replicas: Sequence[int], repeats: int, memory: bool
) -> dict[str, Any]:
    """The record of one case: errors and, if ours are within the tolerance, times and peak memory.

    Its status is ok, wrong or failed. The row of a rival that cannot run says why.
    """
    shape = case.shape
    record: dict[str, Any] = {
        "shape": case.name,
        "cell": shape.cell,
        "momentum": repr(case.momentum),
        "mode": case.mode,
        "sizes": {"T": shape.T, "B": shape.B, "D": shape.D, "H": shape.H},
        "steps": shape.T * shape.B,
        "backend": case.backend,
        "status": "failed",
    }
    table = Table(("ours", *rivals, *(f"replicas-{n}" for n in replicas)), shape.B)
    try:
        with warnings.catch_warnings():
            # Torch warns at each call that it can't join the weights of a layer in bfloat16.
            warnings.filterwarnings("ignore", "RNN module weights are not part")
            contenders = _compare(case, table, record)
            parity = record["parity"]
            if exceeded(parity["ours"], parity["tolerance"]):
                return {**record, "status": "wrong"}
            _measure_costs(case, contenders, repeats, memory, table, record)
    # A backend may refuse, a dtype may be missing, memory may run out, a kernel may not compile. The next
    # case may do better.
    except Exception as error:
        return {**record, "reason": summarize(error)}
    return {**record, "status": "ok"}


def _compare(case: Case, table: Table, record: dict[str, Any]) -> dict[str, Contender]:
    """Build all contenders and write their errors to the record; returns those that could run."""
    ours = build(case)
    record["steps"] = ours.loss_weights.shape[:-1].numel()  # the sum of the lengths of all sequences
    exact = evaluate_exactly(ours)
    contenders, errors = {"ours": ours}, {"ours": largest_errors(evaluate(ours), exact)}
    record["backend"], record["how"] = explain_backend(ours.module, ours)
    limits = tolerance(case, record["backend"])
    for name in table.names[1:]:
        with note_failure(table.reasons, name):
            contender = rival(name, ours, case)
            same_function = contender.module is ours.module or name == "native"
            errors[name] = compare(contender, exact if same_function else None)
            if name.startswith("replicas-") and exceeded(errors[name], limits):
                raise RuntimeError("they differ from each one alone by more than the tolerance")
            contenders[name] = contender
    record["parity"] = {"tolerance": limits, **errors}
    record.update(goal(case.mode, errors["ours"]))
    return contenders


def _measure_costs(
    case: Case,
    contenders: dict[str, Contender],
    repeats: int,
    memory: bool,
    table: Table,
    record: dict[str, Any],
) -> None:
    """Write times and peak memory to the table and, after each part, the table to the record."""
    table.labels = {name: contender.label for name, contender in contenders.items()}
    ready = contenders
    for kind, action in ACTIONS.items():
        ready = warm_up(contenders, action, table.reasons)
        table.times[kind] = time_calls(ready, action, repeats)
    record.update(table.as_json())
    for kind, action in ACTIONS.items() if case.device == "cuda" else ():
        ready = warm_up(contenders, action, table.reasons)
        table.times[f"{kind}_graph"] = time_graphs(ready, action, repeats, table.graph_reasons)
        record.update(table.as_json())
    for name in ready if memory else ():
        with note_failure(table.reasons, name):
            table.peaks[name] = peak_memory(case, name, contenders[name])
    record.update(table.as_json())
