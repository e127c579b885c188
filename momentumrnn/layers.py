"""The layers that drop in for torch.nn.LSTM, GRU and RNN: `Recurrent` with one cell each."""

from typing import ClassVar

import torch

from . import cells
from .init import Init
from .momentum import Momentum
from .recurrent_base import Device
from .recurrent_layer import Recurrent as Recurrent


class LSTM(Recurrent):
    """A long short-term memory network with a momentum; without one it is `torch.nn.LSTM`.

    Each layer computes, with the input x_t of the layer and h_0 = c_0 = v_0 = 0 by default,

        a_t = W x_t + b_ih
        v_t = mu v_{t-1} + step a_t                     for HeavyBall(mu, step); v_t = a_t for None
        i, f, g, o = v_t + U h_{t-1} + b_hh
        c_t = σ(f) c_{t-1} + σ(i) tanh(g)
        h_t = σ(o) tanh(c_t)

    It computes the same as this loop:

    >>> from momentumrnn import HeavyBall
    >>> lstm, x = LSTM(3, 5, momentum=HeavyBall(mu=0.6, step=1.0)), torch.randn(7, 2, 3)
    >>> W, U, b_ih, b_hh = lstm.all_weights[0]
    >>> v, h, c, outputs = torch.zeros(2, 20), torch.zeros(2, 5), torch.zeros(2, 5), []
    >>> for x_t in x:
    ...     v = 0.6 * v + 1.0 * (x_t @ W.T + b_ih)
    ...     i, f, g, o = (v + h @ U.T + b_hh).chunk(4, -1)
    ...     c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    ...     h = o.sigmoid() * c.tanh()
    ...     outputs.append(h)
    >>> torch.allclose(lstm(x)[0], torch.stack(outputs), atol=1e-6)
    True

    Args:
        input_size: D, the number of features of the input.
        hidden_size: H, the number of hidden units.
        num_layers: L, the number of layers, each on the outputs of the one below. Default: 1
        bias: True for b_ih and b_hh, False for neither, "hh" for b_hh alone, so that the momentum acts on
            W x alone. Default: True
        batch_first: True if inputs and outputs have the batch before time. Default: False
        dropout: probability to drop an output of each layer but the last, in training. Default: 0
        bidirectional: True adds a second direction, which reads each sequence from its end. Default: False
        proj_size: P, the size that h_t is projected to, or 0 for no projection. Default: 0
        device, dtype: of the parameters. Default: those of torch
        momentum: a `Momentum` such as `HeavyBall(mu=0.6)`, or None for a plain layer. All layers and
            directions share it, and each has its own moments. Default: None
        init: "torch", "paper", "dtriv", or an `Init` such as `init.Paper(forget_bias=-4)`. Default: "torch"
        backend: "auto" takes the fastest of "cuda", "native" and "reference" that can run a call.
            `explain(input)` says which one, and why. Default: "auto"
        carry_momentum: True makes every final state a `State`, which the next call goes on from with its
            momentum. Default: False

    Inputs, for T time steps, B sequences, 1 or 2 directions, and P = H without a projection:
        input: (T, B, D); with batch_first (B, T, D); unbatched (T, D); or a `PackedSequence`
        hx: None for zeros; `(h_0, c_0)` of shapes (L * directions, B, P) and (L * directions, B, H); or a
            `State`, or a tuple or list of its tensors. Unbatched, there is no axis B.

    Outputs:
        output: (T, B, directions * P); with batch_first (B, T, directions * P); unbatched
            (T, directions * P); or a `PackedSequence`. It has h_t of the last layer for each step.
        final state: `(h_n, c_n)` in the shapes of `(h_0, c_0)`; or a `State` if hx is one, or with
            carry_momentum

    Attributes of layer k, with G = 4H gate rows in the order i, f, g, o; "_reverse" is the other direction:
        weight_ih_l[k]: W, (G, D) for k = 0, then (G, directions * P)
        weight_hh_l[k]: U, (G, P)
        bias_ih_l[k], bias_hh_l[k]: (G,) each
        weight_hr_l[k]: (P, H), only with a projection
        momentum_mu, momentum_step: mu and step of the momentum, only where they are tensors; shape (), (1,),
            (4,) for the gates or (G,). A `Parameter` is trained, any other tensor is a buffer.
        momentum: the momentum with the present tensors; a new one may be assigned

    Streaming: if hx is None or torch's, the momentum starts at zero. So pieces of a sequence equal the
    whole only if a `State` is carried. With carry_momentum, pass on what comes back. Without it, begin with
    `initial_state(batch_size)`. A layer with a momentum that gets torch's hx warns once. A bidirectional
    layer has no `State`. `Stream` feeds a layer step by step.

    Precision: on a GPU, cuDNN's layers and the backend "cuda" multiply float32 as TF32, or with operands of
    as many bits, while `torch.backends.cudnn.allow_tf32` is True, torch's default. Other products follow
    `torch.backends.cuda.matmul.allow_tf32`, which is False by default. Under autocast products have its
    dtype. The moments v and n are in float32 at least, for layers in 16 bits too.

    Reference: Nguyen, Baraniuk, Bertozzi, Osher, Wang, MomentumRNN, NeurIPS 2020.

    >>> lstm = LSTM(10, 20, num_layers=2, batch_first=True, momentum=HeavyBall(mu=0.6))
    >>> out, (h, c) = lstm(torch.randn(3, 5, 10))
    >>> out.shape, h.shape
    (torch.Size([3, 5, 20]), torch.Size([2, 3, 20]))
    """

    _repr_has_cell = False

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool | str = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        momentum: Momentum | None = None,
        init: str | Init = "torch",
        backend: str = "auto",
        carry_momentum: bool = False,
    ) -> None:
        super().__init__(
            cells.LSTM(),
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            proj_size,
            device,
            dtype,
            momentum=momentum,
            init=init,
            backend=backend,
            carry_momentum=carry_momentum,
        )


