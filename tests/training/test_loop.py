"""The loop: gradients, schedules and steps by hand, resuming to the bit, signals and divergence."""

import json
import math
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

import mt3
from mt3.config.methods import METHODS
from mt3.data import Dataset
from mt3.models.store import load_checkpoint, read_run
from mt3.support.errors import InputError
from mt3.support.signals import Stopped, stop_on_signals
from mt3.training.loop import apply_gradient, ema_momentum, gradient_of_step, lr_factor
from mt3.training.losses import meta_loss
from mt3.training.state import make_state
from mt3.training.tasks import draw_step_task
from trainings import Killed, check_sgd_by_hand, metrics, small_config, train_small, weights


def test_moving_average_follows_the_online_weights(digits, monkeypatch):
    monkeypatch.setattr("mt3.training.loop.EMA_MOMENTUM", 0.9)
    config = small_config("jt")
    state = make_state(config, digits, torch.device("cpu"))
    assert state.ema is not None
    before = state.ema["backbone.early.stem.weight"].clone()
    torch.testing.assert_close(before, state.model.backbone.early.stem.weight.detach())
    images = torch.from_numpy(digits.train_images).permute(0, 3, 1, 2)
    gradient_of_step(state, images, torch.from_numpy(digits.train_labels), config, 0, log=True)
    apply_gradient(state, config, 0, 100, 10)
    want = 0.9 * before + 0.1 * state.model.backbone.early.stem.weight.detach()
    torch.testing.assert_close(state.ema["backbone.early.stem.weight"], want)


