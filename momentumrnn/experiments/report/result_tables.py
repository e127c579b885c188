"""Tables of results: published numbers beside ours, with controls and verdicts. Knows no file format."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from ...cells import ExtrapolatedLSTM
from ..config import Config
from ..exhibits import Exhibit, Line
from ..paper import CONTROLS, Published, Recipe, recipe, released_loss, variants
from .gather import Outcome, Runs
from .numbers import Interval, against_paper, against_seeds, compared, verdict
from .tables import NOT_RUN, Row, Table, deviation, printed, rounded, signed, spread, unfinished

SHORT = "a curve, no verdict"
TRAINED = {"": "default", "as-released": "as released"}
MINUS_PAPER, MINUS_CONTROL = "ours - paper [95 %]", "network - control [95 %]"


def results(exhibit: Exhibit, runs: Runs) -> Table:
    """Published numbers beside ours, with the controls that were run."""
    ours = ("best on test (seeds)", "selected by validation")
    if exhibit.kind == "curves":
        ours = ("training loss at the end (seeds)", "test loss, selected by validation")
    elif exhibit.later:
        ours = ("selected by validation (seeds)", "best on test")
    columns = (
        "network",
        "units",
        "part" if exhibit.later else "task",
        "trained",
        "paper",
        *(f"ours, {each}" for each in ours),
        MINUS_PAPER,
        MINUS_CONTROL,
        "verdict",
    )
    rows = tuple(row for line in lines(exhibit) for row in _of_line(line, exhibit, runs))
    unit = f"{exhibit.metric[0].upper()}{exhibit.metric[1:]}." if exhibit.metric else ""
    return Table(exhibit.name, columns, rows, " ".join(filter(None, (unit, _not_run(exhibit, runs)))))


def lines(exhibit: Exhibit) -> tuple[Line, ...]:
    """The published lines of a table. For a figure: one line for each curve whose measure is a loss."""
    if exhibit.kind != "curves":
        return exhibit.lines
    found = []
    for name in exhibit.recipes:
        row = recipe(name)
        _, model, task, size = name.split("/")
        if row.config.task.metric == "loss":
            found.append(Line(model, int(size), task, row.published, name))
    return tuple(found)


def losses(exhibit: Exhibit, runs: Runs) -> Table:
    """Our lowest test loss beside that of the curves that the authors released, for finished runs."""
    columns = (
        "network",
        "units",
        "task",
        "trained",
        "released",
        "ours, lowest test loss (seeds)",
        "ours - released [95 %]",
        "verdict",
    )
    names = [(line, name) for line in exhibit.lines if line.recipe for name in variants(line.recipe)]
    rows = filter(None, (_loss_row(line, name, runs) for line, name in names))
    note = (
        "The lowest test loss of all epochs. Released: from the curves that the authors published, with the "
        "number of seeds. They also published curves of their own LSTM, but not its accuracy."
    )
    return Table(f"{exhibit.name}-losses", columns, tuple(rows), note)


def _loss_row(line: Line, name: str, runs: Runs) -> Row | None:
    released, found = released_loss(name), runs.outcome(recipe(name).config)
    own = found.lowest
    if released is None or not own:
        return None
    interval = against_paper(list(own.values()), released)
    default = name == line.recipe
    words = verdict(list(own.values()), released) + " (on other terms)" * default
    cells = (
        line.model,
        str(line.size),
        line.column,
        TRAINED["" if default else "as-released"],
        _released(released),
        "; ".join(filter(None, (spread(own, 4, count=True), unfinished(found)))),
        signed(interval, 4),
        words,
    )
    data = {"network": line.model, "units": line.size, "column": line.column, "recipe": name}
    data |= {"released": released.value, "released_sd": released.std, "n": len(own)}
    data |= {"mean": mean(own.values()), "sd": deviation(own), "failed": len(found.frozen)}
    data |= {f"seed_{seed}": value for seed, value in own.items()}
    data |= _difference("ours_minus_released", interval)
    return Row(cells, data | {"verdict": words})


def _released(loss: Published) -> str:
    if loss.std is None:
        return f"{loss.value:.4f} (1)"
    return f"{loss.value:.4f} ± {loss.std:.4f} ({loss.seeds})"


def _difference(name: str, interval: Interval) -> dict[str, float | None]:
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _of_line(line: Line, exhibit: Exhibit, runs: Runs) -> Iterator[Row]:
    if not line.recipe:
        paper = printed(line.published, 2)
        shown = (line.model, str(line.size), line.column, "", paper, NOT_RUN, NOT_RUN, "", "")
        data = _data(line) | {"verdict": f"{NOT_RUN}: {exhibit.later}"}
        yield Row((*shown, NOT_RUN), data, "absent")
        return
    network: Outcome | None = None
    # Two controls may be one run. Then they are one row.
    same: dict[str, list[str]] = {}
    for name in variants(line.recipe):
        same.setdefault(recipe(name).config.id, []).append(name)
    for names in same.values():
        row, key = recipe(names[0]), _variant(names[0])
        found = runs.outcome(row.config)
        if key not in CONTROLS:
            network = found
            if row.name == line.recipe or found:
                yield _network_row(line, row, found)
        elif found and network:
            # A control tells nothing without its network.
            yield _control_row(line, row, matched(names), found, network)


def _variant(name: str) -> str:
    """The last variant in the name of a recipe: "" for none, "as-released", or a control."""
    return "/".join(name.split("/")[4:]).rpartition("/")[2]


def matched(names: Sequence[str]) -> str:
    """What a control shares with its network, such as "same gain". names: its recipes; all are one run."""
    return ", ".join(_variant(name).replace("-", " ") for name in names)


def control_name(control: Recipe) -> str:
    """What a control is, such as "LSTM, input x 2.5" or "LSTM, forget bias 3.5".

    The forget bias is the sum of both biases, the input's after scaling. It is named where the control has
    others than its network.

    >>> control_name(recipe("table1/MomentumLSTM/PMNIST/256/same-input-gain"))
    'LSTM, input x 2.5, forget bias 2'
    """
    config, network = control.config, recipe(control.name.rpartition("/")[0]).config
    step = _input_factor(config)
    parts = ["DTRIV" if config.orthogonal else "LSTM"]
    parts += [f"input x {rounded(step, 4)}"] if step != 1 else []
    if config.init != network.init:
        bias: Any = config.init
        parts.append(f"forget bias {rounded((1 + step) * bias.forget_bias, 4)}")
    return ", ".join(parts)


def _input_factor(config: Config) -> float:
    """By what a network without momentum multiplies W x + b_ih."""
    if isinstance(config.cell, ExtrapolatedLSTM):
        return -config.cell.step_size
    momentum: Any = config.momentum
    return 1.0 if momentum is None else float(momentum.step)


def _network_row(line: Line, row: Recipe, found: Outcome) -> Row:
    _, digits = _main(row, found)
    interval, words = _against_paper(line, row, found)
    data = _data(line, row) | _measured(row, found)
    data |= {} if interval is None else _difference("ours_minus_paper", interval)
    data |= {"verdict": words, "missing": unfinished(found)}
    name, trained = line.model, TRAINED[_variant(row.name)]
    cells = (name, *_cells(line, row, trained, found), signed(interval, digits), "", words)
    return Row(cells, data, "" if found else "absent")


def _control_row(line: Line, row: Recipe, same: str, found: Outcome, network: Outcome) -> Row:
    _, digits = _main(row, found)
    interval, words = _against_network(line, row, found, network)
    name = control_name(row)
    data = _data(line, row) | _measured(row, found)
    data |= {"network": name, "control_of": line.model, "control": same}
    data |= {} if interval is None else _difference("network_minus_control", interval)
    data |= {"verdict": words, "missing": unfinished(found)}
    trained = TRAINED["as-released" if "as-released" in row.name.split("/") else ""]
    shown = f"{name} (control of {line.model}: {same})"
    cells = (shown, *_cells(line, row, trained, found), "", signed(interval, digits), words)
    return Row(cells, data, "control")


def _cells(line: Line, row: Recipe, trained: str, found: Outcome) -> tuple[str, ...]:
    """From the units to the two columns of ours."""
    own, digits = _main(row, found)
    paper = "" if _variant(row.name) in CONTROLS and not row.published else printed(row.published, digits)
    ours = "; ".join(filter(None, (spread(own, digits, count=True), unfinished(found))))
    valid = spread(found.valid, digits) or ("-" if found else NOT_RUN)
    return str(line.size), line.column, trained, paper, ours or NOT_RUN, valid


def _main(row: Recipe, found: Outcome) -> tuple[Mapping[int, float], int]:
    """The values by seed that are compared with the paper, and their digits."""
    accuracy = row.config.task.metric == "accuracy"
    return (found.best, 2) if accuracy else (found.trained, 5)


def _measured(row: Recipe, found: Outcome) -> dict[str, Any]:
    """Our numbers, for programs."""
    data: dict[str, Any] = {}
    own, _ = _main(row, found)
    if own:
        data |= {"n": len(own), "mean": mean(own.values()), "sd": deviation(own), "epochs": found.epochs}
        data |= {f"seed_{seed}": value for seed, value in own.items()}
    if found.valid:
        data |= {"mean_by_validation": mean(found.valid.values()), "sd_by_validation": deviation(found.valid)}
    return data | ({"failed": len(found.frozen)} if found else {})


def _no_value(found: Outcome) -> str:
    """The verdict where no seed has come to the end."""
    if found.frozen:
        return "failed"
    return SHORT if any(found.short.values()) else "begun" if found else NOT_RUN


def _of_some(found: Outcome) -> str:
    """A reminder that not all seeds are in the numbers."""
    return f"; of the {len(found.seeds)} seeds that finished" if found.short or found.frozen else ""


def _against_paper(line: Line, row: Recipe, found: Outcome) -> tuple[Interval | None, str]:
    """Ours minus the paper's number, and the verdict."""
    own, _ = _main(row, found)
    if not own:
        return None, _no_value(found)
    if not line.published:
        return None, "no published number"
    paper = line.published[0]
    if paper.quoted:
        return None, "quoted: no verdict"
    interval = against_paper(list(own.values()), paper)
    accuracy = row.config.task.metric == "accuracy"
    if line.model == "SRLSTM" and accuracy:
        return interval, "of another cell: no verdict"
    terms = " (on other terms)" if accuracy and row.name == line.recipe else ""
    return interval, verdict(list(own.values()), paper) + _of_some(found) + terms


