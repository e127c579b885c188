"""The benchmark: its rival is right, wrong layers are caught, options refused in one line. Never speed."""

import inspect
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import MOMENTA, assert_same, gradients, layer, leaf

import momentumrnn as mr
from momentumrnn import bench as bench_module
from momentumrnn import constraints
from momentumrnn.__main__ import Bench, main
from momentumrnn.bench import (
    BadOption,
    Case,
    Contender,
    Replicas,
    Shape,
    bench,
    build,
    cases,
    difference,
    loop,
    memory,
    options,
    pad,
    parity,
    parse,
    rival,
    timing,
)
from momentumrnn.cli import bench as bench_command
from momentumrnn.installation import install_command
from momentumrnn.provenance import provenance

pytest.importorskip("tyro", reason="the command line needs the extra momentumrnn[all]")
pytest.importorskip("rich", reason="the command line needs the extra momentumrnn[all]")

ROOT = Path(__file__).parent.parent
TINY = {
    "tiny": Shape("lstm", 7, 3, 2, 5),
    "tiny-gru": Shape("gru", 6, 2, 3, 4),
    "tiny-dtriv": Shape("dtriv", 6, 2, 3, 4),
    "tiny-extrapolated": Shape("extrapolated", 6, 2, 3, 4),
}
RIVALS = ("torch", "torch-fp32", "torch-bf16", "torch-fp16", "torch-padded", "native", "plain", "loop")
ERRORS = ("outputs", "gradients", "outputs_norm", "gradients_norm")


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    """Shapes and rounds that take no time."""
    monkeypatch.setattr(options, "SHAPES", TINY)
    monkeypatch.setattr(timing, "SECONDS", 0.0)
    monkeypatch.setattr(memory, "PROCESSES", 1)


def run(*args):
    """The command on the CPU, without the slow parts unless asked for."""
    return main(["bench", "--device", "cpu", "--repeats", "2", "--no-memory", "--shapes", "tiny", *args])


def run_json(tmp_path, *args):
    code = run("--json", str(tmp_path / "result.json"), *args)
    return code, json.loads((tmp_path / "result.json").read_text())


def case(shape="tiny", backend="auto", momentum=mr.HeavyBall(), **more):  # noqa: B008
    return Case(shape, TINY[shape], momentum, backend, "cpu", torch.float32, **more)


def spoil(monkeypatch, by=1e-2):
    """Makes the native backend wrong."""
    right = mr.backends.native.run

    def wrong(*args):
        y, *rest = right(*args)
        return y + by, *rest

    monkeypatch.setattr(mr.backends.native, "run", wrong)


@pytest.mark.parametrize("cell", ["lstm", "gru", "tanh", "modrelu"])
@pytest.mark.parametrize("momentum", MOMENTA)
@pytest.mark.parametrize("bias", [True, "hh", False])
def test_the_loop_is_the_layer(momentum, cell, bias):
    """The paper's listing and the definition agree: outputs, final states, all gradients."""
    net = layer(cell, momentum, 3, 5, bias=bias, backend="reference")
    x = leaf(9, 2, 3)
    got, want = loop(net, x), net(x)
    assert_same(got, want)
    inputs = [x, *net.parameters()]
    assert_same(gradients(got, inputs), gradients(want, inputs))


def test_the_loop_obeys_a_constraint():
    net = constraints.orthogonal(layer("modrelu", "HeavyBall", 3, 5, bias="hh"))
    x = leaf(9, 2, 3)
    got, want, inputs = loop(net, x), net(x), [x, *net.parameters()]
    assert_same(gradients(got, inputs), gradients(want, inputs))


@pytest.mark.parametrize("bias", [True, "hh", False])
def test_the_loop_is_the_extrapolated_layer(bias):
    net = mr.Recurrent(mr.cells.ExtrapolatedLSTM(every=3, step_size=0.5), 3, 5, bias=bias).double()
    x = leaf(9, 2, 3)
    got, want, inputs = loop(net, x), net(x), [x, *net.parameters()]
    assert_same(got, want)
    assert_same(gradients(got, inputs), gradients(want, inputs))


def test_what_is_written(tmp_path, capsys):
    code, result = run_json(tmp_path, "--memory", "--momentum", "HeavyBall(mu=0.9)")
    assert code == 0
    assert list(result) == [
        *("command", "commit", "date", "device", "versions", "threads", "settings", "complete", "cases")
    ]
    assert result["complete"] is True
    assert result["settings"]["dtype"] == "float32"
    assert result["versions"] == {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "momentumrnn": mr.__version__,
    }
    (case,) = result["cases"]
    assert case["status"] == "ok"
    assert [case[name] for name in ("shape", "cell", "backend")] == ["tiny", "lstm", "native"]
    assert case["momentum"] == "HeavyBall(mu=0.9, step=1.0)"
    assert case["sizes"] == {"T": 7, "B": 3, "D": 2, "H": 5}
    assert (case["mode"], case["steps"]) == ("tf32", 21)
    assert set(case["parity"]) == {"tolerance", "ours", "torch", "loop"}
    assert set(case["parity"]["tolerance"]) == {"outputs", "gradients"}
    for errors in (case["parity"][name] for name in ("ours", "torch", "loop")):
        assert tuple(errors) == ERRORS
        assert all(0 < error < 2e-5 for error in errors.values())
    assert set(case["rows"]) == {"ours", "torch", "loop"}
    for row in case["rows"].values():
        assert row["forward_ms"] > 0
        assert row["training_ms"] > 0
    assert case["rows"]["loop"]["peak_mb"] is None
    if sys.platform == "linux":
        peak = case["rows"]["ours"]["peak_mb"]
        assert peak >= 0
        assert case["rows"]["ours"]["peak_mb_per_sample"] == peak / 3
    for kind in ("forward", "training"):
        for ratio in (case["ratios"][kind][other] for other in ("torch", "loop")):
            assert 0 < ratio["lowest"] <= ratio["median"] <= ratio["highest"]
    assert "torch.nn.LSTM" in capsys.readouterr().out


