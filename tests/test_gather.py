"""Run folders in every state, told apart: no number is guessed, nothing odd counts, and nothing raises."""

import csv
import io
import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial, reduce
from importlib import import_module
from operator import getitem
from pathlib import Path
from statistics import mean, stdev

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st
from test_folders import contents
from torch.nn.functional import cross_entropy

import momentumrnn as mr
from momentumrnn.experiments import Adding, Task, configure, demo, train
from momentumrnn.experiments.exhibits import EXHIBITS, exhibit
from momentumrnn.experiments.folders import Folder, RunError
from momentumrnn.experiments.paper import recipe
from momentumrnn.experiments.report import ReportError, demo_tables, figures, report, result_tables, tables
from momentumrnn.experiments.report.gather import gather, outcome, read
from momentumrnn.experiments.report.text import as_csv, as_latex, as_markdown, results
from momentumrnn.experiments.tasks import Data, generator

for needed in ("safetensors", "jinja2", "plotly", "matplotlib"):
    pytest.importorskip(needed, reason="runs and reports need the extra momentumrnn[all]")
stats = pytest.importorskip("scipy.stats", reason="reports need the extra momentumrnn[all]")

# The package has functions of these names, too.
content_module, gather_module = (
    import_module(f"momentumrnn.experiments.report.{name}") for name in ("content", "gather")
)
ROOT = Path(__file__).parent.parent
TINY = configure(
    Adding(length=5, samples=50, evaluation=20), hidden_size=4, batch_size=10, epochs=3, log_every=2
)
ROW = "table11/MomentumLSTM/PMNIST/128"
PMNIST = recipe(ROW).config
ADDING = recipe("figure4/LSTM/Adding/128").config
DEMO = demo.entry(demo.NETWORKS[0])
STEPS = 430  # an epoch of 55 000 images in batches of 128
for_all = partial(settings, derandomize=True, deadline=None, database=None, report_multiple_bugs=False)


@dataclass(frozen=True)
class Sign(Task):
    """A user's own: is the number positive?"""

    count: int = 50
    features = 1
    outputs = 2
    every_step = False
    metric = "accuracy"

    def load(self, folder):
        return Data((), {})

    def rows(self, data, seed, epoch):
        return (torch.randn(self.count, generator=generator(seed, epoch)),)

    def held_out(self, data, part):
        return (torch.randn(20, generator=generator(part)),)

    def batch(self, tensors, constants, rows):
        return rows[0].reshape(1, -1, 1), (rows[0] > 0).long()

    def loss(self, out, target):
        return cross_entropy(out, target, reduction="none")

    def accuracy(self, out, target):
        return (out.argmax(-1) == target).float()


OWN = configure(Sign(), hidden_size=4, batch_size=10, epochs=2)


def write(folder, name, value):
    (folder / name).write_text(json.dumps(value))


def write_lines(folder, lines):
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def epochs_of(folder):
    return [line for line in lines_of(folder) if "epoch" in line]


def make(root, config, seed, test, validation=None, *, wanted=None, frozen=None, result=True, name=""):
    """A folder as `train` leaves it. test, validation: the measure after each epoch, a fraction or a loss.

    wanted: the epochs that were asked for; frozen: the step that was not finite; result: whether it came to
    its end.
    """
    folder = root / (name or f"{config.id}-s{seed}")
    folder.mkdir(parents=True)
    config, metric = replace(config, epochs=wanted or config.epochs), config.task.metric
    write(folder, "config.json", {"config": config.to_json(), "seed": seed})
    each = STEPS if metric == "accuracy" else 100
    lines, epochs = [], []
    for i, value in enumerate(test, 1):
        lines.append({"step": i * each, "loss": 1 / i, "norm": 0.5})
        epochs.append({"epoch": i, "step": i * each, "train_loss": 1 / i + seed / 1000})
        if validation:
            epochs[-1] |= {f"validation_{metric}": validation[i - 1]}
        epochs[-1] |= {f"test_{metric}": value, "test_loss": 0.5 if metric == "accuracy" else value}
        epochs[-1] |= {"seconds": i / 8}
        lines.append(epochs[-1])
    write_lines(folder, lines)
    if result or frozen is not None:
        best = max if metric == "accuracy" else min
        chosen = {
            "by_validation": epochs[validation.index(best(validation))] if validation else None,
            "by_test": epochs[test.index(best(test))] if test else None,
            "last": epochs[-1] if epochs else None,
        }
        about = {"device": "a device", "commit": "c0ffee", "command": "momentumrnn run", "metric": metric}
        failed = None if frozen is None else {"step": frozen, "loss": "nan"}
        found = {"id": config.id, "seed": seed, "epochs": len(test), "selected": chosen, "frozen": failed}
        write(folder, "result.json", about | found)
    return folder


def rising(best, at, count=150):
    """As many accuracies, the best after epoch `at`."""
    return [best if i == at else round(best - abs(i - at) / 1000, 4) for i in range(1, count + 1)]


def states(roots):
    return [(seed.path.name, seed.state) for seed in gather(roots).folders]


def row(runs, name=ROW, table="table11"):
    rows = result_tables.results(exhibit(table), runs).rows
    (found,) = [each for each in rows if each.data["recipe"] == name]
    return found


