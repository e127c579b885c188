"""The command `momentumrnn reproduce`: runs what a table or figure lacks, then makes the report."""

import contextlib
import signal
import sys
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..experiments.cost import costs, place
from ..experiments.data import DataError
from ..experiments.engine.signals import Interrupted
from ..experiments.engine.train import train
from ..experiments.paper.tables import Exhibit
from ..experiments.runs.gather import gather
from ..experiments.runs.store import LockedError, RunError
from ..experiments.schedule import Entry, Item, entries, exhibits, plan
from ..provenance import device_name
from ..report import ReportError, check, demo_tables, lacking, report, result_tables
from .display import display, duration
from .options import check_threads, command_line, read_seeds, recorded_command, refuse, seed_ranges
from .report_files import benchmark_files, show_page
from .torch_options import read_device


@dataclass(frozen=True)
class Request:
    """What the options ask for: tables and figures, the rows to train for them, their seeds, and where."""

    exhibits: list[Exhibit]
    rows: list[Entry]
    seeds: list[int]
    device: torch.device

    @property
    def measures_costs(self) -> bool:
        return any(exhibit.kind == "cost" for exhibit in self.exhibits)


def run(options: Any, args: Sequence[str]) -> int:
    """Carry out the command; returns its exit code."""
    try:
        request = _read_request(options)
    except ValueError as error:
        return refuse(f"reproduce: {error}")
    if len(request.exhibits) == 1 and request.exhibits[0].later:
        name, reason = request.exhibits[0].name, request.exhibits[0].later
        return refuse(f"reproduce: {name} can't be run: {reason}", 1)
    device = request.device
    # Of several GPUs this is the one that is named and timed.
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        return _carry_out(request, options, args)


