"""What files say of work: finished, under way here and elsewhere, killed, failed, half done; a study."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from mt3.evaluation.pieces import all_pieces, folder_of, path_of
from mt3.reporting.status import Status, read_status, status_json, status_text
from mt3.support.errors import InputError
from mt3.support.files import write_json
from mt3.support.presence import myself

CONFIG = {"method": "mt3", "data": "digits", "seed": 2}
ASKED = {"clean": True, "corruptions": ["fog"], "severities": [5], "images": 100, "label": "", "run": None}
FAR = {"label": "train mt3", "done": 120, "total": 400, "unit": "steps", "rate": 4.0}
ELSEWHERE = {"host": "node7", "pid": 17, "process": "another-boot/1/2"}


def make_run(folder: Path, *, checkpoints: tuple[int, ...] = (), **more) -> Path:
    folder.mkdir(parents=True)
    write_json(folder / "run.json", {"config": CONFIG, "init": None, **more})
    for step in checkpoints:
        path = folder / "checkpoints" / f"step-{step:08d}.safetensors"
        path.parent.mkdir(exist_ok=True)
        path.touch()
        age(path, 1000 - step)
    return folder


def tell(path: Path, who: dict, seconds: float = 0.0, **more) -> None:
    write_json(path, who | FAR | more)
    age(path, seconds)


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def read_one(path: Path) -> Status:
    (found,) = read_status(path)
    return found


def test_a_finished_training(tmp_path):
    run = make_run(tmp_path / "run", step=400, total_steps=400, seconds=3725.0, checkpoints=(300, 400))
    found = read_one(run)
    assert (found.state, found.done, found.total, found.seconds, found.workers) == ("finished", 400, 400, 3725.0, [])
    assert str(found) == f"{run}: training mt3 on digits, seed 2; finished, 400 of 400 steps in 1 h 02 min"


def test_a_training_under_way_on_this_host(tmp_path):
    run = make_run(tmp_path / "run", checkpoints=(50, 100))
    tell(run / "progress.json", myself(), 3.0)
    found = read_one(run)
    assert (found.state, found.done, found.total, found.rate, found.seconds_left) == ("working", 120, 400, 4.0, 70.0)
    assert found.checkpoint == 100
    assert found.checkpoint_seconds_ago == pytest.approx(900, abs=5)
    who = f"process {os.getpid()} on {socket.gethostname()} is at work"
    assert str(found).endswith(
        f"; working, 120 of 400 steps, 4 steps/s, 1 min 10 s left; checkpoint of step 100, 15 min 00 s ago; {who}"
    )


def test_a_training_on_another_host_is_known_by_its_last_word(tmp_path):
    run = make_run(tmp_path / "run")
    tell(run / "progress.json", ELSEWHERE, 20.0)
    found = read_one(run)
    assert (found.state, found.seconds_left) == ("heard", 70.0)
    assert str(found).endswith("1 min 10 s left; last word 20 s ago from process 17 on node7")
    age(run / "progress.json", 7400)
    found = read_one(run)
    assert (found.state, found.seconds_left) == ("silent", None)
    assert str(found).endswith(
        "; silent, 120 of 400 steps; no word for 2 h 03 min from process 17 on node7, which cannot be seen from here"
    )


def test_a_training_that_was_killed(tmp_path):
    """By a process of this host that has ended; another one may have its number now."""
    code = "import json; from mt3.support.presence import myself; print(json.dumps(myself()))"
    ended = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    run = make_run(tmp_path / "run", checkpoints=(100,))
    tell(run / "progress.json", ended)
    assert read_one(run).state == "gone"
    reused = myself() | {"process": myself()["process"][:-1] + "x"}
    tell(run / "progress.json", reused, 30.0)
    found = read_one(run)
    assert (found.state, found.done, found.checkpoint, found.seconds_left) == ("gone", 120, 100, None)
    assert f"process {os.getpid()} on {socket.gethostname()} is gone, its last word was 30 s ago" in str(found)


def test_a_training_that_failed(tmp_path):
    run = make_run(tmp_path / "run")
    tell(run / "progress.json", myself(), 60.0, error="The loss is not finite at step 121\x1b[31m; lower lr.")
    found = read_one(run)
    assert (found.state, found.error) == ("failed", "The loss is not finite at step 121\\x1b[31m; lower lr.")
    assert "failed 1 min 00 s ago: The loss is not finite at step 121" in str(found)


def test_a_training_that_stopped_and_one_that_waits(tmp_path):
    run = make_run(tmp_path / "run", step=30, total_steps=400, checkpoints=(30,))
    found = read_one(run)
    assert (found.state, found.done, found.total, found.workers) == ("stopped", 30, 400, [])
    make_run(run / "start", step=10, total_steps=10)
    waiting = make_run(tmp_path / "other")
    assert [(s.path, s.state) for s in read_status(tmp_path)] == [
        (str(waiting), "waiting"), (str(run), "stopped"), (str(run / "start"), "finished")
    ]  # fmt: skip


def make_pieces(out: Path, count: int, asked: dict | None = None) -> None:
    write_json(folder_of(out) / "protocol.json", ASKED if asked is None else asked)
    for piece in all_pieces(ASKED)[:count]:
        np.savez(path_of(folder_of(out), piece), before=np.zeros(1))


def test_an_evaluation_half_done(tmp_path):
    out = tmp_path / "r.json"
    make_pieces(out, 3)
    shards = {"unit": "images", "rate": 2.5}
    tell(folder_of(out) / "shard-0-of-3.json", myself(), done=50, total=100, **shards)
    tell(folder_of(out) / "shard-1-of-3.json", ELSEWHERE, 10.0, done=20, total=50, **shards)
    tell(folder_of(out) / "shard-2-of-3.json", ELSEWHERE, 40.0, done=0, total=50, **shards, error="no memory")
    for asked in (out, folder_of(out), tmp_path):
        found = read_one(asked)
        assert (found.path, found.kind, found.unit) == (str(out), "evaluation", "images")
        assert (found.state, found.done, found.total) == ("working", 150, 200)
        assert (found.rate, found.seconds_left, found.error) == (5.0, 10.0, "no memory")
        assert [worker.shard for worker in found.workers] == ["0/3", "1/3", "2/3"]
        assert [worker.state for worker in found.workers] == ["working", "heard", "failed"]
    assert "; shard 1/3, 20 of 50: last word 10 s ago from process 17 on node7; shard 2/3" in str(found)
    for path in folder_of(out).glob("shard*"):
        path.unlink()
    assert (read_one(out).state, read_one(out).done, read_one(out).seconds_left) == ("stopped", 150, None)


def test_an_evaluation_that_has_just_begun_or_is_damaged(tmp_path):
    out = tmp_path / "r.json"
    folder_of(out).mkdir()
    assert (read_one(out).state, read_one(out).total) == ("waiting", None)
    (folder_of(out) / "protocol.json").write_text("{")
    (folder_of(out) / "shard-0-of-1.json").write_text('{"done": "x"}')
    assert (read_one(out).state, read_one(out).total) == ("waiting", None)


def test_a_study(tmp_path):
    """With a training that is done, one under way, and snapshots, which are no trainings of their own."""
    done = make_run(tmp_path / "mt3" / "seed-0", step=4, total_steps=4)
    make_run(done / "snapshots" / "step-00000002", step=2, total_steps=4)
    tell(make_run(tmp_path / "mt3" / "seed-1") / "progress.json", myself())
    write_json(done / "evaluation.json", {"protocol": ASKED, "corruptions": []})
    write_json(done / "config.json", {"architecture": "x"})
    make_pieces(tmp_path / "mt3" / "seed-1" / "sweep-lr-0.json", 1)
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "report.md").touch()
    found = read_status(tmp_path)
    assert [(status.kind, status.state, status.done, status.total) for status in found] == [
        ("training", "finished", 4, 4),
        ("training", "working", 120, 400),
        ("evaluation", "finished", 200, 200),
        ("evaluation", "stopped", 50, 200),
    ]
    first = status_text(tmp_path, found).splitlines()[0]
    assert first == (
        f"{tmp_path}: 2 trainings (1 finished, 1 working), 2 evaluations (1 finished, 1 stopped), a report, 0 s old; "
        "what has not begun is not counted"
    )
    told = status_json(found)
    assert json.loads(json.dumps(told))[1]["workers"][0]["pid"] == os.getpid()


def test_what_is_nothing_is_refused(tmp_path):
    with pytest.raises(InputError, match="is not there; give the directory of a run"):
        read_status(tmp_path / "x")
    with pytest.raises(InputError, match="holds no training and no evaluation"):
        read_status(tmp_path)
