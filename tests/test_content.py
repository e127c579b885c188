"""The order and the kinds of the report's sections, and the places of names beside a plot."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folders import DEMO, PMNIST, make, rising

from momentumrnn.experiments.paper.recipes import recipe
from momentumrnn.experiments.runs.gather import gather
from momentumrnn.report.content import content
from momentumrnn.report.figures import apart
from momentumrnn.report.text import results

pytest.importorskip("scipy.stats", reason="the report needs the extra momentumrnn[all]")


def content_of(root):
    """What the report says of the runs in a folder."""
    return content(gather([root]))


def test_without_runs_nothing_but_background_is_shown(tmp_path):
    whole = content_of(tmp_path)
    assert whole.of("run") == []
    assert {section.name for section in whole.of("background")} == {
        *(f"table{i}" for i in range(6, 11)),
        "figure1",
        "figure8",
    }
    absent = {section.name: section for section in whole.of("absent")}
    assert {"table1", "figure2", "speed", "runs"} <= absent.keys()
    assert absent["table2"].tables[0].rows[0].cells[4] == "14.87 ± 0.15; 15.42 (Helfrich, Lezcano-Casado)"
    assert absent["table1"].command == "momentumrnn reproduce table1 --seeds 0-4"


def test_sections_with_runs_come_first_and_the_demo_before_all(tmp_path):
    for seed in (0, 1):
        make(tmp_path, recipe("table11/LSTM/PMNIST/128").config, seed, rising(0.92, 140), rising(0.9, 140))
        make(tmp_path, PMNIST, seed, rising(0.93, 140), rising(0.9, 140))
    whole = content_of(tmp_path)
    kinds = [section.kind for section in whole.sections]
    assert kinds == sorted(kinds, key=["run", "background", "absent"].index)
    first = whole.sections[0]
    # Table 1 has the rows of table 11 for n = 128, too.
    assert (first.name, first.status) == ("table1", "2 of 16 networks trained to the end")
    assert first.lesson.startswith("PMNIST, n = 128: our LSTM reaches 92.00 %, best on test.")
    assert first.lesson not in first.notes
    make(tmp_path, DEMO, 0, [0.2, 0.05], [0.2, 0.05], wanted=2)
    whole = content_of(tmp_path)
    assert [section.name for section in whole.of("run")][:3] == ["demo", "table1", "table11"]
    assert whole.sections[0].introduction.startswith("1 small network was trained")


def test_markdown_has_the_same_order_and_every_section(tmp_path):
    make(tmp_path, DEMO, 0, [0.2, 0.05], [0.2, 0.05], wanted=2)
    whole = content_of(tmp_path)
    text = results(whole, [])
    heads = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert heads[:-1] == [f"{section.heading}: {section.title}" for section in whole.sections]
    table = text.partition("\n\nHyper-parameters and drawings: ")[0].rpartition("\n\n")[2]
    assert table.count("\n") == 1 + len(whole.of("run"))
    assert "\n\nNot run yet: [Table 1](#table-1-" in text


@settings(derandomize=True, deadline=None, database=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=10), st.floats(0, 0.1))
def test_names_keep_their_order_and_their_distance(places, gap):
    moved = apart(places, gap)
    ordered = sorted(range(len(places)), key=lambda i: places[i])
    assert all(moved[b] - moved[a] >= gap - 1e-9 for a, b in pairwise(ordered))
    assert all(-1e-9 <= place <= 1 + 1e-9 for place in moved)
    # Those that are far enough from each other stay where they are.
    if all(places[b] - places[a] >= gap for a, b in pairwise(ordered)):
        assert moved == pytest.approx(
            [
                min(max(p, k * gap), 1 - (len(places) - 1 - k) * gap)
                for p, k in zip(places, [ordered.index(i) for i in range(len(places))], strict=True)
            ]
        )
