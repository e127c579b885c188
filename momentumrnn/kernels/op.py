"""One LSTM layer, or R replicas of it, as operators of torch; autograd, vmap and tracing of them.

    a_t = W x_t + b_ih
    v_t = decay v_{t-1} + gain a_t           the drive; without a momentum it is a_t
    n_t = beta n_{t-1} + (1 - beta) a_t²     with a beta: the drive is v_t / sqrt(n_t + eps²)
                                             or v_t / (sqrt(n_t) + eps)
    z_t = drive_t + U h_{t-1} + b_hh
    i, f, g, o = z_t                         in an extrapolated layer z_t + j / (j + 3) (z_t - z_{t-1})
    c_t = σ(f) c_{t-1} + σ(i) tanh(g),  h_t = σ(o) tanh(c_t)

`Inputs` says what each input is. `momentumrnn::lstm` returns y, (R, T, B, H) or (R, N, H), and the final h
and c, (R, B, H). It returns the final z, v and n, (R, B, 4H), where their first ones were given, else empty
tensors. Last come three buffers for the backward pass on a GPU, which are empty unless `keep` is true.
`momentumrnn::lstm_backward` returns gradients in the inputs' shapes. That of a shared input is the sum over
all replicas; that of an input that needs none is an empty tensor. On a CPU `lstm_by_reference` runs.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from .. import torch_internals
from ..torch_internals import DispatchKeySet, call_below_autograd
from . import lstm_backward, lstm_by_reference, lstm_forward
from .inputs import REPLICATED, TENSORS, Inputs
from .sizes import saved_sizes, sizes_of

OUTPUTS = 6
# Position of the first input that is no tensor. The two tensors before it, j0 and decay, have no gradient.
FIRST_OPTION = TENSORS + 2
# For the arguments after the tensors that may need a gradient: the other inputs, and `keep` or `needs`.
NO_GRADIENTS = (None,) * (len(Inputs._fields) - TENSORS + 1)
# Position of the first input among the arguments of lstm_backward: after the gradients, y and the saved
# tensors.
FIRST_INPUT = OUTPUTS + 4

_kinds = {Tensor | None: "Tensor?", float | None: "float?", Sequence[int]: "int[]"}
_inputs = ", ".join(f"{_kinds.get(t) or t.__name__} {name}" for name, t in Inputs.__annotations__.items())
_outputs = "Tensor y, Tensor h, Tensor c, Tensor z, Tensor v, Tensor n"
_saved = "Tensor gates, Tensor cells, Tensor moments"
_library: Any = torch.library.Library("momentumrnn", "DEF")  # type: ignore[no-untyped-call]
_library.define(f"lstm({_inputs}, bool keep) -> ({_outputs}, {_saved})")
_library.define(
    "lstm_backward(Tensor? dy, Tensor? dh, Tensor? dc, Tensor? dz, Tensor? dv, Tensor? dn, Tensor y_, "
    f"{_saved}, {_inputs}, bool[] needs) -> ({', '.join(['Tensor'] * TENSORS)})"
)
_lstm: Any = torch.ops.momentumrnn.lstm.default
_lstm_backward: Any = torch.ops.momentumrnn.lstm_backward.default


def _on_cpu(*args: Any) -> tuple[Tensor, ...]:
    inputs, keep = Inputs(*args[:-1]), args[-1]
    outputs = [t.clone(memory_format=torch.contiguous_format) for t in lstm_by_reference.outputs(inputs)]
    return *outputs, *(b.zero_() for b in _buffers(inputs, keep))


def _backward_on_cpu(*args: Any) -> tuple[Tensor, ...]:
    # torch.func fails under some modes of torch; a new thread has none.
    with ThreadPoolExecutor(1) as thread:
        inputs = Inputs(*args[FIRST_INPUT:-1])
        gradients = thread.submit(lstm_by_reference.gradients, args[:OUTPUTS], inputs, args[-1]).result()
    return tuple(g.detach().contiguous() for g in gradients)


def _on_cuda(*args: Any) -> tuple[Tensor, ...]:
    return lstm_forward.forward(Inputs(*args[:-1]), args[-1])


def _backward_on_cuda(*args: Any) -> tuple[Tensor, ...]:
    return lstm_backward.backward(
        args[:OUTPUTS], args[OUTPUTS:FIRST_INPUT], Inputs(*args[FIRST_INPUT:-1]), args[-1]
    )


def _traced(*args: Any) -> tuple[Tensor, ...]:
    inputs, keep = Inputs(*args[:-1]), args[-1]
    x, rows, size = inputs.x, inputs.h0.shape[1], inputs.w_hh.shape[2]
    replicas = inputs.replicas
    y = x.new_empty(replicas, *x.shape[1:-1], size)
    h, c = (x.new_empty(replicas, rows, size) for _ in range(2))
    firsts = inputs.z0, inputs.v0, inputs.n0
    last = [x.new_empty(0 if t is None else (replicas, rows, 4 * size)) for t in firsts]
    return y, h, c, *last, *_buffers(inputs, keep)


def _backward_traced(*args: Any) -> tuple[Tensor, ...]:
    tensors, needs = args[FIRST_INPUT : FIRST_INPUT + TENSORS], args[-1]
    x = tensors[0]
    return tuple(
        x.new_empty(0 if t is None or not n else t.shape) for t, n in zip(tensors, needs, strict=True)
    )


def _buffers(inputs: Inputs, keep: bool) -> list[Tensor]:
    """Room for what `lstm` saves for its backward."""
    lengths = saved_sizes(inputs, sizes_of(inputs)) if keep else (0, 0, 0)
    return [inputs.x.new_empty(length, dtype=torch.int32) for length in lengths]


class _Forward(torch_internals.SingleLevelFunction):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, keys: DispatchKeySet, *args: Any) -> Any:
        for name, needed in zip(Inputs._fields, ctx.needs_input_grad[1:], strict=False):
            if needed and name in ("decay", "j0"):
                raise ValueError(f"{name} should not require a gradient, for it has none")
        *given, _ = args
        # Outer levels of autograd, of torch.func, must still record this call.
        with torch.enable_grad():
            outputs = call_below_autograd(_lstm, keys, (*given, True))
        ctx.options = given[FIRST_OPTION:]
        ctx.save_for_backward(outputs[0], *outputs[OUTPUTS:], *given[:FIRST_OPTION])
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        needs = ctx.needs_input_grad[1 : 1 + TENSORS]
        gradients = _lstm_backward(*grads[:OUTPUTS], *ctx.saved_tensors, *ctx.options, needs)
        needed = (g if need else None for g, need in zip(gradients, needs, strict=True))
        return None, *needed, *NO_GRADIENTS


class _Backward(torch_internals.SingleLevelFunction):  # type: ignore[misc]
    """Differentiates the definition, because the buffers that `lstm` saved are constants to autograd."""

    @staticmethod
    def forward(ctx: Any, keys: DispatchKeySet, *args: Any) -> Any:
        *ctx.options, ctx.needs = args[FIRST_INPUT + FIRST_OPTION :]
        ctx.save_for_backward(*args[:OUTPUTS], *args[FIRST_INPUT : FIRST_INPUT + FIRST_OPTION])
        ctx.set_materialize_grads(False)
        with torch.enable_grad():
            return call_below_autograd(_lstm_backward, keys, args)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        tensors, constants = ctx.saved_tensors[:-2], ctx.saved_tensors[-2:]
        needs = (
            ctx.needs_input_grad[1 : 1 + OUTPUTS]
            + ctx.needs_input_grad[1 + FIRST_INPUT : 1 + FIRST_INPUT + TENSORS]
        )

        def first_gradients(*needed: Tensor) -> tuple[Tensor, ...]:
            given = iter(needed)
            all_tensors: list[Any] = [
                next(given) if need else t for t, need in zip(tensors, needs, strict=True)
            ]
            inputs = Inputs(*all_tensors[OUTPUTS:], *constants, *ctx.options)
            return lstm_by_reference.gradients(all_tensors[:OUTPUTS], inputs, ctx.needs)

        moving = (t for t, need in zip(tensors, needs, strict=True) if need)
        values, pull, *_ = torch.func.vjp(first_gradients, *moving)
        grads = tuple(torch.zeros_like(v) if g is None else g for v, g in zip(values, grads, strict=True))
        pulled = iter(pull(grads))
        second = [next(pulled) if need else None for need in needs]
        between = [None] * (FIRST_INPUT - OUTPUTS)
        return None, *second[:OUTPUTS], *between, *second[OUTPUTS:], *NO_GRADIENTS


def _differentiable(op: Any, function: Any) -> Callable[..., Any]:
    """The autograd kernel of an operator.

    That of torch.library.register_autograd is slower, and torch.func refuses it.
    """

    def kernel(keys: DispatchKeySet, *args: Any) -> Any:
        follows = torch.is_grad_enabled() and torch_internals.any_requires_grad(args)
        # In forward mode the function raises; without it the derivatives would silently be 0.
        if follows or torch_internals.forward_mode_active():
            with torch_internals.allow_single_level_functions():
                return function.apply(keys, *args)
        return call_below_autograd(op, keys, args)

    return kernel


def _batch_axis_first(tensors: Sequence[Tensor | None], dims: Sequence[int | None]) -> list[Any]:
    """The tensors as (N or 1, R or 1, ...), N being the size of the axis that vmap runs over."""
    return [
        None if t is None else t.unsqueeze(0) if d is None else t.movedim(d, 0)
        for t, d in zip(tensors, dims, strict=True)
    ]


def _fold(t: Tensor | None, size: int, replicas: int, shared: bool = True) -> Tensor | None:
    """A tensor of `_batch_axis_first` with both axes in one, of size N R, or 1 if it may be shared."""
    if t is None:
        return None
    if shared and t.shape[:2] == (1, 1):
        return t[0]
    return t.expand(size, replicas, *t.shape[2:]).flatten(0, 1)


def _check_decay(dim: int | None) -> None:
    if dim is not None:
        raise ValueError("decay should be the same for all: vmap can't run over it")


def _batched(info: Any, dims: Any, *args: Any) -> Any:
    _check_decay(dims[REPLICATED])
    tensors = _batch_axis_first(args[:REPLICATED], dims[:REPLICATED])
    replicas = max(t.shape[1] for t in tensors if t is not None)
    outputs = _lstm(*(_fold(t, info.batch_size, replicas) for t in tensors), *args[REPLICATED:])
    # The buffers serve all replicas together, so they have no axis for vmap. Empty outputs have none either.
    own = [i < OUTPUTS and t.dim() > 1 for i, t in enumerate(outputs)]
    unfolded = (
        t.unflatten(0, (info.batch_size, replicas)) if o else t for t, o in zip(outputs, own, strict=True)
    )
    return tuple(unfolded), tuple(0 if o else None for o in own)


def _backward_batched(info: Any, dims: Any, *args: Any) -> Any:
    last = FIRST_INPUT + REPLICATED
    _check_decay(dims[last])
    *grads, y = _batch_axis_first(args[: OUTPUTS + 1], dims[: OUTPUTS + 1])
    inputs = _batch_axis_first(args[FIRST_INPUT:last], dims[FIRST_INPUT:last])
    size, replicas, needs = info.batch_size, y.shape[1], args[-1]
    # vmap wants one gradient for each element, so a shared input is expanded.
    folded = [_fold(t, size, replicas, not n) for t, n in zip(inputs, [*needs, False], strict=True)]
    if dims[OUTPUTS] is None:
        # The forward pass ran outside this vmap and saved nothing for it: run it again.
        recomputed = _lstm(*folded, *args[last:-1], True)
        saved = recomputed[0], *recomputed[OUTPUTS:]
    else:
        saved = _fold(y, size, replicas), *args[OUTPUTS + 1 : FIRST_INPUT]
    # The gradient of an empty output is empty too: it has no axis to fold.
    given = (None if g is None or g.dim() < 4 else _fold(g, size, replicas, False) for g in grads)
    gradients = list(_lstm_backward(*given, *saved, *folded, *args[last:]))
    for i, (t, need) in enumerate(zip(inputs, needs, strict=False)):
        if need:
            gradients[i] = gradients[i].unflatten(0, (size, replicas))
            if t.shape[1] < replicas:
                gradients[i] = gradients[i].sum(1, keepdim=True)
    return tuple(gradients), tuple(0 if n else None for n in needs)


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


def lstm(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    """y, h, c, z, v and n of one direction of one layer; arguments are those of `Inputs`, checked."""
    inputs = Inputs(*args, **kwargs)
    _check(inputs)
    # Only the autograd kernel asks for saved tensors.
    return tuple(_lstm(*inputs, False)[:OUTPUTS])


def _check(inputs: Inputs) -> None:
    x, w_hh, sizes = inputs.x, inputs.w_hh, list(inputs.sizes)
    if sizes:
        if any(b > a for a, b in zip([*sizes[:1], *sizes], sizes, strict=False)) or sizes[-1] < 1:
            raise ValueError(f"sizes should fall from step to step, to 1 at least, got {sizes}")
        if x.dim() != 3 or x.shape[1] != sum(sizes):
            raise ValueError(
                f"x should have shape (R, {sum(sizes)}, D) with these sizes, got {tuple(x.shape)}"
            )
    elif x.dim() != 4 or x.shape[1] == 0:
        raise ValueError(f"x should have shape (R, T, B, D), T at least 1, got {tuple(x.shape)}")
    if w_hh.dim() != 3:
        raise ValueError(f"w_hh should have shape (R, 4H, H), got {tuple(w_hh.shape)}")
    momenta = {
        name: getattr(inputs, name) is not None for name in ("decay", "mu", "gain", "v0", "n0", "beta")
    }
    if inputs.w_ih is None and (inputs.b_ih is not None or any(momenta.values())):
        name = next(name for name in ("b_ih", *momenta) if getattr(inputs, name) is not None)
        raise ValueError(f"{name} should be None where w_ih is None")
    if (momenta["decay"] + momenta["mu"]) != any((*momenta.values(), inputs.step != 1)):
        raise ValueError(
            "a momentum should have one of decay and mu, got " + ("both" if momenta["mu"] else "none")
        )
    if momenta["gain"] and inputs.step != 1:
        raise ValueError(f"step should be 1 where gain is given, got {inputs.step}")
    if momenta["n0"] != (momenta["v0"] and momenta["beta"]):
        raise ValueError("n0 should be given where v0 and beta are, and only there")
    if (inputs.z0 is None) != (inputs.j0 is None):
        raise ValueError("z0 and j0 should be given both or not at all")
    rows, steps = (sizes[0], len(sizes)) if sizes else (x.shape[2], x.shape[1])
    lead, size, features = x.shape[1:-1], w_hh.shape[2], x.shape[-1]
    gates = 4 * size
    shapes = {
        "x": (*lead, gates if inputs.w_ih is None else features),
        "w_ih": (gates, features),
        "w_hh": (gates, size),
        **dict.fromkeys(("b_ih", "b_hh", "mu", "gain"), (gates,)),
        **dict.fromkeys(("h0", "c0"), (rows, size)),
        **dict.fromkeys(("z0", "v0", "n0"), (rows, gates)),
        "j0": (rows,),
    }
    got: Any
    given = {name: t.shape for name in shapes if (t := getattr(inputs, name)) is not None}
    for name, got in given.items():
        if got[1:] != shapes[name]:
            wanted = ", ".join(map(str, shapes[name]))
            raise ValueError(f"{name} should have shape (R, {wanted}), got {tuple(got)}")
    replicas = max(got[0] for got in given.values())
    for name, got in given.items():
        if got[0] != replicas and got[0] != 1:
            raise ValueError(f"{name} should have a leading axis of {replicas} or 1, got shape {tuple(got)}")
    decay = inputs.decay
    if decay is not None and decay.shape != (steps, rows) and decay.shape != (steps, 1):
        raise ValueError(f"decay should have shape ({steps}, {rows} or 1), got {tuple(decay.shape)}")
