"""`Adapter`: adapts a model to each single image, predicts, and discards the step."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from mt3.adaptation.step import Inner, inner_loop
from mt3.config.adaptation import FIELDS, Adaptation
from mt3.models.call import Params, call, parameters_of, stack_params
from mt3.models.classifier import MT3Model
from mt3.networks.norms import refuse_training_statistics
from mt3.objectives.augment import as_float, seeded_generator
from mt3.objectives.objective import Outputs, Views, stack_views
from mt3.objectives.registry import get_objective
from mt3.support.errors import InputError, check_number, one_of, shown
from mt3.support.machine import free_memory
from mt3.support.threads import count_threads, side_by_side, undisturbed

CPU_BUDGET = 4 << 20  # bytes of a stack's largest activation
DEVICE_BUDGET = 64 << 20
UNADAPTED = 100  # images in a pass without adapting

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


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
    """Parameters adapted to one image, or to a stack of images: then everything is stacked."""

    params: Params  # phi
    views: Views  # of the first step
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
        with undisturbed(self.model.device):
            return method(self, *args, **kwargs)

    return run


class Adapter(nn.Module):
    """Adapts the model to each image on its own, predicts, and discards the step.

    It does so as the model says, or as `adaptation` does; further arguments replace its fields: `Adapter(model,
    lr=0.05)`. The model's weights are never changed, and any number of threads may call one adapter at a time. An
    image's views depend only on the seed and the image's content, so its answer does not depend on the batch, the order
    or the process, nor on PyTorch's default type or an autocast around the call.
    """

    def __init__(
        self,
        model: MT3Model,
        adaptation: Adaptation | None = None,
        *,
        seed: int = 0,
        stack: int | None = None,  # images adapted to at once; None: as many as pay
        **fields: Any,
    ) -> None:
        super().__init__()
        if not isinstance(model, MT3Model):
            raise InputError(
                f"Expected an MT3Model, whose heads and layers adapting needs, got a {type(model).__name__}; "
                "load one with mt3.load or make one with mt3.MT3Model."
            )
        refuse_training_statistics(model)
        if model.objective is None:
            raise InputError("This model has no objective to adapt with; use model(images) as it is.")
        if not isinstance(adaptation, Adaptation | None):
            raise InputError(f"Expected an mt3.Adaptation or fields of one, as lr=0.05, got {shown(repr(adaptation))}.")
        unknown = [name for name in fields if name not in FIELDS]
        if unknown:
            raise InputError(one_of("field of an adaptation", unknown[0], FIELDS))
        self.model = model
        self.adaptation = replace(model.adaptation if adaptation is None else adaptation, **fields)
        self.seed, self.stack = seed, stack
        if self.adaptation.objective != model.adaptation.objective:
            raise InputError(
                f"This model has the heads of {model.adaptation.objective} to adapt with, not those of "
                f"{self.adaptation.objective}; leave the objective out."
            )
        model.adapted_names(self.adaptation.layers)  # refuses what could not change an answer
        check_number("seed", seed, -(2**63), 2**63 - 1)
        if stack is not None:
            check_number("stack", stack, 1, 10_000)

    @_undisturbed
    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes) after adapting to each image."""
        images = self.model.check_images(images)
        if self.adaptation.gate == 1:
            return self._answer(images, images[:, None]).logits[:, 0]
        logits = self.unadapted(images)
        unsure = ~self.keeps(logits)
        if unsure.any():
            own = images[unsure.to(images.device)]
            logits[unsure] = self._answer(own, own[:, None]).logits[:, 0]
        return logits

    @_undisturbed
    def answer(self, images: Tensor, others: Tensor) -> Answers:
        """Adapt to each of N images and predict others (N, n, 3, H, H): row i with the model adapted to image i."""
        images = self.model.check_images(images)
        if not isinstance(others, Tensor) or others.dim() != 5 or len(others) != len(images):
            came = tuple(others.shape) if isinstance(others, Tensor) else type(others).__name__
            side = self.model.size or (images.shape[-1] if len(images) else "H")
            raise InputError(
                f"Expected others of shape ({len(images)}, n, 3, {side}, {side}), n for each image, got {came}."
            )
        self.model.check_images(others.flatten(0, 1))
        answers = self._answer(images, others)
        if self.adaptation.gate < 1:
            before = self.unadapted(others.flatten(0, 1)).view_as(answers.logits)
            kept = torch.where(self.keeps(before)[..., None], before, answers.logits)
            answers = answers._replace(logits=kept)
        return answers

    def _answer(self, images: Tensor, others: Tensor) -> Answers:
        """As `answer`, without a gate."""

        def answer(adapted: Adapted, rows: slice) -> Answers:
            return Answers(self._logits(adapted.params, others[rows]), adapted.view_average)

        found = list(self._each_stack(images, answer))
        if not found:
            empty = self.model.classify.weight.new_zeros(0, others.shape[1], self.model.num_classes)
            return Answers(empty, empty.flatten(0, 1))
        return Answers(*(torch.cat(column) for column in zip(*found, strict=True)))

    @_undisturbed
    def compare(self, images: Tensor) -> Comparison:
        """Logits, self-supervised loss and gradient norm, before and after adapting to each image."""
        images = self.model.check_images(images)
        objective = self.model.objective
        assert objective is not None

        def compare(adapted: Adapted, rows: slice) -> tuple[Tensor, ...]:
            own, inner = images[rows, None], adapted.inner
            with torch.no_grad():
                outputs = call(self.model, adapted.params, adapted.views.images)
                loss_after = objective.loss(outputs, adapted.views, objective.target(inner.outputs))
            before = self._logits(_leaves(self.model, len(own)), own)[:, 0]
            after = self._logits(adapted.params, own)[:, 0]
            if self.adaptation.gate < 1:
                sure = self.keeps(before)
                after = torch.where(sure[:, None], before, after)
                loss_after = torch.where(sure, inner.loss, loss_after)
            return before, after, adapted.view_average, inner.loss, loss_after, inner.grad_norm

        found = list(self._each_stack(images, compare))
        if not found:
            raise InputError("Expected at least one image to compare, got an empty batch.")
        return Comparison(*(torch.cat(column) for column in zip(*found, strict=True)))

    @_undisturbed
    def adapt(self, images: Tensor) -> Iterator[Adapted]:
        """Adapt to each image and give the adapted parameters, one by one."""
        stacks = self._each_stack(self.model.check_images(images), lambda adapted, rows: adapted)
        return (_member(stack, i) for stack in stacks for i in range(len(stack.view_average)))

    @_undisturbed
    def logits(self, params: Params, images: Tensor) -> Tensor:
        """Logits (N, classes) of images under adapted parameters."""
        return self._logits(params, self.model.check_images(images))

    @_undisturbed
    def unadapted(self, images: Tensor) -> Tensor:
        """Logits (N, classes) of the model as it is."""
        params = parameters_of(self.model)
        return torch.cat(
            [self._logits(params, part) for part in torch.split(self.model.check_images(images), UNADAPTED)]
        )

    def stack_for(self, count: int, size: int) -> int:
        """How many of `count` images of `size` pixels are adapted to at once."""
        return self.stack or stack_size(self.model, count, self._images_in_pass(), size)

    def _images_in_pass(self) -> int:
        assert self.model.objective is not None
        return self.adaptation.views * self.model.objective.images_per_view

    @_undisturbed
    def keeps(self, logits: Tensor) -> Tensor:
        """Which answers are so sure before adapting that they stay; with a gate of 1 none."""
        return (logits.softmax(-1).amax(-1) >= self.adaptation.gate) & (self.adaptation.gate < 1)

    def _each_stack(self, images: Tensor, use: Callable[[Adapted, slice], Result]) -> Iterator[Result]:
        """Adapt to the images, stack by stack, and yield `use(adapted, rows)`.

        On a CPU several stacks are computed at once, in threads, so `use` must not change what they share.
        """
        pixels = images.shape[-1]
        size = max(1, min(self.stack_for(len(images), pixels), len(images)))
        check_memory(self.model, size * self._images_in_pass(), pixels)

        def adapt_stack(start: int) -> Result:
            rows = slice(start, start + size)
            with undisturbed(self.model.device), torch.inference_mode(False), torch.enable_grad():
                return use(self._adapt_stack(images[rows].clone(memory_format=torch.contiguous_format)), rows)

        starts = range(0, len(images), size)
        return side_by_side(adapt_stack, starts, count_threads(self.model, len(starts)))

    def _logits(self, params: Params, images: Tensor) -> Tensor:
        with torch.inference_mode(False), torch.no_grad():
            return call(
                self.model, params, as_float(images.to(self.model.device).clone(), self.model.dtype), False
            ).logits

    def _adapt_stack(self, images: Tensor) -> Adapted:
        """Adapt to each of a few images, all at once."""
        model = self.model
        draw = _TestViews(self, images)
        inner = inner_loop(model, _leaves(model, len(images)), draw, self.adaptation)
        assert draw.first is not None
        with torch.no_grad():
            logits = inner.outputs.logits
            if draw.first.plain is not None:
                plain = draw.first.plain.flatten(0, 1)
                logits = call(model, parameters_of(model), plain, False).logits.view(*draw.first.plain.shape[:2], -1)
            average = logits.softmax(-1).mean(1)
        params = {name: p.detach() for name, p in inner.params.items()}
        return Adapted(params, draw.first, inner, average)


