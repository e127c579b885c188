"""Configs: JSON and back, an id of all that changes a step and of no more, refusals that say what to do."""

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError, InitVar, dataclass, field, fields, make_dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_repr_parser import ODD

import momentumrnn as mr
from momentumrnn import cells, init
from momentumrnn.experiments import MNIST, PMNIST, Adding, Config, Copying, configure
from momentumrnn.experiments import config as config_module
from momentumrnn.experiments.config import SCHEMA, SchemaError, identity, read
from momentumrnn.repr_parser import parse, spell

for_all = settings(derandomize=True, deadline=None, max_examples=100, database=None)
PLAIN = configure(Adding(length=20))
DTRIV = configure(Adding(length=20), orthogonal=True, rebase_every=3)
# Another value of each field.
OTHERS = {
    "task": Adding(length=21),
    "cell": cells.GRU(),
    "momentum": mr.HeavyBall(),
    "hidden_size": 129,
    "bias": False,
    "init": init.Torch(),
    "orthogonal": False,
    "optimizer": "sgd",
    "lr": 0.3,
    "alpha": 0.5,
    "orthogonal_lr": 0.3,
    "rebase_every": 4,
    "clip": 1.0,
    "batch_size": 51,
    "epochs": 13,
    "precision": "float64",
    "deterministic": False,
    "log_every": 7,
    "patience": 3,
}
SAME_RUN = {"epochs", "log_every"}


def other(name):
    """A config, and one that differs in this field alone."""
    base = DTRIV if name in ("orthogonal", "rebase_every", "orthogonal_lr") else PLAIN
    if name == "alpha":
        base = replace(base, optimizer="rmsprop")
    if name == "orthogonal":
        base = replace(base, rebase_every=0)
    return base, replace(base, **{name: OTHERS[name]})


def test_there_is_another_value_of_each_field():
    assert list(OTHERS) == [f.name for f in fields(Config)]


@pytest.mark.parametrize("config", [PLAIN, DTRIV, *(other(name)[1] for name in OTHERS)], ids=lambda c: c.id)
def test_json_is_inverse(config):
    written = json.dumps(config.to_json(), allow_nan=False)
    found = Config.from_json(json.loads(written))
    assert found == config
    assert found.id == config.id
    assert json.dumps(found.to_json()) == written


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_odd_descriptions_are_written_and_read(value):
    kinds = {mr.Momentum: "momentum", cells.Cell: "cell", init.Init: "init"}
    name = next((name for kind, name in kinds.items() if isinstance(value, kind)), "task")
    square = {"cell": cells.Elman()} if isinstance(value, init.Dtriv) else {}
    config = configure(**{"task": Adding(), **square, name: value})
    found = Config.from_json(json.loads(json.dumps(config.to_json())))
    assert found == config
    assert found.id == config.id


@for_all
@given(
    st.floats(0, allow_infinity=False),
    st.floats(0, allow_infinity=False),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 10**12),
)
def test_every_number_is_written_and_read(lr, clip, alpha, batch_size):
    config = configure(Adding(), lr=lr, clip=clip, alpha=alpha, batch_size=batch_size)
    assert Config.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize("number", [np.float64(0.9), np.float32(0.5), Fraction(1, 2)], ids=repr)
def test_foreign_numbers_are_written_and_read_too(number):
    """A momentum takes any real number; then its config is either read back, or refused where it is made."""
    assert Config.from_json(json.loads(json.dumps(configure(Adding(), lr=number).to_json()))).lr == number
    try:
        config = configure(Adding(), momentum=mr.HeavyBall(mu=number))
    except (TypeError, ValueError):
        return
    assert Config.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_equal_numbers_are_one_run():
    for one, two in ((1, 1.0), (Fraction(1, 2), 0.5), (np.float64(0.5), 0.5)):
        assert configure(Adding(), lr=one).id == configure(Adding(), lr=two).id
        assert configure(Adding(), lr=one) == configure(Adding(), lr=two)


