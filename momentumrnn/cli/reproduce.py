"""The command `momentumrnn reproduce`: runs what a table or figure lacks, then makes the report."""

import signal
import sys
from collections.abc import Container, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..experiments.cost import costs, place
from ..experiments.data import DataError
from ..experiments.exhibits import Exhibit
from ..experiments.folders import LockedError, RunError
from ..experiments.plan import Entry, Item, entries, exhibits, plan
from ..experiments.report import ReportError, check, demo_tables, lacking, report, result_tables
from ..experiments.report.gather import gather
from ..experiments.trainer import Interrupted, choose, train
from ..provenance import device_name
from .display import display, duration
from .report import benchmarks, show
from .words import recorded, refuse, seeds, several, spelt


def run(options: Any, args: Sequence[str]) -> int:
    """Carry out the command; returns its exit code."""
    demo = options.what == "demo"
    try:
        chosen = seeds(options.seeds if options.seeds is not None else "0-2" if demo else "0-4")
        for name in ("epochs", "log_every", "threads"):
            value = getattr(options, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')}: expected at least 1, got {value}")
        shown = exhibits(options.what)
        changes = {"epochs": options.epochs, "log_every": options.log_every}
        wanted = entries(options.what, options.rows, options.also, **changes)
    except ValueError as error:
        return refuse(f"reproduce: {error}")
    if len(shown) == 1 and shown[0].later:
        return refuse(f"reproduce: {shown[0].name} can't be run: {shown[0].later}", 1)
    try:
        # The demo is small, and a CPU gives everybody the same numbers.
        device = choose(options.device or ("cpu" if demo else None))
        # Refuse now what would fail after hours of training.
        files = benchmarks(options.bench)
        absent = _absent(wanted, options.data)
        if not options.plan:
            check(options.out)
            if wanted and len(absent) == len(wanted):
                raise RunError(next(iter(absent.values())))
            options.root.mkdir(parents=True, exist_ok=True)
    except (ReportError, RunError) as error:
        return refuse(f"reproduce: {error}", 1)
    except OSError as error:
        expected = "expected a folder that can be written to"
        return refuse(f"reproduce: --root: {expected}, got {str(options.root)!r}: {error.strerror}", 1)
    console = Console(width=None if sys.stdout.isatty() else 170)
    measured = [table for table in shown if table.kind == "cost"]
    for text in dict.fromkeys(absent.values()):
        _say(console, f"{sum(why == text for why in absent.values())} rows can't be run: {text}")
    if options.plan:
        return _plan(console, wanted, absent, chosen, options, device, bool(measured))
    if lacking():
        _say(console, f"There will be no page: {lacking()}")
    failed = [f"{len(absent)} rows lack data"] if absent else []
    wanted = [each for each in wanted if each.name not in absent]
    try:
        problems, busy = _train_all(console, wanted, chosen, options, device.type, args)
        failed += problems
        if measured:
            failed += _measure(console, options.root, device.type, args)
    except (Interrupted, KeyboardInterrupt) as stopped:
        _say(console, f"Stopped; all is saved. To go on: {spelt(args)}")
        return 128 + (stopped.number if isinstance(stopped, Interrupted) else signal.SIGINT)
    try:
        if not lacking():
            _results(console, shown, demo, options.root)
            show(report([options.root], options.out, files), options.open)
    except (ReportError, RunError) as error:
        return refuse(f"reproduce: {error}", 1)
    if busy:
        failed.append(f"another process trains {', '.join(sorted(busy))}: run this again when it has ended")
    return refuse(f"reproduce: {'; '.join(failed)}", 1) if failed else 0


def _absent(wanted: list[Entry], data: Path | None) -> dict[str, str]:
    """The rows whose data are missing, and what is to be done about it."""
    why: dict[type, str] = {}
    for each in wanted:
        task = each.config.task
        if type(task) not in why:
            try:
                task.load(data)
                why[type(task)] = ""
            except DataError as error:
                why[type(task)] = str(error)
    found = {each.name: why[type(each.config.task)] for each in wanted}
    return {name: text for name, text in found.items() if text}


def _train_all(
    console: Console,
    wanted: Sequence[Entry],
    chosen: list[int],
    options: Any,
    device: str,
    args: Sequence[str],
) -> tuple[list[str], set[str]]:
    """Train the rows one after another. Returns what failed, in words, and the rows of another process."""
    queue, failed, busy = list(enumerate(wanted, 1)), list[str](), set[str]()
    for i, each in queue:
        title = f"{i}/{len(wanted)} {each.name}"
        try:
            failed += _train(console, title, each, chosen, options, device, args)
        except LockedError:
            _say(console, f"{title}: another process trains it")
            # It comes again at the end: the other process may be done then.
            queue += [(i, each)] * (each.name not in busy)
            busy.add(each.name)
            continue
        except RunError as error:
            # One row that can't go on is no reason to leave the others.
            _say(console, f"{title}: {error}")
            failed.append(f"{each.name} failed")
        busy.discard(each.name)
    return failed, busy


def _train(
    console: Console,
    title: str,
    each: Entry,
    chosen: list[int],
    options: Any,
    device: str,
    args: Sequence[str],
) -> list[str]:
    """Bring one row to its end; returns what failed, in words."""
    with display(console, title) as watcher:
        results = train(
            each.config,
            chosen,
            root=options.root,
            data=options.data,
            device=device,
            threads=options.threads,
            watcher=watcher,
            command=recorded(args),
        )
    if not watcher.trained:
        _say(console, f"{title}: done already")
    frozen = [result["seed"] for result in results if result["frozen"]]
    return [f"{each.name}: not finite: seeds {several(frozen)}"] if frozen else []


def _measure(console: Console, root: Path, device: str, args: Sequence[str]) -> list[str]:
    """The costs of tables 14 to 16; returns what failed, in words."""
    try:
        costs(place(root, device_name(device)), device, recorded(args), lambda text: _say(console, text))
    except RunError as error:
        _say(console, str(error))
        return ["the costs were not measured"]
    return []


def _plan(
    console: Console,
    wanted: list[Entry],
    absent: Container[str],
    chosen: list[int],
    options: Any,
    device: Any,
    measured: bool,
) -> int:
    """What would run, how long, what is there; absent: rows whose data are missing."""
    if not wanted and not measured:
        _say(console, f"{options.what} needs no runs")
        return 0
    console.print(
        f"on {escape(device_name(device.type))}, by some steps of each kind that are timed now",
        highlight=False,
    )
    with console.status("timing some steps") as status:
        note = status.update if console.is_terminal else partial(_say, console)
        items = plan(wanted, chosen, options.root, device, options.threads, note)
    todo = [item for item in items if item.left and item.entry.name not in absent]
    idle = [item for item in items if item.left and item.entry.name in absent]
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("row", "epochs", "done", "to do", "time"):
        table.add_column(title, justify="right" if title in ("epochs", "time") else "left", overflow="fold")
    for item in items:
        table.add_row(
            item.entry.name,
            str(item.entry.config.epochs),
            _seeds(item.done) + (f", failed: {several(item.frozen)}" if item.frozen else ""),
            _left(item) + ("; no data" if item in idle else ""),
            duration(item.seconds) if item.left else "-",
        )
    console.print(table)
    total = duration(sum(item.seconds for item in todo))
    _say(console, f"{len(todo)} of {len(items)} rows to run: {total} in all, without what else runs here")
    if idle:
        _say(console, f"with their data {len(idle)} more: {duration(sum(item.seconds for item in idle))}")
    if measured:
        path = place(options.root, device_name(device.type))
        takes = {"cuda": "three minutes", "cpu": "some minutes, on a CPU without memory"}[device.type]
        _say(console, f"and the costs of a sample, {takes}: {path}{' is there' * path.exists()}")
    if device.type == "cpu" and (todo or idle):
        _say(console, "These times may be several times too high or too low: tiny gradients slow a CPU down.")
    return 0


def _seeds(numbers: Sequence[int]) -> str:
    return f"seeds {several(numbers)}" if numbers else "-"


def _left(item: Item) -> str:
    fresh = [seed for seed, epochs in item.left.items() if epochs == item.entry.config.epochs]
    parts = [_seeds(fresh)] if fresh else []
    for epochs in sorted(set(item.left.values()) - {item.entry.config.epochs}):
        begun = [seed for seed, more in item.left.items() if more == epochs]
        parts.append(f"{_seeds(begun)}: {epochs} epochs to go")
    return "; ".join(parts) or "-"


def _results(console: Console, shown: Sequence[Exhibit], demo: bool, root: Path) -> None:
    """Print the table that was asked for, as in the report; after the demo's its lesson."""
    runs = gather([root])
    found = [demo_tables.demo(runs)] if demo else []
    if len(shown) == 1 and shown[0].kind in ("results", "curves"):
        found = [result_tables.results(shown[0], runs)]
    for content in found:
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
