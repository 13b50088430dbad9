"""Own photos: layouts, the split, the cache, and one sentence for each thing that is wrong."""

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mt3.cli.main import main
from mt3.data import folder, load_dataset, load_folder, photo_cache
from mt3.data.image_files import read_image
from mt3.support.errors import InputError
from mt3.support.files import one_at_a_time

SHADES = {"cat": 40, "dog": 200}


def save_photo(path: Path, shade: int, side: tuple[int, int] = (24, 20)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(shade).integers(0, 20, (side[1], side[0], 3))
    Image.fromarray((noise + shade).astype(np.uint8)).save(path)


def make_flat(root: Path, count: int = 10) -> Path:
    for kind, shade in SHADES.items():
        for i in range(count):
            save_photo(root / kind / f"{i:02d}.png", shade + i)
    return root


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    return make_flat(tmp_path / "pets")


@pytest.fixture
def parted(tmp_path: Path) -> Path:
    for part, shift in (("train", 0), ("test", 10)):
        for kind, shade in SHADES.items():
            for i in range(3):
                save_photo(tmp_path / "pets" / part / kind / f"{i}.png", shade + shift + i)
    return tmp_path / "pets"


def caches(root: Path) -> list[str]:
    return sorted(path.name for path in (root / photo_cache.CACHE).glob("*.npy"))


def test_train_and_test_folders_give_the_files_pixels(parted):
    data = load_folder(parted, 16)
    assert (data.name, data.classes, data.size) == ("folder:pets", ("cat", "dog"), 16)
    assert data.train_images.shape == data.test_images.shape == (6, 16, 16, 3)
    assert data.train_images.dtype == np.uint8
    assert data.train_labels.dtype == np.int64
    for part, images, labels in (
        ("train", data.train_images, data.train_labels),
        ("test", data.test_images, data.test_labels),
    ):
        want = {read_image(p, 16)[0].tobytes(): p.parent.name for p in (parted / part).rglob("*.png")}
        assert [data.classes[label] for label in labels] == [want[image.tobytes()] for image in images]


def test_a_flat_folder_is_split_by_names_alone(flat, tmp_path):
    data = load_folder(flat, 16)
    assert np.bincount(data.train_labels).tolist() == [8, 8]
    assert np.bincount(data.test_labels).tolist() == [2, 2]
    # the same names elsewhere, made in another order and at another time
    for path in sorted(flat.rglob("*.png"), reverse=True):
        (tmp_path / "again" / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, tmp_path / "again" / path.parent.name / path.name)
    again = load_folder(tmp_path / "again", 16)
    np.testing.assert_array_equal(again.test_images, data.test_images)
    np.testing.assert_array_equal(again.train_images, data.train_images)
    assert data.train_labels[:8].min() < data.train_labels[:8].max()  # not class after class


def test_the_split_is_pinned():
    """Other photos for testing would make results of finished runs wrong."""
    parts = folder._split({"cat": [f"cat/{i}.jpg" for i in range(10)]})
    assert parts["test"]["cat"] == ["cat/0.jpg", "cat/5.jpg"]


def test_the_same_photo_in_two_formats_stays_on_one_side():
    names = [f"cat/{i}.{ending}" for i in range(10) for ending in ("jpg", "PNG")]
    parts = folder._split({"cat": names})
    stems = [{name.partition(".")[0] for name in parts[part]["cat"]} for part in ("train", "test")]
    assert [len(side) for side in stems] == [8, 2]
    assert not stems[0] & stems[1]


def test_classes_may_be_called_train_and_test(tmp_path):
    for kind in ("train", "truck"):
        for i in range(3):
            save_photo(tmp_path / kind / f"{i}.png", 50 + i)
    assert load_folder(tmp_path, 16).classes == ("train", "truck")


def test_the_second_start_decodes_nothing(flat, monkeypatch):
    first = load_folder(flat, 16)
    before = caches(flat)
    monkeypatch.setattr(photo_cache, "read_image", None)
    second = load_folder(flat, 16)
    assert isinstance(second.train_images, np.memmap)
    assert not second.train_images.flags.writeable
    np.testing.assert_array_equal(second.train_images, first.train_images)
    assert caches(flat) == before
    assert len(before) == 2


def test_a_cache_is_rebuilt_when_a_photo_changes_and_kept_for_each_size(flat):
    load_folder(flat, 16)
    load_folder(flat, 20)
    before = caches(flat)
    assert len(before) == 4
    for path in (flat / "cat").glob("*.png"):
        save_photo(path, 255 - 20)
        os.utime(path, (1, 1))
    data = load_folder(flat, 16)
    assert (data.train_images[data.train_labels == 0] > 220).all()
    assert len(caches(flat)) == 4
    assert len(set(caches(flat)) & set(before)) == 2  # those of the other size
    assert [p.name for p in (flat / photo_cache.CACHE).iterdir() if p.suffix not in (".npy", ".json")] == []


@pytest.mark.parametrize("damage", [b"", b"\x93NUMPY\x01\x00v\x00{'descr': '|u1'", None])
def test_a_damaged_cache_is_rebuilt(flat, damage):
    want = np.array(load_folder(flat, 16).train_images)
    for path in (flat / photo_cache.CACHE).glob("*.npy" if damage is not None else "*.json"):
        if damage is None:
            path.unlink()
        else:
            path.write_bytes(damage)
    np.testing.assert_array_equal(load_folder(flat, 16).train_images, want)


def test_processes_give_the_same_pixels_as_one(flat, monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(photo_cache, "WORTH", 4)
    shutil.copytree(flat, tmp_path / "copy")
    one, two = load_folder(flat, 16), load_folder(tmp_path / "copy", 16, workers=2)
    np.testing.assert_array_equal(one.train_images, two.train_images)
    assert "[photos 2] decode train photos: 8/8" in capfd.readouterr().err


def test_a_broken_file_in_a_process_is_named(flat, monkeypatch):
    monkeypatch.setattr(photo_cache, "WORTH", 4)
    for name in ("03", "04", "05"):
        (flat / "dog" / f"{name}.png").write_bytes(b"no photo")
    with pytest.raises(InputError, match=rf"^{flat}/dog/0[345].png is not an image .* with --skip-broken\.$"):
        load_folder(flat, 16, workers=2)
    assert caches(flat) == []


def test_two_processes_that_start_at_once_do_not_harm_each_other(flat):
    code = f"from mt3.data import load_folder; print(load_folder({str(flat)!r}, 16).train_images.sum())"
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = {process.communicate()[0] for process in both}
    assert told == {f"{load_folder(flat, 16).train_images.sum()}\n"}
    assert [process.returncode for process in both] == [0, 0]


@pytest.mark.skipif(sys.platform == "win32", reason="no locks there")
def test_who_comes_second_waits_and_finds_the_cache(flat):
    (flat / photo_cache.CACHE).mkdir()
    code = f"from mt3.data import load_folder; load_folder({str(flat)!r}, 16)"
    with one_at_a_time(flat / photo_cache.CACHE, ""):
        other = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
        assert other.stderr.readline() == "another process decodes these photos; waiting for it\n"
        assert caches(flat) == []
    other.communicate()
    assert other.returncode == 0
    assert len(caches(flat)) == 2


def test_what_a_killed_process_left_is_removed(flat):
    left = flat / photo_cache.CACHE / ".parts-x"
    left.mkdir(parents=True)
    (left / "0.bin").write_bytes(b"half")
    load_folder(flat, 16)
    assert not left.exists()


def test_a_folder_that_cannot_be_written_has_its_cache_elsewhere(flat, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    (flat / photo_cache.CACHE).write_text("a file where the cache would be")
    first = load_folder(flat, 16)
    told = [line for line in capsys.readouterr().err.splitlines() if "cannot be written" in line]
    assert told[0].startswith(f"{flat} cannot be written, so its decoded photos are kept in {tmp_path / 'own'}/mt3/")
    monkeypatch.setattr(photo_cache, "read_image", None)
    np.testing.assert_array_equal(load_folder(flat, 16).train_images, first.train_images)
    assert capsys.readouterr().err == ""


def test_a_data_set_goes_to_other_processes_by_its_files_names(flat):
    data = load_folder(flat, 64)
    packed = pickle.dumps(data)
    assert len(packed) < 3000 < data.test_images.nbytes
    again = pickle.loads(packed)
    assert isinstance(again.train_images, np.memmap)
    np.testing.assert_array_equal(again.train_images, data.train_images)
    assert again.classes == data.classes


def test_broken_files_are_left_out_and_counted_if_asked(flat, capsys):
    (flat / "cat" / "03.png").write_bytes(b"no photo")
    (flat / "dog" / "04.png").unlink()
    (flat / "dog" / "04.png").symlink_to("nothing")
    for _ in range(2):  # decoded, then from the cache
        data = load_folder(flat, 16, skip_broken=True)
        assert len(data.train_images) + len(data.test_images) == 18
        assert len(data.train_images) == len(data.train_labels)
        told = capsys.readouterr().err
        assert "of 16 photos to train on that cannot be read, the first is " in told
    with pytest.raises(InputError, match="--skip-broken"):
        load_folder(flat, 16)


def test_a_class_of_which_nothing_can_be_read_is_refused(flat):
    for path in (flat / "cat").glob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(InputError, match="No photo of the class cat to train on can be read"):
        load_folder(flat, 16, skip_broken=True)


def test_other_entries_are_left_out_and_said(flat, capsys):
    (flat / "cat" / "notes.txt").write_text("on cats")
    (flat / "cat" / "more").mkdir()
    (flat / "cat" / ".DS_Store").write_bytes(b"")
    assert len(load_folder(flat, 16).train_images) == 16
    assert "left out 2 entries without the ending of a photo, the first is cat/notes.txt" in capsys.readouterr().err


def test_photos_are_turned_upright_and_cut(flat):
    path = flat / "cat" / "03.png"
    path.unlink()
    exif = Image.Exif()
    exif[0x0112] = 6  # on its side
    pixels = np.zeros((40, 80, 3), dtype=np.uint8)
    pixels[:20, 20:60] = 255  # the centre square's upper half
    Image.fromarray(pixels).save(path.with_suffix(".jpg"), exif=exif, quality=95)
    data = load_folder(flat, 16)
    image = next(i for i in (*data.train_images, *data.test_images) if i.max() > 240)
    assert image[:, :6].max() < 30  # turned by a quarter, the white half is on the right
    assert image[:, 10:].min() > 225


def animate(path: Path) -> None:
    frames = [Image.new("RGB", (20, 20), (shade, 0, 0)) for shade in (10, 200)]
    frames[0].save(path, save_all=True, append_images=frames[1:])


def break_one_class(root: Path) -> None:
    shutil.rmtree(root / "dog")


def break_empty_class(root: Path) -> None:
    (root / "bird").mkdir()


def break_no_classes(root: Path) -> None:
    shutil.rmtree(root / "dog")
    shutil.rmtree(root / "cat")


def break_no_images(root: Path) -> None:
    break_no_classes(root)
    for kind in SHADES:
        (root / kind).mkdir()
        (root / kind / "readme.txt").write_text("soon")


def break_photo_names(root: Path) -> None:
    save_photo(root / "cat" / "A.png", 20)
    save_photo(root / "cat" / "a.PNG", 21)


def break_class_names(root: Path) -> None:
    save_photo(root / "Cat" / "1.png", 20)


def break_animated(root: Path) -> None:
    animate(root / "cat" / "x.gif")


def break_huge(root: Path) -> None:
    Image.new("1", (8000, 8000)).save(root / "cat" / "x.png")


def break_link(root: Path) -> None:
    (root / "cat" / "x.jpg").symlink_to("nothing")


def break_single(root: Path) -> None:
    save_photo(root / "bird" / "1.png", 20)


def break_test_missing(root: Path) -> None:
    (root / "train").mkdir()
    for kind in SHADES:
        (root / kind).rename(root / "train" / kind)


def break_test_classes(root: Path) -> None:
    break_test_missing(root)
    for kind in ("cat", "cow"):
        save_photo(root / "test" / kind / "1.png", 20)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (break_one_class, "pets has only cat, expected a folder for each of at least two classes; add them."),
        (break_empty_class, "pets/bird holds no photos, expected files that end in .png, .jpg, "),
        (break_no_classes, "pets has none, expected a folder for each of at least two classes; add them."),
        (break_no_images, "pets/cat holds no photos, expected files that end in .png, .jpg, "),
        (break_photo_names, "pets/cat has A.png and a.PNG, whose names differ only in capitals"),
        (break_class_names, "pets has Cat and cat, whose names differ only in capitals"),
        (break_animated, "pets/cat/x.gif holds several frames, expected one photo; save one of them, or leave out"),
        (break_huge, "pets/cat/x.png has more than the 50 megapixels"),
        (break_link, "pets/cat/x.jpg as an image (No such file or directory)"),
        (break_single, "The class bird has a single photo, expected at least two, one of them for testing"),
        (break_test_missing, "pets has classes to train on, but none in "),
        (break_test_classes, "pets/test has the class cow, "),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_wrong_is_said_in_one_sentence(flat, damage, sentence, capsys):
    damage(flat)
    code = main(["corrupt", "--data", f"folder:{flat}", "--size", "16", "--out", str(flat.parent / "out")])
    assert code == 2
    (told,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mt3: ")]
    assert sentence in told
    assert not (flat.parent / "out").exists()


def test_arguments_that_do_not_fit_are_refused(flat, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for words, sentence in (
        (["folder:" + str(tmp_path / "file")], "file is a file, expected a folder of photos"),
        (["folder:" + str(tmp_path / "nowhere")], "nowhere does not exist, expected a folder of photos"),
        (["folder:"], "Expected --data folder:PATH with the path of the photos"),
        ([f"folder:{flat}", "--data-dir", "x"], "and no --data-dir beside it"),
        ([f"folder:{flat}", "--download"], "Own photos are not downloaded"),
        ([f"folder:{flat}", "--size", "15"], "Expected the size to be a whole number from 16 to 512, got 15."),
        ([f"folder:{flat}", "--size", "513"], "Expected the size to be a whole number from 16 to 512, got 513."),
        (["digits", "--size", "48"], "--size 48 is for own photos, not for digits"),
        (["cifar10", "--skip-broken"], "--skip-broken is for own photos, not for cifar10"),
    ):
        assert main(["corrupt", "--out", str(tmp_path / "out"), "--data", *words]) == 2
        assert sentence in capsys.readouterr().err


def test_a_class_that_may_not_be_read_is_refused(flat, monkeypatch):
    def refuse(directory):
        raise PermissionError(13, "Permission denied", str(directory))

    monkeypatch.setattr(folder.os, "scandir", refuse)
    with pytest.raises(
        InputError, match=r"^Cannot read \S+pets: Permission denied; give a folder that you may read\.$"
    ):
        load_folder(flat, 16)


def test_a_folder_is_loaded_by_name(flat):
    assert load_dataset(f"folder:{flat}", size=16).size == 16
    assert load_dataset("folder:pets", flat).size == folder.SIZE == 64
