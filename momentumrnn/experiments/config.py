"""What a run is: one task, one network, one way to train it. Knows nothing of how that is done.

A Config is data: `to_json` and `from_json` are inverse, and its `id` names the run's folder. Ids last: a
field that was added after the first schema enters the id only where it differs from its default.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from numbers import Integral, Real
from typing import Any

from .. import cells, init, momentum
from ..cells import Cell
from ..init import Init
from ..momentum import Momentum
from ..repr_parser import nearest, parse, spell
from .sources.hashes import is_own, source_hashes
from .tasks import TASKS, Task

SCHEMA = 2
"""Of the fields of a Config as they are written down. It rises with every field that is added."""
CELLS = (cells.LSTM, cells.GRU, cells.Elman, cells.ExtrapolatedLSTM)
INITS = (init.Paper, init.Torch, init.Dtriv)
OPTIMIZERS = ("adam", "rmsprop", "sgd")
PRECISIONS = ("tf32", "float32", "float64")
# Fields that don't change what a step computes: runs that differ in them alone are one run.
SAME_RUN = {"epochs", "log_every"}
_DESCRIPTIONS: dict[str, tuple[tuple[type, ...], bool]] = {
    "task": (TASKS, False),
    "cell": (CELLS, False),
    "momentum": (momentum.MOMENTA, True),
    "init": (INITS, False),
}


@dataclass(frozen=True)
class Config:
    """One experiment, without its seed.

    >>> from momentumrnn import HeavyBall
    >>> from momentumrnn.experiments import Adding, configure
    >>> config = configure(Adding(length=50), momentum=HeavyBall(mu=0.9, step=2.0), hidden_size=32)
    >>> config.lr, config.batch_size
    (0.0002, 50)
    >>> Config.from_json(config.to_json()) == config
    True
    """

    task: Task
    cell: Cell
    momentum: Momentum | None
    hidden_size: int
    bias: bool | str
    """As the layers take it; "hh": the recurrent bias alone."""
    init: Init
    orthogonal: bool
    """Keeps U orthogonal, as DTRIV does."""
    optimizer: str
    lr: float
    alpha: float
    """RMSprop's smoothing."""
    orthogonal_lr: float
    """The rate of RMSprop on the tangent of an orthogonal U."""
    rebase_every: int
    """Steps between re-basings of an orthogonal U, K; 0: never."""
    clip: float
    """The largest norm of a gradient; 0: no limit."""
    batch_size: int
    epochs: int
    precision: str
    """tf32: float32, but a GPU may shorten the factors of a recurrent layer's products; float32; float64."""
    deterministic: bool
    log_every: int
    """Steps between two losses in metrics.jsonl, each their mean."""
    # Each later field has a default, by which older runs went, and `since`, the schema that brought it.
    patience: int = field(default=0, metadata={"since": 2})
    """Epochs without a better result on the validation set after which a run stops; 0: never."""

    def __post_init__(self) -> None:
        for name, kind in (("task", Task), ("cell", Cell), ("momentum", Momentum | None), ("init", Init)):
            value = getattr(self, name)
            _check(name, value, isinstance(value, kind), f"a {_words(kind)}")
            object.__setattr__(self, name, _plain(value))
            if value is not None and is_own(type(value)):
                _check_spelling(name, getattr(self, name))
        # A configuration is written down in words, and its seeds share its objects.
        rates = ", ".join(momentum.tensor_fields(self.momentum))
        _check("momentum", rates, not rates, "numbers for mu and step in an experiment, not tensors")
        for name, least in (
            ("hidden_size", 1),
            ("rebase_every", 0),
            ("batch_size", 1),
            ("epochs", 1),
            ("log_every", 1),
            ("patience", 0),
        ):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            _check(name, value, whole and value >= least, f"an integer of at least {least}")
        for name in ("lr", "orthogonal_lr", "clip", "alpha"):
            value = getattr(self, name)
            number = isinstance(value, int | float | Real) and not isinstance(value, bool)
            top = 1 if name == "alpha" else math.inf
            try:
                plain = float(value) if number else -1.0
            except OverflowError:
                plain = math.inf
            _check(name, value, 0 <= plain < top, f"a number in [0, {top})")
            object.__setattr__(self, name, plain)
        for name in ("orthogonal", "deterministic"):
            _check(name, getattr(self, name), isinstance(getattr(self, name), bool), "True or False")
        known = isinstance(self.bias, bool) or self.bias == "hh"
        _check("bias", self.bias, known, "True, False or 'hh'")
        for name, choices in (("optimizer", OPTIMIZERS), ("precision", PRECISIONS)):
            value = getattr(self, name)
            _check(name, value, value in choices, f"one of {', '.join(map(repr, choices))}")
        square = self.cell.gates == 1
        _check("orthogonal", self.orthogonal, square or not self.orthogonal, f"False for {self.cell!r}")
        if isinstance(self.init, init.Dtriv):
            _check("init", self.init, square, f"another for {self.cell!r}, whose U is not square")
        idle = self.orthogonal or not self.rebase_every
        _check("rebase_every", self.rebase_every, idle, "0 without orthogonal")

    @property
    def descriptions(self) -> dict[str, Any]:
        """What describes a part of it, by field: task, cell, momentum, init."""
        return {name: getattr(self, name) for name in _DESCRIPTIONS}

    @cached_property
    def sources(self) -> dict[str, str]:
        """The hash of the source of each class of the user's own that describes it; {} if all are ours."""
        return source_hashes(self.descriptions.values())

    @property
    def id(self) -> str:
        """The name of its runs, without the seed: what it is in words, and a hash of all that matters."""
        return identity(self.to_json(), self.sources, type(self))

    def to_json(self) -> dict[str, Any]:
        """All fields; descriptions as they are spelt."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {k: spell(v) if k in _DESCRIPTIONS else v for k, v in values.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], own: Sequence[type] = (), schema: int = SCHEMA) -> "Config":
        """The Config that `to_json` wrote. own: classes of the user's that describe something in it.

        schema: the one that wrote it. Fields that came later have their defaults.
        """
        values = migrate(values, schema, cls)
        return cls(**{key: read(key, value, own) for key, value in values.items()})


class SchemaError(ValueError):
    """A record that a newer version of this library wrote."""


def migrate(values: Mapping[str, Any], schema: int, kind: type[Config] = Config) -> dict[str, Any]:
    """The values of a written Config, of that schema, with all fields of today's."""
    if schema > SCHEMA:
        raise SchemaError(
            f"it has schema {schema}, and this version of momentumrnn reads up to {SCHEMA}: update "
            "momentumrnn"
        )
    later = {name: default for name, (since, default) in _later_fields(kind).items() if since > schema}
    expected = {f.name for f in fields(kind)} - later.keys()
    if set(values) != expected:
        different = sorted(set(values) ^ expected)
        raise ValueError(f"a config should have the fields {sorted(expected)}, differs in {different}")
    return {**values, **later}


