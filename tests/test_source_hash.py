"""The hash of a user's class changes if what the class does may change, and else it stays the same."""

import functools
import importlib
import itertools
import linecache
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import momentumrnn as mr
from momentumrnn.experiments.sources.hashes import source_hash

HASHING = Path(mr.__file__).parent / "experiments" / "sources"
# So that a process can hash without the seconds that the import of torch takes.
WITHOUT_TORCH = f"""
import sys, types
package = sys.modules["hashing"] = types.ModuleType("hashing")
package.__path__ = [{str(HASHING)!r}]
from hashing.hashes import source_hash
"""
PROJECT = {
    "my_task.py": '''
"""A module."""
import math
import tools
import argparse
from dataclasses import dataclass
from math import sin as wave
from helpers import gain as factor
from everything import *
try:
    import a_fast_module as fast
except ImportError:
    fast = None
if math:
    from math import pi as circle
    import json

LENGTH = 20  # a constant
SIZES = {"small": 1}
SIZES["large"] = 2
TABLE = [square * LENGTH for square in range(3)]
x, unused = 5, "unused"
counter = row = square = 0
BEFORE = 1
first = LENGTH; second = BEFORE


def count_up():
    global started
    started = 1


def scale(value):
    """The docstring of a helper."""
    return value * OFFSET


OFFSET = 0.5


def unrelated(value):
    return value + 1


class Base:
    def loss(self, out):
        return out + 1  # of the base class


def traced(function):
    return function


@dataclass(frozen=True)
class First(Base):
    """What it does."""

    length: int = LENGTH
    """A field."""
    labels: tuple = ("a", "b")

    @traced
    def batch(self, rows):
        # A comment.
        x = [row for row in rows]
        f"{circle}"
        text = f"{scale(rows)!r:>{LENGTH}} # no comment" f'{x}'
        return scale(x), wave(1), factor(2), tools.shift(3), TABLE, fast, text, started, first, second

    def sizes(self, counter):
        from lazy import later

        return SIZES, counter, starred(1), later()


First.extra = "extra"


def train(epochs=10):
    return argparse.ArgumentParser(), epochs


if __name__ == "__main__":
    print(source_hash(First))
''',
    "helpers.py": """
from other import base

def gain(value):
    return value * base()

def not_used():
    return 1
""",
    "other.py": "def base():\n    return 2\n\ndef idle():\n    return 3\n",
    "tools.py": "def shift(value):\n    return value + 1\n\ndef idle():\n    return 3\n",
    "everything.py": "def starred(value):\n    return value\n\ndef idle():\n    return 3\n",
    "lazy.py": "def later():\n    return 4\n",
    "a_fast_module.py": "speed = 1\n",
}
# What changes in which file, and whether the class may then do something else.
OTHER = {
    "a method": ("my_task.py", "return scale(x)", "return -scale(x)"),
    "a field's default": ("my_task.py", '("a", "b")', '("a", "c")'),
    "a constant of a default": ("my_task.py", "LENGTH = 20", "LENGTH = 21"),
    "a constant of a helper": ("my_task.py", "OFFSET = 0.5", "OFFSET = 0.25"),
    "a constant with a comprehension": ("my_task.py", "range(3)", "range(4)"),
    "a constant of the second statement of a line": ("my_task.py", "BEFORE = 1", "BEFORE = 2"),
    "an item of a constant": ("my_task.py", 'SIZES["large"] = 2', 'SIZES["large"] = 3'),
    "a helper": ("my_task.py", "return value * OFFSET", "return value + OFFSET"),
    "a decorator": ("my_task.py", "    return function", "    return lambda *_: 0"),
    "which decorators": ("my_task.py", "    @traced\n", ""),
    "a base class": ("my_task.py", "return out + 1", "return out + 2"),
    "an attribute that is set below": ("my_task.py", 'First.extra = "extra"', 'First.extra = "more"'),
    "a global that a function sets": ("my_task.py", "started = 1", "started = 2"),
    "the text of an f-string": ("my_task.py", "# no comment", "# no  comment"),
    "an f-string that stands alone": ("my_task.py", 'f"{circle}"', 'f"{circle()}"'),
    "what an f-string computes": ("my_task.py", "f'{x}'", "f'{-x}'"),
    "which function of a library": ("my_task.py", "import sin as", "import cos as"),
    "a function of another module": ("helpers.py", "value * base()", "value + base()"),
    "what that function calls elsewhere": ("other.py", "return 2", "return 4"),
    "a whole module": ("tools.py", "return 3", "return 4"),
    "other things of a module": ("helpers.py", "return 1", "return 5"),
    "other things of a module further off": ("other.py", "return 3", "return 5"),
    "other things beside what a star brings": ("everything.py", "return 3", "return 5"),
    "a function that a star brings": ("everything.py", "return value", "return -value"),
    "a module that a method imports": ("lazy.py", "return 4", "return 5"),
    "a module that a try imports": ("a_fast_module.py", "speed = 1", "speed = 2"),
}
SAME = {
    "nothing": ("my_task.py", "LENGTH = 20", "LENGTH = 20"),
    "an unrelated function": ("my_task.py", "return value + 1", "return value + 2"),
    "the number of epochs": ("my_task.py", "epochs=10", "epochs=20"),
    "a global of the name of a local": ("my_task.py", "x, unused = 5", "x, unused = 6"),
    "a global of the name of a parameter": ("my_task.py", "counter = row", "counter = 1; row"),
    "a global of the name of a comprehension's variable": ("my_task.py", "square = 0", "square = 1"),
    "an import that is not used": ("my_task.py", "import argparse\n", "import sys\n"),
    "an import beside one that is used": ("my_task.py", "import json", "import csv"),
    "what stands before a class": ("my_task.py", "def unrelated(value):\n    return value + 1\n", "z = 1\n"),
    "a comment": ("my_task.py", "# A comment.", "# Another, much longer comment."),
    "a comment after code": ("my_task.py", "# of the base class", ""),
    "a comment of a constant": ("my_task.py", "  # a constant", ""),
    "a docstring": ("my_task.py", '"""What it does."""', '"""What it\n    does."""'),
    "a field's docstring": ("my_task.py", '"""A field."""', "'Another.'"),
    "a helper's docstring": ("my_task.py", '"""The docstring of a helper."""', '"""It."""'),
    "blanks in a line": ("my_task.py", "int = LENGTH", "int=LENGTH "),
    "empty lines": ("my_task.py", "\n\n", "\n\n\n \n"),
    "the width of a block": ("my_task.py", "\n        return out + 1", "\n              return out + 1"),
    "the ends of lines": ("my_task.py", "\n", "\r\n"),
    "what is not used": ("my_task.py", 'x, unused = 5, "unused"\n', ""),
}
numbers = itertools.count()


