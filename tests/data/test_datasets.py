"""The loaders: values as published, and one clear sentence for every kind of damage."""

import hashlib
import json
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mt3.data import DATASETS, Dataset, load_cifar10, load_cifar100, load_dataset, load_digits, open_corrupted
from mt3.data.cifar import CIFAR10_CLASSES, CIFAR100_CLASSES
from mt3.data.digits import upscale
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


# Digits


def test_digits_embedded_data_is_pinned() -> None:
    path = Path(sys.modules[load_digits.__module__].__file__ or "").with_name("digits.npz")
    with np.load(path, allow_pickle=False) as arrays:
        images, labels = arrays["images"], arrays["labels"]
    assert (images.shape, images.dtype) == ((1797, 8, 8), np.uint8)
    assert (labels.shape, labels.dtype) == ((1797,), np.uint8)
    assert hashlib.sha256(images.tobytes()).hexdigest() == (
        "8f26b2bd9d135c256808f68f14fdabddde6d9c7f869ae419704b051f0f14b3b3"
    )
    assert hashlib.sha256(labels.tobytes()).hexdigest() == (
        "8ba4f891220f5e4c9c819638d1602d74b83618f167043c6da52a2a247841ddf0"
    )
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_equal_scikit_learns() -> None:
    datasets = pytest.importorskip("sklearn.datasets", reason="needs scikit-learn, of the extra dev")
    raw = datasets.load_digits()
    digits = load_digits()
    order = np.random.RandomState(0).permutation(1797)
    expected = upscale(raw.images.astype(np.uint8))[order]
    np.testing.assert_array_equal(np.concatenate([digits.train_images, digits.test_images]), expected)
    np.testing.assert_array_equal(np.concatenate([digits.train_labels, digits.test_labels]), raw.target[order])


def test_digits_shapes_and_split() -> None:
    digits = load_dataset("digits")
    assert digits.train_images.shape == (1297, 32, 32, 3)
    assert digits.test_images.shape == (500, 32, 32, 3)
    for images, labels in (
        (digits.train_images, digits.train_labels),
        (digits.test_images, digits.test_labels),
    ):
        assert images.dtype == np.uint8
        assert images.flags.c_contiguous
        assert labels.dtype == np.int64
        assert len(images) == len(labels)
    assert np.bincount(digits.train_labels).tolist() == [132, 130, 125, 133, 121, 145, 130, 121, 131, 129]
    assert np.bincount(digits.test_labels).tolist() == [46, 52, 52, 50, 60, 37, 51, 58, 43, 51]
    assert digits.classes == tuple("0123456789")
    assert (digits.num_classes, digits.size) == (10, 32)


def test_upscale_equals_bilinear_interpolation_by_hand() -> None:
    image = np.random.default_rng(0).integers(0, 17, (8, 8)).astype(np.uint8)
    image[0, 0], image[7, 7] = 16, 0
    enlarged = upscale(image[None])[0]
    padded = np.pad(image.astype(float), 1, mode="edge")
    for y, x in [(0, 0), (0, 31), (1, 2), (5, 9), (15, 16), (30, 17), (31, 31)]:
        v, u = (y + 0.5) / 4 + 0.5, (x + 0.5) / 4 + 0.5  # in padded pixels
        top, left, dy, dx = int(v), int(u), v % 1, u % 1
        box = padded[top : top + 2, left : left + 2]
        value = np.array([1 - dy, dy]) @ box @ np.array([1 - dx, dx])
        assert enlarged[y, x].tolist() == [round(value * 255 / 16)] * 3
    assert enlarged[0, 0].tolist() == [255, 255, 255]
    assert enlarged[31, 31].tolist() == [0, 0, 0]


# Names and imports


def test_unknown_name_lists_the_valid_ones() -> None:
    assert DATASETS == ("digits", "cifar10", "cifar100")
    with pytest.raises(InputError, match=r"^Unknown data set 'mnist': expected one of digits, cifar10, cifar100\.$"):
        load_dataset("mnist")


@pytest.mark.parametrize("room", ["data", "corruptions"])
def test_importing_a_room_of_images_imports_neither_torch_nor_scipy(room: str) -> None:
    code = f"import sys, mt3.{room}; print('torch' in sys.modules or 'scipy' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_class_names_are_the_hundred_in_order() -> None:
    assert len(set(CIFAR100_CLASSES)) == 100
    assert list(CIFAR100_CLASSES) == sorted(CIFAR100_CLASSES)
    assert (CIFAR100_CLASSES[0], CIFAR100_CLASSES[41], CIFAR100_CLASSES[99]) == ("apple", "lawn_mower", "worm")


