"""Reads the measurements for tables 14 to 16, which `momentumrnn reproduce table14` writes."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..experiments.runs.read import plain
from .errors import ReportError

PATTERN = "cost-*.json"


def read_costs(roots: Sequence[Path]) -> list[Mapping[str, Any]]:
    """The measurements in these folders: the newest file of each device."""
    newest: dict[str, Mapping[str, Any]] = {}
    for path in sorted(path for root in roots for path in root.rglob(PATTERN)):
        try:
            measured = _read(path)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ReportError(
                f"{path} should be what `momentumrnn reproduce table14` wrote: move it away"
            ) from None
        device = measured["device"]
        if device not in newest or str(measured["date"]) > newest[device]["date"]:
            newest[device] = measured
    return list(newest.values())


def _read(path: Path) -> dict[str, Any]:
    """The content of a file. Any error says that it is another's."""
    content = json.loads(path.read_bytes())
    if (content["task"], content["hidden_size"]) != ("PMNIST", 256):
        raise ValueError
    rows = {str(name): dict(row) for name, row in content["rows"].items()}
    times = [row[key] for row in rows.values() for key in ("train_ms", "eval_ms")]
    sizes = [row[key] for row in rows.values() for key in ("train_mb", "eval_mb")]
    numbers = [*times, *(size for size in sizes if size is not None)]
    if not all(0 < number < math.inf for number in numbers):
        raise ValueError
    return {**content, "device": plain(str(content["device"])), "date": str(content["date"]), "rows": rows}
