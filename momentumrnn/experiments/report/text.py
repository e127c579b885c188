"""Tables as CSV, LaTeX and Markdown, and the whole report as Markdown."""

import csv
import io
from collections.abc import Sequence

from .content import TERMS, Content, Section
from .tables import Table, sources

MADE = "Made by `momentumrnn report`"
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
    """The data of the rows, a column for each name; numbers in full."""
    names = list(dict.fromkeys(name for row in table.rows for name in row.data))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows({k: "" if v is None else v for k, v in row.data.items()} for row in table.rows)
    return buffer.getvalue()


def as_latex(table: Table) -> str:
    """The table as it is shown; needs no package."""
    # Braces first: a bracket after a line's end would be its argument.
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
    """On one line, whatever it was."""
    return " ".join(text.split())


def as_markdown(table: Table) -> str:
    """The table as it is shown."""
    rows = [table.columns, ("---",) * len(table.columns), *(row.cells for row in table.rows)]
    return "\n".join(f"| {' | '.join(_markdown(cell) for cell in row)} |" for row in rows)


def _markdown(text: str) -> str:
    """As it is, whatever signs are in it."""
    return _line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("](", "]\\(")


def results(found: Content, pictures: Sequence[str]) -> str:
    """The report for whoever reads text; pictures: names of files in figures/."""
    parts = ["# Results", " ".join(found.summary)]
    parts.append(f"{MADE}; the page with curves to look into is report.html beside this file.")
    overview = [("", "what it shows", "state"), ("---",) * 3]
    overview += [(f"[{each.heading}](#{anchor(each)})", each.title, each.status) for each in found.sections]
    parts.append("\n".join(f"| {' | '.join(row)} |" for row in overview))
    parts.append(TERMS)
    for section in found.sections:
        parts += _section(section, pictures)
    parts.append("## Quoted works")
    parts.append("\n".join(f"- {line}" for line in sources()))
    return "\n\n".join(parts) + "\n"


def anchor(section: Section) -> str:
    """Its heading as a link in the same page leads to it."""
    text = f"{section.heading}: {section.title}".lower()
    return "".join(sign for sign in text.replace(" ", "-") if sign.isalnum() or sign in "-_")


def _section(section: Section, pictures: Sequence[str]) -> list[str]:
    parts = [f"## {section.heading}: {section.title}", f"{section.status[0].upper()}{section.status[1:]}."]
    if section.command:
        parts[-1] += f" `{section.command}`"
    parts += section.notes
    own = [name for name in pictures if name.partition(".")[0].partition("-")[0] == section.name]
    parts += [f"![{section.title}](figures/{name})" for name in own if name.endswith(".svg")]
    for table in section.tables:
        parts += [as_markdown(table), *([table.note] if table.note else [])]
    return parts
