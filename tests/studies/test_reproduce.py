"""`mt3 reproduce`: its plan, a tiny study from beginning to end, no work twice, kills at any moment, refusals."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import mt3
from mt3.cli.main import main
from mt3.config.config import make_config
from mt3.corruptions.write import write_corrupted
from mt3.data import Dataset, load_digits, open_corrupted
from mt3.evaluation.evaluate import TestImages
from mt3.reporting.collect import collect
from mt3.reporting.published import published_table
from mt3.studies.clock import time_step
from mt3.studies.plan import Part, Study, paper_methods, plan_tests, plan_text, plan_trainings
from mt3.studies.reproduce import reproduce
from mt3.support.errors import InputError
from mt3.support.progress import duration

SMALL = ["--depth", "8", "--width", "4", "--hidden", "8", "--projection", "6", "--checkpoint-every", "1"]
SHORT = ["--task-size", "2", "--task-images", "1", "--epochs", "0.006", "--test-views", "2"]
ALIKE = ["--batch-aug", "true", "--pad", "2", "--flip", "false"]  # so that all have one start
FIELDS = [*SMALL, *SHORT, *ALIKE, "--warm-method", "baseline", "--warm-epochs", "0.05"]
TESTED = ["--corruptions", "contrast", "--limit", "4", "--sweep-limit", "2"]
STUDY = ["--methods", "mt3", "baseline", "--seeds", "2", "--ablations", "norm-only", "lr", *TESTED, "--threads", "1"]
LRS = ("0", "0.025", "0.05", "0.2", "0.4")  # the paper's own is 0.1
EXPECTED = [
    *(f"{method}/seed-{seed}/evaluation.json" for method in ("baseline", "mt3") for seed in (0, 1)),
    *(f"mt3/seed-{seed}/sweep-{name}.json" for seed in (0, 1) for name in ("own", *(f"lr-{lr}" for lr in LRS))),
    *(f"ablations/norm-only/seed-{seed}/evaluation.json" for seed in (0, 1)),
]


def words(out: Path, *more: str) -> list[str]:
    return ["reproduce", "--data", "digits", "--preset", "paper", "--out", str(out), *STUDY, *FIELDS, *more]


def run(capsys, *arguments: str | Path) -> tuple[int, str, str]:
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def times(folder: Path) -> dict[str, int]:
    found = {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.rglob("*")}
    return {name: t for name, t in found.items() if not name.startswith("report")}


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    monkeypatch.setattr("mt3.studies.clock.TIMED", 0.0)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_digits()


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    """A whole study, not interrupted."""
    out = tmp_path_factory.mktemp("study") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mt3.studies.clock.TIMED", 0.0)
        assert main(words(out)) == 0
    return out


def test_a_study_trains_evaluates_and_reports(study):
    names = {p for p in contents(study) if p.endswith(".json") and Path(p).stem.startswith(("evaluation", "sweep"))}
    assert names == set(EXPECTED)
    results = collect([study])
    assert {name: [e.seed for e in runs] for name, runs in results.main.items()} == {"baseline": [0, 1], "mt3": [0, 1]}
    assert list(results.ablations) == [("mt3", "norm-only (adapt_layers=norm)")]
    assert mt3.load(study / "ablations" / "norm-only" / "seed-1").adapt_layers == "norm"
    assert all(e.has("clean_other") and e.has("same_corruption") for e in results.main["mt3"])
    assert not results.notes
    assert len(results.curves) == 2
    assert sorted({e.setting.lr for e in results.others}) == [0, 0.025, 0.05, 0.1, 0.2, 0.4]
    assert {e.protocol["images"] for e in results.others} == {2}
    text = (study / "report" / "report.md").read_text()
    for wanted in ("| MT3: default ", "| MT3: norm-only (adapt_layers=norm) ", "All of these are on 2 images."):
        assert wanted in text
    assert "`mt3/seed-0/evaluation.json`, `mt3/seed-1/evaluation.json`" in text
    assert str(study) not in "".join(p.read_text() for p in (study / "report").glob("*.[mtc]*"))


def test_trainings_share_a_warm_start(study):
    for seed in (0, 1):
        folders = [study / name / f"seed-{seed}" / "warm" for name in ("baseline", "mt3", "ablations/norm-only")]
        first = contents(folders[0])
        assert "model.safetensors" in first
        assert all(contents(folder) == first for folder in folders[1:])  # run.json with its seconds, too: it is a copy


def test_a_start_may_have_a_start_which_others_share(capsys, tmp_path):
    """Of the preset cpu: MT3 begins from JT, and that from the supervised training from which the row of JT begins."""
    begin = ["reproduce", "--data", "digits", "--preset", "cpu", "--out", str(tmp_path), "--methods", "jt", "mt3"]
    fields = [*SMALL, "--epochs", "0.05", "--test-views", "2", "--checkpoint-every", "100"]
    assert run(capsys, *begin, "--seeds", "1", *fields, *TESTED, "--threads", "1")[0] == 0
    joint, meta = (tmp_path / method / "seed-0" for method in ("jt", "mt3"))
    supervised = contents(joint / "warm")
    assert json.loads(supervised["run.json"])["config"]["method"] == "baseline"
    assert contents(meta / "warm" / "warm") == supervised  # a copy, with its seconds
    began = json.loads((meta / "warm" / "run.json").read_text())
    assert (began["config"]["method"], began["config"]["schedule"]) == ("jt", "cosine")
    run_file = json.loads((meta / "run.json").read_text())
    assert began["init"] == run_file["init"] == "warm"
    protocol = json.loads((meta / "evaluation.json").read_text())["protocol"]
    assert protocol["trained_steps"] == protocol["total_steps"] == run_file["chain"]["total_steps"]
    starts = [json.loads((meta / name / "run.json").read_text())["step"] for name in ("warm/warm", "warm")]
    assert run_file["chain"]["step"] == sum(starts) + run_file["step"]
    code, out, _ = run(capsys, *begin, "--seeds", "1", *fields, *TESTED, "--threads", "1")
    assert code == 0
    assert "4 of 4 parts are done." in out


def test_a_second_call_does_no_work(study, capsys, monkeypatch):
    before, report = times(study), contents(study / "report")

    def never(*_, **__):
        raise AssertionError("nothing is left to do")

    for name in ("reproduce.train", "reproduce.evaluate", "clock.time_step", "clock.time_image"):
        monkeypatch.setattr(f"mt3.studies.{name}", never)
    code, out, _ = run(capsys, *words(study))
    assert code == 0
    assert "14 of 14 parts are done." in out
    assert "to do" not in out
    assert times(study) == before
    assert contents(study / "report") == report
    code, out, _ = run(capsys, *words(study), "--dry-run")
    assert code == 0
    assert times(study) == before


def test_a_dry_run_writes_nothing(tmp_path, capsys):
    code, out, err = run(capsys, *words(tmp_path / "new"), "--dry-run")
    assert code == 0
    assert not (tmp_path / "new").exists()
    assert "4 test images under each of 1 corruptions, severity 5, 2 for the sweeps" in out
    for line in ("train baseline, seed 0 after baseline", "evaluate mt3, seed 1, 6 settings of lr", "report"):
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


def test_long_times_are_in_days():
    spans = [round(h * 3600) for h in (0.5, 2.25, 47.99, 48, 3549)]
    assert [duration(s) for s in spans] == ["30 min 00 s", "2 h 15 min", "47 h 59 min", "2 days 0 h", "147 days 21 h"]


def test_the_estimate_counts_steps_images_and_a_shared_warm_start(tmp_path, digits, capsys, monkeypatch):
    """A step takes 10 s and an image 1 s here."""
    monkeypatch.setattr("mt3.studies.clock.time_step", lambda *_: 10.0)
    monkeypatch.setattr("mt3.studies.clock.time_image", lambda *_: 1.0)
    code, out, _ = run(capsys, *words(tmp_path / "new"), "--dry-run")
    assert code == 0
    lines = [[cell.strip() for cell in line.split("|")[1:4]] for line in out.splitlines() if line.startswith("|")]
    estimates = {part: estimate for part, _, estimate in lines}
    # 1297 images: mt3 has 324 steps of 4 in an epoch, the baseline 1297 of one, its warm start 10 of 128
    assert estimates["train mt3, seed 0 after baseline"] == "20 s"  # 2 steps; the warm start is the baseline's
    assert estimates["train baseline, seed 0 after baseline"] == "1 min 30 s"  # 8 steps and one of the warm start
    assert estimates["evaluate mt3, seed 0"] == "8 s"  # contrast and clean, 4 images each
    assert estimates["evaluate mt3, seed 0, 6 settings of lr"] == "24 s"


def test_partly_done_parts_are_recognised(study, tmp_path, capsys):
    out = tmp_path / "cut"
    shutil.copytree(study, out)
    folder = out / "mt3" / "seed-1"
    state = contents(folder)
    for name in ("config.json", "model.safetensors", "run.json", "evaluation.json", "evaluation.npz"):
        (folder / name).unlink()
    (folder / "checkpoints" / "step-00000002.safetensors").unlink()
    run_file = state["run.json"].decode()
    cut = run_file[: run_file.index(',\n  "step"')] + "\n}\n"  # as it is while training
    (folder / "run.json").write_text(cut)
    code, text, _ = run(capsys, *words(out), "--dry-run")
    assert code == 0
    (line,) = [line for line in text.splitlines() if line.startswith("| train mt3, seed 1 ")]
    assert " % done" in line
    code, text, _ = run(capsys, *words(out))
    assert code == 0
    assert "[1/" in text
    assert "train mt3, seed 0: about" not in text
    assert (folder / "model.safetensors").read_bytes() == state["model.safetensors"]
    assert contents(out / "report") == contents(study / "report")


def test_a_study_may_be_moved_and_grow(study, tmp_path, capsys, monkeypatch):
    shutil.copytree(study, tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    before = times(tmp_path / "moved")
    code, text, _ = run(capsys, *words(Path("moved")))
    assert code == 0
    assert "to do" not in text
    assert times(tmp_path / "moved") == before
    assert contents(tmp_path / "moved" / "report") == contents(study / "report")
    code, text, _ = run(capsys, *words(Path("moved"), "--ablations", "no-b"), "--dry-run")
    assert code == 0
    assert [line.split("|")[1].strip() for line in text.splitlines() if "to do" in line] == [
        "train mt3 no-b, seed 0 after baseline",
        "evaluate mt3 no-b, seed 0",
        "train mt3 no-b, seed 1 after baseline",
        "evaluate mt3 no-b, seed 1",
        "report",
    ]


UNTIMED = (
    "import sys, mt3.studies.clock as r; r.time_step = r.time_image = lambda *_: 0.1; "
    "from mt3.cli.main import main; sys.exit(main(sys.argv[1:]))"
)


@pytest.mark.parametrize("more", [0, pytest.param(4, marks=pytest.mark.slow)])
def test_killed_at_random_moments_it_ends_with_the_same_report(study, tmp_path, more):
    out = tmp_path / "killed"
    rng = random.Random(0)
    kills = 0
    for delay in (0.05, *(rng.uniform(0.1, 0.7) for _ in range(more)), None):  # short: the whole takes a few seconds
        process = subprocess.Popen(
            [sys.executable, "-c", UNTIMED, *words(out)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert process.stdout is not None
        if delay is None:
            process.communicate()
            break
        for line in process.stdout:
            if line.startswith("[1/"):
                break
        time.sleep(delay)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate()
    assert process.returncode == 0
    assert kills >= 1 + more // 2
    assert contents(out / "report") == contents(study / "report")
    whole, killed = contents(study), contents(out)
    assert killed.keys() == whole.keys()  # nothing is left behind
    for name in whole:
        if name.endswith((".npz", "model.safetensors", "metrics.jsonl")) or Path(name).name.startswith("evaluation"):
            assert killed[name] == whole[name], name


def test_two_runs_at_a_time_give_the_same_bits(study, tmp_path, capsys):
    """Each of two jobs has one thread, as the study had."""
    out = tmp_path / "two"
    shutil.copytree(study, out)
    for seed in (0, 1):
        shutil.rmtree(out / "baseline" / f"seed-{seed}")
    code, text, _ = run(capsys, *words(out, "--threads", "2", "--jobs", "2"))
    assert code == 0
    assert "runs at a time" in text
    assert contents(out / "report") == contents(study / "report")
    again, first = contents(out / "baseline"), contents(study / "baseline")
    for name in (f"seed-{seed}/{file}" for seed in (0, 1) for file in ("model.safetensors", "metrics.jsonl")):
        assert again[name] == first[name], name


@pytest.mark.slow
def test_two_runs_at_a_time_killed_and_resumed_give_the_same_report(study, tmp_path):
    """All of the study in two jobs; a kill of the first process ends the others."""
    out = tmp_path / "two"
    command = [sys.executable, "-c", UNTIMED, *words(out, "--threads", "2", "--jobs", "2")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("[3/"):
            break
    process.send_signal(signal.SIGKILL)
    process.communicate()  # returns when nobody holds the pipe
    assert not (out / "report").exists()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "runs at a time" in done.stdout
    assert "[baseline, seed 1] train baseline: 8/8 steps" in done.stderr
    assert contents(out / "report") == contents(study / "report")
    for name, content in contents(study).items():
        if name.endswith(("model.safetensors", "metrics.jsonl")):
            assert contents(out)[name] == content, name


def test_other_settings_than_those_that_are_there_are_refused(study, capsys):
    before = times(study)
    code, _, err = run(capsys, *words(study), "--lr", "0.5")
    assert code == 2
    assert "baseline/seed-0 was started with other settings (lr differ: lr=0.1); give the same ones" in err
    code, _, err = run(capsys, *words(study), "--limit", "3")
    assert code == 2
    assert "holds an evaluation under another protocol (images differ)" in err
    assert times(study) == before


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--methods", "mt4"], "Unknown method 'mt4' (did you mean 'mt3'?): expected one of baseline-sun"),
        (["--ablations", "no-c"], "Unknown ablation 'no-c' (did you mean 'no-b'?): expected one of no-b"),
        (["--methods", "baseline", "--ablations", "lr"], "The ablation lr evaluates jt and mt3, of which none is"),
        (["--ablations", "first-order", "--order", "first"], "trained as the ablation first-order (order=first) alr"),
        (["--seeds", "0"], "Expected at least 1 seed"),
        (["--jobs", "0"], "Expected at least 1 job, got 0; give --jobs 1"),
        (["--seed", "1"], "Unexpected argument '--seed': every training has its own; give --seeds"),
        (["--method", "mt3"], "Unexpected argument '--method': every training has its own; give --methods"),
        (["--limit", "1"], "they need at least 2 images; raise --limit"),
        (["--limit", "0"], "they need at least 2 images; raise --limit"),
        (["--severity", "6"], "Expected severities from 1 to 5, got 6"),
        (["--corruptions", "rain"], "rain"),
        (["--depth", "9"], "Expected a depth of 6n+2 layers"),
        (["--methods", "baseline", "--task-size", "5000"], "A step needs 5000 images, but digits has 1297"),
        (["--widht", "4"], "Unexpected argument '--widht' (did you mean '--width'?); see"),
        (["--download", "--dry-run"], "A dry run writes nothing"),
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


def test_only_one_process_at_a_time(study, capsys):
    from mt3.support.files import own_directory

    with own_directory(study):
        code, _, err = run(capsys, *words(study))
    assert code == 2
    assert "Another process is writing to" in err


def test_methods_are_those_of_the_papers_tables():
    five = ["baseline-sun", "jt-rotation", "baseline", "jt", "mt3"]
    assert paper_methods("cifar10") == paper_methods("digits") == five
    assert paper_methods("cifar100") == ["baseline", "jt", "mt3"]


def test_the_papers_numbers_stand_beside_cifar(tmp_path):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8), np.arange(40) % 10
    data = Dataset("cifar10", images, labels, images[:4], labels[:4], tuple("abcdefghij"))
    small = {"depth": 8, "width": 2, "groups": 1, "hidden": 4, "projection": 4, "epochs": 0.1, "test_views": 1}
    study = Study(
        tmp_path, TestImages(data), "paper", ["baseline"], 1, ["fog"], [5], overrides=small | {"task_size": 4}
    )
    reproduce(study)
    table = published_table("cifar10")
    assert table is not None
    published = table["Baseline (ours)"]["fog"]
    assert f"({published.mean} ± {published.std:.2f})" in (tmp_path / "report" / "report.md").read_text()
    assert study.count() == study.count(sweep=True) == 4


def test_cifar100_has_the_papers_three_trainings_and_takes_a_corrupted_directory(tmp_path, capsys):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (100, 32, 32, 3), dtype=np.uint8), np.arange(100)
    data = Dataset("cifar100", images, labels, images[:6], labels[:6], tuple(f"class {i}" for i in range(100)))
    write_corrupted(data, tmp_path / "c", ["fog", "contrast"], [5])
    small = {"depth": 8, "width": 2, "groups": 1, "hidden": 4, "projection": 4, "epochs": 0.05, "test_views": 1}
    corrupted = TestImages(data, open_corrupted(tmp_path / "c"))
    methods = paper_methods("cifar100")
    assert methods == ["baseline", "jt", "mt3"]
    overrides = small | {"task_size": 2}
    study = Study(tmp_path / "out", corrupted, "paper", methods, 1, ["fog", "contrast"], [5], overrides=overrides)
    reproduce(study)
    report = (tmp_path / "out" / "report" / "report.md").read_text()
    rows = published_table("cifar100")
    assert rows is not None
    published = rows["MT3"]["fog"]
    assert f"({published.mean} ± {published.std:.2f})" in report
    assert "corrupted images: the directory c" in report
    assert [len(runs) for runs in collect([tmp_path / "out"]).main.values()] == [1, 1, 1]
    capsys.readouterr()
    reproduce(study, dry_run=True)
    assert "6 of 6 parts are done." in capsys.readouterr().out


def test_a_slow_step_is_taken_once(digits, monkeypatch):
    taken = []
    monkeypatch.setattr("mt3.studies.clock.gradient_of_step", lambda *words, **_: taken.append(words[4]))
    monkeypatch.setattr("mt3.studies.clock.apply_gradient", lambda *_: None)
    config = make_config("baseline", "digits", "demo", overrides={"width": 4})
    monkeypatch.setattr("mt3.studies.clock.SLOW", 0.0)
    time_step(config, digits, torch.device("cpu"))
    assert taken == [0]
    monkeypatch.setattr("mt3.studies.clock.SLOW", 60.0)
    monkeypatch.setattr("mt3.studies.clock.TIMED", 0.0)
    time_step(config, digits, torch.device("cpu"))
    assert taken == [0, 0, 1]


def test_the_same_ablation_twice_is_one(tmp_path, digits):
    study = Study(tmp_path, TestImages(digits), "demo", ["mt3"], 1, ["fog"], [5], ablations=["steps", "views"])
    (training,) = plan_trainings(study)
    _, sweeps = plan_tests(study, training)
    files = [t.file.name for tests in sweeps.values() for t in tests]
    assert len(files) == len(set(files)) == 1 + 5 + 6
    assert [t.setting for t in sweeps["steps"]] == [{}, *({"steps": s} for s in (0, 2, 3, 5, 10))]
    with pytest.raises(InputError, match="mt3 is trained as the ablation"):
        plan_trainings(
            Study(
                tmp_path, TestImages(digits), "demo", [], 1, [], [], ablations=["no-b"], overrides={"batch_aug": False}
            )
        )
