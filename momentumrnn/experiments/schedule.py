"""What is to be run for a table or figure of the paper, what of it is there, and how long the rest takes."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..repr_parser import nearest
from . import demo
from .config import Config
from .estimate import epoch_seconds
from .paper.controls import CONTROLS
from .paper.recipes import RECIPES, recipe, variants
from .paper.tables import EXHIBITS, Exhibit, exhibit
from .runs.gather import gather
from .runs.read import RunRecord

ALSO = ("as-released", "controls", *CONTROLS)
NAMES = ("demo", "all", *EXHIBITS)


@dataclass(frozen=True)
class Entry:
    """A run of some seeds, and its name."""

    name: str
    config: Config


@dataclass(frozen=True)
class Item:
    """An entry of a plan: what its seeds have. seconds: how long what is left takes.

    frozen, stopped: the seeds that ended early, and so have nothing left to train.
    """

    entry: Entry
    done: tuple[int, ...]
    left: Mapping[int, int]
    """Epochs to go, by seed."""
    frozen: tuple[int, ...]
    stopped: tuple[int, ...]
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

    >>> [entry.name for entry in entries("table1", ["Momentum"], ["same-gain"])][1:3]
    ['table1/MomentumLSTM/MNIST/128/same-gain', 'table1/MomentumLSTM/PMNIST/128']
    """
    for name in also:
        if name not in ALSO:
            raise ValueError(f"--also: expected some of {', '.join(ALSO)}, got {name!r}{nearest(name, ALSO)}")
    if what == "demo":
        if also:
            raise ValueError(f"--also: expected nothing, since the demo has its controls, got {list(also)}")
        configs = {f"demo/{network.row}": demo.entry(network) for network in demo.NETWORKS}
    else:
        bases = [name for shown in exhibits(what) for name in shown.recipes]
        configs = {name: recipe(name).config for base in bases for name in _with_variants(base, also)}
        if also and bases and set(configs) == set(bases):
            raise ValueError(f"--also: expected a variant of some row of {what}, got {', '.join(also)}")
    for row in rows:
        if not any(row in name for name in configs):
            example = next(iter(configs), None)
            expected = f"a part of a row's name, such as {example!r}" if example else f"none for {what}"
            raise ValueError(f"--rows: expected {expected}, got {row!r}{_hint(row, configs)}")
    by_id: dict[str, Entry] = {}
    for name, config in configs.items():
        if not rows or any(_is_meant(name, row, configs) for row in rows):
            # A run in two tables, or that is a control of two rows, is one.
            by_id.setdefault(config.id, Entry(name, config))
    given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    return [Entry(wanted.name, replace(wanted.config, **given)) for wanted in by_id.values()]


def _is_meant(name: str, row: str, names: Container[str]) -> bool:
    """Whether --rows asks for a name: by a part of it; by a whole one it and its variants."""
    return f"{name}/".startswith(f"{row}/") if row in names else row in name


def _hint(row: str, names: Iterable[str]) -> str:
    """Where such a row is, else which is like it."""
    elsewhere = next((name for name in RECIPES if row in name), None)
    if elsewhere is not None:
        return f", which is in {elsewhere.partition('/')[0]}"
    # What of these names has as many words as the row has.
    count, split_names = row.count("/") + 1, [name.split("/") for name in names]
    parts = ["/".join(words[i : i + count]) for words in split_names for i in range(len(words) - count + 1)]
    return nearest(row, parts) or "; momentumrnn recipes lists them"


def _with_variants(base: str, also: Sequence[str]) -> list[str]:
    """The name of a row, and those of its variants that --also asks for."""
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
    epoch_times: dict[tuple[object, ...], float] = {}
    items = []
    for number, entry in enumerate(wanted, 1):
        item = _without_time(entry, runs.of(entry.config) if runs else {}, seeds)
        if item.left:
            key = _kind_of_step(entry.config, len(item.left))
            if key not in epoch_times:
                note(f"timing {entry.name}, row {number} of {len(wanted)}")
                epoch_times[key] = epoch_seconds(entry.config, len(item.left), device, threads)
            item = replace(item, seconds=epoch_times[key] * max(item.left.values()))
        items.append(item)
    return items


def _without_time(entry: Entry, records: Mapping[int, RunRecord], seeds: Sequence[int]) -> Item:
    """What the seeds of an entry have, by the records that are there."""
    epochs = entry.config.epochs
    done, ended = list[int](), dict[str, list[int]]({"frozen": [], "stopped": []})
    left: dict[int, int] = {}
    for seed in seeds:
        record = records.get(seed)
        trained = len(record.epochs) if record else 0
        if record and record.result is not None and record.result["epochs"] >= epochs:
            done.append(seed)
        elif record and record.state in ended and trained < epochs:
            ended[record.state].append(seed)
        else:
            left[seed] = max(0, epochs - trained)
    return Item(entry, tuple(done), left, tuple(ended["frozen"]), tuple(ended["stopped"]), 0.0)


def _kind_of_step(config: Config, seeds: int) -> tuple[object, ...]:
    """Equal for rows that do the same operations at the same sizes, so that one of them is timed.

    On a CPU their times may still differ: gradients with denormal numbers make a step several times slower,
    and an LSTM over many steps has them in some steps of training and not in others.
    """
    return (
        repr(config.task),
        repr(config.cell),
        config.momentum is not None and config.momentum.linear,
        config.momentum is None,
        config.hidden_size,
        config.batch_size,
        config.precision,
        config.orthogonal,
        bool(config.rebase_every),
        seeds,
    )
