"""The network against a hand-written one, its size, and its refusals."""

import numpy as np
import pytest
import torch

import mt3
import reference
from mt3.config.config import make_config
from mt3.data import load_digits
from mt3.models.classifier import count_parameters
from mt3.training.state import build_model


def parameters_by_formula(depth: int, width: int, classes: int, head: str, objective: str | None) -> int:
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
    total += {"paper": (f + 1) * 256, "official": f * 256, "linear": 0}[head]
    total += (f + 1) * classes if head == "linear" else 257 * classes
    total -= classes if (head, objective) == ("official", None) else 0
    if objective == "byol":
        total += 257 * 128 if head == "paper" else 257 * 256 + 257 * 128
        total += 129 * 256 + 257 * 128
    if objective == "rotation":
        total += stage(2 * width, f) + 2 * f + (f + 1) * 4
    return total


@pytest.mark.parametrize(
    ("depth", "width", "head", "objective"),
    [
        (26, 32, "paper", "byol"),
        (26, 32, "official", "byol"),
        (26, 32, "paper", None),
        (26, 32, "official", None),
        (26, 16, "linear", "rotation"),
        (26, 16, "linear", None),
        (8, 8, "paper", "byol"),
        (14, 12, "official", "rotation"),
    ],
)
def test_parameter_count(depth, width, head, objective):
    variant, hidden = ("paper", 0) if head == "linear" else (head, 256)
    adaptation = mt3.Adaptation(objective, variant=variant)
    model = mt3.MT3Model(f"resnet{depth}x{width}", 10, objective, hidden, adaptation=adaptation)
    assert count_parameters(model) == parameters_by_formula(depth, width, 10, head, objective)
    with torch.no_grad():
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_outputs_equal_the_hand_written_network(variant):
    adaptation = mt3.Adaptation(variant=variant)
    model = mt3.MT3Model("resnet8x4", 5, hidden=7, projection=6, adaptation=adaptation).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
        images = torch.rand(3, 3, 32, 32, dtype=torch.float64)
        got = model.outputs(images)
        want = reference.network(dict(model.named_parameters()), images, 2, torch.relu)
    for a, b in zip((got.logits, got.heads["z"], got.heads["r"]), want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(model(images), got.logits)


def test_initial_weights_are_glorot_uniform_and_seeded():
    model = mt3.MT3Model("resnet26x32", 10)
    model.reset_parameters(torch.Generator().manual_seed(3))
    weight = model.backbone.late.stage[1].conv1.weight
    bound = (6 / (9 * 128 + 9 * 128)) ** 0.5
    assert weight.abs().max().item() == pytest.approx(bound, rel=1e-3)
    assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.01)
    assert model.backbone.late.stage[1].conv1.bias.abs().max() == 0
    again = mt3.MT3Model("resnet26x32", 10)
    again.reset_parameters(torch.Generator().manual_seed(3))
    assert torch.equal(again.backbone.late.stage[1].conv1.weight, weight)


def test_uint8_and_float_images_are_the_same():
    model = mt3.MT3Model("resnet8x4", 10)
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(model(images), model(images.float() / 255))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backbone": "resnet10x32"}, r"6n\+2 layers .* got 10"),
        ({"backbone": "resnet1202x512"}, "at most 1000000000 weights, got resnet1202x512"),
        ({"hidden": 65536, "projection": 65536}, "at most 1000000000 weights"),
        ({"objective": "simclr"}, "Unknown objective 'simclr': expected one of byol, rotation, entropy, "),
        ({"backbone": "resnet8x12g5"}, "width that 5 groups divide, got 12"),
        ({"num_classes": 1}, "num_classes to be a whole number from 2 to 100000, got 1"),
        ({"size": 15}, "size to be a whole number from 16 to 512, got 15"),
        ({"precision": "int8"}, "Unknown precision 'int8': expected one of float32, bfloat16"),
        ({"adaptation": mt3.Adaptation("rotation")}, "model's objective byol to adapt with, got rotation"),
        ({"objective": None, "adaptation": mt3.Adaptation()}, "model's objective None to adapt with, got byol"),
        ({"num_classes": np.int64(10)}, "num_classes to be Python's own number"),
        ({"classes": ["a"]}, "10 names of classes, got 1"),
        ({"classes": [*"abcdefghi", 9]}, "10 names of classes, got 10"),
    ],
)
def test_bad_models_are_refused(arguments, message):
    with pytest.raises(mt3.InputError, match=message):
        mt3.MT3Model(**({"num_classes": 10} | arguments))


def test_the_authors_baseline_has_no_bias_before_its_classes():
    """In their code, unlike the class layer beside a projector; with the preset's own method and head."""
    found = {}
    for method in ("baseline", "mt3", "jt"):
        config = make_config(method, "digits", "official", overrides={"depth": 8, "width": 4})
        model = build_model(config, load_digits())
        found[method] = (model.hidden.bias is not None, model.classify.bias is not None)
    assert found == {"baseline": (False, False), "mt3": (False, True), "jt": (False, True)}
