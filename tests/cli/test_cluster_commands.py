"""Commands for work in several processes: shards, merging, torchrun's ranks, and status."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commands import run, train_words

ASKED = ["--corruptions", "contrast", "--limit", "60", "--views", "1", "--threads", "1"]


def results(out: Path) -> tuple[bytes, bytes]:
    return out.read_bytes(), out.with_suffix(".npz").read_bytes()


@pytest.fixture(scope="module")
def whole(runs, tmp_path_factory) -> Path:
    from mt3.cli.main import main

    out = tmp_path_factory.mktemp("whole") / "r.json"
    assert main(["evaluate", str(runs / "mt3"), *ASKED, "--out", str(out)]) == 0
    return out


def test_the_last_shard_prints_the_summary(capsys, runs, tmp_path, whole):
    out = tmp_path / "r.json"
    words = ["evaluate", runs / "mt3", *ASKED, "--out", out]
    code, text, err = run(capsys, *words, "--shard", "1/2")
    assert (code, text) == (0, f"shard 1/2 is done; the last one to finish writes {out}, or `mt3 merge {out}`\n")
    assert "evaluate shard 1/2: 60/60 images" in err
    code, text, _ = run(capsys, *words, "--shard", "0/2")
    assert code == 0
    assert text.endswith(f"wrote {out} and r.npz\n")
    assert "| contrast" in text
    assert results(out) == results(whole)
    code, text, _ = run(capsys, *words, "--shard", "0/2")
    assert (code, text) == (0, f"shard 0/2 is done; {out} is whole\n")


def test_a_rank_is_a_shard_unless_told_otherwise(capsys, runs, tmp_path, whole, monkeypatch):
    out = tmp_path / "r.json"
    words = ["evaluate", runs / "mt3", *ASKED, "--out", out]
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, ends in (("0", "is done"), ("1", "wrote")):
        monkeypatch.setenv("RANK", rank)
        code, text, err = run(capsys, *words)
        assert (code, f"evaluate shard {rank}/2: 60/60" in err, ends in text) == (0, True, True)
    assert results(out) == results(whole)
    _, _, err = run(capsys, "evaluate", runs / "mt3", *ASKED, "--out", tmp_path / "s.json", "--shard", "2/3")
    assert "evaluate shard 2/3" in err


def test_merge(capsys, runs, tmp_path, whole, monkeypatch):
    out = tmp_path / "r.json"
    words = ["evaluate", runs / "mt3", *ASKED, "--out", out]
    with monkeypatch.context() as patch:
        patch.setattr("mt3.evaluation.evaluate.has_all", lambda *_: False)  # each is killed before it merges
        for shard in ("0/2", "1/2"):
            assert run(capsys, *words, "--shard", shard)[0] == 0
    code, text, _ = run(capsys, "merge", out)
    assert code == 0
    assert text.endswith(f"wrote {out} and r.npz\n")
    assert results(out) == results(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.json", "r.npz"]
    assert run(capsys, "merge", out)[:2] == (0, f"{out} is whole; there was nothing to merge\n")
    for path, sentence in ((tmp_path / "x.json", "There are no pieces of"), (tmp_path, "Expected the JSON file that")):
        code, _, err = run(capsys, "merge", path)
        assert (code, err.count("\n")) == (2, 1)
        assert sentence in err


def test_a_wrong_shard_is_refused_before_any_work(capsys, runs, tmp_path):
    code, _, err = run(capsys, "evaluate", runs / "mt3", "--out", tmp_path / "r.json", "--shard", "2/2")
    assert (code, err.count("\n")) == (2, 1)
    assert "Expected a shard I/N from 0/N to N-1/N, such as 0/4, got '2/2'." in err
    assert not list(tmp_path.iterdir())


def test_status_of_a_training_that_failed_and_went_on(capsys, tmp_path):
    folder = tmp_path / "run"
    words = [*train_words("baseline", folder, steps=8), "--lr", "1e9"]
    code, _, err = run(capsys, *words)
    assert code == 2
    code, text, _ = run(capsys, "status", folder)
    assert code == 0
    assert text.startswith(f"{folder}: training baseline on digits, seed 3; failed, ")
    assert err.splitlines()[-1].removeprefix("mt3: ") in text
    code, text, _ = run(capsys, "status", "--json", folder)
    (told,) = json.loads(text)
    assert (told["state"], told["total"]) == ("failed", 8)
    assert told["error"].startswith("The loss or its gradient is not finite at step ")
    shutil.rmtree(folder)
    assert run(capsys, *train_words("baseline", folder, steps=8))[0] == 0
    (told,) = json.loads(run(capsys, "status", "--json", folder)[1])
    assert (told["state"], told["done"], told["error"], told["checkpoint"]) == ("stopped", 8, "", 8)
    assert not (folder / "progress.json").exists()


def test_status_of_an_evaluation_under_way_and_killed(capsys, runs, tmp_path):
    out = tmp_path / "r.json"
    words = ["evaluate", runs / "mt3", "--corruptions", "fog", "--limit", "500", "--out", out, "--shard", "0/2"]
    command = [sys.executable, "-m", "mt3", *map(str, words), "--threads", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("*/0*.npz")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (told,) = json.loads(run(capsys, "status", "--json", out)[1])
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (told["kind"], told["state"], told["total"]) == ("evaluation", "working", 1000)
    assert told["done"] >= 50
    assert [(w["pid"], w["shard"], w["total"]) for w in told["workers"]] == [(process.pid, "0/2", 500)]
    (told,) = json.loads(run(capsys, "status", "--json", tmp_path)[1])
    assert told["state"] == "gone"


@pytest.mark.slow
def test_torchrun_evaluates(runs, tmp_path, whole):
    """Three ranks, without a process group."""
    out = tmp_path / "r.json"
    words = ["evaluate", runs / "mt3", *ASKED, "--out", out]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "-m", "mt3", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert results(out) == results(whole)
    assert (done.stdout.count("wrote "), done.stdout.count(" is done; ")) == (1, 2)
