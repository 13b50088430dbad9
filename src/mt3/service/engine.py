"""What a server computes: answers, their explanation, and corrupted images; one at a time, whoever asks."""

import asyncio
import base64
import contextlib
import io
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mt3 import corruptions
from mt3.adaptation.adapter import Adapter
from mt3.adaptation.choose import choose_adaptation, objective_of
from mt3.adaptation.views import DrawnViews
from mt3.config.adaptation import Adaptation
from mt3.config.rivals import get_rival
from mt3.data.image_files import read_image_bytes
from mt3.evaluation.predict import as_tensor, predict, predict_next, refuse_shift
from mt3.models.classifier import MT3Model
from mt3.service.batching import Batcher, Run
from mt3.service.limits import STREAM_OPTIONS, Limits, Refused, check_options
from mt3.service.metrics import Metrics
from mt3.service.sessions import Sessions
from mt3.service.uploads import Upload
from mt3.support.errors import InputError, check_number

READERS = 2  # images decoded at a time, which bounds the memory of decoding
SHOWN_VIEWS = 8  # pairs, or single ones
EXPLAINED_STEPS = 5  # at most: the loss after each of M steps takes M (M + 1) / 2 of them
NO_CORRUPTION = "none"
STREAMS = ("own", "plus", "tent", "sar", "t3a")  # what the page offers; a request may name any method

Pixels = NDArray[np.uint8]
Read = tuple[Pixels, list[str]]  # an image, and what was done to it
Found = TypeVar("Found")


class Engine:
    """A model, the thread that computes with it, and the threads that read images."""

    def __init__(self, model: MT3Model, limits: Limits, metrics: Metrics | None = None) -> None:
        if model.size is None:
            raise InputError("This model takes images of any size, and does not say to which to scale them.")
        self.model, self.limits, self.size = model.eval(), limits, model.size
        self.metrics = metrics or Metrics()
        # half of the time that an answer may take: images before it may ask for more than those before them
        self.batcher = Batcher(limits.stack, limits.wait, limits.queue, limits.seconds / 2, self.metrics.group)
        self.readers = ThreadPoolExecutor(READERS, "mt3-read")
        self.sessions = Sessions(limits)
        self.metrics.gauges["mt3_streams_open"] = ("Streams that are remembered.", lambda: len(self.sessions))
        self.metrics.gauges["mt3_images_waiting"] = ("Images in the queue.", lambda: len(self.batcher))
        predict(self.model, [np.zeros((self.size, self.size, 3), np.uint8)])  # the first pass is slow

    def close(self) -> None:
        """Finish what was begun."""
        self.readers.shutdown()
        self.batcher.close()

    def adaptation(self, options: Any) -> Adaptation | None:
        """How to adapt: as the model does, with what a request replaces; none for a model without a way of its own."""
        fields = dict(check_options(options, self.limits))
        if not fields and self.model.objective is None:
            return None
        adaptation = choose_adaptation(self.model, fields.pop("method", None), fields)
        if adaptation.carry == "stream":
            raise InputError("This method answers along a stream, not for single images; begin one with POST /streams.")
        Adapter(self.model, adaptation)  # refuses what does not go with the model
        return self._within_limits(adaptation)

    def _within_limits(self, adaptation: Adaptation) -> Adaptation:
        """Refuse a method whose own steps or views are too many; what the model was trained for may be."""
        for name, most in (("steps", self.limits.max_steps), ("views", self.limits.max_views)):
            check_number(name, getattr(adaptation, name), 0, max(most, getattr(self.model.adaptation, name)))
        return adaptation

    def begin_stream(self, options: Any) -> tuple[str, Adaptation]:
        """A new stream's id, and how it adapts: steps have a guard, unless the options say otherwise."""
        fields = check_options(options, self.limits, STREAM_OPTIONS) | {"carry": "stream"}
        adaptation = choose_adaptation(self.model, fields.pop("method", None), fields)
        if adaptation.takes_steps and "reset" not in fields:
            adaptation = replace(adaptation, reset="guard")
        refuse_shift(adaptation)
        adapter = Adapter(self.model, self._within_limits(adaptation))
        return self.sessions.begin(adapter), adaptation

    async def predict_next(self, stream: str, uploads: Sequence[Upload]) -> list[dict[str, Any]]:
        """Answers to the next images of a stream."""
        read = await self.read(uploads)
        images = [image for image, _ in read]
        # found after the images were read, and asked under a key of its own: requests come in the order of their turn
        (answers,) = await self.compute(object(), [images], partial(_predict_next, self.sessions.find(stream)))
        return _with_names(uploads, read, answers)

    async def predict(self, uploads: Sequence[Upload], options: Any) -> list[dict[str, Any]]:
        """An answer for each image, as `mt3 predict --json` has it."""
        adaptation = self.adaptation(options)
        read = await self.read(uploads)
        answers = await self.compute(
            adaptation, [image for image, _ in read], partial(_predict, self.model, adaptation)
        )
        return _with_names(uploads, read, answers)

    async def explain(self, upload: Upload, options: Any) -> dict[str, Any]:
        """An answer with what led to it."""
        adaptation = self.adaptation(options)
        if adaptation is not None:
            check_number("steps", adaptation.steps, 0, min(EXPLAINED_STEPS, self.limits.max_steps))
        ((image, notes),) = await self.read([upload])
        found: dict[str, Any]
        (found,) = await self.compute(object(), [image], partial(_explain, self.model, adaptation))
        return {"image": upload.name, "converted": notes} | found

    async def corrupt(self, upload: Upload, name: Any, severity: Any, seed: Any) -> bytes:
        """The image as the model would get it, corrupted, as a PNG file."""
        ((image, _),) = await self.read([upload])
        check_number("the seed", seed, 0, 2**32 - 1)
        return await self._in_time(self._elsewhere(_corrupt, image, name, severity, seed))

    async def read(self, uploads: Sequence[Upload]) -> list[Read]:
        """Decode images, cut them and scale them to the model's size."""
        return await self._in_time(asyncio.gather(*(self._elsewhere(self._read, upload) for upload in uploads)))

    async def compute(self, key: Hashable, items: Sequence[Any], run: Run) -> list[Any]:
        """Let the one thread do this, together with what others asked for under the same key."""
        futures = [asyncio.wrap_future(future) for future in self.batcher.submit(key, items, run)]
        return await self._in_time(asyncio.gather(*futures))

    async def _in_time(self, work: Awaitable[Found]) -> Found:
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await work
        except TimeoutError:
            sentence = f"There was no answer within {self.limits.seconds:g} seconds; try again later, or ask for less."
            raise Refused(503, sentence, 10) from None

    def _elsewhere(self, work: Callable[..., Found], *given: Any) -> "asyncio.Future[Found]":
        try:
            return asyncio.get_running_loop().run_in_executor(self.readers, work, *given)
        except RuntimeError:  # the threads have ended
            raise Refused(503, "The server is shutting down; try again in a moment.", 5) from None

    def _read(self, upload: Upload) -> Read:
        return read_image_bytes(upload.content, self.size, upload.name, self.limits.megapixels * 10**6)


