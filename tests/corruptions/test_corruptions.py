"""Each corruption against its definition, worked out here by other means than in the package."""

import io
import math
import re
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
    parameter_set,
    registry,
    resolve,
    spatter,
    weather,
)
from mt3.support.errors import InputError

Array = npt.NDArray[Any]

SEVERITIES = (1, 2, 3, 4, 5)
# the side of the images and the severity; 121 has the parameters for 224, and slow definitions are faster there
CASES = [*((side, severity) for side in (32, 64, 121) for severity in SEVERITIES), (224, 4)]
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
        sides = (230 + i, 233 - i, 3)  # not only multiples of 5
        Image.fromarray(rng.integers(100, 256, sides, dtype=np.uint8)).save(package / "frost" / name)
        saved.append(np.asarray(Image.open(package / "frost" / name)))
    sys.path.insert(0, str(package.parent))
    yield saved
    sys.path.remove(str(package.parent))


def by_severity(*values: float) -> list[tuple[int, float]]:
    return list(zip(SEVERITIES, values, strict=True))


def natural(n: int, side: int = 32) -> Array:
    """Smooth coloured blobs with some grain, black and white included: bytes (n, side, side, 3)."""
    rng = np.random.default_rng(1)
    blobs = ndimage.gaussian_filter(rng.normal(size=(n, side, side, 3)), (0, 3, 3, 0), mode="wrap")
    values = 128 + 500 * blobs + rng.normal(0, 6, blobs.shape)
    values[:, :2, :8] = 0
    values[:, 2:4, :8] = 255
    values[:, 4:6, :8] = values[:, 4:6, :8, :1]  # greys, whose hue is undefined
    images: Array = np.clip(values, 0, 255).astype(np.uint8)
    return images


def grey(level: int, n: int = 64) -> Array:
    return np.full((n, 32, 32, 3), level, dtype=np.uint8)


def parameter(name: str, severity: int, side: int = 32) -> Any:
    return CORRUPTIONS[name].parameters[parameter_set(side)][severity - 1]


def generator(name: str, severity: int, index: int, seed: int = 0) -> np.random.Generator:
    """The documented seeding, restated."""
    return np.random.default_rng([seed, zlib.crc32(name.encode("ascii")), severity, index])


def explicit_gaussian(x: Array, std: float, truncate: float = 4, border: Any = "edge") -> Array:
    """Filter (n, side, side, channels) by the sum over the taps along columns, then along rows."""
    reach = int(truncate * std + 0.5)
    taps = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * std**2))
    taps /= taps.sum()
    for _ in range(2):
        padded = np.pad(x, ((0, 0), (reach, reach), (0, 0), (0, 0)), mode=border)
        x = sum(tap * padded[:, i : i + x.shape[1]] for i, tap in enumerate(taps)).transpose(0, 2, 1, 3)
    return x


def explicit_zoom(x: Array, factor: float) -> Array:
    """Zoom the centre of (side, side, channels)."""
    side = len(x)
    crop = math.ceil(side / factor)
    top = (side - crop) // 2
    zoomed = ndimage.zoom(x[top : top + crop, top : top + crop], (factor, factor, 1), order=1)
    trim = (len(zoomed) - side) // 2
    return np.asarray(zoomed[trim : trim + side, trim : trim + side])


def explicit_motion(x: Array, radius: float, std: float, degrees: float) -> Array:
    """Blur (side, side, channels) of bytes tap by tap along the ray of ImageMagick; not rounded yet."""
    weights = [math.exp(-i * i / (2 * std * std)) for i in range(2 * math.ceil(radius) + 1)]
    angle, every = math.radians(degrees), np.arange(len(x))
    result = np.zeros(x.shape)
    for i, weight in enumerate(weights):
        right, down = math.ceil(i * math.cos(angle) - 0.5), math.ceil(i * math.sin(angle) - 0.5)
        rows, columns = (np.clip(every + shift, 0, len(x) - 1) for shift in (down, right))
        result += weight / sum(weights) * x[np.ix_(rows, columns)]
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


