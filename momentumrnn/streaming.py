"""`Stream`: a layer that gets one time step at each call."""

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor

from .layer_checks import check_tensor
from .recurrent_layer import Recurrent
from .state import MOMENTS, Rows, State
from .stream_engines import choose_engine
from .torch_internals import own_tensors
from .value_checks import check_integer


class Stream:
    """A layer that gets one time step at each call, without gradients and with little delay.

    It holds the `State` of the layer. Each call advances the state by one step. A Stream computes the same as
    this loop:

    >>> from momentumrnn import LSTM, HeavyBall
    >>> lstm, x = LSTM(3, 5, momentum=HeavyBall(mu=0.9)), torch.randn(12, 2, 3)
    >>> state, stream = lstm.initial_state(batch_size=2), Stream(lstm, batch_size=2)
    >>> for x_t in x:
    ...     output, state = lstm(x_t.unsqueeze(0), state.detach())
    ...     assert torch.allclose(stream(x_t), output[0], atol=1e-6)

    Args:
        layer: an `LSTM`, `GRU`, `RNN` or `Recurrent` of any cell and momentum, with one direction. If it has
            dropout between its layers, it must be in eval mode.
        batch_size: B, the number of sequences, or None for one sequence without that axis. Default: None
        state: the `State` to begin with, or None for zeros. Its number of sequences is the batch size.
            Default: None

    Input and output of a call, for D features, and for H hidden units or the projected size of the layer:
        x: (B, D), or (D,) without a batch size, in the dtype and on the device of the weights
        y: (B, H) or (H,), h of the last layer after this step. It is new memory, which no later call changes.

    Attributes:
        state: a copy of the present `State`. The layer or another Stream can go on from it.
        description: how a step is computed, and why not in a faster way.

    Speed: an LSTM in float32 on an NVIDIA GPU takes one kernel launch for each layer. Other layers on a GPU
    run as a CUDA graph of one step, where one can be captured. So Python code in a cell or momentum of your
    own runs while the graph is captured, and not at each step. On a CPU the layer's definition runs.

    Precision: a Stream computes in the dtype of the weights. It ignores autocast. The kernel uses no TF32.

    Changes of the layer: weights that change in place take effect at the next step. So do replaced
    parameters, another momentum, and `train()` or `eval()`. After any other change, make a new Stream.

    >>> stream.reset([1])                                # another sequence begins in row 1
    >>> stream(torch.randn(2, 3)).shape, stream.state.k
    (torch.Size([2, 5]), tensor([[13,  1]]))
    """

    description: str

    def __init__(self, layer: Recurrent, batch_size: int | None = None, state: State | None = None) -> None:
        if not isinstance(layer, Recurrent):
            kind = f"{type(layer).__module__}.{type(layer).__qualname__}"
            raise TypeError(f"layer should be a layer of momentumrnn, such as momentumrnn.LSTM, got {kind}")
        if layer.bidirectional:
            raise ValueError(
                "layer should have bidirectional=False, got True: its reverse direction begins at the end"
            )
        if batch_size is not None:
            check_integer("batch_size", batch_size)
        if state is not None:
            tensors = layer.cell.states + MOMENTS
            if not isinstance(state, tuple | list) or not all(isinstance(t, Tensor) for t in state):
                raise TypeError(f"state should be a State, got {type(state).__name__}")
            if len(state) != tensors:
                raise ValueError(f"state should hold the {tensors} tensors of a State, got {len(state)}")
            state = State(state)
            size_of_state = state.k.shape[1] if state.k.dim() == 2 else None
            if batch_size is not None and batch_size != size_of_state:
                raise ValueError(f"batch_size should be that of state, {size_of_state}, got {batch_size}")
            batch_size = size_of_state
        self._layer, self._batch_size = layer, batch_size
        self._rows = () if batch_size is None else (batch_size,)
        self._prepare(layer.initial_state(batch_size) if state is None else state)

    def __call__(self, x: Tensor) -> Tensor:
        """One step on x, (B, D), or (D,) without a batch size. Returns h of the last layer."""
        layer = self._layer
        if (
            layer.training is not self._training
            or layer._momentum is not self._momentum
            or [t.data_ptr() for d in self._tensor_dicts for t in d.values() if t is not None]
            != self._addresses
        ):
            self._prepare(self.state)
        if not isinstance(x, Tensor):
            raise TypeError(f"x should be a Tensor, got {type(x).__name__}")
        if x.shape != self._shape or x.dtype != self._dtype or x.device != self._device:
            hint = f"this Stream has batch_size={self._batch_size}"
            check_tensor("x", x, self._shape, self._dtype, self._device, hint)
        return self._engine(x)

    @property
    def about(self) -> str:
        """The old name of `description`, for one more version."""
        warnings.warn("Stream.about is now Stream.description", DeprecationWarning, stacklevel=2)
        return self.description

    @property
    def state(self) -> State:
        """A copy of the `State` after the last step."""
        state = self._engine.state().clone()
        return state if self._rows else State(t.squeeze(1) for t in state)

    def reset(self, rows: Rows | None = None) -> None:
        """Set the state of some rows to zero, so that other sequences begin there.

        rows: a mask (B,) of dtype bool, indices that differ, a slice, or None for all. A mask on the layer's
            device does not wait for the GPU.
        """
        if rows is not None and not self._rows:
            raise ValueError(f"rows should be None, since this Stream has no batch_size, got {rows!r}")
        self._engine.load(self._engine.state().reset(rows))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._layer!r}, batch_size={self._batch_size}): {self.description}"

    def _prepare(self, state: State) -> None:
        """Choose an engine for the layer as it is now, which goes on from this state."""
        layer = self._layer
        if layer.training and layer.dropout > 0 and layer.num_layers > 1:
            raise ValueError(
                f"layer should be in eval mode, since it has dropout={layer.dropout}, got training=True; "
                "call layer.eval()"
            )
        weight = layer._weight("weight_ih_l0", {}).detach()
        layer._check_state("state", state, self._rows, weight, "this Stream")
        # Tensors made in inference mode could not be written to outside of it.
        with torch.inference_mode(False), torch.no_grad():
            state = state.clone() if self._rows else State(t.unsqueeze(1).clone() for t in state)
            engine, description = choose_engine(layer, state, self._rows)
        self._engine, self.description = engine, description
        self._dtype, self._device = weight.dtype, weight.device
        self._shape = *self._rows, layer.input_size
        self._training, self._momentum = layer.training, layer._momentum
        dicts: list[Mapping[str, Tensor | None]] = [d for m in layer.modules() for d in own_tensors(m)]
        self._tensor_dicts = [d for d in dicts if d]
        # These keep the memory alive, so that no other tensor can get one of the addresses.
        self._tensors = [t.detach() for d in self._tensor_dicts for t in d.values() if t is not None]
        self._addresses = [t.data_ptr() for t in self._tensors]
