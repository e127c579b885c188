"""Where each kernel is, with which macros it is compiled, and how it is launched."""

import functools
from pathlib import Path

import torch
from torch import Tensor

from . import nvrtc
from .constants import FILTER_THREADS
from .inputs import Inputs
from .sizes import MAX_FEATURES_OF_MOMENTUM_BACKWARD, Sizes, cluster_size, row_tables

FOLDER = Path(__file__).parent
KERNELS = {
    "lstm_forward": ("lstm_forward",),
    "lstm_backward": ("lstm_backward",),
    "momentum_backward": ("momentum_backward",),
    "lstm_step": ("lstm_step",),
    "pack": (
        "pack_forward", "pack_backward", "pack_input", "pack_input_weights", "pack_w_ih", "filter_input",
    ),
    "weight_gradients": ("pack_gradient_operand", "finish_weight_gradients", "unpack_drive_gradient"),
}  # fmt: skip
FILES = {kernel: file for file, kernels in KERNELS.items() for kernel in kernels}
THREADS = 256  # of a block of the kernels that have a thread for each element
# From this many hidden units over all rows on, a thread of momentum_backward has two channels, not one.
MANY_UNITS = 24_000


@functools.cache
def source(file: str) -> str:
    """The complete source of a file of kernels."""
    parts = ("ptx.cu", "common.cu", f"{file}.cu")
    return "\n".join((FOLDER / part).read_text(encoding="utf-8") for part in parts)


@functools.cache
def kernel(name: str, device: int, **defines: int) -> nvrtc.Kernel:
    """A kernel on a device, compiled with these macros."""
    return nvrtc.load(source(FILES[name]), name, tuple(sorted(defines.items())), device)


def check(device: int) -> None:
    """Compile and load pack.cu, or raise the reason why that fails."""
    kernel("filter_input", device)


def lstm_defines(inputs: Inputs) -> dict[str, int]:
    """The macros that both passes of an LSTM are compiled with."""
    return {"FINE": inputs.fine, "PACKED": bool(inputs.sizes), "EXTRAPOLATED": inputs.z0 is not None}


def forward_momentum_defines(inputs: Inputs) -> dict[str, int]:
    """The macros for a momentum in gate space: its form (0 for none), and whether its decays are a table."""
    form = 0 if not inputs.in_gate_space else 1 if inputs.beta is None else 2 if inputs.eps_in_sqrt else 3
    return {"MOMENTUM_FORM": form, "TABLE": inputs.decay is not None and form > 0}


def backward_momentum_defines(inputs: Inputs, size: Sizes, writes_da: bool) -> dict[str, int]:
    """The macros of `momentum_backward`; writes_da: whether it stores the gradient of a = W x + b_ih."""
    return {
        "FEATURES": size.D if size.D <= MAX_FEATURES_OF_MOMENTUM_BACKWARD else 0,
        **forward_momentum_defines(inputs),
        "PACKED": bool(inputs.sizes),
        "LEARNED": inputs.mu is not None or inputs.gain is not None,
        "WRITES_DA": writes_da,
        "FINE": inputs.fine,
        "CHANNELS": 2 if size.R * size.B * size.H >= MANY_UNITS else 1,
    }


def load_all(inputs: Inputs, size: Sizes, slices: int) -> None:
    """Load all kernels of a layer now, because none can be loaded while a CUDA graph is captured."""
    writes_da = (False, True) if size.D <= MAX_FEATURES_OF_MOMENTUM_BACKWARD else (True,)
    backward = tuple(tuple(backward_momentum_defines(inputs, size, writes).items()) for writes in writes_da)
    momentum = tuple(forward_momentum_defines(inputs).items())
    _load_all(
        inputs.x.device.index,
        cluster_size(size.H),
        slices,
        momentum,
        backward if inputs.in_gate_space else (),
        **lstm_defines(inputs),
    )


@functools.cache
def _load_all(
    device: int,
    ctas: int,
    slices: int,
    momentum: nvrtc.Defines,
    momentum_backward: tuple[nvrtc.Defines, ...],
    **defines: int,
) -> None:
    kernel("pack_gradient_operand", device)  # and with it all kernels of its file
    for keep in (False, True):
        kernel("lstm_forward", device, CTAS=ctas, INPUT_SLICES=slices, KEEP=keep, **dict(momentum), **defines)
    kernel("lstm_backward", device, CTAS=ctas, **defines)
    for chosen in momentum_backward:
        kernel("momentum_backward", device, **dict(chosen))


def is_own(t: Tensor | None, R: int) -> int:
    """1 if each of R replicas has its own tensor, 0 if they share one or there is none."""
    return int(R > 1 and t is not None and t.shape[0] == R)


def decay_columns(decay: Tensor | None) -> int:
    """Columns of a table of decays: 1, or B."""
    return 1 if decay is None else decay.shape[1]


def momentum_numbers(inputs: Inputs) -> dict[str, float]:
    """The numbers of a momentum in gate space."""
    beta = inputs.beta or 0.0
    return {"step": inputs.step, "beta": beta, "one_minus_beta": 1 - beta, "eps": inputs.eps}


class Launcher:
    """Launches the kernels around the recurrence, for the device and the rows of one call."""

    def __init__(self, inputs: Inputs) -> None:
        self.device, self.fine = inputs.x.device, inputs.fine
        self.rows = row_tables(inputs.sizes, self.device)

    def words(self, length: int) -> Tensor:
        """An empty buffer of so many 32-bit words."""
        return torch.empty(length, dtype=torch.int32, device=self.device)

    def __call__(self, name: str, threads: int, replicas: int, **arguments: nvrtc.Argument) -> None:
        """Launch a kernel that has one thread for each element: so many threads for each replica."""
        grid = -(-threads // THREADS), replicas, 1
        kernel(name, self.device.index)(grid, THREADS, arguments)

    def filter(
        self,
        x: Tensor,
        decay: Tensor | None,
        size: Sizes,
        step: float,
        *,
        v: Tensor | None = None,
        packed: Tensor | None = None,
        largest: Tensor | None = None,
        factors: Tensor | None = None,
        backwards: bool = False,
        width: int = 0,
    ) -> None:
        """v_t = decay_t v_{t-1} + step x_t over time, see `filter_input` in pack.cu."""
        columns = 8 if size.B * size.F <= 2048 else 32
        arguments: dict[str, nvrtc.Argument] = {
            "x": x, "decay": decay, "factors": factors, "v": v, "packed": packed, "largest": largest,
            "begins": self.rows.begins, "lengths": self.rows.lengths,
            "T": size.T, "B": size.B, "N": size.N, "D": size.D, "F": size.F,
            "decay_columns": decay_columns(decay), "backwards": backwards,
            "block_columns": columns, "width": width, "fine": self.fine, "step": step,
        }  # fmt: skip
        grid = -(-size.B * size.F // columns), len(x), 1
        kernel("filter_input", self.device.index)(grid, FILTER_THREADS, arguments)


@functools.cache
def multiprocessors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
