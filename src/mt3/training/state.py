"""What a training changes: the model, its optimizer and its moving averages."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors
from torch import Tensor, nn

from mt3.config.config import Config
from mt3.data import Dataset
from mt3.models.call import Params
from mt3.models.classifier import MT3Model
from mt3.models.store import load
from mt3.networks.init import INITS
from mt3.networks.norms import refuse_training_statistics
from mt3.networks.resnet import ResNet
from mt3.networks.widen import LEAST_GROUPS, widen_inputs, widen_weights
from mt3.objectives.augment import seeded_generator
from mt3.support import ranks
from mt3.support.errors import InputError
from mt3.training.tasks import images_per_task

TRUNK = "backbone."  # how the names of its parameters begin


@dataclass
class State:
    """Everything that changes while training; with the config and the step it is all that a checkpoint holds."""

    model: MT3Model
    optimizer: torch.optim.SGD
    ema: Params | None  # moving average that gives the targets of joint training, or of the inner loss
    average: Params | None = None  # of the weights over the steps; becomes the finished model
    recompute: bool = False  # inner steps twice instead of keeping their graph; not part of a checkpoint


def build_model(config: Config, dataset: Dataset) -> MT3Model:
    """A fresh model of the config's network, its weights drawn from the config's seed."""
    model = MT3Model(
        f"resnet{config.depth}x{config.width}",
        dataset.num_classes,
        config.objective,
        config.hidden,
        config.projection,
        size=dataset.size,
        classes=list(dataset.classes),
        adaptation=config.test,
        precision="float32" if config.precision == "auto" else config.precision,  # a run has settled it, a plan has not
    )
    model.reset_parameters(seeded_generator("weights", config.seed))
    INITS[config.first_weights](model)
    return model


def make_state(
    config: Config, dataset: Dataset, device: torch.device, init: Path | None = None, model: MT3Model | None = None
) -> State:
    """The state before the first step, of the config's network or of a given model.

    `init` gives a run whose weights are taken over where names and shapes fit; those of half the width are widened.
    """
    model = build_model(config, dataset) if model is None else model.eval()
    if init is not None:
        take_weights(model, load(init, copy.deepcopy(model.foreign)), init, seeded_generator("widen", config.seed))
    _check_task(model, config)
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError("No weight of the model is to be trained; call requires_grad_() on those that are.")
    refuse_training_statistics(model)
    model.to(device)
    optimizer = torch.optim.SGD(
        parameter_groups(model, config), lr=config.lr, momentum=config.momentum, nesterov=config.nesterov
    )
    ema, has_target = None, model.objective is not None and model.objective.has_target
    asked = config.training == "meta" and config.inner_target == "ema"
    if asked and not has_target:
        raise InputError(
            f"The objective {config.objective} has no targets, which inner_target=ema would give; choose meta."
        )
    if has_target and (asked or config.training == "joint"):
        start = model
        if config.variant == "official":  # where the average begins with random weights of its own
            start = build_model(config, dataset).to(device)
            start.reset_parameters(seeded_generator("target", config.seed))
        ema = _copy(start)
    return State(model, optimizer, ema, _copy(model) if config.average else None)


def _check_task(model: MT3Model, config: Config) -> None:
    """Refuse tasks that the objective has no use for."""
    of_one_image = model.objective is not None and model.objective.of_one_image and config.training != "ce"
    if of_one_image and (config.training != "meta" or images_per_task(config) != 1):
        raise InputError(
            f"The objective {config.objective} is of copies of one image, got {config.training} training with "
            f"{images_per_task(config)} images in a task; choose meta training with task_images=1, or byol."
        )


def parameter_groups(model: MT3Model, config: Config) -> list[dict[str, Any]]:
    """What the optimizer updates: with decay, and without where norms and biases are spared."""
    spared = [p for p in model.parameters() if p.dim() < 2 and not config.decay_norms]
    decayed = [p for p in model.parameters() if p.dim() >= 2 or config.decay_norms]
    return [{"params": decayed, "weight_decay": config.weight_decay}, {"params": spared, "weight_decay": 0.0}]


def _copy(model: MT3Model) -> Params:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def take_weights(model: MT3Model, source: MT3Model, name: str | Path, generator: torch.Generator) -> None:
    """Take over the weights of `source` whose names and shapes fit; heads that it lacks keep their fresh weights.

    A source of half the width gives the same answers from twice the filters (see `networks.widen`).
    """
    own, given, times = model.state_dict(), source.state_dict(), 1
    if isinstance(model.backbone, ResNet) and isinstance(source.backbone, ResNet):
        _, width, groups = source.backbone.shape
        if model.backbone.shape[1] == 2 * width and groups >= LEAST_GROUPS:
            given, times = _widened(given, width, generator), 2
    fitting = {n: t for n, t in given.items() if n in own and own[n].shape == t.shape}
    unfit = sorted(n for n in own.keys() | given.keys() if n.startswith(TRUNK) and n not in fitting)
    if unfit or _norm_groups(model) != [times * groups for groups in _norm_groups(source)]:
        where = f" at {unfit[0].removeprefix(TRUNK)}" if unfit else " in the groups of its norms"
        raise InputError(f"The network of {name} differs from this run's{where}; give both the same network.")
    model.load_state_dict(own | fitting)


def _widened(weights: dict[str, Tensor], width: int, generator: torch.Generator) -> dict[str, Tensor]:
    """The backbone of twice the width, and the layer that reads its features."""
    trunk = {n.removeprefix(TRUNK): t for n, t in weights.items() if n.startswith(TRUNK)}
    wide = {TRUNK + n: t for n, t in widen_weights(trunk, width, generator).items()}
    reader = "hidden.weight" if "hidden.weight" in weights else "classify.weight"
    return weights | wide | {reader: widen_inputs(weights[reader], width, generator)}


def _norm_groups(model: MT3Model) -> list[int]:
    """What the weights of a backbone do not show."""
    trunk = (module for name, module in model.named_modules() if name.startswith(TRUNK))
    return [module.num_groups for module in trunk if isinstance(module, nn.GroupNorm)]


def finished_model(state: State) -> MT3Model:
    """The model that a training gives if it ends here: with the averaged weights, if there are any."""
    if state.average is None:
        return state.model
    model = copy.deepcopy(state.model)
    model.load_state_dict(state.average, strict=False)  # the averages are of weights, not of buffers
    return model


def state_tensors(state: State) -> dict[str, Tensor]:
    """The state as named tensors."""
    tensors: dict[str, Tensor] = {f"model.{n}": p for n, p in state.model.named_parameters()}
    for name, p in state.model.named_parameters():
        buffer = state.optimizer.state.get(p, {}).get("momentum_buffer")
        if buffer is not None:
            tensors[f"momentum.{name}"] = buffer
    for kind, params in (("ema", state.ema), ("average", state.average)):
        tensors |= {f"{kind}.{n}": t for n, t in (params or {}).items()}
    return tensors


def restore_state(state: State, tensors: dict[str, Tensor]) -> None:
    """Set the state to that of a checkpoint of the same network."""
    held = {n.removeprefix("model."): t.shape for n, t in tensors.items() if n.startswith("model.")}
    if held != {n: p.shape for n, p in state.model.named_parameters()}:
        raise InputError("The checkpoint is of another network than the model; give the one that the run began with.")
    with torch.no_grad():
        for name, p in state.model.named_parameters():
            p.copy_(tensors[f"model.{name}"])
            if f"momentum.{name}" in tensors:
                state.optimizer.state[p]["momentum_buffer"] = tensors[f"momentum.{name}"].to(p.device)
            for kind, params in (("ema", state.ema), ("average", state.average)):
                if params is not None:
                    params[name].copy_(tensors[f"{kind}.{name}"])


def share_state(state: State, step: int) -> int:
    """Give all ranks the first one's state and step: it alone has read a checkpoint or the weights to begin with."""
    if ranks.world() == 1:
        return step
    told = state_tensors(state) | {f"buffer.{n}": t for n, t in state.model.named_buffers()}
    plain = {name: t.detach().cpu().contiguous() for name, t in told.items()} | {"step": torch.tensor(step)}
    given = read_tensors(ranks.share(write_tensors(plain) if ranks.is_main() else b""))
    restore_state(state, given)
    buffers = {n.removeprefix("buffer."): t for n, t in given.items() if n.startswith("buffer.")}
    state.model.load_state_dict(buffers, strict=False)
    return int(given["step"])
