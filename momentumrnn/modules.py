"""Layers that drop in for torch.nn.LSTM, GRU and RNN, their cells, and the state that lets them stream."""

import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import (
    is_parametrized,
    remove_parametrizations,
    type_before_parametrizations,
)
from torch.nn.utils.rnn import PackedSequence

from . import backends, cells
from .backends import cuda, reference
from .backends.stack import Network, exporting
from .cells import Cell, Weights
from .init import BY_NAME, Init
from .momentum import RATES, Momentum, MomentumState, learned, spelt, wide
from .packing import Even, lengths

Device = torch.device | str | int | None


class State(NamedTuple):
    """All that a layer carries from one piece of a sequence to the next.

    hidden: `(h,)`, for an LSTM `(h, c)`, each (L, B, H), L layers; v, n: first and second moment, (L, B, G),
    G gate rows, or (L, B, 0) where the momentum has none; k: (B,), the steps that each row has taken. An
    unbatched state lacks the axis B, a cell's the axis L.

    >>> from momentumrnn import HeavyBall
    >>> lstm = LSTM(3, 5, momentum=HeavyBall(mu=0.9))
    >>> state = lstm.initial_state(batch_size=2)
    >>> for chunk in torch.randn(12, 2, 3).split(4):
    ...     out, state = lstm(chunk, state.detach())
    >>> state.k
    tensor([12, 12])
    """

    hidden: tuple[Tensor, ...]
    v: Tensor
    n: Tensor
    k: Tensor

    def detach(self) -> "State":
        """The same state, cut off from the graph that made it."""
        return self._map(Tensor.detach, Tensor.detach)

    def to(self, *args: Any, **kwargs: Any) -> "State":
        """As `Tensor.to`; moments stay in float32 at least, and k an integer."""
        hidden = tuple(h.to(*args, **kwargs) for h in self.hidden)
        device, dtype = hidden[0].device, wide(hidden[0].dtype)
        return State(hidden, self.v.to(device, dtype), self.n.to(device, dtype), self.k.to(device))

    def select(self, rows: Tensor | Sequence[int] | slice) -> "State":
        """The state of some rows of the batch: indices, a mask or a slice."""
        if self.k.dim() == 0:
            raise ValueError("select: an unbatched State has no rows")
        if not isinstance(rows, Tensor | Sequence | slice) or isinstance(rows, str):
            raise TypeError(f"select: rows should be indices, a mask or a slice, got {rows!r}")
        rows = list(rows) if isinstance(rows, Sequence) else rows
        return self._map(lambda t: t[..., rows, :], lambda k: k[rows])

    def _batched(self) -> "State":
        return self._map(lambda t: t.unsqueeze(-2), lambda k: k.unsqueeze(-1))

    def _unbatched(self) -> "State":
        return self._map(lambda t: t.squeeze(-2), lambda k: k.squeeze(-1))

    def _map(self, of_rows: Callable[[Tensor], Tensor], of_k: Callable[[Tensor], Tensor]) -> "State":
        hidden = tuple(map(of_rows, self.hidden))
        return State(hidden, of_rows(self.v), of_rows(self.n), of_k(self.k))


torch.serialization.add_safe_globals([State])  # so that torch.load takes it


