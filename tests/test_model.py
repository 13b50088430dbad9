"""The network against a hand-written one, its size, and its refusals."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import mt3
import reference
from mt3.model import count_parameters, refuse_batch_norm


def parameters_by_formula(depth: int, width: int, classes: int, head: str, selfsup: str) -> int:
    """Count convolutions, norms and heads from the architecture's description."""
    n = (depth - 2) // 6

    def stage(inputs: int, outputs: int) -> int:
        total = 0
        for i in range(n):
            first = inputs if i == 0 else outputs
            total += 2 * first + (9 * first + 1) * outputs + 2 * outputs + (9 * outputs + 1) * outputs
        return total

    f = 4 * width
    total = 27 * width + stage(width, width) + stage(width, 2 * width) + stage(2 * width, f) + 2 * f
    total += {"mt3": (f + 1) * 256, "official": f * 256, "linear": 0}[head]
    total += (f + 1) * classes if head == "linear" else 257 * classes
    total -= classes if (head, selfsup) == ("official", "none") else 0
    if selfsup == "byol":
        total += 257 * 128 if head == "mt3" else 257 * 256 + 257 * 128
        total += 129 * 256 + 257 * 128
    if selfsup == "rotation":
        total += stage(2 * width, f) + 2 * f + (f + 1) * 4
    return total


@pytest.mark.parametrize(
    ("depth", "width", "head", "selfsup"),
    [
        (26, 32, "mt3", "byol"),
        (26, 32, "official", "byol"),
        (26, 32, "mt3", "none"),
        (26, 32, "official", "none"),
        (26, 16, "linear", "rotation"),
        (26, 16, "linear", "none"),
        (8, 8, "mt3", "byol"),
        (14, 12, "official", "rotation"),
    ],
)
def test_parameter_count(depth, width, head, selfsup):
    model = mt3.MT3Model(10, depth=depth, width=width, head=head, selfsup=selfsup)
    assert count_parameters(model) == parameters_by_formula(depth, width, 10, head, selfsup)
    with torch.no_grad():
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("head", ["mt3", "official"])
def test_outputs_equal_the_hand_written_network(head):
    model = mt3.MT3Model(5, depth=8, width=4, head=head, hidden=7, projection=6).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
        images = torch.rand(3, 3, 32, 32, dtype=torch.float64)
        got = model(images, full=True)
        want = reference.network(dict(model.named_parameters()), images, 2, torch.relu)
    for a, b in zip((got.logits, got.projection, got.prediction), want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(model(images), got.logits)


@pytest.mark.parametrize(("width", "groups"), [(32, 16), (64, 16), (16, 8), (8, 4), (2, 1)])
def test_default_groups(width, groups):
    assert mt3.MT3Model(10, depth=8, width=width).norm.num_groups == groups


def test_initial_weights_are_glorot_uniform_and_seeded():
    model = mt3.MT3Model(10)
    model.reset_parameters(torch.Generator().manual_seed(3))
    weight = model.stage3[1].conv1.weight
    bound = (6 / (9 * 128 + 9 * 128)) ** 0.5
    assert weight.abs().max().item() == pytest.approx(bound, rel=1e-3)
    assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.01)
    assert model.stage3[1].conv1.bias.abs().max() == 0
    again = mt3.MT3Model(10)
    again.reset_parameters(torch.Generator().manual_seed(3))
    assert torch.equal(again.stage3[1].conv1.weight, weight)


def test_uint8_and_float_images_are_the_same():
    model = mt3.MT3Model(10, depth=8, width=4)
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(model(images), model(images.float() / 255))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 10}, r"6n\+2 layers .* got 10"),
        ({"depth": 2}, "got 2"),
        ({"head": "cnn"}, "Unknown head 'cnn': expected one of mt3, official, linear"),
        ({"selfsup": "simclr"}, "Unknown self-supervised task 'simclr'"),
        ({"head": "linear"}, "shares the hidden layer"),
        ({"width": 12, "groups": 5}, "width that 5 groups divide, got 12"),
        ({"num_classes": 1}, "at least 2 classes, got 1"),
        ({"groups": 0}, "0 groups"),
        ({"clip_mode": "soft"}, "clip_mode global or tensor"),
        ({"adapt_lr": float("inf")}, "finite adapt_lr"),
        ({"classes": ["a"]}, "10 class names, got 1"),
    ],
)
def test_bad_models_are_refused(arguments, message):
    with pytest.raises(mt3.InputError, match=message):
        mt3.MT3Model(**({"num_classes": 10} | arguments))


def test_batch_norm_is_refused_with_a_reason():
    with pytest.raises(mt3.InputError, match=r"\(1\).*statistics are that image's"):
        refuse_batch_norm(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    refuse_batch_norm(mt3.MT3Model(10, depth=8, width=4))


@pytest.mark.parametrize(
    "change",
    [
        {"depth": "8"},
        {"width": None},
        {"adapt_steps": 1.5},
        {"fresh_views": 1},
        {"classes": "ab"},
        {"colour": 1},
        {"adapt_views": 0},
        {"classes": ["a"]},
    ],
)
def test_damaged_config_is_refused(tmp_path, change):
    mt3.MT3Model(4, depth=8, width=4).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(mt3.InputError, match=r"config\.json"):
        mt3.load(tmp_path)


def test_weights_that_do_not_fit_are_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    mt3.MT3Model(4, depth=8, width=4).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["stem.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(mt3.InputError, match=r"stem\.weight should be \(4, 3, 3, 3\) and is absent"):
        mt3.load(tmp_path)
    with pytest.raises(RuntimeError, match=r"stem\.weight"):
        mt3.MT3Model.from_pretrained(tmp_path)


def test_saved_model_comes_back_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = mt3.MT3Model(4, depth=8, width=4, hidden=8, adapt_lr=0.05, classes=["a", "b", "c", "d"])
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["num_classes"], config["adapt_lr"], config["classes"]) == (4, 0.05, ["a", "b", "c", "d"])
    images = torch.rand(2, 3, 32, 32)
    for loaded in (mt3.MT3Model.from_pretrained(tmp_path), mt3.load(tmp_path)):
        np.testing.assert_array_equal(loaded(images).detach(), model(images).detach())
        assert (loaded.adapt_lr, loaded.classes) == (0.05, ["a", "b", "c", "d"])
