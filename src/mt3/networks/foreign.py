"""Any module as a backbone: what it gives is made into features (N, F), and its size is found by a dry pass."""

from typing import Any

import torch
from torch import Tensor, nn

from mt3.networks.recompute import recomputed
from mt3.support.errors import InputError

SIZES = (32, 48, 64, 96, 128, 224, 256, 384, 512)  # pixels that a dry pass tries, where none are given


class Foreign(nn.Module):
    """A module that maps images to features (N, F), to feature maps (N, F, H, W), which are pooled, or to an object with
    `pooler_output`."""

    def __init__(self, module: nn.Module, size: int | None = None) -> None:
        super().__init__()
        self.early: nn.Module = Pooled(module)
        self.late: nn.Module = nn.Identity()
        self.features, self.size, self._largest, self._kept = _dry_pass(self.early, size)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.early(images)
        return features

    def branch(self) -> nn.Module:
        """What branches off does so after all of it."""
        return nn.Identity()

    def largest(self, size: int) -> int:
        """Values of the largest activation for an image of `size` pixels, measured at another size."""
        return max(1, round(self._largest * (size / self.size) ** 2))

    def kept(self, size: int) -> int:
        """Values that surely lie in memory for the gradient of a pass over an image."""
        return max(1, round(self._kept * (size / self.size) ** 2))


class Pooled(nn.Module):
    """The module, and the mean over pixels where it gives feature maps."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.recompute = False

    def forward(self, images: Tensor) -> Tensor:
        return as_features(recomputed(self.module, images) if self.recompute else self.module(images))


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


def _dry_pass(module: nn.Module, size: int | None) -> tuple[int, int, int, int]:
    """Features, the size in pixels that worked, and values of the largest activation and of all, for one image."""
    sizes, problem = (SIZES if size is None else (size,)), ""
    for pixels in sizes:
        counts: list[int] = []
        modes = {part: part.training for part in module.modules()}
        handles = [
            part.register_forward_hook(lambda _m, _i, found: counts.append(_values(found)))
            for part in module.modules()
            if not any(True for _ in part.children())
        ]
        try:
            first = next(module.parameters(), torch.zeros(()))
            module.eval()
            with torch.no_grad():
                features = module(torch.zeros(2, 3, pixels, pixels, device=first.device, dtype=first.dtype))
        except InputError:
            raise
        except (RuntimeError, ValueError, AssertionError, IndexError, TypeError) as error:
            problem = str(error).splitlines()[0] if str(error) else type(error).__name__
            continue
        finally:
            for handle in handles:
                handle.remove()
            for part, mode in modes.items():
                part.training = mode
        counts.append(_values(features))
        return features.shape[1], pixels, max(counts) // 2, sum(counts) // 2
    raise InputError(
        f"The backbone cannot be called with images (2, 3, {sizes[0]}, {sizes[0]}) ({problem}); give the size of its "
        "images, and a module that maps images to features."
    )


def _values(found: Any) -> int:
    return found.numel() if isinstance(found, Tensor) else 0
