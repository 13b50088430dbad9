"""Each corruption against its definition, worked out here by other means than in the package."""

import colorsys
import io
import math
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from scipy import ndimage

from mt3 import corruptions
from mt3.corruptions import CORRUPTIONS, HELD_OUT, PAPER, apply, available, blur, registry, resolve, weather
from mt3.errors import InputError

Array = npt.NDArray[Any]

SEVERITIES = (1, 2, 3, 4, 5)
RANDOM = tuple(name for name in available() if CORRUPTIONS[name].random)


def by_severity(*values: float) -> list[tuple[int, float]]:
    return list(zip(SEVERITIES, values, strict=True))


def natural(n: int, seed: int = 1) -> Array:
    """Smooth coloured blobs with some grain, black and white included: bytes (n, 32, 32, 3)."""
    rng = np.random.default_rng(seed)
    blobs = ndimage.gaussian_filter(rng.normal(size=(n, 32, 32, 3)), (0, 3, 3, 0), mode="wrap")
    values = 128 + 500 * blobs + rng.normal(0, 6, blobs.shape)
    values[:, :2, :8] = 0
    values[:, 2:4, :8] = 255
    values[:, 4:6, :8] = values[:, 4:6, :8, :1]  # greys, whose hue is undefined
    images: Array = np.clip(values, 0, 255).astype(np.uint8)
    return images


def grey(level: int, n: int = 64) -> Array:
    return np.full((n, 32, 32, 3), level, dtype=np.uint8)


def parameter(name: str, severity: int) -> Any:
    return CORRUPTIONS[name].parameters[severity - 1]


def generator(name: str, severity: int, index: int, seed: int = 0) -> np.random.Generator:
    """The documented seeding, restated."""
    return np.random.default_rng([seed, zlib.crc32(name.encode("ascii")), severity, index])


def assert_truncated(result: Array, unit: Array, tolerance: float = 1e-9) -> None:
    """`result` is `unit` in bytes rounded down; a whole number may fall to either side by float error."""
    lost = np.clip(unit, 0, 1) * 255 - result
    assert result.dtype == np.uint8
    assert lost.min() > -tolerance
    assert lost.max() < 1 + tolerance


def mean_change(name: str, severity: int, images: Array) -> float:
    return float(np.abs(apply(images, name, severity).astype(int) - images).mean())


# noise


@pytest.mark.parametrize(("severity", "std"), by_severity(0.04, 0.06, 0.08, 0.09, 0.10))
def test_gaussian_noise_has_its_standard_deviation(severity: int, std: float) -> None:
    noisy = apply(grey(128), "gaussian_noise", severity).astype(float)
    assert noisy.mean() == pytest.approx(128 - 0.5, abs=0.3)  # truncation loses half a level on average
    assert noisy.std() == pytest.approx(math.sqrt((255 * std) ** 2 + 1 / 12), rel=0.01)


@pytest.mark.parametrize(("severity", "photons"), by_severity(500, 250, 100, 75, 50))
def test_shot_noise_has_the_variance_of_poisson_counts(severity: int, photons: int) -> None:
    for level in (64, 128):
        noisy = apply(grey(level), "shot_noise", severity).astype(float)
        mean = level / 255 * photons
        chances = [math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(photons + 1)]
        levels = np.array([int(k / photons * 255) for k in range(photons + 1)])  # truncation moves the moments a little
        expected = np.average(levels, weights=chances)
        variance = np.average((levels - expected) ** 2, weights=chances)
        assert variance == pytest.approx(255**2 * (level / 255) / photons, rel=0.05)
        assert noisy.mean() == pytest.approx(expected, abs=5 * math.sqrt(variance / noisy.size))
        assert noisy.var() == pytest.approx(variance, rel=0.015)
        assert set(np.unique(noisy)) <= set(levels)


@pytest.mark.parametrize(("severity", "std"), by_severity(0.06, 0.1, 0.12, 0.16, 0.2))
def test_speckle_noise_grows_with_the_value(severity: int, std: float) -> None:
    for level in (64, 128):
        noisy = apply(grey(level), "speckle_noise", severity).astype(float)
        assert noisy.std() == pytest.approx(math.sqrt((level * std) ** 2 + 1 / 12), rel=0.01)
    assert not apply(grey(0, 2), "speckle_noise", severity).any()


