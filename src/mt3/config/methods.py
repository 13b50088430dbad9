"""The grid of methods: objective x training x adapting at test time.

Every row of the paper's tables is a point of this grid; five trainings give its eight rows. A cell that cannot
exist, such as joint training without an objective, is refused.
"""

from dataclasses import dataclass

from mt3.support.errors import InputError, one_of

TRAINING = ("ce", "joint", "meta")
HIDDEN = 256  # neurons of the paper's hidden layer, which h shares with p


@dataclass(frozen=True)
class Method:
    """A named training and the rows it gives: `before` without and `after` with test-time adaptation."""

    name: str
    objective: str | None  # what is minimised without labels
    batch_aug: bool  # whether the batch augmentation B is applied
    training: str  # what is minimised with labels: ce (cross-entropy), joint or meta
    hidden: int  # neurons between features and classes; 0: none, as Sun et al.
    before: str
    after: str | None
    paper: bool = True  # whether its rows are in the paper's tables


def check_cell(objective: str | None, training: str) -> None:
    """Refuse the empty cells of the grid."""
    if training not in TRAINING:
        raise InputError(one_of("training", training, TRAINING))
    if objective is None and training != "ce":
        raise InputError(f"Expected an objective for {training} training, got none; choose byol or rotation.")


METHODS = {
    m.name: m
    for m in (
        Method("baseline-sun", None, False, "ce", 0, "Baseline (Sun et al.)", None),
        Method("jt-rotation", "rotation", False, "joint", 0, "JT (Sun et al.)", "TTT (Sun et al.)"),
        Method("baseline", None, False, "ce", HIDDEN, "Baseline (ours)", None),
        Method("supervised", None, True, "ce", HIDDEN, "Supervised with B", None, paper=False),
        Method("jt", "byol", True, "joint", HIDDEN, "JT (ours)", "TTT (ours)"),
        Method("mt3", "byol", True, "meta", HIDDEN, "MT", "MT3"),
    )
}


def get_method(name: str) -> Method:
    """Look a training up by its `--method` name."""
    if name not in METHODS:
        raise InputError(one_of("method", name, METHODS))
    return METHODS[name]


ROWS = tuple(row for m in METHODS.values() for row in (m.before, m.after) if row is not None and m.paper)
