"""Results to tables and figures: of one evaluation, and a report over many runs. Needs no torch."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from mt3.reporting import published as paper
from mt3.reporting.compare import (
    STATISTICS,
    TRAININGS,
    Columns,
    Row,
    accuracy_table,
    calibration_table,
    clean_table,
    columns_of,
    component_table,
    departure_words,
    gain_tables,
    interval_cell,
    paired_table,
    published_columns,
    published_tables,
    rows_of,
    run_line,
    run_table,
    severity_tables,
    training_lines,
)
from mt3.reporting.curves import MIN_EPOCHS, Curve, authors_curve, count_epochs, epoch_table, read_curves
from mt3.reporting.figures import FORMATS, Figure, draw_bars, draw_convergence, import_pyplot
from mt3.reporting.published import AVERAGE, published_table
from mt3.reporting.sweeps import ablation_table, sweep_blocks
from mt3.reporting.table import Cell, Line, Table, csv_text, latex, markdown
from mt3.results.collect import Results, collect, describe_source, flat
from mt3.results.record import Evaluation, read_trained
from mt3.results.statistics import Z95
from mt3.support.errors import InputError, name_list
from mt3.support.files import write_text

Chosen = TypeVar("Chosen")

ROW_TITLES = {  # of an evaluation, and what is not clear from their names
    "before": "",
    "view_average": "averaged over the views, not adapted",
    "clean_other": "adapted on an unrelated clean image",
    "same_corruption": "adapted on another image under the same corruption",
    "after": "",
}
PART_WORDS = {  # of a gain
    "offset": "by a step on an unrelated clean image",
    "distribution": "more by one on another image with the same corruption",
    "instance": "more by one on the image itself",
}


def interval(gain: dict[str, float]) -> str:
    """`+5.2 [+3.1, +7.3]`: a paired difference in points with its 95 % interval."""
    return interval_cell(gain).words()


def result_table(columns: dict[str, tuple[dict[str, Any], str]]) -> str:
    """Accuracy per corruption and on average; `columns` maps a title to (result, row of it)."""
    results = [result for result, _ in columns.values()]
    keys = [(c["name"], c["severity"]) for c in results[0]["corruptions"]]
    several = len({severity for _, severity in keys}) > 1
    by_key = [{(c["name"], c["severity"]): c for c in r["corruptions"]} for r in results]
    rows = [row for _, row in columns.values()]
    lines = [
        Line(
            f"{name} {severity}" if several else name,
            tuple(Cell(found[name, severity][row]["accuracy"]) for found, row in zip(by_key, rows, strict=True)),
        )
        for name, severity in keys
    ]
    if keys:
        lines.append(Line(AVERAGE, tuple(Cell(r["average"][row]) for r, row in columns.values())))
    clean = [(r["clean"] or {}).get(row) for r, row in columns.values()]
    if any(clean):  # for the controls there is none
        lines.append(Line("clean", tuple(Cell(c["accuracy"]) if c else Cell(text="-") for c in clean)))
    return markdown(Table("result", "Accuracy", "corruption", tuple(columns), tuple(lines)))


def evaluation_summary(result: dict[str, Any]) -> str:
    """What one evaluation found, for people: the table, the gain and its parts."""
    found = result["corruptions"] or [result["clean"]]
    rows = [row for row in ROW_TITLES if row in found[0]]
    lines = [result_table({row.replace("_", " "): (result, row) for row in rows}), ""]
    explained = [f"{row.replace('_', ' ')}: {ROW_TITLES[row]}" for row in rows if ROW_TITLES[row]]
    if explained:
        lines.append("; ".join(explained))
    protocol = result.get("protocol", {})
    if "images" in protocol:
        lines.append(image_words(protocol) + (" under each corruption" if result["corruptions"] else ""))
    trained = read_trained(protocol, "trained_steps")
    if trained and trained.steps < trained.total:
        lines.append(f"The training is NOT FINISHED: these are numbers after {trained.words()}.")
    return "\n".join([*lines, *_gain_lines(result)]).rstrip()


def _gain_lines(result: dict[str, Any]) -> list[str]:
    """The gain and its parts; where controls are missing, a caution about a gain that is above 0."""
    if "gain" not in result:
        return []
    lines = [
        f"gain by adapting {interval(result['gain'])} points (paired 95 % interval); "
        f"{result['fixed']} answers fixed, {result['broken']} broken"
    ]
    if "adaptation" in result:
        parts = ", ".join(f"{name} {interval(result[name])} ({told})" for name, told in PART_WORDS.items())
        lines.append(f"of which {parts}")
        lines.append(f"having seen the image brings {interval(result['adaptation'])}: distribution and instance")
    elif result["gain"]["mean"] > 0:
        lines.append("A step may help whatever the image: --controls tells how much of this gain is due to that.")
    return lines


class Section(NamedTuple):
    title: str
    blocks: list[Table | Figure | str]


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
    if paths:
        results = collect(paths, root)
        warning = unfinished_words(results)
        sections, notes = report_sections(results, published), [*([warning] if warning else []), *results.notes]
    else:
        sections, notes, warning = published_sections(True), [], ""
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
    main = [t for t in tables if t.head == "corruption"]
    head = "% needs \\usepackage{booktabs,graphicx}\n"
    write_text(out / "table.tex", head + "\n\n".join(latex(t) for t in main) + "\n")
    write_text(out / "table.csv", csv_text(tables))
    page = out / "report.md" if page is None else page
    folder = quote(Path(os.path.relpath(out, page.parent)).as_posix())
    write_text(page, _markdown_report(sections, words, folder if figures else None))
    files = [page, out / "table.tex", out / "table.csv", *files]
    return "\n\n".join(f"{t.title}\n\n{markdown(t)}\n\n{t.note}" for t in main[: 1 if paths else 2]), files, notes


def put_first(sentence: str, page: str) -> str:
    """The page with a sentence right below its heading, or above all if it has none."""
    if not page.startswith("# "):
        return f"{sentence}\n\n{page}".strip()
    heading, _, rest = page.partition("\n")
    return "\n\n".join(part for part in (heading, sentence, rest.strip()) if part)


def unfinished_words(results: Results) -> str:
    """Which trainings were not finished when they were evaluated, or nothing."""
    groups = [*results.main.values(), *results.ablations.values(), results.others]
    found = dict.fromkeys(
        f"{run.method.name}{f', {run.label}' if run.label else ''} ({run.unfinished.words()})"
        for run in flat(groups)
        if run.unfinished
    )
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
        severity = [rows[0].runs[0].severities[-1]]
        sections.append(_accuracy_section(rows, severity, published))
        gain, split = gain_tables(rows, severity)
        paired, by_run = paired_table(rows, severity), run_table(rows, severity)
        by_severity, why_not = severity_tables(rows)
        sections += [
            Section("Before and after adapting", [table for table in (gain, paired, by_run) if table]),
            Section("What the gain is made of", [split] if split else []),
            Section("Severities and mCE", [*by_severity, *([why_not] if why_not else [])]),
            Section("Likelihood and calibration", [calibration_table(rows, severity)]),
        ]
    clean, ablations = clean_table(rows), ablation_table(results)
    sections += [
        Section("Clean images", [clean] if clean else []),
        Section("Adaptation settings", list(sweep_blocks(results))),
        Section("Ablations", [ablations] if ablations else []),
        *_convergence_section(results),
        *(published_sections(False) if published else []),
        Section("Methods", [component_table(rows)]),
        _protocol_section(results, rows),
    ]
    return [section for section in sections if section.blocks]


def published_sections(alone: bool) -> list[Section]:
    """The paper's tables and figures."""
    blocks: list[Table | Figure | str] = []
    for table, data in zip(published_tables(), paper.TABLES, strict=True):
        names = paper.corruption_order()
        draw = partial(draw_bars, columns=published_columns(data, names), names=[*names, AVERAGE])
        caption = f"{table.title}; bars are means, whiskers standard deviations over 3 runs where the paper has them."
        blocks += [table, Figure(f"published-{data}", caption, draw)]
    sections = [Section("The paper's results", blocks)]
    if alone:
        sections += _convergence_section(Results(), alone=True)
        sections.append(Section("Methods", [component_table()]))
    return sections


