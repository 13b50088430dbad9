"""The embedded digits: pinned bytes, and an enlargement worked out by hand."""

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest

from mt3.data import load_dataset, load_digits
from mt3.data.digits import upscale


def test_digits_embedded_data_is_pinned() -> None:
    path = Path(sys.modules[load_digits.__module__].__file__ or "").with_name("digits.npz")
    with np.load(path, allow_pickle=False) as arrays:
        images, labels = arrays["images"], arrays["labels"]
    assert (images.shape, images.dtype) == ((1797, 8, 8), np.uint8)
    assert (labels.shape, labels.dtype) == ((1797,), np.uint8)
    assert hashlib.sha256(images.tobytes()).hexdigest() == (
        "8f26b2bd9d135c256808f68f14fdabddde6d9c7f869ae419704b051f0f14b3b3"
    )
    assert hashlib.sha256(labels.tobytes()).hexdigest() == (
        "8ba4f891220f5e4c9c819638d1602d74b83618f167043c6da52a2a247841ddf0"
    )
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_equal_scikit_learns() -> None:
    datasets = pytest.importorskip("sklearn.datasets", reason="needs scikit-learn, of the extra dev")
    raw = datasets.load_digits()
    digits = load_digits()
    order = np.random.RandomState(0).permutation(1797)
    expected = upscale(raw.images.astype(np.uint8))[order]
    np.testing.assert_array_equal(np.concatenate([digits.train_images, digits.test_images]), expected)
    np.testing.assert_array_equal(np.concatenate([digits.train_labels, digits.test_labels]), raw.target[order])


def test_digits_shapes_and_split() -> None:
    digits = load_dataset("digits")
    assert digits.train_images.shape == (1297, 32, 32, 3)
    assert digits.test_images.shape == (500, 32, 32, 3)
    for images, labels in (
        (digits.train_images, digits.train_labels),
        (digits.test_images, digits.test_labels),
    ):
        assert images.dtype == np.uint8
        assert images.flags.c_contiguous
        assert labels.dtype == np.int64
        assert len(images) == len(labels)
    assert np.bincount(digits.train_labels).tolist() == [132, 130, 125, 133, 121, 145, 130, 121, 131, 129]
    assert np.bincount(digits.test_labels).tolist() == [46, 52, 52, 50, 60, 37, 51, 58, 43, 51]
    assert digits.classes == tuple("0123456789")
    assert (digits.num_classes, digits.size) == (10, 32)


def test_upscale_equals_bilinear_interpolation_by_hand() -> None:
    image = np.random.default_rng(0).integers(0, 17, (8, 8)).astype(np.uint8)
    image[0, 0], image[7, 7] = 16, 0
    enlarged = upscale(image[None])[0]
    padded = np.pad(image.astype(float), 1, mode="edge")
    for y, x in [(0, 0), (0, 31), (1, 2), (5, 9), (15, 16), (30, 17), (31, 31)]:
        v, u = (y + 0.5) / 4 + 0.5, (x + 0.5) / 4 + 0.5  # in padded pixels
        top, left, dy, dx = int(v), int(u), v % 1, u % 1
        box = padded[top : top + 2, left : left + 2]
        value = np.array([1 - dy, dy]) @ box @ np.array([1 - dx, dx])
        assert enlarged[y, x].tolist() == [round(value * 255 / 16)] * 3
    assert enlarged[0, 0].tolist() == [255, 255, 255]
    assert enlarged[31, 31].tolist() == [0, 0, 0]