def said(runs, *names):
    """What the report says with these exhibits alone: all of them take ten times as long.

    In every format but pictures; refuses what is no number.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(content_module, "EXHIBITS", {name: EXHIBITS[name] for name in names or ("table11",)})
        found = content_module.content(runs)
    for table in (table for section in found.sections for table in section.tables):
        as_csv(table)
        as_latex(table)
    for line in (line for section in found.sections for plot in section.plots for line in plot.series):
        assert line.middle
        for value in (*line.middle, *line.low, *line.high, *line.epochs):
            assert math.isfinite(value)
    return results(found, [])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two seeds of a real run, and two of one that a user's class describes."""
    root = tmp_path_factory.mktemp("trained")
    for config in (TINY, OWN):
        train(config, [0, 1], root=root, device="cpu", threads=1, command="momentumrnn run")
    return root


@pytest.fixture
def runs(trained, tmp_path):
    """A copy of these, to be spoilt."""
    return Path(shutil.copytree(trained, tmp_path / "runs"))


@pytest.fixture
def done(tmp_path):
    """A run of a recipe to its end; what validation selects is not the best on the test set."""
    return make(tmp_path, PMNIST, 0, rising(0.93, 140), rising(0.94, 120))


def test_real_runs(trained):
    found = gather([trained])
    assert [(seed.id, seed.seed, seed.state, seed.reason) for seed in found.folders] == [
        *((TINY.id, seed, "done", "epochs: 3") for seed in (0, 1)),
        *((OWN.id, seed, "done", "epochs: 2") for seed in (0, 1)),
    ]
    came = outcome(found.of(TINY), 3)
    for seed in (0, 1):
        folder = Folder(trained, TINY, seed).path
        chosen = json.loads((folder / "result.json").read_text())["selected"]
        assert came.best[seed] == chosen["by_test"]["test_loss"]
        assert came.valid[seed] == chosen["by_validation"]["test_loss"]
        assert came.trained[seed] == chosen["last"]["train_loss"]
        assert len(found.of(TINY)[seed].steps) == 9
    assert (came.seeds, came.short, came.frozen) == ((0, 1), {}, {})
    # Of fewer epochs the beginning, of more none.
    first = outcome(found.of(TINY), 1)
    assert first.best == {s: epochs_of(Folder(trained, TINY, s).path)[0]["test_loss"] for s in (0, 1)}
    assert outcome(found.of(TINY), 4).short == {0: 3, 1: 3}
    assert not outcome(found.of(TINY), 4).best


def test_a_task_of_the_users(trained):
    """Its class is not known here: it counts by the name of its folder, with its own measure."""
    held = gather([trained]).by_id[OWN.id]
    assert [seed.config for seed in held.values()] == [None, None]
    want = [
        100 * max(line["test_accuracy"] for line in epochs_of(Folder(trained, OWN, s).path)) for s in (0, 1)
    ]
    assert outcome(held, 2).best == dict(enumerate(want))
    shown = tables.others(gather([trained]), {TINY.id}).rows
    assert [each.cells[:3] for each in shown] == [("Sign(count=50)", "LSTM(), H = 4", "2")]
    assert shown[0].cells[3] == f"{mean(want):.2f} ± {stdev(want):.2f} (2)"


def test_numbers_of_other_runs_are_in_their_file(trained):
    """As every other number of the report is."""
    runs = gather([trained])
    found = list(csv.DictReader(io.StringIO(as_csv(tables.others(runs, {OWN.id})))))
    assert [each["run"] for each in found] == [TINY.id]
    values = {float(value) for key, value in found[0].items() if key != "run" and value}
    assert set(outcome(runs.of(TINY), 3).best.values()) <= values


def test_results_of_the_users_are_checked(runs):
    """Against the metrics, by which lines they have: how they are selected is the user's."""
    for seed in (0, 1):
        assert read(Folder(runs, OWN, seed).path).state == "done"
    edit("result.json", selected__by_test__test_accuracy=0.999)(Folder(runs, OWN, 0).path)
    edit("result.json", seed=7)(Folder(runs, OWN, 1).path)
    assert [read(Folder(runs, OWN, seed).path).state for seed in (0, 1)] == ["damaged"] * 2


def test_measures_are_not_mixed(runs):
    """One seed of a user's task came to its end; the other was killed before it wrote its result."""
    (Folder(runs, OWN, 1).path / "result.json").unlink()
    held = gather([runs]).by_id[OWN.id]
    want = [max(line["test_accuracy"] for line in epochs_of(Folder(runs, OWN, s).path)) for s in (0, 1)]
    assert outcome(held, 2).best in ({0: 100 * want[0]}, {s: 100 * want[s] for s in (0, 1)})


def test_renamed_runs_of_the_users_stay_apart(runs):
    """Two networks, a seed each, in folders whose names say nothing: no mean of both."""
    for seed, size in ((0, 4), (1, 8)):
        folder = Folder(runs, OWN, seed).path.rename(runs / f"mine{seed}")
        given = json.loads((folder / "config.json").read_text())
        given["config"]["hidden_size"] = size
        write(folder, "config.json", given)
        (folder / "result.json").unlink()
    held = [seeds for seeds in gather([runs]).by_id.values() if any(s.config is None for s in seeds.values())]
    assert all(len({seed.given["hidden_size"] for seed in seeds.values()}) == 1 for seeds in held)


HALVES = {
    "no result": lambda folder: (folder / "result.json").unlink(),
    "half a line": lambda folder: cut(folder, 30),
    "config alone": lambda folder: [(folder / name).unlink() for name in ("result.json", "metrics.jsonl")],
    "no epoch yet": lambda folder: cut(folder, len((folder / "metrics.jsonl").read_bytes()) - 80),
    "an empty log": lambda folder: cut(folder, len((folder / "metrics.jsonl").read_bytes())),
}


