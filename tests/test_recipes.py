"""The paper's rows as data: the numbers against a second transcription, the controls against the layers."""

import json
import os
import re

import pytest
import torch
from torch import nn
from torch.nn import functional

import momentumrnn as mr
from momentumrnn import cells
from momentumrnn.experiments.config import Config
from momentumrnn.experiments.paper.controls import VARIANTS, matched_step
from momentumrnn.experiments.paper.published import SOURCES
from momentumrnn.experiments.paper.recipes import RECIPES, recipe
from momentumrnn.init import Dtriv, Paper

F64 = torch.float64
SOURCE = {
    "": "paper",
    "h": "helfrich2018",
    "v": "vorontsov2017",
    "w": "wisdom2016",
    "c": "casado2019trivializations",
}
# Typed from the tables of the paper once more, a row a line: MNIST | PMNIST, a letter for who is quoted.
PRINTED = {
    "table1": """
        LSTM 128          98.70h 97.30v | 92.00h 92.62v
        LSTM 256          98.90h 98.50w | 92.29h 92.10w
        MomentumLSTM 128  99.04±0.04 | 93.40±0.25
        MomentumLSTM 256  99.08±0.05 | 94.72±0.16
        AdamLSTM 256      99.09±0.03 | 95.05±0.37
        RMSPropLSTM 256   99.15±0.06 | 95.38±0.19
        SRLSTM 256        99.01±0.07 | 93.82±1.85
        SRLSTM-released 256  99.01±0.07 | 93.82±1.85""",
    "table4": """
        DTRIV 170  | 95.21±0.10 95.20c
        DTRIV 360  | 96.45±0.10 96.50c
        DTRIV 512  | 96.62±0.12 96.80c
        MomentumDTRIV 170  | 95.37±0.09
        MomentumDTRIV 360  | 96.73±0.08
        MomentumDTRIV 512  | 96.89±0.08""",
    "table11": """
        LSTM 128          98.70h 97.30v | 92.00h 92.62v
        MomentumLSTM 128  99.04±0.04 | 93.40±0.25
        AdamLSTM 128      98.98±0.08 | 93.75±0.25
        RMSPropLSTM 128   99.09±0.05 | 94.32±0.43
        SRLSTM 128        98.89±0.08 | 93.65±0.56
        SRLSTM-released 128  98.89±0.08 | 93.65±0.56""",
    "table13": """
        DTRIV 170  | 95.21±0.10 95.20c
        DTRIV 360  | 96.45±0.10 96.50c
        DTRIV 512  | 96.62±0.12 96.80c
        MomentumDTRIV 170  | 95.37±0.09
        MomentumDTRIV 360  | 96.73±0.08
        MomentumDTRIV 512  | 96.89±0.08
        AdamDTRIV 512      | 96.77±0.21
        RMSPropDTRIV 512   | 96.75±0.12
        SRDTRIV 512        | 97.02±0.09""",
}
# Section 3.3; the other curves have no numbers.
CURVES = {
    "LSTM/Copying2K": 0.01,
    "MomentumLSTM/Copying2K": 0.009,
    "LSTM/Adding": 0.162,
    "MomentumLSTM/Adding": 0.162,
}
# Tables 7 to 10, typed once more: mu, s; mu, s, beta; s, beta; F, s.
HYPER = """
    MomentumLSTM/MNIST .6 .6          AdamLSTM/MNIST .6 .6 .1           RMSPropLSTM/MNIST/256 .6 .9
    MomentumLSTM/PMNIST .6 1          AdamLSTM/PMNIST .6 1 .01          RMSPropLSTM/MNIST/128 .6 .99
    MomentumLSTM/Copying1K .6 .9      AdamLSTM/Copying1K .6 2 .999      RMSPropLSTM/PMNIST 1 .01
    MomentumLSTM/Copying2K .9 2       AdamLSTM/Copying2K .6 2 .999      RMSPropLSTM/Copying1K 2 .999
    MomentumLSTM/Adding .9 2          AdamLSTM/Adding .6 2 .999         RMSPropLSTM/Copying2K 2 .999
    MomentumDTRIV/PMNIST/170 .6 .9    AdamDTRIV/PMNIST/512 .3 .3 .8     RMSPropLSTM/Adding 2 .999
    MomentumDTRIV/PMNIST/360 .3 .3                                      RMSPropDTRIV/PMNIST/512 .3 .9
    MomentumDTRIV/PMNIST/512 .3 .3
    SRLSTM/MNIST 2 1                  SRLSTM/Copying1K 100 .9           SRLSTM-released/MNIST 2 1
    SRLSTM/PMNIST/256 40 .9           SRLSTM/Copying2K 100 .9           SRLSTM-released/PMNIST/256 40 .9
    SRLSTM/PMNIST/128 6 .01           SRLSTM/Adding 100 .9              SRLSTM-released/PMNIST/128 6 .01
    SRDTRIV/PMNIST/512 2 .3
"""
PARAMETERS = {128: 68_362, 256: 267_786, 170: 16_415, 360: 68_950, 512: 136_970}

