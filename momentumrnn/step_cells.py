"""Cells that drop in for torch.nn.LSTMCell, GRUCell and RNNCell: one time step of a layer."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from . import cells
from .backends import reference
from .cells import Cell
from .init import Init
from .layer_checks import check_cell_options, check_factored, check_input
from .momentum import Momentum, MomentumState
from .recurrent_base import Device, RecurrentModule, as_torch
from .state import State
from .tensor_likes import call_with_tensor_like, stands_for_tensor
from .value_checks import check_choice, check_integer


class RecurrentCell(RecurrentModule):
    """One time step of a recurrent network of any cell, driven by any momentum.

    `LSTMCell`, `GRUCell` and `RNNCell` are this module with one cell each. It computes what one step of
    `Recurrent` computes:

    >>> from momentumrnn import Adam, Recurrent, cells
    >>> cell = RecurrentCell(cells.Elman("modrelu"), 3, 5, momentum=Adam())
    >>> layer = Recurrent(cells.Elman("modrelu"), 3, 5, momentum=Adam())
    >>> _ = layer.load_state_dict({f"{name}_l0": w for name, w in cell.state_dict().items()})
    >>> x, state = torch.randn(7, 2, 3), cell.initial_state(batch_size=2)
    >>> for x_t in x:
    ...     state = cell(x_t, state)
    >>> torch.allclose(state.hidden[0], layer(x)[0][-1], atol=1e-6)
    True

    Args:
        cell: a `Cell`, such as `cells.LSTM()` or one of your own.
        input_size: D, the number of features of the input.
        hidden_size: H, the number of hidden units.
        bias: True for b_ih and b_hh, False for neither, "hh" for b_hh alone. Default: True
        device, dtype: of the parameters. Default: those of torch
        momentum: a `Momentum` such as `HeavyBall(mu=0.6)`, or None for a plain cell. Default: None
        init: "torch", "paper", "dtriv", or an `Init` such as `init.Paper()`. Default: "torch"
        factored: True or "printed" make the drive `U v_t`, see `Recurrent`. Default: False
        carry_momentum: True makes every output state a `State`. Default: False

    Inputs, for B sequences:
        input: (B, D), or (D,) for one sequence
        hx: None for zeros; torch's state, of shape (B, H) or (H,) for each tensor of the cell; or a `State`

    Output: the state after the step, in torch's form: a tuple, if the cell has several tensors; or a `State`
        if hx is one, or with carry_momentum

    Attributes, with G = `cell.gates * hidden_size` gate rows:
        weight_ih, weight_hh: W, (G, D), and U, (G, H)
        bias_ih, bias_hh: (G,) each
        momentum_mu, momentum_step, momentum: as in `LSTM`

    Streaming: torch's hx has no place for the moments, so with it the momentum starts at zero at each step,
    and the cell warns once. A `State` carries them. With carry_momentum, pass on what comes back. Without
    it, begin with `initial_state(batch_size)`. `Stream` runs a layer step by step without gradients, and
    faster.

    Precision: on a GPU, products of a float32 cell follow `torch.backends.cuda.matmul.allow_tf32`, which is
    False by default. The moments v and n are in float32 at least.
    """

    _repr_defaults: ClassVar[dict[str, object]] = {
        "bias": True,
        "momentum": None,
        "init": "torch",
        "factored": False,
        "carry_momentum": False,
    }

    def __init__(
        self,
        cell: Cell,
        input_size: int,
        hidden_size: int,
        bias: bool | str = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        momentum: Momentum | None = None,
        init: str | Init = "torch",
        factored: bool | str = False,
        carry_momentum: bool = False,
    ) -> None:
        super().__init__()
        bias = bool(bias) if bias in (0, 1) else bias  # torch's cells take these numbers, its layers don't
        check_cell_options(cell, momentum, input_size, hidden_size, bias, init)
        check_choice("carry_momentum", carry_momentum, (True, False))
        check_factored(factored, cell)
        self.cell = cell
        self.input_size = int(input_size)
        self.hidden_size = int(hidden_size)
        self.bias = bias
        self.proj_size = 0
        self.init = init
        self.factored = factored
        self.carry_momentum = bool(carry_momentum)
        self._add_weights("", self.input_size, device, dtype)
        self.momentum = momentum
        self.reset_parameters()

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        """The state after one step; the class describes inputs and output."""
        if stands_for_tensor(input):
            return call_with_tensor_like(RecurrentCell.forward, self, input, hx)
        net = self._network()
        w = net.weights[0]
        check_input(input, (1, 2), self.input_size, w.ih, dtype_error=RuntimeError)
        hidden, moments = self._read_state(hx, tuple(input.shape[:-1]), input)
        batched = input.dim() == 2
        if not batched:
            input, hidden = input.unsqueeze(0), tuple(h.unsqueeze(0) for h in hidden)
            moments = moments and MomentumState(*(t.unsqueeze(0) for t in moments))
        carried = moments if net.momentum is not None else None
        state, after = reference.one_step(input, w, net, hidden, carried)
        if moments is not None:
            state = *state, *(after or (moments.v, moments.n, moments.k + 1))
        if not batched:
            state = tuple(t.squeeze(0) for t in state)
        return as_torch(state) if moments is None else State(*state)

    def initial_state(self, batch_size: int | None = None) -> State:
        """The `State` before the first step.

        batch_size: the number of sequences, or None for the state of an unbatched input.
        """
        if batch_size is not None:
            check_integer("batch_size", batch_size, minimum=0)
        return self._zero_state(
            () if batch_size is None else (batch_size,), self._weight("weight_ih", {}).detach()
        )

    def _leading_axes(self) -> tuple[int, ...]:
        return ()

    def _suffixes(self) -> list[str]:
        return [""]


class LSTMCell(RecurrentCell):
    """One time step of an `LSTM`; without a momentum it is `torch.nn.LSTMCell`.

        v' = mu v + step (W x + b_ih)                   for HeavyBall(mu, step)
        i, f, g, o = v' + U h + b_hh
        c' = σ(f) c + σ(i) tanh(g)
        h' = σ(o) tanh(c')

    Args:
        input_size: D, the number of features of the input.
        hidden_size: H, the number of hidden units.
        bias: True for b_ih and b_hh, False for neither, "hh" for b_hh alone. Default: True
        device, dtype: of the parameters. Default: those of torch
        momentum: a `Momentum` such as `HeavyBall(mu=0.6)`, or None for a plain cell. Default: None
        init: "torch", "paper", "dtriv", or an `Init` such as `init.Paper()`. Default: "torch"
        carry_momentum: True makes every output state a `State`. Default: False

    Inputs, for B sequences:
        input: (B, D), or (D,) for one sequence
        hx: None for zeros; `(h, c)`, each (B, H) or (H,); or a `State`, which alone carries the momentum

    Output: `(h', c')`, each (B, H) or (H,); or a `State` if hx is one, or with carry_momentum

    Attributes, with G = 4H gate rows in the order i, f, g, o:
        weight_ih, weight_hh: W, (G, D), and U, (G, H)
        bias_ih, bias_hh: (G,) each
        momentum, momentum_mu, momentum_step: as in `LSTM`

    Streaming and precision: as in `RecurrentCell`.

    >>> from momentumrnn import HeavyBall
    >>> cell = LSTMCell(3, 5, momentum=HeavyBall(mu=0.9))
    >>> state = cell.initial_state(batch_size=2)
    >>> for x in torch.randn(7, 2, 3):
    ...     state = cell(x, state)
    >>> h, c = state.hidden
    >>> h.shape, state.k
    (torch.Size([2, 5]), tensor([7, 7]))
    """

    _repr_has_cell = False

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool | str = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        momentum: Momentum | None = None,
        init: str | Init = "torch",
        carry_momentum: bool = False,
    ) -> None:
        super().__init__(
            cells.LSTM(),
            input_size,
            hidden_size,
            bias,
            device,
            dtype,
            momentum=momentum,
            init=init,
            carry_momentum=carry_momentum,
        )


class GRUCell(RecurrentCell):
    """One time step of a `GRU`; without a momentum it is `torch.nn.GRUCell`.

        v' = mu v + step (W x + b_ih)                   for HeavyBall(mu, step)
        r = σ(v'_r + U_r h + b_hr)
        z = σ(v'_z + U_z h + b_hz)
        n = tanh(v'_n + r (U_n h + b_hn))
        h' = (1 - z) n + z h

    Args:
        input_size: D, the number of features of the input.
        hidden_size: H, the number of hidden units.
        bias: True for b_ih and b_hh, False for neither, "hh" for b_hh alone. Default: True
        device, dtype: of the parameters. Default: those of torch
        momentum: a `Momentum` such as `HeavyBall(mu=0.6)`, or None for a plain cell. Default: None
        init: "torch", "paper", "dtriv", or an `Init` such as `init.Paper()`. Default: "torch"
        carry_momentum: True makes every output state a `State`. Default: False

    Inputs, for B sequences:
        input: (B, D), or (D,) for one sequence
        hx: None for zeros; h, (B, H) or (H,); or a `State`, which alone carries the momentum

    Output: h', (B, H) or (H,); or a `State` if hx is one, or with carry_momentum

    Attributes, with G = 3H gate rows in the order r, z, n:
        weight_ih, weight_hh: W, (G, D), and U, (G, H)
        bias_ih, bias_hh: (G,) each
        momentum, momentum_mu, momentum_step: as in `GRU`

    Streaming and precision: as in `RecurrentCell`.

    >>> from momentumrnn import Nesterov
    >>> cell = GRUCell(3, 5, momentum=Nesterov())
    >>> state = cell.initial_state(batch_size=2)
    >>> for x in torch.randn(7, 2, 3):
    ...     state = cell(x, state)
    >>> state.hidden[0].shape, state.k
    (torch.Size([2, 5]), tensor([7, 7]))
    """

    _repr_has_cell = False

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool | str = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        momentum: Momentum | None = None,
        init: str | Init = "torch",
        carry_momentum: bool = False,
    ) -> None:
        super().__init__(
            cells.GRU(),
            input_size,
            hidden_size,
            bias,
            device,
            dtype,
            momentum=momentum,
            init=init,
            carry_momentum=carry_momentum,
        )


class RNNCell(RecurrentCell):
    """One time step of an `RNN`; without a momentum it is `torch.nn.RNNCell`.

        v' = mu v + step (W x + b_ih)                   for HeavyBall(mu, step)
        h' = f(v' + U h + b_hh)                         f = tanh, relu or sigmoid
        h' = sign(y) max(|y| + b_hh, 0),   y = v' + U h       for modrelu

    Args:
        input_size: D, the number of features of the input.
        hidden_size: H, the number of hidden units.
        bias: True for b_ih and b_hh, False for neither, "hh" for b_hh alone. Default: True
        nonlinearity: "tanh", "relu", "sigmoid" or "modrelu". Default: "tanh"
        device, dtype: of the parameters. Default: those of torch
        momentum: a `Momentum` such as `HeavyBall(mu=0.6)`, or None for a plain cell. Default: None
        init: "torch", "paper", "dtriv", or an `Init` such as `init.Paper()`. Default: "torch"
        factored: True or "printed" make the drive `U v_t`, see `Recurrent`. Default: False
        carry_momentum: True makes every output state a `State`. Default: False

    Inputs, for B sequences:
        input: (B, D), or (D,) for one sequence
        hx: None for zeros; h, (B, H) or (H,); or a `State`, which alone carries the momentum

    Output: h', (B, H) or (H,); or a `State` if hx is one, or with carry_momentum

    Attributes:
        weight_ih, weight_hh: W, (H, D), and U, (H, H)
        bias_ih, bias_hh: (H,) each
        momentum, momentum_mu, momentum_step: as in `RNN`

    Streaming and precision: as in `RecurrentCell`.

    >>> from momentumrnn import Adam
    >>> cell = RNNCell(3, 5, nonlinearity="relu", momentum=Adam(beta=0.9))
    >>> state = cell.initial_state(batch_size=2)
    >>> for x in torch.randn(7, 2, 3):
    ...     state = cell(x, state)
    >>> state.hidden[0].shape, state.k
    (torch.Size([2, 5]), tensor([7, 7]))
    """

    _repr_has_cell = False
    _repr_defaults: ClassVar[dict[str, object]] = {"nonlinearity": "tanh", **RecurrentCell._repr_defaults}

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool | str = True,
        nonlinearity: str = "tanh",
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        momentum: Momentum | None = None,
        init: str | Init = "torch",
        factored: bool | str = False,
        carry_momentum: bool = False,
    ) -> None:
        cell = cells.Elman(nonlinearity)
        super().__init__(
            cell,
            input_size,
            hidden_size,
            bias,
            device,
            dtype,
            momentum=momentum,
            init=init,
            factored=factored,
            carry_momentum=carry_momentum,
        )
        self.nonlinearity = nonlinearity


for _cell in (RecurrentCell, LSTMCell, GRUCell, RNNCell):
    torch.serialization.add_safe_globals([_cell, (_cell, f"momentumrnn.modules.{_cell.__name__}")])
