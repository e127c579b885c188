"""Tables of results: published numbers beside ours, with controls and verdicts. Knows no file format."""

from collections.abc import Iterator
from statistics import mean
from typing import Any

from ..experiments.paper.controls import CONTROLS
from ..experiments.paper.published import Published, released_loss
from ..experiments.paper.recipes import Recipe, recipe, variants
from ..experiments.paper.tables import Exhibit, Line
from ..experiments.runs.gather import Outcome, Runs
from .comparisons import compared_values, with_network, with_paper
from .controls import control_name, last_variant, matched
from .statistics import Interval, against_paper, verdict
from .table import Row, Table
from .wording import NOT_RUN, counted, deviation, published_numbers, signed, spread, unfinished

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
        *(f"ours, {measure}" for measure in ours),
        MINUS_PAPER,
        MINUS_CONTROL,
        "verdict",
    )
    rows = tuple(row for line in lines(exhibit) for row in _rows_of_line(line, exhibit, runs))
    unit = f"{exhibit.metric[0].upper()}{exhibit.metric[1:]}." if exhibit.metric else ""
    return Table(exhibit.name, columns, rows, " ".join(filter(None, (unit, _not_run(exhibit, runs)))))


def lines(exhibit: Exhibit) -> tuple[Line, ...]:
    """The published lines of a table. For a figure: one line for each curve whose measure is a loss."""
    if exhibit.kind != "curves":
        return exhibit.lines
    loss_lines = []
    for name in exhibit.recipes:
        row = recipe(name)
        _, model, task, size = name.split("/")
        if row.config.task.metric == "loss":
            loss_lines.append(Line(model, int(size), task, row.published, name))
    return tuple(loss_lines)


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
    released, outcome = released_loss(name), runs.outcome(recipe(name).config)
    lowest = outcome.lowest
    if released is None or not lowest:
        return None
    interval = against_paper(list(lowest.values()), released)
    default = name == line.recipe
    words = verdict(list(lowest.values()), released) + " (on other terms)" * default
    cells = (
        line.model,
        str(line.size),
        line.column,
        TRAINED["" if default else "as-released"],
        _released(released),
        "; ".join(filter(None, (spread(lowest, 4, count=True), unfinished(outcome)))),
        signed(interval, 4),
        words,
    )
    data = {"network": line.model, "units": line.size, "column": line.column, "recipe": name}
    data |= {"released": released.value, "released_sd": released.std, "n": len(lowest)}
    data |= {"mean": mean(lowest.values()), "sd": deviation(lowest), "failed": len(outcome.frozen)}
    data |= {f"seed_{seed}": value for seed, value in lowest.items()}
    data |= _difference("ours_minus_released", interval)
    return Row(cells, data | {"verdict": words})


def _released(loss: Published) -> str:
    if loss.std is None:
        return f"{loss.value:.4f} (1)"
    return f"{loss.value:.4f} ± {loss.std:.4f} ({loss.seeds})"


def _difference(name: str, interval: Interval | None) -> dict[str, float | None]:
    """A difference as data. {} if there is none."""
    if interval is None:
        return {}
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _rows_of_line(line: Line, exhibit: Exhibit, runs: Runs) -> Iterator[Row]:
    if not line.recipe:
        paper = published_numbers(line.published, 2)
        cells = (line.model, str(line.size), line.column, "", paper, NOT_RUN, NOT_RUN, "", "", NOT_RUN)
        yield Row(cells, _data(line) | {"verdict": f"{NOT_RUN}: {exhibit.later}"}, "absent")
        return
    network: Outcome | None = None
    # Two controls may be one run. Then they are one row.
    names_of_run: dict[str, list[str]] = {}
    for name in variants(line.recipe):
        names_of_run.setdefault(recipe(name).config.id, []).append(name)
    for names in names_of_run.values():
        row = recipe(names[0])
        outcome = runs.outcome(row.config)
        if last_variant(names[0]) not in CONTROLS:
            network = outcome
            if row.name == line.recipe or outcome:
                yield _network_row(line, row, outcome)
        elif outcome and network:
            # A control tells nothing without its network.
            yield _control_row(line, row, matched(names), outcome, network)


