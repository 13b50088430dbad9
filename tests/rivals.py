"""Small classifiers with every kind of norm, and images, for tests of test-time methods."""

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """Images to three classes, with a norm of the given kind."""

    def __init__(self, norm: str = "batch", classes: int = 3) -> None:
        super().__init__()
        kinds = {
            "batch": lambda c: nn.BatchNorm2d(c),
            "group": lambda c: nn.GroupNorm(2, c),
            "layer": lambda c: nn.GroupNorm(1, c),
        }
        self.first, self.norm1 = nn.Conv2d(3, 6, 3, 2, 1), kinds[norm](6)
        self.second, self.norm2 = nn.Conv2d(6, 8, 3, 2, 1), kinds[norm](8)
        self.last = nn.LayerNorm(8) if norm == "layer" else nn.Identity()
        self.classes = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.first(x)))
        x = torch.relu(self.norm2(self.second(x)))
        logits: Tensor = self.classes(self.last(x.mean((2, 3))))
        return logits


def make_net(norm: str = "batch", classes: int = 3) -> Net:
    """Always the same weights, with norms and statistics away from their special initial values."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Net(norm, classes)
        for _ in range(3):
            net(torch.rand(16, 3, 12, 12))  # moves the running statistics
        with torch.no_grad():
            for p in net.parameters():
                p.add_(0.3 * torch.randn(p.shape))
            net.classes.weight.mul_(3)
    return net.eval()


def make_images(count: int, size: int = 12, seed: int = 1) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed))
