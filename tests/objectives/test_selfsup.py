"""The self-supervised losses against NumPy."""

import numpy as np
import pytest
import torch

from mt3.objectives.augment import seeded_generator
from mt3.objectives.selfsup import byol_loss, draw_test_views, rotation_loss


def test_byol_loss_equals_numpy():
    rng = np.random.default_rng(0)
    r, z = rng.normal(size=(2, 10, 7))  # five pairs: rows a_1..a_5, a~_1..a~_5

    def distance(a: np.ndarray, b: np.ndarray) -> float:
        return float(((a / np.linalg.norm(a) - b / np.linalg.norm(b)) ** 2).sum())  # squared distance of unit vectors

    want = np.mean([distance(r[k], z[5 + k]) + distance(r[5 + k], z[k]) for k in range(5)])
    assert byol_loss(torch.from_numpy(r), torch.from_numpy(z)).item() == pytest.approx(want, rel=1e-12)


def test_byol_loss_extremes():
    a = torch.randn(3, 4, dtype=torch.float64)
    swapped = torch.cat([a, 2 * a])
    assert byol_loss(torch.cat([3 * a, a]), swapped).item() == pytest.approx(0.0, abs=1e-12)
    assert byol_loss(-swapped, swapped).item() == pytest.approx(8.0)


def test_rotation_loss_equals_numpy():
    logits = np.random.default_rng(1).normal(size=(6, 4))
    quarters = np.array([0, 1, 2, 3, 1, 1])
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    want = -np.log(probabilities[np.arange(6), quarters]).mean()
    assert rotation_loss(torch.from_numpy(logits), torch.from_numpy(quarters)).item() == pytest.approx(want, rel=1e-12)


def test_rotation_views_are_turned_copies():
    image = torch.rand(3, 32, 32, generator=seeded_generator("image"))
    views, upright = draw_test_views(image, "rotation", 4000, seeded_generator("views"), 32)
    assert views.quarters is not None
    share = torch.bincount(views.quarters, minlength=4) / 4000
    np.testing.assert_allclose(share, 0.25, atol=0.035)
    for i in range(20):
        turned = torch.rot90(upright[i], int(views.quarters[i]), (1, 2))
        assert torch.equal(views.images[i], turned)
