"""The orders of the four streams by hand, their units and pieces, and the state between pieces."""

import numpy as np
import pytest
import torch

from mt3.evaluation.pieces import Piece, path_of
from mt3.evaluation.streams import drop_state, make_stream, missing_along, read_state, write_state

A, B = ("fog", 5), ("contrast", 5)
LABELS = np.array([1, 0, 1, 2, 0, 2])


def orders(kind, seed=0, labels=LABELS):
    stream = make_stream(kind, {A: labels, B: labels}, seed)
    return {unit: [tuple(row) for row in order.tolist()] for unit, order in stream.units.items()}


def test_shift_is_a_unit_for_each_corruption_in_one_shuffled_order():
    units = orders("shift")
    assert list(units) == [A, B]
    images = [image for _, image in units[A]]
    assert sorted(images) == list(range(6))
    assert images != list(range(6))
    assert units[A] == [(0, i) for i in images]
    assert units[B] == [(1, i) for i in images]


def test_continual_is_one_unit_with_one_corruption_after_the_other():
    (unit, order), *rest = orders("continual").items()
    assert (unit, rest) == (("continual", 0), [])
    shift = orders("shift")
    assert order == shift[A] + shift[B]


def test_mixed_shuffles_all_corruptions_together():
    ((unit, order),) = orders("mixed").items()
    assert unit == ("mixed", 0)
    assert sorted(order) == [(s, i) for s in range(2) for i in range(6)]
    sources = [s for s, _ in order]
    assert sources not in ([0] * 6 + [1] * 6, [1] * 6 + [0] * 6)


def test_correlated_sorts_by_class_within_each_corruption():
    units = orders("correlated")
    images = [image for _, image in units[A]]
    classes = LABELS[images].tolist()
    assert sorted(images) == list(range(6))
    assert len([c for c, n in zip(classes, [*classes[1:], None], strict=True) if c != n]) == 3  # each class once
    assert units[B] == [(1, i) for i in images]
    runs = {tuple(LABELS[[i for _, i in orders("correlated", seed)[A]]]) for seed in range(20)}
    assert len(runs) > 1  # the seed decides which class comes first


@pytest.mark.parametrize("kind", ["shift", "continual", "mixed", "correlated"])
def test_the_seed_decides(kind):
    assert orders(kind) == orders(kind)
    assert len({str(orders(kind, seed)) for seed in range(5)}) == 5


def test_sources_may_have_images_of_their_own():
    stream = make_stream("continual", {A: LABELS, B: LABELS[:2]}, 0)
    order = stream.units["continual", 0]
    assert order[:, 0].tolist() == [0] * 6 + [1] * 2
    assert sorted(order[6:, 1].tolist()) == [0, 1]


def test_a_unit_goes_on_after_its_last_state(tmp_path):
    pieces = [Piece(source, start, start + 2) for source in (A, B) for start in (0, 2, 4)]
    first, second, third = pieces[:3]

    def missing(*kept: Piece) -> list[Piece]:
        return missing_along(pieces, [piece for piece in pieces if piece not in kept], tmp_path)

    assert missing() == pieces
    write_state(tmp_path, first, {"w": torch.tensor([1.5])})
    assert missing(first) == pieces[1:]
    torch.testing.assert_close(read_state(tmp_path, second)["w"], torch.tensor([1.5]))
    assert missing(first, second) == pieces  # no state before the third
    path_of(tmp_path, third).touch()
    assert missing(first, third) == pieces[1:]  # the third rests on a second that is gone
    assert not path_of(tmp_path, third).exists()
    assert missing(*pieces[:3]) == pieces[3:]
    path = tmp_path / "000002-fog-5.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert read_state(tmp_path, second) is None  # a changed bit is seen
    assert missing(first) == pieces
    drop_state(tmp_path, second)
    assert not path.exists()
