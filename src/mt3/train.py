"""Training: one loop, three losses (cross-entropy, joint, meta)."""

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from mt3.adapt import Params, clip_gradients, forward, inner_loop, stack_params, stack_size
from mt3.augment import apply_shift, crop_and_flip, draw_shift, make_views, rotate, seeded_generator
from mt3.checkpoint import load, load_checkpoint, read_run, save_checkpoint, save_model
from mt3.config import Config, warm_config
from mt3.data import Dataset
from mt3.errors import InputError
from mt3.files import METRICS_FILE, RUN_FILE, write_json
from mt3.model import MT3Model, as_float, refuse_batch_norm
from mt3.parallel import count_threads, side_by_side
from mt3.progress import Progress
from mt3.runs import WARM, check_run, count_steps, cut_metrics, images_per_task, steps_done
from mt3.selfsup import Views, selfsup_loss, stack_views

LR_DROP = 0.1  # Sun et al.'s factor at each milestone


class Task(NamedTuple):
    """A batch of images that share one draw of B, with their views for the self-supervised loss; or a stack of such."""

    images: Tensor  # x, (K, 3, 32, 32), or (S, K, 3, 32, 32)
    labels: Tensor  # y, (K,)
    views: Views | None


class Loss(NamedTuple):
    """What one task adds to the outer loss, and what is worth logging of it."""

    total: Tensor
    metrics: dict[str, Tensor]


@dataclass
class State:
    """Everything that changes while training; with the config and the step it is all that a checkpoint holds."""

    model: MT3Model
    optimizer: torch.optim.SGD
    ema: Params | None  # moving average that gives the targets of joint BYOL training, or of the inner loss
    average: Params | None = None  # of the weights over the steps; becomes the finished model


def build_model(config: Config, dataset: Dataset) -> MT3Model:
    """A fresh model of the config's network, its weights drawn from the config's seed."""
    model = MT3Model(
        dataset.num_classes,
        depth=config.depth,
        width=config.width,
        groups=config.groups,
        head=config.head,
        selfsup=config.selfsup,
        hidden=config.hidden,
        projection=config.projection,
        adapt_steps=config.test_steps,
        adapt_lr=config.test_lr,
        adapt_views=config.test_views,
        adapt_clip=config.test_clip,
        adapt_layers=config.adapt_layers,
        adapt_average=config.test_average,
        adapt_gate=config.test_gate,
        learned_rates=config.inner_steps if config.learn_rates and config.training == "meta" else 0,
        clip_mode=config.clip_mode,
        fresh_views=config.test_fresh_views,
        crop_max=config.crop_max,
        classes=list(dataset.classes),
        precision=config.precision,
    )
    model.reset_parameters(seeded_generator("weights", config.seed))
    return model


def draw_task(images: Tensor, labels: Tensor, config: Config, generator: torch.Generator) -> Task:
    """Augment the raw images (K, 3, 32, 32) of one task: x is cropped, its views come from A, B is on all of them."""
    raw = as_float(images)
    x = crop_and_flip(raw, generator, config.pad, config.flip)
    parts = [x, make_views(raw, generator, config.crop_max)] if config.selfsup == "byol" else [x]
    batch = torch.cat(parts)
    if config.batch_aug:
        batch = apply_shift(batch, draw_shift(generator, config.vertical_flip, config.negative, config.cast), generator)
    x, rest = batch[: len(raw)], batch[len(raw) :]
    if config.selfsup == "byol":
        return Task(x, labels, Views(rest))
    if config.selfsup == "rotation":  # every image by all four angles, upright first
        quarters = torch.arange(4, device=x.device).repeat_interleave(len(x))
        return Task(x, labels, Views(rotate(x.repeat(4, 1, 1, 1), quarters), quarters))
    return Task(x, labels, None)


