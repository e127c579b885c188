"""The paper's names, as thin spellings: `MomentumLSTM(10, 20, mu=0.6, s=1.0)` is
`LSTM(10, 20, momentum=HeavyBall(mu=0.6, step=1.0))`, and so on for each momentum, layer and cell.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from .modules import GRU, LSTM, RNN, GRUCell, LSTMCell, Recurrent, RecurrentCell, RNNCell
from .momentum import Adam, HeavyBall, Momentum, Nesterov, RMSProp, ScheduledRestart

_LETTERS = {"s": "step", "F": "every"}
M = TypeVar("M", bound=Recurrent | RecurrentCell)


def _spell(prefix: str, kind: type[M], momentum: type[Momentum]) -> Callable[..., M]:
    name = prefix + kind.__name__
    own = [p for p in inspect.signature(kind).parameters.values() if p.name != "momentum"]
    rates = [p.replace(kind=p.KEYWORD_ONLY) for p in inspect.signature(momentum).parameters.values()]
    letters = {letter: word for letter, word in _LETTERS.items() if any(p.name == word for p in rates)}
    spelt = [inspect.Parameter(letter, inspect.Parameter.KEYWORD_ONLY, default=None) for letter in letters]
    signature = inspect.Signature([*own, *rates, *spelt])

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
        for letter, word in letters.items():
            if letter in kwargs and word in chosen:
                raise TypeError(
                    f"{name}: {letter} is the paper's letter for {word}; expected one of them, got both"
                )
            if letter in kwargs:
                chosen[word] = kwargs.pop(letter)
        return kind(*args, momentum=momentum(**chosen), **kwargs)

    make.__name__ = make.__qualname__ = name
    make.__module__ = __name__
    spellings = ", ".join(f"`{letter}` is `{word}`" for letter, word in letters.items())
    make.__doc__ = (
        f"`{kind.__name__}` with `momentum={momentum.__name__}(...)`; {spellings}, as in the paper."
    )
    make.__signature__ = signature  # type: ignore[attr-defined]
    return make


MomentumLSTM = _spell("Momentum", LSTM, HeavyBall)
MomentumGRU = _spell("Momentum", GRU, HeavyBall)
MomentumRNN = _spell("Momentum", RNN, HeavyBall)
MomentumLSTMCell = _spell("Momentum", LSTMCell, HeavyBall)
MomentumGRUCell = _spell("Momentum", GRUCell, HeavyBall)
MomentumRNNCell = _spell("Momentum", RNNCell, HeavyBall)

NAGLSTM = _spell("NAG", LSTM, Nesterov)
NAGGRU = _spell("NAG", GRU, Nesterov)
NAGRNN = _spell("NAG", RNN, Nesterov)
NAGLSTMCell = _spell("NAG", LSTMCell, Nesterov)
NAGGRUCell = _spell("NAG", GRUCell, Nesterov)
NAGRNNCell = _spell("NAG", RNNCell, Nesterov)

SRLSTM = _spell("SR", LSTM, ScheduledRestart)
SRGRU = _spell("SR", GRU, ScheduledRestart)
SRRNN = _spell("SR", RNN, ScheduledRestart)
SRLSTMCell = _spell("SR", LSTMCell, ScheduledRestart)
SRGRUCell = _spell("SR", GRUCell, ScheduledRestart)
SRRNNCell = _spell("SR", RNNCell, ScheduledRestart)

AdamLSTM = _spell("Adam", LSTM, Adam)
AdamGRU = _spell("Adam", GRU, Adam)
AdamRNN = _spell("Adam", RNN, Adam)
AdamLSTMCell = _spell("Adam", LSTMCell, Adam)
AdamGRUCell = _spell("Adam", GRUCell, Adam)
AdamRNNCell = _spell("Adam", RNNCell, Adam)

RMSPropLSTM = _spell("RMSProp", LSTM, RMSProp)
RMSPropGRU = _spell("RMSProp", GRU, RMSProp)
RMSPropRNN = _spell("RMSProp", RNN, RMSProp)
RMSPropLSTMCell = _spell("RMSProp", LSTMCell, RMSProp)
RMSPropGRUCell = _spell("RMSProp", GRUCell, RMSProp)
RMSPropRNNCell = _spell("RMSProp", RNNCell, RMSProp)
