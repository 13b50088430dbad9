"""The state of a training: which weights it begins with."""

import pytest
import torch

import mt3
from mt3.objectives.augment import seeded_generator
from mt3.support.errors import InputError
from mt3.training.loop import train
from mt3.training.runs import RunOptions
from mt3.training.state import make_state, take_weights
from trainings import small_config, train_small

DRAWN = torch.Generator().manual_seed(0)  # not used where nothing is widened


def test_a_start_gives_what_fits(tmp_path, digits):
    train_small(small_config("baseline"), digits, tmp_path / "baseline", max_steps=2)
    source = mt3.load(tmp_path / "baseline")
    state = make_state(small_config(seed=1), digits, torch.device("cpu"), tmp_path / "baseline")
    fresh = make_state(small_config(seed=1), digits, torch.device("cpu"))
    own, given, random = (m.state_dict() for m in (state.model, source, fresh.model))
    for name in own:
        assert torch.equal(own[name], given[name] if name in given else random[name]), name
    with pytest.raises(InputError, match="give both the same"):
        take_weights(mt3.MT3Model("resnet8x16"), source, "source", DRAWN)
    for own, other in ((8, 14), (14, 8)):
        with pytest.raises(InputError, match="give both the same"):
            take_weights(mt3.MT3Model(f"resnet{own}x4"), mt3.MT3Model(f"resnet{other}x4"), "other", DRAWN)
    with pytest.raises(InputError, match="in the groups of its norms"):
        take_weights(mt3.MT3Model("resnet8x4"), mt3.MT3Model("resnet8x4g1"), "other", DRAWN)


@pytest.mark.parametrize("hidden", [0, 16])
def test_a_start_of_half_the_width_gives_the_same_answers(hidden):
    source, wide = (mt3.MT3Model(f"resnet14x{width}", 10, None, hidden).double() for width in (16, 32))
    source.reset_parameters(seeded_generator("narrow", 0))
    take_weights(wide, source, "source", seeded_generator("widen", 0))
    images = torch.rand(3, 3, 32, 32, generator=DRAWN, dtype=torch.double)
    assert (wide(images) - source(images)).abs().max() < 1e-12
    again = mt3.MT3Model("resnet14x32", 10, None, hidden).double()
    take_weights(again, source, "source", seeded_generator("widen", 0))
    assert all(torch.equal(a, b) for a, b in zip(wide.parameters(), again.parameters(), strict=True))


def test_a_start_of_half_the_width_needs_groups_that_stay_whole():
    with pytest.raises(InputError, match="in the groups of its norms"):  # a norm has 16 groups at most
        take_weights(mt3.MT3Model("resnet8x64"), mt3.MT3Model("resnet8x32"), "source", DRAWN)
    with pytest.raises(InputError, match="give both the same"):
        take_weights(mt3.MT3Model("resnet8x16"), mt3.MT3Model("resnet8x8"), "source", DRAWN)


def test_a_widened_training_resumes_to_the_bit(tmp_path, digits):
    train_small(small_config("baseline", width=16), digits, tmp_path / "narrow", max_steps=2)
    config = small_config("baseline", width=32)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_small(config, digits, whole, max_steps=4, init=tmp_path / "narrow")
    train_small(config, digits, parts, max_steps=2, init=tmp_path / "narrow")
    train_small(config, digits, parts, max_steps=4, resume=True)
    kept = [mt3.load(run).state_dict() for run in (whole, parts)]
    assert all(torch.equal(kept[0][name], kept[1][name]) for name in kept[0])


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("mt3", {"task_size": 4, "task_images": 2}),
        ("mt3", {"task_size": 2}),
        ("jt", {"task_size": 4, "task_images": 1}),
    ],
)
def test_copies_of_one_image_are_meta_trained_on_one_image_or_refused_before_anything_is_written(
    method, fields, digits, tmp_path
):
    config = small_config(method, objective="marginal-entropy", start="supervised", **fields)
    with pytest.raises(InputError, match="choose meta training with task_images=1, or byol"):
        train(config, digits, tmp_path / "run", RunOptions(max_steps=1))
    assert not (tmp_path / "run").exists()


def test_cross_entropy_alone_draws_no_views(digits, tmp_path):
    config = small_config("supervised", objective="marginal-entropy", task_size=4)
    assert train(config, digits, tmp_path / "run", RunOptions(max_steps=1)) is not None


def test_the_entropy_of_copies_is_meta_trained_from_a_network_without_heads(digits, tmp_path):
    train_small(small_config("supervised"), digits, tmp_path / "start", max_steps=1)
    config = small_config(objective="marginal-entropy", task_size=4, task_images=1, gamma=0.0)
    train(config, digits, tmp_path / "run", RunOptions(max_steps=2, init=tmp_path / "start"))
    model = mt3.load(tmp_path / "run")
    assert model.adaptation.objective == "marginal-entropy"
    assert {name.split(".")[0] for name, _ in model.named_parameters()} == {"backbone", "hidden", "classify"}
