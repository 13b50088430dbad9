"""The objectives by name. A new one is a file of its own and a line here."""

from collections.abc import Callable

from mt3.objectives.byol import Byol
from mt3.objectives.entropy import AugmixEntropy, Entropy, MarginalEntropy, ReliableEntropy
from mt3.objectives.objective import Objective
from mt3.objectives.rotation import Rotation
from mt3.support.errors import InputError, one_of

OBJECTIVES: dict[str, Callable[[str], Objective]] = {
    "byol": Byol,
    "rotation": Rotation,
    "entropy": Entropy,
    "reliable-entropy": ReliableEntropy,
    "marginal-entropy": MarginalEntropy,
    "marginal-entropy-augmix": AugmixEntropy,
}


def get_objective(name: str, variant: str = "paper") -> Objective:
    """An objective by its name."""
    if name not in OBJECTIVES:
        raise InputError(one_of("objective", name, (*OBJECTIVES, "none")))
    return OBJECTIVES[name](variant)
