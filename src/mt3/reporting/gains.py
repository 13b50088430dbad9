"""What adapting brings: before and after, what the gain is made of, and the same image by image."""

from collections.abc import Sequence

from mt3.config.methods import METHODS
from mt3.reporting.rows import (
    INTERVALS,
    NO_CONTROLS,
    NOTHING,
    Row,
    controlled_runs,
    gain_cell,
    joint_row,
    pairs_of,
    row_with,
)
from mt3.results.facts import CONTROLS
from mt3.results.runs import Run
from mt3.results.statistics import GAINS
from mt3.results.tables import Table, count, make_table
from mt3.support.errors import name_list

PARTS = ("offset", "distribution", "instance", "adaptation", "gain")
BUDGET = ("epochs", "start", "depth", "width")  # overrides that a fair comparison needs alike


def gain_table(rows: Sequence[Row], severity: int) -> list[Table]:
    """Before and after adapting."""
    pairs, joint = pairs_of(rows), joint_row(rows)
    lines = []
    for before, after in pairs:
        fixed, broken = zip(*(run.fixed_and_broken(severity) for run in after.runs), strict=True)
        cells = {
            "before": before.mean(severity),
            "views averaged": row_with(after.runs, "view_average").mean(severity),
            "after": after.mean(severity),
            "gain": gain_cell(after.runs, "gain", severity),
            "fixed": count(sum(fixed)),
            "broken": count(sum(broken)),
            f"after - {joint.title}": after.minus(NOTHING if joint is before else joint, severity),
            "runs": count(len(after.runs)),
        }
        lines.append((f"{before.name}, {after.title}", cells))
    note = f"{INTERVALS} Fixed and broken count answers over all corruptions and runs. "
    note += "Views averaged: predictions averaged over the views, not adapted. "
    note += _rival_words(joint, next((after for _, after in pairs if after.name == METHODS["mt3"].after), NOTHING))
    uncontrolled = [after.title for _, after in pairs if not controlled_runs(after.runs)]
    if uncontrolled:
        note += f" {NO_CONTROLS.format(name_list(uncontrolled))}"
    return make_table("gain", f"Average accuracy in %, severity {severity}", "training", lines, note)


def split_table(rows: Sequence[Row], severity: int) -> list[Table]:
    """What the gain is made of, where controls were evaluated."""
    lines = []
    for before, after in pairs_of(rows):
        runs = controlled_runs(after.runs)
        if runs:
            cells = {title: row_with(runs, key).mean(severity) for key, title in CONTROLS.items()}
            cells |= {name: gain_cell(runs, name, severity) for name in PARTS}
            lines.append((f"{before.name}, {after.title}", cells | {"runs": count(len(runs))}))
    note = f"{INTERVALS} Offset: adapted on an unrelated clean image, minus before. Distribution: on another image "
    note += "with the same corruption, minus that. Instance: on the image itself, minus that. Adaptation is the sum of "
    note += "the last two, after minus unrelated image: what the image seen brings. "
    note += "An offset is what a step on any image does."
    return make_table("split", "Controls in %, and the gain in points", "training", lines, note)


def paired_table(rows: Sequence[Row], severity: int) -> list[Table]:
    """The differences image by image, over the seeds that both sides have."""
    joint, lines = joint_row(rows), []
    for before, after in pairs_of(rows):
        others = {name: row_with(after.runs, GAINS[name][1]) for name in ("gain", "adaptation")}
        others[f"after - {joint.title}"] = NOTHING if joint is before else joint
        cells = {name: after.paired(other, severity) for name, other in others.items()}
        lines.append((f"{before.name}, {after.title}", cells | {"runs": count(len(after.runs))}))
    note = "Each image's answers are averaged over corruptions and the seeds that both have, then the interval is the "
    note += "paired normal one over images: what other images could change, for these trained models. What other seeds "
    note += "could change is in the intervals over runs."
    title = f"The differences in points paired over images, severity {severity}"
    return make_table("paired", title, "training", lines, note)


def before_table(rows: Sequence[Row], severity: int) -> list[Table]:
    """Each training as it is beside joint training as it is, over the seeds that both have."""
    joint, lines = joint_row(rows), []
    for row in rows if joint.runs else []:
        if row.key == "before" and row is not joint:
            cells = {"before": row.mean(severity), f"before - {joint.title}": row.paired(joint, severity)}
            lines.append((row.title, cells | {"runs": count(len(row.runs))}))
    note = f"{joint.title} has {joint.mean(severity).words()} %. Intervals are paired over images."
    title = f"Without adapting, average accuracy in % and the difference in points, severity {severity}"
    return make_table("before", title, "training", lines, note)


def run_table(rows: Sequence[Row], severity: int) -> list[Table]:
    """Every run that adapts, seed by seed, where a training has several."""
    pairs, joint = pairs_of(rows), joint_row(rows)
    lines = []
    for before, after in pairs if any(len(after.runs) > 1 for _, after in pairs) else []:
        for run in after.runs:
            keys = ("before", *CONTROLS, "after")
            cells = {CONTROLS.get(key, key): row_with([run], key).mean(severity) for key in keys}
            own, unrelated = Row("", [run], "after"), row_with([run], GAINS["adaptation"][1])
            cells["adaptation"] = own.paired(unrelated, severity)
            cells[f"after - {joint.title}"] = own.paired(NOTHING if joint is before else joint, severity)
            lines.append((f"{before.name}, {after.title}, seed {run.run.seed}", cells))
    note = f"The last difference is from {joint.title} of the same seed. Intervals are paired over images."
    return make_table("runs", f"Run by run, in %, severity {severity}", "run", lines, note)


def _rival_words(joint: Row, meta: Row) -> str:
    """Whether MT3 has its fair rival in joint training, or why not."""
    if not joint.runs:
        return f"{joint.name} was not evaluated, so that MT3 stands here without its fair rival."
    text = "The last difference is over the seeds that both have; "
    if not meta.runs:
        return text + f"{joint.title} is what MT3 is compared with."
    runs = [row.runs[0].run for row in (joint, meta)]
    a, b = map(_budget_words, runs)
    if not any(run.unfinished for run in runs) and a == b:
        return text + f"{joint.title} is the fair rival of MT3."
    why = f"{joint.name} is of {a}, {meta.name} of {b}"
    rest = [(run.preset, [run.overrides.get(field) for field in BUDGET if field != "epochs"]) for run in runs]
    by_hand = rest[0] == rest[1] and any("epochs" in run.overrides for run in runs)
    if by_hand and not any(run.unfinished for run in runs):
        return text + f"their lengths were set by hand ({why}): it is fair if both took as long."
    why = "not both trainings are finished" if any(run.unfinished for run in runs) else why
    return text + f"of {joint.title} and {meta.title} it is NO FAIR comparison: {why}."


def _budget_words(run: Run) -> str:
    """A run's preset and what was changed of its length and network."""
    told = [f"{field}={run.overrides[field]}" for field in BUDGET if field in run.overrides]
    return f"preset {run.preset}" + (f" with {name_list(told)}" if told else "")
