"""What the first owner of a GPU runs, `make gpu-check`: tests, steps and images on it, and one page to send back."""

import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.scaling import TRAININGS
from mt3.config.config import make_config
from mt3.data import Dataset
from mt3.models.store import read_run
from mt3.results.tables import Cell, Line, Table, markdown
from mt3.studies.clock import time_image, time_step
from mt3.support.files import write_text
from mt3.support.version import __version__

PAGE = Path("gpu-check.md")
PRECISIONS = ("float32", "bfloat16")
NONE = "no GPU was found: PyTorch sees none, so that nothing here is measured on one."
STEPS = 30  # of a training on all GPUs


def random_images(count: int) -> Dataset:
    """As many as a step takes, of CIFAR's shape."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), np.arange(count) % 10
    return Dataset("random", images, labels, images, labels, tuple("0123456789"))


def measure(device: torch.device, methods: list[str], **fields: Any) -> Iterator[Line]:
    """Of each training of the paper: seconds of a step, hours of all steps, peak memory, images adapted in a second."""
    hours = {t.name: t for t in TRAININGS}
    for method in methods:
        for precision in PRECISIONS:
            config = make_config(method, "cifar10", "paper", 0, {"precision": precision, **fields})
            dataset = random_images(max(256, config.tasks * config.task_size))
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            step = time_step(config, dataset, device)
            peak = torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None
            image = time_image(config, dataset, device)
            told = (
                Cell(step, digits=4),
                Cell(step * hours[method].steps / 3600, digits=1),
                Cell(hours[method].hours, digits=1),
                Cell(text="-") if peak is None else Cell(peak, digits=0),
                Cell(1 / image, digits=1),
            )
            yield Line(f"{method} {precision}", told)


def measured_table(lines: list[Line]) -> str:
    columns = ("seconds a step", "hours of a training", "hours in docs/scaling.md", "peak MB", "test images a second")
    return markdown(Table("gpu", "", "the paper's", columns, tuple(lines)))


def run_tests() -> str:
    """All tests; those that need a GPU do not skip here."""
    words = [sys.executable, "-m", "pytest", "-q", "-rs", "-m", "not slow", "tests"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return "\n".join(done.stdout.splitlines()[-40:])


def time_ranks(count: int) -> str:
    """The paper's training of the digits by torchrun, on one GPU and on all."""
    told = []
    for ranks in sorted({1, count}):
        with tempfile.TemporaryDirectory(prefix="mt3-") as folder:
            train = [
                "-m",
                "mt3",
                "train",
                "--method",
                "mt3",
                "--data",
                "digits",
                "--preset",
                "paper",
                "--device",
                "cuda",
            ]
            often = ["--max-steps", str(STEPS), "--out", f"{folder}/run"]
            launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
            done = subprocess.run([*launch, *train, *often], capture_output=True, text=True, check=False)
            seconds = read_run(Path(folder) / "run").get("seconds")
        if done.returncode or seconds is None:
            told.append(f"{ranks} ranks: failed\n\n```\n{done.stderr[-2000:]}\n```")
        else:
            told.append(f"{ranks} ranks: {seconds / STEPS:.4f} s a step over the first {STEPS}, warming up included")
    return "\n".join(f"- {line}" for line in told)


def about() -> str:
    """The machine, in a few lines."""
    names = [torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())]
    gpus = [f"- {gpu.name}, {gpu.total_memory / 2**30:.0f} GB, compute {gpu.major}.{gpu.minor}" for gpu in names]
    nccl = torch.distributed.is_nccl_available()
    versions = {"mt3": __version__, "torch": torch.__version__, "cuda": torch.version.cuda, "nccl": nccl}
    return "\n".join(
        [*gpus, f"- {platform.platform()}, Python {platform.python_version()}", f"- {json.dumps(versions)}"]
    )


def main() -> int:
    """Write the page; 2 where there is no GPU."""
    begin = f"# The GPU check\n\nPlease send this page back, as it is.\n\n{about()}\n"
    if not torch.cuda.is_available():
        write_text(PAGE, f"{begin}\n{NONE}\n")
        print(f"gpu-check: {NONE} Wrote {PAGE}.", file=sys.stderr)
        return 2
    device = torch.device("cuda")
    parts = [begin]
    works: dict[str, Callable[[], str]] = {
        "Steps and images": lambda: measured_table(list(measure(device, [t.name for t in TRAININGS]))),
        "Ranks": lambda: time_ranks(torch.cuda.device_count()),
        "Tests": lambda: f"```\n{run_tests()}\n```",
        "Benchmarks, on the processor": lambda: _output("-m", "benchmarks", "all", "--rounds", "2"),
    }
    for title, work in works.items():
        print(f"gpu-check: {title} ...", file=sys.stderr, flush=True)
        try:
            parts.append(f"## {title}\n\n{work()}\n")
        except Exception as error:  # whatever a GPU does that this was never run on belongs on the page
            parts.append(f"## {title}\n\nfailed: {type(error).__name__}: {error}\n")
        write_text(PAGE, "\n".join(parts))  # what is there so far
    print(f"gpu-check: wrote {PAGE}; please send it back.", file=sys.stderr)
    return 0


def _output(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    return done.stdout or f"```\n{done.stderr[-2000:]}\n```"


if __name__ == "__main__":
    sys.exit(main())