def test_every_rival_is_measured(tmp_path, capsys):
    code, result = run_json(tmp_path, "--rivals", *RIVALS, "--replicas", "2", "--backend", "reference")
    assert code == 0
    (found,) = result["cases"]
    assert tuple(found["rows"]) == ("ours", *RIVALS, "replicas-2")
    assert all(row["training_ms"] > 0 and "reason" not in row for row in found["rows"].values())
    assert tuple(found["ratios"]["training"]) == RIVALS
    worst = {name: max(errors.values()) for name, errors in found["parity"].items()}
    for name in ("ours", "torch", "torch-fp32", "plain", "loop", "replicas-2"):
        assert worst[name] < 2e-5
    # Each is held to the truth of its own rounded weights.
    assert 2e-5 < worst["torch-fp16"] < 5e-3
    assert worst["torch-fp16"] < worst["torch-bf16"] < 5e-2
    assert 2e-5 < worst["torch-padded"] < 5e-3
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 110


def test_a_rival_that_can_not_run_says_why(tmp_path, capsys):
    code, result = run_json(tmp_path, "--shapes", "tiny-gru", "--rivals", "torch-padded", "torch")
    assert code == 0
    row = result["cases"][0]["rows"]["torch-padded"]
    assert row["reason"] == "RuntimeError: padding is for an LSTM alone"
    assert row["training_ms"] is None
    assert tuple(result["cases"][0]["ratios"]["training"]) == ("torch",)
    assert row["reason"] in capsys.readouterr().out


@pytest.mark.parametrize("shape", [(7, 3, 2, 5), (3, 8, 128, 128), (4, 9, 129, 130)])
def test_padding_changes_no_value(shape):
    """What is inside equals the plain layer, what is around it is 0; weights that are not 0 are seen."""
    steps, rows, columns, units = shape
    layer = torch.nn.LSTM(columns, units, dtype=torch.float64)
    x, weights = (torch.randn(steps, rows, size, dtype=torch.float64) for size in (columns, units))
    plain = Contender("plain", layer, layer, x, weights)
    padded = pad(plain)
    out = padded.forward()[0]
    assert [size % to for size, to in zip(out.shape[1:], (8, 128), strict=True)] == [0, 0]
    assert padded.module.input_size % 128 == 0
    assert torch.count_nonzero(out[..., units:]) == 0
    assert max(parity.compare(padded).values()) < 1e-12
    with torch.no_grad():
        # The last unit says something, and is heard.
        padded.module.bias_hh_l0[3 * padded.module.hidden_size - 1] = 1.0
        padded.module.weight_hh_l0[:, -1] = 1.0
    assert parity.compare(padded)["outputs_norm"] > 1e-2


