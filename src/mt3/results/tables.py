"""One table, three ways to write it: Markdown, LaTeX and CSV. Needs no torch."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

OVERLAP_MARK = "†"
AVERAGE = "average"  # the line over all corruptions
CSV_FIELDS = ("table", "line", "column", "value", "std", "low", "high", "best", "published", "published_std")


@dataclass(frozen=True)
class Cell:
    """A number with what belongs to it, or a text.

    It is printed with `digits` decimals and its deviation with one more; without `digits`, as short as it is.
    """

    value: float | None = None
    std: float | None = None  # sample standard deviation over runs
    interval: tuple[float, float] | None = None  # 95 %, of a difference
    text: str = ""  # stands where there is no value
    digits: int | None = 1
    signed: bool = False  # a difference, printed with its sign
    best: bool = False  # of its line
    published: "Cell | None" = None  # what the paper has here

    def words(self) -> str:
        """The number as printed, `76.2 ± 0.47` or `+5.2 [+3.1, +7.3]`."""
        if self.value is None:
            return self.text
        text = self._round(self.value)
        if self.std is not None:
            text += f" ± {self.std:.{(self.digits or 0) + 1}f}"
        if self.interval is not None:
            text += " [{}, {}]".format(*map(self._end, self.interval))
        return text

    def rounded(self) -> float | None:
        """The value that is printed."""
        return None if self.value is None else float(self._round(self.value))

    def _end(self, value: float) -> str:
        """An interval's end; where its sign decides and rounding would hide it, with a digit more."""
        text = self._round(value)
        return self._round(value, 1) if float(text) == 0 and self.digits is not None else text

    def _round(self, value: float, more: int = 0) -> str:
        return f"{value:{'+' if self.signed else ''}{'g' if self.digits is None else f'.{self.digits + more}f'}}"


DASH = Cell(text="-")  # nothing is known


def count(number: int) -> Cell:
    return Cell(number, digits=0)


@dataclass(frozen=True)
class Line:
    label: str
    cells: tuple[Cell, ...]
    marked: bool = False  # with a dagger, explained in the table's note
    rule: bool = False  # drawn above it in LaTeX


@dataclass(frozen=True)
class Table:
    """Lines of cells under a header; `head` names the first column."""

    name: str  # in the CSV and as LaTeX label
    title: str
    head: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    note: str = ""  # what a reader must know, stands below


Lines = Sequence[tuple[str, Mapping[str, Cell]]]  # label, and the cells by column


def make_table(name: str, title: str, head: str, lines: Lines, note: str = "") -> list[Table]:
    """The table of these lines, which have the same columns; none where there are none."""
    made = tuple(Line(label, tuple(cells.values())) for label, cells in lines)
    return [Table(name, title, head, tuple(lines[0][1]), made, note)] if lines else []


def mark_best(cells: Sequence[Cell], lowest: bool = False) -> tuple[Cell, ...]:
    """Mark the highest (or lowest) value, and those printed alike; a value without a rival is not marked."""
    printed = [c.rounded() for c in cells]
    values = [p for p in printed if p is not None]
    if len(values) < 2:
        return tuple(cells)
    best = min(values) if lowest else max(values)
    return tuple(replace(c, best=p == best) for c, p in zip(cells, printed, strict=True))


def markdown(table: Table) -> str:
    """The table alone, without title and note; columns are aligned, the first to the left, the others to the right."""
    lines = [[table.head, *table.columns]]
    for line in table.lines:
        label = f"{line.label} {OVERLAP_MARK}" if line.marked else line.label
        lines.append([label, *(_markdown_cell(cell) for cell in line.cells)])
    lines = [[text.replace("|", "\\|") for text in line] for line in lines]
    first, *others = (max(map(len, column)) for column in zip(*lines, strict=True))
    rule = "|".join(["-" * (first + 2), *("-" * (width + 1) + ":" for width in others)])
    drawn = [
        " | ".join([line[0].ljust(first), *(text.rjust(width) for text, width in zip(line[1:], others, strict=True))])
        for line in lines
    ]
    return "\n".join([f"| {drawn[0]} |", f"|{rule}|", *(f"| {line} |" for line in drawn[1:])])


def _markdown_cell(cell: Cell) -> str:
    text = f"**{cell.words()}**" if cell.best else cell.words()
    return f"{text} ({cell.published.words()})" if cell.published is not None else text


def latex(table: Table) -> str:
    """A `table*` environment in booktabs style; needs the packages booktabs and graphicx."""
    parts = [column.partition(" (") for column in table.columns]  # a second header line holds what is in brackets
    lines = [[_escape(table.head), *(_escape(name) for name, _, _ in parts)]]
    if any(rest for _, _, rest in parts):
        lines.append(["", *(_escape(f"({rest}") if rest else "" for _, _, rest in parts)])
    header = [" & ".join(line).strip() + r" \\" for line in lines]
    body = []
    for line in table.lines:
        label = _escape(line.label.replace("_", " ")) + (r"$^\dagger$" if line.marked else "")
        rule = "\\midrule\n" if line.rule else ""
        body.append(rule + " & ".join([label, *(_latex_cell(cell) for cell in line.cells)]) + r" \\")
    rows = "\n".join([r"\toprule", *header, r"\midrule", *body, r"\bottomrule"])
    return rf"""\begin{{table*}}[t]
\centering
\resizebox{{\ifdim\width>\linewidth\linewidth\else\width\fi}}{{!}}{{%
\begin{{tabular}}{{l{"r" * len(table.columns)}}}
{rows}
\end{{tabular}}}}
\caption{{{_escape(" ".join(f"{table.title}. {table.note}".split()))}}}
\label{{tab:{table.name}}}
\end{{table*}}"""


def _latex_cell(cell: Cell) -> str:
    if cell.value is None:
        text = _escape(cell.text)
    else:
        number = cell.words().replace("±", r"\pm").replace(" [", r"\ [")
        text = rf"$\mathbf{{{number}}}$" if cell.best else f"${number}$"
    return rf"{text} {{\scriptsize({_latex_cell(cell.published)})}}" if cell.published is not None else text


_ESCAPES = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$"}
_ESCAPES |= {c: f"\\{c}" for c in "&%$#_{}"} | {"`": "", "±": r"$\pm$", OVERLAP_MARK: r"$^\dagger$"}


def _escape(text: str) -> str:
    return "".join(_ESCAPES.get(c, c) for c in text)


def csv_text(tables: Sequence[Table]) -> str:
    """Every number of the tables in long form, one a line, unrounded; fields as in `CSV_FIELDS`, empty if absent.

    `best` is 1 for a number in bold and 0 for the others. Cells of text are left out.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_FIELDS)
    for table in tables:
        for line in table.lines:
            for column, cell in zip(table.columns, line.cells, strict=True):
                published = cell.published or Cell()
                if cell.value is None and published.value is None:
                    continue
                low, high = cell.interval or (None, None)
                numbers = (cell.value, cell.std, low, high, int(cell.best), published.value, published.std)
                writer.writerow([table.name, line.label, column, *("" if n is None else repr(n) for n in numbers)])
    return file.getvalue()
