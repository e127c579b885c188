"""All runs of some folders: copies count once, what differs is told, and each run has its own measure."""

import csv
import io
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev

import pytest
from report_output import row, said
from run_folders import (
    OWN,
    PMNIST,
    STEPS,
    TINY,
    contents,
    edit,
    epochs_of,
    lines_of,
    make,
    make_done,
    rising,
    states,
    train_all,
    write_lines,
)

import momentumrnn as mr
from momentumrnn.experiments import RunError, train
from momentumrnn.experiments.config import SCHEMA
from momentumrnn.experiments.runs.gather import gather, outcome
from momentumrnn.experiments.runs.read import read
from momentumrnn.experiments.runs.store import Folder, read_json
from momentumrnn.report import demo_tables, tables
from momentumrnn.report.text import as_csv, as_markdown

for needed in ("safetensors", "jinja2", "plotly", "matplotlib"):
    pytest.importorskip(needed, reason="runs and reports need the extra momentumrnn[all]")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train_all(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def runs(trained, tmp_path):
    """A copy of these, to be spoilt."""
    return Path(shutil.copytree(trained, tmp_path / "runs"))


@pytest.fixture
def done(tmp_path):
    return make_done(tmp_path)


def test_real_runs(trained):
    runs = gather([trained])
    assert [(seed.id, seed.seed, seed.state, seed.reason) for seed in runs.folders] == [
        *((TINY.id, seed, "done", "epochs: 3") for seed in (0, 1)),
        *((OWN.id, seed, "done", "epochs: 2") for seed in (0, 1)),
    ]
    result = outcome(runs.of(TINY), 3)
    for seed in (0, 1):
        folder = Folder(trained, TINY, seed).path
        chosen = json.loads((folder / "result.json").read_text())["selected"]
        assert result.best[seed] == chosen["by_test"]["test_loss"]
        assert result.valid[seed] == chosen["by_validation"]["test_loss"]
        assert result.trained[seed] == chosen["last"]["train_loss"]
        assert len(runs.of(TINY)[seed].steps) == 9
    assert (result.seeds, result.short, result.frozen) == ((0, 1), {}, {})
    # Of fewer epochs the beginning, of more none.
    first = outcome(runs.of(TINY), 1)
    assert first.best == {s: epochs_of(Folder(trained, TINY, s).path)[0]["test_loss"] for s in (0, 1)}
    assert outcome(runs.of(TINY), 4).short == {0: 3, 1: 3}
    assert not outcome(runs.of(TINY), 4).best


def test_a_task_of_the_users(trained):
    """Its class is not known here: it counts by the name of its folder, with its own measure."""
    seeds = gather([trained]).by_id[OWN.id]
    assert [seed.config for seed in seeds.values()] == [None, None]
    expected = [
        100 * max(line["test_accuracy"] for line in epochs_of(Folder(trained, OWN, s).path)) for s in (0, 1)
    ]
    assert outcome(seeds, 2).best == dict(enumerate(expected))
    lines = tables.others(gather([trained]), {TINY.id}).rows
    assert [line.cells[:3] for line in lines] == [("Sign(count=50)", "LSTM(), H = 4", "2")]
    assert lines[0].cells[3] == f"{mean(expected):.2f} ± {stdev(expected):.2f} (2)"


def test_numbers_of_other_runs_are_in_their_file(trained):
    """As every other number of the report is."""
    runs = gather([trained])
    rows = list(csv.DictReader(io.StringIO(as_csv(tables.others(runs, {OWN.id})))))
    assert [line["run"] for line in rows] == [TINY.id]
    values = {float(value) for key, value in rows[0].items() if key != "run" and value}
    assert set(outcome(runs.of(TINY), 3).best.values()) <= values


def test_measures_are_not_mixed(runs):
    """One seed of a user's task came to its end; the other was killed before it wrote its result."""
    (Folder(runs, OWN, 1).path / "result.json").unlink()
    seeds = gather([runs]).by_id[OWN.id]
    expected = [max(line["test_accuracy"] for line in epochs_of(Folder(runs, OWN, s).path)) for s in (0, 1)]
    assert outcome(seeds, 2).best in ({0: 100 * expected[0]}, {s: 100 * expected[s] for s in (0, 1)})


@pytest.mark.parametrize("metric", [..., 3, "precision", [1], {}], ids=repr)
def test_a_measure_that_the_result_says(runs, metric):
    """Which of both selects is the user's. What the result does not say is told by the lines."""
    folder = Folder(runs, OWN, 0).path
    assert read(folder).metric == "accuracy"
    edit("result.json", metric="loss")(folder)
    assert read(folder).metric == "loss"
    losses = [line["test_loss"] for line in epochs_of(folder)]
    assert outcome({0: read(folder)}, 2).best == {0: min(losses)}
    edit("result.json", metric=metric)(folder)
    assert read(folder).metric == "accuracy"


NEWER = {
    "task": "Adding(length=5, samples=50, evaluation=20, noise=0.5)",
    "cell": "LSTM(peephole=True)",
    "momentum": "HeavyBall(mu=0.6, step=1.0, warmup=3)",
    "init": "Paper(forget_bias=1.0, gain=2.0)",
}


@pytest.mark.parametrize(("name", "text"), NEWER.items(), ids=NEWER)
@pytest.mark.parametrize("config", [TINY, OWN], ids=["ours", "the user's"])
def test_a_newer_description_of_a_class_of_ours(runs, config, name, text):
    """It is no class of the user's, also where another class is one."""
    folder = Folder(runs, config, 0).path.rename(runs / "newer")
    edit("config.json", **{f"config__{name}": text})(folder)
    record = read(folder, [type(config.task)] if config is OWN else [])
    assert record.state == "foreign"
    assert record.reason.startswith(f"its config.json is of another kind or version: {name}: ")
    assert text in record.reason
    assert sorted(gather([runs]).of(config)) == [1]
    # Unless it is known as one, by the hash of its source.
    kind = text.partition("(")[0]
    edit("config.json", sources={kind: "c0ffee"})(folder)
    (folder / "result.json").unlink()
    assert read(folder).state == "short"
    assert read(folder).config is None


def test_a_record_of_a_newer_version_is_refused(runs):
    """By the reader and by training, which leaves it as it is."""
    folder = Folder(runs, TINY, 0).path
    before = read_json(folder / "config.json")
    edit("config.json", schema=SCHEMA + 1, config={**before["config"], "dropout": 0.5})(folder)
    record = read(folder)
    assert record.state == "foreign"
    assert record.reason.startswith(f"its config.json has schema {SCHEMA + 1}")
    assert "update momentumrnn" in record.reason
    content = contents(folder)
    expected = rf"config\.json has schema {SCHEMA + 1}.*update momentumrnn"
    with pytest.raises(RunError, match=expected) as refusal:
        train(TINY, [0], root=runs, device="cpu", threads=1)
    assert str(folder) in str(refusal.value)
    assert contents(folder) == content
    assert sorted(gather([runs]).of(TINY)) == [1]


def test_renamed_runs_of_the_users_stay_apart(runs):
    """Two networks, a seed each, in folders whose names say nothing: no mean of both."""
    for seed, size in ((0, 4), (1, 8)):
        folder = Folder(runs, OWN, seed).path.rename(runs / f"mine{seed}")
        edit("config.json", config__hidden_size=size)(folder)
        (folder / "result.json").unlink()
    own = [seeds for seeds in gather([runs]).by_id.values() if any(s.config is None for s in seeds.values())]
    assert [{seed.given["hidden_size"] for seed in seeds.values()} for seeds in own] == [{4}, {8}]


def test_the_demo_without_runs(tmp_path):
    """As the command shows it where each network is refused."""
    assert {line.cells[2] for line in demo_tables.demo(gather([tmp_path])).rows} == {"not run"}


COPIES = ("{} (copy)", "{} copy", "{}.bak", "{}-old", "Copy of {}", "a backup")


@pytest.mark.parametrize("name", COPIES)
def test_copies_count_once(done, name):
    copy = done.parent / name.format(done.name)
    shutil.copytree(done, copy)
    runs = gather([done.parent])
    assert sorted(seed.state for seed in runs.folders) == ["done", "doubled"]
    assert outcome(runs.of(PMNIST), 150).best == {0: pytest.approx(93.0)}
    # By itself it is the run.
    shutil.rmtree(done)
    assert states([done.parent]) == [(copy.name, "done")]
    assert outcome(gather([done.parent]).of(PMNIST), 150).best == {0: pytest.approx(93.0)}


@pytest.fixture
def other(done, tmp_path_factory):
    """Another folder of runs with the same run, by a function of what it is to have."""

    def put(test, **options):
        root = tmp_path_factory.mktemp("other")
        return make(root, PMNIST, 0, test, rising(0.94, 120)[: len(test)], **options)

    return put


@pytest.mark.parametrize("turned", [False, True])
def test_the_same_in_two_roots(done, other, turned):
    """Seconds may differ."""
    twin = other(rising(0.93, 140))
    write_lines(twin, [line | ({"seconds": 1.0} if "epoch" in line else {}) for line in lines_of(twin)])
    (twin / "result.json").unlink()
    roots = [done.parent, twin.parent][:: -1 if turned else 1]
    runs = gather(roots)
    assert sorted(seed.state for seed in runs.folders) == ["done", "doubled"]
    # Whichever comes first, the run is at its end.
    assert runs.of(PMNIST)[0].state == "done"
    assert row(runs).data["seed_0"] == pytest.approx(93.0)


@pytest.mark.parametrize("turned", [False, True])
def test_other_numbers_in_two_roots(done, other, turned):
    """Of equals the first counts, and the other is named."""
    twin = other(rising(0.96, 140))
    roots = [done.parent, twin.parent][:: -1 if turned else 1]
    runs = gather(roots)
    assert [seed.state for seed in runs.folders] == ["done", "conflict"]
    assert runs.folders[1].reason == f"done; beside {roots[0].name}/{done.name}"
    assert runs.folders[1].path.parent == roots[1]
    assert outcome(runs.of(PMNIST), 150).best == {0: pytest.approx(96.0 if turned else 93.0)}
    assert "1 conflict (the same run as another, with other numbers or data; not counted)" in said(runs)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("same", [True, False])
def test_other_lengths_in_two_roots(done, other, same, turned):
    """The longer one counts, in whatever order they come."""
    begun = other(rising(0.93 if same else 0.96, 140)[:20], result=False)
    runs = gather([done.parent, begun.parent][:: -1 if turned else 1])
    by_path = {seed.path: seed.state for seed in runs.folders}
    assert by_path == {done: "done", begun: "doubled" if same else "conflict"}
    assert outcome(runs.of(PMNIST), 150).best == {0: pytest.approx(93.0)}


@pytest.mark.parametrize("turned", [False, True])
def test_a_copy_from_before_it_failed_does_not_hide_that(tmp_path, turned):
    test = rising(0.93, 140)[:20]
    failed = make(tmp_path / "one", PMNIST, 0, test, frozen=20 * STEPS + 3)
    make(tmp_path / "two", PMNIST, 0, test, result=False)
    runs = gather([failed.parent, tmp_path / "two"][:: -1 if turned else 1])
    assert outcome(runs.of(PMNIST), 150).frozen == {0: 20 * STEPS + 3}


@pytest.mark.parametrize("where", ["config.json", "result.json"])
@pytest.mark.parametrize("turned", [False, True])
def test_other_data_in_two_roots(trained, tmp_path, where, turned):
    """Seeds of one run stand for the same data: those of the first. An older result has them."""
    roots = [Path(shutil.copytree(trained, tmp_path / name)) for name in ("one", "two")]
    folders = [Folder(root, TINY, seed).path for root, seed in ((roots[0], 0), (roots[1], 1), (roots[1], 0))]
    shutil.rmtree(Folder(roots[0], TINY, 1).path)
    assert dict.fromkeys(gather(roots).of(TINY)) == {0: None, 1: None}
    for folder in folders[1:]:
        edit("result.json", data={"test": "c0ffee"})(folder)
        edit("config.json", data={"test": "c0ffee"} if where == "config.json" else None)(folder)
    runs = gather(roots[:: -1 if turned else 1])
    states = {record.path: record.state for record in runs.folders}
    expected = ("conflict", "done", "done") if turned else ("done", "conflict", "conflict")
    assert tuple(states[folder] for folder in folders) == expected
    assert sorted(runs.of(TINY)) == ([0, 1] if turned else [0])
    first = f"two/{TINY.id}-s0" if turned else f"one/{TINY.id}-s0"
    reasons = {record.reason for record in runs.folders if record.state == "conflict"}
    assert reasons == {f"done; other data than {first}"}


def test_data_that_nobody_knows_are_no_other_data(trained, tmp_path):
    root = Path(shutil.copytree(trained, tmp_path / "runs"))
    for name in ("config.json", "result.json"):
        edit(name, data=None if name == "config.json" else ...)(Folder(root, TINY, 0).path)
    assert sorted(gather([root]).of(TINY)) == [0, 1]


def test_three_of_one(done, other):
    runs = gather([other(rising(0.96, 140)).parent, done.parent, other(rising(0.96, 140)[:9]).parent])
    assert [seed.state for seed in runs.folders] == ["done", "conflict", "doubled"]


def test_one_folder_by_two_ways_is_no_copy(tmp_path):
    """A root within another."""
    inner = make(tmp_path / "inner", PMNIST, 0, rising(0.93, 140)).parent
    for roots in ([tmp_path, inner], [inner, tmp_path]):
        assert [seed.state for seed in gather(roots).folders] == ["done"]


def test_a_run_without_a_result_has_dashes_for_what_only_a_result_says(tmp_path):
    make(tmp_path, PMNIST, 0, rising(0.93, 20, 20), result=False)
    (row,) = tables.folders(gather([tmp_path])).rows
    assert row.cells[3:] == ("-", "-", "-")
    assert row.data["command"] == ""


def test_a_name_of_two_lines_is_one_row(runs):
    (runs / "two\nlines").mkdir()
    table = tables.folders(gather([runs]))
    assert len(as_markdown(table).splitlines()) == 2 + len(table.rows)


def test_a_momentum_of_the_users(tmp_path):
    """Described by a class of theirs, under the name that `train` gives it."""

    @dataclass(frozen=True)
    class Mine(mr.Momentum):
        rate: float = 0.5

        def decay(self, k):
            return self.rate

    config = replace(TINY, momentum=Mine(), epochs=1)
    train(config, [0], root=tmp_path, device="cpu", threads=1)
    runs = gather([tmp_path])
    assert [seed.state for seed in runs.folders] == ["done"]
    assert "Mine(rate=0.5)" in runs.by_id[config.id][0].given["momentum"]
    assert "Mine(rate=0.5)" in tables.others(runs, set()).rows[0].cells[1]
