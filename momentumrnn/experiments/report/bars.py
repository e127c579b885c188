"""What the report shows as bars: speed from files of `momentumrnn bench`, cost from those of table 14."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..exhibits import Exhibit
from .gather import plain

COLOURS = {"ours": "#0072b2", "torch.nn": "#d55e00", "the paper's listing": "#e69f00", "paper": "#777777"}


@dataclass(frozen=True)
class Bars:
    """Groups of bars with a label each, on a logarithmic axis; None: not measured."""

    name: str
    title: str
    unit: str
    labels: tuple[str, ...]
    groups: Mapping[str, tuple[float | None, ...]]
    note: str = ""

    @property
    def alt(self) -> str:
        """In words, for whoever can't see it."""
        parts = []
        for i, label in enumerate(self.labels):
            values = [f"{name} {group[i]:.3g}" for name, group in self.groups.items() if group[i] is not None]
            parts.append(f"{label}: {', '.join(values)}")
        return f"{self.title}, {self.unit}. {'; '.join(parts)}."


def speed(files: Sequence[Path]) -> list[Bars]:
    """A training step of ours and, if timed in the same run, of torch's layer; of a case the newest."""
    newest: dict[tuple[str, str], _Case] = {}
    for path in sorted(files):
        try:
            found = json.loads(path.read_bytes())
            if found["settings"]["repeats"] < 2:
                continue  # made for its memory, not for its times
            for case in map(dict, found["cases"]):
                if (row := _case(case, str(found["date"]), path.name)) is not None:
                    key = plain(str(found["device"])), row.label
                    newest[key] = max(newest.get(key, row), row, key=lambda each: each.date)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue  # no file of the benchmark
    bars = []
    for i, device in enumerate(sorted({device for device, _ in newest}), 1):
        rows = [newest[key] for key in sorted(newest) if key[0] == device]
        groups = {"ours": tuple(row.ours for row in rows), "torch.nn": tuple(row.torch for row in rows)}
        names = ", ".join(sorted({row.file for row in rows}))
        title = f"A training step of one layer on {device}"
        labels = tuple(row.label for row in rows)
        bars.append(Bars(f"speed-{i}", title, "milliseconds", labels, groups, f"From {names}."))
    return bars


@dataclass(frozen=True)
class _Case:
    label: str
    ours: float
    torch: float | None
    date: str
    file: str


def _case(case: Mapping[str, Any], date: str, file: str) -> _Case | None:
    """A case in TF32 or on a CPU, its sequences all of one length; None if it is another."""
    whole = case.get("steps", 0) in (0, case["sizes"]["T"] * case["sizes"]["B"])
    rows = case.get("rows", {})
    if case["status"] != "ok" or case.get("mode", "tf32") != "tf32" or not whole or "ours" not in rows:
        return None
    # On a GPU replayed from a CUDA graph, so that the GPU alone is timed.
    key = "training_graph_ms" if rows["ours"].get("training_graph_ms") else "training_ms"
    momentum = case["momentum"].partition("(")[0].replace("None", "plain")
    eager = " (called one by one)" if "training_graph_ms" in rows["ours"] and "graph" not in key else ""
    label = plain(f"{case['shape']} {case['cell']}, {momentum}{eager}")
    times = [rows.get(name, {}).get(key) for name in ("ours", "torch")]
    if not all(time is None or 0 < time < math.inf for time in times) or times[0] is None:
        return None
    return _Case(label, times[0], times[1], date, file)


def cost(exhibit: Exhibit, found: Mapping[str, Any]) -> Bars:
    """Table 14 or 15 as bars: training alone."""
    key = {"table14": "train_ms", "table15": "train_mb"}[exhibit.name]
    lines = [line for line in exhibit.lines if line.column == "training"]
    kinds = {"the paper's listing": "listing", "torch.nn": "torch.nn", "ours": "ours"}
    groups: dict[str, tuple[float | None, ...]] = {"paper": tuple(line.published[0].value for line in lines)}
    for name, kind in kinds.items():
        groups[name] = tuple(found["rows"].get(f"{kind}/{line.model}", {}).get(key) for line in lines)
    title = f"{exhibit.title}, training on {found['device']}"
    return Bars(exhibit.name, title, exhibit.metric, tuple(line.model for line in lines), groups)
