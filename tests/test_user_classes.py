"""The classes of a user's own: which they are, and how `--import` brings them in or says why it can't."""

import inspect
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

import momentumrnn as mr
from momentumrnn import cells, init
from momentumrnn.experiments import Adding, Task
from momentumrnn.experiments.sources.hashes import is_own, source_hash, source_hashes
from momentumrnn.experiments.user_classes import import_classes


@dataclass(frozen=True)
class Warmup(mr.Momentum):
    mu: float = 0.9

    def decay(self, k):
        return self.mu * (1 - 0.5**k)


@dataclass(frozen=True)
class Blend:
    """A description of others."""

    parts: tuple = ()
    main: object = None


def test_is_own():
    assert is_own(Warmup)
    assert not any(map(is_own, (Adding, Task, mr.HeavyBall, cells.LSTM, init.Paper)))
    near = type("Near", (), {"__module__": "momentumrnn_tasks"})
    assert is_own(near)


def test_source_hashes_of_descriptions():
    assert source_hashes([Adding(), cells.LSTM(), None, init.Paper()]) == {}
    assert source_hashes([None, Adding(), Warmup()]) == {"Warmup": source_hash(Warmup)}
    hashes = source_hashes([Warmup(), Blend()])
    assert list(hashes) == ["Blend", "Warmup"]
    assert source_hashes([Blend(parts=(None, Adding(), Warmup(mu=0.5)))]) == hashes
    assert source_hashes([Blend(main={"a": [Blend(main=Warmup())]})]) == hashes
    assert list(source_hashes([Blend(parts=(Warmup, 1, "Warmup"))])) == ["Blend"]  # a class describes nothing


def test_two_classes_of_one_name_share_a_hash_of_both():
    def another(sign):
        @dataclass(frozen=True)
        class Warmup(mr.init.Init):
            scale: float = 0.1

            def __call__(self, name, weight, cell, hidden_size):
                weight.fill_(self.scale)

        return Warmup() if sign else None

    pair = [Warmup(), another(True)]
    hashes = source_hashes(pair)
    assert list(hashes) == ["Warmup"]
    assert hashes["Warmup"] not in (source_hash(Warmup), source_hash(type(pair[1])))
    assert source_hashes(pair[::-1]) == hashes


MINE = """
from dataclasses import dataclass

import momentumrnn as mr
from momentumrnn.experiments import Adding, Task
from momentumrnn.experiments.tasks import TASKS
from shared import Shared, factor

@dataclass(frozen=True)
class Second(mr.Momentum):
    mu: float = 0.5

    def decay(self, k):
        return self.mu * factor()

@dataclass(frozen=True)
class First(Adding):
    length: int = 7

@dataclass(frozen=True)
class Unfinished(Task):
    length: int = 7

@dataclass(frozen=True)
class Idle:
    length: int = 7

class Plain(mr.Momentum):
    def decay(self, k):
        return 0.5

Again = First
"""
SHARED = """
from dataclasses import dataclass
from momentumrnn.cells import LSTM

@dataclass(frozen=True)
class Shared(LSTM):
    pass

def factor():
    return 0.5
"""


FILES = {"mine.py": MINE, "shared.py": SHARED, "tasks/mine.py": MINE, "tasks/shared.py": SHARED}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder, which Python does not search, as under the command momentumrnn."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    # Another test may have left modules of these names.
    for name in FILES:
        monkeypatch.delitem(sys.modules, name.removesuffix(".py").partition("/")[0], raising=False)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["mine", "mine.py", "tasks/mine.py", "tasks.mine"])
def test_classes_are_imported_in_the_order_of_their_definition(name, here):
    if name == "tasks.mine":
        (here / "tasks/mine.py").write_text(MINE.replace("from shared", "from .shared"))
    kinds = import_classes([name])
    assert [kind.__name__ for kind in kinds] == ["Shared", "Second", "First"]
    assert import_classes([name, name]) == kinds
    assert inspect.getsource(kinds[1]).startswith("@dataclass(frozen=True)\nclass Second")
    assert all(len(source_hash(kind)) == 64 for kind in kinds)
    assert kinds[2](length=5) == kinds[2](length=5)