def _joint_pass(
    model: MT3Model, params: Params, task: Task, target: Tensor | None, own_target: bool = False
) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits of x, and the cross-entropy and self-supervised loss, from one pass over x and its views."""
    assert task.views is not None
    k = task.labels.shape[-1]
    rotation = task.views.quarters is not None
    batch = task.views.images if rotation else torch.cat([task.images, task.views.images], dim=-4)
    outputs = forward(model, params, batch)
    logits = outputs.logits[..., :k, :]
    if not rotation:  # the rows of the views
        assert outputs.prediction is not None
        assert outputs.projection is not None
        own = outputs.projection[..., k:, :]
        outputs = outputs._replace(prediction=outputs.prediction[..., k:, :], projection=own)
        target = own.detach() if own_target else target
    ce = F.cross_entropy(logits.flatten(0, -2), task.labels.flatten())
    selfsup = selfsup_loss(outputs, task.views, target).mean()
    return logits, {"ce": ce, "selfsup": selfsup}


def ce_loss(state: State, task: Task, config: Config, log: bool) -> Loss:
    """Cross-entropy alone."""
    logits = state.model(task.images)
    loss = F.cross_entropy(logits, task.labels)
    return Loss(loss, {"ce": loss, "accuracy_before": _accuracy(logits, task.labels)})


def joint_loss(state: State, task: Task, config: Config, log: bool) -> Loss:
    """Cross-entropy plus gamma times the self-supervised loss; byol's targets come from the moving average."""
    assert task.views is not None
    target = None
    if state.ema is not None:
        with torch.no_grad():
            target = forward(state.model, state.ema, task.views.images).projection
    logits, metrics = _joint_pass(state.model, _theta(state.model), task, target)
    total = metrics["ce"] + config.gamma * metrics["selfsup"]
    return Loss(total, metrics | {"accuracy_before": _accuracy(logits, task.labels)})


def meta_loss(state: State, task: Task, config: Config, log: bool) -> Loss:
    """The joint loss after the inner loop, differentiable through it; of a stack of tasks, their mean."""
    assert task.views is not None
    views = task.views
    model, theta, ema = state.model, _theta(state.model), state.ema
    if task.labels.dim() == 2:
        theta = stack_params(theta, len(task.labels))
        ema = None if ema is None else stack_params(ema, len(task.labels))
    inner = inner_loop(
        model,
        theta,
        lambda step: views,
        model.adapted_names(),
        config.inner_steps,
        config.inner_lr,
        config.clip,
        config.clip_mode,
        config.inner_target,
        second_order=config.order == "second",
        ema=ema,
    )
    if config.gamma:
        target = inner.outputs.projection.detach() if inner.outputs.projection is not None else None
        logits, metrics = _joint_pass(model, inner.params, task, target, own_target=config.outer_target == "adapted")
        total = metrics["ce"] + config.gamma * metrics["selfsup"]
    else:  # no second pass over the views
        logits = functional_call(model, inner.params, (task.images,))
        total = F.cross_entropy(logits.flatten(0, -2), task.labels.flatten())
        metrics = {"ce": total}
    metrics |= {"inner_loss": inner.loss.mean(), "inner_grad_norm": inner.grad_norm.mean()}
    metrics["accuracy_after"] = _accuracy(logits, task.labels)
    if log or config.anchor:
        with torch.set_grad_enabled(bool(config.anchor)):
            before = model(task.images.flatten(0, -4)).view_as(logits)
        metrics["accuracy_before"] = _accuracy(before, task.labels)
    if config.anchor:
        metrics["ce_before"] = F.cross_entropy(before.flatten(0, -2), task.labels.flatten())
        total = total + config.anchor * metrics["ce_before"]
    return Loss(total, metrics)


LOSSES: dict[str, Callable[[State, Task, Config, bool], Loss]] = {
    "ce": ce_loss,
    "joint": joint_loss,
    "meta": meta_loss,
}


def _theta(model: MT3Model) -> Params:
    return dict(model.named_parameters())


def _accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.detach().argmax(-1) == labels).float().mean()


