"""Times two checkouts of this repository against each other, in turns, so that both meet the same noise.

    git worktree add ../before COMMIT
    python benchmarks/compare_checkouts.py --before ../before --json results/bench/NAME.json [--device cuda]

Each checkout runs in a process of its own, a new one in each round: two processes of one checkout can differ
by some percent. In a round both time every case in short bursts, by turns. Each round gives one ratio after /
before, that of the median bursts. The result has the median and the range of these ratios, median times, and
the number of torch's operations in a call, which noise does not change.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parent.parent
SHAPES = {  # T, B, D, H, layers, directions
    "cuda": {
        "pmnist256": (784, 128, 1, 256, 1, 1),
        "pmnist128": (784, 128, 1, 128, 1, 1),
        "timit158": (300, 32, 129, 158, 1, 1),
        "small97": (311, 37, 5, 97, 1, 1),
        "stacked64": (20, 16, 32, 64, 2, 2),
    },
    "cpu": {
        "medium128": (100, 32, 1, 128, 1, 1),
        "wide64": (50, 16, 40, 64, 2, 2),
        "tiny8": (5, 2, 3, 8, 1, 1),
    },
}
MOMENTA = ("None", "HeavyBall(mu=0.6)", "Adam(mu=0.6, step=0.1)")
KINDS = ("eager", "graph", "replicas", "stream", "loop", "step", "train")
"""step: a training step of the trainer, on random pixels; train: a whole call of `train`, in a new folder."""
BURSTS = 10  # of each case, in each round
SECONDS = 0.03  # of a burst, about


def cases(device: str) -> list[list[str]]:
    """Kind, cell, shape and momentum of each case."""
    cells = ("LSTM",) if device == "cuda" else ("LSTM", "GRU", "RNN")
    kinds = ("eager", "graph") if device == "cuda" else ("eager",)
    grid = [
        [kind, cell, shape, momentum]
        for kind in kinds
        for cell in cells
        for shape in SHAPES[device]
        for momentum in MOMENTA
    ]
    first, loop_shape = next(iter(SHAPES[device])), "small97" if device == "cuda" else "medium128"
    replicas = [["replicas", "LSTM", "pmnist128", m] for m in MOMENTA] if device == "cuda" else []
    streams = [["stream", "LSTM", first, m] for m in MOMENTA]
    loops = [["loop", cell, loop_shape, m] for cell in cells for m in MOMENTA]
    sizes = ("pmnist256", "pmnist128") if device == "cuda" else ("medium128",)
    steps = [["step", "LSTM", size, m] for size in sizes for m in MOMENTA]
    return grid + replicas + streams + loops + steps + [["train", "LSTM", sizes[-1], m] for m in MOMENTA]


def worker(device: str) -> None:
    """Read one case a line: answer first with the number of its operations, later with its milliseconds."""
    import torch

    import momentumrnn as mr
    from momentumrnn.bench import loop

    def build(kind: str, cell: str, shape: str, momentum: str) -> Callable[[], object]:
        T, B, D, H, layers, directions = SHAPES[device][shape]
        torch.manual_seed(0)
        chosen = None if momentum == "None" else eval(f"mr.{momentum}", {"mr": mr})
        if kind in ("step", "train"):
            return (training_step if kind == "step" else training_run)(device, T, H, chosen)
        options: dict[str, Any] = {"nonlinearity": "modrelu"} if cell == "RNN" else {}
        options |= {"num_layers": layers, "bidirectional": directions == 2, "momentum": chosen}
        net = getattr(mr, cell)(D, H, **options).to(device)
        x = torch.randn(T, B, D).to(device)
        if kind == "stream":
            stream = mr.Stream(mr.LSTM(D, H, momentum=chosen).to(device), batch_size=B)
            steps = x[:100].unbind()
            return lambda: [stream(x_t) for x_t in steps]
        if kind == "replicas":
            nets = [getattr(mr, cell)(D, H, momentum=chosen).to(device) for _ in range(5)]
            weights, buffers = torch.func.stack_module_state(nets)

            def together() -> None:
                call = lambda w, b: torch.func.functional_call(nets[0], (w, b), (x,))[0]  # noqa: E731
                out = torch.vmap(call)(weights, buffers)
                torch.autograd.grad(out.sum(), list(weights.values()))

            return together

        call = partial(loop, net) if kind == "loop" else net

        def training() -> None:
            net.zero_grad()
            call(x)[0].sum().backward()

        if kind in ("eager", "loop"):
            return training
        # Without `cuda_graph.capture`, which an older checkout does not have.
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(side):
            for _ in range(3):
                training()
            net.zero_grad()
            with torch.cuda.graph(graph, stream=side):
                training()
        torch.cuda.synchronize()
        return partial(replay, graph, training)

    built: dict[str, Callable[[], object]] = {}
    for line in sys.stdin:
        if line in built:
            print(1e3 * burst(built[line], device), flush=True)
        else:
            built[line] = build(*json.loads(line))
            burst(built[line], device)
            print(operations(built[line]), flush=True)


def training_step(device: str, length: int, hidden_size: int, momentum: Any) -> Callable[[], object]:
    """A training step of the trainer, again and again on the same samples."""
    import torch

    from momentumrnn.experiments import Adding, configure
    from momentumrnn.experiments.models import build

    try:
        from momentumrnn.experiments.engine.replicas import Replicas
    except ImportError:  # where version 0.2.0 has it
        from momentumrnn.experiments.replicas import Replicas
    task = Adding(length=length, samples=512, evaluation=10)
    config = configure(task, hidden_size=hidden_size, momentum=momentum, batch_size=128)
    seeds, data = range(5 if device == "cuda" else 1), task.load(None)
    replicas = Replicas(config, [build(config, seed) for seed in seeds], seeds, data, torch.device(device))
    replicas.begin([task.rows(data, seed, 0) for seed in seeds], 0)

    def step() -> None:
        replicas.index.fill_(0)
        replicas.step(0)

    return step


def training_run(device: str, length: int, hidden_size: int, momentum: Any) -> Callable[[], object]:
    """A whole call of `train`: an epoch of 20 steps, checkpoints and results, in a new folder."""
    from momentumrnn.experiments import Adding, configure, train

    task = Adding(length=length, samples=1000, evaluation=100)
    config = configure(task, hidden_size=hidden_size, momentum=momentum, epochs=1)

    def run() -> None:
        with TemporaryDirectory() as root:
            train(config, root=root, device=device, threads=1)

    return run


def replay(graph: Any, captured: Callable[[], object]) -> None:
    """Replay a graph. captured: what it was captured from, which owns the memory that the graph reads."""
    graph.replay()


def operations(call: Callable[[], object]) -> int:
    """How many operations of torch a call runs; a machine's noise does not change it."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as record:
        call()
    return sum(event.name.startswith("aten::") for event in record.events())


