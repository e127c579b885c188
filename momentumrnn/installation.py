"""How this package was installed, and so how its extras are installed. Imports no torch."""

import json
import shlex
import tomllib
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

NAME = "momentumrnn"
PACKAGE = Path(__file__).parent


def install_command(extra: str) -> str:
    """The command that installs an extra from the place that this package came from.

    A clone is installed from its folder, since a package index may not have this package.
    """
    folder = PACKAGE.parent
    if _is_source(folder):
        # Editable: the code that runs stays the code of this folder.
        return f"pip install -e {shlex.quote(f'{folder}[{extra}]')}"
    return f"pip install {shlex.quote(_requirement(extra))}"


def _is_source(folder: Path) -> bool:
    """Whether a folder is a clone. Another project may have a copy of the package in its own folder."""
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
        return bool(project["project"]["name"] == NAME)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _requirement(extra: str) -> str:
    """What pip is told to install: the name, or the file, folder or repository that pip took before."""
    from importlib.metadata import PackageNotFoundError, distribution

    name = f"{NAME}[{extra}]"
    try:
        # pip writes this file if it did not take the package from an index.
        origin = json.loads(distribution(NAME).read_text("direct_url.json") or "{}")
        url, repository = origin.get("url", ""), origin.get("vcs_info")
        path = url2pathname(urlsplit(url).path) if url.startswith("file:") else ""
        if path and Path(path).exists():
            return f"{path}[{extra}]"
        return f"{name} @ {repository['vcs']}+{url}@{repository['commit_id']}" if repository else name
    except (PackageNotFoundError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return name
