"""The demo: the paper's LSTMs and a control on a small task, minutes on a CPU. Data alone."""

from dataclasses import dataclass
from typing import Any

from ..init import Torch
from ..momentum import Adam, HeavyBall, Momentum, RMSProp, ScheduledRestart
from .config import Config, configure
from .tasks import Adding

TASK = Adding(length=25, samples=2500)
SETTINGS: dict[str, Any] = {"hidden_size": 64, "init": Torch(), "lr": 5e-3, "clip": 1.0, "batch_size": 50}
EPOCHS = 12
# The same for all that have them: none is tuned by itself.
MU, STEP, BETA = 0.6, 1.0, 0.9
GAIN = STEP / (1 - MU)
BOUND = TASK.baseline / 2
"""A validation loss at which a network has learnt something."""


@dataclass(frozen=True)
class Network:
    """A row of its table and a line of its plot."""

    name: str
    momentum: Momentum | None
    control: bool = False


NETWORKS = (
    Network("LSTM", None),
    Network("MomentumLSTM", HeavyBall(mu=MU, step=STEP)),
    Network("AdamLSTM", Adam(mu=MU, step=STEP, beta=BETA)),
    Network("RMSPropLSTM", RMSProp(step=STEP, beta=BETA)),
    # Its default would not restart once in so few steps.
    Network("SRLSTM", ScheduledRestart(every=10, step=STEP)),
    Network(f"LSTM gain {GAIN:g}", HeavyBall(mu=0.0, step=GAIN), control=True),
)


def entry(network: Network, epochs: int = EPOCHS) -> Config:
    """Its run."""
    return configure(TASK, momentum=network.momentum, epochs=epochs, **SETTINGS)


def steps() -> int:
    """Those of an epoch."""
    return -(-TASK.samples // int(SETTINGS["batch_size"]))


def half_way(epochs: int) -> int:
    """The epoch in the middle."""
    return max(1, epochs // 2)
