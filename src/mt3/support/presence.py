"""Who works on something: a host and a process, told in a file, and whether that process is still there."""

import os
import socket
from pathlib import Path
from typing import Any


def myself() -> dict[str, Any]:
    """This process, as a file tells of it."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "process": _mark(os.getpid())}


def is_there(told: dict[str, Any]) -> bool | None:
    """Whether the process that a file tells of still runs; None where that cannot be seen from here.

    It is seen by processes with the same numbering: of the same host since its last start, and of the same container.
    """
    here, mark, pid = _mark(os.getpid()), told.get("process"), told.get("pid")
    if not isinstance(mark, str) or not isinstance(pid, int) or "/" not in mark:
        return None
    if here.rpartition("/")[0] != mark.rpartition("/")[0]:
        return None
    return _mark(pid) == mark


def _mark(pid: int) -> str:
    """What tells a process from all others: the numbering that its pid belongs to, and when it began; else nothing."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        numbering = os.stat("/proc/self/ns/pid").st_ino
    except OSError:  # not Linux
        return ""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if state in "ZX" else f"{boot}/{numbering}/{fields[18]}"  # field 22 of all, in ticks since the boot
