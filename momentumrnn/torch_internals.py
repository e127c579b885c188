"""Every private name of torch that the library uses, why it does, and the public way to wait for.

No other file of the package touches a private name of torch. `missing` lists those that a newer torch lost.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

if TYPE_CHECKING:
    from torch._C import DispatchKeySet as DispatchKeySet

F = TypeVar("F", bound=Callable[..., Any])


class Internal(NamedTuple):
    """One private name: where it is, why the library uses it, and the public way that would replace it."""

    name: str
    reason: str
    awaited: str
    cuda_only: bool = False  # torch for a CPU does not have it


REGISTER_AUTOGRAD = "torch.library.register_autograd, once torch.func accepts the operators that it makes"
HAS_VMAP_AXIS = "a public question whether vmap runs over a tensor"
INTERNALS = (
    Internal(
        "torch._C._cuda_getCurrentRawStream",
        "torch.cuda.current_stream() makes a Stream object, at each of about ten launches of a layer",
        "a function of torch.cuda that returns the current stream as a number",
        cuda_only=True,
    ),
    Internal(
        "torch._C._cuda_getDevice",
        "torch.cuda.current_device() first makes sure that CUDA is initialised, at each launch",
        "torch.cuda.current_device() without that check",
        cuda_only=True,
    ),
    Internal(
        "torch._C._AutoDispatchBelowAutograd",
        "the autograd kernel of an operator calls the same operator without autograd",
        REGISTER_AUTOGRAD,
    ),
    Internal(
        "torch._C._after_autograd_keyset",
        "as _AutoDispatchBelowAutograd: the dispatch keys that remain below autograd",
        REGISTER_AUTOGRAD,
    ),
    Internal(
        "torch._C._any_requires_grad",
        "finds a tensor that requires a gradient among up to 32 arguments without a loop in Python",
        REGISTER_AUTOGRAD,
    ),
    Internal(
        "torch._C.DispatchKeySet",
        "the type of the first argument of an autograd kernel",
        REGISTER_AUTOGRAD,
    ),
    Internal(
        "torch.autograd.function._SingleLevelFunction",
        "an autograd function that acts at one level of torch.func, as the kernel of an operator must",
        REGISTER_AUTOGRAD,
    ),
    Internal(
        "torch._functorch.utils.enable_single_level_autograd_function",
        "as _SingleLevelFunction: without it torch refuses to apply one",
        REGISTER_AUTOGRAD,
    ),
    Internal(
        "torch.autograd.forward_ad._current_level",
        "tells whether forward-mode derivatives are taken, which our operators must refuse",
        "a public question such as torch.autograd.forward_ad.is_active()",
    ),
    Internal(
        "torch._C._are_functorch_transforms_active",
        "tells whether a transform of torch.func, such as vmap, is active",
        "a public question of torch.func",
    ),
    Internal(
        "torch._C._functorch.is_legacy_batchedtensor",
        "recognises the gradients of torch.autograd.grad(..., is_grads_batched=True)",
        "is_grads_batched on top of torch.func.vmap",
    ),
    Internal(
        "torch._C._functorch.is_functorch_wrapped_tensor",
        "looks for the axis of vmap in the decay that a user's own momentum returns",
        HAS_VMAP_AXIS,
    ),
    Internal("torch._C._functorch.is_batchedtensor", "as is_functorch_wrapped_tensor", HAS_VMAP_AXIS),
    Internal("torch._C._functorch.get_unwrapped", "as is_functorch_wrapped_tensor", HAS_VMAP_AXIS),
    Internal(
        "torch._C._len_torch_dispatch_stack",
        "tells whether a dispatch mode is active: a tensor made under one must not be cached",
        "a public question whether a TorchDispatchMode is active",
    ),
    Internal(
        "torch.compiler._is_exporting_flag",
        "in torch 2.11 torch.compiler.is_exporting() is true under torch.compile too",
        "torch.compiler.is_exporting(), once torch 2.11 is no longer supported",
    ),
    Internal(
        "torch.compiler.assume_constant_result()._dynamo_marked_constant",
        "torch.compiler.assume_constant_result imports torch._dynamo, which takes seconds",
        "torch.compiler.assume_constant_result without that import",
    ),
    Internal(
        "torch.ops.mkldnn._is_mkldnn_bf16_supported",
        "under autocast torch's LSTM raises on a processor where oneDNN has no LSTM in 16 bits",
        "torch.lstm without that error",
    ),
    Internal(
        "torch.ops.mkldnn._is_mkldnn_fp16_supported",
        "as _is_mkldnn_bf16_supported",
        "torch.lstm without that error",
    ),
    Internal(
        "torch.utils._pytree.register_pytree_node",
        "a State is a tuple of its own, which torch.func, torch.export and others should look into",
        "a public torch.utils.pytree.register_pytree_node",
    ),
    Internal(
        "torch.utils._pytree.SequenceKey",
        "as register_pytree_node: torch.export names the entries of a State",
        "a public torch.utils.pytree.register_pytree_node",
    ),
    Internal(
        "torch.nn.Module._parameters",
        "a Stream compares the addresses of all weights at each step, and named_parameters() takes 3 µs; "
        "a layer reads its weights at each call, and getattr() takes half a microsecond for each",
        "torch.nn.Module.named_parameters(recurse=False) in the time that reading a dict takes",
    ),
    Internal(
        "torch.nn.Module._buffers",
        "as _parameters",
        "torch.nn.Module.named_buffers(recurse=False) in the time that reading a dict takes",
    ),
    Internal(
        "torch.nn.Module._modules",
        "tells at each call whether a layer is parametrised; is_parametrized() takes 3 µs for each weight",
        "torch.nn.utils.parametrize.is_parametrized in the time that reading a dict takes",
    ),
    Internal(
        "torch.nn.Module._forward_hooks",
        "a Stream must call the layer itself where a hook waits for the call",
        "a public question whether a module has hooks",
    ),
    Internal(
        "torch.nn.Module._forward_pre_hooks",
        "as _forward_hooks",
        "a public question whether a module has hooks",
    ),
    Internal(
        "torch.nn.Module._save_to_state_dict",
        "writes the momentum into the metadata of a state_dict; a public hook would be pickled with a module",
        "a public method that a module overrides to add to its metadata",
    ),
    Internal(
        "torch.nn.Module._load_from_state_dict",
        "as _save_to_state_dict: it reads the metadata",
        "a public method that a module overrides to read its metadata",
    ),
    Internal(
        "torch.nn.Module.state_dict()._metadata",
        "as _save_to_state_dict: where torch keeps the version of each module",
        "a public name of the metadata",
    ),
)


def missing() -> list[str]:
    """The private names that this torch no longer has, each with its use and the public way to look for."""
    cuda = torch.version.cuda is not None
    return [_say(i) for i in INTERNALS if (cuda or not i.cuda_only) and not _exists(i.name)]


def _say(internal: Internal) -> str:
    return f"{internal.name}: {internal.reason}; instead: {internal.awaited}"


def _exists(name: str) -> bool:
    owner, _, attribute = name.rpartition(".")
    if owner == "torch.nn.Module":
        return hasattr(nn.Module(), attribute)
    if owner == "torch.compiler.assume_constant_result()":
        return hasattr(torch.compiler.assume_constant_result(lambda: None), attribute)  # type: ignore[no-untyped-call]
    try:
        if owner == "torch.nn.Module.state_dict()":
            return hasattr(nn.Module().state_dict(), attribute)
        _look_up(name)
    except AttributeError:
        return False
    return True


def _look_up(name: str) -> Any:
    _, *path = name.split(".")
    return reduce(getattr, path, torch)


class _Gone:
    """Stands in for a class or function that torch has lost: it can be imported and subclassed, not used."""

    name = ""

    def __new__(cls, *args: object, **kwargs: object) -> Any:
        lost = next(i for i in INTERNALS if i.name == cls.name)
        raise RuntimeError(f"torch {torch.__version__} no longer has {_say(lost)}")

    @classmethod
    def apply(cls, *args: object) -> Any:
        return cls()


def _or_gone(name: str) -> Any:
    """A private name that is looked up at import."""
    return _look_up(name) if _exists(name) else type("_Gone", (_Gone,), {"name": name})


# Streams and devices.


def raw_stream(device: int) -> int:
    """The current stream of a device, as the driver's number."""
    return torch._C._cuda_getCurrentRawStream(device)