def test_tf32_is_off_for_that_rival_alone(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    seen = []

    def watched(layer, x):
        seen.append(torch.backends.cudnn.allow_tf32)
        if len(seen) > 4:
            raise RuntimeError
        return layer(x)

    ours = build(case())
    for name in ("torch", "torch-fp32"):
        contender = rival(name, ours, case())
        contender = replace(contender, run=partial(watched, contender.module))
        contender.forward()
        contender.training()
        assert torch.backends.cudnn.allow_tf32
    assert seen == [True, True, False, False]
    with pytest.raises(RuntimeError):
        contender.training()
    assert torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("mode", ["tf32", "fp32", "autocast-bf16"])
def test_a_mode_is_that_of_ours_and_of_rivals_without_one(mode, monkeypatch):
    """Forward and backward without TF32; autocast forward alone, and nothing of it stays."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    tried, seen = case("tiny-gru", "reference", mode=mode), []

    def now(*_):
        seen.append((torch.backends.cudnn.allow_tf32, torch.is_autocast_enabled("cpu")))

    def watched(layer, x):
        now()
        out, final = layer(x)
        out.register_hook(now)
        return out, final

    own, bf16 = mode != "fp32", mode == "autocast-bf16"
    followed = [(own, bf16), (own, False)], torch.bfloat16 if bf16 else torch.float32
    expected = {
        **dict.fromkeys(("ours", "torch", "plain", "native", "loop"), followed),
        "torch-fp32": ([(False, False)] * 2, torch.float32),
        "torch-fp16": ([(True, False)] * 2, torch.float16),
    }
    ours = build(tried)
    for name, (states, dtype) in expected.items():
        contender = ours if name == "ours" else rival(name, ours, tried)
        contender = replace(contender, run=partial(watched, contender.run))
        seen.clear()
        contender.training()
        assert seen == states
        assert contender.loss_weights.dtype == dtype
        now()
        assert seen[-1] == (True, False)


def test_modes_are_cases_of_one_run(tmp_path, capsys):
    modes = ("--modes", "tf32", "autocast-bf16", "--momentum", "None", "HeavyBall", "--rivals", "torch")
    code, result = run_json(tmp_path, "--shapes", "tiny-gru", *modes)
    assert code == 0
    found = [(case["mode"], case["momentum"].split("(")[0]) for case in result["cases"]]
    assert found == [(mode, m) for mode in ("tf32", "autocast-bf16") for m in ("None", "HeavyBall")]
    for each in result["cases"]:
        for name in ("ours", "torch"):
            error = each["parity"][name]["gradients_norm"]
            assert error < 2e-5 if each["mode"] == "tf32" else 1e-4 < error < 1e-1
            assert each["rows"][name]["forward_ms"] > 0
        assert "goal" not in each
    plain, other = result["cases"][2:]
    ratio = other["rows"]["ours"]["training_ms"] / plain["rows"]["ours"]["training_ms"]
    assert other["against_plain"]["eager"] == ratio
    assert "autocast-bf16" in capsys.readouterr().out


@pytest.mark.parametrize(("goal", "missed"), [(1e-3, []), (1e-12, ["outputs_norm", "gradients_norm"])])
def test_a_goal_that_is_missed_is_said_and_timed(goal, missed, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(parity, "GOALS", {"tf32": (goal, goal)})
    code, result = run_json(tmp_path, "--rivals")
    assert code == 0
    (found,) = result["cases"]
    assert found["goal"] == {"errors": {"outputs_norm": goal, "gradients_norm": goal}, "missed": missed}
    assert found["rows"]["ours"]["training_ms"] > 0
    assert capsys.readouterr().out.count("missed: ") == len(missed)


@pytest.mark.parametrize(
    ("backend", "mode", "momentum", "expected"),
    [
        ("cuda", "tf32", mr.HeavyBall(), {"outputs_norm": 1e-3, "gradients_norm": 1e-3}),
        ("cuda", "tf32", mr.Nesterov(), {"outputs_norm": 1e-3, "gradients_norm": 2e-2}),
        ("cuda", "tf32", mr.RMSProp(), {"outputs_norm": 1e-2, "gradients_norm": 2e-1}),
        ("cuda", "fp32", None, {"outputs_norm": 2e-4, "gradients_norm": 2e-4}),
        ("cuda", "fp32", mr.Nesterov(), {"outputs_norm": 2e-4, "gradients_norm": 2e-4}),
        ("cuda", "autocast-fp16", None, {"outputs": 5e-2, "gradients": 5e-2}),
        ("cuda", "autocast-bf16", None, {"outputs": 1e-1, "gradients": 1e-1}),
        ("native", "autocast-bf16", mr.Adam(), {"outputs_norm": 5e-2, "gradients_norm": 5e-1}),
        ("native", "tf32", mr.Adam(), {"outputs": 1e-2, "gradients": 2e-1}),
        ("native", "fp32", None, {"outputs": 2e-4, "gradients": 2e-4}),
        ("native", "tf32", None, {"outputs": 2e-2, "gradients": 2e-2}),
    ],
)
def test_what_is_allowed_in_each_mode(backend, mode, momentum, expected, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    tried = Case("tiny", TINY["tiny"], momentum, "auto", "cuda", torch.float32, mode)
    assert parity.tolerance(tried, backend) == expected


def test_lengths_are_drawn_once_and_for_all():
    shape = Shape("lstm", 300, 32, 129, 158)
    sizes = cases.draw_batch_sizes(shape)
    assert torch.equal(sizes, cases.draw_batch_sizes(shape))
    assert len(sizes) == 300
    assert sizes[0] == 32
    assert sizes[-1] >= 1
    assert (sizes.diff() <= 0).all()
    assert 0.35 < sizes.sum() / (300 * 32) < 0.65


@pytest.mark.parametrize("name", ["ours", "torch", "native", "plain"])
def test_packed_sequences_are_those_by_themselves(name):
    tried = case(lengths="uniform")
    ours = build(tried)
    contender = ours if name == "ours" else rival(name, ours, tried)
    assert contender.x.shape == (ours.batch_sizes.sum(), 2)
    out, final = contender.call(ours.x)
    padded, ends = torch.nn.utils.rnn.pad_packed_sequence(ours.pack(ours.x))
    outs, _ = torch.nn.utils.rnn.pad_packed_sequence(ours.pack(out))
    assert len(set(ends.tolist())) > 1
    for row, end in enumerate(ends):
        want, (h, c) = contender.module(padded[:end, row : row + 1])
        for a, b in ((outs[:end, row], want[:, 0]), (final[0][:, row], h[:, 0]), (final[1][:, row], c[:, 0])):
            torch.testing.assert_close(a, b)


def test_packed_input_is_measured(tmp_path, capsys):
    packed = ("--lengths", "uniform", "--replicas", "2", "--rivals", *RIVALS)
    code, result = run_json(tmp_path, *packed)
    assert code == 0
    assert result["settings"]["lengths"] == "uniform"
    (found,) = result["cases"]
    assert found["steps"] == cases.draw_batch_sizes(TINY["tiny"]).sum() < 21
    not_for = ("torch-padded", "loop", "replicas-2")
    for name, row in found["rows"].items():
        if name in not_for:
            assert row["reason"] == "RuntimeError: not for sequences of several lengths"
            continue
        assert "reason" not in row
        assert row["training_ms"] > 0
        if name not in ("torch-fp16", "torch-bf16"):
            assert max(found["parity"][name].values()) < 2e-5
    assert f"{found['steps']} steps" in capsys.readouterr().out


def test_wrong_packed_results_are_seen(tmp_path, monkeypatch):
    spoil(monkeypatch)
    code, result = run_json(tmp_path, "--lengths", "uniform", "--rivals")
    assert (code, result["cases"][0]["status"]) == (1, "wrong")


@pytest.mark.parametrize("lengths", ["full", "uniform"])
def test_the_beginning_is_two_steps(lengths):
    ours = build(case(lengths=lengths))
    short = memory.first_two_steps(ours)
    got, want = (contender.forward()[0].flatten(0, -2) for contender in (short, ours))
    assert torch.equal(got, want[: len(got)])
    assert (
        len(got)
        == len(short.loss_weights.flatten(0, -2))
        == (6 if lengths == "full" else ours.batch_sizes[:2].sum())
    )


def test_the_extrapolated_cell_is_measured(tmp_path, capsys):
    extrapolated = ("--shapes", "tiny-extrapolated", "--momentum", "None")
    code, result = run_json(tmp_path, *extrapolated, "--rivals", "torch", "plain", "loop")
    assert code == 0
    (found,) = result["cases"]
    assert [found["cell"], found["rows"]["torch"]["layer"]] == ["extrapolated", "torch.nn.LSTM (plain cell)"]
    for name in ("ours", "torch", "loop"):
        assert max(found["parity"][name].values()) < 2e-5
        assert found["rows"][name]["training_ms"] > 0
    assert found["rows"]["plain"]["reason"] == "RuntimeError: ours has no momentum itself"


def test_the_extrapolated_cell_has_no_further_momentum(capfd):
    assert run("--shapes", "tiny", "tiny-extrapolated") == 2
    refused = "--momentum: expected None at tiny-extrapolated, got 'HeavyBall(mu=0.6, step=1.0)'"
    assert refused in capfd.readouterr().err


@pytest.mark.parametrize("momentum", ["Adam(mu=0.6, beta=0.9)", "RMSProp", "HeavyBall"])
def test_plain_is_ours_without_momentum(momentum, tmp_path):
    """In the same rounds."""
    code, result = run_json(tmp_path, "--momentum", momentum, "--rivals", "plain", "torch")
    assert code == 0
    (found,) = result["cases"]
    assert found["parity"]["plain"] == found["parity"]["torch"]
    assert found["ratios"]["training"]["plain"]["median"] > 0


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is measured on Linux alone")
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("ours", {"momentum": mr.RMSProp(), "mode": "autocast-bf16"}),
        ("plain", {"momentum": mr.Adam(), "lengths": "uniform"}),
    ],
)
def test_memory_is_that_of_the_case(name, more):
    """A larger one takes more of it, in its mode, packed or not."""
    large = replace(case("tiny-gru", **more), shape=Shape("gru", 200, 64, 3, 64))
    assert memory.peak_of_new_process(large, name) > 5


@pytest.mark.parametrize("shape", ["tiny", "tiny-dtriv"])
def test_replicas_are_the_layers_one_by_one(shape):
    """Each with weights and gradients of its own; one that is not is seen."""
    ours = build(case(shape, "reference"))
    contender = rival("replicas-3", ours, case(shape, "reference"))
    assert isinstance(contender.module, Replicas)
    out = contender.forward()[0]
    assert out.shape == (3, *ours.loss_weights.shape)
    assert torch.equal(contender.module.layers[0](ours.x)[0], ours.run(ours.x)[0])
    assert (out[0] - out[2]).abs().max() > 1e-2
    assert max(parity.compare(contender).values()) < 1e-5
    with torch.no_grad():
        contender.module.layers[2].weight_ih_l0.add_(1e-2)
    assert parity.compare(contender)["gradients_norm"] > 1e-4


def test_replicas_are_compared_with_one(tmp_path, capsys):
    _, result = run_json(tmp_path, "--replicas", "2", "3", "--backend", "reference", "--rivals")
    rows = result["cases"][0]["rows"]
    for name in ("replicas-2", "replicas-3"):
        ratio = rows[name]["training_ms"] / rows["ours"]["training_ms"]
        assert rows[name]["against_single"] == {"eager": ratio, "graph": None}
    assert rows["replicas-3"]["layer"] == "3 replicas, reference"
    assert f"{ratio:.2f} ours" in capsys.readouterr().out


def test_replicas_that_can_not_run_say_why(tmp_path):
    code, result = run_json(tmp_path, "--replicas", "2", "--backend", "native", "--rivals")
    assert code == 0
    assert "vmap" in result["cases"][0]["rows"]["replicas-2"]["reason"]


def test_momenta_are_compared_with_none(tmp_path, capsys):
    """Wherever it stands among them; it is measured first."""
    momenta = ("--momentum", "HeavyBall", "None", "Nesterov", "--rivals")
    _, result = run_json(tmp_path, "--shapes", "tiny", "tiny-gru", *momenta)
    for plain, *others in (result["cases"][:3], result["cases"][3:]):
        assert plain["momentum"] == "None"
        assert "against_plain" not in plain
        for other in others:
            ratio = other["rows"]["ours"]["training_ms"] / plain["rows"]["ours"]["training_ms"]
            assert other["against_plain"] == {"eager": ratio, "graph": None}
    assert f"with None: eager {ratio:.2f}, graph -" in capsys.readouterr().out


def test_without_none_momenta_are_not_compared(tmp_path):
    _, result = run_json(tmp_path, "--rivals")
    assert "against_plain" not in result["cases"][0]


def test_every_case_is_on_disk_when_it_is_done(tmp_path, monkeypatch):
    """Also if the process then dies."""
    path, measure, seen = tmp_path / "result.json", bench_module.measure, []

    def dying(case, *args):
        seen.append(json.loads(path.read_text()) if path.exists() else None)
        if len(seen) == 3:
            raise SystemExit
        return measure(case, *args)

    monkeypatch.setattr(bench_module, "measure", dying)
    with pytest.raises(SystemExit):
        run_json(tmp_path, "--momentum", "None", "Nesterov", "HeavyBall", "--rivals")
    assert seen[0] is None
    assert [len(result["cases"]) for result in seen[1:]] == [1, 2]
    assert json.loads(path.read_text()) == seen[2]
    assert seen[2]["complete"] is False
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_known_outlives_a_failure(tmp_path, monkeypatch, capsys):
    def broken(*args):
        raise OSError("no memory is measured\nhere")

    monkeypatch.setattr(bench_module, "peak_memory", broken)
    code, result = run_json(tmp_path, "--memory", "--rivals", "torch")
    assert code == 1
    assert result["cases"][0]["status"] == "failed"
    assert result["cases"][0]["reason"] == "OSError: no memory is measured"
    assert result["cases"][0]["ratios"]["training"]["torch"]["median"] > 0
    assert "torch.nn.LSTM" in capsys.readouterr().out


@pytest.mark.parametrize(("by", "as_native", "as_cuda"), [(1e-5, 0, 0), (1.5e-4, 1, 0), (1e-3, 1, 1)])
def test_the_backend_cuda_is_judged_by_norms(by, as_native, as_cuda, tmp_path, monkeypatch):
    spoil(monkeypatch, by)
    code, result = run_json(tmp_path, "--rivals")
    assert (code, set(result["cases"][0]["parity"]["tolerance"])) == (as_native, {"outputs", "gradients"})
    monkeypatch.setattr(bench_module, "explain_backend", lambda *args: ["cuda", "as if"])
    code, result = run_json(tmp_path, "--rivals")
    assert code == as_cuda
    assert result["cases"][0]["parity"]["tolerance"] == {"outputs_norm": 1e-3, "gradients_norm": 1e-3}


def test_difference_is_of_entries_and_of_norms():
    got, want = torch.tensor([3.0, 4.0, 1.0]), torch.tensor([3.0, 4.0, 0.0], dtype=torch.float64)
    assert difference(got, want) == (1 / 4, 1 / 5)
    assert difference(got * float("nan"), want) == (float("inf"), float("inf"))
    assert difference(None, want) == (float("inf"), float("inf"))


def test_the_median_of_calls_counts(monkeypatch):
    """With a clock in place of CUDA's events: calls are cleared for, and timed one by one."""
    clock, done = [0.0], []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = clock[0]

        def elapsed_time(self, end):
            return end.at - self.at

    def call():
        done.append("call")
        clock[0] += 900.0 if done.count("call") in (1, 5) else 2.0 + done.count("call") % 3

    def clear():
        done.append("clear")
        clock[0] += 50.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("wait"))
    assert timing.gpu_seconds(call, 1.0, clear) == 3e-3
    assert done == ["clear", "call", "wait", *["clear", "call"] * 10, "wait", "clear"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and there is none")
def test_graphs_on_a_gpu(tmp_path):
    path = tmp_path / "result.json"
    options = ("--shapes", "tiny", "--repeats", "2", "--momentum", "None", "HeavyBall", "--replicas", "2")
    assert main(["bench", "--device", "cuda", *options, "--rivals", *RIVALS, "--json", str(path)]) == 0
    plain, case = json.loads(path.read_text())["cases"]
    for name in ("ours", "torch", "torch-fp32", "torch-bf16", "torch-fp16", "torch-padded"):
        row = case["rows"][name]
        assert "reason" not in row
        assert "graph_reason" not in row
        assert (
            min(row[f"{what}_ms"] for what in ("forward", "training", "forward_graph", "training_graph")) > 0
        )
        assert row["peak_mb"] > 0
    assert case["rows"]["loop"]["training_graph_ms"] is None
    assert case["parity"]["torch-padded"]["gradients_norm"] < 5e-2
    ratio = case["rows"]["ours"]["training_graph_ms"] / plain["rows"]["ours"]["training_graph_ms"]
    assert case["against_plain"]["graph"] == ratio


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and there is none")
@pytest.mark.parametrize("lengths", ["full", "uniform"])
def test_modes_on_a_gpu(lengths, tmp_path):
    path, names = tmp_path / "result.json", ("tf32", "fp32", "autocast-fp16", "autocast-bf16")
    options = ("--lengths", lengths, "--shapes", "tiny", "--repeats", "2", "--rivals", "torch", "plain")
    assert main(["bench", "--device", "cuda", *options, "--modes", *names, "--json", str(path)]) == 0
    cases = json.loads(path.read_text())["cases"]
    assert tuple(case["mode"] for case in cases) == names
    errors = {case["mode"]: case["parity"] for case in cases}
    for name in ("ours", "torch"):
        fp32, fp16, bf16 = (errors[mode][name]["gradients_norm"] for mode in names[1:])
        # Torch's own layer computes in float16 under either autocast, and ours returns that.
        assert fp32 < 1e-5 < fp16
        assert 1e-5 < bf16 < 1e-2
    assert cases[1]["goal"]["missed"] == []
    for case in cases:
        for row in case["rows"].values():
            assert "reason" not in row
            assert min(row["forward_ms"], row["training_ms"], row["peak_mb"]) > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and there is none")
def test_the_extrapolated_cell_on_a_gpu(tmp_path):
    path = tmp_path / "result.json"
    options = ("--shapes", "tiny-extrapolated", "--momentum", "None", "--repeats", "2")
    assert main(["bench", "--device", "cuda", *options, "--json", str(path)]) == 0
    (found,) = json.loads(path.read_text())["cases"]
    assert all(found["rows"][name]["training_ms"] > 0 for name in ("ours", "torch", "loop"))


def test_nothing_private_is_written(tmp_path):
    _, result = run_json(tmp_path, "--rivals")
    assert str(tmp_path) not in json.dumps(result)
    assert result["command"].endswith("--json result.json --rivals")


def test_every_shape_cell_and_momentum_is_a_case(tmp_path):
    cases = ("--shapes", "tiny", "tiny-gru", "--cells", "rnn", "gru", "--momentum", "None", "Nesterov")
    code, result = run_json(tmp_path, *cases, "--rivals", "torch", "--dtype", "float64")
    assert code == 0
    found = [(case["shape"], case["cell"], case["momentum"]) for case in result["cases"]]
    assert found == [
        (shape, cell, momentum)
        for shape in ("tiny", "tiny-gru")
        for cell in ("rnn", "gru")
        for momentum in ("None", "Nesterov(step=1.0)")
    ]
    # Without a momentum ours is torch's, so both have one error.
    assert result["cases"][0]["parity"]["ours"] == result["cases"][0]["parity"]["torch"]


def run_own(tmp_path, *args):
    """The command without --shapes."""
    options = ["--device", "cpu", "--repeats", "1", "--no-memory", "--json", str(tmp_path / "result.json")]
    code = main(["bench", *options, *args])
    return code, json.loads((tmp_path / "result.json").read_text())


@pytest.mark.parametrize(
    "args",
    [
        ["--shape", "11,3,2,5", "7,1,1,1"],
        ["--shape", "11,3,2,5", "--shape", "7,1,1,1"],
        ["--shape", "11, 3, 2, 5", "--shape=7,1,1,1"],
    ],
)
def test_shapes_of_ones_own_are_timed(args, tmp_path, capsys):
    """They alone, with an LSTM; the record tells them apart."""
    code, result = run_own(tmp_path, *args, "--rivals", "torch")
    assert code == 0
    found = [(case["shape"], case["cell"], case["sizes"], case["steps"]) for case in result["cases"]]
    assert found == [
        ("T11-B3-D2-H5", "lstm", {"T": 11, "B": 3, "D": 2, "H": 5}, 33),
        ("T7-B1-D1-H1", "lstm", {"T": 7, "B": 1, "D": 1, "H": 1}, 7),
    ]
    assert all(case["rows"]["torch"]["training_ms"] > 0 for case in result["cases"])
    assert "T11-B3-D2-H5: lstm" in capsys.readouterr().out


def test_a_shape_of_ones_own_has_the_cells_that_are_named(tmp_path):
    code, result = run_own(tmp_path, "--shape", "6,2,3,4", "--cells", "gru", "rnn", "--rivals")
    assert code == 0
    assert [case["cell"] for case in result["cases"]] == ["gru", "rnn"]


def test_shapes_of_both_kinds_are_timed(tmp_path):
    """A shape of one's own has a name of its own, even where the sizes are those of another."""
    code, result = run_json(tmp_path, "--shape", "7,3,2,5", "--rivals")
    assert code == 0
    first, second = result["cases"]
    assert (first["shape"], second["shape"]) == ("tiny", "T7-B3-D2-H5")
    assert first["sizes"] == second["sizes"]
    assert first["parity"] == second["parity"]


@pytest.mark.parametrize("given", [["--shape", "9,9,9,9"], []])
def test_the_usual_shapes_are_timed_where_none_is_given(given, monkeypatch):
    asked = []

    def stop(**settings):
        asked.append((settings["shapes"], settings["shape"]))
        raise BadOption("enough")

    monkeypatch.setattr(bench_command, "bench", stop)
    assert main(["bench", *given]) == 2
    assert asked == [((), ["9,9,9,9"]) if given else (("pmnist128", "timit158"), [])]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, "four integers of at least 1") for text in ("311,37,5", "1,2,3,4,5", "a,b,c,d", "", "tiny")),
        *((text, "four integers of at least 1") for text in ("0,1,1,1", "1,1,1,-1", "1,1,1,1.5", "1,,1,1")),
        *((text, "at most 2147483647 numbers") for text in ("99999999999,1,1,1", "9999,999,1,999")),
        ("1,1,1,40000", "at most 2147483647 numbers"),
    ],
)
def test_other_shapes_are_refused(text, expected, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "--device", "cpu", f"--shape={text}", "--json", "result.json"]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "--shape: expected" in err
    assert expected in err
    assert repr(text) in err
    assert list(tmp_path.iterdir()) == []


