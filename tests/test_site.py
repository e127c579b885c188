"""The documentation site: its navigation, its links, its notebook, its docstrings. The whole is not built."""

import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import momentumrnn
import momentumrnn.experiments

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
sys.path.append(str(ROOT / "tools"))

from site_links import PAGES, Links, anchors  # noqa: E402
from site_notebook import notebook_to_markdown  # noqa: E402

NOT_INSTALLED = "the site needs the extra momentumrnn[docs]"
DIRECTIVES = [
    name
    for page in sorted(DOCS.glob("api/*.md"))
    for name in re.findall(r"^::: (\S+)$", page.read_text("utf-8"), re.MULTILINE)
]
TEXTS = [
    *sorted(DOCS.rglob("*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
]


def written_navigation():
    """The pages that mkdocs.yml lists, in their order."""
    (section,) = re.findall(
        r"^nav:\n(.*?)^\w", (ROOT / "mkdocs.yml").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    return re.findall(r"[\w/-]+\.md$", section, re.MULTILINE)


def test_each_page_is_in_the_navigation_once():
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert sorted(written_navigation()) == sorted([*pages, *PAGES.values()])


def test_each_page_of_another_file_has_its_file():
    assert [source for source in PAGES if not (ROOT / source).is_file()] == []


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(text):
    _, problems = Links(ROOT).rewrite(text.read_text("utf-8"), text.relative_to(ROOT).as_posix())
    assert problems == []


@pytest.fixture
def project(tmp_path):
    for name in (
        "docs/api/cells.md",
        "docs/b.md",
        "docs/plot.svg",
        "examples/notebook.ipynb",
        "results/runs/x.json",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n")
    (tmp_path / "README.md").write_text("# Us\n\n## Check the paper: train!\n\n```\n## no heading\n```\n")
    return tmp_path


HOST = "https://example.org/us/project"


@pytest.mark.parametrize(
    ("source", "before", "known", "unknown"),
    [
        ("docs/a.md", "[x](b.md#c-d) ", None, None),
        ("docs/a.md", "[x](https://example.org) [y](#here) [z](mailto:us@example.org)", None, None),
        ("docs/a.md", "`[x](../no.md)` ``[`x`](../no.md)``\n```\n[x](../no.md)\n```", None, None),
        ("docs/a.md", "![p](plot.svg)", None, None),
        ("docs/api/a.md", "[x](../b.md) [y](cells.md)", None, None),
        ("docs/a.md", "[runs](../results/runs)", f"[runs]({HOST}/tree/main/results/runs)", "runs"),
        (
            "docs/a.md",
            'a [`file`](../results/runs/x.json "title") b',
            f'a [`file`]({HOST}/blob/main/results/runs/x.json "title") b',
            "a `file` (`results/runs/x.json`) b",
        ),
        (
            "docs/a.md",
            "[the\nREADME](../README.md#check-the-paper-train)",
            f"[the\nREADME]({HOST}/blob/main/README.md#check-the-paper-train)",
            "the\nREADME",
        ),
        ("docs/a.md", "[x](../CHANGELOG.md)", "[x](changelog.md)", "[x](changelog.md)"),
        ("docs/api/a.md", "[x](../../examples/notebook.ipynb)", "[x](../notebook.md)", "[x](../notebook.md)"),
        ("CHANGELOG.md", "[x](docs/api/cells.md)", "[x](api/cells.md)", "[x](api/cells.md)"),
        ("examples/notebook.ipynb", "![p](../docs/plot.svg)", "![p](plot.svg)", "![p](plot.svg)"),
        (
            "docs/a.md",
            "[![p](plot.svg)](../results/runs/x.json)",
            f"[![p](plot.svg)]({HOST}/blob/main/results/runs/x.json)",
            "![p](plot.svg) (`results/runs/x.json`)",
        ),
    ],
)
def test_links_are_rewritten(project, source, before, known, unknown):
    (project / "docs/b.md").write_text("# B\n\n## C `d`\n")
    assert Links(project, HOST).rewrite(before, source) == (before if known is None else known, [])
    assert Links(project).rewrite(before, source) == (before if unknown is None else unknown, [])


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("[x](c.md)", "the link to c.md should lead to a file"),
        ("[x](../results/y.json)", "the link to ../results/y.json should lead to a file"),
        ("[x](../../other/file)", "the link to ../../other/file should lead to a file"),
        ("[x](b.md#no)", "the link to b.md#no should lead to a heading of docs/b.md"),
        ("[x](../README.md#no-heading)", "should lead to a heading of README.md"),
        ("![x](../results/runs/x.json)", "the image ../results/runs/x.json should be in docs/"),
    ],
)
def test_a_bad_link_is_named_and_stays(project, link, problem):
    text, problems = Links(project, HOST).rewrite(f"{link}, [ok](../CHANGELOG.md)", "docs/a.md")
    assert text == f"{link}, [ok](changelog.md)"
    assert len(problems) == 1
    assert problems[0].startswith("docs/a.md: ")
    assert problem in problems[0]


def test_the_anchors_of_a_page():
    page = "# 1. A `b`, c!\n<a id='own'></a>\n## Über-x {#given}\n```\n# code\n```\n"
    assert anchors(page) >= {"1-a-b-c", "own", "given"}
    assert "code" not in anchors(page)


def notebook(*cells):
    return json.dumps({"cells": cells, "metadata": {"language_info": {"name": "python"}}})


def code(source, *outputs):
    return {"cell_type": "code", "source": source, "outputs": outputs}


def test_a_notebook_becomes_markdown():
    plot = {"output_type": "display_data", "data": {"image/png": "iVBO\nRw==\n", "text/plain": "<Figure>"}}
    result = {"output_type": "execute_result", "data": {"text/plain": ["tensor(1)\n", "tensor(2)"]}}
    printed = {"output_type": "stream", "name": "stdout", "text": "\x1b[1mbold\x1b[0m "}
    further = {"output_type": "stream", "name": "stdout", "text": ["``` ", "text\n"]}
    drawing = {"output_type": "display_data", "data": {"image/svg+xml": ["<svg>", "</svg>"]}}
    table = {"output_type": "display_data", "data": {"text/markdown": "| a |", "text/plain": "a"}}
    title = {"cell_type": "markdown", "source": ["# Title\n", "text"]}
    text = notebook_to_markdown(
        notebook(title, code("x = 1\nx", result, printed, further), code("", plot), code("y", drawing, table))
    )
    assert text.split("\n\n") == [
        "# Title\ntext",
        "```python\nx = 1\nx\n```",
        "```{ .text .output }\ntensor(1)\ntensor(2)\n```",
        "````{ .text .output }\nbold ``` text\n````",
        "![Output of cell 3](data:image/png;base64,iVBORw==)",
        "```python\ny\n```",
        "![Output of cell 4](data:image/svg+xml,%3Csvg%3E%3C/svg%3E)",
        "| a |\n",
    ]


@pytest.mark.parametrize(
    ("output", "named"),
    [
        ({"output_type": "error", "ename": "NameError", "evalue": "x"}, "NameError"),
        ({"output_type": "display_data", "data": {"application/vnd.plotly": {}}}, "application/vnd.plotly"),
    ],
)
def test_a_notebook_with_other_outputs_is_refused(output, named):
    with pytest.raises(ValueError, match=f"cell 2 .* text and images as outputs, got {named}"):
        notebook_to_markdown(notebook(code("1"), code("x", output)))


def test_our_notebook_has_its_outputs():
    text = notebook_to_markdown((ROOT / "examples/notebook.ipynb").read_text("utf-8"))
    assert "![Output of cell" in text
    assert "{ .text .output }" in text


def convert(docstring, **links):
    pytest.importorskip("griffe", reason=NOT_INSTALLED)
    return importlib.import_module("site_docstrings").docstring_to_markdown(docstring, links)


def test_a_docstring_becomes_markdown():
    markdown = convert(
        """A layer; see `LSTM` and `State(h)`.

            v = mu v
            h = v

        Args:
            input_size: D, the number
                of features; hidden_size: H
            device, dtype: of the weights
            weight_l[k]: W

        Precision: float32. (*k.shape, 1)

        >>> LSTM(3, 5)
        LSTM(3, 5)
        """,
        LSTM="momentumrnn.LSTM",
    )
    assert markdown.split("\n\n") == [
        "A layer; see [`LSTM`][momentumrnn.LSTM] and `State(h)`.",
        "```text\nv = mu v\nh = v\n```",
        "**Args**:",
        "- `input_size`: D, the number of features\n- `hidden_size`: H\n- `device`, `dtype`: of the weights\n"
        "- `weight_l[k]`: W",
        r"**Precision**: float32. (\*k.shape, 1)",
        "```pycon\n>>> LSTM(3, 5)\nLSTM(3, 5)\n```",
    ]


def test_items_need_no_title_and_text_may_be_indented():
    assert convert("Fill it.\n\nname: of it\nsize: H\n").endswith("\n\n- `name`: of it\n- `size`: H")
    assert (
        convert("Output: h', or a `State`\n    if hx is one") == "**Output**: h', or a `State`\nif hx is one"
    )
    assert (
        convert("root: a folder; own: classes, of\nyours") == "- `root`: a folder\n- `own`: classes, of yours"
    )
    assert convert("One line: the value\nof it, not a list") == "One line: the value\nof it, not a list"


def documented(name):
    """The object that a directive of an API page names."""
    package, _, rest = name.partition(".")
    found = importlib.import_module(package)
    for part in rest.split("."):
        found = getattr(found, part)
    return found


def test_the_api_pages_document_each_public_name_once():
    """Of a module that is a public name, each class and function."""
    described = [id(documented(name)) for name in DIRECTIVES]
    assert len(described) == len(set(described))
    public = {name: getattr(momentumrnn, name) for name in momentumrnn.__all__}
    public |= {
        f"experiments.{n}": getattr(momentumrnn.experiments, n) for n in momentumrnn.experiments.__all__
    }
    for module in [value for value in public.values() if inspect.ismodule(value)]:
        members = {
            f"{module.__name__}.{name}": value for name, value in vars(module).items() if name[0] != "_"
        }
        public |= {
            n: v
            for n, v in members.items()
            if getattr(v, "__module__", "") == module.__name__ and callable(v)
        }
    missing = [n for n, v in public.items() if not inspect.ismodule(v) and id(v) not in described]
    assert missing == []


def test_the_overview_links_what_the_pages_document():
    """All but the paper's names, which have a table of their own."""
    linked = re.findall(r"\]\[(\S+?)\]", (DOCS / "api.md").read_text("utf-8"))
    assert set(linked) <= set(DIRECTIVES)
    table = re.findall(r"\]\[(\S+?)\]", (DOCS / "api/paper-names.md").read_text("utf-8"))
    of_the_paper = {name for name in DIRECTIVES if documented(name).__module__ == "momentumrnn.paper_names"}
    assert len(of_the_paper) == 30
    assert of_the_paper <= set(table)


@pytest.fixture
def hooks():
    pytest.importorskip("mkdocs", reason=NOT_INSTALLED)
    return importlib.import_module("site_hooks")


def test_the_address_of_the_repository(hooks, monkeypatch):
    for name in ("REPOSITORY_URL", "GITHUB_SERVER_URL", "GITHUB_REPOSITORY"):
        monkeypatch.delenv(name, raising=False)
    assert hooks.repository_address() == ""
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://example.org")
    assert hooks.repository_address() == ""
    monkeypatch.setenv("GITHUB_REPOSITORY", "us/project")
    assert hooks.repository_address() == HOST
    monkeypatch.setenv("REPOSITORY_URL", "https://example.net/ours/")
    assert hooks.repository_address() == "https://example.net/ours"


@pytest.mark.parametrize(
    ("tag", "bad"),
    [
        ('<script async src="https://example.org/a.js"></script>', True),
        ("<img alt='x' src=http://example.org/a.png>", True),
        ('<link rel="stylesheet" href="https://example.org/a.css">', True),
        ('<a href="https://example.org">', False),
        ('<img src="data:image/png;base64,aa"><script src="assets/a.js"></script>', False),
        ('<link rel="canonical" href="https://example.org">', False),
    ],
)
def test_a_page_that_loads_from_another_host_is_warned_of(hooks, caplog, tag, bad):
    from types import SimpleNamespace

    page = SimpleNamespace(file=SimpleNamespace(src_uri="a.md"))
    assert hooks.on_post_page(f"<p>{tag}</p>", page=page, config=None) == f"<p>{tag}</p>"
    assert ("should be loaded from another host" in caplog.text) == bad


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("[f](../LICENSE)", ""),
        ("[f](../MISSING)", "docs/index.md: the link to ../MISSING should lead to a file of the repository"),
        ("[f](changelog.md#no)", "does not contain an anchor '#no'"),
    ],
)
def test_a_broken_link_fails_the_build(tmp_path, link, problem):
    """A small site with our hooks and our rules for links."""
    pytest.importorskip("mkdocs", reason=NOT_INSTALLED)
    config = (ROOT / "mkdocs.yml").read_text("utf-8")
    (rules,) = re.findall(r"^hooks:.*?(?=^nav:)", config, re.DOTALL | re.MULTILINE)
    (tmp_path / "mkdocs.yml").write_text(
        f"site_name: small\ntheme: {{name: null, custom_dir: theme}}\nplugins: []\n{rules}"
    )
    (tmp_path / "tools").mkdir()
    for tool in ROOT.glob("tools/*.py"):
        (tmp_path / "tools" / tool.name).write_bytes(tool.read_bytes())
    for name, text in {
        "LICENSE": "",
        "CHANGELOG.md": "# Changes\n",
        "examples/notebook.ipynb": notebook(code("1")),
        "docs/index.md": f"# Home\n{link}\n",
        "theme/main.html": "{{ page.content }}",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    build = [sys.executable, "-m", "mkdocs", "build"]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode == 0) == (not problem), done.stderr
    assert problem in done.stderr
