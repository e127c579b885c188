"""Links in the pages of the site, rewritten where they leave docs/. Knows nothing of MkDocs.

A page is read in two places: beside the rest of the repository, where `../results/runs` is a file, and on the
site, which has only docs/. So a link to another file becomes a link to the repository's address. Where no
address is known, its text stays, and the file is named. A link to a file that does not exist is an error.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

# Files outside docs/ that the site shows, each with its page.
PAGES = {"CHANGELOG.md": "changelog.md", "examples/notebook.ipynb": "notebook.md"}
# Code is matched first, so that nothing in it is taken for a link.
PIECE = re.compile(
    r"^(?P<fence>`{3,}|~{3,}).*?^(?P=fence)"
    r"|(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`)"
    r"|(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\](?:\([^()]*\))?)*)\]"
    r"\((?P<target>[^()\s]+)(?P<title>\s[^()]*)?\)",
    re.DOTALL | re.MULTILINE,
)
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|#|/", re.IGNORECASE)
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
ANCHOR = re.compile(r"""\b(?:id|name)=["']([^"']+)["']|\{ *#([\w-]+)""")


def anchors(markdown: str) -> set[str]:
    """The anchors of a page: those of its headings, as code hosts and the site make them, and its own."""
    text = re.sub(r"^(```|~~~).*?^\1", "", markdown, flags=re.DOTALL | re.MULTILINE)
    own = {first or second for first, second in ANCHOR.findall(text)}
    headings = (re.sub(r"[^\w\s-]", "", heading) for heading in HEADING.findall(text))
    return own | {heading.strip().lower().replace(" ", "-") for heading in headings}


@dataclass(frozen=True)
class Links:
    """The rule by which links are rewritten.

    root: the repository
    repository: its address, such as https://example.org/name/project, or "" where none is known
    """

    root: Path
    repository: str = ""

    def rewrite(self, markdown: str, source: str) -> tuple[str, list[str]]:
        """The text of a page with links that work on the site, and what is wrong with those that cannot.

        source: the file of the text, seen from the root, such as "docs/results.md"
        """
        problems: list[str] = []

        def replace(match: re.Match[str]) -> str:
            target = match["target"]
            if target is None or ELSEWHERE.match(target):
                return match[0]
            try:
                return self._link(match, source)
            except ValueError as error:
                problems.append(f"{source}: {error}")
                return match[0]

        return PIECE.sub(replace, markdown), problems

    def _link(self, match: re.Match[str], source: str) -> str:
        path, _, anchor = match["target"].partition("#")
        file = os.path.normpath(os.path.join(os.path.dirname(source), path)).replace(os.sep, "/")
        fragment = f"#{anchor}" if anchor else ""
        if file.startswith("../") or not (self.root / file).exists():
            raise ValueError(f"the link to {match['target']} should lead to a file of the repository")
        if anchor and file.endswith(".md") and anchor not in anchors((self.root / file).read_text("utf-8")):
            raise ValueError(f"the link to {match['target']} should lead to a heading of {file}")
        page = PAGES.get(file) or (file.removeprefix("docs/") if file.startswith("docs/") else None)
        if page is not None:
            here = os.path.dirname(PAGES.get(source) or source.removeprefix("docs/"))
            target = os.path.relpath(page, here or ".").replace(os.sep, "/") + fragment
        elif match["image"]:
            raise ValueError(f"the image {match['target']} should be in docs/")
        elif self.repository:
            kind = "tree" if (self.root / file).is_dir() else "blob"
            target = f"{self.repository}/{kind}/main/{file}{fragment}"
        else:
            named = os.path.splitext(os.path.basename(file))[0].lower() in match["text"].lower()
            return match["text"] if named else f"{match['text']} (`{file}`)"
        return f"{match['image']}[{match['text']}]({target}{match['title'] or ''})"