# CIFAR layouts


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


# Corrupted sets


@pytest.fixture
def corrupted(tmp_path: Path) -> Path:
    """A small set in the published layout: 3 images, 5 severities, the pixel value tells the severity."""
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    for name in ("fog", "brightness"):
        images = random_images(15, seed=len(name))
        images[:, 0, 0, 0] = np.repeat([1, 2, 3, 4, 5], 3)
        np.save(folder / f"{name}.npy", images)
    np.save(folder / "labels.npy", np.tile(np.array([3, 8, 0], np.uint8), 5))
    return folder


def test_corrupted_set(corrupted: Path) -> None:
    test_set = open_corrupted(corrupted, 10)
    assert test_set.names() == ["brightness", "fog"]
    assert (test_set.severities, test_set.images, test_set.size) == ((1, 2, 3, 4, 5), 3, 32)
    assert test_set.labels.tolist() == [3, 8, 0]
    assert test_set.labels.dtype == np.int64
    for severity in range(1, 6):
        images = test_set.images_of("fog", severity)
        np.testing.assert_array_equal(images, np.load(corrupted / "fog.npy")[severity * 3 - 3 : severity * 3])
        assert set(images[:, 0, 0, 0].tolist()) == {severity}


def test_corrupted_images_are_memory_mapped_and_read_only(corrupted: Path) -> None:
    images = open_corrupted(corrupted).images_of("fog", 2)
    assert isinstance(images, np.memmap)
    assert Path(str(images.filename)) == corrupted / "fog.npy"
    with pytest.raises(ValueError, match="read-only"):
        images[0, 0, 0, 0] = 1


def test_the_files_tell_the_size(corrupted: Path) -> None:
    large = np.repeat(np.repeat(np.load(corrupted / "fog.npy"), 3, axis=1), 3, axis=2)
    for name in ("fog", "brightness"):
        np.save(corrupted / f"{name}.npy", large)
    test_set = open_corrupted(corrupted)
    assert test_set.size == 96
    np.testing.assert_array_equal(test_set.images_of("fog", 2), large[3:6])


def test_labels_of_one_round_are_enough(corrupted: Path) -> None:
    np.save(corrupted / "labels.npy", np.array([1, 2, 3]))
    assert open_corrupted(corrupted).labels.tolist() == [1, 2, 3]


def test_protocol_states_the_severities(corrupted: Path) -> None:
    (corrupted / "protocol.json").write_text(json.dumps({"severities": [3, 5], "seed": 1}))
    np.save(corrupted / "labels.npy", np.array([7, 9, 7, 9]))
    images = random_images(4)
    np.save(corrupted / "fog.npy", images)
    brightness = np.load(corrupted / "brightness.npy")
    np.save(corrupted / "brightness.npy", images)
    test_set = open_corrupted(corrupted)
    assert (test_set.severities, test_set.images, test_set.labels.tolist()) == ((3, 5), 2, [7, 9])
    np.testing.assert_array_equal(test_set.images_of("fog", 3), images[:2])
    np.testing.assert_array_equal(test_set.images_of("fog", 5), images[2:])
    with pytest.raises(InputError, match=r"has no severity 1: it has 3, 5\.$"):
        test_set.images_of("fog", 1)
    np.save(corrupted / "brightness.npy", brightness)
    with pytest.raises(InputError, match=r"brightness\.npy has the shape \(15, .*, expected \(4, 32, 32, 3\) \(2 sev"):
        test_set.images_of("brightness", 3)


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        ('{"severities": [5, 3]}', r"severities must be rising whole numbers such as \[1, 3, 5\], got \[5, 3\]"),
        ('{"severities": []}', "severities must be rising"),
        ('{"severities": "all"}', "severities must be rising"),
        ('{"severities": [true, 2]}', "severities must be rising"),
        ("[1]", "must hold a JSON object"),
        ("{", "is not valid JSON"),
    ],
)
def test_bad_protocol(corrupted: Path, protocol: str, message: str) -> None:
    (corrupted / "protocol.json").write_text(protocol)
    with pytest.raises(InputError, match=message) as caught:
        open_corrupted(corrupted)
    assert str(corrupted / "protocol.json") in str(caught.value)


def test_corrupted_directory_errors(tmp_path: Path) -> None:
    for directory in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(InputError, match=rf"{directory} holds no <corruption>\.npy: pass a directory laid out as"):
            open_corrupted(directory)


