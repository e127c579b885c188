"""The picture docs/overview.svg: its bars and marks are those of the files that it names."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from run_tables import cells

pytest.importorskip("matplotlib", reason="plots need the extra momentumrnn[all]")

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "benchmarks/picture.py"
SPEC = importlib.util.spec_from_file_location("picture", SCRIPT)
picture = importlib.util.module_from_spec(SPEC)
sys.modules["picture"] = picture  # where dataclass looks
SPEC.loader.exec_module(picture)
PUBLISHED = ROOT / "docs/overview.svg"


def words(svg):
    """What is written, in order; letters are drawn as shapes, with the text in a comment."""
    return re.findall(r"<!-- (.*?) -->", svg)


def ends(svg, name):
    """The least and the greatest x of each shape whose id begins so."""
    ends_by_id = {}
    for gid, path in re.findall(rf'<g id="({name}-\S+)">\s*<path d="([^"]*)"', svg):
        places = [float(x) for x in re.findall(r"[ML] ([\d.]+) ", path)]
        ends_by_id[gid] = min(places), max(places)
    return ends_by_id


def widths(svg):
    return {gid: high - low for gid, (low, high) in ends(svg, "bar").items()}


def drawn(tmp_path, result, name="some.json"):
    (tmp_path / name).write_text(json.dumps(result))
    out = tmp_path / "out.svg"
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path / name, "--out", out], capture_output=True, text=True
    )
    return done, out.read_text() if out.exists() else ""


def test_the_published_picture_is_that_of_its_files(tmp_path):
    """Figures, bars and means; letters may be of other fonts."""
    published = PUBLISHED.read_text()
    (name,) = (word for line in words(published) for word in re.findall(r"[\w-]+\.json", line))
    source = ROOT / "results/bench" / name
    done, drawn_again = drawn(tmp_path, json.loads(source.read_text()), source.name)
    assert done.returncode == 0, done.stderr
    assert words(drawn_again) == words(published)
    assert widths(drawn_again) == pytest.approx(widths(published), rel=1e-3)
    assert len(ends(drawn_again, "mean")) == 10
    for gid, place in ends(drawn_again, "mean").items():
        assert place == pytest.approx(ends(published, "mean")[gid], abs=0.1)


def test_its_means_are_where_the_readme_has_them():
    """Ten means on one axis: their places are a straight line of the README's numbers."""
    rows = cells((ROOT / "README.md").read_text(), "| network | n = 128 | n = 256")
    marks, pairs = ends(PUBLISHED.read_text(), "mean"), []
    for i, (_, *shown) in enumerate(rows):
        for size, cell in zip((128, 256), shown, strict=True):
            pairs.append((float(cell.split()[0]), marks[f"mean-{i}-{size}"][0]))
    (low, left), (high, right) = min(pairs), max(pairs)
    for value, place in pairs:
        assert place == pytest.approx(left + (value - low) / (high - low) * (right - left), abs=1)


def test_bars_begin_at_zero_and_are_as_long_as_the_ratios():
    rows = cells((ROOT / "README.md").read_text(), "| T, B, D, H | ours, eager")
    svg = PUBLISHED.read_text()
    ratios = []
    for _, eager, torch_eager, _, graph, torch_graph, _ in rows:
        ratios.append(float(graph) / float(torch_graph))
        ratios.append(float(eager) / float(torch_eager))
    bars = ends(svg, "bar")
    assert len({round(low, 1) for low, _ in bars.values()}) == 1
    # The order of the rows is another.
    widths_of_bars = sorted(high - low for low, high in bars.values())
    unit = widths_of_bars[-1] / max(ratios)
    assert [width / unit for width in widths_of_bars] == pytest.approx(sorted(ratios), rel=0.02, abs=0.005)


def case(shape, momentum="None", cell="lstm", **rows):
    sizes = {"T": 7, "B": 3, "D": 2, "H": len(shape)}
    rows = {name: {"training_graph_ms": ms, "training_ms": ms and 2 * ms} for name, ms in rows.items()}
    return {"shape": shape, "cell": cell, "momentum": momentum, "sizes": sizes, "status": "ok", "rows": rows}


def result(*cases, **settings):
    versions, settings = {"torch": "2", "cudnn": "91900"}, {"dtype": "float32", **settings}
    return {"device": "a GPU", "versions": versions, "settings": settings, "cases": list(cases)}


def test_what_is_drawn(tmp_path):
    """One group a shape, HeavyBall before None, the mode tf32 alone, whatever else the file has."""
    rivals = {"torch": 8.0, "torch-fp16": 4.0, "torch-bf16": 5.0}
    cases = [
        case("a", ours=2.0, **rivals),
        case("a", "HeavyBall(mu=0.6, step=1.0)", ours=2.5, torch=9.0),
        case("a", "Adam(mu=0.6)", ours=3.5, **rivals),
        {**case("a", ours=1.0, **rivals), "mode": "fp32"},
        {**case("bb", ours=1.0, torch=10.0), "mode": "tf32"},
        case("ccc", "None", "gru", ours=1.0, **rivals),
        {**case("dddd", ours=1.0, **rivals), "status": "failed"},
        case("eeeee", ours=None, torch=1.0),
        case("ffffff", ours=1.0, native=3.0),
    ]
    shapes = picture.speeds(result(*cases))
    # The largest gain first.
    assert list(shapes) == ["T 7, B 3, D 2, H 2", "T 7, B 3, D 2, H 1"]
    assert shapes["T 7, B 3, D 2, H 1"]["graph"] == picture.Bar(2.5, 8.0, 4.0)
    assert shapes["T 7, B 3, D 2, H 1"]["eager"] == picture.Bar(5.0, 16.0, 8.0)
    done, svg = drawn(tmp_path, result(*cases))
    assert done.returncode == 0, done.stderr
    assert {"1.00 of 10.0 ms", "2.00 of 20.0 ms", "2.50 of 8.00 ms", "5.00 of 16.0 ms"} <= set(words(svg))
    assert len(widths(svg)) == 4
    again, same = drawn(tmp_path, result(*cases))
    assert (again.returncode, same) == (0, svg)


@pytest.mark.parametrize(
    "other",
    [
        result(case("f", ours=1.0, native=3.0)),
        result(case("f", ours=1.0, torch=3.0), dtype="float16"),
        result(case("f", ours=1.0, torch=3.0), lengths="uniform"),
    ],
)
def test_a_file_without_such_cases_is_refused(other, tmp_path):
    done, svg = drawn(tmp_path, other)
    assert (done.returncode, svg) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "expected LSTM cases" in done.stderr
    assert "some.json" in done.stderr
