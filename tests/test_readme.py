"""The README: its code runs, its names and links exist, its figures are those in results/."""

import json
import re
import statistics
from pathlib import Path

import pytest
from run_tables import cells, outcomes, spread

import momentumrnn

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
WORDS = " ".join(README.split())
CALLED = ROOT / "results/bench/h200-called.json"
LINKS = re.findall(r"\]\(([\w./-]+)\)", README)


def test_it_is_short():
    assert len(README.splitlines()) <= 150


def test_its_code_runs():
    """All blocks, one after another, as a reader would type them."""
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    shared = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), shared)


def test_it_names_what_exists():
    """Every `name` in backticks that looks like one of ours is public."""
    words = re.findall(r"`([A-Z]\w+)[(`.]", README)
    assert {"HeavyBall", "RMSProp", "State"} <= set(words)
    assert [word for word in words if not hasattr(momentumrnn, word)] == []


@pytest.mark.parametrize("path", LINKS)
def test_its_links_lead_somewhere(path):
    assert (ROOT / path).exists()


def test_it_links_to_every_page():
    pages = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    # The site's own pages: a home, the reference made from docstrings, and a copy of CHANGELOG.md.
    assert pages - set(LINKS) - {"docs/index.md", "docs/api.md", "docs/changelog.md"} == set()


def test_the_finding_is_that_of_the_runs():
    of, rows = outcomes(), cells(README, "| network | n = 128 | n = 256")
    names = ["LSTM", "MomentumLSTM", "RMSPropLSTM", "SRLSTM", "MomentumLSTM"]
    ends = [""] * 4 + ["/same-forget-bias"]
    assert [row[0] for row in rows] == [*names[:4], "LSTM, forget bias 3.5 in place of 2"]
    for model, end, (_, small, large) in zip(names, ends, rows, strict=True):
        assert small == spread(of(f"table11/{model}/PMNIST/128{end}")[0].valid)
        assert large == spread(of(f"table1/{model}/PMNIST/256{end}")[0].valid)


def test_the_control_of_the_gain_is_that_of_the_runs():
    of, name = outcomes(), "table11/MomentumLSTM/PMNIST/128"
    control, network = (of(f"{name}{end}")[0].valid for end in ("/same-gain", ""))
    points = statistics.mean(control[seed] - network[seed] for seed in network)
    assert f"with n = 128 by {points:.2f} points less than one with the same gain" in WORDS


def test_the_finding_is_that_of_the_page_of_results():
    page = (ROOT / "docs/results.md").read_text()
    head = "| network | n = 128 | n = 256"
    assert cells(README, head) == cells(page.replace("<!-- /finding -->", ""), head)


def shown(ms):
    return f"{ms:#.3g}".rstrip(".") if ms >= 10 else f"{ms:.2f}"


def called():
    """Times of ours with HeavyBall and of cuDNN without momentum, by T, B, D, H."""
    cases = {}
    for case in json.loads(CALLED.read_text())["cases"]:
        sizes = ", ".join(str(case["sizes"][name]) for name in "TBDH")
        cases.setdefault(sizes, {})[case["momentum"].split("(")[0]] = case["rows"]
    return cases


@pytest.mark.parametrize("file", ["README.md", "docs/speed.md"])
def test_the_speeds_are_those_measured(file):
    rows, measured = cells((ROOT / file).read_text(), "| T, B, D, H | ours, eager"), called()
    assert {row[0] for row in rows} == set(measured)
    for sizes, *times in rows:
        ours, cudnn = measured[sizes]["HeavyBall"]["ours"], measured[sizes]["None"]
        expected = []
        for way in ("training_ms", "training_graph_ms"):
            rivals = [row[way] for name, row in cudnn.items() if name.startswith("torch")]
            expected += [ours[way], cudnn["torch"][way], min(rivals)]
        assert times == [shown(ms) for ms in expected]


def test_its_claims_of_calls_from_python_are_those_measured():
    """Of the five sizes of the paper; at the two others ours is slower."""
    gains = []
    for case in called().values():
        rivals = [row["training_ms"] for name, row in case["None"].items() if name.startswith("torch")]
        gains.append(min(rivals) / case["HeavyBall"]["ours"]["training_ms"])
    slower = [gain for gain in gains if gain < 1]
    faster = [gain for gain in gains if gain > 1]
    assert (len(slower), len(faster)) == (2, 5)
    assert f"it is {min(faster):.1f} to {max(faster):.1f} times faster, and slower for short" in WORDS


def test_its_claims_of_speed_are_those_measured():
    """5 to 10 times; five seeds in 1.4 to 3.7 times the time of one; the ratios on a CPU."""
    cases = {}
    for case in json.loads((ROOT / "results/bench/h200-lstm.json").read_text())["cases"]:
        times = {name: row["training_graph_ms"] for name, row in case["rows"].items()}
        cases[case["shape"], case["momentum"].split("(")[0]] = times
    gains, replicas = [], []
    for (shape, momentum), times in cases.items():
        best = min(ms for name, ms in cases[shape, "None"].items() if name.startswith("torch"))
        gains.append(best / times["ours"])
        replicas.append(times["replicas-5"] / times["ours"])
        assert momentum in ("None", "HeavyBall")
    assert f"{round(min(gains))} to {int(max(gains))} times faster" in WORDS
    assert f"{min(replicas):.1f} to {max(replicas):.1f} times as long as one" in WORDS
    page = (ROOT / "docs/speed.md").read_text()
    ratios = [float(row[1]) for row in cells(page, "| ours / torch.nn")]
    low, high = re.search(r"layers with HeavyBall take ([\d.]+) to ([\d.]+) times", WORDS).groups()
    assert (float(low), float(high)) == (min(ratios), max(ratios))


def test_the_page_of_speed_has_the_gains_that_were_measured():
    gains = {}
    for sizes, case in called().items():
        best = min(row["training_graph_ms"] for name, row in case["None"].items() if name != "ours")
        gains[sizes] = best / case["HeavyBall"]["ours"]["training_graph_ms"]
    *paper, narrow, short = sorted(gains.values(), reverse=True)
    page = " ".join((ROOT / "docs/speed.md").read_text().split())
    assert f"ours is {min(paper):.1f} to {max(paper):.1f} times as fast as the best cuDNN" in page
    assert f"it is {narrow:.1f} and {short:.1f} times as fast" in page
    eager = [case["HeavyBall"]["ours"]["training_ms"] for case in called().values()]
    cudnn = [case["None"]["torch"]["training_ms"] for case in called().values()]
    kernels = " ".join((ROOT / "docs/kernels.md").read_text().split())
    # Its table has the paper's shapes alone, for which ours takes longest and cuDNN 3.7 ms at least.
    assert f"2.1 to {max(eager):.1f} ms in TF32. cuDNN's takes 3.7 to {max(cudnn):.0f} ms" in kernels


def test_the_picture_has_the_words_that_the_readme_says_it_has():
    """The percentages of its description, from the file of the picture."""
    percent = [
        100 * case["HeavyBall"]["ours"]["training_graph_ms"] / case["None"]["torch"]["training_graph_ms"]
        for case in called().values()
    ]
    assert f"takes {min(percent):.0f} to {max(percent):.0f} % of cuDNN's time in a CUDA graph" in README