class _Module(nn.Module):
    """What layers and cells share: weights by torch's names, and states read and checked."""

    cell: Cell
    _momentum: Momentum | None
    hidden_size: int
    proj_size: int
    bias: bool | str
    init: str | Init
    factored: bool | str
    _shown: ClassVar[dict[str, object]]

    @property
    def momentum(self) -> Momentum | None:
        """The momentum, with what is registered now as `momentum_mu` and `momentum_step` for its tensors.

        One that is set later brings its own, or none: those registered before are dropped.
        """
        return self._bound({})

    @momentum.setter
    def momentum(self, momentum: Momentum | None) -> None:
        _check_kinds(self.cell, momentum)
        tensors = learned(momentum)
        self._check_rates(tensors)
        for name, tensor in tensors.items():
            if tensor.requires_grad and not tensor.is_leaf:
                raise ValueError(
                    f"momentum: {name} should be a tensor or Parameter of its own, got one computed from "
                    f"others; to constrain it, parametrise the layer's momentum_{name}"
                )
        for name in map("momentum_{}".format, RATES):
            if is_parametrized(self, name):
                remove_parametrizations(self, name, leave_parametrized=False)
            if name in self._parameters or name in self._buffers:
                delattr(self, name)
        for name, tensor in tensors.items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(f"momentum_{name}", tensor)
            else:
                self.register_buffer(f"momentum_{name}", tensor)
        self._momentum = momentum

    def _check_rates(self, tensors: dict[str, Tensor]) -> None:
        gates, rows = self.cell.gates, self.cell.gates * self.hidden_size
        for name, tensor in tensors.items():
            if tensor.dim() > 1 or tensor.numel() not in (1, gates, rows):
                raise ValueError(
                    f"momentum: {name} should have 1 entry, {gates} (for each gate) or {rows} (for each gate "
                    f"row, in torch's order), got shape {tuple(tensor.shape)}"
                )

    def _bound(self, seen: dict[int, Tensor]) -> Momentum | None:
        """The momentum as it is now; seen: see `_weights`."""
        names = learned(self._momentum)
        if not names:
            return self._momentum
        now = {name: self._weight(f"momentum_{name}", seen) for name in names}
        return replace(cast(Any, self._momentum), **now)  # type: ignore[no-any-return]

    def _weight_shapes(self, columns: int) -> dict[str, tuple[int, ...]]:
        """The weights of one direction of one layer, in torch's order."""
        rows, out = self.cell.gates * self.hidden_size, self.proj_size or self.hidden_size
        return {
            "weight_ih": (rows, columns),
            "weight_hh": (rows, out),
            **({"bias_ih": (rows,)} if self.bias is True else {}),
            **({"bias_hh": (rows,)} if self.bias else {}),
            **({"weight_hr": (out, self.hidden_size)} if self.proj_size else {}),
        }

    def _add_weights(self, suffix: str, columns: int, device: Device, dtype: torch.dtype | None) -> None:
        for name, shape in self._weight_shapes(columns).items():
            empty = torch.empty(shape, device=device, dtype=dtype)
            self.register_parameter(name + suffix, nn.Parameter(empty))

    def _weights(self, suffix: str, seen: dict[int, Tensor] | None = None) -> Weights:
        """The weights of one direction of one layer; a parametrisation met before is in `seen`."""
        seen = {} if seen is None else seen
        ih, hh = self._weight("weight_ih" + suffix, seen), self._weight("weight_hh" + suffix, seen)
        b_ih = self._weight("bias_ih" + suffix, seen) if self.bias is True else None
        b_hh = self._weight("bias_hh" + suffix, seen) if self.bias else None
        hr = self._weight("weight_hr" + suffix, seen) if self.proj_size else None
        return Weights(ih, hh, b_ih, b_hh, hr)

    def _weight(self, name: str, seen: dict[int, Tensor]) -> Tensor:
        # Asked of the module first: of a name it costs more.
        if "parametrizations" not in self._modules or not is_parametrized(self, name):
            return getattr(self, name)  # type: ignore[no-any-return]
        # Layers that share a matrix share its parametrisation: it is evaluated once.
        key = id(self.parametrizations[name])  # type: ignore[index]
        if key not in seen:
            seen[key] = getattr(self, name)
        return seen[key]

    def reset_parameters(self) -> None:
        """Draw all weights anew, as `init` says. What a momentum has learned stays."""
        fill = BY_NAME[self.init] if isinstance(self.init, str) else self.init
        for suffix in self._suffixes():
            for name in self._weight_shapes(0):
                weight = getattr(self, name + suffix)
                fill(name, weight, self.cell, self.hidden_size)
                if is_parametrized(self, name + suffix):
                    setattr(self, name + suffix, weight)  # what was filled is a copy

    def extra_repr(self) -> str:
        cell = [repr(self.cell)] if type_before_parametrizations(self) in (Recurrent, RecurrentCell) else []
        values = {name: getattr(self, name) for name in self._shown}
        different = (
            f"{name}={spelt(value) if isinstance(value, Momentum) else repr(value)}"
            for name, value in values.items()
            if value != self._shown[name]
        )
        return ", ".join([*cell, f"{self.input_size}, {self.hidden_size}", *different])

    def _shapes(
        self, rows: tuple[int, ...], dtype: torch.dtype
    ) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of each tensor of a State for so many rows, () if unbatched, of such an input."""
        gates = self.cell.gates * self.hidden_size
        first = 0 if self._momentum is None else gates
        second = 0 if self._momentum is None or self._momentum.linear else gates
        lead = (*self._lead(), *rows)
        return {
            **{f"hidden[{i}]": ((*lead, width), dtype) for i, width in enumerate(self._widths())},
            "v": ((*lead, first), wide(dtype)),
            "n": ((*lead, second), wide(dtype)),
            "k": (rows, torch.int64),
        }

    def _widths(self) -> tuple[int, ...]:
        """The columns of each hidden tensor."""
        first, *others = self.cell.widths(self.hidden_size)
        return self.proj_size or first, *others

    @abstractmethod
    def _lead(self) -> tuple[int, ...]:
        """The leading axis of a State's tensors, before the batch: layers and directions, or none."""

    @abstractmethod
    def _suffixes(self) -> list[str]:
        """What follows the name of a weight, for each layer and direction."""

    def _network(self, bidirectional: bool = False, dropout: float = 0.0, packed: bool = False) -> Network:
        """What backends run, with the weights as they are now."""
        _check_kinds(self.cell, self._momentum)  # the cell may have been set since
        seen: dict[int, Tensor] = {}
        weights, factored = [self._weights(suffix, seen) for suffix in self._suffixes()], ""
        momentum = self._bound(seen)
        tensors = learned(momentum)
        self._check_rates(tensors)  # they may have been set since: kernels would read beyond smaller ones
        for name, tensor in tensors.items():
            if tensor.device != weights[0].ih.device:
                raise RuntimeError(
                    f"momentum_{name} should be on {weights[0].ih.device}, got {tensor.device}; "
                    "the layer's .to() moves both"
                )
        if self.factored and (momentum is None or momentum.commutes):
            weights = [
                Weights(w.hh @ w.ih, w.hh, None if w.b_ih is None else w.hh @ w.b_ih, w.b_hh) for w in weights
            ]
        elif self.factored:
            factored = "printed" if self.factored == "printed" else "derived"
        return Network(self.cell, momentum, weights, bidirectional, dropout, packed, factored)

    def _zeros(self, rows: tuple[int, ...], like: Tensor) -> State:
        shapes = self._shapes(rows, like.dtype)
        *hidden, v, n, k = (like.new_zeros(shape, dtype=dtype) for shape, dtype in shapes.values())
        return State(tuple(hidden), v, n, k)

    def _read(self, hx: Any, rows: tuple[int, ...], x: Tensor) -> State:
        """hx, checked, as a State; from torch's hx, or None, one without moments."""
        lead = *self._lead(), *rows
        # Without a State nobody reads k.
        none, k = x.new_empty(*lead, 0), x.new_empty(rows, dtype=torch.int64)
        if hx is None:
            widths = self._widths()
            zeros = {width: x.new_zeros(*lead, width) for width in set(widths)}
            return State(tuple(zeros[width] for width in widths), none, none, k)
        shapes, states = self._shapes(rows, x.dtype), self.cell.states
        if isinstance(hx, State):
            given, named = [*hx.hidden, hx.v, hx.n, hx.k], [f"hx.{name}" for name in shapes]
        elif states == 1:
            given, named = [hx], ["hx"]
        elif isinstance(hx, tuple | list):
            given, named = list(hx), [f"hx[{i}]" for i in range(states)]
        else:
            raise TypeError(f"hx should be a tuple of {states} tensors or a State, got {type(hx).__name__}")
        if len(given) != len(named):
            count = len(hx.hidden if isinstance(hx, State) else hx)
            raise ValueError(f"hx should hold {states} hidden tensors, got {count}")
        for name, tensor, (shape, dtype) in zip(named, given, shapes.values(), strict=False):
            hint = f"the input has {rows[0]} rows" if rows else "the input is unbatched"
            differs = isinstance(tensor, Tensor) and tensor.shape != shape
            if differs and name in ("hx.v", "hx.n") and tensor.shape[:-1] == shape[:-1]:
                hint = f"this layer has momentum={spelt(self.momentum)}"
            _check_tensor(name, tensor, shape, dtype, x.device, hint)
        return hx if isinstance(hx, State) else State(tuple(given), none, none, k)