@pytest.mark.parametrize(("severity", "share"), by_severity(0.01, 0.02, 0.03, 0.05, 0.07))
def test_impulse_noise_replaces_its_share_half_by_black_and_half_by_white(severity: int, share: float) -> None:
    noisy = apply(grey(100), "impulse_noise", severity)
    five_sigma = 5 * math.sqrt(share / 2 / noisy.size)
    assert np.mean(noisy == 0) == pytest.approx(share / 2, abs=five_sigma)
    assert np.mean(noisy == 255) == pytest.approx(share / 2, abs=five_sigma)
    assert set(np.unique(noisy)) == {0, 100, 255}
    hit = noisy != 100
    assert hit[..., 1][hit[..., 0]].mean() == pytest.approx(share, abs=0.02)  # channels fall independently


# blur


@pytest.mark.parametrize("severity", SEVERITIES)
def test_defocus_blur_is_a_double_loop_over_the_disk(severity: int) -> None:
    radius, softness = parameter("defocus_blur", severity)
    kernel: dict[tuple[int, int], float] = {}  # offset to weight: every pixel of the disk spreads by the 3 x 3 Gaussian
    inside = [(y, x) for y in range(-2, 3) for x in range(-2, 3) if y * y + x * x <= radius * radius]
    line = [math.exp(-i * i / (2 * softness**2)) for i in (-1, 0, 1)]
    for y, x in inside:
        for i in (-1, 0, 1):
            for j in (-1, 0, 1):
                weight = line[i + 1] * line[j + 1] / sum(line) ** 2 / len(inside)
                kernel[y + i, x + j] = kernel.get((y + i, x + j), 0) + weight
    assert len(inside) == (1, 1, 1, 5, 9)[severity - 1]

    def mirrored(i: int) -> int:
        return -i if i < 0 else 62 - i if i > 31 else i  # the border pixel itself is not repeated

    images = natural(2)
    expected = np.zeros(images.shape)
    for row in range(32):
        for column in range(32):
            for (y, x), weight in kernel.items():
                expected[:, row, column] += weight * images[:, mirrored(row + y), mirrored(column + x)] / 255
    # the kernel is in single precision
    assert_truncated(apply(images, "defocus_blur", severity), expected, tolerance=1e-4)
    assert blur.disk(radius, softness).shape == (17, 17)
    assert blur.disk(radius, softness).sum() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_gaussian_blur_is_an_explicit_kernel_with_repeated_border(severity: int) -> None:
    std = parameter("gaussian_blur", severity)
    reach = int(4 * std + 0.5)
    taps = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * std**2))
    taps /= taps.sum()
    images = natural(2)
    padded = np.pad(images / 255, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="edge")
    expected = sum(
        taps[i] * taps[j] * padded[:, i : i + 32, j : j + 32] for i in range(len(taps)) for j in range(len(taps))
    )
    assert_truncated(apply(images, "gaussian_blur", severity), expected)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_zoom_blur_averages_the_image_and_its_zooms(severity: int) -> None:
    factors = [1 + 0.01 * i for i in range(5 * severity + 1)]
    assert blur.zooms(parameter("zoom_blur", severity)) == pytest.approx(factors, abs=1e-12)
    image = natural(1)[0]
    total = image / 255
    for factor in factors:
        crop = math.ceil(32 / factor)
        top = (32 - crop) // 2
        # a hair above 1.25, 26 cropped pixels become 33, not 32: so it is with steps of .01 added up from 1
        zoomed = ndimage.zoom(
            image[top : top + crop, top : top + crop] / 255, (factor + 1e-15, factor + 1e-15, 1), order=1
        )
        trim = (len(zoomed) - 32) // 2
        total = total + zoomed[trim : trim + 32, trim : trim + 32]
    assert_truncated(apply(image[None], "zoom_blur", severity)[0], total / (len(factors) + 1))


@pytest.mark.parametrize("name", ["defocus_blur", "gaussian_blur", "zoom_blur"])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_blurs_leave_a_constant_image_alone(name: str, severity: int) -> None:
    for level in (0, 3, 100, 254, 255):
        assert_truncated(apply(grey(level, 1), name, severity), np.full((1, 32, 32, 3), level / 255), tolerance=1e-4)


