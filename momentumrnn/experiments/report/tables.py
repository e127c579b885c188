"""Each table of the report, as rows of text and as plain data. Knows no file format."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev
from typing import Any

from ..config import in_words
from ..demo import BOUND, NETWORKS, TASK, Network, entry, half_way, steps
from ..exhibits import GOAL, Exhibit, Line, settings
from ..paper import CONTROLS, SOURCES, Published, Recipe, recipe, released_loss, variants
from .gather import COUNTED, Outcome, Runs, Seed, outcome, plain
from .numbers import Interval, against_paper, against_seeds, compared, verdict

SHORT = "a curve, no verdict"
NOT_RUN = "not run"
QUOTED = {
    "helfrich2018": "Helfrich",
    "vorontsov2017": "Vorontsov",
    "wisdom2016": "Wisdom",
    "casado2019trivializations": "Lezcano-Casado",
    "helfrich2018+lezcano2019cheap": "Helfrich, Lezcano-Casado",
    "merity2018": "Merity",
}
"""Whom the paper quotes, in short."""


@dataclass(frozen=True)
class Row:
    """A row as it is shown; kind: "", "control" or "absent", not run; data: the same, for programs."""

    cells: tuple[str, ...]
    data: Mapping[str, Any]
    kind: str = ""


@dataclass(frozen=True)
class Table:
    """A table of the report; its name is that of its files."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""


def results(exhibit: Exhibit, runs: Runs) -> Table:
    """Printed numbers beside ours, with the controls that were run."""
    ours = ("best on test", "by validation")
    if exhibit.kind == "curves":
        ours = ("training loss at the end", "test loss, by validation")
    elif exhibit.later:
        ours = ours[::-1]
    columns = (
        "network",
        "units",
        "task" if not exhibit.later else "part",
        "trained",
        "paper",
        f"ours, {ours[0]} (seeds)",
        f"ours, {ours[1]}",
        "difference [95 % interval]",
        "verdict",
    )
    rows = tuple(row for line in lines(exhibit) for row in _of_line(line, exhibit, runs))
    unit = f"{exhibit.metric[0].upper()}{exhibit.metric[1:]}." if exhibit.metric else ""
    return Table(exhibit.name, columns, rows, " ".join(filter(None, (unit, _not_run(exhibit, runs)))))


def lines(exhibit: Exhibit) -> tuple[Line, ...]:
    """The printed lines of a table; of a figure those of its curves that have a loss as their measure."""
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
    """The lowest test loss beside that of the authors' released curves, of what has come to the end."""
    columns = (
        "network",
        "units",
        "task",
        "trained",
        "released",
        "ours, lowest test loss (seeds)",
        "difference [95 % interval]",
        "verdict",
    )
    rows = []
    for line in exhibit.lines:
        for name in variants(line.recipe) if line.recipe else ():
            released, config = released_loss(name), recipe(name).config
            own = runs.outcome(config).lowest
            if released is None or not own:
                continue
            interval = against_paper(list(own.values()), released)
            terms = " (on other terms)" if name == line.recipe else ""
            words = verdict(list(own.values()), released) + terms
            cells = (
                line.model,
                str(line.size),
                line.column,
                "as released" if terms == "" else "default",
                _released(released),
                _spread(own, 4, count=True),
                signed(interval, 4),
                words,
            )
            data = {"network": line.model, "units": line.size, "column": line.column, "recipe": name}
            data |= {"released": released.value, "released_sd": released.std, "n": len(own)}
            data |= {"mean": mean(own.values()), "sd": _sd(own)}
            data |= {f"seed_{seed}": value for seed, value in own.items()}
            data |= {"difference": interval.value, "low": interval.low, "high": interval.high}
            rows.append(Row(cells, data | {"verdict": words}))
    note = (
        "The lowest test loss of all epochs. Released: of curves that the authors published, of (so many) "
        "seeds; also of their own LSTM, whose accuracy is not known."
    )
    return Table(f"{exhibit.name}-losses", columns, tuple(rows), note)


def _released(loss: Published) -> str:
    return (
        f"{loss.value:.4f} (1)" if loss.std is None else f"{loss.value:.4f} ± {loss.std:.4f} ({loss.seeds})"
    )


