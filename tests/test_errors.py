"""What must be refused, and how: each message names the argument, what came and what was expected."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import momentumrnn as mr
from momentumrnn import cells
from momentumrnn.value_checks import check_integer

NAN, INF = math.nan, math.inf
BALL = mr.HeavyBall()


@dataclass(frozen=True)
class Crooked(mr.Momentum):
    """A user's momentum whose decay has a shape of its own."""

    def decay(self, k):
        return torch.ones(7)


@dataclass(frozen=True)
class Careless(mr.Cell):
    """A user's cell that declares two states and returns what it is told to."""

    returns: str
    gates = 1
    states = 2

    def step(self, v, r, b, state):
        h = (v + r).tanh()
        return {"one": (h,), "three": (h, h, h), "tensor": h}[self.returns]


@dataclass(frozen=True)
class Square(mr.Cell):
    """A user's cell of one gate row a unit that also projects."""

    gates = 1
    states = 1
    projects = True

    def step(self, v, r, b, state):
        return ((v + r).tanh(),)


def x(*shape, **kwargs):
    return torch.zeros(*(shape or (4, 2, 3)), **kwargs)


def lstm(**options):
    return mr.LSTM(3, 5, **{"momentum": BALL, **options})


def gru(**options):
    return mr.GRU(3, 5, **{"momentum": BALL, **options})


def start(**changes):
    """A State of `gru()` for two rows, with some parts replaced."""
    return gru().initial_state(2)._replace(**changes)


# An id, the call, the exception, and what its message must hold: the argument, what came, what was expected.
BAD = []


def assigned(net):
    net.momentum = 0.9
    return net


class Wordless(mr.Momentum):
    def decay(self, k):
        pass


class Gateless(mr.Cell):
    states = 1

    def step(self, v, r, b, state):
        return state


def bad(name, error, parts, call):
    BAD.append(pytest.param(call, error, parts, id=name))


# Arguments of the constructors: the keyword, the value, the exception, what was expected.
for keyword, value, error, want in [
    ("input_size", 0, ValueError, "at least 1"),
    ("input_size", -3, ValueError, "at least 1"),
    ("input_size", 3.0, TypeError, "an integer"),
    ("input_size", True, TypeError, "an integer"),
    ("input_size", "3", TypeError, "an integer"),
    ("input_size", None, TypeError, "an integer"),
    ("hidden_size", 0, ValueError, "at least 1"),
    ("hidden_size", -1, ValueError, "at least 1"),
    ("hidden_size", 5.0, TypeError, "an integer"),
    ("hidden_size", "5", TypeError, "an integer"),
    ("num_layers", 0, ValueError, "at least 1"),
    ("num_layers", -2, ValueError, "at least 1"),
    ("num_layers", 1.5, TypeError, "an integer"),
    ("num_layers", True, TypeError, "an integer"),
    ("bias", "ih", TypeError, "True, False, 'hh'"),
    ("bias", None, TypeError, "True, False, 'hh'"),
    ("bias", 2, TypeError, "True, False, 'hh'"),
    ("batch_first", 1, TypeError, "True, False"),
    ("batch_first", "yes", TypeError, "True, False"),
    ("bidirectional", 2, TypeError, "True, False"),
    ("dropout", -0.1, ValueError, "a number in [0, 1]"),
    ("dropout", 1.5, ValueError, "a number in [0, 1]"),
    ("dropout", NAN, ValueError, "a number in [0, 1]"),
    ("dropout", "a", TypeError, "a number in [0, 1]"),
    ("dropout", True, TypeError, "a number in [0, 1]"),
    ("dropout", None, TypeError, "a number in [0, 1]"),
    ("proj_size", 5, ValueError, "smaller than hidden_size=5"),
    ("proj_size", -1, ValueError, "at least 0"),
    ("proj_size", 2.0, TypeError, "an integer"),
    ("backend", "cudnn", ValueError, "'auto', 'cuda', 'native', 'reference'"),
    ("backend", None, TypeError, "'auto', 'cuda', 'native', 'reference'"),
    ("momentum", 0.9, TypeError, "None or a Momentum such as HeavyBall.ema(mu=0.6)"),
    ("momentum", mr.HeavyBall, TypeError, "None or a Momentum such as HeavyBall.ema(mu=0.6)"),
    ("momentum", "nesterov", TypeError, "None or a Momentum such as HeavyBall.ema(mu=0.6)"),
    ("init", "xavier", ValueError, "'torch', 'paper', 'dtriv', or an Init such as init.Paper()"),
    ("init", None, TypeError, "'torch', 'paper', 'dtriv', or an Init"),
    ("init", mr.init.Paper, TypeError, "'torch', 'paper', 'dtriv', or an Init"),
    ("init", ["paper"], TypeError, "'torch', 'paper', 'dtriv', or an Init"),
]:
    bad(
        f"LSTM-{keyword}={value!r}",
        error,
        (f"{keyword} should be", f"got {value!r}", want),
        lambda keyword=keyword, value=value: mr.LSTM(
            **{"input_size": 3, "hidden_size": 5, "num_layers": 2, keyword: value}
        ),
    )
