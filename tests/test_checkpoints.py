"""Checkpoints: a state_dict names its momentum, and torch.load reads what is ours without running code."""

import copy
import inspect
import io
import pickle
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import momentumrnn as mr
from momentumrnn import cells, init
from momentumrnn.recurrent_base import RecurrentModule

H = 4


def saved_and_loaded(value, weights_only=True):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


def learned(momentum, entries=(4,)):
    return momentum(mu=nn.Parameter(torch.full(entries, 0.5)))


def metadata(module):
    return {name: own["momentum"] for name, own in module.state_dict()._metadata.items() if "momentum" in own}


class Model(nn.Module):
    """A user's model, with a layer and a step cell inside."""

    def __init__(self, momentum=None, of_decoder=None):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(3, 3), mr.GRU(3, H, momentum=momentum))
        self.decoder = mr.LSTMCell(3, H, momentum=of_decoder)


# What a state_dict says

WAYS = {
    "as it is": lambda state: state,
    "deepcopy": copy.deepcopy,
    "pickle": lambda state: pickle.loads(pickle.dumps(state)),
    "torch.save": saved_and_loaded,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_state_dict_names_the_momentum(way):
    model = Model(mr.HeavyBall(mu=0.9), mr.Adam())
    state = way(model.state_dict())
    assert metadata(model) == {
        "encoder.1": "HeavyBall(mu=0.9, step=1.0)",
        "decoder": "Adam(mu=0.6, step=1.0, beta=0.999, eps=1e-08, eps_in_sqrt=True)",
    }
    other = Model(mr.HeavyBall(mu=0.5), mr.Adam())
    with pytest.warns(UserWarning, match="checkpoint") as caught:
        other.load_state_dict(state)
    (message,) = (str(warning.message) for warning in caught)
    assert message.startswith("encoder.1: ")
    for part in (
        "saved with momentum=HeavyBall(mu=0.9, step=1.0)",
        "has momentum=HeavyBall(mu=0.5, step=1.0)",
    ):
        assert part in message
    assert "give it the momentum of the checkpoint" in message
    Model(mr.HeavyBall(mu=0.9), mr.Adam()).load_state_dict(state)  # warnings are errors here


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module)), saved_and_loaded]
)
@pytest.mark.parametrize("module", [mr.LSTM, mr.GRUCell])
def test_a_copy_of_a_module_does_so_too(module, copied):
    first = module(3, H, momentum=mr.HeavyBall(mu=0.9))
    assert metadata(copied(first)) == {"": "HeavyBall(mu=0.9, step=1.0)"}
    with pytest.warns(UserWarning, match=rf"^{module.__name__}: .*momentum=None"):
        copied(module(3, H)).load_state_dict(first.state_dict())
    assert metadata(module(3, H)) == {"": "None"}


def test_names_and_values_are_torchs():
    """The metadata adds no key, also where a user hands in the dict to fill."""
    ours, torchs = mr.LSTM(3, H, 2, bidirectional=True), nn.LSTM(3, H, 2, bidirectional=True)
    assert list(ours.state_dict()) == list(torchs.state_dict())
    assert ours.state_dict()._metadata[""] == {"version": 1, "momentum": "None"}
    assert list(ours.state_dict(destination={}, prefix="a.")) == [f"a.{name}" for name in torchs.state_dict()]


def test_the_warning_is_at_the_callers_line():
    model = Model(mr.Nesterov())
    line = inspect.currentframe().f_lineno
    with pytest.warns(UserWarning, match="Nesterov") as caught:
        model.load_state_dict(Model().state_dict())
    assert [(w.filename, w.lineno) for w in caught] == [(__file__, line + 2)]


def test_foreign_state_dicts_are_loaded_silently():
    """Those of torch, and plain dicts such as safetensors gives, into ours; ours into torch's."""
    ours, torchs = mr.MomentumLSTM(3, H, mu=0.9), nn.LSTM(3, H)
    ours.load_state_dict(torchs.state_dict())
    ours.load_state_dict(dict(mr.LSTM(3, H).state_dict()))
    torchs.load_state_dict(ours.state_dict())
    assert torch.equal(torchs.weight_hh_l0, ours.weight_hh_l0)


