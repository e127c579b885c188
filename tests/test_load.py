"""`load` gives the network of a run that is over, and refuses what is no such thing by name."""

import importlib.util
import json
import re
import shutil
import sys
from dataclasses import replace

import pytest
import torch
from run_folders import OWN, Sign
from training_runs import CONFIG, Diary, fit, path, stop_at

from momentumrnn.experiments import load
from momentumrnn.experiments.config import SCHEMA
from momentumrnn.experiments.engine.signals import Interrupted
from momentumrnn.experiments.runs.checksums import open_weights, seal_weights
from momentumrnn.experiments.runs.store import RunError
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
    expected = "model.safetensors is not there: load takes the folder of a run that is over"
    (folder / "model.safetensors").unlink()
    with pytest.raises(RunError, match=re.escape(f"{folder.name}/{expected}")):
        load(folder)
    with pytest.raises(RunError, match=re.escape(f"nowhere/{expected}")):
        load(tmp_path / "nowhere")
    # They are written again from the checkpoint.
    fit(CONFIG, tmp_path, watcher=(diary := Diary()))
    assert diary.begun == []
    load(folder)


def test_an_interrupted_run_has_none(tmp_path):
    with pytest.raises(Interrupted):
        fit(CONFIG, tmp_path, watcher=stop_at(2))
    with pytest.raises(RunError, match=r"model\.safetensors is not there"):
        load(path(tmp_path, CONFIG))


def test_what_is_no_folder_is_named(folder):
    with pytest.raises(RunError, match=r"result\.json/model\.safetensors can't be read"):
        load(folder / "result.json")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    with pytest.raises(RunError, match=r"model\.safetensors can't be read: Is a directory"):
        load(folder)


REPAIR = "delete it and give the command of the run again, which writes it from the checkpoint"


@pytest.mark.parametrize(
    ("weights", "note"),
    [
        ({"head.bias": torch.zeros(1)}, {}),
        (None, {"config": {**CONFIG.to_json(), "hidden_size": 5}}),
        (None, {"config": 3}),
        (None, {"schema": "two"}),
    ],
    ids=["some", "another network", "no config", "no schema"],
)
def test_weights_of_something_else_are_refused(folder, weights, note):
    change(folder, weights, **note)
    with pytest.raises(
        RunError, match=f"model.safetensors should have the weights of a run, got .* {REPAIR}"
    ):
        load(folder)


@pytest.mark.parametrize("metadata", [{}, {"run": "no JSON"}, {"run": "[]"}], ids=repr)
def test_weights_that_say_nothing_of_their_run_are_refused(folder, metadata):
    file = folder / "model.safetensors"
    file.write_bytes(seal_weights(open_weights(file)[0], metadata))
    with pytest.raises(
        RunError, match=f"model.safetensors should have the weights of a run, got .* {REPAIR}"
    ):
        load(folder)


def test_a_newer_schema_is_refused(folder):
    change(folder, schema=SCHEMA + 1)
    with pytest.raises(RunError, match=rf"model\.safetensors .* schema {SCHEMA + 1}, .* update momentumrnn"):
        load(folder)


def test_a_task_of_the_users_own_is_asked_for(tmp_path):
    fit(OWN, tmp_path)
    with pytest.raises(ValueError, match=r"task: .*Sign"):
        load(path(tmp_path, OWN))
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
