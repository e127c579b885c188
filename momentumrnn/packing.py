"""Sequences of unequal length, in torch's packed layout. Knows neither cells nor momenta.

Rows `(N, F)` of all time steps lie one after another, `sizes[t]` of them in step t, longest sequence first.
A rectangular batch is the case in which all sizes are equal.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Even(Sequence[int]):
    """So many steps of the same rows. To torch.compile a list of T sizes would be another for each T."""

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


def rectangular(sizes: Sequence[int]) -> bool:
    return sizes[0] == sizes[-1]


def lengths(sizes: Sequence[int], device: torch.device) -> Tensor:
    """Steps in each row's sequence, (B,)."""
    if rectangular(sizes):
        return torch.full((sizes[0],), len(sizes), device=device)
    alive = torch.tensor(sizes, device=device)
    return (alive[:, None] > torch.arange(sizes[0], device=device)).sum(0)


def _places(sizes: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Of each packed row its time step and its place in the batch (N,), and where each step begins (T,)."""
    alive = torch.tensor(sizes, device=device)
    begins = alive.cumsum(0) - alive
    t = torch.arange(len(sizes), device=device).repeat_interleave(alive, output_size=sum(sizes))
    return t, torch.arange(len(t), device=device) - begins[t], begins


def pad(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """(N, F) -> (T, B, F), zeros after a sequence's end."""
    if rectangular(sizes):
        return x.view(len(sizes), sizes[0], x.shape[-1])
    t, b, _ = _places(sizes, x.device)
    zeros = x.new_zeros(len(sizes) * sizes[0], x.shape[-1])
    return zeros.index_copy(0, t * sizes[0] + b, x).view(len(sizes), sizes[0], x.shape[-1])


def pack(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """(T, B, F) -> (N, F), the inverse of `pad`."""
    if rectangular(sizes):
        return x.flatten(0, 1)
    t, b, _ = _places(sizes, x.device)
    return x.flatten(0, 1).index_select(0, t * sizes[0] + b)


def at_ends(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """(T, B, F) -> (B, F), each row at its own sequence's last step."""
    return x[lengths(sizes, x.device) - 1, torch.arange(sizes[0], device=x.device)]


def reverse(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Each sequence read from its own end to its start; its own inverse."""
    if rectangular(sizes):
        return pad(x, sizes).flip(0).flatten(0, 1)
    t, b, begins = _places(sizes, x.device)
    return x.index_select(0, begins[lengths(sizes, x.device)[b] - 1 - t] + b)
