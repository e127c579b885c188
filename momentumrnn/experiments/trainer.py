"""Trains the seeds of a Config, each in a folder of its own, and goes on where they were stopped.

All seeds that are equally far are trained together. What a step computes depends on the Config, the seed and
the number of the step alone: a run that was killed goes on from its checkpoint, to the same numbers.
"""

import contextlib
import json
import math
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ..constraints import count_parameters
from ..installation import install_command
from ..provenance import provenance
from .config import Config
from .folders import HINT as _HINT
from .folders import Folder, RunError
from .models import Model, build
from .replicas import Replicas
from .tasks import Data, Rows

SAVE_SECONDS = 30.0  # between two checkpoints; at most so much is lost with the process
_ROUND_SECONDS = 2.0  # that training goes on without a look around


class Interrupted(RuntimeError):
    """Somebody asked training to stop, by the signal of this number; all is saved."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by signal {number}")
        self.number = number


class Watcher:
    """Whoever wants to know how training goes; this one does not. Called from the thread that trains."""

    def begin(self, config: Config, runs: Sequence["Run"], device: str) -> None:
        """Training is about to start."""

    def progress(self, runs: Sequence["Run"]) -> None:
        """Some steps were taken."""

    def epoch(self, run: "Run") -> None:
        """A run has another line for an epoch, its last in `run.epochs`."""

    def note(self, text: str) -> None:
        """Something that a user should read."""


class Run:
    """One seed: how far it is, and what it has found. `state` is what a checkpoint holds of the network."""

    def __init__(self, folder: Folder, model: Model, samples: int) -> None:
        self.folder, self.seed, self.config = folder, folder.seed, folder.config
        self.model, self.steps_per_epoch = model, -(-samples // folder.config.batch_size)
        self.parameters = count_parameters(model)
        self.done = False  # as its result says
        self.step = 0
        self.losses: list[float] = []  # of this epoch, as are the norms
        self.norms: list[float] = []
        self.epochs: list[dict[str, Any]] = []
        self.frozen: dict[str, Any] | None = None
        self.stuck = False  # where all gradients are too large to be clipped
        self.best: dict[str, Any] | None = None
        self.state: dict[str, Any] | None = None
        self.seconds = self.training_seconds = 0.0
        self.trained = 0  # samples that training_seconds stand for
        self.samples = samples
        self.sessions: list[dict[str, Any]] = []
        self.size = 0

    @property
    def last(self) -> int:
        """The step that ends it."""
        return self.config.epochs * self.steps_per_epoch

    @property
    def over(self) -> bool:
        """Whether nothing is left to do: no step, and no epoch to evaluate."""
        return self.done or self.frozen is not None or (self.step >= self.last and not self.due)

    @property
    def due(self) -> bool:
        """Whether it has come to the end of an epoch and was not evaluated there."""
        whole = self.step % self.steps_per_epoch == 0
        return whole and self.frozen is None and len(self.epochs) < self.step // self.steps_per_epoch

    def load(self) -> None:
        """Take over what its folder has."""
        state, done = self.folder.load(), self.folder.read("result.json")
        mine = isinstance(done, dict) and (done.get("id"), done.get("seed")) == (self.config.id, self.seed)
        trained = done["epochs"] if mine and isinstance(done.get("epochs"), int) else 0
        self.done = trained >= self.config.epochs or (mine and bool(done.get("frozen")))
        if state is None:
            if trained and not self.done:
                raise RunError(
                    f"{self.folder.path} has a result of {trained} epochs and no checkpoint to go on from: "
                    f"take as many --epochs, or {_HINT}"
                )
            if not self.done:
                self.folder.rewind(0)
            return
        try:
            for name in ("step", "losses", "norms", "frozen", "best", "state", "seconds", "training_seconds"):
                setattr(self, name, state[name])
            self.trained, self.sessions, self.size = state["trained"], state["sessions"], state["size"]
            self.model.load_state_dict(state["state"]["weights"])
        except (KeyError, TypeError, RuntimeError):
            raise self.odd() from None
        if self.step > self.last and not self.done:
            raise RunError(
                f"{self.folder.path} is at step {self.step}, and {self.config.epochs} epochs end at "
                f"{self.last}: take more --epochs, or {_HINT}"
            )
        self.epochs = [line for line in self.folder.rewind(self.size) if "epoch" in line]

    def odd(self) -> RunError:
        path = self.folder.path / "resume.pt"
        return RunError(
            f"{path} is of another network or lacks something: move its folder away to train afresh"
        )

    def save(self) -> None:
        self.folder.save(
            {
                "step": self.step,
                "losses": self.losses,
                "norms": self.norms,
                "frozen": self.frozen,
                "best": self.best,
                "state": self.state,
                "seconds": self.seconds,
                "training_seconds": self.training_seconds,
                "trained": self.trained,
                "sessions": self.sessions,
                "size": self.size,
            }
        )

    def log(self, *lines: dict[str, Any]) -> None:
        self.size = self.folder.append(list(lines))


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
) -> list[dict[str, Any]]:
    """Train these seeds, or go on with them; returns the content of each one's result.json.

    root: where run folders are; data: where data sets are; device: "cpu" or "cuda", by default cuda if there
    is one; threads: of the CPU, by default as many as torch takes; command: for the record.

    >>> from momentumrnn.experiments import Adding, configure
    >>> import tempfile
    >>> task = Adding(length=6, samples=100, evaluation=20)
    >>> config = configure(task, hidden_size=4, epochs=1)
    >>> result, = train(config, root=tempfile.mkdtemp(), device="cpu")
    >>> result["status"], result["steps"], result["parameters"]
    ('done', 2, 133)
    """
    seeds = _check_seeds(seeds)
    place = choose(device)
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    loaded = config.task.load(None if data is None else Path(data))
    samples = len(config.task.rows(loaded, seeds[0], 0)[0])
    count = torch.get_num_threads() if threads is None else check_threads(threads)
    if find_spec("safetensors") is None:
        raise RunError(f"safetensors should be installed: {install_command('all')}")
    with torch.enable_grad(), contextlib.ExitStack() as stack:
        runs = []
        for seed in seeds:
            folder = Folder(Path(root), config, seed)
            stack.enter_context(folder.locked())
            runs.append(Run(folder, build(config, seed), samples))
        for run in runs:
            run.load()
            run.folder.begin(run.over)
        watcher = watcher or Watcher()
        stack.enter_context(torch_settings(config, place))
        stop = stack.enter_context(_signals())
        trainer = _Trainer(config, loaded, place, count, len(seeds), watcher, stop, command)
        if tensorboard:
            stack.callback(trainer.trace(runs))
        try:
            trainer.train(runs)
        except torch.OutOfMemoryError as error:
            raise RunError(
                f"the device is out of memory: {str(error).splitlines()[0]} Train fewer seeds together, or "
                "with a smaller batch_size"
            ) from None
        return [run.folder.read("result.json") for run in runs]


class _Trainer:
    """Carries runs to their end."""

    def __init__(
        self,
        config: Config,
        data: Data,
        device: torch.device,
        threads: int,
        together: int,
        watcher: Watcher,
        stop: "_Stop",
        command: str,
    ) -> None:
        self.config, self.data, self.device, self.watcher, self.stop = config, data, device, watcher, stop
        # On a CPU each replica has threads of its own. Their number is decided by the command alone: bits
        # hang on it, and a run that goes on should get those that it had.
        workers = min(together, threads) if device.type == "cpu" else 1
        self.threads = threads // workers
        self.pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(self.threads,))
        self.workers, self.command = workers, command
        self.saved = self.clock = time.monotonic()
        self.seconds_per_step = _ROUND_SECONDS  # nothing is known yet: a step by itself
        self.writers: dict[int, Any] = {}

    def train(self, runs: Sequence[Run]) -> None:
        todo = [run for run in runs if not run.over]
        if todo:
            self.watcher.begin(self.config, runs, str(self.device))
        session = provenance(self.command, self.device.type)
        for run in todo:
            run.sessions.append({**session, "threads": self.threads, "from_step": run.step})
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            while todo := [run for run in todo if not run.over]:
                # Those that lag behind, as after a kill between two checkpoints, catch up first.
                least = min(run.step for run in todo)
                group = [run for run in todo if run.step == least]
                ahead = [run.step for run in todo if run.step > least]
                self._advance(group, min([*ahead, *(run.last for run in group)]))
        finally:
            self.pool.shutdown()
            torch.set_num_threads(before)
        for run in runs:
            if run.over:
                self._finish(run)

    def _advance(self, group: list[Run], until: int) -> None:
        """Train runs that are equally far up to that step."""
        # A GPU takes all at once; the cores of a CPU one each.
        sets = [group] if self.device.type == "cuda" else [[run] for run in group]
        live = [(self._replicas(runs), runs) for runs in sets]
        step, n, k = group[0].step, group[0].steps_per_epoch, self.config.log_every
        drawn = -1
        with ThreadPoolExecutor(1) as ahead:
            rows = ahead.submit(self._draw, group, step // n)
            while True:
                if step // n != drawn and (step < until or drawn < 0):
                    drawn = step // n
                    found = rows.result()
                    for replicas, runs in live:
                        replicas.begin([found[run.seed] for run in runs], step % n)
                    rows = ahead.submit(self._draw, group, drawn + 1)
                if any(run.due for run in group):
                    self._evaluate(live, group)
                if step >= until or not live or self.stop.is_set():
                    self._save(live, group)
                    if self.stop.is_set():
                        raise Interrupted(self.stop.number)
                    self.watcher.progress(group)
                    return
                # To the next line of the log, the end of the epoch, or as far as a round goes.
                most = max(1, int(_ROUND_SECONDS / self.seconds_per_step))
                edge = min(until, step + most, step - step % n + min(n, (step % n // k + 1) * k))
                taken, error = self._round([replicas for replicas, _ in live], step, edge - step)
                for (replicas, runs), (count, spent) in zip(live, taken, strict=True):
                    self._read(replicas, runs, count, spent)
                if error is not None:
                    # What went well is kept, if it can be; the first error is the one to show.
                    with contextlib.suppress(Exception):
                        self._save([each for each in live if not each[0].torn], group)
                    raise error
                step = edge
                ended = [each for each in live if all(run.frozen for run in each[1])]
                if ended or time.monotonic() - self.saved > SAVE_SECONDS:
                    self._save(live, group)
                live = [each for each in live if each not in ended]
                self.watcher.progress(group)

    def _account(self, group: list[Run]) -> None:
        """Add the time since the last time to these runs."""
        now = time.monotonic()
        for run in group:
            run.seconds += now - self.clock
        self.clock = now

    def _draw(self, group: list[Run], epoch: int) -> dict[int, Rows]:
        return {run.seed: self.config.task.rows(self.data, run.seed, epoch) for run in group}

    def _replicas(self, runs: list[Run]) -> Replicas:
        found = Replicas(
            self.config, [run.model for run in runs], [run.seed for run in runs], self.data, self.device
        )
        for r, run in enumerate(runs):
            if run.state is not None:
                try:
                    found.restore(r, run.state)
                except (KeyError, TypeError, RuntimeError):
                    raise run.odd() from None
        return found

    def _round(
        self, all_replicas: list[Replicas], step: int, count: int
    ) -> tuple[list[tuple[int, float]], Exception | None]:
        """Take so many steps with all, or fewer if told to stop or if one fails.

        Returns how many each took, and the seconds; and what failed.
        """
        started, every = time.monotonic(), self.config.rebase_every
        taken, errors = [0] * len(all_replicas), list[Exception]()
        # Whoever is free takes the next step of whoever waits: no core idles while another has two to go.
        waiting = deque(range(len(all_replicas)))

        def work() -> None:
            while waiting and not errors and not self.stop.is_set():
                try:
                    i = waiting.popleft()
                except IndexError:  # another was faster
                    return
                replicas = all_replicas[i]
                try:
                    replicas.step((step + taken[i]) % len(replicas.losses))
                    if every and (step + taken[i] + 1) % every == 0:
                        replicas.rebase()
                except Exception as error:
                    errors.append(error)
                    return
                taken[i] += 1
                if taken[i] < count:
                    waiting.append(i)

        self._each(work, [()] * self.workers)
        if self.device.type == "cuda" and not errors:
            torch.cuda.synchronize()
        spent = time.monotonic() - started
        self.seconds_per_step = max(spent / count, 1e-9)
        return [(each, spent) for each in taken], next(iter(errors), None)

    def _each(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a function with each, side by side if there are several workers."""
        if self.workers == 1:
            return [function(*given) for given in arguments]
        return [job.result() for job in [self.pool.submit(function, *given) for given in arguments]]

    def _read(self, replicas: Replicas, runs: list[Run], count: int, spent: float) -> None:
        """Bring what so many steps have found to their runs, and write some of it down."""
        n, k = len(replicas.losses), self.config.log_every
        losses, norms, fine = replicas.losses.tolist(), replicas.norms.tolist(), replicas.fine.tolist()
        for r, run in enumerate(runs):
            if run.frozen is not None:
                continue
            if run.step % n == 0 and count:
                run.losses, run.norms = [], []
            lines = []
            run.training_seconds += spent
            for _ in range(count):
                i = run.step % n
                loss, norm = losses[i][r], norms[i][r]
                if not fine[i][r]:
                    self._freeze(replicas, r, run, loss, norm)
                    break
                run.losses.append(loss)
                run.norms.append(norm)
                run.step += 1
                run.trained += min(self.config.batch_size, run.samples - i * self.config.batch_size)
                if (i + 1) % k == 0 or i + 1 == n:
                    loss, norm = (_mean(each[i - i % k :]) for each in (run.losses, run.norms))
                    lines.append({"step": run.step, "loss": loss, "norm": norm})
            run.log(*lines)
            for line in lines:
                self._trace(run, line)

    def _freeze(self, replicas: Replicas, r: int, run: Run, loss: float, norm: float) -> None:
        weights = sum(float(theta[r].detach().double().square().sum()) for theta in replicas.theta) ** 0.5
        run.frozen = {
            "step": run.step,
            "loss": str(loss),
            "gradient_norm": str(norm),
            "weight_norm": _finite(weights),
            "last_gradient_norm": run.norms[-1] if run.norms else None,
        }
        self.watcher.note(
            f"seed {run.seed}: step {run.step} is not finite or leads to what is not (loss {loss}, norm of "
            f"the gradient {norm}, of the weights {weights:.4g}); it stays as it was before that step"
        )

    def _evaluate(self, live: list[tuple[Replicas, list[Run]]], group: list[Run]) -> None:
        """The line of an epoch, for each run that has come to its end; none if told to stop meanwhile."""
        if time.monotonic() - self.saved > SAVE_SECONDS / 6:
            self._save(live, group)  # it may take long
        found: dict[str, list[list[dict[str, float]]]] = {}
        for part in ("validation", "test"):
            rows = self.config.task.held_out(self.data, part)
            if rows is not None:
                given = [(replicas, rows, self.stop.is_set) for replicas, _ in live]
                found[part] = self._each(Replicas.evaluate, given)
        if self.stop.is_set():
            return
        self._account(group)
        for i, (replicas, runs) in enumerate(live):
            for r, run in enumerate(runs):
                if not run.due:
                    continue
                line: dict[str, Any] = {"epoch": run.step // run.steps_per_epoch, "step": run.step}
                line["train_loss"] = _mean(run.losses)
                for part, values in found.items():
                    line |= {f"{part}_{name}": _finite(value) for name, value in values[i][r].items()}
                line["seconds"] = round(run.seconds, 3)
                run.epochs.append(line)
                run.log(line)
                self._trace(run, line)
                if selected(run.epochs, self.config.task.metric, "validation") is line:
                    run.best = replicas.state(r)["weights"]
                self.watcher.epoch(run)
                least = min(run.norms, default=0.0)
                if least > replicas.steepest and not run.stuck:
                    run.stuck = True
                    self.watcher.note(
                        f"seed {run.seed}: the norm of the gradient was {least:.2g} or more in all steps of "
                        f"epoch {line['epoch']}, too large to be clipped but to 0: the weights stand still"
                    )

    def _save(self, live: list[tuple[Replicas, list[Run]]], group: list[Run]) -> None:
        self._account(group)
        for replicas, runs in live:
            for r, run in enumerate(runs):
                run.state = replicas.state(r)
                run.sessions[-1] |= {"seconds": round(run.seconds, 3), "peak_memory_mb": _peak(self.device)}
                run.save()
        self.saved = time.monotonic()

    def _finish(self, run: Run) -> None:
        """Write result and weights, unless they are there."""
        there = (run.folder.path / "model.safetensors").exists()
        # A checkpoint may be missing, or be further than the result that was asked for.
        if run.done and (there or run.state is None or run.step != run.folder.read("result.json")["steps"]):
            return
        # Without validation there is no honest choice but the last.
        weights = run.best or (run.state or {})["weights"]
        epoch = (selected(run.epochs, self.config.task.metric, "validation") or {"epoch": len(run.epochs)})[
            "epoch"
        ]
        note = {"config": self.config.to_json(), "seed": run.seed, "epoch": epoch}
        run.folder.write("model.safetensors", _safetensors(weights, {"run": json.dumps(note)}))
        run.folder.write_json("result.json", self._result(run))

    def _result(self, run: Run) -> dict[str, Any]:
        config = self.config
        speed = run.trained / run.training_seconds if run.training_seconds else None
        return {
            **run.sessions[-1],
            "id": config.id,
            "seed": run.seed,
            "status": _status(run),
            "config": config.to_json(),
            "epochs": len(run.epochs),
            "steps": run.step,
            "metric": config.task.metric,
            # The epoch that validation selects; the best on the test set, as the paper has it; the last.
            "selected": {
                "by_validation": selected(run.epochs, config.task.metric, "validation"),
                "by_test": selected(run.epochs, config.task.metric, "test"),
                "last": run.epochs[-1] if run.epochs else None,
            },
            "frozen": run.frozen,
            "parameters": run.parameters,
            "seconds": round(run.seconds, 3),
            "samples_per_second": speed and round(speed, 1),
            "peak_memory_mb": max(session["peak_memory_mb"] for session in run.sessions),
            "data": self.data.hashes,
            "sessions": run.sessions,
        }

    def trace(self, runs: Sequence[Run]) -> Callable[[], None]:
        """Write TensorBoard's files too; returns what closes them."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise RunError(f"tensorboard should be installed: {install_command('track')}") from None
        for run in (run for run in runs if not run.over):
            self.writers[run.seed] = SummaryWriter(
                str(run.folder.path / "tensorboard"), purge_step=run.step + 1 if run.step else None
            )

        def close() -> None:
            for writer in self.writers.values():
                writer.close()

        return close

    def _trace(self, run: Run, line: dict[str, Any]) -> None:
        for name in line.keys() - {"step", "epoch", "seconds"} if run.seed in self.writers else ():
            if line[name] is not None:
                self.writers[run.seed].add_scalar(name, line[name], line["step"])


def selected(epochs: Sequence[dict[str, Any]], metric: str, part: str) -> dict[str, Any] | None:
    """The line of the best epoch on a part of the data, the first of equals; None without such a part."""
    sign = 1 if metric == "accuracy" else -1
    known = [line for line in epochs if line.get(f"{part}_{metric}") is not None]
    return max(known, key=lambda line: sign * line[f"{part}_{metric}"], default=None)


def _status(run: Run) -> str:
    return "frozen" if run.frozen else "done"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(value / len(values) for value in values)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _peak(device: torch.device) -> float:
    """Megabytes: on a GPU those allocated by torch, on a CPU all of this process."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated() / 2**20, 1)
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 1)


