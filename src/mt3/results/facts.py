"""One evaluation: the facts that its file holds, checked on reading, and the numbers that follow from them.

A file holds which answers were right, their likelihood and their calibration error. Needs no torch.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mt3.config.methods import Method, get_method
from mt3.corruptions import PAPER
from mt3.results import statistics
from mt3.results.show import CLEAN, data_frame, result_table
from mt3.results.statistics import GAINS, Correct, Difference, Probabilities
from mt3.support.errors import NAME, InputError, shown
from mt3.support.files import RUN_FILE, load_json, read_json

CONTROLS = {"clean_other": "unrelated image", "same_corruption": "same corruption"}  # adapted on another image
ROWS = ("before", "view_average", *CONTROLS, "after")

# the shape of a file: of each name a value of its kind
RUN = {"data": "", "method": "", "preset": "", "seed": 0, "label": "", "step": 0, "total_steps": 0}
RUN |= {"epochs": [0.0], "network": "", "overrides": {}}
ADAPTATION = {"objective": "", "steps": 0, "lr": 0.0, "clip": 0.0, "views": 0, "layers": "", "gate": 0.0, "variant": ""}
PROTOCOL = {"run": RUN, "label": "", "sweep": False, "data": "", "split": "", "source": {}, "corruptions": [""]}
PROTOCOL |= {"severities": [0], "images": 0, "first": 0, "clean": False, "controls": False, "seed": 0}
PROTOCOL |= {"adaptation": ADAPTATION, "own_adaptation": False, "views": 0, "precision": "", "model_hash": ""}
PROTOCOL |= {"versions": {}}
OPTIONAL = ("run", "data", "adaptation", "clip")  # may be null


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


class Setting(NamedTuple):
    """How a model was adapted at test time."""

    steps: int
    views: int
    lr: float


class Answers(NamedTuple):
    """What one row answered to the images under one corruption."""

    correct: Correct  # (images,)
    nll: float
    calibration_error: float

    @property
    def accuracy(self) -> float:
        return 100 * float(self.correct.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson interval of the accuracy."""
        return statistics.wilson_interval(int(self.correct.sum()), len(self.correct))


