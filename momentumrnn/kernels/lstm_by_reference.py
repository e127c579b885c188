"""The operators in plain torch: `Inputs` read as a network for `backends.reference`, replica by replica."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..backends import reference
from ..backends.stack import Network
from ..cells import LSTM, Cell, ExtrapolatedLSTM, Weights
from ..momentum import Momentum, MomentumState
from .inputs import REPLICATED, TENSORS, Inputs


@dataclass(frozen=True, eq=False, repr=False)
class _Rates(Momentum):
    """The momentum of one replica: mu for each gate row, (4H), or a table of decays, (T, 1) or (T, B)."""

    mu: Tensor | None
    table: Tensor | None
    step: Tensor
    beta: float | None
    eps: float
    eps_in_sqrt: bool
    commutes = False

    def decay(self, k: Tensor) -> Tensor:
        if self.table is None:
            assert self.mu is not None
            return self.mu
        t, rows = k[:, 0].long(), torch.arange(len(k), device=k.device)
        return self.table[t, rows if self.table.shape[1] > 1 else 0].unsqueeze(-1)


def outputs(inputs: Inputs) -> tuple[Tensor, ...]:
    """y, h, c, z, v and n, as `op` describes them."""
    replicas = [_outputs_of_replica(inputs, r) for r in range(inputs.replicas)]
    firsts = inputs.h0, inputs.h0, inputs.h0, inputs.z0, inputs.v0, inputs.n0
    return tuple(
        inputs.x.new_empty(0) if first is None else torch.stack(tensors)
        for first, tensors in zip(firsts, zip(*replicas, strict=True), strict=True)
    )


def _outputs_of_replica(inputs: Inputs, r: int) -> tuple[Any, ...]:
    """y, h, c, z, v and n of one replica.

    z is None unless extrapolated; v and n are None without a momentum.
    """
    fields: list[Any] = list(inputs)
    fields[:REPLICATED] = (None if t is None else t[r if len(t) > 1 else 0] for t in fields[:REPLICATED])
    replica = Inputs(*fields)
    cell, sign = _cell(replica)
    width = replica.w_hh.shape[0]
    momentum = _momentum(replica) if replica.decay is not None or replica.in_gate_space else None
    moments = None
    if momentum is not None:
        moments = momentum.start(len(replica.h0), width, replica.x)
        v0 = moments.v if replica.v0 is None else sign * replica.v0
        moments = MomentumState(v0, moments.n if replica.n0 is None else replica.n0, moments.k)
    x = replica.x if replica.sizes else replica.x.flatten(0, 1)
    hidden = [replica.h0, replica.c0]
    if replica.z0 is not None and replica.j0 is not None:
        hidden += [replica.z0, (replica.j0 % replica.every).unsqueeze(-1)]
    # Where the drive is given there is no W, and `recur` reads none: w_hh only fills its place.
    w_ih = replica.w_hh if replica.w_ih is None else sign * replica.w_ih
    weights = Weights(w_ih, replica.w_hh, None if replica.b_ih is None else sign * replica.b_ih, replica.b_hh)
    net = Network(cell, momentum, [weights])
    if replica.w_ih is None:
        y, final, after = reference.recur(sign * x, inputs.rows_of_steps, weights, net, hidden, moments)
    else:
        y, final, after = reference.layer(x, inputs.rows_of_steps, weights, net, hidden, moments)
    y = y if replica.sizes else y.view(*replica.x.shape[:2], -1)
    v, n = (None, None) if after is None else (sign * after.v, after.n)
    return y, final[0], final[1], final[2] if replica.z0 is not None else None, v, n


def _cell(replica: Inputs) -> tuple[Cell, int]:
    """The cell, and the sign of its drive: `ExtrapolatedLSTM` subtracts the drive, the operator adds it."""
    return (LSTM(), 1) if replica.z0 is None else (ExtrapolatedLSTM(replica.every, step_size=1.0), -1)


def _momentum(replica: Inputs) -> Momentum:
    # As a tensor, because a number would have to be positive.
    step = replica.x.new_tensor(replica.step) if replica.gain is None else replica.gain
    return _Rates(replica.mu, replica.decay, step, replica.beta, replica.eps, replica.eps_in_sqrt)


def gradients(grads: Sequence[Tensor | None], inputs: Inputs, needs: Sequence[bool]) -> tuple[Tensor, ...]:
    """What `lstm_backward` returns."""
    tensors, rest = inputs.tensors, inputs[TENSORS:]
    wanted = [need and t is not None for t, need in zip(tensors, needs, strict=True)]

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        chosen = iter(given)
        all_tensors: Any = (next(chosen) if want else t for t, want in zip(tensors, wanted, strict=True))
        return outputs(Inputs(*all_tensors, *rest))

    # Unlike torch.autograd.grad, it also runs under torch.func, and below autograd.
    values, pull, *_ = torch.func.vjp(run, *(t for t, want in zip(tensors, wanted, strict=True) if want))
    grads = tuple(torch.zeros_like(y) if g is None else g for y, g in zip(values, grads, strict=True))
    pulled = iter(pull(grads))
    return tuple(next(pulled) if want else inputs.x.new_empty(0) for want in wanted)
