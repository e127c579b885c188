"""Types of the paper's names. tests/write_paper_stub.py writes this file."""

import torch
from torch import Tensor

from .init import Init
from .layers import GRU, LSTM, RNN
from .step_cells import GRUCell, LSTMCell, RNNCell

def MomentumLSTM(
    input_size: int, hidden_size: int, num_layers: int = 1, bias: bool | str = True,
    batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0,
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', backend: str = 'auto', carry_momentum: bool = False, mu: float | Tensor = 0.6,
    step: float | Tensor = 1.0, s: float | Tensor = 1.0,
) -> LSTM:
    """An `LSTM` with `HeavyBall` momentum; the paper writes `s` for `step`."""

def MomentumGRU(
    input_size: int, hidden_size: int, num_layers: int = 1, bias: bool | str = True,
    batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', backend: str = 'auto', carry_momentum: bool = False, mu: float | Tensor = 0.6,
    step: float | Tensor = 1.0, s: float | Tensor = 1.0,
) -> GRU:
    """A `GRU` with `HeavyBall` momentum; the paper writes `s` for `step`."""

def MomentumRNN(
    input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = 'tanh',
    bias: bool | str = True, batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', factored: bool | str = False, backend: str = 'auto',
    carry_momentum: bool = False, mu: float | Tensor = 0.6, step: float | Tensor = 1.0,
    s: float | Tensor = 1.0,
) -> RNN:
    """An `RNN` with `HeavyBall` momentum; the paper writes `s` for `step`."""

def MomentumLSTMCell(
    input_size: int, hidden_size: int, bias: bool | str = True,
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', carry_momentum: bool = False, mu: float | Tensor = 0.6,
    step: float | Tensor = 1.0, s: float | Tensor = 1.0,
) -> LSTMCell:
    """An `LSTMCell` with `HeavyBall` momentum; the paper writes `s` for `step`."""

def MomentumGRUCell(
    input_size: int, hidden_size: int, bias: bool | str = True,
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', carry_momentum: bool = False, mu: float | Tensor = 0.6,
    step: float | Tensor = 1.0, s: float | Tensor = 1.0,
) -> GRUCell:
    """A `GRUCell` with `HeavyBall` momentum; the paper writes `s` for `step`."""

def MomentumRNNCell(
    input_size: int, hidden_size: int, bias: bool | str = True, nonlinearity: str = 'tanh',
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', factored: bool | str = False, carry_momentum: bool = False,
    mu: float | Tensor = 0.6, step: float | Tensor = 1.0, s: float | Tensor = 1.0,
) -> RNNCell:
    """An `RNNCell` with `HeavyBall` momentum; the paper writes `s` for `step`."""

def NAGLSTM(
    input_size: int, hidden_size: int, num_layers: int = 1, bias: bool | str = True,
    batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0,
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', backend: str = 'auto', carry_momentum: bool = False,
    step: float | Tensor = 1.0, s: float | Tensor = 1.0,
) -> LSTM:
    """An `LSTM` with `Nesterov` momentum; the paper writes `s` for `step`."""

def NAGGRU(
    input_size: int, hidden_size: int, num_layers: int = 1, bias: bool | str = True,
    batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', backend: str = 'auto', carry_momentum: bool = False,
    step: float | Tensor = 1.0, s: float | Tensor = 1.0,
) -> GRU:
    """A `GRU` with `Nesterov` momentum; the paper writes `s` for `step`."""

def NAGRNN(
    input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = 'tanh',
    bias: bool | str = True, batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', factored: bool | str = False, backend: str = 'auto',
    carry_momentum: bool = False, step: float | Tensor = 1.0, s: float | Tensor = 1.0,
) -> RNN:
    """An `RNN` with `Nesterov` momentum; the paper writes `s` for `step`."""

def NAGLSTMCell(
    input_size: int, hidden_size: int, bias: bool | str = True,
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', carry_momentum: bool = False, step: float | Tensor = 1.0,
    s: float | Tensor = 1.0,
) -> LSTMCell:
    """An `LSTMCell` with `Nesterov` momentum; the paper writes `s` for `step`."""

def NAGGRUCell(
    input_size: int, hidden_size: int, bias: bool | str = True,
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', carry_momentum: bool = False, step: float | Tensor = 1.0,
    s: float | Tensor = 1.0,
) -> GRUCell:
    """A `GRUCell` with `Nesterov` momentum; the paper writes `s` for `step`."""

