"""How many CPU threads a seed is trained with, on the cores that this process may use. Knows no torch."""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

from .config import Config

PROC, SYSTEM = Path("/proc"), Path("/sys")

SMALL_WORK = 4_000_000
"""Multiplications of a step of a sequence, from which on a seed has several threads.

results/bench/threads.json has training steps of 120 networks on a quiet machine. Below 0.5 million, two
threads are slower than one. From 0.5 to 4 million they are 1.1 times as fast in the median, above it 1.5.
"""


def available_cores(proc: Path = PROC, system: Path = SYSTEM) -> int:
    """The number of cores that this process may use, at least 1.

    It is the smallest of three limits: the affinity mask, the CPU quota of the process's cgroups, rounded up,
    and OMP_NUM_THREADS. What can't be read does not limit. proc, system: where these file systems are.
    """
    limits = [_usable(), *_quotas(proc / "self" / "cgroup", system / "fs" / "cgroup"), _openmp()]
    return max(1, math.ceil(min(limits)))


def threads_per_seed(config: Config, seeds: int, cores: int) -> int:
    """The number of threads for each of so many seeds that are trained together on so many cores.

    A small network has one. Otherwise the seeds share the cores.

    >>> from momentumrnn.experiments import Adding, configure
    >>> threads_per_seed(configure(Adding(), hidden_size=32), seeds=1, cores=16)
    1
    >>> threads_per_seed(configure(Adding(), hidden_size=512, batch_size=128), seeds=5, cores=16)
    3
    """
    size, gates = config.hidden_size, config.cell.gates
    work = gates * config.batch_size * size * (size + config.task.features)
    return 1 if work < SMALL_WORK else max(1, cores // min(seeds, cores))


def _usable() -> float:
    """The cores in the affinity mask; on a system without masks all cores."""
    # Python has it from 3.13 on. It also knows PYTHON_CPU_COUNT.
    of_process = getattr(os, "process_cpu_count", os.cpu_count)
    counts = [os.cpu_count(), of_process()]
    with contextlib.suppress(AttributeError, OSError):
        counts.append(len(os.sched_getaffinity(0)))
    return min((count for count in counts if count), default=1)


def _openmp() -> float:
    """The threads that the user allows OpenMP, at the outermost level."""
    text = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(text) if text.isascii() and text.isdigit() and int(text) else math.inf


def _quotas(membership: Path, mounts: Path) -> Iterator[float]:
    """The CPU quotas, in cores, of this process's cgroups and of all above them.

    membership: the file with a line "number:controllers:path" for each hierarchy. mounts: the folder of the
    hierarchies. In a container the path may be the host's. Then only the folder at the top is there, and it
    is the container's own.
    """
    for line in _read(membership).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:  # version 2, by itself or beside version 1
            for folder in [*_folders(mounts, path), *_folders(mounts / "unified", path)]:
                quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
                yield _cores(quota, period)
        elif "cpu" in controllers.split(","):
            for folder in [*_folders(mounts / controllers, path), *_folders(mounts / "cpu", path)]:
                yield _cores(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _folders(mount: Path, path: str) -> list[Path]:
    """The folder of a cgroup and of all above it, up to the mount."""
    names = [name for name in path.split("/") if name not in ("", "..")]
    return [mount.joinpath(*names[:depth]) for depth in range(len(names) + 1)]


def _cores(quota: str, period: str) -> float:
    """A quota of microseconds in each period, in cores; infinite where there is none, or none can be read."""
    try:
        cores = int(quota) / int(period)
    except (ValueError, ArithmeticError):
        return math.inf
    return cores if cores > 0 else math.inf


def _read(path: Path) -> str:
    """The text of a file; empty if it can't be read."""
    try:
        return path.read_text(errors="replace")
    except (OSError, ValueError):  # a path with a null byte is a ValueError
        return ""
