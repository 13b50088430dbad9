"""The fields of a modern recipe, each against its formula, and resumed to the same bits."""

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mt3.config.config import make_config, start_config
from mt3.models.store import load, read_run
from mt3.networks.resnet import Block
from mt3.objectives import byol
from mt3.objectives.augment import BatchShift
from mt3.support import precision
from mt3.support.errors import InputError
from mt3.training import tasks
from mt3.training.loop import lr_factor
from mt3.training.losses import LOSSES
from mt3.training.runs import steps_done
from mt3.training.state import make_state, parameter_groups
from mt3.training.tasks import draw_task
from trainings import check_sgd_by_hand, small_config, train_small

CPU = torch.device("cpu")


def factors(steps=100, **fields):
    config = small_config("supervised", **fields)
    return [lr_factor(config, step, steps, 10) for step in range(steps)]


def test_one_cycle_rises_and_falls_linearly():
    got = factors(warmup=0.2, schedule="linear")
    want = [(i + 1) / 20 for i in range(20)] + [1 - (i - 20) / 80 for i in range(20, 100)]
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_one_cycle_falls_on_a_cosine_to_its_final_rate():
    got = factors(warmup=0.5, schedule="cosine:0.1")
    want = [(i + 1) / 50 for i in range(50)]
    want += [0.1 + 0.9 * (1 + math.cos(math.pi * (i - 50) / 50)) / 2 for i in range(50, 100)]
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_without_a_warm_up_the_schedules_are_as_they_were():
    np.testing.assert_allclose(factors(schedule="linear"), [1 - i / 100 for i in range(100)])
    np.testing.assert_allclose(factors(schedule="cosine"), [(1 + math.cos(math.pi * i / 100)) / 2 for i in range(100)])
    assert factors() == [1.0] * 100


def test_nesterov_momentum_and_decay_on_weights_alone(digits):
    """The step is g + m v, where g has the decay of weights but not of norms and biases."""
    config = small_config("supervised", lr=0.5, momentum=0.9, nesterov=True, weight_decay=0.1, decay_norms=False)

    def decayed(name, p, g, norm):
        return g + (0.1 * p if name.endswith("weight") and "norm" not in name else 0)

    check_sgd_by_hand(config, digits, decayed)


def test_every_parameter_is_in_one_group(digits):
    for spared in (True, False):
        config = small_config("mt3", decay_norms=not spared)
        model = make_state(config, digits, CPU).model
        groups = parameter_groups(model, config)
        assert sorted(id(p) for g in groups for p in g["params"]) == sorted(id(p) for p in model.parameters())
        assert bool(groups[1]["params"]) == spared


@pytest.mark.parametrize("method", ["supervised", "jt", "mt3"])
def test_smoothing_spreads_a_share_of_the_label(digits, method):
    config = small_config(method, smoothing=0.2, gamma=0.0, inner_lr=0.0, task_size=4)
    state = make_state(config, digits, CPU)
    images = torch.from_numpy(digits.train_images[:4]).permute(0, 3, 1, 2)
    labels = torch.from_numpy(digits.train_labels[:4])
    task = draw_task(images, labels, config, torch.Generator().manual_seed(0))
    got = LOSSES[config.training](state, task, config, False).total
    logs = F.log_softmax(state.model(task.images), -1)
    target = 0.8 * F.one_hot(labels, 10) + 0.2 / 10
    torch.testing.assert_close(got, -(target * logs).sum(-1).mean())


def test_b_is_drawn_for_groups_of_images_and_their_views(monkeypatch):
    """Brightness alone: every row of a group moves by the group's delta, and groups differ."""
    deltas = iter([0.1, -0.1, 0.2])
    quiet = {"flip": False, "vertical_flip": False, "blur": False, "noise_std": 0.0}
    monkeypatch.setattr(tasks, "draw_shift", lambda *a, **k: BatchShift(brightness=next(deltas), **quiet))
    monkeypatch.setattr(byol, "make_views", lambda raw, *a: torch.cat([raw, raw]))
    monkeypatch.setattr(tasks, "crop_and_flip", lambda raw, *a: raw)
    config = small_config("jt", shift_group=2, task_size=6)
    images = torch.full((6, 3, 32, 32), 0.5)
    task = draw_task(images, torch.arange(6), config, torch.Generator().manual_seed(0))
    want = torch.tensor([0.6, 0.6, 0.4, 0.4, 0.7, 0.7])
    torch.testing.assert_close(task.images.mean((1, 2, 3)), want)
    torch.testing.assert_close(task.views.images.mean((1, 2, 3)), torch.cat([want, want]))


def test_one_group_is_the_whole_batch(digits):
    images = torch.from_numpy(digits.train_images[:8]).permute(0, 3, 1, 2)
    drawn = [
        draw_task(
            images,
            torch.arange(8),
            small_config("jt", task_size=8, shift_group=group),
            torch.Generator().manual_seed(0),
        )
        for group in (None, 8)
    ]
    assert torch.equal(drawn[0].images, drawn[1].images)
    assert torch.equal(drawn[0].views.images, drawn[1].views.images)