for value, error in (("yes", ValueError), ("derived", ValueError), (None, TypeError), (1, TypeError)):
    for make in (mr.RNN, mr.RNNCell):
        bad(
            f"{make.__name__}-factored={value!r}",
            error,
            ("factored should be", f"got {value!r}", "True, False, 'printed'"),
            lambda make=make, value=value: make(3, 5, factored=value),
        )
for value in (True, "printed"):
    for cell in (cells.LSTM(), cells.GRU(), cells.ExtrapolatedLSTM()):
        bad(
            f"{cell!r}-factored={value!r}",
            ValueError,
            ("factored should be False", f"got {value!r}", "U is not square", repr(cell)),
            lambda cell=cell, value=value: mr.Recurrent(cell, 3, 5, factored=value),
        )
NONLINEARITIES = "'tanh', 'relu', 'sigmoid', 'modrelu'"
for value in ("softplus", None, True, ["tanh"]):
    bad(
        f"RNN-nonlinearity={value!r}",
        ValueError,
        ("nonlinearity should be", f"got {value!r}", NONLINEARITIES),
        lambda value=value: mr.RNN(3, 5, nonlinearity=value),
    )
for name, error, parts, call in [
    ("proj_size-of-a-GRU", ValueError, ("proj_size", "got 2", "be 0", "GRU()"),
        lambda: mr.Recurrent(cells.GRU(), 3, 5, proj_size=2)),
    ("cell-by-name", TypeError, ("cell", "'lstm'", "a Cell"), lambda: mr.Recurrent("lstm", 3, 5)),
    ("cell-is-a-class", TypeError, ("cell", "LSTM'>", "a Cell"), lambda: mr.Recurrent(cells.LSTM, 3, 5)),
    ("cell-is-torchs", TypeError, ("cell", "LSTMCell(3, 5)", "a Cell"),
        lambda: mr.Recurrent(nn.LSTMCell(3, 5), 3, 5)),
    ("Cell-hidden_size=0", ValueError, ("hidden_size", "got 0", "at least 1"), lambda: mr.GRUCell(3, 0)),
    ("Cell-bias=ih", TypeError, ("bias", "'ih'", "True, False, 'hh'"), lambda: mr.GRUCell(3, 5, "ih")),
    ("Cell-momentum=0.9", TypeError, ("momentum", "0.9", "Momentum"), lambda: mr.GRUCell(3, 5, momentum=0.9)),
    ("LSTM-has-no-factored", TypeError, ("unexpected keyword", "'factored'"),
        lambda: mr.LSTM(3, 5, factored=True)),
    ("factored-proj_size", ValueError, ("factored", "got True", "U is not square for proj_size=2"),
        lambda: mr.Recurrent(Square(), 3, 5, proj_size=2, factored=True)),
    ("Cell-factored", ValueError, ("factored", "got True", "U is not square", "LSTM()"),
        lambda: mr.RecurrentCell(cells.LSTM(), 3, 5, factored=True)),
    ("Cell-init", ValueError, ("init", "'ones'", "'torch', 'paper', 'dtriv'"),
        lambda: mr.GRUCell(3, 5, init="ones")),
    ("dtriv-of-an-LSTM", ValueError, ("init=Dtriv(angles='cayley')", "square weight_hh", "(20, 5)", "LSTM()"),
        lambda: lstm(init="dtriv")),
    ("dtriv-of-a-GRUCell", ValueError, ("init=Dtriv(", "square weight_hh", "(15, 5)", "GRU()"),
        lambda: mr.GRUCell(3, 5, init=mr.init.Dtriv("henaff"))),
    ("Cell-nonlinearity", ValueError, ("nonlinearity", "'swish'", NONLINEARITIES),
        lambda: mr.RNNCell(3, 5, nonlinearity="swish")),
]:  # fmt: skip
    bad(name, error, parts, call)

