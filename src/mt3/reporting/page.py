"""The report over many runs: its sections, its page and its files. Needs no torch."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from mt3.reporting import accuracy, gains
from mt3.reporting import published as paper
from mt3.reporting.collect import Results, collect
from mt3.reporting.curves import MIN_EPOCHS, Curves, authors_curve, count_epochs, epoch_table, read_curves
from mt3.reporting.figures import FORMATS, Figure, draw_bars, draw_convergence, import_pyplot
from mt3.reporting.method_tables import METHOD, confidence_table, method_blocks
from mt3.reporting.rows import Row, rows_of
from mt3.reporting.trace import trace_blocks
from mt3.reporting.variants import ablation_table, sweep_blocks
from mt3.results.tables import AVERAGE, Cell, Table, csv_text, latex, make_table, markdown
from mt3.support.errors import InputError, name_list
from mt3.support.files import write_text

Chosen = TypeVar("Chosen")
USUAL = {"layers": "all", "gate": 1, "variant": "paper", "precision": "float32"}  # of which a protocol does not speak


class Section(NamedTuple):
    title: str
    blocks: Sequence[Table | Figure | str]


def write_report(
    paths: Sequence[Path],
    out: Path,
    published: bool = False,
    root: Path | None = None,
    words: str = "",
    page: Path | None = None,
) -> tuple[str, list[Path], list[str]]:
    """Write tables and figures of the results in `paths`, or of the paper alone; the same results give the same bytes.

    Files are named as they were given, or relative to `root`. `words` are Markdown that comes first, with numbers as
    `fill_words` has them; `page` is where the report goes instead of `out/report.md`, with links to the figures in
    `out`. Returns the first table as Markdown, the files, and what a user should know.
    """
    results = collect(paths, root) if paths else Results()
    sections = report_sections(results, published) if paths else published_sections(True)
    warning = unfinished_words(results)
    notes = [*([warning] if warning else []), *results.notes]
    tables = tables_in(sections)
    words = put_first(f"**{warning}**" if warning else "", fill_words(words, tables).strip() or "# Report")
    figures = [block for section in sections for block in section.blocks if isinstance(block, Figure)]
    files = []
    try:
        import_pyplot()
    except InputError as error:
        notes.append(f"no figures: {error}")
        figures = []
    for figure in figures:
        drawn = [out / f"{figure.name}.{ending}" for ending in FORMATS]
        figure.draw(drawn)
        files += drawn
    main = [t for t in tables if t.head in ("corruption", METHOD)]
    head = "% needs \\usepackage{booktabs,graphicx}\n"
    write_text(out / "table.tex", head + "\n\n".join(latex(t) for t in main) + "\n")
    write_text(out / "table.csv", csv_text(tables))
    page = out / "report.md" if page is None else page
    folder = quote(Path(os.path.relpath(out, page.parent)).as_posix())
    write_text(page, _markdown_report(sections, words, folder if figures else None))
    text = "\n\n".join(f"{t.title}\n\n{markdown(t)}\n\n{t.note}" for t in main[: 1 if paths else 2])
    return text, [page, out / "table.tex", out / "table.csv", *files], notes


def put_first(sentence: str, page: str) -> str:
    """The page with a sentence right below its heading, or above all if it has none."""
    if not page.startswith("# "):
        return f"{sentence}\n\n{page}".strip()
    heading, _, rest = page.partition("\n")
    return "\n\n".join(part for part in (heading, sentence, rest.strip()) if part)


def unfinished_words(results: Results) -> str:
    """Which trainings were not finished when they were evaluated, or nothing."""
    unfinished = [e for e in results.every if e.run.unfinished]
    found = dict.fromkeys(f"{e.run.method}{f', {e.label}' if e.label else ''}{e.run.mark}" for e in unfinished)
    if not found:
        return ""
    return f"Not finished when evaluated: {'; '.join(found)}. Nothing here that rests on this is a fair comparison."


def tables_in(sections: Sequence[Section]) -> list[Table]:
    return [block for section in sections for block in section.blocks if isinstance(block, Table)]


def fill_words(words: str, tables: Sequence[Table]) -> str:
    """Put numbers where the words have `{{table | line | column}}`, as printed there; `| mean` leaves the rest out.

    Tables go by their names in the CSV, lines and columns by their titles.
    """

    def number(found: re.Match[str]) -> str:
        parts = [" ".join(part.split()) for part in found[1].split("|")]
        told = " ".join(found[0].split())
        if len(parts) not in (3, 4) or parts[3:] not in ([], ["mean"]):
            raise InputError(f"Expected {{{{table | line | column}}}} or {{{{... | mean}}}} in the words, got {told}.")
        table = _choose(parts[0], {t.name: t for t in tables}, "table", told)
        line = _choose(parts[1], {line.label: line for line in table.lines}, "line", told)
        cell = _choose(parts[2], dict(zip(table.columns, line.cells, strict=True)), "column", told)
        return (replace(cell, std=None, interval=None) if parts[3:] else cell).words()

    return re.sub(r"\{\{(.*?)\}\}", number, words, flags=re.DOTALL)


def _choose(name: str, among: Mapping[str, Chosen], what: str, told: str) -> Chosen:
    if name not in among:
        raise InputError(f"The words have {told}, but there is no {what} '{name}'; there are {name_list(among)}.")
    return among[name]


def _markdown_report(sections: Sequence[Section], words: str, folder: str | None) -> str:
    """The page, which begins with `words`; figures are in `folder`, seen from it."""
    parts = [words]
    for section in sections:
        parts.append(f"## {section.title}")
        for block in section.blocks:
            if isinstance(block, Table):
                parts += [f"{block.title}:", markdown(block), *([block.note] if block.note else [])]
            elif isinstance(block, str):
                parts.append(block)
            elif folder is not None:
                file = f"{block.name}.png" if folder == "." else f"{folder}/{block.name}.png"
                parts += [f"![{block.name}]({file})", f"*{block.caption}*"]
    return "\n\n".join(parts) + "\n"


def report_sections(results: Results, published: bool) -> list[Section]:
    """The whole report, section by section; those without results are left out."""
    rows = rows_of(results.main)
    sections: list[Section] = []
    if rows and rows[0].runs[0].corruptions:
        severity = rows[0].runs[0].severities[-1]
        differences = (gains.gain_table, gains.paired_table, gains.before_table, gains.run_table)
        sections += [
            _accuracy_section(rows, severity, published),
            Section("Before and after adapting", [table for make in differences for table in make(rows, severity)]),
            Section("What the gain is made of", gains.split_table(rows, severity)),
            Section("Severities and mCE", accuracy.severity_blocks(rows)),
            Section("Likelihood and calibration", accuracy.calibration_table(rows, severity)),
        ]
    sections += [
        Section("Methods and streams", method_blocks(results)),
        Section("Confidence", confidence_table(results)),
        Section("Clean images", accuracy.clean_table(rows)),
        Section("Adaptation settings", sweep_blocks(results)),
        Section("Ablations", ablation_table(results)),
        Section("Convergence", _convergence_blocks(results.curves)),
        Section("The step along a training", trace_blocks(results.traces)),
        *(published_sections(False) if published else []),
        Section("Methods", accuracy.component_table(rows)),
        Section("Protocol", _protocol_blocks(results, rows)),
    ]
    return [section for section in sections if section.blocks]


def published_sections(alone: bool) -> list[Section]:
    """The paper's tables and figures; `alone`, with the authors' curve and what the methods are made of."""
    blocks: list[Table | Figure] = []
    names = paper.corruption_order()
    for table, data in zip(accuracy.published_tables(), paper.TABLES, strict=True):
        draw = partial(draw_bars, columns=accuracy.published_columns(data, names), names=[*names, AVERAGE])
        caption = f"{table.title}; bars are means, whiskers standard deviations over 3 runs where the paper has them."
        blocks += [table, Figure(f"published-{data}", caption, draw)]
    sections = [Section("The paper's results", blocks)]
    if alone:
        sections.append(Section("Convergence", _convergence_blocks(Curves(), alone=True)))
        sections.append(Section("Methods", accuracy.component_table()))
    return sections


def _accuracy_section(rows: Sequence[Row], severity: int, published: bool) -> Section:
    table = accuracy.accuracy_table(rows, severity, published)
    names = [*rows[0].runs[0].corruptions, AVERAGE]
    draw = partial(draw_bars, columns=accuracy.columns_of(rows, severity), names=names)
    caption = f"{table.title}: means, with standard deviations over runs where there are several."
    return Section("Accuracy under corruption", [table, Figure("bars", caption, draw)])


def _convergence_blocks(curves: Curves, alone: bool = False) -> list[Table | Figure]:
    """The curve beside the authors'; without one nothing, unless theirs is to stand `alone`."""
    curve, authors = read_curves(curves.paths), authors_curve()
    if curve is None and not alone:
        return []
    theirs, tables, told = count_epochs(authors.epochs[-1]), [], ""
    caption = "Training accuracy of MT3 before and after the inner step: mean and standard deviation over runs"
    if curve is None or curves.run is None:
        caption += f", the authors' three of {theirs}."
    else:
        planned = count_epochs(curves.run.epochs[-1])
        ours = planned if curves.whole else f"{curve.epochs[-1]:.3g} of {planned}"
        told = f"{curves.run.data}, {ours}"
        points = "per epoch" if curve.epochs[-1] >= MIN_EPOCHS else "in twentieths of the training"
        caption += f", {points}; beside it the authors' three runs. "
        caption += f"These were trained for {ours}, the authors' for {theirs}"
        caption += "." if curve.epochs[-1] == authors.epochs[-1] else ": the axes are not alike."
        if curves.start:
            before = curves.run.epochs_before if curves.whole else 0
            caption += f" Epochs count from the end of the {curves.start} that came first"
            caption += f", after {count_epochs(before)}." if before else "."
        tables = epoch_table(curves.paths, ours) if curves.run.data == "cifar10" else []
    overlay = curves.run is not None and curves.run.data == "cifar10"
    draw = partial(draw_convergence, curve=curve, told=told, published=authors, overlay=overlay)
    return [*tables, Figure("convergence", caption, draw)]


