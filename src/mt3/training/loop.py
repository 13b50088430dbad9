"""Training: one loop over steps, whatever the loss."""

import json
import math
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mt3.adaptation.memory import stack_size
from mt3.adaptation.step import clip_gradients
from mt3.config.config import Config, read_schedule
from mt3.data import Dataset
from mt3.data.dataset import Images
from mt3.models.classifier import MT3Model
from mt3.models.store import read_run, save_checkpoint, save_model
from mt3.support import ranks
from mt3.support.errors import InputError
from mt3.support.files import METRICS_FILE, PROGRESS_FILE, RUN_FILE, write_json
from mt3.support.precision import choose_precision
from mt3.support.progress import Progress
from mt3.support.signals import Stop, Stopped, stop_on_signals
from mt3.support.threads import count_threads, side_by_side
from mt3.training.losses import LOSSES
from mt3.training.memory import check_step_memory
from mt3.training.runs import (
    SNAPSHOTS,
    START,
    Link,
    RunOptions,
    cut_metrics,
    open_chain,
    owner_of,
    remove_run_leftovers,
    share_chain,
)
from mt3.training.state import State, finished_model, make_state, restore_state, share_state, state_tensors
from mt3.training.tasks import draw_step_task, hold_images, part_of, stack_tasks

LR_DROP = 0.1  # Sun et al.'s factor at each milestone
EMA_MOMENTUM = 0.996  # "an exponential moving average with momentum 0.996"


def gradient_of_step(
    state: State, images: Tensor | Images, labels: Tensor, config: Config, step: int, log: bool
) -> dict[str, float]:
    """Set the gradient of the mean loss over the step's tasks; returns what to log.

    Each thread holds the graph of one stack of tasks, which is freed before its next; large networks have stacks of one
    task. The one batch of cross-entropy or joint training has all threads for each operation. Of several ranks each has
    its share of the tasks, or of that batch's images, and all get the gradient of the whole step.
    """
    parameters = [p for p in state.model.parameters() if p.requires_grad]
    rank, world, whole = ranks.rank(), ranks.world(), config.training == "meta"  # whole tasks are shared out

    def stack_gradient(numbers: Sequence[int]) -> tuple[Sequence[Tensor | None], dict[str, Tensor]]:
        tasks = [draw_step_task(images, labels, config, step, number) for number in numbers]
        tasks = tasks if whole else [part_of(task, rank, world) for task in tasks]
        loss = LOSSES[config.training](state, stack_tasks(tasks), config, log)
        share = sum(len(task.labels) for task in tasks) / (config.tasks * config.task_size)
        gradients = torch.autograd.grad(share * loss.total, parameters, allow_unused=True)
        return gradients, {n: share * v.detach() for n, v in ({"loss": loss.total} | loss.metrics).items()}

    numbers = range(rank, config.tasks, world) if whole else range(1 if rank < config.task_size else 0)
    size = stack_size(state.model, max(1, len(numbers)), 3 * config.task_size, images.shape[2])  # x, two views of each
    stacks = [numbers[start : start + size] for start in range(0, len(numbers), size)]
    state.optimizer.zero_grad()
    sums: dict[str, Tensor] = {}
    for gradients, metrics in side_by_side(stack_gradient, stacks, count_threads(state.model, len(stacks))):
        for p, g in zip(parameters, gradients, strict=True):  # in the stacks' order, whatever the threads
            if g is not None:
                p.grad = g if p.grad is None else p.grad.add_(g)
        for name, value in metrics.items():
            sums[name] = sums.get(name, torch.zeros((), device=value.device)) + value
    totals = ranks.combine(parameters, list(sums.values())).tolist()
    return dict(zip(sums or ("loss",), totals, strict=False))  # a rank without work knows no more names


