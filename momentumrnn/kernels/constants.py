"""The constants that Python and the CUDA sources share, read from common.cu: each has one source."""

import re
from pathlib import Path

FOLDER = Path(__file__).parent


def _read(name: str) -> int:
    pattern = rf"constexpr \w+ {name} = (0x[\da-f]+|\d+)\.?f?;"
    (value,) = re.findall(pattern, (FOLDER / "common.cu").read_text("utf-8"))
    return int(value, 0)


WARPS = _read("WARPS")
TILE = _read("TILE")
SPACING = _read("SPACING")
INPUT_BYTES = _read("INPUT_BYTES")
FILTER_THREADS = _read("FILTER_THREADS")
MOMENTUM_THREADS = _read("MOMENTUM_THREADS")
STEP_UNITS = _read("STEP_UNITS")
LOW_SCALE = _read("LOW_SCALE")
COLUMNS = _read("COLUMNS")
FINE_COLUMNS = _read("FINE_COLUMNS")
ONES = _read("ONES")
FINE_ONES = _read("FINE_ONES")
PARTS_OF_X = _read("PARTS_OF_X")
FINE_PARTS_OF_X = _read("FINE_PARTS_OF_X")
PARTS_OF_W = _read("PARTS_OF_W")
FINE_PARTS_OF_W = _read("FINE_PARTS_OF_W")

MAX_CTAS = 8  # CTAs of a cluster, by CUDA's portable limit
MAX_HIDDEN = MAX_CTAS * TILE * WARPS
MAX_GRID = 65535  # blocks in y and z, by CUDA's limit
