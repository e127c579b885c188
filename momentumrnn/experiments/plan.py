"""What is to be run for a table or figure of the paper, what of it is there, and how long the rest takes."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..repr_parser import nearest
from .config import Config
from .demo import NETWORKS, entry
from .exhibits import EXHIBITS, Exhibit, exhibit
from .pace import epoch_seconds
from .paper import CONTROLS, RECIPES, recipe, variants
from .report.gather import Seed, gather

ALSO = ("as-released", "controls", *CONTROLS)
NAMES = ("demo", "all", *EXHIBITS)


@dataclass(frozen=True)
class Entry:
    """A run of some seeds, and its name."""

    name: str
    config: Config


@dataclass(frozen=True)
class Item:
    """An entry of a plan: which seeds are done, how many epochs others have; seconds: what is left takes."""

    entry: Entry
    done: tuple[int, ...]
    left: Mapping[int, int]
    """Epochs to go, by seed."""
    frozen: tuple[int, ...]
    seconds: float


def exhibits(what: str) -> list[Exhibit]:
    """The tables and figures of that name: one, for "all" every one, for "demo" none."""
    if what not in NAMES:
        hint = nearest(what, NAMES) or f"; expected demo, all, or one of {', '.join(EXHIBITS)}"
        raise ValueError(f"there is no {what!r} to reproduce{hint}")
    return list(EXHIBITS.values()) if what == "all" else [] if what == "demo" else [exhibit(what)]


def entries(
    what: str, rows: Sequence[str] = (), also: Sequence[str] = (), **changes: int | None
) -> list[Entry]:
    """The runs that a table or figure needs, each once.

    rows: take only those whose name has one of these in it; also: beside each its variants of these names,
    "controls" for all controls; changes: of each Config, such as epochs; those that are None are none.

    >>> [each.name for each in entries("table1", ["Momentum"], ["same-gain"])][1:3]
    ['table1/MomentumLSTM/MNIST/128/same-gain', 'table1/MomentumLSTM/PMNIST/128']
    """
    for name in also:
        if name not in ALSO:
            raise ValueError(f"--also: expected some of {', '.join(ALSO)}, got {name!r}{nearest(name, ALSO)}")
    if what == "demo":
        if also:
            raise ValueError(f"--also: expected nothing, since the demo has its controls, got {list(also)}")
        named = {f"demo/{each.row}": entry(each) for each in NETWORKS}
    else:
        bases = [name for each in exhibits(what) for name in each.recipes]
        named = {name: recipe(name).config for base in bases for name in _varied(base, also)}
        if also and bases and set(named) == set(bases):
            raise ValueError(f"--also: expected a variant of some row of {what}, got {', '.join(also)}")
    for row in rows:
        if not any(row in name for name in named):
            some = f"a part of a row's name, such as {next(iter(named))!r}" if named else f"none for {what}"
            raise ValueError(f"--rows: expected {some}, got {row!r}{_hint(row, named)}")
    first: dict[str, Entry] = {}
    for name, config in named.items():
        if not rows or any(_is_meant(name, row, named) for row in rows):
            # A run in two tables, or that is a control of two rows, is one.
            first.setdefault(config.id, Entry(name, config))
    given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    return [replace(each, config=replace(each.config, **given)) for each in first.values()]


def _is_meant(name: str, row: str, named: Container[str]) -> bool:
    """Whether --rows asks for a name: by a part of it; by a whole one it and its variants."""
    return f"{name}/".startswith(f"{row}/") if row in named else row in name


def _hint(row: str, names: Iterable[str]) -> str:
    """Where such a row is, else which is like it."""
    elsewhere = next((name for name in RECIPES if row in name), None)
    if elsewhere is not None:
        return f", which is in {elsewhere.partition('/')[0]}"
    # What of these names has as many words as the row has.
    count, found = row.count("/") + 1, [name.split("/") for name in names]
    parts = ["/".join(words[i : i + count]) for words in found for i in range(len(words) - count + 1)]
    return nearest(row, parts) or "; momentumrnn recipes lists them"


def _varied(base: str, also: Sequence[str]) -> list[str]:
    wanted = {*also, *(CONTROLS if "controls" in also else ())}
    return [name for name in variants(base) if {*name.split("/")[4:]} <= wanted]


def plan(
    wanted: Sequence[Entry],
    seeds: Sequence[int],
    root: Path,
    device: torch.device,
    threads: int | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> list[Item]:
    """What is there of these runs, and how long the rest takes, by steps that are timed now.

    note: told of each row that is about to be timed.
    """
    runs = gather([root]) if root.is_dir() else None
    paces: dict[tuple[object, ...], float] = {}
    items = []
    for number, each in enumerate(wanted, 1):
        config = each.config
        there: Mapping[int, Seed] = runs.of(config) if runs else {}
        lengths = {seed: len(there[seed].epochs) if seed in there else 0 for seed in seeds}
        frozen = [
            s for s in seeds if s in there and there[s].state == "frozen" and lengths[s] < config.epochs
        ]
        done = [s for s in seeds if s in there and _is_done(there[s], config.epochs)]
        left = {s: max(0, config.epochs - lengths[s]) for s in seeds if s not in {*done, *frozen}}
        seconds = 0.0
        if left:
            # Rows with the same key do the same operations at the same sizes, so one of them is timed. On a
            # CPU their times may still differ: gradients with denormal numbers make a step several times
            # slower, and an LSTM over many steps has them in some steps of training and not in others.
            key = (
                repr(config.task),
                repr(config.cell),
                config.momentum is not None and config.momentum.linear,
                config.momentum is None,
                config.hidden_size,
                config.batch_size,
                config.precision,
                config.orthogonal,
                bool(config.rebase_every),
                len(left),
            )
            if key not in paces:
                note(f"timing {each.name}, row {number} of {len(wanted)}")
                paces[key] = epoch_seconds(config, len(left), device, threads)
            seconds = paces[key] * max(left.values())
        items.append(Item(each, tuple(done), left, tuple(frozen), seconds))
    return items


def _is_done(seed: Seed, epochs: int) -> bool:
    return seed.result is not None and seed.result["epochs"] >= epochs
