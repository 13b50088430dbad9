"""How much memory is free, read from files of a system that the tests make up."""

from pathlib import Path

import pytest

from mt3.support.machine import free_memory

GB = 2**30


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_this_machine_has_some_gigabytes() -> None:
    assert 2**26 < free_memory() < 2**50


def test_what_is_available_counts_not_what_there_is(tmp_path: Path) -> None:
    write(tmp_path, proc__meminfo="MemTotal:  16777216 kB\nMemFree: 1048576 kB\nMemAvailable:  3145728 kB\n")
    assert free_memory(tmp_path) == 3 * GB
    write(tmp_path, proc__self__cgroup="0::/\n")  # a group without files, as the outermost has none
    assert free_memory(tmp_path) == 3 * GB


@pytest.mark.parametrize(("limit", "free"), [("max", 3), (f"{8 * GB}", 3), (f"{2 * GB}", 1.25), (f"{GB // 4}", 0)])
def test_the_limit_of_a_group_counts_where_it_is_lower(tmp_path: Path, limit: str, free: float) -> None:
    """A gigabyte is in use, a quarter of it by files that can be dropped; the limit is that of the group above."""
    write(tmp_path, proc__meminfo="MemAvailable:  3145728 kB\n", proc__self__cgroup="0::/box/job\n")
    for group in ("box", "box/job"):
        folder = tmp_path / "sys/fs/cgroup" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit if group == 'box' else 'max'}\n")
        (folder / "memory.current").write_text(f"{GB}\n")
        (folder / "memory.stat").write_text(f"anon 5\ninactive_file {GB // 4}\nactive_file 7\n")
    assert free_memory(tmp_path) == free * GB


def test_groups_of_the_first_version_are_read_too(tmp_path: Path) -> None:
    write(tmp_path, proc__meminfo="MemAvailable:  3145728 kB\n", proc__self__cgroup="5:cpu,cpuacct:/a\n4:memory:/b\n")
    folder = tmp_path / "sys/fs/cgroup/memory/b"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{2 * GB}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{GB}\n")
    (folder / "memory.stat").write_text(f"total_inactive_file {GB // 2}\n")
    assert free_memory(tmp_path) == 1.5 * GB


def test_a_system_that_does_not_say_has_what_the_machine_has(tmp_path: Path) -> None:
    assert free_memory() <= free_memory(tmp_path) < 2**50
