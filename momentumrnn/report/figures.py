"""The report's plots as still pictures, by matplotlib: the same numbers make the same file."""

import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from .bars import COLOURS, Bars
from .plots import Plot, Series

# A $ in a name begins no formula.
_NAMES = {"text.parse_math": False}
_DASHES: dict[str, Any] = {
    "solid": "-",
    "dash": (0, (4, 1.8)),
    "dot": (0, (1, 1.6)),
    "dashdot": (0, (5, 1.6, 1, 1.6)),
    "14px 4px": (0, (8, 2)),
    "12px 3px 2px 3px 2px 3px": (0, (6, 1.5, 1, 1.5, 1, 1.5)),
}
_MARKERS = ("o", "s", "D", "^")
# The most lines that are named at their ends.
_NAMED = 10


def saved(figure: Any, kind: str) -> bytes:
    """A figure as the content of a file: "svg" or "pdf"."""
    buffer = io.BytesIO()
    # A date would make other bytes each time.
    date = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    # It warns about the dates in some of matplotlib's fonts.
    logging.getLogger("fontTools").setLevel(logging.ERROR)
    with settings():
        figure.savefig(buffer, format=kind, metadata=date)
    return buffer.getvalue()


@contextmanager
def settings(**more: Any) -> Iterator[None]:
    """The settings for all pictures. The user's own settings have no effect."""
    import matplotlib
    import matplotlib.style

    chosen: Any = {"svg.hashsalt": "momentumrnn", "font.size": 10, "pdf.fonttype": 42, **more}
    with matplotlib.style.context("default"), matplotlib.rc_context(chosen):
        yield


