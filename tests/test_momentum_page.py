"""docs/momentum.md: its tables have the paper's settings and the figures of the paper's grid."""

from pathlib import Path

import pytest
from run_tables import cells

import momentumrnn as mr
from momentumrnn.experiments.paper.hyperparameters import settings
from momentumrnn.experiments.paper.printed import GRID_MU, GRID_STEP, GRIDS

PAGE = (Path(__file__).parent.parent / "docs/momentum.md").read_text()
MODELS = {"table7": "MomentumLSTM", "table8": "AdamLSTM", "table9": "RMSPropLSTM", "table10": "SRLSTM"}
TASKS = {
    "MNIST, n = 256": ("MNIST",),
    "permuted MNIST, n = 128": ("PMNIST",),
    "permuted MNIST, n = 256": ("PMNIST",),
    "copying, 1000": ("Copying L=1K",),
    "copying, 2000, and adding": ("Copying L=2K", "Adding"),
    "speech (TIMIT)": ("TIMIT",),
}


def number(value, size):
    return f"{value[size] if isinstance(value, dict) else value:g}"


def test_the_settings_are_the_papers():
    rows = cells(PAGE, "| task | MomentumLSTM")
    assert [row[0] for row in rows] == list(TASKS)
    for task, *shown in rows:
        size = "128" if task.endswith("128") else "256"
        for table, cell in zip(MODELS, shown, strict=True):
            of = [row for row in settings(table)[MODELS[table]] if row["dataset"] in TASKS[task]]
            assert len(of) == len(TASKS[task])
            for row in of:
                parts = {
                    "every": row.get("F"),
                    "mu": row.get("mu"),
                    "step": row["s"],
                    "beta": row.get("beta"),
                }
                if table == "table9":
                    assert parts.pop("mu") == 0
                known = {name: value for name, value in parts.items() if value is not None}
                assert cell == ", ".join(f"{name} {number(value, size)}" for name, value in known.items())


@pytest.mark.parametrize(
    ("row", "title", "highest"), list(zip(range(3), GRIDS, (True, False, False), strict=True))
)
def test_the_grid_is_the_papers(row, title, highest):
    """The gains of the best three pairs, the best pair, and the best without momentum."""
    pairs = [
        (value, mu, step)
        for mu, values in zip(GRID_MU, GRIDS[title], strict=True)
        for step, value in zip(GRID_STEP, values, strict=True)
    ]
    # Of equal values the first in the grid.
    pairs.sort(key=lambda pair: -pair[0] if highest else pair[0])
    gains = sorted(step / (1 - mu) for _, mu, step in pairs[:3])
    value, mu, step = pairs[0]
    without = next(pair for pair in pairs if pair[1] == 0)
    _, *shown = cells(PAGE, "| task | gain of the best three")[row]
    assert shown[0] == f"{gains[0]:.2g} to {gains[-1]:.2g}"
    assert shown[1] == f"mu {mu:g}, step {step:g}: {value:g}"
    assert shown[2] == f"step {without[2]:g}: {without[0]:g}"


def test_what_it_starts_with_can_be_made():
    for _, _, start, _ in cells(PAGE, "| momentum | what it does"):
        if start != "-":
            kind, _, arguments = start.strip("`").partition("(")
            assert kind.partition(".")[0] in dir(mr)
            made = eval(f"mr.{kind}({arguments}", {"mr": mr})
            assert isinstance(made, mr.Momentum)
