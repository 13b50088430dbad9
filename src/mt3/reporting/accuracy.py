"""Runs compared: the tables over methods and seeds, and the paper's own. Needs no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mt3.config.config import Config, make_config
from mt3.config.methods import METHODS
from mt3.reporting import published as paper
from mt3.reporting.published import AVERAGE, OVERLAPPING, published_table
from mt3.reporting.table import OVERLAP_MARK, Cell, Line, Table, mark_best
from mt3.results.collect import overrides_of
from mt3.results.record import CONTROLS, Evaluation
from mt3.results.statistics import GAINS, mean_interval, paired_interval
from mt3.support.errors import name_list

AVERAGE_APART = f"average without {OVERLAP_MARK}"
BASELINES = ("Baseline (ours)", "Baseline (Sun et al.)")  # the first that is there is the reference
PARTS = ("offset", "distribution", "instance", "adaptation", "gain")
ALL_SEVERITIES = [1, 2, 3, 4, 5]
BUDGET = ("epochs", "warm_method", "warm_epochs", "depth", "width")  # what a fair comparison needs alike
NO_CONTROLS = (
    "Of {} no controls were evaluated, so that it is not known how much of the gain is due to a step that helps "
    "whatever the image; `mt3 evaluate --controls` tells."
)
TRAININGS = (
    "Epochs: passes over the training images, those of a training that came first before the plus; - or ? stands where "
    "no run.json beside the evaluation tells."
)
READING = (
    "The average is over corruptions for each run first, then over runs. "
    "Bold is the best of a line, and what is printed alike. "
    f"{OVERLAP_MARK} overlaps with the batch augmentation B of JT, TTT (ours), MT and MT3."
)
STATISTICS = f"Mean ± sample standard deviation over runs. {READING}"
INTERVALS = (
    "Differences are of the averages over corruptions, in points, with a 95 % interval: Student's t over the runs' own "
    "differences; where there is one run or one seed in common, the paired normal interval over its images."
)


class Row(NamedTuple):
    """A row of the paper's tables: runs of one training, before or after adapting."""

    name: str
    runs: list[Evaluation]
    key: str

    @property
    def title(self) -> str:
        """The name, marked if the training was not finished."""
        return self.name + self.runs[0].mark

    def averages(self, severities: Sequence[int], key: str = "accuracy") -> list[float]:
        return [run.average(self.key, severities, key) for run in self.runs]


def rows_of(main: Mapping[str, list[Evaluation]]) -> list[Row]:
    """The paper's rows that the evaluations give, in the paper's order."""
    rows = []
    for method in METHODS.values():
        runs = main.get(method.name, [])
        if runs:
            rows.append(Row(method.before, runs, "before"))
            if method.after is not None and all(run.has("after") for run in runs):
                rows.append(Row(method.after, runs, "after"))
    return rows


def over_runs(values: Sequence[float] | NDArray[np.float64], digits: int = 1) -> Cell:
    """Mean and sample standard deviation; a single run has none."""
    array = np.asarray(values, dtype=float)
    std = float(array.std(ddof=1)) if len(array) > 1 else None
    return Cell(float(array.mean()), std, digits=digits)


Columns = dict[str, dict[str, Cell]]  # row -> corruption, AVERAGE or AVERAGE_APART -> cell


def columns_of(rows: Sequence[Row], severities: Sequence[int]) -> Columns:
    """Accuracies of the rows over their runs; each run is averaged over corruptions before the runs are."""
    columns: Columns = {}
    for row in rows:
        numbers = np.array([run.numbers(row.key, severities).mean(1) for run in row.runs])  # (runs, corruptions)
        names = row.runs[0].corruptions
        cells = {name: over_runs(numbers[:, i]) for i, name in enumerate(names)}
        cells[AVERAGE] = over_runs(numbers.mean(1))
        apart = [i for i, name in enumerate(names) if name not in OVERLAPPING]
        if 0 < len(apart) < len(names):
            cells[AVERAGE_APART] = over_runs(numbers[:, apart].mean(1))
        columns[row.title] = cells
    return columns


