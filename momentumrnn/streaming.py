"""A layer that is fed one time step at a time, without gradients: little Python, on a GPU few launches."""

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Protocol

import torch
from torch import Tensor

from .backends import reference
from .cells import LSTM
from .kernels import step
from .modules import Recurrent, State, _check_size, _check_tensor
from .momentum import (
    MOMENTA,
    Adam,
    HeavyBall,
    Momentum,
    MomentumState,
    Nesterov,
    ScheduledRestart,
    spelt,
)

Advance = Callable[[Tensor, State], tuple[Tensor, State]]


class Stream:
    """Holds the `State` of a layer and advances it by one step at each call, without gradients.

        y_t = stream(x_t)            x_t (B, D) or, without batch_size, (D,);  y_t (B, H) or (H,)

    layer: a `Recurrent` of any cell and momentum, not bidirectional; batch_size: the rows, None for one
    sequence without that axis; state: where to begin, else at zero. What it returns is what the layer would,
    called with a State step by step, and belongs to the caller: no later call overwrites it.

    On a GPU an LSTM in float32 is one launch for each layer. Anything else runs the layer's definition, there
    recorded once as a CUDA graph: so Python in a cell or momentum of your own runs when it is recorded.
    `about` says which way is taken, and why no other. Weights are read where they are, so that a change in
    place counts from the next step on; so does another parameter, momentum or mode. Autocast does not.

    >>> from momentumrnn import LSTM, HeavyBall
    >>> stream = Stream(LSTM(3, 5, momentum=HeavyBall(mu=0.9)), batch_size=2)
    >>> for x in torch.randn(12, 2, 3):
    ...     y = stream(x)
    >>> stream.reset([1])                                # another sequence begins in row 1
    >>> y.shape, stream.state.k
    (torch.Size([2, 5]), tensor([12,  0]))
    """

    about: str

    def __init__(self, layer: Recurrent, batch_size: int | None = None, state: State | None = None) -> None:
        if not isinstance(layer, Recurrent):
            kind = f"{type(layer).__module__}.{type(layer).__qualname__}"
            raise TypeError(f"layer should be one of momentumrnn, such as momentumrnn.LSTM, got {kind}")
        if layer.bidirectional:
            raise ValueError(
                "layer should have bidirectional=False, got True: its reverse direction begins at the end"
            )
        if state is not None and not isinstance(state, State):
            raise TypeError(f"state should be a State, got {type(state).__name__}")
        if batch_size is not None:
            _check_size("batch_size", batch_size)
        if state is not None:
            given = state.k.shape[0] if state.k.dim() else None
            if batch_size is not None and batch_size != given:
                raise ValueError(f"batch_size should be that of state, {given}, got {batch_size}")
            batch_size = given
        self._layer = layer
        self._rows = () if batch_size is None else (batch_size,)
        if state is None:
            state = layer.initial_state(batch_size)
        self._way: _Way | None = None
        self._prepare(state)

    def __call__(self, x: Tensor) -> Tensor:
        """One step on x, (B, D), or (D,) without a batch_size; returns h of the last layer."""
        layer = self._layer
        if (
            layer.training is not self._training
            or layer._momentum is not self._momentum
            or [t.data_ptr() for held in self._held for t in held.values() if t is not None] != self._places
        ):
            self._prepare(self.state)
        if not isinstance(x, Tensor):
            raise TypeError(f"x should be a Tensor, got {type(x).__name__}")
        if x.shape != self._shape or x.dtype != self._dtype or x.device != self._device:
            hint = f"this Stream has batch_size={self._rows[0] if self._rows else None}"
            _check_tensor("x", x, self._shape, self._dtype, self._device, hint)
        assert self._way is not None
        return self._way(x)

    @property
    def state(self) -> State:
        """The State after the last step, as a copy: go on from it with the layer or another Stream."""
        state = self._batched()._map(Tensor.clone, Tensor.clone)
        return state if self._rows else state._unbatched()

    def reset(self, rows: Tensor | Sequence[int] | slice | None = None) -> None:
        """Begin anew at zero, in all rows or in some: indices, a mask (B,) or a slice.

        A mask on the layer's device costs no wait for the GPU.
        """
        state = self._batched()
        mask = self._mask(rows).to(self._device)
        assert self._way is not None
        self._way.load(
            state._map(lambda t: t.masked_fill(mask.unsqueeze(-1), 0), lambda k: k.masked_fill(mask, 0))
        )

    def __repr__(self) -> str:
        size = self._rows[0] if self._rows else None
        return f"{type(self).__name__}({self._layer!r}, batch_size={size}): {self.about}"

    def _batched(self) -> State:
        assert self._way is not None
        return self._way.state()

    def _mask(self, rows: Tensor | Sequence[int] | slice | None) -> Tensor:
        count = self._rows[0] if self._rows else 1
        mask = torch.zeros(count, dtype=torch.bool)
        if rows is None:
            return ~mask
        if not self._rows:
            raise ValueError(f"rows should be None, since this Stream has no batch_size, got {rows!r}")
        expected = f"rows should be indices from 0 to {count - 1}, a mask of shape ({count},) or a slice"
        if isinstance(rows, slice):
            mask[rows] = True
            return mask
        if isinstance(rows, Sequence) and not isinstance(rows, str):
            if not all(isinstance(row, int) for row in rows):
                raise TypeError(f"{expected}, got {rows!r}")
            rows = torch.tensor(rows, dtype=torch.bool if rows and isinstance(rows[0], bool) else torch.int64)
        if not isinstance(rows, Tensor):
            raise TypeError(f"{expected}, got {rows!r}")
        if rows.dtype == torch.bool:
            if rows.shape != (count,):
                raise ValueError(f"{expected}, got a mask of shape {tuple(rows.shape)}")
            return rows
        if rows.is_floating_point() or rows.is_complex():
            raise TypeError(f"{expected}, got a tensor of {rows.dtype}")
        for row in rows.flatten().tolist():
            if not -count <= row < count:
                raise IndexError(f"{expected}, got {row}")
            mask[row] = True
        return mask

    def _prepare(self, state: State) -> None:
        """Choose the way to advance, from this state on, for the layer as it is now."""
        layer = self._layer
        if layer.training and layer.dropout > 0 and layer.num_layers > 1:
            raise ValueError(
                f"layer should be in eval mode, since it has dropout={layer.dropout}, got training=True; "
                "call layer.eval()"
            )
        weight = layer._weight("weight_ih_l0", {}).detach()
        tensors = [*state.hidden, state.v, state.n, state.k]
        shapes = layer._shapes(self._rows, weight.dtype)
        if len(tensors) != len(shapes):
            expected = layer.cell.states
            raise ValueError(f"state should hold {expected} hidden tensors, got {len(state.hidden)}")
        rows = self._rows[0] if self._rows else None
        hint = f"the layer has momentum={spelt(layer._momentum)}, this Stream batch_size={rows}"
        for tensor, (name, (shape, dtype)) in zip(tensors, shapes.items(), strict=True):
            _check_tensor(f"state.{name}", tensor, shape, dtype, weight.device, hint)
        # Buffers made in inference mode could not be written to outside of it.
        with torch.inference_mode(False), torch.no_grad():
            state = state._map(Tensor.clone, Tensor.clone)
            way, about = _choose(layer, state if self._rows else state._batched(), self._rows)
        self._way, self.about = way, about
        self._dtype, self._device = weight.dtype, weight.device
        self._shape = *self._rows, layer.input_size
        self._training, self._momentum = layer.training, layer._momentum
        both = [held for m in layer.modules() for held in (m._parameters, m._buffers)]
        self._held: list[Mapping[str, Tensor | None]] = [held for held in both if held]
        # Kept, so that nothing else can come to lie where they are.
        self._kept = [t.detach() for held in self._held for t in held.values() if t is not None]
        self._places = [t.data_ptr() for t in self._kept]