def test_dtriv_says_what_its_rival_is(tmp_path):
    code, result = run_json(tmp_path, "--shapes", "tiny-dtriv")
    assert code == 0
    assert result["cases"][0]["rows"]["torch"]["layer"] == "torch.nn.RNN (tanh, free U)"


def test_a_wrong_layer_is_not_timed(tmp_path, monkeypatch, capsys):
    spoil(monkeypatch)
    monkeypatch.setattr(timing, "seconds_per_call", None)
    code, result = run_json(tmp_path)
    assert code == 1
    assert result["cases"][0]["status"] == "wrong"
    assert "rows" not in result["cases"][0]
    assert "wrong" in capsys.readouterr().out


def test_nan_is_wrong(tmp_path, monkeypatch):
    spoil(monkeypatch, by=float("nan"))
    code, result = run_json(tmp_path)
    assert code == 1
    assert result["cases"][0]["parity"]["ours"]["outputs"] is None


def test_the_tolerance_is_between_right_and_wrong(monkeypatch, tmp_path):
    """A hundredth of the error above is still seen in float64."""
    spoil(monkeypatch, by=1e-8)
    assert run_json(tmp_path, "--dtype", "float64")[0] == 1
    assert run_json(tmp_path, "--dtype", "float32")[0] == 0


