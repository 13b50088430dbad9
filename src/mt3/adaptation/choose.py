"""What an adapter adapts and how: a method's name, an `Adaptation` or fields of one, on any classifier."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mt3.config.adaptation import FIELDS, Adaptation
from mt3.config.rivals import RIVALS, adaptation_named
from mt3.models.call import Network
from mt3.models.classifier import MT3Model
from mt3.models.moments import source_moments
from mt3.models.plain import Plain
from mt3.models.wrap import add_objective
from mt3.networks.align import Source, fits
from mt3.networks.norms import has_batch_norm, refuse_training_statistics
from mt3.objectives.objective import Objective
from mt3.objectives.registry import get_objective
from mt3.support.errors import InputError, name_list, one_of, shown

NO_GRADIENT = ("t3a", "lame")  # rules that see the class layer and what it sees


# fields of an adaptation, by what they belong to
OF_STREAMS = ("batch", "answer", "reset")
OF_STEPS = ("steps", "lr", "clip", "layers", "momentum", "radius")


class Wrapping(NamedTuple):
    """What is to be known of a classifier that is no model of ours."""

    normalisation: Sequence[Sequence[float]] | None
    size: int | None
    features: str | None


def choose_adaptation(model: Any, method: Any, fields: Mapping[str, Any]) -> Adaptation:
    """The adaptation that is named, given or the model's own, with these fields replaced."""
    if not isinstance(method, str | Adaptation | None):
        raise InputError(
            f"Expected a method's name, an mt3.Adaptation or fields of one, as lr=0.05, got {shown(repr(method))}."
        )
    unknown = [name for name in fields if name not in FIELDS]
    if unknown:
        raise InputError(one_of("field of an adaptation", unknown[0], FIELDS))
    chosen = adaptation_named(method) if isinstance(method, str) else method
    if chosen is None:
        if not isinstance(model, MT3Model):
            raise InputError(
                f"Expected a method for a network that has none of its own, a {type(model).__name__}, such as "
                f"mt3.Adapter(network, 'tent'); the names are {name_list(RIVALS)}."
            )
        if model.objective is None:
            raise InputError("This model has no objective to adapt with; use model(images) as it is, or name a method.")
        chosen = model.adaptation
    return with_fields(chosen, fields)


def with_fields(adaptation: Adaptation, fields: Mapping[str, Any], idle: dict[str, str] | None = None) -> Adaptation:
    """The adaptation with fields replaced.

    Another value for a field that does nothing there is refused, or left out and told in `idle`, with why.
    """
    changed = replace(adaptation, **fields)
    found = {
        name: why
        for why, names in _idle_fields(changed).items()
        for name in names
        if name in fields and getattr(changed, name) != getattr(adaptation, name)
    }
    if idle is None:
        for name, why in found.items():
            raise InputError(f"{name}={shown(fields[name])} would do nothing: {why}.")
        return changed
    idle.update(found)
    return replace(adaptation, **{name: value for name, value in fields.items() if name not in found})


def _idle_fields(adaptation: Adaptation) -> dict[str, tuple[str, ...]]:
    """The fields that nobody asks for, by why so."""
    rule, objective = adaptation.rule, objective_of(adaptation)
    draws = rule == "average" or (adaptation.takes_steps and objective is not None and objective.draws_views)
    alone = rule in ("average", "lame") or (rule == "step" and objective is None)  # answers by the images at hand
    idle: dict[str, tuple[str, ...]] = {
        "there is no stream; give one, or drop it": OF_STREAMS if adaptation.carry == "image" else (),
        "the method takes no step": () if adaptation.takes_steps else OF_STEPS,
        "the method draws no copies": () if draws else ("views",),
        "the method has no such number": ("support",) if rule in ("step", "average") else (),
        "the method keeps nothing along a stream": ("answer", "reset") if alone else (),
    }
    if adaptation.reset in ("guard", "low-entropy") and not adaptation.takes_steps:
        idle["it watches steps, and the method takes none"] = ("reset",)
    return idle


