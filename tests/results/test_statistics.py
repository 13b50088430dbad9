"""Accuracy, likelihood, calibration and intervals against values worked out by hand."""

import numpy as np
import pytest
from scipy import stats

from mt3.results.statistics import (
    calibration_error,
    is_correct,
    mean_interval,
    pack_correct,
    paired_gain,
    t95,
    unpack_correct,
    wilson_interval,
)


def test_calibration_error_cancels_within_a_bin_only():
    p = np.array([[0.80, 0.20], [0.82, 0.18]], dtype=np.float32)  # the same bin of width 1/15
    assert calibration_error(p.max(1), np.array([True, False])) == pytest.approx(abs(0.80 - 1 + 0.82) / 2, rel=1e-6)
    assert calibration_error(np.array([1.0], dtype=np.float32), np.array([True])) == 0.0


@pytest.mark.parametrize(("hits", "count"), [(0, 10), (7, 10), (95, 100), (100, 100)])
def test_wilson_interval_equals_scipy(hits, count):
    want = stats.binomtest(hits, count).proportion_ci(method="wilson")
    assert wilson_interval(hits, count) == pytest.approx((100 * want.low, 100 * want.high), abs=1e-9)


def test_paired_gain_of_one_corruption():
    before = np.array([True, False, False, True, False])
    after = np.array([True, True, True, False, False])
    d = np.array([0, 100, 100, -100, 0])
    reach = stats.norm.ppf(0.975) * d.std(ddof=1) / np.sqrt(5)
    got = paired_gain(after, before)
    assert got == pytest.approx((20.0, 20 - reach, 20 + reach))


def test_an_image_under_many_corruptions_is_one_observation():
    rng = np.random.default_rng(0)
    before, after = rng.random((2, 1, 50)) < 0.5
    once = paired_gain(after, before)
    assert paired_gain(np.repeat(after, 8, 0), np.repeat(before, 8, 0)) == pytest.approx(once)


def test_is_correct():
    assert is_correct(np.array([[0.2, 0.8], [0.6, 0.4]], dtype=np.float32), np.array([1, 1])).tolist() == [True, False]


def test_t_quantiles_are_students():
    for freedom in (*range(1, 40), 100, 1000):
        assert t95(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=2e-4)


def test_interval_over_runs():
    # mean 2, deviation 1, three runs
    mean, low, high = mean_interval([1.0, 2.0, 3.0])
    assert mean == 2
    assert high - 2 == 2 - low == pytest.approx(4.3027 / np.sqrt(3))


def test_answers_survive_packing():
    for count in (1, 8, 9, 300):
        correct = np.arange(count) % 3 == 0
        assert len(pack_correct(correct)) == 2 * -(-count // 8)
        np.testing.assert_array_equal(unpack_correct(pack_correct(correct), count), correct)
    with pytest.raises(ValueError, match="2 bytes for 8 images"):
        unpack_correct("ffff", 8)
