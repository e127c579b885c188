"""What is published stays valid: ids of runs, names of recipes, and the headline number of each run.

`python tests/test_published.py` writes the golden file. Do so only to add runs and recipes: what the file has
must not change.
"""

import json
from dataclasses import dataclass, field, fields
from pathlib import Path

from momentumrnn.experiments import Config
from momentumrnn.experiments import config as config_module
from momentumrnn.experiments.config import identity, migrate
from momentumrnn.experiments.paper.recipes import RECIPES, recipe, variants
from momentumrnn.experiments.runs.gather import gather

ROOT = Path(__file__).parent.parent
GOLDEN = Path(__file__).parent / "published.json"
RUNS = ("runs", "demo", "alone")


def published():
    """The id of each recipe and variant, and of each run folder in `results` its id and headline numbers."""
    names = [name for base in RECIPES for name in variants(base)]
    found = gather([ROOT / "results" / name for name in RUNS])
    folders = {}
    for run in found.folders:
        name = run.path.relative_to(ROOT / "results").as_posix()
        folders[name] = {"id": run.id, "seed": run.seed, "state": run.state, "epochs": len(run.epochs)}
        for rule in ("by_validation", "by_test", "last"):
            line = (run.result or {}).get("selected", {}).get(rule) or {}
            folders[name][rule] = [line.get("epoch"), line.get(f"test_{run.metric}"), line.get("train_loss")]
    return {"recipes": {name: recipe(name).config.id for name in names}, "runs": folders}


def test_published_ids_names_and_numbers_are_as_they_were():
    golden, now = json.loads(GOLDEN.read_text()), published()
    for kind in golden:
        assert {name: now[kind].get(name) for name in golden[kind]} == golden[kind]


def test_the_golden_file_has_all_that_is_published():
    golden, now = json.loads(GOLDEN.read_text()), published()
    assert {kind: set(now[kind]) for kind in now} == {kind: set(golden[kind]) for kind in golden}


@dataclass(frozen=True)
class LaterConfig(Config):
    """As a later version may have it, with one more field."""

    dropout: float = field(default=0.0, metadata={"since": 3})


def test_a_later_field_changes_no_published_id(monkeypatch):
    """That of a recipe, and that of a folder, which is read as it was written."""
    monkeypatch.setattr(config_module, "SCHEMA", 3)
    golden = json.loads(GOLDEN.read_text())
    for name, expected in golden["recipes"].items():
        config = recipe(name).config
        later = LaterConfig(**{f.name: getattr(config, f.name) for f in fields(config)})
        assert later.id == expected, name
    for name, run in golden["runs"].items():
        record = json.loads((ROOT / "results" / name / "config.json").read_text())
        values = migrate(record["config"], record.get("schema", 1), LaterConfig)
        assert values["dropout"] == 0.0
        assert identity(values, {}, LaterConfig) == run["id"], name


if __name__ == "__main__":
    # A line for each recipe and run, so that a change can be read.
    parts = []
    for kind, entries in published().items():
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entries[name])}" for name in sorted(entries))
        parts.append(f" {json.dumps(kind)}: {{\n{lines}\n }}")
    GOLDEN.write_text("{\n" + ",\n".join(parts) + "\n}\n")
