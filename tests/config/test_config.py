"""Configs: what the presets say against the paper, overriding, and refusals."""

import json
import tomllib
from dataclasses import asdict, replace
from importlib import resources

import numpy as np
import pytest

from mt3.cli.main import main
from mt3.config.adaptation import Adaptation
from mt3.config.config import (
    CHOICES,
    FIELDS,
    NETWORK,
    Config,
    config_from_dict,
    departures,
    make_config,
    preset_names,
    read_schedule,
    read_start,
    start_config,
)
from mt3.config.methods import METHODS
from mt3.config.words import GIVEN, describe_fields
from mt3.support.errors import InputError

PAPER = {
    "mt3": {
        "tasks": 4, "task_size": 8, "lr": 0.01, "momentum": 0.9, "weight_decay": 1.5e-6, "gamma": 0.1, "clip": 10.0,
        "inner_steps": 1, "inner_lr": 0.1, "epochs": 200, "test_lr": 0.1, "test_views": 32, "inner_target": "meta",
        "schedule": "constant", "width": 32, "depth": 26, "hidden": 256, "pad": 2, "order": "second",
        "variant": "paper", "inner_clip": 10.0, "objective": "byol",
    },
    "jt": {
        "tasks": 1, "task_size": 128, "lr": 0.1, "momentum": 0.9, "weight_decay": 1.5e-6, "gamma": 0.1, "epochs": 200,
        "test_lr": 0.01, "inner_steps": 1, "test_views": 32, "batch_aug": True, "width": 32, "variant": "paper",
    },
    "baseline": {
        "task_size": 128, "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "epochs": 200, "pad": 4, "flip": True,
        "batch_aug": False, "objective": None, "width": 32, "hidden": 256,
    },
    "jt-rotation": {
        "task_size": 128, "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "epochs": 150,
        "schedule": "step:75,125", "pad": 4, "flip": True, "gamma": 1.0, "width": 16, "test_lr": 0.001,
        "inner_steps": 10, "test_views": 32, "hidden": 0, "objective": "rotation",
    },
    "baseline-sun": {
        "lr": 0.1, "weight_decay": 5e-4, "epochs": 150, "width": 16, "hidden": 0, "schedule": "step:75,125",
    },
}  # fmt: skip

