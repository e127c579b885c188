"""Five seeds of one model trained side by side: one forward, one backward, one optimiser for all.

Weights of all replicas are stacked, and `torch.vmap` runs the model over them. With the backend `cuda` the
layer's replicas are one launch, at one to three times the price of one; elsewhere the definition runs.
"""

import torch
from torch import nn

import momentumrnn as mr

SEEDS = 5


class Model(nn.Module):
    """Reads a sequence, and says what its first number was."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = mr.LSTM(1, 16, momentum=mr.HeavyBall(mu=0.6, step=0.4))
        self.out = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.rnn(x)[0][-1])


device = "cuda" if torch.cuda.is_available() else "cpu"
models = []
for seed in range(SEEDS):
    torch.manual_seed(seed)
    models.append(Model().to(device))
weights, _ = torch.func.stack_module_state(models)
optimizer = torch.optim.Adam(weights.values(), lr=1e-2)


def loss(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return (torch.func.functional_call(models[0], weights, (x,)) - x[0]).square().mean()


losses = torch.vmap(loss, in_dims=(0, None))  # the data are shared
for step in range(31):
    x = torch.randn(6, 32, 1, device=device)
    each = losses(weights, x)
    optimizer.zero_grad()
    each.sum().backward()  # no replica's loss knows the others' weights
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step:3d}  loss of each seed:", *(f"{value:.3f}" for value in each.tolist()))
