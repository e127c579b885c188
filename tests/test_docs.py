"""What the documentation shows is run and measured: pages, docstring examples, the examples folder."""

import doctest
import importlib
import itertools
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from run_tables import assert_costs_are_those_measured, cells

import momentumrnn

ROOT = Path(__file__).parent.parent
MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(momentumrnn.__path__, "momentumrnn.")
    if not name.endswith("__main__")
]


def test_the_page_on_carrying_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/carrying.md").read_text(), re.DOTALL)
    assert len(blocks) == 4
    shared = {"__name__": "carrying"}
    for block in blocks:
        exec(compile(block, "carrying.md", "exec"), shared)
    assert shared["policy"].weight_hh_l0.grad.any()


def test_the_speeds_are_those_measured():
    """Each ratio of the table in docs/speed.md is the median of a file in results/bench."""
    measured = {}
    for path in (ROOT / "results/bench").glob("cpu-*.json"):
        for case in json.loads(path.read_text())["cases"]:
            key = case["shape"], case["cell"], case["momentum"].split("(")[0]
            measured.setdefault(key, set()).add(f"{case['ratios']['training']['torch']['median']:.2f}")
    head, _, *rows = re.search(r"\| ours / torch.nn.*?\n\n", (ROOT / "docs/speed.md").read_text(), re.DOTALL)[
        0
    ].split("\n")
    momenta = head.strip("| ").split(" | ")[1:]
    rows = [row.strip("| ").split(" | ") for row in rows if row]
    assert len(rows) >= 9
    for (name, *ratios), momentum in itertools.product(rows, momenta):
        shape, cell = name.split()
        shown = ratios[momenta.index(momentum)]
        assert shown == "-" or shown in measured[shape, cell.lower(), momentum], (name, momentum)


def test_the_speeds_on_a_gpu_are_those_measured():
    """Each figure of the table of graphs in docs/speed.md is in results/bench/h200-lstm.json."""
    cases = {
        (case["shape"], case["momentum"].split("(")[0]): case["rows"]
        for case in json.loads((ROOT / "results/bench/h200-lstm.json").read_text())["cases"]
    }
    table = re.search(r"\| training step, ms.*?\n\n", (ROOT / "docs/speed.md").read_text(), re.DOTALL)[0]
    columns = [("None", "ours"), ("HeavyBall", "ours"), ("None", "torch"), ("None", "torch-fp16")]
    columns += [("None", "torch-padded"), ("HeavyBall", "replicas-5")]
    _, _, *rows = table.strip().split("\n")
    assert len(rows) == 5
    for shape, *shown in (row.strip("| ").split(" | ") for row in rows):
        measured = [cases[shape, m][name]["training_graph_ms"] for m, name in columns]
        assert [float(x) for x in shown] == [float(f"{x:.3g}" if x >= 10 else f"{x:.2f}") for x in measured]


def of_file(name):
    """The cases of a file of results/bench, by shape, momentum and mode."""
    cases = json.loads((ROOT / f"results/bench/{name}.json").read_text())["cases"]
    return {(case["shape"], case["momentum"].split("(")[0], case["mode"]): case for case in cases}


def shown_ms(rows, name):
    x = rows[name]["training_graph_ms"]
    return f"{x:.3g}" if x >= 10 else f"{x:.2f}"


