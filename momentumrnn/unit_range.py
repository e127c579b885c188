"""Keeps a tensor that is learned, such as the mu of a momentum, in [0, 1]. Knows nothing of momenta."""

from typing import Any

import torch
from torch import Tensor

from .torch_internals import dispatch_mode_active, transforms_active


def bounded(mu: Tensor) -> Tensor:
    """The value in [0, 1] that is nearest to mu.

    A Parameter that is trained is moved there itself, which makes an optimiser a projected one. Any other
    tensor stays as it is. Where it is outside [0, 1], gradients whose step would lead further out become 0.

    >>> mu = torch.tensor([0.5, 1.1, 1.1], requires_grad=True)
    >>> inside = bounded(mu)
    >>> inside.backward(torch.tensor([1.0, 1.0, -1.0]))
    >>> inside.tolist(), mu.grad.tolist()
    ([0.5, 1.0, 1.0], [1.0, 1.0, 0.0])
    """
    if torch.compiler.is_dynamo_compiling() or dispatch_mode_active() or transforms_active():
        return _Bounded.apply(mu)  # type: ignore[no-any-return, no-untyped-call]
    if not mu.requires_grad:
        return mu.clamp(0, 1)
    if type(mu) is not torch.nn.Parameter:
        return _Bounded.apply(mu)  # type: ignore[no-any-return, no-untyped-call]
    # By data, which leaves the version: a graph that has saved mu stays valid where no value changes.
    mu.data.clamp_(0, 1)
    return mu


class _Bounded(torch.autograd.Function):
    """`bounded`, with the gradient that it describes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(mu: Tensor) -> Tensor:
        return mu.clamp(0, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (mu,) = ctx.saved_tensors
        outward = ((mu < 0) & (grad > 0)) | ((mu > 1) & (grad < 0))
        return torch.where(outward, torch.zeros_like(grad), grad)
