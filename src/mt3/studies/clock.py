"""How long a part of a study takes on this machine: a few steps and a few images, timed and thrown away."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from mt3.adaptation.adapter import Adapter
from mt3.config.adaptation import Adaptation
from mt3.config.config import Config
from mt3.data import Dataset
from mt3.evaluation.pieces import PIECE
from mt3.training.loop import apply_gradient, gradient_of_step
from mt3.training.state import build_model, make_state
from mt3.training.tasks import hold_images, images_per_task

TIMED = 0.5  # seconds for which steps of a training, or images, are timed
SLOW = 3.0  # seconds; a first step, which also warms up, that takes longer is not repeated


def same_cost(config: Config) -> Config:
    """What configs share whose steps take equally long."""
    return replace(config, seed=0)


class Clock:
    """Seconds of a step and of an image on this machine, each measured once, when it is first asked for."""

    def __init__(self, dataset: Dataset, device: torch.device, threads: int) -> None:
        self.dataset, self.device, self.threads = dataset, device, threads
        self.steps: dict[Config, float] = {}
        self.images: dict[Config, float] = {}

    def step(self, config: Config) -> float:
        """Of a training, on a state that is thrown away."""
        # the length of the training and its rates change nothing
        kind = replace(same_cost(config), epochs=1.0, schedule="constant", average=0.0, warmup=0.0, start=None)
        if kind not in self.steps:
            with self._threads():
                self.steps[kind] = time_step(kind, self.dataset, self.device)
        return self.steps[kind]

    def image(self, config: Config, adaptation: Adaptation) -> float:
        """Of an evaluation; other settings than the model's own take as much longer as they have steps and views."""
        kind, own = same_cost(config), config.test
        if kind not in self.images:
            with self._threads():
                self.images[kind] = time_image(kind, self.dataset, self.device)
        share = max(1, adaptation.steps) * adaptation.views / (max(1, own.steps) * own.views)
        return self.images[kind] * share

    @contextmanager
    def _threads(self) -> Iterator[None]:
        if not self.steps and not self.images:
            print("timing a few steps and images ...", file=sys.stderr, flush=True)
        threads = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def time_step(config: Config, dataset: Dataset, device: torch.device) -> float:
    """Seconds of a training step; where the first one is slow, it alone is timed."""
    count = config.tasks * images_per_task(config)  # an epoch of one step
    state = make_state(config, dataset, device)
    images = hold_images(dataset.train_images[:count], device)
    labels = torch.from_numpy(dataset.train_labels[:count]).to(device)

    def take(step: int) -> None:
        gradient_of_step(state, images, labels, config, step, log=False)
        apply_gradient(state, config, step, step + 1, 1)

    return _time(take)


def time_image(config: Config, dataset: Dataset, device: torch.device) -> float:
    """Seconds of evaluating an image, adapted as the model does by itself."""
    model = build_model(config, dataset).to(device).eval()
    adapter = None if model.objective is None else Adapter(model)
    stack = 1 if adapter is None else adapter.stack_for(PIECE, dataset.size)
    count = min(PIECE, torch.get_num_threads() * stack)  # a stack for each thread
    batch = torch.from_numpy(np.array(dataset.test_images[:count])).permute(0, 3, 1, 2).contiguous().to(device)

    def answer(number: int) -> None:
        (model(batch) if adapter is None else adapter(batch)).cpu()

    return _time(answer) / len(batch)


def _time(work: Callable[[int], None]) -> float:
    """Seconds of a call; the first is a warm-up, unless it is slow."""
    began = time.perf_counter()
    work(0)
    first = time.perf_counter() - began
    if first > SLOW:
        return first
    began, calls = time.perf_counter(), 0
    while calls == 0 or time.perf_counter() - began < TIMED:
        calls += 1
        work(calls)
    return (time.perf_counter() - began) / calls
