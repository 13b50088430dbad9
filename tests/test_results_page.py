"""Every number in RESULTS.md follows from the files in results/, by the command in the Makefile."""

import re
import shlex
from pathlib import Path

import pytest

from mt3.cli import main

ROOT = Path(__file__).parent.parent
COMMANDS = [
    line.removeprefix("\t$(BIN)/")
    for line in (ROOT / "Makefile").read_text().splitlines()
    if line.startswith("\t$(BIN)/mt3 report")
]
NUMBER = re.compile(r"(?<![\w.])[+-]?\d+\.\d+(?![\w.]*\d)")


def value_of(command: list[str], option: str) -> Path:
    return Path(command[command.index(option) + 1])


def test_make_results_writes_the_page():
    assert [value_of(shlex.split(command), "--page").as_posix() for command in COMMANDS] == ["RESULTS.md"]


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


def test_numbers_in_the_words_are_numbers_of_the_tables():
    """Accuracies and differences that the words quote stand in a table of one of the pages, as printed."""
    tables = set()
    for command in COMMANDS:
        words = shlex.split(command)
        told = (ROOT / value_of(words, "--words")).read_text().strip()
        page = (ROOT / value_of(words, "--page")).read_text()
        assert page.startswith(told)
        tables |= set(NUMBER.findall(page.removeprefix(told)))
    readme = (ROOT / "README.md").read_text().split("## Results on CIFAR-10\n")[1].split("\n## ")[0]
    for told in (readme, *((ROOT / value_of(shlex.split(command), "--words")).read_text() for command in COMMANDS)):
        told = re.sub(r"^```.*?^```|`[^`]*`", "", told, flags=re.DOTALL | re.MULTILINE)  # settings are not results
        missing = [number for number in NUMBER.findall(told) if number not in tables]
        assert not missing, f"{missing} are in no table"
