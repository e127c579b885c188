"""Files of runs that were damaged: refused by name, or the same bits come out. Older runs go on."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from run_folders import StopAt, bits, contents, edit, epochs_of, lines_of

import momentumrnn as mr
from momentumrnn.experiments import Adding, RunError, configure, load, train
from momentumrnn.experiments.config import SCHEMA
from momentumrnn.experiments.runs.checksums import TRAILER_SIZE, open_weights
from momentumrnn.experiments.runs.gather import gather, outcome
from momentumrnn.experiments.runs.read import read
from momentumrnn.experiments.runs.store import Folder, read_json
from momentumrnn.provenance import provenance

pytest.importorskip("safetensors", reason="weights are written by the extra momentumrnn[all]")

ROOT = Path(__file__).parent.parent
OLD = Path(__file__).parent / "golden" / "run-0.2.0"
CONFIG = configure(
    Adding(length=6, samples=40, evaluation=10),
    momentum=mr.HeavyBall(),
    hidden_size=4,
    batch_size=10,
    epochs=3,
    log_every=1,
)
STEPS = 4  # of an epoch
OLD_CONFIG = configure(
    Adding(length=8, samples=200, evaluation=40),
    momentum=mr.HeavyBall(mu=0.6, step=1.0),
    hidden_size=6,
    batch_size=20,
    epochs=3,
    log_every=2,
    lr=5e-3,
)


def fit(config, root, seeds=(0,), **options):
    return train(config, seeds, root=root, **{"device": "cpu", "threads": 1, **options})


def path(root, config=CONFIG, seed=0):
    return Folder(Path(root), config, seed).path


def files(folder):
    return {name: content for name, content in contents(folder).items() if name != "lock"}


def stop(root, step, config=CONFIG):
    with pytest.raises(KeyboardInterrupt):
        fit(config, root, watcher=StopAt(step))
    return path(root, config)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    """Stopped runs, by this version and by 0.2.0: the config, the folder, and the bits they go on to."""
    stopped_runs = {}
    for kind, config in (("new", CONFIG), ("old", OLD_CONFIG)):
        stopped, whole = (tmp_path_factory.mktemp(f"{kind}-{name}") for name in ("stopped", "whole"))
        if kind == "new":
            stop(stopped, STEPS + 2)
        else:
            shutil.copytree(path(OLD / "stopped", config), path(stopped, config))
        shutil.copytree(stopped, whole, dirs_exist_ok=True)
        fit(config, whole)
        stopped_runs[kind] = config, path(stopped, config), bits(path(whole, config))
    return stopped_runs


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A run to its end, which is not to be changed."""
    root = tmp_path_factory.mktemp("ended")
    fit(CONFIG, root)
    return path(root)


@pytest.fixture
def done(ended, tmp_path):
    """A copy of it, to be spoilt."""
    return Path(shutil.copytree(ended, tmp_path / ended.name))


def flipped(content, place, bit):
    return content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]


def same(one, two):
    if isinstance(one, torch.Tensor):
        return isinstance(two, torch.Tensor) and one.dtype == two.dtype and torch.equal(one, two)
    if isinstance(one, dict):
        return isinstance(two, dict) and one.keys() == two.keys() and all(same(one[k], two[k]) for k in one)
    if isinstance(one, list):
        return isinstance(two, list) and len(one) == len(two) and all(map(same, one, two))
    return type(one) is type(two) and one == two


@pytest.mark.parametrize("kind", ["new", "old"])
def test_a_checkpoint_with_a_flipped_bit_is_refused_or_the_same(kinds, kind, tmp_path):
    """Each byte of it, one bit of each."""
    config, folder, _ = kinds[kind]
    copy = Folder(tmp_path, config, 0)
    content, state = (folder / "resume.pt").read_bytes(), Folder(folder.parent, config, 0).load()
    copy.path.mkdir()
    refused = 0
    for place in range(len(content)):
        (copy.path / "resume.pt").write_bytes(flipped(content, place, place % 8))
        try:
            assert same(copy.load(), state), place
        except RunError as error:
            assert str(copy.path / "resume.pt") in str(error)  # noqa: PT017  (both ends are right)
            refused += 1
    # A zip does not check its directory; the trailer is of every byte.
    assert refused == len(content) if kind == "new" else refused > len(content) // 2


