"""`mt3 predict`: answers for image files."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import mt3
from commands import run
from mt3.data import load_digits
from mt3.data.image_files import read_image


def test_predict_shuts_the_gate(capsys, runs, picture):
    def answer(method: str, *more: str) -> dict[str, Any]:
        code, text, _ = run(capsys, "predict", runs / method, picture, "--json", *more)
        assert code == 0
        return json.loads(text)[0]

    shut = answer("mt3", "--gate", "0")
    assert shut["after"] == shut["before"] != answer("mt3")["after"]
    assert (shut["adapted"], answer("mt3")["adapted"]) == (False, True)
    line = run(capsys, "predict", runs / "mt3", picture, "--gate", "0")[1]
    assert line.endswith("% before (not adapted)\n")
    assert answer("baseline")["adapted"] is False


@pytest.mark.parametrize("option", ["--views", "--steps"])
def test_numbers_without_bounds_are_refused(capsys, runs, picture, option):
    code, _, err = run(capsys, "predict", runs / "mt3", picture, option, "999999999")
    low = 1 if option == "--views" else 0
    sentence = f"Expected {option[2:]} to be a whole number from {low} to 10000, got 999999999."
    assert (code, err) == (2, f"mt3: {sentence}\n")


def test_predict_says_what_it_converted(capsys, runs, tmp_path):
    Image.fromarray(np.zeros((40, 64), dtype=np.uint8)).save(tmp_path / "wide.png")
    code, out, err = run(capsys, "predict", runs / "mt3", tmp_path / "wide.png", "--lr", "0.01")
    assert code == 0
    assert "grey repeated in three channels, 64x40 cut to its centre square and scaled to 32x32" in err
    assert out.startswith(f"{tmp_path / 'wide.png'}: ")
    assert "after adapting" in out


def test_a_model_of_the_package_goes_by_its_name(capsys, runs, tmp_path, picture, monkeypatch):
    monkeypatch.setattr("mt3.models.store.shipped_models", lambda: {"tiny": runs / "mt3"})
    monkeypatch.chdir(tmp_path)
    ours = mt3.load(runs / "mt3").state_dict()
    assert all(torch.equal(value, ours[name]) for name, value in mt3.load("tiny").state_dict().items())
    answers = [run(capsys, "predict", model, picture, "--json") for model in ("tiny", runs / "mt3")]
    assert answers[0] == answers[1]
    assert answers[0][0] == 0
    code, _, err = run(capsys, "evaluate", "tiny", "--limit", "2", "--corruptions", "none")
    assert (code, err.count("\n")) == (2, 1)
    assert "comes with the package, where no results go; give --out" in err
    words = ["--limit", "2", "--corruptions", "none", "--out", tmp_path / "r.json"]
    assert run(capsys, "evaluate", "tiny", *words)[0] == 0
    assert json.loads((tmp_path / "r.json").read_text())["protocol"]["run"]["seed"] == 3  # of the run that it is
    code, _, err = run(capsys, "predict", "tin", picture)
    assert code == 2
    assert "Expected a run or model directory or tiny, but tin is not there" in err
    (tmp_path / "tiny").mkdir()  # of another kind, and no model
    assert run(capsys, "predict", "tiny", picture, "--json") == answers[0]
    assert run(capsys, "evaluate", "tiny", "--limit", "2", "--corruptions", "none")[0] == 2
    (tmp_path / "tiny" / "run.json").write_text('{"config": {}}')  # a run of that name comes first
    code, _, err = run(capsys, "predict", "tiny", picture)
    assert code == 2
    assert "tiny has no config.json" in err


def test_an_answer_that_is_not_finite_is_refused(capsys, runs, picture):
    code, out, err = run(capsys, "predict", runs / "mt3", picture, "--lr", "1e30")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "The model's answer is not finite; lower lr" in err


def test_predict_takes_another_method(capsys, runs, picture):
    """Each image by itself: what the adapter answers, also for a model with no way of its own."""
    code, text, _ = run(capsys, "predict", runs / "baseline", picture, "--json", "--method", "memo", "--lr", "0.01")
    (answer,) = json.loads(text)
    images = torch.from_numpy(read_image(picture, 32)[0].copy()).permute(2, 0, 1)[None]
    wanted = mt3.Adapter(mt3.load(runs / "baseline"), "memo", lr=0.01)(images).softmax(1)[0]
    assert (code, answer["adapted"]) == (0, True)
    assert answer["after"]["probability"] == pytest.approx(wanted.max().item(), abs=1e-6)
    assert answer["after"]["probability"] != answer["before"]["probability"]


def test_predict_follows_a_stream(capsys, runs, tmp_path):
    """The files are the stream, in their order: a group is answered by what the groups before it told."""
    files = [tmp_path / f"{i}.png" for i in range(5)]
    for file, image in zip(files, load_digits().test_images, strict=False):
        Image.fromarray(image).save(file)
    words = ["--json", "--method", "tent", "--carry", "stream", "--batch", "2", "--answer", "first", "--lr", "0.1"]
    code, text, err = run(capsys, "predict", runs / "jt", *files, *words)
    answers = json.loads(text)
    images = torch.stack([torch.from_numpy(read_image(file, 32)[0].copy()).permute(2, 0, 1) for file in files])
    told = {"carry": "stream", "batch": 2, "answer": "first", "lr": 0.1}
    wanted = mt3.Adapter(mt3.load(runs / "jt"), "tent", **told)(images).softmax(1)
    assert code == 0
    assert "a stream: 2 of 5 images are answered by the model as it is, the other 3 by what it has become" in err
    assert [a["after"]["probability"] for a in answers] == pytest.approx(wanted.amax(1).tolist(), abs=1e-6)
    assert [a["after"] == a["before"] for a in answers] == [True, True, False, False, False]
    assert [a["adapted"] for a in answers] == [False, False, True, True, True]
    assert "loss_before" not in answers[0]


def test_a_stream_shorter_than_a_group_is_not_adapted(capsys, runs, picture):
    code, text, err = run(capsys, "predict", runs / "jt", picture, "--json", "--method", "tent", "--carry", "stream")
    (answer,) = json.loads(text)
    assert (code, answer["adapted"], answer["after"]) == (0, False, answer["before"])
    assert "a stream: 1 of 1 images are answered by the model as it is\n" in err


def test_lame_answers_by_the_images_at_hand(capsys, runs, picture):
    code, text, err = run(capsys, "predict", runs / "jt", picture, picture, "--json", "--method", "lame")
    assert (code, [a["adapted"] for a in json.loads(text)], err) == (0, [True, True], "")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["baseline", "--steps", "2"], "drop --steps, or give a --method"),
        (["jt", "--method", "plus"], "a run for which `mt3 moments` has written them"),
        (["jt", "--method", "pluss"], "Unknown method 'pluss' (did you mean 'plus'?)"),
        (["jt", "--gate", "0.5", "--carry", "stream"], "leave the gate at 1"),
        (["jt", "--carry", "streams"], "streams"),
        (["jt", "--method", "memo", "--batch", "8"], "batch=8 would do nothing: there is no stream"),
        (["jt", "--method", "t3a", "--lr", "5"], "lr=5.0 would do nothing: the method takes no step"),
        (["jt", "--method", "t3a", "--views", "7"], "views=7 would do nothing: the method draws no copies"),
        (["jt", "--method", "plus", "--reset", "guard"], "reset=guard would do nothing: it watches steps"),
        (["jt", "--method", "lame", "--answer", "first"], "answer=first would do nothing: the method keeps nothing"),
        (["jt", "--carry", "stream", "--reset", "shift"], "Nothing here tells of a shift"),
        (["jt", "--support", "3"], "support=3 would do nothing: the method has no such number"),
    ],
)
def test_predict_refuses_what_does_not_go_together(capsys, runs, picture, words, told):
    code, out, err = run(capsys, "predict", runs / words[0], picture, *words[1:])
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert told in err
