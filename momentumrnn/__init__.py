"""Momentum in recurrent networks: layers that drop in for torch.nn.LSTM, GRU and RNN.

The public names are those of `api`. They are loaded at the first use of one, because torch takes seconds to
import and `momentumrnn --help` does not need it. Where torch is imported already, they are loaded at once.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from .api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    # Import a submodule directly: going through `api` would import `api` again while it is being imported.
    if name.isidentifier() and not name.startswith("_") and find_spec(f"{__name__}.{name}"):
        return import_module(f".{name}", __name__)
    api, names = import_module(".api", __name__), globals()
    names.update({known: getattr(api, known) for known in ("__all__", *api.__all__)})
    if name in names:
        return names[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module(".api", __name__).__all__})


if "torch" in sys.modules:
    __getattr__("__all__")  # loads all names of `api`
