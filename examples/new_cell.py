"""Your own cell: one class that sets `gates` and `states` and defines `step`. It takes every momentum."""

from dataclasses import dataclass

import torch
from torch import Tensor

import momentumrnn as mr


@dataclass(frozen=True)
class MinimalGated(mr.Cell):
    """h_t = (1 - f) h_{t-1} + f tanh(v_g + f (U_g h_{t-1} + b_g)),   f = σ(v_f + U_f h_{t-1} + b_f)."""

    gates = 2
    states = 1

    def step(self, v: Tensor, r: Tensor, b: Tensor | None, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        v_f, v_g = v.chunk(2, -1)
        u_f, u_g = (r if b is None else r + b).chunk(2, -1)
        f = (v_f + u_f).sigmoid()
        g = (v_g + f * u_g).tanh()
        return (torch.lerp(state[0], g, f),)


rnn = mr.Recurrent(MinimalGated(), 3, 8, num_layers=2, bidirectional=True, momentum=mr.HeavyBall(mu=0.6))
x = torch.randn(20, 4, 3)
out, h = rnn(x)
print(rnn)
print(out.shape, h.shape)
print(rnn.explain(x))
