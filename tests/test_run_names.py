"""What a run is called beside its id: by the name of a recipe if and only if it is the recipe's run."""

from dataclasses import dataclass, replace

import pytest

import momentumrnn as mr
from momentumrnn.__main__ import Run
from momentumrnn.cli import run
from momentumrnn.experiments import Adding, configure
from momentumrnn.experiments.paper.recipes import RECIPES, own_name, recipe, variants
from momentumrnn.experiments.settings import change, variant_name, with_floats, without_idle_settings
from momentumrnn.init import Paper

ADAM = "figure4/LSTM/Adding/128"
RMSPROP = "table1/MomentumLSTM/MNIST/128"
ORTHOGONAL = "table4/DTRIV/PMNIST/170"


def request(name, *settings, **options):
    return run.read_request(Run(recipe=name, settings=(settings,) if settings else (), **options))


@dataclass(frozen=True)
class Loose(mr.Momentum):
    """A user's momentum with an integer as the default of a float."""

    rate: float = 1
    scale: float = 0
    count: int = 2
    flag: bool = True
    either: int | float = 1.5

    def decay(self, k):
        return self.rate


# Numbers that are typed


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (ADAM, {"init": "Paper(forget_bias=1)"}),
        (ADAM, {"init": "Paper(1)"}),
        (ADAM, {"clip": -0.0}),
        (ADAM, {"settings": ["clip=-0.0"]}),
        (ADAM, {"settings": ["init.forget_bias=1"]}),
        (RMSPROP, {"momentum": "HeavyBall(mu=0.6, step=0.6)"}),
        (f"{RMSPROP}/same-step", {}),
    ],
)
def test_equal_numbers_are_the_recipes_run_under_its_name(name, options):
    options = dict(options)
    asked = request(name, *options.pop("settings", ()), **options)
    assert asked.config.id == recipe(name).config.id
    assert repr(asked.config) == repr(recipe(name).config)
    assert asked.name == name
    assert asked.same_run_differences == []


@pytest.mark.parametrize(
    ("typed", "same"),
    [
        ("HeavyBall(mu=0)", "HeavyBall(mu=0.0)"),
        ("HeavyBall(mu=-0.0, step=2)", "HeavyBall(mu=0.0, step=2.0)"),
        ("Adam(beta=0, eps=1)", "Adam(beta=0.0, eps=1.0)"),
    ],
)
def test_options_and_settings_give_numbers_alike(typed, same):
    """As an option or as a setting, a number of that value has one id."""
    runs = [
        request(ADAM, momentum=typed),
        request(ADAM, momentum=same),
        request(ADAM, f"momentum={typed}"),
        request(ADAM, f"momentum={same}"),
    ]
    assert len({asked.config.id for asked in runs}) == 1
    assert len({repr(asked.config) for asked in runs}) == 1
    assert len({asked.name for asked in runs}) == 1


def test_a_number_in_a_task_stays_an_integer():
    config = run.read_request(Run(task="Adding(length=50)", lr=-0.0)).config
    assert repr(config) == repr(configure(Adding(length=50), lr=0.0))


def test_what_is_no_float_stays():
    value = Loose(rate=1, scale=-0.0, count=3, flag=False, either=4)
    assert repr(with_floats(value)) == "Loose(rate=1, scale=0.0, count=3, flag=False, either=4)"
    assert repr(with_floats(Loose(rate=2))) == "Loose(rate=2.0, scale=0, count=2, flag=True, either=1.5)"
    # An integer that no float equals is another number as a float.
    assert with_floats(mr.HeavyBall(step=2**53 + 1)).step == 2**53 + 1
    for other in (None, True, 3, "tf32", (1, -0.0)):
        assert with_floats(other) is other


def test_the_ids_of_python_stay():
    """There a number is as it was written, so an older run is still the same run."""
    base = recipe(ADAM).config
    assert replace(base, init=Paper(forget_bias=1)).id != base.id
    assert replace(base, clip=-0.0).id != base.id


@pytest.mark.parametrize("base", RECIPES)
def test_every_recipe_is_spelt_as_the_command_line_spells_it(base):
    for name in variants(base):
        config = recipe(name).config
        typed = {field: with_floats(value) for field, value in config.descriptions.items()}
        assert repr(replace(config, **typed)) == repr(config)


# The name of a recipe


