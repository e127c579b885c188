"""The command `momentumrnn demo`: the paper's LSTMs and a control on a small task, in a table and a plot."""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..experiments import Adding, Config, configure, train
from ..experiments.folders import Folder, RunError
from ..experiments.trainer import Interrupted
from ..init import Torch
from ..momentum import Adam, HeavyBall, Momentum, RMSProp, ScheduledRestart
from .display import display
from .words import recorded, refuse, seeds, several, spelt

TASK = Adding(length=25, samples=2500)
SETTINGS: dict[str, Any] = {"hidden_size": 64, "init": Torch(), "lr": 5e-3, "clip": 1.0, "batch_size": 50}
NEXT = "figure4/MomentumLSTM/Adding/128"
# The same for all that have them: none is tuned by itself.
MU, STEP, BETA = 0.6, 1.0, 0.9
GAIN = STEP / (1 - MU)


@dataclass(frozen=True)
class Network:
    """A row of the table and a line of the plot."""

    name: str
    momentum: Momentum | None
    colour: str
    marker: str


# Close to the paper's colours, from Okabe and Ito's, which the colour-blind can tell apart.
NETWORKS = (
    Network("LSTM", None, "#d55e00", "o"),
    Network("MomentumLSTM", HeavyBall(mu=MU, step=STEP), "#0072b2", "s"),
    Network("AdamLSTM", Adam(mu=MU, step=STEP, beta=BETA), "#009e73", "^"),
    Network("RMSPropLSTM", RMSProp(step=STEP, beta=BETA), "#e69f00", "v"),
    # Its default would not restart once in so few steps.
    Network("SRLSTM", ScheduledRestart(every=10, step=STEP), "#56b4e9", "D"),
    Network(f"LSTM gain {GAIN:g}", HeavyBall(mu=0.0, step=GAIN), "#777777", "P"),
)


@dataclass(frozen=True)
class Found:
    """What came out for a network: the validation loss, epoch by epoch, of each seed.

    A seed that is frozen has no more of them; one that is not finite is nan.
    """

    network: Network
    curves: list[list[float]]
    speed: float
    """Samples per second, of one seed beside the others."""

    def at(self, epoch: int) -> list[float]:
        """The losses after an epoch, 1 the first, of the seeds that have one."""
        values = [curve[epoch - 1] for curve in self.curves if len(curve) >= epoch]
        return [value for value in values if math.isfinite(value)]

    def below(self, bound: float) -> list[float]:
        """The first epoch after which each seed is below the bound; infinite if none is."""
        return [
            next((epoch for epoch, value in enumerate(curve, 1) if value < bound), math.inf)
            for curve in self.curves
        ]


def run(options: Any, args: Sequence[str]) -> int:
    """Carry out the command; returns its exit code."""
    try:
        chosen = seeds(options.seeds)
        if options.epochs < 1:
            raise ValueError(f"--epochs: expected at least 1, got {options.epochs}")
    except ValueError as error:
        return refuse(f"demo: {error}")
    console = Console(width=None if sys.stdout.isatty() else 110)
    say(console, f"{len(NETWORKS)} networks learn to add two marked numbers among {TASK.length}.")
    found, trained = [], False
    try:
        for i, network in enumerate(NETWORKS, 1):
            config = configure(TASK, momentum=network.momentum, epochs=options.epochs, **SETTINGS)
            with display(console, title(i, network)) as watcher:
                results = train(
                    config,
                    chosen,
                    root=options.root,
                    device="cpu",
                    watcher=watcher,
                    command=recorded(args),
                )
            trained |= watcher.trained
            curves = [curve(options.root, config, seed) for seed in chosen]
            speed = mean(result["samples_per_second"] or 0 for result in results)
            found.append(Found(network, curves, speed))
    except Interrupted as stopped:
        say(console, f"Stopped; all is saved. To go on: {spelt(args)}")
        return 128 + stopped.number
    except RunError as error:
        return refuse(f"demo: {error}", 1)
    if not trained:
        say(console, "All done already; nothing was trained.")
    report(console, found, options.epochs, chosen)
    try:
        files = plot(options.root, found, options.epochs, chosen)
        say(console, f"The plot: {' and '.join(map(str, files))}")
    except ImportError:
        say(console, "For the plot matplotlib should be installed: pip install 'momentumrnn[all]'")
    except OSError as error:
        return refuse(f"demo: the plot could not be written to {options.root}: {error.strerror or error}", 1)
    say(console, "Next, the paper's own length, or any other of its rows:")
    say(console, f"  {spelt(['run', '--recipe', NEXT, '--seeds', '0-2'])}")
    say(console, f"  {spelt(['recipes'])}")
    return 0


def curve(root: Path, config: Config, seed: int) -> list[float]:
    """The validation loss after each epoch, as metrics.jsonl has it; of a longer run the beginning."""
    lines = (Folder(root, config, seed).path / "metrics.jsonl").read_text().splitlines()
    epochs = [line for line in map(json.loads, lines) if "epoch" in line]
    values = [line["validation_loss"] for line in epochs[: config.epochs]]
    return [math.nan if value is None else value for value in values]