def _with_names(uploads: Sequence[Upload], read: Sequence[Read], answers: Sequence[dict[str, Any]]) -> list[Any]:
    return [
        {"image": upload.name, "converted": notes} | answer
        for upload, (_, notes), answer in zip(uploads, read, answers, strict=True)
    ]


def _predict_next(adapter: Adapter, requests: list[list[Pixels]]) -> list[list[dict[str, Any]]]:
    return [predict_next(adapter, images) for images in requests]


def stream_methods(model: MT3Model) -> dict[str, str]:
    """Of the methods made for streams, those that can follow one of single images with this model, and their titles."""
    found = {}
    for name in STREAMS:
        with contextlib.suppress(InputError):
            Adapter(model, name, carry="stream")
            found[name] = get_rival(name).title
    return found


def _predict(model: MT3Model, adaptation: Adaptation | None, images: list[Pixels]) -> list[dict[str, Any]]:
    return predict(model, images, adaptation)


def _explain(model: MT3Model, adaptation: Adaptation | None, images: list[Pixels]) -> list[dict[str, Any]]:
    return [explain(model, image, adaptation) for image in images]


def explain(model: MT3Model, image: Pixels, adaptation: Adaptation | None) -> dict[str, Any]:
    """An answer with all probabilities, the loss after every step, the first views, and the seconds of the answer.

    The losses are of the views of the first step, so that they can be compared.
    """
    began = time.perf_counter()
    answer = predict(model, [image], adaptation, everything=True)[0]
    seconds = time.perf_counter() - began
    if adaptation is None:
        return answer | {"seconds": seconds, "losses": [], "views": []}
    shorter = [replace(adaptation, steps=steps) for steps in range(1, adaptation.steps)]
    losses = [predict(model, [image], each)[0]["loss_after"] for each in shorter]
    losses = [answer["loss_before"], *losses, *([answer["loss_after"]] if adaptation.steps else [])]
    return answer | {"seconds": seconds, "losses": losses, "views": _first_views(model, image, adaptation)}


def _first_views(model: MT3Model, image: Pixels, adaptation: Adaptation) -> list[list[str]]:
    """The views of the first step as PNG files in base64; those that are compared with each other are together."""
    objective = objective_of(adaptation)
    if objective is None or not objective.draws_views:
        return []
    (views,) = DrawnViews(model, adaptation, as_tensor(image[None], model.device), 0)(0).images
    together = views.view(-1, adaptation.views, *views.shape[1:]).transpose(0, 1)  # (K, images of a view, 3, H, H)
    pixels = (255 * together[:SHOWN_VIEWS]).round().byte().permute(0, 1, 3, 4, 2).cpu().numpy()
    return [[base64.b64encode(png(view)).decode() for view in group] for group in pixels]


def _corrupt(image: Pixels, name: Any, severity: Any, seed: int) -> bytes:
    if name == NO_CORRUPTION:
        return png(image)
    return png(corruptions.apply(image[None], name, severity, seed)[0])


def png(image: Pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()
