"""Tables as CSV, LaTeX and Markdown, and the whole report as Markdown."""

import csv
import io
from collections.abc import Sequence

from .content import TERMS, Content, Section
from .table import Table
from .wording import sources

SIGNATURE = "Made by `momentumrnn report`"
"""It says in results.md that a folder is a report's."""
_LATEX = {
    "\\": r"\textbackslash{}",
    "±": r"$\pm$",
    "−": "$-$",
    "∞": r"$\infty$",
    "µ": r"$\mu$",
    "²": "$^2$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def as_csv(table: Table) -> str:
    """The data of the rows, a column for each name. Numbers have all their digits."""
    names = list(dict.fromkeys(name for row in table.rows for name in row.data))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, lineterminator="\n", restval="")
    writer.writeheader()
    for row in table.rows:
        writer.writerow({name: "" if value is None else value for name, value in row.data.items()})
    return buffer.getvalue()


def as_latex(table: Table) -> str:
    """The table as it is shown. It needs no LaTeX package."""
    # Braces come first: LaTeX takes a bracket after a line's end for its argument.
    body = ["{}" + " & ".join(map(_latex, row.cells)) + r" \\" for row in table.rows]
    head = " & ".join(map(_latex, table.columns)) + r" \\"
    columns = "l" * len(table.columns)
    return "\n".join(
        (
            rf"\begin{{tabular}}{{{columns}}}",
            r"\hline",
            head,
            r"\hline",
            *body,
            r"\hline",
            r"\end{tabular}",
            "",
        )
    )


def _latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in _line(text))


def _line(text: str) -> str:
    """The text on one line."""
    return " ".join(text.split())


def as_markdown(table: Table) -> str:
    """The table as it is shown."""
    rows = [table.columns, ("---",) * len(table.columns), *(row.cells for row in table.rows)]
    return "\n".join(f"| {' | '.join(_markdown(cell) for cell in row)} |" for row in rows)


def _markdown(text: str) -> str:
    """The text with its signs escaped."""
    return _line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("](", "]\\(")


def results(content: Content, pictures: Sequence[str]) -> str:
    """The report as Markdown. pictures: names of files in figures/."""
    parts = ["# Results", " ".join(content.summary)]
    parts.append(f"{SIGNATURE}. The page with interactive plots is report.html beside this file.")
    overview = [("", "what it shows", "state"), ("---",) * 3]
    overview += [(_link(section), section.title, section.status) for section in content.of("run")]
    parts.append("\n".join(f"| {' | '.join(row)} |" for row in overview))
    groups = (
        ("Hyper-parameters and drawings", content.of("background")),
        ("Not run yet", content.of("absent")),
    )
    parts += [f"{words}: {', '.join(map(_link, sections))}." for words, sections in groups if sections]
    parts.append("\n".join(f"- {line}" for line in TERMS))
    for section in content.sections:
        parts += _section(section, pictures)
    parts.append("## Quoted works")
    parts.append("\n".join(f"- {line}" for line in sources()))
    return "\n\n".join(parts) + "\n"


def _link(section: Section) -> str:
    return f"[{section.heading}](#{anchor(section)})"


def anchor(section: Section) -> str:
    """The anchor of its heading, for links within the file."""
    text = f"{section.heading}: {section.title}".lower()
    return "".join(sign for sign in text.replace(" ", "-") if sign.isalnum() or sign in "-_")


def _section(section: Section, pictures: Sequence[str]) -> list[str]:
    parts = [f"## {section.heading}: {section.title}", f"{section.status[0].upper()}{section.status[1:]}."]
    if section.command:
        parts[-1] += f" `{section.command}`"
    parts += filter(None, (section.introduction, section.lesson, *section.notes))
    if section.link:
        place, words = section.link
        parts.append(f"[{words}]({place})" if place else f"{words}.")
    names = [name for name in pictures if name.partition(".")[0].partition("-")[0] == section.name]
    parts += [f"![{section.title}](figures/{name})" for name in names if name.endswith(".svg")]
    for table in section.tables:
        parts += [as_markdown(table), *([table.note] if table.note else [])]
    return parts
