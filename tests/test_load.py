"""`load` gives the network of a run that is over, and refuses what is no such thing by name."""

import contextlib
import hashlib
import importlib.util
import json
import re
import shutil
import sys
from dataclasses import replace

import pytest
import torch
from run_folders import OWN, Sign, bits, contents, edit
from training_runs import CONFIG, ROOT, Diary, fit, path, stop_at

from momentumrnn.experiments import load
from momentumrnn.experiments.config import SCHEMA
from momentumrnn.experiments.engine.signals import Interrupted
from momentumrnn.experiments.models import WEIGHTS
from momentumrnn.experiments.runs.checksums import open_weights, seal_weights
from momentumrnn.experiments.runs.read import read
from momentumrnn.experiments.runs.store import Folder, RunError, read_json
from momentumrnn.installation import install_command

pytest.importorskip("safetensors.torch", reason="weights are written by the extra momentumrnn[all]")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("trained")
    fit(CONFIG, root)
    return path(root, CONFIG)


@pytest.fixture
def folder(trained, tmp_path):
    """A copy, which a test may change."""
    return shutil.copytree(trained, tmp_path / trained.name)


@pytest.fixture
def alone(trained, tmp_path):
    """A folder with the weights alone, as people copy them."""
    (tmp_path / "alone").mkdir()
    shutil.copy(trained / WEIGHTS, tmp_path / "alone")
    return tmp_path / "alone"


REPAIR = "give the command of the run again, which writes it again from the checkpoint"
SOMETHING_ELSE = "should have the weights of a run, got .* put back a copy of it"


def assert_repaired(folder):
    """By the command of the run, which trains nothing and leaves all other files and numbers as they were."""
    before, result = contents(folder), read_json(folder / "result.json")
    fit(CONFIG, folder.parent, watcher=(diary := Diary()))
    assert (len(diary.begun), diary.seen, diary.ended) == (1, [], [])
    assert [note[:53] for note in diary.notes] == [
        "seed 0: model.safetensors was written again from the c"[:53]
    ]
    weights = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    hashes = {"weights_file": weights} if "weights_file" in result else {}
    assert read_json(folder / "result.json") == {**result, **hashes}
    after = contents(folder)
    for name in before.keys() - {WEIGHTS, "result.json"}:
        assert after[name] == before[name]
    assert read(folder).verified
    load(folder)
    before = contents(folder)
    fit(CONFIG, folder.parent)
    assert contents(folder) == before


def flip(content, folder):
    return content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]


def cut(content, folder):
    return content[:-3]


def of_another_seed(content, folder):
    fit(CONFIG, folder.parent, [1])
    return (path(folder.parent, CONFIG, 1) / WEIGHTS).read_bytes()


def of_another_epoch(content, folder):
    """Whole weights of the same run and seed, of its first epoch."""
    short = replace(CONFIG, epochs=1)
    fit(short, folder.parent / "short")
    return (path(folder.parent / "short", short) / WEIGHTS).read_bytes()


def written_again(content, folder):
    """Other weights, with the note of the right ones and a checksum of their own."""
    weights, metadata, _ = open_weights(folder / WEIGHTS)
    return seal_weights({name: tensor + 1 for name, tensor in weights.items()}, metadata)


def change(folder, weights=None, **note):
    """Put other weights, or another note on what they are of, into a folder, with a right checksum."""
    file = folder / "model.safetensors"
    there, metadata, _ = open_weights(file)
    run = {**json.loads(metadata["run"]), **note}
    file.write_bytes(seal_weights(weights or there, {**metadata, "run": json.dumps(run)}))


def test_what_is_loaded_answers(trained):
    model, x = load(trained), torch.rand(6, 3, 2)
    assert model(x).shape == (3, 1)
    assert torch.equal(load(str(trained))(x), model(x))


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_integers_are_refused(trained, dtype):
    with pytest.raises(TypeError, match=f"x should have a floating-point dtype, got {dtype}"):
        load(trained)(torch.zeros(6, 3, 2, dtype=dtype))


def test_missing_weights_are_named(folder, tmp_path):
    expected = "nowhere/model.safetensors is not there: load takes the folder of a run that is over"
    with pytest.raises(RunError, match=re.escape(expected)):
        load(tmp_path / "nowhere")
    (folder / WEIGHTS).unlink()
    with pytest.raises(RunError, match=re.escape(f"{folder.name}/model.safetensors is not there: {REPAIR}")):
        load(folder)
    assert_repaired(folder)


def test_an_interrupted_run_has_none(tmp_path):
    with pytest.raises(Interrupted):
        fit(CONFIG, tmp_path, watcher=stop_at(2))
    with pytest.raises(RunError, match=r"model\.safetensors is not there"):
        load(path(tmp_path, CONFIG))