@pytest.mark.parametrize("name", OTHERS)
def test_the_id_is_of_all_that_changes_a_step(name):
    base, changed = other(name)
    assert changed != base
    assert (changed.id == base.id) == (name in SAME_RUN)


def test_what_is_idle_makes_no_other_run():
    for name in ("alpha", "orthogonal_lr"):
        assert (
            replace(PLAIN, optimizer="adam", **{name: OTHERS[name]}).id == replace(PLAIN, optimizer="adam").id
        )


def test_the_id_is_of_every_value_in_a_description():
    tasks = [Adding(), Adding(samples=4999), Adding(evaluation=999), Copying(), Copying(alphabet=7)]
    tasks += [MNIST(), MNIST(limit=9), PMNIST(), PMNIST(permutation="seed")]
    momenta = [None, mr.HeavyBall(), mr.HeavyBall(0.61), mr.HeavyBall(step=0.5), mr.Adam(), mr.Adam(eps=1e-7)]
    inits = [init.Paper(), init.Paper(forget_bias=-4.0), init.Paper(identity="every"), init.Torch()]
    configs = [configure(task, lr=1e-3, batch_size=9, epochs=9, optimizer="sgd") for task in tasks]
    configs += [configure(Adding(), momentum=m) for m in momenta]
    configs += [configure(Adding(), init=i) for i in inits[1:]]
    assert len({config.id for config in configs}) == len(configs)


def test_no_two_ids_differ_in_case_alone():
    ids = [other(name)[1].id for name in OTHERS]
    assert ids == [i.lower() for i in ids]


@pytest.mark.parametrize("config", [PLAIN, DTRIV, *(other(name)[1] for name in OTHERS)], ids=lambda c: c.id)
def test_the_id_names_a_folder_anywhere(config):
    """Windows refuses some characters and names, and paths that are long."""
    assert re.fullmatch(r"[a-z0-9][a-z0-9_-]*[a-z0-9]", config.id)
    assert len(config.id) < 80
    assert config.id.split("-")[0] not in {"con", "prn", "aux", "nul"}


def test_the_id_says_what_it_is():
    config = configure(Copying(), momentum=mr.Nesterov(), hidden_size=33)
    assert config.id.startswith("copying-lstm-nesterov-33-")
    assert DTRIV.id.startswith("orthogonal-adding-elman-128-")


def test_the_id_is_the_same_in_every_process():
    configs = [PLAIN, DTRIV, other("momentum")[1]]
    code = (
        "import json, sys\nfrom momentumrnn.experiments import Config\n"
        "print([Config.from_json(c).id for c in json.loads(sys.stdin.read())])"
    )
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            input=json.dumps([c.to_json() for c in configs]),
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
        )
        assert done.stdout == f"{[c.id for c in configs]}\n", done.stderr


@pytest.mark.parametrize("task", [Adding(), Copying(), MNIST(), PMNIST()], ids=lambda t: type(t).__name__)
def test_a_task_has_its_defaults(task):
    config = configure(task)
    assert task.defaults
    assert {name: getattr(config, name) for name in task.defaults} == task.defaults
    assert config.momentum is None
    assert config.cell == cells.LSTM()


def test_the_papers_hyper_parameters():
    adding, copying, mnist = configure(Adding()), configure(Copying()), configure(MNIST())
    assert (adding.optimizer, adding.lr, adding.batch_size, adding.hidden_size) == ("adam", 2e-4, 50, 128)
    assert (copying.optimizer, copying.lr, copying.alpha) == ("rmsprop", 2e-4, 0.99)
    assert (copying.batch_size, copying.hidden_size) == (128, 190)
    assert (mnist.optimizer, mnist.lr, mnist.alpha, mnist.clip) == ("rmsprop", 1e-3, 0.9, 1.0)
    assert (mnist.batch_size, mnist.epochs) == (128, 150)


