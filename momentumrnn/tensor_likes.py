"""Calls of a module with something that only stands for a tensor.

That is a proxy of torch.fx, or an object of a user's class that has `__torch_function__`.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, is_tensor_like


def stands_for_tensor(input: object) -> bool:
    return not isinstance(input, Tensor) and is_tensor_like(input)  # type: ignore[no-untyped-call]


def call_with_tensor_like(module: nn.Module, input: Any, *args: Any) -> Any:
    """The call of the module as one node of torch.fx, or handed to the input's `__torch_function__`."""
    if not isinstance(input, torch.fx.Proxy):
        return handle_torch_function(type(module).forward, (input,), module, input, *args)
    path = input.tracer.path_of_module(module) if isinstance(input.tracer, torch.fx.Tracer) else ""
    if not path:
        kind = type(module).__name__
        raise TypeError(
            f"input should be a Tensor, got a Proxy; torch.fx can trace a module that has this {kind}"
        )
    return input.tracer.create_proxy("call_module", path, (input, *args), {})
