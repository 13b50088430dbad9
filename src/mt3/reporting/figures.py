"""Drawing results with matplotlib, which is an extra. Needs no torch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mt3.reporting.curves import Curve, count_epochs
from mt3.results.tables import Cell
from mt3.support.errors import InputError
from mt3.support.files import atomic_path

FORMATS = ("png", "pdf")
COLOURS = {  # Okabe and Ito's, told apart by colour-blind readers; a method has the same one everywhere
    "Baseline (Sun et al.)": "#999999",
    "JT (Sun et al.)": "#56B4E9",
    "TTT (Sun et al.)": "#0072B2",
    "Baseline (ours)": "#000000",
    "Supervised with B": "#F0E442",
    "JT (ours)": "#E69F00",
    "TTT (ours)": "#CC79A7",
    "MT": "#009E73",
    "MT3": "#D55E00",
}
MOST_BARS = 90  # in one panel
STYLE: dict[str, Any] = {"font.size": 9, "grid.color": "#dddddd", "grid.linewidth": 0.6, "legend.frameon": False}
STYLE |= {"axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "axes.grid": True}
STYLE |= {"pdf.fonttype": 42}  # text stays text


class Figure(NamedTuple):
    """A figure to draw: its file name without ending, what it shows, and how to draw it to paths."""

    name: str
    caption: str
    draw: Callable[[Sequence[Path]], None]


class Sweep(NamedTuple):
    """Accuracy after adapting against a setting; `before` is the accuracy without adapting."""

    title: str
    row: str  # whose colour it has
    points: list[tuple[float, Cell]]
    before: float


@contextmanager
def drawing(
    *paths: Path, width: float, height: float, columns: int = 1, rows: int = 1, share: bool = True
) -> Iterator[tuple[Any, Any]]:
    """Yield a figure and its axes row by row; then write it to the paths, the same bytes for the same content.

    The panels share a vertical scale unless they show different things.
    """
    pyplot = import_pyplot()
    size: dict[str, Any] = {"figsize": (width, height), "squeeze": False, "sharey": share, "layout": "constrained"}
    with pyplot.style.context(["default", STYLE]):
        figure, axes = pyplot.subplots(rows, columns, **size)
        try:
            yield figure, axes.flatten()
            for path in paths:
                _save(figure, path, 200)
        finally:
            pyplot.close(figure)


def _save(figure: Any, path: Path, dpi: int) -> None:
    check_figure(path)
    kind = path.suffix.removeprefix(".")
    metadata = {"png": {"Software": None}, "pdf": {"CreationDate": None, "ModDate": None}}[kind]
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=dpi, metadata=metadata)


def draw_bars(paths: Sequence[Path], columns: Mapping[str, Mapping[str, Cell]], names: Sequence[str]) -> None:
    """Accuracy per corruption and on average, a bar for each method, with standard deviations over runs.

    The average is the last of `names`. Many bars are drawn in two panels, one above the other.
    """
    rows = list(columns)
    count = 1 if len(rows) * len(names) <= MOST_BARS else 2
    share = -(-len(names) // count)
    panels = [names[start : start + share] for start in range(0, len(names), share)]
    inches = max(5.0, 1.2 + share * max(0.56, 0.112 * len(rows)))
    highest = max((c.value or 0.0) + (c.std or 0.0) for row in rows for c in columns[row].values())
    with drawing(*paths, width=inches, height=1.1 + 2.2 * count, rows=count) as (figure, axes):
        for axis, panel in zip(axes, panels, strict=True):
            _draw_panel(axis, columns, panel, apart=panel is panels[-1])
            axis.set_xlim(-0.6, share)
            axis.set_ylim(0, min(100.0, 10 * np.ceil(highest / 10)) or 10)
        handles, labels = axes[0].get_legend_handles_labels()
        fitting = max(1, int(inches / (0.55 + 0.065 * max(map(len, labels)))))
        lines = -(-len(rows) // fitting)
        figure.legend(handles, labels, loc="outside upper center", ncols=-(-len(rows) // lines))


def _draw_panel(axis: Any, columns: Mapping[str, Mapping[str, Cell]], names: Sequence[str], apart: bool) -> None:
    """The bars of some corruptions; with `apart` the last of them, the average, has a gap before it."""
    where = np.arange(len(names), dtype=float)
    where[-1] += 0.4 * apart
    width = 0.84 / len(columns)
    for i, row in enumerate(columns):
        cells = [columns[row][name] for name in names]
        colour = _colour(row)
        whisker = "#888888" if colour == "#000000" else "#333333"  # seen on its own bar
        place = where + (i - (len(columns) - 1) / 2) * width
        look = {"color": colour, "edgecolor": "white", "linewidth": 0.4, "label": row}
        look["error_kw"] = {"elinewidth": 0.8, "capsize": 1.5, "capthick": 0.8, "ecolor": whisker}
        axis.bar(place, [c.value for c in cells], width, yerr=_whiskers(cells), **look)
    axis.set_xticks(where, [name.replace("_", " ") for name in names], rotation=35, ha="right", rotation_mode="anchor")
    axis.tick_params(axis="x", length=0)
    axis.grid(visible=False, axis="x")
    axis.set_ylabel("accuracy in %")


def _whiskers(cells: Sequence[Cell]) -> list[float] | None:
    return [c.std or 0.0 for c in cells] if any(c.std for c in cells) else None


def _colour(title: str) -> str:
    """Of a row, also if a mark stands behind its name."""
    return next(colour for row, colour in COLOURS.items() if title == row or title.startswith(f"{row} ("))


def draw_convergence(paths: Sequence[Path], curve: Curve | None, told: str, published: Curve, overlay: bool) -> None:
    """Training accuracy before and after the inner step, the authors' beside it; with `overlay` also over it.

    `told` says of which data the curve is, and how long its runs were trained.
    """
    panels = [(f"these runs, {told}", curve)] if curve is not None else []
    panels.append((f"the authors', CIFAR-10, {count_epochs(published.epochs[-1])}", published))
    width = 3.6 * len(panels) + 0.6
    with drawing(*paths, width=width, height=3.0, columns=len(panels)) as (figure, axes):
        figure.get_layout_engine().set(wspace=0.08)
        for axis, (title, shown) in zip(axes, panels, strict=True):
            count = len(shown.before)
            for row, values in (("MT", shown.before), ("MT3", shown.after)):
                label = "before the inner step" if row == "MT" else "after the inner step"
                mean = np.nanmean(values, axis=0)
                single = {"marker": "o", "clip_on": False} if len(mean) == 1 else {}  # a point alone is no line
                axis.plot(shown.epochs, mean, color=COLOURS[row], linewidth=1.4, label=label, **single)
                if count > 1:
                    ends = (mean - _spread(values), mean + _spread(values))
                    axis.fill_between(shown.epochs, *ends, color=COLOURS[row], alpha=0.25, linewidth=0)
            axis.set_title(f"{title} ({count} run{'s' if count > 1 else ''})", fontsize=9)
            axis.set_xlabel("epoch")
            axis.set_xlim(0, shown.epochs[-1])
            axis.locator_params(axis="x", nbins=5, integer=bool(shown.epochs[-1] >= 5))
            axis.set_ylim(0, 100)
        near = published.epochs <= (curve.epochs[-1] if curve is not None and overlay else 0)
        if near.sum() > 1:
            for row, values in (("MT", published.before), ("MT3", published.after)):
                axes[0].plot(published.epochs[near], values.mean(0)[near], "--", color=COLOURS[row], linewidth=1.0)
            axes[0].plot([], [], "--", color="#555555", linewidth=1.0, label="the authors' mean")
        axes[0].set_ylabel("training accuracy in %")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))


def _spread(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sample standard deviation over the runs that have the point; 0 where only one has."""
    count = (~np.isnan(values)).sum(0)
    squares = np.nansum((values - np.nanmean(values, axis=0)) ** 2, axis=0)
    return np.asarray(np.sqrt(squares / np.maximum(count - 1, 1)))


