"""The tables of runs: each stands under its own name, with its state; what can't be verified is counted."""

import csv
import shutil
from dataclasses import replace

import pytest
from run_folders import OWN, PMNIST, TINY, Sign, edit, epochs_of, make, rising, write

from momentumrnn.experiments import Watcher, change, train
from momentumrnn.experiments.config import identity
from momentumrnn.experiments.paper.recipes import recipe
from momentumrnn.experiments.runs.gather import gather, outcome
from momentumrnn.experiments.settings import variant_name
from momentumrnn.report import figures, report, tables
from momentumrnn.report.content import content
from momentumrnn.report.settings_tables import hyperparameters
from momentumrnn.report.text import as_csv, as_markdown, results

for needed in ("safetensors", "scipy", "matplotlib", "plotly"):
    pytest.importorskip(needed, reason="runs and reports need the extra momentumrnn[all]")

RECIPE = "figure4/LSTM/Adding/128"
SMALL = ["task.length=6", "task.samples=50", "task.evaluation=20", "hidden_size=4", "epochs=2"]
"""What makes a recipe's run so small that a test can train it."""


class StopFirstSeed(Watcher):
    """Stops seed 0 after its first epoch."""

    def epoch(self, run):
        if run.seed == 0:
            run.stop("the loss is low enough")


@pytest.fixture
def small():
    """A recipe with other settings, and its name."""
    base = recipe(RECIPE).config
    config = change(base, SMALL)
    return config, variant_name(RECIPE, config, base)


def run(config, root, name="", seeds=(0,), watcher=None):
    return train(config, list(seeds), root=root, device="cpu", threads=1, name=name, watcher=watcher)


def column(table, index=0):
    return [row.cells[index] for row in table.rows]


def test_a_recipe_with_other_settings_stands_under_its_own_name(tmp_path, small):
    """In the list of runs and among the other runs; nowhere is it the recipe's run."""
    config, name = small
    assert name.startswith(f"{RECIPE} with task.length=6, ")
    run(config, tmp_path, name)
    runs = gather([tmp_path])
    listed = tables.folders(runs)
    assert column(listed) == [f"{name} ({config.id})"]
    assert (listed.rows[0].data["run"], listed.rows[0].data["name"]) == (config.id, name)
    sections = {section.name: section for section in content(runs).sections}
    (others,) = sections["others"].tables
    assert others.columns[:3] == ("run", "task", "network")
    assert column(others) == [f"{name} ({config.id})"]
    assert others.rows[0].data["name"] == name
    # No row or line of a figure is from this run.
    assert not runs.outcome(recipe(RECIPE).config)
    assert [section.name for section in content(runs).of("run")] == ["others", "runs"]
    assert sections["figure4"].status == "not run"
    assert not any(plot.series for plot in sections["figure4"].plots)
    assert f"| {name} ({config.id}) |" in results(content(runs), [])


def test_another_run_never_has_the_name_of_a_recipe(tmp_path):
    """Whatever its record says: it stands under its id."""
    run(TINY, tmp_path, RECIPE)
    runs = gather([tmp_path])
    assert runs.folders[0].name == RECIPE
    assert column(tables.folders(runs)) == [TINY.id]
    others = tables.others(runs, set())
    assert others.columns[0] == "task"
    assert RECIPE not in as_markdown(others) + as_csv(others)


@pytest.mark.parametrize("name", ["", "a try"])
def test_runs_that_look_alike_have_their_ids(tmp_path, name):
    """They differ in what no column has."""
    configs = [
        replace(TINY, epochs=1),
        replace(TINY, epochs=1, lr=0.0),
        replace(TINY, epochs=1, batch_size=5),
    ]
    for config in configs:
        run(config, tmp_path, name)
    runs = gather([tmp_path])
    for table in (tables.others(runs, set()), tables.folders(runs)):
        titles = {f"{name} ({config.id})" if name else config.id for config in configs}
        assert set(column(table)) == titles
        assert table.columns[0] == "run"
    # Those that the table leaves out are none of them.
    alone = tables.others(runs, {config.id for config in configs[1:]})
    assert alone.columns[0] == ("run" if name else "task")


