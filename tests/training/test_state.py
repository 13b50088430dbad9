"""The state of a training: which weights it begins with."""

import pytest
import torch

import mt3
from mt3.support.errors import InputError
from mt3.training.state import make_state, take_weights
from trainings import small_config, train_small


def test_a_start_gives_what_fits(tmp_path, digits):
    train_small(small_config("baseline"), digits, tmp_path / "baseline", max_steps=2)
    source = mt3.load(tmp_path / "baseline")
    state = make_state(small_config(seed=1), digits, torch.device("cpu"), tmp_path / "baseline")
    fresh = make_state(small_config(seed=1), digits, torch.device("cpu"))
    own, given, random = (m.state_dict() for m in (state.model, source, fresh.model))
    for name in own:
        assert torch.equal(own[name], given[name] if name in given else random[name]), name
    with pytest.raises(InputError, match="give both the same"):
        take_weights(mt3.MT3Model("resnet8x8"), source, "source")
    for own, other in ((8, 14), (14, 8)):
        with pytest.raises(InputError, match="give both the same"):
            take_weights(mt3.MT3Model(f"resnet{own}x4"), mt3.MT3Model(f"resnet{other}x4"), "other")
    with pytest.raises(InputError, match="in the groups of its norms"):
        take_weights(mt3.MT3Model("resnet8x4"), mt3.MT3Model("resnet8x4g1"), "other")
