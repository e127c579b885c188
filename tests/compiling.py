"""Compiling a kernel where there may be no GPU, for what ptxas says of it."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from momentumrnn.kernels import nvrtc

FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


class Resources(NamedTuple):
    """What a thread of a kernel takes, with the functions it calls: registers, and bytes of local memory."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int


def compile(source: str, arch: str, defines: Mapping[str, int]) -> str:
    """The log of NVRTC, or of nvcc where there is no NVRTC; LookupError where there is neither."""
    if not nvrtc.missing():
        return nvrtc.compile(source, arch, defines)[1]
    return with_nvcc(source, arch, defines)


def with_nvcc(source: str, arch: str, defines: Mapping[str, int]) -> str:
    """The log of nvcc; unlike NVRTC it wants __device__ written out."""
    if shutil.which("nvcc") is None:
        raise LookupError(f"{nvrtc.missing()}; nor is there an nvcc")
    options = [f"-D{name}={value:d}" for name, value in defines.items()]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cu")
        file.write_text(source)
        command = ["nvcc", "-cubin", f"-arch={arch}", "-std=c++17", "-Xptxas", "-v", *options, file.name]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"nvcc could not compile for {arch}:\n{done.stderr}")
    return done.stdout + done.stderr


def resources(log: str) -> dict[str, Resources]:
    """What each kernel takes, by name, from ptxas's report in the log of NVRTC or nvcc."""
    found = {}
    for part in log.split("Compiling entry function '")[1:]:
        registers = re.search(r"Used (\d+) registers", part)
        if registers:
            frames = (sum(map(int, column)) for column in zip(*FRAME.findall(part), strict=True))
            found[part.split("'")[0]] = Resources(int(registers[1]), *frames)
    return found
