"""A layer of many LSTMs as operators of torch: their definition, and how autograd, vmap and tracing see them.

    v_t = decay_t v_{t-1} + step (W x_t + b_ih), v_{-1} = 0     the drive; without a decay W x_t + b_ih
    i, f, g, o = v_t + U h_{t-1} + b_hh
    c_t = σ(f) c_{t-1} + σ(i) tanh(g),  h_t = σ(o) tanh(c_t)

Every tensor but decay has a leading axis: R replicas, or 1, which all replicas share.

    x (R, T, B, D), w_ih (R, 4H, D), w_hh (R, 4H, H), b_ih and b_hh (R, 4H), h0 and c0 (R, B, H);
    decay (T, 1) or (T, B), which has no gradient; without w_ih, b_ih and decay, x is the drive, (R, T, B, 4H)

`momentumrnn::lstm` returns y (R, T, B, H), the final h and c (R, B, H) and, where it should keep them, two
buffers that only `fused` can read. `momentumrnn::lstm_backward` returns gradients in the inputs' shapes: of a
shared input the sum over all replicas, of one that needs none an empty tensor. On a CPU the definition runs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

_inputs = (
    "Tensor x, Tensor? w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh, Tensor h0, Tensor c0, "
    "Tensor? decay, float step"
)
_library: Any = torch.library.Library("momentumrnn", "DEF")  # type: ignore[no-untyped-call]
_library.define(f"lstm({_inputs}, bool keep) -> (Tensor y, Tensor h, Tensor c, Tensor gates, Tensor cells)")
_library.define(
    f"lstm_backward(Tensor? dy, Tensor? dh, Tensor? dc, Tensor y, Tensor gates, Tensor cells, {_inputs}, "
    "bool[] needs) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_lstm: Any = torch.ops.momentumrnn.lstm.default
_lstm_backward: Any = torch.ops.momentumrnn.lstm_backward.default


def _run(
    x: Tensor,
    w_ih: Tensor | None,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    h: Tensor,
    c: Tensor,
    decay: Tensor | None,
    step: float,
) -> tuple[list[tuple[Tensor, Tensor, Tensor, Tensor]], list[Tensor], list[Tensor]]:
    """The definition: σ(i), σ(f), tanh(g) and σ(o) of all steps; h and c, those of the beginning first."""
    a = x if w_ih is None else x @ w_ih.mT.unsqueeze(1)
    a = step * (a if b_ih is None else a + b_ih[:, None, None])
    v, gates, hs, cs = torch.zeros_like(a[:, 0]), [], [h], [c]
    for t, a_t in enumerate(a.unbind(1)):
        v = a_t if decay is None else decay[t, :, None] * v + a_t
        z = v + hs[t] @ w_hh.mT
        i, f, g, o = (z if b_hh is None else z + b_hh[:, None]).chunk(4, -1)
        gates.append((i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()))
        i, f, g, o = gates[t]
        cs.append(f * cs[t] + i * g)
        hs.append(o * cs[-1].tanh())
    return gates, hs, cs


def _gradients(
    dy: Tensor | None,
    dh: Tensor | None,
    dc: Tensor | None,
    x: Tensor,
    w_ih: Tensor | None,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    h0: Tensor,
    c0: Tensor,
    decay: Tensor | None,
    step: float,
    needs: Sequence[bool],
) -> tuple[Tensor, ...]:
    """What `lstm_backward` returns, by the definition."""
    gates, hs, cs = _run(x, w_ih, w_hh, b_ih, b_hh, h0, c0, decay, step)
    zero = torch.zeros_like(cs[-1])
    dh, dc = (zero if d is None else d for d in (dh, dc))
    dzs: list[Tensor] = []
    dvs: list[Tensor] = []
    for t in reversed(range(len(gates))):
        i, f, g, o = gates[t]
        u = cs[t + 1].tanh()
        dh = dh if dy is None else dh + dy[:, t]
        dc = dc + dh * o * (1 - u * u)
        parts = dc * g * i * (1 - i), dc * cs[t] * f * (1 - f), dc * i * (1 - g * g), dh * u * o * (1 - o)
        dzs.append(torch.cat(parts, -1))
        dvs.append(dzs[-1] if decay is None or not dvs else dzs[-1] + decay[t + 1, :, None] * dvs[-1])
        dh, dc = dzs[-1] @ w_hh, dc * f
    dz, da = torch.stack(dzs[::-1], 1), step * torch.stack(dvs[::-1], 1)
    before = torch.stack([h.expand_as(zero) for h in hs[:-1]], 1)
    found = (
        da if w_ih is None else da @ w_ih.unsqueeze(1),
        torch.einsum("rtbg,rtbd->rgd", da, x.expand(len(da), -1, -1, -1)),
        torch.einsum("rtbg,rtbh->rgh", dz, before),
        da.sum((1, 2)),
        dz.sum((1, 2)),
        dh,
        dc,
    )
    inputs = x, w_ih, w_hh, b_ih, b_hh, h0, c0
    return tuple(
        x.new_empty(0) if t is None or not n else d.sum(0, keepdim=True) if len(t) < len(d) else d
        for t, d, n in zip(inputs, found, needs, strict=True)
    )


def _on_cpu(*args: Any) -> tuple[Tensor, ...]:
    *given, keep = args
    _, hs, cs = _run(*given)
    y = torch.stack(hs[1:], 1)
    return y, hs[-1], cs[-1], *(b.zero_() for b in _buffers(y, keep))


def _backward_on_cpu(*args: Any) -> tuple[Tensor, ...]:
    return tuple(g.contiguous() for g in _gradients(*args[:3], *args[6:]))


def _on_cuda(*args: Any) -> tuple[Tensor, ...]:
    from . import fused

    return fused.forward(*args)


def _backward_on_cuda(*args: Any) -> tuple[Tensor, ...]:
    from . import fused

    return fused.backward(*args)


def _traced(*args: Any) -> tuple[Tensor, ...]:
    x, _, w_hh, *_, h0, _, _, _, keep = args
    replicas = max(t.shape[0] for t in args[:7] if t is not None)
    y = x.new_empty(replicas, *x.shape[1:3], w_hh.shape[2])
    h, c = (x.new_empty(replicas, *h0.shape[1:]) for _ in range(2))
    return y, h, c, *_buffers(y, keep)


def _backward_traced(*args: Any) -> tuple[Tensor, ...]:
    x, needs = args[6], args[-1]
    return tuple(x.new_empty(t.shape if n else 0) for t, n in zip(args[6:13], needs, strict=True))


def _buffers(y: Tensor, keep: bool) -> list[Tensor]:
    """Room for what `lstm` keeps."""
    from . import fused

    return [y.new_empty(n, dtype=torch.int32) for n in (fused.kept(*y.shape) if keep else (0, 0))]


def _below(op: Any, keys: torch._C.DispatchKeySet, args: Sequence[Any]) -> Any:
    """The operator without autograd."""
    with torch._C._AutoDispatchBelowAutograd():
        return op.redispatch(keys & torch._C._after_autograd_keyset, *args)


class _Forward(_SingleLevelFunction):
    @staticmethod
    def forward(ctx: Any, keys: torch._C.DispatchKeySet, *args: Any) -> Any:
        if ctx.needs_input_grad[8]:
            raise ValueError("decay should not require a gradient, for it has none")
        *given, _ = args
        # Below this level of autograd there may be others, of torch.func, which should follow what is done.
        with torch.enable_grad():
            y, h, c, gates, cells = _below(_lstm, keys, (*given, True))
        *tensors, ctx.step = given
        ctx.save_for_backward(y, gates, cells, *tensors)
        ctx.set_materialize_grads(False)
        return y, h, c, gates, cells

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        needs = ctx.needs_input_grad[1:8]
        found = _lstm_backward(*grads[:3], *ctx.saved_tensors, ctx.step, needs)
        return None, *(g if n else None for g, n in zip(found, needs, strict=True)), None, None, None


class _Backward(_SingleLevelFunction):
    """Differentiates the definition: what `lstm` kept are constants to autograd, not to mathematics."""

    @staticmethod
    def forward(ctx: Any, keys: torch._C.DispatchKeySet, *args: Any) -> Any:
        ctx.step, ctx.needs = args[14:]
        ctx.save_for_backward(*args[:3], *args[6:14])
        ctx.set_materialize_grads(False)
        with torch.enable_grad():
            return _below(_lstm_backward, keys, args)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        *tensors, decay = ctx.saved_tensors
        rest: list[Any] = [decay, ctx.step, ctx.needs]
        needs = ctx.needs_input_grad[1:4] + ctx.needs_input_grad[7:14]

        def again(*needed: Tensor) -> tuple[Tensor, ...]:
            given = iter(needed)
            every: list[Any] = [next(given) if n else t for t, n in zip(tensors, needs, strict=True)]
            return _gradients(*every, *rest)

        # Unlike torch.autograd.grad, it also runs under torch.func.
        values, pull, *_ = torch.func.vjp(again, *(t for t, n in zip(tensors, needs, strict=True) if n))
        grads = tuple(torch.zeros_like(v) if g is None else g for v, g in zip(values, grads, strict=True))
        given = iter(pull(grads))
        found = [next(given) if n else None for n in needs]
        return None, *found[:3], None, None, None, *found[3:], None, None, None


def _differentiable(op: Any, function: Any) -> Callable[..., Any]:
    """A kernel for autograd. torch.library.register_autograd has a slower one, which torch.func refuses."""

    def kernel(keys: torch._C.DispatchKeySet, *args: Any) -> Any:
        # In forward mode it is there to refuse: without it such derivatives would be 0.
        if (torch.is_grad_enabled() and torch._C._any_requires_grad(*args)) or forward_ad._current_level >= 0:
            with enable_single_level_autograd_function():
                return function.apply(keys, *args)
        return _below(op, keys, args)

    return kernel


def _moved(tensors: Sequence[Tensor | None], dims: Sequence[int | None]) -> list[Any]:
    """The tensors as (N or 1, R or 1, ...), N being the size of the axis that vmap runs over."""
    return [
        None if t is None else t.unsqueeze(0) if d is None else t.movedim(d, 0)
        for t, d in zip(tensors, dims, strict=True)
    ]


def _fold(t: Tensor | None, size: int, replicas: int, shared: bool = True) -> Tensor | None:
    """A moved tensor with both axes in one, of size N R, or 1 if it may be shared."""
    if t is None:
        return None
    if shared and t.shape[:2] == (1, 1):
        return t[0]
    return t.expand(size, replicas, *t.shape[2:]).flatten(0, 1)


def _batched(info: Any, dims: Any, *args: Any) -> Any:
    if dims[7] is not None:
        raise ValueError("decay should be the same for all: vmap can't run over it")
    tensors = _moved(args[:7], dims[:7])
    replicas = max(t.shape[1] for t in tensors if t is not None)
    folded = [_fold(t, info.batch_size, replicas) for t in tensors]
    *outputs, gates, cells = _lstm(*folded, *args[7:])
    outputs = [o.unflatten(0, (info.batch_size, replicas)) for o in outputs]
    # The buffers are for all at once: they have no axis of vmap's.
    return (*outputs, gates, cells), (0, 0, 0, None, None)


def _backward_batched(info: Any, dims: Any, *args: Any) -> Any:
    dy, dh, dc, y, *inputs = _moved([*args[:4], *args[6:13]], [*dims[:4], *dims[6:13]])
    size, replicas, needs = info.batch_size, y.shape[1], args[-1]
    # One gradient for each of vmap's: an input that they share won't do.
    folded = [_fold(t, size, replicas, not n) for t, n in zip(inputs, needs, strict=True)]
    if dims[3] is None:
        # The layer ran outside of this vmap, and kept too little.
        kept, _, _, gates, cells = _lstm(*folded, *args[13:15], True)
    else:
        kept, gates, cells = _fold(y, size, replicas), *args[4:6]
    grads = (_fold(g, size, replicas, False) for g in (dy, dh, dc))
    found = list(_lstm_backward(*grads, kept, gates, cells, *folded, *args[13:]))
    for i, (t, need) in enumerate(zip(inputs, needs, strict=True)):
        if need:
            found[i] = found[i].unflatten(0, (size, replicas))
            if t.shape[1] < replicas:
                found[i] = found[i].sum(1, keepdim=True)
    return tuple(found), tuple(0 if n else None for n in needs)


for _op, _function, _cpu, _cuda, _fake, _vmap in (
    (_lstm, _Forward, _on_cpu, _on_cuda, _traced, _batched),
    (_lstm_backward, _Backward, _backward_on_cpu, _backward_on_cuda, _backward_traced, _backward_batched),
):
    _name = _op.name()
    _library.impl(_name, _cpu, "CPU")
    _library.impl(_name, _cuda, "CUDA")
    _library.impl(_name, _differentiable(_op, _function), "Autograd", with_keyset=True)
    torch.library.register_fake(_name, _fake, lib=_library)
    torch.library.register_vmap(_name, _vmap, lib=_library)


def lstm(
    x: Tensor,
    w_ih: Tensor | None,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    h0: Tensor,
    c0: Tensor,
    decay: Tensor | None = None,
    step: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, h and c of one direction of one layer, in the shapes above."""
    _check(x, w_ih, w_hh, b_ih, b_hh, h0, c0, decay, step)
    # Nothing is kept unless autograd says so: under torch.func nobody else can know.
    y, h, c, _, _ = _lstm(x, w_ih, w_hh, b_ih, b_hh, h0, c0, decay, step, False)
    return y, h, c


