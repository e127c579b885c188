"""The kernels without a GPU: what ptxas says of each, and their indices and barriers in an emulator."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from types import ModuleType

import compiling
import emulator
import numpy as np
import pytest
import torch
from conftest import assert_same

from momentumrnn.kernels import (
    constants,
    launch,
    lstm_backward,
    lstm_by_reference,
    momentum_backward,
    op,
    operands,
)
from momentumrnn.kernels.constants import FILTER_THREADS
from momentumrnn.kernels.lstm_backward import backward
from momentumrnn.kernels.lstm_forward import forward
from momentumrnn.kernels.sizes import Sizes, cluster_size

F64 = torch.float64

# ---- compiled


def compiled(file, configurations):
    """What each kernel takes and its bytes of shared memory, for each configuration."""
    source = launch.source(file)
    try:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            logs = list(pool.map(lambda defines: compiling.compile(source, "sm_90", defines), configurations))
    except LookupError as error:
        pytest.skip(str(error))
    found = []
    for log in logs:
        shared = [int(n) for n in re.findall(r"(\d+) bytes smem", log)]
        found.append((compiling.resources(log), max(shared, default=0)))
    return found


def resident(registers, threads):
    """How many CTAs' registers a multiprocessor holds."""
    return 65536 // (-(-registers // 8) * 8 * threads)


def assert_fits(taken, shared, threads, least):
    assert taken[1:] == (0, 0, 0)
    assert taken.registers <= 255
    assert resident(taken.registers, threads) >= least
    assert shared < 48 << 10


FLAGS = "FINE", "PACKED", "EXTRAPOLATED"
PLAIN = dict.fromkeys(FLAGS, 0)
COMBINED = [dict(zip(FLAGS, on, strict=True)) for on in product((0, 1), repeat=3) if sum(on) > 1]


def further(file, slices, form=0, table=0):
    if file != "lstm_forward":
        return {}
    return {"INPUT_SLICES": slices, "KEEP": 1, "MOMENTUM_FORM": form, "TABLE": table}


def shared_of_both(file, defines, static):
    """Static and dynamic shared memory of a CTA, and what the system takes."""
    return static + emulator.dynamic(file, emulator.constants(file, **defines))[1] + 1024


