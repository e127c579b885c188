"""The tables of hyper-parameters, 6 to 10 in the paper. Knows no file format."""

from typing import Any

from ..experiments.paper.hyperparameters import settings
from .table import Row, Table

_TITLES = {
    "dataset": "task",
    "n": "units",
    "K": "K",
    "optimizer": "optimizer",
    "lr": "learning rate",
    "orth_optimizer": "optimizer of U",
    "orth_lr": "learning rate of U",
    "batch_size": "batch",
    "epochs": "epochs",
    "mu": "mu",
    "s": "step",
    "beta": "beta",
    "F": "F",
}
"""The titles of the columns, by the names that the paper gives them."""


def hyperparameters(name: str) -> Table:
    """A table of hyper-parameters."""
    networks = settings(name)
    used = [key for key in _TITLES if any(key in values for rows in networks.values() for values in rows)]
    rows = []
    for network, rows_of_network in networks.items():
        for values in rows_of_network:
            cells = (network, *(_setting(values.get(key)) for key in used))
            rows.append(Row(cells, {"network": network, **{key: values.get(key) for key in used}}))
    note = (
        "These values come from the recipes. TIMIT and PTB have no recipe yet: their values are those of the "
        "paper. K: steps from one re-basing of U to the next."
    )
    return Table(name, ("network", *(_TITLES[key] for key in used)), tuple(rows), note)


def _setting(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{_setting(number)} (n = {size})" for size, number in value.items())
    if value is None:
        return ""
    if value == "infty":
        return "∞"
    return f"{value:g}" if isinstance(value, float) else str(value)
