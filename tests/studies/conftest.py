"""What the tests of studies share."""

from pathlib import Path

import pytest

from mt3.cli.main import main
from mt3.data import Dataset, load_digits
from small_study import words


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    monkeypatch.setattr("mt3.studies.clock.TIMED", 0.0)


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return load_digits()


@pytest.fixture(scope="session")
def study(tmp_path_factory) -> Path:
    """A whole study, not interrupted; no test changes it."""
    out = tmp_path_factory.mktemp("study") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mt3.studies.clock.TIMED", 0.0)
        assert main(words(out)) == 0
    return out
