"""Where the time of a training step of one LSTM layer goes: each kernel's share, by torch's profiler.

    python benchmarks/kernels.py --json results/bench/NAME.json [--shapes ...] [--momenta ...]

Needs an NVIDIA GPU on which the backend "cuda" runs. For each shape, momentum and mode (TF32, TF32 off):
microseconds of each kernel in a step, mean over some steps, launches of it, and the sum of all. The profiler
costs time between kernels, not in them.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import momentumrnn as mr
from momentumrnn.bench import SHAPES
from momentumrnn.provenance import provenance

MOMENTA = {
    "None": None,
    "HeavyBall": mr.HeavyBall(),
    "Adam": mr.Adam(beta=0.9),
    "RMSProp": mr.RMSProp(),
}
PAPER = ("pmnist256", "pmnist128", "timit158", "copy190-2k", "adding128")
STEPS = 5


def shares(shape: str, momentum: str, tf32: bool) -> dict[str, Any]:
    """Microseconds and launches of each kernel in a training step."""
    size = SHAPES[shape]
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = tf32
    net = mr.LSTM(size.D, size.H, momentum=MOMENTA[momentum], device="cuda", backend="cuda")
    x, dy = torch.randn(size.T, size.B, size.D).cuda(), torch.randn(size.T, size.B, size.H).cuda()
    weights = list(net.parameters())

    def step() -> None:
        torch.autograd.grad(net(x)[0], weights, dy)

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    kernels = {
        event.key: {"us": event.self_device_time_total / STEPS, "launches": event.count / STEPS}
        for event in seen.key_averages()
        if event.self_device_time_total > 0
    }
    ordered = dict(sorted(kernels.items(), key=lambda item: -item[1]["us"]))
    return {"all_us": sum(k["us"] for k in kernels.values()), "kernels": ordered}


def main() -> None:
    parser = argparse.ArgumentParser(description="Where the time of a training step goes, on a GPU.")
    parser.add_argument("--json", type=Path, help="where to write the result")
    known = [name for name, size in SHAPES.items() if size.cell == "lstm" and size.H <= 256]
    parser.add_argument("--shapes", nargs="+", choices=known, default=PAPER)
    parser.add_argument("--momenta", nargs="+", choices=list(MOMENTA), default=["None", "Adam"])
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks/kernels.py needs an NVIDIA GPU, and there is none")
    result = provenance("python benchmarks/kernels.py " + " ".join(sys.argv[1:]))
    result["cases"] = {}
    for shape in args.shapes:
        for momentum in args.momenta:
            for tf32 in (True, False):
                name = f"{shape}, {momentum}, {'TF32' if tf32 else 'TF32 off'}"
                case = result["cases"][name] = shares(shape, momentum, tf32)
                print(f"{name}: {case['all_us']:.0f} us")
                for kernel, share in list(case["kernels"].items())[:8]:
                    print(f"  {share['us']:8.1f} us  {share['launches']:4.1f} x  {kernel[:80]}")
                if args.json:
                    args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
