"""The old name of `paper_names`: kept for one version, for the imports and pickles of users."""

import warnings
from importlib import import_module
from typing import Any


def __dir__() -> list[str]:
    made = vars(import_module("momentumrnn.paper_names"))
    return sorted(name for name, value in made.items() if hasattr(value, "__signature__"))


def __getattr__(name: str) -> Any:
    home = import_module("momentumrnn.paper_names")
    if name == "__all__":  # for `from momentumrnn.names import *`
        return __dir__()
    if name.startswith("_") or not hasattr(home, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{__name__}.{name} is now {home.__name__}.{name}", DeprecationWarning, stacklevel=2)
    return getattr(home, name)
