"""What a training step of the trainer costs: on a CPU against a plain torch script, on a GPU as a CUDA graph.

    python benchmarks/training_step.py --json results/bench/NAME.json

Pixels are random: a step costs the same on them. On a CPU: ours and a script that does the same with
torch.nn.LSTM, by turns, and the median ratio of samples a second; two seeds side by side. On a GPU: the whole
step of one seed and of five together, and what of it is the recurrent layer, forward and backward, captured
by itself; the rest is batch, output layer, loss, clipping and optimiser.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from momentumrnn import HeavyBall
from momentumrnn.cuda_graph import captured
from momentumrnn.experiments import PMNIST, Config, configure
from momentumrnn.experiments.engine.devices import torch_settings
from momentumrnn.experiments.engine.replicas import Replicas
from momentumrnn.experiments.models import build
from momentumrnn.experiments.tasks import Data
from momentumrnn.provenance import provenance

STEPS_OF_PAPER = 70350


def made(config: Config, seeds: range, device: torch.device) -> Replicas:
    """Replicas at the beginning of an epoch of random pixels."""
    count = 8 * config.batch_size
    source = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 784), generator=source, dtype=torch.uint8)
    labels = torch.randint(0, 10, (count,), generator=source)
    data = Data((images, labels, torch.tensor(count)), {})
    replicas = Replicas(config, [build(config, seed) for seed in seeds], seeds, data, device)
    replicas.begin([(torch.arange(count),) for _ in seeds], 0)
    return replicas


def plain(config: Config) -> Callable[[], None]:
    """A step as one writes it with torch alone."""
    lstm, head = nn.LSTM(1, config.hidden_size), nn.Linear(config.hidden_size, 10)
    parameters = [*lstm.parameters(), *head.parameters()]
    optimizer = torch.optim.RMSprop(parameters, lr=config.lr, alpha=config.alpha)
    images = torch.randint(0, 256, (8 * config.batch_size, 784), dtype=torch.uint8)
    labels, order = torch.randint(0, 10, (len(images),)), torch.randperm(784)

    def step() -> None:
        take = torch.randint(0, len(images), (config.batch_size,))
        x = (images[take][:, order].T.unsqueeze(-1).float() / 255).contiguous()
        loss = nn.functional.cross_entropy(head(lstm(x)[1][0][-1]), labels[take])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, config.clip)
        optimizer.step()
        loss.item()  # a script logs it

    return step


def on_cpu(hidden: int, rounds: int) -> dict[str, Any]:
    """Ours without momentum and with, each against the plain script in the same round."""
    found = {}
    for momentum in (None, HeavyBall(mu=0.6, step=1.0)):
        config = configure(PMNIST(), hidden_size=hidden, momentum=momentum)
        replicas, other, ratios, ms = made(config, range(1), torch.device("cpu")), plain(config), [], []

        def step(replicas: Replicas = replicas) -> None:
            replicas.index.fill_(0)
            replicas.step(0)
            replicas.losses[0].tolist()

        for turn in range(rounds + 2):
            seconds = {}
            for call in (step, other) if turn % 2 else (other, step):  # by turns the first
                started = time.perf_counter()
                call()
                seconds[call] = time.perf_counter() - started
            if turn > 1:  # the first two warm up
                ratios.append(seconds[other] / seconds[step])
                ms.append((1e3 * seconds[step], 1e3 * seconds[other]))
        ours, theirs = (statistics.median(each) for each in zip(*ms, strict=True))
        found[repr(momentum)] = {
            "ours_ms": ours,
            "plain_ms": theirs,
            "samples_per_second": 1e3 * config.batch_size / ours,
            "speed_over_plain": {
                "median": statistics.median(ratios),
                "lowest": min(ratios),
                "highest": max(ratios),
            },
        }
        print(f"H = {hidden}, {momentum!r}: {found[repr(momentum)]}", flush=True)
    return found


def side_by_side(hidden: int, rounds: int) -> dict[str, Any]:
    """Two seeds on a CPU, a thread each, as the trainer has them, against one by one on two threads."""
    config = configure(PMNIST(), hidden_size=hidden, momentum=HeavyBall(mu=0.6, step=1.0))
    seeds = [made(config, range(s, s + 1), torch.device("cpu")) for s in range(2)]

    def step(replicas: Replicas) -> None:
        replicas.index.fill_(0)
        replicas.step(0)

    ratios, before = [], torch.get_num_threads()
    with ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for turn in range(rounds + 1):
            torch.set_num_threads(2)
            started = time.perf_counter()
            for replicas in seeds:
                step(replicas)
            middle = time.perf_counter()
            list(pool.map(step, seeds))
            ended = time.perf_counter()
            if turn:  # the first warms up
                ratios.append((middle - started) / (ended - middle))
    torch.set_num_threads(before)
    found = {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
    print(f"H = {hidden}, two seeds side by side, speed over one by one: {found}", flush=True)
    return {"speed_over_one_by_one": found}


def timed(call: Callable[[], Any], repeats: int = 5, calls: int = 40) -> float:
    """Milliseconds of a call on the GPU, the median of some rounds."""
    found = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) / calls)
    return statistics.median(found)


def recurrent(replicas: Replicas) -> Callable[[], Any]:
    """Forward and backward of the recurrent layer of all replicas, by themselves, as a graph."""
    rows = tuple(r[:, : replicas.config.batch_size] for r in replicas.rows)
    rnn = replicas.models[0].rnn
    inputs = [replicas._batch(r, tuple(each[r] for each in rows))[0] for r in range(len(replicas.models))]
    x = torch.stack(inputs)
    names = [name for name, _ in rnn.named_parameters()]
    weights = {
        name: torch.stack(
            [model.rnn.get_parameter(name).detach() for model in replicas.models]
        ).requires_grad_()
        for name in names
    }
    direction = torch.randn(x.shape[2], replicas.config.hidden_size, device=x.device)

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return (functional_call(rnn, weights, (x,))[1][0][-1] * direction).sum()

    def both() -> None:
        if len(x) == 1:
            value = loss({name: w[0] for name, w in weights.items()}, x[0])
        else:
            value = torch.vmap(loss)(weights, x).sum()
        torch.autograd.grad(value, list(weights.values()))

    return captured(both)


def on_gpu(hidden: int, seeds: int) -> dict[str, Any]:
    found = {}
    for momentum in (None, HeavyBall(mu=0.6, step=1.0)):
        config = configure(PMNIST(), hidden_size=hidden, momentum=momentum)
        replicas = made(config, range(seeds), torch.device("cuda"))
        replicas.step(0)
        if replicas.reason or (seeds > 1) != replicas.together:
            raise RuntimeError(f"not a graph of all seeds: {replicas.reason or 'one by one'}")

        def step(replicas: Replicas = replicas) -> None:
            replicas.graphs[replicas.config.batch_size].replay()

        def whole(replicas: Replicas = replicas) -> float:
            replicas.index.fill_(0)
            return timed(step, repeats=1, calls=7)

        steps = statistics.median([whole() for _ in range(25)])
        alone = timed(recurrent(replicas), repeats=9)
        found[repr(momentum)] = {
            "step_ms": steps,
            "recurrent_ms": alone,
            "outside_ms": steps - alone,
            "minutes_for_150_epochs": STEPS_OF_PAPER * steps / 6e4,
            "samples_per_second": 1e3 * seeds * config.batch_size / steps,
        }
        print(f"H = {hidden}, {seeds} seeds, {momentum!r}: {found[repr(momentum)]}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=10, help="on a CPU")
    parser.add_argument("--hidden", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--json", help="where the results go")
    args = parser.parse_args()
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    command = (
        f"python benchmarks/training_step.py --device {device} --hidden {' '.join(map(str, args.hidden))}"
    )
    result = {**provenance(command, device), "threads": torch.get_num_threads(), "cases": {}}
    for hidden in args.hidden:
        with torch_settings(configure(PMNIST()), torch.device(device)):  # as the trainer has it
            if device == "cpu":
                result["cases"][f"pmnist{hidden}"] = on_cpu(hidden, args.rounds)
                result["cases"][f"pmnist{hidden}, 2 seeds"] = side_by_side(hidden, args.rounds)
            else:
                for seeds in (1, 5):
                    result["cases"][f"pmnist{hidden}, {seeds} seeds"] = on_gpu(hidden, seeds)
        if args.json:
            with open(args.json, "w") as file:
                file.write(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
