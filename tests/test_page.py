"""The report's page in a browser: what it draws, says and asks for."""

import json
import re
from itertools import pairwise
from statistics import median

import pytest
from page_browser import (
    PHONE,
    SHOWN,
    browser,
    demo_runs,
    figures,
    messages,
    open_page,
    report_page,
    rows,
    unfold,
)

from momentumrnn.report import report

__all__ = ["browser", "messages", "open_page", "report_page"]  # fixtures
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


def test_links_lead_to_what_they_name_and_unfold_it(open_page):
    """Each is followed. `messages` checks here and everywhere that nothing is asked for or complains."""
    page = open_page(unfolded=False)
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
def test_the_first_screen_tells_one_story(open_page, width, height):
    """What was trained, the plot and the lesson, whole and in this order; nothing of the overview."""
    page = open_page(width, height, unfolded=False)
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
def test_the_loss_without_memory_is_a_line(open_page, log):
    """Beside its name, on either axis."""
    page = open_page(1280, unfolded=False)
    if not log:
        page.click("[data-for=demo] [data-switch=logy]")
    line, name = page.evaluate(
        """() => {
          const middle = (box) => (box.top + box.bottom) / 2;
          const plot = document.getElementById("plot-demo");
          const texts = [...plot.querySelectorAll(".annotation text")];
          const text = texts.find((text) => text.textContent === "without memory");
          const line = plot.querySelector(".shapelayer path");
          return [middle(line.getBoundingClientRect()), text.getBoundingClientRect().bottom];
        }"""
    )
    assert abs(line - name) < 12


def names_at_ends(page, name):
    """The boxes of the names of lines, by their text."""
    boxes = page.evaluate(
        """(name) => [...document.querySelectorAll(`#plot-${name} .annotation text`)].map((text) => {
          const box = text.getBoundingClientRect();
          return [text.textContent, box.x, box.y, box.right, box.bottom];
        })""",
        name,
    )
    return {text: box for text, *box in boxes if text != "without memory"}


@pytest.mark.parametrize("width", [1280, PHONE])
def test_lines_are_named_at_their_ends(open_page, width):
    """Each name is beside the plot and on the page, and none lies on another; a zoom takes them along."""
    page = open_page(width, unfolded=False)
    labels = [line["label"] for line in figures(page)["demo"]["series"]]
    boxes = names_at_ends(page, "demo")
    short = [label.removeprefix("LSTM, ") for label in labels] if width == PHONE else labels
    assert sorted(boxes) == sorted(short)
    assert all(x > width / 3 and right <= width for x, _, right, _ in boxes.values())
    ordered = sorted(boxes.values(), key=lambda box: box[1])
    assert all(above[3] <= below[1] + 1 for above, below in pairwise(ordered))
    page.evaluate("Plotly.relayout('plot-demo', {'xaxis.range': [0, 200], 'yaxis.range': [-2, 0]})")
    page.wait_for_function("document.querySelector('#plot-demo').textContent.includes('↓')")
    zoomed = names_at_ends(page, "demo")
    assert len(zoomed) == len(boxes)
    # After 200 steps these two have learned most: their lines lie below what is shown.
    below = [text.removesuffix(" ↓") for text in zoomed if text.endswith("↓")]
    assert {"input x 31.7", "input x 16.6"} <= {label.removeprefix("LSTM, ") for label in below}
    assert "LSTM" not in below


def test_sections_without_runs_are_one_line(open_page):
    """Their links are in a sentence; folded they take no more room, and unfolded they have all they had."""
    page = open_page(unfolded=False)
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


def test_the_policy_lets_nothing_in(open_page, messages):
    """A picture that lies beside the page, and that any other page could show, is refused."""
    page = open_page()
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
    assert any("Content Security Policy" in text for text in messages)
    messages.clear()


def check_drawn(figure, shown, view):
    """Lines, points and axes of a plot are those of the data in that view."""
    series = [line for line in figure["series"] if view["controls"] or not line["control"]]
    buttons = {key: view["x"] == key if key in ("steps", "epochs") else view[key] for key in shown["pressed"]}
    assert shown["pressed"] == {key: str(on).lower() for key, on in buttons.items()}
    assert shown["types"] == ["log" if view[key] else "linear" for key in ("logx", "logy")]
    assert shown["names"] == [line["name"] for line in series]
    assert shown["x"] == [line[view["x"]] for line in series]
    assert shown["y"] == [line["middle"] for line in series]
    assert shown["pictures"] > 0
    assert shown["lines"] >= len(series)
    # A line of one point is none to see.
    assert shown["points"] >= sum(len(line["steps"]) == 1 for line in series)


def first(figure):
    """How a plot is shown in the beginning."""
    return {"x": "steps", "logx": False, "logy": figure["log"], "controls": figure["controls"]}


def switched(view, key):
    return {**view, "x": key} if key in ("steps", "epochs") else {**view, key: not view[key]}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_figure_with_data_is_drawn(open_page, scheme):
    page = open_page(color_scheme=scheme)
    plots = figures(page)
    assert {f"plot-{name}" for name in plots} == set(
        page.eval_on_selector_all(".plot", "(all) => all.map((node) => node.id)")
    )
    assert {figure["kind"] for figure in plots.values()} == {"lines", "bars", "dots"}
    for name, figure in plots.items():
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


