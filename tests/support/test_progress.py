"""Spans of time in words, and the file that says how far a process is."""

import json
import os
import time
from pathlib import Path

import pytest

import mt3.support.progress as module
from mt3.support.errors import InputError
from mt3.support.presence import is_there, myself
from mt3.support.progress import Progress, duration


def test_long_times_are_in_days():
    spans = [round(h * 3600) for h in (0.5, 2.25, 47.99, 48, 3549)]
    assert [duration(s) for s in spans] == ["30 min 00 s", "2 h 15 min", "47 h 59 min", "2 days 0 h", "147 days 21 h"]


def read(file: Path) -> dict:
    return json.loads(file.read_text())


def test_the_file_says_who_and_how_far_until_all_went_well(tmp_path, monkeypatch):
    file, now = tmp_path / "progress.json", [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    with Progress("train", 10, "steps", start=2, file=file) as progress:
        told = read(file)
        assert {name: told[name] for name in myself()} == myself()
        assert (told["done"], told["total"], told["unit"], told["rate"]) == (2, 10, "steps", None)
        assert abs(told["time"] - time.time()) < 5
        now[0] += module.TOLD_INTERVAL - 1
        progress.advance()
        assert read(file)["done"] == 2  # it is written only now and then
        now[0] += 1
        progress.advance()
        assert (read(file)["done"], read(file)["rate"]) == (4, 2 / module.TOLD_INTERVAL)
        assert list(tmp_path.iterdir()) == [file]
    assert not file.exists()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (InputError("The loss is not finite; lower lr."), "The loss is not finite; lower lr."),
        (RuntimeError("out of\nmemory"), "RuntimeError: out of memory"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_the_file_keeps_an_error(tmp_path, error, words):
    def fail() -> None:
        with Progress("train", 10, "steps", file=tmp_path / "progress.json") as progress:
            progress.advance(3)
            raise error

    with pytest.raises(type(error)):
        fail()
    told = read(tmp_path / "progress.json")
    assert (told["done"], told["error"]) == (3, words)


def test_work_goes_on_where_the_file_cannot_be_written(tmp_path):
    (tmp_path / "full").touch()
    with Progress("train", 10, "steps", file=tmp_path / "full" / "progress.json") as progress:
        progress.advance(10)
    assert progress.done == 10


def test_ranks_do_not_share_a_live_line(monkeypatch):
    class Terminal(list):
        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> None:
            self.append(text)

        def flush(self) -> None: ...

    for world, live in (("1", True), ("2", False)):
        monkeypatch.setenv("WORLD_SIZE", world)
        with Progress("evaluate", 2, "images", stream=(terminal := Terminal())) as progress:
            progress.advance(2)
        assert any("\r" in text for text in terminal) == live


def test_a_process_is_known_where_its_number_means_something():
    here = myself()
    assert (here["pid"], is_there(here)) == (os.getpid(), True)
    boot, numbering, began = here["process"].split("/")
    assert is_there(here | {"process": f"{boot}/{numbering}/{int(began) + 1}"}) is False  # its number was given again
    for mark in (f"x/{numbering}/{began}", f"{boot}/1/{began}", "", None, 3):  # another host, or another container
        assert is_there(here | {"process": mark}) is None
    assert is_there({}) is None
    child = os.fork()
    if child == 0:
        os._exit(0)
    ended = here | {"pid": child, "process": f"{boot}/{numbering}/0"}
    assert is_there(ended) is False  # nobody has waited for it yet
    os.waitpid(child, 0)
    assert is_there(ended) is False
