"""What the tests of the commands share."""

from pathlib import Path

import pytest
from PIL import Image

from commands import train_words
from mt3.cli.main import main
from mt3.config.methods import METHODS
from mt3.data import load_digits


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> Path:
    """All trainings, from the command line; no test changes them."""
    folder = tmp_path_factory.mktemp("runs")
    for method in METHODS:
        assert main(train_words(method, folder / method)) == 0
    return folder


@pytest.fixture
def picture(tmp_path) -> Path:
    Image.fromarray(load_digits().test_images[0]).save(tmp_path / "digit.png")
    return tmp_path / "digit.png"
