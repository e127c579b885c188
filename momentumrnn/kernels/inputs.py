"""The inputs of the operator: R replicas of one LSTM layer."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

TENSORS = 12  # the first fields of `Inputs`: tensors that may need a gradient
REPLICATED = 13  # the first fields of `Inputs`: tensors with a leading axis of replicas


class Inputs(NamedTuple):
    """Inputs of one call. All tensors but decay have a leading axis: R replicas, or 1 that all share."""

    x: Tensor  # (R, T, B, D), or packed (R, N, D); without w_ih the drive itself, D = 4H
    w_ih: Tensor | None  # (R, 4H, D)
    w_hh: Tensor  # (R, 4H, H)
    b_ih: Tensor | None  # (R, 4H)
    b_hh: Tensor | None  # (R, 4H)
    h0: Tensor  # (R, B, H)
    c0: Tensor  # (R, B, H)
    z0: Tensor | None = None  # (R, B, 4H): of an extrapolated layer, z before the first step
    mu: Tensor | None = None  # (R, 4H): a decay for each gate row
    gain: Tensor | None = None  # (R, 4H): a gain for each gate row
    v0: Tensor | None = None  # (R, B, 4H): v before the first step, else 0
    n0: Tensor | None = None  # (R, B, 4H): n before the first step, else 0
    j0: Tensor | None = None  # (R, B): of an extrapolated layer, j of the first step; has no gradient
    decay: Tensor | None = None  # (T, 1) or (T, B): a decay for each step, instead of mu; has no gradient
    step: float = 1.0  # one gain for all gate rows
    beta: float | None = None
    eps: float = 1e-8
    eps_in_sqrt: bool = True  # False: v_t / (sqrt(n_t) + eps)
    every: int = 1  # of an extrapolated layer: j counts modulo this
    sizes: Sequence[int] = ()  # for packed rows: the rows of each step, never more than in the step before
    fine: bool = False  # whether kernels multiply with 22 bits and not with 11

    @property
    def in_gate_space(self) -> bool:
        """Whether the momentum runs on W x + b_ih: with beta, mu or gain for gate rows, or a carried v0."""
        return not (self.beta is None and self.mu is None and self.gain is None and self.v0 is None)

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """Those that may need a gradient."""
        return self[:TENSORS]  # type: ignore[return-value]

    @property
    def replicas(self) -> int:
        # size(0), because it makes no torch.Size: each call of a layer asks several times.
        return max(t.size(0) for t in (*self.tensors, self.j0) if t is not None)

    @property
    def rows_of_steps(self) -> Sequence[int]:
        """The number of rows of each step."""
        return self.sizes or [self.x.shape[2]] * self.x.shape[1]

    def for_projection(self) -> "Inputs":
        """The same without momentum and b_hh, so that the input's product gives W x + b_ih alone."""
        return self._replace(b_hh=None, decay=None, step=1.0)
