"""The command `momentumrnn runs`: what is in the run folders."""

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..experiments.folders import RunError, read_json, running
from .words import refuse, several


def run(options: Any, args: Sequence[str]) -> int:
    """Carry out the command; returns its exit code."""
    if not options.root.is_dir():
        return refuse(f"runs: --root: expected a folder of runs, got {str(options.root)!r}", 1)
    console = Console(width=None if sys.stdout.isatty() else 150)
    groups: dict[str, list[dict[str, Any]]] = {}
    broken = []
    for path in sorted(options.root.glob("*/config.json")):
        try:
            found = _read(path.parent)
        except (RunError, KeyError, TypeError) as error:
            broken.append(f"{path}: {error}")
            continue
        groups.setdefault(path.parent.name.rpartition("-s")[0], []).append(found)
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("run", "network and task", "seeds", "state"):
        table.add_column(title, no_wrap=title == "run")
    for title in ("test, selected\nby validation", "best\non test", "device"):
        table.add_column(title, justify="right")
    for name, group in groups.items():
        config = group[0]["config"]
        words = f"{config['task']}\n{config['cell']}, {config['momentum']}, H = {config['hidden_size']}"
        states = sorted({each["state"] for each in group})
        table.add_row(
            name,
            escape(words),
            several([each["seed"] for each in group]),
            "\n".join(states),
            *(_spread([each[rule] for each in group]) for rule in ("by_validation", "by_test")),
            "\n".join(sorted({each["device"] for each in group})),
        )
    console.print(table if groups else f"No runs in {options.root}.")
    for line in broken:
        console.print(f"damaged: {escape(line)}", highlight=False, soft_wrap=True)
    return 1 if broken else 0


def _read(folder: Path) -> dict[str, Any]:
    """What a folder says of its run."""
    given, result = read_json(folder / "config.json"), read_json(folder / "result.json")
    config = given["config"]
    found = {"config": config, "seed": given["seed"], "by_validation": None, "by_test": None, "device": "-"}
    if result is None:
        state = "stopped"
    elif result["frozen"]:
        state = f"frozen at step {result['frozen']['step']}"
    elif result["epochs"] < config["epochs"]:
        state = f"{result['epochs']} of {config['epochs']} epochs"
    else:
        state = f"done, {result['epochs']} epochs"
    if running(folder):
        state = "running"
    if result is not None:
        for rule in ("by_validation", "by_test"):
            line = result["selected"][rule]
            found[rule] = line and line[f"test_{result['metric']}"]
        found["device"] = result["device"]
    return {**found, "state": state}


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return f"{known[0]:.5f}" if known else "-"
    return f"{mean(known):.5f}\n± {stdev(known):.5f}"
