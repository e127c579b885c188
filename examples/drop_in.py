"""Give a model momentum by one changed line, and keep the weights that torch.nn.LSTM had."""

import torch
from torch import nn

import momentumrnn as mr


class Tagger(nn.Module):
    def __init__(self, lstm: nn.Module) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 16)
        self.lstm = lstm
        self.head = nn.Linear(2 * 32, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out, _ = self.lstm(self.embed(tokens))
        return self.head(out)


options = {"num_layers": 2, "batch_first": True, "bidirectional": True}
before = Tagger(nn.LSTM(16, 32, **options))
# The changed line. With step = 1 - mu a constant input keeps the gain 1.
after = Tagger(mr.LSTM(16, 32, **options, momentum=mr.HeavyBall(mu=0.6, step=0.4)))
after.load_state_dict(before.state_dict())  # the same names and shapes

tokens = torch.randint(0, 100, (4, 12))
print("logits", tuple(after(tokens).shape))
print(after.lstm)
print(after.lstm.explain(after.embed(tokens)))

# With the momentum switched off it is the same network.
off = Tagger(mr.LSTM(16, 32, **options))
off.load_state_dict(before.state_dict())
print("momentum off, difference to torch.nn.LSTM:", (off(tokens) - before(tokens)).abs().max().item())
