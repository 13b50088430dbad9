"""Limits of time, of memory and of numbers, and a shutdown that finishes what was begun."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

import mt3
from mt3.cli.main import main
from mt3.service import engine as engine_module
from mt3.service.limits import Limits
from serving import ask, encoded, served, served_model


def talk(url: str, *parts: bytes, pause: float = 0.0) -> bytes:
    """Send bytes with pauses, and give what comes back until the server closes or has answered."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    with socket.create_connection((host, port), timeout=30) as line:
        for part in parts:
            line.sendall(part)
            time.sleep(pause)
        answer = b""
        while b"\r\n\r\n" not in answer or len(answer.split(b"\r\n\r\n", 1)[1]) < _length(answer):
            got = line.recv(65536)
            if not got:
                break
            answer += got
    return answer


def _length(answer: bytes) -> int:
    head = answer.split(b"\r\n\r\n")[0].lower()
    return int(head.split(b"content-length:")[1].split()[0]) if b"content-length:" in head else 0


def head(length: int, *lines: str) -> bytes:
    words = ("POST /predict HTTP/1.1", "host: x", "content-type: application/json", f"content-length: {length}", *lines)
    return "\r\n".join([*words, "", ""]).encode()


def test_a_body_that_comes_too_slowly_is_503_in_one_sentence():
    with served(body_seconds=0.3) as url:
        began = time.monotonic()
        answer = talk(url, head(100), b"{")
        assert time.monotonic() - began < 5
        assert answer.startswith(b"HTTP/1.1 503 ")
        told = json.loads(answer.split(b"\r\n\r\n")[1])
        assert told == {"error": "The body did not come within 0.3 seconds; send it faster."}
        assert ask(f"{url}/health")[0] == 200


def test_a_client_that_waits_for_a_word_is_refused_before_it_sends():
    with served(body_mb=1) as url:
        answer = talk(url, head(10**9, "expect: 100-continue"))
        assert answer.startswith(b"HTTP/1.1 413 ")


def test_a_body_without_a_length_is_bounded_too():
    with served(body_mb=1) as url:
        start = head(0).replace(b"content-length: 0", b"transfer-encoding: chunked")
        chunk = b"40000\r\n" + b" " * 0x40000 + b"\r\n"
        assert talk(url, start, *[chunk] * 5, b"0\r\n\r\n").startswith(b"HTTP/1.1 413 ")


def test_a_client_that_goes_away_leaves_nothing_behind():
    with served() as url:
        with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port)) as line:
            line.sendall(head(1000) + b"{")
        deadline = time.monotonic() + 10
        while 'status="499"' not in (text := ask(f"{url}/metrics")[1].decode()):
            assert time.monotonic() < deadline
        assert "mt3_requests_running 1\n" in text  # the one that asks


def test_bodies_held_at_a_time_are_bounded(monkeypatch):
    with served(body_mb=2, held_mb=2) as url:
        host, port = urlsplit(url).hostname, urlsplit(url).port
        with socket.create_connection((host, port)) as line:
            line.sendall(head(1_900_000) + b" " * 1_500_000)
            deadline = time.monotonic() + 10
            while True:  # until the other one's part is there
                status, told = ask(f"{url}/predict", b" " * 600_000)
                if status == 429 or time.monotonic() > deadline:
                    break
        assert (status, told["error"]) == (429, "The server holds too many uploads at the moment; try again later.")


@pytest.fixture
def slow(monkeypatch):
    """Answers wait until they are let go."""
    begun, go, real = threading.Event(), threading.Event(), engine_module.predict

    def predict(model, images, *rest, **more):
        if rest:  # not the first pass, which the server makes for itself
            begun.set()
            go.wait(30)
        return real(model, images, *rest, **more)

    monkeypatch.setattr(engine_module, "predict", predict)
    yield begun, go
    go.set()


def test_a_full_queue_is_429_and_says_when_to_come_again(slow, photos):
    begun, go = slow
    body = {"images": [encoded(photos[0])]}
    with served(stack=1, queue=2, images=2) as url, ThreadPoolExecutor(4) as pool:
        first = pool.submit(ask, f"{url}/predict", body)
        assert begun.wait(10)
        second = pool.submit(ask, f"{url}/predict", {"images": body["images"] * 2})
        while ask(f"{url}/health")[1]["waiting"] < 2:
            time.sleep(0.01)
        status, told = ask(f"{url}/predict", body)
        assert (status, told["error"]) == (429, "2 images wait already, of 2; try again later.")
        go.set()
        assert [first.result()[0], second.result()[0]] == [200, 200]
        assert len(second.result()[1]["answers"]) == 2


