"""A server asked by many at a time, by one after the other, and the same images given to `Adapter`."""

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

from benchmarks.floor import machine
from benchmarks.load import Question, exchange, server
from benchmarks.timing import OURS, alternate, compared, ratio, spread
from benchmarks.words import spread_cell
from mt3.data.image_files import read_image
from mt3.evaluation.predict import predict
from mt3.models.store import load
from mt3.results.tables import Cell, Line, Table, markdown
from mt3.service import DEFAULT_MODEL
from mt3.service.describe import EXAMPLES
from mt3.support.errors import InputError

ONE_BY_ONE, ALONE = "one request at a time", "Adapter, without a server"


def bench_service(images: int = 30, rounds: int = 5) -> dict[str, Any]:
    """Seconds for so many images, a request each, with the shipped model."""
    if not 1 <= images <= len(EXAMPLES):
        raise InputError(f"Expected 1 to {len(EXAMPLES)} images, one for each example, got {images}; change --images.")
    about, model = machine(), load(DEFAULT_MODEL)
    files = [file for _, file in EXAMPLES[:images]]
    pixels = [read_image(file, model.size or 32)[0] for file in files]
    asked = [
        Question("", json.dumps({"images": [base64.b64encode(f.read_bytes()).decode()]}).encode(), frozenset({200}))
        for f in files
    ]
    with server(DEFAULT_MODEL, "--threads", str(about["threads"]), "--seconds", "600") as (port, _):

        def at_once() -> None:
            asyncio.run(_all_at_once(port, asked))

        def one_by_one() -> None:
            for question in asked:
                asyncio.run(_all_at_once(port, [question]))

        calls: dict[str, Callable[[], object]] = {OURS: at_once, ONE_BY_ONE: one_by_one}
        seconds = alternate(calls | {ALONE: lambda: predict(model, pixels)}, rounds)
    return {
        "benchmark": "service",
        "images": images,
        "rounds": rounds,
        "candidates": compared(seconds),
        "images_per_second": {name: spread([images / t for t in times]) for name, times in seconds.items()},
        "share_of_adapter": ratio(seconds[ALONE], seconds[OURS]),
        "machine": about,
    }


async def _all_at_once(port: int, asked: list[Question]) -> None:
    answers = await asyncio.gather(*(exchange(port, question) for question in asked))
    refused = [answer for status, answer in answers if status != 200]
    if refused:
        raise InputError(f"The server refused {len(refused)} requests, the first with {refused[0]}.")


def service_summary(result: dict[str, Any]) -> str:
    """The table of `bench_service`."""
    rates = result["images_per_second"]
    lines = tuple(
        Line(
            "service, all at once" if entry["name"] == OURS else entry["name"],
            (spread_cell(entry["seconds"]), spread_cell(entry.get("ratio"), 2), Cell(rates[entry["name"]]["median"])),
        )
        for entry in result["candidates"]
    )
    table = Table("service", "", "candidate", ("seconds", "times the service", "images/s"), lines)
    share = result["share_of_adapter"]
    return "\n".join(
        [
            f"{result['images']} images, a request each: median (min..max) of {result['rounds']} rounds, "
            f"{result['machine']['threads']} threads",
            "",
            markdown(table),
            "",
            f"of the service's time, adapting alone would take {100 * share['median']:.0f} % "
            f"({100 * share['min']:.0f}..{100 * share['max']:.0f} %)",
        ]
    )
