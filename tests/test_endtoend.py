"""Each task from the command line to its result, on the CPU; MNIST on the real images where there are any."""

import json
import math
import os

import pytest
import torch
from test_tasks import idx, put

pytest.importorskip("tyro", reason="the command line needs the extra momentumrnn[all]")
pytest.importorskip("safetensors", reason="the command line needs the extra momentumrnn[all]")

from momentumrnn.__main__ import main
from momentumrnn.experiments import data


def trained(tmp_path, *args):
    """The result of a run of one seed."""
    assert main(["run", "--device", "cpu", "--root", str(tmp_path / "runs"), *args]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    return json.loads((folder / "result.json").read_text())


def test_adding_is_learnt(tmp_path, capsys):
    task = "Adding(length=8, samples=1000, evaluation=200)"
    options = ["--lr", "1e-2", "--init", "Torch()", "--hidden-size", "24", "--epochs", "80"]
    result = trained(tmp_path, "--task", task, "--momentum", "HeavyBall(mu=0.6, step=0.4)", *options)
    assert result["selected"]["by_validation"]["test_loss"] < 0.3 / 6


def test_copying_is_learnt(tmp_path, capsys):
    task = "Copying(length=2, symbols=2, alphabet=3, samples=2560, evaluation=100)"
    options = ["--lr", "1e-2", "--hidden-size", "24", "--epochs", "12"]
    result = trained(tmp_path, "--task", task, "--momentum", "ScheduledRestart(every=4)", *options)
    line = result["selected"]["by_validation"]
    assert line["test_loss"] < 0.5 * 2 * math.log(3) / 6
    assert line["test_accuracy"] > 0.6


@pytest.mark.parametrize("task", ["MNIST", "PMNIST"])
def test_digits_are_learnt_on_made_images(task, tmp_path, monkeypatch, capsys):
    """Black and white ones, as files of MNIST's form: no real image."""
    labels = {"train": torch.arange(60) % 2, "t10k": torch.arange(20) % 2}
    images = {k: (255 * v).view(-1, 1, 1).expand(-1, 28, 28).to(torch.uint8) for k, v in labels.items()}
    contents = {}
    for part in labels:
        contents[f"{part}-images-idx3-ubyte.gz"] = idx(images[part].numpy())
        contents[f"{part}-labels-idx1-ubyte.gz"] = idx(labels[part].to(torch.uint8).numpy())
    put(tmp_path / "data", monkeypatch, contents)
    options = ["--hidden-size", "4", "--batch-size", "10", "--epochs", "3", "--lr", "3e-2"]
    result = trained(tmp_path, "--task", f"{task}(validation=20)", "--data", str(tmp_path / "data"), *options)
    assert result["selected"]["by_validation"]["test_accuracy"] == 1.0
    assert result["selected"]["by_test"]["test_accuracy"] == 1.0
    assert result["steps"] == 12


@pytest.mark.parametrize("task", ["MNIST", "PMNIST"])
def test_digits_end_to_end_on_the_real_images(task, tmp_path, capsys):
    given = os.environ.get("MOMENTUMRNN_DATA")
    if not given:
        pytest.skip("MOMENTUMRNN_DATA is not set: no folder with MNIST, made images alone were trained on")
    name = f"{task}(validation=200, limit=200)"
    options = ["--hidden-size", "8", "--epochs", "2", "--momentum", "HeavyBall(mu=0.6, step=1.0)"]
    result = trained(tmp_path, "--task", name, "--data", given, *options)
    assert result["data"] == {file.name: file.sha256 for file in data.DATASETS["mnist"].files}
    assert result["selected"]["last"]["test_loss"] < 1.05 * math.log(10)
    assert result["steps"] == 4
