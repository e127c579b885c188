"""Draws docs/speed.svg: a training step of our LSTM beside cuDNN's, from a file of `momentumrnn bench`.

    python benchmarks/picture.py [FILE.json] [--out docs/speed.svg]

The file should be of a GPU, with LSTM layers in the mode tf32 and the rival torch; torch-fp16, torch-bf16 and
torch-padded are drawn as one bar, that of the fastest. The same file gives the same picture.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "results/bench/h200-lstm.json"
PICTURE = ROOT / "docs/speed.svg"
# The bars of a shape from above, with their colours; they differ in lightness too.
COLOURS = {"ours": "#d9480f", "best": "#66717f", "tf32": "#b9c0c9"}
RIVALS = {"torch": "TF32", "torch-fp16": "fp16", "torch-bf16": "bf16", "torch-padded": "padded fp16"}
FIELD = "training_graph_ms"


@dataclass(frozen=True)
class Group:
    """The bars of one shape, in ms; fastest: which of cuDNN's ways is the best."""

    name: str
    sizes: str
    momentum: str
    ours: float
    best: float
    tf32: float
    fastest: str


def groups(result: dict[str, Any]) -> list[Group]:
    """One for each shape that has what it needs: ours with HeavyBall if that was measured, else without."""
    if result["settings"]["dtype"] != "float32" or result["settings"].get("lengths", "full") != "full":
        return []
    cases = {
        (case["shape"], case["momentum"].split("(")[0]): case
        for case in result["cases"]
        if case["cell"] == "lstm" and case.get("mode", "tf32") == "tf32" and case["status"] == "ok"
    }
    found = []
    for shape in dict.fromkeys(shape for shape, _ in cases):
        plain, momentum = cases.get((shape, "None")), cases.get((shape, "HeavyBall"))
        mine, theirs = momentum or plain, plain or momentum  # cuDNN has no momentum: as the README has it
        if mine is None or theirs is None:
            continue
        ours = mine["rows"]["ours"].get(FIELD)
        rivals = {
            name: ms for name, row in theirs["rows"].items() if name in RIVALS and (ms := row.get(FIELD))
        }
        if ours and "torch" in rivals:
            best = min(rivals, key=rivals.__getitem__)
            sizes = "T {T}, B {B}, H {H}".format(**mine["sizes"])
            bars = ours, rivals[best], rivals["torch"]
            found.append(Group(shape, sizes, mine["momentum"].split("(")[0], *bars, RIVALS[best]))
    return sorted(found, key=lambda group: group.ours / group.tf32)


def shown(ms: float) -> str:
    """As the README has it."""
    return f"{ms:#.3g}".rstrip(".") if ms >= 10 else f"{ms:.2f}"


def labels(group: Group) -> dict[str, str]:
    """What stands at the end of each bar."""
    times = f"{group.best / group.ours:.1f} to {group.tf32 / group.ours:.1f} times as fast"
    return {
        "ours": f"{shown(group.ours)} ms: {times}",
        "best": f"{shown(group.best)} ms, {group.fastest}",
        "tf32": f"{shown(group.tf32)} ms",
    }


def draw(result: dict[str, Any], source: str, out: Path) -> None:
    """Write the picture; source: the name of the file that the result is from."""
    import matplotlib
    from matplotlib.figure import Figure

    each = groups(result)
    cudnn = ".".join(map(str, divmod(int(result["versions"]["cudnn"]) // 100, 100)))
    momentum = " and ".join(sorted({group.momentum for group in each}))
    names = {
        "ours": "ours" if momentum == "None" else f"ours, with momentum ({momentum})",
        "best": "cuDNN at its best: fp16, bf16 or padded",
        "tf32": "cuDNN, TF32",
    }
    notes = (
        "Forward and backward, replayed from a CUDA graph; cuDNN is torch.nn.LSTM, without momentum.",
        f"At each shape cuDNN in TF32 is 1. {result['device']}, torch {result['versions']['torch']}, "
        f"cuDNN {cudnn}; {source}.",
    )
    with matplotlib.rc_context({"svg.hashsalt": "momentumrnn", "font.size": 11}):
        # 800 pixels wide.
        figure = Figure(figsize=(8 + 1 / 3, 1.65 + 0.95 * len(each)), facecolor="white")
        high = figure.get_figheight()
        axes = figure.add_axes((0.2, 0.62 / high, 0.785, 1 - 1.4 / high))
        for row, group in enumerate(each):
            for place, (name, text) in enumerate(labels(group).items()):
                y, width = row + 0.27 * (place - 1), getattr(group, name) / group.tf32
                (bar,) = axes.barh(
                    y, width, 0.25, color=COLOURS[name], label=names[name] if row == 0 else None
                )
                bar.set_gid(f"{group.name}-{name}")
                inside, weight = width > 0.8, "bold" if name == "ours" else "normal"
                axes.annotate(
                    text,
                    (width, y),
                    (-5 if inside else 5, 0),
                    textcoords="offset points",
                    ha="right" if inside else "left",
                    va="center_baseline",
                    weight=weight,
                    color="white" if inside and name == "best" else "black",
                )
            axes.text(-0.015, row - 0.12, group.name, ha="right", va="center_baseline", weight="bold")
            axes.text(
                -0.015, row + 0.16, group.sizes, ha="right", va="center_baseline", fontsize=9.5, color="0.3"
            )
        axes.set_xlim(0, 1)
        axes.set_ylim(len(each) - 0.5, -0.5)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        figure.legend(
            loc="upper center",
            bbox_to_anchor=(0.5, 1 - 0.36 / high),
            ncols=3,
            frameon=False,
            handlelength=1,
            columnspacing=1.6,
            handletextpad=0.5,
            borderaxespad=0.2,
            fontsize=10.5,
        )
        for line, note in enumerate(notes):
            figure.text(0.5, (0.36 - 0.2 * line) / high, note, ha="center", fontsize=9.5, color="0.3")
        title = "Time of a training step of one LSTM layer"
        figure.text(0.5, 1 - 0.3 / high, title, ha="center", fontsize=13, weight="bold")
        figure.savefig(out, format="svg", metadata={"Date": None, "Title": title})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path, nargs="?", default=SOURCE, help="of momentumrnn bench on a GPU")
    parser.add_argument("--out", type=Path, default=PICTURE, help="the picture, an SVG")
    options = parser.parse_args()
    result = json.loads(options.file.read_text())
    if not groups(result):
        expected = (
            "LSTM cases in float32, the mode tf32, of full lengths, with the rival torch, in CUDA graphs"
        )
        print(f"file: expected {expected}, got none in {str(options.file)!r}", file=sys.stderr)
        return 2
    draw(result, options.file.name, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