def cut(folder, count):
    """As a process leaves it that is killed: without its last bytes and its result."""
    content = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(content[: len(content) - count])
    (folder / "result.json").unlink()


@pytest.mark.parametrize(
    ("halve", "epochs"), list(zip(HALVES.values(), (150, 149, 0, 0, 0), strict=True)), ids=HALVES
)
def test_half_finished(done, halve, epochs):
    halve(done)
    runs = gather([done.parent])
    (found,) = runs.folders
    assert (found.state, found.reason) == ("short", f"epoch {epochs} of 150")
    assert len(found.epochs) == epochs
    came = outcome(runs.of(PMNIST), 150)
    assert came.short == ({} if epochs == 150 else {0: epochs})
    assert came.best == ({0: pytest.approx(93.0)} if epochs == 150 else {})
    assert f"seed 0: epoch {epochs} of 150" in said(runs) or epochs == 150
    # Without a point there is no curve.
    assert (row(runs).cells[9] == "a curve, no verdict") == (epochs == 149)


def test_begun_and_no_further(tmp_path):
    """Each kind of run in its first epoch, as `reproduce` leaves them if it is stopped early."""
    for config in (PMNIST, ADDING, DEMO, TINY, recipe("table1/SRLSTM/PMNIST/256").config):
        make(tmp_path, config, 0, [], result=False)
    assert {seed.state for seed in gather([tmp_path]).folders} == {"short"}
    assert "epoch 0 of 150" in said(gather([tmp_path]), "table11", "table16", "figure4")


def test_the_demo_without_runs(tmp_path):
    """As the command shows it where each network is refused."""
    assert {each.cells[2] for each in demo_tables.demo(gather([tmp_path])).rows} == {"not run"}


def test_an_empty_folder(tmp_path):
    (tmp_path / f"{PMNIST.id}-s0").mkdir()
    (found,) = gather([tmp_path]).folders
    assert (found.state, found.reason) == ("foreign", "it has no config.json")
    assert not gather([tmp_path]).by_id


def test_a_run_that_goes_on_now(runs):
    folder = Folder(runs, TINY, 0)
    with folder.locked():
        assert states([runs])[:2] == [(folder.path.name, "running"), (f"{TINY.id}-s1", "done")]
        (folder.path / "result.json").unlink()
        cut_lines = (folder.path / "metrics.jsonl").read_text().splitlines(keepends=True)
        (folder.path / "metrics.jsonl").write_text("".join(cut_lines[:5]))
        found = read(folder.path)
        assert (found.state, found.reason) == ("running", "epoch 1 of 3")
        assert outcome(gather([runs]).of(TINY), 3).short == {0: 1}
    assert read(folder.path).state == "short"


def test_a_run_that_ends_while_it_is_read(done, monkeypatch):
    """Its last epoch and its result are written after its metrics were read: nothing is damaged by that."""
    ended = contents(done)
    start = ended["metrics.jsonl"].splitlines(keepends=True)
    (done / "metrics.jsonl").write_bytes(b"".join(start[:-2]))
    (done / "result.json").unlink()
    real = gather_module.read_json

    def late(path):
        if path.name == "result.json":
            for name in ("metrics.jsonl", "result.json"):
                (done / name).write_bytes(ended[name])
        return real(path)

    monkeypatch.setattr(gather_module, "read_json", late)
    with Folder(done.parent, PMNIST, 0).locked():
        found = read(done)
    assert found.state == "running"
    assert len(found.epochs) in (149, 150)


COPIES = ("{} (copy)", "{} copy", "{}.bak", "{}-old", "Copy of {}", "a backup")


@pytest.mark.parametrize("name", COPIES)
def test_copies_count_once(done, name):
    copy = done.parent / name.format(done.name)
    shutil.copytree(done, copy)
    found = gather([done.parent])
    assert sorted(seed.state for seed in found.folders) == ["done", "doubled"]
    assert outcome(found.of(PMNIST), 150).best == {0: pytest.approx(93.0)}
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
    found = gather(roots)
    assert sorted(seed.state for seed in found.folders) == ["done", "doubled"]
    # Whichever comes first, the run is at its end.
    assert found.of(PMNIST)[0].state == "done"
    assert row(found).data["seed_0"] == pytest.approx(93.0)


@pytest.mark.parametrize("turned", [False, True])
def test_other_numbers_in_two_roots(done, other, turned):
    """Of equals the first counts, and the other is named."""
    twin = other(rising(0.96, 140))
    roots = [done.parent, twin.parent][:: -1 if turned else 1]
    found = gather(roots)
    assert [seed.state for seed in found.folders] == ["done", "conflict"]
    assert found.folders[1].reason == f"done; beside {roots[0].name}/{done.name}"
    assert found.folders[1].path.parent == roots[1]
    assert outcome(found.of(PMNIST), 150).best == {0: pytest.approx(96.0 if turned else 93.0)}
    assert "1 conflict (the same run and seed as another, with other numbers; not counted)" in said(found)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("same", [True, False])
def test_other_lengths_in_two_roots(done, other, same, turned):
    """The longer one counts, in whatever order they come."""
    begun = other(rising(0.93 if same else 0.96, 140)[:20], result=False)
    found = gather([done.parent, begun.parent][:: -1 if turned else 1])
    told = {seed.path: seed.state for seed in found.folders}
    assert told == {done: "done", begun: "doubled" if same else "conflict"}
    assert outcome(found.of(PMNIST), 150).best == {0: pytest.approx(93.0)}