def facts(probabilities: Mapping[str, Probabilities], labels: NDArray[np.int64]) -> dict[str, dict[str, Any]]:
    """What a file keeps of the rows' probabilities under one corruption."""
    kept = {}
    for row, p in probabilities.items():
        correct = statistics.is_correct(p, labels)
        error = 100 * statistics.calibration_error(p, correct)
        nll = statistics.mean_nll(p, labels)
        kept[row] = {"correct": statistics.pack_correct(correct), "nll": nll, "calibration_error": error}
    return kept


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One evaluation of one model. `read_evaluation` and `parse_evaluation` check what it is made of.

    Numbers are means over corruptions and severities, or of those that are given; severity 0 is the clean images.
    Accuracies are in percent.
    """

    value: dict[str, Any]  # the file's content
    path: Path

    @property
    def protocol(self) -> dict[str, Any]:
        """Everything that the numbers depend on."""
        return dict(self.value["protocol"])

    @cached_property
    def run(self) -> Run:
        """The training of the model."""
        if self.protocol["run"] is None:
            raise InputError(f"{self.path} does not say which training its model is of; evaluate the run itself.")
        return Run(**self.protocol["run"])

    @property
    def method(self) -> Method:
        return get_method(self.run.method)

    @property
    def label(self) -> str:
        """What this is called in a report; nothing for the reference of a study."""
        return str(self.protocol["label"])

    @property
    def setting(self) -> Setting:
        p = self.protocol
        a = p["adaptation"] or {"steps": 0, "views": p["views"], "lr": 0.0}
        return Setting(a["steps"], a["views"], float(a["lr"]))

    @property
    def has_own_setting(self) -> bool:
        """Whether the model answers as it does by itself, and this is no point of a sweep."""
        return (self.protocol["own_adaptation"] or not self.has("after")) and not self.protocol["sweep"]

    @cached_property
    def corruptions(self) -> list[str]:
        """In the order of the paper's tables; corruptions that it does not have come last."""
        known, names = sorted(PAPER), self.protocol["corruptions"]
        return sorted(names, key=lambda n: (known.index(n) if n in known else len(known), names.index(n)))

    @cached_property
    def severities(self) -> list[int]:
        return sorted(self.protocol["severities"])

    @cached_property
    def _found(self) -> dict[tuple[str, int], dict[str, Answers]]:
        """The rows of each corruption and severity."""
        count = self.protocol["images"]
        entries = {(e["name"], e["severity"]): (e["rows"], e.get("images", count)) for e in self.value["corruptions"]}
        entries = {(name, s): entries[name, s] for name in self.corruptions for s in self.severities}
        if self.value["clean"] is not None:
            entries["", CLEAN] = self.value["clean"], count
        return {key: {row: _unpack(f, n) for row, f in rows.items()} for key, (rows, n) in entries.items()}

    def _select(self, corruption: str | None, severity: int | None) -> list[dict[str, Answers]]:
        return [
            rows
            for (name, s), rows in self._found.items()
            if corruption in (None, name) and (s != CLEAN if severity is None else s == severity)
        ]

    def has(self, row: str, severity: int | None = None) -> bool:
        """Whether a row (before, after, view_average, clean_other, same_corruption) was evaluated."""
        found = self._select(None, severity if self.corruptions else CLEAN)
        return bool(found) and all(row in rows for rows in found)

    def answers(self, row: str, corruption: str | None = None, severity: int | None = None) -> list[Answers]:
        """Of each corruption and severity."""
        found = self._select(corruption, severity)
        if not found or any(row not in rows for rows in found):
            asked = f"row {row}, corruption {corruption or 'any'}, severity {'any' if severity is None else severity}"
            raise InputError(f"{self.path} does not hold all of {shown(asked, 200)}; evaluate that.")
        return [rows[row] for rows in found]

    def mean(self, quantity: str, row: str, corruption: str | None = None, severity: int | None = None) -> float:
        """The row's `accuracy`, `nll` or `calibration_error`."""
        return float(np.mean([getattr(a, quantity) for a in self.answers(row, corruption, severity)]))

    def accuracy(self, row: str = "after", corruption: str | None = None, severity: int | None = None) -> float:
        return self.mean("accuracy", row, corruption, severity)

    def correct(self, row: str, corruption: str | None = None, severity: int | None = None) -> Correct:
        """Which answers were right: (corruptions and severities, images), where all have the same images."""
        return np.stack([a.correct for a in self.answers(row, corruption, severity)])

    def per_image(self, row: str, corruption: str | None = None, severity: int | None = None) -> NDArray[np.float64]:
        """The share of right answers to each image, (images,), whose mean is the mean over corruptions.

        The same image under several corruptions is one. Where shifts have images of their own, all of them stand here,
        and each counts as many times as makes the shifts weigh the same.
        """
        found = [a.correct for a in self.answers(row, corruption, severity)]
        if self.protocol["source"].get("paired", True) and len({len(correct) for correct in found}) == 1:
            return np.asarray(np.mean(found, axis=0, dtype=np.float64))
        mean = sum(map(len, found)) / len(found)
        return np.concatenate([correct * (mean / len(correct)) for correct in found])

    def gain(self, name: str = "gain", corruption: str | None = None, severity: int | None = None) -> Difference:
        """The paired difference of two rows, as `GAINS` names them, with its interval over images."""
        high, low = (self.per_image(row, corruption, severity) for row in GAINS[name])
        return statistics.paired_interval(100.0 * (high - low))

    def each(self) -> Iterator[tuple[str, int, str, Answers]]:
        """Corruption, severity and row, and what was answered; clean images are of no corruption."""
        for (name, severity), rows in self._found.items():
            yield from ((name, severity, row, rows[row]) for row in ROWS if row in rows)

    def table(self) -> str:
        """The rows' accuracies under each corruption, as a table in Markdown."""
        return result_table({row.replace("_", " "): (self, row) for row in ROWS if self.has(row)})

    def to_pandas(self) -> Any:
        """A data frame of pandas, with a line for each corruption, severity and row."""
        return data_frame(self)

    def fixed_and_broken(self, severity: int | None = None) -> tuple[int, int]:
        """How many answers adapting put right, and how many it put wrong."""
        after, before = (
            np.concatenate([a.correct for a in self.answers(row, None, severity)]) for row in ("after", "before")
        )
        return int((after & ~before).sum()), int((before & ~after).sum())


