"""The rows of the paper as data: how each was run. Knows nothing of how a run is done.

A recipe is named by table or figure, model, task and hidden size: "table1/MomentumLSTM/PMNIST/256". A row in
two tables has two names and one Config, so its runs are shared. Variants, such as the controls that the paper
lacks, are named by what follows: "table1/MomentumLSTM/PMNIST/256/same-gain".

Reference: Nguyen, Baraniuk, Bertozzi, Osher, Wang, MomentumRNN: Integrating Momentum into Recurrent Neural
Networks, NeurIPS 2020.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ...cells import ExtrapolatedLSTM
from ...momentum import Adam, HeavyBall, Momentum, RMSProp, ScheduledRestart
from ...repr_parser import nearest
from ..config import Config, configure
from ..tasks import MNIST, PMNIST, Adding, Copying, Task
from .controls import CONTROLS, VARIANTS, variant_config
from .published import NOTES, PUBLISHED, Published
from .rows import closest, row_of


@dataclass(frozen=True)
class Recipe:
    """A row of the paper, or a variant of one: its run, and the numbers to stand beside it.

    >>> row = recipe("table1/MomentumLSTM/PMNIST/256")
    >>> row.config.momentum, row.published
    (HeavyBall(mu=0.6, step=1.0), (Published(value=94.72, std=0.16, source='paper', rounding=0.0, seeds=5),))
    >>> row.variants
    ('as-released', 'same-step', 'same-gain', 'same-input-gain', 'same-forget-bias')
    """

    name: str
    config: Config
    published: tuple[Published, ...]
    """Empty where the paper has only a curve, or nothing."""
    metric: str
    """What the published numbers are, in words."""
    note: str = ""
    """What to know for a comparison with them."""

    @property
    def variants(self) -> tuple[str, ...]:
        """The keys of VARIANTS that may follow its name."""
        return tuple(key for key in VARIANTS if variant_config(self.name, self.config, key) is not None)

    @property
    def published_text(self) -> str:
        """What the paper has for it, in words.

        >>> recipe("figure4/LSTM/Copying2K/190").published_text
        'published training loss at the end: 0.01'
        """
        if not self.published:
            return "no number published"
        numbers = [
            f"{number.text} (quoted from {number.source})" if number.quoted else number.text
            for number in self.published
        ]
        return f"published {self.metric}: {'; '.join(numbers)}"


def recipe(name: str) -> Recipe:
    """The recipe of that name: one of RECIPES, or a variant.

    A control may follow "as-released": "table11/AdamLSTM/MNIST/128/as-released/same-step".

    >>> recipe("table1/MomentumLSTM/MNIST/256/same-gain").config.momentum
    HeavyBall(mu=0.0, step=1.5)
    """
    words = name.split("/")
    base = "/".join(words[:4])
    if base not in RECIPES:
        hint = nearest(base, RECIPES) or "; momentumrnn recipes lists them"
        raise ValueError(f"there is no recipe {name!r}{hint}")
    row = RECIPES[base]
    for variant in words[4:]:
        row = _varied(row, variant)
    return row


def own_name(name: str, run_id: str) -> str:
    """What a run with this id is called beside it, of the name in its record; "" if nothing.

    The name of a recipe is that of its own run alone, which has no other settings in its name.

    >>> run_id = recipe("figure4/LSTM/Adding/128").config.id
    >>> own_name("figure4/LSTM/Adding/128 with alpha=0.5", run_id)  # alpha is nothing to Adam
    'figure4/LSTM/Adding/128'
    >>> own_name("figure4/MomentumLSTM/Adding/128", run_id)
    ''
    """
    name = " ".join(name.split())
    recipe_name, other_settings, _ = name.partition(" with ")
    try:
        is_recipe = recipe(recipe_name).config.id == run_id
    except ValueError:
        return name
    if is_recipe:
        return recipe_name
    return name if other_settings else ""


def variants(name: str) -> list[str]:
    """The names of a recipe and of all its variants. A control follows what it is a control of.

    >>> variants("table1/SRLSTM-released/MNIST/256")[1:3]
    ['table1/SRLSTM-released/MNIST/256/same-step', 'table1/SRLSTM-released/MNIST/256/same-forget-bias']
    """
    released = f"{name}/as-released"
    names = []
    for base in (name, released) if "as-released" in recipe(name).variants else (name,):
        controls = [variant for variant in recipe(base).variants if variant in CONTROLS]
        names += [base, *(f"{base}/{control}" for control in controls)]
    return names


def _varied(base: Recipe, variant: str) -> Recipe:
    config = variant_config(base.name, base.config, variant)
    if config is None:
        known = base.variants
        expected = f"one of {', '.join(map(repr, known))}" if known else "nothing"
        raise ValueError(
            f"after {base.name!r} expected {expected}, got {variant!r}{nearest(variant, list(known))}"
        )
    name = f"{base.name}/{variant}"
    if variant == "as-released":
        published, notes = base.published, [base.note, VARIANTS[variant].words]
    else:
        row = row_of(name).replace("/as-released", "")
        published, notes = PUBLISHED.get(row, ()), [VARIANTS[variant].words, NOTES.get(row, "")]
    return replace(base, name=name, config=config, published=published, note="; ".join(filter(None, notes)))


_TASKS: dict[str, Task] = {
    "MNIST": MNIST(),
    "PMNIST": PMNIST(),
    "Copying1K": Copying(length=1000),
    "Copying2K": Copying(length=2000),
    "Adding": Adding(),
}
# Tables 7 to 10. The size is in the key where a value holds for that size only.
_MOMENTA: dict[str, Momentum] = {
    "MomentumLSTM/MNIST": HeavyBall(mu=0.6, step=0.6),
    "MomentumLSTM/PMNIST": HeavyBall(mu=0.6, step=1.0),
    "MomentumLSTM/Copying1K": HeavyBall(mu=0.6, step=0.9),
    "MomentumLSTM/Copying2K": HeavyBall(mu=0.9, step=2.0),
    "MomentumLSTM/Adding": HeavyBall(mu=0.9, step=2.0),
    "MomentumDTRIV/PMNIST/170": HeavyBall(mu=0.6, step=0.9),
    "MomentumDTRIV/PMNIST/360": HeavyBall(mu=0.3, step=0.3),
    "MomentumDTRIV/PMNIST/512": HeavyBall(mu=0.3, step=0.3),
    "AdamLSTM/MNIST": Adam(mu=0.6, step=0.6, beta=0.1),
    "AdamLSTM/PMNIST": Adam(mu=0.6, step=1.0, beta=0.01),
    "AdamLSTM/Copying1K": Adam(mu=0.6, step=2.0, beta=0.999),
    "AdamLSTM/Copying2K": Adam(mu=0.6, step=2.0, beta=0.999),
    "AdamLSTM/Adding": Adam(mu=0.6, step=2.0, beta=0.999),
    "AdamDTRIV/PMNIST/512": Adam(mu=0.3, step=0.3, beta=0.8),
    "RMSPropLSTM/MNIST/128": RMSProp(step=0.6, beta=0.99),
    "RMSPropLSTM/MNIST/256": RMSProp(step=0.6, beta=0.9),
    "RMSPropLSTM/PMNIST": RMSProp(step=1.0, beta=0.01),
    "RMSPropLSTM/Copying1K": RMSProp(step=2.0, beta=0.999),
    "RMSPropLSTM/Copying2K": RMSProp(step=2.0, beta=0.999),
    "RMSPropLSTM/Adding": RMSProp(step=2.0, beta=0.999),
    "RMSPropDTRIV/PMNIST/512": RMSProp(step=0.3, beta=0.9),
    "SRLSTM/MNIST": ScheduledRestart(every=2, step=1.0),
    "SRLSTM/PMNIST/128": ScheduledRestart(every=6, step=0.01),
    "SRLSTM/PMNIST/256": ScheduledRestart(every=40, step=0.9),
    "SRLSTM/Copying1K": ScheduledRestart(every=100, step=0.9),
    "SRLSTM/Copying2K": ScheduledRestart(every=100, step=0.9),
    "SRLSTM/Adding": ScheduledRestart(every=100, step=0.9),
    "SRDTRIV/PMNIST/512": ScheduledRestart(every=2, step=0.3),
}
# The cell that the released code ran as SRLSTM.
_CELLS = {
    "SRLSTM-released/MNIST": ExtrapolatedLSTM(every=2, step_size=1.0),
    "SRLSTM-released/PMNIST/128": ExtrapolatedLSTM(every=6, step_size=0.01),
    "SRLSTM-released/PMNIST/256": ExtrapolatedLSTM(every=40, step_size=0.9),
}
# Table 6 for networks with an orthogonal U, which the other tables repeat. K = infinity is 0 here.
_ORTHOGONAL = {
    "MNIST/170": {"lr": 1e-3, "orthogonal_lr": 1e-4, "rebase_every": 1},
    "MNIST/360": {"lr": 5e-4, "orthogonal_lr": 1e-4, "rebase_every": 0},
    "MNIST/512": {"lr": 5e-4, "orthogonal_lr": 1e-4, "rebase_every": 100},
    "PMNIST/170": {"lr": 7e-4, "orthogonal_lr": 2e-4, "rebase_every": 1},
    "PMNIST/360": {"lr": 7e-4, "orthogonal_lr": 5e-5, "rebase_every": 0},
    "PMNIST/512": {"lr": 3e-4, "orthogonal_lr": 7e-5, "rebase_every": 0},
}
_LSTMS = "LSTM MomentumLSTM AdamLSTM RMSPropLSTM SRLSTM"
# The rows of tables and figures: models, and tasks with hidden sizes.
_TABLES = {
    "table1": (
        ("LSTM MomentumLSTM", "MNIST/128 PMNIST/128 MNIST/256 PMNIST/256"),
        ("AdamLSTM RMSPropLSTM SRLSTM SRLSTM-released", "MNIST/256 PMNIST/256"),
    ),
    "figure4": ((_LSTMS, "Copying2K/190 Adding/128"),),
    "table4": (("DTRIV MomentumDTRIV", "PMNIST/170 PMNIST/360 PMNIST/512"),),
    # Its other rows are those of tables with results.
    "table6": (("DTRIV", "MNIST/170 MNIST/360 MNIST/512"),),
    "table11": ((f"{_LSTMS} SRLSTM-released", "MNIST/128 PMNIST/128"),),
    "figure10": ((_LSTMS, "Copying1K/190 Copying2K/190"),),
    "table13": (
        ("DTRIV MomentumDTRIV", "PMNIST/170 PMNIST/360 PMNIST/512"),
        ("AdamDTRIV RMSPropDTRIV SRDTRIV", "PMNIST/512"),
    ),
}


def _from_paper(name: str) -> Recipe:
    table, model, task, size = name.split("/")
    row = row_of(name)
    options: dict[str, Any] = {"hidden_size": int(size), "momentum": closest(_MOMENTA, row)}
    if model.endswith("DTRIV"):
        options |= {"orthogonal": True, "alpha": 0.99, **_ORTHOGONAL[f"{task}/{size}"]}
    if cell := closest(_CELLS, row):
        options["cell"] = cell
    metric = (
        "best test accuracy of all epochs, %" if table.startswith("table") else "training loss at the end"
    )
    published = PUBLISHED.get(row.replace("-released", ""), ())
    note = "; ".join(NOTES[key] for key in (task, f"{model}/{task}", row) if key in NOTES)
    return Recipe(name, configure(_TASKS[task], **options), published, metric, note)


def _names() -> Iterator[str]:
    for table, blocks in _TABLES.items():
        for models, tasks in blocks:
            yield from (f"{table}/{model}/{task}" for model in models.split() for task in tasks.split())


RECIPES: dict[str, Recipe] = {name: _from_paper(name) for name in _names()}