@pytest.mark.parametrize("turned", [False, True])
def test_a_copy_from_before_it_failed_does_not_hide_that(tmp_path, turned):
    test = rising(0.93, 140)[:20]
    failed = make(tmp_path / "one", PMNIST, 0, test, frozen=20 * STEPS + 3)
    make(tmp_path / "two", PMNIST, 0, test, result=False)
    found = gather([failed.parent, tmp_path / "two"][:: -1 if turned else 1])
    assert outcome(found.of(PMNIST), 150).frozen == {0: 20 * STEPS + 3}


def test_three_of_one(done, other):
    found = gather([other(rising(0.96, 140)).parent, done.parent, other(rising(0.96, 140)[:9]).parent])
    assert [seed.state for seed in found.folders] == ["done", "conflict", "doubled"]


def test_one_folder_by_two_ways_is_no_copy(tmp_path):
    """A root within another."""
    inner = make(tmp_path / "inner", PMNIST, 0, rising(0.93, 140)).parent
    for roots in ([tmp_path, inner], [inner, tmp_path]):
        assert [seed.state for seed in gather(roots).folders] == ["done"]


def test_a_run_is_never_that_of_another_seed(tmp_path):
    """Under a name of its own a folder has only its config.json to say which seed it is."""
    make(tmp_path, PMNIST, 1, rising(0.93, 140))
    stray = make(tmp_path, PMNIST, 0, rising(0.99, 140), name="a copy", result=False)
    given = json.loads((stray / "config.json").read_text())
    for seed in (True, -1, 1.0, "1", None, 2**32):
        write(stray, "config.json", given | {"seed": seed})
        assert read(stray).state in ("foreign", "damaged"), seed
        assert list(gather([tmp_path]).of(PMNIST)) == [1]


FOREIGN = {
    "nothing": {},
    "no config": {"notes.txt": b"mine"},
    "a list": {"config.json": b"[1, 2]"},
    "a number": {"config.json": b"3"},
    "null": {"config.json": b"null"},
    "a string": {"config.json": b'"config"'},
    "of transformers": {"config.json": b'{"architectures": ["GPT2"], "n_layer": 12, "seed": 1}'},
    "a config of another kind": {"config.json": b'{"config": {"epochs": 3}, "seed": 0}'},
    "without a seed": {"config.json": json.dumps({"config": TINY.to_json()}).encode()},
    "a newer version": {
        "config.json": json.dumps({"config": TINY.to_json() | {"new": 1}, "seed": 0}).encode()
    },
    "config is a list": {"config.json": b'{"config": [], "seed": 0}'},
}
UNREADABLE = {
    "binary": {"config.json": bytes(range(256))},
    "empty": {"config.json": b""},
    "half": {"config.json": b'{"config": {"task": "Ad'},
    "deep": {"config.json": b"[" * 100_000},
    "a long number": {"config.json": b"1" * 5000},
}


@pytest.mark.parametrize("name", FOREIGN | UNREADABLE)
def test_foreign_folders(runs, name):
    before = {seed.path: seed for seed in gather([runs]).folders}
    folder = runs / "other"
    folder.mkdir()
    for file, data in (FOREIGN | UNREADABLE)[name].items():
        (folder / file).write_bytes(data)
    found = gather([runs])
    assert {seed.path: seed for seed in found.folders if seed.path != folder} == before
    assert read(folder).state == ("foreign" if name in FOREIGN else "damaged")
    assert len(found.by_id) == 2
    assert "other" in said(found)


def test_what_is_no_folder(runs):
    """Files beside runs, folders where files should be, links that lead nowhere or around."""
    before = states([runs])
    (runs / "file").write_text("mine")
    (runs / "config.json").write_text("{}")
    (runs / ".hidden").mkdir()
    (runs / "broken").symlink_to(runs / "nowhere")
    (runs / "around").symlink_to(runs / "around")
    assert states([runs]) == before
    (runs / "linked").symlink_to(runs)
    odd = [runs / f"odd{i}" for i in range(3)]
    for folder in odd:
        folder.mkdir()
    (odd[0] / "config.json").mkdir()
    (odd[1] / "config.json").symlink_to(odd[1] / "config.json")
    (odd[2] / "config.json").symlink_to(runs / "nowhere")
    assert [read(folder).state for folder in odd] == ["damaged", "damaged", "foreign"]
    assert [state for _, state in states([runs]) if state == "done"] == ["done"] * 4
    said(gather([runs]))


def test_a_run_without_a_result_has_dashes_for_what_only_a_result_says(tmp_path):
    make(tmp_path, PMNIST, 0, rising(0.93, 20, 20), result=False)
    (row,) = tables.folders(gather([tmp_path])).rows
    assert row.cells[3:] == ("-", "-", "-")
    assert row.data["command"] == ""


def test_a_name_of_two_lines_is_one_row(runs):
    (runs / "two\nlines").mkdir()
    table = tables.folders(gather([runs]))
    assert len(as_markdown(table).splitlines()) == 2 + len(table.rows)


def edit(name, **values):
    """Puts values into a JSON file; "a.b": b in a; ...: takes the key away."""

    def damage(folder):
        content = json.loads((folder / name).read_text())
        for key, value in values.items():
            *path, last = key.split("__")
            place = content
            for step in path:
                place = place[step]
            place.pop(last)
            if value is not ...:
                place[last] = value
        write(folder, name, content)

    return damage


