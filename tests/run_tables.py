"""Tables of Markdown pages, read as rows, and the runs in results/runs that they are made from."""

import importlib.util
import json
import statistics
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

from momentumrnn.experiments.cost import MODELS as COSTED
from momentumrnn.experiments.paper.recipes import recipe
from momentumrnn.experiments.paper.tables import exhibit
from momentumrnn.experiments.runs.gather import gather, outcome

ROOT = Path(__file__).parent.parent
SEEDS = [0, 1, 2, 3, 4]


def script(name):
    """A script of the folder benchmarks, as a module."""
    if name not in sys.modules:
        folder = str(ROOT / "benchmarks")  # from which a script imports, as when it is run
        if folder not in sys.path:
            sys.path.append(folder)
        spec = importlib.util.spec_from_file_location(name, ROOT / f"benchmarks/{name}.py")
        sys.modules[name] = importlib.util.module_from_spec(spec)  # where dataclass looks
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@cache
def runs():
    return gather([ROOT / "results/runs"])


def signed(interval, digits=2):
    """A difference and its interval as text; no -0.00."""
    value, low, high = (round(x, digits) + 0.0 for x in (interval.value, interval.low, interval.high))
    return f"{value:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"


def outcomes():
    """Of a recipe's five seeds in results/runs, by the report's own reading."""

    def of(name, epochs=150, **changes):
        config = replace(recipe(name).config, **changes)
        result = outcome(runs().of(config), epochs)
        assert sorted([*result.seeds, *result.frozen]) == [0, 1, 2, 3, 4]
        return result, runs().of(config)

    return of


def spread(values):
    if not values:
        return "-"
    text = f"{statistics.mean(values.values()):.2f} ± {statistics.stdev(values.values()):.2f}"
    return text if len(values) == 5 else f"{text} ({len(values)} seeds)"


def cells(text, head):
    """The rows of the table that begins so, as lists of cells."""
    table = text[text.index(head) :].partition("\n\n")[0]
    return [row.strip("| ").split(" | ") for row in table.strip().split("\n")[2:]]


def assert_costs_are_those_measured(file, head, part):
    """In results/runs/cost-nvidia-h200.json."""
    measured = json.loads((ROOT / "results/runs/cost-nvidia-h200.json").read_text())["rows"]
    rows = cells((ROOT / file).read_text(), head)
    assert [row[0] for row in rows] == list(COSTED)
    key = {"training": "train", "evaluation": "eval"}[part]
    for model, *shown in rows:
        expected = [
            f"{measured[name][f'{key}_{unit}']:.3g}" if (name := f"{kind}/{model}") in measured else "-"
            for unit in ("ms", "mb")
            for kind in ("ours", "torch.nn", "listing")
        ]
        assert shown[:3] + shown[4:7] == expected
        printed = [
            next(
                line.published[0].value
                for line in exhibit(table).lines
                if (line.model, line.column) == (model, part)
            )
            for table in ("table14", "table15")
        ]
        assert [shown[3], shown[7]] == [f"{value:g}" for value in printed]