def NAGRNNCell(
    input_size: int, hidden_size: int, bias: bool | str = True, nonlinearity: str = 'tanh',
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', factored: bool | str = False, carry_momentum: bool = False,
    step: float | Tensor = 1.0, s: float | Tensor = 1.0,
) -> RNNCell:
    """An `RNNCell` with `Nesterov` momentum; the paper writes `s` for `step`."""

def SRLSTM(
    input_size: int, hidden_size: int, num_layers: int = 1, bias: bool | str = True,
    batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0,
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', backend: str = 'auto', carry_momentum: bool = False, every: int = 40,
    step: float | Tensor = 1.0, F: int = 40, s: float | Tensor = 1.0,
) -> LSTM:
    """An `LSTM` with `ScheduledRestart` momentum; the paper writes `F` for `every` and `s` for `step`."""

def SRGRU(
    input_size: int, hidden_size: int, num_layers: int = 1, bias: bool | str = True,
    batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', backend: str = 'auto', carry_momentum: bool = False, every: int = 40,
    step: float | Tensor = 1.0, F: int = 40, s: float | Tensor = 1.0,
) -> GRU:
    """A `GRU` with `ScheduledRestart` momentum; the paper writes `F` for `every` and `s` for `step`."""

def SRRNN(
    input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = 'tanh',
    bias: bool | str = True, batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', factored: bool | str = False, backend: str = 'auto',
    carry_momentum: bool = False, every: int = 40, step: float | Tensor = 1.0, F: int = 40,
    s: float | Tensor = 1.0,
) -> RNN:
    """An `RNN` with `ScheduledRestart` momentum; the paper writes `F` for `every` and `s` for `step`."""

def SRLSTMCell(
    input_size: int, hidden_size: int, bias: bool | str = True,
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', carry_momentum: bool = False, every: int = 40, step: float | Tensor = 1.0,
    F: int = 40, s: float | Tensor = 1.0,
) -> LSTMCell:
    """An `LSTMCell` with `ScheduledRestart` momentum; the paper writes `F` for `every` and `s` for `step`."""

def SRGRUCell(
    input_size: int, hidden_size: int, bias: bool | str = True,
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', carry_momentum: bool = False, every: int = 40, step: float | Tensor = 1.0,
    F: int = 40, s: float | Tensor = 1.0,
) -> GRUCell:
    """A `GRUCell` with `ScheduledRestart` momentum; the paper writes `F` for `every` and `s` for `step`."""

def SRRNNCell(
    input_size: int, hidden_size: int, bias: bool | str = True, nonlinearity: str = 'tanh',
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', factored: bool | str = False, carry_momentum: bool = False, every: int = 40,
    step: float | Tensor = 1.0, F: int = 40, s: float | Tensor = 1.0,
) -> RNNCell:
    """An `RNNCell` with `ScheduledRestart` momentum; the paper writes `F` for `every` and `s` for `step`."""

def AdamLSTM(
    input_size: int, hidden_size: int, num_layers: int = 1, bias: bool | str = True,
    batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0,
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', backend: str = 'auto', carry_momentum: bool = False, mu: float | Tensor = 0.6,
    step: float | Tensor = 1.0, beta: float = 0.999, eps: float = 1e-08, eps_in_sqrt: bool = True,
    s: float | Tensor = 1.0,
) -> LSTM:
    """An `LSTM` with `Adam` momentum; the paper writes `s` for `step`."""

def AdamGRU(
    input_size: int, hidden_size: int, num_layers: int = 1, bias: bool | str = True,
    batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', backend: str = 'auto', carry_momentum: bool = False, mu: float | Tensor = 0.6,
    step: float | Tensor = 1.0, beta: float = 0.999, eps: float = 1e-08, eps_in_sqrt: bool = True,
    s: float | Tensor = 1.0,
) -> GRU:
    """A `GRU` with `Adam` momentum; the paper writes `s` for `step`."""

def AdamRNN(
    input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = 'tanh',
    bias: bool | str = True, batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', factored: bool | str = False, backend: str = 'auto',
    carry_momentum: bool = False, mu: float | Tensor = 0.6, step: float | Tensor = 1.0, beta: float = 0.999,
    eps: float = 1e-08, eps_in_sqrt: bool = True, s: float | Tensor = 1.0,
) -> RNN:
    """An `RNN` with `Adam` momentum; the paper writes `s` for `step`."""

