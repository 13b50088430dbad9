"""The inner step, shared by meta-training and test-time adaptation, and `Adapter`, which adapts to single images."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mt3.augment import seeded_generator
from mt3.errors import InputError
from mt3.model import MT3Model, Outputs, as_float, refuse_batch_norm
from mt3.parallel import count_threads, side_by_side
from mt3.selfsup import Views, draw_test_views, selfsup_loss

Params = dict[str, Tensor]
Predict = Callable[[Tensor], Tensor]  # images to logits
Result = TypeVar("Result")


def forward(model: nn.Module, params: Params, images: Tensor) -> Outputs:
    """All heads' outputs of the model with these parameters in place of its own."""
    outputs: Outputs = functional_call(model, params, (images,), {"full": True})
    return outputs


def clip_gradients(gradients: Sequence[Tensor], norm: float | None, mode: str) -> tuple[list[Tensor], Tensor]:
    """Scale gradients down to the norm, one norm for all ("global") or each its own ("tensor").

    Differentiable through the scale factor. Returns the gradients and their global norm before clipping.
    """
    norms = torch.stack([torch.linalg.vector_norm(g) for g in gradients])
    total = torch.linalg.vector_norm(norms)
    if norm is None:
        return list(gradients), total
    if mode == "global":
        scale = norm / total.clamp(min=norm)
        return [g * scale for g in gradients], total
    scales = norm / norms.clamp(min=norm)
    return [g * s for g, s in zip(gradients, scales, strict=True)], total


def inner_step(
    loss: Tensor,
    params: Params,
    adapted: Sequence[str],
    lr: float,
    clip: float | None = None,
    clip_mode: str = "global",
    second_order: bool = False,
) -> tuple[Params, Tensor]:
    """One gradient step on the self-supervised loss: phi <- phi - alpha * clip(grad).

    Returns the new parameters, of which only those named in `adapted` differ, and the gradient's norm. With
    `second_order` the step stays differentiable, so that the meta-gradient is exact.
    """
    gradients = torch.autograd.grad(loss, [params[name] for name in adapted], create_graph=second_order)
    clipped, norm = clip_gradients(gradients, clip, clip_mode)
    stepped = {name: params[name] - lr * g for name, g in zip(adapted, clipped, strict=True)}
    return params | stepped, norm


class Inner(NamedTuple):
    """What the inner loop gives."""

    params: Params  # phi
    loss: Tensor  # self-supervised, before the first step
    grad_norm: Tensor  # of the first step, before clipping
    outputs: Outputs  # of the meta-model for the first views


def inner_loop(
    model: nn.Module,
    theta: Params,
    draw: Callable[[int], Views],
    adapted: Sequence[str],
    steps: int,
    lr: float,
    clip: float | None = None,
    clip_mode: str = "global",
    target: str = "meta",
    second_order: bool = False,
    ema: Params | None = None,
) -> Inner:
    """Adapt theta in `steps` inner steps.

    `draw(step)` gives the views of a step; the same ones again are recognised. The targets z come from the
    meta-model ("meta"), from the parameters that the step starts from ("previous") or from `ema`; they never carry a
    gradient.
    """
    source = ema if target == "ema" else theta
    assert source is not None
    phi, z = theta, None
    views: Views | None = None
    first: tuple[Tensor, Tensor, Outputs] | None = None
    for step in range(max(steps, 1)):
        before, views = views, draw(step)
        outputs = forward(model, phi, views.images)
        if outputs.projection is not None:
            shared = target == "previous" or (step == 0 and target == "meta")
            if shared:  # phi gives the targets as well: one pass serves both
                z = outputs.projection.detach()
            elif views is not before:
                with torch.no_grad():
                    z = forward(model, source, views.images).projection
        loss = selfsup_loss(outputs, views, z)
        stepped, norm = inner_step(loss, phi, adapted, lr, clip, clip_mode, second_order)
        if first is None:
            first = (loss.detach(), norm.detach(), outputs)
        if steps:
            phi = stepped
    assert first is not None
    return Inner(phi, *first)


