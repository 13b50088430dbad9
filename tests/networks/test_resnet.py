"""The ResNet: its sizes, its branch and its stacks."""

import pytest
import torch

from mt3.models.call import bind
from mt3.networks.backbone import make_backbone


@pytest.mark.parametrize("size", [16, 31, 32, 33, 34, 48])
def test_images_of_any_size_have_features(size):
    """A stage halves the side, rounding up."""
    backbone = make_backbone("resnet8x4")
    with torch.no_grad():
        trunk = backbone.early(torch.rand(2, 3, size, size))
        assert trunk.shape == (2, 8, -(-size // 2), -(-size // 2))
        assert backbone.late(trunk).shape == (2, backbone.features)


@pytest.mark.parametrize("size", [32, 48])
def test_memory_is_counted_by_the_pixels(size):
    backbone = make_backbone("resnet14x4")
    assert backbone.largest(size) == 4 * size**2
    kept: list[int] = []  # what autograd keeps of the inputs of convolutions and norms, which it surely needs
    x = torch.rand(1, 3, size, size)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(0 if tensor.shape[-2:] == (3, 3) else tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        backbone(x)
    assert backbone.kept(size) <= sum(kept)
    assert max(kept) == backbone.largest(size)


def test_a_branch_is_a_last_stage_with_weights_of_its_own():
    backbone = make_backbone("resnet8x4g2")
    branch = backbone.branch()
    own, others = dict(branch.named_parameters()), dict(backbone.late.named_parameters())
    assert {name: p.shape for name, p in own.items()} == {name: p.shape for name, p in others.items()}
    assert not any(p is others[name] for name, p in own.items())
    assert branch.norm.num_groups == 2


@pytest.mark.parametrize("size", [16, 33])
def test_a_stack_has_the_features_of_its_members(size):
    backbone = make_backbone("resnet14x4g2").double()
    params = {name: torch.randn(3, *p.shape, dtype=torch.float64) for name, p in backbone.named_parameters()}
    images = torch.rand(3, 2, 3, size, size, dtype=torch.float64)
    with torch.no_grad():
        together = bind(backbone, params)(images.transpose(0, 1).flatten(1, 2))
        for i, own in enumerate(together):
            alone = bind(backbone, {name: p[i] for name, p in params.items()})(images[i])
            torch.testing.assert_close(own, alone, rtol=1e-10, atol=1e-10)
