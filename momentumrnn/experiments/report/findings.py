"""What the rows of a table say together, in sentences: gains over the plain network, ours and the paper's."""

from collections.abc import Sequence
from statistics import mean

from ..exhibits import Exhibit, Line
from ..paper import CONTROLS, recipe, variants
from .gather import Outcome, Runs, outcome
from .numbers import compared
from .tables import QUOTED, TRAINED, paired, signed

_PLAIN = ("LSTM", "DTRIV")
_WORDS = {
    "control better": "better than",
    "no difference seen": "not to be told from",
    "momentum better": "worse than",
    "one seed: no verdict": "of one seed beside",
}


def findings(exhibit: Exhibit, runs: Runs) -> list[str]:
    """Two sentences for each task and number of units whose plain network and another came to the end."""
    places: dict[tuple[str, int], list[Line]] = {}
    for line in exhibit.lines if exhibit.kind == "results" else ():
        if line.recipe:
            places.setdefault((line.column, line.size), []).append(line)
    found = []
    for (task, size), lines in places.items():
        for end, terms in (("", ""), ("/as-released", ", as released")):
            said = _gains(lines, end, runs)
            if said:
                found.append(f"{task}, n = {size}{terms}: {said} {_controls(lines, end, runs)}")
    return found


def _gains(lines: Sequence[Line], end: str, runs: Runs) -> str:
    """How far each network is above the plain one of the same training, and the paper's above what it has."""
    plain = next((line for line in lines if line.model in _PLAIN), None)
    base = plain and _ended(plain, end, runs)
    if not plain or not base:
        return ""
    ours, theirs = [], []
    for line, found in _networks(lines, end, runs):
        ours.append(f"{line.model} {signed(paired(found, base), 2)}")
        # The printed SRLSTM is another cell.
        if line.model != "SRLSTM":
            theirs.append(f"{line.model} {line.published[0].value - plain.published[0].value:+.2f}")
    if not ours:
        return ""
    first = plain.published[0]
    whom = f"the {first.value:.2f} that it quotes from {QUOTED[first.source]}" if first.quoted else "its own"
    rule = "by validation" if base.valid else "best on test"
    printed = f" In print: {', '.join(theirs)}, above {whom}." if theirs else ""
    return (
        f"above our {plain.model} of the same training, {rule}: {', '.join(ours)}.{printed} Best on test, "
        f"our {plain.model} has {mean(base.best.values()):.2f}."
    )


def _controls(lines: Sequence[Line], end: str, runs: Runs) -> str:
    """How controls other than the plain network stand to each network."""
    plain = {recipe(f"{line.recipe}{end}").config.id for line in lines if line.model in _PLAIN}
    parts = []
    for line, with_it in _networks(lines, end, runs):
        groups: dict[str, list[str]] = {}
        for key in CONTROLS:
            name = f"{line.recipe}{end}/{key}"
            if name in variants(line.recipe) and recipe(name).config.id not in plain:
                without = outcome(runs.of(recipe(name).config), recipe(name).config.epochs)
                if without.best:
                    said = _WORDS[compared(paired(with_it, without), 1)]
                    groups.setdefault(said, []).append(TRAINED[key].removeprefix("control: "))
        parts += [f"{', '.join(keys)} {said} {line.model}" for said, keys in groups.items()]
        parts += [] if groups else [f"none other was run for {line.model}"]
    return f"Controls without momentum: {'; '.join(parts)}."


def _networks(lines: Sequence[Line], end: str, runs: Runs) -> list[tuple[Line, Outcome]]:
    """Those that are not the plain one and came to the end."""
    found = [(line, _ended(line, end, runs)) for line in lines if line.model not in _PLAIN]
    return [(line, each) for line, each in found if each is not None]


def _ended(line: Line, end: str, runs: Runs) -> Outcome | None:
    name = f"{line.recipe}{end}"
    if name not in variants(line.recipe):
        return None
    config = recipe(name).config
    found = outcome(runs.of(config), config.epochs)
    return found if found.best else None
