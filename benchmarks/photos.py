"""Photos of coloured shapes in a folder for each class, and how fast and in what memory such a folder is read.

python -m benchmarks.photos DIR --photos 10000 --side 64    writes them, unless DIR is there, and reads them twice
python -m benchmarks.photos DIR --photos 3000 --side 48 --write-only
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from mt3.cli.arguments import count, path
from mt3.data import load_folder
from mt3.support.processes import count_cores
from mt3.support.progress import Progress

CLASSES = ("disc", "square", "triangle")
NOISE = 25.0  # standard deviation, of 255


def write_photos(folder: Path, photos: int, side: int, seed: int = 0) -> None:
    """Write JPEG files of a shape in one colour on another, with noise; which shape it is, is the class."""
    for kind in CLASSES:
        (folder / kind).mkdir(parents=True, exist_ok=True)
    with Progress("write photos", photos, "photos") as progress:
        for index in range(photos):
            rng = np.random.default_rng((seed, index))
            kind = CLASSES[index % len(CLASSES)]
            pixels = np.asarray(draw_shape(kind, side, rng), dtype=np.float64)
            pixels = pixels + NOISE * rng.standard_normal(pixels.shape)
            picture = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
            picture.save(folder / kind / f"{index:06d}.jpg", quality=90)
            progress.advance()


def draw_shape(kind: str, side: int, rng: np.random.Generator) -> Image.Image:
    """A shape of random colour, place, size and turn on a random ground, which is at least somewhat different."""
    ground, colour = rng.integers(0, 256, (2, 3))
    while np.abs(ground - colour).max() < 60:
        colour = rng.integers(0, 256, 3)
    picture = Image.new("RGB", (side, side), tuple(int(c) for c in ground))
    radius = side * rng.uniform(0.2, 0.35)
    x, y = rng.uniform(radius, side - radius, 2)
    draw, fill = ImageDraw.Draw(picture), tuple(int(c) for c in colour)
    if kind == "disc":
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)
    else:
        corners = 4 if kind == "square" else 3
        draw.regular_polygon((x, y, radius), corners, rotation=int(rng.integers(360)), fill=fill)
    return picture


def read_folder(folder: Path, size: int, workers: int) -> dict[str, float]:
    """Seconds of loading, and the most memory in MB that this process and one of its workers had."""
    began = time.perf_counter()
    dataset = load_folder(folder, size, workers=workers)
    seconds = time.perf_counter() - began
    own, workers_peak = (
        resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    photos = len(dataset.train_images) + len(dataset.test_images)
    return {"photos": photos, "seconds": seconds, "own_peak": own, "worker_peak": workers_peak}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.photos", description=__doc__)
    parser.add_argument("folder", type=path, metavar="DIR")
    parser.add_argument("--photos", type=count, default=10_000)
    parser.add_argument("--side", type=count, default=64, help="pixels of the files (default: 64)")
    parser.add_argument("--size", type=count, default=64, help="pixels that they are scaled to (default: 64)")
    parser.add_argument("--workers", type=count, default=count_cores(), help="processes (default: one for each core)")
    parser.add_argument("--write-only", action="store_true")
    parser.add_argument("--read-only", action="store_true", help="read once, in this process, and print JSON")
    args = parser.parse_args(argv)
    if args.read_only:
        print(json.dumps(read_folder(args.folder, args.size, args.workers)))
        return
    if not args.folder.exists():
        write_photos(args.folder, args.photos, args.side)
    if args.write_only:
        return
    command = [sys.executable, "-m", "benchmarks.photos", str(args.folder), "--read-only"]
    command += ["--size", str(args.size), "--workers", str(args.workers)]
    print(f"{args.workers} processes on {os.cpu_count()} cores")
    for title in ("decoded", "from the cache"):  # each in a process of its own, whose peak of memory is its own
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(
            f"{title}: {found['photos']} photos in {found['seconds']:.2f} s, {found['photos'] / found['seconds']:.0f} "
            f"a second; at most {found['own_peak']:.0f} MB here and {found['worker_peak']:.0f} MB in each other process"
        )


if __name__ == "__main__":
    main()