every_row = pytest.mark.parametrize("name", RECIPES)


def everything():
    """Each row, its variants and theirs."""
    names = list(RECIPES)
    for name in names:
        names.extend(f"{name}/{variant}" for variant in recipe(name).variants)
    return names


EVERYTHING = everything()


def having(variant):
    """Each run once that has this variant, by its name."""
    names = [name for name in EVERYTHING if variant in recipe(name).variants]
    return {recipe(name).config.id: name for name in names}.values()


def layer(config, size):
    task = config.task
    options = {"bias": config.bias, "momentum": config.momentum, "init": config.init, "dtype": F64}
    return mr.Recurrent(config.cell, task.features, size, **options)


def drive(momentum, a):
    return a if momentum is None else momentum(a)[0]


def settled(y):
    """The mean over many whole periods of every schedule, after all else has died out."""
    return y[-2400:].mean(0)


def test_names():
    assert len(set(EVERYTHING)) == len(EVERYTHING) == 352
    assert len(RECIPES) == 66
    tables = list(dict.fromkeys(name.split("/")[0] for name in RECIPES))
    assert tables == ["table1", "figure4", "table4", "table6", "table11", "figure10", "table13"]
    for name in EVERYTHING:
        table, _model, task, size, *variants = name.split("/")
        row = recipe(name)
        assert row.name == name
        assert row.config.hidden_size == int(size)
        assert type(row.config.task).__name__ == task.rstrip("12K")
        assert getattr(row.config.task, "length", 0) == {"1K": 1000, "2K": 2000, "ng": 750}.get(task[-2:], 0)
        assert ("accuracy" in row.metric) == table.startswith("table")
        assert set(variants) <= set(VARIANTS)
        assert len(variants) <= 2
    assert {name.split("/")[4] for name in EVERYTHING if name.count("/") > 3} == set(VARIANTS)


def test_round_trip():
    """Every config survives JSON, and so does its id."""
    for name in EVERYTHING:
        config = recipe(name).config
        again = Config.from_json(json.loads(json.dumps(config.to_json())))
        assert again == config
        assert again.id == config.id


def test_one_run_with_two_names():
    """A row in two tables is one run; rows that differ are different runs."""
    by_row = {}
    for name, row in RECIPES.items():
        by_row.setdefault(name.partition("/")[2], set()).add(row.config)
    assert all(len(configs) == 1 for configs in by_row.values())
    ids = [configs.pop().id for configs in by_row.values()]
    assert len(ids) == len(set(ids)) == 51


