"""`mt3 demo`, from the command line."""

import re

import mt3
from commands import run
from mt3.corruptions import PAPER
from mt3.results.facts import read_evaluation
from mt3.studies.photos import CORRUPTIONS, JOINT, META


def test_demo_from_the_command_line(capsys, tmp_path, monkeypatch):
    """All of the demo at a size without meaning: its files and its verdicts follow from its own numbers."""
    monkeypatch.setattr("mt3.corruptions.weather.find_spec", lambda name: None)  # no photos for frost
    out = tmp_path / "demo"
    words = ["demo", "--out", out, "--images", "2", "--max-steps", "2", "--threads", "1"]
    code, printed, _ = run(capsys, *words)
    assert code == 0
    photos, digits = printed.split("SHORTENED to 2 steps a training")
    meta = read_evaluation(out / "photos" / "mt3" / "own-alone.json")
    assert (meta.corruptions, meta.protocol["images"]) == (sorted(CORRUPTIONS), 2)
    for line, row in (("MT as it is", "before"), ("MT after a step on an unrelated image", "clean_other")):
        assert re.search(rf"\| {line} +\| +\*?\*?{meta.accuracy(row):.1f}", photos)
    joint = read_evaluation(out / "photos" / "jt" / "plus-continual.json")
    assert joint.protocol["images"] == 200
    for line, row in (("as it is", "before"), ("with plus", "after")):
        assert re.search(rf"\| JT {line} +\| +\*?\*?{joint.accuracy(row):.1f}", photos)
    assert joint.gain().low > 3  # what the demo is to show first
    found = [read_evaluation(path) for path in (out / "photos" / "mt3").glob("*.json")]
    assert sorted(e.path.stem for e in found) == ["own-alone", "own-continual", "plus-continual"]
    assert f": {max(e.accuracy('after') for e in found):.1f} %" in photos
    assert ("NOT SHOWN" in photos) == (meta.gain("adaptation").low <= 0)
    assert {e.run.network for e in (*found, joint)} == {"resnet26x16"}
    chosen = read_evaluation(out / "start" / "shifts.json")
    known = [name for name in PAPER if name in chosen.corruptions]
    hardest = sorted(known, key=lambda name: chosen.accuracy("before", name))[:5]
    trained = read_evaluation(out / "evaluation-mt3.json")
    assert set(trained.corruptions) == set(hardest)
    assert ("NOT SHOWN" in digits) == (trained.gain("adaptation").low <= 0)
    assert "Without frost, whose photos are not here: run `pip install --no-deps imagecorruptions`" in digits
    assert mt3.load(out).adaptation.objective == "byol"
    again = run(capsys, *words)[1]
    assert again.split("wrote")[0] == printed.split("wrote")[0]
    code, printed, _ = run(capsys, "report", out)
    assert code == 0
    assert f"{trained.accuracy('after'):.1f}" in printed
    for data, file in (("photos", "own"), ("digits", "own"), ("photo-stream", "plus")):  # a report each
        page = (out / "report" / data / "report.md").read_text()
        assert f"data: {data}" in page
        assert f"{file}-continual.json" in page
    code, _, error = run(capsys, "report", out, "--page", tmp_path / "page.md")
    assert (code, error.count("\n")) == (2, 1)
    assert "Expected one data set with --words or --page, got" in error


def test_the_models_of_the_demo_come_with_the_package():
    assert {mt3.load(name).adaptation.objective for name in (JOINT, META)} == {"byol"}
