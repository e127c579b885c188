"""Streaming: a sequence that arrives in pieces. Each piece continues from the State of the one before."""

import torch

import momentumrnn as mr

# With carry_momentum the layer always returns a State: a flat tuple, here (h, c, v, n, k).
lstm = mr.LSTM(3, 8, num_layers=2, momentum=mr.ScheduledRestart(every=10), carry_momentum=True)
x = torch.randn(100, 4, 3)

whole, end = lstm(x)

state, pieces = None, []
for chunk in x.split([1, 7, 30, 62]):
    out, state = lstm(chunk, state)
    pieces.append(out)
print("largest difference to the whole:", (torch.cat(pieces) - whole).abs().max().item())
print("steps taken by each row:", state.k[0].tolist())

# Keep the first and the last sequence of the batch, and continue with these.
out, state = lstm(torch.randn(5, 2, 3), state.select([0, 3]))
print("steps taken by each row:", state.k[0].tolist())

# A Stream holds the State and takes one step at a time, without gradients.
stream = mr.Stream(lstm, batch_size=4)
steps = torch.stack([stream(x_t) for x_t in x])
print("largest difference of single steps:", (steps - whole).abs().max().item())
stream.reset([2])  # a new sequence begins in row 2
y = stream(x[0])
print("steps taken by each row:", stream.state.k[0].tolist())
print("how it runs:", stream.description)

# Truncated back-propagation, as with (h, c): detach each entry. The momentum continues across the cut.
optimizer = torch.optim.SGD(lstm.parameters(), lr=0.1)
state = None
for chunk in x.split(25):
    out, state = lstm(chunk, state)
    state = tuple(t.detach() for t in state)
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.5f}")
