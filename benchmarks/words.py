"""The tables that benchmarks have in common. Needs no torch."""

from collections.abc import Sequence
from typing import Any

from benchmarks.timing import Spread
from mt3.results.tables import Cell, Line, Table, markdown

CHECKS = {  # how a candidate's answer was compared with ours
    "gradient_error": "gradient differs by {:.1e}",
    "gradient_cosine": "cosine of the gradients {:.3f}",
    "logits_error": "logits differ by {:.1e}",
}


def range_words(values: Spread, digits: int = 3) -> str:
    return f"{values['min']:.{digits}f}..{values['max']:.{digits}f}"


def spread_cell(values: Spread | None, digits: int = 3) -> Cell:
    """`1.52 (1.48..1.60)`; a dash where there is nothing."""
    if values is None:
        return Cell(text="-")
    return Cell(text=f"{values['median']:.{digits}f} ({range_words(values, digits)})")


def comparison_words(result: dict[str, Any], unit: str) -> list[str]:
    """Candidates beside each other, the floor, the peak memory, the growth, and who is absent."""
    floor, mine = result["floor"], result["candidates"][0]["seconds"]["median"]
    lines = tuple(
        Line(
            entry["name"],
            (
                spread_cell(entry["seconds"]),
                spread_cell(entry.get("ratio"), 2),
                Cell(100 * entry["share_of_floor"]["median"]),
                Cell(text="; ".join(words.format(entry[key]) for key, words in CHECKS.items() if key in entry) or "-"),
            ),
        )
        for entry in result["candidates"]
    )
    table = Table("candidates", "", "candidate", ("seconds", "times ours", "% of floor", "answer"), lines)
    peaks = ", ".join(f"{name} {mb:.0f} MB" for name, mb in result["peak_mb"].items())
    words = [
        markdown(table),
        "",
        f"floor: {unit} needs {result['flops'] / 1e9:.1f} GFLOP ({result['forward_passes']:.0f} forward passes of an "
        f"image); the best product of {floor['matrix']}-square matrices in this run did {floor['gflops']:.0f} GFLOP/s: "
        f"{result['flops'] / 1e9 / floor['gflops']:.3f} s against {mine:.3f} s",
        f"peak memory, growth of a fresh process: {peaks}",
    ]
    if result["machine"]["load"] is not None:
        words.append(
            f"load of the machine before: {result['machine']['load']:.1f} processes; other ones spoil the ratios"
        )
    if result["scaling"]:
        words += ["", markdown(_growth_table(result["scaling"]))]
    return words + absent_words(result["absent"])


def _growth_table(entries: Sequence[dict[str, Any]]) -> Table:
    lines = tuple(
        Line(
            f"{entry['field']} {entry['value']}",
            (
                spread_cell(entry["seconds"]),
                spread_cell(entry.get("ratio"), 2),
                Cell(100 * entry["share_of_floor"]),
                Cell(entry["peak_mb"], digits=0),
            ),
        )
        for entry in entries
    )
    return Table("growth", "", "with", ("seconds", "times the above", "% of floor", "peak MB"), lines)


def absent_words(absent: Sequence[dict[str, str]]) -> list[str]:
    """A line for each peer that was not measured."""
    return [
        f"absent: {peer['name']} ({peer['reason']})" + (f"; {peer['install']}" if peer["install"] else "")
        for peer in absent
    ]
