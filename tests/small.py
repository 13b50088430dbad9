"""A small network for tests that compare values."""

import torch

import mt3


def small_model(variant: str = "paper", objective: str = "byol", hidden: int = 6) -> mt3.MT3Model:
    """Of double precision, with norms of two groups."""
    adaptation = mt3.Adaptation(objective, variant=variant)
    model = mt3.MT3Model("resnet8x4g2", 3, objective, hidden, projection=5, adaptation=adaptation).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():  # biases and norms away from their special initial values
            p.add_(0.1 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return model