def report(console: Console, found: Sequence[Found], epochs: int, chosen: Sequence[int]) -> None:
    """The table, and what to make of it."""
    n, half, bound = steps(), half_way(epochs), TASK.baseline / 2
    table = Table("network", box=box.SIMPLE_HEAD)
    for heading in (
        f"validation loss\nafter {half * n} steps",
        f"validation loss\nafter {epochs * n} steps",
        f"steps to\nbelow {bound:.4f}*",
        "samples/s\nof a seed",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in found:
        frozen = sum(len(curve) < epochs for curve in each.curves)
        table.add_row(
            each.network.name + (f" ({frozen} frozen)" if frozen else ""),
            spread(each.at(half)),
            spread(each.at(epochs)),
            between([epoch * n for epoch in each.below(bound)]),
            f"{each.speed:.0f}",
        )
    console.print()
    console.print(table)
    kind = "mean ± sd over seeds" if len(chosen) > 1 else "seed"
    say(console, f"{kind} {several(chosen)}; always answering 1: {TASK.baseline:.4f}; * half of that")
    console.print()
    for line in lessons(found, bound):
        say(console, line, wrap=True)
    console.print()


def lessons(found: Sequence[Found], bound: float) -> list[str]:
    """What one sees, in the order in which one sees it, and what that does and doesn't say."""
    when = {each.network.name: median(each.below(bound)) for each in found}
    learnt = {epoch: [name for name in when if when[name] == epoch] for epoch in sorted(when.values())}
    others = learnt.pop(math.inf, [])
    order = []
    if learnt:
        names = ", then ".join(map(" and ".join, learnt.values()))
        order.append(f"Most seeds came below {bound:.4f} in this order: {names}.")
    if others:
        order.append(f"At least half of the seeds stayed above {bound:.4f}: {', '.join(others)}.")
    return [
        " ".join(order),
        f"{NETWORKS[-1].name} is a control: no momentum, but the gain step / (1 - mu) that MomentumLSTM "
        "gives a constant input. What it has over LSTM is due to a larger step alone.",
        f"All have the same rate and, where they have one, mu = {MU:g}, step = {STEP:g} and beta = {BETA:g}. "
        "On another task, at another rate or with other values the order may be another.",
    ]


def plot(root: Path, found: Sequence[Found], epochs: int, chosen: Sequence[int]) -> list[Path]:
    """Draw the losses, one line for each network; returns the files."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # The same numbers make the same file.
    with matplotlib.rc_context({"svg.hashsalt": "momentumrnn", "font.size": 11}):
        figure = Figure(figsize=(9, 5), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        known = [each for each in found if any(each.at(epoch) for epoch in range(1, epochs + 1))]
        # The legend has them in the order of their ends, from above.
        for each in sorted(known, key=last, reverse=True):
            drawn = [epoch for epoch in range(1, epochs + 1) if each.at(epoch)]
            x, values = [epoch * steps() for epoch in drawn], [each.at(epoch) for epoch in drawn]
            name, colour, marker = each.network.name, each.network.colour, each.network.marker
            axes.fill_between(
                x, list(map(min, values)), list(map(max, values)), color=colour, alpha=0.15, lw=0
            )
            axes.plot(x, list(map(mean, values)), label=name, color=colour, marker=marker, ms=5, lw=1.8)
        axes.axhline(TASK.baseline, color="black", linestyle="--", linewidth=1)
        right = epochs * steps() * 1.02
        axes.annotate(
            "always answering 1", (right, TASK.baseline), (0, 3), textcoords="offset points", ha="right"
        )
        axes.set_xlim(0, right)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
        low, high = axes.get_ylim()
        # Room for two numbers on the axis, and for the words.
        axes.set_ylim(min(low, TASK.baseline / 20), max(high, TASK.baseline * 2))
        axes.set_xlabel(f"training steps of {SETTINGS['batch_size']} samples")
        axes.set_ylabel("validation loss")
        what = f"mean and range of seeds {several(chosen)}" if len(chosen) > 1 else f"seed {chosen[0]}"
        axes.set_title(f"Adding two marked numbers among {TASK.length}, {what}", loc="left", fontsize=12)
        axes.grid(axis="y", color="0.9")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside right center", frameon=False)
        files = [root / "demo.svg", root / "demo.png"]
        figure.savefig(files[0], metadata={"Date": None})
        figure.savefig(files[1], dpi=150)
    return files


def last(found: Found) -> float:
    """The mean loss where its line ends."""
    ends = [values for epoch in range(len(max(found.curves, key=len))) if (values := found.at(epoch + 1))]
    return mean(ends[-1])


def title(i: int, network: Network) -> str:
    """What is trained, and how many are left."""
    momentum = "" if network.momentum is None else f", {network.momentum!r}"
    return f"{i}/{len(NETWORKS)} {network.name}{momentum}"


def steps() -> int:
    """Those of an epoch."""
    return -(-TASK.samples // int(SETTINGS["batch_size"]))


def half_way(epochs: int) -> int:
    """The epoch in the middle."""
    return max(1, epochs // 2)


def spread(values: Sequence[float]) -> str:
    """Mean ± sample standard deviation."""
    if len(values) < 2:
        return f"{values[0]:.4f}" if values else "-"
    return f"{mean(values):.4f} ± {stdev(values):.4f}"


def between(values: Sequence[float]) -> str:
    """The least and the most; what is infinite never was.

    >>> between([150, 100, math.inf]), between([100, 100])
    ('100 to never', '100')
    """
    ends = [f"{v:.0f}" if v < math.inf else "never" for v in (min(values), max(values))]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def say(console: Console, text: str, wrap: bool = False) -> None:
    """Print a line as it is; what is to be copied is not broken."""
    console.print(escape(text), highlight=False, soft_wrap=not wrap)
