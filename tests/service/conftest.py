"""What the tests of the service share."""

import io
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="the service needs the extra serve")

from mt3.service.describe import EXAMPLES
from serving import served


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    with served(seconds=600.0, streams=1000) as address:  # a busy machine is slow, and some tests begin many streams
        yield address


@pytest.fixture(scope="session")
def photos() -> list[bytes]:
    """The example photos, as files."""
    return [file.read_bytes() for _, file in EXAMPLES]


@pytest.fixture(scope="session")
def pixels(photos) -> list[np.ndarray]:
    return [np.asarray(Image.open(io.BytesIO(photo)).convert("RGB")) for photo in photos]
