"""The report's page in a browser: what it draws, says and asks for. Numbers come from the folders anew."""

import csv
import json
import re
import shutil
from itertools import pairwise
from pathlib import Path
from statistics import mean, median, stdev

import pytest

from momentumrnn.experiments.paper import RECIPES, recipe
from momentumrnn.experiments.report import NEEDED, report

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

# What each piece of text looks like; the ground is that of the first ancestor that has one.
TEXTS = """(kinds) => {
  const ground = (node) => {
    const own = getComputedStyle(node).backgroundColor;
    return own === "rgba(0, 0, 0, 0)" && node.parentElement ? ground(node.parentElement) : own;
  };
  return [...document.body.querySelectorAll(":not(script, noscript)")]
    .filter((node) => node.getClientRects().length)
    .filter((node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim()))
    .map((node) => {
      const style = getComputedStyle(node);
      return {
        text: node.textContent.trim().slice(0, 40),
        kinds: kinds.filter((kind) => node.matches(kind)),
        size: parseFloat(style.fontSize),
        colours: [node instanceof SVGElement ? style.fill : style.color, ground(node)],
      };
    });
}"""
KINDS = (
    "h1",
    "p:not([class])",
    ".note",
    ".status",
    ".lesson",
    "thead th",
    "td",
    ".absent > td",
    ".control > td",
    "caption",
    "a",
    "code",
    "summary",
    "button[aria-pressed=true]",
    "button[aria-pressed=false]",
    ".plot text",
)
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
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("the page is tested in Chromium: install Debian's package chromium, or another's")
    with playwright.sync_playwright() as started:
        # Chromium has no sandbox for root, as whom containers run; the page is our own.
        running = started.chromium.launch(executable_path=found, args=["--no-sandbox"], timeout=HANG)
        yield running
        running.close()


@pytest.fixture(scope="module")
def made(browser, tmp_path_factory):
    """The report of all runs that are kept here, made once, and only if there is a browser."""
    results = ROOT / "results"
    out = tmp_path_factory.mktemp("report")
    return report([results / "runs", results / "demo"], out, sorted((results / "bench").glob("*.json")))


@pytest.fixture
def heard():
    """What pages complain of, and ask for beside themselves. A test that expects some takes it out."""
    found = []
    yield found
    assert found == []


@pytest.fixture
def opened(browser, made, heard):
    """Opens the page, every fold of it if not told otherwise, and listens."""
    contexts = []

    def open_page(width=1200, height=900, unfolded=True, address="", **options):
        context = browser.new_context(
            viewport={"width": width, "height": height}, reduced_motion="reduce", **options
        )
        address = address or made.as_uri()
        contexts.append(context)
        context.set_default_timeout(HANG)
        page = context.new_page()
        page.on("console", lambda said: said.type in ("error", "warning") and heard.append(said.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("request", lambda asked: asked.url != address and heard.append(asked.url))
        page.goto(address)
        if options.get("java_script_enabled", True):
            page.wait_for_selector("html[data-drawn=true]")
        if unfolded:
            unfold(page)
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def still(opened):
    """The page without its script: what it says needs none."""
    return opened(java_script_enabled=False)


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
    (found,) = (text for column, text in row.items() if column.startswith(start))
    return found


def colour(text):
    """Red, green and blue of what a browser says of a colour."""
    assert re.fullmatch(r"rgb\(\d+, \d+, \d+\)", text), f"expected a solid colour, got {text!r}"
    return tuple(map(int, re.findall(r"\d+", text)))


def light(rgb):
    """The relative luminance of WCAG, 0 to 1."""
    parts = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one, other):
    """The contrast ratio of WCAG, 1 to 21."""
    dark, bright = sorted((light(one), light(other)))
    return (bright + 0.05) / (dark + 0.05)


def test_a_contrast_is_wcag_s():
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((119, 119, 119), (255, 255, 255)) == pytest.approx(4.48, abs=0.005)


def test_links_lead_to_what_they_name_and_unfold_it(opened):
    """Each is followed. That nothing is asked for and nothing complains, `heard` says here and everywhere."""
    page = opened(unfolded=False)
    links = page.locator("#overview a")
    assert links.count() > 25
    for i in range(links.count()):
        target = links.nth(i).get_attribute("href")
        links.nth(i).click()
        assert page.evaluate("location.hash") == target
        page.wait_for_function("(id) => document.querySelector(`${id} details`).open", arg=target)
        assert page.locator(f"{target} summary").first.is_visible()
        box = page.locator(target).bounding_box()
        assert -1 <= box["y"] < 900


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (PHONE, 844)], ids=["desktop", "phone"])
def test_the_first_screen_tells_one_story(opened, width, height):
    """What was trained, the plot and the lesson, whole and in this order; nothing of the overview."""
    page = opened(width, height, unfolded=False)
    story = page.locator("#demo")
    parts = [story.locator("p").first, story.locator(".plot"), story.locator(".lesson")]
    boxes = [part.bounding_box() for part in parts]
    assert all(one["y"] + one["height"] <= other["y"] for one, other in pairwise(boxes))
    assert boxes[0]["y"] >= 0
    assert boxes[-1]["y"] + boxes[-1]["height"] <= height
    assert boxes[1]["height"] > 0.3 * height
    assert page.locator("#overview").bounding_box()["y"] > height
    trained, lesson = parts[0].inner_text(), parts[2].inner_text()
    assert trained == (
        "9 small networks were trained to add two marked numbers among 25: 64 units, 3 seeds each, 600 "
        "training steps."
    )
    sooner, tied = pairs_in_which_the_control_is(page)
    as_soon = f" and as soon in {tied}" if tied else ""
    assert lesson.startswith(f"{LESSON} {sooner} of 4 pairs{as_soon}")