def test_memory_is_bars_and_time_is_dots(open_page):
    """The listing takes hundreds of times as long: bars on a linear axis would hide ours."""
    kinds = {name: figure["kind"] for name, figure in figures(open_page()).items()}
    assert (kinds["bars-table14"], kinds["bars-table15"]) == ("dots", "bars")


def test_axes_are_switched_with_the_mouse(open_page):
    page = open_page()
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


def test_axes_are_switched_with_the_keyboard_alone(open_page):
    """From the top of the page to its end with Tab; every switch is met on the way, once."""
    page = open_page()
    plots = figures(page)
    views = {name: first(figure) for name, figure in plots.items() if figure["kind"] == "lines"}
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
            check_drawn(plots[name], page.evaluate(SHOWN, name), views[name])
    assert met == wanted
    assert all(view == {**first(plots[name]), "x": "epochs"} for name, view in views.items())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_and_the_button(open_page, scheme):
    other = {"light": "dark", "dark": "light"}[scheme]
    page = open_page(color_scheme=scheme)
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
    bright, dim = (tuple(light(colour(text)) for text in seen[now]) for now in ("light", "dark"))
    assert (bright[0] > 0.8, bright[1] < 0.1, dim[0] < 0.1, dim[1] > 0.6) == (True,) * 4


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_told_from_its_ground(open_page, scheme):
    pieces = open_page(color_scheme=scheme).evaluate(TEXTS, KINDS)
    assert {kind for piece in pieces for kind in piece["kinds"]} == set(KINDS)
    for piece in pieces:
        assert contrast(*map(colour, piece["colours"])) >= 4.5, piece


def test_on_a_phone_only_tables_scroll_sideways(open_page):
    page = open_page(PHONE, is_mobile=True, has_touch=True)
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


def test_a_table_with_room_says_nothing_of_more(open_page):
    page = open_page()
    wide = page.locator("#table-demo").locator("xpath=../..")
    assert wide.get_attribute("class") == "wide"
    assert not wide.locator(".more").is_visible()


def test_on_a_phone_text_can_be_read_and_buttons_be_hit(open_page):
    page = open_page(PHONE, is_mobile=True, has_touch=True)
    small = [piece for piece in page.evaluate(TEXTS, KINDS) if piece["size"] < 12]
    assert small == []
    buttons = page.locator("button").all()
    assert len(buttons) > 4
    assert min(button.bounding_box()["height"] for button in buttons) >= 24


@pytest.mark.parametrize("width", [1280, PHONE])
def test_names_in_files_are_text(open_page, tmp_path, width):
    """Neither the page nor its plots take them for tags."""
    name = "<b>bold</b> &amp; <script>document.title = 'mine'</script>"
    case = {"shape": name, "cell": "lstm", "momentum": "None", "status": "ok", "sizes": {"T": 2, "B": 3}}
    case["rows"] = {"ours": {"training_ms": 1.5}, "torch": {"training_ms": 3.0}}
    benchmark = {
        "device": f"{name} machine",
        "date": "2026-01-01",
        "settings": {"repeats": 3},
        "cases": [case],
    }
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/bench-mine.json").write_text(json.dumps(benchmark))
    page = open_page(width, address=report([tmp_path / "runs"], tmp_path / "out").as_uri())
    assert page.title() == "MomentumRNN: the paper's numbers and ours"
    assert page.locator("#speed b").count() == 0
    assert f"{name} machine" in page.locator("#speed").inner_text()
    ticks = page.locator("#plot-bars-speed-1 .ytick text").evaluate_all(
        "(all) => all.map((t) => t.textContent)"
    )
    assert [tick.replace(", ", "") for tick in ticks] == [f"{name} lstmplain"]


def test_what_is_seen_is_also_said(open_page):
    page = open_page()
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


def test_ids_are_unique_and_every_link_has_its_end(open_page, report_page):
    page = open_page()
    ids = page.eval_on_selector_all("[id]", "(all) => all.map((node) => node.id)")
    assert len(ids) == len(set(ids))
    labels = page.eval_on_selector_all(
        "[aria-labelledby]", "(all) => all.map((node) => node.getAttribute('aria-labelledby'))"
    )
    assert set(labels) <= set(ids)
    links = page.eval_on_selector_all("a", "(all) => all.map((node) => node.getAttribute('href'))")
    inside = {link[1:] for link in links if link.startswith("#")}
    assert inside <= set(ids)
    beside = {link for link in links if not link.startswith("#")}
    files = {
        f"{folder}/{path.name}"
        for folder in ("figures", "tables")
        for path in (report_page.parent / folder).iterdir()
    }
    assert beside == files


def test_the_first_stop_of_tab_skips_to_the_results(open_page):
    page = open_page()
    skip = page.locator("a").first
    assert skip.bounding_box()["x"] < 0
    page.keyboard.press("Tab")
    assert skip.evaluate("(link) => link === document.activeElement")
    assert skip.bounding_box()["x"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#overview"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('section').id") == "overview"


def test_on_paper_no_table_is_cut(open_page):
    """A4 between margins of a centimetre is 718 pixels wide."""
    page = open_page(718)
    page.emulate_media(media="print")
    assert not page.locator("#theme").is_visible()
    wide = page.eval_on_selector_all(
        ".scroll",
        "(all) => all.filter((node) => node.scrollWidth > node.clientWidth).map((node) => node.ariaLabel)",
    )
    assert wide == []