# weather


def diamond_square(rng: np.random.Generator, decay: float, size: int) -> Array:
    """Point by point on a torus, with the wibble of 100 of the published generator."""
    draws = iter(rng.uniform(-1, 1, size * size - 1))
    height = np.zeros((size, size))
    wibble, step = 100.0, size

    def fill(y0: int, x0: int, neighbours: tuple[tuple[int, int], ...]) -> None:
        for y in range(y0, size, step):
            for x in range(x0, size, step):
                around = [height[(y + dy) % size, (x + dx) % size] for dy, dx in neighbours]
                height[y, x] = sum(around) / 4 + wibble * wibble * next(draws)

    while step >= 2:
        h = step // 2
        fill(h, h, ((-h, -h), (-h, h), (h, -h), (h, h)))
        fill(0, h, ((-h, 0), (h, 0), (0, -h), (0, h)))
        fill(h, 0, ((-h, 0), (h, 0), (0, -h), (0, h)))
        step, wibble = h, wibble / decay
    height -= height.min()
    height /= height.max()
    return height


@pytest.mark.parametrize(("size", "decay"), [(2, 3.0), (8, 2.5), (32, 1.75), (32, 3.0)])
def test_plasma_is_diamond_square_on_a_torus(size: int, decay: float) -> None:
    maps = weather.plasma([np.random.default_rng(s) for s in (1, 2)], decay, size)
    assert maps.shape == (2, size, size)
    for seed, plasma in zip((1, 2), maps, strict=True):
        np.testing.assert_allclose(plasma, diamond_square(np.random.default_rng(seed), decay, size), atol=1e-12)
        assert (plasma.min(), plasma.max()) == (0, 1)


def test_plasma_has_no_seam() -> None:
    maps = weather.plasma([np.random.default_rng(s) for s in range(200)], 2.0)
    steps = np.abs(maps - np.roll(maps, 1, axis=1)).mean(axis=(0, 2))
    assert steps[0] < 1.3 * steps.mean()  # from the last row to the first


@pytest.mark.parametrize("severity", SEVERITIES)
def test_fog_adds_plasma_and_keeps_the_maximum(severity: int) -> None:
    images = natural(3) // 2
    thickness, decay = parameter("fog", severity)
    foggy = apply(images, "fog", severity, seed=4, first_index=7)
    for i, image in enumerate(images):
        plasma = diamond_square(generator("fog", severity, 7 + i, seed=4), decay, 32)
        top = image.max() / 255
        assert_truncated(foggy[i], (image / 255 + thickness * plasma[..., None]) * top / (top + thickness))
        assert foggy[i].max() <= image.max()
    assert not apply(grey(0, 1), "fog", severity).any()


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", ["brightness", "saturate"])
def test_brightness_and_saturate_act_in_hsv(name: str, severity: int) -> None:
    images = natural(2)
    c = parameter(name, severity)
    expected = np.empty(images.shape)
    for where in np.ndindex(images.shape[:3]):
        h, s, v = colorsys.rgb_to_hsv(*(images[where] / 255))
        if name == "brightness":
            v = min(v + c, 1)
        else:
            s = min(max(s * c[0] + c[1], 0), 1)
        expected[where] = colorsys.hsv_to_rgb(h, s, v)
    assert_truncated(apply(images, name, severity), expected)


def test_hsv_at_its_edges() -> None:
    assert np.unique(apply(grey(0, 1), "brightness", 5)).tolist() == [76]  # .3 * 255 = 76.5, truncated
    assert apply(grey(250, 1), "brightness", 1).min() == 255
    assert apply(grey(100, 1), "saturate", 5)[0, 0, 0].tolist() == [100, 80, 80]  # grey has the hue of red
    assert not apply(grey(0, 1), "saturate", 5).any()


# digital


@pytest.mark.parametrize("severity", SEVERITIES)
def test_contrast_scales_around_the_channel_mean(severity: int) -> None:
    images = natural(2)
    factor = parameter("contrast", severity)
    result = apply(images, "contrast", severity)
    for i in range(2):
        for channel in range(3):
            values = [int(value) / 255 for value in images[i, :, :, channel].ravel()]
            mean = math.fsum(values) / 1024
            expected = np.reshape([(value - mean) * factor + mean for value in values], (32, 32))
            assert_truncated(result[i, :, :, channel], expected)