def test_learning_rate_schedules():
    cosine = small_config(schedule="cosine:0.1")
    assert [round(lr_factor(cosine, s, 100, 10), 6) for s in (0, 50, 100)] == [1.0, 0.55, 0.1]
    step = small_config("baseline", schedule="step:2,5")
    assert [lr_factor(step, s, 100, 10) for s in (0, 19, 20, 49, 50)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    assert lr_factor(small_config(), 77, 100, 10) == 1.0
    rising = small_config("jt", variant="official")
    assert ema_momentum(small_config("jt"), 77, 100) == 0.996
    assert ema_momentum(rising, 0, 100) == pytest.approx(0.996)
    assert ema_momentum(rising, 50, 100) == pytest.approx(0.998)
    assert ema_momentum(rising, 100, 100) == pytest.approx(1.0)


def test_sgd_step_with_clip_decay_and_momentum_by_hand(digits):
    config = small_config(lr=0.5, momentum=0.9, weight_decay=0.01, clip=0.5)
    check_sgd_by_hand(config, digits, lambda name, p, g, norm: g * (0.5 / norm) + 0.01 * p)


def test_joint_training_is_clipped_only_where_that_is_asked_for(digits):
    assert small_config("jt").clip is None  # the paper's
    for clip, share in ((None, 1.0), (0.5, None)):
        config = small_config("jt", weight_decay=0.0, clip=clip)
        state = make_state(config, digits, torch.device("cpu"))
        for p in state.model.parameters():
            p.grad = torch.full_like(p, 3.0)
        norm = 3.0 * math.sqrt(sum(p.numel() for p in state.model.parameters()))
        apply_gradient(state, config, 0, 10, 10)
        buffer = state.optimizer.state[state.model.backbone.early.stem.weight]["momentum_buffer"]
        torch.testing.assert_close(buffer, torch.full_like(buffer, 3.0 * (share or 0.5 / norm)))


def test_gradient_of_a_step_is_the_mean_over_its_tasks(digits):
    config = small_config(tasks=3)
    images = torch.from_numpy(digits.train_images).permute(0, 3, 1, 2)
    labels = torch.from_numpy(digits.train_labels)
    state = make_state(config, digits, torch.device("cpu"))
    gradient_of_step(state, images, labels, config, 5, log=False)
    together = {n: p.grad.clone() for n, p in state.model.named_parameters() if p.grad is not None}

    single = []
    for number in range(config.tasks):
        task = draw_step_task(images, labels, config, 5, number)
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
        loss = gradient_of_step(state, images, labels, config, 0, log=False)["loss"]
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
    config = small_config(method)
    train_small(config, digits, tmp_path / "whole", max_steps=5, checkpoint_every=2)
    for stop in (1, 2, 4):
        out = tmp_path / f"cut{stop}"
        train_small(config, digits, out, max_steps=stop, checkpoint_every=2)
        train_small(config, digits, out, max_steps=5, resume=True, checkpoint_every=2)
        assert weights(out) == weights(tmp_path / "whole")
        assert (out / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("kill_at", [0, 1, 3, 6])
def test_killed_run_is_bit_identical_after_resuming(tmp_path, digits, monkeypatch, kill_at):
    config = small_config()
    train_small(config, digits, tmp_path / "whole", max_steps=7, checkpoint_every=2)
    original = gradient_of_step

    def dying(state, images, labels, config, step, *rest):
        if step == kill_at:
            raise Killed
        return original(state, images, labels, config, step, *rest)

    with monkeypatch.context() as patch:
        patch.setattr("mt3.training.loop.gradient_of_step", dying)
        with pytest.raises(Killed):
            train_small(config, digits, tmp_path / "cut", max_steps=7, checkpoint_every=2)
    with pytest.raises(InputError, match="the run is not finished, continue it with --resume"):
        mt3.load(tmp_path / "cut")
    train_small(config, digits, tmp_path / "cut", max_steps=7, resume=True, checkpoint_every=2)
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    whole, cut = (metrics(tmp_path / name) for name in ("whole", "cut"))
    assert whole == cut


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("place", ["gradient_of_step", "apply_gradient"])
def test_a_signal_lets_the_step_be_finished_and_saved(tmp_path, digits, monkeypatch, number, place):
    config = small_config()
    train_small(config, digits, tmp_path / "whole", max_steps=6, checkpoint_every=100)
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
            train_small(config, digits, tmp_path / "cut", max_steps=9, checkpoint_every=100)
    assert stopped.value.number == number
    assert signal.getsignal(number) is before
    run = read_run(tmp_path / "cut")
    assert (run["step"], run["total_steps"]) == (4, 8100)
    found = load_checkpoint(tmp_path / "cut")
    assert found is not None
    assert found[0] == 4
    train_small(config, digits, tmp_path / "cut", max_steps=6, resume=True, checkpoint_every=100)
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")


def test_a_second_interrupt_is_handled_by_the_program_that_trains(tmp_path, digits, monkeypatch):
    """A notebook, say, which does not end with it; what is saved stays."""
    config = small_config()
    train_small(config, digits, tmp_path / "whole", max_steps=5, checkpoint_every=2)

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
            train_small(config, digits, tmp_path / "cut", max_steps=5, checkpoint_every=2)
    assert not isinstance(stopped.value, Stopped)
    found = load_checkpoint(tmp_path / "cut")
    assert found is not None
    assert found[0] == 2  # not the state that was half way to the next step
    train_small(config, digits, tmp_path / "cut", max_steps=5, resume=True, checkpoint_every=2)
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")


def test_an_ignored_signal_stays_ignored(tmp_path, digits):
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals() as stop:
            train_small(small_config(), digits, tmp_path, max_steps=1)
            signal.raise_signal(signal.SIGHUP)
        assert stop.number is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_divergence_names_the_step_and_keeps_the_last_good_checkpoint(tmp_path, digits, monkeypatch):
    config = small_config()
    original = gradient_of_step

    def diverging(state, images, labels, config, step, *rest):
        if step == 4:
            with torch.no_grad():
                state.model.backbone.early.stem.weight.fill_(float("nan"))
        return original(state, images, labels, config, step, *rest)

    monkeypatch.setattr("mt3.training.loop.gradient_of_step", diverging)
    with pytest.raises(InputError, match=r"not finite at step 5 .*last good checkpoint, step 4, stays"):
        train_small(config, digits, tmp_path, max_steps=9, checkpoint_every=2)
    found = load_checkpoint(tmp_path)
    assert found is not None
    assert found[0] == 4
    assert all(torch.isfinite(t).all() for t in found[1].values())


def test_huge_learning_rate_diverges_with_a_sentence(tmp_path, digits):
    config = small_config("baseline", lr=1e25, weight_decay=0.0)
    with pytest.raises(InputError, match="not finite at step"):
        train_small(config, digits, tmp_path, max_steps=9)


def test_full_disk_is_one_sentence(tmp_path, digits, monkeypatch):
    from safetensors import SafetensorError

    def full(*rest):
        raise SafetensorError("No space left on device")

    monkeypatch.setattr("mt3.models.store.save_file", full)
    with pytest.raises(InputError, match=r"Cannot write .*No space left on device"):
        train_small(small_config(), digits, tmp_path, max_steps=3, checkpoint_every=1)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_metrics_say_what_was_trained(tmp_path, digits):
    train_small(small_config(), digits, tmp_path / "mt3", max_steps=4, log_every=2)
    lines = metrics(tmp_path / "mt3")
    assert [line["step"] for line in lines] == [2, 4]
    for line in lines:
        assert line["loss"] == pytest.approx(line["ce"] + 0.1 * line["selfsup"], rel=1e-5)
        assert 0 <= line["accuracy_before"] <= 1
        assert 0 <= line["accuracy_after"] <= 1
        assert line["inner_loss"] > 0
        assert line["lr"] == 0.01
    run = json.loads((tmp_path / "mt3" / "run.json").read_text())
    assert (run["step"], run["config"]["inner_lr"]) == (4, 0.1)


def test_training_learns(tmp_path):
    """Two classes, red and blue: cross-entropy and joint training bring the loss down from chance."""
    rng = np.random.default_rng(0)
    labels = np.arange(128) % 2
    images = rng.integers(0, 128, (128, 32, 32, 3), dtype=np.uint8)
    images[labels == 0, ..., 0] += 100
    images[labels == 1, ..., 2] += 100
    colours = Dataset("colours", images, labels, images, labels, ("red", "blue"))
    for method, steps in (("baseline", 30), ("jt", 30)):
        train_small(
            small_config(method, lr=0.1, weight_decay=0.0, width=8, hidden=16),
            colours,
            tmp_path / method,
            max_steps=steps,
        )
        losses = [line["ce"] for line in metrics(tmp_path / method)]
        assert np.mean(losses[:2]) > 0.5, method
        assert np.mean(losses[-5:]) < 0.2, method


def test_seeds_differ_and_repeat(tmp_path, digits):
    train_small(small_config(), digits, tmp_path / "b", max_steps=2)
    train_small(small_config(), digits, tmp_path / "c", max_steps=2)
    train_small(small_config(seed=1), digits, tmp_path / "d", max_steps=2)
    assert weights(tmp_path / "b") == weights(tmp_path / "c") != weights(tmp_path / "d")


def test_tensorboard_gets_the_same_numbers(tmp_path, digits):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train_small(small_config(), digits, tmp_path, max_steps=2, tensorboard=True)
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
        metrics = gradient_of_step(state, images, labels, config, 2, log=True)
        gradients.append(([p.grad for p in state.model.parameters()], metrics))
    for a, b in zip(gradients[0][0], gradients[1][0], strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)
    assert gradients[0][1] == pytest.approx(gradients[1][1], rel=1e-4)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"inner_steps": 3, "inner_clip": 0.05},
        {"inner_steps": 3, "inner_clip": 0.05, "variant": "official"},
        {"inner_steps": 2, "inner_target": "ema", "variant": "official"},
        {"order": "first", "inner_clip": 0.05},
        {"objective": "rotation", "inner_steps": 2, "inner_clip": 0.05},
        {"task_images": 1},
        {"layers": "norm", "inner_steps": 2, "inner_clip": 0.05},
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
        metrics = gradient_of_step(state, images, labels, config, 2, log=True)
        found.append(([p.grad for p in state.model.parameters()], metrics))
    for a, b in zip(found[0][0], found[1][0], strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-9)
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-6)  # accuracies are float32


