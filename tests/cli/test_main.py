"""The command line, run as a user runs it: values, exit codes and one clear sentence for bad input."""

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import mt3
from mt3.adaptation.averages import averaged_logits
from mt3.cli.main import main
from mt3.config.methods import METHODS
from mt3.corruptions import PAPER
from mt3.data import load_digits
from mt3.reporting.curves import _read_metrics
from mt3.training.runs import cut_metrics

SMALL = ["--depth", "8", "--width", "4", "--groups", "2", "--hidden", "16", "--projection", "8", "--test-views", "4"]


def run(capsys, *words: str | Path) -> tuple[int, str, str]:
    """Run the command in this process."""
    code = main([str(w) for w in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def train_words(method: str, out: Path, steps: int = 3) -> list[str]:
    sizes = ["--tasks", "2", "--task-size", "4"] if method == "mt3" else ["--task-size", "8"]
    words = ["train", "--method", method, "--data", "digits", "--preset", "paper", "--out", str(out), "--seed", "3"]
    return [*words, "--max-steps", str(steps), "--threads", "1", *SMALL, *sizes]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """All five trainings, from the command line."""
    folder = tmp_path_factory.mktemp("runs")
    for method in METHODS:
        assert main(train_words(method, folder / method)) == 0
    return folder


@pytest.fixture
def picture(tmp_path) -> Path:
    Image.fromarray(load_digits().test_images[0]).save(tmp_path / "digit.png")
    return tmp_path / "digit.png"


@pytest.mark.parametrize("method", METHODS)
def test_train_then_evaluate_then_predict(capsys, runs, tmp_path, picture, method):
    losses = [json.loads(line) for line in (runs / method / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in losses] == [1, 2, 3]
    model = mt3.load(runs / method)
    assert model.selfsup == METHODS[method].selfsup
    out = tmp_path / "r.json"
    words = ["--corruptions", "contrast", "fog", "--severity", "5", "--limit", "4", "--out", out]
    code, text, _ = run(capsys, "evaluate", runs / method, *words, *(["--steps", "1"] if METHODS[method].after else []))
    assert code == 0
    result = json.loads(out.read_text())
    assert result["protocol"]["method"] == method
    assert result["protocol"]["train_seed"] == 3
    assert f"{result['average']['before']:.1f}" in text
    assert (result["average"]["after"] is not None) == (METHODS[method].after is not None)
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
        assert answer["selfsup_loss_before"] > 0


def test_training_losses_are_reproduced(runs, tmp_path):
    """The same command in a process of its own gives the same weights, bit by bit."""
    words = train_words("mt3", tmp_path / "again")
    subprocess.run([sys.executable, "-m", "mt3", *words], check=True, capture_output=True)
    for name, value in mt3.load(runs / "mt3").state_dict().items():
        assert torch.equal(mt3.load(tmp_path / "again").state_dict()[name], value)


def test_resume_and_init_from_the_command_line(capsys, runs, tmp_path):
    assert run(capsys, *train_words("mt3", tmp_path / "a", 1))[0] == 0
    assert run(capsys, *train_words("mt3", tmp_path / "a", 3), "--resume")[0] == 0
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (runs / "mt3" / "model.safetensors").read_bytes()
    assert run(capsys, *train_words("mt3", tmp_path / "warm", 0), "--init", runs / "jt")[0] == 0
    warm, joint = (mt3.load(p).state_dict() for p in (tmp_path / "warm", runs / "jt"))
    assert all(torch.equal(warm[n], joint[n]) for n in warm)


def test_a_limited_training_goes_on_as_if_there_had_been_no_limit(capsys, tmp_path, picture):
    """MT3 of the demo begins from a supervised training, of 2200 steps."""

    def words(name: str, steps: int) -> list[str]:
        begin = ["train", "--method", "mt3", "--data", "digits", "--preset", "demo", "--out", str(tmp_path / name)]
        return [*begin, "--max-steps", str(steps), "--width", "4", "--log-every", "1", "--threads", "1"]

    code, out, _ = run(capsys, *words("cut", 10))
    assert code == 0
    assert out.splitlines() == [
        f"{tmp_path / 'cut'}: mt3 on digits, its start is not finished",
        "stopped after 10 of 2394 steps; --resume goes on",
    ]
    for command in (["evaluate", tmp_path / "cut"], ["predict", tmp_path / "cut", picture]):
        code, out, err = run(capsys, *command)
        assert (code, out) == (2, "")
        missing = "config.json, model.safetensors: the run is not finished, continue it with --resume"
        assert err == f"mt3: {tmp_path / 'cut'} has no {missing}.\n"
    code, out, _ = run(capsys, *words("cut", 20), "--resume")
    assert (code, out.splitlines()[-1]) == (0, "stopped after 20 of 2394 steps; --resume goes on")
    assert run(capsys, *words("whole", 20))[0] == 0
    states = [mt3.load(tmp_path / name / "warm").state_dict() for name in ("cut", "whole")]
    assert all(torch.equal(states[0][name], value) for name, value in states[1].items())
    logs = [(tmp_path / name / "warm" / "metrics.jsonl").read_text() for name in ("cut", "whole")]
    assert logs[0] == logs[1]
    assert len(logs[0].splitlines()) == 20


def test_results_say_how_far_their_run_was_trained(capsys, runs, tmp_path):
    def evaluate(model: Path, name: str) -> tuple[dict[str, Any], str]:
        words = ["--data", "digits", "--limit", "2", "--corruptions", "none", "--out", tmp_path / f"{name}.json"]
        code, text, _ = run(capsys, "evaluate", model, *words)
        assert code == 0
        protocol = json.loads((tmp_path / f"{name}.json").read_text())["protocol"]
        return {key: protocol[key] for key in ("trained_steps", "total_steps") if key in protocol}, text

    told, text = evaluate(runs / "mt3", "limited")
    total = 200 * (1297 // 8)
    assert told == {"trained_steps": 3, "total_steps": total}
    sentence = f"{runs / 'mt3'} is not finished: this is after 3 of {total} steps; train it with --resume"
    assert text.splitlines()[-2] == sentence
    words = ["train", "--method", "baseline", "--out", tmp_path / "done", "--threads", "1", *SMALL]  # of the demo
    assert run(capsys, *words, "--epochs", "0.05", "--warm-epochs", "0.1")[0] == 0
    told, text = evaluate(tmp_path / "done", "finished")
    assert told == {"trained_steps": 6, "total_steps": 6}  # 4 of its start, then 2
    assert "not finished" not in text
    mt3.load(runs / "mt3").save_pretrained(tmp_path / "model")
    told, text = evaluate(tmp_path / "model", "model")
    assert told == {}
    assert "not finished" not in text


def test_a_model_of_unknown_steps_is_not_evaluated(capsys, runs, tmp_path):
    """Of a run that was killed between its model and its run.json, or whose run.json is damaged."""
    shutil.copytree(runs / "mt3", tmp_path / "run")
    told = json.loads((tmp_path / "run" / "run.json").read_text())
    words = ["evaluate", tmp_path / "run", "--limit", "2", "--corruptions", "none"]
    for changed, sentence in (
        ({"step": None, "chain": None}, "is damaged: expected step to be a number up to total_steps"),
        ({"chain": {"step": 7, "total_steps": 5}}, "is damaged: expected step to be a number up to total_steps, got 7"),
        ({"chain": {"step": "3", "total_steps": 5}}, "is damaged"),
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


@pytest.mark.parametrize("method", ["baseline", "mt3"])
def test_predict_averages_and_shuts_the_gate(capsys, runs, picture, method):
    model = mt3.load(runs / method)
    digit = torch.from_numpy(load_digits().test_images[:1]).permute(0, 3, 1, 2)

    def answer(*more: str) -> dict[str, Any]:
        code, text, _ = run(capsys, "predict", runs / method, picture, "--json", *more)
        assert code == 0
        return json.loads(text)[0]

    averaged = averaged_logits(model, digit, digit.float() / 255, 5, 0).softmax(1).max().item()
    assert answer("--average", "5")["before"]["probability"] == pytest.approx(averaged, abs=1e-5)
    assert answer("--average", "5")["before"]["probability"] != answer()["before"]["probability"]
    if method == "mt3":
        after = mt3.Adapter(model, average=5)(digit).softmax(1).max().item()
        assert answer("--average", "5")["after"]["probability"] == pytest.approx(after, abs=1e-5)
        shut = answer("--gate", "0")
        assert shut["after"] == shut["before"] != answer()["after"]
        assert (shut["adapted"], answer()["adapted"]) == (False, True)
        line = run(capsys, "predict", runs / method, picture, "--gate", "0")[1]
        assert line.endswith("% before (sure, so not adapted)\n")
    else:
        assert answer()["adapted"] is False


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:130] err == 0. DefaultCPUAllocator: can't allocate memory: you"),
    ],
)
def test_too_little_memory_is_said_in_a_sentence(capsys, monkeypatch, runs, picture, error):
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("mt3.evaluation.predict.Adapter", fail)
    code, _, err = run(capsys, "predict", runs / "mt3", picture)
    assert (code, err) == (2, "mt3: There is not enough memory for this; lower views, average, tasks or task_size.\n")
    error = RuntimeError("an unsupported memory format")
    with pytest.raises(RuntimeError, match="memory format"):  # an error of ours keeps its traceback
        run(capsys, "predict", runs / "mt3", picture)


@pytest.mark.parametrize(
    ("method", "option"), [("mt3", "--views"), ("mt3", "--steps"), ("mt3", "--average"), ("baseline", "--average")]
)
def test_numbers_without_bounds_are_refused(capsys, runs, picture, method, option):
    code, _, err = run(capsys, "predict", runs / method, picture, option, "999999999")
    low = 1 if option == "--views" else 0
    sentence = f"Expected {option[2:]} to be a whole number from {low} to 10000, got 999999999."
    assert (code, err) == (2, f"mt3: {sentence}\n")


def test_predict_says_what_it_converted(capsys, runs, tmp_path):
    Image.fromarray(np.zeros((40, 64), dtype=np.uint8)).save(tmp_path / "wide.png")
    code, out, err = run(capsys, "predict", runs / "mt3", tmp_path / "wide.png", "--lr", "0.01")
    assert code == 0
    assert "grey repeated in three channels, 64x40 cut to its centre square and scaled to 32x32" in err
    assert out.startswith(f"{tmp_path / 'wide.png'}: ")
    assert "after adapting" in out


def test_a_model_of_the_package_goes_by_its_name(capsys, runs, tmp_path, picture, monkeypatch):
    monkeypatch.setattr("mt3.models.store.shipped_models", lambda: {"tiny": runs / "mt3"})
    monkeypatch.chdir(tmp_path)
    ours = mt3.load(runs / "mt3").state_dict()
    assert all(torch.equal(value, ours[name]) for name, value in mt3.load("tiny").state_dict().items())
    answers = [run(capsys, "predict", model, picture, "--json") for model in ("tiny", runs / "mt3")]
    assert answers[0] == answers[1]
    assert answers[0][0] == 0
    code, _, err = run(capsys, "evaluate", "tiny", "--limit", "2", "--corruptions", "none")
    assert (code, err.count("\n")) == (2, 1)
    assert "comes with the package, where no results go; give --out" in err
    words = ["--limit", "2", "--corruptions", "none", "--out", tmp_path / "r.json"]
    assert run(capsys, "evaluate", "tiny", *words)[0] == 0
    assert json.loads((tmp_path / "r.json").read_text())["protocol"]["train_seed"] == 3  # of the run that it is
    code, _, err = run(capsys, "predict", "tin", picture)
    assert code == 2
    assert "Expected a run or model directory or tiny, but tin is not there" in err
    (tmp_path / "tiny").mkdir()  # of another kind, and no model
    assert run(capsys, "predict", "tiny", picture, "--json") == answers[0]
    assert run(capsys, "evaluate", "tiny", "--limit", "2", "--corruptions", "none")[0] == 2
    (tmp_path / "tiny" / "run.json").write_text('{"config": {}}')  # a run of that name comes first
    code, _, err = run(capsys, "predict", "tiny", picture)
    assert code == 2
    assert "tiny has no config.json" in err


def test_a_model_of_other_classes_is_not_evaluated(capsys, tmp_path):
    words = ["--data", "digits", "--limit", "2", "--corruptions", "none", "--out", tmp_path / "r.json"]
    code, _, err = run(capsys, "evaluate", "cifar10-cpu", *words)
    assert (code, err.count("\n")) == (2, 1)
    assert "The model knows airplane, automobile, bird and so on, digits has 0, 1, 2" in err


def test_an_answer_that_is_not_finite_is_refused(capsys, runs, picture):
    code, out, err = run(capsys, "predict", runs / "mt3", picture, "--lr", "1e30")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "The model's answer is not finite; lower --lr" in err


def test_evaluate_names_a_variant(capsys, runs, tmp_path):
    def label(name: str, *more: str) -> tuple[str | None, str]:
        words = ["--corruptions", "none", "--limit", "2", "--out", tmp_path / f"{name}.json"]
        assert run(capsys, "evaluate", runs / "mt3", *words, *more)[0] == 0
        protocol = json.loads((tmp_path / f"{name}.json").read_text())["protocol"]
        return protocol.get("ablation"), protocol["adapt_layers"]

    assert label("a") == (None, "all")
    assert label("b", "--adapt-layers", "all") == (None, "all")
    assert label("c", "--adapt-layers", "norm") == ("adapt_layers=norm when evaluated", "norm")
    assert label("g", "--gate", "0.9", "--average", "2") == ("average=2, gate=0.9 when evaluated", "all")
    assert label("d", "--adapt-layers", "last", "--ablation", "late layers") == ("late layers", "last")
    code, _, err = run(capsys, "evaluate", runs / "baseline", "--adapt-layers", "norm", "--out", tmp_path / "e.json")
    assert code == 2
    assert "nothing to adapt with; drop --steps, --lr, --adapt-layers and --gate" in err


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
        assert entry["after"]["nll"] == pytest.approx(result["clean"]["after"]["nll"])


def bad_inputs(runs: Path, tmp: Path) -> list[tuple[list[str | Path], str]]:
    text = tmp / "words.png"
    text.write_text("no image")
    huge = tmp / "huge.png"
    Image.new("1", (7200, 7000)).save(huge)
    digits_c = tmp / "c"
    digits_c.mkdir()
    np.save(digits_c / "fog.npy", np.zeros((10, 32, 32, 3), dtype=np.uint8))
    np.save(digits_c / "labels.npy", np.full(10, 77, dtype=np.uint8))
    train = ["train", "--data", "digits", "--out", tmp / "out"]
    corrupt = ["corrupt", "--out", tmp / "out"]
    return [
        ([], "The following arguments are required: COMMAND"),
        (["teach"], "Unknown command 'teach': expected one of train, evaluate"),
        (["trian"], "Unknown command 'trian' (did you mean 'train'?): expected one of train, evaluate"),
        ([*train, "--method", "mt4"], "Unknown method 'mt4' (did you mean 'mt3'?): expected one of baseline-sun"),
        ([*train, "--method", "mt3", "--preset", "fast"], "Unknown preset 'fast': expected one of"),
        ([*train, "--method", "mt3", "--preset", "papr"], "Unknown preset 'papr' (did you mean 'paper'?): expected"),
        ([*train, "--method", "mt3", "--widht", "8"], "Unexpected argument '--widht' (did you mean '--width'?); see"),
        ([*train, "--method", "mt3", "--thraeds=2"], "Unexpected argument '--thraeds=2' (did you mean '--threads'?)"),
        ([*train, "--metod", "mt3"], "Unexpected argument '--metod' (did you mean '--method'?); see `mt3 train"),
        (["train", "--method=mt3", "--ot=x"], "Unexpected argument '--ot=x' (did you mean '--out'?)"),
        ([*train, "--width", "8"], "The following arguments are required: --method; see `mt3 train --help`."),
        ([*train, "--method", "mt3", "quickly"], "Unexpected argument 'quickly'; see `mt3 train --help`."),
        ([*train, "--method", "mt3", "--width", "x"], "Expected a whole number for width, got 'x'"),
        ([*train, "--method", "mt3", "--width"], "Expected a value after --width"),
        ([*train, "--method", "mt3", "--device", "abacus"], "Device 'abacus' cannot be used"),
        ([*train, "--method", "mt3", "--seed", "-1"], "expected a whole number from 0 to 999999999, got '-1'"),
        ([*train, "--method", "mt3", "--depth", "9"], "6n+2 layers"),
        ([*train, "--method", "mt3", "--device", "meta"], "Device 'meta' cannot be used"),
        ([*train, "--method", "mt3", "--init", tmp / "nowhere"], "Expected a run or model directory"),
        (["train", "--method", "mt3", "--data", "mnist", "--out", tmp / "out"], "Unknown data set 'mnist'"),
        (["train", "--method", "mt3", "--data", "cifar10", "--data-dir", tmp, "--out", tmp / "out"], "--download"),
        (["evaluate", runs / "mt3", "--corruptions", "rain"], "Unknown corruption 'rain'"),
        (
            ["evaluate", runs / "mt3", "--corruptions", "fogg"],
            "Unknown corruption 'fogg' (did you mean 'fog'?): expected",
        ),
        (["evaluate", runs / "mt3", "--data", "cifar"], "Unknown data set 'cifar' (did you mean 'cifar10'?)"),
        (["evaluate", runs / "mt3", "--adapt-layers", "norms"], "adapted layers 'norms' (did you mean 'norm'?)"),
        (["evaluate", runs / "mt3", "--corrupted", digits_c, "--corruptions", "fogg"], "label 77"),
        (
            ["evaluate", runs / "mt3", "--ablation", "a\x1b[31m"],
            "Expected a label of 1 to 255 printable characters for",
        ),
        (
            ["evaluate", runs / "mt3", "--ablation", "a" * 10_000],
            "Expected a label of 1 to 255 printable characters for",
        ),
        (["evaluate", runs / "mt3", "--severity", "6"], "Expected severities from 1 to 5, got 6"),
        (["evaluate", runs / "mt3", "--data", "digits", "--corrupted", digits_c], "label 77 at index 0"),
        (["evaluate", tmp / "nowhere"], "is not there"),
        (["evaluate", runs / "mt3", "--lr", "inf"], "expected a number from 0 on, got 'inf'"),
        (["evaluate", runs / "mt3", "--out", tmp / "x.npz"], "ending in .json"),
        (["evaluate", runs / "baseline", "--steps", "2"], "nothing to adapt with; drop --steps"),
        (["evaluate", runs / "mt3", "--bright"], "Unexpected argument '--bright'; see `mt3 evaluate --help`."),
        (["reproduce", "--ablations", "norm-olny"], "Unknown ablation 'norm-olny' (did you mean 'norm-only'?)"),
        (["reproduce", "--methods", "MT3"], "Unknown method 'MT3' (did you mean 'mt3'?)"),
        (["corrupt"], "Expected --out DIR for the images, --preview FILE for a figure, or both; got neither"),
        ([*corrupt, "--severity", "3", "6"], "Expected severities from 1 to 5, got 3, 6; choose among these."),
        ([*corrupt, "--severities", "3"], "Unexpected argument '--severities' (did you mean '--severity'?)"),
        ([*corrupt, "--severity", "x"], "expected a whole number from 0 to 999999999, got 'x'"),
        ([*corrupt, "--corruptions", "rain"], "Unknown corruption 'rain': expected one of"),
        ([*corrupt, "--corruptions", "none"], "Unknown corruption 'none': expected one of"),
        ([*corrupt, "--limit", "0"], "Expected the limit to be a whole number from 1 on, got 0."),
        ([*corrupt, "--workers", "0"], "Expected at least 1 worker, got 0; give --workers 1 for a single process."),
        ([*corrupt, "--data", "mnist"], "Unknown data set 'mnist'"),
        ([*corrupt, "--data", "cifar10", "--data-dir", tmp], "--download"),
        (["corrupt", "--out", text], f"Expected a directory to write to, got the file {text}; choose another --out."),
        (["corrupt", "--out", "/proc/c"], "Cannot make /proc/c: No such file or directory; choose a directory"),
        (["corrupt", "--out", digits_c], "holds .npy files that `mt3 corrupt` did not write; choose another --out."),
        (["corrupt", "--preview", tmp / "p.jpg"], "Expected a name ending in .png or .pdf for the figure, got"),
        (["corrupt", "--preview", tmp / "p.png", "--image", "500"], "Expected an --image from 0 to 499, got 500"),
        (["predict", runs / "mt3", text], "words.png is not an image that can be read"),
        (["predict", runs / "mt3", huge], "more than the 50 megapixels"),
        (["predict", runs / "mt3", tmp / "none.png"], "No such file"),
        (["predict", runs / "mt3", text, "--lr", "fast"], "expected a number from 0 on, got 'fast'"),
    ]


def test_bad_input_gets_one_sentence_and_exit_code_2(capsys, runs, tmp_path):
    for words, expected in bad_inputs(runs, tmp_path):
        code, out, err = run(capsys, *words)
        assert code == 2, words
        assert expected in err, words
        assert err.startswith("mt3: "), words
        assert len(err.strip().splitlines()) == 1, err
        assert "Traceback" not in err
        assert out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("where", [["--data-dir", "photos"], ["--download"]])
def test_digits_are_not_taken_from_a_directory(capsys, runs, tmp_path, monkeypatch, where):
    """Somebody who says where the images are does not want the embedded ones."""
    monkeypatch.chdir(tmp_path)
    for words in (
        ["train", "--method", "mt3", "--out", "out", "--max-steps", "1"],
        ["evaluate", runs / "mt3", "--limit", "2", "--corruptions", "none", "--out", "r.json"],
        ["corrupt", "--out", "c", "--corruptions", "fog", "--limit", "1"],
        ["reproduce", "--out", "study", "--methods", "baseline", "--corruptions", "fog"],
    ):
        code, out, err = run(capsys, *words, *where)
        assert (code, out) == (2, "")
        told = "--data-dir photos" if len(where) == 2 else "--download"
        assert err == f"mt3: The digits do not come from {told}: give --data cifar10 or cifar100, or drop this.\n"
    assert not list(tmp_path.iterdir())


def test_digits_can_be_evaluated_on_with_a_run_that_has_a_directory(capsys, runs, tmp_path):
    shutil.copytree(runs / "mt3", tmp_path / "run")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps(about | {"data_dir": str(tmp_path)}))
    words = ["--data", "digits", "--limit", "2", "--corruptions", "none", "--out", tmp_path / "r.json"]
    assert run(capsys, "evaluate", tmp_path / "run", *words)[0] == 0
    assert json.loads((tmp_path / "r.json").read_text())["protocol"]["data"] == "digits"


DEEP = ["[" * 100_000, '{"a": ' * 200 + "1" + "}" * 200]


@pytest.mark.parametrize("text", DEEP, ids=["endless", "whole"])
@pytest.mark.parametrize("name", ["config.json", "run.json", "evaluation.json", "c/protocol.json", "model.safetensors"])
def test_deeply_nested_json_is_one_sentence(capsys, runs, tmp_path, picture, name, text):
    folder = tmp_path / "run"
    shutil.copytree(runs / "mt3", folder)
    (folder / "c").mkdir()
    np.save(folder / "c" / "fog.npy", np.zeros((5, 32, 32, 3), dtype=np.uint8))
    np.save(folder / "c" / "labels.npy", np.zeros(5, dtype=np.uint8))
    content = text.encode()
    (folder / name).write_bytes(struct.pack("<Q", len(content)) + content if "safetensors" in name else content)
    words: list[str | Path] = ["evaluate", folder, "--corrupted", folder / "c", "--out", tmp_path / "r.json"]
    if name == "evaluation.json":
        words = ["report", folder / name]
    code, out, err = run(capsys, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert str(folder / name) in err
    assert ("in more than 50 levels" in err) == (name != "model.safetensors")


def test_deep_lines_of_metrics_end_them(runs, tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "epoch": 1, "loss": 2}\n' + DEEP[1] + "\n" + DEEP[0] + "\n")
    assert [record["loss"] for record in _read_metrics(tmp_path / "metrics.jsonl")] == [2]
    cut_metrics(tmp_path / "metrics.jsonl", 5)
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 1


def test_a_pipe_in_place_of_a_file_is_refused(capsys, runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs / "mt3", folder)
    (folder / "run.json").unlink()
    os.mkfifo(folder / "run.json")
    code, _, err = run(capsys, "evaluate", folder, "--limit", "2", "--out", tmp_path / "r.json")
    assert (code, err) == (
        2,
        f"mt3: Cannot read {folder / 'run.json'}: It is a directory, a pipe or a device, not a file.\n",
    )


def test_what_a_file_says_is_not_repeated_whole(capsys, runs, tmp_path, picture):
    folder = tmp_path / "run"
    shutil.copytree(runs / "mt3", folder)
    config = json.loads((folder / "config.json").read_text())
    about = json.loads((folder / "run.json").read_text())
    for change in ({"head": "\x1b[2J " * 2000}, {"\x1b" * 2000: 1}, {"width": "w " * 5000}, {"selfsup": [[1] * 9000]}):
        (folder / "config.json").write_text(json.dumps(config | change))
        code, out, err = run(capsys, "predict", folder, picture)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert len(err) < 2100
        assert "\x1b" not in err
    (folder / "config.json").write_text(json.dumps(config | {"classes": ["\x1b[2J" + 5000 * "c"] * 10}))
    code, out, _ = run(capsys, "predict", folder, picture)
    assert code == 0
    assert "\\x1b[2J" in out
    assert "\x1b" not in out
    assert len(out.removeprefix(str(picture))) < 200
    (folder / "run.json").write_text(json.dumps(about | {"config": about["config"] | {"data": "d " * 5000}}))
    code, _, err = run(capsys, "evaluate", folder, "--out", tmp_path / "r.json")
    assert (code, len(err) < 200) == (2, True)


def test_divergence_exits_with_2(capsys, tmp_path):
    words = [w if w != "3" else "9" for w in train_words("baseline", tmp_path / "out", 9)]
    code, _, err = run(capsys, *words, "--lr", "1e25")
    assert code == 2
    assert "not finite at step" in err.splitlines()[-1]


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
    clean = json.loads((tmp_path / "r.json").read_text())["clean"]
    assert "| clean      |" in out
    assert f"{clean['after']['accuracy']:.1f} |" in out


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
    words = [
        "evaluate",
        runs / "mt3",
        "--corruptions",
        "fog",
        "contrast",
        "--limit",
        "400",
        "--views",
        "2",
        "--out",
        out,
    ]
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
    cut, whole = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("r", "whole"))
    assert cut["average"] == pytest.approx(whole["average"])


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


def test_killed_training_ends_with_the_same_bits(capsys, runs, tmp_path):
    """A real SIGKILL at no particular moment, then --resume."""
    words = [*train_words("baseline", tmp_path / "cut", 200), "--checkpoint-every", "20"]
    process = subprocess.Popen([sys.executable, "-m", "mt3", *words], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "cut" / "checkpoints").glob("step-*")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not (tmp_path / "cut" / "model.safetensors").exists()
    assert run(capsys, *words, "--resume")[0] == 0
    assert run(capsys, *train_words("baseline", tmp_path / "whole", 200), "--checkpoint-every", "20")[0] == 0
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("cut", "whole")]
    assert files[0] == files[1]


