"""The writer of Tiny-ImageNet-C's layout: a PNG for each image, whatever the processes and whatever interrupts it."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mt3.corruptions import apply
from mt3.corruptions import write as module
from mt3.corruptions.write import write_corrupted, write_folders
from mt3.data import Dataset, load_digits
from mt3.support.errors import InputError

NAMES = ["contrast", "shot_noise"]


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_digits()


def pixels(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): np.asarray(Image.open(path)).tobytes() for path in folder.rglob("*.png")}


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_photo_lies_in_the_folder_of_its_corruption_severity_and_class(tmp_path, digits):
    assert write_folders(digits, tmp_path, NAMES, [3, 5], limit=4, seed=2) == NAMES
    wanted = {
        f"{name}/{severity}/{digits.classes[digits.test_labels[i]]}/{i:06d}.png": image.tobytes()
        for name in NAMES
        for severity in (3, 5)
        for i, image in enumerate(apply(digits.test_images[:4], name, severity, seed=2))
    }
    assert pixels(tmp_path) == wanted
    assert files(tmp_path) == {"protocol.json", *wanted}


def test_processes_write_the_same(tmp_path, digits):
    write_folders(digits, tmp_path / "one", NAMES, [5], limit=3)
    assert write_folders(digits, tmp_path / "two", NAMES, [5], limit=3, workers=2) == NAMES
    assert pixels(tmp_path / "one") == pixels(tmp_path / "two")


def test_what_is_there_is_kept_and_what_is_missing_written(tmp_path, digits, monkeypatch):
    write_folders(digits, tmp_path / "whole", NAMES, [5], limit=4)
    made = []

    def counting(image, name, severity, seed, first_index):
        if len(made) == 5:
            raise KeyboardInterrupt
        made.append((name, first_index))
        return apply(image, name, severity, seed, first_index)

    monkeypatch.setattr(module, "apply", counting)
    with pytest.raises(KeyboardInterrupt):
        write_folders(digits, tmp_path / "cut", NAMES, [5], limit=4)
    assert len(pixels(tmp_path / "cut")) == 5
    monkeypatch.setattr(module, "apply", apply)
    assert write_folders(digits, tmp_path / "cut", NAMES, [5], limit=4) == ["shot_noise"]
    assert pixels(tmp_path / "cut") == pixels(tmp_path / "whole")
    lost = next((tmp_path / "cut").glob("contrast/5/*/000001.png"))
    lost.unlink()
    leftover = lost.with_name(".000001.png.0123abcd.tmp")  # of a kill
    leftover.touch()
    assert write_folders(digits, tmp_path / "cut", NAMES, [5], limit=4) == ["contrast"]
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    assert write_folders(digits, tmp_path / "cut", NAMES, [5], limit=4) == []


def test_other_images_are_refused(tmp_path, digits):
    write_folders(digits, tmp_path / "folders", ["contrast"], [5], limit=2)
    with pytest.raises(InputError, match=r"made otherwise \(seed 0 there, 1 here\)"):
        write_folders(digits, tmp_path / "folders", ["contrast"], [5], limit=2, seed=1)
    with pytest.raises(InputError, match=r"made otherwise \(format folders there, arrays here\)"):
        write_corrupted(digits, tmp_path / "folders", ["contrast"], [5], limit=2)
    shutil.copytree(tmp_path / "folders" / "contrast", tmp_path / "mine" / "contrast")
    with pytest.raises(InputError, match="mine holds contrast, which `mt3 corrupt` did not write"):
        write_folders(digits, tmp_path / "mine", ["contrast"], [5], limit=2)
    for kind in ("a/b", "..", ".hidden"):
        named = replace(digits, classes=(kind, *digits.classes[1:]))
        with pytest.raises(InputError, match="cannot be the name of a folder; rename it, or write arrays"):
            write_folders(named, tmp_path / "new", ["contrast"])
    assert not (tmp_path / "new").exists()