def lines(plots: Sequence[Plot], title: str) -> Any:
    """Plots beside each other, over the training steps.

    One plot with few lines has their names at their ends. Others share a legend.
    """
    from matplotlib.figure import Figure

    with settings(**_NAMES):
        columns = min(2, len(plots))
        rows = -(-len(plots) // columns)
        longest = max((len(line.name) for plot in plots for line in plot.shown), default=0)
        at_ends = len(plots) == 1 and len(plots[0].shown) <= _NAMED
        # The names of the lines stand on the right.
        size = 4.6 * columns + 0.5 + longest / 15, 0.6 + (4.4 if at_ends else 3.5) * rows
        figure = Figure(figsize=size, layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        named: dict[str, Any] = {}
        for i, plot in enumerate(plots, 1):
            axes = figure.add_subplot(rows, columns, i)
            axes.set_title(f"{plot.title}: {plot.quantity}", loc="left", fontsize=10)
            if plot.shown:
                drawn = {line.name: _line(axes, line) for line in plot.shown}
                named = {**drawn, **named}
                _axes(axes, plot)
                if at_ends:
                    _names(axes, plot.shown)
            else:
                middle: Any = {"ha": "center", "va": "center", "wrap": True, "transform": axes.transAxes}
                axes.text(0.5, 0.5, plot.later or "not run", **middle)
                axes.set_axis_off()
        if named and not at_ends:
            figure.legend(named.values(), named, loc="outside right upper", frameon=False, fontsize=9)
    return figure


def _line(axes: Any, series: Series) -> Any:
    """A line and its band."""
    axes.fill_between(series.steps, series.low, series.high, color=series.colour, alpha=0.12, lw=0)
    look: Any = {"color": series.colour, "linestyle": _DASHES[series.dash]}
    marker = "o" if len(series.steps) == 1 else None
    (line,) = axes.plot(series.steps, series.middle, lw=1.8, marker=marker, **look)
    return line


def _axes(axes: Any, plot: Plot) -> None:
    """Ranges, grid, and the value without memory."""
    if plot.level is not None:
        axes.axhline(plot.level, color="0.4", linestyle=":", lw=1)
        place: Any = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        axes.annotate("without memory", (1, plot.level), (-2, 2), ha="right", fontsize=8, **place)
    if plot.log and all(value > 0 for line in plot.shown for value in line.low):
        axes.set_yscale("log")
    elif plot.window is not None:
        axes.set_ylim(plot.window)
        if plot.below:
            words = f"below: {plot.below}"
            axes.text(0.99, 0.02, words, ha="right", fontsize=8, transform=axes.transAxes)
    axes.set_xlim(left=0, right=max(line.steps[-1] for line in plot.shown))
    axes.locator_params("x", nbins=5)
    axes.set_xlabel("training steps")
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _names(axes: Any, series: Sequence[Series]) -> None:
    """The names of the lines at their ends, on the right of the axes."""
    axes.autoscale_view()
    across = axes.transAxes.inverted()
    ends = [axes.transData.transform((line.steps[-1], line.middle[-1])) for line in series]
    heights = [float(across.transform(end)[1]) for end in ends]
    for line, height, place in zip(series, heights, apart(heights, 0.052), strict=True):
        look: Any = {"color": line.colour, "linestyle": _DASHES[line.dash], "clip_on": False}
        axes.plot([1, 1.05], [height, place], transform=axes.transAxes, lw=1.8, **look)
        axes.text(1.06, place, line.label, transform=axes.transAxes, va="center", fontsize=9)


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Places from 0 to 1 that are at least a gap apart, as near to the given ones as can be, in their order.

    With places p in rising order, q_k = p_k - k gap must not fall: neighbours that fall take their mean.

    >>> [round(place, 3) for place in apart([0.5, 0.9, 0.5], 0.1)]
    [0.45, 0.9, 0.55]
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    blocks: list[tuple[float, int]] = []
    for k, i in enumerate(order):
        total, count = places[i] - k * gap, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            before, more = blocks.pop()
            total, count = total + before, count + more
        blocks.append((total, count))
    highest = max(0.0, 1 - (len(places) - 1) * gap)
    rising = [min(max(total / count, 0.0), highest) for total, count in blocks for _ in range(count)]
    moved = [0.0] * len(places)
    for k, i in enumerate(order):
        moved[i] = rising[k] + k * gap
    return moved


def bars(chart: Bars) -> Any:
    """Groups of bars from zero on a linear axis, or dots on a logarithmic one; from left to right."""
    from matplotlib.figure import Figure

    with settings(**_NAMES):
        count, dots = len(chart.groups), chart.form == "dots"
        lanes = 3 if dots else count + 1
        # The labels stand on the left. They may be long.
        width = max(8.0, 4.5 + max(map(len, chart.labels)) / 10)
        figure = Figure(figsize=(width, 1.2 + 0.17 * lanes * len(chart.labels)), layout="constrained")
        axes = figure.add_subplot()
        for i, name in enumerate(chart.groups):
            (_dots if dots else _bars)(axes, chart, i, name)
        axes.set_yticks(range(len(chart.labels)), chart.labels)
        axes.set_ylim(len(chart.labels) - 0.5, -0.5)
        axes.margins(x=0.12)
        if dots:
            axes.set_xscale("log")
            axes.grid(color="0.92")
            axes.set_axisbelow(True)
        else:
            axes.set_xlim(left=0)
        axes.set_xlabel(chart.unit)
        axes.set_title(chart.title, loc="left", fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside lower left", frameon=False, ncols=count)
    return figure


def _bars(axes: Any, chart: Bars, i: int, name: str) -> None:
    """The bars of the group with that name, the i-th of the chart."""
    height = 0.8 / len(chart.groups)
    offset = (i - (len(chart.groups) - 1) / 2) * height
    measured = [(row, value) for row, value in enumerate(chart.groups[name]) if value is not None]
    places = [row + offset for row, _ in measured]
    axes.barh(places, [value for _, value in measured], height=height, label=name, color=COLOURS[name])
    near: Any = {"xytext": (3, 0), "textcoords": "offset points", "fontsize": 7, "va": "center"}
    for (row, value), place in zip(measured, places, strict=True):
        axes.annotate(chart.text(name, row), (value, place), **near)


def _dots(axes: Any, chart: Bars, i: int, name: str) -> None:
    """The dots of the group with that name, the i-th. Their texts stand above or below them, in turn."""
    measured = [(row, value) for row, value in enumerate(chart.groups[name]) if value is not None]
    look: Any = {"linestyle": "", "marker": _MARKERS[i % len(_MARKERS)], "color": COLOURS[name]}
    axes.plot([value for _, value in measured], [row for row, _ in measured], label=name, **look)
    near: Any = {"xytext": (0, -11 if i % 2 else 5), "textcoords": "offset points", "fontsize": 7}
    for row, value in measured:
        axes.annotate(chart.text(name, row), (value, row), ha="center", **near)


def grids(
    maps: Mapping[str, tuple[tuple[float, ...], ...]], rows: Sequence[float], columns: Sequence[float]
) -> Any:
    """Tables of numbers as maps: mu down, step across."""
    from matplotlib.figure import Figure

    with settings():
        figure = Figure(figsize=(11, 3.4), layout="constrained")
        for i, (title, values) in enumerate(maps.items(), 1):
            axes = figure.add_subplot(1, len(maps), i)
            # By rank: a few networks that failed would give all others one colour.
            ranks = sorted({value for row in values for value in row}, reverse="accuracy" not in title)
            shade = [[ranks.index(value) / (len(ranks) - 1) for value in row] for row in values]
            axes.imshow(shade, cmap="Blues", vmin=0, vmax=1.4)
            for y, row in enumerate(values):
                for x, value in enumerate(row):
                    axes.text(x, y, f"{value:g}", ha="center", va="center", fontsize=8)
            axes.set_xticks(range(len(columns)), [f"{step:g}" for step in columns])
            axes.set_yticks(range(len(rows)), [f"{mu:g}" for mu in rows])
            axes.set_xlabel("step")
            axes.set_ylabel("mu")
            axes.set_title(title, loc="left", fontsize=10)
    return figure
