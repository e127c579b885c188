"""What one time step costs where steps come one by one: a Stream against torch.nn.LSTM and LSTMCell.

    python benchmarks/latency.py --json results/bench/NAME.json

Each contender holds its state and takes one x (B, D) after another; first its outputs are compared with
float64. chain: microseconds a step of many, by the wall clock, with a wait for the GPU at the end alone;
single: of one step and the wait for it. Contenders take turns in each round, figures are medians over rounds.
A CUDA graph has its input and state in static memory: its step copies x in, and y out, since a Stream's y is
the caller's too; of nn.LSTMCell there is also one that leaves y where the next step overwrites it.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import momentumrnn as mr
from momentumrnn.cuda_graph import capture
from momentumrnn.provenance import provenance

SIZES = [(1, 128, 1), (1, 256, 1), (129, 158, 1), (10, 190, 1), (64, 256, 1), (64, 256, 8)]  # D, H, B
CHECKED = 50  # steps that are compared with float64
Step = Callable[[Tensor], Tensor]


class Plain:
    """torch.nn.LSTM, its (h, c) carried from call to call."""

    def __init__(self, lstm: nn.LSTM, rows: int) -> None:
        zeros = torch.zeros(1, rows, lstm.hidden_size, device=lstm.weight_ih_l0.device)
        self.lstm, self.state = lstm, (zeros, zeros)

    def __call__(self, x: Tensor) -> Tensor:
        y, self.state = self.lstm(x.unsqueeze(0), self.state)
        return y[0]


class Ours:
    """Our layer, its State carried from call to call."""

    def __init__(self, lstm: mr.LSTM, rows: int) -> None:
        self.lstm, self.state = lstm, lstm.initial_state(rows)

    def __call__(self, x: Tensor) -> Tensor:
        y, self.state = self.lstm(x.unsqueeze(0), self.state)
        return y[0]


class Captured:
    """A step of one of torch's modules as a CUDA graph, which carries (h, c) on in static memory."""

    def __init__(self, module: nn.LSTM | nn.LSTMCell, rows: int, copies: bool = True) -> None:
        device = module.get_parameter("weight_hh_l0" if isinstance(module, nn.LSTM) else "weight_hh").device
        h, c = torch.zeros(2, rows, module.hidden_size, device=device).unbind()
        self.x = torch.zeros(rows, module.input_size, device=device)
        self.h, self.copies = h, copies

        def step() -> None:
            if isinstance(module, nn.LSTM):
                _, (new_h, new_c) = module(self.x.unsqueeze(0), (h.unsqueeze(0), c.unsqueeze(0)))
                new_h, new_c = new_h[0], new_c[0]
            else:
                new_h, new_c = module(self.x, (h, c))
            h.copy_(new_h)
            c.copy_(new_c)

        self.graph, _ = capture(step)
        h.zero_()
        c.zero_()

    def __call__(self, x: Tensor) -> Tensor:
        self.x.copy_(x)
        self.graph.replay()
        return self.h.clone() if self.copies else self.h


def contenders(
    D: int, H: int, B: int, device: str
) -> tuple[dict[str, Callable[[], Step]], dict[str, mr.LSTM]]:
    """What makes each contender anew, and of each the layer that defines it; all have the same weights."""
    torch.manual_seed(0)
    weights = nn.LSTM(D, H).state_dict()
    ours = {repr(m): mr.LSTM(D, H, momentum=m, device=device).eval() for m in (None, mr.HeavyBall(mu=0.6))}
    plain, cell = nn.LSTM(D, H, device=device).eval(), nn.LSTMCell(D, H, device=device).eval()
    for layer in (plain, *ours.values()):
        layer.load_state_dict(weights)
    cell.load_state_dict({name.removesuffix("_l0"): w for name, w in weights.items()})
    made: dict[str, Callable[[], Step]] = {"nn.LSTM": lambda: Plain(plain, B)}
    defined = {"nn.LSTM": ours["None"]}
    if device == "cuda":
        made["nn.LSTM, graph"] = lambda: Captured(plain, B)
        made["nn.LSTMCell, graph"] = lambda: Captured(cell, B)
        made["nn.LSTMCell, graph, y overwritten"] = lambda: Captured(cell, B, copies=False)
        defined |= dict.fromkeys(made, ours["None"])
    for name, layer in ours.items():
        made[f"LSTM with a State, {name}"] = lambda layer=layer: Ours(layer, B)  # type: ignore[misc]
        made[f"Stream, {name}"] = lambda layer=layer: mr.Stream(layer, B)  # type: ignore[misc]
        defined |= {f"LSTM with a State, {name}": layer, f"Stream, {name}": layer}
    return made, defined