def choose_network(model: Any, adaptation: Adaptation, wrapping: Wrapping) -> Network:
    """The model, or the classifier with what adapting needs around it; refuses what does not go together."""
    if not isinstance(model, nn.Module):
        raise InputError(f"Expected a classifier as a torch module, got a {type(model).__name__}; mt3.load gives one.")
    if adaptation.statistics < 1:
        refuse_training_statistics(model)
    if isinstance(model, MT3Model | Plain):  # which know all about themselves
        if wrapping != (None, None, None):
            raise InputError("An MT3Model knows its normalisation, size and class layer; leave these out.")
        network: Network = model
        if isinstance(model, Plain) and adaptation.rule in NO_GRADIENT:
            network = add_objective(model.module, None, normalisation=model.normalisation, size=model.size)
    elif adaptation.rule in NO_GRADIENT:
        normalisation, size, features = wrapping
        network = add_objective(model, None, features, normalisation=normalisation, size=size)
    else:
        network = Plain(model, wrapping.normalisation, wrapping.size)
    _check_fit(network, adaptation)
    return network


def uses_batch(model: Network, adaptation: Adaptation) -> bool:
    """Whether batch normalisation takes statistics from the images at hand: answers differ without a step, too."""
    return adaptation.statistics > 0 and has_batch_norm(model)


def choose_moments(model: Network, adaptation: Adaptation, source: Tensor | None) -> Source | None:
    """What the rule align goes back to: the moments on these images, or those that the model came with."""
    if adaptation.rule != "align":
        if source is not None:
            raise InputError("Training images as the source are for the method plus alone; leave out source.")
        return None
    if source is not None:
        if len(source) < 2:
            raise InputError(f"Expected some hundred training images as the source, got {len(source)}.")
        with torch.inference_mode(False), torch.no_grad():
            return source_moments(model, source)
    known: Source | None = getattr(model, "moments", None)
    if known is None:
        raise InputError(
            "Aligned channels are compared with those of training images; give source=images, some hundred without "
            "labels, or a run for which `mt3 moments` has written them."
        )
    if not fits(model, known) or len(known.mix) not in (1, model.num_classes):
        raise InputError(
            "The model came with moments of other norms or classes than it has; `mt3 moments` writes its own."
        )
    return known.to(model.device)


def objective_of(adaptation: Adaptation) -> Objective | None:
    """What is minimised; none where nothing is."""
    name = adaptation.objective
    return None if name is None else get_objective(name, adaptation.variant)


def images_in_pass(adaptation: Adaptation) -> int:
    """The images that a step on one image sends through the network."""
    objective = objective_of(adaptation)
    if objective is None or not objective.draws_views:
        return 1
    return adaptation.views * objective.images_per_view


def _check_fit(model: Network, adaptation: Adaptation) -> None:
    """Refuse an adaptation that this network cannot follow, or that could not change an answer."""
    objective = objective_of(adaptation)
    stream, group = adaptation.carry == "stream", adaptation.batch
    if adaptation.rule == "t3a" and not stream:
        raise InputError("T3A collects the images of a stream for each class; give carry='stream'.")
    if adaptation.rule == "lame" and (not stream or group < 2):
        raise InputError("LAME compares the images of a batch; give carry='stream' and a batch of at least 2.")
    if adaptation.rule == "align" and not stream:
        raise InputError("Aligned channels are those of a stream's images; give carry='stream'.")
    if adaptation.rule == "average" and (objective is None or not objective.draws_views):
        raise InputError("The average is over views, which this objective does not draw; give marginal-entropy.")
    if objective is None:
        if adaptation.rule == "step" and not adaptation.statistics:
            raise InputError("This adaptation has no objective to adapt with; use the model as it is.")
        if adaptation.rule == "step" and not has_batch_norm(model):
            raise InputError("The network has no batch normalisation, whose statistics this method takes from a batch.")
        if adaptation.rule == "step" and (not stream or group < 2):
            raise InputError(
                "Statistics of batch normalisation are of a batch; give carry='stream' and a batch of at least 2."
            )
        return
    own = model.adaptation.objective if isinstance(model, MT3Model) else None
    if "heads" in objective.feeds and adaptation.objective != own:
        if own is None:
            raise InputError(
                f"This network has no heads of {adaptation.objective} to adapt with; mt3.add_objective adds them."
            )
        raise InputError(
            f"This model has the heads of {own} to adapt with, not those of {adaptation.objective}; leave the "
            "objective out."
        )
    if not model.adapted_names(adaptation.layers, objective) and adaptation.steps:
        raise InputError(f"The network has no weights to adapt with layers={adaptation.layers}; choose layers='all'.")
