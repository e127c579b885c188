"""The benchmark: its rival is right, wrong layers are caught, options refused in one line. Never speed."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import MOMENTA, assert_same, gradients, layer, leaf

import momentumrnn as mr
from momentumrnn import bench as bench_module
from momentumrnn import constraints
from momentumrnn.__main__ import Bench, main
from momentumrnn.bench import BadOption, Shape, bench, loop, parse
from momentumrnn.provenance import provenance

pytest.importorskip("tyro", reason="the command line needs the extra momentumrnn[all]")
pytest.importorskip("rich", reason="the command line needs the extra momentumrnn[all]")

ROOT = Path(__file__).parent.parent
TINY = {
    "tiny": Shape("lstm", 7, 3, 2, 5),
    "tiny-gru": Shape("gru", 6, 2, 3, 4),
    "tiny-dtriv": Shape("dtriv", 6, 2, 3, 4),
}


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    """Shapes and rounds that take no time."""
    monkeypatch.setattr(bench_module, "SHAPES", TINY)
    monkeypatch.setattr(bench_module, "SECONDS", 0.0)
    monkeypatch.setattr(bench_module, "PROCESSES", 1)


def run(*args):
    """The command on the CPU, without the slow parts unless asked for."""
    return main(["bench", "--device", "cpu", "--repeats", "2", "--no-memory", "--shapes", "tiny", *args])


def run_json(tmp_path, *args):
    code = run("--json", str(tmp_path / "result.json"), *args)
    return code, json.loads((tmp_path / "result.json").read_text())


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
    assert set(case["parity"]) == {"tolerance", "ours", "torch", "loop"}
    assert set(case["parity"]["tolerance"]) == {"outputs", "gradients"}
    for errors in (case["parity"][name] for name in ("ours", "torch", "loop")):
        assert 0 < errors["outputs"] < 2e-5
        assert 0 < errors["gradients"] < 2e-5
    assert set(case["rows"]) == {"ours", "torch", "loop"}
    for row in case["rows"].values():
        assert row["forward_ms"] > 0
        assert row["training_ms"] > 0
    assert case["rows"]["loop"]["peak_mb"] is None
    if sys.platform == "linux":
        assert case["rows"]["ours"]["peak_mb"] >= 0
    for kind in ("forward", "training"):
        for ratio in (case["ratios"][kind][rival] for rival in ("torch", "loop")):
            assert 0 < ratio["lowest"] <= ratio["median"] <= ratio["highest"]
    assert "torch.nn.LSTM" in capsys.readouterr().out


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


def test_dtriv_says_what_its_rival_is(tmp_path):
    code, result = run_json(tmp_path, "--shapes", "tiny-dtriv")
    assert code == 0
    assert result["cases"][0]["rows"]["torch"]["layer"] == "torch.nn.RNN (tanh, free U)"


def test_a_wrong_layer_is_not_timed(tmp_path, monkeypatch, capsys):
    spoil(monkeypatch)
    monkeypatch.setattr(bench_module, "_seconds", None)
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
        mr.backends.native, "supports", lambda net, sizes: "no modrelu" if net.cell.gates == 1 else ""
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
    assert "HeavyBall(mu=0.6, step=1.0)" in str(refusal.value)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--shapes", "mnist", "tiny-gru"),
        ("--momentum", "HeavyBal", "HeavyBall(mu=0.6, step=1.0)"),
        ("--momentum", "HeavyBall(nu=1)", "nu"),
        ("--backend", "fast", "reference"),
        ("--repeats", "0", "at least 1"),
        ("--threads", "0", "from 1 to 4096"),
        ("--threads", "99999999999", "from 1 to 4096"),
        ("--momentum", "HeavyBall(mu=0.1, mu=0.2)", "each keyword once"),
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


@pytest.mark.parametrize("option", ["--shapes", "--momentum"])
def test_nothing_to_measure_is_refused(option, capfd):
    assert run(option) == 2
    assert f"{option}: expected one of" in capfd.readouterr().err


def test_cuda_without_a_gpu_is_refused(capfd, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run("--device", "cuda") == 2
    assert "--device: expected cpu, since torch finds no CUDA GPU, got 'cuda'" in capfd.readouterr().err


@pytest.mark.parametrize(
    "args", [["--cells", "tanh"], ["--quick"], ["--repeats", "many"], ["--rivals", "jax"]]
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
    assert "pip install 'momentumrnn[all]'" in err
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


ALL_SHAPES = dict(bench_module.SHAPES)


def test_the_shapes_are_the_papers():
    assert len(ALL_SHAPES) == 17
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
