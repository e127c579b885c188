"""Figures 1 and 8 of the paper, drawn anew: the cells and the copying task. Knows no results and no files."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from ..experiments.tasks import Copying

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ALT: dict[str, str] = {
    "figure1": (
        "Three block diagrams: a plain cell, one with momentum and one with Adam. In all three, h goes "
        "through the same recurrence, x goes through W and b into the drive, and no line leads from h into "
        "the drive. Momentum adds a state v to the drive, with the gains mu and step; Adam adds a second "
        "state n, with the gain beta, and divides v by the root of n."
    ),
    "figure8": (
        "An example of the copying task, 30 steps long. The input is five symbols of 1 to 4, 20 blanks, a "
        "marker and 4 blanks. The target is 25 blanks, then the same five symbols, each 25 steps after it "
        "was shown."
    ),
}

FONTS: Any = {"font.size": 12, "mathtext.fontset": "dejavuserif"}
# From Okabe and Ito's colours, which the colour-blind can tell apart; each with a fill, light under text.
BLACK, BLUE, ORANGE = "#000000", "#0072b2", "#d55e00"
FILLS = {BLACK: "#ffffff", BLUE: "#cfe8f7", ORANGE: "#fbdcc4"}


@dataclass(frozen=True)
class Node:
    """A part of a cell: a box, a circle or, with round ends, a state; x, y of its centre in inches."""

    text: str
    x: float
    y: float
    kind: str = "box"
    colour: str = BLACK
    width: float = 0.5
    height: float = 0.3

    @property
    def half(self) -> tuple[float, float]:
        """Half its width and half its height."""
        return (0.13, 0.13) if self.kind == "circle" else (self.width / 2, self.height / 2)


@dataclass(frozen=True)
class Diagram:
    """A cell: its nodes by name, the wires from one to another, and its equations with their colours."""

    title: str
    subtitle: str
    recurrence: str
    drive: str
    nodes: Mapping[str, Node]
    wires: tuple[tuple[str, str], ...]
    equations: tuple[tuple[str, str], ...]


# Columns in inches: states before, gains, the sums of v and h, the sum of n, states after.
BEFORE, GAIN, SUM, SECOND, AFTER = 0.36, 1.08, 1.72, 2.5, 3.12
# Rows, from below, by what is in them.
X, W, BRANCH, SCALED, N, V, QUOTIENT, H = 0.23, 0.68, 1.02, 1.48, 1.92, 2.37, 2.81, 3.31
# A panel's width; the height at which its drive ends and its recurrence begins; where that ends.
PANEL, EDGE, TOP = 3.46, 3.05, 3.76

PLAIN = Diagram(
    title="Plain",
    subtitle="the drive is $a$ itself",
    recurrence="recurrence: no $x$ in it",
    drive="drive:\nno $h$ in it",
    nodes={
        "h_before": Node("$h_{t-1}$", BEFORE, H, "state"),
        "U": Node("$U,\\, b'$", GAIN, H),
        "sum": Node("+", SUM, H, "circle"),
        "f": Node("$f$", 2.41, H),
        "h": Node("$h_t$", AFTER, H, "state"),
        "x": Node("$x_t$", SUM, X, "state"),
        "W": Node("$W,\\, b$", SUM, W),
    },
    wires=(("h_before", "U"), ("U", "sum"), ("sum", "f"), ("f", "h"), ("x", "W"), ("W", "sum")),
    equations=(("$h_t = f(a_t + U\\, h_{t-1} + b')$", BLACK),),
)

MOMENTUM = Diagram(
    title="Momentum",
    subtitle="heavy ball; Nesterov where $\\mu = k / (k + 3)$",
    recurrence="the same recurrence",
    drive="drive:\nno $h$ in it\nnew: $v$",
    nodes={
        **PLAIN.nodes,
        "v_before": Node("$v_{t-1}$", BEFORE, V, "state", BLUE),
        "mu": Node("$\\mu$", GAIN, V, colour=BLUE),
        "step": Node("$\\mathrm{step}$", SUM, SCALED, colour=BLUE),
        "sum_v": Node("+", SUM, V, "circle", BLUE),
        "v": Node("$v_t$", AFTER, V, "state", BLUE),
    },
    wires=(
        *(wire for wire in PLAIN.wires if wire != ("W", "sum")),
        *(("W", "step"), ("step", "sum_v"), ("v_before", "mu"), ("mu", "sum_v"), ("sum_v", "v")),
        ("sum_v", "sum"),
    ),
    equations=(
        ("$h_t = f(v_t + U\\, h_{t-1} + b')$", BLACK),
        ("$v_t = \\mu\\, v_{t-1} + \\mathrm{step}\\; a_t$", BLUE),
    ),
)

ADAM = Diagram(
    title="Adam",
    subtitle="RMSProp where $\\mu = 0$",
    recurrence="the same recurrence",
    drive="drive:\nno $h$ in it\nnew: $v$ and $n$",
    nodes={
        **MOMENTUM.nodes,
        "square": Node("square", SECOND, BRANCH, colour=ORANGE, width=0.68),
        "rest": Node("$1 - \\beta$", SECOND, SCALED, colour=ORANGE, width=0.68),
        "n_before": Node("$n_{t-1}$", BEFORE, N, "state", ORANGE),
        "beta": Node("$\\beta$", GAIN, N, colour=ORANGE),
        "sum_n": Node("+", SECOND, N, "circle", ORANGE),
        "n": Node("$n_t$", AFTER, N, "state", ORANGE),
        "root": Node("$\\sqrt{n_t + \\epsilon^2}$", SECOND, QUOTIENT, "box", ORANGE, 0.92, 0.4),
        "quotient": Node("÷", SUM, QUOTIENT, "circle", ORANGE),
    },
    wires=(
        *(wire for wire in MOMENTUM.wires if wire != ("sum_v", "sum")),
        *(("W", "square"), ("square", "rest"), ("rest", "sum_n"), ("n_before", "beta"), ("beta", "sum_n")),
        *(("sum_n", "n"), ("sum_n", "root"), ("sum_v", "quotient"), ("root", "quotient")),
        ("quotient", "sum"),
    ),
    equations=(
        ("$h_t = f(v_t\\, /\\, \\sqrt{n_t + \\epsilon^2} + U\\, h_{t-1} + b')$", BLACK),
        MOMENTUM.equations[1],
        ("$n_t = \\beta\\, n_{t-1} + (1 - \\beta)\\, a_t^2$", ORANGE),
    ),
)


def cells() -> "Figure":
    """Figure 1, 10.9 x 5.6 inches: the plain cell, the cell with momentum and the cell with Adam."""
    import matplotlib
    from matplotlib.figure import Figure

    note = (
        "A box multiplies, or applies what it says. Lines that cross without a dot do not meet. "
        "step and $n$ are the paper's $s$ and $m$. $f$: tanh, or an LSTM's gates."
    )
    with matplotlib.rc_context(FONTS):
        figure = Figure(figsize=(10.9, 5.6), facecolor="white")
        axes = _inches(figure)
        for column, diagram in enumerate((PLAIN, MOMENTUM, ADAM)):
            _draw(axes, diagram, 0.13 + 3.59 * column, 1.27)
        axes.text(0.13, 0.12, note, fontsize=10)
    return figure


def _inches(figure: "Figure") -> "Axes":
    """Axes over the whole figure whose unit is an inch."""
    width, height = figure.get_size_inches()
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    return axes


def _draw(axes: "Axes", diagram: Diagram, left: float, bottom: float) -> None:
    """One cell with its lower left corner there, its title above, its equations below."""
    from matplotlib.patches import Rectangle

    for low, high, grey in ((0, EDGE, "0.965"), (EDGE, TOP, "0.9")):
        axes.add_patch(Rectangle((left, bottom + low), PANEL, high - low, color=grey, linewidth=0))
    axes.text(left, bottom + TOP + 0.3, diagram.title, fontsize=14, weight="bold")
    axes.text(left, bottom + TOP + 0.08, diagram.subtitle)
    axes.text(left + 0.1, bottom + TOP - 0.07, diagram.recurrence, va="top")
    axes.text(left + 0.1, bottom + 0.09, diagram.drive, linespacing=1.25)
    axes.text(left + SUM - 0.1, bottom + BRANCH - 0.05, "$a_t = W\\, x_t + b$", ha="right", fontsize=13)
    nodes = {name: replace(node, x=left + node.x, y=bottom + node.y) for name, node in diagram.nodes.items()}
    for start, end in diagram.wires:
        _wire(axes, nodes[start], nodes[end], f"{diagram.title}-{start}-{end}")
    if "n" in nodes:
        # The wires of a and n go over those of n and v, which are interrupted there.
        for x, y in ((left + SUM, bottom + N), (left + SECOND, bottom + V)):
            axes.add_patch(Rectangle((x - 0.07, y - 0.05), 0.14, 0.1, color="0.965", linewidth=0, zorder=3))
    for name, node in nodes.items():
        _node(axes, node, f"{diagram.title}-{name}")
    for row, (equation, colour) in enumerate(diagram.equations):
        y = bottom - 0.23 - 0.29 * row
        axes.add_patch(Rectangle((left, y - 0.14), PANEL, 0.28, color=FILLS[colour], linewidth=0))
        axes.text(left + 0.1, y - 0.05, equation, fontsize=13)


def _wire(axes: "Axes", start: Node, end: Node, gid: str) -> None:
    """An arrow from edge to edge: level, upright, or up and then to the right, with a dot at the branch."""
    from matplotlib.patches import Circle, FancyArrowPatch
    from matplotlib.path import Path

    (across, up), (width, height) = start.half, end.half
    upright = start.y != end.y
    if not upright:
        sign = 1 if end.x > start.x else -1
        points = [(start.x + sign * across, start.y), (end.x - sign * width, end.y)]
    elif start.x == end.x:
        points = [(start.x, start.y + up), (end.x, end.y - height)]
    else:
        points = [(start.x, start.y + up), (start.x, end.y), (end.x - width, end.y)]
        axes.add_patch(Circle(points[1], 0.045, color=start.colour, zorder=4))
    axes.add_patch(
        FancyArrowPatch(
            path=Path(points),
            arrowstyle="-|>",
            mutation_scale=12,
            color=start.colour,
            linewidth=1.5 if start.colour == BLACK else 2.2,
            joinstyle="miter",
            capstyle="butt",
            zorder=4 if upright else 2,
            gid=gid,
        )
    )


def _node(axes: "Axes", node: Node, gid: str) -> None:
    from matplotlib.patches import Circle, FancyBboxPatch, Patch

    x, y = node.half
    style: Any = {"ec": node.colour, "fc": FILLS[node.colour], "lw": 1.5, "zorder": 5, "gid": gid}
    patch: Patch
    if node.kind == "circle":
        patch = Circle((node.x, node.y), x, **style)
    else:
        ends = f"round,pad=0,rounding_size={y if node.kind == 'state' else 0.03}"
        patch = FancyBboxPatch((node.x - x, node.y - y), 2 * x, 2 * y, ends, **style)
    axes.add_patch(patch)
    # What stands in a row of boxes shares its baseline; signs are in the middle of their circles.
    low, align = (0, "center") if node.kind == "circle" else (0.2 * node.height, "baseline")
    size = 13 if "$" in node.text else 12
    axes.text(node.x, node.y - low, node.text, ha="center", va=align, fontsize=size, zorder=6)


# Every symbol of the alphabet, and one of them twice.
SYMBOLS = (3, 1, 4, 1, 2)
TASK = Copying(length=20, symbols=5, alphabet=4)
# By the task's numbers: blank, symbols, marker.
TEXTS = ("–", "1", "2", "3", "4", ":")
CELLS = ("#f6f6f6", "#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442")


def example() -> tuple[list[int], list[int]]:
    """Input and target of figure 8 as the task makes them, L + 2K of its numbers each."""
    x, target = TASK.batch((), (), (torch.tensor([SYMBOLS], dtype=torch.uint8),))
    # The task's target is the symbols alone: at all steps before, its loss expects blanks.
    blanks = [0] * (len(x) - TASK.symbols)
    return x.argmax(-1).flatten().tolist(), blanks + target.flatten().tolist()


def copying() -> "Figure":
    """Figure 8, 10.9 x 2.9 inches: the copying task with the alphabet {1, 2, 3, 4}, K = 5 and L = 20."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyArrowPatch, Rectangle
    from matplotlib.path import Path

    left, side, above, below = 0.88, 0.328, 1.66, 0.6
    symbols, length, steps = TASK.symbols, TASK.length, TASK.length + 2 * TASK.symbols
    marker = symbols + length
    title = f"Copying $K = {symbols}$ symbols of $\\{{1, 2, 3, 4\\}}$ after $L = {length}$ blanks"
    words = f"the network must repeat each symbol $K + L = {marker}$ steps after it was shown"
    # The first step and the one after the last, the edge of these cells, above (1) or below (-1) it, words.
    brackets = (
        (0, symbols, above + side, 1, "$K$ symbols"),
        (symbols, marker, above + side, 1, "$L$ blanks"),
        (marker, marker + 1, above + side, 1, "marker"),
        (marker + 1, steps, above + side, 1, "$K - 1$ blanks"),
        (0, marker, below, -1, "$K + L$ blanks"),
        (marker, steps, below, -1, "the $K$ symbols"),
    )
    with matplotlib.rc_context(FONTS):
        figure = Figure(figsize=(10.9, 2.9), facecolor="white")
        axes = _inches(figure)
        axes.text(left, 2.62, f"{title}: {steps} steps, from left to right", fontsize=13)
        for name, low, numbers in zip(("input", "target"), (above, below), example(), strict=True):
            axes.text(left - 0.12, low + 0.11, name, ha="right", weight="bold")
            for t, number in enumerate(numbers):
                x = left + side * t
                axes.add_patch(Rectangle((x, low), side, side, fc=CELLS[number], ec="0.45", lw=0.8))
                axes.text(
                    x + side / 2,
                    low + 0.1,
                    TEXTS[number],
                    ha="center",
                    fontsize=13,
                    weight="bold" if number else "normal",
                    gid=f"{name}-{t}",
                )
        for first, last, y, sign, text in brackets:
            start, end = left + side * first + 0.04, left + side * last - 0.04
            near, far = y + 0.06 * sign, y + 0.13 * sign
            axes.plot([start, start, end, end], [near, far, far, near], color="black", lw=1.2)
            # The word "marker" is wider than its cell: what comes after it keeps to the right.
            place, align = (end, "right") if first == marker + 1 else ((start + end) / 2, "center")
            axes.text(place, y + (0.18 if sign > 0 else -0.31), text, ha=align)
        start, end, y = left + side / 2, left + side * (marker + 0.5), 1.22
        corners = Path([(start, above), (start, y), (end, y), (end, below + side)])
        axes.add_patch(
            FancyArrowPatch(path=corners, arrowstyle="-|>", mutation_scale=12, color="black", lw=1.5)
        )
        axes.text((start + end) / 2, y + 0.08, words, ha="center")
    return figure
