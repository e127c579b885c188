"""Momentum in recurrent networks: layers that drop in for torch.nn.LSTM, GRU and RNN.

The names of `api` are here too, found when first asked for: torch takes seconds to import, and
`momentumrnn --help` has no need of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    api, mine = import_module(".api", __name__), globals()
    mine.update({known: getattr(api, known) for known in ("__all__", *api.__all__)})
    if name in mine:
        return mine[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module(".api", __name__).__all__})
