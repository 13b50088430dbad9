"""The entropies against NumPy, and AugMix's copies against Pillow's operations."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import mt3
from mt3.objectives import augmix as mixing
from mt3.objectives.augmix import augmix
from mt3.objectives.entropy import MARGIN, entropy, marginal_entropy
from mt3.objectives.objective import Outputs, Views
from mt3.objectives.registry import get_objective

RNG = np.random.default_rng(0)


def numpy_entropy(p: np.ndarray) -> np.ndarray:
    return -(p * np.log(p)).sum(-1)


def numpy_softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def loss(name: str, logits: np.ndarray) -> torch.Tensor:
    outputs, objective = Outputs(torch.from_numpy(logits), {}), get_objective(name)
    return objective.loss(outputs, Views(torch.zeros(0)), objective.target(outputs))


def test_entropies_equal_numpys():
    logits = 3 * RNG.normal(size=(2, 6, 4))
    p = numpy_softmax(logits)
    np.testing.assert_allclose(entropy(torch.from_numpy(logits)), numpy_entropy(p), rtol=1e-12)
    np.testing.assert_allclose(marginal_entropy(torch.from_numpy(logits)), numpy_entropy(p.mean(1)), rtol=1e-12)
    np.testing.assert_allclose(loss("entropy", logits), numpy_entropy(p).mean(1), rtol=1e-12)
    for name in ("marginal-entropy", "marginal-entropy-augmix"):
        np.testing.assert_allclose(loss(name, logits), numpy_entropy(p.mean(1)), rtol=1e-12)


def test_huge_logits_have_an_entropy_and_a_gradient():
    logits = torch.tensor([[1e4, 0.0, -1e4]], requires_grad=True)
    (gradient,) = torch.autograd.grad(entropy(logits).sum() + marginal_entropy(logits), logits)
    assert gradient.abs().max() == 0
    assert entropy(logits).item() == 0


def test_unreliable_answers_are_left_out():
    """Those of an entropy above 0.4 ln C; a member without any has no loss and no gradient."""
    logits = np.array([[[5.0, 0, 0], [0.1, 0, 0], [3.0, 0, 0]], [[0.1, 0, 0], [0, 0, 0], [0, 0.2, 0]]])
    each = numpy_entropy(numpy_softmax(logits))
    assert (each < MARGIN * math.log(3)).tolist() == [[True, False, True], [False] * 3]
    found = loss("reliable-entropy", logits)
    assert found[0].item() == pytest.approx(each[0, [0, 2]].mean())
    assert found[1].isnan()
    given = torch.from_numpy(logits).requires_grad_()
    objective = get_objective("reliable-entropy")
    target = objective.target(Outputs(given, {}))
    (gradient,) = torch.autograd.grad(objective.loss(Outputs(given, {}), Views(given), target).sum(), given)
    assert gradient.isfinite().all()
    assert (gradient.abs().sum(-1) > 0).tolist() == [[True, False, True], [False] * 3]
    assert target.tolist() == [[True, False, True], [False] * 3]
    fewer = objective.loss(Outputs(given, {}), Views(given), torch.tensor([[True, True, False], [True] * 3]))
    assert fewer[0].item() == pytest.approx(each[0, 0])  # both the target and the answer have to be reliable


def test_a_model_trains_and_adapts_with_the_mean_entropy():
    x = RNG.integers(0, 256, (48, 16, 16, 3), dtype=np.uint8)
    model = mt3.MT3Model("resnet8x4g2", 3, "entropy", hidden=0)
    mt3.train(model, (x, np.arange(48) % 3), method="jt", objective="entropy", epochs=1, start=None)
    found = mt3.Adapter(model).compare(torch.from_numpy(x[:2]).permute(0, 3, 1, 2))
    assert (found.loss_after < found.loss_before).all()


def test_in_training_the_marginal_entropy_is_of_the_crops_of_one_image():
    raw, shifted = torch.rand(1, 3, 8, 8).repeat(4, 1, 1, 1), torch.rand(4, 3, 8, 8)
    x, views = get_objective("marginal-entropy").train_views(raw, raw, lambda _: shifted, torch.Generator())
    assert x.equal(shifted)
    assert views.images.equal(shifted)  # so that one pass gives both losses
    mixed = get_objective("marginal-entropy-augmix").train_views(raw, raw, lambda _: shifted, torch.Generator())
    assert mixed[0].equal(shifted)
    assert mixed[1].images.equal(augmix(shifted, torch.Generator()))


def as_pillow(x: torch.Tensor) -> Image.Image:
    return Image.fromarray((x.permute(1, 2, 0) * 255).round().to(torch.uint8).numpy())


def from_pillow(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255


@pytest.fixture
def photos() -> torch.Tensor:
    """Of few grey values, and of many."""
    bytes_ = RNG.integers(30, 200, (3, 3, 24, 24))
    bytes_[1] = bytes_[1] // 40 * 40
    bytes_[2, 0] = 77
    return torch.from_numpy(bytes_).float() / 255


def test_operations_are_pillows(photos):
    level = torch.full((3,), 0.9)
    for mine, theirs in [
        (mixing._autocontrast(photos), ImageOps.autocontrast),
        (mixing._equalize(photos), ImageOps.equalize),
        (mixing._posterize(photos), lambda image: ImageOps.posterize(image, 4)),
        (mixing._solarize(photos, level), lambda image: ImageOps.solarize(image, 256 - 23)),
    ]:
        want = torch.stack([from_pillow(theirs(as_pillow(x))) for x in photos])
        torch.testing.assert_close(mine, want, atol=1.01 / 255, rtol=0)
    bright = photos + 55 / 255
    want = torch.stack([from_pillow(ImageOps.solarize(as_pillow(x), 256 - 23)) for x in bright])
    torch.testing.assert_close(mixing._solarize(bright, level), want, atol=1e-6, rtol=0)
    for degrees in (3, -3):
        want = torch.stack(
            [from_pillow(as_pillow(x).rotate(degrees, Image.Resampling.BILINEAR, fillcolor=(128,) * 3)) for x in photos]
        )
        turned = mixing._warp(photos, turn=torch.full((3,), float(degrees)))
        torch.testing.assert_close(turned[..., 3:-3, 3:-3], want[..., 3:-3, 3:-3], atol=0.02, rtol=0)
    moved = mixing._warp(photos, shift_x=torch.full((3,), 2 / 24))  # a pixel
    torch.testing.assert_close(moved[..., :-1], photos[..., 1:], atol=1e-5, rtol=0)
    torch.testing.assert_close(moved[..., -1], torch.full((3, 3, 24), 128 / 255), atol=1e-5, rtol=0)


def test_copies_are_mixtures_of_the_image_with_chains_on_it(photos):
    images = photos[:1].expand(400, -1, -1, -1)
    copies = augmix(images, torch.Generator().manual_seed(0))
    assert torch.equal(copies, augmix(images, torch.Generator().manual_seed(0)))
    assert copies.min() >= 0
    assert copies.max() <= 1
    assert len({float(c.sum()) for c in copies}) > 390
    away = (copies - images).flatten(1).norm(dim=1)
    assert (away > 0).float().mean() > 0.95
    # the operations are mild, and half of a mixture is the image itself on average
    assert away.mean() < 0.5 * images[0].norm()


def test_an_image_without_chains_is_itself(monkeypatch, photos):
    monkeypatch.setattr(mixing, "_operate", lambda x, *_: x)
    torch.testing.assert_close(augmix(photos, torch.Generator()), photos, atol=1e-6, rtol=0)


def test_chains_are_one_to_three_operations_long(monkeypatch, photos):
    """With an operation that adds 0.01, a mixture tells the mean length of its chains: 2 of 1, 2 and 3."""
    monkeypatch.setattr(mixing, "_operate", lambda x, *_: x + 0.01)
    images = torch.full((3000, 3, 2, 2), 0.5)
    added = 100 * (augmix(images, torch.Generator().manual_seed(1)) - images)[:, 0, 0, 0]
    assert added.mean().item() == pytest.approx(0.5 * 2, abs=0.04)  # half of it is the image
    assert 0 <= added.min() <= added.max() <= 3 + 1e-4


def test_each_operation_is_drawn_as_often(photos):
    drawn = torch.linspace(0, 0.9999, 9000)
    images = torch.rand(9000, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    found = mixing._operate(images, drawn, torch.ones(9000), torch.ones(9000))
    for number, mine in enumerate(found.chunk(9)):
        part = images.chunk(9)[number]
        want = mixing._operate(part, torch.full((1000,), (number + 0.5) / 9), torch.ones(1000), torch.ones(1000))
        assert torch.equal(mine[1:-1], want[1:-1])
    assert torch.equal(found[:900], mixing._autocontrast(images[:900]))
