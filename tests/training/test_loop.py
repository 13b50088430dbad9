"""Training: the losses by hand, determinism, resuming to the bit, damage, divergence and warm start."""

import json
import math
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.func import functional_call

import mt3
import reference
from mt3.adaptation.adapter import inner_loop
from mt3.cli.main import main
from mt3.config.config import Config, make_config
from mt3.config.methods import METHODS
from mt3.data import Dataset, load_digits
from mt3.models.store import load, load_checkpoint, read_run, save_checkpoint, tensors_hash
from mt3.support.errors import InputError
from mt3.support.files import own_directory, write_json
from mt3.support.signals import GRACE, Stopped, stop_on_signals
from mt3.training.loop import apply_gradient, ema_momentum, gradient_of_step, lr_factor, train
from mt3.training.losses import draw_step_task, draw_task, joint_loss, meta_loss
from mt3.training.state import State, make_state, warm_start
from trainings import SMALL, small_config


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_digits()


def weights(run: Path) -> str:
    return tensors_hash(mt3.load(run).state_dict())


def metrics(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_joint_loss_by_hand(digits):
    config = small_config("jt", ema_start="random")
    state = make_state(config, digits, torch.device("cpu"))
    images = torch.from_numpy(digits.train_images[:4]).permute(0, 3, 1, 2)
    task = draw_task(images, torch.from_numpy(digits.train_labels[:4]), config, torch.Generator().manual_seed(0))
    assert task.views is not None
    assert state.ema is not None
    loss = joint_loss(state, task, config, log=True)
    online = dict(state.model.named_parameters())
    logits = reference.network(online, task.images, 2, torch.relu)[0]
    r = reference.network(online, task.views.images, 2, torch.relu)[2]
    z = reference.network(state.ema, task.views.images, 2, torch.relu)[1]
    want = F.cross_entropy(logits, task.labels) + 0.1 * reference.byol(r, z)
    assert loss.total.item() == pytest.approx(want.item(), rel=1e-5)
    assert not torch.equal(state.ema["stem.weight"], online["stem.weight"])


def test_moving_average_follows_the_online_weights(digits):
    config = small_config("jt", ema_momentum=0.9)
    state = make_state(config, digits, torch.device("cpu"))
    assert state.ema is not None
    before = state.ema["stem.weight"].clone()
    torch.testing.assert_close(before, state.model.stem.weight.detach())
    images = torch.from_numpy(digits.train_images).permute(0, 3, 1, 2)
    gradient_of_step(state, images, torch.from_numpy(digits.train_labels), config, 0, 10, log=True)
    apply_gradient(state, config, 0, 100, 10)
    want = 0.9 * before + 0.1 * state.model.stem.weight.detach()
    torch.testing.assert_close(state.ema["stem.weight"], want)


def test_rotation_training_turns_every_image_by_all_angles(digits):
    config = small_config("jt-rotation")
    images = torch.from_numpy(digits.train_images[:3]).permute(0, 3, 1, 2)
    task = draw_task(images, torch.from_numpy(digits.train_labels[:3]), config, torch.Generator().manual_seed(0))
    assert task.views is not None
    assert task.views.quarters is not None
    assert task.views.quarters.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    for i, quarter in enumerate(task.views.quarters.tolist()):
        assert torch.equal(task.views.images[i], torch.rot90(task.images[i % 3], quarter, (1, 2)))
    state = make_state(config, digits, torch.device("cpu"))
    loss = joint_loss(state, task, config, log=True)
    outputs = state.model(task.views.images, full=True)
    want = F.cross_entropy(state.model(task.images), task.labels) + F.cross_entropy(
        outputs.rotation, task.views.quarters
    )
    assert loss.total.item() == pytest.approx(want.item(), rel=1e-5)


def test_b_is_shared_within_a_task_and_differs_between_tasks(digits):
    """A flat grey picture shows B's brightness; its views and x must show the same one."""
    config = small_config(pad=0, tasks=8, task_size=8)
    grey = torch.full((64, 3, 32, 32), 128, dtype=torch.uint8)
    labels = torch.zeros(64, dtype=torch.int64)
    still = {"JITTER_SHARE": -1.0, "GREY_SHARE": -1.0, "NOISE_STD": 0.0}
    shifts = []
    with pytest.MonkeyPatch.context() as patch:
        for name, value in still.items():
            patch.setattr(f"mt3.objectives.augment.{name}", value)
        for number in range(config.tasks):
            task = draw_step_task(grey, labels, config, 0, 1, number)
            assert task.views is not None
            everything = torch.cat([task.images, task.views.images])
            assert everything.shape == (24, 3, 32, 32)
            shift = everything[0, 0, 0, 0].item() - 128 / 255
            torch.testing.assert_close(everything, torch.full_like(everything, 128 / 255 + shift), atol=1e-6, rtol=0)
            shifts.append(shift)
    assert len({round(s, 6) for s in shifts}) == 8
    assert max(map(abs, shifts)) <= 0.2


def test_an_epoch_sees_every_image_once(digits):
    config = small_config(tasks=4, task_size=8)
    images = torch.zeros(96, 3, 32, 32, dtype=torch.uint8)
    labels = torch.arange(96)
    for epoch in (0, 1):
        seen = [
            draw_step_task(images, labels, config, 3 * epoch + step, 3, number).labels
            for step in range(3)
            for number in range(config.tasks)
        ]
        assert sorted(torch.cat(seen).tolist()) == list(range(96))
    orders = [draw_step_task(images, labels, config, step, 3, 0).labels.tolist() for step in (0, 3)]
    assert orders[0] != orders[1]


@pytest.mark.parametrize("different", [1, 2, 8])
def test_tasks_of_few_images(digits, different):
    config = small_config(task_images=different, tasks=2, task_size=8)
    images = torch.from_numpy(digits.train_images[:16]).permute(0, 3, 1, 2)
    seen = []
    for number in range(config.tasks):
        task = draw_step_task(images, torch.arange(16), config, 0, 16 // (2 * different), number)
        assert task.images.shape[0] == 8
        own = sorted(set(task.labels.tolist()))
        assert sorted(task.labels.tolist()) == sorted(own * (8 // different))
        seen += own
    assert len(seen) == len(set(seen)) == 2 * different


def test_tasks_of_which_some_images_have_views():
    """The step is taken on the views of the first; all are classified after it, under the same draw of B."""
    images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
    images[0] = 128
    config = small_config(tasks=1, view_images=1, batch_aug=False, pad=0)
    task = draw_task(images, torch.arange(4), config, torch.Generator().manual_seed(0))
    assert task.images.shape == (4, 3, 32, 32)
    assert task.views.images.shape == (2, 3, 32, 32)
    assert task.views.images.amin() > 0.2  # none is of a black image
    model = make_state(config, load_digits(), torch.device("cpu")).model
    state = State(model, torch.optim.SGD(model.parameters(), lr=0.1), None)
    names = model.adapted_names()
    inner = inner_loop(model, dict(model.named_parameters()), lambda _: task.views, names, 1, 0.1, 10.0)
    expected = F.cross_entropy(functional_call(model, inner.params, (task.images,)), task.labels)
    torch.testing.assert_close(meta_loss(state, task, config, log=False).metrics["ce"], expected)


def test_learning_rate_schedules():
    cosine = small_config(schedule="cosine", final_lr=0.1)
    assert [round(lr_factor(cosine, s, 100, 10), 6) for s in (0, 50, 100)] == [1.0, 0.55, 0.1]
    step = small_config("baseline", schedule="step", milestones="2,5")
    assert [lr_factor(step, s, 100, 10) for s in (0, 19, 20, 49, 50)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    assert lr_factor(small_config(), 77, 100, 10) == 1.0
    rising = small_config("jt", ema_schedule="cosine")
    assert ema_momentum(rising, 0, 100) == pytest.approx(0.996)
    assert ema_momentum(rising, 50, 100) == pytest.approx(0.998)
    assert ema_momentum(rising, 100, 100) == pytest.approx(1.0)


def test_sgd_step_with_clip_decay_and_momentum_by_hand(digits):
    config = small_config(lr=0.5, momentum=0.9, weight_decay=0.01, clip=0.5)
    state = make_state(config, digits, torch.device("cpu"))
    theta = {n: p.detach().clone() for n, p in state.model.named_parameters()}
    velocity = {n: torch.zeros_like(p) for n, p in theta.items()}
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        gradient = {n: torch.randn(p.shape, generator=generator) for n, p in theta.items()}
        for name, p in state.model.named_parameters():
            p.grad = gradient[name].clone()
        apply_gradient(state, config, step, 100, 10)
        norm = math.sqrt(sum(float((g**2).sum()) for g in gradient.values()))
        for name in theta:
            g = gradient[name] * (0.5 / norm) + 0.01 * theta[name]
            velocity[name] = 0.9 * velocity[name] + g
            theta[name] = theta[name] - 0.5 * velocity[name]
    for name, p in state.model.named_parameters():
        torch.testing.assert_close(p.detach(), theta[name])


def test_joint_training_is_clipped_only_where_that_is_asked_for(digits):
    assert small_config("jt").clip is None  # the paper's
    for clip, share in ((None, 1.0), (0.5, None)):
        config = small_config("jt", weight_decay=0.0, clip=clip)
        state = make_state(config, digits, torch.device("cpu"))
        for p in state.model.parameters():
            p.grad = torch.full_like(p, 3.0)
        norm = 3.0 * math.sqrt(sum(p.numel() for p in state.model.parameters()))
        apply_gradient(state, config, 0, 10, 10)
        buffer = state.optimizer.state[state.model.stem.weight]["momentum_buffer"]
        torch.testing.assert_close(buffer, torch.full_like(buffer, 3.0 * (share or 0.5 / norm)))


def test_gradient_of_a_step_is_the_mean_over_its_tasks(digits):
    config = small_config(tasks=3)
    images = torch.from_numpy(digits.train_images).permute(0, 3, 1, 2)
    labels = torch.from_numpy(digits.train_labels)
    state = make_state(config, digits, torch.device("cpu"))
    gradient_of_step(state, images, labels, config, 5, 40, log=False)
    together = {n: p.grad.clone() for n, p in state.model.named_parameters() if p.grad is not None}

    single = []
    for number in range(config.tasks):
        task = draw_step_task(images, labels, config, 5, 40, number)
        state.model.zero_grad()
        meta_loss(state, task, config, log=False).total.backward()
        single.append({n: p.grad.clone() for n, p in state.model.named_parameters() if p.grad is not None})
    for name in together:
        torch.testing.assert_close(together[name], sum(s[name] for s in single) / 3, atol=1e-6, rtol=1e-4)


def test_bfloat16_keeps_weights_and_losses_in_float32_and_the_meta_gradient_close(tmp_path, digits):
    images = torch.from_numpy(digits.train_images).permute(0, 3, 1, 2)
    labels = torch.from_numpy(digits.train_labels)
    gradients = []
    for precision in ("float32", "bfloat16"):
        config = small_config(precision=precision)
        state = make_state(config, digits, torch.device("cpu"))
        logits = state.model(images[:4])
        assert logits.dtype == torch.float32
        assert torch.equal(logits, logits.bfloat16().float()) == (precision == "bfloat16")
        loss = gradient_of_step(state, images, labels, config, 0, 10, log=False)["loss"]
        grads = [p.grad for p in state.model.parameters()]
        assert {g.dtype for g in grads} == {torch.float32}
        gradients.append((loss, torch.cat([g.flatten() for g in grads])))
        state.model.save_pretrained(tmp_path)
        assert mt3.load(tmp_path).precision == precision
    (exact, one), (rounded, other) = gradients
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=0.02)
    assert torch.cosine_similarity(one, other, dim=0) > 0.9


@pytest.mark.parametrize("method", METHODS)
def test_resumed_run_is_bit_identical(tmp_path, digits, method):
    config = small_config(method, checkpoint_every=2)
    train(config, digits, tmp_path / "whole", max_steps=5)
    for stop in (1, 2, 4):
        out = tmp_path / f"cut{stop}"
        train(config, digits, out, max_steps=stop)
        train(config, digits, out, max_steps=5, resume=True)
        assert weights(out) == weights(tmp_path / "whole")
        assert (out / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


class Killed(BaseException):
    """Stands for a kill: nothing of the loop's own handling runs on it."""


@pytest.mark.parametrize("kill_at", [0, 1, 3, 6])
def test_killed_run_is_bit_identical_after_resuming(tmp_path, digits, monkeypatch, kill_at):
    config = small_config(checkpoint_every=2)
    train(config, digits, tmp_path / "whole", max_steps=7)
    original = gradient_of_step

    def dying(state, images, labels, config, step, *rest):
        if step == kill_at:
            raise Killed
        return original(state, images, labels, config, step, *rest)

    with monkeypatch.context() as patch:
        patch.setattr("mt3.training.loop.gradient_of_step", dying)
        with pytest.raises(Killed):
            train(config, digits, tmp_path / "cut", max_steps=7)
    with pytest.raises(InputError, match="the run is not finished, continue it with --resume"):
        mt3.load(tmp_path / "cut")
    train(config, digits, tmp_path / "cut", max_steps=7, resume=True)
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    whole, cut = (metrics(tmp_path / name) for name in ("whole", "cut"))
    assert whole == cut


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("place", ["gradient_of_step", "apply_gradient"])
def test_a_signal_lets_the_step_be_finished_and_saved(tmp_path, digits, monkeypatch, number, place):
    config = small_config(checkpoint_every=100)
    train(config, digits, tmp_path / "whole", max_steps=6)
    original = {"gradient_of_step": gradient_of_step, "apply_gradient": apply_gradient}[place]
    calls = []

    def interrupted(*words):
        calls.append(words)
        if len(calls) == 4:
            signal.raise_signal(number)
            signal.raise_signal(number)  # as `timeout` does, which sends it to the process and to its group
        return original(*words)

    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(f"mt3.training.loop.{place}", interrupted)
        with stop_on_signals(), pytest.raises(Stopped, match="stopped after 4 of 8100 steps") as stopped:
            train(config, digits, tmp_path / "cut", max_steps=9)
    assert stopped.value.number == number
    assert signal.getsignal(number) is before
    run = read_run(tmp_path / "cut")
    assert (run["step"], run["total_steps"]) == (4, 8100)
    found = load_checkpoint(tmp_path / "cut")
    assert found is not None
    assert found[0] == 4
    train(config, digits, tmp_path / "cut", max_steps=6, resume=True)
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")


def test_a_second_interrupt_is_handled_by_the_program_that_trains(tmp_path, digits, monkeypatch):
    """A notebook, say, which does not end with it; what is saved stays."""
    config = small_config(checkpoint_every=2)
    train(config, digits, tmp_path / "whole", max_steps=5)

    def interrupted(state, config, step, *rest):
        report = apply_gradient(state, config, step, *rest)
        if step == 3:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return report

    monkeypatch.setattr("mt3.support.signals.GRACE", -1.0)
    with monkeypatch.context() as patch:
        patch.setattr("mt3.training.loop.apply_gradient", interrupted)
        with pytest.raises(KeyboardInterrupt) as stopped:
            train(config, digits, tmp_path / "cut", max_steps=5)
    assert not isinstance(stopped.value, Stopped)
    found = load_checkpoint(tmp_path / "cut")
    assert found is not None
    assert found[0] == 2  # not the state that was half way to the next step
    train(config, digits, tmp_path / "cut", max_steps=5, resume=True)
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")


def test_an_ignored_signal_stays_ignored(tmp_path, digits):
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals() as stop:
            train(small_config(), digits, tmp_path, max_steps=1)
            signal.raise_signal(signal.SIGHUP)
        assert stop.number is None
    finally:
        signal.signal(signal.SIGHUP, before)


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
    assert [line["step"] for line in metrics(tmp_path / "run" / "warm")] == []  # logged every five
    assert read_run(tmp_path / "run")["chain"] == {"step": 1, "total_steps": 4000}


@pytest.mark.parametrize("damage", ["half", "flip", "empty"])
def test_damaged_checkpoint_is_refused_and_the_previous_used(tmp_path, digits, capsys, damage):
    config = small_config(checkpoint_every=2)
    train(config, digits, tmp_path / "whole", max_steps=6)
    train(config, digits, tmp_path / "cut", max_steps=4)
    newest = tmp_path / "cut" / "checkpoints" / "step-00000004.safetensors"
    content = bytearray(newest.read_bytes())
    if damage == "flip":
        content[-5] ^= 64
    newest.write_bytes(content if damage == "flip" else content[: len(content) // 2] if damage == "half" else b"")
    found = load_checkpoint(tmp_path / "cut")
    assert found is not None
    assert found[0] == 2
    assert "step-00000004.safetensors is damaged" in capsys.readouterr().err
    train(config, digits, tmp_path / "cut", max_steps=6, resume=True)
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
    config = small_config(checkpoint_every=1)
    train(config, digits, tmp_path / "cut", max_steps=2)
    newest = tmp_path / "cut" / "checkpoints" / "step-00000002.safetensors"
    edit_metadata(newest, **changed)
    found = load_checkpoint(tmp_path / "cut")
    assert found is not None
    assert found[0] == 1
    assert f"{newest} is damaged (its contents do not match their hash)" in capsys.readouterr().err
    train(config, digits, tmp_path / "cut", max_steps=4, resume=True)
    train(config, digits, tmp_path / "whole", max_steps=4)
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    newest = tmp_path / "cut" / "checkpoints" / "step-00000004.safetensors"
    newest.rename(newest.with_name("step-00000009.safetensors"))
    found = load_checkpoint(tmp_path / "cut")
    assert found is not None
    assert found[0] == 3
    assert "is damaged (its name says step 9, its contents step 4)" in capsys.readouterr().err


def test_a_checkpoint_of_another_run_is_refused(tmp_path, digits):
    config, name = small_config(), "checkpoints/step-00000002.safetensors"
    train(config, digits, tmp_path / "a", max_steps=1)
    others = {
        "seed": small_config(seed=1),
        "lr": small_config(lr=0.02),
        "start": config,
        "bookkeeping": small_config(log_every=2),
    }
    for label, other in others.items():
        init = tmp_path / "a" if label == "start" else None
        train(other, digits, tmp_path / label, max_steps=2, init=init)
        shutil.copy(tmp_path / label / name, tmp_path / "a" / name)
        if label == "bookkeeping":  # the same training
            train(config, digits, tmp_path / "a", max_steps=2, resume=True)
            assert weights(tmp_path / "a") == weights(tmp_path / label)
            continue
        before = contents(tmp_path / "a")
        with pytest.raises(InputError, match=r"step-00000002\.safetensors belongs to another run .*delete it"):
            train(config, digits, tmp_path / "a", max_steps=3, resume=True)
        assert contents(tmp_path / "a") == before
    shutil.move(tmp_path / "start", tmp_path / "moved")  # where a run lies is no matter
    assert train(config, digits, tmp_path / "moved", max_steps=3, resume=True) is not None


@pytest.mark.parametrize("name", ["step-abc", "step-10", "step-", "step-+0000010", "step-0000001\u0660"])
def test_a_strange_name_among_the_checkpoints_is_said(tmp_path, digits, name):
    config = small_config(checkpoint_every=1)
    train(config, digits, tmp_path, max_steps=2)
    (tmp_path / "checkpoints" / f"{name}.safetensors").touch()
    with pytest.raises(InputError, match=r"is not named as a checkpoint is \(step-00000010\.safetensors\); move it"):
        train(config, digits, tmp_path, max_steps=3, resume=True)


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


def test_divergence_names_the_step_and_keeps_the_last_good_checkpoint(tmp_path, digits, monkeypatch):
    config = small_config(checkpoint_every=2)
    original = gradient_of_step

    def diverging(state, images, labels, config, step, *rest):
        if step == 4:
            with torch.no_grad():
                state.model.stem.weight.fill_(float("nan"))
        return original(state, images, labels, config, step, *rest)

    monkeypatch.setattr("mt3.training.loop.gradient_of_step", diverging)
    with pytest.raises(InputError, match=r"not finite at step 5 .*last good checkpoint, step 4, stays"):
        train(config, digits, tmp_path, max_steps=9)
    found = load_checkpoint(tmp_path)
    assert found is not None
    assert found[0] == 4
    assert all(torch.isfinite(t).all() for t in found[1].values())


def test_huge_learning_rate_diverges_with_a_sentence(tmp_path, digits):
    config = small_config("baseline", lr=1e25, weight_decay=0.0)
    with pytest.raises(InputError, match="not finite at step"):
        train(config, digits, tmp_path, max_steps=9)


def test_a_run_is_not_overwritten_nor_resumed_with_other_settings(tmp_path, digits):
    train(small_config(), digits, tmp_path, max_steps=1)
    with pytest.raises(InputError, match="already holds a run; pass --resume"):
        train(small_config(), digits, tmp_path, max_steps=1)
    with pytest.raises(InputError, match=r"other settings \(inner_lr differ: inner_lr=0.1\)"):
        train(small_config(inner_lr=0.2), digits, tmp_path, max_steps=2, resume=True)
    train(small_config(log_every=5), digits, tmp_path, max_steps=2, resume=True)


def test_too_few_images_are_refused(tmp_path, digits):
    with pytest.raises(InputError, match="A step needs 4000 images, but digits has 1297"):
        train(small_config(tasks=1000), digits, tmp_path)


def test_warm_start_takes_what_fits(tmp_path, digits):
    train(small_config("baseline"), digits, tmp_path / "baseline", max_steps=2)
    source = mt3.load(tmp_path / "baseline")
    state = make_state(small_config(seed=1), digits, torch.device("cpu"), tmp_path / "baseline")
    fresh = make_state(small_config(seed=1), digits, torch.device("cpu"))
    own, given, random = (m.state_dict() for m in (state.model, source, fresh.model))
    for name in own:
        assert torch.equal(own[name], given[name] if name in given else random[name]), name
    with pytest.raises(InputError, match="give both the same"):
        warm_start(mt3.MT3Model(10, depth=8, width=8), source, "source")
    for own, other in ((8, 14), (14, 8)):
        with pytest.raises(InputError, match="give both the same"):
            warm_start(mt3.MT3Model(10, depth=own, width=4), mt3.MT3Model(10, depth=other, width=4), "other")
    with pytest.raises(InputError, match="1 groups, here 2"):
        warm_start(mt3.MT3Model(10, depth=8, width=4), mt3.MT3Model(10, depth=8, width=4, groups=1), "other")


def test_refused_settings_leave_nothing_behind(tmp_path, digits):
    for bad in ({"depth": 9}, {"groups": 3}, {"head": "linear"}):
        with pytest.raises(InputError):
            train(small_config(**bad), digits, tmp_path / "run", max_steps=1)
        with pytest.raises(InputError):
            train(small_config(), digits, tmp_path / "run", max_steps=1, init=tmp_path / "nowhere")
        assert not (tmp_path / "run").exists()


def test_foreign_directories_are_not_overwritten(tmp_path, digits):
    mt3.MT3Model(10, depth=8, width=4).save_pretrained(tmp_path / "model")
    before = (tmp_path / "model" / "model.safetensors").read_bytes()
    with pytest.raises(InputError, match=r"holds a model or checkpoints but no run\.json"):
        train(small_config(), digits, tmp_path / "model", max_steps=1, resume=True)
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("text", ["[]", "{}", '{"config": []}', '{"config": {}, "init": 5}', "no json"])
def test_damaged_run_file_is_refused(tmp_path, digits, text):
    train(small_config(), digits, tmp_path, max_steps=1)
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(InputError, match=r"run\.json"):
        train(small_config(), digits, tmp_path, max_steps=2, resume=True)


def test_full_disk_is_one_sentence(tmp_path, digits, monkeypatch):
    from safetensors import SafetensorError

    def full(*rest):
        raise SafetensorError("No space left on device")

    monkeypatch.setattr("mt3.models.store.save_file", full)
    with pytest.raises(InputError, match=r"Cannot write .*No space left on device"):
        train(small_config(checkpoint_every=1), digits, tmp_path, max_steps=3)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_warm_start_survives_a_kill_before_the_first_checkpoint(tmp_path, digits):
    train(small_config("baseline"), digits, tmp_path / "start", max_steps=2)
    train(small_config(), digits, tmp_path / "whole", max_steps=2, init=tmp_path / "start")
    train(small_config(), digits, tmp_path / "cut", max_steps=0, init=tmp_path / "start")
    train(small_config(), digits, tmp_path / "cut", max_steps=2, resume=True)
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")


def test_metrics_say_what_was_trained(tmp_path, digits):
    train(small_config(log_every=2), digits, tmp_path / "mt3", max_steps=4)
    lines = metrics(tmp_path / "mt3")
    assert [line["step"] for line in lines] == [2, 4]
    for line in lines:
        assert line["loss"] == pytest.approx(line["ce"] + 0.1 * line["selfsup"], rel=1e-5)
        assert 0 <= line["accuracy_before"] <= 1
        assert 0 <= line["accuracy_after"] <= 1
        assert line["inner_loss"] > 0
        assert line["lr"] == 0.01
    run = json.loads((tmp_path / "mt3" / "run.json").read_text())
    assert (run["step"], run["config"]["log_every"]) == (4, 2)


def test_training_learns(tmp_path):
    """Two classes, red and blue: cross-entropy and joint training bring the loss down from chance."""
    rng = np.random.default_rng(0)
    labels = np.arange(128) % 2
    images = rng.integers(0, 128, (128, 32, 32, 3), dtype=np.uint8)
    images[labels == 0, ..., 0] += 100
    images[labels == 1, ..., 2] += 100
    colours = Dataset("colours", images, labels, images, labels, ("red", "blue"))
    for method, steps in (("baseline", 30), ("jt", 30)):
        train(
            small_config(method, lr=0.1, weight_decay=0.0, width=8, groups=4, hidden=16),
            colours,
            tmp_path / method,
            max_steps=steps,
        )
        losses = [line["ce"] for line in metrics(tmp_path / method)]
        assert np.mean(losses[:2]) > 0.5, method
        assert np.mean(losses[-5:]) < 0.2, method


def test_seeds_differ_and_repeat(tmp_path, digits):
    train(small_config(), digits, tmp_path / "b", max_steps=2)
    train(small_config(), digits, tmp_path / "c", max_steps=2)
    train(small_config(seed=1), digits, tmp_path / "d", max_steps=2)
    assert weights(tmp_path / "b") == weights(tmp_path / "c") != weights(tmp_path / "d")


def test_tensorboard_gets_the_same_numbers(tmp_path, digits):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(small_config(), digits, tmp_path, max_steps=2, tensorboard=True)
    log = events.EventAccumulator(str(tmp_path / "tensorboard"))
    log.Reload()
    assert [e.value for e in log.Scalars("loss")] == pytest.approx([m["loss"] for m in metrics(tmp_path)], rel=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("threads", [2, 3])
def test_the_gradient_does_not_depend_on_the_threads(digits, method, threads, monkeypatch):
    """Tasks are shared out, unevenly too."""
    monkeypatch.setattr("mt3.training.loop.stack_size", lambda *_: 1)
    config = small_config(method, **({"tasks": 4} if method == "mt3" else {}))
    images = torch.from_numpy(digits.train_images).permute(0, 3, 1, 2)
    labels = torch.from_numpy(digits.train_labels)
    gradients = []
    for count in (1, threads):
        monkeypatch.setattr("mt3.training.loop.count_threads", lambda model, items, count=count: count)
        state = make_state(config, digits, torch.device("cpu"))
        metrics = gradient_of_step(state, images, labels, config, 2, 40, log=True)
        gradients.append(([p.grad for p in state.model.parameters()], metrics))
    for a, b in zip(gradients[0][0], gradients[1][0], strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)
    assert gradients[0][1] == pytest.approx(gradients[1][1], rel=1e-4)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"inner_steps": 3, "inner_clip": 0.05, "clip_mode": "tensor"},
        {
            "inner_steps": 2,
            "inner_clip": 0.05,
            "inner_target": "previous",
            "outer_target": "adapted",
            "head": "official",
        },
        {"inner_steps": 2, "inner_target": "ema", "ema_start": "random"},
        {"order": "first", "inner_clip": 0.05},
        {"selfsup": "rotation", "inner_steps": 2, "inner_clip": 0.05},
        {"task_images": 1},
        {"view_images": 1, "gamma": 0.0},
        {"view_images": 2, "outer_target": "adapted"},
        {"learn_rates": True, "inner_steps": 2, "inner_clip": 0.05},
        {"anchor": 0.5},
        {"gamma": 0.0, "inner_clip": 0.05},
    ],
    ids=lambda fields: ",".join(fields) or "paper",
)
def test_a_stack_of_tasks_gives_the_gradient_of_one_after_the_other(digits, fields, monkeypatch):
    config = small_config(tasks=5, inner_lr=0.5, **fields)
    images = torch.from_numpy(digits.train_images).permute(0, 3, 1, 2)
    labels = torch.from_numpy(digits.train_labels)
    found = []
    for size in (1, 3):
        monkeypatch.setattr("mt3.training.loop.stack_size", lambda *_, size=size: size)
        state = make_state(config, digits, torch.device("cpu"))
        state.model.double()
        state.ema = None if state.ema is None else {name: p.double() for name, p in state.ema.items()}
        metrics = gradient_of_step(state, images, labels, config, 2, 10, log=True)
        found.append(([p.grad for p in state.model.parameters()], metrics))
    for a, b in zip(found[0][0], found[1][0], strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-9)
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-6)  # accuracies are float32


def test_averaged_weights_are_the_moving_average(tmp_path, digits):
    config = small_config("baseline", average=0.5, checkpoint_every=1)
    assert config.tasks == 1
    steps = 4
    model = train(config, digits, tmp_path / "averaged", max_steps=steps)
    state = make_state(replace(config, average=0.0), digits, torch.device("cpu"))
    images = torch.from_numpy(digits.train_images).permute(0, 3, 1, 2).contiguous()
    labels = torch.from_numpy(digits.train_labels)
    per_epoch = len(images) // config.task_size
    total = round(config.epochs * per_epoch)
    want = {n: p.detach().clone() for n, p in state.model.named_parameters()}
    for step in range(steps):
        gradient_of_step(state, images, labels, config, step, per_epoch, log=False)
        apply_gradient(state, config, step, total, per_epoch)
        decay = min(0.5, (1 + step) / (10 + step))
        want = {n: decay * want[n] + (1 - decay) * p.detach() for n, p in state.model.named_parameters()}
    for name, p in model.named_parameters():
        torch.testing.assert_close(p, want[name], atol=1e-6, rtol=1e-5)
    # cut in the middle and resumed, the average goes on as well
    train(config, digits, tmp_path / "cut", max_steps=2)
    resumed = train(config, digits, tmp_path / "cut", max_steps=steps, resume=True)
    for a, b in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_warm_start_comes_first_and_gives_the_weights(tmp_path, digits):
    config = small_config(warm_method="baseline", warm_epochs=0.02, epochs=0.03)
    train(config, digits, tmp_path / "run")
    warm = read_run(tmp_path / "run" / "warm")
    assert (warm["config"]["method"], warm["config"]["epochs"]) == ("baseline", 0.02)
    assert [warm["config"][name] for name in ("depth", "width")] == [config.depth, config.width]
    assert warm["config"]["warm_method"] is None
    by_hand = train(replace(config, warm_method=None), digits, tmp_path / "other", init=tmp_path / "run" / "warm")
    for a, b in zip(load(tmp_path / "run").parameters(), by_hand.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(InputError, match="warm_epochs to be above 0"):
        small_config(warm_method="jt", warm_epochs=0.0)
    with pytest.raises(InputError, match="already holds a run"):
        train(config, digits, tmp_path / "run")


@pytest.fixture(scope="module")
def few(digits) -> Dataset:
    return replace(digits, train_images=digits.train_images[:128], train_labels=digits.train_labels[:128])


def chain_config() -> Config:
    """Of the preset cpu: MT3 begins from JT, which begins from a supervised training: 10, 3 and 4 steps here."""
    fields = {name: SMALL[name] for name in ("depth", "width", "groups", "hidden", "projection", "log_every")}
    return make_config("mt3", "digits", "cpu", 0, fields | {"tasks": 2, "task_size": 4, "epochs": 0.25})


@pytest.fixture(scope="module")
def whole_chain(few, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("chain") / "whole"
    assert train(chain_config(), few, out) is not None
    return out


def test_the_steps_of_a_chain_are_counted(whole_chain):
    told = {name: read_run(whole_chain / name) for name in (".", "warm", "warm/warm")}
    assert [(run["step"], run["total_steps"]) for run in told.values()] == [(4, 4), (3, 3), (10, 10)]
    assert [run["chain"]["step"] for run in told.values()] == [17, 13, 10]
    assert [run["chain"]["total_steps"] for run in told.values()] == [17, 13, 10]
    assert [run["init"] for run in told.values()] == ["warm", "warm", None]


@pytest.mark.parametrize("limits", [(0, 4, 8), (10,), (12, 14), (13, 16), (16, 2)])
def test_a_limit_never_changes_what_is_computed(tmp_path, few, whole_chain, limits):
    """It counts from the first step of the first training on, each of which is finished before the next begins."""
    out, reached = tmp_path / "cut", 0
    for limit in limits:
        model = train(chain_config(), few, out, max_steps=limit, resume=reached > 0)
        reached = max(reached, limit)
        run = read_run(out)
        assert run["chain"] == {"step": reached, "total_steps": 17}
        assert run["step"] == max(0, reached - 13)
        if reached < 13:
            assert model is None
            assert not (out / "checkpoints").exists()
            with pytest.raises(InputError, match="the run is not finished, continue it with --resume"):
                load(out)
        else:
            assert tensors_hash(model.state_dict()) == weights(out)
        assert (out / "warm" / "checkpoints").exists() == (reached > 10)
        if reached == 0:
            shutil.rmtree(out)
    train(chain_config(), few, out, resume=True)
    for folder in (".", "warm", "warm/warm"):
        assert weights(out / folder) == weights(whole_chain / folder)
        assert metrics(out / folder) == metrics(whole_chain / folder)
        assert read_run(out / folder)["chain"] == read_run(whole_chain / folder)["chain"]


def test_a_signal_within_a_start_is_resumed(tmp_path, few, whole_chain, monkeypatch):
    def interrupted(state, images, labels, config, step, *rest):
        if config.method == "jt" and step == 2:  # its last
            signal.raise_signal(signal.SIGTERM)
        return gradient_of_step(state, images, labels, config, step, *rest)

    with monkeypatch.context() as patch:
        patch.setattr("mt3.training.loop.gradient_of_step", interrupted)
        with stop_on_signals(), pytest.raises(Stopped, match="stopped after 13 of 17 steps"):
            train(chain_config(), few, tmp_path / "cut")
    assert not (tmp_path / "cut" / "model.safetensors").exists()
    train(chain_config(), few, tmp_path / "cut", resume=True)
    assert weights(tmp_path / "cut") == weights(whole_chain)


def test_a_start_that_is_no_longer_needed_is_not_trained_again(tmp_path, few, whole_chain):
    train(chain_config(), few, tmp_path, max_steps=15)
    shutil.rmtree(tmp_path / "warm")
    train(chain_config(), few, tmp_path, resume=True)
    assert not (tmp_path / "warm").exists()
    assert weights(tmp_path) == weights(whole_chain)
    assert read_run(tmp_path)["chain"] == {"step": 17, "total_steps": 17}


@pytest.mark.parametrize("change", ["weights", "unfinished", "shorter"])
def test_a_start_that_is_not_what_its_training_gave_is_refused(tmp_path, few, change):
    """Its model is not that of its last checkpoint, or its run.json says that it is finished, and it is not."""
    train(chain_config(), few, tmp_path, max_steps=10 if change == "weights" else 8)
    start = tmp_path / "warm" / "warm"
    if change == "weights":
        tensors = load_file(start / "model.safetensors")
        save_file(tensors | {"stem.weight": tensors["stem.weight"] + 1e-3}, start / "model.safetensors")
    else:
        step = 10 if change == "unfinished" else 8
        write_json(start / "run.json", read_run(start) | {"step": step, "total_steps": step})
    with pytest.raises(InputError, match=r"warm/warm is not what its training of 10 steps gave; delete it"):
        train(chain_config(), few, tmp_path, resume=True)
    assert not (tmp_path / "warm" / "checkpoints").exists()


def test_a_run_from_a_given_model_is_resumed_from_it(tmp_path, few, whole_chain, monkeypatch):
    """Whatever its settings would have come first, and wherever one stands; even if that model lies in a `warm`."""
    config = chain_config()
    monkeypatch.chdir(whole_chain)
    train(config, few, tmp_path / "cut", max_steps=0, init=Path("warm"))
    monkeypatch.chdir(tmp_path)
    train(config, few, tmp_path / "cut", resume=True)
    assert not (tmp_path / "cut" / "warm").exists()
    assert weights(tmp_path / "cut") == weights(whole_chain)  # it is the same start
    assert read_run(tmp_path / "cut")["chain"] == {"step": 4, "total_steps": 4}
    with pytest.raises(InputError, match=r"was started from .*warm, not from .*; drop --init"):
        train(config, few, tmp_path / "cut", resume=True, init=whole_chain)


def test_what_cannot_be_trained_is_refused_before_its_start_is(tmp_path, few):
    config = replace(chain_config(), head="linear")
    with pytest.raises(InputError, match="head"):
        train(config, few, tmp_path / "deep" / "run")
    assert not (tmp_path / "deep").exists()


def test_a_model_is_of_the_step_that_its_run_file_says(tmp_path, digits, monkeypatch):
    """While it is trained on, and after a kill."""
    train(small_config(checkpoint_every=1), digits, tmp_path, max_steps=2)
    before, told = weights(tmp_path), []

    def dying(state, images, labels, config, step, *rest):
        told.append(read_run(tmp_path))
        if step == 4:
            raise Killed
        return gradient_of_step(state, images, labels, config, step, *rest)

    with monkeypatch.context() as patch:
        patch.setattr("mt3.training.loop.gradient_of_step", dying)
        with pytest.raises(Killed):
            train(small_config(checkpoint_every=1), digits, tmp_path, resume=True)
    assert [run["step"] for run in told] == [2, 2, 2]
    assert read_run(tmp_path)["step"] == 2
    assert weights(tmp_path) == before


@pytest.mark.parametrize("locked", [".", "warm", "warm/warm"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_second_training_is_refused_before_it_changes_anything(tmp_path, few, locked, resume):
    out = tmp_path / "run"
    if resume:
        train(chain_config(), few, out, max_steps=3)
    (out / locked).mkdir(parents=True, exist_ok=True)
    before = contents(tmp_path)
    with own_directory(out / locked), pytest.raises(InputError, match=r"Another process is writing to .*wait until it"):
        train(chain_config(), few, out, resume=resume)
    assert contents(tmp_path) == before
    train(chain_config(), few, out, resume=resume, max_steps=4)
    assert read_run(out)["chain"]["step"] == 4


def test_two_trainings_at_a_time_do_not_mix(tmp_path, capsys, start_sleeper):
    """The first, in a process of its own, is whole, whatever others try."""
    out = tmp_path / "run"
    first = start_sleeper(*sleeper_words(out))
    before = contents(out)
    for more in (["--seed", "1"], ["--resume"], ["--resume", "--seed", "1"]):
        assert main([*sleeper_words(out), *more]) == 2
        refused = f"mt3: Another process is writing to {out}; wait until it ends, or choose another --out.\n"
        assert capsys.readouterr().err == refused
    assert main([*sleeper_words(out / "warm"), "--resume"]) == 2
    assert f"Another process is writing to {out / 'warm'};" in capsys.readouterr().err
    assert contents(out) == before
    (tmp_path / "go").touch()
    first.communicate(timeout=60)
    assert first.returncode == 0
    assert main(sleeper_words(tmp_path / "alone")) == 0
    assert weights(out / "warm") == weights(tmp_path / "alone" / "warm")


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
    train(small_config(), digits, tmp_path, max_steps=1)
    own = ["checkpoints/step-00000001.safetensors", "config.json", "metrics.jsonl", "model.safetensors", "run.json"]
    assert sorted(contents(tmp_path)) == sorted([*kept, *own])
    (tmp_path / left[2]).touch()
    train(small_config(), digits, tmp_path, max_steps=1, resume=True)
    assert sorted(contents(tmp_path)) == sorted([*kept, *own])