@pytest.mark.parametrize(("side", "severity"), CASES)
def test_defocus_blur_is_a_double_loop_over_the_disk(side: int, severity: int) -> None:
    radius, softness = parameter("defocus_blur", severity, side)
    edge, reach = (8, 1) if radius <= 8 else (10, 2)
    # offset to weight: every pixel of the disk spreads by the 3 x 3 or 5 x 5 Gaussian
    kernel: dict[tuple[int, int], float] = {}
    line = {i: math.exp(-i * i / (2 * softness**2)) for i in range(-reach, reach + 1)}
    steps = [(i, j, line[i] * line[j] / sum(line.values()) ** 2) for i in line for j in line]
    places = range(-edge, edge + 1)
    inside = {(y, x) for y in places for x in places if y * y + x * x <= radius * radius}
    for y in places:
        for x in places:  # what lies beyond the kernel's edge mirrors what lies within
            near = [(*(2 * edge - abs(v) if abs(v) > edge else abs(v) for v in (y + i, x + j)), w) for i, j, w in steps]
            kernel[y, x] = sum(w for v, u, w in near if (v, u) in inside) / len(inside)
    published = {32: (1, 1, 1, 5, 9), 64: (1, 5, 9, 21, 29)}.get(side, (29, 49, 113, 197, 317))
    assert len(inside) == published[severity - 1]

    images = natural(2, side)
    padded = np.pad(images / 255, ((0, 0), (edge, edge), (edge, edge), (0, 0)), mode="reflect")  # not the border pixel
    expected = np.zeros(images.shape)
    for (y, x), weight in kernel.items():
        if weight > 0:
            expected += weight * padded[:, edge + y :, edge + x :][:, :side, :side]
    # the kernel is in single precision
    assert_truncated(apply(images, "defocus_blur", severity), expected, tolerance=1e-4)
    mine = blur.disk(radius, softness)
    assert mine.shape == (2 * edge + 1, 2 * edge + 1)
    np.testing.assert_allclose(mine, np.reshape(list(kernel.values()), mine.shape), atol=1e-6)


@pytest.mark.parametrize(("side", "severity"), CASES)
def test_gaussian_blur_is_an_explicit_kernel_with_repeated_border(side: int, severity: int) -> None:
    images = natural(2, side)
    expected = explicit_gaussian(images / 255, parameter("gaussian_blur", severity, side))
    assert_truncated(apply(images, "gaussian_blur", severity), expected)


def explicit_glass(image: Array, parameters: tuple[float, int, int], draws: Array) -> Array:
    """Visit pixel after pixel from the last on; `draws` (passes, up or left, rows, columns) count from the far end."""
    std, reach, passes = parameters
    blurred = explicit_gaussian(image[None] / 255, std)[0] * 255
    pixels = np.floor(blurred + 1e-9)
    for turn in range(passes):
        for row in range(len(image) - reach, reach, -1):
            for column in range(len(image) - reach, reach, -1):
                up, left = draws[turn, :, row - reach - 1, column - reach - 1] - (reach - 1)
                pixels[row, column] = pixels[row - up, column - left]
    return explicit_gaussian(pixels[None] / 255, std)[0]


GLASS = {
    32: ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    64: ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
    224: ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
}


@pytest.mark.parametrize(("side", "severity"), CASES)
def test_glass_blur_takes_pixels_one_after_the_other(side: int, severity: int) -> None:
    std, reach, passes = GLASS[parameter_set(side)][severity - 1]
    images = natural(2 if side < 100 else 1, side)
    result = apply(images, "glass_blur", severity, seed=3, first_index=5)
    inner = side - 2 * reach
    for i, image in enumerate(images):
        draws = generator("glass_blur", severity, 5 + i, seed=3).integers(0, 2 * reach, (passes, 2, inner, inner))
        assert_truncated(result[i], explicit_glass(image, (std, reach, passes), draws))


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


