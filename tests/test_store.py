"""Files of runs: written whole or not at all; what is damaged or foreign is refused."""

import errno
import io
import json
import os
from dataclasses import replace

import pytest
import torch
from run_folders import contents

from momentumrnn.experiments import Adding, configure, train
from momentumrnn.experiments.config import SCHEMA
from momentumrnn.experiments.runs.checksums import RunningHash, seal_json
from momentumrnn.experiments.runs.store import FORMAT, Folder, RunError, read_json

CONFIG = configure(Adding(length=5, samples=30, evaluation=10), hidden_size=3, batch_size=10, epochs=2)
STATE = {"step": 3, "losses": [0.5, 0.25], "best": None, "state": {"weights": {"w": torch.arange(3.0)}}}


def assert_named(path, error):
    """A refusal names the folder of a run, and the file in it."""
    assert str(path.parent) in str(error)
    assert path.name in str(error)


@pytest.fixture
def folder(tmp_path):
    """One that is there."""
    folder = Folder(tmp_path / "runs", CONFIG, 7)
    folder.path.mkdir(parents=True)
    return folder


def test_the_path(tmp_path):
    folder = Folder(tmp_path, CONFIG, 7)
    assert folder.path == tmp_path / f"{CONFIG.id}-s7"
    assert not folder.path.exists()


def test_what_is_written_is_read(folder):
    folder.write("a", b"1\0")
    assert (folder.path / "a").read_bytes() == b"1\0"
    folder.write_json("b.json", {"x": [1, 0.1, None, "ä"]})
    assert folder.read("b.json") == {"x": [1, 0.1, None, "ä"]}
    assert folder.read("none.json") is None
    folder.save(STATE)
    state = folder.load()
    assert torch.equal(state["state"]["weights"]["w"], torch.arange(3.0))
    assert {k: state[k] for k in ("step", "losses", "best")} == {
        "step": 3,
        "losses": [0.5, 0.25],
        "best": None,
    }
    assert sorted(p.name for p in folder.path.iterdir()) == ["a", "b.json", "resume.pt"]


def test_nan_is_no_json(folder):
    folder.write_json("a.json", {"x": 1})
    with pytest.raises(ValueError, match="JSON"):
        folder.write_json("a.json", {"x": float("nan")})
    assert folder.read("a.json") == {"x": 1}


def fail(error):
    def function(*args, **kwargs):
        raise error

    return function


ERRORS = {
    "full": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "quota": OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
    "broken": OSError(errno.EIO, os.strerror(errno.EIO)),
}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_write_that_fails_leaves_what_was_there(folder, monkeypatch, function, error):
    folder.save(STATE)
    folder.write_json("config.json", {"x": 1})
    before = contents(folder.path)
    monkeypatch.setattr(os, function, fail(error))
    for write, name in (
        (lambda: folder.save({**STATE, "step": 4}), "resume.pt"),
        (lambda: folder.write_json("config.json", {"x": 2}), "config.json"),
        (lambda: folder.write("new", b"1"), "new"),
    ):
        with pytest.raises(RunError, match=error.strerror) as refusal:
            write()
        assert str(folder.path / name) in str(refusal.value)
        assert contents(folder.path) == before
    assert folder.load()["step"] == 3


def test_a_write_that_is_interrupted_leaves_what_was_there(folder, monkeypatch):
    folder.write("a", b"1")
    for error in (KeyboardInterrupt(), MemoryError()):
        monkeypatch.setattr(os, "fsync", fail(error))
        with pytest.raises(type(error)):
            folder.write("a", b"2")
        assert contents(folder.path) == {"a": b"1"}


def test_a_partial_file_of_a_killed_process_does_no_harm(folder):
    (folder.path / ".resume.pt.partial").write_bytes(b"half of")
    assert folder.load() is None
    folder.save(STATE)
    assert folder.load()["step"] == 3
    assert sorted(contents(folder.path)) == ["resume.pt"]


