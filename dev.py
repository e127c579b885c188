"""Set up, demonstrate and test momentumrnn from a bare Python 3.11+; knows nothing of the library.

usage: python3 dev.py setup                   make .venv, once, with all that the rest needs
       python3 dev.py demo [arguments...]     momentumrnn reproduce demo
       python3 dev.py lint                    ruff check, ruff format --check, mypy
       python3 dev.py test [pytest args...]   lint, then pytest in two processes
       python3 dev.py docs [mkdocs args...]   build the documentation; then open site/index.html

MOMENTUMRNN_NO_UV=1 installs with pip alone.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036  (whoever has an older Python should be told)
    sys.exit(f"momentumrnn needs Python 3.11 or newer; this is {sys.version.split()[0]}.")

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / "complete"


def run(*args: str, python: str | Path = PYTHON) -> bool:
    """Run Python in the root folder, output in view; true if it succeeded."""
    print("> python", *args, flush=True)
    return subprocess.run([python, *args], cwd=ROOT).returncode == 0


def fingerprint() -> str:
    """What the environment was made from; an editable install also depends on where it lies."""
    files = [(ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    return hashlib.sha256(b"\0".join([*files, sys.version.encode(), bytes(ROOT)])).hexdigest()


def find_links() -> str:
    """pip's extra places to look for wheels, as uv spells them: uv does not read pip's settings."""
    links = os.environ.get("PIP_FIND_LINKS")
    if not links:
        query = [str(PYTHON), "-m", "pip", "config", "get", "global.find-links"]
        links = subprocess.run(query, capture_output=True, text=True).stdout
    return ",".join(links.split())


def setup() -> bool:
    """Make .venv unless a finished one is there. The stamp comes last: without it, start afresh."""
    if PYTHON.exists() and STAMP.exists() and STAMP.read_text() == fingerprint():
        return True
    if not run("-m", "venv", "--clear", ".venv", python=sys.executable):
        return False
    install = ["pip", "install", "-q", "-e", ".[all,track,dev,docs]", "-c", "constraints.txt"]
    attempts = [install]
    no_uv = os.environ.get("MOMENTUMRNN_NO_UV")
    if not no_uv and run("-m", "pip", "install", "-q", "uv", "-c", "constraints.txt"):
        uv = ["uv", *install, "-b", "constraints.txt", "--python", ".venv"]
        attempts.insert(0, uv)
        links = find_links()
        if links:
            os.environ["UV_FIND_LINKS"] = links
        elif sys.platform == "linux" and not shutil.which("nvidia-smi"):
            # The default Linux torch brings gigabytes of CUDA that such a machine cannot use.
            attempts.insert(0, [*uv, "--torch-backend", "cpu"])
    if not any(run("-m", *attempt) for attempt in attempts):
        return False
    STAMP.write_text(fingerprint())
    return True


def main(command: str = "", *args: str) -> int:
    lint = [["-m", "ruff", "check", "."], ["-m", "ruff", "format", "--check", "."], ["-m", "mypy"]]
    test = ["-m", "pytest", "-n", "2", *args]  # pytest heeds the last -n, so the user's wins
    demo = ["-m", "momentumrnn", "reproduce", "demo", *args]
    docs = ["-m", "mkdocs", "build", *args]
    commands = {"setup": [], "demo": [demo], "lint": lint, "test": [*lint, test], "docs": [docs]}
    os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")  # the theme's notice of its successor
    if command in ("-h", "--help"):
        print(__doc__)
        return 0
    if command not in commands or (args and command in ("setup", "lint")):
        wrong = " ".join([command, *args]) or "nothing"
        print(f"{__doc__}\nexpected one of {', '.join(commands)}, got {wrong}", file=sys.stderr)
        return 2
    if not setup():
        print("The environment could not be made; the reason is above.", file=sys.stderr)
        return 1
    results = [run(*step) for step in commands[command]]  # all of them: no failure hides another
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