def _unpack(facts: dict[str, Any], images: int) -> Answers:
    correct = statistics.unpack_correct(facts["correct"], images)
    return Answers(correct, float(facts["nll"]), float(facts["calibration_error"]))


def read_evaluation(path: Path) -> Evaluation:
    """The evaluation in a file, or one sentence on why there is none."""
    try:
        value = load_json(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not whole ({error}); evaluate again.") from None
    return parse_evaluation(value, path)


def parse_evaluation(value: Any, path: Path) -> Evaluation:
    """The evaluation that a file's content is; what is not whole is refused."""
    if not is_evaluation(value):
        raise InputError(f"{path} is not an evaluation; give files that `mt3 evaluate` wrote.")
    evaluation = Evaluation(value, path)
    try:
        _check_shape(value["protocol"], PROTOCOL, "protocol")
        if value["protocol"]["run"] is not None:
            _make_run(value["protocol"]["run"])
        _check_facts(evaluation)
    except KeyError as error:
        raise InputError(f"{path} is not a whole evaluation ({error} is missing); evaluate again.") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} is not a whole evaluation ({error}); evaluate again.") from None
    return evaluation


def is_evaluation(value: Any) -> bool:
    """Whether a file's content is an evaluation, known by its protocol."""
    return isinstance(value, dict) and isinstance(value.get("protocol"), dict) and "corruptions" in value


def read_run(path: Path) -> tuple[Run, dict[str, Any]] | None:
    """The training that a run.json is about, and the file's content; None where it does not say."""
    value = read_json(path)
    try:
        return _make_run(value["about"]), value
    except (KeyError, TypeError, ValueError):
        return None


def about_run(run: dict[str, Any], where: Path) -> dict[str, Any] | None:
    """What an evaluation tells of the training of its model, by its run.json; None for a model that is no run."""
    if not run:
        return None
    if "step" not in run:
        raise InputError(f"The run in {where} is not finished; continue it with --resume.")
    try:
        _make_run(run["about"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where / RUN_FILE} is damaged: about is not whole ({error}); restore it.") from None
    return dict(run["about"])


def _make_run(value: dict[str, Any]) -> Run:
    _check_shape(value, RUN, "run")
    run = Run(**{name: value[name] for name in RUN})
    get_method(run.method)
    if not run.epochs or not 0 <= run.step <= run.total_steps:
        raise ValueError(f"step {run.step} of {run.total_steps}, {len(run.epochs)} trainings")
    return run


def _check_shape(value: Any, shape: Any, name: str) -> None:
    """Refuse what is not of the shape's kind, and text that a table cannot show."""
    kinds = (int, float) if type(shape) is float else (type(shape),)
    if type(value) not in kinds:
        raise TypeError(f"{name} is {shown(repr(value))}")
    if isinstance(shape, dict):
        for key, part in (shape or value).items():  # an empty one may hold anything
            _check_shape(key, "", name)
            if not (value[key] is None and key in OPTIONAL):
                _check_shape(value[key], part, key)
    elif isinstance(shape, list):
        for item in value:
            _check_shape(item, item if shape is value else shape[0], name)
    if isinstance(value, str) and not (len(value) <= NAME and value.isprintable()):
        raise ValueError(f"{name} that is too long or not printable")


def _check_facts(evaluation: Evaluation) -> None:
    value, protocol = evaluation.value, evaluation.protocol
    wanted = sorted((name, severity) for name in protocol["corruptions"] for severity in protocol["severities"])
    if wanted != sorted((entry["name"], entry["severity"]) for entry in value["corruptions"]):
        raise ValueError("its corruptions are not those of its protocol")
    _check_shape(protocol["source"].get("images", [1]), [1], "images")
    if protocol["images"] < 1 or not evaluation._found:
        raise ValueError("no images")
    for rows in evaluation._found.values():
        for answers in (rows["before"], *rows.values()):
            if not math.isfinite(answers.nll + answers.calibration_error):
                raise ValueError("a likelihood or calibration error that is not finite")
