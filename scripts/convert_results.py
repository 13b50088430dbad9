"""Convert results/**/evaluation.json and run.json to the format that stores facts only; run it with the old code.

PYTHONPATH=<old clone>/src python scripts/convert_results.py results
"""

import json
import sys
from pathlib import Path
from typing import Any

from mt3.results.collect import _settings, overrides_of

from mt3.config.config import config_from_dict, warm_config

RENAMED = {"selfsup": "objective", "warm_method": "start"}
STARTS = {  # trainings from a start that another run made: the epochs before them, from the commands in RESULTS.md
    "width-4/jt": [6.0],
    "width-4/mt3": [6.0, 4.0],
    "width-8/jt": [5.0],
    "width-8/mt3": [5.0, 4.0],
}


def epochs_of(path: Path, config: dict[str, Any], started: bool) -> list[float]:
    """Of the trainings one after the other."""
    for name, before in STARTS.items():
        if name in path.as_posix():
            return [*before, config["epochs"]]
    found, whole = [], config_from_dict(config)
    while whole is not None:
        found.append(whole.epochs)
        whole = warm_config(whole) if started else None
    return found[::-1]


def about(path: Path, run: dict[str, Any], label: str) -> dict[str, Any]:
    config = run["config"]
    changed = overrides_of(_settings(config, None)) or {}
    if config["warm_method"] is None:
        changed.pop("warm_epochs", None)  # which then means nothing
    return {
        "data": config["data"],
        "method": config["method"],
        "preset": config["preset"],
        "seed": config["seed"],
        "label": label,
        "step": run["step"],
        "total_steps": run["total_steps"],
        "epochs": epochs_of(path, config, run["init"] is not None),
        "network": f"resnet{config['depth']}x{config['width']}",
        "overrides": {RENAMED.get(k, k): v for k, v in changed.items() if k != "init"},
    }


def rows_of(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        row: {"correct": packed, "nll": entry[row]["nll"], "calibration_error": entry[row]["calibration_error"]}
        for row, packed in entry["correct"].items()
    }


def convert_protocol(old: dict[str, Any], config: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    adaptation = None
    if old["adapts"]:
        adaptation = {
            "objective": config["selfsup"],
            "steps": old["steps"],
            "lr": old["lr"],
            "clip": old["clip"],
            "views": old["views"],
            "layers": old["adapt_layers"],
            "gate": old.get("gate", 1.0),
            "variant": "official" if config["head"] == "official" else "paper",
        }
    same = ("data", "split", "source", "corruptions", "severities", "images")
    return {
        "run": run,
        "label": old.get("ablation", ""),
        "sweep": old.get("sweep", False),
        **{key: old[key] for key in same},
        "first": old.get("first", 0),
        **{key: old[key] for key in ("clean", "controls", "seed")},
        "adaptation": adaptation,
        "own_adaptation": old["default_adaptation"],
        "views": old["views"],
        "precision": old.get("precision", "float32"),
        **{key: old[key] for key in ("model_hash", "versions")},
    }


def convert(root: Path) -> None:
    for path in sorted(root.rglob("run.json")):
        run = json.loads(path.read_text())
        evaluation = path.with_name("evaluation.json")
        old = json.loads(evaluation.read_text()) if evaluation.exists() else None
        label = old["protocol"].get("ablation", "") if old else path.parents[1].name.replace("-", " ")
        if "ablations" not in path.parts:
            label = ""
        config = run["config"]
        run["about"] = about(path, run, label)
        run["config"] = {RENAMED.get(k, k): v for k, v in config.items()}
        path.write_text(json.dumps(run, indent=2) + "\n")
        if old is None:
            continue
        protocol = old["protocol"]
        assert (config["method"], config["seed"]) == (protocol["method"], protocol["train_seed"]), path
        new = {
            "protocol": convert_protocol(protocol, config, run["about"]),
            "clean": rows_of(old["clean"]) if old["clean"] else None,
            "corruptions": [
                {"name": e["name"], "severity": e["severity"], "rows": rows_of(e)} for e in old["corruptions"]
            ],
        }
        evaluation.write_text(json.dumps(new, indent=2) + "\n")


if __name__ == "__main__":
    convert(Path(sys.argv[1]))
