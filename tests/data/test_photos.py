"""The embedded photos: pinned bytes, a test split alone."""

import hashlib

import numpy as np
import pytest

from mt3.config.config import make_config
from mt3.data import load_dataset
from mt3.support.errors import InputError
from mt3.training.runs import count_steps


def test_photos_are_the_first_test_images_of_cifar10() -> None:
    photos = load_dataset("photos")
    assert (photos.test_images.shape, photos.test_images.dtype) == ((200, 32, 32, 3), np.uint8)
    assert hashlib.sha256(photos.test_images.tobytes()).hexdigest() == (
        "a89b9ebe0d96c93c590fffbc09251cd3bbc7d13e7d3068cb3f6b8ca9c10dd323"
    )
    assert np.bincount(photos.test_labels).tolist() == [20, 14, 21, 19, 15, 18, 26, 18, 28, 21]
    assert photos.classes[:2] == ("airplane", "automobile")


def test_photos_are_not_to_be_trained_on() -> None:
    with pytest.raises(InputError, match="photos has 0 to train on"):
        count_steps(make_config("mt3", "photos", "paper"), load_dataset("photos"))


def test_photos_come_from_nowhere_else(tmp_path) -> None:
    with pytest.raises(InputError, match="The photos do not come from --data-dir"):
        load_dataset("photos", tmp_path)
