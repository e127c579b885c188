"""LSTM layers on the fused kernels of `kernels`: on recent NVIDIA GPUs, in float32 or 16 bits."""

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..cells import LSTM, ExtrapolatedLSTM, Weights
from ..kernels import launch, nvrtc, op
from ..kernels.constants import MAX_HIDDEN
from ..kernels.inputs import Inputs
from ..kernels.sizes import slices_of_input
from ..momentum import MOMENTA, Momentum, MomentumState, decays_by_tensor_mu, step_indices, tensor_fields
from ..packing import all_equal, at_last_steps, lengths, pack, packed_rows, pad
from ..precision import moments_dtype
from ..torch_internals import (
    constant_when_compiled,
    dispatch_mode_active,
    exporting,
    forward_mode_active,
    is_mapped,
    transforms_active,
)
from .stack import Network, Result, stack

# The decays of known momenta. No table is ever dropped, because a CUDA graph may read it.
_decay_tables: dict[tuple[Momentum, int, torch.device, torch.dtype], Tensor] = {}


def refusal(net: Network, sizes: Sequence[int]) -> str:
    w = net.weights[0]
    if type(net.cell) not in (LSTM, ExtrapolatedLSTM):
        return f"{type(net.cell).__name__} has no fused kernels"
    if w.hr is not None:
        return "its kernels have no projection, proj_size"
    size, dtype, device = w.hh.shape[1], w.ih.dtype, w.ih.device
    if size > MAX_HIDDEN:
        return f"hidden_size is {size}, and its kernels hold {MAX_HIDDEN} at most"
    gates, widest = 4 * size, 0
    for w in net.weights:
        columns = w.ih.shape[-1]
        widest = max(widest, columns)
        for p, shape in zip(w, ((gates, columns), (gates, size), (gates,), (gates,)), strict=False):
            # Kernels do not check: they would read whatever memory is there.
            if p is not None and (p.shape != shape or p.dtype != dtype or p.device != device):
                return "its weights are not of one dtype, on one device and in torch's shapes"
    rows = len(sizes) * sizes[0]
    if rows == 0:
        return "the batch is empty"
    # A feature has 6 columns at most, see `input_columns`: one more feature, three ones, rounded up to 8.
    if max(rows, gates) * max(gates, 6 * widest + 17) >= 1 << 31:
        return "the input is too large for indices of 32 bits"
    if forward_mode_active():
        return "its operator has no derivatives in forward mode"
    if exporting():
        return "torch.export would write an operator into the program that torch alone can't run"
    return _device_refusal(device, dtype)


def describe(net: Network, sizes: Sequence[int]) -> str:
    momentum, fine = net.momentum, _fine_products(net.weights[0].ih.dtype)
    text = f"fused kernels, {'operands in two 16-bit parts' if fine else '16-bit operands'}, sums in float32"
    if momentum is not None and not _operator_takes(momentum, net.weights[0].hh[:, 0]):
        return f"{text}; the drive by torch first"
    in_gates = momentum is not None and (not momentum.commutes or bool(tensor_fields(momentum)))
    filtered = momentum is not None and not in_gates
    if any(not slices_of_input(w.ih.shape[1] + (filtered and w.b_ih is not None), fine) for w in net.weights):
        text += "; W x of a wide input by a product of its own"
    return text + ("; the momentum in gate space" if in_gates else "")


def _operator_takes(momentum: Momentum, like: Tensor) -> bool:
    """Whether the operator can take the momentum, as far as its first decay tells. like: (G,)."""
    if type(momentum) in MOMENTA or decays_by_tensor_mu(momentum):
        return True
    with torch.enable_grad():
        decay = momentum.decays(step_indices(None, 1, like.device), like)
    return not decay.requires_grad and decay.shape[-1] == 1


def run(
    net: Network,
    x: Tensor,
    sizes: Sequence[int],
    hidden: Sequence[Tensor],
    moments: MomentumState | None,
) -> Result:
    if len(net.weights) > 1 or moments is not None:
        return stack(layer, net, x, sizes, hidden, moments)
    # The leading axis of one layer's state is the operator's axis of replicas.
    return _layer_of_one_replica(packed_rows(x), sizes, net.weights[0], net, hidden, None)


def layer(
    x: Tensor,
    sizes: Sequence[int],
    w: Weights,
    net: Network,
    hidden: Sequence[Tensor],
    moments: MomentumState | None,
) -> Result:
    """See `stack.Layer`."""
    y, final, after = _layer_of_one_replica(x, sizes, w, net, [h.unsqueeze(0) for h in hidden], moments)
    return y, tuple(h.squeeze(0) for h in final), after


