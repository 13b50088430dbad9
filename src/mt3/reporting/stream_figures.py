"""Figures of methods: accuracy along a stream, and against cost. Needs no torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mt3.config.streams import PER_IMAGE
from mt3.reporting.figures import drawing

PALETTE = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D1F", "#7F3C8D", "#666666", "#B3B300")
UNADAPTED = "#000000"
MARKERS = {PER_IMAGE: "o", "shift": "s", "continual": "^", "mixed": "D", "correlated": "v"}


class Along(NamedTuple):
    """The accuracy in % along a stream, and where another corruption begins."""

    title: str
    accuracy: Any
    starts: list[int]


class Point(NamedTuple):
    """What a method reaches in one way, and what its answer costs in forward passes."""

    title: str
    way: str
    passes: float
    accuracy: float


def draw_along(paths: Sequence[Path], streams: Mapping[str, Sequence[Along]]) -> None:
    """A panel for each stream, a line for each method; the first line is the model as it is."""
    titles = list(dict.fromkeys(line.title for lines in streams.values() for line in lines))
    colours = _colours(titles[1:]) | {titles[0]: UNADAPTED}
    columns = min(2, len(streams))
    rows = -(-len(streams) // columns)
    with drawing(*paths, width=4.2 * columns, height=2.6 * rows + 0.8, columns=columns, rows=rows) as (figure, axes):
        for axis in axes[len(streams) :]:
            axis.axis("off")
        for axis, (way, lines) in zip(axes, streams.items(), strict=False):
            for start in lines[0].starts:
                axis.axvline(start, color="#bbbbbb", linewidth=0.7, linestyle=":")
            for line in lines:
                width = 1.6 if line.title == titles[0] else 1.1
                axis.plot(
                    range(1, len(line.accuracy) + 1),
                    line.accuracy,
                    color=colours[line.title],
                    linewidth=width,
                    label=line.title,
                )
            axis.set_title(way, fontsize=9)
            axis.set_xlabel("images seen")
            axis.set_ylabel("accuracy in %")
            axis.set_xlim(0, len(lines[0].accuracy))
        drawn = [axis.get_legend_handles_labels() for axis in axes[: len(streams)]]
        found = {label: handle for handles, labels in drawn for handle, label in zip(handles, labels, strict=True)}
        figure.legend(found.values(), found, loc="outside upper center", ncols=min(5, len(found)))


def draw_costs(paths: Sequence[Path], points: Sequence[Point], before: float) -> None:
    """Accuracy against forward passes, which grow by factors: a colour for each method, a marker for each stream."""
    colours = _colours(dict.fromkeys(point.title for point in points))
    with drawing(*paths, width=6.4, height=4.0) as (figure, (axis,)):
        axis.axhline(before, color=UNADAPTED, linestyle=(0, (1, 2)), linewidth=1.2, label="as it is")
        for title, colour in colours.items():
            axis.plot([], [], "o", color=colour, label=title)
        for way in dict.fromkeys(point.way for point in points):
            axis.plot([], [], MARKERS[way], color="#555555", fillstyle="none", label=way)
        for point in points:
            axis.plot(point.passes, point.accuracy, MARKERS[point.way], color=colours[point.title], fillstyle="none")
        axis.set_xscale("log")
        axis.set_xlabel("forward passes of an image for an answer")
        axis.set_ylabel("average accuracy in %")
        handles, labels = axis.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper")


def _colours(titles: Any) -> dict[str, str]:
    return {title: PALETTE[i % len(PALETTE)] for i, title in enumerate(titles)}
