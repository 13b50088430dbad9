"""The inner step, shared by meta-training and test-time adaptation, and `Adapter`, which adapts to single images."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mt3.adaptation.averages import UNADAPTED, averaged_logits, check_images, image_generator
from mt3.models.classifier import BOUNDS, MT3Model, as_float, refuse_batch_norm
from mt3.objectives.selfsup import Outputs, Views, draw_test_views, selfsup_loss, stack_views
from mt3.support.errors import InputError, check_number
from mt3.support.threads import count_threads, shell, side_by_side, undisturbed

CPU_BUDGET = 4 << 20  # bytes of a stack's largest activation
DEVICE_BUDGET = 64 << 20

Params = dict[str, Tensor]
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def forward(model: nn.Module, params: Params, images: Tensor) -> Outputs:
    """All heads' outputs of the model with these parameters in place of its own."""
    outputs: Outputs = functional_call(model, params, (images,), {"full": True})
    return outputs


def stack_params(params: Params, count: int) -> Params:
    """The same parameters `count` times, as a stack; no copy."""
    return {name: p.expand(count, *p.shape) for name, p in params.items()}


def clip_gradients(
    gradients: Sequence[Tensor], norm: float | None, mode: str, stacked: bool = False
) -> tuple[list[Tensor], Tensor]:
    """Scale gradients down to the norm, one norm for all ("global") or each its own ("tensor").

    Differentiable through the scale factor. Returns the gradients and their global norm before clipping; for stacked
    gradients (S, ...) the S members are clipped one by one, and the norms are (S,).
    """
    lead = 1 if stacked else 0
    norms = torch.stack([torch.linalg.vector_norm(g.flatten(lead), dim=-1) for g in gradients])
    total = torch.linalg.vector_norm(norms, dim=0)
    if norm is None:
        return list(gradients), total
    scales = norm / (total.expand_as(norms) if mode == "global" else norms).clamp(min=norm)
    return [g * _leading(s, g) for g, s in zip(gradients, scales, strict=True)], total


def inner_step(
    loss: Tensor,
    params: Params,
    adapted: Sequence[str],
    lr: float,
    clip: float | None = None,
    clip_mode: str = "global",
    second_order: bool = False,
    factors: Mapping[str, Tensor] | None = None,
) -> tuple[Params, Tensor]:
    """One gradient step on the self-supervised loss: phi <- phi - alpha * clip(grad).

    Returns the new parameters, of which only those named in `adapted` differ, and the gradient's norm. With
    `second_order` the step stays differentiable, so that the meta-gradient is exact. Losses (S,) of stacked parameters
    give each member its own step. `factors` multiply alpha, tensor by tensor.
    """
    gradients = torch.autograd.grad(loss.sum(), [params[name] for name in adapted], create_graph=second_order)
    clipped, norm = clip_gradients(gradients, clip, clip_mode, stacked=loss.dim() == 1)
    if factors is not None:
        pairs = zip(adapted, clipped, strict=True)
        clipped = [g * _leading(factors[name], g) if name in factors else g for name, g in pairs]
    stepped = {name: params[name] - lr * g for name, g in zip(adapted, clipped, strict=True)}
    return params | stepped, norm


def _leading(scale: Tensor, like: Tensor) -> Tensor:
    """A scale, or one for each member of a stack, in a shape that multiplies `like`."""
    return scale.view(*scale.shape, *[1] * (like.dim() - scale.dim()))


class Inner(NamedTuple):
    """What the inner loop gives."""

    params: Params  # phi
    loss: Tensor  # self-supervised, before the first step
    grad_norm: Tensor  # of the first step, before clipping
    outputs: Outputs  # of the meta-model for the first views


