"""The state that a layer carries from one piece of a sequence to the next."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from .caller_warning import warn_caller
from .precision import moments_dtype
from .torch_internals import register_tuple
from .value_checks import check_integer, describe

Rows = Tensor | np.ndarray | Sequence[int] | slice
MOMENTS = 3  # v, n and k


class HasState(Protocol):
    """A layer or step cell of ours."""

    def initial_state(self, batch_size: int | None = None) -> "State": ...


class State(tuple[Tensor, ...]):
    """Everything that a layer or step cell carries from one piece of a sequence to the next.

    A flat tuple: `(h, c, v, n, k)` for an LSTM, `(h, v, n, k)` for a GRU or RNN. In general it has the
    tensors of the cell's state, then v, n and k. For L layers, B sequences, H hidden units and G gate rows
    (4H for an LSTM, 3H for a GRU, H for an RNN):

        h, c: (L, B, H) each. With proj_size=P, h is (L, B, P). Other cells may have other widths.
        v: (L, B, G), the first moment, or (L, B, 0) without momentum.
        n: (L, B, G), the second moment of Adam and RMSProp, or (L, B, 0) for other momenta.
        k: (L, B), int64, the number of steps that each sequence has taken.

    So every entry has the batch on the same axis. The state of an unbatched input has no axis B, that of a
    step cell has no axis L. v and n are in float32 if the layer is in 16 bits, else in its dtype. Methods
    that act on rows take the last axis of k for the batch. So the State of a layer's unbatched input needs
    an axis B first: `State(t.unsqueeze(1) for t in state)`.

    A layer that gets a State returns a State. A layer with `carry_momentum=True` always returns one. Pieces
    of a sequence then give the outputs, final state and gradients of the whole. In place of a State a layer
    takes any tuple or list of these tensors. So code that was written for `(h, c)` can treat each entry as
    it treats h, and pass on what it gets:

    >>> from momentumrnn import LSTM, HeavyBall
    >>> lstm, x = LSTM(3, 5, momentum=HeavyBall(mu=0.9), carry_momentum=True), torch.randn(12, 2, 3)
    >>> state, outputs = None, []
    >>> for piece in x.split(4):
    ...     out, state = lstm(piece, state)
    ...     state = tuple(t.detach() for t in state)
    ...     outputs.append(out)
    >>> torch.allclose(torch.cat(outputs), lstm(x)[0], atol=1e-6)
    True

    A bidirectional layer has no State, because its reverse direction begins at the end of the sequence.

    Args:
        tensors: the entries, one by one, or one iterable of them. `layer.initial_state(batch_size)` makes the
            first State, `State.from_hidden((h, c), layer)` one that begins with torch's hidden state.

    Attributes:
        hidden: the state of the cell, a tuple: `(h, c)` for an LSTM, `(h,)` for a GRU or RNN
        v, n, k: the last three entries

    >>> state = State(state)
    >>> state.k, [tuple(t.shape) for t in state.hidden]
    (tensor([[12, 12]]), [(1, 2, 5), (1, 2, 5)])
    >>> out, state = lstm(x, state.reset([1]))           # another sequence begins in row 1
    >>> state.k
    tensor([[24, 12]])
    """

    __slots__ = ()

    def __new__(cls, *tensors: Any, **nested: Any) -> "State":
        if nested or (len(tensors) == 1 + MOMENTS and isinstance(tensors[0], tuple | list)):
            tensors = _from_nested(*tensors, **nested)
        elif len(tensors) == 1 and isinstance(tensors[0], Iterable) and not isinstance(tensors[0], Tensor):
            tensors = tuple(tensors[0])
        if len(tensors) <= MOMENTS:
            raise TypeError(
                f"State should get the tensors h, ..., v, n and k, got {len(tensors)} values; "
                "State.from_hidden(hx, layer) makes one from torch's hidden state"
            )
        return tuple.__new__(cls, tensors)

    @property
    def hidden(self) -> tuple[Tensor, ...]:
        return self[:-MOMENTS]

    @property
    def v(self) -> Tensor:
        return self[-3]

    @property
    def n(self) -> Tensor:
        return self[-2]

    @property
    def k(self) -> Tensor:
        return self[-1]

    @classmethod
    def from_hidden(cls, hidden: Tensor | Sequence[Tensor], layer: HasState) -> "State":
        """The State of a sequence that begins with torch's hidden state, and with a momentum of zero.

        hidden: `(h, c)` of an LSTM, h of a GRU or RNN; layer: the layer or step cell that it is for.
        """
        tensors = [hidden] if isinstance(hidden, Tensor) else hidden
        if not isinstance(tensors, tuple | list) or not tensors:
            raise TypeError(f"hidden should be a tensor or a tuple of tensors, got {describe(hidden)}")
        start = _initial_state(layer, tensors[0], "hidden[0]")
        if len(tensors) != len(start.hidden):
            expected = "1 tensor" if len(start.hidden) == 1 else f"{len(start.hidden)} tensors"
            raise ValueError(f"hidden should hold {expected}, got {len(tensors)}")
        _check_like("hidden", tensors, start.hidden)
        return cls(*tensors, *start[-MOMENTS:])

    @classmethod
    def from_tensor(cls, tensor: Tensor, layer: HasState) -> "State":
        """The State that `as_tensor` wrote. layer: the layer or step cell that it is for."""
        start = _initial_state(layer, tensor, "tensor")
        widths = [*(t.shape[-1] for t in start[:-1]), 1]
        if tensor.shape != (*start.k.shape, sum(widths)):
            expected = (*start.k.shape, sum(widths))
            raise ValueError(f"tensor should have shape {expected}, got {tuple(tensor.shape)}")
        *others, k = torch.split_with_sizes(tensor, widths, -1)
        like = zip(others, start[:-1], strict=True)
        return cls(*(t.to(zeros.dtype) for t, zeros in like), k.squeeze(-1).detach().round().long())

    @classmethod
    def cat(cls, states: Iterable["State"]) -> "State":
        """The sequences of several states, one state after another."""
        if isinstance(states, State) or not isinstance(states, Iterable):
            raise TypeError(f"states should be a list of States, got {type(states).__name__}")
        states = list(states)
        if not states:
            raise ValueError("states should hold at least one State, got none")
        counts = [len(state) for state in states]
        if len(set(counts)) > 1:
            raise ValueError(f"states should have the same number of tensors, got {counts}")
        axis = State(states[0])._batch_axis("cat")
        return cls(torch.cat(tensors, axis) for tensors in zip(*states, strict=True))

    def as_tensor(self) -> Tensor:
        """All entries side by side on the last axis, k as a number: (L, B, width).

        It is for code that stores states as one tensor, such as a buffer of a policy. It is in the dtype of
        v, so in float32 k is exact up to 2^24 steps. All zeros are the state of a new sequence.
        """
        *others, k = self
        return torch.cat([*(t.to(self.v.dtype) for t in others), k.unsqueeze(-1).to(self.v.dtype)], -1)

    def detach(self) -> "State":
        """The same state without its graph: gradients end here."""
        return State(t.detach() for t in self)

    def clone(self) -> "State":
        """A copy, through which gradients go."""
        return State(t.clone() for t in self)

    def to(self, *args: Any, **kwargs: Any) -> "State":
        """Move or cast the state, as `Tensor.to` does. v and n stay in float32 at least, k in int64."""
        hidden = [h.to(*args, **kwargs) for h in self.hidden]
        device, dtype = hidden[0].device, moments_dtype(hidden[0].dtype)
        how = {name: kwargs[name] for name in ("non_blocking", "copy") if name in kwargs}
        v, n = (t.to(device, dtype, **how) for t in (self.v, self.n))
        return State(*hidden, v, n, self.k.to(device, **how))

    def select(self, rows: Rows) -> "State":
        """The state of some sequences. rows: indices, a mask (B,) of dtype bool, or a slice."""
        axis = self._batch_axis("select")
        index = *[slice(None)] * axis, _checked_rows(rows, self.k.shape[axis])
        return State(t[index] for t in self)

    def reset(self, rows: Rows | None = None) -> "State":
        """The same state, but zero where other sequences begin.

        rows: a mask (B,) of dtype bool, indices that differ, a slice, or None for all. A mask on the state's
            device does not wait for a GPU.
        """
        mask = _rows_as_mask(rows, self.k.shape[self._batch_axis("reset")]).to(self.k.device)
        return self._by_row(mask, lambda t, mask: t.masked_fill(mask, 0))

    def where(self, mask: Tensor | np.ndarray, other: "State") -> "State":
        """This state in the rows where the mask (B,) is true, the other state elsewhere."""
        axis, mask = self._batch_axis("where"), _without_numpy(mask)
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != self.k.shape[axis:]:
            expected = f"a tensor of shape {tuple(self.k.shape[axis:])} and dtype torch.bool"
            got = f"{describe(mask)} of {mask.dtype}" if isinstance(mask, Tensor) else describe(mask)
            raise TypeError(f"where: mask should be {expected}, got {got}")
        if not isinstance(other, tuple | list) or len(other) != len(self):
            got = f"{len(other)}" if isinstance(other, tuple | list) else type(other).__name__
            raise TypeError(f"where: other should be a State of {len(self)} tensors, got {got}")
        _check_like("where: other", other, self)
        others = iter(other)
        return self._by_row(mask, lambda t, mask: t.where(mask, next(others)))

    def repeat(self, times: int) -> "State":
        """The batch several times over, as `Tensor.repeat` does: rows 0, 1, 0, 1 for two sequences."""
        check_integer("repeat: times", times)
        axis = self._batch_axis("repeat")
        return State(torch.cat([t] * int(times), axis) for t in self)

    def repeat_interleave(self, times: int) -> "State":
        """Each sequence several times, as `Tensor.repeat_interleave` does: rows 0, 0, 1, 1 for two."""
        check_integer("repeat_interleave: times", times)
        axis = self._batch_axis("repeat_interleave")
        return State(t.repeat_interleave(int(times), axis) for t in self)

    def _replace(
        self,
        *,
        hidden: Sequence[Tensor] | None = None,
        v: Tensor | None = None,
        n: Tensor | None = None,
        k: Tensor | None = None,
    ) -> "State":
        """The same state with other tensors in place of some, as a NamedTuple has it."""
        moments = (old if new is None else new for old, new in zip(self[-MOMENTS:], (v, n, k), strict=True))
        return State(*(self.hidden if hidden is None else hidden), *moments)

    def __repr__(self) -> str:
        return f"State{super().__repr__()}"

    def _batch_axis(self, method: str) -> int:
        if self.k.dim() == 0:
            raise ValueError(f"{method}: the State should have a batch axis, got k of shape ()")
        return self.k.dim() - 1

    def _by_row(self, mask: Tensor, function: Callable[[Tensor, Tensor], Tensor]) -> "State":
        """A function of each entry and of the mask (B,), which broadcasts over the entry."""
        *others, k = self
        column = mask.unsqueeze(-1)
        return State(*(function(t, column) for t in others), function(k, mask))


def _checked_rows(rows: Rows, count: int) -> Tensor | slice:
    """Rows of a batch of `count` sequences: a slice, indices (rows,) or a mask (count,)."""
    mask_form = f"a mask of shape ({count},) and dtype bool"
    expected = f"rows should be indices from 0 to {count - 1}, {mask_form}, or a slice"
    rows = _without_numpy(rows)
    if isinstance(rows, slice):
        return rows
    if isinstance(rows, Sequence) and not isinstance(rows, str):
        mask = len(rows) > 0 and all(isinstance(row, bool | np.bool_) for row in rows)
        for row in [] if mask else rows:
            if isinstance(row, bool) or not isinstance(row, int | np.integer):
                raise TypeError(f"{expected}, got {rows!r}")
            if not -count <= row < count:
                raise IndexError(f"{expected}, got {row}")
        rows = torch.tensor(rows, dtype=torch.bool if mask else torch.int64)
    if not isinstance(rows, Tensor):
        raise TypeError(f"{expected}, got {rows!r}")
    # Indexing would read bytes as a mask, which is what they once were.
    if rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.uint8:
        raise TypeError(f"{expected}, got a tensor of {rows.dtype}")
    if rows.dim() != 1 or (rows.dtype == torch.bool and len(rows) != count):
        raise ValueError(f"{expected}, got a tensor of shape {tuple(rows.shape)} and {rows.dtype}")
    return rows


def _rows_as_mask(rows: Rows | None, count: int) -> Tensor:
    """Rows of a batch of `count` sequences as a mask (count,); None is all of them."""
    rows = slice(None) if rows is None else _checked_rows(rows, count)
    if isinstance(rows, Tensor) and rows.dtype == torch.bool:
        return rows
    mask = torch.zeros(count, dtype=torch.bool, device=rows.device if isinstance(rows, Tensor) else None)
    mask[rows] = True
    if isinstance(rows, slice) or rows.is_cuda or torch.compiler.is_compiling():
        return mask
    if mask.sum() < len(rows):  # zeros and ones that are meant as a mask
        got = f"got {rows.tolist()}; a mask should be of dtype bool"
        raise ValueError(f"rows should be indices that differ, {got}")
    return mask


def _without_numpy(rows: Any) -> Any:
    """An array of numpy, such as environments return, as a Tensor."""
    return torch.from_numpy(rows) if isinstance(rows, np.ndarray) else rows


def _initial_state(layer: HasState, like: Tensor, name: str) -> State:
    """The first State of a layer, with a batch axis if `like` has one before its last axis."""
    if not hasattr(layer, "initial_state"):
        raise TypeError(f"layer should be a layer or step cell of momentumrnn, got {type(layer).__name__}")
    if not isinstance(like, Tensor):
        raise TypeError(f"{name} should be a Tensor, got {type(like).__name__}")
    start = layer.initial_state()
    return layer.initial_state(like.shape[-2]) if like.dim() == start[0].dim() + 1 else start


def _check_like(name: str, tensors: Sequence[object], like: Sequence[Tensor]) -> None:
    """Raise unless these are tensors with the shapes and devices of others. Autocast changes dtypes."""
    for i, (tensor, other) in enumerate(zip(tensors, like, strict=True)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}[{i}] should be a Tensor, got {type(tensor).__name__}")
        if tensor.shape != other.shape or tensor.device != other.device:
            expected, got = (f"{tuple(t.shape)} on {t.device}" for t in (other, tensor))
            raise ValueError(f"{name}[{i}] should have shape {expected}, got {got}")


def _from_nested(hidden: Sequence[Tensor], v: Tensor, n: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    """The entries of a State in the form of version 0.1: hidden a tuple, and k without the axis of layers."""
    warn_caller(
        "State((h, c), v, n, k) is now State(h, c, v, n, k), with k of shape (L, B)", DeprecationWarning
    )
    if hidden[0].dim() - k.dim() == 2:
        k = k.expand(len(hidden[0]), *k.shape).contiguous()
    return *hidden, v, n, k


register_tuple(State, "momentumrnn.State")
# torch.load reads a State under its present name, and under that in files from before modules.py was split.
torch.serialization.add_safe_globals([State, (State, "momentumrnn.modules.State")])
