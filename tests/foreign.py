"""Networks that are not ours, small enough for tests, and a step of the method written out by hand for any of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

import mt3
from mt3.adaptation.views import image_generator

Params = dict[str, Tensor]


class ConvNet(nn.Module):
    """Gives feature maps."""

    def __init__(self, norm: Callable[[int], nn.Module] = lambda c: nn.GroupNorm(2, c)) -> None:
        super().__init__()
        layers = [nn.Conv2d(3, 8, 3, 2, 1), norm(8), nn.GELU(), nn.Conv2d(8, 12, 3, 2, 1), nn.Softplus()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.layers(x)
        return maps


class Encoder(nn.Module):
    """Patches through PyTorch's own transformer; dropout is on in training."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.3, activation="gelu", batch_first=True)
        self.patches = nn.Conv2d(3, 16, 8, 8)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.encoder(self.patches(x).flatten(2).mT).mean(1)
        return features


VIT: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
VIT |= {"image_size": 32, "patch_size": 8}


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTModel

    return ViTModel(ViTConfig(**VIT))


def convnext() -> nn.Module:
    from transformers import ConvNextConfig, ConvNextModel

    return ConvNextModel(ConvNextConfig(depths=[1, 1], hidden_sizes=[8, 16], num_stages=2))


def resnet() -> nn.Module:
    """With batch normalisation whose statistics are not those of fresh layers."""
    from transformers import ResNetConfig, ResNetModel

    sizes: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    net = ResNetModel(ResNetConfig(**sizes, hidden_act="gelu")).train()
    with torch.no_grad():
        net(torch.rand(4, 3, 32, 32))
    return net.eval()


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "convnet": ConvNet,
    "encoder": Encoder,
    "vit": vit,
    "convnext": convnext,
    "resnet": resnet,
}


def coloured(count: int = 40, size: int = 16, classes: int = 2) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Noise in which the class is the brightest colour."""
    labels = np.arange(count) % classes
    images = np.random.RandomState(0).randint(0, 60, (count, size, size, 3)).astype(np.uint8)
    images[np.arange(count), :, :, labels] += 120
    return images, labels


class AllOutputs(nn.Module):
    """Logits, r and z from one `forward`, as `functional_call` needs it."""

    def __init__(self, model: mt3.MT3Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, heads = self.model.outputs(x)
        return logits, heads["r"], heads["z"]


def outputs(model: mt3.MT3Model, params: Params, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """By PyTorch's own way to call a module with other parameters."""
    renamed = {f"model.{name}": p for name, p in params.items()}
    found: tuple[Tensor, Tensor, Tensor] = functional_call(AllOutputs(model), renamed, (x,))
    return found


def byol(r: Tensor, z: Tensor) -> Tensor:
    """Eq. 1, pair by pair."""
    k = len(r) // 2
    pairs = [(r[i], z[i + k]) for i in range(k)] + [(r[i + k], z[i]) for i in range(k)]
    return sum(((2 - 2 * F.cosine_similarity(a, b.detach(), dim=0)) for a, b in pairs), torch.zeros(())) / k


def step_by_hand(model: mt3.MT3Model, params: Params, views: Tensor, adaptation: mt3.Adaptation) -> Params:
    """One clipped step on the views, which stays differentiable."""
    _, r, z = outputs(model, params, views)
    names = [name for name in params if not name.startswith("classify.")]
    gradients = torch.autograd.grad(byol(r, z), [params[n] for n in names], create_graph=True, allow_unused=True)
    used = {n: g for n, g in zip(names, gradients, strict=True) if g is not None}
    norm = sum(g.square().sum() for g in used.values()).sqrt()
    scale = 1.0 if adaptation.clip is None or norm <= adaptation.clip else adaptation.clip / norm
    return params | {n: params[n] - adaptation.lr * scale * g for n, g in used.items()}


def adapted_by_hand(model: mt3.MT3Model, image: Tensor) -> Tensor:
    """Logits (classes,) of a float image after one step on its own views."""
    views = model.objective.test_views(image, model.adaptation.views, image_generator(image, 0))
    with sdpa_kernel(SDPBackend.MATH):
        phi = step_by_hand(model.eval(), dict(model.named_parameters()), views.images, model.adaptation)
        return outputs(model, phi, image[None])[0][0].detach()