class _Way(Protocol):
    """How a state is advanced; it has the axis of rows, even if x and y don't."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def state(self) -> State:
        """The state now, maybe in memory that the next step writes to."""

    def load(self, state: State) -> None: ...


class _Eager:
    """Calls at each step."""

    def __init__(self, advance: Advance, state: State, rows: tuple[int, ...]) -> None:
        self._advance, self._state, self._unbatched = advance, state, not rows

    def __call__(self, x: Tensor) -> Tensor:
        y, self._state = self._advance(x.unsqueeze(0) if self._unbatched else x, self._state)
        return y[0] if self._unbatched else y

    def state(self) -> State:
        return self._state

    def load(self, state: State) -> None:
        self._state = state


class _OnGPU:
    """What ways on a GPU share: buffers that each step writes to, on whatever stream it is called."""

    def __init__(self, device: torch.device, buffers: Sequence[Tensor]) -> None:
        self._index, self._buffers = device.index, buffers
        self._raw = step.stream(self._index)
        self._stream = step.current(device)

    def _follow(self) -> None:
        """Where the caller's stream is another than before: wait for that one."""
        raw = step.stream(self._index)
        if raw != self._raw:
            now = step.current(self._buffers[0].device)
            now.wait_stream(self._stream)
            for tensor in self._buffers:
                tensor.record_stream(now)
            self._raw, self._stream = raw, now


