"""Small trainings for tests, and what is read from their directories."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mt3.config.config import Config, make_config
from mt3.data import Dataset
from mt3.models.classifier import MT3Model
from mt3.models.store import load, tensors_hash
from mt3.training.loop import apply_gradient, train
from mt3.training.runs import RunOptions
from mt3.training.state import make_state

SMALL: dict[str, Any] = {"depth": 8, "width": 4, "hidden": 8, "projection": 6, "epochs": 50}


def small_config(method: str = "mt3", seed: int = 0, **fields) -> Config:
    size = {"tasks": 2, "task_size": 4} if method == "mt3" else {"task_size": 16}
    return make_config(method, "digits", "paper", seed, SMALL | size | fields)


class Killed(BaseException):
    """Stands for a kill: nothing of the loop's own handling runs on it."""


def train_small(config: Config, dataset: Dataset, out: Path, **options: Any) -> MT3Model | None:
    """Train with a line of metrics for every step."""
    return train(config, dataset, out, RunOptions(**{"log_every": 1} | options))


def check_sgd_by_hand(
    config: Config, dataset: Dataset, gradient_of: Callable[[str, Tensor, Tensor, float], Tensor]
) -> None:
    """Three steps of SGD with momentum, v <- m v + g, from random gradients.

    `gradient_of` gives g, by a parameter's name, value and gradient and the norm of all gradients.
    """
    state = make_state(config, dataset, torch.device("cpu"))
    theta = {n: p.detach().clone() for n, p in state.model.named_parameters()}
    velocity = {n: torch.zeros_like(p) for n, p in theta.items()}
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        gradient = {n: torch.randn(p.shape, generator=generator) for n, p in theta.items()}
        for name, p in state.model.named_parameters():
            p.grad = gradient[name].clone()
        apply_gradient(state, config, step, 100, 10)
        norm = math.sqrt(sum(float((g**2).sum()) for g in gradient.values()))
        for name, p in theta.items():
            g = gradient_of(name, p, gradient[name], norm)
            velocity[name] = config.momentum * velocity[name] + g
            theta[name] = p - config.lr * (g + config.momentum * velocity[name] if config.nesterov else velocity[name])
    for name, p in state.model.named_parameters():
        torch.testing.assert_close(p.detach(), theta[name])


def weights(run: Path) -> str:
    """A hash of a finished run's weights."""
    return tensors_hash(load(run).state_dict())


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
