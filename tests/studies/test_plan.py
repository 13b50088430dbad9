"""The plan of a study: its parts, its estimates and what it refuses before any work."""

import pytest

from commands import run
from mt3.evaluation.protocol import TestImages
from mt3.studies.plan import Part, Study, paper_methods, plan_tests, plan_text, plan_trainings
from mt3.support.errors import InputError
from small_study import words


def test_a_dry_run_writes_nothing(tmp_path, capsys):
    code, out, err = run(capsys, *words(tmp_path / "new"), "--dry-run")
    assert code == 0
    assert not (tmp_path / "new").exists()
    assert "4 test images under each of 1 corruptions, severity 5, 2 for the sweeps" in out
    for line in ("train baseline, seed 0 after supervised", "evaluate mt3, seed 1, 6 settings of lr", "report"):
        assert f"| {line} " in out
    assert "0 of 14 parts are done; the others take about" in out
    assert "timing a few steps" in err


def test_the_plan_in_words(tmp_path, digits):
    study = Study(tmp_path, TestImages(digits), "demo", ["mt3"], 2, ["fog", "snow"], [3, 5], overrides={"lr": "0.1"})
    parts = [
        Part("train mt3, seed 0", 1.0, 0.0, int),
        Part("evaluate mt3, seed 0", 0.25, 42.0, int),
        Part("train mt3, seed 1", 0.0, 63.0, int),
    ]
    assert plan_text(study, parts).splitlines() == [
        "preset demo on digits, with lr=0.1",
        f"seeds 0, 1, into {tmp_path}",
        "50 test images under each of 2 corruptions, severity 3, 5",
        "",
        "| part                 |     state |   estimate |",
        "|----------------------|----------:|-----------:|",
        "| train mt3, seed 0    |      done |            |",
        "| evaluate mt3, seed 0 | 25 % done |       42 s |",
        "| train mt3, seed 1    |     to do | 1 min 03 s |",
        "| report               |     to do |            |",
        "",
        "1 of 3 parts are done; the others take about 1 min 45 s on this machine.",
    ]


def test_the_estimate_counts_steps_images_and_a_shared_start(tmp_path, digits, capsys, monkeypatch):
    """A step takes 10 s and an image 1 s here."""
    monkeypatch.setattr("mt3.studies.clock.time_step", lambda *_: 10.0)
    monkeypatch.setattr("mt3.studies.clock.time_image", lambda *_: 1.0)
    code, out, _ = run(capsys, *words(tmp_path / "new"), "--dry-run")
    assert code == 0
    lines = [[cell.strip() for cell in line.split("|")[1:4]] for line in out.splitlines() if line.startswith("|")]
    estimates = {part: estimate for part, _, estimate in lines}
    # 1297 images: mt3 has 324 steps of 4 in an epoch, the baseline 1297 of one, its start 10 of 128
    assert estimates["train mt3, seed 0 after supervised"] == "20 s"  # 2 steps; the start is the baseline's
    assert estimates["train baseline, seed 0 after supervised"] == "1 min 30 s"  # 8 steps and one of the start
    assert estimates["evaluate mt3, seed 0"] == "8 s"  # contrast and clean, 4 images each
    assert estimates["evaluate mt3, seed 0, 6 settings of lr"] == "24 s"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--methods", "mt4"], "Unknown method 'mt4' (did you mean 'mt3'?): expected one of baseline-sun"),
        (["--ablations", "no-c"], "Unknown ablation 'no-c' (did you mean 'no-b'?): expected one of no-b"),
        (["--methods", "baseline", "--ablations", "lr"], "The ablation lr evaluates jt and mt3, of which none is"),
        (["--ablations", "first-order", "--order", "first"], "trained as the ablation first-order (order=first) alr"),
        (["--seeds", "0"], "expected a whole number from 1 to 999999999, got '0'"),
        (["--jobs", "0"], "expected a whole number from 1 to 999999999, got '0'"),
        (["--seed", "1"], "Unexpected argument '--seed' (did you mean '--seeds'?); see"),
        (["--method", "mt3"], "Unexpected argument '--method' (did you mean '--methods'?); see"),
        (["--limit", "1"], "they need at least 2 images; raise --limit"),
        (["--limit", "0"], "they need at least 2 images; raise --limit"),
        (["--severity", "6"], "Expected severities from 1 to 5, got 6"),
        (["--corruptions", "rain"], "rain"),
        (["--depth", "9"], "Expected a depth of 6n+2 layers"),
        (["--methods", "baseline", "--task-size", "5000"], "A step needs 5000 images, but digits has 1297"),
        (["--widht", "4"], "Unexpected argument '--widht' (did you mean '--width'?); see"),
        (["--download", "--dry-run"], "--dry-run writes nothing, so that it does not download"),
        (["--preset", "papers"], "Unknown preset 'papers'"),
        (["--data", "mnist"], "mnist"),
    ],
)
def test_what_cannot_be_done_is_refused_before_any_work(tmp_path, capsys, monkeypatch, more, message):
    monkeypatch.setattr("mt3.studies.reproduce.train", None)
    code, _, err = run(capsys, "reproduce", "--out", tmp_path / "new", "--threads", "1", *more)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_missing_frost_photos_are_said_before_any_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mt3.corruptions.weather.frost_photos", lambda: None)
    code, _, err = run(capsys, "reproduce", "--out", tmp_path / "new", "--threads", "1", "--data", "cifar10")
    assert code == 2
    assert "Corruption 'frost' needs photos" in err  # before the data, which is not there either
    assert not (tmp_path / "new").exists()


def test_methods_are_those_of_the_papers_tables():
    five = ["baseline-sun", "jt-rotation", "baseline", "jt", "mt3"]
    assert paper_methods("cifar10") == paper_methods("digits") == five
    assert paper_methods("cifar100") == ["baseline", "jt", "mt3"]


def test_the_same_ablation_twice_is_one(tmp_path, digits):
    study = Study(tmp_path, TestImages(digits), "demo", ["mt3"], 1, ["fog"], [5], ablations=["steps", "views"])
    (training,) = plan_trainings(study)
    sweeps = plan_tests(study, training)
    assert [test.file.name for test in sweeps.pop("")] == ["evaluation.json"]
    files = [t.file.name for tests in sweeps.values() for t in tests]
    assert len(files) == len(set(files)) == 1 + 5 + 6
    assert [t.setting for t in sweeps["steps"]] == [{}, *({"steps": s} for s in (0, 2, 3, 5, 10))]
    with pytest.raises(InputError, match="mt3 is trained as the ablation"):
        plan_trainings(
            Study(
                tmp_path, TestImages(digits), "demo", [], 1, [], [], ablations=["no-b"], overrides={"batch_aug": False}
            )
        )
