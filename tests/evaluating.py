"""Small evaluations for tests."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import mt3
from mt3.config.adaptation import Adaptation
from mt3.evaluation.evaluate import evaluate
from mt3.evaluation.protocol import Protocol, TestImages
from mt3.results.facts import Evaluation


def make_model(objective: str | None = "byol", hidden: int = 16) -> mt3.MT3Model:
    adaptation = Adaptation(objective, lr=0.5, views=3)
    model = mt3.MT3Model("resnet8x4g2", 10, objective, hidden, 8, adaptation=adaptation)
    model.reset_parameters(torch.Generator().manual_seed(0))
    return model.eval()


def ask(out: Path, images: TestImages, model: mt3.MT3Model | None = None, /, **asked: Any) -> Evaluation:
    """Evaluate under contrast at severity 5, adapted as the model does by itself but for `views`, or as asked."""
    model = make_model() if model is None else model
    own = model.adaptation if model.objective is not None else None
    views = asked.pop("views", None)
    if own is not None and views is not None:
        own = replace(own, views=views)
    return evaluate(model, images, Protocol(**({"corruptions": ("contrast",), "adaptation": own} | asked)), out)
