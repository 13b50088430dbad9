"""One evaluation as it lies on disk: what its file says, and whether that is whole. Needs no torch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mt3.config.methods import Method
from mt3.corruptions import PAPER
from mt3.results.statistics import GAINS, fixed_and_broken, gains, unpack_correct
from mt3.support.errors import is_name
from mt3.support.files import load_json

CONTROLS = {"clean_other": "unrelated image", "same_corruption": "same corruption"}  # adapted on another image


class Setting(NamedTuple):
    """How a model was adapted at test time."""

    steps: int
    views: int
    lr: float

    @property
    def cost(self) -> int:
        """Forward and backward passes over a view (a pair of them for byol) for each image."""
        return self.steps * self.views


class Trained(NamedTuple):
    """How far a training had come, the trainings before it included."""

    steps: int
    total: int

    def words(self) -> str:
        return f"{self.steps:,} of {self.total:,} steps"


class Epochs(NamedTuple):
    """How often a whole training sees the training images; `before` are those of the trainings that came first."""

    own: float
    before: float | None = 0.0  # None: there were some, but how many is not known

    def words(self) -> str:
        """In the order of time, `6.35 + 0.32`."""
        start = "?" if self.before is None else f"{self.before:g}"
        return f"{self.own:g}" if self.before == 0 else f"{start} + {self.own:g}"


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of one run; `label` names what an ablation changed, the last three its training if known."""

    path: Path
    result: dict[str, Any]
    method: Method
    label: str = ""
    settings: dict[str, Any] | None = None
    trained: Trained | None = None
    epochs: Epochs | None = None

    @property
    def protocol(self) -> dict[str, Any]:
        return dict(self.result["protocol"])

    @property
    def seed(self) -> int | None:
        return self.protocol.get("train_seed")

    @property
    def unfinished(self) -> Trained | None:
        """How far the training had come, if not to its end; one that does not say so counts as finished."""
        return self.trained if self.trained is not None and self.trained.steps < self.trained.total else None

    @property
    def mark(self) -> str:
        """What stands behind the names of rows that rest on this evaluation, if its training was not finished."""
        return f" ({self.unfinished.words()})" if self.unfinished else ""

    @property
    def setting(self) -> Setting:
        p = self.protocol
        return Setting(int(p.get("steps") or 0), int(p.get("views") or 0), float(p.get("lr") or 0))

    @property
    def has_default_setting(self) -> bool:
        """Whether this is how the model adapts by itself, and not a point of a sweep."""
        own = self.protocol.get("default_adaptation") is not False or not self.has("after")
        return own and not self.protocol.get("sweep")

    @property
    def corruptions(self) -> list[str]:
        """In the order of the paper's tables; those it does not have come last."""
        known = sorted(PAPER)  # as these are
        names = list(dict.fromkeys(c["name"] for c in self.result["corruptions"]))
        return sorted(names, key=lambda n: (known.index(n) if n in known else len(known), names.index(n)))

    @property
    def severities(self) -> list[int]:
        return sorted({c["severity"] for c in self.result["corruptions"]})

    def has(self, row: str) -> bool:
        """Whether the row (before, after, a control) was evaluated."""
        entries = self.result["corruptions"] or [self.result["clean"]]
        return all(row in entry for entry in entries)

    def numbers(self, row: str, severities: Sequence[int], key: str = "accuracy") -> NDArray[np.float64]:
        """A row's accuracy (or `nll`, `calibration_error`): (corruptions, severities)."""
        found = {(c["name"], c["severity"]): c for c in self.result["corruptions"]}
        return np.array([[float(found[n, s][row][key]) for s in severities] for n in self.corruptions])

    def average(self, row: str, severities: Sequence[int], key: str = "accuracy") -> float:
        """Over corruptions and severities; without severities, of the clean images."""
        if not severities:
            return float(self.result["clean"][row][key])
        return float(self.numbers(row, severities, key).mean())

    def hits(self, row: str, severities: Sequence[int]) -> NDArray[np.float64] | None:
        """Of each image, the share of corruptions under which it was right, in percent; None in older files.

        Without severities, of the clean images.
        """
        entries = [c for c in self.result["corruptions"] if c["severity"] in severities]
        entries = entries if severities else [self.result["clean"]]
        if not entries or not all(row in c.get("correct", {}) for c in entries):
            return None
        return np.asarray(100 * np.array([self.answers(c)[row] for c in entries]).mean(0))

    def answers(self, entry: dict[str, Any]) -> dict[str, NDArray[np.bool_]]:
        """Which answers were right, by row."""
        images = int(self.protocol["images"])
        return {row: unpack_correct(packed, images) for row, packed in entry.get("correct", {}).items()}

    def count(self, key: str, severities: Sequence[int]) -> int:
        """How many answers were `fixed` or `broken`."""
        return sum(int(c[key]) for c in self.result["corruptions"] if c["severity"] in severities)