@pytest.fixture(autouse=True)
def modules_as_before(monkeypatch):
    """What a test imports is gone after it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = dict(sys.modules)
    yield
    for name in set(sys.modules) - set(before):
        del sys.modules[name]


@pytest.fixture(name="project")
def project_fixture(tmp_path):
    """Writes files into a folder of their own, and returns the folder."""

    def write(files):
        folder = tmp_path / f"folder{next(numbers)}"
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        return folder

    return write


def hash_of(folder, name="First", module="my_task", also=()):
    """The hash of a class of a module in a folder, after all modules of other folders are forgotten."""
    root = folder.parent
    for module_name, imported in list(sys.modules.items()):
        if Path(getattr(imported, "__file__", None) or "").is_relative_to(root):
            del sys.modules[module_name]
    sys.path[:] = [str(folder), *(path for path in sys.path if not Path(path).is_relative_to(root)), *also]
    importlib.invalidate_caches()
    return source_hash(functools.reduce(getattr, name.split("."), importlib.import_module(module)))


def changed(change):
    name, old, new = change
    assert old in PROJECT[name]
    return {**PROJECT, name: PROJECT[name].replace(old, new)}


def printed(*command, **environment):
    done = subprocess.run(
        [sys.executable, *command], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


# What counts


@pytest.mark.parametrize("change", OTHER.values(), ids=OTHER)
def test_what_the_class_does_changes_the_hash(change, project):
    assert hash_of(project(changed(change))) != hash_of(project(PROJECT))


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_what_can_not_matter_does_not_change_the_hash(change, project):
    """The folder does not matter either, since each of the two has one of its own."""
    assert hash_of(project(changed(change))) == hash_of(project(PROJECT))


def test_the_hash_is_the_same_on_every_python(project):
    """The versions of Python that run the tests compare themselves with this number."""
    assert hash_of(project(PROJECT)) == "0aa252136949dff5aca334497e9d1786fbec17555ff939b1e567b02a95d5b15e"


def test_the_hash_is_the_same_in_main_and_in_every_process(project):
    folder = project(
        {**PROJECT, "begin.py": f"{WITHOUT_TORCH}\nimport my_task\nprint(source_hash(my_task.First))"}
    )
    (folder / "my_task.py").write_text(WITHOUT_TORCH + PROJECT["my_task.py"])
    wanted = hash_of(folder)
    assert len(wanted) == 64
    for seed in "0", "1":
        assert printed(folder / "my_task.py", PYTHONHASHSEED=seed) == wanted
        assert printed(folder / "begin.py", PYTHONHASHSEED=seed) == wanted


def test_modules_of_a_package_are_followed(project):
    files = {
        "pack/__init__.py": "from .inner import deep\n",
        "pack/inner.py": "def deep():\n    return 1\n",
        "pack/common.py": "VALUE = 2\n",
        "pack/tasks/__init__.py": "",
        "pack/tasks/mine.py": (
            "from .. import common, deep\nfrom . import beside as near\nfrom .beside import far\n"
            "class First:\n    def batch(self):\n        return common.VALUE, deep(), near.X, far()\n"
        ),
        "pack/tasks/beside.py": "X = 3\ndef far():\n    return __name__\n",
    }
    place = "First", "pack.tasks.mine"
    wanted = hash_of(project(files), *place)
    assert hash_of(project({**files, "pack/__init__.py": "\n" + files["pack/__init__.py"]}), *place) == wanted
    for name, old in (("inner", "1"), ("common", "2"), ("tasks/beside", "3"), ("tasks/beside", "__name__")):
        path = f"pack/{name}.py"
        assert hash_of(project({**files, path: files[path].replace(old, "4")}), *place) != wanted


def test_installed_modules_are_not_followed(project):
    task = "import installed\nclass First:\n    def batch(self):\n        return installed.x\n"
    hashes = set()
    for value in "1", "2":
        folder = project({"my_task.py": task, "site-packages/installed.py": f"x = {value}"})
        hashes.add(hash_of(folder, also=[str(folder / "site-packages")]))
    assert len(hashes) == 1


def test_a_module_of_the_users_in_another_folder_counts(project):
    files = {
        "tasks/my_task.py": (
            "from lib.helpers import scale\nclass First:\n    def batch(self):\n        return scale(1)\n"
        ),
        "lib/helpers.py": "from . import deeper\ndef scale(x):\n    return x * deeper.factor\n",
        "lib/deeper.py": "factor = 1\n",
    }
    wanted = hash_of(project(files), module="tasks.my_task")
    assert hash_of(project(files), module="tasks.my_task") == wanted
    for name, old, new in (("lib/helpers.py", "x * deeper", "x + deeper"), ("lib/deeper.py", "1", "2")):
        other = project({**files, name: files[name].replace(old, new)})
        assert hash_of(other, module="tasks.my_task") != wanted
        # The folder of the task need not be a package that contains the other.
        assert hash_of(other / "tasks", also=[str(other)]) != wanted


def test_a_base_of_the_users_in_another_folder_counts(project):
    hashes = set()
    for value in "1", "2":
        folder = project({"my_task.py": "from bases import Base\nclass First(Base):\n    pass\n"})
        base = f"X = {value}\nclass Base:\n    def batch(self):\n        return X\n"
        hashes.add(hash_of(folder, also=[str(project({"bases.py": base}))]))
    assert len(hashes) == 2


NESTED = """
from dataclasses import dataclass