@pytest.mark.parametrize(("side", "severity"), CASES)
def test_motion_blur_follows_a_ray(side: int, severity: int) -> None:
    radius, std = parameter("motion_blur", severity, side)
    images = natural(2, side)
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
    [
        (6, 1, -45),
        (6, 1.5, 12.3),
        (6, 2, 0),
        (8, 2, 44),
        (9, 2.5, 30),
        (8, 3, -135),
        (12, 6, -90),
        (14, 12, -50),
        (15, 8, 17),
        (20, 15, -31),
    ],
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


ZOOM = {  # the end is to be left out, but (1.06 - 1) / .01 is 6.000000000000005, and (1.11 - 1) / .01 is above 11
    32: ((1.06, 0.01, 7), (1.11, 0.01, 12), (1.16, 0.01, 16), (1.21, 0.01, 21), (1.26, 0.01, 26)),
    224: ((1.11, 0.01, 12), (1.16, 0.01, 16), (1.21, 0.02, 11), (1.26, 0.02, 13), (1.31, 0.03, 11)),
}


@pytest.mark.parametrize(("side", "severity"), CASES)
def test_zoom_blur_averages_the_image_and_its_zooms(side: int, severity: int) -> None:
    end, step, count = ZOOM[32 if side < 100 else 224][severity - 1]
    factors = np.arange(1, end, step)
    assert len(factors) == count
    x = natural(1, side)[0] / 255
    total = x + sum(explicit_zoom(x, factor) for factor in factors)
    assert_truncated(apply(natural(1, side), "zoom_blur", severity)[0], total / (len(factors) + 1))


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
    maps = weather.plasma([np.random.default_rng(s) for s in range(200)], 2.0, 32)
    steps = np.abs(maps - np.roll(maps, 1, axis=1)).mean(axis=(0, 2))
    assert steps[0] < 1.3 * steps.mean()  # from the last row to the first


@pytest.mark.parametrize(("side", "severity"), [*CASES, (48, 1)])
def test_fog_adds_plasma_and_keeps_the_maximum(side: int, severity: int) -> None:
    images = natural(3 if side < 100 else 1, side) // 2
    thickness, decay = parameter("fog", severity, side)
    whole = {48: 64, 121: 128, 224: 256}.get(side, side)
    foggy = apply(images, "fog", severity, seed=4, first_index=7)
    for i, image in enumerate(images):
        plasma = diamond_square(generator("fog", severity, 7 + i, seed=4), decay, whole)[:side, :side]
        top = image.max() / 255
        assert_truncated(foggy[i], (image / 255 + thickness * plasma[..., None]) * top / (top + thickness))
        assert foggy[i].max() <= image.max()
    assert not apply(grey(0, 1), "fog", severity).any()


@pytest.mark.parametrize(("side", "severity"), CASES)
def test_snow_adds_smeared_flakes_and_their_half_turn(side: int, severity: int) -> None:
    mean, std, zoom, threshold, radius, length, kept = parameter("snow", severity, side)
    images = natural(2, side)
    result = apply(images, "snow", severity, seed=6, first_index=1)
    for i, image in enumerate(images):
        rng = generator("snow", severity, 1 + i, seed=6)
        flakes = explicit_zoom(rng.normal(mean, std, (side, side))[..., None], zoom)
        flakes = np.floor(np.where(flakes < threshold, 0, np.clip(flakes, 0, 1)) * 255)
        layer = np.floor(explicit_motion(flakes, radius, length, rng.uniform(-135, -45)) + 0.5) / 255
        r, g, b = image.transpose(2, 0, 1) / 255
        light = (0.299 * r + 0.587 * g + 0.114 * b) * 1.5 + 0.5
        fallen = layer[..., 0] + np.rot90(layer[..., 0], 2)
        expected = np.stack([kept * v + (1 - kept) * np.maximum(v, light) + fallen for v in (r, g, b)], axis=-1)
        assert_truncated(result[i], expected)