def test_zero_init_makes_every_block_the_identity(digits):
    model = make_state(small_config("mt3", first_weights="zero"), digits, CPU).model
    blocks = [m for m in model.modules() if isinstance(m, Block)]
    assert blocks
    for block in blocks:
        assert not block.conv2.weight.any()
        assert block.conv1.weight.any()
    x = torch.rand(2, 8, 16, 16)
    same = next(b for b in blocks if not b.extra_channels and not b.activated_shortcut) if len(blocks) > 3 else None
    if same is not None:
        torch.testing.assert_close(same(x), x)
    plain = make_state(small_config("mt3"), digits, CPU).model
    assert all(b.conv2.weight.any() for b in plain.modules() if isinstance(b, Block))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"warmup": 1.0}, "Expected warmup to be below 1, which would leave nothing to learn; lower it"),
        ({"nesterov": True, "momentum": 0.0}, "needs a momentum above 0"),
        ({"shift_group": 3}, "Expected shift_group to divide task_size 8, got 3"),
        ({"smoothing": 1.5}, "Expected smoothing between 0 and 1"),
        ({"smoothing": 1.0}, "Expected smoothing to be below 1, which would leave nothing to learn; lower it"),
        ({"inner_clip": 0.0}, "Expected inner_clip to be a norm above 0 or none"),
    ],
)
def test_what_makes_no_sense_is_refused(fields, message):
    with pytest.raises(InputError, match=message):
        small_config("mt3", **{"task_size": 8} | fields)


RECIPE = {
    "warmup": 0.3,
    "schedule": "linear",
    "nesterov": True,
    "weight_decay": 5e-4,
    "decay_norms": False,
    "smoothing": 0.1,
    "clip": 5.0,
    "shift_group": 4,
    "average": 0.9,
    "first_weights": "zero",
    "pad": 3,
    "flip": True,
}


@pytest.mark.parametrize("method", ["supervised", "jt", "mt3"])
def test_a_run_with_the_recipe_resumes_to_the_same_bits(tmp_path, digits, method):
    config = small_config(method, task_size=8, epochs=8 * 8 / 1000, **RECIPE)
    whole = train_small(config, digits, tmp_path / "whole", checkpoint_every=3)
    train_small(config, digits, tmp_path / "cut", max_steps=4, checkpoint_every=3)
    resumed = train_small(config, digits, tmp_path / "cut", resume=True, checkpoint_every=3)
    for name, p in whole.state_dict().items():
        assert torch.equal(p, resumed.state_dict()[name]), name


def test_auto_precision_follows_the_processor_and_stays_with_the_run(tmp_path, digits, monkeypatch, capsys):
    for units, want in (({"avx512_bf16": True}, "bfloat16"), ({"amx_bf16": True}, "bfloat16"), ({}, "float32")):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda units=units: units, raising=False)
        assert precision.choose_precision(CPU)[0] == want
    config = small_config("supervised", precision="auto", epochs=0.02)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    train_small(config, digits, tmp_path, max_steps=1)
    assert "precision auto: bfloat16, since the processor has avx512_bf16" in capsys.readouterr().err
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)  # taken up on another machine
    assert steps_done(config, tmp_path) == 1
    train_small(config, digits, tmp_path, resume=True)
    assert read_run(tmp_path)["config"]["precision"] == load(tmp_path).precision == "bfloat16"


def test_a_start_without_epochs_of_its_own_is_its_methods_training():
    config = make_config("jt", "cifar10", "workstation", 3)
    start = start_config(config)
    assert start == make_config("supervised", "cifar10", "workstation", 3)
    assert start.average == 0.9995
    assert start_config(start) is None


def test_snapshots_are_the_models_that_a_shorter_run_gives(tmp_path, digits):
    config = small_config("supervised", task_size=8, epochs=0.1, average=0.9)
    train_small(config, digits, tmp_path / "long", max_steps=5, snapshot_every=2)
    train_small(config, digits, tmp_path / "short", max_steps=4)
    found = sorted(path.name for path in (tmp_path / "long" / "snapshots").iterdir())
    assert found == ["step-00000000", "step-00000002", "step-00000004"]
    first, begun = load(tmp_path / "long" / "snapshots" / found[0]), make_state(config, digits, CPU).model
    assert all(torch.equal(p, begun.state_dict()[name]) for name, p in first.state_dict().items())
    kept, want = load(tmp_path / "long" / "snapshots" / "step-00000004"), load(tmp_path / "short")
    about = json.loads((tmp_path / "long" / "snapshots" / "step-00000004" / "run.json").read_text())["about"]
    assert (about["step"], about["method"]) == (4, config.method)  # so that it can be evaluated as a run
    assert all(torch.equal(p, want.state_dict()[name]) for name, p in kept.state_dict().items())
