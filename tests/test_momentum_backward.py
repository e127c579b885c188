"""momentum_backward.cu without a GPU: what ptxas says of it, and its indices and arithmetic in an emulator.

`Case`, `reference` and `run` serve test_gpu_momentum_backward.py, too.
"""

from dataclasses import dataclass
from itertools import product

import emulator
import pytest
import torch
from conftest import assert_same
from test_kernels import assert_fits, compiled

from momentumrnn.kernels.constants import SPACING

F64 = torch.float64


@dataclass(frozen=True)
class Case:
    """What a call may have. `shared`: names of inputs that all replicas have in common."""

    features: int = 1
    form: int = 2  # 1: v alone; 2: over sqrt(n + eps²); 3: over sqrt(n) + eps
    decays: str = "one"  # the decays: "one" for all rows of a step, of "rows", or "mu" of each channel
    gain: bool = False
    bias: bool = True
    state: bool = False
    last: bool = True  # whether the last moments have gradients
    lengths: tuple[int, ...] | None = None
    replicas: int = 1
    shared: tuple[str, ...] = ()
    chunks: tuple[int, ...] = (0,)  # where they begin, in the order of time
    writes_da: bool = True
    fine: bool = True
    channels: int = 2  # of a thread
    eps: float = 1e-3
    T: int = 37
    B: int = 7
    H: int = 11
    step: float = 0.75
    beta: float = 0.875

    @property
    def second(self):
        return self.form > 1

    @property
    def kind(self):
        """What the kernel is compiled for."""
        table = self.decays != "mu"
        return {
            "FEATURES": self.features, "MOMENTUM_FORM": self.form, "PACKED": int(self.lengths is not None),
            "TABLE": int(table), "LEARNED": int(self.gain or not table), "WRITES_DA": int(self.writes_da),
            "FINE": int(self.fine), "CHANNELS": self.channels,
        }  # fmt: skip

    @property
    def launch(self):
        """The grid, and the threads of a block."""
        return (-(-self.B * 4 * self.H // self.channels // 128), self.replicas, 1), 128

    @property
    def numbers(self):
        return {"step": self.step, "beta": self.beta, "one_minus_beta": 1 - self.beta, "eps": self.eps}

    @property
    def steps(self):
        return torch.tensor(self.lengths or (self.T,) * self.B)

    @property
    def rows(self):
        """(T, B): whether there is such a step."""
        return torch.arange(self.T).view(-1, 1) < self.steps

    def number(self, name):
        return 1 if name in self.shared else self.replicas


def draw(case, seed=0):
    """Inputs, padded; the gradient of the drive as halves, what these left, and a factor of each row."""
    torch.manual_seed(seed)
    T, B, width = case.T, case.B, 4 * case.H

    def normal(name, *shape, scale=1.0):
        # So that float32 has them, too.
        return (scale * torch.randn(case.number(name), *shape)).to(F64)

    given = {
        "x": normal("x", T, B, case.features or width),
        "w": normal("w", width, case.features, scale=case.features**-0.5) if case.features else None,
        "b": normal("b", width) if case.bias else None,
        "decay": None if case.decays == "mu" else torch.rand(T, 1 if case.decays == "one" else B).to(F64),
        "mu": torch.rand(case.number("mu"), width).to(F64) if case.decays == "mu" else None,
        "gain": normal("gain", width) if case.gain else None,
        "v0": normal("state", B, width) if case.state else None,
        "n0": normal("state", B, width).square() if case.state and case.second else None,
    }
    g = torch.randn(case.replicas, T, B, width).to(F64) * 10.0 ** torch.randint(-3, 4, (T, B, 1))
    exponent = g.abs().amax(-1, True).log2().floor() + torch.randint(-3, 4, (case.replicas, T, B, 1))
    power = 2.0**exponent
    high = (g / power).half().to(F64)
    low = ((g / power - high) * 2048).half().to(F64) if case.fine else torch.zeros_like(high)
    g = (high + low / 2048) * power
    last = [torch.randn(case.replicas, B, width).to(F64) * case.last for _ in range(1 + case.second)]
    return given, (high, low, power.squeeze(-1), g), last


def reference(case, given, g, last, dtype=F64):
    """A loop over time: the moments to keep, and by autograd the gradients of a and of all inputs."""
    leaves = {name: None if t is None else t.to(dtype).requires_grad_() for name, t in given.items()}
    x, w, b, decay, mu, gain, v0, n0 = leaves.values()
    R, T, B, width = case.replicas, case.T, case.B, 4 * case.H
    a = (x if w is None else x @ w.mT.unsqueeze(1)) + (0 if b is None else b.view(-1, 1, 1, width))
    a = a.expand(R, T, B, width)
    v = torch.zeros(R, B, width, dtype=dtype) if v0 is None else v0.expand(R, B, width)
    n = torch.zeros(R, B, width, dtype=dtype) if n0 is None else n0.expand(R, B, width)
    s = case.step if gain is None else gain.unsqueeze(1)
    loss, kept = 0, []
    for t in range(T):
        if t % SPACING == 0:
            there = case.rows[t].view(-1, 1, 1, 1)
            moments = [v, n / (1 - case.beta)][: case.form]
            kept.append(torch.stack([weave(one) for one in moments], -2).where(there, torch.nan))
        d = decay[t].view(-1, 1) if mu is None else mu.unsqueeze(1)
        now = case.rows[t].view(-1, 1)
        v = torch.where(now, d * v + s * a[:, t], v)
        z = v
        if case.second:
            n = torch.where(now, case.beta * n + (1 - case.beta) * a[:, t] ** 2, n)
            z = v / ((n + case.eps**2).sqrt() if case.form == 2 else n.sqrt() + case.eps)
        loss = loss + (z * g[:, t].to(dtype) * now).sum()
    lasts = [v, n][: 1 + case.second]
    loss = loss + sum((one * grad.to(dtype)).sum() for one, grad in zip(lasts, last, strict=True))
    names = [name for name, t in leaves.items() if t is not None and name not in ("x", "decay")]
    grads = torch.autograd.grad(loss, [a, *(leaves[name] for name in names)])
    grads = dict(zip(["a", *names], grads, strict=True))
    if not case.writes_da:
        del grads["a"]
    return torch.stack(kept, 1).detach(), grads


def weave(t):
    """(..., 4 H) in torch's order as (..., H, 4)."""
    return t.unflatten(-1, (4, -1)).mT.contiguous()


def unweave(t):
    return t.mT.flatten(-2)


def run(case, given, gradient, last, kept, kernel, device="cpu", real=F64, half=F64, bfloat=F64):
    """The gradients of `reference`, by the kernel; what is padding is 0. `kernel`: compiles it."""
    R, T, B, H, F = case.replicas, case.T, case.B, case.H, case.features
    there = case.rows
    packed = case.lengths is not None

    def place(t, dtype=real):
        return None if t is None else t.detach().to(dtype).contiguous().to(device)

    def dense(t):
        """The rows that there are, one after the other."""
        return t[:, there] if packed else t.flatten(1, 2)

    def new(*shape, dtype=real):
        return torch.full(shape, torch.nan, dtype=dtype, device=device)

    begins = torch.cat([torch.zeros(1, dtype=torch.int64), there.sum(1).cumsum(0)]).to(torch.int32)
    N = int(begins[-1])
    x, b = given["x"], given["b"]
    if not F and b is not None:  # a that is given has its bias in it
        x, b = x + b.view(-1, 1, 1, 4 * H), None
    inputs = {
        "x": place(dense(x) if F else weave(dense(x))),
        "w_ih": place(given["w"]), "b_ih": place(b),
        **{name: place(given[name]) for name in ("decay", "mu", "gain")},
        "begins": place(begins, torch.int32) if packed else None,
        "lengths": place(case.steps, torch.int32) if packed else None,
        "T": T, "B": B, "H": H, "N": N,
        "decay_columns": 1 if given["decay"] is None else given["decay"].shape[1],
        "own_x": int(R > 1 and len(x) == R),
        **{
            f"own_{name}": int(R > 1 and case.number(letter) == R)
            for name, letter in {"w": "w", "bias": "b", "mu": "mu", "gain": "gain"}.items()
        },
        **case.numbers,
    }  # fmt: skip

    def padded(rows):
        """Rows as (R, T, B, 4 H), torch's order."""
        out = torch.zeros(R, T, B, 4 * H, dtype=F64)
        out[:, there] = unweave(rows.to("cpu", F64))
        return out

    high, low, power, _ = gradient
    carried = [place(one).clone() for one in last] + ([] if case.second else [None])
    learned = case.kind["LEARNED"]
    sums = torch.zeros(R, B, H, 4, F + 1 + 2 * learned, dtype=real, device=device)
    found = torch.full((R, N, H, 4), torch.nan, dtype=F64)
    backward, kept = kernel(**case.kind), place(kept)
    for first, end in reversed(list(zip(case.chunks, (*case.chunks[1:], T), strict=True))):
        rows = slice(int(begins[first]), int(begins[end]))
        count = rows.stop - rows.start
        room = count + 3

        def chunk(t, dtype, rows=rows, count=count, room=room):
            """The rows of this chunk in a buffer that has room for more."""
            t = dense(t)[:, rows]
            buffer = new(R, room, *(t.shape[2:] and (H, 4)), dtype=dtype)
            buffer[:, :count] = place(weave(t) if t.dim() > 2 else t, dtype)
            return buffer

        da = new(R, room, 2 + case.fine, H, 4, dtype=bfloat) if case.writes_da else None
        backward(*case.launch, inputs | {
            "saved": kept, "dz": chunk(high, half), "dz_low": chunk(low, half) if case.fine else None,
            "scales": chunk(power, real), "dv": carried[0], "dn": carried[1], "sums": sums, "da": da,
            "first": first, "last": end, "room": room,
        })  # fmt: skip
        if da is not None:
            assert da[:, count:].isnan().all()
            found[:, rows] = da[:, :count].to("cpu", F64).sum(2)
    total = unweave(sums.to("cpu", F64).movedim(-1, 0)).sum(2)  # (F + 1 or F + 3, R, 4 H)
    grads = {"w": total[:F].movedim(0, -1), "b": total[F], "v0": carried[0], "n0": carried[1]}
    if learned:
        grads |= {"mu": total[F + 1], "gain": total[F + 2]}
    grads = {
        name: d.to("cpu", F64).sum_to_size(given[name].shape)
        for name, d in grads.items()
        if given[name] is not None
    }
    if case.writes_da:
        grads["a"] = padded(found)
    return grads


def emulated(**kind):
    return emulator.Machine().kernel("momentum_backward", 0, **kind)


ROWS = 37, 29, 25, 17, 16, 8, 1  # with kept moments and between them
FEATURES = 0, 1, 2, 3, 10, 15


def cases():
    """Features by momenta by decays by gain; the rest in turn."""
    shared = (), ("x",), ("w", "b", "state")
    chunks = (0,), (0, 16, 32), (0, 32), (0, 16)
    every = product(FEATURES, (1, 2, 3), ("one", "rows", "mu"), (False, True))
    for i, (features, form, decays, gain) in enumerate(every):
        yield Case(
            features, form, decays, gain,
            bias=i % 5 != 2, state=i // 7 % 2 == 0, last=i % 7 != 3,
            lengths=ROWS if (i + i // 2) % 2 else None,
            replicas=1 + i % 4 // 2, shared=shared[i % 3 if i % 4 > 1 else 0],
            chunks=chunks[i // 5 % 4], writes_da=i % 4 != 3, fine=i // 3 % 2 == 0,
            channels=1 + (i + i // 6) % 2,
        )  # fmt: skip
    for decays in "one", "rows", "mu":
        yield Case(2, decays=decays, gain=True, state=True, lengths=ROWS, replicas=2, shared=("mu", "gain"))
    yield Case(0, state=True, replicas=3, shared=("x", "b", "state"), lengths=(20,) * 7, T=20)
    yield Case(1, 1, T=1, B=1, H=1, fine=False)
    yield Case(3, T=16, B=33, H=1, fine=False)
    yield Case(4, T=17, B=1, H=33, state=True, lengths=(17,), chunks=(0, 16))
    yield Case(5, T=8, gain=True, writes_da=False)
    yield Case(2, T=9, lengths=(9, 9, 9, 2, 2, 2, 1), writes_da=False)


CASES = list(cases())


def name(case):
    flags = [flag.lower() for flag in ("PACKED", "LEARNED") if case.kind[flag]]
    return "-".join([f"{case.features}-{case.form}", case.decays, *flags])


# Of flags: a channel's own decays are learned.
KINDS = [
    {"MOMENTUM_FORM": form, "PACKED": packed, "TABLE": table, "LEARNED": learned}
    for form, packed, table, learned in product((1, 2, 3), (0, 1), (0, 1), (0, 1))
    if table or learned
]


def test_cases_have_all_kinds():
    """Every flag with every other one, where x is in registers and where it is read again."""
    found = [case.kind for case in CASES]
    for features, kind in product(FEATURES, KINDS):
        wanted = {"FEATURES": features} | kind
        assert any(wanted.items() <= kind.items() for kind in found), wanted


@pytest.mark.parametrize("case", CASES, ids=name)
def test_the_loop(case):
    given, gradient, last = draw(case)
    kept, want = reference(case, given, gradient[3], last)
    got = run(case, given, gradient, last, kept, emulated)
    assert got.keys() == want.keys()
    for name in want:
        assert_same(got[name], want[name])


@pytest.mark.parametrize(("fine", "near"), [(False, 2**-16), (True, 2**-24)])
def test_parts(monkeypatch, fine, near):
    """The parts of da, each rounded to bfloat16, add up to it."""
    monkeypatch.setattr(emulator, "ROUND", True)
    case = Case(2, fine=fine)
    given, gradient, last = draw(case)
    kept, want = reference(case, given, gradient[3], last)
    got, want = run(case, given, gradient, last, kept, emulated)["a"], want["a"]
    assert ((got - want).abs() <= near * want.abs() + 1e-12 * want.abs().max()).all()


@pytest.mark.parametrize("gain", [False, True], ids=["", "learned"])
@pytest.mark.parametrize("lengths", [None, (3, 3)], ids=["", "packed"])
def test_the_printed_form_at_zero(lengths, gain):
    """Where n is 0 the gradient is that of autograd, inf or nan, and stays in its row and channel."""
    case = Case(0, 3, gain=gain, bias=False, T=3, B=2, H=1, last=False, lengths=lengths)
    given, gradient, last = draw(case)
    given["x"][0, :2, 0, 1] = 0
    kept, want = reference(case, given, gradient[3], last)
    got, want = run(case, given, gradient, last, kept, emulated)["a"], want["a"]
    assert want[0, :, 0, 1].isnan().any()
    assert want.isnan().sum() + want.isinf().sum() <= 3
    torch.testing.assert_close(got, want, equal_nan=True)


STACK, MOST = 16, 64  # bytes, and where a thread has the most numbers


@pytest.mark.parametrize("features", FEATURES)
def test_compiles(features):
    """With a small stack at most; at least two blocks share a multiprocessor."""
    # Where a is given, da is always written.
    every = [
        {"FEATURES": features}
        | kind
        | {"WRITES_DA": int(features == 0 or i % 2), "FINE": i // 3 % 2}
        | {"CHANNELS": 1 + (i + i // 4) % 2}
        for i, kind in enumerate(KINDS)
    ]
    for defines, (taken, shared) in zip(every, compiled("momentum_backward", every), strict=True):
        (one,) = taken.values()
        most = features == 15 and defines["MOMENTUM_FORM"] > 1 and defines["LEARNED"]
        assert one.stack <= (MOST if most else STACK), (defines, one)
        one = one._replace(stack=0, spill_stores=0, spill_loads=0)
        assert_fits(one, shared, emulator.constants("momentum_backward", **defines).THREADS, 2)