class Recurrent(_Module):
    """A recurrent network of any cell, driven by any momentum, with the options of torch's layers.

        a_t = W x_t + b_ih,   v = momentum(a),   state_t = cell(v_t, U h_{t-1}, b_hh, state_{t-1})

    Arguments, shapes, parameter names and results are those of `torch.nn.LSTM`, and some more:

    bias: also `"hh"`, the recurrent bias alone, so that nothing but W x goes through the momentum.
    momentum: a `Momentum` such as `HeavyBall(mu=0.6)`; None is the plain layer. Where its mu or step is a
    tensor, it becomes `momentum_mu` or `momentum_step` of the layer, a Parameter to be learned, any other
    a buffer. All layers of a stack and both directions share it.
    init: how the weights begin: "torch", "paper", "dtriv", or an object such as `init.Paper(forget_bias=-4)`.
    factored: for square U, the drive enters through U, as `U v_t`, so that W stands for U⁻¹ W: the paper's
    remarks 1 and 4. Under Adam and RMSProp True is as derived, U M(a); "printed" divides after U.
    backend: "auto" takes the fastest that can run a call; `explain` says which.

    `forward(input, hx)` takes torch's hx and returns torch's tuple, the momentum starting at zero; given a
    `State` it returns a `State`.

    >>> from momentumrnn import HeavyBall, cells
    >>> rnn = Recurrent(cells.Elman("modrelu"), 3, 5, bias="hh", momentum=HeavyBall(mu=0.9))
    >>> out, h = rnn(torch.randn(7, 2, 3))
    >>> out.shape, h.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]))
    """

    _shown: ClassVar[dict[str, object]] = {
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
    ) -> None:
        super().__init__()
        _check_kinds(cell, momentum)
        _check_size("input_size", input_size)
        _check_size("hidden_size", hidden_size)
        _check_size("num_layers", num_layers)
        _check_size("proj_size", proj_size, least=0)
        _check_choice("bias", bias, (True, False, "hh"))
        _check_choice("batch_first", batch_first, (True, False))
        _check_choice("bidirectional", bidirectional, (True, False))
        _check_choice("backend", backend, backends.NAMES)
        if isinstance(dropout, bool) or not isinstance(dropout, int | float | Real):
            raise TypeError(f"dropout should be a number in [0, 1], got {dropout!r}")
        if not 0 <= dropout <= 1:
            raise ValueError(f"dropout should be a number in [0, 1], got {dropout!r}")
        if dropout > 0 and num_layers == 1:
            warnings.warn(
                f"dropout={dropout} acts between layers, and there is one: num_layers=1",
                stacklevel=3,
            )
        if proj_size >= hidden_size:
            raise ValueError(f"proj_size should be smaller than hidden_size={hidden_size}, got {proj_size}")
        if proj_size and not cell.projects:
            raise ValueError(f"proj_size should be 0, since {cell!r} has no projection, got {proj_size}")
        self.cell = cell
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        _check_init(init)
        _check_factored(factored, cell, proj_size)
        self.init = init
        self.factored = factored
        self.backend = backend
        out = (proj_size or hidden_size) * (2 if bidirectional else 1)
        for suffix in self._suffixes():
            columns = input_size if suffix.startswith("_l0") else out
            self._add_weights(suffix, columns, device, dtype)
        self.momentum = momentum
        self.reset_parameters()

    def forward(self, input: Tensor | PackedSequence, hx: Any = None) -> tuple[Any, Any]:
        """Outputs of all steps, and the final state: torch's hx gives torch's tuple, a State gives a State.

        With torch's hx, or None, the momentum starts at zero: to go on with a sequence, carry the State.
        """
        net = self._asked(input)
        # Unrolled over time a layer takes minutes to compile; so a graph breaks here, as at torch's layers,
        # unless an operator of our own runs it.
        if torch.compiler.is_dynamo_compiling() and not exporting() and not self._traces(net, input):
            return torch.compiler.disable(self._forward)(net, input, hx)  # type: ignore[no-any-return, no-untyped-call]
        return self._forward(net, input, hx)

    def _traces(self, net: Network, input: Tensor | PackedSequence) -> bool:
        """Whether the backend that will run this is the one which torch.compile can follow."""
        if isinstance(input, PackedSequence) or self.backend not in ("auto", "cuda"):
            return False
        _, sizes = self._rows(input, net.weights[0].ih)
        return not cuda.supports(net, sizes)

    def _forward(self, net: Network, input: Tensor | PackedSequence, hx: Any) -> tuple[Any, Any]:
        x, sizes = self._rows(input, net.weights[0].ih)
        if isinstance(hx, State) and self.bidirectional:
            raise ValueError(
                "hx should be torch's, got a State: a bidirectional layer can't stream, since its "
                "reverse direction begins at the end of the sequence"
            )
        packed = input if isinstance(input, PackedSequence) else None
        batched = isinstance(input, PackedSequence) or input.dim() == 3
        state = self._read(hx, (sizes[0],) if batched else (), x)
        if not batched:
            state = state._batched()
        if packed is not None and packed.sorted_indices is not None:
            state = state.select(packed.sorted_indices)

        streams = isinstance(hx, State) and net.momentum is not None
        moments = MomentumState(*state[1:]) if streams else None
        run = backends.choose(self.backend, net, sizes).run
        y, hidden, moments = run(net, x, sizes, state.hidden, moments)

        v, n, k = moments or state[1:]
        if isinstance(hx, State):
            k = state.k + lengths(sizes, x.device)
        after = State(hidden, v, n, k)
        if packed is not None and packed.unsorted_indices is not None:
            after = after.select(packed.unsorted_indices)
        if not batched:
            after = after._unbatched()
        final = after if isinstance(hx, State) else _as_torch(after.hidden)
        if packed is not None:
            return PackedSequence(y, *packed[1:]), final
        out = y.view(len(sizes), sizes[0], y.shape[-1])
        if not batched:
            return out.squeeze(1), final
        return out.transpose(0, 1) if self.batch_first else out, final

    def initial_state(self, batch_size: int | None = None) -> State:
        """The State before the first step of `batch_size` sequences; without a size, of one unbatched."""
        if self.bidirectional:
            raise ValueError(
                "initial_state: a bidirectional layer can't stream, since its reverse direction begins at "
                "the end of the sequence; expected bidirectional=False"
            )
        if batch_size is not None:
            _check_size("batch_size", batch_size)
        return self._zeros(
            () if batch_size is None else (batch_size,), self._weight("weight_ih_l0", {}).detach()
        )

    def explain(self, input: Tensor | PackedSequence) -> str:
        """Which backend will run this input, and why the others won't."""
        place = self._weight("weight_ih_l0", {}).device
        with torch.random.fork_rng(
            [place] if place.type == "cuda" else []
        ):  # reading weights may draw a mask
            net = self._asked(input)
        x, sizes = self._rows(input, net.weights[0].ih)
        what = f"{self.cell!r}, momentum={spelt(net.momentum)}, {x.dtype} on {x.device}"
        return f"{what}\n{backends.explain(self.backend, net, sizes)}"

    def flatten_parameters(self) -> None:
        """Nothing to do: where cuDNN wants the weights in one piece, they are joined at each call."""

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """The weights of each layer and direction, in torch's order."""
        return [[w for w in self._weights(s) if w is not None] for s in self._suffixes()]

    def _lead(self) -> tuple[int, ...]:
        return (self.num_layers * (2 if self.bidirectional else 1),)

    def _suffixes(self) -> list[str]:
        turns = ("", "_reverse") if self.bidirectional else ("",)
        return [f"_l{layer}{turn}" for layer in range(self.num_layers) for turn in turns]

    def _asked(self, input: Tensor | PackedSequence) -> Network:
        dropout = self.dropout if self.training and self.num_layers > 1 else 0.0
        return self._network(self.bidirectional, dropout, isinstance(input, PackedSequence))

    def _rows(self, input: Tensor | PackedSequence, weight: Tensor) -> tuple[Tensor, Sequence[int]]:
        """The input, checked, as packed rows (N, D), and how many of them are in each step."""
        if isinstance(input, PackedSequence):
            _check_input(input.data, (2,), self.input_size, weight)
            return input.data, input.batch_sizes.tolist()
        _check_input(input, (2, 3), self.input_size, weight)
        x = input.unsqueeze(1) if input.dim() == 2 else input.transpose(0, 1) if self.batch_first else input
        if len(x) == 0:
            raise RuntimeError(f"input should have at least 1 time step, got shape {tuple(input.shape)}")
        if torch.compiler.is_dynamo_compiling() and not exporting():
            return x.flatten(0, 1), Even(x.shape[0], x.shape[1])
        return x.flatten(0, 1), [x.shape[1]] * len(x)


