"""Settings: the fields of a Config as text, `PATH=VALUE`. They change a Config, and tell two of them apart.

PATH is a field, such as `lr`, or a field of a description, such as `task.permutation`. VALUE is a literal as
in Python, or a bare word, which is a string. A description is as it is spelt, such as `HeavyBall(mu=0.9)`.
"""

import ast
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from ..repr_parser import nearest
from .config import Config, read

_BARE_WORD = re.compile(r"[^\W\d][\w./+-]*")
_TYPE_WORDS = {
    float: "a number",
    int: "an integer",
    bool: "True or False",
    str: "a word or a quoted string",
    tuple: "a tuple",
    NoneType: "None",
    Any: "a literal as in Python or a word",
}


class _Setting(NamedTuple):
    """A setting in its parts. text: the whole of it, for errors."""

    text: str
    path: tuple[str, ...]
    value: str


def change(config: Config, settings: Sequence[str], own: Sequence[type] = ()) -> Config:
    """The Config with these settings, which apply from left to right.

    The values of one description are set together, so that only the result has to be valid. A description
    comes before its fields. own: classes of the user's that a value may spell.

    >>> from momentumrnn.experiments import PMNIST, configure
    >>> base = configure(PMNIST())
    >>> config = change(base, ["momentum=Adam()", "momentum.mu=0", "task.permutation=seed"])
    >>> config.momentum
    Adam(mu=0.0, step=1.0, beta=0.999, eps=1e-08, eps_in_sqrt=True)
    >>> config.task
    PMNIST(permutation='seed', validation=5000, limit=0)
    """
    parsed = [_split(text) for text in ([settings] if isinstance(settings, str) else settings)]
    for position, later in enumerate(parsed):
        for earlier in parsed[:position]:
            if earlier.path[: len(later.path)] == later.path:
                where = "once" if earlier.path == later.path else "before its fields"
                raise _refusal(f"{'.'.join(later.path)} {where}", earlier, later)
    changed: Config = _change_fields(config, parsed, 0, own)
    return changed


def differences(config: Config, base: Config) -> list[str]:
    """The settings that turn base into config: fields where the class is the same, else the description.

    >>> from momentumrnn import HeavyBall
    >>> from momentumrnn.experiments import PMNIST, configure
    >>> base = configure(PMNIST())
    >>> differences(configure(PMNIST("seed"), momentum=HeavyBall(), clip=0.5), base)
    ["task.permutation='seed'", 'momentum=HeavyBall(mu=0.6, step=1.0)', 'clip=0.5']
    """
    return _field_differences(config, base, "")


def variant_name(name: str, config: Config, base: Config) -> str:
    """What to call a Config beside base, which has this name: the same if and only if it is the same run.

    Settings that make no other run, such as the epochs, are not in the name.

    >>> from momentumrnn.experiments import Adding, configure
    >>> variant_name("Adding", configure(Adding(length=50), lr=0.01, epochs=2), configure(Adding()))
    'Adding with task.length=50, lr=0.01'
    """
    if config.id == base.id:
        return name
    config = without_idle_settings(config, base)
    return f"{name} with {', '.join(differences(config, base) + _spelt_differently(config, base))}"


def without_idle_settings(config: Config, base: Config) -> Config:
    """The Config with the values of base wherever they give the same run.

    >>> from momentumrnn.experiments import Adding, configure
    >>> config = configure(Adding(), optimizer="adam", alpha=0.5, lr=0.5, epochs=2)
    >>> differences(without_idle_settings(config, configure(Adding())), configure(Adding()))
    ['lr=0.5']
    """
    for name in _field_names(config):
        if getattr(config, name) != getattr(base, name):
            # Alone, a value of base may not be valid.
            with suppress(TypeError, ValueError):
                changed = replace(config, **{name: getattr(base, name)})
                config = changed if changed.id == config.id else config
    return config


def with_floats(value: Any) -> Any:
    """A description whose numbers are floats where its fields mean floats; of -0.0 it makes 0.0.

    So equal numbers that a user types give one id. Other values than descriptions and floats stay.

    >>> from momentumrnn import HeavyBall
    >>> with_floats(HeavyBall(mu=0, step=2))
    HeavyBall(mu=0.0, step=2.0)
    """
    if type(value) is float:
        return _positive_zero(value)
    numbers = {name: _number(value, name, getattr(value, name)) for name in _field_names(value)}
    return replace(value, **numbers) if numbers else value


