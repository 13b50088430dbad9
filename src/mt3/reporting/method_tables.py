"""Every test-time method beside the others: rows by method, columns by stream. Needs no torch."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mt3.config.rivals import RIVALS
from mt3.config.streams import PER_IMAGE, STREAMS
from mt3.reporting.collect import Results, flat, is_alike
from mt3.reporting.figures import Figure
from mt3.reporting.rows import interval_cell, over_runs
from mt3.reporting.stream_figures import Along, Point, draw_along, draw_costs
from mt3.results.facts import NEAR_COPIES, Evaluation
from mt3.results.statistics import block_length, mean_interval
from mt3.results.tables import DASH, Cell, Table, make_table, mark_best
from mt3.support.errors import InputError, name_list

AS_IT_IS = "as it is"
METHOD = "test-time method"  # heads the tables that LaTeX has, too
WAYS = (PER_IMAGE, *STREAMS)
WINDOWS, LEAST = 20, 10  # a running mean along a stream is over a twentieth of it, and no fewer images
READING = (
    "A column is one way to meet the images and holds nothing else: per image every step is discarded, along a stream "
    "steps are kept. "
)


class Row(NamedTuple):
    """One method on one model; runs differ in the seed of the training."""

    title: str
    runs: dict[str, list[Evaluation]]  # by way: per image, or a stream

    def cell(self, way: str, make: Callable[[list[Evaluation]], Cell]) -> Cell:
        return make(self.runs[way]) if way in self.runs else DASH


class Model(NamedTuple):
    """A trained model, and the methods that were evaluated on it."""

    name: str  # in the names of tables and files
    title: str
    rows: list[Row]

    @property
    def ways(self) -> list[str]:
        return [way for way in WAYS if any(way in row.runs for row in self.rows)]

    def before(self, way: str) -> list[Evaluation]:
        """Runs that know what the model answers as it is."""
        return next(row.runs[way] for row in self.rows if way in row.runs)


def models_of(results: Results) -> list[Model]:
    """The models of which methods or streams were evaluated; their own way per image comes from the main results."""
    own = [e for e in flat(results.main.values()) if results.methods and is_alike(e, results.methods[0])]
    found: dict[tuple[str, str], dict[str, Row]] = {_model_of(e): {} for e in results.methods}
    for e in [*own, *results.methods]:
        rows = found.get(_model_of(e))
        if rows is not None and e.has("after"):
            title = _method_of(e)
            runs = rows.setdefault(title, Row(title, {})).runs.setdefault(e.way, [])
            _require_one_setting([*runs, e])
            runs.append(e)
    return [Model(*names, sorted(rows.values(), key=_place)) for names, rows in found.items()]


def _place(row: Row) -> tuple[int, str]:
    """Methods come in the order of their list, the model's own way first."""
    e = next(iter(row.runs.values()))[0]
    return list(RIVALS).index(e.rival) if e.rival in RIVALS else len(RIVALS), e.label


def _model_of(e: Evaluation) -> tuple[str, str]:
    """Its name and title; a model that no training of ours gave is known by its weights."""
    if e.protocol["run"] is None:
        return e.protocol["model_hash"][:8], f"the model {e.protocol['model_hash'][:8]}"
    network = f" ({e.run.network})" if e.run.network else ""
    return e.run.method, e.method.before + network + e.run.mark


def _method_of(e: Evaluation) -> str:
    own = "its own" if e.protocol["run"] is None else e.method.after or "its own"
    return (own if e.rival == "own" else _title(e.rival)) + (f", {e.label}" if e.label else "")


def _title(name: str) -> str:
    return RIVALS[name].title if name in RIVALS else name


def _require_one_setting(runs: Sequence[Evaluation]) -> None:
    """Refuse two evaluations for one cell, but for trainings with other seeds."""
    *others, e = runs
    for other in others:
        fields = [name for name in ("adaptation", "seed") if other.protocol[name] != e.protocol[name]]
        alone = e.protocol["run"] is None or e.run.seed == other.run.seed
        if fields or alone:
            raise InputError(
                f"{other.path} and {e.path} are both of {_method_of(e)}, {e.way}, and differ in "
                f"{name_list(fields) or 'nothing but their answers'}; leave one out, or give it another --label."
            )


def method_blocks(results: Results) -> list[Table | Figure | str]:
    """Accuracy, gain and cost of the methods on each model, along each stream, and their figures."""
    blocks: list[Table | Figure | str] = []
    for model in models_of(results):
        severity = model.before(model.ways[0])[0].severities
        blocks += _tables(model, severity[-1] if severity else 0, results.timings)
        blocks += _figures(model, severity[-1] if severity else 0)
    return blocks


