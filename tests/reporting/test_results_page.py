"""Accuracies and differences on the pages of results follow from the files there, by the commands in the Makefile."""

import re
import shlex
from pathlib import Path

import pytest

from mt3.cli.main import main
from mt3.reporting.collect import collect
from mt3.reporting.page import fill_words, report_sections, tables_in

ROOT = Path(__file__).parents[2]
WORDS = ROOT / "results" / "words"
OFFICIAL = ROOT / "results" / "cifar10-official"
WIDENED = ("lowest - range", "highest + range")
COMMANDS = [
    line.removeprefix("\t$(BIN)/")
    for line in (ROOT / "Makefile").read_text().splitlines()
    if line.startswith("\t$(BIN)/mt3 report")
]


def value_of(command: list[str], option: str) -> Path:
    return Path(command[command.index(option) + 1])


def test_make_results_writes_the_pages():
    stronger = (f"cifar10-workstation{part}" for part in ("", "-step", "-held-out"))
    names = (
        "methods-1000",
        "cifar10-cpu",
        "cifar10-cpu-10000",
        *stronger,
        *(f"cifar10-width-32-{part}" for part in ("step", "all")),
    )
    names += ("cifar10-official",)
    pages = ["RESULTS.md", *(f"results/{name}/README.md" for name in names)]
    assert [value_of(shlex.split(command), "--page").as_posix() for command in COMMANDS] == pages


def test_the_first_epoch_is_that_of_the_authors():
    """Every mean lies in the range of the authors' three runs, widened by its own width on either side."""
    (table,) = [t for t in tables_in(report_sections(collect([OFFICIAL]), published=False)) if t.name == "epochs"]
    assert len(table.lines) == 5
    for line in table.lines:
        here, low, high = (line.cells[table.columns.index(c)].value for c in ("here", *WIDENED))
        assert low <= here <= high, line.label


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_is_what_the_command_writes(command, tmp_path, monkeypatch, capsys):
    """In a copy of results/, so that a page that is out of date is found and nothing is overwritten."""
    words = shlex.split(command)
    page, out = value_of(words, "--page"), value_of(words, "--out")
    for path in [p for p in (ROOT / "results").rglob("*") if p.suffix in (".json", ".jsonl", ".md")]:
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    assert main(words[1:]) == 0, capsys.readouterr().err
    for written in (page, out / "table.csv", out / "table.tex"):
        assert written.read_text() == (ROOT / written).read_text(), f"{written}: run `make results`"


@pytest.mark.parametrize("command", COMMANDS)
def test_words_take_their_numbers_from_the_tables(command):
    """Other than as a reference to a table, a number with decimals stands only in code: it is a setting."""
    told = (ROOT / value_of(shlex.split(command), "--words")).read_text()
    assert told.count("{{") >= 4
    told = re.sub(r"^```.*?^```|\{\{.*?\}\}|`[^`]*`", "", told, flags=re.DOTALL | re.MULTILINE)
    assert not re.findall(r"\d+\.\d+", told)


@pytest.mark.parametrize(
    ("words", "results", "where"),
    [
        ("readme-plus.md", "methods-1000", "README.md"),
        ("card-jt-plus.md", "methods-1000", "src/mt3/weights/cifar10-jt/README.md"),
        ("card-mt3-plus.md", "methods-1000", "src/mt3/weights/cifar10-mt3/README.md"),
        ("card-mt3-online.md", "methods", "src/mt3/weights/cifar10-mt3/README.md"),
        ("card-supervised-plus.md", "methods-1000", "src/mt3/weights/cifar10-supervised/README.md"),
        ("card-jt-ttt.md", "methods", "src/mt3/weights/cifar10-jt/README.md"),
        ("card-supervised-memo.md", "methods", "src/mt3/weights/cifar10-supervised/README.md"),
        ("card-supervised-memo-default.md", "cifar10-workstation-step", "src/mt3/weights/cifar10-supervised/README.md"),
        ("readme.md", "cifar10-cpu", "README.md"),
        ("readme-width-32.md", "cifar10-width-32-all", "README.md"),
        ("readme-width-32-step.md", "cifar10-width-32-step", "README.md"),
        ("readme-all.md", "cifar10-workstation", "README.md"),
        ("card-mt3-all.md", "cifar10-workstation", "src/mt3/weights/cifar10-mt3/README.md"),
        ("readme-step.md", "cifar10-workstation-step", "README.md"),
        ("readme-memo.md", "cifar10-workstation-step", "README.md"),
        ("card-mt3.md", "cifar10-workstation-step", "src/mt3/weights/cifar10-mt3/README.md"),
    ],
)
def test_numbers_told_elsewhere_are_those_of_the_report(words, results, where):
    """README and the model's card hold each paragraph of these words, whatever their lines."""
    tables = tables_in(report_sections(collect([ROOT / "results" / results]), published=True))
    filled = fill_words((WORDS / words).read_text(), tables)
    page = " ".join((ROOT / where).read_text().split())
    for paragraph in filled.split("\n\n"):
        assert " ".join(paragraph.split()) in page


def test_the_preset_expects_what_was_found():
    (expected,) = re.findall(
        r"# Expected: (.*?)\n\n", (ROOT / "src/mt3/config/presets/cpu.toml").read_text(), re.DOTALL
    )
    tables = tables_in(report_sections(collect([ROOT / "results" / "cifar10-cpu"]), published=True))
    rows = ["JT (ours)", "TTT (ours)", "MT", "MT3", "Baseline (ours)"]
    rows += ["Baseline (Sun et al.)", "JT (Sun et al.)", "TTT (Sun et al.)"]
    found = [fill_words(f"{{{{accuracy | average | {row} | mean}}}}", tables) for row in rows]
    assert re.findall(r"\d+\.\d+", expected) == found
