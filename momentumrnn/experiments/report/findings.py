"""What the rows of a table say together, in sentences: gains over the plain network, ours and the paper's."""

from collections.abc import Mapping, Sequence
from statistics import mean

from ..exhibits import Exhibit, Line
from ..paper import CONTROLS, Published, recipe, variants
from .gather import Outcome, Runs
from .numbers import against_seeds, compared
from .result_tables import matched, paired
from .tables import QUOTED, signed

_PLAIN = ("LSTM", "DTRIV")
# By the verdict on a network and its control.
_SAID = {
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
    found = []
    for (task, size), lines in places.items():
        for end, terms in (("", ""), ("/as-released", ", as released")):
            plain = next((line for line in lines if line.model in _PLAIN), None)
            base = plain and _ended(plain, end, runs)
            others = [(line, _ended(line, end, runs)) for line in lines if line is not plain]
            ended = [(line, each) for line, each in others if each is not None]
            if plain and base and ended:
                place = f"{task}, n = {size}{terms}"
                found.append(f"{place}: {_gains(plain, base, ended)}")
                found += [f"{place}, in the paper: {each}" for each in _published(plain, ended)]
                found += [f"{place}, controls: {each}" for each in _controls(plain, ended, end, runs)]
    return found


def _gains(plain: Line, base: Outcome, networks: Sequence[tuple[Line, Outcome]]) -> str:
    """How far each network is above the plain one of the same training."""
    words = [f"our {plain.model} reaches {mean(base.best.values()):.2f} %, best on test."]
    rules = (("selected by validation", "valid"), ("best on test", "best"))
    for rule, name in rules:
        values = [(line, found, getattr(found, name), getattr(base, name)) for line, found in networks]
        gains = [
            f"{line.model} {signed(against_seeds(own, plain_own), 2)}{_few(found, base, plain.model)}"
            for line, found, own, plain_own in values
            if own and plain_own
        ]
        if gains:
            words.append(f"Gain over it in points, {rule} [95 %]: {'; '.join(gains)}.")
    return " ".join(words)


def _few(found: Outcome, base: Outcome, plain: str) -> str:
    """The numbers of seeds, where they differ between the two, or where some are missing."""
    if found.seeds == base.seeds and len(base.seeds) > 1 and not found.short and not found.frozen:
        return ""
    failed = f", {len(found.frozen)} failed" if found.frozen else ""
    return f" ({_seeds(found)}{failed}; {plain}: {_seeds(base)})"


def _seeds(found: Outcome) -> str:
    return f"{len(found.seeds)} seed{'s' * (len(found.seeds) != 1)}"


def _published(plain: Line, networks: Sequence[tuple[Line, Outcome]]) -> list[str]:
    """The same gains by the published numbers; none for SRLSTM, whose number is of another cell."""
    gains = [
        f"{line.model} {line.published[0].value - plain.published[0].value:+.2f}"
        for line, _ in networks
        if line.model != "SRLSTM"
    ]
    return [f"{'; '.join(gains)}, above {_whose(plain)}."] if gains else []


def _whose(plain: Line) -> str:
    """Where the paper has the number of its plain network from."""
    published: Sequence[Published] = plain.published
    first, *rest = published
    if not first.quoted:
        return f"its own {plain.model} at {first.value:.2f} %"
    others = "".join(f" (or at {each.value:.2f} %, from {QUOTED[each.source]})" for each in rest)
    return f"the {plain.model} at {first.value:.2f} % that it quotes from {QUOTED[first.source]}{others}"


def _controls(plain: Line, networks: Sequence[tuple[Line, Outcome]], end: str, runs: Runs) -> list[str]:
    """How each network compares with its controls other than the plain network."""
    same = recipe(f"{plain.recipe}{end}").config.id
    sentences, without = [], []
    for line, network in networks:
        groups: dict[str, list[str]] = {}
        for name in (f"{line.recipe}{end}/{key}" for key in CONTROLS):
            if name in variants(line.recipe) and recipe(name).config.id != same:
                control = runs.outcome(recipe(name).config)
                if control:
                    said = _SAID[compared(paired(network, control), 1) if control.best else ""]
                    groups.setdefault(said, []).append(f"the {matched([name])}")
        sentences += _sentence(line.model, groups)
        without += [] if groups else [line.model]
    if without:
        sentences.append(f"no control was run for {', '.join(without)}")
    return [f"{'; '.join(sentences)}."] if sentences else []


def _sentence(model: str, groups: Mapping[str, Sequence[str]]) -> list[str]:
    """What is said of one network, as no or one part of a sentence."""
    parts = []
    for said, same in groups.items():
        word = "control" if len(same) == 1 else "controls"
        parts.append(f"{said} its {word} with {' and with '.join(same)}")
    return [f"{model} {', and '.join(parts)}"] if parts else []


def _ended(line: Line, end: str, runs: Runs) -> Outcome | None:
    name = f"{line.recipe}{end}"
    if name not in variants(line.recipe):
        return None
    found = runs.outcome(recipe(name).config)
    return found if found.best else None
