"""How the failure of a contender is written down."""

from collections.abc import Iterator
from contextlib import contextmanager


def summarize(error: Exception) -> str:
    """The type and the first line of an error."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


@contextmanager
def note_failure(reasons: dict[str, str], name: str) -> Iterator[None]:
    """Note why a rival failed and go on; an error of ours is raised."""
    try:
        yield
    except Exception as error:
        if name == "ours":
            raise
        reasons[name] = summarize(error)
