"""The layer of any cell and any momentum: all time steps, layers and directions in one call."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from .backends import registry
from .backends.stack import Network
from .cells import Cell
from .init import Init
from .layer_checks import check_cell_options, check_factored, check_input, check_layer_options
from .momentum import Momentum, MomentumState
from .packing import EqualSizes, lengths
from .recurrent_base import Device, RecurrentModule, as_torch
from .state import MOMENTS, State
from .tensor_likes import call_with_tensor_like, stands_for_tensor
from .torch_internals import exporting
from .value_checks import check_choice, check_integer

NO_STATE = "a bidirectional layer can't stream: its reverse direction begins at the end of the sequence"


class Recurrent(RecurrentModule):
    """A recurrent network of any cell, driven by any momentum.

        a_t = W x_t + b_ih
        v = M(a)                                               the momentum, along time
        state_t = cell.step(v_t, U h_{t-1}, b_hh, state_{t-1})

    `LSTM`, `GRU` and `RNN` are this layer with one cell each. It computes the same as this loop:

    >>> from momentumrnn import HeavyBall, cells
    >>> cell, momentum, x = cells.LSTM(), HeavyBall(mu=0.6), torch.randn(7, 2, 3)
    >>> rnn = Recurrent(cell, 3, 5, momentum=momentum)
    >>> W, U, b_ih, b_hh = rnn.all_weights[0]
    >>> v, _ = momentum(x @ W.T + b_ih)
    >>> state, outputs = (torch.zeros(2, 5), torch.zeros(2, 5)), []
    >>> for t in range(7):
    ...     state = cell.step(v[t], state[0] @ U.T, b_hh, state)
    ...     outputs.append(state[0])
    >>> torch.allclose(rnn(x)[0], torch.stack(outputs), atol=1e-6)
    True

    Args:
        cell: a `Cell`, such as `cells.LSTM()` or one of your own.
        input_size: D, the number of features of the input.
        hidden_size: H, the number of hidden units.
        num_layers: L, the number of layers, each on the outputs of the one below. Default: 1
        bias: True for b_ih and b_hh, False for neither, "hh" for b_hh alone, so that the momentum acts on
            W x alone. Default: True
        batch_first: True if inputs and outputs have the batch before time. Default: False
        dropout: probability to drop an output of each layer but the last, in training. Default: 0
        bidirectional: True adds a second direction, which reads each sequence from its end. Default: False
        proj_size: P, the size that h is projected to, or 0 for no projection. The cell must allow a
            projection, as the LSTM does. Default: 0
        device, dtype: of the parameters. Default: those of torch
        momentum: a `Momentum` such as `HeavyBall(mu=0.6)`, or None for a plain layer. Default: None
        init: "torch", "paper", "dtriv", or an `Init` such as `init.Paper(forget_bias=-4)`. Default: "torch"
        factored: True makes the drive `U v_t`, so that the trained input weight is U⁻¹ W (remarks 1 and 4 of
            the paper). It needs a square U. Under Adam and RMSProp, True is `U M(a)` as derived; "printed"
            multiplies the first moment by U before the division, as in print. Default: False
        backend: "auto" takes the fastest of "cuda", "native" and "reference" that can run a call.
            `explain(input)` says which one, and why. Default: "auto"
        carry_momentum: True makes every final state a `State`, which the next call goes on from with its
            momentum. Default: False

    Inputs, for T time steps, B sequences, 1 or 2 directions, and P = H without a projection:
        input: (T, B, D); with batch_first (B, T, D); unbatched (T, D); or a `PackedSequence`
        hx: None for zeros; for a cell with one tensor in its state that tensor, for others a tuple, each
            (L * directions, B, width); or a `State`, or a tuple or list of its tensors.
            `cell.widths(hidden_size)` has the widths, h first; with a projection the width of h is P.
            Unbatched, there is no axis B.

    Outputs:
        output: (T, B, directions * P); with batch_first (B, T, directions * P); unbatched
            (T, directions * P); or a `PackedSequence`. It has h_t of the last layer for each step.
        final state: in the form and the shapes of hx; a `State` with carry_momentum

    Attributes of layer k, with G = `cell.gates * hidden_size` gate rows; "_reverse" is the other direction:
        weight_ih_l[k]: W, (G, D) for k = 0, then (G, directions * P)
        weight_hh_l[k]: U, (G, P)
        bias_ih_l[k], bias_hh_l[k]: (G,) each
        weight_hr_l[k]: (P, H), only with a projection
        momentum, momentum_mu, momentum_step: as in `LSTM`, with `cell.gates` entries for the gates

    Streaming and precision: as in `LSTM`.

    >>> rnn = Recurrent(cells.Elman("modrelu"), 3, 5, bias="hh", momentum=HeavyBall(mu=0.9))
    >>> out, h = rnn(torch.randn(7, 2, 3))
    >>> out.shape, h.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]))
    """

    _repr_defaults: ClassVar[dict[str, object]] = {
        "proj_size": 0,
        "num_layers": 1,
        "bias": True,
        "batch_first": False,
        "dropout": 0.0,
        "bidirectional": False,
        "momentum": None,
        "init": "torch",
        "factored": False,
        "backend": "auto",
        "carry_momentum": False,
    }

    def __init__(
        self,
        cell: Cell,
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
        factored: bool | str = False,
        backend: str = "auto",
        carry_momentum: bool = False,
    ) -> None:
        super().__init__()
        check_cell_options(cell, momentum, input_size, hidden_size, bias, init)
        check_layer_options(cell, hidden_size, num_layers, batch_first, dropout, bidirectional, proj_size)
        check_factored(factored, cell, proj_size)
        check_choice("backend", backend, registry.NAMES)
        check_choice("carry_momentum", carry_momentum, (True, False))
        if carry_momentum and bidirectional:
            raise ValueError(f"carry_momentum should be False, since {NO_STATE}, got True")
        self.cell = cell
        # Numpy's numbers are taken, and become Python's own.
        self.input_size = int(input_size)
        self.hidden_size = int(hidden_size)
        self.num_layers = int(num_layers)
        self.bias = bias if isinstance(bias, str) else bool(bias)
        self.batch_first = bool(batch_first)
        self.dropout = float(dropout)
        self.bidirectional = bool(bidirectional)
        self.proj_size = int(proj_size)
        self.init = init
        self.factored = factored
        self.backend = backend
        self.carry_momentum = bool(carry_momentum)
        outputs = (self.proj_size or self.hidden_size) * (2 if bidirectional else 1)
        for suffix in self._suffixes():
            columns = self.input_size if suffix.startswith("_l0") else outputs
            self._add_weights(suffix, columns, device, dtype)
        self.momentum = momentum
        self.reset_parameters()

    def forward(self, input: Tensor | PackedSequence, hx: Any = None) -> tuple[Any, Any]:
        """The outputs of all steps, and the final state; the class describes both.

        input: (T, B, D), with batch_first (B, T, D), unbatched (T, D), or a PackedSequence.
        hx: None or torch's initial state, for which the momentum starts at zero; or a `State`, or a tuple or
            list of its tensors, for which the final state is a `State` and the momentum goes on.
        """
        if stands_for_tensor(input):
            return call_with_tensor_like(Recurrent.forward, self, input, hx)  # type: ignore[no-any-return]
        net = self._network_for(input)
        # A loop over time takes minutes to compile. So torch.compile breaks its graph here, as it does for
        # torch's own layers, unless an operator of ours runs the layer.
        if torch.compiler.is_dynamo_compiling() and not exporting() and not self._can_compile(net, input):
            return torch.compiler.disable(self._forward)(net, input, hx)  # type: ignore[no-any-return, no-untyped-call]
        return self._forward(net, input, hx)

    def _can_compile(self, net: Network, input: Tensor | PackedSequence) -> bool:
        """Whether torch.compile can put the backend that runs this input into its graph."""
        if isinstance(input, PackedSequence):
            return False
        _, sizes = self._checked_input(input, net.weights[0].ih)
        return registry.compiles(self.backend, net, sizes)

    def _forward(self, net: Network, input: Tensor | PackedSequence, hx: Any) -> tuple[Any, Any]:
        x, sizes = self._checked_input(input, net.weights[0].ih)
        packed = input if isinstance(input, PackedSequence) else None
        batched = packed is not None or input.dim() == 3  # type: ignore[union-attr]
        states = self.cell.states
        if self.bidirectional and isinstance(hx, tuple | list) and len(hx) == states + MOMENTS:
            raise ValueError(f"hx should be torch's, got a State: {NO_STATE}")
        hidden, moments = self._read_state(hx, (sizes[0],) if batched else (), x)
        # The batch is on axis 1 of every tensor.
        state = [*hidden, *(moments or ())]
        if not batched:
            state = [t.unsqueeze(1) for t in state]
        if packed is not None and packed.sorted_indices is not None:
            state = [t.index_select(1, packed.sorted_indices) for t in state]

        carried = MomentumState(*state[states:]) if moments is not None else None
        run = registry.choose(self.backend, net, sizes).run
        y, hidden, after = run(net, x, sizes, state[:states], carried if net.momentum is not None else None)

        final = list(hidden)
        if carried is not None:
            # As a list, since torch.compile of torch 2.11 adds no named tuple to one.
            final += [*(after or (carried.v, carried.n, carried.k + lengths(sizes, x.device)))]
        if packed is not None and packed.unsorted_indices is not None:
            final = [t.index_select(1, packed.unsorted_indices) for t in final]
        if not batched:
            final = [t.squeeze(1) for t in final]
        state_after = as_torch(tuple(final)) if carried is None else State(*final)
        if packed is not None:
            return PackedSequence(y, *packed[1:]), state_after
        out = y.view(len(sizes), sizes[0], y.shape[-1])
        if not batched:
            return out.squeeze(1), state_after
        return out.transpose(0, 1) if self.batch_first else out, state_after

    def initial_state(self, batch_size: int | None = None) -> State:
        """The `State` before the first step.

        batch_size: the number of sequences, or None for the state of an unbatched input.
        """
        if self.bidirectional:
            raise ValueError(f"initial_state: {NO_STATE}; expected bidirectional=False")
        if batch_size is not None:
            check_integer("batch_size", batch_size, minimum=0)
        rows = () if batch_size is None else (batch_size,)
        return self._zero_state(rows, self._weight("weight_ih_l0", {}).detach())

    def explain(self, input: Tensor | PackedSequence) -> str:
        """A line for the layer and its input, then one for each backend: how it runs this, or why not.

        input: as for `forward`.
        """
        device = self._weight("weight_ih_l0", {}).device
        # Reading a weight may draw a dropout mask. This keeps the random numbers of the user unchanged.
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            net = self._network_for(input)
        x, sizes = self._checked_input(input, net.weights[0].ih)
        subject = f"{type(self).__name__}({self.extra_repr()}), {x.dtype} on {x.device}"
        return f"{subject}\n{registry.explain(self.backend, net, sizes)}"

    def flatten_parameters(self) -> None:
        """Does nothing; torch's layers have it. Each call joins the weights where cuDNN wants one block."""

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """The weights of each layer and direction, in torch's order."""
        return [[w for w in self._weights(s) if w is not None] for s in self._suffixes()]

    # Code for torch's layers reads these, and some of it assigns the weights anew.

    @property
    def _flat_weights_names(self) -> list[str]:
        return [name + suffix for suffix in self._suffixes() for name in self._weight_shapes(0)]

    @property
    def _flat_weights(self) -> tuple[Tensor, ...]:
        """A tuple, since a layer would not notice what is written into a list."""
        return tuple(weight for weights in self.all_weights for weight in weights)

    @_flat_weights.setter
    def _flat_weights(self, weights: Sequence[Tensor]) -> None:
        names = self._flat_weights_names
        if len(weights) != len(names):
            raise ValueError(f"_flat_weights should have {len(names)} tensors, got {len(weights)}")
        for name, weight in zip(names, weights, strict=True):
            if getattr(self, name, None) is not weight:
                setattr(self, name, weight)

    def _leading_axes(self) -> tuple[int, ...]:
        return (self.num_layers * (2 if self.bidirectional else 1),)

    def _suffixes(self) -> list[str]:
        directions = ("", "_reverse") if self.bidirectional else ("",)
        return [f"_l{layer}{direction}" for layer in range(self.num_layers) for direction in directions]

    def _network_for(self, input: Tensor | PackedSequence) -> Network:
        dropout = self.dropout if self.training and self.num_layers > 1 else 0.0
        return self._network(self.bidirectional, dropout, isinstance(input, PackedSequence))

    def _checked_input(self, input: Tensor | PackedSequence, weight: Tensor) -> tuple[Tensor, Sequence[int]]:
        """The input after a check, (T, B, D) or packed (N, D), and the number of rows in each step."""
        expected = "a Tensor or a PackedSequence"
        if isinstance(input, PackedSequence):
            check_input(input.data, (2,), self.input_size, weight, expected)
            return input.data, input.batch_sizes.tolist()
        check_input(input, (2, 3), self.input_size, weight, expected)
        x = input.unsqueeze(1) if input.dim() == 2 else input.transpose(0, 1) if self.batch_first else input
        if len(x) == 0:
            raise RuntimeError(f"input should have at least 1 time step, got shape {tuple(input.shape)}")
        if torch.compiler.is_dynamo_compiling() and not exporting():
            return x, EqualSizes(x.shape[0], x.shape[1])
        return x, [x.shape[1]] * len(x)


# torch.load reads layers under their present names, and under those from before modules.py was split.
torch.serialization.add_safe_globals([Recurrent, (Recurrent, "momentumrnn.modules.Recurrent")])
