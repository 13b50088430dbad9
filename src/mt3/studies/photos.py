"""The demo's first part: the shipped models on real photos, without training."""

from functools import partial
from pathlib import Path

import torch

from mt3.data import load_photos
from mt3.evaluation.protocol import Protocol, TestImages
from mt3.models.store import load
from mt3.studies.beside import STREAM, Setting, draw_turned, evaluate_setting, lines_of, method_line, show
from mt3.support.errors import InputError

META, JOINT = "cifar10-cpu", "cifar10-jt"  # a small meta-trained network, and a larger one of joint training
PHOTOS = 60  # under each corruption
CORRUPTIONS = ("impulse_noise", "motion_blur", "fog", "pixelate")  # a noise, a blur, a weather and a digital one
VIEWS = 8  # of what they have by themselves a half and a quarter, so that it takes no longer than a minute or so


def show_photos(out: Path, device: torch.device, photos: int = PHOTOS) -> str:
    """Evaluate both models in several ways; returns what to print. Finished parts are not done again."""
    images, few = TestImages(load_photos()), {"views": VIEWS}
    ask = partial(evaluate_setting, images=images, asked=Protocol(CORRUPTIONS, limit=photos))
    meta, joint = (load(name).to(device) for name in (META, JOINT))
    meta_alone = ask(Setting(meta, "own", controls=True, fields=few), folder=out / "mt3")
    meta_online = ask(Setting(meta, "own", STREAM, fields=few), folder=out / "mt3")
    of_joint = partial(ask, folder=out / "jt")
    joint_alone, joint_online = (of_joint(Setting(joint, "own", stream, fields=few)) for stream in (None, STREAM))
    small, small_verdict = show(lines_of("MT", meta_alone, meta_online, "MT3"))
    larger, larger_verdict = show(
        [
            *lines_of("JT", joint_alone, joint_online, "TTT"),
            method_line("JT", "average", of_joint(Setting(joint, "average", fields=few)), None),
            method_line("JT", "tent", None, of_joint(Setting(joint, "tent", STREAM))),
        ]
    )
    try:
        figure = draw_turned(meta_alone, images, load_photos().classes)
    except InputError as error:
        figure = f"no figure: {error}"
    return f"""1. Real photos, networks that come with the package, no training

Accuracy in % on the first {photos} test photos of CIFAR-10 under {len(CORRUPTIONS)} corruptions, severity 5. A network
adapts by a step on random views of an image. Each image by itself: the step is discarded. Along a stream: it is kept,
one corruption after the other. MT is a small network of 8 layers, meta-trained for this step; after it, it is MT3.

{small}

{small_verdict}
{figure}

JT is a network of 26 layers, trained at length and jointly on the classes and the agreement of views; after the step it
is called TTT. The average of copies and TENT, which makes answers surer, are rivals that need no special training.

{larger}

{larger_verdict}"""
