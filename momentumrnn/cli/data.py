"""The command `momentumrnn data`: brings data sets."""

from collections.abc import Sequence
from typing import Any

from ..experiments.data import DataError, folder, get
from .words import refuse


def run(options: Any, args: Sequence[str]) -> int:
    """Carry out the command; returns its exit code."""
    try:
        for path in get(options.name, folder(options.data)):
            print(path)
    except (DataError, OSError) as error:
        return refuse(f"data: {error}", 1)
    return 0
