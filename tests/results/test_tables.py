"""The table writer: what is printed, what is bold, and that its LaTeX and CSV can be read."""

import csv
import io
import shutil
import subprocess

import pytest

from mt3.reporting.accuracy import published_tables
from mt3.results.tables import Cell, Line, Table, csv_text, latex, mark_best, markdown

PACKAGES = ("booktabs", "graphicx")  # of LaTeX, for the tables


def table(*lines: Line, columns: tuple[str, ...] = ("value",)) -> Table:
    return Table("t", "A table", "name", columns, lines, "50 % of a_b & c")


def test_markdown_has_aligned_columns():
    assert markdown(table(Line("a", (Cell(1.0),)), Line("longer", (Cell(10.0),)))).splitlines() == [
        "| name   | value |",
        "|--------|------:|",
        "| a      |   1.0 |",
        "| longer |  10.0 |",
    ]


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (Cell(76.24, 0.468), "76.2 ± 0.47"),
        (Cell(1.5, digits=3), "1.500"),
        (Cell(5.16, interval=(3.1, 7.26), signed=True), "+5.2 [+3.1, +7.3]"),
        (Cell(1.3, interval=(0.02, 2.6), signed=True), "+1.3 [+0.02, +2.6]"),
        (Cell(-1.0, signed=True), "-1.0"),
        (Cell(7, digits=0), "7"),
        (Cell(0.03, digits=None), "0.03"),
        (Cell(text="-"), "-"),
    ],
)
def test_a_cell_in_words(cell, words):
    assert cell.words() == words


def test_best_marks_what_is_printed_alike():
    cells = [Cell(70.04), Cell(69.96), Cell(69.94), Cell(text="-")]
    assert [c.best for c in mark_best(cells)] == [True, True, False, False]
    assert [c.best for c in mark_best(cells, lowest=True)] == [False, False, True, False]
    assert not mark_best([Cell(70.0), Cell(text="-")])[0].best


def test_bold_mark_and_published_number_in_markdown():
    line = Line("fog", (Cell(70.0, 1.25, best=True, published=Cell(75.9, 1.26)), Cell(text="a|b")), marked=True)
    assert (
        markdown(table(line, columns=("x", "y"))).splitlines()[2] == "| fog † | **70.0 ± 1.25** (75.9 ± 1.26) | a\\|b |"
    )
    named = markdown(table(Line("a|b", (Cell(70.0),)), columns=("x|y",))).splitlines()
    assert named[::2] == ["| name | x\\|y |", "| a\\|b | 70.0 |"]


def test_latex_by_structure():
    lines = (
        Line("gaussian_noise", (Cell(70.0, 1.25, best=True, published=Cell(75.9)), Cell(3, digits=0)), marked=True),
        Line("average", (Cell(5.0, interval=(1, 9), signed=True), Cell(text="a_b")), rule=True),
    )
    text = latex(table(*lines, columns=("JT (ours)", "MT")))
    assert text.splitlines()[3:] == [
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"name & JT & MT \\",
        r"& (ours) & \\",
        r"\midrule",
        r"gaussian noise$^\dagger$ & $\mathbf{70.0 \pm 1.25}$ {\scriptsize($75.9$)} & $3$ \\",
        r"\midrule",
        r"average & $+5.0\ [+1.0, +9.0]$ & a\_b \\",
        r"\bottomrule",
        r"\end{tabular}}",
        r"\caption{A table. 50 \% of a\_b \& c}",
        r"\label{tab:t}",
        r"\end{table*}",
    ]
    assert text.count("{") == text.count("}")


def find_latex() -> str | None:
    """Tectonic fetches what it lacks; a small TeX Live may be without what the tables need."""
    found = shutil.which("kpsewhich")
    whole = found and all(subprocess.run([found, f"{p}.sty"], capture_output=True).stdout for p in PACKAGES)
    return shutil.which("tectonic") or (shutil.which("pdflatex") if whole else None)


def test_latex_compiles(tmp_path):
    program = find_latex()
    if program is None:
        pytest.skip("needs tectonic, or pdflatex with booktabs and graphicx")
    body = "\n\n".join(latex(t) for t in published_tables())
    packages = f"\\documentclass{{article}}\\usepackage{{{','.join(PACKAGES)}}}"
    (tmp_path / "t.tex").write_text(f"{packages}\\begin{{document}}\n{body}\n\\end{{document}}\n")
    options = [] if "tectonic" in program else ["-interaction=nonstopmode", "-halt-on-error"]
    done = subprocess.run([program, *options, "t.tex"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "t.pdf").stat().st_size > 1000


def test_csv_is_unrounded_and_leaves_text_out():
    third = 1 / 3
    lines = (
        Line("a, b", (Cell(third, 2 / 3, best=True, published=Cell(75.9, 1.26)), Cell(text="-"))),
        Line("c", (Cell(1.0, interval=(-1.5, 2.5)), Cell(2, digits=0))),
    )
    records = list(csv.DictReader(io.StringIO(csv_text([table(*lines, columns=("x", "y"))]))))
    assert [(r["line"], r["column"]) for r in records] == [("a, b", "x"), ("c", "x"), ("c", "y")]
    assert float(records[0]["value"]) == third
    assert float(records[0]["std"]) == 2 / 3
    assert (records[0]["best"], records[0]["published"], records[0]["published_std"]) == ("1", "75.9", "1.26")
    assert (records[1]["low"], records[1]["high"], records[1]["std"], records[1]["best"]) == ("-1.5", "2.5", "", "0")
    assert records[2]["value"] == "2"
