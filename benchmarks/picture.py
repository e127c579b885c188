"""Draws docs/overview.svg, the picture of the README: what a training step takes, and what was found.

    python benchmarks/picture.py [FILE.json] [--runs results/runs] [--out docs/overview.svg]

Left: LSTM layers from a file of `momentumrnn bench` on a GPU, with the rival torch. Ours is shown as a
percentage of torch.nn.LSTM called in the same way, once from Python and once from a CUDA graph.
Right: test accuracies on permuted MNIST, from run folders. The same files give the same picture.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from momentumrnn.experiments.paper.recipes import recipe
from momentumrnn.experiments.runs.gather import gather

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "results/bench/h200-called.json"
PICTURE = ROOT / "docs/overview.svg"
RIVALS = ("torch", "torch-fp16", "torch-bf16", "torch-padded")
WAYS = {"graph": "training_graph_ms", "eager": "training_ms"}
NAMES = {"graph": "ours, in a CUDA graph", "eager": "ours, called from Python"}
# Okabe and Ito's colours, which the colour-blind can tell apart; they differ in lightness too.
COLOURS = {"graph": "#0072b2", "eager": "#e69f00"}
SIZES = {128: ("o", "#56b4e9"), 256: ("D", "#0072b2")}
NETWORKS = {
    "LSTM": "LSTM",
    "MomentumLSTM": "MomentumLSTM",
    "RMSPropLSTM": "RMSPropLSTM",
    "SRLSTM": "SRLSTM",
    "MomentumLSTM/same-forget-bias": "LSTM, forget bias 3.5",
}
"""The rows on the right: a network, a variant of it if need be, and how it is called."""


@dataclass(frozen=True)
class Bar:
    """One way to call one layer, milliseconds: ours, torch.nn.LSTM, and the fastest of cuDNN's ways."""

    ours: float
    torch: float
    best: float


def speeds(result: Mapping[str, Any]) -> dict[str, dict[str, Bar]]:
    """Of each shape, by its sizes: a bar for each way of calling. The largest gain in a graph comes first."""
    if result["settings"]["dtype"] != "float32" or result["settings"].get("lengths", "full") != "full":
        return {}
    cases = {
        (case["shape"], case["momentum"].split("(")[0]): case
        for case in result["cases"]
        if case["cell"] == "lstm" and case.get("mode", "tf32") == "tf32" and case["status"] == "ok"
    }
    bars_of_shapes = {}
    for shape in dict.fromkeys(shape for shape, _ in cases):
        plain, momentum = cases.get((shape, "None")), cases.get((shape, "HeavyBall"))
        our_case, torch_case = momentum or plain, plain or momentum  # cuDNN has no momentum
        if our_case is None or torch_case is None:
            continue
        bars = {}
        for way, field in WAYS.items():
            times = {name: row.get(field) for name, row in torch_case["rows"].items() if name in RIVALS}
            rivals = {name: ms for name, ms in times.items() if ms}
            ours = our_case["rows"]["ours"].get(field)
            if ours and "torch" in rivals:
                bars[way] = Bar(ours, rivals["torch"], min(rivals.values()))
        if bars.keys() == WAYS.keys():
            bars_of_shapes["T {T}, B {B}, D {D}, H {H}".format(**our_case["sizes"])] = bars
    return dict(
        sorted(bars_of_shapes.items(), key=lambda item: item[1]["graph"].ours / item[1]["graph"].torch)
    )


def accuracies(runs: Path) -> dict[str, dict[int, tuple[float, ...]]]:
    """Test accuracies of five seeds at the epoch that validation selects, by network and hidden size."""
    gathered = gather([runs])
    by_network: dict[str, dict[int, tuple[float, ...]]] = {}
    for key, name in NETWORKS.items():
        model, _, variant = key.partition("/")
        for size, table in ((128, "table11"), (256, "table1")):
            row = recipe("/".join(filter(None, (table, model, "PMNIST", str(size), variant))))
            values = gathered.outcome(row.config).valid
            by_network.setdefault(name, {})[size] = tuple(values[seed] for seed in sorted(values))
    return by_network


def milliseconds(ms: float) -> str:
    """Milliseconds as docs/speed.md has them."""
    return f"{ms:#.3g}".rstrip(".") if ms >= 10 else f"{ms:.2f}"