def _of_line(line: Line, exhibit: Exhibit, runs: Runs) -> Iterator[Row]:
    if not line.recipe:
        shown = (
            line.model,
            str(line.size),
            line.column,
            "",
            printed(line.published, 2),
            NOT_RUN,
            NOT_RUN,
            "",
        )
        yield Row((*shown, NOT_RUN), _data(line, exhibit.later), "absent")
        return
    base: Outcome | None = None
    # Two controls may be one run, and are one row.
    same: dict[str, list[str]] = {}
    for name in variants(line.recipe):
        same.setdefault(recipe(name).config.id, []).append(name)
    for names in same.values():
        row, key = recipe(names[0]), names[0].rpartition("/")[2]
        found = runs.outcome(row.config)
        if key not in CONTROLS:
            base = found
        # A control says something beside what it is a control of.
        if row.name == line.recipe or (found and (base or key not in CONTROLS)):
            yield _of_run(line, row, _trained(names), found, base if key in CONTROLS else None)


def _trained(names: Sequence[str]) -> str:
    """How the variants of these names, which are one run, are called."""
    keys = [name.split("/")[4:] for name in names]
    if not keys[0]:
        return "default"
    words = [TRAINED[key[-1]] for key in keys]
    words = [words[0], *(each.removeprefix("control: ") for each in words[1:])]
    return ", ".join([*words, *["as released"] * (len(keys[0]) > 1)])


def _of_run(line: Line, row: Recipe, trained: str, found: Outcome, with_momentum: Outcome | None) -> Row:
    accuracy = row.config.task.metric == "accuracy"
    digits = 2 if accuracy else 5
    own = found.best if accuracy else found.trained
    data = _data(line, "", row)
    if own:
        data |= {"n": len(own), "mean": mean(own.values()), "sd": _sd(own), "epochs": found.epochs}
        data |= {f"seed_{seed}": value for seed, value in own.items()}
    if found.valid:
        data |= {"mean_by_validation": mean(found.valid.values()), "sd_by_validation": _sd(found.valid)}
    interval, words = _judged(line, row, found, with_momentum)
    if interval is not None:
        of = "paper" if with_momentum is None else "this row from the network with momentum"
        data |= {
            "difference": interval.value,
            "low": interval.low,
            "high": interval.high,
            "difference_of": of,
        }
    data |= {"verdict": words, "missing": _missing(found)}
    cells = (
        line.model,
        str(line.size),
        line.column,
        trained,
        printed(line.published, digits) if with_momentum is None else "",
        "; ".join(filter(None, (_spread(own, digits, count=True), _missing(found)))) or NOT_RUN,
        _spread(found.valid, digits) or ("-" if found else NOT_RUN),
        signed(interval, digits),
        words,
    )
    return Row(cells, data, "absent" if not found else "control" if with_momentum is not None else "")


def _judged(
    line: Line, row: Recipe, found: Outcome, with_momentum: Outcome | None
) -> tuple[Interval | None, str]:
    """The difference that a row shows, and what to make of it."""
    task: Any = row.config.task
    accuracy = task.metric == "accuracy"
    own = found.best if accuracy else found.trained
    if not own:
        if found.frozen:
            return None, "failed"
        return None, SHORT if any(found.short.values()) else "begun" if found else NOT_RUN
    some = "" if not found.short and not found.frozen else f"; of {len(own)} seeds"
    if with_momentum is not None:
        theirs, ours = _chosen(with_momentum, found)
        if not theirs:
            return None, "the network with momentum is not at its end"
        interval = against_seeds(theirs, ours)
        if min(mean(theirs.values()), mean(ours.values())) > 0.95 * getattr(task, "baseline", math.inf):
            return interval, f"neither learns{some}"
        return interval, compared(interval, 1 if accuracy else -1) + some
    if not line.published:
        return None, "no number printed"
    paper = line.published[0]
    if paper.quoted:
        return None, "quoted: no verdict"
    interval = against_paper(list(own.values()), paper)
    if line.model == "SRLSTM" and accuracy:
        return interval, "of another cell: no verdict"
    terms = " (on other terms)" if accuracy and row.name == line.recipe else ""
    return interval, verdict(list(own.values()), paper) + some + terms


def paired(first: Outcome, second: Outcome) -> Interval:
    """By how much the first is above the second, seed by seed."""
    return against_seeds(*_chosen(first, second))


