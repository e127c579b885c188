"""The loop over steps and epochs: carries the runs of a Config to their end, and saves on the way.

All seeds that are equally far are trained together. What a step computes depends on the Config, the seed and
the number of the step alone: a run that was killed goes on from its checkpoint, to the same numbers.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from ...provenance import provenance
from ..config import Config
from ..runs.read import selected
from ..tasks import Data, Part, Rows
from .devices import peak_memory
from .replicas import Replicas
from .results import lacks_files, write_results
from .run import Run, finite, mean
from .signals import Interrupted, Stop
from .tensorboard import Traces
from .watcher import Watcher

SAVE_SECONDS = 30.0  # between two checkpoints; at most so much is lost with the process
_ROUND_SECONDS = 2.0  # that training goes on without a look around
_PARTS: tuple[Part, ...] = ("validation", "test")
Live = list[tuple[Replicas, list[Run]]]
"""Sets of replicas that are trained, each with its runs."""


class Trainer:
    """Carries runs to their end. workers: how many of them a CPU trains side by side."""

    def __init__(
        self,
        config: Config,
        data: Data,
        device: torch.device,
        workers: int,
        watcher: Watcher,
        stop: Stop,
        traces: Traces,
        command: str,
    ) -> None:
        self.config, self.data, self.device, self.watcher, self.stop = config, data, device, watcher, stop
        self.pool = ThreadPoolExecutor(workers)
        self.workers, self.traces, self.command = workers, traces, command
        self.saved = self.clock = time.monotonic()
        self.seconds_per_step = _ROUND_SECONDS  # nothing is known yet: a step by itself
        self.notes: list[str] = []

    def train(self, runs: Sequence[Run]) -> None:
        """Train what is left to train, and write the results."""
        unfinished = [run for run in runs if not run.over or lacks_files(run)]
        todo = [run for run in unfinished if not run.over]
        if unfinished:
            self.watcher.begin(self.config, runs, str(self.device))
        session = provenance(self.command, self.device.type)
        for run in todo:
            run.sessions.append({**session, "threads": run.threads, "from_step": run.step})
        threads_before = torch.get_num_threads()
        try:
            while todo := [run for run in todo if not run.over]:
                # Those that lag behind, as after a kill between two checkpoints, catch up first.
                least = min(run.step for run in todo)
                group = [run for run in todo if run.step == least]
                ahead = [run.step for run in todo if run.step > least]
                self._advance(group, min([*ahead, *(run.last for run in group)]))
        finally:
            self.pool.shutdown()
            torch.set_num_threads(threads_before)
        write_results(unfinished, self.watcher)

    def _advance(self, group: list[Run], until: int) -> None:
        """Train runs that are equally far up to that step."""
        # A GPU takes all at once; the cores of a CPU one each.
        sets = [group] if self.device.type == "cuda" else [[run] for run in group]
        live = [(self._replicas(runs), runs) for runs in sets]
        if any(run.state is None for run in group):
            self._save(live, group)  # where there are metrics, there is a checkpoint
        step, per_epoch, epoch = group[0].step, group[0].steps_per_epoch, -1
        with ThreadPoolExecutor(1) as ahead:
            next_rows = ahead.submit(self._draw, group, step // per_epoch)
            while True:
                if step // per_epoch != epoch and (step < until or epoch < 0):
                    epoch, rows = step // per_epoch, next_rows.result()
                    for replicas, runs in live:
                        replicas.begin([rows[run.seed] for run in runs], step % per_epoch)
                    next_rows = ahead.submit(self._draw, group, epoch + 1)
                if any(run.due for run in group):
                    self._evaluate(live, group)
                live = self._end_early(live, group)
                if step >= until or not live or self.stop.is_set():
                    self._save(live, group)
                    if self.stop.is_set():
                        raise Interrupted(self.stop.number)
                    self.watcher.progress(group)
                    return
                step = self._take_round(live, group, step, until)
                live = self._end_early(live, group)
                if time.monotonic() - self.saved > SAVE_SECONDS:
                    self._save(live, group)
                self._tell(live, group, self.watcher.progress, group)

    def _take_round(self, live: Live, group: list[Run], step: int, until: int) -> int:
        """Go to the next line of the log, the end of the epoch, or as far as a round goes.

        Returns the step there.
        """
        per_epoch, log_every = group[0].steps_per_epoch, self.config.log_every
        most = max(1, int(_ROUND_SECONDS / self.seconds_per_step))
        index = step % per_epoch
        next_line = step - index + min(per_epoch, (index // log_every + 1) * log_every)
        edge = min(until, step + most, next_line)
        taken, error = self._round(live, step, edge - step)
        self._account(group)
        for (replicas, runs), (count, spent) in zip(live, taken, strict=True):
            self._read(replicas, runs, count, spent)
        if error is not None:
            # What went well is kept.
            whole = [(replicas, runs) for replicas, runs in live if not replicas.torn]
            self._save_beside(error, whole, group)
            raise error
        return edge

    def _end_early(self, live: Live, group: list[Run]) -> Live:
        """Stop the runs that should stop; returns the sets of replicas of which some are still trained."""
        stopped = self._stop_runs(live, group)
        going = [(replicas, runs) for replicas, runs in live if not all(run.halted for run in runs)]
        if stopped or len(going) < len(live):
            self._save(live, group)
        notes, self.notes = self.notes, []
        for text in notes:
            self._tell(live, group, self.watcher.note, text)
        return going

    def _tell(self, live: Live, group: list[Run], method: Callable[..., None], *arguments: Any) -> None:
        """Call a method of the watcher. If it raises, first save what was trained."""
        try:
            method(*arguments)
        except BaseException as error:
            self._save_beside(error, live, group)
            raise

    def _save_beside(self, error: BaseException, live: Live, group: list[Run]) -> None:
        """Save after an error, which is the one to show. If that fails too, a note of the error says so."""
        try:
            self._save(live, group)
        except Exception as failure:
            error.add_note(f"What was trained since the last checkpoint could not be saved: {failure}")

    def _stop_runs(self, live: Live, group: list[Run]) -> bool:
        """Stop runs that the watcher has stopped or that have lost their patience; returns whether any."""
        self._account(group)
        any_stopped = False
        for replicas, runs in live:
            for r, run in enumerate(runs):
                # An epoch that was trained is evaluated first; what was trained to its end is done.
                if run.halted or run.due or run.step >= run.last:
                    continue
                if run.reason_to_stop is not None:
                    by, reason = "watcher", run.reason_to_stop
                elif 0 < self.config.patience <= run.epochs_without_gain:
                    best = len(run.epochs) - run.epochs_without_gain
                    by, reason = "patience", f"nothing better on the validation set since epoch {best}"
                else:
                    continue
                run.stopped = {"step": run.step, "epoch": len(run.epochs), "by": by, "reason": reason}
                replicas.alive[r] = False
                any_stopped = True
                self.notes.append(f"seed {run.seed}: stopped after epoch {len(run.epochs)}: {reason}")
        return any_stopped

    def _account(self, group: list[Run]) -> None:
        """Add the time since the last call to those of these runs that are still trained."""
        now = time.monotonic()
        for run in group:
            if not run.halted:
                run.seconds += now - self.clock
        self.clock = now

    def _draw(self, group: list[Run], epoch: int) -> dict[int, Rows]:
        return {run.seed: self.config.task.rows(self.data, run.seed, epoch) for run in group}

    def _replicas(self, runs: list[Run]) -> Replicas:
        models, seeds = [run.model for run in runs], [run.seed for run in runs]
        replicas = Replicas(self.config, models, seeds, self.data, self.device)
        for r, run in enumerate(runs):
            if run.state is not None:
                try:
                    replicas.restore(r, run.state)
                except (KeyError, TypeError, RuntimeError):
                    raise run.foreign_checkpoint() from None
        return replicas

    def _round(self, live: Live, step: int, count: int) -> tuple[list[tuple[int, float]], Exception | None]:
        """Take so many steps with all, or fewer if told to stop or if one fails.

        Returns how many each took, and the seconds; and what failed.
        """
        started, rebase_every = time.monotonic(), self.config.rebase_every
        taken, errors = [0] * len(live), list[Exception]()
        # Whoever is free takes the next step of whoever waits: no core idles while another has two to go.
        waiting = deque(range(len(live)))

        def work() -> None:
            while waiting and not errors and not self.stop.is_set():
                try:
                    i = waiting.popleft()
                except IndexError:  # another was faster
                    return
                replicas, runs = live[i]
                torch.set_num_threads(runs[0].threads)
                try:
                    replicas.step((step + taken[i]) % len(replicas.losses))
                    if rebase_every and (step + taken[i] + 1) % rebase_every == 0:
                        replicas.rebase()
                    replicas.torn = False  # not before: the re-basing belongs to the step
                except Exception as error:
                    errors.append(error)
                    return
                taken[i] += 1
                if taken[i] < count:
                    waiting.append(i)

        self._side_by_side(work, [()] * self.workers)
        if self.device.type == "cuda" and not errors:
            torch.cuda.synchronize()
        spent = time.monotonic() - started
        self.seconds_per_step = max(spent / count, 1e-9)
        return [(steps, spent) for steps in taken], next(iter(errors), None)

    def _side_by_side(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a function with each of these, side by side if there are several workers."""
        if self.workers == 1:
            return [function(*values) for values in arguments]
        return [job.result() for job in [self.pool.submit(function, *values) for values in arguments]]

    def _read(self, replicas: Replicas, runs: list[Run], count: int, spent: float) -> None:
        """Bring what so many steps have found to their runs, and write some of it down."""
        per_epoch, log_every = len(replicas.losses), self.config.log_every
        losses, norms, fine = replicas.losses.tolist(), replicas.norms.tolist(), replicas.fine.tolist()
        for r, run in enumerate(runs):
            if run.halted:
                continue
            if run.step % per_epoch == 0 and count:
                run.losses, run.norms = [], []
            lines = []
            run.training_seconds += spent
            for _ in range(count):
                index = run.step % per_epoch
                loss, norm = losses[index][r], norms[index][r]
                if not fine[index][r]:
                    self._freeze(replicas, r, run, loss, norm)
                    break
                run.losses.append(loss)
                run.norms.append(norm)
                run.step += 1
                run.trained += min(self.config.batch_size, run.samples - index * self.config.batch_size)
                if (index + 1) % log_every == 0 or index + 1 == per_epoch:
                    first = index - index % log_every
                    loss, norm = (mean(values[first:]) for values in (run.losses, run.norms))
                    lines.append({"step": run.step, "loss": loss, "norm": norm})
            run.log(*lines)
            for line in lines:
                self.traces.write(run, line)

    def _freeze(self, replicas: Replicas, r: int, run: Run, loss: float, norm: float) -> None:
        weights = sum(float(theta[r].detach().double().square().sum()) for theta in replicas.theta) ** 0.5
        run.frozen = {
            "step": run.step,
            "loss": str(loss),
            "gradient_norm": str(norm),
            "weight_norm": finite(weights),
            "last_gradient_norm": run.norms[-1] if run.norms else None,
        }
        self.notes.append(
            f"seed {run.seed}: step {run.step} is not finite or leads to what is not (loss {loss}, norm of "
            f"the gradient {norm}, of the weights {weights:.4g}); it stays as it was before that step"
        )

    def _evaluate(self, live: Live, group: list[Run]) -> None:
        """The line of an epoch, for each run that has come to its end; none if told to stop meanwhile."""
        if time.monotonic() - self.saved > SAVE_SECONDS / 6:
            self._save(live, group)  # it may take long
        scores: dict[str, list[list[dict[str, float]]]] = {}
        for part in _PARTS:
            rows = self.config.task.held_out(self.data, part)
            if rows is not None:
                arguments = [(replicas, runs, rows) for replicas, runs in live]
                scores[part] = self._side_by_side(self._scores, arguments)
        if self.stop.is_set():
            return
        self._account(group)
        evaluated = []
        for i, (replicas, runs) in enumerate(live):
            for r, run in enumerate(runs):
                if run.due:
                    self._end_epoch(replicas, r, run, {part: values[i][r] for part, values in scores.items()})
                    evaluated.append(run)
        for run in evaluated:
            self._tell(live, group, self.watcher.epoch, run)

    def _scores(self, replicas: Replicas, runs: list[Run], rows: Rows) -> list[dict[str, float]]:
        torch.set_num_threads(runs[0].threads)
        return replicas.evaluate(rows, self.stop.is_set)

    def _end_epoch(self, replicas: Replicas, r: int, run: Run, scores: dict[str, dict[str, float]]) -> None:
        """Write the line of an epoch, and keep the weights if they are the best so far."""
        line: dict[str, Any] = {"epoch": run.step // run.steps_per_epoch, "step": run.step}
        line["train_loss"] = mean(run.losses)
        for part, values in scores.items():
            line |= {f"{part}_{name}": finite(value) for name, value in values.items()}
        line["seconds"] = round(run.seconds, 3)
        run.epochs.append(line)
        run.log(line)
        self.traces.write(run, line)
        if selected(run.epochs, self.config.task.metric, "validation") is line:
            run.best = replicas.state(r)["weights"]
        least = min(run.norms, default=0.0)
        if least > replicas.steepest and not run.stuck:
            run.stuck = True
            self.notes.append(
                f"seed {run.seed}: the norm of the gradient was {least:.2g} or more in all steps of "
                f"epoch {line['epoch']}, too large to be clipped but to 0: the weights stand still"
            )

    def _save(self, live: Live, group: list[Run]) -> None:
        self._account(group)
        for replicas, runs in live:
            for r, run in enumerate(runs):
                run.state = replicas.state(r)
                run.sessions[-1] |= {
                    "seconds": round(run.seconds, 3),
                    "peak_memory_mb": peak_memory(self.device),
                }
                run.save()
        self.saved = time.monotonic()
