"""A class without source has a hash of its bytecode, which knows no lines, no order of sets, and says so."""

import os
import subprocess
import sys
from pathlib import Path

import momentumrnn as mr
from momentumrnn.experiments.sources.hashes import source_hash

# So that a process can hash without the seconds that the import of torch takes.
WITHOUT_TORCH = f"""
import sys, types
package = sys.modules["hashing"] = types.ModuleType("hashing")
package.__path__ = [{str(Path(mr.__file__).parent / "experiments" / "sources")!r}]
from hashing.hashes import source_hash
"""
EXECUTED = """
OFFSET = 0.5
calls = []

def scale(value):
    return value + OFFSET

def idle():
    return 1

class First:
    sizes = {"small", "large"}

    @property
    def size(self):
        return 7

    @staticmethod
    def draw(value=3):
        return [scale(row) for row in value if row in {"a", "b", "c", "d"}]

    def batch(self, rows):
        calls.index(rows)
        return self.draw(rows)
"""


def executed(text=EXECUTED):
    words = {"__name__": "a page"}
    exec(compile(text, "a page", "exec"), words)
    return words["First"]


def test_a_class_without_source_has_a_hash_of_its_bytecode():
    wanted = source_hash(executed())
    assert wanted.startswith("bytecode:")
    assert len(wanted) == len("bytecode:") + 64
    for old, new in (
        ("self.draw(rows)", "-self.draw(rows)"),
        ("return 7", "return 8"),
        ("value=3", "value=4"),
        ("scale(row)", "scale(-row)"),
        ('{"a", "b", "c", "d"}', '{"a", "b", "c", "e"}'),
        ('{"small", "large"}', '{"small", "larger"}'),
        ("value + OFFSET", "value - OFFSET"),
        ("OFFSET = 0.5", "OFFSET = 0.25"),
        ("rows", "lines"),
    ):
        assert old in EXECUTED
        assert source_hash(executed(EXECUTED.replace(old, new))) != wanted, old
    for old, new in (
        ("return 1", "return 2"),
        ("    def batch", "    # comment\n\n    def batch"),
        ('"small", "large"', '"large", "small"'),
        ("class First:", "class First:\n    'A docstring.'"),
    ):
        assert source_hash(executed(EXECUTED.replace(old, new))) == wanted, old


def test_bytecode_is_the_same_in_every_process_and_after_it_ran():
    text = f"{WITHOUT_TORCH}\nnames = {{'__name__': 'a page'}}\nexec({EXECUTED!r}, names)\n"
    text += "print(source_hash(names['First']))"
    wanted = source_hash(executed())
    for seed in "01":
        environment = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", text]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == wanted
    kind = executed()
    for _ in range(1000):  # so that Python specialises the bytecode
        kind.draw([1])
    assert source_hash(kind) == wanted
