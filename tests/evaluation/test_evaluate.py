"""Evaluation against predictions made one by one, its controls, its protocol, resuming and refusals."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import mt3
from mt3 import corruptions
from mt3.adaptation.adapter import Adapter
from mt3.adaptation.averages import image_generator
from mt3.corruptions.write import write_corrupted
from mt3.data import Dataset, load_digits, open_corrupted
from mt3.evaluation.evaluate import TestImages, _bounds, evaluate, make_protocol
from mt3.objectives.augment import apply_views, draw_views
from mt3.results.statistics import unpack_correct
from mt3.support.errors import InputError
from mt3.support.files import own_directory

NAMES = ["gaussian_noise", "contrast"]


def make_model(selfsup: str = "byol", head: str = "mt3") -> mt3.MT3Model:
    model = mt3.MT3Model(
        10, depth=8, width=4, groups=2, hidden=16, projection=8, selfsup=selfsup, head=head, adapt_views=3, adapt_lr=0.5
    )
    model.reset_parameters(torch.Generator().manual_seed(0))
    return model.eval()


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_digits()


@pytest.fixture(scope="module")
def result(tmp_path_factory, digits) -> tuple[dict, dict, Path]:
    out = tmp_path_factory.mktemp("evaluate") / "results.json"
    got = evaluate(
        make_model(), TestImages(digits), NAMES, [3, 5], out, limit=6, controls=True, about={"data": "digits"}
    )
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


def test_protocol_says_whether_the_model_adapts_as_it_is_set(digits):
    def is_default(model: mt3.MT3Model, **settings) -> bool:
        adapter = Adapter(model, **settings) if model.selfsup != "none" else None
        protocol = make_protocol(model, TestImages(digits), [], 2, adapter, False, 0, settings.get("views"), {})
        return protocol["default_adaptation"]

    model = make_model()
    assert is_default(model)
    assert is_default(model, steps=1, lr=0.5, views=3)  # what it does anyway
    assert not is_default(model, steps=2)
    assert not is_default(model, lr=0.1)
    assert not is_default(model, views=4)
    assert is_default(make_model("none"), views=1)  # nothing adapts


def test_evaluations_from_before_that_field_are_kept(tmp_path, digits):
    out = tmp_path / "r.json"
    words = (make_model(), TestImages(digits), ["contrast"], [5], out)
    result = evaluate(*words, limit=2, views=1)
    del result["protocol"]["default_adaptation"]
    out.write_text(json.dumps(result))
    assert evaluate(*words, limit=2, views=1) == result


def test_numbers_follow_from_the_probabilities(result):
    got, arrays, out = result
    assert json.loads(out.read_text()) == got
    labels = arrays["labels"]
    rows = ("before", "after", "view_average", "clean_other", "same_corruption")
    hits = {row: [] for row in rows}
    for entry in got["corruptions"]:
        key = f"{entry['name']}-{entry['severity']}"
        correct = {row: arrays[f"{key}/{row}"].argmax(1) == labels for row in rows}
        for row in rows:
            assert entry[row]["accuracy"] == pytest.approx(100 * correct[row].mean())
            own = arrays[f"{key}/{row}"][np.arange(6), labels]
            assert entry[row]["nll"] == pytest.approx(-np.log(own).mean(), rel=1e-5)
            np.testing.assert_array_equal(unpack_correct(entry["correct"][row], 6), correct[row])
            hits[row].append(correct[row])
        assert entry["fixed"] == (correct["after"] & ~correct["before"]).sum()
        assert entry["broken"] == (correct["before"] & ~correct["after"]).sum()
    assert [(e["name"], e["severity"]) for e in got["corruptions"]] == [(n, s) for s in (3, 5) for n in NAMES]
    for row in rows:
        assert got["average"][row] == pytest.approx(100 * np.mean(hits[row]))
    assert got["gain"]["mean"] == pytest.approx(got["average"]["after"] - got["average"]["before"])
    assert got["adaptation"]["mean"] == pytest.approx(got["average"]["after"] - got["average"]["clean_other"])
    assert got["clean"]["before"]["accuracy"] == pytest.approx(
        100 * np.mean(arrays["clean-0/before"].argmax(1) == labels)
    )


def test_protocol_is_whole(result):
    protocol = result[0]["protocol"]
    want = {
        "data": "digits",
        "split": "test",
        "corruptions": NAMES,
        "severities": [3, 5],
        "images": 6,
        "steps": 1,
        "lr": 0.5,
        "views": 3,
        "seed": 0,
        "controls": True,
        "clean": True,
    }
    assert {k: protocol[k] for k in want} == want
    assert protocol["source"]["kind"] == "generated"
    assert set(protocol["versions"]) == {"mt3", "torch", "numpy", "python"}
    assert len(protocol["model_hash"]) == 32


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_nothing_but_rounding(tmp_path, digits, result, threads, monkeypatch):
    monkeypatch.setattr("mt3.adaptation.adapter.count_threads", lambda model, items: threads)
    evaluate(make_model(), TestImages(digits), NAMES, [3, 5], tmp_path / "r.json", limit=6, controls=True)
    with np.load(tmp_path / "r.npz") as file:
        assert set(file.files) == set(result[1])
        for name in file.files:
            np.testing.assert_allclose(file[name], result[1][name], atol=1e-4)


def test_interrupted_evaluation_resumes(tmp_path, digits, monkeypatch):
    import mt3.evaluation.evaluate as module

    arguments = (make_model(), TestImages(digits), NAMES, [5])
    evaluate(*arguments, tmp_path / "whole.json", limit=60, views=1)
    original, calls = module._predict_piece, []

    def counted(job, source, start, stop):
        calls.append((source, start))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(job, source, start, stop)

    monkeypatch.setattr(module, "_predict_piece", counted)
    out = tmp_path / "cut.json"
    with pytest.raises(KeyboardInterrupt):
        evaluate(*arguments, out, limit=60, views=1)
    assert not out.exists()
    assert len(list((tmp_path / "cut.json.partial").glob("0*.npz"))) == 3
    evaluate(*arguments, out, limit=60, views=1)
    assert len(calls) == 4 + 3  # two pieces of three sources: six, one of them tried twice
    assert len(set(calls)) == 6
    assert out.read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert not (tmp_path / "cut.json.partial").exists()
    evaluate(*arguments, out, limit=60, views=1)
    assert len(calls) == 7  # finished: no work


def test_a_second_evaluation_is_refused_before_it_changes_anything(tmp_path, digits):
    out = tmp_path / "deep" / "r.json"
    words = (make_model(), TestImages(digits), ["contrast"], [5], out)
    with own_directory(tmp_path / "deep" / "r.json.partial"):
        with pytest.raises(InputError, match=r"Another process is writing to .*r\.json\.partial; wait until it ends"):
            evaluate(*words, limit=2, views=1)
        assert [path.name for path in (tmp_path / "deep").iterdir()] == ["r.json.partial"]
        evaluate(*words[:-1], tmp_path / "deep" / "other.json", limit=2, views=1)
    result = evaluate(*words, limit=2, views=1)
    with own_directory(tmp_path / "deep" / "r.json.partial"):
        assert evaluate(*words, limit=2, views=1) == result  # it is finished, so that nothing is written
    for name in ("nowhere", "deep"):
        with pytest.raises(InputError, match="at least 2 images"):
            evaluate(*words[:-1], tmp_path / name / "x.json", limit=1, controls=True)
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "deep", "other.json", "other.npz", "r.json", "r.npz",
    ]  # fmt: skip


def test_one_that_another_process_has_just_finished_is_not_evaluated_again(tmp_path, digits, monkeypatch):
    import mt3.evaluation.evaluate as module

    words = (make_model(), TestImages(digits), ["contrast"], [5], tmp_path / "r.json")
    result = evaluate(*words, limit=2, views=1)
    shares = iter([0.5, 1.0])
    monkeypatch.setattr(module, "share_done", lambda *_: next(shares))
    monkeypatch.setattr(module, "_predict_piece", None)
    assert evaluate(*words, limit=2, views=1) == result
    assert not (tmp_path / "r.json.partial").exists()


def test_leftovers_of_a_kill_are_removed_and_pieces_of_no_protocol_not_used(tmp_path, digits):
    words = (make_model(), TestImages(digits), ["contrast"], [5])
    pieces = tmp_path / "r.json.partial"
    pieces.mkdir()
    np.savez(pieces / "000000-contrast-5.npz", before=np.full((2, 10), 0.1, np.float32))
    for name in (".r.json.abcd_123.tmp", ".r.npz.abcd_123.tmp", ".other.json.abcd_123.tmp"):
        (tmp_path / name).touch()
    for name in (".protocol.json.abcd_123.tmp", ".000000-clean-0.npz.abcd_123.tmp"):
        (pieces / name).touch()
    got = evaluate(*words, tmp_path / "r.json", limit=2, views=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.json.abcd_123.tmp", "r.json", "r.npz"]
    assert got == evaluate(*words, tmp_path / "s.json", limit=2, views=1)


def test_older_results_are_those_of_finished_runs(tmp_path, digits):
    words = (make_model(), TestImages(digits), ["contrast"], [5], tmp_path / "r.json")
    result = evaluate(*words, limit=2, views=1)
    finished = {"trained_steps": 5, "total_steps": 5}
    assert evaluate(*words, limit=2, views=1, about=finished) == result
    for other in (finished | {"trained_steps": 4}, {"total_steps": 5}):
        with pytest.raises(InputError, match="another protocol"):
            evaluate(*words, limit=2, views=1, about=other)
    words = (*words[:-1], tmp_path / "unfinished.json")
    evaluate(*words, limit=2, views=1, about=finished | {"trained_steps": 4})
    with pytest.raises(InputError, match=r"another protocol \(trained_steps differ\)"):
        evaluate(*words, limit=2, views=1, about=finished)


def test_other_protocols_are_not_mixed(tmp_path, digits):
    out = tmp_path / "r.json"
    evaluate(make_model(), TestImages(digits), ["contrast"], [5], out, limit=2)
    before = out.read_bytes()
    with pytest.raises(InputError, match=r"another protocol \(images, seed differ\)"):
        evaluate(make_model(), TestImages(digits), ["contrast"], [5], out, limit=3, seed=1)
    assert out.read_bytes() == before


def test_published_layout_gives_the_same_as_generated(tmp_path, digits, result):
    folder = tmp_path / "digits-c"
    folder.mkdir()
    for name in NAMES:
        parts = [corruptions.apply(digits.test_images[:6], name, severity) for severity in range(1, 6)]
        np.save(folder / f"{name}.npy", np.concatenate(parts))
    np.save(folder / "labels.npy", np.tile(digits.test_labels[:6], 5).astype(np.uint8))
    corrupted = open_corrupted(folder, digits.num_classes)
    got = evaluate(
        make_model(), TestImages(digits, corrupted), NAMES, [3, 5], tmp_path / "r.json", limit=6, controls=True
    )
    evaluated = [
        np.load(folder / f"{name}.npy")[6 * severity - 6 : 6 * severity] for severity in (3, 5) for name in NAMES
    ]
    known_by = hashlib.blake2b(np.concatenate(evaluated).tobytes(), digest_size=16).hexdigest()
    assert got["protocol"]["source"] == {"kind": "directory", "name": "digits-c", "hash": known_by}
    for key in ("average", "gain", "adaptation", "corruptions", "clean"):
        assert got[key] == result[0][key]
    alone = evaluate(make_model(), TestImages(None, corrupted), NAMES, [3, 5], tmp_path / "alone.json", limit=6)
    assert alone["clean"] is None
    assert alone["average"]["after"] == got["average"]["after"]
    with pytest.raises(InputError, match="clean test images"):
        evaluate(make_model(), TestImages(None, corrupted), NAMES, [5], tmp_path / "x.json", controls=True)
    shuffled = Dataset(
        "digits", digits.train_images, digits.train_labels, digits.test_images, digits.test_labels[::-1], digits.classes
    )
    with pytest.raises(InputError, match="are not those of digits's test split"):
        TestImages(shuffled, corrupted)


def test_images_from_a_later_one_on(tmp_path, digits, result):
    """They have the pixels and the answers that they have among all."""
    _, arrays, _ = result
    got = evaluate(make_model(), TestImages(digits, first=2), NAMES, [3, 5], tmp_path / "a.json", limit=4)
    with np.load(tmp_path / "a.npz") as later:
        np.testing.assert_array_equal(later["labels"], arrays["labels"][2:])
        for name in (f"{n}-{s}/{row}" for n in NAMES for s in (3, 5) for row in ("before", "after")):
            np.testing.assert_allclose(later[name], arrays[name][2:], atol=1e-4)
    assert (got["protocol"]["first"], got["protocol"]["images"]) == (2, 4)
    assert "first" not in result[0]["protocol"]
    written = write_corrupted(digits, tmp_path / "c", NAMES, [5], limit=6)
    assert written
    taken = TestImages(digits, open_corrupted(tmp_path / "c"), first=2).take(("contrast", 5), 0, 4)
    np.testing.assert_array_equal(taken, TestImages(digits, first=2).take(("contrast", 5), 0, 4))
    with pytest.raises(InputError, match="lower --first"):
        TestImages(digits, first=len(digits.test_labels))


def test_a_gate_that_everything_passes_leaves_the_averaged_answers(tmp_path, digits):
    images, names = TestImages(digits), ["contrast", "fog"]
    shut = evaluate(make_model(), images, names, [5], tmp_path / "a.json", limit=6, average=3, gate=0.0, controls=True)
    open_ = evaluate(make_model(), images, names, [5], tmp_path / "b.json", limit=6, average=3, gate=1.0)
    with np.load(tmp_path / "a.npz") as a, np.load(tmp_path / "b.npz") as b:
        for name in names:
            before = a[f"{name}-5/before"]
            for row in ("after", "clean_other", "same_corruption"):
                np.testing.assert_allclose(a[f"{name}-5/{row}"], before, atol=1e-6)
            np.testing.assert_allclose(b[f"{name}-5/before"], before, atol=1e-6)
            assert np.abs(b[f"{name}-5/after"] - before).max() > 1e-3
    assert shut["gain"]["mean"] == shut["adaptation"]["mean"] == 0
    assert shut["average"]["before"] == open_["average"]["before"]


def test_unadapted_is_the_same_before(tmp_path, digits):
    images, names = TestImages(digits), ["contrast", "fog"]
    whole = evaluate(make_model(), images, names, [5], tmp_path / "a.json", limit=6)
    got = evaluate(make_model(), images, names, [5], tmp_path / "b.json", limit=6, unadapted=True)
    assert got["average"] == {"before": whole["average"]["before"], "after": None}
    right = {"before": whole["clean"]["correct"]["before"]}
    assert got["clean"] == {"before": whole["clean"]["before"], "correct": right}
    assert "gain" not in got
    assert (got["protocol"]["adapts"], got["protocol"]["views"], got["protocol"]["default_adaptation"]) == (
        False,
        0,
        True,
    )
    with pytest.raises(InputError, match="drop these or --unadapted"):
        evaluate(make_model(), images, names, [5], tmp_path / "c.json", unadapted=True, steps=1)


def test_a_model_that_cannot_adapt_has_no_after(tmp_path, digits):
    model = make_model("none")
    got = evaluate(model, TestImages(digits), ["contrast"], [5], tmp_path / "r.json", limit=3)
    assert got["average"]["after"] is None
    assert set(got["average"]) == {"before", "after", "view_average"}
    with np.load(tmp_path / "r.npz") as file:
        image = tensor(corruptions.apply(digits.test_images[:1], "contrast", 5))
        draws = draw_views(6, image_generator(image[0], 0))
        want = model(apply_views((image.float() / 255).expand(6, -1, -1, -1), draws)).softmax(1).mean(0)
        np.testing.assert_allclose(file["contrast-5/view_average"][0], want.detach(), atol=1e-6)
    with pytest.raises(InputError, match="nothing to adapt with; drop --controls"):
        evaluate(model, TestImages(digits), ["contrast"], [5], tmp_path / "x.json", controls=True)


def test_rotation_model_is_evaluated(tmp_path, digits):
    model = make_model("rotation", "linear")
    got = evaluate(model, TestImages(digits), ["contrast"], [5], tmp_path / "r.json", limit=2, steps=2)
    assert got["protocol"]["steps"] == 2
    image = tensor(corruptions.apply(digits.test_images[:1], "contrast", 5))
    with np.load(tmp_path / "r.npz") as file:
        np.testing.assert_allclose(file["contrast-5/after"][0], Adapter(model, steps=2)(image).softmax(1)[0], atol=1e-5)


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (50, [50]), (51, [26, 25]), (101, [34, 33, 34])])
def test_pieces_are_even(count, sizes):
    assert [stop - start for start, stop in _bounds(count)] == sizes


def test_limits_are_checked(tmp_path, digits):
    with pytest.raises(InputError, match="at least 2 images"):
        evaluate(make_model(), TestImages(digits), ["contrast"], [5], tmp_path / "x.json", limit=1, controls=True)
    with pytest.raises(InputError, match="at least one image"):
        evaluate(make_model(), TestImages(digits), ["contrast"], [5], tmp_path / "x.json", limit=0)
    with pytest.raises(InputError, match="neither"):
        TestImages(None)


def test_another_directory_of_the_same_name_is_another_protocol(tmp_path, digits):
    """Images are known by their bytes: an old result never stands for other images."""
    model, out = make_model(), tmp_path / "r.json"
    for seed in (0, 1):
        write_corrupted(digits, tmp_path / str(seed) / "c", ("gaussian_noise",), [5], limit=4, seed=seed)
    first = TestImages(digits, open_corrupted(tmp_path / "0" / "c"))
    protocol = evaluate(model, first, ["gaussian_noise"], [5], out)["protocol"]
    assert evaluate(model, first, ["gaussian_noise"], [5], out)["protocol"] == protocol
    other = TestImages(digits, open_corrupted(tmp_path / "1" / "c"))
    with pytest.raises(InputError, match="another protocol"):
        evaluate(model, other, ["gaussian_noise"], [5], out)
