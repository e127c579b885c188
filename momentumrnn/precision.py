"""Dtypes: that of the moments, the way back from it, and whether autocast chooses another."""

import torch
from torch import Tensor

_16_BITS = (torch.float16, torch.bfloat16)


def moments_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the moments of a layer: sums over time, and eps², need more than 16 bits."""
    return torch.float32 if dtype in _16_BITS else dtype


def in_moments_dtype(a: Tensor) -> Tensor:
    """a in the dtype of its moments. `Tensor.to` would take a microsecond where nothing is to do."""
    return a.float() if a.dtype in _16_BITS else a


def cast_in_range(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in another dtype, clamped to its range, so that a large drive saturates a gate and gives no nan."""
    if x.dtype == dtype:  # the usual case, at each step of a loop
        return x
    if torch.finfo(dtype).max < torch.finfo(x.dtype).max:
        x = x.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max)
    return x.to(dtype)


def autocast_enabled(device: torch.device) -> bool:
    """Whether autocast is on for a device; torch knows none for the meta device."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)
