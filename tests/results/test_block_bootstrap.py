"""Intervals along a stream: moving blocks against their formula, coverage on a known series, and pairing."""

import math

import numpy as np
import pytest

from mt3.results.statistics import (
    Z95,
    area_under_curve,
    block_interval,
    block_length,
    pack_positions,
    paired_interval,
    stream_interval,
    t95,
    unpack_positions,
)


def test_blocks_grow_with_the_stream_and_hold_a_step():
    assert [block_length(count) for count in (1, 2, 100, 200, 3000)] == [1, 2, 10, 15, 55]
    assert block_length(100, batch=64) == 64
    assert block_length(30, batch=64) == 30


@pytest.mark.parametrize(("count", "length"), [(120, 10), (600, 30)])
def test_the_interval_is_as_wide_as_the_formula_of_independent_blocks_says(count, length):
    """A resampled mean is the mean of n / L independent draws of a block, so that its variance is known."""
    series = np.random.default_rng(0).normal(3.0, 5.0, count)
    means = np.array([series[i : i + length].mean() for i in range(count - length + 1)])
    blocks = count // length
    reach = Z95 * means.std() / math.sqrt(blocks) * t95(blocks - 1) / Z95 * math.sqrt(blocks / (blocks - 1))
    found = block_interval(series, length)
    assert found.mean == pytest.approx(series.mean())
    assert (found.high - found.low) / 2 == pytest.approx(reach, rel=0.06)  # the bootstrap draws 2,000 times
    assert block_interval(series, length) == found  # the same draws
    assert block_interval(series, length, seed=1) != found


def test_blocks_of_one_give_the_usual_bootstrap():
    series = np.random.default_rng(1).normal(0.0, 1.0, 400)
    one, usual = block_interval(series, 1), paired_interval(series)
    assert (one.high - one.low) == pytest.approx(usual.high - usual.low, rel=0.06)


def test_a_single_block_tells_nothing():
    assert block_interval(np.array([1.0, 3.0]), 2) == (2.0, -98.0, 102.0)


def test_coverage_on_a_series_whose_neighbours_depend_on_one_another():
    """An AR(1) series of mean 0: intervals by blocks hold it nearly as often as 95 %, those of single values do not."""
    generator, rho, count, trials = np.random.default_rng(0), 0.7, 400, 300
    noise = generator.normal(size=(trials, count + 100))
    series = np.zeros_like(noise)
    for t in range(1, series.shape[1]):
        series[:, t] = rho * series[:, t - 1] + noise[:, t]
    series = series[:, 100:]
    by_blocks = [block_interval(s, block_length(count)) for s in series]
    independent = [paired_interval(s) for s in series]
    covered, ignored = (np.mean([d.low <= 0 <= d.high for d in found]) for found in (by_blocks, independent))
    assert 0.88 <= covered <= 0.98
    assert ignored <= 0.70


def test_corruptions_in_one_order_are_blocks_of_images():
    generator = np.random.default_rng(0)
    order = generator.permutation(40)
    places = np.argsort(order)
    differences = [generator.normal(size=40) for _ in range(3)]
    found = stream_interval(differences, [places + 40 * n for n in range(3)], True)
    assert found == block_interval(np.mean(differences, axis=0)[order], 7)
    assert stream_interval(differences[:1], [places], True, batch=9) == block_interval(differences[0][order], 9)


def test_a_mixed_stream_takes_the_wider_interval():
    generator = np.random.default_rng(0)
    places = np.split(generator.permutation(90), 3)
    alike = np.tile(generator.normal(size=30), (3, 1))  # answers to an image depend on one another, neighbours do not
    assert stream_interval(list(alike), places, True) == paired_interval(alike[0])
    along = np.empty(90)
    along[np.concatenate(places)] = np.concatenate(alike)
    assert stream_interval(list(alike), places, False) == block_interval(along, 10)


def test_corruptions_of_unlike_size_weigh_the_same():
    differences = [np.full(10, 4.0), np.full(30, 2.0)]
    places = [np.arange(10), np.arange(10, 40)]
    assert stream_interval(differences, places, False).mean == pytest.approx(3.0)


def test_positions_are_packed_and_read_again():
    places = np.array([3, 0, 70_000, 2])
    assert pack_positions(places) == "00000003" + "00000000" + "00011170" + "00000002"
    np.testing.assert_array_equal(unpack_positions(pack_positions(places), 4), places)
    with pytest.raises(ValueError, match="4 positions for 5 images"):
        unpack_positions(pack_positions(places), 5)


def test_area_under_the_curve_counts_pairs():
    confidence = np.array([0.9, 0.8, 0.8, 0.3, 0.2])
    correct = np.array([True, True, False, False, True])
    pairs = [(a > b) + (a == b) / 2 for a in confidence[correct] for b in confidence[~correct]]
    assert area_under_curve(confidence, correct) == pytest.approx(100 * np.mean(pairs))
    assert area_under_curve(confidence, np.ones(5, bool)) is None
