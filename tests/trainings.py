"""Small trainings for tests, and what is read from their directories."""

import json
from pathlib import Path
from typing import Any

from mt3.config.config import Config, make_config
from mt3.data import Dataset
from mt3.models.classifier import MT3Model
from mt3.models.store import load, tensors_hash
from mt3.training.loop import train
from mt3.training.runs import RunOptions

SMALL: dict[str, Any] = {"depth": 8, "width": 4, "hidden": 8, "projection": 6, "epochs": 50}


def small_config(method: str = "mt3", seed: int = 0, **fields) -> Config:
    size = {"tasks": 2, "task_size": 4} if method == "mt3" else {"task_size": 16}
    return make_config(method, "digits", "paper", seed, SMALL | size | fields)


class Killed(BaseException):
    """Stands for a kill: nothing of the loop's own handling runs on it."""


def train_small(config: Config, dataset: Dataset, out: Path, **options: Any) -> MT3Model | None:
    """Train with a line of metrics for every step."""
    return train(config, dataset, out, RunOptions(**{"log_every": 1} | options))


def weights(run: Path) -> str:
    """A hash of a finished run's weights."""
    return tensors_hash(load(run).state_dict())


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
