"""The paper's tables and figures: every number against other transcriptions, every row with its run."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from run_folders import make, rising

from momentumrnn.experiments import schedule
from momentumrnn.experiments.demo import NETWORKS
from momentumrnn.experiments.paper.controls import CONTROLS
from momentumrnn.experiments.paper.hyperparameters import settings
from momentumrnn.experiments.paper.printed import GOAL, GRID_MU, GRID_STEP, GRIDS
from momentumrnn.experiments.paper.published import SOURCES, Published, released_loss
from momentumrnn.experiments.paper.recipes import RECIPES, recipe, variants
from momentumrnn.experiments.paper.tables import EXHIBITS, LATER, exhibit
from momentumrnn.experiments.runs.gather import gather
from momentumrnn.experiments.schedule import ALSO, entries, exhibits, plan
from momentumrnn.report.content import content
from momentumrnn.report.text import as_csv, as_latex, as_markdown

FILE = Path(__file__).parent.parent.parent / "shared/paper/paper_tables.json"
CPU = torch.device("cpu")
LETTERS = {"e": "helfrich2018+lezcano2019cheap", "c": "casado2019trivializations", "m": "merity2018"}
# Typed from the tables of the paper once more, a row a line: validation | test, a letter for who is quoted.
PRINTED = {
    "table2": """
        LSTM 84            14.87±0.15 15.42e | 14.94±0.15 14.30e
        LSTM 120           11.77±0.14 13.93e | 11.83±0.12 12.95e
        LSTM 158           9.33±0.14 13.66e | 9.37±0.14 12.62e
        MomentumLSTM 84    10.90±0.19 | 10.98±0.18
        MomentumLSTM 120   8.00±0.30 | 8.04±0.30
        MomentumLSTM 158   5.86±0.14 | 5.87±0.15
        AdamLSTM 158       8.66±0.15 | 8.69±0.14
        RMSPropLSTM 158    9.13±0.33 | 9.17±0.33
        SRLSTM 158         5.81±0.10 | 5.83±0.10""",
    # The last two in section 3.5 alone.
    "table3": """
        LSTM 1150          61.96±0.83 | 59.71±0.99 58.80m
        MomentumLSTM 1150  60.71±0.24 | 58.62±0.22
        SRLSTM 1150        61.12±0.68 | 58.83±0.62
        AdamLSTM 1150      | 61.11±0.31
        RMSPropLSTM 1150   | 64.53±0.20""",
    "table5": """
        DTRIV 224          4.74±0.06 4.75c | 4.70±0.07 4.71c
        DTRIV 322          1.92±0.17 3.39c | 1.87±0.17 3.76c
        MomentumDTRIV 224  3.10±0.09 | 3.06±0.09
        MomentumDTRIV 322  1.21±0.05 | 1.17±0.05""",
    "table12": """
        LSTM 120           11.77±0.14 13.93e | 11.83±0.12 12.95e
        MomentumLSTM 120   8.00±0.30 | 8.04±0.30
        AdamLSTM 120       10.91±0.08 | 10.96±0.08
        RMSPropLSTM 120    11.83±0.20 | 11.90±0.19
        SRLSTM 120         8.15±0.26 | 8.21±0.26""",
}
# Training | evaluation, the same for both SRLSTM; of table 16 minutes.
COSTS = {
    "table14": """
        LSTM 6.18 2.52
        MomentumLSTM 7.43 3.16
        AdamLSTM 10.34 4.07
        RMSPropLSTM 9.94 3.96
        SRLSTM 8.34 3.16""",
    "table15": """
        LSTM 15.93 7.51
        MomentumLSTM 15.95 7.51
        AdamLSTM 25.13 7.52
        RMSPropLSTM 25.13 7.52
        SRLSTM 15.95 7.51""",
    "table16": """
        LSTM 767
        MomentumLSTM 551
        AdamLSTM 225
        RMSPropLSTM 416
        SRLSTM 348""",
}
# Tables 6 to 10 for speech and text: optimiser, rate, batch, epochs; what is the network's own.
SPEECH = {
    "LSTM": {},
    "MomentumLSTM": {"mu": 0.3, "s": 0.1},
    "AdamLSTM": {"mu": 0.3, "s": 0.1, "beta": 0.999},
    "RMSPropLSTM": {"mu": 0.0, "s": 0.1, "beta": 0.999},
    "SRLSTM": {"F": 2, "s": 0.1},
}
TEXT = {"LSTM": {}, "MomentumLSTM": {"mu": 0.0, "s": 0.6}, "SRLSTM": {"F": 2, "s": 0.6}}
HYPER = {"table6": "", "table7": "Momentum", "table8": "Adam", "table9": "RMSProp", "table10": "SR"}
FIGURE_7 = {
    "MNIST_n256_acc_pct": "MNIST, n = 256: accuracy, %",
    "TIMIT_n158_mse": "TIMIT, n = 158: mean squared error",
    "PTB_test_ppl": "Penn Treebank: test perplexity",
}
RESULTS = ("table1", "table2", "table3", "table4", "table5", "table11", "table12", "table13")


def shown(name):
    """The printed numbers of an exhibit by network, units and column."""
    lines = exhibit(name).lines
    numbers = {(line.model, line.size, line.column): line.published for line in lines}
    assert len(numbers) == len(lines)
    return numbers


def without_released_cell(numbers):
    """Without the cell that the released code ran, which has the numbers of SRLSTM."""
    for (model, size, column), published in numbers.items():
        if model.endswith("-released"):
            assert published == numbers["SRLSTM", size, column]
    return {key: published for key, published in numbers.items() if not key[0].endswith("-released")}


def published(text):
    value, std, source = re.fullmatch(r"([\d.]+)(?:±([\d.]+))?([a-z]?)", text).groups()
    return Published(float(value), float(std) if std else None, LETTERS[source] if source else "paper")


def typed(name):
    """The second transcription, as `shown`."""
    numbers = {}
    for row in PRINTED[name].strip().splitlines():
        head, *rest = re.split(r"(?<=\d) {2,}|(?<=\d) (?=\|)", row.strip(), maxsplit=1)
        model, size = head.split()
        for column, cell in zip(("validation", "test"), rest[0].split("|"), strict=True):
            if cell.strip():
                numbers[model, int(size), column] = tuple(map(published, cell.split()))
    return numbers


def costs(name):
    columns = ("minutes",) if name == "table16" else ("training", "evaluation")
    numbers = {}
    for row in COSTS[name].strip().splitlines():
        model, *values = row.split()
        for column, value in zip(columns, values, strict=True):
            numbers[model, 256, column] = (Published(float(value)),)
    return numbers


@pytest.fixture(scope="module")
def paper():
    """The paper's tables as others typed them."""
    if not FILE.exists():
        pytest.skip("needs the paper's tables beside the checkout")
    return json.loads(FILE.read_text())


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The tables of a report of no runs, by name."""
    pytest.importorskip("scipy", reason="the report needs the extra momentumrnn[all]")
    report = content(gather([tmp_path_factory.mktemp("none")]))
    return {table.name: table for section in report.sections for table in section.tables}


def rows(table):
    return list(csv.DictReader(io.StringIO(as_csv(table))))


def test_all_are_there():
    assert list(EXHIBITS) == [*(f"table{i}" for i in range(1, 17)), *(f"figure{i}" for i in range(1, 12))]
    assert [table.label for table in EXHIBITS.values()][15:17] == ["Table 16", "Figure 1"]
    assert {table.name for table in EXHIBITS.values() if table.kind == "settings"} == set(HYPER)
    assert set(RESULTS) == {table.name for table in EXHIBITS.values() if table.kind == "results"}


@pytest.mark.parametrize("name", PRINTED)
def test_tables_of_speech_and_text(name):
    assert shown(name) == typed(name)
    assert list(shown(name)) == list(typed(name))
    assert exhibit(name).later in LATER.values()
    assert not exhibit(name).recipes


@pytest.mark.parametrize("name", COSTS)
def test_tables_of_costs(name):
    assert without_released_cell(shown(name)) == costs(name)
    assert len(shown(name)) == len(costs(name)) * 6 / 5


def test_hyper_parameters_of_speech_and_text():
    """The other rows are tested with the recipes."""
    for table, family in HYPER.items():
        networks = settings(table)
        assert list(networks) == [f"{family}LSTM", f"{family}DTRIV"]
        absent = {
            model: [row for row in rows if row["dataset"] in ("TIMIT", "PTB")]
            for model, rows in networks.items()
        }
        speech = {"dataset": "TIMIT", "optimizer": "Adam", "lr": 1e-4, "batch_size": 32, "epochs": 700}
        text = {"dataset": "PTB", "optimizer": "SGD", "lr": 30, "batch_size": 20, "epochs": 500}
        want = [{**speech, **SPEECH[f"{family}LSTM"]}]
        want += [{**text, **TEXT[f"{family}LSTM"]}] if f"{family}LSTM" in TEXT else []
        assert absent[f"{family}LSTM"] == want
        orthogonal = {"dataset": "TIMIT", "K": "infty", "optimizer": "Adam", "lr": 1e-3}
        orthogonal |= {"orth_optimizer": "RMSProp", "orth_lr": 2e-4, "batch_size": 128, "epochs": 700}
        orthogonal |= {"mu": 0.3, "s": 0.1} if family else {}
        units = (224, 322) if family in ("", "Momentum") else ()
        assert absent[f"{family}DTRIV"] == [{**orthogonal, "n": n} for n in units]


def test_the_goal_is_the_quoted_lstm():
    """Table 16 counts the time to the accuracy that table 1 quotes."""
    assert 100 * GOAL == shown("table1")["LSTM", 256, "PMNIST"][0].value == 92.29


@pytest.mark.parametrize("name", RESULTS)
def test_results_against_the_file(name, paper):
    table = paper["result_tables"][name]
    want = {}
    for row in table["rows"]:
        for column, numbers in row["values"].items():
            column = {"val": "validation", "test": "test"}.get(column.partition("_")[0], column)
            want[row["model"], row["n"], column] = tuple(
                Published(
                    number["mean"],
                    number["std"],
                    "paper" if number["source"].startswith("paper") else number["source"],
                )
                for number in numbers.get("alternatives", [numbers])
            )
    assert without_released_cell(shown(name)) == want
    assert {p.source for numbers in want.values() for p in numbers} <= set(SOURCES)


def test_the_file_has_no_other_tables(paper):
    assert set(paper["result_tables"]) == set(RESULTS)
    assert set(paper["cost_tables"]) == set(COSTS)
    names = {
        f"{table}_{family}{cell}".lower() for table, family in HYPER.items() for cell in ("LSTM", "DTRIV")
    }
    assert set(paper["hyperparameter_tables"]) == names
    assert [f"figure{figure['id']}" for figure in paper["figures"]] == list(EXHIBITS)[16:]
    assert set(paper["source_keys"]) == {name for key in SOURCES for name in key.split("+")} - {"paper"}


@pytest.mark.parametrize("name", COSTS)
def test_costs_against_the_file(name, paper):
    keys = {"training": "train", "evaluation": "eval", "minutes": "minutes"}
    numbers = without_released_cell(shown(name))
    assert len(numbers) == sum(len(row) - 1 for row in paper["cost_tables"][name]["rows"])
    for row in paper["cost_tables"][name]["rows"]:
        for column, key in keys.items():
            if key in row:
                assert numbers[row["model"], 256, column] == (Published(row[key]),)


@pytest.mark.parametrize("cell", ["LSTM", "DTRIV"])
@pytest.mark.parametrize("name", HYPER)
def test_hyper_parameters_against_the_file(name, cell, paper):
    """All of tables 6 to 10, row by row, those of the recipes too."""
    model = f"{HYPER[name]}{cell}"
    assert settings(name)[model] == paper["hyperparameter_tables"][f"{name}_{model.lower()}"]["rows"]


RELEASED = {
    "LSTM/MNIST/256": "lstm-mnist",
    "LSTM/PMNIST/256": "lstm-pmnist",
    "MomentumLSTM/MNIST/256": "mlstm-mnist-mu-0.6-epsilon-0.6",
    "MomentumLSTM/PMNIST/256": "mlstm-pmnist-mu-0.6-epsilon-1.0",
    "AdamLSTM/MNIST/256": "alstm-mnist-mu-0.6-epsilon-0.6-mus-0.1",
    "AdamLSTM/PMNIST/256": "alstm-pmnist-mu-0.6-epsilon-1.0-mus-0.01",
    "RMSPropLSTM/MNIST/256": "rlstm-mnist-mu-0.0-epsilon-0.6-mus-0.9",
    "RMSPropLSTM/PMNIST/256": "rlstm-pmnist-mu-0.0-epsilon-1.0-mus-0.01",
    "SRLSTM-released/MNIST/256": "nlstm-mnist-epsilon-1.0-rs-2",
    "SRLSTM-released/PMNIST/256": "nlstm-pmnist-epsilon-0.9-rs-40",
    "LSTM/MNIST/128": "lstm-n128-mnist",
    "MomentumLSTM/MNIST/128": "mlstm-n128-mnist-mu-0.6-epsilon-0.6",
    "AdamLSTM/MNIST/128/as-released": "alstm-n128-mnist-mu-0.6-epsilon-0.6-mus-0.8",
    "RMSPropLSTM/MNIST/128": "rlstm-n128-mnist-mu-0.0-epsilon-0.6-mus-0.99",
    "SRLSTM-released/MNIST/128/as-released": "nlstm-n128-mnist-epsilon-1.0-rs-8",
}


def test_released_losses_against_the_file(paper):
    curves = {curve["run"]: curve for curve in paper["released_curves"]}
    known = {name for base in RECIPES for name in variants(base) if released_loss(name)}
    assert {name.partition("/")[2].removesuffix("/as-released") for name in known} == {
        key.removesuffix("/as-released") for key in RELEASED
    }
    for key, run in RELEASED.items():
        loss, curve = released_loss(f"table1/{key}"), curves[run]
        assert (loss.value, loss.std) == (curve["min_mean"], curve["min_sample_std"])
        assert loss.std is None or loss.seeds == len(curve["seeds"])
    assert released_loss("table11/AdamLSTM/MNIST/128") is None  # its beta was another
    assert released_loss("table1/MomentumLSTM/PMNIST/256/same-gain") is None


def test_grids_against_the_file(paper):
    figure_7 = paper["ablation"]
    assert tuple(figure_7["rows_mu"]) == GRID_MU
    assert tuple(figure_7["cols_s"]) == GRID_STEP
    assert {title: [list(row) for row in GRIDS[title]] for title in GRIDS} == {
        title: figure_7[key] for key, title in FIGURE_7.items()
    }


def test_grids_have_the_numbers_of_the_tables():
    """Where mu and step are those of a table: the same network, so the same number."""
    for title, table, model, place, mu, step in (
        ("MNIST, n = 256: accuracy, %", "table1", "MomentumLSTM", (256, "MNIST"), 0.6, 0.6),
        ("Penn Treebank: test perplexity", "table3", "MomentumLSTM", (1150, "test"), 0.0, 0.6),
        ("Penn Treebank: test perplexity", "table3", "LSTM", (1150, "test"), 0.0, 1.0),
        ("TIMIT, n = 158: mean squared error", "table2", "LSTM", (158, "validation"), 0.0, 1.0),
    ):
        value = GRIDS[title][GRID_MU.index(mu)][GRID_STEP.index(step)]
        assert value == shown(table)[model, *place][0].value
    control = recipe("table1/MomentumLSTM/MNIST/256/same-step").published
    assert control == (Published(GRIDS["MNIST, n = 256: accuracy, %"][-1][GRID_STEP.index(0.6)]),)


def test_numbers_in_the_text_against_the_file(paper):
    copying, adding, text, minutes = paper["numbers_in_text"]
    for numbers, place in ((copying, "Copying2K/190"), (adding, "Adding/128")):
        for model in ("LSTM", "MomentumLSTM"):
            row = recipe(f"figure4/{model}/{place}")
            assert [(p.value, p.std, p.source) for p in row.published] == [(numbers[model], None, "paper")]
            assert row.config.task.baseline == pytest.approx(numbers["memoryless_baseline"], rel=1e-12)
    for model in ("AdamLSTM", "RMSPropLSTM", "LSTM"):
        assert shown("table3")[model, 1150, "test"][0] == Published(*text[model])
    for (model, _, _), (value,) in without_released_cell(shown("table16")).items():
        assert value == Published(minutes[model])


@pytest.mark.parametrize("name", RESULTS)
def test_the_report_shows_the_results(name, report):
    """In its files each printed number, its deviation and whom it is quoted from; in its rows the digits."""
    shown_rows = {(row["network"], int(row["units"]), row["column"]): row for row in rows(report[name])}
    assert list(shown_rows) == list(shown(name))
    cells = {(row.cells[0], int(row.cells[1]), row.cells[2]): row.cells[4] for row in report[name].rows}
    for key, numbers in shown(name).items():
        ends = ("", *(f"_{i}" for i in range(2, len(numbers) + 1)))
        for end, number in zip(ends, numbers, strict=True):
            row = shown_rows[key]
            assert float(row[f"paper{end}"]) == number.value
            assert row[f"paper_sd{end}"] == ("" if number.std is None else str(number.std))
            assert row[f"paper_source{end}"] == number.source
            spread = "" if number.std is None else f" ± {number.std:.2f}"
            assert f"{number.value:.2f}{spread}" in cells[key].split("; ")[len(end) and int(end[1:]) - 1]
        assert cells[key].count(";") == len(numbers) - 1
        assert cells[key].count("(") == sum(number.quoted for number in numbers)
        assert shown_rows[key].get("mean", "") == ""
        assert shown_rows[key]["verdict"].startswith("not run")


@pytest.mark.parametrize("name", COSTS)
def test_the_report_shows_the_costs(name, report):
    shown_costs = [
        (row["network"], row.get("part", "minutes"), float(row["paper"])) for row in rows(report[name])
    ]
    assert shown_costs == [
        (model, column, numbers[0].value) for (model, _, column), numbers in shown(name).items()
    ]
    assert not any(row.get("ours") for row in rows(report[name]))


@pytest.mark.parametrize("name", HYPER)
def test_the_report_shows_the_hyper_parameters(name, report):
    want = [{"network": model, **row} for model, network in settings(name).items() for row in network]
    shown_rows = rows(report[name])
    assert len(shown_rows) == len(want)
    for row, values in zip(shown_rows, want, strict=True):
        assert {key: value for key, value in row.items() if value} == {k: str(v) for k, v in values.items()}


def test_the_report_shows_the_grids(report):
    for i, title in enumerate(GRIDS, 1):
        shown_rows = rows(report[f"figure7-{i}"])
        assert title.removesuffix(", %").split()[-1] in exhibit("figure7").title.lower()
        assert tuple(float(row["mu"]) for row in shown_rows) == GRID_MU
        for row, values in zip(shown_rows, GRIDS[title], strict=True):
            assert [float(row[f"step_{step:g}"]) for step in GRID_STEP] == list(values)


def test_the_report_shows_the_numbers_of_the_curves(report):
    shown_numbers = {row["recipe"]: row["paper"] for row in rows(report["figure4"])}
    assert shown_numbers == {
        name: str(recipe(name).published[0].value) if recipe(name).published else ""
        for name in exhibit("figure4").recipes
    }
    assert sum(map(bool, shown_numbers.values())) == 4


def test_tables_have_all_their_cells(report):
    """In Markdown and LaTeX each row has as many as there are columns."""
    for table in report.values():
        assert {len(row.cells) for row in table.rows} <= {len(table.columns)}
        for line in as_markdown(table).splitlines():
            assert len(re.findall(r"(?<!\\)\|", line)) == len(table.columns) + 1
        for line in as_latex(table).splitlines():
            if line.endswith(r"\\"):
                assert len(re.findall(r"(?<!\\)&", line)) == len(table.columns) - 1


def test_every_recipe_of_an_exhibit_exists():
    for table in EXHIBITS.values():
        names = {line.recipe for line in table.lines} | {n for panel in table.panels for n in panel.recipes}
        assert names - {""} <= set(RECIPES)
        ids = [recipe(name).config.id for name in table.recipes]
        assert len(set(ids)) == len(ids)
        assert set(ids) == {recipe(name).config.id for name in names - {""}}
        # What can't be run says why.
        if table.kind in ("results", "curves") and not ids:
            assert table.later or all(panel.later in LATER.values() for panel in table.panels)
        for line in table.lines:
            if line.recipe:
                _, model, task, size = line.recipe.split("/")
                assert (line.model, line.size) == (model, int(size))
                assert line.column == (task if table.name != "table16" else "minutes")


def test_every_recipe_is_in_an_exhibit():
    """But those of table 6 whose results the paper does not print."""
    ids = {recipe(name).config.id for place in EXHIBITS.values() for name in place.recipes}
    assert {name for name in RECIPES if recipe(name).config.id not in ids} == {
        f"table6/DTRIV/MNIST/{size}" for size in (170, 360, 512)
    }
    for name in RECIPES:
        table = name.partition("/")[0]
        if table != "table6":
            assert recipe(name).config.id in {recipe(other).config.id for other in exhibit(table).recipes}


@pytest.mark.parametrize("what", [*EXHIBITS, "all"])
def test_entries_are_runs_each_once(what):
    runs = entries(what)
    ids = [run.config.id for run in runs]
    assert len(set(ids)) == len(ids)
    assert all(recipe(run.name).config == run.config for run in runs)
    wanted = {recipe(name).config.id for place in exhibits(what) for name in place.recipes}
    assert set(ids) == wanted
    everything = entries(what, also=("as-released", "controls"))
    ids = [run.config.id for run in everything]
    assert len(set(ids)) == len(ids)
    assert set(ids) >= wanted


def test_entries_of_the_demo():
    runs = entries("demo")
    assert [run.name for run in runs][:2] == ["demo/LSTM", "demo/MomentumLSTM"]
    assert len(runs) == len({run.config.id for run in runs}) == len(NETWORKS)
    assert exhibits("demo") == []
    assert [run.name for run in entries("demo", ["Adam"])] == ["demo/AdamLSTM", "demo/AdamLSTM/same-rms"]


def test_entries_of_some_rows():
    assert [run.name for run in entries("table4", ["DTRIV/PMNIST/170"])] == [
        "table4/DTRIV/PMNIST/170",
        "table4/MomentumDTRIV/PMNIST/170",
    ]
    names = [run.name for run in entries("table4", ["/170", "Momentum"])]
    assert sorted(names) == sorted(n for n in exhibit("table4").recipes if "/170" in n or "Momentum" in n)
    # A whole name is that row and its variants.
    assert [run.name for run in entries("demo", ["demo/LSTM"])] == ["demo/LSTM"]
    runs = entries("table1", ["table1/LSTM/PMNIST/256"], ["as-released"])
    assert [run.name.split("/")[4:] for run in runs] == [[], ["as-released"]]
    # A part of a name may be that of a variant.
    runs = entries("table4", ["same-gain"], ["controls"])
    assert len(runs) == 3
    assert all(run.name.endswith("/same-gain") for run in runs)


def test_entries_with_variants():
    base = "table1/MomentumLSTM/PMNIST/256"
    rest = {
        (): [""],
        ("as-released",): ["", "/as-released"],
        ("same-gain",): ["", "/same-gain"],
        ("as-released", "same-gain"): ["", "/same-gain", "/as-released", "/as-released/same-gain"],
    }
    for also, ends in rest.items():
        names = {run.name for run in entries("table1", ["MomentumLSTM/PMNIST/256"], also)}
        assert names == {f"{base}{end}" for end in ends}
    # The control without a step of its own is the baseline, which is no row here.
    ids = {run.config.id for run in entries("table1", ["MomentumLSTM/PMNIST/256"], ("controls",))}
    assert ids == {
        recipe(name).config.id
        for name in (base, *(f"{base}/{key}" for key in recipe(base).variants if key in CONTROLS))
    }
    assert set(ALSO) == {"as-released", "controls", *CONTROLS}


@pytest.mark.parametrize("field", ["epochs", "log_every"])
def test_entries_of_other_lengths_are_the_same_runs(field):
    for what in ("table4", "demo"):
        paper, short = entries(what, **{field: None}), entries(what, **{field: 3})
        assert [run.config.id for run in short] == [run.config.id for run in paper]
        assert {getattr(run.config, field) for run in short} == {3}
        back = [
            replace(run.config, **{field: getattr(whole.config, field)})
            for run, whole in zip(short, paper, strict=True)
        ]
        assert back == [run.config for run in paper]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exhibit("tabel1"), "there is no 'tabel1' in the paper; did you mean 'table1'"),
        (lambda: exhibit("x"), "there is no 'x' in the paper; expected one of table1, "),
        (lambda: exhibits("tabl13"), "'tabl13'.*; did you mean 'table13'"),
        (lambda: exhibits("Demo"), "'Demo'.*; did you mean 'demo'"),
        (lambda: exhibits(""), "''.*expected demo, all, or one of table1, "),
        (lambda: entries("figur4"), "did you mean 'figure4'"),
        (lambda: entries("table17"), "'table17'.*; did you mean 'table"),
        (
            lambda: entries("table1", also=["same-gian"]),
            "--also: .*got 'same-gian'; did you mean 'same-gain'",
        ),
        (lambda: entries("table1", also=["control"]), "did you mean 'controls'"),
        (lambda: entries("table1", ["LTSM"]), "such as 'table1/LSTM/MNIST/128', got 'LTSM'"),
        (lambda: entries("table1", ["Adding"]), "got 'Adding', which is in figure4"),
        (lambda: entries("table1", ["???"]), "momentumrnn recipes lists them"),
        (lambda: entries("figure4", also=["as-released"]), "--also: .*of figure4, got as-released"),
        (lambda: entries("table1", ["LSTM", "LTSM"]), "--rows: .*got 'LTSM'"),
        (lambda: entries("demo", ["nothing"]), "such as 'demo/LSTM', got 'nothing'"),
        (lambda: entries("table14", ["LSTM"]), "--rows: expected none for table14, got 'LSTM'"),
        (lambda: entries("demo", also=["controls"]), r"--also: expected nothing.*got \['controls'\]"),
    ],
)
def test_unknown_names(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.fixture
def timed(monkeypatch):
    """What is timed: its config and how many seeds. An epoch of n seeds takes n + 1 seconds."""
    calls = []

    def seconds(config, seeds, device, threads):
        calls.append((config, seeds))
        return seeds + 1.0

    monkeypatch.setattr(schedule, "epoch_seconds", seconds)
    return calls


def test_a_plan(tmp_path, timed):
    """Done, longer than needed, stopped, failed, damaged, never begun."""
    (entry,) = entries("table11", ["MomentumLSTM/PMNIST/128"])
    config = entry.config
    make(tmp_path, config, 0, rising(0.93, 140))
    make(tmp_path, config, 1, [*rising(0.93, 140), 0.9], wanted=151)
    make(tmp_path, config, 2, rising(0.93, 20, 20), result=False)
    make(tmp_path, config, 3, rising(0.93, 20, 20), frozen=9000)
    (make(tmp_path, config, 4, rising(0.93, 140)) / "metrics.jsonl").write_text("damaged\n")
    (item,) = plan([entry], range(6), tmp_path, CPU, 1)
    assert item.entry is entry
    assert item.done == (0, 1)
    assert item.frozen == (3,)
    assert item.left == {2: 130, 4: 150, 5: 150}
    assert timed == [(config, 3)]
    assert item.seconds == 4.0 * 150
    # Other seeds are no concern of it.
    (item,) = plan([entry], [2], tmp_path, CPU)
    assert (item.done, item.frozen, item.left, item.seconds) == ((), (), {2: 130}, 2.0 * 130)
    # As far as the seed that failed came, it is there; one that was stopped has its result to write.
    (short,) = entries("table11", ["MomentumLSTM/PMNIST/128"], epochs=20)
    (item,) = plan([short], range(4), tmp_path, CPU)
    assert (item.done, item.frozen, item.left, item.seconds) == ((0, 1, 3), (), {2: 0}, 0.0)


def test_a_plan_without_runs(tmp_path, timed):
    """The folder need not be there, and is not made."""
    items = plan(entries("table1"), range(2), tmp_path / "none", CPU)
    assert all(item.left == {0: 150, 1: 150} and item.seconds == 3.0 * 150 for item in items)
    assert not (tmp_path / "none").exists()


def test_networks_of_one_kind_are_timed_once(tmp_path, timed):
    """Numbers cost no time; a task, a size, a kind of momentum or of cell does."""
    items = plan(entries("table1", ["/PMNIST/256"]), [0], tmp_path, CPU)
    assert len(items) == 6
    # Heavy ball and restarts are one kind, Adam and RMSProp another.
    kinds = {(type(config.momentum).__name__, type(config.cell).__name__) for config, _ in timed}
    assert len(timed) == len(kinds) == 4
    assert {("NoneType", "LSTM"), ("NoneType", "ExtrapolatedLSTM")} < kinds
    timed.clear()
    # More seeds take longer.
    wanted = entries("table11", ["/MomentumLSTM/PMNIST", "/SRLSTM/PMNIST"])
    make(tmp_path, wanted[0].config, 0, rising(0.93, 140))
    items = plan(wanted, [0, 1], tmp_path, CPU)
    assert [(item.done, item.seconds) for item in items] == [((0,), 2.0 * 150), ((), 3.0 * 150)]
    timed.clear()
    plan(entries("table4"), [0], tmp_path, CPU)
    assert [(config.hidden_size, bool(config.rebase_every)) for config, _ in timed] == [
        (170, True),
        (360, False),
        (512, False),
    ] * 2
