"""What was measured of one case, as rows and ratios for JSON."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .timing import ratios, training_ratio


@dataclass
class Table:
    """What is known of each contender so far.

    names: of all contenders, ours first; batch_size: B; labels: of those that were built; times: seconds of
    each round, by kind ("training_graph", ...) and contender; peaks: memory in megabytes; reasons,
    graph_reasons: why a contender failed, or could not be captured.
    """

    names: Sequence[str]
    batch_size: int
    labels: dict[str, str] = field(default_factory=dict)
    times: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    peaks: dict[str, float | None] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    graph_reasons: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """A row for each contender, None for what is not known, and the ratios of ours to its rivals."""
        rows = {name: self._row(name) for name in self.names}
        for name in filter(_is_replicas, self.names):
            rows[name]["against_single"] = training_ratio(rows[name], rows["ours"])
        return {"rows": rows, "ratios": {kind: _ratios(times) for kind, times in self.times.items()}}

    def _row(self, name: str) -> dict[str, Any]:
        peak = self.peaks.get(name)
        notes = {"reason": self.reasons, "graph_reason": self.graph_reasons}
        return {
            "layer": self.labels.get(name, name),
            **{
                f"{kind}_ms": 1e3 * statistics.median(times[name]) if name in times else None
                for kind, times in self.times.items()
            },
            "peak_mb": peak,
            "peak_mb_per_sample": None if peak is None else peak / self.batch_size,
            **{kind: reasons[name] for kind, reasons in notes.items() if name in reasons},
        }


def _ratios(times: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    if "ours" not in times:
        return {}
    rivals = [name for name in times if name != "ours" and not _is_replicas(name)]
    return {name: ratios(times["ours"], times[name]) for name in rivals}


def _is_replicas(name: str) -> bool:
    return name.startswith("replicas-")
