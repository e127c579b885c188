"""What is benchmarked: a layer of a given shape, its momentum, precision and input. Measures nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from .. import cells
from ..constraints import orthogonal
from ..layers import GRU, LSTM, RNN, Recurrent
from ..momentum import Momentum


@dataclass(frozen=True)
class Shape:
    """The cell and the hidden size of a layer, and the size of its input (T, B, D).

    cell: lstm, gru, rnn, dtriv: modrelu with an orthogonal U, or extrapolated: `cells.ExtrapolatedLSTM`.
    """

    cell: str
    T: int
    B: int
    D: int
    H: int


# The shapes of the paper's tables. The number in a name is the hidden size.
SHAPES = {
    "pmnist128": Shape("lstm", 784, 128, 1, 128),
    "pmnist256": Shape("lstm", 784, 128, 1, 256),
    "lstm512": Shape("lstm", 784, 128, 1, 512),
    "mnist-gru256": Shape("gru", 784, 128, 1, 256),
    "timit84": Shape("lstm", 300, 32, 129, 84),
    "timit120": Shape("lstm", 300, 32, 129, 120),
    "timit158": Shape("lstm", 300, 32, 129, 158),
    "copy190-1k": Shape("lstm", 1020, 128, 10, 190),
    "copy190-2k": Shape("lstm", 2020, 128, 10, 190),
    "adding128": Shape("lstm", 750, 50, 2, 128),
    "ptb1150": Shape("lstm", 70, 20, 400, 1150),
    "ptb400": Shape("lstm", 70, 20, 1150, 400),
    "srlstm128": Shape("extrapolated", 784, 128, 1, 128),
    "srlstm256": Shape("extrapolated", 784, 128, 1, 256),
    "dtriv170": Shape("dtriv", 784, 128, 1, 170),
    "dtriv360": Shape("dtriv", 784, 128, 1, 360),
    "dtriv512": Shape("dtriv", 784, 128, 1, 512),
    "dtriv224": Shape("dtriv", 300, 128, 129, 224),
    "dtriv322": Shape("dtriv", 300, 128, 129, 322),
}

# For each cell our layer and torch's.
LAYERS: dict[str, tuple[Callable[..., Recurrent], Callable[..., nn.Module]]] = {
    "lstm": (LSTM, nn.LSTM),
    "gru": (GRU, nn.GRU),
    "rnn": (RNN, nn.RNN),
    "dtriv": (RNN, nn.RNN),
    # The settings of SRLSTM in the paper's code, on permuted MNIST with H = 256.
    "extrapolated": (partial(Recurrent, cells.ExtrapolatedLSTM(every=40, step_size=0.9)), nn.LSTM),
}


@dataclass(frozen=True)
class Mode:
    """The precision of float32 layers: whether TF32 is allowed, and the dtype of autocast, if any."""

    tf32: bool = True
    autocast: torch.dtype | None = None


MODES = {
    "tf32": Mode(),
    "fp32": Mode(tf32=False),
    "autocast-fp16": Mode(autocast=torch.float16),
    "autocast-bf16": Mode(autocast=torch.bfloat16),
}


@dataclass(frozen=True)
class Case:
    """One layer on one input.

    name: of the shape, for the record; mode: a key of MODES; lengths: of the sequences, "full" or "uniform".
    """

    name: str
    shape: Shape
    momentum: Momentum | None
    backend: str
    device: str
    dtype: torch.dtype
    mode: str = "tf32"
    lengths: str = "full"


@dataclass(frozen=True)
class Contender:
    """One way to evaluate a layer, with its input.

    run: maps x to outputs and final state. module: has the parameters. x: (T, B, D). loss_weights: the
    gradient of the loss with respect to the outputs, (T, B, H). unpadded: for a padded layer, the layer that
    it should equal. batch_sizes: for packed sequences, the number of sequences at each step, (T,); x is then
    (N, D) and loss_weights (N, H).
    """

    label: str
    run: Callable[[Any], tuple[Any, Any]]
    module: nn.Module
    x: Tensor
    loss_weights: Tensor
    mode: Mode = Mode()
    unpadded: "Contender | None" = None
    batch_sizes: Tensor | None = None

    def forward(self) -> list[Tensor | None]:
        """The outputs."""
        with torch.no_grad(), tf32(self.mode.tf32):
            return [self.call(self.x)[0]]

    def training(self) -> list[Tensor | None]:
        """The outputs, and the gradients of all parameters."""
        with tf32(self.mode.tf32):
            out = self.call(self.x)[0]
            torch.autograd.backward(out, self.loss_weights)
        return [out.detach(), *(p.grad for p in self.module.parameters())]

    def call(self, x: Tensor) -> tuple[Tensor, Any]:
        """The outputs, packed if x is packed, and the final state."""
        # Autocast should end before the backward pass, as torch's documentation asks.
        with self.autocast():
            out, final = self.run(self.pack(x))
        return out if self.batch_sizes is None else out.data, final

    def pack(self, x: Tensor) -> Tensor | PackedSequence:
        return x if self.batch_sizes is None else PackedSequence(x, self.batch_sizes)

    def autocast(self) -> Any:
        dtype = self.mode.autocast
        return nullcontext() if dtype is None else torch.autocast(self.x.device.type, dtype)


Action = Callable[[Contender], list[Tensor | None]]
ACTIONS: dict[str, Action] = {"forward": Contender.forward, "training": Contender.training}


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Forbid TF32 to cuDNN unless it is allowed."""
    before = torch.backends.cudnn.allow_tf32
    if not allowed:
        torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        if not allowed:
            torch.backends.cudnn.allow_tf32 = before