def test_a_refused_case_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        mr.backends.native, "refusal", lambda net, sizes: "no modrelu" if net.cell.gates == 1 else ""
    )
    code, result = run_json(tmp_path, "--shapes", "tiny-dtriv", "tiny", "--backend", "native", "--rivals")
    assert code == 1
    assert [case["status"] for case in result["cases"]] == ["failed", "ok"]
    assert "no modrelu" in result["cases"][0]["reason"]
    assert "no modrelu" in capsys.readouterr().out


def test_an_interrupted_run_keeps_what_it_has(tmp_path, monkeypatch, capsys):
    measure = bench_module.measure

    def interrupted(case, *args):
        if case.name == "tiny-gru":
            raise KeyboardInterrupt
        return measure(case, *args)

    monkeypatch.setattr(bench_module, "measure", interrupted)
    code, result = run_json(tmp_path, "--shapes", "tiny", "tiny-gru", "--rivals", "torch")
    assert code == 130
    assert result["complete"] is False
    assert [case["shape"] for case in result["cases"]] == ["tiny"]
    assert "torch.nn.LSTM" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("None", None),
        ("HeavyBall", mr.HeavyBall()),
        ("HeavyBall()", mr.HeavyBall()),
        ("HeavyBall(0.9)", mr.HeavyBall(mu=0.9)),
        (" Adam(mu=0.6, beta=0.9, eps_in_sqrt=False)", mr.Adam(mu=0.6, beta=0.9, eps_in_sqrt=False)),
        *((repr(m), m) for name, (m, _) in MOMENTA.items() if not name.startswith("Warm")),
    ],
)
def test_momenta_are_spelt_as_their_repr(text, expected):
    assert parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "HeavyBal", "heavyball", "HeavyBall(", "HeavyBall(mu=2)", "HeavyBall(nu=0.9)", "Adam(mu=x)"),
        *("0.9", "mr.HeavyBall()", "HeavyBall()()", "HeavyBall; None", "HeavyBall(**{'mu': 0.9})", "\0"),
        *("HeavyBall(__import__('os').system('exit'))", "HeavyBall if 1 else None", "ScheduledRestart('a')"),
    ],
)
def test_other_spellings_are_refused(text):
    with pytest.raises(BadOption) as refusal:
        parse(text)
    assert "--momentum" in str(refusal.value)
    assert repr(text) in str(refusal.value)
    assert "expected" in str(refusal.value)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--shapes", "mnist", "tiny-gru"),
        ("--momentum", "HeavyBal", "HeavyBall(mu=0.6, step=1.0)"),
        ("--momentum", "HeavyBall(nu=1)", "nu"),
        ("--backend", "fast", "reference"),
        ("--repeats", "0", "at least 1"),
        ("--modes", "fp32", "CPU"),
        ("--replicas", "0", "at least 1"),
        ("--threads", "0", "from 1 to 4096"),
        ("--threads", "99999999999", "from 1 to 4096"),
        ("--momentum", "HeavyBall(mu=0.1, mu=0.2)", "twice"),
        ("--json", "nowhere/result.json", "No such file or directory"),
        ("--json", ".", "folder"),
    ],
)
def test_bad_input_is_refused_in_one_line(option, value, expected, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    assert run(option, value) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert option in err
    assert value in err
    assert expected in err
    assert list(tmp_path.iterdir()) == []
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("option", ["--shapes", "--momentum", "--modes"])
def test_nothing_to_measure_is_refused(option, capfd):
    assert run(option) == 2
    assert f"{option}: expected one of" in capfd.readouterr().err


def test_an_empty_shape_is_refused(capfd):
    assert run("--shape") == 2
    assert "--shape: expected T,B,D,H" in capfd.readouterr().err


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_modes_are_for_float32(dtype, capfd):
    assert run("--dtype", dtype, "--modes", "tf32", "autocast-fp16") == 2
    assert f"--modes: expected tf32 for --dtype {dtype}, got 'autocast-fp16'" in capfd.readouterr().err


def test_cuda_without_a_gpu_is_refused(capfd, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run("--device", "cuda") == 2
    assert "--device: expected cpu, since torch finds no CUDA GPU, got 'cuda'" in capfd.readouterr().err


@pytest.mark.parametrize(
    "args",
    [
        *(["--cells", "tanh"], ["--quick"], ["--repeats", "many"], ["--rivals", "jax"]),
        *(["--modes", "int8"], ["--lengths", "short"]),
    ],
)
def test_the_parser_refuses_the_rest(args, capfd):
    with pytest.raises(SystemExit) as refusal:
        run(*args)
    assert refusal.value.code == 2
    assert args[-1] in capfd.readouterr().err


def test_a_file_that_was_there_outlives_a_refusal(tmp_path):
    path = tmp_path / "result.json"
    path.write_text("before")
    assert run("--json", str(path), "--backend", "fast") == 2
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_the_extra_is_named_where_it_is_missing(monkeypatch, capfd):
    monkeypatch.setattr("momentumrnn.__main__.find_spec", lambda name: None)
    assert run() == 1
    err = capfd.readouterr().err
    assert install_command("all") in err
    assert err.count("\n") == 1


def test_help_names_all_shapes_and_is_quick():
    """The command line itself imports no torch before a command runs."""
    # The package brings torch; an empty one in its place leaves what __main__ imports.
    code = f"""
import sys, types
package = types.ModuleType("momentumrnn")
package.__path__ = [{str(ROOT / "momentumrnn")!r}]
sys.modules["momentumrnn"] = package
from momentumrnn.__main__ import main
try:
    main(["bench", "--help"])
except SystemExit as end:
    assert end.code == 0
assert "tyro" in sys.modules
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [name for name in ALL_SHAPES if name not in done.stdout] == []
    words = " ".join(done.stdout.replace("│", " ").split())
    assert f"(default: {' '.join(bench_command.DEFAULT_SHAPES)}; none if there is a --shape)" in words


ALL_SHAPES = dict(cases.SHAPES)


def test_the_shapes_are_the_papers():
    assert len(ALL_SHAPES) == 19
    assert ALL_SHAPES["copy190-2k"] == Shape(cell="lstm", T=2020, B=128, D=10, H=190)


def test_the_module_runs():
    done = subprocess.run([sys.executable, "-m", "momentumrnn", "--version"], capture_output=True, text=True)
    assert done.stdout == f"momentumrnn {mr.__version__}\n"


def test_the_options_are_those_of_bench():
    """Defaults stand on the command line alone, names in both."""
    assert set(inspect.signature(bench).parameters) == set(vars(Bench())) - {"json"} | {"command", "report"}


def test_provenance_takes_the_commit_it_is_told(monkeypatch):
    monkeypatch.setenv("MOMENTUMRNN_COMMIT", "abc")
    assert provenance("x")["commit"] == "abc"


def test_no_git_means_no_commit(monkeypatch, tmp_path):
    monkeypatch.delenv("MOMENTUMRNN_COMMIT", raising=False)
    monkeypatch.setattr("momentumrnn.provenance.FOLDER", tmp_path)
    assert provenance("x")["commit"] is None
    monkeypatch.setenv("PATH", os.devnull)
    assert provenance("x")["commit"] is None


def test_wrong_replicas_are_not_timed(tmp_path, monkeypatch):
    right = Replicas.forward
    monkeypatch.setattr(Replicas, "forward", lambda self, x: (right(self, x)[0] * 2, None))
    _, result = run_json(tmp_path, "--replicas", "2", "--backend", "reference", "--rivals")
    row = result["cases"][0]["rows"]["replicas-2"]
    assert row["training_ms"] is None
    assert "differ" in row["reason"]
