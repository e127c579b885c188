"""What must agree between pyproject.toml, constraints.txt, CITATION.cff, the changelog, and CI's files."""

import re
import tomllib
from datetime import date
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import momentumrnn

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PINNED = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE))
WORKFLOW = (ROOT / ".github/workflows/tests.yml").read_text("utf-8")
YAML_FILES = [
    "CITATION.cff",
    ".pre-commit-config.yaml",
    *(path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob(".github/**/*.yml"))),
]


def parsed(name):
    yaml = pytest.importorskip("yaml", reason="YAML is read by a package of the extra momentumrnn[docs]")
    return yaml.safe_load((ROOT / name).read_text("utf-8"))


def test_the_version_and_its_date_are_the_same_everywhere():
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    newest, day = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\S+)$", changelog, re.MULTILINE)[0]
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert momentumrnn.__version__ == newest
    assert re.findall(r"^version: (\S+)$", citation, re.MULTILINE) == [newest]
    assert re.findall(r"^date-released: (\S+)$", citation, re.MULTILINE) == [day]
    assert date.fromisoformat(day)


def test_the_citation_says_what_the_project_says():
    citation = parsed("CITATION.cff")
    assert citation["title"] == PROJECT["name"]
    assert citation["license"] == PROJECT["license"]
    assert citation["abstract"] == PROJECT["description"]
    assert [author["name"] for author in citation["authors"]] == [a["name"] for a in PROJECT["authors"]]
    (paper,) = citation["references"]
    assert paper["url"] == PROJECT["urls"]["Paper"]
    assert paper["identifiers"][0]["value"] == f"arXiv:{paper['url'].rpartition('/')[2]}"


@pytest.mark.parametrize(
    "requirement",
    [*PROJECT["dependencies"], *(r for extra in PROJECT["optional-dependencies"].values() for r in extra)],
)
def test_each_requirement_has_a_tested_version(requirement):
    wanted = Requirement(requirement)
    assert wanted.specifier.contains(PINNED[wanted.name])


def versions_of_python():
    found = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", c) for c in PROJECT["classifiers"]]
    return sorted((match[1] for match in found if match), key=Version)


def test_the_oldest_python_is_the_required_one():
    assert SpecifierSet(PROJECT["requires-python"]) == SpecifierSet(f">={versions_of_python()[0]}")


def test_the_workflow_tests_the_oldest_and_newest_python_and_torch():
    matrix = re.findall(r'\{python: "([\d.]+)", torch: "([\d.]+)"\}', WORKFLOW)
    (torch,) = [Requirement(r) for r in PROJECT["dependencies"] if Requirement(r).name == "torch"]
    (oldest,) = [s.version for s in torch.specifier if s.operator == ">="]
    pythons = versions_of_python()
    assert [(python, Version(torch)) for python, torch in matrix] == [
        (pythons[0], Version(oldest)),
        (pythons[-1], Version(PINNED["torch"])),
    ]


def test_the_commands_of_the_workflow_exist():
    usage = re.findall(r"python3 dev\.py (\w+)", (ROOT / "dev.py").read_text("utf-8"))
    used = re.findall(r"python dev\.py (\w+)", WORKFLOW)
    assert {"setup", "lint", "docs"} <= set(used) <= set(usage)
    assert re.search(
        r"^torch==", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE
    )  # sed replaces it


def test_the_files_to_touch_exist():
    """A cell of the table may name a folder once, and then files in it."""
    contributing = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    table = contributing.partition("## Which file to touch\n")[2].partition("\n\nImports")[0]
    cells = [line.split("|")[2] for line in table.splitlines() if line.startswith("|")][2:]
    assert len(cells) > 10
    package = ROOT / "momentumrnn"
    for cell in cells:
        paths = re.findall(r"`([^`]+)`", cell)
        assert paths, cell
        folders = [package, *((package / path).parent for path in paths)]
        for path in paths:
            assert any((folder / path).exists() for folder in folders), path


@pytest.mark.parametrize("name", YAML_FILES)
def test_files_for_others_are_valid_yaml(name):
    assert parsed(name)


def test_the_workflow_may_read_alone():
    workflow = parsed(".github/workflows/tests.yml")
    assert workflow["permissions"] == {"contents": "read"}
    assert all("permissions" not in job for job in workflow["jobs"].values())
    assert workflow["concurrency"]["cancel-in-progress"] is True


def test_each_form_asks_for_something():
    for form in ("bug_report", "feature_request"):
        fields = parsed(f".github/ISSUE_TEMPLATE/{form}.yml")["body"]
        assert any(field.get("validations", {}).get("required") for field in fields)
        names = [field["id"] for field in fields]
        assert len(names) == len(set(names))
        assert all(field["attributes"]["label"] for field in fields)


def test_pre_commit_has_the_ruff_that_was_tested():
    """mypy runs from the environment, so it is the pinned one there."""
    config = (ROOT / ".pre-commit-config.yaml").read_text("utf-8")
    (revision,) = re.findall(r"ruff-pre-commit\n    rev: v(\S+)$", config, re.MULTILINE)
    assert revision == PINNED["ruff"]
    hooks = [
        hook["id"]
        for repository in parsed(".pre-commit-config.yaml")["repos"]
        for hook in repository["hooks"]
    ]
    assert hooks == ["ruff-check", "ruff-format", "mypy"]