class _Graph(_OnGPU):
    """Those calls recorded once. Raises where that can't be."""

    def __init__(self, advance: Advance, x: Tensor, state: State, rows: tuple[int, ...]) -> None:
        self._x, self._state, device = x, state, x.device
        super().__init__(device, [x, *_tensors(state)])
        x = x if rows else x.unsqueeze(0)
        self._graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(device))
        gc.collect()  # a graph collected while another is captured would spoil it
        # Around all of it, because a capture that fails leaves its stream the current one.
        with torch.cuda.device(device), torch.cuda.stream(side):
            for _ in range(3):
                advance(x, state)
            with _no_waiting():
                advance(x, state)
            with torch.cuda.graph(self._graph, stream=side):
                y, after = advance(x, state)
                self._y = y if rows else y[0]
                self._write(after)
        torch.cuda.current_stream(device).wait_stream(side)

    def __call__(self, x: Tensor) -> Tensor:
        self._follow()
        self._x.copy_(x.detach())
        self._graph.replay()
        return self._y.clone()

    def state(self) -> State:
        self._follow()
        return self._state

    def load(self, state: State) -> None:
        self._follow()
        self._write(state)

    def _write(self, state: State) -> None:
        for held, new in zip(_tensors(self._state), _tensors(state), strict=True):
            held.copy_(new)


class _Kernels(_OnGPU):
    """One launch for each layer. No graph: it would read x from, and write y to, memory of its own."""

    def __init__(
        self, layer: Recurrent, state: State, rows: tuple[int, ...], drive: step.Drive | None
    ) -> None:
        (h, c), m = state.hidden, layer.momentum
        self._given = m if m is not None and type(m) not in MOMENTA else None
        weights = [
            [None if t is None else t.detach() for t in layer._weights(suffix)[:4]]
            for suffix in layer._suffixes()
        ]
        self._steps = step.Steps(weights, drive, h, c, state.v, state.n, state.k)
        super().__init__(h.device, self._steps.tensors())
        self._like = h.new_empty(*rows, h.shape[-1])

    def __call__(self, x: Tensor) -> Tensor:
        self._follow()
        if not x.is_contiguous():
            x = x.contiguous()
        decay = None
        if self._given is not None:
            with torch.no_grad():
                decay = self._given.decays(self._steps.k, self._steps.v[0]).contiguous()
        y = torch.empty_like(self._like)
        self._steps(x, y, decay)
        return y

    def state(self) -> State:
        self._follow()
        s = self._steps
        return State((s.h, s.c), s.v, s.n, s.k)

    def load(self, state: State) -> None:
        for held, new in zip(_tensors(self.state()), _tensors(state), strict=True):
            held.copy_(new)