class LSTM(Recurrent):
    """`torch.nn.LSTM` with a momentum.

        v_t = mu v_{t-1} + step (W x_t + b_ih)         for HeavyBall(mu, step)
        i, f, g, o = v_t + U h_{t-1} + b_hh
        c_t = σ(f) c_{t-1} + σ(i) tanh(g),   h_t = σ(o) tanh(c_t)

    Shapes: input (T, B, D), with batch_first (B, T, D), unbatched (T, D), or a PackedSequence; output
    (T, B, directions * H); h_n and c_n (layers * directions, B, H); with proj_size P, h has P features.
    Reference: Nguyen et al., MomentumRNN, NeurIPS 2020.

    >>> from momentumrnn import HeavyBall
    >>> lstm = LSTM(10, 20, num_layers=2, batch_first=True, momentum=HeavyBall(mu=0.6, step=1.0))
    >>> out, (h, c) = lstm(torch.randn(3, 5, 10))
    >>> out.shape, h.shape
    (torch.Size([3, 5, 20]), torch.Size([2, 3, 20]))
    """

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
        )


class GRU(Recurrent):
    """`torch.nn.GRU` with a momentum, on the inputs of all three gates.

        v_t = mu v_{t-1} + step (W x_t + b_ih)         for HeavyBall(mu, step)
        r = σ(v_r + U_r h_{t-1} + b_hr),   z = σ(v_z + U_z h_{t-1} + b_hz)
        n = tanh(v_n + r (U_n h_{t-1} + b_hn)),   h_t = (1 - z) n + z h_{t-1}

    Shapes as in `LSTM`, with the one state h_n.

    >>> from momentumrnn import Nesterov
    >>> out, h = GRU(3, 5, momentum=Nesterov())(torch.randn(7, 2, 3))
    >>> out.shape, h.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]))
    """

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
        )