@pytest.mark.parametrize("kind", ["new", "old"])
def test_training_from_a_flipped_bit_is_refused_or_the_same(kinds, kind, tmp_path):
    """Other weights than those without the flip never come out."""
    config, folder, whole = kinds[kind]
    before = files(folder)
    content = before["resume.pt"]
    ended = 0
    for place in range(7, len(content), len(content) // 60):
        copy = Path(shutil.copytree(folder, tmp_path / str(place) / folder.name))
        (copy / "resume.pt").write_bytes(flipped(content, place, place % 8))
        damaged = files(copy)
        try:
            fit(config, copy.parent)
        except RunError as error:
            assert str(copy) in str(error)  # noqa: PT017  (both ends are right)
            assert "resume.pt" in str(error)  # noqa: PT017
            assert files(copy) == damaged
        else:
            assert bits(copy) == whole, place
            ended += 1
    assert (ended > 0) == (kind == "old")


def test_a_checkpoint_that_was_cut_is_refused(kinds, tmp_path):
    config, folder, whole = kinds["new"]
    content = (folder / "resume.pt").read_bytes()
    copy = Path(shutil.copytree(folder, tmp_path / folder.name))
    for size in (0, 1, 100, len(content) // 2, len(content) - TRAILER_SIZE - 1, len(content) - 1):
        (copy / "resume.pt").write_bytes(content[:size])
        with pytest.raises(RunError, match=r"resume\.pt"):
            fit(config, tmp_path)
        assert (read(copy).state, read(copy).epochs) == ("damaged", ())
    (copy / "resume.pt").write_bytes(content)
    fit(config, tmp_path)
    assert bits(copy) == whole


def test_a_trailer_that_is_gone_is_missed(kinds, done):
    """Without it the checkpoint is as version 0.2.0 would have written it, and no line would be verified."""
    config, folder, _ = kinds["new"]
    stopped = Path(shutil.copytree(folder, done.parent / "stopped" / folder.name))
    for copy in (stopped, done):
        checkpoint, metrics = copy / "resume.pt", copy / "metrics.jsonl"
        checkpoint.write_bytes(checkpoint.read_bytes()[:-TRAILER_SIZE])
        for content in (metrics.read_bytes(), next(changed_digits(metrics.read_bytes()))):
            metrics.write_bytes(content)
            before = files(copy)
            record = read(copy)
            assert (record.state, record.epochs) == ("damaged", ())
            assert record.reason.startswith("resume.pt lacks the checksum")
            with pytest.raises(RunError, match=r"resume\.pt lacks the checksum") as refusal:
                fit(config, copy.parent)
            assert str(copy) in str(refusal.value)
            assert files(copy) == before
        with pytest.raises(RunError, match=r"resume\.pt lacks the checksum"):
            Folder(copy.parent, config, 0).load()


def changed_digits(content):
    """The content with one digit changed, for each digit."""
    for digit in re.finditer(rb"\d", content):
        other = str((int(digit[0]) + 1) % 10).encode()
        yield content[: digit.start()] + other + content[digit.end() :]


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "result.json"])
def test_a_changed_digit_never_becomes_a_number(done, name):
    """Of each digit of a file the reader says so; of some of them training is tried."""
    content = (done / name).read_bytes()
    assert read(done).state == "done"
    for i, changed in enumerate(changed_digits(content)):
        (done / name).write_bytes(changed)
        record = read(done)
        assert (record.state, record.epochs, record.result) == ("damaged", (), None)
        assert record.reason.startswith(name)
        if i % 23 == 0:
            runs = gather([done.parent])
            assert not runs.by_id
            assert not outcome(runs.of(CONFIG), 3)
            for epochs in (3, 4):
                with pytest.raises(RunError) as refusal:
                    fit(replace(CONFIG, epochs=epochs), done.parent)
                assert str(done) in str(refusal.value)
                assert name in str(refusal.value)
            assert (done / name).read_bytes() == changed
    (done / name).write_bytes(content)
    assert read(done).state == "done"


