"""A server under twice the load that it can bear, with broken uploads mixed in: `make load`.

python -m benchmarks.load --seconds 300

It starts `mt3 serve` on the loopback address, measures how many images a second it answers, and then sends requests at
twice that rate, whether answers come or not. Every answer of a whole request is compared with `Adapter` alone. It fails
where an answer is wrong, where a broken upload is not refused in the right way, or where the server's memory grows.
"""

import argparse
import asyncio
import base64
import contextlib
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from mt3.adaptation.adapter import Adapter
from mt3.cli.arguments import Parser, number, positive
from mt3.cli.main import run_command
from mt3.evaluation.predict import predict
from mt3.models.store import load
from mt3.service import DEFAULT_MODEL
from mt3.service.describe import EXAMPLES
from mt3.support.errors import InputError
from mt3.support.progress import Progress

CLOSE = 1e-4  # difference of probabilities up to which an answer is the right one
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"views": 4}, {"steps": 2, "views": 4}, {"layers": "norm"})
BROKEN = 0.3  # share of the requests
FLIGHT = 400  # requests at a time at most, so that this side stays bounded, too
GROWTH = 300.0  # MB that the server may grow by under load
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Question:
    """A request, and the statuses that it may get; a whole one has the probabilities that are right, too."""

    kind: str
    body: bytes
    wanted: frozenset[int]
    right: tuple[tuple[str, float], ...] = ()  # class and probability, before and after
    content_type: str = "application/json"
    told_length: int | None = None  # where it is not the body's
    pause: float = 0.0  # seconds between the bytes of a slow body


@dataclass
class Seen:
    """What came back."""

    statuses: Counter[int] = field(default_factory=Counter)
    kinds: Counter[tuple[str, int]] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)  # of whole requests that were answered
    wrong: list[str] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)  # MB


BUSY = frozenset({429, 503})


def questions(model_name: str) -> list[Question]:
    """Whole requests with the answers of `Adapter` alone."""
    model = load(model_name)
    found = []
    for index, (_, file) in enumerate(EXAMPLES):
        options = OPTIONS[index % len(OPTIONS)]
        image = np.asarray(Image.open(file).convert("RGB"))
        (answer,) = predict(model, [image], Adapter(model, **options).adaptation)
        right = tuple((answer[name]["class"], answer[name]["probability"]) for name in ("before", "after"))
        words = {"images": [base64.b64encode(file.read_bytes()).decode()], "options": options}
        found.append(Question("whole", json.dumps(words).encode(), BUSY | {200}, right))
    return found


