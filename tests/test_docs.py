"""What the documentation shows is run: README blocks, docstring examples, the examples folder."""

import doctest
import importlib
import itertools
import json
import pkgutil
import re
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import momentumrnn
from momentumrnn.experiments.cost import MODELS as COSTED
from momentumrnn.experiments.exhibits import exhibit
from momentumrnn.experiments.paper import recipe, released_loss
from momentumrnn.experiments.report.gather import gather, outcome
from momentumrnn.experiments.report.numbers import against_seeds
from momentumrnn.experiments.report.tables import signed

ROOT = Path(__file__).parent.parent
MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(momentumrnn.__path__, "momentumrnn.")
    if not name.endswith("__main__")
]


def test_code_blocks_run():
    """All blocks of the README, one after another, as a reader would type them."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 2
    shared = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), shared)


def test_the_page_on_training_runs(tmp_path, monkeypatch):
    pytest.importorskip("safetensors", reason="runs need the extra momentumrnn[all]")
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/training.md").read_text(), re.DOTALL)
    exec(compile(block, "training.md", "exec"), {"__name__": "training"})
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_the_page_on_carrying_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/carrying.md").read_text(), re.DOTALL)
    assert len(blocks) == 4
    shared = {"__name__": "carrying"}
    for block in blocks:
        exec(compile(block, "carrying.md", "exec"), shared)
    assert shared["policy"].weight_hh_l0.grad.any()


def test_the_readme_names_what_exists():
    """Every `name` in backticks that looks like one of ours is public."""
    words = re.findall(r"`([A-Z]\w+)[(`]", (ROOT / "README.md").read_text())
    assert {"LSTM", "HeavyBall", "MomentumLSTM", "State"} <= set(words)
    assert [w for w in words if not hasattr(momentumrnn, w)] == []


@pytest.mark.parametrize("path", re.findall(r"\]\(([\w./]+)\)", (ROOT / "README.md").read_text()))
def test_links_lead_somewhere(path):
    assert (ROOT / path).exists()


def test_the_speeds_are_those_measured():
    """Each ratio of the README's table is the median of a file in results/bench."""
    measured = {}
    for path in (ROOT / "results/bench").glob("cpu-*.json"):
        for case in json.loads(path.read_text())["cases"]:
            key = case["shape"], case["cell"], case["momentum"].split("(")[0]
            measured.setdefault(key, set()).add(f"{case['ratios']['training']['torch']['median']:.2f}")
    head, _, *rows = re.search(r"\| ours / torch.nn.*?\n\n", (ROOT / "README.md").read_text(), re.DOTALL)[
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
    """Each figure of the README's other table is in results/bench/h200-lstm.json."""
    cases = {
        (case["shape"], case["momentum"].split("(")[0]): case["rows"]
        for case in json.loads((ROOT / "results/bench/h200-lstm.json").read_text())["cases"]
    }
    table = re.search(r"\| training step, ms.*?\n\n", (ROOT / "README.md").read_text(), re.DOTALL)[0]
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
    """Of the README's table and that of docs/kernels.md: h200-modes.json, Adam from h200-adam.json."""
    modes, adam = of_file("h200-modes"), of_file("h200-adam")
    table = re.search(r"\| each mode, ms.*?\n\n", (ROOT / "README.md").read_text(), re.DOTALL)[0]
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


def outcomes():
    """Of a recipe's five seeds in results/runs, by the report's own reading."""
    runs = gather([ROOT / "results/runs"])

    def of(name, epochs=150, **changes):
        config = replace(recipe(name).config, **changes)
        found = outcome(runs.of(config), epochs)
        assert sorted([*found.seeds, *found.frozen]) == [0, 1, 2, 3, 4]
        return found, runs.of(config)

    return of


def spread(values):
    if not values:
        return "-"
    found = f"{statistics.mean(values.values()):.2f} ± {statistics.stdev(values.values()):.2f}"
    return found if len(values) == 5 else f"{found} ({len(values)} seeds)"


def cells(text, head):
    """The rows of the table that begins so, as lists of cells."""
    table = text[text.index(head) :].partition("\n\n")[0]
    return [row.strip("| ").split(" | ") for row in table.strip().split("\n")[2:]]


def test_the_accuracies_are_those_of_the_runs():
    """Of the tables in docs/results.md: accuracies, minutes, and when 92.29 % was there."""
    of, text = outcomes(), (ROOT / "docs/results.md").read_text()
    head = "| recipe | by validation"
    rows = cells(text, head) + cells(text[text.index(head) + 1 :], head)
    assert len(rows) == 27
    for name, *shown in rows:
        found, seeds = of(name.strip("`"))
        at = [next((x for x in s.epochs if x["test_accuracy"] >= 0.9229), None) for s in seeds.values()]
        minutes = max(seed.epochs[-1]["seconds"] for seed in seeds.values()) / 60
        late = sum(line is None for line in at)
        epochs, seconds = (
            between([round(line[key]) for line in at if line is not None]) for key in ("epoch", "seconds")
        )
        if late:
            epochs = f"{epochs}, {late} never" if late < 5 else "never"
        assert shown == [spread(found.valid), spread(found.best), shown[2], f"{minutes:.1f}", epochs, seconds]
        for p in recipe(name.strip("`")).published:
            assert f"{p.value:g}" + (" q" if p.quoted else f" ± {p.std:g}") in shown[2]


def test_the_accuracies_on_mnist_are_those_of_the_runs():
    pytest.importorskip("scipy", reason="intervals need the extra momentumrnn[all]")
    of, text = outcomes(), (ROOT / "docs/results.md").read_text()
    rows = cells(text, "| recipe | test accuracy, by validation")
    assert len(rows) == 3
    plain = of("table1/LSTM/MNIST/128")[0]
    for name, *shown in rows:
        found, seeds = of(name.strip("`"))
        published = "; ".join(
            f"{p.value:g}" + (" q" if p.quoted else f" ± {p.std:g}")
            for p in recipe(name.strip("`")).published
        )
        minutes = max(seed.epochs[-1]["seconds"] for seed in seeds.values()) / 60
        assert shown == [spread(found.valid), spread(found.best), published, f"{minutes:.1f}"]
        if found.valid != plain.valid:
            gain = signed(against_seeds(found.valid, plain.valid), 2)
            assert gain.removeprefix("+") in text.partition("## MNIST, pixel")[2].partition("\n## ")[0]


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


def between(values):
    if not values:
        return "-"
    return " to ".join(map(str, sorted({min(values), max(values)})))


def test_the_accuracies_of_the_readme_are_those_of_the_runs():
    of, rows = outcomes(), cells((ROOT / "README.md").read_text(), "| | n = 128: ours")
    names = [*(row[0].partition(",")[0] for row in rows[:-1]), "MomentumLSTM"]
    assert names[:-1] == ["LSTM", "MomentumLSTM", "AdamLSTM", "RMSPropLSTM", "SRLSTM-released", "SRLSTM"]
    for model, row in zip(names, rows, strict=True):
        for size, shown, printed in ((128, *row[1:3]), (256, *row[3:5])):
            name = f"table{11 if size == 128 else 1}/{model}/PMNIST/{size}"
            if row is rows[-1]:
                name += "/same-forget-bias"
            ran = (ROOT / "results/runs" / f"{recipe(name).config.id}-s0").is_dir()
            assert shown == (spread(of(name)[0].best) if ran else "not run yet")
            for p in recipe(name).published:
                assert (f"{p.value:g}" if p.quoted else f"{p.value:.2f} ± {p.std:.2f}") in printed


def test_the_gains_are_those_of_the_runs():
    """Over LSTM of the same size and training, and the losses beside those that the authors released."""
    pytest.importorskip("scipy", reason="intervals need the extra momentumrnn[all]")
    of, text = outcomes(), (ROOT / "docs/results.md").read_text()
    rows = cells(text, "| recipe | by validation | best on test | in print")
    assert len(rows) == 23
    for name, *shown in rows:
        table, model, _, size, *ends = name.strip("`").split("/")
        plain = f"{table}/LSTM/PMNIST/{size}"
        found, base = of(name.strip("`"))[0], of("/".join([plain, *ends[: ends[:1] == ["as-released"]]]))[0]
        for a, b, cell in ((found.valid, base.valid, shown[0]), (found.best, base.best, shown[1])):
            assert cell == (signed(against_seeds(a, b), 2) or "-" if a else "-")
        own = recipe(name.strip("`")).published if model != "SRLSTM" else ()
        gains = sorted(own[0].value - p.value for p in recipe(plain).published) if own else []
        assert shown[2] == (" to ".join(f"{gain:+.2f}" for gain in gains) or "-")
    for name, theirs, ours in cells(text, "| recipe | theirs"):
        released, lowest = released_loss(name.strip("`")), of(name.strip("`"))[0].lowest.values()
        assert theirs == f"{released.value:.4f} ± {released.std:.4f}"
        assert ours == f"{statistics.mean(lowest):.4f} ± {statistics.stdev(lowest):.4f}"


def test_the_precisions_are_those_of_the_runs():
    of, text = outcomes(), (ROOT / "docs/results.md").read_text()
    rows = iter(cells(text, "| | by validation"))
    differences = []
    for name in ("table11/MomentumLSTM/PMNIST/128", "table1/SRLSTM-released/PMNIST/256"):
        late = {}
        for precision in ("tf32", "float32"):
            found, seeds = of(name, 40, precision=precision)
            words, *shown = next(rows)
            _, model, _, size = name.split("/")
            assert words.startswith(f"{model}, n = {size}, {precision}")
            assert shown == [spread(found.valid), spread(found.best)]
            late[precision] = [
                statistics.mean(100 * line["test_accuracy"] for line in seed.epochs[20:40])
                for _, seed in sorted(seeds.items())
            ]
        apart = [b - a for a, b in zip(late["tf32"], late["float32"], strict=True)]
        differences.append(spread(dict(enumerate(apart))))
    assert not list(rows)
    first, second = differences
    assert f"less tf32 is {first} (mean" in text
    assert f"and {second}: no" in text


def test_the_norms_are_those_of_the_runs():
    """Of SRLSTM-released with n = 128: in float32 on a CPU, and the least and the most of those above."""
    name, text = "table11/SRLSTM-released/PMNIST/128", (ROOT / "docs/results.md").read_text()

    def norms(seed):
        """Their means over the first four epochs."""
        of, begun = [0.0] * 4, 0
        for line in seed.steps:
            if line["step"] <= 4 * 430:
                of[(line["step"] - 1) // 430] += line["norm"] * (line["step"] - begun) / 430
            begun = line["step"]
        return of

    def shown(norm):
        return f"{norm:.2g}" if norm < 1e3 else f"{norm:.0e}"

    config = replace(recipe(name).config, precision="float32")
    (seed,) = gather([ROOT / "results/alone"]).of(config).values()
    assert "to means of {}, {}, {} and {} in its first".format(*map(shown, norms(seed))) in text
    every = zip(*map(norms, outcomes()(name)[1].values()), strict=True)
    assert ", ".join(f"{shown(min(of))} and {shown(max(of))}" for of in every) in text


def test_the_time_of_a_seed_alone_is_that_of_its_run():
    config = recipe("table1/RMSPropLSTM/PMNIST/256").config
    (seed,) = gather([ROOT / "results/alone"]).of(config).values()
    at = next(line for line in seed.epochs if line["test_accuracy"] >= 0.9229)
    text = (ROOT / "docs/results.md").read_text()
    assert f"has 92.29 % after {at['epoch']} epochs and {at['seconds']:.0f} seconds" in text


def test_the_losses_are_those_of_the_runs():
    """Of the table of adding and copying in docs/results.md."""
    of, rows = outcomes(), cells((ROOT / "docs/results.md").read_text(), "| recipe | training loss")
    assert len(rows) == 17
    for name, trained, published, test in rows:
        found, _ = of(name.strip("`"), recipe(name.strip("`")).config.epochs)
        for shown, values in ((trained, found.trained.values()), (test, found.valid.values())):
            assert shown == f"{statistics.mean(values):.5f} ± {statistics.stdev(values):.5f}"
        assert published == (" ".join(f"{p.value:g}" for p in recipe(name.strip("`")).published) or "-")


@pytest.mark.parametrize(
    ("file", "head", "part"),
    [
        ("README.md", "| a sample, permuted MNIST", "training"),
        ("docs/results.md", "| evaluation of a sample", "evaluation"),
    ],
)
def test_the_costs_are_those_measured(file, head, part):
    """In results/runs/cost-nvidia-h200.json."""
    measured = json.loads((ROOT / "results/runs/cost-nvidia-h200.json").read_text())["rows"]
    rows = cells((ROOT / file).read_text(), head)
    assert [row[0] for row in rows] == list(COSTED)
    key = {"training": "train", "evaluation": "eval"}[part]
    for model, *shown in rows:
        found = [
            f"{measured[name][f'{key}_{unit}']:.3g}" if (name := f"{kind}/{model}") in measured else "-"
            for unit in ("ms", "mb")
            for kind in ("ours", "torch.nn", "listing")
        ]
        assert shown[:3] + shown[4:7] == found
        printed = [
            next(
                line.published[0].value
                for line in exhibit(table).lines
                if (line.model, line.column) == (model, part)
            )
            for table in ("table14", "table15")
        ]
        assert [shown[3], shown[7]] == [f"{value:g}" for value in printed]


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