def test_the_new_is_on_the_disk_before_the_old_is_gone(folder, monkeypatch):
    calls, sync, move = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("fsync"), sync(fd))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("replace"), move(a, b))[1])
    folder.write("a", b"1")
    assert calls[:2] == ["fsync", "replace"]
    calls.clear()
    folder.append([{"step": 1}])
    assert "fsync" in calls


def test_metrics_are_cut_to_what_a_checkpoint_knows(folder):
    empty = RunningHash().record
    assert folder.rewind(empty) == []
    first = folder.append([{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}])
    path = folder.path / "metrics.jsonl"
    assert first["size"] == path.stat().st_size
    before = path.read_bytes()
    assert folder.append([]) == first
    second = folder.append([{"step": 3, "loss": 0.125}])
    assert second["size"] == path.stat().st_size > first["size"]
    # As a process leaves it that was killed while it wrote.
    with open(path, "ab") as file:
        file.write(b'{"step": 4, "lo')
    assert folder.rewind(second) == [{"step": s, "loss": 2.0**-s} for s in (1, 2, 3)]
    assert path.stat().st_size == second["size"]
    assert folder.metrics.record == second
    # Checkpoints of version 0.2.0 know the size alone.
    assert folder.rewind({"size": first["size"]}) == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]
    assert path.read_bytes() == before
    assert folder.metrics.record == first
    stamp = path.stat().st_mtime_ns
    assert len(folder.rewind(first)) == 2
    assert path.stat().st_mtime_ns == stamp
    assert folder.append([{"step": 3, "loss": 0.125}]) == second
    assert folder.rewind(empty) == []
    assert path.read_bytes() == b""


def test_metrics_that_a_checkpoint_does_not_know_are_refused(folder):
    """And stay as they are: neither cut nor added to."""
    record = folder.append([{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}])
    path = folder.path / "metrics.jsonl"
    whole = path.read_bytes()
    for content in (whole.replace(b"0.25", b"0.26"), whole[:-1], b" " + whole, b""):
        path.write_bytes(content)
        with pytest.raises(RunError) as refusal:
            folder.rewind(record)
        assert str(path) in str(refusal.value)
        assert path.read_bytes() == content


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"nonsense \n", b"3\n4\n5\n6\n", b"null\n    \n", b"\xff\xfe\xff\xfe\n\n\n", b"[[[[[[[[\n"],
    ids=ascii,
)
def test_metrics_that_are_damaged_are_refused(folder, content):
    (folder.path / "metrics.jsonl").write_bytes(content)
    with pytest.raises(RunError) as refusal:
        folder.rewind({"size": 8})
    assert str(folder.path / "metrics.jsonl") in str(refusal.value)


def test_metrics_that_are_no_file_are_refused(folder):
    (folder.path / "metrics.jsonl").mkdir()
    with pytest.raises(RunError, match=r"metrics\.jsonl"):
        folder.rewind({"size": 0})
    with pytest.raises(RunError, match=r"metrics\.jsonl"):
        folder.append([{"step": 1}])


def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


