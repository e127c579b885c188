"""A warning names the line of the user's code, whatever of torch and of ours is between."""

import inspect
import warnings

import pytest
import torch
from torch import nn

from momentumrnn.caller_warning import warn_caller


class Complains(nn.Module):
    """Its forward stands in for code of ours: it is run as code of a module of ours."""

    source = "def forward(self, x):\n    warn_caller('said')\n    return x\n"
    names = {"__name__": "momentumrnn.somewhere", "warn_caller": warn_caller}  # noqa: RUF012
    exec(compile(source, "ours.py", "exec"), names)
    forward = names["forward"]


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_the_line_of_the_caller(depth):
    module = Complains()
    for _ in range(depth):
        module = nn.Sequential(module)
    line = inspect.currentframe().f_lineno
    with pytest.warns(UserWarning, match="said") as caught:
        module(torch.ones(2))
    assert [(w.filename, w.lineno) for w in caught] == [(__file__, line + 2)]


def test_filters_of_a_user_count():
    """Also by module; and what was said once at a line is not said again there."""
    module = Complains()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            module(torch.ones(2))
        module(torch.ones(2))
    assert len(caught) == 2
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("ignore", module=__name__)
        module(torch.ones(2))
    assert caught == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="said"):
            module(torch.ones(2))


def test_a_category_of_ones_own():
    with pytest.warns(DeprecationWarning, match="old"):
        warn_caller("old", DeprecationWarning)


def test_silent_while_compiled():
    def forward(x):
        warn_caller("said")
        return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = torch.compile(forward, backend="eager", fullgraph=True)
        assert compiled(torch.ones(2)).tolist() == [2, 2]
