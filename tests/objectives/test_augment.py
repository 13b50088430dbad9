"""A and B against their stated distributions, and against plain per-image formulas."""

import colorsys
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mt3.objectives.augment import BatchShift as Shift
from mt3.objectives.augment import (
    apply_shift,
    apply_views,
    crop_and_flip,
    draw_shift,
    draw_views,
    make_views,
    rotate,
    seeded_generator,
)

SIZE, TOP, LEFT, FLIP, JITTER, BRIGHT, CONTRAST, SATURATION, HUE, GREY = range(10)


def quiet_draws(count: int = 1) -> Tensor:
    """Draws that leave an image as it is: full crop, no flip, no jitter, no grey."""
    draws = torch.full((count, 10), 0.5, dtype=torch.float64)
    draws[:, SIZE] = 0.999
    draws[:, [FLIP, JITTER, GREY]] = 0.999
    return draws


def picture(count: int = 1, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_quiet_draws_change_nothing():
    x = picture()
    torch.testing.assert_close(apply_views(x, quiet_draws()), x)


@pytest.mark.parametrize(("size", "top", "left"), [(20, 0, 0), (20, 12, 5), (27, 3, 5), (31, 1, 0), (32, 0, 0)])
def test_crop_equals_cutting_out_and_interpolating(size, top, left):
    x = picture()
    draws = quiet_draws()
    draws[:, SIZE] = (size - 20 + 0.5) / 13
    draws[:, TOP] = (top + 0.5) / (32 - size + 1)
    draws[:, LEFT] = (left + 0.5) / (32 - size + 1)
    cut = x[:, :, top : top + size, left : left + size]
    want = F.interpolate(cut, size=(32, 32), mode="bilinear", align_corners=False)
    torch.testing.assert_close(apply_views(x, draws), want)
    draws[:, FLIP] = 0.0
    torch.testing.assert_close(apply_views(x, draws), want.flip(2))


def jitter_by_hand(pixels: np.ndarray, brightness: float, contrast: float, saturation: float, hue: float) -> np.ndarray:
    """Brightness and contrast on the array, saturation and hue pixel by pixel in the standard library's HSV."""
    x = pixels + brightness
    mean = x.mean((0, 1))
    x = (x - mean) * contrast + mean
    out = np.empty_like(x)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            h, s, v = colorsys.rgb_to_hsv(*x[i, j])
            out[i, j] = colorsys.hsv_to_rgb((h + hue) % 1.0, min(1.0, s * saturation), v)
    return out.clip(0, 1)


@pytest.mark.parametrize("u", [(0.9, 0.1, 0.8, 0.7), (0.2, 0.95, 0.1, 0.05), (0.5, 0.5, 0.99, 0.5)])
def test_colour_jitter_equals_hsv_pixel_by_pixel(u):
    x = 0.3 + 0.5 * picture()  # stays positive, where HSV is defined, after the brightness shift
    draws = quiet_draws()
    draws[:, JITTER] = 0.0
    draws[:, [BRIGHT, CONTRAST, SATURATION, HUE]] = torch.tensor(u, dtype=torch.float64)
    b, c, s, h = (2 * v - 1 for v in u)
    want = jitter_by_hand(x[0].permute(1, 2, 0).numpy(), 0.16 * b, 1 + 0.16 * c, 1 + 0.16 * s, 0.04 * h)
    np.testing.assert_allclose(apply_views(x, draws)[0].permute(1, 2, 0).numpy(), want, atol=1e-12)


def test_grey_drops_the_colour_by_luma():
    x = picture()
    draws = quiet_draws()
    draws[:, GREY] = 0.0
    want = 0.2989 * x[:, 0] + 0.5870 * x[:, 1] + 0.1140 * x[:, 2]
    for channel in range(3):
        torch.testing.assert_close(apply_views(x, draws)[:, channel], want)


def test_views_follow_the_stated_distribution():
    """Read crop, flip, jitter and grey back off a picture that shows them, over many draws."""
    count = 3000
    draws = draw_views(count, seeded_generator("test")).double()
    assert draws.min() >= 0
    assert draws.max() < 1
    # a ramp in x and y and a constant third channel: the slope tells the crop's size, the offset its place
    ramp = torch.arange(32, dtype=torch.float64) / 64
    x = torch.stack([ramp.expand(32, 32), ramp.unsqueeze(1).expand(32, 32), torch.zeros(32, 32).double()])
    still = draws.clone()
    still[:, [JITTER, GREY]] = 0.999
    views = apply_views(x.expand(count, -1, -1, -1), still)
    size = ((views[:, 0, 0, 20] - views[:, 0, 0, 10]) / 10 * 64 * 32).round()
    share = torch.bincount(size.long(), minlength=33)[20:].double() / count
    np.testing.assert_allclose(share, 1 / 13, atol=5 * (1 / 13 / count) ** 0.5)
    flipped = views[:, 1, 0, 0] > views[:, 1, 31, 0]
    assert flipped.double().mean().item() == pytest.approx(0.5, abs=0.04)
    left = (views[:, 0, 0, 0] * 64).round()  # the first column shows the first pixel of the crop
    small = size == 20
    starts = torch.bincount(left[small].long(), minlength=13).double() / small.sum()
    assert len(starts) == 13
    np.testing.assert_allclose(starts, 1 / 13, atol=0.09)
    # jitter: brightness of a grey picture moves by up to 0.16, uniformly, in 80 % of the views
    grey = torch.full((count, 3, 32, 32), 0.5, dtype=torch.float64)
    shift = apply_views(grey, draws)[:, 0, 0, 0] - 0.5
    moved = shift.abs() > 1e-4  # luma weights sum to 0.9999
    assert moved.double().mean().item() == pytest.approx(0.8, abs=0.035)
    assert shift.abs().max().item() == pytest.approx(0.16, abs=0.003)
    assert shift[moved].std().item() == pytest.approx(0.32 / 12**0.5, rel=0.06)
    assert shift[moved].mean().item() == pytest.approx(0.0, abs=0.008)
    # grey: a red picture loses its colour in 20 % of the views
    red = torch.zeros(count, 3, 32, 32, dtype=torch.float64)
    red[:, 0] = 0.5
    view = apply_views(red, draws)
    colourless = (view[:, 0, 0, 0] - view[:, 1, 0, 0]).abs() < 1e-9
    assert colourless.double().mean().item() == pytest.approx(0.2, abs=0.035)
    # hue and saturation of a colour that has room on every side, where only they act
    only = quiet_draws(count)
    only[:, JITTER] = 0.0
    only[:, [SATURATION, HUE]] = draws[:, [SATURATION, HUE]]
    colour = torch.tensor([0.6, 0.5, 0.3], dtype=torch.float64).view(1, 3, 1, 1).expand(count, 3, 32, 32)
    pixel = apply_views(colour, only)[:, :, 0, 0]
    hsv = np.array([colorsys.rgb_to_hsv(*p) for p in pixel[:2000].tolist()])
    h0, s0, v0 = colorsys.rgb_to_hsv(0.6, 0.5, 0.3)
    np.testing.assert_allclose(hsv[:, 2], v0)
    for values, reach in ((hsv[:, 0] - h0, 0.04), (hsv[:, 1] / s0 - 1, 0.16)):
        assert np.abs(values).max() <= reach + 1e-9
        assert values.std() == pytest.approx(2 * reach / 12**0.5, rel=0.06)


def test_upper_end_of_the_crop_can_be_exclusive():
    draws = quiet_draws(1000)
    draws[:, SIZE] = torch.linspace(0, 0.9999, 1000)
    ramp = (torch.arange(32, dtype=torch.float64) / 64).expand(1000, 3, 32, 32)
    views = apply_views(ramp, draws, whole=False)
    size = ((views[:, 0, 0, 20] - views[:, 0, 0, 10]) / 10 * 64 * 32).round()
    assert (size.min().item(), size.max().item()) == (20, 31)


@pytest.mark.parametrize(("whole", "largest"), [(True, 48), (False, 47)])
def test_crops_of_larger_images_are_larger(whole, largest):
    """Of 48 pixels, 30 to 48: the same share of the side as 20 to 32 of 32."""
    draws = quiet_draws(1000)
    draws[:, SIZE] = torch.linspace(0, 0.9999, 1000)
    ramp = (torch.arange(48, dtype=torch.float64) / 64).expand(1000, 3, 48, 48)
    views = apply_views(ramp, draws, whole)
    assert views.shape == ramp.shape
    size = ((views[:, 0, 0, 30] - views[:, 0, 0, 20]) / 10 * 64 * 48).round().long()
    share = torch.bincount(size, minlength=49).double() / 1000
    assert share[:30].sum() == share[largest + 1 :].sum() == 0
    np.testing.assert_allclose(share[30 : largest + 1], 1 / (largest - 29), atol=0.0015)


def test_padding_is_given_for_32_pixels():
    x = torch.rand(300, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    out = crop_and_flip(x, seeded_generator("crop"), 4, flip=False)
    rows = {(out[i, 0] != 0).any(1).nonzero()[0].item() for i in range(300)}
    assert rows == set(range(7))  # up to six rows of the padding are seen, 4 of 32


def test_make_views_gives_two_different_views_in_order():
    x = picture(3)
    views = make_views(x, seeded_generator(1))
    assert views.shape == (6, 3, 32, 32)
    draws = draw_views(6, seeded_generator(1))
    torch.testing.assert_close(views[4], apply_views(x[1:2], draws[4:5])[0])
    assert not torch.allclose(views[:3], views[3:])


def test_shift_follows_the_stated_distribution():
    generator = seeded_generator("shift")
    shifts = [draw_shift(generator) for _ in range(20_000)]
    assert np.mean([s.flip for s in shifts]) == pytest.approx(0.5, abs=0.018)
    assert np.mean([s.blur for s in shifts]) == pytest.approx(0.2, abs=0.015)
    assert not any(s.vertical_flip for s in shifts)
    brightness, noise = (np.array([getattr(s, k) for s in shifts]) for k in ("brightness", "noise_std"))
    assert brightness.min() >= -0.2
    assert brightness.max() <= 0.2
    assert brightness.std() == pytest.approx(0.4 / 12**0.5, rel=0.02)
    assert noise.min() >= 0
    assert noise.max() <= 0.02
    assert noise.mean() == pytest.approx(0.01, rel=0.02)
    vertical = [draw_shift(generator, vertical_flip=True).vertical_flip for _ in range(5000)]
    assert np.mean(vertical) == pytest.approx(0.5, abs=0.035)


def test_shift_is_the_same_for_all_images_but_its_noise():
    x = picture(1).expand(40, -1, -1, -1)
    shift = Shift(flip=True, vertical_flip=False, blur=False, brightness=0.0, noise_std=0.02)
    middle = 0.25 + 0.5 * x
    noise = apply_shift(middle, shift, seeded_generator(0)) - middle.flip(3)
    assert noise.std().item() == pytest.approx(0.02, rel=0.02)
    assert noise.mean().item() == pytest.approx(0.0, abs=3e-4)
    flat = noise.flatten(1)
    correlation = np.corrcoef(flat.numpy())
    assert np.abs(correlation - np.eye(40)).max() < 0.1
    quiet = Shift(flip=False, vertical_flip=True, blur=False, brightness=0.1, noise_std=0.0)
    torch.testing.assert_close(apply_shift(x, quiet, seeded_generator(0)), (x.flip(2) + 0.1).clamp(0, 1))


def test_blur_equals_a_reflected_gaussian_convolution():
    x = 0.2 + 0.6 * picture(2)
    shift = Shift(flip=False, vertical_flip=False, blur=True, brightness=0.0, noise_std=0.0)
    offsets = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    line = torch.exp(-(offsets**2) / 2)
    kernel = torch.outer(line, line) / line.sum() ** 2
    padded = F.pad(x, (1, 1, 1, 1), mode="reflect")
    want = F.conv2d(padded, kernel.expand(3, 1, 3, 3), groups=3)
    torch.testing.assert_close(apply_shift(x, shift, seeded_generator(0)), want)


def test_crop_and_flip_equals_padding_and_cutting():
    x = picture(200)
    for pad, flip in ((2, False), (4, True)):
        out = crop_and_flip(x, seeded_generator("crop"), pad, flip)
        places = set()
        for image, got in zip(x, out, strict=True):
            padded = F.pad(image, (pad, pad, pad, pad))
            found = [
                (i, j, f)
                for i in range(2 * pad + 1)
                for j in range(2 * pad + 1)
                for f in (False, True)
                if torch.equal(
                    padded[:, i : i + 32, j : j + 32].flip(2) if f else padded[:, i : i + 32, j : j + 32], got
                )
            ]
            assert len(found) == 1
            places.add(found[0])
        assert {p[0] for p in places} == set(range(2 * pad + 1))
        assert {p[1] for p in places} == set(range(2 * pad + 1))
        assert {p[2] for p in places} == ({False, True} if flip else {False})


def test_rotate_turns_each_image_by_its_quarters():
    x = picture(4)
    out = rotate(x, torch.tensor([0, 1, 2, 3]))
    for k in range(4):
        np.testing.assert_array_equal(out[k].numpy(), np.rot90(x[k].numpy(), k, (1, 2)))


def test_generator_depends_on_its_parts_alone():
    def first(*parts) -> float:
        return torch.rand(1, generator=seeded_generator(*parts)).item()

    assert first("task", 0, 1, 2) == first("task", 0, 1, 2)
    assert len({first("task", s, t, n) for s in range(3) for t in range(3) for n in range(3)}) == 27
    assert first("a", "bc") != first("ab", "c")


def test_a_shift_takes_five_numbers():
    """The stream of random numbers, and so every run, stays as it was."""
    a, b = (torch.Generator().manual_seed(3) for _ in range(2))
    draw_shift(a)
    torch.rand(5, generator=b)
    assert torch.equal(torch.rand(4, generator=a), torch.rand(4, generator=b))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_draws_do_not_depend_on_the_default_type(dtype):
    def draw() -> list[Tensor]:
        generator, images = torch.Generator().manual_seed(0), picture(4).float()
        shift = draw_shift(generator)
        return [
            draw_views(4, generator),
            apply_shift(images, replace(shift, blur=True), generator),
            crop_and_flip(images, generator, 2, flip=True),
            torch.tensor([shift.brightness, shift.noise_std], dtype=torch.float64),
        ]

    wanted = draw()
    torch.set_default_dtype(dtype)
    try:
        got = draw()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
