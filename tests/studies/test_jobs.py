"""The jobs of a study: their list by value, and that all of them give the study's own tree."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mt3
from commands import run
from mt3.cli.main import main
from small_study import FIELDS, SHORT, contents, words

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
START = "baseline/seed-{}/start/train"
SAME = (".npz", "model.safetensors", "metrics.jsonl", "config.json")  # and evaluations; run.json has seconds


def few(out: Path, *more: str) -> list[str]:
    """A smaller study, of two pieces of clean images and two under contrast."""
    tested = ["--corruptions", "contrast", "--limit", "60", "--sweep-limit", "2", "--threads", "1"]
    asked = ["--methods", "mt3", "--seeds", "1", "--ablations", "lr", *tested]
    return ["reproduce", "--data", "digits", "--preset", "paper", "--out", str(out), *asked, *FIELDS, *SHORT, *more]


def listed(capsys, *asked: str) -> dict[str, dict]:
    code, out, _ = run(capsys, *asked, "--list-jobs")
    assert code == 0
    return {job["job"]: job for job in map(json.loads, out.splitlines())}


def test_the_list_by_value(tmp_path, capsys, monkeypatch):
    """A step takes 10 s and an image 1 s here."""
    monkeypatch.setattr("mt3.studies.clock.time_step", lambda *_: 10.0)
    monkeypatch.setattr("mt3.studies.clock.time_image", lambda *_: 1.0)
    out = tmp_path / "new"
    jobs = listed(capsys, *words(out))
    assert not out.exists()
    needs = {name: job["needs"] for name, job in jobs.items()}
    evaluations = {name for name, job in jobs.items() if job["kind"] == "evaluate"}
    for seed in (0, 1):
        assert needs.pop(START.format(seed)) == []
        for run_name in (f"baseline/seed-{seed}", f"mt3/seed-{seed}", f"ablations/norm-only/seed-{seed}"):
            assert needs.pop(f"{run_name}/train") == [START.format(seed)]
            assert needs.pop(f"{run_name}/evaluation") == [f"{run_name}/train"]
        for sweep in ("own", "lr-0", "lr-0.025", "lr-0.05", "lr-0.2", "lr-0.4"):
            assert needs.pop(f"mt3/seed-{seed}/sweep-{sweep}") == [f"mt3/seed-{seed}/train"]
    assert set(needs.pop("report")) == evaluations
    assert needs == {}
    order = list(jobs)
    assert all(order.index(needed) < order.index(name) for name, job in jobs.items() for needed in job["needs"])
    # one step of the start, two of mt3, eight of the baseline; contrast and clean, 4 images each, 2 in sweeps
    wanted = {START.format(0): 10, "mt3/seed-0/train": 20, "baseline/seed-1/train": 80}
    wanted |= {"mt3/seed-0/evaluation": 8, "mt3/seed-1/sweep-lr-0.2": 4, "report": 0}
    assert {name: jobs[name]["seconds"] for name in wanted} == wanted
    assert {job["done"] for job in jobs.values()} == {0}
    folder = out / "mt3" / "seed-0"
    job = jobs["mt3/seed-0/train"]
    assert job["outputs"] == [str(folder / name) for name in ("config.json", "model.safetensors", "run.json")]
    assert jobs["mt3/seed-0/sweep-own"]["outputs"] == [str(folder / f"sweep-own.{end}") for end in ("json", "npz")]
    assert job["command"] == shlex.join(["mt3", *words(out), "--job", "mt3/seed-0/train"])


def test_evaluations_are_split_into_shards(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mt3.studies.clock.time_step", lambda *_: 10.0)
    monkeypatch.setattr("mt3.studies.clock.time_image", lambda *_: 1.0)
    for asked in (["--shards", "3"], ["--shards=3"]):
        jobs = listed(capsys, *few(tmp_path / "new"), *asked)
        three = [f"mt3/seed-0/evaluation/{i}-of-3" for i in range(3)]
        assert [name for name in jobs if name.startswith("mt3/seed-0/evaluation")] == three  # of two pieces twice
        assert [name for name in jobs if name.startswith("mt3/seed-0/sweep-own")] == [
            "mt3/seed-0/sweep-own/0-of-2", "mt3/seed-0/sweep-own/1-of-2"
        ]  # fmt: skip
        assert set(three) < set(jobs["report"]["needs"])
        assert jobs[three[1]]["command"].endswith("--job mt3/seed-0/evaluation --shard 1/3")
        assert "--shards" not in jobs[three[1]]["command"]
        assert jobs[three[1]]["seconds"] == 40


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The smaller study, by one command."""
    out = tmp_path_factory.mktemp("few") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mt3.studies.clock.TIMED", 0.0)
        assert main(few(out)) == 0
    return out


def assert_same(out: Path, whole: Path, but: tuple[str, ...] = ()) -> None:
    made, wanted = (
        {name: data for name, data in contents(folder).items() if not any(word in name for word in but)}
        for folder in (out, whole)
    )
    assert made.keys() == wanted.keys()
    for name in wanted:
        if name.endswith(SAME) or Path(name).name.startswith(("evaluation", "sweep")) or name.startswith("report"):
            assert made[name] == wanted[name], name