def draw_speed(axes: Any, shapes: Mapping[str, Mapping[str, Bar]]) -> None:
    """Bars from zero; 100 % is torch.nn.LSTM, a tick the fastest of cuDNN's ways."""
    for row, bars in enumerate(shapes.values()):
        for place, (way, bar) in enumerate(bars.items()):
            y, width = row + 0.34 * (place - 0.5), 100 * bar.ours / bar.torch
            (drawn,) = axes.barh(y, width, 0.31, color=COLOURS[way], label=NAMES[way] if row == 0 else None)
            drawn.set_gid(f"bar-{row}-{way}")
            label = "cuDNN at its fastest: fp16, padded" if row == place == 0 else None
            best = 100 * bar.best / bar.torch
            axes.plot(best, y, "|", color="black", ms=16, mew=2, label=label, gid=f"best-{row}-{way}")
            text = f"{milliseconds(bar.ours)} of {milliseconds(bar.torch)} ms"
            axes.text(max(103, width + 2), y, text, va="center_baseline", fontsize=9.5)
    axes.axvline(100, color="0.35", ls="--", lw=1)
    axes.set_yticks(range(len(shapes)), [sizes.replace(", D", "\nD") for sizes in shapes], fontsize=9.5)
    widest = max(100 * bar.ours / bar.torch for bars in shapes.values() for bar in bars.values())
    axes.set_xlim(0, max(102, widest) + 38)
    axes.set_xticks([0, 50, 100, 150, 200], ["0", "50", "100 %", "150", "200"])
    axes.set_xlabel("time of a training step; 100 % is torch.nn.LSTM (cuDNN)")
    axes.set_title("Speed: an LSTM layer with momentum", loc="left", weight="bold", fontsize=11.5)


def draw_accuracies(axes: Any, networks: Mapping[str, Mapping[int, tuple[float, ...]]]) -> None:
    """A dot for each seed, and a line at their mean."""
    for row, sizes in enumerate(networks.values()):
        for place, (size, values) in enumerate(sizes.items()):
            mark, colour = SIZES[size]
            y, mean = row + 0.3 * (place - 0.5), sum(values) / len(values)
            label = f"n = {size}, five seeds" if row == 0 else None
            axes.plot(values, [y] * len(values), mark, color=colour, ms=5, alpha=0.8, label=label)
            axes.plot([mean, mean], [y - 0.14, y + 0.14], color="black", lw=1.5, gid=f"mean-{row}-{size}")
    axes.set_yticks(range(len(networks)), list(networks), fontsize=9.5)
    axes.get_yticklabels()[-1].set_weight("bold")
    axes.set_xlabel("test accuracy, %, by validation")
    axes.set_title("Finding: permuted MNIST", loc="left", weight="bold", fontsize=11.5)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)


def draw(result: Mapping[str, Any], runs: Path, source: str, out: Path) -> None:
    """Write the picture; source: the name of the file that the result is from."""
    import matplotlib
    from matplotlib.figure import Figure

    shapes = speeds(result)
    origin = f"{result['device']}, torch {result['versions']['torch']}, {source}"
    note = f"Left: {origin}. Right: results/{runs.name}."
    with matplotlib.rc_context({"svg.hashsalt": "momentumrnn", "font.size": 10}):
        figure = Figure(figsize=(11.5, 1.3 + 0.46 * max(len(shapes), len(NETWORKS))), facecolor="white")
        figure.set_layout_engine("constrained", rect=(0, 0.04, 1, 0.96), wspace=0.06)
        left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
        draw_speed(left, shapes)
        draw_accuracies(right, accuracies(runs))
        for axes in (left, right):
            axes.invert_yaxis()
            axes.tick_params(axis="y", length=0)
            axes.spines[["top", "right", "left"]].set_visible(False)
            axes.legend(
                loc="upper center", bbox_to_anchor=(0.4, -0.19), ncols=3, frameon=False, fontsize=9.5,
                handlelength=1.2, columnspacing=1.2,
            )  # fmt: skip
        figure.text(0.995, 0.008, note, ha="right", fontsize=8.5, color="0.35")
        figure.savefig(out, format="svg", metadata={"Date": None, "Title": "Speed, and what was found"})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path, nargs="?", default=SOURCE, help="of momentumrnn bench on a GPU")
    parser.add_argument("--runs", type=Path, default=ROOT / "results/runs", help="a folder of run folders")
    parser.add_argument("--out", type=Path, default=PICTURE, help="the picture, an SVG")
    options = parser.parse_args()
    result = json.loads(options.file.read_text())
    if not speeds(result):
        expected = "LSTM cases in float32, the mode tf32, of full lengths, with the rival torch, on a GPU"
        print(f"file: expected {expected}, got none in {str(options.file)!r}", file=sys.stderr)
        return 2
    draw(result, options.runs, options.file.name, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
