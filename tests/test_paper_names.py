"""What an editor and a type checker see of the paper's names: the stub, and the runtime signatures."""

import inspect
from pathlib import Path

import pytest
import write_paper_stub

import momentumrnn as mr
from momentumrnn import paper_names

api = pytest.importorskip("mypy.api")
ROOT = Path(mr.__file__).parent
CODE = """
from momentumrnn import MomentumLSTM
from momentumrnn.api import SRGRUCell
from momentumrnn.paper_names import AdamRNN

reveal_type(MomentumLSTM(10, 20, mu=0.6))
reveal_type(SRGRUCell(3, 5, F=7, s=2.0))
reveal_type(AdamRNN(3, 5, nonlinearity="relu", beta=0.9))
MomentumLSTM(10, 20, beta=0.9)
MomentumLSTM(10)
MomentumLSTM(10, 20, num_layers="2")
AdamRNN(3, 5, momentum=None)
"""
EXPECTED = [
    (6, 'note: Revealed type is "momentumrnn.layers.LSTM"'),
    (7, 'note: Revealed type is "momentumrnn.step_cells.GRUCell"'),
    (8, 'note: Revealed type is "momentumrnn.layers.RNN"'),
    (9, 'error: Unexpected keyword argument "beta" for "MomentumLSTM"'),
    (10, 'error: Missing positional argument "hidden_size" in call to "MomentumLSTM"'),
    (11, 'error: Argument "num_layers" to "MomentumLSTM" has incompatible type "str"; expected "int"'),
    (12, 'error: Unexpected keyword argument "momentum" for "AdamRNN"'),
]


def test_the_stub_is_what_its_generator_writes():
    """Else: python tests/write_paper_stub.py > momentumrnn/paper_names.pyi"""
    assert (ROOT / "paper_names.pyi").read_text() == write_paper_stub.stub()


def test_the_stub_has_all_names():
    assert len(write_paper_stub.names()) == 30
    assert set(write_paper_stub.names()) <= set(mr.__all__)


@pytest.mark.parametrize("name", write_paper_stub.names())
def test_signatures_at_runtime(name):
    """The arguments of the layer and of the momentum, the paper's letters, and what comes back."""
    function = getattr(mr, name)
    signature = inspect.signature(function)
    kind = signature.return_annotation
    assert type(function(3, 5)) is kind
    assert name.endswith(kind.__name__)
    momentum = type(function(3, 5).momentum)
    expected = {**inspect.signature(kind).parameters, **inspect.signature(momentum).parameters}
    del expected["momentum"]
    letters = {paper_names.LETTERS[p]: p for p in expected if p in paper_names.LETTERS}
    assert list(signature.parameters) == [*expected, *letters]
    for p, given in signature.parameters.items():
        original = expected[letters.get(p, p)]
        assert (given.default, given.annotation) == (original.default, original.annotation)
    assert f"`{kind.__name__}` with `{momentum.__name__}` momentum" in function.__doc__
    assert all(f"`{letter}` for `{p}`" in function.__doc__ for letter, p in letters.items())
    assert function.__doc__.count(".") == 1


def test_a_type_checker_reads_the_names(tmp_path):
    """Without torch's own sources, which take mypy a minute: to it a Tensor is anything."""
    code = tmp_path / "code.py"
    code.write_text(CODE)
    names = ("__init__.py", "api.py", "paper_names.pyi", "layers.py", "step_cells.py")
    files = [ROOT / name for name in names]
    options = ["--follow-imports=skip", "--config-file=", f"--cache-dir={tmp_path}"]
    output, errors, _ = api.run([*options, str(code), *map(str, files)])
    assert errors == ""
    lines = [line.removeprefix(f"{code}:") for line in output.splitlines() if line.startswith(f"{code}:")]
    found = [(int(number), text.strip()) for number, text in (line.split(":", 1) for line in lines)]
    for place, text in EXPECTED:
        assert any(line == place and shown.startswith(text) for line, shown in found), output
    assert {line for line, _ in found} == {line for line, _ in EXPECTED}
