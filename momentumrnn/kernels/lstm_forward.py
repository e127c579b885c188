"""`momentumrnn::lstm` on a GPU: prepare the input, pack the weights, run all time steps in one launch.

docs/kernels.md tells how the kernels work.
"""

from torch import Tensor

from . import launch
from .constants import TILE, WARPS
from .inputs import Inputs
from .launch import Launcher, is_own
from .operands import narrow_input, prepared, projected_input, wide_input, with_equal_replicas
from .overlap import side_stream
from .sizes import Sizes, cluster_size, forward_low_bytes, saved_sizes, sizes_of, slices_of_input


def forward(inputs: Inputs, keep: bool) -> tuple[Tensor, ...]:
    """See `op`; all in float32. keep: whether a backward pass will follow."""
    shape_of_x, inputs = inputs.x.shape, prepared(inputs)
    size, launcher = sizes_of(inputs), Launcher(inputs)
    R, B, H = size.R, size.B, size.H
    saved = [launcher.words(length if keep else 0) for length in saved_sizes(inputs, size)]
    firsts = inputs.z0, inputs.v0, inputs.n0
    z, v, n = (inputs.x.new_empty(0 if t is None else (R, B, 4 * H)) for t in firsts)
    slices = slices_of_input(size.F, inputs.fine) if inputs.w_ih is not None else 0
    # A momentum in gate space reads W x + b_ih alone.
    projection_inputs = inputs.for_projection() if inputs.in_gate_space else inputs
    drive = narrow = None
    if inputs.w_ih is None:
        drive = inputs.x.view(len(inputs.x), size.N, 4, H).mT.contiguous()
    elif slices:
        narrow = narrow_input(launcher, projection_inputs, size, slices)
    else:
        drive = projected_input(
            launcher, projection_inputs, size, wide_input(launcher, projection_inputs, size)
        )
    weights, low = _packed_weights(launcher, projection_inputs, size, slices)
    y = inputs.x.new_empty(R, *shape_of_x[1:-1], H)  # no view, so that the user may write to it
    h, c = inputs.x.new_empty(R, B, H), inputs.x.new_empty(R, B, H)
    launch.load_all(inputs, size, slices)
    if inputs.x.is_cuda:
        side_stream(inputs.x.device.index)  # created now, because the backward pass may be captured
    _recur(launcher, inputs, size, slices, (weights, low, narrow, drive), (y, h, c, z, v, n), saved, keep)
    return y, h, c, z, v, n, *saved


def _packed_weights(
    launcher: Launcher, inputs: Inputs, size: Sizes, slices: int
) -> tuple[Tensor, Tensor | None]:
    """U and the weights of a narrow input in the order of the kernel's registers; and U_low, if fine."""
    C, R = cluster_size(size.H), size.R
    own = {
        "own_hh": is_own(inputs.w_hh, R),
        "own_ih": is_own(inputs.w_ih, R),
        "own_b_ih": is_own(inputs.b_ih, R),
        "own_b_hh": is_own(inputs.b_hh, R),
    }
    replicas = R if any(own.values()) else 1
    threads = C * WARPS * (2 * C + slices) * 64
    packed = launcher.words(replicas * threads * 4)
    low = launcher.words(replicas * C * WARPS * 2 * C * 64 * 4) if inputs.fine else None
    launcher(
        "pack_forward", threads, replicas,
        w_hh=inputs.w_hh, w_ih=inputs.w_ih, b_ih=inputs.b_ih, b_hh=inputs.b_hh, packed=packed, low=low,
        ctas=C, input_slices=slices, H=size.H, D=size.D, filtered=inputs.decay is not None,
        plain=inputs.in_gate_space, **own,
    )  # fmt: skip
    return packed, low


def _recur(
    launcher: Launcher,
    inputs: Inputs,
    size: Sizes,
    slices: int,
    operands: tuple[Tensor, Tensor | None, Tensor | None, Tensor | None],
    outputs: tuple[Tensor, ...],
    saved: list[Tensor],
    keep: bool,
) -> None:
    """Run all time steps.

    operands: packed weights, their low parts, narrow input, drive; those not used are None.
    """
    R, T, B, N, H, _, _, tile_steps = size
    weights, low, narrow, drive = operands
    y, h, c, z, v, n = outputs
    gates, cells, moments = saved
    bias = inputs.b_hh if inputs.in_gate_space or inputs.w_ih is None else None
    h0, c0 = with_equal_replicas(inputs.h0, inputs.c0)
    v0, n0 = inputs.v0, inputs.n0
    if v0 is not None and n0 is not None:
        v0, n0 = with_equal_replicas(v0, n0)
    C = cluster_size(H)
    defines = {"CTAS": C, "INPUT_SLICES": slices, "KEEP": keep}
    defines |= launch.forward_momentum_defines(inputs) | launch.lstm_defines(inputs)
    kernel = launch.kernel("lstm_forward", inputs.x.device.index, **defines)
    begins, lengths, starts = launcher.rows
    packed_together = inputs.w_hh, inputs.w_ih, inputs.b_ih, None if inputs.in_gate_space else inputs.b_hh
    own_weight = any(is_own(t, R) for t in packed_together)
    kernel(
        (C * -(-B // TILE), R, 1),
        32 * WARPS,
        {
            "weights": weights, "low": low, "narrow_input": narrow, "drive": drive, "bias": bias,
            "h0": h0, "c0": c0, "z0": inputs.z0, "j0": inputs.j0,
            "y": y, "last_h": h, "last_c": c, "last_z": z,
            "decay": inputs.decay, "mu": inputs.mu, "gain": inputs.gain, "v0": v0, "n0": n0,
            "last_v": None if inputs.v0 is None else v, "last_n": None if inputs.n0 is None else n,
            "saved_moments": moments, "saved_gates": gates, "saved_cells": cells,
            "begins": begins, "lengths": lengths, "starts": starts,
            "T": T, "B": B, "H": H, "N": N, "tile_steps": tile_steps, "every": inputs.every,
            "decay_columns": launch.decay_columns(inputs.decay),
            "own_weight": own_weight, "own_input": is_own(inputs.x if drive is None else drive, R),
            "own_bias": is_own(bias, R), "own_state": is_own(h0, R), "own_z": is_own(inputs.z0, R),
            "own_j": is_own(inputs.j0, R), "own_mu": is_own(inputs.mu, R), "own_gain": is_own(inputs.gain, R),
            "own_v": is_own(v0, R),
            **launch.momentum_numbers(inputs),
        },
        forward_low_bytes(C) if inputs.fine else 0,
    )  # fmt: skip
