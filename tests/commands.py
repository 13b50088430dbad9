"""Commands run in this process, and small trainings by the command line."""

from pathlib import Path
from typing import Any

from mt3.cli.main import main
from mt3.config.methods import METHODS

SMALL = ["--depth", "8", "--width", "4", "--projection", "8", "--test-views", "4"]


def run(capsys: Any, *words: str | Path) -> tuple[int, str, str]:
    """The exit code and what was printed."""
    code = main([str(w) for w in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def train_words(method: str, out: Path, steps: int = 3) -> list[str]:
    sizes = ["--tasks", "2", "--task-size", "4"] if method == "mt3" else ["--task-size", "8"]
    hidden = ["--hidden", "16"] if METHODS[method].hidden else []
    words = ["train", "--method", method, "--data", "digits", "--preset", "paper", "--out", str(out), "--seed", "3"]
    return [*words, "--max-steps", str(steps), "--log-every", "1", "--threads", "1", *SMALL, *hidden, *sizes]
