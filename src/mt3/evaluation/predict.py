"""Class and probability of single images, before and after adapting."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mt3.adaptation.adapter import Adapter
from mt3.config.adaptation import Adaptation
from mt3.models.classifier import MT3Model
from mt3.support.errors import InputError


def predict(
    model: MT3Model,
    images: Sequence[NDArray[np.uint8]],  # (H, H, 3) each
    adaptation: Adaptation | None = None,  # none: the model's own
    seed: int = 0,
) -> list[dict[str, Any]]:
    """One answer per image; `after` is None for a model that has nothing to adapt with.

    `adapted` says whether the step was used: not where the model has nothing to adapt with or the gate was shut.
    """
    if not len(images):
        raise InputError("Expected at least one image to predict, got none.")
    batch = model.check_images(as_tensor(np.stack(list(images)), model.device))
    model.eval()
    if model.objective is None:
        with torch.no_grad():
            return [{"before": _answer(model, logits), "after": None, "adapted": False} for logits in model(batch)]
    adapter = Adapter(model, adaptation, seed=seed)
    compared = adapter.compare(batch)
    kept = adapter.keeps(compared.before)
    return [
        {
            "before": _answer(model, compared.before[i]),
            "after": _answer(model, compared.after[i]),
            "adapted": not kept[i].item(),
            "loss_before": compared.loss_before[i].item(),
            "loss_after": compared.loss_after[i].item(),
            "gradient_norm": compared.grad_norm[i].item(),
        }
        for i in range(len(batch))
    ]


def _answer(model: MT3Model, logits: Tensor) -> dict[str, Any]:
    p = probabilities(logits)
    index = int(p.argmax())
    names = model.classes or [str(i) for i in range(model.num_classes)]
    return {"class": names[index], "index": index, "probability": float(p[index])}


def as_tensor(images: NDArray[np.uint8], device: torch.device) -> Tensor:
    """Images (N, H, H, 3) as a tensor (N, 3, H, H)."""
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).to(device)


def probabilities(logits: Tensor) -> NDArray[np.float32]:
    """Of the classes, the last axis; an answer that is not finite is refused."""
    p = np.asarray(logits.float().softmax(-1).cpu().numpy())
    if not np.isfinite(p).all():
        raise InputError("The model's answer is not finite; lower --lr, or train it again.")
    return p
