"""Calls of a module with something that only stands for a tensor.

That is a proxy of torch.fx, or an object of a user's class that has `__torch_function__`.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.fx import Proxy, Tracer
from torch.overrides import handle_torch_function, is_tensor_like


class TraceableModule(nn.Module):
    """A module whose call is one node of torch.fx, as that of a module of torch.nn is.

    Its hooks, and the `forward` of a subclass, run when the node does.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            if isinstance(value, Proxy) and isinstance(value.tracer, Tracer):
                path = value.tracer.path_of_module(self)
                return value.tracer.create_proxy("call_module", path, args, kwargs)
        return super().__call__(*args, **kwargs)


def stands_for_tensor(input: object) -> bool:
    return not isinstance(input, Tensor) and is_tensor_like(input)  # type: ignore[no-untyped-call]


def call_with_tensor_like(forward: Callable[..., Any], module: nn.Module, input: Any, *args: Any) -> Any:
    """`forward(module, input, *args)`, handed to the input's `__torch_function__`."""
    if isinstance(input, Proxy):
        kind = type(module).__name__
        raise TypeError(
            f"input should be a Tensor, got a Proxy; torch.fx can trace a module that has this {kind}"
        )
    return handle_torch_function(forward, (input,), module, input, *args)