def test_a_changed_digit_of_a_run_that_was_stopped(kinds, tmp_path):
    """No result vouches for its metrics, and the checkpoint does."""
    config, folder, whole = kinds["new"]
    copy = Path(shutil.copytree(folder, tmp_path / folder.name))
    metrics = copy / "metrics.jsonl"
    content = metrics.read_bytes()
    for changed in changed_digits(content):
        metrics.write_bytes(changed)
        assert read(copy).state == "damaged"
        assert "metrics.jsonl" in read(copy).reason
    with pytest.raises(RunError, match=r"metrics\.jsonl"):
        fit(config, tmp_path)
    # What a killed process wrote after its checkpoint is no number, and it goes as training goes on.
    known = read(folder)
    metrics.write_bytes(content + b'{"epoch": 2, "step": 8, "train_loss": 0.0, "test_loss": 0.0}\n{"st')
    assert (read(copy).epochs, read(copy).steps) == (known.epochs, known.steps)
    assert read(copy).verified
    with Folder(tmp_path, config, 0).locked():
        assert (read(copy).state, len(read(copy).epochs)) == ("running", 2)
    fit(config, tmp_path)
    assert bits(copy) == whole


def test_a_checkpoint_that_is_gone_is_missed(kinds, tmp_path):
    """One is written before the first line, so what training found is never cut for want of one."""
    config, folder, whole = kinds["new"]
    copy = Path(shutil.copytree(folder, tmp_path / folder.name))
    (copy / "resume.pt").unlink()
    # Also half a line.
    for content in ((copy / "metrics.jsonl").read_bytes(), b'{"st'):
        (copy / "metrics.jsonl").write_bytes(content)
        before = files(copy)
        record = read(copy)
        assert (record.state, record.epochs) == ("damaged", ())
        assert record.reason.startswith("resume.pt is missing")
        with pytest.raises(RunError, match=r"resume\.pt is missing") as refusal:
            fit(config, tmp_path)
        assert str(copy) in str(refusal.value)
        assert files(copy) == before
    # Before the first line it has just not been begun.
    for damage in (lambda: (copy / "metrics.jsonl").write_bytes(b""), (copy / "metrics.jsonl").unlink):
        damage()
        assert (read(copy).state, read(copy).verified) == ("short", True)
    fit(config, tmp_path)
    assert bits(copy) == whole
    assert read(copy).verified


def test_a_run_whose_config_was_lost_is_no_longer_verified(kinds, tmp_path):
    """It goes on from its checkpoint, and nobody knows which version began it."""
    config, folder, whole = kinds["new"]
    copy = Path(shutil.copytree(folder, tmp_path / folder.name))
    (copy / "config.json").unlink()
    fit(config, tmp_path)
    assert bits(copy) == whole
    assert read_json(copy / "config.json")["begun_with_schema"] == 1
    assert (read(copy).state, read(copy).verified) == ("done", False)


@pytest.mark.parametrize("kind", ["new", "old"])
def test_what_a_result_is_of_is_never_destroyed(done, tmp_path, kind):
    """By training afresh where config.json was lost."""
    old = Path(shutil.copytree(path(OLD / "whole", OLD_CONFIG), tmp_path / "old" / f"{OLD_CONFIG.id}-s0"))
    folder, config = (done, CONFIG) if kind == "new" else (old, OLD_CONFIG)
    whole = files(folder)
    (folder / "config.json").unlink()
    (folder / "resume.pt").unlink(missing_ok=True)
    with pytest.raises(RunError, match=r"config\.json"):
        fit(config, folder.parent)
    rest = {name: content for name, content in whole.items() if name not in ("config.json", "resume.pt")}
    assert files(folder) == rest


def test_a_checkpoint_that_is_older_than_the_result_is_refused(tmp_path):
    """Somebody has put back a copy of it."""
    fit(replace(CONFIG, epochs=1), tmp_path)
    folder = path(tmp_path)
    checkpoint = (folder / "resume.pt").read_bytes()
    fit(CONFIG, tmp_path)
    assert read(folder).state == "done"
    (folder / "resume.pt").write_bytes(checkpoint)
    before = files(folder)
    for epochs in (3, 4):
        with pytest.raises(RunError, match=r"resume\.pt is missing or older") as refusal:
            fit(replace(CONFIG, epochs=epochs), tmp_path)
        assert str(folder) in str(refusal.value)
        assert files(folder) == before
    # The result needs no checkpoint.
    (folder / "resume.pt").unlink()
    assert fit(CONFIG, tmp_path)[0]["epochs"] == 3


@pytest.mark.parametrize("name", ["config.json", "result.json"])
def test_a_checksum_that_is_gone_is_missed(done, name):
    """Somebody who changes a number may take away its checksum, too."""
    values = read_json(done / name)
    (done / name).write_text(json.dumps(values))
    record = read(done)
    assert (record.state, record.epochs) == ("damaged", ())
    assert record.reason.startswith(f"{name} lacks the checksum")
    with pytest.raises(RunError, match=f"{name} lacks the checksum"):
        fit(CONFIG, done.parent)


