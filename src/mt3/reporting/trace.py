"""What happened to the step along a training, as a table and curves. Needs no torch."""

import re
from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from mt3.reporting.accuracy import image_words
from mt3.reporting.figures import Figure, drawing
from mt3.reporting.rows import interval_cell
from mt3.results.facts import Evaluation, read_evaluation
from mt3.results.shape import check_shape
from mt3.results.tables import Cell, Line, Table
from mt3.support.errors import InputError, name_list
from mt3.support.files import load_json

KEY = "trace"  # in the file: the points of a training
POINT_FILE = re.compile(r"step-[0-9]{8}\.json")  # the evaluation of a point, in the folder beside the trace
POINT = {"step": 0, "evaluation": "", "cosine_images": 0.0, "cosine_draws": 0.0}
ROWS = {  # of an evaluation: the column, the curve's words and its colour
    "before": ("before", "before the step", "#009E73"),
    "clean_other": ("unrelated image", "step on an unrelated image", "#999999"),
    "after": ("after", "step on the image itself", "#D55E00"),
}
COSINES = {  # likewise
    "cosine_images": ("cosine of images", "of two images", "#0072B2"),
    "cosine_draws": ("cosine of draws", "of two draws of views of one image", "#CC79A7"),
}
NOTE = (
    "Accuracies in %. Gain is after minus before, adaptation is after minus the step on an unrelated image, in points "
    "with paired 95 % intervals over images. Cosines are of the steps in the space of the weights, of two images and "
    "of two draws of views of one image: 1 says that the step is the same, 0 that the two have nothing in common."
)


class Point(NamedTuple):
    """A model along a training."""

    step: int
    found: Evaluation
    cosine_images: float
    cosine_draws: float


class Trace(NamedTuple):
    """A training's points in order, and the file that they are from."""

    path: Path
    points: tuple[Point, ...]

    @property
    def data(self) -> str | None:
        """The data set's name."""
        name: str | None = self.points[-1].found.protocol["data"]
        return name


def is_trace(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get(KEY), list)


def read_trace(path: Path) -> Trace:
    """The trace in a file that `mt3 trace` wrote; its evaluations lie in the folder of the same name beside it."""
    try:
        value = load_json(path)
        if not is_trace(value) or not value[KEY]:
            raise ValueError("no points of a training")
        for point in value[KEY]:
            check_shape(point, POINT, "point")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is not a whole trace ({error}); `mt3 trace RUN` writes one.") from None
    points = []
    for point in value[KEY]:
        kept = path.with_suffix("") / Path(point["evaluation"]).name
        if not kept.is_file():
            raise InputError(f"{path} is not a whole trace ({kept} is not there); run `mt3 trace` again.")
        found = read_evaluation(kept)
        if not (found.corruptions and all(map(found.has, ROWS))):
            raise InputError(f"{found.path} has no corruptions or no controls; run `mt3 trace` again.")
        points.append(Point(point["step"], found, point["cosine_images"], point["cosine_draws"]))
    return Trace(path, tuple(points))


def trace_table(trace: Trace, name: str = KEY) -> Table:
    """A line for each point."""
    lines = []
    for point in trace.points:
        cells = [Cell(point.found.accuracy(row)) for row in ROWS]
        cells += [interval_cell(point.found.gain(part)) for part in ("gain", "adaptation")]
        cells += [Cell(getattr(point, cosine), digits=2) for cosine in COSINES]
        lines.append(Line(f"{point.step:,}", tuple(cells)))
    columns = (*(words[0] for words in ROWS.values()), "gain", "adaptation", *(words[0] for words in COSINES.values()))
    found = trace.points[-1].found
    steps, views, lr = found.setting
    note = f"{NOTE} Every point adapts with steps={steps}, lr={lr:g}, views={views}, "
    note += f"layers={found.protocol['adaptation']['layers']}."
    return Table(name, _title(trace), "step", columns, tuple(lines), note)


def _title(trace: Trace) -> str:
    found = trace.points[-1].found
    p = found.protocol
    run = None if p["run"] is None else found.run
    model = "" if run is None else f" of {run.method}{run.mark}, {run.network}, preset {run.preset}"
    where = f"{image_words(p)} under each of {name_list(found.corruptions)}, severity {name_list(found.severities)}"
    return f"The step along the training{model}: {p['data']}, {where}"


def draw_trace(paths: Sequence[Path], trace: Trace) -> None:
    """Accuracies against the training's steps, and below them the cosines."""
    steps = [point.step for point in trace.points]
    with drawing(*paths, width=6.4, height=5.0, rows=2, share=False) as (_, (upper, lower)):
        for row, (_, words, colour) in ROWS.items():
            values = [point.found.accuracy(row) for point in trace.points]
            upper.plot(steps, values, "o-", color=colour, label=words)
        upper.set_ylabel("accuracy in %")
        upper.legend()
        for name, (_, words, colour) in COSINES.items():
            lower.plot(steps, [getattr(point, name) for point in trace.points], "o-", color=colour, label=words)
        lower.set_ylabel("cosine of the steps")
        lower.set_xlabel("steps of training")
        lower.legend()


def trace_blocks(traces: Sequence[Trace]) -> list[Table | Figure]:
    """A table and a figure for each, which go by their files' names."""
    blocks: list[Table | Figure] = []
    names: list[str] = []
    for trace in traces:
        stem = re.sub("[^A-Za-z0-9_-]+", "-", trace.path.stem)
        name = KEY if stem == KEY else f"{KEY}-{stem}"  # no other table or figure is called so
        names.append(name if name not in names else next(n for i in count(2) if (n := f"{name}-{i}") not in names))
        table = trace_table(trace, names[-1])
        blocks += [table, Figure(names[-1], f"{table.title}.", partial(draw_trace, trace=trace))]
    return blocks