def _layer_of_one_replica(
    x: Tensor,
    sizes: Sequence[int],
    w: Weights,
    net: Network,
    hidden: Sequence[Tensor],
    moments: MomentumState | None,
) -> Result:
    """`layer`, its hidden state with an axis of replicas in front, (1, B, H)."""
    columns, size = w.ih.shape[1], w.hh.shape[1]
    if x.shape[1] != columns or hidden[0].shape[2] != size:
        expected = f"weights should be for {x.shape[1]} features and {hidden[0].shape[2]} hidden units"
        raise RuntimeError(f"{expected}, got some for {columns} and {size}")
    fine = _fine_products(x.dtype)
    if not torch.is_autocast_enabled("cuda"):
        return _evaluate(x, sizes, w, net, hidden, moments, x.dtype, fine)
    # On a GPU torch's own layer returns float16, whatever the dtype of autocast.
    with torch.autocast("cuda", enabled=False):
        return _evaluate(x, sizes, w, net, hidden, moments, torch.float16, fine)


def _evaluate(
    x: Tensor,
    sizes: Sequence[int],
    w: Weights,
    net: Network,
    hidden: Sequence[Tensor],
    moments: MomentumState | None,
    dtype: torch.dtype,
    fine: bool,
) -> Result:
    """`_layer_of_one_replica` in float32 at least. dtype: of y and of the final hidden state."""
    momentum, base = net.momentum, moments_dtype(w.hh.dtype)
    w = Weights(*(None if p is None else p.to(base) for p in w))  # type: ignore[arg-type]
    x, hidden = x.to(base), [h.to(base) for h in hidden]
    equal = all_equal(sizes)
    options: dict[str, Any] = {"fine": fine, "sizes": () if equal else list(sizes)}
    sign = 1.0
    if isinstance(net.cell, ExtrapolatedLSTM):
        sign = -float(net.cell.step_size)
        options |= {"z0": hidden[2], "j0": hidden[3].detach().squeeze(-1), "every": net.cell.every}
    x = x.view(len(sizes), sizes[0], x.shape[1]) if equal else x
    w_ih, b_ih = w.ih, w.b_ih
    last_moments = None
    if momentum is None and sign != 1:
        w_ih, b_ih = sign * w.ih, None if b_ih is None else sign * b_ih
    elif momentum is not None:
        momentum_inputs = _momentum_inputs(momentum, x, sizes, w, moments, sign)
        if momentum_inputs is None:
            *last_moments, x = _drive_by_torch(momentum, x, sizes, w, moments, sign)
            w_ih = b_ih = None  # type: ignore[assignment]
        else:
            options |= momentum_inputs
    tensors: Any = (None if t is None else t.unsqueeze(0) for t in (x, w_ih, w.hh, b_ih, w.b_hh))
    inputs = Inputs(*tensors, *hidden[:2], **options)
    # op.lstm would check all shapes once more.
    y, h, c, z, v, n = op._lstm(*inputs, False)[: op.OUTPUTS]
    after = None
    if moments is not None:
        if last_moments is None:
            last_moments = [v[0] / sign, n[0] if len(n) else moments.n]
        last_v, last_n = last_moments
        after = MomentumState(last_v, last_n, moments.k + lengths(sizes, x.device))
    final: tuple[Tensor, ...] = (h, c)
    if len(hidden) > 2:
        j = (hidden[3] + lengths(sizes, x.device).unsqueeze(-1)) % options["every"]
        final = h, c, z, j
    y = y.flatten(0, 2) if equal else y.flatten(0, 1)
    return y.to(dtype), tuple(t.to(dtype) for t in final), after


