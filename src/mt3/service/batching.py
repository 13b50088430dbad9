"""Work from many requests, done by one thread: what may be done together is collected into groups. Needs no torch."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from mt3.service.limits import Refused

Run = Callable[[list[Any]], Sequence[Any]]  # items to their answers, in order


@dataclass(frozen=True, eq=False)
class _Job:
    key: Hashable  # jobs of one key may be done together
    item: Any
    run: Run
    arrived: float = field(default_factory=time.monotonic)
    future: "Future[Any]" = field(default_factory=Future)


KEPT = 0.8  # of the moving average of an item's seconds at each group


class Batcher:
    """A bounded queue and one thread, which takes the oldest item and up to `stack` of its key.

    It is bounded in number and in time: what would wait longer than `patience` seconds is refused at once.
    """

    def __init__(
        self,
        stack: int,
        wait: float,
        queue: int,
        patience: float = math.inf,
        note: Callable[[int], None] = lambda _: None,  # is told the size of each group
    ) -> None:
        self.stack, self.wait, self.queue, self.patience, self.note = stack, wait, queue, patience, note
        self._pace = 0.0  # seconds of an item, a moving average
        self._running = 0  # items of the group that is being computed
        self._waiting: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="mt3-service", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """How many items wait."""
        return len(self._waiting)

    def submit(self, key: Hashable, items: Sequence[Any], run: Run) -> list["Future[Any]"]:
        """Queue all of the items or, where there is no room for all, none."""
        jobs = [_Job(key, item, run) for item in items]
        with self._changed:
            if self._closing:
                raise Refused(503, "The server is shutting down; try again in a moment.", 5)
            if len(self._waiting) + len(jobs) > self.queue:
                raise Refused(429, f"{len(self._waiting)} images wait already, of {self.queue}; try again later.", 2)
            ahead = (len(self._waiting) + self._running) * self._pace
            if ahead > self.patience:
                sentence = f"Those who wait already will take about {ahead:.0f} seconds; try again later."
                raise Refused(429, sentence, math.ceil(ahead / 2))
            self._waiting.extend(jobs)
            self._changed.notify()
        return [job.future for job in jobs]

    def close(self) -> None:
        """Take nothing more, finish what waits, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while group := self._take():
            alive = [job for job in group if job.future.set_running_or_notify_cancel()]
            if alive:
                self._run(alive)

    def _take(self) -> list[_Job]:
        """The next group; none when all is finished."""
        with self._changed:
            self._running = 0
            while not self._waiting:
                if self._closing:
                    return []
                self._changed.wait()
            first = self._waiting[0]
            while not self._closing and len(group := self._alike(first)) < self.stack:
                left = first.arrived + self.wait - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            group = self._alike(first)[: self.stack]
            self._running = len(group)
            taken = set(map(id, group))
            self._waiting = deque(job for job in self._waiting if id(job) not in taken)
            return group

    def _alike(self, first: _Job) -> list[_Job]:
        return [job for job in self._waiting if job.key == first.key]

    def _run(self, group: list[_Job]) -> None:
        """Do a group's work; where it fails, one by one, so that one item's failure is no other's."""
        began = time.monotonic()
        try:
            answers = group[0].run([job.item for job in group])
        except Exception as error:
            if len(group) == 1:
                group[0].future.set_exception(error)
                return
            for job in group:
                self._run([job])
            return
        self._pace = KEPT * self._pace + (1 - KEPT) * (time.monotonic() - began) / len(group)
        self.note(len(group))
        for job, answer in zip(group, answers, strict=True):
            job.future.set_result(answer)
