"""Evaluations as a table for people, and as records for a data frame. Needs no torch."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mt3.results.tables import AVERAGE, DASH, Cell, Line, Table, markdown
from mt3.support.errors import InputError

if TYPE_CHECKING:
    from mt3.results.facts import Evaluation

CLEAN = 0  # the severity of clean images
CLEAN_WORD = "clean"


def result_table(columns: Mapping[str, tuple["Evaluation", str]]) -> str:
    """Accuracy per corruption and on average; `columns` maps a title to an evaluation and a row of it."""
    first, lines = next(iter(columns.values()))[0], []
    for severity in first.protocol["severities"]:
        for name in first.protocol["corruptions"]:
            label = f"{name} {severity}" if len(first.severities) > 1 else name
            lines.append(Line(label, tuple(Cell(e.accuracy(row, name, severity)) for e, row in columns.values())))
    if lines:
        lines.append(Line(AVERAGE, tuple(Cell(e.accuracy(row)) for e, row in columns.values())))
    if any(e.has(row, CLEAN) for e, row in columns.values()):  # for the controls there is none
        clean = [Cell(e.accuracy(r, None, CLEAN)) if e.has(r, CLEAN) else DASH for e, r in columns.values()]
        lines.append(Line(CLEAN_WORD, tuple(clean)))
    return markdown(Table("result", "Accuracy", "corruption", tuple(columns), tuple(lines)))


def records(evaluation: "Evaluation") -> list[dict[str, Any]]:
    """One for each corruption, severity and row; the accuracies are in percent, with their 95 % intervals."""
    found = []
    for name, severity, row, answers in evaluation.each():
        low, high = answers.interval
        found.append(
            {
                "corruption": name or CLEAN_WORD,
                "severity": severity,
                "row": row,
                "accuracy": answers.accuracy,
                "low": low,
                "high": high,
                "nll": answers.nll,
                "calibration_error": answers.calibration_error,
                "images": len(answers.correct),
            }
        )
    return found


def data_frame(evaluation: "Evaluation") -> Any:
    """The records as a data frame of pandas."""
    try:
        import pandas
    except ImportError:
        raise InputError("pandas is not installed; pip install pandas, or use Evaluation.table().") from None
    return pandas.DataFrame(records(evaluation))
