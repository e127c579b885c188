"""The hint that installs the extras names a place that has them: a clone, a repository, an index."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from momentumrnn import installation
from momentumrnn.installation import install_command

ROOT = Path(__file__).parent.parent


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A function that installs the package in an empty folder; its argument is pip's direct_url.json."""
    site = tmp_path / "site"
    site.mkdir()

    def install(direct_url=None):
        info = site / "momentumrnn-9.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: momentumrnn\nVersion: 9.0\n")
        if direct_url is not None:
            text = direct_url if isinstance(direct_url, str) else json.dumps(direct_url)
            (info / "direct_url.json").write_text(text)
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.setattr(installation, "PACKAGE", site / "momentumrnn")

    return install


def test_a_clone_is_installed_from_its_folder():
    """As in these tests, whether the package was installed or is only on the path."""
    assert install_command("all") == f"pip install -e {shlex.quote(f'{ROOT}[all]')}"
    assert install_command("track") == f"pip install -e {shlex.quote(f'{ROOT}[track]')}"


def test_a_source_tree_on_the_path_is_a_clone(tmp_path):
    """In a process that has no installed momentumrnn, and with a folder that a shell would split."""
    clone = tmp_path / "my clone"
    (clone / "momentumrnn").mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", clone)
    shutil.copy(ROOT / "momentumrnn/installation.py", clone / "momentumrnn")
    code = "from momentumrnn.installation import install_command; print(install_command('all'))"
    # -S: without the packages that are installed here.
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=clone, capture_output=True, text=True, check=True
    )
    assert shlex.split(done.stdout) == ["pip", "install", "-e", f"{clone}[all]"]


def test_a_package_of_an_index_is_installed_by_its_name(installed):
    installed()
    assert install_command("all") == "pip install 'momentumrnn[all]'"


@pytest.mark.parametrize("kind", ["folder", "wheel"])
def test_a_copy_is_installed_from_where_it_came(kind, installed, tmp_path):
    origin = tmp_path / "a clone"
    if kind == "folder":
        origin.mkdir()
    else:
        origin.write_text("")
    installed({"url": origin.as_uri(), "dir_info": {}})
    assert shlex.split(install_command("all")) == ["pip", "install", f"{origin}[all]"]


def test_a_folder_that_is_gone_is_not_named(installed, tmp_path):
    installed({"url": (tmp_path / "gone").as_uri(), "dir_info": {}})
    assert install_command("all") == "pip install 'momentumrnn[all]'"


def test_a_repository_is_named_with_its_commit(installed):
    installed({"url": "https://host/momentumrnn", "vcs_info": {"vcs": "git", "commit_id": "abc"}})
    assert install_command("all") == "pip install 'momentumrnn[all] @ git+https://host/momentumrnn@abc'"


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"url": 3}', '{"url": "https://host/x", "vcs_info": {}}'])
def test_a_damaged_record_is_no_error(text, installed):
    installed(text)
    assert install_command("all") == "pip install 'momentumrnn[all]'"


def test_the_folder_of_another_project_is_no_clone(installed, tmp_path):
    """Its pyproject.toml would install something else."""
    installed()
    (tmp_path / "site/pyproject.toml").write_text('[project]\nname = "another"\n')
    assert install_command("all") == "pip install 'momentumrnn[all]'"
    (tmp_path / "site/pyproject.toml").write_text("not toml")
    assert install_command("all") == "pip install 'momentumrnn[all]'"