def published_columns(data: str, names: Sequence[str]) -> Columns:
    """The paper's numbers for these corruptions; over fewer than its 15 the average is of its printed means."""
    columns: Columns = {}
    for row, numbers in (published_table(data) or {}).items():
        cells = {name: Cell(*numbers[name]) for name in names if name in numbers}
        columns[row] = cells
        if len(cells) < len(names):  # an average over others than the paper's could not be compared
            continue
        apart = [numbers[name].mean for name in names if name not in OVERLAPPING]
        if 0 < len(apart) < len(names):
            cells[AVERAGE_APART] = Cell(float(np.mean(apart)))
        whole = len(names) == len(numbers) - 1
        cells[AVERAGE] = Cell(*numbers[AVERAGE] if whole else [float(np.mean([numbers[n].mean for n in names]))])
    return columns


def accuracy_table(
    name: str,
    title: str,
    columns: Columns,
    names: Sequence[str],
    foot: Sequence[Line],
    note: str,
    beside: Columns | None = None,
) -> Table:
    """Corruptions as lines, methods as columns, the best of a line in bold, and `foot` below them.

    `beside` holds the paper's numbers.
    """
    lines, wins = [], dict.fromkeys(columns, 0)
    averages = [key for key in (AVERAGE, AVERAGE_APART) if all(key in cells for cells in columns.values())]
    for key in [*names, *averages]:
        cells = mark_best([columns[row][key] for row in columns])
        for row, cell in zip(columns, cells, strict=True):
            wins[row] += cell.best and key not in averages
        if beside:
            cells = tuple(
                Cell(c.value, c.std, best=c.best, published=beside.get(row, {}).get(key))
                for row, c in zip(columns, cells, strict=True)
            )
        lines.append(Line(key, cells, key in OVERLAPPING, rule=key == AVERAGE))
    if len(columns) > 1:
        lines.append(Line(f"best on, of {len(names)}", tuple(Cell(wins[row], digits=0) for row in columns), rule=True))
    lines += [replace(foot[0], rule=len(columns) == 1), *foot[1:]]
    return Table(name, title, "corruption", tuple(columns), tuple(lines), note)


def run_line(rows: Sequence[Row]) -> Line:
    return Line("runs", tuple(Cell(len(row.runs), digits=0) for row in rows))


def training_lines(rows: Sequence[Row], beside: bool) -> list[Line]:
    """How long the rows were trained and with which network, where that is known; `beside` the paper's."""
    if not beside and all(row.runs[0].settings is None for row in rows):
        return []
    epochs = [_epochs_cell(row.runs) for row in rows]
    networks = [_network_cell(row.runs) for row in rows]
    if beside:
        theirs = [paper_training(row.runs[0].method.name) for row in rows]
        epochs = [replace(c, published=Cell(p.epochs, digits=None)) for c, p in zip(epochs, theirs, strict=True)]
        networks = [replace(c, published=_size_cell(p.depth, p.width)) for c, p in zip(networks, theirs, strict=True)]
    return [Line("epochs", tuple(epochs)), Line("layers x width", tuple(networks))]


def paper_training(method: str) -> Config:
    """How the paper, or Sun et al. whom it quotes, trained the rows of a method."""
    return make_config(method, "cifar10", "paper")


def _epochs_cell(runs: Sequence[Evaluation]) -> Cell:
    found = {run.epochs for run in runs}
    epochs = found.pop()
    if found or epochs is None:
        return Cell(text="-")
    if runs[0].unfinished:
        return Cell(text=f"part of {epochs.words()}")
    return Cell(text=epochs.words()) if epochs.before != 0 else Cell(epochs.own, digits=None)


def _network_cell(runs: Sequence[Evaluation]) -> Cell:
    """Of the runs whose training is known: it is the same for all of them."""
    known = next((run.settings for run in runs if run.settings is not None), None)
    return _size_cell(known["depth"], known["width"]) if known else Cell(text="-")


def _size_cell(depth: int, width: int) -> Cell:
    return Cell(text=f"{depth} x {width}")