def test_averaged_weights_are_the_moving_average(tmp_path, digits):
    config = small_config("baseline", average=0.5)
    assert config.tasks == 1
    steps = 4
    model = train_small(config, digits, tmp_path / "averaged", max_steps=steps, checkpoint_every=1)
    state = make_state(replace(config, average=0.0), digits, torch.device("cpu"))
    images = torch.from_numpy(digits.train_images).permute(0, 3, 1, 2).contiguous()
    labels = torch.from_numpy(digits.train_labels)
    per_epoch = len(images) // config.task_size
    total = round(config.epochs * per_epoch)
    want = {n: p.detach().clone() for n, p in state.model.named_parameters()}
    for step in range(steps):
        gradient_of_step(state, images, labels, config, step, log=False)
        apply_gradient(state, config, step, total, per_epoch)
        decay = min(0.5, (1 + step) / (10 + step))
        want = {n: decay * want[n] + (1 - decay) * p.detach() for n, p in state.model.named_parameters()}
    for name, p in model.named_parameters():
        torch.testing.assert_close(p, want[name], atol=1e-6, rtol=1e-5)
    # cut in the middle and resumed, the average goes on as well
    train_small(config, digits, tmp_path / "cut", max_steps=2, checkpoint_every=1)
    resumed = train_small(config, digits, tmp_path / "cut", max_steps=steps, resume=True, checkpoint_every=1)
    for a, b in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
