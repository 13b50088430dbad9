"""`mt3.evaluate`: evaluate a model from Python."""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from mt3 import corruptions as available
from mt3.adaptation.choose import Wrapping, choose_network
from mt3.config.adaptation import FIELDS, Adaptation
from mt3.data import CorruptedSet, ShiftedSet, as_dataset
from mt3.evaluation.evaluate import evaluate as evaluate_images
from mt3.evaluation.protocol import Protocol, TestImages
from mt3.evaluation.settle import method_name, read_tuned, settle, with_choice
from mt3.models.classifier import MT3Model
from mt3.models.plain import Plain
from mt3.results import Evaluation
from mt3.support.errors import InputError, one_of

ASKED = tuple(f.name for f in fields(Protocol) if f.name not in ("corruptions", "adaptation", "method", "run"))


def evaluate(
    model: nn.Module,
    data: Any,
    corruptions: Sequence[str] | CorruptedSet | ShiftedSet = ("all",),
    method: str | Adaptation | None = None,
    *,
    out: str | Path | None = None,  # a JSON file that keeps the results; none: nothing is kept
    adapt: bool = True,
    **asked: Any,
) -> Evaluation:
    """Accuracy before and after adapting on the test images of `data`, clean and under each corruption.

    `data` is as of `mt3.train`. Corruptions are names, or all (the paper's), held-out, every or none; or images that
    were opened with `mt3.data.open_shifts` or `open_corrupted`, for which `data` may be None. The method is a name, as
    tent, an `Adaptation`, or none for the model's own; the names work for any classifier. Further arguments are fields
    of a protocol (`severities=(5,)`, `limit=200`, `controls=True`, `seed=0`, `stream="continual"`,
    `tuned="tuned.json"`), fields of the adaptation (`lr=0.05`, `batch=8`), and for a classifier that is no MT3Model its
    `normalisation`, `size` and `features`, as of `mt3.Adapter`. Without `adapt` the model is evaluated as it is.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"Expected a classifier as a torch module, got a {type(model).__name__}; mt3.load gives one.")
    replaced = {name: asked.pop(name) for name in FIELDS if name in asked}
    wrapping = Wrapping(*(asked.pop(name, None) for name in Wrapping._fields))
    for name in asked:
        if name not in ASKED:
            raise InputError(one_of("field of an evaluation", name, (*ASKED, *FIELDS, *Wrapping._fields)))
    if isinstance(asked.get("tuned"), str | Path):
        asked["tuned"] = read_tuned(Path(asked["tuned"]))
        method = asked["tuned"]["method"] if method is None else method
        replaced = with_choice(asked["tuned"], _name(model, method), replaced)
    name = _name(model, method)
    adaptation = settle(model, method or "own", asked.get("stream"), replaced) if adapt else None
    if adaptation is None and adapt and not isinstance(model, MT3Model):
        raise InputError("This network has no way of its own to adapt; give a method, such as 'tent', or adapt=False.")
    opened = corruptions if isinstance(corruptions, CorruptedSet | ShiftedSet) else None
    protocol = replace(Protocol(**_sources(corruptions), adaptation=adaptation, method=name), **asked)
    network = _network(model, adaptation, wrapping)
    dataset = None if opened is not None and data is None else as_dataset(data, network.size)
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="mt3-"))) if out is None else None
        file = folder / "evaluation.json" if folder is not None else Path(str(out))
        return evaluate_images(network, TestImages(dataset, opened), protocol, file)


def _sources(corruptions: Sequence[str] | CorruptedSet | ShiftedSet) -> dict[str, Any]:
    """Which corruptions, and of images that were opened, their severities."""
    if isinstance(corruptions, CorruptedSet | ShiftedSet):
        return {"corruptions": tuple(corruptions.names()), "severities": corruptions.severities}
    names = [corruptions] if isinstance(corruptions, str) else list(corruptions)
    return {"corruptions": () if names == ["none"] else available.resolve(names)}


def _name(model: nn.Module, method: str | Adaptation | None) -> str:
    """What a protocol calls the method; an adaptation with the model's own objective is the model's own."""
    if not isinstance(method, Adaptation):
        return method_name("own" if method is None else method)
    own = isinstance(model, MT3Model) and model.adaptation.objective == method.objective
    return "own" if own else "custom"


def _network(model: nn.Module, adaptation: Adaptation | None, wrapping: Wrapping) -> MT3Model | Plain:
    if adaptation is not None:
        return choose_network(model, adaptation, wrapping)
    return model if isinstance(model, MT3Model) else Plain(model, wrapping.normalisation, wrapping.size)
