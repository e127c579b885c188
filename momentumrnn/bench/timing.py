"""How long contenders take: called one by one, or replayed from CUDA graphs, in rounds that they share."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..cuda_graph import capture
from .cases import Action, Contender
from .failures import note_failure, summarize
from .parity import difference

SECONDS = 0.05  # the least time for which a contender is measured in a round
LOOP_ROUNDS = 3  # the loop is slow: it takes part in the first rounds only
REPLAY_TOLERANCE = 1e-2  # the largest relative norm of the error of a replayed graph


def warm_up(
    contenders: Mapping[str, Contender], action: Action, reasons: dict[str, str]
) -> dict[str, Contender]:
    """Call each contender once; return those that have not failed so far."""
    for name, contender in contenders.items():
        if name in reasons:
            continue
        # In evaluation mode torch's layers save nothing for a backward pass; ours decide by themselves.
        contender.module.train(action is Contender.training)
        with note_failure(reasons, name):
            seconds_per_call(contender, action, 0.0)
    return {name: contender for name, contender in contenders.items() if name not in reasons}


def time_calls(contenders: Mapping[str, Contender], action: Action, repeats: int) -> dict[str, list[float]]:
    """Seconds of a call, for each contender and round."""
    return _rounds({name: partial(seconds_per_call, c, action) for name, c in contenders.items()}, repeats)


def time_graphs(
    contenders: Mapping[str, Contender], action: Action, repeats: int, reasons: dict[str, str]
) -> dict[str, list[float]]:
    """Seconds of a replayed CUDA graph, for each contender and round."""
    graphs = {}
    for name, contender in contenders.items():
        if name == "loop":
            reasons[name] = "not captured: a step is many launches"
            continue
        try:
            graphs[name] = _capture(contender, action)
        except Exception as error:
            reasons[name] = summarize(error)
            contender.module.zero_grad()
    return _rounds({name: partial(gpu_seconds, graph.replay) for name, graph in graphs.items()}, repeats)


def _rounds(timers: Mapping[str, Callable[[float], float]], repeats: int) -> dict[str, list[float]]:
    """Seconds of a call, for each timer and round; every round starts with another timer.

    timers: each maps the least time to measure for to the seconds of a call.
    """
    names = list(timers)
    times: dict[str, list[float]] = {name: [] for name in names}
    for i in range(repeats if names else 0):
        first = i % len(names)
        for name in names[first:] + names[:first]:
            if name != "loop":
                times[name].append(timers[name](SECONDS))
            elif i < LOOP_ROUNDS:
                times[name].append(timers[name](0.0))
    return times


def seconds_per_call(contender: Contender, action: Action, min_seconds: float) -> float:
    """Seconds of a call, over calls that take at least `min_seconds`: the mean, on a GPU the median."""
    clear, spent, calls = contender.module.zero_grad, 0.0, 0
    if contender.x.is_cuda:
        return gpu_seconds(partial(action, contender), min_seconds, clear)
    while calls == 0 or spent < min_seconds:
        clear()
        started = time.perf_counter()
        action(contender)
        spent += time.perf_counter() - started
        calls += 1
    clear()
    return spent / calls


def gpu_seconds(
    call: Callable[[], object], min_seconds: float, clear: Callable[[], None] = lambda: None
) -> float:
    """The median of the GPU's seconds for a call, over calls that take at least `min_seconds`.

    Calls are queued, as in training. The time to launch them counts only where the GPU waits for it.
    """
    times: list[float] = []
    while not times or sum(times) < min_seconds:
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


def _capture(contender: Contender, action: Action) -> torch.cuda.CUDAGraph:
    """The action as a CUDA graph; it fails if a replay gives something else than the action."""
    clear = contender.module.zero_grad
    result: list[Tensor | None] = []
    expected: list[Tensor | None] = []

    def call() -> None:
        result[:] = action(contender)

    def check(graph: torch.cuda.CUDAGraph, returned: None) -> None:
        clear()
        # Twice, because what the first replay leaves behind should not spoil the second.
        for _ in range(2):
            graph.replay()
        torch.cuda.synchronize()
        worst = max(norm for _, norm in map(difference, result, expected))
        if worst > REPLAY_TOLERANCE:
            raise RuntimeError(f"replayed, it is {worst:.0e} away from what it gives without a graph")

    graph, _ = capture(call, prepare=clear, after_warmup=lambda: expected.extend(result), check=check)
    return graph


def ratios(times: Sequence[float], other: Sequence[float]) -> dict[str, float]:
    """The ratio of two times of a round, which met the same noise: its median, lowest and highest."""
    # The loop has fewer rounds.
    by_round = [a / b for a, b in zip(times, other, strict=False)]
    return {"median": statistics.median(by_round), "lowest": min(by_round), "highest": max(by_round)}


def training_ratio(row: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float | None]:
    """The training time of one row divided by that of another, eager and in a graph."""
    fields = {"eager": "training_ms", "graph": "training_graph_ms"}
    pairs = {kind: (row.get(field), other.get(field)) for kind, field in fields.items()}
    return {kind: a / b if a and b else None for kind, (a, b) in pairs.items()}