@pytest.mark.parametrize(
    "value", [..., None, 3, "x", [], {}, {"size": 3}, {"size": -1}, {"size": "3"}], ids=repr
)
def test_a_result_that_does_not_vouch_for_the_metrics(done, value):
    """Though its checksum is right, and the checkpoint still does."""
    edit("result.json", metrics_file=value)(done)
    record = read(done)
    assert (record.state, record.epochs) == ("damaged", ())
    assert record.reason.startswith(("result.json", "metrics.jsonl"))
    # Neither if it has no checksum, as that of an older version.
    (done / "result.json").write_text(json.dumps(read_json(done / "result.json")))
    assert read(done).reason.startswith("result.json lacks the checksum")


def test_files_of_two_runs_are_no_run(done, tmp_path):
    """Each is whole, and they contradict each other."""
    other = tmp_path / "other"
    fit(CONFIG, other)
    # The seconds differ, and so do the hashes.
    for name in ("metrics.jsonl", "result.json"):
        copy = Path(shutil.copytree(done, tmp_path / name / done.name))
        shutil.copy(path(other) / name, copy / name)
        assert read(copy).state == "damaged"
        with pytest.raises(RunError, match=r"metrics\.jsonl"):
            fit(CONFIG, copy.parent)
    edit("config.json", data={"test": "c0ffee"})(done)
    assert read(done).reason == "result.json is of other data than config.json"
    with pytest.raises(RunError, match="other data"):
        fit(CONFIG, done.parent)


def test_damaged_weights_are_never_loaded(done):
    """Each byte of them; they are written again from the checkpoint."""
    weights = done / "model.safetensors"
    content, expected = weights.read_bytes(), load(done).state_dict()
    for place in range(len(content)):
        weights.write_bytes(flipped(content, place, place % 8))
        with pytest.raises(RunError) as refusal:
            load(done)
        assert str(weights) in str(refusal.value)
    for size in (0, 8, 100, len(content) - 1):
        weights.write_bytes(content[:size])
        with pytest.raises(RunError, match=r"model\.safetensors"):
            load(done)
    weights.unlink()
    fit(CONFIG, done.parent)
    assert same(dict(load(done).state_dict()), dict(expected))


def test_folders_of_older_versions_are_unverified_and_never_damaged():
    files = (ROOT / "results").rglob("config.json")
    folders = [file.parent for file in files if "schema" not in read_json(file)]
    assert len(folders) > 300
    for folder in folders:
        assert read(folder).state in ("done", "short", "frozen"), folder
        assert read(folder).verified is False


# A child that is killed four steps after its last checkpoint.
VICTIM = """
import json, os, signal, sys
from momentumrnn.experiments import Config, Watcher, train
from momentumrnn.experiments.engine import loop
loop.SAVE_SECONDS, last = -1.0, int(sys.argv[3])
class Victim(Watcher):
    def progress(self, runs):
        if runs[0].step >= last - 4:
            loop.SAVE_SECONDS = 1e9
        if runs[0].step >= last:
            os.kill(os.getpid(), signal.SIGKILL)
config = Config.from_json(json.loads(sys.argv[2]))
train(config, root=sys.argv[1], device="cpu", threads=1, watcher=Victim())
"""


def test_what_this_version_writes_is_verified(tmp_path):
    """Also after it went on, was killed and went on again, and under another name."""
    whole, folder = tmp_path / "whole", path(tmp_path)
    fit(replace(CONFIG, epochs=4), whole)
    assert read(path(whole)).verified
    fit(replace(CONFIG, epochs=1), tmp_path)
    assert read(folder).verified
    stop(tmp_path, STEPS + 1)
    assert (read(folder).state, read(folder).verified) == ("short", True)
    command = [sys.executable, "-c", VICTIM, str(tmp_path), json.dumps(CONFIG.to_json()), str(2 * STEPS + 2)]
    killed = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert killed.returncode == -signal.SIGKILL
    assert len(epochs_of(folder)) == 2
    record = read(folder)
    assert (record.state, len(record.epochs), record.verified) == ("short", 1, True)
    fit(replace(CONFIG, epochs=4), tmp_path)
    copy = Path(shutil.copytree(folder, tmp_path / "a copy"))
    for place in (folder, copy):
        assert (read(place).state, read(place).verified) == ("done", True)
    assert bits(folder) == bits(path(whole))


