"""Results to tables and figures. Needs no torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mt3.errors import InputError
from mt3.files import atomic_path

ROW_TITLES = {
    "before": "before adapting",
    "view_average": "averaged over views, not adapted",
    "clean_other": "adapted on an unrelated clean image",
    "same_corruption": "adapted on another image, same corruption",
    "after": "adapted on the image itself",
}


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns: the first to the left, the others to the right."""
    lines = [list(header), *[list(row) for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]

    def draw(cells: Sequence[str]) -> str:
        padded = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    return "\n".join([draw(lines[0]), rule, *map(draw, lines[1:])])


def points(value: float) -> str:
    return f"{value:.1f}"


def interval(gain: dict[str, float]) -> str:
    """`+5.2 [+3.1, +7.3]`: a paired difference in points with its 95 % interval."""
    return f"{gain['mean']:+.1f} [{gain['low']:+.1f}, {gain['high']:+.1f}]"


def result_table(columns: dict[str, tuple[dict[str, Any], str]]) -> str:
    """Accuracy per corruption and on average; `columns` maps a title to (result, row of it)."""
    results = [result for result, _ in columns.values()]
    keys = [(c["name"], c["severity"]) for c in results[0]["corruptions"]]
    several = len({severity for _, severity in keys}) > 1
    by_key = [{(c["name"], c["severity"]): c for c in r["corruptions"]} for r in results]
    rows = [
        [f"{name} {severity}" if several else name]
        + [
            points(found[name, severity][row]["accuracy"])
            for found, (_, row) in zip(by_key, columns.values(), strict=True)
        ]
        for name, severity in keys
    ]
    if keys:
        rows.append(["average", *(points(r["average"][row]) for r, row in columns.values())])
    if all(r["clean"] is not None and row in r["clean"] for r, row in columns.values()):
        rows.append(["clean", *(points(r["clean"][row]["accuracy"]) for r, row in columns.values())])
    return text_table(["corruption", *columns], rows)


def evaluation_summary(result: dict[str, Any]) -> str:
    """What one evaluation found, for people: the table, the gain and its parts."""
    found = result["corruptions"] or [result["clean"]]
    rows = [row for row in ROW_TITLES if row in found[0]]
    lines = [result_table({row.replace("_", " "): (result, row) for row in rows}), ""]
    if "gain" in result:
        lines.append(
            f"gain by adapting {interval(result['gain'])} points (paired 95 % interval); "
            f"{result['fixed']} answers fixed, {result['broken']} broken"
        )
    if "adaptation" in result:
        parts = ", ".join(f"{name} {interval(result[name])}" for name in ("offset", "distribution", "instance"))
        lines.append(f"of which {parts}")
    return "\n".join(lines).rstrip()


def draw_examples(
    path: Path,
    clean: NDArray[np.uint8],
    corrupted: NDArray[np.uint8],
    names: Sequence[str],
    texts: Sequence[Sequence[str | bool]],
    truth: Sequence[str],
) -> None:
    """A figure of images, their corrupted versions and the prediction before and after.

    `texts` holds (before, right?, after, right?) for each column; a right answer is drawn with a tick and in blue, a
    wrong one with a cross and in orange.
    """
    pyplot = import_pyplot()
    count = len(clean)
    figure, axes = pyplot.subplots(2, count, figsize=(1.35 * count, 3.9), squeeze=False)
    for i in range(count):
        for axis, image in ((axes[0, i], clean[i]), (axes[1, i], corrupted[i])):
            axis.imshow(image, interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
        axes[0, i].set_title(f"truth: {truth[i]}", fontsize=9)
        axes[1, i].set_title(names[i].replace("_", "\n"), fontsize=8)
        before, before_right, after, after_right = texts[i]
        for line, (text, right) in enumerate(((f"before: {before}", before_right), (f"after: {after}", after_right))):
            axes[1, i].text(
                0.5,
                -0.12 - 0.2 * line,
                text + (" ✓" if right else " ✗"),
                transform=axes[1, i].transAxes,
                ha="center",
                va="top",
                fontsize=8,
                color="#0072B2" if right else "#D55E00",
            )
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=path.suffix.removeprefix("."), dpi=150)
    pyplot.close(figure)


ZOOM = 4  # device pixels for each pixel of a corrupted image: a whole number, so that none is blurred
GAP = 2  # pixels of an image between two of them
DPI = 240


def draw_corruptions(
    path: Path, clean: NDArray[np.uint8], corrupted: Mapping[str, NDArray[np.uint8]], severities: Sequence[int]
) -> None:
    """The paper's Figure 1: one image (32, 32, 3), clean and under each corruption (severities, 32, 32, 3).

    A row for each corruption, in two blocks side by side. `path` ends in .png or .pdf.
    """
    check_figure(path)
    pyplot = import_pyplot()
    names = list(corrupted)
    half = -(-len(names) // 2)
    blocks = [block for block in (names[:half], names[half:]) if block]
    step = clean.shape[0] + GAP
    width, height = step * (1 + len(severities)) - GAP, step * half - GAP  # of a block, in pixels of an image
    label, top, edge = 70, 22, 4  # room for names on the left and titles above, and around all, in the same unit
    figure_width, figure_height = len(blocks) * (label + width) + edge, top + height + edge
    inch = ZOOM / DPI  # of a pixel
    figure = pyplot.figure(figsize=(figure_width * inch, figure_height * inch))
    for i, block in enumerate(blocks):
        tall = step * len(block) - GAP
        left, bottom = i * (label + width) + label, edge + height - tall
        axis = figure.add_axes(
            (left / figure_width, bottom / figure_height, width / figure_width, tall / figure_height)
        )
        canvas = np.full((tall, width, 3), 255, np.uint8)
        for row, name in enumerate(block):
            for column, image in enumerate((clean, *corrupted[name])):
                canvas[row * step : (row + 1) * step - GAP, column * step : (column + 1) * step - GAP] = image
        axis.imshow(canvas, interpolation="nearest", aspect="auto")
        middle = (clean.shape[0] - 1) / 2
        axis.set_yticks([middle + step * row for row in range(len(block))], [name.replace("_", " ") for name in block])
        axis.set_xticks([middle + step * column for column in range(1 + len(severities))], ["clean", *severities])
        axis.xaxis.tick_top()
        axis.tick_params(length=0, pad=2, labelsize=8)
        axis.text(step + (width - step) / 2, -12, "severity", ha="center", va="bottom", fontsize=8)
        axis.spines[:].set_visible(False)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=path.suffix.removeprefix("."), dpi=DPI)
    pyplot.close(figure)


def check_figure(path: Path) -> None:
    """Refuse a figure's name that says no format."""
    if path.suffix not in (".png", ".pdf"):
        raise InputError(f"Expected a name ending in .png or .pdf for the figure, got {path}; choose one of them.")


def import_pyplot() -> Any:
    """Matplotlib's pyplot, drawing to files only; it is an extra."""
    try:
        import matplotlib
    except ImportError:
        raise InputError("Figures need matplotlib, which is not installed; pip install 'mt3[figures]'.") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