def _tables(model: Model, severity: int, timings: Sequence[dict[str, Any]]) -> list[Table]:
    ways, first = model.ways, model.before(model.ways[0])[0]
    unadapted = {way: over_runs([e.accuracy("before", None, severity) for e in model.before(way)]) for way in ways}
    lines = [(AS_IT_IS, unadapted)]
    lines += [(row.title, {w: row.cell(w, partial(_accuracy, severity=severity)) for w in ways}) for row in model.rows]
    best = {way: mark_best([cells[way] for _, cells in lines]) for way in ways}
    lines = [(label, {way: best[way][i] for way in ways}) for i, (label, _) in enumerate(lines)]
    several = "" if len(first.corruptions) == 1 else f" over {len(first.corruptions)} corruptions"
    title = f"{model.title}: average accuracy in %{several}, severity {severity}, "
    title += f"{first.protocol['images']:,} images each"
    note = READING + "Bold is the best of a column, and what is printed alike."
    precisions = {e.protocol["precision"] for row in model.rows for runs in row.runs.values() for e in runs}
    if len(precisions) > 1:
        note += f" Evaluated in {name_list(sorted(precisions))} (see how it adapted), so as it is differs a little."
    gains = [(row.title, {way: row.cell(way, partial(_gain, severity=severity)) for way in ways}) for row in model.rows]
    length = block_length(first.protocol["images"], max(row.runs[w][0].batch for row in model.rows for w in row.runs))
    told = "Paired 95 % intervals: per image the normal one over images; along a stream, whose answers are not "
    told += "independent, by a moving block bootstrap, in blocks of the square root of the number of images or of a "
    told += f"step's, here up to {length}; in a mixed stream the wider one of blocks and of images. Over several "
    told += "trainings, Student's t."
    return [
        *make_table(f"methods-{model.name}", title, METHOD, lines, note),
        *make_table(
            f"methods-gain-{model.name}", f"{model.title}: gain in points over it as it is", METHOD, gains, told
        ),
        *_cost_table(model, timings),
        *_setting_table(model),
    ]


def _accuracy(runs: Sequence[Evaluation], severity: int) -> Cell:
    return over_runs([e.accuracy("after", None, severity) for e in runs])


def _gain(runs: Sequence[Evaluation], severity: int) -> Cell:
    found = [e.gain("gain", None, severity) for e in runs]
    return interval_cell(found[0] if len(found) == 1 else mean_interval([gain.mean for gain in found]))


def _cost_table(model: Model, timings: Sequence[dict[str, Any]]) -> list[Table]:
    """What an answer costs: in passes by the rule, and on the clock where a benchmark of this model is there."""
    hashes = {e.protocol["model_hash"] for row in model.rows for runs in row.runs.values() for e in runs}
    clock = {c["name"]: c for t in timings if t["model_hash"] in hashes for c in t["candidates"]}
    lines = []
    for row in model.rows:
        cells: dict[str, Cell] = {}
        for where, ways in ((PER_IMAGE, [PER_IMAGE]), ("online", list(STREAMS))):
            runs = [e for way in ways for e in row.runs.get(way, [])]
            cells[f"passes, {where}"] = _range([e.protocol["passes"] for e in runs if "passes" in e.protocol])
            timed = clock.get(f"{runs[0].rival}, {where}") if runs else None
            if clock:
                cells[f"passes timed, {where}"] = DASH if timed is None else Cell(timed["passes"], digits=None)
                cells[f"ms, {where}"] = DASH if timed is None else Cell(1000 * timed["seconds"]["median"], digits=2)
                cells[f"times a pass, {where}"] = DASH if timed is None else Cell(timed["ratio"]["median"])
        lines.append((row.title, cells))
    note = "Passes: forward passes of one image that an answer costs, by the rule that a forward pass counts 1 and a "
    note += "backward pass 2. "
    note += TIMED if clock else "Milliseconds come from `python -m benchmarks methods --json FILE`; none are here."
    return make_table(f"methods-cost-{model.name}", f"{model.title}: cost of an answer", METHOD, lines, note)


TIMED = (
    "Milliseconds an image and times the plain forward pass are of one run of `python -m benchmarks methods`, which "
    "measures all methods in turn, with their defaults, in groups of at most 16 images: passes timed. Where a method "
    "was tuned, an answer here may take another number of passes."
)


def _range(values: Sequence[float]) -> Cell:
    """A number, or the ends of several in words."""
    if not values:
        return DASH
    low, high = min(values), max(values)
    return Cell(low, digits=None) if low == high else Cell(text=f"{low:g} to {high:g}")


SHOWN = ("objective", "steps", "lr", "views", "layers", "momentum", "support", "batch", "answer", "reset")


def _setting_table(model: Model) -> list[Table]:
    """How each method adapted, so that nobody asks."""
    lines = []
    for row in model.rows:
        for way in (way for way in WAYS if way in row.runs):
            e = row.runs[way][0]
            texts = _setting(e.protocol["adaptation"])
            tuned = e.protocol.get("tuned")
            texts["precision"] = e.protocol["precision"]
            texts["chosen"] = "default" if tuned is None else f"tuned, {tuned['hash'][:8]}"
            texts["files"] = name_list(f"`{run.path}`" for run in row.runs[way])
            lines.append((f"{row.title}, {way}", {name: Cell(text=text) for name, text in texts.items()}))
    seeds = {e.protocol["seed"] for row in model.rows for runs in row.runs.values() for e in runs}
    note = "".join(f"{way.capitalize()}: {STREAMS[way]}. " for way in model.ways if way != PER_IMAGE)
    note += (
        f"Seed of views and order: {name_list(sorted(seeds))}. Answer: by parameters that have seen the image (after) "
    )
    note += "or only earlier ones (first). Tuned: what its grid has (learning rate, steps, views or support) was "
    note += "chosen on other corruptions and other images; the evaluation's file has the grid, all its accuracies and "
    note += "the rule."
    return make_table(f"methods-settings-{model.name}", f"{model.title}: how it adapted", "method", lines, note)


