"""Batch normalisation: when it is refused, and how it is replaced."""

import copy

from torch import nn

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
