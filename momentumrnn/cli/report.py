"""The command `momentumrnn report`: one page from run folders."""

import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..experiments.folders import RunError
from ..experiments.report import ReportError, report
from ..experiments.report.bars import speed
from .words import refuse

BENCH = Path("results/bench")


def run(options: Any, args: Sequence[str]) -> int:
    """Carry out the command; returns its exit code."""
    try:
        for root in options.root:
            _check(root)
        page = report(options.root, options.out, benchmarks(options.bench))
    except (ReportError, RunError) as error:
        return refuse(f"report: {error}", 1)
    show(page, options.open)
    return 0


def _check(root: Path) -> None:
    """Refuse a folder of which there is nothing to show; one that is not there is refused by the report."""
    inside = [path.parent for path in root.rglob("config.json")]
    if any(path != root for path in inside) or any(root.rglob("cost-*.json")) or not root.is_dir():
        return
    odd = f"which is a run folder: take {str(root.resolve().parent)!r}" if inside else "which has none"
    raise ReportError(f"--root: expected a folder of run folders, got {str(root)!r}, {odd}")


def benchmarks(given: Sequence[Path]) -> list[Path]:
    """The files that are meant: of a folder all; with none given those of results/bench here, if there."""
    found: list[Path] = []
    for path in given or [BENCH] * BENCH.is_dir():
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if given and not speed(files):
            expected = "files of momentumrnn bench --json with a training step to show, or folders of such"
            odd = "another" if path.is_file() else "a folder without any" if path.exists() else "not there"
            raise ReportError(f"--bench: expected {expected}, got {str(path)!r}, which is {odd}")
        found += files
    return found


def show(page: Path, browser: bool) -> None:
    """Say where the page is, and open it if that is wished."""
    print(f"The page: {page}, and beside it results.md, figures and tables")
    if browser and not webbrowser.open(page.resolve().as_uri()):
        print("No browser could be opened here; open that file with one.")