@pytest.fixture
def old(tmp_path):
    """Two seeds of a run that version 0.2.0 was stopped in."""
    return Path(shutil.copytree(OLD / "stopped", tmp_path / "old"))


def test_a_run_of_version_0_2_0_goes_on(old):
    """To the numbers that it would have come to, under the id that it had."""
    fit(OLD_CONFIG, old, [0, 1], threads=2)
    origin = provenance("", "cpu")
    for seed in (0, 1):
        now, whole = path(old, OLD_CONFIG, seed), path(OLD / "whole", OLD_CONFIG, seed)
        assert whole.exists()
        result = read_json(whole / "result.json")
        machine = result["device"] == origin["device"] and result["versions"]["torch"] == torch.__version__
        near = {"rel": 0, "abs": 0} if machine else {"rel": 1e-6, "abs": 1e-6}
        for line, expected in zip(lines_of(now), lines_of(whole), strict=True):
            assert line.keys() == expected.keys()
            for key in line.keys() - {"seconds"}:
                assert line[key] == pytest.approx(expected[key], **near)
        weights, expected = (open_weights(folder / "model.safetensors")[0] for folder in (now, whole))
        assert weights.keys() == expected.keys()
        for key, tensor in weights.items():
            torch.testing.assert_close(tensor, expected[key], rtol=near["rel"], atol=near["abs"])
        assert read_json(now / "result.json")["id"] == result["id"] == OLD_CONFIG.id
        record = read_json(now / "config.json")
        assert record["schema"] == SCHEMA
        assert record["config"] == OLD_CONFIG.to_json()
        assert {key: record["config"][key] for key in result["config"]} == result["config"]
        assert same(dict(load(now).state_dict()), weights)


def test_a_run_of_version_0_2_0_is_never_verified(old):
    """Nothing vouched for its first lines. Since this version went on with it, a change of any is seen."""
    folder = path(old, OLD_CONFIG)
    before = read(folder)
    assert (before.state, len(before.epochs), len(before.steps), before.verified) == ("short", 1, 7, False)
    # As a process leaves it that is killed at once: config.json has a checksum, and the checkpoint has none.
    Folder(old, OLD_CONFIG, 0).begin({})
    begun = read(folder)
    assert begun.verified is False
    assert (begun.state, begun.epochs, begun.steps) == (before.state, before.epochs, before.steps)
    edit("config.json", data=None)(folder)
    stop(old, 18, OLD_CONFIG)
    record = read(folder)
    assert (record.state, record.steps[:7], record.verified) == ("short", before.steps, False)
    metrics = folder / "metrics.jsonl"
    content = metrics.read_bytes()
    # Also for those that version 0.2.0 wrote.
    metrics.write_bytes(content.replace(b'"step": 2,', b'"step": 1,', 1))
    assert read(folder).state == "damaged"
    metrics.write_bytes(content)
    fit(OLD_CONFIG, old)
    assert (read(folder).state, read(folder).verified) == ("done", False)
    assert read_json(folder / "result.json")["metrics_file"]["size"] == metrics.stat().st_size
    assert read_json(folder / "config.json")["begun_with_schema"] == 1
    fit(replace(OLD_CONFIG, epochs=4), old)
    assert (read(folder).state, read(folder).verified) == ("done", False)


def test_a_run_of_version_0_2_0_that_is_over_stays_as_it_is(tmp_path):
    """It is read, and nothing in it is written."""
    root = Path(shutil.copytree(OLD / "whole", tmp_path / "whole"))
    before = contents(OLD / "whole")
    results = fit(OLD_CONFIG, root, [0, 1])
    assert [result["selected"]["last"]["epoch"] for result in results] == [3, 3]
    assert {name: content for name, content in contents(root).items() if not name.endswith("lock")} == before
    for seed in (0, 1):
        folder = path(root, OLD_CONFIG, seed)
        assert (read(folder).state, read(folder).verified) == ("done", False)
        load(folder)
    # It has no checkpoint to go on from, and is not begun again over its numbers.
    with pytest.raises(RunError, match="no checkpoint"):
        fit(replace(OLD_CONFIG, epochs=4), root)
    assert {name: content for name, content in contents(root).items() if not name.endswith("lock")} == before
