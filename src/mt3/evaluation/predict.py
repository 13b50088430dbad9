"""Class and probability of single images, before and after adapting."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mt3.adaptation.adapter import Adapter
from mt3.adaptation.choose import uses_batch
from mt3.config.adaptation import Adaptation
from mt3.models.classifier import MT3Model
from mt3.support.errors import InputError

NOT_FINITE = "The model's answer is not finite; lower lr, or train it again."


def predict(
    model: MT3Model,
    images: Sequence[NDArray[np.uint8]],  # (H, H, 3) each
    adaptation: Adaptation | None = None,  # none: the model's own, if it has one
    seed: int = 0,
    everything: bool = False,
) -> list[dict[str, Any]]:
    """One answer per image; `after` is None for a model that has nothing to adapt with.

    Where the adaptation carries its steps along a stream, the images are one, in their order, and have no losses.
    With `everything` an answer has the probabilities of all classes. `adapted` is false where the model as it is
    answers: it has nothing to adapt with, a gate was shut, a method left the image out, a stream begins or is guarded.
    """
    if not len(images):
        raise InputError("Expected at least one image to predict, got none.")
    batch = model.check_images(as_tensor(np.stack(list(images)), model.device))
    model.eval()
    if model.objective is None and adaptation is None:
        with torch.no_grad():
            logits = model(batch)
        return [{"before": _answer(model, own, everything), "after": None, "adapted": False} for own in logits]
    adapter = Adapter(model, adaptation, seed=seed)
    told = adapter.adaptation
    if told.carry == "stream":
        return predict_next(adapter, images, everything)
    compared = adapter.compare(batch)
    moves = bool(told.steps and told.lr) if told.takes_steps else True
    used = compared.loss_before.isfinite() & moves | uses_batch(model, told)
    adapted = (used & ~adapter.keeps(compared.before)).tolist()
    return [
        {
            "before": _answer(model, compared.before[i], everything),
            "after": _answer(model, compared.after[i], everything),
            "adapted": adapted[i],
            "loss_before": _finite(compared.loss_before[i]),
            "loss_after": _finite(compared.loss_after[i]),
            "gradient_norm": _finite(compared.grad_norm[i]),
        }
        for i in range(len(batch))
    ]


def predict_next(
    adapter: Adapter, images: Sequence[NDArray[np.uint8]], everything: bool = False
) -> list[dict[str, Any]]:
    """Answers to the next images of a stream, by the model as it is and by what it has become."""
    model = adapter.model
    assert isinstance(model, MT3Model)
    batch = as_tensor(np.stack(list(images)), model.device)
    assert adapter.stream is not None
    told = zip(adapter.unadapted(batch), adapter(batch), adapter.stream.adapted, strict=True)
    return [
        {"before": _answer(model, before, everything), "after": _answer(model, after, everything), "adapted": adapted}
        for before, after, adapted in told
    ]


def refuse_shift(adaptation: Adaptation) -> None:
    """Refuse a reset at shifts where images come as they are, and nobody tells of one."""
    if adaptation.carry == "stream" and adaptation.reset == "shift":
        raise InputError("Nothing here tells of a shift; choose another reset than shift.")


def _finite(value: Tensor) -> float | None:
    """A number; none for what JSON has no word for, as the loss of a method that left the image out."""
    return value.item() if value.isfinite() else None


def _answer(model: MT3Model, logits: Tensor, everything: bool) -> dict[str, Any]:
    p = probabilities(logits)
    index = int(p.argmax())
    names = model.classes or [str(i) for i in range(model.num_classes)]
    answer = {"class": names[index], "index": index, "probability": float(p[index])}
    return answer | {"probabilities": p.tolist()} if everything else answer


def as_tensor(images: NDArray[np.uint8], device: torch.device) -> Tensor:
    """Images (N, H, H, 3) as a tensor (N, 3, H, H)."""
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).to(device)


def probabilities(logits: Tensor) -> NDArray[np.float32]:
    """Of the classes, the last axis; an answer that is not finite is refused."""
    p = np.asarray(logits.float().softmax(-1).cpu().numpy())
    if not np.isfinite(p).all():
        raise InputError(NOT_FINITE)
    return p
