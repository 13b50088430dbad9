"""Other ways to compute the same: a textbook loop in plain PyTorch, and the libraries that have such loops.

All run on PyTorch's own convolution and group norm. The textbook loop has a forward pass of its own for a, for a-tilde
and for their targets, as the paper's algorithms read; with the libraries, passes over the same parameters are joined.
The libraries have an update rule of their own; the textbook loop takes the package's inner step, which costs next to
nothing: what it does differently is how the passes are made.
"""

import copy
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from mt3.adaptation.step import inner_loop, inner_step
from mt3.config.config import Config
from mt3.models.call import Params
from mt3.models.classifier import MT3Model
from mt3.networks.layers import Conv2d, GroupNorm, Linear
from mt3.objectives.augment import as_float
from mt3.objectives.byol import byol_loss
from mt3.objectives.objective import Outputs, Views
from mt3.training.losses import meta_loss
from mt3.training.state import State
from mt3.training.tasks import Task

EXTRA = "pip install -c constraints.txt '.[bench]'"

TaskLoss = Callable[["PeerModel", Task, Config], Tensor]  # the outer loss of a task, differentiable in the parameters
Adapt = Callable[["PeerModel", Tensor, Views], Tensor]  # logits of an image (1, 3, H, W) after adapting on its views
Peer = TypeVar("Peer")


class Absent(NamedTuple):
    """A peer that is not measured."""

    name: str
    reason: str
    install: str = EXTRA


class PeerModel(MT3Model):
    """The model for peers, which know `forward` alone: with `full` it gives what all heads say."""

    def forward(self, images: Tensor, full: bool = False) -> Any:
        return self.outputs(images) if full else super().forward(images)


def torch_layers(model: MT3Model) -> PeerModel:
    """A copy of the model with PyTorch's own layers."""
    plain = copy.deepcopy(model)
    plain.__class__ = PeerModel
    assert isinstance(plain, PeerModel)
    for module in plain.modules():
        if isinstance(module, Conv2d):
            module.__class__ = nn.Conv2d  # type: ignore[assignment]  # ours differ in `forward` alone
        elif isinstance(module, GroupNorm):
            module.__class__ = nn.GroupNorm  # type: ignore[assignment]
        elif isinstance(module, Linear):
            module.__class__ = nn.Linear  # type: ignore[assignment]
    return plain


def load_peers(loaders: dict[str, Callable[[], Peer]]) -> tuple[dict[str, Peer], list[Absent]]:
    """The peers that are installed, and those that are not."""
    peers: dict[str, Peer] = {}
    absent: list[Absent] = []
    for name, load in loaders.items():
        try:
            peers[name] = load()
        except ImportError as error:
            absent.append(Absent(name, str(error)))
    return peers, absent


def _textbook_loss(model: PeerModel, params: Params, a: Tensor, a_tilde: Tensor, z: Tensor, z_tilde: Tensor) -> Tensor:
    r = functional_call(model, params, (a,), {"full": True}).heads["r"]
    r_tilde = functional_call(model, params, (a_tilde,), {"full": True}).heads["r"]
    return ((2 - 2 * F.cosine_similarity(r, z_tilde)) + (2 - 2 * F.cosine_similarity(r_tilde, z))).mean()


