"""Figures: what is drawn, where, and in which colours."""

import numpy as np
import pytest
from PIL import Image

from mt3.config.methods import ROWS
from mt3.reporting.figures import COLOURS, draw_bars, draw_corruptions, draw_examples
from mt3.reporting.page import write_report
from mt3.results.tables import Cell
from mt3.support.errors import InputError


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


def test_colours_belong_to_methods():
    assert tuple(row for row in COLOURS if row != "Supervised with B") == ROWS
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_bars_have_the_methods_colours(folder):
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    write_report([folder], folder / "report")
    picture = np.asarray(Image.open(folder / "report" / "bars.png").convert("RGB")).astype(int)

    def area(row: str) -> int:
        colour = [int(COLOURS[row][i : i + 2], 16) for i in (1, 3, 5)]
        return int((np.abs(picture - colour).sum(-1) < 6).sum())

    # every row of the table; bars from 0: their areas are as the sums of the accuracies
    assert area("TTT (ours)") / area("JT (ours)") == pytest.approx((54 * 3 + 54) / (55 * 3 + 55), abs=0.03)
    assert area("MT3") / area("MT") == pytest.approx((61 * 3 + 61) / (53 * 3 + 53), abs=0.03)
    assert area("JT (Sun et al.)") == 0


def test_eight_rows_have_bars_of_their_own_in_two_panels(tmp_path):
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    names = "abcdefghijklmnop"
    draw_bars([tmp_path / "f.png"], {row: dict.fromkeys(names, Cell(60.0)) for row in ROWS}, names)
    picture = np.asarray(Image.open(tmp_path / "f.png").convert("RGB")).astype(int)
    for row in ROWS:
        colour = [int(COLOURS[row][i : i + 2], 16) for i in (1, 3, 5)]
        tall = (np.abs(picture - colour).sum(-1) < 6).sum(0) > 100
        starts, ends = np.flatnonzero(np.diff(np.pad(tall, 1).astype(int))).reshape(-1, 2).T
        assert (ends - starts >= 12).sum() == 9, (
            row
        )  # groups of the two panels lie below each other, but for the average
