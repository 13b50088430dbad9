"""How a model adapts: one value, checked once, kept with the model and printed in every protocol. Needs no torch."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mt3.support.errors import InputError, check_number, name_list, one_of

LAYERS = ("all", "norm", "last")  # what adapts: all that feeds the loss, its norms, or its last stage and what follows
VARIANTS = ("paper", "official")  # the paper, or the authors' code where it differs

BOUNDS: dict[str, tuple[float, float]] = {  # whole numbers between whole ones
    "steps": (0, 10_000),
    "lr": (0.0, 1e30),
    "clip": (1e-30, 1e30),
    "views": (1, 10_000),
    "gate": (0.0, 1.0),
}


@dataclass(frozen=True)
class Adaptation:
    """The inner steps on one image, or on one task of a meta-batch. The defaults are the paper's."""

    objective: str | None = "byol"  # what is minimised; none: the model does not adapt
    steps: int = 1  # M
    lr: float = 0.1  # alpha
    clip: float | None = 10.0  # norm of a step's gradient; none: no clipping
    views: int = 32  # K_T: pairs of views for byol, copies for rotation
    layers: str = "all"  # of those that feed the loss: all, norm or last (stage)
    gate: float = 1.0  # an image of which the model is this sure is not adapted to; 1: all are
    variant: str = "paper"  # official: a norm for each tensor, the same views for every step, crops below the whole

    def __post_init__(self) -> None:
        for name, bounds in BOUNDS.items():
            value = getattr(self, name)
            if name != "clip" or value is not None:
                check_number(name, value, *bounds)
                # not NumPy's, so that JSON can keep it
                object.__setattr__(self, name, int(value) if isinstance(bounds[0], int) else float(value))
        for name, valid in (("layers", LAYERS), ("variant", VARIANTS)):
            if not isinstance(getattr(self, name), str) or getattr(self, name) not in valid:
                raise InputError(one_of(name, getattr(self, name), valid))
        if not isinstance(self.objective, str | None):
            raise InputError(f"Expected an objective's name or none, got {self.objective!r}.")

    @property
    def fresh_views(self) -> bool:
        """Whether every step at test time has views of its own."""
        return self.variant == "paper"

    @property
    def clip_each(self) -> bool:
        """Whether each tensor is clipped by its own norm, and not all by one."""
        return self.variant == "official"

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
