"""Which fields of an adaptation may be replaced."""

import dataclasses

import pytest

import mt3
from mt3.adaptation.choose import with_fields
from mt3.config.rivals import RIVALS
from mt3.evaluation.settle import settle
from mt3.support.errors import InputError


@pytest.mark.parametrize(
    ("method", "fields", "idle"),
    [
        ("memo", {"batch": 8}, "batch=8 would do nothing: there is no stream; give one"),
        ("memo", {"batch": 1}, None),
        ("memo", {"carry": "stream", "batch": 8}, None),
        ("tent", {"carry": "stream", "reset": "guard"}, None),
        ("tent", {"views": 7}, "views=7 would do nothing: the method draws no copies"),
        ("plus", {"reset": "guard"}, "reset=guard would do nothing: it watches steps"),
        ("plus", {"reset": "every 100", "support": 64, "answer": "after"}, None),
        ("lame", {"answer": "first"}, "answer=first would do nothing: the method keeps nothing"),
        ("lame", {"reset": "every 5"}, "reset=every 5 would do nothing: the method keeps nothing"),
        ("t3a", {"answer": "first", "reset": "every 5"}, None),
        ("t3a", {"views": 2}, "views=2 would do nothing: the method draws no copies"),
        ("norm", {"momentum": 0.9}, "momentum=0.9 would do nothing: the method takes no step"),
        ("average", {"views": 2}, None),
        ("average", {"support": 2}, "support=2 would do nothing"),
    ],
)
def test_a_field_that_would_do_nothing_is_refused(method, fields, idle):
    adaptation = RIVALS[method].adaptation
    if idle is None:
        assert with_fields(adaptation, fields) == dataclasses.replace(adaptation, **fields)
    else:
        with pytest.raises(InputError, match=idle):
            with_fields(adaptation, fields)


@pytest.mark.parametrize("method", [name for name, rival in RIVALS.items() if rival.adaptation is not None])
def test_a_protocols_fields_can_be_given_back(method):
    adaptation = RIVALS[method].adaptation
    assert with_fields(adaptation, adaptation.to_dict()) == adaptation


def test_a_gate_can_be_lifted_for_a_stream():
    gated = mt3.Adaptation("marginal-entropy", views=2, gate=0.9)
    assert settle(None, gated, "shift", {"gate": 1.0}) == dataclasses.replace(gated, gate=1.0, carry="stream")
    with pytest.raises(InputError, match="leave the gate at 1"):
        settle(None, gated, "shift", {})
