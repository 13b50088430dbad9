"""Shards of an evaluation: which pieces, in any order, killed, started twice; merged once."""

import signal
import time
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mt3.evaluation.evaluate as module
from evaluating import answer, ask, do_shard, make_model, processes, race_to_merge, shard_protocol, start
from mt3.evaluation.evaluate import evaluate_shard
from mt3.evaluation.pieces import Piece, all_pieces, folder_of, path_of, units_of
from mt3.evaluation.protocol import CLEAN, TestImages
from mt3.evaluation.shards import WHOLE, Shard, merge, parse_shard, rank_shard
from mt3.support.errors import InputError
from mt3.support.files import own_file

FOG, SNOW = ("fog", 5), ("snow", 5)
ASKED = {"clean": True, "corruptions": ["fog", "snow"], "severities": [5], "images": 101}


def test_a_shard_takes_every_nth_piece():
    mine = [Shard(i, 4).pieces(ASKED) for i in range(4)]
    assert mine[0] == [Piece(CLEAN, 0, 34), Piece(FOG, 34, 67), Piece(SNOW, 67, 101)]
    assert mine[3] == [Piece(CLEAN, 34, 67), Piece(FOG, 67, 101)]
    assert sorted(piece for pieces in mine for piece in pieces) == sorted(all_pieces(ASKED))
    assert WHOLE.pieces(ASKED) == all_pieces(ASKED)
    assert Shard(11, 12).pieces(ASKED) == []
    assert str(mine[0][1]) == "images 34 to 66, fog 5"


def stream(*units: tuple[str, int, int], batch: int = 1) -> dict[str, Any]:
    told = [{"name": name, "severity": severity, "images": images} for name, severity, images in units]
    return ASKED | {"stream": {"units": told}, "adaptation": {"batch": batch}}


def test_a_stream_that_begins_anew_is_one_unit_for_each_corruption():
    asked = stream(("fog", 5, 101), ("snow", 5, 101))
    edges = [(0, 50), (50, 101)]  # no image is alone
    assert units_of(asked) == [[Piece(source, *edge) for edge in edges] for source in (FOG, SNOW)]
    assert Shard(1, 2).pieces(asked) == [Piece(SNOW, *edge) for edge in edges]


def test_a_stream_through_all_corruptions_is_one_unit_in_pieces_of_whole_steps():
    asked = stream(("continual", 0, 202), batch=64)
    edges = [(0, 64), (64, 128), (128, 192), (192, 202)]
    assert units_of(asked) == [[Piece(("continual", 0), *edge) for edge in edges]]
    assert Shard(1, 2).pieces(asked) == []
    assert [piece.stop for piece in all_pieces(stream(("mixed", 0, 100), batch=8))] == [56, 100]
    assert [piece.stop for piece in all_pieces(stream(("mixed", 0, 1)))] == [1]


def test_shards_are_read():
    assert parse_shard("2/3") == (2, 3)
    for text in ("3/3", "0/0", "1", "-1/2", "a/b", "1/2/3", "0/9999999", ""):
        with pytest.raises(InputError, match="Expected a shard I/N from 0/N to N-1/N, such as 0/4, got"):
            parse_shard(text)
    assert rank_shard({"RANK": "1", "WORLD_SIZE": "2"}) == (1, 2)
    assert rank_shard({"RANK": "1"}) == rank_shard({}) == WHOLE
    with pytest.raises(InputError, match="Expected a shard"):
        rank_shard({"RANK": "2", "WORLD_SIZE": "2"})


def do(out: Path, images: TestImages, shard: Shard, **more) -> bool:
    return evaluate_shard(make_model(), images, shard_protocol(**more), out, shard)


def files(out: Path) -> tuple[bytes, bytes]:
    return out.read_bytes(), out.with_suffix(".npz").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory, images) -> Path:
    """By one process: two pieces of clean images and two under contrast."""
    out = tmp_path_factory.mktemp("whole") / "r.json"
    assert do(out, images, WHOLE)
    assert not folder_of(out).exists()
    return out


def test_shards_in_any_order_give_the_same_bytes(tmp_path, images, whole):
    for count in (2, 3, 5):
        orders = list(permutations(range(count)))[:: {2: 1, 3: 2, 5: 119}[count]]
        for number, order in enumerate(orders):
            out = tmp_path / f"{count}-{number}" / "r.json"
            wrote = []
            for i in order:
                wrote.append(do(out, images, Shard(i, count)))
                assert out.exists() == wrote[-1] or any(wrote)
            assert wrote.count(True) == 1
            assert count == 5 or wrote[-1]  # of five, one has nothing to do
            assert files(out) == files(whole)
            assert sorted(path.name for path in out.parent.iterdir()) == ["r.json", "r.npz"]
            assert not do(out, images, Shard(0, count))  # again: there is nothing left


def test_shards_may_be_counted_otherwise_on_the_way(tmp_path, images, whole):
    out = tmp_path / "r.json"
    assert not do(out, images, Shard(1, 2))
    assert not do(out, images, Shard(0, 4))
    assert do(out, images, Shard(2, 3))
    assert files(out) == files(whole)


def test_another_protocol_is_refused_in_one_sentence(tmp_path, images, monkeypatch):
    out = tmp_path / "r.json"
    do(out, images, Shard(0, 2))
    sentence = r"r\.json\.partial holds an evaluation under another protocol, which differs in seed; choose another"
    with pytest.raises(InputError, match=sentence):
        do(out, images, Shard(1, 2), seed=1)
    # also where both began at the same time, so that there was nothing to compare with
    monkeypatch.setattr(module, "share_done", lambda *_: 0.0)
    with pytest.raises(InputError, match=sentence):
        do(out, images, Shard(1, 2), seed=1)


