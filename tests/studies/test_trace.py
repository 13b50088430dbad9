"""The step along a training: snapshots evaluated with controls, and the cosines of their steps."""

from dataclasses import replace

import pytest
import torch

import mt3
from mt3.cli.main import main
from mt3.data import load_dataset
from mt3.evaluation.protocol import Protocol, TestImages
from mt3.models.store import save_model
from mt3.reporting.trace import read_trace
from mt3.results.facts import read_evaluation
from mt3.studies.trace import Snapshot, find_snapshots, trace
from mt3.support.files import read_json, write_json

SMALL = ["--depth", "8", "--width", "4", "--hidden", "6", "--projection", "5", "--start", "none", "--test-views", "3"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("trace") / "run"
    words = ["train", "--method", "mt3", "--data", "digits", *SMALL, "--tasks", "2", "--task-size", "2"]
    assert main([*words, "--max-steps", "4", "--snapshot-every", "2", "--out", str(out)]) == 0
    return out


def test_every_snapshot_is_a_point_with_its_accuracies_and_cosines(run, capsys):
    words = ["trace", str(run), "--limit", "5", "--corruptions", "spatter"]
    assert main(words) == 0
    assert "cosine of images" in capsys.readouterr().out
    points = read_json(run / "trace.json")["trace"]
    assert [point["step"] for point in points] == [0, 2, 4]
    assert [point["evaluation"] for point in points] == [f"step-0000000{n}.json" for n in (0, 2, 4)]
    assert (run / "trace.png").read_bytes().startswith(b"\x89PNG")
    model = mt3.load(run / "snapshots" / "step-00000004")
    images = torch.from_numpy(load_dataset("digits").test_images[:16]).permute(0, 3, 1, 2)
    steps = []
    for adapted in mt3.Adapter(model).adapt(images):
        moved = [(p - q).flatten() for p, q in zip(adapted.params.values(), model.parameters(), strict=True)]
        steps.append(torch.nn.functional.normalize(torch.cat(moved).detach(), dim=0))
    pairs = [float(steps[i] @ steps[j]) for i in range(16) for j in range(16) if i != j]
    assert points[2]["cosine_images"] == pytest.approx(sum(pairs) / len(pairs), abs=1e-4)
    assert points[2]["cosine_images"] < points[2]["cosine_draws"] <= 1


def test_a_report_has_the_trace_and_not_its_evaluations(run, tmp_path):
    words = ["trace", str(run), "--limit", "6", "--corruptions", "fog", "--out", str(tmp_path / "fog.json")]
    assert main(words) == 0
    (tmp_path / "fog.png").unlink()
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "report")]) == 0
    page = (tmp_path / "report" / "report.md").read_text()
    found = read_evaluation(tmp_path / "fog" / "step-00000004.json")
    before, other, after = (f"{found.accuracy(row):.1f}" for row in ("before", "clean_other", "after"))
    (line,) = [line for line in page.splitlines() if line.startswith("| 4 ")]
    assert [cell.strip() for cell in line.split("|")[2:5]] == [before, other, after]
    assert next(word for word in line.split() if word[0] in "+-") == f"{found.gain().mean:+.1f}"
    assert "6 images under each of fog, severity 5" in page
    assert "Before and after adapting" not in page
    assert (tmp_path / "report" / "trace-fog.png").exists()


def test_a_report_keeps_what_only_lies_beside_a_trace(run, tmp_path, monkeypatch, capsys):
    """An evaluation in the folder of a trace stays, and a trace that was interrupted is told of."""
    words = ["--limit", "4", "--corruptions", "fog"]
    assert main(["trace", str(run), *words, "--out", str(tmp_path / "mt3.json")]) == 0
    assert main(["evaluate", str(run), *words, "--out", str(tmp_path / "mt3" / "own.json")]) == 0
    monkeypatch.chdir(tmp_path)
    assert main(["report", ".", "--out", "both"]) == 0
    page = (tmp_path / "both" / "report.md").read_text()
    assert "## Before and after adapting" in page
    assert "## The step along a training" in page
    assert "mt3 (4 of " in page  # the training is not finished
    assert main(["report", "mt3.json", str(tmp_path / "mt3"), "--out", "spelt"]) == 0
    assert (tmp_path / "spelt" / "table.csv").read_text() == (tmp_path / "both" / "table.csv").read_text()
    (tmp_path / "mt3.json").unlink()
    assert main(["report", "mt3", "--out", "left"]) == 0
    page = (tmp_path / "left" / "report.md").read_text()
    assert "points in mt3 that no trace has" in page
    assert "## The step along a training" not in page


def test_points_of_other_protocols_are_refused(run, tmp_path, capsys):
    for name, limit in (("t", "4"), ("other", "5")):
        words = ["trace", str(run), "--limit", limit, "--corruptions", "fog", "--out", str(tmp_path / f"{name}.json")]
        assert main(words) == 0
    (tmp_path / "other" / "step-00000002.json").replace(tmp_path / "t" / "step-00000002.json")
    assert main(["report", str(tmp_path / "t.json"), "--out", str(tmp_path / "report")]) == 2
    assert "unlike protocols" in capsys.readouterr().err


