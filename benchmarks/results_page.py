"""Writes docs/results.md: its text is results_page.md.jinja, its numbers come from the runs in results.

    python benchmarks/results_page.py           # writes the page
    python benchmarks/results_page.py --check   # only says whether the page is what it should be

To add a row, add its name to one of the lists in the template. The same runs give the same page.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from momentumrnn import ScheduledRestart
from momentumrnn.cells import ExtrapolatedLSTM
from momentumrnn.experiments.config import Config
from momentumrnn.experiments.cost import MODELS
from momentumrnn.experiments.exhibits import GOAL, GRID_MU, GRID_STEP, GRIDS, exhibit, settings
from momentumrnn.experiments.paper import RECIPES, Published, Recipe, recipe, released_loss
from momentumrnn.experiments.report.gather import Runs, Seed, gather, outcome
from momentumrnn.experiments.report.numbers import (
    Interval,
    against_paper,
    against_seeds,
    between_published,
    detectable,
    geometric_ratio,
    proportion,
    same_proportion,
)
from momentumrnn.init import Paper

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/results.md"
TEMPLATE = "results_page.md.jinja"
WIDTH = 100
INTERVAL = r"\[[-+\d.e]+, [-+\d.e]+\]"
SEEDS = (0, 1, 2, 3, 4)
FAILED_BELOW = 50.0
"""A seed failed if its best test accuracy is below this, or if a value that is not finite stopped it."""
CLIPPED_UP_TO = math.sqrt(torch.finfo(torch.float32).max)
"""The largest gradient norm whose square float32 holds. Beyond it `clip_grad_norm_` makes the gradient 0."""
RELEASED = {
    "LSTM": {0: 0.260227919, 1: 0.259004951, 2: 0.289235085, 4: 0.292288572},
    "MomentumLSTM": {0: 0.214894891, 1: 0.241787538, 2: 0.229982361, 3: 0.243286446, 4: 0.250039130},
    "SRLSTM-released": {0: 0.220632046, 1: 0.246607050, 2: 0.312401593, 3: 0.239886567, 4: 0.408213168},
}
"""The lowest test loss of each seed on permuted MNIST with n = 256, from the authors' released curves.

