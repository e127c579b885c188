"""The sizes of one call of the operator, and of the buffers between its kernels."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .constants import COLUMNS, FINE_COLUMNS, FINE_ONES, ONES, SPACING, TILE, WARPS
from .inputs import Inputs

MAX_SLICES = 3  # slices of 16 columns that a narrow input adds to the product with U, at most
# Features up to which the backward pass of a momentum in gate space multiplies by W itself.
MAX_FEATURES_OF_MOMENTUM_BACKWARD = 15


class Sizes(NamedTuple):
    """Sizes of one call.

    R replicas, T time steps, B sequences, N rows in total, H hidden units, D input features, F filtered
    features: D, and one more where a filtered 1 carries b_ih. tile_steps: time steps of all tiles of 8 rows.
    """

    R: int
    T: int
    B: int
    N: int
    H: int
    D: int
    F: int
    tile_steps: int


class RowTables(NamedTuple):
    """Where the rows of packed sequences are, as the kernels read it; all None for a rectangular batch.

    begins: (T + 1), the first row of each step; lengths: (B), the steps of each sequence; starts: (tiles),
    the steps of all tiles before a tile.
    """

    begins: Tensor | None = None
    lengths: Tensor | None = None
    starts: Tensor | None = None


def sizes_of(inputs: Inputs) -> Sizes:
    if inputs.sizes:
        T, B, N = len(inputs.sizes), inputs.sizes[0], sum(inputs.sizes)
        tile_steps = sum(-(-rows // TILE) for rows in inputs.sizes)
    else:
        B = inputs.h0.shape[1]
        # x is (R, T, B, D) before `prepared`, and (R, N, D) after it.
        T = inputs.x.shape[1] if inputs.x.dim() == 4 else inputs.x.shape[1] // B
        N, tile_steps = T * B, T * -(-B // TILE)
    D = 0 if inputs.w_ih is None else inputs.x.shape[-1]
    filtered = inputs.decay is not None and inputs.b_ih is not None and not inputs.in_gate_space
    return Sizes(inputs.replicas, T, B, N, inputs.w_hh.shape[2], D, D + int(filtered), tile_steps)


def cluster_size(hidden_size: int) -> int:
    """CTAs of a cluster."""
    return -(-hidden_size // (TILE * WARPS))


def forward_low_bytes(ctas: int) -> int:
    """LOW_BYTES of lstm_forward.cu, compiled with FINE = 1: shared memory for U_low."""
    return 2048 * WARPS * ctas


def backward_low_bytes(ctas: int) -> int:
    """LOW_BYTES of lstm_backward.cu, compiled with FINE = 1: shared memory for Uᵀ_low."""
    return 4096 * WARPS * -(-ctas // 2)


def saved_sizes(inputs: Inputs, size: Sizes) -> tuple[int, int, int]:
    """Lengths, in 32-bit words, of what a forward pass saves for the backward: gates, cells and moments."""
    threads = size.R * cluster_size(size.H) * WARPS * 32 * (2 if inputs.fine else 1)
    moments = size.R * -(-size.T // SPACING) * size.B * 4 * size.H * (1 if inputs.beta is None else 2)
    tiles = -(-size.B // TILE)
    cells = (size.tile_steps + tiles) * threads
    return 4 * size.tile_steps * threads, cells, moments if inputs.in_gate_space else 0


def slices_of_input(features: int, fine: bool = False) -> int:
    """Slices of 16 columns that the features and the constant 1 need; 0 if these are more than MAX_SLICES."""
    slices = -(-input_columns(features, fine) // 16)
    return slices if slices <= MAX_SLICES else 0


def input_columns(features: int, fine: bool) -> int:
    """Columns of the features and of the constant 1, see `Columns` in pack.cu."""
    return FINE_COLUMNS * features + FINE_ONES if fine else COLUMNS * features + ONES


def multiple_of_8(n: int) -> int:
    """The smallest multiple of 8 that is at least n."""
    return -(-n // 8) * 8


def row_tables(sizes: Sequence[int], device: torch.device) -> RowTables:
    """The tables of packed rows; sizes: how many rows each step has, see `Inputs`."""
    if not sizes:
        return RowTables()
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "packed sequences can't be captured in a CUDA graph: their lengths are read on the CPU"
        )
    falling = np.asarray(sizes)
    begins = np.concatenate([[0], falling.cumsum()])
    lengths = np.searchsorted(-falling, -np.arange(falling[0]), side="left")
    lengths_of_tiles = lengths[::TILE]
    starts = lengths_of_tiles.cumsum() - lengths_of_tiles
    table = torch.from_numpy(np.concatenate([begins, lengths, starts]).astype(np.int32))
    if device.type == "cuda":
        table = table.pin_memory().to(device, non_blocking=True)  # the CPU should not wait for the GPU
    return RowTables(*torch.split_with_sizes(table, [len(begins), len(lengths), len(starts)]))