def test_demo_from_the_command_line(capsys, tmp_path, monkeypatch):
    """All of the demo at a size without meaning: its files and its verdict follow from its own numbers."""
    monkeypatch.setattr("mt3.corruptions.weather.find_spec", lambda name: None)  # no photos for frost
    words = ["demo", "--out", tmp_path / "demo", "--images", "3", "--max-steps", "2", "--threads", "1"]
    code, out, _ = run(capsys, *words)
    assert code == 0
    results = json.loads((tmp_path / "demo" / "results.json").read_text())
    summary = results["summary"]
    gap = summary["average"]["after"] - summary["average"]["plain"]
    assert summary["after_minus_plain"]["mean"] == pytest.approx(gap)
    assert ("BELOW the plain one" in out) == (summary["after_minus_plain"]["high"] < 0)
    assert ("above the plain one" in out) == (summary["after_minus_plain"]["low"] > 0)
    assert ("NOT SHOWN" in out) == (summary["after_minus_unrelated"]["low"] <= 0)
    assert f"{summary['average']['after']:.1f} |" in out
    assert out.startswith("SHORTENED to 2 steps a training: these numbers say nothing about the demo's own.")
    clean = [results[name]["clean"][row]["accuracy"] for name, row in (("plain", "before"), ("mt3", "before"))]
    assert f"| clean             | {clean[0]:11.1f} | {clean[1]:10.1f} |               - |               - |" in out
    assert [entry["name"] for entry in results["mt3"]["corruptions"]] == [n for n in PAPER if n != "frost"]
    assert "Without frost, whose photos are not here: run `pip install --no-deps imagecorruptions`" in out
    assert mt3.load(tmp_path / "demo").selfsup == "byol"
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
    assert shown == pytest.approx([summary["average"][row] for row in ("plain", "before", "after")], abs=0.05)


