"""The paper's numbers: the table writer must give back its two tables, transcribed here from its LaTeX."""

import csv
import io
import re

import numpy as np
import pytest

from mt3.config.methods import ROWS
from mt3.reporting import published as paper
from mt3.reporting.accuracy import published_tables
from mt3.reporting.published import published_table, training_curve
from mt3.results.tables import Table, csv_text, latex, markdown

# the lines of the paper's tables, * for bold
CIFAR10 = """
brit 86.5 87.4 *87.8 86.7±0.44 86.5±0.13 86.6±0.26 84.3±1.15 86.2±0.47
contr 75.0 74.7 76.1 54.0±6.42 75.4±2.02 75.1±2.38 69.3±2.63 *77.6±1.21
defoc 76.3 75.8 78.2 68.1±2.34 84.7±0.11 *84.7±0.09 82.7±1.33 84.4±0.44
elast 72.6 76.0 *77.4 74.3±0.27 74.6±0.80 74.4±1.19 74.2±1.08 76.3±1.18
fog 71.9 72.5 74.9 70.7±0.98 70.3±0.86 70.4±0.67 72.0±1.03 *75.9±1.26
frost 65.6 67.5 70.0 65.2±0.93 79.8±0.62 79.5±0.73 76.6±1.16 *81.2±0.20
gauss 49.5 50.6 54.4 49.9±3.17 *71.7±1.13 70.4±1.08 63.6±1.17 69.9±0.34
glass 48.3 51.5 53.9 50.7±2.96 62.8±0.97 61.9±1.10 62.8±1.35 *66.3±1.24
impul 43.9 46.6 50.0 43.4±4.31 *59.3±3.04 58.5±3.17 50.3±1.68 58.2±1.25
jpeg 70.2 71.3 72.8 76.0±0.86 78.6±0.37 *79.0±0.44 75.2±0.06 77.3±0.26
motn 75.7 75.2 77.0 71.6±0.46 70.7±0.45 69.8±0.46 72.6±3.17 *77.2±2.37
pixel 44.2 48.4 52.8 60.1±2.73 65.0±0.32 62.1±0.44 67.8±5.13 *72.4±2.29
shot 52.8 54.7 58.2 52.3±2.17 *72.3±1.36 71.0±1.09 64.0±1.24 70.5±0.72
snow 74.4 75.0 76.1 74.5±0.46 77.2±0.58 77.2±0.55 77.1±0.51 *79.8±0.63
zoom 73.7 73.6 76.1 67.4±1.70 81.6±0.69 *81.7±0.66 78.7±1.72 81.3±0.58
avg. 65.4 66.7 69.0 64.3±0.42 74.0±0.77 73.5±0.80 71.4±0.42 *75.6±0.30
"""
CIFAR100 = """
brit *54.5±0.79 53.2±0.75 53.3±0.79 51.7±0.42 52.2±0.44
contr 22.2±1.60 29.0±2.45 28.2±2.49 28.7±0.55 *31.6±1.53
defoc 37.9±2.47 55.8±0.32 *55.9±0.49 54.8±0.62 55.0±0.55
elast *45.0±0.67 44.0±0.90 44.0±0.88 44.1±0.61 44.2±0.81
fog 30.8±0.94 31.9±1.31 32.0±1.35 32.4±0.27 *33.3±0.45
frost 31.3±0.96 44.7±0.78 44.5±0.94 43.8±0.90 *45.5±1.00
gauss 18.7±2.86 *32.8±2.01 32.1±1.94 30.7±1.05 32.8±0.84
glass 25.8±1.21 30.5±1.77 30.2±1.95 31.7±1.02 *33.0±0.93
impul 14.2±2.33 17.1±0.19 16.9±0.26 17.3±0.21 *18.4±0.09
jpeg *44.1±1.51 43.1±0.85 43.2±0.83 42.4±0.27 42.7±0.46
motn 40.7±2.08 44.8±0.71 44.4±0.74 44.4±0.94 *45.4±0.81
pixel 28.1±0.67 34.7±0.59 33.2±0.79 40.8±1.86 *41.2±2.06
shot 20.0±2.69 32.9±1.52 32.2±1.52 31.1±1.28 *33.1±1.41
snow 38.4±0.77 42.9±0.85 42.7±0.90 43.2±0.62 *43.7±1.12
zoom 39.7±2.10 53.8±1.04 *54.0±1.04 52.2±0.56 52.0±0.62
avg. 32.8±0.49 39.4±0.42 39.1±0.40 39.3±0.37 *40.3±0.27
"""

NAMES = {
    "brit": "brightness",
    "contr": "contrast",
    "defoc": "defocus_blur",
    "elast": "elastic_transform",
    "fog": "fog",
    "frost": "frost",
    "gauss": "gaussian_noise",
    "glass": "glass_blur",
    "impul": "impulse_noise",
    "jpeg": "jpeg_compression",
    "motn": "motion_blur",
    "pixel": "pixelate",
    "shot": "shot_noise",
    "snow": "snow",
    "zoom": "zoom_blur",
    "avg.": "average",
}
Printed = tuple[str, str | None, bool]  # mean, deviation, bold
NUMBER = re.compile(r"(\d+\.\d)(?: (?:±|\\pm) (\d+\.\d\d))?")


def parse(cell: str, bold: str) -> Printed:
    found = NUMBER.search(cell)
    assert found, cell
    return found[1], found[2], bold in cell


def transcribed(source: str) -> dict[str, list[Printed]]:
    lines = {}
    for line in source.strip().splitlines():
        label, *cells = line.split()
        lines[NAMES[label]] = [parse(cell.replace("±", " ± "), "*") for cell in cells]
    return lines


