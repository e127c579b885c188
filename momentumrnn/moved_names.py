"""Old homes of names: each still gives the name, with a warning, for one version."""

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def look_up(module: str, new_home: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of an old home. module: its name; new_home: the module of each name, in full."""

    def __getattr__(name: str) -> Any:
        if name == "__all__":  # for `from module import *`
            return sorted(new_home)
        if name not in new_home:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home = new_home[name]
        warnings.warn(f"{module}.{name} is now {home}.{name}", DeprecationWarning, stacklevel=2)
        return getattr(import_module(home), name)

    return __getattr__
