"""How much memory a process may still take."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# of a control group, as containers and clusters set one: limit, use, and how much of the use is given back on demand
SECOND = ("memory.max", "memory.current", "inactive_file")  # version of control groups
FIRST = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def free_memory(root: Path = Path("/")) -> float:
    """Bytes that the system calls available, or fewer where the process's control groups have a limit."""
    found = [float(words[1]) * 1024 for words in _lines(root / "proc/meminfo") if words[0] == "MemAvailable:"]
    if not found and hasattr(os, "sysconf"):  # a system that does not say: all that the machine has
        found = [float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))]
    return max(0.0, min([*found, *_free_in_groups(root)], default=float("inf")))


def _free_in_groups(root: Path) -> Iterator[float]:
    """What is left below the limit of each group that this process is in."""
    for line in _lines(root / "proc/self/cgroup"):
        _, kinds, path = line[0].split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        top, names = root / "sys/fs/cgroup" / ("memory" if kinds else ""), FIRST if kinds else SECOND
        for above in (top / path.lstrip("/"), *(top / path.lstrip("/")).parents):
            if above.is_relative_to(top):
                limit, use = (_lines(above / name) for name in names[:2])
                spare = [words[1] for words in _lines(above / "memory.stat") if words[0] == names[2]]
                with suppress(IndexError, ValueError):  # none here, or "max"
                    yield float(int(limit[0][0]) - int(use[0][0]) + int(spare[0]))


def _lines(file: Path) -> list[list[str]]:
    """The words of each line of a file of the system; none where there is no such file."""
    try:
        return [line.split() for line in file.read_text().splitlines() if line.strip()]
    except OSError:
        return []
