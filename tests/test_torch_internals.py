"""The private names of torch: all are listed, each is there, and a torch that lost one is told apart."""

import ast
import importlib
import inspect
import re
import tomllib
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.version import Version

from momentumrnn import torch_internals
from momentumrnn.torch_internals import INTERNALS

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
CONSTRAINTS = PYPROJECT.with_name("constraints.txt")
MARK = "torch.compiler.assume_constant_result()."


def requirement() -> Requirement:
    listed = tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]
    return next(r for r in map(Requirement, listed) if r.name == "torch")


def test_this_torch_has_every_private_name():
    """A newer torch that lost one fails here, with the names, and not somewhere at an import."""
    assert torch_internals.missing() == []


def test_this_torch_is_one_that_was_tested():
    here = Version(torch.__version__).base_version
    assert requirement().specifier.contains(here), (
        f"pyproject.toml asks for {requirement()}, and this is torch {here}. Private names that it lacks: "
        f"{torch_internals.missing() or 'none'}. If all other tests pass, raise the bound."
    )


def test_the_bound_is_the_next_minor_version():
    """After the version of constraints.txt, so that a torch which nobody has tried is not installed."""
    (pinned,) = re.findall(r"^torch==(.+)$", CONSTRAINTS.read_text(), re.MULTILINE)
    tested, specifier = Version(pinned), requirement().specifier
    assert specifier.contains(tested)
    assert specifier.contains(f"{tested.major}.{tested.minor}.99")
    assert not specifier.contains(f"{tested.major}.{tested.minor + 1}.0")
    assert specifier.contains("2.11.0")
    assert not specifier.contains("2.10.9")


def used() -> set[str]:
    """The private names in the source of torch_internals, each in full."""
    nodes = list(ast.walk(ast.parse(inspect.getsource(torch_internals))))
    looked_up = {
        node.args[0].value
        for node in nodes
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "_or_gone"
    }
    attributes = set(map(full_name, (node for node in nodes if isinstance(node, ast.Attribute))))
    private = {name for name in attributes if any(is_private(word) for word in name.split("."))}
    parts = {part for name in private for part in private if name.startswith(f"{part}.")}
    return looked_up | (private - parts)


def full_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{full_name(node.value)}.{node.attr}"
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "super":
        return "torch.nn.Module"
    own = {"module": "torch.nn.Module", "forward_ad": "torch.autograd.forward_ad", "function": MARK[:-1]}
    own["destination"] = "torch.nn.Module.state_dict()"
    return own.get(node.id, node.id) if isinstance(node, ast.Name) else ""


def is_private(word: str) -> bool:
    return word.startswith("_") and not word.startswith("__")


def test_the_list_has_exactly_the_names_in_use():
    listed = [internal.name for internal in INTERNALS]
    assert len(set(listed)) == len(listed)
    assert set(listed) == used()


@pytest.mark.parametrize("internal", INTERNALS, ids=lambda internal: internal.name)
def test_every_name_has_a_reason_and_a_way_out(internal):
    assert len(internal.reason.split()) > 1
    assert len(internal.awaited.split()) > 1
    if internal.reason.startswith("as "):
        first = internal.reason.removeprefix("as ").partition(":")[0]
        assert any(other.name.endswith(f".{first}") for other in INTERNALS)


@pytest.mark.parametrize("name", ["_any_requires_grad", "_after_autograd_keyset"])
def test_a_lost_name_is_named(name, monkeypatch):
    monkeypatch.delattr(torch._C, name)
    (message,) = torch_internals.missing()
    (lost,) = (internal for internal in INTERNALS if internal.name.endswith(name))
    assert message == f"torch._C.{name}: {lost.reason}; instead: {lost.awaited}"


def test_other_kinds_of_names_are_looked_for(monkeypatch):
    """What is no attribute of a module of torch: those of a Module, and the mark on a function."""
    monkeypatch.setattr(torch.nn.Module, "__init__", lambda self: None)
    monkeypatch.setattr(torch.compiler, "assume_constant_result", lambda function: function)
    lost = [message.partition(": ")[0].rpartition(".")[2] for message in torch_internals.missing()]
    of_modules = ["_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"]
    assert lost == ["_dynamo_marked_constant", *of_modules, "_metadata"]


def test_it_can_be_imported_where_names_are_gone(monkeypatch):
    """What is looked up at the import can still be subclassed, and says what it is when it is used."""
    monkeypatch.delattr(torch.autograd.function, "_SingleLevelFunction")
    monkeypatch.delattr(torch._functorch.utils, "enable_single_level_autograd_function")
    monkeypatch.delattr(torch._C, "DispatchKeySet")
    spec = importlib.util.find_spec("momentumrnn.torch_internals")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class Function(module.SingleLevelFunction):
        pass

    assert len(module.missing()) == 3
    for use, name in [
        (Function.apply, "torch.autograd.function._SingleLevelFunction"),
        (module.allow_single_level_functions, "torch._functorch.utils.enable_single_level_autograd_function"),
        (module.DispatchKeySet, "torch._C.DispatchKeySet"),
    ]:
        with pytest.raises(RuntimeError, match=rf"no longer has {name}: .*instead: .*register_autograd"):
            use()
