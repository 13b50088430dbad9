"""`mt3 train`: its weights, resuming, kills and what it says of a training that is not finished."""

import os
import subprocess
import sys
import time

import torch

import mt3
from commands import run, train_words


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
    states = [mt3.load(tmp_path / name / "start").state_dict() for name in ("cut", "whole")]
    assert all(torch.equal(states[0][name], value) for name, value in states[1].items())
    logs = [(tmp_path / name / "start" / "metrics.jsonl").read_text() for name in ("cut", "whole")]
    assert logs[0] == logs[1]
    assert len(logs[0].splitlines()) == 20


def test_divergence_exits_with_2(capsys, tmp_path):
    words = [w if w != "3" else "9" for w in train_words("baseline", tmp_path / "out", 9)]
    code, _, err = run(capsys, *words, "--lr", "1e25")
    assert code == 2
    assert "not finite at step" in err.splitlines()[-1]


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


def test_progress_is_plain_when_not_a_terminal(tmp_path):
    words = [sys.executable, "-m", "mt3", *train_words("baseline", tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    assert "\r" not in done.stderr
    assert "train baseline: 3/3 steps," in done.stderr
    assert "steps/s, took" in done.stderr
