"""The command line as a whole: exit codes, and one clear sentence for bad input, damaged files and a full system."""

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import mt3
from commands import run
from mt3.reporting.curves import _read_metrics
from mt3.training.runs import cut_metrics


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
    assert (code, err) == (2, "mt3: There is not enough memory for this; lower views, tasks or task_size.\n")
    error = RuntimeError("an unsupported memory format")
    with pytest.raises(RuntimeError, match="memory format"):  # an error of ours keeps its traceback
        run(capsys, "predict", runs / "mt3", picture)


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
        ([*train, "--method", "mt3", "--width"], "Argument --width: expected one argument; see `mt3 train --help`."),
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
        (["evaluate", runs / "mt3", "--layers", "norms"], "Unknown layers 'norms' (did you mean 'norm'?)"),
        (["evaluate", runs / "mt3", "--corrupted", digits_c, "--corruptions", "fogg"], "label 77"),
        (["evaluate", runs / "mt3", "--label", "a\x1b[31m"], "Expected a label of 1 to 255 printable characters, got"),
        (["evaluate", runs / "mt3", "--label", "a" * 10_000], "Expected a label of 1 to 255 printable characters, got"),
        (["evaluate", runs / "mt3", "--label", " "], "Expected a label of 1 to 255 printable characters, got"),
        (["evaluate", runs / "mt3", "--severity", "6"], "Expected severities from 1 to 5, got 6"),
        (["evaluate", runs / "mt3", "--data", "digits", "--corrupted", digits_c], "label 77 at index 0"),
        (["evaluate", tmp / "nowhere"], "is not there"),
        (["evaluate", runs / "mt3", "--lr", "inf"], "Expected lr to be a number from 0.0 to 1e+30, got inf."),
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
        ([*corrupt, "--limit", "0"], "Argument --limit: expected a whole number from 1 to 999999999, got '0'"),
        ([*corrupt, "--workers", "0"], "expected a whole number from 1 to 999999999, got '0'"),
        ([*corrupt, "--data", "mnist"], "Unknown data set 'mnist'"),
        ([*corrupt, "--data", "cifar10", "--data-dir", tmp], "--download"),
        (["corrupt", "--out", text], f"Cannot write {text}: File exists; choose another --out."),
        (["corrupt", "--out", "/proc/c"], "Cannot write /proc/c: No such file or directory; choose another --out."),
        (["corrupt", "--out", digits_c], ".npy, which `mt3 corrupt` did not write; choose another --out."),
        (["corrupt", "--preview", tmp / "p.jpg"], "Expected a name ending in .png or .pdf for the figure, got"),
        (["corrupt", "--preview", tmp / "p.png", "--image", "500"], "Expected an --image from 0 to 499, got 500"),
        (["demo", "--images", "1"], "expected a whole number from 2 to 999999999, got '1'"),
        (["demo", "--max-steps", "0"], "expected a whole number from 1 to 999999999, got '0'"),
        (["predict", runs / "mt3", text], "words.png is not an image that can be read"),
        (["predict", runs / "mt3", huge], "more than the 50 megapixels"),
        (["predict", runs / "mt3", tmp / "none.png"], "No such file"),
        (
            ["predict", runs / "mt3", text, "--lr", "fast"],
            "Argument --lr: expected a number, got 'fast'; see `mt3 predict --help`.",
        ),
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
    for change in (
        {"backbone": "\x1b[2J " * 2000},
        {"\x1b" * 2000: 1},
        {"hidden": "w " * 5000},
        {"objective": [[1] * 9000]},
    ):
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
