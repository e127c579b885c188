"""The folder that a report writes: all of it, whatever lies among the runs; what is the user's stays."""

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from run_folders import ADDING, DEMO, PMNIST, ROW, TINY, contents, edit, make, rising, train_all, write
from test_read import DAMAGED, FOREIGN, UNREADABLE

from momentumrnn.experiments.paper.recipes import recipe
from momentumrnn.experiments.runs.store import RunError
from momentumrnn.report import ReportError, figures, report

for needed in ("safetensors", "jinja2", "plotly", "matplotlib"):
    pytest.importorskip(needed, reason="runs and reports need the extra momentumrnn[all]")

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train_all(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def runs(trained, tmp_path):
    """A copy of these, to be spoilt."""
    return Path(shutil.copytree(trained, tmp_path / "runs"))


@pytest.fixture(scope="module")
def everything(trained, tmp_path_factory):
    """All of the above in two roots."""
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    shutil.copytree(trained, one, dirs_exist_ok=True)
    for seed, value in enumerate((0.93, 0.931, 0.935)):
        make(one, PMNIST, seed, rising(value, 140), rising(0.94, 120))
    make(one, PMNIST, 3, rising(0.93, 20, 20), result=False)
    make(one, PMNIST, 4, [], frozen=3)
    make(one, recipe(f"{ROW}/same-gain").config, 0, rising(0.94, 130), rising(0.94, 130))
    make(one, ADDING, 0, [0.17 - i / 1000 for i in range(12)], [0.17] * 12)
    make(one, DEMO, 0, [0.2, 0.05], [0.2, 0.05], wanted=2)
    make(two, PMNIST, 0, rising(0.93, 140), rising(0.94, 120))
    make(two, PMNIST, 1, rising(0.96, 140), rising(0.94, 120))
    make(two, PMNIST, 0, rising(0.93, 140)[:9], name="a copy", result=False)
    for i, entries in enumerate((FOREIGN | UNREADABLE).values()):
        (two / f"foreign {i} <b>&|_%").mkdir()
        for file, data in entries.items():
            (two / f"foreign {i} <b>&|_%" / file).write_bytes(data)
    for i, name in enumerate(("config: no JSON", "metrics: epochs out of order", "result: of another run")):
        DAMAGED[name](make(two, PMNIST, 5 + i, rising(0.99, 140), rising(0.99, 120)))
    (two / "file").write_text("mine")
    return one, two


CHILD = """
import sys
from pathlib import Path
from momentumrnn.report import report
report([Path(each) for each in sys.argv[2:]], Path(sys.argv[1]))
"""


def test_the_whole_report(everything, tmp_path):
    """All at once succeeds; in another process it is the same to the bit; of nothing, it leaves nothing."""
    before = [contents(root) for root in everything]
    page = report(everything, tmp_path / "out")
    assert page == tmp_path / "out" / "report.html"
    written = contents(tmp_path / "out")
    text = written["results.md"].decode()
    failed = "1 of 5 seeds failed (not finite: seed 4 at step 3)"
    assert f"93.20 ± 0.26 (3); seed 3: epoch 20 of 150, {failed}" in text
    assert "96.0" not in written["tables/table11.csv"].decode()
    assert {"figures/table11.svg", "figures/demo.pdf", "tables/others.csv"} <= set(written)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    command = [sys.executable, "-c", CHILD, str(tmp_path / "again"), *map(str, everything)]
    subprocess.run(command, check=True, env=environment, cwd=tmp_path)
    again = contents(tmp_path / "again")
    assert sorted(again) == sorted(written)
    assert [name for name in written if written[name] != again[name]] == []
    assert [contents(root) for root in everything] == before


@pytest.fixture
def quick(monkeypatch):
    """Pictures without content: drawing takes most of the time."""
    monkeypatch.setattr(figures, "saved", lambda figure, kind: kind.encode())


@pytest.fixture
def nothing(tmp_path):
    """A folder of runs that has none."""
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.mark.usefixtures("quick")
def test_what_an_older_report_left(everything, nothing, tmp_path):
    """It goes, as far as it is a report's."""
    out = tmp_path / "out"
    report([nothing], out)
    bare = contents(out)
    report(everything, out)
    assert set(contents(out)) > set(bare)
    (out / "tables/table1-losses.csv").write_text("old")
    report([nothing], out)
    assert contents(out) == bare


@pytest.mark.usefixtures("quick")
def test_files_of_the_users_stay(nothing, tmp_path):
    """Put into the folder of a report, whatever their names; but those of the report itself."""
    out = tmp_path / "out"
    report([nothing], out)
    mine = ("figures/mine.svg", "figures/setup-2.pdf", "tables/own.csv", "tables/demo-notes.tex", "notes.txt")
    for name in (*mine, "other.html", "figures/raw/photo.svg", "figures/figure12.svg", "tables/table0.csv"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("mine")
    before = contents(out)
    report([nothing], out)
    assert contents(out) == before


@pytest.mark.parametrize("name", ["notes.txt", "figures/figure1.svg", "results.md", "report.html"])
def test_folders_of_the_users_are_refused(nothing, tmp_path, name):
    """One that has something in it, and no report: nothing is written, nothing is taken away."""
    out = tmp_path / "out"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_bytes("no report: \xb1".encode("latin-1"))
    before = contents(out)
    with pytest.raises(ReportError, match="out"):
        report([nothing], out)
    assert contents(out) == before


@pytest.mark.skipif(os.name == "nt", reason="names of files are text there")
@pytest.mark.usefixtures("quick")
def test_what_is_no_text(tmp_path):
    """A folder that is named in another encoding, and half a sign where text should be."""
    folder = make(tmp_path / "runs", PMNIST, 0, rising(0.93, 140))
    own = make(tmp_path / "runs", TINY, 0, [0.5], wanted=1, name="mine", result=False)
    os.mkdir(os.fsencode(tmp_path / "runs") + b"/caf\xe9")
    edit("result.json", device="\ud800", command="\ud800")(folder)
    edit("config.json", config__momentum="Mine('\ud800')")(own)
    report([tmp_path / "runs"], tmp_path / "out")
    text = (tmp_path / "out" / "results.md").read_text()
    assert "caf" in text
    assert "93.00 (1)" in text


@pytest.mark.usefixtures("quick")
def test_a_report_within_its_runs(runs):
    """It is no run, and no news."""
    report([runs], runs / "report")
    first = contents(runs / "report")
    report([runs], runs / "report")
    assert contents(runs / "report") == first


@pytest.mark.usefixtures("quick")
def test_a_place_that_cannot_be_written(nothing, tmp_path):
    """Named, and what is there stays."""
    out = tmp_path / "out"
    out.write_text("mine")
    for place in (out, out / "below"):
        with pytest.raises((ReportError, RunError), match="out"):
            report([nothing], place)
    assert out.read_text() == "mine"
    # A folder where the page should be, a file where tables should be.
    other = tmp_path / "other"
    report([nothing], other)
    (other / "report.html").unlink()
    (other / "report.html").mkdir()
    with pytest.raises((ReportError, RunError), match=r"report\.html"):
        report([nothing], other)
    shutil.rmtree(other / "tables")
    (other / "tables").write_text("mine")
    with pytest.raises((ReportError, RunError), match="tables"):
        report([nothing], other)
    # Nothing half-written is left.
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]


@pytest.mark.usefixtures("quick")
def test_a_folder_that_is_named_as_a_picture(nothing, tmp_path):
    """It is none of ours, and no reason to stop."""
    report([nothing], tmp_path / "out")
    (tmp_path / "out" / "figures" / "demo.svg").mkdir()
    report([nothing], tmp_path / "out")
    assert (tmp_path / "out" / "figures" / "demo.svg").is_dir()


@pytest.mark.usefixtures("quick")
def test_a_report_that_was_killed(nothing, tmp_path):
    """Before it wrote its first file, or its last: the next one takes its place."""
    out = tmp_path / "out"
    out.mkdir()
    (out / ".results.md.partial").write_text("half")
    report([nothing], out)
    written = contents(out)
    for path in (out / "report.html", out / "tables" / "runs.csv"):
        path.unlink()
        path.with_name(f".{path.name}.partial").write_text("half")
    report([nothing], out)
    assert contents(out) == written


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.usefixtures("quick")
def test_a_folder_without_permission(nothing, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out").chmod(0o500)
    try:
        with pytest.raises((ReportError, RunError), match="out"):
            report([nothing], tmp_path / "out")
    finally:
        (tmp_path / "out").chmod(0o700)


def test_roots_that_are_none(tmp_path):
    (tmp_path / "file").write_text("mine")
    for root in (tmp_path / "file", tmp_path / "nowhere"):
        with pytest.raises(ReportError, match=f"expected a folder of runs, .* no folder .*{root.name}"):
            report([root], tmp_path / "out")
    assert not (tmp_path / "out").exists()


COST = {"device": "a device", "date": "2026-01-01", "rows": {}}
MEASURED = {"train_ms": 1.0, "eval_ms": 1.0, "train_mb": 1.0, "eval_mb": 1.0}
COSTS = {
    "a list": [],
    "nothing": {},
    "rows that are a list": {**COST, "rows": [1]},
    "a row that is a number": {**COST, "rows": {"ours/LSTM": 1}},
    "half a row": {**COST, "rows": {"ours/LSTM": {"train_ms": 1.0}}},
    "null": {**COST, "rows": {"ours/LSTM": {**MEASURED, "train_ms": None}}},
    "text": {**COST, "rows": {"ours/LSTM": {**MEASURED, "train_ms": "fast"}}},
    "0": {**COST, "rows": {"ours/LSTM": {**MEASURED, "train_ms": 0}, "listing/LSTM": MEASURED}},
    "NaN": {**COST, "rows": {"ours/LSTM": {**MEASURED, "train_ms": math.nan}}},
}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("content", COSTS.values(), ids=COSTS)
def test_costs_that_are_none(tmp_path, content):
    """They are named, or shown as far as they go."""
    make(tmp_path / "runs", recipe("table1/LSTM/PMNIST/256").config, 0, rising(0.93, 140))
    write(tmp_path / "runs", "cost-mine.json", content)
    try:
        report([tmp_path / "runs"], tmp_path / "out")
    except ReportError as error:
        assert "cost-mine.json" in str(error)  # noqa: PT017  (either will do)
