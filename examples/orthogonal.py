"""MomentumDTRIV: an orthogonal recurrent matrix with its own learning rate, re-based every 100 steps."""

import torch
from torch import Tensor, nn

import momentumrnn as mr

SYMBOLS, SAID, GAP, N = 6, 4, 20, 64


def recall(batch: int = 32) -> tuple[Tensor, Tensor]:
    """Some symbols, a gap of blanks, then a marker for each symbol that the network has to repeat."""
    said = torch.randint(SYMBOLS, (SAID, batch))
    blanks, marks = torch.full((GAP, batch), SYMBOLS), torch.full((SAID, batch), SYMBOLS + 1)
    return nn.functional.one_hot(torch.cat([said, blanks, marks])).float(), said


torch.manual_seed(0)
torch.set_num_threads(1)  # at this size more threads are slower
# The input has no bias: W x alone goes through the momentum. bias_hh is modReLU's threshold.
momentum = mr.HeavyBall(mu=0.3, step=0.7)
rnn = mr.RNN(SYMBOLS + 2, N, nonlinearity="modrelu", bias="hh", momentum=momentum, init="dtriv")
mr.orthogonal(rnn, init="henaff")
head = nn.Linear(N, SYMBOLS)
model = nn.ModuleList([rnn, head])
print("effective parameters:", mr.count_parameters(model))

# U = base exp(tril(X) - tril(X)ᵀ). Its tangent X has a smaller learning rate than the rest.
optimizer = torch.optim.RMSprop(mr.optimizer_groups(model, lr=1e-3, orthogonal_lr=1e-4))
for step in range(251):
    x, said = recall()
    loss = nn.functional.cross_entropy(head(rnn(x)[0][-SAID:]).flatten(0, 1), said.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 99:
        mr.rebase_(model)  # base <- U, X <- 0
    if step % 50 == 0:
        U = rnn.weight_hh_l0.detach()
        error = (U.T @ U - torch.eye(N)).abs().max().item()
        print(f"step {step:3d}   loss {loss.item():.4f}   largest |UᵀU - I| {error:.1e}")

before = rnn(x)[0]
mr.rebase_(model)
print("re-basing moved an output by at most", (rnn(x)[0] - before).abs().max().item())
