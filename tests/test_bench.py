"""Benchmarks: what is counted, and that the numbers shown follow from the times measured."""

import itertools
import json

import pytest

from mt3 import bench
from mt3.bench import alternate, bench_corruptions, corruptions_summary
from mt3.cli import main
from mt3.corruptions import PAPER, available
from mt3.data import load_digits
from mt3.errors import InputError


def test_rounds_alternate_and_the_first_only_warms_up(monkeypatch):
    clock = itertools.accumulate(itertools.count(1))  # 1, 3, 6, 10, ...: every interval is longer than the one before
    monkeypatch.setattr(bench.time, "process_time", lambda: next(clock))
    calls: list[str] = []
    times = alternate({name: lambda name=name: calls.append(name) for name in "ab"}, rounds=2)
    assert calls == ["a", "b"] * 3
    assert times == {"a": [6, 10], "b": [8, 12]}
    with pytest.raises(InputError, match="at least one round, got 0"):
        alternate({}, 0)


@pytest.fixture
def result(monkeypatch) -> dict:
    """Every corruption takes 10 s in the first round, 20 in the second, 60 in the third; nothing is computed."""
    monkeypatch.setattr(
        bench, "alternate", lambda candidates, rounds: {name: [10.0, 20.0, 60.0] for name in candidates}
    )
    return bench_corruptions(load_digits(), images=100, severity=3, rounds=3)


def test_times_become_medians_with_their_spread(result):
    assert [entry["name"] for entry in result["corruptions"]] == list(available())
    entry = result["corruptions"][0]
    assert entry["ms_per_image"] == {"median": 200, "min": 100, "max": 600}
    assert entry["images_per_second"] == pytest.approx({"median": 5, "min": 100 / 60, "max": 10})
    missing = [name for name in PAPER if name not in available()]
    there = 15 - len(missing)
    assert result["paper"]["ms_per_image"] == {"median": 200 * there, "min": 100 * there, "max": 600 * there}
    assert result["paper"]["missing"] == missing
    assert (result["images"], result["severity"], result["rounds"], result["data"]) == (100, 3, 3, "digits")


def test_summary_shows_the_table_and_the_sum(result):
    result["paper"] = {"ms_per_image": {"median": 1.5, "min": 1.25, "max": 2.0}, "missing": ["snow", "frost"]}
    lines = corruptions_summary(result).splitlines()
    assert lines[0] == "100 images of digits at severity 3, one core: median of 3 rounds, by processor time"
    assert [cell.strip() for cell in lines[4].strip("|").split("|")] == [
        "gaussian_noise", "5", "200.000", "100.000..600.000",
    ]  # fmt: skip
    assert lines[-1] == "13 of the paper's 15 together: 1.500 ms/image (1.250..2.000); without snow, frost"
    result["paper"]["missing"] = []
    assert corruptions_summary(result).endswith("15 of the paper's 15 together: 1.500 ms/image (1.250..2.000)")


def test_real_times_are_positive_and_ordered(capsys, tmp_path):
    words = ["bench", "corruptions", "--images", "3", "--rounds", "2", "--json", str(tmp_path / "b.json")]
    assert main(words) == 0
    result = json.loads((tmp_path / "b.json").read_text())
    for entry in (*result["corruptions"], result["paper"]):
        times = entry["ms_per_image"]
        assert 0 < times["min"] <= times["median"] <= times["max"]
    out = capsys.readouterr().out
    assert out.startswith(corruptions_summary(result))
    assert out.endswith(f"wrote {tmp_path / 'b.json'}\n")
    with pytest.raises(InputError, match="at least one image to measure on, got 0; raise --images"):
        bench_corruptions(load_digits(), images=0)
