"""The demo's table, and what it shows in words. Knows no file format."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from ..demo import BOUND, NETWORKS, SETTINGS, TASK, Network, entry, half_way, pairs, steps
from .gather import Runs, Seed, outcome
from .tables import NOT_RUN, Row, Table, spread, unfinished


def demo(runs: Runs) -> Table:
    """All networks of the demo. Those without runs say so."""
    most = _most_epochs(runs)
    half, n = half_way(most), steps()
    columns = (
        "network",
        "what it is",
        f"steps to a loss below {BOUND:.4f}",
        f"validation loss after {half * n} steps",
        f"validation loss after {most * n} steps (seeds)",
    )
    rows = []
    for network, seeds in demo_runs(runs):
        curves = {number: validation(seed) for number, seed in seeds.items()}
        ends = [{k: c[e - 1] for k, c in curves.items() if len(c) >= e} for e in (half, most)]
        learned_at = [n * epoch for epoch in map(learned, curves.values())]
        left = unfinished(outcome(seeds, most))
        cells = (
            network.name,
            _description(network),
            between(learned_at) if learned_at else NOT_RUN,
            spread(ends[0], 4) or NOT_RUN,
            "; ".join(filter(None, (spread(ends[1], 4, count=True), left))) or NOT_RUN,
        )
        data: dict[str, Any] = {"network": network.name, "run": entry(network).id}
        data |= {"momentum": repr(network.momentum), "control_of": network.control_of}
        data |= {f"seed_{k}": v for k, v in ends[1].items()}
        data |= {"median_steps": median(learned_at)} if learned_at and median(learned_at) < math.inf else {}
        kind = "control" if network.control_of else ""
        rows.append(Row(cells, data, kind if seeds else "absent"))
    note = (
        f"A network that always answers 1 has a loss of {TASK.baseline:.4f}. A network has learned when its "
        f"validation loss is below half of that, {BOUND:.4f}. The loss is measured every {steps()} steps. "
        "The table has means and standard deviations over the seeds, the plot medians and ranges."
    )
    return Table("demo", columns, tuple(rows), note)


def demo_runs(runs: Runs) -> list[tuple[Network, Mapping[int, Seed]]]:
    """The networks of the demo, and the seeds of each that were run."""
    return [(network, runs.of(entry(network))) for network in NETWORKS]


def trained(runs: Runs) -> str:
    """What was trained, in one sentence."""
    there = [seeds for _, seeds in demo_runs(runs) if seeds]
    numbers = {number for seeds in there for number in seeds}
    return (
        f"{_count(len(there), 'small network')} {'was' if len(there) == 1 else 'were'} trained to add two "
        f"marked numbers among {TASK.length}: "
        f"{SETTINGS['hidden_size']} units, {_count(len(numbers), 'seed')} each, "
        f"{_most_epochs(runs) * steps()} training steps."
    )


def lesson(runs: Runs) -> str:
    """What the networks with momentum have over their controls. "" if no pair was trained.

    A network learns after so many epochs as the median of its seeds.
    """
    when = _medians(runs)
    both = [(a.name, when[a.name], when[b.name]) for a, b in pairs() if a.name in when and b.name in when]
    if not both:
        return ""
    neither = [name for name, own, control in both if own == control == math.inf]
    late = [name for name, own, control in both if own < control]
    sooner = sum(control < own for _, own, control in both)
    tied = len(both) - len(neither) - len(late) - sooner
    words = [
        "The control of each network, a plain LSTM with a larger input, learned sooner in "
        f"{sooner} of {_count(len(both), 'pair')}{f' and as soon in {tied}' if tied else ''}"
    ]
    if late:
        words.append(f"{_join(late)} learned sooner than {'its control' if len(late) == 1 else 'theirs'}")
    if neither:
        words.append(f"beside {_join(neither)} neither learned")
    plain = when.get("LSTM", math.nan)
    sentences = ["; ".join(words)]
    if slower := [name for name, own, _ in both if own > plain]:
        sentences.append(f"{_join(slower)} learned later than the plain LSTM")
    if sooner + tied == len(both) and all(control < plain for _, _, control in both):
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


def validation(seed: Seed) -> list[float]:
    """The validation loss after each epoch; nan where it was not finite."""
    values = [line.get("validation_loss") for line in seed.epochs]
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
    ends = [f"{v:.0f}" if v < math.inf else "more" for v in (min(values), max(values))]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def _most_epochs(runs: Runs) -> int:
    return max([1, *(len(seed.epochs) for _, seeds in demo_runs(runs) for seed in seeds.values())])


def _medians(runs: Runs) -> dict[str, float]:
    """The epoch after which half of the seeds of a network have learned, by its name."""
    return {
        network.name: median(learned(validation(seed)) for seed in seeds.values())
        for network, seeds in demo_runs(runs)
        if seeds
    }


def _description(network: Network) -> str:
    if network.control_of:
        return f"control of {network.control_of}: {network.matched}"
    if network.momentum is None:
        return "no momentum"
    return repr(network.momentum).replace(", eps=1e-08, eps_in_sqrt=True", "")


def _join(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _count(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"
