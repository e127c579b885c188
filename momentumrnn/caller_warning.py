"""Warnings that name the line of the user's code which led to them, also through calls inside torch.

This module imports no other module of ours, so that every one of them can use it.
"""

import sys
import warnings

import torch

OWN_AND_TORCH = (__name__.partition(".")[0], "torch")


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost frame that is neither in torch nor in this package.

    It is silent while torch.compile traces, since no graph can hold a warning.
    """
    if torch.compiler.is_dynamo_compiling():
        return
    frame = sys._getframe(1)
    while frame.f_back is not None and _package(frame.f_globals) in OWN_AND_TORCH:
        frame = frame.f_back
    names = frame.f_globals
    # As warnings.warn does it: the registry of the user's module knows what was said once at a line.
    registry = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(
        message, category, frame.f_code.co_filename, frame.f_lineno, names.get("__name__"), registry
    )


def _package(module_globals: dict[str, object]) -> str:
    return str(module_globals.get("__name__", "")).partition(".")[0]
