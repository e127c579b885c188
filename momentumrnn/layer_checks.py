"""Checks of the arguments of layers, step cells and streams. Each error says what the argument should be."""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from .caller_warning import warn_caller
from .cells import Cell
from .init import BY_NAME, Init
from .momentum import Momentum
from .precision import autocast_enabled
from .torch_internals import dispatch_mode_active, transforms_active
from .value_checks import check_choice, check_integer, check_number


def check_kinds(cell: object, momentum: object) -> None:
    """Raise unless cell is a Cell, and momentum a Momentum or None."""
    if not isinstance(cell, Cell):
        raise TypeError(f"cell should be a Cell such as cells.LSTM(), got {cell!r}")
    for name in ("gates", "states"):
        count = getattr(cell, name, None)
        if type(count) is not int or count < 1:  # the rest takes time at each step
            check_integer(f"{type(cell).__name__}.{name}", count)
    if momentum is not None and not isinstance(momentum, Momentum):
        raise TypeError(
            f"momentum should be None or a Momentum such as HeavyBall.ema(mu=0.6), got {momentum!r}"
        )


def check_cell_options(
    cell: Cell, momentum: object, input_size: object, hidden_size: object, bias: object, init: object
) -> None:
    """The arguments that layers and step cells share."""
    check_kinds(cell, momentum)
    check_integer("input_size", input_size)
    check_integer("hidden_size", hidden_size)
    check_choice("bias", bias, (True, False, "hh"), wrong_string=TypeError)  # as in torch
    if not isinstance(init, Init) and (not isinstance(init, str) or init not in BY_NAME):
        names = ", ".join(map(repr, BY_NAME))
        kind = ValueError if isinstance(init, str) else TypeError
        raise kind(f"init should be one of {names}, or an Init such as init.Paper(), got {init!r}")


def check_layer_options(
    cell: Cell,
    hidden_size: int,
    num_layers: int,
    batch_first: object,
    dropout: float,
    bidirectional: object,
    proj_size: int,
) -> None:
    """The arguments that a layer has and a step cell has not."""
    check_integer("num_layers", num_layers)
    check_integer("proj_size", proj_size, minimum=0)
    check_choice("batch_first", batch_first, (True, False), wrong_string=TypeError)
    if bidirectional not in (0, 1):  # torch takes these numbers, and refuses them for bias and batch_first
        check_choice("bidirectional", bidirectional, (True, False))
    check_number("dropout", dropout, "a number in [0, 1]", lambda p: 0 <= p <= 1)
    if dropout > 0 and num_layers == 1:
        warnings.warn(
            f"dropout={dropout} acts between layers, and there is one: num_layers=1",
            stacklevel=4,  # the caller of LSTM(...), past LSTM.__init__ and Recurrent.__init__
        )
    if proj_size >= hidden_size:
        raise ValueError(f"proj_size should be smaller than hidden_size={hidden_size}, got {proj_size}")
    if proj_size and not cell.projects:
        raise ValueError(f"proj_size should be 0, since {cell!r} has no projection, got {proj_size}")


def check_factored(factored: object, cell: Cell, proj_size: int = 0) -> None:
    """Raise unless factored is a choice, and False where U is not square."""
    check_choice("factored", factored, (True, False, "printed"))
    if factored and (cell.gates != 1 or proj_size):
        reason = f"proj_size={proj_size}" if proj_size else repr(cell)
        raise ValueError(f"factored should be False, since U is not square for {reason}, got {factored!r}")


def check_input(
    x: object,
    dims: Sequence[int],
    features: int,
    weight: Tensor,
    expected: str = "a Tensor",
    dtype_error: type[Exception] = ValueError,
) -> None:
    """Raise unless x is a tensor with one of these numbers of axes, and with so many features.

    weight: x must have its dtype and device. expected: what a TypeError says that the input should be.
    dtype_error: what another dtype raises.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"input should be {expected}, got {type(x).__name__}")
    if x.dim() not in dims:
        axes = " or ".join(f"{d}-D" for d in dims)
        raise ValueError(f"input should be {axes}, got {x.dim()}-D, shape {tuple(x.shape)}")
    if x.shape[-1] != features:
        raise RuntimeError(
            f"input should have input_size={features} features in its last axis, got shape {tuple(x.shape)}"
        )
    check_dtype_and_device("input", x, weight.dtype, weight.device, dtype_error)


def check_tensor(
    name: str,
    x: object,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    hint: str,
    shape_error: type[Exception] = RuntimeError,
) -> None:
    """Raise unless x is a tensor of this shape, dtype and device.

    hint: the reason for the shape. shape_error: what another shape raises.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} should be a Tensor, got {type(x).__name__}")
    if x.shape != shape:
        raise shape_error(f"{name} should have shape {shape}, got {tuple(x.shape)}; {hint}")
    check_dtype_and_device(name, x, dtype, device)


def all_zero(tensors: Sequence[Tensor]) -> bool:
    """Whether all values are known to be zero. On a GPU this waits for them."""
    if dispatch_mode_active() or transforms_active() or any(t.is_meta for t in tensors):
        return False
    if tensors[0].is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return not any(t.any() for t in tensors)


def check_in_unit_range(name: str, x: Tensor, *, refuse: bool) -> None:
    """Raise if x has values outside [0, 1], or warn that a layer computes with the nearest ones.

    Tensors without values, as on the meta device, pass.
    """
    if x.is_meta or type(x) not in (Tensor, Parameter) or dispatch_mode_active() or transforms_active():
        return
    outside = x.detach()[~((x >= 0) & (x <= 1))]
    if len(outside) == 0:
        return
    message = f"{name} should have values in [0, 1], got {outside[0].item():.6g}"
    if refuse:
        raise ValueError(message)
    nearest = "; the layer computes with the nearest value there"
    warn_caller(message if outside.isnan().any() else message + nearest)


def check_dtype_and_device(
    name: str,
    x: Tensor,
    dtype: torch.dtype,
    device: torch.device,
    dtype_error: type[Exception] = ValueError,
) -> None:
    """Raise unless x has this dtype and device. Under autocast any floating-point dtype passes."""
    casts = autocast_enabled(device)
    if x.dtype != dtype and not (casts and x.is_floating_point() and dtype.is_floating_point):
        raise dtype_error(f"{name} should have dtype {dtype}, got {x.dtype}")
    if x.device != device:
        raise RuntimeError(f"{name} should be on {device}, got {x.device}")
