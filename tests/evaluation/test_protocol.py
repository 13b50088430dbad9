"""What the numbers of an evaluation depend on: it is written down whole, and another protocol is another evaluation."""

from dataclasses import replace
from typing import Any

import pytest

import mt3
from evaluating import ask, make_model
from mt3.corruptions.write import write_corrupted
from mt3.data import open_corrupted
from mt3.evaluation.protocol import Protocol, TestImages, describe
from mt3.support.errors import InputError


def test_protocol_says_whether_the_model_adapts_as_it_is_set(images):
    def is_own(model: mt3.MT3Model, **changes: Any) -> bool:
        adaptation = replace(model.adaptation, **changes) if model.objective is not None else None
        return describe(Protocol((), limit=2, adaptation=adaptation), model, images)["own_adaptation"]

    model = make_model()
    assert is_own(model)
    assert is_own(model, steps=1, lr=0.5, views=3)  # what it does anyway
    assert not is_own(model, steps=2)
    assert not is_own(model, lr=0.1)
    assert not is_own(model, views=4)
    assert is_own(make_model(None))  # nothing adapts


def test_protocol_is_whole(images):
    names = ("gaussian_noise", "contrast")
    run = {"method": "mt3", "step": 5, "total_steps": 5}
    own = make_model().adaptation
    asked = Protocol(names, (3, 5), 6, controls=True, adaptation=own, label="a name", run=run)
    protocol = describe(asked, make_model(), images)
    want = {
        "run": run,
        "label": "a name",
        "sweep": False,
        "data": "digits",
        "split": "test",
        "corruptions": list(names),
        "severities": [3, 5],
        "images": 6,
        "views": 3,
        "seed": 0,
        "controls": True,
        "clean": True,
    }
    assert {k: protocol[k] for k in want} == want
    assert (protocol["adaptation"]["steps"], protocol["adaptation"]["lr"], protocol["adaptation"]["views"]) == (
        1,
        0.5,
        3,
    )
    assert protocol["source"]["kind"] == "generated"
    assert set(protocol["versions"]) == {"mt3", "torch", "numpy", "python"}
    assert len(protocol["model_hash"]) == 32


def test_other_protocols_are_not_mixed(tmp_path, images):
    out = tmp_path / "r.json"
    ask(out, images, limit=2)
    before = out.read_bytes()
    with pytest.raises(InputError, match=r"another protocol, which differs in images, seed;"):
        ask(out, images, limit=3, seed=1)
    assert out.read_bytes() == before


def test_another_state_of_the_training_is_another_protocol(tmp_path, images):
    about = {"data": "digits", "method": "mt3", "preset": "demo", "seed": 0, "label": "", "total_steps": 5}
    about |= {"epochs": [1.0], "network": "resnet8x4", "overrides": {}}
    ask(tmp_path / "r.json", images, limit=2, views=1, run=about | {"step": 4})
    with pytest.raises(InputError, match=r"another protocol, which differs in run;"):
        ask(tmp_path / "r.json", images, limit=2, views=1, run=about | {"step": 5})


def test_another_directory_of_the_same_name_is_another_protocol(tmp_path, digits):
    """Images are known by their bytes: an old result never stands for other images."""
    out = tmp_path / "r.json"
    for seed in (0, 1):
        write_corrupted(digits, tmp_path / str(seed) / "c", ("gaussian_noise",), [5], limit=4, seed=seed)
    first = TestImages(digits, open_corrupted(tmp_path / "0" / "c"))
    protocol = ask(out, first, corruptions=("gaussian_noise",)).protocol
    assert ask(out, first, corruptions=("gaussian_noise",)).protocol == protocol
    other = TestImages(digits, open_corrupted(tmp_path / "1" / "c"))
    with pytest.raises(InputError, match="another protocol"):
        ask(out, other, corruptions=("gaussian_noise",))
