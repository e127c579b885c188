"""Writes docs/results.md: its text is results_page.md.jinja, its numbers come from the runs in results.

    python benchmarks/results_page.py           # writes the page
    python benchmarks/results_page.py --check   # only says whether the page is what it should be

To add a row, add its name to one of the lists in the template, which includes the files beside it for costs
and for other tasks. The same runs give the same page.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from results_rows import (
    CLIPPED_UP_TO,
    FAILED_BELOW,
    RELEASED,
    Row,
    largest_norm,
    norms,
    read_row,
    still_from,
)

from momentumrnn.cells import ExtrapolatedLSTM
from momentumrnn.experiments.cost import MODELS
from momentumrnn.experiments.paper.hyperparameters import settings
from momentumrnn.experiments.paper.printed import GOAL, GRID_MU, GRID_STEP, GRIDS
from momentumrnn.experiments.paper.published import Published, released_loss
from momentumrnn.experiments.paper.recipes import RECIPES
from momentumrnn.experiments.paper.tables import exhibit
from momentumrnn.experiments.runs.gather import gather
from momentumrnn.report.statistics import (
    Interval,
    against_paper,
    against_seeds,
    between_published,
    detectable,
    geometric_ratio,
    proportion,
    same_proportion,
)

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/results.md"
TEMPLATE = "results_page.md.jinja"
WIDTH = 100
INTERVAL = r"\[[-+\d.e]+, [-+\d.e]+\]"


def spread(values: Mapping[int, float], digits: int = 2) -> str:
    """Mean ± sample standard deviation."""
    if len(values) < 2:
        return "".join(f"{value:.{digits}f}" for value in values.values()) or "-"
    return f"{mean(values.values()):.{digits}f} ± {stdev(values.values()):.{digits}f}"


def signed(interval: Interval, digits: int = 2) -> str:
    """A difference and its interval, with signs."""
    return _interval(interval, f"+.{digits}f")


def unsigned(interval: Interval, digits: int = 2) -> str:
    """The same for "lower by ...": turned round if it is negative."""
    if interval.low is None or interval.high is None:
        return f"{abs(interval.value):.{digits}f}"
    turned = Interval(-interval.value, -interval.high, -interval.low) if interval.value < 0 else interval
    return _interval(turned, f".{digits}f")


def times(interval: Interval) -> str:
    """A ratio and its interval, with two digits."""
    return _interval(interval, ".2g")


def percent(interval: Interval) -> str:
    low, high = (None if end is None else 100 * end for end in (interval.low, interval.high))
    return _interval(Interval(100 * interval.value, low, high), ".0f").replace(" [", " % [")


def _interval(interval: Interval, form: str) -> str:
    # No -0.00.
    value, *ends = (
        re.sub(r"^-(0\.?0*)$", r"+\1" if form[0] == "+" else r"\1", f"{number:{form}}")
        for number in (interval.value, interval.low, interval.high)
        if number is not None
    )
    return f"{value} [{', '.join(ends)}]" if ends else value


def gap(first: Mapping[int, float], second: Mapping[int, float], digits: int = 2) -> str:
    """By how much the first is above the second, seed by seed."""
    return signed(against_seeds(first, second), digits)


def mean_of_seeds(values: Mapping[int, float]) -> float:
    return mean(values.values())


def sd_of_gap(first: Mapping[int, float], second: Mapping[int, float]) -> float:
    """The standard deviation of the difference, seed by seed."""
    return stdev(value - second[number] for number, value in first.items())


def wins(first: Mapping[int, float], second: Mapping[int, float]) -> int:
    """In how many seeds the first is above the second."""
    return sum(value > second[number] for number, value in first.items())


def cell(row: Row, key: str) -> str:
    """All seeds and, where some failed, those that learn beside them."""
    values = getattr(row, key)
    if not values:
        return "-"
    learn = f"; {len(row.learning)} learn: {spread(row.of_learning(values))}" if row.failed else ""
    return spread(values) + learn


def gap_cell(row: Row, base: Row, key: str) -> str:
    """The same for the difference to another row."""
    values, others = getattr(row, key), getattr(base, key)
    if not values or not others:
        return "-"
    learn = f"; {len(row.learning)} learn: {gap(row.of_learning(values), others)}" if row.failed else ""
    return gap(values, others) + learn


def distance(row: Row, form: Callable[[Interval], str] = signed) -> str:
    """Ours minus the published number of the same cell, best on test."""
    if not row.recipe.published or row.recipe.published[0].quoted or "/SRLSTM/" in row.recipe.name:
        return "-"
    paper = row.recipe.published[0]
    of_all = form(against_paper(list(row.best.values()), paper))
    if not row.failed:
        return of_all
    learning = list(row.of_learning(row.best).values())
    return f"{of_all}; {len(learning)} learn: {form(against_paper(learning, paper))}"


def published(row: Row) -> str:
    """The published numbers of a row; q: quoted by the paper from other works."""
    return "; ".join(map(number_of_paper, row.recipe.published)) or "-"


def number_of_paper(number: Published) -> str:
    """A published number and its deviation; q: quoted."""
    deviation = "" if number.std is None else f" ± {number.std:g}"
    return f"{number.value:g}" + (" q" if number.quoted else deviation)


def published_gain(row: Row, plain: Row) -> str:
    """The published gain over each number that the paper quotes for LSTM."""
    if row.model == "SRLSTM" or not row.recipe.published:
        return "-"
    gains = sorted(row.recipe.published[0].value - number.value for number in plain.recipe.published)
    return " to ".join(f"{gain:+.2f}" for gain in gains)


def between(values: Sequence[float], form: str = "g") -> str:
    """The smallest and the largest: "3 to 6", or "3"."""
    ends = [f"{value:{form}}" for value in (min(values), max(values))]
    return " to ".join(dict.fromkeys(ends))


def goal_cells(row: Row) -> str:
    """Two cells of a table: after how many epochs, and seconds, the seeds were there."""
    lines = row.goal_lines()
    reached = [line for line in lines if line is not None]
    if not reached:
        return "never | -"
    never = f", {len(lines) - len(reached)} never" if len(reached) < len(lines) else ""
    epochs, seconds = (between([round(line[key]) for line in reached]) for key in ("epoch", "seconds"))
    return f"{epochs}{never} | {seconds}"


def loss_cells(row: Row) -> str:
    """The authors' lowest test losses, ours, and the difference: by seed where permutations are the same."""
    released = released_loss(row.recipe.name)
    if released is None or released.std is None:
        raise ValueError(f"{row.recipe.name}: expected released losses of several seeds, got {released}")
    theirs = f"{released.value:.4f} ± {released.std:.4f}"
    if "as-released" not in row.recipe.name:
        apart = signed(against_paper(list(row.lowest.values()), released), 4)
        return f"{theirs} | {spread(row.lowest, 4)} | {apart} | -"
    learn = f"; {len(row.learning)} learn: {gap(row.of_learning(row.lowest), RELEASED[row.model], 4)}"
    paired = gap(row.lowest, RELEASED[row.model], 4) + (learn if row.failed else "")
    return f"{theirs} | {spread(row.lowest, 4)} | - | {paired}"


