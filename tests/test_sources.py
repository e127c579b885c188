"""Other data, and classes of the user's that have changed: a run does not go on with them."""

import contextlib
import importlib.util
import json
import sys
from dataclasses import dataclass, replace

import pytest
import torch
from run_folders import StopAt, contents, edit, epochs_of, make

from momentumrnn.experiments import RunError, Task, configure, train
from momentumrnn.experiments.config import identity
from momentumrnn.experiments.runs.gather import gather
from momentumrnn.experiments.runs.neighbours import check_data
from momentumrnn.experiments.runs.read import read
from momentumrnn.experiments.runs.store import Folder, read_json, same_data
from momentumrnn.experiments.tasks import Data
from momentumrnn.experiments.tasks.base import sha256

pytest.importorskip("safetensors", reason="weights are written by the extra momentumrnn[all]")


def fit(config, root, seeds=(0,), **options):
    return train(config, seeds, root=root, device="cpu", threads=1, **options)


def files(folder):
    return {name: content for name, content in contents(folder).items() if not name.endswith("lock")}


@dataclass(frozen=True)
class FromFile(Task):
    """A user's own task, whose numbers lie in a file."""

    hashed: bool = False
    features = 1
    outputs = 1
    every_step = False
    metric = "loss"

    def load(self, folder):
        numbers = torch.tensor(json.loads((folder / "numbers.json").read_text()))
        return Data((numbers,), {"numbers.json": sha256(numbers)} if self.hashed else {})

    def rows(self, data, seed, epoch):
        return (torch.arange(len(data.tensors[0])),)

    def held_out(self, data, part):
        return (torch.arange(4),)

    def batch(self, tensors, constants, rows):
        numbers = tensors[0][rows[0]]
        return numbers.reshape(1, -1, 1), numbers

    def loss(self, out, target):
        return (out.squeeze(-1) - target).square()


@pytest.mark.parametrize("hashed", [False, True])
def test_a_run_goes_on_with_the_data_that_it_was_begun_with(tmp_path, hashed):
    """Of a user's own task too, whether it says what its data are or not."""
    numbers = [i / 10 for i in range(20)]
    file = tmp_path / "numbers.json"
    file.write_text(json.dumps(numbers))
    config = configure(FromFile(hashed), hidden_size=4, batch_size=10, epochs=1)
    longer, root = replace(config, epochs=2), tmp_path / "runs"
    fit(config, root, data=tmp_path)
    folder = Folder(root, config, 0).path
    name = "numbers.json" if hashed else "tensors"
    assert read_json(folder / "config.json")["data"].keys() == {name, "tensors"}
    fit(longer, root, data=tmp_path)
    assert len(epochs_of(folder)) == 2
    before = files(folder)
    file.write_text(json.dumps([*numbers[:-1], 0.5]))
    # Whether it is over or not, also by a process that was stopped before it had a result.
    for epochs in (1, 2, 3):
        with pytest.raises(RunError, match=f"other data .*{name}") as refusal:
            fit(replace(config, epochs=epochs), root, data=tmp_path)
        assert str(folder) in str(refusal.value)
        assert files(folder) == before
    file.write_text(json.dumps(numbers))
    fit(replace(config, epochs=3), root, data=tmp_path)
    assert len(epochs_of(folder)) == 3


def test_a_run_that_was_stopped_is_refused_other_data(tmp_path):
    """Its checkpoint knows them even if config.json is that of an older version."""
    file = tmp_path / "numbers.json"
    file.write_text(json.dumps([i / 10 for i in range(20)]))
    config = configure(FromFile(), hidden_size=4, batch_size=5, epochs=2, log_every=1)
    with pytest.raises(KeyboardInterrupt):
        fit(config, tmp_path, data=tmp_path, watcher=StopAt(2))
    folder = Folder(tmp_path, config, 0).path
    edit("config.json", data=...)(folder)
    file.write_text(json.dumps([i / 20 for i in range(20)]))
    with pytest.raises(RunError, match="other data"):
        fit(config, tmp_path, data=tmp_path)


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        ({"a": "1"}, {"a": "1"}, True),
        ({"a": "1"}, {"a": "2"}, False),
        ({"a": "1"}, {"b": "1"}, False),
        ({"a": "1"}, {"a": "1", "tensors": "3"}, True),
        ({"a": "1", "tensors": "3"}, {"a": "1", "tensors": "4"}, False),
        ({"a": "1", "b": "2"}, {"a": "1", "tensors": "3"}, False),
        ({}, {"a": "1"}, True),
        ({}, {}, True),
    ],
)
def test_data_are_the_same_as_far_as_both_hashes_say(tmp_path, before, now, same):
    """A later version hashes the tensors beside what a user's task hashes; and no hash says nothing."""
    assert same_data(before, now) is same_data(now, before) is same
    with contextlib.nullcontext() if same else pytest.raises(RunError, match="other data"):
        check_data(tmp_path, before, now)


