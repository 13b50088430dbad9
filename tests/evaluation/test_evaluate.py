"""Evaluation against predictions made one by one, its controls, resuming and refusals."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import mt3.evaluation.evaluate as module
from evaluating import ask, make_model
from mt3 import corruptions
from mt3.adaptation.adapter import Adapter
from mt3.corruptions.write import write_corrupted
from mt3.data import Dataset, open_corrupted
from mt3.evaluation.protocol import TestImages
from mt3.results.facts import CLEAN, Evaluation
from mt3.results.statistics import unpack_correct
from mt3.support.errors import InputError
from mt3.support.files import own_file, read_json

NAMES = ("gaussian_noise", "contrast")
SIX = {"corruptions": NAMES, "severities": (3, 5), "limit": 6}


@pytest.fixture(scope="module")
def result(tmp_path_factory, images) -> tuple[Evaluation, dict, Path]:
    out = tmp_path_factory.mktemp("evaluate") / "results.json"
    got = ask(out, images, **SIX, controls=True)
    with np.load(out.with_suffix(".npz")) as file:
        return got, dict(file), out


def tensor(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2)


def test_rows_equal_predictions_made_one_by_one(digits, result):
    _, arrays, _ = result
    model = make_model()
    adapter = Adapter(model)
    clean = digits.test_images[:6]
    for name in NAMES:
        for severity in (3, 5):
            images = tensor(corruptions.apply(clean, name, severity))
            for i in range(6):
                own, other = images[i : i + 1], (i + 1) % 6
                key = f"{name}-{severity}"
                np.testing.assert_allclose(arrays[f"{key}/before"][i], model(own).softmax(1)[0].detach(), atol=1e-5)
                np.testing.assert_allclose(arrays[f"{key}/after"][i], adapter(own).softmax(1)[0], atol=1e-5)
                for row, donor in (("same_corruption", images[other]), ("clean_other", tensor(clean)[other])):
                    phi = next(iter(adapter.adapt(donor[None]))).params
                    want = adapter.logits(phi, own).softmax(1)[0]
                    np.testing.assert_allclose(arrays[f"{key}/{row}"][i], want, atol=1e-5)
                average = adapter.compare(own).view_average[0]
                np.testing.assert_allclose(arrays[f"{key}/view_average"][i], average, atol=1e-5)
    np.testing.assert_array_equal(arrays["labels"], digits.test_labels[:6])


def test_numbers_follow_from_the_probabilities(result):
    got, arrays, out = result
    assert read_json(out) == got.value
    labels = arrays["labels"]
    rows = ("before", "after", "view_average", "clean_other", "same_corruption")
    hits = {row: [] for row in rows}
    for entry in got.value["corruptions"]:
        key = f"{entry['name']}-{entry['severity']}"
        correct = {row: arrays[f"{key}/{row}"].argmax(1) == labels for row in rows}
        for row in rows:
            (answers,) = got.answers(row, entry["name"], entry["severity"])
            assert answers.accuracy == pytest.approx(100 * correct[row].mean())
            own = arrays[f"{key}/{row}"][np.arange(6), labels]
            assert answers.nll == pytest.approx(-np.log(own).mean(), rel=1e-5)
            np.testing.assert_array_equal(unpack_correct(entry["rows"][row]["correct"], 6), correct[row])
            hits[row].append(correct[row])
    before, after = (np.stack(hits[row]) for row in ("before", "after"))
    assert got.fixed_and_broken() == ((after & ~before).sum(), (before & ~after).sum())
    entries = [(e["name"], e["severity"]) for e in got.value["corruptions"]]
    assert entries == [(n, s) for s in (3, 5) for n in NAMES]
    for row in rows:
        assert got.accuracy(row) == pytest.approx(100 * np.mean(hits[row]))
    assert got.gain().mean == pytest.approx(got.accuracy("after") - got.accuracy("before"))
    assert got.gain("adaptation").mean == pytest.approx(got.accuracy("after") - got.accuracy("clean_other"))
    clean = 100 * np.mean(arrays["clean-0/before"].argmax(1) == labels)
    assert got.accuracy("before", None, CLEAN) == pytest.approx(clean)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_nothing_but_rounding(tmp_path, images, result, threads, monkeypatch):
    monkeypatch.setattr("mt3.adaptation.adapter.count_threads", lambda model, items: threads)
    ask(tmp_path / "r.json", images, **SIX, controls=True)
    with np.load(tmp_path / "r.npz") as file:
        assert set(file.files) == set(result[1])
        for name in file.files:
            np.testing.assert_allclose(file[name], result[1][name], atol=1e-4)


def test_interrupted_evaluation_resumes(tmp_path, images, monkeypatch):
    asked = {"corruptions": NAMES, "limit": 60, "views": 1}
    ask(tmp_path / "whole.json", images, **asked)
    original, calls = module._predict_piece, []

    def counted(job, piece):
        calls.append(piece)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(job, piece)

    monkeypatch.setattr(module, "_predict_piece", counted)
    out = tmp_path / "cut.json"
    with pytest.raises(KeyboardInterrupt):
        ask(out, images, **asked)
    assert not out.exists()
    assert len(list((tmp_path / "cut.json.partial").glob("0*.npz"))) == 3
    ask(out, images, **asked)
    assert len(calls) == 4 + 3  # two pieces of three sources: six, one of them tried twice
    assert len(set(calls)) == 6
    assert out.read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert not (tmp_path / "cut.json.partial").exists()
    ask(out, images, **asked)
    assert len(calls) == 7  # finished: no work


def test_a_second_evaluation_is_refused_before_it_changes_anything(tmp_path, images):
    out = tmp_path / "deep" / "r.json"
    lock = tmp_path / "deep" / "r.json.partial" / "shard-0-of-1.lock"
    with own_file(lock, "taken"):
        with pytest.raises(InputError, match=r"Another process is writing to .*r\.json\.partial; wait until it ends"):
            ask(out, images, limit=2, views=1)
        assert [path.name for path in (tmp_path / "deep").iterdir()] == ["r.json.partial"]
        ask(tmp_path / "deep" / "other.json", images, limit=2, views=1)
    result = ask(out, images, limit=2, views=1)
    with own_file(lock, "taken"):
        again = ask(out, images, limit=2, views=1)  # it is finished, so that nothing is written
    assert again.value == result.value
    for name in ("nowhere", "deep"):
        with pytest.raises(InputError, match="at least 2 images"):
            ask(tmp_path / name / "x.json", images, limit=1, controls=True)
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "deep", "other.json", "other.npz", "r.json", "r.npz",
    ]  # fmt: skip


def test_one_that_another_process_has_just_finished_is_not_evaluated_again(tmp_path, images, monkeypatch):
    result = ask(tmp_path / "r.json", images, limit=2, views=1)
    shares = iter([0.5, 1.0])
    monkeypatch.setattr(module, "share_done", lambda *_: next(shares))
    monkeypatch.setattr(module, "_predict_piece", None)
    assert ask(tmp_path / "r.json", images, limit=2, views=1).value == result.value
    assert not (tmp_path / "r.json.partial").exists()


def test_published_layout_gives_the_same_as_generated(tmp_path, digits, result):
    folder = tmp_path / "digits-c"
    folder.mkdir()
    for name in NAMES:
        parts = [corruptions.apply(digits.test_images[:6], name, severity) for severity in range(1, 6)]
        np.save(folder / f"{name}.npy", np.concatenate(parts))
    np.save(folder / "labels.npy", np.tile(digits.test_labels[:6], 5).astype(np.uint8))
    corrupted = open_corrupted(folder, digits.num_classes)
    got = ask(tmp_path / "r.json", TestImages(digits, corrupted), **SIX, controls=True)
    evaluated = [
        np.load(folder / f"{name}.npy")[6 * severity - 6 : 6 * severity] for severity in (3, 5) for name in NAMES
    ]
    known_by = hashlib.blake2b(np.concatenate(evaluated).tobytes(), digest_size=16).hexdigest()
    assert got.protocol["source"] == {"kind": "directory", "name": "digits-c", "hash": known_by}
    for key in ("corruptions", "clean"):
        assert got.value[key] == result[0].value[key]
    alone = ask(tmp_path / "alone.json", TestImages(None, corrupted), **SIX)
    assert alone.value["clean"] is None
    assert alone.accuracy("after") == got.accuracy("after")
    with pytest.raises(InputError, match="clean test images"):
        ask(tmp_path / "x.json", TestImages(None, corrupted), corruptions=NAMES, controls=True)
    shuffled = Dataset(
        "digits", digits.train_images, digits.train_labels, digits.test_images, digits.test_labels[::-1], digits.classes
    )
    with pytest.raises(InputError, match="are not those of digits's test split"):
        TestImages(shuffled, corrupted)


def test_images_from_a_later_one_on(tmp_path, digits, result):
    """They have the pixels and the answers that they have among all."""
    _, arrays, _ = result
    got = ask(tmp_path / "a.json", TestImages(digits, first=2), **SIX | {"limit": 4})
    with np.load(tmp_path / "a.npz") as later:
        np.testing.assert_array_equal(later["labels"], arrays["labels"][2:])
        for name in (f"{n}-{s}/{row}" for n in NAMES for s in (3, 5) for row in ("before", "after")):
            np.testing.assert_allclose(later[name], arrays[name][2:], atol=1e-4)
    assert (got.protocol["first"], got.protocol["images"]) == (2, 4)
    assert result[0].protocol["first"] == 0
    written = write_corrupted(digits, tmp_path / "c", NAMES, [5], limit=6)
    assert written
    taken = TestImages(digits, open_corrupted(tmp_path / "c"), first=2).take(("contrast", 5), 0, 4)
    np.testing.assert_array_equal(taken, TestImages(digits, first=2).take(("contrast", 5), 0, 4))
    with pytest.raises(InputError, match="lower --first"):
        TestImages(digits, first=len(digits.test_labels))


def test_a_gate_that_everything_passes_leaves_the_answers(tmp_path, images):
    asked = {"corruptions": ("contrast", "fog"), "limit": 6}
    own = make_model().adaptation
    shut = ask(tmp_path / "a.json", images, **asked, adaptation=replace(own, gate=0.0), controls=True)
    open_ = ask(tmp_path / "b.json", images, **asked, adaptation=replace(own, gate=1.0))
    with np.load(tmp_path / "a.npz") as a, np.load(tmp_path / "b.npz") as b:
        for name in asked["corruptions"]:
            before = a[f"{name}-5/before"]
            for row in ("after", "clean_other", "same_corruption"):
                np.testing.assert_allclose(a[f"{name}-5/{row}"], before, atol=1e-6)
            np.testing.assert_allclose(b[f"{name}-5/before"], before, atol=1e-6)
            assert np.abs(b[f"{name}-5/after"] - before).max() > 1e-3
    assert shut.gain().mean == shut.gain("adaptation").mean == 0
    assert shut.accuracy("before") == open_.accuracy("before")


def test_unadapted_is_the_same_before(tmp_path, images):
    asked = {"corruptions": ("contrast", "fog"), "limit": 6}
    whole = ask(tmp_path / "a.json", images, **asked)
    got = ask(tmp_path / "b.json", images, **asked, adaptation=None)
    assert got.accuracy("before") == whole.accuracy("before")
    assert not got.has("after")
    assert got.value["clean"] == {"before": whole.value["clean"]["before"]}
    protocol = got.protocol
    assert (protocol["adaptation"], protocol["views"], protocol["own_adaptation"]) == (None, 0, True)


def test_a_model_that_cannot_adapt_has_no_after(tmp_path, digits, images):
    model = make_model(None)
    got = ask(tmp_path / "r.json", images, model, limit=3)
    assert not got.has("after")
    assert set(got.value["corruptions"][0]["rows"]) == {"before"}
    with np.load(tmp_path / "r.npz") as file:
        image = tensor(corruptions.apply(digits.test_images[:1], "contrast", 5))
        np.testing.assert_allclose(file["contrast-5/before"][0], model(image).softmax(1)[0].detach(), atol=1e-6)
    with pytest.raises(InputError, match="nothing is adapted here; drop --controls"):
        ask(tmp_path / "x.json", images, model, controls=True)


def test_rotation_model_is_evaluated(tmp_path, digits, images):
    model = make_model("rotation", hidden=0)
    got = ask(tmp_path / "r.json", images, model, limit=2, adaptation=replace(model.adaptation, steps=2))
    assert got.protocol["adaptation"]["steps"] == 2
    image = tensor(corruptions.apply(digits.test_images[:1], "contrast", 5))
    with np.load(tmp_path / "r.npz") as file:
        np.testing.assert_allclose(file["contrast-5/after"][0], Adapter(model, steps=2)(image).softmax(1)[0], atol=1e-5)


def test_limits_are_checked(tmp_path, images):
    with pytest.raises(InputError, match="at least 2 images"):
        ask(tmp_path / "x.json", images, limit=1, controls=True)
    with pytest.raises(InputError, match="at least one image"):
        ask(tmp_path / "x.json", images, limit=0)
    with pytest.raises(InputError, match="neither"):
        TestImages(None)
