"""The floor: how many operations the method needs, how many a second the machine does, and how much memory is held."""

import multiprocessing
import os
import platform
import resource
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec

import torch
from torch import Tensor, nn

from benchmarks.timing import alternate
from mt3.models.classifier import MT3Model
from mt3.objectives.augment import seeded_generator
from mt3.support.version import __version__

MATRIX = 2048  # rows of the square matrices whose product is the machine's best
STEM = "backbone.early.stem"  # the layer whose input is the image
_PRODUCT = "matrix product"

P = ParamSpec("P")


def layer_flops(model: MT3Model) -> dict[str, int]:
    """Operations of every convolution and linear layer for one image, two for each multiply-add, by layer."""
    counts: dict[str, int] = {}

    def count(name: str, layer: nn.Conv2d | nn.Linear, inputs: Any, output: Tensor) -> None:
        counts[name] = 2 * output[0].numel() * layer.weight[0].numel()

    layers = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(partial(count, name)) for name, layer in layers]
    with torch.no_grad():
        model.outputs(torch.zeros(1, 3, 32, 32))
    for hook in hooks:
        hook.remove()
    return counts


def meta_step_flops(model: MT3Model, tasks: int, task_size: int, inner_steps: int = 1) -> int:
    """Operations that an exact second-order meta-step needs, in convolutions and linear layers.

    A layer's backward pass costs two forward passes, for its input and its weight; the backward pass of these three
    costs six. So for each image of a task: 2 views forward, backward and through both again, 18 forward passes in each
    inner step, then the image and its views forward and backward, 9. The stem's input needs no gradient; the class
    layer has no part in the inner step, and the heads p and q none in what becomes of x.
    """
    total = 0
    for name, flops in layer_flops(model).items():
        part = _part(name)
        outer = {"classify": 1, "heads": 2}.get(part, 3)  # of x, a and a-tilde
        inner = 0 if part == "classify" else 2
        once, twice = (2, 4) if part == "stem" else (3, 9)  # passes in all, differentiated once or twice
        total += flops * (outer * once + inner * twice * inner_steps)
    return total * tasks * task_size


def adapt_flops(model: MT3Model, views: int) -> int:
    """Operations that one image needs: its 2 K_T views forward and backward, then the image forward."""
    total = 0
    for name, flops in layer_flops(model).items():
        part = _part(name)
        passes = {"classify": 0, "stem": 2}.get(part, 3)
        total += flops * (2 * views * passes + (part != "heads"))
    return total


def _part(layer: str) -> str:
    """What a layer belongs to: the stem, the rest of the backbone, hidden, heads or classify."""
    return "stem" if layer == STEM else layer.partition(".")[0]


def alternate_with_floor(
    calls: Mapping[str, Callable[[], object]], rounds: int
) -> tuple[dict[str, list[float]], float]:
    """Seconds of each call in each round, and the machine's best operations a second in the same rounds.

    The best is a product of square float32 matrices on all threads: nothing comes nearer to the peak.
    """
    a, b = torch.rand(2, MATRIX, MATRIX, generator=seeded_generator("matrix"))
    seconds = alternate({**calls, _PRODUCT: lambda: a @ b}, rounds)
    return seconds, 2 * MATRIX**3 / min(seconds.pop(_PRODUCT))


def peak_memory(make: Callable[P, Callable[[], object]], *args: P.args, **kwargs: P.kwargs) -> float:
    """MB by which the first call of what `make` gives raises the memory of a fresh process, at its peak."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_growth, torch.get_num_threads(), partial(make, *args, **kwargs)).result()


def _growth(threads: int, make: Callable[[], Callable[[], object]]) -> float:
    torch.set_num_threads(threads)
    call = make()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far does not count
    before = _memory("VmRSS")
    call()
    return (_memory("VmHWM") - before) / 1024


def _memory(entry: str) -> int:
    """KB of this process; `resource` would count what its parent held when it started this one."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(entry):
                return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def machine() -> dict[str, Any]:
    """What the numbers depend on beside the code; to be asked before the measuring, which is itself a load."""
    return {
        "processor": platform.processor() or platform.machine(),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,  # processes running in the last minute
        "versions": {"mt3": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }
