"""The state that a layer carries from one piece of a sequence to the next."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .momentum import moments_dtype


class State(NamedTuple):
    """Everything that a layer or step cell carries from one piece of a sequence to the next.

    A layer that gets a `State` returns a `State`. Pieces of a sequence then give the outputs, final state
    and gradients of the whole. `layer.initial_state(batch_size)` makes the first one.

    For L layers, B sequences, H hidden units and G gate rows (4H for an LSTM, 3H for a GRU, H for an RNN):

        hidden: a tuple of tensors, each (L, B, H): (h, c) for an LSTM, (h,) for a GRU or RNN. With
            proj_size=P, h is (L, B, P). Other cells may have more tensors, and other widths.
        v: (L, B, G), the first moment, or (L, B, 0) without momentum.
        n: (L, B, G), the second moment of Adam and RMSProp, or (L, B, 0) for other momenta.
        k: (B,), int64, the number of steps that each sequence has taken.

    A bidirectional layer has no State: its reverse direction begins at the end of the sequence.
    The state of an unbatched input has no axis B. The state of a step cell has no axis L.
    v and n are in float32 if the layer is in 16 bits, else in the dtype of the layer.
    A State can be written by `torch.save` and read by `torch.load`.

    >>> from momentumrnn import LSTM, HeavyBall
    >>> lstm, x = LSTM(3, 5, momentum=HeavyBall(mu=0.9)), torch.randn(12, 2, 3)
    >>> state, outputs = lstm.initial_state(batch_size=2), []
    >>> for piece in x.split(4):
    ...     out, state = lstm(piece, state.detach())
    ...     outputs.append(out)
    >>> torch.allclose(torch.cat(outputs), lstm(x)[0], atol=1e-6)
    True
    >>> state.k
    tensor([12, 12])
    """

    hidden: tuple[Tensor, ...]
    v: Tensor
    n: Tensor
    k: Tensor

    def detach(self) -> "State":
        """The same state without its graph: gradients end here."""
        return self._map(Tensor.detach, Tensor.detach)

    def to(self, *args: Any, **kwargs: Any) -> "State":
        """Move or cast the state, as `Tensor.to` does. v and n stay in float32 at least, k in int64."""
        hidden = tuple(h.to(*args, **kwargs) for h in self.hidden)
        device, dtype = hidden[0].device, moments_dtype(hidden[0].dtype)
        return State(hidden, self.v.to(device, dtype), self.n.to(device, dtype), self.k.to(device))

    def select(self, rows: Tensor | Sequence[int] | slice) -> "State":
        """The state of some sequences of the batch. rows: indices, a mask (B,) or a slice."""
        if self.k.dim() == 0:
            raise ValueError(
                "select: the State should have a batch axis, got an unbatched one, whose k has shape ()"
            )
        if not isinstance(rows, Tensor | Sequence | slice) or isinstance(rows, str):
            raise TypeError(f"select: rows should be indices, a mask or a slice, got {rows!r}")
        rows = list(rows) if isinstance(rows, Sequence) else rows
        return self._map(lambda t: t[..., rows, :], lambda k: k[rows])

    def _batched(self) -> "State":
        """An unbatched state with an axis B of size 1."""
        return self._map(lambda t: t.unsqueeze(-2), lambda k: k.unsqueeze(-1))

    def _unbatched(self) -> "State":
        """The inverse of `_batched`."""
        return self._map(lambda t: t.squeeze(-2), lambda k: k.squeeze(-1))

    def _map(self, of_rows: Callable[[Tensor], Tensor], of_k: Callable[[Tensor], Tensor]) -> "State":
        """of_rows is applied to the tensors whose axis B is the last but one, of_k to k."""
        hidden = tuple(map(of_rows, self.hidden))
        return State(hidden, of_rows(self.v), of_rows(self.n), of_k(self.k))


# torch.load reads a State under its present name, and under that in files from before modules.py was split.
torch.serialization.add_safe_globals([State, (State, "momentumrnn.modules.State")])
