"""Models as others write them, with our layers: they train, save and load, and steps give the whole."""

import io
import linecache
import re

import idiomatic_models as models
import pytest
import torch
from conftest import assert_same, difference

import momentumrnn as mr

MOMENTA = {
    "HeavyBall": mr.HeavyBall(mu=0.6),
    "Adam": mr.Adam(mu=0.6, beta=0.9, eps=0.1),
    "ScheduledRestart": mr.ScheduledRestart(every=5),
}
every_model = pytest.mark.parametrize("model_class", models.MODELS)
# WordModel and BidirectionalTranslator begin each sequence with torch's (h, c), which is right, and may warn.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*pass on the State that it returns:UserWarning"),
    pytest.mark.usefixtures("few_steps_as_shipped"),
]
every_momentum = pytest.mark.parametrize("momentum", MOMENTA)


def built(model_class, momentum, dtype=torch.float64, carry_momentum=True):
    return model_class(momentum=MOMENTA[momentum], carry_momentum=carry_momentum).to(dtype)


def trained(model, steps=20):
    """The losses of some steps of training."""
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=1e-2), []
    for _ in range(steps):
        loss = model.loss()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


@every_momentum
@every_model
def test_it_trains_saves_and_loads(model_class, momentum):
    model = built(model_class, momentum)
    losses = trained(model)
    assert sum(losses[-3:]) < 0.95 * sum(losses[:3])
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    again = built(model_class, momentum)
    with torch.no_grad():
        before = again.eval().whole()
        again.load_state_dict(torch.load(file, weights_only=True))
        wanted = model.eval().whole()
        assert_same(again.whole(), wanted)
        assert_same(again.in_steps(), wanted)
    assert difference(first(before), first(wanted)) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@every_momentum
@every_model
def test_steps_give_the_whole(model_class, momentum, dtype):
    model = built(model_class, momentum, dtype)
    trained(model, 3)
    with torch.no_grad():
        assert_same(model.eval().in_steps(), model.whole(), dtype)


@every_momentum
@pytest.mark.parametrize(
    "model_class", [models.WordModel, models.Translator, models.Forecaster], ids=lambda c: c.__name__
)
def test_without_carrying_steps_are_another_network_and_it_says_so(model_class, momentum):
    model = built(model_class, momentum, carry_momentum=False).eval()
    with torch.no_grad(), pytest.warns(UserWarning, match="carry_momentum=True") as caught:
        steps, whole = model.in_steps(), model.whole()
    (warning,) = caught  # one layer was given torch's state, again and again
    assert warning.filename == models.__file__
    assert re.search(r"self\.(rnn|decoder)\(", linecache.getline(warning.filename, warning.lineno))
    assert difference(first(steps), first(whole)) > 0.02
    carrying = built(model_class, momentum).eval()
    carrying.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert_same(carrying.in_steps(), carrying.whole())


def first(outputs):
    return outputs if isinstance(outputs, torch.Tensor) else outputs[0]
