"""The moments of a model's channels on training images, and its answers with these given back."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mt3.models.call import Network
from mt3.networks.align import Moments, matched, moments, watched
from mt3.objectives.augment import as_float
from mt3.support.errors import InputError
from mt3.support.files import atomic_path

AT_ONCE = 50  # training images in a pass
MOST = 2**20  # channels of a network


def source_moments(model: Network, images: Tensor) -> Moments:
    """The moments behind every norm on training images (N, 3, H, W), uint8 or in [0, 1]."""
    total: Moments = {}

    def add(name: str, values: Tensor, axis: int) -> Tensor:
        share = moments(values, axis) * (len(part) / len(images))
        total[name] = total[name] + share if name in total else share
        return values

    for part in torch.split(images, AT_ONCE):
        watched(model, add).outputs(as_float(part.to(model.device), model.dtype), False)
    if not total:
        raise InputError("The network has no norm with weights (batch, group or layer norm) behind which to align.")
    if not all(t.isfinite().all() for t in total.values()):
        raise InputError("The network gives values that are not finite for these training images; give others.")
    return total


def aligned_logits(
    model: Network, images: Tensor, source: Moments, now: Mapping[str, Tensor], rate: float
) -> tuple[Tensor, Moments]:
    """The answers to images by the aligned network, and the moments after them.

    `now` are the moments so far, at first none: then they are the source's. Those of these images count by `rate`, in
    the same pass, norm after norm, so that each sees what is aligned before it.
    """
    after = dict(source) | dict(now)

    def move(name: str, values: Tensor, axis: int) -> Tensor:
        if name not in source:  # training images do not pass it
            return values
        fresh = moments(values, axis)
        before = after[name].to(fresh)
        found = torch.lerp(before, fresh, rate)
        after[name] = torch.where(found.isfinite().all(), found, before)
        return matched(values, after[name], source[name].to(fresh), axis)

    return watched(model, move).outputs(as_float(images, model.dtype), False).logits, after


def write_moments(path: Path, found: Moments) -> None:
    with atomic_path(path) as temporary:
        save_file({name: t.detach().cpu().contiguous() for name, t in found.items()}, temporary)


def read_moments(path: Path) -> Moments | None:
    """What `write_moments` wrote; none where there is no such file."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
            whole = shapes and all(len(shape) == 2 and shape[0] == 2 for shape in shapes.values())
            if whole and sum(shape[1] for shape in shapes.values()) <= MOST:
                found = {name: file.get_tensor(name).clone() for name in shapes}
                if all(t.is_floating_point() and t.isfinite().all() for t in found.values()):
                    return found
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is damaged ({error}); delete it, and `mt3 moments` writes it again.") from error
    raise InputError(f"{path} does not hold moments of channels; delete it, and `mt3 moments` writes it again.")
