"""Costs: nothing wrong is timed, and a file of them is complete however often it was begun. Never speed."""

import copy
import json
import math
import os
from dataclasses import replace

import pytest
import torch

from momentumrnn.bench import loop
from momentumrnn.experiments import cost
from momentumrnn.experiments.cost import CONTENDERS, MODELS, costs, measure, place
from momentumrnn.experiments.engine.replicas import Replicas
from momentumrnn.experiments.models import build
from momentumrnn.experiments.paper.recipes import recipe
from momentumrnn.experiments.runs.store import RunError
from momentumrnn.experiments.tasks import PMNIST
from momentumrnn.provenance import provenance

CPU = torch.device("cpu")
TINY = {"hidden_size": 4, "batch_size": 3, "length": 5}
KEYS = {"train_ms", "eval_ms", "train_mb", "eval_mb", "how", "loss", "errors"}


@pytest.fixture(scope="module")
def rows():
    """Every contender, measured once."""
    return {name: measure(name, CPU, **TINY) for name in CONTENDERS}


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(cost, "SHAPE", TINY)


def test_the_contenders():
    assert list(CONTENDERS) == [
        *(f"ours/{model}" for model in MODELS),
        "torch.nn/LSTM",
        *(f"listing/{model}" for model in MODELS),
    ]
    assert len(MODELS) == 6


@pytest.mark.parametrize("name", CONTENDERS)
def test_what_is_measured(name, rows):
    row = rows[name]
    assert set(row) == KEYS
    assert row["train_ms"] > 0
    assert row["eval_ms"] > 0
    assert (row["train_mb"], row["eval_mb"]) == (None, None)
    assert row["how"] == "training: eager, evaluation: eager, threads: 1"
    assert all(0 <= error < 1e-5 for error in row["errors"].values())


@pytest.mark.parametrize("model", MODELS)
def test_one_network_has_one_loss(model, rows):
    """Whoever runs it; and networks are not the same one."""
    losses = [row["loss"] for name, row in rows.items() if name.endswith(f"/{model}")]
    assert len(losses) == (3 if model == "LSTM" else 2)
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-6)
    others = [rows[f"ours/{other}"]["loss"] for other in MODELS if other != model]
    assert min(abs(loss / losses[0] - 1) for loss in others) > 1e-4


def test_the_loss_is_that_of_a_plain_computation(rows):
    """The first samples, the first pixels in PMNIST's order, and torch's layer."""
    images, labels, _ = cost._data(100, CPU).tensors
    order = PMNIST().constants(0)[0][:5]
    x = (images[:3][:, order].double() / 255).T.unsqueeze(-1)
    model = build(replace(recipe("table1/LSTM/PMNIST/256").config, hidden_size=4), 0).double()
    lstm = torch.nn.LSTM(1, 4).double()
    lstm.load_state_dict(model.rnn.state_dict())
    loss = torch.nn.functional.cross_entropy(model.head(lstm(x)[0][-1]), labels[:3])
    assert rows["torch.nn/LSTM"]["loss"] == pytest.approx(loss.item(), rel=1e-6)


def test_without_limits_the_task_is_the_papers():
    assert torch.equal(cost._Pixels().constants(3)[0], PMNIST().constants(3)[0])
    assert cost.SHAPE == {"hidden_size": 256, "batch_size": 128, "length": 784}


def test_a_script_takes_the_steps_of_ours():
    """Not the first loss alone: clipping and optimiser are the same, too."""
    config = replace(
        recipe("table1/MomentumLSTM/PMNIST/256").config,
        task=cost._Pixels(length=5),
        hidden_size=4,
        batch_size=3,
        precision="float64",
        clip=0.1,
    )
    data, runs = cost._data(3, CPU), []
    for kind in ("ours", "listing", "definition"):
        runner = cost._runner(kind, config, data, CPU, False)
        steps = []
        for _ in range(4):
            runner.step()
            steps.append(runner.last_step)
        runs.append([*steps, (runner.evaluate(3),)])
    (first, norm), *_, (last,) = runs[0]
    assert norm > config.clip
    assert last < first
    for other in runs[1:]:
        for got, expected in zip(other, runs[0], strict=True):
            assert got == pytest.approx(expected, rel=1e-10)


def without_momentum(layer, x):
    twin = copy.deepcopy(layer)
    twin.momentum = None
    return loop(twin, x)


@pytest.mark.parametrize("model", ["MomentumLSTM", "AdamLSTM", "RMSPropLSTM", "SRLSTM"])
def test_another_network_is_not_timed(model, monkeypatch):
    monkeypatch.setattr(cost, "loop", without_momentum)
    monkeypatch.setattr(cost, "_seconds", None)  # nothing may come to this
    with pytest.raises(RunError, match=f"listing/{model} is not timed: its loss should be .* got"):
        measure(f"listing/{model}", CPU, **TINY)


