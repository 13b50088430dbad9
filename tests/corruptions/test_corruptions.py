"""Each corruption against its definition, worked out here by other means than in the package."""

import io
import math
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from scipy import ndimage

from mt3 import corruptions
from mt3.corruptions import (
    CORRUPTIONS,
    HELD_OUT,
    PAPER,
    apply,
    available,
    blur,
    registry,
    resolve,
    spatter,
    weather,
)
from mt3.support.errors import InputError

Array = npt.NDArray[Any]

SEVERITIES = (1, 2, 3, 4, 5)
RANDOM = tuple(name for name in CORRUPTIONS if CORRUPTIONS[name].random)
PHOTOS = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")


@pytest.fixture(autouse=True, scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Array]]:
    """Stand-ins for the frost photos, in a package that must not be imported; all five as they were saved."""
    package = tmp_path_factory.mktemp("site") / "imagecorruptions"
    (package / "frost").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('only its photos are wanted')\n")
    rng = np.random.default_rng(0)
    saved = []
    for i, name in enumerate(PHOTOS):
        sides = (200 + i, 233 - i, 3)  # not only multiples of 5
        Image.fromarray(rng.integers(100, 256, sides, dtype=np.uint8)).save(package / "frost" / name)
        saved.append(np.asarray(Image.open(package / "frost" / name)))
    sys.path.insert(0, str(package.parent))
    yield saved
    sys.path.remove(str(package.parent))


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


def explicit_gaussian(x: Array, std: float, truncate: float = 4, border: Any = "edge") -> Array:
    """Filter (n, 32, 32, channels) by the sum over a square of taps."""
    reach = int(truncate * std + 0.5)
    taps = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * std**2))
    taps /= taps.sum()
    padded = np.pad(x, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode=border)
    total = np.zeros(x.shape)
    for i in range(len(taps)):
        for j in range(len(taps)):
            total += taps[i] * taps[j] * padded[:, i : i + 32, j : j + 32]
    return total


def explicit_zoom(x: Array, factor: float) -> Array:
    """Zoom the centre of (32, 32, channels)."""
    crop = math.ceil(32 / factor)
    top = (32 - crop) // 2
    zoomed = ndimage.zoom(x[top : top + crop, top : top + crop], (factor, factor, 1), order=1)
    trim = (len(zoomed) - 32) // 2
    return np.asarray(zoomed[trim : trim + 32, trim : trim + 32])


def explicit_motion(x: Array, radius: float, std: float, degrees: float) -> Array:
    """Blur (32, 32, channels) of bytes pixel by pixel along the ray of ImageMagick; not rounded yet."""
    weights = [math.exp(-i * i / (2 * std * std)) for i in range(2 * math.ceil(radius) + 1)]
    angle = math.radians(degrees)
    result = np.zeros(x.shape)
    for i, weight in enumerate(weights):
        right, down = math.ceil(i * math.cos(angle) - 0.5), math.ceil(i * math.sin(angle) - 0.5)
        for row in range(32):
            for column in range(32):
                source = min(max(row + down, 0), 31), min(max(column + right, 0), 31)
                result[row, column] += weight / sum(weights) * x[source]
    return result


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
    images = natural(2)
    expected = explicit_gaussian(images / 255, parameter("gaussian_blur", severity))
    assert_truncated(apply(images, "gaussian_blur", severity), expected)


def explicit_glass(image: Array, std: float, passes: int, draws: Array) -> Array:
    """Visit pixel after pixel from the last on, `draws` (passes, up or left, 30, 30) steps up and to the left."""
    blurred = explicit_gaussian(image[None] / 255, std)[0] * 255
    pixels = np.floor(blurred + 1e-9)
    for turn in range(passes):
        for row in range(31, 1, -1):
            for column in range(31, 1, -1):
                up, left = draws[turn, :, row - 2, column - 2]
                pixels[row, column] = pixels[row - up, column - left]
    return explicit_gaussian(pixels[None] / 255, std)[0]