Source: the repository minhtannguyen/MomentumRNN at commit 56e57e5, folder result4plot_final, the files
run-{lstm,mlstm,nlstm}-pmnist-*-seed-*_test_loss_*.json. Seed 3 of LSTM is not there.
"""


@dataclass(frozen=True)
class Row:
    """The five seeds of a recipe. Every seed counts: one that stopped counts with the epochs that it has.

    best, valid: test accuracies in %, or test losses, of the best epoch and of the epoch that validation
    selects; lowest: the lowest test loss; trained: the training loss in the last epoch.
    """

    recipe: Recipe
    config: Config
    seeds: Mapping[int, Seed]
    best: Mapping[int, float]
    valid: Mapping[int, float]
    lowest: Mapping[int, float]
    trained: Mapping[int, float]

    @property
    def model(self) -> str:
        return self.recipe.name.split("/")[1]

    @property
    def task(self) -> str:
        return self.recipe.name.split("/")[2]

    @property
    def seconds(self) -> float:
        """Of the five seeds together."""
        return float(max(seed.epochs[-1]["seconds"] for seed in self.seeds.values()))

    @property
    def minutes(self) -> float:
        return self.seconds / 60

    @cached_property
    def failed(self) -> tuple[int, ...]:
        stopped = {number for number, seed in self.seeds.items() if seed.state == "frozen"}
        if self.config.task.metric == "accuracy":
            stopped |= {number for number, value in self.best.items() if value < FAILED_BELOW}
        return tuple(sorted(stopped))

    @property
    def failures(self) -> int:
        return len(self.failed)

    @property
    def learning(self) -> tuple[int, ...]:
        return tuple(number for number in SEEDS if number not in self.failed)

    @property
    def failed_seeds(self) -> list[Seed]:
        return [self.seeds[number] for number in self.failed]

    @property
    def learning_seeds(self) -> list[Seed]:
        return [self.seeds[number] for number in self.learning]

    def of_learning(self, values: Mapping[int, float]) -> dict[int, float]:
        return {number: values[number] for number in self.learning}

    def at(self, key: str, epochs: tuple[int, int], scale: float = 1.0) -> dict[int, float]:
        """The mean of a metric over some epochs, the last included, for each seed."""
        part = slice(epochs[0] - 1, epochs[1])
        lines = {number: seed.epochs[part] for number, seed in self.seeds.items()}
        return {number: scale * mean(line[key] for line in found) for number, found in lines.items()}

    def goal_lines(self) -> list[Mapping[str, Any] | None]:
        """For each seed the first epoch with the accuracy to which the paper counts its times."""
        lines = (seed.epochs[: self.config.epochs] for seed in self.seeds.values())
        return [next((x for x in each if x["test_accuracy"] >= GOAL), None) for each in lines]

    @property
    def goal_epochs(self) -> list[int]:
        return [line["epoch"] for line in self.goal_lines() if line is not None]

    def at_the_end_below(self, bound: float) -> list[float]:
        """The test accuracies in the last epoch that are below this."""
        last = (100 * seed.epochs[-1]["test_accuracy"] for seed in self.seeds.values())
        return [value for value in last if value < bound]

    @property
    def forget_bias(self) -> float:
        """The initial one, of both sides together."""
        if not isinstance(self.config.init, Paper):
            raise ValueError(f"{self.recipe.name}: expected init.Paper, got {self.config.init}")
        return 2 * self.config.init.forget_bias

    @property
    def gains(self) -> list[float]:
        """By what a constant input is multiplied in each step between two restarts."""
        momentum = self.config.momentum
        if not isinstance(momentum, ScheduledRestart):
            raise ValueError(f"{self.recipe.name}: expected ScheduledRestart, got {momentum}")
        drive, found = 0.0, []
        for k in range(momentum.every):
            drive = k / (k + 3) * drive + float(momentum.step)
            found.append(drive)
        return found


def read_row(runs: Runs, name: str, **changes: Any) -> Row:
    """The row of a recipe, or of the same recipe with some fields of its Config changed."""
    known = recipe(name)
    config = replace(known.config, **changes)
    seeds = dict(sorted(runs.of(config).items()))
    if tuple(seeds) != SEEDS:
        raise ValueError(f"{name}: expected the seeds {SEEDS} in results/runs, got {tuple(seeds)}")
    short = [n for n, s in seeds.items() if s.state != "frozen" and len(s.epochs) < config.epochs]
    if short:
        raise ValueError(f"{name}: expected {config.epochs} epochs, but the seeds {short} have fewer")
    parts = [outcome({n: s}, min(config.epochs, len(s.epochs))) for n, s in seeds.items()]
    values = [
        {number: value for part in parts for number, value in getattr(part, key).items()}
        for key in ("best", "valid", "lowest", "trained")
    ]
    return Row(known, config, seeds, *values)


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
    found = form(against_paper(list(row.best.values()), paper))
    if not row.failed:
        return found
    learning = list(row.of_learning(row.best).values())
    return f"{found}; {len(learning)} learn: {form(against_paper(learning, paper))}"


def published(row: Row) -> str:
    """The published numbers of a row; q: quoted by the paper from other works."""
    return "; ".join(map(number_of_paper, row.recipe.published)) or "-"


def number_of_paper(p: Published) -> str:
    return f"{p.value:g}" + (" q" if p.quoted else "" if p.std is None else f" ± {p.std:g}")


def published_gain(row: Row, plain: Row) -> str:
    """The published gain over each number that the paper quotes for LSTM."""
    if row.model == "SRLSTM" or not row.recipe.published:
        return "-"
    return gains_text([row.recipe.published[0].value - p.value for p in plain.recipe.published])


def gains_text(values: Sequence[float]) -> str:
    return " to ".join(f"{value:+.2f}" for value in sorted(values))


def between(values: Sequence[float], form: str = "g") -> str:
    """The smallest and the largest: "3 to 6", or "3"."""
    ends = [f"{value:{form}}" for value in (min(values), max(values))]
    return " to ".join(dict.fromkeys(ends))


def goal_cells(row: Row) -> str:
    """Two cells of a table: after how many epochs, and seconds, the seeds were there."""
    lines = row.goal_lines()
    there = [line for line in lines if line is not None]
    if not there:
        return "never | -"
    never = f", {len(lines) - len(there)} never" if len(there) < len(lines) else ""
    epochs, seconds = (between([round(line[key]) for line in there]) for key in ("epoch", "seconds"))
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


def norms(seed: Seed, epochs: int = 4) -> list[str]:
    """The mean gradient norm in each of the first epochs."""
    steps, begun = seed.epochs[0]["step"], 0
    found = [0.0] * epochs
    for line in seed.steps:
        if line["step"] <= epochs * steps:
            found[(line["step"] - 1) // steps] += line["norm"] * (line["step"] - begun) / steps
        begun = line["step"]
    return [f"{norm:.2g}" if norm < 1e3 else re.sub(r"e\+0*", "e", f"{norm:.0e}") for norm in found]


def largest_norm(seed: Seed) -> float:
    return float(max(line["norm"] for line in seed.steps))


def still_from(seed: Seed) -> int:
    """The first epoch after which the test loss stays what it is."""
    losses = [line["test_loss"] for line in seed.epochs]
    return next(i + 1 for i in range(len(losses)) if len(set(losses[i:])) == 1)


def epoch_minutes(costs: Mapping[str, Any], kind: str, row: Row, images: int) -> float:
    """One epoch of one seed, by the time of a sample."""
    found = costs[f"{kind}/{row.model}"]
    return float(images * found["train_ms"] + 10_000 * found["eval_ms"]) / 60e3


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
    found = []
    for model in MODELS:
        cells = [model]
        for unit, table in (("ms", "table14"), ("mb", "table15")):
            for kind in ("ours", "torch.nn", "listing"):
                known = costs.get(f"{kind}/{model}")
                cells.append("-" if known is None else f"{known[f'eval_{unit}']:.3g}")
            lines = {(line.model, line.column): line for line in exhibit(table).lines}
            cells.append(f"{lines[model, 'evaluation'].published[0].value:g}")
        found.append(" | ".join(cells))
    return found


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
    text = next(x for x in settings("table7")["MomentumLSTM"] if x["dataset"] == "PTB")
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
    known = context(results)
    environment.filters |= {"row": known["row"], "largest_norm": largest_norm, "still_from": still_from}
    environment.filters |= {"number_of_paper": number_of_paper, "mean_of_seeds": mean_of_seeds}
    template = environment.get_template(TEMPLATE)
    # The page says how many intervals it has.
    intervals = len(re.findall(INTERVAL, template.render(known, intervals=0)))
    return wrapped(template.render(known, intervals=intervals))


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
    kept = re.sub(INTERVAL, lambda found: found[0].replace(" ", "\0"), joined)
    kept = re.sub(r" (?=(?:± |= |%|\[[-+\d]))", "\0", kept)
    kept = re.sub(r"(?<=±|=) ", "\0", kept)
    indent, lines = "  " if text.startswith("- ") else "", [""]
    for word in kept.split(" "):
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