def current_device() -> int:
    return torch._C._cuda_getDevice()


# Operators and autograd.

if not TYPE_CHECKING:
    DispatchKeySet = _or_gone("torch._C.DispatchKeySet")
SingleLevelFunction = _or_gone("torch.autograd.function._SingleLevelFunction")
allow_single_level_functions = _or_gone("torch._functorch.utils.enable_single_level_autograd_function")


def call_below_autograd(operator: Any, keys: "DispatchKeySet", args: Sequence[Any]) -> Any:
    """The operator without autograd."""
    with torch._C._AutoDispatchBelowAutograd():
        return operator.redispatch(keys & torch._C._after_autograd_keyset, *args)


def any_requires_grad(args: Sequence[Any]) -> bool:
    return torch._C._any_requires_grad(*args)


def forward_mode_active() -> bool:
    """Whether derivatives are taken in forward mode."""
    return forward_ad._current_level >= 0


# torch.func, modes, compilation and export.


def transforms_active() -> bool:
    """Whether a transform of torch.func, such as vmap, is active."""
    return torch._C._are_functorch_transforms_active()


def is_mapped(t: Tensor) -> bool:
    """Whether vmap runs over a tensor."""
    while torch._C._functorch.is_functorch_wrapped_tensor(t):
        if torch._C._functorch.is_batchedtensor(t):
            return True
        t = torch._C._functorch.get_unwrapped(t)
    return False