@pytest.mark.parametrize("by", [1.001, math.nan])
def test_a_wrong_gradient_is_not_timed(by, monkeypatch):
    """The loss is right."""

    class Spoilt(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            return t.clone()

        @staticmethod
        def backward(ctx, g):
            return by * g

    def spoilt(layer, x):
        out, final = loop(layer, x)
        return out, tuple(map(Spoilt.apply, final))

    monkeypatch.setattr(cost, "loop", spoilt)
    with pytest.raises(RunError, match=r"listing/LSTM is not timed: its gradient norm should be .* got"):
        measure("listing/LSTM", CPU, **TINY)


@pytest.mark.parametrize("trained", [True, False])
def test_all_of_it_is_compared_not_the_part_alone(trained, monkeypatch):
    """An error in longer sequences than those of the gradient, in training alone or in evaluation."""

    def spoilt(layer, x):
        out, final = loop(layer, x)
        wrong = len(x) > 3 and torch.is_grad_enabled() == trained
        return out, tuple(1.2 * state for state in final) if wrong else final

    monkeypatch.setattr(cost, "loop", spoilt)
    monkeypatch.setitem(cost._PART, "length", 3)
    with pytest.raises(RunError, match="listing/LSTM is not timed: its loss"):
        measure("listing/LSTM", CPU, **TINY)


def test_ours_is_compared_too(monkeypatch):
    evaluate = Replicas.evaluate

    def spoilt(self, rows):
        return [{k: 1.01 * v for k, v in scores.items()} for scores in evaluate(self, rows)]

    monkeypatch.setattr(Replicas, "evaluate", spoilt)
    with pytest.raises(RunError, match="ours/LSTM is not timed: its loss"):
        measure("ours/LSTM", CPU, **TINY)


def test_times_are_those_of_a_sample(monkeypatch):
    """A step of 3 samples takes 6 seconds here, an evaluation of 100 takes 50."""
    monkeypatch.setattr(cost, "_seconds", lambda call, *_: 50.0 if hasattr(call, "func") else 6.0)
    row = measure("ours/LSTM", CPU, **TINY)
    assert (row["train_ms"], row["eval_ms"]) == (2000.0, 500.0)


def test_the_clock(monkeypatch):
    """The first call is left out; the median of rounds until their time is over, two at least."""
    now, spent = [0.0], iter([100.0, 1.0, 5.0, 1.0, 1.0, 1.0, 1.0])

    def call():
        now[0] += next(spent)

    monkeypatch.setattr(cost.time, "perf_counter", lambda: now[0])
    assert cost._seconds(call, CPU, 0.0) == 3.0
    assert cost._seconds(call, CPU, 2.0) == 1.0
    assert list(spent) == []


def test_ours_is_timed_with_the_settings_of_the_trainer(monkeypatch):
    """The tests' own are others."""
    step, fillings = Replicas.step, set()

    def record(self, index):
        fillings.add(torch.utils.deterministic.fill_uninitialized_memory)
        step(self, index)

    monkeypatch.setattr(Replicas, "step", record)
    assert torch.utils.deterministic.fill_uninitialized_memory
    measure("ours/LSTM", CPU, **TINY)
    assert fillings == {False}


def test_torch_is_left_as_it_was():
    def settings():
        return (
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
            torch.backends.cudnn.rnn.fp32_precision,
            torch.is_grad_enabled(),
        )

    before = settings()
    for name in ("ours/LSTM", "listing/LSTM"):
        with torch.no_grad():
            measure(name, CPU, **TINY)
        assert settings() == before


def test_an_unknown_contender_is_refused():
    with pytest.raises(ValueError, match=r"name should be that of a contender, got 'ours/LTSM'.*'ours/LSTM'"):
        measure("ours/LTSM", CPU)


@pytest.mark.usefixtures("tiny")
def test_all_costs(tmp_path):
    path, notes = tmp_path / "new" / "cost.json", []
    content = costs(path, "cpu", "the command", notes.append)
    assert json.loads(path.read_text()) == content
    assert os.listdir(path.parent) == ["cost.json"]
    head = provenance("the command", "cpu")
    assert {k: v for k, v in content.items() if k not in ("rows", "date")} == {
        **{k: v for k, v in head.items() if k != "date"},
        "task": "PMNIST",
        **TINY,
    }
    assert list(content["rows"]) == list(CONTENDERS)
    assert all(set(row) == KEYS | {"date", "commit", "torch"} for row in content["rows"].values())
    assert [note.split(":")[0] for note in notes] == list(CONTENDERS)
    before = path.read_bytes()
    assert costs(path, "cpu", "another", notes.append) == content
    assert path.read_bytes() == before
    assert len(notes) == len(CONTENDERS)


def fake(calls, stop=math.inf):
    """In place of `measure`: a row that tells its number; the one at `stop` is interrupted."""

    def measured(name, device, **shape):
        if len(calls) == stop:
            raise KeyboardInterrupt
        calls.append(name)
        return {**dict.fromkeys(KEYS, float(len(calls))), "how": name}

    return measured


@pytest.mark.usefixtures("tiny")
def test_stopped_anywhere_and_repeated_it_is_complete(tmp_path, monkeypatch):
    for stop in range(len(CONTENDERS)):
        path, calls = tmp_path / f"{stop}.json", []
        monkeypatch.setattr(cost, "measure", fake(calls, stop))
        with pytest.raises(KeyboardInterrupt):
            costs(path, "cpu", note=lambda text: None)
        rows = json.loads(path.read_text())["rows"] if stop else {}
        assert list(rows) == list(CONTENDERS)[:stop] == calls
        assert path.exists() == bool(stop)
        monkeypatch.setattr(cost, "measure", fake(calls))
        content = costs(path, "cpu", note=lambda text: None)
        assert calls == list(CONTENDERS)
        assert json.loads(path.read_text()) == content
        assert {name: content["rows"][name] for name in rows} == rows


@pytest.mark.usefixtures("tiny")
def test_a_file_that_can_not_be_written_stays(tmp_path, monkeypatch):
    path = tmp_path / "cost.json"
    monkeypatch.setattr(cost, "measure", fake([], 2))
    with pytest.raises(KeyboardInterrupt):
        costs(path, "cpu", note=lambda text: None)
    before = path.read_bytes()
    monkeypatch.setattr(cost, "measure", fake([]))
    with monkeypatch.context() as broken:

        def fails(*args):
            raise OSError(28, "No space left on device")

        broken.setattr(os, "replace", fails)
        with pytest.raises(RunError, match=r"cost\.json could not be written: No space left on device"):
            costs(path, "cpu", note=lambda text: None)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["cost.json"]


def foreign(**changed):
    head = {**provenance("", "cpu"), "task": "PMNIST", **TINY, "rows": {}}
    return json.dumps({**head, **changed})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "something else"),
        (foreign()[:-9], "something else"),
        ("[1]", "something else"),
        ("{}", "'device': None"),
        (foreign(device="NVIDIA Abacus"), "NVIDIA Abacus"),
        (foreign(hidden_size=128), "'hidden_size': 128"),
        (foreign(length=784), "'length': 784"),
        (foreign(task="MNIST"), "'task': 'MNIST'"),
        (foreign(rows=[]), "got others"),
        (foreign(rows={"ours/LSTM": {"train_ms": 1.0}}), "got others"),
        (foreign(rows={"ours/LSTM": 3}), "got others"),
    ],
    ids=[
        "empty",
        "cut",
        "list",
        "bare",
        "device",
        "size",
        "length",
        "task",
        "no-rows",
        "half-a-row",
        "number",
    ],
)
@pytest.mark.usefixtures("tiny")
def test_a_damaged_or_foreign_file_is_refused_by_name(text, named, tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "measure", fake([]))
    path = tmp_path / "odd.json"
    path.write_text(text)
    with pytest.raises(
        RunError, match=r"odd\.json should have .*got .*move it away to measure afresh"
    ) as error:
        costs(path, "cpu")
    assert named in str(error.value)
    assert path.read_text() == text