def apply_gradient(state: State, config: Config, step: int, total_steps: int, steps_per_epoch: int) -> dict[str, float]:
    """Clip the gradient, take the optimizer's step and move the average; returns what to log."""
    parameters = [p for p in state.model.parameters() if p.grad is not None]
    gradients = [p.grad for p in parameters if p.grad is not None]
    clipped, norm = clip_gradients(gradients, config.clip, config.inner.clip_each)
    grad_norm = float(norm)
    if not math.isfinite(grad_norm):
        return {"grad_norm": grad_norm}
    for p, g in zip(parameters, clipped, strict=True):
        p.grad = g
    lr = config.lr * lr_factor(config, step, total_steps, steps_per_epoch)
    for group in state.optimizer.param_groups:
        group["lr"] = lr
    state.optimizer.step()
    if state.ema is not None:
        momentum = ema_momentum(config, step, total_steps)
        online = [p.detach() for p in state.model.parameters()]
        torch._foreach_lerp_(list(state.ema.values()), online, 1 - momentum)
    if state.average is not None:
        # early on the mean of all steps so far, so that the start does not linger
        decay = min(config.average, (1 + step) / (10 + step))
        online = [p.detach() for p in state.model.parameters()]
        torch._foreach_lerp_(list(state.average.values()), online, 1 - decay)
    return {"grad_norm": grad_norm, "lr": lr}


def lr_factor(config: Config, step: int, total_steps: int, steps_per_epoch: int) -> float:
    """What the learning rate is multiplied by at this step: a linear warm-up, then the schedule over what is left."""
    warm = round(config.warmup * total_steps)
    if step < warm:
        return (step + 1) / warm
    name, numbers = read_schedule(config.schedule)
    if name == "step":
        return LR_DROP ** sum(step >= m * steps_per_epoch for m in numbers)
    if name == "constant":
        return 1.0
    done, final = (step - warm) / (total_steps - warm), numbers[0] if numbers else 0.0  # 0 to below 1
    return final + (1 - final) * (1 - done if name == "linear" else 0.5 * (1 + math.cos(math.pi * done)))


def ema_momentum(config: Config, step: int, total_steps: int) -> float:
    """The moving average's momentum: constant, or in the authors' code rising to 1 on a cosine as in BYOL."""
    if config.variant == "paper":
        return EMA_MOMENTUM
    return 1 - (1 - EMA_MOMENTUM) * (math.cos(math.pi * step / total_steps) + 1) / 2


def train(
    config: Config, dataset: Dataset, out: Path, options: RunOptions | None = None, model: MT3Model | None = None
) -> MT3Model | None:
    """Train as the config says, into the run directory `out`, and return the model; a given one is trained in place.

    A training that the config has come first goes to `out/start`, unless the options have an `init`. Their `max_steps`
    stops early without changing the schedule; None is returned if the start is not finished by then. Resuming later
    goes on as if it had not stopped: a run killed at any step and resumed ends with the same bits as one that was not.
    A signal to end waits for the step under way, which is saved, and raises `Stopped` then. Of the ranks of an open
    process group the first alone reads and writes `out`.
    """
    options = RunOptions() if options is None else options
    device, main = torch.device(options.device), ranks.is_main()
    with ExitStack() as held:
        chain = []
        if main:
            config = settle_precision(config, out, device)
            options = replace(options, resume=options.resume or ranks.is_restart(read_run(out).get("job")))
            chain = open_chain(held, config, dataset, out, options)
        chain = share_chain(chain, out)
        for link in chain:  # settings that are refused leave nothing behind
            init = None if link.run["init"] == START else link.init
            tried = make_state(link.config, dataset, device, init).model if model is None else model.to(device)
            check_step_memory(tried, link.config, dataset.size, options.recompute)
        board = _tensorboard() if options.tensorboard and main else None
        for link in chain if main else ():
            remove_run_leftovers(link.out)
            write_json(link.out / RUN_FILE, link.run)
        with stop_on_signals(at_once=False) as stop:
            left = list(chain)
            while left:
                link = left.pop(0)
                last_step = link.total_steps
                if options.max_steps is not None:
                    last_step = min(last_step, max(0, options.max_steps - link.before))
                writer = board(str(out / "tensorboard")) if board is not None and not left else None
                trained, step = _train_link(link, dataset, options, last_step, stop, (model, writer))
                asked = ranks.agree(stop.number)
                if step < link.total_steps or asked:
                    break
            done = link.before + step
            for later in left if main else ():
                write_json(later.out / RUN_FILE, later.run | later.progress(0, done))
            asked = ranks.agree(stop.number)  # when all is written: ranks that end have the others ended
    if asked:
        raise Stopped(asked, f"stopped after {done} of {chain[-1].before + chain[-1].total_steps} steps")
    return None if left else trained


