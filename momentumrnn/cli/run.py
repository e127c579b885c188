"""The command `momentumrnn run`: from options to a Config, and what its results look like."""

import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from statistics import mean, stdev
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..experiments import Config, configure
from ..experiments.config import read
from ..experiments.data import DataError
from ..experiments.folders import RunError
from ..experiments.paper import Published, Recipe, recipe
from ..experiments.trainer import Interrupted, train
from .display import display, label
from .words import check_task, recorded, refuse, seeds, several, spelt

# Options that are no fields of a Config.
_OTHERS = {"task", "recipe", "seeds", "root", "data", "device", "threads", "tensorboard"}


def run(options: Any, args: Sequence[str]) -> int:
    """Carry out the command; returns its exit code."""
    try:
        found, row = config(options)
        chosen = seeds(options.seeds)
        if options.threads is not None and options.threads < 1:
            raise ValueError(f"--threads: expected at least 1, got {options.threads}")
    except ValueError as error:
        return refuse(f"run: {error}")
    console = Console(width=None if sys.stdout.isatty() else 110)
    try:
        with display(console) as watcher:
            results = train(
                found,
                chosen,
                root=options.root,
                data=options.data,
                device=options.device,
                threads=options.threads,
                tensorboard=options.tensorboard,
                watcher=watcher,
                command=recorded(args),
            )
    except Interrupted as stopped:
        console.print(f"Stopped; all is saved. To go on: {escape(spelt(args))}", soft_wrap=True)
        return 128 + stopped.number
    except (RunError, DataError) as error:
        return refuse(f"run: {error}", 1)
    if not watcher.trained:
        console.print("All done already; nothing was trained.")
    report(console, found, results, row)
    for result in results:
        folder = options.root / f"{found.id}-s{result['seed']}"
        console.print(escape(str(folder)), highlight=False, soft_wrap=True)
    frozen = [result["seed"] for result in results if result["frozen"]]
    return (
        refuse(f"run: not finite, and so not trained to the end: seeds {several(frozen)}", 1) if frozen else 0
    )


def config(options: Any) -> tuple[Config, Recipe | None]:
    """What the options ask for, and the row of the paper, if they name one."""
    given: dict[str, Any] = {}
    for name, value in vars(options).items():
        if name not in _OTHERS and value not in ("", None):
            try:
                given[name] = read(name, value)
            except ValueError as error:
                raise ValueError(f"--{error}") from None
    if "bias" in given:
        given["bias"] = {"True": True, "False": False, "hh": "hh"}[given["bias"]]
    check_task(options.task, options.recipe)
    if options.recipe:
        row = recipe(options.recipe)
        return replace(row.config, **given), row
    try:
        task = read("task", options.task)
    except ValueError as error:
        raise ValueError(f"--{error}") from None
    return configure(task, **given), None


def report(console: Console, found: Config, results: Sequence[dict[str, Any]], row: Recipe | None) -> None:
    """A table with a line for each seed, their mean, and what the paper has."""
    metric = found.task.metric
    scale, form = (100, ".2f") if metric == "accuracy" else (1, ".5f")
    unit = "accuracy, %" if metric == "accuracy" else "loss"
    table = Table("seed", box=box.SIMPLE_HEAD)
    columns = [
        ("by_validation", "epoch", "epoch"),
        ("by_validation", f"validation_{metric}", f"validation\n{unit}"),
        ("by_validation", f"test_{metric}", f"test\n{unit}"),
        ("by_test", "epoch", "best on\ntest: epoch"),
        ("by_test", f"test_{metric}", f"test\n{unit}"),
    ]
    for _, _, title in columns:
        table.add_column(title, justify="right")
    table.add_column("samples/s\nof a seed", justify="right")
    lines: list[list[float | None]] = []
    for result in results:
        values = [(result["selected"][rule] or {}).get(key) for rule, key, _ in columns]
        # A mean is of seeds that were trained alike.
        whole = not result["frozen"] and result["epochs"] == found.epochs
        if whole:
            lines.append(values)
        shown = [
            "-" if v is None else str(v) if isinstance(v, int) else format(scale * v, form) for v in values
        ]
        odd = f" (frozen at step {result['frozen']['step']})" if result["frozen"] else ""
        odd = odd or ("" if whole else f" ({result['epochs']} epochs)")
        table.add_row(f"{result['seed']}{odd}", *shown, f"{result['samples_per_second'] or 0:.0f}")
    if len(lines) > 1:
        table.add_section()
        shown = []
        for (_, key, _), each in zip(columns, zip(*lines, strict=True), strict=True):
            known = [scale * v for v in each if v is not None]
            if key == "epoch" or len(known) < 2:
                shown.append("")
            else:
                shown.append(f"{mean(known):{form}} ± {stdev(known):{form}}")
        count = "" if len(lines) == len(results) else f" of {len(lines)}"
        table.add_row(f"mean ± sd{count}", *shown, "")
    console.print()
    console.print(f"{escape(label(found))}, epochs: {found.epochs}", highlight=False)
    console.print(table)
    baseline = getattr(found.task, "baseline", None)
    if baseline is not None:
        console.print(f"without memory: loss {baseline:.5f}", highlight=False)
    if row is not None:
        console.print(f"{row.name}: {published(row)}", highlight=False, soft_wrap=True)
        if "training loss" in row.metric:
            last = [result["selected"]["last"] for result in results]
            ours = " ".join(f"{line['train_loss']:.5f}" if line else "-" for line in last)
            console.print(f"ours, the mean of the last epoch: {ours}", highlight=False, soft_wrap=True)
        changed = [f.name for f in fields(found) if getattr(found, f.name) != getattr(row.config, f.name)]
        changed = [name for name in changed if name != "log_every"]
        if changed:
            words = ", ".join(f"{name} = {getattr(found, name)!r}" for name in changed)
            console.print(f"not as in the recipe: {escape(words)}", highlight=False, soft_wrap=True)


def published(row: Recipe) -> str:
    """What the paper has for a row, in words."""
    if not row.published:
        return "no number published"
    numbers = [f"{number(p)}{f' (quoted from {p.source})' if p.quoted else ''}" for p in row.published]
    return f"published {row.metric}: {'; '.join(numbers)}"


def number(p: Published) -> str:
    """A published number, and its deviation where there is one."""
    return f"{p.value:g}" + ("" if p.std is None else f" ± {p.std:g}")