factor = 1

def make():
    factor = 2
    idle = 3

    def scale(value):
        return value * factor

    class Other:
        pass

    @dataclass
    class First:
        text: str = '''
no indentation'''

        class Inner:
            def batch(self):
                return 1

        def batch(self):
            nonlocal idle
            idle += 1
            return scale(1)

    return First

First = make()
"""


def test_nested_classes(project):
    wanted = hash_of(project({"my_task.py": NESTED}))
    inner = hash_of(project({"my_task.py": NESTED}), "First.Inner")
    assert len(wanted) == len(inner) == 64
    for old, new, same in (
        ("factor = 2", "factor = 3", False),
        ("value * factor", "value + factor", False),
        ("scale(1)", "scale(2)", False),
        ("no indentation", "  no indentation", False),
        ("idle = 3", "idle = 4", False),
        ("factor = 1", "factor = 4", True),
        ("class Other:\n        pass", "class Other:\n        x = 1", True),
        ("    class First", "    # comment\n    class First", True),
    ):
        assert (hash_of(project({"my_task.py": NESTED.replace(old, new)})) == wanted) == same, old
    other = NESTED.replace("scale(1)", "scale(2)")
    assert hash_of(project({"my_task.py": other}), "First.Inner") == inner


def test_a_class_of_this_function():
    step = 2

    class First:
        def batch(self):
            return step

    wanted = source_hash(First)

    class First:  # the name again
        def batch(self):
            return -step

    assert len(wanted) == 64
    assert source_hash(First) != wanted
    assert source_hash(First) == source_hash(First)


# What is in memory


def test_a_file_that_is_edited_later_does_not_change_what_is_in_memory(project):
    folder = project(PROJECT)
    wanted = hash_of(folder)
    (folder / "my_task.py").write_text(changed(OTHER["a method"])["my_task.py"])
    (folder / "helpers.py").unlink()
    assert source_hash(sys.modules["my_task"].First) == wanted


def test_code_that_is_loaded_anew_into_a_class_changes_its_hash(project, monkeypatch):
    """As the autoreload of notebooks does it: class and functions stay, and what they do is replaced."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # it knows times in whole seconds alone
    folder = project(PROJECT)
    wanted = hash_of(folder)
    task, helpers = sys.modules["my_task"], sys.modules["helpers"]
    kind, gain = task.First, helpers.gain

    files = changed(OTHER["a function of another module"])
    (folder / "helpers.py").write_text(files["helpers.py"])
    importlib.reload(helpers)
    gain.__code__ = helpers.gain.__code__
    with_other_gain = source_hash(kind)

    files["my_task.py"] = changed(OTHER["a method"])["my_task.py"]
    (folder / "my_task.py").write_text(files["my_task.py"])
    importlib.reload(task)
    kind.batch = task.First.batch
    with_both = source_hash(kind)
    assert len({wanted, with_other_gain, with_both}) == 3
    assert hash_of(project(files)) == with_both