# Arguments of the momenta.
UNIT, POSITIVE, COUNT = "a number in [0, 1]", "a positive number", "an integer of at least 1"
UP_TO_256 = "an integer from 1 to 256"
for kind, keyword, error, want, values in [
    (mr.HeavyBall, "mu", ValueError, UNIT, (-0.1, 1.5, NAN, INF)),
    (mr.HeavyBall, "mu", TypeError, UNIT, ("0.9", None, True)),
    (mr.Adam, "mu", ValueError, UNIT, (-0.1, 1.5)),
    (mr.ScheduledRestart, "every", ValueError, COUNT, (0, -1)),
    (mr.ScheduledRestart, "every", TypeError, COUNT, (2.5, True, "2", None)),
    (mr.Adam, "beta", ValueError, "a number in [0, 1)", (1.0, -0.1, NAN)),
    (mr.RMSProp, "beta", ValueError, "a number in [0, 1)", (1.0, 2)),
    (mr.RMSProp, "beta", TypeError, "a number in [0, 1)", ("0.9",)),
    (mr.Nesterov, "step", ValueError, POSITIVE, (0, NAN, INF, -1)),
    (mr.Nesterov, "step", TypeError, POSITIVE, ("1", None)),
    (mr.Adam, "eps", ValueError, "at least 1e-18", (0, -1, 1e-30)),
    (mr.RMSProp, "eps", TypeError, "at least 1e-18", ("1e-8",)),
    (mr.Adam, "eps_in_sqrt", TypeError, "True or False", ("yes", 1, None)),
    (cells.ExtrapolatedLSTM, "every", ValueError, UP_TO_256, (0, -1, 257)),
    (cells.ExtrapolatedLSTM, "every", TypeError, UP_TO_256, (2.0, True, "2", None)),
    (cells.ExtrapolatedLSTM, "step_size", ValueError, POSITIVE, (0, -1.0, NAN, INF)),
    (cells.ExtrapolatedLSTM, "step_size", TypeError, POSITIVE, ("1", None, True)),
    (mr.init.Paper, "forget_bias", TypeError, "a number", ("1", None, True)),
    (mr.init.Paper, "forget_bias", ValueError, "finite", (NAN, INF)),
    (mr.init.Paper, "identity", ValueError, "'first' or 'every'", ("all", None, True, ["first"])),
    (mr.init.Dtriv, "angles", ValueError, "'cayley' or 'henaff'", ("exp", None, ["cayley"])),
]:
    for value in values:
        bad(
            f"{kind.__name__}-{keyword}={value!r}",
            error,
            (kind.__name__, f"{keyword} should be", f"got {value!r}", want),
            lambda kind=kind, keyword=keyword, value=value: kind(**{keyword: value}),
        )

