"""The kernels without a GPU: what ptxas says of each, and their indices and barriers in an emulator."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import compiling
import emulator
import numpy as np
import pytest
import torch
from conftest import assert_same

from momentumrnn.kernels import fused, nvrtc, op

F64 = torch.float64

# ---- compiled


def compiled(file, configurations):
    """What each kernel takes and its bytes of shared memory, for each configuration."""
    source = fused.source(file)
    try:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            logs = list(pool.map(lambda defines: compiling.compile(source, "sm_90", defines), configurations))
    except LookupError as error:
        pytest.skip(str(error))
    found = []
    for log in logs:
        shared = [int(n) for n in re.findall(r"(\d+) bytes smem", log)]
        found.append((nvrtc.resources(log), max(shared, default=0)))
    return found


def resident(registers, threads):
    """How many CTAs' registers a multiprocessor holds."""
    return 65536 // (-(-registers // 8) * 8 * threads)


def assert_fits(taken, shared, threads, least):
    assert taken[1:] == (0, 0, 0)
    assert taken.registers <= 255
    assert resident(taken.registers, threads) >= least
    assert shared < 48 << 10


@pytest.mark.parametrize("ctas", range(1, 9))
def test_forward_compiles(ctas):
    """Without spills. At least two CTAs share a multiprocessor, three of small clusters."""
    every = [{"CTAS": ctas, "EXTRA": extra, "KEEP": keep} for extra in range(4) for keep in range(2)]
    for defines, (taken, shared) in zip(every, compiled("lstm_forward", every), strict=True):
        assert_fits(taken["lstm_forward"], shared, 128, 3 if ctas <= 4 and defines["EXTRA"] <= 2 else 2)


@pytest.mark.parametrize("ctas", range(1, 9, 2))
def test_backward_compiles(ctas):
    every = [{"CTAS": ctas}, {"CTAS": ctas + 1}]
    for defines, (taken, shared) in zip(every, compiled("lstm_backward", every), strict=True):
        assert_fits(taken["lstm_backward"], shared, 128, 3 if defines["CTAS"] <= 4 else 2)


def test_around_compiles():
    ((taken, shared),) = compiled("around", [{}])
    names = "pack_forward pack_backward spread split_input split_weights filter operand finish weave unweave"
    assert taken.keys() == set(names.split())
    for name, one in taken.items():
        assert_fits(one, shared, emulator.constants("around").FILTERS if name == "filter" else 256, 1)


# ---- emulated


@pytest.fixture
def machine(monkeypatch):
    """The emulator in the place of a GPU."""
    machine = emulator.Machine()
    monkeypatch.setattr(fused, "_kernel", machine.kernel)
    monkeypatch.setattr(fused, "torch", emulator.Torch())
    return machine


def normal(*shape, scale=1.0):
    return scale * torch.randn(*shape, dtype=F64)


def draw(size, leading=(1,) * 7, without=()):
    """The seven inputs, each with its number of replicas; those named in `without` are None."""
    H, B, T, D = size
    shapes = {
        "x": (T, B, 4 * H if "w_ih" in without else D),
        "w_ih": (4 * H, D),
        "w_hh": (4 * H, H),
        "b_ih": (4 * H,),
        "b_hh": (4 * H,),
        "h0": (B, H),
        "c0": (B, H),
    }
    # Gates below 2^-30 are where the kernels stop.
    scale = {"w_hh": H**-0.5, "w_ih": 0.5 * D**-0.5, "b_ih": 0.5, "b_hh": 0.5}
    return [
        None if name in without else normal(n, *shape, scale=scale.get(name, 1.0))
        for n, (name, shape) in zip(leading, shapes.items(), strict=True)
    ]


def decays(T, rows):
    return torch.rand(T, rows, dtype=F64)