def _network_row(line: Line, row: Recipe, outcome: Outcome) -> Row:
    _, digits = compared_values(row, outcome)
    interval, words = with_paper(line, row, outcome)
    data = _data(line, row) | _measured(row, outcome) | _difference("ours_minus_paper", interval)
    data |= {"verdict": words, "missing": unfinished(outcome)}
    trained = TRAINED[last_variant(row.name)]
    cells = (line.model, *_cells(line, row, trained, outcome), signed(interval, digits), "", words)
    return Row(cells, data, "" if outcome else "absent")


def _control_row(line: Line, row: Recipe, shared: str, outcome: Outcome, network: Outcome) -> Row:
    """shared: what the control shares with its network."""
    _, digits = compared_values(row, outcome)
    interval, words = with_network(line, row, outcome, network)
    name = control_name(row)
    data = _data(line, row) | _measured(row, outcome)
    data |= {"network": name, "control_of": line.model, "control": shared}
    data |= _difference("network_minus_control", interval)
    data |= {"verdict": words, "missing": unfinished(outcome)}
    trained = TRAINED["as-released" if "as-released" in row.name.split("/") else ""]
    title = f"{name} (control of {line.model}: {shared})"
    cells = (title, *_cells(line, row, trained, outcome), "", signed(interval, digits), words)
    return Row(cells, data, "control")


def _cells(line: Line, row: Recipe, trained: str, outcome: Outcome) -> tuple[str, ...]:
    """From the units to the two columns of ours."""
    values, digits = compared_values(row, outcome)
    silent = last_variant(row.name) in CONTROLS and not row.published
    paper = "" if silent else published_numbers(row.published, digits)
    ours = "; ".join(filter(None, (spread(values, digits, count=True), unfinished(outcome))))
    by_validation = spread(outcome.valid, digits) or ("-" if outcome else NOT_RUN)
    return str(line.size), line.column, trained, paper, ours or NOT_RUN, by_validation


def _measured(row: Recipe, outcome: Outcome) -> dict[str, Any]:
    """Our numbers, for programs."""
    data: dict[str, Any] = {}
    values, _ = compared_values(row, outcome)
    if values:
        data |= {"n": len(values), "mean": mean(values.values()), "sd": deviation(values)}
        data |= {"epochs": outcome.epochs}
        data |= {f"seed_{seed}": value for seed, value in values.items()}
    if outcome.valid:
        data |= {"mean_by_validation": mean(outcome.valid.values())}
        data |= {"sd_by_validation": deviation(outcome.valid)}
    return data | ({"failed": len(outcome.frozen)} if outcome else {})


def _data(line: Line, row: Recipe | None = None) -> dict[str, Any]:
    """What the paper has, for programs. row: None where no recipe regenerates the line."""
    data: dict[str, Any] = {
        "network": line.model,
        "units": line.size,
        "column": line.column,
        "recipe": "" if row is None else row.name,
        "run": "" if row is None else row.config.id,
    }
    published = line.published if row is None or last_variant(row.name) not in CONTROLS else row.published
    for i, number in enumerate(published, 1):
        end = "" if i == 1 else f"_{i}"
        data |= {
            f"paper{end}": number.value,
            f"paper_sd{end}": number.std,
            f"paper_source{end}": number.source,
        }
    return data


def _not_run(exhibit: Exhibit, runs: Runs) -> str:
    """What may be run beside the rows of the table, and was not."""
    absent: dict[str, int] = {}
    for line in lines(exhibit):
        for name in variants(line.recipe)[1:] if line.recipe else ():
            if not runs.outcome(recipe(name).config):
                variant = last_variant(name)
                words = "as released" if variant == "as-released" else f"control {variant}"
                absent[words] = absent.get(words, 0) + 1
    counts = [f"{words} ({counted(count, 'row')})" for words, count in absent.items()]
    return f"Could be run with --also, and was not: {', '.join(counts)}." if counts else ""