@dataclass(frozen=True)
class Own(mr.Momentum):
    """A user's own, whose repr has the address of an object."""

    schedule: object
    step: float = 1.0

    def decay(self, k):
        return 0.5


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (mr.HeavyBall(mu=0, step=1), mr.HeavyBall(mu=0.0, step=1.0)),
        (mr.HeavyBall(mu=np.float64(0.5)), mr.HeavyBall(mu=0.5)),
        (learned(mr.HeavyBall), mr.HeavyBall(mu=torch.full((4,), 0.1))),
        (learned(mr.HeavyBall.ema), mr.HeavyBall.ema(torch.full((4,), 0.1))),
        (Own(object()), Own(object())),
        (None, None),
    ],
    ids=["integers", "numpy", "learned", "learned ema", "own", "None"],
)
def test_equal_momenta_are_loaded_silently(first, second):
    """Values of tensors are loaded, so that only their shapes must agree."""
    other = mr.LSTM(3, H, momentum=second)
    other.load_state_dict(mr.LSTM(3, H, momentum=first).state_dict())
    if hasattr(other, "momentum_mu"):
        assert other.momentum_mu.tolist() == [0.5] * 4


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (mr.HeavyBall(mu=0.5), mr.HeavyBall(mu=0.25)),
        (mr.HeavyBall(mu=0.5), None),
        (mr.Adam(), mr.RMSProp()),
        (learned(mr.HeavyBall), learned(mr.Adam)),
        (learned(mr.HeavyBall), learned(mr.HeavyBall.ema)),
        (mr.HeavyBall(0.5, torch.ones(4)), mr.HeavyBall(0.25, torch.ones(4))),
        (mr.ScheduledRestart(4), mr.ScheduledRestart(40)),
    ],
    ids=str,
)
def test_other_momenta_warn(first, second):
    for one, other in ((first, second), (second, first)):
        state = mr.LSTM(3, H, momentum=one).state_dict()
        with pytest.warns(UserWarning, match="the checkpoint was saved with momentum="):
            mr.LSTM(3, H, momentum=other).load_state_dict(state, strict=False)


def test_other_shapes_are_named_before_torch_refuses_them():
    state = mr.LSTM(3, H, momentum=learned(mr.HeavyBall)).state_dict()
    other = mr.LSTM(3, H, momentum=learned(mr.HeavyBall, (16,)))
    with pytest.warns(UserWarning, match=r"<Parameter \(4,\)>.*<Parameter \(16,\)>"):  # noqa: SIM117
        with pytest.raises(RuntimeError, match="size mismatch for momentum_mu"):
            other.load_state_dict(state)


def test_a_module_with_parametrisations():
    """Torch saves it by its state_dict alone, which names the momentum too."""
    rnn = mr.orthogonal(mr.RNN(3, H, bias="hh", momentum=learned(mr.HeavyBall, ())))
    parametrize.register_parametrization(rnn, "momentum_mu", nn.Identity())
    state = saved_and_loaded(rnn.state_dict())
    copy.deepcopy(rnn).load_state_dict(state)
    rnn.momentum = mr.Nesterov()
    with pytest.warns(UserWarning, match=r"saved with momentum=HeavyBall\(.*has momentum=Nesterov\("):
        rnn.load_state_dict(state, strict=False)


# torch.load without running code

DESCRIPTIONS = [
    mr.HeavyBall(mu=0.9),
    mr.HeavyBall(mu=np.float64(0.9), step=np.float32(0.5)),
    mr.HeavyBall.ema(0.9),
    mr.Nesterov(),
    mr.ScheduledRestart(every=7),
    mr.Adam(beta=0.9),
    mr.RMSProp(),
    *map(cells.Elman, ("tanh", "relu", "sigmoid", "modrelu")),
    cells.LSTM(),
    cells.GRU(),
    cells.ExtrapolatedLSTM(every=3),
    init.Torch(),
    init.Paper(forget_bias=-4.0),
    init.Dtriv("henaff"),
]


@pytest.mark.parametrize("value", DESCRIPTIONS, ids=repr)
def test_descriptions_are_loaded(value):
    (loaded,) = saved_and_loaded({"config": [value]})["config"]
    assert loaded == value
    assert type(loaded) is type(value)