def may_be_batched(grads: Sequence[Tensor]) -> bool:
    """Whether one may stand for many gradients: under a transform of torch.func, or by is_grads_batched."""
    legacy = torch._C._functorch.is_legacy_batchedtensor
    return transforms_active() or any(map(legacy, grads))


def dispatch_mode_active() -> bool:
    return torch._C._len_torch_dispatch_stack() > 0


def exporting() -> bool:
    """Whether torch.export is active."""
    return bool(torch.compiler._is_exporting_flag)


def onednn_has(dtype: torch.dtype) -> bool:
    """Whether oneDNN computes in this 16-bit dtype on this processor; true where torch has no oneDNN."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return True
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def constant_when_compiled(function: F) -> F:
    """Marks a function that torch.compile calls once, and does not look into."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def register_tuple(kind: type[tuple[Any, ...]], name: str) -> None:
    """Let torch.func, torch.export and others look into a class of tuples. name: of it in exported files."""
    if not _exists("torch.utils._pytree.register_pytree_node"):
        return
    key = torch.utils._pytree.SequenceKey
    torch.utils._pytree.register_pytree_node(
        kind,
        lambda entries: (list(entries), None),
        lambda entries, _: tuple.__new__(kind, entries),
        serialized_type_name=name,
        flatten_with_keys_fn=lambda entries: ([(key(i), e) for i, e in enumerate(entries)], None),
    )


# Modules.


def own_parameters(module: nn.Module) -> Mapping[str, nn.Parameter | None]:
    """The parameters of a module without its submodules, as the dict that holds them."""
    return module._parameters


def own_tensors(module: nn.Module) -> list[Mapping[str, Tensor | None]]:
    """The parameters and the buffers of a module without its submodules, as the dicts that hold them."""
    return [module._parameters, module._buffers]


def has_parametrizations(module: nn.Module) -> bool:
    return "parametrizations" in module._modules


def has_forward_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


class ModuleWithMetadata(nn.Module):
    """A module that adds to its metadata in a state_dict, where torch has a version, and reads it again."""

    def checkpoint_metadata(self) -> dict[str, str]:
        """What to add when the module's tensors are saved."""
        return {}

    def check_metadata(self, prefix: str, metadata: Mapping[str, Any]) -> None:
        """Called before the module's tensors are loaded. prefix: of their names, empty or ending in a dot."""

    def check_loaded(self, prefix: str) -> None:
        """Called after the module's tensors are loaded."""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if hasattr(destination, "_metadata"):  # a dict of the user's has none
            of_modules = destination._metadata
            of_modules.setdefault(prefix[:-1], {}).update(self.checkpoint_metadata())

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *args: Any
    ) -> None:
        self.check_metadata(prefix, local_metadata)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)
        self.check_loaded(prefix)