def error(step: Step, layer: mr.LSTM, xs: Tensor) -> float:
    """The relative norm of the difference to the definition in float64, over some steps from the start."""
    momentum = layer.momentum
    exact = mr.LSTM(layer.input_size, layer.hidden_size, momentum=momentum, backend="reference").double()
    exact.load_state_dict(layer.state_dict())
    want, _ = exact(xs.cpu().double())
    got = torch.stack([step(x).clone() for x in xs]).cpu().double()
    return float((got - want).norm() / want.norm())


def measured(steps: dict[str, Step], xs: Tensor, rounds: int, wait: Callable[[], None]) -> dict[str, Any]:
    """Microseconds a step of each, in a chain and alone."""
    inputs = list(xs.unbind())
    chain: dict[str, list[float]] = {name: [] for name in steps}
    single: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for name, step in steps.items():
            wait()
            started = time.perf_counter()
            for x in inputs:
                step(x)
            wait()
            each = (time.perf_counter() - started) / len(inputs)
            alone = []
            for x in inputs[: max(1, len(inputs) // 5)]:
                begun = time.perf_counter()
                step(x)
                wait()
                alone.append(time.perf_counter() - begun)
            if turn:  # the first warms up
                chain[name].append(1e6 * each)
                single[name].append(1e6 * statistics.median(alone))
    return {
        name: {
            "chain_us": {"median": statistics.median(chain[name]), "lowest": min(chain[name]),
                         "highest": max(chain[name])},
            "single_us": {"median": statistics.median(single[name]), "lowest": min(single[name]),
                          "highest": max(single[name])},
        }
        for name in steps
    }  # fmt: skip


@torch.no_grad()
def case(D: int, H: int, B: int, device: str, rounds: int, count: int) -> dict[str, Any]:
    made, defined = contenders(D, H, B, device)
    xs = torch.randn(max(count, CHECKED), B, D, device=device)
    errors = {name: error(make(), defined[name], xs[:CHECKED]) for name, make in made.items()}
    worst = max(errors.values())
    if not worst < 1e-2:
        raise RuntimeError(f"D = {D}, H = {H}, B = {B}: outputs differ from float64 by {errors}")
    steps = {name: make() for name, make in made.items()}
    about = {name: step.description for name, step in steps.items() if isinstance(step, mr.Stream)}
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    found = measured(steps, xs[:count], rounds, wait)
    for name, figures in found.items():
        figures["error"] = errors[name]
        if name in about:
            figures["about"] = about[name]
        base = found["nn.LSTM"]
        figures["over_nn.LSTM"] = {
            kind: figures[kind]["median"] / base[kind]["median"] for kind in ("chain_us", "single_us")
        }
        print(
            f"D {D:3} H {H:3} B {B}  {name:48} chain {figures['chain_us']['median']:7.1f} us"
            f"  single {figures['single_us']['median']:7.1f} us  error {errors[name]:.0e}",
            flush=True,
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=1000, help="of a chain")
    parser.add_argument("--only", type=int, default=len(SIZES), help="so many of the sizes")
    parser.add_argument("--json", help="where the results go")
    args = parser.parse_args()
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    options = f"--device {device} --rounds {args.rounds} --steps {args.steps} --only {args.only}"
    result = {
        **provenance(f"python benchmarks/latency.py {options}", device),
        "threads": torch.get_num_threads(),
        "cases": {},
    }
    for D, H, B in SIZES[: args.only]:
        result["cases"][f"D {D}, H {H}, B {B}"] = case(D, H, B, device, args.rounds, args.steps)
        if args.json:
            with open(args.json, "w") as file:
                file.write(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