def test_no_class_was_forgotten():
    """Every momentum, cell, initialisation and module of ours that can be saved."""

    def below(kind):
        return {kind, *(c for child in kind.__subclasses__() for c in below(child))}

    bases = (mr.Momentum, mr.Cell, init.Init, RecurrentModule)
    found = {kind for base in bases for kind in below(base) if kind.__module__.startswith("momentumrnn.")}
    found = {kind for kind in found - {*bases} if not kind.__name__.startswith("_")}
    assert {"ExponentialAverage", "ExtrapolatedLSTM", "Dtriv", "RNNCell"} <= {kind.__name__ for kind in found}
    assert found <= set(torch.serialization.get_safe_globals())


MODULES = {
    "LSTM": lambda: mr.LSTM(3, H, 2, bidirectional=True, momentum=mr.Adam(), init=init.Paper()),
    "GRU": lambda: mr.GRU(3, H, momentum=learned(mr.HeavyBall, ())),
    "RNN": lambda: mr.RNN(3, H, bias="hh", nonlinearity="modrelu", momentum=learned(mr.HeavyBall.ema, ())),
    "Recurrent": lambda: mr.Recurrent(cells.ExtrapolatedLSTM(), 3, H),
    "LSTMCell": lambda: mr.LSTMCell(3, H, momentum=learned(mr.Adam)),
    "GRUCell": lambda: mr.GRUCell(3, H, momentum=mr.Nesterov()),
    "RNNCell": lambda: mr.RNNCell(3, H),
    "RecurrentCell": lambda: mr.RecurrentCell(cells.Elman("sigmoid"), 3, H),
    "paper": lambda: mr.SRLSTM(3, H),
}


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
def test_whole_modules_are_loaded(make):
    """Inside a user's dict; a learned mu is one Parameter afterwards, as before."""
    module = make()
    loaded = saved_and_loaded({"epoch": 3, "nets": [module]})["nets"][0]
    assert type(loaded) is type(module)
    assert repr(loaded) == repr(module)
    x = torch.randn(2, 3) if isinstance(module, mr.RecurrentCell) else torch.randn(5, 2, 3)
    state = None if getattr(module, "bidirectional", False) else module.initial_state(2)
    got, want = loaded(x, state), module(x, state)
    assert torch.equal(*((out.hidden[0] if isinstance(out, mr.State) else out[0]) for out in (got, want)))
    if "momentum_mu" in dict(module.named_parameters()):
        assert loaded.momentum.mu is loaded.momentum_mu is dict(loaded.named_parameters())["momentum_mu"]


def test_modules_of_older_files_are_loaded(monkeypatch):
    """Files from before modules.py was split name its classes there."""
    for module in (mr.GRU(3, H), mr.LSTMCell(3, H), mr.Recurrent(cells.GRU(), 3, H)):
        file = io.BytesIO()
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            patch.setattr(type(module), "__module__", "momentumrnn.modules")
            torch.save(module, file)
        assert b"momentumrnn.modules" in file.getvalue()
        file.seek(0)
        assert repr(torch.load(file, weights_only=True)) == repr(module)


def test_a_users_own_momentum_must_be_allowed():
    own = Own(None)
    with pytest.raises(pickle.UnpicklingError, match=r"test_checkpoints\.Own"):
        saved_and_loaded(own)
    with torch.serialization.safe_globals([Own]):
        assert saved_and_loaded(own) == own


@pytest.mark.parametrize(
    "momentum", [mr.HeavyBall(mu=0.9), learned(mr.HeavyBall, (3,)), learned(mr.HeavyBall.ema, (3,))], ids=str
)
def test_the_steps_of_lightning(momentum):
    """save_hyperparameters copies a constructor's arguments, and a checkpoint holds them beside the weights.

    Where mu is a Parameter, the arguments hold the layer's own, as the optimiser left it.
    """
    arguments = {"momentum": momentum, "choices": {"a": mr.Adam(), "b": [mr.Nesterov(), None]}}
    initial = copy.deepcopy(arguments)
    assert str(initial) == str(arguments)
    model = mr.GRU(3, H, momentum=arguments["momentum"])
    if hasattr(model, "momentum_mu"):
        with torch.no_grad():
            model.momentum_mu[0] = 1.02
    checkpoint = {"state_dict": model.state_dict(), "hyper_parameters": arguments}
    loaded = saved_and_loaded(checkpoint)
    read = loaded["hyper_parameters"]
    assert str(read) == str(arguments)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "momentum: mu should have values in")
        other = mr.GRU(3, H, momentum=read["momentum"])
    other.load_state_dict(loaded["state_dict"])
    x = torch.randn(5, 2, 3)
    assert torch.equal(other(x)[0], model(x)[0])
