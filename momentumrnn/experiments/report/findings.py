"""What the rows of a table say together, in sentences: gains over the plain network, ours and the paper's."""

from collections.abc import Sequence
from statistics import mean

from ..exhibits import Exhibit, Line
from ..paper import CONTROLS, Published, recipe, variants
from .gather import Outcome, Runs
from .numbers import against_seeds, compared
from .tables import QUOTED, TRAINED, paired, signed

_PLAIN = ("LSTM", "DTRIV")
_SAID = {
    "control better": "better than",
    "no difference seen": "not to be told from",
    "momentum better": "worse than",
    "one seed: no verdict": "no verdict, for want of seeds, beside",
    "": "not at the end, beside",
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
                gains = _gains(plain, base, ended)
                found.append(f"{task}, n = {size}{terms}: {gains} {_controls(plain, ended, end, runs)}")
    return found


def _gains(plain: Line, base: Outcome, networks: Sequence[tuple[Line, Outcome]]) -> str:
    """How far each network is above the plain one of the same training, and the paper's above what it has."""
    ours, theirs = [], []
    for line, found in networks:
        rules = (("by validation", found.valid, base.valid), ("best on test", found.best, base.best))
        gains = [f"{signed(against_seeds(a, b), 2)} {rule}" for rule, a, b in rules if a and b]
        ours.append(f"{line.model} {', '.join(gains)}{_few(found, base, plain.model)}")
        # The printed SRLSTM is another cell.
        if line.model != "SRLSTM":
            theirs.append(f"{line.model} {line.published[0].value - plain.published[0].value:+.2f}")
    printed = f" In print: {', '.join(theirs)}, above {_whose(plain.published)}." if theirs else ""
    return (
        f"above our {plain.model} of the same training: {'; '.join(ours)}.{printed} Our {plain.model} has "
        f"{mean(base.best.values()):.2f}, best on test."
    )


def _few(found: Outcome, base: Outcome, plain: str) -> str:
    """Of how many seeds a difference is, where these are not the same for both or not all."""
    if found.seeds == base.seeds and len(base.seeds) > 1 and not found.short and not found.frozen:
        return ""
    failed = f", failed: {len(found.frozen)}" if found.frozen else ""
    return f" (seeds: {len(found.seeds)}, of {plain} {len(base.seeds)}{failed})"


def _whose(published: Sequence[Published]) -> str:
    first, *rest = published
    if not first.quoted:
        return f"its own {first.value:.2f}"
    others = "".join(f", or {each.value:.2f} from {QUOTED[each.source]}" for each in rest)
    return f"the {first.value:.2f} that it quotes from {QUOTED[first.source]}{others}"


def _controls(plain: Line, networks: Sequence[tuple[Line, Outcome]], end: str, runs: Runs) -> str:
    """How controls other than the plain network stand to each network."""
    same = recipe(f"{plain.recipe}{end}").config.id
    parts = []
    for line, with_it in networks:
        groups: dict[str, list[str]] = {}
        for name in (f"{line.recipe}{end}/{key}" for key in CONTROLS):
            if name in variants(line.recipe) and recipe(name).config.id != same:
                without = runs.outcome(recipe(name).config)
                if without:
                    said = _SAID[compared(paired(with_it, without), 1) if without.best else ""]
                    key = name.rpartition("/")[2]
                    groups.setdefault(said, []).append(TRAINED[key].removeprefix("control: "))
        parts += [f"{', '.join(keys)} {said} {line.model}" for said, keys in groups.items()]
        parts += [] if groups else [f"none was run for {line.model}"]
    return f"Controls other than {plain.model}: {'; '.join(parts)}."


def _ended(line: Line, end: str, runs: Runs) -> Outcome | None:
    name = f"{line.recipe}{end}"
    if name not in variants(line.recipe):
        return None
    found = runs.outcome(recipe(name).config)
    return found if found.best else None
