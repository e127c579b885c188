"""Our docstrings as Markdown: lists for arguments, code blocks for doctests, links for public names.

input_size: D, the number of features          a list, below a line such as "Args:" or by itself
a_t = W x_t + b_ih                             four spaces further in: a code block, as in Markdown
>>> lstm = LSTM(3, 5)                          a code block, up to the next empty line
Precision: products have ...                   a paragraph, its first word in bold
"""

import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

from griffe import Extension, Object

NAME = r"[a-z]\w*(?: [a-z]\w*)?(?:\[\w\])?"
NAMES = rf"{NAME}(?:, {NAME})*"
ITEM = re.compile(rf"(?P<names>{NAMES}): (?P<text>.*)", re.DOTALL)
SEPARATOR = re.compile(rf"; (?={NAMES}: )")
LABEL = re.compile(r"\A[A-Z]\w+(?=: )")
CODE_SPAN = re.compile(r"(?<!\[)`(?P<name>[A-Za-z_.]+)(?:\([^`]*\))?`")
DIRECTIVE = re.compile(r"^::: momentumrnn\.(\S+)$", re.MULTILINE)


class MarkdownDocstrings(Extension):
    """For mkdocstrings: converts each docstring when it is read."""

    def __init__(self, pages: str) -> None:
        """pages: the folder with the pages of the API. The names that they document become links."""
        names = [
            name for page in Path(pages).glob("*.md") for name in DIRECTIVE.findall(page.read_text("utf-8"))
        ]
        short = {name.rpartition(".")[2]: name for name in names if name.rpartition(".")[2][0].isupper()}
        full = short | {name: name for name in names}  # `LSTM` is the layer, `cells.LSTM` the cell
        self.links = {name: f"momentumrnn.{path}" for name, path in full.items()}

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = docstring_to_markdown(obj.docstring.value, self.links)


def docstring_to_markdown(docstring: str, links: dict[str, str] | None = None) -> str:
    """The docstring as Markdown. links: names in backticks that become links, each with its full name."""

    def link(match: re.Match[str]) -> str:
        full_name = (links or {}).get(match["name"])
        return f"[{match[0]}][{full_name}]" if full_name else match[0]

    parts = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        lines = block.split("\n")
        if lines[0].startswith(">>> "):
            parts.append(_fenced(lines, "pycon"))
            continue
        if ITEM.match(block) and SEPARATOR.search(block) and not _is_list(lines):
            lines = [" ".join(lines)]
        first = next((i for i, line in enumerate(lines) if line.startswith("    ")), len(lines))
        if _is_list(lines):
            first = 0
        text, below = lines[:first], lines[first:]
        if below and _is_list(below):
            title = [re.sub(r"\A[A-Z]\w+", r"**\g<0>**", "\n".join(text))] if text else []
            parts += [CODE_SPAN.sub(link, part) for part in [*title, _list(below)]]
        elif text:  # what is below continues it
            prose = LABEL.sub(r"**\g<0>**", "\n".join([*text, *map(str.strip, below)]))
            parts.append(CODE_SPAN.sub(link, prose.replace("(*", r"(\*")))
        else:
            parts.append(_fenced(below, "text"))
    return "\n\n".join(parts)


def _is_list(lines: list[str]) -> bool:
    """Whether each line is an item, or is indented to continue the item above it."""
    lines = textwrap.dedent("\n".join(lines)).split("\n")
    return all(ITEM.match(line) for line in lines if not line.startswith(" "))


def _list(lines: list[str]) -> str:
    """A Markdown list of the items. A line may hold several, with semicolons between them."""
    text = textwrap.dedent("\n".join(lines))
    return "\n".join(_item(item) for line in re.split(r"\n(?! )", text) for item in SEPARATOR.split(line))


def _item(item: str) -> str:
    match = ITEM.match(item)
    assert match is not None  # as _is_list made sure
    names = (name if " " in name else f"`{name}`" for name in match["names"].split(", "))
    return f"- {', '.join(names)}: {' '.join(match['text'].split())}"


def _fenced(lines: list[str], language: str) -> str:
    return "\n".join([f"```{language}", *textwrap.dedent("\n".join(lines)).split("\n"), "```"])