@pytest.mark.parametrize("table", PRINTED)
def test_the_tables(table):
    want = {}
    for line in PRINTED[table].strip().splitlines():
        model, size, printed = line.split(maxsplit=2)
        for task, cell in zip(("MNIST", "PMNIST"), printed.split("|"), strict=True):
            numbers = [re.fullmatch(r"([\d.]+)(?:±([\d.]+))?([a-z]?)", number) for number in cell.split()]
            if numbers:
                want[f"{table}/{model}/{task}/{size}"] = [
                    (float(n[1]), float(n[2]) if n[2] else None, SOURCE[n[3]]) for n in numbers
                ]
    rows = {name: row for name, row in RECIPES.items() if name.startswith(f"{table}/")}
    assert {name: [(p.value, p.std, p.source) for p in row.published] for name, row in rows.items()} == want


def test_published_text():
    """The number as printed; where it is quoted, from whom."""
    assert [number.text for number in recipe("table1/LSTM/PMNIST/256").published] == ["92.29", "92.1"]
    assert recipe("table4/DTRIV/PMNIST/512").published_text == (
        "published best test accuracy of all epochs, %: 96.62 ± 0.12; 96.8 (quoted from "
        "casado2019trivializations)"
    )
    assert recipe("figure10/SRLSTM/Copying1K/190").published_text == "no number published"


def test_the_curves():
    for name, row in RECIPES.items():
        table, model, task, _ = name.split("/")
        if table.startswith("figure"):
            value = CURVES.get(f"{model}/{task}")
            assert [p.value for p in row.published] == [value] * (value is not None)


def test_published():
    """What others ran is marked so; a control has no number but the one that figure 7 shows."""
    for name in EVERYTHING:
        check_published(recipe(name))


def check_published(row):
    name = row.name
    for p in row.published:
        assert p.source in SOURCES
        assert p.quoted == (p.source != "paper")
        assert not (p.quoted and p.std)
    if name.split("/")[1] == "LSTM" and "MNIST" in name:
        assert all(p.quoted for p in row.published)
        assert "quoted" in row.note
    for variant in row.variants:
        varied = recipe(f"{name}/{variant}")
        assert VARIANTS[variant].words in varied.note
        if variant == "as-released":
            assert varied.published == row.published
        elif "MomentumLSTM/MNIST/256" in name and variant == "same-step":
            assert [p.value for p in varied.published] == [83.49]
            assert "figure 7" in varied.note
        else:
            assert varied.published == ()


def test_hyperparameters():
    words = HYPER.split()
    starts = [i for i, word in enumerate(words) if "/" in word]
    values = {
        words[i]: list(map(float, words[i + 1 : j])) for i, j in zip(starts, [*starts[1:], None], strict=True)
    }
    for name, row in RECIPES.items():
        key = name.partition("/")[2]
        want = values.get(key) or values.get(key.rpartition("/")[0])
        cell, m = row.config.cell, row.config.momentum
        if isinstance(cell, cells.ExtrapolatedLSTM):
            assert m is None
            assert [cell.every, cell.step_size] == want
            continue
        model = key.split("/")[0]
        kind = model.removesuffix("LSTM").removesuffix("DTRIV")
        known = {"Momentum": mr.HeavyBall, "Adam": mr.Adam, "RMSProp": mr.RMSProp, "SR": mr.ScheduledRestart}
        if not kind:
            assert m is None
            continue
        assert type(m) is known[kind]
        fields = {"Momentum": "mu step", "Adam": "mu step beta", "RMSProp": "step beta", "SR": "every step"}
        assert [getattr(m, field) for field in fields[kind].split()] == want
        if kind in ("Adam", "RMSProp"):
            assert (m.eps, m.eps_in_sqrt) == (1e-8, True)