class RNN(Recurrent):
    """`torch.nn.RNN` with a momentum; nonlinearity "tanh", "relu", "sigmoid" or "modrelu".

        v_t = mu v_{t-1} + step (W x_t + b_ih)         for HeavyBall(mu, step)
        h_t = f(v_t + U h_{t-1} + b_hh)
        h_t = sign(y) max(|y| + b_hh, 0),   y = v_t + U h_{t-1}       for modrelu

    Shapes as in `LSTM`, with the one state h_n.

    >>> from momentumrnn import Adam
    >>> out, h = RNN(3, 5, nonlinearity="relu", momentum=Adam(beta=0.9))(torch.randn(7, 2, 3))
    >>> out.shape, h.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]))
    """

    _shown: ClassVar[dict[str, object]] = {"nonlinearity": "tanh", **Recurrent._shown}

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
        )
        self.nonlinearity = nonlinearity


class RecurrentCell(_Module):
    """One step of a recurrent network of any cell, driven by any momentum.

    `forward(input, hx)`, input (B, D) or (D,), takes and returns what torch's cells do; given a `State` it
    returns a `State`. Only a State carries the momentum from step to step.

    >>> from momentumrnn import Adam, cells
    >>> cell = RecurrentCell(cells.Elman("modrelu"), 3, 5, momentum=Adam())
    >>> cell(torch.randn(2, 3), cell.initial_state(batch_size=2)).hidden[0].shape
    torch.Size([2, 5])
    """

    _shown: ClassVar[dict[str, object]] = {"bias": True, "momentum": None, "init": "torch", "factored": False}

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
    ) -> None:
        super().__init__()
        _check_kinds(cell, momentum)
        _check_size("input_size", input_size)
        _check_size("hidden_size", hidden_size)
        _check_choice("bias", bias, (True, False, "hh"))
        self.cell = cell
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        self.proj_size = 0
        _check_init(init)
        _check_factored(factored, cell, 0)
        self.init = init
        self.factored = factored
        self._add_weights("", input_size, device, dtype)
        self.momentum = momentum
        self.reset_parameters()

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        """One step; hx and the result as in torch, or a State each."""
        net = self._network()
        w = net.weights[0]
        _check_input(input, (1, 2), self.input_size, w.ih)
        batched = input.dim() == 2
        state = self._read(hx, input.shape[:-1], input)
        if not batched:
            input = input.unsqueeze(0)
            state = state._batched()
        streams = isinstance(hx, State) and net.momentum is not None
        if hx is not None and net.momentum is not None and not streams:
            warnings.warn(
                f"{type(self).__name__} was given torch's hx, so its momentum starts at zero; to carry "
                "it from step to step, begin with initial_state() and pass the State on",
                stacklevel=4,  # past Module.__call__
            )
        moments = MomentumState(*state[1:]) if streams else None
        _, hidden, moments = reference.layer(input, [len(input)], w, net, state.hidden, moments)
        after = State(hidden, *((moments if streams else None) or state[1:]))._replace(k=state.k + 1)
        if not batched:
            after = after._unbatched()
        return after if isinstance(hx, State) else _as_torch(after.hidden)

    def initial_state(self, batch_size: int | None = None) -> State:
        """The State before the first step of `batch_size` sequences; without a size, of one unbatched."""
        if batch_size is not None:
            _check_size("batch_size", batch_size)
        return self._zeros(
            () if batch_size is None else (batch_size,), self._weight("weight_ih", {}).detach()
        )

    def _lead(self) -> tuple[int, ...]:
        return ()

    def _suffixes(self) -> list[str]:
        return [""]