@pytest.mark.usefixtures("tiny")
def test_a_folder_in_its_place_is_refused(tmp_path):
    with pytest.raises(RunError, match="can't be read"):
        costs(tmp_path, "cpu")


def test_a_device_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"device should be 'cpu', 'cuda' or .*, got 'tpu'"):
        costs(tmp_path / "cost.json", "tpu")


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H200", "cost-nvidia-h200.json"),
        ("AMD EPYC 7R13 Processor", "cost-amd-epyc-7r13-processor.json"),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", "cost-intel-r-xeon-r-cpu-2-20ghz.json"),
    ],
)
def test_the_place(device, name, tmp_path):
    assert place(tmp_path, device) == tmp_path / name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and there is none")
@pytest.mark.parametrize("name", ["ours/MomentumLSTM", "ours/AdamLSTM", "torch.nn/LSTM", "listing/SRLSTM"])
def test_on_a_gpu(name):
    sizes = {"hidden_size": 64, "batch_size": 16, "length": 40}
    row = measure(name, torch.device("cuda", 0), **sizes, least_seconds=0.05)
    assert set(row) == KEYS
    for key in ("train_ms", "eval_ms", "train_mb", "eval_mb", "loss"):
        assert row[key] > 0, key
    # The states of all steps at least are there for the backward pass.
    assert row["train_mb"] > 2 * 40 * 64 * 2 / 2**20
    assert row["train_mb"] > row["eval_mb"]
    assert "memory: eager" in row["how"]
    assert "no CUDA graph" not in row["how"]
    if name.startswith("ours"):
        assert "training: CUDA graph, evaluation: eager" in row["how"]
    if name.startswith("listing"):
        assert "training: eager, evaluation: eager" in row["how"]
    on_cpu = measure(name, CPU, **sizes)
    assert row["loss"] == pytest.approx(on_cpu["loss"], rel=1e-2)