@pytest.mark.parametrize(("side", "severity"), CASES)
def test_frost_adds_a_crop_of_a_scaled_photo(side: int, severity: int, photos: list[Array]) -> None:
    own, ice, scale = parameter("frost", severity, side)
    images = natural(12 if side < 100 else 3, side)
    result = apply(images, "frost", severity, seed=2, first_index=8)
    for i, image in enumerate(images):
        rng = generator("frost", severity, 8 + i, seed=2)
        photo = photos[rng.integers(5)]
        sides = [int(length * scale + 0.5) for length in photo.shape[:2]]
        top, left = rng.integers(sides[0] - side), rng.integers(sides[1] - side)
        y, x = ((start + np.arange(side) + 0.5) / scale - 0.5 for start in (top, left))
        where = np.meshgrid(y, x, indexing="ij")
        crystals = [ndimage.map_coordinates(photo[..., c].astype(float), where, order=1) for c in range(3)]
        # the scales .2 and 1 take whole pixels; OpenCV rounds what lies between to bytes
        rounding = ice if scale == 0.3 else 1e-9
        expected = own * image.astype(float) + ice * np.moveaxis(crystals, 0, -1)
        assert_truncated(result[i], expected / 255, rounding)


def test_frost_draws_all_photos_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = (40, 80, 120, 160, 200)
    flat = tuple(np.full((40, 50, 3), level, dtype=np.uint8) for level in levels)
    monkeypatch.setattr(weather, "_scaled_photos", lambda folder, scale, side: flat)
    found, counts = np.unique(apply(grey(0, 1000), "frost", 5)[:, 0, 0, 0], return_counts=True)
    assert found.tolist() == [18, 36, 54, 72, 90]
    assert counts / 1000 == pytest.approx([0.2] * 5, abs=0.06)


@pytest.mark.parametrize("scale", [0.2, 0.3, 1])
def test_scaling_a_photo_is_opencvs_linear_resize(scale: float, photos: list[Array]) -> None:
    cv2 = pytest.importorskip("cv2", reason="needs OpenCV, of the extra dev")
    for photo in photos:
        np.testing.assert_array_equal(weather.scale_linear(photo, scale), cv2.resize(photo, (0, 0), fx=scale, fy=scale))


@pytest.mark.parametrize("side", [64, 72, 230, 512])
def test_a_photo_too_small_for_a_crop_is_enlarged(side: int, photos: list[Array]) -> None:
    folder = weather.frost_photos()
    assert folder is not None
    scale = parameter("frost", 1, side)[2]
    for photo, scaled in zip(photos, weather._scaled_photos(folder, scale, side), strict=True):
        fits = round(min(photo.shape[:2]) * scale) > side
        assert min(scaled.shape[:2]) == (round(min(photo.shape[:2]) * scale) if fits else round(1.1 * side))
    assert apply(natural(1, side), "frost", 1).shape == (1, side, side, 3)


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


@pytest.mark.parametrize(("side", "severity"), CASES[:-1])
@pytest.mark.parametrize("name", ["brightness", "saturate"])
def test_brightness_and_saturate_act_in_hsv(name: str, side: int, severity: int) -> None:
    images = natural(2 if side == 32 else 1, side)
    c = parameter(name, severity, side)
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


@pytest.mark.parametrize(("side", "severity"), CASES)
def test_contrast_scales_around_the_channel_mean(side: int, severity: int) -> None:
    images = natural(2, side)
    factor = parameter("contrast", severity, side)
    result = apply(images, "contrast", severity)
    for i in range(2):
        for channel in range(3):
            values = [int(value) / 255 for value in images[i, :, :, channel].ravel()]
            mean = math.fsum(values) / side**2
            expected = np.reshape([(value - mean) * factor + mean for value in values], (side, side))
            assert_truncated(result[i, :, :, channel], expected)


