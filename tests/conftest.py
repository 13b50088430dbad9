"""What all tests share."""

import signal

import pytest
import torch

# a shell starts background jobs with Ctrl-C ignored, and the processes that tests interrupt would inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Models that a test makes start from the same weights, whichever tests ran before."""
    torch.manual_seed(0)
