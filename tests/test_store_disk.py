"""Folders of runs: of one process at a time; what can't be written is named, and what is there stays."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from run_folders import FILES, bits, contents
from test_store import CONFIG, ERRORS, assert_named

from momentumrnn.experiments import train
from momentumrnn.experiments.runs.store import Folder, LockedError, RunError, running

ROOT = Path(__file__).parent.parent


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


def test_one_process_at_a_time(tmp_path):
    """A real second one; when it is killed the run is free."""
    folder = Folder(tmp_path, CONFIG, 7)
    assert not running(folder.path)
    code = """
import json, sys
from pathlib import Path
from momentumrnn.experiments import Config
from momentumrnn.experiments.runs.store import Folder, RunError
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
        folder.begin({})

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


@pytest.mark.skipif(os.name == "nt", reason="locks are not shared there")
def test_who_looks_at_a_run_does_not_train_it(tmp_path):
    """Two may look at once."""
    fcntl = pytest.importorskip("fcntl")
    folder = Folder(tmp_path, CONFIG, 7)
    with folder.locked():
        folder.begin({})
        assert running(folder.path)
    with open(folder.path / "lock", "r+b") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert not running(folder.path)
        with pytest.raises(RunError, match="another process"), folder.locked():
            pass


def test_the_lock_goes_with_an_error(tmp_path):
    folder = Folder(tmp_path, CONFIG, 7)
    with contextlib.suppress(KeyError), folder.locked():
        folder.begin({})
        raise KeyError
    assert not running(folder.path)
    with folder.locked():
        assert running(folder.path)


posix = pytest.mark.skipif(os.name == "nt", reason="a file that is open can't be removed there")


@posix
def test_a_refused_command_leaves_no_folder(tmp_path):
    """Nothing but an empty one is ever taken away."""
    train(CONFIG, [1], root=tmp_path, device="cpu")
    (Folder(tmp_path, CONFIG, 1).path / "resume.pt").write_bytes(b"damaged")
    before = contents(tmp_path)
    with pytest.raises(RunError, match=r"resume\.pt"):
        train(replace(CONFIG, epochs=9), [0, 1, 2], root=tmp_path, device="cpu")
    assert contents(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == [f"{CONFIG.id}-s1"]
    for name in ("notes.txt", ".resume.pt.partial", "deep/notes.txt"):
        folder = Folder(tmp_path / "other", CONFIG, 0)
        (folder.path / name).parent.mkdir(parents=True)
        (folder.path / name).write_text("mine")
        with pytest.raises(KeyError), folder.locked():
            raise KeyError
        assert (folder.path / name).read_text() == "mine"
        shutil.rmtree(folder.path)


@posix
def test_a_folder_that_is_taken_away_is_still_of_one_at_a_time(tmp_path):
    """Whoever waits for its lock makes it again."""
    folder, inside, times = Folder(tmp_path, CONFIG, 0), [], []

    def take(name):
        for _ in range(100):
            with contextlib.suppress(LockedError), folder.locked():
                inside.append(name)
                assert running(folder.path)
                assert inside == [name]
                times.append(name)
                inside.remove(name)

    with ThreadPoolExecutor(4) as pool:
        for job in [pool.submit(take, name) for name in range(4)]:
            job.result()
    assert len(times) >= 100
    assert list(tmp_path.iterdir()) == []


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
    assert_named(path / name, refusal.value)


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
from momentumrnn.experiments import Config, train
from momentumrnn.experiments.engine import loop
from momentumrnn.experiments.runs.store import RunError
loop.SAVE_SECONDS = 0.0
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
