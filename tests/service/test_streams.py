"""Streams as sessions: their answers, their number, their end, and that none knows of another."""

import time
import urllib.request

import numpy as np
import pytest

import mt3
from mt3.evaluation.predict import as_tensor
from mt3.service import sessions
from mt3.service.limits import Limits, Refused
from serving import ask, encoded, served, served_model

TENT = {"method": "tent", "lr": 0.5, "steps": 1, "batch": 1, "answer": "after"}


def after(answer: dict) -> list[float]:
    return [entry["after"]["probability"] for entry in answer["answers"]]


def test_streams_side_by_side_are_adapters_of_their_own(url, photos, pixels):
    model = served_model()
    options = [TENT, {"lr": 0.2}]
    adapters = [
        mt3.Adapter(model, "tent", carry="stream", reset="guard", **{k: v for k, v in TENT.items() if k != "method"}),
        mt3.Adapter(model, carry="stream", reset="guard", lr=0.2),
    ]
    streams = []
    for given in options:
        status, told = ask(f"{url}/streams", {"options": given})
        assert (status, told["seconds"]) == (201, 600)
        assert (told["adaptation"]["carry"], told["adaptation"]["reset"]) == ("stream", "guard")
        streams.append(told["id"])
    for start in (0, 2, 4):  # in turns
        images = as_tensor(np.stack(pixels[start : start + 2]), model.device)
        for name, adapter in zip(streams, adapters, strict=True):
            body = {"images": [encoded(photo) for photo in photos[start : start + 2]]}
            status, got = ask(f"{url}/streams/{name}/predict", body)
            assert status == 200
            assert after(got) == pytest.approx(adapter(images).softmax(-1).amax(-1).tolist(), abs=1e-4)
            before = adapter.unadapted(images).softmax(-1).amax(-1).tolist()
            assert [entry["before"]["probability"] for entry in got["answers"]] == pytest.approx(before, abs=1e-4)
    _, single = ask(f"{url}/predict", {"images": [encoded(photos[0])]})  # which knows nothing of the streams
    wanted = mt3.Adapter(model)(as_tensor(pixels[0][None], model.device)).softmax(-1).max().item()
    assert after(single) == pytest.approx([wanted], abs=1e-4)


def test_a_stream_ends(url, photos):
    name = ask(f"{url}/streams", {})[1]["id"]
    request = urllib.request.Request(f"{url}/streams/{name}", method="DELETE")
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 204
    status, told = ask(f"{url}/streams/{name}/predict", {"images": [encoded(photos[0])]})
    assert (status, told["error"]) == (404, "There is no such stream here; it ended, or another server process has it.")


def test_streams_are_few_and_those_that_nobody_asks_are_forgotten(photos, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(sessions, "monotonic", lambda: clock[0])
    held = sessions.Sessions(Limits(streams=2, stream_seconds=10.0))
    adapter = mt3.Adapter(served_model(), carry="stream")
    first, second = held.begin(adapter), held.begin(adapter)
    assert first != second
    assert len(first) >= 20
    with pytest.raises(Refused, match="2 streams are open already") as refused:
        held.begin(adapter)
    assert refused.value.status == 429
    clock[0] = 8.0
    held.find(second)
    clock[0] = 15.0
    assert len(held) == 1  # the first was not asked for 15 seconds, the second for 7
    held.begin(adapter)
    with pytest.raises(Refused, match="There is no such stream here"):
        held.find(first)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"options": {"method": "tant"}}, "Unknown method 'tant' (did you mean 'tent'?)"),
        ({"options": {"method": 3}}, "Expected a method's name, got 3."),
        ({"options": {"gate": 0.5}}, "Unknown option 'gate'"),
        ({"options": {"batch": 17}}, "Expected batch to be a whole number from 1 to 16, got 17."),
        ({"options": {"reset": "often"}}, "Unknown reset 'often'"),
        ({"options": {"reset": "shift"}}, "Nothing here tells of a shift"),
        ({"options": {"method": "norm"}}, "The network has no batch normalisation"),
        ({"images": ["AAAA"]}, "Expected no images here, got some; leave them out."),
        ({"method": "tent"}, "Unknown field 'method'"),
    ],
)
def test_what_is_wrong_with_a_stream_gets_one_sentence(url, body, sentence):
    status, told = ask(f"{url}/streams", body)
    assert status == 422
    assert told["error"].startswith(sentence)


def test_methods_of_streams_do_not_answer_single_images(url, photos):
    status, told = ask(f"{url}/predict", {"images": [encoded(photos[0])], "options": {"method": "t3a"}})
    assert status == 422
    assert told["error"] == ("This method answers along a stream, not for single images; begin one with POST /streams.")


def test_what_can_follow_a_stream_is_told(url):
    told = ask(f"{url}/about")[1]["streams"]
    assert [entry["name"] for entry in told] == ["own", "tent", "sar", "t3a"]
    assert [entry["title"] for entry in told] == ["own", "TENT", "SAR", "T3A"]


def test_a_stream_is_forgotten_after_its_time(photos):
    with served(stream_seconds=0.2) as url:
        name = ask(f"{url}/streams", {})[1]["id"]
        assert ask(f"{url}/streams/{name}/predict", {"images": [encoded(photos[0])]})[0] == 200
        time.sleep(0.3)
        assert ask(f"{url}/streams/{name}/predict", {"images": [encoded(photos[0])]})[0] == 404
        assert "mt3_streams_open 0" in ask(f"{url}/metrics")[1].decode()