def run(inputs, decay=None, step=1.0, given=(True, True, True), needs=(True,) * 7):
    """Outputs and gradients by the emulated kernels and by the definition, which should be the same."""
    y, h, c, *kept = fused.forward(*inputs, decay, step, True)
    _, hs, cs = op._run(*inputs, decay, step)
    assert_same((y, h, c), (torch.stack([h.expand_as(hs[-1]) for h in hs[1:]], 1), hs[-1], cs[-1]))
    grads = [torch.randn_like(t) if there else None for t, there in zip((y, h, c), given, strict=True)]
    got = fused.backward(*grads, y, *kept, *inputs, decay, step, needs)
    needs = [n and t is not None for n, t in zip(needs, inputs, strict=True)]
    assert_same(got, op._gradients(*grads, *inputs, decay, step, needs))
    return (y, h, c), grads, got


# Hidden size, rows, steps, features: 1 to 4 and 8 CTAs, full tiles and others, 0 to 3 slices of input.
SIZES = [
    (1, 1, 1, 1),
    (1, 1, 9, 1),
    (7, 3, 2, 1),
    (32, 8, 3, 14),
    (33, 9, 3, 2),
    (40, 8, 4, 3),
    (64, 1, 3, 5),
    (70, 13, 3, 16),
    (96, 2, 1, 9),
    (100, 5, 3, 2),
    (230, 3, 2, 1),
]


