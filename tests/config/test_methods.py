"""The grid: the paper's table of methods, and the cells that are refused."""

import pytest

from mt3.config.methods import METHODS, ROWS, check_cell, get_method
from mt3.support.errors import InputError


def test_five_trainings_give_the_papers_eight_rows():
    """The paper's component overview, row by row: self-supervision, B, training, adaption."""
    overview = {
        "Baseline (Sun et al.)": ("none", False, "ce", False),
        "JT (Sun et al.)": ("rotation", False, "joint", False),
        "TTT (Sun et al.)": ("rotation", False, "joint", True),
        "Baseline (ours)": ("none", False, "ce", False),
        "JT (ours)": ("byol", True, "joint", False),
        "TTT (ours)": ("byol", True, "joint", True),
        "MT": ("byol", True, "meta", False),
        "MT3": ("byol", True, "meta", True),
    }
    got = {}
    for m in METHODS.values():
        got[m.before] = (m.selfsup, m.batch_aug, m.training, False)
        if m.after is not None:
            got[m.after] = (m.selfsup, m.batch_aug, m.training, True)
    assert got == overview | {"Supervised with B": ("none", True, "ce", False)}  # a start for the others
    assert tuple(overview) == ROWS


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (("none", "joint", False), "self-supervised task for joint training, got none"),
        (("none", "meta", False), "self-supervised task for meta training"),
        (("none", "ce", True), "for adapting at test time"),
        (("simclr", "meta", False), "Unknown self-supervised task 'simclr': expected one of none, rotation, byol"),
        (("byol", "sgd", False), "Unknown training 'sgd'"),
    ],
)
def test_empty_cells_are_refused(cell, message):
    with pytest.raises(InputError, match=message):
        check_cell(*cell)


def test_open_cells_are_allowed():
    check_cell("rotation", "meta", adapts=True)
    check_cell("byol", "joint", adapts=True)
    check_cell("byol", "ce")


def test_unknown_method_lists_the_known():
    with pytest.raises(
        InputError,
        match=r"Unknown method 'mt4' \(did you mean 'mt3'\?\): expected one of baseline-sun, jt-rotation, baseline",
    ):
        get_method("mt4")
