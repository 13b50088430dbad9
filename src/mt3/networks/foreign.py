"""Any module as a backbone: what it gives is made into features (N, F), and its size is found by a dry pass."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mt3.networks.bind import refuse_what_bind_misses
from mt3.support.errors import InputError
from mt3.support.threads import undisturbed

SIZES = (32, 48, 64, 96, 128, 224, 256, 384, 512)  # pixels that a dry pass tries, where none are given


class Foreign(nn.Module):
    """A module that maps images to features (N, F), to feature maps (N, F, H, W), which are pooled, or to an object
    with `pooler_output`."""

    stacks = False

    def __init__(self, module: nn.Module, size: int | None = None) -> None:
        super().__init__()
        self.early: nn.Module = Pooled(module)
        self.late: nn.Module = nn.Identity()
        found = _measure(self.early, size)
        self.features, self.size, self._largest, self._kept = found

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.early(images)
        return features

    def branch(self) -> nn.Module:
        """What branches off does so after all of it."""
        return nn.Identity()

    def largest(self, size: int) -> int:
        """Values of the largest activation for an image of `size` pixels, from what was measured at another size."""
        return max(1, round(self._largest * (size / self.size) ** 2))

    def kept(self, size: int) -> int:
        """Values that surely lie in memory for the gradient of a pass over an image."""
        return max(1, round(self._kept * (size / self.size) ** 2))


class Pooled(nn.Module):
    """The module, and the mean over pixels where it gives feature maps."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, images: Tensor) -> Tensor:
        return as_features(self.module(images))


def as_features(found: Any) -> Tensor:
    """Features (N, F) of what a module gave, or one sentence on how to wrap it."""
    given = found if isinstance(found, Tensor) else getattr(found, "pooler_output", None)
    if given is None and isinstance(getattr(found, "logits", None), Tensor):
        given = found.logits  # of a classifier whose class layer was taken off
    if isinstance(given, Tensor) and given.dim() == 4:
        given = given.mean(dim=(2, 3))
    if not isinstance(given, Tensor) or given.dim() != 2:
        came = f"a tensor {tuple(given.shape)}" if isinstance(given, Tensor) else f"a {type(found).__name__}"
        raise InputError(
            f"Expected the backbone to give features (N, F) or feature maps (N, F, H, W), got {came}; wrap it: class "
            "Net(nn.Module): forward = lambda self, x: self.inner(x).last_hidden_state[:, 0], with your own line there."
        )
    return given


class Measured(NamedTuple):
    """What a dry pass found."""

    features: int
    size: int  # pixels that worked
    largest: int  # values of the largest activation of one image
    kept: int  # values of all of them


def _measure(module: nn.Module, size: int | None) -> Measured:
    """Call the module with images of the size, or of the first size that works, in eval mode."""
    sizes, problem = (SIZES if size is None else (size,)), ""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        for pixels in sizes:
            try:
                with undisturbed(next(module.parameters(), torch.zeros(())).device):
                    return _dry_pass(module, pixels)
            except InputError:
                raise
            except Exception as error:  # a network may raise anything for a size that is not its own
                problem = problem or (str(error).splitlines() or [type(error).__name__])[0]
    finally:
        for part, mode in modes.items():
            part.training = mode
    raise InputError(
        f"The backbone cannot be called with images (2, 3, {sizes[0]}, {sizes[0]}) ({problem}); give the size of its "
        "images, and a module that maps images to features."
    )


def _dry_pass(module: nn.Module, pixels: int) -> Measured:
    counts: list[int] = []

    def count(_module: nn.Module, _inputs: Any, found: Any) -> None:
        counts.append(found.numel() if isinstance(found, Tensor) else 0)

    first = next(module.parameters(), torch.zeros(()))
    images = torch.rand(2, 3, pixels, pixels, generator=torch.Generator().manual_seed(0))
    images = images.to(first.device, first.dtype)
    leaves = [part for part in module.modules() if not any(True for _ in part.children())]
    handles = [part.register_forward_hook(count) for part in leaves]
    try:
        with torch.no_grad():
            features: Tensor = module(images)
    finally:
        for handle in handles:
            handle.remove()
    refuse_what_bind_misses(module, images)
    counts.append(features.numel())
    return Measured(features.shape[1], pixels, max(counts) // 2, sum(counts) // 2)