LESSON = "The control of each network, a plain LSTM with a larger input, learned sooner in"


def pairs_in_which_the_control_is(page):
    """Sooner, and as soon, by the folders: medians of the first epochs below half of 1/6."""
    when = {}
    for _, row in rows(page, "demo"):
        epochs = [
            next((line["epoch"] for line in lines if line["validation_loss"] < 1 / 12), float("inf"))
            for lines in demo_runs(row)
        ]
        when[row["network"], row["what it is"]] = median(epochs)
    sooner = tied = 0
    for (_, words), control in when.items():
        if of := re.fullmatch(r"control of (\w+): .*", words):
            (network,) = [at for (name, _), at in when.items() if name == of[1]]
            sooner += control < network
            tied += control == network
    return sooner, tied


@pytest.mark.parametrize("log", [True, False])
def test_the_loss_without_memory_is_a_line(opened, log):
    """Beside its name, on either axis."""
    page = opened(1280, unfolded=False)
    if not log:
        page.click("[data-for=demo] [data-switch=logy]")
    line, name = page.evaluate(
        """() => {
          const middle = (box) => (box.top + box.bottom) / 2;
          const plot = document.getElementById("plot-demo");
          const texts = [...plot.querySelectorAll(".annotation text")];
          const text = texts.find((each) => each.textContent === "without memory");
          const line = plot.querySelector(".shapelayer path");
          return [middle(line.getBoundingClientRect()), text.getBoundingClientRect().bottom];
        }"""
    )
    assert abs(line - name) < 12


def names_at_ends(page, name):
    """The boxes of the names of lines, by their text."""
    found = page.evaluate(
        """(name) => [...document.querySelectorAll(`#plot-${name} .annotation text`)].map((text) => {
          const box = text.getBoundingClientRect();
          return [text.textContent, box.x, box.y, box.right, box.bottom];
        })""",
        name,
    )
    return {text: box for text, *box in found if text != "without memory"}


@pytest.mark.parametrize("width", [1280, PHONE])
def test_lines_are_named_at_their_ends(opened, width):
    """Each name is beside the plot and on the page, and none lies on another; a zoom takes them along."""
    page = opened(width, unfolded=False)
    labels = [each["label"] for each in figures(page)["demo"]["series"]]
    found = names_at_ends(page, "demo")
    short = [label.removeprefix("LSTM, ") for label in labels] if width == PHONE else labels
    assert sorted(found) == sorted(short)
    assert all(x > width / 3 and right <= width for x, _, right, _ in found.values())
    ordered = sorted(found.values(), key=lambda box: box[1])
    assert all(above[3] <= below[1] + 1 for above, below in pairwise(ordered))
    page.evaluate("Plotly.relayout('plot-demo', {'xaxis.range': [0, 200], 'yaxis.range': [-2, 0]})")
    page.wait_for_function("document.querySelector('#plot-demo').textContent.includes('↓')")
    zoomed = names_at_ends(page, "demo")
    assert len(zoomed) == len(found)
    # After 200 steps these two have learned most: their lines lie below what is shown.
    below = [text.removesuffix(" ↓") for text in zoomed if text.endswith("↓")]
    assert {"input x 31.7", "input x 16.6"} <= {label.removeprefix("LSTM, ") for label in below}
    assert "LSTM" not in below