# Notebooks


class Notebook:
    """A module without a file, whose text linecache knows by the cell, as IPython has it."""

    def __init__(self, monkeypatch):
        self.module = ModuleType("a_notebook")
        self.cells = {}
        monkeypatch.setitem(sys.modules, "a_notebook", self.module)
        monkeypatch.setattr(linecache, "cache", self.cells)

    def run(self, text):
        # A cell that runs again has its old name, and its old place in the cache.
        name = f"/tmp/ipykernel/{text!r}.py"
        self.cells[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), vars(self.module))

    def hash(self):
        return source_hash(self.module.First)


def test_the_cells_of_a_notebook(monkeypatch, project):
    monkeypatch.chdir(project(PROJECT))
    sys.path.insert(0, "")
    notebook = Notebook(monkeypatch)
    notebook.run("import math, tools\nscales = [1, 2]\noffset = 3")
    notebook.run("def helper(value):\n    return value + offset")
    definition = (
        "class First:\n    def batch(self, x):\n        return helper(x), scales, tools.shift(x), other"
    )
    notebook.run(definition)
    wanted = notebook.hash()
    assert len(wanted) == 64
    notebook.run("epochs = 10\nimport sys")
    assert notebook.hash() == wanted
    hashes = [wanted]
    for change, back in (
        ("scales = [1, 3]", "scales = [1, 2]"),
        ("offset = 4", "offset = 3"),
        ("def helper(value):\n    return value - offset", "def helper(value):\n    return value + offset"),
        (definition.replace("helper(x)", "-helper(x)"), definition),
    ):
        notebook.run(change)
        hashes.append(notebook.hash())
        notebook.run(back)
        assert notebook.hash() == wanted, change
        notebook.run(change)
        assert notebook.hash() == hashes[-1], change
        notebook.run(back)
    assert len(set(hashes)) == 5
