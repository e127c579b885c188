"""Settings: `change` reads what `differences` and `effective` write, and refuses every wrong setting."""

from dataclasses import dataclass, fields, replace
from itertools import permutations
from numbers import Real
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_config import OTHERS, other
from test_repr_parser import CODE, ODD

import momentumrnn as mr
from momentumrnn import cells, init
from momentumrnn.experiments import MNIST, PMNIST, Adding, Config, Copying, configure
from momentumrnn.experiments.config import SAME_RUN
from momentumrnn.experiments.paper.recipes import RECIPES, recipe, variants
from momentumrnn.experiments.settings import change, differences, effective, variant_name
from momentumrnn.momentum import MOMENTA

for_all = settings(derandomize=True, deadline=None, max_examples=100, database=None)
BASE = configure(PMNIST())
HEAVY = configure(PMNIST(), momentum=mr.HeavyBall())
NAMES = [name for base in RECIPES for name in variants(base)]
RECIPE_CONFIGS = [recipe(name).config for name in NAMES]


@dataclass(frozen=True)
class Unchecked(mr.Momentum):
    """A user's momentum, which checks none of its own fields, and whose annotations say more or less."""

    rate: float = 0.5
    sloppy: int = None  # type: ignore[assignment]
    size: int = 3
    flag: bool = False
    kind: Literal["slow", "fast"] = "slow"
    words: str = ""
    maybe: float | None = None
    sizes: tuple[int, ...] = (1, 2)
    anything: Any = 1
    real: Real = 1

    def decay(self, k):
        return self.rate


@dataclass(frozen=True)
class Unresolved(mr.Momentum):
    """Its annotations name what can't be found."""

    rate: "NoSuchType" = 0.5  # noqa: F821
    count: "NoSuchType" = 2  # noqa: F821

    def decay(self, k):
        return self.rate


@dataclass(frozen=True)
class Schedule:
    first: float = 1.0
    last: float = 0.0

    def __post_init__(self):
        if self.first <= self.last:
            raise ValueError(f"first should be above last, got {self.first} and {self.last}")


@dataclass(frozen=True)
class Scheduled(mr.Momentum):
    """A description in a description."""

    schedule: Schedule = Schedule()

    def decay(self, k):
        return self.schedule.first


# What is read


@pytest.mark.parametrize(
    ("setting", "changed"),
    [
        ("lr=3.5", {"lr": 3.5}),
        ("lr=1e-3", {"lr": 1e-3}),
        (" lr = .5 ", {"lr": 0.5}),
        ("hidden_size=1_000", {"hidden_size": 1000}),
        ("bias=hh", {"bias": "hh"}),
        ("bias='hh'", {"bias": "hh"}),
        ('bias="hh"', {"bias": "hh"}),
        ("bias=False", {"bias": False}),
        ("optimizer=adam", {"optimizer": "adam"}),
        ("precision=float32", {"precision": "float32"}),
        ("deterministic=False", {"deterministic": False}),
        ("task.permutation=seed", {"task": PMNIST("seed")}),
        ("task.permutation='seed'", {"task": PMNIST("seed")}),
        ("task . limit=9", {"task": PMNIST(limit=9)}),
        ("task=Adding(length=50, samples=7)", {"task": Adding(50, 7)}),
        ("task=Copying", {"task": Copying()}),
        ("cell=Elman(nonlinearity='tanh')", {"cell": cells.Elman("tanh")}),
        ("cell=GRU", {"cell": cells.GRU()}),
        ("init.forget_bias=-4", {"init": init.Paper(-4.0)}),
        ("momentum=HeavyBall(0.9, step=2)", {"momentum": mr.HeavyBall(0.9, 2.0)}),
        ("momentum.mu=0.3", {"momentum": mr.HeavyBall(0.3)}),
        ("momentum=None", {"momentum": None}),
    ],
)
def test_a_setting_changes_what_it_names(setting, changed):
    assert change(HEAVY, [setting]) == replace(HEAVY, **changed)


