"""What training processes on the same cores cost each other, and what threads are worth to one alone.

    python benchmarks/side_by_side.py --json results/bench/NAME.json [--cores 2] [--before ../before]
    python benchmarks/side_by_side.py --table --threads 2 4 8 --json results/bench/NAME.json

The first starts `momentumrnn run` once, then twice at the same time, confined to the same cores. After some
seconds of training all are told to stop. Their checkpoints say how many samples were trained in how many
seconds. With a neighbour and a fair share a process has half the speed that it has alone. The ways to start:
before is another checkout; before and default have no --threads; passive is all-threads with OMP_WAIT_POLICY.

The second times training steps of one process on 1 thread and on more, by turns. Run it on a quiet machine:
SMALL_WORK in momentumrnn/experiments/threads.py was chosen by it.
"""

import argparse
import contextlib
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired
from typing import Any

import torch

from momentumrnn.experiments import Adding, Config, configure
from momentumrnn.experiments.config import read
from momentumrnn.experiments.engine.devices import torch_settings
from momentumrnn.experiments.engine.replicas import Replicas
from momentumrnn.experiments.models import build
from momentumrnn.provenance import provenance

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = {
    "Adding, LSTM, H 64, B 50": ["--task", "Adding(length=100)", "--hidden-size", "64"],
    "Adding, GRU, H 64, B 50": ["--task", "Adding(length=100)", "--hidden-size", "64", "--cell", "GRU()"],
    "Copying, LSTM, H 128, B 128": ["--task", "Copying(length=80)", "--hidden-size", "128"],
    "Copying, GRU, H 256, B 128": ["--task", "Copying(length=80)", "--hidden-size", "256", "--cell", "GRU()"],
}
PATIENCE = 120  # seconds to end a step after a process was told to stop
Way = tuple[Path, list[str], dict[str, str]]  # to start a process: its checkout, options and environment


def ways(cores: int, before: Path | None) -> dict[str, Way]:
    threads = ["--threads", str(cores)]
    return {
        **({} if before is None else {"before": (before.resolve(), [], {})}),
        "default": (ROOT, [], {}),
        "one-thread": (ROOT, ["--threads", "1"], {}),
        "all-threads": (ROOT, threads, {}),
        "passive": (ROOT, threads, {"OMP_WAIT_POLICY": "passive"}),
    }


def start(way: Way, setting: list[str], folder: Path) -> Popen[str]:
    """A process that trains in a folder until it is told to stop."""
    checkout, options, environment = way
    command = [sys.executable, "-m", "momentumrnn", "run", *setting, *options, "--epochs", "1000000"]
    command += ["--device", "cpu", "--root", "."]
    path = os.pathsep.join(filter(None, [str(checkout), os.environ.get("PYTHONPATH")]))
    variables = {**os.environ, "PYTHONPATH": path, **environment}
    # Python imports from the folder where it starts before PYTHONPATH, so this is no checkout.
    return Popen(command, cwd=folder, env=variables, text=True, stdout=DEVNULL, stderr=PIPE)


def speeds(way: Way, setting: list[str], count: int, seconds: float) -> list[float]:
    """The samples a second of so many processes that train at the same time; 0 if one saved nothing."""
    with tempfile.TemporaryDirectory() as parent:
        folders = [Path(tempfile.mkdtemp(dir=parent)) for _ in range(count)]
        processes = [start(way, setting, folder) for folder in folders]
        try:
            while not all(list(folder.glob("*/metrics.jsonl")) for folder in folders):
                for process in processes:
                    if process.poll() is not None:
                        raise RuntimeError(f"a process does not train: {process.communicate()[1]}")
                time.sleep(0.05)
            time.sleep(seconds)
            for process in processes:
                process.terminate()
            with contextlib.suppress(TimeoutExpired):
                for process in processes:
                    process.wait(PATIENCE)
        finally:
            for process in processes:
                process.kill()
                process.communicate()
        states = [torch.load(path) for folder in folders for path in folder.glob("*/resume.pt")]
        found = [state["trained"] / state["training_seconds"] for state in states if state["trained"]]
        return found + [0.0] * (count - len(found))


