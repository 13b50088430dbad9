"""Configs: what the presets say against the paper, overriding, and refusals."""

import json
import tomllib
from importlib import resources

import pytest

from mt3.cli.main import main
from mt3.config.config import CHOICES, FIELDS, config_from_dict, config_to_dict, make_config, preset_names, warm_config
from mt3.config.methods import METHODS
from mt3.config.words import GIVEN, describe_fields
from mt3.support.errors import InputError

PAPER = {
    "mt3": {
        "tasks": 4, "task_size": 8, "lr": 0.01, "momentum": 0.9, "weight_decay": 1.5e-6, "gamma": 0.1, "clip": 10.0,
        "inner_steps": 1, "inner_lr": 0.1, "epochs": 200, "test_lr": 0.1, "test_steps": 1, "test_views": 32,
        "clip_mode": "global", "inner_target": "meta", "outer_target": "meta", "schedule": "constant", "width": 32,
        "depth": 26, "pad": 2, "vertical_flip": False, "crop_max": 32, "order": "second", "head": "mt3",
    },
    "jt": {
        "tasks": 1, "task_size": 128, "lr": 0.1, "momentum": 0.9, "weight_decay": 1.5e-6, "gamma": 0.1, "epochs": 200,
        "ema_momentum": 0.996, "ema_schedule": "constant", "test_lr": 0.01, "test_steps": 1, "test_views": 32,
        "batch_aug": True, "width": 32,
    },
    "baseline": {
        "task_size": 128, "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "epochs": 200, "pad": 4, "flip": True,
        "batch_aug": False, "selfsup": "none", "width": 32,
    },
    "jt-rotation": {
        "task_size": 128, "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "epochs": 150, "milestones": (75.0, 125.0),
        "schedule": "step", "pad": 4, "flip": True, "gamma": 1.0, "width": 16, "test_lr": 0.001, "test_steps": 10,
        "test_views": 32, "head": "linear", "selfsup": "rotation",
    },
    "baseline-sun": {
        "lr": 0.1, "weight_decay": 5e-4, "epochs": 150, "width": 16, "head": "linear", "milestones": (75.0, 125.0),
    },
}  # fmt: skip

OFFICIAL = {
    "mt3": {
        "head": "official", "weight_decay": 0.0, "clip_mode": "tensor", "test_clip": None, "test_fresh_views": False,
        "inner_target": "previous", "outer_target": "adapted", "vertical_flip": True, "crop_max": 31, "pad": 2,
    },
    "jt": {
        "ema_schedule": "cosine", "ema_start": "random", "weight_decay": 0.0, "head": "official", "vertical_flip": True,
    },
    "baseline": {"pad": 2, "weight_decay": 0.0, "head": "official"},
    "jt-rotation": {"head": "linear", "weight_decay": 5e-4, "pad": 4, "test_steps": 10, "test_fresh_views": True},
}  # fmt: skip


@pytest.mark.parametrize(
    ("preset", "method", "fields"),
    [("paper", m, f) for m, f in PAPER.items()] + [("official", m, f) for m, f in OFFICIAL.items()],
)
def test_preset_says_what_its_source_says(preset, method, fields):
    config = make_config(method, "cifar10", preset)
    assert {name: getattr(config, name) for name in fields} == fields


@pytest.mark.parametrize("preset", ["paper", "official"])
def test_cifar100_changes_only_the_test_rate_of_mt3(preset):
    for method in METHODS:
        ten, hundred = (config_to_dict(make_config(method, data, preset)) for data in ("cifar10", "cifar100"))
        changed = {k for k in ten if ten[k] != hundred[k]}
        assert changed == ({"data", "test_lr"} if method == "mt3" else {"data"})
    assert make_config("mt3", "cifar100", preset).test_lr == 0.05


@pytest.mark.parametrize("preset", preset_names())
def test_presets_are_whole(preset):
    text = (resources.files("mt3.config") / "presets" / f"{preset}.toml").read_text()
    head = text.split("\n\n")[0]
    assert all(word in head for word in ("Command:", "Duration:", "Expected:"))
    assert set(tomllib.loads(text).get("method", {})) <= set(METHODS)
    for method in METHODS:
        config = make_config(method, "digits", preset)
        assert config_from_dict(json.loads(json.dumps(config_to_dict(config)))) == config


def test_cpu_gives_jt_and_mt3_a_start_with_their_own_augmentation():
    joint, meta = (make_config(method, "cifar10", "cpu", 1) for method in ("jt", "mt3"))
    start = warm_config(joint)
    assert (start.method, start.batch_aug, start.flip, start.pad) == ("baseline", True, False, 2)
    assert (start.schedule, start.seed, warm_config(start)) == ("constant", 1, None)
    assert warm_config(meta).method == "jt"
    assert warm_config(warm_config(meta)) == start
    baseline = make_config("baseline", "cifar10", "cpu")
    assert (baseline.batch_aug, baseline.flip, baseline.pad) == (False, True, 4)  # as the paper has it


