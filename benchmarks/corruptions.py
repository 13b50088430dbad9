"""The time of every corruption, on one core. Needs no torch.

There is no peer: public code of the corruptions is for 224 pixels, and several of its functions differ there, too.
"""

import time
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.timing import alternate, spread
from benchmarks.words import range_words
from mt3.corruptions import PAPER, apply, available, parameter_set
from mt3.corruptions.write import check_severities, library_versions
from mt3.data.dataset import Dataset
from mt3.results.tables import Cell, Line, Table, markdown
from mt3.support.errors import InputError, name_list


def bench_corruptions(
    dataset: Dataset, images: int = 128, severity: int = 5, rounds: int = 5, size: int = 32
) -> dict[str, Any]:
    """Milliseconds an image of each corruption that can run here, and of the paper's 15 together, on one core.

    The images are scaled to `size` pixels.
    """
    check_severities([severity])
    used = parameter_set(size)
    batch = dataset.test_images[:images]
    if not len(batch):
        raise InputError(f"Expected at least one image to measure on, got {images}; raise --images.")
    if dataset.size != size:
        batch = np.stack([np.asarray(Image.fromarray(image).resize((size, size))) for image in batch])
    names = available()
    seconds = alternate({name: partial(apply, batch, name, severity) for name in names}, rounds, time.process_time)
    ms = {name: [1000 * s / len(batch) for s in seconds[name]] for name in names}
    paper = [sum(times) for times in zip(*(ms[name] for name in PAPER if name in ms), strict=True)]  # by round
    return {
        "benchmark": "corruptions",
        "data": dataset.name,
        "images": len(batch),
        "size": size,
        "parameter_set": used,
        "severity": severity,
        "rounds": rounds,
        "clock": "processor time",
        "corruptions": [
            {
                "name": name,
                "ms_per_image": spread(ms[name]),
                "images_per_second": spread([1000 / t for t in ms[name]]),
            }
            for name in names
        ],
        "paper": {"ms_per_image": spread(paper), "missing": [name for name in PAPER if name not in names]},
        "versions": library_versions(),
    }


def corruptions_summary(result: dict[str, Any]) -> str:
    """The table of `bench_corruptions`, and the sum over the paper's corruptions."""
    lines = tuple(
        Line(
            entry["name"],
            (
                Cell(entry["images_per_second"]["median"], digits=0),
                Cell(entry["ms_per_image"]["median"], digits=3),
                Cell(text=range_words(entry["ms_per_image"])),
            ),
        )
        for entry in result["corruptions"]
    )
    table = Table("corruptions", "", "corruption", ("images/s", "ms/image", "min..max"), lines)
    missing, total = result["paper"]["missing"], result["paper"]["ms_per_image"]
    words = [
        f"{result['images']} images of {result['data']}, {result['size']} pixels, at severity {result['severity']}, "
        f"one core: median of {result['rounds']} rounds, by processor time",
        "",
        markdown(table),
        "",
        f"{len(PAPER) - len(missing)} of the paper's {len(PAPER)} together: {total['median']:.3f} ms/image "
        f"({range_words(total)})" + (f"; without {name_list(missing)}" if missing else ""),
    ]
    return "\n".join(words)
