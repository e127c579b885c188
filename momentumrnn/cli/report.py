"""The command `momentumrnn report`: one page from run folders."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..experiments.runs.gather import gather
from ..experiments.runs.store import RunError
from ..report import BENCH, ReportError, report
from .options import refuse
from .report_files import benchmark_files, show_page
from .torch_options import own_classes


def run(options: Any, args: Sequence[str]) -> int:
    """Carry out the command; returns its exit code."""
    try:
        own = own_classes(options.imports)
    except ValueError as error:
        return refuse(f"report: {error}")
    try:
        for root in options.root:
            _check_root(root)
        page = report(options.root, options.out, benchmark_files(options.bench), own=own)
    except (ReportError, RunError) as error:
        return refuse(f"report: {error}", 1)
    show_page(page, options.open)
    damaged = sum(record.state == "damaged" for record in gather(options.root, own).folders)
    if damaged:
        print(f"{damaged} damaged folders were not counted; momentumrnn runs names them")
    return 0


def _check_root(root: Path) -> None:
    """Refuse a folder that has nothing to show. The report itself refuses one that is not there."""
    inside = [path.parent for path in root.rglob("config.json")]
    measured = any(True for name in ("cost-*.json", BENCH) for _ in root.rglob(name))
    if any(path != root for path in inside) or measured or not root.is_dir():
        return
    reason = f"which is a run folder: take {str(root.resolve().parent)!r}" if inside else "which has none"
    raise ReportError(f"--root: expected a folder of run folders, got {str(root)!r}, {reason}")
