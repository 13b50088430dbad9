"""The paper's backbone: a pre-activation ResNet with GroupNorm and shortcuts without parameters.

Its layers can be stacked (see `layers`): the convolutions see S networks' channels side by side, the features are
(S, N, F).
"""

import torch.nn.functional as F
from torch import Tensor, nn

from mt3.networks.layers import Conv2d, GroupNorm

NORM_EPS = 1e-3  # the authors' code


class Block(nn.Module):
    """A pre-activation residual block; the shortcut has no parameters.

    With `activated_shortcut` (the network's first block) the shortcut starts after the first norm and ReLU.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int, activated_shortcut: bool) -> None:
        super().__init__()
        self.norm1 = GroupNorm(groups, inputs, eps=NORM_EPS)
        self.conv1 = Conv2d(inputs, outputs, 3, stride, padding=1)
        self.norm2 = GroupNorm(groups, outputs, eps=NORM_EPS)
        self.conv2 = Conv2d(outputs, outputs, 3, padding=1)
        self.activated_shortcut = activated_shortcut
        self.extra_channels = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        activated = F.relu(self.norm1(x), inplace=True)
        shortcut = activated if self.activated_shortcut else x
        if self.extra_channels:
            stack = len(self.conv1.weight) if self.conv1.weight.dim() == 5 else 1
            halved = F.avg_pool2d(shortcut, 2, ceil_mode=True)  # an odd side is rounded up, as by the convolution
            shortcut = _widen(halved, self.extra_channels, stack)
        residual: Tensor = self.conv2(F.relu(self.norm2(self.conv1(activated)), inplace=True))
        return shortcut + residual


def _widen(x: Tensor, extra: int, stack: int) -> Tensor:
    """Add zero channels, half on each side; in a stack to each network's channels."""
    half = extra // 2
    if stack == 1:
        return F.pad(x, (0, 0, 0, 0, half, extra - half))
    last = x.permute(0, 2, 3, 1)  # channels-last in memory, so that this is no copy
    apart = last.reshape(*last.shape[:3], stack, -1)
    return F.pad(apart, (half, extra - half)).flatten(3).permute(0, 3, 1, 2)


def _stage(blocks: int, inputs: int, outputs: int, groups: int, first: bool = False) -> nn.Sequential:
    """A stage of residual blocks; every stage but the first halves the resolution and doubles the channels."""
    stride = 1 if first else 2
    return nn.Sequential(
        Block(inputs, outputs, stride, groups, activated_shortcut=first),
        *(Block(outputs, outputs, 1, groups, activated_shortcut=False) for _ in range(blocks - 1)),
    )


class Early(nn.Module):
    """The stem and the first two stages."""

    def __init__(self, blocks: int, width: int, groups: int) -> None:
        super().__init__()
        self.stem = Conv2d(3, width, 3, padding=1, bias=False)
        self.stage1 = _stage(blocks, width, width, groups, first=True)
        self.stage2 = _stage(blocks, width, 2 * width, groups)

    def forward(self, images: Tensor) -> Tensor:
        trunk: Tensor = self.stage2(self.stage1(self.stem(images)))
        return trunk


class Late(nn.Module):
    """The last stage, its norm and the mean over pixels."""

    def __init__(self, blocks: int, width: int, groups: int) -> None:
        super().__init__()
        self.stage = _stage(blocks, 2 * width, 4 * width, groups)
        self.norm = GroupNorm(groups, 4 * width, eps=NORM_EPS)

    def forward(self, trunk: Tensor) -> Tensor:
        pooled: Tensor = F.relu(self.norm(self.stage(trunk)), inplace=True).mean(dim=(2, 3))  # (N, C) or (N, S C)
        if self.norm.weight.dim() == 1:
            return pooled
        stack = len(self.norm.weight)
        return pooled.view(len(pooled), stack, pooled.shape[1] // stack).transpose(0, 1)  # (S, N, C)


class ResNet(nn.Module):
    """6n+2 layers in three stages of `width`, twice and four times as many filters."""

    stacks = True

    def __init__(self, depth: int, width: int, groups: int) -> None:
        super().__init__()
        self.shape = ((depth - 2) // 6, width, groups)
        self.features = 4 * width
        self.early: nn.Module = Early(*self.shape)
        self.late: nn.Module = Late(*self.shape)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.late(self.early(images))
        return features

    def branch(self) -> Late:
        """A further last stage, with weights of its own."""
        return Late(*self.shape)

    def largest(self, size: int) -> int:
        """Values of the largest activation for an image of `size` pixels."""
        return self.shape[1] * size**2

    def kept(self, size: int) -> int:
        """Values kept for the gradient: four activations a block, each stage's half as large as the stage before."""
        return 7 * self.shape[0] * self.largest(size)
