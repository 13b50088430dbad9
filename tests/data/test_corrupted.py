"""Sets in the layout of CIFAR-10-C: the right images of a severity, and one clear sentence for every damage."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mt3.data import open_corrupted
from mt3.support.errors import InputError

Array = NDArray[Any]


def random_images(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


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
