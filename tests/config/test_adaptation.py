"""How a model adapts: one value, checked once."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from mt3.config.adaptation import BOUNDS, FIELDS, Adaptation, adaptation_from_dict
from mt3.support.errors import InputError


def test_the_defaults_are_the_papers():
    assert Adaptation().to_dict() == {
        "objective": "byol",
        "steps": 1,
        "lr": 0.1,
        "clip": 10.0,
        "views": 32,
        "layers": "all",
        "gate": 1.0,
        "variant": "paper",
        "momentum": 0.0,
        "carry": "image",
        "batch": 1,
        "answer": "after",
        "reset": "never",
        "statistics": 0.0,
        "radius": 0.0,
        "rule": "step",
        "support": 100,
    }
    assert (Adaptation().fresh_views, Adaptation().clip_each) == (True, False)
    assert (Adaptation(variant="official").fresh_views, Adaptation(variant="official").clip_each) == (False, True)


@pytest.mark.parametrize(("name", "bounds"), BOUNDS.items())
def test_numbers_lie_within_their_bounds(name, bounds):
    low, high = bounds
    for value in bounds:
        assert getattr(Adaptation(**{name: value}), name) == value
    beyond: list[Any] = [low - 1, high * 2, float("nan"), float("inf"), "1", True, None, [1], 1j]
    beyond += [1.5, 1.0] if isinstance(low, int) else [-1e-31]
    for value in beyond:
        if (name, value) == ("clip", None):  # no clipping
            assert Adaptation(clip=None).clip is None
            continue
        with pytest.raises(InputError, match=f"^Expected {name} to be a .*number from .* got "):
            Adaptation(**{name: value})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layers": "first"}, "Unknown layers 'first': expected one of all, norm, last"),
        ({"layers": None}, "Unknown layers 'None'"),
        ({"layers": ["all"]}, "Unknown layers"),
        (
            {"variant": "papers"},
            r"Unknown variant 'papers' \(did you mean 'paper'\?\): expected one of paper, official",
        ),
        ({"objective": 3}, "Expected an objective's name or none, got 3"),
        ({"carry": "streams"}, r"Unknown carry 'streams' \(did you mean 'stream'\?\): expected one of image, stream"),
        ({"answer": "last"}, "Unknown answer 'last': expected one of after, first"),
        ({"rule": None}, "Unknown rule 'None': expected one of step, average, t3a, lame"),
        ({"reset": "often"}, "Unknown reset 'often': expected one of never, shift, low-entropy, guard, every N"),
        ({"reset": "every 0"}, "N is a number of images, as in 'every 100'"),
        ({"reset": "every N"}, "Unknown reset 'every N'"),
        ({"reset": 100}, "Unknown reset '100'"),
        ({"carry": "stream", "gate": 0.9}, "A gate leaves out single images, not those of a stream"),
    ],
)
def test_other_words_are_refused(fields, message):
    with pytest.raises(InputError, match=message):
        Adaptation(**fields)


def test_a_reset_counts_images():
    assert Adaptation(reset="every 100").reset_every == 100
    assert [Adaptation(reset=reset).reset_every for reset in ("never", "shift", "low-entropy", "guard")] == [None] * 4


def test_it_cannot_be_changed_but_replaced_and_is_checked_again():
    adaptation = Adaptation()
    with pytest.raises(dataclasses.FrozenInstanceError):
        adaptation.lr = 0.5  # type: ignore[misc]
    assert dataclasses.replace(adaptation, lr=0.5) == Adaptation(lr=0.5)
    with pytest.raises(InputError, match="Expected steps to be a whole number"):
        dataclasses.replace(adaptation, steps=-1)


def test_numpys_numbers_become_pythons():
    numbers = {"steps": np.int64(3), "lr": np.float32(0.5), "clip": np.float64(2), "views": np.uint8(7), "gate": 0}
    adaptation = Adaptation(**numbers)
    assert adaptation == Adaptation(steps=3, lr=0.5, clip=2.0, views=7, gate=0.0)
    kinds = {"steps": int, "lr": float, "clip": float, "views": int, "gate": float}
    assert {name: type(getattr(adaptation, name)) for name in kinds} == kinds


@pytest.mark.parametrize(
    "adaptation",
    [
        Adaptation(),
        Adaptation(None, clip=None),
        Adaptation("rotation", 3, 1 / 3, 0.1, 5, "norm", 0.9, "official"),
        Adaptation("entropy", momentum=0.9, carry="stream", batch=8, answer="first", reset="every 7", statistics=0.5),
        Adaptation(None, rule="lame", support=5, radius=0.05),
        Adaptation(steps=np.int32(2), lr=np.float32(0.1)),
    ],
)
def test_json_gives_it_back(adaptation):
    assert adaptation_from_dict(json.loads(json.dumps(adaptation.to_dict()))) == adaptation
    assert tuple(adaptation.to_dict()) == FIELDS


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"step": 1}, "An adaptation has no field 'step': expected some of objective, steps, lr"),
        ({1: 1}, "An adaptation has no field '1'"),
        ({"views": 0}, "Expected views to be a whole number from 1 to 10000, got 0"),
        ([], r"Expected an adaptation to be an object of fields, got \[\]"),
        ("byol", "Expected an adaptation to be an object of fields, got 'byol'"),
        (None, "Expected an adaptation to be an object of fields, got None"),
    ],
)
def test_what_is_no_adaptation_is_refused(values, message):
    with pytest.raises(InputError, match=message):
        adaptation_from_dict(values)
