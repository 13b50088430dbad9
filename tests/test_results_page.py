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
INTERVAL = re.compile(r"[+-]\d+\.\d+ \[[+-]\d+\.\d+, [+-]\d+\.\d+\]")
NUMBER = re.compile(r"(?<![\w.])[+-]?\d+\.\d+(?![\w.]*\d)")


def value_of(command: list[str], option: str) -> Path:
    return Path(command[command.index(option) + 1])


def test_make_results_writes_the_pages():
    pages = ["RESULTS.md"]
    assert [value_of(shlex.split(command), "--page").as_posix() for command in COMMANDS] == pages


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


def own_tables(page: str, told: str) -> str:
    """The page without its words and without the paper's tables."""
    assert page.startswith(told.strip())
    return page.removeprefix(told.strip()).split("\n## The paper's results")[0]


def test_numbers_in_the_words_are_numbers_of_the_tables():
    """What the words quote stands in a table as it is printed there: numbers, and differences with their intervals."""
    commands = [shlex.split(command) for command in COMMANDS]
    texts = [(ROOT / value_of(words, "--words")).read_text() for words in commands]
    pages = [(ROOT / value_of(words, "--page")).read_text() for words in commands]
    tables = "\n".join(own_tables(page, told) for page, told in zip(pages, texts, strict=True))
    texts.append((ROOT / "README.md").read_text().split("## Results on CIFAR-10\n")[1].split("\n## ")[0])
    for text in texts:
        plain = re.sub(r"^```.*?^```|`[^`]*`", "", text, flags=re.DOTALL | re.MULTILINE)  # settings are no results
        plain = " ".join(plain.replace("learning rate 0.01", "").split())
        intervals, numbers = INTERVAL.findall(plain), NUMBER.findall(INTERVAL.sub("", plain))
        assert numbers
        missing = [i for i in intervals if i not in tables]
        missing += [n for n in numbers if n not in NUMBER.findall(tables)]
        assert not missing, f"{missing} are in no table"


def test_the_readmes_table_is_that_of_the_report():
    section = (ROOT / "README.md").read_text().split("## Results on CIFAR-10\n")[1].split("\n## ")[0]
    report = (ROOT / "RESULTS.md").read_text()
    for label, before in (("JT, TTT", "JT (ours), TTT (ours)"), ("MT, MT3", "MT, MT3")):
        (ours,) = re.findall(rf"\({label}\) \| (.+?) \| (.+?) \| (.+?) \|", section)
        means = [
            [cell.split(" ± ")[0].strip() for cell in line.split("|")[2:]]
            for line in report.splitlines()
            if line.startswith(f"| {before} ")
        ]
        gain, split = means[0], means[2]  # by their order on the page
        assert ours == (gain[0], split[0], gain[2])
