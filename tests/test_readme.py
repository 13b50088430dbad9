"""The commands of the README are commands."""

import re
import shlex
from pathlib import Path

import pytest

from mt3.cli.arguments import given_fields
from mt3.cli.main import _parser
from mt3.config.config import make_config, preset_names
from mt3.config.methods import METHODS

README = (Path(__file__).parent.parent / "README.md").read_text()


def commands() -> list[str]:
    """Every line of the README's shell blocks that calls mt3; dots stand for what a training needs."""
    lines = [line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
    return [line.replace("...", "--method mt3 --out x") for line in lines if line.startswith("mt3 ")]


@pytest.mark.parametrize("line", commands())
def test_every_command_is_understood(line):
    args, extra = _parser().parse_known_args(shlex.split(line, comments=True)[1:])
    assert extra == []
    if args.command in ("train", "reproduce"):
        make_config(getattr(args, "method", "mt3"), args.data, args.preset or "paper", 0, given_fields(args))


@pytest.mark.parametrize("name", [*METHODS, *preset_names()])
def test_every_method_and_preset_is_named(name):
    assert re.search(rf"`(--method )?{name}`", README)