def test_sections_without_runs_are_one_line(opened):
    """Their links are in a sentence; folded they take no more room, and unfolded they have all they had."""
    page = opened(unfolded=False)
    assert page.locator("#overview tbody tr").count() < 20
    (line,) = [text for text in page.locator("#overview .links").all_inner_texts() if "Not run" in text]
    assert line.startswith("Not run yet: Table 2, Table 3, ")
    fold = page.locator("#absent")
    assert fold.bounding_box()["height"] < 120
    assert fold.locator("section").count() == page.locator("#overview .links").last.locator("a").count()
    assert not page.locator("#table-table2").is_visible()
    unfold(page)
    assert page.locator("#table-table2").is_visible()
    assert "momentumrnn reproduce table4" in page.locator("#table4").inner_text()


def test_the_policy_lets_nothing_in(opened, heard):
    """A picture that lies beside the page, and that any other page could show, is refused."""
    page = opened()
    (policy,) = page.locator("meta[http-equiv=Content-Security-Policy]").all()
    assert policy.get_attribute("content").startswith("default-src 'none';")
    shown = """(src) => new Promise((done) => {
      const picture = new Image();
      picture.onload = () => done(true);
      picture.onerror = () => done(false);
      picture.src = src;
    })"""
    assert not page.evaluate(shown, "figures/demo.svg")
    assert page.evaluate(shown, page.locator("#figure1 img").get_attribute("src"))
    assert any("Content Security Policy" in each for each in heard)
    heard.clear()


def check_drawn(figure, shown, view):
    """Lines, points and axes of a plot are those of the data in that view."""
    series = [each for each in figure["series"] if view["controls"] or not each["control"]]
    buttons = {key: view["x"] == key if key in ("steps", "epochs") else view[key] for key in shown["pressed"]}
    assert shown["pressed"] == {key: str(on).lower() for key, on in buttons.items()}
    assert shown["types"] == ["log" if view[key] else "linear" for key in ("logx", "logy")]
    assert shown["names"] == [each["name"] for each in series]
    assert shown["x"] == [each[view["x"]] for each in series]
    assert shown["y"] == [each["middle"] for each in series]
    assert shown["pictures"] > 0
    assert shown["lines"] >= len(series)
    # A line of one point is none to see.
    assert shown["points"] >= sum(len(each["steps"]) == 1 for each in series)


def first(figure):
    """How a plot is shown in the beginning."""
    return {"x": "steps", "logx": False, "logy": figure["log"], "controls": figure["controls"]}


def switched(view, key):
    return {**view, "x": key} if key in ("steps", "epochs") else {**view, key: not view[key]}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_figure_with_data_is_drawn(opened, scheme):
    page = opened(color_scheme=scheme)
    found = figures(page)
    assert {f"plot-{name}" for name in found} == set(
        page.eval_on_selector_all(".plot", "(all) => all.map((each) => each.id)")
    )
    assert {figure["kind"] for figure in found.values()} == {"lines", "bars", "dots"}
    for name, figure in found.items():
        shown = page.evaluate(SHOWN, name)
        if figure["kind"] == "lines":
            check_drawn(figure, shown, first(figure))
            continue
        values = [value for group in figure["groups"] for value in group["values"]]
        assert len(figure["labels"]) == len(figure["groups"][0]["values"])
        assert shown["pictures"] > 0
        drawn = shown["bars"] if figure["kind"] == "bars" else shown["points"]
        assert drawn == len(values) - values.count(None)
        # Lengths can be compared: bars start at zero on a linear axis.
        if figure["kind"] == "bars":
            assert (shown["types"][0], shown["from"]) == ("linear", 0)
        else:
            assert (shown["types"][0], shown["bars"]) == ("log", 0)


