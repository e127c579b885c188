"""The numbers on the report's page: they come from the folders anew, by other ways."""

import csv
import json
import re
from statistics import mean, median, stdev

import pytest
from page_browser import (
    ROOT,
    SHOWN,
    browser,
    cell,
    demo_runs,
    lines_of,
    messages,
    open_page,
    report_page,
    rows,
    unscripted,
)

from momentumrnn.experiments.paper.recipes import RECIPES, recipe

__all__ = ["browser", "messages", "open_page", "report_page", "unscripted"]  # fixtures


def accuracies(name):
    """By seed, in %, of a recipe's run: the best on the test set, and that where validation is best."""
    config = recipe(name).config
    best, valid = {}, {}
    for folder in sorted((ROOT / "results/runs").glob(f"{config.id}-s*")):
        lines = lines_of(folder)[: config.epochs]
        if len(lines) < config.epochs:
            continue
        seed = json.loads((folder / "result.json").read_text())["seed"]
        best[seed] = 100 * max(line["test_accuracy"] for line in lines)
        if lines[0].get("validation_accuracy") is not None:
            valid[seed] = 100 * max(lines, key=lambda line: line["validation_accuracy"])["test_accuracy"]
    return best, valid


def spread(values, digits):
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}"


CONTROL = re.compile(r"(?P<what>LSTM.*) \(control of (?P<network>[\w-]+): (?P<same>[\w ,]+)\)")


def test_the_demo_s_lines_are_the_medians_of_its_runs_over_epochs(open_page):
    page = open_page()
    page.locator("[data-for=demo] [data-x=epochs]").click()
    shown = page.evaluate(SHOWN, "demo")
    rows_by_name = {row["network"]: row for _, row in rows(page, "demo")}
    assert set(shown["names"]) == set(rows_by_name)
    for name, x, y in zip(shown["names"], shown["x"], shown["y"], strict=True):
        runs = demo_runs(rows_by_name[name])
        assert [x] * len(runs) == [[line["epoch"] for line in lines] for lines in runs]
        medians = [median(line["validation_loss"] for line in lines) for lines in zip(*runs, strict=True)]
        assert y == pytest.approx(medians, rel=1e-4)


def test_the_numbers_of_permuted_mnist_are_those_of_the_folders(unscripted):
    from scipy.stats import ttest_1samp, ttest_ind

    run_rows = [
        (kind, row)
        for kind, row in rows(unscripted, "table1")
        if (row["units"], row["task"]) == ("128", "PMNIST") and kind != "absent"
    ]
    for kind, row in run_rows:
        released = row["trained"] == "as released"
        control = CONTROL.fullmatch(row["network"])
        assert bool(control) == (kind == "control")
        network = f"table1/{control['network'] if control else row['network']}/PMNIST/128"
        network += "/as-released" * released
        own = f"{network}/{control['same'].partition(',')[0].replace(' ', '-')}" if control else network
        best, valid = accuracies(own)
        assert cell(row, "ours, best on test") == f"{spread(best.values(), 2)} ({len(best)})"
        assert cell(row, "ours, selected by") == (spread(valid.values(), 2) if valid else "-")
        paper = recipe(network).published[0]
        if control:
            theirs = accuracies(network)
            # By validation, where there is one.
            of, without = (theirs[1], valid) if valid else (theirs[0], best)
            assert of.keys() == without.keys()
            differences = [of[seed] - without[seed] for seed in without]
            test, centre = ttest_1samp(differences, 0), mean(differences)
            filled, empty = "network - control", "ours - paper"
        elif paper.quoted:
            empty = (cell(row, "ours - paper"), cell(row, "network - control"))
            assert (*empty, cell(row, "verdict")) == ("", "", "quoted: no verdict")
            continue
        else:
            centre = mean(best.values()) - paper.value
            # Five values with the published mean and deviation.
            others = [paper.value + paper.std * k / 2.5**0.5 for k in (-2, -1, 0, 1, 2)]
            test = ttest_ind(list(best.values()), others, equal_var=False)
            filled, empty = "ours - paper", "network - control"
        low, high = test.confidence_interval(0.95)
        assert cell(row, filled) == f"{centre:+.2f} [{low:+.2f}, {high:+.2f}]"
        assert cell(row, empty) == ""
    assert len(run_rows) >= 9
    assert {kind for kind, _ in run_rows} == {"", "control"}


