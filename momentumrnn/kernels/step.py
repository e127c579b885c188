"""One time step of LSTM layers on lstm_step.cu: a launch for each layer, its arguments packed beforehand."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import fused, nvrtc

UNITS, THREADS = 2, 512  # of a block, see lstm_step.cu
MOST = 8 * 65535  # rows, by the size of a grid
X, Y, DECAY = 0, 1, 2  # the arguments that are others at each step


class Drive(NamedTuple):
    """A momentum in numbers.

    every: -1 for the constant decay mu, 0 for k / (k + 3), else that begun anew so often; beta: None without
    a second moment; inside: whether eps² stands within the root.
    """

    mu: float = 0.0
    every: int = -1
    step: float = 1.0
    beta: float | None = None
    eps: float = 1e-8
    inside: bool = True


class Steps:
    """The state of L layers for B rows, and what advances it by one step.

    weights: of each layer W (4H, D), U (4H, H), and two biases (4H,) or None, which should stay where they
    are as long as this is used; drive: None without momentum; h, c: (L, B, H); v, n: (L, B, 4H), or
    (L, B, 0); k: (B,). All in float32 but k, on one GPU, weights contiguous.
    """

    def __init__(
        self,
        weights: Sequence[Sequence[Tensor | None]],
        drive: Drive | None,
        h: Tensor,
        c: Tensor,
        v: Tensor,
        n: Tensor,
        k: Tensor,
    ) -> None:
        # Copies, in the order in which the kernel counts on them.
        h, self.c, self.v, self.n, k = (
            t.clone(memory_format=torch.contiguous_format) for t in (h, c, v, n, k)
        )
        self._h, self._k = (h, torch.empty_like(h)), (k, torch.empty_like(k))
        self._turn = 0
        B, H = h.shape[1:]
        rows = min(8, 1 << (B - 1).bit_length())
        moments = 0 if drive is None else 1 if drive.beta is None else 2
        grid = -(-H // UNITS), -(-B // rows), 1
        self._launch = _launcher(h.device.index, grid, rows, moments)
        self._packed = [self._pack(weights, drive or Drive(), moments, turn) for turn in (0, 1)]
        self._values = len(self._packed[0][0]) // 2  # where the values begin, after a pointer to each

    @property
    def h(self) -> Tensor:
        return self._h[self._turn]

    @property
    def k(self) -> Tensor:
        return self._k[self._turn]

    def __call__(self, x: Tensor, y: Tensor, decay: Tensor | None = None) -> None:
        """One step on x (B, D), whose h goes to y (B, H) too; decay: (B,) or None. All contiguous."""
        layers, at = self._packed[self._turn], self._values
        layers[0][at + X] = x.data_ptr()
        layers[-1][at + Y] = y.data_ptr()
        if decay is not None:
            for packed in layers:
                packed[at + DECAY] = decay.data_ptr()
        for packed in layers:
            self._launch(packed)
        self._turn ^= 1

    def tensors(self) -> list[Tensor]:
        """All memory that steps write to."""
        return [*self._h, *self._k, self.c, self.v, self.n]

    def _pack(
        self, weights: Sequence[Sequence[Tensor | None]], drive: Drive, moments: int, turn: int
    ) -> list[Any]:
        """The arguments of all layers, for every other step."""
        h, k = (self._h[turn], self._h[turn ^ 1]), (self._k[turn], self._k[turn ^ 1])
        beta = drive.beta or 0.0
        eps = float(drive.eps) ** (2 if drive.inside else 1)
        numbers = drive.every, *map(float, (drive.mu, drive.step, beta, 1 - beta, eps)), int(drive.inside)
        found = []
        for i, layer in enumerate(weights):
            x = h[1][i - 1] if i > 0 else None
            w_ih = layer[0]
            assert w_ih is not None
            state = h[0][i], h[1][i], self.c[i], self.v[i], self.n[i]
            sizes = h[0].shape[1], w_ih.shape[1], h[0].shape[2]
            last = i == len(weights) - 1
            counts = k[0], k[1] if last else None
            found.append(nvrtc.pack([x, None, None, *layer, *state, *counts, *sizes, *numbers]))
        return found


def _launcher(device: int, grid: tuple[int, int, int], rows: int, moments: int) -> Callable[[Any], None]:
    """What launches the kernel on the current stream; `Kernel.__call__` would pack all arguments again."""
    kernel = fused._kernel("lstm_step", device, ROWS=rows, MOMENTS=moments)
    launch, function, shape = nvrtc._driver().cuLaunchKernel, kernel._function, (*grid, THREADS, 1, 1, 0)
    stream, current = torch._C._cuda_getCurrentRawStream, torch._C._cuda_getDevice

    def call(packed: Any) -> None:
        if current() != device:
            nvrtc._call(kernel._context, launch, function, *shape, stream(device), packed, None)
            return
        code = launch(function, *shape, stream(device), packed, None)
        if code == nvrtc.NO_CONTEXT:  # a thread that has not used the GPU yet
            nvrtc._call(kernel._context, launch, function, *shape, stream(device), packed, None)
        elif code:
            nvrtc._check(code)

    return call


@functools.cache
def lacking(device: torch.device) -> str:
    """Why the kernel can't run on a device, for a user; empty if it can."""
    if device.type != "cuda" or torch.version.cuda is None:
        return f"the layer is on {device}, not on an NVIDIA GPU"
    if nvrtc.missing():
        return nvrtc.missing()
    try:
        fused._kernel("lstm_step", device.index, ROWS=1, MOMENTS=0)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""


def stream(device: int) -> int:
    """The current stream of a device, as a number. Raises if a CUDA graph is captured on it."""
    if torch._C._cuda_isCurrentStreamCapturing():
        raise RuntimeError("a Stream can't be part of a CUDA graph: its steps take turns between two buffers")
    return torch._C._cuda_getCurrentRawStream(device)


def current(device: torch.device) -> torch.cuda.Stream:
    """The current stream of a device."""
    return torch.cuda.current_stream(device)
