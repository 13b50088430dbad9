"""Other first weights than Glorot's, made from them."""

from collections.abc import Callable

import torch
from torch import nn

from mt3.networks.resnet import Block

GAIN = 2**0.5  # He et al.: half of a ReLU's inputs pass


def keep(model: nn.Module) -> None:
    """Leave the weights as they are."""


def zero_last_convolutions(model: nn.Module) -> None:
    """Let every residual block begin as the identity: its last convolution is set to zero."""
    for module in model.modules():
        if isinstance(module, Block):
            nn.init.zeros_(module.conv2.weight)


def centre_filters(model: nn.Module) -> None:
    """Take the mean off every filter that follows a ReLU, and stretch its layer to sqrt(2) times its deviation.

    Activations after a ReLU have a large common mean, which a norm over each image's own pixels leaves alike for all
    images. Filters that sum to zero do not pass it on, so that the first steps see what differs between images.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        for layer in layers[1:]:  # the first one sees the image
            rows = layer.weight.flatten(1)
            if rows.shape[1] == 1:
                continue
            centred = rows - rows.mean(1, keepdim=True)
            layer.weight.copy_((centred * (GAIN * rows.std() / centred.std())).view_as(layer.weight))


INITS: dict[str, Callable[[nn.Module], None]] = {
    "glorot": keep,
    "zero": zero_last_convolutions,
    "centred": centre_filters,
}
