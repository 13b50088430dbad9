"""Streams: sessions that keep what a model has become along the images of one user, for some time."""

import secrets
from dataclasses import dataclass
from time import monotonic

from mt3.adaptation.adapter import Adapter
from mt3.service.limits import Limits, Refused


@dataclass
class Session:
    """A stream, and when it was last asked."""

    adapter: Adapter
    used: float


class Sessions:
    """Streams by their id, of a bounded number; those that nobody asks are forgotten."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._open: dict[str, Session] = {}

    def __len__(self) -> int:
        self._forget_old()
        return len(self._open)

    def begin(self, adapter: Adapter) -> str:
        """The id of a new stream, which nobody can guess."""
        if len(self) >= self.limits.streams:
            raise Refused(429, f"{self.limits.streams} streams are open already; end one, or try again later.", 60)
        name = secrets.token_urlsafe(16)
        self._open[name] = Session(adapter, monotonic())
        return name

    def find(self, name: str) -> Adapter:
        self._forget_old()
        if name not in self._open:
            raise Refused(404, "There is no such stream here; it ended, or another server process has it.")
        self._open[name].used = monotonic()
        return self._open[name].adapter

    def end(self, name: str) -> None:
        self.find(name)
        del self._open[name]

    def _forget_old(self) -> None:
        oldest = monotonic() - self.limits.stream_seconds
        self._open = {name: session for name, session in self._open.items() if session.used >= oldest}