def build(case: Case) -> Contender:
    """Our layer with its input."""
    torch.manual_seed(0)
    shape = case.shape
    dtriv = {"nonlinearity": "modrelu", "bias": "hh"} if shape.cell == "dtriv" else {}
    options = {**dtriv, "dtype": case.dtype, "momentum": case.momentum, "backend": case.backend}
    # All numbers are drawn on the CPU: after a failed capture CUDA's random generator is unusable.
    layer = LAYERS[shape.cell][0](shape.D, shape.H, **options).to(case.device)
    if dtriv:
        orthogonal(layer, init="cayley")
        with torch.no_grad():
            # With a positive threshold modrelu jumps at 0, and rounding would decide in which direction.
            layer.get_parameter("bias_hh_l0").abs_().neg_()
    batch_sizes = None if case.lengths == "full" else draw_batch_sizes(shape)
    rows = (shape.T, shape.B) if batch_sizes is None else (int(batch_sizes.sum()),)
    x, loss_weights = (
        torch.randn(*rows, size, dtype=case.dtype).to(case.device) for size in (shape.D, shape.H)
    )
    mode = MODES[case.mode]
    loss_weights = loss_weights.to(mode.autocast or case.dtype)
    label = f"momentumrnn.{type(layer).__name__}"
    return Contender(label, layer, layer, x, loss_weights, mode, batch_sizes=batch_sizes)


def draw_batch_sizes(shape: Shape) -> Tensor:
    """The number of sequences at each step, (T,), for lengths uniform from 1 to T, the longest being T."""
    lengths = torch.randint(1, shape.T + 1, (shape.B,), generator=torch.Generator().manual_seed(0))
    lengths[0] = shape.T
    return (lengths > torch.arange(shape.T)[:, None]).sum(1)


def explain_backend(layer: nn.Module, contender: Contender) -> list[str]:
    """The backend that runs this layer on the contender's input in its mode, and how, by `explain`."""
    assert isinstance(layer, Recurrent)
    with tf32(contender.mode.tf32), contender.autocast():
        explanation = layer.explain(contender.pack(contender.x))
    lines = [line.split(" runs: ") for line in explanation.splitlines()]
    return next(([part.strip() for part in parts] for parts in lines if len(parts) == 2), ["none", ""])