def draw_sweep(paths: Sequence[Path], sweeps: Sequence[Sweep], label: str) -> None:
    """Accuracy after adapting against a setting; a dotted line of the same colour is the accuracy before."""
    styles = ("-", "--", "-.", (0, (6, 1, 1, 1, 1, 1)))
    markers = "osD^vP"
    with drawing(*paths, width=5.0, height=3.0 + 0.19 * len(sweeps)) as (figure, (axis,)):
        drawn: dict[str, int] = {}
        handles = []
        dotted: dict[str, Any] = {"linestyle": (0, (1, 2)), "linewidth": 1.2}
        for sweep in sweeps:
            turn = drawn.setdefault(sweep.row, 0)
            drawn[sweep.row] += 1
            xs, cells = zip(*sweep.points, strict=True)
            look: dict[str, Any] = {"linestyle": styles[turn % len(styles)], "marker": markers[turn % len(markers)]}
            look |= {"color": COLOURS[sweep.row], "markersize": 4.5, "linewidth": 1.4, "label": sweep.title}
            means = [cell.value for cell in cells]
            handles.append(axis.errorbar(xs, means, yerr=_whiskers(cells), capsize=2, **look))
            if turn == 0:
                axis.axhline(sweep.before, color=COLOURS[sweep.row], **dotted)
        handles += axis.plot([], [], color="#555555", label="before adapting", **dotted)
        every = sorted({x for sweep in sweeps for x, _ in sweep.points})
        if _is_wide(every):
            axis.set_xscale("log")
            axis.minorticks_off()
        axis.set_xticks(_spaced(every), [f"{x:g}" for x in _spaced(every)])
        axis.set_xlabel(label)
        axis.set_ylabel("average accuracy in %")
        figure.legend(handles=handles, loc="outside upper center", ncols=1 if len(sweeps) > 1 else 2)