class LSTMCell(RecurrentCell):
    """`torch.nn.LSTMCell` with a momentum: one step of `LSTM`.

    >>> from momentumrnn import HeavyBall
    >>> cell = LSTMCell(3, 5, momentum=HeavyBall(mu=0.9))
    >>> state = cell.initial_state(batch_size=2)
    >>> for x in torch.randn(7, 2, 3):
    ...     state = cell(x, state)
    >>> h, c = state.hidden
    """

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
    ) -> None:
        super().__init__(
            cells.LSTM(), input_size, hidden_size, bias, device, dtype, momentum=momentum, init=init
        )


class GRUCell(RecurrentCell):
    """`torch.nn.GRUCell` with a momentum: one step of `GRU`, used as `LSTMCell`.

    >>> GRUCell(3, 5)(torch.randn(2, 3)).shape
    torch.Size([2, 5])
    """

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
    ) -> None:
        super().__init__(
            cells.GRU(), input_size, hidden_size, bias, device, dtype, momentum=momentum, init=init
        )


class RNNCell(RecurrentCell):
    """`torch.nn.RNNCell` with a momentum: one step of `RNN`, used as `LSTMCell`.

    >>> RNNCell(3, 5, nonlinearity="relu")(torch.randn(2, 3)).shape
    torch.Size([2, 5])
    """

    _shown: ClassVar[dict[str, object]] = {"nonlinearity": "tanh", **RecurrentCell._shown}

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
        )
        self.nonlinearity = nonlinearity