def _later_fields(kind: type[Config]) -> dict[str, tuple[int, Any]]:
    """The fields that came after the first schema: since which one, and the default."""
    later = {f.name: (int(f.metadata["since"]), f.default) for f in fields(kind) if "since" in f.metadata}
    assert all(default is not MISSING for _, default in later.values())
    return later


def in_words(values: Mapping[str, Any]) -> str:
    """The network of a Config in a line, from what `to_json` gives: what is usual in a recipe is left out.

    >>> from momentumrnn.experiments import Adding, configure
    >>> in_words(configure(Adding(), init=init.Paper(forget_bias=2.0), precision="float32").to_json())
    "LSTM(), H = 128, init Paper(forget_bias=2.0, identity='first'), float32"
    """
    dtriv = values.get("orthogonal")
    parts = [str(values.get("cell")), *["orthogonal"] * bool(dtriv)]
    parts += [] if values.get("momentum") == "None" else [str(values.get("momentum"))]
    parts.append(f"H = {values.get('hidden_size')}")
    if values.get("init") != spell(init.Dtriv() if dtriv else init.Paper()):
        parts.append(f"init {values.get('init')}")
    return ", ".join([*parts, *[str(values.get("precision"))] * (values.get("precision") != "tf32")])


def identity(values: Mapping[str, Any], sources: Mapping[str, str], kind: type[Config] = Config) -> str:
    """The id of the Config of which `to_json` gave these values, whoever's classes describe it.

    sources: the hashes of the user's own classes; {} if there are none. They are a part of what is trained.
    """
    names = [str(values[key]).partition("(")[0].rpartition(".")[2] for key in ("task", "cell", "momentum")]
    slug = "-".join(name.lower() for name in names if name != "None")
    relevant = {key: value for key, value in values.items() if key not in SAME_RUN}
    # What is idle makes no other run.
    relevant |= {} if values["optimizer"] == "rmsprop" else {"alpha": _DEFAULTS["alpha"]}
    relevant |= {} if values["orthogonal"] else {"orthogonal_lr": _DEFAULTS["orthogonal_lr"]}
    for name, (_, default) in _later_fields(kind).items():
        if relevant.get(name, default) == default:
            relevant.pop(name, None)
    relevant |= {"sources": dict(sources)} if sources else {}
    digest = hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()
    prefix = "orthogonal-" if values["orthogonal"] else ""
    return f"{prefix}{slug}-{values['hidden_size']}-{digest[:10]}"


