"""Every module can be the first that a process imports, and a pickle finds all that it names.

A fresh process needs seconds to import torch. So a server imports torch, and nothing of ours, and forks a
child for each case; a few cases run in processes that are really fresh.
"""

import importlib
import inspect
import json
import os
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from torch import nn

import momentumrnn as mr
from momentumrnn import cells, init

ROOT = Path(mr.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
)
EXTRAS = {"jinja2", "matplotlib", "plotly", "pooch", "rich", "safetensors", "scipy", "tyro"}
# Reads {case: Python source} as JSON, and writes {case: what it printed, or the last line of its error}.
SERVER = """
import gc, json, os, sys, traceback
import torch

gc.disable()  # a collection in a child would copy all memory of the server

def child(source, pipe):
    try:
        words = {}
        exec(source, words)
        answer = str(words.get("answer", ""))
    except BaseException as error:
        answer = "failed: " + traceback.format_exception_only(error)[-1].strip()
    os.write(pipe, answer.encode())
    os._exit(0)

answers, waiting = {}, list(json.load(sys.stdin).items())
while waiting:
    batch, waiting = waiting[:2], waiting[2:]
    for case, source, (read, write) in [(*item, os.pipe()) for item in batch]:
        if os.fork() == 0:
            child(source, write)
        os.close(write)
        answers[case] = read
    for case, _ in batch:
        with os.fdopen(answers[case]) as file:
            answers[case] = file.read()
        os.wait()
json.dump(answers, sys.stdout)
"""
# `momentumrnn` loads its names at once where torch is imported already, and else when one is used.
BEGINNINGS = {
    "torch-first": "",
    "torch-later": (
        "import sys\ntorch = sys.modules.pop('torch')\nimport momentumrnn\nsys.modules['torch'] = torch\n"
    ),
}
begun = pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS)
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system can't fork")


def fork_each(sources: dict[str, str]) -> dict[str, str]:
    """What each source says, run in a process of its own that has imported torch."""
    done = python(SERVER, json.dumps(sources))
    return json.loads(done)