def test_names_of_traces_are_those_of_no_other_table_and_fit_into_a_link(run, tmp_path):
    words = ["trace", str(run), "--limit", "4", "--corruptions", "fog", "--out"]
    for name in ("bars.json", "a (1).json", "b/trace.json", "c/trace.json"):
        (tmp_path / "all" / name).parent.mkdir(parents=True, exist_ok=True)
        assert main([*words, str(tmp_path / "all" / name)]) == 0
    assert main(["report", str(tmp_path / "all"), "--out", str(tmp_path / "report")]) == 0
    names = {path.stem for path in (tmp_path / "report").glob("*.png")}
    assert names == {"trace-bars", "trace-a-1-", "trace", "trace-2"}


def test_all_points_take_the_step_of_the_last(run, tmp_path):
    images, protocol = TestImages(load_dataset("digits")), Protocol(("fog",), limit=4)
    snapshots = find_snapshots(run)
    slow = tmp_path / "slow"
    model = mt3.load(snapshots[0].path)
    model.adaptation = replace(model.adaptation, lr=model.adaptation.lr / 8)
    save_model(model, slow)
    found = trace([Snapshot(0, slow), *snapshots[1:]], images, protocol, tmp_path / "points.json")
    assert [point.found.setting.lr for point in found.points] == [mt3.load(snapshots[-1].path).adaptation.lr] * 3


def test_the_step_can_be_another_than_the_last_one(run, tmp_path, capsys):
    out = tmp_path / "trace.json"
    words = ["trace", str(run), "--limit", "4", "--corruptions", "fog", "--out", str(out)]
    assert main([*words, "--lr", "0.5", "--views", "2"]) == 0
    assert [point.found.setting for point in read_trace(out).points] == [(1, 2, 0.5)] * 3
    assert "steps=1, lr=0.5, views=2" in capsys.readouterr().out
    assert main([*words, "--lr", "-1"]) == 2


@pytest.mark.parametrize("harm", ["no points", "a point without a cosine", "an evaluation that is gone"])
def test_a_trace_that_is_not_whole_is_refused_in_one_sentence(run, tmp_path, harm, capsys):
    images, protocol = TestImages(load_dataset("digits")), Protocol(("fog",), limit=4)
    out = tmp_path / "points.json"
    trace(find_snapshots(run), images, protocol, out)
    points = read_json(out)["trace"]
    if harm == "no points":
        points = []
    elif harm == "a point without a cosine":
        del points[0]["cosine_draws"]
    else:
        (tmp_path / "points" / points[0]["evaluation"]).unlink()
    write_json(out, {"trace": points})
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "report")]) == 2
    told = capsys.readouterr().err
    assert "not whole" in told or "not a whole trace" in told
    assert not (tmp_path / "report").exists()


def test_a_step_without_heads_can_be_followed_from_a_start_that_has_none(run, tmp_path, capsys):
    start, out = tmp_path / "start", tmp_path / "run"
    words = ["train", "--data", "digits", "--preset", "demo", "--depth", "8", "--width", "4", "--hidden", "6"]
    assert main([*words, "--method", "supervised", "--max-steps", "1", "--out", str(start)]) == 0
    words += ["--objective", "marginal-entropy", "--task-images", "1", "--tasks", "2", "--task-size", "2"]
    words += ["--gamma", "0", "--init", str(start), "--max-steps", "2", "--snapshot-every", "1", "--out", str(out)]
    assert main([*words, "--method", "mt3"]) == 0
    assert main(["trace", str(out), "--limit", "4", "--corruptions", "fog"]) == 0
    assert [point["step"] for point in read_json(out / "trace.json")["trace"]] == [0, 1, 2]
    images, protocol = TestImages(load_dataset("digits")), Protocol(("fog",), limit=4)
    with pytest.raises(mt3.InputError, match="has no heads of byol to adapt with"):
        trace([Snapshot(0, start), find_snapshots(run)[-1]], images, protocol, tmp_path / "t.json")


def test_folders_of_other_names_are_passed_over(tmp_path):
    for name in ("step-abc", "step-00000010", "step-9"):
        (tmp_path / "snapshots" / name).mkdir(parents=True)
    assert [snapshot.step for snapshot in find_snapshots(tmp_path)] == [9, 10]


def test_what_has_no_snapshots_or_no_step_is_refused(run, tmp_path, capsys):
    assert main(["trace", str(tmp_path / "nosuch")]) == 2
    assert "Expected a run, but" in capsys.readouterr().err
    assert main(["trace", str(run), "--first", "9999", "--out", str(tmp_path / "new" / "t.json")]) == 2
    assert not (tmp_path / "new").exists()
    with pytest.raises(mt3.InputError, match="at least two snapshots"):
        find_snapshots(tmp_path)
    images, protocol = TestImages(load_dataset("digits")), Protocol(("fog",), limit=4)
    with pytest.raises(mt3.InputError, match=r"name ending in \.json"):
        trace([], images, protocol, tmp_path / "points")
    with pytest.raises(mt3.InputError, match="no step to follow"):
        trace([Snapshot(0, "cifar10-supervised")], images, protocol, tmp_path / "points.json")
    with pytest.raises(mt3.InputError, match="is another network than"):
        trace([Snapshot(0, "cifar10-mt3"), *find_snapshots(run)], images, protocol, tmp_path / "points.json")
    (tmp_path / "picture.png").mkdir()
    with pytest.raises(mt3.InputError, match=r"picture\.png: it is a directory"):
        trace(find_snapshots(run), images, protocol, tmp_path / "picture.json")
    assert not list(tmp_path.rglob("step-*"))
