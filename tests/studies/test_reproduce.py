"""`mt3 reproduce`: a tiny study from beginning to end, no work twice, kills at any moment."""

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

import mt3
from commands import run
from mt3.config.config import config_from_dict
from mt3.corruptions.write import write_corrupted
from mt3.data import Dataset, open_corrupted
from mt3.evaluation.protocol import TestImages
from mt3.reporting.collect import collect
from mt3.reporting.published import published_table
from mt3.results.facts import read_evaluation
from mt3.studies.plan import Study, paper_methods
from mt3.studies.reproduce import reproduce
from mt3.training.loop import train
from mt3.training.runs import RunOptions
from small_study import EXPECTED, FIELDS, TESTED, contents, times, words


def test_a_study_trains_evaluates_and_reports(study):
    names = {p for p in contents(study) if p.endswith(".json") and Path(p).stem.startswith(("evaluation", "sweep"))}
    assert names == set(EXPECTED)
    results = collect([study])
    assert {name: [e.run.seed for e in runs] for name, runs in results.main.items()} == {
        "baseline": [0, 1],
        "mt3": [0, 1],
    }
    assert list(results.ablations) == [("mt3", "norm-only (layers=norm)")]
    assert mt3.load(study / "ablations" / "norm-only" / "seed-1").adaptation.layers == "norm"
    assert all(e.has("clean_other") and e.has("same_corruption") for e in results.main["mt3"])
    assert not results.notes
    assert len(results.curves.paths) == 2
    assert sorted({e.setting.lr for e in results.others}) == [0, 0.025, 0.05, 0.1, 0.2, 0.4]
    assert {e.protocol["images"] for e in results.others} == {2}
    text = (study / "report" / "report.md").read_text()
    for wanted in ("| MT3: default ", "| MT3: norm-only (layers=norm) ", "All of these are on 2 images."):
        assert wanted in text
    assert "`mt3/seed-0/evaluation.json`, `mt3/seed-1/evaluation.json`" in text
    assert str(study) not in "".join(p.read_text() for p in (study / "report").glob("*.[mtc]*"))


def test_trainings_share_a_start(study):
    for seed in (0, 1):
        folders = [study / name / f"seed-{seed}" / "start" for name in ("baseline", "mt3", "ablations/norm-only")]
        first = contents(folders[0])
        assert "model.safetensors" in first
        assert all(contents(folder) == first for folder in folders[1:])  # run.json with its seconds, too: it is a copy


def test_a_start_may_have_a_start_which_others_share(capsys, tmp_path):
    """Of the preset cpu: MT3 begins from JT, and that from the supervised training from which the row of JT begins."""
    begin = ["reproduce", "--data", "digits", "--preset", "cpu", "--out", str(tmp_path), "--methods", "jt", "mt3"]
    fields = [*FIELDS, "--epochs", "0.05"]
    assert run(capsys, *begin, "--seeds", "1", *fields, *TESTED, "--threads", "1")[0] == 0
    joint, meta = (tmp_path / method / "seed-0" for method in ("jt", "mt3"))
    supervised = contents(joint / "start")
    assert json.loads(supervised["run.json"])["config"]["method"] == "supervised"
    assert contents(meta / "start" / "start") == supervised  # a copy, with its seconds
    began = json.loads((meta / "start" / "run.json").read_text())
    assert (began["config"]["method"], began["config"]["schedule"]) == ("jt", "cosine")
    run_file = json.loads((meta / "run.json").read_text())
    assert began["init"] == run_file["init"] == "start"
    trained = read_evaluation(meta / "evaluation.json").run
    assert trained.step == trained.total_steps == run_file["about"]["total_steps"]
    starts = [json.loads((meta / name / "run.json").read_text())["step"] for name in ("start/start", "start")]
    assert run_file["about"]["step"] == sum(starts) + run_file["step"]
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


def test_partly_done_parts_are_recognised(study, tmp_path, capsys, digits):
    out = tmp_path / "cut"
    shutil.copytree(study, out)
    folder = out / "mt3" / "seed-1"
    state = contents(folder)
    for path in [path for path in folder.iterdir() if path.name != "start"]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    config = config_from_dict(json.loads(state["run.json"])["config"])
    train(config, digits, folder, RunOptions(resume=True, max_steps=2))  # one of its start, one of two of its own
    for name in ("config.json", "model.safetensors"):
        (folder / name).unlink()
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
        "train mt3 no-b, seed 0 after supervised",
        "evaluate mt3 no-b, seed 0",
        "train mt3 no-b, seed 1 after supervised",
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
    assert "holds an evaluation under another protocol, which differs in images" in err
    assert times(study) == before


def test_only_one_process_at_a_time(study, capsys):
    from mt3.support.files import own_directory

    with own_directory(study):
        code, _, err = run(capsys, *words(study))
    assert code == 2
    assert "Another process is writing to" in err


def test_the_papers_numbers_stand_beside_cifar(tmp_path):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8), np.arange(40) % 10
    data = Dataset("cifar10", images, labels, images[:4], labels[:4], tuple("abcdefghij"))
    small = {"depth": 8, "width": 2, "hidden": 4, "projection": 4, "epochs": 0.1, "test_views": 1}
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
    small = {"depth": 8, "width": 2, "hidden": 4, "projection": 4, "epochs": 0.05, "test_views": 1}
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
