"""The command runs: its table is what the one reader says; what does not count is named with the reason."""

import json
import re
import shutil
from pathlib import Path
from statistics import mean, stdev

import pytest
from test_cli import folders, go

from momentumrnn.__main__ import main
from momentumrnn.experiments import Adding, Watcher, configure, train
from momentumrnn.experiments.runs.store import Folder

TASK = Adding(length=6, samples=100, evaluation=20)
ROOT = Path(__file__).parent.parent
OLD = ROOT / "tests/golden/run-0.2.0"
UNVERIFIED = "folders were begun before files carried checksums, so they can't be verified\n"


def listed(capsys, root, code=0):
    """What the command prints of a folder."""
    capsys.readouterr()
    assert main(["runs", "--root", str(root)]) == code
    out, err = capsys.readouterr()
    assert err == ""
    return out


def trained(root, seeds=(0,), watcher=None, name="", **settings):
    config = configure(TASK, hidden_size=4, **settings)
    return config, train(config, seeds, root=root, device="cpu", watcher=watcher, name=name)


def test_damaged_runs_are_listed_as_such(tmp_path, capsys):
    assert go(tmp_path, "--epochs", "1") == 0
    (folder,) = tmp_path.iterdir()
    (folder / "config.json").write_text("{")
    out = listed(capsys, tmp_path, code=1)
    assert f"damaged: {folder}: config.json " in out
    assert "No runs in" in out


def test_a_config_that_was_changed_is_seen(tmp_path, capsys):
    """And nothing is trained over it."""
    assert go(tmp_path, "--epochs", "1") == 0
    (folder,) = tmp_path.iterdir()
    path = folder / "config.json"
    changed = path.read_text().replace('"hidden_size": 4', '"hidden_size": 5')
    path.write_text(changed)
    assert "damaged" in listed(capsys, tmp_path, code=1)
    assert go(tmp_path, "--epochs", "1") == 1
    err = capsys.readouterr().err
    assert str(folder) in err
    assert "config.json" in err
    assert path.read_text() == changed


def test_runs_that_lie_deeper_are_named(tmp_path, capsys):
    assert go(tmp_path / "demo", "--epochs", "1") == 0
    out = listed(capsys, tmp_path)
    assert str(tmp_path / "demo") in out.replace("\n", "")
    assert out.startswith(f"No runs in {tmp_path}.")
    # They are not listed with those that lie in the folder itself.
    assert go(tmp_path, "--hidden-size", "3", "--epochs", "1") == 0
    out = listed(capsys, tmp_path)
    assert "H = 3" in out
    assert "H = 4" not in out


@pytest.mark.parametrize("part", ["whole", "stopped"])
def test_folders_of_older_versions_are_as_they_were_and_said_to_be_unverified(capsys, part):
    out = listed(capsys, OLD / part)
    assert {"whole": "done, epochs: 3", "stopped": "interrupted, step 14, epochs: 3"}[part] in out
    assert out.endswith(
        "2 of 2 folders were begun before files carried checksums, so they can't be verified\n"
    )
    assert out.count("verified") == 1


def test_a_folder_of_today_is_verified(tmp_path, capsys):
    trained(tmp_path, epochs=1)
    assert "verified" not in listed(capsys, tmp_path)
    shutil.copytree(OLD / "whole", tmp_path, dirs_exist_ok=True)
    out = listed(capsys, tmp_path)
    assert out.endswith(
        "2 of 3 folders were begun before files carried checksums, so they can't be verified\n"
    )
    assert "done, epochs: 1" in out


def test_the_table_has_what_the_results_say(capsys):
    """Of the runs of the demo that are published here, mean and deviation of each network."""
    root = ROOT / "results/demo"
    groups = {}
    for path in sorted(root.glob("*/result.json")):
        result = json.loads(path.read_text())
        groups.setdefault(result["id"], []).append(result)
    assert len(groups) > 2
    out = listed(capsys, root)
    lines = out.splitlines()
    for name, results in groups.items():
        (at,) = [number for number, line in enumerate(lines) if line.split()[:1] == [name]]
        assert re.split(r"\s{2,}", lines[at].strip())[1:3] == [
            f"0-{len(results) - 1}",
            f"done, epochs: {results[0]['epochs']}",
        ]
        for rule in ("by_validation", "by_test"):
            values = [result["selected"][rule]["test_loss"] for result in results]
            assert f"{mean(values):.5f} ± {stdev(values):.5f}" in lines[at + 1]


def test_the_name_of_a_run_stands_above_its_settings(tmp_path, capsys):
    config, _ = trained(tmp_path, epochs=1, name="table1/X with lr=2.0")
    lines = [line.strip() for line in listed(capsys, tmp_path).splitlines()]
    at = next(number for number, line in enumerate(lines) if line.startswith(config.id))
    assert lines[at + 1].startswith("table1/X with lr=2.0")
    assert lines[at + 2].startswith(f"{TASK!r}")