PIXELATE = {32: (30, 28, 27, 24, 20), 64: (57, 51, 44, 38, 32), 121: (72, 60, 48, 36, 30), 224: (134, 112, 89, 67, 56)}
QUALITY = {32: (80, 65, 58, 50, 40), 64: (65, 58, 50, 40, 25), 224: (25, 18, 15, 10, 7)}


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("side", PIXELATE)
def test_pixelate_is_pillows_box_resize_there_and_back(side: int, severity: int) -> None:
    images = natural(2, side)
    few = (PIXELATE[side][severity - 1],) * 2
    for image, result in zip(images, apply(images, "pixelate", severity), strict=True):
        small = Image.fromarray(image).resize(few, Image.Resampling.BOX)
        np.testing.assert_array_equal(result, np.array(small.resize((side, side), Image.Resampling.BOX)))


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("side", QUALITY)
def test_jpeg_compression_is_pillows(side: int, severity: int) -> None:
    images = natural(2, side)
    for image, result in zip(images, apply(images, "jpeg_compression", severity), strict=True):
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, format="jpeg", quality=QUALITY[side][severity - 1])
        np.testing.assert_array_equal(result, np.array(Image.open(io.BytesIO(buffer.getvalue()))))


# in units of the side; the generator for 224 pixels says 244 for it
ELASTIC = {
    32: ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    64: ((0, 0, 0.08), (0.05, 0.3, 0.06), (0.1, 0.08, 0.06), (0.1, 0.03, 0.03), (0.16, 0.03, 0.02)),
    224: ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)),
}


@pytest.mark.parametrize(("side", "severity"), [*CASES, (224, 1)])
def test_elastic_transform_shears_and_then_displaces(side: int, severity: int) -> None:
    unit = side * 244 / 224 if side > 100 else side
    strength, smoothness, shear = (unit * share for share in ELASTIC[parameter_set(side)][severity - 1])
    images = natural(3, side)
    result = apply(images, "elastic_transform", severity, seed=5, first_index=3)
    far, near = {32: (26, 6), 64: (53, 11), 121: (100, 20), 224: (186, 38)}[side]
    points = np.array([(far, far), (far, near), (near, near)], dtype=float)
    grid = np.stack(np.meshgrid(np.arange(float(side)), np.arange(float(side))))  # x and y of every pixel
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
        expected = np.reshape(sheared, (3, side, side))
        if strength:
            noise = rng.uniform(-1, 1, (2, side, side))
            dx, dy = strength * explicit_gaussian(noise[..., None], smoothness, truncate=3, border="symmetric")[..., 0]
            where = [grid[1] + dy, grid[0] + dx]
            expected = np.stack([ndimage.map_coordinates(c, where, order=1, mode="reflect") for c in expected])
        assert_truncated(result[i], expected.transpose(1, 2, 0))


# spatter


def layers(severity: int, n: int = 3, side: int = 32) -> Array:
    """Smoothed noise below the threshold set to 0, from the documented draws."""
    mean, std, smoothness, threshold = parameter("spatter", severity, side)[:4]
    noise = [generator("spatter", severity, i).normal(mean, std, (side, side)) for i in range(n)]
    layer = explicit_gaussian(np.stack(noise)[..., None], smoothness)[..., 0]
    return np.where(layer < threshold, 0, layer)


