"""Adapting along a stream: the step is kept, and the next images meet what it made of the model."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mt3.adaptation.choose import images_in_pass, objective_of, uses_batch
from mt3.adaptation.guard import NUMBERS, Guard, Watched
from mt3.adaptation.memory import check_memory
from mt3.adaptation.rules import (
    Supports,
    add_supports,
    as_logits,
    average_over_views,
    features_and_logits,
    first_supports,
    neighbours_of,
    prototype_logits,
    smooth,
)
from mt3.adaptation.step import VELOCITY, inner_loop
from mt3.adaptation.views import DrawnViews
from mt3.config.adaptation import Adaptation
from mt3.models.call import Network, Params, call, call_together, parameters_of
from mt3.models.classifier import MT3Model
from mt3.models.moments import aligned_logits, answer_mix
from mt3.models.store import tensors_hash
from mt3.networks.align import MIX, Moments, Source
from mt3.objectives.augment import as_float
from mt3.objectives.objective import Outputs, Views
from mt3.support.errors import InputError, name_list

LOW_ENTROPY = 0.2  # SAR: "e_0 = 0.2", the moving average of the entropy below which the model starts anew
KEPT = 0.9  # of that moving average at each step
PARAMS, SUPPORTS, MOMENTS, AVERAGE, MARK = "params/", "supports/", "moments/", "average", "adaptation"


class Stream:
    """What a model has become along a stream. Called with the next images, it answers them and goes on.

    Images share a step in groups of `batch`; the last group of a call may be smaller. The state is all that it depends
    on, so that a stream that was stopped goes on with the same bits.
    """

    def __init__(self, model: Network, adaptation: Adaptation, seed: int, source: Source | None = None) -> None:
        self.model, self.adaptation, self.seed = model, adaptation, seed
        self.source = source  # what the rule align goes back to
        self.objective = objective_of(adaptation)
        self.names = () if self.objective is None else model.adapted_names(adaptation.layers, self.objective)
        alone = adaptation.rule in ("t3a", "align") or self.objective is not None  # whether one image is enough
        self.least = 1 if alone else 2
        self._busy = threading.Lock()
        self.adapted: list[bool] = []  # of each image of the last call: whether the model as it is did not answer it
        self._start()

    def _start(self) -> None:
        self.params: Params = {}  # those that differ from the model's, and their velocities
        self.seen = 0  # images since the start
        self.entropy: Tensor | None = None  # moving average, of SAR's reset
        self.supports: Supports | None = None  # T3A's
        self.moments: Moments = {}  # of the channels behind the norms, where they differ from the source's
        self.mix = None if self.source is None else self.source.mix  # of the answers
        self.guard = Guard() if self.adaptation.reset == "guard" else None

    def __call__(self, images: Tensor) -> Tensor:
        """Logits (N, classes) of the next images."""
        with self._alone():
            self.adapted = []
            found = [self._next(group) for group in self._groups(images)]
        empty = torch.zeros(0, self.model.num_classes, device=self.model.device, dtype=self.model.dtype)
        return torch.cat(found) if found else empty

    def _groups(self, images: Tensor) -> list[Tensor]:
        """The images cut into groups; one that would be too small for the method goes to the group before it."""
        groups = list(torch.split(images, self.adaptation.batch)) if len(images) else []
        if groups and len(images) < self.least:
            raise InputError(f"This method compares the images of a call: expected at least 2, got {len(images)}.")
        if groups and len(groups[-1]) < self.least:
            groups[-2:] = [torch.cat(groups[-2:])]
        return groups

    def reset(self) -> None:
        """Go back to the model as it is."""
        with self._alone():
            self._start()

    def __getstate__(self) -> dict[str, Any]:
        """What a copy takes over; the lock is its own."""
        return {name: value for name, value in self.__dict__.items() if name != "_busy"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._busy = threading.Lock()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise InputError(
                "This adapter follows a stream, whose images come one after the other, and is answering another call; "
                "wait for it, or make an adapter for each stream."
            )
        try:
            yield
        finally:
            self._busy.release()

    def _next(self, images: Tensor) -> Tensor:
        """Answer one group and go on."""
        every = self.adaptation.reset_every
        if every is not None and self.seen >= every:
            self._start()
        self.seen += len(images)
        with torch.inference_mode(False), torch.enable_grad():
            images = images.to(self.model.device).clone(memory_format=torch.contiguous_format)
            logits, adapted = self._answer(images)
        self.adapted += [adapted] * len(images)
        return logits

    def _answer(self, images: Tensor) -> tuple[Tensor, bool]:
        """The answers to a group, and whether these are others than the model's as it is."""
        rule = self.adaptation.rule
        if rule == "step" and self.objective is not None:
            return self._guarded(images) if self.guard is not None else self._step(images)[:2]
        if rule == "align":
            knew = bool(self.moments) or self.adaptation.answer == "after"
            return self._aligned(images), knew
        return self._by_rule(images), True

    def _by_rule(self, images: Tensor) -> Tensor:
        """What rules without a state answer, and T3A."""
        rule = self.adaptation.rule
        if rule == "average":
            return as_logits(average_over_views(self.model, self.adaptation, images, self.seed))
        if rule == "step":  # by the statistics of the images
            return self._logits({}, images)
        assert isinstance(self.model, MT3Model)
        features, logits = features_and_logits(self.model, images)
        if rule == "lame":
            return as_logits(smooth(logits, neighbours_of(features, self.adaptation.support)))
        before = first_supports(self.model) if self.supports is None else self.supports
        self.supports = add_supports(before, features, logits, self.adaptation.support)
        used = self.supports if self.adaptation.answer == "after" else before
        return prototype_logits(used, features, self.model.num_classes)

    def _aligned(self, images: Tensor) -> Tensor:
        """By the network whose channels have the moments of training images with the same mix of answers.

        The images' own moments count for their answers if these come "after"; their own answers count for the next.
        """
        assert self.source is not None
        assert self.mix is not None
        rate = min(1.0, len(images) / self.adaptation.support)
        with torch.no_grad():
            wanted, after = self.source.wanted(self.mix), self.adaptation.answer == "after"
            logits, self.moments, count = aligned_logits(self.model, images, wanted, self.moments, rate, after)
            mix = torch.lerp(self.mix, answer_mix(logits, len(self.mix)).to(self.mix), rate)
            self.mix = torch.where(count.to(mix.device), mix, self.mix)
        return logits

    def _guarded(self, images: Tensor) -> tuple[Tensor, bool]:
        """As `_step`, unless the guard goes back: then the model as it is answers."""
        assert self.guard is not None
        reference, losses = self._logits({}, images, 0.0), None
        if self.guard.left:
            logits, adapted = (self._logits(self.params, images), True) if self.params else (reference, False)
        else:
            logits, adapted, loss, views = self._step(images)
            losses = (loss, self._own_loss(views, reference))
        if self.guard.check(Watched(logits, reference, losses), self.params):
            return logits, adapted
        self.params = self.guard.go_back()
        return reference, False

    def _own_loss(self, views: Views, reference: Tensor) -> Tensor:
        """The objective of the model as it is, which answered the images with `reference`."""
        assert self.objective is not None
        outputs = Outputs(reference[:, None], {})
        if self.objective.draws_views or self.adaptation.statistics:
            with torch.no_grad():
                outputs = call_together(self.model, parameters_of(self.model), views.images, self.adaptation.statistics)
        return self.objective.loss(outputs, views, self.objective.target(outputs)).detach().nanmean()

    def _step(self, images: Tensor) -> tuple[Tensor, bool, Tensor, Views]:
        """As `_answer`, by a step on the group; also the objective before it, and the views that it was seen on."""
        assert self.objective is not None
        check_memory(self.model, len(images) * images_in_pass(self.adaptation), images.shape[-1])
        draw = DrawnViews(self.model, self.adaptation, images, self.seed)
        inner = inner_loop(self.model, self._leaves(), draw, self.adaptation)
        before = self.params
        moved = (*self.names, *(VELOCITY + name for name in self.names))
        self.params = {name: inner.params[name].detach() for name in moved if name in inner.params}
        if self.adaptation.answer == "after":
            logits = self._logits(self.params, images)
        elif self.objective.draws_views:
            logits = self._logits(before, images)
        else:  # the images were the views
            logits = inner.outputs.logits.detach()[:, 0]
        assert draw.first is not None
        used = self.params if self.adaptation.answer == "after" else before
        adapted = self._differs(used) or uses_batch(self.model, self.adaptation)
        if self.adaptation.reset == "low-entropy" and inner.last_loss.isfinite():
            last = inner.last_loss
            self.entropy = last if self.entropy is None else KEPT * self.entropy + (1 - KEPT) * last
            if self.entropy < LOW_ENTROPY:
                self._start()
        return logits, adapted, inner.loss.nanmean(), draw.first

    def _differs(self, params: Params) -> bool:
        """Whether these are other parameters than the model's."""
        own = dict(self.model.named_parameters())
        return any(name in own and not torch.equal(p, own[name]) for name, p in params.items())

    def _leaves(self) -> Params:
        """The parameters as they are now; those that adapt can be differentiated by."""
        own = {name: p.clone() if p.is_inference() else p.detach() for name, p in self.model.named_parameters()}
        now = own | self.params
        return now | {name: now[name].detach().requires_grad_() for name in self.names}

    def _logits(self, params: Params, images: Tensor, statistics: float | None = None) -> Tensor:
        pixels = as_float(images, self.model.dtype)
        with torch.no_grad():
            own = parameters_of(self.model) | params
            share = self.adaptation.statistics if statistics is None else statistics
            return call(self.model, own, pixels, False, share).logits

    def state_dict(self) -> dict[str, Tensor]:
        """All that the stream depends on besides the model."""
        with self._alone():
            state = {PARAMS + name: p.clone() for name, p in self.params.items()}
            state |= {"seen": torch.tensor(self.seen), MARK: self._mark()}
            if self.entropy is not None:
                state[AVERAGE] = self.entropy.clone()
            if self.guard is not None:
                state |= self.guard.state_dict()
            if self.supports is not None:
                state |= {SUPPORTS + name: t.clone() for name, t in self.supports._asdict().items()}
            if self.moments:
                assert self.mix is not None
                state |= {MOMENTS + name: t.clone() for name, t in (self.moments | {MIX: self.mix}).items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the stream of this state was."""
        if MARK not in state or not torch.equal(torch.as_tensor(state[MARK]).cpu(), self._mark()):
            raise InputError("Expected the state of a stream with the same adaptation and seed, got another.")
        needed = ["seen"] if self.guard is None else ["seen", NUMBERS]
        if not all(isinstance(state.get(name), Tensor) for name in needed):
            raise InputError(f"Expected a whole state of a stream, got one without {name_list(needed)}; save it again.")
        like, device = dict(self.model.named_parameters()), self.model.device
        params = {name.removeprefix(PARAMS): p for name, p in state.items() if name.startswith(PARAMS)}
        for name, p in params.items():
            own = like.get(name.removeprefix(VELOCITY))
            if own is None or own.shape != p.shape:
                raise InputError(f"Expected the state of a stream of this network, got other values for {name}.")
        moments = {name.removeprefix(MOMENTS): t for name, t in state.items() if name.startswith(MOMENTS)}
        source = self.source.tensors() if moments and self.source is not None else {}
        shapes = {name: t.shape for name, t in moments.items() if _is_finite(t)}
        if len(shapes) < len(moments) or shapes != {name: _kept(t) for name, t in source.items()}:
            raise InputError("Expected the state of a stream of this network, got moments of other norms.")
        with self._alone():
            self._start()
            self.moments = {name: t.to(device).clone() for name, t in moments.items()}
            self.mix = self.moments.pop(MIX, self.mix)
            self.params = {name: p.to(device).clone() for name, p in params.items()}
            self.seen = int(state["seen"])
            self.entropy = state[AVERAGE].to(device).clone() if AVERAGE in state else None
            if self.guard is not None:
                self.guard.load_state_dict(state, device)
            if SUPPORTS + "labels" in state:
                self.supports = Supports(*(state[SUPPORTS + name].to(device).clone() for name in Supports._fields))

    def _mark(self) -> Tensor:
        """A mark of the adaptation and the seed, so that the state of another stream is not taken for one of this."""
        text = json.dumps([self.adaptation.to_dict(), int(self.seed)])
        text += "" if self.source is None else tensors_hash({n: t.float() for n, t in self.source.tensors().items()})
        return torch.tensor(list(hashlib.blake2b(text.encode(), digest_size=16).digest()), dtype=torch.uint8)


def _kept(source: Tensor) -> torch.Size:
    """The shape that a stream keeps of a tensor of the source: of moments without the classes."""
    return source.shape[-2:]


def _is_finite(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and bool(value.isfinite().all())