@pytest.mark.parametrize("change_content", [flip, cut, of_another_seed, of_another_epoch, written_again])
def test_weights_that_are_not_those_of_the_run_are_refused_and_repaired(change_content, folder):
    """Whether result.json has their hash or, as of version 0.2.0, has none."""
    file, expected = folder / WEIGHTS, load(folder).state_dict()
    content = change_content(file.read_bytes(), folder)
    for lacks_hash in (False, True):
        if lacks_hash:
            edit("result.json", weights_file=...)(folder)
        file.write_bytes(content)
        if lacks_hash and change_content is written_again:
            load(folder)  # nothing says that they are not the first ones
            continue
        with pytest.raises(RunError, match=re.escape(REPAIR)) as refusal:
            load(folder)
        assert str(file) in str(refusal.value)
        assert "\n" not in str(refusal.value)
        assert_repaired(folder)
        assert all(torch.equal(value, expected[name]) for name, value in load(folder).state_dict().items())


def test_it_is_said_whose_weights_they_are(folder):
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(of_another_seed(content, folder))
    with pytest.raises(
        RunError, match=f"the weights of {CONFIG.id}-s1, and its folder is that of {CONFIG.id}-s0"
    ):
        load(folder)
    (folder / WEIGHTS).write_bytes(of_another_epoch(content, folder))
    with pytest.raises(RunError, match=r"the weights of epoch 1, and result\.json is of those of [23]"):
        load(folder)


def test_weights_that_can_not_be_written_again(folder):
    """Neither `load` nor the command of the run says that they can."""
    (folder / "resume.pt").unlink()
    result = fit(CONFIG, folder.parent)
    (folder / WEIGHTS).write_bytes(flip((folder / WEIGHTS).read_bytes(), folder))
    before, advice = contents(folder), "without resume.pt it can't be written again"
    with pytest.raises(RunError, match=f"model.safetensors .*{advice}"):
        load(folder)
    with pytest.raises(RunError, match=f"model.safetensors .*{advice}"):
        fit(CONFIG, folder.parent, [1, 0])
    assert contents(folder) == before
    # Numbers are published without them.
    (folder / WEIGHTS).unlink()
    with pytest.raises(RunError, match=f"model.safetensors is not there: {advice}"):
        load(folder)
    assert fit(CONFIG, folder.parent, watcher=(diary := Diary())) == result
    assert diary.begun == diary.ended == diary.notes == []


def test_weights_of_a_result_that_the_checkpoint_has_left_behind(tmp_path):
    """They are written with the result of more epochs."""
    short = replace(CONFIG, epochs=1)
    fit(short, tmp_path)
    with pytest.raises(Interrupted):
        fit(CONFIG, tmp_path, watcher=stop_at(7))
    folder = path(tmp_path, CONFIG)
    load(folder)
    (folder / WEIGHTS).unlink()
    with pytest.raises(
        RunError, match=r"can't be written again, .* step 5 and resume\.pt of step 7: take --epochs 2"
    ):
        fit(short, tmp_path)
    fit(replace(CONFIG, epochs=2), tmp_path)
    load(folder)


@pytest.mark.parametrize("begun", [CONFIG, replace(CONFIG, epochs=1)], ids=["first", "more epochs"])
def test_killed_between_weights_and_result(begun, tmp_path, monkeypatch):
    """The same command writes what is missing, also where an earlier result is there."""
    write_json, folder = Folder.write_json, path(tmp_path, CONFIG)
    fit(CONFIG, tmp_path / "whole")
    if begun != CONFIG:
        fit(begun, tmp_path)

    def killed(self, name, value):
        if name == "result.json":
            raise KeyboardInterrupt
        write_json(self, name, value)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            fit(CONFIG, tmp_path)
    if begun != CONFIG:
        with pytest.raises(
            RunError, match=r"has the weights of epoch [23], and result\.json is of those of 1"
        ):
            load(folder)
        with pytest.raises(RunError, match="take --epochs 3"):
            fit(begun, tmp_path)
    (result,) = fit(CONFIG, tmp_path)
    assert result["epochs"] == 3
    assert result["weights_file"] == hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    assert bits(folder) == bits(path(tmp_path / "whole", CONFIG))
    load(folder)


def test_killed_while_weights_are_repaired(folder, monkeypatch):
    """New weights beside the old result: the same command again."""
    (folder / WEIGHTS).unlink()
    write_json = Folder.write_json
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write_json", lambda *given: 1 / 0)
        # The bytes may be the same as before: then the result is not written.
        with contextlib.suppress(ZeroDivisionError):
            fit(CONFIG, folder.parent)
    assert Folder.write_json is write_json
    fit(CONFIG, folder.parent)
    load(folder)


