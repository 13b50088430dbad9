"""What each path answers: the values of `mt3 predict`, and one sentence for what is wrong."""

import base64
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import mt3
from mt3.evaluation.predict import predict
from serving import CLASSES, ask, encoded, form, served, served_model


def test_answers_are_those_of_predict(url, photos, pixels):
    model = served_model()
    status, got = ask(f"{url}/predict", {"images": [encoded(p) for p in photos[:2]], "options": {"steps": 2, "lr": 1}})
    assert status == 200
    assert list(got) == ["answers"]
    for number, answer in enumerate(got["answers"]):
        (wanted,) = predict(model, pixels[number : number + 1], replace(model.adaptation, steps=2, lr=1.0))
        assert answer.pop("image") == f"image {number + 1}"
        assert answer.pop("converted") == []
        assert answer.keys() == wanted.keys()
        for name in ("before", "after"):
            assert (answer[name]["class"], answer[name]["index"]) == (wanted[name]["class"], wanted[name]["index"])
            assert answer[name]["probability"] == pytest.approx(wanted[name]["probability"], abs=1e-4)
        assert answer["loss_after"] == pytest.approx(wanted["loss_after"], abs=1e-4)
        assert answer["adapted"] is True


def test_a_form_is_as_good_as_json(url, photos):
    body, kind = form(("images", "a.png", photos[0]), ("images", "", photos[1]), ("options", None, b'{"gate": 0.0}'))
    status, got = ask(f"{url}/predict", body, **{"content-type": kind})
    assert status == 200
    assert [answer["image"] for answer in got["answers"]] == ["a.png", "image 2"]
    assert [answer["adapted"] for answer in got["answers"]] == [False, False]
    assert all(answer["before"] == answer["after"] for answer in got["answers"])


def test_other_images_are_converted_and_it_is_said(url):
    file = io.BytesIO()
    Image.new("L", (60, 40), 99).save(file, "PNG")
    _, got = ask(f"{url}/predict", {"images": [encoded(file.getvalue())]})
    assert got["answers"][0]["converted"] == [
        "grey repeated in three channels", "60x40 cut to its centre square and scaled to 32x32",
    ]  # fmt: skip


def test_an_explanation_has_what_led_to_the_answer(url, photos, pixels):
    model = served_model()
    status, got = ask(f"{url}/explain", {"images": [encoded(photos[3])], "options": {"steps": 3}})
    assert status == 200
    adapters = [mt3.Adapter(model, steps=steps) for steps in (1, 2, 3)]
    image = mt3.evaluation.predict.as_tensor(pixels[3][None], model.device)
    compared = [adapter.compare(image) for adapter in adapters]
    wanted = [compared[0].loss_before.item(), *(c.loss_after.item() for c in compared)]
    assert got["losses"] == pytest.approx(wanted, abs=1e-5)
    np.testing.assert_allclose(got["before"]["probabilities"], compared[0].before[0].softmax(-1), atol=1e-6)
    np.testing.assert_allclose(got["after"]["probabilities"], compared[2].after[0].softmax(-1), atol=1e-5)
    assert got["seconds"] > 0
    views = next(adapters[0].adapt(image)).views.images  # a_1, a_2, then their partners
    assert [len(pair) for pair in got["views"]] == [2, 2]
    for number, pair in enumerate(got["views"]):
        for partner, text in enumerate(pair):
            shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))
            wanted_pixels = (255 * views[2 * partner + number]).permute(1, 2, 0).numpy()
            np.testing.assert_allclose(shown, wanted_pixels, atol=0.51)


def test_a_loss_that_is_not_a_number_is_none(url, photos):
    """SAR leaves out images of which it is not sure, and then has no loss; the answer stays."""
    asked = {"images": [encoded(photos[0])], "options": {"method": "sar"}}
    (answer,) = ask(f"{url}/predict", asked)[1]["answers"]
    assert (answer["loss_before"], answer["loss_after"]) == (None, None)
    assert answer["after"]["probability"] == pytest.approx(answer["before"]["probability"], abs=1e-6)
    assert ask(f"{url}/explain", asked)[1]["losses"] == [None, None]


def test_a_corrupted_image_is_that_of_the_package(url, photos, pixels):
    body, kind = form(("images", "a.png", photos[5]), ("corruption", None, b"fog"), ("severity", None, b"3"))
    status, got = ask(f"{url}/corrupt", body, **{"content-type": kind})
    assert status == 200
    np.testing.assert_array_equal(
        np.asarray(Image.open(io.BytesIO(got))), mt3.corruptions.apply(pixels[5][None], "fog", 3, seed=0)[0]
    )
    _, same = ask(f"{url}/corrupt", {"images": [encoded(photos[5])]})
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(same))), pixels[5])


