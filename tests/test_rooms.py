"""The plan of the house: each room imports only from rooms above it."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "mt3"
ROOMS = (  # from above to below
    "support",
    "config",
    "data",
    "corruptions",
    "networks",
    "objectives",
    "models",
    "adaptation",
    "training",
    "results",
    "evaluation",
    "reporting",
    "studies",
    "service",
    "cli",
)


def imports(text: str) -> set[str]:
    """The modules of mt3 that a file imports anywhere, in functions too."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "mt3":
            found |= {f"mt3.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return {name for name in found if name.startswith(("mt3.", "."))}


def wrong_imports(room: str, text: str) -> list[str]:
    allowed = ROOMS[: ROOMS.index(room) + 1]
    return sorted(name for name in imports(text) if name.split(".")[1] not in allowed)


def test_every_folder_with_code_is_a_room():
    folders = {path.parent.relative_to(SOURCE).parts[0] for path in SOURCE.glob("*/**/*.py")}
    assert folders == set(ROOMS)
    assert sorted(path.name for path in SOURCE.glob("*.py")) == ["__init__.py", "__main__.py"]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_rooms_above_it(room):
    wrong = {
        str(path.relative_to(SOURCE)): wrong_imports(room, path.read_text()) for path in (SOURCE / room).rglob("*.py")
    }
    assert {path: names for path, names in wrong.items() if names} == {}


def test_a_wrong_import_is_found():
    assert wrong_imports("models", "def f():\n    from mt3.training.loop import train") == ["mt3.training.loop"]
    assert wrong_imports("models", "from mt3 import corruptions, studies") == ["mt3.studies"]
    assert wrong_imports("models", "from ..cli import main") == ["..cli"]
    assert wrong_imports("models", "from mt3.objectives.augment import rotate\nimport torch") == []


MAX_PARAMETERS = 7  # more means that a value is missing
MAX_CONSTRUCTOR = 10
MAX_LINES = 350


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[str]:
    """The names of a function's parameters, but for the object that a method belongs to."""
    given = function.args
    named = [*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg]
    return [p.arg for p in named if p is not None and p.arg not in ("self", "cls")]


def too_long(path: str, text: str) -> list[str]:
    """What of a file is longer than the house allows."""
    lines = len(text.splitlines())
    found = [f"{path} has {lines} lines"] if lines > MAX_LINES else []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            name = getattr(node, "name", "lambda")
            most = MAX_CONSTRUCTOR if name == "__init__" else MAX_PARAMETERS
            count = len(parameters(node))
            if count > most:
                found.append(f"{path}: {name} has {count} parameters")
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_files_and_functions_are_short(room):
    files = {str(path.relative_to(SOURCE)): path.read_text() for path in sorted((SOURCE / room).rglob("*.py"))}
    assert [words for path, text in files.items() for words in too_long(path, text)] == []


def test_what_is_too_long_is_found():
    assert too_long("a.py", "x = 1\n" * 350) == []
    assert too_long("a.py", "x = 1\n" * 351) == ["a.py has 351 lines"]
    method = "class A:\n    def {}(self, a, b, /, c, d, *rest, e, {}**more): ...\n"
    assert too_long("a.py", method.format("f", "")) == []
    assert too_long("a.py", method.format("f", "g, ")) == ["a.py: f has 8 parameters"]
    assert too_long("a.py", method.format("__init__", "g, h, i, ")) == []
    assert too_long("a.py", method.format("__init__", "g, h, i, j, ")) == ["a.py: __init__ has 11 parameters"]
    assert too_long("a.py", "f = lambda a, b, c, d, e, f, g, h: 1\n") == ["a.py: lambda has 8 parameters"]
