"""The old name of `momentumrnn.report`: kept for one version, for the imports of users."""

import warnings
from importlib import import_module
from typing import Any


def __dir__() -> list[str]:
    return ["ReportError", "report"]


def __getattr__(name: str) -> Any:
    home = import_module("momentumrnn.report")
    if name.startswith("_") or not hasattr(home, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{__name__}.{name} is now {home.__name__}.{name}", DeprecationWarning, stacklevel=2)
    return getattr(home, name)
