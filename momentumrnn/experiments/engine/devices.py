"""Where training runs, and what torch is told for that time."""

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

import torch

from ..config import Config
from ..runs.store import RunError


def choose_device(name: str | None) -> torch.device:
    """The device of that name: "cpu", "cuda", or one GPU of several, such as "cuda:1"; for None a GPU if any.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    match = re.fullmatch(r"cpu|cuda(?::(0|[1-9][0-9]{0,2}))?", name) if isinstance(name, str) else None
    if match is None:
        raise ValueError(f"device should be 'cpu', 'cuda' or a GPU such as 'cuda:1', got {name!r}")
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RunError(f"device should be 'cpu', since torch {torch.__version__} sees no GPU, got {name!r}")
    index, count = int(match[1] or torch.cuda.current_device()), torch.cuda.device_count()
    if index >= count:
        names = ", ".join(f"'cuda:{i}'" for i in range(count))
        raise RunError(f"device should be 'cpu' or one of the GPUs that torch sees ({names}), got {name!r}")
    return torch.device("cuda", index)


def check_threads(threads: int) -> int:
    """The number of threads, if it can be one."""
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ValueError(f"threads should be an integer of at least 1, got {threads!r}")
    return threads


def peak_memory(device: torch.device) -> float:
    """Megabytes: on a GPU those allocated by torch, on a CPU all of this process."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 1)


@contextlib.contextmanager
def torch_settings(config: Config, device: torch.device) -> Iterator[None]:
    """Set the GPU, the precision and determinism for the time of training."""
    rnn: Any = torch.backends.cudnn.rnn
    matmul: Any = torch.backends.cuda.matmul
    memory: Any = torch.utils.deterministic
    precision_before = rnn.fp32_precision, matmul.fp32_precision
    deterministic_before = torch.are_deterministic_algorithms_enabled()
    warn_before = torch.is_deterministic_algorithms_warn_only_enabled()
    workspace_before = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    fill_before = memory.fill_uninitialized_memory
    try:
        # Set only where it differs: torch minds if its older way to set it was taken as well.
        precision = "tf32" if config.precision == "tf32" else "ieee"
        if rnn.fp32_precision != precision:
            rnn.fp32_precision = precision
        if config.precision != "tf32" and matmul.fp32_precision == "tf32":
            matmul.fp32_precision = "ieee"
        if config.deterministic:
            if device.type == "cuda" and workspace_before is None:
                os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
            torch.use_deterministic_algorithms(True)
            memory.fill_uninitialized_memory = False
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            yield
    finally:
        if (rnn.fp32_precision, matmul.fp32_precision) != precision_before:
            rnn.fp32_precision, matmul.fp32_precision = precision_before
        torch.use_deterministic_algorithms(deterministic_before, warn_only=warn_before)
        memory.fill_uninitialized_memory = fill_before
        if workspace_before is None:
            os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
