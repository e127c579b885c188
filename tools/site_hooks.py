"""What MkDocs calls while it builds the site; mkdocs.yml names this file.

It adds the pages that are made from files outside docs/, and rewrites the links that lead outside it. What is
wrong becomes a warning, which fails `mkdocs build --strict`.
"""

import logging
import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from site_links import PAGES, Links
from site_notebook import notebook_to_markdown

ROOT = Path(__file__).parent.parent
# A page must not load anything from another host: it is read offline too.
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?https?:[^>]*>"""
    r"""|<link\b[^>]*\brel=["']?stylesheet[^>]*\bhref=["']?https?:[^>]*>"""
)

log = logging.getLogger("mkdocs.hooks.site")


def repository_address() -> str:
    """The address of the repository, where the environment knows it, as in a workflow of GitHub."""
    server, name = os.environ.get("GITHUB_SERVER_URL", ""), os.environ.get("GITHUB_REPOSITORY", "")
    return os.environ.get("REPOSITORY_URL", "").rstrip("/") or (f"{server}/{name}" if server and name else "")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Link to the repository from the foot of each page: for `repo_url` the theme would ask its host."""
    if address := repository_address():
        config.extra["social"] = [
            {"icon": "material/source-repository", "link": address, "name": "Repository"}
        ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in PAGES.items():
        path = ROOT / source
        if not path.exists():
            log.warning(f"{source} does not exist, so the site lacks {page}")
            continue
        text = path.read_text("utf-8")
        try:
            content = notebook_to_markdown(text) if path.suffix == ".ipynb" else text
        except ValueError as error:
            log.warning(f"{source}: {error}")
            continue
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    sources = {made: source for source, made in PAGES.items()}
    source = sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    text, problems = Links(ROOT, repository_address()).rewrite(markdown, source)
    for problem in problems:
        log.warning(problem)
    return text


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    for tag in LOADED.findall(output):
        log.warning(f"{page.file.src_uri}: nothing should be loaded from another host, got {tag}")
    return output
