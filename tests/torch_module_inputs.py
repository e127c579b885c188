"""Torch's own sample inputs and wrong inputs of its recurrent modules, given to ours.

    python tests/torch_module_inputs.py

It prints, as JSON, how many there are and what differs. It is a program of its own, since torch's testing
package takes ten seconds to import and then forbids the process to set flags of backends.
"""

import json
import sys
import unittest
import warnings
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

# Torch's tables are in a module that its test classes need too, and those need a package more.
sys.modules.setdefault("expecttest", SimpleNamespace(TestCase=unittest.TestCase))  # type: ignore[arg-type]
from torch.testing._internal.common_modules import ModuleErrorEnum, module_db  # noqa: E402

import momentumrnn as mr  # noqa: E402

OURS = {
    nn.LSTM: mr.LSTM,
    nn.GRU: mr.GRU,
    nn.RNN: mr.RNN,
    nn.LSTMCell: mr.LSTMCell,
    nn.GRUCell: mr.GRUCell,
    nn.RNNCell: mr.RNNCell,
}
TABLES = [info for info in module_db if info.module_cls in OURS]
CASES = [(dtype, training) for dtype in (torch.float32, torch.float64) for training in (True, False)]


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def results(module: nn.Module, arguments: Any) -> list[torch.Tensor]:
    """The outputs, then the gradients of all inputs and parameters."""
    inputs = tensors((arguments.args, arguments.kwargs))
    outputs = tensors(module(*arguments.args, **arguments.kwargs))
    leaves = [t for t in [*inputs, *module.parameters()] if t.requires_grad]
    sums = [t.sum() for t in outputs if t.requires_grad]  # not the lengths of a packed sequence
    return [*outputs, *torch.autograd.grad(sums, leaves)]


def differences(info: Any, dtype: torch.dtype, training: bool) -> list[str | None]:
    """Of each sample input what differs, or None."""
    packed = {"with_packed_sequence": True} if info.module_cls in (nn.GRU, nn.RNN) else {}
    samples = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=True, training=training, **packed
    )
    found: list[str | None] = []
    for sample in samples:
        args, kwargs = sample.constructor_input.args, {**sample.constructor_input.kwargs, "dtype": dtype}
        torch.manual_seed(0)
        theirs = info.module_cls(*args, **kwargs).train(training)
        if not issubclass(info.module_cls, nn.RNNCellBase):
            kwargs["backend"] = "native"
        torch.manual_seed(0)
        ours = OURS[info.module_cls](*args, **kwargs).train(training)
        want, got = results(theirs, sample.forward_input), results(ours, sample.forward_input)
        same = len(got) == len(want) and all(map(torch.equal, got, want))
        found.append(None if same else f"{info.name}{args}{kwargs}, {dtype}, training={training}")
    return found


def wrong_inputs(info: Any) -> list[str | None]:
    """Of each wrong input how our error differs from torch's, or None."""
    samples = info.module_error_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=False, training=True
    )
    return [refusal(OURS[info.module_cls], sample) for sample in samples]


def refusal(kind: type[nn.Module], sample: Any) -> str | None:
    construction, forward = (
        sample.module_error_input.constructor_input,
        sample.module_error_input.forward_input,
    )
    call = f"{kind.__name__}{construction.args}{construction.kwargs}"
    expected = f"{sample.error_on.name}, {sample.error_type.__name__} ({sample.error_regex})"
    made, on_call = False, sample.error_on is ModuleErrorEnum.FORWARD_ERROR
    try:
        module = kind(*construction.args, **construction.kwargs)
        made = True
        module(*forward.args, **forward.kwargs)
    except Exception as error:  # whatever else it is goes into the report
        if isinstance(error, sample.error_type) and made is on_call:
            return None
        return f"{call}: expected {expected}, got {error!r}"
    return f"{call} ran, expected {expected}"


def main() -> None:
    warnings.simplefilter("ignore")  # torch's, of projections and float64
    inputs = [found for info in TABLES for case in CASES for found in differences(info, *case)]
    errors = [found for info in TABLES for found in wrong_inputs(info)]
    report = {
        "modules": len(TABLES),
        "inputs": len(inputs),
        "errors": len(errors),
        "differ": sorted({found for found in inputs + errors if found}),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