def test_nothing_is_imported_by_no_name():
    assert import_classes([]) == ()


def test_a_name_and_a_path_of_one_file_are_one_module(here):
    assert import_classes(["mine.py"]) == import_classes(["mine"]) == import_classes([str(here / "mine.py")])
    (here / "later.py").write_text(MINE)
    assert import_classes(["later"]) == import_classes(["later.py"])


def test_a_file_of_a_package_is_a_module_of_it(here):
    (here / "tasks/__init__.py").write_text("from .mine import First\n")
    (here / "tasks/mine.py").write_text(MINE.replace("from shared", "from .shared"))
    kinds = import_classes(["tasks/mine.py"])
    assert kinds == import_classes(["tasks.mine"])
    assert kinds[2] is import_classes(["tasks/__init__.py"])[0] is sys.modules["tasks"].First
    assert [kind.__module__ for kind in kinds] == ["tasks.shared", "tasks.mine", "tasks.mine"]


def test_a_program_that_imports_itself_is_not_run_again(here):
    """Its classes are those of `__main__`, and it has the hash that another program has for them."""
    (here / "mine.py").write_text(
        f"{MINE}\nfrom momentumrnn.experiments.sources.hashes import source_hash\n"
        "from momentumrnn.experiments.user_classes import import_classes\n"
        "kinds = import_classes(['mine.py'])\nassert kinds[2] is First\nprint(source_hash(First))\n"
    )
    done = subprocess.run([sys.executable, "mine.py"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == source_hash(import_classes(["mine.py"])[2])


def test_a_file_that_has_changed_is_imported_anew(here, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (first,) = [kind for kind in import_classes(["mine.py"]) if kind.__name__ == "First"]
    wanted = source_hash(first)
    times = (here / "mine.py").stat()
    (here / "mine.py").write_text(MINE.replace("length: int = 7", "length: int = 8"))
    os.utime(here / "mine.py", (times.st_atime, times.st_mtime))  # as if it had changed at once
    (again,) = [kind for kind in import_classes(["mine.py"]) if kind.__name__ == "First"]
    assert (first().length, again().length) == (7, 8)
    assert source_hash(first) == wanted != source_hash(again)
    assert import_classes(["mine.py"])[2] is again


def test_the_hash_is_of_the_source_that_was_imported(here):
    wanted = source_hash(import_classes(["mine"])[2])
    (kind,) = [kind for kind in import_classes(["tasks/mine.py"]) if kind.__name__ == "First"]
    (here / "tasks/mine.py").write_text(MINE.replace("length: int = 7", "length: int = 8"))
    assert source_hash(kind) == wanted


def test_files_of_one_name_and_files_named_like_a_module_of_python(here):
    other = MINE.replace("First", "Third").replace("Second", "Fourth")
    (here / "tasks/mine.py").write_text(other)
    (here / "random.py").write_text(MINE)
    before = sys.modules["random"]
    names = [kind.__name__ for kind in import_classes(["mine.py", "tasks/mine.py"])]
    assert names == ["Shared", "Second", "First", "Fourth", "Third"]
    assert [kind.__name__ for kind in import_classes(["random.py"])] == ["Shared", "Second", "First"]
    assert sys.modules["random"] is before


def test_an_import_writes_nothing_but_pythons_own_cache(here):
    before = {path for path in here.rglob("*") if path.suffix != ".pyc"}
    import_classes(["mine.py"])
    after = {path for path in here.rglob("*") if path.suffix != ".pyc"}
    assert {path.name for path in after - before} <= {"__pycache__"}


def refused(names):
    with pytest.raises(ValueError, match=r"^--import: expected ") as refusal:
        import_classes(names)
    text = str(refusal.value)
    assert "\n" not in text
    assert repr(names[-1]) in text
    return text


def test_a_module_that_is_not_there(here):
    text = refused(["mime"])
    assert str(here) in text
    assert "did you mean 'mine'" in text
    text = refused(["tasks.mime"])
    assert f"there is no tasks.mime in {here / 'tasks'}; did you mean 'tasks.mine'" in text
    assert "there is no nowhere" in refused(["nowhere.mine"])


@pytest.mark.parametrize(
    "name", ["", " ", ".mine", "mine.", "a..b", "tasks/mine", "my-task", "*", "mine.pyc/"]
)
def test_a_name_that_no_module_has(name, here):
    assert "a module such as my_package.tasks or a file such as my_task.py" in refused([name])


def test_a_path_without_its_ending_is_offered_with_it(here):
    assert refused(["tasks/mine"]).endswith("did you mean 'tasks/mine.py'?")


def test_a_file_that_is_not_there(here):
    text = refused(["tasks/mime.py"])
    assert f"there is none in {here / 'tasks'}; did you mean 'tasks/mine.py'" in text
    (here / "folder.py").mkdir()
    refused(["folder.py"])
    refused(["nowhere/mine.py"])


@pytest.mark.parametrize("name", ["failing", "failing.py"])
@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("x = 1\n\nx / 0\n", "ZeroDivisionError: division by zero (failing.py, line 3)"),
        ("x = (\n", "SyntaxError: '(' was never closed (failing.py, line 1)"),
        ("def f():\n  x\n y\n", "(failing.py, line 3)"),
        ("import absent_module\n", "No module named 'absent_module' (failing.py, line 1)"),
        ("import breaking\n", "RuntimeError: one (breaking.py, line 3)"),
        ("import json\njson.loads('{')\n", "(failing.py, line 2)"),
        ("assert False\n", "AssertionError (failing.py, line 1)"),
        ("raise ValueError\n", "ValueError (failing.py, line 1)"),
        ("import sys\nsys.exit(3)\n", "it ends Python (failing.py, line 2); put what it runs below"),
        ("raise SystemExit\n", "it ends Python (failing.py, line 1)"),
        ("x = '\0'\n", "null bytes"),
        ("# -*- coding: nonsense -*-\n", "unknown encoding: nonsense"),
    ],
)
def test_a_module_that_fails(source, wanted, name, here):
    (here / "failing.py").write_text(source)
    (here / "breaking.py").write_text("def f():\n    '''\n    '''; raise RuntimeError('one\\ntwo')\n\nf()\n")
    text = refused([name])
    assert "a module that can be imported" in text
    assert wanted in text
    assert "failing" not in sys.modules
    (here / "failing.py").write_text(MINE + "# it is longer now\n")
    assert len(import_classes([name])) == 3


@pytest.mark.parametrize("name", ["stopped", "stopped.py"])
def test_the_user_may_stop_an_import(name, here):
    (here / "stopped.py").write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        import_classes([name])
    assert "stopped" not in sys.modules


def test_a_module_without_a_class_that_describes_something(here):
    (here / "empty.py").write_text("from momentumrnn.experiments.tasks import *\nx = 1\n")
    wanted = "a module with a dataclass derived from Task, Cell, Momentum or Init, got 'empty.py' without one"
    assert refused(["empty.py"]).endswith(wanted)
    assert refused(["mine", "momentumrnn.experiments.tasks"]).endswith("without one")
    (here / "nearly.py").write_text(MINE[MINE.index("\nimport") : MINE.index("from shared")] + (
        "class Plain(mr.Momentum):\n    def decay(self, k):\n        return 0.5\n"
        "class Unfinished(mr.Momentum):\n    pass\n"
    ))  # fmt: skip
    assert refused(["nearly"]).endswith("its Plain lacks @dataclass(frozen=True); its Unfinished lacks decay")


def test_two_classes_of_one_name(here):
    text = refused(["mine.py", "tasks/mine.py"])
    assert "with a class Second, of which 'mine.py' has another" in text


@pytest.mark.parametrize("ours", ["Adding", "HeavyBall", "LSTM", "Paper"])
def test_a_class_with_the_name_of_one_of_ours(ours, here):
    (here / "mine.py").write_text(MINE.replace("class First(Adding)", f"class {ours}(TASKS[0])"))
    (here / "mine.py").write_text((here / "mine.py").read_text().replace("Again = First", ""))
    assert f"with a class {ours}: rename it" in refused(["mine"])
