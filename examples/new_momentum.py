"""Your own momentum: one class that defines `decay`. It runs with every cell, option and backend."""

from dataclasses import dataclass

import torch

import momentumrnn as mr


@dataclass(frozen=True)
class CosineRestart(mr.Momentum):
    """The decay rises from 0 to mu along a half cosine, and starts again every `every` steps."""

    mu: float = 0.9
    every: int = 50
    step: float = 1.0

    def decay(self, k: torch.Tensor) -> torch.Tensor:
        return self.mu * (1 - torch.cos(torch.pi * (k % self.every) / self.every)) / 2


gru = mr.GRU(3, 8, num_layers=2, bidirectional=True, momentum=CosineRestart(mu=0.8))
x = torch.randn(120, 4, 3)
out, h = gru(x)
print(gru)
print(gru.explain(x))

# The result is that of the definition, the backend "reference".
slow = mr.GRU(3, 8, num_layers=2, bidirectional=True, momentum=CosineRestart(mu=0.8), backend="reference")
slow.load_state_dict(gru.state_dict())
print("difference to the reference:", (slow(x)[0] - out).abs().max().item())

# With a field beta the drive is divided by the root of a running mean of squares, as in Adam.
rms = mr.GRU(3, 8, momentum=mr.Adam(mu=0.9, step=0.1, beta=0.99))
print(rms(x)[0].shape)
