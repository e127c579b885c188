"""The inputs of a call as the kernels want them, and products of 16-bit operands with sums in float32."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from .constants import LOW_SCALE, MAX_GRID
from .inputs import Inputs
from .launch import Launcher, is_own
from .sizes import Sizes, input_columns, multiple_of_8

# Where operands are fine, one product adds up this many rows at most: tensor cores round sums towards 0, and
# longer sums would lose too much.
ROWS_OF_PRODUCT = 1024
MAX_REPLICAS = MAX_GRID


def prepared(inputs: Inputs) -> Inputs:
    """The inputs, checked and dense, with x as (R, N, D)."""
    tensors, device = (*inputs.tensors, inputs.j0, inputs.decay), inputs.x.device
    for t in tensors:
        if t is not None and (t.device != device or (t.is_cuda and t.dtype != torch.float32)):
            raise TypeError(f"expected float32 on {device}, got {t.dtype} on {t.device}")
    if inputs.replicas > MAX_REPLICAS:
        raise ValueError(f"expected at most {MAX_REPLICAS} replicas, got {inputs.replicas}")
    all_dense = Inputs(*map(dense, tensors), *inputs[len(tensors) :])  # type: ignore[arg-type]
    return all_dense if inputs.sizes else all_dense._replace(x=all_dense.x.flatten(1, 2))


def dense(t: Tensor | None) -> Tensor | None:
    """Contiguous, and at a multiple of 16 bytes: kernels read up to four numbers at a time."""
    if t is None:
        return None
    t = t.contiguous()
    return t if t.data_ptr() % 16 == 0 else t.clone()


def with_equal_replicas(s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors of a state, expanded to the same number of replicas."""
    if s.shape[0] == t.shape[0]:
        return s, t
    R = max(len(s), len(t))
    return s.expand(R, -1, -1).contiguous(), t.expand(R, -1, -1).contiguous()


# The input.


def filtered_input(launcher: Launcher, inputs: Inputs, size: Sizes) -> tuple[Tensor, Tensor]:
    """The momentum's drive of x, and the largest entry of each feature."""
    v = inputs.x if inputs.decay is None else inputs.x.new_empty(len(inputs.x), size.N, size.F)
    largest = torch.zeros(len(inputs.x), size.F, dtype=torch.int32, device=inputs.x.device)
    launcher.filter(
        inputs.x, inputs.decay, size, inputs.step, v=None if v is inputs.x else v, largest=largest
    )
    return v, largest


def narrow_input(launcher: Launcher, inputs: Inputs, size: Sizes, slices: int) -> Tensor:
    """The drive of a narrow input as extra columns of the product with U."""
    v = inputs.x
    if inputs.decay is not None:
        v = inputs.x.new_empty(len(inputs.x), size.N, size.F)
        launcher.filter(inputs.x, inputs.decay, size, inputs.step, v=v)
    packed = launcher.words(len(inputs.x) * size.tile_steps * slices * 64)
    threads = size.T * multiple_of_8(size.B) * slices
    begins, lengths, starts = launcher.rows
    launcher(
        "pack_input", threads, len(inputs.x),
        x=v, packed=packed, begins=begins, lengths=lengths, starts=starts,
        T=size.T, B=size.B, N=size.N, tile_steps=size.tile_steps, F=size.F,
        input_slices=slices, fine=inputs.fine,
    )  # fmt: skip
    return packed


def wide_input(launcher: Launcher, inputs: Inputs, size: Sizes) -> Tensor:
    """The drive of a wide input in bfloat16 columns, (R or 1, N, width)."""
    width = multiple_of_8(input_columns(size.F, inputs.fine))
    packed_input = torch.empty(len(inputs.x), size.N, width, dtype=torch.bfloat16, device=inputs.x.device)
    launcher.filter(inputs.x, inputs.decay, size, inputs.step, packed=packed_input, width=width)
    return packed_input


def projected_input(launcher: Launcher, inputs: Inputs, size: Sizes, packed_input: Tensor) -> Tensor:
    """The drive of a wide input times W, with all biases; packed_input: by `wide_input`.

    Returns (R or 1, N, 4 H interleaved).
    """
    tensors, filtered = (inputs.w_ih, inputs.b_ih, inputs.b_hh), inputs.decay is not None
    weights = input_weights(launcher, *tensors, size, filtered=filtered, fine=inputs.fine).mT
    R = max(len(packed_input), len(weights))
    return product(packed_input.expand(R, -1, -1), weights.expand(R, -1, -1))


