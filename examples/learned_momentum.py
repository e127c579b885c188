"""A momentum that is learned: mu as a parameter, one for each gate. The layer keeps it between 0 and 1."""

import copy

import torch
from torch import nn

import momentumrnn as mr

torch.manual_seed(0)
# A tensor of 4 has an entry for each gate of an LSTM, one of 4 * hidden_size for each of its rows.
# ema sets step = 1 - mu, so a constant input keeps the gain 1 while mu changes.
hidden = torch.tensor([0.9, 0.2, 0.6, 0.4])
teacher = mr.LSTM(3, 16, momentum=mr.HeavyBall.ema(hidden))

# The student has the teacher's weights, but not its mu. It learns mu from the teacher's outputs.
student = copy.deepcopy(teacher).requires_grad_(False)
student.momentum = mr.HeavyBall.ema(nn.Parameter(torch.full((4,), 0.5)))
print(student)
print("trained:", [name for name, p in student.named_parameters() if p.requires_grad])

optimizer = torch.optim.Adam([p for p in student.parameters() if p.requires_grad], lr=0.1)
for step in range(101):
    x = torch.randn(50, 16, 3)
    loss = (student(x)[0] - teacher(x)[0]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0:
        now = [round(mu, 2) for mu in student.momentum_mu.tolist()]
        print(f"step {step:3}, loss {loss.item():.1e}, mu {now}")

print("the teacher's mu:", [round(mu, 2) for mu in teacher.momentum_mu.tolist()])
