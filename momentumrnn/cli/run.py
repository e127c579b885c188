"""The command `momentumrnn run`: from options to a Config, and what its results look like."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean, stdev
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..experiments import Config, configure
from ..experiments.config import read
from ..experiments.data import DataError, folder
from ..experiments.engine.signals import Interrupted
from ..experiments.engine.train import train
from ..experiments.paper.recipes import Recipe, recipe
from ..experiments.runs.store import RunError
from ..experiments.settings import change, differences, variant_name, with_floats, without_idle_settings
from .display import describe, display, early_end
from .options import (
    check_task,
    check_threads,
    command_line,
    given_texts,
    read_seeds,
    recorded_command,
    refuse,
    seed_ranges,
)
from .torch_options import own_classes, read_device

# Options that are no fields of a Config.
_OTHER_OPTIONS = {"task", "recipe", "settings", "imports", "seeds", "root", "data", "device", "threads"}
_OTHER_OPTIONS |= {"changed_source", "tensorboard"}


@dataclass(frozen=True)
class Request:
    """What the options ask for. recipe: the row of the paper that they begin with; None with --task."""

    config: Config
    recipe: Recipe | None

    @cached_property
    def name(self) -> str:
        """What the run is called: a recipe, perhaps with other settings; "" without a recipe."""
        if self.recipe is None:
            return ""
        return variant_name(self.recipe.name, self.config, self.recipe.config)

    @property
    def same_run_differences(self) -> list[str]:
        """The settings that differ from the recipe, make no other run, and so are not in the name."""
        if self.recipe is None:
            return []
        base = self.recipe.config
        named = differences(without_idle_settings(self.config, base), base)
        return [setting for setting in differences(self.config, base) if setting not in named]


def run(options: Any, args: Sequence[str]) -> int:
    """Carry out the command; returns its exit code."""
    try:
        request = read_request(options)
        seeds = read_seeds(options.seeds)
        check_threads(options.threads)
        read_device(options.device)
    except ValueError as error:
        return refuse(f"run: {error}")
    console = Console(width=None if sys.stdout.isatty() else 180)
    try:
        with display(console, request.name, _places(options)) as watcher:
            results = train(
                request.config,
                seeds,
                root=options.root,
                data=options.data,
                device=options.device,
                threads=options.threads,
                tensorboard=options.tensorboard,
                watcher=watcher,
                command=recorded_command(args),
                name=request.name,
                changed_source=options.changed_source,
            )
    except Interrupted as stopped:
        console.print(f"Stopped; all is saved. To go on: {escape(command_line(args))}", soft_wrap=True)
        return 128 + stopped.number
    except (RunError, DataError) as error:
        return refuse(f"run: {error}", 1)
    if not watcher.trained:
        console.print("All done already; nothing was trained.")
    print_results(console, request, results)
    for result in results:
        path = options.root / f"{request.config.id}-s{result['seed']}"
        console.print(escape(str(path)), highlight=False, soft_wrap=True)
    frozen = [result["seed"] for result in results if result["frozen"]]
    if frozen:
        return refuse(f"run: not finite, and so not trained to the end: seeds {seed_ranges(frozen)}", 1)
    return 0


def read_request(options: Any) -> Request:
    """The Config that the options ask for, and the recipe that they begin with."""
    check_task(options.task, options.recipe)
    own = own_classes(options.imports)
    given = {
        name: _read(name, value, own)
        for name, value in vars(options).items()
        if name not in _OTHER_OPTIONS and value not in ("", None)
    }
    if "bias" in given:
        given["bias"] = {"True": True, "False": False, "hh": "hh"}[given["bias"]]
    base = recipe(options.recipe) if options.recipe else None
    if base is None:
        config = configure(_read("task", options.task, own), **given)
    else:
        config = replace(base.config, **given)
    return Request(change(config, given_texts(options.settings), own), base)


def _read(name: str, value: Any, own: Sequence[type]) -> Any:
    """The value of a field, from that of its option. Its numbers are as `--set` has them."""
    try:
        return with_floats(read(name, value, own))
    except ValueError as error:
        unknown = str(error).startswith(f"{name}: expected one of ") and not str(error).endswith("?")
        hint = "; a class of your own is made known by --import" if unknown and not own else ""
        raise ValueError(f"--{error}{hint}") from None


def _places(options: Any) -> dict[str, str]:
    """Where the run folders and the data sets are, for the list of settings."""
    try:
        data = str(folder(options.data))
    except DataError:  # a task that needs none can be trained
        data = "none"
    return {"root": str(options.root), "data": data}


def print_results(console: Console, request: Request, results: Sequence[Mapping[str, Any]]) -> None:
    """A table with a line for each seed, their mean, and what the paper has."""
    config, base = request.config, request.recipe
    console.print()
    if request.name:
        console.print(escape(request.name), highlight=False, soft_wrap=True)
    console.print(f"{escape(describe(config))}, epochs: {config.epochs}", highlight=False)
    console.print(_results_table(config, results))
    baseline = getattr(config.task, "baseline", None)
    if baseline is not None:
        console.print(f"without memory: loss {baseline:.5f}", highlight=False)
    if base is not None:
        numbers = base.published_text.removeprefix("published ")
        console.print(f"published for {base.name}: {numbers}", highlight=False, soft_wrap=True)
        if "training loss" in base.metric:
            last = [result["selected"]["last"] for result in results]
            ours = " ".join(f"{line['train_loss']:.5f}" if line else "-" for line in last)
            console.print(f"ours, the mean of the last epoch: {ours}", highlight=False, soft_wrap=True)
    if different := ", ".join(request.same_run_differences):
        console.print(f"not as in the recipe: {different}", highlight=False, soft_wrap=True)


def _results_table(config: Config, results: Sequence[Mapping[str, Any]]) -> Table:
    metric = config.task.metric
    scale, form = (100, ".2f") if metric == "accuracy" else (1, ".5f")
    unit = "accuracy, %" if metric == "accuracy" else "loss"
    table = Table("seed", box=box.SIMPLE_HEAD)
    columns = [
        ("by_validation", "epoch", "epoch"),
        ("by_validation", f"validation_{metric}", f"validation\n{unit}"),
        ("by_validation", f"test_{metric}", f"test\n{unit}"),
        ("by_test", "epoch", "best on\ntest: epoch"),
        ("by_test", f"test_{metric}", f"test\n{unit}"),
    ]
    for _, _, title in columns:
        table.add_column(title, justify="right")
    table.add_column("samples/s\nof a seed", justify="right")
    rows_of_mean: list[list[float | None]] = []
    for result in results:
        values = [(result["selected"][rule] or {}).get(key) for rule, key, _ in columns]
        # A mean is of seeds that were trained alike.
        alike = _trained_to_end(result, config.epochs)
        if alike:
            rows_of_mean.append(values)
        cells = [
            "-" if v is None else str(v) if isinstance(v, int) else format(scale * v, form) for v in values
        ]
        early = early_end(result["frozen"], result.get("stopped"))
        remark = early or ("" if alike else f" ({result['epochs']} epochs)")
        speed = f"{result['samples_per_second'] or 0:.0f}"
        table.add_row(escape(f"{result['seed']}{remark}"), *cells, speed)
    if len(rows_of_mean) > 1:
        table.add_section()
        cells = []
        for (_, key, _), column in zip(columns, zip(*rows_of_mean, strict=True), strict=True):
            known = [scale * value for value in column if value is not None]
            if key == "epoch" or len(known) < 2:
                cells.append("")
            else:
                cells.append(f"{mean(known):{form}} ± {stdev(known):{form}}")
        count = "" if len(rows_of_mean) == len(results) else f" of {len(rows_of_mean)}"
        table.add_row(f"mean ± sd{count}", *cells, "")
    return table


def _trained_to_end(result: Mapping[str, Any], epochs: int) -> bool:
    """Whether a seed has so many epochs, or as many as its patience let it have."""
    if result["frozen"]:
        return False
    stopped = result.get("stopped")
    if stopped:
        return bool(stopped["by"] == "patience" and result["epochs"] <= epochs)
    return bool(result["epochs"] == epochs)
