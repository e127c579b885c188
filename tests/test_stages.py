"""The clocks that benchmarks/kernels.py puts into the two recurrences."""

import importlib.util
import re
from pathlib import Path

import compiling
import pytest

from momentumrnn.kernels import launch

SPEC = importlib.util.spec_from_file_location(
    "kernels_benchmark", Path(__file__).parent.parent / "benchmarks/kernels.py"
)
benchmark = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(benchmark)

PLAIN = {"CTAS": 4, "FINE": 0, "PACKED": 0, "EXTRAPOLATED": 0}
FORWARD = PLAIN | {"INPUT_SLICES": 1, "KEEP": 1}
EVERY = [
    ("lstm_forward", FORWARD | {"MOMENTUM_FORM": 0, "TABLE": 0}),
    ("lstm_forward", FORWARD | {"MOMENTUM_FORM": 2, "TABLE": 1}),
    ("lstm_backward", PLAIN),
]


@pytest.mark.parametrize("name", benchmark.PASSES)
def test_each_stage_begins_once(name):
    """And ends where the next one begins: no number is left out."""
    source = launch.source(name)
    assert sorted(int(number) for number, _ in benchmark.STAGE.findall(source)) == list(range(7))
    ends = re.findall(r"stage_after\((\d)\);", benchmark.with_clocks(source))
    assert sorted(map(int, ends)) == list(range(7))


@pytest.mark.parametrize(("name", "defines"), EVERY)
def test_kernels_with_clocks_compile(name, defines):
    try:
        compiling.compile(benchmark.with_clocks(launch.source(name)), "sm_90", defines)
    except LookupError as error:
        pytest.skip(str(error))
