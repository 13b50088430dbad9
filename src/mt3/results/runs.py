"""The training that a model is of, as its run.json and its evaluations tell it. Needs no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mt3.config.methods import get_method
from mt3.results.shape import RUN, check_shape
from mt3.support.errors import InputError
from mt3.support.files import RUN_FILE, read_json


@dataclass(frozen=True)
class Run:
    """A training: what it is, how long it is, and how far it had come."""

    data: str
    method: str
    preset: str
    seed: int
    label: str  # what it is called in a report; nothing for the reference of a study
    step: int  # these two count the trainings before it, too
    total_steps: int
    epochs: list[float]  # of the trainings one after the other, its own last
    network: str  # such as resnet8x16, layers x width
    overrides: dict[str, Any]  # the fields in which it departs from its preset

    @property
    def progress(self) -> str:
        return f"{self.step:,} of {self.total_steps:,} steps"

    @property
    def unfinished(self) -> bool:
        return self.step < self.total_steps

    @property
    def mark(self) -> str:
        """What stands behind a name that rests on this training, if it was not finished."""
        return f" ({self.progress})" if self.unfinished else ""

    @property
    def epochs_before(self) -> float:
        return sum(self.epochs[:-1])

    @property
    def epoch_words(self) -> str:
        """In the order of time, `6.35 + 0.32`."""
        return (f"{self.epochs_before:g} + " if self.epochs_before else "") + f"{self.epochs[-1]:g}"

    def unlike(self, other: "Run") -> list[str]:
        """What tells two trainings of a method apart, beside their seeds."""
        told = [name for name in ("data", "preset", "network", "epochs") if getattr(self, name) != getattr(other, name)]
        changed = {**self.overrides, **other.overrides}
        told += sorted(name for name in changed if self.overrides.get(name, ()) != other.overrides.get(name, ()))
        return list(dict.fromkeys(told))


def read_run(path: Path) -> tuple[Run, dict[str, Any]] | None:
    """The training that a run.json is about, and the file's content; None where it does not say."""
    value = read_json(path)
    try:
        return make_run(value["about"]), value
    except (KeyError, TypeError, ValueError):
        return None


def about_run(run: dict[str, Any], where: Path) -> dict[str, Any] | None:
    """What an evaluation tells of the training of its model, by its run.json; None for a model that is no run."""
    if not run:
        return None
    if "step" not in run:
        raise InputError(f"The run in {where} is not finished; continue it with --resume.")
    try:
        make_run(run["about"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where / RUN_FILE} is damaged: about is not whole ({error}); restore it.") from None
    return dict(run["about"])


def make_run(value: dict[str, Any]) -> Run:
    check_shape(value, RUN, "run")
    run = Run(**{name: value[name] for name in RUN})
    get_method(run.method)
    if not run.epochs or not 0 <= run.step <= run.total_steps:
        raise ValueError(f"step {run.step} of {run.total_steps}, {len(run.epochs)} trainings")
    return run
