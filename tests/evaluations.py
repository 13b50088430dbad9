"""Small evaluation files with numbers chosen by hand, in the layout that `mt3 evaluate` writes."""

import json
from pathlib import Path
from typing import Any

from mt3.config.methods import METHODS

Rows = dict[str, dict[str, float]]  # row -> corruption -> accuracy


def make_evaluation(
    method: str,
    seed: int,
    rows: Rows,
    /,
    clean: dict[str, float] | None = None,
    severities: tuple[int, ...] = (5,),
    **protocol: Any,
) -> dict[str, Any]:
    """An evaluation of `rows`; a severity s below 5 has 5 - s points more."""
    adapts = METHODS[method].after is not None
    names = list(rows["before"])

    def entry(numbers: dict[str, float]) -> dict[str, Any]:
        found: dict[str, Any] = {
            row: {"accuracy": a, "interval": [a - 1, a + 1], "nll": 2 - a / 100, "calibration_error": a / 10}
            for row, a in numbers.items()
        }
        return found | ({"fixed": 3, "broken": 1} if adapts else {})

    average = {row: sum(values.values()) / max(1, len(values)) for row, values in rows.items()}
    result: dict[str, Any] = {
        "protocol": {
            "data": "cifar10",
            "method": method,
            "preset": "paper",
            "train_seed": seed,
            "split": "test",
            "source": {"kind": "generated", "version": "0.1.0", "seed": 0},
            "corruptions": names,
            "severities": list(severities),
            "images": 100,
            "clean": clean is not None,
            "adapts": adapts,
            "steps": 1 if adapts else 0,
            "lr": 0.1 if adapts else None,
            "views": 32,
            "clip": 10.0 if adapts else None,
            "default_adaptation": True,
            "seed": 0,
            "controls": "clean_other" in rows,
            "versions": {"mt3": "0.1.0", "numpy": "2.0"},
        }
        | protocol,
        "average": {"before": None, "after": None} | average,
        "clean": entry(clean) if clean is not None else None,
        "corruptions": [
            {"name": n, "severity": s, **entry({row: values[n] + 5 - s for row, values in rows.items()})}
            for s in severities
            for n in names
        ],
    }
    if adapts and names:
        gain = average["after"] - average["before"]
        result["gain"] = {"mean": gain, "low": gain - 2, "high": gain + 2}
    return result


def write(path: Path, value: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def write_run(
    folder: Path,
    config: dict[str, Any],
    accuracies: list[tuple[float, float, float]],
    init: str | None = None,
    **more: Any,
) -> None:
    """A run's directory with its config and metrics: (epoch, accuracy before, after); `more` is for run.json."""
    write(folder / "run.json", {"config": config, "init": init} | more)
    lines = [
        json.dumps({"step": i + 1, "epoch": e, "accuracy_before": b, "accuracy_after": a})
        for i, (e, b, a) in enumerate(accuracies)
    ]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
