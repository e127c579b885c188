"""The old home of layers, step cells and `State`: kept for one version, for imports and pickles."""

import warnings
from importlib import import_module
from typing import Any

_NEW_HOME = {
    **dict.fromkeys(("Recurrent", "LSTM", "GRU", "RNN"), "layers"),
    **dict.fromkeys(("RecurrentCell", "LSTMCell", "GRUCell", "RNNCell"), "step_cells"),
    "State": "state",
}


def __dir__() -> list[str]:
    return sorted(_NEW_HOME)


def __getattr__(name: str) -> Any:
    if name == "__all__":  # for `from momentumrnn.modules import *`
        return sorted(_NEW_HOME)
    if name not in _NEW_HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = f"momentumrnn.{_NEW_HOME[name]}"
    warnings.warn(f"{__name__}.{name} is now {home}.{name}", DeprecationWarning, stacklevel=2)
    return getattr(import_module(home), name)