def _read_request(options: Any) -> Request:
    demo = options.what == "demo"
    seeds = read_seeds(options.seeds if options.seeds is not None else "0-2" if demo else "0-4")
    for name in ("epochs", "log_every"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')}: expected at least 1, got {value}")
    check_threads(options.threads)
    shown = exhibits(options.what)
    changes = {"epochs": options.epochs, "log_every": options.log_every}
    rows = entries(options.what, options.rows, options.also, **changes)
    # The demo is small, and a CPU gives everybody the same numbers.
    return Request(shown, rows, seeds, read_device(options.device or ("cpu" if demo else None)))


def _carry_out(request: Request, options: Any, args: Sequence[str]) -> int:
    try:
        # Refuse now what would fail after hours of training.
        files = benchmark_files(options.bench)
        absent = _absent(request.rows, options.data)
        if not options.plan:
            check(options.out)
            if request.rows and len(absent) == len(request.rows):
                raise RunError(next(iter(absent.values())))
            options.root.mkdir(parents=True, exist_ok=True)
    except (ReportError, RunError) as error:
        return refuse(f"reproduce: {error}", 1)
    except OSError as error:
        expected = "expected a folder that can be written to"
        return refuse(f"reproduce: --root: {expected}, got {str(options.root)!r}: {error.strerror}", 1)
    console = Console(width=None if sys.stdout.isatty() else 170)
    for text in dict.fromkeys(absent.values()):
        _say(console, f"{sum(why == text for why in absent.values())} rows can't be run: {text}")
    if options.plan:
        return _plan(console, request, absent, options)
    if lacking():
        _say(console, f"There will be no page: {lacking()}")
    failures = [f"{len(absent)} rows lack data"] if absent else []
    rows = [row for row in request.rows if row.name not in absent]
    try:
        failed, busy = _train_all(console, rows, request, options, args)
        failures += failed
        if request.measures_costs:
            failures += _measure(console, options.root, request.device, args)
    except (Interrupted, KeyboardInterrupt) as stopped:
        _say(console, f"Stopped; all is saved. To go on: {command_line(args)}")
        return 128 + (stopped.number if isinstance(stopped, Interrupted) else signal.SIGINT)
    try:
        if not lacking():
            _results(console, request.exhibits, options.what == "demo", options.root)
            show_page(report([options.root], options.out, files), options.open)
    except (ReportError, RunError) as error:
        return refuse(f"reproduce: {error}", 1)
    if busy:
        failures.append(f"another process trains {', '.join(sorted(busy))}: run this again when it has ended")
    return refuse(f"reproduce: {'; '.join(failures)}", 1) if failures else 0


def _absent(rows: Sequence[Entry], data: Path | None) -> dict[str, str]:
    """The rows whose data are missing, and what is to be done about it."""
    reasons: dict[type, str] = {}
    for row in rows:
        task = row.config.task
        if type(task) not in reasons:
            try:
                task.load(data)
                reasons[type(task)] = ""
            except DataError as error:
                reasons[type(task)] = str(error)
    by_row = {row.name: reasons[type(row.config.task)] for row in rows}
    return {name: reason for name, reason in by_row.items() if reason}


def _train_all(
    console: Console, rows: Sequence[Entry], request: Request, options: Any, args: Sequence[str]
) -> tuple[list[str], set[str]]:
    """Train the rows one after another. Returns what failed, in words, and the rows of another process."""
    queue, failed, busy = list(enumerate(rows, 1)), list[str](), set[str]()
    for number, row in queue:
        title = f"{number}/{len(rows)} {row.name}"
        try:
            failed += _train(console, title, row, request, options, args)
        except LockedError:
            _say(console, f"{title}: another process trains it")
            # It comes again at the end: the other process may be done then.
            queue += [(number, row)] * (row.name not in busy)
            busy.add(row.name)
            continue
        except RunError as error:
            # One row that can't go on is no reason to leave the others.
            _say(console, f"{title}: {error}")
            failed.append(f"{row.name} failed")
        busy.discard(row.name)
    return failed, busy


def _train(
    console: Console, title: str, row: Entry, request: Request, options: Any, args: Sequence[str]
) -> list[str]:
    """Bring one row to its end; returns what failed, in words."""
    with display(console, title) as watcher:
        results = train(
            row.config,
            request.seeds,
            root=options.root,
            data=options.data,
            device=str(request.device),
            threads=options.threads,
            watcher=watcher,
            command=recorded_command(args),
        )
    if not watcher.trained:
        _say(console, f"{title}: done already")
    frozen = [result["seed"] for result in results if result["frozen"]]
    return [f"{row.name}: not finite: seeds {seed_ranges(frozen)}"] if frozen else []


def _measure(console: Console, root: Path, device: torch.device, args: Sequence[str]) -> list[str]:
    """The costs of tables 14 to 16; returns what failed, in words."""
    path = place(root, device_name(device.type))
    try:
        costs(path, str(device), recorded_command(args), lambda text: _say(console, text))
    except RunError as error:
        _say(console, str(error))
        return ["the costs were not measured"]
    return []


def _plan(console: Console, request: Request, absent: Container[str], options: Any) -> int:
    """What would run, how long, what is there; absent: rows whose data are missing."""
    device = request.device
    if not request.rows and not request.measures_costs:
        _say(console, f"{options.what} needs no runs")
        return 0
    console.print(
        f"on {escape(device_name(device.type))}, by some steps of each kind that are timed now",
        highlight=False,
    )
    with console.status("timing some steps") as status:
        note = status.update if console.is_terminal else partial(_say, console)
        items = plan(request.rows, request.seeds, options.root, device, options.threads, note)
    to_run = [item for item in items if item.left and item.entry.name not in absent]
    without_data = [item for item in items if item.left and item.entry.name in absent]
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("row", "epochs", "done", "to do", "time"):
        table.add_column(title, justify="right" if title in ("epochs", "time") else "left", overflow="fold")
    for item in items:
        table.add_row(
            item.entry.name,
            str(item.entry.config.epochs),
            _done(item),
            _to_do(item) + ("; no data" if item in without_data else ""),
            duration(item.seconds) if item.left else "-",
        )
    console.print(table)
    total = duration(sum(item.seconds for item in to_run))
    _say(console, f"{len(to_run)} of {len(items)} rows to run: {total} in all, without what else runs here")
    if without_data:
        more = duration(sum(item.seconds for item in without_data))
        _say(console, f"with their data {len(without_data)} more: {more}")
    if request.measures_costs:
        path = place(options.root, device_name(device.type))
        takes = {"cuda": "three minutes", "cpu": "some minutes, on a CPU without memory"}[device.type]
        _say(console, f"and the costs of a sample, {takes}: {path}{' is there' * path.exists()}")
    if device.type == "cpu" and (to_run or without_data):
        _say(console, "These times may be several times too high or too low: tiny gradients slow a CPU down.")
    return 0


def _seeds(seeds: Sequence[int]) -> str:
    return f"seeds {seed_ranges(seeds)}" if seeds else "-"


def _done(item: Item) -> str:
    """The seeds that have nothing left to train, in words."""
    ended = {"failed": item.frozen, "stopped": item.stopped}
    return _seeds(item.done) + "".join(f", {how}: {seed_ranges(s)}" for how, s in ended.items() if s)


def _to_do(item: Item) -> str:
    """The seeds that are left to train, in words."""
    new = [seed for seed, epochs in item.left.items() if epochs == item.entry.config.epochs]
    parts = [_seeds(new)] if new else []
    for epochs in sorted(set(item.left.values()) - {item.entry.config.epochs}):
        begun = [seed for seed, more in item.left.items() if more == epochs]
        parts.append(f"{_seeds(begun)}: {epochs} epochs to go")
    return "; ".join(parts) or "-"


def _results(console: Console, shown: Sequence[Exhibit], demo: bool, root: Path) -> None:
    """Print the table that was asked for, as in the report; after the demo's its lesson."""
    runs = gather([root])
    tables = [demo_tables.demo(runs)] if demo else []
    if len(shown) == 1 and shown[0].kind in ("results", "curves"):
        tables = [result_tables.results(shown[0], runs)]
    for content in tables:
        if not content.rows:
            continue
        table = Table(box=box.SIMPLE_HEAD)
        for column in content.columns:
            table.add_column(column, overflow="fold")
        for row in content.rows:
            table.add_row(*map(escape, row.cells), style="dim" if row.kind == "absent" else "")
        console.print(table)
        _say(console, content.note)
    for line in filter(None, (demo_tables.lesson(runs), *demo_tables.notes())) if demo else ():
        console.print(escape(line), highlight=False)


def _say(console: Console, text: str) -> None:
    console.print(escape(text), highlight=False, soft_wrap=True)