def effective(config: Config) -> list[str]:
    """Every field of a Config as a setting, in the order of fields.

    >>> from momentumrnn.experiments import Adding, configure
    >>> effective(configure(Adding()))[:3]
    ['task=Adding(length=750, samples=5000, evaluation=1000)', 'cell=LSTM()', 'momentum=None']
    """
    return [f"{name}={getattr(config, name)!r}" for name in _field_names(config)]


def _split(text: str) -> _Setting:
    before, equals, value = text.partition("=")
    path = tuple(part.strip() for part in before.split("."))
    setting = _Setting(text, path, value.strip())
    if not equals or not all(path):
        raise _refusal("PATH=VALUE, such as lr=0.001 or task.length=50", setting)
    return setting


def _refusal(expected: str, *settings: _Setting, end: str = "") -> ValueError:
    """end: what follows the settings that came, such as a reason or an offer."""
    return ValueError(f"--set: expected {expected}, got {' and '.join(repr(s.text) for s in settings)}{end}")


def _change_fields(description: Any, settings: Sequence[_Setting], depth: int, own: Sequence[type]) -> Any:
    """A Config or description with other fields. depth: how many names of each path lead to it."""
    names = _field_names(description)
    by_field: dict[str, list[_Setting]] = {}
    for setting in settings:
        if setting.path[depth] not in names:
            expected = f"a field of {type(description).__name__}: {', '.join(names) or 'it has none'}"
            raise _refusal(expected, setting, end=_similar(description, setting.path[: depth + 1]))
        by_field.setdefault(setting.path[depth], []).append(setting)
    values: dict[str, Any] = {}
    for name, inner in by_field.items():
        values[name] = getattr(description, name)
        if len(inner[0].path) == depth + 1:
            values[name] = _read_value(description, inner.pop(0), own)
        if inner:
            _check_has_fields(description, name, values[name], inner[0], depth + 1)
            values[name] = _change_fields(values[name], inner, depth + 1, own)
    return _replace(description, values, settings)


def _field_names(description: Any) -> list[str]:
    """The fields that can be set; none if it is no description."""
    return [f.name for f in fields(description) if f.init] if is_dataclass(description) else []


def _similar(description: Any, path: tuple[str, ...]) -> str:
    """The end of an error about a path to no field: the same name one step further in, or similar names."""
    *outer, name = path
    names = _field_names(description)
    inner = [".".join([*outer, n, name]) for n in names if name in _field_names(getattr(description, n))]
    return f"; did you mean {' or '.join(map(repr, inner))}?" if inner else nearest(name, names)


def _check_has_fields(owner: Any, name: str, value: Any, setting: _Setting, depth: int) -> None:
    """Refuse a path into what is no description."""
    path, field = ".".join(setting.path[:depth]), setting.path[depth]
    if value is None:
        kinds = [kind for base in _alternatives(_annotation(owner, name)) for kind in _subclasses(base)]
        known = [kind.__name__ for kind in kinds if field in getattr(kind, "__dataclass_fields__", ())]
        first = f"{path}={known[0] if known else 'NAME'}()"
        raise _refusal(f"{first} or the like before it", setting, end=f": {path} is None, without fields")
    if not is_dataclass(value):
        raise _refusal(f"{path}=VALUE", setting, end=f": {path} is {value!r}, without fields")


def _read_value(owner: Any, setting: _Setting, own: Sequence[type]) -> Any:
    """The value that a setting gives to a field of a Config or description."""
    name, path = setting.path[-1], ".".join(setting.path)
    value: Any = setting.value
    if isinstance(owner, Config):
        try:
            value = read(name, value, own)
        except ValueError as error:
            reason = str(error).removeprefix(f"{name}: ")
            raise _refusal(f"a value for {path}", setting, end=f": {reason}") from None
    if not isinstance(value, str):
        inner = {n: getattr(value, n) for n in _field_names(value)}
        typed = {n: _convert(value, n, inner[n], f"{path}.{n}", setting) for n in inner}
        return _replace(value, typed, [setting]) if typed else value
    return _convert(owner, name, _literal(value), path, setting)


