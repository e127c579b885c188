"""Folders: written whole or not at all, by one process at a time; what is damaged or foreign is refused."""

import contextlib
import errno
import io
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from momentumrnn.experiments import Adding, configure, train
from momentumrnn.experiments.folders import FORMAT, Folder, RunError, read_json, running

ROOT = Path(__file__).parent.parent
CONFIG = configure(Adding(length=5, samples=30, evaluation=10), hidden_size=3, batch_size=10, epochs=2)
STATE = {"step": 3, "losses": [0.5, 0.25], "best": None, "state": {"weights": {"w": torch.arange(3.0)}}}
FILES = ("config.json", "metrics.jsonl", "resume.pt", "result.json", "model.safetensors")


@pytest.fixture
def folder(tmp_path):
    """One that is there."""
    made = Folder(tmp_path / "runs", CONFIG, 7)
    made.path.mkdir(parents=True)
    return made


def child(code, *args, **options):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **options,
    )


def contents(path):
    """All files below, by name."""
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def bits(path):
    """What a run has found, without the seconds that it took."""
    safetensors = pytest.importorskip("safetensors.torch")
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    state = torch.load(path / "resume.pt", weights_only=True)
    weights = safetensors.load_file(path / "model.safetensors")
    return {
        "metrics": [{k: v for k, v in line.items() if k != "seconds"} for line in lines],
        "result": {k: v for k, v in read_json(path / "result.json").items() if k in ("steps", "epochs")},
        "weights": {k: v.tolist() for k, v in weights.items()},
        "best": state["best"] and {k: v.tolist() for k, v in state["best"].items()},
        "last": {k: v.tolist() for k, v in state["state"]["weights"].items()},
        "optimizer": [{k: v.tolist() for k, v in held.items()} for held in state["state"]["optimizer"]],
        **{name: state[name] for name in ("step", "losses", "norms", "frozen")},
    }


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
    found = folder.load()
    assert torch.equal(found["state"]["weights"]["w"], torch.arange(3.0))
    assert {k: found[k] for k in ("step", "losses", "best")} == {
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
    assert folder.rewind(0) == []
    first = folder.append([{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}])
    path = folder.path / "metrics.jsonl"
    assert first == path.stat().st_size
    kept = path.read_bytes()
    assert folder.append([]) == first
    second = folder.append([{"step": 3, "loss": 0.125}])
    assert second == path.stat().st_size > first
    # As a process leaves it that was killed while it wrote.
    with open(path, "ab") as file:
        file.write(b'{"step": 4, "lo')
    assert folder.rewind(second) == [{"step": s, "loss": 2.0**-s} for s in (1, 2, 3)]
    assert path.stat().st_size == second
    assert folder.rewind(first) == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]
    assert path.read_bytes() == kept
    stamp = path.stat().st_mtime_ns
    assert len(folder.rewind(first)) == 2
    assert path.stat().st_mtime_ns == stamp
    assert folder.rewind(0) == []
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"nonsense \n", b"3\n4\n5\n6\n", b"null\n    \n", b"\xff\xfe\xff\xfe\n\n\n", b"[[[[[[[[\n"],
    ids=ascii,
)
def test_metrics_that_are_damaged_are_refused(folder, content):
    (folder.path / "metrics.jsonl").write_bytes(content)
    with pytest.raises(RunError) as refusal:
        folder.rewind(8)
    assert str(folder.path / "metrics.jsonl") in str(refusal.value)


def test_metrics_that_are_no_file_are_refused(folder):
    (folder.path / "metrics.jsonl").mkdir()
    with pytest.raises(RunError, match=r"metrics\.jsonl"):
        folder.rewind(0)
    with pytest.raises(RunError, match=r"metrics\.jsonl"):
        folder.append([{"step": 1}])


def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


OWN = {"format": FORMAT, "id": CONFIG.id, "seed": 7}
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
    made = Folder(tmp_path, CONFIG, 7)
    made.path.mkdir()
    (made.path / "resume.pt").write_bytes(FOREIGN[name])
    (made.path / "metrics.jsonl").write_bytes(b'{"step": 1}\n')
    before = contents(tmp_path)
    with pytest.raises(RunError, match=r"resume\.pt"):
        train(CONFIG, [7], root=tmp_path, device="cpu")
    assert {k: v for k, v in contents(tmp_path).items() if not k.endswith("lock")} == before


