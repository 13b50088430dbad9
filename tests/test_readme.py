"""The pages say what is true: commands are commands, Python runs, links lead somewhere, names are in the code."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mt3.cli.arguments import given_fields
from mt3.cli.main import _parser
from mt3.config.config import make_config, preset_names
from mt3.config.methods import METHODS

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
TRAINING = ROOT / "docs" / "training.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def commands() -> list[str]:
    """Every line of the pages' shell blocks that calls mt3; dots stand for what a training needs."""
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    return sorted({line.replace("...", "--method mt3 --out x") for line in lines if line.startswith("mt3 ")})


@pytest.mark.parametrize("line", commands())
def test_every_command_is_understood(line):
    args, extra = _parser().parse_known_args(shlex.split(line, comments=True)[1:])
    assert extra == []
    if args.command in ("train", "reproduce"):
        make_config(getattr(args, "method", "mt3"), args.data, args.preset or "paper", 0, given_fields(args))


def test_every_target_of_make_is_there():
    told = {word for page in PAGES for word in re.findall(r"\bmake ([a-z-]+)\b(?= +#|`)", page.read_text())}
    assert {"demo", "test"} <= told
    (phony,) = re.findall(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert told <= set(phony.split())


@pytest.mark.parametrize("page", [README, ROOT / "docs" / "python.md", ROOT / "docs" / "methods.md"])
def test_python_runs_as_printed(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.full((40, 60, 3), 128, np.uint8)).save("photo.png")
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(block, names)
    assert names["logits"].shape[1] == 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= 120


@pytest.mark.parametrize("name", [*METHODS, *preset_names()])
def test_every_method_and_preset_is_named(name):
    assert re.search(rf"`(--method )?{name}`", TRAINING.read_text())


def test_the_walks_name_what_is_there():
    rows = re.findall(r"^\| `(\w+/\w+\.py)` ((?:`[\w.]+`(?:, )?)+) \|", ARCHITECTURE.read_text(), re.MULTILINE)
    assert len(rows) >= 25
    for file, told in rows:
        source = (ROOT / "src" / "mt3" / file).read_text()
        for name in re.findall(r"`([\w.]+)`", told):
            for part in name.split("."):
                assert re.search(rf"(def|class) {part}\b", source), (file, name)
