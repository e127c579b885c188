"""Where the time of a training step of one LSTM layer goes: each kernel's share, by torch's profiler.

    python benchmarks/kernels.py --json results/bench/NAME.json [--shapes ...] [--momenta ...] [--stages]

Needs an NVIDIA GPU on which the backend "cuda" runs. For each shape, momentum and mode (TF32, TF32 off):
microseconds of each kernel in a step, mean over some steps, launches of it, and the sum of all; and those of
the step as a whole, replayed from a CUDA graph, which are fewer where kernels run side by side. The profiler
costs time between kernels, not in them.

With --stages, in TF32 alone: the cycles of each stage of a time step, in the first warp. The sources of both
recurrences say where a stage begins, "// stage N: NAME"; there a clock is read, which costs some cycles.
"""

import argparse
import ctypes
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import momentumrnn as mr
from momentumrnn.bench import SHAPES
from momentumrnn.cuda_graph import capture
from momentumrnn.kernels import launch, nvrtc
from momentumrnn.provenance import provenance

MOMENTA = {
    "None": None,
    "HeavyBall": mr.HeavyBall(),
    "Adam": mr.Adam(beta=0.9),
    "RMSProp": mr.RMSProp(),
}
PAPER = ("pmnist256", "pmnist128", "timit158", "copy190-2k", "adding128")
STEPS = 5
REPLAYS = 20
PASSES = ("lstm_forward", "lstm_backward")
STAGE = re.compile(r"// stage (\d): ([^\n]*)")
WATCH = """
  long long spent[8] = {}, since = 0;
  auto stage_after = [&](int before) {
    const long long now = clock64();
    if (since) spent[before] += now - since;
    since = now;
  };
"""
NOTE = """
  if (thread == 0 && blockIdx.x == 0 && blockIdx.y == 0)
    for (int i = 0; i < 8; i++) stages[i] = (int)(spent[i] / steps);
}
"""


def training_step(shape: str, momentum: str) -> Callable[[], object]:
    size = SHAPES[shape]
    torch.manual_seed(0)
    net = mr.LSTM(size.D, size.H, momentum=MOMENTA[momentum], device="cuda", backend="cuda")
    x, dy = torch.randn(size.T, size.B, size.D).cuda(), torch.randn(size.T, size.B, size.H).cuda()
    weights = list(net.parameters())
    return lambda: torch.autograd.grad(net(x)[0], weights, dy)


def shares(step: Callable[[], object]) -> dict[str, Any]:
    """Microseconds and launches of each kernel in a training step."""
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
    return {"step_us": replayed(step), "all_us": sum(k["us"] for k in kernels.values()), "kernels": ordered}


def replayed(step: Callable[[], object]) -> float:
    """Microseconds of a step from a CUDA graph."""
    graph, _ = capture(step)
    graph.replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1000 / REPLAYS


def stages(step: Callable[[], object]) -> dict[str, Any]:
    """Cycles of each stage of a time step, by clocks in the kernels."""
    known = launch.source
    launch.source = lambda name: with_clocks(known(name)) if name in PASSES else known(name)
    for cached in (launch.kernel, launch._load_all):
        cached.cache_clear()
    loaded = {}
    load = nvrtc.load

    def noted(text: str, name: str, defines: nvrtc.Defines, device: int) -> nvrtc.Kernel:
        loaded[name] = text, defines, device  # the last one with this name: the forward pass that keeps
        return load(text, name, defines, device)

    nvrtc.load = noted
    try:
        for _ in range(2):
            step()
        torch.cuda.synchronize()
        return {name: read_stages(*loaded[name], names_of(known(name))) for name in PASSES}
    finally:
        launch.source, nvrtc.load = known, load
        for cached in (launch.kernel, launch._load_all):
            cached.cache_clear()


def names_of(source: str) -> dict[int, str]:
    """The stages that a kernel's source has, by number."""
    return {int(number): name for number, name in STAGE.findall(source)}


def with_clocks(source: str) -> str:
    """A kernel that leaves the cycles of its stages in `stages`; the stage before a comment ends there."""
    count = len(names_of(source))
    source = STAGE.sub(lambda m: f"stage_after({(int(m[1]) - 1) % count});", source)
    begin = source.index("\n  const int thread = threadIdx.x,")
    before, after = source[:begin], source[begin:].rstrip().removesuffix("}")
    return f"__device__ int stages[8];\n{before}{WATCH}{after}{NOTE}"


def read_stages(text: str, defines: nvrtc.Defines, device: int, names: dict[int, str]) -> dict[str, int]:
    context, module = nvrtc._module(text, defines, device)
    place, size, cycles = ctypes.c_void_p(), ctypes.c_size_t(), (ctypes.c_int * 8)()
    driver = nvrtc._driver()
    nvrtc._call(context, driver.cuModuleGetGlobal_v2, ctypes.byref(place), ctypes.byref(size),
                ctypes.c_void_p(module), b"stages")  # fmt: skip
    nvrtc._call(context, driver.cuMemcpyDtoH_v2, cycles, place, ctypes.c_size_t(ctypes.sizeof(cycles)))
    found = {names[number]: cycles[number] for number in sorted(names)}
    if dict(defines).get("MOMENTUM_FORM") == 0:  # behind the stores comes the next step
        found["stores"] += found.pop("momentum")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Where the time of a training step goes, on a GPU.")
    parser.add_argument("--json", type=Path, help="where to write the result")
    known = [name for name, size in SHAPES.items() if size.cell == "lstm" and size.H <= 256]
    parser.add_argument("--shapes", nargs="+", choices=known, default=PAPER)
    parser.add_argument("--momenta", nargs="+", choices=list(MOMENTA), default=["None", "Adam"])
    parser.add_argument("--stages", action="store_true", help="cycles of the stages of a time step")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks/kernels.py needs an NVIDIA GPU, and there is none")
    result = provenance("python benchmarks/kernels.py " + " ".join(sys.argv[1:]))
    result["cases"] = {}
    for shape in args.shapes:
        for momentum in args.momenta:
            for tf32 in (True,) if args.stages else (True, False):
                torch.backends.cudnn.allow_tf32 = tf32
                name = f"{shape}, {momentum}, {'TF32' if tf32 else 'TF32 off'}"
                step = training_step(shape, momentum)
                case = result["cases"][name] = stages(step) if args.stages else shares(step)
                print(f"{name}: {case}" if args.stages else f"{name}: {case['step_us']:.0f} us")
                for kernel, share in list(case.get("kernels", {}).items())[:8]:
                    print(f"  {share['us']:8.1f} us  {share['launches']:4.1f} x  {kernel[:80]}")
                if args.json:
                    args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
