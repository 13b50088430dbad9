"""Any classifier as it is, for methods that need no heads of ours."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mt3.models.classifier import check_normalisation, names_to_adapt, normalise
from mt3.networks.foreign import Foreign, Pooled
from mt3.objectives.augment import as_float
from mt3.objectives.objective import Objective, Outputs
from mt3.support.errors import InputError


class Plain(nn.Module):
    """A module that maps images (N, 3, H, W) to logits (N, classes), or to an object that has `logits`.

    It has what adapting asks of a model. The module itself is never changed, nor copied.
    """

    stacks = False

    def __init__(
        self,
        module: nn.Module,
        normalisation: Sequence[Sequence[float]] | None = None,  # as MT3Model's
        size: int | None = None,  # pixels of a side; none: any
    ) -> None:
        super().__init__()
        self.size = size
        self.normalisation = None if normalisation is None else check_normalisation(normalisation)
        self.backbone = Foreign(module, size)  # its features are the logits
        self.num_classes = self.backbone.features

    @property
    def module(self) -> nn.Module:
        """The classifier that was given."""
        assert isinstance(self.backbone.early, Pooled)
        return self.backbone.early.module

    def outputs(self, images: Tensor, heads: bool = True) -> Outputs:
        """The logits alone."""
        x = as_float(images, self.dtype)
        return Outputs(self.backbone(normalise(x, self.normalisation)), {})

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes)."""
        return self.outputs(images).logits

    @property
    def dtype(self) -> torch.dtype:
        return next((p.dtype for p in self.parameters()), torch.float32)

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    def adapted_names(self, layers: str, objective: Objective | None = None) -> tuple[str, ...]:
        """The parameters that adapt: all, or those of the norms."""
        if layers == "last":
            raise InputError("The stages of this network are not known; adapt all or norm.")
        return names_to_adapt(self, [name for name, _ in self.named_parameters()], layers)
