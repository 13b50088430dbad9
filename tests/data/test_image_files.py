"""Reading image files: conversions are done and said, what is no image is refused."""

import io
import os
import random
import socket
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mt3.cli.main import main
from mt3.data.image_files import read_image
from mt3.support.errors import InputError


def test_a_32x32_rgb_png_is_taken_as_it_is(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    got, notes = read_image(tmp_path / "a.png", 32)
    np.testing.assert_array_equal(got, pixels)
    assert notes == []


def test_grey_is_repeated(tmp_path):
    pixels = np.arange(1024, dtype=np.uint16).reshape(32, 32).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "grey.png")
    got, notes = read_image(tmp_path / "grey.png", 32)
    for channel in range(3):
        np.testing.assert_array_equal(got[..., channel], pixels)
    assert notes == ["grey repeated in three channels"]


def test_sixteen_bits_are_scaled(tmp_path):
    pixels = (np.arange(1024, dtype=np.uint32) * 64).astype(np.uint16).reshape(32, 32)
    Image.fromarray(pixels).save(tmp_path / "deep.png")
    got, notes = read_image(tmp_path / "deep.png", 32)
    np.testing.assert_array_equal(got[..., 0], (pixels * (255 / 65535)).astype(np.uint8))
    assert notes == ["scaled from 0..65535 to 8 bits", "grey repeated in three channels"]


def test_float_images_are_scaled_by_their_range(tmp_path):
    values = np.linspace(0, 1, 1024, dtype=np.float32).reshape(32, 32)
    Image.fromarray(values).save(tmp_path / "float.tiff")
    got, notes = read_image(tmp_path / "float.tiff", 32)
    np.testing.assert_array_equal(got[..., 0], (values.astype(np.float64) * 255).astype(np.uint8))
    assert notes[0] == "scaled from 0..1 to 8 bits"


def test_other_modes_and_frames_are_said(tmp_path):
    Image.new("CMYK", (32, 32), (255, 0, 0, 0)).save(tmp_path / "print.jpg")
    got, notes = read_image(tmp_path / "print.jpg", 32)
    assert notes == ["converted from CMYK"]
    assert got[16, 16, 0] < 30
    frames = [Image.new("L", (32, 32), shade) for shade in (40, 200)]
    frames[0].save(tmp_path / "moving.gif", save_all=True, append_images=frames[1:])
    got, notes = read_image(tmp_path / "moving.gif", 32)
    assert "only the first frame is read" in notes
    assert got.max() < 60


def test_transparency_is_laid_on_white(tmp_path):
    pixels = np.zeros((32, 32, 4), dtype=np.uint8)
    pixels[:16, :, 3] = 255  # black above, transparent below
    Image.fromarray(pixels).save(tmp_path / "alpha.png")
    got, notes = read_image(tmp_path / "alpha.png", 32)
    assert got[:16].max() == 0
    assert got[16:].min() == 255
    assert notes == ["transparency laid on white"]


def test_another_size_is_cut_and_scaled(tmp_path):
    pixels = np.zeros((64, 128, 3), dtype=np.uint8)
    pixels[:, 32:96] = (200, 100, 50)  # the centre square
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    got, notes = read_image(tmp_path / "wide.png", 32)
    assert got.shape == (32, 32, 3)
    np.testing.assert_array_equal(got[4:-4, 4:-4].reshape(-1, 3), [[200, 100, 50]] * 24 * 24)
    assert notes == ["128x64 cut to its centre square and scaled to 32x32"]


def test_any_side_can_be_had(tmp_path):
    pixels = np.zeros((300, 500, 3), dtype=np.uint8)
    pixels[:, 250:] = 200
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    got, notes = read_image(tmp_path / "wide.png", 96)
    assert got.shape == (96, 96, 3)
    assert got[:, :44].max() == 0
    assert (got[:, 52:] == 200).all()
    assert notes == ["500x300 cut to its centre square and scaled to 96x96"]
    Image.fromarray(pixels[:96, 202:298]).save(tmp_path / "same.png")
    got, notes = read_image(tmp_path / "same.png", 96)
    np.testing.assert_array_equal(got, pixels[:96, 202:298])
    assert notes == []


