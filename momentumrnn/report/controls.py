"""What a control of a network is called, and what it shares with its network."""

from collections.abc import Sequence
from typing import Any

from ..cells import ExtrapolatedLSTM
from ..experiments.config import Config
from ..experiments.paper.recipes import Recipe, recipe
from .wording import rounded


def last_variant(name: str) -> str:
    """The last variant in the name of a recipe: "" for none, "as-released", or a control.

    >>> last_variant("table1/AdamLSTM/MNIST/256/as-released/same-step"), last_variant("table1/LSTM/MNIST/256")
    ('same-step', '')
    """
    return "/".join(name.split("/")[4:]).rpartition("/")[2]


def matched(names: Sequence[str]) -> str:
    """What a control shares with its network, such as "same gain". names: its recipes; all are one run."""
    return ", ".join(last_variant(name).replace("-", " ") for name in names)


def control_name(control: Recipe) -> str:
    """What a control is, such as "LSTM, input x 2.5" or "LSTM, forget bias 3.5".

    The forget bias is the sum of both biases, the input's after scaling. It is named where the control has
    others than its network.

    >>> control_name(recipe("table1/MomentumLSTM/PMNIST/256/same-input-gain"))
    'LSTM, input x 2.5, forget bias 2'
    """
    config, network = control.config, recipe(control.name.rpartition("/")[0]).config
    factor = _input_factor(config)
    parts = ["DTRIV" if config.orthogonal else "LSTM"]
    parts += [f"input x {rounded(factor, 4)}"] if factor != 1 else []
    if config.init != network.init:
        init: Any = config.init
        parts.append(f"forget bias {rounded((1 + factor) * init.forget_bias, 4)}")
    return ", ".join(parts)


def _input_factor(config: Config) -> float:
    """By what a network without momentum multiplies W x + b_ih."""
    if isinstance(config.cell, ExtrapolatedLSTM):
        return -config.cell.step_size
    momentum: Any = config.momentum
    return 1.0 if momentum is None else float(momentum.step)
