"""Attention that can be differentiated twice."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

_LOCK = threading.Lock()
_USERS = 0
_HELD = ExitStack()


@contextmanager
def plain_attention() -> Iterator[None]:
    """Compute attention by PyTorch's plain operations where gradients are wanted: its fused ones have no second.

    The choice is the whole process's, so that the first thread makes it and the last one takes it back.
    """
    global _USERS
    if not torch.is_grad_enabled():
        yield
        return
    with _LOCK:
        if not _USERS:
            _HELD.enter_context(sdpa_kernel(SDPBackend.MATH))
        _USERS += 1
    try:
        yield
    finally:
        with _LOCK:
            _USERS -= 1
            if not _USERS:
                _HELD.close()