def _train_link(
    link: Link, dataset: Dataset, options: RunOptions, last_step: int, stop: Stop, given: tuple[MT3Model | None, Any]
) -> tuple[MT3Model, int]:
    """Train until `last_step`, or until asked to stop, and save; returns the model and after which step it is."""
    config, out, steps_per_epoch, total_steps = link.config, link.out, link.steps_per_epoch, link.total_steps
    device, main = torch.device(options.device), ranks.is_main()
    own, writer = given
    state = replace(make_state(config, dataset, device, link.init, own), recompute=options.recompute)
    start, seconds = 0, 0.0
    if link.found is not None:
        start, tensors, seconds = link.found
        restore_state(state, tensors)
    start = share_state(state, start)
    if main:
        cut_metrics(out / METRICS_FILE, start)
    images = hold_images(dataset.train_images, device)
    labels = torch.from_numpy(dataset.train_labels).to(device)
    began = time.monotonic() - seconds
    step = saved = start
    file = out / PROGRESS_FILE if main else None
    try:
        with (
            open(out / METRICS_FILE if main else os.devnull, "a", encoding="utf-8") as metrics_file,
            Progress(f"train {config.method}", last_step, "steps", start, file=file) as progress,
        ):
            if main and options.snapshot_every and step == 0:
                _keep_snapshot(link, state, step)
            while step < last_step and not ranks.agree(stop.number):
                log = (step + 1) % options.log_every == 0
                metrics = gradient_of_step(state, images, labels, config, step, log)
                metrics |= apply_gradient(state, config, step, total_steps, steps_per_epoch)
                if not (math.isfinite(metrics["loss"]) and math.isfinite(metrics["grad_norm"])):
                    kept = f"the last good checkpoint, step {saved}, stays" if saved else "there is no checkpoint yet"
                    raise InputError(
                        f"The loss or its gradient is not finite at step {step + 1} (loss {metrics['loss']}, gradient "
                        f"norm {metrics['grad_norm']}); {kept}: lower lr."
                    )
                step += 1
                if log:
                    record = {"step": step, "epoch": step / steps_per_epoch, **metrics}
                    metrics_file.write(json.dumps(record) + "\n")
                    if writer is not None:
                        for name, value in metrics.items():
                            writer.add_scalar(name, value, step)
                if main and options.snapshot_every and step % options.snapshot_every == 0:
                    _keep_snapshot(link, state, step)
                if step % options.checkpoint_every == 0 and step < last_step:
                    metrics_file.flush()
                    saved = _save(link, state, step, time.monotonic() - began)
                progress.advance(note=_note(metrics))
    finally:
        if writer is not None:
            writer.close()
    seconds = time.monotonic() - began
    if step > saved:
        _save(link, state, step, seconds)
    model = finished_model(state)
    if own is not None and model is not own:
        own.load_state_dict(model.state_dict())
        model = own
    if main:
        save_model(model, out)
        told = link.run | link.progress(step, link.before + step) | {"seconds": round(seconds, 3)}
        write_json(out / RUN_FILE, told)
    return model.eval(), step


def _keep_snapshot(link: Link, state: State, step: int) -> None:
    """Keep the model as it would be if training ended here."""
    snapshot = link.out / SNAPSHOTS / f"step-{step:08d}"
    save_model(finished_model(state), snapshot)
    write_json(snapshot / RUN_FILE, link.run | link.progress(step, link.before + step))


def settle_precision(config: Config, out: Path, device: torch.device) -> Config:
    """Replace "auto" by what the run in `out` has, or else by what the device is made for."""
    if config.precision != "auto":
        return config
    begun = read_run(out)
    if begun:
        return replace(config, precision=begun["config"].get("precision", "float32"))
    precision, reason = choose_precision(device)
    print(f"precision auto: {precision}, since {reason}", file=sys.stderr)
    return replace(config, precision=precision)


def _save(link: Link, state: State, step: int, seconds: float) -> int:
    if ranks.is_main():
        save_checkpoint(link.out, step, state_tensors(state), seconds, owner_of(link.run))
    return step


def _note(metrics: dict[str, float]) -> str:
    note = f"loss {metrics['loss']:.3f}"
    if "accuracy_after" in metrics and "accuracy_before" in metrics:
        return note + f", accuracy {100 * metrics['accuracy_before']:.0f} -> {100 * metrics['accuracy_after']:.0f} %"
    return note


def _tensorboard() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError(
            "TensorBoard is not installed; pip install 'mt3[tensorboard]' or drop --tensorboard."
        ) from None
    return SummaryWriter