def test_rotation_flag_is_followed(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    np.testing.assert_array_equal(read_image(tmp_path / "turned.png", 32)[0], pixels[::-1, ::-1])


def test_what_is_no_image_is_refused(tmp_path):
    text = tmp_path / "notes.png"
    text.write_text("these are words")
    with pytest.raises(InputError, match=r"notes.png is not an image that can be read"):
        read_image(text, 32)
    with pytest.raises(InputError, match=r"missing.png as an image .No such file"):
        read_image(tmp_path / "missing.png", 32)
    with pytest.raises(InputError, match="as an image"):
        read_image(tmp_path, 32)
    Image.fromarray(np.full((32, 32), np.nan, dtype=np.float32)).save(tmp_path / "void.tiff")
    with pytest.raises(InputError, match=r"void.tiff as an image .some of its values are not numbers"):
        read_image(tmp_path / "void.tiff", 32)
    whole = tmp_path / "whole.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(whole)
    (tmp_path / "half.png").write_bytes(whole.read_bytes()[:4000])
    with pytest.raises(InputError, match=r"Cannot read .*half.png as an image"):
        read_image(tmp_path / "half.png", 32)


@pytest.mark.parametrize("size", [(7200, 7000), (20_000, 20_000)])
def test_more_than_50_megapixels_are_refused_unread(tmp_path, size):
    Image.new("1", size).save(tmp_path / "huge.png")
    with pytest.raises(InputError, match="50 megapixels"):
        read_image(tmp_path / "huge.png", 32)


@pytest.mark.parametrize("size", [(1, 20_001), (20_001, 1)])
def test_sides_are_limited_as_pixels_are(tmp_path, size):
    Image.new("1", size).save(tmp_path / "line.png")
    with pytest.raises(InputError, match=r"more than .* the sides of 20000 pixels"):
        read_image(tmp_path / "line.png", 32)


def test_a_file_of_many_bytes_is_refused_unread(tmp_path):
    with (tmp_path / "long.webp").open("wb") as file:
        file.write(b"RIFF\xff\xff\xff\x7fWEBPVP8 ")
        file.truncate(400_000_001)  # a hole
    with pytest.raises(InputError, match=r"long.webp is longer than the 400 MB that are read; scale it down first"):
        read_image(tmp_path / "long.webp", 32)


def write_png(path: Path, width: int, height: int, bits: int) -> None:
    """Grey and black, written without holding its pixels."""
    row = bytes(1 + (width * bits + 7) // 8)
    packer, packed = zlib.compressobj(1), []
    rows = max(1, 10**6 // len(row))
    for first in range(0, height, rows):
        packed.append(packer.compress(row * min(rows, height - first)))
    packed.append(packer.flush())
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)), (b"IDAT", b"".join(packed))]
    with path.open("wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for name, body in (*chunks, (b"IEND", b"")):
            file.write(struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)))


