"""The bits of outputs, final states and gradients, as digests: what a refactoring must not change.

usage: python tests/golden.py --write FILE [--device cuda] [--workers N]
       python tests/golden.py --check FILE [--workers N]

A digest covers one momentum, cell and backend on a CPU; on a GPU one momentum, shape and precision. Bits
depend on the processor and on torch, so a file is checked only where both are those that it was written with.
"""

import argparse
import hashlib
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
from torch.func import functional_call, stack_module_state
from torch.nn import Parameter
from torch.nn.utils.rnn import pack_padded_sequence

import momentumrnn as mr
from momentumrnn import cells
from momentumrnn.provenance import provenance


@dataclass(frozen=True)
class Warmup(mr.Momentum):
    """A user's own linear momentum."""

    mu: float = 0.8
    step: float = 0.9

    def decay(self, k):
        return self.mu * (1 - 0.5**k)


def momenta(gates: int, hidden_size: int) -> dict[str, mr.Momentum | None]:
    """All momenta, some with learned rates of each size that a layer takes."""
    return {
        "None": None,
        "HeavyBall": mr.HeavyBall(mu=0.6, step=0.7),
        "Nesterov": mr.Nesterov(step=0.8),
        "ScheduledRestart": mr.ScheduledRestart(every=3, step=0.9),
        "Adam": mr.Adam(mu=0.5, step=0.7, beta=0.9),
        "Adam-printed": mr.Adam(mu=0.5, step=0.7, beta=0.9, eps=0.1, eps_in_sqrt=False),
        "RMSProp": mr.RMSProp(step=0.7, beta=0.3),
        "Warmup": Warmup(),
        "learned-scalar": mr.HeavyBall(mu=Parameter(torch.tensor(0.6)), step=0.7),
        "learned-gates": mr.HeavyBall(mu=Parameter(torch.linspace(0.1, 0.9, gates)), step=0.7),
        "learned-rows": mr.Adam(
            mu=Parameter(torch.linspace(0.1, 0.9, gates * hidden_size)),
            step=Parameter(torch.linspace(0.5, 1.5, gates * hidden_size)),
            beta=0.9,
        ),
    }


CELLS = {
    "lstm": cells.LSTM(),
    "gru": cells.GRU(),
    "tanh": cells.Elman("tanh"),
    "relu": cells.Elman("relu"),
    "sigmoid": cells.Elman("sigmoid"),
    "modrelu": cells.Elman("modrelu"),
    "extrapolated": cells.ExtrapolatedLSTM(every=3, step_size=0.7),
}
# T, B, D, H: T from 300 on overlaps the kernels of a backward pass, D above 15 is a wide input.
SHAPES = {
    "pmnist": (320, 128, 1, 256),
    "timit": (300, 32, 129, 158),
    "copy": (64, 128, 10, 190),
    "odd": (311, 37, 5, 97),
    "adding": (45, 50, 2, 128),
}


def cases(device: str) -> list[tuple[str, ...]]:
    names = list(momenta(4, 8))
    if device == "cuda":
        return [(device, m, shape, fine) for m in names for shape in SHAPES for fine in ("tf32", "fp32")]
    native = [(device, m, cell, "native") for m in names for cell in CELLS if cell != "extrapolated"]
    return native + [(device, m, cell, "reference") for m in names for cell in CELLS]


def digest(case: tuple[str, ...]) -> tuple[str, str]:
    """The name of a case, and the digest of all that it computes."""
    torch.set_num_threads(1)
    device, *names = case
    state = hashlib.sha256()
    for tensors in (on_gpu if device == "cuda" else on_cpu)(*names):
        for tensor in tensors:
            if tensor is not None:
                dense = tensor.detach().cpu().contiguous()
                state.update(str((tuple(dense.shape), dense.dtype)).encode())
                state.update(dense.flatten().view(torch.uint8).numpy().tobytes())
    return "-".join(names), state.hexdigest()[:16]


def on_cpu(momentum, cell, backend):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for T, B, D, H in ((7, 3, 5, 6), (40, 16, 3, 64)):
            yield from several_ways(CELLS[cell], momentum, (T, B, D, H), backend, "cpu", dtype)
        for options in ({"num_layers": 2, "bidirectional": True}, {"bias": "hh", "batch_first": True}):
            torch.manual_seed(0)
            m = momenta(CELLS[cell].gates, 6)[momentum]
            net = mr.Recurrent(CELLS[cell], 5, 6, momentum=m, backend=backend, **options).to(dtype)
            yield trained(net, torch.randn(7, 3, 5).to(dtype))


def on_gpu(momentum, shape, precision):
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    sizes = SHAPES[shape]
    for cell in ("lstm", "extrapolated"):
        yield from several_ways(CELLS[cell], momentum, sizes, "cuda", "cuda", torch.float32)
    yield replicas(momentum, sizes)
    yield streamed(momentum, sizes)


