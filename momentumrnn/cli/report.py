"""The command `momentumrnn report`: one page from run folders."""

import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..experiments.folders import RunError
from ..experiments.report import BENCH, ReportError, report
from ..experiments.report.speed import timings
from .words import refuse


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
    """Refuse a folder that has nothing to show. The report itself refuses one that is not there."""
    inside = [path.parent for path in root.rglob("config.json")]
    measured = any(True for name in ("cost-*.json", BENCH) for _ in root.rglob(name))
    if any(path != root for path in inside) or measured or not root.is_dir():
        return
    found = f"which is a run folder: take {str(root.resolve().parent)!r}" if inside else "which has none"
    raise ReportError(f"--root: expected a folder of run folders, got {str(root)!r}, {found}")


def benchmarks(given: Sequence[Path]) -> list[Path]:
    """The files that --bench names; of a folder all files of the benchmark."""
    found: list[Path] = []
    for path in given:
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not timings(files):
            expected = "files of momentumrnn bench --json with a training step to show, or folders of them"
            kind = "another" if path.is_file() else "a folder without any" if path.exists() else "not there"
            raise ReportError(f"--bench: expected {expected}, got {str(path)!r}, which is {kind}")
        found += files
    return found


def show(page: Path, browser: bool) -> None:
    """Say where the page is. browser: open it, too."""
    print(f"The page: {page}, and beside it results.md, figures and tables")
    if browser and not webbrowser.open(page.resolve().as_uri()):
        print("No browser could be opened here; open that file with one.")