def test_no_setting_changes_nothing():
    assert change(BASE, []) == BASE
    assert differences(BASE, BASE) == []


def test_a_description_comes_before_its_fields():
    config = change(BASE, ["momentum=Adam()", "lr=0.5", "momentum.mu=0.3", "momentum.beta=0.9"])
    assert config == replace(BASE, momentum=mr.Adam(mu=0.3, beta=0.9), lr=0.5)
    assert change(HEAVY, ["momentum=Nesterov()", "momentum.step=2"]).momentum == mr.Nesterov(2.0)


def test_only_the_result_has_to_be_valid():
    """Some of these are refused alone; all of them are not, in any order."""
    together = ["orthogonal=True", "cell=Elman('modrelu')", "init=Dtriv()", "bias=hh", "rebase_every=3"]
    for alone in (together[0], together[2], together[4]):
        with pytest.raises(ValueError, match="--set: expected"):
            change(BASE, [alone])
    expected = configure(PMNIST(), orthogonal=True, rebase_every=3)
    for order in permutations(together):
        assert change(BASE, order) == expected
    for order in permutations(["orthogonal=False", "rebase_every=0", "cell=LSTM()", "init=Paper()"]):
        assert change(expected, [*order, "bias=True"]) == BASE


def test_fields_of_one_description_change_together():
    config = replace(BASE, momentum=Scheduled())
    for order in permutations(["momentum.schedule.first=6", "momentum.schedule.last=5"]):
        assert change(config, order).momentum == Scheduled(Schedule(6.0, 5.0))
    with pytest.raises(ValueError, match="first should be above last") as refusal:
        change(config, ["momentum.schedule.last=5", "lr=0.5"])
    assert "'lr=0.5'" not in str(refusal.value)


# Numbers have one spelling


@pytest.mark.parametrize(
    ("as_integer", "as_float"),
    [
        ("momentum.step=1", "momentum.step=1.0"),
        ("momentum.step=3", "momentum.step=3.0"),
        ("momentum.mu=0", "momentum.mu=0.0"),
        ("momentum=HeavyBall(mu=1, step=2)", "momentum=HeavyBall(mu=1.0, step=2.0)"),
        ("momentum=Adam(beta=0, eps=1)", "momentum=Adam(beta=0.0, eps=1.0)"),
        ("cell=ExtrapolatedLSTM(step_size=2)", "cell=ExtrapolatedLSTM(step_size=2.0)"),
        ("init.forget_bias=3", "init.forget_bias=3.0"),
        ("lr=1", "lr=1.0"),
        ("clip=0", "clip=0.0"),
    ],
)
@pytest.mark.parametrize("base", [HEAVY, replace(HEAVY, momentum=mr.HeavyBall(mu=1, step=4))], ids=repr)
def test_an_integer_for_a_float_is_the_same_run(as_integer, as_float, base):
    one, two = change(base, [as_integer]), change(base, [as_float])
    assert repr(one) == repr(two)
    assert one.id == two.id


def test_an_integer_stays_one_where_it_is_meant():
    assert repr(change(HEAVY, ["task.limit=9"]).task.limit) == "9"
    assert repr(change(HEAVY, ["momentum=ScheduledRestart(every=3)"]).momentum.every) == "3"


def test_an_integer_that_no_float_equals_is_kept_or_refused():
    assert change(HEAVY, [f"momentum.step={2**53 + 1}"]).momentum.step == 2**53 + 1
    assert_refused(HEAVY, [f"momentum.step=1{'0' * 400}"], "step should be a positive number")


@pytest.mark.parametrize("kind", MOMENTA, ids=lambda kind: kind.__name__)
def test_true_and_false_are_no_numbers(kind):
    config = replace(BASE, momentum=kind())
    for name in (f.name for f in fields(kind) if f.name != "eps_in_sqrt"):
        assert_refused(config, [f"momentum.{name}=True"], "expected an? (number|integer)")
        assert_refused(config, [f"momentum={kind.__name__}({name}=False)"], "an? .*(number|integer)")


