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
    i = prepared(inputs)
    size, run = sizes_of(i), Launcher(i)
    R, B, H = size.R, size.B, size.H
    saved = [run.words(length if keep else 0) for length in saved_sizes(i, size)]
    z, v, n = (i.x.new_empty(0 if t is None else (R, B, 4 * H)) for t in (i.z0, i.v0, i.n0))
    slices = slices_of_input(size.F, i.fine) if i.w_ih is not None else 0
    # A momentum in gate space reads W x + b_ih alone.
    of_input = i.for_projection() if i.in_gate_space else i
    drive = narrow = None
    if i.w_ih is None:
        drive = i.x.view(len(i.x), size.N, 4, H).mT.contiguous()
    elif slices:
        narrow = narrow_input(run, of_input, size, slices)
    else:
        drive = projected_input(run, of_input, size, wide_input(run, of_input, size))
    weights, low = _packed_weights(run, of_input, size, slices)
    y = i.x.new_empty(R, *inputs.x.shape[1:-1], H)  # no view, so that the user may write to it
    h, c = i.x.new_empty(R, B, H), i.x.new_empty(R, B, H)
    launch.load_all(i, size, slices)
    if i.x.is_cuda:
        side_stream(i.x.device.index)  # created now, because the backward pass may be captured
    _recur(run, i, size, slices, (weights, low, narrow, drive), (y, h, c, z, v, n), saved, keep)
    return y, h, c, z, v, n, *saved


def _packed_weights(run: Launcher, i: Inputs, size: Sizes, slices: int) -> tuple[Tensor, Tensor | None]:
    """U and the weights of a narrow input in the order of the kernel's registers; and U_low, if fine."""
    C, R = cluster_size(size.H), size.R
    own = {
        "own_hh": is_own(i.w_hh, R),
        "own_ih": is_own(i.w_ih, R),
        "own_b_ih": is_own(i.b_ih, R),
        "own_b_hh": is_own(i.b_hh, R),
    }
    replicas = R if any(own.values()) else 1
    threads = C * WARPS * (2 * C + slices) * 64
    packed = run.words(replicas * threads * 4)
    low = run.words(replicas * C * WARPS * 2 * C * 64 * 4) if i.fine else None
    run(
        "pack_forward", threads, replicas,
        w_hh=i.w_hh, w_ih=i.w_ih, b_ih=i.b_ih, b_hh=i.b_hh, packed=packed, low=low,
        ctas=C, input_slices=slices, H=size.H, D=size.D, filtered=i.decay is not None,
        plain=i.in_gate_space, **own,
    )  # fmt: skip
    return packed, low


def _recur(
    run: Launcher,
    i: Inputs,
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
    R, T, B, N, H, _, _, total = size
    weights, low, narrow, drive = operands
    y, h, c, z, v, n = outputs
    gates, cells, moments = saved
    bias = i.b_hh if i.in_gate_space or i.w_ih is None else None
    h0, c0 = with_equal_replicas(i.h0, i.c0)
    v0, n0 = i.v0, i.n0
    if v0 is not None and n0 is not None:
        v0, n0 = with_equal_replicas(v0, n0)
    C = cluster_size(H)
    defines = {"CTAS": C, "INPUT_SLICES": slices, "KEEP": keep}
    defines |= launch.forward_momentum_defines(i) | launch.lstm_defines(i)
    kernel = launch.kernel("lstm_forward", i.x.device.index, **defines)
    begins, lengths, starts = run.rows
    own_weight = any(is_own(t, R) for t in (i.w_hh, i.w_ih, i.b_ih, None if i.in_gate_space else i.b_hh))
    kernel(
        (C * -(-B // TILE), R, 1),
        32 * WARPS,
        {
            "weights": weights, "low": low, "narrow_input": narrow, "drive": drive, "bias": bias,
            "h0": h0, "c0": c0, "z0": i.z0, "j0": i.j0,
            "y": y, "last_h": h, "last_c": c, "last_z": z,
            "decay": i.decay, "mu": i.mu, "gain": i.gain, "v0": v0, "n0": n0,
            "last_v": None if i.v0 is None else v, "last_n": None if i.n0 is None else n,
            "saved_moments": moments, "saved_gates": gates, "saved_cells": cells,
            "begins": begins, "lengths": lengths, "starts": starts,
            "T": T, "B": B, "H": H, "N": N, "total": total, "every": i.every,
            "decay_columns": launch.decay_columns(i.decay),
            "own_weight": own_weight, "own_input": is_own(i.x if drive is None else drive, R),
            "own_bias": is_own(bias, R), "own_state": is_own(h0, R), "own_z": is_own(i.z0, R),
            "own_j": is_own(i.j0, R), "own_mu": is_own(i.mu, R), "own_gain": is_own(i.gain, R),
            "own_v": is_own(v0, R),
            **launch.momentum_numbers(i),
        },
        forward_low_bytes(C) if i.fine else 0,
    )  # fmt: skip