SOURCE = '''
from dataclasses import dataclass

import torch

from momentumrnn.experiments import Task
from momentumrnn.experiments.tasks import Data, generator


@dataclass(frozen=True)
class Doubling(Task):
    """Twice a number."""

    count: int = 20
    features = 1
    outputs = 1
    every_step = False
    metric = "loss"

    def load(self, folder):
        return Data((), {})

    def rows(self, data, seed, epoch):
        return (torch.rand(self.count, generator=generator(seed, epoch)),)

    def held_out(self, data, part):
        return (torch.rand(10, generator=generator(part)),)

    def batch(self, tensors, constants, rows):
        return rows[0].reshape(1, -1, 1), FACTOR * rows[0]

    def loss(self, out, target):
        return (out.squeeze(-1) - target).square()
'''


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A Config of a user's own task, by the number that its source has."""

    def by_factor(factor, **changes):
        file = tmp_path / f"source-{factor}" / "doubling.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(SOURCE.replace("FACTOR", factor))
        spec = importlib.util.spec_from_file_location("doubling", file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "doubling", module)
        spec.loader.exec_module(module)
        return configure(module.Doubling(), **{"hidden_size": 4, "batch_size": 10, "epochs": 1, **changes})

    return by_factor


def test_a_changed_source_is_refused(written, tmp_path):
    """With both ways out; and nothing is written."""
    root, old = tmp_path / "runs", written("2.0")
    fit(old, root)
    folder = Folder(root, old, 0).path
    assert read_json(folder / "config.json")["sources"] == old.sources
    assert read_json(folder / "result.json")["sources"] == old.sources
    new, before = written("3.0", epochs=2), files(root)
    assert repr(new.task) == repr(old.task)
    for seed in (0, 1):
        with pytest.raises(RunError, match=r"^Doubling changed since .* restore the source") as refusal:
            fit(new, root, [seed])
        assert str(folder) in str(refusal.value)
        assert old.sources["Doubling"][:12] in str(refusal.value)
        assert new.sources["Doubling"][:12] in str(refusal.value)
        assert "--changed-source new" in str(refusal.value)
        assert "changed_source='new'" in str(refusal.value)
    assert files(root) == before
    # With other settings it is another run anyway.
    fit(replace(new, hidden_size=5), root)


def test_a_new_run_beside_that_of_the_old_source(written, tmp_path):
    """It has another folder. From then on nobody is asked, whichever of both the source is."""
    root, old = tmp_path / "runs", written("2.0", epochs=2)
    fit(old, root)
    before = files(Folder(root, old, 0).path)
    new = written("3.0", epochs=2)
    fit(new, root, changed_source="new")
    folder, beside = Folder(root, old, 0).path, Folder(root, new, 0).path
    assert beside != folder
    assert files(folder) == before
    assert read_json(beside / "config.json")["config"] == read_json(folder / "config.json")["config"]
    losses = [[line["test_loss"] for line in epochs_of(place)] for place in (folder, beside)]
    assert losses[0] != losses[1]
    fit(replace(new, epochs=3), root)
    fit(new, root, [1])
    assert len(epochs_of(beside)) == 3
    assert files(folder) == before
    restored = written("2.0", epochs=3)
    (result,) = fit(restored, root)
    assert [session["from_step"] for session in result["sessions"]] == [0, 4]
    assert len(epochs_of(folder)) == 3
    # A third one is neither of them.
    with pytest.raises(RunError, match="Doubling changed since"):
        fit(written("4.0"), root)


def test_runs_of_two_sources_are_two_runs(written, tmp_path):
    """For the reader too: a class describes the runs of its own source alone."""
    root, old = tmp_path / "runs", written("2.0")
    fit(old, root)
    new = written("3.0")
    fit(new, root, changed_source="new")
    for config, other in ((old, new), (new, old)):
        runs = gather([root], [type(config.task)])
        assert [run.state for run in runs.folders] == ["done", "done"]
        assert runs.of(config)[0].config == config
        assert runs.of(config)[0].sources == config.sources
        assert runs.of(other)[0].config is None


def test_a_run_from_before_sources_were_written_down(written, tmp_path):
    """Nobody can say whether its source is the same, so it does not go on, and says so."""
    config = written("2.0")
    name = identity(config.to_json(), {}) + "-s0"
    folder = make(tmp_path / "runs", config, 0, [0.5], result=False, name=name)
    before = files(folder)
    assert read(folder).state == "short"
    with pytest.raises(RunError, match="was begun before the source of Doubling was written down") as refusal:
        fit(config, tmp_path / "runs")
    assert str(folder) in str(refusal.value)
    assert "changed_source='new'" in str(refusal.value)
    fit(config, tmp_path / "runs", changed_source="new")
    assert files(folder) == before
    assert Folder(tmp_path / "runs", config, 0).path != folder


def test_folders_that_can_not_be_read_are_in_nobodys_way(written, tmp_path):
    config = written("2.0")
    folder = tmp_path / f"{identity(config.to_json(), {})}-s0"
    for content in (b"{", b"[1]", b"{}", b'{"config": 3}', b'{"config": {}, "sources": []}'):
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_bytes(content)
        fit(config, tmp_path)
        assert read(Folder(tmp_path, config, 0).path).state == "done"
