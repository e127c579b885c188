"""The report: from run folders to one page, Markdown, pictures and tables. A pure function of its files."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from .. import __version__
from ..experiments.runs.gather import gather
from ..installation import install_command
from .content import content
from .cost_files import read_costs
from .errors import ReportError
from .output import check, files_of, write

__all__ = ["BENCH", "NEEDED", "ReportError", "check", "lacking", "report"]

BENCH = "bench-*.json"
"""The names of the benchmark's files, where none is given."""
NEEDED = ("jinja2", "matplotlib", "plotly", "scipy")
_PACKAGE = Path(__file__).resolve().parents[1]


def report(roots: Sequence[Path], out: Path, bench: Sequence[Path] = (), own: Sequence[type] = ()) -> Path:
    """Make the report of these run folders in the folder `out`; returns its page.

    roots: folders of run folders, and of what `momentumrnn reproduce table14` measured; bench: files of
    `momentumrnn bench --json`, by default those in the roots that are named bench-*.json; own: the user's own
    classes, by which runs may be described.
    """
    if lacking():
        raise ReportError(lacking())
    for root in roots:
        if not root.is_dir():
            raise ReportError(
                "--root: expected a folder of runs, as run and reproduce make them, "
                f"but there is no folder {str(root)!r}"
            )
    check(out)
    roots = list({root.resolve(): root for root in roots}.values())
    bench = bench or [path for root in roots for path in root.rglob(BENCH)]
    sections = content(gather(roots, own), read_costs(roots), bench, _speed_page(out))
    write(out, files_of(sections, __version__))
    return out / "report.html"


def lacking() -> str:
    """The packages that must be installed for a report, in words. "" if all are there."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    return f"{' and '.join(missing)} should be installed: {install_command('all')}" if missing else ""


def _speed_page(out: Path) -> str:
    """The way from the page to docs/speed.md, if both are in one clone of the repository; else "".

    A page elsewhere has no link: its way to the clone would hold for this machine alone.
    """
    clone = _PACKAGE.parent
    speed_page = clone / "docs" / "speed.md"
    if not speed_page.is_file() or not out.resolve().is_relative_to(clone):
        return ""
    return Path(os.path.relpath(speed_page, out.resolve())).as_posix()