def test_a_folder_that_is_damaged_or_foreign_is_refused(folder):
    content = (folder / "config.json").read_bytes()
    for changed, expected in ((content[:-9], "damaged"), (b"[]", "foreign"), (None, "foreign")):
        (folder / "config.json").unlink()
        if changed is not None:
            (folder / "config.json").write_bytes(changed)
        with pytest.raises(
            RunError, match=f"{folder.name} can't be loaded, since it is {expected} .*config.json"
        ):
            load(folder)
        (folder / "config.json").write_bytes(content)
    load(folder)


def test_weights_alone_are_loaded_by_what_they_say(alone, trained):
    assert torch.equal(load(alone).head.weight, load(trained).head.weight)


@pytest.mark.filterwarnings("error")
def test_weights_of_version_0_2_0_are_loaded():
    for folder in (ROOT / "tests/golden/run-0.2.0/whole").iterdir():
        assert not read(folder).verified
        load(folder)


def test_what_is_no_folder_is_named(folder):
    with pytest.raises(RunError, match=r"result\.json/model\.safetensors can't be read"):
        load(folder / "result.json")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    with pytest.raises(RunError, match=r"model\.safetensors can't be read: Is a directory"):
        load(folder)


@pytest.mark.parametrize(
    ("weights", "note"),
    [
        ({"head.bias": torch.zeros(1)}, {}),
        (None, {"config": {**CONFIG.to_json(), "hidden_size": 5}}),
        (None, {"config": 3}),
        (None, {"config": None, "sources": []}),
    ],
    ids=["some", "another network", "no config", "no sources"],
)
def test_weights_of_something_else_are_refused(alone, weights, note):
    change(alone, weights, **note)
    with pytest.raises(RunError, match=f"alone/model.safetensors {SOMETHING_ELSE}"):
        load(alone)


@pytest.mark.parametrize("metadata", [{}, {"run": "no JSON"}, {"run": "[]"}], ids=repr)
def test_weights_that_say_nothing_of_their_run_are_refused(alone, metadata):
    file = alone / WEIGHTS
    file.write_bytes(seal_weights(open_weights(file)[0], metadata))
    with pytest.raises(RunError, match=f"alone/model.safetensors {SOMETHING_ELSE}"):
        load(alone)


def test_a_newer_schema_is_refused(alone):
    change(alone, schema=SCHEMA + 1)
    with pytest.raises(RunError, match=rf"model\.safetensors .*schema {SCHEMA + 1}, .* update momentumrnn"):
        load(alone)


@pytest.mark.parametrize("schema", ["two", None, 1.5, True, 0, []], ids=repr)
def test_a_schema_that_is_no_integer_is_refused(alone, schema):
    change(alone, schema=schema)
    with pytest.raises(
        RunError, match=rf"alone/model\.safetensors should have a schema from 1 to {SCHEMA}, got"
    ):
        load(alone)


@pytest.mark.parametrize("name", ["lr", "cell", "hidden_size", "momentum"])
def test_a_config_that_is_none_is_named_in_a_line(alone, name):
    change(alone, config={**CONFIG.to_json(), name: "no\nthing"})
    with pytest.raises(RunError, match=rf"alone/model\.safetensors can't be loaded \({name}") as refusal:
        load(alone)
    assert "\n" not in str(refusal.value)


def test_a_task_of_the_users_own_is_asked_for(tmp_path):
    fit(OWN, tmp_path)
    folder = path(tmp_path, OWN)
    with pytest.raises(
        RunError, match=rf"{folder.name}/model\.safetensors .*task: .*Sign.* the classes of yours"
    ):
        load(folder)
    assert load(path(tmp_path, OWN), Sign)(torch.rand(1, 3, 1)).shape == (3, 2)


def test_safetensors_that_is_not_installed_is_named(trained, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(
        RunError, match=re.escape(f"safetensors should be installed: {install_command('all')}")
    ):
        load(trained)


SOURCE = """
from dataclasses import dataclass
from run_folders import Sign
@dataclass(frozen=True)
class Scaled(Sign):
    def batch(self, tensors, constants, rows):
        x, target = super().batch(tensors, constants, rows)
        return {scale} * x, target
"""


def scaled(folder, scale):
    """A task of the user's own, read from a file."""
    file = folder / f"scaled_by_{scale}.py"
    file.write_text(SOURCE.format(scale=scale))
    spec = importlib.util.spec_from_file_location("scaled", file)
    module = sys.modules["scaled"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Scaled


def test_a_task_that_changed_since_is_said(tmp_path, monkeypatch):
    """The weights are those of the run; what they answer to may be something else."""
    monkeypatch.setitem(sys.modules, "scaled", None)  # taken away at the end
    task = scaled(tmp_path, 2)
    config = replace(OWN, task=task())
    fit(config, tmp_path / "runs")
    folder = path(tmp_path / "runs", config)
    model = load(folder, task)
    with pytest.warns(UserWarning, match=f"Scaled changed since .*{folder.name} was trained"):
        again = load(folder, scaled(tmp_path, 3))
    assert torch.equal(again.head.weight, model.head.weight)
