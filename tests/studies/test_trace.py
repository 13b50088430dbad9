"""The step along a training: snapshots evaluated with controls, and the cosines of their steps."""

import pytest
import torch

import mt3
from mt3.cli.main import main
from mt3.data import load_dataset
from mt3.evaluation.protocol import Protocol, TestImages
from mt3.results.facts import read_evaluation
from mt3.studies.trace import Snapshot, find_snapshots, trace
from mt3.support.files import read_json

SMALL = ["--depth", "8", "--width", "4", "--hidden", "6", "--projection", "5", "--start", "none", "--test-views", "3"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("trace") / "run"
    words = ["train", "--method", "mt3", "--data", "digits", *SMALL, "--tasks", "2", "--task-size", "2"]
    assert main([*words, "--max-steps", "4", "--snapshot-every", "2", "--out", str(out)]) == 0
    return out


def test_every_snapshot_is_a_point_with_its_accuracies_and_cosines(run, capsys):
    words = [
        "trace",
        str(run),
        "--limit",
        "5",
        "--corruptions",
        "spatter",
        "--start",
        str(run / "snapshots/step-00000002"),
    ]
    assert main(words) == 0
    assert "cosine of images" in capsys.readouterr().out
    points = read_json(run / "trace.json")["points"]
    assert [point["step"] for point in points] == [0, 2, 4]
    assert {**points[0], "step": 2} == points[1]
    assert (run / "trace.png").read_bytes().startswith(b"\x89PNG")
    found = read_evaluation(run / "trace" / "step-00000004.json")
    assert points[2]["accuracy"]["clean_other"] == found.accuracy("clean_other")
    assert points[2]["gain"][0] == pytest.approx(found.accuracy("after") - found.accuracy("before"))
    model = mt3.load(run / "snapshots" / "step-00000004")
    images = torch.from_numpy(load_dataset("digits").test_images[:16]).permute(0, 3, 1, 2)
    steps = []
    for adapted in mt3.Adapter(model).adapt(images):
        moved = [(p - q).flatten() for p, q in zip(adapted.params.values(), model.parameters(), strict=True)]
        steps.append(torch.nn.functional.normalize(torch.cat(moved).detach(), dim=0))
    pairs = [float(steps[i] @ steps[j]) for i in range(16) for j in range(16) if i != j]
    assert points[2]["cosine_images"] == pytest.approx(sum(pairs) / len(pairs), abs=1e-4)
    assert points[2]["cosine_images"] < points[2]["cosine_draws"] <= 1


def test_folders_of_other_names_are_passed_over(tmp_path):
    for name in ("step-abc", "step-00000010", "step-9"):
        (tmp_path / "snapshots" / name).mkdir(parents=True)
    assert [snapshot.step for snapshot in find_snapshots(tmp_path, None)] == [9, 10]


def test_what_has_no_snapshots_or_no_step_is_refused(run, tmp_path):
    with pytest.raises(mt3.InputError, match="at least two snapshots"):
        find_snapshots(tmp_path, None)
    images, protocol = TestImages(load_dataset("digits")), Protocol(("fog",), limit=4)
    with pytest.raises(mt3.InputError, match=r"name ending in \.json"):
        trace([], images, protocol, tmp_path / "points")
    with pytest.raises(mt3.InputError, match="no step to follow"):
        trace([Snapshot(0, "cifar10-supervised")], images, protocol, tmp_path / "points.json")
