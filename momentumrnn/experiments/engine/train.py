"""Trains the seeds of a Config, each in a folder of its own, and goes on where they were stopped."""

import contextlib
import hashlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...installation import install_command
from ..config import Config
from ..models import build
from ..runs.neighbours import check_data_of_seeds, check_sources
from ..runs.store import Folder, RunError
from ..sources.hashes import is_own
from ..tasks import Data
from ..threads import available_cores, threads_per_seed
from .devices import check_threads, choose_device, torch_settings
from .loop import Trainer
from .run import Run
from .signals import stop_on_signals
from .task_check import check_task
from .tensorboard import Traces
from .watcher import Watcher


def train(
    config: Config,
    seeds: Sequence[int] = (0,),
    *,
    root: str | Path = "runs",
    data: str | Path | None = None,
    device: str | None = None,
    threads: int | None = None,
    tensorboard: bool = False,
    watcher: Watcher | None = None,
    command: str = "",
    name: str = "",
    changed_source: str = "refuse",
) -> list[dict[str, Any]]:
    """Train these seeds, or go on with them; returns the content of each one's result.json.

    root: where run folders are; data: where data sets are; device: "cpu", "cuda" or such as "cuda:1", by
    default a GPU if there is one; threads: of the CPU for all seeds, by default one for each seed of a small
    network, else the cores that this process may use, and for a run that goes on those that it had; watcher:
    told of progress, and may stop runs; command, name: for the record.

    changed_source: what to do if a class of yours, such as the task, has changed since a run with the same
    settings was begun: "refuse", or "new" to start a new run beside it.

    >>> from momentumrnn.experiments import Adding, configure
    >>> import tempfile
    >>> task = Adding(length=6, samples=100, evaluation=20)
    >>> config = configure(task, hidden_size=4, epochs=1)
    >>> result, = train(config, root=tempfile.mkdtemp(), device="cpu")
    >>> result["status"], result["steps"], result["parameters"]
    ('done', 2, 133)
    """
    seeds, place = _check_seeds(seeds), choose_device(device)
    watcher = Watcher() if watcher is None else watcher
    _check_choices(threads, watcher, changed_source)
    if find_spec("safetensors") is None:
        raise RunError(f"safetensors should be installed: {install_command('all')}")
    loaded, samples = _load_data(config, seeds[0], None if data is None else Path(data))
    if changed_source == "refuse":
        check_sources(Path(root), config)
    check_data_of_seeds(Path(root), config, loaded.hashes)
    with torch.enable_grad(), contextlib.ExitStack() as stack:
        folders = [Folder(Path(root), config, seed) for seed in seeds]
        for folder in folders:
            stack.enter_context(folder.locked())
        runs = _open_runs(folders, samples, loaded.hashes, name)
        stack.enter_context(torch_settings(config, place))
        if place.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        workers = _share_threads(runs, place, threads)
        traces = stack.enter_context(contextlib.closing(Traces(runs if tensorboard else ())))
        stop = stack.enter_context(stop_on_signals())
        trainer = Trainer(config, loaded, place, workers, watcher, stop, traces, command)
        try:
            trainer.train(runs)
        except torch.OutOfMemoryError as error:
            what = f"the device is out of memory: {str(error).splitlines()[0]}"
            raise RunError(f"{what} Train fewer seeds together, or with a smaller batch_size") from None
        return [run.folder.read("result.json") for run in runs]


def _load_data(config: Config, seed: int, folder: Path | None) -> tuple[Data, int]:
    """The data with hashes of them, and the samples of an epoch; refuses a task that can't be trained on."""
    task = config.task
    loaded = task.load(folder)
    if is_own(type(task)):
        # What a user hashes may be less than what is trained on.
        name = "tensors"
        while name in loaded.hashes:
            name = f"loaded {name}"
        loaded = loaded._replace(hashes={**loaded.hashes, name: _hash_tensors(loaded.tensors)})
    if config.patience and task.held_out(loaded, "validation") is None:
        raise RunError(f"patience should be 0, since {task!r} has no validation set, got {config.patience}")
    if is_own(type(task)):
        # The task may draw from torch's own generator, which training should find as it was.
        with torch.random.fork_rng([]):
            check_task(config, loaded, seed)
    return loaded, len(task.rows(loaded, seed, 0)[0])


def _hash_tensors(tensors: Sequence[Tensor]) -> str:
    """Of how many there are, and of the dtype, the shape and the bytes of each."""
    digest = hashlib.sha256(f"{len(tensors)}\n".encode())
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
        # As bytes, since numpy has not every dtype of torch.
        digest.update(tensor.detach().cpu().flatten().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _open_runs(folders: Sequence[Folder], samples: int, hashes: dict[str, str], name: str) -> list[Run]:
    """The runs as their folders have them; one that can't go on is refused before any is begun."""
    runs = [Run(folder, build(folder.config, folder.seed), samples, hashes) for folder in folders]
    for run in runs:
        run.load()
    for run in runs:
        run.folder.begin(hashes, name, run.over)
    return runs


def _share_threads(runs: Sequence[Run], device: torch.device, threads: int | None) -> int:
    """Give each run its threads of the CPU; returns how many runs a CPU trains side by side.

    Bits hang on the number of threads, so a run that goes on has by default those that it had.
    """
    # A user's torch.set_num_threads holds too.
    cores = min(available_cores(), torch.get_num_threads()) if threads is None else threads
    if device.type == "cuda":
        for run in runs:
            run.threads = cores
        return 1
    workers = min(len(runs), cores)
    for run in runs:
        if threads is not None:
            run.threads = threads // workers
        elif (threads_before := _threads_before(run)) is not None:
            run.threads = threads_before
        else:
            run.threads = threads_per_seed(run.config, len(runs), cores)
    return workers


def _threads_before(run: Run) -> int | None:
    """The threads of its last session on a CPU; None if it had none."""
    on_cpu = [session for session in run.sessions if "cuda" not in session["versions"]]
    return int(on_cpu[-1]["threads"]) if on_cpu else None


def _check_choices(threads: int | None, watcher: Watcher, changed_source: str) -> None:
    if threads is not None:
        check_threads(threads)
    # One that lacks a method would fail after hours.
    if not isinstance(watcher, Watcher):
        raise TypeError(f"watcher should derive from momentumrnn.experiments.Watcher, got {watcher!r}")
    if changed_source not in ("refuse", "new"):
        raise ValueError(f"changed_source should be 'refuse' or 'new', got {changed_source!r}")


def _check_seeds(seeds: Sequence[int]) -> list[int]:
    try:
        numbers = list(seeds)
    except TypeError:
        numbers = []
    valid = all(isinstance(s, int) and not isinstance(s, bool) and 0 <= s < 2**32 for s in numbers)
    if not numbers or not valid or len(set(numbers)) < len(numbers):
        raise ValueError(f"seeds should be different integers from 0 to 2**32 - 1, got {seeds!r}")
    return numbers
