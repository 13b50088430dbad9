"""The error that a user's input raises: one sentence, exit code 2 on the command line."""


class InputError(ValueError):
    """Something the user gave is not what was expected; the message says what to do."""


def name_list(names: object) -> str:
    """Join names for an error message: `a, b, c`."""
    return ", ".join(str(n) for n in names)  # type: ignore[attr-defined]


def one_of(kind: str, value: str, valid: object) -> str:
    """Word the refusal of an unknown name, listing the valid ones."""
    return f"Unknown {kind} '{value}': expected one of {name_list(valid)}."
