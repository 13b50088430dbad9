"""`mt3 demo`, from the command line."""

import pytest
from PIL import Image

import mt3
from commands import run
from mt3.corruptions import PAPER
from mt3.results.facts import CLEAN, read_evaluation
from mt3.results.statistics import paired_gain


def test_demo_from_the_command_line(capsys, tmp_path, monkeypatch):
    """All of the demo at a size without meaning: its files and its verdict follow from its own numbers."""
    monkeypatch.setattr("mt3.corruptions.weather.find_spec", lambda name: None)  # no photos for frost
    words = ["demo", "--out", tmp_path / "demo", "--images", "3", "--max-steps", "2", "--threads", "1"]
    code, out, _ = run(capsys, *words)
    assert code == 0
    meta = read_evaluation(tmp_path / "demo" / "evaluation-mt3.json")
    plain = read_evaluation(tmp_path / "demo" / "plain" / "evaluation-plain.json")
    gap = paired_gain(meta.correct("after"), plain.correct("before"))
    assert gap.mean == pytest.approx(meta.accuracy("after") - plain.accuracy("before"))
    assert ("BELOW the plain one" in out) == (gap.high < 0)
    assert ("above the plain one" in out) == (gap.low > 0)
    assert ("NOT SHOWN" in out) == (meta.gain("adaptation").low <= 0)
    assert f"{meta.accuracy('after'):.1f} |" in out
    assert out.startswith("SHORTENED to 2 steps a training: these numbers say nothing about the demo's own.")
    clean = [found.accuracy("before", None, CLEAN) for found in (plain, meta)]
    assert f"| clean             | {clean[0]:11.1f} | {clean[1]:10.1f} |               - |               - |" in out
    assert meta.protocol["corruptions"] == [n for n in PAPER if n != "frost"]
    assert "Without frost, whose photos are not here: run `pip install --no-deps imagecorruptions`" in out
    assert mt3.load(tmp_path / "demo").adaptation.objective == "byol"
    if "no figure" not in out:
        assert Image.open(tmp_path / "demo" / "figure.png").size[0] > 500
    again = run(capsys, *words)[1]
    assert again.split("wrote")[0] == out.split("wrote")[0]
    code, out, _ = run(capsys, "report", tmp_path / "demo")
    assert code == 0
    averages = next(line for line in out.splitlines() if line.startswith("| average  "))
    shown = [float(cell.strip(" *")) for cell in averages.strip("|").split("|")[1:]]
    epochs = next(line for line in out.splitlines() if line.startswith("| epochs  "))  # of both runs
    assert [cell.strip() for cell in epochs.strip("|").split("|")[1:3]] == ["0.05 + 0.05", "0.05 + 0.0246914"]
    assert "Unlike the paper's, trained with B here: Baseline (ours)." in out
    averages = [plain.accuracy("before"), meta.accuracy("before"), meta.accuracy("after")]
    assert shown == pytest.approx(averages, abs=0.05)