# the paper prints a tie but sets only one of the two in bold: (line, column that is bold here, too)
TIES = {"cifar10": ("defocus_blur", "JT (ours)"), "cifar100": ("gaussian_noise", "MT3")}


def with_ties(lines: dict[str, list[Printed]], data: str) -> dict[str, list[Printed]]:
    """The paper's lines with the bold cell that it lacks."""
    name, row = TIES[data]
    i = columns(data).index(row)
    mean, std, bold = lines[name][i]
    assert not bold
    assert mean == next(mean for mean, _, bold in lines[name] if bold)
    return lines | {name: [*lines[name][:i], (mean, std, True), *lines[name][i + 1 :]]}


def columns(data: str) -> list[str]:
    return list(ROWS) if data == "cifar10" else list(ROWS[3:])


@pytest.fixture(params=[("cifar10", CIFAR10), ("cifar100", CIFAR100)], ids=["cifar10", "cifar100"])
def case(request) -> tuple[str, Table, dict[str, list[Printed]]]:
    data, source = request.param
    table = next(t for t in published_tables() if t.name == f"published-{data}")
    return data, table, transcribed(source)


def test_data_equals_the_transcription(case):
    data, _, lines = case
    found = published_table(data)
    assert list(found) == columns(data)
    for name, cells in lines.items():
        for row, (mean, std, _) in zip(found, cells, strict=True):
            assert found[row][name] == (float(mean), None if std is None else float(std))
    assert [n for n in lines if n != "average"] == paper.corruption_order()


def test_markdown_gives_the_papers_table(case):
    data, table, lines = case
    assert list(table.columns) == columns(data)
    got = {}
    for line in markdown(table).splitlines()[2:]:
        label, *cells = line.strip("|").split("|")
        got[label.replace("†", "").strip()] = cells
    want = with_ties(lines, data)
    assert {name: [parse(c, "**") for c in got[name]] for name in lines} == want
    assert list(got)[:16] == list(lines)


def test_latex_gives_the_papers_table(case):
    data, table, lines = case
    body = latex(table).split(r"\midrule")
    got = {}
    for line in (body[1] + body[2]).strip().splitlines():
        label, *cells = line.removesuffix(r" \\").split(" & ")
        got[label.replace(r"$^\dagger$", "").strip().replace(" ", "_")] = cells
    want = with_ties(lines, data)
    assert {name: [parse(c, "mathbf") for c in got[name]] for name in lines} == want


def test_csv_gives_the_papers_table(case):
    data, table, lines = case
    found = {(r["line"], r["column"]): r for r in csv.DictReader(io.StringIO(csv_text([table])))}
    for name, cells in with_ties(lines, data).items():
        for row, (mean, std, bold) in zip(columns(data), cells, strict=True):
            record = found[name, row]
            assert float(record["value"]) == float(mean)
            assert record["std"] == ("" if std is None else str(float(std)))
            assert record["best"] == str(int(bold))
    assert {r["table"] for r in found.values()} == {f"published-{data}"}


def test_averages_agree_with_the_printed_means(case):
    """Of every column: so the only disagreement inside the paper's tables is the bold type of two ties."""
    _, _, lines = case
    for i, (mean, _, _) in enumerate(lines["average"]):
        printed = [float(cells[i][0]) for name, cells in lines.items() if name != "average"]
        assert np.mean(printed) == pytest.approx(float(mean), abs=0.05)


def test_bold_is_the_best_of_its_line_but_for_two_ties(case):
    data, table, lines = case
    for cells in lines.values():
        best = max(float(mean) for mean, _, _ in cells)
        assert [mean for mean, _, bold in cells if bold] == [f"{best:.1f}"]
    tied = [
        name for name, cells in lines.items() if len([m for m, _, _ in cells if m == max(m for m, _, _ in cells)]) > 1
    ]
    assert tied == [TIES[data][0]]
    assert f"the paper's {tied[0]} line only" in table.note


def test_wins_and_the_average_without_overlap(case):
    data, table, lines = case
    by_label = {line.label: line for line in table.lines}
    wins = dict(zip(table.columns, (c.value for c in by_label["best on, of 15"].cells), strict=True))
    if data == "cifar10":  # "For 7 out of 15 corruption types, MT3 has the highest accuracy"; one tie is JT's, too
        assert wins == dict.fromkeys(ROWS, 0) | {"TTT (Sun et al.)": 2, "JT (ours)": 4, "TTT (ours)": 3, "MT3": 7}
    else:
        assert wins == {"Baseline (ours)": 3, "JT (ours)": 1, "TTT (ours)": 2, "MT": 0, "MT3": 10}
    apart = by_label["average without †"].cells
    kept = [n for n in lines if n not in ("average", "brightness", "gaussian_noise")]
    for i, cell in enumerate(apart):
        assert cell.value == pytest.approx(np.mean([float(lines[n][i][0]) for n in kept]))
        assert cell.std is None
    assert [line.label for line in table.lines if line.marked] == ["brightness", "gaussian_noise"]


def test_training_curve_has_the_known_values():
    curve = training_curve()
    assert curve["loss"].shape == (3, 200)
    assert curve["loss"][:, 0].mean() == pytest.approx(2.014, abs=5e-4)
    assert 100 * curve["train_accuracy_before"][:, 0].mean() == pytest.approx(21.8, abs=0.05)
    assert 100 * curve["train_accuracy_after"][:, 9].mean() == pytest.approx(67.9, abs=0.05)
    assert 100 * curve["clean_test_accuracy_before"][:, 199].mean() == pytest.approx(87.5, abs=0.05)


def test_no_table_for_other_data():
    assert published_table("digits") is None
