"""The ablations by name: trainings of MT3 with one thing changed, and other settings at test time. Needs no torch."""

from typing import Any

from mt3.support.errors import InputError, name_list, one_of

TRAINED: dict[str, dict[str, Any]] = {  # name -> what is changed in the preset's MT3
    "no-b": {"batch_aug": False},
    "first-order": {"order": "first"},
    "ema-target": {"inner_target": "ema"},  # "a separate target model is obsolete", says the paper
    "rotation": {"objective": "rotation"},  # the network keeps its head, and gets Sun et al.'s branch for the rotations
    "norm-only": {"layers": "norm"},
    "last-stage": {"layers": "last"},
}
SWEEPS: dict[str, tuple[float, ...]] = {  # what is varied when adapting
    "steps": (0, 1, 2, 3, 5, 10),
    "views": (1, 2, 4, 8, 16, 32, 64),
    "lr": (0, 0.25, 0.5, 1, 2, 4),  # times the model's own
}
SWEPT = ("jt", "mt3")  # the trainings that are swept: TTT and MT3
ABLATIONS = (*TRAINED, *SWEEPS)


def resolve_ablations(names: list[str]) -> list[str]:
    """Check the names and expand `all`, in the order of the lists above."""
    for name in names:
        if name not in (*ABLATIONS, "all"):
            raise InputError(one_of("ablation", name, (*ABLATIONS, "all")))
    return [name for name in ABLATIONS if name in names or "all" in names]


def label(name: str) -> str:
    """How the report calls a trained ablation: `first-order (order=first)`."""
    return f"{name} ({name_list(f'{k}={str(v).lower()}' for k, v in TRAINED[name].items())})"