def test_the_modes_are_those_measured():
    """Of the tables in docs/speed.md and docs/kernels.md: h200-modes.json, Adam from h200-adam.json."""
    modes, adam = of_file("h200-modes"), of_file("h200-adam")
    table = re.search(r"\| each mode, ms.*?\n\n", (ROOT / "docs/speed.md").read_text(), re.DOTALL)[0]
    _, _, *rows = table.strip().split("\n")
    assert len(rows) == 5
    pairs = [(mode, name) for mode in ("tf32", "fp32", "autocast-fp16") for name in ("ours", "torch")]
    for shape, *shown in (row.strip("| ").split(" | ") for row in rows):
        found = [modes.get((shape, "None", mode)) for mode, _ in pairs]
        wanted = [c and shown_ms(c["rows"], name) for c, (_, name) in zip(found, pairs, strict=True)]
        wanted.insert(
            1, (shape, "Adam", "tf32") in adam and shown_ms(adam[shape, "Adam", "tf32"]["rows"], "ours")
        )
        assert shown == [w or "-" for w in wanted]
    words = {"TF32": "tf32", "TF32 off": "fp32", "autocast, float16": "autocast-fp16"}
    words["autocast, bfloat16"] = "autocast-bf16"
    table = re.search(r"\| \| mode \| forward.*?\n\n", (ROOT / "docs/kernels.md").read_text(), re.DOTALL)[0]
    _, _, *rows = (row.strip("| ").split(" | ") for row in table.strip().split("\n"))
    assert len(rows) == len(modes)
    for shape, mode, *shown in rows:
        case = modes[shape, "None", words[mode]]
        assert [shown[1], shown[5]] == [shown_ms(case["rows"], name) for name in ("ours", "torch")]
        errors = [
            case["parity"][n][of] for n in ("ours", "torch") for of in ("outputs_norm", "gradients_norm")
        ]
        assert [shown[2], shown[3], shown[6], shown[7]] == [f"{x:.0e}" for x in errors]


def test_the_costs_of_a_step_are_those_measured():
    """In docs/carrying.md, from results/bench."""
    text, bench = (ROOT / "docs/carrying.md").read_text(), ROOT / "results/bench"
    measured = json.loads((bench / "single-step-cpu.json").read_text())["cases"]["LSTM, D 128, H 128, B 8"]
    rows = cells(text, "| | forward | ratio")
    assert len(rows) == 8
    for name, *shown in rows:
        kind, _, momentum = name.replace("`", "").partition(", ")
        (found,) = (
            figures
            for contender, figures in measured.items()
            if contender == kind or contender.startswith(f"{kind} with a State, {momentum or 'None'}(")
        )
        want = []
        for mode in ("forward", "both"):
            want += [f"{found[mode]['us']['median']:.0f}", f"{found[mode]['over_rival']['median']:.2f}"]
        assert shown == want
    loop = json.loads((bench / "policy-loop-cpu.json").read_text())["cases"]["PPO"]
    ours, theirs = (
        round(next(f["steps_per_second"]["median"] for name, f in loop.items() if part in name))
        for part in ("HeavyBall", "nn.LSTM")
    )
    assert f"{ours} environment steps a second with HeavyBall, where torch's LSTM makes {theirs} " in text


def test_the_costs_are_those_measured():
    assert_costs_are_those_measured("docs/speed.md", "| a sample, permuted MNIST", "training")


def test_the_training_steps_are_those_measured():
    """Of the table in docs/training.md, in results/bench/training-step-h200.json."""
    cases = json.loads((ROOT / "results/bench/training-step-h200.json").read_text())["cases"]
    rows = re.findall(r"\| PMNIST, H = (\d+) \| (.*) \|", (ROOT / "docs/training.md").read_text())
    assert len(rows) == 2
    for hidden, shown in rows:
        one, five = (cases[f"pmnist{hidden}, {n} seeds"]["HeavyBall(mu=0.6, step=1.0)"] for n in (1, 5))
        measured = [one["step_ms"], one["outside_ms"], five["step_ms"], five["outside_ms"]]
        expected = [*(f"{x:.2f}" for x in measured), f"{five['minutes_for_150_epochs']:.1f} min"]
        assert shown.split(" | ") == expected


def test_the_docs_cite_tests_that_exist():
    """Every test and file of tests that a page of docs names."""
    text = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    sources = {path.name: path.read_text() for path in (ROOT / "tests").glob("test_*.py")}
    files, names = set(re.findall(r"test_\w+\.py", text)), set(re.findall(r"`(test_\w+)`", text))
    assert len(names) >= 12
    assert sorted(files - set(sources)) == []
    assert [n for n in sorted(names) if not any(f"def {n}(" in source for source in sources.values())] == []


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    result = doctest.testmod(importlib.import_module(name), extraglobs={"torch": torch})
    assert result.failed == 0


def test_docstring_examples_are_there():
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [t for name in MODULES for t in finder.find(importlib.import_module(name)) if t.examples]
    assert len(found) >= 12


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(path):
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_streaming_example_is_exact():
    done = subprocess.run([sys.executable, ROOT / "examples/streaming.py"], capture_output=True, text=True)
    assert float(re.search(r"whole: (\S+)", done.stdout)[1]) < 1e-5
