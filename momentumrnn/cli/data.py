"""The command `momentumrnn data`: brings data sets."""

from collections.abc import Sequence
from typing import Any

from ..experiments.data import DataError, folder, get
from .options import refuse


def run(options: Any, args: Sequence[str]) -> int:
    """Carry out the command; returns its exit code."""
    try:
        paths = get(options.name, folder(options.data))
    except (DataError, OSError) as error:
        return refuse(f"data: {error}", 1)
    # Outside of the try, where a closed pipe would be taken for an error of the data.
    print(*paths, sep="\n")
    return 0
