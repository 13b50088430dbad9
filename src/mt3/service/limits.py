"""What a server takes from its users, and how what is beyond it is refused. Needs no torch."""

from dataclasses import dataclass, field, fields
from typing import Any

from mt3.support.errors import InputError, check_number, one_of, shown

OPTIONS = ("method", "steps", "lr", "views", "layers", "gate")  # what a request may say about its adaptation
STREAM_OPTIONS = ("method", "steps", "lr", "views", "layers", "momentum", "batch", "answer", "reset")


class Refused(Exception):  # noqa: N818  it is an answer
    """A request that gets a status other than 200, and one sentence; 429 and 503 may be tried again after seconds."""

    def __init__(self, status: int, sentence: str, again: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.again = status, again


def _limit(default: float, high: float, words: str) -> Any:
    """A field from 1 on, or from above 0 if it is no whole number."""
    low = 1 if isinstance(default, int) else 0.001
    return field(default=default, metadata={"low": low, "high": high, "words": words})


@dataclass(frozen=True)
class Limits:
    """Bounds of memory, of time and of work; the names are those of the command line."""

    stack: int = _limit(32, 1024, "images of all who wait that are adapted to at once; 1: each one by itself")
    wait: float = _limit(0.005, 10, "seconds in which the first image of a stack waits for others")
    queue: int = _limit(
        64, 100_000, "images that wait at most, or fewer if they take half of --seconds; beyond them 429"
    )
    seconds: float = _limit(30.0, 3600, "from a request's whole body to its answer; beyond them 503")
    body_seconds: float = _limit(10.0, 3600, "in which a body has to come; beyond them 503")
    body_mb: int = _limit(16, 1024, "of a body; beyond them 413")
    held_mb: int = _limit(256, 65_536, "of all bodies held at a time; beyond them 429")
    requests: int = _limit(256, 65_536, "answered at a time; beyond them 429")
    megapixels: int = _limit(25, 50, "of an image; beyond them 413")
    images: int = _limit(16, 1024, "of a request; beyond them 413")
    max_steps: int = _limit(10, 10_000, "inner steps that a request may ask for; beyond them 422")
    max_views: int = _limit(64, 10_000, "views that a request may ask for; beyond them 422")
    streams: int = _limit(16, 10_000, "streams open at a time; beyond them 429")
    stream_seconds: float = _limit(600.0, 1e6, "without a request after which a stream is forgotten")

    def __post_init__(self) -> None:
        for each in fields(self):
            low, high = each.metadata["low"], each.metadata["high"]
            check_number(each.name, getattr(self, each.name), low, high)
        if self.images > self.queue:
            raise InputError(f"Expected a queue of at least the {self.images} images of a request, got {self.queue}.")


def check_options(options: Any, limits: Limits, valid: tuple[str, ...] = OPTIONS) -> dict[str, Any]:
    """Options of a request whose names and sizes are within the limits; their values are for `Adaptation` to check."""
    if not isinstance(options, dict):
        raise InputError('Expected options to be an object, such as {"steps": 2}.')
    unknown = [name for name in options if name not in valid]
    if unknown:
        raise InputError(one_of("option", unknown[0], valid))
    for name, low, most in (
        ("steps", 0, limits.max_steps),
        ("views", 1, limits.max_views),
        ("batch", 1, limits.images),
    ):
        if name in options:
            check_number(name, options[name], low, most)
    if not isinstance(options.get("method", ""), str):
        raise InputError(f"Expected a method's name, got {shown(repr(options['method']))}.")
    return options