def input_weights(
    launcher: Launcher,
    w_ih: Tensor | None,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    size: Sizes,
    *,
    filtered: bool,
    fine: bool,
) -> Tensor:
    """W and biases in bfloat16 columns, (R or 1, 4 H interleaved, width)."""
    width = multiple_of_8(input_columns(size.F, fine))
    own = {"own_ih": is_own(w_ih, size.R), "own_b_ih": is_own(b_ih, size.R), "own_b_hh": is_own(b_hh, size.R)}
    replicas = size.R if any(own.values()) else 1
    packed = torch.empty(replicas, 4 * size.H, width, dtype=torch.bfloat16, device=launcher.device)
    launcher(
        "pack_input_weights", 4 * size.H * width // 2, replicas,
        w_ih=w_ih, b_ih=b_ih, b_hh=b_hh, packed=packed,
        H=size.H, D=size.D, filtered=filtered, width=width, fine=fine, **own,
    )  # fmt: skip
    return packed


def weights_for_dx(launcher: Launcher, w_ih: Tensor, size: Sizes, fine: bool) -> tuple[Tensor, Tensor]:
    """W in halves for dx = dz W, divided by a power of two, and that power, (R or 1, 1)."""
    columns = multiple_of_8(size.D)
    shape = len(w_ih), 4 * size.H, columns * (1 + fine)
    packed = torch.empty(shape, dtype=torch.float16, device=w_ih.device)
    largest = torch.linalg.vector_norm(w_ih, float("inf"), (1, 2))
    powers = torch.empty_like(largest)
    launcher(
        "pack_w_ih", 4 * size.H * columns, len(w_ih),
        w_ih=w_ih, largest=largest, packed=packed, powers=powers,
        H=size.H, D=size.D, columns=columns, fine=fine,
    )  # fmt: skip
    return packed.expand(size.R, -1, -1), powers.view(-1, 1)


# Products.


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b in float32, of 16-bit operands."""
    if a.size(0) == 1:
        return torch.mm(a[0], b[0], out_dtype=torch.float32).unsqueeze(0)
    return torch.bmm(a, b, out_dtype=torch.float32)


def product_over_rows(dz: Tensor, dz_low: Tensor | None, right: Tensor, rows: int, columns: int) -> Tensor:
    """dzᵀ right in float32; with low parts, which `right` has beside the high ones, from three products."""
    if dz_low is None:
        return product(dz[:, :rows].mT, right[:, :rows])
    both, other = product_in_groups(dz, right), product_in_groups(dz_low, right[..., :columns])
    return torch.add(both[..., :columns], both[..., columns:] + other, alpha=1 / LOW_SCALE)


def product_over_gates(dz: Tensor, dz_low: Tensor | None, weights: Tensor, features: int) -> Tensor:
    """dz W in float32; with low parts, which `weights` has beside the high ones, from three products."""
    if dz_low is None:
        return product(dz, weights[..., :features])
    half = weights.shape[2] // 2
    both, other = product(dz, weights), product(dz_low, weights[..., :features])
    return torch.add(both[..., :features], both[..., half : half + features] + other, alpha=1 / LOW_SCALE)


def product_in_groups(a: Tensor, b: Tensor) -> Tensor:
    """aᵀ b over all rows, (R, room, ...), by products of ROWS_OF_PRODUCT rows, which are added in float32."""
    groups = a.shape[1] // ROWS_OF_PRODUCT
    if groups == 1:
        return product(a.mT, b)
    a, b = (t.reshape(-1, ROWS_OF_PRODUCT, t.shape[2]) for t in (a, b))
    parts = product(a.mT, b)
    return parts.view(-1, groups, *parts.shape[1:]).sum(1)


def sum_of_parts(products: Sequence[Tensor], stride: int, columns: Sequence[int], features: int) -> Tensor:
    """The sum of those products of parts that count.

    products: of each part of the left operand; stride: columns of a feature; columns: which of them hold the
    parts of the right operand, the largest first. Products of small parts by small parts are left out.
    """
    terms = [
        of_part[..., column::stride][..., :features]
        for part, of_part in enumerate(products)
        for column in columns[: len(columns) - part]
    ]
    return functools.reduce(torch.add, terms[::-1])
