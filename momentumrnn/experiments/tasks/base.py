"""What a task is: rows of data, the batch that they stand for, and the loss. Knows no network, no trainer."""

import hashlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

Part = Literal["validation", "test"]
Rows = tuple[Tensor, ...]
"""Samples in short, such as their indices in a data set: tensors with a leading axis of samples."""


class Data(NamedTuple):
    """What all seeds share: tensors, such as all images, and the SHA-256 of what they came from, by name."""

    tensors: tuple[Tensor, ...]
    hashes: dict[str, str]


class Task(ABC):
    """A problem to train on; a frozen dataclass, whose fields are what may be chosen.

    A batch is made on the training device from a few numbers for each sample, the rows, so that data don't
    travel: an epoch's rows are drawn on the CPU, by seed and epoch alone, the same on every device and after
    every resumption.

    features, outputs: of the network at a step; every_step: whether it answers at each step or at the last;
    metric: "loss" or "accuracy", which selects; defaults: the paper's hyper-parameters, by Config's names.
    """

    features: int
    outputs: int
    every_step: bool
    metric: Literal["loss", "accuracy"]
    defaults: ClassVar[dict[str, Any]] = {}

    @abstractmethod
    def load(self, folder: Path | None) -> Data:
        """The data, on the CPU; folder: where the user keeps data, None for the usual place."""

    def constants(self, seed: int) -> tuple[Tensor, ...]:
        """What a seed has of its own for its whole training, such as a permutation, on the CPU."""
        return ()

    @abstractmethod
    def rows(self, data: Data, seed: int, epoch: int) -> Rows:
        """What an epoch trains on, in its order, on the CPU. epoch: 0, 1, ..."""

    @abstractmethod
    def held_out(self, data: Data, part: Part) -> Rows | None:
        """What is never trained on, on the CPU, the same for every seed; None if there is no such part."""

    @abstractmethod
    def batch(
        self, tensors: tuple[Tensor, ...], constants: tuple[Tensor, ...], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """Inputs (T, B, features) in float32 and targets of B rows, on their device.

        Runs under torch.vmap over constants and rows, and inside a CUDA graph: no value may be read back.
        """

    @abstractmethod
    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        """The loss of each sample, (B,). out: (B, outputs), or (T, B, outputs) where every_step."""

    def accuracy(self, out: Tensor, target: Tensor) -> Tensor | None:
        """The share of right answers in each sample, (B,), where answers are right or wrong."""
        return None


def check(task: Task, name: str, least: int, most: int | None = None) -> None:
    """Refuse a field that is no integer in this range."""
    value = getattr(task, name)
    expected = f"at least {least}" if most is None else f"{least} to {most}"
    message = f"{type(task).__name__}: {name} should be an integer of {expected}, got {value!r}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(message)
    if value < least or (most is not None and value > most):
        raise ValueError(message)


def generator(*key: object) -> torch.Generator:
    """A source of random numbers that depends on the key alone.

    >>> a, b = generator("order", 0, 3), generator("order", 0, 3)
    >>> bool((torch.rand(5, generator=a) == torch.rand(5, generator=b)).all())
    True
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def sha256(*tensors: Tensor) -> str:
    """Of the bytes of tensors on the CPU, one after another."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