@contextlib.contextmanager
def _no_waiting() -> Iterator[None]:
    """Raises where the GPU is waited for: a capture would fail there, and leave torch's generators spoilt."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that this mode is new
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def _tensors(state: State) -> list[Tensor]:
    return [*state.hidden, state.v, state.n, state.k]


def _forward(layer: Recurrent) -> tuple[Advance, str]:
    """One step of a layer on x (B, D), without gradients; and what that is."""
    time = int(layer.batch_first)

    def called(x: Tensor, state: State) -> tuple[Tensor, State]:
        y, after = layer(x.unsqueeze(time), state)
        return y.squeeze(time), after

    fixed = None if "parametrizations" in layer._modules else layer._network()

    def defined(x: Tensor, state: State) -> tuple[Tensor, State]:
        net = layer._network() if fixed is None else fixed
        moments = None if net.momentum is None else MomentumState(*state[1:])
        y, hidden, moments = reference.run(net, x, [len(x)], state.hidden, moments)
        return y, State(hidden, *(moments or state[1:]))._replace(k=state.k + 1)

    # Of one step the definition is the shortest way: backends prepare for many.
    plain = layer.backend == "auto" and not _has_own_forward(layer)
    function, name = (defined, "the layer's definition") if plain else (called, "the layer's forward")

    def advance(x: Tensor, state: State) -> tuple[Tensor, State]:
        kind = x.device.type
        casts = kind != "meta" and torch.is_autocast_enabled(kind)
        with torch.no_grad(), torch.autocast(kind, enabled=False) if casts else contextlib.nullcontext():
            return function(x, state)

    return advance, name


def _has_own_forward(layer: Recurrent) -> bool:
    """Whether calling it does more than we know of."""
    hooks = layer._forward_hooks or layer._forward_pre_hooks
    return bool(hooks) or "forward" in vars(layer) or type(layer).forward is not Recurrent.forward


def _choose(layer: Recurrent, state: State, rows: tuple[int, ...]) -> tuple[_Way, str]:
    """The fastest way that serves a layer, and a sentence on it."""
    advance, name = _forward(layer)
    eager, device = _Eager(advance, state, rows), state.k.device
    if device.type != "cuda":
        return eager, f"{name}, at each step: it is on {device}, not on a GPU"
    if _has_own_forward(layer):
        return eager, f"{name}, at each step: it has hooks, or a forward that is not ours"
    reason, drive = _refusal(layer, state)
    if not reason:
        return _Kernels(layer, state, rows, drive), "one kernel launch for each layer, in float32"
    try:
        x = state.hidden[0].new_zeros(*rows, layer.input_size)
        return _Graph(advance, x, state, rows), f"{name}, as a CUDA graph: {reason}"
    except RuntimeError as error:
        torch.cuda.synchronize(device)
        why = str(error).splitlines()[0]
        return eager, f"{name}, at each step: {reason}, and no CUDA graph could be made: {why}"


def _refusal(layer: Recurrent, state: State) -> tuple[str, step.Drive | None]:
    """Why the kernel can't run a layer, empty if it can; and its momentum in numbers."""
    if type(layer.cell) is not LSTM:
        return f"{layer.cell!r} has no kernel for one step", None
    if layer.proj_size:
        return f"the kernel has no projection, proj_size={layer.proj_size}", None
    if layer.backend not in ("auto", "cuda"):
        return f"backend={layer.backend!r} was asked for", None
    if "parametrizations" in layer._modules:
        return "its weights are parametrised", None
    for i, suffix in enumerate(layer._suffixes()):
        for name, shape in layer._weight_shapes(layer.hidden_size if i else layer.input_size).items():
            w = layer._weight(name + suffix, {})
            fits = w.shape == shape and w.is_contiguous() and w.device == state.k.device
            if w.dtype != torch.float32 or not fits:
                got = f"got {w.dtype}, {tuple(w.shape)} on {w.device}"
                return f"the kernel takes weights that are contiguous and in torch.float32, {got}", None
    if len(state.k) > step.MOST:
        return f"the kernel has {step.MOST} rows at most", None
    m = layer.momentum
    if m is None:
        return step.lacking(state.k.device), None
    drive = _drive(m, state)
    if drive is None:
        return f"the kernel knows no factors for each channel, as in {type(m).__name__}", None
    return step.lacking(state.k.device), drive


def _drive(m: Momentum, state: State) -> step.Drive | None:
    """A momentum in numbers; None if it has tensors, or a decay for each channel."""
    numbers = [m.step, m.eps, m.beta or 0.0, getattr(m, "mu", 0.0)]
    if not all(isinstance(number, Real) for number in numbers):
        return None
    mu, every = 0.0, -1
    if type(m) is HeavyBall or type(m) is Adam:
        mu = float(m.mu)
    elif type(m) is Nesterov:
        every = 0
    elif type(m) is ScheduledRestart:
        every = m.every
    elif type(m) not in MOMENTA:
        with torch.no_grad():
            if m.decays(state.k, state.v[0]).shape != (len(state.k), 1):
                return None
    beta = None if m.beta is None else float(m.beta)
    return step.Drive(mu, every, float(m.step), beta, float(m.eps), m.eps_in_sqrt)