@pytest.mark.parametrize("lost", ["step", "state", "losses", "size", "sessions", "best"])
def test_a_checkpoint_that_lacks_something_is_refused(tmp_path, lost):
    train(CONFIG, root=tmp_path, device="cpu")
    made = Folder(tmp_path, CONFIG, 0)
    state = made.load()
    del state[lost]
    (made.path / "resume.pt").write_bytes(saved(state))
    with pytest.raises(RunError, match=r"resume\.pt"):
        train(CONFIG, root=tmp_path, device="cpu")


@pytest.mark.parametrize("inner", ["weights", "optimizer"])
def test_a_checkpoint_of_another_network_is_refused(tmp_path, inner):
    train(CONFIG, root=tmp_path, device="cpu")
    made = Folder(tmp_path, CONFIG, 0)
    state = made.load()
    held = state["state"]["weights"] if inner == "weights" else state["state"]["optimizer"][0]
    name = next(name for name, tensor in held.items() if tensor.dim())
    held[name] = torch.ones(2, 99)
    (made.path / "resume.pt").write_bytes(saved(state))
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
    assert str(path) in str(refusal.value)
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
        assert str(path) in str(error)  # noqa: PT017  (both ends are right)
    else:
        assert again[0]["selected"] == first[0]["selected"]


def test_a_config_of_something_else_is_replaced(folder):
    folder.begin()
    mine = {"config": CONFIG.to_json(), "seed": 7}
    assert folder.read("config.json") == mine
    stamp = (folder.path / "config.json").stat().st_mtime_ns
    folder.begin()
    assert (folder.path / "config.json").stat().st_mtime_ns == stamp
    more = Folder(folder.path.parent, replace(CONFIG, epochs=9), 7)
    assert more.path == folder.path
    more.begin()
    assert folder.read("config.json")["config"]["epochs"] == 9


def test_one_process_at_a_time(tmp_path):
    """A real second one; when it is killed the run is free."""
    folder = Folder(tmp_path, CONFIG, 7)
    assert not running(folder.path)
    code = """
import json, sys
from pathlib import Path
from momentumrnn.experiments import Config
from momentumrnn.experiments.folders import Folder, RunError
folder = Folder(Path(sys.argv[1]), Config.from_json(json.loads(sys.argv[2])), 7)
try:
    with folder.locked():
        print("locked", flush=True)
        sys.stdin.read()
except RunError as error:
    print(error, flush=True)
"""
    args = code, tmp_path, json.dumps(CONFIG.to_json())
    other = child(*args)
    try:
        assert other.stdout.readline() == "locked\n"
        assert running(folder.path)
        assert running(folder.path)
        with pytest.raises(RunError, match="another process") as refusal, folder.locked():
            pass
        assert str(folder.path) in str(refusal.value)
        with pytest.raises(RunError, match="another process"):
            train(CONFIG, [3, 7], root=tmp_path, device="cpu")
        assert not running(Folder(tmp_path, CONFIG, 3).path)
        assert not (folder.path / "resume.pt").exists()
        # Another seed is free.
        train(CONFIG, [8], root=tmp_path, device="cpu")
        other.kill()
        other.wait()
        assert not running(folder.path)
        with folder.locked():
            assert running(folder.path)
            third = child(*args)
            said = third.communicate(timeout=60)[0]
            assert "another process" in said
            with pytest.raises(RunError, match="another"), folder.locked():
                pass
        assert not running(folder.path)
        with folder.locked():
            pass
    finally:
        other.kill()
        other.communicate()


def test_a_look_at_a_run_is_in_nobodys_way(tmp_path):
    """However often somebody asks whether it is running, it can be begun."""
    folder, over = Folder(tmp_path, CONFIG, 7), threading.Event()
    with folder.locked():
        pass

    def look():
        while not over.is_set():
            running(folder.path)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(look)
        try:
            for _ in range(500):
                with folder.locked():
                    pass
        finally:
            over.set()
        asking.result()


def test_the_lock_goes_with_an_error(tmp_path):
    folder = Folder(tmp_path, CONFIG, 7)
    with contextlib.suppress(KeyError), folder.locked():
        raise KeyError
    assert not running(folder.path)