# The laws


def test_differences_turn_any_recipe_into_any_other():
    assert len(set(RECIPE_CONFIGS)) > 50
    for distance in (1, 7, 31, 64):
        others = RECIPE_CONFIGS[distance:] + RECIPE_CONFIGS[:distance]
        for base, config in zip(RECIPE_CONFIGS, others, strict=True):
            changed = change(base, differences(config, base))
            assert changed == config
            assert changed.id == config.id
            assert bool(differences(config, base)) == (config != base)


def test_every_recipe_is_read_from_its_effective_settings():
    for config in RECIPE_CONFIGS:
        lines = effective(config)
        assert [line.partition("=")[0] for line in lines] == [f.name for f in fields(Config)]
        assert change(BASE, lines) == config
        assert change(BASE, lines).id == config.id


TASKS = st.one_of(
    st.builds(Adding, st.integers(2), st.integers(1), st.integers(1)),
    st.builds(Copying, st.integers(0), st.integers(1), st.integers(1, 255)),
    st.builds(MNIST, st.integers(0, 59_999), st.integers(0, 60_000)),
    st.builds(PMNIST, st.sampled_from(["fixed", "seed"]), st.integers(0, 59_999)),
)
UNIT, POSITIVE = st.floats(0, 1), st.floats(0, exclude_min=True, allow_infinity=False)
# As a user writes them in Python: an integer may stand for a float.
STEPS = POSITIVE | st.integers(1, 10**20)
SQUARE = st.builds(cells.Elman, st.sampled_from(["tanh", "relu", "sigmoid", "modrelu"]))
CELLS = st.sampled_from([cells.LSTM(), cells.GRU()])
INITS = st.one_of(
    st.just(init.Torch()),
    st.builds(
        init.Paper, st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["first", "every"])
    ),
)
FIELDS = {
    "task": TASKS,
    "momentum": st.one_of(
        st.none(),
        st.builds(mr.HeavyBall, UNIT | st.sampled_from([0, 1]), STEPS),
        st.builds(mr.ScheduledRestart, st.integers(1), STEPS),
        st.builds(mr.Adam, UNIT, STEPS, st.floats(0, 1, exclude_max=True), eps_in_sqrt=st.booleans()),
    ),
    "hidden_size": st.integers(1),
    "bias": st.sampled_from([True, False, "hh"]),
    "optimizer": st.sampled_from(["adam", "rmsprop", "sgd"]),
    "lr": st.floats(0, allow_infinity=False),
    "alpha": st.floats(0, 1, exclude_max=True),
    "orthogonal_lr": st.floats(0, allow_infinity=False),
    "clip": st.floats(0, allow_infinity=False),
    "batch_size": st.integers(1),
    "epochs": st.integers(1),
    "precision": st.sampled_from(["tf32", "float32", "float64"]),
    "deterministic": st.booleans(),
    "log_every": st.integers(1),
}
GATED = st.builds(configure, **FIELDS, cell=CELLS, init=INITS)
ORTHOGONAL = st.builds(
    configure,
    **FIELDS,
    orthogonal=st.just(True),
    rebase_every=st.integers(0),
    cell=SQUARE,
    init=INITS | st.builds(init.Dtriv, st.sampled_from(["cayley", "henaff"])),
)


@for_all
@given(GATED | ORTHOGONAL, GATED | ORTHOGONAL)
def test_differences_turn_any_config_into_any_other(base, config):
    assert change(base, differences(config, base)) == config
    assert change(base, effective(config)) == config
    # Whoever reads the settings backwards is at the start again.
    assert change(config, differences(base, config)) == base


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_odd_descriptions_differ_and_are_read(value):
    kinds = {mr.Momentum: "momentum", cells.Cell: "cell", init.Init: "init"}
    name = next((name for kind, name in kinds.items() if isinstance(value, kind)), "task")
    base = configure(PMNIST(), cell=cells.Elman()) if isinstance(value, init.Dtriv) else BASE
    config = replace(base, **{name: value})
    assert change(base, differences(config, base)) == config