@pytest.mark.parametrize(("severity", "side"), by_severity(30, 28, 27, 24, 20))
def test_pixelate_is_pillows_box_resize_there_and_back(severity: int, side: int) -> None:
    images = natural(3)
    for image, result in zip(images, apply(images, "pixelate", severity), strict=True):
        small = Image.fromarray(image).resize((side, side), Image.Resampling.BOX)
        np.testing.assert_array_equal(result, np.array(small.resize((32, 32), Image.Resampling.BOX)))


@pytest.mark.parametrize(("severity", "quality"), by_severity(80, 65, 58, 50, 40))
def test_jpeg_compression_is_pillows(severity: int, quality: int) -> None:
    images = natural(3)
    for image, result in zip(images, apply(images, "jpeg_compression", severity), strict=True):
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, format="jpeg", quality=quality)
        np.testing.assert_array_equal(result, np.array(Image.open(io.BytesIO(buffer.getvalue()))))


# all of them


@pytest.mark.parametrize(
    ("name", "parameters"),
    [  # those not already spelled out above
        ("defocus_blur", [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)]),
        ("gaussian_blur", [0.4, 0.6, 0.7, 0.8, 1]),
        ("fog", [(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)]),
        ("brightness", [0.05, 0.1, 0.15, 0.2, 0.3]),
        ("contrast", [0.75, 0.5, 0.4, 0.3, 0.15]),
        ("saturate", [(0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)]),
    ],
)
def test_the_parameters_are_the_published_ones(name: str, parameters: list[Any]) -> None:
    assert list(CORRUPTIONS[name].parameters) == parameters


def test_the_registry_is_the_benchmarks() -> None:
    assert (len(PAPER), len(HELD_OUT), len(set(PAPER + HELD_OUT))) == (15, 4, 19)
    assert available() == tuple(name for name in PAPER + HELD_OUT if name in CORRUPTIONS)
    for name, corruption in CORRUPTIONS.items():
        assert corruption.name == name == corruption.function.__name__
        assert len(corruption.parameters) == 5
        assert corruption.function.__module__ == f"mt3.corruptions.{corruption.kind}"
    assert set(corruptions.__all__) >= {"CORRUPTIONS", "HELD_OUT", "PAPER", "apply", "available", "resolve"}


@pytest.mark.parametrize("name", available())
def test_parts_order_and_memory_layout_do_not_matter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    images = natural(7)
    before = images.copy()
    whole = apply(images, name, 3, seed=2, first_index=10)
    np.testing.assert_array_equal(images, before)
    assert whole.shape == images.shape
    assert not np.shares_memory(whole, images)

    backwards = [apply(images[i : i + 1], name, 3, seed=2, first_index=10 + i)[0] for i in reversed(range(7))]
    np.testing.assert_array_equal(whole, backwards[::-1])
    fortran = np.asfortranarray(images)
    fortran.flags.writeable = False
    np.testing.assert_array_equal(whole, apply(fortran, name, 3, seed=2, first_index=10))
    monkeypatch.setattr(registry, "CHUNK", 3)
    np.testing.assert_array_equal(whole, apply(images, name, 3, seed=2, first_index=10))