def inner_loop(
    model: MT3Model,
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
    gradient. With stacked parameters and views, every member of the stack has its own steps.
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
        factors = model.rate_factors(theta, step)
        stepped, norm = inner_step(loss, phi, adapted, lr, clip, clip_mode, second_order, factors)
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
    """A model adapted to one image, or models adapted to a stack of images: then everything is stacked."""

    model: MT3Model  # gives the network
    params: Params  # phi
    first_views: Views
    inner: Inner
    view_average: Tensor  # probabilities (classes,) averaged over the views without adapting


class Answers(NamedTuple):
    """What adapted models say."""

    logits: Tensor  # (N, n, classes), of the n images asked about, by the model adapted to each of N images
    view_average: Tensor  # probabilities (N, classes), averaged over the views without adapting


Method = Callable[Concatenate["Adapter", Arguments], Result]


def _undisturbed(method: Method[Arguments, Result]) -> Method[Arguments, Result]:
    """A method of an adapter that computes the same whatever surrounds its caller."""

    @wraps(method)
    def run(self: "Adapter", /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with undisturbed(self.model.stem.weight.device):
            return method(self, *args, **kwargs)

    return run


class Adapter(nn.Module):
    """Adapts the model to each image on its own, predicts, and discards the step.

    What is None comes from the model. The model's weights are never changed, and any number of threads may call one
    adapter at a time. An image's views depend only on the seed and the image's content, so its answer does not depend
    on the batch, the order or the process, nor on PyTorch's default type or an autocast around the call.
    """

    def __init__(
        self,
        model: MT3Model,
        steps: int | None = None,
        lr: float | None = None,
        views: int | None = None,  # K_T: pairs for byol, copies for rotation
        seed: int = 0,
        adapt_layers: str | None = None,  # all, norm or last
        stack: int | None = None,  # images adapted to at once; None: as many as pay
        average: int | None = None,  # shifted and mirrored copies that share in a prediction; 0: the image alone
        gate: float | None = None,  # an image of which the model is this sure is not adapted to; 1: all are
    ) -> None:
        super().__init__()
        if not isinstance(model, MT3Model):
            raise InputError(
                f"Expected an MT3Model, whose heads and layers adapting needs, got a {type(model).__name__}; "
                "load one with mt3.load or make one with mt3.MT3Model."
            )
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
        self.stack = stack
        self.average = model.adapt_average if average is None else average
        self.gate = model.adapt_gate if gate is None else gate
        for name in ("steps", "lr", "views", "average", "gate"):
            check_number(name, getattr(self, name), *BOUNDS[f"adapt_{name}"])
        self.steps, self.views, self.average = int(self.steps), int(self.views), int(self.average)
        self.lr, self.gate = float(self.lr), float(self.gate)  # not NumPy's
        check_number("seed", seed, -(2**63), 2**63 - 1)
        if stack is not None:
            check_number("stack", stack, 1, 10_000)

    @_undisturbed
    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes) after adapting to each image."""
        images = check_images(images)
        if self.gate == 1:
            return self.answer(images, images[:, None]).logits[:, 0]
        logits = self.unadapted(images)
        unsure = ~self.keeps(logits)
        if unsure.any():
            own = images[unsure.to(images.device)]
            logits[unsure] = self._answer(own, own[:, None]).logits[:, 0]
        return logits

    @_undisturbed
    def answer(self, images: Tensor, others: Tensor) -> Answers:
        """Adapt to each of N images and predict others (N, n, 3, 32, 32): row i with the model adapted to image i."""
        images = check_images(images)
        if not isinstance(others, Tensor) or others.dim() != 5 or len(others) != len(images):
            came = tuple(others.shape) if isinstance(others, Tensor) else type(others).__name__
            raise InputError(f"Expected others of shape ({len(images)}, n, 3, 32, 32), n for each image, got {came}.")
        check_images(others.flatten(0, 1))
        answers = self._answer(images, others)
        if self.gate < 1:
            before = self.unadapted(others.flatten(0, 1)).view_as(answers.logits)
            kept = torch.where(self.keeps(before)[..., None], before, answers.logits)
            answers = answers._replace(logits=kept)
        return answers

    def _answer(self, images: Tensor, others: Tensor) -> Answers:
        """As `answer`, without a gate."""

        def answer(adapted: Adapted, rows: slice) -> Answers:
            return Answers(self._logits(adapted.model, adapted.params, others[rows]), adapted.view_average)

        found = list(self._each_stack(images, answer))
        if not found:
            empty = self.model.classify.weight.new_zeros(0, others.shape[1], self.model.num_classes)
            return Answers(empty, empty.flatten(0, 1))
        return Answers(*(torch.cat(column) for column in zip(*found, strict=True)))

    @_undisturbed
    def compare(self, images: Tensor) -> Comparison:
        """Logits, self-supervised loss and gradient norm, before and after adapting to each image."""
        images = check_images(images)

        def compare(adapted: Adapted, rows: slice) -> tuple[Tensor, ...]:
            own, views = images[rows, None], adapted.first_views
            with torch.no_grad():
                outputs = forward(adapted.model, adapted.params, views.images)
                loss_after = selfsup_loss(outputs, views, _projection(adapted.inner.outputs))
            before = self._logits(adapted.model, _leaves(adapted.model, len(own)), own)[:, 0]
            after = self._logits(adapted.model, adapted.params, own)[:, 0]
            if self.gate < 1:
                sure = self.keeps(before)
                after = torch.where(sure[:, None], before, after)
                loss_after = torch.where(sure, adapted.inner.loss, loss_after)
            return before, after, adapted.view_average, adapted.inner.loss, loss_after, adapted.inner.grad_norm

        found = list(self._each_stack(images, compare))
        if not found:
            raise InputError("Expected at least one image to compare, got an empty batch.")
        return Comparison(*(torch.cat(column) for column in zip(*found, strict=True)))

    @_undisturbed
    def adapt(self, images: Tensor) -> Iterator[Adapted]:
        """Adapt to each image and give the adapted models, one by one."""
        stacks = self._each_stack(check_images(images), lambda adapted, rows: adapted)
        return (_member(shell(self.model), stack, i) for stack in stacks for i in range(len(stack.view_average)))

    @_undisturbed
    def logits(self, params: Params, images: Tensor) -> Tensor:
        """Logits (N, classes) of images under adapted parameters."""
        return self._logits(shell(self.model), params, check_images(images))

    @_undisturbed
    def unadapted(self, images: Tensor) -> Tensor:
        """Logits (N, classes) of the model as it is, averaged over copies as the adapted ones are."""
        model, parts = shell(self.model), torch.split(check_images(images), UNADAPTED)
        params: Params = dict(model.named_parameters())
        return torch.cat([self._logits(model, params, part) for part in parts])

    def stack_for(self, count: int) -> int:
        """How many of `count` images are adapted to at once."""
        return self.stack or stack_size(self.model, count, self._views_of_image())

    def _views_of_image(self) -> int:
        return 2 * self.views if self.model.selfsup == "byol" else self.views

    @_undisturbed
    def keeps(self, logits: Tensor) -> Tensor:
        """Which answers are so sure before adapting that they stay; with a gate of 1 none."""
        return (logits.softmax(-1).amax(-1) >= self.gate) & (self.gate < 1)

    def _each_stack(self, images: Tensor, use: Callable[[Adapted, slice], Result]) -> Iterator[Result]:
        """Adapt to the images, stack by stack, and yield `use(adapted, rows)`.

        On a CPU several stacks are computed at once, in threads, so `use` must not change what they share.
        """
        size = max(1, min(self.stack_for(len(images)), len(images)))
        check_memory(self.model, size * self._views_of_image())
        stacks = [slice(start, start + size) for start in range(0, len(images), size)]

        def adapt_stack(model: MT3Model, rows: slice) -> Result:
            with undisturbed(model.stem.weight.device), torch.inference_mode(False), torch.enable_grad():
                own = images[rows].clone(memory_format=torch.contiguous_format)
                return use(self._adapt_stack(model, own), rows)

        return side_by_side(adapt_stack, self.model, stacks, count_threads(self.model, len(stacks)))

    def _logits(self, model: MT3Model, params: Params, images: Tensor) -> Tensor:
        device, dtype = model.stem.weight.device, model.stem.weight.dtype
        with torch.inference_mode(False), torch.no_grad():
            batch = as_float(images.to(device).clone(), dtype)
            return averaged_logits(
                lambda x: functional_call(model, params, (x,)), images, batch, self.average, self.seed
            )

    def _adapt_stack(self, model: MT3Model, images: Tensor) -> Adapted:
        generators = [image_generator(image, self.seed) for image in images]
        images = as_float(images.to(model.stem.weight.device), model.stem.weight.dtype)
        drawn: list[tuple[Views, Tensor]] = []

        def draw(step: int) -> Views:
            if step == 0 or model.fresh_views:
                pairs = [
                    draw_test_views(image, model.selfsup, self.views, generator, model.crop_max)
                    for image, generator in zip(images, generators, strict=True)
                ]
                drawn[1:] = []  # the first views are needed later, the others only now
                views = stack_views([views for views, _ in pairs])
                same = pairs[0][1] is pairs[0][0].images
                drawn.append((views, views.images if same else torch.stack([upright for _, upright in pairs])))
            return drawn[-1][0]

        theta = _leaves(model, len(images))
        inner = inner_loop(model, theta, draw, self.names, self.steps, self.lr, model.adapt_clip, model.clip_mode)
        views, upright = drawn[0]
        with torch.no_grad():
            view_logits = inner.outputs.logits
            if upright is not views.images:
                view_logits = model(upright.flatten(0, 1)).view(*upright.shape[:2], -1)
            average = view_logits.softmax(-1).mean(1)
        params = {name: p.detach() for name, p in inner.params.items()}
        return Adapted(model, params, views, inner, average)


def _leaves(model: MT3Model, count: int) -> Params:
    """A stack of the model's parameters to differentiate by."""
    with torch.inference_mode(False):
        own = {name: p.clone() if p.is_inference() else p.detach() for name, p in model.named_parameters()}
        return {name: p.requires_grad_() for name, p in stack_params(own, count).items()}


def _member(model: MT3Model, stack: Adapted, i: int) -> Adapted:
    """One of the models adapted in a stack, with a network of its own: a thread may be using the stack's."""
    inner = stack.inner
    quarters = stack.first_views.quarters
    return stack._replace(
        model=model,
        params={name: p[i] for name, p in stack.params.items()},
        first_views=Views(stack.first_views.images[i], None if quarters is None else quarters[i]),
        inner=Inner(
            {name: p[i] for name, p in inner.params.items()},
            inner.loss[i],
            inner.grad_norm[i],
            Outputs(*(None if t is None else t[i] for t in inner.outputs)),  # type: ignore[arg-type]
        ),
        view_average=stack.view_average[i],
    )


def stack_size(model: MT3Model, items: int, images: int) -> int:
    """How many of the tasks or images to adapt to at once, each with that many images in its passes.

    Together they keep the largest activation within a budget: on a CPU what its caches hold, since more than that is no
    faster one by one; on an accelerator, what fits into its memory some hundred times. There is one for each thread.
    """
    budget = CPU_BUDGET if model.stem.weight.device.type == "cpu" else DEVICE_BUDGET
    return max(1, min(budget // _activation(model, images), -(-items // count_threads(model, items))))


def check_memory(model: MT3Model, images: int) -> None:
    """Refuse to adapt with more images in a pass than the machine can hold; a system may end the process instead.

    Counted is what surely lies in memory: a block keeps four activations for its gradient, each stage's being half as
    large as those of the stage before. An accelerator says by itself what does not fit.
    """
    needed = 7 * len(model.stage1) * _activation(model, images)
    if model.stem.weight.device.type == "cpu" and needed > (there := machine_memory()):
        raise InputError(
            f"Adapting with {images} images in a pass takes at least {needed / 2**30:.1f} GB of memory, and this "
            f"machine has {there / 2**30:.1f} GB; lower views or stack."
        )


def machine_memory() -> float:
    """Bytes of memory that this machine has, as far as its system says."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else float("inf")


def _activation(model: MT3Model, images: int) -> int:
    """Bytes of the largest activation in a pass over so many images."""
    weight = model.stem.weight
    return images * weight.shape[0] * 32 * 32 * weight.element_size()


def _projection(outputs: Outputs) -> Tensor | None:
    return None if outputs.projection is None else outputs.projection.detach()
