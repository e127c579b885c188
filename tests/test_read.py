"""The folder of a run in every state, told apart: no number is guessed, and nothing raises."""

import contextlib
import json
import math
import shutil
from dataclasses import dataclass
from functools import partial, reduce
from operator import getitem
from pathlib import Path

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from report_output import row, said
from run_folders import (
    ADDING,
    DEMO,
    OWN,
    PMNIST,
    TINY,
    contents,
    edit,
    lines_of,
    make,
    make_done,
    rising,
    states,
    train_all,
    write,
    write_lines,
)

from momentumrnn.experiments import train
from momentumrnn.experiments.paper.recipes import recipe
from momentumrnn.experiments.runs import read as read_module
from momentumrnn.experiments.runs.checksums import seal_json
from momentumrnn.experiments.runs.gather import gather, outcome
from momentumrnn.experiments.runs.read import read
from momentumrnn.experiments.runs.store import Folder, read_verified

for needed in ("safetensors", "jinja2", "plotly", "matplotlib"):
    pytest.importorskip(needed, reason="runs and reports need the extra momentumrnn[all]")

for_all = partial(settings, derandomize=True, deadline=None, database=None, report_multiple_bugs=False)


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


def test_results_of_the_users_are_checked(runs):
    """Against the metrics, by which lines they have: how they are selected is the user's."""
    for seed in (0, 1):
        assert read(Folder(runs, OWN, seed).path).state == "done"
    edit("result.json", selected__by_test__test_accuracy=0.999)(Folder(runs, OWN, 0).path)
    edit("result.json", seed=7)(Folder(runs, OWN, 1).path)
    assert [read(Folder(runs, OWN, seed).path).state for seed in (0, 1)] == ["damaged"] * 2


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
    (record,) = runs.folders
    assert (record.state, record.reason) == ("short", f"epoch {epochs} of 150")
    assert len(record.epochs) == epochs
    result = outcome(runs.of(PMNIST), 150)
    assert result.short == ({} if epochs == 150 else {0: epochs})
    assert result.best == ({0: pytest.approx(93.0)} if epochs == 150 else {})
    assert f"seed 0: epoch {epochs} of 150" in said(runs) or epochs == 150
    # Without a point there is no curve.
    assert (row(runs).cells[9] == "a curve, no verdict") == (epochs == 149)


def test_begun_and_no_further(tmp_path):
    """Each kind of run in its first epoch, as `reproduce` leaves them if it is stopped early."""
    for config in (PMNIST, ADDING, DEMO, TINY, recipe("table1/SRLSTM/PMNIST/256").config):
        make(tmp_path, config, 0, [], result=False)
    assert {seed.state for seed in gather([tmp_path]).folders} == {"short"}
    assert "epoch 0 of 150" in said(gather([tmp_path]), "table11", "table16", "figure4")


def test_an_empty_folder(tmp_path):
    (tmp_path / f"{PMNIST.id}-s0").mkdir()
    (record,) = gather([tmp_path]).folders
    assert (record.state, record.reason) == ("foreign", "it has no config.json")
    assert not gather([tmp_path]).by_id


def test_a_run_that_goes_on_now(runs):
    folder = Folder(runs, TINY, 0)
    with folder.locked():
        assert states([runs])[:2] == [(folder.path.name, "running"), (f"{TINY.id}-s1", "done")]
    assert read(folder.path).state == "done"


def test_a_run_that_is_in_its_second_epoch(done):
    """By a process of version 0.2.0, whose checkpoint vouches for no line."""
    with Folder(done.parent, PMNIST, 0).locked():
        (done / "result.json").unlink()
        write_lines(done, lines_of(done)[:3])
        record = read(done)
        assert (record.state, record.reason) == ("running", "epoch 1 of 150")
        assert outcome(gather([done.parent]).of(PMNIST), 150).short == {0: 1}
    assert read(done).state == "short"


def test_a_run_that_ends_while_it_is_read(done, monkeypatch):
    """Its last epoch and its result are written after its metrics were read: nothing is damaged by that."""
    ended = contents(done)
    start = ended["metrics.jsonl"].splitlines(keepends=True)
    (done / "metrics.jsonl").write_bytes(b"".join(start[:-2]))
    (done / "result.json").unlink()

    def late(path):
        if path.name == "result.json":
            for name in ("metrics.jsonl", "result.json"):
                (done / name).write_bytes(ended[name])
        return read_verified(path)

    monkeypatch.setattr(read_module, "read_verified", late)
    with Folder(done.parent, PMNIST, 0).locked():
        record = read(done)
    assert record.state == "running"
    assert len(record.epochs) in (149, 150)


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
    after = gather([runs])
    assert {seed.path: seed for seed in after.folders if seed.path != folder} == before
    assert read(folder).state == ("foreign" if name in FOREIGN else "damaged")
    assert len(after.by_id) == 2
    assert "other" in said(after)


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
    strange = [runs / f"odd{i}" for i in range(3)]
    for folder in strange:
        folder.mkdir()
    (strange[0] / "config.json").mkdir()
    (strange[1] / "config.json").symlink_to(strange[1] / "config.json")
    (strange[2] / "config.json").symlink_to(runs / "nowhere")
    assert [read(folder).state for folder in strange] == ["damaged", "damaged", "foreign"]
    assert [state for _, state in states([runs]) if state == "done"] == ["done"] * 4
    said(gather([runs]))


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
    after = gather([done.parent])
    assert dict(after.of(PMNIST)) == {1: before[1]}
    (record,) = [seed for seed in after.folders if seed.path == done]
    assert record.state == "damaged"
    assert record.reason
    assert str(done) not in record.reason
    assert f"damaged: {record.reason}" in said(after)


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
    runs = gather([done.parent])
    assert not runs.of(PMNIST)
    assert [seed.state for seed in runs.folders] in (["damaged"], ["foreign"])
    said(runs)


