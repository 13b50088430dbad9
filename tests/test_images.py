"""Reading image files: conversions are done and said, what is no image is refused."""

import numpy as np
import pytest
from PIL import Image

from mt3.errors import InputError
from mt3.images import read_image


def test_a_32x32_rgb_png_is_taken_as_it_is(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    got, notes = read_image(tmp_path / "a.png")
    np.testing.assert_array_equal(got, pixels)
    assert notes == []


def test_grey_is_repeated(tmp_path):
    pixels = np.arange(1024, dtype=np.uint16).reshape(32, 32).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "grey.png")
    got, notes = read_image(tmp_path / "grey.png")
    for channel in range(3):
        np.testing.assert_array_equal(got[..., channel], pixels)
    assert notes == ["grey repeated in three channels"]


def test_sixteen_bits_are_scaled(tmp_path):
    pixels = (np.arange(1024, dtype=np.uint32) * 64).astype(np.uint16).reshape(32, 32)
    Image.fromarray(pixels).save(tmp_path / "deep.png")
    got, notes = read_image(tmp_path / "deep.png")
    np.testing.assert_array_equal(got[..., 0], (pixels * (255 / 65535)).astype(np.uint8))
    assert notes == ["scaled from 0..65535 to 8 bits", "grey repeated in three channels"]


def test_float_images_are_scaled_by_their_range(tmp_path):
    values = np.linspace(0, 1, 1024, dtype=np.float32).reshape(32, 32)
    Image.fromarray(values).save(tmp_path / "float.tiff")
    got, notes = read_image(tmp_path / "float.tiff")
    np.testing.assert_array_equal(got[..., 0], (values.astype(np.float64) * 255).astype(np.uint8))
    assert notes[0] == "scaled from 0..1 to 8 bits"


def test_other_modes_and_frames_are_said(tmp_path):
    Image.new("CMYK", (32, 32), (255, 0, 0, 0)).save(tmp_path / "print.jpg")
    got, notes = read_image(tmp_path / "print.jpg")
    assert notes == ["converted from CMYK"]
    assert got[16, 16, 0] < 30
    frames = [Image.new("L", (32, 32), shade) for shade in (40, 200)]
    frames[0].save(tmp_path / "moving.gif", save_all=True, append_images=frames[1:])
    got, notes = read_image(tmp_path / "moving.gif")
    assert "only the first frame is read" in notes
    assert got.max() < 60


def test_transparency_is_laid_on_white(tmp_path):
    pixels = np.zeros((32, 32, 4), dtype=np.uint8)
    pixels[:16, :, 3] = 255  # black above, transparent below
    Image.fromarray(pixels).save(tmp_path / "alpha.png")
    got, notes = read_image(tmp_path / "alpha.png")
    assert got[:16].max() == 0
    assert got[16:].min() == 255
    assert notes == ["transparency laid on white"]


def test_another_size_is_cut_and_scaled(tmp_path):
    pixels = np.zeros((64, 128, 3), dtype=np.uint8)
    pixels[:, 32:96] = (200, 100, 50)  # the centre square
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    got, notes = read_image(tmp_path / "wide.png")
    assert got.shape == (32, 32, 3)
    np.testing.assert_array_equal(got[4:-4, 4:-4].reshape(-1, 3), [[200, 100, 50]] * 24 * 24)
    assert notes == ["128x64 cut to its centre square and scaled to 32x32"]


def test_rotation_flag_is_followed(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    np.testing.assert_array_equal(read_image(tmp_path / "turned.png")[0], pixels[::-1, ::-1])


def test_what_is_no_image_is_refused(tmp_path):
    text = tmp_path / "notes.png"
    text.write_text("these are words")
    with pytest.raises(InputError, match=r"notes.png is not an image that can be read"):
        read_image(text)
    with pytest.raises(InputError, match=r"missing.png as an image .No such file"):
        read_image(tmp_path / "missing.png")
    with pytest.raises(InputError, match="as an image"):
        read_image(tmp_path)
    Image.fromarray(np.full((32, 32), np.nan, dtype=np.float32)).save(tmp_path / "void.tiff")
    with pytest.raises(InputError, match=r"void.tiff as an image .some of its values are not numbers"):
        read_image(tmp_path / "void.tiff")
    whole = tmp_path / "whole.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(whole)
    (tmp_path / "half.png").write_bytes(whole.read_bytes()[:4000])
    with pytest.raises(InputError, match=r"Cannot read .*half.png as an image"):
        read_image(tmp_path / "half.png")


@pytest.mark.parametrize("size", [(7200, 7000), (20_000, 20_000)])
def test_more_than_50_megapixels_are_refused_unread(tmp_path, size):
    Image.new("1", size).save(tmp_path / "huge.png")
    with pytest.raises(InputError, match="50 megapixels"):
        read_image(tmp_path / "huge.png")