@pytest.mark.parametrize("name", OTHERS)
def test_every_field_is_a_difference(name):
    """Also those that make no other run."""
    base, config = other(name)
    (setting,) = differences(config, base)
    assert setting.startswith(name)
    assert change(base, [setting]) == config


def test_fields_that_make_no_other_run_are_differences():
    config = replace(BASE, **{name: getattr(BASE, name) + 1 for name in SAME_RUN})
    assert {setting.partition("=")[0] for setting in differences(config, BASE)} == SAME_RUN


def test_differences_go_as_far_in_as_the_class_is_the_same():
    config = replace(BASE, task=PMNIST("seed", limit=7), init=init.Paper(3.5), momentum=mr.HeavyBall(0.9))
    assert differences(config, BASE) == [
        "task.permutation='seed'",
        "task.limit=7",
        "momentum=HeavyBall(mu=0.9, step=1.0)",
        "init.forget_bias=3.5",
    ]
    assert differences(BASE, config)[2] == "momentum=None"
    assert differences(configure(MNIST()), BASE) == ["task=MNIST(validation=5000, limit=0)"]
    inner = [replace(BASE, momentum=Scheduled(Schedule(2.0, last))) for last in (0.0, 0.5)]
    assert differences(inner[1], inner[0]) == ["momentum.schedule.last=0.5"]
    assert change(inner[0], differences(inner[1], inner[0])) == inner[1]


def test_variant_name():
    config = change(BASE, ["task.permutation=seed", "init.forget_bias=3.5"])
    name = "table11/LSTM/PMNIST/128"
    assert variant_name(name, config, BASE) == f"{name} with task.permutation='seed', init.forget_bias=3.5"
    assert variant_name(name, BASE, BASE) == name


# A user's own classes


def test_own_classes_are_read_and_differ():
    config = replace(BASE, momentum=Unchecked(rate=0.25, words="a=b, (c)", sizes=(3,), maybe=1.0))
    for base in (BASE, HEAVY, replace(BASE, momentum=Unchecked())):
        assert change(base, differences(config, base), [Unchecked]) == config
        assert change(base, effective(config), [Unchecked]) == config
    assert change(BASE, ["momentum=Unchecked()"], [Unchecked]).momentum == Unchecked()
    assert change(config, ["momentum.words=''"]).momentum.words == ""
    assert change(config, ["momentum.maybe=None"]).momentum.maybe is None
    assert_refused(BASE, ["momentum=Unchecked()"], "expected one of HeavyBall")


def test_a_default_fits_whatever_the_annotation_says():
    config = replace(BASE, momentum=Unchecked(sloppy=3))
    assert change(config, ["momentum.sloppy=None"]).momentum == Unchecked()
    assert change(BASE, ["momentum=Unchecked(size=4)"], [Unchecked]).momentum == Unchecked(size=4)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("rate", "'fast'", "a number"),
        ("rate", "True", "a number"),
        ("rate", "None", "a number"),
        ("rate", "(1,)", "a number"),
        ("size", "1.0", "an integer"),
        ("size", "False", "an integer"),
        ("flag", "1", "True or False"),
        ("flag", "'true'", "True or False"),
        ("kind", "'medium'", "'slow' or 'fast'"),
        ("words", "3", "a word or a quoted string"),
        ("maybe", "'x'", "a number or None"),
        ("real", "False", "a value of type Real"),
        ("sizes", "3", "a tuple"),
        ("sizes", "{1, 2}", "a tuple"),
    ],
)
def test_types_that_a_class_does_not_check_are_refused(name, value, expected):
    config = replace(BASE, momentum=Unchecked())
    words = rf"expected {expected} for momentum\.{name}, got "
    assert_refused(config, [f"momentum.{name}={value}"], words)
    assert_refused(config, [f"momentum=Unchecked({name}={value})"], words, [Unchecked])