def burst(call: Callable[[], object], device: str) -> float:
    """The mean time of a call in a burst of calls, after one that finds cold caches."""
    import torch

    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None

    def seconds(calls: int) -> float:
        synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize()
        return time.perf_counter() - begin

    # A number of calls, because a GPU may be far behind the clock of the host.
    calls = math.ceil(SECONDS / seconds(1))
    return seconds(calls) / calls


def start(root: Path, device: str) -> subprocess.Popen[str]:
    """A worker that imports the package of a checkout."""
    command = [sys.executable, __file__, "--worker", "--device", device]
    env = {**os.environ, "PYTHONPATH": str(root.resolve()), "KINETO_LOG_LEVEL": "6"}
    return subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def ask(processes: Sequence[subprocess.Popen[str]], case: list[str]) -> list[float]:
    """What each process answers to a case; several processes run at once and disturb each other."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(json.dumps(case) + "\n")
        process.stdin.flush()
    return [float(process.stdout.readline()) for process in processes if process.stdout is not None]


def compare(
    before: Path, device: str, kinds: Sequence[str], rounds: int
) -> Iterator[dict[str, dict[str, Any]]]:
    """The median times and the ratios of all rounds so far, after each round."""
    medians: dict[str, list[dict[str, float]]] = {}  # of each round
    for i in range(rounds):
        workers = {"before": start(before, device), "after": start(ROOT, device)}
        for case in cases(device):
            if case[0] not in kinds:
                continue
            counts = ask(list(workers.values()), case)
            found = {f"{which}_operations": n for which, n in zip(workers, counts, strict=True)}
            times: dict[str, list[float]] = {which: [] for which in workers}
            for j in range(BURSTS):
                for which in list(workers)[:: 1 if (i + j) % 2 else -1]:
                    times[which] += ask([workers[which]], case)
            found |= {f"{which}_ms": statistics.median(ms) for which, ms in times.items()}
            medians.setdefault(" ".join(case), []).append(found)
        for process in workers.values():
            process.kill()
        yield {name: summary(of_rounds) for name, of_rounds in medians.items()}


def summary(of_rounds: list[dict[str, float]]) -> dict[str, float]:
    """The median times and operations of both checkouts, and the median and the range of the times' ratio."""
    ratios = [found["after_ms"] / found["before_ms"] for found in of_rounds]
    medians = {name: statistics.median(found[name] for found in of_rounds) for name in of_rounds[0]}
    return {**medians, "ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path)
    parser.add_argument("--before-commit", default="unknown")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.device)
        return
    if args.before is None or not (args.before / "momentumrnn" / "__init__.py").exists():
        parser.error(f"--before should be a checkout of this repository, got {args.before}")
    from momentumrnn.provenance import provenance

    options = f"--before BEFORE --device {args.device} --kinds {' '.join(args.kinds)} --rounds {args.rounds}"
    command = f"python benchmarks/compare_checkouts.py {options}"
    result = provenance(command, args.device) | {"before": args.before_commit}
    for i, found in enumerate(compare(args.before, args.device, args.kinds, args.rounds)):
        result |= {"rounds": i + 1, "cases": found}
        if args.json:
            args.json.write_text(json.dumps(result, indent=2) + "\n")
    for name, row in result["cases"].items():
        spread = f"{row['lowest']:.3f} to {row['highest']:.3f}"
        times = f"{row['before_ms']:9.3f} {row['after_ms']:9.3f} ms"
        counts = f"{row['before_operations']:6.0f} {row['after_operations']:6.0f} operations"
        print(f"{row['ratio']:.3f}  {spread}  {times}  {counts}  {name}")
    ratios = [row["ratio"] for row in result["cases"].values()]
    print(f"median ratio {statistics.median(ratios):.3f}, worst {max(ratios):.3f}")


if __name__ == "__main__":
    main()