def test_corrupt_then_evaluate_gives_what_generated_images_give(capsys, runs, tmp_path):
    words = ["corrupt", "--out", tmp_path / "c", "--corruptions", "fog", "contrast", "--limit", "6", "--workers", "1"]
    code, out, _ = run(capsys, *words, "--severity", "5", "3")
    assert code == 0
    assert out == f"{tmp_path / 'c'}: digits under fog, contrast at severities 3, 5\n"
    assert run(capsys, *words, "--severity", "3", "5")[1].endswith("severities 3, 5; 2 of 2 were there\n")
    code, out, err = run(capsys, *words)
    assert code == 2
    assert "(severities [3, 5] there, [1, 2, 3, 4, 5] here)" in err
    names = ["--corruptions", "fog", "contrast", "--severity", "3", "5", "--limit", "6"]
    for name, more in (("generated", []), ("read", ["--corrupted", tmp_path / "c"])):
        assert run(capsys, "evaluate", runs / "mt3", *names, *more, "--out", tmp_path / f"{name}.json")[0] == 0
    generated, read = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("generated", "read"))
    assert read["corruptions"] == generated["corruptions"]


def test_preview_shows_the_pixels_that_are_written(capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    words = ["corrupt", "--out", tmp_path / "c", "--preview", tmp_path / "p.png", "--image", "2", "--limit", "3"]
    code, out, _ = run(capsys, *words, "--corruptions", "shot_noise", "fog", "--severity", "2", "4", "--workers", "1")
    assert code == 0
    assert out.endswith(f"wrote {tmp_path / 'p.png'}\n")
    picture = np.asarray(Image.open(tmp_path / "p.png").convert("RGB"))
    for name in ("shot_noise", "fog"):
        for severity in (0, 1):
            pixels = np.load(tmp_path / "c" / f"{name}.npy")[3 * severity + 2]
            large = pixels.repeat(4, axis=0).repeat(4, axis=1)
            windows = np.lib.stride_tricks.sliding_window_view(picture[22 * 4 :], (1, 128), axis=(0, 1))[0, :, :, 0]
            left = np.flatnonzero((windows == large[0].T).all(axis=(1, 2)))
            assert len(left) == 1  # the first row of pixels is there once
            np.testing.assert_array_equal(picture[88 : 88 + 128, left[0] : left[0] + 128], large)
    assert run(capsys, "corrupt", "--preview", tmp_path / "p.pdf", "--corruptions", "fog")[0] == 0
    assert (tmp_path / "p.pdf").read_bytes().startswith(b"%PDF")


def test_corrupting_needs_no_torch(tmp_path):
    code = (
        "import sys\nfrom mt3.cli.main import main\nassert main(sys.argv[1:]) == 0\nassert 'torch' not in sys.modules\n"
    )
    for words in (
        ["corrupt", "--out", tmp_path / "c", "--corruptions", "fog", "--limit", "2", "--preview", tmp_path / "p.png"],
    ):
        done = subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_help_answers_without_torch():
    code = (
        "import sys\nfrom mt3.cli.main import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit as e:\n"
        "    assert e.code == 0, e.code\nassert 'torch' not in sys.modules\n"
    )
    commands = ("train", "evaluate", "corrupt", "report")
    for words in (["--help"], *([command, "--help"] for command in commands), ["--version"]):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "mt3" in done.stdout


def test_import_mt3_is_light_and_complete():
    code = "import sys, mt3; assert 'torch' not in sys.modules; print(sorted(mt3.__all__)); mt3.corruptions.apply"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Adapter" in done.stdout
    assert all(getattr(mt3, name) is not None for name in mt3.__all__)
    with pytest.raises(AttributeError, match="no attribute 'adapter'"):
        _ = mt3.adapter  # type: ignore[attr-defined]


def test_progress_is_plain_when_not_a_terminal(tmp_path):
    words = [sys.executable, "-m", "mt3", *train_words("baseline", tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    assert "\r" not in done.stderr
    assert "train baseline: 3/3 steps," in done.stderr
    assert "steps/s, took" in done.stderr


def test_what_the_system_refuses_is_one_sentence(capsys, tmp_path):
    name = "a" * 300  # longer than a file's name may be
    for words in (["--out", name], ["--data", "cifar10", "--data-dir", name, "--out", tmp_path / "c"]):
        code, out, err = run(capsys, "corrupt", "--corruptions", "contrast", "--limit", "2", *words)
        assert (code, out) == (2, "")
        assert len(err.splitlines()) == 1
        assert "Traceback" not in err
    assert run(capsys, "corrupt", "--out", "")[0] == 2
    words = ["corrupt", "--preview", tmp_path / "p.png", "--corruptions", "contrast", "--out", tmp_path / "c"]
    assert run(capsys, *words, "--limit", "0")[:2] == (2, "")
    assert not (tmp_path / "p.png").exists()


def test_a_full_disk_under_the_output_is_said(tmp_path):
    words = ["corrupt", "--out", tmp_path / "c", "--corruptions", "contrast", "--limit", "2", "--workers", "1"]
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "mt3", *map(str, words)], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr
