"""Small evaluation files with accuracies chosen by hand, in the layout that `mt3 evaluate` writes."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from mt3.config.config import make_config
from mt3.reporting.collect import collect
from mt3.reporting.page import report_sections, tables_in
from mt3.results.statistics import pack_correct
from mt3.results.tables import Table

Rows = dict[str, dict[str, float]]  # row -> corruption -> accuracy


def accuracies(*values: float) -> dict[str, float]:
    return dict(zip(("gaussian_noise", "fog", "contrast"), values, strict=True))


# three seeds; averages of the before row 50, 53, 56 and of the after row 58, 60, 65
MT3: list[Rows] = [
    {"before": accuracies(50, 40, 60), "after": accuracies(60, 44, 70)},
    {"before": accuracies(53, 43, 63), "after": accuracies(61, 46, 73)},
    {"before": accuracies(56, 46, 66), "after": accuracies(66, 50, 79)},
]
JT: list[Rows] = [{"before": accuracies(58, 45, 62), "after": accuracies(57, 45, 60)}]
BASELINE: list[Rows] = [{"before": accuracies(40, 44, 36)}, {"before": accuracies(44, 44, 40)}]
UNFINISHED = {"step": 150, "total_steps": 3000}
MARK = " (150 of 3,000 steps)"


def make_run(method: str = "mt3", seed: int = 0, **changes: Any) -> dict[str, Any]:
    """What a run is about: finished, of the preset `paper`, and without a label."""
    preset = make_config(method, "cifar10", "paper")
    run = {"data": "cifar10", "method": method, "preset": "paper", "seed": seed, "label": "", "step": 3000}
    run |= {"total_steps": 3000, "epochs": [preset.epochs], "network": f"resnet{preset.depth}x{preset.width}"}
    return run | {"overrides": {}} | changes


def make_evaluation(
    method: str,
    seed: int,
    rows: Rows,
    /,
    clean: dict[str, float] | None = None,
    severities: tuple[int, ...] = (5,),
    run: dict[str, Any] | None = None,
    adaptation: dict[str, Any] | None = None,
    **protocol: Any,
) -> dict[str, Any]:
    """An evaluation of `rows`, in each of which the first images are right; a severity s below 5 has 5 - s points more.

    `run`, `adaptation` and `protocol` hold what departs from a finished run of the preset `paper`.
    """
    images, names = protocol.get("images", 1000), list(rows["before"])
    settings = {"objective": "byol", "steps": 1, "lr": 0.1, "clip": 10.0, "views": 32, "layers": "all", "gate": 1.0}
    adapts = "after" in rows

    def facts(numbers: dict[str, float]) -> dict[str, Any]:
        found = {}
        for row, a in numbers.items():
            right = round(a * images / 100)
            assert abs(100 * right / images - a) < 1e-9, f"{a} % of {images} images"
            correct = pack_correct(np.arange(images) < right)
            found[row] = {"correct": correct, "nll": 2 - a / 100, "calibration_error": a / 10}
        return found

    return {
        "protocol": {
            "run": make_run(method, seed) | (run or {}),
            "label": "",
            "sweep": False,
            "data": "cifar10",
            "split": "test",
            "source": {"kind": "generated", "version": "0.1.0", "seed": 0},
            "corruptions": names,
            "severities": list(severities),
            "images": images,
            "first": 0,
            "clean": clean is not None,
            "controls": "clean_other" in rows,
            "seed": 0,
            "adaptation": settings | {"variant": "paper"} | (adaptation or {}) if adapts else None,
            "own_adaptation": True,
            "views": 32,
            "precision": "float32",
            "model_hash": "0",
            "versions": {"mt3": "0.1.0", "numpy": "2.0"},
        }
        | protocol,
        "clean": facts(clean) if clean is not None else None,
        "corruptions": [
            {"name": n, "severity": s, "rows": facts({row: values[n] + 5 - s for row, values in rows.items()})}
            for s in severities
            for n in names
        ],
    }


def keep_answers(evaluation: dict[str, Any], answers: dict[str, np.ndarray]) -> dict[str, Any]:
    """Give an evaluation other answers (corruptions, images)."""
    for number, entry in enumerate(evaluation["corruptions"]):
        for row, a in answers.items():
            entry["rows"][row]["correct"] = pack_correct(a[number])
    return evaluation


def write(path: Path, value: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def write_run(
    folder: Path, about: dict[str, Any], metrics: list[tuple[float, float, float]], start: str | None = None
) -> None:
    """A run's directory: what it is about, and metrics of (epoch, accuracy before, after)."""
    write(folder / "run.json", {"config": {"start": start}, "about": about})
    lines = [
        json.dumps({"step": i + 1, "epoch": e, "accuracy_before": b, "accuracy_after": a})
        for i, (e, b, a) in enumerate(metrics)
    ]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def tables_of(folder: Path, published: bool = False) -> dict[str, Table]:
    return {table.name: table for table in tables_in(report_sections(collect([folder]), published))}


def words(table: Table) -> dict[str, dict[str, str]]:
    """Line -> column -> what is printed, with a star if it is bold."""
    return {
        line.label: {c: ("*" if x.best else "") + x.words() for c, x in zip(table.columns, line.cells, strict=True)}
        for line in table.lines
    }
