"""What one evaluation prints."""

import numpy as np
import pytest

from evaluations import UNFINISHED, Rows, keep_answers, make_evaluation, write
from mt3.reporting.summary import evaluation_summary, interval
from mt3.results import Difference, Evaluation, read_evaluation
from mt3.results.show import result_table

ROWS: Rows = {"before": {"fog": 40.0, "snow": 50.0}, "after": {"fog": 50.1, "snow": 60.9}}
CONTROLS: Rows = {"clean_other": {"fog": 45.0, "snow": 54.0}, "same_corruption": {"fog": 46.0, "snow": 52.0}}
CLEAN = {"before": 90.0, "after": 89.0}


@pytest.fixture
def read(tmp_path):
    def make(rows: Rows = ROWS, clean: dict[str, float] | None = CLEAN, **changes) -> Evaluation:
        return read_evaluation(write(tmp_path / "a.json", make_evaluation("mt3", 0, rows, clean, **changes)))

    return make


def cells_of(text: str) -> list[list[str]]:
    return [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines()]


def test_result_table_gives_corruptions_average_and_clean(read):
    cells = cells_of(result_table({"MT": (read(), "before"), "MT3": (read(), "after")}))
    assert cells[0] == ["corruption", "MT", "MT3"]
    assert cells[2:] == [
        ["fog", "40.0", "50.1"],
        ["snow", "50.0", "60.9"],
        ["average", "45.0", "55.5"],
        ["clean", "90.0", "89.0"],
    ]


def test_several_severities_are_told_apart(read):
    rows: Rows = {"before": {"fog": 1.0}}
    lines = cells_of(result_table({"MT": (read(rows, None, severities=(1, 5)), "before")}))
    assert lines[2:] == [["fog 1", "5.0"], ["fog 5", "1.0"], ["average", "3.0"]]


def test_summary_words_the_gain(read, tmp_path):
    before, after = (np.arange(10) < n for n in (4, 6))
    rows: Rows = {"before": {"fog": 40.0}, "after": {"fog": 60.0}}
    value = keep_answers(
        make_evaluation("mt3", 0, rows, images=10), {"before": before[None], "after": np.roll(after, 3)[None]}
    )
    text = evaluation_summary(read_evaluation(write(tmp_path / "b.json", value)))
    # images 4 to 8 are put right, 0 to 2 wrong
    reach = 1.959964 * np.std([-100] * 3 + [0] * 2 + [100] * 5, ddof=1) / np.sqrt(10)
    told = f"gain by adapting +20.0 [{20 - reach:+.1f}, {20 + reach:+.1f}] points (paired 95 % interval); "
    assert f"{told}5 answers fixed, 3 broken" in text
    assert interval(Difference(-1.0, -2.0, 0.04)) == "-1.0 [-2.0, +0.04]"  # the end that decides keeps its digit


def test_clean_images_are_printed_with_controls_too(read):
    text = evaluation_summary(read(ROWS | CONTROLS))
    line = next(line for line in cells_of(text) if line[0] == "clean")
    assert line == ["clean", "90.0", "-", "-", "89.0"]
    told = "clean other: adapted on an unrelated clean image; same corruption: adapted on another image under the same "
    assert f"{told}corruption" in text.splitlines()


def test_a_gain_without_controls_is_not_credited_to_the_image(read):
    caution = "A step may help whatever the image: --controls tells how much of this gain is due to that."
    assert caution in evaluation_summary(read()).splitlines()
    lost = {"before": ROWS["after"], "after": ROWS["before"]}
    assert "--controls" not in evaluation_summary(read(lost))
    e = read(ROWS | CONTROLS)
    text = evaluation_summary(e)
    assert "--controls" not in text
    split = f"of which offset {interval(e.gain('offset'))} (by a step on an unrelated clean image), "
    split += (
        f"distribution {interval(e.gain('distribution'))} (more by one on another image with the same corruption), "
    )
    split += f"instance {interval(e.gain('instance'))} (more by one on the image itself)"
    assert split in text.splitlines()
    assert "offset +4.5 [" in split
    assert "distribution -0.5 [" in split
    assert text.endswith(f"having seen the image brings {interval(e.gain('adaptation'))}: distribution and instance")


def test_the_summary_says_that_the_training_is_not_finished(read):
    for run, told in ((UNFINISHED, True), ({}, False)):
        text = evaluation_summary(read(run=run, first=9000))
        assert "1,000 images from number 9,000 on under each corruption" in text.splitlines()
        assert ("The training is NOT FINISHED: these are numbers after 150 of 3,000 steps." in text) == told