@pytest.mark.parametrize("ctas", range(1, 9))
def test_forward_compiles(ctas):
    """Without spills. At least two CTAs share a multiprocessor, three of small clusters."""
    every = [
        further("lstm_forward", slices) | {"CTAS": ctas, "KEEP": keep} | PLAIN
        for slices, keep in ((2, 1), (3, 1), (ctas % 2, ctas // 2 % 2))
    ]
    for defines, (taken, shared) in zip(every, compiled("lstm_forward", every), strict=True):
        assert_fits(
            taken["lstm_forward"], shared, 128, 3 if ctas <= 4 and defines["INPUT_SLICES"] <= 2 else 2
        )


@pytest.mark.parametrize("ctas", range(1, 9, 2))
def test_backward_compiles(ctas):
    every = [{"CTAS": ctas} | PLAIN, {"CTAS": ctas + 1} | PLAIN]
    for defines, (taken, shared) in zip(every, compiled("lstm_backward", every), strict=True):
        assert_fits(taken["lstm_backward"], shared, 128, 3 if defines["CTAS"] <= 4 else 2)


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("file", ["lstm_forward", "lstm_backward"])
def test_variants_compile(file, flag):
    """Without spills, and two CTAs share a multiprocessor."""
    every = [{"CTAS": ctas} | further(file, 3 * (ctas % 2 == 0)) | PLAIN | {flag: 1} for ctas in (1, 4, 7, 8)]
    for defines, (taken, shared) in zip(every, compiled(file, every), strict=True):
        assert_fits(taken[file], shared, 128, 2)
        assert shared_of_both(file, defines, shared) <= 113 << 10, defines


@pytest.mark.parametrize("form", [1, 2, 3])
def test_moments_compile(form):
    """Without spills, however wide the input."""
    every = [
        {"CTAS": ctas} | further("lstm_forward", slices, form, table) | PLAIN
        for ctas, slices, table in ((4, 3, 1), (8, 1, 1), (8, 2, 1), (8, 3, 0))
    ]
    for taken, shared in compiled("lstm_forward", every):
        assert_fits(taken["lstm_forward"], shared, 128, 2)


@pytest.mark.parametrize("file", ["lstm_forward", "lstm_backward"])
def test_combined_variants_compile(file):
    """With a small stack at most."""
    every = [
        {"CTAS": ctas} | further(file, 3, 2 + i % 2, (ctas + i // 2) % 2) | flags
        for ctas in (7, 8)
        for i, flags in enumerate(COMBINED)
    ]
    for defines, (taken, shared) in zip(every, compiled(file, every), strict=True):
        most = 128 if file == "lstm_backward" else 64 if defines["CTAS"] == 8 else 8
        assert taken[file].stack <= most, defines
        assert taken[file].registers <= 255
        assert shared < 48 << 10
        assert shared_of_both(file, defines, shared) <= 113 << 10, defines


@pytest.mark.parametrize("file", ["pack", "weight_gradients"])
def test_other_kernels_compile(file):
    ((taken, shared),) = compiled(file, [{}])
    assert taken.keys() == set(launch.KERNELS[file])
    for name, one in taken.items():
        assert_fits(one, shared, FILTER_THREADS if name == "filter_input" else launch.THREADS, 1)


# ---- emulated


@pytest.fixture
def machine(monkeypatch):
    """The emulator in the place of a GPU."""
    machine = emulator.Machine()
    monkeypatch.setattr(launch, "kernel", machine.kernel)
    for module in (launch, operands, lstm_backward, momentum_backward):
        monkeypatch.setattr(module, "torch", emulator.Torch())
    for module in (operands, lstm_backward):
        monkeypatch.setattr(module, "ROWS_OF_PRODUCT", 16)
    return machine


def normal(*shape, scale=1.0):
    return scale * torch.randn(*shape, dtype=F64)


def draw(size, leading=(1,) * op.TENSORS, without=("z0", "mu", "gain", "v0", "n0"), lengths=(), **more):
    """The inputs, each with its number of replicas; those named in `without` are None."""
    H, B, T, D = size
    sizes = [sum(n > t for n in lengths) for t in range(T if lengths else 0)]
    assert not lengths or (sorted(lengths) == list(lengths)[::-1] and len(lengths) == B and lengths[0] == T)
    shapes = {
        "x": (*([sum(sizes)] if sizes else [T, B]), 4 * H if "w_ih" in without else D),
        "w_ih": (4 * H, D),
        "w_hh": (4 * H, H),
        **dict.fromkeys(("b_ih", "b_hh"), (4 * H,)),
        **dict.fromkeys(("h0", "c0"), (B, H)),
        "z0": (B, 4 * H),
        **dict.fromkeys(("mu", "gain"), (4 * H,)),
        **dict.fromkeys(("v0", "n0"), (B, 4 * H)),
    }
    # Gates below 2^-30 are where the kernels stop.
    scale = {"w_hh": H**-0.5, "w_ih": 0.5 * D**-0.5, "b_ih": 0.5, "b_hh": 0.5, "gain": 0.5}
    leading = [*leading, *[1] * (len(shapes) - len(leading))]
    tensors = {
        name: None if name in without else normal(n, *shape, scale=scale.get(name, 1.0))
        for n, (name, shape) in zip(leading, shapes.items(), strict=True)
    }
    if tensors["mu"] is not None:
        tensors["mu"] = tensors["mu"].sigmoid()
    if tensors["n0"] is not None:
        tensors["n0"] = tensors["n0"].exp()
    return op.Inputs(**tensors, sizes=sizes, **more)


def plus(*names):
    """What `draw` is to leave out if these are there."""
    return tuple(name for name in ("z0", "mu", "gain", "v0", "n0") if name not in names)


def extrapolated(B, every=3):
    return {"without": plus("z0"), "j0": torch.arange(B, dtype=F64)[None], "every": every}


def decays(T, rows):
    return torch.rand(T, rows, dtype=F64)


def run(inputs, given=(True,) * op.OUTPUTS, needs=(True,) * op.TENSORS, dtype=F64):
    """Outputs and gradients by the emulated kernels and by the definition, which should be the same."""
    found, grads, got, want = both(inputs, given, needs)
    assert_same((*found[:6], *got), want, dtype)
    return found, grads, got


def both(inputs, given=(True,) * op.OUTPUTS, needs=(True,) * op.TENSORS, rows=None):
    """What the kernels found, the gradients that were given, those they returned, and what all should be."""
    found = forward(inputs, True)
    grads = [
        torch.randn_like(t) if there and t.numel() else None
        for t, there in zip(found[:6], given, strict=True)
    ]
    got = backward(grads, (found[0], *found[6:]), inputs, needs)
    return (
        found,
        grads,
        got,
        (*lstm_by_reference.outputs(inputs), *lstm_by_reference.gradients(grads, inputs, needs)),
    )


def error(got, want):
    """The largest error, in relative norm, of all tensors."""
    return max(
        ((g - w).norm() / w.norm()).item()
        for g, w in zip(got, want, strict=True)
        if w.numel() and w.norm() > 0
    )


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


def assert_all_read(machine, T, B, H, parts=1):
    """The passes read all of what was made for them."""
    (forward,) = machine.launched("lstm_forward")
    backward = machine.launched("lstm_backward")
    for name in ("weights", "low", "narrow_input", "drive"):
        assert name not in forward or (forward[name].reads > 0).all()
    steps = sum(rows + 7 >> 3 for rows in T) if isinstance(T, list) else T * -(-B // 8)
    assert sum(launch["saved_gates"].reads for launch in backward).tolist() == [1] * (
        steps * cluster_size(H) * constants.WARPS * 32 * parts
    )
    for name in ("weights", "low"):
        assert all((launch[name].reads > 0).all() for launch in backward if name in launch)


@pytest.mark.parametrize("momentum", [False, True], ids=["plain", "momentum"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes(machine, size, momentum):
    H, B, T, _ = size
    # One decay for all rows of a step, or one for each.
    run(draw(size, **({"decay": decays(T, B if H % 2 else 1), "step": 0.7} if momentum else {})))
    assert_all_read(machine, T, B, H)


@pytest.mark.parametrize("kind", ["plain", "fine", "packed"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("size", [(33, 2, 11, 1), (70, 2, 6, 1)], ids=str)
def test_schedules(machine, size, seed, kind):
    """The order in which warps and messages take turns changes nothing."""
    machine.seed = seed
    T = size[2]
    more = {"fine": True} if kind == "fine" else {"lengths": (T, T - 4)} if kind == "packed" else {}
    run(draw(size, decay=decays(T, 1), step=0.7, **more))


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
    more = {"decay": decays(2, 3), "step": 0.7} if momentum else {}
    run(draw((9, 3, 2, features), leading, (*without, *plus()), **more))


@pytest.mark.parametrize(
    "leading", [(1, 1, 1, 1, 1, 1, 1), (2, 1, 1, 1, 2, 1, 2), (1, 1, 2, 1, 1, 1, 1)], ids=str
)
@pytest.mark.parametrize("bias", [True, False])
def test_given_drive(machine, leading, bias):
    without = ("w_ih", "b_ih") if bias else ("w_ih", "b_ih", "b_hh")
    run(draw((35, 9, 3, 1), leading, (*without, *plus())))


@pytest.mark.parametrize("features", [2, 16], ids=["narrow", "wide"])
@pytest.mark.parametrize("kind", ["plain", "fine", "packed", "extrapolated", "learned"])
def test_the_forward_pass_loads_all_kernels(machine, monkeypatch, kind, features):
    """None can be loaded while a CUDA graph is captured, which may have the first backward pass."""
    loaded = []

    def kernel(name, device, **defines):
        loaded.append((launch.FILES[name], *sorted(defines.items())))
        return machine.kernel(name, device, **defines)

    monkeypatch.setattr(launch, "kernel", kernel)
    launch._load_all.cache_clear()
    more = {
        "plain": {},
        "fine": {"fine": True},
        "packed": {"lengths": (3, 2)},
        "extrapolated": extrapolated(2),
        "learned": {"without": plus("mu", "gain")},
    }
    inputs = draw((9, 2, 3, features), **more[kind])
    found = forward(inputs, True)
    before = set(loaded)
    loaded.clear()
    backward([torch.ones_like(t) for t in found[:6]], (found[0], *found[6:]), inputs, (True,) * op.TENSORS)
    assert loaded
    assert set(loaded) <= before


@pytest.mark.parametrize(("chunks", "case"), [(2, "narrow"), (3, "wide"), (8, "drive")])
def test_chunks(machine, monkeypatch, chunks, case):
    """Time in chunks, the first of which, the last in time, is shorter."""
    monkeypatch.setattr(lstm_backward, "CHUNK_BYTES", 1)
    monkeypatch.setattr(lstm_backward, "MAX_CHUNKS", chunks)
    given = case == "drive"
    inputs = draw(
        (34, 2, 7, 16 if case == "wide" else 2),
        (2, 1, 1, 1, 1, 1, 2),
        (*(("w_ih", "b_ih") if given else ()), *plus()),
        **({} if given else {"decay": decays(7, 2), "step": 0.7}),
    )
    run(inputs)
    assert len(machine.launched("lstm_backward")) == -(-7 // -(-7 // chunks))


ONE = [tuple(i == n for i in range(op.OUTPUTS)) for n in range(3)]


@pytest.mark.parametrize("given", ONE, ids=["y", "h", "c"])
@pytest.mark.parametrize("needed", [(0,), (1, 2), (3,), ()], ids=str)
def test_some_gradients(machine, given, needed):
    needs = [i in needed for i in range(op.TENSORS)]
    run(draw((34, 3, 5, 2), decay=decays(5, 1), step=0.7), given, needs)


# ---- packed sequences

# Tiles that end early, rows of one step, a tile that has nothing but those, rows of one length side by side.
LENGTHS = (7, 7, 6, 5, 5, 4, 4, 3, 3, 3, 2, 2, 1, 1, 1, 1, 1, 1, 1)


@pytest.mark.parametrize(
    ("case", "chunks"),
    [("narrow", 1), ("narrow", 3), ("narrow", 8), ("wide", 3), ("drive", 3), ("momentum", 3), ("fine", 3)],
)
def test_packed(machine, monkeypatch, case, chunks):
    monkeypatch.setattr(lstm_backward, "CHUNK_BYTES", 1)
    monkeypatch.setattr(lstm_backward, "MAX_CHUNKS", chunks)
    H, B, T = 34, len(LENGTHS), LENGTHS[0]
    without = (*(("w_ih", "b_ih") if case == "drive" else ()), *plus())
    more = {"decay": decays(T, B), "step": 0.7} if case == "momentum" else {"fine": case == "fine"}
    leading = (2, 1, 1, 2, 1, 1, 2) if case == "momentum" else (1,) * 7
    H = 9 if case == "momentum" else H
    inputs = draw((H, B, T, 16 if case == "wide" else 2), leading, without, LENGTHS, **more)
    run(inputs)
    if len(leading) == 7 and max(leading) == 1:
        assert_all_read(machine, inputs.sizes, B, H, 1 + inputs.fine)


@pytest.mark.parametrize("lengths", [(1,), (4, 1), (3, 3, 3), (5, *[1] * 8), (9, *[9] * 7, 2)], ids=str)
def test_lengths(machine, lengths):
    run(draw((9, len(lengths), lengths[0], 1), lengths=lengths))


@pytest.mark.parametrize("given", ONE, ids=["y", "h", "c"])
def test_packed_with_some_gradients(machine, monkeypatch, given):
    """A final state's gradient joins where its row ends, in whichever chunk that is."""
    monkeypatch.setattr(lstm_backward, "CHUNK_BYTES", 1)
    monkeypatch.setattr(lstm_backward, "MAX_CHUNKS", 3)
    run(draw((9, len(LENGTHS), 7, 1), lengths=LENGTHS), given)


def test_packed_rows_are_sequences_of_their_own(machine):
    """Each row alone gives the same, whatever runs beside it."""
    lengths = (6, 4, 1)
    inputs = draw((35, 3, 6, 2), lengths=lengths)
    y, h, *_ = forward(inputs, True)
    begins = [0, *np.cumsum(inputs.sizes)]
    for b, steps in enumerate(lengths):
        rows = [begins[t] + b for t in range(steps)]
        alone = inputs._replace(
            x=inputs.x[:, rows].unsqueeze(2), h0=inputs.h0[:, b : b + 1], c0=inputs.c0[:, b : b + 1], sizes=()
        )
        y_alone, h_alone, *_ = forward(alone, True)
        assert_same((y[:, rows], h[:, b : b + 1]), (y_alone.squeeze(2), h_alone))


# ---- extrapolated


@pytest.mark.parametrize(
    ("size", "chunks", "every"),
    [((7, 3, 6, 2), 1, 1), ((7, 3, 6, 2), 3, 2), ((7, 3, 6, 2), 3, 40), ((40, 9, 7, 16), 3, 5)],
    ids=str,
)
def test_extrapolated(machine, monkeypatch, size, chunks, every):
    """Rows that begin at several j; gradients of z0, and of the last z, which joins at the end."""
    monkeypatch.setattr(lstm_backward, "CHUNK_BYTES", 1)
    monkeypatch.setattr(lstm_backward, "MAX_CHUNKS", chunks)
    run(draw(size, **extrapolated(size[1], every)))
    outputs, _, got = run(draw(size, **extrapolated(size[1], every)), [i == 3 for i in range(6)])
    assert outputs[3].shape == got[7].shape == (1, size[1], 4 * size[0])
    assert every == 1 or got[7].abs().max() > 0


@pytest.mark.parametrize("leading", [(1,) * 7 + (2,), (2,) * 7 + (1,), (3,) * 8], ids=str)
def test_extrapolated_replicas(machine, leading):
    run(draw((9, 3, 3, 2), leading, decay=decays(3, 3), step=-0.7, **extrapolated(3)))


@pytest.mark.parametrize("fine", [False, True], ids=["fast", "fine"])
def test_packed_and_extrapolated(machine, monkeypatch, fine):
    monkeypatch.setattr(lstm_backward, "CHUNK_BYTES", 1)
    monkeypatch.setattr(lstm_backward, "MAX_CHUNKS", 3)
    B, T = len(LENGTHS), LENGTHS[0]
    more = extrapolated(B, 4)
    run(draw((34, B, T, 2), (1,) * 7, lengths=LENGTHS, fine=fine, decay=decays(T, B), step=0.7, **more))


# ---- fine


def test_two_halves(monkeypatch, machine):
    """A number as high + low / 2048, in the weights of both passes."""
    monkeypatch.setattr(emulator, "ROUND", True)
    H, C = 40, 2
    w_hh = normal(1, 4 * H, H) * normal(1, 4 * H, 1, scale=4).exp2()
    launcher = launch.Launcher(draw((H, 1, 1, 1)))
    no_input = dict.fromkeys(("w_ih", "b_ih", "b_hh")) | {
        "input_slices": 0,
        "D": 0,
        "filtered": 0,
        "plain": 0,
    }
    shared = {"own_hh": 1, "own_ih": 0, "own_b_ih": 0, "own_b_hh": 0}
    for name, count, slices, more in (
        ("pack_forward", C * 4 * 2 * C * 64, 2 * C, no_input | shared),
        ("pack_backward", C * 4 * 8 * 32, 8, {}),
    ):
        packed, low = (torch.zeros(4 * count, dtype=torch.complex128) for _ in range(2))
        launcher(name, count, 1, w_hh=w_hh, packed=packed, low=low, ctas=C, H=H, **more)
        high, rest = (torch.view_as_real(t).flatten() for t in (packed, low))
        assert high.half().double().equal(high), "high parts are halves"
        assert rest.half().double().equal(rest), "low parts are halves"
        both = (high + rest / 2048).sort().values
        want = w_hh.view(4, -1) * (torch.tensor([1, 1, 2, 1]) * -emulator.constants("pack").LOG2E)[:, None]
        want = (want if name == "pack_forward" else w_hh).flatten().sort().values
        found = both[both != 0]
        assert len(found) == len(want), f"{slices} slices have each weight once"
        # Of halves too small to be normal ones less is left.
        assert (found - want).abs().max() < 2.0**-22 * want.abs().max()
        assert ((found - want).abs() <= 2.0**-22 * want.abs() + 2.0**-36).all()
        # The high parts alone don't have them.
        assert (high[high != 0].sort().values - want).abs().max() > 2.0**-13 * want.abs().max()


def test_fine_tanh(monkeypatch):
    monkeypatch.setattr(emulator, "ROUND", True)
    x = np.concatenate([np.linspace(-0.7, 0.7, 1401), 10.0 ** np.arange(-30, 0)])
    x = x[x != 0]
    assert abs(emulator.fine_tanh(x) / np.tanh(x) - 1).max() < 1e-7


@pytest.mark.parametrize("size", SIZES[::2], ids=str)
def test_fine_sizes(machine, size):
    H, B, T, _ = size
    run(draw(size, decay=decays(T, B), step=0.7, fine=True))
    assert_all_read(machine, T, B, H, 2)


@pytest.mark.parametrize(
    ("H", "case"),
    [
        *((7, case) for case in ("narrow", "drive", "momentum", "packed", "extrapolated")),
        *[(40, "wide"), (40, "all")],
    ],
)
def test_fine_is_nearly_float32(machine, monkeypatch, case, H):
    """As the kernels round, in outputs and all gradients; without the low parts errors are far larger."""
    monkeypatch.setattr(emulator, "ROUND", True)
    monkeypatch.setattr(lstm_backward, "CHUNK_BYTES", 1)
    monkeypatch.setattr(lstm_backward, "MAX_CHUNKS", 3)
    T, B, more, lengths = 7, 3, {"without": plus()}, ()
    if case in ("momentum", "all"):
        more |= {"decay": decays(T, B), "step": 0.7}
    if case in ("packed", "all"):
        lengths = (7, 4, 1)
    if case in ("extrapolated", "all"):
        more |= extrapolated(B)
    if case == "drive":
        more["without"] = ("w_ih", "b_ih", *plus())
    inputs = draw((H, B, T, 16 if case == "wide" else 2), lengths=lengths, **more)
    errors = []
    for fine in (False, True):
        found, _, got, want = both(inputs._replace(fine=fine))
        errors.append(error((*found[:6], *got), want))
    assert errors[0] > 5e-5
    assert errors[1] < 2e-6


# ---- momenta in gate space

# What such a momentum may have.
GATES = {
    "decay-v0": {"there": ("v0",), "decay": 1},
    "decay-rows-beta": {"there": (), "decay": 2, "beta": 0.8},
    "decay-v0-n0-beta": {"there": ("v0", "n0"), "decay": 2, "beta": 0.8},
    "mu": {"there": ("mu",)},
    "gain": {"there": ("gain",), "decay": 1},
    "mu-gain-v0": {"there": ("mu", "gain", "v0")},
    "all": {"there": ("mu", "gain", "v0", "n0"), "beta": 0.7, "eps": 0.1},
    "printed": {"there": ("gain",), "decay": 1, "beta": 0.9, "eps": 0.1, "eps_in_sqrt": False},
}


def gate_space(case, size, leading=(1,) * op.TENSORS, without=(), **more):
    options = dict(GATES[case])
    there, kind = options.pop("there"), options.pop("decay", 0)
    if kind:
        options["decay"] = decays(size[2], 1 if kind == 1 else size[1])
    if "gain" not in there:
        options["step"] = 0.7
    # Where a second moment is small the drive leaps.
    options.setdefault("eps", 0.01)
    return draw(size, leading, (*without, *plus(*there, *more.pop("further", ()))), **options, **more)


@pytest.mark.parametrize("size", [(7, 3, 5, 2), (35, 9, 4, 15), (66, 2, 3, 16)], ids=str)
@pytest.mark.parametrize("case", GATES)
def test_gate_space(machine, case, size):
    """Inputs that ride on the product with U, and wide ones, with gradients to x and without."""
    inputs = gate_space(case, size)
    run(inputs)
    run(inputs, needs=(False, *[True] * (op.TENSORS - 1)))
    assert machine.launched("momentum_backward")


@pytest.mark.parametrize("case", ["decay-v0-n0-beta", "all"])
@pytest.mark.parametrize("fine", [False, True], ids=["fast", "fine"])
@pytest.mark.parametrize("features", [2, 17], ids=["narrow", "wide"])
def test_gate_space_in_chunks(machine, monkeypatch, case, features, fine):
    """Chunks of whole segments; rows that end in each of them."""
    monkeypatch.setattr(lstm_backward, "CHUNK_BYTES", 1)
    monkeypatch.setattr(launch, "MANY_UNITS", 0 if fine else 1 << 30)  # two channels a thread, or one
    T, lengths = 33, (33, 32, 25, 24, 17, 16, 9, 8, 1)
    size = 5, len(lengths), T, features
    run(gate_space(case, size, lengths=lengths if case == "all" else (), fine=fine))
    assert len(machine.launched("momentum_backward")) == -(-T // constants.SPACING) > 1


@pytest.mark.parametrize(
    "leading",
    [(2,) * 12, (2, *[1] * 11), (1,) * 8 + (2,) * 4, (1,) * 10 + (2, 1), (1, 2, 1, 2, *[1] * 8)],
    ids=str,
)
@pytest.mark.parametrize(("features", "fine"), [(2, False), (17, False), (17, True)], ids=str)
def test_gate_space_replicas(machine, leading, features, fine):
    run(gate_space("all", (9, 3, 3, features), leading, fine=fine))


@pytest.mark.parametrize("without", [("b_ih",), ("b_hh",), ("b_ih", "b_hh")], ids=str)
@pytest.mark.parametrize("features", [2, 17], ids=["narrow", "wide"])
def test_gate_space_without_biases(machine, without, features):
    run(gate_space("all", (9, 3, 3, features), without=without))


@pytest.mark.parametrize("features", [2, 17], ids=["narrow", "wide"])
@pytest.mark.parametrize("given", range(6), ids=["y", "h", "c", "z", "v", "n"])
def test_gate_space_extrapolated(machine, given, features):
    """With everything there is, from the gradient of each output."""
    more = extrapolated(3) | {"further": ("z0",)}
    del more["without"]
    inputs = gate_space("all", (9, 3, 6, features), lengths=(6, 4, 1), fine=True, **more)
    run(inputs, [i == given for i in range(6)])


@pytest.mark.parametrize("features", [2, 17], ids=["narrow", "wide"])
def test_gate_space_is_nearly_float32(machine, monkeypatch, features):
    """Three parts of bfloat16 in each product with the input, two where it need not be fine."""
    monkeypatch.setattr(emulator, "ROUND", True)
    inputs = gate_space("all", (33, 3, 4, features))
    for fine, most in ((False, 1e-3), (True, 2e-6)):
        found, _, got, want = both(inputs._replace(fine=fine))
        assert error((*found[:6], *got), want) < most


# ---- parts of it


@pytest.mark.parametrize(
    ("T", "B", "D", "packed"),
    [
        *[(T, B, D, False) for T, B, D in ((1, 1, 1), (70, 3, 2), (530, 2, 3), (1100, 1, 1), (20, 5, 9))],
        *[(70, 3, 2, True), (530, 2, 3, True), (20, 5, 9, True), (9, 300, 8, False)],
    ],
)
@pytest.mark.parametrize("rows", [0, 1, 2], ids=["none", "one", "each"])
def test_filter(machine, T, B, D, packed, rows):
    """Time in segments of one step, of several, and of more than eight; blocks of 8 columns and of 32."""
    lengths = [max(1, T - b * T // B) for b in range(B)] if packed else [T] * B
    sizes = [sum(n > t for n in lengths) for t in range(T)]
    N = sum(sizes)
    there = torch.arange(T)[:, None] < torch.tensor(lengths)  # (T, B)

    def flat(t):
        """Of (R, T, B, ...) the rows that are there."""
        return t[:, there]

    x, decay = normal(2, T, B, D), None if rows == 0 else 0.9 * decays(T, B if rows == 2 else 1)
    size = Sizes(2, T, B, N, 1, D, D + 1, 0)
    launcher = launch.Launcher(draw((1, B, T, 1), lengths=lengths if packed else ()))
    v, tops = normal(2, N, D + 1), torch.zeros(2, D + 1, dtype=torch.complex128)
    launcher.filter(flat(x).contiguous(), decay, size, 0.7, v=v, largest=tops)
    ones = torch.cat([x, torch.ones(2, T, B, 1, dtype=F64)], -1)
    want = [0.7 * ones[:, 0]]
    for t in range(1, T):
        want.append(0.7 * ones[:, t] + (0 if decay is None else decay[t, :, None] * want[-1]))
    assert_same(v, flat(torch.stack(want, 1)))
    assert torch.equal(tops.real, v.abs().amax(1))
    for fine, (each, of_x, further) in {False: (3, (0, 2), 2), True: (6, (0, 1, 3), 3)}.items():
        launcher.fine = fine
        columns = each * (D + 1)
        width = -(-(columns + further) // 8) * 8
        parts = normal(2, N, width)
        launcher.filter(flat(x).contiguous(), decay, size, 0.7, packed=parts, width=width)
        high = torch.zeros(2, N, D + 1, each, dtype=F64)
        high[..., of_x] = v[..., None]
        assert_same(parts[..., :columns], high.flatten(2))
        assert parts[..., columns : columns + further].eq(1).all()
        assert parts[..., columns + further :].eq(0).all()
    # <filter x, z> = <x, filter backwards z>, rows weighed.
    z, factors, filtered_back = normal(2, N, D), normal(2, N).exp(), normal(2, N, D)
    launcher.filter(z, decay, size._replace(F=D), 0.7, v=filtered_back, factors=factors, backwards=True)
    assert_same((flat(x) * filtered_back).sum(), (v[..., :D] * factors[..., None] * z).sum())


@pytest.mark.parametrize("features", [2, 14, 16])
@pytest.mark.parametrize("momentum", [False, True], ids=["plain", "momentum"])
@pytest.mark.parametrize("fine", [False, True], ids=["fast", "fine"])
def test_input_is_nearly_float32(machine, monkeypatch, features, momentum, fine):
    """Parts of bfloat16 in their columns: the rest of a step rounds nothing where h is 0."""
    monkeypatch.setattr(emulator, "ROUND", True)
    more = {"decay": decays(1, 1), "step": 0.7} if momentum else {}
    inputs = draw((9, 3, 1, features), fine=fine, **more)
    inputs = inputs._replace(h0=0 * inputs.h0, c0=0 * inputs.c0)
    y, *_ = forward(inputs, False)
    want = lstm_by_reference.outputs(inputs)[0]
    assert_same(y, want, torch.float32)
    if fine:
        assert error([y], [want]) < 2e-7


def test_rounded(machine, monkeypatch):
    """As the kernels round, gradients of any size keep their precision."""
    monkeypatch.setattr(emulator, "ROUND", True)
    inputs = draw((40, 3, 12, 2))
    y, h, c, *_, gates, cells, moments = forward(inputs, True)
    rows = torch.tensor([1e-12, 1.0, 1e12], dtype=F64)[:, None]
    grads = [*(torch.randn_like(t) * rows for t in (y, h, c)), None, None, None]
    needs = [i in (0, 5, 6) for i in range(op.TENSORS)]
    got = backward(grads, (y, gates, cells, moments), inputs, needs)
    want = lstm_by_reference.gradients(grads, inputs, needs)
    for found, sought in zip(got, want, strict=True):
        if sought.numel():
            assert_same(found / rows, sought / rows, "TF32")


def test_rounded_and_packed(machine, monkeypatch):
    """A gradient that waits for its row's end has the scale it needs there, beside any others."""
    monkeypatch.setattr(emulator, "ROUND", True)
    lengths = (12, 9, 8, 3, 1)
    more = extrapolated(5)
    inputs = draw((40, 5, 12, 2), lengths=lengths, **more)
    y, h, c, z, _, _, *kept = forward(inputs, True)
    rows = torch.tensor([1e-12, 1e12, 1e-9, 1e9, 1.0], dtype=F64)[:, None]
    needs = [i in (5, 6, 7) for i in range(op.TENSORS)]
    for given in ((1,), (2,), (3,), (1, 2, 3)):
        grads = [torch.randn_like(t) * rows if i in given else None for i, t in enumerate((y, h, c, z))]
        got = backward([*grads, None, None], (y, *kept), inputs, needs)
        want = lstm_by_reference.gradients([*grads, None, None], inputs, needs)
        for found, sought in zip(got, want, strict=True):
            if sought.numel():
                for b in range(5):
                    size = sought[:, b].norm()
                    assert (found - sought)[:, b].norm() <= 2e-3 * size, (given, b)


def test_gradients_that_grow(machine, monkeypatch):
    """A layer at rest, whose forward pass is exact: a gradient of its end alone grows fast, and has room."""
    monkeypatch.setattr(emulator, "ROUND", True)
    drawn = draw((40, 3, 20, 2))
    inputs = drawn._replace(
        x=0 * drawn.x, w_hh=30 * drawn.w_hh, b_ih=None, b_hh=None, h0=0 * drawn.h0, c0=0 * drawn.c0
    )
    y, h, c, *_, gates, cells, moments = forward(inputs, True)
    grads = None, torch.randn_like(h), torch.randn_like(c), None, None, None
    needs = [i in (0, 5, 6) for i in range(op.TENSORS)]
    got = backward(grads, (y, gates, cells, moments), inputs, needs)
    want = lstm_by_reference.gradients(grads, inputs, needs)
    assert want[5].norm() > 2.0**20 * grads[1].norm()
    for i in (0, 5, 6):
        assert (got[i] - want[i]).norm() < 2e-3 * want[i].norm()


@pytest.mark.parametrize("given", [(True, True, True), (False, True, False), (True, False, False)], ids=str)
@pytest.mark.parametrize("size", [(3, 2, 11, 1), (40, 9, 12, 2)], ids=str)
def test_scales(machine, size, given):
    """Of each row and step: by the largest of two or three steps before, and of dy from then on."""
    H, B, T, _ = size
    inputs = draw(size)
    y, h, c, *_, gates, cells, moments = forward(inputs, True)
    # Gradients of all sizes.
    by_row, by_step = (normal(*shape, scale=n).exp2() for shape, n in (((B, 1), 10.0), ((T, 1, 1), 5.0)))
    grads = [
        torch.randn_like(y) * by_step * by_row,
        torch.randn_like(h) * by_row,
        torch.randn_like(c) * by_row,
    ]
    grads = [g if there else None for g, there in zip(grads, given, strict=True)]
    backward([*grads, None, None, None], (y, gates, cells, moments), inputs, (True,) * op.TENSORS)
    (launch,) = machine.launched("lstm_backward")
    got = launch["scales"].data.reshape(T, B)
    assert launch["largest"].data[0, 0] == got.max()

    gates, cs = states(inputs)
    dy, dh, dc = (torch.zeros(B, H, dtype=F64) if g is None else g[0] for g in grads)
    dy = torch.zeros(T, B, H, dtype=F64) if grads[0] is None else dy
    shown, seen = (dh, dc), []
    for s in range(T):
        # Beyond the end lies what was eight steps before.
        coming = [dy[T - 1 - (n if n < T else n - 8)] for n in range(s, s + 4) if n < T or n >= 8]
        largest = torch.stack([*shown, *coming]).abs().amax((0, 2))
        seen.append(torch.where(largest > 0, largest.frexp().exponent - 1, -110))
        i, f, g, o = gates[T - 1 - s]
        c, before = cs[T - s].tanh(), cs[T - 1 - s]
        dh = dh + dy[T - 1 - s]
        dc = dc + dh * o * (1 - c * c)
        dz = dc * g * i * (1 - i), dc * before * f * (1 - f), dc * i * (1 - g * g), dh * c * o * (1 - o)
        shown, dh, dc = (dh, dc), torch.cat(dz, -1) @ inputs.w_hh[0], dc * f
    for s in range(T):
        assert np.log2(got[T - 1 - s]).tolist() == seen[max(0, s // 2 * 2 - 2)].tolist()


def states(inputs):
    """Gates and c of all steps of a plain layer, of one replica."""
    x, w_ih, w_hh, b_ih, b_hh, h, c = (t[0] for t in inputs[:7])
    gates, cs = [], [c]
    for x_t in x:
        i, f, g, o = (x_t @ w_ih.mT + b_ih + h @ w_hh.mT + b_hh).chunk(4, -1)
        gates.append((i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()))
        i, f, g, o = gates[-1]
        cs.append(f * cs[-1] + i * g)
        h = o * cs[-1].tanh()
    return gates, cs


# ---- what must fail

# A change of the emulator that should be seen: what stands there, and what instead.
MUTANTS = {
    "one buffer of h": ("after = now ^ 1", "after = now"),
    "h read without waiting": ("yield from me.wait(now, (t - 1) >> 1)", "pass"),
    "wrong phase of h": ("me.wait(now, (t - 1) >> 1)", "me.wait(now, t >> 1)"),
    "h not turned": ("transpose(halves(*h))", "halves(*h)"),
    "h sent to the wrong lane": ("number * BLOCK + 4 * lane", "number * BLOCK + 4 * (lane ^ 1)"),
    "barrier not armed again": ("if CTAS > 1 and warp == 0:", "if False:"),
    "wrong barrier armed first": ("me.expect(1, expected(k))", "me.expect(0, expected(k))"),
    "left before the last h": ("yield from me.wait(steps & 1, (steps - 1) >> 1)", "pass"),
    "kept gates of another warp": (
        "(replica * tile_steps + start) * k.BLOCKS + number",
        "(replica * tile_steps + start) * k.BLOCKS + (number ^ 1)",
    ),
    "inputs too early": ("me.wait_for_copies(k.AHEAD - 2)", "me.wait_for_copies(k.AHEAD - 1)"),
    "rows of a lane": ("tile * k.TILE + 2 * q", "tile * k.TILE + q"),
    "one buffer of slots": ("buffer * SLOTS", "0 * SLOTS"),
    "zeros in the other slots": ("SLOTS + (many * THREADS", "(many * THREADS"),
    "wrong phase of parts": (
        "received + other * buffer, s >> 1)",
        "received + other * buffer, (s + 1) >> 1)",
    ),
    "one buffer of dz": ("to + buffer * BUFFER", "to + 0 * BUFFER"),
    "one place of maxima": ("turn = s // 2 % 2", "turn = 0"),
    "maxima of this step": ("maxima_of(turn ^ 1, unset=s == 0)", "maxima_of(turn, unset=s == 0)"),
    "parts to the wrong CTA": ("there = (rank + i + 1) % CTAS", "there = (rank + i) % CTAS"),
    "parts to the wrong slot": ("slot_at + buffer * SLOTS + i * SLOT, xy", "slot_at + buffer * SLOTS, xy"),
    "bytes of the other barrier": ("bytes_received(k, buffer ^ 1)", "bytes_received(k, buffer)"),
    "barrier armed twice": (
        "me.expect(received + other * (buffer ^ 1)",
        "me.expect(received + other * buffer",
    ),
    "dz read without waiting": ("scaled_low[n])\n        yield from me.syncthreads()", "scaled_low[n])"),
    "rows of dz": ("n * ROW * 2, scaled", "n * (ROW - 4) * 2, scaled"),
    "dy too late": ("fetch_dy(s + 3)", "fetch_dy(s + 4)"),
    "dy of the other step": ("here[buffer]", "here[buffer ^ 1]"),
    "cells of the wrong step": ("start + tile + end) * k.BLOCKS", "start + tile + end - 1) * k.BLOCKS"),
    "parts of A": ("2 * m + part % 2", "2 * m + part // 2"),
    "gates of a CTA": (
        "column % 4, rank * (k.WARPS * 8) + column // 4",
        "column // 32, rank * 32 + column % 32",
    ),
    "columns of the input": ("s * 16 + n // 2 * 2 + n % 2 * 8", "s * 16 + n * 2"),
    "h of the wrong step": ("every.of(t - 1, later)", "every.of(t, later)"),
    "gates not interleaved": ("gate_unit % H * 4 + gate_unit // H", "gate_unit"),
    "decay of the wrong step": ("other = t + backwards", "other = t"),
}
# The same for a layer that is fine, packed and extrapolated, in chunks of time, as the kernels round.
OTHERS = {
    "rows stored beyond their end": ("mine[1] & (not PACKED or t < ends[1])", "mine[1]"),
    "all rows end with the tile": ("mine[n] & (t + 1 == ends[n])", "mine[n] & (t + 1 == steps)"),
    "input of another tile": ("+ start) * INPUT_SLICES * 32", "+ tile) * INPUT_SLICES * 32"),
    "kept gates of another tile": (
        "(replica * tile_steps + start) * k.",
        "(replica * tile_steps + tile) * k.",
    ),
    "no more cells than gates": ("start + tile + end) * k.BLOCKS", "start + end) * k.BLOCKS"),
    "low parts of h for h": ("after * BUFFER + part * HIDDEN", "after * BUFFER + (1 - part) * HIDDEN"),
    "low parts of h not read": ("now * BUFFER + HIDDEN + i * 2", "now * BUFFER + i * 2"),
    "U_low of another slice": ("(2 * i + np.arange(4)[:, None]) * 512", "np.arange(4)[:, None] // 2 * 512"),
    "low sums too large": ("z_low[FINE, m, :, e]) / k.LOW_SCALE", "z_low[FINE, m, :, e])"),
    "one low sum": ("z_low[0, m, :, e] + z_low[FINE, m, :, e]", "z_low[0, m, :, e]"),
    "extrapolated z kept": ("old[n, gate] = one", "old[n, gate] = sums[gate]"),
    "j that never restarts": ("np.where(j[n] + 1 == every, 0, j[n] + 1)", "j[n] + 1"),
    "j that restarts once": ("np.where(j[n] == 0, every - 1, j[n] - 1)", "np.maximum(j[n] - 1, 0)"),
    "j of the longest": ("(first_j + end - 1) % every", "(first_j + T - 1) % every"),
    "z of another row": ("z0.load((n * 4 + gate) * H", "z0.load(gate * H"),
    "pending with a scale": ("-ahead / scale[n] * dg", "-ahead * dg"),
    "joined a step late": ("s == joins[n], s <= joins[n]", "s == joins[n] + 1, s <= joins[n] + 1"),
    "joins as of all steps": ("end - np.minimum(ends[n], last)", "end - ends[n]"),
    "gradients of those to come lost": (
        "pass_given_gradients_on(n, not_joined)",
        "store_first_gradients(n, part[n], dc[n], pending[n], not_joined)",
    ),
    "stored before they join": ("now = not PACKED or s >= joins[n]", "now = True"),
    "dy before its row joins": ("(s < steps) & (s >= joins[n])", "(s < steps)"),
    "rows of all chunks": ("row - rows_before + first_row_of(end - 1)", "row + first_row_of(end - 1)"),
    "each step has as many rows": ("if PACKED else B\n", "if False else B\n"),
    "low dz for dz": ("BUFFER + GATHERED + n * ROW * 2, scaled_low", "BUFFER + n * ROW * 2, scaled_low"),
    "low dz not read": ("buffer * BUFFER + GATHERED + n // 2 * 64", "buffer * BUFFER + n // 2 * 64"),
    "transposed U_low of another slice": (
        "(np.arange(TILES)[:, None] * SLICES + n) * 512",
        "(np.arange(TILES)[:, None] * SLICES + n // 2) * 512",
    ),
    "low dz not stored": ("to_low.store(n * H, scaled_low[n]", "to_low.store(n * H, scaled[n]"),
    "gates of one row": ("gates_at + (s % AHEAD * PARTS + i) * 16", "gates_at + (s % AHEAD * PARTS) * 16"),
    "step of a row": ("self.begins.load(middle, on) <= row", "self.begins.load(middle, on) < row"),
    "filter to the longest's end": ("end = np.minimum(begin + length, steps)", "end = begin + length"),
    "filter from the longest's end": ("steps - 1 - begin", "T - 1 - begin"),
    "input for another tile": ("starts[tile] if starts else tile * T", "tile"),
    "low operand beside the next": ("packed.store(eights, halves", "packed.store(0, halves"),
    "parts of x by those of W": ("self.k.FINE_PARTS_OF_W", "self.k.FINE_PARTS_OF_X"),
    "W_low lost": ("halves(scaled_low_half(w / power))", "halves(0 * w)"),
}
# The same for a momentum in gate space.
MOMENTS = {
    "factors of gates": ("1.0 if plain else factor", "factor"),
    "b_hh of a momentum": ("(k.MOMENTUM_FORM or not INPUT_SLICES) and bias", "not INPUT_SLICES and bias"),
    "decay of another row": ("decay[other_row]", "decay[0]"),
    "decay of the step before": (
        "decay += decay_columns if t + 1 < T else 0",
        "decay += decay_columns if t > 0 else 0",
    ),
    "decays beyond the last": ("decay += decay_columns if t + 1 < T else 0", "decay += decay_columns"),
    "inputs of the next step too early": (
        "me.wait_for_copies(k.AHEAD - 3)",
        "me.wait_for_copies(k.AHEAD - 2)",
    ),
    "input of the step before": ("receive(t + 1, coming_z)", "receive(t, coming_z)"),
    "inputs that add up": ("coming_z[:] = 0", "pass"),
    "half of the elements": ("range(8):\n            n, gate", "range(4):\n            n, gate"),
    "moments of another row": (
        "saved_moments + n * H * k.SAVED_MOMENTS",
        "saved_moments + n * k.SAVED_MOMENTS",
    ),
    "moments of the first segment": ("saved_moments += state_size * k.SAVED_MOMENTS", "pass"),
    "moments of the step before": ("if k.KEEP and t % k.SPACING", "if k.KEEP and (t + 1) % k.SPACING"),
    "v0 of another row": ("(replica * own_v * B + row + n) * 4", "(replica * own_v * B + row) * 4"),
    "the last v a step ahead": (
        "put(t)\n        if k.MOMENTUM_FORM:\n            advance(t + 1, coming_z)\n",
        "if k.MOMENTUM_FORM:\n            advance(t + 1, coming_z)\n        put(t)\n",
    ),
    "s for the last n": ("one_minus_beta * s[n, gate]", "s[n, gate]"),
    "n for s": ("if n0 else 0) / one_minus_beta", "if n0 else 0)"),
    "gates in another order": (
        "a = z[gate // 2, :, gate % 2 * 2 + n]",
        "a = z[gate % 2, :, gate // 2 * 2 + n]",
    ),
}


def changed(old, new):
    """The emulator, changed."""
    text = Path(emulator.__file__).read_text()
    assert old in text
    module = ModuleType("changed")
    module.__file__ = emulator.__file__
    exec(text.replace(old, new), vars(module))
    return module


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_caught(machine, monkeypatch, mutant):
    monkeypatch.setattr(launch, "kernel", changed(*MUTANTS[mutant]).Machine().kernel)
    with pytest.raises(AssertionError):
        run(draw((70, 3, 6, 2), decay=decays(6, 3), step=0.7))


@pytest.mark.parametrize("mutant", [None, *OTHERS])
def test_other_mutants_are_caught(machine, monkeypatch, mutant):
    module = changed(*OTHERS[mutant]) if mutant else changed("", "")
    module.ROUND = True
    monkeypatch.setattr(launch, "kernel", module.Machine().kernel)
    monkeypatch.setattr(lstm_backward, "CHUNK_BYTES", 1)
    monkeypatch.setattr(lstm_backward, "MAX_CHUNKS", 3)
    lengths = 6, 5, 5, 3, 3, 1, 1, 1, 1
    T, B = 6, len(lengths)
    more = extrapolated(B) | {"decay": decays(T, B), "step": 0.7}
    inputs = draw((9, B, T, 2), lengths=lengths, fine=True, **more)
    with pytest.raises(AssertionError) if mutant else nullcontext():
        run(inputs, dtype=torch.float32)


@pytest.mark.parametrize("mutant", [None, *MOMENTS])
def test_mutants_of_moments_are_caught(machine, monkeypatch, mutant):
    module = changed(*MOMENTS[mutant]) if mutant else changed("", "")
    monkeypatch.setattr(launch, "kernel", module.Machine().kernel)
    inputs = gate_space("decay-v0-n0-beta", (5, 3, 19, 2), lengths=(19, 18, 4))
    with pytest.raises(AssertionError) if mutant else nullcontext():
        run(inputs)


# ---- sizes that two files must agree on


@pytest.mark.parametrize("fine", [0, 1])
@pytest.mark.parametrize("ctas", range(1, 9))
def test_constants(ctas, fine):
    flags = {"CTAS": ctas, "FINE": fine, "PACKED": 0, "EXTRAPOLATED": 0}
    forward = emulator.constants("lstm_forward", **further("lstm_forward", 0), **flags)
    backward = emulator.constants("lstm_backward", **flags)
    # What is on its way fits: gates and cells of some steps, dy of eight.
    assert backward.AHEAD * backward.PARTS * 20 + 8 * 8 == backward.INPUT_BYTES
    assert forward.UNITS == backward.UNITS == constants.WARPS * constants.TILE
    assert cluster_size(forward.WIDTH) == ctas
    assert constants.MAX_HIDDEN == 8 * forward.UNITS
    shared = vars(emulator.constants("common")).keys() - {"LOG2E"}
    assert all(getattr(constants, name) == getattr(forward, name) for name in shared)
    # All of it, static and dynamic, on a multiprocessor of 227 KB: of three CTAs, or of two that are fine.
    for file, k in (("lstm_forward", forward), ("lstm_backward", backward)):
        static = emulator.arrays(file, k)
        static["barriers"] *= 8
        taken = shared_of_both(file, further("lstm_forward", 0) | flags, sum(static.values()))
        assert (2 if fine else 3) * taken <= 227 << 10


def test_columns_of_parts():
    """The columns of a feature, and those with its largest part, the next and the smallest."""
    assert momentum_backward.PARTS_FOR_DX == {True: (6, (0, 1, 3)), False: (3, (0, 2))}
    assert momentum_backward.PARTS_FOR_DW == {True: (6, (0, 2, 4)), False: (3, (0, 1))}