def line(number, **values):
    """Puts values into a line of the metrics; a run has two lines an epoch, the second for the epoch."""

    def damage(folder):
        lines = lines_of(folder)
        lines[number] = {k: v for k, v in {**lines[number], **values}.items() if v is not ...}
        write_lines(folder, lines)

    return damage


def replaced(name, data):
    return lambda folder: (folder / name).write_bytes(data)


def moved(*numbers):
    """The metrics with two lines changed for each other, or one left out."""

    def damage(folder):
        lines = lines_of(folder)
        if len(numbers) == 1:
            del lines[numbers[0]]
        else:
            lines[numbers[0]], lines[numbers[1]] = (lines[i] for i in numbers[::-1])
        write_lines(folder, lines)

    return damage


def as_folder(name):
    def damage(folder):
        (folder / name).unlink()
        (folder / name).mkdir()

    return damage


BEST, CHOSEN, LAST = 2 * 140 - 1, 2 * 120 - 1, -1
DAMAGED = {
    "config: no JSON": replaced("config.json", b"{"),
    "config: binary": replaced("config.json", bytes(range(256))),
    "config: a folder": as_folder("config.json"),
    "config: another rate": edit("config.json", config__lr=0.5),
    "config: another seed": edit("config.json", seed=1),
    "metrics: no JSON": replaced("metrics.jsonl", b"{]\n"),
    "metrics: binary": replaced("metrics.jsonl", bytes(range(256))),
    "metrics: a list": replaced("metrics.jsonl", b"[1, 2]\n"),
    "metrics: empty": replaced("metrics.jsonl", b""),
    "metrics: none": lambda folder: (folder / "metrics.jsonl").unlink(),
    "metrics: a folder": as_folder("metrics.jsonl"),
    "metrics: cut in a line": lambda folder: (folder / "metrics.jsonl").write_bytes(
        (folder / "metrics.jsonl").read_bytes()[:-30]
    ),
    "metrics: an empty line": lambda folder: (folder / "metrics.jsonl").write_bytes(
        (folder / "metrics.jsonl").read_bytes().replace(b"\n", b"\n\n", 1)
    ),
    "metrics: epochs out of order": moved(1, 3),
    "metrics: an epoch is missing": moved(1),
    "metrics: an epoch without a step": line(1, step=...),
    "metrics: a step that is text": line(1, step="430"),
    "metrics: no training loss": line(1, train_loss=...),
    "metrics: a training loss that is null": line(1, train_loss=None),
    "metrics: a training loss that is text": line(1, train_loss="0.5"),
    "metrics: a training loss that is NaN": line(LAST, train_loss=math.nan),
    "metrics: a training loss that is infinite": line(1, train_loss=math.inf),
    "metrics: the best epoch is another": line(1, test_accuracy=0.9999),
    "metrics: the best epoch has another value": line(BEST, test_accuracy=0.9301),
    "metrics: the selected epoch is another": line(1, validation_accuracy=0.9999),
    "metrics: an accuracy that is NaN": line(1, test_accuracy=math.nan),
    "metrics: a validation accuracy that is NaN": line(1, validation_accuracy=math.nan),
    "metrics: an accuracy that is text": line(1, test_accuracy="0.5"),
    "metrics: an accuracy that is a list": line(1, test_accuracy=[0.5]),
    "metrics: an accuracy that is true": line(1, test_accuracy=True),
    "metrics: an accuracy below 0": line(1, test_accuracy=-0.5),
    "metrics: a test loss that is text": line(1, test_loss="0.5"),
    "metrics: a test loss that is NaN": line(1, test_loss=math.nan),
    "metrics: a step without a loss": line(0, loss=...),
    "metrics: a step whose loss is null": line(0, loss=None),
    "metrics: a step whose loss is NaN": line(0, loss=math.nan),
    "metrics: a step whose loss is text": line(0, loss="0.5"),
    "metrics: the first epoch ends at step 0": line(1, step=0),
    "metrics: the first epoch ends at step 1": line(1, step=1),
    "metrics: the first epoch ends before it begins": line(1, step=-430),
    "metrics: steps fall": line(3, step=1),
    "metrics: a step of a later time": line(0, step=10**9),
    "result: no JSON": replaced("result.json", b"{"),
    "result: binary": replaced("result.json", bytes(range(256))),
    "result: a list": replaced("result.json", b"[]"),
    "result: of another kind": replaced("result.json", b"{}"),
    "result: a folder": as_folder("result.json"),
    **{
        f"result: no {key}": edit("result.json", **{key: ...})
        for key in ("id", "seed", "epochs", "selected", "frozen")
    },
    "result: of another seed": edit("result.json", seed=1),
    "result: of another run": edit("result.json", id=ADDING.id),
    "result: more epochs": edit("result.json", epochs=151),
    "result: epochs that are text": edit("result.json", epochs="150"),
    "result: epochs below 0": edit("result.json", epochs=-1),
    "result: fewer epochs, with the lines of all": edit("result.json", epochs=130),
    "result: frozen that is true": edit("result.json", frozen=True),
    "result: frozen without a step": edit("result.json", frozen={"loss": "nan"}),
    "result: selected that is a list": edit("result.json", selected=[]),
    "result: no line by test": edit("result.json", selected__by_test=...),
    "result: no line by validation": edit("result.json", selected__by_validation=None),
    "result: a line that is no epoch's": edit("result.json", selected__by_test__test_accuracy=0.99),
    "result: a line that is text": edit("result.json", selected__by_test="best"),
    "result: the last epoch is not the last": lambda folder: edit(
        "result.json", selected__last=lines_of(folder)[1]
    )(folder),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_damaged_folders(done, damage):
    """Not counted, and told with a reason; the seed beside it stays as it is."""
    make(done.parent, PMNIST, 1, rising(0.92, 140))
    before = gather([done.parent]).of(PMNIST)
    assert sorted(before) == [0, 1]
    damage(done)
    found = gather([done.parent])
    assert dict(found.of(PMNIST)) == {1: before[1]}
    (told,) = [seed for seed in found.folders if seed.path == done]
    assert told.state == "damaged"
    assert told.reason
    assert str(done) not in told.reason
    assert f"damaged: {told.reason}" in said(found)


UNVOUCHED = {
    "a loss that is NaN": line(LAST, train_loss=math.nan),
    "NaN": line(1, test_accuracy=math.nan),
    "infinite": line(1, test_accuracy=math.inf),
    "text": line(1, test_accuracy="0.9"),
    "a list": line(1, test_accuracy=[0.9]),
    "true": line(1, test_accuracy=True),
    "above 1": line(1, test_accuracy=1.5),
    "validation is NaN": line(1, validation_accuracy=math.nan),
    "validation is text": line(1, validation_accuracy="0.9"),
}


@pytest.mark.parametrize("damage", UNVOUCHED.values(), ids=UNVOUCHED)
def test_damaged_metrics_that_no_result_vouches_for(done, damage):
    """All 150 epochs are there and would count; an accuracy is a number from 0 to 1."""
    make(done.parent, PMNIST, 1, rising(0.92, 140))
    (done / "result.json").unlink()
    assert row(gather([done.parent])).data["n"] == 2
    damage(done)
    assert read(done).state == "damaged"
    assert row(gather([done.parent])).data["n"] == 1


@pytest.mark.parametrize("task", ["PMNST()", "PMNIST(", "Nothing(1)", "", "-" * 20_000 + "1"])
def test_a_description_that_is_damaged_is_no_class_of_the_users(done, task):
    """The name of the folder is that of a recipe's run, and its description can't be."""
    edit("config.json", config__task=task)(done)
    found = gather([done.parent])
    assert not found.of(PMNIST)
    assert [seed.state for seed in found.folders] in (["damaged"], ["foreign"])
    said(found)


@pytest.mark.parametrize("key", ["device", "commit", "command", "metric"])
@pytest.mark.parametrize("value", [None, 3, [1], {"a": 1}, ...], ids=repr)
def test_what_stands_beside_the_numbers(done, key, value):
    """A result may say what it likes there: the numbers are the same, or it is told to be damaged."""
    edit("result.json", **{key: value})(done)
    found = gather([done.parent])
    if found.folders[0].state != "damaged":
        assert outcome(found.of(PMNIST), 150).best == {0: pytest.approx(93.0)}
    said(found)


# Runs to be damaged, each with the exhibit that shows most of it.
VICTIMS = {ADDING: "figure4", PMNIST: "table11", DEMO: "figure4"}


@pytest.fixture(scope="module")
def beside(tmp_path_factory):
    """Two seeds of each: the folders of the first, what is in them, and what is said of all."""
    root = tmp_path_factory.mktemp("beside")
    for seed in (0, 1):
        make(root, ADDING, seed, [0.2 - i / 100 for i in range(12)], [0.2] * 12)
        make(root, PMNIST, seed, rising(0.93, 3, 4), rising(0.9, 2, 4), wanted=4)
        make(root, DEMO, seed, [0.2, 0.05], [0.2, 0.05], wanted=2)
    pristine = {config: contents(Folder(root, config, 0).path) for config in VICTIMS}
    return root, pristine, {seed.path: seed for seed in gather([root]).folders}


def assert_harmless(beside, config, name, data):
    """One file is another: all that is said of other folders is as it was, and nothing raises."""
    root, pristine, before = beside
    victim = Folder(root, config, 0).path
    try:
        (victim / name).write_bytes(data)
        found = gather([root])
        after = {seed.path: seed for seed in found.folders}
        assert after.keys() == before.keys()
        assert {path for path in before if after[path] != before[path]} <= {victim}
        for other in VICTIMS:
            held = dict(found.of(other))
            assert held.pop(1) == before[Folder(root, other, 1).path]
            assert held.keys() <= {0}
        said(found, VICTIMS[config])
    finally:
        (victim / name).write_bytes(pristine[config][name])


victims = st.sampled_from(list(VICTIMS))
files = st.sampled_from(["config.json", "metrics.jsonl", "result.json"])
edits = st.tuples(st.floats(0, 1), st.integers(0, 3), st.binary(max_size=4))


@for_all(max_examples=100)
@given(victims, files, st.lists(edits, min_size=1, max_size=3))
def test_damaged_bytes_harm_nobody(beside, config, name, edits):
    data = beside[1][config][name]
    for place, length, new in edits:
        at = int(place * len(data))
        data = data[:at] + new + data[at + length :]
    assert_harmless(beside, config, name, data)


@for_all(max_examples=30)
@given(victims, files, st.floats(0, 1))
def test_cut_files_harm_nobody(beside, config, name, end):
    data = beside[1][config][name]
    assert_harmless(beside, config, name, data[: int(end * len(data))])


ODD = (None, True, 0, -1, 1.5, 10**30, math.nan, -math.inf, "", "x", [], [1], {}, {"a": 1}, ...)


def places(value, path=()):
    """Every way into a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, each in inner for found in places(each, (*path, key)))]


@for_all(max_examples=120)
@given(victims, files, st.integers(0, 10**6), st.sampled_from(ODD))
def test_damaged_values_harm_nobody(beside, config, name, place, value):
    """The file is JSON still, with something that should not be there, or without something that should."""
    text = beside[1][config][name].decode()
    content = [json.loads(each) for each in (text.splitlines() if name == "metrics.jsonl" else [text])]
    path = places(content)[1:][place % (len(places(content)) - 1)]
    note(f"{path}: {value!r}")
    inner = reduce(getitem, path[:-1], content)
    inner[path[-1]] = value
    if value is ...:
        del inner[path[-1]]
    assert_harmless(beside, config, name, "".join(json.dumps(each) + "\n" for each in content).encode())


@pytest.fixture(scope="module")
def everything(trained, tmp_path_factory):
    """All of the above in two roots."""
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    shutil.copytree(trained, one, dirs_exist_ok=True)
    for seed, value in enumerate((0.93, 0.931, 0.935)):
        make(one, PMNIST, seed, rising(value, 140), rising(0.94, 120))
    make(one, PMNIST, 3, rising(0.93, 20, 20), result=False)
    make(one, PMNIST, 4, [], frozen=3)
    make(one, recipe(f"{ROW}/same-gain").config, 0, rising(0.94, 130), rising(0.94, 130))
    make(one, ADDING, 0, [0.17 - i / 1000 for i in range(12)], [0.17] * 12)
    make(one, DEMO, 0, [0.2, 0.05], [0.2, 0.05], wanted=2)
    make(two, PMNIST, 0, rising(0.93, 140), rising(0.94, 120))
    make(two, PMNIST, 1, rising(0.96, 140), rising(0.94, 120))
    make(two, PMNIST, 0, rising(0.93, 140)[:9], name="a copy", result=False)
    for i, found in enumerate((FOREIGN | UNREADABLE).values()):
        (two / f"foreign {i} <b>&|_%").mkdir()
        for file, data in found.items():
            (two / f"foreign {i} <b>&|_%" / file).write_bytes(data)
    for i, name in enumerate(("config: no JSON", "metrics: epochs out of order", "result: of another run")):
        DAMAGED[name](make(two, PMNIST, 5 + i, rising(0.99, 140), rising(0.99, 120)))
    (two / "file").write_text("mine")
    return one, two


CHILD = """
import sys
from pathlib import Path
from momentumrnn.experiments.report import report
report([Path(each) for each in sys.argv[2:]], Path(sys.argv[1]))
"""


def test_the_whole_report(everything, tmp_path):
    """All at once succeeds; in another process it is the same to the bit; of nothing, it leaves nothing."""
    before = [contents(root) for root in everything]
    page = report(everything, tmp_path / "out")
    assert page == tmp_path / "out" / "report.html"
    made = contents(tmp_path / "out")
    text = made["results.md"].decode()
    failed = "1 of 5 seeds failed (not finite: seed 4 at step 3)"
    assert f"93.20 ± 0.26 (3); seed 3: epoch 20 of 150, {failed}" in text
    assert "96.0" not in made["tables/table11.csv"].decode()
    assert {"figures/table11.svg", "figures/demo.pdf", "tables/others.csv"} <= set(made)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    command = [sys.executable, "-c", CHILD, str(tmp_path / "again"), *map(str, everything)]
    subprocess.run(command, check=True, env=environment, cwd=tmp_path)
    again = contents(tmp_path / "again")
    assert sorted(again) == sorted(made)
    assert [name for name in made if made[name] != again[name]] == []
    assert [contents(root) for root in everything] == before


@pytest.fixture
def quick(monkeypatch):
    """Pictures without content: drawing takes most of the time."""
    monkeypatch.setattr(figures, "saved", lambda figure, kind: kind.encode())


@pytest.fixture
def nothing(tmp_path):
    """A folder of runs that has none."""
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.mark.usefixtures("quick")
def test_what_an_older_report_left(everything, nothing, tmp_path):
    """It goes, as far as it is a report's."""
    out = tmp_path / "out"
    report([nothing], out)
    bare = contents(out)
    report(everything, out)
    assert set(contents(out)) > set(bare)
    (out / "tables/table1-losses.csv").write_text("old")
    report([nothing], out)
    assert contents(out) == bare


@pytest.mark.usefixtures("quick")
def test_files_of_the_users_stay(nothing, tmp_path):
    """Put into the folder of a report, whatever their names; but those of the report itself."""
    out = tmp_path / "out"
    report([nothing], out)
    mine = ("figures/mine.svg", "figures/setup-2.pdf", "tables/own.csv", "tables/demo-notes.tex", "notes.txt")
    for name in (*mine, "other.html", "figures/raw/photo.svg", "figures/figure12.svg", "tables/table0.csv"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("mine")
    before = contents(out)
    report([nothing], out)
    assert contents(out) == before


@pytest.mark.parametrize("name", ["notes.txt", "figures/figure1.svg", "results.md", "report.html"])
def test_folders_of_the_users_are_refused(nothing, tmp_path, name):
    """One that has something in it, and no report: nothing is written, nothing is taken away."""
    out = tmp_path / "out"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_bytes("no report: \xb1".encode("latin-1"))
    before = contents(out)
    with pytest.raises(ReportError, match="out"):
        report([nothing], out)
    assert contents(out) == before


@pytest.mark.skipif(os.name == "nt", reason="names of files are text there")
@pytest.mark.usefixtures("quick")
def test_what_is_no_text(tmp_path):
    """A folder that is named in another encoding, and half a sign where text should be."""
    folder = make(tmp_path / "runs", PMNIST, 0, rising(0.93, 140))
    own = make(tmp_path / "runs", TINY, 0, [0.5], wanted=1, name="mine", result=False)
    os.mkdir(os.fsencode(tmp_path / "runs") + b"/caf\xe9")
    edit("result.json", device="\ud800", command="\ud800")(folder)
    edit("config.json", config__momentum="Mine('\ud800')")(own)
    report([tmp_path / "runs"], tmp_path / "out")
    text = (tmp_path / "out" / "results.md").read_text()
    assert "caf" in text
    assert "93.00 (1)" in text


@pytest.mark.usefixtures("quick")
def test_a_report_within_its_runs(runs):
    """It is no run, and no news."""
    report([runs], runs / "report")
    first = contents(runs / "report")
    report([runs], runs / "report")
    assert contents(runs / "report") == first


@pytest.mark.usefixtures("quick")
def test_a_place_that_cannot_be_written(nothing, tmp_path):
    """Named, and what is there stays."""
    out = tmp_path / "out"
    out.write_text("mine")
    for place in (out, out / "below"):
        with pytest.raises((ReportError, RunError), match="out"):
            report([nothing], place)
    assert out.read_text() == "mine"
    # A folder where the page should be, a file where tables should be.
    other = tmp_path / "other"
    report([nothing], other)
    (other / "report.html").unlink()
    (other / "report.html").mkdir()
    with pytest.raises((ReportError, RunError), match=r"report\.html"):
        report([nothing], other)
    shutil.rmtree(other / "tables")
    (other / "tables").write_text("mine")
    with pytest.raises((ReportError, RunError), match="tables"):
        report([nothing], other)
    # Nothing half-written is left.
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]


@pytest.mark.usefixtures("quick")
def test_a_folder_that_is_named_as_a_picture(nothing, tmp_path):
    """It is none of ours, and no reason to stop."""
    report([nothing], tmp_path / "out")
    (tmp_path / "out" / "figures" / "demo.svg").mkdir()
    report([nothing], tmp_path / "out")
    assert (tmp_path / "out" / "figures" / "demo.svg").is_dir()


@pytest.mark.usefixtures("quick")
def test_a_report_that_was_killed(nothing, tmp_path):
    """Before it wrote its first file, or its last: the next one takes its place."""
    out = tmp_path / "out"
    out.mkdir()
    (out / ".results.md.partial").write_text("half")
    report([nothing], out)
    made = contents(out)
    for path in (out / "report.html", out / "tables" / "runs.csv"):
        path.unlink()
        path.with_name(f".{path.name}.partial").write_text("half")
    report([nothing], out)
    assert contents(out) == made


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.usefixtures("quick")
def test_a_folder_without_permission(nothing, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out").chmod(0o500)
    try:
        with pytest.raises((ReportError, RunError), match="out"):
            report([nothing], tmp_path / "out")
    finally:
        (tmp_path / "out").chmod(0o700)


def test_roots_that_are_none(tmp_path):
    (tmp_path / "file").write_text("mine")
    for root in (tmp_path / "file", tmp_path / "nowhere"):
        with pytest.raises(ReportError, match=f"expected a folder of runs, .* no folder .*{root.name}"):
            report([root], tmp_path / "out")
    assert not (tmp_path / "out").exists()


COST = {"device": "a device", "date": "2026-01-01", "rows": {}}
MEASURED = {"train_ms": 1.0, "eval_ms": 1.0, "train_mb": 1.0, "eval_mb": 1.0}


COSTS = {
    "a list": [],
    "nothing": {},
    "rows that are a list": {**COST, "rows": [1]},
    "a row that is a number": {**COST, "rows": {"ours/LSTM": 1}},
    "half a row": {**COST, "rows": {"ours/LSTM": {"train_ms": 1.0}}},
    "null": {**COST, "rows": {"ours/LSTM": {**MEASURED, "train_ms": None}}},
    "text": {**COST, "rows": {"ours/LSTM": {**MEASURED, "train_ms": "fast"}}},
    "0": {**COST, "rows": {"ours/LSTM": {**MEASURED, "train_ms": 0}, "listing/LSTM": MEASURED}},
    "NaN": {**COST, "rows": {"ours/LSTM": {**MEASURED, "train_ms": math.nan}}},
}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("content", COSTS.values(), ids=COSTS)
def test_costs_that_are_none(tmp_path, content):
    """They are named, or shown as far as they go."""
    make(tmp_path / "runs", recipe("table1/LSTM/PMNIST/256").config, 0, rising(0.93, 140))
    write(tmp_path / "runs", "cost-mine.json", content)
    try:
        report([tmp_path / "runs"], tmp_path / "out")
    except ReportError as error:
        assert "cost-mine.json" in str(error)  # noqa: PT017  (either will do)


def test_a_momentum_of_the_users(tmp_path):
    """Described by a class of theirs, under the name that `train` gives it."""

    @dataclass(frozen=True)
    class Mine(mr.Momentum):
        rate: float = 0.5

        def decay(self, k):
            return self.rate

    config = replace(TINY, momentum=Mine(), epochs=1)
    train(config, [0], root=tmp_path, device="cpu", threads=1)
    found = gather([tmp_path])
    assert [seed.state for seed in found.folders] == ["done"]
    assert "Mine(rate=0.5)" in found.by_id[config.id][0].given["momentum"]
    assert "Mine(rate=0.5)" in tables.others(found, set()).rows[0].cells[1]
