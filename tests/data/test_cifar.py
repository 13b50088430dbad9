"""The readers of CIFAR: values as published, and one clear sentence for every kind of damage."""

import hashlib
import os
import pickle
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mt3.data import Dataset, load_cifar10, load_cifar100, load_dataset
from mt3.data.cifar import CIFAR10_CLASSES, CIFAR100_CLASSES
from mt3.support.errors import InputError

ROWS = 4  # images per small file
CIFAR10_BATCHES = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]

Array = NDArray[Any]
Dump = Callable[[Array, str, Array], bytes]


def random_images(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def planar(images: Array) -> Array:
    """Pixel by pixel, independent of the loader: red plane, green plane, blue plane, each row by row."""
    out = np.zeros((len(images), 3072), np.uint8)
    for channel in range(3):
        for row in range(32):
            start = channel * 1024 + row * 32
            out[:, start : start + 32] = images[:, row, :, channel]
    return out


def python2_pickle(images: Array, label_key: str, labels: Array) -> bytes:
    """The bytes Python 2 and its NumPy wrote: byte strings, the old module name."""

    def text(value: str | bytes) -> bytes:
        value = value.encode() if isinstance(value, str) else value
        return b"T" + struct.pack("<i", len(value)) + value

    dtype = (
        b"cnumpy\ndtype\n" + text("u1") + b"K\0K\1\x87R(K\3" + text("|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
    )
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85" + text("b") + b"\x87R"
    shape = b"M" + struct.pack("<H", len(images)) + b"M" + struct.pack("<H", 3072) + b"\x86"
    array = empty + b"(K\1" + shape + dtype + b"\x89" + text(planar(images).tobytes()) + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\2}(" + text("data") + array + text(label_key) + numbers + b"u."


def python3_pickle(images: Array, label_key: str, labels: Array) -> bytes:
    return pickle.dumps({"data": planar(images), label_key: [int(label) for label in labels]}, protocol=2)


def write_layout(
    parent: Path, layout: str, dump: Dump = python2_pickle, labels: Sequence[int] | None = None
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Write one of the four layouts with ROWS images a file; return (train, test) pairs of images and labels."""
    ten = layout.startswith("cifar-10-")
    binary = layout in ("cifar-10-batches-bin", "cifar-100-binary")
    names = CIFAR10_BATCHES if ten else ["train", "test"]
    folder = parent / layout
    folder.mkdir(parents=True)
    parts = []
    for seed, name in enumerate(names):
        images = random_images(ROWS, seed)
        fine = np.random.default_rng(seed).integers(0, 10 if ten else 100, ROWS).astype(np.uint8)
        if labels is not None:
            fine = np.asarray(labels, np.uint8)
        if binary:
            coarse = np.full((ROWS, 0 if ten else 1), 7, np.uint8)
            np.concatenate([coarse, fine[:, None], planar(images)], axis=1).tofile(folder / f"{name}.bin")
        else:
            (folder / name).write_bytes(dump(images, "labels" if ten else "fine_labels", fine))
        parts.append((images, fine))
    *train, test = parts
    return (np.concatenate([images for images, _ in train]), np.concatenate([fine for _, fine in train])), test


def small_loader(layout: str) -> Callable[..., Dataset]:
    return load_cifar10 if layout.startswith("cifar-10-") else load_cifar100


def test_class_names_are_the_hundred_in_order() -> None:
    assert len(set(CIFAR100_CLASSES)) == 100
    assert list(CIFAR100_CLASSES) == sorted(CIFAR100_CLASSES)
    assert (CIFAR100_CLASSES[0], CIFAR100_CLASSES[41], CIFAR100_CLASSES[99]) == ("apple", "lawn_mower", "worm")


@pytest.mark.parametrize("itself", [False, True], ids=["parent", "layout directory"])
@pytest.mark.parametrize(
    ("layout", "dump"),
    [
        ("cifar-10-batches-bin", python2_pickle),
        ("cifar-10-batches-py", python2_pickle),
        ("cifar-10-batches-py", python3_pickle),
        ("cifar-100-binary", python2_pickle),
        ("cifar-100-python", python2_pickle),
        ("cifar-100-python", python3_pickle),
    ],
)
def test_round_trip(tmp_path: Path, layout: str, dump: Dump, itself: bool) -> None:
    (train_images, train_labels), (test_images, test_labels) = write_layout(tmp_path, layout, dump)
    data = small_loader(layout)(tmp_path / layout if itself else tmp_path, verify=False)
    np.testing.assert_array_equal(data.train_images, train_images)
    np.testing.assert_array_equal(data.test_images, test_images)
    np.testing.assert_array_equal(data.train_labels, train_labels)
    np.testing.assert_array_equal(data.test_labels, test_labels)
    assert data.train_images.dtype == data.test_images.dtype == np.uint8
    assert data.train_images.flags.c_contiguous
    assert data.test_images.flags.c_contiguous
    assert data.train_labels.dtype == data.test_labels.dtype == np.int64
    assert (data.name, data.classes) in (("cifar10", CIFAR10_CLASSES), ("cifar100", CIFAR100_CLASSES))


def test_old_and_new_numpy_module_names_are_read(tmp_path: Path) -> None:
    (train_images, _), _ = write_layout(tmp_path, "cifar-100-python", python3_pickle)
    path = tmp_path / "cifar-100-python" / "train"
    for old, new in ((b"numpy._core.", b"numpy.core."), (b"numpy.core.", b"numpy._core.")):
        path.write_bytes(path.read_bytes().replace(old, new))
        assert new + b"multiarray\n_reconstruct" in path.read_bytes()
        np.testing.assert_array_equal(load_cifar100(tmp_path, verify=False).train_images, train_images)


def test_complete_layout_is_preferred_to_an_incomplete_one(tmp_path: Path) -> None:
    write_layout(tmp_path, "cifar-10-batches-bin")
    (tmp_path / "cifar-10-batches-bin/test_batch.bin").unlink()
    (images, _), _ = write_layout(tmp_path, "cifar-10-batches-py")
    np.testing.assert_array_equal(load_cifar10(tmp_path, verify=False).train_images, images)


def test_absent_data_names_the_directory_and_the_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = (
        f"No CIFAR-10 in {tmp_path} (looked for cifar-10-batches-bin and cifar-10-batches-py): "
        "pass --data-dir with the directory that holds it, or --download to fetch it."
    )
    with pytest.raises(InputError) as caught:
        load_dataset("cifar10", tmp_path)
    assert str(caught.value) == message
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"No CIFAR-100 in {tmp_path / 'data'} "):
        load_dataset("cifar100")


def test_missing_file_is_named(tmp_path: Path) -> None:
    write_layout(tmp_path, "cifar-10-batches-bin")
    (tmp_path / "cifar-10-batches-bin/data_batch_3.bin").unlink()
    with pytest.raises(InputError, match=r"CIFAR-10 is incomplete: .*cifar-10-batches-bin lacks data_batch_3\.bin; "):
        load_cifar10(tmp_path, verify=False)


def test_truncated_binary_file(tmp_path: Path) -> None:
    write_layout(tmp_path, "cifar-100-binary")
    path = tmp_path / "cifar-100-binary/test.bin"
    with pytest.raises(InputError, match=r"-binary has 4 images for training and 4 for testing, expected 50000 and 10"):
        load_cifar100(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"test\.bin is not a whole CIFAR file .*size 12295 .*3074\)"):
        load_cifar100(tmp_path, verify=False)
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"test\.bin is not a whole CIFAR file"):
        load_cifar100(tmp_path, verify=False)


def test_wrong_md5(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name in CIFAR10_BATCHES:
        with (folder / f"{name}.bin").open("wb") as file:
            file.truncate(30_730_000)
    zeros = hashlib.md5(bytes(30_730_000)).hexdigest()
    with pytest.raises(InputError) as caught:
        load_cifar10(tmp_path)
    assert str(caught.value) == (
        f"{folder / 'data_batch_1.bin'} is damaged: its MD5 is {zeros}, expected 5dd7e06a14cb22eb9f671a540d1b7c25; "
        "download it again with --download."
    )


def test_wrong_md5_stops_a_pickle_before_it_is_read(tmp_path: Path) -> None:
    write_layout(tmp_path, "cifar-100-python", lambda *_: pickle.dumps(print))
    with pytest.raises(InputError, match=r"train is damaged: its MD5 is \w{32}, expected 16019d7e3df5f24257cddd93"):
        load_cifar100(tmp_path)


@pytest.mark.parametrize("layout", ["cifar-10-batches-bin", "cifar-10-batches-py"])
def test_bad_label(tmp_path: Path, layout: str) -> None:
    write_layout(tmp_path, layout, labels=[3, 9, 10, 200])
    with pytest.raises(InputError, match=r"data_batch_1\S* has label 10 at index 2, but labels must be in 0\.\.9; "):
        load_cifar10(tmp_path, verify=False)


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_malicious_pickle_is_refused_and_does_not_run(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "executed"
    write_layout(tmp_path, "cifar-100-python", lambda *_: pickle.dumps({"data": Malicious(target)}, protocol))
    with pytest.raises(InputError) as caught:
        load_cifar100(tmp_path, verify=False)
    assert str(caught.value) == (
        f"{tmp_path / 'cifar-100-python/train'} is not a whole CIFAR file of this layout "
        f"(it wants to run code: {os.name}.mkdir); download it again with --download."
    )
    assert not target.exists()


@pytest.mark.parametrize("name", ["builtins eval", "numpy.core.multiarray scalar", "numpy ndarray.tofile"])
def test_other_names_in_a_pickle_are_refused(tmp_path: Path, name: str) -> None:
    module, attribute = name.split()
    content = b"\x80\x04\x8c" + bytes([len(module)]) + module.encode()
    content += b"\x8c" + bytes([len(attribute)]) + attribute.encode() + b"\x93."
    write_layout(tmp_path, "cifar-100-python", lambda *_: content)
    with pytest.raises(InputError, match=rf"wants to run code: {module}\.{attribute}\)"):
        load_cifar100(tmp_path, verify=False)


def _labels_missing(images: Array, key: str, labels: Array) -> bytes:
    return pickle.dumps({"data": planar(images)}, 2)


def _one_label_less(images: Array, key: str, labels: Array) -> bytes:
    return python3_pickle(images, key, labels[:-1])


def _float_pixels(images: Array, key: str, labels: Array) -> bytes:
    return pickle.dumps({"data": planar(images).astype(np.float32), key: labels.tolist()}, 2)


def _square_pixels(images: Array, key: str, labels: Array) -> bytes:
    return pickle.dumps({"data": images, key: labels.tolist()}, 2)


def _ragged_labels(images: Array, key: str, labels: Array) -> bytes:
    return pickle.dumps({"data": planar(images), key: [[1], [1, 2], [], []]}, 2)


def _text_data(images: Array, key: str, labels: Array) -> bytes:
    return pickle.dumps({"data": "pixels", key: labels.tolist()}, 2)


@pytest.mark.parametrize(
    ("dump", "reason"),
    [
        (_labels_missing, "'fine_labels'"),
        (_one_label_less, r"it has labels of int64 \(3,\) for images of uint8 \(4, 3072\)"),
        (_float_pixels, r"it has images of float32 \(4, 3072\)"),
        (_square_pixels, r"it has images of uint8 \(4, 32, 32, 3\)"),
        (_ragged_labels, ".+"),
        (_text_data, "it has images of <U6"),
        (lambda *_: pickle.dumps([1, 2]), "list indices must be integers"),
        (lambda *args: python2_pickle(*args)[:-200], "pickle data was truncated"),
        (lambda *_: b"", "Ran out of input"),
    ],
)
def test_python_layout_structure(tmp_path: Path, dump: Dump, reason: str) -> None:
    write_layout(tmp_path, "cifar-100-python", dump)
    with pytest.raises(InputError, match=rf"train is not a whole CIFAR file of this layout \({reason}.*; download it"):
        load_cifar100(tmp_path, verify=False)


def test_real_cifar10(cifar10: Dataset) -> None:
    data = cifar10
    assert data.train_images.shape == (50_000, 32, 32, 3)
    assert data.test_images.shape == (10_000, 32, 32, 3)
    assert np.bincount(data.train_labels).tolist() == [5000] * 10
    assert np.bincount(data.test_labels).tolist() == [1000] * 10
    assert data.train_labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    np.testing.assert_allclose(data.train_images.mean(axis=(0, 1, 2)), [125.307, 122.950, 113.865], atol=0.001)
    assert data.classes == CIFAR10_CLASSES