class _TestViews:
    """Draws the views of a stack of images, for each step or once; the first ones are kept."""

    def __init__(self, adapter: Adapter, images: Tensor) -> None:
        self.adapter = adapter
        assert adapter.adaptation.objective is not None
        self.objective = get_objective(adapter.adaptation.objective, adapter.adaptation.variant)
        self.generators = [image_generator(image, adapter.seed) for image in images]
        self.images = as_float(images.to(adapter.model.device), adapter.model.dtype)
        self.first: Views | None = None

    def __call__(self, step: int) -> Views:
        if self.first is not None and not self.adapter.adaptation.fresh_views:
            return self.first
        count = self.adapter.adaptation.views
        drawn = zip(self.images, self.generators, strict=True)
        views = stack_views([self.objective.test_views(image, count, generator) for image, generator in drawn])
        self.first = views if self.first is None else self.first
        return views


def image_generator(image: Tensor, seed: int) -> torch.Generator:
    """A generator seeded by (seed, content): the content is taken to 16 bits, the same for uint8 and float images."""
    content = (as_float(image.cpu(), torch.float64) * 65535).round().to(torch.int32)
    return seeded_generator("views", seed, content.numpy().tobytes())


def _leaves(model: MT3Model, count: int) -> Params:
    """A stack of the model's parameters to differentiate by."""
    with torch.inference_mode(False):
        own = {name: p.clone() if p.is_inference() else p.detach() for name, p in model.named_parameters()}
        return {name: p.requires_grad_() for name, p in stack_params(own, count).items()}


