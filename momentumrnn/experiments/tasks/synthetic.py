"""Tasks whose data are drawn, not read: adding and copying. Knows no files."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...repr_parser import spell
from .base import Data, Part, Rows, Task, check, generator, sha256


class _Drawn(Task):
    """What both tasks share: where their rows come from."""

    samples: int
    evaluation: int

    def load(self, folder: Path | None) -> Data:
        return Data((), {"test": sha256(*self._draw(self.evaluation, "test"))})

    def rows(self, data: Data, seed: int, epoch: int) -> Rows:
        return self._draw(self.samples, "training", seed, epoch)

    def held_out(self, data: Data, part: Part) -> Rows:
        return self._draw(self.evaluation, part)

    @abstractmethod
    def _draw(self, count: int, *key: object) -> Rows:
        """So many samples, by the key and the task alone."""


@dataclass(frozen=True)
class Adding(_Drawn):
    """The sum of two marked numbers among many (paper, appendix; Arjovsky et al. 2016).

    With u_t drawn from U[0, 1), and the marked steps p from [0, T // 2) and q from [T // 2, T):

        x_t = (u_t, 1 if t is p or q else 0),    target = u_p + u_q,    loss = (out - target)²

    at the last step; T = length. An epoch has `samples` new samples; validation and test have `evaluation`
    each, the same for every seed. Rows: u (N, T) in float32, and (p, q) (N, 2) in int64. x: (T, B, 2);
    target: (B,); out: (B, 1).

    >>> task = Adding(length=10)
    >>> x, target = task.batch((), (), tuple(r[:3] for r in task.rows(task.load(None), seed=0, epoch=0)))
    >>> x.shape, target.shape
    (torch.Size([10, 3, 2]), torch.Size([3]))
    """

    length: int = 750
    samples: int = 5000
    evaluation: int = 1000

    features = 2
    outputs = 1
    every_step = False
    metric = "loss"
    # The paper's 1200 epochs are read as steps: 12 epochs of 100.
    defaults: ClassVar[dict[str, Any]] = {
        "optimizer": "adam",
        "lr": 2e-4,
        "batch_size": 50,
        "epochs": 12,
        "hidden_size": 128,
    }

    def __post_init__(self) -> None:
        check(self, "length", 2)
        check(self, "samples", 1)
        check(self, "evaluation", 1)

    @property
    def baseline(self) -> float:
        """The loss of a network that remembers nothing and always answers 1: the variance of the sum."""
        return 1 / 6

    def _draw(self, count: int, *key: object) -> Rows:
        source, half = generator(*key, spell(self)), self.length // 2
        numbers = torch.rand(count, self.length, generator=source, dtype=torch.float32)
        first = torch.randint(0, half, (count,), generator=source)
        second = torch.randint(half, self.length, (count,), generator=source)
        return numbers, torch.stack((first, second), 1)

    def batch(
        self, tensors: tuple[Tensor, ...], constants: tuple[Tensor, ...], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        numbers, marked = rows
        t = torch.arange(self.length, device=numbers.device).unsqueeze(1)
        marker = (t == marked[:, 0]) | (t == marked[:, 1])
        x = torch.stack((numbers.mT, marker.to(numbers.dtype)), -1)
        return x, numbers.gather(1, marked).sum(1)

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        return (out.squeeze(-1) - target).square()


@dataclass(frozen=True)
class Copying(_Drawn):
    """Symbols to be said again after a long silence (paper, appendix; Arjovsky et al. 2016).

    With K = symbols drawn from 1, ..., A, A = alphabet, L = length, blank 0 and marker A + 1:

        input:   s_1 ... s_K, L blanks, marker, K - 1 blanks          one-hot
        target:  K + L blanks, s_1 ... s_K
        loss = the cross-entropy, averaged over all L + 2K steps

    An epoch has `samples` new samples; validation and test have `evaluation` each, the same for every seed.
    Rows: s (N, K) in uint8. x: (L + 2K, B, A + 2); target: s in int64, (B, K); out: (L + 2K, B, A + 1).

    >>> task = Copying(length=5, symbols=2, alphabet=3)
    >>> x, target = task.batch((), (), (torch.tensor([[3, 1]], dtype=torch.uint8),))
    >>> x.argmax(-1).flatten().tolist()
    [3, 1, 0, 0, 0, 0, 0, 4, 0]
    """

    length: int = 1000
    symbols: int = 10
    alphabet: int = 8
    samples: int = 12800
    evaluation: int = 1000

    every_step = True
    metric = "loss"
    # The paper's 7000 epochs are read as steps: 70 epochs of 100.
    defaults: ClassVar[dict[str, Any]] = {
        "optimizer": "rmsprop",
        "lr": 2e-4,
        "alpha": 0.99,
        "batch_size": 128,
        "epochs": 70,
        "hidden_size": 190,
    }

    def __post_init__(self) -> None:
        check(self, "length", 0)
        check(self, "symbols", 1)
        # Rows are bytes.
        check(self, "alphabet", 1, 255)
        check(self, "samples", 1)
        check(self, "evaluation", 1)

    @property
    def features(self) -> int:  # type: ignore[override]
        return self.alphabet + 2

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return self.alphabet + 1

    @property
    def baseline(self) -> float:
        """The loss of a network that remembers nothing: it guesses among all symbols at the last K steps."""
        return self.symbols * math.log(self.alphabet) / (self.length + 2 * self.symbols)

    def _draw(self, count: int, *key: object) -> Rows:
        source, shape = generator(*key, spell(self)), (count, self.symbols)
        return (torch.randint(1, self.alphabet + 1, shape, generator=source, dtype=torch.uint8),)

    def batch(
        self, tensors: tuple[Tensor, ...], constants: tuple[Tensor, ...], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        symbols = rows[0].to(torch.int64)
        ids = torch.arange(self.features, device=symbols.device)
        shown = (symbols.mT.unsqueeze(-1) == ids).to(torch.float32)
        # What follows the symbols is the same in all samples: the marker after L blanks, blanks else.
        t = torch.arange(self.length + self.symbols, device=symbols.device)
        rest = (t == self.length) * (self.alphabet + 1)
        silence = (rest.view(-1, 1, 1) == ids).to(torch.float32).expand(-1, shown.shape[1], -1)
        return torch.cat((shown, silence)), symbols

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        log_p = out.log_softmax(-1)
        blanks, symbols = log_p[: -self.symbols, :, 0], log_p[-self.symbols :]
        # No gather: its gradient under vmap adds by index, slowly where it has to be deterministic.
        right = target.mT.unsqueeze(-1) == torch.arange(self.outputs, device=target.device)
        return -(blanks.sum(0) + symbols.where(right, 0.0).sum((0, 2))) / len(out)

    def accuracy(self, out: Tensor, target: Tensor) -> Tensor:
        """The share of the K symbols that are said again rightly."""
        return (out[-self.symbols :].argmax(-1) == target.mT).to(torch.float32).mean(0)