def _check(
    x: Tensor,
    w_ih: Tensor | None,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    h0: Tensor,
    c0: Tensor,
    decay: Tensor | None,
    step: float,
) -> None:
    if x.dim() != 4 or x.shape[1] == 0:
        raise ValueError(f"x should have shape (R, T, B, D), T at least 1, got {tuple(x.shape)}")
    if w_hh.dim() != 3:
        raise ValueError(f"w_hh should have shape (R, 4H, H), got {tuple(w_hh.shape)}")
    if w_ih is None and not (b_ih is None and decay is None):
        raise ValueError("b_ih and decay should be None where w_ih is None, got a tensor")
    if decay is None and step != 1:
        raise ValueError(f"step should be 1 where decay is None, got {step}")
    _, steps, rows, features = x.shape
    size = w_hh.shape[2]
    gates = 4 * size
    expected = (
        ("x", x, (steps, rows, gates if w_ih is None else features)),
        ("w_ih", w_ih, (gates, features)),
        ("w_hh", w_hh, (gates, size)),
        ("b_ih", b_ih, (gates,)),
        ("b_hh", b_hh, (gates,)),
        ("h0", h0, (rows, size)),
        ("c0", c0, (rows, size)),
    )
    given = [(name, t.shape, shape) for name, t, shape in expected if t is not None]
    for name, got, shape in given:
        if got[1:] != shape:
            wanted = ", ".join(map(str, shape))
            raise ValueError(f"{name} should have shape (R, {wanted}), got {tuple(got)}")
    replicas = max([got[0] for _, got, _ in given])
    for name, got, _ in given:
        if got[0] != replicas and got[0] != 1:
            raise ValueError(f"{name} should have a leading axis of {replicas} or 1, got shape {tuple(got)}")
    if decay is not None and decay.shape != (steps, rows) and decay.shape != (steps, 1):
        raise ValueError(f"decay should have shape ({steps}, {rows} or 1), got {tuple(decay.shape)}")