def test_overrides_come_last_and_take_text():
    overrides = {"inner-lr": "0.05", "width": "16", "batch_aug": "false", "clip": "none", "milestones": "1,2.5"}
    config = make_config("mt3", "cifar10", "paper", 7, overrides)
    assert (config.inner_lr, config.width, config.batch_aug, config.clip) == (0.05, 16, False, None)
    assert (config.milestones, config.seed) == ((1.0, 2.5), 7)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"inner-rate": "1"},
            r"Unknown field 'inner-rate' \(did you mean 'inner_lr'\?\): expected one of .*inner_steps",
        ),
        ({"width": "wide"}, "Expected a whole number for width, got 'wide'"),
        ({"width": "1.5"}, "Expected a whole number for width, got '1.5'"),
        ({"lr": "nan"}, "Expected a number for lr, got 'nan'"),
        ({"clip": "big"}, "Expected a number or none for clip, got 'big'"),
        ({"batch_aug": "maybe"}, "Expected true or false for batch_aug, got 'maybe'"),
        ({"order": "third"}, "Unknown order 'third': expected one of second, first"),
        ({"tasks": "0"}, "Expected tasks to be at least 1, got 0"),
        ({"lr": "0"}, "Expected lr to be above 0"),
        ({"gamma": "-1"}, "Expected gamma not to be negative, got -1"),
        ({"anchor": "-1"}, "Expected anchor not to be negative, got -1"),
        ({"clip": "0"}, "Expected clip to be a norm above 0 or none"),
        ({"pad": "99999999"}, "Expected pad to be up to 31 pixels, so that a crop shows something, got 99999999"),
        ({"crop_max": "40"}, "crop_max between 20 and 32 pixels, got 40"),
        ({"momentum": "5"}, "momentum between 0 and 1, got 5"),
        ({"milestones": "-3"}, "milestones not to be negative"),
        ({"task_images": "3"}, "task_images to divide task_size 8, got 3"),
        ({"view_images": "9"}, "view_images from 1 to task_size 8, got 9"),
        ({"view_images": "1", "selfsup": "rotation"}, "view_images belongs to the byol task; drop it for rotation"),
        ({"selfsup": "none"}, "self-supervised task for meta training"),
        ({"training": "joint", "tasks": "1", "anchor": "0.2"}, "belong to meta training; drop them for joint"),
        ({"training": "joint", "tasks": "1", "learn_rates": "true"}, "belong to meta training"),
    ],
)
def test_bad_fields_are_refused(overrides, message):
    with pytest.raises(InputError, match=message):
        make_config("mt3", "cifar10", "paper", overrides=overrides)


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match="Unknown preset 'quick': expected one of cpu, demo, official, paper"):
        make_config("mt3", "cifar10", "quick")
    with pytest.raises(InputError, match="tasks=1 for joint training"):
        make_config("jt", "cifar10", "paper", overrides={"tasks": "2"})
    with pytest.raises(InputError, match="Unknown field 'colour'"):
        config_from_dict({"colour": 1})


def test_every_field_has_a_phrase():
    groups = describe_fields()
    phrases = {name: phrase for group in groups.values() for name, phrase in group.items()}
    assert list(phrases) == list(FIELDS)
    assert all(phrase[-1] not in ".;:" and "# " not in phrase for phrase in phrases.values())
    assert groups["the network"]["depth"] == "layers, 6n+2"
    assert groups["the inner loop"]["inner_target"].startswith("what gives z inside: the meta-model, ")


def test_the_help_of_train_says_what_each_field_is(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        main(["train", "--help"])
    fields = capsys.readouterr().out.partition("the paper's MT3 has:\n")[2]
    assert max(len(line) for line in fields.splitlines()) <= 80
    lines = " ".join(fields.split())  # as if they were not wrapped
    for name in FIELDS.keys() - set(GIVEN):
        place = lines.index(f"--{name.replace('_', '-')} ")
        said = lines[place:].partition(" --")[0]
        assert len(said.split()) > 2, said
        assert all(choice in said for choice in CHOICES.get(name, ())), said
    assert "the outer loop: --epochs 200.0 passes over the training images" in lines
    assert "--milestones '' epochs after which" in lines


def test_the_help_needs_no_source(monkeypatch):
    def fail(_: object) -> str:
        raise OSError("could not get source code")

    monkeypatch.setattr("inspect.getsource", fail)
    with pytest.raises(SystemExit, match="0"):
        main(["train", "--help"])