def _protocol_blocks(results: Results, rows: Sequence[Row]) -> list[Table | str]:
    every = [*(rows[0].runs if rows else []), *results.every]
    items = []
    if every:
        p = every[0].protocol
        versions = {name_list(f"{name} {v}" for name, v in e.protocol["versions"].items()) for e in every}
        items = [
            f"data: {p['data']}, {p['split']} split, {accuracy.image_words(p)}",
            f"corrupted images: {accuracy.source_words(p['source'])}",
            f"corruptions: {name_list(p['corruptions']) or 'none'}",
            f"severities: {name_list(p['severities']) or 'none'}",
            f"seeds of the views: {name_list(sorted({e.protocol['seed'] for e in every}))}",
            f"versions: {'; '.join(sorted(versions))}",
        ]
    items += results.notes
    lines = []
    for found in (*results.groups, *([e] for e in results.others)):
        one, adapted = found[0], found[0].protocol["adaptation"]
        besides = (adapted or {}) | {"precision": one.protocol["precision"]}
        texts = {
            "preset": one.run.preset,
            "epochs": one.run.epoch_words,
            "training seeds": name_list(e.run.seed for e in found),
            "steps": str(one.setting.steps) if adapted else "-",
            "views": str(one.setting.views),
            "lr": f"{one.setting.lr:g}" if adapted else "-",
            "clip": f"{adapted['clip']:g}" if adapted and adapted["clip"] is not None else "-",
            "besides": name_list(f"{n} {besides[n]}" for n in USUAL if besides.get(n, USUAL[n]) != USUAL[n]) or "-",
            "files": name_list(f"`{e.path}`" for e in found),
        }
        label = f"{one.run.method}{f', {one.label}' if one.label else ''}{one.run.mark}"
        lines.append((label, {column: Cell(text=text) for column, text in texts.items()}))
    told = ["\n".join(f"- {item}" for item in items)] if items else []
    return [*told, *make_table("protocol", "The evaluations", "training", lines)]
