"""`mt3.evaluate`: evaluate a model from Python."""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from mt3 import corruptions as available
from mt3.config.adaptation import Adaptation
from mt3.data import CorruptedSet, ShiftedSet, as_dataset
from mt3.evaluation.evaluate import evaluate as evaluate_images
from mt3.evaluation.protocol import Protocol, TestImages
from mt3.models.classifier import MT3Model
from mt3.results import Evaluation
from mt3.support.errors import InputError


def evaluate(
    model: MT3Model,
    data: Any,
    corruptions: Sequence[str] | CorruptedSet | ShiftedSet = ("all",),
    adaptation: Adaptation | None = None,
    *,
    out: str | Path | None = None,  # a JSON file that keeps the results; none: nothing is kept
    adapt: bool = True,
    **asked: Any,
) -> Evaluation:
    """Accuracy before and after adapting on the test images of `data`, clean and under each corruption.

    `data` is as of `mt3.train`. Corruptions are names, or all (the paper's), held-out, every or none; or images that
    were opened with `mt3.data.open_shifts` or `open_corrupted`, for which `data` may be None. Further arguments are
    fields of a protocol: `severities=(5,)`, `limit=200`, `controls=True`, `seed=0`. Without `adapt` the model is
    evaluated as it is.
    """
    if not isinstance(model, MT3Model):
        raise InputError(f"Expected an MT3Model, got a {type(model).__name__}; mt3.load or mt3.MT3Model gives one.")
    opened = corruptions if isinstance(corruptions, CorruptedSet | ShiftedSet) else None
    if isinstance(corruptions, CorruptedSet | ShiftedSet):
        sources: dict[str, Any] = {"corruptions": tuple(corruptions.names()), "severities": corruptions.severities}
    else:
        names = [corruptions] if isinstance(corruptions, str) else list(corruptions)
        sources = {"corruptions": () if names == ["none"] else available.resolve(names)}
    dataset = None if opened is not None and data is None else as_dataset(data, model.size)
    adapts = adapt and model.objective is not None
    own = model.adaptation if adaptation is None else adaptation
    try:
        protocol = replace(Protocol(**sources, adaptation=own if adapts else None), **asked)
    except TypeError as error:
        raise InputError(f"An evaluation cannot be asked that: {error}.") from None
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="mt3-"))) if out is None else None
        file = folder / "evaluation.json" if folder is not None else Path(str(out))
        return evaluate_images(model, TestImages(dataset, opened), protocol, file)