@pytest.mark.parametrize("below", ["", "deep/er"])
def test_a_folder_that_can_not_be_is_refused(tmp_path, below):
    file = tmp_path / "file"
    file.write_text("before")
    root = file / "x" / below
    with pytest.raises(RunError, match="written") as refusal:
        train(CONFIG, root=root, device="cpu")
    assert str(root) in str(refusal.value)
    assert file.read_text() == "before"
    assert not running(Folder(root, CONFIG, 0).path)
    with pytest.raises(RunError, match="written"):
        train(CONFIG, root=file, device="cpu")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_forbidden_folder_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(RunError, match="Permission denied"):
            train(CONFIG, root=tmp_path / "runs", device="cpu")
        assert list(tmp_path.iterdir()) == []
    finally:
        tmp_path.chmod(0o700)


def test_a_run_that_is_a_file_is_refused(tmp_path):
    path = Folder(tmp_path, CONFIG, 0).path
    path.write_text("before")
    with pytest.raises(RunError, match="written"):
        train(CONFIG, root=tmp_path, device="cpu")
    assert path.read_text() == "before"


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_a_folder_is_refused(tmp_path, name):
    path = Folder(tmp_path, CONFIG, 0).path
    (path / name / "x").mkdir(parents=True)
    with pytest.raises(RunError) as refusal:
        train(CONFIG, root=tmp_path, device="cpu")
    assert str(path / name) in str(refusal.value)


@pytest.mark.parametrize("name", ["resume.pt", "metrics.jsonl", "model.safetensors", "result.json"])
def test_a_disk_that_is_full_loses_nothing(tmp_path, monkeypatch, name):
    """From the first write of that file in the second epoch on, the disk has no room."""
    longer = replace(CONFIG, log_every=1)
    train(longer, root=tmp_path / "whole", device="cpu")
    train(replace(longer, epochs=1), root=tmp_path / "full", device="cpu")
    folder = Folder(tmp_path / "full", longer, 0)
    before = folder.load()["step"]
    sync = os.fsync

    def full(fd):
        if Path(os.readlink(f"/proc/self/fd/{fd}")).name in (name, f".{name}.partial"):
            raise ERRORS["full"]
        sync(fd)

    if not os.path.exists("/proc/self/fd"):
        pytest.skip("tells files apart by /proc")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="No space left on device") as refusal:
        train(longer, root=tmp_path / "full", device="cpu")
    assert str(folder.path / name) in str(refusal.value)
    assert not list(folder.path.glob(".*.partial"))
    assert folder.load()["step"] >= before
    monkeypatch.undo()
    train(longer, root=tmp_path / "full", device="cpu")
    assert bits(folder.path) == bits(Folder(tmp_path / "whole", longer, 0).path)


@pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_FSIZE")
@pytest.mark.parametrize("limit", [100, 3000, 6000])
def test_a_file_that_grows_too_large_loses_nothing(tmp_path, limit):
    """A real write that ends in the middle: in metrics.jsonl, or in the checkpoint."""
    config = replace(CONFIG, log_every=1, epochs=40)
    train(config, root=tmp_path / "whole", device="cpu")
    train(replace(config, epochs=1), root=tmp_path / "full", device="cpu")
    folder = Folder(tmp_path / "full", config, 0)
    code = """
import json, resource, sys
from momentumrnn.experiments import Config, train, trainer
from momentumrnn.experiments.folders import RunError
trainer.SAVE_SECONDS = 0.0
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    train(Config.from_json(json.loads(sys.argv[2])), root=sys.argv[1], device="cpu", threads=1)
except RunError as error:
    print(error, flush=True)
"""
    before = folder.load()["step"]
    done = child(code, tmp_path / "full", json.dumps(config.to_json()), limit)
    said, errors = done.communicate(timeout=120)
    assert done.returncode == 0, errors
    assert "File too large" in said
    assert str(folder.path) in said
    assert any(f"{name} could not be written" in said for name in FILES)
    assert not list(folder.path.glob(".*.partial"))
    assert folder.load()["step"] >= before
    train(config, root=tmp_path / "full", device="cpu")
    assert bits(folder.path) == bits(Folder(tmp_path / "whole", config, 0).path)