@pytest.mark.parametrize("key", ["device", "commit", "command", "metric"])
@pytest.mark.parametrize("value", [None, 3, [1], {"a": 1}, ...], ids=repr)
def test_what_stands_beside_the_numbers(done, key, value):
    """A result may say what it likes there: the numbers are the same, or it is told to be damaged."""
    edit("result.json", **{key: value})(done)
    runs = gather([done.parent])
    if runs.folders[0].state != "damaged":
        assert outcome(runs.of(PMNIST), 150).best == {0: pytest.approx(93.0)}
    said(runs)


# Runs to be damaged, each with the exhibit that shows most of it.
VICTIMS = {ADDING: "figure4", PMNIST: "table11", DEMO: "figure4", TINY: "table11"}


@dataclass(repr=False)  # it would be long, and hypothesis shows it
class Beside:
    """Folders of runs: what is in those of the first seed, and what is read of all."""

    root: Path
    pristine: dict
    records: dict


@pytest.fixture(scope="module")
def beside(tmp_path_factory):
    """Two seeds of each."""
    root = tmp_path_factory.mktemp("beside")
    train(TINY, [0, 1], root=root, device="cpu", threads=1)
    for seed in (0, 1):
        make(root, ADDING, seed, [0.2 - i / 100 for i in range(12)], [0.2] * 12)
        make(root, PMNIST, seed, rising(0.93, 3, 4), rising(0.9, 2, 4), wanted=4)
        make(root, DEMO, seed, [0.2, 0.05], [0.2, 0.05], wanted=2)
    pristine = {config: contents(Folder(root, config, 0).path) for config in VICTIMS}
    return Beside(root, pristine, {seed.path: seed for seed in gather([root]).folders})


def assert_harmless(beside, config, name, data):
    """One file is another: all that is said of other folders is as it was, and nothing raises."""
    root, before = beside.root, beside.records
    victim = Folder(root, config, 0).path
    try:
        (victim / name).write_bytes(data)
        runs = gather([root])
        by_path = {seed.path: seed for seed in runs.folders}
        assert by_path.keys() == before.keys()
        assert {path for path in before if by_path[path] != before[path]} <= {victim}
        for other in VICTIMS:
            seeds = dict(runs.of(other))
            assert seeds.pop(1) == before[Folder(root, other, 1).path]
            assert seeds.keys() <= {0}
        said(runs, VICTIMS[config])
    finally:
        (victim / name).write_bytes(beside.pristine[config][name])


victims = st.sampled_from(list(VICTIMS))
files = st.sampled_from(["config.json", "metrics.jsonl", "result.json"])
edits = st.tuples(st.floats(0, 1), st.integers(0, 3), st.binary(max_size=4))


@for_all(max_examples=100)
@given(victims, files, st.lists(edits, min_size=1, max_size=3))
def test_damaged_bytes_harm_nobody(beside, config, name, edits):
    data = beside.pristine[config][name]
    for place, length, new in edits:
        at = int(place * len(data))
        data = data[:at] + new + data[at + length :]
    assert_harmless(beside, config, name, data)


@for_all(max_examples=30)
@given(victims, files, st.floats(0, 1))
def test_cut_files_harm_nobody(beside, config, name, end):
    data = beside.pristine[config][name]
    assert_harmless(beside, config, name, data[: int(end * len(data))])


ODD = (None, True, 0, -1, 1.5, 10**30, math.nan, -math.inf, "", "x", [], [1], {}, {"a": 1}, ...)


def places(value, path=()):
    """Every way into a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(way for key, part in inner for way in places(part, (*path, key)))]


@for_all(max_examples=140)
@given(victims, files, st.integers(0, 10**6), st.sampled_from(ODD))
def test_damaged_values_harm_nobody(beside, config, name, place, value):
    """The file is JSON still, with something that should not be there, or without something that should.

    Where it had a checksum, that is right.
    """
    text = beside.pristine[config][name].decode()
    content = [json.loads(part) for part in (text.splitlines() if name == "metrics.jsonl" else [text])]
    sealed = content[0].pop("checksum", None) is not None
    path = places(content)[1:][place % (len(places(content)) - 1)]
    note(f"{path}: {value!r}")
    inner = reduce(getitem, path[:-1], content)
    inner[path[-1]] = value
    if value is ...:
        del inner[path[-1]]
    data = "".join(json.dumps(part) + "\n" for part in content).encode()
    if sealed and content and isinstance(content[0], dict):
        # There is no checksum of what is no JSON.
        with contextlib.suppress(ValueError):
            data = seal_json(content[0])
    assert_harmless(beside, config, name, data)
