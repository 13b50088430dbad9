"""How a model is to adapt in an evaluation: by which method, along which stream, and what that costs."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mt3.adaptation.choose import with_fields
from mt3.config.adaptation import TUNED, Adaptation
from mt3.config.rivals import get_rival
from mt3.models.classifier import MT3Model
from mt3.objectives.registry import get_objective
from mt3.support.errors import InputError, name_list
from mt3.support.files import read_json

# what there is no choice of where each image is adapted to by itself
ALONE: dict[str, Any] = {"carry": "image", "batch": 1, "answer": "after", "reset": "never"}
EVIDENCE = ("method", "stream", "rule", "choice", "images", "model_hash", "points")


def method_name(name: str) -> str:
    """The name of a method in a protocol; there is one for all names of a model's own way."""
    return "own" if get_rival(name).adaptation is None else name


def settle(
    model: Any,
    method: str | Adaptation,
    stream: str | None,
    fields: Mapping[str, Any],
    idle: dict[str, str] | None = None,  # as of `with_fields`
) -> Adaptation | None:
    """The method's adaptation with `fields` replaced, kept along a stream or not; none where a model has no own way.

    A method that is made for streams has other values there than for single images: its batch, and which parameters
    answer.
    """
    if isinstance(method, Adaptation):
        return with_fields(_along(method, stream, fields), fields, idle)
    rival, adaptation = get_rival(method), get_rival(method).adaptation
    if adaptation is None and isinstance(model, MT3Model) and model.objective is not None:
        adaptation = model.adaptation
    if adaptation is None:
        return None
    if rival.stream and stream is None:
        raise InputError(f"{rival.title} has nothing to do for a single image; give --stream.")
    base = replace(adaptation, **ALONE) if stream is None else adaptation
    return with_fields(_along(base, stream, fields), fields, idle)


def _along(adaptation: Adaptation, stream: str | None, fields: Mapping[str, Any]) -> Adaptation:
    """The adaptation, kept along a stream if there is one; a gate that the fields lift does not stand against it."""
    if stream is None:
        return adaptation
    return replace(adaptation, carry="stream", gate=fields.get("gate", adaptation.gate))


def passes(adaptation: Adaptation) -> float:
    """Forward passes of one image that an answer costs: a forward pass counts 1, a backward pass 2.

    A step goes forward and backward through its views, twice if it is sharpness-aware. An answer takes one pass more,
    but for a step on the images themselves that are answered by what they were before it: that pass is there already.
    A guard also asks the model as it is, about the images and about the views.
    """
    if adaptation.rule == "average":
        return float(adaptation.views)
    if adaptation.rule != "step" or adaptation.objective is None or not adaptation.steps:
        return 1.0
    objective = get_objective(adaptation.objective, adaptation.variant)
    views = adaptation.views * objective.images_per_view if objective.draws_views else 1
    step, guard = 3.0 * views * (2 if adaptation.radius else 1), 0
    if adaptation.carry == "stream" and adaptation.reset == "guard":
        guard = 1 + (views if objective.draws_views or adaptation.statistics else 0)
    answered = adaptation.carry == "stream" and adaptation.answer == "first" and not objective.draws_views
    return adaptation.steps * step + guard + (0 if answered else 1)


def read_tuned(path: Path) -> dict[str, Any]:
    """What `mt3 tune` chose, with its evidence and a hash of it, as a protocol keeps it."""
    tuned: Any = read_json(path).get("tuned")
    try:
        chosen = {name: tuned[name] for name in EVIDENCE}
        if not chosen["choice"] or not set(chosen["choice"]) <= set(TUNED) or not chosen["points"]:
            raise ValueError("no choice")
        method_name(chosen["method"])
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{path} is not a tuning; give a file that `mt3 tune` wrote.") from None
    digest = hashlib.blake2b(json.dumps(tuned, sort_keys=True).encode(), digest_size=16)
    return {"file": path.name, "hash": digest.hexdigest(), **chosen}


def with_choice(tuned: Mapping[str, Any], method: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with what a tuning of this method chose; refuses another's, and a second word on what was chosen."""
    if method != tuned["method"]:
        raise InputError(f"{tuned['file']} is a tuning of {tuned['method']}, not of {method}; give its own.")
    twice = [name for name in fields if name in tuned["choice"]]
    if twice:
        raise InputError(f"{tuned['file']} has chosen {name_list(twice)}; drop --{twice[0]}, or --tuned.")
    return {**fields, **tuned["choice"]}