def side_by_side(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All settings so far, after each round."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])  # processes inherit it
    cases: dict[str, dict[str, Any]] = {}
    for i in range(args.rounds):
        for setting in (name for name in SETTINGS if args.only in name):
            for name, way in list(ways(args.cores, args.before).items())[:: -1 if i % 2 else 1]:
                (alone,), two = (speeds(way, SETTINGS[setting], n, args.seconds) for n in (1, 2))
                case = cases.setdefault(setting, {}).setdefault(name, {"rounds": []})
                ratio = statistics.mean(two) / alone if alone else 0.0
                case["rounds"].append({"alone": alone, "two": two, "ratio": ratio})
                case["ratio"] = spread([each["ratio"] for each in case["rounds"]])
                print(f"{setting}, {name}: {alone:.1f} samples a second, two {two}", flush=True)
        yield cases


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


@dataclass(frozen=True)
class Wide(Adding):
    """Adding whose input has any number of features, all the same. It is here to be timed."""

    features: int = 1

    def batch(self, tensors: Any, constants: Any, rows: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x, target = super().batch(tensors, constants, rows)
        return x[..., :1].repeat(1, 1, self.features), target


def milliseconds(config: Config, args: argparse.Namespace) -> dict[int, list[float]]:
    """The times of a training step on each number of threads, one for each round."""
    data = config.task.load(None)
    replicas = Replicas(config, [build(config, 0)], [0], data, torch.device("cpu"))
    replicas.begin([config.task.rows(data, 0, 0)], 0)

    def burst(steps: int) -> float:
        begin = time.perf_counter()
        for _ in range(steps):
            replicas.index.fill_(0)
            replicas.step(0)
        return 1e3 * (time.perf_counter() - begin) / steps

    times: dict[int, list[float]] = {number: [] for number in [1, *args.threads]}
    steps = math.ceil(10 * args.seconds / min(burst(1), burst(1)))
    for i in range(args.rounds):
        for number in list(times)[:: -1 if i % 2 else 1]:
            torch.set_num_threads(number)
            burst(1)  # new threads begin
            times[number].append(burst(steps))
    return times


def table(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All shapes so far, after each."""
    cases: dict[str, Any] = {}
    sizes = args.momenta, args.cells, args.features, args.lengths, args.batches, args.hidden
    for momentum, cell, D, T, B, H in product(*sizes):
        task = Wide(length=T, samples=B, evaluation=1, features=D)
        chosen = {"cell": read("cell", cell), "momentum": read("momentum", momentum)}
        config = configure(task, hidden_size=H, batch_size=B, **chosen)
        with torch_settings(config, torch.device("cpu")):
            times = milliseconds(config, args)
        name = f"{cell}, {momentum}, D {D}, T {T}, B {B}, H {H}"
        speed = {n: spread([a / b for a, b in zip(times[1], times[n], strict=True)]) for n in args.threads}
        work = config.cell.gates * B * H * (H + D)
        ms = {n: statistics.median(of_rounds) for n, of_rounds in times.items()}
        cases[name] = {"work": work, "ms": ms, "speed_over_1_thread": speed}
        words = [f"{n} {s['median']:.2f} ({s['lowest']:.2f} to {s['highest']:.2f})" for n, s in speed.items()]
        print(f"{name}, work {work:.3g}: {ms[1]:.2f} ms on 1 thread, speed on {', '.join(words)}", flush=True)
        yield cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a process; a hundredth of a shape")
    parser.add_argument("--cores", type=int, default=cores)
    parser.add_argument("--before", type=Path, help="a checkout of this repository")
    parser.add_argument("--only", default="", help="settings with this in their name")
    sizes = {"features": [1, 128], "lengths": [100], "batches": [50, 128], "hidden": [32, 64, 128, 256, 512]}
    for name, default in {"threads": [cores], **sizes}.items():
        parser.add_argument(f"--{name}", type=int, nargs="+", default=default)
    parser.add_argument("--cells", nargs="+", default=["LSTM", "GRU", "Elman"])
    parser.add_argument("--momenta", nargs="+", default=["None", "HeavyBall(mu=0.6)"])
    args = parser.parse_args()
    if args.before is not None and not (args.before / "momentumrnn" / "__init__.py").exists():
        parser.error(f"--before should be a checkout of this repository, got {args.before}")
    words = ["BEFORE" if word == str(args.before) else word for word in sys.argv[1:]]
    result = provenance(f"python benchmarks/side_by_side.py {' '.join(words)}", "cpu")
    for cases in (table if args.table else side_by_side)(args):
        result |= {"cores": args.cores, "cases": cases}
        if args.json:
            args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
