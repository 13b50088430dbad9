"""What all tests share."""

import os
import signal

import pytest
import torch

from mt3.data import Dataset, load_cifar10
from mt3.support.errors import InputError

# a shell starts background jobs with Ctrl-C ignored, `nohup` with a hang-up, and the processes that tests signal would
# inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Models that a test makes start from the same weights, whichever tests ran before."""
    torch.manual_seed(0)


@pytest.fixture
def cifar10() -> Dataset:
    """The real one, where there is one."""
    directory = os.environ.get("MT3_DATA_DIR")
    if not directory:
        pytest.skip("set MT3_DATA_DIR to a directory with the real CIFAR-10 to run this test")
    try:
        return load_cifar10(directory)
    except InputError as error:
        if str(error).startswith("No CIFAR-10"):  # a damaged copy must fail instead
            pytest.skip(f"MT3_DATA_DIR: {error}")
        raise