def test_all_jobs_give_the_tree_of_the_study(tmp_path, capsys, monkeypatch, whole):
    """What is listed last comes first, as soon as what it needs is done."""
    out = tmp_path / "jobs"
    jobs = listed(capsys, *few(out, "--shards", "3"))
    done: list[str] = []
    while len(done) < len(jobs):
        name = [n for n, job in jobs.items() if n not in done and set(job["needs"]) <= set(done)][-1]
        assert main(shlex.split(jobs[name]["command"])[1:]) == 0, name
        done.append(name)
    assert_same(out, whole)
    capsys.readouterr()
    jobs = listed(capsys, *few(out, "--shards", "3"))
    assert {(job["done"], job["seconds"]) for job in jobs.values()} == {(1, 0)}
    monkeypatch.setattr("mt3.studies.reproduce.train", None)
    monkeypatch.setattr("mt3.evaluation.evaluate._predict_piece", None)
    capsys.readouterr()
    for name in ("mt3/seed-0/train", "mt3/seed-0/start/train", "mt3/seed-0/evaluation"):
        assert run(capsys, *few(out), "--job", name)[0] == 0  # it does nothing


def test_what_a_job_needs_must_be_done(tmp_path, capsys, whole):
    out = tmp_path / "jobs"
    code, _, err = run(capsys, *few(out), "--job", "mt3/seed-0/evaluation")
    assert (code, err.count("\n")) == (2, 1)
    assert "mt3/seed-0 is not finished, and its evaluation needs it; train first" in err
    shutil.copytree(whole, out)
    (out / "mt3" / "seed-0" / "sweep-lr-0.2.json").unlink()
    code, _, err = run(capsys, *few(out), "--job", "report")
    assert (code, err.count("\n")) == (2, 1)
    assert "The report needs" in err
    assert "sweep-lr-0.2.json, which is not there" in err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--job", "mt3/seed-0"], "Unknown job 'mt3/seed-0' (did you mean 'mt3/seed-0/train'?): expected one of mt3"),
        (["--job", "mt3/seed-0/train", "--shard", "0/2"], "Only evaluations have shards, and mt3/seed-0/train is none"),
        (["--job", "report", "--list-jobs"], "Expected one of --dry-run, --list-jobs and --job, got several"),
        (["--shards", "2"], "--shards says how --list-jobs splits evaluations"),
        (["--shard", "0/2"], "--shard is a share of a --job that is an evaluation"),
        (["--list-jobs", "--download"], "--list-jobs writes nothing, so that it does not download"),
        (["--list-jobs", "--shards", "0"], "expected a whole number from 1"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, capsys, more, message):
    code, _, err = run(capsys, *few(tmp_path / "new"), *more)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
    assert not (tmp_path / "new").exists()


@pytest.fixture
def with_mt3(tmp_path) -> dict[str, str]:
    """An environment in which `mt3` is this one."""
    tool = tmp_path / "bin" / "mt3"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m mt3 "$@"\n')
    tool.chmod(0o755)
    return os.environ | {"PATH": f"{tool.parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None, reason="GNU make is not here")
def test_make_runs_the_list(tmp_path, capsys, whole, with_mt3):
    """Of the study without its sweep: four jobs and the report."""
    out = tmp_path / "made"
    asked = [word for word in few(out) if word not in ("--ablations", "lr")]
    text = run(capsys, *asked, "--list-jobs", "--shards", "2")[1]
    script = [sys.executable, str(EXAMPLES / "make" / "jobs_to_make.py")]
    rules = subprocess.run(script, input=text, capture_output=True, text=True, check=True).stdout
    (tmp_path / "jobs.mk").write_text(rules)
    command = ["make", "-k", "-j", "2", "-f", "jobs.mk"]
    done = subprocess.run(command, cwd=tmp_path, env=with_mt3, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (out / "report" / "report.md").exists()
    assert_same(out, whole, but=("sweep", "report"))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("xargs") is None, reason="xargs is not here")
def test_xargs_runs_the_shards(tmp_path, whole, with_mt3):
    folder = tmp_path / "run"
    shutil.copytree(whole / "mt3" / "seed-0", folder, ignore=shutil.ignore_patterns("evaluation*", "sweep*"))
    asked = "--corruptions contrast --limit 60 --controls --threads 1"
    line = f"printf '%s\\n' 2 0 1 | xargs -P 2 -I @ mt3 evaluate {folder} {asked} --shard @/3"
    done = subprocess.run(["sh", "-c", line], env=with_mt3, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for end in ("json", "npz"):
        name = f"evaluation.{end}"
        assert (folder / name).read_bytes() == (whole / "mt3" / "seed-0" / name).read_bytes()
    assert done.stdout.count("wrote ") == 1  # the one that merges has a summary
    assert done.stdout.count("is done; ") == 2  # the others a line


@pytest.mark.slow
def test_torchrun_trains_a_job(tmp_path, whole):
    """Two ranks, of which one speaks and writes; the start is there."""
    out = tmp_path / "jobs"
    shutil.copytree(whole / "mt3" / "seed-0" / "start", out / "mt3" / "seed-0" / "start")
    words = [*few(out), "--job", "mt3/seed-0/train"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "--", "mt3", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{out / 'mt3' / 'seed-0'} is trained\n"
    alone, ranks = (mt3.load(folder / "mt3" / "seed-0").state_dict() for folder in (whole, out))
    for name, weights in alone.items():
        torch.testing.assert_close(ranks[name], weights, rtol=1e-4, atol=1e-5)
    assert not (out / "mt3" / "seed-0" / "progress.json").exists()
