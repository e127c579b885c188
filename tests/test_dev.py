"""dev.py: which commands it runs, and when it makes the environment. Nothing is installed here."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def dev(monkeypatch):
    """dev.py as a module, which records what it would run. A step with a word of `dev.fails` fails."""
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ran, module.fails = [], ()

    def run(*args, python=None):
        module.ran.append(args)
        return not any(word in args for word in module.fails)

    monkeypatch.setattr(module, "run", run)
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "")
    return module


@pytest.fixture
def ready(dev, monkeypatch):
    """As `dev`, with an environment that needs no setup."""
    monkeypatch.setattr(dev, "setup", lambda: True)
    return dev


LINT = [("-m", "ruff", "check", "."), ("-m", "ruff", "format", "--check", "."), ("-m", "mypy")]


@pytest.mark.parametrize(
    ("command", "steps"),
    [
        (["setup"], []),
        (["demo", "--seeds", "1"], [("-m", "momentumrnn", "reproduce", "demo", "--seeds", "1")]),
        (["lint"], LINT),
        (["test", "-k", "x"], [*LINT, ("-m", "pytest", "-n", "2", "-k", "x")]),
        (["docs", "--clean"], [("-m", "mkdocs", "build", "--clean")]),
    ],
)
def test_what_a_command_runs(ready, command, steps):
    assert ready.main(*command) == 0
    assert ready.ran == steps


def test_a_step_that_fails_hides_no_other(ready):
    ready.fails = ("check",)
    assert ready.main("test") == 1
    assert len(ready.ran) == 4


@pytest.mark.parametrize("command", [[], ["no"], ["setup", "more"], ["lint", "more"]])
def test_what_is_no_command_is_named(ready, capsys, command):
    assert ready.main(*command) == 2
    assert f"got {' '.join(command) or 'nothing'}" in capsys.readouterr().err
    assert ready.ran == []


def test_without_an_environment_nothing_runs(dev, monkeypatch, capsys):
    monkeypatch.setattr(dev, "setup", lambda: False)
    assert dev.main("docs") == 1
    assert "could not be made" in capsys.readouterr().err
    assert dev.ran == []


def test_its_help_names_each_command(ready, capsys):
    assert ready.main("--help") == 0
    said = capsys.readouterr().out
    for command in ("setup", "demo", "lint", "test", "docs"):
        assert f"dev.py {command} " in said


@pytest.fixture
def no_environment(dev, tmp_path, monkeypatch):
    """An empty folder for the environment, and pip alone to fill it."""
    monkeypatch.setattr(dev, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(dev, "STAMP", tmp_path / "complete")
    monkeypatch.setenv("MOMENTUMRNN_NO_UV", "1")
    return dev


def test_the_environment_is_made_once_with_all_that_the_commands_need(no_environment):
    assert no_environment.setup()
    make, install = no_environment.ran
    assert make == ("-m", "venv", "--clear", ".venv")
    (extras,) = re.findall(r"\.\[(.*)\]", " ".join(install))
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras.split(",")) == set(optional)
    assert install[-2:] == ("-c", "constraints.txt")
    assert no_environment.setup()
    assert len(no_environment.ran) == 2


def test_an_environment_that_was_not_finished_is_made_again(no_environment):
    no_environment.fails = ("install",)
    assert not no_environment.setup()
    no_environment.fails = ()
    assert no_environment.setup()
    assert len(no_environment.ran) == 4


@pytest.mark.skipif(sys.platform == "win32", reason="what CI runs is a script for bash")
@pytest.mark.parametrize("failing", ["", "test", "docs"])
def test_ci_runs_the_tests_and_builds_the_documentation(tmp_path, failing):
    """With a python3 and a chromium of our own, so that nothing is run or installed."""
    (tmp_path / "python3").write_text(f'#!/bin/sh\necho "$@"\n[ "$2" != "{failing}" ]\n')
    (tmp_path / "chromium").write_text("#!/bin/sh\n")
    for program in ("python3", "chromium"):
        (tmp_path / program).chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    done = subprocess.run(["bash", ROOT / ".ci/run"], env={"PATH": path}, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["dev.py test", "dev.py docs"]
    assert done.returncode == (1 if failing else 0)