def AdamLSTMCell(
    input_size: int, hidden_size: int, bias: bool | str = True,
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', carry_momentum: bool = False, mu: float | Tensor = 0.6,
    step: float | Tensor = 1.0, beta: float = 0.999, eps: float = 1e-08, eps_in_sqrt: bool = True,
    s: float | Tensor = 1.0,
) -> LSTMCell:
    """An `LSTMCell` with `Adam` momentum; the paper writes `s` for `step`."""

def AdamGRUCell(
    input_size: int, hidden_size: int, bias: bool | str = True,
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', carry_momentum: bool = False, mu: float | Tensor = 0.6,
    step: float | Tensor = 1.0, beta: float = 0.999, eps: float = 1e-08, eps_in_sqrt: bool = True,
    s: float | Tensor = 1.0,
) -> GRUCell:
    """A `GRUCell` with `Adam` momentum; the paper writes `s` for `step`."""

def AdamRNNCell(
    input_size: int, hidden_size: int, bias: bool | str = True, nonlinearity: str = 'tanh',
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', factored: bool | str = False, carry_momentum: bool = False,
    mu: float | Tensor = 0.6, step: float | Tensor = 1.0, beta: float = 0.999, eps: float = 1e-08,
    eps_in_sqrt: bool = True, s: float | Tensor = 1.0,
) -> RNNCell:
    """An `RNNCell` with `Adam` momentum; the paper writes `s` for `step`."""

def RMSPropLSTM(
    input_size: int, hidden_size: int, num_layers: int = 1, bias: bool | str = True,
    batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0,
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', backend: str = 'auto', carry_momentum: bool = False,
    step: float | Tensor = 1.0, beta: float = 0.9, eps: float = 1e-08, eps_in_sqrt: bool = True,
    s: float | Tensor = 1.0,
) -> LSTM:
    """An `LSTM` with `RMSProp` momentum; the paper writes `s` for `step`."""

def RMSPropGRU(
    input_size: int, hidden_size: int, num_layers: int = 1, bias: bool | str = True,
    batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', backend: str = 'auto', carry_momentum: bool = False,
    step: float | Tensor = 1.0, beta: float = 0.9, eps: float = 1e-08, eps_in_sqrt: bool = True,
    s: float | Tensor = 1.0,
) -> GRU:
    """A `GRU` with `RMSProp` momentum; the paper writes `s` for `step`."""

def RMSPropRNN(
    input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = 'tanh',
    bias: bool | str = True, batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', factored: bool | str = False, backend: str = 'auto',
    carry_momentum: bool = False, step: float | Tensor = 1.0, beta: float = 0.9, eps: float = 1e-08,
    eps_in_sqrt: bool = True, s: float | Tensor = 1.0,
) -> RNN:
    """An `RNN` with `RMSProp` momentum; the paper writes `s` for `step`."""

def RMSPropLSTMCell(
    input_size: int, hidden_size: int, bias: bool | str = True,
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', carry_momentum: bool = False, step: float | Tensor = 1.0, beta: float = 0.9,
    eps: float = 1e-08, eps_in_sqrt: bool = True, s: float | Tensor = 1.0,
) -> LSTMCell:
    """An `LSTMCell` with `RMSProp` momentum; the paper writes `s` for `step`."""

def RMSPropGRUCell(
    input_size: int, hidden_size: int, bias: bool | str = True,
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', carry_momentum: bool = False, step: float | Tensor = 1.0, beta: float = 0.9,
    eps: float = 1e-08, eps_in_sqrt: bool = True, s: float | Tensor = 1.0,
) -> GRUCell:
    """A `GRUCell` with `RMSProp` momentum; the paper writes `s` for `step`."""

def RMSPropRNNCell(
    input_size: int, hidden_size: int, bias: bool | str = True, nonlinearity: str = 'tanh',
    device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
    init: str | Init = 'torch', factored: bool | str = False, carry_momentum: bool = False,
    step: float | Tensor = 1.0, beta: float = 0.9, eps: float = 1e-08, eps_in_sqrt: bool = True,
    s: float | Tensor = 1.0,
) -> RNNCell:
    """An `RNNCell` with `RMSProp` momentum; the paper writes `s` for `step`."""
