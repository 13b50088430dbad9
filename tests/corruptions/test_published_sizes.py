"""Random corruptions at the published sizes 64 and 224, beside images drawn anew from their definitions.

The definitions are worked out here with OpenCV and SciPy, image by image, from another stream of random numbers. Five
statistics of many images have to agree within 5 %.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import ndimage

from mt3.corruptions import CORRUPTIONS, apply, available
from mt3.corruptions.weather import FROST_PHOTOS, frost_photos

cv2 = pytest.importorskip("cv2", reason="needs OpenCV, of the extra dev")

Array = npt.NDArray[Any]
Draw = np.random.RandomState

RANDOM = tuple(name for name in CORRUPTIONS if CORRUPTIONS[name].random)


def pictures(count: int, side: int) -> Array:
    """Coloured blobs over a slope of light, with some grain: bytes (count, side, side, 3)."""
    draw = np.random.default_rng(7)
    blobs = ndimage.gaussian_filter(draw.normal(size=(count, side, side, 3)), (0, side / 12, side / 12, 0), mode="wrap")
    slope = np.linspace(-30, 30, side)[:, None, None]
    values = 115 + 45 * blobs / blobs.std() + slope + draw.normal(0, 8, blobs.shape)
    return np.clip(values, 0, 255).astype(np.uint8)


def statistics(images: Array, clean: Array) -> list[float]:
    """Mean, standard deviation, change, and how much neighbours differ across and down."""
    x = images.astype(np.float64)
    across, down = (np.abs(np.diff(x, axis=axis)).mean() for axis in (2, 1))
    return [x.mean(), x.std(), np.abs(x - clean).mean(), across, down]


# the definitions: a picture in [0, 1], parameters and a draw give a picture in [0, 1], neither clipped nor rounded


def noise(x: Array, scale: float, draw: Draw) -> Array:
    return x + draw.normal(scale=scale, size=x.shape)


def shot(x: Array, photons: float, draw: Draw) -> Array:
    return draw.poisson(x * photons) / photons


def impulse(x: Array, share: float, draw: Draw) -> Array:
    hit, white = draw.random_sample(x.shape) < share, draw.random_sample(x.shape) < 0.5
    return np.where(hit, white, x)


def speckle(x: Array, scale: float, draw: Draw) -> Array:
    return x * (1 + draw.normal(scale=scale, size=x.shape))


def blurred(x: Array, std: float) -> Array:
    width = 2 * int(4 * std + 0.5) + 1
    return cv2.GaussianBlur(x, (width, width), std, borderType=cv2.BORDER_REPLICATE) if width > 1 else x


def glass(x: Array, parameters: tuple[float, int, int], draw: Draw) -> Array:
    std, reach, passes = parameters
    pixels = (blurred(x, std) * 255).astype(np.uint8)
    visited = range(len(x) - reach, reach, -1)
    for _ in range(passes):
        for row in visited:
            for column, (right, below) in zip(visited, draw.randint(-reach, reach, (len(visited), 2)), strict=True):
                pixels[row, column] = pixels[row + below, column + right]
    return blurred(pixels / 255, std)


def smeared(x: Array, radius: float, std: float, degrees: float) -> Array:
    """By one kernel with a weight for each tap on the ray."""
    reach = 2 * math.ceil(radius)
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1))
    for i in range(reach + 1):
        right, down = (i * f(math.radians(degrees)) for f in (math.cos, math.sin))
        kernel[reach + math.ceil(down - 0.5), reach + math.ceil(right - 0.5)] += math.exp(-((i / std) ** 2) / 2)
    filtered = cv2.filter2D(x * 255, cv2.CV_64F, kernel / kernel.sum(), borderType=cv2.BORDER_REPLICATE)
    return np.rint(filtered) / 255


def motion(x: Array, parameters: tuple[float, float], draw: Draw) -> Array:
    return smeared(x, *parameters, draw.uniform(-45, 45))


def zoomed(layer: Array, factor: float) -> Array:
    side = len(layer)
    kept = math.ceil(side / factor)
    start = (side - kept) // 2
    large = ndimage.zoom(layer[start : start + kept, start : start + kept], factor, order=1)
    cut = (len(large) - side) // 2
    return np.asarray(large[cut : cut + side, cut : cut + side])


def snow(x: Array, parameters: tuple[float, ...], draw: Draw) -> Array:
    mean, std, zoom, threshold, radius, length, kept = parameters
    flakes = zoomed(draw.normal(mean, std, x.shape[:2]), zoom)
    flakes = np.floor(255 * np.clip(flakes * (flakes >= threshold), 0, 1)) / 255
    layer = smeared(flakes, radius, length, draw.uniform(-135, -45))[..., None]
    light = cv2.cvtColor(x.astype(np.float32), cv2.COLOR_RGB2GRAY)[..., None] * 1.5 + 0.5
    return kept * x + (1 - kept) * np.maximum(x, light) + layer + layer[::-1, ::-1]


@lru_cache
def frozen(name: str, scale: float) -> Array:
    folder = frost_photos()
    assert folder is not None
    photo = cv2.imread(str(folder / name))
    return photo if scale == 1 else cv2.resize(photo, None, fx=scale, fy=scale)


def frost(x: Array, parameters: tuple[float, float, float], draw: Draw) -> Array:
    own, ice, scale = parameters
    side, photo = len(x), frozen(FROST_PHOTOS[draw.randint(5)], scale)
    top, left = (draw.randint(length - side) for length in photo.shape[:2])
    return own * x + ice * photo[top : top + side, left : left + side, ::-1] / 255


def plasma(size: int, decay: float, draw: Draw) -> Array:
    """Diamond-square on a torus: squares first, then the middles of the edges, each step rougher by less."""
    height, wibble, step = np.zeros((size, size)), 100.0, size
    while step >= 2:
        half = step // 2
        for shift, ways in (
            ((half, half), ((half, half), (half, -half), (-half, half), (-half, -half))),
            ((0, half), ((half, 0), (-half, 0), (0, half), (0, -half))),
            ((half, 0), ((half, 0), (-half, 0), (0, half), (0, -half))),
        ):
            y, x = np.meshgrid(*(np.arange(s, size, step) for s in shift), indexing="ij")
            around = sum(height[(y + i) % size, (x + j) % size] for i, j in ways)
            height[y, x] = around / 4 + wibble * draw.uniform(-wibble, wibble, y.shape)
        step, wibble = half, wibble / decay
    return np.asarray((height - height.min()) / np.ptp(height))


def fog(x: Array, parameters: tuple[float, float], draw: Draw) -> Array:
    thickness, decay = parameters
    side, brightest = len(x), x.max()
    hazy = x + thickness * plasma({64: 64, 224: 256}[side], decay, draw)[:side, :side, None]
    return hazy * brightest / (brightest + thickness)


def elastic(x: Array, parameters: tuple[float, float, float], draw: Draw) -> Array:
    side = len(x)
    strength, smoothness, shear = (share * side for share in parameters)
    centre, reach = side // 2, side // 3
    corners = np.array([(centre + reach, centre + reach), (centre + reach, centre - reach), (centre - reach,) * 2])
    moved = corners + draw.uniform(-shear, shear, corners.shape)
    matrix = cv2.getAffineTransform(corners.astype(np.float32), moved.astype(np.float32))
    warped = cv2.warpAffine(x, matrix, (side, side), borderMode=cv2.BORDER_REFLECT_101)
    y, right = np.mgrid[:side, :side].astype(np.float64)
    if strength:
        for line in (right, y):
            bent = draw.uniform(-1, 1, (side, side))
            line += strength * ndimage.gaussian_filter(bent, smoothness, mode="reflect", truncate=3)
    return np.stack(
        [ndimage.map_coordinates(warped[..., c], (y, right), order=1, mode="reflect") for c in range(3)], -1
    )


def spatter(x: Array, parameters: tuple[Any, ...], draw: Draw) -> Array:
    mean, std, smoothness, threshold, amount, liquid = parameters
    layer = blurred(draw.normal(mean, std, x.shape[:2]), smoothness)
    layer = np.where(layer < threshold, 0, layer)
    if liquid == "mud":
        cover = blurred((layer > threshold).astype(np.float64), amount)
        cover = np.where(cover < 0.8, 0, cover)[..., None]
        return x * (1 - cover) + cover * np.array([63, 42, 20]) / 255
    drops = (layer * 255).astype(np.uint8)
    away = np.minimum(cv2.distanceTransform(255 - cv2.Canny(drops, 50, 150), cv2.DIST_L2, 5), 20)
    relief = cv2.equalizeHist(cv2.blur(away, (3, 3)).astype(np.uint8))
    lit = cv2.blur(cv2.filter2D(relief, cv2.CV_8U, np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])), (3, 3))
    water = drops * lit.astype(np.float64)
    return x + amount * (water / water.max())[..., None] * np.array([175, 238, 238]) / 255


DEFINITIONS: dict[str, Callable[[Array, Any, Draw], Array]] = {
    "gaussian_noise": noise,
    "shot_noise": shot,
    "impulse_noise": impulse,
    "glass_blur": glass,
    "motion_blur": motion,
    "snow": snow,
    "frost": frost,
    "fog": fog,
    "elastic_transform": elastic,
    "speckle_noise": speckle,
    "spatter": spatter,
}


def test_every_random_corruption_is_defined_here() -> None:
    assert set(DEFINITIONS) == set(RANDOM)


# images that show 5 % with some room: many draws a pixel need few of them, one draw an image needs many
COUNTS = dict.fromkeys(RANDOM, 200) | dict.fromkeys((name for name in RANDOM if "noise" in name), 60)
COUNTS |= {"glass_blur": 4, "frost": 600, "spatter": 400}


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize(
    ("side", "severities"), [(64, (1, 3, 5)), pytest.param(224, (1, 2, 3, 4, 5), marks=pytest.mark.slow)]
)
def test_five_statistics_are_those_of_the_definition(side: int, severities: tuple[int, ...], name: str) -> None:
    if name not in available():
        pytest.skip("needs the photos for frost")
    count, clean = COUNTS[name], pictures(min(COUNTS[name], 20), side)
    for severity in severities:
        parameters = CORRUPTIONS[name].parameters[side][severity - 1]
        wanted, got = [], []
        for start in range(0, count, len(clean)):  # the same pictures again, with other draws
            draws = [Draw(100_000 * severity + start + i) for i in range(len(clean))]
            drawn = [DEFINITIONS[name](x, parameters, draw) for x, draw in zip(clean / 255, draws, strict=True)]
            wanted.append(statistics((np.clip(drawn, 0, 1) * 255).astype(np.uint8), clean))
            got.append(statistics(apply(clean, name, severity, first_index=start), clean))
        np.testing.assert_allclose(np.mean(got, axis=0), np.mean(wanted, axis=0), rtol=0.05, err_msg=str(severity))