@pytest.mark.parametrize("rows", ["no momentum", "one decay", "a decay for each row"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes(machine, size, rows):
    H, B, T, _ = size
    if rows == "no momentum":
        run(draw(size))
    else:
        run(draw(size), decays(T, 1 if rows == "one decay" else B), 0.7)
    # The passes read all of what was made for them.
    (forward,) = machine.launched("lstm_forward")
    backward = machine.launched("lstm_backward")
    for name in ("weights", "extra", "drive"):
        assert name not in forward or (forward[name].reads > 0).all()
    assert sum(launch["kept_gates"].reads for launch in backward).tolist() == [1] * (
        T * -(-B // 8) * -(-H // 8) * 32
    )
    assert all((launch["weights"].reads > 0).all() for launch in backward)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", [(33, 2, 11, 1), (70, 1, 8, 1), (129, 1, 6, 1)], ids=str)
def test_schedules(machine, size, seed):
    """The order in which warps and messages take turns changes nothing."""
    machine.seed = seed
    run(draw(size), decays(size[2], 1), 0.7)


@pytest.mark.parametrize(
    ("leading", "without"),
    [
        ((3, 3, 3, 3, 3, 3, 3), ()),
        ((2, 1, 1, 1, 1, 2, 2), ()),
        ((1, 2, 2, 2, 2, 1, 1), ()),
        ((1, 1, 1, 1, 1, 1, 2), ()),
        ((1, 1, 1, 1, 2, 1, 1), ()),
        ((2, 2, 1, 1, 1, 2, 1), ("b_ih", "b_hh")),
        ((1, 2, 1, 1, 1, 2, 1), ("b_ih",)),
        ((2, 1, 1, 2, 1, 1, 1), ("b_hh",)),
    ],
    ids=str,
)
@pytest.mark.parametrize("features", [2, 16], ids=["narrow", "wide"])
@pytest.mark.parametrize("momentum", [False, True], ids=["plain", "momentum"])
def test_replicas(machine, leading, without, features, momentum):
    inputs = draw((9, 3, 2, features), leading, without)
    run(inputs, *((decays(2, 3), 0.7) if momentum else (None, 1.0)))


@pytest.mark.parametrize(
    "leading", [(1, 1, 1, 1, 1, 1, 1), (2, 1, 1, 1, 2, 1, 2), (1, 1, 2, 1, 1, 1, 1)], ids=str
)
@pytest.mark.parametrize("bias", [True, False])
def test_given_drive(machine, leading, bias):
    without = ("w_ih", "b_ih") if bias else ("w_ih", "b_ih", "b_hh")
    run(draw((35, 9, 3, 1), leading, without))


@pytest.mark.parametrize("chunks", [2, 3, 8])
@pytest.mark.parametrize("case", ["narrow", "wide", "drive"])
def test_chunks(machine, monkeypatch, chunks, case):
    """Time in chunks, the first of which, the last in time, is shorter."""
    monkeypatch.setattr(fused, "CHUNK", 1)
    monkeypatch.setattr(fused, "CHUNKS", chunks)
    inputs = draw(
        (34, 2, 7, 16 if case == "wide" else 2),
        (2, 1, 1, 1, 1, 1, 2),
        ("w_ih", "b_ih") if case == "drive" else (),
    )
    run(inputs, *((None, 1.0) if case == "drive" else (decays(7, 2), 0.7)))
    assert len(machine.launched("lstm_backward")) == -(-7 // -(-7 // chunks))


@pytest.mark.parametrize("given", [(True, False, False), (False, True, False), (False, False, True)], ids=str)
@pytest.mark.parametrize(
    "needs", [(True,) + (False,) * 6, (False, True, True) + (False,) * 4, (False,) * 7], ids=str
)
def test_some_gradients(machine, given, needs):
    run(draw((34, 3, 5, 2)), decays(5, 1), 0.7, given, needs)


# ---- parts of it


@pytest.mark.parametrize(
    ("T", "B", "D"), [(1, 1, 1), (70, 3, 2), (530, 2, 3), (1100, 1, 1), (20, 5, 9), (129, 1030, 1)]
)
@pytest.mark.parametrize("rows", [0, 1, 2], ids=["none", "one", "each"])
def test_filter(machine, T, B, D, rows):
    """Time in segments of one step, of several, and of more than eight; forwards and back."""
    x, decay = normal(2, T, B, D), None if rows == 0 else 0.9 * decays(T, B if rows == 2 else 1)
    size, launcher = fused.Sizes(2, T, B, 1, D, D + 1), fused._Launcher(x)
    v, tops, packed = normal(2, T, B, D + 1), torch.zeros(2, D + 1, dtype=torch.complex128), None
    launcher.filter(x, decay, size, 0.7, v=v, largest=tops)
    ones = torch.cat([x, torch.ones(2, T, B, 1, dtype=F64)], -1)
    want = [0.7 * ones[:, 0]]
    for t in range(1, T):
        want.append(0.7 * ones[:, t] + (0 if decay is None else decay[t, :, None] * want[-1]))
    assert_same(v, torch.stack(want, 1))
    assert torch.equal(tops.real, v.abs().amax((1, 2)))
    width = -(-(3 * D + 5) // 8) * 8
    packed = normal(2, T * B, width)
    launcher.filter(x, decay, size, 0.7, packed=packed, width=width)
    thrice = torch.stack([v, 0 * v, v], -1).reshape(2, T * B, 3 * D + 3)
    assert_same(packed[..., : 3 * D + 3], thrice)
    assert packed[..., 3 * D + 3 : 3 * D + 5].eq(1).all()
    assert packed[..., 3 * D + 5 :].eq(0).all()
    # <filter x, z> = <x, filter backwards z>, rows weighed.
    z, factors, back = normal(2, T, B, D), normal(2, T, B).exp(), normal(2, T, B, D)
    launcher.filter(z, decay, size._replace(F=D), 0.7, v=back, factors=factors, backwards=True)
    assert_same((x * back).sum(), (v[..., :D] * factors[..., None] * z).sum())


@pytest.mark.parametrize("features", [2, 14, 16])
@pytest.mark.parametrize("momentum", [False, True], ids=["plain", "momentum"])
def test_input_is_nearly_float32(machine, monkeypatch, features, momentum):
    """High and low parts of bfloat16 in their columns: the rest of a step rounds nothing where h is 0."""
    monkeypatch.setattr(emulator, "ROUND", True)
    inputs = draw((9, 3, 1, features))
    inputs[5:] = [torch.zeros_like(t) for t in inputs[5:]]
    momentum = (decays(1, 1), 0.7) if momentum else (None, 1.0)
    y, *_ = fused.forward(*inputs, *momentum, False)
    assert_same(y[:, 0], op._run(*inputs, *momentum)[1][1], torch.float32)


def test_rounded(machine, monkeypatch):
    """As the kernels round, gradients of any size keep their precision."""
    monkeypatch.setattr(emulator, "ROUND", True)
    inputs = draw((40, 3, 12, 2))
    y, h, c, *kept = fused.forward(*inputs, None, 1.0, True)
    rows = torch.tensor([1e-12, 1.0, 1e12], dtype=F64)[:, None]
    grads = [torch.randn_like(t) * rows for t in (y, h, c)]
    needs = True, False, False, False, False, True, True
    got = fused.backward(*grads, y, *kept, *inputs, None, 1.0, needs)
    want = op._gradients(*grads, *inputs, None, 1.0, needs)
    for found, sought in zip(got, want, strict=True):
        if sought.numel():
            assert_same(found / rows, sought / rows, "TF32")


def test_gradients_that_grow(machine, monkeypatch):
    """A layer at rest, whose forward pass is exact: a gradient of its end alone grows fast, and has room."""
    monkeypatch.setattr(emulator, "ROUND", True)
    x, w_ih, w_hh, _, _, h0, c0 = draw((40, 3, 20, 2))
    inputs = 0 * x, w_ih, 30 * w_hh, None, None, 0 * h0, 0 * c0
    y, h, c, *kept = fused.forward(*inputs, None, 1.0, True)
    grads = None, torch.randn_like(h), torch.randn_like(c)
    needs = True, False, False, False, False, True, True
    got = fused.backward(*grads, y, *kept, *inputs, None, 1.0, needs)
    want = op._gradients(*grads, *inputs, None, 1.0, needs)
    assert want[5].norm() > 2.0**20 * grads[1].norm()
    for i in (0, 5, 6):
        assert (got[i] - want[i]).norm() < 2e-3 * want[i].norm()


@pytest.mark.parametrize("given", [(True, True, True), (False, True, False), (True, False, False)], ids=str)
@pytest.mark.parametrize("size", [(3, 2, 11, 1), (40, 9, 12, 2)], ids=str)
def test_scales(machine, size, given):
    """Of each row and step: by the largest of two or three steps before, and of dy from then on."""
    H, B, T, _ = size
    inputs = draw(size)
    y, h, c, *kept = fused.forward(*inputs, None, 1.0, True)
    # Gradients of all sizes.
    by_row, by_step = (normal(*shape, scale=n).exp2() for shape, n in (((B, 1), 10.0), ((T, 1, 1), 5.0)))
    grads = [
        torch.randn_like(y) * by_step * by_row,
        torch.randn_like(h) * by_row,
        torch.randn_like(c) * by_row,
    ]
    grads = [g if there else None for g, there in zip(grads, given, strict=True)]
    fused.backward(*grads, y, *kept, *inputs, None, 1.0, (True,) * 7)
    (launch,) = machine.launched("lstm_backward")
    got = launch["scales"].data.reshape(T, B)
    assert launch["largest"].data[0, 0] == got.max()

    gates, _, cs = op._run(*inputs, None, 1.0)
    dy, dh, dc = (torch.zeros(B, H, dtype=F64) if g is None else g[0] for g in grads)
    dy = torch.zeros(T, B, H, dtype=F64) if grads[0] is None else dy
    shown, seen = (dh, dc), []
    for s in range(T):
        # Beyond the end lies what was eight steps before.
        coming = [dy[T - 1 - (n if n < T else n - 8)] for n in range(s, s + 4) if n < T or n >= 8]
        largest = torch.stack([*shown, *coming]).abs().amax((0, 2))
        seen.append(torch.where(largest > 0, largest.frexp().exponent - 1, -110))
        i, f, g, o = (gate[0] for gate in gates[T - 1 - s])
        c, before = cs[T - s][0].tanh(), cs[T - 1 - s][0]
        dh = dh + dy[T - 1 - s]
        dc = dc + dh * o * (1 - c * c)
        dz = dc * g * i * (1 - i), dc * before * f * (1 - f), dc * i * (1 - g * g), dh * c * o * (1 - o)
        shown, dh, dc = (dh, dc), torch.cat(dz, -1) @ inputs[2][0], dc * f
    for s in range(T):
        assert np.log2(got[T - 1 - s]).tolist() == seen[max(0, s // 2 * 2 - 2)].tolist()


# ---- what must fail

# A change of the emulator that should be seen: what stands there, and what instead.
MUTANTS = {
    "one buffer of h": ("after = now ^ 1", "after = now"),
    "h read without waiting": ("elif t > 0:", "elif False:"),
    "wrong phase of h": ("me.wait(now, (t - 1) // 2)", "me.wait(now, t // 2)"),
    "h not turned": ("transpose(halves(*h))", "halves(*h)"),
    "h sent to the wrong lane": ("number * BLOCK + 4 * lane", "number * BLOCK + 4 * (lane ^ 1)"),
    "barrier not armed again": ("if CTAS > 1 and t > 0 and warp == 0:", "if False:"),
    "inputs too early": ("me.wait_for_copies(k.AHEAD - 2)", "me.wait_for_copies(k.AHEAD - 1)"),
    "rows of a lane": ("tile * 8 + 2 * q", "tile * 8 + q"),
    "one buffer of slots": ("buffer * SLOTS", "0 * SLOTS"),
    "one buffer of dz": ("buffer * GATHERED", "0 * GATHERED"),
    "one place of maxima": ("turn = s // 2 % 2", "turn = 0"),
    "maxima of this step": ("sent_in(turn ^ 1, unset=s == 0)", "sent_in(turn, unset=s == 0)"),
    "parts to the wrong CTA": ("there = (rank + i + 1) % CTAS", "there = (rank + i) % CTAS"),
    "parts to the wrong slot": ("own_slot + buffer * SLOTS + i * SLOT, xy", "own_slot + buffer * SLOTS, xy"),
    "bytes of the other barrier": ("messages(k, buffer ^ 1)", "messages(k, buffer)"),
    "barrier armed twice": (
        "me.expect(received + other * (buffer ^ 1)",
        "me.expect(received + other * buffer",
    ),
    "dz read without waiting": ("scaled[j])\n        yield from me.syncthreads()", "scaled[j])"),
    "rows of dz": ("j * ROW * 2, scaled", "j * (ROW - 4) * 2, scaled"),
    "dy too late": ("fetch_dy(s + 3)", "fetch_dy(s + 4)"),
    "cells of the wrong step": ("(replica * (T + 1) + last)", "(replica * (T + 1) + last - 1)"),
    "parts of A": ("2 * m + part % 2", "2 * m + part // 2"),
    "gates of a CTA": ("column % 4, rank * 32 + column // 4", "column // 32, rank * 32 + column % 32"),
    "columns of the input": ("s * 16 + n // 2 * 2 + n % 2 * 8", "s * 16 + n * 2"),
    "h of the wrong step": ("((r * T + t - 1) * B + b) * H", "((r * T + t) * B + b) * H"),
    "gates not woven": ("gate_unit % H * 4 + gate_unit // H", "gate_unit"),
    "decay of the wrong step": ("(start + backwards) * B + b", "start * B + b"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_caught(machine, monkeypatch, mutant):
    text, (old, new) = Path(emulator.__file__).read_text(), MUTANTS[mutant]
    assert old in text
    changed = ModuleType("changed")
    changed.__file__ = emulator.__file__
    exec(text.replace(old, new), vars(changed))
    monkeypatch.setattr(fused, "_kernel", changed.Machine().kernel)
    with pytest.raises(AssertionError):
        run(draw((70, 3, 6, 2)), decays(6, 3), 0.7)


# ---- sizes that two files must agree on


@pytest.mark.parametrize("ctas", range(1, 9))
def test_constants(ctas):
    forward = emulator.constants("lstm_forward", CTAS=ctas, EXTRA=0, KEEP=1)
    backward = emulator.constants("lstm_backward", CTAS=ctas)
    assert fused.INPUTS == backward.INPUTS
    assert fused.WARPS == forward.WARPS == backward.WARPS
    assert forward.UNITS == backward.UNITS == fused.WARPS * fused.TILE
    assert fused.ctas(forward.WIDTH) == ctas
    assert fused.WIDEST == 8 * forward.UNITS
    # All of it, static and dynamic, on a multiprocessor of 227 KB for three CTAs.
    static = emulator.arrays("lstm_backward", backward)
    static["barriers"] *= 8
    assert 3 * (sum(static.values()) + 1024 + fused.INPUTS * backward.THREADS) <= 227 << 10
