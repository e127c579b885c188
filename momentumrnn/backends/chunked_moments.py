"""The drive of Adam and RMSProp over one chunk of time, forward and backward, without autograd.

    v_t = decay_t v_{t-1} + step a_t,     n_t = beta n_{t-1} + (1 - beta) a_t²,     drive_t = v_t r_t

with r = 1 / sqrt(n + eps²), or 1 / (sqrt(n) + eps). `rows` are all rows of one chunk. Knows no cell.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..precision import cast_in_range
from .time_chunks import Chunk, Scratch, first_rows, split_steps


class Rates(NamedTuple):
    """The numbers of a momentum with a second moment.

    decays: one tensor for each step, (B or 1, G or 1), without a gradient.
    """

    step: float
    beta: float
    eps: float
    eps_in_sqrt: bool
    decays: Sequence[Tensor]

    def factors(self, chunk: Chunk) -> tuple[list[Tensor], list[Tensor]]:
        """The factors on v and those on n, one for each step of a chunk."""
        decays = [self.decays[span.t] for span in chunk]
        return decays, [torch.full_like(decays[0][:1], self.beta)] * len(chunk)


def drive_(rates: Rates, chunk: Chunk, inputs: Tensor, running: Sequence[Tensor], scratch: Scratch) -> None:
    """Replace the gate inputs of a chunk, (rows, G), by its drive.

    running: v and n, (B, G) each: before the chunk on entry, after each row's last step in it on return.
    """
    a = inputs.to(running[0].dtype)
    v, n, r = _moments(rates, chunk, a, running, a, scratch)
    for after, moment in zip((v, n), running, strict=True):
        _carry(chunk, after, moment)
    drive = cast_in_range(v.mul_(r), inputs.dtype)
    if drive is not inputs:
        inputs.copy_(drive)


def drive_backward(
    rates: Rates,
    chunk: Chunk,
    inputs: Tensor,
    before: Sequence[Tensor],
    grad: Tensor,
    carried: Sequence[Tensor],
    scratch: Scratch,
) -> Tensor:
    """The gradient of a chunk's gate inputs, from that of its drive, grad, (rows, G).

    before: v and n before the chunk. carried: the gradients of v and n, (B, G) each: after the chunk's last
    step on entry, before its first on return.
    """
    a = inputs.to(before[0].dtype)
    v, n, r = _moments(rates, chunk, a, before, scratch("v", *a.shape), scratch)
    drive, d_v = v.mul_(r), torch.mul(grad, r, out=scratch("d_v", *a.shape))
    # `cast_in_range` clamped a drive that was too large for the layer's dtype, so its gradient is 0.
    if grad.dtype != a.dtype:
        d_v.mul_(drive.abs() <= torch.finfo(grad.dtype).max)
    # The derivative of v r by n is -v r³ / 2, or -v r² / (2 sqrt(n)) where eps is outside the root.
    d_n = drive.mul_(d_v).mul_(-0.5).mul_(r if rates.eps_in_sqrt else n.rsqrt_())
    for d_moment, d_later, factors in zip((d_v, d_n), carried, rates.factors(chunk), strict=True):
        _adjoint_scan_(chunk, d_moment, d_later, factors)
    return d_v.mul_(rates.step).addcmul_(a, d_n, value=2 * (1 - rates.beta)).to(grad.dtype)


def _moments(
    rates: Rates, chunk: Chunk, a: Tensor, before: Sequence[Tensor], v: Tensor, scratch: Scratch
) -> tuple[Tensor, Tensor, Tensor]:
    """v, n and r after each step of a chunk. before: v and n before it; v: where to write it, may be a."""
    n = torch.mul(a, a, out=scratch("n", *a.shape)).mul_(1 - rates.beta)
    torch.mul(a, rates.step, out=v)
    for moment, start, factors in zip((v, n), before, rates.factors(chunk), strict=True):
        _scan_(chunk, moment, start, factors)
    r = scratch("r", *a.shape)
    if rates.eps_in_sqrt:
        torch.add(n, rates.eps**2, out=r).rsqrt_()
    else:
        torch.sqrt(n, out=r).add_(rates.eps).reciprocal_()
    return v, n, r


def _scan_(chunk: Chunk, x: Tensor, before: Tensor, factors: Sequence[Tensor]) -> None:
    """`x_t += factor_t x_{t-1}` over a chunk, in place; before: x before the first step, (B, G)."""
    for now, factor in zip(split_steps(x, chunk), factors, strict=True):
        before = now.addcmul_(first_rows(factor, now.size(0)), first_rows(before, now.size(0)))


def _adjoint_scan_(chunk: Chunk, grad: Tensor, carried: Tensor, factors: Sequence[Tensor]) -> None:
    """`grad_t += factor_{t+1} grad_{t+1}` over a chunk, in place; carried: as in `drive_backward`."""
    later, later_factor = grad[:0], factors[-1]
    for now, factor in zip(reversed(split_steps(grad, chunk)), reversed(factors), strict=True):
        going_on, rows = later.size(0), now.size(0)
        # These rows have no later step in this chunk.
        if going_on < rows:
            now[going_on:].add_(carried[going_on:rows])
        if going_on > 0:
            first_rows(now, going_on).addcmul_(first_rows(later_factor, going_on), later)
        later, later_factor = now, factor
    torch.mul(later, first_rows(later_factor, rows), out=carried[:rows])


def _carry(chunk: Chunk, after: Tensor, running: Tensor) -> None:
    """Set each row of `running`, (B, G), to its last one in a chunk. after: each step's, (rows, G)."""
    start, done = chunk[0].begin, 0
    for span in reversed(chunk):
        if span.rows > done:
            running[done : span.rows] = after[span.begin - start + done : span.end - start]
            done = span.rows
