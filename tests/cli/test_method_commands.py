"""`mt3 evaluate --method --stream` and `mt3 tune` on the command line."""

import json

import pytest

from commands import run
from mt3.results.facts import read_evaluation

FEW = ["--corruptions", "fog", "contrast", "--limit", "4", "--threads", "1"]


def test_methods_and_streams_go_into_a_directory(capsys, runs, tmp_path):
    words = ["evaluate", runs / "mt3", *FEW, "--method", "tent", "--method", "average", "--views", "2"]
    code, text, _ = run(capsys, *words, "--stream", "shift", "mixed", "--batch", "2", "--out", tmp_path / "found")
    assert code == 0
    names = {f"{method}-{stream}.json" for method in ("tent", "average") for stream in ("shift", "mixed")}
    assert {path.name for path in (tmp_path / "found").glob("*.json")} == names
    found = read_evaluation(tmp_path / "found" / "tent-mixed.json")
    assert (found.rival, found.way, found.batch, found.run.method) == ("tent", "mixed", 2, "mt3")
    assert "gain by adapting" in text
    assert "block bootstrap" in text
    code, text, _ = run(capsys, "report", tmp_path / "found", "--out", tmp_path / "report")
    assert code == 0
    assert (
        "MT (resnet8x4) (3 of 32,400 steps): average accuracy in % over 2 corruptions, severity 5, 4 images each"
        in text
    )
    page = (tmp_path / "report" / "report.md").read_text()
    assert [cell.strip() for cell in text.splitlines()[2].split("|")[1:-1]] == ["test-time method", "shift", "mixed"]
    assert all(f"| {name} " in page for name in ("as it is", "TENT", "average of copies"))
    assert "methods-mt3" in (tmp_path / "report" / "table.tex").read_text()


def test_of_several_methods_each_takes_the_fields_that_it_has_a_use_for(capsys, runs, tmp_path):
    words = ["evaluate", runs / "mt3", *FEW, "--method", "tent", "lame", "--stream", "shift", "--batch", "2"]
    code, *_ = run(capsys, *words, "--lr", "0.5", "--out", tmp_path / "found")
    tent, lame = (read_evaluation(tmp_path / "found" / f"{name}-shift.json") for name in ("tent", "lame"))
    assert (code, tent.protocol["adaptation"]["lr"], lame.protocol["adaptation"]["lr"]) == (0, 0.5, 0.1)
    assert (tent.batch, lame.batch) == (2, 2)
    code, _, err = run(capsys, *words, "--views", "3", "--out", tmp_path / "none")
    assert (code, err) == (2, "mt3: --views would do nothing for any of these methods: the method draws no copies.\n")
    assert not (tmp_path / "none").exists()


def test_fields_of_an_adaptation_are_flags(capsys, runs, tmp_path):
    flags = ["--lr", "0.5", "--momentum", "0.9", "--answer", "first", "--reset", "every 2", "--clip", "none"]
    out = tmp_path / "r.json"
    words = ["evaluate", runs / "jt", *FEW, "--method", "tent", "--stream", "continual", *flags, "--batch", "2"]
    assert run(capsys, *words, "--out", out)[0] == 0
    told = json.loads(out.read_text())["protocol"]["adaptation"]
    want = {"lr": 0.5, "momentum": 0.9, "answer": "first", "reset": "every 2", "clip": None, "batch": 2}
    assert {name: told[name] for name in want} == want


def test_tune_then_evaluate_with_the_choice(capsys, runs, tmp_path):
    out = tmp_path / "tuned.json"
    words = ["tune", runs / "jt", "--method", "tent", "--stream", "shift", "--batch", "2", "--limit", "3"]
    words += ["--lr", "0.01", "0.1", "--steps", "1", "--threads", "1", "--out", out]
    code, text, _ = run(capsys, *words)
    assert code == 0
    assert "3 images from number 450 on, under speckle_noise, gaussian_blur, spatter, saturate" in text
    assert f"wrote {out}; `mt3 evaluate {runs / 'jt'} --tuned {out}` takes the choice" in text
    choice = json.loads(out.read_text())["tuned"]["choice"]
    assert choice in ({"lr": 0.01, "steps": 1}, {"lr": 0.1, "steps": 1})
    found = tmp_path / "found.json"
    words = ["evaluate", runs / "jt", *FEW, "--tuned", out, "--stream", "shift", "--batch", "2", "--out", found]
    assert run(capsys, *words)[0] == 0
    protocol = read_evaluation(found).protocol
    assert (protocol["method"], protocol["adaptation"]["lr"]) == ("tent", choice["lr"])
    assert protocol["tuned"]["choice"] == choice


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--method", "tant"], "Unknown method 'tant' (did you mean 'tent'?)"),
        (["--stream", "river"], "Unknown stream 'river'"),
        (["--method", "tent", "memo", "--out", "r.json"], "Several evaluations were asked for; give a directory"),
        (["--method", "tent", "--stream", "shift", "--controls"], "Along a stream there is no --controls"),
        (["--method", "t3a"], "T3A has nothing to do for a single image; give --stream"),
        (["--method", "norm", "--stream", "shift"], "no batch normalisation"),
        (["--unadapted", "--stream", "shift"], "Nothing adapts with --unadapted; drop --stream"),
        (["--reset", "every"], "Unknown reset 'every'"),
        (["--batch", "0", "--method", "tent", "--stream", "shift"], "Expected batch to be a whole number from 1"),
        (["--tuned", "missing.json"], "Cannot read missing.json"),
    ],
)
def test_bad_input_gets_one_sentence(capsys, runs, tmp_path, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    out = [] if "--out" in words else ["--out", tmp_path / "r.json"]
    code, _, error = run(capsys, "evaluate", runs / "mt3", *FEW, *out, *words)
    assert code == 2
    assert sentence in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--method", "tent", "--corruptions", "all"], "got gaussian_noise, shot_noise"),
        (["--method", "t3a", "--stream", "shift"], "no learning rate, steps, views or support to choose"),
        (["--method", "tent", "--views", "3"], "This method has no views to choose; drop --views"),
        (["--method", "tent", "--lr", "x"], "expected a number, got 'x'"),
        ([], "nothing of its own to adapt with; give a --method"),
    ],
)
def test_bad_tunings_get_one_sentence(capsys, runs, tmp_path, words, sentence):
    code, _, error = run(capsys, "tune", runs / "baseline", "--limit", "2", "--out", tmp_path / "t.json", *words)
    assert code == 2
    assert sentence in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