def test_missing_corruption_lists_those_that_exist(corrupted: Path) -> None:
    test_set = open_corrupted(corrupted)
    with pytest.raises(
        InputError, match=rf"No fogg\.npy in {corrupted} \(did you mean 'fog'\?\): it has brightness, fog"
    ):
        open_corrupted(corrupted).images_of("fogg", 1)
    with pytest.raises(InputError, match=rf"No snow\.npy in {corrupted}: it has brightness, fog\.$"):
        test_set.images_of("snow", 1)
    with pytest.raises(InputError, match=r"No labels\.npy in"):
        test_set.images_of("labels", 1)
    with pytest.raises(InputError, match="has no severity 6: it has 1, 2, 3, 4, 5"):
        test_set.images_of("fog", 6)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((15, 32, 32, 3), np.float32), r"fog\.npy holds float32 \(15, 32, 32, 3\), expected uint8"),
        (np.zeros((15, 3, 32, 32), np.uint8), r"fog\.npy holds uint8 \(15, 3, 32, 32\), expected uint8 \(N, side,"),
        (np.zeros((10, 32, 32, 3), np.uint8), r"fog\.npy has the shape \(10, 32, 32, 3\), expected \(15, 32"),
        (np.zeros((15, 64, 64, 3), np.uint8), r"fog\.npy has the shape \(15, 64, 64, 3\), expected \(15, 32"),
        (np.array([{}], object), r"fog\.npy as a whole \.npy file"),
    ],
)
def test_wrong_corruption_array(corrupted: Path, array: Array, message: str) -> None:
    test_set = open_corrupted(corrupted)
    np.save(corrupted / "fog.npy", array, allow_pickle=True)
    with pytest.raises(InputError, match=message):
        test_set.images_of("fog", 1)


@pytest.mark.parametrize("keep", [0, 5, 40, 128, 20_000])
def test_truncated_corruption_array(corrupted: Path, keep: int) -> None:
    path = corrupted / "brightness.npy"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"Cannot read .*brightness\.npy as a whole \.npy file"):
        open_corrupted(corrupted)


@pytest.mark.parametrize(
    "header",
    [
        "-" * 9000 + "1",
        "(" * 9000,
        "{'descr': '|u1', 'fortran_order': False, 'shape': (" + "-" * 5000 + "3,), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999999999999999,), }",
        "{1: 2, 'descr': '|u1', 'fortran_order': False, 'shape': (15, 32, 32, 3), }",
    ],
)
def test_a_damaged_header_of_an_array(corrupted: Path, header: str) -> None:
    content = header.encode() + b"\n"
    path = corrupted / "brightness.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(content)) + content + bytes(64))
    with pytest.raises(
        InputError, match=r"Cannot read .*brightness\.npy as a whole \.npy file \(.+\); copy or download it again"
    ):
        open_corrupted(corrupted)
    path.write_bytes(b"PK\x03\x04" + bytes(64))
    with pytest.raises(InputError, match=r"brightness\.npy as a whole \.npy file \(the magic string is not correct"):
        open_corrupted(corrupted)


def test_a_pipe_in_place_of_an_array(corrupted: Path) -> None:
    (corrupted / "labels.npy").unlink()
    os.mkfifo(corrupted / "labels.npy")
    with pytest.raises(InputError, match=r"labels\.npy is not a file"):
        open_corrupted(corrupted)


def test_rows_that_do_not_divide_into_severities(corrupted: Path) -> None:
    np.save(corrupted / "brightness.npy", random_images(14))
    with pytest.raises(InputError, match=r"brightness\.npy cannot be split into 5 equal severities"):
        open_corrupted(corrupted)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.arange(4), r"labels\.npy has labels of int64 \(4,\), expected 3 or 15 integers"),
        (np.zeros(3, np.float64), r"labels\.npy has labels of float64 \(3,\), expected 3 or 15 integers"),
        (np.arange(15) % 4, r"labels\.npy gives the same 3 images other labels at other severities"),
        (np.array([0, 1, 10]), r"labels\.npy has label 10 at index 2, but labels must be in 0\.\.9"),
        (np.array([0, -1, 1]), r"labels\.npy has label -1 at index 1, but labels must be in 0\.\.9"),
    ],
)
def test_wrong_labels(corrupted: Path, labels: Array, message: str) -> None:
    np.save(corrupted / "labels.npy", labels)
    with pytest.raises(InputError, match=message):
        open_corrupted(corrupted, 10)


def test_missing_labels(corrupted: Path) -> None:
    (corrupted / "labels.npy").unlink()
    with pytest.raises(InputError, match=r"labels\.npy is not a file; copy or download it again"):
        open_corrupted(corrupted)
