"""Checks the options of the benchmark and lists the cases that they ask for."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch

from .. import repr_parser
from ..backends import registry
from ..momentum import MOMENTA, Momentum
from .cases import MODES, SHAPES, Case, Shape

LARGEST = 2**31 - 1  # the numbers of a tensor of --shape; indices of some kernels have 32 bits


class BadOption(ValueError):
    """An option that can't be used; the message names it, what came and what was expected."""


def check_numbers(replicas: Sequence[int], repeats: int, threads: int | None) -> None:
    for count in replicas:
        _check("replicas", count, count >= 1, "integers of at least 1")
    _check("repeats", repeats, repeats >= 1, "an integer of at least 1")
    _check("threads", threads, threads is None or 1 <= threads <= 4096, "an integer from 1 to 4096")


def choose_device(device: str | None) -> str:
    """The device that was asked for; without one a GPU, if there is one."""
    gpu = torch.cuda.is_available()
    _check("device", device, device != "cuda" or gpu, "cpu, since torch finds no CUDA GPU")
    return device or ("cuda" if gpu else "cpu")


def list_cases(
    shapes: Sequence[str],
    own_shapes: Sequence[str],
    cells: Sequence[str],
    modes: Sequence[str],
    momenta: Sequence[str],
    *,
    backend: str,
    device: str,
    dtype: str,
    lengths: str,
) -> list[Case]:
    """Every shape with every cell, mode and momentum; without cells, each shape has its own.

    shapes: names of SHAPES; own_shapes: sizes as `read_shape` takes them.
    """
    for name in shapes if shapes or own_shapes else [""]:
        _check("shapes", name, name in SHAPES, f"one of {', '.join(SHAPES)}")
    named = [(name, SHAPES[name]) for name in shapes]
    named += [(f"T{s.T}-B{s.B}-D{s.D}-H{s.H}", s) for s in map(read_shape, own_shapes)]
    _check("backend", backend, backend in registry.NAMES, f"one of {', '.join(registry.NAMES)}")
    for mode in modes or [""]:
        _check("modes", mode, mode in MODES, f"one of {', '.join(MODES)}")
        _check("modes", mode, mode == "tf32" or dtype == "float32", f"tf32 for --dtype {dtype}")
        _check("modes", mode, mode != "fp32" or device == "cuda", "tf32 on a CPU: there it is float32 itself")
    _check("lengths", lengths, lengths in ("full", "uniform"), "full or uniform")
    # None comes first, so that the momenta can be compared with it.
    parsed = sorted((parse(text) for text in momenta or [""]), key=lambda m: m is not None)
    cases = [
        Case(name, replace(shape, cell=cell), m, backend, device, getattr(torch, dtype), mode, lengths)
        for name, shape in named
        for cell in cells or [shape.cell]
        for mode in modes
        for m in parsed
    ]
    for case in cases:
        allowed = case.momentum is None or case.shape.cell != "extrapolated"
        _check("momentum", repr(case.momentum), allowed, f"None at {case.name}")
    return cases


def read_shape(text: str) -> Shape:
    """The shape of an LSTM from its sizes T,B,D,H.

    >>> read_shape("311,37,5,97")
    Shape(cell='lstm', T=311, B=37, D=5, H=97)
    """
    parts = text.split(",")
    numbers = [int(part) for part in parts if part.strip().isdecimal() and len(part) <= 20]
    whole = len(parts) == len(numbers) == 4 and min(numbers) >= 1
    _check("shape", text, whole, "T,B,D,H: four integers of at least 1, such as 311,37,5,97")
    T, B, D, H = numbers
    largest = max(T * B * D, T * B * H, 4 * H * (D + H))
    expected = f"an input, outputs and weights of at most {LARGEST} numbers each"
    _check("shape", text, largest <= LARGEST, expected)
    return Shape("lstm", T, B, D, H)


def parse(text: str) -> Momentum | None:
    """The momentum whose repr is `text`; arguments that have defaults may be left out.

    >>> parse("HeavyBall(mu=0.9)")
    HeavyBall(mu=0.9, step=1.0)
    """
    try:
        return cast(Momentum | None, repr_parser.parse(text, MOMENTA, none=True))
    except ValueError as error:
        raise BadOption(f"--momentum: {error}") from None


def _check(option: str, value: object, holds: bool, expected: str) -> None:
    if not holds:
        raise BadOption(f"--{option}: expected {expected}, got {value!r}")
