"""A classifier that is already trained, with an objective to adapt with."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mt3.config.adaptation import Adaptation
from mt3.models.classifier import MT3Model
from mt3.networks.foreign import Foreign
from mt3.networks.layers import Linear
from mt3.networks.norms import refuse_training_statistics
from mt3.support.errors import InputError

Normalisation = Sequence[Sequence[float]] | None


def add_objective(
    classifier: nn.Module,
    objective: str | None = "byol",  # none: no heads, its features and classes alone
    features: str | None = None,  # the name of its class layer; none: its last nn.Linear
    *,
    normalisation: Normalisation,  # mean and deviation that its images had in training; none: images in [0, 1]
    size: int | None = None,  # pixels of a side; none: any
    adaptation: Adaptation | None = None,
    classes: list[str] | None = None,
) -> MT3Model:
    """A copy of a trained classifier with an objective's heads on the features that its class layer sees.

    Its logits stay the same, bit for bit. The heads are new: train it further, jointly or meta, before it adapts.
    `normalisation` has to be given, since a wrong one costs many points without a word.
    """
    if not isinstance(classifier, nn.Module):
        raise InputError(f"Expected a classifier as a torch module, got a {type(classifier).__name__}.")
    refuse_training_statistics(classifier)
    name = _last_linear(classifier) if features is None else features
    twin, layer = _take_off(classifier, name)
    backbone = Foreign(twin, size)
    if backbone.features != layer.in_features:
        raise InputError(
            f"The classifier does not end with its class layer {name}: {backbone.features} values come out without it, "
            f"it takes {layer.in_features}; give the name of its last layer as features."
        )
    model = MT3Model(
        backbone,
        layer.out_features,
        objective,
        hidden=0,
        size=size,
        classes=classes,
        adaptation=adaptation,
        normalisation=normalisation,
    )
    model.classify = Linear(layer.in_features, layer.out_features, bias=layer.bias is not None).to(layer.weight)
    model.classify.load_state_dict(layer.state_dict())
    _require_same_logits(model, classifier, backbone.size)
    return model.eval()


def features_of(classifier: nn.Module, features: str | None = None) -> nn.Module:
    """A copy of the classifier without its class layer, as `mt3.load(path, backbone=...)` takes it."""
    return _take_off(classifier, _last_linear(classifier) if features is None else features)[0]


def _take_off(classifier: nn.Module, name: str) -> tuple[nn.Module, nn.Linear]:
    """A copy of the classifier without its class layer, and that layer's copy."""
    twin = copy.deepcopy(classifier)
    try:
        layer = twin.get_submodule(name)
    except AttributeError:
        raise InputError(f"The classifier has no module '{name}'; give the name of its class layer.") from None
    if type(layer) not in (nn.Linear, Linear):  # another one may compute something else
        raise InputError(
            f"Expected the class layer {name} to be an nn.Linear, got a {type(layer).__name__}; give another name."
        )
    assert isinstance(layer, nn.Linear)
    parent, _, child = name.rpartition(".")
    setattr(twin.get_submodule(parent), child, nn.Identity())
    return twin, layer


def _last_linear(classifier: nn.Module) -> str:
    names: list[str] = [name for name, module in classifier.named_modules() if isinstance(module, nn.Linear)]
    if not names or not names[-1]:
        raise InputError("Expected a classifier whose last layer is an nn.Linear within it; give its name as features.")
    return names[-1]


def _require_same_logits(model: MT3Model, classifier: nn.Module, size: int) -> None:
    """Compare with the classifier itself, on images of noise."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, 3, size, size, generator=generator).to(model.device, model.dtype)
    own = copy.deepcopy(classifier).eval()
    with torch.no_grad():
        given = own(model.normalise(images))
        theirs = given if isinstance(given, Tensor) else given.logits
        same = torch.equal(model.eval()(images), theirs)
    if not same:
        raise InputError(
            "The logits are not those of the classifier: what follows its class layer, or differs from call to call, "
            "cannot be kept; wrap the part that ends with the class layer."
        )