def test_the_default_tells_the_type_where_the_annotation_cannot():
    config = replace(BASE, momentum=Unresolved())
    for text in ("momentum.rate=1", "momentum=Unresolved(rate=1)"):
        assert repr(change(config, [text], [Unresolved]).momentum.rate) == "1.0"
    assert repr(change(config, ["momentum.count=3"]).momentum.count) == "3"
    assert repr(change(config, ["momentum.count=2.5"]).momentum.count) == "2.5"
    for value in ("fast", "True"):
        assert_refused(config, [f"momentum.rate={value}"], r"expected a number or None for momentum\.rate")


def test_a_field_of_any_type_takes_any_literal():
    config = replace(BASE, momentum=Unchecked())
    for text, value in (("3", 3), ("None", None), ("word", "word"), ("[1, (2,)]", [1, (2,)]), ("True", True)):
        assert change(config, [f"momentum.anything={text}"]).momentum.anything == value
    assert_refused(config, ["momentum.anything=two words"], "expected a literal as in Python or a word for")


def test_a_class_of_another_kind_is_refused():
    assert_refused(BASE, ["cell=Unchecked()"], "cell should be a Cell, got Unchecked", [Unchecked])


# What is refused


def assert_refused(config, texts, words, own=()):
    """Refused in these words, with the last setting as it came, and without an error behind the error."""
    with pytest.raises(ValueError, match=words) as refusal:
        change(config, texts, own)
    assert type(refusal.value) is ValueError
    assert str(refusal.value).startswith("--set: expected ")
    assert repr(texts[-1]) in str(refusal.value)
    assert refusal.value.__cause__ is None
    assert refusal.value.__suppress_context__ or refusal.value.__context__ is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected PATH=VALUE"),
        ("lr", "expected PATH=VALUE"),
        ("task.permutation", "expected PATH=VALUE"),
        ("=3", "expected PATH=VALUE"),
        (" =3", "expected PATH=VALUE"),
        ("==", "expected PATH=VALUE"),
        (".lr=3", "expected PATH=VALUE"),
        ("task.=3", "expected PATH=VALUE"),
        ("task..limit=3", "expected PATH=VALUE"),
        ("lrr=1", r"a field of Config: task, .*, lr, .*; did you mean 'lr'\?"),
        ("LR=1", r"a field of Config: .*; did you mean 'lr'\?"),
        ("__class__=1", "a field of Config: "),
        ("id=1", "a field of Config: "),
        ("task.permutatoin=seed", r"a field of PMNIST: permutation, validation, limit, .*'permutation'\?"),
        ("task.features=2", "a field of PMNIST: permutation, validation, limit, got"),
        ("forget_bias=3.5", r"a field of Config: .*; did you mean 'init\.forget_bias'\?"),
        ("cell.gates=3", "a field of LSTM: it has none"),
        ("lr.x=1", "expected lr=VALUE, .*: lr is 0.001, without fields"),
        ("task.limit.x=1", r"expected task\.limit=VALUE, .*: task\.limit is 0, without fields"),
        ("momentum.mu=0.3", r"expected momentum=HeavyBall\(\) .*: momentum is None"),
        ("momentum.every=3", r"expected momentum=ScheduledRestart\(\) .*: momentum is None"),
        ("momentum.nu=0.3", r"expected momentum=NAME\(\) .*: momentum is None"),
        ("lr=", "expected a number for lr"),
        ("lr=x", "expected a number for lr"),
        ("lr='0.1'", "expected a number for lr"),
        ("lr=1e-3x", "expected a number for lr"),
        ("lr=0.1 0.2", "expected a number for lr"),
        ("lr==0.1", "expected a number for lr"),
        ("lr=True", "expected a number for lr"),
        ("lr=None", "expected a number for lr"),
        ("lr=1j", "expected a number for lr"),
        ("lr=...", "expected a number for lr"),
        ("lr=nan", "expected a number for lr"),
        ("lr=1e999", r"lr should be a number in \[0, inf\)"),
        ("lr=-1", r"lr should be a number in \[0, inf\)"),
        ("epochs=1e3", "expected an integer for epochs"),
        ("epochs=True", "expected an integer for epochs"),
        ("epochs=0", "epochs should be an integer of at least 1"),
        ("deterministic=0", "expected True or False for deterministic"),
        ("deterministic=true", "expected True or False for deterministic"),
        ("bias=1", "expected True or False or a word or a quoted string for bias"),
        ("bias=true", "bias should be True, False or 'hh'"),
        ("optimizer='adam", "a word or a quoted string for optimizer"),
        ("optimizer=Adam", "optimizer should be one of 'adam'"),
        ("orthogonal=True", r"orthogonal should be False for LSTM\(\)"),
        ("task=3", r"a value for task, .*: expected one of Adding\("),
        ("task=", r"a value for task, .*: expected one of Adding\("),
        ("cell=None", r"a value for cell, .*: expected one of LSTM\(\)"),
        ("cell='LSTM()'", r"a value for cell, .*: expected one of LSTM\(\)"),
        ("momentum=HevyBall()", r"a value for momentum, .*; did you mean 'HeavyBall'\?"),
        ("momentum=HeavyBall(mu=2)", r"mu should be a number in \[0, 1\], got 2"),
        ("task.permutation=random", "permutation should be 'fixed' or 'seed', got 'random'"),
        ("task.permutation=3", r"a word or a quoted string for task\.permutation"),
        ("task.limit=-1", "limit should be an integer of 0 to 60000, got -1"),
        ("task.limit=True", r"expected an integer for task\.limit"),
    ],
)
def test_a_wrong_setting_is_refused_in_its_words(text, words):
    assert_refused(BASE, ["batch_size=7", text], words)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["lr=1", "lr=2"], "expected lr once, got 'lr=1' and 'lr=2'"),
        (["lr=1", "clip=2", "lr =1"], "expected lr once, got 'lr=1' and 'lr =1'"),
        (["task.limit=1", "task. limit=2"], r"expected task\.limit once"),
        (["momentum=Adam()", "momentum.mu=0.3", "momentum=None"], "expected momentum once"),
        (
            ["momentum.mu=0.3", "momentum=Adam()"],
            "expected momentum before its fields, got 'momentum.mu",
        ),
        (["momentum=None", "momentum.mu=0.3"], "momentum is None"),
        (["momentum=Nesterov()", "momentum.mu=0.3"], "a field of Nesterov: step"),
        (["hidden_size=3", "init=Dtriv()"], "'hidden_size=3' and .*init should be another"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(texts, words):
    assert_refused(HEAVY, texts, words)


@pytest.mark.parametrize("text", CODE, ids=ascii)
@pytest.mark.parametrize("path", ["momentum", "momentum.mu", "task.limit"])
def test_nothing_is_run(path, text):
    """os.abort would end the tests."""
    if (path, text) == ("momentum.mu", "0.9"):
        assert change(HEAVY, [f"{path}={text}"]).momentum == mr.HeavyBall(0.9)
        return
    assert_refused(HEAVY, [f"{path}={text}"], "--set: expected")


@for_all
@given(st.sampled_from(["", "lr=", "bias=", "task.permutation=", "momentum=", "momentum.mu="]), st.text())
def test_any_text_is_refused_or_read(start, text):
    """There is no third, and what is read can be written again."""
    try:
        config = change(HEAVY, [start + text])
    except ValueError as error:
        assert str(error).startswith("--set: expected ")  # noqa: PT017  (both ends are right)
        assert repr(start + text) in str(error)  # noqa: PT017
    else:
        assert change(HEAVY, differences(config, HEAVY)) == config
