"""What one evaluation found, for people. Needs no torch."""

from mt3.config.streams import PER_IMAGE, STREAMS
from mt3.reporting.accuracy import image_words
from mt3.reporting.rows import controlled_runs, interval_cell
from mt3.results.facts import ROWS, Evaluation
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


def evaluation_summary(evaluation: Evaluation) -> str:
    """The table, the gain and its parts."""
    rows = [row for row in ROWS if evaluation.has(row)]
    lines = [evaluation.table(), ""]
    explained = [f"{row.replace('_', ' ')}: {ROW_WORDS[row]}" for row in rows if row in ROW_WORDS]
    if explained:
        lines.append("; ".join(explained))
    where = " under each corruption" if evaluation.corruptions else ""
    lines.append(image_words(evaluation.protocol) + where + _method_words(evaluation))
    if evaluation.protocol["run"] is not None and evaluation.run.unfinished:
        lines.append(f"The training is NOT FINISHED: these are numbers after {evaluation.run.progress}.")
    return "\n".join([*lines, *_gain_lines(evaluation)]).rstrip()


def _method_words(evaluation: Evaluation) -> str:
    """By which method and along which stream a model adapted, unless in its own way to single images."""
    if evaluation.rival == "own" and evaluation.way == PER_IMAGE:
        return ""
    a, cost = evaluation.protocol["adaptation"], evaluation.protocol["passes"]
    words = f"; {evaluation.rival}, {evaluation.way}, {cost:g} forward passes an answer"
    if evaluation.way != PER_IMAGE:
        words += f"; batch {a['batch']}, answer {a['answer']}, reset {a['reset']}: {STREAMS[evaluation.way]}"
    return words


def _gain_lines(evaluation: Evaluation) -> list[str]:
    """The gain and its parts; where controls are missing, a caution about a gain that is above 0."""
    if not evaluation.corruptions or not evaluation.has("after"):
        return []
    gain, (fixed, broken) = evaluation.gain(), evaluation.fixed_and_broken()
    how = "paired 95 % interval" + ("" if evaluation.way == PER_IMAGE else " by a block bootstrap along the stream")
    lines = [f"gain by adapting {interval(gain)} points ({how}); {fixed} answers fixed, {broken} broken"]
    if controlled_runs([evaluation]):
        parts = ", ".join(f"{name} {interval(evaluation.gain(name))} ({told})" for name, told in PART_WORDS.items())
        brought = interval(evaluation.gain("adaptation"))
        lines += [f"of which {parts}", f"having seen the image brings {brought}: distribution and instance"]
    elif gain.mean > 0 and evaluation.way == PER_IMAGE:
        lines.append("A step may help whatever the image: --controls tells how much of this gain is due to that.")
    return lines