def _against_network(
    line: Line, row: Recipe, found: Outcome, network: Outcome
) -> tuple[Interval | None, str]:
    """The network minus its control, and which is better."""
    own, _ = _main(row, found)
    if not own:
        return None, _no_value(found)
    theirs, ours = _chosen(network, found)
    if not theirs:
        return None, f"{line.model} is not at its end"
    interval = against_seeds(theirs, ours)
    task: Any = row.config.task
    if min(mean(theirs.values()), mean(ours.values())) > 0.95 * getattr(task, "baseline", math.inf):
        return interval, f"neither learns{_of_some(found)}"
    words = compared(interval, 1 if task.metric == "accuracy" else -1, line.model)
    return interval, words + _of_some(found)


def paired(first: Outcome, second: Outcome) -> Interval:
    """By how much the first is above the second, seed by seed."""
    return against_seeds(*_chosen(first, second))


def _chosen(first: Outcome, second: Outcome) -> tuple[Mapping[int, float], Mapping[int, float]]:
    """The values by which two runs are compared: test, selected by validation; without it, best on test."""
    pairs = ((first.valid, second.valid), (first.best, second.best))
    return next((pair for pair in pairs if all(pair)), ({}, {}))


def _data(line: Line, row: Recipe | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "network": line.model,
        "units": line.size,
        "column": line.column,
        "recipe": "" if row is None else row.name,
        "run": "" if row is None else row.config.id,
    }
    published = line.published if row is None or _variant(row.name) not in CONTROLS else row.published
    for i, p in enumerate(published, 1):
        end = "" if i == 1 else f"_{i}"
        found |= {f"paper{end}": p.value, f"paper_sd{end}": p.std, f"paper_source{end}": p.source}
    return found


def _not_run(exhibit: Exhibit, runs: Runs) -> str:
    """What may be run beside the rows of the table, and was not."""
    absent: dict[str, int] = {}
    for line in lines(exhibit):
        for name in variants(line.recipe)[1:] if line.recipe else ():
            if not runs.outcome(recipe(name).config):
                key = _variant(name)
                words = "as released" if key == "as-released" else f"control {key}"
                absent[words] = absent.get(words, 0) + 1
    counted = [f"{words} ({count} row{'s' * (count > 1)})" for words, count in absent.items()]
    return f"Could be run with --also, and was not: {', '.join(counted)}." if counted else ""
