"""What the tests of evaluations share."""

import pytest

from mt3.data import Dataset, load_digits
from mt3.evaluation.protocol import TestImages


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return load_digits()


@pytest.fixture(scope="session")
def images(digits) -> TestImages:
    return TestImages(digits)
