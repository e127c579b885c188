"""LSTM layers on the fused kernels of `kernels`: on recent NVIDIA GPUs, in float32 or 16 bits."""

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import linear

from ..cells import LSTM, ExtrapolatedLSTM, Weights
from ..kernels import fused, nvrtc, op
from ..kernels.inputs import Inputs
from ..momentum import MOMENTA, Adam, HeavyBall, Momentum, MomentumState, count, learned, wide
from ..packing import at_ends, lengths, pack, pad, rectangular
from .stack import Network, Result, exporting, stack

_tables: dict[tuple[Momentum, int, torch.device, torch.dtype], Tensor] = {}


def supports(net: Network, sizes: Sequence[int]) -> str:
    w = net.weights[0]
    if type(net.cell) not in (LSTM, ExtrapolatedLSTM):
        return f"{type(net.cell).__name__} has no fused kernels"
    if w.hr is not None:
        return "its kernels have no projection, proj_size"
    size, dtype, device = w.hh.shape[1], w.ih.dtype, w.ih.device
    if size > fused.WIDEST:
        return f"hidden_size is {size}, and its kernels hold {fused.WIDEST} at most"
    gates, widest = 4 * size, 0
    for w in net.weights:
        columns = w.ih.shape[-1]
        widest = max(widest, columns)
        for p, shape in zip(w, ((gates, columns), (gates, size), (gates,), (gates,)), strict=False):
            # Kernels would read whatever lies there.
            if p is not None and (p.shape != shape or p.dtype != dtype or p.device != device):
                return "its weights are not of one dtype, on one device and in torch's shapes"
    rows = len(sizes) * sizes[0]
    if rows == 0:
        return "the batch is empty"
    if max(rows, gates) * max(gates, 6 * widest + 17) >= 1 << 31:
        return "the input is too large for indices of 32 bits"
    if forward_ad._current_level >= 0:
        return "its operator has no derivatives in forward mode"
    if exporting():
        return "torch.export would write an operator into the program that torch alone can't run"
    return _machine(device, dtype)


def about(net: Network, sizes: Sequence[int]) -> str:
    m, fine = net.momentum, _fine(net.weights[0].ih.dtype)
    how = f"fused kernels, {'operands in two 16-bit parts' if fine else '16-bit operands'}, sums in float32"
    if m is not None and not _as_inputs(m, net.weights[0].hh[:, 0]):
        return f"{how}; the drive by torch first"
    in_gates = m is not None and (not m.commutes or bool(learned(m)))
    filtered = m is not None and not in_gates
    if any(not fused.further(w.ih.shape[1] + (filtered and w.b_ih is not None), fine) for w in net.weights):
        how += "; W x of a wide input by a product of its own"
    return how + ("; the momentum in gate space" if in_gates else "")


def _as_inputs(m: Momentum, like: Tensor) -> bool:
    """Whether the operator can take the momentum, as far as its first decay tells."""
    if type(m) in MOMENTA or ("mu" in learned(m) and type(m).decay in _CONSTANT):
        return True
    with torch.enable_grad():
        decay = m.decays(count(None, 1, like.device), like)
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
    # One layer's state has the operator's axis of replicas already.
    return _layer(x, sizes, net.weights[0], net, hidden, None)


def layer(
    x: Tensor,
    sizes: Sequence[int],
    w: Weights,
    net: Network,
    hidden: Sequence[Tensor],
    moments: MomentumState | None,
) -> Result:
    """See `stack.Layer`."""
    y, final, after = _layer(x, sizes, w, net, [h.unsqueeze(0) for h in hidden], moments)
    return y, tuple(h.squeeze(0) for h in final), after


