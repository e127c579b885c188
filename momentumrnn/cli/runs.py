"""The command `momentumrnn runs`: what is in the run folders."""

import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..experiments import Config
from ..experiments.config import in_words
from ..experiments.folders import RunError, read_json, running
from .words import refuse, several, spelt


def run(options: Any, args: Sequence[str]) -> int:
    """Carry out the command; returns its exit code."""
    if not options.root.is_dir():
        return refuse(
            f"runs: --root: expected a folder of runs, but there is no folder {str(options.root)!r}", 1
        )
    console = Console(width=None if sys.stdout.isatty() else 150)
    groups: dict[str, list[dict[str, Any]]] = {}
    broken = []
    own = options.root.resolve() / "config.json"  # --root is itself the folder of a run
    for path in [own] if own.is_file() else sorted(options.root.glob("*/config.json")):
        try:
            found = _read(path.parent)
        except (RunError, KeyError, TypeError) as error:
            broken.append(str(error) if isinstance(error, RunError) else f"{path}: {error!r}")
            continue
        groups.setdefault(path.parent.name.rpartition("-s")[0], []).append(found)
    table = Table(box=box.SIMPLE_HEAD)
    titles = ["run", "seeds", "state", "test, selected\nby validation", "best on\nthe test set"]
    # Where there is little room, what matters least is left out.
    wide = console.width >= 110
    for title in [*titles, *["device"] * wide]:
        table.add_column(title, overflow="fold", justify="left" if title in titles[:3] else "right")
    for name, group in groups.items():
        config = group[0]["config"]
        words = f"{config['task']}\n{in_words(config)}"
        # A mean is of seeds that were trained alike, those that were trained longest.
        most = max(each["epochs"] for each in group)
        whole = [each for each in group if each["epochs"] == most and not each["frozen"]]
        table.add_row(
            f"{name}\n{escape(words)}",
            several([each["seed"] for each in group]),
            "\n".join(sorted({each["state"] for each in group})),
            *(_spread(whole, rule) for rule in ("by_validation", "by_test")),
            *["\n".join(sorted({each["device"] for each in group}))] * wide,
        )
    if groups:
        console.print(table)
    else:
        deeper = sorted({path.parent.parent for path in options.root.glob("*/*/config.json")})
        hint = "".join(
            f"\nThere are some in {each}: {spelt(['runs', '--root', str(each)])}" for each in deeper
        )
        console.print(f"No runs in {options.root}.{hint}", highlight=False, soft_wrap=True)
    for line in broken:
        console.print(f"damaged: {escape(line)}", highlight=False, soft_wrap=True)
    return 1 if broken else 0


def _read(folder: Path) -> dict[str, Any]:
    """What a folder says of its run."""
    given, result = read_json(folder / "config.json"), read_json(folder / "result.json")
    config = given["config"]
    try:
        name = f"{Config.from_json(config).id}-s{given['seed']}"
    except ValueError:  # described by classes of the user's
        name = folder.name
    if name != folder.name:
        raise RunError(f"{folder / 'config.json'} is that of {name}")
    found = {"config": config, "seed": given["seed"], "by_validation": None, "by_test": None, "device": "-"}
    found |= {"epochs": 0, "frozen": False, "metric": ""}
    if result is None or running(folder):
        state = f"{'running' if running(folder) else 'stopped'}{_progress(folder, config['epochs'])}"
    elif result["frozen"]:
        state = f"frozen at step {result['frozen']['step']}"
    elif result["epochs"] < config["epochs"]:
        state = f"stopped after epoch {result['epochs']} of {config['epochs']}"
    else:
        state = f"done, epochs: {result['epochs']}"
    if result is not None:
        for rule in ("by_validation", "by_test"):
            line = result["selected"][rule]
            found[rule] = line and line[f"test_{result['metric']}"]
        found |= {key: result[key] for key in ("device", "epochs", "metric")}
        found["frozen"] = bool(result["frozen"])
    return {**found, "state": state}


def _progress(folder: Path, epochs: int) -> str:
    """How far a run is, by its metrics, the last line of which may be cut."""
    path = folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines()[-2:] if path.exists() else []
    for line in reversed(lines):
        with contextlib.suppress(ValueError, KeyError):
            return f", step {json.loads(line)['step']}, epochs: {epochs}"
    return ""


def _spread(whole: Sequence[dict[str, Any]], rule: str) -> str:
    known = [each[rule] for each in whole if each[rule] is not None]
    if not known:
        return "-"
    accuracy = whole[0]["metric"] == "accuracy"
    scale, form, unit = (100, ".2f", " %") if accuracy else (1, ".5f", "")
    values = [scale * value for value in known]
    spread = f" ± {stdev(values):{form}}" if len(values) > 1 else ""
    return f"{whole[0]['metric']}\n{mean(values):{form}}{spread}{unit}"
