"""Second derivatives for layers whose backward can't be differentiated: cuDNN's, and ours in place.

Asked for a graph of the gradients, such a layer computes its outputs once more, by operations that autograd
can follow.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# From the inputs of a layer to its outputs, differentiable as often as one likes.
Recompute = Callable[[Sequence[Any]], Sequence[Tensor]]


def gradients(
    recompute: Recompute, inputs: Sequence[Any], needed: Sequence[bool], grads: Sequence[Tensor]
) -> list[Tensor | None]:
    """The gradients of those inputs that need one, from those of the outputs. They can be differentiated."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # One input may be computed from another. Aliases cut that path: each gradient is of the direct path.
        inputs = [t.view_as(t) if need else t for t, need in zip(inputs, needed, strict=True)]
        outputs = recompute(inputs)
    sources = [t for t, need in zip(inputs, needed, strict=True) if need]
    reached = [(o, g) for o, g in zip(outputs, grads, strict=True) if o.requires_grad]
    targets, target_grads = zip(*reached, strict=True)
    results = torch.autograd.grad(
        targets, sources, target_grads, create_graph=create_graph, allow_unused=True
    )
    remaining = iter(results)
    return [next(remaining) if need else None for need in needed]


def differentiable_twice(
    recompute: Recompute, outputs: Sequence[Tensor], inputs: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """The outputs, with a backward that can be differentiated."""
    return _DifferentiableTwice.apply(recompute, len(outputs), *outputs, *inputs)  # type: ignore[no-any-return, no-untyped-call]


class _DifferentiableTwice(torch.autograd.Function):
    """Passes gradients on to the outputs' own graph. Asked for a graph of gradients, recomputes instead."""

    @staticmethod
    def forward(ctx: Any, recompute: Recompute, outputs: int, *tensors: Tensor) -> Any:
        ctx.recompute, ctx.outputs = recompute, outputs
        ctx.save_for_backward(*tensors[outputs:])
        return tuple(t.view_as(t) for t in tensors[:outputs])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        inputs = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return None, None, *grads, *(None for _ in inputs)
        needed = ctx.needs_input_grad[2 + ctx.outputs :]
        return None, None, *(None for _ in grads), *gradients(ctx.recompute, inputs, needed, grads)
