"""Methods beside each other: the table, the verdict and the proportion of a figure, by hand."""

import json

import numpy as np
from PIL import Image

from evaluations import make_evaluation
from mt3.data import load_photos
from mt3.evaluation.protocol import TestImages
from mt3.results.facts import Evaluation, parse_evaluation
from mt3.results.statistics import pack_correct
from mt3.studies.beside import Line, draw_turned, show

IMAGES = 20


def evaluation(tmp_path, before: float, after: float) -> Evaluation:
    """One corruption, 20 images, of which the first are right."""
    value = make_evaluation("mt3", 0, {"before": {"fog": before}, "after": {"fog": after}}, images=IMAGES)
    path = tmp_path / f"{before}-{after}.json"
    path.write_text(json.dumps(value))
    return parse_evaluation(value, path)


def test_the_verdict_names_the_best_whatever_it_is(tmp_path):
    plain, other = evaluation(tmp_path, 50, 60), evaluation(tmp_path, 40, 80)
    lines = [
        Line("plain", (plain, "before")),
        Line("plain, adapted", (plain, "after")),
        Line("meta, as it is", (other, "before")),
        Line("meta, adapted", (other, "after")),
    ]
    table, verdict = show(lines)
    # 6 of 20 images more: a mean of 30 points, a deviation of 47.0 (n - 1), so 1.96 * 47.0 / sqrt(20) = 20.6 around it
    assert "| meta, adapted  |             **80.0** | +30.0 [+9.4, +50.6] |" in table
    assert "| meta, as it is |                 40.0 | -10.0 [-23.5, +3.5] |" in table
    assert verdict.startswith("Best of the 2 ways to adapt: meta, adapted, each image by itself: 80.0 %, +30.0 [+9.4,")
    assert "It is above plain; since the best was picked among 2" in verdict


def test_a_column_that_nothing_is_in_is_left_out(tmp_path):
    plain = evaluation(tmp_path, 50, 60)
    table, verdict = show([Line("plain", None, (plain, "before")), Line("adapted", None, (plain, "after"))])
    assert "| model   | along a stream |         points more |" in table
    assert "adapted, along a stream: 60.0 %" in verdict


def test_a_best_below_the_model_as_it_is_is_said_to_be(tmp_path):
    plain, worse = evaluation(tmp_path, 80, 60), evaluation(tmp_path, 40, 20)
    lines = [Line("plain", (plain, "before")), Line("worse", (worse, "after"))]
    assert "It is BELOW plain" in show(lines)[1]
    same = [Line("plain", (plain, "before")), Line("same", (evaluation(tmp_path, 50, 80), "after"))]
    assert "No difference is shown" in show(same)[1]


def test_a_figure_shows_right_and_wrong_turns_in_their_true_proportion(tmp_path, monkeypatch):
    """18 answers turn right and 6 wrong: of 12 images 9 and 3 are drawn, the first ones of each kind."""
    images, classes = TestImages(load_photos()), load_photos().classes
    before = np.arange(40) < 6
    after = (np.arange(40) >= 6) & (np.arange(40) < 24)
    value = make_evaluation("mt3", 0, {"before": {"fog": 50}, "after": {"fog": 50}}, images=40)
    rows = value["corruptions"][0]["rows"]
    for row, correct in (("before", before), ("after", after)):
        rows[row]["correct"] = pack_correct(correct)
    labels = images.labels[:40]
    wrong = (labels + 1) % 10
    answers = {
        f"fog-5/{row}": np.eye(10, dtype=np.float32)[np.where(c, labels, wrong)]
        for row, c in (("before", before), ("after", after))
    }
    np.savez(tmp_path / "e.npz", labels=labels, **answers)
    drawn = {}
    monkeypatch.setattr(
        "mt3.studies.beside.draw_examples", lambda *given: drawn.update(zip("pcznts", given, strict=True))
    )
    told = draw_turned(parse_evaluation(value, tmp_path / "e.json"), images, classes)
    assert told.endswith("the step turned 18 answers right and 6 wrong, of 40; 9 and 3 of them are drawn")
    assert [(text[1], text[3]) for text in drawn["t"]] == [(False, True)] * 9 + [(True, False)] * 3
    assert drawn["s"] == [classes[label] for label in [*labels[6:15], *labels[:3]]]
    np.testing.assert_array_equal(drawn["c"][0], load_photos().test_images[6])
    monkeypatch.undo()
    draw_turned(parse_evaluation(value, tmp_path / "e.json"), images, classes)
    assert Image.open(tmp_path / "figure.png").size[0] > 500