def _accuracy_section(rows: Sequence[Row], severity: Sequence[int], published: bool) -> Section:
    protocol = rows[0].runs[0].protocol
    names = rows[0].runs[0].corruptions
    columns = columns_of(rows, severity)
    theirs = published_columns(str(protocol.get("data")), names) if severity == [paper.SEVERITY] and published else {}
    beside = {row.title: theirs[row.name] for row in rows if row.name in theirs}
    foot = [run_line(rows), *training_lines(rows, bool(beside))]
    reach = 100 * Z95 * sqrt(0.25 / protocol["images"])
    note = f"{STATISTICS} With {protocol['images']:,} images a corruption's accuracy is uncertain by up to {reach:.1f} "
    note += "points (95 %), whatever the seeds; differences are known more closely, from intervals paired over images."
    note += f" {departure_words(rows)}".rstrip()
    if published:
        note += " " + _published_note(protocol, names, beside)
    if len(foot) > 1:
        note += f" {TRAININGS}"
    title = f"Accuracy in % on {protocol.get('data')} under corruption, severity {severity[0]}, {image_words(protocol)}"
    table = accuracy_table("accuracy", title, columns, names, foot, note, beside)
    draw = partial(draw_bars, columns=columns, names=[*names, AVERAGE])
    caption = f"{title}: means, with standard deviations over runs where there are several."
    return Section("Accuracy under corruption", [table, Figure("bars", caption, draw)])


def image_words(protocol: dict[str, Any]) -> str:
    """How many images, and which if not the first ones."""
    first = protocol.get("first")
    return f"{protocol['images']:,} images" + (f" from number {first:,} on" if first else "")


