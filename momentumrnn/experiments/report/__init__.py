"""The report: from run folders to one page, Markdown, pictures and tables. A pure function of its files."""

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ... import __version__
from ...installation import install_command
from ..exhibits import EXHIBITS, GRID_MU, GRID_STEP, GRIDS
from ..folders import write_whole
from . import drawings, figures
from .content import Content, Section, content
from .gather import gather, plain
from .page import page
from .text import MADE, as_csv, as_latex, results

__all__ = ["NEEDED", "ReportError", "check", "lacking", "report"]

NEEDED = ("jinja2", "matplotlib", "plotly", "scipy")


class ReportError(RuntimeError):
    """A report that can't be made; the message says why and what to do."""


def report(roots: Sequence[Path], out: Path, bench: Sequence[Path] = ()) -> Path:
    """Make the report of these run folders in the folder `out`; returns its page.

    roots: folders of run folders, and of what `momentumrnn reproduce table14` measured; bench: files of
    `momentumrnn bench --json`, by default those in the roots that are named bench-*.json.
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
    found = content(gather(roots), _costs(roots), bench, _speed_page(out))
    files = _files(found)
    beside = {s.name: sorted(n for n in files if _of(n) == s.name) for s in found.sections}
    drawings = {_of(n): files[n] for n in files if n in _DRAWN}
    pictures = sorted(Path(name).name for name in files if name.startswith("figures/"))
    # results.md is first, because it says that the folder is a report's. The page is last.
    files = {"results.md": _bytes(results(found, pictures)), **files}
    files["report.html"] = _bytes(page(found, drawings, beside, __version__))
    _write(out, files)
    return out / "report.html"


BENCH = "bench-*.json"
_OURS = re.compile(rf"({'|'.join(EXHIBITS)}|demo|speed|others|runs)(-\d+|-losses)?\.(svg|pdf|csv|tex)")
_DRAWN = ("figures/figure1.svg", "figures/figure7.svg", "figures/figure8.svg")
_PACKAGE = Path(__file__).resolve().parents[2]


def _speed_page(out: Path) -> str:
    """The way from the page to docs/speed.md, if both are in one clone of the repository; else "".

    A page elsewhere has no link: its way to the clone would hold for this machine alone.
    """
    clone = _PACKAGE.parent
    there = (clone / "docs" / "speed.md").is_file() and out.resolve().is_relative_to(clone)
    return Path(os.path.relpath(clone / "docs" / "speed.md", out.resolve())).as_posix() if there else ""


def _bytes(text: str) -> bytes:
    # Names of files may have bytes that are no text.
    return text.encode(errors="replace")


def lacking() -> str:
    """The packages that must be installed for a report, in words. "" if all are there."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    return f"{' and '.join(missing)} should be installed: {install_command('all')}" if missing else ""


def check(out: Path) -> None:
    """Refuse a folder with something in it that is no report, so that nothing there is lost."""
    try:
        there = [path.name for path in out.iterdir() if not path.name.startswith(".")]
        mine = not there or MADE in (out / "results.md").read_text("utf-8")
    except FileNotFoundError:
        mine = not out.exists()
    except (OSError, UnicodeDecodeError):
        mine = False
    if not mine:
        raise ReportError(
            f"--out: expected a new folder or that of a report, got {str(out)!r}, which is another"
        )


def _of(name: str) -> str:
    """The section of a file, by its name."""
    return Path(name).stem.partition("-")[0]


def _costs(roots: Sequence[Path]) -> list[Mapping[str, Any]]:
    """The measurements for tables 14 to 16: the newest file of each device."""
    newest: dict[str, Mapping[str, Any]] = {}
    for path in sorted(path for root in roots for path in root.rglob("cost-*.json")):
        try:
            found = json.loads(path.read_bytes())
            device, date = plain(str(found["device"])), str(found["date"])
            if (found["task"], found["hidden_size"]) != ("PMNIST", 256):
                raise ValueError
            rows = {str(name): dict(row) for name, row in found["rows"].items()}
            values = [row[key] for row in rows.values() for key in ("train_ms", "eval_ms")]
            values += [
                v for row in rows.values() for k in ("train_mb", "eval_mb") if (v := row[k]) is not None
            ]
            if not all(0 < value < math.inf for value in values):
                raise ValueError
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ReportError(
                f"{path} should be what `momentumrnn reproduce table14` wrote: move it away"
            ) from None
        if device not in newest or date > newest[device]["date"]:
            newest[device] = {**found, "device": device, "rows": rows}
    return list(newest.values())


def _files(found: Content) -> dict[str, bytes]:
    """The content of every picture and table, by the name of its file."""
    files: dict[str, bytes] = {}
    for section in found.sections:
        drawn = _figure(section)
        for name, figure in drawn.items():
            files |= {f"figures/{name}.{kind}": figures.saved(figure, kind) for kind in ("svg", "pdf")}
        for table in section.tables:
            files[f"tables/{table.name}.csv"] = _bytes(as_csv(table))
            files[f"tables/{table.name}.tex"] = _bytes(as_latex(table))
    return files


def _figure(section: Section) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if section.picture == "figure7":
        found["figure7"] = figures.grids(GRIDS, GRID_MU, GRID_STEP)
    elif section.picture:
        with figures.settings():
            found[section.name] = {"figure1": drawings.cells, "figure8": drawings.copying}[section.picture]()
    if any(plot.shown for plot in section.plots):
        found[section.name] = figures.lines(section.plots, f"{section.heading}: {section.title}")
    for bars in section.bars:
        found[bars.name] = figures.bars(bars)
    return found


def _write(out: Path, files: Mapping[str, bytes]) -> None:
    """Write each file whole or not at all, the page last. Files that an older report left are deleted."""
    for folder in ("figures", "tables"):
        for path in sorted((out / folder).glob("*.*")):
            if _OURS.fullmatch(path.name) and path.is_file() and f"{folder}/{path.name}" not in files:
                path.unlink()
    for name, written in files.items():
        write_whole(out / name, written)
