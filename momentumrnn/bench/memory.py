"""How much memory a training step of a contender takes at its peak."""

import gc
import multiprocessing
import signal
import statistics
import sys
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from .cases import Case, Contender, build
from .rivals import rival

PROCESSES = 3  # the number of processes in which the memory on a CPU is measured


def peak_memory(case: Case, name: str, contender: Contender) -> float | None:
    """Megabytes at the peak of forward and backward, beyond input and weights; None if not measured."""
    if name == "loop":
        return None
    if case.device == "cpu":
        count = PROCESSES if sys.platform == "linux" else 0
        peaks = [peak_of_new_process(case, name) for _ in range(count)]
        known = [peak for peak in peaks if peak is not None]
        return statistics.median(known) if known else None
    peak = 0
    for _ in range(2):  # the first call allocates what stays, such as workspaces
        contender.module.zero_grad()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        contender.training()
        peak = torch.cuda.max_memory_allocated() - before
    contender.module.zero_grad()
    return peak / 1e6


def peak_of_new_process(case: Case, name: str) -> float | None:
    """Megabytes at the peak in a process that does nothing else, so that no freed memory is used again."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_peak, args=(sender, case, name, torch.get_num_threads()))
    process.start()
    sender.close()
    try:
        return receiver.recv()  # type: ignore[no-any-return]
    except EOFError:  # the process died, usually of too little memory
        return None
    finally:
        process.kill()
        process.join()
        receiver.close()


def _send_peak(sender: Connection, case: Case, name: str, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent ends this process
    torch.set_num_threads(threads)
    ours = build(case)
    contender = ours if name == "ours" else rival(name, ours, case)
    first_two_steps(contender).training()
    contender.module.zero_grad()
    gc.collect()
    try:
        before = _status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to the current size
        contender.training()
        sender.send((_status("VmHWM") - before) * 1024 / 1e6)
    except (OSError, KeyError):  # this kernel lacks one of these
        sender.send(None)


def first_two_steps(contender: Contender) -> Contender:
    """The same contender on the first two time steps of its input."""
    x, loss_weights, batch_sizes = contender.x, contender.loss_weights, contender.batch_sizes
    if batch_sizes is None:
        return replace(contender, x=x[:2], loss_weights=loss_weights[..., :2, :, :])
    rows = int(batch_sizes[:2].sum())
    return replace(contender, x=x[:rows], loss_weights=loss_weights[:rows], batch_sizes=batch_sizes[:2])


def _status(field: str) -> int:
    """A field of this process's status, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)[field].split()[0])
