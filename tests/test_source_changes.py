"""The hash of a user's class is of what is around it too, and never of a text that is not in memory."""

import functools
import sys

import pytest
from test_source_hash import PROJECT, changed, hash_of, modules_as_before, project_fixture

from momentumrnn.experiments.sources import hashes as hashes_module
from momentumrnn.experiments.sources.hashes import source_hash

# An import whose name is not used counts as one that does something.
FIXTURES = (modules_as_before, project_fixture)

# Values from around the class


def with_values(scale, function=len):
    class First:
        factor = scale

        def batch(self):
            return scale, function

    return First


def test_values_that_a_function_gives_to_a_class():
    wanted = source_hash(with_values(1))
    assert len(wanted) == 64
    assert source_hash(with_values(1)) == wanted
    kinds = [with_values(2), with_values(True), with_values([1]), with_values(object()), with_values("1")]
    # A function stands for its text, its bytecode or, if it is a library's, its name.
    functions = [max, with_values, functools.reduce, lambda x: x, lambda x: -x]
    hashes = {source_hash(kind) for kind in [*kinds, *(with_values(1, f) for f in functions)]}
    assert len(hashes | {wanted}) == 11


def test_a_value_that_a_class_has_through_its_methods_alone():
    def make(scale):
        def scaled(function):
            @functools.wraps(function)
            def call(self):
                return function(self) * scale

            return call

        class First:
            @property
            def size(self):
                return scale

            @scaled
            def batch(self):
                return 1

        return First

    assert source_hash(make(1)) == source_hash(make(1)) != source_hash(make(2))


def test_an_attribute_that_is_set_from_elsewhere():
    one, two = with_values(1), with_values(1)
    setattr(one, "more", 2)  # noqa: B010
    assert source_hash(one) != source_hash(two)
    two.more = 3
    assert source_hash(one) != source_hash(two)
    two.more = 2
    assert source_hash(one) == source_hash(two)


# What the file does with the class, and with what it uses

PLAIN_CLASS = "class First:\n    def batch(self):\n        return D, self.more\n"
CHANGES = {
    "setattr below": {"my_task.py": PLAIN_CLASS + "setattr(First, 'more', [VALUE])\n"},
    "a function that fills": {
        "my_task.py": f"D = {{}}\ndef fill(d, v):\n    d['k'] = v\n{PLAIN_CLASS}fill(D, VALUE)\n"
    },
    "a function of another module that fills": {
        "my_task.py": f"import lib.tools\nD = {{}}\n{PLAIN_CLASS}lib.tools.fill(D)\n",
        "lib/tools.py": "def fill(d):\n    d['k'] = VALUE\n",
    },
    "a function that sets a global": {
        "my_task.py": f"{PLAIN_CLASS}def setup(v):\n    global D\n    D = v\nsetup(VALUE)\n"
    },
    "a registry": {
        "my_task.py": (
            "D = {}\ndef register(f):\n    D['k'] = f\n    return f\n"
            f"@register\ndef g():\n    return VALUE\n{PLAIN_CLASS}"
        )
    },
    "a registry with names": {
        "my_task.py": (
            "D = {}\ndef register(name):\n    def add(f):\n        D[name] = f\n        return f\n"
            f"    return add\n@register('k')\ndef g():\n    return VALUE\n{PLAIN_CLASS}"
        )
    },
    "a module that is imported to register": {
        "my_task.py": f"from registry import D\nimport filling\n{PLAIN_CLASS}",
        "registry.py": "D = {}\n",
        "filling.py": "import registry\nregistry.D['k'] = lambda: VALUE\n",
    },
    "a module that sets a method": {
        "my_task.py": f"D = 1\n{PLAIN_CLASS}import patch\npatch.apply(First)\n",
        "patch.py": "def f(self):\n    return VALUE\ndef apply(kind):\n    kind.batch = f\n",
    },
}


@pytest.mark.parametrize("files", CHANGES.values(), ids=CHANGES)
def test_what_a_file_does_with_what_the_class_uses(files, project):
    one, two = ({name: text.replace("VALUE", value) for name, text in files.items()} for value in "12")
    wanted = hash_of(project(one))
    assert len(wanted) == 64
    assert hash_of(project(one)) == wanted != hash_of(project(two))


def test_what_a_program_does_with_its_class_does_not_count(project):
    text = f"D = 1\n{PLAIN_CLASS}def show(x, n): pass\nprint(First, N)\n"
    text += "if __name__ == '__main__':\n    show(First, N)\n"
    assert len({hash_of(project({"my_task.py": text.replace("N)", f"{n})")})) for n in (1, 2)}) == 1


# What is in memory


EDITS = {
    "a method": ("my_task.py", "return scale(x)", "return -scale(x)"),
    "a helper": ("my_task.py", "return value * OFFSET", "return value + OFFSET"),
    "a constant": ("my_task.py", "OFFSET = 0.5", "OFFSET = 0.25"),
    "a base": ("my_task.py", "return out + 1", "return out + 2"),
    "a function of another module": ("other.py", "return 2", "return 4"),
    "a constant of another module": ("a_fast_module.py", "speed = 1", "speed = 2"),
}


@pytest.mark.parametrize("change", EDITS.values(), ids=EDITS)
def test_a_file_that_is_edited_before_the_first_hash(change, project):
    """The text is then not that of what is in memory."""
    hashes = set()
    for files in (PROJECT, changed(change)):
        folder = project(files)
        hashes.add(hash_of(folder))
        kind = sys.modules["my_task"].First
        hashes_module._KNOWN.pop(kind)
        (folder / change[0]).write_text((folder / change[0]).read_text() + "\n# a comment\n")
        assert source_hash(kind) in hashes
        hashes_module._KNOWN.pop(kind)
        (folder / change[0]).write_text(changed(change)[change[0]])
        hashes.add(source_hash(kind))
    assert sum(text.startswith("bytecode:") for text in hashes) == 1
    assert len(hashes) == 3