def test_an_answer_that_takes_too_long_is_503(slow, photos):
    _, go = slow
    with served(seconds=0.3) as url:
        status, told = ask(f"{url}/predict", {"images": [encoded(photos[0])]})
        assert (status, told["error"]) == (
            503, "There was no answer within 0.3 seconds; try again later, or ask for less.",
        )  # fmt: skip
        go.set()
        time.sleep(0.1)
        assert ask(f"{url}/health")[0] == 200


def test_more_requests_at_a_time_than_are_answered_are_429(slow, photos):
    begun, go = slow
    with served(requests=1) as url, ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, f"{url}/predict", {"images": [encoded(photos[0])]})
        assert begun.wait(10)
        assert ask(f"{url}/predict", {"images": []}) == (
            429, {"error": "1 requests are being answered already; try again later."},
        )  # fmt: skip
        assert ask(f"{url}/health")[0] == 200  # which is for those who watch
        go.set()
        assert first.result()[0] == 200


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"stack": 0}, "Expected stack to be a whole number from 1 to 1024, got 0."),
        ({"seconds": float("inf")}, "Expected seconds to be a number from 0.001 to 3600, got inf."),
        ({"queue": 4}, "Expected a queue of at least the 16 images of a request, got 4."),
    ],
)
def test_limits_that_make_no_sense_are_refused(wrong, sentence):
    with pytest.raises(mt3.InputError) as error:
        Limits(**wrong)
    assert str(error.value) == sentence


@pytest.mark.parametrize("missing", ["uvicorn", "fastapi", "python_multipart"])
def test_without_the_extra_a_sentence_says_what_to_install(capsys, monkeypatch, missing):
    for name in [name for name in sys.modules if name.startswith("mt3.service.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(["serve"]) == 2
    told = f"mt3: Serving needs {missing}; install the extra, `pip install 'mt3[serve]'`.\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--stack", "0"], "expected a whole number from 1 to 999999999, got '0'"),
        (["--seconds", "-1"], "Expected seconds to be a number from 0.001 to 3600, got -1.0."),
        (["--images", "99"], "Expected a queue of at least the 99 images of a request, got 64."),
        (["nowhere"], "is not there; train one with `mt3 train`."),
        (["--port", "99999"], "Cannot listen at 127.0.0.1:99999 ("),
        (["--host", "no such host"], "Cannot listen at no such host:8000 ("),
    ],
)
def test_a_server_that_cannot_be_is_refused_in_one_sentence(capsys, words, sentence):
    assert main(["serve", *words]) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1


def test_a_method_whose_own_views_are_too_many_is_refused(photos):
    body = {"images": [encoded(photos[0])]}
    with served(max_views=4) as url:
        assert ask(f"{url}/predict", body)[0] == 200
        status, told = ask(f"{url}/predict", body | {"options": {"method": "memo"}})
        assert (status, told["error"]) == (422, "Expected views to be a whole number from 0 to 4, got 32.")
        assert ask(f"{url}/predict", body | {"options": {"method": "memo", "views": 4}})[0] == 200


@pytest.fixture
def process(tmp_path):
    """`mt3 serve` in a process of its own, with its address."""
    served_model().save_pretrained(tmp_path / "model")
    words = [sys.executable, "-m", "mt3", "serve", str(tmp_path / "model"), "--port", "0", "--stack", "1"]
    started = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert started.stdout is not None
    line = started.stdout.readline()
    assert line.startswith("model is served at http://127.0.0.1:"), line
    yield started, line.split()[4].rstrip("/")
    if started.poll() is None:
        started.kill()
    started.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_after_what_was_begun(process, photos, number):
    started, url = process
    body = {"images": [encoded(photo) for photo in photos[:16]], "options": {"steps": 4, "views": 16}}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, f"{url}/predict", body)
        while ask(f"{url}/health")[1]["waiting"] < 8:
            time.sleep(0.01)
        os.kill(started.pid, number)
        status, got = answer.result()
    out, err = started.communicate(timeout=30)
    assert (status, len(got["answers"])) == (200, 16)
    assert (started.returncode, out, err) == (0, "stopped\n", "")
    with pytest.raises(OSError, match="refused"):
        ask(f"{url}/health")


def test_a_port_that_is_taken_is_one_sentence(process):
    _, url = process
    words = [sys.executable, "-m", "mt3", "serve", "--port", str(urlsplit(url).port)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"mt3: Cannot listen at 127.0.0.1:{urlsplit(url).port} (Address already in use); give another --host or "
        "--port.\n"
    )
