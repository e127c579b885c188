"""What the report shows as bars and dots, as numbers. Knows no plotting library."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..experiments.paper.tables import Exhibit
from .cost_tables import KINDS
from .wording import rounded

COLOURS = {"ours": "#0072b2", "torch.nn": "#d55e00", "the paper's listing": "#009e73", "paper": "#777777"}


@dataclass(frozen=True)
class Bars:
    """Groups of values with a label each; None was not measured.

    form: "bars" start at zero on a linear axis, so that their lengths can be compared. "dots" stand on a
    logarithmic axis, for values that differ by orders of magnitude. texts: what stands beside the values, by
    default the values themselves.
    """

    name: str
    title: str
    unit: str
    labels: tuple[str, ...]
    groups: Mapping[str, tuple[float | None, ...]]
    form: Literal["bars", "dots"] = "bars"
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    note: str = ""

    def text(self, group: str, i: int) -> str:
        """What stands beside a value."""
        value = self.groups[group][i]
        if value is None:
            return ""
        return self.texts[group][i] if group in self.texts else rounded(value)

    @property
    def alt(self) -> str:
        """The values in words, for readers who can't see them."""
        parts = []
        for i, label in enumerate(self.labels):
            values = [f"{name} {self.text(name, i)}" for name in self.groups if self.text(name, i)]
            parts.append(f"{label}: {', '.join(values)}")
        return f"{self.title}, {self.unit}. {'; '.join(parts)}."


def cost(exhibit: Exhibit, measured: Mapping[str, Any]) -> Bars:
    """Training in table 14 or 15. The times of the paper's listing are hundreds of times ours: dots."""
    key = {"table14": "train_ms", "table15": "train_mb"}[exhibit.name]
    lines = [line for line in exhibit.lines if line.column == "training"]
    groups: dict[str, tuple[float | None, ...]] = {"paper": tuple(line.published[0].value for line in lines)}
    for kind in KINDS:
        values = (measured["rows"].get(f"{kind}/{line.model}", {}).get(key) for line in lines)
        groups["the paper's listing" if kind == "listing" else kind] = tuple(values)
    return Bars(
        exhibit.name,
        f"{exhibit.title}, training on {measured['device']}",
        exhibit.metric,
        tuple(line.model for line in lines),
        groups,
        "dots" if exhibit.name == "table14" else "bars",
    )