def test_what_the_server_says_about_itself(url):
    status, about = ask(f"{url}/about")
    assert (status, about["model"], about["size"], about["classes"]) == (200, "small", 32, CLASSES)
    assert about["adaptation"] == served_model().adaptation.to_dict()
    assert about["limits"]["max_steps"] == 10
    assert len(about["examples"]) == 30
    assert [example["class"] for example in about["examples"][::3]] == CLASSES
    assert ask(f"{url}/{about['examples'][4]['file']}")[1][:4] == b"\x89PNG"
    assert ask(f"{url}/health") == (200, {"status": "ok", "model": "small", "waiting": 0})


def test_a_model_without_an_objective_answers_before_alone(photos):
    model = mt3.MT3Model("resnet8x4", 3, objective=None, hidden=8, size=16).eval()
    with served(model) as url:
        _, got = ask(f"{url}/predict", {"images": [encoded(photos[0])]})
        assert (got["answers"][0]["after"], got["answers"][0]["adapted"]) == (None, False)
        _, got = ask(f"{url}/explain", {"images": [encoded(photos[0])]})
        assert (got["losses"], got["views"]) == ([], [])
        assert ask(f"{url}/about")[1]["adaptation"] is None
        status, got = ask(f"{url}/predict", {"images": [encoded(photos[0])], "options": {"steps": 1}})
        assert (status, got["error"][:42]) == (422, "This model has no objective to adapt with;")


def test_a_model_of_any_size_is_refused():
    with pytest.raises(mt3.InputError, match="does not say to which to scale"), served(mt3.MT3Model("resnet8x4", 3)):
        pass


PHOTO = "the photo"  # takes the place of one
BAD = [
    ({"images": []}, 422, "Expected at least one image in the field images, got none."),
    ({"images": {}}, 422, "Expected an object with a list of images"),
    ({"images": ["?"]}, 422, "Expected image 1 as text in base64, got '?'"),
    ({"images": [3]}, 422, "Expected image 1 as text in base64, got a value of JSON's other kinds (int)."),
    ({"images": ["aGFsbG8="]}, 422, "image 1 is not an image that can be read; give a PNG"),
    ({"images": [PHOTO] * 17}, 413, "Expected at most 16 images in a request, got 17; send them apart."),
    ({"images": [PHOTO], "option": {}}, 422, "Unknown field 'option' (did you mean 'options'?)"),
    ({"images": [PHOTO], "options": 3}, 422, "Expected options to be an object"),
    ({"images": [PHOTO], "options": {"step": 1}}, 422, "Unknown option 'step' (did you mean 'steps'?)"),
    ({"images": [PHOTO], "options": {"steps": 11}}, 422, "Expected steps to be a whole number from 0 to 10, got 11."),
    ({"images": [PHOTO], "options": {"steps": True}}, 422, "Expected steps to be a whole number from 0 to 10, got"),
    ({"images": [PHOTO], "options": {"views": 65}}, 422, "Expected views to be a whole number from 1 to 64, got 65."),
    ({"images": [PHOTO], "options": {"lr": -1}}, 422, "Expected lr to be a number from 0.0 to 1e+30, got -1."),
    ({"images": [PHOTO], "options": {"lr": float("nan")}}, 422, "Expected lr to be a number from 0.0 to 1e+30"),
    ({"images": [PHOTO], "options": {"layers": ["all"]}}, 422, "Unknown layers '['all']'"),
    ({"images": [PHOTO], "options": {"lr": 1e30, "steps": 9}}, 422, "The model's answer is not finite; lower lr"),
    ({"images": [PHOTO], "options": {"\ud800": 1}}, 422, "Unknown option '\\ud800'"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status", "sentence"), BAD)
def test_what_is_wrong_gets_one_sentence(url, photos, body, status, sentence):
    body = json.loads(json.dumps(body).replace(PHOTO, encoded(photos[0])))
    got, answer = ask(f"{url}/predict", body)
    assert got == status
    assert list(answer) == ["error"]
    assert answer["error"].startswith(sentence)
    assert "\n" not in answer["error"]


@pytest.mark.parametrize(
    ("path", "kind", "body", "status"),
    [
        ("predict", "application/json", b"{", 422),
        ("predict", "application/json", b"[" * 100_000, 422),
        ("predict", "application/json", b'{"images": [], "options": {"lr": ' + b"9" * 5000 + b"}}", 422),
        ("predict", "application/json", b"\xff\xfe{", 422),
        ("predict", "text/plain", b"hello", 422),
        ("predict", "multipart/form-data", b"no boundary", 422),
        ("predict", "multipart/form-data; boundary=cut", b"--cut\r\nnonsense", 422),
        ("predict", "multipart/form-data; boundary=cut", form(("images", None, b"text"))[0], 422),
        ("predict", "multipart/form-data; boundary=cut", form(("options", "a", b"{}"))[0], 422),
        ("predict", "multipart/form-data; boundary=cut; charset=none", form(("a", None, b"\xff"))[0], 422),
        ("predict", "application/json", b"", 422),
        ("corrupt", "application/json", b'{"images": []}', 422),
        ("nowhere", "application/json", b"{}", 404),
        ("health", "application/json", b"{}", 405),
    ],
)
def test_damaged_bodies_get_one_sentence(url, path, kind, body, status):
    got, answer = ask(f"{url}/{path}", body, **{"content-type": kind})
    assert (got, list(answer)) == (status, ["error"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"corruption": "fogg"}, "Unknown corruption 'fogg' (did you mean 'fog'?)"),
        ({"corruption": ["fog"]}, "Unknown corruption '['fog']'"),
        ({"corruption": "fog", "severity": 6}, "Expected the severity to be a whole number from 1 to 5, got 6."),
        ({"corruption": "fog", "seed": -1}, "Expected the seed to be a whole number from 0 to"),
    ],
)
def test_a_corruption_that_is_none_gets_one_sentence(url, photos, words, sentence):
    status, answer = ask(f"{url}/corrupt", {"images": [encoded(photos[0])]} | words)
    assert status == 422
    assert answer["error"].startswith(sentence)


