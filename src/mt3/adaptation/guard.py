"""A guard for streams: it compares what a model has become with the model as it is, on the same images.

Over about the last 32 images the answers must not be of far fewer classes than the unadapted model's, nor far less
sure, nor may the objective be far above the unadapted model's. Where one of these fails, or a number is not finite, the
stream goes back to its last good state and, if that fails too, to the start. It then rests before it adapts again,
twice as long after each return.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from mt3.models.call import Params
from mt3.objectives.entropy import entropy

WINDOW = 32  # images that the averages look back on, that make a state good, and that the first rest is long
LEAST = 0.8  # of the unadapted model's: the share that must be left
NUMBERS, SUMS, GOOD = "guard/numbers", "guard/sums", "good/"


class Watched(NamedTuple):
    """What is compared for a group of images."""

    logits: Tensor  # (N, classes), of the model as it has become
    reference: Tensor  # (N, classes), of the model as it is
    losses: tuple[Tensor, Tensor] | None  # the objective of both; none where no step was taken


class Guard:
    """The averages, the last good state and the rest that is left."""

    def __init__(self) -> None:
        self.returns = 0  # how often it went back
        self.rest, self.left = WINDOW, 0  # images of the next rest, and of this one
        self.good: Params = {}  # nothing: the start
        self._begin()

    def _begin(self) -> None:
        # of both models, weighted: the shares of the classes, the entropy, its weight, the objective, its weight
        self.sums: Tensor | None = None
        self.since = self.calm = 0  # images since the last good state, and without a return

    def check(self, watched: Watched, params: Params) -> bool:
        """Whether the stream may go on with these parameters; a good state is kept now and then."""
        count = len(watched.logits)
        resting = self.left > 0
        self.left = max(0, self.left - count)
        if not params or not watched.reference.isfinite().all():  # nothing to go back from, or to compare with
            return True
        finite = torch.stack([t.isfinite().all() for t in (watched.logits, *params.values())]).all()
        if not finite or self._fails(watched):
            return False
        if not resting:
            self.since, self.calm = self.since + count, self.calm + count
            if self.since >= WINDOW:
                self.good, self.since = dict(params), 0
            if self.calm >= self.rest > WINDOW:  # as long without a return as it rested
                self.rest, self.calm = self.rest // 2, 0
        return True

    def go_back(self) -> Params:
        """The last good state; the next return before another one is to the start."""
        good, self.good = self.good, {}
        self.returns, self.left, self.rest = self.returns + 1, self.rest, 2 * self.rest
        self._begin()
        return good

    def _fails(self, watched: Watched) -> bool:
        """Take a group into the averages, and compare those of both models."""
        classes = watched.logits.shape[1]
        new = torch.stack([_facts(logits) for logits in (watched.logits, watched.reference)])  # (2, classes + 2)
        losses = new.new_zeros(2, 2)  # the objective and its weight
        if watched.losses is not None and all(loss.isfinite() for loss in watched.losses):
            losses = torch.stack([torch.stack([loss, torch.ones_like(loss)]) for loss in watched.losses]).to(new)
        new = torch.cat([new, losses], 1)
        kept = (1 - 1 / WINDOW) ** len(watched.logits)
        self.sums = (1 - kept) * new + (kept * self.sums if self.sums is not None else 0.0)
        shares = self.sums[:, :classes] / self.sums[:, classes + 1, None]
        different = torch.special.entr(shares).sum(1).exp()  # classes that are answered, if all were equally frequent
        sure = (-self.sums[:, classes] / self.sums[:, classes + 1]).exp()
        low = self.sums[:, classes + 3] / self.sums[:, classes + 2]  # NaN where the objective was never measured
        return any(bool(own < LEAST * other) for own, other in (different, sure, low))

    def state_dict(self) -> dict[str, Tensor]:
        numbers = (self.returns, self.rest, self.left, self.since, self.calm)
        state = {NUMBERS: torch.tensor(numbers)} | {GOOD + name: p.clone() for name, p in self.good.items()}
        return state if self.sums is None else state | {SUMS: self.sums.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor], device: torch.device) -> None:
        self.returns, self.rest, self.left, self.since, self.calm = state[NUMBERS].tolist()
        self.good = {n.removeprefix(GOOD): p.to(device).clone() for n, p in state.items() if n.startswith(GOOD)}
        self.sums = state[SUMS].to(device).clone() if SUMS in state else None


def _facts(logits: Tensor) -> Tensor:
    """The share of each class among the answers, their mean entropy, and the weight of both."""
    logits = logits.float()
    shares = torch.bincount(logits.argmax(1), minlength=logits.shape[1]) / len(logits)
    return torch.cat([shares.to(logits), entropy(logits).mean()[None], logits.new_ones(1)])