# What forward is given, what it carries, and the rest.
for name, error, parts, call in [
    ("decay-shape", ValueError, ("Crooked.decay", "(7,)", "(4, 1)", "a number"),
        lambda: gru(momentum=Crooked())(x())),
    ("step-returns-one-state", TypeError, ("Careless", "step", "got ((2, 5),)", "((2, 5), (2, 5))"),
        lambda: mr.Recurrent(Careless("one"), 3, 5)(x())),
    ("step-returns-three-states", TypeError, ("Careless", "step", "got ((2, 5), (2, 5), (2, 5))"),
        lambda: mr.Recurrent(Careless("three"), 3, 5)(x())),
    ("step-returns-a-tensor", TypeError, ("Careless", "step", "got Tensor", "tuple"),
        lambda: mr.Recurrent(Careless("tensor"), 3, 5)(x())),

    ("decay-returns-None", TypeError, ("Wordless", "decay", "None", "a number or a tensor"),
        lambda: gru(momentum=Wordless())(x())),
    ("cell-without-gates", TypeError, ("Gateless.gates", "an integer", "None"),
        lambda: mr.Recurrent(Gateless(), 3, 5)),
    ("momentum-overrides", TypeError, ("Clip", "decay", "readout"),
        lambda: type("Clip", (mr.HeavyBall,), {"readout": lambda self, v, n: v})),
    ("momentum-on-2-D", ValueError, ("a should", "(T, B, G)", "(4, 3)"), lambda: mr.Nesterov()(x(4, 3))),
    ("momentum-on-list", TypeError, ("a should", "Tensor", "list"), lambda: mr.Nesterov()([1.0])),
    ("momentum-on-tuple", TypeError, ("state", "MomentumState", "tuple"),
        lambda: mr.Nesterov()(x(4, 2, 3), (x(2, 3),))),
    ("Cell-packed", TypeError, ("input", "a Tensor", "PackedSequence"),
        lambda: mr.GRUCell(3, 5)(pack_sequence([x(4, 3)]))),
    ("hx-k-rows", RuntimeError, ("hx.k", "(1, 2)", "(1,)", "2 sequences"),
        lambda: lstm()(x(), lstm().initial_state(2)._replace(k=torch.zeros(1, dtype=torch.int64)))),
    ("dropout-tensor", TypeError, ("dropout", "tensor(0.5"), lambda: lstm(dropout=torch.tensor(0.5))),
    ("hx-width", RuntimeError, ("hx[0]", "(1, 2, 5)", "(1, 2, 7)", "hidden_size=5"),
        lambda: lstm()(x(4, 2, 3), (x(1, 2, 7), x(1, 2, 5)))),
    ("integer-above", ValueError, ("n should", "from 1 to 8", "9"), lambda: check_integer("n", 9, 1, 8)),

    ("momentum-set-later", TypeError, ("momentum", "0.9", "a Momentum"), lambda: assigned(lstm())(x())),
    ("momentum-set-later-Cell", TypeError, ("momentum", "0.9", "a Momentum"),
        lambda: assigned(mr.GRUCell(3, 5))(x(2, 3))),

    ("input-1-D", ValueError, ("input", "1-D, shape (3,)", "2-D or 3-D"), lambda: lstm()(x(3))),
    ("input-4-D", ValueError, ("input", "4-D, shape (1, 4, 2, 3)", "2-D or 3-D"),
        lambda: lstm()(x(1, 4, 2, 3))),
    ("input-features", RuntimeError, ("input", "(4, 2, 7)", "input_size=3"), lambda: lstm()(x(4, 2, 7))),
    ("input-unbatched-features", RuntimeError, ("input", "(4, 2)", "input_size=3"), lambda: lstm()(x(4, 2))),
    ("input-dtype", ValueError, ("input", "float64", "float32"), lambda: lstm()(x(dtype=torch.float64))),
    ("input-integers", ValueError, ("input", "int64", "float32"), lambda: lstm()(x(dtype=torch.int64))),
    ("input-numpy", TypeError, ("input", "ndarray", "Tensor"), lambda: lstm()(np.zeros((4, 2, 3)))),
    ("input-list", TypeError, ("input", "list", "Tensor"), lambda: lstm()([[0.0] * 3])),
    ("input-None", TypeError, ("input", "NoneType", "Tensor"), lambda: lstm()(None)),
    ("input-no-steps", RuntimeError, ("input", "(0, 2, 3)", "at least 1 time step"),
        lambda: lstm()(x(0, 2, 3))),
    ("input-no-steps-batch_first", RuntimeError, ("input", "(2, 0, 3)", "at least 1 time step"),
        lambda: lstm(batch_first=True)(x(2, 0, 3))),
    ("input-no-steps-unbatched", RuntimeError, ("input", "(0, 3)", "at least 1 time step"),
        lambda: lstm()(x(0, 3))),
    ("input-device", RuntimeError, ("input", "meta", "cpu"), lambda: lstm()(x(device="meta"))),
    ("input-packed-features", RuntimeError, ("input", "(6, 7)", "input_size=3"),
        lambda: lstm()(pack_sequence([x(4, 7), x(2, 7)]))),
    ("input-packed-dtype", ValueError, ("input", "float64", "float32"),
        lambda: lstm()(pack_sequence([x(4, 3, dtype=torch.float64)]))),
    ("explain-input", TypeError, ("input", "str", "Tensor"), lambda: lstm().explain("x")),
    ("Cell-input-3-D", ValueError, ("input", "3-D, shape (4, 2, 3)", "1-D or 2-D"),
        lambda: mr.GRUCell(3, 5)(x())),
    ("Cell-input-features", RuntimeError, ("input", "(2, 4)", "input_size=3"),
        lambda: mr.GRUCell(3, 5)(x(2, 4))),

    ("hx-shape", RuntimeError, ("hx", "(1, 2, 6)", "(1, 2, 5)"), lambda: gru()(x(), x(1, 2, 6))),
    ("hx-layers", RuntimeError, ("hx", "(2, 2, 5)", "(1, 2, 5)"), lambda: gru()(x(), x(2, 2, 5))),
    ("hx-batch", RuntimeError, ("hx", "(1, 3, 5)", "(1, 2, 5)"), lambda: gru()(x(), x(1, 3, 5))),
    ("hx-second", RuntimeError, ("hx[1]", "(1, 2, 6)", "(1, 2, 5)"),
        lambda: lstm()(x(), (x(1, 2, 5), x(1, 2, 6)))),
    ("hx-proj_size", RuntimeError, ("hx[0]", "(1, 2, 5)", "(1, 2, 2)"),
        lambda: lstm(proj_size=2)(x(), (x(1, 2, 5), x(1, 2, 5)))),
    ("hx-one-for-an-LSTM", ValueError, ("hx", "got 1", "2 hidden tensors"),
        lambda: lstm()(x(), (x(1, 2, 5),))),
    ("hx-three-for-an-LSTM", ValueError, ("hx", "got 3", "2 hidden tensors"),
        lambda: lstm()(x(), (x(1, 2, 5),) * 3)),
    ("hx-none-for-an-LSTM", ValueError, ("hx", "got 0", "2 hidden tensors"), lambda: lstm()(x(), ())),
    ("hx-Tensor-for-an-LSTM", TypeError, ("hx", "Tensor", "a tuple of 2 tensors or a State"),
        lambda: lstm()(x(), x(1, 2, 5))),
    ("hx-tuple-for-a-GRU", TypeError, ("hx", "tuple", "Tensor"),
        lambda: gru()(x(), (x(1, 2, 5), x(1, 2, 5)))),
    ("hx-number", TypeError, ("hx", "int", "Tensor"), lambda: gru()(x(), 0)),
    ("hx-numpy", TypeError, ("hx[0]", "ndarray", "Tensor"), lambda: lstm()(x(), (np.zeros((1, 2, 5)),) * 2)),
    ("hx-dtype", ValueError, ("hx", "float64", "float32"),
        lambda: gru()(x(), x(1, 2, 5, dtype=torch.float64))),
    ("hx-device", RuntimeError, ("hx", "meta", "cpu"), lambda: gru()(x(), x(1, 2, 5, device="meta"))),
    ("hx-batched-for-unbatched", RuntimeError, ("hx", "(1, 1, 5)", "(1, 5)"),
        lambda: gru()(x(4, 3), x(1, 1, 5))),
    ("hx-unbatched-for-batched", RuntimeError, ("hx", "(1, 5)", "(1, 2, 5)"), lambda: gru()(x(), x(1, 5))),
    ("Cell-hx-shape", RuntimeError, ("hx", "(3, 5)", "(2, 5)"), lambda: mr.GRUCell(3, 5)(x(2, 3), x(3, 5))),
    ("Cell-hx-Tensor", TypeError, ("hx", "Tensor", "a tuple of 2 tensors"),
        lambda: mr.LSTMCell(3, 5)(x(2, 3), x(2, 5))),

    ("State-batch", RuntimeError, ("hx[0]", "(1, 3, 5)", "(1, 2, 5)"),
        lambda: gru()(x(), gru().initial_state(3))),
    ("State-unbatched", RuntimeError, ("hx[0]", "(1, 5)", "(1, 2, 5)"),
        lambda: gru()(x(), gru().initial_state())),
    ("State-batched-for-unbatched", RuntimeError, ("hx[0]", "(1, 2, 5)", "(1, 5)"),
        lambda: gru()(x(4, 3), start())),
    ("State-hidden_size", RuntimeError, ("hx[0]", "(1, 2, 6)", "(1, 2, 5)"),
        lambda: gru()(x(), mr.GRU(3, 6, momentum=BALL).initial_state(2))),
    ("State-of-a-GRU-for-an-LSTM", ValueError, ("hx", "got 4", "2 hidden tensors"),
        lambda: lstm()(x(), start())),
    ("State-of-an-RNN-for-a-GRU", RuntimeError, ("hx.v", "(1, 2, 5)", "(1, 2, 15)"),
        lambda: gru()(x(), mr.RNN(3, 5, momentum=BALL).initial_state(2))),
    ("State-of-a-cell-for-a-layer", RuntimeError, ("hx[0]", "(2, 5)", "(1, 2, 5)"),
        lambda: gru()(x(), mr.GRUCell(3, 5, momentum=BALL).initial_state(2))),
    ("State-without-v", RuntimeError, ("hx.v", "(1, 2, 0)", "(1, 2, 15)"),
        lambda: gru()(x(), gru(momentum=None).initial_state(2))),
    ("State-with-v", RuntimeError, ("hx.v", "(1, 2, 15)", "(1, 2, 0)"),
        lambda: gru(momentum=None)(x(), start())),
    ("State-without-n", RuntimeError, ("hx.n", "(1, 2, 0)", "(1, 2, 15)"),
        lambda: gru(momentum=mr.Adam())(x(), start())),
    ("State-with-n", RuntimeError, ("hx.n", "(1, 2, 15)", "(1, 2, 0)"),
        lambda: gru()(x(), gru(momentum=mr.Adam()).initial_state(2))),
    ("State-hidden-empty", TypeError, ("State", "v, n and k", "got 3"), lambda: start(hidden=())),
    ("State-hidden-dtype", ValueError, ("hx[0]", "float64", "float32"),
        lambda: gru()(x(), start().to(torch.float64))),
    ("State-v-dtype", ValueError, ("hx.v", "float64", "float32"),
        lambda: gru()(x(), start(v=start().v.double()))),
    ("State-v-None", TypeError, ("hx.v", "NoneType", "Tensor"),
        lambda: gru()(x(), [start()[0], None, *start()[2:]])),
    ("State-k-dtype", ValueError, ("hx.k", "float32", "int64"), lambda: gru()(x(), start(k=x(1, 2)))),
    ("State-k-shape", RuntimeError, ("hx.k", "(1, 3)", "(1, 2)"),
        lambda: gru()(x(), start(k=x(1, 3, dtype=torch.int64)))),
    ("State-k-number", TypeError, ("hx.k", "int", "Tensor"), lambda: gru()(x(), start(k=0))),
    ("State-device", RuntimeError, ("hx[0]", "meta", "cpu"), lambda: gru()(x(), start().to("meta"))),
    ("State-for-bidirectional", ValueError, ("hx", "a State", "torch's", "bidirectional"),
        lambda: gru(bidirectional=True)(x(), start())),
    ("initial_state-bidirectional", ValueError, ("initial_state", "a bidirectional", "bidirectional=False"),
        lambda: gru(bidirectional=True).initial_state(2)),
    ("initial_state(-2)", ValueError, ("batch_size", "got -2", "at least 0"),
        lambda: gru().initial_state(-2)),
    ("initial_state(2.0)", TypeError, ("batch_size", "2.0", "an integer"), lambda: gru().initial_state(2.0)),
    ("Cell-initial_state(-1)", ValueError, ("batch_size", "-1", "at least 0"),
        lambda: mr.GRUCell(3, 5).initial_state(-1)),
    ("select-unbatched", ValueError, ("select", "the State", "a batch axis", "()"),
        lambda: mr.GRUCell(3, 5).initial_state().select([0])),
    ("select(3)", TypeError, ("rows", "got 3", "indices", "a mask", "a slice"),
        lambda: start().select(3)),
    ("select(str)", TypeError, ("rows", "'0'", "indices", "a mask", "a slice"),
        lambda: start().select("0")),

    ("native-can't", RuntimeError, ("backend='native'", "Careless", "no fused layer"),
        lambda: mr.Recurrent(Careless("one"), 3, 5, backend="native")(x())),
    ("native-extrapolates", RuntimeError, ("backend='native'", "ExtrapolatedLSTM(", "no fused layer"),
        lambda: mr.Recurrent(cells.ExtrapolatedLSTM(), 3, 5, backend="native")(x())),
    ("hx-two-for-an-ExtrapolatedLSTM", ValueError, ("hx", "got 2", "4 hidden tensors"),
        lambda: mr.Recurrent(cells.ExtrapolatedLSTM(), 3, 5)(x(), (x(1, 2, 5), x(1, 2, 5)))),
    ("hx-widths-of-an-ExtrapolatedLSTM", RuntimeError, ("hx[2]", "(1, 2, 5)", "(1, 2, 20)"),
        lambda: mr.Recurrent(cells.ExtrapolatedLSTM(), 3, 5)(x(), (x(1, 2, 5),) * 4)),
    ("s-and-step", TypeError, ("MomentumLSTM", "s ", "step", "both", "one of them"),
        lambda: mr.MomentumLSTM(3, 5, s=1.0, step=1.0)),
    ("name-and-momentum", TypeError, ("NAGLSTM", "momentum", "use LSTM"),
        lambda: mr.NAGLSTM(3, 5, momentum=BALL)),
    ("name-unknown-keyword", TypeError, ("unexpected keyword", "'beta'"),
        lambda: mr.MomentumLSTM(3, 5, beta=0.9)),
    ("name-other-momentum's-keyword", TypeError, ("unexpected keyword", "'mu'"),
        lambda: mr.SRGRUCell(3, 5, mu=0.9)),
    ("name-bad-rate", ValueError, ("HeavyBall", "step", "nan", POSITIVE),
        lambda: mr.MomentumRNN(3, 5, s=NAN)),
]:  # fmt: skip
    bad(name, error, parts, call)