def _momentum_inputs(
    momentum: Momentum,
    x: Tensor,
    sizes: Sequence[int],
    w: Weights,
    moments: MomentumState | None,
    sign: float,
) -> dict[str, Any] | None:
    """The momentum as inputs of the operator, or None if it can't take the decays: see `_untracked_decays`.

    sign: a factor on the drive. It is applied to v, also to that of the state, and not to n.
    """
    tensors, gates = tensor_fields(momentum), w.hh.shape[0]
    if isinstance(momentum.step, Tensor):  # also where it is computed from mu
        tensors["step"] = momentum.step
    # For each gate row, (1, 4H).
    of_rows = {
        name: t.to(x.dtype).reshape(-1).repeat_interleave(gates // t.numel()).unsqueeze(0)
        for name, t in tensors.items()
    }
    inputs: dict[str, Any] = {}
    if "step" in of_rows:
        inputs["gain"] = sign * of_rows["step"]
    else:
        inputs["step"] = sign * float(momentum.step)
    if decays_by_tensor_mu(momentum):
        inputs["mu"] = of_rows["mu"]
    else:
        decay = _untracked_decays(momentum, len(sizes), x, w.hh[:, 0], moments)
        if decay is None:
            return None
        inputs["decay"] = decay
    if momentum.beta is not None:
        inputs |= {"beta": float(momentum.beta), "eps": float(momentum.eps)}
        inputs["eps_in_sqrt"] = momentum.eps_in_sqrt
    if moments is not None:
        inputs["v0"] = sign * moments.v.to(x.dtype).unsqueeze(0)
        inputs["n0"] = moments.n.to(x.dtype).unsqueeze(0) if momentum.beta is not None else None
    return inputs


def _drive_by_torch(
    momentum: Momentum,
    x: Tensor,
    sizes: Sequence[int],
    w: Weights,
    moments: MomentumState | None,
    sign: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The last v and n, (B, G), and the drive of all steps, in plain PyTorch."""
    a = linear(x, w.ih, w.b_ih)
    equal = all_equal(sizes)
    v, n = momentum.moments(a if equal else pad(a, sizes), moments)
    last_v, last_n = at_last_steps(v, sizes), at_last_steps(n, sizes)
    if not equal:
        v, n = pack(v, sizes), pack(n, sizes)
    return last_v, last_n, sign * momentum.readout(v, n)


def _untracked_decays(
    momentum: Momentum, steps: int, x: Tensor, like: Tensor, moments: MomentumState | None
) -> Tensor | None:
    """The decay of each step, (T, 1) or (T, B).

    None if gate rows differ, or if it may have a gradient or vmap's axis.
    """
    if type(momentum) in MOMENTA and moments is None and not tensor_fields(momentum):
        return _decays_from_table(momentum, steps, x)
    if transforms_active() and type(momentum) not in MOMENTA:
        return None
    k = step_indices(moments and moments.k, steps, x.device)
    decay = momentum.decays(k, like)
    if decay.requires_grad or decay.shape[-1] != 1:
        return None
    if transforms_active() and is_mapped(decay):
        return None
    return decay.squeeze(-1).contiguous()


def _decays_from_table(momentum: Momentum, steps: int, x: Tensor) -> Tensor:
    """The decays of a known momentum, (T, 1), from a table that is computed once."""
    device, dtype = x.device, x.dtype
    if torch.compiler.is_dynamo_compiling() or dispatch_mode_active():
        return _compute_decays(momentum, steps, device, dtype)
    length = 1 << (steps - 1).bit_length()
    table = _decay_tables.get((momentum, length, device, dtype))
    if table is None:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return _compute_decays(momentum, steps, device, dtype)

        def compute() -> Tensor:
            return _compute_decays(momentum, length, torch.device("cpu"), dtype).to(device)

        # A new thread has no transform or mode of torch. A copy from the CPU is ready for all streams.
        with ThreadPoolExecutor(1) as thread:
            table = thread.submit(compute).result()
        table = _decay_tables.setdefault((momentum, length, device, dtype), table)
    return table[:steps]


def _compute_decays(momentum: Momentum, steps: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    like = torch.empty(1, dtype=dtype, device=device)
    return momentum.decays(torch.arange(steps, device=device), like).contiguous()


@constant_when_compiled
def _device_refusal(device: torch.device, dtype: torch.dtype) -> str:
    """Why kernels can't run on this device in this dtype, or nothing."""
    if device.type != "cuda":
        return f"the layer is on {device}, not on a CUDA GPU"
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"the layer is in {dtype}, and its kernels take torch.float32 and 16 bits"
    return _gpu_refusal(device)


@functools.cache
def _gpu_refusal(device: torch.device) -> str:
    """Why kernels can't run on this GPU, or nothing."""
    if torch.version.cuda is None or torch.cuda.get_device_capability(device) < (9, 0):
        return f"{torch.cuda.get_device_name(device)} is no NVIDIA GPU of compute capability 9.0 or newer"
    if nvrtc.missing():
        return nvrtc.missing()
    # A small kernel shows whether the compiler knows this GPU, and whether the driver loads its code.
    try:
        launch.check(device.index)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""


@constant_when_compiled
def _fine_products(dtype: torch.dtype) -> bool:
    """Whether torch is set to multiply float32 in recurrent layers as float32, and not as TF32."""
    precise = torch.backends.cudnn.rnn.fp32_precision != "tf32"  # type: ignore[attr-defined]
    return dtype == torch.float32 and precise and not torch.is_autocast_enabled("cuda")
