"""LSTM layers on the fused kernels of `kernels`: on recent NVIDIA GPUs, in float32 with 16-bit operands."""

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import linear

from ..cells import LSTM, Weights
from ..kernels import fused, nvrtc, op
from ..momentum import HeavyBall, Momentum, MomentumState, Nesterov, ScheduledRestart
from ..packing import pad, rectangular
from .stack import Network, Result, exporting, stack

# Those whose decays depend on nothing but their fields and k; a user's may read what it likes.
_KNOWN = HeavyBall, Nesterov, ScheduledRestart
_tables: dict[tuple[Momentum, int, torch.device, torch.dtype], Tensor] = {}


def supports(net: Network, sizes: Sequence[int]) -> str:
    w, m = net.weights[0], net.momentum
    if type(net.cell) is not LSTM:
        return f"{type(net.cell).__name__} has no fused kernels"
    if m is not None and not m.linear:
        return f"the drive of {type(m).__name__} is not linear"
    if w.hr is not None:
        return "its kernels have no projection, proj_size"
    if not rectangular(sizes):
        return "its kernels take sequences of one length, not yet packed ones of several"
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
    if max(rows, gates) * max(gates, 3 * widest + 11) >= 1 << 31:
        return "the input is too large for indices of 32 bits"
    if forward_ad._current_level >= 0:
        return "its operator has no derivatives in forward mode"
    if exporting():
        return "torch.export would write an operator into the program that torch alone can't run"
    return _machine(device, dtype)


def about(net: Network, sizes: Sequence[int]) -> str:
    more = net.momentum is not None
    wide = any(not fused.further(w.ih.shape[1] + (more and w.b_ih is not None)) for w in net.weights)
    apart = "; W x of a wide input by a product of its own" if wide else ""
    return f"fused kernels, 16-bit operands, sums in float32{apart}"


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
    return _layer(x, sizes, net.weights[0], net.momentum, hidden, None)


def layer(
    x: Tensor,
    sizes: Sequence[int],
    w: Weights,
    net: Network,
    hidden: Sequence[Tensor],
    moments: MomentumState | None,
) -> Result:
    """See `stack.Layer`."""
    y, final, after = _layer(x, sizes, w, net.momentum, [h.unsqueeze(0) for h in hidden], moments)
    return y, tuple(h.squeeze(0) for h in final), after


def _layer(
    x: Tensor,
    sizes: Sequence[int],
    w: Weights,
    m: Momentum | None,
    hidden: Sequence[Tensor],
    moments: MomentumState | None,
) -> Result:
    """`layer`, its hidden state having a leading axis of 1."""
    x = pad(x, sizes)
    columns, size = w.ih.shape[1], w.hh.shape[1]
    if x.shape[2] != columns or hidden[0].shape[2] != size:
        expected = f"weights should be for {x.shape[2]} features and {hidden[0].shape[2]} hidden units"
        raise RuntimeError(f"{expected}, got some for {columns} and {size}")
    decay = None if m is None or moments is not None else _constants(m, x)
    if m is None or decay is not None:
        step = 1.0 if m is None else float(m.step)
        return *_recur(x, w.ih, w.b_ih, w, hidden, decay, step), None
    # It goes on, or is learned: then the drive comes first, and is what the kernels have for an input.
    v, _ = m.moments(linear(x, w.ih, w.b_ih), moments)
    after = moments and MomentumState(v[-1], moments.n, moments.k + len(v))
    return *_recur(v, None, None, w, hidden), after


def _recur(
    x: Tensor,
    w_ih: Tensor | None,
    b_ih: Tensor | None,
    w: Weights,
    hidden: Sequence[Tensor],
    decay: Tensor | None = None,
    step: float = 1.0,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The operator on one replica. All shapes were checked: not again, as op.lstm would."""
    tensors = (None if t is None else t.unsqueeze(0) for t in (x, w_ih, w.hh, b_ih, w.b_hh))
    y, h, c, _, _ = op._lstm(*tensors, *hidden, decay, step, False)
    return y.flatten(0, 2), (h, c)


def _constants(m: Momentum, x: Tensor) -> Tensor | None:
    """The decay of each step, (T, 1), unless a gradient or vmap's axis may hang on it."""
    if type(m) in _KNOWN:
        return _table(m, x)
    if torch._C._are_functorch_transforms_active():
        return None
    decay = _decays(m, len(x), x.device, x.dtype)
    return None if decay.requires_grad else decay


def _decays(m: Momentum, steps: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    like = torch.empty(0, dtype=dtype, device=device)
    return m.decays(torch.arange(steps, device=device), like).contiguous()


def _table(m: Momentum, x: Tensor) -> Tensor:
    """The decays of a known momentum, from a table. Tables are never dropped: CUDA graphs may read them."""
    steps, device, dtype = len(x), x.device, x.dtype
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
    if dtype != torch.float32:
        return f"the layer is in {dtype}, and its kernels in torch.float32"
    if torch.is_autocast_enabled("cuda"):
        return "autocast is on, which its kernels don't follow yet"
    # What torch.backends.cudnn.allow_tf32 and torch.backends.cudnn.rnn.fp32_precision come to for layers.
    if torch._C._get_fp32_precision_getter("cuda", "rnn") != "tf32":
        return "torch.backends.cudnn.allow_tf32 is off, and its products have 16-bit operands"
    return _lacking(device)


# So that torch.compile asks once, and does not look inside.
_machine._dynamo_marked_constant = True  # type: ignore[attr-defined]


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
