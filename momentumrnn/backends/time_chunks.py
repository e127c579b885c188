"""Time in chunks: where the rows of each step are, and memory that all chunks share.

Rows are packed, see `packing`. Knows neither cells nor momenta.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..packing import all_equal, lengths


class Span(NamedTuple):
    """Where step t is among all packed rows.

    begin, end: its rows; previous: where the rows of step t - 1 begin, or -1 for the first step.
    """

    t: int
    begin: int
    end: int
    previous: int

    @property
    def rows(self) -> int:
        return self.end - self.begin


Chunk = list[Span]


def chunks(sizes: Sequence[int], width: int, device: torch.device) -> list[Chunk]:
    """All steps in order, in chunks of consecutive steps. The first chunk has the most rows.

    A chunk has up to 16 steps and about a million numbers, `width` in each row, to stay in a processor's
    cache. On a GPU chunks are longer, because each launch costs time.
    """
    most_steps, most_numbers = (16, 1 << 20) if device.type == "cpu" else (256, 1 << 25)
    steps = max(1, min(most_steps, most_numbers // max(1, sizes[0] * width)))
    spans, begin, previous = [], 0, -1
    for t, rows in enumerate(sizes):
        spans.append(Span(t, begin, begin + rows, previous))
        begin, previous = begin + rows, begin
    return [spans[i : i + steps] for i in range(0, len(spans), steps)]


def rows_of(chunk: Chunk) -> slice:
    """The rows of a chunk among all packed rows."""
    return slice(chunk[0].begin, chunk[-1].end)


def split_steps(rows: Tensor, chunk: Chunk) -> tuple[Tensor, ...]:
    """The rows of a chunk, one tensor for each step."""
    return torch.split_with_sizes(rows, [span.rows for span in chunk])


def forwards(chunk: Chunk, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """For each step of a chunk, its rows of each tensor."""
    return zip(*(split_steps(t, chunk) for t in tensors), strict=True)


def backwards(chunk: Chunk, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """As `forwards`, from the last step to the first."""
    return zip(*(reversed(split_steps(t, chunk)) for t in tensors), strict=True)


def first_rows(x: Tensor, rows: int) -> Tensor:
    """The first `rows` rows, or all if there are fewer."""
    return x if x.size(0) <= rows else x[:rows]


def last_rows(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """(N, H) -> (B, H), the row of each sequence at its last step."""
    if all_equal(sizes):
        return x[-sizes[0] :].clone()
    begins = torch.tensor([0, *sizes[:-1]]).cumsum(0).to(x.device)
    last_steps = lengths(sizes, x.device) - 1
    return x[begins[last_steps] + torch.arange(len(last_steps), device=x.device)]


class Track(NamedTuple):
    """One tensor of the state over time: before the first step (B, H), and after each step (N, H)."""

    initial: Tensor
    after: Tensor

    def before_step(self, span: Span) -> Tensor:
        """What the rows of a step start from."""
        if span.previous < 0:
            return self.initial
        return self.after[span.previous : span.previous + span.rows]

    def before_steps(self, chunk: Chunk) -> Tensor:
        """`before_step` for all steps of a chunk, one after another."""
        head, tail = chunk[0], chunk[-1]
        # Where no sequence ends in between, these rows lie one after another already.
        if head.previous >= 0 and tail.end - head.begin == tail.previous + tail.rows - head.previous:
            return self.after[head.previous : tail.previous + tail.rows]
        return torch.cat([self.before_step(span) for span in chunk])

    def after_steps(self, chunk: Chunk) -> Tensor:
        """After all steps of a chunk, one after another."""
        return self.after[rows_of(chunk)]


class Scratch:
    """Buffers by name. Each is allocated once, with `rows` rows like `like`, and reused by every chunk."""

    def __init__(self, rows: int, like: Tensor) -> None:
        self.rows, self.like = rows, like
        self.buffers: dict[str, Tensor] = {}

    def __call__(self, name: str, rows: int, *shape: int) -> Tensor:
        if name not in self.buffers:
            self.buffers[name] = self.like.new_empty(self.rows, *shape)
        return self.buffers[name][:rows]
