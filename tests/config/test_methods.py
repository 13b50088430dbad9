"""The grid: the paper's table of methods, and the cells that are refused."""

import pytest

from mt3.config.methods import METHODS, ROWS, check_cell, get_method
from mt3.support.errors import InputError


def test_five_trainings_give_the_papers_eight_rows():
    """The paper's component overview, row by row: self-supervision, B, training, adaption."""
    overview = {
        "Baseline (Sun et al.)": (None, False, "ce", False),
        "JT (Sun et al.)": ("rotation", False, "joint", False),
        "TTT (Sun et al.)": ("rotation", False, "joint", True),
        "Baseline (ours)": (None, False, "ce", False),
        "JT (ours)": ("byol", True, "joint", False),
        "TTT (ours)": ("byol", True, "joint", True),
        "MT": ("byol", True, "meta", False),
        "MT3": ("byol", True, "meta", True),
    }
    got = {}
    for m in METHODS.values():
        got[m.before] = (m.objective, m.batch_aug, m.training, False)
        if m.after is not None:
            got[m.after] = (m.objective, m.batch_aug, m.training, True)
    assert got == overview | {"Supervised with B": (None, True, "ce", False)}  # a start for the others
    assert tuple(overview) == ROWS


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ((None, "joint"), "Expected an objective for joint training, got none"),
        ((None, "meta"), "Expected an objective for meta training, got none"),
        (("byol", "sgd"), "Unknown training 'sgd'"),
    ],
)
def test_empty_cells_are_refused(cell, message):
    with pytest.raises(InputError, match=message):
        check_cell(*cell)


def test_open_cells_are_allowed():
    check_cell("rotation", "meta")
    check_cell("byol", "joint")
    check_cell("byol", "ce")
    check_cell(None, "ce")


def test_unknown_method_lists_the_known():
    with pytest.raises(
        InputError,
        match=r"Unknown method 'mt4' \(did you mean 'mt3'\?\): expected one of baseline-sun, jt-rotation, baseline",
    ):
        get_method("mt4")
