"""Test-time methods beside each other, as the demo shows them: per image and along a stream, with a verdict."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mt3.config.rivals import get_rival
from mt3.evaluation.evaluate import evaluate
from mt3.evaluation.protocol import Protocol, TestImages
from mt3.evaluation.settle import method_name, settle
from mt3.models.classifier import MT3Model
from mt3.models.store import find_model, read_run
from mt3.reporting.figures import draw_examples
from mt3.reporting.summary import interval
from mt3.results.facts import Evaluation
from mt3.results.runs import about_run
from mt3.results.statistics import Difference
from mt3.results.tables import DASH, Cell, Table, make_table, mark_best, markdown

STREAM = "continual"  # one corruption after the other, nothing is told of where the next begins
SHOWN = 12  # images of a figure


class Line(NamedTuple):
    """What one method says, each image by itself and along a stream: an evaluation and a row of it."""

    title: str
    alone: tuple[Evaluation, str] | None = None
    online: tuple[Evaluation, str] | None = None


class Setting(NamedTuple):
    """A method on a model, each image by itself or along a stream."""

    model: MT3Model
    method: str = "own"
    stream: str | None = None
    controls: bool = False
    fields: dict[str, Any] = {}  # noqa: RUF012, of the adaptation; never changed
    run: dict[str, Any] | None = None  # how the model was trained, so that a report can name it


def about_model(model: str | Path) -> dict[str, Any] | None:
    """How a run or a model of the package was trained, as an evaluation tells it."""
    folder = find_model(model)
    return about_run(read_run(folder), folder)


def evaluate_setting(setting: Setting, images: TestImages, asked: Protocol, folder: Path) -> Evaluation:
    """Evaluate a setting; what is there is not done again."""
    name = method_name(setting.method)
    adaptation = settle(setting.model, setting.method, setting.stream, setting.fields)
    told: dict[str, Any] = {"stream": setting.stream, "controls": setting.controls, "run": setting.run}
    protocol = replace(asked, adaptation=adaptation, method=name, **told)
    return evaluate(setting.model, images, protocol, folder / f"{name}-{setting.stream or 'alone'}.json")


def lines_of(title: str, alone: Evaluation, online: Evaluation, own: str) -> list[Line]:
    """A model as it is, with its controls where they were asked for, and after adapting in its own way."""
    controls = {
        "clean_other": "after a step on an unrelated image",
        "same_corruption": "after one on another such image",
    }
    return [
        Line(f"{title} as it is", (alone, "before"), (online, "before")),
        *(Line(f"{title} {words}", (alone, row)) for row, words in controls.items() if alone.has(row)),
        Line(f"{title} with {own}", (alone, "after"), (online, "after")),
    ]


def method_line(title: str, method: str, alone: Evaluation | None, online: Evaluation | None) -> Line:
    """A model with a rival."""
    cells = [None if found is None else (found, "after") for found in (alone, online)]
    return Line(f"{title} with {get_rival(method).title}", *cells)


def show(lines: Sequence[Line]) -> tuple[str, str]:
    """The table and the verdict; the first line is what the others are measured by."""
    columns = {"each image by itself": "alone", "along a stream": "online"}
    cells: dict[str, list[Cell]] = {}
    for column, field in columns.items():
        found = [getattr(line, field) for line in lines]
        if not any(found):
            continue
        shown = mark_best([DASH if each is None else Cell(each[0].accuracy(each[1])) for each in found])
        gains = [DASH if each is None or not i else _gain_cell(each, found[0]) for i, each in enumerate(found)]
        cells |= {column: list(shown), f"points more, {field}": gains}
    rows = [(line.title, {name: column[i] for name, column in cells.items()}) for i, line in enumerate(lines)]
    (table,) = make_table("beside", "Accuracy in %", "model", rows)
    return markdown(_renamed(table)), _verdict(lines)


def _renamed(table: Table) -> Table:
    """Both columns of differences have the same head."""
    return replace(table, columns=tuple(c.partition(",")[0] for c in table.columns))


def _gain_cell(found: tuple[Evaluation, str], first: tuple[Evaluation, str]) -> Cell:
    gain = _minus(found, first)
    return Cell(gain.mean, interval=(gain.low, gain.high), signed=True)


def _minus(found: tuple[Evaluation, str], first: tuple[Evaluation, str]) -> Difference:
    return found[0].minus(first[0], found[1], first[1])


def _verdict(lines: Sequence[Line]) -> str:
    """Which setting is best, whatever it is, and how sure that is."""
    first, places = lines[0], {"alone": "each image by itself", "online": "along a stream"}
    asked = [(line, place) for line in lines[1:] for place in places if getattr(line, place) is not None]
    adapted = [(line, place) for line, place in asked if getattr(line, place)[1] == "after"]
    best, place = max(adapted, key=lambda each: _accuracy(getattr(*each)))
    gain = _minus(getattr(best, place), getattr(first, place))
    base = _accuracy(getattr(first, place))
    words = f"Best of the {len(adapted)} ways to adapt: {best.title}, {places[place]}: "
    words += f"{_accuracy(getattr(best, place)):.1f} %, {interval(gain)} points over {first.title} ({base:.1f} %).\n"
    if gain.low > 0:
        return (
            words + f"It is above {first.title}; since the best was picked among {len(adapted)}, take that with care."
        )
    if gain.high < 0:
        return words + f"It is BELOW {first.title}: on these images no way to adapt pays."
    return words + "No difference is shown: the interval includes 0."


def worth_of_own(found: Evaluation) -> str:
    """What the image itself adds to a step, beside a control that steps on another."""
    gain = found.gain("adaptation")
    shown = "" if gain.low > 0 else "NOT SHOWN: "
    return f"""{shown}a step on the image itself rather than on an unrelated one is worth
{interval(gain)} points (paired 95 % interval)."""


def _accuracy(found: tuple[Evaluation, str]) -> float:
    return found[0].accuracy(found[1])


def draw_turned(found: Evaluation, images: TestImages, classes: Sequence[str]) -> str:
    """Draw images whose answer the step turned, right and wrong ones in their true proportion; says how many there are.

    Of each kind the first ones are drawn, corruption by corruption in turn: nothing is picked by hand.
    """
    names, severity = found.corruptions, found.severities[-1]
    before, after = (found.correct(row, None, severity).T for row in ("before", "after"))  # (images, corruptions)
    right, wrong = (np.argwhere(turned) for turned in (after & ~before, before & ~after))
    total = len(right) + len(wrong)
    told = f"the step turned {len(right)} answers right and {len(wrong)} wrong, of {before.size}"
    if not total:
        return f"no figure: {told}"
    count = min(SHOWN, total)
    good = round(count * len(right) / total)
    path = found.path.with_name("figure.png")
    with np.load(found.path.with_suffix(".npz"), allow_pickle=False) as file:
        labels, pictures, titles = file["labels"], [], []
        texts: list[list[str | bool]] = []
        for image, column in [*right[:good], *wrong[: count - good]]:
            pictures.append(images.take((names[column], severity), image, image + 1))
            answers = [file[f"{names[column]}-{severity}/{row}"][image] for row in ("before", "after")]
            said = [
                (f"{classes[p.argmax()]} {100 * p.max():.0f} %", bool(p.argmax() == labels[image])) for p in answers
            ]
            texts.append([*said[0], *said[1]])
            titles.append((image, names[column]))
    clean = np.concatenate([images.take(("clean", 0), image, image + 1) for image, _ in titles])
    truth = [classes[labels[image]] for image, _ in titles]
    draw_examples(path, clean, np.concatenate(pictures), [name for _, name in titles], texts, truth)
    return f"{path}: {told}; {good} and {count - good} of them are drawn"
