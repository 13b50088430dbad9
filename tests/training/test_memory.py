"""The memory of a step: the estimate beside what was measured, and what is said where it does not fit."""

from pathlib import Path

import pytest
import torch

import mt3
from foreign import coloured
from mt3.config.config import make_config
from mt3.data import load_digits
from mt3.training.loop import train
from mt3.training.memory import check_step_memory, device_memory, step_memory
from mt3.training.runs import RunOptions

GB = 2**30


def config(**fields):
    return make_config("mt3", "digits", "paper", 0, fields)


@pytest.mark.parametrize(
    ("fields", "measured"),  # MB of the paper's network on two threads, as in docs/performance.md
    [({}, 669), ({"tasks": 1}, 314), ({"task_size": 16}, 1242), ({"inner_steps": 2}, 996), ({"inner_steps": 3}, 1310)],
)
def test_the_estimate_is_near_what_was_measured(monkeypatch, fields, measured):
    monkeypatch.setattr("mt3.support.threads.own_threads", lambda: 2)
    asked = config(**fields)
    estimate = step_memory(mt3.MT3Model("resnet26x32"), asked, 32, asked.task_size, "second", False)
    assert estimate / 2**20 == pytest.approx(measured, rel=0.15)


def test_what_would_fit_is_said(monkeypatch):
    monkeypatch.setattr("mt3.support.threads.own_threads", lambda: 1)
    model, asked = mt3.MT3Model("resnet26x32"), config(tasks=1, task_size=100)
    whole = step_memory(model, asked, 224, 100, "second", False)

    def refusal(there: float) -> str:
        monkeypatch.setattr("mt3.training.memory.free_memory", lambda: there)
        with pytest.raises(mt3.InputError) as error:
            check_step_memory(model, asked, 224, False)
        return str(error.value)

    begin = f"A step of this training takes about {whole / GB:.1f} GB of memory, and"
    # memory is in proportion to the images of a task where a stack has one task
    ways = "--task-size 95 or --order first or --recompute."
    assert refusal(0.955 * whole) == f"{begin} {0.955 * whole / GB:.1f} GB are free; give {ways}"
    assert refusal(0.5 * whole).endswith("give --task-size 50 or --order first.")
    assert refusal(0.2 * whole).endswith("give --task-size 20.")
    assert refusal(0.001 * whole).endswith("take a smaller network or smaller images.")
    monkeypatch.setattr("mt3.training.memory.free_memory", lambda: 0.955 * whole)
    check_step_memory(model, asked, 224, recompute=True)


def test_other_trainings_need_less(monkeypatch):
    monkeypatch.setattr("mt3.support.threads.own_threads", lambda: 1)
    model, kept = mt3.MT3Model("resnet8x4"), 7 * 4 * 32**2 * 4  # bytes of an image
    joint, plain = (make_config(m, "digits", "paper", 0, {"task_size": 8}) for m in ("jt", "baseline"))
    assert step_memory(model, joint, 32, 8, "second", False) == 1.5 * 24 * kept
    assert step_memory(model, plain, 32, 8, "second", False) == 1.5 * 8 * kept
    assert step_memory(model, config(tasks=1), 32, 8, "first", False) == 1.5 * 24 * kept
    assert step_memory(model, config(tasks=1, gamma=0), 32, 8, "second", False) == (3 * 16 + 1.5 * 8) * kept
    turned = mt3.MT3Model("resnet8x4", objective="rotation")
    assert step_memory(turned, joint, 32, 8, "second", False) == 1.5 * 32 * kept


def test_a_step_that_does_not_fit_leaves_nothing_behind(monkeypatch, tmp_path):
    monkeypatch.setattr("mt3.training.memory.free_memory", lambda: 1000.0)
    with pytest.raises(mt3.InputError, match="A step of this training takes about"):
        train(config(depth=8, width=4), load_digits(), tmp_path / "run", RunOptions())
    with pytest.raises(mt3.InputError, match="A step of this training takes about"):
        mt3.train(mt3.MT3Model("resnet8x4", 2), coloured(), out=Path(tmp_path / "run"))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_an_accelerator_is_asked_for_what_is_free(monkeypatch):
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (123, 456))
    assert device_memory(torch.device("cuda:0")) == 123
    assert device_memory(torch.device("meta")) == float("inf")
    assert 2**28 < device_memory(torch.device("cpu")) < 2**50