def several_ways(cell, momentum, sizes, backend, device, dtype):
    """A rectangular batch, one of several lengths, and one that goes on from a State."""
    T, B, D, H = sizes
    torch.manual_seed(0)
    net = mr.Recurrent(cell, D, H, momentum=momenta(cell.gates, H)[momentum], backend=backend)
    x = torch.randn(T, B, D)
    lengths = torch.randint(1, T + 1, (B,))
    lengths[0] = T
    start = net.initial_state(B)
    rows = [torch.rand_like(t) for t in (*start.hidden, start.v, start.n)]
    *hidden, v, n = rows
    if len(hidden) > 2:
        hidden[3] = (hidden[3] * 3).floor()
    net, x = net.to(device, dtype), x.to(device, dtype)
    state = mr.State(*hidden, v, n, torch.arange(B).expand(1, B)).to(device, dtype)
    yield trained(net, x)
    yield trained(net, pack_padded_sequence(x, lengths, enforce_sorted=False))
    yield trained(net, x, state)


def trained(net, x, state=None):
    """Outputs, final state, and the gradients of x, of the weights and of a State."""
    inputs = [*net.parameters()]
    data = x if isinstance(x, torch.Tensor) else x.data
    leaf = data.detach().requires_grad_()
    x = leaf if isinstance(x, torch.Tensor) else x._replace(data=leaf)
    inputs.append(leaf)
    if state is not None:
        hidden = tuple(h.detach().requires_grad_() for h in state.hidden)
        v, n = (t.detach().requires_grad_() for t in (state.v, state.n))
        state = mr.State(*hidden, v, n, state.k)
        inputs += [*hidden[:3], v, n]
    out, final = net(x, state)
    return backward(flat((out if isinstance(x, torch.Tensor) else out.data, final)), inputs)


def backward(outputs, inputs):
    """The outputs, and the gradients of a fixed combination of them."""
    generator = torch.Generator().manual_seed(1)
    moving = [o for o in outputs if o.requires_grad and o.numel()]
    grads = [torch.randn(o.shape, generator=generator).to(o) for o in moving]
    return *outputs, *torch.autograd.grad(moving, inputs, grads, allow_unused=True)


def replicas(momentum, sizes, count=3):
    """Layers of different weights in one call of vmap."""
    T, B, D, H = sizes
    torch.manual_seed(0)
    nets = [mr.LSTM(D, H, momentum=momenta(4, H)[momentum], backend="cuda").cuda() for _ in range(count)]
    weights, buffers = stack_module_state(nets)
    x = torch.randn(T, B, D).cuda()

    def one(weights, buffers):
        return functional_call(nets[0], (weights, buffers), (x,))[0]

    return backward([torch.vmap(one)(weights, buffers)], list(weights.values()))


def streamed(momentum, sizes):
    """A few steps of a Stream, and its state."""
    _, B, D, H = sizes
    torch.manual_seed(0)
    net = mr.LSTM(D, H, num_layers=2, momentum=momenta(4, H)[momentum])
    steps = torch.randn(7, B, D).cuda()
    stream = mr.Stream(net.cuda(), batch_size=B)
    return flat(([stream(x) for x in steps], stream.state))


def flat(tree):
    return [leaf for part in tree for leaf in flat(part)] if isinstance(tree, tuple | list) else [tree]


def digests(device: str, workers: int) -> dict[str, str]:
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        return dict(pool.map(digest, cases(device)))


def differences(stored: dict[str, str], workers: int = 1) -> list[str]:
    """The cases whose bits are no longer those that were stored."""
    now = digests(stored["settings"]["device"], workers)
    return sorted(name for name in now | stored["digests"] if now.get(name) != stored["digests"].get(name))


def settings(device: str) -> dict[str, str]:
    """What decides on the bits beside torch: many processors share a name."""
    if device == "cuda":
        return {"device": device}
    lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    named = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    about = [named.get(key, "") for key in ("cpu family", "model", "stepping", "flags")]
    return {"device": device, "processor": hashlib.sha256("|".join(about).encode()).hexdigest()[:16]}


def elsewhere(stored: dict[str, str]) -> str:
    """Why bits may differ here from those stored, whatever the code; empty if they may not."""
    device = stored["settings"]["device"]
    if device == "cuda" and not torch.cuda.is_available():
        return "there is no CUDA GPU here"
    here = provenance("", device)
    pairs = [
        (here["device"], stored["device"]),
        (here["versions"]["torch"], stored["versions"]["torch"]),
        (settings(device), stored["settings"]),
    ]
    return "; ".join(
        f"it was written with {theirs}, here is {ours}" for ours, theirs in pairs if ours != theirs
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", type=Path)
    parser.add_argument("--check", type=Path)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    if (args.check is None) == (args.write is None):
        parser.error("expected one of --write and --check")
    if args.check:
        if not args.check.is_file():
            parser.error(f"--check should be a file of tests/golden, got {args.check}")
        stored = json.loads(args.check.read_text())
        reason = elsewhere(stored)
        if reason:
            sys.exit(f"not checked: {reason}")
        changed = differences(stored, args.workers)
        print(f"{len(changed)} of {len(stored['digests'])} differ", *changed, sep="\n")
        sys.exit(bool(changed))
    first, again = (digests(args.device, args.workers) for _ in range(2))
    unstable = [name for name in first if first[name] != again[name]]
    if unstable:
        sys.exit(f"two runs differ at {', '.join(unstable)}")
    command = f"python tests/golden.py --write tests/golden/{args.write.name} --device {args.device}"
    made = provenance(command, args.device) | {"settings": settings(args.device), "digests": first}
    args.write.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
