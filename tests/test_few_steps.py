"""One or two steps on a CPU, which `native` computes as the definition is written."""

import pytest
import torch
from conftest import CELLS, MOMENTA, begun, call, gradients, layer

from momentumrnn import HeavyBall
from momentumrnn.backends import reference

pytestmark = pytest.mark.usefixtures("few_steps_as_shipped")
WITH_MOMENTUM = [name for name in MOMENTA if name != "None"]
OPTIONS = {
    "one layer": {},
    "two layers": {"num_layers": 2, "bias": "hh"},
    "no bias": {"bias": False, "dtype": torch.float32},
    "both directions": {"num_layers": 2, "bidirectional": True},
}


def results(net, x, lengths, state):
    out, final = call(net, x, state, lengths)
    inputs = [x, *(t for t in state or () if t.requires_grad), *net.parameters()]
    return [out, *final, *gradients([out, *final], inputs)]


@pytest.mark.parametrize("lengths", [[1] * 3, [2] * 3, [1, 2, 1]], ids=str)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("momentum", WITH_MOMENTUM)
@pytest.mark.parametrize("cell", [name for name in CELLS if name != "extrapolated"])
def test_it_is_the_definition(cell, momentum, options, lengths):
    """To the bit, with gradients: the backend "reference" is held to the oracle."""
    net = layer(cell, momentum, 3, 5, backend="native", **OPTIONS[options])
    definition = layer(cell, momentum, 3, 5, backend="reference", **OPTIONS[options])
    definition.load_state_dict(net.state_dict())
    x = torch.randn(max(lengths), 3, 3, dtype=net.weight_hh_l0.dtype, requires_grad=True)
    state = None if net.bidirectional else begun(net, [4, 0, 7])
    packed = None if len(set(lengths)) == 1 else lengths
    got, want = (results(n, x, packed, state) for n in (net, definition))
    assert all(g is w is None or torch.equal(g, w) for g, w in zip(got, want, strict=True))


def test_when(monkeypatch):
    net, calls = layer("lstm", "HeavyBall", 3, 5, backend="native"), []
    definition = reference.layer
    monkeypatch.setattr(reference, "layer", lambda *args: calls.append(1) or definition(*args))
    for steps, few in ((1, True), (2, True), (3, False)):
        x, before = torch.zeros(steps, 2, 3, dtype=torch.float64), len(calls)
        net(x)
        assert (len(calls) > before) is few
        assert ("the definition, a loop over time, for so few steps" in net.explain(x)) is few
    plain, before = layer("lstm", None, 3, 5, backend="native"), len(calls)
    plain(x[:1])
    assert len(calls) == before


@pytest.mark.parametrize("cell", ["lstm", "gru", "tanh"])
def test_autocast_gives_few_steps_the_dtype_of_many(cell):
    net, x = layer(cell, "HeavyBall", 3, 5, dtype=torch.float32), torch.randn(6, 2, 3)
    with torch.autocast("cpu", torch.bfloat16):
        (many, _), *few = (net(x[:steps]) for steps in (6, 1, 2))
    assert [out.dtype for out, _ in few] == [many.dtype] * 2


def test_a_step_after_another():
    """Single steps in a loop are the whole sequence, at the tolerance of sums in another order."""
    net, x = layer("lstm", None, 3, 5, 2, carry_momentum=True), torch.randn(7, 2, 3, dtype=torch.float64)
    net.momentum = HeavyBall(mu=0.9)
    state, outs = None, []
    for x_t in x.split([1, 2, 1, 1, 2]):
        out, state = net(x_t, state)
        outs.append(out)
    want, final = net(x)
    assert torch.allclose(torch.cat(outs), want, rtol=0, atol=1e-14)
    assert all(torch.allclose(a, b, rtol=0, atol=1e-14) for a, b in zip(state, final, strict=True))