OFFICIAL = {
    "mt3": {
        "variant": "official", "weight_decay": 0.0, "pad": 2, "inner_clip": 10.0,
        "test": Adaptation("byol", 1, 0.1, None, 32, variant="official"),
    },
    "jt": {"weight_decay": 0.0, "variant": "official"},
    "baseline": {"pad": 2, "weight_decay": 0.0, "variant": "official"},
    "jt-rotation": {
        "hidden": 0, "weight_decay": 5e-4, "pad": 4, "variant": "paper",
        "test": Adaptation("rotation", 10, 0.001, None, 32),
    },
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
        ten, hundred = (asdict(make_config(method, data, preset)) for data in ("cifar10", "cifar100"))
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
        assert config_from_dict(json.loads(json.dumps(asdict(config)))) == config


def test_cpu_gives_jt_and_mt3_a_start_with_their_own_augmentation():
    joint, meta = (make_config(method, "cifar10", "cpu", 1) for method in ("jt", "mt3"))
    start = start_config(joint)
    assert (start.method, start.batch_aug, start.flip, start.pad) == ("supervised", True, False, 2)
    assert (start.schedule, start.seed, start_config(start)) == ("constant", 1, None)
    assert meta.start == "jt:1.35"
    first = start_config(meta)
    assert first == replace(joint, epochs=1.35)  # nothing else of it changes
    assert start_config(first) == start
    baseline = make_config("baseline", "cifar10", "cpu")
    assert (baseline.batch_aug, baseline.flip, baseline.pad) == (False, True, 4)  # as the paper has it


def test_overrides_come_last_and_take_text():
    overrides = {"inner-lr": "0.05", "width": "16", "batch_aug": "false", "clip": "none", "schedule": "step:1,2.5"}
    config = make_config("mt3", "cifar10", "paper", 7, overrides)
    assert (config.inner_lr, config.width, config.batch_aug, config.clip) == (0.05, 16, False, None)
    assert (read_schedule(config.schedule), config.seed) == (("step", (1.0, 2.5)), 7)


def test_an_adaptation_is_read_from_the_fields():
    """Training has the inner rate, the finished model that of the test; the authors' code does not clip there."""
    fields = {"inner_steps": 3, "inner_lr": 0.5, "test_lr": 0.2, "inner_clip": 2.0, "test_views": 7, "layers": "norm"}
    config = make_config("mt3", "cifar10", "paper", overrides=fields)
    assert config.inner == Adaptation("byol", 3, 0.5, 2.0, layers="norm")
    assert config.test == Adaptation("byol", 3, 0.2, 2.0, 7, "norm")
    official = replace(config, variant="official")
    assert (official.inner.clip, official.test.clip, official.test.variant) == (2.0, None, "official")


def test_a_schedule_is_a_name_and_its_numbers():
    assert read_schedule("constant") == ("constant", ())
    assert read_schedule("linear:0.5") == ("linear", (0.5,))
    assert read_schedule("cosine") == ("cosine", ())
    assert read_schedule("cosine:0.1") == ("cosine", (0.1,))
    assert read_schedule("step:75,125") == ("step", (75.0, 125.0))


@pytest.mark.parametrize(
    "schedule",
    [
        "",
        "cos",
        "cosine:",
        "cosine:x",
        "cosine:0.1,0.2",
        "cosine:-0.1",
        "constant:1",
        "step",
        "step:",
        "step:-3",
        "step:nan",
    ],
)
def test_a_bad_schedule_is_one_sentence(schedule):
    expected = f"Expected schedule to be one of constant, linear, cosine, cosine:0.1, step:75,125, got '{schedule}'."
    with pytest.raises(InputError) as refused:
        make_config("mt3", "cifar10", "paper", overrides={"schedule": schedule})
    assert str(refused.value) == expected


def test_a_rate_does_not_end_above_where_it_began():
    with pytest.raises(InputError, match=r"^Expected cosine to end at a share of the rate from 0 to 1, got 2\.0\.$"):
        make_config("mt3", "cifar10", "paper", overrides={"schedule": "cosine:2"})


def test_a_start_is_a_method_and_perhaps_its_epochs():
    assert read_start("supervised") == ("supervised", None)
    assert read_start("jt:1.35") == ("jt", 1.35)
    network = {"depth": 8, "width": 4, "hidden": 12, "projection": 6, "precision": "bfloat16", "variant": "official"}
    assert set(network) == set(NETWORK)
    config = make_config("mt3", "cifar10", "paper", 3, {"start": "jt:1.35", "lr": 0.5} | network)
    start = start_config(config)
    assert start == make_config("jt", "cifar10", "paper", 3, {"epochs": 1.35} | network)
    assert start.lr == 0.1  # what is no network is the method's own
    whole = start_config(replace(config, start="jt"))
    assert whole.epochs == make_config("jt", "cifar10", "paper").epochs
    assert start_config(whole) is None


@pytest.mark.parametrize("start", ["jt:", "jt:x", "jt:0", "jt:-1", "jt:nan", "jt:1:2"])
def test_a_bad_start_is_one_sentence(start):
    with pytest.raises(InputError) as refused:
        make_config("mt3", "cifar10", "paper", overrides={"start": start})
    assert str(refused.value) == (f"Expected start to be a method, or one and its epochs as in jt:1.35, got '{start}'.")


def test_a_start_is_another_method():
    for start in ("mt3", "mt3:3"):
        with pytest.raises(InputError, match=rf"^Expected mt3 to start from another method, got {start}\.$"):
            make_config("mt3", "cifar10", "paper", overrides={"start": start})
    with pytest.raises(InputError, match=r"Unknown method 'jtt' \(did you mean 'jt'\?\)"):
        make_config("mt3", "cifar10", "paper", overrides={"start": "jtt:1"})


def test_departures_are_what_differs_from_the_preset():
    assert departures(make_config("mt3", "cifar100", "cpu", 5)) == {}
    config = make_config("mt3", "cifar10", "cpu", 5, {"width": 16, "inner_lr": 0.5, "start": "none"})
    assert departures(config) == {"inner_lr": 0.5, "start": None}  # the preset has this width
    assert departures(start_config(make_config("mt3", "cifar10", "cpu"))) == {"epochs": 1.35}


def test_a_config_is_small_enough_to_read():
    assert len(FIELDS) <= 42
    assert config_from_dict({}) == Config()


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
        ({"tasks": "0"}, "Expected tasks to be above 0, got 0"),
        ({"lr": "0"}, "Expected lr to be above 0"),
        ({"lr": 10**400}, "Expected a number for lr, got '1000"),
        ({"lr": True}, "Expected a number for lr, got 'True'"),
        ({"gamma": "-1"}, "Expected gamma not to be negative, got -1"),
        ({"anchor": "-1"}, "Expected anchor not to be negative, got -1"),
        ({"clip": "0"}, "Expected clip to be a norm above 0 or none"),
        ({"pad": "99999999"}, "Expected pad to be up to 31 pixels, so that a crop shows something, got 99999999"),
        ({"momentum": "5"}, "momentum between 0 and 1, got 5"),
        ({"task_images": "3"}, "task_images to divide task_size 8, got 3"),
        ({"objective": "none"}, "Expected an objective for meta training, got none; choose byol or rotation"),
        ({"training": "joint", "tasks": "1", "anchor": "0.2"}, "anchor belongs to meta training; drop it for joint"),
        ({"variant": "ours"}, "Unknown variant 'ours': expected one of paper, official"),
        ({"learn_rates": "true"}, "Unknown field 'learn_rates'"),
    ],
)
def test_bad_fields_are_refused(overrides, message):
    with pytest.raises(InputError, match=message):
        make_config("mt3", "cifar10", "paper", overrides=overrides)


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in ("method", "data", "preset")])
def test_wrong_types_are_one_sentence(name):
    for value in ([], {"a": 1}, object(), np.array([1, 2]), float("nan"), b"x"):
        for make in (lambda v: Config(**{name: v}), lambda v: config_from_dict({name: v})):
            with pytest.raises(InputError, match=f"{name}, got|Expected {name} |unknown {name}"):
                make(value)


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match="Unknown preset 'quick': expected one of cpu, demo, official, paper"):
        make_config("mt3", "cifar10", "quick")
    with pytest.raises(InputError, match="tasks=1 for joint training"):
        make_config("jt", "cifar10", "paper", overrides={"tasks": "2"})
    for value in (None, 5, ["mt3"]):
        with pytest.raises(InputError, match="Expected text for method, got"):
            config_from_dict({"method": value})
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
    assert "--schedule constant then: constant, linear or cosine (`cosine:0.1` ends at 0.1 lr)" in lines
    assert "--start none a method that comes first" in lines


def test_the_help_needs_no_source(monkeypatch):
    def fail(_: object) -> str:
        raise OSError("could not get source code")

    monkeypatch.setattr("inspect.getsource", fail)
    with pytest.raises(SystemExit, match="0"):
        main(["train", "--help"])
