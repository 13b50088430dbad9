"""Photos under shifts: both layouts, sets of their own, and one sentence for each thing that is wrong."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mt3.data import Asked, open_shifts
from mt3.support.errors import InputError

PETS = Asked(("cat", "dog", "owl"), 16)


def save_photo(path: Path, shade: int, side: int = 16) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side, 3), shade, dtype=np.uint8)).save(path)


@pytest.fixture
def shifted(tmp_path: Path) -> Path:
    """Cats are dark and dogs are light; owls are met in the rain alone, where there are more photos."""
    root = tmp_path / "outside"
    for i in range(3):
        save_photo(root / "snow" / "cat" / f"{i}.png", 10 + i)
        save_photo(root / "snow" / "dog" / f"{i}.png", 200 + i)
    for i in range(5):
        save_photo(root / "rain" / "owl" / f"{i}.jpg", 100)
        save_photo(root / "rain" / "cat" / f"{i}.png", 20 + i, side=40)
    return root


def shades(images: np.ndarray, labels: np.ndarray) -> dict[int, list[int]]:
    """The shades of the photos, by their labels."""
    return {k: sorted(images[labels == k][:, 0, 0, 0].tolist()) for k in sorted(set(labels.tolist()))}


def test_each_shift_is_a_set_of_its_own(shifted: Path) -> None:
    opened = open_shifts(shifted, PETS)
    assert (opened.names(), opened.severities, opened.paired) == (["rain", "snow"], (1,), False)
    snow, rain = opened.found["snow", 1], opened.found["rain", 1]
    assert shades(snow.images, snow.labels) == {0: [10, 11, 12], 1: [200, 201, 202]}
    assert shades(rain.images, rain.labels) == {0: [20, 21, 22, 23, 24], 2: [100] * 5}
    assert rain.images.shape == (10, 16, 16, 3)
    assert opened.labels.tolist() == rain.labels.tolist()  # of the larger one
    assert snow.labels.tolist() != sorted(snow.labels.tolist())  # the first few show all classes
    assert open_shifts(shifted, PETS, ["snow"]).names() == ["snow"]


def test_photos_are_decoded_once_and_again_where_they_changed(shifted: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in _caches(shifted, open_shifts(shifted, PETS))}
    assert len(before) == 2
    save_photo(shifted / "snow" / "cat" / "9.png", 13)
    after = {path: path.stat().st_mtime_ns for path in _caches(shifted, open_shifts(shifted, PETS))}
    assert len(after) == 2
    assert {path.parents[1].name for path in after if after[path] != before.get(path)} == {"snow"}


def _caches(root: Path, opened: object) -> list[Path]:
    return sorted(root.rglob(".mt3-cache/*.npy"))


def test_the_published_layout_has_severities(shifted: Path, tmp_path: Path) -> None:
    root = tmp_path / "levels"
    for severity in (2, 5):
        for name in ("fog", "frost"):
            shutil.copytree(shifted / "snow", root / name / str(severity))
            save_photo(root / name / str(severity) / "cat" / "0.png", severity)
    strongest = open_shifts(root, PETS)
    assert list(strongest.found) == [("fog", 5), ("frost", 5)]
    both = open_shifts(root, PETS, ["fog"], [2, 5])
    assert (both.severities, both.paired) == ((2, 5), True)
    for severity in (2, 5):
        assert shades(*both.found["fog", severity][:2])[0] == sorted([severity, 11, 12])
    with pytest.raises(InputError, match=r"fog has no severity 3: it has severities 2, 5\.$"):
        open_shifts(root, PETS, ["fog"], [3])
    with pytest.raises(InputError, match=r"rain has no severity 5: it has none; drop --severity\.$"):
        open_shifts(shifted, PETS, severities=[5])
    shutil.copytree(shifted / "snow", root / "snow")
    with pytest.raises(InputError, match=r"Some shifts in .* have severities and others have none"):
        open_shifts(root, PETS)


def test_a_class_may_be_called_as_a_severity(tmp_path: Path) -> None:
    for kind in ("1", "5"):
        save_photo(tmp_path / "night" / kind / "a.png", int(kind))
    opened = open_shifts(tmp_path, Asked(("1", "5"), 16))
    assert shades(*opened.found["night", 1][:2]) == {0: [1], 1: [5]}


def test_the_same_names_are_the_same_photos(shifted: Path) -> None:
    shutil.copytree(shifted / "snow", shifted / "hail")
    (shifted / "hail" / "dog" / "1.png").rename(shifted / "hail" / "dog" / "1.bmp")  # by another program
    same = open_shifts(shifted, PETS, ["snow", "hail"])
    assert same.paired
    np.testing.assert_array_equal(same.found["snow", 1].labels, same.found["hail", 1].labels)
    np.testing.assert_array_equal(same.images_of("snow", 1), same.images_of("hail", 1))


def test_broken_photos_are_named_or_left_out_and_counted(shifted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shifted / "snow" / "cat" / "1.png").write_bytes(b"no photo")
    (shifted / "snow" / "notes.txt").touch()
    with pytest.raises(InputError, match=r"snow/cat/1\.png is not an image .* with --skip-broken\.$"):
        open_shifts(shifted, PETS)
    capsys.readouterr()
    snow = open_shifts(shifted, PETS._replace(skip_broken=True)).found["snow", 1]
    assert shades(snow.images, snow.labels) == {0: [10, 12], 1: [200, 201, 202]}
    told = capsys.readouterr().err.splitlines()
    assert f"left out 1 of 6 photos in {shifted / 'snow'} that cannot be read, the first is cat/1.png" in told
    assert f"{shifted / 'snow'}: left out 1 entry without the ending of a photo, the first is notes.txt" in told
    for path in (shifted / "snow").rglob("*.png"):
        path.write_bytes(b"no photo")
    with pytest.raises(InputError, match=r"No photo in .*snow can be read; add some, or leave this shift out\.$"):
        open_shifts(shifted, PETS._replace(skip_broken=True))


def test_what_is_wrong_is_one_sentence(shifted: Path) -> None:
    def refusal(path: Path = shifted, **asked: object) -> str:
        with pytest.raises(InputError) as error:
            open_shifts(path, PETS, **asked)  # type: ignore[arg-type]
        return str(error.value)

    assert refusal(shifted / "none").endswith("none does not exist, expected a folder of shifted photos; give one "
                                              "with <shift>/<class>/*.")  # fmt: skip
    assert " is a file, expected a folder" in refusal(shifted / "snow" / "cat" / "0.png")
    assert refusal(names=["snwo"]) == f"{shifted} has no shift snwo (did you mean 'snow'?): it has rain, snow."
    (shifted / "snow" / "wolf").mkdir()
    assert refusal() == (
        f"{shifted / 'snow'} has the class wolf, but the model knows cat, dog, owl; rename or remove it."
    )
    (shifted / "snow" / "wolf").rename(shifted / "snow" / "owl")
    assert f"{shifted / 'snow' / 'owl'} holds no photos" in refusal()
    (shifted / "snow" / "owl").rmdir()
    save_photo(shifted / "fog" / "1.png", 3)
    assert refusal() == f"{shifted / 'fog'} has photos without classes; put them into a folder for each class."
    os.remove(shifted / "fog" / "1.png")
    open_shifts(shifted, PETS)  # an empty folder is none
    assert "holds no <corruption>.npy and no <shift>/<class>/*" in refusal(shifted / "fog")
    with pytest.raises(InputError, match="the size to be a whole number from 16 to 512, got 8"):
        open_shifts(shifted, PETS._replace(size=8))
