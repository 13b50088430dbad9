"""Batch normalisation: when it is refused, how it is replaced, and how it takes the statistics of a batch."""

import copy

import torch
from torch import Tensor, nn

from mt3.support.errors import InputError

BATCH_NORM = nn.modules.batchnorm._BatchNorm
GROUPS = 16  # as the paper's norms have, where the channels divide


def refuse_training_statistics(module: nn.Module) -> None:
    """Raise if a batch normalisation would take its statistics from the batch, or change its own."""
    for name, part in module.named_modules():
        if isinstance(part, BATCH_NORM) and (part.training or part.running_mean is None):
            raise InputError(
                f"The network has batch normalisation ({name or type(part).__name__}) that would take its statistics "
                "from the views of a single image, and keep a trace of them; call .eval() on a finished network, which "
                "freezes them, or replace the layers by mt3.convert_batchnorm(module) and train."
            )


def has_batch_norm(module: nn.Module) -> bool:
    return any(isinstance(part, BATCH_NORM) for part in module.modules())


def take_batch_statistics(twin: nn.Module, share: float) -> None:
    """Let every batch normalisation of a module take this share of its statistics from the batch.

    The module is changed, so that it has to be a twin that nobody else has (`bind`); the buffers are shared, and stay.
    """
    for part in twin.modules():
        if isinstance(part, BATCH_NORM) and part.running_mean is not None:
            if share == 1:  # PyTorch's own way for a layer without statistics
                part.__dict__["_buffers"] = part._buffers | {"running_mean": None, "running_var": None}
            else:
                part.__class__, part.__dict__["share"] = _Mixed, share


class _Mixed(BATCH_NORM):
    """A batch normalisation by a mixture of the batch's statistics and its own."""

    share: float

    def forward(self, x: Tensor) -> Tensor:
        assert self.running_mean is not None
        assert self.running_var is not None
        axes = [axis for axis in range(x.dim()) if axis != 1]
        shape = [1, -1, *[1] * (x.dim() - 2)]
        variance, mean = torch.var_mean(x.float() if x.dtype.itemsize < 4 else x, axes, correction=0)
        mean = torch.lerp(self.running_mean.to(mean), mean, self.share).view(shape)
        variance = torch.lerp(self.running_var.to(variance), variance, self.share).view(shape)
        out = (x - mean) * (variance + self.eps).rsqrt()
        if self.affine:
            out = out * self.weight.view(shape) + self.bias.view(shape)
        return out.to(x.dtype)


def convert_batchnorm(module: nn.Module, groups: int = GROUPS) -> nn.Module:
    """A copy of the module with group normalisation instead of batch normalisation.

    Scale and shift are taken over; the statistics are each image's own then, so train it further.
    """
    if isinstance(module, BATCH_NORM):
        return _group_norm(module, groups)
    twin = copy.deepcopy(module)
    for name, part in list(twin.named_modules()):
        if isinstance(part, BATCH_NORM):
            parent, _, child = name.rpartition(".")
            setattr(twin.get_submodule(parent), child, _group_norm(part, groups))
    return twin


def _group_norm(norm: BATCH_NORM, groups: int) -> nn.GroupNorm:
    channels = norm.num_features
    fitting = max(g for g in range(1, min(groups, max(1, channels // 2)) + 1) if channels % g == 0)
    new = nn.GroupNorm(fitting, channels, eps=norm.eps, affine=norm.affine)
    if norm.affine:
        new.load_state_dict({"weight": norm.weight.detach(), "bias": norm.bias.detach()})
        new.to(norm.weight.device, norm.weight.dtype)
    return new