def published_tables() -> list[Table]:
    """The paper's two results tables."""
    tables = []
    for data, title in (("cifar10", "CIFAR-10-C"), ("cifar100", "CIFAR-100-C")):
        names = paper.corruption_order()
        columns = published_columns(data, names)
        runs = tuple(Cell(text="-") if "Sun" in row else Cell(paper.RUNS, digits=0) for row in columns)
        trainings = [paper_training(m.name) for row in columns for m in METHODS.values() if row in (m.before, m.after)]
        epochs = tuple(Cell(training.epochs, digits=None) for training in trainings)
        foot = [Line("runs", runs), Line("epochs", epochs)]
        note = f"Mean ± standard deviation over runs. {READING} "
        note += f"The paper has no average without {OVERLAP_MARK}: it is of its printed means. "
        note += paper.BOLD_NOTES[data]
        if data == "cifar10":
            note += " The columns of Sun et al. are quoted by the paper, without runs."
        heading = f"The paper's accuracy in % on {title}, severity {paper.SEVERITY}"
        tables.append(accuracy_table(f"published-{data}", heading, columns, names, foot, note))
    return tables


def pairs_of(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """The before and the after row of each training that adapts."""
    return [(a, b) for a, b in pairwise(rows) if a.runs is b.runs]


def gain_cell(runs: Sequence[Evaluation], name: str, severity: Sequence[int]) -> Cell:
    """A paired difference of two rows, averaged over corruptions, over the runs that have both."""
    high, low = GAINS[name]
    found = [run for run in runs if run.has(high) and run.has(low)]
    if not found:
        return Cell(text="-")
    values = [run.average(high, severity) - run.average(low, severity) for run in found]
    ends = mean_interval(values)
    if ends is None and found[0].severities == list(severity) and name in found[0].result:
        own = found[0].result[name]
        ends = (own["low"], own["high"])
    return Cell(float(np.mean(values)), interval=ends, signed=True)


def difference_cell(one: Row | None, other: Row | None, severities: Sequence[int]) -> Cell:
    """One row's average minus another's over the seeds that both have, else of the means and without an interval.

    Without severities it is of the clean images. For one seed the interval is over images, if their answers were kept.
    """
    if one is None or other is None:
        return Cell(text="-")
    a, b = ({run.seed: run.average(row.key, severities) for run in row.runs} for row in (one, other))
    common = [a[seed] - b[seed] for seed in a if seed in b]
    if not common:
        return Cell(float(np.mean(list(a.values())) - np.mean(list(b.values()))), signed=True)
    if len(common) == 1:
        paired = _paired_cell(one, other, severities)
        if paired.value is not None:
            return paired
    return Cell(float(np.mean(common)), interval=mean_interval(common), signed=True)


def gain_tables(rows: Sequence[Row], severity: Sequence[int]) -> tuple[Table | None, Table | None]:
    """Before and after adapting, and what the gain is made of; None where nothing was adapted or controlled."""
    pairs = pairs_of(rows)
    if not pairs:
        return None, None
    joint = _joint(rows)
    lines, parts = [], []
    for before, after in pairs:
        label = f"{before.name}, {after.title}"
        views = [run.average("view_average", severity) for run in before.runs if run.has("view_average")]
        counts = [sum(run.count(key, severity) for run in after.runs) for key in ("fixed", "broken")]
        against = Cell(text="-") if joint is before else difference_cell(after, joint, severity)
        cells = [
            over_runs(before.averages(severity)),
            over_runs(views) if views else Cell(text="-"),
            over_runs(after.averages(severity)),
            gain_cell(after.runs, "gain", severity),
            *(Cell(count, digits=0) for count in counts),
            against,
            Cell(len(after.runs), digits=0),
        ]
        lines.append(Line(label, tuple(cells)))
        controlled = controlled_runs(after.runs)
        if controlled:
            controls = [over_runs([run.average(key, severity) for run in controlled]) for key in CONTROLS]
            gains = [gain_cell(controlled, name, severity) for name in PARTS]
            parts.append(Line(label, (*controls, *gains, Cell(len(controlled), digits=0))))
    against_title = f"after - {joint.title if joint else METHODS['jt'].before}"
    columns = ("before", "views averaged", "after", "gain", "fixed", "broken", against_title, "runs")
    note = f"{INTERVALS} Fixed and broken count answers over all corruptions and runs. "
    note += "Views averaged: predictions averaged over the views, not adapted. "
    note += _rival_words(joint, [after for _, after in pairs])
    uncontrolled = [after.title for before, after in pairs if not controlled_runs(after.runs)]
    if uncontrolled:
        note += f" {NO_CONTROLS.format(name_list(uncontrolled))}"
    table = Table("gain", f"Average accuracy in %, severity {severity[0]}", "training", columns, tuple(lines), note)
    if not parts:
        return table, None
    note = f"{INTERVALS} Offset: adapted on an unrelated clean image, minus before. Distribution: on another image "
    note += "with the same corruption, minus that. Instance: on the image itself, minus that. Adaptation is the sum of "
    note += "the last two, after minus unrelated image: what the image seen brings. "
    note += "An offset is what a step on any image does."
    names = (*CONTROLS.values(), *PARTS, "runs")
    return table, Table("split", "Controls in %, and the gain in points", "training", names, tuple(parts), note)


def paired_table(rows: Sequence[Row], severity: Sequence[int]) -> Table | None:
    """The differences image by image, over the seeds that both sides have; None where no answers were kept."""
    joint = _joint(rows)
    lines = []
    for before, after in pairs_of(rows):
        kept = sum(run.hits("after", severity) is not None for run in after.runs)
        if kept:
            others = [*(Row("", after.runs, GAINS[name][1]) for name in ("gain", "adaptation")), joint]
            cells = [_paired_cell(after, None if other is before else other, severity) for other in others]
            lines.append(Line(f"{before.name}, {after.title}", (*cells, Cell(kept, digits=0))))
    if not lines:
        return None
    note = "Each image's answers are averaged over corruptions and the seeds that both have, then the interval is the "
    note += "paired normal one over images: what other images could change, for these trained models. What other seeds "
    note += "could change is in the intervals over runs."
    columns = ("gain", "adaptation", f"after - {joint.title if joint else METHODS['jt'].before}", "runs")
    title = f"The differences in points paired over images, severity {severity[0]}"
    return Table("paired", title, "training", columns, tuple(lines), note)


def run_table(rows: Sequence[Row], severity: Sequence[int]) -> Table | None:
    """Every run that adapts, seed by seed; None where no training has several."""
    pairs = pairs_of(rows)
    joint = _joint(rows)
    if all(len(after.runs) == 1 for _, after in pairs):
        return None
    lines = []
    for before, after in pairs:
        for run in after.runs:
            accuracies = [
                Cell(run.average(key, severity)) if run.has(key) else Cell(text="-")
                for key in ("before", *CONTROLS, "after")
            ]
            others = (Row("", [run], GAINS["adaptation"][1]), None if joint is before else joint)
            cells = [_paired_cell(Row("", [run], "after"), other, severity) for other in others]
            lines.append(Line(f"{before.name}, {after.title}, seed {run.seed}", (*accuracies, *cells)))
    against_title = joint.title if joint else METHODS["jt"].before
    columns = ("before", *CONTROLS.values(), "after", "adaptation", f"after - {against_title}")
    note = f"The last difference is from {against_title} of the same seed. Intervals are paired over images."
    return Table("runs", f"Run by run, in %, severity {severity[0]}", "run", columns, tuple(lines), note)


def controlled_runs(runs: Sequence[Evaluation]) -> list[Evaluation]:
    return [run for run in runs if all(run.has(row) for row in CONTROLS)]


def _joint(rows: Sequence[Row]) -> Row | None:
    """MT3's fair rival, if it is there."""
    return next((row for row in rows if row.name == METHODS["jt"].before), None)


def _rival_words(joint: Row | None, others: Sequence[Row]) -> str:
    """Whether MT3 has its fair rival in joint training, or why not."""
    meta = next((row for row in others if row.name == METHODS["mt3"].after), None)
    if joint is None:
        return f"{METHODS['jt'].before} was not evaluated, so that MT3 stands here without its fair rival."
    text = "The last difference is over the seeds that both have; "
    if meta is None:
        return text + f"{joint.title} is what MT3 is compared with."
    why = ""
    if joint.runs[0].unfinished or meta.runs[0].unfinished:
        why = "not both trainings are finished"
    else:
        a, b = (_departures_of(row.runs[0]) for row in (joint, meta))
        if a != b:
            why = f"{joint.name} is of {a}, {meta.name} of {b}"
    if why:
        return text + f"of {joint.title} and {meta.title} it is NO FAIR comparison: {why}."
    return text + f"{joint.title} is the fair rival of MT3."


def _departures_of(run: Evaluation) -> str:
    """A run's preset and what was changed of its length and network, as far as that is known."""
    changed = (overrides_of(run.settings) or {}) if run.settings is not None else {}
    told = [f"{field}={changed[field]}" for field in BUDGET if field in changed]
    return f"preset {run.protocol.get('preset')}" + (f" with {name_list(told)}" if told else "")


def _reference(rows: Sequence[Row]) -> Row | None:
    """The baseline that others are measured by, if one is there."""
    return next((row for name in BASELINES for row in rows if row.name == name), None)


def _paired_cell(one: Row, other: Row | None, severity: Sequence[int]) -> Cell:
    """One row minus another, image by image, over the seeds that both have and kept answers of."""
    a, b = ({run.seed: run.hits(row.key, severity) for run in row.runs} if row else {} for row in (one, other))
    common = [(a[seed], b[seed]) for seed in a if seed in b]
    found = [x - y for x, y in common if x is not None and y is not None]
    return interval_cell(paired_interval(np.mean(found, axis=0))) if found else Cell(text="-")


def interval_cell(gain: Mapping[str, float]) -> Cell:
    """A difference in points with its 95 % interval."""
    return Cell(gain["mean"], interval=(gain["low"], gain["high"]), signed=True)


def corruption_errors(rows: Sequence[Row]) -> tuple[dict[str, Cell] | None, str]:
    """mCE of each row, and what it is relative to; None and why if it cannot be had.

    Hendrycks and Dietterich (2019): for each corruption the sum of errors over severities, divided by the baseline's
    sum; then the mean over corruptions. The baseline's errors are the mean of its runs.
    """
    reference = _reference(rows)
    if reference is None:
        return None, "mCE cannot be had: it is relative to a baseline, and none was evaluated."
    severities = reference.runs[0].severities
    base = np.mean([(100 - run.numbers("before", severities)).sum(1) for run in reference.runs], axis=0)
    if not base.all():
        return None, "mCE cannot be had: the baseline makes no error under some corruption."
    cells = {}
    for row in rows:
        sums = [(100 - run.numbers(row.key, severities)).sum(1) for run in row.runs]
        cells[row.title] = over_runs([100 * float((s / base).mean()) for s in sums])
    note = "mCE: for each corruption the sum of errors over severities divided by that of "
    note += f"{reference.title} (mean of its runs), then the mean over corruptions, in %; lower is better."
    if severities != ALL_SEVERITIES:
        note += f" Here over severity {name_list(severities)} only, so not the benchmark's, which has all five."
    return cells, note


def severity_tables(rows: Sequence[Row]) -> tuple[list[Table], str]:
    """The mean over severities if there are several, and mCE; or why it cannot be had."""
    severities, names = rows[0].runs[0].severities, rows[0].runs[0].corruptions
    tables, lines = [], []
    if len(severities) > 1:
        title = f"Accuracy in %, mean over severities {name_list(severities)}"
        tables.append(
            accuracy_table("severities", title, columns_of(rows, severities), names, [run_line(rows)], STATISTICS)
        )
        for severity in severities:
            cells = [over_runs(row.averages([severity])) for row in rows]
            lines.append(Line(f"severity {severity}", mark_best(cells)))
    errors, note = corruption_errors(rows)
    if errors is not None:
        lines.append(Line("mCE", mark_best(list(errors.values()), lowest=True), rule=bool(lines)))
    if not lines:
        return [], note
    title = "Average accuracy in % by severity" if len(severities) > 1 else "Mean corruption error"
    titles = tuple(row.title for row in rows)
    return [*tables, Table("mce", title, "", titles, tuple(lines), note)], ""


def calibration_table(rows: Sequence[Row], severity: Sequence[int]) -> Table:
    """How likely the truth is held to be, and how far confidence is from accuracy."""
    lines = []
    for row in rows:
        nll = over_runs(row.averages(severity, "nll"), digits=3)
        error = over_runs(row.averages(severity, "calibration_error"))
        lines.append(Line(row.title, (nll, error, Cell(len(row.runs), digits=0))))
    note = (
        "Averaged over corruptions; mean ± sample standard deviation over runs. Lower is better. The calibration error "
    )
    note += "is the expected one over 15 equal-width bins of the confidence."
    columns = ("NLL in nats", "calibration error in %", "runs")
    return Table("calibration", f"Severity {severity[0]}", "method", columns, tuple(lines), note)


def clean_table(rows: Sequence[Row]) -> Table | None:
    """What training and adapting cost on clean images."""
    rows = [row for row in rows if all(run.result["clean"] is not None for run in row.runs)]
    if not rows:
        return None
    base, joint = _reference(rows), _joint(rows)
    befores = {id(after): before for before, after in pairs_of(rows)}
    lines = []
    for row in rows:
        before = befores.get(id(row))
        cells = (
            over_runs(row.averages([])),
            difference_cell(row, before, []),
            *(Cell(text="-") if row is other else difference_cell(row, other, []) for other in (base, joint)),
            Cell(len(row.runs), digits=0),
        )
        lines.append(Line(row.title, cells))
    against = f"minus {base.title}" if base else "minus a baseline"
    note = "Mean ± sample standard deviation over runs. Differences are over the seeds that both have, which may be "
    note += "fewer than a row has runs, with a 95 % interval: Student's t over these, or over images if there is one "
    note += "such seed; without common seeds they are of the means."
    if base is None:
        note += " No baseline was evaluated on clean images."
    joint_title = joint.title if joint else METHODS["jt"].before
    columns = ("clean accuracy", "minus before adapting", against, f"minus {joint_title}", "runs")
    return Table("clean", "Accuracy in % on clean images", "method", columns, tuple(lines), note)


def departure_words(rows: Sequence[Row]) -> str:
    """Which rows have the batch augmentation B unlike the paper's, as far as their training is known."""
    sentences = []
    for word, has in (("with", True), ("without", False)):
        odd = [row for row in rows if row.runs[0].method.batch_aug != has]
        names = [row.name for row in odd if (row.runs[0].settings or {}).get("batch_aug") == has]
        if names:
            sentences.append(f"Unlike the paper's, trained {word} B here: {name_list(names)}.")
    return " ".join(sentences)


def component_table(rows: Sequence[Row] = ()) -> Table:
    """Which method is made of what, as the paper lists it, and where `rows` depart from that."""
    words = {"none": "-", "byol": "BYOL", "rotation": "rotation", "ce": "CE", "joint": "joint", "meta": "meta"}
    lines = []
    there = {row.name for row in rows}
    for m in METHODS.values():
        if not m.paper and m.before not in there:
            continue
        for title, adapts in ((m.before, False), (m.after, True)):
            if title is not None:
                texts = (words[m.selfsup], "yes" if m.batch_aug else "-", words[m.training], "yes" if adapts else "-")
                lines.append(Line(title, tuple(Cell(text=text) for text in (*texts, f"`{m.name}`"))))
    columns = ("self-supervision", "B", "training", "test-time adaption", "--method")
    return Table("components", "What the methods are made of", "method", columns, tuple(lines), departure_words(rows))
