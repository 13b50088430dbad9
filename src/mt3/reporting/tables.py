"""One table, three ways to write it: Markdown, LaTeX and CSV. Needs no torch."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace

OVERLAP_MARK = "†"

CSV_FIELDS = (
    "table",
    "line",
    "column",
    "value",
    "std",
    "low",
    "high",
    "best",
    "published",
    "published_std",
)


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
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]

    def draw(cells: Sequence[str]) -> str:
        padded = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    return "\n".join([draw(lines[0]), rule, *map(draw, lines[1:])])


def _markdown_cell(cell: Cell) -> str:
    text = cell.words().replace("|", "\\|")
    if cell.best:
        text = f"**{text}**"
    return f"{text} ({cell.published.words()})" if cell.published is not None else text


def latex(table: Table) -> str:
    """A `table*` environment in booktabs style; needs the packages booktabs and graphicx."""
    parts = [column.partition(" (") for column in table.columns]  # a second header line holds what is in brackets
    header = [" & ".join([_escape(table.head), *(_escape(name) for name, _, _ in parts)]) + r" \\"]
    if any(rest for _, _, rest in parts):
        header.append(" & ".join(["", *(_escape(f"({rest}") if rest else "" for _, _, rest in parts)]).strip() + r" \\")
    body = []
    for line in table.lines:
        if line.rule:
            body.append(r"\midrule")
        label = _escape(line.label.replace("_", " ")) + (r"$^\dagger$" if line.marked else "")
        body.append(" & ".join([label, *(_latex_cell(cell) for cell in line.cells)]) + r" \\")
    return "\n".join(
        [
            r"\begin{table*}[t]",
            r"\centering",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",  # narrow tables keep their size
            rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
            r"\toprule",
            *header,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}}",
            rf"\caption{{{_escape(' '.join(f'{table.title}. {table.note}'.split()))}}}",
            rf"\label{{tab:{table.name}}}",
            r"\end{table*}",
        ]
    )


def _latex_cell(cell: Cell) -> str:
    if cell.value is None:
        text = _escape(cell.text)
    else:
        number = cell.words().replace("±", r"\pm").replace(" [", r"\ [")
        text = rf"$\mathbf{{{number}}}$" if cell.best else f"${number}$"
    return rf"{text} {{\scriptsize({_latex_cell(cell.published)})}}" if cell.published is not None else text


_ESCAPES = {
    "\\": r"\textbackslash{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    OVERLAP_MARK: r"$^\dagger$",
    "<": "$<$",
    ">": "$>$",
    "`": "",
}


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
