"""What commands share about their options."""

import os
import subprocess
import sys

import pytest

from momentumrnn.cli.options import wait_without_spinning


@pytest.mark.parametrize("name", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"])
def test_who_decides_how_threads_wait_is_not_overruled(name):
    environment = {name: "x"}
    wait_without_spinning(environment)
    assert environment == {name: "x"}


def test_threads_wait_without_spinning_before_torch_is_imported():
    """In a process of its own, whose environment at the import of torch is what OpenMP has read."""
    code = (
        "import os, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch':\n"
        "            print('torch', os.environ.get('GOMP_SPINCOUNT'), flush=True)\n"
        "            sys.meta_path.remove(self)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from momentumrnn.__main__ import main\n"
        "main(['run', '--task', 'Adding(length=4, samples=4)', '--lr', '-1'])\n"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, text=True, capture_output=True)
    assert done.stdout == "torch 1000\n"
    assert "lr should be a number" in done.stderr
