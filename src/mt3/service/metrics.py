"""Counts of what a server did, in Prometheus' text format. Needs no torch."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # upper ends of the buckets of times
SIZES = (1, 2, 4, 8, 16, 32, 64)  # and of groups

Labels = tuple[tuple[str, str], ...]


class _Histogram:
    def __init__(self, ends: Sequence[float]) -> None:
        self.ends, self.counts, self.total = ends, [0] * (len(ends) + 1), 0.0

    def observe(self, value: float) -> None:
        self.counts[sum(value > end for end in self.ends)] += 1
        self.total += value


class Metrics:
    """Counters, histograms and gauges; any thread may count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[Labels, int] = {}
        self._seconds, self._groups = _Histogram(SECONDS), _Histogram(SIZES)
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "process_resident_memory_bytes": ("Memory that the process holds.", resident_bytes)
        }

    def request(self, path: str, status: int, seconds: float) -> None:
        with self._lock:
            labels = (("path", path), ("status", str(status)))
            self._requests[labels] = self._requests.get(labels, 0) + 1
            self._seconds.observe(seconds)

    def group(self, size: int) -> None:
        with self._lock:
            self._groups.observe(size)

    def text(self) -> str:
        """What `/metrics` shows."""
        with self._lock:
            lines = _head("mt3_requests_total", "counter", "Requests by path and status.")
            lines += [f"mt3_requests_total{_braces(labels)} {n}" for labels, n in sorted(self._requests.items())]
            lines += _histogram("mt3_request_seconds", "Time from a request's head to its answer.", self._seconds)
            lines += _histogram("mt3_group_images", "Images, or requests of streams, computed at once.", self._groups)
        for name, (words, value) in self.gauges.items():
            lines += [*_head(name, "gauge", words), f"{name} {value()}"]
        return "\n".join(lines) + "\n"


def resident_bytes() -> float:
    """Memory of this process; 0 where the system has no /proc."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def _head(name: str, kind: str, words: str) -> list[str]:
    return [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]


def _braces(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}"


def _histogram(name: str, words: str, found: _Histogram) -> list[str]:
    lines, below = _head(name, "histogram", words), 0
    for end, number in zip((*map(str, found.ends), "+Inf"), found.counts, strict=True):
        below += number
        lines.append(f'{name}_bucket{{le="{end}"}} {below}')
    return [*lines, f"{name}_sum {found.total}", f"{name}_count {below}"]
