"""Run directories: checkpoints, damage, what comes first, what run.json says, and one writer at a time."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import mt3
from mt3.cli.main import main
from mt3.config.config import NETWORK, Config, make_config
from mt3.data import Dataset
from mt3.models.store import load, load_checkpoint, read_run, save_checkpoint, tensors_hash
from mt3.support.errors import InputError
from mt3.support.files import own_directory, write_json
from mt3.support.signals import GRACE, Stopped, stop_on_signals
from mt3.training.loop import gradient_of_step
from mt3.training.runs import RunOptions
from trainings import SMALL, Killed, contents, metrics, small_config, train_small, weights

SLEEPER = """
import sys, time
from pathlib import Path
import mt3.training.loop
from mt3.cli.main import main
asleep, go = Path(sys.argv[1]), Path(sys.argv[2])
original = mt3.training.loop.gradient_of_step
def wait(*words):
    asleep.touch()
    while not go.exists():
        time.sleep(0.05)
    return original(*words)
mt3.training.loop.gradient_of_step = wait
sys.exit(main(sys.argv[3:]))
"""


@pytest.fixture
def start_sleeper(tmp_path) -> Iterator[Callable[..., subprocess.Popen]]:
    """Start a training that waits in its first step until there is a file `go`."""
    started = []

    def start(*words: str) -> subprocess.Popen:
        command = [sys.executable, "-c", SLEEPER, str(tmp_path / "asleep"), str(tmp_path / "go"), *words]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        started.append(process)
        deadline = time.monotonic() + 60
        while not (tmp_path / "asleep").exists():
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.01)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def progress(run: Path) -> tuple[int, int]:
    """Steps done and to do, of the run and of what comes before it."""
    about = read_run(run)["about"]
    return about["step"], about["total_steps"]


def sleeper_words(out: Path) -> list[str]:
    words = ["train", "--method", "baseline", "--preset", "demo", "--max-steps", "4", "--out", str(out)]
    return [*words, "--width", "4", "--threads", "1"]


def test_a_second_signal_ends_at_once(tmp_path, start_sleeper):
    process = start_sleeper(*sleeper_words(tmp_path / "run"))
    process.terminate()
    time.sleep(GRACE + 0.5)
    assert process.poll() is None  # it waits for the step
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_training_says_how_to_go_on_after_a_signal(tmp_path, start_sleeper, number, code):
    process = start_sleeper(*sleeper_words(tmp_path / "run"))
    process.send_signal(number)
    (tmp_path / "go").touch()
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert err.splitlines()[-2:] == ["stopped after 1 of 4000 steps; --resume goes on", "mt3: interrupted"]
    assert [line["step"] for line in metrics(tmp_path / "run" / "start")] == []  # logged every five
    assert progress(tmp_path / "run") == (1, 4000)


@pytest.mark.parametrize("damage", ["half", "flip", "empty"])
def test_damaged_checkpoint_is_refused_and_the_previous_used(tmp_path, digits, capsys, damage):
    config = small_config()
    train_small(config, digits, tmp_path / "whole", max_steps=6, checkpoint_every=2)
    train_small(config, digits, tmp_path / "cut", max_steps=4, checkpoint_every=2)
    newest = tmp_path / "cut" / "checkpoints" / "step-00000004.safetensors"
    content = bytearray(newest.read_bytes())
    if damage == "flip":
        content[-5] ^= 64
    newest.write_bytes(content if damage == "flip" else content[: len(content) // 2] if damage == "half" else b"")
    found = load_checkpoint(tmp_path / "cut")
    assert found is not None
    assert found[0] == 2
    assert "step-00000004.safetensors is damaged" in capsys.readouterr().err
    train_small(config, digits, tmp_path / "cut", max_steps=6, resume=True, checkpoint_every=2)
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")


def edit_metadata(path: Path, **changed: str | None) -> None:
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, {key: value for key, value in (metadata | changed).items() if value is not None})


@pytest.mark.parametrize(
    "changed", [{"step": "3"}, {"seconds": "1.000"}, {"run": "0" * 32}, {"more": "1"}, {"hash": None}]
)
def test_all_of_a_checkpoint_is_under_its_hash(tmp_path, digits, capsys, changed):
    config = small_config()
    train_small(config, digits, tmp_path / "cut", max_steps=2, checkpoint_every=1)
    newest = tmp_path / "cut" / "checkpoints" / "step-00000002.safetensors"
    edit_metadata(newest, **changed)
    found = load_checkpoint(tmp_path / "cut")
    assert found is not None
    assert found[0] == 1
    assert f"{newest} is damaged (its contents do not match their hash)" in capsys.readouterr().err
    train_small(config, digits, tmp_path / "cut", max_steps=4, resume=True, checkpoint_every=1)
    train_small(config, digits, tmp_path / "whole", max_steps=4, checkpoint_every=1)
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    newest = tmp_path / "cut" / "checkpoints" / "step-00000004.safetensors"
    newest.rename(newest.with_name("step-00000009.safetensors"))
    found = load_checkpoint(tmp_path / "cut")
    assert found is not None
    assert found[0] == 3
    assert "is damaged (its name says step 9, its contents step 4)" in capsys.readouterr().err


def test_a_checkpoint_of_another_run_is_refused(tmp_path, digits):
    config, name = small_config(), "checkpoints/step-00000002.safetensors"
    train_small(config, digits, tmp_path / "a", max_steps=1)
    others = {
        "seed": small_config(seed=1),
        "lr": small_config(lr=0.02),
        "start": config,
        "bookkeeping": config,
    }
    for label, other in others.items():
        more = {"start": {"init": tmp_path / "a"}, "bookkeeping": {"log_every": 2}}.get(label, {})
        train_small(other, digits, tmp_path / label, max_steps=2, **more)
        shutil.copy(tmp_path / label / name, tmp_path / "a" / name)
        if label == "bookkeeping":  # the same training
            train_small(config, digits, tmp_path / "a", max_steps=2, resume=True)
            assert weights(tmp_path / "a") == weights(tmp_path / label)
            continue
        before = contents(tmp_path / "a")
        with pytest.raises(InputError, match=r"step-00000002\.safetensors belongs to another run .*delete it"):
            train_small(config, digits, tmp_path / "a", max_steps=3, resume=True)
        assert contents(tmp_path / "a") == before
    shutil.move(tmp_path / "start", tmp_path / "moved")  # where a run lies is no matter
    assert train_small(config, digits, tmp_path / "moved", max_steps=3, resume=True) is not None


@pytest.mark.parametrize("name", ["step-abc", "step-10", "step-", "step-+0000010", "step-0000001\u0660"])
def test_a_strange_name_among_the_checkpoints_is_said(tmp_path, digits, name):
    config = small_config()
    train_small(config, digits, tmp_path, max_steps=2, checkpoint_every=1)
    (tmp_path / "checkpoints" / f"{name}.safetensors").touch()
    with pytest.raises(InputError, match=r"is not named as a checkpoint is \(step-00000010\.safetensors\); move it"):
        train_small(config, digits, tmp_path, max_steps=3, resume=True, checkpoint_every=1)


def test_damaged_checkpoints_do_not_push_out_new_ones(tmp_path, capsys):
    (tmp_path / "checkpoints").mkdir()
    for step in (50, 60):
        (tmp_path / "checkpoints" / f"step-{step:08d}.safetensors").write_bytes(b"damaged")
    save_checkpoint(tmp_path, 10, {"a": torch.tensor([10])}, 0.5)
    found = load_checkpoint(tmp_path)
    assert found is not None
    assert found[0] == 10
    assert capsys.readouterr().err == ""


def test_only_the_newest_two_checkpoints_are_kept(tmp_path):
    for step in (1, 2, 3, 4):
        save_checkpoint(tmp_path, step, {"a": torch.tensor([step])}, 0.5)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == [
        "step-00000003.safetensors",
        "step-00000004.safetensors",
    ]
    assert load_checkpoint(tmp_path / "nowhere") is None


def test_a_run_is_not_overwritten_nor_resumed_with_other_settings(tmp_path, digits):
    train_small(small_config(), digits, tmp_path, max_steps=1)
    with pytest.raises(InputError, match="already holds a run; pass --resume"):
        train_small(small_config(), digits, tmp_path, max_steps=1)
    with pytest.raises(InputError, match=r"other settings \(inner_lr differ: inner_lr=0.1\)"):
        train_small(small_config(inner_lr=0.2), digits, tmp_path, max_steps=2, resume=True)
    train_small(small_config(), digits, tmp_path, max_steps=2, resume=True, log_every=5)


def test_too_few_images_are_refused(tmp_path, digits):
    with pytest.raises(InputError, match="A step needs 4000 images, but digits has 1297"):
        train_small(small_config(tasks=1000), digits, tmp_path)


def test_refused_settings_leave_nothing_behind(tmp_path, digits):
    for bad in ({"depth": 9}, {"width": 0}, {"hidden": 10**9}):
        with pytest.raises(InputError):
            train_small(small_config(**bad), digits, tmp_path / "run", max_steps=1)
        with pytest.raises(InputError):
            train_small(small_config(), digits, tmp_path / "run", max_steps=1, init=tmp_path / "nowhere")
        assert not (tmp_path / "run").exists()


def test_foreign_directories_are_not_overwritten(tmp_path, digits):
    mt3.MT3Model("resnet8x4").save_pretrained(tmp_path / "model")
    before = (tmp_path / "model" / "model.safetensors").read_bytes()
    with pytest.raises(InputError, match=r"holds a model or checkpoints but no run\.json"):
        train_small(small_config(), digits, tmp_path / "model", max_steps=1, resume=True)
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"config": []}', '{"config": {}, "init": 5}', '{"config": {}, "about": 5}', "no json"]
)
def test_damaged_run_file_is_refused(tmp_path, digits, text):
    train_small(small_config(), digits, tmp_path, max_steps=1)
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(InputError, match=r"run\.json"):
        train_small(small_config(), digits, tmp_path, max_steps=2, resume=True)


def test_a_start_survives_a_kill_before_the_first_checkpoint(tmp_path, digits):
    train_small(small_config("baseline"), digits, tmp_path / "start", max_steps=2)
    train_small(small_config(), digits, tmp_path / "whole", max_steps=2, init=tmp_path / "start")
    train_small(small_config(), digits, tmp_path / "cut", max_steps=0, init=tmp_path / "start")
    train_small(small_config(), digits, tmp_path / "cut", max_steps=2, resume=True)
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")


def test_a_start_comes_first_and_gives_the_weights(tmp_path, digits):
    config = small_config(start="baseline:0.02", epochs=0.03)
    train_small(config, digits, tmp_path / "run")
    first = read_run(tmp_path / "run" / "start")["config"]
    assert (first["method"], first["epochs"], first["start"]) == ("baseline", 0.02, None)
    assert [first[name] for name in NETWORK] == [getattr(config, name) for name in NETWORK]
    by_hand = train_small(replace(config, start=None), digits, tmp_path / "other", init=tmp_path / "run" / "start")
    for a, b in zip(load(tmp_path / "run").parameters(), by_hand.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(InputError, match="already holds a run"):
        train_small(config, digits, tmp_path / "run")


@pytest.fixture(scope="module")
def few(digits) -> Dataset:
    return replace(digits, train_images=digits.train_images[:128], train_labels=digits.train_labels[:128])


def chain_config() -> Config:
    """Of the preset cpu: MT3 begins from JT, which begins from a supervised training: 10, 3 and 4 steps here."""
    fields = {name: SMALL[name] for name in ("depth", "width", "hidden", "projection")}
    return make_config("mt3", "digits", "cpu", 0, fields | {"tasks": 2, "task_size": 4, "epochs": 0.25})


@pytest.fixture(scope="module")
def whole_chain(few, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("chain") / "whole"
    assert train_small(chain_config(), few, out) is not None
    return out


def test_the_steps_of_a_chain_are_counted(whole_chain):
    told = {name: read_run(whole_chain / name) for name in (".", "start", "start/start")}
    assert [(run["step"], run["total_steps"]) for run in told.values()] == [(4, 4), (3, 3), (10, 10)]
    assert [run["about"]["step"] for run in told.values()] == [17, 13, 10]
    assert [run["about"]["total_steps"] for run in told.values()] == [17, 13, 10]
    assert [run["init"] for run in told.values()] == ["start", "start", None]


def test_a_run_says_what_it_was_trained_as(few, whole_chain, tmp_path):
    told = {name: read_run(whole_chain / name)["about"] for name in (".", "start", "start/start")}
    assert [about["epochs"] for about in told.values()] == [[5.0, 1.35, 0.25], [5.0, 1.35], [5.0]]
    assert [about["method"] for about in told.values()] == ["mt3", "jt", "supervised"]
    assert [about["label"] for about in told.values()] == ["", "", ""]
    own = {"width": 4, "hidden": 8, "projection": 6}
    assert told["start/start"] == {
        "data": "digits", "method": "supervised", "preset": "cpu", "seed": 0, "label": "", "epochs": [5.0],
        "network": "resnet8x4", "overrides": own, "step": 10, "total_steps": 10,
    }  # fmt: skip
    assert told["start"]["overrides"] == own | {"epochs": 1.35}
    assert told["."]["overrides"] == own | {"epochs": 0.25, "tasks": 2, "task_size": 4}
    train_small(chain_config(), few, tmp_path / "other", max_steps=0, init=whole_chain / "start", label="no-b")
    about = read_run(tmp_path / "other")["about"]
    assert (about["epochs"], about["label"]) == ([5.0, 1.35, 0.25], "no-b")  # also of a start that is given
    train_small(chain_config(), few, tmp_path / "other", resume=True)
    assert read_run(tmp_path / "other")["about"] == about | {"step": 4}  # resuming does not forget it


@pytest.mark.parametrize("field", ["log_every", "checkpoint_every"])
def test_options_that_would_never_come_are_refused(field):
    with pytest.raises(InputError, match=f"Expected {field} to be at least 1, got 0"):
        RunOptions(**{field: 0})


@pytest.mark.parametrize("limits", [(0, 4, 8), (10,), (12, 14), (13, 16), (16, 2)])
def test_a_limit_never_changes_what_is_computed(tmp_path, few, whole_chain, limits):
    """It counts from the first step of the first training on, each of which is finished before the next begins."""
    out, reached = tmp_path / "cut", 0
    for limit in limits:
        model = train_small(chain_config(), few, out, max_steps=limit, resume=reached > 0)
        reached = max(reached, limit)
        run = read_run(out)
        assert progress(out) == (reached, 17)
        assert run["step"] == max(0, reached - 13)
        if reached < 13:
            assert model is None
            assert not (out / "checkpoints").exists()
            with pytest.raises(InputError, match="the run is not finished, continue it with --resume"):
                load(out)
        else:
            assert tensors_hash(model.state_dict()) == weights(out)
        assert (out / "start" / "checkpoints").exists() == (reached > 10)
        if reached == 0:
            shutil.rmtree(out)
    train_small(chain_config(), few, out, resume=True)
    for folder in (".", "start", "start/start"):
        assert weights(out / folder) == weights(whole_chain / folder)
        assert metrics(out / folder) == metrics(whole_chain / folder)
        assert read_run(out / folder)["about"] == read_run(whole_chain / folder)["about"]


def test_a_signal_within_a_start_is_resumed(tmp_path, few, whole_chain, monkeypatch):
    def interrupted(state, images, labels, config, step, *rest):
        if config.method == "jt" and step == 2:  # its last
            signal.raise_signal(signal.SIGTERM)
        return gradient_of_step(state, images, labels, config, step, *rest)

    with monkeypatch.context() as patch:
        patch.setattr("mt3.training.loop.gradient_of_step", interrupted)
        with stop_on_signals(), pytest.raises(Stopped, match="stopped after 13 of 17 steps"):
            train_small(chain_config(), few, tmp_path / "cut")
    assert not (tmp_path / "cut" / "model.safetensors").exists()
    train_small(chain_config(), few, tmp_path / "cut", resume=True)
    assert weights(tmp_path / "cut") == weights(whole_chain)


def test_a_start_that_is_no_longer_needed_is_not_trained_again(tmp_path, few, whole_chain):
    train_small(chain_config(), few, tmp_path, max_steps=15)
    shutil.rmtree(tmp_path / "start")
    train_small(chain_config(), few, tmp_path, resume=True)
    assert not (tmp_path / "start").exists()
    assert weights(tmp_path) == weights(whole_chain)
    assert progress(tmp_path) == (17, 17)


@pytest.mark.parametrize("change", ["weights", "unfinished", "shorter"])
def test_a_start_that_is_not_what_its_training_gave_is_refused(tmp_path, few, change):
    """Its model is not that of its last checkpoint, or its run.json says that it is finished, and it is not."""
    train_small(chain_config(), few, tmp_path, max_steps=10 if change == "weights" else 8)
    start = tmp_path / "start" / "start"
    if change == "weights":
        tensors = load_file(start / "model.safetensors")
        save_file(
            tensors | {"backbone.early.stem.weight": tensors["backbone.early.stem.weight"] + 1e-3},
            start / "model.safetensors",
        )
    else:
        step = 10 if change == "unfinished" else 8
        write_json(start / "run.json", read_run(start) | {"step": step, "total_steps": step})
    with pytest.raises(InputError, match=r"start/start is not what its training of 10 steps gave; delete it"):
        train_small(chain_config(), few, tmp_path, resume=True)
    assert not (tmp_path / "start" / "checkpoints").exists()


def test_a_run_from_a_given_model_is_resumed_from_it(tmp_path, few, whole_chain, monkeypatch):
    """Whatever its settings would have come first, and wherever one stands; even if that model lies in a `start`."""
    config = chain_config()
    monkeypatch.chdir(whole_chain)
    train_small(config, few, tmp_path / "cut", max_steps=0, init=Path("start"))
    monkeypatch.chdir(tmp_path)
    train_small(config, few, tmp_path / "cut", resume=True)
    assert not (tmp_path / "cut" / "start").exists()
    assert weights(tmp_path / "cut") == weights(whole_chain)  # it is the same start
    assert progress(tmp_path / "cut") == (4, 4)
    with pytest.raises(InputError, match=r"was started from .*start, not from .*; drop --init"):
        train_small(config, few, tmp_path / "cut", resume=True, init=whole_chain)


def test_what_cannot_be_trained_is_refused_before_its_start_is(tmp_path, few):
    config = replace(chain_config(), hidden=10**9)
    with pytest.raises(InputError, match="Expected hidden to be a whole number from 0 to 65536"):
        train_small(config, few, tmp_path / "deep" / "run")
    assert not (tmp_path / "deep").exists()


def test_a_model_is_of_the_step_that_its_run_file_says(tmp_path, digits, monkeypatch):
    """While it is trained on, and after a kill."""
    train_small(small_config(), digits, tmp_path, max_steps=2, checkpoint_every=1)
    before, told = weights(tmp_path), []

    def dying(state, images, labels, config, step, *rest):
        told.append(read_run(tmp_path))
        if step == 4:
            raise Killed
        return gradient_of_step(state, images, labels, config, step, *rest)

    with monkeypatch.context() as patch:
        patch.setattr("mt3.training.loop.gradient_of_step", dying)
        with pytest.raises(Killed):
            train_small(small_config(), digits, tmp_path, resume=True, checkpoint_every=1)
    assert [run["step"] for run in told] == [2, 2, 2]
    assert read_run(tmp_path)["step"] == 2
    assert weights(tmp_path) == before


@pytest.mark.parametrize("locked", [".", "start", "start/start"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_second_training_is_refused_before_it_changes_anything(tmp_path, few, locked, resume):
    out = tmp_path / "run"
    if resume:
        train_small(chain_config(), few, out, max_steps=3)
    (out / locked).mkdir(parents=True, exist_ok=True)
    before = contents(tmp_path)
    with own_directory(out / locked), pytest.raises(InputError, match=r"Another process is writing to .*wait until it"):
        train_small(chain_config(), few, out, resume=resume)
    assert contents(tmp_path) == before
    train_small(chain_config(), few, out, resume=resume, max_steps=4)
    assert read_run(out)["about"]["step"] == 4


def test_two_trainings_at_a_time_do_not_mix(tmp_path, capsys, start_sleeper):
    """The first, in a process of its own, is whole, whatever others try."""
    out = tmp_path / "run"
    first = start_sleeper(*sleeper_words(out))
    before = contents(out)
    for more in (["--seed", "1"], ["--resume"], ["--resume", "--seed", "1"]):
        assert main([*sleeper_words(out), *more]) == 2
        refused = f"mt3: Another process is writing to {out}; wait until it ends, or choose another --out.\n"
        assert capsys.readouterr().err == refused
    assert main([*sleeper_words(out / "start"), "--resume"]) == 2
    assert f"Another process is writing to {out / 'start'};" in capsys.readouterr().err
    assert contents(out) == before
    (tmp_path / "go").touch()
    first.communicate(timeout=60)
    assert first.returncode == 0
    assert main(sleeper_words(tmp_path / "alone")) == 0
    assert weights(out / "start") == weights(tmp_path / "alone" / "start")


def test_leftovers_of_a_kill_are_removed(tmp_path, digits):
    left = [".run.json.abcd_123.tmp", ".metrics.jsonl.abcd_123.tmp", "checkpoints/.step-00000002.safetensors.ab.tmp"]
    kept = [".mine.json.abcd_123.tmp", "notes.txt", "evaluation.json", ".evaluation.json.abcd_123.tmp"]
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / ".model-abcd_123").mkdir()
    (tmp_path / ".model-abcd_123" / "config.json").touch()
    (tmp_path / "snapshots" / "step-00000002" / ".model-abcd_123").mkdir(parents=True)
    (tmp_path / "snapshots" / "step-00000002" / ".model-abcd_123" / "config.json").touch()
    for name in (*left[:2], *kept):
        (tmp_path / name).write_text("left")
    (tmp_path / "checkpoints").rmdir()  # of a process killed before its first rename
    train_small(small_config(), digits, tmp_path, max_steps=1)
    own = ["checkpoints/step-00000001.safetensors", "config.json", "metrics.jsonl", "model.safetensors", "run.json"]
    assert sorted(contents(tmp_path)) == sorted([*kept, *own])
    (tmp_path / left[2]).touch()
    train_small(small_config(), digits, tmp_path, max_steps=1, resume=True)
    assert sorted(contents(tmp_path)) == sorted([*kept, *own])
