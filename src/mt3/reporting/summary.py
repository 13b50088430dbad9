"""What one evaluation found, for people. Needs no torch."""

from collections.abc import Mapping

from mt3.reporting.accuracy import image_words
from mt3.reporting.published import AVERAGE
from mt3.reporting.rows import controlled_runs, interval_cell
from mt3.reporting.tables import DASH, Cell, Line, Table, markdown
from mt3.results.facts import CLEAN, ROWS, Evaluation
from mt3.results.statistics import Difference

ROW_WORDS = {  # what is not clear from their names
    "view_average": "averaged over the views, not adapted",
    "clean_other": "adapted on an unrelated clean image",
    "same_corruption": "adapted on another image under the same corruption",
}
PART_WORDS = {  # of a gain
    "offset": "by a step on an unrelated clean image",
    "distribution": "more by one on another image with the same corruption",
    "instance": "more by one on the image itself",
}


def interval(difference: Difference) -> str:
    """`+5.2 [+3.1, +7.3]`: a difference in points with its 95 % interval."""
    return interval_cell(difference).words()


def result_table(columns: Mapping[str, tuple[Evaluation, str]]) -> str:
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
        lines.append(Line("clean", tuple(clean)))
    return markdown(Table("result", "Accuracy", "corruption", tuple(columns), tuple(lines)))


def evaluation_summary(evaluation: Evaluation) -> str:
    """The table, the gain and its parts."""
    rows = [row for row in ROWS if evaluation.has(row)]
    lines = [result_table({row.replace("_", " "): (evaluation, row) for row in rows}), ""]
    explained = [f"{row.replace('_', ' ')}: {ROW_WORDS[row]}" for row in rows if row in ROW_WORDS]
    if explained:
        lines.append("; ".join(explained))
    where = " under each corruption" if evaluation.corruptions else ""
    lines.append(image_words(evaluation.protocol) + where)
    if evaluation.protocol["run"] is not None and evaluation.run.unfinished:
        lines.append(f"The training is NOT FINISHED: these are numbers after {evaluation.run.progress}.")
    return "\n".join([*lines, *_gain_lines(evaluation)]).rstrip()


def _gain_lines(evaluation: Evaluation) -> list[str]:
    """The gain and its parts; where controls are missing, a caution about a gain that is above 0."""
    if not evaluation.corruptions or not evaluation.has("after"):
        return []
    gain, (fixed, broken) = evaluation.gain(), evaluation.fixed_and_broken()
    lines = [f"gain by adapting {interval(gain)} points (paired 95 % interval); {fixed} answers fixed, {broken} broken"]
    if controlled_runs([evaluation]):
        parts = ", ".join(f"{name} {interval(evaluation.gain(name))} ({told})" for name, told in PART_WORDS.items())
        brought = interval(evaluation.gain("adaptation"))
        lines += [f"of which {parts}", f"having seen the image brings {brought}: distribution and instance"]
    elif gain.mean > 0:
        lines.append("A step may help whatever the image: --controls tells how much of this gain is due to that.")
    return lines