@pytest.mark.parametrize("name", available())
def test_the_seed_matters_only_to_random_corruptions(name: str) -> None:
    images = natural(2)
    images[1] = images[0]
    once, again, other = (apply(images, name, 2, seed=seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(once, again)
    assert np.array_equal(once, other) is (name not in RANDOM)
    assert np.array_equal(once[0], once[1]) is (name not in RANDOM)  # each image has draws of its own


def test_names_and_severities_have_draws_of_their_own() -> None:
    for name, severity in (("gaussian_noise", 3), ("gaussian_noise", 4), ("speckle_noise", 1)):
        noise = generator(name, severity, index=9, seed=3).standard_normal((32, 32, 3))
        std = parameter(name, severity) * (1 if name == "gaussian_noise" else 120 / 255)
        assert_truncated(apply(grey(120, 1), name, severity, seed=3, first_index=9)[0], 120 / 255 + std * noise)


@pytest.mark.parametrize("name", sorted(set(available()) - {"saturate", "pixelate"}))
def test_a_higher_severity_changes_more(name: str) -> None:
    images = natural(16)
    changes = [mean_change(name, severity, images) for severity in SEVERITIES]
    assert changes == sorted(changes)
    assert changes[0] > 0.1
    assert changes[4] > 1.3 * changes[0]


def test_saturate_fades_and_then_deepens() -> None:
    images = natural(16)
    change = [mean_change("saturate", severity, images) for severity in SEVERITIES]
    assert change[0] < change[1]  # .3 and .1 times S
    assert change[2] < change[3] < change[4]


@pytest.mark.parametrize("name", available())
def test_an_empty_batch_stays_empty(name: str) -> None:
    empty = apply(np.zeros((0, 32, 32, 3), dtype=np.uint8), name)
    assert empty.shape == (0, 32, 32, 3)
    assert empty.dtype == np.uint8


def test_values_are_truncated_not_rounded() -> None:
    images = grey(0, 1)
    images[0, 0, 0] = 255
    # the mean is 255 / 1024: white becomes 255 * (.15 + .85 / 1024) = 38.46, black .85 * 255 / 1024 = 0.21
    assert np.unique(apply(images, "contrast", 5)).tolist() == [0, 38]
    assert np.unique(apply(grey(100, 1), "brightness", 3)).tolist() == [138]  # 138.25
    assert np.unique(apply(grey(99, 1), "brightness", 1)).tolist() == [111]  # 111.75


# names and refusals


def test_resolve_expands_groups_and_drops_repetitions() -> None:
    every = resolve(["every"])
    assert every == available()
    assert resolve(["all"]) == tuple(name for name in every if name in PAPER)
    assert resolve(["held-out"]) == tuple(name for name in every if name in HELD_OUT)
    assert resolve(["fog", "contrast", "fog"]) == ("fog", "contrast")
    assert resolve(["fog", "all"])[:2] == ("fog", "gaussian_noise")
    assert sorted(resolve(["saturate", "all", "held-out"])) == sorted(every)
    assert resolve([]) == ()


def test_an_unknown_name_is_refused() -> None:
    names = ", ".join(available())
    with pytest.raises(InputError) as refusal:
        apply(grey(0, 1), "rain")
    assert str(refusal.value) == f"Unknown corruption 'rain': expected one of {names}."
    with pytest.raises(InputError) as refusal:
        resolve(["fog", "rain"])
    assert str(refusal.value) == f"Unknown corruption 'rain': expected one of {names}, all, held-out, every."


def test_a_name_without_implementation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(CORRUPTIONS, "fog")
    expected = f"Corruption 'fog' is not implemented yet: use one of {', '.join(available())}."
    for refused in (lambda: apply(grey(0, 1), "fog"), lambda: resolve(["fog"])):
        with pytest.raises(InputError) as refusal:
            refused()
        assert str(refusal.value) == expected
    assert "fog" not in resolve(["all", "every"])


@pytest.mark.parametrize(
    ("images", "arguments", "message"),
    [
        (
            np.zeros((1, 32, 32, 3), dtype=np.float32),
            {},
            "Expected images of dtype uint8, got float32: scale to 0..255 and convert them.",
        ),
        *(
            (
                np.zeros(shape, dtype=np.uint8),
                {},
                f"Expected images of shape (N, 32, 32, 3), got {shape}: "
                "put the channels last, and a single image into a batch with image[None].",
            )
            for shape in ((32, 32, 3), (2, 3, 32, 32), (1, 28, 28, 3), (1, 32, 32, 1))
        ),
        *(
            (
                grey(0, 1),
                {"severity": severity},
                f"Expected a severity from 1 to 5, got {severity}: choose a whole number in this range.",
            )
            for severity in (0, 6, -1, 2.5)
        ),
        (grey(0, 1), {"seed": -1}, "Expected a seed of at least 0, got -1: choose a whole number from 0 on."),
        (
            grey(0, 1),
            {"first_index": -2},
            "Expected a first index of at least 0, got -2: choose a whole number from 0 on.",
        ),
    ],
)
def test_wrong_input_is_refused_in_one_sentence(images: Array, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refusal:
        apply(images, "gaussian_noise", **arguments)
    assert str(refusal.value) == message