def _targets(model: PeerModel, theta: Params, *batches: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return [functional_call(model, theta, (batch,), {"full": True}).heads["z"] for batch in batches]


def plain_loss(model: PeerModel, task: Task, config: Config) -> Tensor:
    """Algorithm 1 for one task, line by line."""
    assert task.views is not None
    theta: Params = dict(model.named_parameters())
    a, a_tilde = task.views.images.chunk(2)
    z, z_tilde = _targets(model, theta, a, a_tilde)
    phi = theta
    for _ in range(config.inner_steps):
        loss = _textbook_loss(model, phi, a, a_tilde, z, z_tilde)
        phi, _ = inner_step(loss, phi, model.adapted_names(config.layers), config.inner, second_order=True)
    logits = functional_call(model, phi, (task.images,))
    byol = _textbook_loss(model, phi, a, a_tilde, z, z_tilde)
    return F.cross_entropy(logits, task.labels) + config.gamma * byol


def plain_adapt(model: PeerModel, image: Tensor, views: Views) -> Tensor:
    """Algorithm 2 with one step, line by line."""
    theta: Params = dict(model.named_parameters())
    a, a_tilde = views.images.chunk(2)
    loss = _textbook_loss(model, theta, a, a_tilde, *_targets(model, theta, a, a_tilde))
    phi, _ = inner_step(loss, theta, model.adapted_names(model.adaptation.layers), model.adaptation)
    with torch.no_grad():
        logits: Tensor = functional_call(model, phi, (as_float(image),))
    return logits


def torch_layers_loss(model: PeerModel, task: Task, config: Config) -> Tensor:
    """This package's own loss; with PyTorch's layers, and task after task, it shows what these two bring."""
    return meta_loss(State(model, torch.optim.SGD(model.parameters()), None), task, config, False).total


def torch_layers_adapt(model: PeerModel, image: Tensor, views: Views) -> Tensor:
    """This package's own inner loop, likewise."""
    theta: Params = dict(model.named_parameters())
    inner = inner_loop(model, theta, lambda step: views, model.adaptation)
    with torch.no_grad():
        logits: Tensor = functional_call(model, inner.params, (as_float(image),))
    return logits


def _load_torchopt() -> TaskLoss:
    torchopt = importlib.import_module("torchopt")

    def loss(model: PeerModel, task: Task, config: Config) -> Tensor:
        assert task.views is not None
        optimizer = torchopt.MetaSGD(model, lr=config.inner_lr)
        theta = torchopt.extract_state_dict(model, by="reference")
        target = _library_steps(model, optimizer.step, task.views, config)
        total = _library_outer_loss(model, task, target, config)
        torchopt.recover_state_dict(model, theta)
        return total

    return loss


def _load_higher() -> TaskLoss:
    higher = importlib.import_module("higher")

    def loss(model: PeerModel, task: Task, config: Config) -> Tensor:
        assert task.views is not None
        optimizer = torch.optim.SGD(model.parameters(), lr=config.inner_lr)
        with higher.innerloop_ctx(model, optimizer, copy_initial_weights=False) as (patched, differentiable):
            target = _library_steps(patched, differentiable.step, task.views, config)
            return _library_outer_loss(patched, task, target, config)

    return loss


def _library_steps(model: Any, step: Callable[[Tensor], object], views: Views, config: Config) -> Tensor:
    """The inner steps with a library's optimizer; returns the targets."""
    target: Tensor | None = None
    for _ in range(config.inner_steps):
        outputs: Outputs = model(views.images, full=True)
        target = outputs.heads["z"].detach() if target is None else target
        step(byol_loss(outputs.heads["r"], target))
    assert target is not None
    return target


def _library_outer_loss(model: Any, task: Task, target: Tensor, config: Config) -> Tensor:
    assert task.views is not None
    k = len(task.images)
    outputs: Outputs = model(torch.cat([task.images, task.views.images]), full=True)
    ce = F.cross_entropy(outputs.logits[:k], task.labels)
    return ce + config.gamma * byol_loss(outputs.heads["r"][k:], target)


def _load_torch_ttt() -> Adapt:
    BaseEngine: Any = importlib.import_module("torch_ttt.engine.base_engine").BaseEngine

    class Engine(BaseEngine):  # type: ignore[misc]
        """The library's engine with the byol loss, which it does not have."""

        def __init__(self, model: PeerModel) -> None:
            super().__init__()
            self.model = model
            self.optimization_parameters = {"num_steps": 1, "copy_model": False}

        def ttt_forward(self, inputs: Tensor, views: Tensor) -> tuple[Tensor, Tensor]:
            outputs = self.model(views, full=True)
            return outputs.logits, byol_loss(outputs.heads["r"], outputs.heads["z"].detach())

    def adapt(model: PeerModel, image: Tensor, views: Views) -> Tensor:
        engine = copy.deepcopy(Engine(model)).eval()  # what its `copy_model` does, which knows Adam alone
        engine.optimizer = torch.optim.SGD(engine.model.parameters(), lr=model.adaptation.lr)
        logits, _ = engine(image, views=views.images)
        answer: Tensor = logits
        return answer

    return adapt


META_STEP: dict[str, Callable[[], TaskLoss]] = {
    "plain": lambda: plain_loss,
    "torch layers": lambda: torch_layers_loss,
    "torchopt": _load_torchopt,
    "higher": _load_higher,
}
ADAPT: dict[str, Callable[[], Adapt]] = {
    "plain": lambda: plain_adapt,
    "torch layers": lambda: torch_layers_adapt,
    "torch-ttt": _load_torch_ttt,
}
