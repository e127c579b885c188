"""The notebook: its cells run in order, and the copy in the repository shows what they gave."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parent.parent / "examples/notebook.ipynb"
CELLS = json.loads(NOTEBOOK.read_text())["cells"]


def test_its_cells_run(tmp_path):
    pytest.importorskip("matplotlib", reason="plots need the extra momentumrnn[all]")
    code = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]
    (tmp_path / "cells.py").write_text("\n".join(code))
    done = subprocess.run(
        [sys.executable, "-W", "ignore:FigureCanvasAgg:UserWarning", "cells.py"],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("error ") == 3
    assert "largest difference:" in done.stdout


def test_its_stored_run_shows_what_it_says():
    """A plot, and the control ahead of the layer without momentum, which is ahead of that with it."""
    outputs = [output for cell in CELLS for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    text = "".join("".join(output.get("text", ())) for output in outputs)
    steps = {}
    for line in text.splitlines():
        name, found, words = line.rpartition(": error halved after ")
        if found:
            steps[name] = int(words.split()[0])
    control, torch, momentum = "control: LSTM, input x 2.5", "torch.nn.LSTM", "LSTM with momentum"
    assert steps[control] < steps[torch] < steps[momentum]
    assert "the control learns first, and the layer with momentum last" in " ".join(
        " ".join("".join(cell["source"]).split()) for cell in CELLS if cell["cell_type"] == "markdown"
    )
