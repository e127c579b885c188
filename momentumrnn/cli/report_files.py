"""What the commands reproduce and report share: the files of benchmarks they are given, and the page."""

import webbrowser
from collections.abc import Sequence
from pathlib import Path

from ..report import ReportError
from ..report.speed import timings


def benchmark_files(paths: Sequence[Path]) -> list[Path]:
    """The files that --bench names; of a folder all files of the benchmark."""
    named: list[Path] = []
    for path in paths:
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not timings(files):
            expected = "files of momentumrnn bench --json with a training step to show, or folders of them"
            kind = "another" if path.is_file() else "a folder without any" if path.exists() else "not there"
            raise ReportError(f"--bench: expected {expected}, got {str(path)!r}, which is {kind}")
        named += files
    return named


def show_page(page: Path, browser: bool) -> None:
    """Say where the page is. browser: open it, too."""
    print(f"The page: {page}, and beside it results.md, figures and tables")
    if browser and not webbrowser.open(page.resolve().as_uri()):
        print("No browser could be opened here; open that file with one.")
