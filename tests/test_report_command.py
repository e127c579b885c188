"""The command report: its roots, benchmarks, missing packages; and what no file of it may name."""

import json
import re
import sys
import webbrowser
from dataclasses import fields
from pathlib import Path

import pytest
from reproduction import (
    ROWS,
    _tiny,  # noqa: F401  (a fixture that all tests here use)
    assert_refused,
    figure4,
    kept,
    run_demo,
    runs_in,
    tree,
)

from momentumrnn.__main__ import Report, Reproduce, main
from momentumrnn.cli.options import recorded_command
from momentumrnn.experiments.demo import NETWORKS
from momentumrnn.installation import install_command


def test_a_file_of_costs_that_is_none_is_named(tmp_path, capsys):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/cost-abacus.json").write_text("[]")
    assert main(["report"]) == 1
    assert_refused(capsys, "cost-abacus.json", "momentumrnn reproduce table14", "move it away")


def test_a_report_of_several_roots(tmp_path, capsys):
    assert run_demo("--root", "one", "--rows", "demo/MomentumLSTM") == 0
    assert run_demo("--root", "two", "--rows", "gain") == 0
    capsys.readouterr()
    assert main(["report", "--root", "one", "two", "--out", "both"]) == 0
    assert capsys.readouterr().out.startswith(f"The page: {Path('both/report.html')}")
    written = (tmp_path / "both/results.md").read_text()
    assert "6 runs of one seed each: 6 done." in written
    assert f"3 of {len(NETWORKS)} networks trained" in written


def test_a_folder_named_twice_is_one(tmp_path):
    assert run_demo("--rows", "gain") == 0
    assert main(["report", "--root", "runs", "./runs", "--out", "twice"]) == 0
    assert "doubled (" not in (tmp_path / "twice/results.md").read_text()


def test_a_root_that_is_missing_is_named(tmp_path, capsys):
    kept(tmp_path / "one")
    assert main(["report", "--root", "one", "two"]) == 1
    assert_refused(capsys, "report: ", "--root", "expected a folder of runs", "'two'")
    assert not (tmp_path / "report").exists()


def test_a_root_of_no_runs_is_refused_and_one_that_is_a_run_says_so(tmp_path, capsys):
    kept(tmp_path / "one")
    (tmp_path / "two/something").mkdir(parents=True)
    for empty in ("two", "two/something"):
        assert main(["report", "--root", "one", empty]) == 1
        assert_refused(capsys, "--root: expected a folder of run folders", repr(empty), "which has none")
    assert run_demo("--rows", "gain", "--out", "demo") == 0
    folder, *_ = runs_in(tmp_path / "runs")
    capsys.readouterr()
    assert main(["report", "--root", str(folder)]) == 1
    assert_refused(capsys, "--root", repr(str(folder)), f"a run folder: take {str(tmp_path / 'runs')!r}")
    assert not (tmp_path / "report").exists()


def bench(path, shape):
    case = {"shape": shape, "cell": "lstm", "momentum": "None", "status": "ok", "sizes": {"T": 2, "B": 3}}
    case["rows"] = {"ours": {"training_ms": 1.5}, "torch": {"training_ms": 3.0}}
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"device": "Abacus 9000", "date": "2026-01-01", "settings": {"repeats": 3}}
    path.write_text(json.dumps({**about, "cases": [case]}))


def test_benchmarks_of_files_and_folders(tmp_path, capsys):
    kept(tmp_path / "runs")
    # Those beside the runs by default; no others that lie somewhere, such as ours.
    bench(tmp_path / "runs/bench-usual.json", "usual128")
    bench(tmp_path / "runs/other.json", "other128")
    bench(tmp_path / "results/bench/ours.json", "ours128")
    bench(tmp_path / "some/first.json", "first128")
    bench(tmp_path / "some/second.json", "second128")
    for args, names in (
        ([], {"usual128"}),
        (["--bench", "some/first.json"], {"first128"}),
        (["--bench", "some"], {"first128", "second128"}),
        (["--bench", "some", "runs/bench-usual.json"], {"first128", "second128", "usual128"}),
    ):
        assert main(["report", *args]) == 0
        page = (tmp_path / "report/report.html").read_text()
        every = ("usual128", "other128", "ours128", "first128", "second128")
        assert {name for name in every if name in page} == names
    capsys.readouterr()
    (tmp_path / "report/report.html").unlink()
    assert main(["report", "--bench", "some", "nowhere"]) == 1
    assert_refused(capsys, "report: --bench: ", "'nowhere'")
    assert not (tmp_path / "report/report.html").exists()
    # Of a folder those of the benchmark are taken; a file is to be one.
    (tmp_path / "some/other.json").write_text("{}")
    assert main(["report", "--bench", "some", "some/other.json"]) == 1
    assert_refused(capsys, "report: --bench: ", "'some/other.json'")
    assert main(["report", "--bench", "some"]) == 0