def test_a_piece_of_another_protocol_is_not_taken(tmp_path, images, whole):
    out, other = tmp_path / "r.json", tmp_path / "other.json"
    do(other, images, Shard(0, 2), seed=1)
    do(out, images, Shard(1, 2))
    for path in folder_of(other).glob("*.npz"):
        path.rename(folder_of(out) / path.name)
    with pytest.raises(
        InputError, match=r"is not whole: 2 of 4 pieces are missing, the first of them images 0 to 29, "
    ):
        merge(out)
    assert do(out, images, Shard(0, 2))
    assert files(out) == files(whole)


def test_other_labels_are_refused(tmp_path, digits, images):
    out = tmp_path / "r.json"
    do(out, images, Shard(0, 2))
    changed = digits.test_labels.copy()
    changed[3] = (changed[3] + 1) % 10
    others = TestImages(type(digits)(*list(vars(digits).values())[:4], changed, digits.classes))
    with pytest.raises(InputError, match="had images with different labels; give all of them the same data"):
        do(out, others, Shard(1, 2))


def test_a_shard_at_work_is_refused_and_others_are_not(tmp_path, images, whole):
    out = tmp_path / "r.json"
    with own_file(folder_of(out) / "shard-0-of-2.lock", "taken"):
        with pytest.raises(InputError, match=r"writing to .*r\.json\.partial as shard 0/2; wait until it ends"):
            do(out, images, Shard(0, 2))
        do(out, images, Shard(1, 2))
    assert do(out, images, Shard(0, 2))
    assert files(out) == files(whole)


def test_without_locks_two_of_one_shard_are_harmless(tmp_path, images, whole, monkeypatch):
    """While one computes its last piece, the other finishes, merges and removes the pieces."""
    monkeypatch.setattr("mt3.support.files._lock", lambda *_, **__: True)
    out, original, nested = tmp_path / "r.json", module._predict_piece, []
    do(out, images, Shard(0, 2))

    def slow(job, piece):
        found = original(job, piece)
        if not nested and piece.start:
            nested.append(piece)
            nested.append(do(out, images, Shard(1, 2)))
        return found

    monkeypatch.setattr(module, "_predict_piece", slow)
    assert not do(out, images, Shard(1, 2))
    assert nested[1] is True
    assert files(out) == files(whole)
    assert not folder_of(out).exists()


def test_merging_later(tmp_path, images, whole, monkeypatch):
    out = tmp_path / "r.json"
    with pytest.raises(InputError, match="There are no pieces of"):
        merge(out)
    do(out, images, Shard(0, 2))
    with pytest.raises(
        InputError, match="2 of 4 pieces are missing, the first of them images 0 to 29, contrast 5; run"
    ):
        merge(out)
    with monkeypatch.context() as patch:
        patch.setattr(module, "merge", lambda out: False)  # it is killed just before
        assert not do(out, images, Shard(1, 2))
    assert not out.exists()
    assert merge(out)
    assert files(out) == files(whole)
    assert not merge(out)


def test_several_processes_merge_once(tmp_path, images, whole, monkeypatch):
    out = tmp_path / "r.json"
    monkeypatch.setattr(module, "merge", lambda out: False)
    for i in range(3):
        do(out, images, Shard(i, 3))
    ready = processes.Barrier(4)
    racers = [start(race_to_merge, out, ready) for _ in range(4)]
    assert sorted(answer(racer) for racer in racers) == [False, False, False, True]
    assert files(out) == files(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.json", "r.npz"]


def test_killed_and_started_twice(tmp_path, images):
    """Two processes of each of two shards at the same time, after one that was killed after its first piece."""
    alone, out = tmp_path / "alone.json", tmp_path / "r.json"
    assert answer(start(do_shard, alone, WHOLE)) is True
    victim, _ = start(do_shard, out, Shard(1, 2))
    deadline = time.monotonic() + 60
    while not list(folder_of(out).glob("0*.npz")):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    victim.kill()
    victim.join()
    assert victim.exitcode == -signal.SIGKILL
    assert not out.exists()
    kept = {path: path.stat().st_mtime_ns for path in folder_of(out).glob("0*.npz")}
    assert answer(start(do_shard, out, Shard(1, 2))) is False
    assert {path: path.stat().st_mtime_ns for path in kept} == kept  # not done again
    said = [answer(twin) for twin in [start(do_shard, out, Shard(i, 2)) for i in (0, 1, 0, 1)]]
    assert said.count(True) == 1
    assert all(word in (True, False) or "is writing to" in word for word in said)
    assert files(out) == files(alone)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone.json", "alone.npz", "r.json", "r.npz"]


def test_answers_do_not_depend_on_the_shards(tmp_path, images, whole):
    """Nor on the pieces: those of twelve images alone are the same to rounding."""
    ask(tmp_path / "few.json", images, limit=12, controls=True)
    with np.load(whole.with_suffix(".npz")) as many, np.load(tmp_path / "few.npz") as few:
        for row in ("before", "after", "view_average"):
            np.testing.assert_allclose(many[f"contrast-5/{row}"][:12], few[f"contrast-5/{row}"], atol=1e-5)


def test_a_damaged_piece_of_another_shard_is_told(tmp_path, images, whole):
    out = tmp_path / "r.json"
    do(out, images, Shard(0, 2))
    damaged = path_of(folder_of(out), Piece(CLEAN, 0, 30))
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(InputError, match="1 of 4 pieces are missing, the first of them images 0 to 29, clean; run"):
        do(out, images, Shard(1, 2))
    assert do(out, images, Shard(0, 2))
    assert files(out) == files(whole)
