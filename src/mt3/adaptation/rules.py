"""Answers without a gradient: the average over views, T3A's prototypes and LAME's smoothing. Pure functions."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mt3.adaptation.views import DrawnViews
from mt3.config.adaptation import Adaptation
from mt3.models.call import Network, call, parameters_of
from mt3.models.classifier import MT3Model
from mt3.networks.bind import bind
from mt3.objectives.augment import as_float
from mt3.objectives.entropy import entropy

MOST_STEPS, ENOUGH = 100, 1e-8  # of LAME, and the relative change of its energy at which it stops; as its authors' code


def average_over_views(model: Network, adaptation: Adaptation, images: Tensor, seed: int) -> Tensor:
    """Probabilities (N, classes) of images, averaged over their views."""
    views = DrawnViews(model, adaptation, images, seed)(0)
    seen = views.images if views.plain is None else views.plain
    with torch.no_grad():
        logits = call(model, parameters_of(model), seen.flatten(0, 1), False).logits
    return logits.softmax(-1).view(*seen.shape[:2], -1).mean(1)


def as_logits(probabilities: Tensor) -> Tensor:
    """Logits whose softmax they are."""
    return probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()


def features_and_logits(model: MT3Model, images: Tensor) -> tuple[Tensor, Tensor]:
    """What the class layer sees, and what it makes of it, by the model as it is."""
    with torch.no_grad():
        features = bind(model, {}).features(as_float(images, model.dtype))
        return features, model.classify(features)


class Supports(NamedTuple):
    """The features that T3A keeps for each class."""

    features: Tensor  # (n, F)
    labels: Tensor  # (n,), as they were answered
    entropies: Tensor  # (n,)


def first_supports(model: MT3Model) -> Supports:
    """The rows of the class layer, each for its class."""
    with torch.no_grad():
        rows = model.classify.weight.detach().clone()
        return Supports(rows, torch.arange(len(rows), device=rows.device), entropy(model.classify(rows)))


def add_supports(supports: Supports, features: Tensor, logits: Tensor, most: int) -> Supports:
    """With these images added, the `most` of each class whose answers are the surest."""
    new = Supports(features, logits.argmax(1), entropy(logits))
    every = Supports(*(torch.cat(pair) for pair in zip(supports, new, strict=True)))
    order = every.entropies.argsort(stable=True)
    labels = every.labels[order]
    rank = (F.one_hot(labels).cumsum(0).gather(1, labels[:, None]) - 1).squeeze(1)  # within its class
    kept = order[rank < most].sort().values
    return Supports(*(t[kept] for t in every))


def prototype_logits(supports: Supports, features: Tensor, classes: int) -> Tensor:
    """Products with the mean direction of each class's supports."""
    members = F.one_hot(supports.labels, classes).to(features.dtype)  # (n, classes)
    return features @ F.normalize(F.normalize(supports.features, dim=1).mT @ members, dim=0)


def neighbours_of(features: Tensor, count: int) -> Tensor:
    """W (N, N): 1 where the column is one of the row's nearest neighbours, by their directions."""
    directions = F.normalize(features, dim=1)
    distances = torch.cdist(directions, directions, compute_mode="donot_use_mm_for_euclid_dist")
    distances.fill_diagonal_(torch.inf)
    nearest = distances.topk(min(count, len(features) - 1), largest=False).indices
    return torch.zeros_like(distances).scatter_(1, nearest, 1.0)


def smooth(logits: Tensor, affinity: Tensor) -> Tensor:
    """LAME's probabilities: y_i proportional to p_i exp(sum over j of w_ij y_j), repeated until the energy stays."""
    log_p = logits.log_softmax(-1)
    y, energy = log_p.exp(), torch.inf
    for step in range(MOST_STEPS):
        pull = affinity @ y
        log_y = (log_p + pull).log_softmax(-1)
        y, before = log_y.exp(), energy
        energy = float((y * (log_y - log_p - pull)).sum())
        if step > 1 and abs(energy - before) <= ENOUGH * abs(before):
            break
    return y