PEAK = """
import os, resource, sys
from mt3.data.image_files import read_image
if not os.fork():  # in a process of its own, since the peak of this one may be that of its parent
    try:
        print(read_image(sys.argv[1], 32)[0].shape, flush=True)
    except ValueError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is in other units elsewhere")
@pytest.mark.parametrize(
    ("width", "height", "bits", "said", "megabytes"),
    [(1, 50_000_000, 1, "scale it down first", 150), (4000, 4000, 16, "(32, 32, 3)", 300)],
)
def test_memory_is_bounded(tmp_path, width, height, bits, said, megabytes):
    write_png(tmp_path / "large.png", width, height, bits)
    words = [sys.executable, "-c", PEAK, str(tmp_path / "large.png")]
    told, peak = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said in told
    assert int(peak) < megabytes


def test_large_jpegs_are_decoded_at_a_fraction(tmp_path):
    ramp = np.linspace(0, 255, 3000).astype(np.uint8)
    Image.fromarray(np.tile(ramp, (2000, 1))).convert("RGB").save(tmp_path / "a.jpg", quality=95)
    got, notes = read_image(tmp_path / "a.jpg", 32)
    expected = np.linspace(500, 2500, 65)[1::2] * 255 / 3000  # the ramp in the middle of each of 32 columns
    np.testing.assert_allclose(got.mean((0, 2)), expected, atol=1.5)
    assert notes == ["3000x2000 cut to its centre square and scaled to 32x32"]


def test_the_notes_give_the_size_of_a_turned_image(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees, clockwise
    pixels = np.zeros((64, 128, 3), dtype=np.uint8)
    pixels[:32] = 255  # above, which comes to the right
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    got, notes = read_image(tmp_path / "turned.png", 32)
    assert notes == ["64x128 cut to its centre square and scaled to 32x32"]
    assert got[:, 18:].min() > 240
    assert got[:, :14].max() < 15


@pytest.mark.parametrize("format", ["PPM", "ICO", "TGA", "DDS", "PCX", "ICNS", "SGI"])
def test_other_formats_are_refused(tmp_path, format):
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png", format)
    with pytest.raises(InputError, match=r"is not an image that can be read; give a PNG, JPEG, WebP, BMP, TIFF or GIF"):
        read_image(tmp_path / "a.png", 32)


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe.png")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s.png"))
        for path in (tmp_path / "pipe.png", tmp_path / "s.png", "/dev/zero"):
            with pytest.raises(InputError, match=r"as an image .it is a pipe or a device, not a file"):
                read_image(path, 32)
    assert main(["predict", "cifar10-mt3", str(tmp_path / "pipe.png")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_too_little_memory_for_an_image_is_said(tmp_path, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Image, "open", fail)
    (tmp_path / "a.png").touch()
    with pytest.raises(InputError, match=r"There is not enough memory to read .*a.png; scale it down first"):
        read_image(tmp_path / "a.png", 32)


def noise(mode: str, frame: int = 0) -> Image.Image:
    values = np.random.default_rng(frame).integers(0, 256, (24, 40, 4), dtype=np.uint8)
    deep = {"F": (np.float32, 1 / 255), "I": (np.int32, 200), "I;16": (np.uint16, 200)}
    if mode in deep:
        kind, factor = deep[mode]
        return Image.fromarray((values[..., 0] * factor).astype(kind))
    return (
        Image.fromarray(values).convert("RGB").convert(mode)
        if mode == "CMYK"
        else Image.fromarray(values).convert(mode)
    )


def whole_files() -> list[bytes]:
    """Small images in all formats and in the ways in which each of these is written."""
    turned = Image.Exif()
    turned[0x0112] = 6
    files = []

    def add(format: str, mode: str, frames: int = 1, **options: object) -> None:
        stream = io.BytesIO()
        if frames > 1:
            options |= {"save_all": True, "append_images": [noise(mode, frame) for frame in range(1, frames)]}
        noise(mode).save(stream, format, **options)
        files.append(stream.getvalue())

    for mode in ("RGB", "RGBA", "P", "1", "L", "LA", "I;16"):
        add("PNG", mode)
    add("PNG", "RGB", frames=3)
    add("PNG", "P", transparency=3, exif=turned)
    for mode in ("RGB", "L", "CMYK"):
        add("JPEG", mode, exif=turned)
        add("JPEG", mode, progressive=True)
    add("MPO", "RGB", frames=2)
    add("WEBP", "RGB", exif=turned)
    add("WEBP", "RGBA", lossless=True)
    add("WEBP", "RGB", frames=3)
    for mode in ("1", "L", "P", "RGB", "RGBA"):
        add("BMP", mode)
    for mode in ("1", "P", "RGB", "RGBA", "CMYK", "F", "I", "I;16", "LAB"):
        add("TIFF", mode)
        add("TIFF", mode, compression="tiff_lzw")
    add("TIFF", "1", compression="group4")
    add("TIFF", "RGB", compression="jpeg")
    add("TIFF", "RGB", compression="tiff_adobe_deflate", exif=turned)
    add("TIFF", "RGB", frames=3)
    add("GIF", "P")
    add("GIF", "RGB", frames=3)
    add("GIF", "RGBA", frames=3, disposal=2)
    return files


def mutate(files: list[bytes], chance: random.Random) -> bytes:
    """One of the files with bits turned, cut, with a part left out or put in, or with another's beginning or end."""
    found, other = bytearray(chance.choice(files)), chance.choice(files)
    kind, place, length = chance.randrange(8), chance.randrange(len(found)), chance.randrange(1, 64)
    if kind == 0:
        for _ in range(chance.choice((1, 1, 2, 16))):
            found[chance.randrange(len(found))] ^= 1 << chance.randrange(8)
    elif kind == 1:  # in the header
        for _ in range(chance.choice((1, 1, 2, 16))):
            found[chance.randrange(min(120, len(found)))] = chance.choice((0, 1, 127, 128, 255))
    elif kind == 2:
        del found[place:]
    elif kind == 3:
        del found[place : place + length]
    elif kind == 4:
        found[place:place] = chance.randbytes(length)
    elif kind == 5:
        found[place : place + length] = chance.choice((b"\0", b"\xff")) * length
    elif kind == 6:
        found[:length] = other[:length]
    else:
        found[place:] = other[chance.randrange(len(other)) :]
    return bytes(found)


def outcome(path: Path, content: bytes) -> str:
    """Whether such a file is read or refused; anything else is an error here."""
    path.write_bytes(content)
    try:
        pixels, _ = read_image(path, 32)
    except InputError as error:
        return "refused" if len(str(error).splitlines()) == 1 and len(str(error)) < 500 else str(error)
    assert (pixels.shape, pixels.dtype) == ((32, 32, 3), np.uint8)
    return "read"


def test_damaged_files_are_read_or_refused(tmp_path):
    files, chance = whole_files(), random.Random(0)
    assert [outcome(tmp_path / "a", content) for content in files] == ["read"] * len(files)
    found = [outcome(tmp_path / "a", mutate(files, chance)) for _ in range(800)]
    assert found.count("read") > 100
    assert found.count("refused") > 300


def test_a_moving_gif_cut_anywhere_is_read_or_refused(tmp_path):
    stream = io.BytesIO()
    frames = [noise("RGB", frame).resize((8, 8)) for frame in range(3)]
    frames[0].save(stream, "GIF", save_all=True, append_images=frames[1:])
    content = stream.getvalue()
    found = [outcome(tmp_path / "a.gif", content[:length]) for length in range(len(content) + 1)]
    first = found.index("read")  # its first frame is whole, whatever comes of the others
    assert found == ["refused"] * first + ["read"] * (len(found) - first)
    assert first < len(content) / 2


def test_libtiff_says_nothing_itself(tmp_path, capfd):
    noise("RGB").save(tmp_path / "a.tiff", compression="tiff_adobe_deflate")
    content = bytearray((tmp_path / "a.tiff").read_bytes())
    content[200:400] = bytes(200)
    (tmp_path / "a.tiff").write_bytes(content)
    assert main(["predict", "cifar10-mt3", str(tmp_path / "a.tiff")]) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("mt3: Cannot read")
