"""The report's section on speed, from files of `momentumrnn bench --json` whose numbers are known."""

import json
from pathlib import Path

import pytest

import momentumrnn.report as package
from momentumrnn.experiments.runs.gather import Runs
from momentumrnn.report import figures, speed
from momentumrnn.report.content import content

pytest.importorskip("matplotlib", reason="the report needs the extra momentumrnn[all]")

ROOT = Path(__file__).resolve().parent.parent


def case(shape, ours, torch=None, *, momentum="None", graph=None, **more):
    """A case as the benchmark writes it, in milliseconds."""
    rows = {"ours": {"training_ms": ours}}
    if graph is not None:
        rows["ours"]["training_graph_ms"] = graph
    if torch is not None:
        rows["torch"] = {"training_ms": torch, "training_graph_ms": torch / 2}
    case = {"shape": shape, "cell": "lstm", "momentum": momentum, "status": "ok", "sizes": {"T": 2, "B": 3}}
    return {**case, "rows": rows, **more}


def write(path, *cases, device="Abacus 9000", date="2026-01-01", repeats=3):
    benchmark = {"device": device, "date": date, "settings": {"repeats": repeats}, "cases": cases}
    path.write_text(json.dumps(benchmark))
    return path


def shown(*files):
    return {(timing.device, timing.label): (timing.ours, timing.torch) for timing in speed.timings(files)}


def test_a_case_is_a_training_step_of_ours_and_of_torch(tmp_path):
    cases = (case("first", 2.0, 4.0), case("second", 3.0, momentum="HeavyBall(mu=0.9)"))
    times = shown(write(tmp_path / "bench-a.json", *cases))
    assert times == {
        ("Abacus 9000", "first lstm, plain"): (2.0, 4.0),
        ("Abacus 9000", "second lstm, HeavyBall"): (3.0, None),
    }


def test_on_a_gpu_it_is_replayed_from_a_graph_where_that_works(tmp_path):
    """Both layers in the same way: a time of calls one by one is not beside one of a graph."""
    times = shown(
        write(tmp_path / "a.json", case("first", 2.0, 4.0, graph=0.5), case("second", 2.0, 4.0, graph=0))
    )
    assert times == {
        ("Abacus 9000", "first lstm, plain"): (0.5, 2.0),
        ("Abacus 9000", "second lstm, plain (called one by one)"): (2.0, 4.0),
    }


@pytest.mark.parametrize("turned", [False, True])
def test_of_one_layer_the_newest_counts(tmp_path, turned):
    """On each device by itself, however the files are named."""
    names = ("b", "a") if turned else ("a", "b")
    old, new = (tmp_path / f"{name}.json" for name in names)
    write(old, case("first", 9.0, 9.0), date="2026-01-01")
    write(new, case("first", 2.0, 4.0), date="2026-02-01")
    other = write(tmp_path / "other.json", case("first", 7.0, 8.0), device="Slide rule")
    times = shown(old, new, other)
    assert times == {
        ("Abacus 9000", "first lstm, plain"): (2.0, 4.0),
        ("Slide rule", "first lstm, plain"): (7.0, 8.0),
    }


