"""Reads and writes a momentum, cell or other dataclass as its `repr`. Runs no code, knows none of them."""

import ast
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any


def parse(text: str, known: Sequence[type], none: bool = False) -> Any:
    """The dataclass that a text describes: one of `known`; or None, if `none` allows it.

    A name without arguments has the defaults. Values are literals: numbers, strings, True, False, None.

    >>> from momentumrnn import HeavyBall, Nesterov
    >>> parse("HeavyBall(mu=0.9)", [HeavyBall, Nesterov])
    HeavyBall(mu=0.9, step=1.0)
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = ast.Constant(...)
    if none and isinstance(tree, ast.Constant) and tree.value is None:
        return None
    call = tree if isinstance(tree, ast.Call) else ast.Call(tree, [], [])
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    kinds = {kind.__name__: kind for kind in known}
    if name not in kinds:
        choices = [*map(_example, known), *["None"] * none]
        raise ValueError(f"expected one of {', '.join(choices)}, got {text!r}{nearest(name, kinds)}")
    kind = kinds[name]
    names = [field.name for field in fields(kind)]
    given: dict[str, Any] = {}
    values = [*zip(names, call.args, strict=False), *((str(k.arg), k.value) for k in call.keywords)]
    if len(call.args) > len(names):
        raise ValueError(f"expected {_example(kind)}, got {len(call.args)} values in {text!r}")
    for key, value in values:
        if key not in names:
            raise ValueError(f"expected {_example(kind)}, got {key!r} in {text!r}{nearest(key, names)}")
        if key in given:
            raise ValueError(f"expected {_example(kind)}, got {key!r} twice in {text!r}")
        try:
            given[key] = ast.literal_eval(value)
        except (ValueError, TypeError, MemoryError, RecursionError):
            raise ValueError(f"expected {_example(kind)}, for {key!r} a literal, got {text!r}") from None
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"expected {_example(kind)} or the like, got {text!r}: {error}") from None


def spell(description: Any) -> str:
    """The text of a dataclass that `parse` reads: its repr, without later fields that have their default.

    A field that was added to a published class says so: `field(default=..., metadata={"since": 2})`. So what
    older versions wrote, and what is named by it, stays as it was.

    >>> from momentumrnn import HeavyBall
    >>> spell(HeavyBall(mu=0.9)), spell(None)
    ('HeavyBall(mu=0.9, step=1.0)', 'None')
    """
    shown = [f for f in fields(description) if f.repr] if is_dataclass(description) else []
    omitted = [f for f in shown if "since" in f.metadata and getattr(description, f.name) == f.default]
    if not omitted:
        return repr(description)
    values = [f"{f.name}={getattr(description, f.name)!r}" for f in shown if f not in omitted]
    return f"{type(description).__qualname__}({', '.join(values)})"


def nearest(name: str, known: Sequence[str] | dict[str, Any]) -> str:
    """The end of an error message that offers up to three similar names; empty if none is similar.

    >>> nearest("HevyBall", ["HeavyBall", "Adam"])
    "; did you mean 'HeavyBall'?"
    """
    by_lower_case = {k.lower(): k for k in known}
    most = 1 if name.lower() in by_lower_case else 3
    matches = get_close_matches(name.lower(), by_lower_case, n=most, cutoff=0.6)
    similar = " or ".join(repr(by_lower_case[match]) for match in matches)
    return f"; did you mean {similar}?" if similar else ""


def _example(kind: type) -> str:
    """How to write a dataclass: with its defaults, or with the names of its fields where one has none."""
    try:
        return repr(kind())
    except TypeError:
        return f"{kind.__name__}({', '.join(f.name for f in fields(kind))})"