@dataclass(frozen=True)
class Comparison:
    """Before and after adapting, for a batch of images."""

    before: Tensor  # logits (N, classes)
    after: Tensor  # logits (N, classes)
    view_average: Tensor  # probabilities (N, classes), averaged over the views without adapting
    loss_before: Tensor  # self-supervised loss (N,), on the views of the first step
    loss_after: Tensor  # the same after the steps
    grad_norm: Tensor  # (N,), of the first step, before clipping


class Adapted(NamedTuple):
    """A model adapted to one image."""

    model: MT3Model  # gives the network
    params: Params  # phi
    first_views: Views
    inner: Inner
    view_average: Tensor  # probabilities (classes,) averaged over the views without adapting


class Adapter(nn.Module):
    """Adapts the model to each image on its own, predicts, and discards the step.

    What is None comes from the model. The model's weights are never changed. An image's views depend only on the
    seed and the image's content, so its answer does not depend on the batch, the order or the process.
    """

    def __init__(
        self,
        model: MT3Model,
        steps: int | None = None,
        lr: float | None = None,
        views: int | None = None,  # K_T: pairs for byol, copies for rotation
        seed: int = 0,
        adapt_layers: str | None = None,  # all, norm or last
    ) -> None:
        super().__init__()
        refuse_batch_norm(model)
        if model.selfsup == "none":
            raise InputError("This model has no self-supervised task to adapt with; use model(images) as it is.")
        self.model = model
        self.steps = model.adapt_steps if steps is None else steps
        self.lr = model.adapt_lr if lr is None else lr
        self.views = model.adapt_views if views is None else views
        self.seed = seed
        self.layers = model.adapt_layers if adapt_layers is None else adapt_layers
        self.names = model.adapted_names(self.layers)
        if self.steps < 0 or self.views < 1 or not 0 <= self.lr < math.inf:
            raise InputError(
                f"Expected steps >= 0, views >= 1 and a finite lr >= 0, got {self.steps}, {self.views} and {self.lr}."
            )

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes) after adapting to each image."""
        images = check_images(images)
        answers = list(self.each(images, lambda adapted, predict, i: predict(images[i : i + 1])))
        return torch.cat(answers) if answers else self.model.classify.weight.new_zeros(0, self.model.num_classes)

    def compare(self, images: Tensor) -> Comparison:
        """Logits, self-supervised loss and gradient norm, before and after adapting to each image."""
        images = check_images(images)
        theta = self._theta()

        def compare(adapted: Adapted, predict: Predict, i: int) -> tuple[Tensor, ...]:
            image, views = images[i : i + 1], adapted.first_views
            with torch.no_grad():
                outputs = forward(adapted.model, adapted.params, views.images)
                loss_after = selfsup_loss(outputs, views, _projection(adapted.inner.outputs))
            before = self._logits(adapted.model, theta, image)[0]
            loss, norm = adapted.inner.loss, adapted.inner.grad_norm
            return before, predict(image)[0], adapted.view_average, loss, loss_after, norm

        rows = list(self.each(images, compare))
        if not rows:
            raise InputError("Expected at least one image to compare, got an empty batch.")
        return Comparison(*(torch.stack(column) for column in zip(*rows, strict=True)))

    def each(self, images: Tensor, use: "Callable[[Adapted, Predict, int], Result]") -> Iterator[Result]:
        """Adapt to each image and yield `use(adapted, predict, index)`; `predict(images)` gives the adapted logits.

        On a CPU several images are computed at once, in threads, so `use` must not change what they share.
        """
        images = check_images(images)

        def adapt_one(model: MT3Model, index: int) -> Result:
            with torch.inference_mode(False), torch.enable_grad():
                adapted = self._adapt_one(model, images[index].clone(memory_format=torch.contiguous_format))
                return use(adapted, lambda others: self._logits(model, adapted.params, others), index)

        return side_by_side(adapt_one, self.model, range(len(images)), count_threads(self.model, len(images)))

    def adapt(self, images: Tensor) -> Iterator[Adapted]:
        """Adapt to each image and yield the adapted models."""
        return self.each(images, lambda adapted, predict, index: adapted)

    def logits(self, params: Params, images: Tensor) -> Tensor:
        """Logits of images under adapted parameters."""
        return self._logits(self.model, params, images)

    def _logits(self, model: MT3Model, params: Params, images: Tensor) -> Tensor:
        device, dtype = model.stem.weight.device, model.stem.weight.dtype
        with torch.inference_mode(False), torch.no_grad():
            batch = as_float(images.to(device).clone(), dtype)
            logits: Tensor = functional_call(model, params, (batch,))
        return logits

    def _theta(self) -> Params:
        def leaf(p: Tensor) -> Tensor:
            return (p.clone() if p.is_inference() else p.detach()).requires_grad_()

        with torch.inference_mode(False):
            return {name: leaf(p) for name, p in self.model.named_parameters()}

    def _adapt_one(self, model: MT3Model, image: Tensor) -> Adapted:
        generator = image_generator(image, self.seed)
        image = as_float(image.to(model.stem.weight.device), model.stem.weight.dtype)
        drawn: list[tuple[Views, Tensor]] = []

        def draw(step: int) -> Views:
            if step == 0 or model.fresh_views:
                pair = draw_test_views(image, model.selfsup, self.views, generator, model.crop_max)
                drawn[1:] = []  # the first views are needed later, the others only now
                drawn.append(pair)
            return drawn[-1][0]

        inner = inner_loop(
            model, self._theta(), draw, self.names, self.steps, self.lr, model.adapt_clip, model.clip_mode
        )
        views, upright = drawn[0]
        with torch.no_grad():
            view_logits = inner.outputs.logits if upright is views.images else model(upright)
            average = view_logits.softmax(1).mean(0)
        params = {name: p.detach() for name, p in inner.params.items()}
        return Adapted(model, params, views, inner, average)


def view_average(model: MT3Model, images: Tensor, seed: int = 0, views: int | None = None) -> Tensor:
    """Probabilities (N, classes) averaged over each image's views without adapting, for a model of any task."""
    task = "rotation" if model.hidden is None else "byol"  # Sun et al.'s network meets its own kind of views
    averages = []
    with torch.no_grad():
        for image in check_images(images):
            scaled = as_float(image.to(model.stem.weight.device), model.stem.weight.dtype)
            generator = image_generator(image, seed)
            _, upright = draw_test_views(scaled, task, views or model.adapt_views, generator, model.crop_max)
            averages.append(model(upright).softmax(1).mean(0))
    return torch.stack(averages)


