"""A notebook as Markdown, with the outputs that it was saved with. Nothing is run."""

import json
import re
from typing import Any

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
OUTPUT = "{ .text .output }"  # the language, and a class for the style sheet
IMAGES = ("image/png", "image/jpeg", "image/svg+xml")


def notebook_to_markdown(notebook: str) -> str:
    """The cells of a notebook, and their outputs, one after another. notebook: the text of an .ipynb file."""
    parts = []
    content = json.loads(notebook)
    language = content["metadata"].get("language_info", {}).get("name", "python")
    for number, cell in enumerate(content["cells"], 1):
        source = _joined(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif cell["cell_type"] == "code":
            parts.append(_fenced(source, language))
            parts += [_output(output, number) for output in _joined_streams(cell["outputs"])]
    return "\n\n".join(part for part in parts if part.strip()) + "\n"


def _output(output: dict[str, Any], number: int) -> str:
    """One output of the cell with this number."""
    if output["output_type"] == "stream":
        return _fenced(_joined(output["text"]), OUTPUT)
    data = output.get("data", {})
    for kind in IMAGES:
        if kind in data:
            return f"![Output of cell {number}]({_address(kind, _joined(data[kind]))})"
    if "text/markdown" in data:
        return _joined(data["text/markdown"])
    if "text/plain" in data:
        return _fenced(_joined(data["text/plain"]), OUTPUT)
    found = output.get("ename") or ", ".join(data) or output["output_type"]
    raise ValueError(f"cell {number} of the notebook should have text and images as outputs, got {found}")


def _joined_streams(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The outputs, where what was printed in turns is one output."""
    joined: list[dict[str, Any]] = []
    for output in outputs:
        if output["output_type"] == "stream" and joined and joined[-1]["output_type"] == "stream":
            joined[-1] = {**output, "text": _joined(joined[-1]["text"]) + _joined(output["text"])}
        else:
            joined.append(output)
    return joined


def _address(kind: str, content: str) -> str:
    """An image as an address that holds the image itself."""
    if kind == "image/svg+xml":
        from urllib.parse import quote

        return f"data:{kind},{quote(content)}"
    return f"data:{kind};base64,{''.join(content.split())}"


def _joined(text: str | list[str]) -> str:
    """Text of a notebook, which is one string or a list of lines."""
    return text if isinstance(text, str) else "".join(text)


def _fenced(text: str, language: str) -> str:
    text = ANSI.sub("", text).strip("\n")
    if not text.strip():
        return ""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"
