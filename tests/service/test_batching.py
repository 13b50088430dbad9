"""The queue and its thread: what is grouped, what is refused, and that a failure stays with its item."""

import threading
import time
from concurrent.futures import Future

import pytest

from mt3.service.batching import Batcher
from mt3.service.limits import Refused


class Worker:
    """Notes the groups that it was given; the first one waits until it is let go."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, items: list[int]) -> list[int]:
        self.groups.append(items)
        self.begun.set()
        self.go.wait(10)
        if any(item < 0 for item in items):
            raise ValueError(f"{items} has a negative one")
        return [10 * item for item in items]


def results(futures: list[Future]) -> list[int]:
    return [future.result(10) for future in futures]


def test_items_of_one_key_that_wait_are_done_together_oldest_first():
    work, sizes = Worker(), []
    batcher = Batcher(stack=3, wait=0.0, queue=100, note=sizes.append)
    first = batcher.submit("a", [1], work)
    assert work.begun.wait(10)
    rest = [*batcher.submit("a", [2], work), *batcher.submit("b", [3, 4], work), *batcher.submit("a", [5, 6, 7], work)]
    assert len(batcher) == 6
    work.go.set()
    assert results(first + rest) == [10, 20, 30, 40, 50, 60, 70]
    batcher.close()
    assert work.groups == [[1], [2, 5, 6], [3, 4], [7]]
    assert sizes == [1, 3, 2, 1]


def test_the_first_waits_for_others_a_little():
    work = Worker()
    work.go.set()
    batcher = Batcher(stack=2, wait=5.0, queue=10)
    began = time.monotonic()
    futures = batcher.submit("a", [1], work) + batcher.submit("a", [2], work)
    assert results(futures) == [10, 20]
    assert time.monotonic() - began < 4  # a full group does not wait
    assert work.groups == [[1, 2]]
    batcher.close()


def test_a_failure_stays_with_its_item():
    work = Worker()
    batcher = Batcher(stack=10, wait=0.0, queue=10)
    futures = batcher.submit("a", [0], work)
    assert work.begun.wait(10)
    futures += batcher.submit("a", [1, -2, 3], work)
    work.go.set()
    assert futures[1].result(10) == 10
    assert futures[3].result(10) == 30
    with pytest.raises(ValueError, match=r"\[-2\] has a negative one"):
        futures[2].result(10)
    assert work.groups == [[0], [1, -2, 3], [1], [-2], [3]]
    batcher.close()


def test_all_of_a_request_is_queued_or_none():
    work = Worker()
    batcher = Batcher(stack=1, wait=0.0, queue=3)
    futures = batcher.submit("a", [0], work)
    assert work.begun.wait(10)
    futures += batcher.submit("a", [1, 2], work)
    with pytest.raises(Refused, match="2 images wait already, of 3; try again later") as refused:
        batcher.submit("a", [3, 4], work)
    assert (refused.value.status, refused.value.again) == (429, 2)
    futures += batcher.submit("a", [3], work)
    work.go.set()
    assert results(futures) == [0, 10, 20, 30]
    batcher.close()


def test_what_would_wait_too_long_is_refused_at_once():
    batcher = Batcher(stack=1, wait=0.0, queue=100, patience=0.3)
    go = threading.Event()

    def slowly(items: list[int]) -> list[int]:
        time.sleep(0.5)
        return items

    assert results(batcher.submit("a", [1], slowly)) == [1]  # of half a second, a fifth is noted at first: 0.1
    held = batcher.submit("b", [0], lambda items: [go.wait(10) for _ in items])
    while len(batcher):
        time.sleep(0.001)
    waiting = batcher.submit("a", [2, 3, 4], slowly)  # with the one that is held, four
    with pytest.raises(Refused, match="Those who wait already will take about 0 seconds; try again later") as refused:
        batcher.submit("a", [6], slowly)
    assert (refused.value.status, refused.value.again) == (429, 1)
    go.set()
    assert results(held + waiting) == [True, 2, 3, 4]
    batcher.close()


def test_closing_finishes_what_was_begun_and_takes_nothing_more():
    work = Worker()
    batcher = Batcher(stack=1, wait=0.0, queue=10)
    futures = batcher.submit("a", [1, 2, 3], work)
    assert work.begun.wait(10)
    closing = threading.Thread(target=batcher.close)
    closing.start()
    while not batcher._closing:
        time.sleep(0.001)
    with pytest.raises(Refused, match="shutting down") as refused:
        batcher.submit("a", [4], work)
    assert refused.value.status == 503
    work.go.set()
    closing.join(10)
    assert results(futures) == [10, 20, 30]


def test_what_nobody_waits_for_any_more_is_not_done():
    work = Worker()
    batcher = Batcher(stack=1, wait=0.0, queue=10)
    futures = batcher.submit("a", [1, 2, 3], work)
    assert work.begun.wait(10)
    assert futures[1].cancel()
    work.go.set()
    assert [futures[0].result(10), futures[2].result(10)] == [10, 30]
    batcher.close()
    assert work.groups == [[1], [3]]
