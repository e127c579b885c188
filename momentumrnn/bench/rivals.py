"""What our layer is compared with: torch's layers, our layer in other ways, the paper's listing."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import linear

from ..cells import Elman
from ..layers import Recurrent
from ..momentum import tensor_fields
from .cases import LAYERS, Case, Contender, Mode, explain_backend

# Rivals that are torch's layer in one dtype, whatever the mode.
DTYPES = {
    "torch-fp32": torch.float32,
    "torch-bf16": torch.bfloat16,
    "torch-fp16": torch.float16,
    "torch-padded": torch.float16,
}


def rival(name: str, ours: Contender, case: Case) -> Contender:
    """The rival of that name, with the weights and the input of our layer."""
    layer = ours.module
    assert isinstance(layer, Recurrent)
    equal_lengths_only = name in ("loop", "torch-padded") or name.startswith("replicas-")
    if ours.batch_sizes is not None and equal_lengths_only:
        raise RuntimeError("not for sequences of several lengths")
    if name == "loop":
        return replace(ours, label="loop, the paper's listing", run=partial(loop, layer))
    if name == "plain":
        if case.momentum is None:
            raise RuntimeError("ours has no momentum itself")
        plain = copy.deepcopy(layer)
        plain.momentum = None
        return replace(ours, label=f"{ours.label}, plain", run=plain, module=plain)
    if name == "native":
        native = copy.deepcopy(layer)
        native.backend = name
        return replace(ours, label=f"{ours.label}, native", run=native, module=native)
    if name.startswith("replicas-"):
        return replicate(ours, int(name.removeprefix("replicas-")))
    return _torch_layer(name, ours, case)


def _torch_layer(name: str, ours: Contender, case: Case) -> Contender:
    dtype = DTYPES.get(name, case.dtype)
    # It is constructed on its device, because cuDNN wants all weights in one piece of memory.
    layer = LAYERS[case.shape.cell][1](case.shape.D, case.shape.H, device=case.device, dtype=dtype)
    with torch.no_grad():
        for weight_name, weight in layer.named_parameters():
            weight.copy_(getattr(ours.module, weight_name, torch.zeros(())))
    label = f"torch.nn.{type(layer).__name__}{name.removeprefix('torch').replace('-', ' ')}"
    if case.shape.cell == "dtriv":
        label += " (tanh, free U)"
    if case.shape.cell == "extrapolated":
        label += " (plain cell)"
    mode = ours.mode if name == "torch" else Mode(tf32=name != "torch-fp32")
    x, loss_weights = ours.x.to(dtype), ours.loss_weights.to(mode.autocast or dtype)
    contender = Contender(label, layer, layer, x, loss_weights, mode, batch_sizes=ours.batch_sizes)
    return pad(contender) if name == "torch-padded" else contender


def pad(unpadded: Contender) -> Contender:
    """The same LSTM, enlarged so that cuDNN keeps U on the chip: D and H to multiples of 128, B to one of 8.

    The added hidden units have zero weights, so they stay 0. The added sequences are not part of the loss.
    """
    layer = unpadded.module
    if not isinstance(layer, nn.LSTM):
        raise RuntimeError("padding is for an LSTM alone")
    B, H = unpadded.x.shape[1], layer.hidden_size
    options = {"device": unpadded.x.device, "dtype": unpadded.x.dtype}
    padded = nn.LSTM(_round_up(layer.input_size, 128), _round_up(H, 128), **options)
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            inner = inner_part(padded.get_parameter(name).zero_(), weight.shape)
            inner.copy_(weight.view_as(inner))

    def enlarge(t: Tensor, size: int) -> Tensor:
        larger = t.new_zeros(len(t), _round_up(B, 8), size)
        inner_part(larger, t.shape).copy_(t)
        return larger

    def run(x: Tensor) -> tuple[Tensor, Any]:
        out, final = padded(x)
        return out, tuple(state[:, :B, :H] for state in final)

    x, loss_weights = (
        enlarge(unpadded.x, padded.input_size),
        enlarge(unpadded.loss_weights, padded.hidden_size),
    )
    return replace(unpadded, run=run, module=padded, x=x, loss_weights=loss_weights, unpadded=unpadded)


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def inner_part(padded: Tensor, shape: Sequence[int]) -> Tensor:
    """The part of a padded tensor that holds the unpadded one, of that shape.

    Tensors of one or two axes are weights of an LSTM: their first axis is split into the four gates.
    """
    if padded.dim() < 3:
        padded, shape = padded.view(4, -1, *padded.shape[1:]), (4, shape[0] // 4, *shape[1:])
    return padded[tuple(map(slice, shape))]


class Replicas(nn.Module):
    """Copies of a layer, each with its own weights, that run at once by vmap: (T, B, D) -> (R, T, B, H)."""

    def __init__(self, layer: nn.Module, count: int) -> None:
        super().__init__()
        # A list, so that the parameters of the module are the stacked weights alone.
        self.layers = [copy.deepcopy(layer) for _ in range(count)]
        with torch.no_grad():
            for i, replica in enumerate(self.layers):
                for p in replica.parameters():
                    p.mul_(1 - i / (2 * count))
        stacked, _ = torch.func.stack_module_state(self.layers)
        self.names = list(stacked)
        self.weights = nn.ParameterList(stacked.values())

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        def run(weights: Sequence[Tensor], x: Tensor) -> Tensor:
            named = dict(zip(self.names, weights, strict=True))
            return cast(Tensor, functional_call(self.layers[0], named, (x,))[0])

        return torch.vmap(run, in_dims=(0, None))(tuple(self.weights), x), None


def replicate(ours: Contender, count: int) -> Contender:
    """So many replicas of our layer, all with the same input."""
    module, backends = Replicas(ours.module, count), []

    def note_backend(weight: Tensor) -> Tensor:
        backends.append(explain_backend(module.layers[0], ours)[0])
        return weight

    # The choice of the backend depends on whether vmap is active.
    torch.vmap(note_backend)(module.weights[0])
    loss_weights = ours.loss_weights.expand(count, -1, -1, -1).contiguous()
    return Contender(f"{count} replicas, {backends[0]}", module, module, ours.x, loss_weights, ours.mode)


def loop(layer: Recurrent, x: Tensor) -> tuple[Tensor, Any]:
    """The paper's listing (appendix): at each step, project x_t, update v and apply the cell.

    layer: its weights, cell and momentum are used; it has one layer and one direction. x: (T, B, D). Returns
    the outputs and the final state as torch's layers do.
    """
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    w, u, b_ih, b_hh = (cast(Any, getattr(layer, name, None)) for name in names)
    cell, momentum = layer.cell, layer.momentum
    # `linear` adds the bias at no further cost. That of modrelu is a threshold, which the cell needs.
    added, threshold = (None, b_hh) if cell == Elman("modrelu") else (b_hh, None)
    state = tuple(x.new_zeros(x.shape[1], width) for width in cell.widths(layer.hidden_size))
    moments = decays = None
    if momentum is not None:
        moments = momentum.start(x.shape[1], len(w), x)
        # Like the paper's code, a step multiplies by a number where mu is not learned. To a kernel on a GPU,
        # a tensor of one element on the CPU is a number.
        k = torch.arange(len(x), device=x.device if tensor_fields(momentum) else "cpu")
        decays = momentum.decays(k, moments.v).squeeze(-1).unbind()
    outputs = []
    for t, x_t in enumerate(x.unbind()):
        v = linear(x_t, w, b_ih)
        if momentum is not None and moments is not None and decays is not None:
            v, moments = momentum.update(v, moments, decays[t])
        state = cell.step(v, linear(state[0], u, added), threshold, state)
        outputs.append(state[0])
    final = tuple(part.unsqueeze(0) for part in state)
    return torch.stack(outputs), final if len(final) > 1 else final[0]