def explicit_canny(levels: Array) -> Array:
    """Edges of one image of bytes, pixel by pixel, with angles instead of tangents."""
    padded, side = np.pad(levels.astype(int), 1, mode="edge"), len(levels)
    slope, angle = np.zeros((side + 2, side + 2)), np.zeros((side + 2, side + 2))
    for y in range(side):
        for x in range(side):
            around = padded[y : y + 3, x : x + 3]
            across = int((around[:, 2] - around[:, 0]) @ [1, 2, 1])
            down = int((around[2] - around[0]) @ [1, 2, 1])
            slope[y + 1, x + 1] = abs(across) + abs(down)
            angle[y + 1, x + 1] = math.degrees(math.atan2(down, across)) % 180
    strong, weak = [], set()
    for y in range(1, side + 1):
        for x in range(1, side + 1):
            sector = round(angle[y, x] / 45) % 4
            dy, dx = ((0, 1), (1, 1), (1, 0), (1, -1))[sector]
            before, after = slope[y - dy, x - dx], slope[y + dy, x + dx]
            if slope[y, x] > before and (slope[y, x] > after or (sector in (0, 2) and slope[y, x] == after)):
                if slope[y, x] > 150:
                    strong.append((y, x))
                elif slope[y, x] > 50:
                    weak.add((y, x))
    edges = np.zeros((side + 2, side + 2), dtype=bool)
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
    padded, side = np.pad(edges, 20), len(edges)
    away = np.full(edges.shape, 20 * one)
    for y in range(41):
        for x in range(41):
            short, long = sorted((abs(y - 20), abs(x - 20)))
            straight = short * knight + (long - 2 * short) * one
            askew = (long - short) * knight + (2 * short - long) * diagonal
            way = straight if long >= 2 * short else askew
            if way < 20 * one:
                away = np.where(padded[y : y + side, x : x + side], np.minimum(away, way), away)
    return away


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
    every = range(len(levels))
    sums = [[(padded[y : y + 3, x : x + 3] * kernel).sum() for x in every] for y in every]
    return np.array(sums)


