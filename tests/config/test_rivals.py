"""The test-time methods by name: what the other rooms rely on."""

from pathlib import Path

import pytest

from mt3.config.adaptation import Adaptation
from mt3.config.rivals import RIVALS, adaptation_named, get_rival
from mt3.objectives.registry import OBJECTIVES
from mt3.support.errors import InputError


def test_the_names():
    wanted = [
        "own",
        "mt3",
        "ttt",
        "tent",
        "memo",
        "memo-augmix",
        "sar",
        "norm",
        "norm-mixed",
        "t3a",
        "lame",
        "plus",
        "average",
    ]
    assert list(RIVALS) == wanted
    page = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    assert all(f"`{name}`" in page for name in wanted)
    for name in ("own", "mt3", "ttt"):
        assert adaptation_named(name) is None
    assert adaptation_named("memo") == Adaptation("marginal-entropy", lr=0.005, clip=None, views=32)
    with pytest.raises(InputError, match=r"Unknown method 'Tent' \(did you mean 'tent'\?\): expected one of own, mt3"):
        get_rival("Tent")


def test_a_method_is_what_its_entry_says():
    for name, rival in RIVALS.items():
        assert rival.title
        assert rival.paper
        if rival.adaptation is None:
            continue
        adaptation = rival.adaptation
        assert adaptation.objective in (None, *OBJECTIVES), name
        assert (adaptation.carry == "stream") == rival.stream
        assert adaptation.batch >= rival.least
        assert adaptation.clip is None or adaptation.objective is None


def test_the_constants_of_the_papers():
    tent, sar = adaptation_named("tent"), adaptation_named("sar")
    for found in (tent, sar):
        assert (found.steps, found.lr, found.batch) == (1, 0.00025, 64)
        assert (found.layers, found.answer, found.statistics) == ("norm", "first", 1.0)
    assert (tent.radius, tent.reset, sar.radius, sar.reset) == (0.0, "never", 0.05, "low-entropy")
    assert adaptation_named("lame").support == 5
    assert adaptation_named("t3a").support == 100
    assert (adaptation_named("norm").statistics, adaptation_named("norm-mixed").statistics) == (1.0, 0.5)