def test_too_many_images_pixels_or_bytes_are_413(photos):
    huge = io.BytesIO()
    Image.new("1", (1200, 1000)).save(huge, "PNG")
    with served(megapixels=1, body_mb=1, images=2) as url:
        status, answer = ask(f"{url}/predict", {"images": [encoded(huge.getvalue())]})
        assert (status, answer["error"][:42]) == (413, "image 1 has more than the 1 megapixels or ")
        status, answer = ask(f"{url}/predict", b" " * 1_000_001)
        assert (status, answer["error"]) == (
            413, "The body is longer than the 1 MB that are taken; send fewer or smaller images.",
        )  # fmt: skip
        assert ask(f"{url}/explain", {"images": [encoded(photos[0])] * 2})[0] == 413
        assert ask(f"{url}/predict", {"images": [encoded(photos[0])] * 2})[0] == 200


def test_every_answer_tells_the_browser_to_load_nothing_from_elsewhere(url):
    import urllib.request

    for path in ("", "page/page.js", "health"):
        with urllib.request.urlopen(f"{url}/{path}") as answer:
            assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
            assert answer.headers["x-content-type-options"] == "nosniff"


def test_metrics_count_what_was_answered(photos):
    with served() as url:
        ask(f"{url}/predict", {"images": [encoded(photo) for photo in photos[:3]]})
        ask(f"{url}/predict", {"images": []})
        lines = ask(f"{url}/metrics")[1].decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert values['mt3_requests_total{path="/predict",status="200"}'] == "1"
    assert values['mt3_requests_total{path="/predict",status="422"}'] == "1"
    assert values["mt3_request_seconds_count"] == "2"
    assert values["mt3_group_images_sum"] == "3.0"
    assert values["mt3_images_waiting"] == "0"
    assert values["mt3_requests_running"] == "1"  # this one
    assert float(values["process_resident_memory_bytes"]) > 1e7


def test_the_examples_of_the_description_work(url):
    described = ask(f"{url}/openapi.json")[1]
    stream = ask(f"{url}/streams", {})[1]["id"]
    tried = 0
    for path, methods in described["paths"].items():
        for operation in methods.values():
            for body in operation.get("requestBody", {}).get("content", {}).values():
                if "example" in body:
                    status, answer = ask(url + path.replace("{stream}", stream), body["example"])
                    assert str(status) == next(iter(operation["responses"])), answer
                    tried += 1
    assert tried == 5
    assert set(described["paths"]["/predict"]["post"]["responses"]) == {"200", "413", "422", "429", "503"}