def read_evaluation(path: Path) -> dict[str, Any] | None:
    """The file's content if it is an evaluation, known by its protocol."""
    value = load_json(path)
    if not isinstance(value, dict) or not isinstance(value.get("protocol"), dict) or "corruptions" not in value:
        return None
    return value


def read_trained(values: Mapping[str, Any], steps: str) -> Trained | None:
    """How far a training had come, as a protocol or a run.json says it; None where they do not."""
    found = (values.get(steps), values.get("total_steps"))
    if found == (None, None):
        return None
    done, total = found
    if type(done) is not int or type(total) is not int or not 0 <= done <= total:
        raise ValueError(f"{steps} {done!r} of total_steps {total!r}")
    return Trained(done, total)


def check_whole(evaluation: Evaluation) -> None:
    """Raise where something that will be read is missing, of another kind, or contradicts the rest."""
    result, protocol = evaluation.result, evaluation.protocol
    there = {(c["name"], c["severity"]) for c in result["corruptions"]}
    if there != {(n, s) for n in protocol["corruptions"] for s in protocol["severities"]}:
        raise ValueError("its corruptions are not those of its protocol")
    if type(protocol["images"]) is not int or protocol["images"] < 1:
        raise ValueError("images that are not counted")
    for key in ("first", "steps", "views", "lr", "clip", "train_seed", "seed"):
        if not isinstance(protocol.get(key), int | float | None):
            raise TypeError(f"{key} that is not a number")
    if not isinstance(protocol.get("data"), str | None):
        raise TypeError("data that is no name")
    if not isinstance(protocol.get("versions"), dict | None):
        raise TypeError("versions that are not named")
    if not all(is_name(text) for text in _texts(protocol)):
        raise ValueError("a name that is empty, too long or not printable")
    rows = [row for row in ("before", "after", "view_average", *CONTROLS) if evaluation.has(row)]
    if "before" not in rows:
        raise KeyError("before")
    for row in rows:
        for key in ("accuracy", "nll", "calibration_error"):
            if not np.isfinite(evaluation.numbers(row, evaluation.severities, key)).all():
                raise ValueError(f"{key} that is not finite")
        if result["clean"] is not None and row not in CONTROLS:
            float(result["clean"][row]["accuracy"])
    if "after" in rows:
        evaluation.count("fixed", evaluation.severities)
        evaluation.count("broken", evaluation.severities)
    for name in GAINS:
        if name in result and not all(np.isfinite(float(result[name][key])) for key in ("mean", "low", "high")):
            raise ValueError(f"{name} that is not finite")
    _check_answers(evaluation)


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in (*value.keys(), *value.values()) if isinstance(value, dict) else value:
            yield from _texts(item)


def _check_answers(evaluation: Evaluation) -> None:
    """Raise where numbers are not those of the answers that were kept."""
    result = evaluation.result
    clean = [] if result["clean"] is None else [result["clean"]]
    found = [(entry, evaluation.answers(entry)) for entry in (*clean, *result["corruptions"])]
    checked = [(entry, answers) for entry, answers in found if answers]
    kept = [answers for _, answers in found[len(clean) :]]
    if kept and all(kept):
        rows = [row for row in kept[0] if all(row in answers for answers in kept)]
        checked.append((result, {row: np.stack([answers[row] for answers in kept]) for row in rows}))
    for entry, answers in checked:
        where = entry.get("name", "clean images") if entry is not result else "average"
        for row, correct in answers.items():
            told = result["average"][row] if entry is result else entry[row]["accuracy"]
            if abs(float(told) - 100 * correct.mean()) > 1e-6:
                raise ValueError(f"{where}, {row}: the accuracy is not that of the answers")
        for name, gain in gains(answers).items():
            if name in entry and any(abs(float(entry[name][key]) - gain[key]) > 1e-6 for key in gain):
                raise ValueError(f"{where}: the {name} is not that of the answers")
        if "after" in answers:
            for name, number in fixed_and_broken(answers["after"], answers["before"]).items():
                if name in entry and entry[name] != number:
                    raise ValueError(f"{where}: what was {name} is not that of the answers")
