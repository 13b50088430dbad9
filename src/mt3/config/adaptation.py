"""How a model adapts: one value, checked once, kept with the model and printed in every protocol. Needs no torch."""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mt3.support.errors import InputError, check_number, name_list, one_of

LAYERS = ("all", "norm", "last")  # what adapts: all that feeds the loss, its norms, or its last stage and what follows
VARIANTS = ("paper", "official")  # the paper, or the authors' code where it differs
CARRY = ("image", "stream")
ANSWERS = ("after", "first")
RESETS = ("never", "shift", "low-entropy", "guard", "every N")
TUNED = ("lr", "steps", "views", "support")  # what `mt3 tune` chooses, of those that a method has
RULES = ("step", "average", "t3a", "lame", "align")
EVERY = re.compile(r"every ([1-9][0-9]{0,8})")

BOUNDS: dict[str, tuple[float, float]] = {  # whole numbers between whole ones
    "steps": (0, 10_000),
    "lr": (0.0, 1e30),
    "clip": (1e-30, 1e30),
    "views": (1, 10_000),
    "gate": (0.0, 1.0),
    "momentum": (0.0, 1.0),
    "batch": (1, 10_000),
    "statistics": (0.0, 1.0),
    "radius": (0.0, 1e30),
    "support": (1, 100_000),
}


@dataclass(frozen=True)
class Adaptation:
    """The inner steps on one image, on one task of a meta-batch or along a stream. The defaults are the paper's."""

    objective: str | None = "byol"  # what is minimised; none: the model does not adapt
    steps: int = 1  # steps on the objective, M
    lr: float = 0.1  # learning rate of these steps, alpha
    clip: float | None = 10.0  # norm of a step's gradient; none: no clipping
    views: int = 32  # K_T: pairs of views for byol, copies of the image for all others that draw some
    layers: str = "all"  # of those that feed the loss: all, norm or last (stage)
    gate: float = 1.0  # an image of which the model is this sure is not adapted to; 1: all are
    variant: str = "paper"  # official: a norm for each tensor, the same views for every step, crops below the whole
    momentum: float = 0.0  # of the steps, as torch.optim.SGD's; a stream carries it along
    carry: str = "image"  # image: the step is discarded after each image; stream: it is kept
    batch: int = 1  # images that share a step of a stream
    answer: str = "after"  # of a stream: by parameters that have seen the image, or only earlier ones (first)
    reset: str = "never"  # of a stream: never, shift (when told of one), low-entropy (SAR's), guard, or 'every 100'
    statistics: float = 0.0  # share of the batch's own statistics in batch normalisation; the rest is the trained ones
    radius: float = 0.0  # of the sharpness-aware step, which takes its gradient that far up the slope; 0: plain
    rule: str = "step"  # what gives the answer: gradient steps; without: the average of views, t3a, lame or align
    support: int = 100  # of T3A the images kept for a class, of LAME an image's neighbours, of plus the last images

    def __post_init__(self) -> None:
        for name, bounds in BOUNDS.items():
            value = getattr(self, name)
            if name != "clip" or value is not None:
                check_number(name, value, *bounds)
                # not NumPy's, so that JSON can keep it
                object.__setattr__(self, name, int(value) if isinstance(bounds[0], int) else float(value))
        words = {"layers": LAYERS, "variant": VARIANTS, "carry": CARRY, "answer": ANSWERS, "rule": RULES}
        for name, valid in words.items():
            if not isinstance(getattr(self, name), str) or getattr(self, name) not in valid:
                raise InputError(one_of(name, getattr(self, name), valid))
        if not isinstance(self.reset, str) or (self.reset not in RESETS[:-1] and not EVERY.fullmatch(self.reset)):
            raise InputError(one_of("reset", self.reset, RESETS) + " N is a number of images, as in 'every 100'.")
        if not isinstance(self.objective, str | None):
            raise InputError(f"Expected an objective's name or none, got {self.objective!r}.")
        if self.carry == "stream" and self.gate < 1:
            raise InputError("A gate leaves out single images, not those of a stream; leave the gate at 1.")

    @property
    def takes_steps(self) -> bool:
        """Whether the answer comes from gradient steps."""
        return self.rule == "step" and self.objective is not None

    @property
    def fresh_views(self) -> bool:
        """Whether every step at test time has views of its own."""
        return self.variant == "paper"

    @property
    def clip_each(self) -> bool:
        """Whether each tensor is clipped by its own norm, and not all by one."""
        return self.variant == "official"

    @property
    def reset_every(self) -> int | None:
        """The number of images after which a stream starts anew; none where it does not count them."""
        found = EVERY.fullmatch(self.reset)
        return None if found is None else int(found[1])

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


FIELDS = tuple(field.name for field in dataclasses.fields(Adaptation))


def adaptation_from_dict(values: Any) -> Adaptation:
    """Read what `Adaptation.to_dict` gave."""
    if not isinstance(values, Mapping):
        raise InputError(f"Expected an adaptation to be an object of fields, got {values!r}.")
    unknown = [str(key) for key in values if key not in FIELDS]
    if unknown:
        raise InputError(f"An adaptation has no field '{unknown[0]}': expected some of {name_list(FIELDS)}.")
    return Adaptation(**values)
