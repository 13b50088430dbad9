"""Results of three methods in one folder."""

from pathlib import Path

import pytest

from evaluations import BASELINE, JT, MT3, make_evaluation, write


@pytest.fixture
def folder(tmp_path) -> Path:
    for method, runs in (("mt3", MT3), ("jt", JT), ("baseline", BASELINE)):
        for seed, rows in enumerate(runs):
            clean = {row: 90.0 + seed + (2 if row == "after" else 0) for row in rows}
            write(tmp_path / "results" / f"{method}-{seed}.json", make_evaluation(method, seed, rows, clean))
    return tmp_path / "results"
