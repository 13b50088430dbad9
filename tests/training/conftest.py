"""What the tests of training share."""

import pytest

from mt3.data import Dataset, load_digits


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return load_digits()
