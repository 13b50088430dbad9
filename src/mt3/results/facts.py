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
from mt3.config.streams import PER_IMAGE
from mt3.corruptions import PAPER
from mt3.results import statistics
from mt3.results.runs import Run, make_run
from mt3.results.shape import check_protocol, check_shape
from mt3.results.show import CLEAN, CLEAN_WORD, data_frame, result_table
from mt3.results.statistics import GAINS, Correct, Difference, Positions, Probabilities
from mt3.support.errors import InputError, shown
from mt3.support.files import load_json

CONTROLS = {"clean_other": "unrelated image", "same_corruption": "same corruption"}  # adapted on another image
ROWS = ("before", "view_average", *CONTROLS, "after")
TUNING = "tuning"  # the label of a point of `mt3 tune`
NEAR_COPIES = {"before": "copies_before", "after": "copies"}  # a row, and the mean probabilities over near copies


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
    confidence: dict[str, dict[str, float | None]] | None = None  # softmax, copies -> calibration_error, auroc

    @property
    def accuracy(self) -> float:
        return 100 * float(self.correct.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson interval of the accuracy."""
        return statistics.wilson_interval(int(self.correct.sum()), len(self.correct))


def facts(probabilities: Mapping[str, Probabilities], labels: NDArray[np.int64]) -> dict[str, dict[str, Any]]:
    """What a file keeps of the rows' probabilities under one corruption."""
    kept: dict[str, dict[str, Any]] = {}
    for row, p in probabilities.items():
        if row in NEAR_COPIES.values():
            continue
        correct, softmax = statistics.is_correct(p, labels), p.max(-1)
        error = 100 * statistics.calibration_error(softmax, correct)
        nll = statistics.mean_nll(p, labels)
        kept[row] = {"correct": statistics.pack_correct(correct), "nll": nll, "calibration_error": error}
        if row in NEAR_COPIES and NEAR_COPIES[row] in probabilities:
            agreed = probabilities[NEAR_COPIES[row]][np.arange(len(p)), p.argmax(-1)]
            told = {"softmax": softmax, "copies": agreed}
            kept[row]["confidence"] = {name: _quality(value, correct) for name, value in told.items()}
    return kept


def _quality(confidence: NDArray[np.float32], correct: Correct) -> dict[str, float | None]:
    error = 100 * statistics.calibration_error(confidence, correct)
    return {"calibration_error": error, "auroc": statistics.area_under_curve(confidence, correct)}


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
    def rival(self) -> str:
        """How the model adapts, by a method's name; `own` as it was trained to."""
        return str(self.protocol.get("method", "own"))

    @property
    def way(self) -> str:
        """The stream along which it adapts, or `per image`."""
        return str(self.protocol.get("stream", {"kind": PER_IMAGE})["kind"])

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
        return [rows for key, rows in self._found.items() if _is_asked(key, corruption, severity)]

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
        if self.way != PER_IMAGE:
            after, before = (self.answers(row, corruption, severity) for row in GAINS[name])
            return self._along(after, before, self.positions(corruption, severity))
        high, low = (self.per_image(row, corruption, severity) for row in GAINS[name])
        return statistics.paired_interval(100.0 * (high - low))

    def minus(self, other: "Evaluation", row: str = "after", others: str | None = None) -> Difference:
        """The paired difference of a row from one of another evaluation of the same images, in the same order."""
        others = row if others is None else others
        if self.way != PER_IMAGE:
            return self._along(self.answers(row), other.answers(others), self.positions())
        return statistics.paired_interval(100.0 * (self.per_image(row) - other.per_image(others)))

    def _along(self, high: list[Answers], low: list[Answers], places: list[Positions]) -> Difference:
        """The difference of answers along a stream, with its interval by blocks."""
        found = [100.0 * (a.correct.astype(float) - b.correct) for a, b in zip(high, low, strict=True)]
        paired = bool(self.protocol["source"].get("paired", True))
        return statistics.stream_interval(found, places, paired, self.batch)

    @property
    def batch(self) -> int:
        """Images that share a step."""
        return int((self.protocol["adaptation"] or {}).get("batch", 1))

    def positions(self, corruption: str | None = None, severity: int | None = None) -> list[Positions]:
        """Where in the stream the images come, (images,) for each of the `answers`."""
        held, keys = self.value["positions"], [k for k in self._found if _is_asked(k, corruption, severity)]
        counts = [len(answers.correct) for answers in self.answers("before", corruption, severity)]
        packed = [held[f"{name or CLEAN_WORD}-{severity}"] for name, severity in keys]
        return [statistics.unpack_positions(p, count) for p, count in zip(packed, counts, strict=True)]

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


def _is_asked(key: tuple[str, int], corruption: str | None, severity: int | None) -> bool:
    return corruption in (None, key[0]) and (key[1] != CLEAN if severity is None else key[1] == severity)


def _unpack(facts: dict[str, Any], images: int) -> Answers:
    correct = statistics.unpack_correct(facts["correct"], images)
    nll, error = float(facts["nll"]), float(facts["calibration_error"])
    return Answers(correct, nll, error, facts.get("confidence"))


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
        check_protocol(value["protocol"])
        if value["protocol"]["run"] is not None:
            make_run(value["protocol"]["run"])
        _check_facts(evaluation)
    except KeyError as error:
        raise InputError(f"{path} is not a whole evaluation ({error} is missing); evaluate again.") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} is not a whole evaluation ({error}); evaluate again.") from None
    return evaluation


def is_evaluation(value: Any) -> bool:
    """Whether a file's content is an evaluation, known by its protocol."""
    return isinstance(value, dict) and isinstance(value.get("protocol"), dict) and "corruptions" in value


def _check_facts(evaluation: Evaluation) -> None:
    value, protocol = evaluation.value, evaluation.protocol
    wanted = sorted((name, severity) for name in protocol["corruptions"] for severity in protocol["severities"])
    if wanted != sorted((entry["name"], entry["severity"]) for entry in value["corruptions"]):
        raise ValueError("its corruptions are not those of its protocol")
    check_shape(protocol["source"].get("images", [1]), [1], "images")
    if protocol["images"] < 1 or not evaluation._found:
        raise ValueError("no images")
    for rows in evaluation._found.values():
        for answers in (rows["before"], *rows.values()):
            if not math.isfinite(answers.nll + answers.calibration_error):
                raise ValueError("a likelihood or calibration error that is not finite")
    if evaluation.way != PER_IMAGE:
        places = np.concatenate([p for key in evaluation._found for p in evaluation.positions(*key)])
        if not np.array_equal(np.sort(places), np.arange(len(places))):
            raise ValueError("positions that are no stream's")
