"""Three ways to advance a layer by one step: in Python, as a CUDA graph, or with one kernel for each layer.

`choose_engine` takes the fastest that can run a layer.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from typing import Protocol

import torch
from torch import Tensor

from .backends import reference
from .cells import LSTM
from .cuda_graph import capture
from .kernels import lstm_step
from .momentum import (
    Adam,
    HeavyBall,
    Momentum,
    MomentumState,
    Nesterov,
    RMSProp,
    ScheduledRestart,
    decays_by_tensor_mu,
)
from .precision import autocast_enabled
from .recurrent_layer import Recurrent
from .state import State
from .torch_internals import has_forward_hooks, has_parametrizations, raw_stream

Advance = Callable[[Tensor, State], tuple[Tensor, State]]
# The momenta whose decays the kernel computes itself.
DECAYS_IN_KERNEL = HeavyBall, Nesterov, ScheduledRestart, Adam, RMSProp


class Engine(Protocol):
    """Holds a batched `State` and advances it.

    The engines below are given rows: (B,), or () if x and y have no axis of rows.
    """

    def __call__(self, x: Tensor) -> Tensor:
        """Advance the state by one step on x. Returns h of the last layer."""

    def state(self) -> State:
        """The present state. The next step may overwrite its memory."""

    def load(self, state: State) -> None:
        """Go on from another state."""


class EagerEngine:
    """Calls a function at each step."""

    def __init__(self, advance: Advance, state: State, rows: tuple[int, ...]) -> None:
        self._advance, self._state, self._unbatched = advance, state, not rows

    def __call__(self, x: Tensor) -> Tensor:
        y, self._state = self._advance(x.unsqueeze(0) if self._unbatched else x, self._state)
        return y[0] if self._unbatched else y

    def state(self) -> State:
        return self._state

    def load(self, state: State) -> None:
        self._state = state


class _GPUEngine:
    """Orders the steps of an engine on a GPU, where the user changes the CUDA stream between steps."""

    def __init__(self, device: torch.device, buffers: Sequence[Tensor]) -> None:
        self._device, self._memory = device, buffers
        self._handle = _stream_handle(device.index)
        self._stream = torch.cuda.current_stream(device)

    def _wait_for_last_stream(self) -> None:
        """If the current stream is not that of the last step, make it wait for that one."""
        handle = _stream_handle(self._device.index)
        if handle != self._handle:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_stream(self._stream)
            for tensor in self._memory:
                tensor.record_stream(stream)
            self._handle, self._stream = handle, stream


class GraphEngine(_GPUEngine):
    """Records one step of a function as a CUDA graph. Raises a RuntimeError if it can't be recorded."""

    def __init__(self, advance: Advance, x: Tensor, state: State, rows: tuple[int, ...]) -> None:
        self._x, self._state = x, state
        super().__init__(x.device, [x, *state])
        x = x if rows else x.unsqueeze(0)
        capturing = False

        def run() -> Tensor:
            y, after = advance(x, state)
            if capturing:
                self._write(after)
            return y if rows else y[0]

        def after_warmup() -> None:
            nonlocal capturing
            with _synchronisation_raises():
                run()
            capturing = True

        self._graph, self._y = capture(run, after_warmup=after_warmup, device=x.device)

    def __call__(self, x: Tensor) -> Tensor:
        self._wait_for_last_stream()
        self._x.copy_(x.detach())
        self._graph.replay()
        return self._y.clone()

    def state(self) -> State:
        self._wait_for_last_stream()
        return self._state

    def load(self, state: State) -> None:
        self._wait_for_last_stream()
        self._write(state)

    def _write(self, state: State) -> None:
        for buffer, new in zip(self._state, state, strict=True):
            buffer.copy_(new)


class KernelEngine(_GPUEngine):
    """Launches one kernel for each layer. A graph would add copies of x and y, and so be slower."""

    def __init__(
        self, layer: Recurrent, state: State, rows: tuple[int, ...], numbers: lstm_step.MomentumNumbers | None
    ) -> None:
        (h, c), momentum = state.hidden, layer.momentum
        # The decays of other momenta are computed at each step.
        in_kernel = momentum is None or type(momentum) in DECAYS_IN_KERNEL
        self._momentum = None if in_kernel else momentum
        weights = [
            [None if t is None else t.detach() for t in layer._weights(suffix)[:4]]
            for suffix in layer._suffixes()
        ]
        self._steps = lstm_step.FusedSteps(weights, numbers, h, c, state.v, state.n, state.k)
        super().__init__(h.device, self._steps.tensors())
        self._y_like = h.new_empty(*rows, h.shape[-1])

    def __call__(self, x: Tensor) -> Tensor:
        self._wait_for_last_stream()
        if not x.is_contiguous():
            x = x.contiguous()
        decay = None
        if self._momentum is not None:
            with torch.no_grad():
                decay = self._momentum.decays(self._steps.k, self._steps.v).contiguous()
        y = torch.empty_like(self._y_like)
        self._steps(x, y, decay)
        return y

    def state(self) -> State:
        self._wait_for_last_stream()
        steps = self._steps
        return State(steps.h, steps.c, steps.v, steps.n, steps.k)

    def load(self, state: State) -> None:
        for buffer, new in zip(self.state(), state, strict=True):
            buffer.copy_(new)


