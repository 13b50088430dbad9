"""`mt3 evaluate`: what it evaluates, what it writes down, and interruptions."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mt3
from commands import SMALL, run
from mt3.config.methods import METHODS
from mt3.data import load_digits
from mt3.results.facts import CLEAN, read_evaluation


@pytest.mark.parametrize("method", METHODS)
def test_train_then_evaluate_then_predict(capsys, runs, tmp_path, picture, method):
    losses = [json.loads(line) for line in (runs / method / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in losses] == [1, 2, 3]
    model = mt3.load(runs / method)
    assert model.adaptation.objective == METHODS[method].objective
    out = tmp_path / "r.json"
    words = ["--corruptions", "contrast", "fog", "--severity", "5", "--limit", "4", "--out", out]
    code, text, _ = run(capsys, "evaluate", runs / method, *words, *(["--steps", "1"] if METHODS[method].after else []))
    assert code == 0
    result = read_evaluation(out)
    assert (result.run.method, result.run.seed) == (method, 3)
    assert f"{result.accuracy('before'):.1f}" in text
    assert result.has("after") == (METHODS[method].after is not None)
    digit = torch.from_numpy(load_digits().test_images[:1]).permute(0, 3, 1, 2)
    code, text, _ = run(capsys, "predict", runs / method, picture, "--json")
    assert code == 0
    (answer,) = json.loads(text)
    before = model(digit).softmax(1)[0]
    assert answer["before"]["probability"] == pytest.approx(before.max().item(), abs=1e-5)
    assert answer["before"]["class"] == str(before.argmax().item())
    if METHODS[method].after is None:
        assert answer["after"] is None
    else:
        after = mt3.Adapter(model)(digit).softmax(1)[0]
        assert answer["after"]["probability"] == pytest.approx(after.max().item(), abs=1e-5)
        assert answer["loss_before"] > 0


def test_results_say_how_far_their_run_was_trained(capsys, runs, tmp_path):
    def evaluate(model: Path, name: str) -> tuple[dict[str, Any], str]:
        words = ["--data", "digits", "--limit", "2", "--corruptions", "none", "--out", tmp_path / f"{name}.json"]
        code, text, _ = run(capsys, "evaluate", model, *words)
        assert code == 0
        protocol = json.loads((tmp_path / f"{name}.json").read_text())["protocol"]
        return {key: (protocol["run"] or {}).get(key) for key in ("step", "total_steps")}, text

    told, text = evaluate(runs / "mt3", "limited")
    total = 200 * (1297 // 8)
    assert told == {"step": 3, "total_steps": total}
    sentence = f"{runs / 'mt3'} is not finished: this is after 3 of {total:,} steps; train it with --resume"
    assert text.splitlines()[-2] == sentence
    words = ["train", "--method", "baseline", "--out", tmp_path / "done", "--threads", "1", *SMALL, "--hidden", "16"]
    assert run(capsys, *words, "--epochs", "0.05", "--start", "supervised:0.1")[0] == 0
    told, text = evaluate(tmp_path / "done", "finished")
    assert told == {"step": 6, "total_steps": 6}  # 4 of its start, then 2
    assert "not finished" not in text
    mt3.load(runs / "mt3").save_pretrained(tmp_path / "model")
    told, text = evaluate(tmp_path / "model", "model")
    assert told == {"step": None, "total_steps": None}
    assert "not finished" not in text


def test_a_model_of_unknown_steps_is_not_evaluated(capsys, runs, tmp_path):
    """Of a run that was killed between its model and its run.json, or whose run.json is damaged."""
    shutil.copytree(runs / "mt3", tmp_path / "run")
    told = json.loads((tmp_path / "run" / "run.json").read_text())
    words = ["evaluate", tmp_path / "run", "--limit", "2", "--corruptions", "none"]
    for changed, sentence in (
        ({"step": None, "about": None}, "is damaged: expected about to be an object"),
        ({"about": told["about"] | {"step": 7, "total_steps": 5}}, "is damaged: about is not whole (step 7 of 5, "),
        ({"about": told["about"] | {"method": "mt4"}}, "is damaged: about is not whole (Unknown method 'mt4'"),
    ):
        (tmp_path / "run" / "run.json").write_text(json.dumps(told | changed))
        code, _, err = run(capsys, *words)
        assert (code, err.count("\n")) == (2, 1)
        assert sentence in err
    begun = {key: told[key] for key in ("config", "init", "data_dir")}
    (tmp_path / "run" / "run.json").write_text(json.dumps(begun))
    code, _, err = run(capsys, *words)
    assert (code, err) == (2, f"mt3: The run in {tmp_path / 'run'} is not finished; continue it with --resume.\n")
    assert not list((tmp_path / "run").glob("evaluation*"))


def test_a_model_of_other_classes_is_not_evaluated(capsys, tmp_path):
    words = ["--data", "digits", "--limit", "2", "--corruptions", "none", "--out", tmp_path / "r.json"]
    code, _, err = run(capsys, "evaluate", "cifar10-mt3", *words)
    assert (code, err.count("\n")) == (2, 1)
    assert "The model knows airplane, automobile, bird and so on, digits has 0, 1, 2" in err


def test_evaluate_names_a_variant(capsys, runs, tmp_path):
    def label(name: str, *more: str) -> tuple[str, str, bool]:
        words = ["--corruptions", "none", "--limit", "2", "--out", tmp_path / f"{name}.json"]
        assert run(capsys, "evaluate", runs / "mt3", *words, *more)[0] == 0
        protocol = json.loads((tmp_path / f"{name}.json").read_text())["protocol"]
        return protocol["label"], protocol["adaptation"]["layers"], protocol["own_adaptation"]

    assert label("a") == ("", "all", True)
    assert label("b", "--layers", "all") == ("", "all", True)
    assert label("c", "--layers", "norm") == ("", "norm", False)
    assert label("g", "--gate", "0.9") == ("", "all", False)
    assert label("d", "--layers", "last", "--label", "late layers") == ("late layers", "last", False)


def test_what_adapts_nothing_takes_no_settings(capsys, runs, tmp_path):
    for model, words, told in (
        (
            "baseline",
            ["--layers", "norm", "--steps", "2"],
            "This model has nothing to adapt with; drop --steps, --layers.",
        ),
        ("baseline", ["--controls"], "This model has nothing to adapt with; drop --controls."),
        ("mt3", ["--unadapted", "--lr", "1", "--controls"], "Nothing adapts with --unadapted; drop --lr, --controls."),
    ):
        code, out, err = run(capsys, "evaluate", runs / model, *words, "--out", tmp_path / "e.json")
        assert (code, out, err) == (2, "", f"mt3: {told}\n")
    words = ["--unadapted", "--corruptions", "none", "--limit", "2", "--out", tmp_path / "r.json"]
    assert run(capsys, "evaluate", runs / "mt3", *words)[0] == 0
    assert json.loads((tmp_path / "r.json").read_text())["protocol"]["adaptation"] is None


def test_evaluate_reads_a_published_directory(capsys, runs, tmp_path):
    digits = load_digits()
    folder = tmp_path / "digits-c"
    folder.mkdir()
    for name in ("fog", "snow"):
        np.save(folder / f"{name}.npy", np.tile(digits.test_images[:3], (5, 1, 1, 1)))
    np.save(folder / "labels.npy", np.tile(digits.test_labels[:3], 5))
    words = ["evaluate", runs / "mt3", "--corrupted", folder, "--out", tmp_path / "r.json", "--severity", "1", "5"]
    assert run(capsys, *words)[0] == 0
    result = json.loads((tmp_path / "r.json").read_text())
    # nothing is corrupted here, so every corruption is as the clean images
    names = [(c["name"], c["severity"]) for c in result["corruptions"]]
    assert sorted(names) == [("fog", 1), ("fog", 5), ("snow", 1), ("snow", 5)]
    for entry in result["corruptions"]:
        assert entry["rows"]["after"]["nll"] == pytest.approx(result["clean"]["after"]["nll"])


def test_digits_can_be_evaluated_on_with_a_run_that_has_a_directory(capsys, runs, tmp_path):
    shutil.copytree(runs / "mt3", tmp_path / "run")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps(about | {"data_dir": str(tmp_path)}))
    words = ["--data", "digits", "--limit", "2", "--corruptions", "none", "--out", tmp_path / "r.json"]
    assert run(capsys, "evaluate", tmp_path / "run", *words)[0] == 0
    assert json.loads((tmp_path / "r.json").read_text())["protocol"]["data"] == "digits"


def test_frost_without_its_photos_is_refused_before_the_first_image(capsys, runs, tmp_path, monkeypatch):
    monkeypatch.setattr("mt3.corruptions.weather.find_spec", lambda name: None)
    for asked in ([], ["--corruptions", "every"], ["--corruptions", "fog", "frost"]):
        code, out, err = run(capsys, "evaluate", runs / "mt3", *asked, "--limit", "2", "--out", tmp_path / "r.json")
        assert (code, out) == (2, "")
        assert err.startswith("mt3: Corruption 'frost' needs photos: run `pip install --no-deps imagecorruptions`")
    assert not list(tmp_path.iterdir())


def test_no_corruptions_gives_the_clean_row(capsys, runs, tmp_path):
    words = ["evaluate", runs / "mt3", "--corruptions", "none", "--limit", "2", "--out", tmp_path / "r.json"]
    code, out, _ = run(capsys, *words)
    assert code == 0
    clean = read_evaluation(tmp_path / "r.json").accuracy("after", None, CLEAN)
    assert "| clean      |" in out
    assert f"{clean:.1f} |" in out


def test_labels_are_checked_before_any_work(capsys, runs, tmp_path):
    mt3.load(runs / "mt3").save_pretrained(tmp_path / "model")
    np.save(tmp_path / "fog.npy", np.zeros((10, 32, 32, 3), dtype=np.uint8))
    np.save(tmp_path / "labels.npy", np.full(10, 11, dtype=np.uint8))
    words = ["evaluate", tmp_path / "model", "--corrupted", tmp_path, "--out", tmp_path / "r.json"]
    code, _, err = run(capsys, *words)
    assert code == 2
    assert "label 11 at index 0" in err
    assert not (tmp_path / "r.json.partial").exists()


def test_names_in_a_directory_are_checked_before_any_work(capsys, runs, tmp_path):
    digits = load_digits()
    np.save(tmp_path / "fog.npy", np.tile(digits.test_images[:2], (5, 1, 1, 1)))
    np.save(tmp_path / "labels.npy", np.tile(digits.test_labels[:2], 5))
    for name in ("rain", "held-out"):
        words = ["evaluate", runs / "mt3", "--corrupted", tmp_path, "--corruptions", name, "--out", tmp_path / "r.json"]
        code, _, err = run(capsys, *words)
        assert code == 2
        assert len(err.splitlines()) == 1
        assert "fog" in err
        assert not (tmp_path / "r.json.partial").exists()


def test_an_interrupted_evaluation_resumes(capsys, runs, tmp_path):
    """A real Ctrl-C, to the whole process group."""
    out = tmp_path / "r.json"
    asked = ["--corruptions", "fog", "contrast", "--limit", "400", "--views", "2"]
    words = ["evaluate", runs / "mt3", *asked, "--out", out]
    command = [sys.executable, "-m", "mt3", *map(str, words)]
    process = subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    pieces = tmp_path / "r.json.partial"
    deadline = time.monotonic() + 60
    while len(list(pieces.glob("0*.npz"))) < 2:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in err
    done = len(list(pieces.glob("0*.npz")))
    time.sleep(1)
    assert len(list(pieces.glob("0*.npz"))) == done < 24
    damaged = next(pieces.glob("0*.npz"))
    damaged.write_bytes(damaged.read_bytes()[:100])
    assert run(capsys, *words)[0] == 0
    assert run(capsys, *words[:-1], tmp_path / "whole.json")[0] == 0
    cut, whole = (read_evaluation(tmp_path / f"{name}.json") for name in ("r", "whole"))
    for row in ("before", "view_average", "after"):
        assert cut.accuracy(row) == pytest.approx(whole.accuracy(row))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_an_evaluation_as_ctrl_c_does(runs, tmp_path, number, code):
    words = ["evaluate", runs / "mt3", "--corruptions", "fog", "--limit", "500", "--out", tmp_path / "r.json"]
    command = [sys.executable, "-m", "mt3", *map(str, words), "--threads", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    pieces = tmp_path / "r.json.partial"
    deadline = time.monotonic() + 60
    while not list(pieces.glob("0*.npz")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    process.send_signal(number)  # as `timeout` does
    _, err = process.communicate(timeout=20)
    assert process.returncode == code
    assert err.splitlines()[-1] == "mt3: interrupted; the same command goes on where it stopped"
    assert "Traceback" not in err
    left = {path.name for path in pieces.iterdir()}
    assert "protocol.json" in left
    assert not any(name.startswith(".") for name in left)
