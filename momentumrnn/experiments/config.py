"""What a run is: one task, one network, one way to train it. Knows nothing of how that is done.

A Config is data: `to_json` and `from_json` are inverse, and its `id` names the run's folder.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from numbers import Integral, Real
from typing import Any

from .. import cells, init, momentum
from ..cells import Cell
from ..init import Init
from ..momentum import Momentum
from ..repr_parser import nearest, parse
from .tasks import TASKS, Task

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

    def __post_init__(self) -> None:
        for name, kind in (("task", Task), ("cell", Cell), ("momentum", Momentum | None), ("init", Init)):
            value = getattr(self, name)
            _check(name, value, isinstance(value, kind), f"a {_words(kind)}")
            object.__setattr__(self, name, _plain(value))
        # A configuration is written down in words, and its seeds share its objects.
        rates = ", ".join(momentum.tensor_fields(self.momentum))
        _check("momentum", rates, not rates, "numbers for mu and step in an experiment, not tensors")
        for name, least in (
            ("hidden_size", 1),
            ("rebase_every", 0),
            ("batch_size", 1),
            ("epochs", 1),
            ("log_every", 1),
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
    def id(self) -> str:
        """The name of its runs, the seed left out: what it is in words, and a hash of all that matters."""
        return identity(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """All fields; descriptions as they are spelt."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {k: repr(v) if k in _DESCRIPTIONS else v for k, v in values.items()}

    @classmethod
    def from_json(cls, values: dict[str, Any], own: Sequence[type] = ()) -> "Config":
        """The Config that `to_json` wrote. own: classes of yours that describe something in it."""
        names = {f.name for f in fields(cls)}
        if set(values) != names:
            odd = sorted(set(values) ^ names)
            raise ValueError(f"a config should have the fields {sorted(names)}, differs in {odd}")
        return cls(**{key: read(key, value, own) for key, value in values.items()})


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
    if values.get("init") != repr(init.Dtriv() if dtriv else init.Paper()):
        parts.append(f"init {values.get('init')}")
    return ", ".join([*parts, *[str(values.get("precision"))] * (values.get("precision") != "tf32")])


def identity(values: Mapping[str, Any]) -> str:
    """The id of the Config of which `to_json` gave these, whoever's classes describe it."""
    names = [str(values[key]).partition("(")[0].rpartition(".")[2] for key in ("task", "cell", "momentum")]
    slug = "-".join(name.lower() for name in names if name != "None")
    own = {key: value for key, value in values.items() if key not in SAME_RUN}
    # What is idle makes no other run.
    own |= {} if values["optimizer"] == "rmsprop" else {"alpha": _DEFAULTS["alpha"]}
    own |= {} if values["orthogonal"] else {"orthogonal_lr": _DEFAULTS["orthogonal_lr"]}
    digest = hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()
    kind = "orthogonal-" if values["orthogonal"] else ""
    return f"{kind}{slug}-{values['hidden_size']}-{digest[:10]}"


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


def _words(kind: Any) -> str:
    return str(getattr(kind, "__name__", "Momentum or None"))
