"""How many threads a seed has, from affinity, quotas and OMP_NUM_THREADS; their files are real ones here."""

import os
import subprocess
import sys
from dataclasses import dataclass
from itertools import product

import pytest

from momentumrnn.cells import LSTM
from momentumrnn.experiments import Adding, configure
from momentumrnn.experiments.threads import SMALL_WORK, available_cores, threads_per_seed


@pytest.fixture(autouse=True)
def many_cores(monkeypatch):
    """A machine with 64 cores, all ours, so that what limits is what a test writes."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "process_cpu_count", lambda: 64, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)


@pytest.fixture
def machine(tmp_path):
    """Writes files below a folder; returns the cores that are available there."""

    def cores(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return available_cores(tmp_path / "proc", tmp_path / "sys")

    return cores


MEMBERSHIP = "proc/self/cgroup"
TOP = "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("max 100000", 64),
        ("400000 100000", 4),
        ("150000 100000", 2),
        ("100000 100000", 1),
        ("5000 100000", 1),
        ("100000 50000", 2),
        ("9900000 100000", 64),
    ],
)
def test_a_quota_of_version_2(quota, expected, machine):
    assert machine({MEMBERSHIP: "0::/job\n", f"{TOP}/job/cpu.max": f"{quota}\n"}) == expected


@pytest.mark.parametrize("holder", ["", "a", "a/b", "a/b/c"])
def test_a_quota_of_any_cgroup_above_limits(holder, machine):
    files = {f"{TOP}/{path}/cpu.max": "max 100000\n" for path in ("", "a", "a/b", "a/b/c")}
    files[f"{TOP}/{holder}/cpu.max"] = "300000 100000\n"
    assert machine({MEMBERSHIP: "0::/a/b/c\n", **files}) == 3
    # Of two quotas the smaller one.
    assert machine({f"{TOP}/a/b/c/cpu.max": "200000 100000\n"}) == 2


def test_the_quota_of_another_cgroup_does_not_limit(machine):
    files = {f"{TOP}/{path}/cpu.max": "100000 100000\n" for path in ("b", "a/b/c", "a/c")}
    assert machine({MEMBERSHIP: "0::/a/b\n", **files}) == 64


@pytest.mark.parametrize("folder", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize("path", ["/", "/docker/7f"])
def test_a_quota_of_version_1(folder, path, machine):
    """Also where a container shows its own cgroup at the top and the file names the host's."""
    files = {
        MEMBERSHIP: f"5:memory:/elsewhere\n4:{folder}:{path}\n1:name=systemd:/\n",
        f"{TOP}/{folder}/cpu.cfs_quota_us": "250000\n",
        f"{TOP}/{folder}/cpu.cfs_period_us": "100000\n",
    }
    assert machine(files) == 3
    assert machine({f"{TOP}/{folder}/cpu.cfs_quota_us": "-1\n"}) == 64


def test_a_quota_of_version_1_above(machine):
    files = {
        MEMBERSHIP: "4:cpu,cpuacct:/user/job\n0::/user\n",
        f"{TOP}/cpu/user/cpu.cfs_quota_us": "200000\n",
        f"{TOP}/cpu/user/cpu.cfs_period_us": "100000\n",
        f"{TOP}/cpu/user/job/cpu.cfs_quota_us": "-1\n",
        f"{TOP}/cpu/user/job/cpu.cfs_period_us": "100000\n",
    }
    assert machine(files) == 2


def test_version_2_beside_version_1(machine):
    files = {MEMBERSHIP: "1:cpu:/\n0::/job\n", f"{TOP}/unified/job/cpu.max": "600000 100000\n"}
    assert machine(files) == 6


def test_a_name_with_colons_is_read_whole(machine):
    assert machine({MEMBERSHIP: "0::/a:b\n", f"{TOP}/a:b/cpu.max": "200000 100000\n"}) == 2


@pytest.mark.parametrize(
    "quota",
    [
        "",
        "max",
        "400000",
        "400000 0",
        "-1 100000",
        "0 100000",
        "many few",
        "1e5 100000",
        "4 1 1",
        b"\xff\xfe \0",
        "9" * 400 + " 1",
        "9" * 5000 + " 1",
    ],
    ids=lambda quota: repr(quota[:12]),
)
def test_a_quota_that_is_none_does_not_limit(quota, machine):
    assert machine({MEMBERSHIP: "0::/\n", f"{TOP}/cpu.max": quota}) == 64


