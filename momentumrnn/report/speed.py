"""The user's own measurements of speed, from files of `momentumrnn bench --json`."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..experiments.runs.read import plain
from .bars import Bars
from .table import Row, Table
from .wording import rounded


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
    """The training steps in these files, by device and layer. The newest of each counts."""
    newest: dict[tuple[str, str], Timing] = {}
    for path in sorted(files):
        try:
            benchmark = json.loads(path.read_bytes())
            if benchmark["settings"]["repeats"] < 2:
                continue  # run for its memory, not for its times
            device, date = plain(str(benchmark["device"])), str(benchmark["date"])
            for case in map(dict, benchmark["cases"]):
                if (timing := _timing(case, device, date, path.name)) is not None:
                    key = device, timing.label
                    newest[key] = max(newest.get(key, timing), timing, key=lambda known: known.date)
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


def tables(measured: Sequence[Timing]) -> list[Table]:
    """All timings, a table for each device."""
    columns = ("layer", "ours, ms", "torch.nn, ms", "torch.nn / ours")
    tables_of_devices = []
    for i, (device, timings_of_device) in enumerate(_by_device(measured).items(), 1):
        rows = []
        for timing in timings_of_device:
            ratio = None if timing.torch is None else timing.torch / timing.ours
            other = "not measured" if timing.torch is None else rounded(timing.torch)
            cells = (timing.label, rounded(timing.ours), other, "" if ratio is None else rounded(ratio))
            data = {"layer": timing.label, "device": device, "ours_ms": timing.ours}
            rows.append(Row(cells, data | {"torch_ms": timing.torch, "file": timing.file}))
        files = ", ".join(sorted({timing.file for timing in timings_of_device}))
        note = f"Measured on {device}. From {files}."
        tables_of_devices.append(Table(f"speed-{i}", columns, tuple(rows), note))
    return tables_of_devices


FAR = 5.0
"""Bars for layers that are so many times slower than torch.nn's would leave no room for the others."""


def bars(measured: Sequence[Timing]) -> list[Bars]:
    """The time of ours relative to torch.nn's, where both were measured; a plot for each device.

    Bars if none is far longer than the others, else dots.
    """
    bars_of_devices = []
    for i, (device, timings_of_device) in enumerate(_by_device(measured).items(), 1):
        pairs = [(timing, timing.torch) for timing in timings_of_device if timing.torch is not None]
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
            bars_of_devices.append(Bars(f"speed-{i}", title, "torch.nn = 1", labels, relative, form, texts))
    return bars_of_devices


def _by_device(measured: Sequence[Timing]) -> dict[str, list[Timing]]:
    devices: dict[str, list[Timing]] = {}
    for timing in measured:
        devices.setdefault(timing.device, []).append(timing)
    return devices
