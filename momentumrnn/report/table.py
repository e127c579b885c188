"""What a table of the report is: rows with the text that is shown and the same as data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One row of a table.

    cells: the text that is shown; data: the same for programs; kind: "", "control", or "absent" if it was
    not run.
    """

    cells: tuple[str, ...]
    data: Mapping[str, Any]
    kind: str = ""


@dataclass(frozen=True)
class Table:
    """A table of the report. Its files have its name."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""