def choose_engine(layer: Recurrent, state: State, rows: tuple[int, ...]) -> tuple[Engine, str]:
    """The fastest engine for a layer, and a sentence for the user that says which, and why no faster one."""
    advance, name = one_step(layer)
    eager, device = EagerEngine(advance, state, rows), state.k.device
    if device.type != "cuda":
        return eager, f"{name}, at each step: it is on {device}, not on a GPU"
    if _has_own_forward(layer):
        return eager, f"{name}, at each step: it has hooks, or a forward that is not ours"
    reason, numbers = kernel_refusal(layer, state)
    if not reason:
        return KernelEngine(layer, state, rows, numbers), "one kernel launch for each layer, in float32"
    try:
        x = state.hidden[0].new_zeros(*rows, layer.input_size)
        return GraphEngine(advance, x, state, rows), f"{name}, as a CUDA graph: {reason}"
    except RuntimeError as error:
        torch.cuda.synchronize(device)
        why = str(error).splitlines()[0]
        return eager, f"{name}, at each step: {reason}, and no CUDA graph could be made: {why}"


def one_step(layer: Recurrent) -> tuple[Advance, str]:
    """A function that computes one step on x (B, D) without gradients, and its name for the user."""
    time_axis = int(layer.batch_first)

    def run_forward(x: Tensor, state: State) -> tuple[Tensor, State]:
        y, after = layer(x.unsqueeze(time_axis), state)
        return y.squeeze(time_axis), after

    # A bounded mu is a tensor of its own, which does not follow when the layer's is written to.
    changes = has_parametrizations(layer) or decays_by_tensor_mu(layer.momentum)
    fixed = None if changes else layer._network()

    def run_definition(x: Tensor, state: State) -> tuple[Tensor, State]:
        net = layer._network() if fixed is None else fixed
        moments = None if net.momentum is None else MomentumState(state.v, state.n, state.k)
        y, hidden, moments = reference.run(net, x, [len(x)], state.hidden, moments)
        return y, State(*hidden, *(moments or (state.v, state.n, state.k + 1)))

    # For one step the definition is the fastest backend: the others prepare for many steps.
    if layer.backend == "auto" and not _has_own_forward(layer):
        function, name = run_definition, "the layer's definition"
    else:
        function, name = run_forward, "the layer's forward"

    def advance(x: Tensor, state: State) -> tuple[Tensor, State]:
        casts = autocast_enabled(x.device)
        no_cast = torch.autocast(x.device.type, enabled=False) if casts else contextlib.nullcontext()
        with torch.no_grad(), no_cast:
            return function(x, state)

    return advance, name


def kernel_refusal(layer: Recurrent, state: State) -> tuple[str, lstm_step.MomentumNumbers | None]:
    """Why the kernel can't run a layer, empty if it can; and the numbers of its momentum."""
    if type(layer.cell) is not LSTM:
        return f"{layer.cell!r} has no kernel for one step", None
    if layer.proj_size:
        return f"the kernel has no projection, proj_size={layer.proj_size}", None
    if layer.backend not in ("auto", "cuda"):
        return f"backend={layer.backend!r} was asked for", None
    if has_parametrizations(layer):
        return "its weights are parametrised", None
    for i, suffix in enumerate(layer._suffixes()):
        for name, shape in layer._weight_shapes(layer.hidden_size if i else layer.input_size).items():
            w = layer._weight(name + suffix, {})
            fits = w.shape == shape and w.is_contiguous() and w.device == state.k.device
            if w.dtype != torch.float32 or not fits:
                got = f"got {w.dtype}, {tuple(w.shape)} on {w.device}"
                return f"the kernel takes weights that are contiguous and in torch.float32, {got}", None
    if state.k.shape[1] > lstm_step.MAX_ROWS:
        return f"the kernel has {lstm_step.MAX_ROWS} rows at most", None
    numbers = None
    if layer.momentum is not None:
        numbers = _momentum_numbers(layer.momentum, state)
        if numbers is None:
            kind = type(layer.momentum).__name__
            return f"the kernel takes no tensors and no decay for each gate row, as in {kind}", None
    return lstm_step.why_unavailable(state.k.device), numbers


def _momentum_numbers(momentum: Momentum, state: State) -> lstm_step.MomentumNumbers | None:
    """The numbers of a momentum; None if it has tensors, or a decay for each gate row."""
    values = [momentum.step, momentum.eps, momentum.beta or 0.0, getattr(momentum, "mu", 0.0)]
    if not all(isinstance(value, Real) for value in values):
        return None
    mu, restart_every = 0.0, -1
    if type(momentum) is HeavyBall or type(momentum) is Adam:
        mu = float(momentum.mu)
    elif type(momentum) is Nesterov:
        restart_every = 0
    elif type(momentum) is ScheduledRestart:
        restart_every = momentum.every
    elif type(momentum) not in DECAYS_IN_KERNEL:
        with torch.no_grad():
            if momentum.decays(state.k, state.v).shape != (*state.k.shape, 1):
                return None
    beta = None if momentum.beta is None else float(momentum.beta)
    step_size, eps = float(momentum.step), float(momentum.eps)
    return lstm_step.MomentumNumbers(mu, restart_every, step_size, beta, eps, momentum.eps_in_sqrt)


def _has_own_forward(layer: Recurrent) -> bool:
    """Whether a call of the layer may do more than `Recurrent.forward` does."""
    return (
        has_forward_hooks(layer) or "forward" in vars(layer) or type(layer).forward is not Recurrent.forward
    )


def _stream_handle(device: int) -> int:
    """The address of the current CUDA stream. Raises if a CUDA graph is captured on it."""
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "a Stream can't be part of a CUDA graph, which would replay one step and lose track of the state"
        )
    return raw_stream(device)


@contextlib.contextmanager
def _synchronisation_raises() -> Iterator[None]:
    """An operation that waits for the GPU raises. In a capture it would damage torch's random generators."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that this mode is new
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