OWN = {"format": FORMAT, "id": CONFIG.id, "seed": 7, "size": 0}
FOREIGN = {
    "empty": b"",
    "text": b"hello\n",
    "zeros": bytes(4096),
    "pickle": b"cos\nsystem\n(S'touch was-here'\ntR.",
    "zip": b"PK\x05\x06" + bytes(18),
    "half": saved({**OWN, **STATE})[:-100],
    "third": saved({**OWN, **STATE})[:300],
    "list": saved([1, 2]),
    "tensor": saved(torch.ones(3)),
    "weights": saved({"w": torch.ones(3)}),
    "no format": saved({**OWN, "format": None}),
    "object": saved({**OWN, "config": CONFIG}),
    "id": saved({**OWN, "id": replace(CONFIG, lr=0.5).id}),
    "seed": saved({**OWN, "seed": 8}),
    "no id": saved({"format": FORMAT}),
    "future": saved({**OWN, "format": FORMAT + 1}),
    "no size": saved({**OWN, **STATE, "size": None}),
    "a size below 0": saved({**OWN, **STATE, "size": -1}),
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_checkpoint_is_refused(folder, content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = folder.path / "resume.pt"
    path.write_bytes(content)
    with pytest.raises(RunError) as refusal:
        folder.load()
    assert str(path) in str(refusal.value)
    assert path.read_bytes() == content
    assert not (tmp_path / "was-here").exists()


def test_what_a_refusal_says(folder):
    path = folder.path / "resume.pt"
    for name, expected in {
        "future": f"format {FORMAT + 1}.*update",
        "seed": "'seed': 8",
        "id": replace(CONFIG, lr=0.5).id,
        "half": "damaged",
    }.items():
        path.write_bytes(FOREIGN[name])
        with pytest.raises(RunError, match=expected):
            folder.load()
    path.unlink()
    path.mkdir()
    with pytest.raises(RunError, match="can't be read"):
        folder.load()


@pytest.mark.parametrize("name", FOREIGN)
def test_training_over_a_foreign_checkpoint_is_refused(tmp_path, name):
    """And it leaves all as it was, for somebody to look at."""
    folder = Folder(tmp_path, CONFIG, 7)
    folder.path.mkdir()
    (folder.path / "resume.pt").write_bytes(FOREIGN[name])
    (folder.path / "metrics.jsonl").write_bytes(b'{"step": 1}\n')
    before = contents(tmp_path)
    with pytest.raises(RunError, match=r"resume\.pt"):
        train(CONFIG, [7], root=tmp_path, device="cpu")
    assert {k: v for k, v in contents(tmp_path).items() if not k.endswith("lock")} == before


@pytest.mark.parametrize("lost", ["step", "state", "losses", "size", "sessions", "best"])
def test_a_checkpoint_that_lacks_something_is_refused(tmp_path, lost):
    train(CONFIG, root=tmp_path, device="cpu")
    folder = Folder(tmp_path, CONFIG, 0)
    state = folder.load()
    del state[lost]
    (folder.path / "resume.pt").write_bytes(saved(state))
    with pytest.raises(RunError, match=r"resume\.pt"):
        train(CONFIG, root=tmp_path, device="cpu")


@pytest.mark.parametrize("inner", ["weights", "optimizer"])
def test_a_checkpoint_of_another_network_is_refused(tmp_path, inner):
    train(CONFIG, root=tmp_path, device="cpu")
    folder = Folder(tmp_path, CONFIG, 0)
    state = folder.load()
    tensors = state["state"]["weights"] if inner == "weights" else state["state"]["optimizer"][0]
    name = next(name for name, tensor in tensors.items() if tensor.dim())
    tensors[name] = torch.ones(2, 99)
    (folder.path / "resume.pt").write_bytes(saved(state))
    with pytest.raises(RunError, match=r"resume\.pt"):
        train(replace(CONFIG, epochs=3), root=tmp_path, device="cpu")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"nonsense", b"[" * 100_000], ids=lambda c: ascii(c[:9])
)
@pytest.mark.parametrize("name", ["config.json", "result.json"])
def test_damaged_json_is_refused(tmp_path, name, content):
    train(CONFIG, root=tmp_path, device="cpu")
    path = Folder(tmp_path, CONFIG, 0).path / name
    path.write_bytes(content)
    with pytest.raises(RunError) as refusal:
        train(replace(CONFIG, epochs=3), root=tmp_path, device="cpu")
    assert_named(path, refusal.value)
    assert path.read_bytes() == content
    with pytest.raises(RunError, match="JSON"):
        read_json(path)


@pytest.mark.parametrize("content", [b"{}", b"[]", b"3", b'"done"', b"null"], ids=ascii)
def test_a_result_of_somebody_else_is_no_crash(tmp_path, content):
    """Either refused in words, or written anew."""
    first = train(CONFIG, root=tmp_path, device="cpu")
    path = Folder(tmp_path, CONFIG, 0).path / "result.json"
    path.write_bytes(content)
    try:
        again = train(CONFIG, root=tmp_path, device="cpu")
    except RunError as error:
        assert_named(path, error)
    else:
        assert again[0]["selected"] == first[0]["selected"]


