import os
from pathlib import Path

import pytest

from serving.host.cores import slots_of, usable_cores


@pytest.fixture(autouse=True)
def _many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))


def machine(root: Path, cgroup: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    return root


def limit(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.max").write_text(text)


def test_without_a_quota_all_cores_of_the_affinity_count(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == 64
    root = machine(tmp_path, "0::/\n")
    assert usable_cores(root) == 64
    limit(root / "sys/fs/cgroup", "max 100000\n")
    assert usable_cores(root) == 64


@pytest.mark.parametrize(
    ("quota", "cores"), [("400000 100000", 4), ("350000 100000", 3), ("20000 100000", 1)]
)
def test_a_quota_counts_in_whole_cores(tmp_path: Path, quota: str, cores: int) -> None:
    root = machine(tmp_path, "0::/pod\n")
    limit(root / "sys/fs/cgroup/pod", quota)
    assert usable_cores(root) == cores


def test_the_tightest_quota_on_the_way_up_counts(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/pods/one\n")
    limit(root / "sys/fs/cgroup/pods/one", "800000 100000")
    limit(root / "sys/fs/cgroup/pods", "200000 100000")
    assert usable_cores(root) == 2


def test_the_older_kind_of_groups_is_read_too(tmp_path: Path) -> None:
    root = machine(tmp_path, "4:memory:/a\n5:cpu,cpuacct:/a\n")
    home = root / "sys/fs/cgroup/cpu/a"
    home.mkdir(parents=True)
    (home / "cpu.cfs_quota_us").write_text("300000\n")
    (home / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_cores(root) == 3
    (home / "cpu.cfs_quota_us").write_text("-1\n")
    assert usable_cores(root) == 64


@pytest.mark.parametrize("text", ["", "what", "1 0", "x 100000"])
def test_files_that_make_no_sense_limit_nothing(tmp_path: Path, text: str) -> None:
    root = machine(tmp_path, "0::/\n")
    limit(root / "sys/fs/cgroup", text)
    assert usable_cores(root) == 64


def test_a_worker_has_its_share_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.host.cores.usable_cores", lambda: 8)
    assert [slots_of(workers) for workers in (1, 3, 8, 20)] == [8, 2, 1, 1]