def _projection(outputs: Outputs) -> Tensor | None:
    return None if outputs.projection is None else outputs.projection.detach()


def check_images(images: Tensor) -> Tensor:
    """Require a tensor (N, 3, 32, 32), uint8 or float in [0, 1]."""
    if not isinstance(images, Tensor):
        raise InputError(f"Expected images as a torch tensor, got {type(images).__name__}; use torch.from_numpy.")
    if images.ndim != 4 or tuple(images.shape[1:]) != (3, 32, 32):
        raise InputError(f"Expected images of shape (N, 3, 32, 32), got {tuple(images.shape)}; resize or permute them.")
    if images.dtype == torch.uint8:
        return images
    if not images.is_floating_point():
        raise InputError(f"Expected uint8 images or floats in [0, 1], got {images.dtype}.")
    if len(images):
        low, high = images.aminmax()
        if not (low >= 0 and high <= 1):
            raise InputError(f"Expected float images in [0, 1], got values from {low:.4g} to {high:.4g}; scale them.")
    return images


def image_generator(image: Tensor, seed: int) -> torch.Generator:
    """A generator seeded by (seed, content): the content is taken to 16 bits, the same for uint8 and float images."""
    content = (as_float(image.cpu(), torch.float64) * 65535).round().to(torch.int32)
    return seeded_generator("views", seed, content.numpy().tobytes())