def draw_step_task(
    images: Tensor, labels: Tensor, config: Config, step: int, steps_per_epoch: int, number: int
) -> Task:
    """Task `number` of a step; it depends on (seed, step, number) alone, so any thread or process can draw it."""
    epoch, position = divmod(step, steps_per_epoch)
    order = _epoch_order(len(images), config.seed, epoch)
    size = images_per_task(config)
    start = (position * config.tasks + number) * size
    rows = order[start : start + size].repeat(config.task_size // size).to(images.device)
    return draw_task(images[rows], labels[rows], config, seeded_generator("task", config.seed, step, number))


@lru_cache(maxsize=1)  # only the current epoch's is needed
def _epoch_order(count: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(count, generator=seeded_generator("order", seed, epoch))


def gradient_of_step(
    state: State, images: Tensor, labels: Tensor, config: Config, step: int, steps_per_epoch: int, log: bool
) -> dict[str, float]:
    """Set the gradient of the mean loss over the step's tasks; returns what to log.

    Each thread holds the graph of one stack of tasks, which is freed before its next; large networks have stacks of one
    task. The one batch of cross-entropy or joint training has all threads for each operation.
    """
    parameters = list(state.model.parameters())

    def stack_gradient(model: MT3Model, numbers: Sequence[int]) -> tuple[Sequence[Tensor | None], dict[str, Tensor]]:
        tasks = [draw_step_task(images, labels, config, step, steps_per_epoch, number) for number in numbers]
        loss = LOSSES[config.training](replace(state, model=model), stack_tasks(tasks), config, log)
        share = len(numbers) / config.tasks
        gradients = torch.autograd.grad(share * loss.total, parameters, allow_unused=True)
        return gradients, {n: share * v.detach() for n, v in ({"loss": loss.total} | loss.metrics).items()}

    size = stack_size(state.model, config.tasks, 3 * config.task_size)
    stacks = [range(config.tasks)[start : start + size] for start in range(0, config.tasks, size)]
    state.optimizer.zero_grad()
    sums: dict[str, Tensor] = {}
    threads = count_threads(state.model, len(stacks))
    for gradients, metrics in side_by_side(stack_gradient, state.model, stacks, threads):
        for p, g in zip(parameters, gradients, strict=True):  # in the stacks' order, whatever the threads
            if g is not None:
                p.grad = g if p.grad is None else p.grad.add_(g)
        for name, value in metrics.items():
            sums[name] = sums.get(name, torch.zeros((), device=value.device)) + value
    return dict(zip(sums, torch.stack(list(sums.values())).tolist(), strict=True))


def stack_tasks(tasks: Sequence[Task]) -> Task:
    """Tasks of equal size as one stack; a single one stays as it is."""
    if len(tasks) == 1:
        return tasks[0]
    views = stack_views([task.views for task in tasks if task.views is not None])
    return Task(torch.stack([task.images for task in tasks]), torch.stack([task.labels for task in tasks]), views)


def apply_gradient(state: State, config: Config, step: int, total_steps: int, steps_per_epoch: int) -> dict[str, float]:
    """Clip the meta-gradient, take the optimizer's step and move the average; returns what to log."""
    parameters = [p for p in state.model.parameters() if p.grad is not None]
    gradients = [p.grad for p in parameters if p.grad is not None]
    clipped, norm = clip_gradients(gradients, config.clip if config.training == "meta" else None, config.clip_mode)
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
    """What the learning rate is multiplied by at this step."""
    if config.schedule == "cosine":
        return config.final_lr + (1 - config.final_lr) * 0.5 * (1 + math.cos(math.pi * step / total_steps))
    if config.schedule == "step":
        return LR_DROP ** sum(step >= m * steps_per_epoch for m in config.milestones)
    return 1.0


def ema_momentum(config: Config, step: int, total_steps: int) -> float:
    """The moving average's momentum: constant, or rising to 1 on a cosine as in BYOL."""
    if config.ema_schedule == "constant":
        return config.ema_momentum
    return 1 - (1 - config.ema_momentum) * (math.cos(math.pi * step / total_steps) + 1) / 2


def make_state(config: Config, dataset: Dataset, device: torch.device, init: Path | None = None) -> State:
    """The state before the first step; `init` gives a run whose weights are taken over where names and shapes fit."""
    model = build_model(config, dataset)
    if init is not None:
        warm_start(model, load(init), init)
    refuse_batch_norm(model)
    model.to(device)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
    )
    ema = None
    averaged = config.training == "joint" or (config.training == "meta" and config.inner_target == "ema")
    if averaged and config.selfsup == "byol":
        start = model
        if config.ema_start == "random":
            start = build_model(config, dataset).to(device)
            start.reset_parameters(seeded_generator("target", config.seed))
        ema = _copy(start)
    return State(model, optimizer, ema, _copy(model) if config.average else None)


def _copy(model: MT3Model) -> Params:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def warm_start(model: MT3Model, source: MT3Model, name: str | Path) -> None:
    """Take over the weights of `source` whose names and shapes fit; heads that it lacks keep their fresh weights."""
    own, given = model.state_dict(), source.state_dict()
    fitting = {n: t for n, t in given.items() if n in own and own[n].shape == t.shape}
    if "stem.weight" not in fitting:
        raise InputError(f"The network of {name} differs from this run's; give both the same depth, width and groups.")
    trunk = ("stage", "norm")
    unfit = sorted(n for n in own.keys() | given.keys() if n.startswith(trunk) and n not in fitting)
    if model.norm.num_groups != source.norm.num_groups:
        unfit.append(f"the norms ({source.norm.num_groups} groups, here {model.norm.num_groups})")
    if unfit:
        raise InputError(f"The network of {name} differs from this run's at {unfit[0]}; give both the same network.")
    model.load_state_dict(own | fitting)


def _tensors(state: State) -> dict[str, Tensor]:
    """The state as named tensors."""
    tensors: dict[str, Tensor] = {f"model.{n}": p for n, p in state.model.named_parameters()}
    for name, p in state.model.named_parameters():
        buffer = state.optimizer.state.get(p, {}).get("momentum_buffer")
        if buffer is not None:
            tensors[f"momentum.{name}"] = buffer
    if state.ema is not None:
        tensors |= {f"ema.{n}": t for n, t in state.ema.items()}
    if state.average is not None:
        tensors |= {f"average.{n}": t for n, t in state.average.items()}
    return tensors


def _restore(state: State, tensors: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, p in state.model.named_parameters():
            p.copy_(tensors[f"model.{name}"])
            if f"momentum.{name}" in tensors:
                state.optimizer.state[p]["momentum_buffer"] = tensors[f"momentum.{name}"].to(p.device)
            if state.ema is not None:
                state.ema[name].copy_(tensors[f"ema.{name}"])
            if state.average is not None:
                state.average[name].copy_(tensors[f"average.{name}"])


def train(
    config: Config,
    dataset: Dataset,
    out: Path,
    device: torch.device | str = "cpu",
    max_steps: int | None = None,
    resume: bool = False,
    init: Path | None = None,
    tensorboard: bool = False,
    data_dir: Path | None = None,
) -> MT3Model:
    """Train as the config says, into the run directory `out`, and return the finished model.

    `max_steps` stops early without changing the schedule; resuming later goes on as if it had not stopped. A run
    killed at any step and resumed ends with the same bits as one that was not. `data_dir` is only noted down,
    for evaluating later. A training that the config has come first goes to `out/warm`, unless `init` is given.
    """
    device = torch.device(device)
    first = warm_config(config)
    if first is not None and init is None:
        init = out / WARM
        if (resume or not read_run(out)) and steps_done(first, init) is not None:  # else refused below, or finished
            train(first, dataset, init, device, max_steps, resume=True, data_dir=data_dir)
    steps_per_epoch, total_steps = count_steps(config, dataset)
    last_step = min(total_steps, max_steps) if max_steps is not None else total_steps
    run = check_run(out, config, resume, init) | {"data_dir": None if data_dir is None else str(data_dir.resolve())}
    found = load_checkpoint(out) if resume else None
    state = make_state(config, dataset, device, Path(run["init"]) if run["init"] and found is None else None)
    start, seconds = 0, 0.0
    if found is not None:
        start, tensors, seconds = found
        _restore(state, tensors)
    writer = _tensorboard(out) if tensorboard else None
    write_json(out / RUN_FILE, run)  # nothing is left behind by settings that were refused
    cut_metrics(out / METRICS_FILE, start)
    images = torch.from_numpy(dataset.train_images).permute(0, 3, 1, 2).contiguous().to(device)
    labels = torch.from_numpy(dataset.train_labels).to(device)
    began = time.monotonic() - seconds
    step = saved = start
    between_steps = True
    try:
        with (
            open(out / METRICS_FILE, "a", encoding="utf-8") as metrics_file,
            Progress(f"train {config.method}", last_step, "steps", start) as progress,
        ):
            while step < last_step:
                log = (step + 1) % config.log_every == 0
                metrics = gradient_of_step(state, images, labels, config, step, steps_per_epoch, log)
                between_steps = False
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
                between_steps = True
                if step % config.checkpoint_every == 0 and step < last_step:
                    metrics_file.flush()
                    saved = _save(out, state, step, time.monotonic() - began)
                progress.advance(note=_note(metrics))
    except KeyboardInterrupt:
        if between_steps and step > saved:  # else the state is half way to the next step
            saved = _save(out, state, step, time.monotonic() - began)
        print(f"Stopped; --resume continues after step {saved}.", file=sys.stderr)
        raise
    finally:
        if writer is not None:
            writer.close()
    seconds = time.monotonic() - began
    if step > saved:
        _save(out, state, step, seconds)
    if state.average is not None:
        state.model.load_state_dict(state.average)
    save_model(state.model, out)
    write_json(out / RUN_FILE, run | {"step": step, "total_steps": total_steps, "seconds": round(seconds, 3)})
    return state.model.eval()


def _save(out: Path, state: State, step: int, seconds: float) -> int:
    save_checkpoint(out, step, _tensors(state), seconds)
    return step


def _note(metrics: dict[str, float]) -> str:
    note = f"loss {metrics['loss']:.3f}"
    if "accuracy_after" in metrics and "accuracy_before" in metrics:
        return note + f", accuracy {100 * metrics['accuracy_before']:.0f} -> {100 * metrics['accuracy_after']:.0f} %"
    return note


def _tensorboard(out: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError(
            "TensorBoard is not installed; pip install 'mt3[tensorboard]' or drop --tensorboard."
        ) from None
    return SummaryWriter(str(out / "tensorboard"))
