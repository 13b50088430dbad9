"""Evaluating on shifts of the user's own: sets that differ in number, and folders that `mt3 corrupt` wrote."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import mt3
from evaluating import ask, make_model
from mt3.corruptions.write import write_folders
from mt3.data import Asked, Dataset, ShiftedSet, open_shifts
from mt3.evaluation.evaluate import evaluate, evaluate_shard
from mt3.evaluation.predict import as_tensor
from mt3.evaluation.protocol import Protocol, TestImages
from mt3.evaluation.shards import Shard
from mt3.reporting.summary import evaluation_summary
from mt3.support.errors import InputError

DIGITS = Asked(tuple("0123456789"), 32)
PLACES = {"dusk": (0, 7), "dawn": (20, 23)}  # which digits are seen there


@pytest.fixture
def places(tmp_path: Path, digits: Dataset) -> ShiftedSet:
    for place, (start, stop) in PLACES.items():
        for i in range(start, stop):
            folder = tmp_path / "places" / place / digits.classes[digits.test_labels[i]]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(digits.test_images[i]).save(folder / f"{i}.png")
    return open_shifts(tmp_path / "places", DIGITS)


def test_sets_of_their_own_are_answered_image_by_image(places, digits, tmp_path):
    names, model = tuple(places.names()), make_model()
    got = ask(tmp_path / "r.json", TestImages(digits, places), corruptions=names, severities=(1,), limit=5)
    assert got.protocol["source"] | {"hash": ""} == {
        "kind": "shifts", "name": "places", "hash": "", "paired": False, "images": [3, 5],
        "counts": {"dawn-1": 3, "dusk-1": 5},
    }  # fmt: skip
    assert [(e["name"], e["images"]) for e in got.value["corruptions"]] == [("dawn", 3), ("dusk", 5)]
    assert (got.protocol["images"], got.protocol["data"]) == (5, "digits")  # of the clean ones
    right, gains = {}, []
    with np.load(tmp_path / "r.npz") as file:
        for name in names:
            images, labels, _ = places.found[name, 1]
            batch, truth = as_tensor(images[:5], torch.device("cpu")), torch.from_numpy(labels[:5])
            with torch.no_grad():
                before, after = model(batch), mt3.Adapter(model)(batch)
            np.testing.assert_array_equal(file[f"{name}-1/labels"], labels[:5])
            np.testing.assert_allclose(file[f"{name}-1/after"], after.softmax(1), atol=1e-6)
            right[name] = [(logits.argmax(1) == truth).float() for logits in (before, after)]
            for row, hits in zip(("before", "after"), right[name], strict=True):
                assert got.accuracy(row, name) == pytest.approx(100 * hits.mean().item())
            gains.append(100 * (right[name][1] - right[name][0]).mean().item())
    assert got.accuracy("after") - got.accuracy("before") == pytest.approx(np.mean(gains), abs=1e-6)
    assert got.gain().mean == pytest.approx(np.mean(gains), abs=1e-6)
    # every image counts, and both places weigh the same: 4 / 3 for each of three images, 4 / 5 for each of five
    weights = np.repeat([4 / 3, 4 / 5], [3, 5])
    each = 100 * weights * np.concatenate([(right[n][1] - right[n][0]).numpy() for n in ("dawn", "dusk")])
    assert got.gain().high - got.gain().mean == pytest.approx(1.959964 * each.std(ddof=1) / np.sqrt(8), rel=1e-5)
    assert "3 to 5 images under each corruption" in evaluation_summary(got)
    assert {r["images"] for r in mt3.results.show.records(got)} == {3, 5}
    again = ask(tmp_path / "r.json", TestImages(digits, places), corruptions=names, severities=(1,), limit=5)
    assert again.value == got.value


def test_shards_of_sets_of_their_own(places, digits, tmp_path):
    """Each has its own labels, and pieces as its images need."""
    model, images = make_model(), TestImages(digits, places)
    asked = Protocol(tuple(places.names()), (1,), 5, adaptation=model.adaptation)
    wrote = [evaluate_shard(model, images, asked, tmp_path / "r.json", Shard(i, 2)) for i in (1, 0)]
    assert wrote == [False, True]
    evaluate(model, images, asked, tmp_path / "s.json")
    for end in ("json", "npz"):
        assert (tmp_path / f"r.{end}").read_bytes() == (tmp_path / f"s.{end}").read_bytes()


def test_shifts_need_no_clean_images(places, tmp_path):
    got = ask(tmp_path / "r.json", TestImages(None, places), corruptions=("dusk", "dawn"), severities=(1,))
    assert (got.protocol["clean"], got.protocol["images"]) == (False, 7)
    assert [e["images"] for e in got.value["corruptions"]] == [7, 3]


def test_what_shifts_cannot_be_asked_is_one_sentence(places, digits, tmp_path):
    asked = {"corruptions": ("dusk", "dawn"), "severities": (1,)}
    with pytest.raises(InputError, match="Controls need the same images with and without a corruption, not shifts"):
        ask(tmp_path / "r.json", TestImages(digits, places), **asked, controls=True)
    with pytest.raises(InputError, match="Some shift has no image from number 3 on; lower --first"):
        ask(tmp_path / "r.json", TestImages(digits, places, first=3), **asked)


def test_written_folders_give_what_generated_images_give(digits, tmp_path):
    names = ("contrast", "fog")
    write_folders(digits, tmp_path / "c", names, (2, 5), limit=6)
    opened = open_shifts(tmp_path / "c", DIGITS, names, (2, 5))
    assert opened.paired
    asked = {"corruptions": names, "severities": (2, 5)}
    read = ask(tmp_path / "read.json", TestImages(digits, opened), **asked, limit=6)
    made = ask(tmp_path / "made.json", TestImages(digits), **asked, limit=6)
    for name, severity in opened.found:
        for row in ("before", "after", "view_average"):
            assert read.accuracy(row, name, severity) == made.accuracy(row, name, severity)
            assert read.mean("nll", row, name, severity) == pytest.approx(
                made.mean("nll", row, name, severity), rel=1e-5
            )
    assert read.gain() == pytest.approx(made.gain())  # paired, in another order
    assert json.loads((tmp_path / "read.json").read_text())["protocol"]["source"]["images"] == [6, 6]
