"""The embedded default: 1,797 handwritten digits, so that everything runs without a download.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository (1998),
CC BY 4.0. `digits.npz` holds the 8x8 images (0..16) and labels of its test part, as scikit-learn's `load_digits`.
"""

from importlib.resources import files

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mt3.data.dataset import Dataset, Images

SCALE = 4  # to CIFAR's size, whose networks and corruptions then fit
TRAIN_IMAGES = 1297  # the other 500 are the test set


def load_digits() -> Dataset:
    """Return the digits as grey 32x32 RGB images, always in the same split and order."""
    with (files("mt3.data") / "digits.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        images, labels = upscale(arrays["images"]), arrays["labels"].astype(np.int64)
    # RandomState's stream is frozen for good, default_rng's may change with NumPy
    order = np.random.RandomState(0).permutation(len(images))
    train, test = order[:TRAIN_IMAGES], order[TRAIN_IMAGES:]
    classes = tuple(str(digit) for digit in range(10))
    return Dataset("digits", images[train], labels[train], images[test], labels[test], classes)


def upscale(images: NDArray[np.uint8]) -> Images:
    """Enlarge (N, 8, 8) images with values 0..16 to (N, 32, 32, 3) with 0..255: bilinear, half-pixel centres."""
    shape, bilinear = (SCALE * images.shape[2], SCALE * images.shape[1]), Image.Resampling.BILINEAR
    # exact: the weights are multiples of 1/8
    enlarged = [np.asarray(Image.fromarray(image).resize(shape, bilinear)) for image in images.astype(np.float32)]
    grey = np.rint(np.stack(enlarged).astype(np.float64) * (255 / 16)).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=-1)  # (N, 32, 32, 3)