def _chosen(first: Outcome, second: Outcome) -> tuple[Mapping[int, float], Mapping[int, float]]:
    """What two are compared by: their test at the epoch that validation selects, else their best."""
    pairs = ((first.valid, second.valid), (first.best, second.best))
    return next((pair for pair in pairs if all(pair)), ({}, {}))


TRAINED = {
    "as-released": "as released",
    "same-step": "control: same step",
    "same-gain": "control: same gain",
    "same-input-gain": "control: same input gain",
    "same-forget-bias": "control: same forget bias",
    "same-rms": "control: same rms",
    "same-input-rms": "control: same input rms",
}


def _data(line: Line, later: str, row: Recipe | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "network": line.model,
        "units": line.size,
        "column": line.column,
        "recipe": "" if row is None else row.name,
        "run": "" if row is None else row.config.id,
    }
    published = (
        line.published if row is None or row.name.rpartition("/")[2] not in CONTROLS else row.published
    )
    for i, p in enumerate(published, 1):
        end = "" if i == 1 else f"_{i}"
        found |= {f"paper{end}": p.value, f"paper_sd{end}": p.std, f"paper_source{end}": p.source}
    return found | ({"verdict": f"{NOT_RUN}: {later}"} if later else {})


def _missing(found: Outcome) -> str:
    """Seeds that did not come to the end, in words."""
    parts = [f"seed {seed}: epoch {epoch} of {found.epochs}" for seed, epoch in found.short.items()]
    parts += [f"seed {seed}: not finite at step {step}" for seed, step in found.frozen.items()]
    if len(parts) > 2 and len({*found.short.values()}) == 1 and not found.frozen:
        return f"{len(parts)} seeds: epoch {next(iter(found.short.values()))} of {found.epochs}"
    return ", ".join(parts)


def _not_run(exhibit: Exhibit, runs: Runs) -> str:
    """What may be run beside the rows, and was not."""
    absent: dict[str, int] = {}
    for line in lines(exhibit):
        for name in variants(line.recipe)[1:] if line.recipe else ():
            row = recipe(name)
            if not runs.outcome(row.config):
                key = name.rpartition("/")[2]
                words = "as released" if key == "as-released" else f"control {key}"
                absent[words] = absent.get(words, 0) + 1
    counted = [
        f"{words} ({count} rows)" if count > 1 else f"{words} (1 row)" for words, count in absent.items()
    ]
    return f"Not run beside these: {', '.join(counted)}." if counted else ""


def hyper(name: str) -> Table:
    """A table of hyper-parameters."""
    titles = {
        "dataset": "task",
        "n": "units",
        "K": "K",
        "optimizer": "optimiser",
        "lr": "rate",
        "orth_optimizer": "optimiser of U",
        "orth_lr": "rate of U",
        "batch_size": "batch",
        "epochs": "epochs",
        "mu": "mu",
        "s": "step",
        "beta": "beta",
        "F": "F",
    }
    found = settings(name)
    used = [key for key in titles if any(key in row for rows in found.values() for row in rows)]
    rows = []
    for model, each in found.items():
        for row in each:
            cells = (model, *(_setting(row.get(key)) for key in used))
            rows.append(Row(cells, {"network": model, **{key: row.get(key) for key in used}}))
    note = (
        "From the recipes; TIMIT and PTB, which have none yet, as printed. K: steps between re-basings of U."
    )
    return Table(name, ("network", *(titles[key] for key in used)), tuple(rows), note)