@every_row
def test_training(name):
    """Table 6, and the appendix's words on clipping and smoothing."""
    config = recipe(name).config
    _, model, task, size = name.split("/")
    if task in ("MNIST", "PMNIST"):
        assert (config.optimizer, config.batch_size, config.epochs, config.clip) == ("rmsprop", 128, 150, 1.0)
        assert config.task.validation > 0
    elif task == "Adding":
        assert (config.optimizer, config.lr, config.batch_size, config.clip) == ("adam", 2e-4, 50, 0.0)
        assert config.epochs * config.task.samples == 1200 * 50
    else:
        assert (config.optimizer, config.lr, config.batch_size, config.clip) == ("rmsprop", 2e-4, 128, 0.0)
        assert (config.alpha, config.epochs * config.task.samples) == (0.99, 7000 * 128)
    assert config.orthogonal == ("DTRIV" in model)
    if config.orthogonal:
        rates = {
            "MNIST": {"170": (1e-3, 1e-4, 1), "360": (5e-4, 1e-4, 0), "512": (5e-4, 1e-4, 100)},
            "PMNIST": {"170": (7e-4, 2e-4, 1), "360": (7e-4, 5e-5, 0), "512": (3e-4, 7e-5, 0)},
        }
        assert (config.lr, config.orthogonal_lr, config.rebase_every) == rates[task][size]
        assert (config.cell, config.bias, config.alpha) == (cells.Elman("modrelu"), "hh", 0.99)
        assert config.init == Dtriv(angles="cayley")
    else:
        assert (config.init, config.bias) == (Paper(forget_bias=1.0, identity="first"), True)
        if "MNIST" in task:
            assert (config.lr, config.alpha) == (1e-3, 0.9)


@pytest.mark.parametrize("size", PARAMETERS)
def test_parameters(size):
    """As many as the tables say, with an output layer for ten digits."""
    names = [
        name for name in EVERYTHING if name.split("/")[2] == "PMNIST" and name.split("/")[3] == str(size)
    ]
    for config in {recipe(name).config for name in names}:
        rnn = mr.Recurrent(config.cell, 1, size, bias=config.bias, momentum=config.momentum, init=config.init)
        rnn = mr.orthogonal(rnn) if config.orthogonal else rnn
        assert mr.count_parameters(nn.ModuleList([rnn, nn.Linear(size, 10)])) == PARAMETERS[size]


def test_as_released():
    for name in having("as-released"):
        base, released = recipe(name).config, recipe(f"{name}/as-released").config
        assert released.task.validation == 0
        if "PMNIST" in name:
            assert (base.task.permutation, released.task.permutation) == ("fixed", "seed")
        same = (base.cell, base.momentum) == (released.cell, released.momentum)
        key = name.partition("/")[2]
        assert same == (key not in ("AdamLSTM/MNIST/128", "SRLSTM-released/MNIST/128"))
    other = recipe("table11/AdamLSTM/MNIST/128/as-released").config
    assert other.momentum == mr.Adam(mu=0.6, step=0.6, beta=0.8)
    other = recipe("table11/SRLSTM-released/MNIST/128/as-released").config
    assert other.cell == cells.ExtrapolatedLSTM(every=8, step_size=1.0)
    # Copying and adding were never released, nor was this cell run on MNIST.
    without = {name.split("/")[2] for name in RECIPES if "as-released" not in recipe(name).variants}
    assert without == {"Copying1K", "Copying2K", "Adding", "MNIST", "PMNIST"}
    assert "as-released" not in recipe("table1/SRLSTM/MNIST/256").variants


@every_row
def test_which_controls(name):
    config, controls = recipe(name).config, set(recipe(name).variants) - {"as-released"}
    lstm = set() if config.orthogonal else {"same-forget-bias"}
    if isinstance(config.cell, cells.ExtrapolatedLSTM):
        assert controls == {"same-step"} | lstm
    elif config.momentum is None:
        assert controls == set()
    elif config.momentum.linear:
        assert controls == {"same-step", "same-gain"} | lstm | ({"same-input-gain"} if lstm else set())
    else:
        assert controls == {"same-step", "same-rms"} | lstm | ({"same-input-rms"} if lstm else set())


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "as-released"])
def test_controls_change_nothing_else(variant):
    for name in having(variant):
        base, control = recipe(name).config.to_json(), recipe(f"{name}/{variant}").config.to_json()
        assert {k for k in base if base[k] != control[k]} <= {"momentum", "cell", "init"}
        assert not isinstance(recipe(f"{name}/{variant}").config.momentum, mr.Adam | mr.RMSProp)


