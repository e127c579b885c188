"""The bits of outputs and gradients are those that were recorded; see golden.py."""

import json
import os
import subprocess
import sys
from pathlib import Path

import golden
import pytest

HERE = Path(__file__).parent

RECORDS = sorted(path.name for path in (HERE / "golden").glob("*.json"))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name.startswith("cpu") else pytest.mark.gpu) for name in RECORDS]
)
def test_bits_are_as_recorded(name):
    """Where the processor and torch are those of the record; bits may differ anywhere else."""
    path = HERE / "golden" / name
    reason = golden.elsewhere(json.loads(path.read_text()))
    if reason:
        pytest.skip(reason)
    # In a process of its own, because the tests change settings of torch that decide on bits.
    command = [
        sys.executable,
        str(HERE / "golden.py"),
        "--check",
        str(path),
        "--workers",
        str(min(8, os.cpu_count() or 1)),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