def broken() -> list[Question]:
    """Uploads that no server can answer, and what each may get."""
    photo = EXAMPLES[0][1].read_bytes()

    def of(images: Sequence[bytes], **words: Any) -> bytes:
        return json.dumps({"images": [base64.b64encode(image).decode() for image in images], **words}).encode()

    whole = of([photo])
    unreadable, too_large = BUSY | {422}, BUSY | {413}
    return [
        Question("truncated image", of([photo[: len(photo) // 2]]), unreadable),
        Question("no image", of([b"these are words, and no image"]), unreadable),
        Question("wrong options", of([photo], options={"steps": "many"}), unreadable),
        Question("wrong JSON", whole[:-9], unreadable),
        Question("wrong type", whole, unreadable, content_type="text/plain"),
        Question("too many images", of([photo] * 17), too_large),
        Question("truncated body", whole[:500], frozenset({0}), told_length=len(whole)),
        # who still sends when the server hangs up may not see its last word
        Question("huge body", b" " * 17_000_000, too_large | {-1}),
        Question("slow body", whole[:40], BUSY | {-1}, told_length=len(whole), pause=0.5),
    ]


async def exchange(port: int, question: Question) -> tuple[int, Any]:
    """The status and the answer; 0 where the client went away, -1 where the server did."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.create_task(reader.read())
    length = len(question.body) if question.told_length is None else question.told_length
    lines = ("POST /predict HTTP/1.1", "host: load", f"content-type: {question.content_type}")
    try:
        writer.write("\r\n".join([*lines, f"content-length: {length}", "connection: close", "", ""]).encode())
        step = 1 if question.pause else max(len(question.body), 1)
        for start in range(0, len(question.body), step):
            writer.write(question.body[start : start + step])
            await writer.drain()
            if question.pause and (await asyncio.wait({answer}, timeout=question.pause))[0]:
                break  # it was told before all was sent
        if question.wanted == {0}:
            return 0, None
        head, _, content = (await answer).partition(b"\r\n\r\n")
        return (int(head.split(b" ", 2)[1]), json.loads(content)) if head else (-1, None)
    except ConnectionError:
        return -1, None
    finally:
        answer.cancel()
        writer.close()


def judge(question: Question, status: int, answer: Any) -> str:
    """What is wrong with an answer; nothing where it is right."""
    if status not in question.wanted:
        return f"{question.kind}: expected one of {sorted(question.wanted)}, got {status}: {str(answer)[:200]}"
    if status != 200:
        return "" if status <= 0 or list(answer) == ["error"] else f"{question.kind}: {str(answer)[:200]}"
    for name, (kind, probability) in zip(("before", "after"), question.right, strict=True):
        got = answer["answers"][0][name]
        if got["class"] != kind or abs(got["probability"] - probability) > CLOSE:
            return f"{question.kind}: {name} should be {kind} {probability:.5f}, is {got}"
    return ""


@contextlib.contextmanager
def server(model: str, *words: str) -> Iterator[tuple[int, int]]:
    """The port and the process of a server of its own."""
    command = [sys.executable, "-m", "mt3", "serve", model, "--port", "0", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if "http://127.0.0.1:" not in line:
            raise InputError("The server did not start; what it printed says why.")
        yield int(line.split("http://127.0.0.1:")[1].split("/")[0]), process.pid
    finally:
        process.terminate()
        code = process.wait(60)
    if code != 0:
        raise InputError(f"The server ended with code {code}, where 0 was expected.")


def resident_mb(process: int) -> float:
    with open(f"/proc/{process}/status") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("VmRSS:")) / 1024


async def capacity(port: int, asked: Sequence[Question], seconds: float) -> float:
    """Whole requests answered in a second, with as many at a time as make full stacks."""
    done, until = 0, time.monotonic() + seconds

    async def client(first: int) -> None:
        nonlocal done
        index = first
        while time.monotonic() < until:
            status, _ = await exchange(port, asked[index % len(asked)])
            done += status == 200
            index += 7

    began = time.monotonic()
    await asyncio.gather(*(client(number) for number in range(32)))
    return done / (time.monotonic() - began)


async def press(port: int, process: int, rate: float, seconds: float, asked: Sequence[Question]) -> Seen:
    """Send requests at a rate, whole and broken ones, whether answers come or not."""
    seen, wrecks, rng = Seen(), broken(), random.Random(0)
    flying: set[asyncio.Task[None]] = set()

    async def one(question: Question) -> None:
        began = time.monotonic()
        try:
            status, answer = await asyncio.wait_for(exchange(port, question), 90)
        except TimeoutError:
            status, answer = -2, None
        seen.statuses[status] += 1
        seen.kinds[question.kind, status] += 1
        if status == 200:
            seen.seconds.append(time.monotonic() - began)
        if told := judge(question, status, answer):
            seen.wrong.append(told)

    began, sent = time.monotonic(), 0
    with Progress("load", int(seconds), "s") as progress:
        while (now := time.monotonic() - began) < seconds:
            while sent < now * rate and len(flying) < FLIGHT:
                question = rng.choice(wrecks) if rng.random() < BROKEN else rng.choice(asked)
                task = asyncio.create_task(one(question))
                flying.add(task)
                task.add_done_callback(flying.discard)
                sent += 1
            if int(now) > progress.done:
                seen.memory.append(resident_mb(process))
                progress.advance(int(now) - progress.done)
            await asyncio.sleep(0.005)
        await asyncio.gather(*flying)
        progress.advance(int(seconds) - progress.done)
    return seen


async def run_load(model: str, seconds: float, warm_up: float, words: Sequence[str] = ()) -> dict[str, Any]:
    """Measure, press, and say what was seen."""
    asked = questions(model)
    with server(model, *words) as (port, process):
        best = await capacity(port, asked, warm_up)
        before = resident_mb(process)
        # of these, the broken ones cost nothing to compute: whole ones alone are twice what the server can answer
        seen = await press(port, process, 2 * best / (1 - BROKEN), seconds, asked)
    times = np.percentile(seen.seconds, PERCENTILES) if seen.seconds else [float("nan")] * len(PERCENTILES)
    total = sum(seen.statuses.values())
    return {
        "benchmark": "load",
        "capacity": best,
        "seconds": seconds,
        "requests": total,
        "latency": {f"p{p}": float(t) for p, t in zip(PERCENTILES, times, strict=True)},
        "share": {str(status): count / total for status, count in sorted(seen.statuses.items())},
        "kinds": {f"{kind}: {status}": count for (kind, status), count in sorted(seen.kinds.items())},
        "memory_mb": {"before": before, "most": max(seen.memory, default=before)},
        "wrong": seen.wrong,
    }


STATUSES = {"200": "answered", "0": "cut off by the client", "-1": "cut off by the server", "-2": "never answered"}


def load_summary(result: dict[str, Any]) -> str:
    """What `make load` prints."""
    share = ", ".join(f"{STATUSES.get(status, status)} {100 * part:.1f} %" for status, part in result["share"].items())
    latency = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in result["latency"].items())
    memory = result["memory_mb"]
    lines = [
        f"capacity: {result['capacity']:.1f} requests of one image a second, in stacks",
        f"load: {result['requests']} requests in {result['seconds']:g} s, whole ones at twice the capacity, and "
        f"{100 * BROKEN:.0f} % broken ones among all",
        f"latency of what was answered: {latency}",
        f"shares: {share}",
        *(f"  {kind} x {count}" for kind, count in result["kinds"].items()),
        f"memory of the server: {memory['before']:.0f} MB before, {memory['most']:.0f} MB at most",
        f"wrong or crossed answers: {len(result['wrong'])}",
    ]
    return "\n".join([*lines, *result["wrong"][:10]])


def check(result: dict[str, Any]) -> None:
    """Refuse what a server must never do."""
    memory = result["memory_mb"]
    if result["wrong"]:
        raise InputError(f"{len(result['wrong'])} answers were wrong, the first: {result['wrong'][0]}")
    if memory["most"] - memory["before"] > GROWTH:
        raise InputError(
            f"The server grew by more than {GROWTH:g} MB, from {memory['before']:.0f} to {memory['most']:.0f}."
        )
    if "200" not in result["share"]:
        raise InputError("No request was answered.")


def _main(args: argparse.Namespace) -> None:
    result = asyncio.run(run_load(args.model, args.seconds, args.warm_up))
    print(load_summary(result))
    check(result)


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m benchmarks.load", description="A server under twice the load that it can bear.")
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help=f"a run, a saved or a shipped model (default: {DEFAULT_MODEL})"
    )
    parser.add_argument("--seconds", type=positive, default=300, help="of load (default: 300)")
    parser.add_argument("--warm-up", type=number, default=15.0, help="seconds to measure the capacity in (default: 15)")
    parser.set_defaults(run=_main, command="load")
    return parser


if __name__ == "__main__":
    sys.exit(run_command(make_parser, None))
