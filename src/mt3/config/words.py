"""The fields of a config in words, for the help of the command line. Needs no torch."""

import inspect
import re
import shutil
import textwrap
from contextlib import suppress

from mt3.config.config import CHOICES, FIELDS, Config
from mt3.support.errors import name_list

GIVEN = ("method", "data", "preset", "seed")  # fields that are arguments of their own
INDENT = 28  # columns before a phrase


def describe_fields(kind: type = Config) -> dict[str, dict[str, str]]:
    """What each field is, by group: the comments beside a dataclass's fields, so that they are written once."""
    groups: dict[str, dict[str, str]] = {}
    group = name = ""
    source = ""
    with suppress(OSError):  # installed without its source
        source = inspect.getsource(kind).partition("\n    def ")[0]
    for line in source.splitlines():
        code, _, comment = line.partition("# ")
        if field := re.match(r"    (\w+): ", line):
            name = field[1]
        if not code.strip():
            group = comment or group
        elif comment:
            groups.setdefault(group, {})[name] = comment
    return groups


def field_help() -> str:
    """The fields that `mt3 train` takes, each with the paper's value, in lines that fit the terminal."""
    lines = ["any field of the run can be set, as in --width 16 or --inner-lr 0.05; the paper's MT3 has:"]
    groups = describe_fields() or {"": dict.fromkeys(FIELDS, "")}
    width = max(60, shutil.get_terminal_size().columns - 2)
    for group, phrases in groups.items():
        phrases = {name: phrase for name, phrase in phrases.items() if name not in GIVEN}
        if phrases:
            lines += ["", *textwrap.wrap(f"{group}:", width)]
        for name, phrase in phrases.items():
            lines += _describe(name, phrase, width)
    return "\n".join(lines)


def _describe(name: str, phrase: str, width: int) -> list[str]:
    default = FIELDS[name].default
    shown = "none" if default is None else str(default).lower()
    if not all(choice in phrase for choice in CHOICES.get(name, ())):
        phrase += f" ({name_list(CHOICES[name])})"
    option = f"  --{name.replace('_', '-')} {shown}"
    gap = "  " if len(option) > INDENT - 2 else " " * (INDENT - len(option))
    return textwrap.wrap(option + gap + phrase, width, subsequent_indent=" " * INDENT)