def test_classes_that_differ_in_their_source_have_their_ids(tmp_path):
    config = replace(OWN, epochs=1)
    run(config, tmp_path / "now")
    shutil.copytree(tmp_path / "now", tmp_path / "before")
    (folder,) = (tmp_path / "before").iterdir()
    sources = {"Sign": "0" * 64}
    edit("config.json", sources=sources)(folder)
    edit("result.json", id=identity(config.to_json(), sources))(folder)
    folder.rename(folder.with_name("older"))
    runs = gather([tmp_path])
    assert [record.state for record in runs.folders] == ["done", "done"]
    table = tables.others(runs, set())
    assert len({row.cells[1:] for row in table.rows}) == 1
    assert len(set(column(table))) == len(table.rows) == 2


def test_runs_without_names_have_no_column_for_them(tmp_path, small):
    config, name = small
    run(TINY, tmp_path)
    unnamed = tables.others(gather([tmp_path]), set())
    assert unnamed.columns[0] == "task"
    assert "name" not in unnamed.rows[0].data
    run(config, tmp_path, name)
    both = tables.others(gather([tmp_path]), set())
    assert column(both) == [TINY.id, f"{name} ({config.id})"]
    assert [row.cells[1:] for row in both.rows if row.data["run"] == TINY.id] == [unnamed.rows[0].cells]
    assert as_csv(both).splitlines()[0].split(",").count("name") == 1


def test_two_runs_of_one_name_are_two_rows(tmp_path):
    """A name is free; the id tells them apart."""
    for lr in (0.1, 0.2):
        run(replace(TINY, lr=lr, epochs=1), tmp_path, "a try")
    runs = gather([tmp_path])
    for table in (tables.folders(runs), tables.others(runs, set())):
        assert len(set(column(table))) == 2
        assert all(text.startswith("a try (") for text in column(table))


def test_seeds_of_one_run_with_two_names(tmp_path):
    config = replace(TINY, epochs=1)
    run(config, tmp_path, "first", seeds=[0])
    run(config, tmp_path, "second", seeds=[1])
    runs = gather([tmp_path])
    assert column(tables.folders(runs)) == [f"first ({config.id})", f"second ({config.id})"]
    assert column(tables.others(runs, set())) == [f"first; second ({config.id})"]


def test_what_a_watcher_stopped_is_listed_with_its_reason(tmp_path):
    run(TINY, tmp_path, seeds=[0, 1], watcher=StopFirstSeed())
    runs = gather([tmp_path])
    table = tables.folders(runs)
    assert column(table, 1) == ["0", "1"]
    reason = "stopped: after epoch 1 of 3: the loss is low enough"
    assert column(table, 2) == [reason, "done: epochs: 3"]
    assert [row.kind for row in table.rows] == ["absent", ""]
    whole = content(runs)
    assert whole.summary[0] == "2 runs of one seed each: 1 done, 1 stopped."
    (section,) = [section for section in whole.sections if section.name == "runs"]
    assert "stopped: stopped early, by patience or by a watcher." in section.notes[0]
    # It is short of what was asked for, so that its numbers are in no mean.
    (row,) = tables.others(runs, set()).rows
    assert {key for key in row.data if "_seed_" in key} == {"best_seed_1", "by_validation_seed_1"}


def test_what_patience_stopped_counts(tmp_path):
    """It went as far as it was to go."""
    config = replace(TINY, lr=0.0, patience=2, epochs=9)
    run(config, tmp_path, seeds=[0, 1])
    runs = gather([tmp_path])
    table = tables.folders(runs)
    reason = "stopped: after epoch 3 of 9: nothing better on the validation set since epoch 1"
    assert [(row.cells[1], row.cells[2], row.kind) for row in table.rows] == [("0, 1", reason, "")]
    (row,) = tables.others(runs, set()).rows
    values = outcome(runs.of(config), 9).best
    assert len(values) == 2
    assert {seed: row.data[f"best_seed_{seed}"] for seed in (0, 1)} == values


