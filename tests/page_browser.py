"""The report's page of the published runs, opened in a browser, for tests."""

import json
import re
import shutil
from pathlib import Path

import pytest

from momentumrnn.report import NEEDED, report

for needed in NEEDED:
    pytest.importorskip(needed, reason=f"the report needs {needed}: pip install 'momentumrnn[all]'")
playwright = pytest.importorskip(
    "playwright.sync_api", reason="the page is tested with playwright: pip install playwright"
)

ROOT = Path(__file__).parent.parent
PHONE = 390
HANG = 900_000
"""Milliseconds after which a page hangs, however busy the machine is."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

# The buttons of a plot by what they switch, and what the plot shows.
SHOWN = """(name) => {
  const plot = document.getElementById(`plot-${name}`), layout = plot._fullLayout;
  const buttons = [...document.querySelectorAll(`[data-for="${name}"] button`)];
  const key = (button) => button.dataset.x ?? button.dataset.switch;
  const named = plot.data.filter((trace) => trace.name);
  const seen = (path) => path.getAttribute("d") && parseFloat(getComputedStyle(path).strokeWidth) > 0;
  return {
    pressed: Object.fromEntries(buttons.map((button) => [key(button), button.ariaPressed])),
    types: [layout.xaxis.type, layout.yaxis.type],
    from: layout.xaxis.range[0],
    names: named.map((trace) => trace.name),
    x: named.map((trace) => [...trace.x]),
    y: named.map((trace) => [...trace.y]),
    pictures: plot.querySelectorAll(".main-svg").length,
    lines: [...plot.querySelectorAll(".scatterlayer path.js-line")].filter(seen).length,
    points: plot.querySelectorAll(".scatterlayer .point").length,
    bars: [...plot.querySelectorAll(".barlayer .point path")].filter((bar) => bar.getBBox().width).length,
  };
}"""
# The rows of a table: the class of each, and its cells by column.
ROWS = """(table) => {
  const columns = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  const text = (cell) => cell.textContent.replaceAll("\\u00a0", " ");
  return [...table.tBodies[0].rows].map((row) => [
    row.className,
    Object.fromEntries([...row.cells].map((cell, i) => [columns[i], text(cell)])),
  ]);
}"""


@pytest.fixture(scope="module")
def browser():
    """Started and stopped here: while it runs, so does an event loop, which other tests should not meet."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("the page is tested in Chromium: install Debian's package chromium, or another's")
    with playwright.sync_playwright() as started:
        # Chromium has no sandbox for root, as whom containers run; the page is our own.
        running = started.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=HANG)
        yield running
        running.close()


@pytest.fixture(scope="module")
def report_page(browser, tmp_path_factory):
    """The report of all published runs, if there is a browser. Files of tests in one process share it."""
    page = tmp_path_factory.getbasetemp() / "published_report/report.html"
    if not page.exists():
        results = ROOT / "results"
        benchmarks = sorted((results / "bench").glob("*.json"))
        report([results / "runs", results / "demo"], page.parent, benchmarks)
    return page


@pytest.fixture
def messages():
    """What pages complain of, and ask for beside themselves. A test that expects some clears the list."""
    heard = []
    yield heard
    assert heard == []


@pytest.fixture
def open_page(browser, report_page, messages):
    """Opens the page, every fold of it if not told otherwise, and listens."""
    contexts = []

    def open_in_context(width=1200, height=900, unfolded=True, address="", **options):
        context = browser.new_context(
            viewport={"width": width, "height": height}, reduced_motion="reduce", **options
        )
        address = address or report_page.as_uri()
        contexts.append(context)
        context.set_default_timeout(HANG)
        page = context.new_page()
        page.on(
            "console", lambda message: message.type in ("error", "warning") and messages.append(message.text)
        )
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: request.url != address and messages.append(request.url))
        page.goto(address)
        if options.get("java_script_enabled", True):
            page.wait_for_selector("html[data-drawn=true]")
        if unfolded:
            unfold(page)
        return page

    yield open_in_context
    for context in contexts:
        context.close()


@pytest.fixture
def unscripted(open_page):
    """The page without its script: what it says needs none."""
    return open_page(java_script_enabled=False)


def unfold(page):
    page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")


def figures(page):
    """The data of all plots, by name."""
    return json.loads(page.locator("#figures").text_content())


def rows(page, name):
    """The class and the cells, by column, of each row of a table."""
    return page.locator(f"#table-{name}").evaluate(ROWS)


def cell(row, start):
    """The cell of the column that begins so."""
    (text,) = (text for column, text in row.items() if column.startswith(start))
    return text


def lines_of(folder):
    """The lines for epochs."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "epoch" in line]


def demo_runs(row):
    """The lines of each seed of a row of the demo. The last arguments of a momentum may be left out."""
    factor = re.fullmatch(r"LSTM, input x (.+)", row["network"])
    momentum = row["what it is"].replace("no momentum", "None")
    if factor:
        momentum = f"HeavyBall(mu=0.0, step={float(factor[1])})"
    folders = sorted((ROOT / "results/demo").iterdir())
    configs = [json.loads((folder / "config.json").read_text())["config"] for folder in folders]
    seeds = [
        lines_of(folder)
        for folder, config in zip(folders, configs, strict=True)
        if config["momentum"].startswith(momentum.rstrip(")"))
    ]
    assert len(seeds) > 1
    return seeds
