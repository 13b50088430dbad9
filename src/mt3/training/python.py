"""`mt3.train`: train a model of your own, in place, from Python."""

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from mt3.config.config import Config, make_config, start_config
from mt3.data import as_dataset
from mt3.models.classifier import MT3Model
from mt3.support.errors import InputError
from mt3.training.loop import train as train_run
from mt3.training.runs import RunOptions


def train(
    model: MT3Model,
    data: Any,
    method: str = "mt3",
    *,
    out: str | Path | None = None,  # the run's directory; none: nothing is kept
    preset: str = "small",
    options: RunOptions | None = None,
    **fields: Any,
) -> MT3Model:
    """Train the model in place and return it.

    `data` is one of our data sets, a pair of arrays `(images uint8 NHWC, labels)` or a torch `Dataset`. The fields of a
    run (`epochs=2`, `tasks=4`, `seed=1`, ...) replace the preset's. The model's weights are the start; afterwards it
    adapts as it was trained to.
    """
    if not isinstance(model, MT3Model):
        raise InputError(f"Expected an MT3Model, got a {type(model).__name__}; mt3.MT3Model(backbone, ...) makes one.")
    dataset = as_dataset(data, model.size)
    if dataset.num_classes != model.num_classes:
        raise InputError(
            f"The model has {model.num_classes} classes, the data {dataset.num_classes}; give both the same."
        )
    if model.size is not None and model.size != dataset.size:
        raise InputError(f"The model is for images of {model.size} pixels, the data has {dataset.size}; scale them.")
    config = make_config(method, dataset.name, preset, fields.pop("seed", 0), {"start": None, **fields})
    config = replace(config, variant=model.adaptation.variant, precision=model.precision)
    _require_objective(model, config)
    if config.training != "ce":
        model.set_adaptation(config.test)
    asked = RunOptions(str(model.device)) if options is None else options
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="mt3-"))) if out is None else Path(out)
        train_run(config, dataset, folder, replace(asked, network=model.name), model)
    return model.eval()


def _require_objective(model: MT3Model, config: Config | None) -> None:
    """Refuse a training, or one that comes before it, with another objective than the model's."""
    while config is not None:
        if config.objective not in (None, model.adaptation.objective):
            raise InputError(
                f"The method {config.method} trains {config.objective}, the model has "
                f"{model.adaptation.objective or 'no objective'}; choose another method, or make the model with it."
            )
        config = start_config(config)