@pytest.mark.parametrize("name", having("same-step"))
def test_same_step(name):
    """At the first step of a sequence nothing has been gathered: there both are one, but for a division."""
    base, control = recipe(name).config, recipe(f"{name}/same-step").config
    a = torch.randn(5, 3, 4, dtype=F64)
    if isinstance(base.cell, cells.ExtrapolatedLSTM):
        states = [torch.zeros(3, n, dtype=F64) for n in base.cell.widths(1)]
        both = [config.cell.step(a[0], a[1], None, tuple(states))[:3] for config in (base, control)]
        for one, two in zip(*both, strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=0)
        # And at later steps nothing is extrapolated: the state before has no say.
        states[2].normal_()
        torch.testing.assert_close(
            control.cell.step(a[0], a[1], None, tuple(states))[0], both[0][0], rtol=0, atol=0
        )
        return
    got = drive(control.momentum, a)
    torch.testing.assert_close(got, got[:1] / a[:1] * a)
    if base.momentum.linear:
        torch.testing.assert_close(got[0], drive(base.momentum, a)[0])
    else:
        first = base.momentum.step * a[0].sign() / (1 - base.momentum.beta) ** 0.5
        torch.testing.assert_close(drive(base.momentum, a)[0], first)
        torch.testing.assert_close(got[0], base.momentum.step * a[0])


def test_a_step_of_1_is_the_baseline():
    """Then the control is no run of its own."""
    for task in ("MNIST/256", "PMNIST/256"):
        model = "SRLSTM" if task == "MNIST/256" else "MomentumLSTM"
        control = recipe(f"table1/{model}/{task}/same-step")
        assert control.config.id == recipe(f"table1/LSTM/{task}").config.id


@pytest.mark.parametrize("name", having("same-gain"))
def test_same_gain(name):
    """A constant input has the same drive without momentum as with it, in the mean and the long run."""
    base, control = recipe(name).config, recipe(f"{name}/same-gain").config
    a = torch.randn(1, 2, 3, dtype=F64).expand(4800, -1, -1)
    want = settled(drive(base.momentum, a))
    torch.testing.assert_close(settled(drive(control.momentum, a)), want, rtol=1e-9, atol=0)
    torch.testing.assert_close(control.momentum.update(a[0], control.momentum.start(2, 3, a))[0], want)


def forget_bias(config):
    """What the forget gate of a new layer gets from its biases, in the long run."""
    net = layer(config, 1)
    assert net.bias_hh_l0[1] == net.bias_ih_l0[1]
    if isinstance(config.cell, cells.ExtrapolatedLSTM):
        # Without input h stays 0, and y is what the gates get.
        _, (h, _, y, _) = net(torch.zeros(600, 1, config.task.features, dtype=F64))
        assert h.abs().max() == 0
        return y[0, 0, 1]
    a = net.bias_ih_l0.detach().expand(26400, 1, -1)
    return settled(drive(config.momentum, a))[0, 1] + net.bias_hh_l0[1]


