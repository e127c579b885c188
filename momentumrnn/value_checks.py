"""Checks of numbers and choices. Each error names the argument, what was expected and what came.

This module imports no other module of ours, so that every one of them can use it.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from math import inf
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import Parameter


def describe(value: object) -> str:
    """The repr of a value; of a tensor only its kind and shape, which fit on a line."""
    if not isinstance(value, Tensor):
        return repr(value)
    kind = "Parameter" if isinstance(value, Parameter) else "Tensor"
    return f"<{kind} {tuple(value.shape)}>"


def convert_numpy_fields(description: object, names: Sequence[str]) -> None:
    """Make numpy's numbers in these fields of a frozen dataclass Python's own, which `torch.load` takes."""
    for name in names:
        value = getattr(description, name, None)
        if isinstance(value, np.generic):
            object.__setattr__(description, name, value.item())


def check_number(
    name: str,
    value: Any,
    expected: str,
    is_valid: Callable[[Any], bool] | None = None,
    expected_range: str | None = None,
) -> None:
    """Raise unless value is a finite number for which `is_valid` is true.

    expected: what a TypeError says that the argument should be.
    expected_range: the same for a ValueError, which numbers out of range raise. By default it is `expected`.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | Real):
        got = describe(value)
        if isinstance(value, Tensor) and value.dim() == 0:
            got = repr(value.detach())
        raise TypeError(f"{name} should be {expected}, got {got}")
    # Python compares an integer of any size with a float, but cannot turn each into one.
    largest = sys.float_info.max if isinstance(value, int) else inf
    size: Any = abs(value)
    finite = size <= largest and size < inf
    if not finite or (is_valid is not None and not is_valid(value)):
        raise ValueError(f"{name} should be {expected_range or expected}, got {describe(value)}")


def check_integer(
    name: str, value: Any, minimum: int = 1, maximum: float = inf, expected: str | None = None
) -> None:
    """Raise unless value is an integer, Python's or numpy's, from `minimum` to `maximum`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} should be {expected or 'an integer'}, got {describe(value)}")
    if not minimum <= value <= maximum:
        limits = f"at least {minimum}" if maximum == inf else f"from {minimum} to {maximum}"
        raise ValueError(f"{name} should be {expected or limits}, got {value!r}")


def check_choice(
    name: str, value: object, choices: Sequence[object], wrong_string: type[Exception] = ValueError
) -> None:
    """Raise unless value is one of `choices`, which are strings, True, False or None.

    wrong_string: what a string that is none of them raises.
    """
    if isinstance(value, np.bool_):
        value = bool(value)
    if not any(value is choice or (isinstance(choice, str) and value == choice) for choice in choices):
        kind = wrong_string if isinstance(value, str) else TypeError
        raise kind(f"{name} should be one of {', '.join(map(repr, choices))}, got {value!r}")


def fields_equal(first: Any, second: object) -> Any:
    """The `__eq__` of a dataclass whose fields may be tensors: all entries of equal tensors are equal."""
    if type(first) is not type(second) or not is_dataclass(first):
        return NotImplemented
    names = [field.name for field in fields(first) if field.compare]
    return all(_equal(getattr(first, name), getattr(second, name)) for name in names)


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor) and first.shape != second.shape:
        return False
    equal = first is second or first == second
    return bool(equal.all()) if isinstance(equal, Tensor) else bool(equal)
