"""Progress with a rate and an estimate: one live line on a terminal, a plain line now and then elsewhere."""

import sys
import time
from multiprocessing import current_process, parent_process
from typing import TextIO

PLAIN_INTERVAL = 15.0  # seconds between lines when the output is not a terminal
LIVE_INTERVAL = 0.1  # seconds between updates of the live line


class Progress:
    """Counts up to `total`; use as a context manager and call `advance`."""

    def __init__(self, label: str, total: int, unit: str, start: int = 0, stream: TextIO | None = None) -> None:
        alone = parent_process() is None  # several processes cannot share a live line, and each says its name
        self.label, self.total, self.unit = label if alone else f"[{current_process().name}] {label}", total, unit
        self.start = self.done = start
        self.stream = stream if stream is not None else sys.stderr
        self.live = self.stream.isatty() and alone
        self.began = time.monotonic()
        self.shown = self.began if not self.live else 0.0
        self.width = 0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self._show(note="" if kind is None else "not finished", final=True)

    def advance(self, amount: int = 1, note: str = "") -> None:
        """Count `amount` more; `note` is shown after the estimate."""
        self.done += amount
        if time.monotonic() - self.shown >= (LIVE_INTERVAL if self.live else PLAIN_INTERVAL):
            self._show(note=note)

    def _show(self, note: str = "", final: bool = False) -> None:
        self.shown = time.monotonic()
        elapsed = max(self.shown - self.began, 1e-9)
        rate = (self.done - self.start) / elapsed
        speed = f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"
        line = f"{self.label}: {self.done}/{self.total} {self.unit}, {speed} {self.unit}/s"
        if final:
            line += f", took {duration(elapsed)}"
        elif rate > 0:
            line += f", {duration((self.total - self.done) / rate)} left"
        if note:
            line += f", {note}"
        if self.live:
            self.stream.write("\r" + line.ljust(self.width) + ("\n" if final else ""))
            self.width = len(line)
        else:
            self.stream.write(line + "\n")
        self.stream.flush()


def duration(seconds: float) -> str:
    """Say a time span briefly: `42 s`, `3 min 05 s`, `2 h 10 min`, `3 days 4 h`."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    if seconds < 48 * 3600:
        return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
    return f"{seconds // 86400} days {seconds % 86400 // 3600} h"