@pytest.mark.parametrize("name", having("same-forget-bias"))
def test_same_forget_bias(name):
    base, control = recipe(name).config, recipe(f"{name}/same-forget-bias").config
    assert control.momentum is None
    assert control.cell == cells.LSTM()
    torch.testing.assert_close(forget_bias(control), forget_bias(base), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", having("same-input-gain"))
def test_same_input_gain_has_the_forget_bias_of_the_plain_network(name):
    control = recipe(f"{name}/same-input-gain").config
    assert control.momentum == recipe(f"{name}/same-gain").config.momentum
    assert forget_bias(control).item() == pytest.approx(2)


def test_forget_biases():
    """Those of docs/maths.md."""
    for name, want in {
        "table1/LSTM/MNIST/256": 2,
        "table1/MomentumLSTM/MNIST/256": 2.5,
        "table1/MomentumLSTM/PMNIST/256": 3.5,
        "figure4/MomentumLSTM/Adding/128": 21,
        "table1/SRLSTM-released/MNIST/256": 0,
        "table1/SRLSTM-released/PMNIST/256": 0.1,
    }.items():
        assert forget_bias(recipe(name).config).item() == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize("name", having("same-input-rms"))
def test_same_input_rms_has_the_forget_bias(name):
    base, control = recipe(name).config, recipe(f"{name}/same-input-rms").config
    torch.testing.assert_close(forget_bias(control), forget_bias(base), rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    ("name", "variant"),
    [(name, variant) for variant in ("same-rms", "same-input-rms") for name in having(variant)],
)
def test_rms(name, variant):
    """The stored steps are what new weights and training data give, within what seeds differ by."""
    if "MNIST" in name and not os.environ.get("MOMENTUMRNN_DATA"):
        pytest.skip("needs MNIST in the folder that MOMENTUMRNN_DATA names")
    base, control = recipe(name).config, recipe(f"{name}/{variant}").config
    task = base.task
    data = task.load(None)
    rows = tuple(row[: 32 if "MNIST" in name else 4] for row in task.rows(data, 5, 0))
    x, _ = task.batch(data.tensors, task.constants(5), rows)
    torch.manual_seed(5)
    net = layer(base, base.hidden_size)
    W, b = net.weight_ih_l0.detach(), getattr(net, "bias_ih_l0", None)
    if variant == "same-input-rms":
        W, b = W[b == 0], None
        assert len(W) == 3 * base.hidden_size
    assert control.momentum.mu == 0
    assert matched_step(base.momentum, x, W, b) == pytest.approx(control.momentum.step, rel=0.1)


def test_matched_step():
    """The drives have one rms; a rescaled drive has a rescaled step; samples come in any number."""
    x, W, b = torch.randn(20, 19, 3), torch.randn(8, 3), torch.randn(8)
    a = functional.linear(x.double(), W.double(), b.double())
    for momentum in (mr.Adam(mu=0.5, step=0.7, beta=0.9), mr.RMSProp(beta=0.9), mr.Nesterov(step=0.3)):
        step = matched_step(momentum, x, W, b)
        want = momentum(a)[0].square().mean()
        torch.testing.assert_close(mr.HeavyBall(mu=0.0, step=step)(a)[0].square().mean(), want)
    assert matched_step(mr.HeavyBall(mu=0.0, step=1.5), x, W) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("table1/MomentumLSTM/PMNIST/265", "did you mean 'table1/MomentumLSTM/PMNIST/256'"),
        ("momentumlstm/pmnist/256", "'table1/MomentumLSTM/PMNIST/256'"),
        ("figure4/LSTM/Copying1K/190", "'figure4/LSTM/Copying2K/190'"),
        ("nothing", "there is no recipe 'nothing'; momentumrnn recipes lists them$"),
        ("", "there is no recipe ''; momentumrnn recipes lists them$"),
        ("table1/LSTM/MNIST/128/same-step", "expected one of 'as-released', got 'same-step'"),
        ("figure4/LSTM/Adding/128/as-released", "expected nothing, got 'as-released'"),
        ("table1/MomentumLSTM/MNIST/256/same-gains", "did you mean 'same-gain'"),
        ("table1/MomentumLSTM/MNIST/256/same-gain/as-released", "expected nothing, got 'as-released'"),
        ("table1/MomentumLSTM/MNIST/256/as-released/as-released", "got 'as-released'"),
        ("table1/MomentumLSTM/MNIST/256/", "got ''"),
    ],
)
def test_unknown_names(name, message):
    with pytest.raises(ValueError, match=message):
        recipe(name)
