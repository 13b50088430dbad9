"""The moments of a model's channels on training images, and its answers with these given back.

Images that all show one class have other moments than a mixture of classes, shift or no shift. So training images are
kept apart by how the model answers them, and what a stream is compared with has the stream's own mix of answers.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mt3.models.call import Network
from mt3.networks.align import MIX, Moments, Source, matched, moments, watched
from mt3.objectives.augment import as_float
from mt3.support.errors import InputError
from mt3.support.files import atomic_path

AT_ONCE = 50  # training images in a pass
MOST = 2**20  # channels of a network, times classes


def source_moments(model: Network, images: Tensor) -> Source:
    """The moments behind every norm on training images (N, 3, H, W), uint8 or in [0, 1]."""
    whole, logits = _moments(model, images)
    if not whole:
        raise InputError("The network has no norm with weights (batch, group or layer norm) behind which to align.")
    if not all(t.isfinite().all() for t in whole.values()):
        raise InputError("The network gives values that are not finite for these training images; give others.")
    classes = logits.shape[1]
    if classes * sum(t.shape[1] for t in whole.values()) > MOST:
        return Source({name: t[None] for name, t in whole.items()}, answer_mix(logits, 1))
    answers = logits.argmax(1).to(images.device)
    members = (images[answers == label] for label in range(classes))
    found = [_moments(model, own)[0] if len(own) else whole for own in members]
    stacked = {name: torch.stack([own.get(name, t) for own in found]) for name, t in whole.items()}
    return Source(stacked, answer_mix(logits, classes))


def _moments(model: Network, images: Tensor) -> tuple[Moments, Tensor]:
    """The moments on all these images together, and the logits."""
    total: Moments = {}

    def add(name: str, values: Tensor, axis: int) -> Tensor:
        share = moments(values, axis) * (len(part) / len(images))
        total[name] = total[name] + share if name in total else share
        return values

    logits = []
    for part in torch.split(images, AT_ONCE):
        logits.append(watched(model, add).outputs(as_float(part.to(model.device), model.dtype), False).logits)
    return total, torch.cat(logits)


def answer_mix(logits: Tensor, classes: int) -> Tensor:
    """The share (classes,) of each class among the answers; 1 where classes are not kept apart."""
    if classes == 1:
        return logits.new_ones(1, dtype=torch.float32)
    return F.one_hot(logits.argmax(1), classes).float().mean(0)


def aligned_logits(
    model: Network, images: Tensor, wanted: Moments, now: Mapping[str, Tensor], rate: float, after: bool
) -> tuple[Tensor, Moments, Tensor]:
    """The answers to images by the network whose channels have the wanted moments, and the moments after them.

    Last, whether these images count: where a value of theirs is not finite, none of the moments moves.

    `now` are the moments so far, at first none: then they are those that are wanted. Those of these images count by
    `rate`: for their own answers, too, if `after`, norm after norm, so that each sees what is aligned before it.
    """
    start = dict(wanted) | dict(now)
    found, whole = dict(start), []

    def move(name: str, values: Tensor, axis: int) -> Tensor:
        if name not in wanted:  # training images do not pass it
            return values
        fresh = moments(values, axis)
        before = found[name].to(fresh)
        moved = torch.lerp(before, fresh, rate)
        whole.append(moved.isfinite().all())
        found[name] = torch.where(whole[-1], moved, before)
        return matched(values, found[name] if after else before, wanted[name].to(fresh), axis)

    logits = watched(model, move).outputs(as_float(images, model.dtype), False).logits
    counts = torch.stack([*whole, ~logits.isnan().any()]).all()
    return logits, {name: torch.where(counts, t, start[name].to(t)) for name, t in found.items()}, counts


def write_moments(path: Path, found: Source) -> None:
    with atomic_path(path) as temporary:
        save_file({name: t.detach().cpu().contiguous() for name, t in found.tensors().items()}, temporary)


def read_moments(path: Path) -> Source | None:
    """What `write_moments` wrote; none where there is no such file."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
            (mix,) = given if len(given := shapes.pop(MIX, ())) == 1 else (0,)
            alike = mix and shapes and all(len(shape) == 3 and shape[:2] == [mix, 2] for shape in shapes.values())
            if alike and mix * sum(shape[2] for shape in shapes.values()) <= MOST:
                found = {name: file.get_tensor(name).clone() for name in (*shapes, MIX)}
                exact = all(t.dtype in (torch.float32, torch.float64) and t.isfinite().all() for t in found.values())
                shares = found.pop(MIX)
                if exact and (shares >= 0).all() and abs(shares.sum().item() - 1) < 1e-3:
                    return Source(found, shares)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is damaged ({error}); delete it, and `mt3 moments` writes it again.") from error
    raise InputError(f"{path} does not hold moments of channels; delete it, and `mt3 moments` writes it again.")
