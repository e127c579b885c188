"""`parse` inverts repr for all that a user can describe, runs no code, and says what it expected."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import momentumrnn as mr
from momentumrnn import cells, init
from momentumrnn.experiments.config import CELLS, INITS
from momentumrnn.experiments.tasks import MNIST, PMNIST, TASKS, Adding, Copying
from momentumrnn.momentum import MOMENTA
from momentumrnn.repr_parser import nearest, parse

for_all = settings(derandomize=True, deadline=None, max_examples=200, database=None)
EVERY = (*MOMENTA, *CELLS, *INITS, *TASKS)
ODD = [
    mr.HeavyBall(mu=0, step=5e-324),
    mr.HeavyBall(mu=1, step=1.7976931348623157e308),
    mr.HeavyBall(mu=0.1 + 0.2, step=3),
    mr.Nesterov(step=1e-08),
    mr.ScheduledRestart(every=10**30, step=0.9),
    mr.Adam(mu=0.0, step=2.5, beta=0, eps=1e-18, eps_in_sqrt=False),
    mr.RMSProp(beta=1 - 2**-53),
    cells.LSTM(),
    cells.GRU(),
    *(cells.Elman(name) for name in ("tanh", "relu", "sigmoid", "modrelu")),
    cells.ExtrapolatedLSTM(every=256, step_size=1e300),
    init.Torch(),
    init.Paper(forget_bias=-4.0, identity="every"),
    init.Paper(forget_bias=-0.0),
    init.Dtriv(angles="henaff"),
    Adding(length=2, samples=1, evaluation=1),
    Copying(length=0, symbols=1, alphabet=255, samples=1, evaluation=1),
    MNIST(validation=0, limit=60_000),
    PMNIST(permutation="seed", validation=59_999),
]
# Each would do something if it were run, or be long in the reading.
CODE = [
    "__import__('os').abort()",
    "HeavyBall(mu=__import__('os').abort())",
    "HeavyBall(__import__('os').abort())",
    "HeavyBall(*[__import__('os').abort()])",
    "HeavyBall(**{'mu': 0.9})",
    "HeavyBall(*(0.9,))",
    "HeavyBall((lambda: 0.9)())",
    "HeavyBall(mu=lambda: 0.9)",
    "lambda: HeavyBall()",
    "[HeavyBall() for _ in (1,)]",
    "HeavyBall(mu=[m for m in (1,)])",
    "HeavyBall(mu=(m for m in (1,)))",
    "HeavyBall.decay",
    "momentumrnn.HeavyBall()",
    "HeavyBall(mu=().__class__)",
    "HeavyBall().decay(0)",
    "HeavyBall()()",
    "HeavyBall[0]",
    "HeavyBall(mu=[0.9][0])",
    "HeavyBall(mu=f'{0.9}')",
    "f'{HeavyBall()}'",
    "(x := HeavyBall())",
    "HeavyBall(mu=(x := 0.9))",
    "HeavyBall() if 1 else None",
    "HeavyBall(mu=0.3 if 1 else 0.4)",
    "HeavyBall() or None",
    "HeavyBall; None",
    "x = HeavyBall()",
    "import os",
    "await HeavyBall()",
    "HeavyBall(mu=1 << 10**9)",
    "HeavyBall(mu=9**9**9)",
    "HeavyBall(mu=0.3 + 0.4)",
    "HeavyBall(mu=x)",
    "HeavyBall(mu=True)",
    "HeavyBall(mu=None)",
    "HeavyBall(mu='0.9')",
    "HeavyBall(mu=...)",
    "HeavyBall(mu={[]: 1})",
    "HeavyBall(mu=1j)",
    "HeavyBall(mu=1e999)",
    "HeavyBall(mu=nan)",
    "HeavyBall(mu=-0.1)",
    "HeavyBall(0.9, 1.0, 2.0)",
    "HeavyBall(0.9, mu=0.9)",
    "HeavyBall(mu=0.9, mu=0.9)",
    "HeavyBall(nu=0.9)",
    "HeavyBall(decay=0.9)",
    "HeavyBall(__class__=0.9)",
    "HeavyBall(",
    "HeavyBall)",
    "'HeavyBall()'",
    "heavyball",
    "",
    " ",
    "()",
    "...",
    "0.9",
    "\0",
    "HeavyBall(\0)",
    "HeavyBall()\0",
    "\udc80",
    "HeavyBall(mu='\\N{no such name}')",
]


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_parse_inverts_repr(value):
    found = parse(repr(value), EVERY)
    assert found == value
    assert type(found) is type(value)
    # 0.0 == -0.0 and 1 == 1.0, but what is written next should be the same text.
    assert repr(found) == repr(value)


def test_every_kind_is_among_the_odd():
    assert {type(value) for value in ODD} == set(EVERY)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_the_name_alone_stands_for_the_defaults(kind):
    for text in (kind.__name__, f"{kind.__name__}()", f" {kind.__name__} ( ) \n"):
        assert parse(text, EVERY) == kind()


@for_all
@given(
    st.floats(0, 1),
    st.floats(0, exclude_min=True, allow_infinity=False),
    st.floats(0, 1, exclude_max=True),
    st.floats(1e-18, allow_infinity=False),
    st.booleans(),
)
def test_every_number_is_read_as_it_was(mu, step, beta, eps, eps_in_sqrt):
    for value in (mr.HeavyBall(mu, step), mr.Adam(mu, step, beta, eps, eps_in_sqrt)):
        assert repr(parse(repr(value), EVERY)) == repr(value)


@for_all
@given(st.integers(2), st.integers(1), st.integers(1))
def test_every_size_is_read_as_it_was(length, samples, evaluation):
    task = Adding(length, samples, evaluation)
    assert parse(repr(task), EVERY) == task


@for_all
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_bias_is_read_as_it_was(bias):
    assert repr(parse(repr(init.Paper(bias)), EVERY)) == repr(init.Paper(bias))


@for_all
@given(st.text())
def test_any_text_is_refused_or_read(text):
    """There is no third."""
    try:
        found = parse(text, EVERY, none=True)
    except ValueError as error:
        assert repr(text) in str(error)  # noqa: PT017  (both ends are right)
    else:
        assert found is None or type(found) in EVERY


def test_positions_and_keywords_mix():
    assert parse("Adam(0.5, 2, eps=1e-3)", EVERY) == mr.Adam(0.5, 2, eps=1e-3)


def test_none_is_read_only_where_it_is_allowed():
    assert parse("None", MOMENTA, none=True) is None
    assert parse(" None ", MOMENTA, none=True) is None
    with pytest.raises(ValueError, match="'None'") as refusal:
        parse("None", MOMENTA)
    assert ", None," not in str(refusal.value)
    with pytest.raises(ValueError, match=r"None, got 'None\(\)'"):
        parse("None()", MOMENTA, none=True)


@pytest.mark.parametrize("text", CODE, ids=ascii)
def test_nothing_is_run(text):
    """os.abort would end the tests; all of these are refused, with what came and what could have come."""
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  (the text is looked for below)
        parse(text, MOMENTA, none=True)
    assert type(refusal.value) is ValueError
    assert repr(text) in str(refusal.value)
    assert "HeavyBall(mu=0.6, step=1.0)" in str(refusal.value)


@pytest.mark.parametrize("count", [50, 199, 500, 990, 3000, 100_000])
@pytest.mark.parametrize(
    ("before", "repeated", "after"),
    [
        ("HeavyBall(mu=", "-", "1)"),
        ("HeavyBall(mu=", "not ", "1)"),
        ("HeavyBall(mu=", "1 + ", "1)"),
        ("HeavyBall(mu=a", ".a", ")"),
        ("HeavyBall(mu=a", "[0]", ")"),
        ("HeavyBall(mu=", "[", ")"),
        ("HeavyBall(mu=", "{1: ", ")"),
        ("HeavyBall(mu=", "9", ")"),
        ("HeavyBall(mu=0x", "f", ")"),
        ("HeavyBall", "()", ""),
        ("", "(", ""),
        ("", "HeavyBall(", ""),
        ("", "lambda: ", "0"),
    ],
)
def test_however_deep(before, repeated, after, count):
    text = before + repeated * count + after
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  (the text is looked for below)
        parse(text, MOMENTA)
    assert type(refusal.value) is ValueError
    assert repr(text) in str(refusal.value)


def test_deep_but_closed_lists_are_refused():
    text = f"HeavyBall(mu={'[' * 150}{']' * 150})"
    with pytest.raises(ValueError, match="mu should be a number"):
        parse(text, MOMENTA)


def test_a_description_refuses_in_its_own_words():
    with pytest.raises(ValueError, match=r"mu should be a number in \[0, 1\], got 2") as refusal:
        parse("HeavyBall(mu=2)", MOMENTA)
    assert refusal.value.__cause__ is None
    with pytest.raises(ValueError, match="length should be an integer of at least 2, got 1"):
        parse("Adding(length=1)", TASKS)
    with pytest.raises(ValueError, match=r"length should be an integer of at least 2, got 2\.5"):
        parse("Adding(length=2.5)", TASKS)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("HevyBall(mu=0.9)", "HeavyBall"),
        ("heavyball", "HeavyBall"),
        ("Nestorov", "Nesterov"),
        ("ADAM()", "Adam"),
        ("HeavyBall(steps=0.9)", "step"),
        ("Adam(bete=0.9)", "beta"),
        ("Adam(eps_in_sqr=True)", "eps_in_sqrt"),
    ],
)
def test_the_nearest_is_offered(text, meant):
    with pytest.raises(ValueError, match=rf"did you mean .*'{meant}'") as refusal:
        parse(text, MOMENTA)
    assert repr(text) in str(refusal.value)


def test_nearest():
    assert nearest("zzz", ["Adam", "Nesterov"]) == ""
    assert nearest("", ["Adam"]) == ""
    assert nearest("adan", {"Adam": 1}) == "; did you mean 'Adam'?"
    assert nearest("batch", ["batch_size"]) == "; did you mean 'batch_size'?"
    # The best first, and three at most.
    many = nearest("abcde", ["abcx", "abcd", "abcy", "abcz", "zzzz"])
    assert many.startswith("; did you mean 'abcd' or 'abc")
    assert many.count("'") == 6
    # But for its case it is one: no other is meant.
    assert nearest("ABCD", ["abcx", "abcd"]) == "; did you mean 'abcd'?"
