"""The grid of methods: self-supervised task x training x adapting at test time.

Every row of the paper's tables is a point of this grid; five trainings give its eight rows. A cell that cannot
exist, such as adapting without a self-supervised task, is refused.
"""

from dataclasses import dataclass

from mt3.support.errors import InputError, one_of

SELFSUP = ("none", "rotation", "byol")
TRAINING = ("ce", "joint", "meta")
LAYERS = ("all", "norm", "last")  # what adapts: everything, the norms, or the last stage and what follows it


@dataclass(frozen=True)
class Method:
    """A named training and the rows it gives: `before` without and `after` with test-time adaptation."""

    name: str
    selfsup: str  # the task that needs no labels
    batch_aug: bool  # whether the batch augmentation B is applied
    training: str  # what is minimised: ce (cross-entropy), joint or meta
    head: str  # "mt3": hidden layer shared with the projector; "linear": Sun et al.'s
    before: str
    after: str | None
    paper: bool = True  # whether its rows are in the paper's tables

    def __post_init__(self) -> None:
        check_cell(self.selfsup, self.training, adapts=self.after is not None)


def check_cell(selfsup: str, training: str, adapts: bool = False) -> None:
    """Refuse the empty cells of the grid."""
    if selfsup not in SELFSUP:
        raise InputError(one_of("self-supervised task", selfsup, SELFSUP))
    if training not in TRAINING:
        raise InputError(one_of("training", training, TRAINING))
    if selfsup == "none" and (training != "ce" or adapts):
        what = f"{training} training" if training != "ce" else "adapting at test time"
        raise InputError(f"Expected a self-supervised task for {what}, got none; choose byol or rotation.")


def check_layers(selfsup: str, layers: str) -> None:
    """Refuse a choice of adapted layers that is unknown or could not change an answer."""
    if not isinstance(layers, str) or layers not in LAYERS:
        raise InputError(one_of("choice of adapted layers", layers, LAYERS))
    if (selfsup, layers) == ("rotation", "last"):
        raise InputError(
            "The rotation task has a last stage of its own, which no class depends on, so that adapting it alone would "
            "change nothing; adapt all or norm."
        )


METHODS = {
    m.name: m
    for m in (
        Method("baseline-sun", "none", False, "ce", "linear", "Baseline (Sun et al.)", None),
        Method("jt-rotation", "rotation", False, "joint", "linear", "JT (Sun et al.)", "TTT (Sun et al.)"),
        Method("baseline", "none", False, "ce", "mt3", "Baseline (ours)", None),
        Method("supervised", "none", True, "ce", "mt3", "Supervised with B", None, paper=False),
        Method("jt", "byol", True, "joint", "mt3", "JT (ours)", "TTT (ours)"),
        Method("mt3", "byol", True, "meta", "mt3", "MT", "MT3"),
    )
}


def get_method(name: str) -> Method:
    """Look a training up by its `--method` name."""
    if name not in METHODS:
        raise InputError(one_of("method", name, METHODS))
    return METHODS[name]


ROWS = tuple(row for m in METHODS.values() for row in (m.before, m.after) if row is not None and m.paper)