def _literal(text: str) -> Any:
    """The value of a literal or a bare word; Ellipsis, which no field takes, for another text."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return text if _BARE_WORD.fullmatch(text) else ...


def _convert(owner: Any, name: str, value: Any, path: str, setting: _Setting) -> Any:
    """The value for a field, a float where one is meant; refused if the annotation is of another type."""
    value = _number(owner, name, value)
    default = type(owner).__dataclass_fields__[name].default
    # A default may be None where the annotation leaves that out.
    if type(value) is type(default) and value == default:
        return value
    annotation = _annotation(owner, name)
    if value is not ... and _fits(value, annotation):
        return value
    # An integer may be too large for a float that equals it.
    if type(value) is int and _fits(0.0, annotation):
        return value
    raise _refusal(f"{_type_words(annotation)} for {path}", setting)


def _number(owner: Any, name: str, value: Any) -> Any:
    """The value for a field: a number is a float where one is meant; whatever is no number stays."""
    if type(value) not in (int, float):
        return value
    default = type(owner).__dataclass_fields__[name].default
    # A user's class may have an integer as the default of a float, and the default has its own id.
    if type(value) is type(default) and value == default:
        return default
    if type(value) is float:
        return _positive_zero(value)
    annotation = _annotation(owner, name)
    return _exact_float(value) if _fits(0.0, annotation) and not _fits(value, annotation) else value


def _positive_zero(value: float) -> float:
    """The same number, without the sign of a zero."""
    return value or 0.0


def _exact_float(value: int) -> float:
    """The float of the same value, so that equal numbers are spelt alike; the integer where there is none."""
    try:
        return float(value) if float(value) == value else value
    except OverflowError:
        return value


def _annotation(owner: Any, name: str) -> Any:
    """What a field is annotated with, else what its default or its value suggests."""
    try:
        return get_type_hints(type(owner))[name]
    except Exception:  # it may name what cannot be found, and a user's module may fail in any way
        default = type(owner).__dataclass_fields__[name].default
        value = getattr(owner, name) if default is MISSING or default is None else default
        return Any if value is None else int | float | None if type(value) is int else type(value) | None


def _alternatives(annotation: Any) -> Sequence[Any]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _subclasses(kind: Any) -> list[type]:
    return type.__subclasses__(kind) if isinstance(kind, type) else []


def _fits(value: Any, annotation: Any) -> bool:
    """Whether a literal is of an annotated type; True also where that cannot be known.

    A bool is no number here, although Python takes it for an integer.
    """
    for kind in _alternatives(annotation):
        if get_origin(kind) is Literal:
            fits = any(type(value) is type(choice) and value == choice for choice in get_args(kind))
        else:
            plain = get_origin(kind) or kind
            try:
                fits = isinstance(value, plain) and (type(value) is not bool or plain in (bool, object))
            except TypeError:  # Any, a type variable or the like
                fits = True
        if fits:
            return True
    return False


def _type_words(annotation: Any) -> str:
    """What can be written for an annotation, in words: for a number or a tensor, a number."""
    words: list[str] = []
    for kind in _alternatives(annotation):
        if get_origin(kind) is Literal:
            words += map(repr, get_args(kind))
        else:
            words += [text for known, text in _TYPE_WORDS.items() if (get_origin(kind) or kind) is known]
    return " or ".join(words) or f"a value of type {getattr(annotation, '__name__', annotation)}"


def _replace(description: Any, values: dict[str, Any], settings: Sequence[_Setting]) -> Any:
    """The description with these values, which its class checks."""
    try:
        return replace(description, **values)
    except (TypeError, ValueError) as error:
        expected = f"values that {type(description).__name__} takes"
        raise _refusal(expected, *settings, end=f": {error}") from None


def _field_differences(description: Any, base: Any, prefix: str) -> list[str]:
    changed: list[str] = []
    for name in _field_names(description):
        value, other = getattr(description, name), getattr(base, name)
        if value == other:
            continue
        if is_dataclass(value) and type(value) is type(other):
            changed += _field_differences(value, other, f"{prefix}{name}.")
        else:
            changed.append(f"{prefix}{name}={value!r}")
    return changed


def _spelt_differently(config: Config, base: Config) -> list[str]:
    """The settings with equal values that have another text or class, and so another id."""
    texts, texts_of_base = config.to_json(), base.to_json()
    settings: list[str] = []
    for name in _field_names(config):
        value, other = getattr(config, name), getattr(base, name)
        same = type(value) is type(other) and repr(texts[name]) == repr(texts_of_base[name])
        if value == other and not same:
            settings.append(f"{name}={value!r}")
    return settings