class GRU(Recurrent):
    """A gated recurrent unit network with a momentum; without one it is `torch.nn.GRU`.

        v_t = mu v_{t-1} + step (W x_t + b_ih)          for HeavyBall(mu, step); all three gates have it
        r = σ(v_r + U_r h_{t-1} + b_hr)
        z = σ(v_z + U_z h_{t-1} + b_hz)
        n = tanh(v_n + r (U_n h_{t-1} + b_hn))
        h_t = (1 - z) n + z h_{t-1}

    It computes the same as this loop:

    >>> from momentumrnn import HeavyBall
    >>> gru, x = GRU(3, 5, momentum=HeavyBall(mu=0.6, step=1.0)), torch.randn(7, 2, 3)
    >>> W, U, b_ih, b_hh = gru.all_weights[0]
    >>> v, h, outputs = torch.zeros(2, 15), torch.zeros(2, 5), []
    >>> for x_t in x:
    ...     v = 0.6 * v + 1.0 * (x_t @ W.T + b_ih)
    ...     v_r, v_z, v_n = v.chunk(3, -1)
    ...     u_r, u_z, u_n = (h @ U.T + b_hh).chunk(3, -1)
    ...     r, z = (v_r + u_r).sigmoid(), (v_z + u_z).sigmoid()
    ...     n = (v_n + r * u_n).tanh()
    ...     h = (1 - z) * n + z * h
    ...     outputs.append(h)
    >>> torch.allclose(gru(x)[0], torch.stack(outputs), atol=1e-6)
    True

    Args:
        input_size: D, the number of features of the input.
        hidden_size: H, the number of hidden units.
        num_layers: L, the number of layers, each on the outputs of the one below. Default: 1
        bias: True for b_ih and b_hh, False for neither, "hh" for b_hh alone. Default: True
        batch_first: True if inputs and outputs have the batch before time. Default: False
        dropout: probability to drop an output of each layer but the last, in training. Default: 0
        bidirectional: True adds a second direction, which reads each sequence from its end. Default: False
        device, dtype: of the parameters. Default: those of torch
        momentum: a `Momentum` such as `HeavyBall(mu=0.6)`, or None for a plain layer. Default: None
        init: "torch", "paper", "dtriv", or an `Init` such as `init.Paper()`. Default: "torch"
        backend: "auto", "cuda", "native" or "reference", see `LSTM`. Default: "auto"
        carry_momentum: True makes every final state a `State`, see `LSTM`. Default: False

    Inputs, for T time steps, B sequences and 1 or 2 directions:
        input: (T, B, D); with batch_first (B, T, D); unbatched (T, D); or a `PackedSequence`
        hx: None for zeros; h_0 of shape (L * directions, B, H), unbatched (L * directions, H); or a `State`

    Outputs:
        output: (T, B, directions * H); with batch_first (B, T, directions * H); unbatched
            (T, directions * H); or a `PackedSequence`
        final state: h_n in the shape of h_0; or a `State` if hx is one, or with carry_momentum

    Attributes of layer k, with G = 3H gate rows in the order r, z, n; "_reverse" is the other direction:
        weight_ih_l[k]: W, (G, D) for k = 0, then (G, directions * H)
        weight_hh_l[k]: U, (G, H)
        bias_ih_l[k], bias_hh_l[k]: (G,) each
        momentum, momentum_mu, momentum_step: as in `LSTM`, with (3,) for the gates

    Streaming and precision: as in `LSTM`.

    >>> from momentumrnn import Nesterov
    >>> out, h = GRU(3, 5, momentum=Nesterov())(torch.randn(7, 2, 3))
    >>> out.shape, h.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]))
    """

    _repr_has_cell = False

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool | str = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        momentum: Momentum | None = None,
        init: str | Init = "torch",
        backend: str = "auto",
        carry_momentum: bool = False,
    ) -> None:
        super().__init__(
            cells.GRU(),
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device=device,
            dtype=dtype,
            momentum=momentum,
            init=init,
            backend=backend,
            carry_momentum=carry_momentum,
        )


