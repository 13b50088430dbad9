"""Attention that can be differentiated twice."""

import threading
from contextlib import ExitStack

from torch.nn.attention import SDPBackend, sdpa_kernel


class PlainAttention:
    """Within it attention is computed by PyTorch's plain operations: its fused ones have no second derivative.

    PyTorch's choice is the whole process's, so that the first thread in makes it and the last one out takes it back. It
    can be entered any number of times.
    """

    def __init__(self) -> None:
        self._lock, self._users, self._choice = threading.Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._choice.enter_context(sdpa_kernel(SDPBackend.MATH))
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._choice.close()


PLAIN_ATTENTION = PlainAttention()