def _layer(
    x: Tensor,
    sizes: Sequence[int],
    w: Weights,
    net: Network,
    hidden: Sequence[Tensor],
    moments: MomentumState | None,
) -> Result:
    """`layer`, its hidden state having a leading axis of 1."""
    columns, size = w.ih.shape[1], w.hh.shape[1]
    if x.shape[1] != columns or hidden[0].shape[2] != size:
        expected = f"weights should be for {x.shape[1]} features and {hidden[0].shape[2]} hidden units"
        raise RuntimeError(f"{expected}, got some for {columns} and {size}")
    fine = _fine(x.dtype)
    if not torch.is_autocast_enabled("cuda"):
        return _evaluate(x, sizes, w, net, hidden, moments, x.dtype, fine)
    # Torch's own layer on a GPU returns halves, whatever the dtype of autocast.
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
    """`_layer` in float32 at least, whatever comes; y and hidden in dtype."""
    m, base = net.momentum, wide(w.hh.dtype)
    w = Weights(*(None if p is None else p.to(base) for p in w))  # type: ignore[arg-type]
    x, hidden = x.to(base), [h.to(base) for h in hidden]
    even = rectangular(sizes)
    options: dict[str, Any] = {"fine": fine, "sizes": () if even else list(sizes)}
    sign = 1.0
    if isinstance(net.cell, ExtrapolatedLSTM):
        sign = -float(net.cell.step_size)
        options |= {"z0": hidden[2], "j0": hidden[3].detach().squeeze(-1), "every": net.cell.every}
    x = x.view(len(sizes), sizes[0], x.shape[1]) if even else x
    w_ih, b_ih = w.ih, w.b_ih
    by_torch = None
    if m is None and sign != 1:
        w_ih, b_ih = sign * w.ih, None if b_ih is None else sign * b_ih
    elif m is not None:
        found = _momentum(m, x, sizes, w, moments, sign)
        if found is None:
            *by_torch, x = _by_torch(m, x, sizes, w, moments, sign)
            w_ih = b_ih = None  # type: ignore[assignment]
        else:
            options |= found
    tensors: Any = (None if t is None else t.unsqueeze(0) for t in (x, w_ih, w.hh, b_ih, w.b_hh))
    inputs = Inputs(*tensors, *hidden[:2], **options)
    # All shapes were checked: not again, as op.lstm would.
    y, h, c, z, *ends = op._lstm(*inputs, False)[: op.OUTPUTS]
    after = None
    if moments is not None:
        if by_torch is None:
            by_torch = [ends[0][0] / sign, ends[1][0] if len(ends[1]) else moments.n]
        v, n = by_torch
        after = MomentumState(v, n, moments.k + lengths(sizes, x.device))
    final: tuple[Tensor, ...] = (h, c)
    if len(hidden) > 2:
        j = (hidden[3] + lengths(sizes, x.device).unsqueeze(-1)) % options["every"]
        final = h, c, z, j
    y = y.flatten(0, 2) if even else y.flatten(0, 1)
    return y.to(dtype), tuple(t.to(dtype) for t in final), after


