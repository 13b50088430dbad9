"""Results to tables and figures. Needs no torch."""

from collections.abc import Sequence
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


def import_pyplot() -> Any:
    """Matplotlib's pyplot, drawing to files only; it is an extra."""
    try:
        import matplotlib
    except ImportError:
        raise InputError("Figures need matplotlib, which is not installed; pip install 'mt3[figures]'.") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
