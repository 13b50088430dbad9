"""Augmentation A: this package's batched tensor code against kornia's building blocks, alternately in one run.

    python benchmarks/augment.py            # needs the extra: pip install -c constraints.txt -e '.[bench]'

Both make 64 views of 32x32 with the same kinds of operation: square crop and resize, vertical flip, brightness,
contrast, saturation, hue, grey. Prints the ratio of times with its spread; times themselves vary from run to run.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from mt3.augment import make_views, seeded_generator


def kornia_pipeline() -> Callable[[torch.Tensor], torch.Tensor]:
    """Kornia's augmentation classes, chained."""
    from kornia import augmentation as K

    return K.AugmentationSequential(
        K.RandomResizedCrop((32, 32), scale=(0.39, 1.0), ratio=(1.0, 1.0)),
        K.RandomVerticalFlip(p=0.5),
        K.ColorJitter(0.16, 0.16, 0.16, 0.04, p=0.8),
        K.RandomGrayscale(p=0.2),
    )


def kornia_functions() -> Callable[[torch.Tensor], torch.Tensor]:
    """Kornia's functions on the same random numbers, without its classes."""
    from kornia import enhance
    from kornia.color import rgb_to_grayscale
    from kornia.geometry.transform import crop_and_resize

    generator = seeded_generator("kornia")

    def apply(x: torch.Tensor) -> torch.Tensor:
        n = len(x)
        u = torch.rand(n, 8, generator=generator)
        size = 20 + (13 * u[:, 0]).floor()
        left, top = ((33 - size) * u[:, 1]).floor(), ((33 - size) * u[:, 2]).floor()
        right, bottom = left + size - 1, top + size - 1
        corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
        boxes = torch.stack([torch.stack(c, 1) for c in corners], 1)  # (N, 4, 2)
        x = crop_and_resize(x, boxes, (32, 32))
        x = torch.where((u[:, 3] < 0.5).view(-1, 1, 1, 1), x.flip(2), x)
        x = enhance.adjust_brightness(x, 0.32 * (u[:, 4] - 0.5))
        x = enhance.adjust_contrast(x, 1 + 0.32 * (u[:, 5] - 0.5))
        x = enhance.adjust_saturation(x, 1 + 0.32 * (u[:, 6] - 0.5))
        x = enhance.adjust_hue(x, 0.08 * torch.pi * (u[:, 7] - 0.5))
        return torch.where((u[:, 0] < 0.2).view(-1, 1, 1, 1), rgb_to_grayscale(x).expand_as(x), x)

    return apply


def main() -> None:
    """Measure and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=20, help="per round and candidate")
    args = parser.parse_args()
    images = torch.rand(32, 3, 32, 32)
    both = torch.cat([images, images])
    generator = seeded_generator("bench")
    pipeline, functions = kornia_pipeline(), kornia_functions()
    candidates: dict[str, Callable[[], torch.Tensor]] = {
        "mt3": lambda: make_views(images, generator),
        "kornia pipeline": lambda: pipeline(both),
        "kornia functions": lambda: functions(both),
    }
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for round_number in range(args.rounds + 1):
        for name, call in candidates.items():
            began = time.perf_counter()
            for _ in range(args.calls):
                call()
            if round_number:  # the first round warms up
                times[name].append(time.perf_counter() - began)
    for name in list(candidates)[1:]:
        ratios = sorted(t / own for t, own in zip(times[name], times["mt3"], strict=True))
        median = statistics.median(ratios)
        low, high = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
        print(f"{name} / mt3: {median:.2f} (10 to 90 %: {low:.2f} to {high:.2f}), {args.rounds} rounds, 64 views")


if __name__ == "__main__":
    main()