def test_memory_is_bars_and_time_is_dots(opened):
    """The listing takes hundreds of times as long: bars on a linear axis would hide ours."""
    kinds = {name: figure["kind"] for name, figure in figures(opened()).items()}
    assert (kinds["bars-table14"], kinds["bars-table15"]) == ("dots", "bars")


def test_axes_are_switched_with_the_mouse(opened):
    page = opened()
    for name, figure in figures(page).items():
        if figure["kind"] != "lines":
            continue
        view = first(figure)
        buttons = page.locator(f'[data-for="{name}"] button')
        keys = list(page.evaluate(SHOWN, name)["pressed"])
        assert {"steps", "epochs", "logx"} <= set(keys)
        for i in (*range(len(keys)), 0):
            buttons.nth(i).click()
            view = switched(view, keys[i])
            check_drawn(figure, page.evaluate(SHOWN, name), view)


def test_axes_are_switched_with_the_keyboard_alone(opened):
    """From the top of the page to its end with Tab; every switch is met on the way, once."""
    page = opened()
    found = figures(page)
    views = {name: first(figure) for name, figure in found.items() if figure["kind"] == "lines"}
    wanted = [(name, key) for name in views for key in page.evaluate(SHOWN, name)["pressed"]]
    focused = """() => {
      const on = document.activeElement, group = on.closest(".switches");
      return [on === document.body, group?.dataset.for, on.dataset.x ?? on.dataset.switch];
    }"""
    met = []
    for _ in range(1000):
        page.keyboard.press("Tab")
        over, name, key = page.evaluate(focused)
        if over:
            break
        if name is None:
            continue
        met.append((name, key))
        for press in ("Enter", "Space"):
            page.keyboard.press(press)
            views[name] = switched(views[name], key)
            check_drawn(found[name], page.evaluate(SHOWN, name), views[name])
    assert met == wanted
    assert all(view == {**first(found[name]), "x": "epochs"} for name, view in views.items())


def test_the_demo_s_lines_are_the_medians_of_its_runs_over_epochs(opened):
    page = opened()
    page.locator("[data-for=demo] [data-x=epochs]").click()
    shown = page.evaluate(SHOWN, "demo")
    found = {row["network"]: row for _, row in rows(page, "demo")}
    assert set(shown["names"]) == set(found)
    for name, x, y in zip(shown["names"], shown["x"], shown["y"], strict=True):
        runs = demo_runs(found[name])
        assert [x] * len(runs) == [[line["epoch"] for line in lines] for lines in runs]
        medians = [median(line["validation_loss"] for line in each) for each in zip(*runs, strict=True)]
        assert y == pytest.approx(medians, rel=1e-4)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_and_the_button(opened, scheme):
    other = {"light": "dark", "dark": "light"}[scheme]
    page = opened(color_scheme=scheme)
    looks = """() => {
      const style = getComputedStyle(document.body);
      const grounds = [...document.querySelectorAll(".plot")].map((plot) => plot._fullLayout.paper_bgcolor);
      return [style.backgroundColor, style.color, theme.ariaPressed, [...new Set(grounds)]];
    }"""
    seen = {}
    for now, change in (
        (scheme, lambda: None),
        (other, lambda: page.emulate_media(color_scheme=other)),
        (scheme, lambda: page.emulate_media(color_scheme=scheme)),
        (other, lambda: page.locator("#theme").click()),
        (scheme, lambda: page.locator("#theme").press("Space")),
        # What a reader has chosen stays.
        (scheme, lambda: page.emulate_media(color_scheme=other)),
    ):
        change()
        page.wait_for_function("(now) => document.documentElement.dataset.theme === now", arg=now)
        ground, text, pressed, (painted,) = page.evaluate(looks)
        assert pressed == str(now == "dark").lower()
        assert colour(painted) == colour(ground)
        assert seen.setdefault(now, (ground, text)) == (ground, text)
    bright, dim = (tuple(light(colour(each)) for each in seen[now]) for now in ("light", "dark"))
    assert (bright[0] > 0.8, bright[1] < 0.1, dim[0] < 0.1, dim[1] > 0.6) == (True,) * 4


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_told_from_its_ground(opened, scheme):
    found = opened(color_scheme=scheme).evaluate(TEXTS, KINDS)
    assert {kind for each in found for kind in each["kinds"]} == set(KINDS)
    for each in found:
        assert contrast(*map(colour, each["colours"])) >= 4.5, each


