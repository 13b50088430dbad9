"""Tables from results, and the demo's figure."""

import numpy as np
import pytest
from PIL import Image

from mt3.errors import InputError
from mt3.report import draw_corruptions, draw_examples, evaluation_summary, interval, result_table, text_table


def entry(name: str, before: float, after: float, severity: int = 5) -> dict:
    return {"name": name, "severity": severity, "before": {"accuracy": before}, "after": {"accuracy": after}}


RESULT = {
    "average": {"before": 45.0, "after": 55.5, "view_average": None},
    "corruptions": [entry("fog", 40.0, 50.04), entry("snow", 50.0, 60.96)],
    "clean": {"before": {"accuracy": 90.0}, "after": {"accuracy": 89.0}},
    "gain": {"mean": 10.5, "low": 8.25, "high": 12.75},
    "fixed": 12,
    "broken": 3,
}


def test_table_is_markdown_with_aligned_columns():
    assert text_table(["name", "value"], [["a", "1.0"], ["longer", "10.0"]]).splitlines() == [
        "| name   | value |",
        "|--------|------:|",
        "| a      |   1.0 |",
        "| longer |  10.0 |",
    ]


def test_result_table_gives_corruptions_average_and_clean():
    lines = result_table({"MT": (RESULT, "before"), "MT3": (RESULT, "after")}).splitlines()
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["corruption", "MT", "MT3"]
    assert cells[2:] == [
        ["fog", "40.0", "50.0"],
        ["snow", "50.0", "61.0"],
        ["average", "45.0", "55.5"],
        ["clean", "90.0", "89.0"],
    ]


def test_several_severities_are_told_apart():
    result = RESULT | {"corruptions": [entry("fog", 1, 2, 1), entry("fog", 3, 4, 5)], "clean": None}
    lines = result_table({"MT": (result, "before")}).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["fog 1", "fog 5", "average"]


def test_summary_words_the_gain():
    text = evaluation_summary(RESULT)
    assert "gain by adapting +10.5 [+8.2, +12.8] points (paired 95 % interval); 12 answers fixed, 3 broken" in text
    assert interval({"mean": -1.0, "low": -2.0, "high": 0.04}) == "-1.0 [-2.0, +0.0]"


def test_figure_shows_the_pictures(tmp_path):
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    rng = np.random.default_rng(0)
    clean = rng.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    corrupted = np.full_like(clean, 0)
    corrupted[..., 1] = 200  # a green that nothing else in the figure has
    texts = [("1 50 %", False, "2 90 %", True)] * 3
    draw_examples(tmp_path / "f.png", clean, corrupted, ["fog", "snow", "zoom_blur"], texts, ["2", "2", "2"])
    picture = np.asarray(Image.open(tmp_path / "f.png").convert("RGB")).astype(int)
    green = (np.abs(picture - [0, 200, 0]).sum(-1) < 10).mean()
    assert 0.15 < green < 0.6
    columns = (np.abs(picture - [0, 200, 0]).sum(-1) < 10).any(0)
    assert (np.diff(columns.astype(int)) == 1).sum() + columns[0] == 3  # three separate panels


def test_corruptions_are_drawn_in_two_blocks_without_overlap(tmp_path):
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    names = [f"corruption_{i}" for i in range(19)]
    green = np.zeros((5, 32, 32, 3), np.uint8) + np.array([0, 200, 0], np.uint8)
    draw_corruptions(tmp_path / "f.png", green[0] + 55, dict.fromkeys(names, green), [1, 2, 3, 4, 5])
    picture = np.asarray(Image.open(tmp_path / "f.png").convert("RGB")).astype(int)
    is_green = (picture == [0, 200, 0]).all(-1)
    assert is_green.sum() == 19 * 5 * 128 * 128  # every pixel four times in both directions, none blurred or covered
    assert ((picture == [55, 255, 55]).all(-1)).sum() == 19 * 128 * 128
    assert (np.diff(is_green.any(0).astype(int)) == 1).sum() == 2 * 5
    assert (np.diff(is_green.any(1).astype(int)) == 1).sum() == 10
    assert (picture[:, :2] == 255).all()  # the longest name has room
    assert picture.shape[1] / picture.shape[0] == pytest.approx(1.5, abs=0.3)
    with pytest.raises(InputError, match=r"ending in \.png or \.pdf"):
        draw_corruptions(tmp_path / "f.jpg", green[0], {"fog": green}, [1, 2, 3, 4, 5])
