"""`mt3 corrupt`: the published layout and its preview."""

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from commands import run
from mt3.results.facts import read_evaluation


def test_corrupt_then_evaluate_gives_what_generated_images_give(capsys, runs, tmp_path):
    words = ["corrupt", "--out", tmp_path / "c", "--corruptions", "fog", "contrast", "--limit", "6", "--workers", "1"]
    code, out, _ = run(capsys, *words, "--severity", "5", "3")
    assert code == 0
    assert out == f"{tmp_path / 'c'}: digits under fog, contrast at severities 3, 5\n"
    assert run(capsys, *words, "--severity", "3", "5")[1].endswith("severities 3, 5; 2 of 2 were there\n")
    code, out, err = run(capsys, *words)
    assert code == 2
    assert "(severities [3, 5] there, [1, 2, 3, 4, 5] here)" in err
    names = ["--corruptions", "fog", "contrast", "--severity", "3", "5", "--limit", "6"]
    for name, more in (("generated", []), ("read", ["--corrupted", tmp_path / "c"])):
        assert run(capsys, "evaluate", runs / "mt3", *names, *more, "--out", tmp_path / f"{name}.json")[0] == 0
    generated, read = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("generated", "read"))
    assert read["corruptions"] == generated["corruptions"]


def test_corrupt_into_folders_then_evaluate_gives_what_generated_images_give(capsys, runs, tmp_path):
    words = ["corrupt", "--format", "folders", "--out", tmp_path / "c", "--corruptions", "fog", "contrast"]
    words += ["--limit", "6", "--severity", "3", "5", "--workers", "1"]
    assert run(capsys, *words)[1] == f"{tmp_path / 'c'}: digits under fog, contrast at severities 3, 5\n"
    assert run(capsys, *words)[1].endswith("severities 3, 5; 2 of 2 were there\n")
    names = ["--corruptions", "fog", "contrast", "--severity", "3", "5", "--limit", "6"]
    for name, more in (("generated", []), ("read", ["--corrupted", tmp_path / "c"])):
        assert run(capsys, "evaluate", runs / "mt3", *names, *more, "--out", tmp_path / f"{name}.json")[0] == 0
    generated, read = (read_evaluation(tmp_path / f"{n}.json") for n in ("generated", "read"))
    for name, severity, row, answers in generated.each():
        if name:
            assert read.accuracy(row, name, severity) == answers.accuracy
    shutil.move(tmp_path / "c" / "fog" / "3", tmp_path / "mine" / "mist")  # a shift of one's own
    code, out, _ = run(
        capsys, "evaluate", runs / "mt3", "--corrupted", tmp_path / "mine", "--out", tmp_path / "mine.json"
    )
    assert code == 0
    assert re.search(r"^\| mist +\|", out, re.MULTILINE)
    assert read_evaluation(tmp_path / "mine.json").accuracy("after", "mist") == read.accuracy("after", "fog", 3)
    for more, told in (
        (["--severity", "4"], "mist has no severity 4: it has none; drop --severity."),
        (["--corruptions", "all"], f"{tmp_path / 'mine'} holds none of all, but mist."),
        (["--controls"], "Controls need the same images with and without a corruption, not shifts; drop --controls."),
    ):
        words = ["evaluate", runs / "mt3", "--corrupted", tmp_path / "mine", "--out", tmp_path / "x.json", *more]
        code, _, err = run(capsys, *words)
        assert (code, err.splitlines()[-1].endswith(told)) == (2, True), err


def test_preview_shows_the_pixels_that_are_written(capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    words = ["corrupt", "--out", tmp_path / "c", "--preview", tmp_path / "p.png", "--image", "2", "--limit", "3"]
    code, out, _ = run(capsys, *words, "--corruptions", "shot_noise", "fog", "--severity", "2", "4", "--workers", "1")
    assert code == 0
    assert out.endswith(f"wrote {tmp_path / 'p.png'}\n")
    picture = np.asarray(Image.open(tmp_path / "p.png").convert("RGB"))
    for name in ("shot_noise", "fog"):
        for severity in (0, 1):
            pixels = np.load(tmp_path / "c" / f"{name}.npy")[3 * severity + 2]
            large = pixels.repeat(4, axis=0).repeat(4, axis=1)
            windows = np.lib.stride_tricks.sliding_window_view(picture[22 * 4 :], (1, 128), axis=(0, 1))[0, :, :, 0]
            left = np.flatnonzero((windows == large[0].T).all(axis=(1, 2)))
            assert len(left) == 1  # the first row of pixels is there once
            np.testing.assert_array_equal(picture[88 : 88 + 128, left[0] : left[0] + 128], large)
    assert run(capsys, "corrupt", "--preview", tmp_path / "p.pdf", "--corruptions", "fog")[0] == 0
    assert (tmp_path / "p.pdf").read_bytes().startswith(b"%PDF")


def test_corrupting_needs_no_torch(tmp_path):
    code = (
        "import sys\nfrom mt3.cli.main import main\nassert main(sys.argv[1:]) == 0\nassert 'torch' not in sys.modules\n"
    )
    for words in (
        ["corrupt", "--out", tmp_path / "c", "--corruptions", "fog", "--limit", "2", "--preview", tmp_path / "p.png"],
    ):
        done = subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
