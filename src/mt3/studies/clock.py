"""How long a part of a study takes on this machine: a few steps and a few images, timed and thrown away."""

import sys
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from mt3.adaptation.adapter import Adapter
from mt3.config.adaptation import Adaptation
from mt3.config.config import Config
from mt3.data import Dataset
from mt3.evaluation.pieces import PIECE
from mt3.evaluation.predict import as_tensor
from mt3.training.loop import apply_gradient, gradient_of_step
from mt3.training.state import build_model, make_state
from mt3.training.tasks import images_per_task

TIMED = 0.5  # seconds for which steps of a training, or images, are timed
SLOW = 3.0  # seconds; a first step, which also warms up, that takes longer is not repeated
Measure = Callable[[Config, Dataset, torch.device], float]


class Clock:
    """Seconds of a step and of an image on this machine, each measured once, when it is first asked for."""

    def __init__(self, dataset: Dataset, device: torch.device, threads: int) -> None:
        self.dataset, self.device, self.threads = dataset, device, threads
        self.measured: dict[tuple[Measure, Config], float] = {}

    def step(self, config: Config) -> float:
        """Of a training; its length and its rates change nothing."""
        kind = replace(config, seed=0, epochs=1.0, schedule="constant", average=0.0, warmup=0.0, start=None)
        return self._measure(time_step, kind)

    def image(self, config: Config, adaptation: Adaptation) -> float:
        """Of an evaluation; other settings than the model's own take as much longer as they have steps and views."""
        own = config.test
        share = max(1, adaptation.steps) * adaptation.views / (max(1, own.steps) * own.views)
        return self._measure(time_image, replace(config, seed=0)) * share

    def _measure(self, measure: Measure, config: Config) -> float:
        if not self.measured:
            print("timing a few steps and images ...", file=sys.stderr, flush=True)
        if (measure, config) not in self.measured:
            threads = torch.get_num_threads()
            torch.set_num_threads(self.threads)
            try:
                self.measured[measure, config] = measure(config, self.dataset, self.device)
            finally:
                torch.set_num_threads(threads)
        return self.measured[measure, config]


def time_step(config: Config, dataset: Dataset, device: torch.device) -> float:
    """Seconds of a training step, on a state that is thrown away."""
    count = config.tasks * images_per_task(config)  # an epoch of one step
    state = make_state(config, dataset, device)
    images = as_tensor(dataset.train_images[:count], device)
    labels = torch.from_numpy(dataset.train_labels[:count]).to(device)

    def take(step: int) -> None:
        gradient_of_step(state, images, labels, config, step, log=False)
        apply_gradient(state, config, step, step + 1, 1)

    return _time(take)


def time_image(config: Config, dataset: Dataset, device: torch.device) -> float:
    """Seconds of evaluating an image, adapted as the model does by itself."""
    model = build_model(config, dataset).to(device).eval()
    answer = model if model.objective is None else Adapter(model)
    stack = answer.stack_for(PIECE, dataset.size) if isinstance(answer, Adapter) else 1
    count = min(PIECE, torch.get_num_threads() * stack)  # a stack for each thread
    batch = as_tensor(dataset.test_images[:count], device)
    return _time(lambda _: answer(batch).cpu()) / len(batch)


def _time(work: Callable[[int], object]) -> float:
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