@pytest.mark.parametrize("names", [["jinja2"], ["matplotlib"], ["plotly"], ["scipy"], ["plotly", "scipy"]])
def test_packages_that_are_missing_are_named(tmp_path, capsys, monkeypatch, names):
    kept(tmp_path / "runs")
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["report"]) == 1
    expected = f"{' and '.join(names)} should be installed: {install_command('all')}"
    assert_refused(capsys, f"report: {expected}")
    assert figure4("--rows", ROWS[0], "--seeds", "0") == 0
    out = capsys.readouterr().out
    assert out.index(expected) < out.index("epoch 1/2")
    assert "The page: " not in out
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("name", ["tyro", "rich", "safetensors"])
@pytest.mark.parametrize("command", [["reproduce", "demo"], ["report"]], ids=["reproduce", "report"])
def test_without_what_every_command_needs(tmp_path, capsys, monkeypatch, name, command):
    monkeypatch.setitem(sys.modules, name, None)
    assert main(command) == 1
    assert_refused(capsys, f"{name} should be installed: {install_command('all')}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", [True, False], ids=["browser", "none"])
@pytest.mark.parametrize("command", ["reproduce", "report"])
def test_the_page_is_opened_if_that_is_wished(tmp_path, capsys, monkeypatch, command, there):
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or there)
    kept(tmp_path / "runs")
    args = [command, *(["table6", "--device", "cpu"] if command == "reproduce" else [])]
    assert main([*args, "--open"]) == 0
    assert opened == [(tmp_path / "report/report.html").as_uri()]
    assert ("No browser could be opened" in capsys.readouterr().out) is not there


def test_the_record_names_no_folders():
    """However a place is spelt, and however many follow an option."""
    assert recorded_command(["reproduce", "demo", "--out", "/home/me/report", "--root=/home/me/runs"]) == (
        "momentumrnn reproduce demo --out report --root=runs"
    )
    several = ["--bench", "/home/me/one.json", "/home/me/two.json", "--plan"]
    assert recorded_command(["reproduce", "demo", *several]) == (
        "momentumrnn reproduce demo --bench one.json two.json --plan"
    )
    rows = ["reproduce", "table1", "--rows", "LSTM/PMNIST", "MNIST/256", "--also", "as-released"]
    assert recorded_command(rows) == f"momentumrnn {' '.join(rows)}"


def test_no_file_names_a_folder_of_the_machine(tmp_path, capsys):
    """Neither in run folders nor in the report, also where one is damaged."""
    bench(tmp_path / "hermitage/one.json", "first128")
    places = [f"--{name}={tmp_path / 'hermitage' / name}" for name in ("root", "out")]
    bench_file = ["--bench", str(tmp_path / "hermitage/one.json")]
    assert run_demo("--rows", "MomentumLSTM", "gain", *places, *bench_file) == 0
    folder, *_ = runs_in(tmp_path / "hermitage/root")
    (folder / "config.json").write_text("{")
    args = [f"--root={tmp_path / 'hermitage/root'}", f"--out={tmp_path / 'hermitage/out'}", *bench_file]
    assert main(["report", *args]) == 0
    found = tree(tmp_path)
    assert any(name.endswith("report.html") for name in found)
    assert [name for name, content in found.items() if b"hermitage" in content] == []
    results = (tmp_path / "hermitage/out/results.md").read_text()
    assert "1 damaged" in results
    assert "momentumrnn reproduce demo" in results


@pytest.mark.parametrize("kind", [Reproduce, Report])
def test_the_help_has_a_sentence_for_every_option(capsys, kind):
    with pytest.raises(SystemExit) as done:
        main([kind.__name__.lower(), "--help"])
    assert done.value.code == 0
    # In a box or not, as the terminal is.
    parts = re.split(r"^[^\w\n]*--(?=[a-z])", capsys.readouterr().out, flags=re.MULTILINE)[1:]
    names = [re.match(r"[a-z-]+", part)[0].replace("-", "_") for part in parts]
    expected = [field.name for field in fields(kind) if field.name != "what"]
    assert names == ["import" if name == "imports" else name for name in expected]
    assert all(re.search(r"\w\.\s", part) for part in parts), parts