def _setting(adaptation: dict[str, Any]) -> dict[str, str]:
    """The fields of an adaptation that matter, in words; a rule without a gradient has no step."""
    rule, without = adaptation.get("rule", "step"), ("steps", "lr", "layers", "momentum")
    told = adaptation if rule == "step" else adaptation | dict.fromkeys(without) | {"objective": rule}
    told = told if rule in ("step", "average") else told | {"views": None}
    told = told | {"support": None} if rule in ("step", "average") else told
    values = {name: told.get(name) for name in SHOWN}
    return {n: "-" if v is None else f"{v:g}" if isinstance(v, float) else str(v) for n, v in values.items()}


def confidence_table(results: Results) -> list[Table]:
    """How well the softmax and the mean over near copies tell right answers from wrong ones."""
    lines = []
    for e in (e for e in (*flat(results.main.values()), *results.methods) if _has_confidence(e)):
        for row in NEAR_COPIES:
            told = [a.confidence or {} for a in e.answers(row)]
            both = [t for t in told if None not in (t["softmax"]["auroc"], t["copies"]["auroc"])]
            cells = {}
            for quantity, words, known in (("auroc", "AUROC", both), ("calibration_error", "calibration error", told)):
                for kind in ("softmax", "copies"):
                    values = [t[kind][quantity] for t in known]
                    cells[f"{words}, {kind}"] = Cell(float(np.mean(values))) if values else DASH  # type: ignore[arg-type]
            higher = sum(t["copies"]["auroc"] > t["softmax"]["auroc"] for t in both)  # type: ignore[operator]
            cells["AUROC higher by copies"] = Cell(text=f"{higher} of {len(both)}")
            lines.append((f"{_model_of(e)[1]}, {_method_of(e)}: {row} adapting", cells))
    note = "In %, averaged over corruptions. AUROC: how often a right answer has a higher confidence than a wrong one, "
    note += "higher is better; corruptions under which all answers are right or all wrong are left out of it. "
    note += "Calibration error: lower is better. Softmax: the highest probability. Copies: the mean probability of the "
    note += "answer over the image, its mirror image and its shifts by one pixel, as `Adapter.confidence` gives it."
    return make_table("confidence", "Confidence of single answers", "answers", lines, note)


def _has_confidence(e: Evaluation) -> bool:
    if not e.corruptions or not e.has("after"):
        return False
    return all("copies" in (a.confidence or {}) for row in NEAR_COPIES for a in e.answers(row))


def _figures(model: Model, severity: int) -> list[Figure]:
    """Accuracy along each stream, and accuracy against cost."""
    figures = []
    streams = {way: _along(model, way, severity) for way in model.ways if way != PER_IMAGE}
    if streams:
        caption = f"{model.title}: running mean of the accuracy along the stream, over a twentieth of it. Dotted "
        caption += "lines: another corruption begins."
        figures.append(Figure(f"along-{model.name}", caption, partial(draw_along, streams=streams)))
    points = [
        Point(row.title, way, float(runs[0].protocol["passes"]), _accuracy(runs, severity).value or 0.0)
        for row in model.rows
        for way, runs in row.runs.items()
        if "passes" in runs[0].protocol
    ]
    if points:
        before = _before(model, severity)
        caption = f"{model.title}: average accuracy against what an answer costs, in forward passes of an image."
        figures.append(Figure(f"cost-{model.name}", caption, partial(draw_costs, points=points, before=before)))
    return figures


def _before(model: Model, severity: int) -> float:
    return float(np.mean([e.accuracy("before", None, severity) for e in model.before(model.ways[0])]))


def _along(model: Model, way: str, severity: int) -> list[Along]:
    """The running means of the first run of each method, and of the model as it is."""
    found = []
    for title, row, e in [
        (AS_IT_IS, "before", model.before(way)[0]),
        *((row.title, "after", row.runs[way][0]) for row in model.rows if way in row.runs),
    ]:
        places = e.positions(None, severity)
        right = 100.0 * np.concatenate([a.correct for a in e.answers(row, None, severity)])
        right = right[np.concatenate(places).argsort()]
        starts = [] if way == "mixed" else sorted(int(p.min()) for p in places)[1:]
        found.append(Along(title, running_mean(right, max(LEAST, len(right) // WINDOWS)), starts))
    return found


def running_mean(values: Any, window: int) -> Any:
    """The mean of the last `window` values, of fewer at the beginning."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)