class RNN(Recurrent):
    """An Elman network with a momentum; without one it is `torch.nn.RNN`.

        v_t = mu v_{t-1} + step (W x_t + b_ih)          for HeavyBall(mu, step)
        h_t = f(v_t + U h_{t-1} + b_hh)                 f = tanh, relu or sigmoid
        h_t = sign(y) max(|y| + b_hh, 0),   y = v_t + U h_{t-1}       for modrelu

    It computes the same as this loop:

    >>> from momentumrnn import HeavyBall
    >>> rnn, x = RNN(3, 5, momentum=HeavyBall(mu=0.6, step=1.0)), torch.randn(7, 2, 3)
    >>> W, U, b_ih, b_hh = rnn.all_weights[0]
    >>> v, h, outputs = torch.zeros(2, 5), torch.zeros(2, 5), []
    >>> for x_t in x:
    ...     v = 0.6 * v + 1.0 * (x_t @ W.T + b_ih)
    ...     h = (v + h @ U.T + b_hh).tanh()
    ...     outputs.append(h)
    >>> torch.allclose(rnn(x)[0], torch.stack(outputs), atol=1e-6)
    True

    Args:
        input_size: D, the number of features of the input.
        hidden_size: H, the number of hidden units.
        num_layers: L, the number of layers, each on the outputs of the one below. Default: 1
        nonlinearity: "tanh", "relu", "sigmoid" or "modrelu". Default: "tanh"
        bias: True for b_ih and b_hh, False for neither, "hh" for b_hh alone. Default: True
        batch_first: True if inputs and outputs have the batch before time. Default: False
        dropout: probability to drop an output of each layer but the last, in training. Default: 0
        bidirectional: True adds a second direction, which reads each sequence from its end. Default: False
        device, dtype: of the parameters. Default: those of torch
        momentum: a `Momentum` such as `HeavyBall(mu=0.6)`, or None for a plain layer. Default: None
        init: "torch", "paper", "dtriv", or an `Init` such as `init.Paper()`. Default: "torch"
        factored: True or "printed" make the drive `U v_t`, see `Recurrent`. Default: False
        backend: "auto", "cuda", "native" or "reference", see `LSTM`. Default: "auto"
        carry_momentum: True makes every final state a `State`, see `LSTM`. Default: False

    Inputs, for T time steps, B sequences and 1 or 2 directions:
        input: (T, B, D); with batch_first (B, T, D); unbatched (T, D); or a `PackedSequence`
        hx: None for zeros; h_0 of shape (L * directions, B, H), unbatched (L * directions, H); or a `State`

    Outputs:
        output: (T, B, directions * H); with batch_first (B, T, directions * H); unbatched
            (T, directions * H); or a `PackedSequence`
        final state: h_n in the shape of h_0; or a `State` if hx is one, or with carry_momentum

    Attributes of layer k; "_reverse" is the other direction:
        weight_ih_l[k]: W, (H, D) for k = 0, then (H, directions * H)
        weight_hh_l[k]: U, (H, H)
        bias_ih_l[k], bias_hh_l[k]: (H,) each
        momentum, momentum_mu, momentum_step: as in `LSTM`, with shape (), (1,) or (H,)

    Streaming and precision: as in `LSTM`.

    >>> from momentumrnn import Adam
    >>> out, h = RNN(3, 5, nonlinearity="relu", momentum=Adam(beta=0.9))(torch.randn(7, 2, 3))
    >>> out.shape, h.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]))
    """

    _repr_has_cell = False
    _repr_defaults: ClassVar[dict[str, object]] = {"nonlinearity": "tanh", **Recurrent._repr_defaults}

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool | str = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        momentum: Momentum | None = None,
        init: str | Init = "torch",
        factored: bool | str = False,
        backend: str = "auto",
        carry_momentum: bool = False,
    ) -> None:
        super().__init__(
            cells.Elman(nonlinearity),
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device=device,
            dtype=dtype,
            momentum=momentum,
            init=init,
            factored=factored,
            backend=backend,
            carry_momentum=carry_momentum,
        )
        self.nonlinearity = nonlinearity


for _layer in (LSTM, GRU, RNN):
    torch.serialization.add_safe_globals([_layer, (_layer, f"momentumrnn.modules.{_layer.__name__}")])