def _is_wide(xs: Sequence[float]) -> bool:
    return xs[0] > 0 and xs[-1] / xs[0] >= 8


def _spaced(xs: Sequence[float]) -> list[float]:
    """The ends and those between them that leave room for their labels."""
    if len(xs) < 3:
        return list(xs)
    place = np.log(xs) if _is_wide(xs) else np.asarray(xs)
    gap = 0.07 * (place[-1] - place[0])
    kept = [0]
    for i in range(1, len(xs) - 1):
        if place[i] - place[kept[-1]] >= gap and place[-1] - place[i] >= gap:
            kept.append(i)
    return [xs[i] for i in [*kept, len(xs) - 1]]


PAIRS = 5  # in a row


def draw_examples(
    path: Path,
    clean: NDArray[np.uint8],
    corrupted: NDArray[np.uint8],
    names: Sequence[str],
    texts: Sequence[Sequence[str | bool]],
    truth: Sequence[str],
) -> None:
    """A figure of images, each beside its corrupted version, with the prediction before and after.

    `texts` holds (before, right?, after, right?) for each pair; a right answer is drawn with a tick and in blue, a
    wrong one with a cross and in orange.
    """
    pyplot = import_pyplot()
    columns = min(PAIRS, len(clean))
    rows = -(-len(clean) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(2.6 * columns, 2.0 * rows), squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for i, axis in enumerate(axes.flat[: len(clean)]):
        gap = np.full((clean[i].shape[0], 2, 3), 255, np.uint8)
        axis.imshow(np.concatenate([clean[i], gap, corrupted[i]], axis=1), interpolation="nearest")
        axis.set_title(f"{truth[i]}, {names[i].replace('_', ' ')}", fontsize=10)
        before, before_right, after, after_right = texts[i]
        for line, (text, right) in enumerate(((f"before: {before}", before_right), (f"after: {after}", after_right))):
            look = {"ha": "center", "va": "top", "fontsize": 9, "color": "#0072B2" if right else "#D55E00"}
            axis.text(0.5, -0.06 - 0.17 * line, text + (" ✓" if right else " ✗"), transform=axis.transAxes, **look)
    figure.tight_layout(h_pad=2.2, rect=(0, 0.03, 1, 1))
    _save(figure, path, 150)
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
        box = (left / figure_width, bottom / figure_height, width / figure_width, tall / figure_height)
        axis = figure.add_axes(box)
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
    _save(figure, path, DPI)
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
