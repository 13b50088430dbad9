"""The demo's first part: the shipped models on real photos, without training."""

from functools import partial
from pathlib import Path

import torch

from mt3.data import load_photos
from mt3.evaluation.protocol import Protocol, TestImages
from mt3.models.store import load
from mt3.studies.beside import STREAM, Setting, draw_turned, evaluate_setting, lines_of, method_line, show
from mt3.support.errors import InputError

JOINT, META = "cifar10-jt", "cifar10-mt3"  # joint training, and meta-training that began from it
PHOTOS = 40  # under each corruption
CORRUPTIONS = ("impulse_noise", "motion_blur", "fog", "pixelate")  # a noise, a blur, a weather and a digital one
VIEWS = 8  # a quarter of what the models were trained for, so that it takes no longer than a minute or two


def show_photos(out: Path, device: torch.device, photos: int = PHOTOS) -> str:
    """Evaluate both models in several ways; returns what to print. Finished parts are not done again."""
    images = TestImages(load_photos())
    joint, meta = (load(name).to(device) for name in (JOINT, META))
    asked = Protocol(CORRUPTIONS, limit=photos)

    few = {"views": VIEWS}
    of_joint = partial(evaluate_setting, images=images, asked=asked, folder=out / "jt")
    of_meta = partial(evaluate_setting, images=images, asked=asked, folder=out / "mt3")
    meta_alone = of_meta(Setting(meta, "own", controls=True, fields=few))
    joint_alone, online = (of_joint(Setting(joint, "own", stream, fields=few)) for stream in (None, STREAM))
    lines = [
        *lines_of("JT", joint_alone, online, "TTT"),
        method_line("JT", "average", of_joint(Setting(joint, "average", fields=few)), None),
        method_line("JT", "tent", None, of_joint(Setting(joint, "tent", STREAM))),
        *lines_of("MT", meta_alone, of_meta(Setting(meta, "own", STREAM, fields=few)), "MT3"),
    ]
    table, verdict = show(lines)
    try:
        figure = draw_turned(meta_alone, images, load_photos().classes)
    except InputError as error:
        figure = f"no figure: {error}"
    return f"""1. Real photos, networks that come with the package, no training

Accuracy in % on the first {photos} test photos of CIFAR-10 under {len(CORRUPTIONS)} corruptions, severity 5. JT was
trained jointly, on the classes and on the agreement of views; MT was meta-trained from it. Each adapts by a step on the
views of an image, and is then called TTT and MT3. Each image by itself: the step is discarded. Along a stream: it is
kept, one corruption after the other.

{table}

{verdict}
{figure}"""
