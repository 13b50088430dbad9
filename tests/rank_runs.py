"""Trainings on ranks that torchrun starts on this machine, for tests."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from mt3.config.methods import METHODS
from mt3.models.store import load_checkpoint

SCRIPT = Path(__file__).with_name("rank_script.py")
STEPS = 20


def words(method: str, out: Path, steps: int = STEPS, *more: str) -> list[str]:
    size = ["--tasks", "4", "--task-size", "2"] if method == "mt3" else ["--task-size", "10"]
    hidden = ["--hidden", "8"] if METHODS[method].hidden else []
    begin = ["train", "--method", method, "--data", "digits", "--preset", "paper", "--out", str(out), "--threads", "1"]
    network = ["--depth", "8", "--width", "4", "--projection", "6"]
    often = ["--max-steps", str(steps), "--log-every", "1", "--checkpoint-every", "4"]
    return [*begin, *network, *hidden, *size, *often, *more]


def torchrun(count: int, asked: dict[str, Any], *options: str) -> subprocess.CompletedProcess[str]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count), *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    return subprocess.run(
        [*launch, str(SCRIPT), json.dumps(asked)], capture_output=True, text=True, env=environment, timeout=300
    )


def sentences(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("mt3:")]


def difference(one: Path, other: Path, kind: str = "model.") -> float:
    """Of the weights, or of what else a checkpoint holds, relative to their norm."""
    a, b = (load_checkpoint(run) for run in (one, other))
    assert a is not None
    assert b is not None
    assert a[0] == b[0]
    assert a[1].keys() == b[1].keys()
    names = [name for name in a[1] if name.startswith(kind)]
    flat = [torch.cat([found[1][name].double().flatten() for name in names]) for found in (a, b)]
    return float((flat[0] - flat[1]).norm() / flat[0].norm())
