"""The paper's numbers: its two results tables, and the training curve of the authors' three runs. Needs no torch.

`tables.json` transcribes the tables of Bartler et al. (2022); its columns of Sun et al. (2020) are those that the paper
quotes. `mt3_training_curve.csv` is from the authors' logs of MT3 on CIFAR-10.
"""

import csv
import json
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mt3.results.tables import AVERAGE

ROWS = {  # of the method grid, by their name in tables.json
    "baseline_sun": "Baseline (Sun et al.)",
    "jt_rotation_sun": "JT (Sun et al.)",
    "ttt_rotation_sun": "TTT (Sun et al.)",
    "baseline": "Baseline (ours)",
    "jt": "JT (ours)",
    "ttt": "TTT (ours)",
    "mt": "MT",
    "mt3": "MT3",
}
TABLES = {"cifar10": "cifar10_c", "cifar100": "cifar100_c"}  # by data set
SEVERITY = 5  # "All our results are reported for the most severe level 5."
RUNS = 3  # of every column but those quoted from Sun et al.

# "the two corruption types Gaussian noise (gauss) and brightness (brit), which overlap with the applied batch
# augmentation B [...] should therefore be handled carefully"
OVERLAPPING = ("brightness", "gaussian_noise")

# where the paper's bold type disagrees with its printed numbers; its averages all agree with them
BOLD_NOTES = {
    "cifar10": "In the paper's defocus_blur line only TTT (ours) is bold, though JT (ours) is printed as 84.7, too.",
    "cifar100": "In the paper's gaussian_noise line only JT (ours) is bold, though MT3 is printed as 32.8, too.",
}


class Number(NamedTuple):
    """Accuracy in percent, and its standard deviation over runs where the paper gives one."""

    mean: float
    std: float | None


PublishedTable = dict[str, dict[str, Number]]  # row -> corruption or "average" -> number


def published_table(data: str | None) -> PublishedTable | None:
    """The paper's table for a data set, or None if it has none."""
    if data is None or data not in TABLES:
        return None
    values: dict[str, dict[str, dict[str, Any]]] = json.loads(_read("tables.json"))[TABLES[data]]
    return {
        ROWS[row]: {name: Number(number["mean"], number.get("std")) for name, number in numbers.items()}
        for row, numbers in values.items()
    }


def corruption_order() -> list[str]:
    """The paper's corruptions in the order of its tables."""
    table = published_table("cifar10")
    assert table is not None
    return [name for name in table["MT3"] if name != AVERAGE]


def training_curve() -> dict[str, NDArray[np.float64]]:
    """The authors' training of MT3 on CIFAR-10: column -> (runs, epochs), accuracies as shares; epoch 1 first."""
    lines = list(csv.DictReader(_read("mt3_training_curve.csv").splitlines()))
    runs = sorted({line["run"] for line in lines}, key=int)
    return {
        column: np.array([[float(line[column]) for line in lines if line["run"] == run] for run in runs])
        for column in lines[0]
        if column not in ("run", "epoch")
    }


def _read(name: str) -> str:
    return (resources.files("mt3.reporting.published") / name).read_text(encoding="utf-8")
