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