def test_no_control_row_has_the_name_of_a_network(unscripted):
    """It says what it is, and of which network it is the control; "momentum" is in no verdict."""
    for name in ("table1", "table11", "figure4"):
        for kind, row in rows(unscripted, name):
            assert bool(CONTROL.fullmatch(row["network"])) == (kind == "control")
            assert "momentum better" not in row["verdict"]
            if row["verdict"].endswith(" better") and not row["verdict"].startswith("control"):
                assert row["verdict"] == f"{CONTROL.fullmatch(row['network'])['network']} better"


def test_the_numbers_of_the_demo_are_those_of_the_folders(unscripted):
    demo_rows = rows(unscripted, "demo")
    assert len(demo_rows) == 9
    for _, row in demo_rows:
        runs = demo_runs(row)
        columns = [column for column in row if column.startswith("validation loss after")]
        assert [int(re.search(r"\d+", column)[0]) for column in columns] == [300, 600]
        ends = [
            [line["validation_loss"] for lines in runs for line in lines if line["step"] == step]
            for step in (300, 600)
        ]
        assert [row[column] for column in columns] == [
            spread(ends[0], 4),
            f"{spread(ends[1], 4)} ({len(runs)})",
        ]
        # Half of 1/6, the loss of a network that always answers 1.
        below = [
            next((line["step"] for line in lines if line["validation_loss"] < 1 / 12), "never")
            for lines in runs
        ]
        order = sorted(below, key=lambda step: (step == "never", step))
        least, most = order[0], order[-1]
        assert cell(row, "steps to a loss below") == (str(least) if least == most else f"{least} to {most}")


def test_what_the_paper_prints_in_table_1_stands_beside_ours(unscripted):
    shown = {}
    for kind, row in rows(unscripted, "table1"):
        if kind == "control":
            assert row["paper"] == ""
        else:
            name = f"table1/{row['network']}/{row['task']}/{row['units']}"
            shown.setdefault(name, []).append([float(text) for text in re.findall(r"\d+\.\d+", row["paper"])])
    assert list(shown) == [name for name in RECIPES if name.startswith("table1/")]
    for name, number_lists in shown.items():
        numbers = [n for p in recipe(name).published for n in (p.value, p.std) if n is not None]
        assert numbers
        assert all(shown_numbers == numbers for shown_numbers in number_lists)


def test_what_was_not_run_says_so(unscripted):
    """In each cell in which a number of ours would stand."""
    silent, count = [], 0
    for name in unscripted.eval_on_selector_all("table[id]", "(all) => all.map((node) => node.id.slice(6))"):
        for kind, row in rows(unscripted, name):
            if kind != "absent" or name == "runs":
                continue
            for column, text in row.items():
                if column in ("ours", "verdict") or column.startswith("ours,"):
                    count += 1
                    if text not in ("not run", "not measured"):
                        silent.append((name, next(iter(row.values())), column, text))
                elif " - " in column and text:
                    silent.append((name, next(iter(row.values())), column, text))
    assert count > 50
    assert silent == []


def test_without_scripts_all_tables_are_there(open_page, unscripted, report_page):
    expected = {}
    for path in (report_page.parent / "tables").glob("*.csv"):
        with path.open(newline="") as file:
            expected[path.stem] = len(list(csv.DictReader(file)))
    ids = unscripted.eval_on_selector_all("table[id]", "(all) => all.map((node) => node.id.slice(6))")
    assert {name: len(rows(unscripted, name)) for name in ids} == expected
    drawn = open_page()
    for name in ids:
        assert unscripted.locator(f"#table-{name}").is_visible()
        assert rows(unscripted, name) == rows(drawn, name)
    assert unscripted.locator("img").count() == drawn.locator("img").count() > 0
    assert "figures" in unscripted.locator("noscript").inner_text()
