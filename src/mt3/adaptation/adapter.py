"""`Adapter`: adapts a model to each single image, predicts and discards the step, or carries it along a stream."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from mt3.adaptation.choose import (
    Wrapping,
    choose_adaptation,
    choose_moments,
    choose_network,
    images_in_pass,
    objective_of,
)
from mt3.adaptation.copies import mean_answer, near_copies
from mt3.adaptation.memory import check_memory, stack_size
from mt3.adaptation.rules import as_logits, average_over_views
from mt3.adaptation.step import Inner, inner_loop
from mt3.adaptation.stream import Stream
from mt3.adaptation.views import DrawnViews
from mt3.config.adaptation import Adaptation
from mt3.models.call import Network, Params, call, parameters_of, stack_params
from mt3.models.classifier import MT3Model, check_images
from mt3.objectives.augment import as_float
from mt3.objectives.objective import Outputs, Views
from mt3.support.errors import InputError, check_number
from mt3.support.threads import count_threads, side_by_side, undisturbed

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
    """Adapts the model to each image on its own, predicts, and discards the step; or carries it along a stream.

    `method` is a name (`tent`; `mt3.RIVALS` has all), an `Adaptation`, or none for the model's own; further arguments
    replace fields: `Adapter(model, lr=0.05)`. The model is an `MT3Model` or any classifier; its weights are never
    changed. An image's views depend only on the seed and the image's content, so its answer does not depend on the
    batch, the order or the process, nor on PyTorch's default type or an autocast around the call; any number of
    threads may call one adapter at a time. Along a stream (`carry="stream"`) an answer depends on the images before,
    too: one call at a time goes on where the last one ended.
    """

    def __init__(
        self,
        model: nn.Module,
        method: str | Adaptation | None = None,
        *,
        seed: int = 0,
        stack: int | None = None,  # images adapted to at once; None: as many as pay
        normalisation: Sequence[Sequence[float]] | None = None,  # of a classifier that is no MT3Model, as add_objective
        size: int | None = None,  # of such a classifier's images, where it takes only one
        features: str | None = None,  # the name of its class layer, for t3a and lame
        source: Tensor | None = None,  # some hundred training images, without labels, for plus; none: the model's own
        **fields: Any,
    ) -> None:
        super().__init__()
        check_number("seed", seed, -(2**63), 2**63 - 1)
        if stack is not None:
            check_number("stack", stack, 1, 10_000)
        self.adaptation = choose_adaptation(model, method, fields)
        self.model = choose_network(model, self.adaptation, Wrapping(normalisation, size, features))
        self.objective = objective_of(self.adaptation)
        self.seed, self.stack = seed, stack
        views = self.objective is not None and self.objective.draws_views
        self._bounded = views or isinstance(model, MT3Model)  # or the network's values are its owner's affair
        with undisturbed(self.model.device):
            moments = choose_moments(self.model, self.adaptation, None if source is None else self._check(source))
        self.stream = Stream(self.model, self.adaptation, seed, moments) if self.adaptation.carry == "stream" else None

    @_undisturbed
    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes) after adapting to each image."""
        images = self._check(images)
        if self.stream is not None:
            return self.stream(images)
        if self.adaptation.rule == "average" and self.adaptation.gate == 1:
            return as_logits(self._average(images))
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
        images = self._check(images)
        if not isinstance(others, Tensor) or others.dim() != 5 or len(others) != len(images):
            came = tuple(others.shape) if isinstance(others, Tensor) else type(others).__name__
            side = self.model.size or (images.shape[-1] if len(images) else "H")
            raise InputError(
                f"Expected others of shape ({len(images)}, n, 3, {side}, {side}), n for each image, got {came}."
            )
        self._check(others.flatten(0, 1))
        answers = self._answer(images, others)
        if self.adaptation.gate < 1:
            before = self.unadapted(others.flatten(0, 1)).view_as(answers.logits)
            kept = torch.where(self.keeps(before)[..., None], before, answers.logits)
            answers = answers._replace(logits=kept)
        return answers

    def _answer(self, images: Tensor, others: Tensor) -> Answers:
        """As `answer`, without a gate."""
        if self.adaptation.rule == "average":
            others_too = torch.cat([images[:, None], others], dim=1).flatten(0, 1)
            average = self._average(others_too).view(len(images), 1 + others.shape[1], self.model.num_classes)
            return Answers(as_logits(average[:, 1:]), average[:, 0])

        def answer(adapted: Adapted, rows: slice) -> Answers:
            return Answers(self._logits(adapted.params, others[rows]), adapted.view_average)

        found = list(self._each_stack(images, answer))
        if not found:
            empty = self._nothing()
            return Answers(empty[:, None].expand(-1, others.shape[1], -1), empty)
        return Answers(*(torch.cat(column) for column in zip(*found, strict=True)))

    @_undisturbed
    def compare(self, images: Tensor) -> Comparison:
        """Logits, self-supervised loss and gradient norm, before and after adapting to each image."""
        images = self._check(images)
        self._require_single()
        objective = self.objective
        assert objective is not None

        def compare(adapted: Adapted, rows: slice) -> tuple[Tensor, ...]:
            own, inner = images[rows, None], adapted.inner
            with torch.no_grad():
                outputs = call(self.model, adapted.params, adapted.views.images, statistics=self.adaptation.statistics)
                loss_after = objective.loss(outputs, adapted.views, objective.target(inner.outputs))
            before = self._logits(_leaves(self.model, len(own)), own, 0.0)[:, 0]
            after = self._logits(adapted.params, own)[:, 0]
            if self.adaptation.rule == "average":
                after = as_logits(adapted.view_average)
            if self.adaptation.gate < 1:
                sure = self.keeps(before)
                after = torch.where(sure[:, None], before, after)
                loss_after = torch.where(sure, inner.loss, loss_after)
            return before, after, adapted.view_average, inner.loss, loss_after, inner.grad_norm

        found = list(self._each_stack(images, compare))
        if not found:
            raise InputError("Expected at least one image to compare, got an empty batch.")
        return Comparison(*(torch.cat(column) for column in zip(*found, strict=True)))

    def confidence(self, images: Tensor, mirror: bool = True) -> Tensor:
        """How sure the answer after adapting to each image is (N,): the mean probability of the answered class.

        The mean is over near copies of the image (itself, its mirror image, shifts by one pixel), all answered by the
        model adapted to the image. Where a mirrored image means something else, as a digit's, leave it out:
        mirror=False.
        """
        logits = self.answer(images, near_copies(self._check(images), mirror)).logits
        return mean_answer(logits).gather(1, logits[:, 0].argmax(1, keepdim=True))[:, 0]

    @_undisturbed
    def adapt(self, images: Tensor) -> Iterator[Adapted]:
        """Adapt to each image and give the adapted parameters, one by one."""
        stacks = self._each_stack(self._check(images), lambda adapted, rows: adapted)
        return (_member(stack, i) for stack in stacks for i in range(len(stack.view_average)))

    @_undisturbed
    def logits(self, params: Params, images: Tensor) -> Tensor:
        """Logits (N, classes) of images under adapted parameters."""
        return self._logits(params, self._check(images))

    def shift(self) -> None:
        """Tell of a known shift: a stream with reset=shift goes back to the model as it is."""
        if self.stream is not None and self.adaptation.reset == "shift":
            self.stream.reset()

    def reset(self) -> None:
        """Take a stream back to the model as it is."""
        if self.stream is not None:
            self.stream.reset()

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """All that a stream depends on, as tensors by name; without a stream, the weights of the model."""
        return super().state_dict(*args, **kwargs) if self.stream is None else self.stream.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Go on where the stream of this state was, bit for bit."""
        if self.stream is None:
            return super().load_state_dict(state_dict, *args, **kwargs)
        return self.stream.load_state_dict(state_dict)

    @_undisturbed
    def unadapted(self, images: Tensor) -> Tensor:
        """Logits (N, classes) of the model as it is."""
        params = parameters_of(self.model)
        return torch.cat([self._logits(params, part, 0.0) for part in torch.split(self._check(images), UNADAPTED)])

    def _check(self, images: Tensor) -> Tensor:
        return check_images(images, self.model.size, self._bounded)

    def stack_for(self, count: int, size: int) -> int:
        """How many of `count` images of `size` pixels are adapted to at once."""
        return self.stack or stack_size(self.model, count, self._images_in_pass(), size)

    def _images_in_pass(self) -> int:
        return images_in_pass(self.adaptation)

    @_undisturbed
    def keeps(self, logits: Tensor) -> Tensor:
        """Which answers are so sure before adapting that they stay; with a gate of 1 none."""
        return (logits.softmax(-1).amax(-1) >= self.adaptation.gate) & (self.adaptation.gate < 1)

    def _average(self, images: Tensor) -> Tensor:
        """Probabilities (N, classes), averaged over views, by the model as it is."""
        found = list(
            self._spread(images, lambda own, _: average_over_views(self.model, self.adaptation, own, self.seed))
        )
        return torch.cat(found) if found else self._nothing()

    def _nothing(self) -> Tensor:
        """The answers to no images."""
        return torch.zeros(0, self.model.num_classes, device=self.model.device, dtype=self.model.dtype)

    def _each_stack(self, images: Tensor, use: Callable[[Adapted, slice], Result]) -> Iterator[Result]:
        """Adapt to the images, stack by stack, and yield `use(adapted, rows)`."""
        return self._spread(images, lambda own, rows: use(self._adapt_stack(own), rows))

    def _spread(self, images: Tensor, use: Callable[[Tensor, slice], Result]) -> Iterator[Result]:
        """Yield `use(stack, rows)` for the images, stack by stack.

        On a CPU several stacks are computed at once, in threads, so `use` must not change what they share.
        """
        self._require_single()
        pixels = images.shape[-1]
        size = max(1, min(self.stack_for(len(images), pixels), len(images)))
        check_memory(self.model, size * self._images_in_pass(), pixels)

        def adapt_stack(start: int) -> Result:
            rows = slice(start, start + size)
            with undisturbed(self.model.device), torch.inference_mode(False), torch.enable_grad():
                return use(images[rows].clone(memory_format=torch.contiguous_format), rows)

        starts = range(0, len(images), size)
        return side_by_side(adapt_stack, starts, count_threads(self.model, len(starts)))

    def _require_single(self) -> None:
        if self.stream is not None:
            raise InputError(
                "This adapter follows a stream and answers its next images by adapter(images) alone; for single images "
                "before and after make one with carry='image'."
            )

    def _logits(self, params: Params, images: Tensor, statistics: float | None = None) -> Tensor:
        """Of images by parameters; of stacks (S, n, 3, H, H), each image is a batch of its own for batch statistics."""
        share = self.adaptation.statistics if statistics is None else statistics
        with torch.inference_mode(False), torch.no_grad():
            pixels = as_float(images.to(self.model.device).clone(), self.model.dtype)
            parts = torch.split(pixels, 1, dim=1) if share and pixels.dim() == 5 else [pixels]
            return torch.cat([call(self.model, params, part, False, share).logits for part in parts], dim=-2)

    def _adapt_stack(self, images: Tensor) -> Adapted:
        """Adapt to each of a few images, all at once."""
        model = self.model
        draw = DrawnViews(model, self.adaptation, images, self.seed)
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


def _leaves(model: Network, count: int) -> Params:
    """A stack of the model's parameters to differentiate by."""
    with torch.inference_mode(False):
        own = {name: p.clone() if p.is_inference() else p.detach() for name, p in model.named_parameters()}
        return {name: p.requires_grad_() for name, p in stack_params(own, count).items()}


def _member(stack: Adapted, i: int) -> Adapted:
    """What was adapted to one of a stack's images."""
    inner = stack.inner
    outputs = Outputs(inner.outputs.logits[i], {name: t[i] for name, t in inner.outputs.heads.items()})
    params = {name: p[i] for name, p in inner.params.items()}
    own = Inner(params, inner.loss[i], inner.grad_norm[i], outputs, inner.last_loss[i])
    views = Views(*(None if t is None else t[i] for t in stack.views))  # type: ignore[arg-type]
    adapted = {name: p[i] for name, p in stack.params.items()}
    return Adapted(adapted, views, own, stack.view_average[i])