def test_on_a_phone_only_tables_scroll_sideways(opened):
    page = opened(PHONE, is_mobile=True, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    for table in page.locator("table").all():
        region = table.locator("xpath=..")
        assert region.get_attribute("role") == "region"
        assert region.get_attribute("aria-label")
        assert region.bounding_box()["width"] <= PHONE
    region = page.locator("#table1 .scroll").first
    assert region.evaluate("(region) => region.scrollWidth") > PHONE
    # A word and a shade say that there is more.
    wide = region.locator("xpath=..")
    assert wide.locator(".more").is_visible()
    classes = "() => document.querySelector('#table1 .wide').className"
    assert page.evaluate(classes) == "wide more-right"
    region.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.querySelector('#table1 .scroll').scrollLeft > 0")
    assert page.evaluate("scrollX") == 0
    page.wait_for_function(f"() => ({classes})() === 'wide more-right more-left'")
    region.evaluate("(region) => { region.scrollLeft = region.scrollWidth; }")
    page.wait_for_function(f"() => ({classes})() === 'wide more-left'")
    assert not wide.locator(".more").is_visible()


def test_a_table_with_room_says_nothing_of_more(opened):
    page = opened()
    wide = page.locator("#table-demo").locator("xpath=../..")
    assert wide.get_attribute("class") == "wide"
    assert not wide.locator(".more").is_visible()


def test_on_a_phone_text_can_be_read_and_buttons_be_hit(opened):
    page = opened(PHONE, is_mobile=True, has_touch=True)
    small = [each for each in page.evaluate(TEXTS, KINDS) if each["size"] < 12]
    assert small == []
    buttons = page.locator("button").all()
    assert len(buttons) > 4
    assert min(button.bounding_box()["height"] for button in buttons) >= 24


@pytest.mark.parametrize("width", [1280, PHONE])
def test_names_in_files_are_text(opened, tmp_path, width):
    """Neither the page nor its plots take them for tags."""
    name = "<b>bold</b> &amp; <script>document.title = 'mine'</script>"
    case = {"shape": name, "cell": "lstm", "momentum": "None", "status": "ok", "sizes": {"T": 2, "B": 3}}
    case["rows"] = {"ours": {"training_ms": 1.5}, "torch": {"training_ms": 3.0}}
    about = {"device": f"{name} machine", "date": "2026-01-01", "settings": {"repeats": 3}, "cases": [case]}
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/bench-mine.json").write_text(json.dumps(about))
    page = opened(width, address=report([tmp_path / "runs"], tmp_path / "out").as_uri())
    assert page.title() == "MomentumRNN: the paper's numbers and ours"
    assert page.locator("#speed b").count() == 0
    assert f"{name} machine" in page.locator("#speed").inner_text()
    ticks = page.locator("#plot-bars-speed-1 .ytick text").evaluate_all(
        "(all) => all.map((t) => t.textContent)"
    )
    assert [tick.replace(", ", "") for tick in ticks] == [f"{name} lstmplain"]


def test_what_is_seen_is_also_said(opened):
    page = opened()
    for picture in page.locator("img").all():
        assert picture.get_attribute("alt")
    for plot in page.locator(".plot").all():
        assert plot.get_attribute("role") == "img"
        assert len(plot.get_attribute("aria-label")) > 20
    levels = [
        int(level[1])
        for level in page.eval_on_selector_all("h1,h2,h3,h4,h5,h6", "(h) => h.map((x) => x.tagName)")
    ]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert page.evaluate("document.documentElement.lang") == "en"


def test_ids_are_unique_and_every_link_has_its_end(opened, made):
    page = opened()
    ids = page.eval_on_selector_all("[id]", "(all) => all.map((each) => each.id)")
    assert len(ids) == len(set(ids))
    labels = page.eval_on_selector_all(
        "[aria-labelledby]", "(all) => all.map((each) => each.getAttribute('aria-labelledby'))"
    )
    assert set(labels) <= set(ids)
    links = page.eval_on_selector_all("a", "(all) => all.map((each) => each.getAttribute('href'))")
    inside = {link[1:] for link in links if link.startswith("#")}
    assert inside <= set(ids)
    beside = {link for link in links if not link.startswith("#")}
    kept = {
        f"{folder}/{path.name}"
        for folder in ("figures", "tables")
        for path in (made.parent / folder).iterdir()
    }
    assert beside == kept


def test_the_first_stop_of_tab_skips_to_the_results(opened):
    page = opened()
    skip = page.locator("a").first
    assert skip.bounding_box()["x"] < 0
    page.keyboard.press("Tab")
    assert skip.evaluate("(link) => link === document.activeElement")
    assert skip.bounding_box()["x"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#overview"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('section').id") == "overview"


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
    found = [
        lines_of(folder)
        for folder, config in zip(folders, configs, strict=True)
        if config["momentum"].startswith(momentum.rstrip(")"))
    ]
    assert len(found) > 1
    return found


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


def test_the_numbers_of_permuted_mnist_are_those_of_the_folders(still):
    from scipy.stats import ttest_1samp, ttest_ind

    found = [
        (kind, row)
        for kind, row in rows(still, "table1")
        if (row["units"], row["task"]) == ("128", "PMNIST") and kind != "absent"
    ]
    for kind, row in found:
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
    assert len(found) >= 9
    assert {kind for kind, _ in found} == {"", "control"}


def test_no_control_row_has_the_name_of_a_network(still):
    """It says what it is, and of which network it is the control; "momentum" is in no verdict."""
    for name in ("table1", "table11", "figure4"):
        for kind, row in rows(still, name):
            assert bool(CONTROL.fullmatch(row["network"])) == (kind == "control")
            assert "momentum better" not in row["verdict"]
            if row["verdict"].endswith(" better") and not row["verdict"].startswith("control"):
                assert row["verdict"] == f"{CONTROL.fullmatch(row['network'])['network']} better"


def test_the_numbers_of_the_demo_are_those_of_the_folders(still):
    found = rows(still, "demo")
    assert len(found) == 9
    for _, row in found:
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


def test_what_the_paper_prints_in_table_1_stands_beside_ours(still):
    shown = {}
    for kind, row in rows(still, "table1"):
        if kind == "control":
            assert row["paper"] == ""
        else:
            name = f"table1/{row['network']}/{row['task']}/{row['units']}"
            shown.setdefault(name, []).append([float(each) for each in re.findall(r"\d+\.\d+", row["paper"])])
    assert list(shown) == [name for name in RECIPES if name.startswith("table1/")]
    for name, found in shown.items():
        numbers = [n for p in recipe(name).published for n in (p.value, p.std) if n is not None]
        assert numbers
        assert all(each == numbers for each in found)


def test_what_was_not_run_says_so(still):
    """In each cell in which a number of ours would stand."""
    silent, said = [], 0
    for name in still.eval_on_selector_all("table[id]", "(all) => all.map((each) => each.id.slice(6))"):
        for kind, row in rows(still, name):
            if kind != "absent" or name == "runs":
                continue
            for column, text in row.items():
                if column in ("ours", "verdict") or column.startswith("ours,"):
                    said += 1
                    if text not in ("not run", "not measured"):
                        silent.append((name, next(iter(row.values())), column, text))
                elif " - " in column and text:
                    silent.append((name, next(iter(row.values())), column, text))
    assert said > 50
    assert silent == []


def test_without_scripts_all_tables_are_there(opened, still, made):
    expected = {}
    for path in (made.parent / "tables").glob("*.csv"):
        with path.open(newline="") as file:
            expected[path.stem] = len(list(csv.DictReader(file)))
    ids = still.eval_on_selector_all("table[id]", "(all) => all.map((each) => each.id.slice(6))")
    assert {name: len(rows(still, name)) for name in ids} == expected
    drawn = opened()
    for name in ids:
        assert still.locator(f"#table-{name}").is_visible()
        assert rows(still, name) == rows(drawn, name)
    assert still.locator("img").count() == drawn.locator("img").count() > 0
    assert "figures" in still.locator("noscript").inner_text()


def test_on_paper_no_table_is_cut(opened):
    """A4 between margins of a centimetre is 718 pixels wide."""
    page = opened(718)
    page.emulate_media(media="print")
    assert not page.locator("#theme").is_visible()
    wide = page.eval_on_selector_all(
        ".scroll",
        "(all) => all.filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.ariaLabel)",
    )
    assert wide == []
