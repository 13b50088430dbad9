"""An embedded sample of real photos, so that a trained model can be looked at without a download.

Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images (2009). `photos.npz` holds the first 200
test images of CIFAR-10 and their labels: nothing is picked by hand. There is nothing to train on.
"""

from importlib.resources import files

import numpy as np

from mt3.data.cifar import CIFAR10_CLASSES
from mt3.data.dataset import Dataset


def load_photos() -> Dataset:
    """Return the sample as a data set whose training split is empty."""
    with (files("mt3.data") / "photos.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        images, labels = arrays["images"], arrays["labels"].astype(np.int64)
    return Dataset("photos", images[:0], labels[:0], images, labels, CIFAR10_CLASSES)
