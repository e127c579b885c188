"""How a CUDA graph is captured: warmed up on a side stream, and without a garbage collection on the way."""

import gc
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def capture(
    call: Callable[[], T],
    *,
    prepare: Callable[[], object] = lambda: None,
    after_warmup: Callable[[], object] = lambda: None,
    check: Callable[[torch.cuda.CUDAGraph, T], object] = lambda graph, result: None,
    device: torch.device | int | None = None,
    pool: Any = None,
) -> tuple[torch.cuda.CUDAGraph, T]:
    """Capture `call` in a CUDA graph; return the graph and what the captured call returned.

    call: runs three times before it is captured, so that kernels are loaded and workspaces allocated.
    prepare: runs before each of these calls and before the capture, for instance to clear gradients.
    after_warmup: runs once between the last of the three calls and the last `prepare`.
    check: runs after the capture, on the same side stream, with the graph and the result.
    device: where to capture, or None for the current device.
    pool: the memory pool of another graph, for graphs that are never replayed at the same time.

    Raises what `call` or the capture raises; the current stream is then the one that it was before.
    """
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    before = torch.cuda.current_stream(device)
    side.wait_stream(before)
    gc.collect()  # a graph that Python frees during the capture would spoil it
    # After a failed capture torch leaves the capturing stream current. This block restores the one before.
    with torch.cuda.device(side.device), torch.cuda.stream(side):
        for _ in range(3):
            prepare()
            call()
        after_warmup()
        prepare()
        with torch.cuda.graph(graph, pool=pool, stream=side):
            result = call()
        check(graph, result)
    before.wait_stream(side)
    return graph, result


def captured(call: Callable[[], object]) -> Callable[[], None]:
    """A function that replays `call` from a CUDA graph.

    It keeps `call` alive, and so the tensors that only `call` owns: the graph reads their memory.
    """
    graph, _ = capture(call)
    torch.cuda.synchronize()
    return partial(_replay, graph, call)


def _replay(graph: torch.cuda.CUDAGraph, owner: Callable[[], object]) -> None:
    graph.replay()
