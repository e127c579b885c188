"""The demo's table, and what it shows in words. Knows no file format."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from ..experiments.demo import BOUND, NETWORKS, SETTINGS, TASK, Network, entry, half_way, pairs, steps
from ..experiments.runs.gather import Runs, outcome
from ..experiments.runs.read import RunRecord
from .table import Row, Table
from .wording import NOT_RUN, counted, listed, spread, unfinished


def demo(runs: Runs) -> Table:
    """All networks of the demo. Those without runs say so."""
    epochs = _most_epochs(runs)
    half, steps_per_epoch = half_way(epochs), steps()
    columns = (
        "network",
        "what it is",
        f"steps to a loss below {BOUND:.4f}",
        f"validation loss after {half * steps_per_epoch} steps",
        f"validation loss after {epochs * steps_per_epoch} steps (seeds)",
    )
    rows = []
    for network, seeds in demo_runs(runs):
        curves = {seed: validation(record) for seed, record in seeds.items()}
        at_half, at_end = (
            {seed: curve[epoch - 1] for seed, curve in curves.items() if len(curve) >= epoch}
            for epoch in (half, epochs)
        )
        learned_at = [steps_per_epoch * epoch for epoch in map(learned, curves.values())]
        not_at_end = unfinished(outcome(seeds, epochs))
        cells = (
            network.name,
            _description(network),
            between(learned_at) if learned_at else NOT_RUN,
            spread(at_half, 4) or NOT_RUN,
            "; ".join(filter(None, (spread(at_end, 4, count=True), not_at_end))) or NOT_RUN,
        )
        data: dict[str, Any] = {"network": network.name, "run": entry(network).id}
        data |= {"momentum": repr(network.momentum), "control_of": network.control_of}
        data |= {f"seed_{seed}": value for seed, value in at_end.items()}
        data |= {"median_steps": median(learned_at)} if learned_at and median(learned_at) < math.inf else {}
        kind = "control" if network.control_of else ""
        rows.append(Row(cells, data, kind if seeds else "absent"))
    note = (
        f"A network that always answers 1 has a loss of {TASK.baseline:.4f}. A network has learned when its "
        f"validation loss is below half of that, {BOUND:.4f}. The loss is measured every {steps()} steps. "
        "The table has means and standard deviations over the seeds, the plot medians and ranges."
    )
    return Table("demo", columns, tuple(rows), note)


def demo_runs(runs: Runs) -> list[tuple[Network, Mapping[int, RunRecord]]]:
    """The networks of the demo, and the seeds of each that were run."""
    return [(network, runs.of(entry(network))) for network in NETWORKS]


def trained(runs: Runs) -> str:
    """What was trained, in one sentence."""
    trained_networks = [records for _, records in demo_runs(runs) if records]
    count = len(trained_networks)
    seeds = {seed for records in trained_networks for seed in records}
    return (
        f"{counted(count, 'small network')} {'was' if count == 1 else 'were'} trained to add two "
        f"marked numbers among {TASK.length}: "
        f"{SETTINGS['hidden_size']} units, {counted(len(seeds), 'seed')} each, "
        f"{_most_epochs(runs) * steps()} training steps."
    )


def lesson(runs: Runs) -> str:
    """What the networks with momentum have over their controls. "" if no pair was trained.

    A network learns after so many epochs as the median of its seeds.
    """
    epochs = _median_epochs(runs)
    compared = [
        (network.name, epochs[network.name], epochs[control.name])
        for network, control in pairs()
        if network.name in epochs and control.name in epochs
    ]
    if not compared:
        return ""
    neither = [name for name, network, control in compared if network == control == math.inf]
    control_later = [name for name, network, control in compared if network < control]
    sooner = sum(control < network for _, network, control in compared)
    tied = len(compared) - len(neither) - len(control_later) - sooner
    words = [
        "The control of each network, a plain LSTM with a larger input, learned sooner in "
        f"{sooner} of {counted(len(compared), 'pair')}{f' and as soon in {tied}' if tied else ''}"
    ]
    if control_later:
        theirs = "its control" if len(control_later) == 1 else "theirs"
        words.append(f"{listed(control_later)} learned sooner than {theirs}")
    if neither:
        words.append(f"beside {listed(neither)} neither learned")
    plain = epochs.get("LSTM", math.nan)
    sentences = ["; ".join(words)]
    if slower := [name for name, network, _ in compared if network > plain]:
        sentences.append(f"{listed(slower)} learned later than the plain LSTM")
    if sooner + tied == len(compared) and all(control < plain for _, _, control in compared):
        sentences.append("So a larger input helps here, and momentum does not")
    return "".join(f"{sentence}. " for sentence in sentences).rstrip()


def notes() -> list[str]:
    """How the controls are made, and what the demo does not show."""
    return [
        "A control has no momentum. Its input is multiplied by a number, so that the input counts as much in "
        "the gates as in its network. Same gain: with a constant input both have the same average. Same rms: "
        "before training both have the same root mean square.",
        f"The optimizer of all is {entry(NETWORKS[0]).optimizer.title()}, with the learning rate "
        f"{SETTINGS['lr']:g} and batches of {SETTINGS['batch_size']}. Their mu, step and beta were "
        "not tuned, and are not those of the paper's adding task. On another task or with other values the "
        "order may differ.",
    ]


def validation(record: RunRecord) -> list[float]:
    """The validation loss after each epoch; nan where it was not finite."""
    values = [line.get("validation_loss") for line in record.epochs]
    return [math.nan if value is None else float(value) for value in values]


def learned(curve: Sequence[float]) -> float:
    """The first epoch after which a validation loss is below the bound; infinite if none is."""
    return next((epoch for epoch, value in enumerate(curve, 1) if value < BOUND), math.inf)


def between(values: Sequence[float]) -> str:
    """The least and the greatest value as text. An infinite one has not been reached.

    >>> between([150, 100, math.inf]), between([100, 100]), between([math.inf])
    ('100 to more', '100', 'not yet')
    """
    if min(values) == math.inf:
        return "not yet"
    ends = [f"{value:.0f}" if value < math.inf else "more" for value in (min(values), max(values))]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def _most_epochs(runs: Runs) -> int:
    """The epochs of the run that was trained furthest, at least 1."""
    records = (record for _, seeds in demo_runs(runs) for record in seeds.values())
    return max([1, *(len(record.epochs) for record in records)])


def _median_epochs(runs: Runs) -> dict[str, float]:
    """The epoch after which half of the seeds of a network have learned, by its name."""
    return {
        network.name: median(learned(validation(record)) for record in seeds.values())
        for network, seeds in demo_runs(runs)
        if seeds
    }


def _description(network: Network) -> str:
    if network.control_of:
        return f"control of {network.control_of}: {network.matched}"
    if network.momentum is None:
        return "no momentum"
    return repr(network.momentum).replace(", eps=1e-08, eps_in_sqrt=True", "")