def epoch_minutes(costs: Mapping[str, Any], kind: str, row: Row, images: int) -> float:
    """One epoch of one seed, by the time of a sample."""
    cost = costs[f"{kind}/{row.model}"]
    return float(images * cost["train_ms"] + 10_000 * cost["eval_ms"]) / 60e3


def printed_epochs(model: str) -> float:
    """The minutes of the paper's table 16, in epochs of the paper's table 14."""
    values = {
        (table, line.column): line.published[0].value
        for table in ("table14", "table16")
        for line in exhibit(table).lines
        if line.model == model
    }
    minutes = next(value for (table, _), value in values.items() if table == "table16")
    train, evaluate = values["table14", "training"], values["table14", "evaluation"]
    return minutes / ((60_000 * train + 10_000 * evaluate) / 60e3)


def cost_rows(costs: Mapping[str, Any]) -> list[str]:
    """The evaluation costs of tables 14 and 15 as cells of a table."""
    rows = []
    for model in MODELS:
        cells = [model]
        for unit, table in (("ms", "table14"), ("mb", "table15")):
            for kind in ("ours", "torch.nn", "listing"):
                cost = costs.get(f"{kind}/{model}")
                cells.append("-" if cost is None else f"{cost[f'eval_{unit}']:.3g}")
            lines = {(line.model, line.column): line for line in exhibit(table).lines}
            cells.append(f"{lines[model, 'evaluation'].published[0].value:g}")
        rows.append(" | ".join(cells))
    return rows


