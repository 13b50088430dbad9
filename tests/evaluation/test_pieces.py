"""The pieces of an evaluation on disk."""

import numpy as np
import pytest

import mt3
from evaluating import ask
from mt3.evaluation.pieces import pieces_of
from mt3.evaluation.protocol import CLEAN
from mt3.support.errors import InputError


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (50, [50]), (51, [26, 25]), (101, [34, 33, 34])])
def test_pieces_are_even(count, sizes):
    assert [piece.stop - piece.start for piece in pieces_of({CLEAN: count})] == sizes
    both = pieces_of({CLEAN: count, ("fog", 5): count})
    assert [piece.source for piece in both] == [CLEAN, ("fog", 5)] * len(sizes)


def test_leftovers_of_a_kill_are_removed_and_pieces_of_no_protocol_not_used(tmp_path, images):
    pieces = tmp_path / "r.json.partial"
    pieces.mkdir()
    np.savez(pieces / "000000-contrast-5.npz", before=np.full((2, 10), 0.1, np.float32))
    for name in (".r.json.abcd_123.tmp", ".r.npz.abcd_123.tmp", ".other.json.abcd_123.tmp"):
        (tmp_path / name).touch()
    for name in (".protocol.json.abcd_123.tmp", ".000000-clean-0.npz.abcd_123.tmp"):
        (pieces / name).touch()
    got = ask(tmp_path / "r.json", images, limit=2, views=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.json.abcd_123.tmp", "r.json", "r.npz"]
    assert got.value == ask(tmp_path / "s.json", images, limit=2, views=1).value


def test_an_evaluation_that_fails_at_once_leaves_nothing(tmp_path, images):
    out = tmp_path / "new" / "r.json"
    with pytest.raises(InputError, match="not finite; lower lr"):
        ask(out, images, limit=2, adaptation=mt3.Adaptation(lr=1e30, views=1))
    assert not out.parent.exists()
    ask(out, images, limit=2, views=1)  # with another rate, as it was told