@pytest.mark.parametrize(
    ("name", "settings", "unnamed"),
    [
        (ADAM, ["alpha=0.5"], ["alpha=0.5"]),
        (
            ADAM,
            ["alpha=0.5", "orthogonal_lr=0.5", "epochs=3"],
            ["alpha=0.5", "orthogonal_lr=0.5", "epochs=3"],
        ),
        (RMSPROP, ["orthogonal_lr=0.5"], ["orthogonal_lr=0.5"]),
    ],
)
def test_idle_settings_are_not_in_the_name(name, settings, unnamed):
    asked = request(name, *settings)
    assert asked.config.id == recipe(name).config.id
    assert asked.name == name
    assert asked.same_run_differences == unnamed
    with_another = request(name, *settings, "lr=0.25")
    assert with_another.name == f"{name} with lr=0.25"
    assert with_another.same_run_differences == unnamed


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        (RMSPROP, ["alpha=0.5"], "alpha=0.5"),
        (RMSPROP, ["alpha=0.5", "optimizer=adam"], "optimizer='adam'"),
        (ADAM, ["alpha=0.5", "optimizer=rmsprop"], "optimizer='rmsprop', alpha=0.5"),
        (ORTHOGONAL, ["orthogonal_lr=0.5"], "orthogonal_lr=0.5"),
        (
            ORTHOGONAL,
            ["orthogonal=False", "orthogonal_lr=0.5", "rebase_every=0"],
            "orthogonal=False, rebase_every=0",
        ),
    ],
)
def test_a_setting_that_is_not_idle_is_in_the_name(name, settings, words):
    asked = request(name, *settings)
    assert asked.config.id != recipe(name).config.id
    assert asked.name == f"{name} with {words}"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"init": Paper(forget_bias=1)}, "init=Paper(forget_bias=1, identity='first')"),
        ({"clip": -0.0}, "clip=-0.0"),
        (
            {"lr": 0.5, "init": Paper(forget_bias=1)},
            "lr=0.5, init=Paper(forget_bias=1, identity='first')",
        ),
    ],
)
def test_an_equal_number_that_is_spelt_differently_is_in_the_name(changed, words):
    """By its id it is another run."""
    base = recipe(ADAM)
    config = replace(base.config, **changed)
    assert config.id != base.config.id
    assert run.Request(config, base).name == f"{ADAM} with {words}"


def test_the_name_is_the_recipes_if_and_only_if_the_id_is():
    names = [ADAM, RMSPROP, ORTHOGONAL]
    settings = [
        "alpha=0.5",
        "lr=0.5",
        "epochs=2",
        "log_every=3",
        "clip=2",
        "orthogonal_lr=0.25",
        "patience=3",
    ]
    for name in names:
        base = recipe(name).config
        configs = [change(base, [one, other]) for one in settings for other in settings if one != other]
        configs += [replace(base, clip=-0.0), replace(base, orthogonal_lr=0.5, epochs=1), base]
        assert {config.id == base.id for config in configs} == {True, False}
        for config in configs:
            assert (variant_name(name, config, base) == name) == (config.id == base.id)
            assert without_idle_settings(config, base).id == config.id


def test_runs_of_one_id_have_one_name():
    base = recipe(ADAM)
    asked = [request(ADAM, "lr=0.5", *more) for more in ([], ["alpha=0.5"], ["epochs=2"])]
    assert len({one.config.id for one in asked}) == 1
    assert {one.name for one in asked} == {f"{base.name} with lr=0.5"}


# Names of records


@pytest.mark.parametrize("variant", ["", "/as-released/same-gain"])
def test_a_recipes_name_is_shown_beside_its_id_alone(variant):
    """Whatever spaces are in it."""
    name = f"table11/MomentumLSTM/PMNIST/128{variant}"
    config = recipe(name).config
    assert own_name(f" {name}\n", config.id) == name
    assert own_name(name, replace(config, lr=0.5).id) == ""


def test_a_recipes_run_has_no_other_settings_in_its_name():
    """An older version named settings that are idle."""
    base = recipe(ADAM).config
    assert own_name(f"{ADAM} with alpha=0.5", base.id) == ADAM
    other = f"{ADAM} with lr=0.5"
    assert own_name(other, replace(base, lr=0.5).id) == other


@pytest.mark.parametrize("name", ["", " \n"])
def test_no_name_is_none(name):
    assert own_name(name, "any-id") == ""


@pytest.mark.parametrize("name", ["a try", "table1/none of these", "a try with lr=1"])
def test_a_name_of_ones_own_is_shown(name):
    assert own_name(name, "any-id") == name


def test_one_setting_may_be_given_as_a_text():
    assert change(configure(Adding()), "lr=0.5") == configure(Adding(), lr=0.5)
