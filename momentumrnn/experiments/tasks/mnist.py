"""Handwritten digits, pixel by pixel: MNIST, and PMNIST with the pixels in another order."""

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..data import DATASETS, DataError, files
from ..data import folder as data_folder
from .base import Data, Part, Rows, Task, check, generator

SIDE = 28
PIXELS = SIDE * SIDE
TRAINING = 60_000
EXPRNN = 92916
"""The seed of the permutation that expRNN has for every run (Lezcano-Casado, Martínez-Rubio 2019)."""
PERMUTATIONS = ("fixed", "seed")


class _Digits(Task):
    """What both tasks share: all but the order of the pixels."""

    validation: int
    limit: int

    features = 1
    outputs = 10
    every_step = False
    metric = "accuracy"
    defaults: ClassVar[dict[str, Any]] = {
        "optimizer": "rmsprop",
        "lr": 1e-3,
        "alpha": 0.9,
        "clip": 1.0,
        "batch_size": 128,
        "epochs": 150,
        "hidden_size": 128,
    }

    def _check(self) -> None:
        check(self, "validation", 0, TRAINING - 1)
        check(self, "limit", 0, TRAINING)

    def load(self, folder: Path | None) -> Data:
        """Tensors: images (N, 784) in uint8, first those to train on; labels (N,); how many those are."""
        paths = files("mnist", data_folder(folder))
        images, labels = [], []
        for part in ("train", "t10k"):
            image_path, label_path = (
                paths[f"{part}-images-idx3-ubyte.gz"],
                paths[f"{part}-labels-idx1-ubyte.gz"],
            )
            images.append(_read(image_path, SIDE, SIDE).flatten(1))
            labels.append(_read(label_path).to(torch.int64))
            if len(images[-1]) != len(labels[-1]) or labels[-1].max() >= self.outputs:
                raise DataError(
                    f"{label_path} should have a label below {self.outputs} for each of "
                    f"{len(images[-1])} images, got {len(labels[-1])} up to {labels[-1].max()}"
                )
        tensors = torch.cat(images), torch.cat(labels), torch.tensor(len(images[0]))
        return Data(tensors, {file.name: file.sha256 for file in DATASETS["mnist"].files})

    def rows(self, data: Data, seed: int, epoch: int) -> Rows:
        kept = int(data.tensors[2]) - self.validation
        count = min(kept, self.limit or kept)
        return (torch.randperm(count, generator=generator("order", seed, epoch)),)

    def held_out(self, data: Data, part: Part) -> Rows | None:
        training, every = int(data.tensors[2]), len(data.tensors[0])
        start, stop = {"validation": (training - self.validation, training), "test": (training, every)}[part]
        indices = torch.arange(start, min(stop, start + (self.limit or every)))
        return (indices,) if len(indices) else None

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        # No gather: its gradient under vmap adds by index, slowly where it has to be deterministic.
        right = target.unsqueeze(-1) == torch.arange(self.outputs, device=target.device)
        return -out.log_softmax(-1).where(right, 0.0).sum(-1)

    def accuracy(self, out: Tensor, target: Tensor) -> Tensor:
        return (out.argmax(-1) == target).to(torch.float32)


@dataclass(frozen=True)
class MNIST(_Digits):
    """The digit in an image that is read pixel by pixel, row after row (paper, section 3.1; Le et al. 2015).

        x_t = pixel t / 255,    loss = the cross-entropy at the last step, 10 classes

    Of the training images the last `validation` are held out; 0: none, as in the paper, which selects by the
    test images. limit: how many images to train on, validate with and test with at most, for a try; 0: all.
    Rows: indices (N,). x: (784, B, 1); target: (B,) in int64; out: (B, 10).

    >>> MNIST(validation=0).held_out(Data((torch.zeros(5, 784), torch.zeros(5), torch.tensor(3)), {}), "test")
    (tensor([3, 4]),)
    """

    validation: int = 5000
    limit: int = 0

    def __post_init__(self) -> None:
        self._check()

    def batch(
        self, tensors: tuple[Tensor, ...], constants: tuple[Tensor, ...], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        return _sequences(tensors, rows[0], torch.arange(PIXELS, device=rows[0].device))


@dataclass(frozen=True)
class PMNIST(_Digits):
    """MNIST with the pixels in an order that is drawn once, the same for all images (paper, section 3.1).

        x_t = pixel π(t) / 255

    permutation: "fixed", one π for every seed, that of expRNN; "seed", a π for each seed, as released with
    the paper, so that every seed is another task. The rest is as in MNIST.

    >>> PMNIST().constants(seed=0)[0][:3]
    tensor([319, 576, 323])
    """

    permutation: str = "fixed"
    validation: int = 5000
    limit: int = 0

    def __post_init__(self) -> None:
        if self.permutation not in PERMUTATIONS:
            expected = " or ".join(map(repr, PERMUTATIONS))
            raise ValueError(f"PMNIST: permutation should be {expected}, got {self.permutation!r}")
        self._check()

    def constants(self, seed: int) -> tuple[Tensor, ...]:
        source = np.random.RandomState(EXPRNN if self.permutation == "fixed" else seed)
        return (torch.from_numpy(source.permutation(PIXELS).astype(np.int64)),)

    def batch(
        self, tensors: tuple[Tensor, ...], constants: tuple[Tensor, ...], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        return _sequences(tensors, rows[0], constants[0])


def _sequences(tensors: tuple[Tensor, ...], indices: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """Images as (784, B, 1) in [0, 1], their pixels in this order, and their labels."""
    images, labels, _ = tensors
    pixels = images[indices, order.unsqueeze(1)]
    return (pixels.to(torch.float32) / 255).unsqueeze(-1), labels[indices]


def _read(path: Path, *item: int) -> Tensor:
    """The array (n, *item) of bytes in a compressed IDX file: magic number, n, the other sizes, the bytes."""
    packed = path.read_bytes()
    try:
        raw = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} should be a gzip file: {error}") from None
    axes = 1 + len(item)
    start = 4 * (1 + axes)
    # 8 stands for bytes.
    magic = 8 << 8 | axes
    head = struct.unpack(f">{1 + axes}I", raw[:start].ljust(start, b"\0"))
    if head[0] != magic or head[2:] != item or head[1] == 0 or len(raw) - start != math.prod(head[1:]):
        raise DataError(
            f"{path} should have the magic number {magic}, sizes (n, {', '.join(map(str, item))}) and their "
            f"product in bytes, got {head[0]}, {head[1:]} and {max(0, len(raw) - start)} bytes"
        )
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=start).reshape(head[1:]).copy())
