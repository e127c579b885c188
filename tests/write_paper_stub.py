"""Writes momentumrnn/paper_names.pyi: the signatures of the paper's names, for editors and type checkers.

usage: python tests/write_paper_stub.py > momentumrnn/paper_names.pyi
"""

import inspect
from textwrap import fill
from types import UnionType
from typing import get_args

from torch import Tensor

from momentumrnn import paper_names
from momentumrnn.init import Init

HEAD = '''"""Types of the paper's names. tests/write_paper_stub.py writes this file."""

import torch
from torch import Tensor

from .init import Init
from .layers import GRU, LSTM, RNN
from .step_cells import GRUCell, LSTMCell, RNNCell
'''
WIDTH = 110


def names() -> list[str]:
    """The functions of `paper_names`, in the order in which they stand there."""
    made = vars(paper_names).items()
    return [name for name, value in made if inspect.isfunction(value) and not name.startswith("_")]


def stub() -> str:
    return HEAD + "".join(map(definition, names()))


def definition(name: str) -> str:
    function = getattr(paper_names, name)
    signature = inspect.signature(function)
    parts, keywords = [], False
    for p in signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY and not keywords:
            parts.append("*")
            keywords = True
        default = "" if p.default is p.empty else f" = {p.default!r}"
        parts.append(f"{p.name}: {type_name(p.annotation)}{default}")
    # A line breaks between parameters, never within one: their spaces are put back afterwards.
    glued = ", ".join(part.replace(" ", "\0") for part in parts)
    indent = " " * 4
    lines = fill(glued, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    returns = type_name(signature.return_annotation)
    return f'\ndef {name}(\n{lines},\n) -> {returns}:\n    """{function.__doc__}"""\n'.replace("\0", " ")


def type_name(annotation: object) -> str:
    """An annotation as the stub writes it, with the imports of its head."""
    if isinstance(annotation, UnionType):
        return " | ".join(map(type_name, get_args(annotation)))
    if annotation is type(None):
        return "None"
    assert isinstance(annotation, type), (
        f"{annotation!r} is no type: say in write_paper_stub.py how to write it"
    )
    known = annotation in (Tensor, Init) or annotation.__module__.startswith(("builtins", "momentumrnn."))
    return annotation.__name__ if known else f"{annotation.__module__}.{annotation.__qualname__}"


if __name__ == "__main__":
    print(stub(), end="")