def test_what_is_given_wins():
    config = configure(Adding(), lr=0.5, batch_size=3, optimizer="sgd", epochs=1)
    assert (config.lr, config.batch_size, config.optimizer, config.epochs) == (0.5, 3, "sgd", 1)


def test_orthogonal_takes_what_dtriv_has():
    config = configure(Adding(), orthogonal=True)
    assert (config.cell, config.init, config.bias) == (cells.Elman("modrelu"), init.Dtriv(), "hh")
    own = configure(
        Adding(), orthogonal=True, cell=cells.Elman("tanh"), init=init.Dtriv("henaff"), bias=False
    )
    assert (own.cell, own.init, own.bias) == (cells.Elman("tanh"), init.Dtriv("henaff"), False)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("cell", "LSTM", "a Cell"),
        ("cell", None, "a Cell"),
        ("cell", cells.LSTM, "a Cell"),
        ("momentum", "HeavyBall()", "Momentum or None"),
        ("momentum", 0.9, "Momentum or None"),
        ("init", "paper", "an? Init"),
        ("init", init.Dtriv(), r"LSTM\(\)"),
        ("hidden_size", 0, "an integer of at least 1"),
        ("hidden_size", -1, "an integer of at least 1"),
        ("hidden_size", 1.0, "an integer of at least 1"),
        ("hidden_size", True, "an integer of at least 1"),
        ("hidden_size", "128", "an integer of at least 1"),
        ("batch_size", 0, "an integer of at least 1"),
        ("epochs", 0, "an integer of at least 1"),
        ("log_every", 0, "an integer of at least 1"),
        ("rebase_every", -1, "an integer of at least 0"),
        ("rebase_every", 5, "0 without orthogonal"),
        ("lr", -1e-3, r"a number in \[0, inf\)"),
        ("lr", math.nan, r"a number in \[0, inf\)"),
        ("lr", math.inf, r"a number in \[0, inf\)"),
        ("lr", "0.1", r"a number in \[0, inf\)"),
        ("lr", True, r"a number in \[0, inf\)"),
        ("lr", None, r"a number in \[0, inf\)"),
        ("lr", 1j, r"a number in \[0, inf\)"),
        pytest.param("lr", 10**400, r"a number in \[0, inf\)", id="lr-too-large"),
        ("clip", -1, r"a number in \[0, inf\)"),
        ("orthogonal_lr", -1, r"a number in \[0, inf\)"),
        ("alpha", 1, r"a number in \[0, 1\)"),
        ("alpha", -0.1, r"a number in \[0, 1\)"),
        ("orthogonal", "yes", "True or False"),
        ("orthogonal", 1, "True or False"),
        ("deterministic", 0, "True or False"),
        ("deterministic", None, "True or False"),
        ("bias", "ih", "True, False or 'hh'"),
        ("bias", None, "True, False or 'hh'"),
        ("bias", 1, "True, False or 'hh'"),
        ("bias", 0.0, "True, False or 'hh'"),
        ("optimizer", "Adam", "one of 'adam', 'rmsprop', 'sgd'"),
        ("optimizer", None, "one of 'adam', 'rmsprop', 'sgd'"),
        ("precision", "fp16", "one of 'tf32', 'float32', 'float64'"),
    ],
)
def test_wrong_values_are_refused(name, value, expected):
    with pytest.raises(ValueError, match=rf"\b{name} should be .*{expected}.*, got ") as refusal:
        configure(Adding(), **{name: value})
    assert type(refusal.value) is ValueError
    assert repr(value) in str(refusal.value)


def test_orthogonal_is_refused_for_gates():
    for cell in (cells.LSTM(), cells.GRU()):
        with pytest.raises(ValueError, match=r"(orthogonal|init) should be .* for (LSTM|GRU)\(\)"):
            configure(Adding(), orthogonal=True, cell=cell)


@pytest.mark.parametrize("task", ["Adding", None, Adding, 3], ids=repr)
def test_a_task_is_no_other_thing(task):
    with pytest.raises((TypeError, ValueError), match="task should be"):
        configure(task)


