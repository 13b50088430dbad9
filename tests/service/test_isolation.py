"""Many clients at a time get the answers that each would get alone."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import mt3
from mt3.evaluation.predict import as_tensor, predict
from mt3.service import engine
from serving import ask, encoded, served, served_model

CLIENTS = 64
OPTIONS = [{}, {"steps": 2}, {"lr": 1.5}, {"views": 3, "layers": "norm"}, {"gate": 0.2}, {"method": "memo", "lr": 0.3}]


@pytest.fixture(scope="module")
def questions(pixels) -> list[tuple[np.ndarray, bytes, dict]]:
    """An image of its own for each client, and one of a few options."""
    found = []
    for number in range(CLIENTS):
        image = mt3.corruptions.apply(pixels[number % len(pixels)][None], "speckle_noise", 3, seed=number)[0]
        found.append((image, engine.png(image), OPTIONS[number % len(OPTIONS)]))
    return found


def ask_all(url: str, questions) -> list[dict]:
    def one(question) -> dict:
        status, got = ask(f"{url}/predict", {"images": [encoded(question[1])], "options": question[2]})
        assert status == 200, got
        return got["answers"][0]

    with ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(one, questions))


def alone(model: mt3.MT3Model, image: np.ndarray, options: dict) -> dict:
    given = {name: value for name, value in options.items() if name != "method"}
    adapter = mt3.Adapter(model, options.get("method"), **given)
    return predict(model, [image], adapter.adaptation)[0]


def test_answers_in_stacks_are_those_of_an_adapter_alone(questions):
    model = served_model()
    weights = {name: p.clone() for name, p in model.named_parameters()}
    with served(model, wait=0.05, seconds=600.0) as url:
        answers = ask_all(url, questions)
        metrics = ask(f"{url}/metrics")[1].decode()
    for answer, (image, _, options) in zip(answers, questions, strict=True):
        wanted = alone(model, image, options)
        for name in ("before", "after"):
            assert answer[name]["probability"] == pytest.approx(wanted[name]["probability"], abs=1e-4)
            assert answer[name]["class"] == wanted[name]["class"]
        assert answer["loss_after"] == pytest.approx(wanted["loss_after"], abs=1e-4)
    values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    assert float(values["mt3_group_images_sum"]) == CLIENTS
    assert float(values["mt3_group_images_count"]) < CLIENTS / 2  # there were stacks
    assert all(p.equal(weights[name]) for name, p in model.named_parameters())


def test_answers_with_stacks_of_one_are_equal_to_the_bit(questions):
    model = served_model()
    with served(model, stack=1, seconds=600.0) as url:
        answers = ask_all(url, questions)
    for answer, (image, _, options) in zip(answers, questions, strict=True):
        assert answer == {"image": "image 1", "converted": []} | alone(model, image, options)
    image = as_tensor(questions[0][0][None], model.device)
    assert answers[0]["after"]["probability"] == float(mt3.Adapter(model)(image)[0].softmax(-1).max())


def test_one_image_whose_answer_is_not_finite_spoils_no_other(questions, monkeypatch):
    """Both are of one stack, which fails as a whole."""
    black = np.zeros((32, 32, 3), np.uint8)
    real = engine.predict

    def fragile(model, images, adaptation=None, seed=0, everything=False):
        if len(images) > 1 and any((image == black).all() for image in images):
            raise mt3.InputError("The model's answer is not finite; lower lr, or train it again.")
        if (images[0] == black).all() and adaptation is not None:
            raise mt3.InputError("The model's answer is not finite; lower lr, or train it again.")
        return real(model, images, adaptation, seed, everything)

    model = served_model()
    monkeypatch.setattr(engine, "predict", fragile)
    with served(model, wait=0.2, seconds=600.0) as url, ThreadPoolExecutor(3) as pool:
        files = [questions[0][1], engine.png(black), questions[6][1]]
        asked = [pool.submit(ask, f"{url}/predict", {"images": [encoded(file)]}) for file in files]
        got = [future.result() for future in asked]
    assert [status for status, _ in got] == [200, 422, 200]
    for index, (_, answer) in ((0, got[0]), (6, got[2])):
        wanted = alone(model, questions[index][0], {})
        assert answer["answers"][0]["after"]["probability"] == pytest.approx(wanted["after"]["probability"], abs=1e-4)
