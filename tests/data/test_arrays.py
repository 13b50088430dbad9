"""Data sets from arrays and from torch data sets."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from mt3.data import from_arrays, from_torch
from mt3.support.errors import InputError

LABELS = np.arange(30) % 3


def some_images(count: int = 30, side: int = 16) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def test_arrays_are_split_evenly_and_always_alike():
    images = some_images()
    data = from_arrays(images, LABELS, ["a", "b", "c"])
    assert (data.name, data.classes, data.size) == ("arrays", ("a", "b", "c"), 16)
    assert np.bincount(data.train_labels).tolist() == [8, 8, 8]
    assert np.bincount(data.test_labels).tolist() == [2, 2, 2]
    labels = {image.tobytes(): label for image, label in zip(images, LABELS, strict=True)}
    both = [
        *zip(data.train_images, data.train_labels, strict=True),
        *zip(data.test_images, data.test_labels, strict=True),
    ]
    assert {image.tobytes() for image, _ in both} == set(labels)
    assert all(labels[image.tobytes()] == label for image, label in both)
    np.testing.assert_array_equal(from_arrays(images, LABELS).test_images, data.test_images)


def test_arrays_with_a_test_set_stay_as_they_are():
    images = some_images()
    data = from_arrays(images, LABELS.tolist(), test=(images[:4], LABELS[:4]), name="mine")
    assert data.train_images is images
    assert data.classes == ("0", "1", "2")
    np.testing.assert_array_equal(data.test_labels, LABELS[:4])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"images": some_images().astype(float)},
            r"as a uint8 array \(N, size, size, 3\), got float64 \(30, 16, 16, 3\)",
        ),
        ({"images": some_images()[:, :, :8]}, r"got uint8 \(30, 16, 8, 3\)"),
        ({"images": some_images().transpose(0, 3, 1, 2)}, r"got uint8 \(30, 3, 16, 16\)"),
        ({"images": "photos"}, "got str"),
        ({"images": some_images(side=8)}, "the side of the images to be a whole number from 16 to 512, got 8"),
        ({"labels": LABELS[:7]}, r"Expected 30 whole numbers as labels, got int64 \(7,\)"),
        ({"labels": LABELS / 2}, r"Expected 30 whole numbers as labels, got float64"),
        ({"labels": LABELS - 1}, "has label -1 at index 0"),
        ({"labels": 0 * LABELS}, "at least two classes, got 1"),
        ({"labels": 2 * LABELS}, "No image to train on is of the class 1"),
        ({"classes": ["a", "b"]}, "has label 2 at index 2"),
        ({"test": (some_images(side=20), LABELS)}, "all images in one size, got 16 and 20"),
        ({"name": "\n"}, "a name of 1 to 255 printable characters"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change, sentence):
    with pytest.raises(InputError, match=sentence):
        from_arrays(**({"images": some_images(), "labels": LABELS} | change))


class Pictures(Dataset):
    """Of 20 x 24 pixels, the middle 20 of which are red or green."""

    classes = ("red", "green")

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int):
        pixels = np.zeros((24, 20, 3), dtype=np.uint8)
        pixels[2:22, :, index % 2] = 200
        picture = Image.fromarray(pixels)
        if self.kind == "pil":
            return picture, torch.tensor(index % 2)
        tensor = torch.from_numpy(pixels).permute(2, 0, 1)
        return (tensor if self.kind == "uint8" else tensor / 255), index % 2


@pytest.mark.parametrize("kind", ["pil", "uint8", "float"])
def test_a_torch_data_set_is_read(kind):
    data = from_torch(Pictures(kind), 20)
    assert (data.classes, data.size, len(data.train_images)) == (("red", "green"), 20, 8)
    for image, label in zip(data.train_images, data.train_labels, strict=True):
        assert (image[..., label] == 200).all()
        assert image.sum() == 200 * 20 * 20


def test_a_torch_data_set_is_scaled_and_may_have_a_test_set():
    data = from_torch(Pictures("pil"), 16, test=Pictures("float"), name="mine")
    assert data.test_images.shape == (10, 16, 16, 3)
    assert data.name == "mine"
    grey = TensorDataset(torch.full((4, 1, 16, 16), 0.5), torch.tensor([0, 1, 0, 1]))
    assert (from_torch(grey, 16).train_images == 128).all()


class Endless(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (torch.full((4, 3, 16, 16), -0.1), r"image 0 to have values in \[0, 1\]; leave out its normalisation"),
        (torch.full((4, 3, 16, 16), torch.nan), r"image 0 to have values in \[0, 1\]"),
        (torch.zeros(4, 16, 16), r"image 0 as \(3, height, width\) or \(1, ...\), got \(16, 16\)"),
        (torch.zeros(4, 3, 16, 16, dtype=torch.int64), "image 0 in uint8 or float, got torch.int64"),
    ],
)
def test_torch_images_that_do_not_fit_are_refused(images, sentence):
    with pytest.raises(InputError, match=sentence):
        from_torch(TensorDataset(images, torch.tensor([0, 1, 0, 1])), 16)


def test_torch_data_sets_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="with a length, got one without"):
        from_torch(Endless(), 16)
    with pytest.raises(InputError, match="image 0 to be a picture of PIL or a tensor, got str"):
        from_torch([("a.jpg", 0)], 16)
    with pytest.raises(InputError, match="from 16 to 512, got 8"):
        from_torch(Pictures("pil"), 8)