def _momentum(
    m: Momentum,
    x: Tensor,
    sizes: Sequence[int],
    w: Weights,
    moments: MomentumState | None,
    sign: float,
) -> dict[str, Any] | None:
    """The momentum as inputs of the operator, unless its decays must be followed by autograd or vmap.

    sign: a factor on the drive, which goes to v, the state's too, and not to n.
    """
    tensors, gates = learned(m), w.hh.shape[0]
    # For each gate row, (1, 4H).
    of_rows = {
        name: t.to(x.dtype).reshape(-1).repeat_interleave(gates // t.numel()).unsqueeze(0)
        for name, t in tensors.items()
    }
    rates: dict[str, Any] = {}
    if "step" in of_rows:
        rates["gain"] = sign * of_rows["step"]
    else:
        rates["step"] = sign * float(m.step)
    if "mu" in of_rows and type(m).decay in _CONSTANT:
        rates["mu"] = of_rows["mu"]
    else:
        decay = _constants(m, len(sizes), x, w.hh[:, 0], moments)
        if decay is None:
            return None
        rates["decay"] = decay
    if m.beta is not None:
        rates |= {"beta": float(m.beta), "eps": float(m.eps), "eps_in_sqrt": m.eps_in_sqrt}
    if moments is not None:
        rates["v0"] = sign * moments.v.to(x.dtype).unsqueeze(0)
        rates["n0"] = moments.n.to(x.dtype).unsqueeze(0) if m.beta is not None else None
    return rates


def _by_torch(
    m: Momentum, x: Tensor, sizes: Sequence[int], w: Weights, moments: MomentumState | None, sign: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The last moments and the drive in plain PyTorch."""
    a = linear(x, w.ih, w.b_ih)
    even = rectangular(sizes)
    v, n = m.moments(a if even else pad(a, sizes), moments)
    last = at_ends(v, sizes), at_ends(n, sizes)
    if not even:
        v, n = pack(v, sizes), pack(n, sizes)
    return *last, sign * m.readout(v, n)


# The decays that are a momentum's mu itself.
_CONSTANT = HeavyBall.decay, Adam.decay


def _constants(
    m: Momentum, steps: int, x: Tensor, like: Tensor, moments: MomentumState | None
) -> Tensor | None:
    """The decay of each step, (T, 1) or (T, B), unless a gradient or vmap's axis may hang on it."""
    if type(m) in MOMENTA and moments is None and not learned(m):
        return _table(m, steps, x)
    if torch._C._are_functorch_transforms_active() and type(m) not in MOMENTA:
        return None
    k = count(moments and moments.k, steps, x.device)
    decay = m.decays(k, like)
    if decay.requires_grad or decay.shape[-1] != 1:
        return None
    if torch._C._are_functorch_transforms_active() and _batched(decay):
        return None
    return decay.squeeze(-1).contiguous()


def _batched(t: Tensor) -> bool:
    """Whether vmap runs over it."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(t):
        if functorch.is_batchedtensor(t):
            return True
        t = functorch.get_unwrapped(t)
    return False


def _decays(m: Momentum, steps: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    like = torch.empty(1, dtype=dtype, device=device)
    return m.decays(torch.arange(steps, device=device), like).contiguous()


def _table(m: Momentum, steps: int, x: Tensor) -> Tensor:
    """The decays of a known momentum, from a table. Tables are never dropped: CUDA graphs may read them."""
    device, dtype = x.device, x.dtype
    if torch.compiler.is_dynamo_compiling() or torch._C._len_torch_dispatch_stack() > 0:
        return _decays(m, steps, device, dtype)
    length = 1 << (steps - 1).bit_length()
    table = _tables.get((m, length, device, dtype))
    if table is None:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return _decays(m, steps, device, dtype)
        # No transform or mode of torch reaches into another thread; what was copied is there for all streams.
        with ThreadPoolExecutor(1) as thread:
            made = thread.submit(lambda: _decays(m, length, torch.device("cpu"), dtype).to(device))
        table = _tables.setdefault((m, length, device, dtype), made.result())
    return table[:steps]


def _machine(device: torch.device, dtype: torch.dtype) -> str:
    """Why kernels can't run on this device in this dtype, as torch is set now."""
    if device.type != "cuda":
        return f"the layer is on {device}, not on a CUDA GPU"
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"the layer is in {dtype}, and its kernels in torch.float32"
    return _lacking(device)


# So that torch.compile asks once, and does not look inside.
_machine._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _fine(dtype: torch.dtype) -> bool:
    """Whether torch wants float32 of recurrent layers to be that, and not TF32."""
    # What torch.backends.cudnn.allow_tf32 and torch.backends.cudnn.rnn.fp32_precision come to for layers.
    wanted = torch._C._get_fp32_precision_getter("cuda", "rnn")
    return dtype == torch.float32 and wanted != "tf32" and not torch.is_autocast_enabled("cuda")


_fine._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _lacking(device: torch.device) -> str:
    if torch.version.cuda is None or torch.cuda.get_device_capability(device) < (9, 0):
        return f"{torch.cuda.get_device_name(device)} is no NVIDIA GPU of compute capability 9.0 or newer"
    if nvrtc.missing():
        return nvrtc.missing()
    # A small one tells whether the compiler knows this GPU, and its driver what the compiler makes.
    try:
        fused.check(device.index)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""
