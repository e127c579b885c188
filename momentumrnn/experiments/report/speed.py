"""The user's own measurements of speed, from files of `momentumrnn bench --json`."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .bars import Bars
from .gather import plain
from .tables import Row, Table, rounded


@dataclass(frozen=True)
class Timing:
    """A training step of one layer, in milliseconds; torch: that of torch.nn's layer in the same run."""

    device: str
    label: str
    ours: float
    torch: float | None
    date: str
    file: str


def timings(files: Sequence[Path]) -> list[Timing]:
    """The training steps in these files, by device and layer. The newest counts where there are several."""
    newest: dict[tuple[str, str], Timing] = {}
    for path in sorted(files):
        try:
            found = json.loads(path.read_bytes())
            if found["settings"]["repeats"] < 2:
                continue  # made for its memory, not for its times
            device, date = plain(str(found["device"])), str(found["date"])
            for case in map(dict, found["cases"]):
                if (timing := _timing(case, device, date, path.name)) is not None:
                    key = device, timing.label
                    newest[key] = max(newest.get(key, timing), timing, key=lambda each: each.date)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue  # no file of the benchmark
    return [newest[key] for key in sorted(newest)]


def _timing(case: Mapping[str, Any], device: str, date: str, file: str) -> Timing | None:
    """A case in TF32 or on a CPU, its sequences all of one length. None if it is another."""
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
    return Timing(device, label, times[0], times[1], date, file)


def tables(found: Sequence[Timing]) -> list[Table]:
    """All timings, a table for each device."""
    columns = ("layer", "ours, ms", "torch.nn, ms", "torch.nn / ours")
    made = []
    for i, (device, each) in enumerate(_by_device(found).items(), 1):
        rows = []
        for timing in each:
            ratio = None if timing.torch is None else timing.torch / timing.ours
            other = "not measured" if timing.torch is None else rounded(timing.torch)
            cells = (timing.label, rounded(timing.ours), other, "" if ratio is None else rounded(ratio))
            data = {"layer": timing.label, "device": device, "ours_ms": timing.ours}
            rows.append(Row(cells, data | {"torch_ms": timing.torch, "file": timing.file}))
        files = ", ".join(sorted({timing.file for timing in each}))
        made.append(Table(f"speed-{i}", columns, tuple(rows), f"Measured on {device}. From {files}."))
    return made


FAR = 5.0
"""Bars for layers that are so many times slower than torch.nn's would leave no room for the others."""


def bars(found: Sequence[Timing]) -> list[Bars]:
    """The time of ours relative to torch.nn's, where both were measured; a plot for each device.

    Bars if none is far longer than the others, else dots.
    """
    made = []
    for i, (device, each) in enumerate(_by_device(found).items(), 1):
        pairs = [(timing, timing.torch) for timing in each if timing.torch is not None]
        if pairs:
            relative = {
                "ours": tuple(timing.ours / torch for timing, torch in pairs),
                "torch.nn": tuple(1.0 for _ in pairs),
            }
            texts = {
                "ours": tuple(f"{rounded(timing.ours)} ms" for timing, _ in pairs),
                "torch.nn": tuple(f"{rounded(torch)} ms" for _, torch in pairs),
            }
            title = f"Time of a training step of one layer on {device}"
            labels = tuple(timing.label for timing, _ in pairs)
            form: Literal["bars", "dots"] = "dots" if max(relative["ours"]) > FAR else "bars"
            made.append(Bars(f"speed-{i}", title, "torch.nn = 1", labels, relative, form, texts))
    return made


def _by_device(found: Sequence[Timing]) -> dict[str, list[Timing]]:
    devices: dict[str, list[Timing]] = {}
    for timing in found:
        devices.setdefault(timing.device, []).append(timing)
    return devices
