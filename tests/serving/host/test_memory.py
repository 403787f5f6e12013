from pathlib import Path

from serving.host.memory import available_bytes


def machine(root: Path, *, available_kib: int, cgroup: str = "0::/\n") -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable:  {available_kib} kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    return root


def group(folder: Path, limit: str, used: int, inactive: int, *, old: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    limit_file, used_file, key = names if old else ("memory.max", "memory.current", "inactive_file")
    (folder / limit_file).write_text(f"{limit}\n")
    (folder / used_file).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{key} {inactive}\n")


def test_without_a_limit_what_the_machine_has_counts(tmp_path: Path) -> None:
    root = machine(tmp_path, available_kib=1000)
    group(root / "sys/fs/cgroup", "max", 10, 0)
    assert available_bytes(root) == 1000 * 1024


def test_a_limit_counts_without_the_files_that_the_kernel_can_drop(tmp_path: Path) -> None:
    root = machine(tmp_path, available_kib=1000)
    group(root / "sys/fs/cgroup", "5000", 3000, 1000)
    assert available_bytes(root) == 3000


def test_the_tightest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    root = machine(tmp_path, available_kib=1000, cgroup="0::/pods/one\n")
    home = root / "sys/fs/cgroup"
    group(home / "pods/one", "9000", 1000, 0)
    group(home / "pods", "4000", 3500, 0)
    assert available_bytes(root) == 500


def test_the_older_kind_of_groups_is_read_too(tmp_path: Path) -> None:
    cgroup = "5:cpu,cpuacct:/a\n4:memory:/a\n"
    root = machine(tmp_path, available_kib=1000, cgroup=cgroup)
    group(root / "sys/fs/cgroup/memory/a", "7000", 6000, 100, old=True)
    assert available_bytes(root) == 1100
