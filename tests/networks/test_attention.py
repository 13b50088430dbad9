"""The choice of attention, which the threads of a process share."""

import torch

from mt3.networks.attention import PLAIN_ATTENTION


def test_the_last_one_out_takes_the_choice_back():
    fused = torch.backends.cuda.flash_sdp_enabled
    assert fused()
    first, second = (PLAIN_ATTENTION,) * 2
    first.__enter__()
    second.__enter__()
    first.__exit__()
    assert not fused()
    second.__exit__()
    assert fused()
    with PLAIN_ATTENTION, PLAIN_ATTENTION:
        assert not fused()
    assert fused()