@pytest.mark.parametrize(
    "other",
    [
        case("x", 2.0, status="parity failed"),
        case("x", 2.0, mode="fp32"),
        case("x", 2.0, steps=5),
        case("x", 0.0),
        case("x", float("inf")),
        case("x", "fast"),
    ],
    ids=["failed", "another mode", "packed", "no time", "infinite", "text"],
)
def test_other_cases_are_left_out(tmp_path, other):
    assert shown(write(tmp_path / "a.json", other)) == {}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cases": 1}', "[" * 100_000])
def test_other_files_are_left_out(tmp_path, text):
    (tmp_path / "bench-a.json").write_text(text)
    assert shown(tmp_path / "bench-a.json", tmp_path / "nowhere.json") == {}
    assert shown(write(tmp_path / "memory.json", case("first", 2.0), repeats=1)) == {}


def test_bars_are_relative_to_torch_and_the_table_has_all(tmp_path):
    cases = (case("first", 2.0, 4.0), case("second", 6.0, 4.0), case("third", 3.0))
    timings = speed.timings([write(tmp_path / "bench-a.json", *cases)])
    (bars,) = speed.bars(timings)
    assert (bars.form, bars.unit) == ("bars", "torch.nn = 1")
    assert bars.labels == ("first lstm, plain", "second lstm, plain")
    assert bars.groups == {"ours": (0.5, 1.5), "torch.nn": (1.0, 1.0)}
    assert bars.texts == {"ours": ("2 ms", "6 ms"), "torch.nn": ("4 ms", "4 ms")}
    assert "first lstm, plain: ours 2 ms, torch.nn 4 ms" in bars.alt
    axes = figures.bars(bars).axes[0]
    assert (axes.get_xscale(), axes.get_xlim()[0]) == ("linear", 0)
    (table,) = speed.tables(timings)
    assert [row.cells[1:] for row in table.rows] == [
        ("2", "4", "2"),
        ("6", "4", "0.667"),
        ("3", "not measured", ""),
    ]
    assert table.note == "Measured on Abacus 9000. From bench-a.json."


def test_far_slower_layers_are_dots(tmp_path):
    """Bars on one linear axis would hide all others."""
    (bars,) = speed.bars(
        speed.timings([write(tmp_path / "a.json", case("x", 80.0, 1.0), case("y", 1.0, 2.0))])
    )
    assert bars.form == "dots"
    axes = figures.bars(bars).axes[0]
    assert axes.get_xscale() == "log"
    assert not axes.patches


def section(bench=(), page=""):
    whole = content(Runs({}, []), (), bench, page)
    (speed_section,) = [section for section in whole.sections if section.name == "speed"]
    return speed_section


def test_without_measurements_it_says_how_to_make_them(tmp_path):
    assert section().kind == "absent"
    assert section().command == "momentumrnn bench --json runs/bench-NAME.json"
    measured = section([write(tmp_path / "bench-a.json", case("first", 2.0, 4.0))])
    assert (measured.kind, measured.status, len(measured.tables), len(measured.bars)) == (
        "run",
        "1 layer measured",
        1,
        1,
    )


@pytest.mark.skipif(not package._PACKAGE.is_relative_to(ROOT), reason="another momentumrnn is installed")
def test_the_clone_is_that_of_the_package():
    assert package._speed_page(ROOT / "report") == "../docs/speed.md"


def test_our_own_measurements_are_linked_within_a_clone(tmp_path, monkeypatch):
    """Elsewhere only the words: the way to a clone would name folders of this machine."""
    clone = tmp_path / "clone"
    (clone / "docs").mkdir(parents=True)
    monkeypatch.setattr(package, "_PACKAGE", clone / "momentumrnn")
    assert package._speed_page(clone / "report") == ""
    (clone / "docs/speed.md").write_text("# Speed")
    assert package._speed_page(clone / "report") == "../docs/speed.md"
    assert package._speed_page(clone / "some/where") == "../../docs/speed.md"
    assert package._speed_page(tmp_path / "report") == ""
    monkeypatch.chdir(clone)
    assert package._speed_page(Path("report")) == "../docs/speed.md"
    place, words = section(page="../docs/speed.md").link
    assert (place, words.endswith("docs/speed.md in the repository")) == ("../docs/speed.md", True)


def test_measurements_beside_the_runs_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "saved", lambda figure, kind: kind.encode())
    root = tmp_path / "runs"
    root.mkdir()
    write(root / "bench-mine.json", case("mine128", 2.0, 4.0))
    write(root / "mine.json", case("other128", 2.0, 4.0))
    page = package.report([root], tmp_path / "out").read_text()
    assert "mine128" in page
    assert "other128" not in page
    given = write(tmp_path / "given.json", case("given128", 2.0, 4.0))
    page = package.report([root], tmp_path / "out", [given]).read_text()
    assert "given128" in page
    assert "mine128" not in page
