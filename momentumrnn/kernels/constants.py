"""The constants that Python and the CUDA sources share, read from common.cu: each has one source."""

import re
from pathlib import Path

FOLDER = Path(__file__).parent


def _read(name: str) -> int:
    (value,) = re.findall(rf"constexpr \w+ {name} = (\d+)\.?f?;", (FOLDER / "common.cu").read_text("utf-8"))
    return int(value)


WARPS = _read("WARPS")
SPACING = _read("SPACING")
INPUTS = _read("INPUTS")
FILTER_THREADS = _read("FILTER_THREADS")
MOMENTUM_THREADS = _read("MOMENTUM_THREADS")
STEP_UNITS = _read("STEP_UNITS")
LOW = _read("LOW")

TILE = 8  # rows of a cluster, and hidden units of a warp: the columns of a product on tensor cores
MAX_CTAS = 8  # CTAs of a cluster, by CUDA's portable limit
MAX_HIDDEN = MAX_CTAS * TILE * WARPS
