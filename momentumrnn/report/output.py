"""The files of a report in its folder: which folder may hold them, what is in them, how they are written."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..experiments.paper.printed import GRID_MU, GRID_STEP, GRIDS
from ..experiments.paper.tables import EXHIBITS
from ..experiments.runs.store import write_whole
from . import drawings, figures
from .content import Content, Section
from .errors import ReportError
from .page import page
from .text import SIGNATURE, as_csv, as_latex, results

_FILES_OF_REPORTS = re.compile(
    rf"({'|'.join(EXHIBITS)}|demo|speed|others|runs)(-\d+|-losses)?\.(svg|pdf|csv|tex)"
)
_DRAWINGS = ("figures/figure1.svg", "figures/figure7.svg", "figures/figure8.svg")


def check(out: Path) -> None:
    """Refuse a folder with something in it that is no report, so that nothing there is lost."""
    try:
        names = [path.name for path in out.iterdir() if not path.name.startswith(".")]
        is_report = not names or SIGNATURE in (out / "results.md").read_text("utf-8")
    except FileNotFoundError:
        is_report = not out.exists()
    except (OSError, UnicodeDecodeError):
        is_report = False
    if not is_report:
        raise ReportError(
            f"--out: expected a new folder or that of a report, got {str(out)!r}, which is another"
        )


def files_of(content: Content, version: str) -> dict[str, bytes]:
    """All files of the report by their names. results.md is first, the page last."""
    files = _tables_and_figures(content)
    beside = {
        section.name: sorted(name for name in files if _section_of(name) == section.name)
        for section in content.sections
    }
    drawn = {_section_of(name): files[name] for name in files if name in _DRAWINGS}
    pictures = sorted(Path(name).name for name in files if name.startswith("figures/"))
    return {
        "results.md": _bytes(results(content, pictures)),
        **files,
        "report.html": _bytes(page(content, drawn, beside, version)),
    }


def write(out: Path, files: Mapping[str, bytes]) -> None:
    """Write each file whole or not at all, in their order. Files that an older report left are deleted."""
    for folder in ("figures", "tables"):
        for path in sorted((out / folder).glob("*.*")):
            of_a_report = _FILES_OF_REPORTS.fullmatch(path.name) and path.is_file()
            if of_a_report and f"{folder}/{path.name}" not in files:
                path.unlink()
    for name, content in files.items():
        write_whole(out / name, content)


def _tables_and_figures(content: Content) -> dict[str, bytes]:
    """The content of every picture and table, by the name of its file."""
    files: dict[str, bytes] = {}
    for section in content.sections:
        for name, figure in _figures(section).items():
            files |= {f"figures/{name}.{kind}": figures.saved(figure, kind) for kind in ("svg", "pdf")}
        for table in section.tables:
            files[f"tables/{table.name}.csv"] = _bytes(as_csv(table))
            files[f"tables/{table.name}.tex"] = _bytes(as_latex(table))
    return files


def _figures(section: Section) -> dict[str, Any]:
    """The still pictures of a section by their names."""
    drawn: dict[str, Any] = {}
    if section.picture == "figure7":
        drawn["figure7"] = figures.grids(GRIDS, GRID_MU, GRID_STEP)
    elif section.picture:
        with figures.settings():
            drawn[section.name] = {"figure1": drawings.cells, "figure8": drawings.copying}[section.picture]()
    if any(plot.shown for plot in section.plots):
        drawn[section.name] = figures.lines(section.plots, f"{section.heading}: {section.title}")
    for bars in section.bars:
        drawn[bars.name] = figures.bars(bars)
    return drawn


def _section_of(name: str) -> str:
    """The section of a file, by its name."""
    return Path(name).stem.partition("-")[0]


def _bytes(text: str) -> bytes:
    # Names of files may have bytes that are no text.
    return text.encode(errors="replace")