DATA = {"test": "c0ffee"}


def test_what_a_config_says(folder):
    """Written once, and again where more epochs are asked for; that of a run that is over stays."""
    folder.begin(DATA, "a name")
    record = {
        "schema": SCHEMA,
        "begun_with_schema": SCHEMA,
        "name": "a name",
        "config": CONFIG.to_json(),
        "seed": 7,
        "sources": {},
        "data": DATA,
    }
    assert folder.read("config.json") == record
    stamp = (folder.path / "config.json").stat().st_mtime_ns
    folder.begin(DATA)
    assert (folder.path / "config.json").stat().st_mtime_ns == stamp
    more = Folder(folder.path.parent, replace(CONFIG, epochs=9), 7)
    assert more.path == folder.path
    more.begin(DATA, "another name", over=True)
    assert folder.read("config.json") == record
    more.begin(DATA, "another name")
    assert folder.read("config.json") == {**record, "config": more.config.to_json()}


def test_the_config_of_an_older_version_is_rewritten(folder):
    old = {"config": {k: v for k, v in CONFIG.to_json().items() if k != "patience"}, "seed": 7}
    folder.write("config.json", json.dumps(old).encode())
    folder.begin(DATA, over=True)
    assert folder.read("config.json") == old
    folder.begin(DATA)
    assert folder.read("config.json")["schema"] == SCHEMA
    assert folder.read("config.json")["data"] == DATA
    assert folder.read("config.json")["begun_with_schema"] == 1
    more = Folder(folder.path.parent, replace(CONFIG, epochs=9), 7)
    more.begin(DATA)
    assert folder.read("config.json")["config"]["epochs"] == 9
    assert folder.read("config.json")["begun_with_schema"] == 1
    assert b"checksum" in (folder.path / "config.json").read_bytes()


def test_which_version_began_a_run_of_which_no_config_is_left(folder):
    """Nobody knows, so it may have been the first one; a file without content says nothing."""
    for name in ("metrics.jsonl", "result.json", "resume.pt"):
        for content, begun in ((b"", SCHEMA), (b"{}", 1)):
            (folder.path / name).write_bytes(content)
            folder.begin(DATA)
            assert folder.read("config.json")["begun_with_schema"] == begun, name
            (folder.path / "config.json").unlink()
        (folder.path / name).unlink()


MINE = {"schema": SCHEMA, "config": CONFIG.to_json(), "seed": 7}
CONFIGS = {
    "something else": {"n_layer": 12},
    "another seed": MINE | {"seed": 8},
    "another run": MINE | {"config": replace(CONFIG, lr=0.5).to_json()},
    "other sources": MINE | {"sources": {"Adding": "c0ffee"}},
    "sources that are text": MINE | {"sources": "none"},
    "no schema": MINE | {"schema": 0},
    "a schema that is text": MINE | {"schema": "2"},
    **{f"begun with {begun!r}": MINE | {"begun_with_schema": begun} for begun in (0, True, "1", SCHEMA + 1)},
    "a newer schema": MINE | {"schema": SCHEMA + 1},
}


@pytest.mark.parametrize("record", CONFIGS.values(), ids=CONFIGS)
def test_a_config_of_something_else_is_refused(folder, record):
    """By name, and it stays as it is; it was replaced once."""
    path = folder.path / "config.json"
    path.write_bytes(seal_json(record))
    before = contents(folder.path)
    with pytest.raises(RunError) as refusal:
        folder.begin(DATA)
    assert str(path) in str(refusal.value)
    with pytest.raises(RunError) as refusal:
        train(CONFIG, [7], root=folder.path.parent, device="cpu")
    assert_named(path, refusal.value)
    assert {k: v for k, v in contents(folder.path).items() if k != "lock"} == before
