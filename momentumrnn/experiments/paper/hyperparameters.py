"""The paper's tables of hyper-parameters, 6 to 10: from the recipes, and as printed for speech and text."""

from typing import Any

from ...cells import ExtrapolatedLSTM
from ...momentum import Adam, HeavyBall, RMSProp, ScheduledRestart
from ..config import Config
from .recipes import RECIPES
from .rows import row_of

_FAMILIES = {"table6": "", "table7": "Momentum", "table8": "Adam", "table9": "RMSProp", "table10": "SR"}
_OPTIMIZERS = {"rmsprop": "RMSProp", "adam": "Adam", "sgd": "SGD"}
_DATASETS = {"Copying1K": "Copying L=1K", "Copying2K": "Copying L=2K"}
# The order of the rows.
_ORDER = ("MNIST", "PMNIST", "TIMIT", "PTB", "Copying", "Copying L=1K", "Copying L=2K", "Adding")
# Speech and text have no tasks yet: what all networks have there, and what is each one's own.
_SPEECH_LSTM = {"dataset": "TIMIT", "optimizer": "Adam", "lr": 1e-4, "batch_size": 32, "epochs": 700}
_SPEECH_DTRIV = {"dataset": "TIMIT", "optimizer": "Adam", "lr": 1e-3, "batch_size": 128, "epochs": 700}
_TEXT_LSTM = {"dataset": "PTB", "optimizer": "SGD", "lr": 30.0, "batch_size": 20, "epochs": 500}
_SPEECH_MOMENTA: dict[str, dict[str, Any]] = {
    "LSTM": {},
    "MomentumLSTM": {"mu": 0.3, "s": 0.1},
    "AdamLSTM": {"mu": 0.3, "s": 0.1, "beta": 0.999},
    "RMSPropLSTM": {"mu": 0.0, "s": 0.1, "beta": 0.999},
    "SRLSTM": {"F": 2, "s": 0.1},
    "DTRIV": {},
    "MomentumDTRIV": {"mu": 0.3, "s": 0.1},
}
_TEXT_MOMENTA: dict[str, dict[str, Any]] = {
    "LSTM": {},
    "MomentumLSTM": {"mu": 0.0, "s": 0.6},
    "SRLSTM": {"F": 2, "s": 0.6},
}


def settings(table: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of a table of hyper-parameters, by network, with the names that the paper gives its columns.

    A value that depends on the number of units is a dict by that number. The rows of tasks that this version
    has come from the recipes.

    >>> settings("table9")["RMSPropLSTM"][0]["beta"]
    {'256': 0.9, '128': 0.99}
    """
    family = _FAMILIES[table]
    return {f"{family}{cell}": _rows(f"{family}{cell}") for cell in ("LSTM", "DTRIV")}


def _rows(model: str) -> list[dict[str, Any]]:
    configs: dict[str, list[Config]] = {}
    for row, recipe in {row_of(name): recipe for name, recipe in RECIPES.items()}.items():
        network, task, size = row.split("/")
        if network == model:
            configs.setdefault(_place(model, task, size), []).append(recipe.config)
    rows = {key: _row(key.partition("/")[0], alike) for key, alike in configs.items()}
    rows |= _rows_without_recipes(model)
    return [rows[key] for dataset in _ORDER for key in sorted(rows) if key.partition("/")[0] == dataset]


def _place(model: str, task: str, size: str) -> str:
    """The row that holds a recipe: the dataset; for DTRIV, which has a row for each size, dataset/size."""
    # Table 6 has one row for both lengths of copying.
    dataset = task.removesuffix("1K").removesuffix("2K") if model == "LSTM" else _DATASETS.get(task, task)
    return dataset if model.endswith("LSTM") else f"{dataset}/{size}"


def _rows_without_recipes(model: str) -> dict[str, dict[str, Any]]:
    """The rows of speech and text."""
    rows: dict[str, dict[str, Any]] = {}
    if model in _TEXT_MOMENTA:
        rows["PTB"] = {**_TEXT_LSTM, **_TEXT_MOMENTA[model]}
    if model in _SPEECH_MOMENTA and model.endswith("LSTM"):
        rows["TIMIT"] = {**_SPEECH_LSTM, **_SPEECH_MOMENTA[model]}
    elif model in _SPEECH_MOMENTA:
        for units in (224, 322):
            orthogonal = {"n": units, "K": "infty", "orth_optimizer": "RMSProp", "orth_lr": 2e-4}
            rows[f"TIMIT/{units}"] = {**orthogonal, **_SPEECH_DTRIV, **_SPEECH_MOMENTA[model]}
    return rows


def _row(dataset: str, configs: list[Config]) -> dict[str, Any]:
    """What the paper prints of networks that differ in nothing but their size and what depends on it."""
    from_largest = sorted(configs, key=lambda config: -config.hidden_size)
    by_size = {str(config.hidden_size): _values(config) for config in from_largest}
    row: dict[str, Any] = {"dataset": dataset}
    for key in next(iter(by_size.values())):
        values = {size: columns[key] for size, columns in by_size.items()}
        row[key] = next(iter(values.values())) if len(set(values.values())) == 1 else values
    return row


def _values(config: Config) -> dict[str, Any]:
    task: Any = config.task
    # Where samples are drawn, the paper's epochs are steps.
    steps = -(-task.samples // config.batch_size) if hasattr(task, "samples") else 1
    columns: dict[str, Any] = {"optimizer": _OPTIMIZERS[config.optimizer], "lr": config.lr}
    if config.orthogonal:
        columns |= {"n": config.hidden_size, "K": config.rebase_every or "infty"}
        columns |= {"orth_optimizer": "RMSProp", "orth_lr": config.orthogonal_lr}
    columns |= {"batch_size": config.batch_size, "epochs": config.epochs * steps}
    momentum = config.momentum
    if isinstance(momentum, HeavyBall | Adam):
        columns |= {"mu": momentum.mu}
    if isinstance(momentum, RMSProp):
        columns |= {"mu": 0.0}
    if momentum is not None:
        columns |= {"s": momentum.step}
    if isinstance(momentum, Adam | RMSProp):
        columns |= {"beta": momentum.beta}
    if isinstance(momentum, ScheduledRestart):
        columns |= {"F": momentum.every}
    if isinstance(config.cell, ExtrapolatedLSTM):
        columns |= {"F": config.cell.every, "s": config.cell.step_size}
    return columns