def _as_torch(hidden: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    return hidden if len(hidden) > 1 else hidden[0]


def _check_kinds(cell: object, momentum: object) -> None:
    if not isinstance(cell, Cell):
        raise TypeError(f"cell should be a Cell such as cells.LSTM(), got {cell!r}")
    for name in ("gates", "states"):
        _check_size(f"{type(cell).__name__}.{name}", getattr(cell, name, None))
    if momentum is not None and not isinstance(momentum, Momentum):
        raise TypeError(f"momentum should be None or a Momentum such as HeavyBall(mu=0.6), got {momentum!r}")


def _check_size(name: str, value: object, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        shown = "a Tensor" if isinstance(value, Tensor) else repr(value)
        raise TypeError(f"{name} should be an integer, got {shown}")
    if value < least:
        raise ValueError(f"{name} should be at least {least}, got {value}")


def _check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    if not any(value is c or (isinstance(c, str) and value == c) for c in choices):
        one_of = ", ".join(map(repr, choices))
        kind = ValueError if isinstance(value, str) else TypeError
        raise kind(f"{name} should be one of {one_of}, got {value!r}")


def _check_init(init: object) -> None:
    if not isinstance(init, Init):
        names = ", ".join(map(repr, BY_NAME))
        kind = ValueError if isinstance(init, str) else TypeError
        if not isinstance(init, str) or init not in BY_NAME:
            raise kind(f"init should be one of {names}, or an Init such as init.Paper(), got {init!r}")


def _check_factored(factored: object, cell: Cell, proj_size: int) -> None:
    _check_choice("factored", factored, (True, False, "printed"))
    if factored and (cell.gates != 1 or proj_size):
        raise ValueError(f"factored should be False, since U is not square for {cell!r}, got {factored!r}")


def _check_input(x: object, dims: Sequence[int], features: int, weight: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"input should be a Tensor or a PackedSequence, got {type(x).__name__}")
    if x.dim() not in dims:
        expected = " or ".join(f"{d}-D" for d in dims)
        raise ValueError(f"input should be {expected}, got {x.dim()}-D, shape {tuple(x.shape)}")
    if x.shape[-1] != features:
        raise RuntimeError(
            f"input should have input_size={features} features in its last axis, got shape {tuple(x.shape)}"
        )
    _check_place("input", x, weight.dtype, weight.device)


def _check_tensor(
    name: str, x: object, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, hint: str
) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} should be a Tensor, got {type(x).__name__}")
    if x.shape != shape:
        raise RuntimeError(f"{name} should have shape {shape}, got {tuple(x.shape)}; {hint}")
    _check_place(name, x, dtype, device)


def _check_place(name: str, x: Tensor, dtype: torch.dtype, device: torch.device) -> None:
    casts = device.type != "meta" and torch.is_autocast_enabled(device.type)
    if x.dtype != dtype and not (casts and x.is_floating_point() and dtype.is_floating_point):
        raise ValueError(f"{name} should have dtype {dtype}, got {x.dtype}")
    if x.device != device:
        raise RuntimeError(f"{name} should be on {device}, got {x.device}")