def python(source: str, given: str = "") -> str:
    """What a source prints, run in a fresh process."""
    command = [sys.executable, "-W", "error::DeprecationWarning:momentumrnn", "-c", source]
    done = subprocess.run(command, input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@forks
@begun
def test_every_module_can_be_imported_first(beginning):
    """Nothing but an optional library that is not installed may stand in the way."""
    answers = fork_each({name: f"{beginning}import {name}" for name in MODULES})
    absent = tuple(f"No module named {name!r}" for name in EXTRAS if not find_spec(name))
    failed = {name: answer for name, answer in answers.items() if answer and not answer.endswith(absent)}
    assert failed == {}
    assert len(answers) > 40


@pytest.mark.parametrize("name", ["layers", "state", "backends.cuda"])
def test_a_module_is_imported_first_in_a_fresh_process(name):
    python(f"import momentumrnn.{name}")


def test_the_package_alone_does_not_import_torch():
    """So that help and refusals of the command line come at once."""
    for name in ("momentumrnn", "momentumrnn.__main__"):
        assert python(f"import sys, {name}; print(*sorted({{'torch', 'rich'}} & set(sys.modules)))") == ""


def test_the_package_has_the_names_of_its_api():
    from momentumrnn import api

    assert set(api.__all__) <= set(dir(mr))
    assert all(getattr(mr, name) is getattr(api, name) for name in api.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        mr.nonsense  # noqa: B018
    assert not hasattr(mr, "nonsense.more")


def test_what_an_import_brings(record_property):
    """Nothing but torch, numpy and the standard library; the time beside torch's is reported, not judged."""
    seconds, *new = python(
        "import sys, time; import torch; before = set(sys.modules); t = time.perf_counter();"
        "import momentumrnn; momentumrnn.LSTM; t = time.perf_counter() - t;"
        "new = {m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names);"
        "print(t, *sorted(new))"
    ).split()
    print(f"import momentumrnn after torch: {float(seconds):.3f} s")
    record_property("import_seconds", seconds)
    assert new == ["momentumrnn"]


# Pickles


def examples() -> dict[str, object]:
    """Something of every public name that can be pickled, by that name and what it is of it."""
    made: dict[str, object] = {}
    for name in mr.api.__all__:
        value = getattr(mr, name)
        if inspect.ismodule(value):  # it can't be pickled; its classes can
            public = [kind for kind in vars(value).values() if inspect.isclass(kind)]
            kinds = [kind for kind in public if kind.__module__ == value.__name__]
            made |= {f"{name}.{kind.__name__}": kind for kind in kinds}
            concrete = [kind for kind in kinds if kind not in (cells.Cell, cells.Weights, init.Init)]
            made |= {f"{name}.{kind.__name__}()": kind() for kind in concrete}
            continue
        made[name] = value
        if value in (mr.Recurrent, mr.RecurrentCell):
            made[f"{name}()"] = value(cells.Elman("modrelu"), 3, 5, momentum=mr.Adam())
        elif value.__module__.rpartition(".")[2] in ("layers", "step_cells", "paper_names"):
            made[f"{name}()"] = value(3, 5)
        elif inspect.isclass(value) and issubclass(value, mr.Momentum) and value is not mr.Momentum:
            made[f"{name}()"] = value()
    learned = mr.HeavyBall(mu=nn.Parameter(torch.tensor(0.5)))
    made["learned"] = mr.LSTM(3, 5, num_layers=2, bidirectional=True, momentum=learned, init=init.Paper())
    made["State()"] = mr.MomentumLSTM(3, 5).initial_state(2)
    made["model"] = nn.Sequential(mr.SRLSTM(3, 5), nn.ReLU())
    return made


def told(value: object) -> str:
    """What two equal objects have in common, in this process or another."""
    if isinstance(value, nn.Module):
        return f"{value}, {[p.sum().item() for p in value.parameters()]}"
    return value.__qualname__ if inspect.isclass(value) or inspect.isfunction(value) else repr(value)


TELL = "\n".join(["import inspect", "from torch import nn", inspect.getsource(told)])


def load(path: Path) -> str:
    return f"__import__('pickle').load(open({str(path)!r}, 'rb'))"


def test_the_examples_have_all_public_names():
    made = {name.split(".")[0].removesuffix("()") for name in examples()}
    assert set(mr.api.__all__) <= made


@forks
def test_every_pickle_finds_what_it_names(tmp_path):
    """Each in a process that has imported the package, and none of its modules."""
    made, sources = examples(), {}
    for i, (name, value) in enumerate(made.items()):
        path = tmp_path / str(i)
        path.write_bytes(pickle.dumps(value))
        sources[name] = f"{BEGINNINGS['torch-later']}{TELL}\nanswer = told({load(path)})"
    assert fork_each(sources) == {name: told(value) for name, value in made.items()}


def test_a_fresh_process_loads_every_pickle(tmp_path):
    """All in one process that has imported nothing: not ours, and not torch."""
    made, path = examples(), tmp_path / "pickled"
    path.write_bytes(pickle.dumps(list(made.values())))
    told_there = python(
        f"import json\nvalues = {load(path)}\n{TELL}\nprint(json.dumps(list(map(told, values))))"
    )
    assert json.loads(told_there) == list(map(told, made.values()))


def test_torch_loads_a_whole_model(tmp_path):
    model, path = nn.Sequential(mr.NAGGRU(3, 5), nn.Linear(5, 2)), tmp_path / "saved"
    torch.save(model, path)
    loaded = f"print(torch.load({str(path)!r}, weights_only=False))"
    assert python(f"import momentumrnn, torch; {loaded}") == str(model)


def test_torch_loads_a_state_without_running_code(tmp_path):
    state = mr.MomentumLSTM(3, 5).initial_state(2)
    torch.save({"state": state}, tmp_path / "state")
    loaded = f"print(torch.load({str(tmp_path / 'state')!r}, weights_only=True)['state'])"
    assert python(f"import torch, momentumrnn; {loaded}") == str(state)


def test_orthogonal_layers_are_saved_as_weights(tmp_path):
    """Torch refuses to pickle a module with parametrisations, ours or its own; their weights are saved."""
    rnn = mr.orthogonal(mr.RNN(3, 5, bias="hh"))
    with pytest.raises(RuntimeError, match="Serialization of parametrized modules is only supported through"):
        pickle.dumps(rnn)
    torch.save(rnn.state_dict(), tmp_path / "weights")
    other = mr.orthogonal(mr.RNN(3, 5, bias="hh"))
    other.load_state_dict(torch.load(tmp_path / "weights", weights_only=True))
    assert torch.equal(other.weight_hh_l0, rnn.weight_hh_l0)


def test_a_layer_is_sent_to_a_spawned_process():
    layer = mr.AdamLSTM(3, 5, num_layers=2)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert pool.submit(repr, layer).result() == repr(layer)
        assert pool.submit(mr.count_parameters, layer).result() == mr.count_parameters(layer)


# The old names of modules

OLD = {
    "modules": ("recurrent_layer", "layers", "step_cells", "state"),
    "names": ("paper_names",),
    "spelling": ("repr_parser",),
}


def as_before(value: object) -> bytes:
    """A pickle of a version whose modules had their old names."""
    data = pickle.dumps(value, protocol=2)  # it has the names as lines
    for old, homes in OLD.items():
        for home in homes:
            data = data.replace(f"cmomentumrnn.{home}\n".encode(), f"cmomentumrnn.{old}\n".encode())
    return data


@pytest.mark.parametrize(
    ("value", "old"),
    [
        (mr.LSTM(3, 5), "modules.LSTM"),
        (mr.GRUCell(3, 5), "modules.GRUCell"),
        (mr.MomentumRNN(3, 5).initial_state(2), "modules.State"),
        (mr.Recurrent, "modules.Recurrent"),
        (mr.MomentumLSTM, "names.MomentumLSTM"),
        (mr.SRGRUCell, "names.SRGRUCell"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_old_pickles_are_read(value, old):
    with pytest.warns(DeprecationWarning, match=f"momentumrnn.{old} is now momentumrnn."):
        loaded = pickle.loads(as_before(value))
    assert told(loaded) == told(value)


def test_old_imports_still_work():
    with pytest.warns(DeprecationWarning, match="spelling.parse is now momentumrnn.repr_parser.parse"):
        from momentumrnn.spelling import parse
    assert parse is mr.repr_parser.parse
    with pytest.warns(DeprecationWarning, match="names.NAGLSTM is now momentumrnn.paper_names.NAGLSTM"):
        from momentumrnn.names import NAGLSTM
    assert NAGLSTM is mr.NAGLSTM
    for old in OLD:
        here = {}
        with pytest.warns(DeprecationWarning, match=f"momentumrnn.{old}.* is now"):
            exec(f"from momentumrnn.{old} import *", here)
        assert {name for name in here if not name.startswith("__")} == set(dir(getattr(mr, old)))
    assert len(dir(mr.names)) == 30
    for name in OLD:
        with pytest.raises(AttributeError, match=f"module 'momentumrnn.{name}' has no attribute 'nonsense'"):
            getattr(mr, name).nonsense  # noqa: B018


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("experiments.trainer.Watcher", "experiments.engine.watcher.Watcher"),
        ("experiments.trainer.Run", "experiments.engine.run.Run"),
        ("experiments.trainer.train", "experiments.engine.train.train"),
        ("experiments.trainer.Interrupted", "experiments.engine.signals.Interrupted"),
        ("experiments.folders.RunError", "experiments.runs.store.RunError"),
        ("experiments.report.report", "report.report"),
        ("experiments.report.ReportError", "report.ReportError"),
    ],
)
def test_old_homes_of_the_experiments_still_work(old, new):
    pytest.importorskip("safetensors", reason="experiments need safetensors, of the extra momentumrnn[all]")
    old_home, _, name = f"momentumrnn.{old}".rpartition(".")
    home = importlib.import_module(f"momentumrnn.{new}".rpartition(".")[0])
    with pytest.warns(DeprecationWarning, match=f"{old} is now momentumrnn.{new}$"):
        value = getattr(importlib.import_module(old_home), name)
    assert value is getattr(home, name)
    assert name in dir(importlib.import_module(old_home))
    with pytest.raises(AttributeError, match=f"module '{old_home}' has no attribute 'nonsense'"):
        importlib.import_module(old_home).nonsense  # noqa: B018
