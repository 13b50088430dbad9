"""The rotations' loss against NumPy, and their views."""

import numpy as np
import pytest
import torch

from mt3.objectives.augment import seeded_generator
from mt3.objectives.objective import Outputs, Views
from mt3.objectives.rotation import Rotation, rotation_loss


def test_rotation_loss_equals_numpy():
    logits = np.random.default_rng(1).normal(size=(6, 4))
    quarters = np.array([0, 1, 2, 3, 1, 1])
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    want = -np.log(probabilities[np.arange(6), quarters]).mean()
    assert rotation_loss(torch.from_numpy(logits), torch.from_numpy(quarters)).item() == pytest.approx(want, rel=1e-12)


def test_a_stack_has_a_loss_for_each_member():
    logits, quarters = torch.randn(3, 8, 4, dtype=torch.float64), torch.randint(4, (3, 8))
    each = Rotation("paper").loss(Outputs(logits, {"turn": logits}), Views(logits, quarters), None)
    torch.testing.assert_close(each, torch.stack([rotation_loss(*pair) for pair in zip(logits, quarters, strict=True)]))


def test_rotation_views_are_turned_copies():
    image = torch.rand(3, 32, 32, generator=seeded_generator("image"))
    views = Rotation("paper").test_views(image, 4000, seeded_generator("views"))
    assert views.labels is not None
    assert views.plain is not None
    share = torch.bincount(views.labels, minlength=4) / 4000
    np.testing.assert_allclose(share, 0.25, atol=0.035)
    for i in range(20):
        turned = torch.rot90(views.plain[i], int(views.labels[i]), (1, 2))
        assert torch.equal(views.images[i], turned)


def test_a_task_shows_its_images_by_all_angles_upright_first():
    raw = torch.rand(3, 3, 32, 32)
    x, views = Rotation("paper").train_views(raw, raw.flip(3), lambda batch: batch / 2, seeded_generator("task"))
    assert torch.equal(x, raw.flip(3) / 2)
    assert views.labels is not None
    assert views.labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    for i, image in enumerate(views.images):
        assert torch.equal(image, torch.rot90(x[i % 3], i // 3, (1, 2)))
