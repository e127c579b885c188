"""The picture of docs/speed.svg: its bars and figures are those of the file it names, and of the README."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="plots need the extra momentumrnn[all]")

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "benchmarks/picture.py"
SPEC = importlib.util.spec_from_file_location("picture", SCRIPT)
picture = importlib.util.module_from_spec(SPEC)
sys.modules["picture"] = picture  # where dataclass looks
SPEC.loader.exec_module(picture)


def words(svg):
    """What is written, in order; letters are drawn as shapes, with the text in a comment."""
    return re.findall(r"<!-- (.*?) -->", svg)


def bars(svg):
    """The width of each bar, by its name."""
    found = re.findall(r'<g id="(\S+-(?:ours|best|tf32))">\s*<path d="([^"]*)"', svg)
    widths = {}
    for name, path in found:
        places = [float(x) for x in re.findall(r"[ML] ([\d.]+) ", path)]
        widths[name] = max(places) - min(places)
    return widths


def source():
    """The file that the picture in docs says it is from."""
    (name,) = re.findall(r"; (\S+\.json)\.", (ROOT / "docs/speed.svg").read_text())
    return ROOT / "results/bench" / name


def drawn(tmp_path, result, name="some.json"):
    (tmp_path / name).write_text(json.dumps(result))
    out = tmp_path / "out.svg"
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path / name, "--out", out], capture_output=True, text=True
    )
    return done, out.read_text() if out.exists() else ""


def test_the_picture_is_that_of_its_file(tmp_path):
    """Figures and bars; letters may be of other fonts."""
    kept = (ROOT / "docs/speed.svg").read_text()
    done, made = drawn(tmp_path, json.loads(source().read_text()), source().name)
    assert done.returncode == 0, done.stderr
    assert words(made) == words(kept)
    assert bars(made) == pytest.approx(bars(kept), rel=1e-3)


def test_bars_are_as_long_as_what_was_measured():
    """Read from the file, not by the script; the bar of cuDNN in TF32 is the unit at each shape."""
    result, widths = json.loads(source().read_text()), bars((ROOT / "docs/speed.svg").read_text())
    rows = {}
    for case in result["cases"]:
        if case["cell"] == "lstm" and case.get("mode", "tf32") == "tf32":
            rows[case["shape"], case["momentum"].split("(")[0]] = {
                name: row["training_graph_ms"] for name, row in case["rows"].items()
            }
    shapes = {shape for shape, _ in rows}
    assert set(widths) == {f"{shape}-{bar}" for shape in shapes for bar in ("ours", "best", "tf32")}
    assert len(shapes) >= 5
    text = words((ROOT / "docs/speed.svg").read_text())
    for shape in shapes:
        plain, unit = rows[shape, "None"], widths[f"{shape}-tf32"]
        best = min(ms for name, ms in plain.items() if name.startswith("torch"))
        ours = rows[shape, "HeavyBall"]["ours"]
        assert widths[f"{shape}-ours"] / unit == pytest.approx(ours / plain["torch"], abs=1e-3)
        assert widths[f"{shape}-best"] / unit == pytest.approx(best / plain["torch"], abs=1e-3)
        times = f"{best / ours:.1f} to {plain['torch'] / ours:.1f} times as fast"
        assert any(line.endswith(times) for line in text)


def test_the_picture_has_the_figures_of_the_readme():
    """Of its table of training steps: ours with HeavyBall, cuDNN."""
    table = re.search(r"\| training step, ms.*?\n\n", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    head, _, *rows = (line.strip("| ").split(" | ") for line in table.strip().split("\n"))
    ours, theirs = head.index("with HeavyBall"), head.index("cuDNN")
    text = words((ROOT / "docs/speed.svg").read_text())
    for row in rows:
        place = text.index(row[0])
        assert text[place - 3].startswith(f"{row[ours]} ms: ")
        assert text[place - 1] == f"{row[theirs]} ms"


def case(shape, momentum="None", cell="lstm", **rows):
    sizes, rows = {"T": 7, "B": 3, "D": 2, "H": 5}, {k: {"training_graph_ms": v} for k, v in rows.items()}
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
        {**case("b", ours=1.0, torch=10.0), "mode": "tf32"},
        case("c", "None", "gru", ours=1.0, **rivals),
        {**case("d", ours=1.0, **rivals), "status": "failed"},
        case("e", ours=None, torch=1.0),
        case("f", ours=1.0, native=3.0),
    ]
    done, svg = drawn(tmp_path, result(*cases))
    assert done.returncode == 0, done.stderr
    # The largest gain first.
    assert words(svg)[:8] == [
        *("1.00 ms: 10.0 to 10.0 times as fast", "10.0 ms, TF32", "10.0 ms", "b", "T 7, B 3, H 5"),
        *("2.50 ms: 1.6 to 3.2 times as fast", "4.00 ms, fp16", "8.00 ms"),
    ]
    assert len(bars(svg)) == 6
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