def _setting(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{_setting(v)} (n = {size})" for size, v in value.items())
    return (
        ""
        if value is None
        else "∞"
        if value == "infty"
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def costs(exhibit: Exhibit, found: Mapping[str, Any], runs: Runs) -> Table:
    """Tables 14 to 16 from a file of measurements: the paper's, its listing's here, torch's, and ours."""
    if exhibit.name == "table16":
        return _minutes(exhibit, found, runs)
    keys = {"table14": ("train_ms", "eval_ms"), "table15": ("train_mb", "eval_mb")}[exhibit.name]
    columns = (
        "network",
        "part",
        "paper",
        "the paper's listing, here",
        "torch.nn",
        "ours",
        "listing / ours",
        "torch.nn / ours",
    )
    rows = []
    for line in exhibit.lines:
        key = keys[("training", "evaluation").index(line.column)]
        values = [
            found["rows"].get(f"{kind}/{line.model}", {}).get(key) for kind in ("listing", "torch.nn", "ours")
        ]
        listing, torch, ours = values
        ratios = [None if None in (other, ours) else other / ours for other in (listing, torch)]
        cells = (
            line.model,
            line.column,
            f"{line.published[0].value:g}",
            _amount(listing),
            "" if torch is None and line.model != "LSTM" else _amount(torch),
            _amount(ours),
            *("" if ratio is None else f"{ratio:.3g}" for ratio in ratios),
        )
        data = {"network": line.model, "part": line.column, "paper": line.published[0].value}
        data |= {"listing": listing, "torch_nn": torch, "ours": ours, "device": found["device"]}
        rows.append(Row(cells, data, "absent" if ours is None else ""))
    return Table(exhibit.name, columns, tuple(rows), f"{exhibit.metric}. {_how(found)}")


def _how(found: Mapping[str, Any]) -> str:
    """How costs were measured."""
    versions = found.get("versions")
    torch = f", torch {versions.get('torch')}" if isinstance(versions, dict) else ""
    kinds = {"ours": "ours/LSTM", "torch.nn": "torch.nn/LSTM", "the listing": "listing/LSTM"}
    ways = [f"{kind}: {found['rows'][name]['how']}" for kind, name in kinds.items() if name in found["rows"]]
    words = "Batches of 128 in training; in evaluation of 500 on a GPU and 100 on a CPU."
    return f"Measured on {found['device']}{torch}. {words} {'; '.join(ways)}".strip()


def _minutes(exhibit: Exhibit, found: Mapping[str, Any], runs: Runs) -> Table:
    columns = (
        "network",
        "trained",
        "paper",
        "epochs needed (seeds)",
        "ours",
        "ours, as run (seeds together)",
        "the paper's listing, here",
        "torch.nn",
    )
    rows = []
    for line in exhibit.lines:
        for name in variants(line.recipe):
            row = recipe(name)
            if name != line.recipe and name.rpartition("/")[2] != "as-released":
                continue
            needed = {n: first_at(seed, GOAL, row.config.epochs) for n, seed in runs.of(row.config).items()}
            reached = [at["epoch"] for at in needed.values() if at is not None]
            spent = [at["seconds"] for at in needed.values() if at is not None and at.get("seconds")]
            if name != line.recipe and not needed:
                continue
            came = runs.outcome(row.config)
            over = {*came.seeds, *came.frozen}
            late = [str(n) for n, at in needed.items() if at is None and n in over]
            shown = f"{mean(reached):.1f} ({len(reached)})" if reached else NOT_RUN if not needed else ""
            open_ = [str(n) for n, at in needed.items() if at is None and n not in over]
            if open_:
                shown = f"{shown}; not yet: seed {', '.join(open_)}".removeprefix("; ")
            if late:
                shown = f"{shown}; not reached: seed {', '.join(late)}".removeprefix("; ")
            times = [
                _epoch_minutes(found, f"{kind}/{line.model}", row) for kind in ("ours", "listing", "torch.nn")
            ]
            # A mean of those alone that came so far would be too short.
            known = reached and not late and not open_
            minutes = [mean(reached) * each if each is not None and known else None for each in times]
            minutes.insert(1, mean(spent) / 60 if known and len(spent) == len(reached) else None)
            cells = (
                line.model,
                "default" if name == line.recipe else "as released",
                f"{line.published[0].value:g}",
                shown,
                *(_amount(each) if known else "-" if needed else NOT_RUN for each in minutes[:2]),
                *("" if each is None else _amount(each) for each in minutes[2:]),
            )
            data = {"network": line.model, "recipe": name, "paper": line.published[0].value}
            data |= {
                "epochs": mean(reached) if reached else None,
                "seeds": len(reached),
                "not_reached": len(late),
            }
            data |= dict(zip(("ours", "as_run", "listing", "torch_nn"), minutes, strict=True))
            rows.append(Row(cells, data, "" if needed else "absent"))
    return Table(exhibit.name, columns, tuple(rows), f"Minutes. {_how(found)}")


def _epoch_minutes(found: Mapping[str, Any], name: str, row: Recipe) -> float | None:
    """An epoch of one seed: all that it trains on, and the test images, as the released code's epochs are."""
    costs = found["rows"].get(name)
    if costs is None:
        return None
    training = 60_000 - getattr(row.config.task, "validation", 0)
    return float(training * costs["train_ms"] + 10_000 * costs["eval_ms"]) / 60e3


def first_at(seed: Seed, goal: float, epochs: int) -> Mapping[str, Any] | None:
    """The line of the first epoch with that test accuracy, None if none of so many has it."""
    lines = seed.epochs[:epochs]
    return next((line for line in lines if (line.get("test_accuracy") or 0) >= goal), None)


def demo(runs: Runs) -> Table:
    """The small comparison that needs no data: every network that was run, none more."""
    most = max([1, *(len(seed.epochs) for _, seeds in demo_runs(runs) for seed in seeds.values())])
    half, n = half_way(most), steps()
    columns = (
        "network",
        "momentum",
        f"validation loss after {half * n} steps",
        f"validation loss after {most * n} steps (seeds)",
        f"steps to below {BOUND:.4f}",
    )
    rows = []
    for network, seeds in demo_runs(runs):
        curves = {number: validation(seed) for number, seed in seeds.items()}
        ends = [{k: c[e - 1] for k, c in curves.items() if len(c) >= e} for e in (half, most)]
        first = [n * epoch for epoch in map(learnt, curves.values())]
        missing = _missing(outcome(seeds, most))
        cells = (
            network.name,
            repr(network.momentum).replace(", eps=1e-08, eps_in_sqrt=True", ""),
            _spread(ends[0], 4) or NOT_RUN,
            "; ".join(filter(None, (_spread(ends[1], 4, count=True), missing))) or NOT_RUN,
            between(first) if first else NOT_RUN,
        )
        data: dict[str, Any] = {"network": network.name, "run": entry(network).id}
        data |= {f"seed_{k}": v for k, v in ends[1].items()}
        data |= {"median_steps": median(first)} if first and median(first) < math.inf else {}
        kind = "control" if network.control else ""
        rows.append(Row(cells, data, kind if seeds else "absent"))
    note = f"Always answering 1 has a loss of {TASK.baseline:.4f}; half of that is {BOUND:.4f}."
    return Table("demo", columns, tuple(rows), note)


def demo_runs(runs: Runs) -> list[tuple[Network, Mapping[int, Seed]]]:
    """The networks of the demo, and the seeds of each that were run."""
    return [(network, runs.of(entry(network))) for network in NETWORKS]


def validation(seed: Seed) -> list[float]:
    """The validation loss after each epoch; nan where it was not finite."""
    values = [line.get("validation_loss") for line in seed.epochs]
    return [math.nan if value is None else float(value) for value in values]


def learnt(curve: Sequence[float]) -> float:
    """The first epoch after which a validation loss is below the bound; infinite if none is."""
    return next((epoch for epoch, value in enumerate(curve, 1) if value < BOUND), math.inf)


def lessons(runs: Runs) -> list[str]:
    """What the demo shows, in the order in which one sees it, and what that does and doesn't say."""
    when = {}
    for network, seeds in demo_runs(runs):
        if seeds:
            when[network.name] = median(learnt(validation(seed)) for seed in seeds.values())
    order = {epoch: [name for name in when if when[name] == epoch] for epoch in sorted(when.values())}
    others = order.pop(math.inf, [])
    found = []
    if order:
        names = ", then ".join(map(" and ".join, order.values()))
        found.append(f"Most seeds came below {BOUND:.4f} in this order: {names}.")
    if others:
        found.append(f"At least half of the seeds were not below {BOUND:.4f} yet: {', '.join(others)}.")
    control = NETWORKS[-1]
    found.append(
        f"{control.name} is a control: no momentum, but the gain step / (1 - mu) that MomentumLSTM gives a "
        "constant input. What it has over LSTM is due to a larger step alone. All have the same rate and, "
        "where they have one, the same mu, step and beta; on another task, at another rate or with other "
        "values the order may be another."
    )
    return found


def folders(runs: Runs) -> Table:
    """Every run with its exact command, and every folder that does not count."""
    columns = ("run", "seeds", "state", "device", "commit", "command")
    rows = []
    groups: dict[tuple[str, ...], list[Seed]] = {}
    for seed in runs.folders:
        name = seed.id if seed.state in COUNTED else plain(seed.path.name)
        state = seed.state if seed.state == "done" and not seed.reason else f"{seed.state}: {seed.reason}"
        key = (name, state, *(seed.made(what) for what in ("device", "commit", "command")))
        groups.setdefault(key, []).append(seed)
    for (name, state, device, commit, command), seeds in groups.items():
        numbers = sorted(seed.seed for seed in seeds if seed.seed >= 0)
        shown = (name, _numbers(numbers), state, *(text or "-" for text in (device, commit[:10], command)))
        data = {"run": name, "seeds": " ".join(map(str, numbers)), "state": state, "device": device}
        kind = "" if seeds[0].state == "done" else "absent"
        rows.append(Row(shown, {**data, "commit": commit, "command": command}, kind))
    return Table("runs", columns, tuple(rows))


def others(runs: Runs, known: set[str]) -> Table:
    """Runs that are no row of the paper."""
    columns = ("task", "network", "epochs", "best on test (seeds)", "by validation")
    rows = []
    for name, seeds in runs.by_id.items():
        if name in known:
            continue
        first = next(iter(seeds.values()))
        most = max(len(seed.epochs) for seed in seeds.values())
        found = outcome(seeds, most) if most else None
        digits = 2 if first.metric == "accuracy" else 5
        cells = (
            str(first.given.get("task")),
            in_words(first.given),
            str(most),
            (_spread(found.best, digits, count=True) if found else "") or "-",
            (_spread(found.valid, digits) if found else "") or "-",
        )
        data: dict[str, Any] = {"run": name, "epochs": most}
        for kind, values in (("best", found.best), ("by_validation", found.valid)) if found else ():
            data |= {f"{kind}_seed_{seed}": value for seed, value in values.items()}
        rows.append(Row(cells, data))
    return Table("others", columns, tuple(rows))


def printed(published: Sequence[Published], digits: int) -> str:
    """What the paper has, with whom it quotes."""
    parts = []
    for p in published:
        value = f"{p.value:.{digits}f}" if digits == 2 else f"{p.value:g}"
        spread = "" if p.std is None else f" ± {p.std:.2f}"
        parts.append(f"{value}{spread}{f' ({QUOTED[p.source]})' if p.quoted else ''}")
    return "; ".join(parts) or "-"


def sources() -> list[str]:
    """Whom the paper quotes."""
    return [f"{QUOTED[key]}: {words}" for key, words in SOURCES.items() if key != "paper"]


def between(values: Sequence[float]) -> str:
    """The least and the most; what is infinite has not been yet.

    >>> between([150, 100, math.inf]), between([100, 100]), between([math.inf])
    ('100 to more', '100', 'not yet')
    """
    if min(values) == math.inf:
        return "not yet"
    ends = [f"{v:.0f}" if v < math.inf else "more" for v in (min(values), max(values))]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def _spread(values: Mapping[int, float], digits: int, count: bool = False) -> str:
    """Mean ± sample standard deviation, and of how many."""
    known = [value for value in values.values() if math.isfinite(value)]
    if not known:
        return ""
    spread = f" ± {stdev(known):.{digits}f}" if len(known) > 1 else ""
    return f"{mean(known):.{digits}f}{spread}{f' ({len(known)})' if count else ''}"


def _sd(values: Mapping[int, float]) -> float | None:
    return stdev(values.values()) if len(values) > 1 else None


def signed(interval: Interval | None, digits: int) -> str:
    """A difference and its interval as they are shown."""
    if interval is None:
        return ""
    value, *ends = (
        # No -0.00.
        f"{round(number, digits) + 0.0:+.{digits}f}"
        for number in (interval.value, interval.low, interval.high)
        if number is not None
    )
    return f"{value} [{', '.join(ends)}]" if ends else value


def _amount(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3g}"


def _numbers(seeds: Sequence[int]) -> str:
    return (
        ", ".join(map(str, seeds))
        if len(seeds) < 3 or seeds[-1] - seeds[0] >= len(seeds)
        else f"{seeds[0]}-{seeds[-1]}"
    )