def test_another_run_never_has_the_name_of_a_recipe(tmp_path, capsys):
    config, _ = trained(tmp_path, epochs=1, name="figure4/LSTM/Adding/128")
    out = listed(capsys, tmp_path)
    assert config.id in out
    assert "figure4" not in out


def test_runs_that_look_alike_are_told_apart_by_their_ids(tmp_path, capsys):
    configs = [trained(tmp_path, epochs=1, lr=lr)[0] for lr in (0.5, 0.25)]
    out = listed(capsys, tmp_path)
    assert out.count("LSTM(), H = 4") == 2
    assert [out.count(config.id) for config in configs] == [1, 1]


class Stops(Watcher):
    def epoch(self, run):
        run.stop("[bold]enough")


def test_an_early_end_has_its_reason(tmp_path, capsys):
    trained(tmp_path, epochs=5, watcher=Stops())
    out = listed(capsys, tmp_path)
    # The table breaks it where its column ends.
    assert re.search(r"stopped after epoch 1 of 5:\s(.*\n)?.*\[bold\]enough", out), out


def test_a_run_that_is_trained_now_says_how_far_it_is(tmp_path, capsys):
    config, _ = trained(tmp_path, epochs=2)
    with Folder(tmp_path, config, 0).locked():
        assert "running, step 4, epochs: 2" in listed(capsys, tmp_path)
    assert "done, epochs: 2" in listed(capsys, tmp_path)


def test_what_is_no_run_is_named_and_is_no_failure(tmp_path, capsys):
    trained(tmp_path, epochs=1)
    (tmp_path / "notes").mkdir()
    (tmp_path / "site").mkdir()
    (tmp_path / "site/config.json").write_text('{"theme": 1}')
    out = listed(capsys, tmp_path)
    assert f"foreign: {tmp_path / 'notes'}: it has no config.json\n" in out
    assert f"foreign: {tmp_path / 'site'}: its config.json is of another kind" in out
    assert "done, epochs: 1" in out


def test_a_copy_counts_once(tmp_path, capsys):
    config, _ = trained(tmp_path, seeds=(0, 1), epochs=1)
    shutil.copytree(tmp_path / f"{config.id}-s0", tmp_path / "copy")
    out = listed(capsys, tmp_path)
    assert f"doubled: {tmp_path / 'copy'}: done; beside " in out
    assert re.search(rf"{config.id} +0-1 +done", out)


def test_the_folder_of_one_run(tmp_path, capsys, monkeypatch):
    config, _ = trained(tmp_path, seeds=(0, 1), epochs=1)
    monkeypatch.chdir(tmp_path / f"{config.id}-s1")
    assert re.search(rf"{config.id} +1 +done", listed(capsys, "."))
    (tmp_path / f"{config.id}-s1/result.json").write_text("{")
    out = listed(capsys, ".", code=1)
    assert f"damaged: {tmp_path / config.id}-s1: result.json " in out


def test_an_empty_folder_has_no_runs(tmp_path, capsys):
    assert listed(capsys, tmp_path) == f"No runs in {tmp_path}.\n"
    assert folders(tmp_path) == []


def test_a_value_says_which_seeds_it_is_of(tmp_path, capsys):
    """Where seeds ended differently, each state and each value names its seeds."""

    class Stop(Watcher):
        def epoch(self, run):
            if run.seed == 1:
                run.stop("enough")

    config = configure(Adding(length=6, samples=40, evaluation=20), hidden_size=4, epochs=2, batch_size=20)
    results = train(config, [0, 1], root=tmp_path, device="cpu", threads=1, watcher=Stop())
    assert main(["runs", "--root", str(tmp_path)]) == 0
    out = re.sub(r" +", " ", capsys.readouterr().out)
    assert "0: done, epochs: 2" in out
    assert "1: stopped after epoch 1 of 2" in out
    assert f"{results[0]['selected']['by_test']['test_loss']:.5f}" in out
    assert f"{results[1]['selected']['by_test']['test_loss']:.5f}" not in out
    assert "seeds 0" in out


def test_seeds_that_patience_ended_count_in_the_mean(tmp_path, capsys):
    """However many epochs each had."""
    task = Adding(length=6, samples=40, evaluation=20)
    config = configure(task, hidden_size=4, epochs=60, batch_size=20, patience=1, lr=0.3)
    results = train(config, [0, 1, 2, 3], root=tmp_path, device="cpu", threads=1)
    assert len({result["epochs"] for result in results}) > 1
    assert {result["status"] for result in results} == {"stopped"}
    assert main(["runs", "--root", str(tmp_path)]) == 0
    values = [result["selected"]["by_validation"]["test_loss"] for result in results]
    assert f"{mean(values):.5f} ± {stdev(values):.5f}" in capsys.readouterr().out