def test_unknown_names_give_the_nearest():
    with pytest.raises(TypeError, match=r"'hiden_size'; did you mean 'hidden_size'"):
        configure(Adding(), hiden_size=3)
    with pytest.raises(TypeError, match=r"'batch'; did you mean 'batch_size'"):
        configure(Adding(), batch=3)


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("momentum", "HevyBall(mu=0.9)", "HeavyBall"),
        ("task", "Ading", "Adding"),
        ("cell", "LTSM()", "LSTM"),
        ("init", "Papper", "Paper"),
        ("momentum", "HeavyBall(steps=0.9)", "step"),
    ],
)
def test_misspelt_descriptions_give_the_nearest(name, value, meant):
    with pytest.raises(ValueError, match=rf"did you mean '{meant}'") as refusal:
        Config.from_json({**PLAIN.to_json(), name: value})
    assert repr(value) in str(refusal.value)
    assert name in str(refusal.value).replace(value, "")


def test_json_of_other_fields_is_refused():
    whole = PLAIN.to_json()
    for values in ({**whole, "lrr": 1}, {k: v for k, v in whole.items() if k != "lr"}, {}):
        with pytest.raises(ValueError, match="fields") as refusal:
            Config.from_json(values)
        odd = set(values) ^ set(whole)
        assert all(repr(name) in str(refusal.value) for name in odd)
    with pytest.raises(ValueError, match="lr should be a number"):
        Config.from_json({**whole, "lr": "0.1"})
    with pytest.raises(ValueError, match="task should be a Task"):
        Config.from_json({**whole, "task": 3})


def test_read():
    assert read("momentum", "None") is None
    assert read("momentum", None) is None
    assert read("momentum", "HeavyBall(0.9)") == mr.HeavyBall(0.9)
    assert read("momentum", mr.Adam()) == mr.Adam()
    assert read("cell", "GRU") == cells.GRU()
    assert read("optimizer", "sgd") == "sgd"
    with pytest.raises(ValueError, match="'None'"):
        read("cell", "None")


def test_a_config_is_frozen_and_hashable():
    with pytest.raises(FrozenInstanceError):
        PLAIN.lr = 1.0
    assert len({PLAIN, replace(PLAIN), DTRIV}) == 2


def test_no_tensors_for_rates():
    """Two of them would have one spelling, and so one id; and seeds would share them."""
    with pytest.raises(ValueError, match="numbers for mu and step in an experiment, not tensors, got 'mu'"):
        configure(Adding(length=5), momentum=mr.HeavyBall(mu=torch.tensor(0.5)))


@dataclass(frozen=True)
class Scaled(Adding):
    scale: object = 1.0
    hidden: float = field(default=1.0, repr=False)


@dataclass(frozen=True)
class Silent(Adding):
    scale: float = 1.0

    def __repr__(self):
        return "Silent()"


class Undecorated(Adding):
    def __init__(self, scale=1.0, **given):
        super().__init__(**given)
        object.__setattr__(self, "scale", scale)


@dataclass(frozen=True)
class Prepared(Adding):
    scale: InitVar[float] = 1.0

    def __post_init__(self, scale):
        object.__setattr__(self, "factor", scale)


@pytest.mark.parametrize(
    ("task", "name"),
    [
        (Scaled(hidden=2.0), "hidden"),
        (Scaled(scale=torch.tensor(1.0)), "scale"),
        (Scaled(scale=np.ones(3)), "scale"),
        (Scaled(scale=(1, [None, {2}])), "scale"),
        (Scaled(scale=math.nan), "scale"),
        (Scaled(scale=mr.HeavyBall()), "scale"),
        (Silent(scale=2.0), "scale"),
        (Undecorated(scale=2.0), "'?scale'?"),
        (Prepared(scale=2.0), "factor"),
    ],
    ids=repr,
)
def test_a_users_description_that_its_text_does_not_bring_back_is_refused(task, name):
    """Else two of them would have one id, and one would get the results of the other."""
    with pytest.raises(ValueError, match=rf"^task should be .*{name}.*a field that is a number, text, True"):
        configure(task)