def read(name: str, value: Any, own: Sequence[type] = ()) -> Any:
    """The value of a field as text or JSON has it: where it is a description, the object."""
    if name not in _DESCRIPTIONS or not isinstance(value, str):
        return value
    known, none = _DESCRIPTIONS[name]
    try:
        return parse(value, [*known, *own], none)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


_DEFAULTS: dict[str, Any] = {
    "orthogonal": False,
    "optimizer": "adam",
    "lr": 1e-3,
    "alpha": 0.99,
    "orthogonal_lr": 1e-4,
    "rebase_every": 0,
    "clip": 0.0,
    "batch_size": 128,
    "epochs": 10,
    "precision": "tf32",
    "deterministic": True,
    "log_every": 50,
}


def configure(task: Task, **given: Any) -> Config:
    """The Config of a task: what is given, else the paper's hyper-parameters for it.

    With orthogonal=True cell, init and bias are those of DTRIV unless given.
    """
    _check("task", task, isinstance(task, Task), "a Task such as Adding()")
    names = [f.name for f in fields(Config)]
    for name in given:
        if name not in names:
            raise TypeError(f"configure has no {name!r}{nearest(name, names)}")
    dtriv = given.get("orthogonal", False)
    values: dict[str, Any] = {
        "cell": cells.Elman("modrelu") if dtriv else cells.LSTM(),
        "momentum": None,
        "hidden_size": 128,
        "bias": "hh" if dtriv else True,
        "init": init.Dtriv() if dtriv else init.Paper(),
        **_DEFAULTS,
    }
    return Config(task=task, **{**values, **task.defaults, **given})


def _check(name: str, value: object, holds: bool, expected: str) -> None:
    if not holds:
        raise ValueError(f"{name} should be {expected}, got {value!r}")


def _plain(description: Any) -> Any:
    """A description whose numbers are Python's own, so that it is spelt in one way."""
    if not is_dataclass(description) or isinstance(description, type):
        return description
    values = {f.name: getattr(description, f.name) for f in fields(description) if f.init}
    odd = {k: v for k, v in values.items() if isinstance(v, Real) and type(v).__module__ != "builtins"}
    plain = {k: int(v) if isinstance(v, Integral) else float(v) for k, v in odd.items()}
    return replace(description, **plain) if plain else description


def _check_spelling(name: str, description: Any) -> None:
    """Refuses a description of a user's own that its text, from which the id is made, does not bring back."""
    kind = type(description)
    _check(name, description, is_dataclass(description), f"a dataclass, so {kind.__name__} needs @dataclass")
    own = [f.name for f in fields(description) if f.init]
    # Not a class of ours, whose repr gets longer when a later version adds a field.
    values = {key: getattr(description, key) for key in own}
    inner = {key: value for key, value in values.items() if is_dataclass(value) and is_own(type(value))}
    for value in inner.values():
        _check_spelling(name, value)
    hidden = [key for key, value in values.items() if key not in inner and not _is_written(value)]
    if inner and not hidden:
        # `parse` reads no description in a description.
        hidden = [key for key, value in values.items() if f"{key}={value!r}" not in spell(description)]
    elif not hidden:
        text = spell(description)
        # A class in a function has a name with dots, which `parse` does not read.
        short = kind.__name__ + text.removeprefix(kind.__qualname__)
        try:
            again = parse(short if text.startswith(kind.__qualname__) else text, [kind])
        except ValueError as error:
            raise ValueError(
                f"{name} should be a dataclass that its repr brings back: {error}. Expected is {_WRITTEN}"
            ) from None
        before, after = _attributes(description), _attributes(again)
        hidden = [key for key in own if repr(before[key]) != repr(after[key])]
        # What `__post_init__` makes of an argument that is no field.
        both = sorted(before.keys() & after.keys() - set(own))
        hidden += [key for key in both if _is_written(before[key]) and before[key] != after[key]]
        hidden += ["__repr__"] * (not hidden and spell(again) != text)
    if hidden:
        raise ValueError(
            f"{name} should be a dataclass that its repr brings back, and the {hidden[0]} of {kind.__name__} "
            f"does not come back: it should be {_WRITTEN}"
        )


_WRITTEN = "a field that is a number, text, True, False, None or a tuple/list of these, shown by its repr"


def _attributes(description: Any) -> dict[str, Any]:
    """The fields of a dataclass and what else its instance has."""
    values = {f.name: getattr(description, f.name, None) for f in fields(description)}
    return {**getattr(description, "__dict__", {}), **values}


def _is_written(value: object) -> bool:
    """Whether the repr of a value says all of it, the same in every process."""
    if type(value) in (tuple, list):
        return all(map(_is_written, value))  # type: ignore[call-overload]
    return value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value))


def _words(kind: Any) -> str:
    return str(getattr(kind, "__name__", "Momentum or None"))
