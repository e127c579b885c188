"""Sequences of unequal length, in torch's packed layout. Knows neither cells nor momenta.

Rows `(N, F)` of all time steps lie one after another, `sizes[t]` of them in step t, longest sequence first.
A rectangular batch is the case in which all sizes are equal.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class EqualSizes(Sequence[int]):
    """The sizes of a rectangular batch. Torch.compile would compile a list of T sizes anew for each T."""

    def __init__(self, steps: int, rows: int) -> None:
        self.steps, self.rows = steps, rows

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self.rows] * len(range(*i.indices(self.steps)))
        if not -self.steps <= i < self.steps:
            raise IndexError(i)
        return self.rows


def packed_rows(x: Tensor) -> Tensor:
    """(T, B, F) -> (N, F); what is packed stays."""
    return x.flatten(0, 1) if x.dim() == 3 else x


def all_equal(sizes: Sequence[int]) -> bool:
    """Whether all sequences have one length: sizes never grow from step to step."""
    return sizes[0] == sizes[-1]


def lengths(sizes: Sequence[int], device: torch.device) -> Tensor:
    """The number of steps of each sequence, (B,)."""
    if all_equal(sizes):
        return torch.full((sizes[0],), len(sizes), device=device)
    rows = torch.tensor(sizes, device=device)
    return (rows[:, None] > torch.arange(sizes[0], device=device)).sum(0)


def _step_and_sequence(sizes: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Step and sequence of each packed row, (N,) each, and where the rows of each step begin, (T,)."""
    rows = torch.tensor(sizes, device=device)
    begins = rows.cumsum(0) - rows
    t = torch.arange(len(sizes), device=device).repeat_interleave(rows, output_size=sum(sizes))
    return t, torch.arange(len(t), device=device) - begins[t], begins


def pad(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """(N, F) -> (T, B, F), with zeros after the end of each sequence."""
    if all_equal(sizes):
        return x.view(len(sizes), sizes[0], x.shape[-1])
    t, b, _ = _step_and_sequence(sizes, x.device)
    zeros = x.new_zeros(len(sizes) * sizes[0], x.shape[-1])
    return zeros.index_copy(0, t * sizes[0] + b, x).view(len(sizes), sizes[0], x.shape[-1])


def pack(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """(T, B, F) -> (N, F), the inverse of `pad`."""
    if all_equal(sizes):
        return x.flatten(0, 1)
    t, b, _ = _step_and_sequence(sizes, x.device)
    return x.flatten(0, 1).index_select(0, t * sizes[0] + b)


def at_last_steps(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """(T, B, F) -> (B, F), each sequence at its own last step."""
    return x[lengths(sizes, x.device) - 1, torch.arange(sizes[0], device=x.device)]


def reverse(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """(N, F) -> (N, F), each sequence from its own end to its start. Its own inverse."""
    if all_equal(sizes):
        return pad(x, sizes).flip(0).flatten(0, 1)
    t, b, begins = _step_and_sequence(sizes, x.device)
    return x.index_select(0, begins[lengths(sizes, x.device)[b] - 1 - t] + b)
