"""Progress with a rate and an estimate: one live line on a terminal, a plain line now and then elsewhere.

Whoever looks from another host has a file, which says who works, how far they are, and how they failed.
"""

import os
import sys
import time
from contextlib import suppress
from multiprocessing import current_process, parent_process
from pathlib import Path
from typing import Any, TextIO

from mt3.support.errors import SENTENCE, InputError, shown
from mt3.support.files import write_json
from mt3.support.presence import myself

PLAIN_INTERVAL = 15.0  # seconds between lines when the output is not a terminal
LIVE_INTERVAL = 0.1  # seconds between updates of the live line
TOLD_INTERVAL = 10.0  # seconds between updates of the file


class Progress:
    """Counts up to `total`; use as a context manager and call `advance`. `file` is there until all went well."""

    def __init__(
        self,
        label: str,
        total: int,
        unit: str,
        start: int = 0,
        stream: TextIO | None = None,
        file: Path | None = None,
    ) -> None:
        own = parent_process() is None
        alone = own and os.environ.get("WORLD_SIZE", "1") == "1"  # several processes cannot share a live line
        self.label, self.total, self.unit = label if own else f"[{current_process().name}] {label}", total, unit
        self.start = self.done = start
        self.stream = stream if stream is not None else sys.stderr
        self.file, self.told = file, 0.0
        self.live = self.stream.isatty() and alone
        self.began = time.monotonic()
        self.shown = self.began if not self.live else 0.0
        self.width = 0

    def __enter__(self) -> "Progress":
        self._tell()
        return self

    def __exit__(self, kind: object, error: BaseException | None, *rest: object) -> None:
        self._show(note="" if kind is None else "not finished", final=True)
        if error is not None:
            self._tell(error=_words(error))
        elif self.file is not None:
            with suppress(OSError):
                self.file.unlink()

    def advance(self, amount: int = 1, note: str = "") -> None:
        """Count `amount` more; `note` is shown after the estimate."""
        self.done += amount
        if time.monotonic() - self.shown >= (LIVE_INTERVAL if self.live else PLAIN_INTERVAL):
            self._show(note=note)
        if time.monotonic() - self.told >= TOLD_INTERVAL:
            self._tell()

    def _tell(self, **more: str) -> None:
        if self.file is None:
            return
        self.told = time.monotonic()
        seconds, done = self.told - self.began, self.done - self.start
        far: dict[str, Any] = {"label": self.label, "done": self.done, "total": self.total, "unit": self.unit}
        far["rate"] = done / seconds if done else None
        more = {name: shown(" ".join(words.split()), SENTENCE) for name, words in more.items()}
        with suppress(InputError, OSError):  # it only tells of the work, which goes on without
            write_json(self.file, myself() | {"time": time.time(), "seconds": seconds} | far | more)

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


def _words(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"


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