def context(results: Path) -> dict[str, Any]:
    """What the template may use."""
    runs, alone = gather([results / "runs"]), gather([results / "alone"])
    costs = json.loads((results / "runs/cost-nvidia-h200.json").read_text())["rows"]
    functions = (
        against_seeds,
        between,
        between_published,
        cell,
        cost_rows,
        detectable,
        distance,
        epoch_minutes,
        gap,
        gap_cell,
        geometric_ratio,
        goal_cells,
        loss_cells,
        mean,
        norms,
        percent,
        printed_epochs,
        proportion,
        published,
        published_gain,
        released_loss,
        sd_of_gap,
        same_proportion,
        signed,
        spread,
        times,
        unsigned,
        wins,
    )
    timit = GRIDS["TIMIT, n = 158: mean squared error"]
    text = next(row for row in settings("table7")["MomentumLSTM"] if row["dataset"] == "PTB")
    mnist = {row.config.id for name, row in RECIPES.items() if "LSTM" in name and "/MNIST/" in name}
    return {function.__name__: function for function in functions} | {
        "row": lambda name, **changes: read_row(runs, name, **changes),
        "alone": lambda row, **changes: alone.of(replace(row.config, **changes))[0],
        "costs": costs,
        "timit": lambda mu, step: timit[GRID_MU.index(mu)][GRID_STEP.index(step)],
        "timit_best": min(min(line) for line in timit),
        "text_momentum": text,
        "mnist_rows_of_paper": len(mnist),
        "released": RELEASED,
        "failed_below": FAILED_BELOW,
        "clipped_up_to": CLIPPED_UP_TO,
        "extrapolated": ExtrapolatedLSTM,
        "goal": GOAL,
        "table16": {line.model: line.published[0].value for line in exhibit("table16").lines},
    }


def render(results: Path, folder: Path | None = None) -> str:
    """The page."""
    environment = Environment(
        loader=FileSystemLoader(folder or Path(__file__).resolve().parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    names = context(results)
    environment.filters |= {"row": names["row"], "largest_norm": largest_norm, "still_from": still_from}
    environment.filters |= {"number_of_paper": number_of_paper, "mean_of_seeds": mean_of_seeds}
    template = environment.get_template(TEMPLATE)
    # The page says how many intervals it has.
    intervals = len(re.findall(INTERVAL, template.render(names, intervals=0)))
    return wrapped(template.render(names, intervals=intervals))


def wrapped(text: str, width: int = WIDTH) -> str:
    """Breaks the lines of paragraphs and list items. Tables, headings, code and comments stay as they are."""
    blocks = []
    for block in re.split(r"\n{2,}", text.strip()):
        if re.match(r"\||#|!\[|<!--| {4}", block):
            blocks.append(block)
            continue
        items = re.split(r"\n(?=- )", block)
        blocks.append("\n".join(_wrapped(item, width) for item in items))
    return "\n\n".join(blocks) + "\n"


def _wrapped(text: str, width: int) -> str:
    joined = " ".join(text.split())
    # Numbers stay together with their intervals, deviations and units.
    bound = re.sub(INTERVAL, lambda match: match[0].replace(" ", "\0"), joined)
    bound = re.sub(r" (?=(?:± |= |%|\[[-+\d]))", "\0", bound)
    bound = re.sub(r"(?<=±|=) ", "\0", bound)
    indent, lines = "  " if text.startswith("- ") else "", [""]
    for word in bound.split(" "):
        # A line that begins like a list item would become one.
        fits = len(lines[-1]) + 1 + len(word) <= width
        if lines[-1] and (fits or re.fullmatch(r"[-+*#]|\d+[.)]", word)):
            lines[-1] += f" {word}"
        else:
            lines[-1:] = [word] if lines == [""] else [lines[-1], indent + word]
    return "\n".join(lines).replace("\0", " ")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is another")
    text = render(ROOT / "results")
    if not parser.parse_args().check:
        PAGE.write_text(text, encoding="utf-8")
        print(f"wrote {PAGE}")
    elif PAGE.read_text(encoding="utf-8") != text:
        sys.exit(f"{PAGE} is not what its template and the runs give: run benchmarks/results_page.py")


if __name__ == "__main__":
    main()
