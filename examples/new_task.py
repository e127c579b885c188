"""A task of your own, trained and evaluated like the paper's: which of two marks came first?

A task is one class: rows of data for each seed and epoch, the batch that some rows stand for, and the loss
of each sample. `train` adds seeds, checkpoints, validation and results.
"""

import tempfile
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import momentumrnn as mr
from momentumrnn.experiments import Task, configure, train
from momentumrnn.experiments.tasks import Data, Rows, generator


@dataclass(frozen=True)
class First(Task):
    """Two steps of a sequence are marked, one by 1 and one by -1: which came first?"""

    length: int = 20
    features = 1
    outputs = 2
    every_step = False
    metric = "accuracy"

    def load(self, folder: object) -> Data:
        return Data((), {})

    def rows(self, data: Data, seed: int, epoch: int) -> Rows:
        return self._draw(1000, seed, epoch)

    def held_out(self, data: Data, part: str) -> Rows:
        return self._draw(200, part)

    def _draw(self, count: int, *key: object) -> Rows:
        steps = torch.rand(count, self.length, generator=generator(*key)).argsort(1)
        return (steps[:, :2],)  # the steps marked by 1 and by -1

    def batch(self, tensors: object, constants: object, rows: Rows) -> tuple[Tensor, Tensor]:
        (marked,) = rows
        t = torch.arange(self.length, device=marked.device).unsqueeze(1)
        x = (t == marked[:, 0]).float() - (t == marked[:, 1]).float()
        return x.unsqueeze(-1), (marked[:, 0] < marked[:, 1]).long()

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(out, target, reduction="none")

    def accuracy(self, out: Tensor, target: Tensor) -> Tensor:
        return (out.argmax(-1) == target).float()


if __name__ == "__main__":
    for momentum in (None, mr.HeavyBall(mu=0.6, step=0.4)):
        config = configure(First(), momentum=momentum, hidden_size=16, lr=1e-2, batch_size=50, epochs=4)
        with tempfile.TemporaryDirectory() as root:  # without root, the runs are kept in runs/
            results = train(config, seeds=[0, 1], root=root, device="cpu")
        accuracies = [result["selected"]["by_validation"]["test_accuracy"] for result in results]
        shown = " ".join(f"{accuracy:.3f}" for accuracy in accuracies)
        print(f"{momentum or 'no momentum'!s}: test accuracy of two seeds {shown}")
