"""What one differentiable time step costs on a CPU: our layers and step cells with a State against torch's.

    python benchmarks/single_step.py --json results/bench/NAME.json

This is what code pays that runs a layer step by step: decoders, policies, streaming with gradients. Each
contender takes one x (B, D) from a state in mid-sequence, which has no gradient. First it is compared with
float64 of itself. forward: without gradients. both: with gradients of the parameters and of x.

Contenders take turns in each round. A round's figure is the median of its calls, so other processes matter
less. A result is the median over rounds; a ratio is the median of the ratios within a round. A layer is
compared with torch's layer at T = 1, a step cell with torch's step cell.
"""

import argparse
import copy
import json
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import momentumrnn as mr
from momentumrnn.provenance import provenance

FAMILIES = ("LSTM", "GRU", "RNN")
MOMENTA = (None, mr.HeavyBall(mu=0.6), mr.Nesterov(), mr.Adam(mu=0.6, beta=0.9, eps=0.1))
STEPS_BEFORE = 5  # what the state of each contender has seen
MODES = ("forward", "both")


@dataclass
class Contender:
    """A layer or step cell, torch's or ours, in mid-sequence."""

    module: nn.Module
    is_layer: bool
    state: Any  # torch's or a State
    rival: str  # the name of torch's module of the same kind

    def step(self, x: Tensor) -> tuple[Tensor, Any]:
        """h after one step, and the state."""
        if self.is_layer:
            out, state = self.module(x.unsqueeze(0), self.state)
            return out[0], state
        state = self.module(x, self.state)
        hidden = state.hidden if isinstance(state, mr.State) else state
        return (hidden[0] if isinstance(hidden, tuple) else hidden), state

    def forward(self, x: Tensor, direction: Tensor) -> None:
        with torch.no_grad():
            self.step(x)

    def both(self, x: Tensor, direction: Tensor) -> tuple[Tensor, ...]:
        h, _ = self.step(x)
        return torch.autograd.grad(h, [x, *self.module.parameters()], direction)

    @torch.no_grad()
    def begin(self, xs: Tensor) -> None:
        for x in xs:
            _, self.state = self.step(x)

    def error(self, x: Tensor, direction: Tensor) -> float:
        """The relative norm of the difference to float64 of output and gradients, the larger of both."""
        exact = copy.deepcopy(self)
        exact.module.double()
        if isinstance(self.state, tuple) and not isinstance(self.state, mr.State):
            exact.state = tuple(t.double() for t in self.state)
        else:
            exact.state = self.state.to(torch.float64)
        x64 = x.detach().double().requires_grad_()
        pairs = [
            (self.step(x)[0].flatten(), exact.step(x64)[0].flatten()),
            (joined(self.both(x, direction)), joined(exact.both(x64, direction.double()))),
        ]
        return max(((got.double() - want).norm() / want.norm()).item() for got, want in pairs)


def joined(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


def contenders(family: str, D: int, H: int, B: int) -> dict[str, Contender]:
    """Torch's layer and step cell, and ours with each momentum; all have the same weights."""
    torch.manual_seed(0)
    layer, cell = getattr(nn, family)(D, H), getattr(nn, f"{family}Cell")(D, H)
    weights = layer.state_dict()
    of_cell = {name.removesuffix("_l0"): w for name, w in weights.items()}
    cell.load_state_dict(of_cell)
    # The states that torch's modules make when they get none.
    zeros = torch.zeros(B, H)
    layer_name, cell_name = f"nn.{family}", f"nn.{family}Cell"
    made = {
        layer_name: Contender(layer, True, None, layer_name),
        cell_name: Contender(cell, False, (zeros, zeros) if family == "LSTM" else zeros, cell_name),
    }
    for momentum in MOMENTA:
        ours = getattr(mr, family)(D, H, momentum=momentum)
        ours.load_state_dict(weights)
        step_cell = getattr(mr, f"{family}Cell")(D, H, momentum=momentum)
        step_cell.load_state_dict(of_cell)
        of_layer = Contender(ours, True, ours.initial_state(B), layer_name)
        made[f"{family} with a State, {momentum!r}"] = of_layer
        of_step_cell = Contender(step_cell, False, step_cell.initial_state(B), cell_name)
        made[f"{family}Cell with a State, {momentum!r}"] = of_step_cell
    return made


def timed(contender: Contender, mode: str, x: Tensor, direction: Tensor, calls: int) -> float:
    """Microseconds of a call, the median of some."""
    call, seconds = getattr(contender, mode), []
    for _ in range(calls):
        started = time.perf_counter()
        call(x, direction)
        seconds.append(time.perf_counter() - started)
    return 1e6 * statistics.median(seconds)


def summary(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def case(family: str, D: int, H: int, B: int, rounds: int, calls: int) -> dict[str, Any]:
    made = contenders(family, D, H, B)
    xs = torch.randn(STEPS_BEFORE, B, D)
    x, direction = torch.randn(B, D, requires_grad=True), torch.randn(B, H)
    errors = {}
    for name, contender in made.items():
        contender.begin(xs)
        errors[name] = contender.error(x, direction)
    if not max(errors.values()) < 1e-3:
        raise RuntimeError(f"{family}: a step differs from float64 by {errors}")
    us: dict[str, dict[str, list[float]]] = {name: {mode: [] for mode in MODES} for name in made}
    for turn in range(rounds + 1):
        for mode in MODES:
            for name, contender in made.items():
                each = timed(contender, mode, x, direction, calls)
                if turn:  # the first warms up
                    us[name][mode].append(each)
    found: dict[str, Any] = {}
    for name, contender in made.items():
        found[name] = {"error": errors[name], "rival": contender.rival}
        for mode in MODES:
            pairs = zip(us[name][mode], us[contender.rival][mode], strict=True)
            ratios = [ours / theirs for ours, theirs in pairs]
            found[name][mode] = {"us": summary(us[name][mode]), "over_rival": summary(ratios)}
    return found


def table(found: dict[str, Any]) -> str:
    """The medians of a case: µs, and how many times torch's module of the same kind."""
    width = max(map(len, found))
    lines = [f"{'':{width}} {'forward':>8} {'ratio':>6} {'both':>8} {'ratio':>6}   error"]
    for name, figures in found.items():
        columns = (
            f"{figures[mode]['us']['median']:8.1f} {figures[mode]['over_rival']['median']:6.2f}"
            for mode in MODES
        )
        lines.append(f"{name:{width}} {' '.join(columns)}   {figures['error']:.0e}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=100, help="of each contender in a round")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--family", choices=FAMILIES, nargs="+", default=list(FAMILIES))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", help="where the results go")
    args = parser.parse_args()
    options = (
        f"--rounds {args.rounds} --calls {args.calls} --batch {args.batch} --hidden {args.hidden} "
        f"--features {args.features} --family {' '.join(args.family)} "
        f"--threads {args.threads}"
    )
    torch.set_num_threads(args.threads)
    result = {
        **provenance(f"python benchmarks/single_step.py {options}", "cpu"),
        "threads": torch.get_num_threads(),
        "cases": {},
    }
    for family in args.family:
        found = case(family, args.features, args.hidden, args.batch, args.rounds, args.calls)
        result["cases"][f"{family}, D {args.features}, H {args.hidden}, B {args.batch}"] = found
        print(table(found), flush=True)
        if args.json:
            with open(args.json, "w") as file:
                file.write(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
