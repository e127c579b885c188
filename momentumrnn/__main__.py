"""The command line: reads options, prints tables, writes files. Torch is imported when a command runs."""

import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class Bench:
    """Time layers against torch.nn: parity first, then forward, forward + backward, and peak memory."""

    shapes: tuple[str, ...] = ("pmnist128", "timit158")
    """Layers and inputs by the paper's names: pmnist128, pmnist256, lstm512, mnist-gru256, timit84, timit120,
    timit158, copy190-1k, copy190-2k, adding128, ptb1150, ptb400, dtriv170, dtriv360, dtriv512, dtriv224,
    dtriv322."""
    cells: tuple[Literal["lstm", "gru", "rnn"], ...] = ()
    """In place of each shape's own cell."""
    momentum: tuple[str, ...] = ("HeavyBall",)
    """Spelt as in Python, such as "HeavyBall(mu=0.9)", "Adam(mu=0.6, beta=0.9)", Nesterov, None. If None is
    among them, the others are compared with it too."""
    backend: str = "auto"
    """auto takes the fastest that serves; another name, such as native or reference, that one or none."""
    rivals: tuple[
        Literal["torch", "torch-fp32", "torch-bf16", "torch-fp16", "torch-padded", "native", "loop"], ...
    ] = ("torch", "loop")
    """torch: torch.nn's plain layer; torch-fp32: without TF32; torch-bf16, torch-fp16: in that dtype;
    torch-padded: an LSTM in float16 at sizes for which cuDNN has its fastest kernels; native: our layer on
    the backend of that name; loop: the paper's listing, step by step in Python, with the momentum."""
    replicas: tuple[int, ...] = ()
    """Also time ours so many times over, each with its own weights, in one run through torch.vmap."""
    device: Literal["cpu", "cuda"] | None = None
    """By default cuda, if there is one."""
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = "float32"
    """Of weights and input."""
    threads: int | None = None
    """CPU threads; by default as many as torch takes."""
    repeats: int = 5
    """Rounds, in each of which all are timed one after another."""
    memory: bool = True
    """Measure peak memory; on a CPU in fresh processes, some seconds each."""
    json: Path | None = None
    """Write the results to this file, after each case."""


def main(args: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    args = sys.argv[1:] if args is None else list(args)
    if args == ["--version"]:
        from . import __version__

        print(f"momentumrnn {__version__}")
        return 0
    missing = [name for name in ("tyro", "rich") if find_spec(name) is None]
    if missing:
        return _refuse(f"{' and '.join(missing)} should be installed: pip install 'momentumrnn[all]'", 1)
    import tyro

    options = tyro.extras.subcommand_cli_from_dict(
        {"bench": Bench},
        prog="momentumrnn",
        description="Momentum in recurrent networks. --version prints the version.",
        args=args,
    )
    try:
        return _bench(options, args)
    except KeyboardInterrupt:
        return 130


def _bench(options: Bench, args: Sequence[str]) -> int:
    from rich.console import Console

    from .bench import BadOption, bench

    settings = {name: value for name, value in vars(options).items() if name != "json"}
    # A result says what was run, not in whose folders.
    command = shlex.join(["momentumrnn", *(Path(a).name if "/" in a or os.sep in a else a for a in args)])
    if options.json:
        try:
            _write(options.json, None)
        except OSError as error:
            expected = "expected a file in a folder that can be written to"
            return _refuse(f"bench: --json: {expected}, got {str(options.json)!r}: {error.strerror}")
    console = Console(width=None if sys.stdout.isatty() else 110)

    def write(result: dict[str, Any]) -> None:
        if options.json:
            _write(options.json, json.dumps(result, indent=2, allow_nan=False) + "\n")

    def report(result: dict[str, Any]) -> None:
        write(result)
        _print(console, result["cases"][-1])

    try:
        result = bench(command=command, report=report, **settings)
    except BadOption as error:
        return _refuse(f"bench: {error}")
    torch, threads = result["versions"]["torch"], result["threads"]
    console.print(f"{result['device']}, torch {torch}, threads {threads}, commit {result['commit']}")
    write(result)
    if not result["complete"]:
        return 130
    return 0 if all(case["status"] == "ok" for case in result["cases"]) else 1


def _refuse(reason: str, code: int = 2) -> int:
    print(f"momentumrnn: {reason}", file=sys.stderr)
    return code


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
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    sizes = ", ".join(f"{name} {size}" for name, size in case["sizes"].items())
    console.print(f"\n[bold]{case['shape']}[/]: {case['cell']}, {case['momentum']}, {sizes}", highlight=False)
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


if __name__ == "__main__":
    sys.exit(main())
