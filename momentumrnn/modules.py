"""The old home of layers, step cells and `State`: kept for one version, for imports and pickles."""

from .moved_names import look_up

_NEW_HOME = {
    **dict.fromkeys(("Recurrent", "LSTM", "GRU", "RNN"), "momentumrnn.layers"),
    **dict.fromkeys(("RecurrentCell", "LSTMCell", "GRUCell", "RNNCell"), "momentumrnn.step_cells"),
    "State": "momentumrnn.state",
}


def __dir__() -> list[str]:
    return sorted(_NEW_HOME)


__getattr__ = look_up(__name__, _NEW_HOME)
