"""Training on images that are not held in memory, and on own photos from the command line."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mt3.cli.main import main
from mt3.config.config import make_config
from mt3.data import from_arrays, load_digits
from mt3.models.classifier import MT3Model
from mt3.models.store import load, tensors_hash
from mt3.training import tasks
from mt3.training.loop import train
from mt3.training.runs import RunOptions
from mt3.training.tasks import draw_step_task, hold_images

SMALL = {"depth": 8, "width": 4, "hidden": 16, "projection": 8, "start": "none", "precision": "float32"}


def test_a_mapped_file_gives_the_tasks_of_images_in_memory(tmp_path, monkeypatch):
    digits = load_digits()
    np.save(tmp_path / "images.npy", digits.train_images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    config = make_config("mt3", "digits", "demo", 0, SMALL)
    labels = torch.from_numpy(digits.train_labels)
    held = hold_images(mapped, torch.device("cpu"))
    assert isinstance(held, torch.Tensor)
    monkeypatch.setattr(tasks, "HELD", 0)
    assert hold_images(mapped, torch.device("cpu")) is mapped
    for step, number in ((0, 0), (3, 1), (100, 0)):
        one, other = (draw_step_task(images, labels, config, step, number) for images in (held, mapped))
        assert torch.equal(one.images, other.images)
        assert one.images.is_contiguous() == other.images.is_contiguous()
        assert torch.equal(one.labels, other.labels)
        assert torch.equal(one.views.images, other.views.images)


def test_a_mapped_file_gives_the_same_model(tmp_path, monkeypatch):
    digits = load_digits()
    np.save(tmp_path / "images.npy", digits.train_images)
    mapped = replace(digits, train_images=np.load(tmp_path / "images.npy", mmap_mode="r"))
    config = make_config("mt3", "digits", "demo", 0, SMALL | {"tasks": 2})
    held = train(config, digits, tmp_path / "held", RunOptions(max_steps=2))
    monkeypatch.setattr(tasks, "HELD", 0)
    read = train(config, mapped, tmp_path / "read", RunOptions(max_steps=2))
    assert tensors_hash(held.state_dict()) == tensors_hash(read.state_dict())


def test_arrays_of_another_size_are_trained_on(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (60, 18, 18, 3), dtype=np.uint8)
    dataset = from_arrays(images, np.arange(60) % 3, ["a", "b", "c"])
    config = make_config("mt3", dataset.name, "demo", 0, SMALL | {"tasks": 2})
    train(config, dataset, tmp_path / "run", RunOptions(max_steps=1))
    model = load(tmp_path / "run")
    assert (model.size, model.classes) == (18, ["a", "b", "c"])


@pytest.mark.parametrize("size", [16, 17, 18, 19, 50])
def test_the_network_takes_any_size(size):
    model = MT3Model("resnet8x4", 3, size=size)
    assert model(torch.rand(2, 3, size, size)).shape == (2, 3)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for kind, channel in (("red", 0), ("blue", 2)):
        (tmp_path / "colours" / kind).mkdir(parents=True)
        for i in range(30):
            pixels = rng.integers(0, 100, (20, 22, 3), dtype=np.uint8)
            pixels[..., channel] += 150
            Image.fromarray(pixels).save(tmp_path / "colours" / kind / f"{i}.png")
    return tmp_path / "colours"


def test_own_photos_from_the_command_line(photos, tmp_path, capsys):
    run = tmp_path / "run"
    flags = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]
    command = ["train", "--method", "baseline", "--task-size", "16", "--epochs", "4", "--out", str(run), *flags]
    asked = ["--data", f"folder:{photos}", "--size", "24"]
    assert main([*command, *asked, "--max-steps", "4"]) == 0
    told = json.loads((run / "run.json").read_text())
    assert told["config"]["data"] == "folder:colours"  # where the folder lies is not part of the config
    assert told["config"]["preset"] == "small"
    assert told["data_dir"] == str(photos)
    assert told["images"] == "48 of 24 pixels in 2 classes"
    capsys.readouterr()
    assert main([*command, "--data", f"folder:{photos}", "--size", "20", "--resume"]) == 2
    assert "were 48 of 24 pixels in 2 classes, these are 48 of 20 pixels in 2 classes" in capsys.readouterr().err
    (tmp_path / "elsewhere").mkdir()
    photos = photos.rename(tmp_path / "elsewhere" / "colours")
    assert main([*command, "--data", f"folder:{photos}", "--size", "24", "--resume"]) == 0
    assert load(run).classes == ["blue", "red"]
    capsys.readouterr()
    assert main(["evaluate", str(run), "--corruptions", "none"]) == 0  # folder and size are those of the run
    found = json.loads((run / "evaluation.json").read_text())
    assert (found["protocol"]["data"], found["protocol"]["images"]) == ("folder:colours", 12)
