"""The figures of docs/kernels.md that repeat results/bench/h200-lstm.json."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/kernels.md").read_text()
CASES = {
    case["shape"]: case
    for case in json.loads((ROOT / "results/bench/h200-lstm.json").read_text())["cases"]
    if case["momentum"].startswith("None")
}
CONTENDERS = {
    "ours": "ours",
    "cuDNN, TF32": "torch",
    "cuDNN, bfloat16": "torch-bf16",
    "cuDNN, float16": "torch-fp16",
    "cuDNN, float16, padded": "torch-padded",
}


def table(head):
    """The cells of the table that begins so, row by row."""
    text = PAGE[PAGE.index(head) :].partition("\n\n")[0]
    return [row.strip("| ").split(" | ") for row in text.split("\n")[2:]]


def shown(figure):
    return f"{figure:.3g}" if figure >= 10 else f"{figure:.2f}"


def test_the_summary_has_the_measured_times():
    rows = table("| forward + backward, ms | ours |")
    assert len(rows) == len(CASES) == 5
    for name, *times in rows:
        measured = {key: row["training_graph_ms"] for key, row in CASES[name.split()[0]]["rows"].items()}
        other_modes = min(measured[key] for key in ("torch-bf16", "torch-fp16", "torch-padded"))
        assert times == [shown(measured["ours"]), shown(measured["torch"]), shown(other_modes)]


def test_whole_passes_have_the_measured_figures():
    rows = table("| | forward, ms | forward + backward | MB a sample |")
    assert len(rows) == len(CASES) * len(CONTENDERS)
    case = None
    for name, *figures in rows:
        if shape := re.match(r"\*\*(\S+)\*\* \(.*\): (ours)$", name):
            case, name = CASES[shape[1]], shape[2]
        row, errors = case["rows"][CONTENDERS[name]], case["parity"][CONTENDERS[name]]
        assert figures == [
            shown(row["forward_graph_ms"]),
            shown(row["training_graph_ms"]),
            shown(row["peak_mb_per_sample"]),
            f"{errors['outputs_norm']:.0e}",
            f"{errors['gradients_norm']:.0e}",
        ]
