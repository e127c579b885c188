"""What the rows of a table say together, in sentences: gains over the plain network, ours and the paper's."""

from collections.abc import Mapping, Sequence
from statistics import mean

from ..experiments.paper.controls import CONTROLS
from ..experiments.paper.published import Published
from ..experiments.paper.recipes import recipe, variants
from ..experiments.paper.tables import Exhibit, Line
from ..experiments.runs.gather import Outcome, Runs
from .comparisons import paired
from .controls import matched
from .statistics import against_seeds, compared
from .wording import QUOTED, counted, signed

_PLAIN = ("LSTM", "DTRIV")
# What is said of a network and its control, by the verdict on them.
_STATEMENTS = {
    "momentum better": "is better than",
    "control better": "is worse than",
    "no difference seen": "shows no difference from",
    "one seed: no verdict": "has too few seeds to be compared with",
    "": "can't be compared yet with",
}


def findings(exhibit: Exhibit, runs: Runs) -> list[str]:
    """Some sentences for each task and number of units whose plain network and another came to the end."""
    places: dict[tuple[str, int], list[Line]] = {}
    for line in exhibit.lines if exhibit.kind == "results" else ():
        if line.recipe and recipe(line.recipe).config.task.metric == "accuracy":
            places.setdefault((line.column, line.size), []).append(line)
    sentences = []
    for (task, size), lines in places.items():
        for variant, terms in (("", ""), ("/as-released", ", as released")):
            plain = next((line for line in lines if line.model in _PLAIN), None)
            base = plain and _ended(plain, variant, runs)
            others = [(line, _ended(line, variant, runs)) for line in lines if line is not plain]
            ended = [(line, outcome) for line, outcome in others if outcome is not None]
            if plain and base and ended:
                place = f"{task}, n = {size}{terms}"
                sentences.append(f"{place}: {_gains(plain, base, ended)}")
                sentences += [f"{place}, in the paper: {text}" for text in _published_gains(plain, ended)]
                controls = _controls(plain, ended, variant, runs)
                sentences += [f"{place}, controls: {text}" for text in controls]
    return sentences


def _gains(plain: Line, base: Outcome, networks: Sequence[tuple[Line, Outcome]]) -> str:
    """How far each network is above the plain one of the same training."""
    words = [f"our {plain.model} reaches {mean(base.best.values()):.2f} %, best on test."]
    rules = (("selected by validation", "valid"), ("best on test", "best"))
    for rule, name in rules:
        base_values = getattr(base, name)
        values = [(line, outcome, getattr(outcome, name)) for line, outcome in networks]
        gains = [
            f"{line.model} {signed(against_seeds(by_seed, base_values), 2)}"
            f"{_counts_of_seeds(outcome, base, plain.model)}"
            for line, outcome, by_seed in values
            if by_seed and base_values
        ]
        if gains:
            words.append(f"Gain over it in points, {rule} [95 %]: {'; '.join(gains)}.")
    return " ".join(words)


def _counts_of_seeds(outcome: Outcome, base: Outcome, plain: str) -> str:
    """The numbers of seeds, where they differ between the two, or where some are missing."""
    if outcome.seeds == base.seeds and len(base.seeds) > 1 and not outcome.short and not outcome.frozen:
        return ""
    failed = f", {len(outcome.frozen)} failed" if outcome.frozen else ""
    seeds, base_seeds = (counted(len(side.seeds), "seed") for side in (outcome, base))
    return f" ({seeds}{failed}; {plain}: {base_seeds})"


def _published_gains(plain: Line, networks: Sequence[tuple[Line, Outcome]]) -> list[str]:
    """The same gains by the published numbers; none for SRLSTM, whose number is of another cell."""
    gains = [
        f"{line.model} {line.published[0].value - plain.published[0].value:+.2f}"
        for line, _ in networks
        if line.model != "SRLSTM"
    ]
    return [f"{'; '.join(gains)}, above {_source_of(plain)}."] if gains else []


def _source_of(plain: Line) -> str:
    """Where the paper has the number of its plain network from."""
    published: Sequence[Published] = plain.published
    first, *rest = published
    if not first.quoted:
        return f"its own {plain.model} at {first.value:.2f} %"
    others = "".join(f" (or at {other.value:.2f} %, from {QUOTED[other.source]})" for other in rest)
    return f"the {plain.model} at {first.value:.2f} % that it quotes from {QUOTED[first.source]}{others}"


def _controls(plain: Line, networks: Sequence[tuple[Line, Outcome]], variant: str, runs: Runs) -> list[str]:
    """How each network compares with its controls other than the plain network."""
    id_of_plain = recipe(f"{plain.recipe}{variant}").config.id
    sentences, without = [], []
    for line, network in networks:
        groups: dict[str, list[str]] = {}
        for name in (f"{line.recipe}{variant}/{key}" for key in CONTROLS):
            if name in variants(line.recipe) and recipe(name).config.id != id_of_plain:
                control = runs.outcome(recipe(name).config)
                if control:
                    words = compared(paired(network, control), 1) if control.best else ""
                    groups.setdefault(_STATEMENTS[words], []).append(f"the {matched([name])}")
        sentences += _sentence(line.model, groups)
        without += [] if groups else [line.model]
    if without:
        sentences.append(f"no control was run for {', '.join(without)}")
    return [f"{'; '.join(sentences)}."] if sentences else []


def _sentence(model: str, groups: Mapping[str, Sequence[str]]) -> list[str]:
    """What is said of one network, as no or one part of a sentence."""
    parts = []
    for statement, shared in groups.items():
        word = "control" if len(shared) == 1 else "controls"
        parts.append(f"{statement} its {word} with {' and with '.join(shared)}")
    return [f"{model} {', and '.join(parts)}"] if parts else []


def _ended(line: Line, variant: str, runs: Runs) -> Outcome | None:
    """The outcome of a line's run, if a seed of it came to the end. variant: "" or "/as-released"."""
    name = f"{line.recipe}{variant}"
    if name not in variants(line.recipe):
        return None
    outcome = runs.outcome(recipe(name).config)
    return outcome if outcome.best else None
