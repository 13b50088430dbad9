"""The load test on a small scale: no answer is wrong, what is broken is refused in the right way, memory stays."""

import asyncio
import contextlib

import pytest

from benchmarks import load, service
from mt3.support.errors import InputError
from serving import served, served_model


def test_a_short_load_is_borne(tmp_path):
    served_model().save_pretrained(tmp_path / "model")
    words = ["--body-seconds", "1", "--queue", "16", "--threads", "1"]
    result = asyncio.run(load.run_load(str(tmp_path / "model"), seconds=4, warm_up=1, words=words))
    load.check(result)
    assert result["wrong"] == []
    assert result["requests"] > 10
    assert sum(result["share"].values()) == pytest.approx(1)
    assert 0 < result["latency"]["p50"] <= result["latency"]["p90"] <= result["latency"]["p99"]
    assert "wrong or crossed answers: 0" in load.load_summary(result)


def test_every_broken_upload_is_refused_as_it_should_be():
    with served(body_seconds=1.0) as url:
        for question in load.broken():
            status, answer = asyncio.run(load.exchange(int(url.rsplit(":")[-1]), question))
            assert load.judge(question, status, answer) == ""
            assert status not in (200, 429)


def test_the_ratios_of_the_service_are_those_of_its_times(monkeypatch):
    """All at once takes 2 s, one after the other 6 s, adapting alone 1 s: a third of the time, half of it computing."""
    times = {"mt3": [2.0, 2.0], service.ONE_BY_ONE: [6.0, 8.0], service.ALONE: [1.0, 1.5]}
    monkeypatch.setattr(service, "alternate", lambda calls, rounds: {name: times[name] for name in calls})
    monkeypatch.setattr(service, "server", lambda *_: contextlib.nullcontext((0, 0)))
    result = service.bench_service(images=4, rounds=2)
    assert result["candidates"][1]["ratio"] == {"median": 3.5, "min": 3.0, "max": 4.0}
    assert result["images_per_second"]["mt3"]["median"] == 2.0
    assert result["share_of_adapter"] == {"median": 0.625, "min": 0.5, "max": 0.75}
    assert "adapting alone would take 62 % (50..75 %)" in service.service_summary(result)
    with pytest.raises(InputError, match="Expected 1 to 30 images, one for each example, got 31"):
        service.bench_service(images=31)


def test_a_wrong_answer_is_found():
    question = load.Question("whole", b"", frozenset({200}), (("cat", 0.5), ("dog", 0.75)))
    right = {
        "answers": [
            {"before": {"class": "cat", "probability": 0.50009}, "after": {"class": "dog", "probability": 0.75}}
        ]
    }
    assert load.judge(question, 200, right) == ""
    for name, change in (("before", {"probability": 0.502}), ("after", {"class": "cat"})):
        wrong = {"answers": [{**right["answers"][0], name: right["answers"][0][name] | change}]}
        assert load.judge(question, 200, wrong).startswith(f"whole: {name} should be ")
    assert load.judge(question, 500, {"error": "x"}).startswith("whole: expected one of [200], got 500")
    fine = {"wrong": [], "memory_mb": {"before": 100.0, "most": 120.0}, "share": {"200": 1.0}}
    load.check(fine)
    for change, sentence in (
        ({"wrong": ["crossed"]}, "1 answers were wrong, the first: crossed"),
        ({"memory_mb": {"before": 100.0, "most": 500.0}}, "The server grew by more than 300 MB, from 100 to 500."),
        ({"share": {"503": 1.0}}, "No request was answered."),
    ):
        with pytest.raises(InputError, match=sentence):
            load.check(fine | change)
