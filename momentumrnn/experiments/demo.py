"""The demo as data: the paper's LSTMs and their controls on a small task, two minutes on a CPU."""

from dataclasses import dataclass
from typing import Any

from ..init import Torch
from ..momentum import Adam, HeavyBall, Momentum, RMSProp, ScheduledRestart
from .config import Config, configure
from .tasks import Adding

TASK = Adding(length=25, samples=2500)
SETTINGS: dict[str, Any] = {"hidden_size": 64, "init": Torch(), "lr": 5e-3, "clip": 1.0, "batch_size": 50}
EPOCHS = 12
# All networks that have a hyper-parameter have the same value of it. None was tuned.
MU, STEP, BETA = 0.6, 1.0, 0.9
# ScheduledRestart's default would not restart once in 25 steps.
EVERY = 10
BOUND = TASK.baseline / 2
"""A network has learned when its validation loss is below this."""

# The step without momentum that gives a constant input the same drive: in the long run, or in the mean over
# a restart period.
GAIN = STEP / (1 - MU)
RESTART_GAIN = STEP * (1 + (EVERY - 1) / 8)
# The step without momentum at which the drive of a new network has the same rms, over all gate rows with
# torch's biases: the mean of `paper.controls.matched_step` over 20 seeds. Their standard deviation is 3 %.
ADAM_RMS, RMSPROP_RMS = 31.7, 16.6


@dataclass(frozen=True)
class Network:
    """One network of the demo: a row of its table and a line of its plot."""

    name: str
    momentum: Momentum | None
    control_of: str = ""
    """The network with momentum that this one is the control of; empty for one that is no control."""
    matched: str = ""
    """What it shares with that network: "same gain" or "same rms"."""

    @property
    def row(self) -> str:
        """Its name on the command line, such as "MomentumLSTM/same-gain"."""
        return f"{self.control_of}/{self.matched.replace(' ', '-')}" if self.control_of else self.name


def _control(network: str, matched: str, step: float) -> Network:
    """A control of a network: a plain LSTM that multiplies its input by `step`."""
    return Network(f"LSTM, input x {step:g}", HeavyBall(mu=0.0, step=step), network, matched)


NETWORKS = (
    Network("LSTM", None),
    Network("MomentumLSTM", HeavyBall(mu=MU, step=STEP)),
    _control("MomentumLSTM", "same gain", GAIN),
    Network("AdamLSTM", Adam(mu=MU, step=STEP, beta=BETA)),
    _control("AdamLSTM", "same rms", ADAM_RMS),
    Network("RMSPropLSTM", RMSProp(step=STEP, beta=BETA)),
    _control("RMSPropLSTM", "same rms", RMSPROP_RMS),
    Network("SRLSTM", ScheduledRestart(every=EVERY, step=STEP)),
    _control("SRLSTM", "same gain", RESTART_GAIN),
)


def entry(network: Network, epochs: int = EPOCHS) -> Config:
    """The run of a network."""
    return configure(TASK, momentum=network.momentum, epochs=epochs, **SETTINGS)


def pairs() -> list[tuple[Network, Network]]:
    """The networks with momentum, and beside each its control."""
    by_name = {network.name: network for network in NETWORKS}
    return [(by_name[control.control_of], control) for control in NETWORKS if control.control_of]


def steps() -> int:
    """How many training steps an epoch has."""
    return -(-TASK.samples // int(SETTINGS["batch_size"]))


def half_way(epochs: int) -> int:
    """The epoch in the middle of so many."""
    return max(1, epochs // 2)