@pytest.mark.parametrize(("call", "error", "parts"), BAD)
def test_refused(call, error, parts):
    """Refused by the named exception, in a message that holds every part."""
    with pytest.raises(error) as refusal:
        call()
    message = str(refusal.value)
    missing = [part for part in parts if part not in message]
    assert not missing, f"{missing} not in {message!r}"


def test_the_table_is_long_enough_and_its_ids_differ():
    assert len(BAD) >= 50
    assert len({row.id for row in BAD}) == len(BAD)


@pytest.mark.parametrize("make", [nn.LSTM, mr.LSTM])
def test_refused_as_torch_does(make):
    """Torch's exception types for torch's mistakes, so that code that catches them still does."""
    for error, call in [
        (RuntimeError, lambda: make(3, 5)(x(0, 2, 3))),
        (RuntimeError, lambda: make(3, 5)(x(4, 2, 7))),
        (RuntimeError, lambda: make(3, 5)(x(), (x(1, 2, 6), x(1, 2, 6)))),
        (ValueError, lambda: make(3, 5)(x(3))),
        (ValueError, lambda: make(3, 5)(x(dtype=torch.float64))),
        (ValueError, lambda: make(3, 0)),
        (ValueError, lambda: make(3, 5, dropout=2.0)),
        (ValueError, lambda: make(3, 5, proj_size=5)),
        (TypeError, lambda: make(3.0, 5)),
        (TypeError, lambda: make(3, "5")),
    ]:
        with pytest.raises(error):
            call()


@pytest.mark.parametrize("momentum", [None, BALL, mr.Adam()], ids=["None", "HeavyBall", "Adam"])
def test_nothing_is_half_done(momentum):
    """After refused calls a layer and its state are as before, and work."""
    net = mr.LSTM(3, 5, 2, momentum=momentum)
    inputs, state = torch.randn(4, 2, 3), net.initial_state(2)
    want_out, want = net(inputs, state)
    before = {name: p.clone() for name, p in net.state_dict().items()}
    for args in [
        (x(4, 2, 7),),
        (x(0, 2, 3),),
        (inputs.double(), state),
        (inputs, (x(2, 2, 5),)),
        (inputs, state._replace(k=x(2))),
        (inputs, state._replace(hidden=state.hidden[:1])),
    ]:
        with pytest.raises((RuntimeError, ValueError)):
            net(*args)
    assert list(net.state_dict()) == list(before)
    assert all(torch.equal(p, before[name]) for name, p in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
    assert not any(t.any() for t in state)
    out, after = net(inputs, state)
    assert torch.equal(out, want_out)
    assert torch.equal(after.v, want.v)
    assert after.k.tolist() == [[4, 4]] * 2
    out.sum().backward()
    assert all(p.grad is not None for p in net.parameters())