@pytest.mark.parametrize("severity", SEVERITIES)
def test_glass_blur_takes_pixels_one_after_the_other(severity: int) -> None:
    std, passes = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))[severity - 1]
    images = natural(2)
    result = apply(images, "glass_blur", severity, seed=3, first_index=5)
    for i, image in enumerate(images):
        draws = generator("glass_blur", severity, 5 + i, seed=3).integers(0, 2, (passes, 2, 30, 30))
        assert_truncated(result[i], explicit_glass(image, std, passes, draws))


def test_glass_blur_chooses_evenly_among_four_and_leaves_two_rows_and_columns() -> None:
    images = np.zeros((40, 32, 32, 3), dtype=np.uint8)
    images[..., 0], images[..., 1] = 8 * np.arange(32)[:, None], 8 * np.arange(32)  # a pixel tells where it is from
    # severity 1 does not blur; truncation may cost a level
    shift = np.rint((images.astype(float) - apply(images, "glass_blur", 1)) / 8).astype(int)[..., :2]
    assert not shift[:, :2].any()
    assert not shift[:, :, :2].any()
    pairs, counts = np.unique(shift[:, 2:, 2:].reshape(-1, 2), axis=0, return_counts=True)
    assert pairs.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert counts / counts.sum() == pytest.approx([0.25] * 4, abs=0.01)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_motion_blur_follows_a_ray(severity: int) -> None:
    radius, std = ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))[severity - 1]
    images = natural(2)
    result = apply(images, "motion_blur", severity, seed=1, first_index=2)
    for i, image in enumerate(images):
        degrees = generator("motion_blur", severity, 2 + i, seed=1).uniform(-45, 45)
        lost = explicit_motion(image, radius, std, degrees) - result[i]
        assert np.abs(lost).max() < 0.5 + 1e-9  # rounded, not truncated


def test_motion_blur_goes_up_and_down_alike() -> None:
    images = np.zeros((600, 32, 32, 3), dtype=np.uint8)
    images[:, 16, 20] = 255
    smeared = apply(images, "motion_blur", 5).astype(float)[..., 0]
    assert smeared[:, :, 21:].max() == 0  # a pixel gathers what lies to its right, so the dot spreads to the left
    above, below = smeared[:, :16].sum(axis=(1, 2)), smeared[:, 17:].sum(axis=(1, 2))
    assert (above > below).mean() == pytest.approx(0.5, abs=0.08)
    level = math.degrees(math.asin(0.5 / 4)) / 45  # the share of angles whose tap 4 rounds to the same row
    assert (smeared[:, 16, 16] > 0).mean() == pytest.approx(level, abs=0.06)


def find_imagemagick() -> str | None:
    """By what it says of itself, since other programs have the name `convert`, too."""
    for program in filter(None, map(shutil.which, ("magick", "convert"))):
        if subprocess.run([program, "-version"], capture_output=True).stdout.startswith(b"Version: ImageMagick"):
            return program
    return None


@pytest.mark.parametrize(
    ("radius", "std", "degrees"),
    [(6, 1, -45), (6, 1.5, 12.3), (6, 2, 0), (8, 2, 44), (9, 2.5, 30), (8, 3, -135), (12, 6, -90), (14, 12, -50)],
)
def test_motion_blur_is_imagemagicks(radius: float, std: float, degrees: float) -> None:
    program = find_imagemagick()
    if program is None:
        pytest.skip("needs ImageMagick's `magick` or `convert`")
    image = natural(1)[0]
    # written as PPM, which rounds 16 bits to 8: for PNG some versions truncate them
    words = [program, "ppm:-", "-motion-blur", f"{radius}x{std}{degrees:+}", "ppm:-"]
    done = subprocess.run(words, input=b"P6 32 32 255\n" + image.tobytes(), capture_output=True, check=True)
    expected = np.asarray(Image.open(io.BytesIO(done.stdout)))
    np.testing.assert_array_equal(blur.smear(image[None], radius, std, np.array([degrees]))[0], expected)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_zoom_blur_averages_the_image_and_its_zooms(severity: int) -> None:
    # the end is to be left out, but (1.06 - 1) / .01 is 6.000000000000005, and (1.11 - 1) / .01 is above 11
    factors = np.arange(1, (1.06, 1.11, 1.16, 1.21, 1.26)[severity - 1], 0.01)
    assert len(factors) == (7, 12, 16, 21, 26)[severity - 1]
    x = natural(1)[0] / 255
    total = x + sum(explicit_zoom(x, factor) for factor in factors)
    assert_truncated(apply(natural(1), "zoom_blur", severity)[0], total / (len(factors) + 1))


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


