"""The error that a user's input raises: one sentence, exit code 2 on the command line."""

import difflib
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

ECHO, WORD, SENTENCE = 60, 200, 2000  # characters shown of a value, of a path or another word, of a message
NAME = 255  # characters of a name, as of a file's
ALIKE = 0.65  # difflib's ratio from which a name is taken for a misspelt one


class InputError(ValueError):
    """Something the user gave is not what was expected; the message says what to do.

    Whatever text a user or a file had put into it, the message is one line of bounded length.
    """

    def __init__(self, message: str) -> None:
        super().__init__(shown(" ".join(shown(word, WORD) for word in message.split(" ")), SENTENCE))


class RankLostError(Exception):
    """Another process of the same training ended, which this one cannot do without; exit code 1."""


def shown(value: object, limit: int = ECHO) -> str:
    """What a message repeats of a user's text: without what a terminal would obey, and of a long one both ends."""
    text = str(value)
    if len(text) > 2 * limit:  # before a long one is gone through letter by letter
        text = text[:limit] + text[-limit:]
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if len(text) <= limit:
        return text
    end = limit // 3
    return f"{text[: limit - end - 3]}...{text[-end:]}"


def is_name(text: str) -> bool:
    """Whether a text can stand in a table: one line that a terminal only shows, and not a long one."""
    return len(text) <= NAME and text.isprintable() and bool(text.strip())


def name_list(names: object) -> str:
    """Join names for an error message: `a, b, c`."""
    return ", ".join(str(n) for n in names)  # type: ignore[attr-defined]


def one_of(kind: str, value: object, valid: Iterable[object]) -> str:
    """Word the refusal of an unknown name, with the one that was probably meant, listing the valid ones."""
    names = [str(name) for name in valid]
    return f"Unknown {kind} '{shown(value)}'{suggest(value, names)}: expected one of {name_list(names)}."


def suggest(value: object, valid: Iterable[str]) -> str:
    """The valid name nearest to a misspelt one, in words; nothing where none is near."""
    names = {_plain(name): name for name in valid}
    close = difflib.get_close_matches(_plain(str(value)), names, n=1, cutoff=ALIKE)
    return f" (did you mean '{names[close[0]]}'?)" if close else ""


def _plain(name: str) -> str:
    """Without what is often written otherwise: capitals, and the dashes before an option and within a name."""
    return name.casefold().lstrip("-").replace("-", "_")


def check_number(name: str, value: Any, low: float, high: float | None = None) -> None:
    """Refuse what is not a number from `low` to `high`; if `low` is whole, what is not a whole number."""
    whole = isinstance(low, int)
    is_number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if not is_number or not value >= low or (high is not None and not value <= high):
        words, end = "a whole number" if whole else "a number", "on" if high is None else f"to {high}"
        raise InputError(f"Expected {name} to be {words} from {low} {end}, got {shown(repr(value))}.")
