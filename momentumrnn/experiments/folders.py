"""The old home of what users import from it: kept for one version."""

import warnings
from importlib import import_module
from typing import Any

_NEW_HOME = {"LockedError": "runs.store", "RunError": "runs.store"}


def __dir__() -> list[str]:
    return sorted(_NEW_HOME)


def __getattr__(name: str) -> Any:
    if name not in _NEW_HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = f"{__package__}.{_NEW_HOME[name]}"
    warnings.warn(f"{__name__}.{name} is now {home}.{name}", DeprecationWarning, stacklevel=2)
    return getattr(import_module(home), name)
