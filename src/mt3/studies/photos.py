"""The demo's first part: the shipped models on real photos, without training."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from mt3.data import load_photos
from mt3.evaluation.protocol import Protocol, TestImages
from mt3.models.store import load
from mt3.studies.beside import (
    STREAM,
    Line,
    Setting,
    about_model,
    draw_turned,
    evaluate_setting,
    lines_of,
    method_line,
    show,
    worth_of_own,
)
from mt3.support.errors import InputError, name_list

META, JOINT = "cifar10-mt3", "cifar10-jt"  # the second is of joint training, the first was meta-trained on from it
PHOTOS = 30  # under each corruption; a step takes most of the time, so this many are seconds
CORRUPTIONS = ("impulse_noise", "motion_blur", "fog", "pixelate")  # a noise, a blur, a weather and a digital one
VIEWS = 8  # a quarter of what the network has by itself


def show_photos(out: Path, device: torch.device, photos: int = PHOTOS) -> str:
    """Evaluate joint training along a stream, and the meta-trained model in several ways; returns what to print.

    Finished parts are not done again.
    """
    images, asked = TestImages(load_photos()), Protocol(CORRUPTIONS, limit=photos)
    meta, joint = (load(name).to(device) for name in (META, JOINT))
    setting = Setting(meta, run=about_model(META), fields={"views": VIEWS})
    ask = partial(evaluate_setting, images=images, asked=asked, folder=out / "mt3")
    alone, online = ask(setting._replace(controls=True)), ask(setting._replace(stream=STREAM))
    aligned = ask(setting._replace(method="plus", stream=STREAM, fields={"batch": 8}))
    table, verdict = show([*lines_of("MT", alone, online, "MT3"), method_line("MT", "plus", None, aligned)])
    stream = partial(Setting, joint, stream=STREAM, fields={"batch": 8}, run=about_model(JOINT))
    every = TestImages(replace(load_photos(), name="photo-stream"))  # more images, so a report of its own
    follow = partial(evaluate_setting, images=every, asked=Protocol(CORRUPTIONS), folder=out / "jt")
    plus, tent = (follow(stream(method)) for method in ("plus", "tent"))
    lines = [Line("JT as it is", None, (plus, "before")), method_line("JT", "plus", None, plus)]
    joined, best = show([*lines, method_line("JT", "tent", None, tent)])
    try:
        figure = draw_turned(alone, images, load_photos().classes)
    except InputError as error:
        figure = f"no figure: {error}"
    return f"""1. Real photos, networks that come with the package, no training

Accuracy in % on the first {plus.protocol["images"]} test photos of CIFAR-10 under each of {name_list(CORRUPTIONS)},
severity 5, one corruption after the other as a stream. JT is a network of 26 layers from joint training. `plus` gives
its channels the mean and deviation back that they have on training images; TENT, a rival, takes gradient steps.

{joined}

{best}

The first {photos} of these photos: MT is JT, meta-trained on for a step on random views of an image; after the step it
is MT3. It takes {VIEWS} views here, by itself {meta.adaptation.views}.
Each image by itself: the step is discarded. Along a stream: it is kept.

{table}

{verdict}
{worth_of_own(alone)}
{figure}"""