def _published_note(protocol: dict[str, Any], names: Sequence[str], beside: Columns) -> str:
    if not beside:
        if published_table(str(protocol.get("data"))) is None:
            return f"The paper has no numbers for {protocol.get('data')}."
        if max(protocol["severities"]) == paper.SEVERITY:
            return "The paper has no numbers for these rows."
        return f"The paper's numbers are for severity {paper.SEVERITY}, so none stand here."
    text = "In brackets the paper's number: 3 runs, 10,000 images of the published -C data; these images: "
    text += f"{describe_source(protocol.get('source'))}."
    if any("Sun" in row for row in beside):
        text += " Those of Sun et al. it quotes, without runs."
    if not set(names) <= set(paper.corruption_order()):
        text += " It has no average over these corruptions."
    elif len(names) < len(paper.corruption_order()):
        text += f" Its averages here are of its printed means over these {len(names)} corruptions."
    return text


def _convergence_section(results: Results, alone: bool = False) -> list[Section]:
    """The curve beside the authors'; without one nothing, unless theirs is to stand alone."""
    curve, authors = read_curves(results.curves), authors_curve()
    if curve is None and not alone:
        return []
    settings = results.curve_settings or {}
    overlay = settings.get("data") == "cifar10"
    ours = "" if curve is None else _curve_length(results, curve)
    told = f"{settings.get('data')}, {ours}"
    draw = partial(draw_convergence, curve=curve, told=told, published=authors, overlay=overlay)
    caption = "Training accuracy of MT3 before and after the inner step: mean and standard deviation over runs"
    if curve is None:
        caption += f", the authors' three of {count_epochs(authors.epochs[-1])}."
    else:
        points = "per epoch" if curve.epochs[-1] >= MIN_EPOCHS else "in twentieths of the training"
        caption += f", {points}; beside it the authors' three runs. These were trained for {ours}, "
        caption += f"the authors' for {count_epochs(authors.epochs[-1])}"
        caption += "." if curve.epochs[-1] == authors.epochs[-1] else ": the axes are not alike."
        if settings.get("warm_method"):
            caption += f" Epochs count from the end of the {settings['warm_method']} that came first"
            before = results.curve_epochs.before if results.curve_epochs and results.curves_whole else None
            caption += f", after {count_epochs(before)}." if before else "."
    table = epoch_table(results.curves, ours) if overlay else None
    figure = Figure("convergence", caption, draw)
    return [Section("Convergence", [figure] if table is None else [table, figure])]


def _curve_length(results: Results, curve: Curve) -> str:
    """How long the runs of the curve were trained; of what was planned, if they are not finished."""
    reached, planned = f"{curve.epochs[-1]:.3g}", results.curve_epochs
    if planned is None:
        return f"{reached} epochs"
    return count_epochs(planned.own) if results.curves_whole else f"{reached} of {count_epochs(planned.own)}"


def _protocol_section(results: Results, rows: Sequence[Row]) -> Section:
    groups = [*results.main.values(), *results.ablations.values()]
    runs = flat(groups) + results.others
    items = []
    if runs:
        p = (rows[0].runs if rows else runs)[0].protocol
        items = [
            f"data: {p.get('data')}, {p.get('split')} split, {image_words(p)}",
            f"corrupted images: {describe_source(p.get('source'))}",
            f"corruptions: {name_list(p['corruptions']) or 'none'}",
            f"severities: {name_list(p['severities']) or 'none'}",
            f"seeds of the views: {name_list(sorted({run.protocol.get('seed') for run in runs}, key=str))}",
        ]
        versions = sorted({_versions(run) for run in runs})
        items.append(f"versions: {'; '.join(versions)}")
    items += results.notes
    blocks: list[Table | Figure | str] = ["\n".join(f"- {item}" for item in items)] if items else []
    lines = []
    for found in (*groups, *([run] for run in results.others)):
        one = found[0]
        texts = (
            str(one.protocol.get("preset")),
            one.epochs.words() if one.epochs else "-",
            name_list(run.seed for run in found),
            str(one.setting.steps) if one.protocol.get("adapts", True) else "-",
            str(one.setting.views),
            f"{one.setting.lr:g}" if one.protocol.get("adapts", True) else "-",
            "-" if one.protocol.get("clip") is None else f"{one.protocol['clip']:g}",
            name_list(f"{n} {one.protocol[n]}" for n in ("average", "gate", "precision") if n in one.protocol) or "-",
            name_list(f"`{run.path}`" for run in found),
        )
        label = f"{one.method.name}, {one.label}" if one.label else one.method.name
        lines.append(Line(label + one.mark, tuple(Cell(text=text) for text in texts)))
    if lines:
        columns = ("preset", "epochs", "training seeds", "steps", "views", "lr", "clip", "besides", "files")
        blocks.append(Table("protocol", "The evaluations", "training", columns, tuple(lines)))
    return Section("Protocol", blocks)


def _versions(run: Evaluation) -> str:
    versions = run.protocol.get("versions") or {}
    return name_list(f"{name} {version}" for name, version in versions.items()) or "unknown"