def _member(stack: Adapted, i: int) -> Adapted:
    """What was adapted to one of a stack's images."""
    inner = stack.inner
    outputs = Outputs(inner.outputs.logits[i], {name: t[i] for name, t in inner.outputs.heads.items()})
    own = Inner({name: p[i] for name, p in inner.params.items()}, inner.loss[i], inner.grad_norm[i], outputs)
    views = Views(*(None if t is None else t[i] for t in stack.views))  # type: ignore[arg-type]
    return Adapted({name: p[i] for name, p in stack.params.items()}, views, own, stack.view_average[i])


def stack_size(model: MT3Model, items: int, images: int, size: int) -> int:
    """How many tasks or images to adapt to at once, each with that many images of `size` pixels in its passes.

    Together they keep the largest activation within a budget: on a CPU what its caches hold, since more than that is no
    faster one by one; on an accelerator, what fits into its memory some hundred times. There is one for each thread.
    """
    budget = CPU_BUDGET if model.device.type == "cpu" else DEVICE_BUDGET
    largest = images * model.backbone.largest(size) * model.dtype.itemsize
    return max(1, min(budget // largest, -(-items // count_threads(model, items))))


def check_memory(model: MT3Model, images: int, size: int) -> None:
    """Refuse to adapt with more images in a pass than the machine can hold; a system may end the process instead.

    Counted is what surely lies in memory. An accelerator says by itself what does not fit.
    """
    needed = images * model.backbone.kept(size) * model.dtype.itemsize
    if model.device.type == "cpu" and needed > (there := free_memory()):
        raise InputError(
            f"Adapting with {images} images in a pass takes at least {needed / 2**30:.1f} GB of memory, and "
            f"{there / 2**30:.1f} GB are free; lower views or stack."
        )
