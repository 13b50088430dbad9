"""BYOL's loss against NumPy, and its views."""

import numpy as np
import pytest
import torch

from mt3.objectives.augment import apply_views, draw_views, make_views, seeded_generator
from mt3.objectives.byol import Byol, byol_loss
from mt3.objectives.objective import Outputs, Views


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


def test_a_stack_has_a_loss_for_each_member():
    r, z = torch.randn(2, 3, 8, 5, dtype=torch.float64)
    each = Byol("paper").loss(Outputs(r, {"r": r}), Views(r), z)
    torch.testing.assert_close(each, torch.stack([byol_loss(*pair) for pair in zip(r, z, strict=True)]))


def test_targets_are_projections_without_a_gradient():
    z = torch.randn(4, 5, requires_grad=True)
    target = Byol("paper").target(Outputs(z, {"z": z, "r": z}))
    assert torch.equal(target, z)
    assert not target.requires_grad


@pytest.mark.parametrize(("variant", "whole"), [("paper", True), ("official", False)])
def test_views_are_pairs_of_augmented_copies(variant, whole):
    image = torch.rand(3, 32, 32, generator=seeded_generator("image"))
    views = Byol(variant).test_views(image, 50, seeded_generator("views"))
    draws = draw_views(100, seeded_generator("views"))
    assert torch.equal(views.images, apply_views(image.expand(100, -1, -1, -1), draws, whole))
    assert not torch.equal(views.images, apply_views(image.expand(100, -1, -1, -1), draws, not whole))
    assert (views.labels, views.plain) == (None, None)


def test_one_shift_is_on_the_images_and_their_views():
    raw = torch.rand(4, 3, 32, 32)
    asked = []

    def shift(batch: torch.Tensor) -> torch.Tensor:
        asked.append(batch)
        return batch / 2

    x, views = Byol("paper").train_views(raw, raw.flip(3), shift, seeded_generator("task"))
    (both,) = asked
    assert torch.equal(both, torch.cat([raw.flip(3), make_views(raw, seeded_generator("task"))]))
    assert torch.equal(torch.cat([x, views.images]), both / 2)
