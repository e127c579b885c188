"""How long an epoch takes on this machine, from a few steps that are timed now. Writes and keeps nothing.

Checkpoints, and drawing an epoch's rows while another is trained, are not counted.
"""

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch

from .config import Config
from .engine.devices import check_threads, torch_settings
from .engine.replicas import EVALUATED, Replicas
from .models import build
from .tasks import MNIST, PMNIST, Data, Part, Rows, Task, generator
from .tasks.mnist import PIXELS, TRAINING
from .threads import available_cores, threads_per_seed

_IMAGES = TRAINING + 10_000
_PARTS: tuple[Part, ...] = ("validation", "test")
# What is timed, after one call that warms up: so many calls, or fewer if they take so many seconds.
_CALLS = {"cuda": 100, "cpu": 3}
_SECONDS = {"cuda": 0.5, "cpu": 3.0}
_BATCHES = {"cuda": 4, "cpu": 1}  # of EVALUATED samples, in one evaluation that is timed


@dataclass(frozen=True)
class Sizes:
    """Samples of an epoch: those trained on, and those of the validation and test parts together."""

    trained: int
    evaluated: int


def epoch_seconds(config: Config, seeds: int, device: torch.device, threads: int | None = None) -> float:
    """Seconds of an epoch of so many seeds, trained together and evaluated as `train` does it on this device.

    threads: of the CPU, by default as `train` takes them. MNIST's files are not needed: random pixels cost
    the same.
    """
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise ValueError(f"seeds should be an integer of at least 1, got {seeds!r}")
    threads_before = torch.get_num_threads()
    cores = min(available_cores(), threads_before) if threads is None else check_threads(threads)
    task, data = config.task, _data(config.task)
    held_out = [rows for part in _PARTS if (rows := task.held_out(data, part)) is not None]
    sizes = Sizes(len(task.rows(data, 0, 0)[0]), sum(len(rows[0]) for rows in held_out))
    # On a GPU all seeds are one set of replicas; on a CPU each worker has one seed at a time.
    workers = min(seeds, cores) if device.type == "cpu" else 1
    worker_threads = cores // workers if threads is not None else threads_per_seed(config, seeds, cores)
    set_size = seeds if device.type == "cuda" else 1
    with torch.enable_grad(), torch_settings(config, device):
        torch.set_num_threads(worker_threads)
        pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(worker_threads,))
        try:
            first_seeds = range(0, workers * set_size, set_size)
            sets = [_begin(config, range(first, first + set_size), data, device) for first in first_seeds]

            def timed(function: Callable[[Replicas], object]) -> float:
                return _timed(partial(_side_by_side, pool, function, sets), device)

            step, sample = timed(_step), 0.0
            if config.rebase_every:
                step += timed(Replicas.rebase) / config.rebase_every
            if held_out:
                part = tuple(r[: _BATCHES[device.type] * EVALUATED[device.type]] for r in held_out[-1])
                sample = timed(partial(_evaluate, part)) / len(part[0])
        finally:
            pool.shutdown()
            torch.set_num_threads(threads_before)
    shares = seeds / (workers * set_size)
    # A free worker takes the next step of any seed, but evaluates a seed from first to last.
    return scaled(config, sizes, step * shares, sample * math.ceil(shares))


def scaled(config: Config, sizes: Sizes, step_seconds: float, sample_seconds: float) -> float:
    """Seconds of an epoch, from those of a step and of the evaluation of a sample, each for all seeds.

    >>> from momentumrnn.experiments import Adding, configure
    >>> scaled(configure(Adding(), batch_size=50), Sizes(trained=120, evaluated=40), 2.0, 0.25)
    16.0
    """
    return -(-sizes.trained // config.batch_size) * step_seconds + sizes.evaluated * sample_seconds


def _data(task: Task) -> Data:
    """The data of a task; for digits random pixels of the same sizes, even if their files are there."""
    if not isinstance(task, MNIST | PMNIST):
        return task.load(None)
    source = generator("pace")
    images = torch.randint(0, 256, (_IMAGES, PIXELS), generator=source, dtype=torch.uint8)
    labels = torch.randint(0, task.outputs, (_IMAGES,), generator=source)
    return Data((images, labels, torch.tensor(TRAINING)), {})


def _begin(config: Config, seeds: range, data: Data, device: torch.device) -> Replicas:
    replicas = Replicas(config, [build(config, seed) for seed in seeds], seeds, data, device)
    replicas.begin([config.task.rows(data, seed, 0) for seed in seeds], 0)
    return replicas


def _step(replicas: Replicas) -> None:
    """The first step of the epoch, again and again: the last may be smaller."""
    replicas.index.fill_(0)
    replicas.step(0)


def _evaluate(rows: Rows, replicas: Replicas) -> None:
    replicas.evaluate(rows)


def _side_by_side(
    pool: ThreadPoolExecutor, function: Callable[[Replicas], object], sets: list[Replicas]
) -> None:
    if len(sets) == 1:
        function(sets[0])
    else:
        list(pool.map(function, sets))


def _timed(call: Callable[[], object], device: torch.device) -> float:
    """The mean seconds of a call; a first one, which warms up, does not count."""
    call()
    _wait(device)
    started, calls = time.perf_counter(), 0
    while calls == 0 or (
        calls < _CALLS[device.type] and time.perf_counter() - started < _SECONDS[device.type]
    ):
        call()
        calls += 1
    _wait(device)
    return (time.perf_counter() - started) / calls


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