@pytest.mark.parametrize(
    "membership",
    [
        "",
        "0",
        "0:",
        "0::",
        ":::",
        "0::/../../etc",
        "0::/gone/away",
        "1:cpu",
        "1:cpu:",
        b"\xff\0:\xff:\0",
        "0::/\0",
        "0::/" + "x" * 5000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_a_membership_that_says_nothing_does_not_limit(membership, machine):
    assert machine({MEMBERSHIP: membership}) == 64


def test_a_cgroup_outside_the_namespace_has_the_quota_at_the_top(machine):
    assert machine({MEMBERSHIP: "0::/../other\n", f"{TOP}/cpu.max": "300000 100000\n"}) == 3
    # A file above the folder of cgroups is none of theirs.
    assert machine({f"{TOP}/../cpu.max": "100000 100000\n"}) == 3


def test_folders_in_place_of_files_do_not_limit(tmp_path):
    (tmp_path / MEMBERSHIP).mkdir(parents=True)
    assert available_cores(tmp_path / "proc", tmp_path / "sys") == 64
    (tmp_path / MEMBERSHIP).rmdir()
    (tmp_path / MEMBERSHIP).write_text("0::/\n")
    (tmp_path / TOP / "cpu.max").mkdir(parents=True)
    assert available_cores(tmp_path / "proc", tmp_path / "sys") == 64


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3", 3), (" 3 ", 3), ("3,2", 3), ("100", 64), ("1", 1)]
    + [(text, 64) for text in ("", "0", "-1", "two", "1.5", ",2", "²")],
)
def test_omp_num_threads_is_an_upper_bound(text, expected, machine, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert machine({}) == expected
    quota = {MEMBERSHIP: "0::/\n", f"{TOP}/cpu.max": "200000 100000\n"}
    assert machine(quota) == min(expected, 2)


def test_the_smallest_count_of_cores(machine, monkeypatch):
    monkeypatch.setattr(os, "process_cpu_count", lambda: 9, raising=False)
    assert machine({}) == 9
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5}, raising=False)
    assert machine({}) == 2


def test_counts_that_are_not_known(machine, monkeypatch):
    def refuse(process):
        raise OSError("no such system call")

    monkeypatch.setattr(os, "sched_getaffinity", refuse, raising=False)
    assert machine({}) == 64
    monkeypatch.delattr(os, "sched_getaffinity")
    assert machine({}) == 64
    monkeypatch.setattr(os, "process_cpu_count", lambda: None, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine({}) == 1


CODE = "from momentumrnn.experiments.threads import available_cores; print(available_cores())"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_this_machine_with_one_core():
    """The real files and the real mask, in a process that is confined to one core."""
    confine = f"import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); {CODE}"
    done = subprocess.run([sys.executable, "-c", confine], text=True, capture_output=True, check=True)
    assert done.stdout == "1\n"


def config(hidden_size=8, **settings):
    return configure(Adding(length=10), hidden_size=hidden_size, **settings)


def test_a_small_network_has_one_thread():
    for seeds, cores in product((1, 2, 5), (1, 2, 16)):
        assert threads_per_seed(config(), seeds, cores) == 1


def test_the_seeds_of_a_large_network_share_the_cores():
    for seeds, cores in product(range(1, 20), range(1, 20)):
        threads = threads_per_seed(config(1024), seeds, cores)
        side_by_side = min(seeds, cores)
        assert threads >= 1
        assert threads * side_by_side <= cores < (threads + 1) * side_by_side


@dataclass(frozen=True)
class Wide(Adding):
    features: int = 2


@pytest.mark.parametrize(
    "large",
    [
        config(4096),
        config(batch_size=SMALL_WORK),
        configure(Wide(length=10, features=SMALL_WORK), hidden_size=8),
        config(1024, batch_size=1, cell=LSTM()),
    ],
    ids=["hidden_size", "batch_size", "features", "gates"],
)
def test_what_makes_the_work_larger_makes_a_network_large(large):
    assert threads_per_seed(config(), 1, 4) == 1
    assert threads_per_seed(large, 1, 4) == 4