BOX = [[1] * 3] * 3
LIGHT = [[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]


@pytest.mark.parametrize("severity", [1, 2, 3])
@pytest.mark.parametrize("side", [32, 64, 121])
def test_spatter_of_water_is_lit_by_the_distance_to_its_rims(side: int, severity: int) -> None:
    images = natural(3 if side == 32 else 1, side)
    result = apply(images, "spatter", severity)
    for image, corrupted, layer in zip(images, result, layers(severity, len(images), side), strict=True):
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
        share = parameter("spatter", severity, side)[4] * water / water.max()
        assert_truncated(corrupted, image / 255 + share[..., None] * np.array([175, 238, 238]) / 255)


@pytest.mark.parametrize("severity", [4, 5])
@pytest.mark.parametrize("side", [32, 64, 121, 224])
def test_spatter_of_mud_covers(side: int, severity: int) -> None:
    images = natural(3, side)
    threshold, softness = parameter("spatter", severity, side)[3:5]
    drops = layers(severity, 3, side) > threshold
    share = explicit_gaussian(drops[..., None].astype(float), softness)
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


@pytest.mark.parametrize(("side", "count"), [(32, 60), (64, 8), (224, 2)])
@pytest.mark.parametrize("severity", [1, 2, 3])
def test_spatter_agrees_with_opencv_step_by_step(severity: int, side: int, count: int) -> None:
    cv2 = pytest.importorskip("cv2", reason="needs OpenCV, of the extra dev")
    levels = (np.floor(layers(severity, count, side) * 255) % 256).astype(np.uint8)
    noise = np.random.default_rng(severity).integers(0, 256, (count // 6, side, side), dtype=np.uint8)
    smooth = ndimage.gaussian_filter(noise, (0, 1, 1))  # with edges in all directions
    for level in (*levels, *noise, *smooth, np.zeros((side, side), dtype=np.uint8)):
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


PUBLISHED: dict[int, dict[str, list[Any]]] = {  # those not already spelled out above
    32: {
        "gaussian_noise": [0.04, 0.06, 0.08, 0.09, 0.1],
        "shot_noise": [500, 250, 100, 75, 50],
        "impulse_noise": [0.01, 0.02, 0.03, 0.05, 0.07],
        "defocus_blur": [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)],
        "motion_blur": [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)],
        "snow": [
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ],
        "frost": [(1, 0.2, 0.2), (1, 0.3, 0.2), (0.9, 0.4, 0.2), (0.85, 0.4, 0.2), (0.75, 0.45, 0.2)],
        "fog": [(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)],
        "brightness": [0.05, 0.1, 0.15, 0.2, 0.3],
        "contrast": [0.75, 0.5, 0.4, 0.3, 0.15],
        "speckle_noise": [0.06, 0.1, 0.12, 0.16, 0.2],
        "gaussian_blur": [0.4, 0.6, 0.7, 0.8, 1],
        "spatter": [
            (0.62, 0.1, 0.7, 0.7, 0.5, "water"),
            (0.65, 0.1, 0.8, 0.7, 0.5, "water"),
            (0.65, 0.3, 1, 0.69, 0.5, "water"),
            (0.65, 0.1, 0.7, 0.69, 0.6, "mud"),
            (0.65, 0.1, 0.5, 0.68, 0.6, "mud"),
        ],
        "saturate": [(0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)],
    },
    64: {
        "gaussian_noise": [0.04, 0.08, 0.12, 0.15, 0.18],
        "shot_noise": [250, 100, 50, 30, 15],
        "impulse_noise": [0.01, 0.02, 0.05, 0.08, 0.14],
        "defocus_blur": [(0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)],
        "motion_blur": [(10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)],
        "snow": [
            (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
        ],
        "frost": [(1, 0.3, 0.3), (0.9, 0.4, 0.3), (0.8, 0.45, 0.3), (0.75, 0.5, 0.3), (0.7, 0.55, 0.3)],
        "fog": [(0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)],
        "brightness": [0.1, 0.2, 0.3, 0.4, 0.5],
        "contrast": [0.4, 0.3, 0.2, 0.1, 0.05],
        "speckle_noise": [0.15, 0.2, 0.25, 0.3, 0.35],
        "gaussian_blur": [0.5, 0.75, 1, 1.25, 1.5],
        "spatter": [
            (0.62, 0.1, 0.7, 0.7, 0.6, "water"),
            (0.65, 0.1, 0.8, 0.7, 0.6, "water"),
            (0.65, 0.3, 1, 0.69, 0.6, "water"),
            (0.65, 0.1, 0.7, 0.68, 0.6, "mud"),
            (0.65, 0.1, 0.5, 0.67, 0.6, "mud"),
        ],
        "saturate": [(0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)],
    },
    224: {
        "gaussian_noise": [0.08, 0.12, 0.18, 0.26, 0.38],
        "shot_noise": [60, 25, 12, 5, 3],
        "impulse_noise": [0.03, 0.06, 0.09, 0.17, 0.27],
        "defocus_blur": [(3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)],
        "motion_blur": [(10, 3), (15, 5), (15, 8), (15, 12), (20, 15)],
        "snow": [
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ],
        "frost": [(1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)],
        "fog": [(1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)],
        "brightness": [0.1, 0.2, 0.3, 0.4, 0.5],
        "contrast": [0.4, 0.3, 0.2, 0.1, 0.05],
        "speckle_noise": [0.15, 0.2, 0.35, 0.45, 0.6],
        "gaussian_blur": [1, 2, 3, 4, 6],
        "spatter": [
            (0.65, 0.3, 4, 0.69, 0.6, "water"),
            (0.65, 0.3, 3, 0.68, 0.6, "water"),
            (0.65, 0.3, 2, 0.68, 0.5, "water"),
            (0.65, 0.3, 1, 0.65, 1.5, "mud"),
            (0.67, 0.4, 1, 0.65, 1.5, "mud"),
        ],
        "saturate": [(0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)],
    },
}


@pytest.mark.parametrize("side", PUBLISHED)
def test_the_parameters_are_the_published_ones(side: int) -> None:
    spelled_out = {"zoom_blur", "glass_blur", "elastic_transform", "pixelate", "jpeg_compression"}
    assert set(PUBLISHED[side]) == set(CORRUPTIONS) - spelled_out
    for name, parameters in PUBLISHED[side].items():
        assert list(CORRUPTIONS[name].parameters[side]) == parameters


def test_the_page_has_the_parameters() -> None:
    page = (Path(__file__).parents[2] / "docs" / "corruptions.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.count(" | ") == 4]
    told = {name: dict(zip((32, 64, 224), columns, strict=True)) for name, _, *columns in rows[1:]}
    assert list(told) == list(CORRUPTIONS)
    for name, columns in told.items():
        for side, words in columns.items():
            values = re.findall(r"[\d.]+|water|mud", words)
            unit = 244 / 224 if (name, side) == ("elastic_transform", 224) else 1
            for value, wanted in zip(
                values, np.ravel(np.array(CORRUPTIONS[name].parameters[side], dtype=object)), strict=True
            ):
                assert value == wanted or float(value) * unit == pytest.approx(wanted, rel=1e-12)


def test_the_nearest_size_in_ratio_gives_the_parameters() -> None:
    sizes = {16: 32, 32: 32, 45: 32, 46: 64, 48: 64, 64: 64, 96: 64, 119: 64, 120: 224, 224: 224, 299: 224, 512: 224}
    assert {size: parameter_set(size) for size in sizes} == sizes
    for size in (15, 513, 64.0, "64", None):
        with pytest.raises(InputError) as refusal:
            parameter_set(size)  # type: ignore[arg-type]
        expected = f"Expected the side of the images to be a whole number from 16 to 512, got {size!r}."
        assert str(refusal.value) == expected


@pytest.mark.parametrize(("side", "severity"), [(64, 3), (121, 5), (224, 1)])
def test_noise_at_other_sizes_is_its_definition(side: int, severity: int) -> None:
    image = natural(1, side)
    x = image[0] / 255
    for name in ("gaussian_noise", "speckle_noise", "shot_noise", "impulse_noise"):
        c, rng = PUBLISHED[parameter_set(side)][name][severity - 1], generator(name, severity, 0)
        if name == "shot_noise":
            expected = rng.poisson(x * c) / c
        elif name == "impulse_noise":
            u = rng.random(x.shape)
            expected = np.where(u < c / 2, 0, np.where(u >= 1 - c / 2, 1, x))
        else:
            expected = x + (x if name == "speckle_noise" else 1) * rng.normal(0, c, x.shape)
        assert_truncated(apply(image, name, severity)[0], expected)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_every_size_runs_and_its_parts_do_not_matter(name: str) -> None:
    for side, severity in ((16, 5), (17, 1), (48, 4), (120, 5), (300, 2), (512, 1)):
        images = natural(1 if side > 200 else 3, side)
        whole = apply(images, name, severity, first_index=2)
        assert whole.shape == images.shape
        assert not np.array_equal(whole, images)
        np.testing.assert_array_equal(whole[-1:], apply(images[-1:], name, severity, first_index=1 + len(images)))


def test_the_registry_is_the_benchmarks() -> None:
    assert (len(PAPER), len(HELD_OUT), len(set(PAPER + HELD_OUT))) == (15, 4, 19)
    assert available() == tuple(CORRUPTIONS) == PAPER + HELD_OUT
    for name, corruption in CORRUPTIONS.items():
        assert corruption.name == name == corruption.function.__name__
        assert {side: len(five) for side, five in corruption.parameters.items()} == {32: 5, 64: 5, 224: 5}
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
                f"Expected images of shape (N, side, side, 3), the side from 16 to 512, got {shape}: give a batch, the "
                "channels last, scaled or cut to squares of such a side.",
            )
            for shape in (
                (1, 15, 15, 3),
                (1, 513, 513, 3),
                (2, 28, 32, 3),
                (32, 32, 3),
                (2, 3, 32, 32),
                (1, 32, 32, 1),
                (5, 32, 32),
                (),
            )
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
