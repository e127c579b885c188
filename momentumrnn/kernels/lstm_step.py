"""One time step of LSTM layers with lstm_step.cu: one launch a layer, its arguments packed in advance."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import launch, nvrtc
from .constants import MAX_GRID, STEP_UNITS

THREADS = STEP_UNITS * 4 * 2 * 32  # of a block: two warps for each gate of a unit
MAX_ROWS_OF_BLOCK = 8
MAX_ROWS = MAX_ROWS_OF_BLOCK * MAX_GRID


class MomentumNumbers(NamedTuple):
    """A momentum whose numbers are the same for all channels.

    restart_every: -1 for the constant decay mu; 0 for k / (k + 3) at step k; a positive number F for the same
    with k % F in place of k. beta: None without a second moment. eps_in_sqrt: see `Momentum`.
    """

    mu: float = 0.0
    restart_every: int = -1
    step: float = 1.0
    beta: float | None = None
    eps: float = 1e-8
    eps_in_sqrt: bool = True


class FusedSteps:
    """The state of L layers for B rows, which each call advances by one step.

    weights: for each layer W (4H, D), U (4H, H), and two biases (4H,) or None. They must stay where they are.
    momentum: None for plain layers. h, c: (L, B, H). v, n: (L, B, 4H), or (L, B, 0). k: (L, B).
    All are on one GPU and in float32, but k in int64. The weights are contiguous.
    """

    def __init__(
        self,
        weights: Sequence[Sequence[Tensor | None]],
        momentum: MomentumNumbers | None,
        h: Tensor,
        c: Tensor,
        v: Tensor,
        n: Tensor,
        k: Tensor,
    ) -> None:
        # Contiguous copies, as the kernel expects them.
        h, self.c, self.v, self.n, k = (
            t.clone(memory_format=torch.contiguous_format) for t in (h, c, v, n, k)
        )
        # Each step reads h and k from one buffer and writes them to the other.
        self._h, self._k = (h, torch.empty_like(h)), (k, torch.empty_like(k))
        self._turn = 0
        B, H = h.shape[1:]
        rows = min(MAX_ROWS_OF_BLOCK, 1 << (B - 1).bit_length())
        moments = 0 if momentum is None else 1 if momentum.beta is None else 2
        grid = -(-H // STEP_UNITS), -(-B // rows), 1
        signature, self._launch = _launcher(h.device.index, grid, rows, moments)
        numbers = momentum or MomentumNumbers()
        self._packed = [self._pack(signature, weights, numbers, turn) for turn in (0, 1)]
        # The places of the arguments that change at each step.
        self._x_place, self._y_place, self._decay_place = map(signature.place, ("x", "y", "decay"))

    @property
    def h(self) -> Tensor:
        return self._h[self._turn]

    @property
    def k(self) -> Tensor:
        return self._k[self._turn]

    def __call__(self, x: Tensor, y: Tensor, decay: Tensor | None = None) -> None:
        """One step on x (B, D). y (B, H) gets h of the last layer.

        decay: (L, B) at every call, or at none. All are contiguous.
        """
        layers = self._packed[self._turn]
        layers[0][self._x_place] = x.data_ptr()
        layers[-1][self._y_place] = y.data_ptr()
        if decay is not None:
            for packed, of_layer in zip(layers, decay, strict=True):
                packed[self._decay_place] = of_layer.data_ptr()
        for packed in layers:
            self._launch(packed)
        self._turn ^= 1

    def tensors(self) -> list[Tensor]:
        """The tensors that steps write to."""
        return [*self._h, *self._k, self.c, self.v, self.n]

    def _pack(
        self,
        signature: nvrtc.Signature,
        weights: Sequence[Sequence[Tensor | None]],
        momentum: MomentumNumbers,
        turn: int,
    ) -> list[Any]:
        """The arguments of all layers for the steps that read h from buffer `turn`."""
        h, k = (self._h[turn], self._h[turn ^ 1]), (self._k[turn], self._k[turn ^ 1])
        beta = momentum.beta or 0.0
        numbers = {
            "restart_every": momentum.restart_every, "mu": float(momentum.mu), "step": float(momentum.step),
            "beta": float(beta), "one_minus_beta": float(1 - beta),
            "eps": float(momentum.eps) ** (2 if momentum.eps_in_sqrt else 1),
            "eps_in_sqrt": int(momentum.eps_in_sqrt),
        }  # fmt: skip
        packed = []
        for i, (w_ih, w_hh, b_ih, b_hh) in enumerate(weights):
            assert w_ih is not None
            arguments: dict[str, nvrtc.Argument] = {
                "x": h[1][i - 1] if i > 0 else None, "y": None, "decay": None,
                "w_ih": w_ih, "w_hh": w_hh, "b_ih": b_ih, "b_hh": b_hh,
                "h_in": h[0][i], "h_out": h[1][i], "c": self.c[i], "v": self.v[i], "n": self.n[i],
                "k_in": k[0][i], "k_out": k[1][i],
                "B": h[0].shape[1], "D": w_ih.shape[1], "H": h[0].shape[2], **numbers,
            }  # fmt: skip
            packed.append(signature.pack(arguments))
        return packed


def _launcher(
    device: int, grid: tuple[int, int, int], rows: int, moments: int
) -> tuple[nvrtc.Signature, Callable[[Any], None]]:
    """The kernel's signature, and a function that launches it with packed arguments."""
    kernel = launch.kernel("lstm_step", device, ROWS=rows, MOMENTS=moments)
    return kernel.signature, kernel.launcher(grid, THREADS)


@functools.cache
def why_unavailable(device: torch.device) -> str:
    """Why the kernel can't run on a device, in words for a user; empty if it can."""
    if device.type != "cuda" or torch.version.cuda is None:
        return f"the layer is on {device}, not on an NVIDIA GPU"
    if nvrtc.missing():
        return nvrtc.missing()
    try:
        launch.kernel("lstm_step", device.index, ROWS=1, MOMENTS=0)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""
