"""The adding problem: a plain LSTM, a momentum LSTM, and the control that tells momentum from step size.

A sequence of T random numbers, two of them marked; the answer is the sum of the two. To always answer 1
gives a loss of 1/6. Heavy ball lets a constant input in with gain step / (1 - mu); the third network has
that gain and no momentum. What you see depends on length, rate and seed: run it with your own.

    python examples/adding.py --length 30 --steps 800 --seeds 3
"""

import argparse

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import nn

import momentumrnn as mr


def batch(length: int, rows: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs (T, B, 2), number and marker, and the sums (B,); one marker in each half."""
    x = torch.rand(length, rows, 2, generator=generator)
    x[..., 1] = 0
    for low, high in ((0, length // 2), (length // 2, length)):
        x[torch.randint(low, high, (rows,), generator=generator), torch.arange(rows), 1] = 1
    return x, x.prod(-1).sum(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--length", type=int, default=30)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    if args.length < 2 or args.steps < 1 or args.seeds < 1:
        parser.error("expected --length of at least 2, --steps and --seeds of at least 1")

    torch.set_num_threads(1)  # so small a network is slower on more
    console = Console()
    networks = {
        "LSTM": None,
        "MomentumLSTM, mu 0.6, step 1": mr.HeavyBall(mu=0.6, step=1.0),
        "no momentum, same gain: step 2.5": mr.HeavyBall(mu=0.0, step=2.5),
    }
    table = Table("network", "half way", "at the end", title=f"loss, adding {args.length} numbers")
    with Progress(console=console) as progress:
        for name, momentum in networks.items():
            task = progress.add_task(name, total=args.seeds * args.steps)
            losses = torch.zeros(args.seeds, args.steps)
            for seed in range(args.seeds):
                torch.manual_seed(seed)
                data = torch.Generator().manual_seed(seed)
                lstm, head = mr.LSTM(2, 64, momentum=momentum), nn.Linear(64, 1)
                weights = [*lstm.parameters(), *head.parameters()]
                optimizer = torch.optim.Adam(weights, lr=5e-3)
                for step in range(args.steps):
                    x, y = batch(args.length, 50, data)
                    _, (h, _) = lstm(x)
                    loss = nn.functional.mse_loss(head(h[-1]).squeeze(-1), y)
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(weights, 1.0)
                    optimizer.step()
                    losses[seed, step] = loss.detach()
                    progress.advance(task)
            window = max(1, args.steps // 16)
            half, end = (losses[:, i - window : i].mean(1) for i in (args.steps // 2 or 1, args.steps))
            table.add_row(name, *(f"{v.mean():.4f} ± {v.std(correction=0):.4f}" for v in (half, end)))
    table.add_row("always answering 1", "0.1667", "0.1667")
    console.print(table)
    console.print(f"Mean ± deviation over {args.seeds} seeds, each over {window} training steps.")


if __name__ == "__main__":
    main()
