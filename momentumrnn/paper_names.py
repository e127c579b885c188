"""The paper's names for layers and cells with a momentum.

`MomentumLSTM(10, 20, mu=0.6, s=1.0)` is `LSTM(10, 20, momentum=HeavyBall(mu=0.6, step=1.0))`, and so on.
The file paper_names.pyi has their types; tests/write_paper_stub.py writes it.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from .layers import GRU, LSTM, RNN, Recurrent
from .momentum import Adam, HeavyBall, Momentum, Nesterov, RMSProp, ScheduledRestart
from .step_cells import GRUCell, LSTMCell, RecurrentCell, RNNCell

LETTERS = {"step": "s", "every": "F"}  # the paper's, beside the names of our arguments
M = TypeVar("M", bound=Recurrent | RecurrentCell)


def _combine(prefix: str, kind: type[M], momentum: type[Momentum]) -> Callable[..., M]:
    """A function that makes a layer or cell with that momentum, and takes the arguments of both."""
    name = prefix + kind.__name__
    own = [p for p in inspect.signature(kind).parameters.values() if p.name != "momentum"]
    rates = [p.replace(kind=p.KEYWORD_ONLY) for p in inspect.signature(momentum).parameters.values()]
    letters = {LETTERS[p.name]: p for p in rates if p.name in LETTERS}
    aliases = [p.replace(name=letter) for letter, p in letters.items()]
    signature = inspect.Signature([*own, *rates, *aliases], return_annotation=kind)

    def make(*args: Any, **kwargs: Any) -> M:
        if "momentum" in kwargs:
            raise TypeError(
                f"{name} has its momentum in its name, got momentum={kwargs['momentum']!r}; "
                f"for another one use {kind.__name__}"
            )
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}: {error}; expected {', '.join(signature.parameters)}") from None
        chosen = {p.name: kwargs.pop(p.name) for p in rates if p.name in kwargs}
        for letter, p in letters.items():
            if letter in kwargs and p.name in chosen:
                raise TypeError(
                    f"{name}: {letter} is the paper's letter for {p.name}; expected one of them, got both"
                )
            if letter in kwargs:
                chosen[p.name] = kwargs.pop(letter)
        return kind(*args, momentum=momentum(**chosen), **kwargs)

    make.__name__ = make.__qualname__ = name
    make.__module__ = __name__
    article = "A" if kind.__name__.startswith("GRU") else "An"
    spelling = " and ".join(f"`{letter}` for `{p.name}`" for letter, p in letters.items())
    make.__doc__ = (
        f"{article} `{kind.__name__}` with `{momentum.__name__}` momentum; the paper writes {spelling}."
    )
    make.__signature__ = signature  # type: ignore[attr-defined]
    return make


MomentumLSTM = _combine("Momentum", LSTM, HeavyBall)
MomentumGRU = _combine("Momentum", GRU, HeavyBall)
MomentumRNN = _combine("Momentum", RNN, HeavyBall)
MomentumLSTMCell = _combine("Momentum", LSTMCell, HeavyBall)
MomentumGRUCell = _combine("Momentum", GRUCell, HeavyBall)
MomentumRNNCell = _combine("Momentum", RNNCell, HeavyBall)

NAGLSTM = _combine("NAG", LSTM, Nesterov)
NAGGRU = _combine("NAG", GRU, Nesterov)
NAGRNN = _combine("NAG", RNN, Nesterov)
NAGLSTMCell = _combine("NAG", LSTMCell, Nesterov)
NAGGRUCell = _combine("NAG", GRUCell, Nesterov)
NAGRNNCell = _combine("NAG", RNNCell, Nesterov)

SRLSTM = _combine("SR", LSTM, ScheduledRestart)
SRGRU = _combine("SR", GRU, ScheduledRestart)
SRRNN = _combine("SR", RNN, ScheduledRestart)
SRLSTMCell = _combine("SR", LSTMCell, ScheduledRestart)
SRGRUCell = _combine("SR", GRUCell, ScheduledRestart)
SRRNNCell = _combine("SR", RNNCell, ScheduledRestart)

AdamLSTM = _combine("Adam", LSTM, Adam)
AdamGRU = _combine("Adam", GRU, Adam)
AdamRNN = _combine("Adam", RNN, Adam)
AdamLSTMCell = _combine("Adam", LSTMCell, Adam)
AdamGRUCell = _combine("Adam", GRUCell, Adam)
AdamRNNCell = _combine("Adam", RNNCell, Adam)

RMSPropLSTM = _combine("RMSProp", LSTM, RMSProp)
RMSPropGRU = _combine("RMSProp", GRU, RMSProp)
RMSPropRNN = _combine("RMSProp", RNN, RMSProp)
RMSPropLSTMCell = _combine("RMSProp", LSTMCell, RMSProp)
RMSPropGRUCell = _combine("RMSProp", GRUCell, RMSProp)
RMSPropRNNCell = _combine("RMSProp", RNNCell, RMSProp)
