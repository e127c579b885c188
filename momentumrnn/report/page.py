"""The report as one HTML page that needs nothing else: plotly, data, style and script are inside."""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .bars import COLOURS, Bars
from .content import TERMS, Content
from .drawings import ALT
from .plots import INK, Plot
from .wording import sources

FOLDER = Path(__file__).parent


def page(
    content: Content, drawings: Mapping[str, bytes], files: Mapping[str, list[str]], version: str
) -> str:
    """The page. drawings: the SVG drawings by section; files: the files beside the page by section."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["tight"] = tight
    figures: dict[str, Any] = {}
    for section in content.sections:
        figures |= {plot.name: _lines(plot) for plot in section.plots if plot.series}
        figures |= {f"bars-{bars.name}": _bars(bars) for bars in section.bars}
    images = {name: base64.b64encode(svg).decode() for name, svg in drawings.items()}
    text: str = environment.get_template("page.html.jinja").render(
        content=content,
        run=content.of("run"),
        background=content.of("background"),
        absent=content.of("absent"),
        terms=TERMS,
        images=images,
        alt={
            **ALT,
            "figure7": "Maps of the published numbers by mu and step. The tables below have the numbers.",
        },
        files=files,
        sources=sources(),
        version=version,
        style=(FOLDER / "page.css").read_text("utf-8"),
        script=(FOLDER / "page.js").read_text("utf-8"),
        plotly=get_plotlyjs(),
        # "</script>" in a name must not end the script.
        figures=json.dumps(figures, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
    )
    return text


def tight(text: str) -> str:
    """Keeps numbers that belong together on one line.

    >>> tight("92.77 ± 0.16 (5)").split()
    ['92.77', '±', '0.16', '(5)']
    >>> tight("+0.14 [-0.05, +0.34]").count(" ")
    1
    """
    return re.sub(
        r"(?<=\d) (?=[±(]\W?\d)|(?<=\d) (?=±)|(?<=±) |(?<=,) (?=[+-]\d)", "\N{NO-BREAK SPACE}", text
    )


def _lines(plot: Plot) -> dict[str, Any]:
    series = []
    for line in plot.series:
        values = asdict(line)
        for key in ("middle", "low", "high"):
            values[key] = [float(f"{value:.5g}") for value in values[key]]
        series.append(values)
    # No logarithm of what is not positive.
    log = all(value > 0 for line in plot.series for value in line.low)
    return {
        "kind": "lines",
        "quantity": plot.quantity,
        "log": log and plot.log,
        "window": plot.window,
        "level": plot.level,
        "controls": plot.controls,
        "ink": INK,
        "series": series,
    }


def _bars(bars: Bars) -> dict[str, Any]:
    groups = [
        {
            "name": name,
            "colour": COLOURS[name],
            "values": list(values),
            "texts": [bars.text(name, i) for i in range(len(values))],
        }
        for name, values in bars.groups.items()
    ]
    return {"kind": bars.form, "unit": bars.unit, "labels": list(bars.labels), "groups": groups}
