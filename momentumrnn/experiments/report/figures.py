"""The report's plots as still pictures, by matplotlib: the same numbers make the same file."""

import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from .bars import COLOURS, Bars
from .curves import Plot

# A $ in a name begins no formula.
_NAMES = {"text.parse_math": False}
_DASHES: dict[str, Any] = {
    "solid": "-",
    "dash": "--",
    "dot": ":",
    "dashdot": "-.",
    "10px 4px": (0, (6, 2.4)),
    "12px 3px 2px 3px": (0, (7, 2, 1, 2)),
    "4px 2px 1px 2px": (0, (4, 2, 1, 2)),
}


def saved(figure: Any, kind: str) -> bytes:
    """A figure as the content of a file: "svg" or "pdf"."""
    buffer = io.BytesIO()
    # A date would make other bytes each time.
    date = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    # It minds the dates in some of matplotlib's fonts.
    logging.getLogger("fontTools").setLevel(logging.ERROR)
    with settings():
        figure.savefig(buffer, format=kind, metadata=date)
    return buffer.getvalue()


@contextmanager
def settings(**more: Any) -> Iterator[None]:
    """How all pictures are drawn, whatever the user's own settings are."""
    import matplotlib
    import matplotlib.style

    own: Any = {"svg.hashsalt": "momentumrnn", "font.size": 10, "pdf.fonttype": 42, **more}
    with matplotlib.style.context("default"), matplotlib.rc_context(own):
        yield


def lines(plots: Sequence[Plot], title: str) -> Any:
    """Plots beside each other, the training steps below."""
    from matplotlib.figure import Figure

    with settings(**_NAMES):
        columns = min(2, len(plots))
        rows = -(-len(plots) // columns)
        longest = max((len(each.name) for plot in plots for each in plot.shown), default=0)
        # The names of the lines stand on the right.
        figure = Figure(figsize=(4.6 * columns + 0.5 + longest / 15, 0.6 + 3.5 * rows), layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        named: dict[str, Any] = {}
        for i, plot in enumerate(plots, 1):
            axes = figure.add_subplot(rows, columns, i)
            axes.set_title(f"{plot.title}: {plot.quantity}", loc="left", fontsize=10)
            if not plot.shown:
                axes.text(
                    0.5, 0.5, _absent(plot), ha="center", va="center", wrap=True, transform=axes.transAxes
                )
                axes.set_axis_off()
                continue
            for each in plot.shown:
                axes.fill_between(each.steps, each.low, each.high, color=each.colour, alpha=0.15, lw=0)
                mark = "o" if len(each.steps) == 1 else None
                (line,) = axes.plot(
                    each.steps,
                    each.middle,
                    color=each.colour,
                    linestyle=_DASHES[each.dash],
                    lw=1.6,
                    marker=mark,
                )
                named.setdefault(each.name, line)
            if plot.level is not None:
                axes.axhline(plot.level, color="black", linestyle="--", lw=1)
                axes.annotate(
                    "no memory",
                    (1, plot.level),
                    (-2, 2),
                    xycoords=("axes fraction", "data"),
                    textcoords="offset points",
                    ha="right",
                    fontsize=8,
                )
            if plot.log and all(v > 0 for each in plot.shown for v in each.low):
                axes.set_yscale("log")
            elif plot.window is not None:
                axes.set_ylim(plot.window)
                if plot.below:
                    below = f"below: {plot.below}"
                    axes.text(0.99, 0.02, below, ha="right", fontsize=8, transform=axes.transAxes)
            axes.set_xlim(left=0)
            axes.locator_params("x", nbins=5)
            axes.set_xlabel("training steps")
            axes.grid(color="0.92")
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
        if named:
            figure.legend(named.values(), named, loc="outside right upper", frameon=False, fontsize=9)
    return figure


def _absent(plot: Plot) -> str:
    return plot.later or "not run"


def bars(found: Bars) -> Any:
    """Groups of bars, from left to right, on a logarithmic axis."""
    from matplotlib.figure import Figure

    with settings(**_NAMES):
        count = len(found.groups)
        figure = Figure(figsize=(8, 1.2 + 0.17 * (count + 1) * len(found.labels)), layout="constrained")
        axes = figure.add_subplot()
        for i, (name, values) in enumerate(found.groups.items()):
            places = [row + (i - (count - 1) / 2) * 0.8 / count for row in range(len(found.labels))]
            known = [(at, value) for at, value in zip(places, values, strict=True) if value is not None]
            if known:
                axes.barh(
                    [at for at, _ in known],
                    [value for _, value in known],
                    height=0.8 / count,
                    label=name,
                    color=COLOURS[name],
                )
            for at, value in known:
                axes.annotate(
                    f"{value:.3g}", (value, at), (3, 0), textcoords="offset points", va="center", fontsize=7
                )
        axes.set_yticks(range(len(found.labels)), found.labels)
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.margins(x=0.12, y=0.01)
        axes.set_xlabel(found.unit)
        axes.set_title(found.title, loc="left", fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside lower left", frameon=False, ncols=count)
    return figure


def grids(
    found: Mapping[str, tuple[tuple[float, ...], ...]], rows: Sequence[float], columns: Sequence[float]
) -> Any:
    """Tables of numbers as maps: mu down, step across."""
    from matplotlib.figure import Figure

    with settings():
        figure = Figure(figsize=(11, 3.4), layout="constrained")
        for i, (title, values) in enumerate(found.items(), 1):
            axes = figure.add_subplot(1, len(found), i)
            # By rank: a few networks that failed would make all others one colour.
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