def test_a_class_that_is_no_dataclass_is_refused():
    class Plain(init.Init):
        def __call__(self, name, weight, cell, hidden_size):
            weight.fill_(0.0)

    with pytest.raises(ValueError, match="init should be a dataclass, so Plain needs @dataclass"):
        configure(Adding(), init=Plain())


@pytest.mark.parametrize("scale", [1, -0.0, "a(b)", True, None, (), (1,), [1, (None, "b")]], ids=repr)
def test_a_users_description_that_comes_back_is_taken(scale):
    @dataclass(frozen=True)
    class Inner(Adding):  # its repr has the name of this function
        scale: object = 0
        features = 2

    assert configure(Scaled(scale=scale)).task == Scaled(scale=scale)
    assert configure(Inner(scale=scale)).task == Inner(scale=scale)


@dataclass(frozen=True)
class LaterConfig(Config):
    """As a later version may have it, with one more field."""

    dropout: float = field(default=0.0, metadata={"since": SCHEMA + 1})


@pytest.fixture
def later(monkeypatch):
    """PLAIN, as a later version reads it."""
    monkeypatch.setattr(config_module, "SCHEMA", SCHEMA + 1)
    return LaterConfig.from_json(PLAIN.to_json(), schema=SCHEMA)


def test_records_of_older_schemas_are_read_with_the_defaults(later):
    assert later.dropout == 0.0
    assert later.to_json() == {**PLAIN.to_json(), "dropout": 0.0}
    # The first schema had no patience.
    first = {name: value for name, value in PLAIN.to_json().items() if name != "patience"}
    assert LaterConfig.from_json(first, schema=1) == later
    assert Config.from_json(first, schema=1) == PLAIN
    # What a record should have is what its schema says.
    for values, schema in ((first, 2), (PLAIN.to_json(), 1), (PLAIN.to_json(), 3), (later.to_json(), 2)):
        with pytest.raises(ValueError, match="a config should have the fields"):
            LaterConfig.from_json(values, schema=schema)


def test_a_later_field_is_of_the_id_where_it_is_not_its_default(later):
    assert later.id == PLAIN.id
    changed = replace(later, dropout=0.1)
    assert changed.id != later.id
    assert replace(changed, dropout=0.2).id not in (changed.id, later.id)
    assert LaterConfig.from_json(changed.to_json(), schema=3) == changed
    # In the place that it would have had from the start.
    assert changed.id.rpartition("-")[0] == later.id.rpartition("-")[0]


def test_a_record_of_a_newer_schema_is_refused():
    with pytest.raises(SchemaError, match=f"schema {SCHEMA + 1}.* up to {SCHEMA}: update momentumrnn"):
        Config.from_json({**PLAIN.to_json(), "dropout": 0.0}, schema=SCHEMA + 1)


def test_a_later_field_of_a_description():
    """Left out where it has its default: what is named by the description stays, its id and its data."""
    since = field(default=0.0, metadata={"since": SCHEMA + 1})
    kind = make_dataclass("Adding", [("noise", float, since)], bases=(Adding,), frozen=True)
    old, new, other = Adding(length=7), kind(length=7), kind(length=7, noise=0.5)
    assert spell(new) == spell(old) == repr(old)
    assert spell(other) == "Adding(length=7, samples=5000, evaluation=1000, noise=0.5)"
    for task in (new, other):
        assert parse(spell(task), [kind]) == task
        assert Config.from_json(configure(task).to_json(), [kind]).task == task
    ids = [identity(configure(task).to_json(), {}) for task in (old, new, other)]
    assert ids[0] == ids[1] == configure(old).id
    assert ids[2] != ids[0]
    drawn = [task.rows(task.load(None), seed=0, epoch=0)[0] for task in (old, new, other)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert old.load(None).hashes == new.load(None).hashes != other.load(None).hashes