def _safetensors(weights: dict[str, torch.Tensor], note: dict[str, str]) -> bytes:
    from safetensors.torch import save

    return save({k: v.contiguous() for k, v in weights.items()}, note)


def _check_seeds(seeds: Sequence[int]) -> list[int]:
    try:
        found = list(seeds)
    except TypeError:
        found = []
    whole = all(isinstance(s, int) and not isinstance(s, bool) and 0 <= s < 2**32 for s in found)
    if not found or not whole or len(set(found)) < len(found):
        raise ValueError(f"seeds should be different integers from 0 to 2**32 - 1, got {seeds!r}")
    return found


def check_threads(threads: int) -> int:
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ValueError(f"threads should be an integer of at least 1, got {threads!r}")
    return threads


def choose(name: str | None) -> torch.device:
    """The device of that name, "cpu" or "cuda"; for None cuda, if there is one."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise ValueError(f"device should be 'cpu' or 'cuda', got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise RunError(f"device should be 'cpu', since torch {torch.__version__} sees no GPU, got 'cuda'")
    return torch.device(name, torch.cuda.current_device()) if name == "cuda" else torch.device(name)


@contextlib.contextmanager
def torch_settings(config: Config, device: torch.device) -> Iterator[None]:
    """What torch is told for the time of training."""
    rnn: Any = torch.backends.cudnn.rnn
    matmul: Any = torch.backends.cuda.matmul
    before = rnn.fp32_precision, matmul.fp32_precision
    was = torch.are_deterministic_algorithms_enabled()
    warn = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    fill = memory.fill_uninitialized_memory
    try:
        # Set only where it differs: torch minds if its older way to set it was taken as well.
        wanted = "tf32" if config.precision == "tf32" else "ieee"
        if rnn.fp32_precision != wanted:
            rnn.fp32_precision = wanted
        if config.precision != "tf32" and matmul.fp32_precision == "tf32":
            matmul.fp32_precision = "ieee"
        if config.deterministic:
            if device.type == "cuda" and workspace is None:
                os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
            torch.use_deterministic_algorithms(True)
            memory.fill_uninitialized_memory = False
        yield
    finally:
        if (rnn.fp32_precision, matmul.fp32_precision) != before:
            rnn.fp32_precision, matmul.fp32_precision = before
        torch.use_deterministic_algorithms(was, warn_only=warn)
        memory.fill_uninitialized_memory = fill
        if workspace is None:
            os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


class _Stop(threading.Event):
    number = 0


@contextlib.contextmanager
def _signals() -> Iterator[_Stop]:
    """An event that Ctrl-C and SIGTERM set the first time, with their number; a second Ctrl-C is as ever."""
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.number = number
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, old in before.items():
            signal.signal(number, old or signal.SIG_DFL)  # None: not set from Python
