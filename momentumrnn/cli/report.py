"""The command `momentumrnn report`: one page from run folders."""

import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..experiments.folders import RunError
from ..experiments.report import ReportError, report
from .words import refuse

BENCH = Path("results/bench")


def run(options: Any, args: Sequence[str]) -> int:
    """Carry out the command; returns its exit code."""
    try:
        files = benchmarks(options.bench)
        page = report(options.root, options.out, files)
    except (ReportError, RunError) as error:
        return refuse(f"report: {error}", 1)
    show(page, options.open)
    return 0


def benchmarks(given: Sequence[Path]) -> list[Path]:
    """The files that are meant: of a folder all; with none given those of results/bench here, if there."""
    found: list[Path] = []
    for path in given or [BENCH] * BENCH.is_dir():
        if not path.exists():
            raise ReportError(f"--bench: expected files of momentumrnn bench, or folders, got {str(path)!r}")
        found += sorted(path.glob("*.json")) if path.is_dir() else [path]
    return found


def show(page: Path, browser: bool) -> None:
    """Say where the page is, and open it if that is wished."""
    print(f"The page: {page}, and beside it results.md, figures and tables")
    if browser and not webbrowser.open(page.resolve().as_uri()):
        print("No browser could be opened here; open that file with one.")