SNOW = (
    (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
    (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
    (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
    (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
    (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_snow_adds_smeared_flakes_and_their_half_turn(severity: int) -> None:
    mean, std, zoom, threshold, radius, length, kept = SNOW[severity - 1]
    images = natural(2)
    result = apply(images, "snow", severity, seed=6, first_index=1)
    for i, image in enumerate(images):
        rng = generator("snow", severity, 1 + i, seed=6)
        flakes = explicit_zoom(rng.normal(mean, std, (32, 32))[..., None], zoom)
        flakes = np.floor(np.where(flakes < threshold, 0, np.clip(flakes, 0, 1)) * 255)
        layer = np.floor(explicit_motion(flakes, radius, length, rng.uniform(-135, -45)) + 0.5) / 255
        expected = np.zeros((32, 32, 3))
        for row in range(32):
            for column in range(32):
                r, g, b = image[row, column] / 255
                light = (0.299 * r + 0.587 * g + 0.114 * b) * 1.5 + 0.5
                fallen = layer[row, column, 0] + layer[31 - row, 31 - column, 0]
                expected[row, column] = [kept * v + (1 - kept) * max(v, light) + fallen for v in (r, g, b)]
        assert_truncated(result[i], expected)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_frost_adds_a_crop_of_a_shrunk_photo(severity: int, photos: list[Array]) -> None:
    own, ice = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[severity - 1]
    images = natural(12)
    result = apply(images, "frost", severity, seed=2, first_index=8)
    for i, image in enumerate(images):
        rng = generator("frost", severity, 8 + i, seed=2)
        photo = photos[rng.integers(5)]
        sides = [int(side / 5 + 0.5) for side in photo.shape[:2]]
        top, left = rng.integers(sides[0] - 32), rng.integers(sides[1] - 32)
        expected = np.zeros((32, 32, 3))
        for row in range(32):
            for column in range(32):
                crystal = photo[5 * (top + row) + 2, 5 * (left + column) + 2]
                expected[row, column] = (own * image[row, column].astype(float) + ice * crystal) / 255
        assert_truncated(result[i], expected)


def test_frost_draws_all_photos_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = (40, 80, 120, 160, 200)
    flat = tuple(np.full((40, 50, 3), level, dtype=np.uint8) for level in levels)
    monkeypatch.setattr(weather, "_shrunk_photos", lambda folder: flat)
    found, counts = np.unique(apply(grey(0, 1000), "frost", 5)[:, 0, 0, 0], return_counts=True)
    assert found.tolist() == [18, 36, 54, 72, 90]
    assert counts / 1000 == pytest.approx([0.2] * 5, abs=0.06)


def test_shrinking_a_photo_is_opencvs_linear_resize(photos: list[Array]) -> None:
    cv2 = pytest.importorskip("cv2", reason="needs OpenCV, of the extra dev")
    folder = weather.frost_photos()
    assert folder is not None
    for photo, shrunk in zip(photos, weather._shrunk_photos(folder), strict=True):
        np.testing.assert_array_equal(shrunk, cv2.resize(photo, (0, 0), fx=0.2, fy=0.2))


NO_PHOTOS = (
    "Corruption 'frost' needs photos: run `pip install --no-deps imagecorruptions` (the flag spares OpenCV and "
    "scikit-image, which only its functions need), or leave 'frost' out."
)


def test_frost_without_its_photos_is_refused_before_work_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert available() == PAPER + HELD_OUT
    whole = sys.path[:]
    (tmp_path / "imagecorruptions").mkdir()
    (tmp_path / "imagecorruptions" / "__init__.py").touch()  # the package, but no photos in it
    for absent in (lambda: monkeypatch.setattr(weather, "find_spec", lambda name: None), lambda: None):
        monkeypatch.setattr(sys, "path", [str(tmp_path), *whole])
        absent()
        assert available() == tuple(name for name in PAPER + HELD_OUT if name != "frost")
        for names in (["frost"], ["all"], ["fog", "every"]):
            with pytest.raises(InputError) as refusal:
                resolve(names)
            assert str(refusal.value) == NO_PHOTOS
        with pytest.raises(InputError) as refusal:
            apply(grey(0, 1), "frost")
        assert str(refusal.value) == NO_PHOTOS
        assert resolve(["held-out", *available()]) == (*HELD_OUT, *(n for n in PAPER if n != "frost"))
        monkeypatch.undo()
    assert available() == PAPER + HELD_OUT


def to_hsv(r: float, g: float, b: float) -> tuple[float, float, float]:
    """One pixel, in scikit-image's order of arithmetic."""
    value, chroma = max(r, g, b), max(r, g, b) - min(r, g, b)
    if chroma == 0:
        return 0, 0, value
    if b == value:
        hue = 4 + (r - g) / chroma
    elif g == value:
        hue = 2 + (b - r) / chroma
    else:
        hue = (g - b) / chroma
    return hue / 6 % 1, chroma / value, value


def to_rgb(h: float, s: float, v: float) -> tuple[float, float, float]:
    sector = math.floor(h * 6)
    f = h * 6 - sector
    p, q, t = v * (1 - s), v * (1 - f * s), v * (1 - (1 - f) * s)
    return ((v, t, p), (q, v, p), (p, v, t), (p, q, v), (t, p, v), (v, p, q))[sector % 6]


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", ["brightness", "saturate"])
def test_brightness_and_saturate_act_in_hsv(name: str, severity: int) -> None:
    images = natural(2)
    c = parameter(name, severity)
    expected = np.empty(images.shape)
    for where in np.ndindex(images.shape[:3]):
        h, s, v = to_hsv(*(float(level) / 255 for level in images[where]))
        if name == "brightness":
            v = min(v + c, 1)
        else:
            s = min(max(s * c[0] + c[1], 0), 1)
        expected[where] = to_rgb(h, s, v)
    # to the bit: many results are whole numbers, and float error decides on which side they are truncated
    np.testing.assert_array_equal(apply(images, name, severity), (np.clip(expected, 0, 1) * 255).astype(np.uint8))


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


ELASTIC = ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03))


@pytest.mark.parametrize("severity", SEVERITIES)
def test_elastic_transform_shears_and_then_displaces(severity: int) -> None:
    strength, smoothness, shear = (32 * share for share in ELASTIC[severity - 1])
    images = natural(3)
    result = apply(images, "elastic_transform", severity, seed=5, first_index=3)
    points = np.array([(26.0, 26.0), (26.0, 6.0), (6.0, 6.0)])
    grid = np.stack(np.meshgrid(np.arange(32.0), np.arange(32.0)))  # x and y of every pixel
    for i, image in enumerate(images):
        rng = generator("elastic_transform", severity, 3 + i, seed=5)
        moved = points + rng.uniform(-shear, shear, (3, 2))
        # the map takes differences of points to differences of moved points
        linear = np.linalg.inv([points[0] - points[1], points[2] - points[1]]) @ [
            moved[0] - moved[1],
            moved[2] - moved[1],
        ]
        x, y = np.linalg.inv(linear).T @ (grid.reshape(2, -1) - moved[1][:, None]) + points[1][:, None]
        sheared = [ndimage.map_coordinates(image[..., c] / 255, [y, x], order=1, mode="mirror") for c in range(3)]
        expected = np.reshape(sheared, (3, 32, 32))
        if strength:
            noise = rng.uniform(-1, 1, (2, 32, 32))
            dx, dy = strength * explicit_gaussian(noise[..., None], smoothness, truncate=3, border="symmetric")[..., 0]
            where = [grid[1] + dy, grid[0] + dx]
            expected = np.stack([ndimage.map_coordinates(c, where, order=1, mode="reflect") for c in expected])
        assert_truncated(result[i], expected.transpose(1, 2, 0))


# spatter


def layers(severity: int, n: int = 3) -> Array:
    """Smoothed noise below the threshold set to 0, from the documented draws."""
    mean, std, smoothness, threshold = SPATTER[severity - 1][:4]
    noise = [generator("spatter", severity, i).normal(mean, std, (32, 32)) for i in range(n)]
    layer = explicit_gaussian(np.stack(noise)[..., None], smoothness)[..., 0]
    return np.where(layer < threshold, 0, layer)


SPATTER = (
    (0.62, 0.1, 0.7, 0.7, 0.5, "water"),
    (0.65, 0.1, 0.8, 0.7, 0.5, "water"),
    (0.65, 0.3, 1, 0.69, 0.5, "water"),
    (0.65, 0.1, 0.7, 0.69, 0.6, "mud"),
    (0.65, 0.1, 0.5, 0.68, 0.6, "mud"),
)


def explicit_canny(levels: Array) -> Array:
    """Edges of one image of bytes, pixel by pixel, with angles instead of tangents."""
    padded = np.pad(levels.astype(int), 1, mode="edge")
    slope, angle = np.zeros((34, 34)), np.zeros((34, 34))
    for y in range(32):
        for x in range(32):
            around = padded[y : y + 3, x : x + 3]
            across = int((around[:, 2] - around[:, 0]) @ [1, 2, 1])
            down = int((around[2] - around[0]) @ [1, 2, 1])
            slope[y + 1, x + 1] = abs(across) + abs(down)
            angle[y + 1, x + 1] = math.degrees(math.atan2(down, across)) % 180
    strong, weak = [], set()
    for y in range(1, 33):
        for x in range(1, 33):
            sector = round(angle[y, x] / 45) % 4
            dy, dx = ((0, 1), (1, 1), (1, 0), (1, -1))[sector]
            before, after = slope[y - dy, x - dx], slope[y + dy, x + dx]
            if slope[y, x] > before and (slope[y, x] > after or (sector in (0, 2) and slope[y, x] == after)):
                if slope[y, x] > 150:
                    strong.append((y, x))
                elif slope[y, x] > 50:
                    weak.add((y, x))
    edges = np.zeros((34, 34), dtype=bool)
    while strong:  # spread from strong edges over the weak ones that touch them
        y, x = strong.pop()
        edges[y, x] = True
        touching = weak & {(y + i, x + j) for i in (-1, 0, 1) for j in (-1, 0, 1)}
        strong += touching
        weak -= touching
    return edges[1:-1, 1:-1]


def explicit_distance(edges: Array) -> Array:
    """In 1 / 10,000 pixels by the closed form: as many knight's moves as fit, the rest diagonal or straight."""
    one, diagonal, knight = 10_000, 14_000, 21_969
    pixels = np.argwhere(np.ones((32, 32)))[:, None]
    apart = np.sort(np.abs(pixels - np.argwhere(edges)), axis=2)
    short, long = apart[..., 0], apart[..., 1]
    straight = short * knight + (long - 2 * short) * one
    askew = (long - short) * knight + (2 * short - long) * diagonal
    ways = np.where(long >= 2 * short, straight, askew)
    return np.minimum(ways.min(axis=1, initial=20 * one), 20 * one).reshape(32, 32)


def explicit_equalise(levels: Array) -> Array:
    values = sorted(levels.ravel().tolist())
    above = len(values) - values.count(values[0])
    if above == 0:
        return levels
    scale = np.float32(255) / np.float32(above)
    risen = {v: sum(values[0] < w <= v for w in values) for v in set(values)}
    return np.vectorize({v: round(float(np.float32(n) * scale)) for v, n in risen.items()}.get)(levels)


def explicit_correlate(levels: Array, kernel: list[list[int]]) -> Array:
    padded = np.pad(levels.astype(int), 1, mode="reflect")
    sums = [[(padded[y : y + 3, x : x + 3] * kernel).sum() for x in range(32)] for y in range(32)]
    return np.array(sums)


BOX = [[1] * 3] * 3
LIGHT = [[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]


@pytest.mark.parametrize("severity", [1, 2, 3])
def test_spatter_of_water_is_lit_by_the_distance_to_its_rims(severity: int) -> None:
    images = natural(3)
    result = apply(images, "spatter", severity)
    for image, corrupted, layer in zip(images, result, layers(severity), strict=True):
        levels = np.floor(layer * 255).astype(int) % 256  # a cast to bytes wraps
        edges = explicit_canny(levels)
        assert edges.any()
        np.testing.assert_array_equal(spatter.canny(levels[None])[0], edges)
        away = explicit_distance(edges)
        np.testing.assert_array_equal(spatter.distance(edges[None])[0], away)
        depth = np.floor(explicit_correlate(away, BOX) / 90_000 + 1e-9).astype(int)
        spread = explicit_equalise(depth)
        np.testing.assert_array_equal(spatter.equalise(depth[None])[0], spread)
        relief = np.clip(explicit_correlate(spread, LIGHT), 0, 255)
        water = levels * np.rint(explicit_correlate(relief, BOX) / 9)
        share = SPATTER[severity - 1][4] * water / water.max()
        assert_truncated(corrupted, image / 255 + share[..., None] * np.array([175, 238, 238]) / 255)


@pytest.mark.parametrize("severity", [4, 5])
def test_spatter_of_mud_covers(severity: int) -> None:
    images = natural(3)
    drops = layers(severity) > SPATTER[severity - 1][3]
    share = explicit_gaussian(drops[..., None].astype(float), SPATTER[severity - 1][4])
    share[share < 0.8] = 0
    assert share.any()
    expected = images / 255 * (1 - share) + share * np.array([63, 42, 20]) / 255
    assert_truncated(apply(images, "spatter", severity), expected)


def test_spatter_at_its_edges() -> None:
    nothing = np.zeros((2, 32, 32), dtype=np.int64)
    assert not spatter.canny(nothing).any()
    assert np.unique(spatter.distance(np.zeros((1, 32, 32), dtype=bool))).tolist() == [200_000]  # no edge: cut
    assert np.unique(spatter.equalise(nothing + 7)).tolist() == [7]
    dry = (0.1, 0.01, 0.7, 0.7, 0.5, "water")  # no drop, so nothing to divide by
    images = natural(2)
    np.testing.assert_array_equal(spatter.spatter(images, dry, [np.random.default_rng(i) for i in (0, 1)]), images)


@pytest.mark.parametrize("severity", [1, 2, 3])
def test_spatter_agrees_with_opencv_step_by_step(severity: int) -> None:
    cv2 = pytest.importorskip("cv2", reason="needs OpenCV, of the extra dev")
    levels = (np.floor(layers(severity, 60) * 255) % 256).astype(np.uint8)
    noise = np.random.default_rng(severity).integers(0, 256, (10, 32, 32), dtype=np.uint8)
    smooth = ndimage.gaussian_filter(noise, (0, 1, 1))  # with edges in all directions
    for level in (*levels, *noise, *smooth, np.zeros((32, 32), dtype=np.uint8)):
        whole = level.astype(np.int64)[None]
        edges = cv2.Canny(level, 50, 150)
        np.testing.assert_array_equal(spatter.canny(whole)[0], edges > 0)
        away = np.minimum(cv2.distanceTransform(255 - edges, cv2.DIST_L2, 5), 20)
        mine = spatter.distance(edges[None] > 0)
        np.testing.assert_allclose(mine[0] / 10_000, away, rtol=1e-5)  # OpenCV's are single precision or fixed point
        depth = cv2.blur(away, (3, 3)).astype(np.uint8)
        np.testing.assert_array_equal(spatter._correlate(mine, spatter.BOX)[0] // 90_000, depth)
        spread = cv2.equalizeHist(depth)
        np.testing.assert_array_equal(spatter.equalise(depth.astype(np.int64)[None])[0], spread)
        np.testing.assert_array_equal(spatter.equalise(whole)[0], cv2.equalizeHist(level))
        relief = cv2.filter2D(spread, cv2.CV_8U, np.array(LIGHT))
        np.testing.assert_array_equal(
            np.clip(spatter._correlate(spread.astype(np.int64)[None], spatter.LIGHT)[0], 0, 255), relief
        )
        soft = (2 * spatter._correlate(relief.astype(np.int64)[None], spatter.BOX)[0] + 9) // 18
        np.testing.assert_array_equal(soft, cv2.blur(relief, (3, 3)))


# all of them


@pytest.mark.parametrize(
    ("name", "parameters"),
    [  # those not already spelled out above
        ("defocus_blur", [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)]),
        ("gaussian_blur", [0.4, 0.6, 0.7, 0.8, 1]),
        ("glass_blur", [(0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2)]),
        ("motion_blur", [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)]),
        ("zoom_blur", [1.06, 1.11, 1.15, 1.2, 1.25]),
        ("snow", list(SNOW)),
        ("frost", [(1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)]),
        ("elastic_transform", list(ELASTIC)),
        ("spatter", list(SPATTER)),
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
    assert available() == tuple(CORRUPTIONS) == PAPER + HELD_OUT
    for name, corruption in CORRUPTIONS.items():
        assert corruption.name == name == corruption.function.__name__
        assert len(corruption.parameters) == 5
        assert corruption.function.__module__.split(".")[-1] in (corruption.kind, name)  # large ones have their own
    assert set(corruptions.__all__) >= {"CORRUPTIONS", "HELD_OUT", "PAPER", "apply", "available", "resolve"}


@pytest.mark.parametrize("name", CORRUPTIONS)
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


@pytest.mark.parametrize("name", CORRUPTIONS)
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


# of the others the published parameters do not all rise
@pytest.mark.parametrize(
    "name",
    sorted(set(CORRUPTIONS) - {"elastic_transform", "frost", "glass_blur", "pixelate", "saturate", "spatter"}),
)
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


@pytest.mark.parametrize("name", CORRUPTIONS)
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
    with pytest.raises(InputError, match=r"Unknown corruption '\['fog'\]': expected one of"):
        apply(grey(128, 1), ["fog"])
    with pytest.raises(InputError) as refusal:
        resolve(["fog", "rain"])
    assert str(refusal.value) == f"Unknown corruption 'rain': expected one of {names}, all, held-out, every."


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
                f"Expected images of shape (N, 32, 32, 3), got {shape}: give a batch, the channels last, scaled or cut "
                "to 32 x 32 pixels.",
            )
            for shape in ((1, 64, 64, 3), (2, 28, 32, 3), (32, 32, 3), (2, 3, 32, 32), (1, 32, 32, 1), (5, 32, 32), ())
        ),
        *(
            (
                grey(0, 1),
                {"severity": severity},
                f"Expected the severity to be a whole number from 1 to 5, got {severity!r}.",
            )
            for severity in (0, 6, -1, 2.5, 2.0, "3", None)
        ),
        (grey(0, 1), {"seed": -1}, "Expected the seed to be a whole number from 0 on, got -1."),
        (grey(0, 1), {"seed": 1.0}, "Expected the seed to be a whole number from 0 on, got 1.0."),
        (grey(0, 1), {"first_index": -2}, "Expected the first index to be a whole number from 0 on, got -2."),
    ],
)
def test_wrong_input_is_refused_in_one_sentence(images: Array, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refusal:
        apply(images, "gaussian_noise", **arguments)
    assert str(refusal.value) == message


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    images = natural(2)
    wanted = apply(images, "gaussian_noise", 4, seed=2, first_index=3)
    for kind in (np.int64, np.uint8):
        given = apply(images, "gaussian_noise", kind(4), seed=kind(2), first_index=kind(3))
        np.testing.assert_array_equal(given, wanted)


def test_a_small_numpy_integer_does_not_overflow() -> None:
    images = natural(6)
    whole = apply(images, "gaussian_noise", 3, seed=0, first_index=253)
    np.testing.assert_array_equal(whole, apply(images, "gaussian_noise", np.uint8(3), np.uint8(0), np.uint8(253)))