def test_older_folders_can_not_be_verified(tmp_path):
    """One sentence counts them. Of damaged and foreign folders, and of newer ones, it says nothing."""
    run(replace(TINY, epochs=1), tmp_path)
    assert tables.folders(gather([tmp_path])).note == ""
    make(tmp_path, PMNIST, 0, rising(0.93, 140))
    sentence = "1 of 2 folders was begun before files carried checksums, so it can't be verified."
    assert tables.folders(gather([tmp_path])).note == sentence
    make(tmp_path, PMNIST, 1, rising(0.93, 20, 20), result=False)
    (tmp_path / "foreign").mkdir()
    damaged = make(tmp_path, PMNIST, 2, rising(0.93, 140))
    (damaged / "result.json").write_text("{")
    runs = gather([tmp_path])
    assert {"done", "short", "damaged", "foreign"} == {record.state for record in runs.folders}
    sentence = "2 of 5 folders were begun before files carried checksums, so they can't be verified."
    assert tables.folders(runs).note == sentence
    assert f"\n\n{sentence}\n\n" in results(content(runs), [])


def test_a_run_without_a_checkpoint_yet_is_no_older_one(tmp_path):
    """As after a kill in its first minute."""
    run(replace(TINY, epochs=1), tmp_path)
    (folder,) = tmp_path.iterdir()
    for name in ("result.json", "resume.pt", "metrics.jsonl", "model.safetensors"):
        (folder / name).unlink()
    runs = gather([tmp_path])
    assert runs.folders[0].state == "short"
    assert tables.folders(runs).note == ""


def test_a_task_of_the_users_is_read_by_its_class(tmp_path):
    run(OWN, tmp_path)
    assert gather([tmp_path]).folders[0].config is None
    runs = gather([tmp_path], [Sign])
    assert runs.folders[0].config == OWN
    assert tables.others(runs, set()).rows[0].cells[:2] == ("Sign(count=50)", "LSTM(), H = 4")


def test_the_report_reads_runs_by_the_users_classes(tmp_path, monkeypatch):
    """With the class it is known which epoch is the best; a result with another one is damaged."""
    pytest.importorskip("jinja2", reason="the page needs the extra momentumrnn[all]")
    # Drawing takes most of the time.
    monkeypatch.setattr(figures, "saved", lambda figure, kind: kind.encode())
    run(replace(OWN, lr=0.05, epochs=4), tmp_path / "runs")
    (folder,) = (tmp_path / "runs").iterdir()
    lines = epochs_of(folder)
    worst = min(lines, key=lambda line: line["test_accuracy"])
    assert worst["test_accuracy"] < max(line["test_accuracy"] for line in lines)
    edit("result.json", selected__by_test=worst)(folder)
    for own, state in (((), "done"), ((Sign,), "damaged")):
        report([tmp_path / "runs"], tmp_path / "out", own=own)
        with (tmp_path / "out/tables/runs.csv").open(newline="") as file:
            (row,) = csv.DictReader(file)
        assert row["state"].startswith(state)


def test_a_folder_that_does_not_count_keeps_the_name_of_its_folder(tmp_path):
    run(replace(TINY, epochs=1), tmp_path / "one", "a name")
    (folder,) = (tmp_path / "one").iterdir()
    (folder / "metrics.jsonl").write_text("{}\n")
    assert column(tables.folders(gather([tmp_path]))) == [folder.name]
    write(folder, "config.json", {"mine": 1})
    assert column(tables.folders(gather([tmp_path]))) == [folder.name]


def test_hyperparameters_are_those_of_the_paper():
    table = hyperparameters("table7")
    values = {(row.data["network"], row.data["dataset"]): row.data for row in table.rows}
    assert values["MomentumLSTM", "PMNIST"]["mu"] == 0.6
    assert values["MomentumLSTM", "TIMIT"]["s"] == 0.1
    assert table.columns[:2] == ("network", "task")
