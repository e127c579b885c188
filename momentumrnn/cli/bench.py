"""The command `momentumrnn bench`: runs the benchmark, prints its tables, writes its file."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..bench import BadOption, bench
from .options import recorded_command, refuse

DEFAULT_SHAPES = ("pmnist128", "timit158")


def run(options: Any, args: Sequence[str]) -> int:
    """Carry out the command; returns its exit code."""
    settings = {name: value for name, value in vars(options).items() if name != "json"}
    settings["shape"] = [text for group in options.shape for text in group or [""]]
    if options.shapes is None:
        settings["shapes"] = () if options.shape else DEFAULT_SHAPES
    if options.json:
        try:
            _write(options.json, None)
        except OSError as error:
            expected = "expected a file in a folder that can be written to"
            return refuse(f"bench: --json: {expected}, got {str(options.json)!r}: {error.strerror}")
    console = Console(width=None if sys.stdout.isatty() else 110)

    def write(result: dict[str, Any]) -> None:
        if options.json:
            _write(options.json, json.dumps(result, indent=2, allow_nan=False) + "\n")

    def report(result: dict[str, Any]) -> None:
        write(result)
        _print(console, result["cases"][-1])

    try:
        result = bench(command=recorded_command(args), report=report, **settings)
    except BadOption as error:
        return refuse(f"bench: {error}")
    torch, threads = result["versions"]["torch"], result["threads"]
    console.print(
        f"{result['device']}, torch {torch}, threads {threads}, commit {result['commit'] or 'unknown'}"
    )
    write(result)
    if not result["complete"]:
        return 130
    return 0 if all(case["status"] == "ok" for case in result["cases"]) else 1


def _write(path: Path, text: str | None) -> None:
    """All of the text or, if that fails, nothing; with None only tries whether it could."""
    if path.is_dir():
        raise IsADirectoryError(None, "it is a folder")
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text or "")
        if text is not None:
            os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _print(console: Any, case: dict[str, Any]) -> None:
    """One case as a table, a line for each contender; ratios are of ours to it, of replicas to ours."""
    sizes = ", ".join(f"{name} {size}" for name, size in case["sizes"].items())
    packed = "" if case["steps"] == case["sizes"]["T"] * case["sizes"]["B"] else f", {case['steps']} steps"
    what = f"{case['cell']}, {case['momentum']}, {case['mode']}, {sizes}{packed}"
    console.print(f"\n[bold]{case['shape']}[/]: {what}", highlight=False)
    if case["status"] == "failed":
        console.print(f"[red]failed[/] on {case['backend']}: {escape(case['reason'])}", highlight=False)
        if "rows" not in case:
            return
    console.print(f"{case['backend']}: {case['how']}", highlight=False)
    table = Table("", box=box.SIMPLE_HEAD)
    on_gpu = "training_graph" in case.get("ratios", {})
    graph = {"training_graph_ms": "in a\ngraph"} if on_gpu else {}
    shown = {"forward_ms": "forward\nms", "training_ms": "training\nms", **graph, "peak_mb": "peak\nMB"}
    kinds = ("training", "training_graph") if on_gpu else ("forward", "training")
    for name in (*shown.values(), *(f"ours/it\n{kind.removeprefix('training_')}" for kind in kinds)):
        table.add_column(name, justify="right")
    table.add_column("error", justify="right")
    table.add_column("of gra-\ndients", justify="right")
    rows, parity = case.get("rows", {}), case["parity"]
    for name in rows or [name for name in parity if name != "tolerance"]:
        row = rows.get(name, {})
        table.add_row(
            row.get("layer", name),
            *(_show(row.get(field), ".4g") for field in shown),
            *(_over(case, name, kind, spread=not on_gpu) for kind in kinds),
            *(_show(parity.get(name, {}).get(what), ".0e") for what in parity["tolerance"]),
        )
    console.print(table)
    for name, row in rows.items():
        for kind, where in (("reason", ""), ("graph_reason", " in a graph")):
            if kind in row:
                console.print(f"{name}{where}: {escape(row[kind])}", highlight=False)
    if "against_plain" in case:
        known = [f"{kind} {_show(value, '.2f')}" for kind, value in case["against_plain"].items()]
        console.print(f"training with this momentum / with None: {', '.join(known)}", highlight=False)
    for name in case.get("goal", {}).get("missed", ()):
        error, goal = parity["ours"][name], case["goal"]["errors"][name]
        console.print(f"[yellow]missed[/]: {name} of ours is {_show(error, '.1e')}, wanted {goal:.0e}")
    if case["status"] == "wrong":
        allowed = " and ".join(f"{error:.0e}" for error in parity["tolerance"].values())
        console.print(f"[red]wrong[/], so not timed: ours should be within {allowed} of float64")


def _over(case: dict[str, Any], name: str, kind: str, spread: bool) -> str:
    """A ratio, with its lowest and highest if there is room."""
    if name.startswith("replicas-"):
        against = case.get("rows", {}).get(name, {}).get("against_single", {})
        value = against.get({"training": "eager", "training_graph": "graph"}.get(kind))
        return "-" if value is None else f"{value:.2f} ours"
    ratio = case.get("ratios", {}).get(kind, {}).get(name)
    if ratio is None:
        return "-"
    return ("{median:.2f} ({lowest:.2f}-{highest:.2f})" if spread else "{median:.2f}").format(**ratio)


def _show(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
